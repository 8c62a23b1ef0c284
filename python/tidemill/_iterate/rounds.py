"""`iterate`, and the rounds of all workers.

All workers go through the same rounds. In a round each sweeps over its own part, then all exchange. Votes about the end and
errors travel with the exchange, so that all workers end, or fail, in the same round.
"""

from __future__ import annotations

import pickle
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill._iterate.apart import Apart, Talk
from tidemill._iterate.result import Iterated, IterationAccount
from tidemill._iterate.saved import Saved
from tidemill._job import init
from tidemill._tables.checkpoint import Checkpoint, as_checkpoint
from tidemill._tables.workers import differing

__all__ = ["iterate"]

T = TypeVar("T")
Pairs = Iterable[tuple[Any, Any]]
#: Messages by the worker that they go to, or an array that is summed.
Messages = Mapping[int, Any] | NDArray[Any]

#: Sweeps in a round at most, if only the test limits them.
_SWEEPS_MAX = 1000


class _Rounds:
    """The functions' calls and exchanges of one iteration, with their account."""

    def __init__(self, comm: Any, account: IterationAccount, saved: Saved | None) -> None:
        self.comm, self.account, self._saved = comm, account, saved
        #: Whether to save the state after this round; the same on all workers.
        self._due = False
        #: What is summed: shape and dtype; None for messages by worker; not known before the first exchange.
        self._summed: tuple[Any, ...] | str | None = "unknown"

    def exchange(self, work: Callable[..., tuple[T, Messages, bool]], *args: Any) -> tuple[T, Any, bool]:
        """Do a round's work, which returns a result, messages, and whether this worker is done; then exchange.

        Returns
        -------
        tuple
            The result, the messages received, and whether all workers are done.
        """
        begin = time.perf_counter()
        result: Any = None
        sent: Any = {}
        done, error, kind = False, None, None
        try:
            result, sent, done = work(*args)
            kind = self._kind(sent)
            if self._summed not in ("unknown", kind):
                raise ValueError(f"boundary returned {_named(kind)}, and {_named(self._summed)} before")
            frames = [None if kind else _frame(sent, rank) for rank in range(self.comm.size)]
        except Exception as caught:
            error, frames = caught, [None] * self.comm.size
        middle = time.perf_counter()
        self.account.compute_seconds += middle - begin
        due = self._saved is not None and self._saved.due(self.account.rounds + 1)
        vote = (done, None if error is None else f"{type(error).__name__}: {error}", kind, due)
        heard = self.comm.alltoall([(frame, vote) for frame in frames])
        if error is not None:
            raise error
        for rank, (_, (_, message, *_)) in enumerate(heard):
            if message is not None:
                raise RuntimeError(f"iterate: worker {rank} failed: {message}")
        kinds = [other for _, (_, _, other, _) in heard]
        if any(other != kind for other in kinds):
            raise ValueError(f"boundary returned {' and '.join(sorted(set(map(_named, kinds))))} on different workers")
        self._summed, self._due = kind, heard[0][1][3]
        received: Any
        if kind:
            received = np.empty(sent.shape, sent.dtype)
            self.comm.Allreduce(np.asarray(sent, order="C"), received)
            self.account.bytes_sent += sent.nbytes if self.comm.size > 1 else 0
        else:
            received = {rank: pickle.loads(frame) for rank, (frame, _) in enumerate(heard) if frame is not None}
            self.account.bytes_sent += sum(
                len(frame) for rank, frame in enumerate(frames) if frame is not None and rank != self.comm.rank
            )
        self.account.exchange_seconds += time.perf_counter() - middle
        return result, received, all(vote[0] for _, vote in heard)

    def resumed(self) -> tuple[int, list[Any], bool] | None:
        """Return the round of the newest checkpoint, this worker's parts of it, and whether the iteration had converged."""
        if self._saved is None or (found := self._saved.newest()) is None:
            return None
        manifest, parts = found
        return manifest.round, parts, manifest.converged

    def end_round(self, number: int, state: Any, done: bool, last: bool) -> None:
        """Count a round, and save the state if it is time, or if it is the last round."""
        self.account.rounds = number
        if self._saved is not None and (self._due or done or last):
            self._saved.save(number, state, done)

    def _kind(self, sent: Any) -> tuple[Any, ...] | None:
        if isinstance(sent, np.ndarray):
            if sent.dtype.kind not in "iufc":
                raise TypeError(
                    f"boundary returned an array of {sent.dtype}, which has no sum; return an array of numbers"
                )
            return (sent.shape, str(sent.dtype))
        if not isinstance(sent, Mapping):
            raise TypeError(
                f"boundary returned {type(sent).__name__}; return a dict of messages by worker, or an array to sum"
            )
        strange = [rank for rank in sent if rank not in range(self.comm.size)]
        if strange:
            raise ValueError(
                f"boundary sends to worker {strange[0]!r}, but there are only {self.comm.size} workers, from 0"
            )
        return None


