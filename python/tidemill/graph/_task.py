"""Running copies of tasks: the arguments of their functions, and their threads."""

from __future__ import annotations

import pickle
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from tidemill._callback import confine, enter_task
from tidemill._job import entered, init, whole
from tidemill._tables.enclosing import enclosing
from tidemill._tables.table import Table
from tidemill._tidemill import NativeCopy, NativeStreamCopy, NativeTable, NativeTaskCopy
from tidemill.graph._errors import GraphError, told
from tidemill.graph._functions import Functions
from tidemill.graph._messages import decode, encode_one
from tidemill.graph._outbox import TaskStreams
from tidemill.graph._rounds import AHEAD_MAX, PortRounds, TaskRun
from tidemill.graph._spawn import Spawned, depth, spawn

if TYPE_CHECKING:
    from tidemill.graph._graph import Graph
    from tidemill.graph._result import Result
    from tidemill.mpi import Intracomm

__all__ = ["Context", "Input", "Output", "collect", "keep", "service", "starter"]

_thread = threading.local()

#: Outcomes of what it has spawned that a copy may hold although it has no need of them.
_SPAWNED_SPARE = 64


class Input:
    """An input port of a running copy: an iterator over messages, in order of arrival from any sender.

    It ends when all senders have ended. A message is a `Table` of some rows, a read-only array, or an object, depending
    on the port that sends it.

    Attributes
    ----------
    name : str
    last : bool
        For a port of a feedback edge (`Graph.feedback`): True if ``until=`` or ``limit=`` ends the loop with the
        message that was returned last. Then iteration ends, and so does `rounds`; to run the loop again, iterate again.
    """

    def __init__(self, copy: NativeCopy | NativeStreamCopy, port: int, name: str, rounds: PortRounds | None) -> None:
        self.name = name
        self.last = False
        self._copy = copy
        self._port = port
        self._rounds = rounds
        #: Of the task itself, if its messages alone come here.
        self._own: Output | None = None
        #: A batch brings several objects at once.
        self._pending: deque[Any] = deque()
        #: Whether the function has asked for anything.
        self._used = False
        #: Messages that were returned: all, and of this run of a loop.
        self._received = 0
        self._run = 0

    def __iter__(self) -> Iterator[Any]:
        self.last = False
        self._run = 0
        return self

    def __next__(self) -> Any:
        if self.last:
            raise StopIteration
        while not self._pending:
            came = self._next()
            if came is None:
                raise StopIteration
            self._pending.extend(self._messages(came))
        return self._pop()

    def rounds(self) -> Iterator[int]:
        """Return an iterator over the rounds of the loop whose edge leads back to this port: 1, 2, and so on. In each,
        send a message into the loop, and take the one that comes back: ``next(port)``.
        """
        if self._rounds is None or not self._rounds.feedback:
            raise GraphError(f"port {self.name!r} is in no loop: no edge leads back to it; use Graph.feedback")
        iter(self)
        number = 0
        while not self.last:
            number += 1
            yield number

    def _next(self) -> NativeTable | None:
        """Return the next message in native form."""
        self._used = True
        if self._own is not None and self._own._sent <= self._received:
            raise GraphError(
                f"port {self.name!r} brings round {self._received + 1} of a loop, but this copy has sent only "
                f"{self._own._sent} messages on port {self._own.name!r}: send before you receive"
            )
        # One that is given every message receives none.
        assert isinstance(self._copy, NativeCopy)
        came = self._copy.receive(self._port)
        return None if came is None else came[1]

    def _messages(self, came: NativeTable) -> list[Any]:
        """Return the messages in received data."""
        messages = decode(came)
        rounds = self._rounds
        if rounds is None:
            return messages
        table = messages[0] if messages and isinstance(messages[0], Table) else None
        if table is None:
            return [messages] if rounds.lists else messages
        return [table.slice(row, 1) for row in range(len(table))] if rounds.rows and rounds.feedback else messages

    def _pop(self) -> Any:
        """Return the next message of those that have come."""
        message = self._pending.popleft()
        self._received += 1
        self._run += 1
        rounds = self._rounds
        if rounds is not None and rounds.feedback:
            over = rounds.until is not None and bool(rounds.until(message))
            self.last = over or self._run == rounds.limit
        return message

    def __repr__(self) -> str:
        return f"<input {self.name!r} of task {self._copy.task!r}, copy {self._copy.copy}>"


