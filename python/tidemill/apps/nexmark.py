"""``tidemill nexmark``: run Nexmark queries over streams on all workers, and compare the answers with DuckDB's.

All workers generate events while a query runs, each from its number, so that every run has the same events.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import tidemill as tm
from tidemill._tables.durations import micros
from tidemill._tables.engine import query_threads
from tidemill.apps._arguments import Parser, queries
from tidemill.apps.nexmark_events import Events
from tidemill.apps.nexmark_queries import ANSWERS, QUERIES, TITLES, query
from tidemill.ml._job import collective_try

__all__ = ["main"]


def _numbers(text: str) -> list[int]:
    """Parse a list of queries like ``0,3-5``."""
    return queries(text, list(QUERIES))


def _count(text: str) -> int:
    try:
        count = int(text.replace("_", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return count


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise argparse.ArgumentTypeError(f"must be 0, for as fast as they are taken, or more, not {text!r}")
    return rate


def _step(text: str) -> int:
    try:
        step_us = micros(text, "step")
    except tm.DataSetError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if step_us < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1us, not {text!r}")
    return step_us


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="tidemill nexmark",
        description="Run Nexmark queries over streams on all workers of the job.",
        epilog="tidemill nexmark -n 2 --events 1000000 --queries 0-5,8 --check",
    )
    add = parser.add_argument
    add("--events", type=_count, default=1_000_000, metavar="N", help="number of events (default 1000000)")
    add(
        "--queries",
        type=_numbers,
        default=list(QUERIES),
        metavar="LIST",
        help="queries to run, such as 0,3-5 (default: all)",
    )
    add("--step", type=_step, default=100, metavar="TIME", help="event time between two events (default 100us)")
    add(
        "--rate",
        type=_rate,
        default=0.0,
        metavar="X",
        help="events per second (default: as fast as possible)",
    )
    add("--check", action="store_true", help="compare each answer with DuckDB's")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on this worker; the exit code is 0, or 1 if a query fails or an answer differs."""
    arguments = _arguments(argv)
    job = tm.init()
    events = Events(arguments.events, arguments.step)

    def prepare() -> None:
        if job.rank == 0 and arguments.check and importlib.util.find_spec("duckdb") is None:
            raise ValueError("--check needs DuckDB; install it with: pip install duckdb")

    try:
        collective_try(job.comm, prepare)
        answers = _Answers(job, events) if arguments.check else None
    except (ValueError, tm.DataSetError) as error:
        if job.rank == 0:
            print(f"tidemill nexmark: {error}", file=sys.stderr)
        # The launcher stops the others when one fails, which must not happen before worker 0 has printed its message.
        job.comm.Barrier()
        return 1
    return _run(job, events, arguments, answers)


def _run(job: Any, events: Events, arguments: argparse.Namespace, answers: _Answers | None) -> int:
    """Run the queries one after the other; returns the exit code."""
    say = print if job.rank == 0 else _silent
    say(f"{events.count:,} events of {events.count * events.step_us / 1e6:,.1f} s on {job.size} worker(s)")
    wrong: list[int] = []
    splits = job.size * query_threads(job)
    for number in arguments.queries:
        name = f"Q{number} {TITLES[number]:32}"
        # For queries without a comparison, rows are only counted. Threads append to lists without a lock.
        counts: list[int] = []
        tables: list[tm.Table] = []

        def take(table: tm.Table, counts: list[int] = counts, tables: list[tm.Table] = tables) -> None:
            counts.append(table.num_rows)
            if answers is not None:
                tables.append(table)

        streams = events.streams(arguments.rate, splits)
        job.comm.Barrier()
        begin = time.perf_counter()
        try:
            query(number, streams).write_stream(take)
        except tm.DataSetError as error:
            # Every worker gets this error.
            wrong.append(number)
            say(f"{name} failed: {error}")
            continue
        # The time of the slowest worker.
        seconds = max(job.comm.allgather(time.perf_counter() - begin))
        rows = sum(job.comm.allgather(sum(counts)))
        difference = answers.difference(number, tables) if answers is not None else ""
        outcome = f"differs: {difference}" if difference else "as DuckDB" if answers is not None else ""
        say(f"{name} {seconds:8.3f} s {events.count / seconds:12,.0f} events/s {rows:9,} rows  {outcome}".rstrip())
        if difference:
            wrong.append(number)
    if wrong:
        say(f"tidemill nexmark: wrong or failed: {', '.join(f'Q{number}' for number in wrong)}", file=sys.stderr)
    job.comm.Barrier()
    return 1 if wrong else 0


def _silent(*_: object, **__: object) -> None:
    pass


class _Answers:
    """DuckDB with the events as tables, on worker 0. All workers call its methods."""

    def __init__(self, job: Any, events: Events) -> None:
        self._job = job
        tables = {name: table.collect(root=0) for name, table in events.tables().items()}
        if job.rank == 0:
            import duckdb

            self._duckdb = duckdb.connect()
            for name, table in tables.items():
                self._duckdb.register("given", table)
                self._duckdb.execute(f"create table {name} as select * from given")

    def difference(self, number: int, tables: list[tm.Table]) -> str:
        """Return how the rows of all workers differ from those of DuckDB."""
        everybody = self._job.comm.gather(tables, root=0)
        found = "" if everybody is None else self._compare(number, [table for part in everybody for table in part])
        return str(self._job.comm.bcast(found, root=0))

    def _compare(self, number: int, tables: list[tm.Table]) -> str:
        """Compare rows exactly: sums of whole cents are exact in floats, in any order."""
        text = ANSWERS.get(number) or QUERIES[number]
        self._duckdb.execute(f"create or replace table expected as {text}")
        self._duckdb.execute("create or replace table rows as select * from expected limit 0")
        for table in tables:
            self._duckdb.register("given", table)
            self._duckdb.execute("insert into rows select * from given")
        # Rows are equal if all of them occur in the other table, and both have the same number.
        rows, expected = (self._one(f"select count(*) from {name}")[0] for name in ("rows", "expected"))
        extra = self._one("select * from rows except all select * from expected limit 1")
        if extra is None and rows == expected:
            return ""
        where = "here, not of"
        if extra is None:
            extra, where = self._one("select * from expected except all select * from rows limit 1"), "not here, but of"
        return f"({', '.join(map(str, extra))}) {where} DuckDB"

    def _one(self, text: str) -> Any:
        return self._duckdb.execute(text).fetchone()


if __name__ == "__main__":
    sys.exit(main())
