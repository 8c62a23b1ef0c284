"""Named and typed states, lists, maps and aggregates: what a function may keep for a key, and how to restore those of
an earlier program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Any

from tidemill._streaming.items import AGGREGATE, LIST, MAP
from tidemill._tables.errors import DataSetError

__all__ = ["Declared", "ItemType", "StateFields"]

#: The Python classes for values of a type, by the beginning of the Arrow type's name; other types accept any value.
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


#: Type of an item of a list or a map: one value of a type, or a dict with fields.
ItemType = str | Mapping[str, str]
#: Fields with the names of their Arrow types.
Resolve = Callable[[Mapping[str, str]], list[tuple[str, str]]]


class StateFields:
    """The fields of states, given as names and Arrow types."""

    def __init__(self, fields: Iterable[tuple[str, str]], argument: str = "state=") -> None:
        self._types = dict(fields)
        self._argument = argument
        self._classes = {
            name: next((classes for begin, classes in _CLASSES if of.startswith(begin)), None)
            for name, of in self._types.items()
        }

    def wrong(self, state: object) -> str | None:
        """Return what is wrong with a state, in words, if anything is. ``None`` means no state; fields may be missing."""
        if state is None:
            return None
        if not isinstance(state, dict):
            return f"must be a dict of its fields ({', '.join(self._types)}), not {type(state).__name__}"
        for name, value in state.items():
            if name not in self._types:
                return f"has {name!r}, which {self._argument} does not name; it names {', '.join(self._types)}"
            classes = self._classes[name]
            if value is None or classes is None:
                continue
            # To Python, True is an int; here it is not.
            if not isinstance(value, classes) or (isinstance(value, bool) and classes[0] is not bool):
                return f"has {value!r} as {name!r}, which must be {self._types[name]}"
        return None

    def filled(self, state: Any) -> Any:
        """Return a saved state, with None for fields that it did not have yet."""
        if state is None:
            return None
        return {**dict.fromkeys(self._types), **state}


class _Items:
    """Types of the items of a list or map, of the names of a map, and of an aggregate: fields, or a single type without
    a name.
    """

    def __init__(self, what: str, of: ItemType, resolve: Resolve, *, has_items: bool = True) -> None:
        if not isinstance(of, (str, Mapping)) or not of:
            has = "has items of a type, or" if has_items else "is of a type, or a dict"
            raise DataSetError(f"{what} {has} with at least one field, not {of!r}")
        self._what = what
        self._value = f"an item of {what}" if has_items else what
        self._is_plain = isinstance(of, str)
        self._types = {"": of} if isinstance(of, str) else dict(of)
        self._fields = StateFields(resolve(self._types), "the program")

    def columns(self) -> list[tuple[str, str]]:
        """Return their schema, for a checkpoint."""
        return [(f"{self._what}, {name}" if name else self._what, of) for name, of in self._types.items()]

    def check(self, value: Any) -> None:
        """Raise if a value is invalid."""
        wrong = self._fields.wrong({"": value} if self._is_plain else value)
        if wrong is not None:
            wrong = f"is {value!r}, but must be {self._types['']}" if self._is_plain else wrong
            raise DataSetError(f"{self._value} {wrong}")

    def filled(self, value: Any) -> Any:
        """Return a saved value, with None for fields that it did not have yet."""
        return value if self._is_plain else self._fields.filled(value)


#: The argument of `process` that declares items of a kind.
_ARGUMENTS = {LIST: "lists=", MAP: "maps=", AGGREGATE: "aggregates="}


class Declared:
    """A function's declarations for a key: the fields of its state, its lists, maps and aggregates. Anything undeclared
    may have any type.
    """

    def __init__(
        self,
        state: list[tuple[str, str]] | None,
        lists: Mapping[str, ItemType] | None,
        maps: Mapping[str, tuple[str, ItemType]] | None,
        aggregates: Mapping[str, ItemType] | None,
        resolve: Resolve,
    ) -> None:
        self.fields = None if state is None else StateFields(state)
        # By kind.
        self._items: dict[int, dict[str, tuple[_Items | None, _Items]] | None] = dict.fromkeys(_ARGUMENTS)
        if lists is not None:
            self._items[LIST] = {name: (None, _Items(f"list {name}", of, resolve)) for name, of in lists.items()}
        if maps is not None:
            for name, pair in maps.items():
                if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
                    raise DataSetError(f"map {name} needs a type of names and one of items, not {pair!r}")
            self._items[MAP] = {
                name: (_Items(f"names of map {name}", names, resolve), _Items(f"map {name}", of, resolve))
                for name, (names, of) in maps.items()
            }
        if aggregates is not None:
            self._items[AGGREGATE] = {
                name: (None, _Items(f"aggregate {name}", of, resolve, has_items=False))
                for name, of in aggregates.items()
            }

    def columns(self) -> list[tuple[str, str]]:
        """Return the schemas of lists, maps and aggregates, for a checkpoint."""
        found = [pair for of in self._items.values() for pair in (of or {}).values()]
        return [column for pair in found for items in pair if items is not None for column in items.columns()]

    def check(self, name: str, kind: int) -> Callable[[Any, Any], None] | None:
        """Return the check for names and values of a list, a map or an aggregate; None if they may be anything.

        Raises
        ------
        DataSetError
            If it was not declared.
        """
        of = self._items[kind]
        if of is None:
            return None
        if name not in of:
            raise DataSetError(f"{name!r} is not among {_ARGUMENTS[kind]}, which names {', '.join(of) or 'none'}")
        names, items = of[name]

        def check(name: Any, value: Any) -> None:
            if names is not None:
                names.check(name)
            items.check(value)

        return check

    def filled(self, name: str, kind: int, values: dict[Any, Any]) -> dict[Any, Any]:
        """Return saved items, with None for fields that they did not have yet."""
        of = (self._items[kind] or {}).get(name)
        return values if of is None else {name: of[1].filled(value) for name, value in values.items()}
