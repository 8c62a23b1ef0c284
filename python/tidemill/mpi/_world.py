"""The communicators that every worker of a job has from the start."""

from __future__ import annotations

import threading

from tidemill._membership import join
from tidemill.mpi._comm import Intracomm

__all__ = ["communicators"]

_lock = threading.RLock()
_made: list[Intracomm] = []


def communicators() -> tuple[Intracomm, Intracomm]:
    """Return ``COMM_WORLD`` and ``COMM_SELF``, always the same objects; join the job if this has not happened yet."""
    member = join()
    with _lock:
        if not _made:
            for native, name in ((member.world, "COMM_WORLD"), (member.solo, "COMM_SELF")):
                comm: Intracomm = Intracomm._wrap(native, f"MPI_{name}")
                comm._predefined_name = name
                _made.append(comm)
        world, solo = _made
        return world, solo
