"""Streams that a function of the program reads: every row once, from the position in a checkpoint; functions that wait,
and faulty ones.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import function_job
import launched
import polars
import pyarrow as pa
import pytest
import stream_kills
import tidemill as tm

Row = dict[str, Any]
Yielded = Iterator[Any]

SCHEMA = {"split": "str", "n": "int64"}


def numbers(split: str, position: int | None) -> Yielded:
    """The first 100, five at a time."""
    for first in range(position or 0, 100, 5):
        yield [{"split": split, "n": n} for n in range(first, first + 5)], first + 5


def written(data: tm.DataSet, **options: Any) -> list[Row]:
    seen: list[Row] = []
    data.write_stream(lambda table: seen.extend(table.to_pylist()), **options)
    return seen


def of(rows: list[Row], split: str) -> list[int]:
    return [row["n"] for row in rows if row["split"] == split]


def test_each_split_is_read_in_order() -> None:
    """Completely, with as many threads as there are, more splits than threads, and no row twice."""
    splits = [f"split {n}" for n in range(7)]
    rows = tm.stream.from_function(numbers, SCHEMA, splits=splits)
    seen = written(rows)
    assert len(seen) == 700 and all(of(seen, split) == list(range(100)) for split in splits)
    text = rows.explain()
    assert "source numbers 1" in text and "numbers: is read again from the position in the checkpoint" in text


@pytest.mark.parametrize("kind", ["list", "table", "arrow", "coded", "polars"])
def test_rows_of_all_kinds(kind: str) -> None:
    """Columns are taken by name, and have the schema's types; a batch may be empty, and its position counts."""
    wanted: list[Row] = [{"split": "x", "n": n} for n in range(6)]
    positions = list[Any]()

    def read(split: str, position: Any) -> Yielded:
        positions.append(position)
        for n in range(3):
            some = wanted[2 * n : 2 * n + 2]
            columns = {name: [row[name] for row in some] for name in ("n", "split")}
            made = {
                "list": lambda some=some: some,
                "table": lambda columns=columns: tm.from_dict(columns).collect(),
                "arrow": lambda columns=columns: pa.table({**columns, "n": pa.array(columns["n"], pa.int8())}),
                "coded": lambda columns=columns: pa.table(
                    {name: pa.array(values).dictionary_encode() for name, values in columns.items()}
                ),
                "polars": lambda columns=columns: polars.DataFrame(columns),
            }
            yield made[kind](), {"n": n}
        yield [], "the end"

    assert written(tm.stream.from_function(read, SCHEMA)) == wanted
    assert positions == [None]


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """With positions of any kind, and more splits than before, also where threads have finished all of theirs."""
    rows, positions = list[Row](), list[tuple[str, Any]]()

    def read(split: str, position: dict[str, int] | None) -> Yielded:
        positions.append((split, position))
        for n in range(position["n"] if position else 0, 50 if split.startswith("short") else 10_000):
            time.sleep(0.001)
            yield [{"split": split, "n": n}], {"n": n + 1}

    def run(*splits: str, wanted: str) -> None:
        source = tm.stream.from_function(read, SCHEMA, splits=splits)
        before = len(rows)
        source.write_stream(
            lambda table: rows.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"),
            stop_when=lambda: len(of(rows[before:], wanted)) > 100,
        )
        for split in {row["split"] for row in rows}:
            assert of(rows, split) == list(range(len(of(rows, split))))

    run("long", "short", wanted="long")
    assert len(of(rows, "short")) == 50
    stood = len(of(rows, "long"))
    # The thread with the short one is done for good.
    for number in range(5):
        run("long", "short", *(f"more {n}" for n in range(number + 1)), wanted=f"more {number}")
        assert (f"more {number}", None) in positions
    assert ("long", {"n": stood}) in positions


