"""Steps that a program gives names: their states are found by these, wherever they come, and done without where that is said."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill as tm

Row = dict[str, Any]
Query = tuple[tm.DataSet, Callable[[tm.Table], None]]

TENS = tm.stream.window(tm.stream.tumbling("10s"), on="at")


def rows_of(seconds: list[int]) -> tm.Table:
    return tm.from_dict({"s": seconds}).select(key=tm.col("s") % 3, at=tm.col("s").cast("timestamp[s]")).collect()


def stream(seconds: list[int] | None = None, **options: Any) -> tm.DataSet:
    return tm.stream.from_table(rows_of(list(range(100)) if seconds is None else seconds), time="at", **options)


def written(data: tm.DataSet, **options: Any) -> list[Row]:
    seen: list[Row] = []
    data.write_stream(lambda table: seen.extend(table.to_pylist()), **options)
    return sorted(seen, key=repr)


QUERIES: dict[str, Callable[[tm.DataSet], tm.DataSet]] = {
    "windows": lambda rows: rows.group_by("key", TENS).agg(n=tm.count(), last=tm.col("at").max()),
    "sessions": lambda rows: rows.group_by("key", tm.stream.window(tm.stream.session("2s"), on="at")).agg(n=tm.count()),
    "rows": lambda rows: rows.group_by("key", tm.stream.window(tm.stream.count_window(10))).agg(n=tm.count()),
    "distinct": lambda rows: rows.select("key").distinct(),
    "join": lambda rows: rows.join(rows.select("key", "at", twice=tm.col("key") * 2), on=["key", "at"]),
    "process": lambda rows: rows.select("key").key_by("key").process(lambda key, rows, context: rows, {"key": "int64"}),
    "source": lambda rows: rows.select("key"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_name_changes_no_result(name: str) -> None:
    """Nor what is done behind it: filters, columns that are left out, a window of results, SQL."""
    named, plain = QUERIES[name](stream()).step_name("mine"), QUERIES[name](stream())
    assert named.schema == plain.schema
    assert written(named) == written(plain) != []
    some = [data.filter(tm.col("key") > 0).select("key") for data in (named, plain)]
    assert written(some[0]) == written(some[1]) != []
    asked = [tm.sql("select key + 1 as k from rows where key < 2", rows=data) for data in (named, plain)]
    assert written(asked[0]) == written(asked[1]) != []
    text = named.explain()
    assert "mine" in text and "NamedExec" not in text


def test_columns_that_nobody_wants_are_not_kept() -> None:
    """A name is no wall: what is left out behind it is left out of the state."""
    windows = stream().group_by("key", TENS).agg(n=tm.count(), last=tm.col("at").max())
    assert "max(" in windows.explain()
    assert "max(" not in windows.step_name("mine").select("key", "n").explain()


def test_rows_that_nobody_wants_are_not_kept() -> None:
    """The same of a filter behind it: it is where it would be without a name."""

    def crossed(data: tm.DataSet) -> int:
        """The rows that came to the window."""
        edges = data.filter(tm.col("key") > 1).write_stream(lambda table: None)["edges"]
        return sum(edge["rows_sent"] for edge in edges if ", first half 0.parts -> " in edge["edge"])

    windows = QUERIES["windows"](stream())
    # Of three keys it is one.
    assert crossed(windows.step_name("mine")) == crossed(windows) > 0
    assert sum(row["n"] for row in written(windows.step_name("mine").filter(tm.col("key") > 1))) == 33


def test_names_and_numbers() -> None:
    """A step with a name is not numbered, so that others keep their numbers when one comes before them."""
    rows = stream()
    windows = rows.group_by("key", TENS).agg(n=tm.count())
    plain = windows.explain(), windows.step_name("w").explain()
    assert "source table 1" in plain[0] and "window 2" in plain[0]
    assert "source table 1" in plain[1] and "window 2" not in plain[1] and "w, first half 0" in plain[1]
    both = tm.stream.explain([(stream().step_name("numbers").distinct().step_name("kinds"), print), (windows, print)])
    assert "source table 1" in both and "window 2" in both and "numbers" in both and "kinds" in both
    # One that is joined with itself has its steps twice.
    itself = windows.step_name("w")
    joined = (
        itself.join(itself.select("key", "window_end", m="n"), on=["key", "window_end"]).step_name("pairs").explain()
    )
    assert "w, 2" in joined and "pairs" in joined


def test_late_rows_of_a_step_by_its_name() -> None:
    """A sink for late rows of a step with a name, also of a window behind one whose results come by time."""
    on_time, late_second = [*range(20), *range(30, 60)], 3
    for late_output in ("tens", None):
        late, seen = list[Row](), list[Row]()
        emitted = threading.Event()

        def read(
            split: str, position: int | None, emitted: threading.Event = emitted
        ) -> Iterator[tuple[tm.Table, int]]:
            yield rows_of(on_time), 1
            # Late only once the stream's time has passed it, which the first result shows.
            assert emitted.wait(60)
            yield rows_of([late_second, *range(60, 70)]), 2

        def take(table: tm.Table, seen: list[Row] = seen, emitted: threading.Event = emitted) -> None:
            seen.extend(table.to_pylist())
            emitted.set()

        def keep(table: tm.Table, late: list[Row] = late) -> None:
            late.extend(table.to_pylist())

        source = tm.stream.from_function(read, {"key": "int64", "at": "timestamp[s]"}, time="at")
        windows = source.group_by("key", TENS).agg(n=tm.count()).step_name("tens")
        twenties = windows.group_by(tm.stream.window(tm.stream.tumbling("20s"), on="window_start")).agg(
            n=tm.col("n").sum()
        )
        twenties.write_stream(take, late_output=keep if late_output is None else {late_output: keep})
        assert [row["at"].second for row in late] == [late_second]
        assert sum(row["n"] for row in seen) == len(on_time) + 10


def test_wrong_names() -> None:
    """Each is refused before anything runs, and says what would be right."""
    rows = stream()
    windows = rows.group_by("key", TENS).agg(n=tm.count())
    with pytest.raises(tm.DataSetError, match="a name must be a non-empty string"):
        rows.step_name(" ")
    with pytest.raises(tm.DataSetError, match="a name cannot contain a comma followed by a space"):
        rows.step_name("orders, eu")
    with pytest.raises(tm.DataSetError, match="this is not a stream"):
        tm.from_dict({"a": [1]}).step_name("a")

    def refused(why: str, *data: tm.DataSet) -> None:
        with pytest.raises(tm.DataSetError, match=why):
            tm.stream.write([(one, lambda table: None) for one in data])

    refused('it is called "a" already', windows.step_name("a").step_name("b"))
    refused('two steps are called "a"', windows.step_name("a"), rows.distinct().step_name("a"))
    refused('two steps are called "window 2", one of them by step_name', windows, rows.distinct().step_name("window 2"))
    refused("a union has several; name each before it", rows.union(stream()).step_name("a"))
    refused("several queries share that step", windows, windows.step_name("a"))
    # Where they have it in common by its name it is one.
    named = windows.step_name("a")
    counts = list[int]()
    tm.stream.write([(named, lambda table: counts.append(table.num_rows)), (named.select("n"), lambda table: None)])
    assert sum(counts) == 30


TIMES = {"once": 1, "twice": 2, "thrice": 3}
NONE = {"n": 0, "sum": 0}


def totals(name: str, numbers: tm.DataSet, seen: dict[str, Row]) -> Query:
    """A function that adds up multiples of numbers: all are of one kind and schema, and are told apart by their names alone."""

    def add(key: Row, rows: list[Row], context: tm.stream.KeyContext) -> Row:
        state = context.state or NONE
        context.state = {"sum": state["sum"] + sum(row["x"] for row in rows), "n": state["n"] + len(rows)}
        return {**key, **context.state}

    def keep(table: tm.Table) -> None:
        seen[name] = max(seen.get(name, NONE), *table.to_pylist(), key=lambda row: int(row["n"]))

    state = {"sum": "int64", "n": "int64"}
    data = numbers.select(key=tm.lit("a"), x=tm.col("number") * TIMES[name])
    return data.key_by("key").process(add, {"key": "str", **state}, state=state).step_name(name), keep


def numbers(rows: int | None) -> tm.DataSet:
    return tm.stream.from_generator(20_000, rows=rows, splits=1).step_name("numbers")


def test_steps_that_change_places(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A program whose steps come in another order, among others, goes on with the state of each; one that is gone is only done without if
    that is said, and then its state is gone for good."""
    seen = dict[str, Row]()

    def run(*names: str, rows: int | None = None, **options: Any) -> None:
        source = numbers(rows)
        before = {name: row["n"] for name, row in seen.items()}

        def stop() -> bool:
            more = (name for name in names if seen.get(name, NONE)["n"] > before.get(name, 0))
            return rows is None and len(list(more)) == len(names)

        tm.stream.write(
            [totals(name, source, seen) for name in names],
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="100ms"),
            stop_when=stop,
            **options,
        )

    def check(name: str, first: int = 0) -> None:
        row = seen[name]
        assert row["sum"] == TIMES[name] * sum(range(first, first + row["n"])), (name, row)

    run("once", "twice")
    check("once")
    check("twice")
    read = seen["once"]["n"]
    run("thrice", "twice", "once")
    check("once")
    check("twice")
    assert seen["once"]["n"] > read
    # It has had nothing of what was read before it was there.
    check("thrice", read)
    with pytest.raises(
        tm.DataSetError,
        match=r'they hold state of a task "twice", which the job no longer has; checkpoints identify a step by the name that step_name\(\) gives it'
        r'.*give it the old one with step_name\("twice"\); if it is gone, drop its state with drop_state=\["twice"\]',
    ):
        run("once", "thrice")
    with pytest.raises(
        tm.DataSetError, match=r'drop_state= names "once", which the job still has; to start that step from nothing'
    ):
        run("once", "thrice", drop_state=["twice", "once"])
    capfd.readouterr()
    run("once", "thrice", drop_state=["twice"])
    assert re.search(r'checkpoint \d+ in .*: the state of "twice" is forgotten', capfd.readouterr().err)
    check("once")
    check("thrice", read)
    # What a program says once too often forgets nothing more.
    run("thrice", "once", drop_state=["twice"])
    assert "forgotten" not in capfd.readouterr().err
    before, _ = seen["once"]["n"], seen.pop("twice")
    run("twice", "once", "thrice")
    check("twice", before)
    total = max(row["n"] for row in seen.values()) + 5000
    run("twice", "once", "thrice", rows=total)
    check("once")
    check("twice", before)
    check("thrice", read)
    assert seen["once"]["n"] == total