class Output:
    """An output port of a running copy. It ends when the function returns.

    Attributes
    ----------
    name : str
    """

    def __init__(self, copy: NativeCopy | NativeStreamCopy, port: int, name: str, kind: str) -> None:
        self.name = name
        self._copy = copy
        self._port = port
        self._kind = kind
        #: What is to be done when the function has returned; None where it is done at once.
        self._held: list[Callable[[], None]] | None = None
        #: Whether the function has sent anything.
        self._used = False
        self._sent = 0
        #: Inputs of the task that it leads back to.
        self._back: list[Input] = []
        #: Of a source with a communicator, where the graph makes checkpoints: what streams in it send.
        self._streams: TaskStreams | None = None

    def send(self, message: Any) -> None:
        """Send a message on all edges that begin here; wait while a receiver's queue is full.

        Parameters
        ----------
        message : object
            For a port of tables, any object with the Arrow PyCapsule interface (not copied), a `Table`, or a dict of
            columns. For a port of arrays, an array of numbers (copied). Otherwise any object that can be pickled.

        Raises
        ------
        GraphError
            If the message does not match the port's schema; the error names the column.
        """
        table = encode_one(self._kind, message)
        if self._streams is not None:
            self._streams.check_send()
        self._sent += 1
        for port in self._back:
            if self._sent - port._received > AHEAD_MAX:
                raise GraphError(
                    f"port {self.name!r} has sent {self._sent} messages into a loop, but only {port._received} were "
                    f"received from port {port.name!r}; receive what comes back before you send on: at most {AHEAD_MAX} "
                    "messages may be under way"
                )
        self._do(lambda: self._copy.send(self._port, table))

    @property
    def wanted(self) -> bool:
        """True if any receiver still accepts messages: an unbounded source should end when none does."""
        return self._copy.wanted(self._port)

    def flush(self) -> None:
        """Send buffered messages at once; otherwise they wait at most a millisecond for more. The end of the function
        also sends them.
        """
        self._do(lambda: self._copy.flush(self._port))

    def _do(self, work: Callable[[], None]) -> None:
        self._used = True
        if self._held is None:
            _done(work)
        else:
            self._held.append(work)

    def __repr__(self) -> str:
        return f"<output {self.name!r} of task {self._copy.task!r}, copy {self._copy.copy}>"


