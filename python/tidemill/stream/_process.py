"""Functions of programs over the rows of each key of a stream, with a state for each key and timers."""

from __future__ import annotations

import heapq
import io
import itertools
import math
import pickle
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tidemill._tidemill import NativeTable
from tidemill.dataset._errors import DataSetError
from tidemill.dataset._map import Row, Schema, _table
from tidemill.dataset._table import Table
from tidemill.stream._state import StateFields
from tidemill.stream._store import Store, Stored

__all__ = ["Function", "KeyContext", "Processor"]

_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)
#: What the engine says of time before there is any, and at the end.
_NEVER, _END = -(2**63), 2**63 - 1
#: States are saved whole again when changes are so many more.
_CHANGES_MIN = 1000
#: What a key takes in memory besides its state, a timer, and a key that is gone, about, in bytes.
_KEY_BYTES, _TIMER_BYTES, _GONE_BYTES = 600, 150, 200
#: The state of one call in so many is measured, and so many things of it are looked at.
_MEASURE_EVERY, _MEASURED_MAX = 32, 500
#: So many keys stay in memory, whatever there is of it.
_KEYS_MIN = 64

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
        What the function keeps of the key: anything that can be pickled, or with ``state=`` a dict of its fields; ``None`` at first
        and to forget the key. It may be changed in place.
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
    """Calls a function for keys; one for each thread. The engine calls its methods, one at a time.

    What is kept of keys is in memory, in the order in which they were touched last. When the engine says that memory runs out
    (`spill`), those that have not been touched for longest go to a store in `folder`, with their timers; they come back when
    something comes of them, or when a timer of theirs goes off. `saves` says whether there are snapshots.
    """

    def __init__(
        self,
        function: Function,
        name: str,
        keys: tuple[str, ...],
        schema: Schema,
        ttl: int | None,
        folder: str,
        saves: bool,
        fields: StateFields | None = None,
    ) -> None:
        self._function = function
        self._name = name
        self._names = keys
        self._schema = schema
        self._ttl = ttl
        self._folder = folder
        self._saves = saves
        self._fields = fields
        self._entries: dict[_Key, _Entry] = {}
        self._store: Store | None = None
        self._timers: list[tuple[int, int, _Key]] = []
        # Breaks ties: keys may have no order.
        self._timers_set = 0
        self._now = _NEVER
        # Of each key the bucket, for those that are gone.
        self._changed: dict[_Key, int] = {}
        self._changes = 0
        self._saved: set[int] = set()
        # What states take, on average.
        self._calls = 0
        self._state_bytes = 0.0

    def rows(self, keys: NativeTable, buckets: list[int], ends: list[int], rows: NativeTable) -> list[NativeTable]:
        """Rows have come: of each key those up to its end."""
        made: list[Row] = []
        found = Table(rows).to_pylist()
        columns = [keys.column(name) for name, _ in keys.fields]
        start = 0
        for values, bucket, end in zip(zip(*columns, strict=True), buckets, ends, strict=True):
            key = _key(values)
            entry = self._entries.pop(key, None) or self._fetch(key) or _Entry(bucket)
            # Behind all that were touched before.
            self._entries[key] = entry
            if self._ttl is not None:
                entry.touched = self._now
                self._look_at(entry, key)
            made += self._call(key, entry, found[start:end], [])
            start = end
        made += self._due()
        return self._made(made)

    def time(self, now: int) -> tuple[list[NativeTable], bool]:
        """Time has passed, in microseconds. Returns also whether this must be called again."""
        self._now = max(now, self._now)
        stored = [] if self._store is None else self._store.take_due(self._now)
        for state in stored:
            self._keep(state)
        return self._made(self._due()), bool(stored)

    def held_bytes(self) -> int:
        """What is in memory takes so many bytes, about."""
        each = _KEY_BYTES + int(self._state_bytes)
        return len(self._entries) * each + len(self._timers) * _TIMER_BYTES + len(self._changed) * _GONE_BYTES

    def spill(self) -> None:
        """Put half of what is in memory into the store."""
        count = len(self._entries) // 2
        gone = [key for key in self._changed if key not in self._entries]
        if count < _KEYS_MIN and len(gone) < _KEYS_MIN:
            return
        if self._store is None:
            self._store = Store(self._folder)
        evicted = list(itertools.islice(self._entries, count))
        self._store.put(itertools.chain(map(self._evict, evicted), map(self._evict, gone)))
        self._timers = [timer for timer in self._timers if timer[2] in self._entries]
        heapq.heapify(self._timers)

    def _evict(self, key: _Key) -> Stored:
        entry = self._entries.pop(key, None)
        changed = self._changed.pop(key, None)
        if entry is None:
            return Stored(_name(key), changed or 0, None, True, True, self._pickled((key, None)))
        due = None
        # At the end no timer goes off that is still there.
        if self._now < _END:
            due = min(entry.timers, default=None)
            if self._ttl is not None:
                looked_at = entry.touched + self._ttl if entry.looked_at is None else entry.looked_at
                due = looked_at if due is None else min(due, looked_at)
        value = self._pickled((key, (entry.state, sorted(entry.timers), entry.touched)))
        return Stored(_name(key), entry.bucket, due, changed is not None, False, value)

    def _fetch(self, key: _Key) -> _Entry | None:
        """The entry of a key that may be in the store."""
        stored = None if self._store is None else self._store.take(_name(key))
        if stored is None:
            return None
        self._keep(stored)
        return self._entries.get(key)

    def _keep(self, stored: Stored) -> None:
        """Keep in memory what was in the store."""
        key, kept = pickle.loads(stored.value)
        key = _key(key)
        if stored.changed:
            self._changed[key] = stored.bucket
        if kept is not None:
            self._add(key, stored.bucket, kept)

    def _add(self, key: _Key, bucket: int, kept: tuple[Any, list[int], int]) -> None:
        state, timers, touched = kept
        entry = self._entries[key] = _Entry(bucket, state, set(timers), touched)
        for at in timers:
            self._timer(at, key)
        if self._ttl is not None:
            self._look_at(entry, key)

    def snapshot(self, whole: bool) -> Iterator[tuple[int, bool, bytes]]:
        """What is kept, by bucket: what has changed, or all; with no bytes, nothing."""
        store = self._store
        stored = 0 if store is None else len(store)
        whole = whole or self._changes > 2 * (len(self._entries) + stored) + _CHANGES_MIN
        parts: dict[int, list[tuple[Any, ...]]] = {}
        keys: Iterable[tuple[_Key, int]] = self._changed.items()
        if whole:
            keys = ((key, entry.bucket) for key, entry in self._entries.items())
        for key, bucket in keys:
            entry = self._entries.get(key)
            kept = None if entry is None else (entry.state, sorted(entry.timers), entry.touched)
            parts.setdefault(bucket, []).append((key, kept))
        if whole:
            self._changes = len(self._entries) + stored
        else:
            self._changes += len(self._changed) + (0 if store is None else store.changes())
        self._changed.clear()
        buckets = parts.keys() | (set() if store is None else store.buckets(changed=not whole))
        for bucket in sorted(buckets):
            part = io.BytesIO()
            part.write(self._pickled(parts.pop(bucket, [])))
            if store is not None:
                part.writelines(store.values(bucket, changed=not whole))
            yield bucket, whole, part.getvalue()
        if store is not None:
            store.saved()
        if whole:
            yield from ((bucket, True, b"") for bucket in self._saved - buckets)
            self._saved.clear()
        self._saved |= buckets

    def _pickled(self, what: object) -> bytes:
        try:
            return pickle.dumps(what)
        except Exception as error:
            raise DataSetError(f"{self._name}: a state cannot be pickled: {error}") from error

    def release(self, buckets: list[int]) -> Iterator[tuple[int, bytes]]:
        """Let go of what is kept in these buckets, for another one's `restore`."""
        parts: dict[int, list[tuple[Any, ...]]] = {bucket: [] for bucket in buckets}
        for key, entry in list(self._entries.items()):
            if entry.bucket in parts:
                parts[entry.bucket].append((key, (entry.state, sorted(entry.timers), entry.touched)))
                del self._entries[key]
        self._changed = {key: bucket for key, bucket in self._changed.items() if bucket not in parts}
        self._saved -= parts.keys()
        for bucket, states in parts.items():
            part = io.BytesIO()
            if states:
                part.write(self._pickled(states))
            if self._store is not None:
                part.writelines(self._store.values(bucket, changed=False))
                self._store.drop(bucket)
            if value := part.getvalue():
                yield bucket, value

    def restore(self, now: int, bucket: int, parts: list[bytes]) -> None:
        """Take what was kept: a whole, and the changes since."""
        self._now = now
        self._saved.add(bucket)
        kept: dict[_Key, tuple[Any, list[int], int]] = {}
        for part in parts:
            for values, state in _states(part):
                key = _key(values)
                self._changes += 1
                kept.pop(key, None)
                if state is not None:
                    kept[key] = state if self._fields is None else (self._fields.filled(state[0]), *state[1:])
        for key, state in kept.items():
            self._add(key, bucket, state)

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
                    self._change(key, entry)
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
        if self._fields is not None and (wrong := self._fields.wrong(context.state)):
            raise DataSetError(f"{self._name}: the state of the key {named!r} {wrong}")
        entry.state = context.state
        if self._calls % _MEASURE_EVERY == 0:
            self._state_bytes += (_bytes_of(entry.state) - self._state_bytes) / min(
                self._calls // _MEASURE_EVERY + 1, 50
            )
        self._calls += 1
        if self._now < _END:
            for at in context._set:
                self._timer(at, key)
        self._change(key, entry)
        if entry.state is None and not entry.timers:
            self._entries.pop(key, None)
        return made

    def _change(self, key: _Key, entry: _Entry) -> None:
        if self._saves:
            self._changed[key] = entry.bucket

    def _made(self, rows: list[Row]) -> list[NativeTable]:
        return [_table(rows, self._schema)] if rows else []


