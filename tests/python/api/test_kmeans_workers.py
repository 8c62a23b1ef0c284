"""`KMeans` over several workers: the same result for any number of them, and an error on one is an error on all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tidemill
from numpy.typing import NDArray
from standing import run
from tidemill.ml import KMeans

Outcome = dict[str, Any]


def data(n: int, d: int, dtype: str = "float64") -> NDArray[Any]:
    rng = np.random.default_rng(n + d)
    return (rng.uniform(-5, 5, (6, d))[rng.integers(6, size=n)] + rng.normal(size=(n, d))).astype(dtype)


def fit_part(
    x: NDArray[Any], cuts: list[int] | None, parameters: dict[str, Any], weights: NDArray[Any] | None = None
) -> Outcome:
    """On a worker: fit the rows between this rank's cuts (equal parts without) and return the result."""
    from tidemill.ml._job import active

    comm = tidemill.init().comm
    n = len(x)
    cuts = cuts or [n * rank // comm.size for rank in range(comm.size + 1)]
    part = slice(cuts[comm.rank], cuts[comm.rank + 1])
    model = KMeans(**parameters).fit(x[part], sample_weight=None if weights is None else weights[part])
    return {
        "labels": model.labels_,
        "centres": model.cluster_centers_,
        "inertia": model.inertia_,
        "n_iter": model.n_iter_,
        "score": model.score(x[part], sample_weight=None if weights is None else weights[part]),
        "size": active().size,
    }


def compare(outcomes: list[Outcome], alone: KMeans) -> None:
    labels = np.concatenate([one["labels"] for one in outcomes])
    for one in outcomes:
        assert (one["centres"] == outcomes[0]["centres"]).all(), "every rank has the same centres, to the bit"
        assert one["inertia"] == outcomes[0]["inertia"]
        assert one["n_iter"] == alone.n_iter_
        np.testing.assert_allclose(-one["score"], one["inertia"], rtol=1e-6)
    np.testing.assert_allclose(outcomes[0]["centres"], alone.cluster_centers_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outcomes[0]["inertia"], alone.inertia_, rtol=1e-6)
    assert (labels == alone.labels_).mean() > 0.999


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("init", ["k-means||", "k-means++", "random"])
def test_workers_change_nothing_but_rounding(workers: int, init: str) -> None:
    """Seeds that depend on the partition, or rows counted twice, would show here."""
    x = data(1201, 3)
    parameters = {"n_clusters": 9, "init": init, "random_state": 5, "n_init": 1, "n_threads": 1}
    compare(run(fit_part, x, None, parameters, workers=workers), KMeans(**parameters).fit(x))


@pytest.mark.parametrize("algorithm", ["lloyd", "hamerly", "tree"])
def test_each_algorithm_with_weights(algorithm: str) -> None:
    x = data(2500, 4, "float32")
    weights = np.random.default_rng(0).integers(0, 3, len(x)).astype(float)
    parameters = {"n_clusters": 7, "random_state": 2, "algorithm": algorithm, "n_threads": 1}
    alone = KMeans(**parameters).fit(x, sample_weight=weights)
    compare(run(fit_part, x, None, parameters, weights, workers=2), alone)


def test_uneven_and_empty_parts() -> None:
    x = data(500, 2)
    parameters = {"n_clusters": 5, "random_state": 0, "n_threads": 1}
    alone = KMeans(**parameters).fit(x)
    for cuts in ([0, 0, 499, 500], [0, 500, 500, 500], [0, 2, 2, 500]):
        compare(run(fit_part, x, cuts, parameters, workers=3), alone)


def test_more_workers_than_rows() -> None:
    x = data(3, 2)
    parameters = {"n_clusters": 2, "random_state": 0, "n_threads": 1}
    compare(run(fit_part, x, None, parameters, workers=4), KMeans(**parameters).fit(x))


def test_empty_clusters_move_alike_everywhere() -> None:
    x = data(300, 2)
    init = np.concatenate([x[:3], [[1e3, 1e3], [-1e3, 1e3], [0.0, 5e3]]])
    parameters = {"n_clusters": 6, "init": init, "n_threads": 1}
    compare(run(fit_part, x, None, parameters, workers=3), KMeans(**parameters).fit(x))


def fail_on(rank: int, bad: str) -> tuple[str, str]:
    """On a worker: fit with an error on one rank; return the type and text of the exception."""
    comm = tidemill.init().comm
    x: Any = data(40, 3)
    weights: Any = None
    parameters: dict[str, Any] = {"n_clusters": 3, "n_threads": 1}
    if comm.rank == rank:
        match bad:
            case "nan":
                x[7, 1] = np.nan
            case "features":
                x = x[:, :2]
            case "weights":
                weights = [1.0]
            case "parameter":
                parameters["max_iter"] = -1
            case "type":
                x = "rows"
    if bad == "init":
        parameters["init"] = np.zeros((2, 2))
    if bad == "rows":
        x = x[:1] if comm.rank == 0 else x[:0]
    try:
        KMeans(**parameters).fit(x, sample_weight=weights)
    except Exception as error:
        # No rank is left in the middle of a collective: the next one works.
        assert comm.allgather(comm.rank) == list(range(comm.size))
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("nan", "row 7, column 1"),
        ("features", "disagree on the number of features"),
        ("weights", "sample_weight"),
        ("parameter", "max_iter"),
        ("type", "Expected 2D array"),
        ("init", "shape of the initial centers"),
        ("rows", "n_samples=1 should be >= n_clusters=3"),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(bad: str, message: str) -> None:
    """If one rank left alone, the others would wait forever."""
    for rank in (0, 2):
        outcomes = run(fail_on, rank, bad, workers=3)
        assert all(kind in ("ValueError", "TypeError") for kind, _ in outcomes), outcomes
        assert all(message in text for _, text in outcomes), outcomes


def clusters_of_part() -> float:
    """On a worker: each half of the ranks clusters its own rows."""
    from tidemill.ml import using

    comm = tidemill.init().comm
    half = comm.Split(comm.rank % 2, comm.rank)
    x = data(100, 2) + 100.0 * (comm.rank % 2)
    with using(half):
        model = KMeans(2, random_state=0, n_threads=1).fit(x[half.rank :: half.size])
    return float(model.cluster_centers_.mean())


def test_a_part_of_the_job_can_cluster_by_itself() -> None:
    even, odd, *rest = run(clusters_of_part, workers=4)
    assert odd - even > 90
    assert rest == [even, odd]


def fit_data_set(x: NDArray[Any], parameters: dict[str, Any]) -> tuple[float, int, int]:
    """On a worker: return inertia, this worker's rows, and how many rows the query has assigned to other than the
    nearest clusters.
    """
    data = tidemill.from_arrow(tidemill.Table.from_numpy({f"c{at}": column for at, column in enumerate(x.T)}))
    data = data.repartition(4)
    model = KMeans(**parameters).fit(data)
    told = model.predict(data).collect().to_numpy()
    labels = told.pop("cluster")
    wrong = int((model.predict(np.column_stack(list(told.values()))) != labels).sum())
    return model.inertia_, len(model.labels_), wrong


def test_rows_of_a_data_set_are_dealt_out() -> None:
    x = data(900, 3)
    parameters = {"n_clusters": 6, "init": x[:6], "tol": 0}
    alone = KMeans(**parameters).fit(x)
    found = run(fit_data_set, x, parameters, workers=3)
    assert sum(rows for _, rows, _ in found) == 900
    for inertia, _, wrong in found:
        assert inertia == pytest.approx(alone.inertia_) and wrong == 0
