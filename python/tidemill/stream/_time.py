"""Lengths of time, as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from tidemill.dataset._errors import DataSetError

__all__ = ["Duration", "micros", "seconds"]

#: A text such as ``"250ms"``, ``"10s"``, ``"5m"``, ``"1h30m"``, ``"1d"``; a number of seconds; a `datetime.timedelta`.
Duration = str | int | float | timedelta

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")


def micros(length: Duration, what: str) -> int:
    """Microseconds of a length of time; `what` names it in errors."""
    if isinstance(length, timedelta):
        return length // timedelta(microseconds=1)
    if isinstance(length, (int, float)) and not isinstance(length, bool):
        return round(length * 1_000_000)
    text = length if isinstance(length, str) else ""
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise DataSetError(f'{what}={length!r} is no length of time; write "250ms", "10s", "5m", "1h30m" or seconds')
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def seconds(length: Duration, what: str) -> float:
    """Seconds of a length of time; `what` names it in errors."""
    return micros(length, what) / 1_000_000
