"""`tidemill.iterate`: what it computes equals a loop over the whole problem; all workers end, and fail, in the same round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm
from numpy.typing import NDArray
from standing import run

SIDE = 24


def heat(sync: str, local_sweeps: int | None, **more: Any) -> tuple[Any, ...]:
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
        **{"max_rounds": 10_000, **more},
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


@pytest.mark.parametrize(
    ("workers", "staleness", "local_sweeps"), [(1, 8, None), (2, 0, None), (3, 1, 4), (4, 8, None), (4, 1000, 4)]
)
def test_async_ends_near_the_fixpoint(workers: int, staleness: int, local_sweeps: int | None) -> None:
    found = run(partial(heat, staleness=staleness), "async", local_sweeps, workers=workers)
    wanted = np.arange(1, SIDE + 1) / (SIDE + 1)
    np.testing.assert_allclose(np.concatenate([part for part, _, _ in found]), wanted, atol=1e-4)
    assert all(converged for _, converged, _ in found)


def test_async_ends_after_max_rounds() -> None:
    found = run(partial(heat, max_rounds=5), "async", None, workers=3)
    # Where nothing changed, a worker may have done less; but none may call it the fixpoint.
    assert not any(converged for _, converged, _ in found)
    assert max(account.rounds for _, _, account in found) == 5


def least(staleness: int, slow: int) -> tuple[Any, ...]:
    """On a worker: the least number of all goes round a ring, past a worker that sleeps in each of its rounds."""
    job = tm.init()
    ahead = 0

    def local(state: tuple[int, int], ghosts: dict[int, tuple[int, int]]) -> tuple[int, int]:
        nonlocal ahead
        if job.rank == slow:
            time.sleep(0.02)
        ahead = max([ahead, *(state[1] - round_ for _, round_ in ghosts.values())])
        return min([state[0], *(number for number, _ in ghosts.values())]), min(state[1] + 1, 30)

    neighbors = {(job.rank + 1) % job.size, (job.rank - 1) % job.size} - {job.rank}
    found = tm.iterate(
        (job.rank + 3, 0),
        local=local,
        boundary=lambda state: dict.fromkeys(neighbors, state),
        until=lambda before, after: before == after,
        sync="async",
        staleness=staleness,
    )
    return found.state, found.converged, ahead


@pytest.mark.parametrize("staleness", [0, 2])
def test_async_waits_for_a_slow_worker_and_finds_exact_minima(staleness: int) -> None:
    found = run(least, staleness, 1, workers=4)
    assert [(state, converged) for state, converged, _ in found] == [((3, 30), True)] * 4
    # A worker knows that a neighbor has finished a round one message later.
    assert max(ahead for _, _, ahead in found) <= staleness + 1


def echoed() -> int:
    """On a worker: what it sends to itself is a ghost as well."""
    job = tm.init()
    return tm.iterate(
        64,
        local=lambda x, ghosts: max(ghosts.values()) // 2,
        boundary=lambda x: {job.rank: x, 0: x},
        until=lambda before, after: before == after,
        sync="async",
    ).state


@pytest.mark.parametrize("workers", [1, 3])
def test_async_hears_itself(workers: int) -> None:
    assert run(echoed, workers=workers) == [0] * workers


def sent_anew() -> str:
    """On a worker: a message to a worker that got none at first."""
    job = tm.init()
    neighbor = (job.rank + 1) % job.size
    try:
        tm.iterate(0, local=lambda x, ghosts: x + 1, boundary=lambda x: {neighbor: x} if x > 2 else {}, sync="async")
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def test_async_knows_its_neighbors_from_the_start() -> None:
    assert all("for which its first result had no message" in text for text in run(sent_anew, workers=2))


def saved_heat(folder: str) -> tuple[Any, ...]:
    """On a worker: a run that ends early, one that goes on, and one that finds that all is done."""
    return tuple(
        heat("global", None, checkpoint=folder, checkpoint_rounds=100, **more) for more in ({"max_rounds": 250}, {}, {})
    )


def test_checkpoints_of_arrays(tmp_path: Path) -> None:
    plain = run(heat, "global", None, workers=2)
    found = run(saved_heat, str(tmp_path), workers=2)
    for (whole, _, whole_account), lives in zip(plain, found, strict=True):
        assert [converged for _, converged, _ in lives] == [False, True, True]
        accounts = [account for _, _, account in lives]
        assert [account.resumed_round for account in accounts] == [0, 250, whole_account.rounds]
        assert accounts[1].rounds == accounts[2].rounds == whole_account.rounds and accounts[2].sweeps == 0
        # Bitwise the same.
        assert all((state == whole).all() for state, _, _ in lives[1:])
    saved = (*range(250, whole_account.rounds, 100), whole_account.rounds)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"round-{number:010}" for number in saved[-3:]]


def heat_saved_or_not(folder: str) -> str:
    try:
        heat("global", None, checkpoint=folder)
    except tm.DataSetError as error:
        return str(error)
    return ""


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    """Another number of parts; a damaged part, behind which is an older checkpoint; and no other one."""
    run(partial(heat, checkpoint=str(tmp_path), checkpoint_rounds=7, max_rounds=20), "global", None, workers=2)
    assert all(
        "has 2 parts, but there are 3 workers" in text for text in run(heat_saved_or_not, str(tmp_path), workers=3)
    )
    (tmp_path / "round-0000000020" / "part-1").write_bytes(b"?")
    found = run(partial(heat, checkpoint=str(tmp_path)), "global", None, workers=2)
    assert [account.resumed_round for _, _, account in found] == [14, 14]
    for part in tmp_path.glob("*/part-1"):
        part.write_bytes(b"?")
    assert all("part-1 is damaged" in text for text in run(heat_saved_or_not, str(tmp_path), workers=2))


def test_checkpoints_by_time(tmp_path: Path) -> None:
    # More than a microsecond passes in any round.
    place = tm.stream.Checkpoint(tmp_path, interval="1us", keep=2)
    tm.iterate(8.0, local=lambda x, ghosts: x / 2, max_rounds=5, checkpoint=place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-0000000004", "round-0000000005"]


def test_signed_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_CHECKPOINT_KEY", "0123456789abcdef")
    halves: dict[str, Any] = {"local": lambda x, ghosts: x / 2, "checkpoint": tmp_path}
    tm.iterate(8.0, **halves, max_rounds=2)
    assert tm.iterate(8.0, **halves, max_rounds=3).state == 1.0
    for key in ("fedcba9876543210", ""):
        monkeypatch.setenv("TIDEMILL_CHECKPOINT_KEY", key)
        with pytest.raises(tm.DataSetError, match="signed"):
            tm.iterate(8.0, **halves)
    monkeypatch.setenv("TIDEMILL_CHECKPOINT_KEY", "short")
    with pytest.raises(tm.DataSetError, match="16 bytes"):
        tm.iterate(8.0, **halves)


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


def paths(size: int, sync: str, local_sweeps: int | None, combine: bool, **more: Any) -> tuple[Any, ...]:
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
        **more,
    )
    return found.state, found.converged, found.account


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 2), (1, 4)])
def test_checkpoints_of_items_on_another_number_of_workers(tmp_path: Path, before: int, after: int) -> None:
    ((wanted, _, account),) = run(paths, 60, "global", None, False, workers=1)
    folder = str(tmp_path)
    run(partial(paths, checkpoint=folder, max_rounds=4), 60, "global", None, False, workers=before)
    for sweeps, resumed in ((account.rounds - 4, 4), (0, account.rounds)):
        found = run(partial(paths, checkpoint=folder), 60, "global", None, False, workers=after)
        assert {k: v for state, _, _ in found for k, v in state.items()} == wanted
        assert sorted(len(state) for state, _, _ in found) == [60 // after] * after
        for _, converged, one in found:
            assert converged and one.resumed_round == resumed and one.rounds == account.rounds
            assert (one.sweeps > 0) == (sweeps > 0)


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

    def local_bad_later(state: int, ghosts: Any) -> int:
        if bad and state == 20:
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
        elif case == "sync":
            tm.iterate(0, local=local, sync="async" if job.rank == 1 else "global")
        elif case == "async":
            tm.iterate(
                0, local=local_bad_later, boundary=lambda state: dict.fromkeys(range(job.size), state), sync="async"
            )
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
        ("async", ("RuntimeError", "ZeroDivisionError"), "no tide"),
        ("worker", ("RuntimeError", "ValueError"), "boundary sends to worker 7, but there are only 3 workers"),
        ("type", ("RuntimeError", "TypeError"), "boundary returned list"),
        ("objects", ("RuntimeError", "TypeError"), "an array of object, which has no sum"),
        ("kind", ("ValueError", "ValueError"), "on different workers"),
        ("keys", ("ValueError", "ValueError"), "the key 'x' is on worker 0 and on worker 1"),
        ("sync", ("ValueError", "ValueError"), "sync= is global on worker 0 and async on worker 1"),
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
        ({"local": max, "sync": "eager"}, ValueError, "sync='eager'"),
        ({"lmap": max, "lreduce": max, "sync": "async"}, ValueError, "is for arrays"),
        ({"local": max, "staleness": -1}, ValueError, "staleness=-1"),
        ({"local": max, "checkpoint": 3}, TypeError, "checkpoint= must be a folder"),
        ({"local": max, "checkpoint": "s3://bucket/x"}, tm.DataSetError, "in a folder that all workers share"),
        ({"local": max, "checkpoint_rounds": 3}, ValueError, "needs checkpoint="),
        ({"local": max, "checkpoint": "x", "sync": "async"}, ValueError, "there is no round to save"),
        ({"local": max, "sync": "partial"}, ValueError, "needs local_sweeps="),
        ({"local": max, "local_sweeps": 0}, ValueError, "local_sweeps=0"),
        ({"local": max, "max_rounds": True}, ValueError, "max_rounds=True"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        tm.iterate(0, **arguments)
