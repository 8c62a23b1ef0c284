"""Checks the input of `MDS` (parameters, distances or vectors, weights and a start) on all ranks before any rank waits
for others.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._distances import (
    SQUARED_MAX,
    Array,
    Computed,
    Metric,
    Problem,
    Rows,
    from_table,
    from_vectors,
    gather,
    rows_of,
    unit_of,
    weights_of,
)
from tidemill.ml._estimator import Estimator, matrix, not_finite
from tidemill.ml._job import Comm, collective_try
from tidemill.ml._smacof import sum_of_squares
from tidemill.ml._threads import pool
from tidemill.ml.kmeans import draw_seed

__all__ = ["Input", "Prepared", "refuse_not_finite"]

#: Parameters that must be the same on every rank; otherwise, one rank would stop while others continue.
_SHARED = (
    "n_components",
    "metric",
    "init",
    "n_init",
    "max_iter",
    "tol",
    "annealing",
    "alpha",
    "t_min",
    "acceleration",
    "storage",
    "weight_storage",
)


@dataclass(frozen=True)
class Prepared:
    """Checked input; the same on every rank, except for the rows."""

    problem: Problem
    #: The rows given to this rank.
    rows: Rows
    #: The weighted sum over pairs of squared distances.
    squares: float
    #: The column names, and the number of columns.
    names: NDArray[np.object_] | None
    features: int


@dataclass(frozen=True)
class _Seen:
    """Properties of a rank's input, shared with all."""

    shape: tuple[int, int]
    names: NDArray[np.object_] | None
    seed: int
    parameters: dict[str, Any]