def test_splits_that_are_not_named_any_more(tmp_path: Path) -> None:
    """Their remaining rows would silently be lost; finished splits are not missed."""
    wanted = {"over"}
    seen = set[str]()

    def read(split: str, position: int | None) -> Yielded:
        for n in range(position or 0, 5 if split == "over" else 10_000):
            time.sleep(0.001)
            yield [{"split": split, "n": n}], n + 1

    def run(*splits: str, name: str = "numbers") -> None:
        source = tm.stream.from_function(read, SCHEMA, splits=splits, name=name)
        source.write_stream(
            lambda table: seen.update(row["split"] for row in table.to_pylist() if row["n"] >= 4),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"),
            stop_when=lambda: wanted <= seen,
        )

    run("over", "a", "b")
    wanted = {"a", "b"}
    run("a", "b")
    with pytest.raises(tm.DataSetError, match='numbers: the checkpoint has the unfinished split "b"'):
        run("a")


def test_a_split_that_was_over_is_named_again(tmp_path: Path) -> None:
    """It is not read again, whatever was named meanwhile."""
    seen = list[Row]()

    def read(split: str, position: int | None) -> Yielded:
        for n in range(position or 0, 5 if split == "over" else 10_000):
            time.sleep(0.001)
            yield [{"split": split, "n": n}], n + 1

    def run(*splits: str) -> None:
        before = len(seen)
        tm.stream.from_function(read, SCHEMA, splits=splits).write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"),
            stop_when=lambda: len(of(seen, "over")) >= 5 and len(of(seen[before:], "long")) > 50,
        )

    for splits in (["over", "long"], ["long"], ["long"], ["over", "long"]):
        run(*splits)
    assert of(seen, "over") == list(range(5))
    assert of(seen, "long") == list(range(len(of(seen, "long"))))


@pytest.mark.parametrize("splits", [3, 600])
def test_many_functions_that_wait(tmp_path: Path, splits: int) -> None:
    """However many there are, checkpoints are made, others go on, and the job can be stopped."""
    over = threading.Event()

    def read(split: str, position: int | None) -> Yielded:
        yield [{"split": split, "n": 0}], 0
        over.wait(launched.PATIENCE_S)

    seen, checkpoints = set[str](), tmp_path / "c"
    source = tm.stream.from_function(read, SCHEMA, splits=map(str, range(splits)))
    source.write_stream(
        lambda table: seen.update(table.to_dict()["split"]),
        checkpoint=tm.stream.Checkpoint(checkpoints, interval="50ms"),
        stop_when=lambda: len(seen) == splits and len(launched.epochs(checkpoints)) > 1,
    )
    over.set()
    assert len(seen) == splits


def test_a_function_that_has_nothing_new() -> None:
    """No rows and an unchanged position mean nothing new: the thread rests, and the time of others advances."""
    asked, over = list[str](), threading.Event()
    start = datetime(2026, 1, 1)

    def read(split: str, position: int | None) -> Yielded:
        for n in range(50 if split == "loud" else 0):
            yield [{"at": start + timedelta(seconds=n)}], n
        while not over.is_set():
            asked.append(split)
            yield [], 0 if split == "silent" else 49

    rows = tm.stream.from_function(
        read, {"at": "timestamp[us]"}, splits=["silent", "loud"], time="at", idle_after="50ms", poll_interval="20ms"
    )
    begun = time.monotonic()
    rows.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.count()).write_stream(
        lambda table: over.set()
    )
    # Once at its position, and then after each rest.
    assert len(asked) <= 4 + 2 * (time.monotonic() - begun) / 0.02


