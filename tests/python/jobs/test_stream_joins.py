"""Joins of streams, distinct rows, and groups that are complete once a time has passed: the results are those of the
same query over tables.
"""

from __future__ import annotations

import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pytest
import tidemill as tm

SECOND = timedelta(seconds=1)
START = datetime(1970, 1, 1)
Rows = list[dict[str, Any]]


def left_table(count: int = 3000, jitter: int = 0) -> pa.Table:
    dice = random.Random(5)
    times = [at * 1000 + dice.randint(0, jitter) for at in range(count)]
    keys = [None if dice.random() < 0.02 else f"k{dice.randrange(40)}" for _ in range(count)]
    return pa.table({"k": keys, "a": range(count), "at": pa.array(times, pa.timestamp("us"))})


def right_table(count: int = 900, jitter: int = 0) -> pa.Table:
    dice = random.Random(6)
    times = [at * 3000 + dice.randint(0, jitter) for at in range(count)]
    keys = [None if dice.random() < 0.02 else f"k{dice.randrange(50)}" for _ in range(count)]
    return pa.table({"k": keys, "b": range(count), "at": pa.array(times, pa.timestamp("us"))})


def stream(table: pa.Table, rows_per_batch: int = 64, **options: Any) -> tm.DataSet:
    return tm.stream.from_table(table, time="at", rows_per_batch=rows_per_batch, **options)


def written(data: tm.DataSet, **options: Any) -> Rows:
    seen: Rows = []
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return seen


def same(stream: Rows, table: Rows) -> None:
    """The same rows, equally often, in any order."""

    def bag(rows: Rows) -> Counter[tuple[tuple[str, Any], ...]]:
        return Counter(tuple(sorted(row.items())) for row in rows)

    assert len(table) > 20, "the query gives too little to tell anything"
    assert bag(stream) == bag(table)


WITHIN = {
    "after": lambda: (
        (tm.col("at_right") >= tm.col("at")) & (tm.col("at_right") <= tm.col("at") + timedelta(milliseconds=50))
    ),
    "around": lambda: (
        (tm.col("at_right") > tm.col("at") - SECOND / 20) & (tm.col("at_right") < tm.col("at") + SECOND / 20)
    ),
    "equal": lambda: tm.col("at").cast("timestamp[s]") == tm.col("at_right").cast("timestamp[s]"),
    "difference": lambda: (
        (tm.col("at") - tm.col("at_right") <= SECOND / 10) & (tm.col("at") - tm.col("at_right") >= SECOND / 50)
    ),
    "and more": lambda: (
        (tm.col("at_right") >= tm.col("at"))
        & (tm.col("at_right") <= tm.col("at") + SECOND)
        & (tm.col("a") % 7 < tm.col("b") % 5)
    ),
}


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("within", WITHIN)
def test_joins_give_what_tables_give(how: Any, within: str) -> None:
    """A row evicted too early, emitted without a partner too early, or given twice, is a row too few or too many."""
    left, right = left_table(), right_table()

    def query(a: tm.DataSet, b: tm.DataSet) -> tm.DataSet:
        return a.join(b, on="k", how=how, where=WITHIN[within]())

    expected = query(tm.from_arrow(left), tm.from_arrow(right)).to_pylist()
    same(written(query(stream(left), stream(right, 17))), expected)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("more", [False, True])
def test_joins_for_a_time_give_what_tables_give(how: Any, more: bool) -> None:
    """Rows remembered for a time are partners if they are less than that apart, and only then, whatever else must hold."""
    left, right = left_table(), right_table()
    near = (tm.col("at") - tm.col("at_right") < SECOND / 20) & (tm.col("at_right") - tm.col("at") < SECOND / 20)
    where = tm.col("a") % 7 < tm.col("b") % 5
    tables = [tm.from_arrow(table) for table in (left, right)]
    expected = tables[0].join(tables[1], on="k", how=how, where=near & where if more else near).to_pylist()
    joined = stream(left).join(stream(right, 17), on="k", how=how, where=where if more else None, ttl="50ms")
    same(written(joined), expected)


