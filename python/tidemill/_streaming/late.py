"""Rows that a step of a stream dropped because they were late or had no time, or because the step was busy."""

from __future__ import annotations

import warnings
from collections import Counter

from tidemill._job import init

__all__ = ["LateRowsWarning", "NoTimeWarning", "SkippedRowsWarning", "total", "warn_of"]


class LateRowsWarning(UserWarning):
    """Rows of a stream came too late for a step and were left out; the message gives their number for each step."""


class NoTimeWarning(UserWarning):
    """Rows of a stream were left out by a step that needs a time, because theirs is null; the message gives their
    number for each step.
    """


class SkippedRowsWarning(UserWarning):
    """Rows of a stream were left out because their windows ended while a step with ``on_busy=`` was busy; the message
    gives their number for each step.
    """


def total(counts: list[tuple[str, int, int, int]]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Add up, after a stream, the late rows, the rows without a time and the skipped rows that all workers have left out, by step.
    Collective.
    """
    job = init()
    everybody = [counts] if job.size == 1 else job.comm.allgather(counts)
    late: Counter[str] = Counter()
    untimed: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for step, rows, without, busy in (count for counts in everybody for count in counts):
        late[step] += rows
        untimed[step] += without
        skipped[step] += busy
    return late, untimed, skipped


def warn_of(late: Counter[str], untimed: Counter[str], skipped: Counter[str]) -> None:
    """Warn about them, on worker 0."""
    if init().rank != 0:
        return
    if late.total():
        message = f"{_told(late.total(), 'came too late and')} left out ({_by_step(late)}); wait longer with max_out_of_orderness="
        warnings.warn(f"{message}, or take them with allowed_lateness= or late_output=", LateRowsWarning, stacklevel=4)
    if skipped.total():
        message = (
            f"{_told(skipped.total(), 'of windows that ended while a step was busy')} left out ({_by_step(skipped)})"
        )
        warnings.warn(message, SkippedRowsWarning, stacklevel=4)
    if untimed.total():
        message = f"{_told(untimed.total(), 'had no time and')} left out ({_by_step(untimed)}); give them one, or filter them out before"
        warnings.warn(message, NoTimeWarning, stacklevel=4)


def _told(rows: int, what: str) -> str:
    return f"1 row {what} was" if rows == 1 else f"{rows} rows {what} were"


def _by_step(counts: Counter[str]) -> str:
    return ", ".join(f"{step}: {count}" for step, count in sorted(counts.items()) if count)
