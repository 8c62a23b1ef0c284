"""The origin of a stream's time: its rows, their statements about it, or the clock."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import warnings
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tidemill as tm

Row = dict[str, Any]


def written(stream: tm.DataSet, **options: Any) -> list[Row]:
    seen: list[Row] = []
    stream.write_stream(lambda table: seen.extend(table.to_pylist()), **options)
    return seen


def text(second: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat()


@pytest.mark.parametrize(
    ("length", "us"),
    [
        ("1m30s", 90_000_000),
        (0.25, 250_000),
        (np.int32(10_000), 10_000_000_000),
        (np.float32(0.5), 500_000),
        (np.timedelta64(3, "h"), 10_800_000_000),
        (np.timedelta64(7_000, "ns"), 7),
    ],
)
def test_durations(length: Any, us: int) -> None:
    assert tm.stream.tumbling(length).size == us


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (float("nan"), "not a duration"),
        (True, "not a duration"),
        (None, "not a duration"),
        (np.bool_(True), "not a duration"),
        (np.array([1, 2]), "not a duration"),
        (np.timedelta64("NaT"), "not a duration"),
        (np.timedelta64(1, "M"), "not a duration"),
        (float("inf"), "at most 50,000 years"),
        ("9999999999999d", "at most 50,000 years"),
        (f"{10**400}d", "at most 50,000 years"),
        (10**30, "at most 50,000 years"),
        (-1, "a duration must be 0 or more"),
        (timedelta(seconds=-1), "a duration must be 0 or more"),
    ],
)
def test_what_is_not_a_duration(length: Any, message: str) -> None:
    """The error names the argument."""
    with pytest.raises(tm.DataSetError, match=f"size=.*{message}"):
        tm.stream.tumbling(length)


def test_options_of_times() -> None:
    table = tm.from_dict({"at": [1]}).collect()
    for name in ("max_out_of_orderness", "idle_after"):
        with pytest.raises(tm.DataSetError, match=f"{name}=-5 is negative"):
            tm.stream.from_table(table, time=tm.stream.processing_time(), **{name: -5})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="time must be a column name"):
        tm.stream.from_table(table, time=5)  # type: ignore[arg-type]


def test_arrival_is_when_a_row_was_read() -> None:
    """Rows get an additional column that grows with the clock; windows over it contain each row once."""
    table = tm.from_dict({"n": list(range(40))}).collect()
    stream = tm.stream.from_table(table, time=tm.stream.processing_time(), rows_per_batch=1, rows_per_s=100)
    before = datetime.utcnow()
    rows = written(stream)
    after = datetime.utcnow()
    assert sorted(row["n"] for row in rows) == list(range(40))
    assert all(before - timedelta(seconds=1) < row["arrived"] < after + timedelta(seconds=1) for row in rows)
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("50ms"), on="arrived")).agg(rows=tm.count())
    with warnings.catch_warnings():
        warnings.simplefilter("error", tm.stream.LateRowsWarning)
        windows = written(counts)
    assert sum(row["rows"] for row in windows) == 40
    assert len(windows) > 1, "40 rows at 100 a second take longer than one window"
    starts = [row["window_start"] for row in windows]
    assert starts == sorted(starts) and len(set(starts)) == len(starts)


def test_the_clock_goes_on_without_rows(tmp_path: Path) -> None:
    """A window over arrival times gives its result while its source is silent, without waiting for the next row."""
    server = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def serve() -> None:
        with server.accept()[0] as client:
            client.sendall(b'{"n": 1}\n{"n": 2}\n')
            done.wait(120)

    thread = threading.Thread(target=serve)
    thread.start()
    stream = tm.stream.from_socket(
        "127.0.0.1",
        server.getsockname()[1],
        {"n": "int64"},
        time=tm.stream.processing_time("at"),
        max_out_of_orderness="0s",
    )
    rows: list[Row] = []
    sums = stream.group_by(tm.stream.window(tm.stream.tumbling("100ms"), on="at")).agg(n=tm.col("n").sum())
    sums.write_stream(
        lambda table: rows.extend(table.to_pylist()),
        checkpoint=tmp_path,
        stop_when=lambda: sum(row["n"] for row in rows) == 3,
    )
    done.set()
    thread.join()
    server.close()


def test_a_column_that_is_there_already() -> None:
    table = tm.from_dict({"arrived": [1]}).collect()
    with pytest.raises(tm.DataSetError, match="already exists"):
        tm.stream.from_table(table, time=tm.stream.processing_time())
    with pytest.raises(tm.DataSetError, match="is not a time"):
        tm.stream.from_table(table, time=tm.stream.punctuated_watermarks("arrived", watermark="arrived"))


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_say_how_far_time_is(tmp_path: Path, seed: int) -> None:
    """However far rows are out of order, none is late if their statements are true."""
    dice = random.Random(seed)
    seconds = list(range(600))
    for start in range(0, 600, 100):
        block = seconds[start : start + 100]
        dice.shuffle(block)
        seconds[start : start + 100] = block
    # The last row of each hundred knows that all of these have come.
    told = [at + 1 if at % 100 == 99 else None for at in range(600)]
    schema = {"s": "timestamp[s]", "told": "timestamp[s]"}
    rows = ({"s": text(at), "told": end and text(end)} for at, end in zip(seconds, told, strict=True))
    (tmp_path / "rows.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    stream = tm.stream.from_files(
        tmp_path / "rows.json", schema, time=tm.stream.punctuated_watermarks("s", watermark="told"), stop_at_end=True
    )
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="s")).agg(rows=tm.count())
    with warnings.catch_warnings():
        warnings.simplefilter("error", tm.stream.LateRowsWarning)
        seen = written(counts)
    assert Counter(row["rows"] for row in seen) == {10: 60}


def test_rows_that_come_together() -> None:
    """A row's statement applies to the rows after it, and a batch is not divided: all of its rows come before."""
    at = [0, 5, 9, *range(20, 60), 3]
    told = [None, None, 10, *[None] * 39, 60, None]
    rows = tm.from_dict({"at": at, "told": told})
    rows = rows.select(*(tm.col(name).cast("timestamp[s]") for name in ("at", "told")))
    stream = tm.stream.from_table(
        rows.collect(), time=tm.stream.punctuated_watermarks("at", watermark="told"), rows_per_batch=100
    )
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count())
    assert sum(row["rows"] for row in written(counts)) == len(at)


