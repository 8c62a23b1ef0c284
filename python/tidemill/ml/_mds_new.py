"""Adds new points to those that `MDS` has placed."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill import _tidemill as native
from tidemill.dataset import DataSet
from tidemill.ml._distances import Array, Computed, Rows, Weights, fill, rows_of, table
from tidemill.ml._estimator import check_features, not_finite
from tidemill.ml._mds_input import Input, refuse_not_finite
from tidemill.ml._smacof import interpolate
from tidemill.ml._tables import NamedRows, fitted_columns, is_table, local_rows, mapped, no_distances
from tidemill.ml._threads import pool

__all__ = ["NewPoints"]

#: Bytes of new points' distances that are processed together.
_NEW_BYTES = 32 << 20


class NewPoints(Input):
    """The part of `MDS` that places new points."""

    positions_: Array
    n_features_in_: int
    #: The user's value of a distance of 1 in the kernels; and the weights of the columns for new points.
    _unit: float
    _columns: Array

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the columns of `transform`: ``mds0`` and so on."""
        self._check_fitted()
        return np.array([f"mds{i}" for i in range(self.positions_.shape[1])], dtype=object)

    def transform(self, X: Any, weights: ArrayLike | None = None) -> Any:
        """Place new points among the fitted ones, which do not move, at the minimum of each new point's weighted
        stress. Local; for a DataSet of vectors a step of the query.

        Parameters
        ----------
        X : array-like of shape (n_new, n_points) or (n_new, n_features), Table or DataSet
            Distances of the new points to all fitted ones, or vectors.
        weights : array-like of shape (n_points,) or (n_new, n_points), optional
            Weights of the fitted points, or of each distance; by default those of `fit` if they were a vector, else all
            equal.

        Returns
        -------
        ndarray of shape (n_new, n_components), float64; for a DataSet a DataSet
            The positions; for a DataSet its columns, and ``mds0`` and so on.

        Notes
        -----
        Majorization of the stress of one point, as in Bae, Qiu and Fox (2010) and with weights in Ruan and Fox (2013).
        It starts at the nearest fitted point, and again at the intersection of the spheres of its distances. If the
        fitted points lie in a plane, on a line or at one point, it also starts to one side of that, at the distance
        that the input implies. The best result is kept.
        """
        self._check_fitted()
        name = type(self).__name__
        if is_table(X) and self.metric != "precomputed":
            columns = fitted_columns(self, X)
            if isinstance(X, DataSet):
                if weights is not None and np.ndim(weights) != 1:
                    raise ValueError(
                        "weights of a DataSet's points are one for each fitted point: its rows have no order."
                    )
                names = getattr(self, "feature_names_in_", None)
                fields = [(str(field), "float64") for field in self.get_feature_names_out()]

                def place(x: NDArray[Any]) -> Array:
                    found: Array = self.transform(x if names is None else NamedRows(x, list(names)), weights)
                    return found

                return mapped(X, "MDS.transform", columns, place, fields)
            X = local_rows(X, columns, name)
        elif isinstance(X, DataSet):
            raise no_distances(name)
        rows, names = rows_of(X, name, empty_allowed=False)
        if rows.shape[1] != self.n_features_in_:
            refuse_not_finite(rows, name)
        check_features(self, cast(NDArray[Any], rows), names)
        if callable(self.metric):
            x = rows.block(0, rows.shape[0], np.float64)
            if not np.isfinite(x).all():
                raise not_finite(x, name)
            rows = Rows(Computed(self.metric, x, self._points))
        return self._among(rows, self._new_weights(weights, rows.shape[0]))

    def _among(self, rows: Rows, given: Weights) -> Array:
        """Run `transform` on checked input."""
        threads, n = pool(self.n_threads), len(self.positions_)
        positions = self.positions_ / self._unit
        out = np.empty((rows.shape[0], self.n_components))
        step = max(1, _NEW_BYTES // (8 * n))
        for first in range(0, rows.shape[0], step):
            last = min(first + step, rows.shape[0])
            part = _slice_weights(given, first, last)
            cells, distances = self._new_cells(threads, Rows(rows.block(first, last)), part, first)
            matrix_of = part.columns if part.rows is None else part.rows.block(0, last - first, np.float64)
            assert matrix_of is not None, "there are weights of columns or of cells"
            out[first:last] = interpolate(
                threads,
                cells,
                positions,
                distances,
                matrix_of,
                weighted=part.rows is not None,
                max_iter=self.max_iter,
                tol=self.tol,
            )
        result: Array = out * self._unit
        return result

    def _new_weights(self, weights: Any, count: int) -> Weights:
        n = len(self.positions_)
        if weights is None:
            return Weights(self._columns, None, 1.0)
        array = np.asarray(weights, dtype=np.float64)
        if array.shape not in ((n,), (count, n)):
            raise ValueError(f"weights must have shape {(n,)} or {(count, n)}, not {array.shape}.")
        if not (np.isfinite(array) & (array >= 0)).all():
            raise ValueError("weights must be finite and not negative.")
        empty = np.flatnonzero(~(np.atleast_2d(array) > 0).any(axis=1))
        if len(empty):
            raise ValueError(f"All weights of new point {empty[0]} are zero: at least one distance must count.")
        array = array / array.max()
        if array.ndim == 1:
            return Weights(array.astype(np.float32).astype(np.float64), None, 1.0)
        return Weights(None, Rows(array.astype(np.float32)), 1.0)

    def _new_cells(
        self, threads: native.KernelPool, rows: Rows, weights: Weights, first: int
    ) -> tuple[native.MdsDistances, Array]:
        """Return distances of some new points, the first of which is `first`: as kernels store them, and as numbers;
        both in the unit.
        """
        count, n = rows.shape[0], len(self.positions_)
        if self._vectors is None or self._mean is None:
            largest = table(rows, threads, None, weights, at=first)
            # New points may be farther away than any two fitted ones.
            if largest > 1e15 * self._unit:
                raise ValueError(f"The distance {largest:.6g} is too large compared with those that were fitted.")
            cells = native.MdsDistances(count, n, None, "float32")
            fill(cells, threads, rows, weights, self._unit)
        else:
            x = rows.block(0, count)
            if not np.isfinite(x).all():
                raise not_finite(x, type(self).__name__)
            near = (x - self._mean) / self._unit
            if not float(np.abs(near).max(initial=0.0)) < 1e15:
                raise ValueError("Values of X are too large compared with those that were fitted.")
            cells = native.MdsDistances.of_vectors(near.astype(np.float32), self._vectors, None)
            fill(cells, threads, None, weights, self._unit)
        return cells, cells.block(False, (0, count), (0, n)).astype(np.float64)


def _slice_weights(weights: Weights, first: int, last: int) -> Weights:
    if weights.rows is None:
        return weights
    return Weights(None, Rows(weights.rows.block(first, last)), weights.unit)
