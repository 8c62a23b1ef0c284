"""Process groups with little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import launched
import pytest

_MOUNTED = Path("/sys/fs/cgroup")


class Group:
    """A separate cgroup, of either version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: The file with the limit.
        self.limit = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"

    def run(self, *args: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run ``tidemill`` in the group, to its end."""
        join = ["sh", "-c", f'echo $$ > "{self._folder}/cgroup.procs" && exec "$@"', "sh"]
        return subprocess.run(
            [*join, sys.executable, "-m", "tidemill", *map(str, args)],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=launched.PATIENCE_S,
        )

    def kills(self) -> int:
        """Return the number of processes that the kernel has killed in the group because of memory."""
        name = "memory.events" if self.limit == "memory.max" else "memory.oom_control"
        words = (line.split() for line in (self._folder / name).read_text().splitlines())
        return next(int(word[1]) for word in words if word[0] == "oom_kill")


def _parents() -> Iterator[Path]:
    """Yield the groups that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield _MOUNTED / path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield _MOUNTED / "memory" / path.lstrip("/")


@contextmanager
def limited(bytes_: int) -> Iterator[Group]:
    """Yield a group whose processes are limited to this many bytes together; skips tests where none can be created."""
    why = "there are no cgroups"
    for parent in _parents():
        folder = parent / f"tidemill-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError as error:
            why = str(error)
            continue
        try:
            try:
                group = Group(folder)
                (folder / group.limit).write_text(str(bytes_))
                # Without swap, since otherwise nothing would be killed.
                for name, value in (("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", str(bytes_))):
                    if (folder / name).exists():
                        (folder / name).write_text(value)
            except OSError as error:
                why = str(error)
                continue
            yield group
            return
        finally:
            launched.wait_until(lambda folder=folder: not (folder / "cgroup.procs").read_text(), "an empty cgroup")  # type: ignore[misc]
            folder.rmdir()
    pytest.skip(f"needs a cgroup with a memory limit, which cannot be made here: {why}")
