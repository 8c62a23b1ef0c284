"""Memory as MPI programs handle it: allocated, at an address, or of another object.

``MPI.memory`` is a view with the interface of mpi4py's ``MPI.buffer``. It is a `numpy.ndarray` of bytes underneath, so that
everything which takes a buffer takes it, also on Pythons that cannot define buffers in Python.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tidemill._errors import fail
from tidemill.mpi._buffers import BottomType, BufferAutomaticType, bytes_of


class buffer(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of memory, shared and not copied.

    Parameters
    ----------
    buf : buffer, optional
        The object whose memory it is; without one, no memory.
    """

    def __new__(cls, buf: Any = None, /) -> buffer:
        return cls.frombuffer(b"", True) if buf is None else cls.frombuffer(buf, memoryview(buf).readonly)

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> buffer:
        """New memory, zero if `clear`."""
        if nbytes < 0:
            raise ValueError("expecting non-negative buffer length")
        return (np.zeros if clear else np.empty)(nbytes, np.uint8).view(buffer)

    @staticmethod
    def frombuffer(obj: Any, readonly: bool = False) -> buffer:
        """The memory of an object, which must be writable unless `readonly`."""
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
        """The memory at an address, which must stay valid as long as this is used."""
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
        """Where the memory begins; 0 if there is none."""
        return int(self.ctypes.data) if self.size else 0

    @property
    def obj(self) -> Any:
        """The object whose memory it is."""
        return self._obj

    def __array_finalize__(self, obj: Any) -> None:
        self._obj = getattr(obj, "_obj", None)

    def __bool__(self) -> bool:
        return self.size > 0

    @property
    def readonly(self) -> bool:
        """Whether it must not be written."""
        return not self.flags.writeable

    @property
    def format(self) -> str:
        """The format of an item: bytes."""
        return "B"

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        return found if isinstance(item, slice) else int(found)

    def __setitem__(self, item: Any, value: Any) -> None:
        if isinstance(item, slice) and not isinstance(value, int):
            value = bytes_of(value, writable=False)
        super().__setitem__(item, value)

    def cast(self, format: str, shape: Any = ...) -> memoryview:
        """A memoryview with another format and, if given, shape."""
        view: memoryview = self.data
        found: memoryview = view.cast(format) if shape is ... else view.cast(format, shape)  # type: ignore[call-overload]
        return found

    def toreadonly(self) -> buffer:
        """The same memory, read-only."""
        return buffer.frombuffer(self, readonly=True)

    def release(self) -> None:
        """Does nothing: memory is released when nobody uses it."""

    def __eq__(self, other: object) -> Any:
        return (
            bytes(self) == bytes(other) if isinstance(other, (bytes, bytearray, memoryview, buffer)) else NotImplemented
        )

    def __ne__(self, other: object) -> Any:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    __hash__ = None


memory = buffer


def Alloc_mem(size: int, info: Any = None) -> buffer:
    """New memory of `size` bytes. Source: MPI 4.1 section 9.2."""
    return buffer.allocate(size)


def Free_mem(mem: Any) -> None:
    """Does nothing: memory is freed when nobody uses it. Source: MPI 4.1 section 9.2."""
    if not isinstance(mem, np.ndarray):
        raise fail("ERR_BASE", "not memory of Alloc_mem")


def Get_address(location: Any) -> int:
    """The address of a buffer. Source: MPI 4.1 section 5.1.5."""
    return (
        0
        if location is None or isinstance(location, BottomType)
        else int(bytes_of(location, writable=False).ctypes.data)
    )


def Aint_add(base: int, disp: int) -> int:
    """The sum of an address and a displacement."""
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    """The difference of two addresses."""
    return addr1 - addr2


_attached: list[Any] = [None]


def attached(buf: Any) -> Any:
    """A buffer for buffered sends as it is given back."""
    return buf if buf is None or isinstance(buf, BufferAutomaticType) else buffer.frombuffer(buf)


def Attach_buffer(buf: Any) -> None:
    """Accepted for compatibility: buffered sends take the memory they need. Source: MPI 4.1 section 3.6."""
    if _attached[0] is not None:
        raise fail("ERR_BUFFER", "a buffer is attached already")
    _attached[0] = attached(buf)


def Detach_buffer() -> Any:
    """Returns what `Attach_buffer` was given. Source: MPI 4.1 section 3.6."""
    found, _attached[0] = _attached[0], None
    return found


def Flush_buffer() -> None:
    """Does nothing: buffered sends own their memory. Source: MPI 4.1 section 3.6."""


def Iflush_buffer() -> Any:
    """A request that is over: buffered sends own their memory. Source: MPI 4.1 section 3.6."""
    from tidemill.mpi._request import Grequest

    request = Grequest.Start()
    request.Complete()
    return request