def test_joins_for_a_time_need_no_columns_of_time() -> None:
    """They go by the column that gives the streams' time, even if nothing else uses it, whatever its type, and also of
    windows.
    """
    left, right = left_table(), right_table()
    near = (tm.col("at") - tm.col("at_right") < SECOND) & (tm.col("at_right") - tm.col("at") < SECOND)
    tables = [tm.from_arrow(table) for table in (left, right)]
    expected = tables[0].join(tables[1], on="k", where=near).select("a", "b").to_pylist()
    same(written(stream(left).join(stream(right), on="k", ttl=1).select("a", "b")), expected)
    millis = tm.from_arrow(right).with_columns(at=tm.col("at").cast("timestamp[ms]")).collect()
    exact = tm.from_arrow(left).join(tm.from_arrow(millis), on="k", where=near).select("a", "b").to_pylist()
    same(written(stream(left).join(stream(millis), on="k", ttl=1).select("a", "b")), exact)

    def counts(rows: tm.DataSet) -> tm.DataSet:
        return rows.group_by("k", tm.stream.window(tm.stream.tumbling("100ms"), on="at")).agg(n=tm.count())

    ends = (tm.col("window_end") - tm.col("window_end_right") < SECOND / 4) & (
        tm.col("window_end_right") - tm.col("window_end") < SECOND / 4
    )
    both = [counts(table) for table in tables]
    expected = both[0].join(both[1], on="k", where=ends).select("k", "n", "n_right").to_pylist()
    both = [counts(stream(table)) for table in (left, right)]
    same(written(both[0].join(both[1], on="k", ttl="250ms").select("k", "n", "n_right")), expected)


def test_windows_of_joins_for_a_time() -> None:
    """A window after such a join knows what to wait for, as after one whose condition bounds the time of partners."""
    left, right = left_table(), right_table()
    near = (tm.col("at") - tm.col("at_right") < SECOND / 10) & (tm.col("at_right") - tm.col("at") < SECOND / 10)

    def counts(joined: tm.DataSet) -> tm.DataSet:
        return joined.group_by(tm.stream.window(tm.stream.tumbling("50ms"), on="at_right")).agg(n=tm.count())

    tables = (tm.from_arrow(table) for table in (left, right))
    expected = counts(next(tables).join(next(tables), on="k", where=near)).to_pylist()
    same(written(counts(stream(left).join(stream(right), on="k", ttl="100ms"))), expected)
    assert tm.last_report().late_rows == 0


