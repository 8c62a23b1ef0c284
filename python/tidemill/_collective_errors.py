"""Work that may fail on only one rank: then all ranks raise, so that none waits for one that has left."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

__all__ = ["fail_together"]

T = TypeVar("T")


class _Comm(Protocol):
    @property
    def size(self) -> int: ...
    def allgather(self, sendobj: Any) -> list[Any]: ...


def fail_together(
    comm: _Comm,
    work: Callable[[], T],
    error: Callable[[str, int | None], Exception],
    *,
    catches: type[Exception] | tuple[type[Exception], ...] = Exception,
    says: Callable[[Any], str] = str,
) -> T:
    """Return the result of `work` on this rank if it failed on no rank. Collective.

    Parameters
    ----------
    comm : communicator
    work : callable
    error : callable
        Takes the message of the first rank that failed, and the number of that rank (None if all ranks failed with the
        same message). Returns the exception to raise.
    catches : exception or tuple of them, default=Exception
        Exceptions of `work` to report. Any other one ends the program, as usual.
    says : callable, default=str
        Turns the exception of `work` into a message.

    Raises
    ------
    Exception
        On every rank: the result of `error`. Where `work` failed, that exception is the cause, unless the message
        contains its traceback.
    """
    made: list[T] = []
    caught: Exception | None = None
    try:
        made.append(work())
    except catches as failure:
        caught = failure
    message = None if caught is None else says(caught)
    messages = [message] if comm.size == 1 else comm.allgather(message)
    for rank, said in enumerate(messages):
        if said is not None:
            failed = error(said, None if all(other == said for other in messages) else rank)
            if caught is not None and (type(caught), str(caught)) == (type(failed), str(failed)):
                raise caught  # already says so, with the original position
            shown = caught is not None and "".join(traceback.format_tb(caught.__traceback__)) in said
            raise failed from (None if shown else caught)
    return made[0]
