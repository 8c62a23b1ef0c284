"""The task of a graph with checkpoints that a stream runs in: its checkpoints and the graph's are one."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from tidemill._tables.checkpoint import Checkpoint

__all__ = ["EnclosingTask", "enclosing"]


class EnclosingTask(Protocol):
    """A running copy of such a task."""

    name: str

    def open(self, stream: str, sinks: Sequence[Any]) -> tuple[Checkpoint, list[Any]]:
        """Return where the stream of this name makes its checkpoints, and what stands for its sinks, functions of a table,
        there. Collective over the copies.
        """


#: That of the calling thread, if any.
enclosing: ContextVar[EnclosingTask | None] = ContextVar("tidemill_enclosing", default=None)
