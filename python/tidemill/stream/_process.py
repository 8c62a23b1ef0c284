"""Functions of programs over the rows of each key of a stream, with a state for each key and timers."""

from __future__ import annotations

import heapq
import math
import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tidemill._tidemill import NativeTable
from tidemill.dataset._errors import DataSetError
from tidemill.dataset._map import Row, Schema, _table
from tidemill.dataset._table import Table

__all__ = ["Function", "KeyContext", "Processor"]

_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)
#: What the engine says of time before there is any, and at the end.
_NEVER, _END = -(2**63), 2**63 - 1
#: States are saved whole again when changes are so many more.
_CHANGES_MIN = 1000

_Key = tuple[Hashable, ...]


@dataclass(slots=True)
class _Entry:
    """What is kept of a key."""

    bucket: int
    state: Any = None
    timers: set[int] = field(default_factory=set)
    #: When rows came last, and when that is looked at next.
    touched: int = _NEVER
    looked_at: int | None = None


class KeyContext:
    """What a function knows of the key that it is called for; for the time of the call.

    Attributes
    ----------
    state : object
        What the function keeps of the key: anything that can be pickled, ``None`` at first and to forget the key. It may be
        changed in place.
    time : datetime or None
        The stream's time (UTC): every earlier row has come. None before any is known.
    timers : list of datetime
        The timers that have gone off: that is why the function is called. Empty when it is called for rows.
    """

    __slots__ = ("_entry", "_set", "state", "time", "timers")

    def __init__(self, entry: _Entry, time: datetime | None, timers: list[datetime]) -> None:
        self.state = entry.state
        self.time = time
        self.timers = timers
        self._entry = entry
        self._set: list[int] = []

    def set_timer(self, at: datetime) -> None:
        """Call the function for this key when the stream's time passes `at`; at once, if it has. One for each time.

        Before the end the stream's time goes on to its latest row. At the end all timers go off that have been set before, and
        none that are set then.
        """
        time = _micros(at)
        if time not in self._entry.timers:
            self._entry.timers.add(time)
            self._set.append(time)

    def delete_timer(self, at: datetime) -> None:
        """Forget a timer; it is no error if there is none."""
        self._entry.timers.discard(_micros(at))


#: Called as ``function(key, rows, context)``; it returns a row, rows, or None.
Function = Callable[[Row, list[Row], KeyContext], "Row | Iterable[Row] | None"]


