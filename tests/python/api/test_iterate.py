"""`tidemill.iterate`: what it computes equals a loop over the whole problem; all workers end, and fail, in the same round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tidemill as tm
from numpy.typing import NDArray
from standing import run

SIDE = 24


def heat(sync: str, local_sweeps: int | None) -> tuple[Any, ...]:
    """On a worker: Jacobi's method for temperatures on a rod, 0 at one end and 1 at the other."""
    job = tm.init()
    first, end = SIDE * job.rank // job.size, SIDE * (job.rank + 1) // job.size

    def local(u: NDArray[Any], ghosts: dict[int, float]) -> NDArray[Any]:
        before, after = ghosts.get(job.rank - 1, 0.0), ghosts.get(job.rank + 1, 1.0)
        padded = np.concatenate([[before], u, [after]])
        return (padded[:-2] + padded[2:]) / 2

    def boundary(u: NDArray[Any]) -> dict[int, float]:
        return {rank: end for rank, end in ((job.rank - 1, u[0]), (job.rank + 1, u[-1])) if 0 <= rank < job.size}

    found = tm.iterate(
        np.zeros(end - first),
        local=local,
        boundary=boundary,
        until=lambda before, after: float(np.abs(after - before).max()) < 1e-7,
        sync=sync,
        local_sweeps=local_sweeps,
        max_rounds=10_000,
    )
    return found.state, found.converged, found.account


def heat_alone() -> tuple[NDArray[Any], int]:
    u, rounds = np.zeros(SIDE), 0
    while True:
        padded = np.concatenate([[0.0], u, [1.0]])
        before, u, rounds = u, (padded[:-2] + padded[2:]) / 2, rounds + 1
        if np.abs(u - before).max() < 1e-7:
            return u, rounds


@pytest.mark.parametrize("workers", [1, 3])
def test_global_sync_is_the_plain_loop(workers: int) -> None:
    wanted, rounds = heat_alone()
    found = run(heat, "global", None, workers=workers)
    assert (np.concatenate([part for part, _, _ in found]) == wanted).all()
    for _, converged, account in found:
        assert converged and account.rounds == account.sweeps == rounds
        assert (account.bytes_sent > 0) == (workers > 1)


@pytest.mark.parametrize("local_sweeps", [4, None])
def test_partial_sync_finds_the_same_in_fewer_rounds(local_sweeps: int | None) -> None:
    wanted, rounds = heat_alone()
    found = run(heat, "partial", local_sweeps, workers=3)
    np.testing.assert_allclose(np.concatenate([part for part, _, _ in found]), wanted, atol=1e-3)
    for _, converged, account in found:
        assert converged and account.rounds * 2 < rounds
        assert account.rounds == found[0][2].rounds and account.sweeps >= account.rounds


def summed() -> tuple[Any, ...]:
    """On a worker: arrays are summed; a state moves half of the way to the mean of all."""
    job = tm.init()
    found = tm.iterate(
        np.array([float(job.rank), 1.0]),
        local=lambda state, ghosts: (state + ghosts / job.size) / 2,
        boundary=lambda state: state,
        receive=lambda state, total: state,
        max_rounds=60,
    )
    return found.state.tolist(), found.converged, found.account.bytes_sent


def test_arrays_are_summed() -> None:
    # An exchange before the first round, and one in each.
    assert run(summed, workers=3) == [([1.0, 1.0], False, 61 * 16)] * 3


def summed_transposed() -> Any:
    """On a worker: an array whose columns lie one after the other, and one without dimensions."""
    rank = tm.init().rank
    table = np.arange(6.0).reshape(2, 3) * (rank + 1)
    one = {"local": lambda state, ghosts: state, "receive": lambda state, total: total, "max_rounds": 1}
    found = tm.iterate(table.T, boundary=lambda state: table.T, **one)
    number = tm.iterate(0, boundary=lambda state: np.array(rank), **one)
    return found.state.tolist(), int(number.state)


def test_arrays_are_summed_whatever_their_layout() -> None:
    wanted = (3 * np.arange(6.0).reshape(2, 3)).T.tolist()
    assert run(summed_transposed, workers=2) == [(wanted, 1)] * 2


def roads(size: int) -> dict[int, list[tuple[int, float]]]:
    """Links of a ring of towns with shortcuts, and their lengths."""
    rng = np.random.default_rng(5)
    links: dict[int, list[tuple[int, float]]] = {town: [] for town in range(size)}
    pairs = [(town, (town + 1) % size) for town in range(size)] + [
        tuple(pair) for pair in rng.integers(size, size=(5, 2)).tolist()
    ]
    for a, b in pairs:
        length = float(rng.integers(1, 10))
        links[a].append((b, length))
        links[b].append((a, length))
    return links


