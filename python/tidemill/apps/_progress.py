"""A progress bar for rank 0's terminal, and the time that each phase takes."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Bar", "Phases"]

#: Least time between two drawings.
_EVERY_S = 0.1


class Bar:
    """One line that is drawn over and over on a terminal; nothing elsewhere, so that logs stay short."""

    def __init__(self, shown: bool) -> None:
        # Behind `tidemill run` standard error is a pipe; the launcher says so if a terminal is at its other end.
        columns = os.environ.get("TIDEMILL_TERMINAL", "")
        self.columns = int(columns) if columns.isdigit() else shutil.get_terminal_size().columns
        self.shown = shown and (bool(columns) or sys.stderr.isatty())
        self._last = 0.0
        self._drawn = False

    def update(self, part: float, text: str) -> None:
        """Show that `part` of 1 is done."""
        now = time.monotonic()
        if not self.shown or now - self._last < _EVERY_S:
            return
        self._last = now
        width = max(10, min(40, self.columns - len(text) - 16))
        full = round(min(max(part, 0.0), 1.0) * width)
        line = f"{'█' * full}{'░' * (width - full)} {100 * part:3.0f}% {text}"
        sys.stderr.write("\r" + line[: max(20, self.columns - 8)].ljust(max(20, self.columns - 8)))
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            sys.stderr.write("\r" + " " * max(20, self.columns - 8) + "\r")
            sys.stderr.flush()
            self._drawn = False


class Phases:
    """Seconds of this rank by phase, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the time of a block under `name`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
