"""Windows of days, weeks, months and years of a calendar in a time zone."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
import tidemill as tm

Row = dict[str, Any]
FIRST = datetime(2024, 1, 31, 21, 30)


def hours(seed: int, count: int = 2000) -> list[int]:
    """Return hours over two years, slightly out of order."""
    dice = random.Random(seed)
    found = sorted(dice.randrange(2 * 366 * 24) for _ in range(count))
    return sorted(found, key=lambda hour: hour + dice.uniform(0, 20))


def at(of_row: list[int]) -> pa.Table:
    return pa.table({"at": pa.array([FIRST + timedelta(hours=hour) for hour in of_row], pa.timestamp("us"))})


def first_day(day: date, length: str) -> date:
    """Return the first day of the calendar span that contains a day."""
    match length:
        case "1d":
            return day
        case "1w":
            return day - timedelta(days=day.weekday())
        case "1mo":
            return day.replace(day=1)
        case "3mo":
            return day.replace(day=1, month=(day.month - 1) // 3 * 3 + 1)
        case _:
            return day.replace(day=1, month=1)


@pytest.mark.parametrize("length", ["1d", "1w", "1mo", "3mo", "1y"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def test_each_row_is_in_its_stretch(length: str, zone: str) -> None:
    """Windows of a stream equal those of a table, and begin at the correct midnight."""
    of_row = hours(len(length))
    table = at(of_row)
    window = tm.stream.window(tm.stream.calendar_window(length, tz=zone), on="at")
    seen: list[Row] = []
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="1d", rows_per_batch=50)
    stream.group_by(window).agg(rows=tm.count()).write_stream(lambda table: seen.extend(table.to_pylist()))
    plain = tm.from_arrow(table).group_by(window).agg(rows=tm.count()).to_pylist()
    assert Counter(map(str, seen)) == Counter(map(str, plain))
    there = ZoneInfo(zone)
    days: Counter[datetime] = Counter()
    for hour in of_row:
        local = (FIRST + timedelta(hours=hour)).replace(tzinfo=timezone.utc).astimezone(there)
        first = first_day(local.date(), length)
        midnight = datetime(first.year, first.month, first.day, tzinfo=there)
        days[midnight.astimezone(timezone.utc).replace(tzinfo=None)] += 1
    assert {row["window_start"]: row["rows"] for row in seen} == days
    ends = sorted((row["window_start"], row["window_end"]) for row in seen)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_results_go_on() -> None:
    """The results of months have a time for later steps."""
    table = at(hours(1))
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="1d", rows_per_batch=50)
    days = stream.group_by(tm.stream.window(tm.stream.calendar_window("1d", tz="Europe/Berlin"), on="at")).agg(
        n=tm.count()
    )
    days = days.select("n", at="window_start")
    months = days.group_by(tm.stream.window(tm.stream.calendar_window("1mo", tz="Europe/Berlin"), on="at")).agg(
        n=tm.col("n").sum()
    )
    seen: list[Row] = []
    months.write_stream(lambda table: seen.extend(table.to_pylist()))
    window = tm.stream.window(tm.stream.calendar_window("1mo", tz="Europe/Berlin"), on="at")
    plain = tm.from_arrow(table).group_by(window).agg(n=tm.count()).to_pylist()
    assert Counter(map(str, seen)) == Counter(map(str, plain))


def test_what_cannot_be() -> None:
    for length in ("1h", "month", "0", "", 5, "9" * 30 + "d"):
        with pytest.raises(tm.DataSetError, match="not a calendar length"):
            tm.stream.calendar_window(length)  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match='unknown time zone "Europe/Atlantis"'):
        tm.stream.window(tm.stream.calendar_window("1d", tz="Europe/Atlantis"), on="at")
    with pytest.raises(tm.DataSetError, match="1 to 1000"):
        tm.stream.window(tm.stream.calendar_window("0d"), on="at")
