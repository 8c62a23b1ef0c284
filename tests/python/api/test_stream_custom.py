"""Windows from a function of the program: equal to built-in ones if it computes these, and others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tidemill as tm

SECOND = timedelta(seconds=1)


def rows(count: int = 4000) -> tm.Table:
    """Two hundred rows per second, somewhat out of order."""
    at = [1000 * (5 * row + row * 7919 % 50) for row in range(count)]
    keys = [row * row % 97 % 5 for row in range(count)]
    table = pa.table({"at": pa.array(at, pa.timestamp("us")), "key": keys, "row": range(count)})
    return tm.from_arrow(table).collect()


def tens(times: pa.Array) -> tuple[Any, Any]:
    """Tumbling windows of ten seconds."""
    starts = pc.floor_temporal(times, 10, "second")
    return starts, pc.add(starts, pa.scalar(10 * SECOND))


def overlapping(times: pa.Array) -> tuple[Any, Any]:
    """Sliding windows of ten seconds, one every five, as lists."""
    at = times.cast(pa.int64()).to_numpy(zero_copy_only=False)
    last = at - at % 5_000_000
    starts = np.stack([last, last - 5_000_000], axis=1)
    offsets = np.arange(0, starts.size + 1, 2)

    def lists(values: Any) -> pa.ListArray:
        return pa.ListArray.from_arrays(offsets, pa.array(values.ravel(), pa.timestamp("us")))

    return lists(starts), lists(starts + 10_000_000)


def stream(table: tm.Table, **options: Any) -> tm.DataSet:
    return tm.stream.from_table(table, time="at", max_out_of_orderness="50ms", rows_per_batch=100, **options)


def seen(data: tm.DataSet, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    data.write_stream(lambda table: found.extend(table.to_pylist()), **options)
    return found


def counts(data: tm.DataSet, windows: tm.stream.Windows, *keys: str, **options: Any) -> tm.DataSet:
    aggregates = {"n": tm.count(), "s": tm.col("row").sum()}
    return data.group_by(*keys, tm.stream.window(windows, on="at", **options)).agg(**aggregates)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    def sort(found: list[dict[str, Any]]) -> list[Any]:
        return sorted(tuple(row.items()) for row in found)

    assert sort(one) == sort(other)


@pytest.mark.parametrize("keys", [(), ("key",)])
@pytest.mark.parametrize(
    ("assign", "windows"), [(tens, tm.stream.tumbling("10s")), (overlapping, tm.stream.sliding("10s", "5s"))]
)
def test_as_the_engine_has_them(assign: Callable[..., Any], windows: tm.stream.Windows, keys: tuple[str, ...]) -> None:
    """Columns, their order and their values are those of the same windows of the engine."""
    table = rows()
    found = counts(stream(table), tm.stream.custom_window(assign), *keys)
    expected = counts(stream(table), windows, *keys)
    assert found.columns == expected.columns
    same(seen(found), seen(expected))


def test_over_a_table() -> None:
    table = rows()
    found = counts(tm.from_arrow(table), tm.stream.custom_window(tens), "key").to_pylist()
    same(found, seen(counts(stream(table), tm.stream.tumbling("10s"), "key")))


def test_windows_by_columns() -> None:
    """Each key has windows of another length, one has none at all, and none waits for the longest."""

    def by_key(times: pa.Array, keys: pa.Array) -> tuple[Any, Any]:
        at, key = times.cast(pa.int64()).to_numpy(), keys.to_numpy(zero_copy_only=False)
        starts = at - at % (1_000_000 * np.maximum(key, 1))
        none = key == 0
        return (
            pa.array(starts, pa.timestamp("us"), mask=none),
            pa.array(starts + 1_000_000 * key, pa.timestamp("us"), mask=none),
        )

    table = rows()
    found = seen(counts(stream(table), tm.stream.custom_window(by_key, columns="key"), "key"))
    expected: Counter[tuple[int, datetime]] = Counter()
    for row in table.to_pylist():
        if row["key"]:
            since = (row["at"] - datetime(1970, 1, 1)) // SECOND
            expected[row["key"], datetime(1970, 1, 1) + (since - since % row["key"]) * SECOND] += 1
    assert {(row["key"], row["window_start"]): row["n"] for row in found} == expected
    assert all(row["window_end"] - row["window_start"] == row["key"] * SECOND for row in found)


def test_a_window_that_is_given_twice() -> None:
    """A row that is assigned to a window twice is in it once."""

    def twice(times: pa.Array) -> tuple[Any, Any]:
        starts, ends = (array.to_pylist() for array in tens(times))
        return (
            pa.array([[at, at] for at in starts], pa.list_(pa.timestamp("us"))),
            pa.array([[at, at] for at in ends], pa.list_(pa.timestamp("us"))),
        )

    table = rows()
    same(
        seen(counts(stream(table), tm.stream.custom_window(twice))),
        seen(counts(stream(table), tm.stream.tumbling("10s"))),
    )


def test_a_key_in_a_list() -> None:
    """It was mistaken for a column of times."""
    table = rows()
    windows = tm.stream.window(tm.stream.custom_window(tens), on="at")
    found = stream(table).group_by(["key", windows]).agg(n=tm.count(), s=tm.col("row").sum())
    same(seen(found), seen(counts(stream(table), tm.stream.tumbling("10s"), "key")))


@pytest.mark.filterwarnings("ignore::tidemill.stream.LateRowsWarning")
def test_late_rows_and_early_results() -> None:
    """Rows are late when their window has ended; with `allowed_lateness=`, its result is corrected, and with
    `emit_early_every=`, there are earlier ones.
    """
    seconds = [*range(4), *range(12, 28), 5, 28]
    table = tm.from_dict({"s": seconds}).select(at=tm.col("s").cast("timestamp[s]"), row="s").collect()

    def written(**options: Any) -> list[tuple[int, int]]:
        data = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=40)
        found = seen(counts(data, tm.stream.custom_window(tens), **options))
        return [(row["window_start"].second, row["n"]) for row in found]

    assert written() == [(0, 4), (10, 8), (20, 9)]
    assert tm.last_report().late_rows == 1
    # When the late row is counted is independent of the last window, which ends with the stream.
    again = written(allowed_lateness="1h")
    assert sorted(again) == [(0, 4), (0, 5), (10, 8), (20, 9)] and again.index((0, 4)) < again.index((0, 5))
    data = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=40)
    found = seen(counts(data, tm.stream.custom_window(tens), emit_early_every="20ms"))
    assert any(not row["window_final"] for row in found)
    assert [(row["window_start"].second, row["n"]) for row in found if row["window_final"]] == [
        (0, 4),
        (10, 8),
        (20, 9),
    ]
    late: list[dict[str, Any]] = []
    data = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=40)
    seen(counts(data, tm.stream.custom_window(tens)), late_output=lambda rows: late.extend(rows.to_pylist()))
    assert [(row["row"], row["window_end"].second) for row in late] == [(5, 10)]


def test_results_are_a_stream() -> None:
    """Windows over results of custom windows: their ends give the time."""
    tens_of_keys = counts(stream(rows()), tm.stream.custom_window(tens), "key")
    timed = tens_of_keys.select("n", at=tm.col("window_end") - timedelta(microseconds=1))
    total = timed.group_by(tm.stream.window(tm.stream.tumbling("1d"), on="at")).agg(n=tm.col("n").sum())
    assert [row["n"] for row in seen(total)] == [4000]


@pytest.mark.parametrize(
    ("assign", "message"),
    [
        (lambda times: times, "not a tuple of starts and ends"),
        (lambda times: (times[:3], times[:3]), r"3 starts for \d+ rows"),
        (lambda times: (times, times), "to the window from .* to .*, which does not contain it"),
        (lambda times: (times.cast(pa.int64()), times), "starts and ends of windows must be timestamps"),
        (lambda times: (times, pa.array([[at] for at in times])), "both must be times, or lists of times"),
        (lambda times: (times, pa.nulls(len(times), times.type)), "null as the end of a window from 1970-01-01"),
        (lambda times: 1 / 0, "division by zero"),
    ],
)
def test_what_functions_do_wrong(assign: Callable[..., Any], message: str) -> None:
    with pytest.raises(tm.DataSetError, match=message):
        seen(counts(stream(rows(500)), tm.stream.custom_window(assign)))


def test_what_is_asked_wrong() -> None:
    data = stream(rows(10))
    with pytest.raises(TypeError, match="custom_window takes a function"):
        tm.stream.custom_window("10s")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="custom: no column 'kez'; there are at, key, row"):
        counts(data, tm.stream.custom_window(tens, columns="kez"))
    with pytest.raises(tm.DataSetError, match="column 'window_end' already exists"):
        counts(data.with_columns(window_end=tm.lit(1)), tm.stream.custom_window(tens))
    with pytest.raises(tm.DataSetError, match="rename the result's columns"):
        tm.stream.window(tm.stream.custom_window(tens), on="at").alias("w")
    with pytest.raises(tm.DataSetError, match="group_by has one window"):
        window = tm.stream.window(tm.stream.custom_window(tens), on="at")
        data.group_by(window, window).agg(n=tm.count())
    with pytest.raises(tm.DataSetError, match="a window adds a column 'window_start'"):
        data.group_by(tm.stream.window(tm.stream.custom_window(tens), on="at")).agg(window_start=tm.count())
