"""`KMeans` on one worker: scikit-learn's results and conventions, and edge cases."""

from __future__ import annotations

import os
import pickle
import warnings
from typing import Any, cast

import numpy as np
import pytest
import tidemill as tm
from numpy.typing import NDArray
from tidemill.ml import ConvergenceWarning, KMeans, NotFittedError

ALGORITHMS = ["lloyd", "hamerly", "tree"]


def blobs(n: int, d: int, k: int, dtype: Any = np.float64, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-5, 5, (k, d))
    return (middles[rng.integers(k, size=n)] + rng.normal(size=(n, d))).astype(dtype)


def lloyd(
    x: NDArray[Any], centres: NDArray[Any], iterations: int, weights: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lloyd's algorithm by the definition."""
    weights = np.ones(len(x)) if weights is None else weights
    for _ in range(iterations):
        labels = ((x[:, None, :] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.array(
            [
                np.average(x[labels == j], axis=0, weights=weights[labels == j]) if weights[labels == j].sum() else c
                for j, c in enumerate(centres)
            ]
        )
    return centres, ((x[:, None, :] - centres) ** 2).sum(axis=2).argmin(axis=1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (7, 1, 3), (300, 2, 4), (900, 3, 40), (400, 6, 7), (500, 33, 13)])
def test_each_algorithm_is_lloyds(algorithm: str, dtype: Any, n: int, d: int, k: int) -> None:
    """A wrong bound, tile edge or leaf changes labels or centers."""
    d = min(d, 6) if algorithm == "tree" else d
    x = blobs(n, d, k, dtype)
    model = KMeans(k, init=x[:k], max_iter=6, tol=0, algorithm=algorithm).fit(x)
    centres, labels = lloyd(x.astype(np.float64), x[:k].astype(np.float64), model.n_iter_)
    np.testing.assert_allclose(model.cluster_centers_, centres, atol=1e-5 if dtype == np.float32 else 1e-12)
    assert (model.labels_ != labels).mean() <= (0.01 if dtype == np.float32 else 0)
    assert model.cluster_centers_.dtype == dtype
    assert model.labels_.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(500, 2, 8), (3000, 3, 25), (2000, 20, 10), (800, 130, 5)])
def test_same_as_scikit_learn(dtype: Any, n: int, d: int, k: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    x = blobs(n, d, k, dtype, seed=n)
    weights = np.random.default_rng(1).uniform(0.1, 2, n)
    for sample_weight in (None, weights):
        ours = KMeans(k, init=x[:k]).fit(x, sample_weight=sample_weight)
        theirs = cluster.KMeans(k, init=x[:k], n_init=1).fit(x, sample_weight=sample_weight)
        assert ours.n_iter_ == theirs.n_iter_
        np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=1e-5)
        np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-4)
        assert (ours.labels_ != theirs.labels_).mean() < 0.002
        np.testing.assert_allclose(ours.transform(x[:20]), theirs.transform(x[:20]), atol=1e-3)
        np.testing.assert_allclose(ours.score(x), theirs.score(x), rtol=1e-5)


@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
def test_seeding_is_as_good_as_scikit_learns(init: str) -> None:
    """Broken random draws still give k rows, but far worse ones."""
    x = blobs(4000, 5, 30, seed=3)
    inertia = [KMeans(30, init=init, random_state=seed, n_init=1).fit(x).inertia_ for seed in range(8)]
    reference, _ = lloyd(x, np.array([x[i::30].mean(axis=0) for i in range(30)]), 50)
    least = ((x[:, None, :] - reference) ** 2).sum(axis=2).min(axis=1).sum()
    # k-means++ finds nearly all of 30 well separated blobs; random rows do not.
    assert np.mean(inertia) < (1.5 if init == "random" else 1.15) * min(least, min(inertia))
    again = KMeans(30, init=init, random_state=3, n_init=1).fit(x)
    assert again.inertia_ == inertia[3]


