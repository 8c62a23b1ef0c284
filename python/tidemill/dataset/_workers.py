"""Actions of a job: one worker runs a query by itself, several run it together, each calling the same."""

from __future__ import annotations

from tidemill._job import init
from tidemill._tidemill import Comm, NativeDataSet
from tidemill.dataset._engine import engine
from tidemill.dataset._errors import DataSetError
from tidemill.dataset._table import Table

__all__ = ["collect", "collect_local", "comm"]


def comm() -> Comm | None:
    """The job's communicator, if the job has several workers."""
    job = init()
    return job.comm if job.size > 1 else None


def collect(data: NativeDataSet, root: int | None = None) -> Table:
    """Run a query; its rows go to `root`, or to all workers. Collective.

    Raises
    ------
    DataSetError
        What went wrong, on every worker.
    """
    job = init()
    if root is not None and not 0 <= root < job.size:
        raise DataSetError(f"root={root}: there is no such worker, the job has {job.size}")
    if job.size == 1:
        return Table(data.collect(engine()))
    return Table(data.collect_on(engine(), job.comm, "all" if root is None else root))


def collect_local(data: NativeDataSet) -> Table:
    """Run a query; every worker gets the rows that it has made. Collective."""
    workers = comm()
    return Table(data.collect(engine()) if workers is None else data.collect_on(engine(), workers, "each"))
