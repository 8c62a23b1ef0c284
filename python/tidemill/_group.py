"""Groups of workers: queries, graphs and solvers on some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidemill._callback import lifted, reach
from tidemill._errors import CommError
from tidemill._job import Job, entered, group_of, whole
from tidemill.mpi import Comm, Intracomm

__all__ = ["check_group", "group"]


@contextmanager
def group(comm: Any) -> Iterator[Job]:
    """Run what a block contains on the workers of a communicator: DataSets, streams, graphs and estimators.

    Within the block they are a job by themselves: `tidemill.init` returns it, and what is collective is so for the
    workers of `comm`, each of which enters the block. Groups that share no worker run side by side. A function of a graph
    that has a communicator may enter a group, too, and run queries and graphs there.

    Parameters
    ----------
    comm : tidemill.mpi.Intracomm
        Of workers of this job: returned by ``job.comm.Split``, ``MPI.COMM_SELF`` for this worker alone, or the
        ``context.comm`` of a task that has at most one copy on each worker.

    Returns
    -------
    context manager
        Gives the `Job` of the group.

    Raises
    ------
    CommError
        If `comm` is no such communicator; in a task, if it has workers on which the task has no copy.

    Notes
    -----
    Create DataSets within the block: those of the whole job are divided among all of its workers. A group has the memory
    budget of its worker in common with the whole job, and as many threads.

    Examples
    --------
    >>> import tidemill as tm
    >>> from tidemill.mpi import MPI
    >>> with tm.group(MPI.COMM_SELF) as alone:
    ...     alone.size, tm.from_dict({"n": [1, 2]}).count()
    (1, 2)
    """
    check_group(comm, "group")
    job = group_of(comm)
    with entered(job), lifted():
        yield job


def check_group(comm: Any, what: str) -> None:
    """Raise an error about `what` unless the communicator's workers can be a job by themselves."""
    if isinstance(comm, Comm) and not comm._is_usable():
        raise CommError(f"{what}: the communicator is COMM_NULL: this worker is not in it, and must not call this")
    if not isinstance(comm, Intracomm):
        raise CommError(f"{what}: {comm!r} is not a communicator of workers; split one off job.comm")
    if not comm._is_among(whole().comm):
        raise CommError(
            f"{what}: {comm.Get_name()} joins several copies on one worker; give the task at most one copy on each worker"
        )
    within = reach()
    if within is not None and (others := sorted(set(comm._world_ranks()) - within)):
        raise CommError(
            f"{what}: {comm.Get_name()} has worker {others[0]}, where no copy of this task runs that could join; take context.comm "
            "of a task with comm=True, or what is split off it"
        )