def test_an_acknowledgement_that_was_lost(tmp_path: Path) -> None:
    """A split had ended when its job failed, before the function was told: it is told when the job resumes, or a queue
    would keep everything forever.
    """
    told, fails, more = list[int](), [True], list[int]()

    def read(split: str, position: int | None) -> Yielded:
        for n in range(position or 0, 5 if split == "short" else 10_000):
            time.sleep(0.001)
            yield [{"split": split, "n": n}], n + 1

    def acknowledge(split: str, position: int) -> None:
        if split != "short":
            more.append(position)
            return
        if position == 5 and fails.pop():
            raise ConnectionError("away")
        told.append(position)

    def run() -> None:
        before = len(more)
        tm.stream.from_function(read, SCHEMA, splits=["short", "long"], acknowledge=acknowledge).write_stream(
            lambda table: None,
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"),
            stop_when=lambda: len(more) > before + 3,
        )

    with pytest.raises(tm.DataSetError, match=r"(?s)split 'short', acknowledge: ConnectionError: away"):
        run()
        run()
    fails[:] = [False]
    run()
    assert told[-1] == 5


def test_a_source_that_had_come_to_its_end(tmp_path: Path) -> None:
    """While others of its job go on, it reads nothing new: that is refused rather than missed."""
    seen = list[Row]()

    def endless(split: str, position: int | None) -> Yielded:
        for n in range(position or 0, 100_000):
            time.sleep(0.001)
            yield [{"split": split, "n": n}], n + 1

    def run(*splits: str) -> None:
        before = len(seen)
        ends = tm.stream.from_function(numbers, SCHEMA, splits=splits)
        goes_on = tm.stream.from_function(endless, SCHEMA, splits=["endless"])
        ends.union(goes_on).write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"),
            stop_when=lambda: len(of(seen, "b")) == 100 and len(of(seen[before:], "endless")) > 100,
        )

    run("a", "b")
    run("a", "b")
    assert of(seen, "a") == of(seen, "b") == list(range(100))
    with pytest.raises(tm.DataSetError, match='splits= names "c", but the source had already finished'):
        run("a", "b", "c")


def test_what_comes_after_the_end(tmp_path: Path) -> None:
    """A finished job that is started again asks for rows after the end."""
    sizes, found = [10, 10, 15], list[int]()

    def read(split: str, position: int | None) -> Yielded:
        for n in range(position or 0, sizes[0]):
            yield [{"n": n}], n + 1

    while sizes:
        source = tm.stream.from_function(read, {"n": "int64"})
        source.write_stream(lambda table: found.extend(table.to_dict()["n"]), checkpoint=tmp_path)
        sizes.pop(0)
    assert found == list(range(15))


def test_workers_that_are_killed(tmp_path: Path) -> None:
    """Each row is in the files once, however often a worker dies."""
    for name in ("results", "pids"):
        (tmp_path / name).mkdir()
    stream_kills.run_and_kill(tmp_path, 4, lambda dice, kills: dice.uniform(0.3, 1), function_job.__file__, tmp_path)
    lines = [line for file in (tmp_path / "results").glob("[!_.]*") for line in file.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    assert sorted((row["split"], row["number"]) for row in rows) == [
        (split, number) for split in function_job.SPLITS for number in range(function_job.ROWS)
    ]


@pytest.mark.parametrize("how", ["interruptible", "yields"])
def test_a_stop_while_it_waits(tmp_path: Path, how: str) -> None:
    """A function that blocks delays neither the job's checkpoints nor its end; its resources are closed."""
    closed, more = threading.Event(), threading.Event()

    def read(split: str, position: int | None) -> Yielded:
        try:
            yield [{"n": 1}], 1
            while not more.is_set():
                if how == "yields":
                    yield None
                else:
                    time.sleep(0.01)
        finally:
            closed.set()

    seen = list[Row]()
    source = tm.stream.from_function(read, {"n": "int64"}, poll_interval="10ms")
    checkpoints = tmp_path / "c"
    source.write_stream(
        lambda table: seen.extend(table.to_pylist()),
        checkpoint=tm.stream.Checkpoint(checkpoints, interval="20ms"),
        stop_when=lambda: bool(seen) and len(launched.epochs(checkpoints)) > 1,
    )
    assert seen == [{"n": 1}]
    assert closed.wait(launched.PATIENCE_S)


@pytest.mark.parametrize("splits", [2, 5])
def test_a_split_that_comes_later_is_waited_for(splits: int) -> None:
    """Time would advance with the first ones that give rows, and those of the others would be late."""
    start = datetime(2026, 1, 1)

    def read(split: str, position: int | None) -> Yielded:
        # The first ones have much to give before the last gives anything.
        time.sleep(0.05 * int(split))
        for first in range(0, 1000, 100):
            yield [{"at": start + timedelta(seconds=n)} for n in range(first, first + 100)], first + 100

    rows = tm.stream.from_function(read, {"at": "timestamp[us]"}, splits=map(str, range(splits)), time="at")
    seen = written(rows.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.count()))
    assert tm.last_report().late_rows == 0
    assert [row["n"] for row in sorted(seen, key=lambda row: row["window_start"])] == [10 * splits] * 100