@pytest.mark.parametrize("sides", [{"left"}, {"right"}, {"left", "right"}])
def test_late_rows_of_joins(sides: set[str], tmp_path: Path) -> None:
    """They go to the sink of their side, with all their columns, as the same rows do whoever else wants them; those
    without a sink are counted.
    """
    schema = {"k": "str", "at": "timestamp[s]", "of": "str"}

    def add(side: str, *seconds: int) -> None:
        with (tmp_path / f"{side}.json").open("a") as more:
            for second in seconds:
                more.write(json.dumps({"k": "a", "at": str(START + second * SECOND), "of": side}) + "\n")

    for side in ("left", "right"):
        add(side, 0, 100)
    left, right = (tm.stream.from_files(tmp_path / f"{side}.json", schema, time="at") for side in ("left", "right"))
    joined = left.join(right, on="k", how="full", ttl="10s").select("k", "at")
    name = re.search(r"join \d+", joined.explain())
    assert name
    late: dict[str, list[Any]] = {side: [] for side in sides}
    sinks = {f"{name[0]} {side}": lambda rows, side=side: late[side].extend(rows.to_pylist()) for side in sides}
    seconds: list[int] = []

    def take(table: tm.Table) -> None:
        for row in table.to_pylist():
            seconds.append((row["at"] - START).seconds)
            if seconds[-1] == 100:
                # Later than what both have read. The last row shows that the late ones have been looked at.
                add("left", 5, 200)
                add("right", 7, 200)

    options: Any = {
        "checkpoint": tm.stream.Checkpoint(tmp_path / "c", interval="100ms"),
        "stop_when": lambda: 200 in seconds,
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        joined.write_stream(take, late_output=sinks, **options)
    second = {"left": 5, "right": 7}
    rows = {side: [{"k": "a", "at": START + second[side] * SECOND, "of": side}] for side in sides}
    assert (sorted(seconds), late) == ([0, 100, 200], rows)
    assert tm.last_report().late_rows == 2 - len(sides)
    assert [str(one.message) for one in warned if issubclass(one.category, tm.stream.LateRowsWarning)] == [
        f"1 row came too late and was left out ({name[0]} {side}: 1); wait longer with max_out_of_orderness=, or take them with allowed_lateness= or late_output="
        for side in {"left", "right"} - sides
    ]


def test_sinks_of_late_rows_that_cannot_be() -> None:
    left, right = stream(left_table()), stream(right_table())
    bounded, unbounded = left.join(right, on="k", ttl="1s"), left.join(right, on="k")
    with pytest.raises(
        tm.DataSetError, match=r'a sink for "join 9 left", for .*; they can for: join \d+ left, join \d+ right'
    ):
        bounded.write_stream(print, late_output={"join 9 left": print})
    with pytest.raises(tm.DataSetError, match=r"no rows come too late; they can for: none"):
        unbounded.write_stream(print, late_output={"join 1 left": print})
    with pytest.raises(
        tm.DataSetError, match=r"the query has none; those of a join have sinks by the name of the step"
    ):
        bounded.write_stream(print, late_output=print)
    with pytest.raises(
        TypeError, match="late_output must map names of steps to sinks, such as 'join 1 left'; a name is not 1"
    ):
        bounded.write_stream(print, late_output={1: print})  # type: ignore[dict-item]


def test_joins_for_a_time_without_a_time() -> None:
    """A row without one finds no partner; a stream without one cannot be joined this way, nor can a table."""
    times = tm.from_dict({"k": [1, 2, 1], "s": [0, None, 5]}).select("k", at=tm.col("s").cast("timestamp[s]")).collect()
    both = [tm.stream.from_table(times, time="at") for _ in range(2)]
    seen = written(both[0].join(both[1], on="k", how="left", ttl="10s"))
    found = sorted(
        (row["k"], row["at"] and row["at"].second, row["at_right"] and row["at_right"].second) for row in seen
    )
    assert found == [(1, 0, 0), (1, 0, 5), (1, 5, 0), (1, 5, 5), (2, None, None)]
    untimed = tm.stream.from_table(times)
    with pytest.raises(
        tm.DataSetError, match=r"a join with ttl= on streams whose right side has rows without event time"
    ):
        written(both[0].join(untimed, on="k", ttl="10s"))
    for left, right, ttl in ((both[0], tm.from_arrow(times), "1s"), (both[0], both[1], 0)):
        with pytest.raises(tm.DataSetError, match="a positive ttl, for rows of two streams"):
            left.join(right, on="k", ttl=ttl)
    with pytest.raises(tm.DataSetError, match="ttl='soon' is not a duration"):
        both[0].join(both[1], on="k", ttl="soon")


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_joins_for_a_time_forget(how: Any, tmp_path: Path) -> None:
    """A checkpoint has the rows of some milliseconds, not of the whole stream; and a job that resumes from it finds
    their partners.
    """
    seen: list[dict[str, Any]] = []

    def side(seed: int) -> tm.DataSet:
        # It has no end.
        made = tm.stream.from_generator(20_000, keys=50, splits=1, step="1ms", seed=seed)
        return made.select("key", "number", "time", text=tm.lit("x" * 100))

    joined = side(1).join(side(2), on="key", how=how, ttl="20ms").select("key", "number")
    for wanted in (20_000, 40_000):
        joined.write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="50ms"),
            stop_when=lambda wanted=wanted: len(seen) > wanted,
        )
        # All rows of either side would be some megabytes.
        kept = [file.stat().st_size for file in (tmp_path / "c" / "state").rglob("*") if file.is_file()]
        assert sum(kept) < 1_000_000
    if how == "semi":
        numbers = [row["number"] for row in seen]
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("how", ["inner", "full"])
def test_rows_out_of_order(how: Any) -> None:
    left, right = left_table(jitter=40_000), right_table(jitter=40_000)

    def query(a: tm.DataSet, b: tm.DataSet) -> tm.DataSet:
        return a.join(b, on="k", how=how, where=WITHIN["after"]())

    expected = query(tm.from_arrow(left), tm.from_arrow(right)).to_pylist()
    streams = (stream(table, 31, max_out_of_orderness="41ms") for table in (left, right))
    same(written(query(*streams)), expected)


