"""Rounds of `tm.stream.all_reduce` that do not wait for a late part: what ``max_wait=`` adds.

A copy's function runs on a thread of its own, so that the copy can enter a round while its function is busy. The round has no
part of it then, and the part goes into a later one. Which parts a round has depends on the clock, but each part is in exactly
one round: what is in no round yet is part of the copy's state, either finished or as the rows that it is made of.

What goes around in a round: the reduced values, the number of parts in them, and for each copy how many parts it is behind.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill import mpi
from tidemill._streaming.bsp import CallOutput, Place, window_of
from tidemill._streaming.rounds import BRIEFLY_S, RoundFunction, RoundLogic
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Schema
from tidemill._tables.table import Table

if TYPE_CHECKING:
    from tidemill._tidemill import NativeTable

__all__ = ["LateRoundLogic", "OnTimeRoundLogic"]

#: By option: the ufunc that combines two parts, and the value of no part.
_COMBINE: dict[str, tuple[str, float]] = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "min": ("minimum", float("inf")),
    "max": ("maximum", float("-inf")),
}

#: A copy with the rows of more rounds in hand is waited for, so that these do not fill the memory.
_BACKLOG_MAX = 16

# The number of the next round and the last value, as without `max_wait`; the window of the last round; the part that was in
# no round, and the number of parts in it; and the rows that no part was made of yet, by round.
_State = tuple[int, Any, tuple[Any, Any], Any, int, list[Table]]


def _whole(state: Any) -> _State:
    """Return the state, also of a job that had no `max_wait`, or no round yet."""
    if state is None:
        state = (0, None)
    return state if len(state) > 2 else (*state, (None, None), None, 0, [])


def _merge(op: str) -> Callable[[list[Any]], Any]:
    """Return a function that makes one state of those of all copies."""

    def merge(states: list[Any]) -> _State:
        part, count, backlog = None, 0, []
        for *_, theirs, many, tables in map(_whole, states):
            part, count = _combined(op, part, theirs), count + many
            backlog += tables
        return (*_whole(states[0])[:3], part, count, backlog)

    return merge


def _split(state: _State, copies: int) -> list[_State]:
    """Return a state for each copy; the first one has what was in no round."""
    return [state, *((*state[:3], None, 0, []) for _ in range(copies - 1))]


def _combined(op: str, part: Any, other: Any) -> Any:
    import numpy as np

    if part is None or other is None:
        return other if part is None else part
    return getattr(np, _COMBINE[op][0])(part, other)


def _work(copy: weakref.ref[LateRoundLogic]) -> None:
    """Make parts of all rows in hand, on a thread of its own. If the copy's run is over, the part at hand is the last."""
    while (logic := copy()) is not None and logic.has_work():
        try:
            logic.work_once()
        except BaseException as error:  # The copy raises it.
            logic.fail(error)
            return
        del logic


class OnTimeRoundLogic(RoundLogic):
    """Rounds that wait for all copies. Refuses to go on where rounds that did not wait had left out parts."""

    def __init__(self, function: RoundFunction, name: str, schema: Schema, op: str, place: Place) -> None:
        def merge(states: list[Any]) -> Any:
            settled = [self._without_parts(name, state) for state in states]
            return settled[0]

        super().__init__(function, name, schema, op, place, merge)
        self._state = self._without_parts(name, self._state)

    @staticmethod
    def _without_parts(name: str, state: Any) -> Any:
        if state is None:
            return None
        number, value, _, _, count, backlog = _whole(state)
        if count or backlog:
            raise DataSetError(
                f"{name}: its checkpoint has parts that rounds had left out, and without max_wait= no later round takes them; pass "
                'max_wait=, for example "1h" to wait for nearly everything'
            )
        return number, value