def _key(values: Iterable[Any]) -> _Key:
    # A NaN is unlike any other; one that is always the same object is like itself.
    return tuple(math.nan if isinstance(value, float) and value != value else value for value in values)


def _name(key: _Key) -> str:
    # Pickled, equal keys may differ, by what of them is one object. Minus zero equals zero.
    return repr(tuple(0.0 if isinstance(value, float) and value == 0 else value for value in key))


def _states(part: bytes) -> Iterator[tuple[Iterable[Any], tuple[Any, list[int], int] | None]]:
    """What was pickled one after the other: keys with what was kept of them, and lists of these."""
    file = io.BytesIO(part)
    while file.tell() < len(part):
        found = pickle.load(file)
        yield from found if isinstance(found, list) else [found]


def _bytes_of(state: object) -> float:
    """What an object and all that is in it take in memory, about: of much a part is looked at."""
    left, looked_at, size = [state], 0, 0
    while left and looked_at < _MEASURED_MAX:
        one = left.pop()
        looked_at += 1
        size += sys.getsizeof(one)
        if isinstance(one, Mapping):
            left.extend(one.keys())
            left.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset)):
            left.extend(one)
        elif hasattr(one, "__dict__"):
            left.append(vars(one))
    return size * (looked_at + len(left)) / looked_at


def _micros(at: datetime) -> int:
    if at.tzinfo is not None:
        at = (at - at.utcoffset()).replace(tzinfo=None)  # type: ignore[operator]
    return (at - _EPOCH) // _US