def test_a_side_that_is_far_behind() -> None:
    """Rows wait for partners that come much later, and by another worker's clock."""
    left, right = left_table(), right_table()
    query: Callable[[tm.DataSet, tm.DataSet], tm.DataSet] = lambda a, b: a.join(  # noqa: E731
        b, on="k", how="full", where=WITHIN["after"]()
    )
    expected = query(tm.from_arrow(left), tm.from_arrow(right)).to_pylist()
    same(written(query(stream(left, 3000), stream(right, 10, rows_per_s=3000))), expected)


def test_windows_of_two_streams() -> None:
    """Results of windows are joined by key and window, which says how long they must wait."""

    def counts(data: tm.DataSet, name: str) -> tm.DataSet:
        return data.group_by("k", tm.stream.window(tm.stream.tumbling("50ms"), on="at")).agg(**{name: tm.count()})

    def query(a: tm.DataSet, b: tm.DataSet, how: Any) -> tm.DataSet:
        return counts(a, "n").join(counts(b, "m"), on=["k", "window_start", "window_end"], how=how)

    left, right = left_table(), right_table()
    for how in ("inner", "left", "full"):
        expected = query(tm.from_arrow(left), tm.from_arrow(right), how).to_pylist()
        same(written(query(stream(left), stream(right), how)), expected)


def test_windows_after_a_join() -> None:
    """A joined row has an old time: the window waits for as long as a row may have been kept."""

    def query(a: tm.DataSet, b: tm.DataSet, on: str) -> tm.DataSet:
        pairs = a.join(b, on="k", where=WITHIN["around"]())
        return pairs.group_by(tm.stream.window(tm.stream.tumbling("20ms"), on=on)).agg(
            n=tm.count(), s=tm.col("a").sum()
        )

    left, right = left_table(), right_table()
    for on in ("at", "at_right"):
        expected = query(tm.from_arrow(left), tm.from_arrow(right), on).to_pylist()
        same(written(query(stream(left, 5), stream(right, 50), on)), expected)


