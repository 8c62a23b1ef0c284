"""mpi4py's utilities: `pkl5` is here; using another one raises an error that says so."""

from __future__ import annotations

import importlib
from typing import Any

from tidemill._errors import UnsupportedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "pkl5":
        return importlib.import_module("tidemill.mpi.util.pkl5")
    raise UnsupportedError(f"Tidemill has no mpi4py.util.{name}")
