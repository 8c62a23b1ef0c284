"""MPI with the API of mpi4py, on top of Tidemill: communicators, point-to-point and collective communication.

A program written for mpi4py runs after changing one line::

    from tidemill.mpi import MPI      # was: from mpi4py import MPI

    comm = MPI.COMM_WORLD
    comm.Allreduce(part, total, op=MPI.SUM)

``from tidemill import mpi; mpi.COMM_WORLD`` gives the same names. The job is joined when ``COMM_WORLD``, ``COMM_SELF``
or `Init` is first used, not by the import.

Messages are contiguous arrays and other objects with a buffer, or lists: ``[buffer, datatype]``, ``[buffer, count,
datatype]``, ``[buffer, (count, displacement), datatype]``, and for the vector variants ``[buffer, (counts,
displacements), datatype]``. Unsupported parts (one-sided communication, file I/O, dynamic processes, sessions) raise
`tidemill.UnsupportedError` when you use them.

Beyond mpi4py, collectives on buffers take ``algorithm=`` (the name of an algorithm instead of the tuner's choice) and
``repeatable=True`` (floating-point reductions that are bitwise equal from run to run).

Source: MPI 4.1; signatures follow mpi4py.
"""

from __future__ import annotations

from typing import Any

from tidemill.mpi import MPI as MPI
from tidemill.mpi.MPI import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # Not cached here: the module that joins the job caches the result.
    return getattr(MPI, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(MPI)})
