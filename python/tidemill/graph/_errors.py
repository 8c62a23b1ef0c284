"""The exceptions of task graphs."""

from __future__ import annotations

from typing import Any

from tidemill._errors import TidemillError

__all__ = ["Cancelled", "GraphError"]


class GraphError(TidemillError):
    """A graph is invalid, or one of its tasks has failed; the same on every worker.

    Attributes
    ----------
    task : str or None
        The task that failed; None if the error concerns the whole graph.
    copy, worker : int or None
        The copy that failed, and the worker it ran on.
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
    """Raised in a task's function when its run is aborted, because another task failed or the user pressed Ctrl-C.

    It is not an `Exception`, so ``except Exception`` does not catch it. Let it end the function.
    """


for _error in (GraphError, Cancelled):
    _error.__module__ = "tidemill"
