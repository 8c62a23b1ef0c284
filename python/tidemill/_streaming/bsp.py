"""User functions that all copies of a stream's task enter together, with a communicator and a state for each copy.

The engine keeps the rows of windows and agrees on what to call. It calls what is here: the function, and the pickling of its state.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tidemill._tables.durations import micros_since_1970
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Schema, describe_error, table_of_rows, take_result
from tidemill._tables.table import Table
from tidemill._tidemill import Comm, NativeTable
from tidemill.mpi._comm import Intracomm

__all__ = ["BspContext", "BspFunction", "BspLogic", "CallOutput", "Merge", "Place", "Split", "window_of"]

_EPOCH = datetime(1970, 1, 1)
_US = timedelta(microseconds=1)


class BspContext:
    """Information about a call of a function of `DataSet.bsp` in a stream; valid during the call.

    Attributes
    ----------
    state : object
        State that the function keeps at this copy from call to call: any object that can be pickled, None at first. You
        may change it in place. Every checkpoint saves it.
    window_start, window_end : datetime, int or None
        The window of the rows (UTC), from its start, inclusive, to its end, exclusive. For windows of a number of rows:
        the number of the first row, and of the first row after the last, counted over all copies. None if the function
        is called at checkpoints.
    timer : datetime or None
        With a window of time: set it, on any copy, to call the function again for the first window that ends after this
        time (UTC), even if no copy has rows in that. It holds until the next call, which begins with None. When the stream
        ends, its time does not go on: windows behind the last rows are not called for a timer.
    copy, copies : int
        Number of this copy, from 0, and number of copies: its rank in the communicator, and the size of that.
    """

    __slots__ = ("copies", "copy", "state", "timer", "window_end", "window_start")

    def __init__(self, state: Any, window: _Window, copy: int, copies: int) -> None:
        self.state = state
        self.window_start: datetime | int | None = window[0]
        self.window_end: datetime | int | None = window[1]
        self.timer: datetime | None = None
        self.copy = copy
        self.copies = copies


#: The window of a call: times, numbers of rows, or nothing.
_Window = tuple[datetime, datetime] | tuple[int, int] | tuple[None, None]
#: Called with a communicator, this copy's rows and a context; returns rows.
BspFunction = Callable[[Any, Table, BspContext], Any]
#: Makes one state from those of all copies.
Merge = Callable[[list[Any]], Any]
#: Makes as many states from one as there are copies.
Split = Callable[[Any, int], Sequence[Any]]


#: A copy's communicator, its number, the number of copies, and the pickled states of all copies that there were.
Place = tuple[Comm, int, int, list[bytes]]
#: New rows, whether `BspLogic.poll` may give more of the same call, and a timer in microseconds, which only a call sets.
CallOutput = tuple[list[NativeTable], bool, int | None]


class BspLogic:
    """What the engine calls for one copy."""

    #: Of a function whose calls are rounds of an all-reduce: how many have ended, their mean and longest seconds from this
    #: copy's part to the result, how many left the copy out, how many of its parts are in none yet, and the seconds since it
    #: was first left out.
    rounds: tuple[int, float, float, int, int, float] | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        schema: Schema,
        merge: Merge | None,
        split: Split | None,
        place: Place,
    ) -> None:
        native, self._copy, self._copies, restored = place
        self._comm: Intracomm = Intracomm._wrap(native, name)
        self._function = function
        self._name = name
        self._schema = schema
        self._state = self._restored([pickle.loads(state) for state in restored], merge, split)

    def _restored(self, states: list[Any], merge: Merge | None, split: Split | None) -> Any:
        if len(states) == self._copies:
            return states[self._copy]
        if all(state is None for state in states):
            return None
        if merge is None:
            raise DataSetError(
                f"{self._name}: its checkpoint has the states of {len(states)} copies, but there are {self._copies} now; give bsp a "
                "merge= that makes one state of them, and a split= if copies need different parts of it"
            )
        whole = merge(states)
        if split is None:
            return whole
        parts = split(whole, self._copies)
        if len(parts) != self._copies:
            raise DataSetError(f"{self._name}: split= returned {len(parts)} states for {self._copies} copies")
        return parts[self._copy]

    def call(self, rows: NativeTable, window: tuple[int, int] | None, is_rows: bool) -> CallOutput:
        """Call the function, and return its rows. `window` is in microseconds, or in numbers of rows."""
        context = BspContext(self._state, window_of(window, is_rows), self._copy, self._copies)
        made = self._function(self._comm, Table(rows), context)
        self._state = context.state
        timer = self._timer(context)
        if made is None:
            return [], False, timer
        try:
            if isinstance(made, Mapping):
                made = [made]
            return [table_of_rows(made, self._schema) if isinstance(made, list) else take_result(made)], False, timer
        except Exception as error:
            raise DataSetError(f"{self._name}: {describe_error(error)}") from error

    def _timer(self, context: BspContext) -> int | None:
        if context.timer is None:
            return None
        if not isinstance(context.window_end, datetime):
            raise DataSetError(
                f"{self._name}: context.timer is a time of windows of time; pass such a window=, or leave it out"
            )
        return micros_since_1970(
            context.timer, f"{self._name}: context.timer", "context.window_end + timedelta(seconds=10)"
        )

    def poll(self, waits: bool) -> CallOutput:
        """Return more rows of the last call, if it was pending; all of them if this `waits`."""
        return [], False, None

    def finish(self) -> list[NativeTable]:
        """Return the last rows, when the stream has ended and no call is pending; all copies do this together."""
        return []

    def save(self) -> bytes:
        """Pickle the state."""
        try:
            return pickle.dumps(self._state, protocol=5)
        except Exception as error:
            raise DataSetError(f"{self._name}: its state cannot be pickled: {error}") from error


def window_of(window: tuple[int, int] | None, is_rows: bool) -> _Window:
    if window is None:
        return None, None
    start, end = window
    return window if is_rows else (_EPOCH + start * _US, _EPOCH + end * _US)