@pytest.mark.parametrize(
    "window",
    [
        "tumble(ends, '20 milliseconds')",
        # Nothing bounds how far `at` may be before `ends`.
        "hop(behind(l.at, '70 milliseconds'), '25 milliseconds', '50 milliseconds')",
    ],
)
def test_windows_of_a_column_that_bounds_lead_to(window: str) -> None:
    """`ends` is at least `r.at`, which is at least `l.at`: so it tells time too, and need not be selected."""
    query = f"""
        select l.k, {window} as w, count(*) as n
        from l join r on l.k = r.k and r.at between l.at and l.ends
        group by l.k, w
    """
    left, right = left_table(), right_table()
    ends = [at * 1000 + (30 + at % 40) * 1000 for at in range(left.num_rows)]
    left = left.append_column("ends", pa.array(ends, pa.timestamp("us")))
    seen = written(tm.sql(query, l=stream(left, 5), r=stream(right, 50)))
    pairs = "select l.k, l.at, l.ends from l join r on l.k = r.k and r.at between l.at and l.ends"
    size, slide, on = (20_000, 20_000, "ends") if "ends" in window else (50_000, 25_000, "at")
    expected: Counter[tuple[str, int]] = Counter()
    for row in tm.sql(pairs, l=tm.from_arrow(left), r=tm.from_arrow(right)).to_pylist():
        time = (row[on] - START) // timedelta(microseconds=1)
        start = time // slide * slide
        while start + size > time:
            expected[row["k"], start] += 1
            start -= slide
    found = {(row["k"], (row["w"]["start"] - START) // timedelta(microseconds=1)): row["n"] for row in seen}
    assert len(seen) == len(found) > 20
    assert found == expected


def test_joins_without_a_bound() -> None:
    """Rows are kept forever, and every pair comes out."""

    def query(a: tm.DataSet, b: tm.DataSet, how: Any) -> tm.DataSet:
        return a.filter(tm.col("a") % 9 == 0).join(b.select("k", "b"), on="k", how=how, where=tm.col("b") > tm.col("a"))

    left, right = left_table(), right_table()
    for how in ("inner", "semi"):
        expected = query(tm.from_arrow(left), tm.from_arrow(right), how).to_pylist()
        same(written(query(stream(left), stream(right), how)), expected)


def test_a_join_in_sql() -> None:
    query = """
        select l.k, l.a, r.b from l join r on l.k = r.k and r.at between l.at and l.at + interval '50 milliseconds'
        where r.b % 3 = 0
    """
    left, right = left_table(), right_table()
    expected = tm.sql(query, l=tm.from_arrow(left), r=tm.from_arrow(right)).to_pylist()
    same(written(tm.sql(query, l=stream(left), r=stream(right))), expected)


def test_a_stream_with_itself() -> None:
    """Pairs of rows with the same key, the second up to ten milliseconds after the first."""

    def query(of: tm.DataSet) -> tm.DataSet:
        later = of.select("k", b=tm.col("a"), then=tm.col("at"))
        where = (tm.col("then") > tm.col("at")) & (tm.col("then") <= tm.col("at") + timedelta(milliseconds=10))
        return of.join(later, on="k", where=where)

    table = left_table()
    same(written(query(stream(table))), query(tm.from_arrow(table)).to_pylist())


BOUNDED = """
import datetime, sys
import pyarrow as pa, tidemill as tm
count = 500_000
times = pa.array(range(0, count * 1000, 1000), pa.timestamp("us"))
table = pa.table({"k": [at % 1000 for at in range(count)], "text": [f"{at:0100}" for at in range(count)], "at": times})
a, b = (tm.stream.from_table(table, time="at", rows_per_batch=1000, rows_per_s=300_000) for _ in range(2))
where = (tm.col("at_right") >= tm.col("at")) & (tm.col("at_right") <= tm.col("at") + datetime.timedelta(seconds=1))
if sys.argv[1] == "bounded":
    pairs = a.join(b, on="k", where=where & (tm.col("text_right") == tm.col("text")))
else:
    pairs = a.join(b, on="text")
seen = []
report = pairs.select("k").write_stream(lambda rows: seen.append(rows.num_rows))
print(report["spilled_bytes"] > 64 << 20, sum(seen))
"""


def test_what_a_join_keeps_is_bounded(tmp_path: Path) -> None:
    """Two hundred megabytes pass through a join that may keep 64: it evicts rows that will find no partner, or keeps
    rows on disk.
    """
    script = tmp_path / "bounded.py"
    script.write_text(BOUNDED)
    ran = launched.run("run", "-n", "1", script, "bounded", env={"TIDEMILL_MEMORY": "64MiB"})
    assert ran.stdout.split()[-1:] == [b"500000"], ran.stderr.decode()
    ran = launched.run("run", "-n", "1", script, "unbounded", env={"TIDEMILL_MEMORY": "64MiB"})
    assert ran.stdout.split()[-2:] == [b"True", b"500000"], ran.stderr.decode()


def test_distinct_rows() -> None:
    table = left_table(jitter=100_000)
    few = [{"k": row["k"], "m": row["a"] % 3} for row in table.to_pylist()]

    def query(of: tm.DataSet) -> tm.DataSet:
        return of.select("k", m=tm.col("a") % 3).distinct()

    seen = written(query(stream(table, max_out_of_orderness="1s")))
    same(seen, query(tm.from_arrow(table)).to_pylist())
    assert len(seen) == len({tuple(row.values()) for row in few})


def test_distinct_keys() -> None:
    """The first row of each key, whole, as soon as it arrives."""
    table = pa.concat_tables([left_table()] * 3)
    first = tm.stream.from_table(table, rows_per_batch=100).distinct("k")
    seen = written(first)
    rows = Counter(tuple(row.values()) for row in table.to_pylist())
    assert sorted(str(row["k"]) for row in seen) == sorted({str(key) for key in table["k"].to_pylist()})
    assert all(tuple(row.values()) in rows for row in seen)


def repeated(rows: int, keys: int) -> tm.DataSet:
    """Rows of some keys, a second apart, in a single order."""
    made = tm.stream.from_generator(rows=rows, keys=keys, splits=1, step="1s", seed=5)
    return made.select("key", "number", "time")


@pytest.mark.parametrize("ttl", [1, 10, 300])
def test_distinct_for_a_time(ttl: int, tmp_path: Path) -> None:
    """A row is given if and only if the last row given for its key is that far back, whatever arrived together, and
    also across a stop.
    """
    # So many keys that expired ones are evicted now and then.
    source, last, expected = repeated(60_000, 15_000), dict[int, int](), list[int]()
    for row in written(source):
        number = row["number"]
        if row["key"] not in last or number >= last[row["key"]] + ttl:
            last[row["key"]] = number
            expected.append(number)
    once = source.distinct("key", ttl=ttl)
    assert sorted(row["number"] for row in written(once)) == sorted(expected)
    lines = [json.dumps({**row, "time": str(row["time"])}) + "\n" for row in written(source)]
    file, seen = tmp_path / "rows.json", list[dict[str, Any]]()
    schema = {"key": "int64", "number": "int64", "time": "timestamp[us]"}
    # It stops somewhere in the first part, and the second is written after that.
    for part, at_end in ((lines[:45_000], False), (lines[45_000:], True)):
        with file.open("a") as more:
            more.writelines(part)
        grown = tm.stream.from_files(file, schema, time="time", stop_at_end=at_end).distinct("key", ttl=ttl)
        stop = None if at_end else lambda: len(seen) >= 14_000
        grown.write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"),
            stop_when=stop,
        )
        assert at_end or len(seen) < len(expected)
    assert sorted(row["number"] for row in seen) == sorted(expected)


def test_late_rows_of_distinct_for_a_time(tmp_path: Path) -> None:
    """A late row goes on if its key is no longer remembered at the stream's time, whenever the memory was last cleared;
    otherwise it does not.
    """
    file = tmp_path / "rows.json"
    schema = {"key": "str", "at": "timestamp[s]"}

    def add(*rows: tuple[str, int]) -> None:
        lines = [{"key": key, "at": str(START + second * SECOND)} for key, second in rows]
        with file.open("a") as more:
            more.writelines(json.dumps(line) + "\n" for line in lines)

    add(("a", 0), ("b", 100))
    stream = tm.stream.from_files(file, schema, time="at").distinct("key", ttl="10s")
    counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.count())
    seen: list[str] = []

    def take(table: tm.Table) -> None:
        for row in table.to_pylist():
            seen.append(row["key"])
            if row["key"] == "a":
                # The time is that of b: a is forgotten, b is remembered; and c lets the last window fire.
                add(("a", 5), ("b", 95), ("c", 200))

    with pytest.warns(tm.stream.LateRowsWarning):
        counts.write_stream(
            take, checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"), stop_when=lambda: "b" in seen
        )
    # Late for the window it reached.
    assert tm.last_report().late_rows == 1
    assert seen == ["a", "b"]


