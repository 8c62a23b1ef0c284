"""The exceptions of task graphs."""

from __future__ import annotations

from typing import Any

from tidemill._errors import TidemillError

__all__ = ["Cancelled", "GraphError"]


class GraphError(TidemillError):
    """A graph makes no sense, or one of its tasks has failed; the same on every worker.

    Attributes
    ----------
    task : str or None
        The task that failed; None where the graph as a whole is at fault.
    copy, worker : int or None
        Which of its copies, and the worker it ran on.
    """

    def __init__(
        self, message: str, task: str | None = None, copy: int | None = None, worker: int | None = None
    ) -> None:
        super().__init__(message)
        self.task = task
        self.copy = copy
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.task, self.copy, self.worker)


class Cancelled(BaseException):
    """Raised in a task's function once its run is given up, because another task failed or somebody pressed Ctrl-C.

    No `Exception`: ``except Exception`` lets it pass, as it should. Let it end the function.
    """


for _error in (GraphError, Cancelled):
    _error.__module__ = "tidemill"
