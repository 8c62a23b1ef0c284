"""A placement by measurements: the worker that has the most to do shall have as little as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemill.graph._errors import GraphError
from tidemill.graph._placement import Plan, TaskInfo, WorkerInfo
from tidemill.graph._result import Result

__all__ = ["Makespan", "Move"]

#: Improvements that are no more than this part of the makespan are noise of the measurement.
_LEAST_GAIN = 1e-3


@dataclass(frozen=True)
class Move:
    """A copy that should run elsewhere.

    Attributes
    ----------
    task : str
    copy : int
    source, target : int
        The worker that it runs on, and the one that it should run on.
    gain_s : float
        Estimated seconds by which the run becomes shorter.
    """

    task: str
    copy: int
    source: int
    target: int
    gain_s: float


class Makespan:
    """A placement that minimizes the estimated time of the worker that takes longest, from measurements of a run.

    The time of a worker is what its copies computed, over its cores, and at least that of its longest copy; and the
    time in which what they send to other workers and receive from them crosses the network. Copies are placed in the order
    of their times, longest first, each where it adds least; then single copies move as long as that improves the result.

    Parameters
    ----------
    measured : Result
        Of a run of the same graph, with ``share=True``. Copies that it does not know count as the mean of their task.
    host_bytes_per_s, network_bytes_per_s : float
        Throughput between workers of one host, and of different hosts.

    Raises
    ------
    GraphError
        If a throughput is not positive.

    Notes
    -----
    Source of the order: Graham, "Bounds on multiprocessing timing anomalies" (1969). The copies of a task that is on every
    worker stay where they are.

    Examples
    --------
    >>> import tidemill as tm
    >>> graph = tm.Graph("measured")
    >>> source = graph.source("numbers", lambda out, context: out.send(1), parallelism=1)
    >>> graph.connect(source, graph.sink("sum", parallelism=1))
    >>> faster = tm.graph.Makespan(graph.run())
    >>> graph.plan(faster)
    {'numbers': [0], 'sum': [0]}
    """

    def __init__(self, measured: Result, *, host_bytes_per_s: float = 4e9, network_bytes_per_s: float = 1e9) -> None:
        for name, given in ("host_bytes_per_s", host_bytes_per_s), ("network_bytes_per_s", network_bytes_per_s):
            if not given > 0:
                raise GraphError(f"Makespan: {name}={given!r} must be more than 0 bytes a second")
        self._measured = measured
        self._host_s = 1 / host_bytes_per_s
        self._network_s = 1 / network_bytes_per_s

    def __call__(self, tasks: Sequence[TaskInfo], workers: Sequence[WorkerInfo]) -> Plan:
        """Return the plan: for each task, the worker of each of its copies."""
        estimate = _Estimate(self, tasks, workers)
        fixed = {task.name for task in tasks if task.per_worker}
        for name in fixed:
            for number in range(estimate.copies[name]):
                estimate.put((name, number), number % len(workers))
        free = [copy for copy in estimate.seconds if copy[0] not in fixed]
        for copy in sorted(free, key=lambda copy: (-estimate.seconds[copy], copy)):
            estimate.put(copy, estimate.best(copy)[1])
        for _ in self._improvements(estimate, fixed):
            pass
        return {task.name: [estimate.place[task.name, number] for number in range(task.copies)] for task in tasks}

    def moves(
        self,
        plan: Mapping[str, Sequence[int]],
        tasks: Sequence[TaskInfo],
        workers: Sequence[WorkerInfo],
        limit: int = 8,
    ) -> list[Move]:
        """Return the moves of single copies, at most `limit`, that improve a plan most, one after the other.

        Parameters
        ----------
        plan : mapping of str to sequence of int
            Where the copies run, such as `Graph.plan` returns it.
        tasks, workers : sequence
            As a placement function gets them.
        limit : int, default=8
        """
        estimate = _Estimate(self, tasks, workers)
        for task, places in plan.items():
            for number, worker in enumerate(places):
                estimate.put((task, number), worker)
        found = []
        for move in self._improvements(estimate, {task.name for task in tasks if task.per_worker}):
            found.append(move)
            if len(found) == limit:
                break
        return found

    @staticmethod
    def _improvements(estimate: _Estimate, fixed: set[str]) -> Iterator[Move]:
        """Move the copy whose move helps most, again and again."""
        while True:
            before = estimate.makespan()
            slowest = max(range(len(estimate.workers)), key=estimate.time)
            best: tuple[float, tuple[str, int], int] | None = None
            for copy in [copy for copy, worker in estimate.place.items() if worker == slowest and copy[0] not in fixed]:
                estimate.take(copy)
                after, worker = estimate.best(copy)
                estimate.put(copy, slowest)
                if best is None or after < best[0]:
                    best = after, copy, worker
            if best is None or before - best[0] <= _LEAST_GAIN * before:
                return
            after, copy, worker = best
            estimate.take(copy)
            estimate.put(copy, worker)
            yield Move(*copy, slowest, worker, before - after)


class _Estimate:
    """What a plan comes to, kept up to date while copies are put and taken."""

    def __init__(self, model: Makespan, tasks: Sequence[TaskInfo], workers: Sequence[WorkerInfo]) -> None:
        self.model = model
        self.workers = workers
        self.copies = {task.name: task.copies for task in tasks}
        self.place: dict[tuple[str, int], int] = {}
        measured = model._measured
        self.seconds: dict[tuple[str, int], float] = {}
        for name, copies in self.copies.items():
            known = measured.seconds.get(name, {})
            mean = sum(known.values()) / len(known) if known else 0.0
            self.seconds.update({(name, copy): known.get(copy, mean) for copy in range(copies)})
        #: Of each copy, the others that it exchanges bytes with, and how many.
        self.traffic: dict[tuple[str, int], dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
        for (source, target), sent in measured.traffic.items():
            if source not in self.copies or target not in self.copies:
                continue
            share = sent / (self.copies[source] * self.copies[target])
            for one in range(self.copies[source]):
                for other in range(self.copies[target]):
                    self.traffic[source, one][target, other] += share
                    self.traffic[target, other][source, one] += share

    def put(self, copy: tuple[str, int], worker: int) -> None:
        self.place[copy] = worker

    def take(self, copy: tuple[str, int]) -> None:
        del self.place[copy]

    def time(self, worker: int) -> float:
        """Return the seconds that a worker takes."""
        mine = [copy for copy, at in self.place.items() if at == worker]
        computing = [self.seconds[copy] for copy in mine]
        crossing = 0.0
        for copy in mine:
            for other, sent in self.traffic[copy].items():
                at = self.place.get(other, worker)
                if at != worker:
                    here, there = self.workers[worker], self.workers[at]
                    crossing += sent * (self.model._host_s if here.host == there.host else self.model._network_s)
        cores = max(self.workers[worker].cores, 1)
        return max(sum(computing) / cores, *computing, 0.0) + crossing if computing else 0.0

    def makespan(self) -> float:
        return max(self.time(worker) for worker in range(len(self.workers)))

    def best(self, copy: tuple[str, int]) -> tuple[float, int]:
        """Return the least makespan with one more copy, and the worker to put it on: of equal ones, that with least to do."""
        found = []
        for worker in range(len(self.workers)):
            self.put(copy, worker)
            found.append((self.makespan(), self.time(worker), worker))
            self.take(copy)
        after, _, worker = min(found)
        return after, worker
