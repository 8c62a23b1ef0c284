"""Groups of points that viewers have made in the page, stored beside the frames in ``selections.json``.

Every change, by a server for a viewer or by a writer that rewrites the frames, reads and replaces the file while it
holds a lock: if two viewers save a group at the same time, both are saved.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.viz._format import INDEX, FrameError

__all__ = ["BYTES_MAX", "GROUPING", "NAME", "Groups", "change", "checked", "delete", "locked", "put", "read", "told"]

NAME = "selections.json"

#: The page's name for them as a grouping.
GROUPING = "my groups"

#: Maximum size of all groups of a folder.
BYTES_MAX = 32 << 20
_GROUPS_MAX = 64
_NAME_CHARACTERS_MAX = 80

#: Rows of points by the name of their group, in the order of creation.
Groups = dict[str, list[int]]


def read(folder: Path) -> Groups:
    """Return the groups.

    Raises
    ------
    FrameError
        If the file is invalid.
    """
    path = folder / NAME
    try:
        return checked(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FrameError(f"{path} cannot be read: {error}; without it there are no groups") from error


def checked(text: bytes, points: int = 2**32) -> Groups:
    """Read groups as they are in the file: a list of ``{"name": ..., "rows": [...]}``.

    Parameters
    ----------
    points : int
        Number of points.

    Raises
    ------
    ValueError
        If the data is invalid.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("groups are JSON") from None
    if not isinstance(told, list):
        raise ValueError("groups are a list")
    groups: Groups = {}
    for group in told:
        name, rows = (group.get("name"), group.get("rows")) if isinstance(group, dict) else (None, None)
        if not isinstance(name, str):
            raise ValueError("a group has a name")
        groups[name] = _rows(name, rows, points)
    return _within(groups)


def change(folder: Path, make: Callable[[Groups], Groups]) -> bytes:
    """Replace the groups by the result of `make`, atomically; changes are serialized. Returns the groups as they are in
    the file.

    Raises
    ------
    ValueError
        From `make`; or if there are too many groups, or names are too long. In these cases nothing changes.
    FrameError
        If the groups cannot be read.
    """
    with locked(folder):
        text = told(_within(make(read(folder))))
        if len(text) > BYTES_MAX:
            raise ValueError(f"all groups together take at most {BYTES_MAX >> 20} MiB; delete one first")
        made = folder / f".{NAME}"
        made.write_bytes(text)
        made.replace(folder / NAME)
        return text


def put(name: str, text: bytes, points: int) -> Callable[[Groups], Groups]:
    """Return the change that adds a group, or replaces its rows: ``{"rows": [...]}``.

    Raises
    ------
    ValueError
        If the data is invalid.
    """
    try:
        group = json.loads(text)
    except (ValueError, RecursionError):
        group = None
    rows = _rows(name, group.get("rows") if isinstance(group, dict) else None, points)
    return lambda groups: {**groups, name: rows}


def delete(name: str) -> Callable[[Groups], Groups]:
    """Return the change that removes a group; does nothing if it does not exist."""
    return lambda groups: {other: rows for other, rows in groups.items() if other != name}


def told(groups: Groups) -> bytes:
    """Return groups as they are in the file."""
    return json.dumps([{"name": name, "rows": rows} for name, rows in groups.items()], separators=(",", ":")).encode()


def _rows(name: str, rows: Any, points: int) -> list[int]:
    if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < points for row in rows):
        raise ValueError(
            f"the rows of group {name[:_NAME_CHARACTERS_MAX]!r} are numbers of points, from 0 to {points - 1}"
        )
    return rows


def _within(groups: Groups) -> Groups:
    if len(groups) > _GROUPS_MAX:
        raise ValueError(f"there are at most {_GROUPS_MAX} groups; delete one first")
    if not all(0 < len(name) <= _NAME_CHARACTERS_MAX for name in groups):
        raise ValueError(f"a group's name has at most {_NAME_CHARACTERS_MAX} characters")
    return groups


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others from changing the groups, and from rewriting the frames.

    Raises
    ------
    FileNotFoundError
        If there are no frames.
    """
    while True:
        # The index exists as long as the frames do, and is replaced only together with all of them.
        with (folder / INDEX).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), (folder / INDEX).stat()):
                yield
                return
