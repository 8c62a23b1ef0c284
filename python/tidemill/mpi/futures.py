"""mpi4py's executors, which Tidemill does not have: using one raises an error that names the alternative."""

from __future__ import annotations

from typing import Any

from tidemill._errors import UnsupportedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise UnsupportedError(
        f"Tidemill has no mpi4py.futures.{name}; tidemill.run(function, workers=N) runs a function on new workers and "
        "returns its results, and a program that runs on several workers deals tasks out with comm.scatter or comm.send"
    )
