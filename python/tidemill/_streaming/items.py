"""Lists, maps and aggregates that a function keeps for a key. A checkpoint saves only their changes, whatever their
size.

Items may have a time to live, so the time of each insertion is recorded, in this order: the first items expire first.
How late the rows were that inserted an item is known only once the stream's time has advanced to them, so an item's
time to live starts then. If it started at the time before, which may lie far in the past, an item could expire as soon
as it is inserted.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from tidemill._tables.errors import DataSetError

__all__ = [
    "AGGREGATE",
    "LIST",
    "MAP",
    "NEVER",
    "AggregateState",
    "Fold",
    "Items",
    "ListState",
    "MapState",
    "Part",
    "of_kind",
]

#: The engine's value for a time before the stream has one; for an item, that time has not advanced since it was put.
NEVER = -(2**63)

#: Types of immutable values.
_FIXED = frozenset((type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta))


#: Kinds of items, saved as these numbers.
MAP, LIST, AGGREGATE = 0, 1, 2

#: Combines an accumulator and a value into a new accumulator.
Fold = Callable[[Any, Any], Any]


class Part(NamedTuple):
    """The saved part of a list, a map or an aggregate: all of it, or its changes."""

    kind: int
    #: Whether nothing remains of what was there before.
    cleared: bool
    values: dict[Any, Any]
    gone: list[Any]
    #: The time to live of items, and when each of `values` was put.
    ttl: int | None = None
    times: dict[Any, int] = {}  # noqa: RUF012 (nobody changes it)

    def after(self, before: Part | None) -> Part:
        """Return all of it, given the previous state, which is consumed."""
        values = {} if before is None or self.cleared else before.values
        values.update(_found_again(self.values))
        # The previous part is consumed, so it may be changed; nothing else refers to it, except to the shared empty
        # dict.
        times = {} if before is None or self.cleared else before.times or {}
        for name in self.values:
            times.pop(_name(name), None)
        times.update(_found_again(self.times))
        for name in self.gone:
            values.pop(_name(name), None)
            times.pop(_name(name), None)
        return Part(self.kind, True, values, [], self.ttl, times)


class Items:
    """Items by name, and which of them have changed since they were saved."""

    __slots__ = ("_changed", "_check", "_cleared", "_times", "_ttl", "_values")

    _kind: int

    def __init__(self, values: dict[Any, Any] | None = None) -> None:
        self._values = {} if values is None else values
        # In the order of the changes.
        self._changed: dict[Any, None] = {}
        self._cleared = False
        #: Raises for an invalid name or value, if the function has declared the types of items.
        self._check: Callable[[Any, Any], None] | None = None
        self._ttl: int | None = None
        # When items were put, earliest first; contains all items if they have a time to live. An OrderedDict, because
        # finding the first item of a dict becomes slow when many earlier ones were deleted.
        self._times: OrderedDict[Any, int] = OrderedDict()

    def _put(self, name: Any, value: Any) -> None:
        if self._check is not None:
            self._check(name, value)
        self._values[name] = value
        self._changed[name] = None
        if self._ttl is not None:
            self._times.pop(name, None)
            self._times[name] = NEVER

    def _drop(self, name: Any) -> None:
        del self._values[name]
        self._times.pop(name, None)
        self._changed[name] = None

    def _live(self, ttl: int | None, times: dict[Any, int] | None = None) -> None:
        """Set the time to live of items and, if saved, their insertion times."""
        if times is None:
            if ttl == self._ttl:
                return
            # They are saved again, with their new lifetimes.
            self._changed.update(dict.fromkeys(self._values))
            times = self._times
        else:
            times = _found_again(times)
        self._ttl = ttl
        known = {} if ttl is None else {name: times.get(name, NEVER) for name in self._values}
        self._times = OrderedDict(sorted(known.items(), key=lambda item: (item[1] == NEVER, item[1])))

    def _is_fresh(self) -> bool:
        """Return whether any item was put since time last advanced."""
        return next(reversed(self._times.values()), None) == NEVER

    def _count_from(self, now: int) -> bool:
        """Start the time to live of items put since time last advanced, and return whether there are any."""
        fresh = list(itertools.takewhile(lambda name: self._times[name] == NEVER, reversed(self._times)))
        self._times.update(dict.fromkeys(fresh, now))
        # Otherwise, a job that resumes would restart their time to live.
        self._changed.update(dict.fromkeys(fresh))
        return bool(fresh)

    def _expire(self, now: int) -> None:
        """Forget expired items."""
        if self._ttl is None:
            return
        has_had = bool(self._values)
        while self._times:
            name, at = next(iter(self._times.items()))
            if at == NEVER or at + self._ttl > now:
                return
            self._drop(name)
        if has_had:
            # So that a list whose names start again replaces the saved one, instead of being mixed with it.
            self.clear()

    def _expires(self, now: int) -> int | None:
        """Return when the next item expires or must be checked again."""
        if self._ttl is None or not self._times:
            return None
        first = next(iter(self._times.values()))
        return (now if first == NEVER else first) + self._ttl

    def _read(self, name: Any) -> Any:
        value = self._values[name]
        if type(value) not in _FIXED:
            # The caller may change the value in place.
            self._changed[name] = None
        return value

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forget all items."""
        self._values.clear()
        self._times.clear()
        self._changed.clear()
        self._cleared = True

    def _part(self, whole: bool) -> Part:
        """Return the part to save; `whole`: all of it."""
        if whole:
            return Part(self._kind, True, self._values, [], self._ttl, dict(self._times))
        values = {name: self._values[name] for name in self._changed if name in self._values}
        times = {name: at for name in values if (at := self._times.get(name)) is not None}
        gone = [name for name in self._changed if name not in values]
        return Part(self._kind, self._cleared, values, gone, self._ttl, times)

    def _saved(self) -> None:
        """Mark all changes as saved."""
        self._changed.clear()
        self._cleared = False