def paths(size: int, sync: str, local_sweeps: int | None, combine: bool) -> tuple[Any, ...]:
    """On a worker: shortest paths from town 0, by map and reduce over this worker's stretch of the ring."""
    job = tm.init()
    links = roads(size)
    own = range(size * job.rank // job.size, size * (job.rank + 1) // job.size)

    def offers(town: int, distance: float) -> Iterator[tuple[int, float]]:
        yield town, distance
        for other, length in links[town]:
            yield other, distance + length

    found = tm.iterate(
        {town: 0.0 if town == 0 else float("inf") for town in own},
        lmap=offers,
        lreduce=lambda town, distances: min(distances),
        combine=(lambda town, distances: min(distances)) if combine else None,
        until=lambda before, after: before == after,
        sync=sync,
        local_sweeps=local_sweeps,
    )
    return found.state, found.converged, found.account


def test_map_and_reduce_with_keys() -> None:
    size = 60
    wanted = dict.fromkeys(range(size), float("inf")) | {0: 0.0}
    for _ in range(size):
        for a, found in roads(size).items():
            for b, length in found:
                wanted[b] = min(wanted[b], wanted[a] + length)
    rounds = {}
    for sync, local_sweeps, combine in (("global", None, False), ("partial", None, True), ("partial", 3, False)):
        outcomes = run(paths, size, sync, local_sweeps, combine, workers=3)
        assert {k: v for state, _, _ in outcomes for k, v in state.items()} == wanted
        assert all(converged for _, converged, _ in outcomes)
        rounds[local_sweeps, combine] = outcomes[0][2].rounds
    assert rounds[None, True] < rounds[3, False] < rounds[None, False]
    (alone,) = run(paths, size, "partial", None, False, workers=1)
    assert alone[0] == wanted and alone[2].bytes_sent == 0


def counted() -> dict[str, int]:
    """On a worker: keys that nobody has belong to one worker each."""
    words = ["tide", "mill", "tide"]
    return tm.iterate(
        {("text", tm.init().rank): words},
        lmap=lambda key, value: ((word, 1) for word in value) if isinstance(value, list) else [(key, value)],
        lreduce=lambda key, values: sum(values),
        max_rounds=1,
    ).state


def test_new_keys() -> None:
    found = run(counted, workers=3)
    pairs = sorted(pair for one in found for pair in one.items())
    assert pairs == [("mill", 3), ("tide", 6)]


def failing(case: str) -> tuple[str, str]:
    """On a worker: something is wrong on worker 1, in the third round if it is a function."""
    job = tm.init()
    bad = job.rank == 1

    def local(state: int, ghosts: Any) -> int:
        if bad and case == "local" and state == 2:
            raise ZeroDivisionError("no tide")
        return state + 1

    def boundary(state: int) -> Any:
        match case if bad else "":
            case "worker":
                return {7: state}
            case "type":
                return [state]
            case "objects":
                return np.array([None])
            case "kind":
                return np.zeros(2)
        return {}

    keyed = {"lmap": lambda key, value: [(key, value)], "lreduce": lambda key, values: values[0], "max_rounds": 3}
    try:
        if case == "keys":
            tm.iterate({"x": 1}, **keyed)
        else:
            tm.iterate(0, local=local, boundary=boundary, max_rounds=5)
    except Exception as error:
        # Nobody is left in an exchange.
        assert job.comm.allgather(job.rank) == list(range(job.size))
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize(
    ("case", "kinds", "message"),
    [
        ("local", ("RuntimeError", "ZeroDivisionError"), "no tide"),
        ("worker", ("RuntimeError", "ValueError"), "boundary sends to worker 7, and there are 3"),
        ("type", ("RuntimeError", "TypeError"), "boundary returned list"),
        ("objects", ("RuntimeError", "TypeError"), "an array of object, which has no sum"),
        ("kind", ("ValueError", "ValueError"), "on different workers"),
        ("keys", ("ValueError", "ValueError"), "the key 'x' is on worker 0 and on worker 1"),
    ],
)
def test_an_error_on_one_worker_is_raised_on_all(case: str, kinds: tuple[str, str], message: str) -> None:
    outcomes = run(failing, case, workers=3)
    assert [kind for kind, _ in outcomes] == [kinds[0], kinds[1], kinds[0]]
    assert all(message in text for _, text in outcomes), outcomes


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({}, TypeError, "needs local="),
        ({"lmap": max}, TypeError, "needs local="),
        ({"local": max, "lmap": max, "lreduce": max}, TypeError, "not both"),
        ({"local": 3}, TypeError, "takes functions, not int 3"),
        ({"local": max, "sync": "async"}, ValueError, "sync='async'"),
        ({"local": max, "sync": "partial"}, ValueError, "needs local_sweeps="),
        ({"local": max, "local_sweeps": 0}, ValueError, "local_sweeps=0"),
        ({"local": max, "max_rounds": True}, ValueError, "max_rounds=True"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tm.iterate(0, **arguments)