def test_many_seeds_of_one_start_lie_on_rows() -> None:
    x = blobs(200, 2, 5)
    for init in ("k-means++", "random"):
        model = KMeans(50, init=init, max_iter=1, random_state=0)
        starts: list[NDArray[Any]] = []
        original = model._start

        def start(shard: Any, rng: Any, original: Any = original, starts: Any = starts) -> Any:
            centres = original(shard, rng)
            starts.append(centres + shard.shift)
            return centres

        model._start = start  # type: ignore[method-assign]
        model.fit(x)
        nearest = np.sqrt(((starts[0][:, None, :] - x) ** 2).sum(axis=2)).min(axis=1)
        assert nearest.max() < 1e-9
        assert len(np.unique(starts[0].round(9), axis=0)) == 50


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_large_offset_costs_no_digits(algorithm: str) -> None:
    """|c|^2 / 2 - x.c cancels far from the origin; a million is exact in float32, its square is not."""
    x = blobs(3000, 2, 5)
    near = KMeans(5, init=x[:5], algorithm=algorithm).fit(x)
    far = KMeans(5, init=x[:5] + 1e6, algorithm=algorithm).fit(x + 1e6)
    np.testing.assert_allclose(far.cluster_centers_ - 1e6, near.cluster_centers_, atol=1e-6)
    assert (far.labels_ == near.labels_).all()
    lattice = np.round(x * 4) / 4
    near = KMeans(5, init=lattice[:5], algorithm=algorithm).fit(lattice.astype(np.float32))
    far = KMeans(5, init=lattice[:5] + 2**20, algorithm=algorithm).fit((lattice + 2**20).astype(np.float32))
    np.testing.assert_allclose(near.inertia_, far.inertia_, rtol=0.02)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ties_go_to_the_first_centre(algorithm: str) -> None:
    x = np.repeat(np.array([[0.0], [1.0], [2.0]]), 5, axis=0)
    model = KMeans(2, init=[[0.5], [1.5]], max_iter=1, algorithm=algorithm).fit(x)
    centres = model.cluster_centers_
    assert (model.predict([[float(centres.mean())]]) == 0).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_empty_clusters_get_the_farthest_rows(algorithm: str) -> None:
    """A center without nearest rows must not remain, nor become NaN."""
    x = np.concatenate([np.zeros((50, 1)), np.full((50, 1), 10.0), [[13.0]], [[-4.0]]])
    model = KMeans(4, init=[[0.0], [10.0], [1e3], [2e3]], algorithm=algorithm).fit(x)
    np.testing.assert_allclose(np.sort(model.cluster_centers_.ravel()), [-4, 0, 10, 13], atol=1e-12)
    np.testing.assert_allclose(model.inertia_, 0, atol=1e-20)
    assert len(set(model.labels_)) == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fractional_weights_leave_nothing_behind(algorithm: str) -> None:
    """0.1 + 0.2 - 0.2 - 0.1 is not 0: an emptied cluster with such a remainder would get an arbitrary center."""
    x = blobs(400, 2, 3)
    weights = np.random.default_rng(0).uniform(0.05, 0.3, 400)
    for seed in range(5):
        init = np.random.default_rng(seed).uniform(-40, 40, (30, 2))
        model = KMeans(30, init=init, algorithm=algorithm).fit(x, sample_weight=weights)
        assert (model.cluster_centers_ >= x.min(axis=0)).all()
        assert (model.cluster_centers_ <= x.max(axis=0)).all()


def test_empty_clusters_as_scikit_learn() -> None:
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is not installed")
    x = blobs(300, 2, 4, seed=9)
    init = np.concatenate([x[:3], [[1e3, 1e3], [-1e3, 1e3], [0, 5e3]]])
    ours = KMeans(6, init=init).fit(x)
    theirs = cluster.KMeans(6, init=init, n_init=1).fit(x)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_)


@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fewer_different_rows_than_clusters(init: str, algorithm: str) -> None:
    x = np.repeat([[1.0, 2.0], [3.0, 4.0]], 20, axis=0)
    with pytest.warns(ConvergenceWarning, match="smaller than n_clusters"):
        model = KMeans(5, init=init, random_state=0, algorithm=algorithm).fit(x)
    np.testing.assert_allclose(model.inertia_, 0, atol=1e-20)
    assert np.isfinite(model.cluster_centers_).all()
    assert len(set(model.labels_)) == 2


def test_as_many_clusters_as_rows() -> None:
    x = blobs(12, 3, 2)
    for init in ("k-means||", "k-means++", "random"):
        model = KMeans(12, init=init, random_state=0).fit(x)
        assert sorted(model.labels_) == list(range(12))
        np.testing.assert_allclose(model.inertia_, 0, atol=1e-20)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_weights_stand_for_repeated_rows(algorithm: str) -> None:
    x = blobs(400, 2, 5)
    times = np.random.default_rng(2).integers(0, 4, 400)
    weighted = KMeans(5, init=x[:5], algorithm=algorithm).fit(x, sample_weight=times)
    repeated = KMeans(5, init=x[:5], algorithm=algorithm, tol=0).fit(np.repeat(x, times, axis=0))
    np.testing.assert_allclose(weighted.inertia_, repeated.inertia_, rtol=1e-3)
    full = KMeans(5, init=x[:5], algorithm=algorithm, tol=0).fit(x, sample_weight=times)
    np.testing.assert_allclose(full.cluster_centers_, repeated.cluster_centers_)


