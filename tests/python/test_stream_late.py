"""Rows that come too late: counted, or given to a sink of their own."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tidemill as tm

Row = dict[str, Any]


def shuffled(seed: int, rows: int = 300) -> tm.Table:
    """A row in each second, most of them far from their place."""
    dice = random.Random(seed)
    seconds = sorted(range(rows), key=lambda second: second + dice.uniform(0, 60))
    columns = {"s": seconds, "user": [dice.choice("abc") for _ in seconds], "n": list(range(rows))}
    return tm.from_dict(columns).select("user", "n", at=tm.col("s").cast("timestamp[s]")).collect()


def tens(times: pa.Array) -> tuple[Any, Any]:
    """Windows of ten seconds for all but the row of second 11."""
    at = times.cast(pa.int64())
    starts = pc.subtract(at, pc.subtract(at, pc.multiply(pc.divide(at, 10_000_000), 10_000_000)))
    ends = pc.add(starts, 10_000_000)
    starts = pc.if_else(pc.equal(at, 11_000_000), None, starts)
    return starts.cast(pa.timestamp("us")), ends.cast(pa.timestamp("us"))


def written(stream: tm.DataSet, late: bool) -> tuple[list[Row], list[Row]]:
    """What came of a stream, and what came too late."""
    seen: list[Row] = []
    left: list[Row] = []

    def late_rows(table: tm.Table) -> None:
        left.extend(table.to_pylist())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tm.stream.LateRowsWarning)
        stream.write_stream(lambda table: seen.extend(table.to_pylist()), late_to=late_rows if late else None)
    return seen, left


@pytest.mark.parametrize("by", [[], ["user"]])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_in_a_window_or_late(by: list[str], late: bool, seed: int) -> None:
    """However far rows are from their place, what is not in a result has come too late, and is counted or given."""
    table = shuffled(seed)
    stream = tm.stream.from_table(table, time="at", out_of_order="5s", rows_per_batch=1, rows_per_s=800)
    seen, left = written(stream.group_by(*by, tm.window(tm.tumbling("10s"), on="at")).agg(rows=tm.count()), late)
    counted = tm.stream.late_rows()
    assert sum(row["rows"] for row in seen) + len(left) + counted == table.num_rows
    assert counted == 0 if late else counted > 0
    if not late:
        return
    assert left, "the test is of late rows"
    assert set(left[0]) == {"user", "n", "at"}, "all columns, also those that the query does not use"
    numbers = {row["n"] for row in left}
    rest = tm.from_arrow(table).filter(~tm.col("n").is_in(sorted(numbers)))
    plain = rest.group_by(*by, tm.window(tm.tumbling("10s"), on="at")).agg(rows=tm.count()).to_pylist()
    assert Counter(map(str, seen)) == Counter(map(str, plain))


@pytest.mark.parametrize("windows", [tm.sliding("20s", "5s"), tm.stream.session("3s")])
@pytest.mark.parametrize("late", [False, True])
def test_windows_of_each_kind(windows: tm.stream.Windows, late: bool) -> None:
    """A row that comes too late for its last window, or whose session is over, is in none; others are in all that are not over."""
    table = shuffled(7)
    stream = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=800)
    counts = stream.group_by("user", tm.window(windows, on="at")).agg(low=tm.col("n").min(), rows=tm.count())
    seen, left = written(counts, late)
    if windows.kind == "session":
        assert sum(row["rows"] for row in seen) + len(left) + tm.stream.late_rows() == table.num_rows
        keys = Counter((row["user"], row["window_start"]) for row in seen)
        assert max(keys.values()) == 1, "no late row has brought a session again"
    else:
        in_some = sum(row["rows"] for row in seen)
        assert in_some <= 4 * (table.num_rows - len(left) - tm.stream.late_rows())
    assert len(left) + tm.stream.late_rows() > 0


def test_they_are_told_of() -> None:
    """A warning at the end says how many, and for which step."""
    table = shuffled(1)
    stream = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=800)
    counts = stream.group_by(tm.window(tm.tumbling("10s"), on="at")).agg(rows=tm.count())
    with pytest.warns(tm.stream.LateRowsWarning, match=r"rows came too late and were left out \(window \d+: \d+\)"):
        counts.write_stream(lambda _: None)
    in_order = tm.from_arrow(table).sort("at").collect()
    stream = tm.stream.from_table(in_order, time="at", rows_per_batch=1, rows_per_s=800)
    counts = stream.group_by(tm.window(tm.tumbling("10s"), on="at")).agg(rows=tm.count())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts.write_stream(lambda _: None)
    assert tm.stream.late_rows() == 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("windows", [tm.tumbling("10s"), tm.stream.session("3s"), tm.stream.custom(tens)])
def test_rows_without_a_time(windows: tm.stream.Windows, late: bool) -> None:
    """They are in no window, and told of apart from late ones; a function's null is no such row."""
    seconds = [0, None, 1, 2, None, None, 11, 23]
    table = tm.from_dict({"s": seconds}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at", out_of_order="1h", rows_per_batch=3)
    seen: list[Row] = []
    counts = stream.group_by(tm.window(windows, on="at")).agg(n=tm.count())
    with pytest.warns(tm.stream.NoTimeWarning, match=r"3 rows had no time and were left out \(window \d+: 3\)"):
        counts.write_stream(lambda rows: seen.extend(rows.to_pylist()), late_to=(lambda _: None) if late else None)
    assert (tm.stream.rows_without_time(), tm.stream.late_rows()) == (3, 0)
    assert sum(row["n"] for row in seen) == (4 if windows.kind == "custom" else 5)


def test_rows_that_are_late_for_joins() -> None:
    """Those are counted, too."""
    table = shuffled(2)
    left = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=800)
    right = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=800, name="again")
    where = (tm.col("at_right") >= tm.col("at")) & (tm.col("at_right") <= tm.col("at") + timedelta(seconds=1))
    with pytest.warns(tm.stream.LateRowsWarning, match=r"join \d+ left: \d+, join \d+ right: \d+"):
        left.join(right, on="user", where=where).write_stream(lambda _: None)


