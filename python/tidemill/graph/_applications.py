"""A placement of whole programs: each task with a communicator gets a group of workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.graph._errors import GraphError
from tidemill.graph._placement import Plan, TaskInfo, WorkerInfo
from tidemill.graph._result import Result

__all__ = ["Applications"]


class Applications:
    """A placement of a graph whose tasks with ``comm=True`` are programs: each gets a group of workers.

    Programs that do not depend on each other can run at the same time, so they get disjoint groups; the more a program
    has to do, the larger is its group. A program may share the workers of programs that lead to it. If more programs
    can run at the same time than there are workers, the groups overlap. Programs that exchange much are on the same
    workers, or at least on the same host. Copies of other tasks are on the workers of the programs next to them.

    A program without ``parallelism=`` has a copy on each worker of its group; others have as many copies as they say.
    The weight of a program is the time its copies computed, if that was measured; otherwise its ``cores=``, or 1.

    Parameters
    ----------
    measured : Result, optional
        The result of a run of the same graph, with ``share=True``. It has the processor time of functions, without that
        of queries and streams in a program.
    share : bool, default=True
        Whether a program may share the workers of programs that it depends on. Pass False if programs stream to each
        other all the time.

    Raises
    ------
    GraphError
        When it is used, if the programs on a worker need more memory than the worker has.

    Examples
    --------
    >>> import tidemill as tm
    >>> graph = tm.Graph("two")
    >>> first = graph.source("first", lambda out, context: out.send(context.comm.size), comm=True)
    >>> graph.connect(first, graph.sink("second", comm=True), tm.exchange.broadcast())
    >>> graph.plan(tm.graph.Applications())
    {'first': [0], 'second': [0]}
    """

    def __init__(self, measured: Result | None = None, *, share: bool = True) -> None:
        self._measured = measured
        self._share = share

    def __call__(self, tasks: Sequence[TaskInfo], workers: Sequence[WorkerInfo]) -> Plan:
        """Return the plan: for each task, the worker of each of its copies."""
        return _Planner(self._measured, self._share, tasks, workers).plan()


@dataclass
class _Part:
    """A program; or several, of which each begins when the one before has ended, or all run at the same time."""

    names: list[str]
    parts: list[_Part] = field(default_factory=list)
    in_turn: bool = False


class _Planner:
    def __init__(
        self, measured: Result | None, share: bool, tasks: Sequence[TaskInfo], workers: Sequence[WorkerInfo]
    ) -> None:
        self.tasks = {task.name: task for task in tasks}
        self.workers = workers
        self.measured = measured
        self.programs = [task.name for task in tasks if task.program]
        self.groups: dict[str, list[int]] = {}
        #: Of each task, those that it sends to, and how much.
        self.sends: dict[str, dict[str, float]] = {name: {} for name in self.tasks}
        for task in tasks:
            for source in task.sources:
                sent = 1.0 if measured is None else float(measured.traffic.get((source, task.name), 0))
                self.sends[source][task.name] = sent
        self.links: dict[str, dict[str, float]] = {name: self._links(name) for name in self.programs}
        self.reached = {name: self._reached(name) for name in self.programs}
        #: Of each program, those that may have its workers once it has ended.
        self.after: dict[str, set[str]] = self.reached if share else {name: set() for name in self.programs}
        seconds = (
            {} if measured is None else {name: sum(measured.seconds.get(name, {}).values()) for name in self.programs}
        )
        known = [time for time in seconds.values() if time > 0]
        mean = sum(known) / len(known) if known else 1.0
        self.weights = {
            name: seconds.get(name, 0) or (mean if known else self.tasks[name].cores or 1.0) for name in self.programs
        }

    def plan(self) -> Plan:
        if self.programs:
            self._give(self._part(self._in_order()), list(range(len(self.workers))))
        plan = {name: self._copies(self.tasks[name], self.groups[name]) for name in self.programs}
        for name, task in self.tasks.items():
            if not task.program and not task.per_worker:
                plan[name] = self._near(task)
        self._check_memory(plan)
        return {name: plan[name] for name in self.tasks if name in plan}

    # What runs when

    def _reached(self, start: str) -> set[str]:
        """Return the tasks that a task leads to."""
        found: set[str] = set()
        waiting = [start]
        for name in waiting:
            new = self.sends[name].keys() - found
            found |= new
            waiting.extend(new)
        return found

    def _links(self, start: str) -> dict[str, float]:
        """Return the programs that a program sends to, and how much, also by way of tasks that are none."""
        found: dict[str, float] = defaultdict(float)
        waiting = [(target, sent) for target, sent in self.sends[start].items()]
        seen: set[str] = set()
        for name, sent in waiting:
            if name in seen:
                continue
            if self.tasks[name].program:
                found[name] += sent
            else:
                seen.add(name)
                waiting.extend((target, min(sent, more)) for target, more in self.sends[name].items())
        return found

    def _in_order(self) -> list[str]:
        """Return the programs, each behind those that lead to it."""
        return sorted(self.programs, key=lambda name: sum(name in self.reached[other] for other in self.programs))

    def _depends(self, one: str, other: str) -> bool:
        return other in self.after[one] or one in self.after[other]

    def _part(self, names: list[str]) -> _Part:
        """Take programs apart into those that run in turn and those that run at the same time."""
        if len(names) == 1:
            return _Part(names)
        in_turn = _connected(names, lambda one, other: not self._depends(one, other))
        if len(in_turn) > 1:
            return _Part(names, [self._part(part) for part in in_turn], in_turn=True)
        apart = _connected(names, self._depends)
        if len(apart) == 1:
            # Neither: then each chain of programs by itself, which runs in turn.
            apart = self._chains(names)
        return _Part(names, [self._part(part) for part in apart])

    def _chains(self, names: list[str]) -> list[list[str]]:
        chains: list[list[str]] = []
        for name in names:
            chain = next((chain for chain in chains if name in self.after[chain[-1]]), None)
            if chain is None:
                chains.append([name])
            else:
                chain.append(name)
        return chains

    # Who gets how many workers

    def _weight(self, part: _Part) -> float:
        """Return the weight of a part: times of programs in turn add up, cores do not."""
        if not part.parts:
            return self.weights[part.names[0]]
        weights = [self._weight(one) for one in part.parts]
        return max(weights) if part.in_turn and self.measured is None else sum(weights)

    def _least(self, part: _Part) -> int:
        if part.parts:
            least = [self._least(one) for one in part.parts]
            return min(max(least) if part.in_turn else sum(least), len(self.workers))
        task = self.tasks[part.names[0]]
        return 1 if task.per_worker else min(task.copies, len(self.workers))

    def _most(self, part: _Part) -> int:
        if part.parts:
            most = [self._most(one) for one in part.parts]
            return max(most) if part.in_turn else sum(most)
        task = self.tasks[part.names[0]]
        return len(self.workers) if task.per_worker else min(task.copies, len(self.workers))

    def _give(self, part: _Part, workers: list[int]) -> None:
        """Give the programs of a part their groups of these workers."""
        if not part.parts:
            name = part.names[0]
            self.groups[name] = self._chosen([name], min(self._most(part), len(workers)), workers)
        elif part.in_turn:
            for one in part.parts:
                self._give(one, workers)
        elif sum(map(self._least, part.parts)) > len(workers):
            self._share(part.parts, workers)
        else:
            sizes = self._sizes(part.parts, len(workers))
            free = list(workers)
            for one, size in zip(part.parts, sizes, strict=True):
                mine = self._chosen(one.names, size, free)
                free = [worker for worker in free if worker not in mine]
                self._give(one, mine)

    def _sizes(self, parts: list[_Part], workers: int) -> list[int]:
        """Return the size of each part's group: again and again one more for the part that would take longest."""
        sizes = [self._least(part) for part in parts]
        while sum(sizes) < workers:
            growing = [at for at, part in enumerate(parts) if sizes[at] < self._most(part)]
            if not growing:
                break
            sizes[max(growing, key=lambda at: (self._weight(parts[at]) / sizes[at], -at))] += 1
        return sizes

    def _share(self, parts: list[_Part], workers: list[int]) -> None:
        """Give parts that are more than the workers those with the least to do, the heaviest part first."""
        load = dict.fromkeys(workers, 0.0)
        for part in sorted(parts, key=lambda part: -self._weight(part)):
            size = min(self._least(part), len(workers))
            mine = sorted(sorted(workers, key=lambda worker: (load[worker], worker))[:size])
            for worker in mine:
                load[worker] += self._weight(part) / size
            self._give(part, mine)

    # Which workers

    def _chosen(self, names: Iterable[str], size: int, free: list[int]) -> list[int]:
        """Return free workers for programs: near those that they exchange most with, on as few hosts as possible."""
        near = dict.fromkeys(range(len(self.workers)), 0.0)
        for name in names:
            for other, group in self.groups.items():
                sent = self.links[name].get(other, 0.0) + self.links[other].get(name, 0.0)
                for worker in group:
                    near[worker] += sent / len(group)
            # Data weighs more than any traffic.
            homes = {home.split("/")[-1] for copy in self.tasks[name].locations for home in copy}
            for worker, info in enumerate(self.workers):
                near[worker] += 1e18 if info.host in homes else 0.0
        hosts: dict[str, list[int]] = {}
        for worker in free:
            hosts.setdefault(self.workers[worker].host, []).append(worker)
        heat: dict[str, float] = defaultdict(float)
        for worker, info in enumerate(self.workers):
            heat[info.host] += near[worker]

        def rank(host: str) -> tuple[float, bool, int]:
            room = len(hosts[host])
            return -heat[host], room < size, room if room >= size else -room

        mine: list[int] = []
        for host in sorted(hosts, key=rank):
            mine += sorted(hosts[host], key=lambda worker: (-near[worker], worker))
        return sorted(mine[:size])

    def _copies(self, task: TaskInfo, group: list[int]) -> list[int]:
        copies = len(group) * (task.copies // len(self.workers)) if task.per_worker else task.copies
        return [group[copy % len(group)] for copy in range(copies)]

    def _near(self, task: TaskInfo) -> list[int]:
        """Return the workers of the copies of a task that is no program: those of the programs next to it."""
        before = [name for name in self.programs if task.name in self.sends[name]]
        behind = [name for name in self.sends[task.name] if name in self.groups]
        near = sorted({worker for name in before or behind for worker in self.groups[name]})
        near = near or list(range(len(self.workers)))
        found = []
        for copy in range(task.copies):
            homes = {home.split("/")[-1] for home in task.locations[copy]} if copy < len(task.locations) else set()
            home = [worker for worker, info in enumerate(self.workers) if info.host in homes] or near
            found.append(home[copy % len(home)])
        return found

    def _check_memory(self, plan: Plan) -> None:
        for worker, info in enumerate(self.workers):
            here = [name for name, places in plan.items() if worker in places and self.tasks[name].memory_bytes]
            needed = sum(self.tasks[name].memory_bytes * plan[name].count(worker) for name in here)
            if 0 < info.memory_bytes < needed:
                raise GraphError(
                    f"worker {worker} would run {', '.join(here)}, which need {needed} bytes of memory by memory=, but it has "
                    f"{info.memory_bytes}; use more workers, or raise TIDEMILL_MEMORY"
                )


def _connected(names: list[str], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Return the parts that are joined within themselves only, in the order of their first names."""
    parts: list[list[str]] = []
    for name in names:
        mine = [part for part in parts if any(joined(name, other) for other in part)]
        parts = [part for part in parts if part not in mine]
        parts.append([*(other for part in mine for other in part), name])
    return sorted((sorted(part, key=names.index) for part in parts), key=lambda part: names.index(part[0]))
