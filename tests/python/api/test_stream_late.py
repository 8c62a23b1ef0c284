"""Late rows: counted, or written to a separate sink.

Which rows are late does not depend on speed: late rows are sent when there are results that require a later time.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import launched
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tidemill as tm

Row = dict[str, Any]

SCHEMA = {"user": "str", "n": "int64", "at": "timestamp[s]"}
START, SECOND = datetime(1970, 1, 1), timedelta(seconds=1)
ROUNDS, ROUND_S = 6, 30
#: One per second. Its number is its second.
ROWS = ROUNDS * ROUND_S


def user(second: int) -> str:
    """Rows of a user come in pairs, five seconds apart; in six seconds, each user has one."""
    return "abc"[second // 2 % 3]


def row(second: int) -> Row:
    return {"user": user(second), "n": second, "at": START + timedelta(seconds=second)}


def rounds(seed: int, out_of_order_s: int = 0) -> list[list[int]]:
    """Return the seconds of rows that are sent together.

    Rows that are one or two rounds late are at the beginning of a round, so that time is still that of the end of the
    previous round. The others of a round are in order, except for `out_of_order_s`. In the first six seconds of ten,
    all rows are on time, so every window that has ended has a result for each user.
    """
    dice = random.Random(seed)
    late: list[list[int]] = [[] for _ in range(ROUNDS)]
    made = []
    for number in range(ROUNDS):
        come = []
        for second in range(number * ROUND_S, (number + 1) * ROUND_S):
            can_wait = second % 10 >= 6 and second % ROUND_S < 20 and number + 2 < ROUNDS
            if can_wait and dice.random() < 0.7:
                late[number + dice.randint(1, 2)].append(second)
            else:
                come.append(second)
        come.sort(key=lambda second: second + dice.uniform(0, out_of_order_s))
        made.append(late[number] + come)
    return made


def tens(times: pa.Array) -> tuple[Any, Any]:
    """Windows of ten seconds for all rows except that of second 11."""
    at = times.cast(pa.int64())
    starts = pc.subtract(at, pc.subtract(at, pc.multiply(pc.divide(at, 10_000_000), 10_000_000)))
    ends = pc.add(starts, 10_000_000)
    starts = pc.if_else(pc.equal(at, 11_000_000), None, starts)
    return starts.cast(pa.timestamp("us")), ends.cast(pa.timestamp("us"))


class Expected(NamedTuple):
    """The expected results of rounds."""

    #: The rows of each window, by user and start.
    windows: dict[tuple[str | None, int], list[int]]
    late: list[int]
    #: The number of results after each round.
    results: list[int]


def in_windows(
    sent: list[list[int]], size: int, slide: int, *, by_user: bool = True, out_of_order_s: int = 0
) -> Expected:
    found = Expected({}, [], [])
    time = -size
    for seconds in sent:
        for second in seconds:
            starts = range(second - second % slide, second - size, -slide)
            open_ = [start for start in starts if start + size > time]
            for start in open_:
                found.windows.setdefault((user(second) if by_user else None, start), []).append(second)
            if not open_:
                found.late.append(second)
        time = max(seconds) - out_of_order_s
        found.results.append(sum(start + size <= time for _, start in found.windows))
    return found


def in_sessions(sent: list[list[int]], gap: int) -> Expected:
    """A gap between one and five seconds: a pair is a session, which has ended when late rows come."""
    found = Expected({}, [], [])
    of_pair: dict[int, list[int]] = {}
    for number, seconds in enumerate(sent):
        for second in sorted(seconds):
            if second // ROUND_S == number:
                of_pair.setdefault(second // 2, []).append(second)
            else:
                found.late.append(second)
        found.results.append(sum(pair[-1] + gap <= max(seconds) for pair in of_pair.values()))
    found.windows.update(((user(pair[0]), pair[0]), pair) for pair in of_pair.values())
    return found


def table(seconds: Iterable[int]) -> tm.Table:
    columns = {"user": [user(second) for second in seconds], "n": list(seconds)}
    return tm.from_dict(columns).select("user", "n", at=tm.col("n").cast("timestamp[s]")).collect()


def send(give: Callable[[bytes], None], sent: list[list[int]], results: list[int], seen: list[Row]) -> None:
    """Send the rows of each round when the results of the previous rounds have arrived."""
    for seconds, count in zip(sent, [0, *results], strict=False):
        launched.wait_until(lambda count=count: len(seen) >= count, f"{count} results")  # type: ignore[misc]
        give("".join(json.dumps(row(second), default=str) + "\n" for second in seconds).encode())


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Run work in a thread; its failure fails the test."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failed, failed[0]


@contextmanager
def served(
    sent: list[list[int]], results: list[int], seen: list[Row], *, out_of_order_s: int = 0
) -> Iterator[tm.DataSet]:
    """A stream of the lines of a server, which sends them like `send`, and then ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(launched.PATIENCE_S)

        def work() -> None:
            connection, _ = listener.accept()
            with connection:
                send(connection.sendall, sent, results, seen)

        with beside(work):
            port = listener.getsockname()[1]
            times: Any = {"time": "at", "max_out_of_orderness": out_of_order_s, "idle_after": "1h"}
            yield tm.stream.from_socket("127.0.0.1", port, SCHEMA, stop_at_end=True, **times)


