"""State larger than memory: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import disks
import launched
import pyarrow as pa
import pytest
import state_job
import tidemill as tm
from keyed import NativeKeyedEngine, engine, listed, tables

JOB = Path(state_job.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("results", "pids", "spill", "spilled"):
        (tmp_path / name).mkdir()
    return tmp_path


def job(folder: Path, *more: str) -> list[str | Path]:
    return ["run", "-n", "2", "--memory", state_job.MEMORY, "--spill-dir", folder / "spill", *more, JOB, folder]


def check(folder: Path, query: str) -> None:
    """Compare the results with what they must be."""
    files = [file for file in (folder / "results").iterdir() if not file.name.startswith(".")]
    found = pa.concat_tables(pa.ipc.open_file(file).read_all() for file in files)
    expected = state_job.expected(query)
    found = (
        found.select(["key", "n", "sum"])
        .cast(expected.schema)
        .sort_by([("key", "ascending"), ("n", "ascending")])
        .combine_chunks()
    )
    assert found.num_rows == expected.num_rows
    for column in ("key", "n", "sum"):
        assert found[column].equals(expected[column]), column


def spilled(folder: Path) -> int:
    """Bytes written to files."""
    return sum(int(file.read_text()) for file in (folder / "spilled").iterdir())


@pytest.mark.sampled(1, always=("windows",))
@pytest.mark.parametrize("query", state_job.QUERIES)
def test_state_larger_than_memory(folder: Path, query: str) -> None:
    """Several times what two workers may hold: each result is there once and exact, and no file is left."""
    ran = launched.run(*job(folder), query)
    assert ran.returncode == 0, ran.stderr.decode()
    check(folder, query)
    bytes_ = spilled(folder)
    # On disk a small window takes a fraction of its table's memory, and a state a small fraction of its Python
    # objects'.
    at_least = {"small_windows": 16 << 20, "states": 2 << 20}.get(query, 48 << 20)
    assert bytes_ > at_least, f"only {bytes_} bytes went to disk"
    assert list((folder / "spill").iterdir()) == []


def is_on_disk(folder: Path, query: str, env: dict[str, str]) -> bool:
    """Whether a job has a checkpoint, and worker 1 has put state on disk."""
    if not launched.epochs(folder / "checkpoints"):
        return False
    at_least = 1 << 20 if query == "states" else 4 << 20
    return any(worker["worker"] == 1 and worker["spilled_bytes"] > at_least for worker in launched.statuses(env))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("query", state_job.QUERIES)
def test_a_kill_while_state_is_on_disk(folder: Path, query: str) -> None:
    """A worker is killed when there is a checkpoint of state on disk; the job resumes from it, and is exact."""
    env = {"XDG_RUNTIME_DIR": str(folder)}
    running = launched.start(*job(folder, "--restarts", "3"), query, "checkpoints", env=env)

    launched.wait_until(
        lambda: running.poll() is not None or is_on_disk(folder, query, env), "state on disk, and a checkpoint"
    )
    assert running.poll() is None, "it was over too soon"
    os.kill(launched.pids_in(folder / "pids", 2)[1], signal.SIGKILL)
    _, err = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode == 0, err.decode()
    assert b"starting the job again" in err
    check(folder, query)


@pytest.mark.sampled(0, always=("states",))
@pytest.mark.parametrize("query", ["windows", "pairs", "by_rows_of_numbers", "states"])
def test_a_spill_disk_that_fills_up(folder: Path, query: str) -> None:
    """Every worker must say which disk is full and what to do, and end; with room again, the job resumes from its last
    checkpoint, and is exact.
    """
    env, errors = {"XDG_RUNTIME_DIR": str(folder)}, folder / "errors"
    with disks.small(folder, "256m") as small:
        command = [
            "run",
            "-n",
            "2",
            "--memory",
            state_job.MEMORY,
            "--spill-dir",
            small,
            "--restarts",
            "30",
            JOB,
            folder,
        ]
        with errors.open("wb") as file:
            running = launched.start(*command, query, "checkpoints", env=env, stderr=file)
        launched.wait_until(lambda: running.poll() is not None or is_on_disk(folder, query, env), "state on disk")
        assert running.poll() is None, errors.read_text()
        disks.fill(small / "ballast")
        launched.wait_until(lambda: "starting the job again" in errors.read_text(), "a failure")
        (small / "ballast").unlink()
        assert running.wait(launched.PATIENCE_S) == 0, errors.read_text()
        assert list(small.iterdir()) == []
    told = errors.read_text().partition("starting the job again")[0]
    assert f"spilling to {small}: " in told and re.search(r"\d+ MiB of its disk's 256 MiB are free", told), told
    assert "--spill-dir" in told
    check(folder, query)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("query", state_job.QUERIES)
def test_keys_that_move_with_state_on_disk(folder: Path, query: str) -> None:
    """Buckets change owners while most of their state is on disk, and no result is affected."""
    ran = launched.run(*job(folder), query, "checkpoints", "moving")
    assert ran.returncode == 0, ran.stderr.decode()
    check(folder, query)
    moves = json.loads((folder / "moves").read_text())
    assert sum(move["moved_bytes"] for move in moves) > 1 << 20


def test_states_in_the_store(tmp_path: Path) -> None:
    """States, lists, maps and aggregates that move between memory and disk behave as if all stayed in memory, with
    timers, alarms and keys that are forgotten; and so do incremental checkpoints.
    """
    start, ms, dice = datetime(1970, 1, 1), timedelta(milliseconds=1), random.Random(3)
    clock, ended = 0, False

    def function(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> Any:
        seen, log = context.map_state("seen"), context.list_state("log")
        most = context.aggregate_state("most", "max", ttl="1s")
        if context.timers:
            context.state = None
            seen.clear()
            return {"k": key["k"], "n": -1}
        if context.alarms:
            assert context.alarms[0] <= context.now or ended
            told = -2 - sum(log)
            log.clear()
            return {"k": key["k"], "n": told}
        x = sum(row["x"] for row in rows)
        context.state = (context.state or 0) + x
        if context.state % 5 == 0:
            context.set_timer(start + context.state * ms)
        if context.state % 2 == 0:
            # At the end.
            context.set_timer(start + 10_000 * ms)
        # Changed in place; removed; and added again.
        seen.setdefault(x, []).append(context.state)
        if context.state % 4 == 0:
            seen.pop(dice_of[context.state % 7], None)
        log.append(context.state)
        most.add(x)
        if context.state % 3 == 0:
            context.set_alarm(context.now + 30 * ms)
        return {"k": key["k"], "n": context.state * 1000 + sum(map(len, seen.values())) + most.get()}

    dice_of = [dice.randrange(7) for _ in range(7)]

    def one_engine() -> NativeKeyedEngine:
        return engine(function, {"k": "str", "n": "int64"}, 400_000, tmp_path, clock=lambda: clock)

    def pairs(made: list[Any]) -> list[tuple[str, int]]:
        return [(row["k"], row["n"]) for row in listed(made)]

    def all_at(one: NativeKeyedEngine, now: int, spills: bool = False) -> list[tuple[str, int]]:
        made, more = one.time(now)
        found = pairs(made)
        while more:
            # As a task does when the state loaded is too large.
            if spills:
                one.spill(len(one.entries()) - 1)
            made, more = one.time(now)
            found += pairs(made)
        return sorted(found)

    def all_rung(one: NativeKeyedEngine) -> list[tuple[str, int]]:
        found, more = [], True
        while more and (first := one.next_alarm()) is not None and first <= clock:
            made, more = one.ring()
            found += pairs(made)
        assert (one.next_alarm() or clock + 1) > clock
        return sorted(found)

    def restored(saved: dict[int, list[bytes]], now: int) -> dict[Any, tuple[Any, ...]]:
        new = one_engine()
        for bucket, parts in saved.items():
            new.restore(now, bucket, parts)
        return kept(new, full=True)

    def kept(one: NativeKeyedEngine, full: bool = False) -> dict[Any, tuple[Any, ...]]:
        """The state in memory, by key; `full`: also when it was touched, and its bucket."""
        found = {}
        for key, bucket, state, timers, alarms, touched in one.entries():
            items = {name: dict(items._values) for name, items in state.items.items() if len(items)} if state else {}
            value = (state.value if state else None, timers, alarms, items)
            found[tm.Table(key)["k"][0]] = (*value, touched, bucket) if full else value
        return found

    spilling, model = one_engine(), one_engine()
    saved: tuple[dict[int, list[bytes]], dict[int, list[bytes]]] = ({}, {})
    stored = alarms = 0
    for turn in range(80):
        keys = dice.sample(range(1500), 200)
        texts = [f"key {key}" for key in keys]
        names, table = tables({"k": texts}, {"k": texts, "x": [key % 7 for key in keys]})
        arguments = (names, [key % 10 for key in keys], list(range(1, 201)), table)
        assert pairs(spilling.rows(*arguments)) == pairs(model.rows(*arguments))
        now = turn * 10_000
        assert all_at(spilling, now) == all_at(model, now)
        clock += 10_000
        rung = all_rung(model)
        assert all_rung(spilling) == rung
        alarms += len(rung)
        if turn % 3 == 0:
            spilling.spill()
            stored = max(stored, spilling.stored())
        if turn % 7 == 0:
            for one, parts in zip((spilling, model), saved, strict=True):
                for bucket, whole, part in one.snapshot(turn % 21 == 0):
                    parts[bucket] = [part] if whole else [*parts.get(bucket, []), part]
            there = restored(saved[1], now)
            assert restored(saved[0], now) == there != {}
            assert kept(model) == {key: one[:4] for key, one in there.items()}
    assert stored > 300 and alarms > 300
    released = [dict(one.release([1, 2, 3])) for one in (spilling, model)]
    assert restored({bucket: [part] for bucket, part in released[0].items()}, 0) == restored(
        {bucket: [part] for bucket, part in released[1].items()}, 0
    )
    end, ended = 2**63 - 1, True
    for _ in range(4):
        spilling.spill()
    # They are loaded in several turns, and nearly all is evicted again.
    assert all_at(spilling, end, spills=True) == all_at(model, end)
    assert list(tmp_path.iterdir()) == []
