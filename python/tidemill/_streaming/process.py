"""User functions over the rows of each key of a stream, with state and timers for each key.

The engine keeps the keys, their timers and their states. It calls what is here: the function, and the pickling of its states.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tidemill._streaming.items import NEVER as _NEVER
from tidemill._streaming.items import AggregateState, Fold, ListState, MapState, Part, of_kind
from tidemill._streaming.state import Declared
from tidemill._tables.durations import Duration, micros, micros_since_1970
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Row, Schema, table_of_rows
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable

__all__ = ["Function", "KeyContext", "KeyState", "KeyedLogic"]

_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)
#: The engine's time at the end of the stream.
_END = 2**63 - 1
#: Approximate memory of an empty state, in bytes.
_STATE_BYTES = 200
#: The number of elements that are measured in a state, in each of these elements, and so on.
_MEASURED = (30, 10, 3, 1)

_Items = ListState | MapState | AggregateState
_Kind = TypeVar("_Kind", ListState, MapState, AggregateState)
#: A state; timers that were set (or deleted): whether by the machine's clock, and when; whether something with a time
#: to live was put; and when the first item expires.
_Called = tuple["KeyState | None", list[tuple[bool, int, bool]], bool, int | None]


class KeyState:
    """The state of a key in memory."""

    __slots__ = ("items", "key", "value")

    def __init__(self, key: tuple[Any, ...], value: Any = None, items: dict[str, _Items] | None = None) -> None:
        self.key = key
        self.value = value
        #: Lists, maps and aggregates, by name.
        self.items = {} if items is None else items

    def is_empty(self) -> bool:
        """Return whether there is nothing to keep."""
        return self.value is None and not any(self.items.values())

    def lifetimes(self, now: int) -> tuple[bool, int | None]:
        """Return whether any item was put since time last advanced, and when the first expires or must be checked again."""
        if not self.items:
            return False, None
        expires = min((at for items in self.items.values() if (at := items._expires(now)) is not None), default=None)
        return any(items._is_fresh() for items in self.items.values()), expires


class KeyContext:
    """State and timers of the key for which a function is called; valid during the call.

    Attributes
    ----------
    state : object
        The function's state for the key: any object that can be pickled, or with ``state=`` a dict of its fields.
        ``None`` at first; set it to ``None`` to forget it. You may change it in place.
    time : datetime or None
        The stream's time (UTC): every earlier row has come. None before any is known. At the end, when all timers fire,
        it is that of the latest row, or of the timer if that is later.
    timers : list of datetime
        The timers that have fired and caused this call. Empty when the function is called for rows.
    alarms : list of datetime
        The alarms that have fired and caused this call.

    A key is forgotten when it has no state, timer, alarm, list or map item, or aggregate.
    """

    __slots__ = ("_changes", "_clock", "_declared", "_key_state", "_now", "alarms", "state", "time", "timers")

    def __init__(
        self,
        state: KeyState,
        time: int | None,
        now: int,
        declared: Declared | None,
        clock: Callable[[], int],
        timers: list[datetime],
        alarms: list[datetime],
    ) -> None:
        self.state = state.value
        self.time = None if time is None else _EPOCH + time * _US
        self.timers = timers
        self.alarms = alarms
        self._key_state = state
        self._now = now
        self._declared = declared
        self._clock = clock
        self._changes: list[tuple[bool, int, bool]] = []

    @property
    def now(self) -> datetime:
        """The machine's clock (UTC)."""
        return _EPOCH + self._clock() * _US

    def list_state(self, name: str, ttl: Duration | None = None) -> ListState:
        """Return a list of this key: you can append to it, iterate over it and clear it. It is empty at first.

        Checkpoints save the items that were appended since the last one, and items that were read and so may have been
        changed in place. With `ttl`, an item is forgotten when the stream's time has advanced by this much since it
        first advanced after the item was appended; the `ttl` of the latest call applies.

        Raises
        ------
        DataSetError
            If the key has a map or an aggregate with this name, or ``lists=`` of `process` has no such list.
        """
        return self._items(name, ListState, ttl)

    def map_state(self, name: str, ttl: Duration | None = None) -> MapState:
        """Return a map of this key, which you use like a dict. It is empty at first; the order of items is not
        preserved.

        Checkpoints save the items that were put, removed, or read (and so may have been changed in place) since the
        last one. With `ttl`, an item is forgotten when the stream's time has advanced by this much since it first
        advanced after the item was put; the `ttl` of the latest call applies.

        Raises
        ------
        DataSetError
            If the key has a list or an aggregate with this name, or ``maps=`` of `process` has no such map.
        """
        return self._items(name, MapState, ttl)

    def aggregate_state(
        self, name: str, fold: str | Fold, initial: Any = None, ttl: Duration | None = None
    ) -> AggregateState:
        """Return an aggregate of this key: it combines the values you `add` with `fold`, and `get` returns the result.

        Parameters
        ----------
        name : str
            Name of the aggregate within the key.
        fold : str or callable
            ``"count"``, ``"sum"``, ``"min"``, ``"max"``, or a function called as ``fold(accumulator, value)`` that
            returns the new accumulator, which may be the same object, changed in place. It is not saved: pass it in
            each call.
        initial : object, optional
            The accumulator before the first value, copied for each key; any object that can be pickled. By default the
            first value becomes the accumulator.
        ttl : str, number of seconds or timedelta, optional
            Forget the accumulator when the stream's time has advanced by this much since it first advanced after a
            value was added; the `ttl` of the latest call applies.

        Raises
        ------
        DataSetError
            If the key has a list or a map with this name, `fold` is invalid, or ``aggregates=`` of `process` has no
            such aggregate.
        """
        state = self._items(name, AggregateState, ttl)
        state._fold_by(name, fold, initial)
        return state

    def _items(self, name: str, kind: type[_Kind], ttl: Duration | None) -> _Kind:
        items = self._key_state.items.get(name)
        if items is None:
            items = self._key_state.items[name] = kind()
        if not isinstance(items, kind):
            raise DataSetError(f"{name!r} is a {type(items).__name__} of the key, not a {kind.__name__}")
        if self._declared is not None and items._check is None:
            items._check = self._declared.check(name, kind._kind)
        if ttl is not None:
            lives = micros(ttl, "ttl")
            if lives <= 0:
                raise DataSetError(f"the ttl of {name!r}, {ttl!r}, must be greater than zero")
            items._live(lives)
        if _NEVER < self._now < _END:
            items._expire(self._now)
        return items

    def set_timer(self, at: datetime) -> None:
        """Call the function for this key when the stream's time passes `at`; at once, if it already has. There is one
        timer for each time.

        Until the end, the stream's time advances to its latest row. At the end all timers fire that were set before,
        but none that are set then. A source without ``time=`` has no time until it ends: use alarms instead.
        """
        self._changes.append((False, _micros(at, "set_timer"), True))

    def delete_timer(self, at: datetime) -> None:
        """Delete a timer; does nothing if it does not exist."""
        self._changes.append((False, _micros(at, "delete_timer"), False))

    def set_alarm(self, at: datetime) -> None:
        """Call the function for this key when the machine's clock (`now`) passes `at`, to within about a twentieth of a
        second.

        There is one alarm for each time. A job that resumes after a failure keeps its alarms: those whose time has
        passed meanwhile fire at once. At the end of the stream all alarms fire that were set before, whatever the time.
        """
        self._changes.append((True, _micros(at, "set_alarm"), True))

    def delete_alarm(self, at: datetime) -> None:
        """Delete an alarm; does nothing if it does not exist."""
        self._changes.append((True, _micros(at, "delete_alarm"), False))


