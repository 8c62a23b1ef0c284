"""Work that may fail on one rank only: then all raise, so that nobody waits for one that has left."""

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
    """What `work` returns on this rank, if it has not failed on any. Collective.

    Parameters
    ----------
    comm : communicator
    work : callable
    error : callable
        The exception to raise, of the message of the first rank that has failed and its number; None, if all ranks say the same.
    catches : exception or tuple of them, default=Exception
        What `work` may fail with. Of anything else the others hear as of a program that fails.
    says : callable, default=str
        The message of what it failed with.

    Raises
    ------
    Exception
        On every rank: what `error` makes; where `work` failed, with that as its cause, unless the message shows its traceback.
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
                raise caught  # says it already, and knows where it began
            shown = caught is not None and "".join(traceback.format_tb(caught.__traceback__)) in said
            raise failed from (None if shown else caught)
    return made[0]
