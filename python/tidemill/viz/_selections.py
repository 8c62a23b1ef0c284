"""Groups of points that readers of the page have made, kept beside the frames in ``selections.json``."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["BYTES_MAX", "read", "write"]

_NAME = "selections.json"

#: Most that all groups of a folder may take.
BYTES_MAX = 32 << 20
_GROUPS_MAX = 64
_NAME_CHARACTERS_MAX = 80


def read(folder: Path) -> bytes:
    """Return the groups as JSON: a list of ``{"name": ..., "rows": [...]}``."""
    try:
        return (folder / _NAME).read_bytes()
    except FileNotFoundError:
        return b"[]"


def write(folder: Path, text: bytes) -> None:
    """Replace the groups, all at once.

    Raises
    ------
    ValueError
        What is no list of groups is not stored.
    """
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("groups are JSON") from None
    if not isinstance(groups, list) or len(groups) > _GROUPS_MAX:
        raise ValueError(f"groups are a list of at most {_GROUPS_MAX}")
    kept = []
    for group in groups:
        name, rows = (group.get("name"), group.get("rows")) if isinstance(group, dict) else (None, None)
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS_MAX:
            raise ValueError(f"a group has a name of at most {_NAME_CHARACTERS_MAX} characters")
        if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < 2**32 for row in rows):
            raise ValueError(f"the rows of group {name!r} are numbers of points")
        kept.append({"name": name, "rows": rows})
    made = folder / f".{_NAME}.{os.getpid()}"
    made.write_text(json.dumps(kept, separators=(",", ":")))
    made.replace(folder / _NAME)
