"""Placement: which worker runs which copy; the input of user-defined placements, and checks of their result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.graph._errors import GraphError

__all__ = ["Placement", "Plan", "TaskInfo", "WorkerInfo", "checked"]

#: For each task, the worker of each of its copies.
Plan = dict[str, list[int]]


@dataclass(frozen=True)
class TaskInfo:
    """A task, as a placement function sees it.

    Attributes
    ----------
    name : str
    copies : int
    per_worker : bool
        Whether its copies are on every worker: copy ``i`` on worker ``i % workers``. A placement omits such tasks, or, if
        they are programs, names the workers that they are to have copies on.
    cores : float
    memory_bytes : int
        Resources that a copy needs.
    locations : list of list of str
        For each copy, the hosts that hold its data, by name or as paths. If empty, or shorter than `copies`, the data
        may be anywhere.
    program : bool
        Whether its copies have a communicator.
    sources : tuple of str
        Names of the tasks that its inputs come from, without those of feedback edges.
    """

    name: str
    copies: int
    per_worker: bool
    cores: float
    memory_bytes: int
    locations: list[list[str]]
    program: bool = False
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerInfo:
    """A worker, as a placement function sees it.

    Attributes
    ----------
    rank : int
    host : str
        The same for workers of one host.
    cores : float
        Number of cores it may use.
    memory_bytes : int
        Its memory budget; 0 if there is none.
    location : str or None
        Position of its host in the network, from the outside in, such as ``"zone-a/rack-3/host-7"``, if known.
    """

    rank: int
    host: str
    cores: float
    memory_bytes: int
    location: str | None = None


#: The name of a placement, a plan, or a function that returns one; the same on every worker.
Placement = (
    str | Mapping[str, Sequence[int]] | Callable[[list[TaskInfo], list[WorkerInfo]], Mapping[str, Sequence[int]]]
)


def checked(given: Mapping[str, Sequence[int]], tasks: Sequence[TaskInfo], workers: int) -> list[tuple[str, list[int]]]:
    """Return a plan in the order of the tasks; tasks that are on every worker may be omitted."""
    if not isinstance(given, Mapping):
        raise GraphError(
            f"a placement must return a dict with the workers of each task's copies, not {type(given).__name__}"
        )
    unknown = [name for name in given if name not in {task.name for task in tasks}]
    if unknown:
        names = ", ".join(task.name for task in tasks)
        raise GraphError(f"the plan places {unknown[0]!r}, which is not a task; the tasks are {names}")
    plan = []
    for task in tasks:
        if task.name in given:
            try:
                chosen = [operator.index(worker) for worker in given[task.name]]
            except TypeError:
                raise GraphError(
                    f"the plan gives task {task.name!r} {given[task.name]!r}, which is not a list of workers, such as [0, 1]",
                    task.name,
                ) from None
        elif task.per_worker:
            chosen = [copy % workers for copy in range(task.copies)]
        else:
            raise GraphError(
                f"the plan does not say where the {task.copies} copies of task {task.name!r} run", task.name
            )
        wrong = [worker for worker in chosen if not 0 <= worker < workers]
        if wrong:
            raise GraphError(
                f"the plan puts task {task.name!r} on worker {wrong[0]}, but the last of the workers that the graph runs on is "
                f"{workers - 1}",
                task.name,
            )
        plan.append((task.name, chosen))
    return plan
