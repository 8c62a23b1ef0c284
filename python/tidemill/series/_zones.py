"""Times of a column with a time zone, in local time of that zone, whose days windows count."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from tidemill.series._errors import SeriesError

__all__ = ["wall", "zone_of"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def zone_of(kind: str) -> str | None:
    """Return the zone of a column's type, such as ``Timestamp(µs, "Australia/Sydney")``; None if it has none, or is in
    UTC.
    """
    found = re.search(r'"(.+)"', kind)
    return None if found is None or found[1] in ("UTC", "Etc/UTC", "Z", "+00:00") else found[1]


def wall(micros: NDArray[np.int64], zone: str | None) -> NDArray[np.int64]:
    """Convert times in microseconds since 1970 in UTC to local times of a zone, in the same unit, the same order, and
    all distinct.

    Raises
    ------
    SeriesError
        If the zone is unknown, or a time is outside of the years 1 to 9999.
    """
    if zone is None:
        return micros
    known = _known(zone)
    try:
        return np.array([_shown(at, known) for at in micros.tolist()], dtype=np.int64)
    except OverflowError as error:
        raise SeriesError(f"a time in {zone} is outside of the years 1 to 9999: {error}") from error


def _known(zone: str) -> tzinfo:
    offset = re.fullmatch(r"([+-])(\d\d):?(\d\d)", zone)
    if offset:
        minutes = 60 * int(offset[2]) + int(offset[3])
        return timezone(timedelta(minutes=minutes if offset[1] == "+" else -minutes))
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise SeriesError(f"the time zone {zone!r} is not known on this machine: pip install tzdata") from error


def _shown(micros: int, zone: tzinfo) -> int:
    local = (_EPOCH + timedelta(microseconds=micros)).astimezone(zone)
    clock = (local.replace(tzinfo=timezone.utc) - _EPOCH) // _MICROSECOND
    twice = _offset(local.replace(fold=0)) - _offset(local.replace(fold=1))
    if twice <= 0:
        return clock
    # An hour that clocks show twice: both times are compressed into one hour, so that no two times become equal.
    begin = clock - clock % twice
    return begin + (clock - begin) // 2 + (twice // 2 if local.fold else 0)


def _offset(local: datetime) -> int:
    offset = local.utcoffset()
    assert offset is not None, "it has a zone"
    return offset // _MICROSECOND
