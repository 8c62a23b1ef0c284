"""Groups of processes that have a part of the processors, by cgroups of either version.

Version 2 lets a group have processes or divide its processors among groups below it, not both. The root of all groups may do both,
and systemd divides it, which root uses. Elsewhere, in a container or a scope that systemd has delegated to a user, what has been
started moves to a group of its own first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.hosts._commands import HostsError, start_time

__all__ = ["CpuGroup"]

_MOUNTED = Path("/sys/fs/cgroup")
#: The group for processes that were in a group which is now divided.
_REST = "tidemill-rest"
#: The scheduling period for limits, in microseconds: short, so that a slow host is evenly slow.
_PERIOD_US = 20_000
#: How long killed processes may take to end.
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
            raise HostsError(
                f"cpus= needs cgroups with the cpu controller, and there are none below {_MOUNTED}; mount them, or, in a container, run that with --privileged"
            )
        _sweep(parent)
        group = cls(parent / name)
        try:
            if (parent / "cgroup.controllers").exists() and not _divides(parent):
                _divide(parent)
            group.folder.mkdir()
        except OSError as error:
            raise HostsError(
                f"cpus= needs to make cgroups below {parent}: {error.strerror}; {_remedy(error, parent)}"
            ) from None
        try:
            group.limit(cpus)
        except HostsError:
            group.remove()
            raise
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
            raise HostsError(f"cpus= cannot be set in {self.folder}: {error.strerror}") from None

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
    """Return the folder of the group below which this process makes groups."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        # In a container, this may be the path of the system outside.
        at = path.lstrip("/")
        if "cpu" in controllers.split(","):
            places = [_MOUNTED / name / below for name in ("cpu", controllers) for below in (at, ".")]
            for folder in places:
                if (folder / "cgroup.procs").exists():
                    return folder
        elif not controllers and (found := _parent_2(at)):
            return found
    return None


def _parent_2(path: str) -> Path | None:
    """Return the same in version 2: the nearest group that divides its processors, or else that of this process, to be divided."""
    own = [
        folder
        for root in (_MOUNTED, _MOUNTED / "unified")
        for folder in (root / path, root)
        if "cpu" in _words(folder / "cgroup.controllers")
    ]
    for folder in _upwards(own):
        if _divides(folder) and os.access(folder, os.W_OK):
            return folder
    return own[0] if own else None


def _upwards(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        while (folder / "cgroup.procs").exists():
            yield folder
            folder = folder.parent


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _divides(folder: Path) -> bool:
    """Return whether groups below one of version 2 can have a part of the processors."""
    return "cpu" in _words(folder / "cgroup.subtree_control")


def _divide(folder: Path) -> None:
    """Divide this group's processors among groups below it, which requires moving its processes out."""
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        control.write_text("+cpu")
        return
    rest = folder / _REST
    rest.mkdir(exist_ok=True)
    for pid in _words(folder / "cgroup.procs"):
        # Some processes end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            (rest / "cgroup.procs").write_text(pid)
    control.write_text("+cpu")


def _sweep(parent: Path) -> None:
    """Remove empty groups of keepers that were killed, which could not do it themselves."""
    for folder in parent.glob("tidemill-*-*"):
        keeper = re.fullmatch(r"tidemill-(\d+)-\d+", folder.name)
        with contextlib.suppress(OSError):
            if keeper and start_time(int(keeper[1])) is None and not (folder / "cgroup.procs").read_text():
                CpuGroup(folder).remove()


def _remedy(error: OSError, parent: Path) -> str:
    # An ordinary user is root within a user namespace, but does not own root's files.
    if error.errno == errno.EROFS or parent.stat().st_uid == os.geteuid():
        return "run this container with --privileged"
    if (parent / "cgroup.controllers").exists():
        return "make the cluster and run its jobs as root, or in a shell of `systemd-run --user --scope -p Delegate=yes bash`"
    return "make the cluster as root"
