"""`MDS`: multidimensional scaling by SMACOF, with weights and deterministic annealing, over the points of all ranks."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill import _tidemill as native
from tidemill._progress import Bar
from tidemill.ml._classical import classical_start
from tidemill.ml._distances import (
    Array,
    Problem,
    Rows,
    Weights,
    fill,
    from_table,
    from_vectors,
    rows_of,
    table,
    unit_of,
    weights_of,
)
from tidemill.ml._estimator import Estimator, check_features, matrix, not_finite
from tidemill.ml._job import Comm, active, together
from tidemill.ml._smacof import Iteration, Result, interpolate, random_start, smacof, sum_of_squares, temperatures
from tidemill.ml._threads import pool
from tidemill.ml.kmeans import draw_seed

__all__ = ["MDS"]

Self = TypeVar("Self", bound="MDS")

#: Bytes of the distances of new points that are looked at together.
_NEW_BYTES = 32 << 20

#: Least time before a fit shows a bar.
_LONG_S = 1.0

#: Parameters that must be the same on every rank, or one would stop while others go on.
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
)


@dataclass(frozen=True)
class _Seen:
    """What a rank's input is found to be, for all to know."""

    shape: tuple[int, int]
    names: NDArray[np.object_] | None
    seed: int
    parameters: dict[str, Any]


