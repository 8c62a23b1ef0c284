"""Options for the time of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill._tables.durations import Duration, micros

__all__ = ["Time", "TimeColumn", "processing_time", "punctuated_watermarks", "times"]


@dataclass(frozen=True)
class TimeColumn:
    """The column with a stream's time, and how to derive watermarks; returned by `processing_time` and
    `punctuated_watermarks`.
    """

    column: str
    kind: str
    watermark: str | None = None


#: Argument ``time`` of a source: a column, or the result of `processing_time` or `punctuated_watermarks`.
Time = str | TimeColumn


def processing_time(column: str = "arrived") -> TimeColumn:
    """Use processing time: add a column with the time (UTC) at which each row was read, so that windows over it follow
    the clock.

    Time advances even when no row comes, and never goes back. Rows that are read again after a failure get a new time.

    Parameters
    ----------
    column : str, default="arrived"
        Name of the added column.
    """
    return TimeColumn(column, "arrival")


def punctuated_watermarks(column: str, *, watermark: str) -> TimeColumn:
    """Use event time with watermarks from the rows themselves.

    Parameters
    ----------
    column : str
        Each row's event time.
    watermark : str
        A column that is null in most rows. Where it is not, no later row of the same split (a file, a partition, ...)
        has an earlier event time. ``max_out_of_orderness`` is not used.
    """
    return TimeColumn(column, "column", watermark)


def times(
    time: Time | None, max_out_of_orderness: Duration, idle_after: Duration
) -> tuple[str, int, int, str, str | None] | None:
    """Return how a source's rows give the time, as the engine takes it."""
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
