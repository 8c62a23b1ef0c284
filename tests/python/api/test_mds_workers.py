"""`MDS` over several workers: bitwise the same result for any number of them, and an error on one is an error on all."""

from __future__ import annotations

import os
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest
import tidemill
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from standing import run
from tidemill.ml import MDS
from tidemill.ml._distances import _join

Outcome = dict[str, Any]

# Workers get these functions by value, and need not import what only tests need: importing Hypothesis takes longer than
# all of their work.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def vectors(n: int) -> NDArray[Any]:
    return np.random.default_rng(n).standard_normal((n, 6))


def distances(points: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    return found


def symmetric_weights(n: int) -> NDArray[Any]:
    upper = np.triu(np.random.default_rng(n).uniform(size=(n, n)), 1)
    upper[upper < 0.4] = 0
    return upper + upper.T


def fit_part(
    x: NDArray[Any], cuts: list[int] | None, parameters: dict[str, Any], weights: NDArray[Any] | None, how: str
) -> Outcome:
    """On a worker: fit the rows between this rank's cuts (equal parts without) and return the result."""
    comm = tidemill.init().comm
    cuts = cuts or [len(x) * rank // comm.size for rank in range(comm.size + 1)]
    part = slice(cuts[comm.rank], cuts[comm.rank + 1])
    mine = weights if weights is None or how == "all" else weights[part]
    parameters = dict(parameters)
    init = parameters.pop("flat_start", None)
    model = MDS(**parameters, n_threads=1).fit(x[part], weights=mine, init=init)
    return {
        "embedding": model.embedding_,
        "positions": model.positions_,
        "stress": model.stress_,
        "n_iter": model.n_iter_,
        "history": model.history_,
        "new": model.transform(x[:3]),
    }


def compare(outcomes: list[Outcome], alone: MDS) -> None:
    for one in outcomes:
        assert (one["positions"] == alone.positions_).all()
        assert one["stress"] == alone.stress_
        assert one["n_iter"] == alone.n_iter_
        assert (one["history"] == alone.history_).all()
        assert (one["new"] == outcomes[0]["new"]).all()
    embedding = np.concatenate([one["embedding"] for one in outcomes])
    assert (embedding == alone.embedding_).all()


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("plain", {}),
        ("plain", {"storage": "fixed16", "n_components": 2}),
        ("plain", {"init": "random", "random_state": 7, "n_init": 2}),
        ("plain", {"annealing": True, "alpha": 0.8, "random_state": 3}),
        ("vectors", {"metric": "euclidean", "n_components": 5}),
        ("vector", {}),
        ("matrix", {}),
        ("matrix", {"weight_storage": "float16", "storage": "float16"}),
        ("matrix", {"weight_storage": "fixed16", "annealing": True, "alpha": 0.8, "random_state": 3}),
        ("vector", {"acceleration": 5}),
        ("matrix", {"acceleration": 2, "annealing": True, "alpha": 0.8, "random_state": 3}),
    ],
)
def test_workers_change_nothing(workers: int, kind: str, parameters: dict[str, Any]) -> None:
    """Rows that are summed in another order, or sums that depend on the distribution, would show in the last bit."""
    n, parameters = 101, {**parameters, "max_iter": 12, "tol": 0.0}
    x = vectors(n) if kind == "vectors" else distances(vectors(n))
    u = np.random.default_rng(0).uniform(0.1, 1, n)
    weights = {"vector": u, "matrix": symmetric_weights(n)}.get(kind)
    alone = MDS(**parameters).fit(x, weights=weights)
    compare(run(fit_part, x, None, parameters, weights, "part", workers=workers), alone)
    if kind == "vector":
        compare(run(fit_part, x, None, parameters, weights, "all", workers=workers), alone)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_change_nothing_of_points_that_are_placed_apart(workers: int) -> None:
    """Points without weight, whose distances only their own rank has; and a start in a plane, which rank 0 leaves for
    all.
    """
    x = distances(vectors(61))
    u = np.where(np.arange(61) % 7 == 3, 0.0, 1.0)
    alone = MDS(max_iter=12).fit(x, weights=u)
    compare(run(fit_part, x, None, {"max_iter": 12}, u, "part", workers=workers), alone)
    start = vectors(61)[:, :3] * [1, 0, 1]
    alone = MDS(max_iter=12).fit(x, init=start)
    assert np.linalg.matrix_rank(alone.positions_) == 3
    compare(run(fit_part, x, None, {"max_iter": 12, "flat_start": start}, None, "part", workers=workers), alone)


def test_uneven_and_empty_parts() -> None:
    x = distances(vectors(60))
    for weights in (None, symmetric_weights(60)):
        alone = MDS(max_iter=8).fit(x, weights=weights)
        for cuts in ([0, 0, 59, 60], [0, 60, 60, 60], [0, 2, 2, 60]):
            compare(run(fit_part, x, cuts, {"max_iter": 8}, weights, "part", workers=3), alone)


