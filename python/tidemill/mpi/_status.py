"""Status of a completed receive. Source: MPI 4.1 section 3.2.5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill import _tidemill
from tidemill._errors import fail
from tidemill.mpi import _constants as c
from tidemill.mpi._datatype import Datatype, elements_in, predefined

if TYPE_CHECKING:
    from tidemill.mpi._buffer import StatusMemory

_NAMES = ("source", "tag", "error", "count", "cancelled")


class Status(_tidemill.Status):
    """Source, tag, length and error of a message; filled by receives, probes and waits."""

    def Get_count(self, datatype: Datatype = predefined["BYTE"]) -> int:
        """Return the number of items of `datatype` in the message; ``MPI.UNDEFINED`` if it is not a whole number."""
        size = datatype.Get_size()
        if size == 0:
            return 0 if self._nbytes == 0 else c.UNDEFINED
        items, rest = divmod(self._nbytes, size)
        return c.UNDEFINED if rest else items

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the number of basic elements of `datatype` in the message, including those of an incomplete last item."""
        found = elements_in(datatype, self._nbytes)
        return c.UNDEFINED if found is None else found

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length, as generalized requests do."""
        layout = datatype._laid()
        per_item = int((layout.lengths // layout.elements).sum())
        self._nbytes = count * layout.size // max(per_item, 1)

    source = property(_tidemill.Status.Get_source, _tidemill.Status.Set_source, doc="The rank the message came from.")
    tag = property(_tidemill.Status.Get_tag, _tidemill.Status.Set_tag, doc="The tag of the message.")
    error = property(_tidemill.Status.Get_error, _tidemill.Status.Set_error, doc="The error code.")
    cancelled = property(
        _tidemill.Status.Is_cancelled, _tidemill.Status.Set_cancelled, doc="Whether the request was cancelled."
    )

    @property
    def count(self) -> int:
        """Length of the message in bytes."""
        return int(self._nbytes)

    @count.setter
    def count(self, value: int) -> None:
        self._nbytes = value

    def _state(self) -> tuple[int, ...]:
        return self.source, self.tag, self.error, self.count, int(self.cancelled)

    def __eq__(self, other: object) -> bool:
        return self._state() == other._state() if isinstance(other, Status) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return self._state() != other._state() if isinstance(other, Status) else NotImplemented

    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, int]:
        return dict(zip(_NAMES, self._state(), strict=True))

    def __setstate__(self, state: dict[str, int]) -> None:
        for name, value in state.items():
            setattr(self, name, bool(value) if name == "cancelled" else value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (), self.__getstate__()

    def py2f(self) -> list[int]:
        """Return the status as a list of integers."""
        return list(self._state())

    @classmethod
    def f2py(cls, arg: list[int]) -> Status:
        """Return the status of a list from `py2f`."""
        if len(arg) != F_STATUS_SIZE:
            raise fail("ERR_ARG", f"expecting {F_STATUS_SIZE} integers")
        status = cls()
        status.source, status.tag, status.error, status.count = arg[:4]
        status.cancelled = bool(arg[4])
        return status

    def tomemory(self) -> StatusMemory:
        """Return the status as memory of integers, in the order of `py2f`; assigning to an item updates the status."""
        from tidemill.mpi._buffer import StatusMemory

        return StatusMemory.of(self, _NAMES)


F_SOURCE, F_TAG, F_ERROR, F_STATUS_SIZE = 0, 1, 2, 5
