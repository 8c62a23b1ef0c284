"""Users' changes of a plot: a log over the original, from which any version can be restored.

A change is a JSON object. The last change of a thing applies, and ``null`` restores its original state.

    {"set": "colour", "grouping": "cluster", "category": "1", "value": "#ff8000"}
    {"set": "hidden", "grouping": "cluster", "category": "1", "value": true}
    {"set": "name",   "grouping": "cluster", "category": "1", "value": "Glomus"}
    {"set": "label",  "point": "AB1", "value": "the odd one"}
    {"set": "glyph",  "point": "AB1", "value": "star"}
    {"set": "group",  "name": "mine", "value": [0, 5, 7]}
    {"set": "view",   "value": "frame=3&camera=..."}

The numbers of a group are rows of points; a view is the part of its link after ``#``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.viz._write import GLYPHS

__all__ = ["BYTES_MAX", "checked", "folded"]

#: Maximum size of a version's changes as JSON.
BYTES_MAX = 16 << 20
_COUNT_MAX = 100_000
_TEXT_MAX = 1000
_VIEW_MAX = 20_000

#: For each kind of change, the fields that identify what it changes.
_ABOUT = {
    "colour": ("grouping", "category"),
    "hidden": ("grouping", "category"),
    "name": ("grouping", "category"),
    "label": ("point",),
    "glyph": ("point",),
    "group": ("name",),
    "view": (),
}


def checked(changes: Any) -> list[dict[str, Any]]:
    """Return changes with only the fields that belong there.

    Raises
    ------
    ValueError
        Naming the first invalid change.
    """
    if not isinstance(changes, (list, tuple)) or len(changes) > _COUNT_MAX:
        raise ValueError(f"changes are a list of at most {_COUNT_MAX}")
    kept = [_checked(number, change) for number, change in enumerate(changes)]
    if len(json.dumps(kept)) > BYTES_MAX:
        raise ValueError(f"changes take at most {BYTES_MAX >> 20} MiB; are there groups of very many points?")
    return kept


def _checked(number: int, change: Any) -> dict[str, Any]:
    kind = change.get("set") if isinstance(change, Mapping) else None
    if not isinstance(kind, str) or kind not in _ABOUT:
        raise ValueError(f"change {number}: it sets none of {', '.join(_ABOUT)}")
    made: dict[str, Any] = {"set": kind}
    for name in _ABOUT[kind]:
        told = change.get(name)
        if not isinstance(told, str) or not 0 < len(told) <= _TEXT_MAX:
            raise ValueError(f"change {number} ({kind}): {name!r} is a text of at most {_TEXT_MAX} characters")
        made[name] = told
    value = change.get("value")
    if value is not None and not _fits(kind, value):
        raise ValueError(f"change {number} ({kind}): the value does not fit")
    return {**made, "value": value}


def _fits(kind: str, value: Any) -> bool:
    if kind == "hidden":
        return isinstance(value, bool)
    if kind == "group":
        return isinstance(value, list) and all(type(row) is int and 0 <= row < 2**32 for row in value)
    if not isinstance(value, str):
        return False
    if kind == "colour":
        return re.fullmatch("#[0-9a-f]{6}", value) is not None
    if kind == "glyph":
        return value in GLYPHS
    return 0 < len(value) <= (_VIEW_MAX if kind == "view" else _TEXT_MAX)


def folded(logs: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the effective changes of consecutive logs: the last change of each thing, without those to null."""
    last: dict[tuple[str, ...], dict[str, Any]] = {}
    for log in logs:
        for change in log:
            key = (change["set"], *(change[name] for name in _ABOUT[change["set"]]))
            last.pop(key, None)
            last[key] = change
    return [change for change in last.values() if change["value"] is not None]
