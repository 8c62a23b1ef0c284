"""Lengths of time, as people write them, and what tells the time of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill import _duration
from tidemill._duration import Duration
from tidemill.dataset._errors import DataSetError

__all__ = ["Duration", "Time", "TimeColumn", "micros", "processing_time", "punctuated_watermarks", "seconds", "times"]


def micros(length: Duration, what: str) -> int:
    """Microseconds of a duration; `what` names it in errors."""
    return _duration.micros(length, what, DataSetError)


def seconds(length: Duration, what: str) -> float:
    """Seconds of a duration; `what` names it in errors."""
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