class Context:
    """Information about a running copy, for its function.

    Attributes
    ----------
    task : str
        Name of the task.
    copy, copies : int
        Number of this copy, from 0, and number of copies.
    worker, workers : int
        The worker it runs on, from 0, and number of workers.
    comm : tidemill.mpi.Intracomm or None
        The communicator of the task's copies, whose ranks are their numbers; for tasks with ``comm=True``.
    state : object
        Of a task with ``each=True``: whatever the function keeps from one message to the next, None at first. `Graph.run`
        returns the last one, and with ``checkpoint=`` it is pickled and saved at every checkpoint.
    """

    state: Any

    def __init__(
        self,
        copy: NativeTaskCopy,
        inputs: Sequence[Input],
        each: bool,
        functions: Functions | None = None,
    ) -> None:
        from tidemill.mpi._comm import Intracomm

        self.task = copy.task
        self.copy = copy.copy
        self.copies = copy.copies
        self.worker = copy.worker
        self.workers = copy.workers
        native = copy.comm()
        self.comm: Intracomm | None = None if native is None else Intracomm._wrap(native, copy.task)
        self._copy = copy
        self._inputs = inputs
        self._each = each
        self._functions = functions
        #: What it has spawned and has to wait for, with some others.
        self._spawned: list[Spawned] = []
        self._spawned_max = _SPAWNED_SPARE
        # A function may spawn from threads of its own.
        self._spawning = threading.Lock()
        self.state = None
        self._position: Any = None

    @property
    def position(self) -> Any:
        """Where a source goes on after a restart: what it has set last, or what the checkpoint has that the graph goes on
        from; None at first.

        Set it to anything that can be pickled, after you have sent what comes before it. After a restart, a source sends the
        same rows again from its position on, in the same order; those that came before the checkpoint are left out.

        Raises
        ------
        GraphError
            If you set it in a task with inputs; where the graph makes checkpoints, also in one with ``comm=True``, whose
            copies would go on from different places.
        """
        return self._position

    @position.setter
    def position(self, value: Any) -> None:
        if self._inputs:
            raise GraphError(
                f"task {self.task!r} is not a source, so it has no position: keep what it needs in context.state",
                self.task,
            )
        if self.comm is not None and isinstance(self._copy, NativeStreamCopy):
            raise GraphError(
                f"task {self.task!r}: with comm=True a copy has no position of its own, because a checkpoint may find copies "
                "at different ones; write a stream, which the graph's checkpoints cover, or send the same rows again from the beginning",
                self.task,
            )
        self._position = value
        if isinstance(self._copy, NativeStreamCopy):
            self._copy.position(pickle.dumps(value, protocol=5))

    @overload
    def spawn(self, what: Graph, *, comm: Intracomm | None = None) -> Future[Result]: ...

    @overload
    def spawn(self, what: Callable[..., Any], *arguments: Any, worker: SupportsIndex | None = None) -> Future[Any]: ...

    def spawn(
        self,
        what: Graph | Callable[..., Any],
        *arguments: Any,
        comm: Intracomm | None = None,
        worker: SupportsIndex | None = None,
    ) -> Future[Any]:
        """Run a graph while the function goes on, on this worker or on the workers of a communicator, or another function on any
        worker.

        Any number may be under way; functions have threads of their own, and graphs share those of the worker's
        exchanges. Functions of spawned graphs may spawn, too. When the function returns, it waits for those whose result
        has not been taken.

        Parameters
        ----------
        what : Graph or callable
            A graph, which is not running, or, in a graph with ``spawns=True``, a function, called as
            ``what(*arguments)``. Where it runs it can run queries and graphs on its worker alone; if it returns a graph,
            that is run there. It goes there by pickle, or else by cloudpickle, and so do its arguments; what it returns
            comes by pickle.
        worker : int, optional
            The worker that a function runs on, from 0. By default the one on which the fewest are under way that this
            worker has spawned; among equals they take turns, this worker last.
        comm : tidemill.mpi.Intracomm, optional
            A graph runs on the workers of this communicator: ``context.comm`` of a task with ``comm=True`` and at most
            one copy on each worker, or what is split off it. Collective: every rank builds the graph and spawns it, in
            the same order as others over this communicator; which graphs end first does not matter. By default all
            copies of the graph run on this worker, and nobody else takes part.

        Returns
        -------
        concurrent.futures.Future
            ``result()`` waits, and returns the `Result`, or what the function has returned, or raises the `GraphError`,
            which names the worker of a function: with `comm`, on every rank.

        Raises
        ------
        GraphError
            If graphs are spawned within each other more than 16 deep, or more than 256 graphs and functions run on a
            worker; on every rank of `comm`, also if ranks spawn graphs of different names. If a function cannot be
            pickled, there is no such worker, or the graph has no ``spawns=True``.
        CommError
            If `comm` is not of workers, one rank on each.
        """
        future = self._spawn(what, arguments, comm, worker)
        with self._spawning:
            self._spawned.append(future)
            if len(self._spawned) > self._spawned_max:
                # Each holds what it has returned. At least half must be new before this looks again.
                self._spawned = [future for future in self._spawned if future.owed]
                self._spawned_max = 2 * len(self._spawned) + _SPAWNED_SPARE
        return future

    def _spawn(
        self,
        what: Graph | Callable[..., Any],
        arguments: tuple[Any, ...],
        comm: Intracomm | None,
        worker: SupportsIndex | None,
    ) -> Spawned:
        from tidemill.graph._graph import Graph

        if isinstance(what, Graph):
            if arguments or worker is not None:
                raise GraphError(
                    f"spawn: graph {what.name!r} takes no arguments and no worker=; to run it on another worker, spawn a function "
                    "that returns it",
                    self.task,
                )
            return spawn(what, self._copy, comm)
        if not callable(what):
            raise GraphError(f"spawn: {what!r} is neither a graph nor a function", self.task)
        if comm is not None:
            raise GraphError("spawn: comm= is for graphs; a function runs on one worker", self.task)
        if self._functions is None:
            raise GraphError(
                f"spawn: the workers of this graph do not wait for functions; make it with spawns=True to call {what!r}",
                self.task,
            )
        return self._functions.spawn(what, arguments, worker)

    @property
    def cancelled(self) -> bool:
        """True if the run has been aborted: a long-running function should check this and return."""
        return self._copy.cancelled

    def receive(self) -> tuple[str, Any] | None:
        """Return the next message of any input port, with the port's name; None when all ports have ended.

        If a function reads one port to its end before the others, those wait. If both are fed by the same upstream
        task, that task waits, too, and neither ends: use `receive`.
        """
        if self._each or not isinstance(self._copy, NativeCopy):
            raise GraphError("with each=True, a function is called with every message, and cannot receive any itself")
        for port in self._inputs:
            port._used = True
            if port._pending:
                return port.name, port._pop()
        came = self._copy.receive()
        if came is None:
            return None
        port = self._inputs[came[0]]
        port._pending.extend(port._messages(came[1]))
        return port.name, port._pop()

    def __repr__(self) -> str:
        return f"<task {self.task!r}, copy {self.copy} of {self.copies}, on worker {self.worker}>"