def _frame(messages: Mapping[int, Any], rank: int) -> bytes | None:
    return pickle.dumps(messages[rank], protocol=5) if rank in messages else None


def _named(kind: Any) -> str:
    return "a dict of messages" if kind is None else f"an array of shape {kind[0]} and type {kind[1]}"


def _never(before: Any, after: Any) -> bool:
    return False


def iterate(
    state: Any,
    *,
    local: Callable[[Any, Any], Any] | None = None,
    boundary: Callable[[Any], Messages] | None = None,
    receive: Callable[[Any, Any], Any] | None = None,
    lmap: Callable[[Any, Any], Pairs] | None = None,
    lreduce: Callable[[Any, list[Any]], Any] | None = None,
    gmap: Callable[[Any, Any], Pairs] | None = None,
    greduce: Callable[[Any, list[Any]], Any] | None = None,
    combine: Callable[[Any, list[Any]], Any] | None = None,
    until: Callable[[Any, Any], bool] | None = None,
    local_until: Callable[[Any, Any], bool] | None = None,
    sync: str = "global",
    local_sweeps: int | None = None,
    staleness: int = 8,
    max_rounds: int = 1000,
    checkpoint: Checkpoint | str | Path | None = None,
    checkpoint_rounds: int | None = None,
    comm: Any = None,
) -> Iterated:
    """Iterate on the parts of a problem, one on each worker, and exchange data after every sweep or less often. Collective.

    There are two forms: arrays (or any other objects), with ``local`` and ``boundary``; and items with keys, with ``lmap``
    and ``lreduce``. Your functions must return new states and leave their arguments as they are.

    **Arrays.** Before the first round, all workers exchange ``boundary(state)``. What a worker receives are its ghosts. In
    each round, a worker calls ``state = receive(state, ghosts)``, then ``state = local(state, ghosts)`` once or several
    times with the same ghosts. Then all exchange ``boundary(state)``. After the last round, they call ``receive`` once
    more. Messages are copies.

    **Items with keys.** ``state`` has this worker's items; each key is on one worker. In a local sweep, a worker calls
    ``lmap(key, value)`` for each item, groups the pairs by key, and sets the values of its own keys to
    ``lreduce(key, values)``. It drops pairs with other keys. With ``sync="global"`` there are no local sweeps. A global step
    ends the round: the pairs of ``gmap(key, value)`` go to the workers of their keys, where ``greduce(key, values)`` is the
    new value, with values in the order of workers. After either step, a key without a pair is gone. The hash of a new key
    decides which worker gets it.

    Parameters
    ----------
    state : object, or mapping or iterable of (key, value)
        This worker's part.
    local : callable(state, ghosts)
        Sweeps over the part, and returns the new state.
    boundary : callable(state), optional
        Returns what other workers need: a dict of messages by worker, which the others get as a dict by sender; or an array
        of the same shape and type on all workers, and all get the sum of these arrays. By default nothing is sent.
    receive : callable(state, ghosts), optional
        Combines the state with the ghosts, and returns the new state. By default the state stays as it is.
    lmap, gmap : callable(key, value)
        Yield pairs of key and value. `gmap` is `lmap` by default.
    lreduce, greduce : callable(key, values)
        Return a key's value. `greduce` is `lreduce` by default.
    combine : callable(key, values), optional
        Combines the values that a worker's `gmap` has for a key into one, before they travel.
    until : callable(before, after), optional
        The global test: whether the state hardly changed from the end of one round to the end of the next. The iteration
        ends when it is true on all workers, or after `max_rounds`.
    local_until : callable(before, after), optional
        The local test, of the states after two sweeps of a round; `until` by default.
    sync : {"global", "partial", "async"}, default="global"
        ``"global"``: a round is one sweep, or one global step. ``"partial"``: it sweeps until the local test is true.
        ``"async"``, for arrays: a worker starts its next round with the newest ghosts that it has, without waiting for
        others. It is not repeatable.
    local_sweeps : int, optional
        Maximum number of sweeps in a round: with ``"partial"`` 1000 by default, with ``"async"`` 1.
    staleness : int, default=8
        With ``"async"``, a worker waits while it is more than this many rounds ahead of a worker with which it
        exchanges messages, and which has more to do.
    max_rounds : int, default=1000
        Maximum number of rounds; with ``"async"``, of each worker.
    checkpoint : str, Path or tidemill.stream.Checkpoint, optional
        A folder that all workers share. The states are saved there every 10 seconds, or every ``interval`` of a
        `Checkpoint`, and at the end; the newest ``keep`` checkpoints are kept. If the folder has checkpoints already,
        the iteration resumes from the newest one instead of `state`: on as many workers as before, or, with items, on
        any number. Not with ``"async"``.
    checkpoint_rounds : int, optional
        Save the states every so many rounds, instead of every 10 seconds.
    comm : communicator, optional
        Communicator of the workers that take part; by default all workers of the job, or of the `tidemill.group` block.

    Returns
    -------
    Iterated
        With ``state``, ``converged`` and ``account``.

    Raises
    ------
    TypeError, ValueError
        If arguments do not fit together.
    DataSetError
        If no checkpoint in the folder can be used; or if one is not signed as it should be, has another number of parts
        than there are workers, or belongs to the other form of iteration.
    Exception
        The exception that your function raised on this worker. The other workers raise a `RuntimeError` that names the
        worker and quotes the message.

    Examples
    --------
    >>> import tidemill as tm
    >>> halved = tm.iterate(8.0, local=lambda x, ghosts: x / 2, until=lambda before, after: before - after < 1)
    >>> halved.state, halved.account.rounds
    (0.5, 4)
    """
    _check(local, boundary, receive, lmap, lreduce, gmap, greduce, combine)
    if sync not in ("global", "partial", "async"):
        raise ValueError(f'sync={sync!r} is not "global", "partial" or "async"')
    for name, number, least in (
        ("local_sweeps", local_sweeps, 1),
        ("max_rounds", max_rounds, 1),
        ("staleness", staleness, 0),
        ("checkpoint_rounds", checkpoint_rounds, 1),
    ):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            raise ValueError(f"{name}={number!r} must be an int of at least {least}")
    if sync == "async" and local is None:
        raise ValueError('sync="async" is for arrays: pass local= and boundary=, not lmap= and lreduce=')
    place = as_checkpoint(checkpoint)
    if checkpoint_rounds is not None and place is None:
        raise ValueError("checkpoint_rounds= needs checkpoint=, the folder of the checkpoints")
    if place is not None and sync == "async":
        raise ValueError('checkpoint= is for sync="global" or "partial": with "async" there is no round to save')
    test = local_until or until
    if sync == "partial" and local_sweeps is None and test is None:
        raise ValueError('sync="partial" needs local_sweeps=, until= or local_until=: otherwise a round has no end')
    comm = init().comm if comm is None else comm
    if comm.size > 1:
        # Workers that differ in these would wait for each other in different calls.
        difference = differing(comm, {"sync": sync, "checkpoint": "None" if place is None else str(place.path)})
        if difference is not None:
            raise ValueError(f"iterate: {difference}")
    account = IterationAccount(sync, {"global": 1, "partial": local_sweeps, "async": local_sweeps or 1}[sync])
    form = "items" if local is None else "arrays"
    saved = None if place is None else Saved(comm, account, place, checkpoint_rounds, form)
    rounds = _Rounds(comm, account, saved)
    sweep = _Sweep(account, test or _never, 1 if sync == "global" else account.local_sweeps or _SWEEPS_MAX)
    if local is not None and sync == "async":
        return _apart(rounds, sweep, state, local, boundary, receive, until or _never, staleness, max_rounds)
    if local is not None:
        return _arrays(rounds, sweep, state, local, boundary, receive, until or _never, max_rounds)
    assert lmap is not None and lreduce is not None, "_check has seen to that"
    steps = (gmap or lmap, greduce or lreduce, combine)
    return _items(rounds, sweep, state, lmap, lreduce, steps, until or _never, max_rounds)


