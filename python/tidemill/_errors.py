"""The exceptions of Tidemill, and the MPI error classes they belong to.

Every communication error is a `CommError`, which `tidemill.mpi` calls ``MPI.Exception``; so you can catch either
Tidemill's or MPI's name for it. Native code raises these same classes.

Source: MPI 4.1 section 9.4 (error classes).
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ERROR_CLASSES",
    "BufferMismatchError",
    "CommError",
    "MismatchError",
    "OperationError",
    "PeerFailed",
    "TidemillError",
    "TruncationError",
    "UnsupportedError",
    "WorkerLost",
]

#: Name, number and meaning of every error class. The numbers are Tidemill's own; programs use the names.
_TABLE: list[tuple[str, int, str]] = [
    ("SUCCESS", 0, "no error"),
    ("ERR_BUFFER", 1, "invalid buffer"),
    ("ERR_COUNT", 2, "invalid count"),
    ("ERR_TYPE", 3, "invalid datatype"),
    ("ERR_TAG", 4, "invalid tag"),
    ("ERR_COMM", 5, "invalid communicator"),
    ("ERR_RANK", 6, "invalid rank"),
    ("ERR_REQUEST", 7, "invalid request"),
    ("ERR_ROOT", 8, "invalid root"),
    ("ERR_GROUP", 9, "invalid group"),
    ("ERR_OP", 10, "invalid reduction operation"),
    ("ERR_TOPOLOGY", 11, "invalid topology"),
    ("ERR_DIMS", 12, "invalid dimensions"),
    ("ERR_ARG", 13, "invalid argument"),
    ("ERR_UNKNOWN", 14, "unknown error"),
    ("ERR_TRUNCATE", 15, "message truncated"),
    ("ERR_OTHER", 16, "known error not in this list"),
    ("ERR_INTERN", 17, "internal error"),
    ("ERR_IN_STATUS", 18, "error code is in the status"),
    ("ERR_PENDING", 19, "pending request"),
    ("ERR_ACCESS", 20, "permission denied"),
    ("ERR_AMODE", 21, "invalid file mode"),
    ("ERR_ASSERT", 22, "invalid assertion"),
    ("ERR_BAD_FILE", 23, "invalid file name"),
    ("ERR_BASE", 24, "invalid base address"),
    ("ERR_CONVERSION", 25, "data conversion failed"),
    ("ERR_DISP", 26, "invalid displacement"),
    ("ERR_DUP_DATAREP", 27, "data representation is already defined"),
    ("ERR_FILE_EXISTS", 28, "file exists"),
    ("ERR_FILE_IN_USE", 29, "file is in use"),
    ("ERR_FILE", 30, "invalid file"),
    ("ERR_INFO_KEY", 31, "invalid info key"),
    ("ERR_INFO_NOKEY", 32, "no such info key"),
    ("ERR_INFO_VALUE", 33, "invalid info value"),
    ("ERR_INFO", 34, "invalid info object"),
    ("ERR_IO", 35, "input or output failed"),
    ("ERR_KEYVAL", 36, "invalid attribute key"),
    ("ERR_LOCKTYPE", 37, "invalid lock type"),
    ("ERR_NAME", 38, "no such service name"),
    ("ERR_NO_MEM", 39, "out of memory"),
    ("ERR_NOT_SAME", 40, "arguments differ between ranks"),
    ("ERR_NO_SPACE", 41, "no space left"),
    ("ERR_NO_SUCH_FILE", 42, "no such file"),
    ("ERR_PORT", 43, "invalid port"),
    ("ERR_QUOTA", 44, "quota exceeded"),
    ("ERR_READ_ONLY", 45, "read-only file or file system"),
    ("ERR_RMA_CONFLICT", 46, "conflicting accesses to a window"),
    ("ERR_RMA_SYNC", 47, "wrong synchronization of a window"),
    ("ERR_SERVICE", 48, "invalid service name"),
    ("ERR_SIZE", 49, "invalid size"),
    ("ERR_SPAWN", 50, "cannot spawn processes"),
    ("ERR_UNSUPPORTED_DATAREP", 51, "unsupported data representation"),
    ("ERR_UNSUPPORTED_OPERATION", 52, "unsupported operation"),
    ("ERR_WIN", 53, "invalid window"),
    ("ERR_RMA_RANGE", 54, "memory outside the window"),
    ("ERR_RMA_ATTACH", 55, "memory cannot be attached"),
    ("ERR_RMA_FLAVOR", 56, "wrong flavor of window"),
    ("ERR_RMA_SHARED", 57, "memory cannot be shared"),
    ("ERR_SESSION", 58, "invalid session"),
    ("ERR_PROC_ABORTED", 59, "a process aborted"),
    ("ERR_VALUE_TOO_LARGE", 60, "value too large"),
    ("ERR_ERRHANDLER", 61, "invalid error handler"),
    ("ERR_REVOKED", 62, "the communicator was revoked"),
    ("ERR_PROC_FAILED", 63, "a process failed"),
    ("ERR_PROC_FAILED_PENDING", 64, "a process failed while a receive from any source is pending"),
    ("ERR_ABI", 65, "unsupported binary interface"),
    ("ERR_LASTCODE", 1 << 16, "the largest error code"),
]

#: Error class by name.
ERROR_CLASSES: dict[str, int] = {name: number for name, number, _ in _TABLE}
_MEANINGS: dict[int, str] = {number: f"MPI_{name}: {meaning}" for name, number, meaning in _TABLE}
#: Codes and strings that a program added (MPI 4.1 section 9.5).
added_strings: dict[int, str] = {}
added_classes: dict[int, int] = {}


def error_string(code: int) -> str:
    """Return the meaning of an error code or class."""
    if code in added_classes:
        return added_strings.get(code, "")
    return _MEANINGS.get(code) or _MEANINGS[ERROR_CLASSES["ERR_UNKNOWN"]]


def error_class(code: int) -> int:
    """Return the class of an error code; the class of a class is itself."""
    return added_classes.get(code, code)


class TidemillError(Exception):
    """Base of every error that Tidemill raises on purpose."""


class CommError(TidemillError, RuntimeError):
    """Communication failed, or a call was invalid; ``MPI.Exception`` in `tidemill.mpi`.

    Parameters
    ----------
    ierr : int or str, default=0
        An MPI error code, or a message. With a message, the code is that of the exception's class.
    message : str, optional
        Replaces the general meaning of the code.
    """

    #: The default error class.
    default_code = ERROR_CLASSES["ERR_OTHER"]

    def __init__(self, ierr: int | str = 0, message: str | None = None) -> None:
        if isinstance(ierr, str):
            message = ierr
            ierr = self.default_code
        self.ierr = int(ierr) if int(ierr) >= 0 else ERROR_CLASSES["ERR_UNKNOWN"]
        self.message = message
        super().__init__(self.ierr, message)

    def __str__(self) -> str:
        if self.message is None:
            return error_string(self.ierr)
        return self.message

    def __repr__(self) -> str:
        if type(self) is CommError and self.message is None:
            return f"MPI.Exception({self.ierr})"
        return f"{type(self).__name__}({self.message!r})"

    def __int__(self) -> int:
        return self.ierr

    def __bool__(self) -> bool:
        return self.ierr != 0

    def __hash__(self) -> int:
        return hash(self.ierr)

    def __eq__(self, other: object) -> bool:
        return self.ierr == int(other) if isinstance(other, (int, CommError)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, (int, CommError)) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self.ierr < int(other)

    def __le__(self, other: Any) -> bool:
        return self.ierr <= int(other)

    def __gt__(self, other: Any) -> bool:
        return self.ierr > int(other)

    def __ge__(self, other: Any) -> bool:
        return self.ierr >= int(other)

    def Get_error_code(self) -> int:
        """Return the error code."""
        return self.ierr

    def Get_error_class(self) -> int:
        """Return the error class, one of ``MPI.ERR_*``."""
        return error_class(self.ierr)

    def Get_error_string(self) -> str:
        """Return the error message."""
        return str(self)

    error_code = property(Get_error_code, doc="The error code.")
    error_class = property(Get_error_class, doc="The error class, one of ``MPI.ERR_*``.")
    error_string = property(Get_error_string, doc="What happened.")


class WorkerLost(CommError):
    """A worker's process or host is gone.

    Attributes
    ----------
    rank : int
        The worker that was lost, by its rank in the job (``COMM_WORLD``).
    """

    default_code = ERROR_CLASSES["ERR_PROC_FAILED"]

    def __init__(self, message: str = "a worker was lost", rank: int = -1) -> None:
        super().__init__(self.default_code, message)
        self.rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.rank)


class PeerFailed(CommError):
    """A worker's program raised an exception, or returned or left the job, while others still needed it.

    Attributes
    ----------
    rank : int
        The worker where the trouble began, by its rank in the job.
    traceback : str
        The traceback on that worker, as text; empty if it ended without one.
    """

    default_code = ERROR_CLASSES["ERR_PROC_FAILED"]

    def __init__(self, message: str = "a worker failed", rank: int = -1, traceback: str = "") -> None:
        super().__init__(self.default_code, message)
        self.rank = rank
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.rank, self.traceback)


class MismatchError(CommError):
    """Ranks of one communicator called different collectives where all must call the same one; the message names them."""

    default_code = ERROR_CLASSES["ERR_NOT_SAME"]


class BufferMismatchError(CommError, ValueError):
    """The buffers of one call do not match: their datatypes or counts differ."""

    default_code = ERROR_CLASSES["ERR_COUNT"]


class TruncationError(CommError):
    """A message is longer than the buffer it was received into."""

    default_code = ERROR_CLASSES["ERR_TRUNCATE"]


class OperationError(CommError):
    """A reduction operation is not defined for the datatype, or your own operation failed."""

    default_code = ERROR_CLASSES["ERR_OP"]


class UnsupportedError(CommError, NotImplementedError):
    """Tidemill does not support this part of MPI; the message names it."""

    default_code = ERROR_CLASSES["ERR_UNSUPPORTED_OPERATION"]


# Programs and tracebacks show their public names.
for _error in TidemillError.__subclasses__() + CommError.__subclasses__() + [TidemillError]:
    _error.__module__ = "tidemill"


def fail(name: str, message: str) -> CommError:
    """Return the error of class ``MPI.<name>`` with a message of its own; for ``raise fail(...)``."""
    return CommError(ERROR_CLASSES[name], message)