def _workers_of(context: Context) -> list[int]:
    """Return the workers of a task's copies, as far as they can meet, by their numbers in the whole job."""
    if context.comm is not None:
        return context.comm._world_ranks()
    return init().comm._world_ranks() if context.copies == context.workers else [whole().rank]


def collect(rows: Input, context: Context) -> Any:
    """Return the result of a sink without a function: a `Table` of all rows, or a list of messages."""
    tables: list[NativeTable] = []
    messages: list[Any] = []
    for message in rows:
        if isinstance(message, Table):
            tables.append(message._native)
        else:
            messages.append(message)
    assert isinstance(context._copy, NativeCopy)
    empty = context._copy.empty(0)
    return messages if messages or decode(empty) == [] else Table(NativeTable.concat(empty, tables))


def starter(
    function: Callable[..., Any],
    inputs: Sequence[str],
    outputs: Sequence[tuple[str, str]],
    run: TaskRun,
    *,
    each: bool,
    retries: int,
) -> Callable[[NativeCopy | NativeStreamCopy], None]:
    """Return a function that starts a copy's thread; `outputs` are names and kinds, `each` and `retries` as in
    `Graph.compute`.

    The thread is a daemon: a function that never returns must not keep the program from ending.
    """

    def body(copy: NativeCopy | NativeStreamCopy) -> Any:
        ins = [Input(copy, port, name, run.ports.get(name)) for port, name in enumerate(inputs)]
        outs = [Output(copy, port, name, kind) for port, (name, kind) in enumerate(outputs)]
        by_name = {port.name: port for port in ins}
        for out in outs:
            out._back = [by_name[name] for name in run.loops.get(out.name, ())]
            for port in out._back:
                port._own = out if run.own.get(port.name) == out.name else port._own
        context = Context(copy, ins, each, run.functions)
        confine(_workers_of(context))
        if isinstance(copy, NativeStreamCopy):
            value = _go_on(copy, function, ins[0] if each else None, outs, context, run)
        else:
            value = call(ins, outs, context)
        for future in context._spawned:
            if future.owed:
                future.result()
        if run.functions is not None:
            run.functions.left()
        return value

    def call(ins: Sequence[Input], outs: Sequence[Output], context: Context) -> Any:
        ports: list[Input | Output] = [*ins, *outs]
        if each:
            _with_each(function, ins[0], outs, context, retries)
            return context.state
        for again in range(1, retries + 1):
            try:
                return function(*ins, *outs, context)
            except Exception as error:
                # What it has taken is gone, and what it has sent has been seen.
                if context.cancelled or any(port._used for port in ports):
                    raise
                _warn(context, error, again, retries)
        return function(*ins, *outs, context)

    def start(copy: NativeCopy | NativeStreamCopy) -> None:
        name = f"{copy.task}, copy {copy.copy}"
        threading.Thread(target=_run, args=(copy, body, run), name=name, daemon=True).start()

    return start


