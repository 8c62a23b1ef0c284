"""Rows that came too late for a step of a stream, and were left out."""

from __future__ import annotations

import warnings
from collections import Counter

from tidemill._job import init

__all__ = ["LateRowsWarning", "late_rows", "report"]

_late = 0


class LateRowsWarning(UserWarning):
    """Rows of a stream came too late for a step, and were left out; the message says how many for which."""


def report(counts: list[tuple[str, int]]) -> None:
    """After a stream: add up what all workers have left out, by step, and warn of it on worker 0. Collective."""
    global _late
    job = init()
    everybody = [counts] if job.size == 1 else job.comm.allgather(counts)
    by_step: Counter[str] = Counter()
    for step, rows in (count for counts in everybody for count in counts):
        by_step[step] += rows
    _late = by_step.total()
    if _late and job.rank == 0:
        rows = "1 row" if _late == 1 else f"{_late} rows"
        steps = ", ".join(f"{step}: {count}" for step, count in sorted(by_step.items()))
        message = f"{rows} came too late and {'was' if _late == 1 else 'were'} left out ({steps}); wait longer with out_of_order="
        warnings.warn(f"{message}, or take them with late= or late_to=", LateRowsWarning, stacklevel=3)


def late_rows() -> int:
    """Count the rows that the last `DataSet.write_stream` left out because they came too late, on all workers.

    A job that goes on from a checkpoint counts anew.
    """
    return _late