def test_a_split_that_has_nothing_holds_no_time_back() -> None:
    """It says so with None; the windows of others fire."""
    start = datetime(2026, 1, 1)
    over = threading.Event()

    def read(split: str, position: int | None) -> Yielded:
        if split == "silent":
            while not over.is_set():
                yield None
            return
        for n in range(100):
            yield [{"at": start + timedelta(seconds=n)}], n
        while not over.is_set():
            yield None

    seen = list[Row]()

    def keep(table: tm.Table) -> None:
        seen.extend(table.to_pylist())
        if sum(row["n"] for row in seen) == 90:
            over.set()

    rows = tm.stream.from_function(
        read, {"at": "timestamp[us]"}, splits=["silent", "loud"], time="at", idle_after="50ms", poll_interval="10ms"
    )
    rows.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.count()).write_stream(keep)
    assert sum(row["n"] for row in seen) == 100


def test_what_cannot_be_read_again(tmp_path: Path) -> None:
    """Such rows are known to be lost, and refused where that is not allowed."""
    rows = tm.stream.from_function(numbers, SCHEMA, guarantee="at_most_once")
    assert "numbers: what came since the checkpoint is lost" in rows.explain()
    with pytest.raises(tm.DataSetError, match="cannot give at least once: what came from numbers since the last"):
        rows.write_stream(print, checkpoint=tmp_path, guarantee="at_least_once")
    assert of(written(rows, checkpoint=tmp_path, guarantee="at_most_once"), "all") == list(range(100))


def test_what_is_acknowledged(tmp_path: Path) -> None:
    """What a durable checkpoint covers, in order and never more; everything at the end. A stopped job has acknowledged
    what it has given.
    """
    told, given, seen = dict[str, list[int]](), dict[str, int](), list[Row]()

    def read(split: str, position: int | None) -> Yielded:
        for n in range(position or 0, 300):
            time.sleep(0.001)
            given[split] = n + 1
            yield [{"split": split, "n": n}], n + 1

    def acknowledge(split: str, position: int) -> None:
        told.setdefault(split, []).append(position)

    def run(stops: bool) -> None:
        source = tm.stream.from_function(
            read, SCHEMA, splits=["a", "b"], guarantee="at_least_once", acknowledge=acknowledge
        )
        assert "sends again what may not have been received" in source.explain()
        source.write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"),
            stop_when=lambda: stops and all(len(told.get(split, [])) > 2 for split in "ab"),
        )
        assert {split: last[-1] for split, last in told.items()} == {split: len(of(seen, split)) for split in "ab"}
        assert all(positions == sorted(set(positions)) for positions in told.values())

    run(stops=True)
    assert max(given.values()) < 300
    run(stops=False)
    assert {split: last[-1] for split, last in told.items()} == {"a": 300, "b": 300}
    assert of(seen, "a") == of(seen, "b") == list(range(300))


