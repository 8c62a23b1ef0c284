"""Counts of the rows that the last action or stream dropped."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RowReport", "last_report", "remember"]


@dataclass(frozen=True)
class RowReport:
    """Number of rows that an action or a stream left out, on all workers; returned by `last_report`.

    A job that resumes from a checkpoint starts again from 0.

    Attributes
    ----------
    skipped_rows : int
        Rows and records that could not be read, with ``on_error="skip"`` or ``"quarantine"``. Each action reads its
        files again, and counts their bad rows again.
    late_rows : int
        Rows of a stream that came too late for a step. Those that went to ``late_output`` are not counted.
    rows_without_time : int
        Rows of a stream that a step left out because their time is null.
    rows_while_busy : int
        Rows of a stream whose windows ended while a step with ``on_busy=`` was busy.
    """

    skipped_rows: int = 0
    late_rows: int = 0
    rows_without_time: int = 0
    rows_while_busy: int = 0


_last = RowReport()


def last_report() -> RowReport:
    """Return how many rows the last stream, or the last action over files with ``on_error=``, left out; the same on every worker.

    Before the first of them all counts are 0.

    Examples
    --------
    >>> import tidemill as tm
    >>> numbers = tm.stream.from_table(tm.from_dict({"n": [1, 2]}).collect())
    >>> _ = numbers.write_stream(lambda table: None)
    >>> tm.last_report()
    RowReport(skipped_rows=0, late_rows=0, rows_without_time=0, rows_while_busy=0)
    """
    return _last


def remember(report: RowReport) -> None:
    """Store a report as the last one."""
    global _last
    _last = report
