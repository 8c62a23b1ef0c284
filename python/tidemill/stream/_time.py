"""Lengths of time, as people write them, and what tells the time of a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tidemill.dataset._errors import DataSetError

__all__ = ["Duration", "Time", "TimeColumn", "micros", "processing_time", "punctuated_watermarks", "seconds", "times"]

#: A text such as ``"250ms"``, ``"10s"``, ``"5m"``, ``"1h30m"``, ``"1d"``; a number of seconds; a `datetime.timedelta`. Numbers and
#: lengths of time may be those of NumPy and pandas.
Duration = str | int | float | timedelta

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")
#: Far enough below what 64 bits hold of microseconds that times and lengths may be added.
_YEARS_MAX = 50_000
_US_MAX = _YEARS_MAX * 365 * _UNITS["d"]


def micros(length: Duration, what: str) -> int:
    """Microseconds of a length of time; `what` names it in errors."""
    us = _micros(length)
    # A NaN equals nothing.
    if us is None or us != us:
        raise DataSetError(f'{what}={length!r} is no length of time; write "250ms", "10s", "5m", "1h30m" or seconds')
    if us < 0:
        raise DataSetError(f"{what}={length!r} is less than nothing; a length of time is from 0 on")
    if us > _US_MAX:
        raise DataSetError(f"{what}={length!r} is too long; a length of time is at most {_YEARS_MAX:,} years")
    return round(us)


def _micros(length: Any) -> float | None:
    """Microseconds of a length of time, whatever they are; None if it is none."""
    if hasattr(length, "dtype"):
        length = _of_numpy(length)
    if isinstance(length, timedelta):
        return length // timedelta(microseconds=1)
    if isinstance(length, (int, float)) and not isinstance(length, bool):
        return length * 1_000_000
    text = length if isinstance(length, str) else ""
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _of_numpy(length: Any) -> Any:
    """What a scalar of NumPy is to Python; None if it is no length of time."""
    import numpy as np

    if not isinstance(length, np.timedelta64):
        return length.item() if isinstance(length, np.generic) else None
    # Months and years are not all as long as each other.
    if np.datetime_data(length.dtype)[0] in ("generic", "M", "Y"):
        return None
    return length.astype("timedelta64[us]").item()


def seconds(length: Duration, what: str) -> float:
    """Seconds of a length of time; `what` names it in errors."""
    return micros(length, what) / 1_000_000


@dataclass(frozen=True)
class TimeColumn:
    """The column that tells a stream's time, and what says how far it is; made by `processing_time` and `punctuated_watermarks`."""

    column: str
    kind: str
    watermark: str | None = None


#: What a source takes as ``time``: a column, or what `processing_time` or `punctuated_watermarks` returns.
Time = str | TimeColumn


def processing_time(column: str = "arrived") -> TimeColumn:
    """Processing time: a column is added with the time (UTC) at which a row was read, and windows over it go by the clock.

    Time goes on when no row comes, and never back. Rows that are read again after a failure arrive again.
    """
    return TimeColumn(column, "arrival")


def punctuated_watermarks(column: str, *, watermark: str) -> TimeColumn:
    """Event time of which the rows themselves say how far it is.

    Parameters
    ----------
    column : str
        Each row's event time.
    watermark : str
        A column that is null but in some rows: there it says that no later row of the same part of the source (a file, a
        partition, ...) has an earlier event time. ``max_out_of_orderness`` is not used.
    """
    return TimeColumn(column, "column", watermark)


def times(
    time: Time | None, max_out_of_orderness: Duration, idle_after: Duration
) -> tuple[str, int, int, str, str | None] | None:
    """How a source's rows tell time, as the engine takes it."""
    if time is None:
        return None
    of = TimeColumn(time, "latest") if isinstance(time, str) else time
    if not isinstance(of, TimeColumn):
        raise TypeError(f"time must be a column name, processing_time() or punctuated_watermarks(...), not {time!r}")
    return (
        of.column,
        micros(max_out_of_orderness, "max_out_of_orderness"),
        micros(idle_after, "idle_after"),
        of.kind,
        of.watermark,
    )