def test_clock_tells_between(tmp_path: Path) -> None:
    """A job over arrival times that stops and resumes has each row in one window."""
    table = tm.from_dict({"n": list(range(300))}).collect()
    stream = tm.stream.from_table(table, time=tm.stream.processing_time(), rows_per_batch=1, rows_per_s=300)
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("20ms"), on="arrived")).agg(rows=tm.count())
    begun = time.monotonic()
    options: dict[str, Any] = {"checkpoint": tm.stream.Checkpoint(tmp_path, interval="50ms")}
    seen = written(counts, stop_when=lambda: time.monotonic() > begun + 0.3, **options)
    seen += written(counts, **options)
    assert sum(row["rows"] for row in seen) == 300
    assert len({row["window_start"] for row in seen}) == len(seen)


def paced() -> tm.Table:
    """In the order of `at`, with other times: one that lags up to half an hour, and one that is much earlier."""
    n = tm.col("n")
    second = {"at": n * 10, "other": n * 10 - n * 7 % 1800, "before": n * 0}
    times = {name: of.cast("timestamp[s]").cast("timestamp[us]") for name, of in second.items()}
    return tm.from_dict({"n": list(range(1200))}).select("n", **times).collect()


def in_order(rows: tm.Table) -> tm.DataSet:
    return tm.stream.from_table(rows, time="at", rows_per_batch=10, rows_per_s=4000)


@pytest.mark.parametrize(
    "on",
    [
        tm.col("at").dt.truncate("hour"),
        tm.col("at").dt.truncate("month") + timedelta(hours=1),
        tm.col("at").cast("timestamp[us, UTC]").cast("date32"),
        tm.stream.bounded_delay("other", "30m"),
        tm.stream.bounded_delay("other", 1800).dt.truncate("minute"),
        tm.stream.bounded_delay(tm.col("before"), "1d"),
    ],
)
def test_windows_of_times_that_are_behind(on: tm.Expr) -> None:
    """Windows wait for rows whose time lags behind the stream's, as far as that is known or declared: none is late."""
    rows = paced()

    def count(data: tm.DataSet) -> tm.DataSet:
        return data.group_by(tm.stream.window(tm.stream.tumbling("10m"), on=on)).agg(n=tm.count())

    with warnings.catch_warnings():
        warnings.simplefilter("error", tm.stream.LateRowsWarning)
        found = written(count(in_order(rows)))
        assert sorted(found, key=str) == sorted(count(tm.from_arrow(rows)).to_pylist(), key=str)
        # The same if another step has computed the column.
        made = in_order(rows).with_columns(other=on).filter(tm.col("n") >= 0)
        counts = made.group_by(tm.stream.window(tm.stream.tumbling("10m"), on="other")).agg(n=tm.count())
        assert sorted(written(counts), key=str) == sorted(found, key=str)