#: Called as ``function(key, rows, context)``; it returns a row, rows, or None.
Function = Callable[[Row, list[Row], KeyContext], "Row | Iterable[Row] | None"]


class KeyedLogic:
    """Calls a function for keys and pickles its states; one for each copy of the task. The engine calls its methods, one at a time."""

    def __init__(
        self,
        function: Function,
        name: str,
        keys: tuple[str, ...],
        schema: Schema,
        declared: Declared | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._function = function
        self._name = name
        self._names = keys
        self._schema = schema
        self._declared = declared
        self._fields = None if declared is None else declared.fields
        self._clock = clock
        # The keys of the batch.
        self._keys: list[tuple[Any, ...]] = []
        self._rows: list[Row] = []
        self._made: list[Any] = []

    def on_batch(self, keys: NativeTable, rows: NativeTable) -> None:
        """Take the rows of a batch, for the calls of `on_rows` that follow."""
        self._keys = _key_tuples(keys)
        self._rows = Table(rows).to_pylist()

    def on_rows(self, number: int, start: int, end: int, state: KeyState | None, time: int | None, now: int) -> _Called:
        """Call the function for a key of the batch, by its number, and its rows."""
        return self._call(state or KeyState(self._keys[number]), self._rows[start:end], time, now)

    def on_timer(
        self, key: NativeTable | None, by_clock: bool, at: int, state: KeyState | None, time: int | None, now: int
    ) -> _Called:
        """Call the function for a timer. `key` has the columns of the key if it has no state."""
        if state is None:
            assert key is not None
            state = KeyState(_key_tuples(key)[0])
        gone_off = [_EPOCH + at * _US]
        return self._call(state, [], time, now, *(([], gone_off) if by_clock else (gone_off, [])))

    def _call(
        self,
        state: KeyState,
        rows: list[Row],
        time: int | None,
        now: int,
        timers: list[datetime] | None = None,
        alarms: list[datetime] | None = None,
    ) -> _Called:
        context = KeyContext(state, time, now, self._declared, self._clock, timers or [], alarms or [])
        named = dict(zip(self._names, state.key, strict=True))
        try:
            returned = self._function(named, rows, context)
            if isinstance(returned, Mapping):
                self._made.append(returned)
            elif returned is not None:
                self._made += returned
        except Exception as error:
            raise DataSetError(f"{self._name} failed on the key {named!r}: {error}") from error
        if self._fields is not None and (wrong := self._fields.wrong(context.state)):
            raise DataSetError(f"{self._name}: the state of the key {named!r} {wrong}")
        state.value = context.state
        return (None if state.is_empty() else state, context._changes, *state.lifetimes(now))

    def take_rows(self) -> list[NativeTable]:
        """Return the rows that the function has returned since the last call."""
        made, self._made, self._rows, self._keys = self._made, [], [], []
        return [table_of_rows(made, self._schema)] if made else []

    def encode(self, state: KeyState, whole: bool) -> bytes:
        """Pickle a state; unless `whole`, only the changes of its lists, maps and aggregates since `saved`."""
        parts = ((name, items._part(whole)) for name, items in state.items.items())
        some = {name: tuple(part) for name, part in parts if part.values or part.gone or (part.cleared and not whole)}
        try:
            return pickle.dumps((state.key, state.value, some))
        except Exception as error:
            raise DataSetError(f"{self._name}: a state cannot be pickled: {error}") from error

    def saved(self, state: KeyState) -> None:
        """Mark a state as saved."""
        for items in state.items.values():
            items._saved()

    def decode(self, parts: list[bytes]) -> KeyState:
        """Return the state from its pickles: a whole, and the changes since."""
        key, value = (), None
        saved: dict[str, Part] = {}
        for pickled in parts:
            key, value, some = pickle.loads(pickled)
            for name, changed in some.items():
                saved[name] = Part(*changed).after(saved.get(name))
        items: dict[str, _Items] = {}
        for name, part in saved.items():
            values = part.values if self._declared is None else self._declared.filled(name, part.kind, part.values)
            items[name] = of_kind(part.kind, values)
            items[name]._live(part.ttl, part.times)
        return KeyState(key, value if self._fields is None else self._fields.filled(value), items)

    def bytes(self, state: KeyState) -> int:
        """Return the approximate size of a state in memory."""
        items = state.items.values()
        return _STATE_BYTES + int(
            _bytes_of([state.key, state.value, *(kept for one in items for kept in (one._values, one._times))])
        )

    def lifetimes(self, state: KeyState, now: int) -> tuple[bool, int | None]:
        """See `KeyState.lifetimes`."""
        return state.lifetimes(now)

    def count_from(self, state: KeyState, now: int) -> bool:
        """Start the time to live of items put since time last advanced. Returns whether items changed."""
        return sum(items._count_from(now) for items in state.items.values()) > 0

    def expire(self, state: KeyState, now: int) -> KeyState | None:
        """Remove expired items. Returns None if nothing is left."""
        for items in state.items.values():
            items._expire(now)
        return None if state.is_empty() else state


def _key_tuples(keys: NativeTable) -> list[tuple[Any, ...]]:
    columns = [keys.column(name) for name, _ in keys.fields]
    return list(zip(*columns, strict=True))


def _bytes_of(one: object, level: int = 0) -> float:
    """Return the approximate size in memory of an object with everything in it; large containers are sampled."""
    size = float(sys.getsizeof(one))
    if isinstance(one, Mapping):
        inside: Iterable[object] = itertools.chain.from_iterable(one.items())
        count = 2 * len(one)
    elif isinstance(one, (list, tuple, set, frozenset)):
        inside, count = one, len(one)
    elif hasattr(one, "__dict__"):
        inside, count = [vars(one)], 1
    else:
        return size
    if level == len(_MEASURED):
        return size
    sizes = [_bytes_of(part, level + 1) for part in itertools.islice(inside, _MEASURED[level])]
    return size + count * sum(sizes) / max(len(sizes), 1)


def _micros(at: datetime, what: str) -> int:
    clock = "now" if what.endswith("alarm") else "time"
    return micros_since_1970(at, what, f"context.{clock} + timedelta(seconds=10)")
