"""Starts the launcher from tests, and inspects the processes that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

#: Longer than anything takes on the slowest machine; only a hang reaches it.
PATIENCE_S = 120.0


def command(*args: str | Path) -> list[str]:
    """Return the command line of ``tidemill`` with `args`."""
    return [sys.executable, "-m", "tidemill", *map(str, args)]


def start(*args: str | Path, env: Mapping[str, str] | None = None, **more: object) -> subprocess.Popen[bytes]:
    """Start ``tidemill`` with `args`; its output goes to pipes unless `more` says otherwise."""
    options: dict[str, object] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options |= more
    return subprocess.Popen(command(*args), env={**os.environ, **(env or {})}, **options)  # type: ignore[call-overload,no-any-return]


def run(
    *args: str | Path, env: Mapping[str, str] | None = None, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``tidemill`` with `args` to its end."""
    return subprocess.run(
        command(*args),
        env={**os.environ, **(env or {})},
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        cwd=cwd,
    )


def statuses(env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the status of each worker of the streams that run with `env`, from ``tidemill top``."""
    workers: list[dict[str, Any]] = json.loads(run("top", "--json", env=env).stdout)
    return workers


class Output:
    """The output of a process to a pipe, read as it arrives, so that a test can wait for words in it."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._pipe:
            for line in self._pipe:
                self._lines.append(line)

    @property
    def text(self) -> str:
        """Return all complete lines so far."""
        return b"".join(self._lines).decode()

    def whole(self) -> str:
        """Return all of it, once all processes with the pipe have ended."""
        self._reader.join(PATIENCE_S)
        assert not self._reader.is_alive(), f"something still holds the pipe, which has brought: {self.text}"
        return self.text


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for `condition`; if it does not become true, fail with `what` in the message."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"still waiting for: {what}"
        time.sleep(0.01)


def epochs(checkpoint: Path) -> set[Path]:
    """Return the checkpoints in a folder; names with ``#`` are excluded because they are still being written."""
    return {file for file in (checkpoint / "epochs").glob("[0-9]*") if file.name.isdigit()}


def state(pid: int) -> str:
    """Return the state letter of a process, or ``""`` when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return state(pid) not in ("", "Z", "X")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pids_in(folder: Path, count: int) -> list[int]:
    """Wait until `count` processes have written their pids as files in `folder`."""

    def written() -> list[str]:
        return [text for file in folder.glob("*.pid") if (text := file.read_text()).endswith("\n")]

    wait_until(lambda: len(written()) >= count, f"{count} pid files in {folder}")
    return [int(text) for text in written()]
