"""The common result of all readers of uploads: point clouds, one for each frame."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._duration import Duration
from tidemill.viz._format import FrameError

__all__ = ["Cloud", "Limits", "UploadError", "clouds_of_columns", "name_is_text"]


class UploadError(FrameError):
    """A file cannot be imported into a library; the message names file, line or field, and the remedy."""


@dataclass(frozen=True)
class Limits:
    """Limits of an upload."""

    bytes: int = 512 << 20
    """Of the upload, and of all that is packed into it once it is unpacked."""
    points: int = 10_000_000
    """Of a frame."""
    frames: int = 10_000
    memory_bytes: int = 8 << 30
    """Address space of the process that decodes an upload to a server."""
    timeout: Duration = "10m"
    """How long that process may take: ``"10m"``, a number of seconds or a timedelta."""


@dataclass
class Cloud:
    """The points of one frame, as given by one file or a part of it."""

    positions: NDArray[np.float64]
    """Shape (n, 3), finite."""
    ids: list[str] | None = None
    labels: list[str] | None = None
    groups: dict[str, Sequence[Any]] = field(default_factory=dict)
    values: dict[str, Sequence[float]] = field(default_factory=dict)
    edges: list[tuple[str, str]] | None = None
    """Pairs of ids."""
    time: str | None = None
    title: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """How the file says that clusters look, as changes (`_changes.py`)."""


#: Columns with a meaning, by their names in lower case.
_AXES = ("x", "y", "z")
_IDS = ("id", "key", "index", "name")
_LABELS = ("label",)
_TIMES = ("time", "frame", "date")
#: Numbers in these columns are names of groups.
_GROUPS = ("cluster", "clusterkey", "group", "class", "category")


def name_is_text(name: str) -> bool:
    """Return whether a column of this name is read as text."""
    return name.strip().lower() in {*_IDS, *_LABELS, *_TIMES, *_GROUPS}


def clouds_of_columns(file: str, columns: Mapping[str, Sequence[Any]]) -> list[Cloud]:
    """Return clouds of named columns of equal length: one, or one for each time if there is a column of times.

    Parameters
    ----------
    file : str
        Name of the file in messages.
    columns : mapping of str to sequence
        ``x``, ``y`` and optionally ``z``; the first of ``id``, ``key``, ``index``, ``name`` identifies points,
        ``label`` is their longer name, the first of ``time``, ``frame``, ``date`` identifies frames. Other numeric
        columns are values; columns with strings or booleans, and any called ``cluster``, ``group`` or similar, are
        groupings.

    Raises
    ------
    UploadError
        If a column is missing, or a row has no position.
    """
    by_name: dict[str, str] = {}
    for name in columns:
        if by_name.setdefault(name.strip().lower(), name) != name:
            raise UploadError(f"{file}: two columns are named {name!r}; rename one")
    missing = [axis for axis in _AXES[:2] if axis not in by_name]
    if missing:
        raise UploadError(
            f"{file}: there is no column {' and no column '.join(missing)}; columns x, y and perhaps z have the positions. "
            f"It has {_listed(list(columns))}"
        )
    count = len(columns[by_name["x"]])
    axes = [_coordinates(file, axis, columns[by_name[axis]]) for axis in _AXES if axis in by_name]
    positions = np.column_stack([*axes, *([np.zeros(count)] * (3 - len(axes)))])
    ids_in, labels_in, times_in = (
        next((by_name[name] for name in names if name in by_name), None) for names in (_IDS, _LABELS, _TIMES)
    )
    ids = None if ids_in is None else _ids(file, ids_in, columns[ids_in])
    labels = None if labels_in is None else [_text(value) for value in columns[labels_in]]
    used = {by_name[axis] for axis in _AXES if axis in by_name} | {ids_in, labels_in, times_in}
    groups: dict[str, Sequence[Any]] = {}
    values: dict[str, Sequence[float]] = {}
    for name, column in columns.items():
        if name in used:
            continue
        if name.strip().lower() in _GROUPS or not _is_numeric(column):
            groups[name] = [None if _is_none(value) else _text(value) for value in column]
        else:
            values[name] = [math.nan if value is None else float(value) for value in column]
    if times_in is None:
        _check_ids(file, ids, None)
        return [Cloud(positions, ids, labels, groups, values)]
    return _frames(file, Cloud(positions, ids, labels, groups, values), columns[times_in])


def _frames(file: str, whole: Cloud, times: Sequence[Any]) -> list[Cloud]:
    """Split points by their time: numbers and dates in order, strings in the order of the file."""
    if any(_is_none(time) for time in times):
        row = next(number for number, time in enumerate(times, 1) if _is_none(time))
        raise UploadError(f"{file}, row {row}: the time is empty; give each row one, or leave out the column")
    first = list(dict.fromkeys(times))
    if not all(isinstance(time, str) for time in first) or all(_ISO_DATE.match(time) for time in first):
        first.sort()
    elif all(_NUMBER.fullmatch(time) for time in first):
        # In text files, numbers are strings.
        first.sort(key=float)
    number = {time: place for place, time in enumerate(first)}
    frame_of = np.fromiter((number[time] for time in times), np.int64, len(times))
    order = np.argsort(frame_of, kind="stable")
    ends = np.searchsorted(frame_of[order], np.arange(len(first) + 1))
    clouds = []
    for place, time in enumerate(first):
        rows = order[ends[place] : ends[place + 1]]
        pick = rows.tolist()
        ids = None if whole.ids is None else [whole.ids[row] for row in pick]
        _check_ids(file, ids, _text(time))
        clouds.append(
            Cloud(
                whole.positions[rows],
                ids,
                None if whole.labels is None else [whole.labels[row] for row in pick],
                {name: [column[row] for row in pick] for name, column in whole.groups.items()},
                {name: [column[row] for row in pick] for name, column in whole.values.items()},
                time=_text(time),
            )
        )
    return clouds


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]|$)")


def _coordinates(file: str, axis: str, column: Sequence[Any]) -> NDArray[np.float64]:
    numbers = np.empty(len(column))
    for row, value in enumerate(column):
        # A column of strings may be numeric except for one value, which is then named.
        try:
            numbers[row] = math.nan if _is_none(value) or isinstance(value, bool) else float(value)
        except ValueError:
            raise UploadError(f"{file}, row {row + 1}: {axis} is {_short(value)}, which is not a number") from None
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        said = "is empty or not finite; leave out points that have no position"
        raise UploadError(f"{file}, row {bad[0] + 1}: {axis} {said}")
    return numbers


def _ids(file: str, name: str, column: Sequence[Any]) -> list[str]:
    ids = [_text(value) for value in column]
    if "" in ids:
        raise UploadError(
            f"{file}, row {ids.index('') + 1}: {name} is empty; each point needs one, or leave out the column"
        )
    return ids


def _check_ids(file: str, ids: list[str] | None, time: str | None) -> None:
    if ids is None or len(set(ids)) == len(ids):
        return
    seen: set[str] = set()
    again = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    where = "" if time is None else f" at {_short(time)}"
    hint = "; a column time tells frames apart" if time is None else ""
    raise UploadError(f"{file}: the point {_short(again)} appears twice{where}{hint}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_numeric(column: Sequence[Any]) -> bool:
    return all(value is None or _is_number(value) for value in column) and any(value is not None for value in column)


def _is_none(value: Any) -> bool:
    return value is None or value != value or value == ""


def _text(value: Any) -> str:
    """Return a cell as people write it: an integer without the decimal point that a column with gaps gives it."""
    if value is None or value != value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _short(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _listed(names: list[str]) -> str:
    return ", ".join(map(_short, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
