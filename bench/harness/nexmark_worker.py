"""A query of Nexmark with Tidemill, as `tidemill nexmark` runs it.

    nexmark_worker.py QUERY EVENTS STEP_US

What is printed: see `nexmark.py`. The query runs twice: once what its rows hold is added up, once they are counted, which is timed.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import tidemill as tm
from numpy.typing import NDArray
from tidemill._tables.engine import query_threads
from tidemill.apps.nexmark_events import Events
from tidemill.apps.nexmark_queries import query
from windows_events import mix


def bits(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    """A column as whole numbers; a peer has the same for it."""
    if pa.types.is_floating(column.type):
        return column.to_numpy().view(np.uint64)
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy().view(np.uint64)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).to_numpy().view(np.uint64)
    return np.array([zlib.crc32(text.encode()) for text in column.to_pylist()], np.uint64)


def digest(rows: pa.Table) -> int:
    """A sum over rows, in whatever order."""
    hashes = np.zeros(len(rows), np.uint64)
    for column in rows.columns:
        hashes = mix(hashes ^ bits(column))
    return int(hashes.sum(dtype=np.uint64))


def main() -> None:
    number, count, step_us = map(int, sys.argv[1:])
    job = tm.init()
    splits = job.size * query_threads(job)

    def run(events: int, take: Any) -> float:
        answer = query(number, Events(events, step_us).streams(0, splits))
        job.comm.barrier()
        begin = time.perf_counter()
        answer.write_stream(take)
        return time.perf_counter() - begin

    sums: list[int] = []
    counts: list[int] = []
    # Threads append to lists without a lock.
    run(count, lambda rows: sums.append(digest(pa.table(rows))))
    elapsed_s = run(count, lambda rows: counts.append(rows.num_rows))
    parts = job.comm.gather((elapsed_s, sum(counts), sum(sums)))
    if job.rank == 0:
        elapsed, rows, digests = zip(*parts, strict=True)
        print(
            json.dumps({"elapsed_s": max(elapsed), "rows": sum(rows), "digest": str(sum(digests) % (1 << 64))}),
            flush=True,
        )


main()