def test_more_workers_than_points() -> None:
    x = distances(vectors(3))
    compare(run(fit_part, x, None, {}, None, "part", workers=4), MDS().fit(x))


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_groups_of_two_ranks_are_joined(seed: int, n: int, edges: int, others: int) -> None:
    """Groups that only both ranks together connect, in any order, must become one."""
    csgraph = pytest.importorskip("scipy.sparse.csgraph", reason="SciPy is not installed")
    rng = np.random.default_rng(seed)

    def parts(pairs: NDArray[Any]) -> NDArray[np.uint32]:
        graph = np.zeros((n, n))
        graph[pairs[:, 0], pairs[:, 1]] = 1
        labels = csgraph.connected_components(graph, directed=False)[1]
        _, first = np.unique(labels, return_index=True)
        result: NDArray[np.uint32] = first[labels].astype(np.uint32)
        return result

    a, b = rng.integers(n, size=(edges, 2)), rng.integers(n, size=(others, 2))
    joined = _join(parts(a), parts(b))
    assert (joined == parts(np.concatenate([a, b]))).all()


def test_a_chain_over_all_ranks_holds_points_together() -> None:
    order = np.random.default_rng(0).permutation(40)
    weights = np.zeros((40, 40))
    weights[order[:-1], order[1:]] = weights[order[1:], order[:-1]] = 1
    x = distances(vectors(40))
    alone = MDS(max_iter=3).fit(x, weights=weights)
    compare(run(fit_part, x, None, {"max_iter": 3}, weights, "part", workers=3), alone)


def fail_on(rank: int, bad: str) -> tuple[str, str]:
    """On a worker: fit with an error on one rank; return the type and text of the exception."""
    comm = tidemill.init().comm
    x: Any = distances(vectors(40))
    own = slice(40 * comm.rank // comm.size, 40 * (comm.rank + 1) // comm.size)
    first = own.start
    weights: Any = None
    init: Any = None
    parameters: dict[str, Any] = {"n_threads": 1}
    if bad == "groups":
        weights = np.kron(np.eye(2), np.ones((20, 20)))[own]
    if comm.rank == rank:
        match bad:
            case "nan":
                x[first + 2, 1] = np.nan
            case "negative":
                x[first + 2, 1] = -1
            case "asymmetric":
                # Its counterpart is on another worker.
                x[first + 2, (first + 20) % 40] += 0.5
            case "weight":
                weights = -np.ones(own.stop - own.start)
            case "weights":
                weights = np.ones((own.stop - own.start, 40))
            case "parameter":
                parameters["tol"] = -1
            case "differs":
                parameters["max_iter"] = 5
            case "simd":
                os.environ["TIDEMILL_SIMD"] = "mmx"
            case "type":
                x = "distances"
            case "init":
                init = np.zeros((40, 3))
            case "columns":
                x = x[:, :39]
            case "rows":
                x = x[:39]
    try:
        MDS(**parameters).fit(x if isinstance(x, str) else x[own], weights=weights, init=init)
    except Exception as error:
        # No rank is left in the middle of a collective: the next one works.
        assert comm.allgather(comm.rank) == list(range(comm.size))
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize(
    ("bad", "messages"),
    [
        ("nan", {0: "point 2 to point 1 is NaN", 2: "point 28 to point 1 is NaN"}),
        ("negative", {0: "point 2 to point 1 is negative", 2: "point 28 to point 1 is negative"}),
        ("asymmetric", {0: ("point 2", "point 20"), 2: ("point 28", "point 6")}),
        ("weight", {0: "weight of point 0 is -1", 2: "weight of point 26 is -1"}),
        ("weights", {0: "disagree on what weights are", 2: "disagree on what weights are"}),
        ("parameter", {0: "tol", 2: "tol"}),
        ("differs", {0: "disagree on the parameter 'max_iter': [5, 300, 300]", 2: "[300, 300, 5]"}),
        ("simd", {0: "TIDEMILL_SIMD=mmx", 2: "TIDEMILL_SIMD=mmx"}),
        ("type", {0: "Expected 2D array", 2: "Expected 2D array"}),
        ("init", {0: "init was given on some ranks", 2: "init was given on some ranks"}),
        ("columns", {0: "disagree on the number of columns", 2: "disagree on the number of columns"}),
        ("rows", {2: "39 rows together, and 40 columns"}),
        ("groups", {0: "2 groups of points", 2: "2 groups of points"}),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(bad: str, messages: dict[int, Any]) -> None:
    """If one rank left alone, the others would wait forever."""
    for rank, expected in messages.items():
        outcomes = run(fail_on, rank, bad, workers=3)
        assert all(kind in ("ValueError", "TypeError") for kind, _ in outcomes), outcomes
        for part in (expected,) if isinstance(expected, str) else expected:
            assert all(part in text for _, text in outcomes), outcomes


def part_alone() -> float:
    """On a worker: each half of the ranks places its own points."""
    from tidemill.ml import using

    comm = tidemill.init().comm
    half = comm.Split(comm.rank % 2, comm.rank)
    x = distances(vectors(20)) * (1 + comm.rank % 2)
    with using(half):
        model = MDS(n_threads=1).fit(x[20 * half.rank // half.size : 20 * (half.rank + 1) // half.size])
    return model.stress_


def test_a_part_of_the_job_can_fit_by_itself() -> None:
    even, odd, *rest = run(part_alone, workers=4)
    assert odd == pytest.approx(4 * even)
    assert rest == [even, odd]
