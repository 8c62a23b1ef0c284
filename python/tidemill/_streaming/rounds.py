"""Rounds of `tm.stream.all_reduce`: a function's parts, and their reduction, which for long arrays goes on while rows arrive."""

from __future__ import annotations

import time
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

__all__ = ["OPERATIONS", "RoundFunction", "RoundLogic"]

#: Called with a copy's rows and the last value; returns the copy's part.
RoundFunction = Callable[[Table, "NDArray[numpy.float64] | None"], "ArrayLike"]

#: The reductions, by option.
OPERATIONS = {"sum": mpi.SUM, "mean": mpi.SUM, "min": mpi.MIN, "max": mpi.MAX}

#: Reductions go on beside the stream if the last value has at least this many bytes; shorter ones are over before it could
#: go on.
_ASIDE_BYTES = 1 << 20
#: How long a call waits for its reduction before the stream goes on, in seconds.
_BRIEFLY_S = 0.005
#: How often it looks meanwhile whether the reduction is over.
_TEST_EVERY_S = 0.0005


class RoundLogic(BspLogic):
    """What the engine calls for one copy. The state is the number of the next round and the last value, the same on all."""

    def __init__(self, function: RoundFunction, name: str, schema: Schema, op: str, place: Place) -> None:
        super().__init__(function, name, schema, lambda states: states[0], None, place)
        self._op = op
        self._window: tuple[Any, Any] = (None, None)
        # The reductions' own communicator, because they go on while the copies agree on their next call.
        self._reductions: mpi.Intracomm | None = None
        self._request: Any = None
        self._sent: Any = None
        self._received: Any = None

    def call(self, rows: NativeTable, window: tuple[int, int] | None, is_rows: bool) -> CallOutput:
        """Begin a round with these rows."""
        import numpy as np

        _, last = self._state or (0, None)
        self._window = window_of(window, is_rows)
        self._sent = self._part(self._function(Table(rows), last))
        self._received = np.empty_like(self._sent)
        # All copies have the same last value. What they return now may differ in length, and they must make the same call to
        # find that out.
        if last is None or last.nbytes < _ASIDE_BYTES:
            # Reports of slow copies count the waits of such calls.
            self._comm.Allreduce(self._sent, self._received, OPERATIONS[self._op])
            return self._end(), False, None
        if self._reductions is None:
            self._reductions = self._comm.Clone()
        # All copies begin a round together: here they may change how they reduce.
        self._reductions._adapt(last.nbytes)
        self._request = self._reductions.Iallreduce(
            self._sent, self._received, OPERATIONS[self._op], algorithm="adaptive"
        )
        return self._advance(_BRIEFLY_S)

    def poll(self, waits: bool) -> CallOutput:
        return self._advance(None if waits else 0.0)

    def _advance(self, wait_s: float | None) -> CallOutput:
        """Wait for the reduction for a time, or to its end if that is None."""
        if wait_s is None:
            self._request.Wait()
            return self._end(), False, None
        until = time.monotonic() + wait_s
        while not self._request.Test():
            if time.monotonic() >= until:
                return [], True, None
            time.sleep(_TEST_EVERY_S)
        return self._end(), False, None

    def _part(self, returned: Any) -> Any:
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

    def _end(self) -> list[NativeTable]:
        """End the round, and return its row."""
        number, _ = self._state or (0, None)
        value = self._received
        self._request = self._sent = self._received = None
        if self._op == "mean":
            value /= self._copies
        self._state = (number + 1, value)
        if self._copy != 0:
            return []
        start, end = self._window if isinstance(self._window[1], datetime) else (None, None)
        row = {"round": number, "window_start": start, "window_end": end, "value": value.ravel().tolist()}
        return [table_of_rows([row], self._schema)]
