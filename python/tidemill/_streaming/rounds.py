"""Rounds of `tm.stream.all_reduce`: a function's parts, and their reduction while the stream goes on.

A copy's part of a round is what its function makes of its rows. A part that is late is left out, and goes into a later
round. Which parts a round has depends on the clock, but each part is in exactly one round: what is in no round yet is
part of the copy's state, either finished or as the rows that it is made of.

What goes around in a round is the reduced values, the number of parts in them, and for each copy whether it was left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidemill import mpi
from tidemill._streaming.bsp import BspLogic, CallOutput, Place, window_of
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Schema, table_of_rows
from tidemill._tables.table import Table

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from tidemill._tidemill import NativeTable

__all__ = ["OPERATIONS", "RoundFunction", "RoundLogic", "merge_rounds", "split_rounds"]

#: Called with a copy's rows and the last value; returns the copy's part.
RoundFunction = Callable[[Table, "NDArray[numpy.float64] | None"], "ArrayLike"]

#: By option: the reduction, the ufunc that combines two parts, and the value of no part.
OPERATIONS: dict[str, tuple[Any, str, float]] = {
    "sum": (mpi.SUM, "add", 0.0),
    "mean": (mpi.SUM, "add", 0.0),
    "min": (mpi.MIN, "minimum", float("inf")),
    "max": (mpi.MAX, "maximum", float("-inf")),
}

#: A copy with the rows of this many rounds in hand is waited for, so that these do not fill the memory.
_BACKLOG_MAX = 16
#: Reductions of at least this many bytes go on beside the stream; shorter ones are over before it could go on.
_ASIDE_BYTES = 1 << 20
#: How long a call waits for its function before the stream goes on, in seconds.
_BRIEFLY_S = 0.005
#: How often it looks meanwhile whether a reduction is over.
_TEST_EVERY_S = 0.0005

# The number of the next round, the window of the last one, and its value; the part that was in no round, the number of
# parts in it, and the rows that no part was made of yet, by round.
_State = tuple[int, tuple[Any, Any], Any, Any, int, list[Table]]


def merge_rounds(op: str) -> Callable[[list[Any]], Any]:
    """Return a function that makes one state of those of all copies."""

    def merge(states: list[_State]) -> _State:
        part, count, backlog = None, 0, []
        for *_, theirs, many, tables in states:
            part, count = _combined(op, part, theirs), count + many
            backlog += tables
        return (*states[0][:3], part, count, backlog)

    return merge


def split_rounds(state: _State, copies: int) -> list[_State]:
    """Return a state for each copy; the first one has what was in no round."""
    return [state, *((*state[:3], None, 0, []) for _ in range(copies - 1))]


def _combined(op: str, part: Any, other: Any) -> Any:
    import numpy as np

    if part is None or other is None:
        return other if part is None else part
    if part.shape != other.shape:
        raise DataSetError(
            f"it returned arrays of the shapes {part.shape} and {other.shape}; a part that is late goes into a later round, so "
            "with max_wait= all rounds need one shape"
        )
    return getattr(np, OPERATIONS[op][1])(part, other)


class RoundLogic(BspLogic):
    """What the engine calls for one copy."""

    def __init__(
        self, function: RoundFunction, name: str, schema: Schema, op: str, max_wait_s: float | None, place: Place
    ) -> None:
        super().__init__(function, name, schema, merge_rounds(op), split_rounds, place)
        self._op = op
        self._max_wait_s = max_wait_s
        state: _State = self._state or (0, (None, None), None, None, 0, [])
        self._number, self._window, self._value, self._part, self._count, backlog = state
        self._backlog: deque[Table] = deque(backlog)
        # What follows is guarded by this, and so are the state's parts, while a thread works off the backlog.
        self._changed = threading.Condition()
        self._working = False
        self._error: BaseException | None = None
        # The reductions' own communicator, because those go on while the copies agree on their next call.
        self._reductions: mpi.Intracomm | None = None
        self._request: Any = None
        self._sent: Any = None
        self._received: Any = None
        self._shape: tuple[int, ...] = ()
        self._left_out = False
        self._deadline: float | None = None

    def call(self, rows: NativeTable, window: tuple[int, int] | None, is_rows: bool) -> CallOutput:
        """Begin a round with these rows."""
        self._window = window_of(window, is_rows)
        with self._changed:
            self._backlog.append(Table(rows))
        self._begin()
        return self._advance(_BRIEFLY_S)

    def poll(self, waits: bool) -> CallOutput:
        return self._advance(None if waits else 0.0)

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
        with self._changed:
            self._state = (self._number, self._window, self._value, self._part, self._count, list(self._backlog))
        return super().save()

    def _begin(self) -> None:
        """All copies begin a round together: here they may change how they reduce."""
        if self._reductions is None:
            self._reductions = self._comm.Clone()
        if self._value is not None:
            self._reductions._adapt(8 * self._packed(self._value.size))
        # Without a value, a copy that is late would not know the shape of its part.
        self._deadline, self._left_out = None, False
        if self._max_wait_s is not None and self._value is not None and len(self._backlog) <= _BACKLOG_MAX:
            self._deadline = time.monotonic() + self._max_wait_s

    def _packed(self, size: int) -> int:
        return size + 1 + self._copies

    def _advance(self, wait_s: float | None) -> CallOutput:
        """Go on with the round for a time, or to its end if that is None."""
        until = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if self._sent is None:
                if not self._is_ready(until):
                    return [], True
                self._send()
            if not self._is_reduced(until):
                return [], True
            rows = self._receive()
            if rows is not None:
                return rows, False

    def _is_ready(self, until: float | None) -> bool:
        """Wait for this copy's part. Return whether to send it, or to leave it out."""
        if self._max_wait_s is None:
            while self._backlog:
                self._work_once()
            return True
        with self._changed:
            self._start_working()
            while self._working and self._error is None:
                now = time.monotonic()
                if self._deadline is not None and now >= self._deadline:
                    self._left_out = True
                    return True
                ends = [end for end in (until, self._deadline) if end is not None]
                if ends and min(ends) <= now:
                    return False
                self._changed.wait(min(ends) - now if ends else None)
            if self._error is not None:
                raise self._error
        return True

    def _is_reduced(self, until: float | None) -> bool:
        """Wait for the result of the reduction."""
        if self._request is None:
            return True
        if until is None:
            self._request.Wait()
            return True
        while not self._request.Test():
            if time.monotonic() >= until:
                return False
            time.sleep(_TEST_EVERY_S)
        return True

    def _start_working(self) -> None:
        if self._backlog and not self._working and self._error is None:
            self._working = True
            # A daemon: a function that never returns must not keep the program from ending.
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        """Make parts of all rows in hand, on a thread of its own."""
        try:
            while self._has_work():
                self._work_once()
        except BaseException as error:  # The copy raises it.
            with self._changed:
                self._error, self._working = error, False
                self._changed.notify_all()

    def _has_work(self) -> bool:
        with self._changed:
            self._working = bool(self._backlog)
            if not self._working:
                self._changed.notify_all()
            return self._working

    def _work_once(self) -> None:
        """Make a part of the oldest rows in hand."""
        with self._changed:
            rows, value = self._backlog[0], self._value
        part = self._array(self._function(rows, value))
        with self._changed:
            # Together: a checkpoint has the rows, or the part.
            self._part, self._count = _combined(self._op, self._part, part), self._count + 1
            self._backlog.popleft()

    def _array(self, returned: Any) -> Any:
        import numpy as np

        try:
            if returned is None:
                raise TypeError("a copy without rows must return one, too")
            # A copy, because the function may go on to change what it has returned.
            return np.array(returned, dtype=np.float64, order="C")
        except (TypeError, ValueError) as error:
            raise DataSetError(
                f"it returned {type(returned).__name__}, and all_reduce takes a number or an array of numbers: {error}"
            ) from None

    def _send(self) -> None:
        """Start the reduction of all parts that this copy has."""
        import numpy as np

        reduction, _, nothing = OPERATIONS[self._op]
        # Counts and marks are at least 0, so the least of their negatives is what the greatest is elsewhere.
        sign = -1.0 if self._op == "min" else 1.0
        with self._changed:
            part, count = self._part, self._count
            self._part, self._count = None, 0
        self._shape = self._value.shape if part is None else part.shape
        values = np.full(self._shape, nothing) if part is None else part
        marks = np.zeros(1 + self._copies)
        marks[0], marks[1 + self._copy] = sign * count, sign * self._left_out
        self._sent = np.concatenate([values.ravel(), marks])
        self._received = np.empty_like(self._sent)
        if self._max_wait_s is None and self._sent.nbytes < _ASIDE_BYTES:
            # It is over before the stream could go on; and reports of slow copies count the waits of such calls.
            self._comm.Allreduce(self._sent, self._received, reduction)
            return
        assert self._reductions is not None
        self._request = self._reductions.Iallreduce(self._sent, self._received, reduction, algorithm="adaptive")

    def _receive(self) -> list[NativeTable] | None:
        """End the round, and return its row; None if it had no part at all, and begins again."""
        import numpy as np

        self._request = None
        values, marks = np.split(self._received, [-1 - self._copies])
        self._sent = self._received = None
        if marks[0] == 0:
            # Every copy was late. They try again until one is ready: another may hang.
            self._deadline, self._left_out = time.monotonic() + max(self._max_wait_s or 0, _BRIEFLY_S), False
            return None
        value = values.reshape(self._shape).copy()
        if self._op == "mean":
            value /= marks[0]
        number = self._number
        with self._changed:
            self._number, self._value = number + 1, value
        if self._copy != 0:
            return []
        timed = isinstance(self._window[1], datetime)
        start, end = self._window if timed else (None, None)
        row: dict[str, Any] = {"round": number, "window_start": start, "window_end": end}
        row["value"] = value.ravel().tolist()
        if self._max_wait_s is not None:
            row["left_out"] = np.flatnonzero(marks[1:]).tolist()
        return [table_of_rows([row], self._schema)]