class Processor:
    """Calls a function for keys; one for each thread. The engine calls its methods, one at a time."""

    def __init__(self, function: Function, name: str, keys: tuple[str, ...], schema: Schema, ttl: int | None) -> None:
        self._function = function
        self._name = name
        self._names = keys
        self._schema = schema
        self._ttl = ttl
        self._entries: dict[_Key, _Entry] = {}
        self._timers: list[tuple[int, int, _Key]] = []
        # Breaks ties: keys may have no order.
        self._timers_set = 0
        self._now = _NEVER
        # Of each key the bucket, for those that are gone.
        self._changed: dict[_Key, int] = {}
        self._changes = 0
        self._saved: set[int] = set()

    def rows(self, keys: NativeTable, buckets: list[int], ends: list[int], rows: NativeTable) -> list[NativeTable]:
        """Rows have come: of each key those up to its end."""
        made: list[Row] = []
        found = Table(rows).to_pylist()
        columns = [keys.column(name) for name, _ in keys.fields]
        start = 0
        for values, bucket, end in zip(zip(*columns, strict=True), buckets, ends, strict=True):
            key = _key(values)
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(bucket)
            if self._ttl is not None:
                entry.touched = self._now
                self._look_at(entry, key)
            made += self._call(key, entry, found[start:end], [])
            start = end
        made += self._due()
        return self._made(made)

    def time(self, now: int) -> list[NativeTable]:
        """Time has passed, in microseconds."""
        self._now = max(now, self._now)
        return self._made(self._due())

    def snapshot(self, whole: bool) -> list[tuple[int, bool, bytes]]:
        """What is kept, by bucket: what has changed, or all; with no bytes, nothing."""
        whole = whole or self._changes > 2 * len(self._entries) + _CHANGES_MIN
        parts: dict[int, list[tuple[Any, ...]]] = {}
        keys: Iterable[tuple[_Key, int]] = self._changed.items()
        if whole:
            keys = ((key, entry.bucket) for key, entry in self._entries.items())
        for key, bucket in keys:
            entry = self._entries.get(key)
            kept = None if entry is None else (entry.state, sorted(entry.timers), entry.touched)
            parts.setdefault(bucket, []).append((key, kept))
        self._changes = len(self._entries) if whole else self._changes + len(self._changed)
        self._changed.clear()
        try:
            saved = [(bucket, whole, pickle.dumps(part)) for bucket, part in parts.items()]
        except Exception as error:
            raise DataSetError(f"{self._name}: a state cannot be pickled: {error}") from error
        if whole:
            saved += [(bucket, True, b"") for bucket in self._saved - parts.keys()]
            self._saved.clear()
        self._saved |= parts.keys()
        return saved

    def release(self, buckets: list[int]) -> list[tuple[int, bytes]]:
        """Let go of what is kept in these buckets, for another one's `restore`."""
        parts: dict[int, list[tuple[Any, ...]]] = {bucket: [] for bucket in buckets}
        for key, entry in list(self._entries.items()):
            if entry.bucket in parts:
                parts[entry.bucket].append((key, (entry.state, sorted(entry.timers), entry.touched)))
                del self._entries[key]
        self._changed = {key: bucket for key, bucket in self._changed.items() if bucket not in parts}
        self._saved -= parts.keys()
        return [(bucket, pickle.dumps(part)) for bucket, part in parts.items() if part]

    def restore(self, now: int, bucket: int, parts: list[bytes]) -> None:
        """Take what was kept: a whole, and the changes since."""
        self._now = now
        self._saved.add(bucket)
        entries: dict[_Key, _Entry] = {}
        for part in parts:
            for values, kept in pickle.loads(part) if part else []:
                key = _key(values)
                self._changes += 1
                entries.pop(key, None)
                if kept is not None:
                    state, timers, touched = kept
                    entries[key] = _Entry(bucket, state, set(timers), touched)
        self._entries |= entries
        for key, entry in entries.items():
            for at in entry.timers:
                self._timer(at, key)
            if self._ttl is not None:
                self._look_at(entry, key)

    def _timer(self, at: int, key: _Key) -> None:
        self._timers_set += 1
        heapq.heappush(self._timers, (at, self._timers_set, key))

    def _look_at(self, entry: _Entry, key: _Key) -> None:
        """See to it that a key is forgotten when nothing has come for too long."""
        if entry.looked_at is None and self._ttl is not None:
            entry.looked_at = entry.touched + self._ttl
            self._timer(entry.looked_at, key)

    def _due(self) -> list[Row]:
        """Call the function for timers that have gone off; forget what nobody has touched for too long."""
        made: list[Row] = []
        waiting: list[tuple[int, int, _Key]] = []
        if self._now == _END:
            # A function that sets its next timer each time would go on for ever.
            waiting, self._timers = sorted(self._timers), []
        while waiting or (self._timers and self._timers[0][0] <= self._now < _END):
            at, _, key = waiting.pop(0) if waiting else heapq.heappop(self._timers)
            entry = self._entries.get(key)
            if entry is not None and at in entry.timers:
                entry.timers.remove(at)
                made += self._call(key, entry, [], [_EPOCH + at * _US])
            elif entry is not None and at == entry.looked_at and self._ttl is not None and self._now < _END:
                entry.looked_at = None
                if entry.touched == _NEVER:
                    # Rows came before there was any time.
                    entry.touched = self._now
                if entry.touched + self._ttl <= self._now:
                    del self._entries[key]
                    self._changed[key] = entry.bucket
                else:
                    self._look_at(entry, key)
        return made

    def _call(self, key: _Key, entry: _Entry, rows: list[Row], timers: list[datetime]) -> Iterable[Row]:
        time = None if self._now == _NEVER else datetime.max if self._now == _END else _EPOCH + self._now * _US
        context = KeyContext(entry, time, timers)
        named = dict(zip(self._names, key, strict=True))
        try:
            returned = self._function(named, rows, context)
            made: list[Any] = [returned] if isinstance(returned, Mapping) else list(returned or [])
        except Exception as error:
            raise DataSetError(f"{self._name} failed on the key {named!r}: {error}") from error
        entry.state = context.state
        for at in context._set:
            self._timer(at, key)
        self._changed[key] = entry.bucket
        if entry.state is None and not entry.timers:
            self._entries.pop(key, None)
        return made

    def _made(self, rows: list[Row]) -> list[NativeTable]:
        return [_table(rows, self._schema)] if rows else []


def _key(values: Iterable[Any]) -> _Key:
    # A NaN is unlike any other; one that is always the same object is like itself.
    return tuple(math.nan if isinstance(value, float) and value != value else value for value in values)


def _micros(at: datetime) -> int:
    if at.tzinfo is not None:
        at = (at - at.utcoffset()).replace(tzinfo=None)  # type: ignore[operator]
    return (at - _EPOCH) // _US
