"""Unsupported parts of MPI: you can name and import them; using one raises an error that names it."""

from __future__ import annotations

from typing import Any, NoReturn

from tidemill._errors import UnsupportedError
from tidemill.mpi._handle import Handle

_ABOUT = {
    "Win": "one-sided communication",
    "File": "parallel file I/O",
    "Session": "sessions",
}


def missing(name: str, about: str) -> NoReturn:
    """Raise the error for an unsupported call."""
    raise UnsupportedError(
        f"Tidemill has no MPI.{name}: {about} is outside of what tidemill.mpi offers "
        "(communicators, point to point, collectives)"
    )


class _Missing(Handle):
    """A handle whose every call is unsupported. Only its null value exists."""

    def __new__(cls, handle: Any = None, /) -> Any:
        if handle is not None and getattr(handle, "_kind", None) != cls._kind:
            raise TypeError(f"expecting a {cls.__name__}, not {type(handle).__name__}")
        return super().__new__(cls)

    def _identity(self) -> object:
        return None

    def free(self) -> None:
        """Do nothing: only null handles exist."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        missing(f"{type(self).__name__}.{name}", _ABOUT[type(self).__name__])


def _classmethods(kind: str, *names: str) -> dict[str, Any]:
    """Return class methods that raise, with their own names and docstrings."""

    def make(name: str) -> Any:
        def call(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
            missing(f"{kind}.{name}", _ABOUT[kind])

        call.__name__, call.__doc__ = name, f"Not available: {_ABOUT[kind]}."
        return classmethod(call)

    return {name: make(name) for name in names}


class Win(_Missing):
    """One-sided communication: not available."""

    _kind = "win"
    locals().update(
        _classmethods("Win", "Create", "Allocate", "Allocate_shared", "Create_dynamic", "Create_keyval", "Free_keyval")
    )


class File(_Missing):
    """Parallel file I/O: not available."""

    _kind = "file"
    locals().update(_classmethods("File", "Open", "Delete"))


class Session(_Missing):
    """Sessions: not available."""

    _kind = "session"
    locals().update(_classmethods("Session", "Init", "Create_errhandler"))


WIN_NULL = Win()
WIN_NULL._predefined_name = "WIN_NULL"
FILE_NULL = File()
FILE_NULL._predefined_name = "FILE_NULL"
SESSION_NULL = Session()
SESSION_NULL._predefined_name = "SESSION_NULL"


def _function(name: str, about: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> NoReturn:
        missing(name, about)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Not available: {about}."
    return call


Open_port = _function("Open_port", "dynamic processes")
Close_port = _function("Close_port", "dynamic processes")
Publish_name = _function("Publish_name", "dynamic processes")
Unpublish_name = _function("Unpublish_name", "dynamic processes")
Lookup_name = _function("Lookup_name", "dynamic processes")
Register_datarep = _function("Register_datarep", "parallel file I/O")
