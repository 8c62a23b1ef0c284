"""NumPy arrays with MPI's own interface: byte memory, and the integers of a status."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill.mpi._buffers import bytes_of

if TYPE_CHECKING:
    from tidemill.mpi._status import Status


class buffer(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of memory, shared and not copied: ``MPI.buffer``, also ``MPI.memory``.

    It has the interface of mpi4py's class and is a `numpy.ndarray`, so that any function that takes a buffer accepts
    it, also on Python versions that cannot define buffers in Python. ``buffer(obj)`` shares the memory of an object;
    ``buffer()`` is empty.
    """

    def __new__(cls, buf: Any = None, /) -> buffer:
        if buf is None:
            return cls.frombuffer(b"", True)
        # `bytes_of` reads any kind of memory, and tells whether it is writable.
        return cls.frombuffer(buf, not bytes_of(buf, writable=False).flags.writeable)

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        """Allocate memory, filled with zeros if `clear`."""
        if nbytes < 0:
            raise ValueError("expecting non-negative buffer length")
        return (np.zeros if clear else np.empty)(nbytes, np.uint8).view(buffer)

    @staticmethod
    def frombuffer(obj: Any, readonly: bool = False) -> buffer:
        """Return the memory of an object, which must be writable unless `readonly`."""
        try:
            flat = bytes_of(obj, writable=not readonly)
        except ValueError as error:
            raise BufferError(str(error)) from None
        view = flat.view(buffer)
        if readonly:
            view.flags.writeable = False
        view._obj = obj
        return view

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> buffer:
        """Return the memory at an address, which must stay valid as long as the result is used."""
        if nbytes < 0:
            raise ValueError("expecting non-negative buffer length")
        if nbytes == 0:
            return buffer.allocate(0)
        if address == 0:
            raise ValueError("expecting non-NULL address")
        view = np.frombuffer(memoryview((ctypes.c_ubyte * nbytes).from_address(address)), np.uint8).view(buffer)
        if readonly:
            view.flags.writeable = False
        return view

    @property
    def address(self) -> int:
        """Address of the first byte; 0 if there is none."""
        return int(self.ctypes.data) if self.size else 0

    @property
    def obj(self) -> Any:
        """The object that owns the memory."""
        return self._obj

    def __array_finalize__(self, obj: Any) -> None:
        self._obj = getattr(obj, "_obj", None)

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def readonly(self) -> bool:
        """True if the memory must not be written."""
        return not self.flags.writeable

    @property
    def format(self) -> str:
        """Format of an item: bytes."""
        return "B"

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        return found if isinstance(item, slice) else int(found)

    def __setitem__(self, item: Any, value: Any) -> None:
        if isinstance(item, slice) and not isinstance(value, int):
            value = bytes_of(value, writable=False)
        super().__setitem__(item, value)

    def cast(self, format: str, shape: Any = ...) -> memoryview:
        """Return a memoryview with another format and, if given, shape."""
        view: memoryview = self.data
        found: memoryview = view.cast(format) if shape is ... else view.cast(format, shape)  # type: ignore[call-overload]
        return found

    def toreadonly(self) -> buffer:
        """Return the same memory, read-only."""
        return buffer.frombuffer(self, readonly=True)

    def release(self) -> None:
        """Do nothing: memory is released when it is no longer used."""

    def __eq__(self, other: object) -> Any:
        return (
            bytes(self) == bytes(other) if isinstance(other, (bytes, bytearray, memoryview, buffer)) else NotImplemented
        )

    def __ne__(self, other: object) -> Any:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = None


class StatusMemory(np.ndarray[Any, np.dtype[np.int64]]):
    """The integers of a status; assigning to them updates the status."""

    _status: Status | None = None
    _names: Sequence[str] = ()

    @staticmethod
    def of(status: Status, names: Sequence[str]) -> StatusMemory:
        """Return the integers of a status, whose attributes have these names."""
        memory = np.array(status._state(), np.int64).view(StatusMemory)
        memory._status, memory._names = status, names
        return memory

    def __setitem__(self, item: Any, value: Any) -> None:
        super().__setitem__(item, value)
        if self._status is not None:
            self._status.__setstate__(dict(zip(self._names, self.tolist(), strict=True)))
