"""States whose fields have names and types: what a function may keep of a key, and what becomes of states of a program before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Any

__all__ = ["StateFields"]

#: What values of a type are, by how the name of the Arrow type begins; of others any is taken.
_CLASSES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("Int", (int,)),
    ("UInt", (int,)),
    ("Float", (float, int)),
    ("Utf8", (str,)),
    ("LargeUtf8", (str,)),
    ("Binary", (bytes,)),
    ("Boolean", (bool,)),
    ("Timestamp", (datetime,)),
    ("Date", (date,)),
    ("Duration", (timedelta,)),
    ("List", (list, tuple)),
    ("Struct", (Mapping,)),
)


class StateFields:
    """The fields of states, given as names and Arrow types."""

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._types = dict(fields)
        self._classes = {
            name: next((classes for begin, classes in _CLASSES if of.startswith(begin)), None)
            for name, of in self._types.items()
        }

    def wrong(self, state: object) -> str | None:
        """In words what is wrong with a state, if anything is. ``None`` is none, and so are fields that are not there."""
        if state is None:
            return None
        if not isinstance(state, dict):
            return f"is no dict of its fields ({', '.join(self._types)}), but {type(state).__name__}"
        for name, value in state.items():
            if name not in self._types:
                return f"has {name!r}, which state= does not name; it names {', '.join(self._types)}"
            classes = self._classes[name]
            if value is None or classes is None:
                continue
            # True is an int to Python, and to nobody else.
            if not isinstance(value, classes) or (isinstance(value, bool) and classes[0] is not bool):
                return f"has {value!r} as {name!r}, which is to be {self._types[name]}"
        return None

    def filled(self, state: Any) -> Any:
        """A state that was saved, perhaps before it had all of these fields."""
        if state is None:
            return None
        return {**dict.fromkeys(self._types), **state}
