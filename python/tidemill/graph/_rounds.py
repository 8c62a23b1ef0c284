"""Rounds and loops: what an input port does with the rounds that arrive, and which ports a loop joins."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill._job import Job
from tidemill.graph._errors import GraphError
from tidemill.graph._functions import Functions
from tidemill.graph._outbox import Saves

__all__ = ["AHEAD_MAX", "Edge", "PortRounds", "TaskRun", "check_end", "check_loops", "joined"]

#: Messages that a copy may send into a loop before it receives what they have led to.
AHEAD_MAX = 64


@dataclass
class PortRounds:
    """How what arrives at an input port goes by rounds."""

    #: A round of arrays or objects is a list, one of each source copy; else it is a message.
    lists: bool
    #: A round of a table is a row, else a table.
    rows: bool
    #: Of an edge that leads back: when its loop ends.
    feedback: bool = False
    until: Callable[[Any], Any] | None = None
    limit: int | None = None


@dataclass
class TaskRun:
    """What a task knows when its graph runs, beside its function."""

    ports: dict[str, PortRounds] = field(default_factory=dict)
    #: Output ports, each with the input ports that it leads back to.
    loops: dict[str, list[str]] = field(default_factory=dict)
    #: Input ports that nothing but an output port of the same task leads to directly, which is named.
    own: dict[str, str] = field(default_factory=dict)
    #: Whose workers run it, None for all; and how many graphs deep it was spawned.
    group: Job | None = None
    depth: int = 0
    #: Where the run makes checkpoints, if it does.
    saves: Saves | None = None
    #: This worker's part in functions that copies spawn, if they may.
    functions: Functions | None = None
    #: Processor time of the functions of this worker's copies.
    seconds: dict[int, float] = field(default_factory=dict)


class Edge(NamedTuple):
    """An edge, by numbers of tasks and names of ports."""

    sources: tuple[tuple[int, str], ...]
    target: tuple[int, str]
    name: str
    feedback: bool = False
    ends: bool = False
    #: Whether every copy of the target gets a message for each round.
    in_step: bool = False


def check_end(until: Any, limit: Any) -> int | None:
    """Return the limit of a loop, checked as `until` is."""
    if until is not None and not callable(until):
        raise GraphError(f"until={until!r} must be a function of a round that returns whether the loop is over")
    if limit is None:
        return None
    try:
        rounds = operator.index(limit)
    except TypeError:
        raise GraphError(f"limit={limit!r} must be a number of rounds") from None
    if rounds < 1:
        raise GraphError(f"limit={rounds}: a loop has at least one round")
    return rounds


def check_loops(edges: Iterable[Edge], tasks: int) -> None:
    """Check that every loop has an end."""
    edges = list(edges)
    reached = [_reached(edges, task) for task in range(tasks)]
    ending = [edge.target[0] for edge in edges if edge.ends]
    for edge in edges:
        start = edge.target[0]
        if edge.feedback and not any(
            task == start or (task in reached[start] and start in reached[task]) for task in ending
        ):
            raise GraphError(
                f"{edge.name}: this loop has no end; pass until=, a function of a round, or limit=, a number of rounds, to "
                "feedback"
            )


def joined(edges: Iterable[Edge], task: int) -> dict[str, list[str]]:
    """Return the output ports of a task, each with the input ports that it leads back to, not through the task itself."""
    edges = list(edges)
    found = {}
    for port in dict.fromkeys(port for edge in edges for source, port in edge.sources if source == task):
        seen: set[int] = set()
        targets = [edge.target for edge in edges if (task, port) in edge.sources]
        back = []
        for target, entry in targets:
            if target == task:
                back.append(entry)
            elif target not in seen:
                seen.add(target)
                targets.extend(edge.target for edge in edges if any(source == target for source, _ in edge.sources))
        found[port] = list(dict.fromkeys(back))
    return {port: back for port, back in found.items() if back}


def _reached(edges: list[Edge], start: int) -> set[int]:
    """Return the tasks that a task leads to."""
    reached: set[int] = set()
    waiting = [start]
    while waiting:
        task = waiting.pop()
        for edge in edges:
            if edge.target[0] not in reached and any(source == task for source, _ in edge.sources):
                reached.add(edge.target[0])
                waiting.append(edge.target[0])
    return reached
