"""User functions over the rows of each key of a stream, with state and timers for each key."""

from __future__ import annotations

import heapq
import io
import itertools
import math
import pickle
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar

from tidemill._streaming.items import NEVER as _NEVER
from tidemill._streaming.items import AggregateState, Fold, ListState, MapState, Part, of_kind
from tidemill._streaming.state import Declared
from tidemill._streaming.store import Store, Stored
from tidemill._tables.durations import Duration, micros
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Row, Schema, table_of_rows
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable

__all__ = ["Function", "KeyContext", "Processor"]

_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)
#: What the engine says of time at the end.
_END = 2**63 - 1
#: States are saved whole again when changes since then take twice as much, and so many bytes more.
_CHANGED_BYTES_MIN = 1 << 20
#: So are those of a bucket when there are so many changes, however small: every checkpoint names all of them, and who goes on reads all.
_CHANGES_MAX = 300
#: What a key takes in memory besides its state, a timer, and a key that is gone, about, in bytes.
_KEY_BYTES, _TIMER_BYTES, _GONE_BYTES = 600, 150, 200
#: The state of one call in so many is measured, by so many things in it, in these, and so on.
_MEASURE_EVERY, _MEASURED = 32, (30, 10, 3, 1)
#: So many keys stay in memory, whatever there is of it.
_KEYS_MIN = 64
#: Timers are not looked through for those that have been deleted before there are so many.
_DUE_MIN = 1000

_Key = tuple[Hashable, ...]
_Items = ListState | MapState | AggregateState
_Kind = TypeVar("_Kind", ListState, MapState, AggregateState)


class _Kept(NamedTuple):
    """The saved data of a key: pickled as a tuple, without trailing default values."""

    state: Any
    timers: list[int]
    touched: int
    alarms: list[int] = []  # noqa: RUF012 (nobody changes it)
    #: Whether these are all lists, maps and aggregates, and not those that have changed.
    whole: bool = True
    items: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012

    def after(self, before: _Kept | None) -> _Kept:
        """Return all data, given the previous data, which is consumed."""
        items = {} if self.whole or before is None else dict(before.items)
        for name, part in self.items.items():
            old = items.get(name)
            items[name] = Part(*part).after(None if old is None else Part(*old))
        return self._replace(whole=True, items=items)


@dataclass(slots=True)
class _Entry:
    """The data of a key in memory."""

    bucket: int
    state: Any = None
    #: Lists, maps and aggregates, by name.
    items: dict[str, _Items] = field(default_factory=dict)
    #: Whether a snapshot may not build on what was saved of them before.
    whole: bool = True
    timers: set[int] = field(default_factory=set)
    alarms: set[int] = field(default_factory=set)
    #: When rows came last, and when that is looked at next. Never: since time went on last, or before there was any.
    touched: int = _NEVER
    looked_at: int | None = None
    #: When items are looked at that have a time to live.
    expires: int | None = None

    def next_expiry(self, now: int) -> int | None:
        """Return when the first of its items expires or must be checked again."""
        return min((at for items in self.items.values() if (at := items._expires(now)) is not None), default=None)

    def has_fresh(self) -> bool:
        """Return whether any of its items was put since time last advanced."""
        return any(items._is_fresh() for items in self.items.values())

    def count_from(self, now: int) -> bool:
        """Start the time to live of items put since time last advanced. Returns whether items changed."""
        if self.touched == _NEVER:
            self.touched = now
        return sum(items._count_from(now) for items in self.items.values()) > 0

    def is_empty(self) -> bool:
        """Return whether there is nothing to keep."""
        return self.state is None and not self.timers and not self.alarms and not any(self.items.values())

    def kept(self, whole: bool) -> tuple[Any, ...]:
        """Return the data to save; unless `whole`, only changes of lists, maps and aggregates."""
        whole = whole or self.whole
        timers, alarms = sorted(self.timers), sorted(self.alarms)
        if not self.items and not alarms:
            return (self.state, timers, self.touched)
        parts = ((name, items._part(whole)) for name, items in self.items.items())
        some = {name: tuple(part) for name, part in parts if part.values or part.gone or (part.cleared and not whole)}
        return (self.state, timers, self.touched, alarms, whole, some)

    def saved(self) -> None:
        """Mark the entry as saved."""
        self.whole = False
        for items in self.items.values():
            items._saved()


