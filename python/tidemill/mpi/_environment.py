"""Start, end, clocks and names. Source: MPI 4.1 chapters 9 and 11."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from tidemill._errors import CommError, added_classes, added_strings, error_class, error_string, fail
from tidemill.mpi import _constants as c

_added = [(1 << 16) + 1]


def Init() -> None:
    """Join the job. Using ``COMM_WORLD`` also does so. Source: MPI 4.1 section 11.2.1."""
    from tidemill._membership import join

    join()


def Init_thread(required: int = c.THREAD_MULTIPLE) -> int:
    """Join the job; any thread may communicate. Source: MPI 4.1 section 11.6.2."""
    Init()
    return c.THREAD_MULTIPLE


def Finalize() -> None:
    """Leave the job: no communication is possible afterwards. Called automatically at the end of the program."""
    from tidemill._membership import leave

    leave()


def Is_initialized() -> bool:
    """Return True until `Finalize`; join the job if this has not happened yet."""
    from tidemill._membership import is_left

    if not is_left():
        Init()
    return True


def Is_finalized() -> bool:
    """Return whether this worker has left its job."""
    from tidemill._membership import is_left

    return is_left()


def Query_thread() -> int:
    """Return ``MPI.THREAD_MULTIPLE``."""
    return c.THREAD_MULTIPLE


def Is_thread_main() -> bool:
    """Return whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


def Wtime() -> float:
    """Return the seconds since a fixed moment in the past."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of `Wtime`, in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """Return the name of this host."""
    return os.uname().nodename


def Get_version() -> tuple[int, int]:
    """Return the version of the MPI standard whose calls are provided."""
    return c.VERSION, c.SUBVERSION


def Get_library_version() -> str:
    """Return the name and version of the library."""
    from tidemill._tidemill import __version__

    return f"Tidemill {__version__}"


def Get_abi_version() -> tuple[int, int]:
    """Return ``(-1, -1)``: there is no MPI ABI."""
    return -1, -1


def Get_abi_info() -> Any:
    """Return an empty info: there is no MPI ABI."""
    return Get_hw_resource_info()


def Get_abi_fortran_info() -> Any:
    """Return an empty info: Fortran is not supported."""
    return Get_hw_resource_info()


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Return the name and version of the library."""
    from tidemill._tidemill import __version__

    major, minor, patch = (int(part) for part in __version__.split("+")[0].split("-")[0].split("."))
    return "Tidemill", (major, minor, patch)


def Pcontrol(level: int) -> None:
    """Do nothing: there is no profiler."""


def Get_hw_resource_info() -> Any:
    """Return an empty info: Tidemill does not provide the standard's hardware resources."""
    from tidemill.mpi._info import Info

    return Info.Create()


def Get_error_class(errorcode: int) -> int:
    """Return the class of an error code."""
    return error_class(errorcode)


def Get_error_string(errorcode: int) -> str:
    """Return the meaning of an error code."""
    return error_string(errorcode)


def Add_error_class() -> int:
    """Create an error class."""
    return _add(None)


def Add_error_code(errorclass: int) -> int:
    """Create an error code of a class."""
    return _add(errorclass)


def _add(errorclass: int | None) -> int:
    number = _added[0]
    _added[0] += 1
    added_classes[number] = number if errorclass is None else errorclass
    return number


def Add_error_string(errorcode: int, string: str) -> None:
    """Set the meaning of a user-defined code or class."""
    if errorcode not in added_classes:
        raise fail("ERR_ARG", f"{errorcode} is not a code of the program's own")
    added_strings[errorcode] = string


def Remove_error_class(errorclass: int) -> None:
    """Remove a user-defined error class."""
    _remove(errorclass)


def Remove_error_code(errorcode: int) -> None:
    """Remove a user-defined error code."""
    _remove(errorcode)


def _remove(number: int) -> None:
    if number in added_strings:
        raise fail("ERR_ARG", f"{number} still has a string; remove that first")
    if any(of == number and code != number for code, of in added_classes.items()):
        raise fail("ERR_ARG", f"{number} still has codes; remove them first")
    if added_classes.pop(number, None) is None:
        raise fail("ERR_ARG", f"{number} is not a code of the program's own")


def Remove_error_string(errorcode: int) -> None:
    """Remove the meaning of a user-defined code."""
    if added_strings.pop(errorcode, None) is None:
        raise fail("ERR_ARG", f"{errorcode} has no string of the program's own")


__all__ = ["CommError"]