def test_an_acknowledgement_that_fails(tmp_path: Path) -> None:
    """It ends the job: a server that waits for it would keep everything."""

    def refuses(split: str, position: int) -> None:
        raise ConnectionError("no such queue")

    rows = tm.stream.from_function(numbers, SCHEMA, splits=["s"], name="mine", acknowledge=refuses)
    for options in ({}, {"checkpoint": tm.stream.Checkpoint(tmp_path, interval="20ms")}):
        with pytest.raises(tm.DataSetError, match=r"(?s)mine, split 's', acknowledge: ConnectionError: no such queue"):
            written(rows, **options)


def test_at_most_once(tmp_path: Path) -> None:
    """Rows wait for a checkpoint that has their position, and each comes out once."""
    rows = tm.stream.from_function(numbers, SCHEMA, splits=["a", "b"])
    seen = written(rows, checkpoint=tm.stream.Checkpoint(tmp_path, interval="20ms"), guarantee="at_most_once")
    assert of(seen, "a") == of(seen, "b") == list(range(100))


def test_functions_that_are_wrong() -> None:
    """The job's error says which split it was, and what would be right."""

    def fails(why: str, read: Any) -> None:
        with pytest.raises(tm.DataSetError, match=why):
            written(tm.stream.from_function(read, {"n": "int64"}, splits=["s"], name="mine"))

    def raises(split: str, position: Any) -> Yielded:
        yield [{"n": 1}], 1
        raise ValueError("no such machine")

    fails("mine, split 's': it returned 5, which has no rows and positions", lambda split, position: 5)
    fails(
        "mine, split 's': it must yield pairs of rows and the position after them, or None, not",
        lambda *_: [[{"n": 1}]],
    )
    fails("mine, split 's': the position .* cannot be pickled", lambda *_: [([{"n": 1}], threading.Lock())])
    fails(r"mine, split 's': a row has the columns \['m'\] but \['n'\] were declared", lambda *_: [([{"m": 1}], 1)])
    fails("mine, split 's'.*'one'", lambda *_: [([{"n": "one"}], 1)])
    fails("mine, split 's': int has no __arrow_c_stream__", lambda *_: [(5, 1)])
    fails(r"rows have the columns \['m'\] but \['n'\] were declared", lambda *_: [(pa.table({"m": [1]}), 1)])
    fails(r"column 'n' is Float64 but Int64 was declared: cast it", lambda *_: [(pa.table({"n": [1.7]}), 1)])
    coded = pa.table({"n": pa.array([1.7]).dictionary_encode()})
    fails("column 'n' is Dictionary.* but Int64 was declared: cast it", lambda *_: [(coded, 1)])
    fails("mine, split 's': rows came with the position None", lambda *_: [([{"n": 1}], None)])
    fails("(?s)mine, split 's'.*no such machine", raises)
    fails("(?s)mine, split 's'.*argument", lambda split: [])


def test_options_that_are_wrong() -> None:
    """Each is refused at once."""

    def refused(why: str, **options: Any) -> None:
        with pytest.raises(tm.DataSetError, match=why):
            tm.stream.from_function(numbers, **{"schema": SCHEMA, **options})

    refused("splits=.* must be one or more non-empty names", splits=[])
    refused("splits=.* must be one or more non-empty names", splits=["a", "a"])
    refused("splits=.* must be one or more non-empty names", splits=[1])
    refused("a schema needs at least one column", schema={})
    refused("name='' must be a non-empty string", name="")
    refused('no column "at"', time="at")
    refused("splits=5 must be one or more non-empty names", splits=5)
    refused("poll_interval=0 must be greater than zero", poll_interval=0)
    refused("poll_interval='soon' is not a duration", poll_interval="soon")
    refused("guarantee='twice' is not 'exactly_once' or", guarantee="twice")
    with pytest.raises(TypeError, match="acknowledge= must be a function of a split and a position"):
        tm.stream.from_function(numbers, SCHEMA, acknowledge=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_function takes a function of a split and a position"):
        tm.stream.from_function(5, SCHEMA)  # type: ignore[arg-type]