def service(functions: Functions, run: TaskRun) -> Callable[[NativeCopy | NativeStreamCopy], None]:
    """Return a function that starts the thread of this worker's part in spawned functions."""

    def body(copy: NativeCopy) -> None:
        from tidemill.mpi._comm import Intracomm

        native = copy.comm()
        assert native is not None
        functions.serve(copy, Intracomm._wrap(native, copy.task))

    def start(copy: NativeCopy | NativeStreamCopy) -> None:
        threading.Thread(target=_run, args=(copy, body, run), name=copy.task, daemon=True).start()

    return start


def _go_on(
    copy: NativeStreamCopy,
    function: Callable[..., Any],
    rows: Input | None,
    outs: Sequence[Output],
    context: Context,
    run: TaskRun,
) -> Any:
    """Call a function from a checkpoint on: of a source once, of another task for every message at `rows`, with its state
    told whenever a checkpoint asks for it.
    """
    saved = copy.restored
    restored = None if saved is None else pickle.loads(saved)
    if rows is None and context.comm is not None:
        assert run.saves is not None
        streams = TaskStreams(copy, context.comm, run.saves, restored or {})
        for out in outs:
            out._streams = streams
        enclosing.set(streams)
        return function(*outs, context)
    if rows is None:
        context._position = restored
        return function(*outs, context)
    context.state = restored
    while (asked := copy.next()) is not None:
        (came,) = asked
        if came is None:
            copy.state(pickle.dumps(context.state, protocol=5))
            continue
        for message in rows._messages(came):
            function(message, *outs, context)
        copy.done()
    return context.state


def _with_each(
    function: Callable[..., Any], rows: Input, outs: Sequence[Output], context: Context, retries: int
) -> None:
    """Call a function for every message. If it may be called again, its output is sent only after it has returned."""
    held: list[Callable[[], None]] = []
    for out in outs:
        out._held = held if retries else None
    while (not outs or any(out.wanted for out in outs)) and (came := rows._next()) is not None:
        for place, message in enumerate(rows._messages(came)):
            for again in range(1, retries + 1):
                try:
                    function(message, *outs, context)
                    break
                except Exception as error:
                    if context.cancelled:
                        raise
                    _warn(context, error, again, retries)
                    held.clear()
                    # The function may have changed what it was given.
                    message = rows._messages(came)[place]
            else:
                function(message, *outs, context)
            for work in held:
                _done(work)
            held.clear()


def _done(work: Callable[[], None]) -> None:
    """Perform an operation of a port; raise the original exception if a function of an exchange fails in it."""
    try:
        work()
    except GraphError:
        _reraise()
        raise


def _warn(context: Context, error: Exception, again: int, retries: int) -> None:
    what = f"task {context.task!r}, copy {context.copy} on worker {context.worker} failed ({type(error).__name__}: {error})"
    warnings.warn(f"{what}; calling its function again ({again} of {retries})", RuntimeWarning, stacklevel=3)


def keep(error: BaseException) -> None:
    """Keep the exception of an exchange's function for the sender: native code passes it on only as text."""
    _thread.raised = error


def _reraise() -> None:
    error = getattr(_thread, "raised", None)
    if error is not None:
        _thread.raised = None
        raise error from None


def _run(copy: NativeTaskCopy, body: Callable[[Any], Any], run: TaskRun) -> None:
    enter_task(copy.copies, copy.workers)
    depth.value = run.depth
    if not copy.begin(threading.get_ident()):
        return
    try:
        with entered(run.group):
            _call(copy, body, run)
    except BaseException as error:
        # The run's end may reach the thread by an exception anywhere, once: here the function was over.
        copy.end(told(error), None)


def _call(copy: NativeTaskCopy, body: Callable[[Any], Any], run: TaskRun) -> None:
    try:
        value = body(copy)
        run.seconds[copy.copy] = time.thread_time()
    except BaseException as error:
        copy.end(told(error), None)
    else:
        copy.end(None, value)
