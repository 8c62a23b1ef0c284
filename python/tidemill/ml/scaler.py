"""`StandardScaler`: features of mean 0 and variance 1, over the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.dataset import DataSet, Table
from tidemill.ml._estimator import Estimator, check_features, check_weights, matrix
from tidemill.ml._job import active, collective_try
from tidemill.ml._tables import fitted_columns, is_table, local_rows, mapped, weights_and_rest, with_columns

__all__ = ["StandardScaler"]

Self = TypeVar("Self", bound="StandardScaler")
Array = NDArray[np.float64]
Rows = ArrayLike | DataSet | Table

#: Rows that are summed at a time, so that their squares are in the cache.
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class _Parts:
    """For each feature (d,): the weight of its non-missing values, their mean, and the sum of squares about it."""

    weight: Array
    mean: Array
    squares: Array

    def merged(self, other: _Parts) -> _Parts:
        """Return the merged parts. Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm"
        (1979).
        """
        weight = self.weight + other.weight
        share = np.divide(other.weight, weight, out=np.zeros_like(weight), where=weight > 0)
        way = other.mean - self.mean
        return _Parts(weight, self.mean + way * share, self.squares + other.squares + way**2 * self.weight * share)


def _parts(x: NDArray[Any], weights: Array | None) -> _Parts:
    """Return the parts of some rows (n, d), block by block; NaN counts as missing."""
    d = x.shape[1]
    total = _Parts(np.zeros(d), np.zeros(d), np.zeros(d))
    for first in range(0, len(x), _BLOCK_ROWS):
        block = x[first : first + _BLOCK_ROWS].astype(np.float64)
        there = ~np.isnan(block)
        block[~there] = 0.0
        w = there if weights is None else there * weights[first : first + len(block), None]
        weight = w.sum(axis=0, dtype=np.float64)
        filled = np.where(weight > 0, weight, 1.0)
        # Relative to the first value, so that sums of large numbers lose no precision.
        about = block[there.argmax(axis=0), np.arange(d)]
        way = np.where(there, block - about, 0.0)
        mean = (w * way).sum(axis=0) / filled
        way -= mean
        lost = (w * way).sum(axis=0)
        squares = (w * way**2).sum(axis=0) - lost**2 / filled
        total = total.merged(_Parts(weight, about + mean, np.maximum(squares, 0.0)))
    return total


class StandardScaler(Estimator):
    """Standardize features: subtract the mean and divide by the standard deviation, both over the rows of all ranks.

    It follows the conventions of ``sklearn.preprocessing.StandardScaler``: NaN counts as missing and stays NaN; a
    constant feature is not scaled; the variance is the population variance (divided by n). `fit`, `partial_fit` and
    `fit_transform` are collective: each rank passes its own rows, and may have none. `transform` and
    `inverse_transform` are local.

    Parameters
    ----------
    copy : bool, default=True
        If False, scale float32 and float64 arrays in place.
    with_mean, with_std : bool, default=True
        Whether to subtract the mean, and whether to scale.

    Attributes
    ----------
    mean_, var_, scale_ : ndarray of shape (n_features,), float64
        ``None`` if `with_mean` or `with_std` is False, as in scikit-learn; the same on every rank.
    n_samples_seen_ : int or float, or ndarray of shape (n_features,)
        Number of rows, or their total weight; for each feature if NaN makes them differ.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only if ``X`` has column names that are all strings.

    Raises
    ------
    ValueError, TypeError
        On every rank, if input is invalid on one; the message names the rank.

    Notes
    -----
    Each rank sums its own rows in float64 about their mean. One all-gather of ``3 d`` float64 shares the parts, which
    every rank merges in rank order: the result is bitwise equal on every rank.

    Examples
    --------
    >>> from tidemill.ml import StandardScaler
    >>> StandardScaler().fit_transform([[1.0, 5.0], [3.0, 5.0]]).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """

    _estimator_type: ClassVar[str] = "transformer"

    mean_: Array | None
    var_: Array | None
    scale_: Array | None
    n_samples_seen_: Any
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    _seen: _Parts

    def __init__(self, *, copy: bool = True, with_mean: bool = True, with_std: bool = True) -> None:
        self.copy = copy
        self.with_mean = with_mean
        self.with_std = with_std

    def fit(
        self: Self,
        X: Rows,
        y: object = None,
        sample_weight: ArrayLike | str | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Compute mean and variance of the rows of all ranks. Collective.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataSet or Table
            The rows of this rank. For a DataSet, the query runs, and each worker uses the rows that it produces.
        y : ignored
        sample_weight : array-like of shape (n_samples,), or str, optional
            For a DataSet or Table, the name of a column.
        columns : sequence of str, optional
            For a DataSet or Table, the feature columns; by default all numeric columns.

        Returns
        -------
        self
        """
        self._forget()
        return self.partial_fit(X, y, sample_weight, columns=columns)

    def partial_fit(
        self: Self,
        X: Rows,
        y: object = None,
        sample_weight: ArrayLike | str | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Add more rows to those seen so far. Collective; see `fit`."""
        name = type(self).__name__
        if is_table(X):
            if columns is None and self.__sklearn_is_fitted__():
                columns = fitted_columns(self, X)
            X, sample_weight = weights_and_rest(X, columns, sample_weight, name)
        elif columns is not None:
            raise TypeError(f"columns= is for DataSets and Tables; X is a {type(X).__name__}")
        comm = active()

        def look() -> tuple[int, int, NDArray[np.object_] | None, _Parts, bool]:
            x, names = self._matrix(X, empty_allowed=comm.size > 1)
            weights = check_weights(sample_weight, len(x))
            if len(x) and self.__sklearn_is_fitted__():
                check_features(self, x, names)
            return len(x), x.shape[1], names, _parts(x, weights), bool(np.isnan(x).all())

        everyone = [one for one in collective_try(comm, look) if one[0]]
        if not everyone:
            raise ValueError(
                f"Found array with 0 sample(s) over all {comm.size} ranks while a minimum of 1 is required by {name}."
            )
        widths = [one[1] for one in everyone]
        if len(set(widths)) > 1:
            raise ValueError(f"The ranks disagree on the number of features: {widths}.")
        parts = self._seen if self.__sklearn_is_fitted__() else None
        for _, _, _, more, _ in everyone:
            parts = more if parts is None else parts.merged(more)
        assert parts is not None, "somebody has rows"
        if sample_weight is not None and not parts.weight.any() and not all(no_values for *_, no_values in everyone):
            raise ValueError("sample_weight is zero for every row: at least one weight must be positive.")
        if not np.isfinite(parts.squares).all():
            raise ValueError("Values of X are too large: their squares overflow float64.")
        names = next((one[2] for one in everyone if one[2] is not None), None)
        if not self.__sklearn_is_fitted__() and names is not None:
            self.feature_names_in_ = names
        self.n_features_in_ = everyone[0][1]
        self._set(parts)
        return self

    @overload
    def transform(self, X: DataSet) -> DataSet: ...
    @overload
    def transform(self, X: ArrayLike | Table, copy: bool | None = None) -> NDArray[Any]: ...
    def transform(self, X: Rows, copy: bool | None = None) -> NDArray[Any] | DataSet:
        """Center and scale. Local; for a DataSet a step of the query.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), Table or DataSet
        copy : bool, optional
            Overrides the parameter `copy` of the constructor.

        Returns
        -------
        ndarray of shape (n_samples, n_features), float32 or float64 as `X`; for a DataSet a DataSet
            The scaled features; for a DataSet its columns, with the features scaled and in float64.
        """
        found: NDArray[Any] | DataSet = self._applied(X, self._scaled, "StandardScaler.transform", copy)
        return found

    @overload
    def inverse_transform(self, X: DataSet) -> DataSet: ...
    @overload
    def inverse_transform(self, X: ArrayLike | Table, copy: bool | None = None) -> NDArray[Any]: ...
    def inverse_transform(self, X: Rows, copy: bool | None = None) -> NDArray[Any] | DataSet:
        """Undo `transform`; same arguments. Local."""
        found: NDArray[Any] | DataSet = self._applied(X, self._unscaled, "StandardScaler.inverse_transform", copy)
        return found

    def fit_transform(self, X: Rows, y: object = None, sample_weight: ArrayLike | str | None = None) -> Any:
        """Call `fit`, then `transform`; rows of a DataSet stay where the query has produced them. Collective."""
        if isinstance(X, DataSet):
            rows = local_rows(X, None, type(self).__name__, sample_weight if isinstance(sample_weight, str) else None)
            self.fit(rows.table, sample_weight=sample_weight, columns=rows.columns)
            return self.transform(with_columns(rows.table, {}))
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns of `transform`: those of the features, else ``x0`` and so on."""
        self._check_fitted()
        fitted = getattr(self, "feature_names_in_", None)
        if input_features is None:
            made = fitted if fitted is not None else [f"x{i}" for i in range(self.n_features_in_)]
            return np.array(list(made), dtype=object)
        names = np.array(list(input_features), dtype=object)
        if fitted is not None and list(fitted) != list(names):
            raise ValueError("input_features is not equal to feature_names_in_")
        if len(names) != self.n_features_in_:
            raise ValueError(
                f"input_features should have length equal to number of features ({self.n_features_in_}), got {len(names)}"
            )
        return names

    def __sklearn_tags__(self) -> Any:
        """Return the estimator tags of scikit-learn; needs scikit-learn."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
            input_tags=InputTags(allow_nan=True),
        )

    def _matrix(self, X: Any, empty_allowed: bool = False) -> tuple[NDArray[Any], NDArray[np.object_] | None]:
        name = type(self).__name__
        x, names = matrix(X, name, empty_allowed)
        if np.isinf(x).any():
            row, column = (int(i) for i in np.argwhere(np.isinf(x))[0])
            raise ValueError(
                f"Input X contains infinity or a value too large for {x.dtype!r}. The first is at row {row}, column {column}."
            )
        return x, names

    def _forget(self) -> None:
        for name in ("mean_", "var_", "scale_", "n_samples_seen_", "n_features_in_", "feature_names_in_", "_seen"):
            if hasattr(self, name):
                delattr(self, name)

    def _set(self, parts: _Parts) -> None:
        self._seen = parts
        weight = parts.weight
        whole = weight.astype(np.int64) if (weight == np.floor(weight)).all() else weight
        self.n_samples_seen_ = whole[0] if (whole == whole[0]).all() else whole
        mean = np.where(weight > 0, parts.mean, np.nan)
        # scikit-learn's convention: without both, there is neither.
        self.mean_ = mean if self.with_mean or self.with_std else None
        self.var_ = self.scale_ = None
        if self.with_std:
            self.var_ = np.divide(parts.squares, weight, out=np.full_like(weight, np.nan), where=weight > 0)
            # The rounding error of a feature that does not vary.
            eps = np.finfo(np.float64).eps
            constant = self.var_ <= weight * eps * self.var_ + (weight * mean * eps) ** 2
            self.scale_ = np.sqrt(np.where(constant, 1.0, self.var_))

    def _applied(self, X: Any, change: Any, step: str, copy: bool | None) -> Any:
        self._check_fitted()
        if is_table(X):
            columns = fitted_columns(self, X)
            if isinstance(X, DataSet):
                return mapped(X, step, columns, lambda x: change(x), [(name, "float64") for name in columns])
            X = local_rows(X, columns, type(self).__name__)
        x, names = self._matrix(X)
        check_features(self, x, names)
        kept = self.copy if copy is None else copy
        return change(x.copy() if kept or not x.flags.writeable else x)

    def _scaled(self, x: NDArray[Any]) -> NDArray[Any]:
        if self.with_mean and self.mean_ is not None:
            x -= self.mean_
        if self.scale_ is not None:
            x /= self.scale_
        return x

    def _unscaled(self, x: NDArray[Any]) -> NDArray[Any]:
        if self.scale_ is not None:
            x *= self.scale_
        if self.with_mean and self.mean_ is not None:
            x += self.mean_
        return x