def test_rows_of_sql() -> None:
    """The window's name stays what it was."""
    table = shuffled(3)
    stream = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=800)
    query = "select w['start'] as begin, n from (select hop(at, '5 seconds', '10 seconds') as w, count(*) as n from rows group by w)"
    seen, left = written(tm.sql(query, rows=stream), True)
    assert seen and left
    assert set(seen[0]) == {"begin", "n"} and set(left[0]) == {"user", "n", "at"}


def test_a_sink_of_files(tmp_path: Path) -> None:
    """Sinks of the engine learn what late rows are when the query is planned, and commit with the checkpoint."""
    table = shuffled(4)
    stream = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=800)
    counts = stream.group_by("user", tm.window(tm.tumbling("10s"), on="at")).agg(rows=tm.count())
    counts.write_stream(
        tm.stream.to_files(tmp_path / "counts"),
        late_to=tm.stream.to_files(tmp_path / "late"),
        checkpoint=tmp_path / "checkpoints",
        guarantee="exactly once",
    )

    def rows(folder: str) -> list[Row]:
        files = [
            file for file in (tmp_path / folder).iterdir() if not file.name.startswith((".", "_")) and file.is_file()
        ]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    assert sum(row["rows"] for row in rows("counts")) + len(rows("late")) == table.num_rows
    assert {"user", "n", "at"} == set(rows("late")[0])


def refused(stream: tm.DataSet, **options: Any) -> str:
    with pytest.raises(tm.DataSetError) as raised:
        stream.write_stream(lambda _: None, late_to=lambda _: None, **options)
    return str(raised.value)


def test_what_cannot_be(tmp_path: Path) -> None:
    """A query without windows has no late rows, and those of several windows must be of one kind."""
    stream = tm.stream.from_table(shuffled(5), time="at")
    assert "the query has none" in refused(stream)

    def counts(rows: tm.DataSet) -> tm.DataSet:
        return rows.group_by(tm.window(tm.tumbling("10s"), on="at")).agg(rows=tm.count())

    assert "give them the same columns" in refused(counts(stream).union(counts(stream.drop("user"))))
    message = refused(counts(stream), guarantee="exactly once", checkpoint=tmp_path)
    assert "gives at least once" in message
