"""The job as a program sees it: its workers, and the communicator of them all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any

from tidemill._duration import Duration
from tidemill._membership import Member, join

if TYPE_CHECKING:
    from tidemill.mpi import Intracomm

__all__ = ["Job", "current_group", "entered", "group_of", "init", "whole"]

_lock = threading.RLock()
_job: Job | None = None
#: The group of the innermost `tidemill.group` block.
_group: ContextVar[Job | None] = ContextVar("tidemill_group", default=None)


class Job:
    """The job, seen from one of its workers. Returned by `tidemill.init`; within a `tidemill.group` block, a part of it.

    Attributes
    ----------
    rank : int
        This worker's number, ``0 <= rank < size``.
    size : int
        Number of workers.
    comm : tidemill.mpi.Intracomm
        The communicator of all workers, ``MPI.COMM_WORLD``.
    """

    def __init__(self, member: Member) -> None:
        from tidemill.mpi._world import communicators

        self._worker = member.worker
        self.comm: Intracomm
        self._self: Intracomm
        self.comm, self._self = communicators()
        self.rank: int = member.rank
        self.size: int = member.size
        #: For a group of workers: their ranks in the job.
        self._ranks: list[int] | None = None
        #: Held while a graph runs, because all workers run the same graphs in the same order.
        self._running: AbstractContextManager[Any] = threading.Lock()

    def __repr__(self) -> str:
        return f"<tidemill.Job: rank {self.rank} of {self.size}>"

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Each worker's location, and how this worker reaches it.

        A dict for each rank:

        - ``rank``, ``host``, ``pid``
        - ``host_id``: equal on workers that share a host
        - ``location``: the host's place in the network, such as ``"zone-a/rack-3/host-7"``, or ``None``
        - ``cores``: number of cores that it may keep busy
        - ``socket`` and ``core``: set if it is bound to one
        - ``transport``: ``"shm"`` or ``"tcp"``; ``None`` for this worker itself
        - ``shares_memory``
        - ``single_copy``: whether large messages are copied only once
        - ``lack``: why a worker of this host is not reached by the fastest way, or ``None``
        """
        workers = self._worker.workers()
        if self._ranks is None:
            return workers
        return [{**workers[rank], "rank": number} for number, rank in enumerate(self._ranks)]


def init(*, transport: str | None = None, stall_warning: Duration | None = None) -> Job:
    """Join the job that this process was started in, or return it if it has already been joined.

    A process started by ``tidemill run``, ``mpirun``, ``srun`` or with ``RANK``, ``WORLD_SIZE`` and ``MASTER_ADDR`` in
    its environment joins its job; any other process is a job of one worker. Returns when all workers have joined.

    Parameters
    ----------
    transport : {"auto", "shm", "tcp"}, optional
        How workers on one host reach each other; default ``TIDEMILL_TRANSPORT``, else ``"auto"``. Only the first call
        uses it.
    stall_warning : str, number of seconds or timedelta, optional
        When a wait takes longer than this, a message on standard error explains it; 0 turns this off. Default
        ``TIDEMILL_STALL_WARNING`` (seconds), else ``"10s"``. Only the first call uses it.

    Returns
    -------
    Job
        With ``rank``, ``size`` and ``comm``.

    Raises
    ------
    CommError
        If the workers do not find each other in time or disagree about the job; the message names the remedy.
    ValueError
        If `stall_warning` is not a duration.
    """
    group = _group.get()
    return whole(transport, stall_warning) if group is None else group


def whole(transport: str | None = None, stall_warning: Duration | None = None) -> Job:
    """Return the job of all workers, also within a `tidemill.group` block. See `init`."""
    global _job
    member = join(transport, stall_warning)
    with _lock:
        if _job is None:
            _job = Job(member)
        return _job


def group_of(comm: Intracomm) -> Job:
    """Return the job that a communicator's workers are to themselves; the same each time."""
    if comm._state.job is None:
        job: Job = copy(whole())
        job.comm, job.rank, job.size = comm, comm.rank, comm.size
        job._ranks = comm._world_ranks()
        # A single worker may run several graphs at the same time.
        job._running = threading.Lock() if comm.size > 1 else nullcontext()
        comm._state.job = job
    found: Job = comm._state.job
    return found


@contextmanager
def entered(job: Job | None) -> Iterator[None]:
    """Let `init` return this job on this thread."""
    token = _group.set(job)
    try:
        yield
    finally:
        _group.reset(token)


def current_group() -> Job | None:
    """Return the group of the innermost `tidemill.group` block."""
    return _group.get()
