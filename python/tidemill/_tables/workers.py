"""Actions of a job: one worker runs a query by itself, or several run it together, each making the same call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from tidemill import _progress
from tidemill._callback import check_outside
from tidemill._collective_errors import fail_together
from tidemill._job import init
from tidemill._tables.engine import engine, new_engine
from tidemill._tables.errors import BadRowsWarning, DataSetError
from tidemill._tables.report import RowReport, remember
from tidemill._tables.table import Table
from tidemill._tidemill import Comm, NativeDataSet, NativeTable

__all__ = [
    "check_alike",
    "collect",
    "collect_first",
    "collect_in_order",
    "collect_local",
    "comm",
    "differing",
    "from_first",
    "made_by_all",
    "reading",
    "report_bad_rows",
    "total_bad_records",
    "warn_of_bad_records",
]

T = TypeVar("T")


def comm() -> Comm | None:
    """Return the job's communicator if the job has several workers."""
    job = init()
    return job.comm if job.size > 1 else None


def check_alike(call: str, **arguments: str) -> None:
    """Raise, on every worker, if their arguments of a call differ; the message names the arguments. Collective."""
    job = init()
    if job.size == 1:
        return
    check_outside(DataSetError)
    difference = differing(job.comm, arguments)
    if difference is not None:
        raise DataSetError(f"{call}: {difference}")


def differing(comm: Any, arguments: Mapping[str, str]) -> str | None:
    """Return in which argument the workers of a communicator differ, the same on all; None if in none. Collective."""
    first, *others = comm.allgather(arguments)
    for worker, given in enumerate(others, 1):
        for name, words in first.items():
            if given[name] != words:
                return f"{name}= is {words} on worker 0 and {given[name]} on worker {worker}; it must be the same on every worker"
    return None


def from_first(make: Callable[[], T], says: Callable[[Exception], str] = str) -> T:
    """Return worker 0's result on every worker; if worker 0 fails, all raise its error, worded by `says`. Collective."""
    job = init()

    def made() -> T | None:
        return make() if job.rank == 0 else None

    found: T = job.comm.bcast(fail_together(job.comm, made, lambda said, _: DataSetError(said), says=says))
    return found


def made_by_all(make: Callable[[], T]) -> T:
    """Return this worker's result. If `make` fails alike on all workers, each raises its own error; if it fails on some,
    all raise an error that says where. Collective.
    """
    caught: list[Exception] = []

    def made() -> T:
        try:
            return make()
        except Exception as failure:
            caught.append(failure)
            raise

    def error(said: str, rank: int | None) -> Exception:
        return caught[0] if rank is None else DataSetError(f"{said} (on worker {rank})")

    return fail_together(init().comm, made, error, says=lambda failure: str(failure) or repr(failure))


def reading() -> AbstractContextManager[Callable[[int, int | None], None] | None]:
    """Show on worker 0's terminal the rows that an action reads, if it takes long. An action must not run inside a
    function of another one.
    """
    check_outside(DataSetError)
    return _progress.reading(shown=init().rank == 0)


def collect(data: NativeDataSet, root: int | None = None) -> Table:
    """Run a query; its rows go to `root`, or to all workers. Collective.

    Raises
    ------
    DataSetError
        On every worker if the query fails; the message says why.
    """
    job = init()
    if root is not None and not 0 <= root < job.size:
        raise DataSetError(f"root={root}: no such worker; the job has {job.size}")
    table = _run(data, "all" if root is None else root)
    report_bad_rows(data)
    return Table(table)


def collect_first(data: NativeDataSet, rows: int) -> Table:
    """Run a query for its first rows, at most `rows`, which worker 0 gets. Collective.

    If the query only filters rows and computes columns, they are the first rows of its source, whatever the number of
    workers; if it mixes rows, they are any rows.
    """
    with reading() as watch:
        table = data.collect_first(engine(), comm(), rows, watch)
    report_bad_rows(data)
    return Table(table.slice(0, rows))


def collect_local(data: NativeDataSet) -> Table:
    """Run a query; every worker keeps the rows that it has produced, spilling to disk those that do not fit in memory.
    Collective.
    """
    with reading() as watch:
        table = data.collect_on(engine(), init().comm, "each", watch)
    report_bad_rows(data)
    return Table(table)


def collect_in_order(data: NativeDataSet, *, alone: bool = False) -> tuple[NativeTable, list[int]]:
    """Run a query; every worker keeps the rows that it has produced, and the number of rows in each partition.
    Collective.

    `alone`: not collective; this worker runs the query by itself and keeps all of its rows.

    If ``data.is_in_order``, partitions follow each other in the order of the source: files sorted by path, and
    positions in them. Which worker has which partition is unspecified; with several threads each has parts from all
    over.
    """
    job = init()
    if alone:
        return data.collect_in_order(new_engine(job, threads=1, workers=1), job._self)
    with reading() as watch:
        table, counts = data.collect_in_order(engine(), job.comm, watch)
    report_bad_rows(data)
    return table, counts


def _run(data: NativeDataSet, to: int | str) -> NativeTable:
    workers = comm()
    with reading() as watch:
        if workers is None:
            return data.collect(engine(), watch)
        return data.collect_on(engine(), workers, to, watch)


def report_bad_rows(data: NativeDataSet) -> None:
    """After an action: count the rows that all workers have left out, and warn on worker 0. Collective."""
    if not data.is_lenient:
        return
    mine = engine().take_bad_rows()
    job = init()
    everybody = [mine] if job.size == 1 else job.comm.allgather(mine)
    skipped = sum(count for count, _ in everybody)
    remember(RowReport(skipped_rows=skipped))
    firsts = [first for _, first in everybody if first is not None]
    if firsts and job.rank == 0:
        file, line, reason = min(firsts)
        rows = "1 row that cannot be read was" if skipped == 1 else f"{skipped} rows that cannot be read were"
        warnings.warn(f"{rows} left out; the first: {file}, line {line}: {reason}", BadRowsWarning, stacklevel=4)


def total_bad_records(count: int, first: str | None) -> tuple[int, str | None]:
    """Add up, after a stream, the records that all workers have left out, and return the first of them. Collective."""
    job = init()
    everybody = [(count, first)] if job.size == 1 else job.comm.allgather((count, first))
    return sum(count for count, _ in everybody), next((first for _, first in everybody if first is not None), None)


def warn_of_bad_records(count: int, first: str | None) -> None:
    """Warn about them, on worker 0."""
    if count and init().rank == 0:
        records = "1 record that is not a row was" if count == 1 else f"{count} records that are not rows were"
        warnings.warn(f"{records} left out; the first: {first}", BadRowsWarning, stacklevel=4)