def _check(local: Any, boundary: Any, receive: Any, lmap: Any, lreduce: Any, *rest: Any) -> None:
    arrays, items = (local, boundary, receive), (lmap, lreduce, *rest)
    for function in (*arrays, *items):
        if function is not None and not callable(function):
            raise TypeError(f"iterate takes functions, not {type(function).__name__} {function!r}")
    if any(f is not None for f in arrays) and any(f is not None for f in items):
        raise TypeError(
            "iterate takes local, boundary and receive, or lmap, lreduce, gmap, greduce and combine: not both"
        )
    if local is None and (lmap is None or lreduce is None):
        raise TypeError("iterate needs local=, or both lmap= and lreduce=")


@dataclass
class _Sweep:
    """Sweeps of one round: as many as the limit allows, until the local test is true."""

    account: IterationAccount
    test: Callable[[Any, Any], bool]
    limit: int

    def __call__(self, state: T, sweep: Callable[[T], T]) -> T:
        for number in range(1, self.limit + 1):
            before, state = state, sweep(state)
            self.account.sweeps += 1
            if number < self.limit and self.test(before, state):
                break
        return state


def _arrays(
    rounds: _Rounds,
    sweep: _Sweep,
    state: Any,
    local: Callable[[Any, Any], Any],
    boundary: Callable[[Any], Messages] | None,
    receive: Callable[[Any, Any], Any] | None,
    until: Callable[[Any, Any], bool],
    max_rounds: int,
) -> Iterated:
    tell: Callable[[Any], Messages] = boundary or (lambda state: {})
    take = receive or (lambda state, ghosts: state)

    def work(number: int, state: Any, ghosts: Any) -> tuple[Any, Messages, bool]:
        taken = take(state, ghosts)
        reached = sweep(taken, lambda part: local(part, ghosts))
        return reached, tell(reached), bool(until(taken if number == 1 else state, reached))

    first, done = 0, False
    if (resumed := rounds.resumed()) is not None:
        first, (state,), done = resumed
    # A checkpoint has no ghosts: they follow from the states of all.
    state, ghosts, _ = rounds.exchange(lambda: (state, tell(state), False))
    for number in range(first + 1, max_rounds + 1):
        if done:
            break
        state, ghosts, done = rounds.exchange(work, number, state, ghosts)
        rounds.end_round(number, state, done, number == max_rounds)
    return Iterated(take(state, ghosts), done, rounds.account)


