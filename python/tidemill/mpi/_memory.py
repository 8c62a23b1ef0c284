"""Memory in MPI programs: allocated, at an address, or attached for buffered sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill._errors import fail
from tidemill.mpi._buffers import BottomType, BufferAutomaticType, bytes_of
from tidemill.mpi._lazy import np

if TYPE_CHECKING:
    from tidemill.mpi._buffer import buffer


def Alloc_mem(size: int, info: Any = None) -> buffer:
    """Allocate `size` bytes of memory. Source: MPI 4.1 section 9.2."""
    from tidemill.mpi._buffer import buffer

    return buffer.allocate(size)


def Free_mem(mem: Any) -> None:
    """Do nothing: memory is freed when it is no longer used. Source: MPI 4.1 section 9.2."""
    if not isinstance(mem, np.ndarray):
        raise fail("ERR_BASE", "not memory of Alloc_mem")


def Get_address(location: Any) -> int:
    """Return the address of a buffer. Source: MPI 4.1 section 5.1.5."""
    return (
        0
        if location is None or isinstance(location, BottomType)
        else int(bytes_of(location, writable=False).ctypes.data)
    )


def Aint_add(base: int, disp: int) -> int:
    """Return the sum of an address and a displacement."""
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    """Return the difference of two addresses."""
    return addr1 - addr2


_attached: list[Any] = [None]


def attached(buf: Any) -> Any:
    """Return a buffer for buffered sends as `Detach_buffer` returns it."""
    if buf is None or isinstance(buf, BufferAutomaticType):
        return buf
    from tidemill.mpi._buffer import buffer

    return buffer.frombuffer(buf)


def Attach_buffer(buf: Any) -> None:
    """Accept a buffer for compatibility: buffered sends allocate the memory they need. Source: MPI 4.1 section 3.6."""
    if _attached[0] is not None:
        raise fail("ERR_BUFFER", "a buffer is attached already")
    _attached[0] = attached(buf)


def Detach_buffer() -> Any:
    """Return the buffer passed to `Attach_buffer`. Source: MPI 4.1 section 3.6."""
    found, _attached[0] = _attached[0], None
    return found


def Flush_buffer() -> None:
    """Do nothing: buffered sends own their memory. Source: MPI 4.1 section 3.6."""


def Iflush_buffer() -> Any:
    """Return a completed request: buffered sends own their memory. Source: MPI 4.1 section 3.6."""
    from tidemill.mpi._request import Grequest

    request = Grequest.Start()
    request.Complete()
    return request
