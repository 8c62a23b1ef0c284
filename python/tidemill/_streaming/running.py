"""A stream that runs, as the program sees it that watches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeRunning

__all__ = ["Move", "Running"]


@dataclass(frozen=True)
class Move:
    """What has come of a `Running.rebalance`.

    Attributes
    ----------
    task : str
    done : bool
        Whether it is over; else it is under way, and nothing else is known.
    error : str or None
        Why it was refused.
    epoch, buckets, moved_bytes : int
        The checkpoint at which buckets moved, how many, and how much state of theirs.
    waited_s : float
        The longest that one of the task's copies took no rows, in seconds.
    """

    task: str
    done: bool = False
    error: str | None = None
    epoch: int = 0
    buckets: int = 0
    moved_bytes: int = 0
    waited_s: float = 0.0


class Running:
    """A stream that runs. The keys of its rows are dealt to *buckets* by their hash, and buckets to copies of tasks."""

    def __init__(self, native: NativeRunning, copies: int) -> None:
        self._native = native
        # No task has more.
        self._copies = copies

    @property
    def owners(self) -> dict[str, list[int]]:
        """By task with keys, the copy that owns each bucket; of those that are moving, the new owner."""
        return self._native.owners()

    @property
    def moves(self) -> list[Move]:
        """Every rebalance that has been asked for, in their order."""
        found = []
        for task, error, moved in self._native.outcomes():
            if moved is None:
                found.append(Move(task, done=error is not None, error=error))
            else:
                found.append(
                    Move(task, True, None, moved["epoch"], moved["buckets"], moved["bytes"], moved["waited_s"])
                )
        return found

    def rebalance(self, task: str, owners: Sequence[int]) -> None:
        """Move buckets of a task, and what is kept of their keys, to other copies while the stream goes on.

        Nothing is lost or counted twice, and rows of a key stay in their order. `moves` says what comes of it.

        Parameters
        ----------
        task : str
            One of `owners`.
        owners : sequence of int
            The copy that is to own each bucket.

        Raises
        ------
        DataSetError
            If there is no such task, or `owners` are not as many copies as there are buckets.
        """
        now = self.owners.get(task)
        if now is not None and len(owners) != len(now):
            raise DataSetError(
                f"task {task!r} has {len(now)} buckets, each with an owner, but there are {len(owners)} owners"
            )
        for owner in owners:
            if isinstance(owner, bool) or not isinstance(owner, Integral) or not 0 <= owner < self._copies:
                raise DataSetError(f"{owner!r} is not a copy of task {task!r}; copies are 0 to {self._copies - 1}")
        try:
            self._native.rebalance(task, list(owners))
        except KeyError as error:
            raise DataSetError(str(error.args[0])) from None