def test_rows_without_a_time_for_distinct() -> None:
    """They are dropped, and counted: nobody can say how much later they are."""
    seconds = [None, 0, None, 5, 20, None]
    table = tm.from_dict({"s": seconds}).select(a=tm.lit(1), s="s", at=tm.col("s").cast("timestamp[s]")).collect()
    once = tm.stream.from_table(table, time="at", rows_per_batch=100).distinct("a", ttl="10s")
    with pytest.warns(tm.stream.NoTimeWarning, match=r"3 rows had no time and were left out \(distinct \d+: 3\)"):
        seen = written(once)
    assert sorted(row["s"] for row in seen) == [0, 20]
    assert (tm.last_report().rows_without_time, tm.last_report().late_rows) == (3, 0)


def test_distinct_for_a_time_keeps_another_state(tmp_path: Path) -> None:
    """Keys kept forever have no times: a job with a ttl does not resume from such state."""
    # Without an end, so that it is not over before it is asked to stop.
    stream = tm.stream.from_generator(1000, keys=7, splits=1, step="1s")
    written(stream.distinct("key"), checkpoint=tmp_path / "c", stop_when=lambda: True)
    with pytest.raises(tm.DataSetError, match="it held distinct keys, but now holds distinct keys for a time"):
        written(stream.distinct("key", ttl="1h"), checkpoint=tmp_path / "c")


