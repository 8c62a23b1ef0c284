"""What the controller of a stream may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tidemill._tables.durations import Duration, seconds
from tidemill._tables.errors import DataSetError

__all__ = ["Controller", "ControllerMode", "as_controller"]

#: The mode of a stream's controller: do nothing, recommend moves of buckets, or carry them out.
ControllerMode: TypeAlias = Literal["off", "advise", "on"]


@dataclass(frozen=True)
class Controller:
    """What a stream does about hosts and links that slow it down, for ``controller=`` of `DataSet.write_stream`.

    A mode alone, such as ``"on"``, stands for ``Controller("on")``.

    Parameters
    ----------
    mode : {"off", "advise", "on"}, default="on"
        Whether the job says nothing, says which keys to move to other workers (``tidemill top --why``), or moves them
        itself, and moves them back if that did not help.
    interval : str, number of seconds or timedelta, default="10s"
        Minimum time between two moves.
    actions_per_hour : int, default=20
        Maximum number of moves per hour, including moves back. Moves before a restart of the job count, too.
    state_bytes : int, optional
        Maximum bytes of state that one move may transfer; by default there is no limit.

    Raises
    ------
    DataSetError
        If an option is invalid, such as ``mode="maybe"``.

    Examples
    --------
    >>> import tidemill as tm
    >>> tm.stream.Controller("on", interval="1m", state_bytes=100 * 2**20)
    Controller(mode='on', interval='1m', actions_per_hour=20, state_bytes=104857600)
    """

    mode: ControllerMode = "on"
    interval: Duration = "10s"
    actions_per_hour: int = 20
    state_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(ControllerMode):
            raise DataSetError(f"controller={self.mode!r} is not {' or '.join(map(repr, get_args(ControllerMode)))}")
        seconds(self.interval, "interval")
        for name, value in ("actions_per_hour", self.actions_per_hour), ("state_bytes", self.state_bytes):
            if value is None and name == "state_bytes":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise DataSetError(f"{name}={value!r} must be an integer that is not negative")

    def _native(self) -> dict[str, Any]:
        """Return the options as the engine takes them, times in seconds."""
        return {
            "mode": self.mode,
            "interval": seconds(self.interval, "interval"),
            "actions_per_hour": self.actions_per_hour,
            "state_bytes": self.state_bytes,
        }


def as_controller(given: Controller | ControllerMode) -> Controller:
    """Return the argument ``controller=`` as a `Controller`: a mode alone has the default limits."""
    return given if isinstance(given, Controller) else Controller(given)
