"""The job as a program sees it: its workers, and the communicator of them all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tidemill._duration import Duration
from tidemill._membership import Member, join

if TYPE_CHECKING:
    from tidemill.mpi import Intracomm

__all__ = ["Job", "init"]

_lock = threading.RLock()
_job: Job | None = None


class Job:
    """The job, seen from one of its workers. Returned by `tidemill.init`.

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
        return self._worker.workers()


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
    global _job
    member = join(transport, stall_warning)
    with _lock:
        if _job is None:
            _job = Job(member)
        return _job