def written(stream: tm.DataSet, seen: list[Row], late: bool) -> list[Row]:
    """Add the results of a stream to `seen`; return the late rows."""
    left: list[Row] = []

    def late_rows(table: tm.Table) -> None:
        left.extend(table.to_pylist())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tm.stream.LateRowsWarning)
        stream.write_stream(lambda table: seen.extend(table.to_pylist()), late_output=late_rows if late else None)
    return left


def check(expected: Expected, seen: list[Row], left: list[Row], late: bool) -> None:
    """Check that every window has exactly the rows that are not late, and that late rows are written, or counted."""
    assert expected.late, "the test is of late rows"
    found = Counter((row.get("user"), (row["window_start"] - START) // SECOND, row["rows"]) for row in seen)
    assert found == Counter((*window, len(rows)) for window, rows in expected.windows.items())
    assert sorted(row["n"] for row in left) == (sorted(expected.late) if late else [])
    assert tm.last_report().late_rows == (0 if late else len(expected.late))


@pytest.mark.parametrize("by", [[], ["user"]])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_in_a_window_or_late(by: list[str], late: bool, seed: int) -> None:
    """However far rows are out of order, those that are in no result are late, and are counted or written."""
    sent = rounds(seed, 5)
    expected = in_windows(sent, 10, 10, by_user=bool(by), out_of_order_s=5)
    seen: list[Row] = []
    with served(sent, expected.results, seen, out_of_order_s=5) as stream:
        counts = stream.group_by(*by, tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count())
        left = written(counts, seen, late)
    check(expected, seen, left, late)
    if not late:
        return
    assert set(left[0]) == {"user", "n", "at"}, "all columns, also those that the query does not use"
    rest = tm.from_arrow(table(sorted(set(range(ROWS)) - set(expected.late))))
    plain = rest.group_by(*by, tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count()).to_pylist()
    assert Counter(map(str, seen)) == Counter(map(str, plain))


@pytest.mark.parametrize(
    "windows", [tm.stream.sliding("20s", "5s"), tm.stream.sliding("20s", "1s"), tm.stream.session("3s")]
)
@pytest.mark.parametrize("late", [False, True])
def test_windows_of_each_kind(windows: tm.stream.Windows, late: bool) -> None:
    """A row that is too late for its last window, or whose session has ended, is in none; others are in all open
    windows.
    """
    sent = rounds(7)
    slide = windows.slide // 1_000_000
    expected = in_sessions(sent, 3) if windows.kind == "session" else in_windows(sent, 20, slide)
    seen: list[Row] = []
    with served(sent, expected.results, seen) as stream:
        counts = stream.group_by("user", tm.stream.window(windows, on="at")).agg(low=tm.col("n").min(), rows=tm.count())
        left = written(counts, seen, late)
    check(expected, seen, left, late)
    if windows.kind == "sliding":
        in_some = sum(len(rows) for rows in expected.windows.values())
        assert in_some < 20 // slide * (ROWS - len(expected.late)), "the test is of rows that are late for some windows"
    lows = Counter(row["low"] for row in seen)
    assert lows == Counter(min(rows) for rows in expected.windows.values())


def test_they_are_told_of() -> None:
    """A warning at the end gives their number for each step."""
    sent = rounds(1)
    expected = in_windows(sent, 10, 10, by_user=False)
    count = len(expected.late)
    assert count > 1
    said = rf"^{count} rows came too late and were left out \(window \d+: {count}\)"
    seen: list[Row] = []
    with served(sent, expected.results, seen) as stream, pytest.warns(tm.stream.LateRowsWarning, match=said):
        counts = stream.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count())
        counts.write_stream(lambda table: seen.extend(table.to_pylist()))
    stream = tm.stream.from_table(table(range(ROWS)), time="at", rows_per_batch=1)
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts.write_stream(lambda _: None)
    assert tm.last_report().late_rows == 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("windows", [tm.stream.tumbling("10s"), tm.stream.session("3s"), tm.stream.custom_window(tens)])
def test_rows_without_a_time(windows: tm.stream.Windows, late: bool) -> None:
    """They are in no window, and reported separately from late ones; a null in the result of a function is not such a
    row.
    """
    seconds = [0, None, 1, 2, None, None, 11, 23]
    table = tm.from_dict({"s": seconds}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="1h", rows_per_batch=3)
    seen: list[Row] = []
    counts = stream.group_by(tm.stream.window(windows, on="at")).agg(n=tm.count())
    with pytest.warns(tm.stream.NoTimeWarning, match=r"3 rows had no time and were left out \(window \d+: 3\)"):
        counts.write_stream(lambda rows: seen.extend(rows.to_pylist()), late_output=(lambda _: None) if late else None)
    assert (tm.last_report().rows_without_time, tm.last_report().late_rows) == (3, 0)
    assert sum(row["n"] for row in seen) == (4 if windows.kind == "custom" else 5)


def test_rows_that_are_late_for_joins() -> None:
    """Those are counted, too."""
    seen: list[Row] = []
    # Two pairs, and a row without a partner, which is emitted when the time of both sides has passed it.
    sides = [[0, 50, 100], [10, 20]], [[0, 100], [10]]
    where = (tm.col("at_right") >= tm.col("at")) & (tm.col("at_right") <= tm.col("at") + timedelta(seconds=1))
    with served(sides[0], [3], seen) as left, served(sides[1], [3], seen) as right:
        joined = left.join(right, on="user", how="left", where=where)
        with pytest.warns(tm.stream.LateRowsWarning, match=r"join \d+ left: 2, join \d+ right: 1\b"):
            joined.write_stream(lambda table: seen.extend(table.to_pylist()))
    assert sorted(row["n"] for row in seen) == [0, 50, 100]


def test_rows_of_sql() -> None:
    """The window keeps its name."""
    sent = rounds(3)
    expected = in_windows(sent, 10, 5, by_user=False)
    query = "select w['start'] as begin, n from (select hop(at, '5 seconds', '10 seconds') as w, count(*) as n from rows group by w)"
    seen: list[Row] = []
    with served(sent, expected.results, seen) as stream:
        left = written(tm.sql(query, rows=stream), seen, True)
    assert expected.late and sorted(row["n"] for row in left) == sorted(expected.late)
    assert Counter(row["n"] for row in seen) == Counter(len(rows) for rows in expected.windows.values())
    assert set(seen[0]) == {"begin", "n"} and set(left[0]) == {"user", "n", "at"}


def test_a_sink_of_files(tmp_path: Path) -> None:
    """Sinks of the engine get the schema of late rows when the query is planned, and commit with the checkpoint."""
    # The last row ends all windows but its own, which has no result when the stream is stopped.
    sent = [*rounds(4), [2 * ROWS]]
    expected = in_windows(sent, 10, 10)
    source = tmp_path / "rows.json"
    source.touch()
    seen: list[Row] = []

    def look(results: tm.Table) -> tm.Table:
        seen.extend(results.to_pylist())
        return results

    def append(text: bytes) -> None:
        with source.open("ab") as file:
            file.write(text)

    stream = tm.stream.from_files(source, SCHEMA, time="at", idle_after="100ms")
    counts = stream.group_by("user", tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count())
    schema = {"user": "str", "window_start": "timestamp[us]", "window_end": "timestamp[us]", "rows": "int64"}
    with beside(lambda: send(append, sent, expected.results, seen)):
        counts.map_batches(look, schema).write_stream(
            tm.stream.to_files(tmp_path / "counts"),
            late_output=tm.stream.to_files(tmp_path / "late"),
            checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="100ms"),
            stop_when=lambda: len(seen) == expected.results[-1],
            guarantee="exactly_once",
        )

    def rows(folder: str) -> list[Row]:
        files = [
            file for file in (tmp_path / folder).iterdir() if not file.name.startswith((".", "_")) and file.is_file()
        ]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    assert sum(row["rows"] for row in rows("counts")) + len(rows("late")) == ROWS
    assert expected.late and sorted(row["n"] for row in rows("late")) == sorted(expected.late)
    assert {"user", "n", "at"} == set(rows("late")[0])


def refused(stream: tm.DataSet, **options: Any) -> str:
    with pytest.raises(tm.DataSetError) as raised:
        stream.write_stream(lambda _: None, late_output=lambda _: None, **options)
    return str(raised.value)


def test_what_cannot_be(tmp_path: Path) -> None:
    """A query without windows has no late rows, and those of several windows must have the same schema."""
    stream = tm.stream.from_table(table(range(ROWS)), time="at")
    assert "the query has none" in refused(stream)

    def counts(rows: tm.DataSet) -> tm.DataSet:
        return rows.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(rows=tm.count())

    assert "give them the same columns" in refused(counts(stream).union(counts(stream.drop("user"))))
    message = refused(counts(stream), guarantee="exactly_once", checkpoint=tmp_path)
    assert "gives at least once" in message
