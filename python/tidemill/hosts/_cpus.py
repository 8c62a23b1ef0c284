"""Groups of processes that have a part of the processors, by cgroups of either version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.hosts._commands import HostsError

__all__ = ["CpuGroup"]

_MOUNTED = Path("/sys/fs/cgroup")
#: The time in which a group may use its part, in microseconds: short, so that a slow host is slow and not by turns.
_PERIOD_US = 20_000
#: How long processes that have been killed may take to be gone.
_ENDING_S = 5.0


@dataclass(frozen=True)
class CpuGroup:
    """A group.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    @classmethod
    def made(cls, name: str, cpus: float) -> CpuGroup:
        """Make a group whose processes together get `cpus` processors."""
        parent = _parent()
        if parent is None:
            raise HostsError("cpus= needs cgroups with the cpu controller, and none are mounted below /sys/fs/cgroup")
        folder = parent / name
        try:
            folder.mkdir()
        except OSError as error:
            raise HostsError(
                f"cpus= needs to make cgroups below {parent}: {error}; run as root, or under systemd-run --user --scope -p Delegate=yes"
            ) from None
        group = cls(folder)
        group.limit(cpus)
        return group

    @property
    def files(self) -> list[Path]:
        """Where a process writes 0 to join it."""
        return [self.folder / "cgroup.procs"]

    def limit(self, cpus: float | None) -> None:
        """Set how many processors its processes get; None for all."""
        quota = None if cpus is None else max(1000, round(cpus * _PERIOD_US))
        try:
            if (self.folder / "cpu.max").exists():
                (self.folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")
            else:
                (self.folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self.folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
        except OSError as error:
            self.remove()
            raise HostsError(f"cpus= cannot be set in {self.folder}: {error}") from None

    def joined(self, command: Sequence[str]) -> list[str]:
        """Return the command that joins the group and then is `command`."""
        return ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(self.folder), *command]

    def remove(self) -> None:
        """Remove it. Its processes are about to end."""
        until = time.monotonic() + _ENDING_S
        while self.folder.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.01)


def _parent() -> Path | None:
    """Return the folder of the group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            # In a container the path may be that of the system outside.
            places = [_MOUNTED / name / at for name in ("cpu", controllers) for at in (path.lstrip("/"), ".")]
        elif not controllers:
            places = [_MOUNTED / path.lstrip("/"), _MOUNTED]
        else:
            continue
        for folder in places:
            if (folder / "cgroup.procs").exists() and ("cpu" in controllers or _has_cpu(folder)):
                return folder
    return None


def _has_cpu(folder: Path) -> bool:
    """Return whether groups below one of version 2 can have a part of the processors."""
    controllers = folder / "cgroup.subtree_control"
    return controllers.exists() and "cpu" in controllers.read_text().split()
