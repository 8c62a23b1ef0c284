"""mpi4py's utilities, which Tidemill does not have: using one says what there is instead."""

from __future__ import annotations

from typing import Any

from tidemill._errors import UnsupportedError

_INSTEAD = {
    "pkl5": "; the lower-case calls of every communicator send large arrays out of band and have no limit of 2 GiB"
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnsupportedError(f"Tidemill has no mpi4py.util.{name}{_INSTEAD.get(name, '')}")
