"""Rounds of `tm.stream.all_reduce`: a function's parts, and their reduction, which for long arrays goes on while rows arrive."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidemill import mpi
from tidemill._streaming.bsp import BspLogic, CallOutput, Merge, Place, Split, window_of
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Schema, table_of_rows
from tidemill._tables.table import Table

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from tidemill._tidemill import NativeTable

__all__ = ["BRIEFLY_S", "OPERATIONS", "RoundFunction", "RoundLogic"]

#: Called with a copy's rows and the last value; returns the copy's part.
RoundFunction = Callable[[Table, "NDArray[numpy.float64] | None"], "ArrayLike"]

#: The reductions, by option.
OPERATIONS = {"sum": mpi.SUM, "mean": mpi.SUM, "min": mpi.MIN, "max": mpi.MAX}

#: Reductions go on beside the stream if the last value has at least this many bytes; shorter ones are over before it could
#: go on.
_ASIDE_BYTES = 1 << 20
#: How long a call waits for its reduction before the stream goes on, in seconds.
BRIEFLY_S = 0.005
#: How often it looks meanwhile whether the reduction is over.
_TEST_EVERY_S = 0.0005


class RoundLogic(BspLogic):
    """What the engine calls for one copy. The state is the number of the next round and the last value, the same on all."""

    def __init__(
        self,
        function: RoundFunction,
        name: str,
        schema: Schema,
        op: str,
        place: Place,
        merge: Merge = lambda states: states[0],
        split: Split | None = None,
    ) -> None:
        super().__init__(function, name, schema, merge, split, place)
        self._op = op
        self._window: tuple[Any, Any] = (None, None)
        # The reductions' own communicator, because they go on while the copies agree on their next call.
        self._reductions: mpi.Intracomm | None = None
        self._request: Any = None
        self._sent: Any = None
        self._received: Any = None
        # When this copy sent its part, and the seconds from there to the result: of all rounds, and of the longest one.
        self._sent_s = 0.0
        self._taken_s = 0.0
        self._longest_s = 0.0

    def call(self, rows: NativeTable, window: tuple[int, int] | None, is_rows: bool) -> CallOutput:
        """Begin a round with these rows."""
        _, last = self._state or (0, None)
        self._window = window_of(window, is_rows)
        part = self._part(self._function(Table(rows), last))
        if not self._is_long():
            self._reduce(part)
            return self._end(), False, None
        self._adapt()
        self._reduce(part, beside=True)
        return self._advance(BRIEFLY_S)

    def poll(self, waits: bool) -> CallOutput:
        return self._advance(None if waits else 0.0)

    def _advance(self, wait_s: float | None) -> CallOutput:
        """Wait for the reduction for a time, or to its end if that is None."""
        if wait_s is None:
            self._request.Wait()
            return self._end(), False, None
        if not self._is_reduced(time.monotonic() + wait_s):
            return [], True, None
        return self._end(), False, None

    def _is_long(self) -> bool:
        """Whether arrays are so long that it pays to reduce them beside the stream, around slow links."""
        # All copies have the same last value. What they return now may differ in length, and they must make the same call to
        # find that out.
        _, last = self._state or (0, None)
        return last is not None and last.nbytes >= _ASIDE_BYTES

    def _adapt(self) -> None:
        """Change how arrays are reduced, if it pays. All copies begin a round together: there they may."""
        _, last = self._state
        self._beside()._adapt(last.nbytes)

    def _beside(self) -> mpi.Intracomm:
        """Return the communicator of reductions that go on beside the stream. The first call is collective."""
        if self._reductions is None:
            self._reductions = self._comm.Clone()
        return self._reductions

    def _reduce(self, sent: Any, beside: bool = False) -> None:
        """Reduce; beside the stream, this only begins."""
        import numpy as np

        op = OPERATIONS[self._op]
        self._sent, self._received, self._sent_s = sent, np.empty_like(sent), time.monotonic()
        if beside:
            algorithm = "adaptive" if self._is_long() else None
            self._request = self._beside().Iallreduce(sent, self._received, op, algorithm=algorithm)
        else:
            # Reports of slow copies count the waits of such calls.
            self._comm.Allreduce(sent, self._received, op)

    def _is_reduced(self, until: float) -> bool:
        """Wait for the result until then."""
        while not self._request.Test():
            if time.monotonic() >= until:
                return False
            time.sleep(_TEST_EVERY_S)
        return True

    def _take(self, left_out: int = 0, behind: int = 0, late_s: float = 0.0) -> Any:
        """Return what was received, and count the round. See `BspLogic.rounds`."""
        received = self._received
        self._request = self._sent = self._received = None
        took_s = time.monotonic() - self._sent_s
        self._taken_s += took_s
        self._longest_s = max(self._longest_s, took_s)
        rounds = 1 + (self.rounds[0] if self.rounds else 0)
        self.rounds = (rounds, self._taken_s / rounds, self._longest_s, left_out, behind, late_s)
        return received

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
        value = self._take()
        if self._op == "mean":
            value /= self._copies
        return self._result(value)

    def _result(self, value: Any, **more: Any) -> list[NativeTable]:
        """Go on to the next round with this value, and return the round's row."""
        number, _ = self._state or (0, None)
        self._state = (number + 1, value)
        if self._copy != 0:
            return []
        start, end = self._window if isinstance(self._window[1], datetime) else (None, None)
        row = {"round": number, "window_start": start, "window_end": end, "value": value.ravel().tolist(), **more}
        return [table_of_rows([row], self._schema)]
