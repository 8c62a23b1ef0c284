"""Marks threads that run a user function for a waiting run: of a query, of a graph.

Such a function runs when and where there are rows for it. It cannot start a collective operation: the other workers
would not join it.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tidemill._errors import TidemillError
from tidemill._job import init
from tidemill._tidemill import end_calls

__all__ = ["check_outside", "confine", "enter_task", "is_task", "lifted", "reach", "run_in_callback"]

# Threads of a run call Python, which none may be doing when the interpreter ends.
atexit.register(end_calls)

_thread = threading.local()


def run_in_callback(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function: during a call, its thread counts as being in `what`, such as "a function of a query"."""

    def call(*arguments: Any) -> Any:
        # On a single worker, a function may run a query that calls another function on the same thread.
        before = getattr(_thread, "what", None)
        _thread.what = what
        try:
            return function(*arguments)
        finally:
            _thread.what = before

    return call


def enter_task(copies: int, workers: int) -> None:
    """Mark the calling thread as that of a task's copy, until the thread ends."""
    _thread.task = True
    # With a copy on every worker, the copies are equivalent to the workers themselves.
    _thread.what = None if copies == workers else "a task that has not one copy on each worker"


def confine(workers: Iterable[int]) -> None:
    """Let the calling thread, until it ends, take part only in groups of these workers, by their numbers in the whole job: on others
    nobody comes to join it.
    """
    _thread.reach = frozenset(workers)


def reach() -> frozenset[int] | None:
    """Return the workers that the calling thread may form groups with, or None for any."""
    return getattr(_thread, "reach", None)


@contextmanager
def lifted() -> Iterator[None]:
    """Let the calling thread start collective operations again: those of a group that it belongs to."""
    before = getattr(_thread, "what", None), is_task()
    _thread.what, _thread.task = None, False
    try:
        yield
    finally:
        _thread.what, _thread.task = before


def is_task() -> bool:
    """Return whether this is the thread of a task's copy."""
    return getattr(_thread, "task", False)


def check_outside(error: type[TidemillError]) -> None:
    """Raise if a call that needs all workers would wait for them forever."""
    what = getattr(_thread, "what", None)
    if what is not None and init().size > 1:
        raise error(
            f"{what} cannot run a query or a graph, which all workers do together; run it before, and use its result there, "
            "or, in a task with comm=True, run it on its workers: with tidemill.group(context.comm)"
        )
