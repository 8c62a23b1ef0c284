"""Durations and times, as arguments of queries and streams."""

from __future__ import annotations

from datetime import datetime, timedelta

from tidemill import _duration
from tidemill._duration import Duration
from tidemill._tables.errors import DataSetError

__all__ = ["Duration", "micros", "micros_since_1970", "seconds"]

_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)


def micros(length: Duration, what: str) -> int:
    """Convert a duration to microseconds; `what` names it in errors."""
    return _duration.micros(length, what, DataSetError)


def seconds(length: Duration, what: str) -> float:
    """Convert a duration to seconds; `what` names it in errors."""
    return micros(length, what) / 1_000_000


def micros_since_1970(at: datetime, what: str, example: str) -> int:
    """Convert a time (UTC, if it has no time zone) to microseconds since 1970; `what` names it in errors, which give the example."""
    if not isinstance(at, datetime):
        raise DataSetError(f"{what} takes a datetime, such as {example}, not {at!r}")
    if at.tzinfo is not None:
        at = (at - at.utcoffset()).replace(tzinfo=None)  # type: ignore[operator]
    return (at - _EPOCH) // _US
