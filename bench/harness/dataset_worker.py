"""One query under one system, in a process of its own (or the workers of one job).

    dataset_worker.py ENGINE QUERY FOLDER --memory-mib N [--in-memory]

Prints a line {"ready": ...} when tables are loaded and everything is started, then one with `query_s`, then one with the
`digest` of the answer. A query is run once to warm up, then a few times: the median counts. A sort warms up on a few records,
for it reads and writes as much as it sorts; its output is checked by who started this.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

from engines import Task

ENOUGH_S, REPEATS_MAX = 2.0, 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("query")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--in-memory", action="store_true")
    parser.add_argument("--memory-mib", type=int, default=0)
    task = Task(**vars(parser.parse_args()))
    engine = importlib.import_module(f"engines.{task.engine.split('-')[0]}")
    job = communicator(task)
    if task.query == "sort":
        sort(task, engine, job)
    else:
        answer(task, engine, job)


def communicator(task: Task) -> Any:
    """The job of Tidemill's workers; None elsewhere."""
    if not task.engine.startswith("tidemill"):
        return None
    import tidemill

    return tidemill.init().comm


def answer(task: Task, engine: Any, comm: Any) -> None:
    run = engine.queries(task)
    say(comm, ready=True)
    run()  # warm-up: page faults, thread pools, libraries loaded late
    seconds: list[float] = []
    again = True
    while again:
        if comm:
            comm.Barrier()
        start = time.perf_counter()
        found = run()
        seconds.append(time.perf_counter() - start)
        again = sum(seconds) < ENOUGH_S and len(seconds) < REPEATS_MAX
        if comm:  # rank 0 decides for all: a query is collective
            again = comm.bcast(again)
    say(comm, query_s=statistics.median(seconds))
    if comm is None or comm.rank == 0:
        say(comm, digest=digest(found))


def sort(task: Task, engine: Any, comm: Any) -> None:
    run = engine.sorter(task)
    run(task.folder / "few", task.folder / "few-sorted")
    say(comm, ready=True)
    if comm:
        comm.Barrier()
    start = time.perf_counter()
    run(task.folder / "many", task.folder / "sorted")
    if comm:
        comm.Barrier()
    say(comm, query_s=time.perf_counter() - start)


def digest(answer: Any) -> str:
    """Of the rows in the order of their keys, which are whole numbers or texts."""
    import pyarrow as pa

    table = pa.table(answer)
    key, value = table.columns
    text = not pa.types.is_integer(key.type)
    rows = pa.table({"key": key.cast(pa.large_string() if text else pa.int64()), "value": value.cast(pa.int64())})
    rows = rows.sort_by("key").combine_chunks()
    keys = "\n".join(rows["key"].to_pylist()).encode() if text else rows["key"].to_numpy().tobytes()
    sha = hashlib.sha256(keys + rows["value"].to_numpy().tobytes())
    return f"{len(rows)} {sha.hexdigest()[:16]}"


def say(comm: Any, **what: Any) -> None:
    if comm is None or comm.rank == 0:
        print(json.dumps(what), flush=True)


main()
