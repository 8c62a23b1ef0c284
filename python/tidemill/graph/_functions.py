"""Functions that run on other workers than the copy that has spawned them.

In a graph with ``spawns=True`` every worker has a copy of one task more, which has no ports, but a communicator: it passes on
what copies of its worker spawn, runs what comes from others on threads, and sends back what becomes of it. So calls
end with the run, like the functions of other tasks, and a worker that is lost ends it.

One thread of each worker uses the communicator, and looks whether something has come: a call that waits for any message
would be reported as one that stands still.
"""

from __future__ import annotations

import itertools
import operator
import pickle
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from tidemill._callback import lifted
from tidemill._job import entered, group_of, whole
from tidemill._pickling import dumps
from tidemill._tidemill import NativeCopy
from tidemill.graph._errors import Cancelled, GraphError, told
from tidemill.graph._spawn import Spawned, depth, leave_slot, level_of, run_alone, take_slot

if TYPE_CHECKING:
    from tidemill.mpi import Intracomm

__all__ = ["SERVICE", "Functions"]

#: The name of the task. Errors of tasks whose names begin so are not of the program's tasks.
SERVICE = "(spawned functions)"
#: Functions that a worker may have under way on another.
_PENDING_MAX = 256
#: How long the service rests when nothing has come: first, and at most.
_REST_S, _REST_S_MAX = 0.0002, 0.005


class Call(NamedTuple):
    """A function to call: its number at the worker that has spawned it, how deep it was spawned, and function and arguments, pickled."""

    number: int
    level: int
    name: str
    pickled: bytes


class Answer(NamedTuple):
    """What became of a call: what it returned, pickled, or what went wrong."""

    number: int
    pickled: bytes | None
    error: str


class Over(NamedTuple):
    """No copy of the sender's worker spawns anything more."""


class Functions:
    """One worker's part in spawned functions.

    Parameters
    ----------
    rank, size : int
        Of the worker among those that the graph runs on.
    copies : int
        Copies of tasks on this worker, which may spawn functions until they end.
    """

    def __init__(self, rank: int, size: int, copies: int) -> None:
        self._rank = rank
        self._size = size
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._copies = copies
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[Spawned, int, str]] = {}
        #: How many of them are under way on each worker.
        self._busy = [0] * size
        #: What is to be sent to workers.
        self._out: deque[tuple[int, Call | Answer | Over]] = deque()
        self._is_over = False

    def spawn(self, function: Callable[..., Any], arguments: tuple[Any, ...], worker: SupportsIndex | None) -> Spawned:
        """Call a function on a worker, or on the one with the fewest under way from here."""
        name = getattr(function, "__qualname__", repr(function))
        level = level_of(f"function {name!r}")
        pickled = _pickled(name, function, arguments)
        at = None if worker is None else self._number(worker)
        future = Spawned()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_over:
                raise Cancelled
            if at is None:
                # This worker last, as the function that spawns runs here.
                at = min(range(self._size), key=lambda at: (self._busy[at], (at - self._rank - 1) % self._size))
            if self._busy[at] >= _PENDING_MAX:
                raise GraphError(
                    f"{_PENDING_MAX} functions spawned here run on worker {at}; wait for some of them before you spawn {name!r}"
                )
            number = next(self._numbers)
            self._pending[number] = future, at, name
            self._busy[at] += 1
            self._out.append((at, Call(number, level, name, pickled)))
        self._awake.set()
        return future

    def _number(self, worker: SupportsIndex) -> int:
        try:
            number = operator.index(worker)
        except TypeError:
            number = -1
        if not 0 <= number < self._size:
            raise GraphError(
                f"spawn: worker={worker!r} is none of the workers 0 to {self._size - 1} that the graph runs on"
            )
        return number

    def left(self) -> None:
        """Note that a copy of this worker has ended, and has taken what it has spawned."""
        with self._lock:
            self._copies -= 1
        self._awake.set()

    def serve(self, copy: NativeCopy, comm: Intracomm) -> None:
        """Pass on calls and answers until nobody spawns anything more."""
        sending: list[Any] = []
        told, over, rest_s = False, 0, _REST_S
        try:
            while over < self._size or sending or self._out:
                if copy.cancelled:
                    return
                self._awake.clear()
                came = comm.iprobe()
                if came:
                    said, of = comm.recv()
                    over += isinstance(said, Over)
                    self._take(copy, said, of)
                with self._lock:
                    out, self._out = self._out, deque()
                    if self._copies == 0 and not told:
                        told = True
                        out.extend((worker, Over()) for worker in range(self._size))
                for worker, said in out:
                    if worker == self._rank:
                        over += isinstance(said, Over)
                        self._take(copy, said, worker)
                    else:
                        sending.append(comm.isend((said, self._rank), worker))
                sending = [request for request in sending if not request.test()[0]]
                rest_s = _REST_S if came or out else min(2 * rest_s, _REST_S_MAX)
                if not (came or out):
                    self._awake.wait(rest_s)
        finally:
            # Nobody answers any more, which happens only if the run has failed.
            with self._lock:
                self._is_over = True
                left, self._pending = self._pending, {}
            for future, _, _ in left.values():
                future.set_exception(Cancelled())

    def _take(self, copy: NativeCopy, said: Call | Answer | Over, worker: int) -> None:
        if isinstance(said, Call):
            threading.Thread(
                target=self._call, args=(copy, said, worker), name=f"function {said.name}", daemon=True
            ).start()
        elif isinstance(said, Answer):
            with self._lock:
                future, at, name = self._pending.pop(said.number)
                self._busy[at] -= 1
            if said.pickled is None:
                future.set_exception(GraphError(f"function {name!r} on worker {at}: {said.error}", worker=at))
                return
            try:
                future.set_result(pickle.loads(said.pickled))
            except Exception as error:
                future.set_exception(
                    GraphError(
                        f"function {name!r} on worker {at}: what it returned cannot be read here: {error}", worker=at
                    )
                )

    def _call(self, copy: NativeCopy, call: Call, worker: int) -> None:
        copy.join_thread()
        depth.value = call.level
        refused = take_slot(f"function {call.name!r}")
        if refused is not None:
            self._answer(worker, Answer(call.number, None, refused))
            return
        try:
            with entered(group_of(whole()._self)), lifted():
                function, arguments = pickle.loads(call.pickled)
                value = run_alone(function(*arguments))
                answer = Answer(call.number, pickle.dumps(value, protocol=5), "")
        except BaseException as error:
            answer = Answer(call.number, None, told(error))
        finally:
            leave_slot()
        self._answer(worker, answer)

    def _answer(self, worker: int, answer: Answer) -> None:
        with self._lock:
            self._out.append((worker, answer))
        self._awake.set()


def _pickled(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Return a call as it goes to another worker: by reference, as all workers run the same program, or else by value."""
    try:
        return dumps((function, arguments))
    except ImportError as lacking:
        raise GraphError(
            f"spawn: function {name!r} cannot go to another worker: {lacking.__context__}; define it at the top of a module, or "
            'install cloudpickle (pip install "tidemill[run]"), and pass arguments that can be pickled'
        ) from lacking
    except Exception as error:
        raise GraphError(
            f"spawn: function {name!r} cannot go to another worker: {error}; pass arguments that can be pickled, and a "
            "function that uses nothing else"
        ) from error