def test_distinct_rows_for_a_time() -> None:
    """By the rows' time, even if nothing else uses it; without one there is nothing to go by, and for a table it makes
    no sense.
    """
    twice = tm.from_dict({"a": [1, 1, 2, 1, 2], "s": [0, 5, 6, 20, 7]}).select("a", at=tm.col("s").cast("timestamp[s]"))
    once = tm.stream.from_table(twice.collect(), time="at", rows_per_batch=10).distinct("a", ttl="10s")
    assert sorted((row["at"].second, row["a"]) for row in written(once)) == [(0, 1), (6, 2), (20, 1)]
    assert sorted(row["a"] for row in written(once.select("a"))) == [1, 1, 2]
    with pytest.raises(tm.DataSetError, match=r"distinct with ttl= .* rows have no event time"):
        written(tm.stream.from_table(twice.collect()).distinct("a", ttl="10s"))
    with pytest.raises(tm.DataSetError, match="a positive ttl, for rows of streams"):
        twice.distinct("a", ttl="10s")
    with pytest.raises(tm.DataSetError, match="a positive ttl"):
        tm.stream.from_table(twice.collect(), time="at").distinct("a", ttl=0)
    with pytest.raises(tm.DataSetError, match="ttl='soon' is not a duration"):
        tm.stream.from_table(twice.collect(), time="at").distinct("a", ttl="soon")
    with pytest.raises(tm.DataSetError, match='no column "b"'):
        tm.stream.from_table(twice.collect(), time="at").distinct("b", ttl="1s")


def test_distinct_rows_with_their_time() -> None:
    """The time is part of the row, and says how long to remember it."""
    table = left_table(300)
    twice = pa.concat_tables([table, table]).sort_by("at")
    same(written(stream(twice).distinct()), table.to_pylist())


def test_the_first_of_each_window() -> None:
    """Rows are ranked when their window is complete."""
    query = """
        select window_start, k, n from (
            select *, row_number() over (partition by window_start order by n desc, k) as place from counts
        ) where place <= 3
    """

    def top(of: tm.DataSet) -> tm.DataSet:
        counts = of.group_by("k", tm.stream.window(tm.stream.tumbling("100ms"), on="at")).agg(n=tm.count())
        return tm.sql(query, counts=counts)

    table = left_table()
    same(written(top(stream(table))), top(tm.from_arrow(table)).to_pylist())


def test_results_of_windows_are_grouped_by_their_window() -> None:
    def query(of: tm.DataSet) -> tm.DataSet:
        counts = of.group_by("k", tm.stream.window(tm.stream.tumbling("50ms"), on="at")).agg(n=tm.count())
        best = counts.group_by("window_end").agg(most=tm.col("n").max(), keys=tm.count())
        return counts.join(best, on="window_end", where=tm.col("n") == tm.col("most")).select(
            "k", "n", "window_end", "keys"
        )

    table = left_table()
    same(written(query(stream(table))), query(tm.from_arrow(table)).to_pylist())


def test_what_streams_cannot_join() -> None:
    """Refused before anything runs, with a remedy."""
    left, right = stream(left_table(50)), stream(right_table(50))
    window = tm.stream.window(tm.stream.tumbling("1s"), on="at")
    for query, message in (
        (
            left.join(right, on="k", how="left"),
            "a Left join gives rows of the left side that have no match, but nothing says when",
        ),
        (left.join(right, on="k", how="anti"), "bound the time between matches, for example where="),
        (left.join(right, how="cross"), "not supported: on a stream"),
        (
            left.join(right, on="k").group_by(window).agg(n=tm.count()),
            "joins without a time bound",
        ),
        (
            tm.sql("select k, row_number() over (partition by k order by a) as n from t", t=left),
            "functions with over() whose keys do not tell when a group is complete; add one that does, such as window_end",
        ),
    ):
        with pytest.raises(tm.DataSetError) as error:
            query.write_stream(print)
        assert message in str(error.value)


def test_conditions_of_joins() -> None:
    """Also of tables: by the columns' names in the result."""
    a = tm.from_dict({"k": [1, 1, 2], "x": [1, 5, 9]})
    b = tm.from_dict({"k": [1, 2], "x": [3, 3], "y": [0, 1]})
    joined = a.join(b, on="k", how="left", where=tm.col("x") < tm.col("x_right")).sort("k", "x")
    assert [row["y"] for row in joined.to_pylist()] == [0, None, None]
    assert a.join(b, how="cross", where=tm.col("k") != tm.col("k_right")).count() == 3
    assert a.join(b, on="k", how="semi", where=tm.col("x") > tm.col("x_right")).sort("x").to_pylist() == [
        {"k": 1, "x": 5},
        {"k": 2, "x": 9},
    ]
    with pytest.raises(tm.DataSetError, match='no column "z"'):
        a.join(b, on="k", where=tm.col("z") > 1)