def _apart(
    rounds: _Rounds,
    sweep: _Sweep,
    state: Any,
    local: Callable[[Any, Any], Any],
    boundary: Callable[[Any], Messages] | None,
    receive: Callable[[Any, Any], Any] | None,
    until: Callable[[Any, Any], bool],
    staleness: int,
    max_rounds: int,
) -> Iterated:
    tell: Callable[[Any], Messages] = boundary or (lambda state: {})
    take = receive or (lambda state, ghosts: state)

    def first() -> tuple[Any, Messages, bool]:
        sent = tell(state)
        if not isinstance(sent, Mapping):
            raise TypeError(
                f'with sync="async" boundary returns a dict of messages by worker, not {type(sent).__name__}: a sum needs all workers at once'
            )
        return set(sent), sent, False

    neighbors, ghosts, _ = rounds.exchange(first)
    told = state

    def work(is_first: bool) -> tuple[Mapping[int, Any], bool]:
        nonlocal state, told
        newest = dict(ghosts)
        taken = take(state, newest)
        before, state = taken if is_first else state, sweep(taken, lambda part: local(part, newest))
        # Small changes add up: what counts for others is by how much the state differs from the one that they know.
        messages: Any = {}
        if not until(told, state):
            told, messages = state, tell(state)
        return messages, bool(until(before, state))

    talk = Talk(rounds.comm, rounds.account, neighbors | set(ghosts), ghosts.__setitem__, staleness)
    apart = Apart(talk, rounds.account, max_rounds)
    apart.run(work)
    return Iterated(take(state, ghosts), apart.converged, rounds.account)


