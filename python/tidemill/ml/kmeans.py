"""`KMeans`: clustering by Lloyd's algorithm, over the rows of all ranks."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill import _tidemill as native
from tidemill.dataset import DataSet, Table
from tidemill.ml import _seeding
from tidemill.ml._estimator import (
    Estimator,
    check_features,
    check_weights,
    matrix,
    not_finite,
    warning_class,
)
from tidemill.ml._job import active, collective_try, using
from tidemill.ml._lloyd import Iteration, Result, cluster_sums, lloyd
from tidemill.ml._partial import Account, partial_rounds
from tidemill.ml._shard import Array, Moments, Shard, moments
from tidemill.ml._tables import (
    NamedRows,
    fitted_columns,
    is_table,
    local_rows,
    mapped,
    weights_and_rest,
    with_columns,
)
from tidemill.ml._threads import pool

__all__ = ["KMeans"]

Self = TypeVar("Self", bound="KMeans")
Rows = ArrayLike | DataSet | Table
Init = str | ArrayLike | Callable[..., ArrayLike]


class KMeans(Estimator):
    """Lloyd's k-means over the ranks of the active communicator; each rank passes its own rows of ``X``.

    It follows scikit-learn's conventions; parameters, attributes and messages that both have are the same. With one
    worker it computes the same as ``sklearn.cluster.KMeans``, up to seeding. With several, `fit`, `fit_predict`,
    `fit_transform` and `score` are collective: every rank calls them, a rank may have no rows, and every rank gets the
    same centers. The number of ranks, and the distribution of rows over them in order, change the result only by
    rounding. `predict` and `transform` are local.

    Parameters
    ----------
    n_clusters : int, default=8
    init : {"k-means||", "k-means++", "random"}, array-like of shape (n_clusters, n_features) or callable, default="k-means||"
        Initial centers. A callable gets ``(X, n_clusters, random_state=RandomState)`` with the rows of rank 0. An array
        or a callable is taken from rank 0.
    n_init : "auto" or int, default="auto"
        Number of starts; the result with the lowest inertia is kept. ``"auto"`` is 10 for ``"random"`` and a callable,
        else 1.
    max_iter : int, default=300
        Maximum number of iterations of one start.
    tol : float, default=1e-4
        Stop when the squared distance that all centers moved together is at most this times the mean variance of the
        features.
    verbose : int, default=0
        Print each iteration, on rank 0.
    random_state : int, RandomState, Generator or None, default=None
        Seed; taken from rank 0.
    algorithm : {"auto", "lloyd", "hamerly", "elkan", "tree"}, default="auto"
        How to skip distance computations; labels and centers are the same with each. ``"lloyd"`` computes all
        distances, ``"hamerly"`` keeps bounds, ``"tree"`` uses a k-d tree over the rows and supports up to 6 features.
        ``"elkan"``, scikit-learn's name for keeping bounds, means ``"hamerly"`` here: two bounds per row, not one for
        each center. ``"auto"`` chooses by the numbers of rows, features and clusters.
    n_threads : int or None, default=None
        Threads of each rank; ``None`` for the launcher's setting, else all processors of the host, shared among its
        workers.
    sync : {"global", "partial"}, default="global"
        With ``"partial"``, parts of the rows iterate by themselves from common centers, and the means over parts become the
        next common centers. When these settle, Lloyd's algorithm over all rows continues until no label changes. This takes
        fewer all-reduces and more passes over the rows; use it if an all-reduce is slow.
    parts : int or None, default=None
        With ``sync="partial"``, the number of parts of each rank's rows; ``None`` for up to 8, fewer if a part would have
        less than 20 rows for each cluster. After every 3 rounds, each rank deals its rows out again to its parts.
    part_means : {"weighted", "unweighted"}, default="weighted"
        With ``sync="partial"``: ``"weighted"`` weights a part by the weight of its rows in a cluster; with
        ``"unweighted"``, all parts that have rows in the cluster count the same.
    local_sweeps : int or None, default=None
        With ``sync="partial"``, the maximum number of iterations of a part between two all-reduces; ``None`` for
        `max_iter`.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features), dtype of ``X``; the same on every rank
    labels_ : ndarray of shape (n_samples,), int32
        The nearest center of each row of this rank; in a tie, the first.
    inertia_ : float
        Weighted sum of squared distances of all ranks' rows to their centers.
    cluster_weights_ : ndarray of shape (n_clusters,), float64
        Weight of all ranks' rows in each cluster; after `partial_fit`, of all rows whose mean its center is.
    n_iter_ : int
        Number of iterations, including rounds of parts.
    account_ : object
        The cost of the start that was kept: ``sync``; the numbers of ``rounds`` of parts, of ``iterations`` over all rows
        and of ``passes`` over the rows in both; ``bytes_sent`` by this rank in all-reduces; and ``oscillated``, whether the
        rounds ended because the common centers did not settle.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only if ``X`` has column names that are all strings.

    Raises
    ------
    ValueError, TypeError
        On every rank, if input or a parameter is invalid on one; the message names the rank.

    Notes
    -----
    An iteration costs at most ``n k d`` multiply-adds over all ranks, and one all-reduce of ``k (d + 1) + 1`` float64.
    Sums are float64 whatever the dtype of ``X``. Source: Lloyd (1982); Hamerly (2010); Kanungo et al. (2002).

    Examples
    --------
    >>> from tidemill.ml import KMeans
    >>> model = KMeans(n_clusters=2, random_state=0).fit([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> model.inertia_
    4.0
    >>> model.predict([[0.0, 3.0]]) == model.labels_[0]
    array([ True])
    """

    _estimator_type: ClassVar[str] = "clusterer"

    cluster_centers_: NDArray[Any]
    labels_: NDArray[np.int32]
    inertia_: float
    n_iter_: int
    account_: Account
    cluster_weights_: Array
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    #: The algorithm that ran on this rank.
    _algorithm: str
    #: What the kernels subtract from rows; see their documentation.
    _shift: NDArray[Any]

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Init = "k-means||",
        n_init: str | int = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        algorithm: str = "auto",
        n_threads: int | None = None,
        sync: str = "global",
        parts: int | None = None,
        part_means: str = "weighted",
        local_sweeps: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.algorithm = algorithm
        self.n_threads = n_threads
        self.sync = sync
        self.parts = parts
        self.part_means = part_means
        self.local_sweeps = local_sweeps

    def fit(
        self: Self,
        X: Rows,
        y: object = None,
        sample_weight: ArrayLike | str | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Cluster the rows of all ranks. Collective.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataSet or Table
            The rows of this rank; float32 stays float32, other types become float64. Not modified, and copied only if
            it is not C-contiguous. For a DataSet, the query runs, and each worker uses the rows that it produces.
        y : ignored
        sample_weight : array-like of shape (n_samples,), or str, optional
            Weights of the rows of this rank; for a DataSet or Table, the name of a column.
        columns : sequence of str, optional
            For a DataSet or Table, the feature columns; by default all numeric columns. `predict` and `transform` find
            them by name.

        Returns
        -------
        self
        """
        X, sample_weight = self._taken(X, sample_weight, columns)
        shard, squares, tol, names = self._prepare(X, sample_weight)
        rng = np.random.default_rng(self._seed)
        starts = self._starts()
        kept: tuple[Result, Account] | None = None
        for number in range(starts):
            if self.verbose and shard.comm.rank == 0 and starts > 1:
                print(f"Start {number + 1} of {starts}.")
            found = self._found(shard, self._start(shard, rng), squares, tol, rng)
            if kept is None or found[0].inertia < kept[0].inertia:
                kept = found
        assert kept is not None, "there is at least one start"
        best, self.account_ = kept
        filled = int((best.weights > 0).sum())
        if filled < self.n_clusters and shard.comm.rank == 0:
            warnings.warn(
                f"Number of distinct clusters ({filled}) found smaller than n_clusters ({self.n_clusters}). "
                "Possibly due to duplicate points in X.",
                warning_class(),
                stacklevel=2,
            )
        self.cluster_centers_ = self._seen(shard, best.centres).astype(shard.x.dtype)
        self.labels_ = best.labels
        self.inertia_ = best.inertia
        self.cluster_weights_ = best.weights
        self.n_iter_ = self.account_.rounds + best.iterations
        self._algorithm = best.algorithm
        self._shift = shard.shift
        self.n_features_in_ = shard.d
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def partial_fit(
        self: Self,
        X: Rows,
        y: object = None,
        sample_weight: ArrayLike | str | None = None,
        *,
        decay: float = 1.0,
        columns: Sequence[str] | None = None,
    ) -> Self:
        """Move the centers by more rows of all ranks: one step of k-means on a stream. Collective.

        The first call is `fit`, unless you have called that before. Later calls assign the rows to the nearest centers,
        and each center becomes the mean of all rows that were assigned to it. Source: MacQueen (1967), by batches as in
        Sculley (2010); Spark's ``StreamingKMeans`` has the same `decay`.

        Parameters
        ----------
        X, y, sample_weight, columns
            As in `fit`. Later calls may have fewer rows than clusters, but at least one.
        decay : float in [0, 1], default=1.0
            Factor by which each call multiplies the weight of earlier rows: with 1.0 they count in full, with 0.0 only the
            rows of this call count.

        Returns
        -------
        self
            ``labels_`` and ``inertia_`` are for the rows of this call.
        """
        if not 0 <= decay <= 1:
            raise ValueError(f"decay={decay!r} must be from 0 to 1")
        if not hasattr(self, "cluster_centers_"):
            return self.fit(X, y, sample_weight, columns=columns)
        X, sample_weight = self._taken(X, sample_weight, columns)
        shard, _, _, _ = self._prepare(X, sample_weight, least=1)
        if shard.d != self.n_features_in_:
            raise ValueError(
                f"X has {shard.d} features, but KMeans is expecting {self.n_features_in_} features as input."
            )
        before = self.cluster_centers_.astype(np.float64) - shard.shift
        sums, weights = cluster_sums(shard, before)
        kept = decay * self.cluster_weights_
        self.cluster_weights_ = kept + weights
        moved = before.copy()
        np.divide(
            kept[:, None] * before + sums,
            self.cluster_weights_[:, None],
            out=moved,
            where=self.cluster_weights_[:, None] > 0,
        )
        centres = self._seen(shard, moved)
        self.cluster_centers_ = centres.astype(shard.x.dtype)
        self._shift = shard.shift
        self.labels_ = shard.assign(centres - shard.shift)
        self.inertia_ = shard.inertia(centres - shard.shift, self.labels_)
        self.n_iter_ = 1
        return self

    @overload
    def predict(self, X: DataSet, *, label: str = "cluster") -> DataSet: ...
    @overload
    def predict(self, X: ArrayLike | Table, *, label: str = "cluster") -> NDArray[np.int32]: ...
    def predict(self, X: Rows, *, label: str = "cluster") -> NDArray[np.int32] | DataSet:
        """Return the nearest center of each row; in a tie, the first. Local; for a DataSet a step of the query.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), Table or DataSet
            In a table, the columns that the model was fitted on are found by name; it may have others.
        label : str, default="cluster"
            For a DataSet, the name of the new column.

        Returns
        -------
        ndarray of shape (n_samples,), int32; for a DataSet a DataSet
            The clusters; for a DataSet its columns and the clusters, int32, which are computed when the query runs.
        """
        if isinstance(X, DataSet):
            columns = self._fitted_columns(X)
            return mapped(
                X, "KMeans.predict", columns, lambda x: self._rows(x).assign(self._centres()), [(label, "int32")]
            )
        return self._shard(self._chosen(X)).assign(self._centres())

    @overload
    def transform(self, X: DataSet) -> DataSet: ...
    @overload
    def transform(self, X: ArrayLike | Table) -> NDArray[Any]: ...
    def transform(self, X: Rows) -> NDArray[Any] | DataSet:
        """Return the distance of each row from each center. Local; for a DataSet a step of the query.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), Table or DataSet

        Returns
        -------
        ndarray of shape (n_samples, n_clusters), float32 or float64 as ``X``; for a DataSet a DataSet
            The distances; for a DataSet its columns, and ``kmeans0`` and so on, float64.
        """
        if isinstance(X, DataSet):
            columns = self._fitted_columns(X)
            fields = [(str(name), "float64") for name in self.get_feature_names_out()]
            return mapped(X, "KMeans.transform", columns, lambda x: self._distances(self._rows(x)), fields)
        return self._distances(self._shard(self._chosen(X)))

    def score(self, X: Rows, y: object = None, sample_weight: ArrayLike | str | None = None) -> float:
        """Return the negative inertia of the rows of all ranks. Collective.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataSet or Table
        y : ignored
        sample_weight : array-like of shape (n_samples,), or str, optional
            As in `fit`.
        """
        if is_table(X):
            X, sample_weight = self._taken(X, sample_weight, self._fitted_columns(X))
        comm = active()
        mine: list[Shard] = []
        collective_try(comm, lambda: mine.append(self._shard(X, sample_weight, empty_allowed=comm.size > 1)))
        shard, centres = mine[0], self._centres()
        shard.comm = comm
        return -shard.inertia(centres, shard.assign(centres))

    def fit_predict(self, X: Rows, y: object = None, sample_weight: ArrayLike | str | None = None) -> Any:
        """Call `fit` and return ``labels_``; for a DataSet, return its rows with a column ``cluster``, in place.
        Collective.
        """
        taken, weights = self._taken(X, sample_weight, None)
        labels = self.fit(taken, sample_weight=weights).labels_
        return with_columns(taken.table, {"cluster": labels}) if isinstance(X, DataSet) else labels

    def fit_transform(self, X: Rows, y: object = None, sample_weight: ArrayLike | str | None = None) -> Any:
        """Call `fit`, then `transform`. Collective."""
        taken, weights = self._taken(X, sample_weight, None)
        self.fit(taken, sample_weight=weights)
        distances = self._distances(self._shard(taken, empty_allowed=True))
        if isinstance(X, DataSet):
            names = map(str, self.get_feature_names_out())
            return with_columns(taken.table, dict(zip(names, distances.T, strict=True)))
        return distances

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the columns of `transform`: ``kmeans0`` and so on."""
        self._check_fitted()
        return np.array([f"kmeans{i}" for i in range(len(self.cluster_centers_))], dtype=object)

    def _taken(self, X: Any, sample_weight: Any, columns: Sequence[str] | None) -> tuple[Any, Any]:
        """Return rows and weights of this worker. For a DataSet the query runs here, before anything can fail on one
        worker only.
        """
        if is_table(X):
            return weights_and_rest(X, columns, sample_weight, type(self).__name__)
        if columns is not None:
            raise TypeError(f"columns= is for DataSets and Tables; X is a {type(X).__name__}")
        return X, sample_weight

    def _fitted_columns(self, X: Any) -> list[str]:
        """Return the columns of a table that the model was fitted on."""
        self._check_fitted()
        return fitted_columns(self, X)

    def _chosen(self, X: Any) -> Any:
        """Return the columns of a Table that the model was fitted on."""
        return local_rows(X, self._fitted_columns(X), type(self).__name__) if is_table(X) else X

    def _rows(self, x: NDArray[Any]) -> Shard:
        """Return rows of a query, whose columns were chosen by name."""
        names = getattr(self, "feature_names_in_", None)
        return self._shard(x if names is None else NamedRows(x, list(names)))

    def __sklearn_tags__(self) -> Any:
        """Return the estimator tags of scikit-learn; needs scikit-learn."""
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="clusterer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(preserves_dtype=["float64", "float32"]),
        )

    def _report(self, iteration: Iteration) -> None:
        """Called for each iteration, on every rank; a subclass may show progress."""
        if self.verbose and active().rank == 0:
            print(f"Iteration {iteration.number}, inertia {iteration.inertia:.6g}, {iteration.changed} rows moved.")

    def _check_parameters(self) -> None:
        def whole(name: str, least: int, value: object) -> None:
            if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"The {name!r} parameter of KMeans must be an int in the range [{least}, inf). Got {value!r} instead."
                )

        whole("n_clusters", 1, self.n_clusters)
        whole("max_iter", 1, self.max_iter)
        for name in ("n_threads", "parts", "local_sweeps"):
            if getattr(self, name) is not None:
                whole(name, 1, getattr(self, name))
        if not (isinstance(self.n_init, str) and self.n_init == "auto"):
            whole("n_init", 1, self.n_init)
        if not isinstance(self.tol, numbers.Real) or not self.tol >= 0:
            raise ValueError(
                f"The 'tol' parameter of KMeans must be a float in the range [0.0, inf). Got {self.tol!r} instead."
            )
        choices = {
            "algorithm": ("auto", "lloyd", "hamerly", "elkan", "tree"),
            "sync": ("global", "partial"),
            "part_means": ("weighted", "unweighted"),
        }
        for choice, words in choices.items():
            value = getattr(self, choice)
            if not isinstance(value, str) or value not in words:
                raise ValueError(
                    f"The {choice!r} parameter of KMeans must be a str among {set(words)}. Got {value!r} instead."
                )
        inits = ("k-means||", "k-means++", "random")
        if isinstance(self.init, str) and self.init not in inits:
            raise ValueError(
                f"The 'init' parameter of KMeans must be a str among {set(inits)}, a callable or an array-like. "
                f"Got {self.init!r} instead."
            )

    def _starts(self) -> int:
        if self.n_init == "auto":
            return 10 if callable(self.init) or (isinstance(self.init, str) and self.init == "random") else 1
        if not isinstance(self.init, str) and not callable(self.init):
            return 1
        return int(self.n_init)

    def _prepare(
        self, X: Any, sample_weight: ArrayLike | None, least: int | None = None
    ) -> tuple[Shard, float, float, NDArray[np.object_] | None]:
        """Check input and parameters on all ranks; return the rows, their sum of squares, the tolerance and column
        names.
        """
        comm = active()
        name = type(self).__name__

        def check() -> _Checked:
            self._check_parameters()
            x, names = matrix(X, name, empty_allowed=comm.size > 1)
            weights = check_weights(sample_weight, len(x))
            plain, weighted, finite = None, None, True
            if x.size:
                plain, weighted, finite = moments(pool(self.n_threads), x, weights)
            if not finite:
                raise not_finite(x, name)
            seed = draw_seed(self.random_state) if comm.rank == 0 else 0
            return _Checked(len(x), x.shape[1], str(x.dtype), names, plain, weighted, seed, x, weights)

        # The rows stay where they are; only what others need is sent.
        mine: list[_Checked] = []

        def keep() -> _Checked:
            mine.append(check())
            return mine[0].without_rows()

        everyone = collective_try(comm, keep)
        x, weights = mine[0].x, mine[0].weights
        assert x is not None, "check has set it"
        counts = [one.n for one in everyone]
        n_total, offset = sum(counts), sum(counts[: comm.rank])
        widths = {one.d for one in everyone if one.n > 0}
        if n_total == 0 or widths == {0}:
            raise ValueError(
                f"Found array with 0 sample(s) over all {comm.size} ranks while a minimum of 1 is required by {name}."
            )
        if len(widths) > 1:
            raise ValueError(f"The ranks disagree on the number of features: {[one.d for one in everyone]}.")
        if n_total < (self.n_clusters if least is None else least):
            raise ValueError(f"n_samples={n_total} should be >= n_clusters={self.n_clusters}.")
        if self.algorithm == "tree" and max(widths) > 6:
            raise ValueError(f"algorithm='tree' takes at most 6 features, and X has {max(widths)}.")
        d = widths.pop()
        dtype = np.dtype("float64" if any(one.dtype == "float64" and one.n for one in everyone) else "float32")
        x = np.ascontiguousarray(x if len(x) else np.empty((0, d)), dtype=dtype)
        plain = [one.plain for one in everyone if one.plain is not None]
        weighted = [one.weighted for one in everyone if one.weighted is not None]
        # Sums in rank order, so that every rank gets bitwise the same result.
        mean = np.sum([part.total() for part in plain], axis=0) / n_total
        variances = np.sum([part.squares_about(mean) for part in plain], axis=0) / n_total
        shift = mean.astype(dtype)
        squares = float(np.sum([part.squares_about(shift.astype(np.float64)) for part in weighted]))
        if not sum(part.weight for part in weighted) > 0:
            raise ValueError("sample_weight is zero for every row: at least one weight must be positive.")
        if not np.isfinite(squares) or not np.isfinite(variances).all():
            raise ValueError("Values of X are too large: their squares overflow float64.")
        shard = Shard(comm, pool(self.n_threads), x, shift, weights, offset, n_total)
        self._seed = everyone[0].seed
        names = next((one.names for one in everyone if one.names is not None), None)
        return shard, squares, float(self.tol * max(variances.mean(), 0.0)), names

    def _found(
        self, shard: Shard, centres: Array, squares: float, tol: float, rng: np.random.Generator
    ) -> tuple[Result, Account]:
        """Iterate from initial centers; return the result and the account of it."""
        algorithm = "hamerly" if self.algorithm == "elkan" else self.algorithm
        account, left = Account(), int(self.max_iter)
        if self.sync == "partial":
            rounds = partial_rounds(
                shard,
                centres,
                parts=self.parts,
                local_sweeps=self.local_sweeps,
                weighted=self.part_means == "weighted",
                max_iter=left,
                tol=tol,
                algorithm=algorithm,
                squares=squares,
                seed=int(rng.integers(2**63)),
                report=self._report,
            )
            centres, account = rounds.centres, rounds.account
            # Centers of parts are not a fixed point: only Lloyd's iterations lead to one, and at least one is needed.
            left, tol = max(1, left - account.rounds), 0.0
        result = lloyd(
            shard,
            centres,
            max_iter=left,
            tol=tol,
            algorithm=algorithm,
            squares=squares,
            settle=lambda centres: self._seen(shard, centres) - shard.shift.astype(np.float64),
            report=lambda iteration: self._report(replace(iteration, number=account.rounds + iteration.number)),
        )
        account.iterations = result.iterations
        # Labels require one more pass, with the returned centers.
        account.passes += result.iterations + 1
        if shard.comm.size > 1:
            account.bytes_sent += (result.iterations + 1) * 8 * (centres.size + len(centres) + 1)
        return result, account

    def _start(self, shard: Shard, rng: np.random.Generator) -> Array:
        """Return initial centers, minus the shift, the same on every rank."""
        k = self.n_clusters
        if isinstance(self.init, str):
            method = {
                "k-means||": _seeding.parallel,
                "k-means++": _seeding.plus_plus,
                "random": _seeding.random_rows,
            }[self.init]
            return method(shard, k, rng)
        state = np.random.RandomState(int(rng.integers(2**32)))

        def given() -> Array | None:
            if shard.comm.rank != 0:
                return None
            init = self.init(shard.x, k, random_state=state) if callable(self.init) else self.init
            centres = np.array(init, dtype=np.float64)
            if centres.shape != (k, shard.d):
                raise ValueError(
                    f"The shape of the initial centers {centres.shape} does not match the number of clusters and "
                    f"features {(k, shard.d)}."
                )
            if not np.isfinite(centres).all():
                raise ValueError("The initial centers contain NaN or infinity.")
            return centres

        first = collective_try(shard.comm, given)[0]
        assert first is not None, "rank 0 gives centres or raises"
        return first - shard.shift.astype(np.float64)

    @staticmethod
    def _seen(shard: Shard, centres: Array) -> Array:
        """Return centers with the shift, rounded to the dtype of the rows."""
        result: Array = (centres + shard.shift).astype(shard.x.dtype).astype(np.float64)
        return result

    def _distances(self, shard: Shard) -> NDArray[Any]:
        return native.kmeans_transform(shard.pool, shard.x, shard.shift, self._centres())

    def _centres(self) -> Array:
        centres = np.asarray(self.cluster_centers_, dtype=np.float64)
        return np.ascontiguousarray(centres - self._shift.astype(np.float64))

    def _shard(self, X: Any, sample_weight: ArrayLike | None = None, empty_allowed: bool = False) -> Shard:
        """Return rows to compare with the centers of a fitted model, on this rank alone."""
        self._check_fitted()
        x, names = matrix(X, type(self).__name__, empty_allowed)
        if empty_allowed and len(x) == 0:
            x = np.empty((0, self.n_features_in_), x.dtype)
        else:
            check_features(self, x, names)
        # Subtracting a float32 shift from float64 rows would round twice; the shift is exact in both.
        shift = self._shift.astype(x.dtype)
        weights = check_weights(sample_weight, len(x))
        with using(None):
            shard = Shard(active(), pool(self.n_threads), x, shift, weights, 0, len(x))
        if not np.isfinite(x).all():
            raise not_finite(x, type(self).__name__)
        return shard


@dataclass
class _Checked:
    """Properties of a rank's input; the others get everything except the arrays."""

    n: int
    d: int
    dtype: str
    names: NDArray[np.object_] | None
    plain: Moments | None
    weighted: Moments | None
    seed: int
    x: NDArray[Any] | None = None
    weights: Array | None = None

    def without_rows(self) -> _Checked:
        return _Checked(self.n, self.d, self.dtype, self.names, self.plain, self.weighted, self.seed)


def draw_seed(random_state: object) -> int:
    """Return a seed from anything that scikit-learn accepts as random state."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**63))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        return int(random_state)
    raise ValueError(f"{random_state!r} cannot be used to seed a numpy.random.RandomState instance")
