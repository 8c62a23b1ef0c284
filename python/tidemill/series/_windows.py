"""Time windows over a panel: length, shift, sliding or accumulating."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.series._read import SeriesError

__all__ = ["Window", "label", "windows"]

_DAY = np.timedelta64(1, "D")
#: The names of arguments on the command line and in programs.
_NAMED = {"length": "--window (length=)", "shift": "--shift (shift=)"}


@dataclass(frozen=True)
class Window:
    """Rows ``begin`` to ``end`` (exclusive) of a panel, named after its last time.

    Attributes
    ----------
    number : int
        Number of the window, counted from the first full one.
    begin, end : int
    label : str
        Its last time.
    """

    number: int
    begin: int
    end: int
    label: str


@dataclass(frozen=True)
class _Span:
    count: int
    unit: str

    @classmethod
    def of(cls, text: str | int, what: str) -> _Span:
        """Parse a length as people write it."""
        found = re.fullmatch(r"\s*(\d+)\s*(d|r|w|mo|y)?\s*", str(text))
        if not found or int(found[1]) < 1:
            raise SeriesError(
                f"{_NAMED[what]} {text!r}: write a length like 250d (days that have data), 500r (rows: times of the panel), 4w, 6mo or 1y"
            )
        return cls(int(found[1]), found[2] or "d")

    @property
    def months(self) -> int:
        """Number of months, for years and months; else 0."""
        return self.count * {"mo": 1, "y": 12}.get(self.unit, 0)

    @property
    def weeks(self) -> int:
        """Number of weeks; 0 for other units."""
        return self.count if self.unit == "w" else 0

    @property
    def by_calendar(self) -> bool:
        """True for weeks, months and years."""
        return self.unit in ("w", "mo", "y")


def label(time: Any) -> str:
    """Format a time: without hours if it is midnight."""
    if not isinstance(time, np.datetime64):
        return str(time)
    return str(np.datetime_as_string(time, unit="D" if time == time.astype("datetime64[D]") else "s"))


def windows(
    times: Sequence[Any] | NDArray[Any],
    length: str | int,
    shift: str | int,
    *,
    accumulate: bool = False,
    growing: bool = False,
) -> list[Window]:
    """Return all full windows over times, starting at the first time.

    Parameters
    ----------
    times : array-like of shape (T,)
        Increasing: ``datetime64``, or integers, which have no days.
    length, shift : str or int
        ``"250d"`` or 250: days with data (trading days), each with all of its times; ``"500r"``: rows, one for each
        time; ``"4w"``, ``"6mo"``, ``"1y"``: by the calendar. A calendar length needs a calendar shift.
    accumulate : bool, default=False
        If True, all windows begin at the first time, and each is longer than the one before by `shift`; otherwise they
        slide.
    growing : bool, default=False
        Whether more times may follow, as with a `Follower` that has not ended. If so, the last day may get further
        times, unless every day has a single one at the same time of day; so a window of days, or by the calendar, is
        full only when there is a later day.

    Returns
    -------
    list of Window
        With `growing`, further times do not change existing windows, but only add new ones.

    Raises
    ------
    SeriesError
        If a length is invalid, or no window is full.

    Examples
    --------
    >>> days = np.arange("2024-01-01", "2024-01-11", dtype="datetime64[D]")
    >>> [(window.begin, window.end, window.label) for window in windows(days, "4d", "3d")]
    [(0, 4, '2024-01-04'), (3, 7, '2024-01-07'), (6, 10, '2024-01-10')]
    """
    stamps = np.asarray(times)
    dated = stamps.dtype.kind == "M"
    span, step = _Span.of(length, "length"), _Span.of(shift, "shift")
    if span.by_calendar != step.by_calendar:
        raise SeriesError(
            f"{_NAMED['length']} {length!r} and {_NAMED['shift']} {shift!r}: both count days or rows, or both go by the calendar"
        )
    if not dated and (span.by_calendar or "d" in (span.unit, step.unit)):
        # A plain number means days, or a number of times if times are numbers.
        if span.by_calendar or (isinstance(length, str) and length.strip().endswith("d")):
            raise SeriesError(
                f"{_NAMED['length']} {length!r}: times are whole numbers, so windows are in rows, such as 250r"
            )
        span, step = _Span(span.count, "r"), _Span(step.count, "r")
    is_open = growing and dated and _may_go_on(stamps)
    edges = (_by_calendar if span.by_calendar else _by_count)(stamps, span, step, is_open)
    if not edges:
        raise SeriesError(
            f"no window is full: it is {length} long, but there are {_extent(stamps)}; choose a shorter length"
        )
    return [
        Window(number, 0 if accumulate else begin, end, label(stamps[end - 1]))
        for number, (begin, end) in enumerate(edges)
    ]


def _extent(stamps: NDArray[Any]) -> str:
    if not len(stamps):
        return "no times"
    if stamps.dtype.kind != "M":
        return f"{len(stamps)} times"
    days = len(np.unique(stamps.astype("datetime64[D]")))
    return f"{days} days with data, {label(stamps[0])} to {label(stamps[-1])} ({len(stamps)} rows)"


def _may_go_on(stamps: NDArray[Any]) -> bool:
    """Return whether the last day may get further times: not if all times so far are at the same time of day, as in
    daily data.
    """
    clock = stamps - stamps.astype("datetime64[D]")
    # A single time is not sufficient evidence.
    return len(stamps) < 2 or bool((clock != clock[0]).any())


def _by_count(stamps: NDArray[Any], span: _Span, step: _Span, is_open: bool) -> list[tuple[int, int]]:
    """Return edges in rows. If days are counted, each item is a day, with all of its rows; `is_open`: the last may get
    more.
    """
    whole = len(stamps)
    if "d" in (span.unit, step.unit):
        if span.unit != step.unit:
            raise SeriesError(f"{_NAMED['length']} and {_NAMED['shift']} both count days (d), or both rows (r)")
        days = stamps.astype("datetime64[D]")
        starts = np.flatnonzero(np.concatenate([[True], days[1:] != days[:-1]])) if len(days) else np.empty(0, int)
        whole = len(starts) - is_open
    else:
        starts = np.arange(len(stamps))
    bounds = [*starts.tolist(), len(stamps)]
    first = range(0, whole - span.count + 1, step.count)
    return [(bounds[begin], bounds[begin + span.count]) for begin in first]


def _by_calendar(stamps: NDArray[Any], span: _Span, step: _Span, is_open: bool) -> list[tuple[int, int]]:
    """Return edges in rows of windows that last a number of weeks, months or years. The last may lack the day that
    would begin the next, unless its own last day `is_open`.
    """
    if not len(stamps):
        return []
    days = stamps.astype("datetime64[D]")
    beyond = days[-1] if is_open else days[-1] + _DAY
    edges: list[tuple[int, int]] = []
    number = 0
    while True:
        months, weeks = number * step.months, number * step.weeks
        begin = _later(days[0], months, weeks)
        # Counted from the first day rather than from the window's beginning: a month after February 29 may end on March
        # 31.
        end = _later(days[0], months + span.months, weeks + span.weeks)
        if end > beyond:
            return edges
        rows = np.searchsorted(days, [begin, end])
        # A window without data has no last time to be named after.
        if rows[1] > rows[0]:
            edges.append((int(rows[0]), int(rows[1])))
        number += 1


def _later(day: np.datetime64, months: int, weeks: int) -> np.datetime64:
    month = day.astype("datetime64[M]")
    place = int((day - month.astype("datetime64[D]")).astype(int))
    first = (month + np.timedelta64(months, "M")).astype("datetime64[D]")
    after = (month + np.timedelta64(months + 1, "M")).astype("datetime64[D]")
    # The 31st becomes the last day in shorter months.
    later: np.datetime64 = first + min(place, int((after - first).astype(int)) - 1) * _DAY + 7 * weeks * _DAY
    return later
