"""What goes from one window's frame to the next: handed from worker to worker, as windows are dealt to them one by one.

A worker does not wait for what has not come while it has other work: it begins windows, up to a few, and ends others. A
worker whose window fails hands on that it has, and so does everybody behind it, so that nobody waits for a frame that does not come; when
all have come to the end of a round they tell each other why.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Base", "Making", "Past", "Relay", "make"]

T = TypeVar("T")

#: Of messages between the workers of a round.
_TAG = 31
#: Windows that a worker has begun and not ended, each with its distances in memory.
_BEGUN_MAX = 3


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


class Relay:
    """A round: `count` windows, dealt in turn, worker 1 first. Every worker makes one.

    Parameters
    ----------
    comm : communicator
    count : int
    past : Past
        Before the first window; the same on every worker.
    """

    def __init__(self, comm: Any, count: int, past: Past) -> None:
        self._comm, self._count = comm, count
        #: What came last, for which window, and what is to come; None: a window has failed.
        self._past: Past | None = past
        self._held = -1
        self._coming: Any = None
        self._sent: list[Any] = []
        #: How long this worker has had nothing to do but to wait for what comes.
        self.waited_s = 0.0

    def owner(self, number: int) -> int:
        """Whose window it is."""
        return (number + 1) % int(self._comm.size)

    def run(self, begin: Callable[[int], Making[T]]) -> tuple[list[T], str | None]:
        """Make this worker's windows; returns what was made of them, in order, and why one failed, if one did."""
        left = deque(number for number in range(self._count) if self.owner(number) == self._comm.rank)
        begun: deque[tuple[int, Making[T]]] = deque()
        passed: deque[Making[T]] = deque()
        made: list[T] = []
        message = None
        try:
            while left or begun or passed:
                if begun and self._has_come(begun[0][0]):
                    number, making = begun[0]
                    past = self._take(number)
                    if past is None:
                        break
                    given = making.send(past)
                    begun.popleft()
                    self._give(number, given)
                    passed.append(making)
                elif left and len(begun) + len(passed) < _BEGUN_MAX:
                    making = begin(left[0])
                    next(making)
                    begun.append((left.popleft(), making))
                elif passed:
                    made.append(_end(passed.popleft()))
                else:
                    self._wait(begun[0][0])
        except (ValueError, OSError) as error:
            message = str(error)
        # What is left after a failure.
        for number in [*(number for number, _ in begun), *left]:
            self._take(number)
            self._give(number, None)
        for request in self._sent:
            request.wait()
        return made, message

    def _has_come(self, number: int) -> bool:
        """Whether what is before a window is here; each window's is asked for once the one before has it."""
        if self._held == number or not number or self._comm.size == 1:
            return True
        if self._coming is None:
            self._coming = self._comm.irecv(source=self.owner(number - 1), tag=_TAG)
        come, past = self._coming.test()
        if come:
            self._keep(number, past)
        return bool(come)

    def _wait(self, number: int) -> None:
        if not self._has_come(number):
            begin = time.perf_counter()
            past = self._coming.wait()
            self.waited_s += time.perf_counter() - begin
            self._keep(number, past)

    def _keep(self, number: int, past: Past | None) -> None:
        self._held, self._past, self._coming = number, past, None

    def _take(self, number: int) -> Past | None:
        self._wait(number)
        return self._past

    def _give(self, number: int, past: Past | None) -> None:
        if self._comm.size == 1:
            self._past = past
        elif number + 1 < self._count:
            # Whoever gets it may be busy with a window of its own: nobody waits for that.
            self._sent.append(self._comm.isend(past, dest=self.owner(number + 1), tag=_TAG))