@pytest.mark.parametrize(
    ("on", "named"),
    [
        (tm.col("other"), "a window of other:"),
        (tm.col("at").cast("timestamp[us, Asia/Tokyo]"), "a window of "),
        (tm.col("at").fill_null(tm.col("other")), "a window of "),
    ],
)
def test_windows_of_times_that_nobody_knows(on: tm.Expr, named: str) -> None:
    """Most of their rows would be late: they are refused, with the column and the remedy."""
    counts = in_order(paced()).group_by(tm.stream.window(tm.stream.tumbling("10m"), on=on)).agg(n=tm.count())
    with pytest.raises(tm.DataSetError, match=rf"{named}.*tm\.stream\.bounded_delay"):
        written(counts)
    with pytest.raises(tm.DataSetError, match=r"tm\.stream\.bounded_delay"):
        custom = tm.stream.custom_window(lambda times: (times, times))
        written(in_order(paced()).group_by(tm.stream.window(custom, on=on)).agg(n=tm.count()))


def test_times_that_functions_give_later() -> None:
    """What a timer returns an hour later is waited for as long as the program declares."""

    def later(key: Row, rows: list[Row], context: tm.stream.KeyContext) -> Row | None:
        if rows:
            context.state = rows[0]["at"]
            context.set_timer(context.state + timedelta(hours=1))
            return None
        return {"at": context.state}

    delayed = in_order(paced()).key_by("n").process(later, {"at": "timestamp[us]"})
    on = tm.stream.bounded_delay("at", "1h")
    found = written(delayed.group_by(tm.stream.window(tm.stream.tumbling("10m"), on=on)).agg(n=tm.count()))
    assert sum(row["n"] for row in found) == 1200 and len(found) == 20


def test_groups_of_cut_times() -> None:
    """A time truncated to hours tells when its group is complete, without a window."""
    hours = in_order(paced()).group_by(tm.col("at").dt.truncate("hour").alias("hour")).agg(n=tm.count())
    assert sorted(row["n"] for row in written(hours)) == [120, 360, 360, 360]
    bins = tm.sql("select date_bin('1 hour', at) h, count(*) n from rows group by 1", rows=in_order(paced()))
    assert sorted(row["n"] for row in written(bins)) == [120, 360, 360, 360]


def test_a_nanosecond_before_1970() -> None:
    """Rounded towards 1970, it would be in the next window."""
    rows = pa.table({"at": pa.array([-1_000_000_001, -1, 0], pa.timestamp("ns"))})
    stream = tm.stream.from_table(rows, time="at")
    found = written(stream.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="at")).agg(n=tm.count()))
    assert [(row["window_start"].second, row["n"]) for row in found] == [(58, 1), (59, 1), (0, 1)]


@pytest.mark.parametrize("now", ["now()", "current_timestamp", "current_time"])
def test_now_goes_on(now: str) -> None:
    """On a stream it is the current time, not when the job began: a filter of the last hour stays one."""
    rows = tm.stream.from_table(paced(), rows_per_batch=100, rows_per_s=4000)
    found = written(tm.sql(f"select n, {now} as t, current_date as d from rows where {now} is not null", rows=rows))
    times = [row["t"] for row in sorted(found, key=lambda row: row["n"])]
    assert len(times) == 1200 and len(set(times)) > 3
    assert {row["d"] for row in found} <= {datetime.now().date() + timedelta(days=days) for days in (-1, 0, 1)}
    one = tm.sql(f"select distinct {now} as t from rows", rows=tm.from_arrow(paced()))
    assert len(one.to_pylist()) == 1
