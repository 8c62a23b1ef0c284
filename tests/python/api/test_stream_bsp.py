"""Functions that all copies of a stream's task enter together: windows, collectives, states, and errors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tidemill as tm

Rows = list[dict[str, Any]]
SECOND = timedelta(seconds=1)
COUNTS = {"window_start": "timestamp[us]", "window_end": "timestamp[us]", "key": "int64", "n": "int64"}


def table(rows: int = 3000) -> pa.Table:
    """A hundred rows per second, slightly out of order, with a gap from the sixth to the ninth second."""
    at = [n * 10_000 + n * 7919 % 50_000 + (4_000_000 if n >= 600 else 0) for n in range(rows)]
    return pa.table(
        {"key": [n * n % 11 for n in range(rows)], "x": range(rows), "at": pa.array(at, pa.timestamp("us"))}
    )


def stream(of: Any, **options: Any) -> tm.DataSet:
    return tm.stream.from_table(
        of, time="at", max_out_of_orderness="60ms", rows_per_batch=options.pop("rows_per_batch", 70), **options
    )


def window(windows: tm.stream.Windows) -> tm.Expr:
    return tm.stream.window(windows, on="at")


def written(data: tm.DataSet, into: Rows | None = None, **options: Any) -> Rows:
    seen: Rows = [] if into is None else into
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return seen


def counted(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
    """Count the rows of each key over all copies; each copy returns some keys."""
    everyone = sum(comm.allgather(Counter(rows.to_dict()["key"])), Counter())
    bounds = {"window_start": context.window_start, "window_end": context.window_end}
    return [{**bounds, "key": key, "n": n} for key, n in everyone.items() if key % comm.size == comm.rank]


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["window_start"], row["key"]))


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize(
    "windows",
    [tm.stream.tumbling("1s"), tm.stream.sliding("2s", "700ms"), tm.stream.calendar_window("1d")],
    ids=["tumbling", "sliding", "calendar"],
)
def test_windows_are_those_of_group_by(windows: tm.stream.Windows, copies: int) -> None:
    """Each window with rows comes once, with all of its rows, wherever they are."""
    rows = table()
    expected = written(stream(rows).group_by("key", window(windows)).agg(n=tm.count()))
    for by in ((), "key"):
        made = stream(rows).bsp(counted, COUNTS, window=window(windows), by=by, parallelism=copies)
        assert in_order(written(made)) == in_order(expected)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_timer_calls_it_without_rows(copies: int) -> None:
    """Once, if it is not set again; of several copies the first timer counts; behind the last rows none does."""

    def called(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
        assert context.timer is None
        second = context.window_end.second  # type: ignore[union-attr]
        if second in (1, 10, 12, 21) and comm.rank == comm.size - 1:
            context.timer = context.window_end + timedelta(seconds=1.5)  # type: ignore[operator]
        elif second == 1 or second == 3:
            context.timer = context.window_end + 5 * SECOND  # type: ignore[operator]
        count = comm.allreduce(len(rows))
        return [{"end": context.window_end, "n": count}] if comm.rank == 0 else []

    of = pa.table({"x": [0, 1, 2], "at": pa.array([0, 9_000_000, 20_000_000], pa.timestamp("us"))})
    made = stream(of, rows_per_batch=1).bsp(
        called, {"end": "timestamp[us]", "n": "int64"}, window=window(tm.stream.tumbling("1s")), parallelism=copies
    )
    found = [(row["end"].second, row["n"]) for row in sorted(written(made), key=lambda row: row["end"])]
    assert found == [(1, 1), (3, 0), (9, 0), (10, 1), (12, 0), (14, 0), (21, 1)]


def test_a_timer_is_a_time_of_windows_of_time() -> None:
    def called(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None:
        context.timer = datetime(2020, 1, 1)

    rows = tm.stream.window(tm.stream.count_window(10))
    for options in ({}, {"window": rows}):
        with pytest.raises(tm.DataSetError, match=r"context\.timer is a time of windows of time"):
            written(stream(table(10)).bsp(called, {"x": "int64"}, **options))

    def wrong(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None:
        context.timer = 17  # type: ignore[assignment]

    with pytest.raises(tm.DataSetError, match=r"context\.timer takes a datetime, such as .*, not 17"):
        written(stream(table(10)).bsp(wrong, {"x": "int64"}, window=window(tm.stream.tumbling("1s"))))


def test_rows_of_a_key_are_at_one_copy_in_order_of_time() -> None:
    def looked_at(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
        at = rows.to_dict()["at"]
        assert at == sorted(at) and (context.copy, context.copies) == (comm.rank, comm.size)
        return [{"key": key, "rank": comm.rank} for key in set(rows.to_dict()["key"])]

    made = stream(table()).bsp(
        looked_at, {"key": "int64", "rank": "int64"}, window=window(tm.stream.tumbling("1s")), by="key", parallelism=3
    )
    ranks = {(row["key"], row["rank"]) for row in written(made)}
    assert len(ranks) == len({key for key, _ in ranks})


def test_a_state_goes_from_call_to_call() -> None:
    """Also for a copy without rows, which is called as often as the others."""

    def numbered(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> tm.Table:
        context.state = (context.state or 0) + 1
        assert set(comm.allgather(context.state)) == {context.state}
        n = np.array([context.state] if comm.rank == 0 else [], np.int64)
        return tm.Table.from_numpy({"call": n, "rows": n * 0 + len(rows)})

    one_key = stream(table(1000)).filter(tm.col("key") == 1)
    made = one_key.bsp(
        numbered,
        {"call": "int64", "rows": "int64"},
        window=window(tm.stream.tumbling("1s")),
        by="key",
        parallelism=4,
    )
    assert [row["call"] for row in written(made)] == list(range(1, 11))


def test_estimators_run_on_the_copies() -> None:
    """K-means of each window by all copies together equals that of the window by itself."""
    from tidemill.ml import KMeans, using

    def centers(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows | None:
        points = rows.to_numpy()["x"].reshape(-1, 1).astype(float)
        with using(comm):
            model = KMeans(n_clusters=2, init=np.array([[0.0], [9e9]]), n_init=1, max_iter=50).fit(points)
        return [{"low": float(model.cluster_centers_.min())}] if comm.rank == 0 else None

    rows = table(600)
    made = stream(rows).bsp(centers, {"low": "float64"}, window=window(tm.stream.tumbling("2s")), parallelism=2)
    seen = [row["low"] for row in written(made)]
    x, at = (rows[name].to_numpy().astype(int) for name in ("x", "at"))
    expected = []
    for start in range(0, 6_100_000, 2_000_000):
        points = x[(at >= start) & (at < start + 2_000_000)].reshape(-1, 1).astype(float)
        if len(points):
            model = KMeans(n_clusters=2, init=np.array([[0.0], [9e9]]), n_init=1, max_iter=50).fit(points)
            expected.append(float(model.cluster_centers_.min()))
    assert np.allclose(seen, expected)


def gated(rows: pa.Table, first: int, is_open: Callable[[], bool] = lambda: False) -> tm.DataSet:
    """The stream of a table, whose rows behind the first ones wait until it is open: whatever is to happen before they
    come has its time."""

    def read(split: str, position: int | None) -> Iterator[tuple[pa.Table, int] | None]:
        for start in range(position or 0, rows.num_rows, 70):
            while start >= first and not is_open():
                yield None
            yield rows.slice(start, 70), start + 70

    return tm.stream.from_function(
        read,
        rows.schema,
        time="at",
        max_out_of_orderness="60ms",
        idle_after="1h",
        poll_interval="10ms",
        name="table",
    )


def resumed(made: tm.DataSet, folder: Path, until: int, seen: Rows) -> None:
    """Write with a checkpoint, but stop when this many rows have been seen."""
    written(
        made,
        seen,
        checkpoint=tm.stream.Checkpoint(folder, interval="50ms"),
        stop_when=lambda: len(seen) >= until,
        name="resumed",
    )


@pytest.mark.parametrize("copies", [(2, 2), (2, 3), (3, 1)])
def test_states_are_merged_and_split(tmp_path: Path, copies: tuple[int, int]) -> None:
    """A job that resumes with other copies has all waiting rows, and the sum of all states."""

    def total(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows | None:
        context.state = (context.state or 0) + len(rows)
        rows_so_far = comm.allreduce(context.state)
        return [{"at": context.window_end, "rows": rows_so_far}] if comm.rank == 0 else None

    def split(whole: int, parts: int) -> list[int]:
        return [whole] + [0] * (parts - 1)

    seen: Rows = []
    for until, parallelism in zip((5, 10**9), copies, strict=True):
        made = gated(table(), 1200 if until == 5 else 3000).bsp(
            total,
            {"at": "timestamp[us]", "rows": "int64"},
            window=window(tm.stream.tumbling("1s")),
            merge=sum,
            split=split,
            parallelism=parallelism,
        )
        resumed(made, tmp_path, until, seen)
        assert until > 5 or 5 <= len(seen) < 20
    starts = written(stream(table()).group_by(window(tm.stream.tumbling("1s"))).agg(n=tm.count()))
    expected, rows = [], 0
    for row in sorted(starts, key=lambda row: row["window_end"]):
        rows += row["n"]
        expected.append({"at": row["window_end"], "rows": rows})
    assert seen == expected


def test_states_of_other_copies_need_a_merge(tmp_path: Path) -> None:
    def kept(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
        context.state = comm.rank
        return [{"x": 1}]

    seen: Rows = []
    options: dict[str, Any] = {"window": window(tm.stream.tumbling("1s"))}
    resumed(gated(table(), 1200).bsp(kept, {"x": "int64"}, parallelism=2, **options), tmp_path, 2, seen)
    with pytest.raises(tm.DataSetError, match="has the states of 2 copies, but there are 3 now; give bsp a merge="):
        resumed(gated(table(), 3000).bsp(kept, {"x": "int64"}, parallelism=3, **options), tmp_path, 10**9, seen)


def test_without_a_window_it_is_called_at_checkpoints(tmp_path: Path) -> None:
    """Each row is in one call, and all copies make the same calls."""

    def epoch(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows | None:
        assert context.window_start is None
        n = comm.allreduce(len(rows))
        return [{"n": n}] if comm.rank == 0 and n else None

    seen: Rows = []
    made = gated(table(), 1500, lambda: len(seen) > 0).bsp(epoch, {"n": "int64"}, parallelism=2)
    written(made, seen, checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"))
    assert sum(row["n"] for row in seen) == 3000 and len(seen) > 1
    assert written(stream(table()).bsp(epoch, {"n": "int64"}, parallelism=2)) == [{"n": 3000}]


def shared_out(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
    """Return the rows of a window of 64 over all copies, by the number of its first row."""
    assert comm.allreduce(len(rows)) == 64
    start, end = context.window_start, context.window_end
    assert isinstance(start, int) and isinstance(end, int) and end == start + 64
    context.state = (context.state or 0) + 1
    assert set(comm.allgather(context.state)) == {start // 64 + 1}
    return [{"start": start, "key": row["key"], "x": row["x"]} for row in rows.to_pylist()]


OF_ROWS: dict[str, Any] = {"window": tm.stream.window(tm.stream.count_window(64))}
SHARED = {"start": "int64", "key": "int64", "x": "int64"}


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("by", [(), "key"])
def test_windows_of_rows_have_their_number_of_all_copies(copies: int, by: Any) -> None:
    """Exactly this many, each row in one window, those of a key in order; rows after the last full window are in none."""
    # Batches may arrive in any order, but the rows of each keep theirs.
    given = stream(table(), rows_per_batch=5000 if by else 70)
    seen = written(given.bsp(shared_out, SHARED, by=by, parallelism=copies, **OF_ROWS))
    full = 3000 // 64 * 64
    assert Counter(row["start"] for row in seen) == dict.fromkeys(range(0, full, 64), 64)
    assert len({row["x"] for row in seen}) == full
    if by:
        for key in range(11):
            numbers = [row["x"] for row in sorted(seen, key=lambda row: row["start"]) if row["key"] == key]
            assert numbers == sorted(numbers)


def test_windows_of_rows_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    """Rows that are in no window yet are stored, also for another number of copies, and so is the count."""
    seen: Rows = []
    for until, copies in [(300, 2), (900, 3), (10**9, 1)]:
        made = gated(table(), min(until + 700, 3000)).bsp(
            shared_out, SHARED, parallelism=copies, merge=lambda states: states[0], **OF_ROWS
        )
        resumed(made, tmp_path, until, seen)
    full = 3000 // 64 * 64
    assert Counter(row["start"] for row in seen) == dict.fromkeys(range(0, full, 64), 64)
    assert len({row["x"] for row in seen}) == full


# --- following steps --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("size", ["1s", "700ms"])
def test_windows_follow_what_it_returns(copies: int, size: str) -> None:
    """Windows after it end like those after other windows, and none of its rows is late."""
    first = window(tm.stream.sliding("1400ms", size))
    instant = timedelta(microseconds=1)
    rows = table()
    counts = stream(rows).group_by("key", first).agg(n=tm.count())
    counts = counts.select("key", "n", end=tm.col("window_end") - instant)
    behind = tm.stream.window(tm.stream.tumbling("5s"), on="end")

    def ended(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
        time.sleep(0.002 * comm.rank)
        assert isinstance(context.window_end, datetime)
        return [{"end": context.window_end - instant, "n": row["n"]} for row in counted(comm, rows, context)]

    made = stream(rows).bsp(ended, {"n": "int64", "end": "timestamp[us]"}, window=first, time="end", parallelism=copies)
    seen, expected = (
        written(data.group_by(behind).agg(n=tm.col("n").sum(), rows=tm.count())) for data in (made, counts)
    )
    assert tm.last_report().late_rows == 0
    order = {"key": lambda row: row["window_start"]}
    assert sorted(seen, **order) == sorted(expected, **order) and len(seen) > 5


def test_windows_follow_an_all_reduce() -> None:
    sums = tm.stream.all_reduce(stream(table()), lambda rows, last: len(rows), every="1s", on="at", parallelism=2)
    tens = tm.stream.window(tm.stream.tumbling("10s"), on="window_end")
    seen = written(sums.group_by(tens).agg(n=tm.count()))
    assert [row["n"] for row in sorted(seen, key=lambda row: row["window_start"])] == [7, 9, 10, 6]
    rounds = tm.stream.all_reduce(
        stream(table()), lambda rows, last: len(rows), every=tm.stream.count_window(500), parallelism=3
    )
    expected = [{"round": n, "window_start": None, "window_end": None, "value": [500.0]} for n in range(6)]
    assert written(rounds) == expected


def test_rows_before_the_window_are_late_behind() -> None:
    """Rows whose time is before the end of the previous window."""

    def early(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows | None:
        assert isinstance(context.window_start, datetime)
        return [{"at": context.window_start - SECOND * 8}] if comm.rank == 0 else None

    made = stream(table()).bsp(
        early, {"at": "timestamp[us]"}, window=window(tm.stream.tumbling("4s")), time="at", parallelism=2
    )
    with pytest.warns(tm.stream.LateRowsWarning):
        written(made.group_by(window(tm.stream.tumbling("4s"))).agg(n=tm.count()))
    assert tm.last_report().late_rows > 0


@pytest.mark.parametrize("on_busy", ["drop", "latest"])
def test_windows_that_end_while_it_is_busy(on_busy: Any) -> None:
    """Some are dropped, the same on all copies, and counted; the last one of an ended stream is not."""

    def slow(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows | None:
        time.sleep(0.3)
        n = comm.allreduce(len(rows))
        return [{"end": context.window_end, "n": n}] if comm.rank == 0 else None

    made = stream(table()).bsp(
        slow,
        {"end": "timestamp[us]", "n": "int64"},
        window=window(tm.stream.tumbling("1s")),
        parallelism=2,
        on_busy=on_busy,
    )
    with pytest.warns(tm.stream.SkippedRowsWarning, match="of windows that ended while a step was busy") as warned:
        seen = written(made)
    ends = [row["end"] for row in seen]
    assert ends == sorted(set(ends)) and 1 <= len(ends) < 31
    assert on_busy == "drop" or ends[-1] == datetime(1970, 1, 1) + 35 * SECOND
    skipped = next(int(str(one.message).split()[0]) for one in warned if one.category is tm.stream.SkippedRowsWarning)
    assert skipped == 3000 - sum(row["n"] for row in seen)


def latest(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
    """The latest time of a call's rows, and how many there are."""
    at = comm.allreduce(max(rows.to_dict()["at"], default=datetime(1970, 1, 1)), op=max)
    count = comm.allreduce(len(rows))
    return [{"latest": at, "n": count}] if comm.rank == comm.size - 1 else []