class Input(Estimator):
    """The part of `MDS` that checks its input."""

    n_components: int
    metric: str | Metric
    n_init: int
    max_iter: int
    tol: float
    annealing: bool
    alpha: float
    t_min: float | None
    acceleration: int
    storage: str
    weight_storage: str
    random_state: int | np.random.RandomState | np.random.Generator | None
    n_threads: int | None
    #: The vectors of all points, minus `_mean`, in the unit; for metric "euclidean".
    _vectors: NDArray[np.float32] | None
    _mean: Array | None
    #: The vectors of all points, if `metric` is a function.
    _points: Array

    def _check_parameters(self) -> None:
        def refuse(name: str, what: str) -> None:
            raise ValueError(f"The {name!r} parameter of MDS must be {what}. Got {getattr(self, name)!r} instead.")

        for name, least in (("n_components", 1), ("n_init", 1), ("max_iter", 1), ("n_threads", 1), ("acceleration", 0)):
            value = getattr(self, name)
            if name == "n_threads" and value is None:
                continue
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
                refuse(name, f"an int in the range [{least}, inf)")
        if not isinstance(self.tol, numbers.Real) or not self.tol >= 0:
            refuse("tol", "a float in the range [0.0, inf)")
        if not isinstance(self.alpha, numbers.Real) or not 0 < self.alpha < 1:
            refuse("alpha", "a float in the range (0.0, 1.0)")
        if self.t_min is not None and (not isinstance(self.t_min, numbers.Real) or not 0 < self.t_min < math.inf):
            refuse("t_min", "None or a float in the range (0.0, inf)")
        if not isinstance(self.annealing, (bool, np.bool_)):
            refuse("annealing", "a bool")
        if not callable(self.metric) and self.metric not in ("precomputed", "euclidean"):
            refuse("metric", "'precomputed', 'euclidean' or a function of two arrays of rows")
        for name, values in (
            ("init", ("classical", "random")),
            ("storage", ("float32", "float16", "fixed16")),
            ("weight_storage", ("float32", "float16", "fixed16")),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in values:
                hint = " Positions to start from are given to fit(init=...)." if name == "init" else ""
                refuse(name, f"a str among {set(values)}{'.' if hint else ''}{hint}".rstrip("."))

    def _prepare(self, comm: Comm, X: Any, weights: Any, rounding: float | None = None) -> Prepared:
        """Check input and parameters on all ranks, and store this rank's distances; `rounding`: see `from_table`.
        Collective.
        """
        name = type(self).__name__
        given: list[Rows] = []
        threads: list[native.KernelPool] = []

        def look() -> _Seen:
            self._check_parameters()
            threads.append(pool(self.n_threads))
            # Detects an instruction set that this processor lacks before any rank waits for another.
            native.MdsDistances(1, 1, 0, "float32").block(False, (0, 1), (0, 1))
            rows, names = rows_of(X, name, empty_allowed=comm.size > 1)
            given.append(rows)
            # Functions may not be serializable, so they are not compared.
            parameters = {
                name: "a function" if callable(value) else value
                for name, value in self.get_params().items()
                if name in _SHARED
            }
            return _Seen(rows.shape, names, draw_seed(self.random_state) if comm.rank == 0 else 0, parameters)

        everyone = collective_try(comm, look)
        for parameter in _SHARED:
            values = [one.parameters[parameter] for one in everyone]
            if any(value != values[0] for value in values):
                raise ValueError(f"The ranks disagree on the parameter {parameter!r}: {values}.")
        shapes = [one.shape for one in everyone]
        counts = [rows for rows, _ in shapes]
        self._seed = everyone[0].seed
        names = next((one.names for one in everyone if one.names is not None), None)
        n = sum(counts)
        if n == 0:
            raise ValueError(
                f"Found array with 0 sample(s) over all {comm.size} ranks while a minimum of 1 is required by {name}."
            )
        widths = {columns for rows, columns in shapes if rows}
        if len(widths) > 1:
            raise ValueError(f"The ranks disagree on the number of columns: {[columns for _, columns in shapes]}.")
        width = widths.pop()
        if self.metric == "euclidean":
            problem = self._from_vectors(comm, threads[0], X, weights, counts, width)
            return Prepared(problem, given[0], sum_of_squares(problem), names, width)
        if callable(self.metric):
            return self._from_function(comm, threads[0], X, weights, counts, names, rounding)
        if width != n:
            collective_try(comm, lambda: refuse_not_finite(given[0], name))
            raise ValueError(
                f"X must be a square matrix of distances: the ranks have {n} rows together, and {width} columns. "
                "For vectors use metric='euclidean'."
            )
        checked = weights_of(comm, threads[0], weights, counts, self.weight_storage)
        problem = from_table(comm, threads[0], given[0], counts, checked, self.storage, rounding)
        self._vectors, self._mean = None, None
        return Prepared(problem, given[0], sum_of_squares(problem), names, width)

    def _from_function(
        self,
        comm: Comm,
        threads: native.KernelPool,
        X: Any,
        weights: Any,
        counts: list[int],
        names: NDArray[np.object_] | None,
        rounding: float | None,
    ) -> Prepared:
        """Compute distances of this rank's rows to all, with the user's function; collective."""
        name, kept = type(self).__name__, []

        def look() -> int:
            x, _ = matrix(X, name, empty_allowed=comm.size > 1)
            if not np.isfinite(x).all():
                raise not_finite(x, name)
            kept.append(x.astype(np.float64))
            return int(x.shape[1])

        width = max(collective_try(comm, look))
        x = kept[0] if len(kept[0]) else np.empty((0, width))
        self._points = gather(comm, x, counts)
        assert callable(self.metric), "metric is a function"
        rows = Rows(Computed(self.metric, x, self._points))
        checked = weights_of(comm, threads, weights, counts, self.weight_storage)
        problem = from_table(comm, threads, rows, counts, checked, self.storage, rounding)
        self._vectors, self._mean = None, None
        return Prepared(problem, rows, sum_of_squares(problem), names, width)

    def _from_vectors(
        self, comm: Comm, threads: native.KernelPool, X: Any, weights: Any, counts: list[int], d: int
    ) -> Problem:
        name, kept = type(self).__name__, []

        def look() -> tuple[Array, float]:
            x, _ = matrix(X, name, empty_allowed=comm.size > 1)
            if not np.isfinite(x).all():
                raise not_finite(x, name)
            kept.append(x)
            if len(x) == 0:
                return np.zeros(d), 0.0
            if not float(np.abs(x).max()) < SQUARED_MAX:
                raise ValueError(
                    "Values of X are too large: their squares overflow float64. Give them in a larger unit."
                )
            return x.sum(axis=0, dtype=np.float64), 0.0

        sums = [one[0] for one in collective_try(comm, look)]
        mean = np.sum(sums, axis=0) / sum(counts)
        x = kept[0] if len(kept[0]) else np.empty((0, d))

        def farthest() -> float:
            most = 0.0
            for first, last in Rows(x).ranges():
                part = x[first:last] - mean
                most = max(most, float(np.einsum("nd,nd->n", part, part).max()))
            return math.sqrt(most)

        # Two points are at most twice as far from each other as from the mean.
        unit = unit_of(2 * max(collective_try(comm, farthest)), "float32")

        def shrink() -> NDArray[np.float32]:
            out = np.empty(x.shape, np.float32)
            for first, last in Rows(x).ranges():
                out[first:last] = (x[first:last] - mean) / unit
            return out

        checked = weights_of(comm, threads, weights, counts, self.weight_storage)
        problem, self._vectors = from_vectors(comm, threads, shrink(), counts, checked, unit)
        self._mean = mean
        return problem

    def _given(self, comm: Comm, init: Any, n: int) -> Array | None:
        """Return rank 0's initial positions, if given."""

        def check() -> Array | None:
            if init is None:
                return None
            start = np.array(init, dtype=np.float64)
            if start.shape != (n, self.n_components):
                raise ValueError(
                    f"init must be the positions of all points, {(n, self.n_components)}, on every rank; its shape is {start.shape}."
                )
            bad = np.flatnonzero(~np.isfinite(start).all(axis=1))
            if len(bad):
                raise ValueError(f"The initial position of point {bad[0]} is not finite.")
            return start if comm.rank == 0 else np.empty(0)

        everyone = collective_try(comm, check)
        if len({one is None for one in everyone}) > 1:
            raise ValueError("init was given on some ranks and not on others: give it on all, or on none.")
        return everyone[0]


def refuse_not_finite(rows: Rows, name: str) -> None:
    """Raise if a number is not finite: a matrix with NaN and the wrong shape should report NaN first."""
    for first, last in rows.ranges():
        block = rows.block(first, last)
        if not np.isfinite(block).all():
            raise not_finite(block, name)
