"""Graphs: tasks, the edges between them, and running them on all workers of the job."""

from __future__ import annotations

import inspect
import math
import operator
import os
import pickle
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tidemill._callback import check_outside, is_task
from tidemill._collective_errors import fail_together
from tidemill._job import Job, current_group, init
from tidemill._tables.checkpoint import Checkpoint, as_checkpoint
from tidemill._tables.engine import bytes_of, engine, memory_budget
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import (
    GraphCheckpoints,
    GraphRunner,
    NativeCopy,
    NativeExchange,
    NativeGraph,
    NativeStreamCopy,
)
from tidemill.graph._applications import Applications
from tidemill.graph._checkpoint import check_streaming, has_rounds
from tidemill.graph._errors import GraphError
from tidemill.graph._functions import SERVICE, Functions
from tidemill.graph._messages import PortType
from tidemill.graph._outbox import Saves
from tidemill.graph._placement import Placement, Plan, TaskInfo, WorkerInfo, checked
from tidemill.graph._result import Result
from tidemill.graph._rounds import Edge, TaskRun, check_end, check_loops, joined
from tidemill.graph._spawn import depth
from tidemill.graph._task import collect, service, starter
from tidemill.graph.exchange import Exchange, direct

__all__ = ["Graph", "Port", "Task"]

#: Of one task.
_MOST_COPIES = (1 << 20) - 1

_runners: WeakKeyDictionary[Job, GraphRunner] = WeakKeyDictionary()
#: Held while a runner is made: a lone worker's graphs may begin at the same time.
_making = threading.Lock()
# A child made by fork has none of its parent's threads.
os.register_at_fork(after_in_child=_runners.clear)


class Port:
    """A port of a task: ``task["name"]``."""

    def __init__(self, task: Task, name: str) -> None:
        self.task = task
        self.name = name

    def __repr__(self) -> str:
        return f"<port {self.name!r} of task {self.task.name!r}>"


class Task:
    """A task of a graph; returned by `Graph.source`, `Graph.compute` and `Graph.sink`.

    Attributes
    ----------
    name : str
    inputs, outputs : list of str
        Names of its ports.
    """

    def __init__(
        self,
        graph: Graph,
        index: int,
        info: TaskInfo,
        inputs: list[str],
        outputs: dict[str, PortType],
        run: TaskRun,
        start: Callable[[NativeCopy | NativeStreamCopy], None],
        each: bool,
        retries: int,
    ) -> None:
        self.name = info.name
        self.inputs = inputs
        self._outputs = outputs
        self._graph = graph
        self._index = index
        self._info = info
        self._run = run
        self._start = start
        self._each = each
        self._retries = retries

    @property
    def outputs(self) -> list[str]:
        """Names of its output ports."""
        return list(self._outputs)

    def __getitem__(self, port: str) -> Port:
        if port not in self.inputs and port not in self._outputs:
            has = ", ".join([*self.inputs, *self._outputs])
            raise GraphError(f"task {self.name!r} has no port {port!r}; it has {has}", self.name)
        return Port(self, port)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