def test_rows_without_weight_are_labelled_but_do_not_pull() -> None:
    x = np.concatenate([blobs(100, 2, 2), [[1e4, 1e4]]])
    weights = np.append(np.ones(100), 0.0)
    for init in ("k-means||", "k-means++", "random"):
        model = KMeans(2, init=init, random_state=0).fit(x, sample_weight=weights)
        assert np.abs(model.cluster_centers_).max() < 100
        assert model.labels_.shape == (101,)


def test_labels_are_those_of_predict() -> None:
    for dtype in (np.float32, np.float64):
        for d in (2, 40):
            x = blobs(5000, d, 9, dtype)
            for max_iter in (1, 3, 300):
                model = KMeans(9, random_state=0, max_iter=max_iter).fit(x)
                assert (model.predict(x) == model.labels_).all()
                own = model.transform(x).min(axis=1).astype(np.float64)
                np.testing.assert_allclose(model.inertia_, (own**2).sum(), rtol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing_but_rounding(threads: int) -> None:
    x = blobs(3000, 4, 6)
    model = KMeans(6, random_state=1, n_threads=threads).fit(x)
    single = KMeans(6, random_state=1, n_threads=1).fit(x)
    np.testing.assert_allclose(model.cluster_centers_, single.cluster_centers_, atol=1e-9)
    assert (model.labels_ == single.labels_).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    for dtype in (np.float32, np.float64):
        x = blobs(50, 3, 2, dtype)
        x[17, 2] = value
        with pytest.raises(ValueError, match="NaN" if np.isnan(value) else "infinity") as caught:
            KMeans(2).fit(x)
        assert "row 17, column 2" in str(caught.value)
        with pytest.raises(ValueError, match="row 17, column 2"):
            KMeans(2).fit(blobs(50, 3, 2, dtype)).predict(x)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": 2.5}, "n_clusters"),
        ({"n_clusters": 11}, "n_samples=10 should be >= n_clusters=11"),
        ({"max_iter": 0}, "max_iter"),
        ({"n_init": 0}, "n_init"),
        ({"tol": -1.0}, "tol"),
        ({"tol": float("nan")}, "tol"),
        ({"init": "best"}, "init"),
        ({"init": [[0.0, 1.0]]}, "shape of the initial centers"),
        ({"init": [[np.nan, 1.0]] * 3}, "NaN"),
        ({"algorithm": "full"}, "algorithm"),
        ({"n_threads": 0}, "n_threads"),
        ({"random_state": "today"}, "seed"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KMeans(**{"n_clusters": 3, **parameters}).fit(blobs(10, 2, 2))


def test_a_tree_refuses_many_features() -> None:
    with pytest.raises(ValueError, match="at most 6 features"):
        KMeans(2, algorithm="tree").fit(blobs(10, 7, 2))


@pytest.mark.parametrize("weights", [[1.0] * 9, [-1.0] * 10, [np.nan] * 10, [[1.0]] * 10, [0.0] * 10])
def test_bad_weights_are_refused(weights: Any) -> None:
    with pytest.raises(ValueError, match=r"weight"):
        KMeans(2).fit(blobs(10, 2, 2), sample_weight=weights)


def test_use_before_fit() -> None:
    for call in (KMeans().predict, KMeans().transform, KMeans().score):
        with pytest.raises(NotFittedError, match="not fitted"):
            call([[1.0]])


def test_parameters_representation_and_pickle() -> None:
    model = KMeans(3, tol=0.5, random_state=1)
    assert repr(model) == "KMeans(n_clusters=3, tol=0.5, random_state=1)"
    assert model.get_params()["tol"] == 0.5
    assert model.set_params(tol=0.25) is model
    with pytest.raises(ValueError, match="Invalid parameter 'k'"):
        model.set_params(k=3)
    x = blobs(60, 2, 3)
    model.fit(x)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(x) == model.labels_).all()
    assert list(again.get_feature_names_out()) == ["kmeans0", "kmeans1", "kmeans2"]


def test_input_is_left_alone_whatever_its_layout() -> None:
    x = blobs(200, 4, 3)
    expected = KMeans(3, init=x[:3]).fit(x)
    for layout in (np.asfortranarray(x), x[::-1][::-1], np.repeat(x, 2, axis=1)[:, ::2], x.tolist()):
        before = np.array(layout)
        model = KMeans(3, init=x[:3]).fit(layout)
        assert (np.array(layout) == before).all()
        assert (model.labels_ == expected.labels_).all()
    x.setflags(write=False)
    assert (KMeans(3, init=x[:3]).fit(x).labels_ == expected.labels_).all()


def test_verbose_prints_each_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    model = KMeans(3, random_state=0, verbose=1).fit(blobs(60, 2, 3))
    assert len(capsys.readouterr().out.splitlines()) == model.n_iter_


def test_instruction_sets_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill import _tidemill as native

    x = blobs(3000, 10, 8, np.float32)
    labels = []
    for name in native.kernel_instruction_sets():
        monkeypatch.setenv("TIDEMILL_SIMD", name)
        labels.append(KMeans(8, init=x[:8]).fit(x).labels_)
    assert all((one == labels[0]).all() for one in labels)
    monkeypatch.setenv("TIDEMILL_SIMD", "mmx")
    with pytest.raises(ValueError, match="mmx"):
        KMeans(2).fit(x)


def test_fork_join_and_affinity_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(500, 3, 4)
    expected = KMeans(4, init=x[:4]).fit(x)
    for mode in ("bsp", "fork-join"):
        for affinity in ("auto", "core", "socket", "none"):
            monkeypatch.setenv("TIDEMILL_THREAD_MODE", mode)
            monkeypatch.setenv("TIDEMILL_AFFINITY", affinity)
            assert (KMeans(4, init=x[:4], n_threads=2).fit(x).labels_ == expected.labels_).all()
    monkeypatch.setenv("TIDEMILL_AFFINITY", "moon")
    with pytest.raises(ValueError, match="affinity"):
        KMeans(4).fit(x)


def test_how_many_threads_a_worker_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that spins without a CPU, or without quota left, keeps the one that it waits for from running."""
    from tidemill._membership import Share
    from tidemill.ml import _threads

    def made(share: Share, n_threads: int | None = None, told: str = "") -> tuple[object, ...]:
        monkeypatch.setenv("TIDEMILL_THREADS", told)
        monkeypatch.setattr(_threads, "_pools", {})
        monkeypatch.setattr(_threads, "KernelPool", lambda *args: args)
        monkeypatch.setattr(_threads, "share", lambda: share)
        threads, _, affinity, place, workers, spins = cast(Any, _threads.pool(n_threads))
        assert (place, workers) == (share.place, share.workers)
        return threads, affinity, spins > 0

    for name in ("TIDEMILL_THREAD_MODE", "TIDEMILL_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    alone = Share(cpus=64, workers=1, place=0, room=64, threads=64)
    assert made(alone) == (64, "auto", True)
    assert made(alone, told="3") == (3, "none", True)
    assert made(alone, 2, told="3") == (2, "none", True)
    assert made(alone, 65) == (65, "none", False)
    quota = Share(cpus=64, workers=1, place=0, room=2, threads=2)
    assert made(quota) == (2, "none", True)
    assert made(quota, 64) == (64, "none", False), "they would use up the quota by spinning"
    srun = Share(cpus=64, workers=2, place=1, room=32, threads=32)
    assert made(srun) == (32, "auto", True)
    assert made(srun._replace(threads=4)) == (4, "none", True)
    assert made(Share(cpus=1, workers=2, place=1, room=0, threads=1)) == (1, "none", False)
    with pytest.raises(ValueError, match="TIDEMILL_THREADS must be a positive integer, not '0'"):
        made(alone, told="0")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """The child has none of its parent's threads; waiting for one would take forever."""
    x = blobs(500, 3, 4)
    expected = KMeans(4, init=x[:4], n_threads=2).fit(x)
    child = os.fork()
    if child == 0:
        same = (KMeans(4, init=x[:4], n_threads=2).fit(x).labels_ == expected.labels_).all()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (KMeans(4, init=x[:4], n_threads=2).fit(x).labels_ == expected.labels_).all()


def test_scikit_learn_conventions() -> None:
    """All of scikit-learn's checks for estimators, except one that seeding by row number cannot pass."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    expected = {
        "check_sample_weight_equivalence_on_dense_data": "random seeds depend on the order and number of rows",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = checks.check_estimator(KMeans(n_clusters=3), expected_failed_checks=expected, on_fail=None)
    failed = [(one["check_name"], one["exception"]) for one in results if one["status"] == "failed"]
    assert not failed


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
def test_partial_fits_are_means_of_what_came(decay: float) -> None:
    """Each center is the mean of the rows assigned to it; those of earlier calls count less and less."""
    rng = np.random.default_rng(3)
    parts = [np.concatenate([rng.normal(shift, 1, (50, 3)), rng.normal(40 + shift, 1, (70, 3))]) for shift in range(4)]
    weights = [rng.uniform(0.5, 2, 120) for _ in parts]
    model = KMeans(2, random_state=0)
    sums, totals = np.zeros((2, 3)), np.zeros(2)
    for x, weight in zip(parts, weights, strict=True):
        assert model.partial_fit(x, sample_weight=weight, decay=decay) is model
        order = np.argsort(model.cluster_centers_[:, 0])
        near = np.repeat([0, 1], [50, 70])
        sums = decay * sums + [np.sum(weight[near == c, None] * x[near == c], axis=0) for c in (0, 1)]
        totals = decay * totals + np.bincount(near, weight)
        np.testing.assert_allclose(model.cluster_centers_[order], sums / totals[:, None])
        np.testing.assert_allclose(model.cluster_weights_[order], totals)
        assert (order[near] == model.labels_).all() and (model.predict(x) == model.labels_).all()
    few = pickle.loads(pickle.dumps(model)).partial_fit(parts[0][:1])
    assert few.cluster_weights_.sum() == pytest.approx(model.cluster_weights_.sum() + 1)


def test_partial_fits_that_do_not_fit() -> None:
    model = KMeans(2, random_state=0).partial_fit(np.eye(4))
    with pytest.raises(ValueError, match="X has 3 features, but KMeans is expecting 4 features as input"):
        model.partial_fit(np.eye(3))
    with pytest.raises(ValueError, match=r"decay=2 must be from 0 to 1"):
        model.partial_fit(np.eye(4), decay=2)
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        model.partial_fit(np.empty((0, 4)))


def test_data_sets() -> None:
    """Columns by name; the same model as for the matrix, clusters as an additional column, and errors that name the
    column.
    """
    x = blobs(300, 3, 3)
    ids = [f"r{i}" for i in range(300)]
    names = ["a", "b", "c"]
    data = tm.from_dict({"id": ids, **{name: x[:, at].tolist() for at, name in enumerate(names)}, "w": [2.0] * 300})
    of_matrix = KMeans(3, init=x[:3]).fit(x)
    model = KMeans(3, init=x[:3]).fit(data, sample_weight="w")
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_allclose(model.cluster_centers_, of_matrix.cluster_centers_)
    assert model.inertia_ == pytest.approx(2 * of_matrix.inertia_)
    # Columns are found by name, regardless of order.
    told = model.predict(data.select("c", "w", "b", "id", "a"), label="kind")
    assert told.columns == ["c", "w", "b", "id", "a", "kind"] and told.schema["kind"] == "Int32"
    rows = {row["id"]: row["kind"] for row in told.to_pylist()}
    assert [rows[name] for name in ids] == of_matrix.labels_.tolist()
    assert (model.predict(data.collect()) == of_matrix.labels_).all()
    assert told.group_by("kind").agg(n=tm.count()).count() == 3
    far = model.transform(data).filter(tm.col("id") == "r7").to_pylist()[0]
    np.testing.assert_allclose([far[f"kmeans{j}"] for j in range(3)], of_matrix.transform(x[7:8])[0])
    assert model.score(data) == pytest.approx(-of_matrix.inertia_)
    again = KMeans(3, init=x[:3]).fit_predict(data.drop("w"))
    assert {row["id"]: row["cluster"] for row in again.to_pylist()} == rows
    single = KMeans(3, init=x[:3, :2]).fit(data.select(tm.col("a").cast("float32"), tm.col("b").cast("float32")))
    assert single.cluster_centers_.dtype == np.float32
    for call, message in (
        (lambda: model.predict(data.drop("b")), r"no column 'b'"),
        (lambda: KMeans(3).fit(data, columns=["a", "id"]), r"column 'id' is Utf8, not numbers"),
        (lambda: KMeans(3).fit(x, columns=["a"]), r"columns= is for DataSets"),
        (lambda: KMeans(3).fit(tm.from_dict({"a": [1.0, None, 2.0, 3.0]})), r"column 'a' has 1 null"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