class MDS(Estimator):
    """Multidimensional scaling: points in a few dimensions whose distances are nearest to given ones.

    Minimizes the weighted stress, the sum over pairs of ``w_ij (|x_i - x_j| - delta_ij)^2``, by SMACOF over the ranks of the active communicator.
    Each rank passes its own rows, in rank order; `fit` and `fit_transform` are collective, and a rank may have no rows. The number of ranks and threads does
    not change the result by a bit on processors of one kind. `transform` is local.

    Parameters
    ----------
    n_components : int, default=3
        Coordinates of a point.
    metric : {"precomputed", "euclidean"}, default="precomputed"
        What rows are: distances to all points, or vectors, between which distances are computed whenever they are needed and never kept.
    init : {"classical", "random"}, default="classical"
        Where to start: classical scaling, or normal positions. Positions are given to `fit`.
    n_init : int, default=1
        Random starts to try; the result with the least stress wins. Other starts are tried once.
    max_iter : int, default=300
        Most iterations; with annealing, at each temperature.
    tol : float, default=1e-6
        Stop when an iteration lessens the stress by at most this part of it.
    annealing : bool, default=False
        Deterministic annealing: distances begin shortened by the temperature and grow to their full length, which leads past many local optima.
    alpha : float, default=0.95
        Factor by which each temperature is lower than the one before.
    t_min : float or None, default=None
        Temperature, in the unit of the distances, below which annealing goes to 0 at once; ``None`` for a hundredth of the highest.
    acceleration : int, default=0
        Iterations that Anderson acceleration looks back on, such as 5; 0: plain SMACOF. A step that does not lessen the stress is made anew without it. It
        needs a fraction of the iterations, and at the same `tol` ends at about the same stress, in another place of a flat valley.
    storage : {"float32", "float16", "fixed16"}, default="float32"
        How precomputed distances are kept: with 24 or 11 significant bits each, or as 1/65535ths of the largest, off by at most half of that.
    random_state : int, RandomState, Generator or None, default=None
        Seed of random starts and of annealing; taken from rank 0.
    n_threads : int or None, default=None
        Threads of each rank; ``None`` for what the launcher was told, else all processors of the host, shared among its workers.
    verbose : int, default=0
        Print each iteration, on rank 0. Without it a fit that takes long shows a bar on a terminal.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components), float64
        Positions of this rank's points; their weighted mean is 0.
    positions_ : ndarray of shape (n_points, n_components), float64
        Those of all points, on every rank.
    stress_ : float
        The weighted stress of all pairs, in squared units of the distances; the same on every rank.
    normalized_stress_ : float
        Its root, over that of the weighted sum of squared distances: 0 is perfect, 1 no better than all points in one place.
    n_iter_ : int
        Iterations of the best start, over all temperatures.
    history_ : ndarray of shape (n_iter_,)
        The stress after each, of the distances at its temperature.
    temperatures_ : ndarray of shape (n_iter_,)
        The temperature of each, in the unit of the distances; 0 without annealing.
    cg_iterations_ : int
        Steps of conjugate gradients over all iterations; 0 where weights have a closed form.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only if ``X`` has column names that are all strings.

    Raises
    ------
    ValueError, TypeError
        On every rank, if input or a parameter is refused on one: a message that names the rank, and the cell.

    Notes
    -----
    An iteration reads each distance once, and tells all ranks ``k + 1`` float64 a point. With a matrix of weights each step of conjugate gradients reads
    the weights, and tells as much. ``docs/mds.md`` says which equation is which step.

    Source: de Leeuw (1977); Ruan and Fox, "A robust and scalable solution for interpolative multidimensional scaling with weighting" (2013).

    Examples
    --------
    >>> from tidemill.ml import MDS
    >>> model = MDS(n_components=2).fit([[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]])
    >>> round(float(abs(model.embedding_[1] - model.embedding_[2]) @ abs(model.embedding_[1] - model.embedding_[2])), 4)
    25.0
    """

    embedding_: Array
    positions_: Array
    stress_: float
    normalized_stress_: float
    n_iter_: int
    history_: Array
    temperatures_: Array
    cg_iterations_: int
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    #: What a distance of 1 in the kernels is to the user; and weights of the columns that new points get.
    _unit: float
    _columns: Array
    #: Vectors of all points, less `_mean`, in the unit; of metric "euclidean".
    _vectors: NDArray[np.float32] | None
    _mean: Array | None

    _estimator_type: ClassVar[str] = "transformer"

    def __init__(
        self,
        n_components: int = 3,
        *,
        metric: str = "precomputed",
        init: str = "classical",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-6,
        annealing: bool = False,
        alpha: float = 0.95,
        t_min: float | None = None,
        acceleration: int = 0,
        storage: str = "float32",
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        n_threads: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.metric = metric
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.annealing = annealing
        self.alpha = alpha
        self.t_min = t_min
        self.acceleration = acceleration
        self.storage = storage
        self.random_state = random_state
        self.n_threads = n_threads
        self.verbose = verbose

    def fit(
        self: Self, X: Any, y: object = None, *, init: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> Self:
        """Place the points of all ranks. Collective.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_points) or (n_samples, n_features)
            This rank's rows: distances to all points, or vectors. Not changed. Distances are read in blocks of rows and not copied as a whole: an array,
            a memory map, or what is sliced like one.
        y : ignored
        init : array-like of shape (n_points, n_components), optional
            Positions of all points to start from, the same on every rank; those of rank 0 count.
        weights : array-like, optional
            ``None``: all 1. Shape (n_points,), or (n_samples,) for this rank's: ``w_ij = u_i u_j``. Shape (n_samples, n_points): one for each
            distance, symmetric; where it is 0 the distance is missing and may be NaN.

        Returns
        -------
        self
        """
        comm = active()
        problem, names, features = self._prepare(comm, X, weights)
        start = self._given(comm, init, problem.n)
        everything = sum_of_squares(problem)
        rng = np.random.default_rng(self._seed)
        if self.annealing and self.metric == "euclidean":
            problem.find_largest()
        falling = temperatures(problem, self.n_components, self.alpha, self.t_min) if self.annealing else []
        starts = self.n_init if start is None and self.init == "random" else 1
        best: Result | None = None
        with _Watched(self, comm, problem.n) as report:
            for number in range(starts):
                if self.verbose and comm.rank == 0 and starts > 1:
                    print(f"Start {number + 1} of {starts}.")
                if start is not None:
                    positions = start / problem.unit
                elif self.init == "random":
                    positions = random_start(problem, self.n_components, rng)
                else:
                    positions = classical_start(problem, self.n_components, rng)
                result = smacof(
                    problem,
                    positions,
                    squares=everything,
                    max_iter=self.max_iter,
                    tol=self.tol,
                    falling=falling,
                    acceleration=int(self.acceleration),
                    rng=rng,
                    report=report,
                )
                if best is None or result.stress < best.stress:
                    best = result
        assert best is not None, "there is at least one start"
        self.positions_ = best.positions * problem.unit
        self.embedding_ = self.positions_[problem.own].copy()
        self.stress_ = best.stress * problem.unit**2 * problem.weights.unit
        self.normalized_stress_ = math.sqrt(best.stress / everything) if everything > 0 else 0.0
        self.n_iter_ = best.iterations
        self.history_ = np.array(best.stresses)
        self.temperatures_ = np.array(best.temperatures)
        self.cg_iterations_ = best.conjugate_gradients
        self._unit = problem.unit
        self._columns = np.ones(problem.n) if problem.weights.columns is None else problem.weights.columns
        self.n_features_in_ = features
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def fit_transform(
        self, X: Any, y: object = None, *, init: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> Array:
        """`fit`, then ``embedding_``. Collective."""
        return self.fit(X, init=init, weights=weights).embedding_

    def transform(self, X: Any, weights: ArrayLike | None = None) -> Array:
        """Place new points among the fitted ones, which stay: each where its own weighted stress is least. Local.

        Parameters
        ----------
        X : array-like of shape (n_new, n_points) or (n_new, n_features)
            Distances of the new points to all fitted ones, or vectors.
        weights : array-like of shape (n_points,) or (n_new, n_points), optional
            How much the fitted points count, or each distance; by default as in `fit` if weights were a vector, else all alike.

        Returns
        -------
        ndarray of shape (n_new, n_components), float64

        Notes
        -----
        Majorization of the stress of one point, as in Bae, Qiu and Fox (2010) and with weights in Ruan and Fox (2013). It begins at the nearest
        fitted point, and once more where the spheres of its distances would meet; the better end is taken.
        """
        self._check_fitted()
        name = type(self).__name__
        rows, names = rows_of(X, name, empty_allowed=False)
        if rows.shape[1] != self.n_features_in_:
            _refuse_not_finite(rows, name)
        check_features(self, cast(NDArray[Any], rows), names)
        threads, n = pool(self.n_threads), len(self.positions_)
        given = self._new_weights(weights, rows.shape[0])
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

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Names of the columns that `transform` makes: ``mds0`` and so on."""
        self._check_fitted()
        return np.array([f"mds{i}" for i in range(self.positions_.shape[1])], dtype=object)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks estimators about themselves; needs scikit-learn."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(pairwise=self.metric == "precomputed", positive_only=self.metric == "precomputed"),
        )

    def _report(self, iteration: Iteration) -> None:
        """Told of each iteration, on every rank; a subclass may show progress."""
        if self.verbose and active().rank == 0:
            at = f", temperature {iteration.temperature:.4g}" if iteration.temperature else ""
            print(f"Iteration {iteration.number}, stress {iteration.stress:.6g}{at}.")

    # --- what users give ---------------------------------------------------------------------------------------------
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
        for name, values in (
            ("metric", ("precomputed", "euclidean")),
            ("init", ("classical", "random")),
            ("storage", ("float32", "float16", "fixed16")),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in values:
                hint = " Positions to start from are given to fit(init=...)." if name == "init" else ""
                refuse(name, f"a str among {set(values)}{'.' if hint else ''}{hint}".rstrip("."))

    def _prepare(self, comm: Comm, X: Any, weights: Any) -> tuple[Problem, NDArray[np.object_] | None, int]:
        """Check input and parameters on all ranks, and keep this rank's distances; also column names and the number of features."""
        name = type(self).__name__
        given: list[Rows] = []
        threads: list[native.KernelPool] = []

        def look() -> _Seen:
            self._check_parameters()
            threads.append(pool(self.n_threads))
            # An instruction set that this processor lacks is found here, before anybody waits for anybody.
            native.MdsDistances(1, 1, 0, "float32").block(False, (0, 1), (0, 1))
            rows, names = rows_of(X, name, empty_allowed=comm.size > 1)
            given.append(rows)
            parameters = {name: value for name, value in self.get_params().items() if name in _SHARED}
            return _Seen(rows.shape, names, draw_seed(self.random_state) if comm.rank == 0 else 0, parameters)

        everyone = together(comm, look)
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
            return self._from_vectors(comm, threads[0], X, weights, counts, width), names, width
        if width != n:
            together(comm, lambda: _refuse_not_finite(given[0], name))
            raise ValueError(
                f"X must be a square matrix of distances: the ranks have {n} rows together, and {width} columns. "
                "For vectors use metric='euclidean'."
            )
        checked = weights_of(comm, threads[0], weights, counts)
        problem = from_table(comm, threads[0], given[0], counts, checked, self.storage)
        self._vectors, self._mean = None, None
        return problem, names, width

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
            if not float(np.abs(x).max()) < 1e150:
                raise ValueError("Values of X are too large: their squares overflow float64.")
            return x.sum(axis=0, dtype=np.float64), 0.0

        sums = [one[0] for one in together(comm, look)]
        mean = np.sum(sums, axis=0) / sum(counts)
        x = kept[0] if len(kept[0]) else np.empty((0, d))

        def farthest() -> float:
            most = 0.0
            for first, last in Rows(x).ranges():
                part = x[first:last] - mean
                most = max(most, float(np.einsum("nd,nd->n", part, part).max()))
            return math.sqrt(most)

        # Two points are at most twice as far from each other as from the mean.
        unit = unit_of(2 * max(together(comm, farthest)), "float32")

        def shrink() -> NDArray[np.float32]:
            out = np.empty(x.shape, np.float32)
            for first, last in Rows(x).ranges():
                out[first:last] = (x[first:last] - mean) / unit
            return out

        checked = weights_of(comm, threads, weights, counts)
        problem, self._vectors = from_vectors(comm, threads, shrink(), counts, checked, unit)
        self._mean = mean
        return problem

    def _given(self, comm: Comm, init: Any, n: int) -> Array | None:
        """Positions to start from: rank 0's, if they were given."""

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

        everyone = together(comm, check)
        if len({one is None for one in everyone}) > 1:
            raise ValueError("init was given on some ranks and not on others: give it on all, or on none.")
        return everyone[0]

    # --- new points --------------------------------------------------------------------------------------------------
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
        """Distances of some new points, the first of which is `first`: as kernels keep them, and as numbers; both in the unit."""
        count, n = rows.shape[0], len(self.positions_)
        if self._vectors is None or self._mean is None:
            largest = table(rows, threads, None, weights, at=first)
            # New points may be farther away than any two fitted ones.
            if largest > 1e15 * self._unit:
                raise ValueError(f"The distance {largest:.6g} is too large beside those that were fitted.")
            cells = native.MdsDistances(count, n, None, "float32")
            fill(cells, threads, rows, weights, self._unit)
        else:
            x = rows.block(0, count)
            if not np.isfinite(x).all():
                raise not_finite(x, type(self).__name__)
            near = (x - self._mean) / self._unit
            if not float(np.abs(near).max(initial=0.0)) < 1e15:
                raise ValueError("Values of X are too large beside those that were fitted.")
            cells = native.MdsDistances.of_vectors(near.astype(np.float32), self._vectors, None)
            fill(cells, threads, None, weights, self._unit)
        return cells, cells.block(False, (0, count), (0, n)).astype(np.float64)


def _refuse_not_finite(rows: Rows, name: str) -> None:
    """Raise if a number is not finite: who gives NaN in a matrix of the wrong shape should hear of both, this first."""
    for first, last in rows.ranges():
        block = rows.block(first, last)
        if not np.isfinite(block).all():
            raise not_finite(block, name)


def _slice_weights(weights: Weights, first: int, last: int) -> Weights:
    if weights.rows is None:
        return weights
    return Weights(None, Rows(weights.rows.block(first, last)), weights.unit)


class _Watched:
    """Tells the estimator of each iteration, and shows a bar on rank 0's terminal if the fit takes long."""

    def __init__(self, estimator: MDS, comm: Comm, n: int) -> None:
        self.estimator, self.n = estimator, n
        self.bar = Bar(shown=comm.rank == 0 and not estimator.verbose)
        self.begin = time.monotonic()

    def __enter__(self) -> Callable[[Iteration], None]:
        return self.report

    def __exit__(self, *_: object) -> None:
        self.bar.clear()

    def report(self, iteration: Iteration) -> None:
        self.estimator._report(iteration)
        elapsed_s = time.monotonic() - self.begin
        if self.bar.shown and elapsed_s > _LONG_S:
            rate = iteration.number / elapsed_s
            at = f", temperature {iteration.temperature:.3g}" if iteration.temperature else ""
            told = f"{self.n} points, stress {iteration.stress:.5g}{at}, iteration {iteration.number}, {rate:.3g}/s"
            part = None if self.estimator.annealing else iteration.number / self.estimator.max_iter
            self.bar.update(part, told)