class Graph:
    """A graph of tasks with Python functions; all workers of the job run it together.

    Every worker builds the same graph and calls `run`. Copies of the tasks run on the workers, each on its own thread,
    and exchanges move the messages between them.

    Parameters
    ----------
    name : str, default="graph"
        Name of the graph in messages.
    spawns : bool, default=False
        Whether its functions may spawn functions on any of the workers (`Context.spawn`). Each worker then has a
        thread more while the graph runs. Such a graph makes no checkpoints.

    Examples
    --------
    >>> import tidemill as tm
    >>> graph = tm.Graph("squares")
    >>> def numbers(out, context):
    ...     for n in range(context.copy, 10, context.copies):
    ...         out.send(n)
    >>> def add(numbers, context):
    ...     return sum(n * n for n in numbers)
    >>> source = graph.source("numbers", numbers, parallelism=2)
    >>> total = graph.sink("total", add, parallelism=1)
    >>> graph.connect(source, total, tm.exchange.gather())
    >>> graph.run()["total"]
    {0: 285}
    """

    def __init__(self, name: str = "graph", *, spawns: bool = False) -> None:
        self.name = name
        self._spawns = spawns
        self._native = NativeGraph(name)
        self._tasks: list[Task] = []
        self._edges: list[Edge] = []
        #: Held while it runs: its functions belong to one run.
        self._running = threading.Lock()

    def source(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        schema: object = None,
        outputs: Mapping[str, object] | None = None,
        parallelism: int | None = None,
        per_worker: int = 1,
        cores: float = 0,
        memory: int | str = 0,
        locations: Sequence[Sequence[str]] = (),
        comm: bool = False,
        retries: int = 0,
    ) -> Task:
        """Add a task that only sends; ``function(out, context)`` runs once in every copy.

        Parameters
        ----------
        name : str
            Name of the task, unique within the graph.
        function : callable
            Called with an `Output` for each output port, then a `Context`. Its return value is in the `Result`.
        schema : mapping of str to str, Arrow schema, ``"arrays"`` or ``"objects"``, optional
            Messages of the output port ``"out"``: tables with these columns, arrays, or, by default, any objects.
        outputs : mapping, optional
            Instead of `schema`: the schema of each output port, by name.
        parallelism : int, optional
            Total number of copies.
        per_worker : int, default=1
            Number of copies on every worker, if `parallelism` is not set.
        cores : float
            Cores that a copy needs, for placements that consider them.
        memory : int or str
            Memory that a copy needs, in bytes or such as ``"2GiB"``, for placements that consider it.
        locations : sequence of sequence of str
            For each copy, the hosts that hold its data, by name or as paths such as ``"zone-a/rack-3/host-7"``.
        comm : bool, default=False
            Give the copies a communicator of their own, `Context.comm`, ranked by copy. Copies of one worker communicate
            through its memory.
        retries : int, default=0
            How often to call a copy's function again if it raises an exception before it has received or sent anything,
            for example because it cannot open its input. Not with `comm`.

        Raises
        ------
        GraphError
            If an argument is invalid, or the function does not take these arguments.
        """
        ports = _outputs(name, schema, outputs)
        return self._add(
            name, function, {}, ports, parallelism, per_worker, cores, memory, locations, comm, False, retries
        )

    def compute(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        inputs: Iterable[str] | Mapping[str, object] = ("in",),
        schema: object = None,
        outputs: Mapping[str, object] | None = None,
        parallelism: int | None = None,
        per_worker: int = 1,
        cores: float = 0,
        memory: int | str = 0,
        locations: Sequence[Sequence[str]] = (),
        comm: bool = False,
        each: bool = False,
        retries: int = 0,
    ) -> Task:
        """Add a task that receives and sends; ``function(rows, out, context)`` runs once in every copy.

        Parameters
        ----------
        name, schema, outputs, parallelism, per_worker, cores, memory, locations, comm
            As in `source`.
        function : callable
            Called with an `Input` for each input port, an `Output` for each output port, and a `Context`.
        inputs : iterable of str, or mapping, default=("in",)
            Names of the input ports; or a mapping with the schema of each, or None for any. A mismatch is an error
            before the graph runs.
        each : bool, default=False
            Call the function for every message, ``function(message, out, context)``, instead of once in every copy. The
            task then has one input port, and return values are dropped: the `Result` has what is in `Context.state` at
            the end.
        retries : int, default=0
            As in `source`; with `each`, how often to call the function again with a message for which it raised an
            exception. Its output is then sent only after it has returned, so failed calls send nothing.

        Raises
        ------
        GraphError
            As in `source`.
        """
        ports = _outputs(name, schema, outputs)
        return self._add(
            name,
            function,
            _inputs(inputs),
            ports,
            parallelism,
            per_worker,
            cores,
            memory,
            locations,
            comm,
            each,
            retries,
        )

    def sink(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        *,
        inputs: Iterable[str] | Mapping[str, object] = ("in",),
        parallelism: int | None = None,
        per_worker: int = 1,
        cores: float = 0,
        memory: int | str = 0,
        locations: Sequence[Sequence[str]] = (),
        comm: bool = False,
        each: bool = False,
        retries: int = 0,
    ) -> Task:
        """Add a task that only receives; ``function(rows, context)`` runs once in every copy.

        Parameters
        ----------
        name, inputs, parallelism, per_worker, cores, memory, locations, comm, each, retries
            As in `compute`; with `each`, ``function(message, context)``.
        function : callable, optional
            Called with an `Input` for each input port, and a `Context`. By default the task returns everything it
            receives: a `Table`, or a list of arrays or objects.

        Raises
        ------
        GraphError
            As in `source`.
        """
        if function is None and each:
            raise GraphError(f"task {name!r}: each=True needs a function, which is called with every message", name)
        called = collect if function is None else function
        return self._add(
            name, called, _inputs(inputs), {}, parallelism, per_worker, cores, memory, locations, comm, each, retries
        )

    def connect(
        self, source: Task | Port | Sequence[Task | Port], target: Task | Port, exchange: Exchange | None = None
    ) -> None:
        """Send the output of `source` to `target`.

        An output with several edges sends everything on each; an input with several edges receives from all of them.

        Parameters
        ----------
        source : Task, Port, or sequence of them
            A port, ``task["name"]``, or a task with one output port. Several for exchanges such as
            `tidemill.exchange.join`.
        target : Task or Port
            A port, or a task with one input port.
        exchange : Exchange, optional
            Which copies get which messages; `tidemill.exchange.direct` by default.

        Raises
        ------
        GraphError
            If a port does not exist, or the exchange does not support the port's messages.
        """
        given = [source] if isinstance(source, (Task, Port)) else _listed(source)
        if not given:
            raise GraphError("connect: an edge needs at least one source")
        edge, end, exchange, native = self._edge("connect", given, target, exchange)
        self._native.connect(list(edge.sources), edge.target, native)
        self._edges.append(edge)
        if exchange._arriving is not None:
            end.task._run.ports[end.name] = exchange._arriving

    def feedback(
        self,
        source: Task | Port,
        target: Task | Port,
        exchange: Exchange,
        *,
        until: Callable[[Any], Any] | None = None,
        limit: int | None = None,
    ) -> None:
        """Send the output of `source` back to `target`, a task that leads to it or the same: a loop.

        The copies stay alive from round to round: in each round, their functions send a message, and receive the one
        that comes back. All edges of a loop need ``rounds=``, and the port can have no other edge. A function may run
        the loop several times, with `Input.rounds`, so loops can be nested.

        Parameters
        ----------
        source, target : Task or Port
            As in `connect`.
        exchange : Exchange
            With ``rounds=``, such as ``all_reduce("sum", rounds="strict")``.
        until : callable, optional
            Called at `target` with the result of each round, ``until(round)``; returns True if the loop ends with it.
            All copies must get the same result, from an exchange such as `all_reduce` or `all_gather`, unless there is
            only one copy.
        limit : int, optional
            Maximum number of rounds. At least one edge of every loop needs `until` or `limit`.

        Raises
        ------
        GraphError
            As in `connect`. When the graph runs: if a loop has no end, if an edge of a loop has no ``rounds=``, or if
            no edges lead from `target` to `source`; if a copy sends 64 messages more into a loop than it receives, or
            waits for a round for which it has not sent a message.

        Examples
        --------
        >>> import tidemill as tm
        >>> graph = tm.Graph("halve")
        >>> def halve(rest, out, context):
        ...     number = 1024
        ...     for _ in rest.rounds():
        ...         out.send(number // 2)
        ...         number = next(rest)
        ...     return number
        >>> task = graph.compute("halve", halve, parallelism=1)
        >>> graph.feedback(task, task, tm.exchange.direct(rounds="strict"), until=lambda number: number < 100)
        >>> graph.run()["halve"]
        {0: 64}
        """
        most = check_end(until, limit)
        edge, end, exchange, native = self._edge("feedback", [source], target, exchange)
        if end.task._each:
            raise GraphError(f"{edge.name}: a task with each=True is called for every message, and cannot end a loop")
        if exchange._arriving is None:
            raise GraphError(f"{edge.name}: a feedback edge needs rounds; pass rounds= to the exchange")
        if until is not None and not exchange._to_all and (end.task._info.per_worker or end.task._info.copies > 1):
            raise GraphError(
                f"{edge.name}: until= must see the same round at every copy; use all_reduce, all_gather or broadcast, or "
                "give the task parallelism=1"
            )
        self._native.feedback(edge.sources[0], edge.target, native)
        self._edges.append(edge._replace(feedback=True, ends=until is not None or most is not None))
        end.task._run.ports[end.name] = replace(exchange._arriving, feedback=True, until=until, limit=most)
        if edge.sources[0][0] == edge.target[0] and not exchange._partial:
            end.task._run.own[end.name] = edge.sources[0][1]

    def plan(self, placement: Placement = "round_robin") -> Plan:
        """Return where every copy would run: for each task, the worker of each of its copies. Any worker may call it.

        Before the first `run` of a graph in the job, all workers are assumed to have the memory budget of this one.

        Parameters
        ----------
        placement : str, mapping or callable
            As in `run`.

        Raises
        ------
        GraphError
            If the graph has errors, all of which the message names, or the placement is impossible.
        """
        return dict(self._planned(init(), placement)[1])

    def explain(self, format: str = "text", placement: Placement = "round_robin") -> str:
        """Return the graph and its placement. Any worker may call it.

        The text also names the tree of workers of each broadcast and reduction, and says whether Tidemill chose it. If
        there are several tasks with ``comm=True``, it says which of them share workers.

        Parameters
        ----------
        format : {"text", "dot", "svg"}
            Text for people, Graphviz source, or an image.
        placement : str, mapping or callable
            As in `run`.

        Raises
        ------
        GraphError
            As in `plan`.
        """
        job = init()
        try:
            native, planned = self._planned(job, placement)
            return native.explain(format, _known_workers(job), planned, job.comm)
        except ValueError as error:
            raise GraphError(str(error)) from None

    def run(
        self,
        *,
        placement: Placement = "round_robin",
        share: bool = True,
        checkpoint: Checkpoint | str | Path | None = None,
    ) -> Result:
        """Run the graph to its end. Collective: every worker calls it with the same graph and placement.

        Parameters
        ----------
        placement : str, mapping or callable, default="round_robin"
            ``"round_robin"``: copies are assigned to workers in turn; ``"first_fit"``: to the first worker with enough
            free cores and memory; ``"locality"``: to the hosts of their data, or close to them; ``"applications"``: tasks
            with ``comm=True`` get groups of workers, see `tidemill.graph.Applications`. You can also pass a plan as
            returned by `plan`, or a function ``placement(tasks, workers)`` that computes a plan from lists of
            `TaskInfo` and `WorkerInfo`, the same on every worker.
        share : bool, default=True
            Whether every worker gets the return values of all copies (which must support pickle), or only those of its
            own.
        checkpoint : tidemill.stream.Checkpoint, str or Path, optional
            A folder that all workers share, or the URL of one in an object store. While the graph runs, the positions of
            sources (`Context.position`) and what other functions keep (`Context.state`) are saved there every 10 seconds,
            or every ``interval`` of a `Checkpoint`. If it has a checkpoint, the graph goes on from the last one. All tasks
            but sources have ``each=True``. Streams in sources with ``comm=True`` take part with checkpoints of their own,
            which need no argument.

        Returns
        -------
        Result

        Raises
        ------
        GraphError
            If the graph has errors, before anything runs; or if a task fails, with its traceback, copy and worker. The
            same on every worker. The graph can run again. Also if a task cannot take part in checkpoints, or the graph
            cannot go on from the one that is there.
        WorkerLost, PeerFailed
            If a worker ends during the run.
        """
        if is_task():
            raise GraphError(
                "a task's function cannot run a graph on all workers, because its own graph waits for it; add tasks to its "
                "own graph, run the graph on this worker with context.spawn(graph), or, in a task with comm=True, on the "
                "workers of its copies with tidemill.group(context.comm)"
            )
        check_outside(GraphError)
        job = init()
        if not self._running.acquire(blocking=current_group() is None):
            raise GraphError(
                f"graph {self.name!r} is running already; build a separate graph for each run at the same time"
            )
        try:
            return self._run(job, placement, share, as_checkpoint(checkpoint))
        finally:
            self._running.release()

    def _run(self, job: Job, placement: Placement, share: bool, checkpoint: Checkpoint | None) -> Result:
        with job._running:
            self._agree(job, lambda: self._check(job, placement, checkpoint is not None))
            runner = _runner(job)
            native, planned = self._agree(job, lambda: self._planned(job, placement))
            if self._spawns:
                native, planned = self._with_service(job, native, planned)
            saves = None
            if checkpoint is not None:
                native = native.streaming(
                    [(task._start, has_rounds(task, self._tasks, self._edges)) for task in self._tasks]
                )
                options = partial(checkpoint._native, at_most_once=False, drop_state=[])
                saves = self._agree(job, lambda: GraphCheckpoints(options(), engine()))
            for task in self._tasks:
                task._run.saves = None if checkpoint is None or saves is None else Saves(checkpoint, saves)
            values, report = runner.run(native, planned, saves)
            seconds = {task.name: task._run.seconds for task in self._tasks}
            own = _Outcome(values, seconds, self._sent(report["edges"]))
            outcome = _shared(job, own) if share else own
        by_task, seconds = self._by_task(outcome.values), self._by_task(outcome.seconds)
        return Result(by_task, seconds, self._traffic(outcome), report)

    def _with_service(
        self, job: Job, native: NativeGraph, planned: list[tuple[str, list[int]]]
    ) -> tuple[NativeGraph, list[tuple[str, list[int]]]]:
        """Return the graph and its plan with the task that functions are spawned by."""
        copies = sum(workers.count(job.rank) for _, workers in planned)
        functions = Functions(job.rank, job.size, copies)
        for task in self._tasks:
            task._run.functions = functions
        start = service(functions, TaskRun(group=current_group(), depth=depth.value))
        return native.with_service(SERVICE, start), [*planned, (SERVICE, list(range(job.size)))]

    def _by_task(self, found: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
        return {task.name: dict(sorted(found.get(task.name, {}).items())) for task in self._tasks}

    def _traffic(self, outcome: _Outcome) -> dict[tuple[str, str], int]:
        """Return the bytes that tasks have sent to each other, of each task an equal part to each of its targets."""
        pairs = [(source, edge.target[0]) for edge in self._edges for source, _ in edge.sources]
        edges = Counter(source for source, _ in pairs)
        traffic: Counter[tuple[str, str]] = Counter()
        for source, target in pairs:
            name = self._tasks[source].name
            traffic[name, self._tasks[target].name] += outcome.sent[name] // edges[source]
        return dict(traffic)

    def _sent(self, edges: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Return the bytes that each task has sent on this worker."""
        sent = {}
        for task in self._tasks:
            # Edges of the graph name ports, parts of exchanges name tasks.
            begins = (f"{task.name} -> ", *(f"{task.name}.{port} -> " for port in task.outputs))
            mine = [edge for edge in edges if edge["edge"].startswith(begins)]
            sent[task.name] = sum(edge["local_bytes"] + edge["remote_bytes"] for edge in mine)
        return sent

    def __repr__(self) -> str:
        return f"<tidemill.Graph {self.name!r}: tasks {', '.join(task.name for task in self._tasks)}>"

    def _edge(
        self, what: str, given: Sequence[Task | Port], target: Task | Port, exchange: Exchange | None
    ) -> tuple[Edge, Port, Exchange, NativeExchange]:
        """Return an edge with its target and its exchange, checked."""
        sources = [self._port(what, one, "output") for one in given]
        end = self._port(what, target, "input")
        exchange = direct() if exchange is None else exchange
        name = f"edge {' + '.join(f'{port.task.name}.{port.name}' for port in sources)} -> {end.task.name}.{end.name}"
        if not isinstance(exchange, Exchange):
            raise GraphError(f"{name}: an exchange must come from a function of tidemill.exchange, not {exchange!r}")
        try:
            # Of a join or a union, each source must be one that the exchange can move.
            natives = [exchange._native(port.task._outputs[port.name]) for port in sources]
        except (GraphError, TypeError, ValueError, OverflowError) as error:
            raise GraphError(f"{name}: {error}") from None
        arriving = exchange._arriving
        tables = any(port.task._outputs[port.name].kind == "table" for port in sources)
        # Rows of several rounds may come as one message.
        in_step = arriving is not None and exchange._to_all and not exchange._partial and not (tables and arriving.rows)
        ends = (end.task._index, end.name)
        edge = Edge(tuple((port.task._index, port.name) for port in sources), ends, name, in_step=in_step)
        return edge, end, exchange, natives[0]

    def _check(self, job: Job, placement: Placement, saves: bool) -> None:
        if saves and self._spawns:
            raise GraphError(
                f"graph {self.name!r} has spawns=True, so it cannot make checkpoints, which would not include functions on other "
                "workers; leave out spawns=True or checkpoint="
            )
        if saves:
            check_streaming(self._tasks, self._edges)
        has_loops = any(edge.feedback for edge in self._edges)
        if has_loops:
            check_loops(self._edges, len(self._tasks))
        if not _sizes_programs(placement):
            self._native.check(job.size)
        for task in self._tasks:
            task._run.group, task._run.depth, task._run.seconds = current_group(), depth.value, {}
            task._run.loops = joined(self._edges, task._index) if has_loops else {}

    def _add(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: dict[str, object],
        outputs: dict[str, PortType],
        parallelism: int | None,
        per_worker: int,
        cores: float,
        memory: int | str,
        locations: Sequence[Sequence[str]],
        comm: bool,
        each: bool,
        retries: int,
    ) -> Task:
        try:
            copies = None if parallelism is None else _copies("parallelism", parallelism)
            per = _copies("per_worker", per_worker) if copies is None else 1
            needed = _cores(cores)
            memory_bytes = _memory(memory)
            hosts = _hosts(locations)
            _check_calls(each, retries, comm, list(inputs))
        except GraphError as error:
            raise GraphError(f"task {name!r}: {error}", name) from None
        takes = {}
        for port, schema in inputs.items():
            try:
                takes[port] = None if schema is None else PortType(schema).schema
            except GraphError as error:
                raise GraphError(f"task {name!r}, input port {port!r}: {error}", name) from None
        _check_function(name, function, [*(["message"] if each else inputs), *outputs])
        run = TaskRun()
        kinds = [(port, kind.kind) for port, kind in outputs.items()]
        start = starter(function, list(inputs), kinds, run, each=each, retries=retries)
        index = self._native.add(
            name,
            start,
            list(takes.items()),
            [(port, kind.schema) for port, kind in outputs.items()],
            copies=copies,
            per_worker=per,
            cores=needed,
            memory_bytes=memory_bytes,
            data_hosts=hosts,
            comm=comm,
        )
        info = TaskInfo(name, copies or per, copies is None, needed, memory_bytes, hosts, comm)
        self._tasks.append(Task(self, index, info, list(inputs), outputs, run, start, each, retries))
        return self._tasks[-1]

    def _port(self, what: str, given: Task | Port, side: str) -> Port:
        task = given.task if isinstance(given, Port) else given
        if not isinstance(task, Task) or task._graph is not self:
            raise GraphError(f"{what}: {given!r} is not a task of this graph; use what source, compute and sink return")
        ports = task.outputs if side == "output" else task.inputs
        if isinstance(given, Port):
            if given.name not in ports:
                has = ", ".join(ports) or "none"
                raise GraphError(f"task {task.name!r} has no {side} port {given.name!r}; it has {has}", task.name)
            return given
        if len(ports) != 1:
            has = (
                f"has the {side} ports {', '.join(ports)}; choose one: task[{ports[0]!r}]"
                if ports
                else f"has no {side} port"
            )
            raise GraphError(f"task {task.name!r} {has}", task.name)
        return Port(task, ports[0])

    def _planned(self, job: Job, placement: Placement) -> tuple[NativeGraph, list[tuple[str, list[int]]]]:
        """Return the graph with the copies that a placement gives it, and their workers."""
        workers = _known_workers(job)
        if _sizes_programs(placement) and isinstance(placement, str):
            placement = Applications()
        if isinstance(placement, str):
            try:
                return self._native, self._native.plan(placement, workers)
            except ValueError as error:
                raise GraphError(str(error)) from None
        tasks = [replace(_of_job(task._info, job.size), sources=self._sources(task)) for task in self._tasks]
        if not isinstance(placement, Mapping):
            if not callable(placement):
                raise GraphError(
                    f"placement={placement!r} must be a placement name, a plan, or a function returning a plan"
                )
            infos = [WorkerInfo(rank, *worker) for rank, worker in enumerate(workers)]
            placement = placement(tasks, infos)
        plan = checked(placement, tasks, job.size)
        sizes = [(at, len(chosen)) for at, (task, (_, chosen)) in enumerate(zip(tasks, plan, strict=True)) if chosen]
        changed = [
            (at, size) for at, size in sizes if tasks[at].program and tasks[at].per_worker and size < tasks[at].copies
        ]
        native = self._native.resized(changed) if changed else self._native
        return native, native.plan(plan, workers)

    def _sources(self, task: Task) -> tuple[str, ...]:
        edges = [edge for edge in self._edges if edge.target[0] == task._index and not edge.feedback]
        return tuple(dict.fromkeys(self._tasks[source].name for edge in edges for source, _ in edge.sources))

    def _agree(self, job: Job, make: Callable[[], Any]) -> Any:
        """Return this worker's result if all succeed; otherwise all raise."""

        def says(error: Exception) -> str:
            if isinstance(error, (GraphError, DataSetError)):
                return str(error)
            return f"graph {self.name!r}: the placement failed\n{''.join(traceback.format_exception(error))}".rstrip()

        return fail_together(job.comm, make, _failed, says=says)


def _listed(sources: Any) -> list[Any]:
    return list(sources) if isinstance(sources, (list, tuple)) else [sources]


def _runner(job: Job) -> GraphRunner:
    # Several workers make theirs together: a lock of the process would be held for different groups at each. Their graphs
    # run one at a time.
    with _making if job.size == 1 else nullcontext():
        if job not in _runners:
            _runners[job] = GraphRunner(job.comm, engine())
        return _runners[job]


def _workers(job: Job) -> list[tuple[str, float, int, str | None]]:
    memory = memory_budget(job) or 0
    return [(str(worker["host"]), float(worker["cores"]), memory, worker["location"]) for worker in job.workers]


def _known_workers(job: Job) -> list[tuple[str, float, int, str | None]]:
    runner = _runners.get(job)
    return _workers(job) if runner is None else runner.workers


def _of_job(info: TaskInfo, workers: int) -> TaskInfo:
    return replace(info, copies=info.copies * workers if info.per_worker else info.copies)


def _sizes_programs(placement: Placement) -> bool:
    """Return whether a placement chooses how many copies programs have."""
    return placement == "applications" or isinstance(placement, Applications)


def _copies(what: str, given: Any) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise GraphError(f"{what}={given!r} must be an integer") from None
    if number < 1:
        raise GraphError(f"{what}={number}; a task needs at least one copy")
    if number > _MOST_COPIES:
        raise GraphError(f"{what}={number}; a task has at most {_MOST_COPIES} copies")
    return number


def _cores(given: Any) -> float:
    try:
        cores = math.nan if isinstance(given, (bool, str)) else float(given)
    except TypeError:
        cores = math.nan
    if not 0 <= cores < math.inf:
        raise GraphError(f"cores={given!r} must be a non-negative number of cores")
    return cores


def _memory(given: Any) -> int:
    try:
        found = bytes_of(given) if isinstance(given, str) else operator.index(given)
    except (TypeError, ValueError):
        raise GraphError(f"memory={given!r} must be a size such as 512MiB or 2GiB") from None
    if not 0 <= found < 1 << 64:
        raise GraphError(f"memory={given!r} must be a non-negative number of bytes")
    return found


def _check_calls(each: bool, retries: Any, comm: bool, inputs: list[str]) -> None:
    """Check how often a function is called."""
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise GraphError(f"retries={retries!r} must be a non-negative number of calls")
    if retries and comm:
        raise GraphError(
            f"retries={retries} cannot be combined with comm=True: the other copies would wait for a call that fails here"
        )
    if each and len(inputs) != 1:
        raise GraphError(f"each=True is for one input port, not for {', '.join(inputs)}")


def _hosts(given: Any) -> list[list[str]]:
    """Return the hosts of each copy's data."""
    found = _parts(given)
    hosts = None if found is None else [_parts(one) for one in found]
    made = [] if hosts is None else [one for one in hosts if one is not None]
    if hosts is None or len(made) < len(hosts) or not all(isinstance(host, str) for one in made for host in one):
        raise GraphError(f'locations={given!r} must be a list of hosts per copy, such as [["host1"], ["host2"]]')
    return made


def _parts(given: Any) -> list[Any] | None:
    """Return the items of a sequence; a string, which is a sequence of letters, is rejected."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else None


def _inputs(given: Iterable[str] | Mapping[str, object]) -> dict[str, object]:
    if isinstance(given, Mapping):
        return dict(given)
    names = [given] if isinstance(given, str) else list(given)
    if len(set(names)) < len(names):
        raise GraphError(f"inputs={names}: two ports have the same name")
    return dict.fromkeys(names)


def _outputs(task: str, schema: object, outputs: Mapping[str, object] | None) -> dict[str, PortType]:
    if outputs is not None and schema is not None:
        raise GraphError(f"task {task!r}: pass schema for the only output port, or outputs, but not both", task)
    ports = {}
    for name, given in ({"out": schema} if outputs is None else outputs).items():
        try:
            ports[name] = PortType(given)
        except GraphError as error:
            raise GraphError(f"task {task!r}, output port {name!r}: {error}", task) from None
    return ports


def _check_function(task: str, function: Callable[..., Any], ports: list[str]) -> None:
    """Check that a function takes its ports and the context: otherwise every copy would fail."""
    if not callable(function):
        raise GraphError(f"task {task!r}: {function!r} is not callable", task)
    for one in function, type(function).__call__:
        if inspect.isgeneratorfunction(one) or inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise GraphError(
                f"task {task!r}: its function is a generator or async, so a call would not run it; send with "
                "out.send(message), and return when it is done",
                task,
            )
    try:
        inspect.signature(function).bind(*ports, "context")
    except TypeError as error:
        called = ", ".join([*ports, "context"])
        raise GraphError(f"task {task!r}: its function is called with ({called}), but: {error}", task) from None
    except ValueError:
        pass  # one of C's, which does not say what it takes


def _failed(said: str, rank: int | None) -> GraphError:
    return GraphError(said if rank is None else f"{said} (on worker {rank})")


class _Outcome(NamedTuple):
    """What a run came to, by task: what copies returned, their seconds, and the bytes that they sent."""

    values: dict[str, dict[int, Any]]
    seconds: dict[str, dict[int, float]]
    sent: dict[str, int]


def _shared(job: Job, own: _Outcome) -> _Outcome:
    """Return the outcome of all workers."""

    def says(error: Exception) -> str:
        tasks = ", ".join(own.values)
        return f"what a copy of {tasks} returned cannot be pickled: {error}; return something else, or run(share=False)"

    mine = fail_together(job.comm, lambda: pickle.dumps(tuple(own), protocol=5), _failed, says=says)
    merged = _Outcome({}, {}, Counter())
    for rank, data in enumerate(job.comm.allgather(mine)):
        outcome = own if rank == job.rank else _Outcome(*pickle.loads(data))
        for found, into in (outcome.values, merged.values), (outcome.seconds, merged.seconds):
            for task, copies in found.items():
                into.setdefault(task, {}).update(copies)
        merged.sent.update(outcome.sent)
    return merged
