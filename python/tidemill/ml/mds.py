"""`MDS`: multidimensional scaling by SMACOF, with weights and deterministic annealing, over the points of all ranks."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill._progress import Bar
from tidemill.dataset import DataSet
from tidemill.ml._classical import classical_start
from tidemill.ml._distances import Array, Metric, Rows, Weights
from tidemill.ml._estimator import warning_class
from tidemill.ml._job import Comm, active, collective_try
from tidemill.ml._mds_input import Prepared
from tidemill.ml._mds_new import NewPoints
from tidemill.ml._smacof import Iteration, Result, random_start, smacof, spread_out, temperatures
from tidemill.ml._tables import is_table, local_rows, no_distances, with_columns

__all__ = ["MDS"]

Self = TypeVar("Self", bound="MDS")

#: Minimum time before a fit shows a bar.
_LONG_S = 1.0


class MDS(NewPoints):
    """Multidimensional scaling: embed points in a few dimensions so that their distances approximate given ones.

    It minimizes the weighted stress, the sum over pairs of ``w_ij (|x_i - x_j| - delta_ij)^2``, by SMACOF over the
    ranks of the active communicator. Each rank passes its own rows, in rank order; `fit` and `fit_transform` are
    collective, and a rank may have no rows. On processors of the same kind, results are bitwise equal for any number of
    ranks and threads. `transform` is local.

    Parameters
    ----------
    n_components : int, default=3
        Number of coordinates of a point.
    metric : {"precomputed", "euclidean"} or callable, default="precomputed"
        Meaning of rows: distances to all points, or vectors, whose distances are computed when needed and never stored.
        A function takes two arrays of vectors, (m, d) and (n, d) in float64, and returns the distances between their
        rows, (m, n), like ``scipy.spatial.distance.cdist``; it is called for blocks of rows, and its distances are
        stored.
    init : {"classical", "random"}, default="classical"
        Initial positions: classical scaling, or normally distributed. To set them yourself, pass them to `fit`.
    n_init : int, default=1
        Number of random starts; the result with the lowest stress is kept. Other starts are used once.
    max_iter : int, default=300
        Maximum number of iterations; with annealing, at each temperature. A fit that reaches it warns with
        ``ConvergenceWarning``, unless `tol` is 0.
    tol : float, default=1e-6
        Stop when the relative decrease of the stress in an iteration is at most this.
    annealing : bool, default=False
        Deterministic annealing: distances start out shortened by the temperature and grow to their full length, which
        avoids many local optima.
    alpha : float, default=0.95
        Ratio of each temperature to the one before.
    t_min : float or None, default=None
        Temperature, in the unit of the distances, below which annealing goes directly to 0; ``None`` for a hundredth of
        the highest.
    acceleration : int, default=0
        Number of past iterations that Anderson acceleration uses, such as 5; 0 for plain SMACOF. A step that does not
        decrease the stress is repeated without acceleration. Acceleration needs a fraction of the iterations, and for
        the same `tol` ends with about the same stress, at a different point of a flat valley.
    storage : {"float32", "float16", "fixed16"}, default="float32"
        Storage type of precomputed distances: with 24 or 11 significant bits each, or in steps of 1/65535 of the
        largest, with an error of at most half a step.
    weight_storage : {"float32", "float16", "fixed16"}, default="float32"
        Storage type of a weight matrix; a weight above 0 stays above 0. A vector of weights takes 8 bytes per point,
        however large the product.
    random_state : int, RandomState, Generator or None, default=None
        Seed of random starts and of annealing; taken from rank 0.
    n_threads : int or None, default=None
        Threads of each rank; ``None`` for the launcher's setting, else all processors of the host, shared among its
        workers.
    verbose : int, default=0
        Print each iteration, on rank 0. If 0, a long fit shows a progress bar on a terminal.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components), float64
        Positions of this rank's points. The mean of all is 0, weighted if weights were a vector.
    positions_ : ndarray of shape (n_points, n_components), float64
        Positions of all points, on every rank.
    stress_ : float
        The weighted stress of all pairs, in squared units of the distances; the same on every rank.
    normalized_stress_ : float
        Square root of the stress, divided by that of the weighted sum of squared distances: 0 is perfect, 1 is as bad
        as all points in one place.
    n_iter_ : int
        Number of iterations of the best start, over all temperatures.
    history_ : ndarray of shape (n_iter_,)
        The stress after each iteration, for the distances at its temperature.
    temperatures_ : ndarray of shape (n_iter_,)
        The temperature of each iteration, in the unit of the distances; 0 without annealing.
    cg_iterations_ : int
        Number of conjugate gradient steps over all iterations; 0 if the weights allow a closed form.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only if ``X`` has column names that are all strings.

    Raises
    ------
    ValueError, TypeError
        On every rank, if input or a parameter is invalid on one; the message names the rank and the cell.

    Notes
    -----
    An iteration reads each distance once and sends ``k + 1`` float64 per point to all ranks. With a weight matrix, each
    conjugate gradient step reads the weights and sends as much. ``docs/mds.md`` maps equations to steps.

    Source: de Leeuw (1977); Ruan and Fox, "A robust and scalable solution for interpolative multidimensional scaling
    with weighting" (2013).

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

    _converged: bool
    _estimator_type: ClassVar[str] = "transformer"

    def __init__(
        self,
        n_components: int = 3,
        *,
        metric: str | Metric = "precomputed",
        init: str = "classical",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-6,
        annealing: bool = False,
        alpha: float = 0.95,
        t_min: float | None = None,
        acceleration: int = 0,
        storage: str = "float32",
        weight_storage: str = "float32",
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
        self.weight_storage = weight_storage
        self.random_state = random_state
        self.n_threads = n_threads
        self.verbose = verbose

    def fit(
        self: Self,
        X: Any,
        y: object = None,
        *,
        init: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Place the points of all ranks. Collective.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_points) or (n_samples, n_features), Table or DataSet
            This rank's rows: distances to all points, or vectors. Not modified. Distances may be an array, a memory
            map, or any object that can be sliced like one; they are read in blocks of rows and not copied as a whole. A
            DataSet holds vectors; its query runs, and each worker uses the rows that it produces.
        y : ignored
        init : array-like of shape (n_points, n_components), optional
            Initial positions of all points, the same on every rank; those of rank 0 are used.
        weights : array-like, optional
            ``None``: all 1. Shape (n_points,), or (n_samples,) for this rank's points: ``w_ij = u_i u_j``. Shape
            (n_samples, n_points): one for each distance, symmetric; 0 marks a missing distance, which may be NaN.
        columns : sequence of str, optional
            For a DataSet or a Table of vectors, the feature columns; by default all numeric columns.

        Returns
        -------
        self
        """
        self._place(self._prepare(active(), self._taken(X, columns), weights), init)
        # With tol=0, only the number of iterations was requested.
        if not self._converged and self.tol > 0 and active().rank == 0:
            warnings.warn(
                f"MDS stopped after max_iter={self.max_iter} iterations while the stress still fell by more than tol={self.tol:g} "
                "of itself: raise max_iter or tol.",
                warning_class(),
                stacklevel=2,
            )
        return self

    def _place(self: Self, prepared: Prepared, init: Any) -> Self:
        """Run `fit` on checked input: everything that depends on the start. Collective."""
        comm, problem, everything = prepared.problem.comm, prepared.problem, prepared.squares
        start = self._given(comm, init, problem.n)
        rng = np.random.default_rng(self._seed)
        if self.annealing and self.metric == "euclidean":
            problem.find_largest()
        falling = temperatures(problem, self.n_components, self.alpha, self.t_min) if self.annealing else []
        starts = self.n_init if start is None and self.init == "random" else 1
        best: Result | None = None
        with _Watched(self, comm, problem.n, starts) as watched:
            for number in range(starts):
                watched.start = number
                if self.verbose and comm.rank == 0 and starts > 1:
                    print(f"Start {number + 1} of {starts}.")
                if start is not None:
                    positions = spread_out(problem, start / problem.unit, everything)
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
                    report=watched.report,
                )
                if best is None or result.stress < best.stress:
                    best = result
        assert best is not None, "there is at least one start"
        self.positions_ = best.positions * problem.unit
        self.stress_ = best.stress * problem.unit**2 * problem.weights.unit
        self.normalized_stress_ = math.sqrt(best.stress / everything) if everything > 0 else 0.0
        self.n_iter_ = best.iterations
        self.history_ = np.array(best.stresses)
        self.temperatures_ = np.array(best.temperatures)
        self.cg_iterations_ = best.conjugate_gradients
        self._converged = best.converged
        self._unit = problem.unit
        self._columns = np.ones(problem.n) if problem.weights.columns is None else problem.weights.columns
        self._follow(prepared)
        self.embedding_ = self.positions_[problem.own].copy()
        self.n_features_in_ = prepared.features
        if prepared.names is not None:
            self.feature_names_in_ = prepared.names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _follow(self, prepared: Prepared) -> None:
        """Place the points whose own weight is 0 among the others, as if they were new: the loop ends when the others
        are placed. Collective.
        """
        problem, u = prepared.problem, self._columns
        if u.all() or not u.any():
            return

        def place() -> dict[int, Array]:
            found = {}
            # One by one, so that the result does not depend on which rank has a point.
            for point in np.flatnonzero(u[problem.own] == 0).tolist():
                row = prepared.rows.block(point, point + 1)
                # Distances of such a point may be missing.
                known = np.where(np.isnan(row[0]), 0.0, u) if self.metric == "precomputed" else u
                if known.any():
                    found[problem.own.start + point] = self._among(Rows(row), Weights(known, None, 1.0))[0]
            return found

        for part in collective_try(problem.comm, place):
            for point, position in part.items():
                self.positions_[point] = position

    def fit_transform(
        self, X: Any, y: object = None, *, init: ArrayLike | None = None, weights: ArrayLike | None = None
    ) -> Any:
        """Call `fit` and return ``embedding_``; for a DataSet, return its rows with columns ``mds0`` and so on, in
        place. Collective.
        """
        taken = self._taken(X, None)
        embedding = self.fit(taken, init=init, weights=weights).embedding_
        if isinstance(X, DataSet):
            names = map(str, self.get_feature_names_out())
            return with_columns(taken.table, dict(zip(names, embedding.T, strict=True)))
        return embedding

    def _taken(self, X: Any, columns: Sequence[str] | None) -> Any:
        """Return the rows of this worker. For a DataSet the query runs here, before anything can fail on one worker
        only.
        """
        name = type(self).__name__
        if is_table(X) and self.metric != "precomputed":
            return local_rows(X, columns, name)
        if isinstance(X, DataSet):
            raise no_distances(name)
        if columns is not None:
            raise TypeError("columns= is for DataSets and Tables of vectors")
        return X

    def __sklearn_tags__(self) -> Any:
        """Return the estimator tags of scikit-learn; needs scikit-learn."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=[]),
            input_tags=InputTags(pairwise=self.metric == "precomputed", positive_only=self.metric == "precomputed"),
        )

    def _report(self, iteration: Iteration) -> None:
        """Called for each iteration, on every rank; a subclass may show progress."""
        if self.verbose and active().rank == 0:
            at = f", temperature {iteration.temperature:.4g}" if iteration.temperature else ""
            print(f"Iteration {iteration.number}, stress {iteration.stress:.6g}{at}.")


class _Watched:
    """Reports each iteration to the estimator, and shows a bar on rank 0's terminal if the fit takes long."""

    def __init__(self, estimator: MDS, comm: Comm, n: int, starts: int) -> None:
        self.estimator, self.n, self.starts = estimator, n, starts
        #: The number of the current start.
        self.start = 0
        self.bar = Bar(shown=comm.rank == 0 and not estimator.verbose)
        self.begin = time.monotonic()
        self.done = 0

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.clear()

    def report(self, iteration: Iteration) -> None:
        self.estimator._report(iteration)
        self.done += 1
        elapsed_s = time.monotonic() - self.begin
        if self.bar.shown and elapsed_s > _LONG_S:
            rate = self.done / elapsed_s
            at = f", temperature {iteration.temperature:.3g}" if iteration.temperature else ""
            told = f"{self.n} points, stress {iteration.stress:.5g}{at}, iteration {iteration.number}, {rate:.3g}/s"
            self.bar.update((self.start + iteration.part) / self.starts, told)
