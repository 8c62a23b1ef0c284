"""Windows of streams in SQL: every kind, with early results and late rows, like the windows of ``group_by``."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import Any

import pytest
import tidemill as tm

Row = dict[str, Any]


def table(rows: int = 300) -> tm.Table:
    """Return a row every five hours, from two users in turn."""
    made = tm.from_dict({"n": list(range(rows)), "user": [["ann", "bob"][n % 2] for n in range(rows)]})
    return made.select("n", "user", at=(tm.col("n") * 18_000).cast("timestamp[s]")).collect()


def stream(**options: Any) -> tm.DataSet:
    return tm.stream.from_table(table(), time="at", **options)


def written(data: tm.DataSet, **options: Any) -> list[Row]:
    seen: list[Row] = []
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return sorted(seen, key=lambda row: (row["user"], row["window_start"]))


def sql(window: str, more: str = "", **options: Any) -> list[Row]:
    query = f"""
        select user, w['start'] as window_start, w['end'] as window_end, n{more}
        from (select user, {window} as w, count(*) as n from rows group by user, w)
    """
    return written(tm.sql(query, rows=stream(**options)))


def grouped(window: tm.Expr) -> list[Row]:
    return written(stream().group_by("user", window).agg(n=tm.count()))


@pytest.mark.parametrize(
    ("call", "window"),
    [
        ("counting(10)", tm.stream.window(tm.stream.count_window(10))),
        ("counting(10, 5)", tm.stream.window(tm.stream.count_window(10, 5))),
        # Rows of a user come every ten hours, so each is at least this much later and starts fresh.
        ("counting(at, 1, '10 hours')", tm.stream.window(tm.stream.count_window(1, ttl="10h"), on="at")),
        ("counting(at, 10, '11 hours')", tm.stream.window(tm.stream.count_window(10, ttl="11h"), on="at")),
        (
            "calendar(at, '1 month', 'Europe/Berlin')",
            tm.stream.window(tm.stream.calendar_window("1mo", tz="Europe/Berlin"), on="at"),
        ),
        ("calendar(at, '2 weeks')", tm.stream.window(tm.stream.calendar_window("2w"), on="at")),
        (
            "late(calendar(at, '1 day'), '3 hours')",
            tm.stream.window(tm.stream.calendar_window("1d"), on="at", allowed_lateness="3h"),
        ),
        (
            "late(hop(at, '1 day', '3 days'), '1 hour')",
            tm.stream.window(tm.stream.sliding("3d", "1d"), on="at", allowed_lateness="1h"),
        ),
    ],
)
def test_windows_in_sql(call: str, window: tm.Expr) -> None:
    """A window in SQL gives the same as the window as a key of group_by."""
    assert sql(call) == grouped(window) != []


def test_windows_of_rows_of_keys_that_are_forgotten() -> None:
    """As in Python: a row after a pause begins a window, and no window has rows from both sides of a pause."""
    hours = [hour + 24 * (hour // 7) for hour in range(100)]
    made = tm.from_dict({"user": [["ann", "bob"][at % 2] for at in range(100)], "h": hours})
    rows = made.select("user", "h", at=(tm.col("h") * 3600).cast("timestamp[s]")).collect()

    def pages(stream: tm.DataSet, call: str) -> list[Row]:
        query = f"""select user, w['start'] as window_start, w['end'] as window_end, h
                    from (select user, {call} as w, sum(h) as h from rows group by user, w)"""
        return written(tm.sql(query, rows=stream))

    stream = tm.stream.from_table(rows, time="at")
    window = tm.stream.window(tm.stream.count_window(3, 2, ttl="20h"), on="at")
    found = sorted(written(stream.group_by("user", window).agg(h=tm.col("h").sum())), key=str)
    assert sorted(pages(stream, "counting(at, 3, 2, interval '20 hours')"), key=str) == found
    assert 0 < len(found) < len(pages(stream, "counting(3, 2)"))
    assert {row["window_start"] for row in found} == {0}


def test_calendars_in_sql_over_tables() -> None:
    """A query over time windows can be checked against the table it came from."""
    query = """
        select user, w['start'] as window_start, n
        from (select user, late(calendar(at, '1 year'), '1 hour') as w, count(*) as n from rows group by user, w)
    """
    of_table = sorted(tm.sql(query, rows=tm.from_arrow(table())).to_pylist(), key=str)
    assert of_table == sorted(written(tm.sql(query, rows=stream())), key=str)
    assert [row["n"] for row in of_table] == [150, 150]
    for call in ("early", "early_time"):
        early = f"select {call}(tumble(at, '1 hour'), '1 second') as w from rows limit 1"
        assert tm.sql(early, rows=tm.from_arrow(table())).to_pylist()[0]["w"]["final"] is True


def test_early_results_in_sql() -> None:
    """Early results come with final = false, and the last one is the result without them."""
    more = ", w['final'] as window_final"
    options: dict[str, Any] = {"rows_per_batch": 1, "rows_per_s": 300}
    for call in (
        "early(tumble(at, '365 days'), '20 milliseconds')",
        "early(late(tumble(at, '365 days'), '1 hour'), '20 milliseconds')",
    ):
        rows = sql(call, more, **options)
        last = [row for row in rows if row["window_final"]]
        assert [(row["user"], row["n"]) for row in last] == [("ann", 150), ("bob", 150)]
        assert len(rows) > len(last) + 2


def test_results_by_rows_in_sql() -> None:
    """An integer after a window is a number of rows, not a duration."""
    rows = sql("early(tumble(at, '365 days'), 40)", ", w['final'] as window_final")
    expected = [(user, n, n == 150) for user in ("ann", "bob") for n in (40, 80, 120, 150)]
    assert sorted((row["user"], row["n"], row["window_final"]) for row in rows) == expected


def test_results_by_event_time_in_sql() -> None:
    """They equal those of the same window in Python."""
    for call in (
        "early_time(tumble(at, '1 hour'), '10 minutes')",
        "early_time(late(tumble(at, '1 hour'), '1 hour'), '10 minutes')",
    ):
        rows = sql(call, ", w['final'] as window_final")
        window = tm.stream.window(tm.stream.tumbling("1h"), on="at", emit_early_event_time="10m")
        assert rows == grouped(window) != []
        assert {row["window_final"] for row in rows} == {True, False}


def test_late_rows_in_sql() -> None:
    """Rows that are too late for a window go to late_output, with all of their columns."""
    seconds = [*range(4), *range(12, 28), 5, 28]
    rows = tm.from_dict({"n": list(range(len(seconds))), "user": ["ann"] * len(seconds), "s": seconds})
    rows = rows.select("n", "user", at=tm.col("s").cast("timestamp[s]")).collect()
    query = "select user, w['start'] as window_start, n from (select user, {} as w, count(*) as n from rows group by user, w)"
    for call, counts, left in (
        ("tumble(at, '10 seconds')", [4, 8, 9], [20]),
        ("late(tumble(at, '10 seconds'), '1 hour')", [4, 5, 8, 9], []),
    ):
        late: list[Row] = []
        source = tm.stream.from_table(rows, time="at", rows_per_batch=1, rows_per_s=40)
        made = written(
            tm.sql(query.format(call), rows=source), late_output=lambda table, late=late: late.extend(table.to_pylist())
        )
        assert [row["n"] for row in late] == left, call
        assert all(set(row) == {"n", "user", "at"} and isinstance(row["at"], datetime) for row in late)
        assert [row["n"] for row in made] == counts, call


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("counting(0)", "a window's size and slide must be positive"),
        ("counting('ten')", "counting takes integer numbers of rows, not ten"),
        ("counting(2, 5)", "would skip rows"),
        ("counting(at, 2)", r"also how long to remember keys, as in counting\(time, 100, 10, '1 hour'\)"),
        ("counting(2, n)", "a window's length must be a constant"),
        ("counting(n, 2, '1 hour')", "a window needs a timestamp or a date, not Int64"),
        ("counting(at, 2, 'long')", "a length of time must be an interval such as '10 seconds'"),
        ("counting(at, 2, '0 seconds')", "a positive ttl"),
        (
            "counting(at, 2, '1 hour', 2)",
            "counting takes integer numbers of rows, not 1 hour|a length of time must be an interval",
        ),
        ("late(counting(at, 2, '1 hour'), '1 hour')", "late takes a window of time and a length of time"),
        ("calendar(at, 'one month')", "a calendar's length must be a string such as '1 month' or '2 weeks'"),
        ("calendar(at, '1 hour')", "a calendar's length must be a string such as"),
        ("calendar(at, '1 month', 'Mars/Olympus')", 'unknown time zone "Mars/Olympus"'),
        ("late(at, '1 hour')", "late takes a window of time and a length of time"),
        ("early(counting(5), '1 second')", "early takes a window of time and a length of time"),
        ("early(tumble(at, '1 hour'), '1 microsecond')", "an interval of at least a millisecond"),
        (
            "late(tumble(at, '1 hour'))",
            "late takes a window and one length of time|a window's length must be a constant",
        ),
        ("early(tumble(at, '1 hour'), 0)", "early results by rows need a positive number of rows"),
        ("early(early(tumble(at, '1 hour'), 5), '1 second')", "by the clock, by event time or by rows; choose one"),
        ("early_time(tumble(at, '1 hour'), 5)", "a length of time must be an interval such as '10 seconds', not 5"),
        ("early_time(tumble(at, '1 hour'), '0 seconds')", "by event time need a positive step"),
        ("early_time(session(at, '1 hour'), '1 minute')", r"sessions with early results by event time"),
        ("early(late(tumble(at, '1 hour'), '1 hour'), 5)", r"late rows \(allowed_lateness=\) and give results by rows"),
        ("tumble(at, n)", "a window's length must be a constant"),
    ],
)
def test_windows_that_make_no_sense(call: str, said: str) -> None:
    """The error names the function, its arguments, and what was given."""
    with warnings.catch_warnings(), pytest.raises(tm.DataSetError, match=said):
        sql(call)


def in_windows(query: str) -> None:
    """Check that a query over counts of windows gives the same for a stream as for the table."""
    counts = "(select user, tumble(at, '1 day') as w, count(*) as n, max(n) as m from rows group by user, w)"
    query = query.format(counts=counts)
    want = sorted(map(str, tm.sql(query, rows=tm.from_arrow(table()), known=KNOWN).to_pylist()))
    seen: list[Row] = []
    streamed = tm.sql(query, rows=stream(rows_per_batch=10), known=KNOWN)
    streamed.write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert sorted(map(str, seen)) == want != []


KNOWN = tm.from_dict({"user": ["bob", "cyd"], "number": [2, 3]})


@pytest.mark.parametrize(
    "columns",
    [
        # Functions over the same groups, some of them ordered.
        "sum(n) over (partition by w['start']) s, row_number() over (partition by w['start'] order by user) r",
        "sum(n) over (partition by w['start'] order by user) s, sum(n) over (partition by w['start']) t",
        "sum(n) over (partition by w) s, row_number() over (partition by w order by user) r",
        "max(m) over (partition by w['end']) s, lag(m) over (partition by w['end'] order by user desc) r",
        "max(m) over (partition by w['end']) s, sum(m) over (partition by w['end'], user) r",
    ],
)
def test_several_functions_over_groups(columns: str) -> None:
    in_windows(f"select *, {columns} from {{counts}}")


def test_functions_of_functions_over_groups() -> None:
    """One step ranks the results of another over the same groups."""
    shares = "(select *, m * 1.0 / sum(m) over (partition by w['start']) as share from {counts})"
    ranked = f"select *, row_number() over (partition by w['start'] order by share desc) r from {shares}"
    in_windows(f"select * from ({ranked}) where r = 1")


@pytest.mark.parametrize("key", ["w", "w['start']", "w['end']", "w['start'], w['end']"])
def test_the_first_of_each_window(key: str) -> None:
    ranked = f"select *, row_number() over (partition by {key} order by n desc, user) r from {{counts}}"
    in_windows(f"select * from ({ranked}) where r <= 1")


@pytest.mark.parametrize(
    "query",
    [
        "select * from rows where user not in (select user from known)",
        "select * from rows where user not in (select user from known where number > 5)",
        "select n from rows where nullif(user, 'ann') not in (select user from known where number > 2)",
        "select user from rows union select user from rows where n > 3",
        "select n % 3 as k from rows union select n % 5 from rows",
    ],
)
def test_sets_of_rows(query: str) -> None:
    in_windows(query)


def test_not_in_what_has_a_null() -> None:
    """A null might equal any value, so nothing is known to be missing."""
    query = "select * from rows where user not in (select nullif(user, 'cyd') from known)"
    assert written(tm.sql(query, rows=stream(), known=KNOWN)) == []


def test_aggregates_in_an_order() -> None:
    query = "select user, tumble(at, '1 day') w, array_agg(n order by n) a from rows group by user, w"
    with pytest.raises(tm.DataSetError, match=r"ordered rows, such as array_agg.*sort its result"):
        written(tm.sql(query, rows=stream()))


def test_how_far_a_time_is_behind() -> None:
    """As in Python; over tables it has no effect."""
    in_windows("select tumble(behind(at, '1 hour'), '1 day') as w, count(*) n from rows group by w")
    for call, said in (
        ("behind(n, '1 hour')", "behind takes a timestamp or a date, not Int64"),
        ("behind(at, 'long')", "a length of time must be an interval such as '10 seconds'"),
        ("behind(at, '-1 hour')", "a constant, non-negative length of time"),
    ):
        with pytest.raises(tm.DataSetError, match=said):
            tm.sql(f"select {call} from rows", rows=tm.from_arrow(table())).collect()
