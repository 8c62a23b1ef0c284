"""Actions of a job of several workers: every worker asks for the same, and gets the same rows or the same error.

One worker runs the query; the others get its result. (Cutting plans into pieces that all workers run is to come, and
changes no program.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidemill._job import init
from tidemill.dataset._errors import DataSetError

__all__ = ["run"]

T = TypeVar("T")


def run(action: Callable[[], T], root: int | None = None) -> T | None:
    """Run `action` in behalf of all workers; collective.

    Parameters
    ----------
    action : callable
        What to do; its result must be picklable.
    root : int, optional
        The only worker that gets the result; by default all do.

    Returns
    -------
    object
        The result; ``None`` on workers other than `root`, if that is given.

    Raises
    ------
    DataSetError
        What `action` raised, on every worker.
    """
    job = init()
    if root is not None and not 0 <= root < job.size:
        raise DataSetError(f"root={root}: there is no such worker, the job has {job.size}")
    if job.size == 1:
        return action()
    runner = root or 0
    result: T | None = None
    error: DataSetError | None = None
    if job.rank == runner:
        try:
            result = action()
        except DataSetError as raised:
            error = raised
    told: tuple[DataSetError | None, T | None] = (error, result if root is None else None)
    error, shared = job.comm.bcast(told, root=runner)
    if error is not None:
        raise error
    return result if job.rank == runner else shared
