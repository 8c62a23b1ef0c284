"""What goes from one window's frame to the next, handed from worker to worker as windows are dealt to them one by one; and the frames, which
all get from whoever made them, as they are made.

A worker does not wait for what has not come while it has other work. A turn goes before all else, as the next window waits for it; then comes the
window of its own next turn, then the end of those that have had theirs, then a frame given out. Who gives out frames slowly, as worker 0 does
that writes them, is not overrun: every worker has its turns, nobody gets further ahead of one than to its next, and whoever has some frames to
give out takes no turn until they are gone.

When a window fails, all frames before it still come, and then why it failed: every worker raises at the same place, and nobody waits for a frame
that does not come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill._errors import CommError
from tidemill.series._read import SeriesError

__all__ = ["Base", "Making", "Past", "Relay", "make", "owner"]

T = TypeVar("T")

#: Windows that a worker has begun and not ended, each with its distances in memory.
_BEGUN_MAX = 3
#: With so many frames to give out a worker takes no turn; with fewer it does, so that who gives out slowly does not hold up others at once.
_MADE_MAX = 4
#: Once in so many windows worker 0 is left out, as it writes the frames: of its time that takes about such a part.
_WRITING = 10


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


#: A window in the making: yields False where it may be left for a turn of another, True when it needs what is past, is sent that, yields what
#: is past for the next, and goes on to its end.
Making = Generator[bool | Past, Past | None, T]


def make(making: Making[T], past: Past) -> T:
    """Make one window by itself."""
    while not next(making):
        pass
    making.send(past)
    return _end(making)


def _end(making: Making[T]) -> T:
    try:
        next(making)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a window yields after what is past for the next")


@dataclass(frozen=True)
class _Failed:
    """Why there is no frame of a window."""

    message: str


@dataclass(frozen=True)
class _Turn:
    """What is past, for whoever makes the next window."""

    past: Past


def owner(number: int, size: int) -> int:
    """Whose window it is. Every worker has some, so that nobody can get far ahead of one."""
    length = max(2, -(-_WRITING // size)) * size - 1
    return (number % length + 1) % size


class Relay(Generic[T]):
    """`count` windows, dealt in turn to several workers, worker 1 first. Every worker makes one. Collective.

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
        # Messages of its own: what is left of a relay that was not run to its end is never taken for another's.
        self._comm = comm.Dup()
        self._count, self._begin = count, begin
        #: What is past, and the window that it is for.
        self._past, self._turn = past, 0
        self._left = deque(number for number in range(count) if owner(number, comm.size) == comm.rank)
        #: The window that is on its way to where it needs what is past.
        self._young: tuple[int, Making[T]] | None = None
        #: Windows that wait for their turn; and those that have had it, but for their end.
        self._ready: deque[tuple[int, Making[T]]] = deque()
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
        try:
            for number in range(self._count):
                while True:
                    self._take_in()
                    if number in self._made and (len(self._made) >= _MADE_MAX or not self._is_urgent()):
                        break
                    # Whoever waits must have looked at all that it has taken in: what has come does not come again.
                    if not self._work():
                        self._wait()
                made = self._made.pop(number)
                if isinstance(made, _Failed):
                    self._part()
                    raise SeriesError(made.message)
                yield made
            self._part()
        finally:
            self._leave()

    def _part(self) -> None:
        """Wait until all have come to the end: whoever ends its program before would leave others without what it has sent."""
        begin = time.perf_counter()
        self._comm.Barrier()
        self.waited_s += time.perf_counter() - begin

    def _leave(self) -> None:
        """Leave nothing behind, also where frames are not taken to their end, or something has failed; without waiting for others."""
        # A job that has failed, or is over, has said so, or will.
        with suppress(CommError):
            while self._comm.iprobe():
                self._comm.recv()
            self._comm.Free()

    def _take_in(self) -> None:
        """Receive all that has come."""
        while self._comm.iprobe():
            self._receive()

    def _wait(self) -> None:
        begin = time.perf_counter()
        self._receive()
        self.waited_s += time.perf_counter() - begin

    def _is_due(self) -> bool:
        """Whether it is this worker's turn."""
        return bool(self._ready) and self._ready[0][0] == self._turn

    def _is_urgent(self) -> bool:
        """Whether others wait for this worker's turn, or will."""
        return self._is_due() or (not self._ready and self._may_begin())

    def _work(self) -> bool:
        """Do one thing, what others wait for first; False if there is nothing to do."""
        if self._is_due():
            self._attempt(self._ready.popleft(), self._pass)
        elif self._passed and (self._ready or not self._may_begin()):
            self._attempt(self._passed.popleft(), self._finish)
        elif self._may_begin():
            young, self._young = self._young or self._next(), None
            self._attempt(young, self._grow)
        else:
            return False
        return True

    def _attempt(self, window: tuple[int, Making[T]], step: Callable[[int, Making[T]], None]) -> None:
        """Take a window a step further; if that fails, tell everybody."""
        number, making = window
        try:
            step(number, making)
        except (ValueError, OSError) as error:
            self._tell(number, _Failed(str(error)))

    def _may_begin(self) -> bool:
        """Whether there is a window to begin, or to take further to where it needs what is past."""
        begun = len(self._ready) + len(self._passed)
        return self._young is not None or (bool(self._left) and begun < _BEGUN_MAX)

    def _next(self) -> tuple[int, Making[T]]:
        number = self._left.popleft()
        return number, self._begin(number)

    def _grow(self, number: int, making: Making[T]) -> None:
        """A part of the way to where a window needs what is past."""
        if next(making):
            self._ready.append((number, making))
        else:
            self._young = number, making

    def _pass(self, number: int, making: Making[T]) -> None:
        """A window has its turn, and hands it on."""
        past = making.send(self._past)
        assert isinstance(past, Past), "what is past for the next"
        self._past, self._turn = past, number + 1
        if self._turn < self._count:
            self._send(owner(self._turn, self._comm.size), self._turn, _Turn(past))
        self._passed.append((number, making))

    def _finish(self, number: int, making: Making[T]) -> None:
        self._tell(number, _end(making))

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
            # Whoever gets it may be busy with a window of its own: nobody waits for that.
            self._sent = [request for request in self._sent if not request.test()[0]]
            self._sent.append(self._comm.isend((number, what), dest=worker))

    def _note(self, number: int, made: T | _Failed) -> None:
        self._made[number] = made
        if isinstance(made, _Failed):
            # Nobody will ask for what is behind it, but for what is before.
            self._left = deque(other for other in self._left if other < number)
            self._ready, self._passed = (
                deque(window for window in some if window[0] < number) for some in (self._ready, self._passed)
            )
            if self._young is not None and self._young[0] > number:
                self._young = None
