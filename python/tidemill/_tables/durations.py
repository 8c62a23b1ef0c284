"""Durations, as queries and streams take them."""

from __future__ import annotations

from tidemill import _duration
from tidemill._duration import Duration
from tidemill._tables.errors import DataSetError

__all__ = ["Duration", "micros", "seconds"]


def micros(length: Duration, what: str) -> int:
    """Microseconds of a duration; `what` names it in errors."""
    return _duration.micros(length, what, DataSetError)


def seconds(length: Duration, what: str) -> float:
    """Seconds of a duration; `what` names it in errors."""
    return micros(length, what) / 1_000_000