@pytest.mark.parametrize("copies", [1, 3])
def test_windows_behind_windows_of_rows(copies: int) -> None:
    """Results have the latest time of their rows, which is never late, whichever copies the rows come to."""
    made = stream(table()).bsp(
        latest, {"latest": "timestamp[us]", "n": "int64"}, **OF_ROWS, time="latest", parallelism=copies
    )
    behind = made.group_by(tm.stream.window(tm.stream.tumbling("5s"), on="latest")).agg(n=tm.col("n").sum())
    seen = written(behind)
    assert sum(row["n"] for row in seen) == 3000 // 64 * 64
    assert tm.last_report().late_rows == 0
    assert sorted(row["window_end"].second for row in seen) == [5, 10, 15, 20, 25, 30, 35]


def test_windows_of_rows_that_have_no_time() -> None:
    rows = tm.stream.from_table(table(10)).bsp(nothing, {"at": "timestamp[us]"}, **OF_ROWS, time="at")
    with pytest.raises(tm.DataSetError, match="name a column in time= of the source, and keep it"):
        written(rows)


def nothing(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"schema": None},
            "nothing: bsp on a stream needs schema=, the names and types of the columns that it returns",
        ),
        ({"window": "10s"}, "nothing: window= takes a window of time, such as tm.stream.window"),
        ({"window": window(tm.stream.session("1s"))}, "bsp takes tumbling, sliding and calendar windows"),
        ({"window": tm.stream.window(tm.stream.count_window(9, 3))}, "bsp takes windows of rows one after the other"),
        ({**OF_ROWS, "on_busy": "latest"}, "on_busy= drops windows of time"),
        ({**OF_ROWS, "time": "x"}, 'time="x" must be a timestamp'),
        ({"time": "x"}, 'time="x" needs a window=: results of other calls may have any time'),
        ({"window": window(tm.stream.tumbling("1s")), "time": "x"}, 'time="x" must be a timestamp'),
        ({"window": window(tm.stream.tumbling("1s")), "time": "y"}, 'time="y" is not among the columns of schema=: x'),
        (
            {"window": tm.stream.window(tm.stream.tumbling("1s"), on="at", allowed_lateness="1s")},
            "leave out allowed_lateness= and early results",
        ),
        ({"window": tm.stream.window(tm.stream.tumbling("1s"), on="then")}, 'no column "then"'),
        ({"by": "other"}, 'no column "other"'),
        ({"parallelism": 0}, "parallelism=0 must be a positive integer"),
        ({"on_busy": "ignore"}, 'on_busy=\'ignore\' must be "wait", "drop" or "latest"'),
        ({"on_busy": "drop"}, "on_busy='drop' needs a window="),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    given = {"schema": {"x": "int64"}, **options}
    with pytest.raises(tm.DataSetError) as error:
        stream(table(10)).bsp(nothing, **given)
    assert words in str(error.value)


