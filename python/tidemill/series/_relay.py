"""What goes from one window's frame to the next, handed from worker to worker as windows are dealt to them one by one; and the frames, which all
get from whoever made them.

A worker does not wait for what has not come while it has other work: it ends windows, begins others, up to a few, and gives out the frames that are
there. When a window fails, all frames before it still come, and then why it failed: every worker raises at the same place, and nobody waits for a
frame that does not come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill.series._read import SeriesError

__all__ = ["Base", "Making", "Past", "Relay", "make"]

T = TypeVar("T")

#: Windows that a worker has begun and that wait for their turn, each with its distances in memory.
_BEGUN_MAX = 2


@dataclass(frozen=True)
class Base:
    """What a frame is started from or aligned to."""

    ids: NDArray[np.str_]
    #: (n, 3), aligned.
    positions: NDArray[np.float64]


@dataclass(frozen=True)
class Past:
    """The frames before a window that it needs: the first of all, and the last one."""

    first: Base | None = None
    last: Base | None = None

    def behind(self, base: Base) -> Past:
        """What is past behind one more frame."""
        return Past(self.first or base, base)


#: A window in the making: yields when it needs what is past, is sent that, yields what is past for the next, and goes on to its end.
Making = Generator[Past | None, Past, T]


def make(making: Making[T], past: Past) -> T:
    """Make one window by itself."""
    next(making)
    making.send(past)
    return _end(making)


def _end(making: Making[T]) -> T:
    try:
        next(making)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a window yields twice")


@dataclass(frozen=True)
class _Failed:
    """Why there is no frame of a window."""

    message: str


@dataclass(frozen=True)
class _Turn:
    """What is past, for whoever makes the next window."""

    past: Past


class Relay(Generic[T]):
    """`count` windows, dealt in turn, worker 1 first. Every worker makes one. Collective.

    Parameters
    ----------
    comm : communicator
    count : int
    past : Past
        Before the first window; the same on every worker.
    begin : callable
        Begins to make a window, by its number.
    """

    def __init__(self, comm: Any, count: int, past: Past, begin: Callable[[int], Making[T]]) -> None:
        # Messages of its own: whoever is done before others may begin the next relay.
        self._comm = comm if comm.size == 1 else comm.Dup()
        self._count, self._begin = count, begin
        #: What is past, and the window that it is for.
        self._past, self._turn = past, 0
        # Worker 0 writes frames, so where windows cannot be dealt evenly it has one less.
        self._left = deque(number for number in range(count) if (number + 1) % comm.size == comm.rank)
        #: Windows that wait for their turn; and those that have had it, but for their end.
        self._begun: deque[tuple[int, Making[T]]] = deque()
        self._passed: deque[tuple[int, Making[T]]] = deque()
        #: What has been made of windows, here or elsewhere, and not been given out yet.
        self._made: dict[int, T | _Failed] = {}
        self._sent: list[Any] = []
        #: How long this worker has had nothing to do but to wait.
        self.waited_s = 0.0

    def run(self) -> Iterator[T]:
        """Make this worker's windows, and give out what is made of all, in order.

        Raises
        ------
        SeriesError
            A window raised `ValueError` or `OSError`; on every worker, behind the windows before it.
        """
        for number in range(self._count):
            # A turn goes before all else: others wait for it.
            while self._is_due() or number not in self._made:
                self._step()
            made = self._made.pop(number)
            if isinstance(made, _Failed):
                self._part()
                raise SeriesError(made.message)
            yield made
        self._part()

    def _part(self) -> None:
        """Wait until all have come to the end: whoever ends its program before would leave others without what it has sent."""
        if self._comm.size > 1:
            begin = time.perf_counter()
            self._comm.Barrier()
            self.waited_s += time.perf_counter() - begin

    def _is_due(self) -> bool:
        """Whether it is this worker's turn, now that all has been taken in that has come."""
        while self._comm.size > 1 and self._comm.iprobe():
            self._receive()
        return bool(self._begun) and self._begun[0][0] == self._turn

    def _step(self) -> None:
        """Do what others may wait for first; if there is nothing to do, wait."""
        number = None
        try:
            if self._is_due():
                number, making = self._begun.popleft()
                past = making.send(self._past)
                assert past is not None, "what is past for the next"
                self._past, self._turn = past, number + 1
                if self._turn < self._count:
                    self._send(self._owner(self._turn), self._turn, _Turn(past))
                self._passed.append((number, making))
            elif self._passed:
                number, making = self._passed.popleft()
                self._tell(number, _end(making))
            elif self._left and len(self._begun) < _BEGUN_MAX:
                number = self._left.popleft()
                making = self._begin(number)
                next(making)
                self._begun.append((number, making))
            else:
                begin = time.perf_counter()
                self._receive()
                self.waited_s += time.perf_counter() - begin
        except (ValueError, OSError) as error:
            if number is None:
                raise
            self._tell(number, _Failed(str(error)))

    def _owner(self, number: int) -> int:
        """Whose window it is."""
        return (number + 1) % int(self._comm.size)

    def _receive(self) -> None:
        number, what = self._comm.recv()
        if isinstance(what, _Turn):
            self._past, self._turn = what.past, number
        else:
            self._note(number, what)

    def _tell(self, number: int, made: T | _Failed) -> None:
        """Tell everybody what has been made of a window."""
        for worker in range(self._comm.size):
            self._send(worker, number, made)
        self._note(number, made)

    def _send(self, worker: int, number: int, what: object) -> None:
        if worker != self._comm.rank:
            self._sent = [request for request in self._sent if not request.test()[0]]
            self._sent.append(self._comm.isend((number, what), dest=worker))

    def _note(self, number: int, made: T | _Failed) -> None:
        self._made[number] = made
        if isinstance(made, _Failed):
            # Nobody will ask for what is behind it, but for what is before.
            self._left = deque(other for other in self._left if other < number)
            self._begun = deque(one for one in self._begun if one[0] < number)
            self._passed = deque(one for one in self._passed if one[0] < number)
