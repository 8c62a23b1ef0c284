"""Turns windows into frames on several workers, which pass on the data that one window needs of earlier ones.

Every `key_every`-th window is a *key*: it starts from the key before it. Each other window starts from the window
before it. A key and the windows up to the next one are a chain. Chains are assigned to the workers in turn, so that
each worker has a chain of its own to work on. Two messages pass from chain to chain: the result of its key, as soon as
it is ready, for the next key; and, when all of its windows are done, the last frame, with which the next chain's first
frame is aligned. Both are short, and the second needs no embedding. Whether a window is a key depends only on its
position, so any number of workers computes the same frames.

A frame in its final position is finished by the worker that computed it, and the result goes to all workers or only to
worker 0.

A worker does not wait for a message while it has other work. Work that others wait for comes first: chains that can be
aligned, then a key. If frames go to all workers, a slow consumer is not overrun: it aligns no chain while it has frames
to yield, and the others cannot get further than its next chain.

When a window fails, all frames before it are still yielded, followed by the error: every worker raises the same error,
and none waits for a frame that does not come.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill._errors import CommError
from tidemill.series._read import SeriesError

__all__ = ["Base", "Making", "Past", "Relay", "make", "owner"]

M = TypeVar("M")
F = TypeVar("F")
N = TypeVar("N")

#: Maximum number of chains that a worker has started but not aligned.
_BEGUN_MAX = 3
#: With this many frames to yield, a worker starts nothing new; with fewer, it first does what others wait for.
_MADE_MAX = 4
#: Worker 0 skips one in this many chains, because writing the frames takes about this part of its time.
_WRITING = 60


@dataclass(frozen=True)
class Base:
    """Points that a window starts from, or that its frame is aligned to."""

    ids: NDArray[np.str_]
    #: (n, 3)
    positions: NDArray[np.float64]


@dataclass(frozen=True)
class Past:
    """The data that a window needs of earlier ones."""

    #: The number of windows so far, and how many of them have a frame.
    windows: int = 0
    frames: int = 0
    #: The very first frame, and the last one, both aligned: the next is aligned to one of them.
    first: Base | None = None
    last: Base | None = None
    #: Where the last key and the last window ended before alignment: the next window starts from one of them.
    key: Base | None = None
    before: Base | None = None

    def start(self, key_every: int) -> Base | None:
        """Start of the next window."""
        return self.key if self.windows % key_every == 0 else self.before

    def behind(self, ended: Base | None, aligned: Base | None, key_every: int) -> Past:
        """Return the past after one more window, given its result and its frame, or None if it has no frame."""
        start = self.start(key_every)
        return Past(
            windows=self.windows + 1,
            frames=self.frames + (aligned is not None),
            first=self.first or aligned,
            last=aligned or self.last,
            key=(ended or start) if self.windows % key_every == 0 else self.key,
            before=ended or start,
        )


#: A window being computed: yields False if it may be suspended for other work; yields True when it needs its start,
#: which is then sent to it; yields its result (None if it has no frame); and runs to its end.
Making = Generator["bool | Base | None", "Base | None", M]


def make(making: Making[M], start: Base | None) -> M:
    """Compute one window by itself."""
    while not next(making):
        pass
    making.send(start)
    return _end(making)


def _end(making: Making[M]) -> M:
    try:
        next(making)
    except StopIteration as stop:
        result: M = stop.value
        return result
    raise AssertionError("a window yields after it has said where it ended")


def owner(number: int, size: int) -> int:
    """Return the worker of a chain. Every worker has some, so that none can get far ahead of another."""
    length = max(2, -(-_WRITING // size)) * size - 1
    return (number % length + 1) % size


@dataclass
class _Chain(Generic[M]):
    """A key and the windows up to the next one."""

    number: int
    #: Its windows, `end` exclusive.
    begin: int
    end: int
    #: Where its next window starts.
    start: Base | None = None
    made: list[M] = field(default_factory=list)
    #: Its next window, and the progress of it: "" (not started), "measuring", "ready" for its start, or "placed".
    making: Making[M] | None = None
    stage: str = ""
    #: Why its next window failed.
    failure: str | None = None

    @property
    def is_done(self) -> bool:
        return self.failure is not None or self.begin + len(self.made) == self.end

    @property
    def is_begun(self) -> bool:
        """True if its first window has been placed."""
        return bool(self.made) or self.stage == "placed" or self.failure is not None


class Relay(Generic[M, F, N]):
    """`count` windows, computed by several workers. Every worker creates one. Collective.

    Parameters
    ----------
    comm : communicator
    count : int
    past : Past
        The past before the first window; the same on every worker.
    key_every : int
        One in this many windows is a key, counted from the first of all.
    chained : bool
        Whether windows start from others.
    begin : callable
        Starts computing a window, by its number.
    settle : callable
        Takes the past and the result of a window; returns the past after it, and its frame or None. Called in order.
    finish : callable
        Takes the number of a frame and the frame, on the worker that computed it; returns the item to yield.
    everywhere : bool
        Whether all workers yield the items, or only worker 0.
    """

    def __init__(
        self,
        comm: Any,
        count: int,
        past: Past,
        *,
        key_every: int,
        chained: bool,
        begin: Callable[[int], Making[M]],
        settle: Callable[[Past, M], tuple[Past, F | None]],
        finish: Callable[[int, F], N],
        everywhere: bool,
    ) -> None:
        # A separate communicator, so that leftover messages of an unfinished relay are never received by another.
        self._comm = comm.Dup()
        self._count, self._begin, self._settle, self._finish = count, begin, settle, finish
        self._chained, self._everywhere = chained, everywhere
        self._takes = everywhere or comm.rank == 0
        ends = [end for end in range(1, count) if (past.windows + end) % key_every == 0]
        chains: list[_Chain[M]] = [
            _Chain(number, begin, end)
            for number, (begin, end) in enumerate(zip([0, *ends], [*ends, count], strict=True))
        ]
        self._chains = len(chains)
        self._left = deque(chain for chain in chains if owner(chain.number, comm.size) == comm.rank)
        #: Chains that were started but not aligned yet.
        self._begun: deque[_Chain[M]] = deque()
        #: Where the keys of chains start, and the past before chains, as far as this worker knows them.
        self._starts: dict[int, Base | None] = {0: past.start(key_every)}
        if past.windows % key_every:
            # The key of the first chain was made earlier.
            self._starts[1] = past.key
        self._pasts: dict[int, Past] = {0: past}
        #: Aligned frames that are to be finished: the window, the number among frames, the frame.
        self._turned: deque[tuple[int, int, F | None]] = deque()
        #: Results of windows, computed here or elsewhere, that were not yielded yet.
        self._made: dict[int, N | None] = {}
        #: The first window that is known to have failed, and why.
        self._failed: tuple[int, str] | None = None
        self._sent: list[Any] = []
        #: The past after the last window; None until it is known.
        self.past: Past | None = None if count else past
        #: How long this worker has had nothing to do but wait.
        self.waited_s = 0.0
        #: Messages that this worker has sent, by kind, and their bytes.
        self.sent: dict[str, tuple[int, int]] = {}

    def run(self) -> Iterator[N | None]:
        """Compute this worker's windows, and yield the items of all, in order; None for a window without a frame.

        If items go to worker 0 only, the others yield nothing, and are done when all windows are.

        Raises
        ------
        SeriesError
            If a window, or finishing its frame, raised `ValueError` or `OSError`; on every worker, after the windows
            before it.
        """
        try:
            for number in range(self._count if self._takes else 0):
                while not self._is_lost(number):
                    self._take_in()
                    if number in self._made and (len(self._made) >= _MADE_MAX or not self._is_urgent()):
                        break
                    # Before waiting, process everything that was received, since it is not announced again.
                    if not self._is_lost(number) and not self._work():
                        self._wait()
                if self._is_lost(number):
                    break
                yield self._made.pop(number)
            while True:
                self._take_in()
                if self._is_over():
                    break
                if not self._work():
                    self._wait()
            self._part()
        finally:
            self._leave()

    def _part(self) -> None:
        """Wait until all workers have come to the end, since messages of a worker may be lost when its program ends;
        raise if one has failed.
        """
        begin = time.perf_counter()
        failed = [one for one in self._comm.allgather(self._failed) if one is not None]
        self.waited_s += time.perf_counter() - begin
        if failed:
            raise SeriesError(min(failed)[1])

    def _leave(self) -> None:
        """Leave nothing behind, even if frames are not consumed to the end, or something has failed; without waiting
        for others.
        """
        # Failures and the end of the job are reported elsewhere.
        with suppress(CommError):
            while self._comm.iprobe():
                self._comm.recv()
            self._comm.Free()

    # --- work to do
    # ------------------------------------------------------------------------------------------------------
    def _is_lost(self, number: int) -> bool:
        """Return whether a window has no result, because it or one before it has failed."""
        return self._failed is not None and number >= self._failed[0]

    def _is_over(self) -> bool:
        """Return whether this worker and the others need nothing more of each other."""
        if self._turned or (self._failed is None and self.past is None):
            return False
        return not self._begun and not self._left

    def _is_due(self) -> bool:
        """Return whether a chain can be aligned."""
        return bool(self._begun) and self._begun[0].is_done and self._begun[0].number in self._pasts

    def _may_begin(self) -> bool:
        """Return whether a chain can be started: others wait for its key."""
        if not self._left or len(self._begun) >= _BEGUN_MAX:
            return False
        return not self._chained or self._left[0].number in self._starts

    def _may_measure(self) -> bool:
        """Return whether the next chain's first window can be advanced to the point where it needs its start."""
        if not self._left or len(self._begun) >= _BEGUN_MAX:
            return False
        return self._left[0].failure is None and self._left[0].stage != "ready"

    def _is_urgent(self) -> bool:
        """Return whether others wait, or will wait, for work of this worker."""
        return self._is_due() or self._may_begin()

    def _work(self) -> bool:
        """Do one piece of work, starting with work that others wait for; False if there is nothing to do."""
        if self._is_due():
            self._turn(self._begun.popleft())
        elif self._may_begin():
            self._open(self._left[0])
        elif self._turned:
            self._end_one()
        elif (chain := next((chain for chain in self._begun if not chain.is_done), None)) is not None:
            self._step(chain)
        elif self._may_measure():
            # Nothing else can be done until its start arrives.
            self._step(self._left[0])
        else:
            return False
        return True

    def _open(self, chain: _Chain[M]) -> None:
        """Start a chain: place its key."""
        chain.start = self._starts.pop(chain.number) if self._chained else None
        while not chain.is_begun:
            self._step(chain)
        # If a key has failed, this is reported only when it is this chain's turn.
        self._begun.append(self._left.popleft())

    def _step(self, chain: _Chain[M]) -> None:
        """Advance the next window of a chain by one step."""
        number = chain.begin + len(chain.made)
        try:
            if chain.making is None:
                chain.making, chain.stage = self._begin(number), "measuring"
            if chain.stage == "measuring":
                if next(chain.making):
                    chain.stage = "ready"
            elif chain.stage == "ready":
                ended = chain.making.send(chain.start)
                chain.stage = "placed"
                assert not isinstance(ended, bool), "a window says where it ended"
                chain.start = ended or chain.start
                following = chain.number + 1
                if self._chained and not chain.made and following < self._chains and following not in self._starts:
                    self._send(owner(following, self._comm.size), "key", following, chain.start)
            else:
                chain.made.append(_end(chain.making))
                chain.making, chain.stage = None, ""
        except (ValueError, OSError) as error:
            chain.failure = str(error)

    def _turn(self, chain: _Chain[M]) -> None:
        """Align the windows of a chain with those before it, and pass on the past."""
        past, number = self._pasts.pop(chain.number), chain.begin
        failure = chain.failure
        for made in chain.made:
            try:
                past, frame = self._settle(past, made)
            except (ValueError, OSError) as error:
                failure = str(error)
                break
            self._turned.append((number, past.frames - 1, frame))
            number += 1
        if failure is not None:
            self._fail(number, failure)
        elif chain.number + 1 == self._chains:
            self.past = past
            self._send_all("end", number, past)
        else:
            self._send(owner(chain.number + 1, self._comm.size), "past", chain.number + 1, past)

    def _end_one(self) -> None:
        """Finish a frame, and notify the worker that yields it."""
        number, place, frame = self._turned.popleft()
        try:
            made = None if frame is None else self._finish(place, frame)
        except (ValueError, OSError) as error:
            self._fail(number, str(error))
            return
        if self._takes:
            self._made[number] = made
        if self._everywhere:
            self._send_all("frame", number, made)
        elif self._comm.rank != 0:
            self._send(0, "frame", number, made)

    def _fail(self, number: int, why: str) -> None:
        self._send_all("failed", number, why)
        self._note("failed", number, why)

    # --- messages --------------------------------------------------------------------------------------------------------
    def _take_in(self) -> None:
        """Receive all messages that have arrived."""
        while self._comm.iprobe():
            self._receive()

    def _wait(self) -> None:
        begin = time.perf_counter()
        self._receive()
        self.waited_s += time.perf_counter() - begin

    def _receive(self) -> None:
        self._note(*pickle.loads(self._comm.recv()))

    def _note(self, kind: str, number: int, what: Any) -> None:
        """Process a message: of a chain ("key", "past") or of a window."""
        if kind == "key":
            self._starts[number] = what
        elif kind == "past":
            self._pasts[number] = what
        elif kind == "frame":
            self._made[number] = what
        elif kind == "end":
            self.past = what
        elif self._failed is None or number < self._failed[0]:
            self._failed = number, what
            # Later windows are no longer requested, but earlier ones are.
            self._left = deque(chain for chain in self._left if chain.begin < number)
            self._begun = deque(chain for chain in self._begun if chain.begin < number)
            self._turned = deque(one for one in self._turned if one[0] < number)

    def _send(self, worker: int, kind: str, number: int, what: object) -> None:
        """Send a message to a worker, which may be this one."""
        if worker == self._comm.rank:
            self._note(kind, number, what)
        else:
            self._send_bytes([worker], kind, pickle.dumps((kind, number, what), pickle.HIGHEST_PROTOCOL))

    def _send_all(self, kind: str, number: int, what: object) -> None:
        """Send a message to all other workers."""
        others = [worker for worker in range(self._comm.size) if worker != self._comm.rank]
        self._send_bytes(others, kind, pickle.dumps((kind, number, what), pickle.HIGHEST_PROTOCOL))

    def _send_bytes(self, workers: list[int], kind: str, message: bytes) -> None:
        # The receiver may be busy with its own window, so do not wait for it.
        self._sent = [request for request in self._sent if not request.test()[0]]
        self._sent += [self._comm.isend(message, dest=worker) for worker in workers]
        count, size = self.sent.get(kind, (0, 0))
        self.sent[kind] = count + len(workers), size + len(workers) * len(message)
