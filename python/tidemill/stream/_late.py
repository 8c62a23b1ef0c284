"""Rows that came too late for a step of a stream, or had no time, and were left out."""

from __future__ import annotations

import warnings
from collections import Counter

from tidemill._job import init

__all__ = ["LateRowsWarning", "NoTimeWarning", "late_rows", "report", "rows_without_time"]

_late = 0
_untimed = 0


class LateRowsWarning(UserWarning):
    """Rows of a stream came too late for a step, and were left out; the message says how many for which."""


class NoTimeWarning(UserWarning):
    """Rows of a stream have null as their time, so that a step that goes by it left them out; the message says how many for which."""


def report(counts: list[tuple[str, int, int]]) -> None:
    """After a stream: add up what all workers have left out, by step, and warn of it on worker 0. Collective."""
    global _late, _untimed
    job = init()
    everybody = [counts] if job.size == 1 else job.comm.allgather(counts)
    late: Counter[str] = Counter()
    untimed: Counter[str] = Counter()
    for step, rows, without in (count for counts in everybody for count in counts):
        late[step] += rows
        untimed[step] += without
    _late, _untimed = late.total(), untimed.total()
    if job.rank != 0:
        return
    if _late:
        message = (
            f"{_told(_late, 'came too late and')} left out ({_by_step(late)}); wait longer with max_out_of_orderness="
        )
        warnings.warn(f"{message}, or take them with allowed_lateness= or late_output=", LateRowsWarning, stacklevel=4)
    if _untimed:
        message = f"{_told(_untimed, 'had no time and')} left out ({_by_step(untimed)}); give them one, or filter them out before"
        warnings.warn(message, NoTimeWarning, stacklevel=4)


def _told(rows: int, what: str) -> str:
    return f"1 row {what} was" if rows == 1 else f"{rows} rows {what} were"


def _by_step(counts: Counter[str]) -> str:
    return ", ".join(f"{step}: {count}" for step, count in sorted(counts.items()) if count)


def late_rows() -> int:
    """Count the rows that the last job left out because they came too late, on all workers.

    Those that went to its ``late_output`` are not among them.
    A job that goes on from a checkpoint counts anew.
    """
    return _late


def rows_without_time() -> int:
    """Count the rows that the last job left out because their time is null, on all workers.

    A job that goes on from a checkpoint counts anew.
    """
    return _untimed
