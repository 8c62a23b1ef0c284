"""Iterations without common rounds: each worker goes on with the newest messages that it has.

A worker is *passive* when a round hardly changed its state and nothing has come since. Then it does nothing until a message
with ghosts comes, and it sends ghosts only if its state differs from the one that others know. So messages drive the
computation, and it is over when all are passive and no message is on its way.

**The end** is found by Mattern's four counters: passive workers add up, by a non-blocking all-reduce, how many messages all
have sent and received. When two of these in a row find the same numbers, as many sent as received, then nobody received
anything between its two contributions, so all were passive at the end of the first one, with nothing on its way. While
a worker is active, it contributes nothing, and the all-reduce waits.

**Bounded staleness**: rounds are counted by a clock that travels with messages, and a worker waits for active neighbors that
are too far behind. The one with the lowest clock never waits. A passive worker that goes on takes over the clock of the worker
that woke it, as in Lamport's clocks, and tells its neighbors.

Sources: D. Chazan and W. Miranker, Chaotic relaxation (1969); D. Bertsekas and J. Tsitsiklis, Parallel and distributed
computation (1989), chapters 6 and 7; F. Mattern, Algorithms for distributed termination detection (1987); J. Bahi, S.
Contassot-Vivier and R. Couturier, Parallel iterative algorithms (2007); Q. Ho et al., More effective distributed ML via a stale
synchronous parallel parameter server (2013).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tidemill.mpi import Status

__all__ = ["Apart", "Talk"]

#: Waits begin with so many looks without a pause, and then pause up to so long.
_LOOKS, _PAUSE_S_MIN, _PAUSE_S_MAX = 50, 20e-6, 1e-3


@dataclass
class _Neighbor:
    """What is known of another worker."""

    clock: int = 0
    is_active: bool = True


class Spent(Protocol):
    """What an account counts here."""

    rounds: int
    bytes_sent: int
    exchange_seconds: float
    compute_seconds: float


class Talk:
    """The messages of one iteration, their clocks, and the votes about its end. Made and closed by all workers together.

    Parameters
    ----------
    comm : communicator
        It is duplicated: messages never meet those of other code.
    neighbors : iterable of int
        The workers that this one sends to or receives from. Each must have the other.
    receive : callable(rank, message)
        Takes a message in.
    staleness : int
        How many rounds a worker may be ahead of active neighbors.
    """

    def __init__(
        self,
        comm: Any,
        account: Spent,
        neighbors: Iterable[int],
        receive: Callable[[int, Any], None],
        staleness: int,
    ) -> None:
        self._base, self._account = comm, account
        #: Alone, nothing is sent.
        self._comm = comm.Dup() if comm.size > 1 else None
        self._receive, self._staleness = receive, staleness
        self._neighbors = {rank: _Neighbor() for rank in sorted(set(neighbors) - {comm.rank})}
        self.clock = 0
        #: Whether all are passive, or a worker failed.
        self.is_over = False
        #: How many workers ended without being done.
        self.stopped_workers = 0
        #: Whether this worker sent ghosts to itself.
        self._own_came = False
        self._requests: list[Any] = []
        #: Of all messages, by worker.
        self._sent, self._received = [0] * comm.size, [0] * comm.size
        #: Of messages with ghosts.
        self._ghosts_sent = self._ghosts_received = 0
        self._vote: Any = None
        self._votes, self._found = 0, np.zeros(3, np.int64)
        self._last: list[int] = []

    def send(self, messages: Mapping[int, Any], is_active: bool) -> None:
        """Tell all neighbors the clock and whether this worker goes on, and some of them ghosts."""
        for rank in messages:
            if rank not in self._neighbors and rank != self._base.rank:
                raise ValueError(
                    f'boundary sends to worker {rank!r}, for which its first result had no message: with sync="async" it '
                    "sends to the same workers all the time"
                )
        frames = {rank: pickle.dumps(message, protocol=5) for rank, message in messages.items()}
        for rank in self._neighbors:
            frame = frames.get(rank)
            self._post(rank, (self.clock, is_active, frame, False))
            if frame is not None:
                self._ghosts_sent += 1
                self._account.bytes_sent += len(frame)
        if (own := frames.get(self._base.rank)) is not None:
            self._receive(self._base.rank, pickle.loads(own))
            self._own_came = True

    def fail(self) -> None:
        """Tell all workers that this one has failed."""
        for rank in range(self._base.size):
            if rank != self._base.rank:
                self._post(rank, (self.clock, False, None, True))
        self.is_over = True

    def _post(self, rank: int, message: tuple[int, bool, bytes | None, bool]) -> None:
        assert self._comm is not None, "there is another worker"
        self._requests.append(self._comm.isend(message, rank))
        self._sent[rank] += 1
        if len(self._requests) > 2 * len(self._neighbors):
            self._requests = [request for request in self._requests if not request.Test()]

    def take(self) -> bool:
        """Take in what has come; return whether there were ghosts."""
        fresh, self._own_came = self._own_came, False
        if self._comm is None:
            return fresh
        status = Status()
        while (message := self._comm.improbe(status=status)) is not None:
            clock, is_active, frame, failed = message.recv(status)
            rank = status.Get_source()
            self._received[rank] += 1
            if failed:
                self.is_over = True
                continue
            self._neighbors[rank] = _Neighbor(clock, is_active)
            if frame is not None:
                self._ghosts_received += 1
                # Nobody uses what arrives after a failure, and an error here would keep this worker from the others.
                if not self.is_over:
                    self._receive(rank, pickle.loads(frame))
                fresh = True
        return fresh

    def wake(self) -> None:
        """Go on after having been passive."""
        self.clock = max([self.clock, *(neighbor.clock for neighbor in self._neighbors.values())])
        self.send({}, True)

    @property
    def is_ahead(self) -> bool:
        """Whether this worker waits for a neighbor."""
        least = self.clock - self._staleness
        return any(neighbor.is_active and neighbor.clock < least for neighbor in self._neighbors.values())

    def vote(self, stopped: bool) -> None:
        """Take part in finding the end; only passive workers do."""
        if self._comm is None:
            self.is_over, self.stopped_workers = True, int(stopped)
            return
        if self._vote is None:
            mine = np.array([self._ghosts_sent, self._ghosts_received, stopped], np.int64)
            self._vote = self._comm.Iallreduce(mine, self._found)
            self._votes += 1
        if self._vote.Test():
            self._vote, found = None, self._found.tolist()
            if found[0] == found[1] and found == self._last:
                self.is_over, self.stopped_workers = True, found[2]
            self._last = found

    def close(self, error: Exception | None) -> None:
        """Receive what is still on its way, and free the communicator.

        Raises
        ------
        Exception
            `error`, on the worker that failed; the others raise a `RuntimeError` that quotes it.
        """
        if self._comm is None:
            if error is not None:
                raise error
            return
        text = None if error is None else f"{type(error).__name__}: {error}"
        heard = self._base.alltoall([(sent, self._votes, text) for sent in self._sent])
        pause = Pause()
        while any(received < sent for received, (sent, _, _) in zip(self._received, heard, strict=True)):
            self.take()
            pause()
        # Nobody leaves the others in an all-reduce. After a failure this worker may be in the one before theirs.
        if self._vote is not None:
            self._vote.Wait()
        if self._votes < max(votes for _, votes, _ in heard):
            self._comm.Iallreduce(np.zeros(3, np.int64), self._found).Wait()
        for request in self._requests:
            request.Wait()
        self._comm.Free()
        if error is not None:
            raise error
        for rank, (_, _, message) in enumerate(heard):
            if message is not None:
                raise RuntimeError(f"iterate: worker {rank} failed: {message}")


class Pause:
    """Waits between looks, the longer the more have found nothing."""

    def __init__(self) -> None:
        self._looks, self._pause_s = 0, _PAUSE_S_MIN

    def __call__(self) -> None:
        self._looks += 1
        if self._looks <= _LOOKS:
            time.sleep(0)
            return
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


class Apart:
    """The loop of one worker.

    Attributes
    ----------
    converged : bool
        Whether all workers were done at the end; the same on all.
    """

    def __init__(self, talk: Talk, account: Spent, max_rounds: int) -> None:
        self._talk, self._account, self._max_rounds = talk, account, max_rounds
        self._rounds_done = 0
        self.converged = False

    def run(self, work: Callable[[bool], tuple[Mapping[int, Any], bool]]) -> None:
        """Go through rounds until all workers are done, or have gone through `max_rounds`. Collective.

        Parameters
        ----------
        work : callable(is_first)
            Does a round. Returns messages by worker, and whether this worker is done unless something comes.
        """
        talk = self._talk
        error: Exception | None = None
        try:
            self._rounds(work)
        except Exception as caught:
            error = caught
            talk.fail()
        begin = time.perf_counter()
        talk.close(error)
        self._account.exchange_seconds += time.perf_counter() - begin
        self.converged = talk.stopped_workers == 0

    def _rounds(self, work: Callable[[bool], tuple[Mapping[int, Any], bool]]) -> None:
        talk, account = self._talk, self._account
        is_active, done, pause = True, False, Pause()
        while True:
            begin = time.perf_counter()
            if talk.take():
                done = False
                if not is_active and self._rounds_done < self._max_rounds:
                    is_active = True
                    talk.wake()
            if is_active and not talk.is_ahead and not talk.is_over:
                middle = time.perf_counter()
                messages, done = work(self._rounds_done == 0)
                self._rounds_done += 1
                account.rounds += 1
                talk.clock += 1
                is_active = not done and self._rounds_done < self._max_rounds
                end = time.perf_counter()
                account.compute_seconds += end - middle
                talk.send(messages, is_active)
                account.exchange_seconds += time.perf_counter() - end + middle - begin
                pause = Pause()
                continue
            if not is_active and not talk.is_over:
                talk.vote(not done)
            if talk.is_over:
                return
            pause()
            account.exchange_seconds += time.perf_counter() - begin
