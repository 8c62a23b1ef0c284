"""The exceptions of task graphs."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from tidemill._errors import TidemillError

__all__ = ["Cancelled", "GraphError", "told"]

_PACKAGE = str(Path(__file__).absolute().parent)


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


def told(error: BaseException) -> str:
    """Return an exception in one line, and its location below, starting in the user's code."""
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    where: TracebackType | None = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        where = where.tb_next
    if isinstance(error, GraphError) and "\n" in summary:
        # It has come from another graph with its location: repeated at each level, it would grow without end.
        return f"{summary}\n{''.join(traceback.format_tb(where))}".rstrip()
    return f"{summary}\n{''.join(traceback.format_exception(type(error), error, where))}".rstrip()


for _error in (GraphError, Cancelled):
    _error.__module__ = "tidemill"