class LateRoundLogic(RoundLogic):
    """What the engine calls for one copy."""

    def __init__(
        self, function: RoundFunction, name: str, schema: Schema, op: str, place: Place, max_wait_s: float
    ) -> None:
        super().__init__(function, name, schema, op, place, _merge(op), _split)
        self._max_wait_s = max_wait_s
        number, value, self._window, self._part_held, self._count, backlog = _whole(self._state)
        self._state = (number, value)
        self._backlog: deque[Table] = deque(backlog)
        # Guards the backlog and the part that is held, and what follows, while a thread works off the backlog.
        self._changed = threading.Condition()
        self._working = False
        self._error: BaseException | None = None
        self._shape: tuple[int, ...] = ()
        #: When the round goes on without this copy, and how far it was behind when it did.
        self._deadline: float | None = None
        self._behind = 0
        self._left_out = 0
        self._late_since: float | None = None

    def call(self, rows: NativeTable, window: tuple[int, int] | None, is_rows: bool) -> CallOutput:
        self._window = window_of(window, is_rows)
        with self._changed:
            self._backlog.append(Table(rows))
        self._begin()
        return self._advance(BRIEFLY_S)

    def finish(self) -> list[NativeTable]:
        """Reduce what was left out of all rounds, in one more."""
        import numpy as np

        with self._changed:
            left = np.array([self._count + len(self._backlog)])
        total = np.empty_like(left)
        self._comm.Allreduce(left, total, mpi.SUM)
        if total[0] == 0:
            return []
        self._begin()
        self._deadline = None
        return self._advance(None)[0]

    def save(self) -> bytes:
        state = self._state
        with self._changed:
            self._state = (*state, self._window, self._part_held, self._count, list(self._backlog))
            try:
                return super().save()
            finally:
                self._state = state

    def _begin(self) -> None:
        """All copies begin a round together: here they may change how they reduce."""
        _, value = self._state
        self._deadline, self._behind = None, 0
        self._beside()
        # In the first round, a copy that is late would not know the shape of its part.
        if value is None:
            return
        if self._is_long():
            self._adapt()
        with self._changed:
            if len(self._backlog) <= _BACKLOG_MAX:
                self._deadline = time.monotonic() + self._max_wait_s

    def _advance(self, wait_s: float | None) -> CallOutput:
        until = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if self._sent is None:
                if not self._is_ready(until):
                    return [], True, None
                self._send()
            if not self._is_received(until):
                return [], True, None
            rows = self._receive()
            if rows is not None:
                return rows, False, None

    def _is_ready(self, until: float | None) -> bool:
        """Wait for this copy's part. Return whether to enter the round, with it or without it."""
        with self._changed:
            self._start_working()
            while self._working and self._error is None:
                now = time.monotonic()
                if self._deadline is not None and now >= self._deadline:
                    self._behind = len(self._backlog)
                    return True
                ends = [end for end in (until, self._deadline) if end is not None]
                if ends and min(ends) <= now:
                    return False
                self._changed.wait(min(ends) - now if ends else None)
            if self._error is not None:
                raise self._error
        return True

    def _is_received(self, until: float | None) -> bool:
        if until is None:
            self._request.Wait()
            return True
        return self._is_reduced(until)

    def _start_working(self) -> None:
        if self._backlog and not self._working and self._error is None:
            self._working = True
            # A daemon: a function that never returns must not keep the program from ending.
            threading.Thread(target=_work, args=(weakref.ref(self),), name=self._name, daemon=True).start()

    def fail(self, error: BaseException) -> None:
        """Let the copy raise what its function has raised."""
        with self._changed:
            self._error, self._working = error, False
            self._changed.notify_all()

    def has_work(self) -> bool:
        with self._changed:
            self._working = bool(self._backlog)
            if not self._working:
                self._changed.notify_all()
            return self._working

    def work_once(self) -> None:
        """Make a part of the oldest rows in hand."""
        _, value = self._state
        part = self._part(self._function(self._backlog[0], value))
        if value is not None and part.shape != value.shape:
            raise DataSetError(
                f"it returned an array of shape {part.shape} after a round of shape {value.shape}; with max_wait= a part may go into "
                "a later round, so all rounds need one shape"
            )
        with self._changed:
            # Together: a checkpoint has the rows, or the part.
            self._part_held, self._count = _combined(self._op, self._part_held, part), self._count + 1
            self._backlog.popleft()

    def _send(self) -> None:
        """Enter the round with all parts that this copy has."""
        import numpy as np

        _, value = self._state
        with self._changed:
            part, count = self._part_held, self._count
            self._part_held, self._count = None, 0
        self._shape = part.shape if value is None else value.shape
        values = np.full(self._shape, _COMBINE[self._op][1]) if part is None else part
        marks = np.zeros(1 + self._copies)
        # Marks are at least 0, so the least of their negatives is what the greatest is elsewhere.
        sign = -1.0 if self._op == "min" else 1.0
        marks[0], marks[1 + self._copy] = sign * count, sign * self._behind
        # Always beside the stream: copies enter a round at any moment, and agree on their next call meanwhile.
        self._reduce(np.concatenate([values.ravel(), marks]), beside=True)

    def _receive(self) -> list[NativeTable] | None:
        """End the round, and return its row; None if it had no part at all, and begins again."""
        import numpy as np

        values, marks = np.split(self._received, [-1 - self._copies])
        parts, behind = abs(marks[0]), np.flatnonzero(marks[1:])
        now = time.monotonic()
        if parts == 0:
            # Every copy was late. They try again until one is ready: another may hang.
            self._request = self._sent = self._received = None
            self._deadline, self._behind = now + max(self._max_wait_s, BRIEFLY_S), 0
            return None
        if self._behind:
            self._left_out += 1
            self._late_since = now if self._late_since is None else self._late_since
        else:
            self._late_since = None
        late_s = 0.0 if self._late_since is None else now - self._late_since + self._max_wait_s
        self._take(self._left_out, self._behind, late_s)
        value = values.reshape(self._shape).copy()
        if self._op == "mean":
            value /= parts
        return self._result(value, left_out=behind.tolist())
