"""Progress on worker 0's terminal: a bar, rows read by an action, and the time of each phase."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Bar", "Phases", "reading"]

#: Minimum time between two drawings.
_EVERY_S = 0.1

#: Shorter actions show nothing.
_LONG_S = 1.0


class Bar:
    """A line that is redrawn in place on a terminal; nothing elsewhere, so that logs stay short."""

    def __init__(self, shown: bool) -> None:
        # Under `tidemill run`, standard error is a pipe; the launcher says whether its other end is a terminal.
        columns = os.environ.get("TIDEMILL_TERMINAL", "")
        self.columns = int(columns) if columns.isdigit() else shutil.get_terminal_size().columns
        self.shown = shown and (bool(columns) or sys.stderr.isatty())
        self._last = 0.0
        self._drawn = False

    def update(self, part: float | None, text: str) -> None:
        """Show the completed fraction `part` (0 to 1); None if the total is unknown."""
        now = time.monotonic()
        if not self.shown or now - self._last < _EVERY_S:
            return
        self._last = now
        line = text
        if part is not None:
            width = max(10, min(40, self.columns - len(text) - 16))
            full = round(min(max(part, 0.0), 1.0) * width)
            line = f"{'█' * full}{'░' * (width - full)} {100 * part:3.0f}% {text}"
        sys.stderr.write("\r" + line[: max(20, self.columns - 8)].ljust(max(20, self.columns - 8)))
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            sys.stderr.write("\r" + " " * max(20, self.columns - 8) + "\r")
            sys.stderr.flush()
            self._drawn = False


@contextmanager
def reading(shown: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """Context manager that gives a callback, which shows the rows that an action has read if it takes long. The
    callback takes the rows read and the total, or None.
    """
    bar = Bar(shown)
    if not bar.shown:
        yield None
        return
    begin = time.monotonic()

    def update(rows: int, rows_total: int | None) -> None:
        elapsed_s = time.monotonic() - begin
        if elapsed_s < _LONG_S:
            return
        rate = rows / elapsed_s
        told = f"{_short(rows)} rows read, {_short(rate)} rows/s"
        if not rows_total or not rows:
            bar.update(None, told)
        elif rows < rows_total:
            left_s = (rows_total - rows) / rate
            bar.update(
                rows / rows_total,
                f"{_short(rows)} of {_short(rows_total)} rows, {_short(rate)} rows/s, {_time(left_s)} left",
            )
        else:
            bar.update(1.0, f"{told}; finishing")

    try:
        yield update
    finally:
        bar.clear()


def _short(number: float) -> str:
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:.0f}"


def _time(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole / 3600:.1f} h"


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
