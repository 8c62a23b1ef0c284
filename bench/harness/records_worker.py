"""Records through Tidemill's task graphs, and by hand with mpi4py; `peers/records_mpi.cc` is the same by hand in C++.

    records_worker.py tidemill|openmpi OPERATION RECORDS

What records and operations are is told in that file. Rank 0 prints the same JSON object as it does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

WORDS, KEYS = 16, 1024
ROWS = 8192  # of a batch, as queries have them; by hand of a block

Found = tuple[int, int]  # the sum of all words, and how many keys there were


def keys(numbers: Any) -> Any:
    return (numbers * 2654435761 & 0xFFFFFFFF) >> 22


def batches(source: int, records: int) -> Iterator[Any]:
    """Numbers of records, as many as are made at once, each plus its source's."""
    for first in range(0, records, ROWS):
        yield np.arange(source + first, source + min(first + ROWS, records))


class Taken:
    """What has arrived at a target."""

    def __init__(self) -> None:
        self.sum = 0
        self.seen = np.zeros(KEYS, bool)

    def add(self, first: Any, rest: Any) -> None:
        self.sum += int(first.sum()) + sum(int(words.sum()) for words in rest)
        self.seen[first] = True

    def found(self) -> Found:
        return self.sum, int(self.seen.sum())


def tidemill(operation: str, records: int) -> dict[str, Any]:
    """A batch has a column for each word. Sources and targets are one copy on each worker; of `reduce` the target is one, of
    `broadcast` the source."""
    import tidemill as tm

    job = tm.init()
    names = [f"w{word}" for word in range(WORDS)]
    exchange = {
        "partition": lambda: tm.exchange.partition("w0"),
        "reduce": lambda: tm.exchange.reduce(dict.fromkeys(names, "sum")),
        "broadcast": tm.exchange.broadcast,
    }[operation]

    def many(count: int) -> tuple[float, list[Found]]:
        def send(out: Any, context: Any) -> None:
            for numbers in batches(context.copy, count):
                out.send({"w0": keys(numbers), **{name: numbers + word for word, name in enumerate(names) if word}})

        def receive(rows: Any, context: Any) -> Found:
            taken = Taken()
            for table in rows:
                columns = table.to_numpy()
                if operation == "reduce":
                    return sum(int(columns[name].sum()) for name in names), 0
                taken.add(columns["w0"], (columns[name] for name in names[1:]))
            return taken.found()

        graph = tm.Graph(operation)
        schema = dict.fromkeys(names, "int64")
        source = graph.source("source", send, schema=schema, parallelism=1 if operation == "broadcast" else None)
        target = graph.sink("target", receive, parallelism=1 if operation == "reduce" else None)
        graph.connect(source, target, exchange())
        job.comm.Barrier()
        start = time.perf_counter()
        found = graph.run()["target"]
        return time.perf_counter() - start, list(found.values())

    many(records)
    rate_s, found = many(records)
    return told(rate_s, found) if job.rank == 0 else {}


def openmpi(operation: str, records: int) -> dict[str, Any]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size

    def block(numbers: Any) -> Any:
        """Rows of records."""
        made = numbers[:, None] + np.arange(WORDS)
        made[:, 0] = keys(numbers)
        return made

    def many(count: int) -> Found:
        taken = Taken()
        if operation == "broadcast":
            for numbers in batches(0, count):
                made = block(numbers) if rank == 0 else np.empty((len(numbers), WORDS), np.int64)
                comm.Bcast(made, 0)
                taken.add(made[:, 0], (made[:, 1:],))
            return taken.found()
        if operation == "reduce":
            mine, sums = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
            for numbers in batches(rank, count):
                mine += block(numbers).sum(axis=0)
            comm.Reduce(mine, sums, MPI.SUM, 0)
            return int(sums.sum()), 0
        lengths = np.empty(size, np.int64)
        for numbers in batches(rank, count):
            made = block(numbers)
            targets = made[:, 0] % size
            counts = np.bincount(targets, minlength=size) * WORDS
            comm.Alltoall(counts, lengths)
            arrived = np.empty((int(lengths.sum()) // WORDS, WORDS), np.int64)
            comm.Alltoallv([made[np.argsort(targets, kind="stable")], counts], [arrived, lengths])
            taken.add(arrived[:, 0], (arrived[:, 1:],))
        return taken.found()

    many(records)
    comm.Barrier()
    start = time.perf_counter()
    mine = many(records)
    comm.Barrier()
    rate_s = time.perf_counter() - start
    found = comm.gather(mine)
    return told(rate_s, found) if found else {}


def told(rate_s: float, found: list[Found]) -> dict[str, Any]:
    total, known = (sum(part) for part in zip(*found, strict=True))
    return {"rate_s": rate_s, "digest": f"{total % 2**64} {known}"}


def main() -> None:
    system, operation, records = sys.argv[1:]
    found = {"tidemill": tidemill, "openmpi": openmpi}[system](operation, int(records))
    if found:
        print(json.dumps(found), flush=True)


main()
