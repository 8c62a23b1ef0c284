"""Location and options of checkpoints."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tidemill._tables.durations import Duration, seconds
from tidemill._tables.errors import DataSetError
from tidemill._tables.places import as_options, at_home

if TYPE_CHECKING:
    from tidemill._tables.places import StorageOptions

__all__ = ["Checkpoint", "as_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """Location and options of checkpoints, for ``checkpoint=`` of `DataSet.write_stream` and `tidemill.Graph.run`.

    A path alone stands for ``Checkpoint(path)``. `tidemill.iterate` takes it, too, but only a folder, `interval` and `keep`.

    Parameters
    ----------
    path : str or Path
        A folder that all workers share, or the URL of one in an object store (``s3://bucket/jobs/mine``).
    interval : str, number of seconds or timedelta, optional
        Time from the start of one checkpoint to the start of the next; more than zero. By default 10 seconds, or 0.1
        seconds with ``guarantee="at_most_once"``, because rows then wait for checkpoints.
    keep : int, default=3
        Number of checkpoints to keep.
    unaligned_after : str, number of seconds or timedelta, or None, default="interval"
        When rows that wait for slow steps hold up a checkpoint for longer than this, the checkpoint overtakes these
        rows and saves them, too. By default as long as `interval`, between 1 and 10 seconds. With ``None``, checkpoints
        never overtake rows.
    timeout : str, number of seconds or timedelta, default="10m"
        A checkpoint that takes longer is abandoned, with a warning; more than zero.
    storage_options : mapping of str to str, optional
        Options of the object store, as in `tidemill.read_csv`. The object's ``repr`` does not show them.

    Raises
    ------
    DataSetError
        If an option is invalid, such as ``keep=0``.

    Examples
    --------
    >>> import tidemill as tm
    >>> tm.stream.Checkpoint("s3://bucket/jobs/mine", interval="30s", keep=5)
    Checkpoint(path='s3://bucket/jobs/mine', interval='30s', keep=5, unaligned_after='interval', timeout='10m')
    """

    path: str | Path
    interval: Duration | None = None
    keep: int = 3
    unaligned_after: Duration | Literal["interval"] | None = "interval"
    timeout: Duration = "10m"
    storage_options: StorageOptions | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(f"a checkpoint's path must be a folder or the URL of one, not {self.path!r}")
        if not os.fspath(self.path):
            raise DataSetError("a checkpoint's path must not be empty: give a folder or the URL of one")
        if isinstance(self.keep, bool) or not isinstance(self.keep, int) or self.keep < 1:
            raise DataSetError(f"keep={self.keep!r} must be a positive integer")
        if self.interval is not None and seconds(self.interval, "interval") == 0:
            raise DataSetError(f'interval={self.interval!r} must be greater than zero, for example "1s"')
        if self.unaligned_after is not None and self.unaligned_after != "interval":
            seconds(self.unaligned_after, "unaligned_after")
        if seconds(self.timeout, "timeout") == 0:
            raise DataSetError(f'timeout={self.timeout!r} must be greater than zero, for example "10m"')

    def _native(self, *, at_most_once: bool, drop_state: list[str]) -> dict[str, Any]:
        """Return the settings as the engine takes them, times in seconds."""
        default_s = 0.1 if at_most_once else 10.0
        interval_s = default_s if self.interval is None else seconds(self.interval, "interval")
        unaligned_s: float | None = None
        if self.unaligned_after == "interval":
            unaligned_s = min(10.0, max(interval_s, 1.0))
        elif self.unaligned_after is not None:
            unaligned_s = seconds(self.unaligned_after, "unaligned_after")
        return {
            "place": at_home(self.path),
            "storage_options": as_options(self.storage_options),
            "every": interval_s,
            "unaligned_after": unaligned_s,
            "timeout": seconds(self.timeout, "timeout"),
            "keep": self.keep,
            "at_most_once": at_most_once,
            "forget": drop_state,
        }


def as_checkpoint(given: Checkpoint | str | Path | None) -> Checkpoint | None:
    """Return the argument ``checkpoint=`` as a `Checkpoint`: a path alone has the default options."""
    if given is None or isinstance(given, Checkpoint):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"checkpoint= must be a folder, the URL of one, or a tm.stream.Checkpoint, not {given!r}")
    return Checkpoint(given)
