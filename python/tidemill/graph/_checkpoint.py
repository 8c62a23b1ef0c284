"""Checkpoints of a graph: which tasks can take part, and what each needs for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidemill.graph._errors import GraphError
from tidemill.graph._rounds import Edge

if TYPE_CHECKING:
    from tidemill.graph._graph import Task

__all__ = ["check_streaming", "has_rounds"]


def check_streaming(tasks: Iterable[Task], edges: Iterable[Edge]) -> None:
    """Check that every task of a graph can go on from a checkpoint."""
    edges = list(edges)
    for edge in edges:
        if edge.feedback:
            raise GraphError(
                f"{edge.name}: a graph with a loop makes no checkpoints: what goes round in it would be lost; run the loop in "
                "a graph that a function spawns, or leave out checkpoint="
            )
    for task in tasks:
        reason = _refused(task, [edge for edge in edges if edge.target[0] == task._index])
        if reason is not None:
            raise GraphError(f"task {task.name!r} cannot take part in checkpoints: {reason}", task.name)


def _refused(task: Task, edges: Sequence[Edge]) -> str | None:
    if task.inputs and not task._each:
        return (
            "its function reads its input by itself, and how far it has come is not known; pass each=True and a function of one "
            "message, which keeps what it needs in context.state"
            + (
                ", and runs queries and solvers on that message; a stream cannot begin in the middle: put it into a source, "
                "together with what leads to it"
            )
            * task._info.program
        )
    if not task.inputs and len(task.outputs) != 1:
        return f"a source has one output port there, not {', '.join(task.outputs)}; use a source for each"
    if task._info.program and task.inputs and not (len(edges) == 1 and edges[0].in_step):
        return (
            "with comm=True its copies talk to each other in the middle of a call, so each has to be called for the same messages; "
            'let one edge lead to it, with broadcast, all_gather or all_reduce by rounds="strict", and, of tables, not all_reduce'
        )
    if task._retries:
        return "a call that failed may have changed what it keeps; leave out retries=, and restart the job"
    return None


def has_rounds(task: Task, tasks: Sequence[Task], edges: Iterable[Edge]) -> bool:
    """Return whether messages are rounds: those that come to a task, or those that leave it if it is a source."""
    if task.inputs:
        return bool(task._run.ports)
    targets = [edge.target for edge in edges if any(source == task._index for source, _ in edge.sources)]
    return any(port in tasks[target]._run.ports for target, port in targets)
