"""A running stream, as seen by the program that monitors it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeRunning

__all__ = ["Move", "Running"]


@dataclass(frozen=True)
class Move:
    """Progress and result of a `Running.rebalance` or `Running.rebalance_all`.

    Attributes
    ----------
    task : str
        The task; of several, their names, separated by commas.
    done : bool
        Whether it is over; while it is not, nothing else is known.
    error : str or None
        Why it was rejected.
    epoch, buckets, moved_bytes : int
        The checkpoint at which buckets moved, their number, and the bytes of their state.
    waited_s : float
        The longest time that a copy accepted no rows, in seconds.
    """

    task: str
    done: bool = False
    error: str | None = None
    epoch: int = 0
    buckets: int = 0
    moved_bytes: int = 0
    waited_s: float = 0.0


class Running:
    """A running stream. Keys are hashed to *buckets*, and buckets are assigned to copies of tasks."""

    def __init__(self, native: NativeRunning, copies: int) -> None:
        self._native = native
        # The number of copies of tasks that do not report theirs.
        self._copies = copies

    @property
    def owners(self) -> dict[str, list[int]]:
        """The copy that owns each bucket, for each task with keys; for buckets on the move, the new owner."""
        return self._native.owners()

    @property
    def moves(self) -> list[Move]:
        """All rebalances requested so far, in order."""
        found = []
        for tasks, error, moved in self._native.outcomes():
            task = ", ".join(tasks)
            if moved is None:
                found.append(Move(task, done=error is not None, error=error))
            else:
                found.append(
                    Move(task, True, None, moved["epoch"], moved["buckets"], moved["bytes"], moved["waited_s"])
                )
        return found

    def rebalance(self, task: str, owners: Sequence[int]) -> None:
        """Move buckets of a task, with the state of their keys, to other copies while the stream runs.

        Nothing is lost or counted twice, and rows of a key stay in order. `moves` shows the progress and the result.

        Parameters
        ----------
        task : str
            One of `owners`.
        owners : sequence of int
            The new owner of each bucket, as the number of a copy.

        Raises
        ------
        DataSetError
            If the task does not exist, or `owners` does not have one copy for each bucket.
        """
        self.rebalance_all({task: owners})

    def rebalance_all(self, owners: Mapping[str, Sequence[int]]) -> None:
        """Move buckets of several tasks at one checkpoint, or of none of them if one is rejected.

        Parameters
        ----------
        owners : mapping of str to sequence of int
            By task, the new owner of each bucket, as for `rebalance`.

        Raises
        ------
        DataSetError
            If a task does not exist, or does not get one copy for each bucket.
        """
        if not owners:
            raise DataSetError("owners must have at least one task")
        for task, of_task in owners.items():
            self._check(task, of_task)
        try:
            self._native.rebalance({task: list(of_task) for task, of_task in owners.items()})
        except KeyError as error:
            raise DataSetError(str(error.args[0])) from None

    def _check(self, task: str, owners: Sequence[int]) -> None:
        """Raise a `DataSetError` if these cannot be the owners of a task's buckets."""
        now = self.owners.get(task)
        if now is not None and len(owners) != len(now):
            raise DataSetError(
                f"task {task!r} has {len(now)} buckets, each with an owner, but there are {len(owners)} owners"
            )
        # Numbers beyond a task's copies are refused when the move is requested; see `moves`.
        copies = max(self._copies, 1 + max(now or (), default=0))
        for owner in owners:
            if isinstance(owner, bool) or not isinstance(owner, Integral) or not 0 <= owner < copies:
                raise DataSetError(f"{owner!r} is not a copy of task {task!r}; copies are 0 to {copies - 1}")
