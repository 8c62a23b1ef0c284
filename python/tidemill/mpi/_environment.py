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
    """Joins the job. Importing and using ``COMM_WORLD`` does so too. Source: MPI 4.1 section 11.2.1."""
    from tidemill._membership import join

    join()


def Init_thread(required: int = c.THREAD_MULTIPLE) -> int:
    """Joins the job; any thread may communicate. Source: MPI 4.1 section 11.6.2."""
    Init()
    return c.THREAD_MULTIPLE


def Finalize() -> None:
    """Leaves the job: no communication is possible afterwards. Happens by itself at the end of the program."""
    from tidemill._membership import leave

    leave()


def Is_initialized() -> bool:
    """True until `Finalize`: whoever asks is a worker, and joins its job if it has not yet."""
    from tidemill._membership import is_left

    if not is_left():
        Init()
    return True


def Is_finalized() -> bool:
    """Whether this worker has left its job."""
    from tidemill._membership import is_left

    return is_left()


def Query_thread() -> int:
    """``MPI.THREAD_MULTIPLE``."""
    return c.THREAD_MULTIPLE


def Is_thread_main() -> bool:
    """Whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


def Wtime() -> float:
    """Seconds since some moment in the past."""
    return time.perf_counter()


def Wtick() -> float:
    """The resolution of `Wtime`, in seconds."""
    return time.get_clock_info("perf_counter").resolution


def Get_processor_name() -> str:
    """The name of this host."""
    return os.uname().nodename


def Get_version() -> tuple[int, int]:
    """The version of the standard whose calls are offered."""
    return c.VERSION, c.SUBVERSION


def Get_library_version() -> str:
    """The name and version of the library."""
    from tidemill._tidemill import __version__

    return f"Tidemill {__version__}"


def Get_abi_version() -> tuple[int, int]:
    """``(-1, -1)``: there is no binary interface of MPI here."""
    return -1, -1


def Get_abi_info() -> Any:
    """Nothing: there is no binary interface of MPI here."""
    return Get_hw_resource_info()


def Get_abi_fortran_info() -> Any:
    """Nothing: there is no Fortran here."""
    return Get_hw_resource_info()


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """The name and version of the library."""
    from tidemill._tidemill import __version__

    major, minor, patch = (int(part) for part in __version__.split("+")[0].split("-")[0].split("."))
    return "Tidemill", (major, minor, patch)


def Pcontrol(level: int) -> None:
    """Does nothing: there is no profiler."""


def Get_hw_resource_info() -> Any:
    """Nothing is known under the names of the standard."""
    from tidemill.mpi._info import Info

    return Info.Create()


def Get_error_class(errorcode: int) -> int:
    """The class of an error code."""
    return error_class(errorcode)


def Get_error_string(errorcode: int) -> str:
    """What an error code means."""
    return error_string(errorcode)


def Add_error_class() -> int:
    """A new error class of the program's own."""
    return _add(None)


def Add_error_code(errorclass: int) -> int:
    """A new error code of a class."""
    return _add(errorclass)


def _add(errorclass: int | None) -> int:
    number = _added[0]
    _added[0] += 1
    added_classes[number] = number if errorclass is None else errorclass
    return number


def Add_error_string(errorcode: int, string: str) -> None:
    """Says what a code or class of the program's own means."""
    if errorcode not in added_classes:
        raise fail("ERR_ARG", f"{errorcode} is not a code of the program's own")
    added_strings[errorcode] = string


def Remove_error_class(errorclass: int) -> None:
    """Forgets an error class of the program's own."""
    _remove(errorclass)


def Remove_error_code(errorcode: int) -> None:
    """Forgets an error code of the program's own."""
    _remove(errorcode)


def _remove(number: int) -> None:
    if number in added_strings:
        raise fail("ERR_ARG", f"{number} still has a string; remove that first")
    if any(of == number and code != number for code, of in added_classes.items()):
        raise fail("ERR_ARG", f"{number} still has codes; remove them first")
    if added_classes.pop(number, None) is None:
        raise fail("ERR_ARG", f"{number} is not a code of the program's own")


def Remove_error_string(errorcode: int) -> None:
    """Forgets what a code of the program's own means."""
    if added_strings.pop(errorcode, None) is None:
        raise fail("ERR_ARG", f"{errorcode} has no string of the program's own")


__all__ = ["CommError"]