@dataclass(slots=True)
class _Saved:
    """The data of a bucket in snapshots: a whole, and changes since."""

    whole_bytes: int = 0
    changed_bytes: int = 0
    changes: int = 0


class _Due:
    """Keys by the time at which something of them is due. Stale entries stay until they are purged (`keep`)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Key]] = []
        self._keep_at = _DUE_MIN
        # Breaks ties: keys may have no order.
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: int, key: _Key) -> None:
        """Add a time of a key."""
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def first(self) -> int | None:
        """Return the earliest time."""
        return self._heap[0][0] if self._heap else None

    def until(self, now: int) -> Iterator[tuple[int, _Key]]:
        """Iterate over keys that are due by now, including those added meanwhile; and then over those that exist at the
        end.
        """
        if now == _END:
            # A function that sets its next timer each time would go on for ever.
            heap, self._heap = sorted(self._heap), []
            yield from ((at, key) for at, _, key in heap)
            return
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            yield at, key

    def has_doubled(self) -> bool:
        """Return whether there are twice as many entries as `keep` left, so that many may be stale."""
        return len(self._heap) > self._keep_at

    def keep(self, is_due: Callable[[int, _Key], bool]) -> None:
        """Remove stale and duplicate entries, which come from times that were deleted and set again."""
        # Of these the first.
        left = {(at, key): count for at, count, key in sorted(self._heap, reverse=True) if is_due(at, key)}
        # In order it is a heap.
        self._heap = sorted((at, count, key) for (at, key), count in left.items())
        self._keep_at = max(2 * len(self._heap), _DUE_MIN)


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

    __slots__ = ("_alarms", "_clock", "_declared", "_entry", "_now", "_set", "alarms", "state", "time", "timers")

    def __init__(
        self,
        entry: _Entry,
        now: int,
        declared: Declared | None,
        clock: Callable[[], int],
        latest: int = _NEVER,
        timers: list[datetime] | None = None,
        alarms: list[datetime] | None = None,
    ) -> None:
        self.state = entry.state
        # The end has no time of its own that could be reckoned with.
        known = latest if now == _END else now
        self.time = None if known == _NEVER else _EPOCH + known * _US
        if now == _END and timers:
            self.time = timers[0] if self.time is None else max(self.time, timers[0])
        self.timers = timers or []
        self.alarms = alarms or []
        self._entry = entry
        self._now = now
        self._declared = declared
        self._clock = clock
        self._set: list[int] = []
        self._alarms: list[int] = []

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
        items = self._entry.items.get(name)
        if items is None:
            items = self._entry.items[name] = kind()
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
        time = _micros(at, "set_timer")
        if time not in self._entry.timers:
            self._entry.timers.add(time)
            self._set.append(time)

    def delete_timer(self, at: datetime) -> None:
        """Delete a timer; does nothing if it does not exist."""
        self._entry.timers.discard(_micros(at, "delete_timer"))

    def set_alarm(self, at: datetime) -> None:
        """Call the function for this key when the machine's clock (`now`) passes `at`, to within about a twentieth of a
        second.

        There is one alarm for each time. A job that resumes after a failure keeps its alarms: those whose time has
        passed meanwhile fire at once. At the end of the stream all alarms fire that were set before, whatever the time.
        """
        time = _micros(at, "set_alarm")
        if time not in self._entry.alarms:
            self._entry.alarms.add(time)
            self._alarms.append(time)

    def delete_alarm(self, at: datetime) -> None:
        """Delete an alarm; does nothing if it does not exist."""
        self._entry.alarms.discard(_micros(at, "delete_alarm"))


#: Called as ``function(key, rows, context)``; it returns a row, rows, or None.
Function = Callable[[Row, list[Row], KeyContext], "Row | Iterable[Row] | None"]


class Processor:
    """Calls a function for keys; one for each thread. The engine calls its methods, one at a time.

    State is held in memory in order of last use. When the engine signals that memory runs out (`spill`), the least
    recently used keys move to a store in `folder`, with their timers; they come back when a row of theirs arrives or a
    timer of theirs fires. `saves` says whether there are snapshots.
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
        declared: Declared | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._function = function
        self._name = name
        self._names = keys
        self._schema = schema
        self._ttl = ttl
        self._folder = folder
        self._saves = saves
        self._declared = declared
        self._fields = None if declared is None else declared.fields
        self._entries: dict[_Key, _Entry] = {}
        self._store: Store | None = None
        self._clock = clock
        self._timers, self._alarms = _Due(), _Due()
        # In the store none is earlier.
        self._stored_alarm: int | None = None
        self._now = _NEVER
        # Time before the end.
        self._latest = _NEVER
        # Keys that rows have come of, or items were put of that have a time to live, since time went on last.
        self._fresh: set[_Key] = set()
        # Of each key the bucket, for those that are gone.
        self._changed: dict[_Key, int] = {}
        # By bucket.
        self._saved: dict[int, _Saved] = {}
        # What states take, on average.
        self._calls = 0
        self._state_bytes = 0.0

    def rows(self, keys: NativeTable, buckets: list[int], ends: list[int], rows: NativeTable) -> list[NativeTable]:
        """Process new rows: for each key, those up to its end."""
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
                # How late its rows are is known when time has gone on to them: counted from the time before them, which may be long
                # ago, the key could be forgotten as soon as they have come.
                entry.touched = _NEVER
                self._fresh.add(key)
                self._look_at(entry, key)
            made += self._call(key, entry, found[start:end])
            start = end
        made += self._due()
        return self._made(made)

    def time(self, now: int) -> tuple[list[NativeTable], bool]:
        """Advance the stream's time, in microseconds. Also returns whether to call this again."""
        # Who goes on may be told a time again that was before its rows.
        goes_on = now > self._now
        self._now = max(now, self._now)
        if self._now < _END:
            self._latest = self._now
        more = self._bring("due", self._now)
        if goes_on and self._now < _END:
            for key in self._fresh & self._entries.keys():
                entry = self._entries[key]
                if entry.count_from(self._now):
                    self._change(key, entry)
            self._fresh.clear()
        if self._now == _END:
            # Before anything goes off: of what goes back to the store meanwhile nothing is due any more.
            more = self._bring("alarm", _END) or more
        made = self._due()
        if self._now == _END:
            made += self._ring(_END)
        return self._made(made), more

    def next_alarm(self) -> int | None:
        """Return when to call `ring`, in microseconds of the machine's clock; None for not before another call."""
        return min((at for at in (self._alarms.first(), self._stored_alarm) if at is not None), default=None)

    def ring(self) -> tuple[list[NativeTable], bool]:
        """Let due alarms fire. Also returns whether to call this again."""
        now = self._clock()
        more = self._bring("alarm", now)
        if self._store is not None:
            self._stored_alarm = self._store.first_alarm()
        return self._made(self._ring(now)), more

    def _bring(self, column: Literal["due", "alarm"], now: int) -> bool:
        """Load due keys from the store. Returns whether there were any."""
        stored = [] if self._store is None else self._store.take_due(column, now)
        for state in stored:
            self._keep(state)
        return bool(stored)

    def held_bytes(self) -> int:
        """Return the approximate size of the state in memory, in bytes."""
        each = _KEY_BYTES + int(self._state_bytes)
        timers = len(self._timers) + len(self._alarms)
        return len(self._entries) * each + timers * _TIMER_BYTES + len(self._changed) * _GONE_BYTES

    def spill(self) -> None:
        """Move half of the state in memory to the store."""
        count = len(self._entries) // 2
        gone = [key for key in self._changed if key not in self._entries]
        if count < _KEYS_MIN and len(gone) < _KEYS_MIN:
            return
        if self._store is None:
            self._store = Store(self._folder)
        evicted = list(itertools.islice(self._entries, count))
        self._store.put(itertools.chain(map(self._evict, evicted), map(self._evict, gone)))
        self._timers.keep(self._is_timer)
        self._alarms.keep(self._is_alarm)
        self._stored_alarm = self._store.first_alarm()

    def _evict(self, key: _Key) -> Stored:
        entry = self._entries.pop(key, None)
        # When it comes back it counts as touched then: it may stay for longer, but goes no sooner.
        self._fresh.discard(key)
        changed = self._changed.pop(key, None)
        if entry is None:
            return Stored(_name(key), changed or 0, None, None, True, True, self._pickled((key, None)))
        due = alarm = None
        # At the end no timer goes off that is still there.
        if self._now < _END:
            due, alarm = min(entry.timers, default=None), min(entry.alarms, default=None)
            if self._ttl is not None:
                looked_at = self._touched(entry) + self._ttl if entry.looked_at is None else entry.looked_at
                due = looked_at if due is None else min(due, looked_at)
            if (expires := entry.next_expiry(self._now)) is not None:
                due = expires if due is None else min(due, expires)
        value = self._pickled((key, entry.kept(whole=True)))
        return Stored(_name(key), entry.bucket, due, alarm, changed is not None, False, value)

    def _fetch(self, key: _Key) -> _Entry | None:
        """Return the entry of a key that may be in the store."""
        stored = None if self._store is None else self._store.take(_name(key))
        if stored is None:
            return None
        self._keep(stored)
        return self._entries.get(key)

    def _keep(self, stored: Stored) -> None:
        """Keep in memory an entry that was in the store."""
        key, kept = pickle.loads(stored.value)
        key = _key(key)
        if stored.changed:
            self._changed[key] = stored.bucket
        if kept is not None:
            # Which items have changed is not kept there.
            self._add(key, stored.bucket, _Kept(*kept), whole=stored.changed)

    def _add(self, key: _Key, bucket: int, kept: _Kept, whole: bool = False) -> None:
        items: dict[str, _Items] = {}
        for name, saved in kept.items.items():
            part = Part(*saved)
            values = part.values
            if self._declared is not None:
                values = self._declared.filled(name, part.kind, values)
            items[name] = of_kind(part.kind, values)
            items[name]._live(part.ttl, part.times)
        timers, alarms = set(kept.timers), set(kept.alarms)
        entry = self._entries[key] = _Entry(bucket, kept.state, items, whole, timers, alarms, kept.touched)
        for at in kept.timers:
            self._timers.add(at, key)
        for at in kept.alarms:
            self._alarms.add(at, key)
        if self._ttl is not None:
            if entry.touched == _NEVER:
                self._fresh.add(key)
            self._look_at(entry, key)
        if entry.has_fresh():
            self._fresh.add(key)
        self._expire_later(entry, key)

    def snapshot(self, whole: bool) -> Iterator[tuple[int, bool, bytes]]:
        """Return the state by bucket: its changes, or all of it (`whole`: of each bucket); without bytes if there is
        nothing.
        """
        store, saved = self._store, self._saved
        changed_bytes = sum(one.changed_bytes for one in saved.values())
        whole = whole or changed_bytes > 2 * sum(one.whole_bytes for one in saved.values()) + _CHANGED_BYTES_MIN
        anew = self._buckets() | saved.keys() if whole else self._long()
        parts: dict[int, list[tuple[Any, ...]]] = {}
        if not whole:
            for key, bucket in self._changed.items():
                if bucket not in anew:
                    entry = self._entries.get(key)
                    parts.setdefault(bucket, []).append((key, None if entry is None else entry.kept(whole=False)))
        if anew:
            for key, entry in self._entries.items():
                if entry.bucket in anew:
                    parts.setdefault(entry.bucket, []).append((key, entry.kept(whole=True)))
        changed = set() if whole or store is None else store.buckets(changed=True)
        for bucket in sorted(anew | parts.keys() | changed):
            is_whole = bucket in anew
            part = io.BytesIO()
            if states := parts.pop(bucket, None):
                part.write(self._pickled(states))
            if store is not None:
                part.writelines(store.values(bucket, changed=not is_whole))
            if not is_whole:
                one = saved.setdefault(bucket, _Saved())
                one.changed_bytes += part.tell()
                one.changes += 1
            elif part.tell():
                saved[bucket] = _Saved(whole_bytes=part.tell())
            else:
                saved.pop(bucket, None)
            yield bucket, is_whole, part.getvalue()
        for key in self._changed:
            if key in self._entries:
                self._entries[key].saved()
        self._changed.clear()
        if store is not None:
            store.saved()

    def _buckets(self) -> set[int]:
        """Return the buckets that contain anything."""
        stored = set() if self._store is None else self._store.buckets(changed=False)
        return stored | {entry.bucket for entry in self._entries.values()}

    def _long(self) -> set[int]:
        """Return the buckets with too many saved changes. Saving any whole iterates over all keys, so if there is one,
        buckets that are close to the limit are included.
        """
        if all(one.changes < _CHANGES_MAX for one in self._saved.values()):
            return set()
        return {bucket for bucket, one in self._saved.items() if one.changes >= _CHANGES_MAX // 2}

    def _pickled(self, what: object) -> bytes:
        try:
            return pickle.dumps(what)
        except Exception as error:
            raise DataSetError(f"{self._name}: a state cannot be pickled: {error}") from error

    def release(self, buckets: list[int]) -> Iterator[tuple[int, bytes]]:
        """Drop the state of these buckets, for another processor's `restore`."""
        parts: dict[int, list[tuple[Any, ...]]] = {bucket: [] for bucket in buckets}
        for key, entry in list(self._entries.items()):
            if entry.bucket in parts:
                parts[entry.bucket].append((key, entry.kept(whole=True)))
                del self._entries[key]
        self._changed = {key: bucket for key, bucket in self._changed.items() if bucket not in parts}
        for bucket in buckets:
            self._saved.pop(bucket, None)
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
        """Take over saved state: a whole, and the changes since."""
        self._now = now
        if now < _END:
            self._latest = now
        self._saved[bucket] = _Saved(sum(map(len, parts[:1])), sum(map(len, parts[1:])), len(parts[1:]))
        kept: dict[_Key, _Kept] = {}
        for part in parts:
            for values, state in _states(part):
                key = _key(values)
                before = kept.pop(key, None)
                if state is not None:
                    kept[key] = _Kept(*state).after(before)
        for key, one in kept.items():
            self._add(key, bucket, one if self._fields is None else one._replace(state=self._fields.filled(one.state)))

    def _is_timer(self, at: int, key: _Key) -> bool:
        """Return whether something of a key in memory is still due at that time: functions delete timers, and keys
        disappear.
        """
        entry = self._entries.get(key)
        return entry is not None and (at in entry.timers or at in (entry.looked_at, entry.expires))

    def _is_alarm(self, at: int, key: _Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and at in entry.alarms

    def _look_at(self, entry: _Entry, key: _Key) -> None:
        """Make sure that a key is forgotten when nothing has come for too long."""
        if entry.looked_at is None and self._ttl is not None:
            entry.looked_at = self._touched(entry) + self._ttl
            self._timers.add(entry.looked_at, key)

    def _touched(self, entry: _Entry) -> int:
        """Return when rows last came, or the time before them if that is not known yet."""
        return self._now if entry.touched == _NEVER else entry.touched

    def _expire_later(self, entry: _Entry, key: _Key) -> None:
        """Make sure that items are forgotten when they expire."""
        at = entry.next_expiry(self._now)
        if at is not None and (entry.expires is None or at < entry.expires):
            entry.expires = at
            self._timers.add(at, key)

    def _due(self) -> list[Row]:
        """Call the function for timers that have fired; forget keys that have been idle for too long."""
        made: list[Row] = []
        for at, key in self._timers.until(self._now):
            entry = self._entries.get(key)
            if entry is not None and at in entry.timers:
                entry.timers.remove(at)
                made += self._call(key, entry, [], timers=[_EPOCH + at * _US])
                # It may be both: what is due twice may be there once.
                entry = self._entries.get(key)
            if entry is not None and at == entry.looked_at and self._ttl is not None and self._now < _END:
                entry.looked_at = None
                if self._touched(entry) + self._ttl <= self._now:
                    del self._entries[key]
                    self._change(key, entry)
                    entry = None
                else:
                    self._look_at(entry, key)
            if entry is not None and at == entry.expires and self._now < _END:
                entry.expires = None
                for items in entry.items.values():
                    items._expire(self._now)
                self._change(key, entry)
                if entry.is_empty():
                    del self._entries[key]
                else:
                    self._expire_later(entry, key)
        return made

    def _ring(self, now: int) -> list[Row]:
        """Call the function for alarms that have fired."""
        made: list[Row] = []
        for at, key in self._alarms.until(now):
            entry = self._entries.get(key)
            if entry is not None and at in entry.alarms:
                entry.alarms.remove(at)
                made += self._call(key, entry, [], alarms=[_EPOCH + at * _US])
        return made

    def _call(self, key: _Key, entry: _Entry, rows: list[Row], **gone_off: list[datetime]) -> Iterable[Row]:
        context = KeyContext(entry, self._now, self._declared, self._clock, self._latest, **gone_off)
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
            size = _bytes_of(
                [entry.state, *(kept for items in entry.items.values() for kept in (items._values, items._times))]
            )
            self._state_bytes += (size - self._state_bytes) / min(self._calls // _MEASURE_EVERY + 1, 50)
        self._calls += 1
        if entry.has_fresh():
            self._fresh.add(key)
        if self._now < _END:
            self._expire_later(entry, key)
            for at in context._set:
                self._timers.add(at, key)
            for at in context._alarms:
                self._alarms.add(at, key)
            if self._timers.has_doubled():
                self._timers.keep(self._is_timer)
            if self._alarms.has_doubled():
                self._alarms.keep(self._is_alarm)
        self._change(key, entry)
        if entry.is_empty():
            self._entries.pop(key, None)
        return made

    def _change(self, key: _Key, entry: _Entry) -> None:
        if self._saves:
            self._changed[key] = entry.bucket
        else:
            entry.saved()

    def _made(self, rows: list[Row]) -> list[NativeTable]:
        return [table_of_rows(rows, self._schema)] if rows else []


def _key(values: Iterable[Any]) -> _Key:
    # A NaN is unlike any other; one that is always the same object is like itself.
    return tuple(math.nan if isinstance(value, float) and value != value else value for value in values)


def _name(key: _Key) -> str:
    # Pickled, equal keys may differ, by what of them is one object. Minus zero equals zero.
    return repr(tuple(0.0 if isinstance(value, float) and value == 0 else value for value in key))


def _states(part: bytes) -> Iterator[tuple[Iterable[Any], tuple[Any, list[int], int] | None]]:
    """Yield consecutive pickles: keys with their data, and lists of these."""
    file = io.BytesIO(part)
    while file.tell() < len(part):
        found = pickle.load(file)
        yield from found if isinstance(found, list) else [found]


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
    if not isinstance(at, datetime):
        clock = "now" if what.endswith("alarm") else "time"
        raise DataSetError(f"{what} takes a datetime, such as context.{clock} + timedelta(seconds=10), not {at!r}")
    if at.tzinfo is not None:
        at = (at - at.utcoffset()).replace(tzinfo=None)  # type: ignore[operator]
    return (at - _EPOCH) // _US