def _grouped(pairs: Pairs) -> dict[Any, list[Any]]:
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def _items(
    rounds: _Rounds,
    sweep: _Sweep,
    given: Any,
    lmap: Callable[[Any, Any], Pairs],
    lreduce: Callable[[Any, list[Any]], Any],
    steps: tuple[Callable[[Any, Any], Pairs], Callable[[Any, list[Any]], Any], Callable[[Any, list[Any]], Any] | None],
    until: Callable[[Any, Any], bool],
    max_rounds: int,
) -> Iterated:
    gmap, greduce, combine = steps
    comm, account = rounds.comm, rounds.account

    resumed = rounds.resumed()
    first, saved, done = resumed or (0, [], False)

    def begin() -> tuple[dict[Any, Any], Messages, bool]:
        items = dict(given)
        keys: list[Hashable] = list(items)
        return items, dict.fromkeys(range(comm.size), keys), False

    # The keys of all are told once.
    state, told, _ = rounds.exchange(begin)
    owners: dict[Any, int] = {}
    for rank, keys in told.items():
        for key in keys:
            if owners.setdefault(key, rank) != rank:
                raise ValueError(
                    f"the key {key!r} is on worker {owners[key]} and on worker {rank}: it must be on one worker only"
                )

    def owner(key: Any) -> int:
        known = owners.get(key)
        if known is not None:
            return known
        # Python's hash of text differs between processes; that of numbers does not, and is the same for equal ones.
        mixed = hash(key) if isinstance(key, (int, float, np.number)) else zlib.crc32(repr(key).encode())
        return int(mixed % comm.size)

    def deal() -> tuple[None, Messages, bool]:
        messages: defaultdict[int, list[tuple[Any, Any]]] = defaultdict(list)
        for part in saved:
            for key, value in part.items():
                messages[owner(key)].append((key, value))
        return None, messages, False

    if resumed is not None:
        # There may be more or fewer workers than before, with other keys.
        _, dealt, _ = rounds.exchange(deal)
        state = {key: value for rank in sorted(dealt) for key, value in dealt[rank]}
    if done:
        return Iterated(state, done, account)

    def local(items: dict[Any, Any]) -> dict[Any, Any]:
        pairs = (pair for key, value in items.items() for pair in lmap(key, value))
        own = (pair for pair in pairs if owner(pair[0]) == comm.rank)
        return {key: lreduce(key, values) for key, values in _grouped(own).items()}

    def work(number: int, before: dict[Any, Any], received: dict[int, Any]) -> tuple[dict[Any, Any], Messages, bool]:
        reduced, settled = before, False
        if number > first:
            arrived = _grouped(pair for rank in sorted(received) for pair in received[rank])
            reduced = {key: greduce(key, [v for part in parts for v in part]) for key, parts in arrived.items()}
            settled = bool(until(before, reduced))
        messages: defaultdict[int, list[tuple[Any, list[Any]]]] = defaultdict(list)
        # Whether all are done is known only after the exchange: the last one carries what nobody needs.
        if number < max_rounds:
            reached = sweep(reduced, local) if account.sync == "partial" else reduced
            account.sweeps += 1
            for key, values in _grouped(pair for item in reached.items() for pair in gmap(*item)).items():
                messages[owner(key)].append((key, [combine(key, values)] if combine else values))
        return reduced, messages, settled

    received: dict[int, Any] = {}
    for number in range(first, max_rounds + 1):
        state, received, done = rounds.exchange(work, number, state, received)
        if number > first:
            rounds.end_round(number, state, done, number == max_rounds)
        if done:
            break
    return Iterated(state, done, account)
