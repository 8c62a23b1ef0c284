"""Durations, as arguments of queries and streams."""

from __future__ import annotations

from tidemill import _duration
from tidemill._duration import Duration
from tidemill._tables.errors import DataSetError

__all__ = ["Duration", "micros", "seconds"]


def micros(length: Duration, what: str) -> int:
    """Convert a duration to microseconds; `what` names it in errors."""
    return _duration.micros(length, what, DataSetError)


def seconds(length: Duration, what: str) -> float:
    """Convert a duration to seconds; `what` names it in errors."""
    return micros(length, what) / 1_000_000