def test_tables_take_no_options_of_streams() -> None:
    with pytest.raises(tm.DataSetError, match="window= is for streams, and this is a table"):
        tm.from_arrow(table(10)).bsp(nothing, window=window(tm.stream.tumbling("1s")))
    with pytest.raises(tm.DataSetError, match="nothing runs inside a stream: run it with write_stream"):
        stream(table(10)).bsp(nothing, {"x": "int64"}, window=window(tm.stream.tumbling("1s"))).collect()


def test_functions_that_fail() -> None:
    """The failing function is named, also while others wait for it in a collective, or if copies make different calls."""

    def fails(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None:
        if comm.rank == 1:
            raise ValueError("no more")
        comm.allgather(1)

    def leaves(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None:
        if comm.rank == 0:
            comm.allreduce(1)

    def strange(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Rows:
        return [{"y": 1}]

    def unsaved(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None:
        context.state = lambda: 1

    second = window(tm.stream.tumbling("1s"))

    def run(function: Any, **options: Any) -> str:
        with pytest.raises(tm.DataSetError) as error:
            written(stream(table(500)).bsp(function, {"x": "int64"}, window=second, parallelism=2), **options)
        return str(error.value)

    assert "no more" in run(fails)
    said = run(leaves)
    assert "allgather" in said and "bsp " in said and "rank 1" in said
    assert "a row has the columns ['y'] but ['x'] were declared" in run(strange)


def test_a_state_that_cannot_be_saved(tmp_path: Path) -> None:
    def unsaved(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> None:
        context.state = lambda: 1

    made = stream(table(), rows_per_s=1500).bsp(unsaved, {"x": "int64"}, window=window(tm.stream.tumbling("1s")))
    with pytest.raises(tm.DataSetError, match="its state cannot be pickled"):
        written(made, checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"))