def test_a_source_that_is_gone(tmp_path: Path) -> None:
    """Where it stood is not wanted any more; its window gives what it kept."""
    for name in ("a", "b"):
        lines = [json.dumps({"key": name, "at": at}) for at in range(95)]
        (tmp_path / f"{name}.json").write_text("".join(line + "\n" for line in lines))

    def rows(name: str) -> tm.DataSet:
        schema = {"key": "str", "at": "timestamp[s]"}
        return tm.stream.from_files(tmp_path / f"{name}.json", schema, time="at", idle_after="50ms").step_name(name)

    seen = list[Row]()

    def run(data: tm.DataSet, wanted: int, **options: Any) -> None:
        seen.clear()
        windows = data.group_by("key", TENS).agg(n=tm.count()).step_name("counts")
        windows.write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="50ms"),
            stop_when=lambda: sum(row["n"] for row in seen) >= wanted,
            **options,
        )

    run(rows("a").union(rows("b")), 180)
    assert sum(row["n"] for row in seen) == 180
    with pytest.raises(tm.DataSetError, match=r'state of a task "b".*drop_state=\["b"\]'):
        run(rows("a"), 0)
    with (tmp_path / "a.json").open("a") as file:
        file.writelines(json.dumps({"key": "a", "at": at}) + "\n" for at in range(95, 105))
    run(rows("a"), 15, drop_state=["b"])
    # The rest of both, which the window had kept, and what has come.
    assert sorted((row["key"], row["window_start"].second, row["n"]) for row in seen) == [("a", 30, 10), ("b", 30, 5)]


def test_options_that_are_wrong(tmp_path: Path) -> None:
    """`forget` is a list of names, of what a checkpoint has."""
    with pytest.raises(tm.DataSetError, match="drop_state='window 2' must be a list of step names"):
        stream().write_stream(print, checkpoint=tmp_path, drop_state="window 2")
    with pytest.raises(tm.DataSetError, match="drop_state= needs checkpoint="):
        stream().write_stream(print, drop_state=["window 2"])
    with pytest.raises(tm.DataSetError, match="drop_state=None must be a list of step names"):
        stream().write_stream(print, checkpoint=tmp_path, drop_state=None)  # type: ignore[arg-type]


def test_names_are_shown(tmp_path: Path) -> None:
    """By what lists checkpoints, too."""
    windows = tm.stream.from_generator(5000, rows=1000, step="10ms").group_by(
        "key", tm.stream.window(tm.stream.tumbling("1s"), on="time")
    )
    windows.agg(n=tm.count()).step_name("per second").write_stream(lambda table: None, checkpoint=tmp_path)
    listed = launched.run("checkpoints", tmp_path, "--state").stdout.decode()
    assert re.search(r"per second, version 1: windows of 1000000 us", listed), listed
