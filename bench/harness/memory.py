"""How much memory a system holds: the resident size of a process and all its descendants, looked at again and again.

Own pages (anonymous ones) and those of files count in each process, shared memory once. So a library that two workers map
counts twice: what is told is a little more than what is held, never less. Proportional sizes would be exact, but asking for them
stops a process that holds gigabytes for tens of milliseconds.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

LOOK_EVERY_S, TREE_EVERY_S = 0.05, 0.5
LEAST_AVAILABLE_KIB = 700 << 10  # less left on the machine, and the kernel may kill anything


class Watch(threading.Thread):
    """Watches the tree below process `root`, and kills it when `timeout_s` have passed or the machine has no memory left."""

    def __init__(self, root: int, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.peak_kib = 0
        self.own_kib = 0  # anonymous, at its own peak
        self.killed_because = ""
        self._tree: list[int] = [root]
        self._root, self._deadline, self._timeout_s = root, time.monotonic() + timeout_s, timeout_s
        self._stopped = threading.Event()

    def begin(self) -> None:
        """Forgets the peaks so far."""
        self.peak_kib = self.own_kib = 0
        self._tree = descendants(self._root)
        self.look()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        look_at_tree = 0.0
        while not self._stopped.wait(LOOK_EVERY_S):
            now = time.monotonic()
            if now >= look_at_tree:
                look_at_tree = now + TREE_EVERY_S
                self._tree = descendants(self._root)
                if available_kib() < LEAST_AVAILABLE_KIB:
                    self.kill(f"left the machine less than {LEAST_AVAILABLE_KIB >> 10} MiB")
            self.look()
            if now > self._deadline:
                self.kill(f"took longer than {self._timeout_s:.0f} s")

    def look(self) -> None:
        """Notes what is held now."""
        own = files = shared = 0
        for pid in self._tree:
            fields = resident(pid)
            own += fields.get("RssAnon", 0)
            files += fields.get("RssFile", 0)
            shared = max(shared, fields.get("RssShmem", 0))
        self.peak_kib = max(self.peak_kib, own + files + shared)
        self.own_kib = max(self.own_kib, own + shared)

    def kill(self, why: str = "") -> None:
        """Ends the whole tree. Its processes are known from before, when their parents still lived."""
        self.killed_because = self.killed_because or why
        for pid in {*self._tree, *descendants(self._root)} - {os.getpid()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                # The name of a program, in parentheses, may hold anything.
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def resident(pid: int) -> dict[str, int]:
    """The parts of a process's resident size, in KiB; empty when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}


def available_kib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1])
    return 1 << 40
