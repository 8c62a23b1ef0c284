"""The communicator that an estimator uses, and helpers on it: failing together, and small sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill._job import init

__all__ = ["Comm", "active", "allreduce", "collective_try", "using"]

T = TypeVar("T")


class Comm(Protocol):
    """The part of mpi4py's communicator that estimators use."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def Allreduce(self, sendbuf: Any, recvbuf: Any) -> Any: ...
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> Any: ...
    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ..., recvtag: int = ...
    ) -> Any: ...
    def allgather(self, sendobj: Any) -> list[Any]: ...
    def bcast(self, obj: Any, root: int = 0) -> Any: ...


class _Alone:
    """A communicator of one rank, without a job."""

    rank = 0
    size = 1

    def Allreduce(self, sendbuf: Any, recvbuf: Any) -> None:
        np.copyto(recvbuf, sendbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        np.copyto(recvbuf[0], sendbuf)

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = 0, recvtag: int = 0
    ) -> None:
        np.copyto(recvbuf, sendbuf)

    def allgather(self, sendobj: T) -> list[T]:
        return [sendobj]

    def bcast(self, obj: T, root: int = 0) -> T:
        return obj


_chosen: ContextVar[Comm | None] = ContextVar("tidemill_ml_comm", default=None)
_alone = _Alone()


def active() -> Comm:
    """Return the communicator of the innermost `using` block, else that of the job."""
    chosen = _chosen.get()
    if chosen is None:
        chosen = init().comm
    # A single rank needs no messages, whatever its communicator.
    return chosen if chosen.size > 1 else _alone


@contextmanager
def using(comm: Comm | None) -> Iterator[None]:
    """Run the estimators of a block on the ranks of `comm`.

    Parameters
    ----------
    comm : communicator or None
        Any communicator with mpi4py's API, for example one returned by ``Split``. ``None`` means this process alone.

    Examples
    --------
    >>> from tidemill.ml import KMeans, using
    >>> with using(None):
    ...     KMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [10.0], [11.0]]).inertia_
    1.0
    """
    token = _chosen.set(_alone if comm is None else comm)
    try:
        yield
    finally:
        _chosen.reset(token)


def allreduce(comm: Comm, local: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the elementwise sum of `local` over all ranks."""
    if comm.size == 1:
        return local
    total = np.empty_like(local)
    comm.Allreduce(np.ascontiguousarray(local), total)
    return total


def collective_try(comm: Comm, work: Callable[[], T]) -> list[T]:
    """Run `work` on every rank and return all results; if it fails on one, every rank raises.

    Raises
    ------
    Exception
        Where `work` failed, its exception; elsewhere `ValueError` with the number of the first rank that failed and its
        message. So no rank waits for one that has left.
    """
    error: Exception | None = None
    result: Any = None
    try:
        result = work()
    except Exception as caught:
        error = caught
    if comm.size == 1:
        if error is not None:
            raise error
        return [result]
    everyone: list[tuple[str | None, T]] = comm.allgather((None if error is None else str(error), result))
    if error is not None:
        raise error
    for rank, (message, _) in enumerate(everyone):
        if message is not None:
            raise ValueError(f"rank {rank}: {message}")
    return [result for _, result in everyone]