class ListState(Items):
    """A list that a function keeps for a key; see `KeyContext.list_state`."""

    __slots__ = ()
    _kind = LIST

    def append(self, value: Any) -> None:
        """Append a value: any object that can be pickled."""
        # The names are ascending numbers.
        self._put(next(reversed(self._values), -1) + 1, value)

    def extend(self, values: Iterable[Any]) -> None:
        """Append several values."""
        for value in values:
            self.append(value)

    def __iter__(self) -> Iterator[Any]:
        return map(self._read, self._values)

    def __repr__(self) -> str:
        return f"ListState({list(self._values.values())!r})"


class MapState(Items, MutableMapping[Any, Any]):
    """A map that a function keeps for a key, used like a dict; see `KeyContext.map_state`."""

    __slots__ = ()
    _kind = MAP

    def __init__(self, values: dict[Any, Any] | None = None) -> None:
        super().__init__(None if values is None else _found_again(values))

    def __getitem__(self, name: Any) -> Any:
        return self._read(_name(name))

    def __setitem__(self, name: Any, value: Any) -> None:
        self._put(_name(name), value)

    def __delitem__(self, name: Any) -> None:
        self._drop(_name(name))

    def __contains__(self, name: object) -> bool:
        return _name(name) in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"MapState({self._values!r})"


def _one_more(count: int, _: object) -> int:
    return count + 1


#: Folds with names.
_FOLDS: dict[str, Fold] = {"count": _one_more, "sum": operator.add, "min": min, "max": max}
#: The name of an aggregate's only item.
_ONLY = 0


class AggregateState(Items):
    """An accumulator of the values that a function has added for a key; see `KeyContext.aggregate_state`."""

    __slots__ = ("_fold", "_initial", "_skips_none")
    _kind = AGGREGATE

    def __init__(self, values: dict[Any, Any] | None = None) -> None:
        super().__init__(values)
        # Set again whenever the state is accessed, because functions are not saved.
        self._fold: Fold = operator.add
        self._initial: Any = None
        self._skips_none = False

    def _fold_by(self, name: str, fold: str | Fold, initial: Any) -> None:
        """Set how to add values."""
        if callable(fold):
            self._fold, self._initial, self._skips_none = fold, initial, False
            return
        if fold not in _FOLDS:
            names = ", ".join(map(repr, _FOLDS))
            raise DataSetError(
                f"the aggregate {name!r} is {names} or a function of an accumulator and a value, not {fold!r}"
            )
        self._fold, self._skips_none = _FOLDS[fold], True
        self._initial = 0 if fold == "count" and initial is None else initial

    def add(self, value: Any) -> None:
        """Add a value to the accumulator. ``"count"``, ``"sum"``, ``"min"`` and ``"max"`` ignore None."""
        if value is None and self._skips_none:
            return
        before = self.get()
        is_first = not self._values and self._initial is None
        self._put(_ONLY, value if is_first else self._fold(before, value))

    def get(self) -> Any:
        """Return the accumulator. Before the first value it is `initial`, by default 0 for ``"count"`` and None
        otherwise.
        """
        if self._values:
            return self._read(_ONLY)
        # The caller may change it in place, but it is shared by all keys.
        return self._initial if type(self._initial) in _FIXED else copy.deepcopy(self._initial)

    def __repr__(self) -> str:
        return f"AggregateState({self._values.get(_ONLY)!r})"


def of_kind(kind: int, values: dict[Any, Any]) -> ListState | MapState | AggregateState:
    """Return saved items as an object of their kind."""
    if kind == AGGREGATE:
        return AggregateState(values)
    return ListState(values) if kind == LIST else MapState(values)


def _name(name: Any) -> Any:
    """Return a name in canonical form: NaN is unequal to any value, but a single NaN object is found again."""
    if isinstance(name, float) and name != name:
        return math.nan
    return tuple(map(_name, name)) if type(name) is tuple else name


def _found_again(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return unpickled items, with their names in canonical form."""
    if any(issubclass(kind, (float, tuple)) for kind in set(map(type, values))):
        return {_name(name): value for name, value in values.items()}
    return values
