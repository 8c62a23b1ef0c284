"""Parses durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

__all__ = ["Duration", "micros"]

#: A string such as ``"250ms"``, ``"10s"``, ``"5m"``, ``"1h30m"``, ``"1d"``; a number of seconds; or a
#: `datetime.timedelta`. NumPy and pandas numbers and durations are accepted, too.
Duration = str | int | float | timedelta

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")
#: Far enough below the range of 64-bit microseconds that times and durations can be added.
_YEARS_MAX = 50_000
_US_MAX = _YEARS_MAX * 365 * _UNITS["d"]


def micros(length: Duration, what: str, error: type[Exception]) -> int:
    """Convert a duration to microseconds.

    Parameters
    ----------
    length : str, number of seconds or timedelta
    what : str
        Name of the argument, for errors.
    error : type
        Exception to raise if `length` is not a duration, is negative, or is too long.
    """
    us = _micros(length)
    # NaN is unequal to itself.
    if us is None or us != us:
        raise error(f'{what}={length!r} is not a duration; use "250ms", "10s", "5m", "1h30m" or seconds')
    if us < 0:
        raise error(f"{what}={length!r} is negative; a duration must be 0 or more")
    if us > _US_MAX:
        raise error(f"{what}={length!r} is too long; a duration is at most {_YEARS_MAX:,} years")
    return round(us)


def _micros(length: Any) -> float | None:
    """Return a duration in microseconds; None if it is not a duration."""
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
    """Convert a NumPy scalar to a Python value; None if it is not a duration."""
    import numpy as np

    if not isinstance(length, np.timedelta64):
        return length.item() if isinstance(length, np.generic) else None
    # Months and years do not have a fixed length.
    if np.datetime_data(length.dtype)[0] in ("generic", "M", "Y"):
        return None
    return length.astype("timedelta64[us]").item()
