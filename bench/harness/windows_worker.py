"""The benchmark of windows with Tidemill: a stream of a table in memory, a group_by, a function as the sink.

    windows_worker.py [--function] throughput|latency EVENTS PER_SECOND

With ``--function`` every event goes through a Python function on batches first. The modes, the events and what is printed: see `windows.py`. A window is closed when all parts of the source have come past its end; the
time of that is taken by a function that the rows go through, right behind the source.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
import tidemill as tm
from windows_events import BLOCK, LATENESS_MS, WINDOW_MS, events, report

SPLITS = 8  # parts that a table's stream has
BATCH = 32_768  # rows that come together as fast as they go
PACED_S = 0.001  # worth of rows that come together at a pace


def table(count: int, per_second: int, numbered: bool) -> pa.Table:
    """All events, made before the clock starts; with their numbers, where it is told apart which part they come from."""
    keys, times = np.empty(count, np.int64), np.empty(count, np.int64)
    for start in range(0, count, BLOCK):
        part = slice(start, min(start + BLOCK, count))
        keys[part], times[part] = events(np.arange(part.start, part.stop), per_second)
    columns = {"key": pa.array(keys), "ts": pa.array(times).view(pa.timestamp("ms"))}
    return pa.table(columns | ({"number": pa.array(np.arange(count))} if numbered else {}))


def rekeyed(rows: Any) -> Any:
    """What a program's own function on batches may do: arithmetic on a column by NumPy, which gives the same keys here."""
    rows = pa.table(rows)
    keys = rows["key"].to_numpy()
    return rows.set_column(0, "key", pa.array(keys * 3 // 3))


def main() -> None:
    *options, mode, count, per_second = sys.argv[1:]
    paced, count, per_second = mode == "latency", int(count), int(per_second)
    job = tm.init()
    batch = max(1, round(per_second * PACED_S)) if paced else BATCH
    stream = tm.stream.from_table(
        table(count, per_second, paced),
        time="ts",
        max_out_of_orderness=f"{LATENESS_MS}ms",
        rows_per_batch=batch,
        rows_per_s=per_second if paced else 0,
    )
    latest = [0] * SPLITS
    passed: dict[tuple[int, int], int] = {}  # when a part came past the end of a window

    def look(rows: Any) -> Any:
        now_ns = time.monotonic_ns()
        rows = pa.table(rows)
        split = rows["number"][0].as_py() // batch % SPLITS
        newest = rows["ts"].chunk(0).view(pa.int64()).to_numpy().max() - LATENESS_MS
        for end in range(latest[split] // WINDOW_MS * WINDOW_MS + WINDOW_MS, newest + 1, WINDOW_MS):
            passed[end - WINDOW_MS, split] = now_ns
        latest[split] = max(latest[split], int(newest))
        return rows

    schema = {"key": "int64", "ts": "timestamp[ms]"} | ({"number": "int64"} if paced else {})
    if paced:
        stream = stream.map_batches(look, schema=schema)
    if "--function" in options:
        stream = stream.map_batches(rekeyed, schema=schema)
    found: list[Any] = []
    arrived_ns: dict[int, int] = {}

    def take(rows: tm.Table) -> None:
        now_ns = time.monotonic_ns()
        made = pa.table(rows)
        found.append(made)
        for start in np.unique(made["window_start"].cast(pa.int64()).to_numpy() // 1000).tolist():
            arrived_ns[start] = now_ns

    counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling(WINDOW_MS / 1000), on="ts")).agg(n=tm.count())
    # Threads, and connections between the workers, are there before.
    tm.stream.from_table(table(10, 10, False), time="ts").write_stream(lambda rows: None)
    job.comm.barrier()
    begin = time.perf_counter()
    counts.write_stream(take)
    elapsed_s = time.perf_counter() - begin

    rows = [
        row
        for made in found
        for row in zip(
            (made["window_start"].cast(pa.int64()).to_numpy() // 1000).tolist(),
            made["key"].to_pylist(),
            made["n"].to_pylist(),
            strict=True,
        )
    ]
    parts = job.comm.gather((elapsed_s, rows, passed, arrived_ns))
    if job.rank != 0:
        return
    closed_ns: dict[int, int] = {}
    last_ns: dict[int, int] = {}
    whole = {start for start, _ in set().union(*(part[2] for part in parts))}
    for start in whole:
        times = [at for _, _, passed, _ in parts for (of, _), at in passed.items() if of == start]
        # The last ones are closed by the end of the stream, not by time.
        if len(times) == SPLITS:
            closed_ns[start] = max(times)
    for *_, arrived in parts:
        for start, at in arrived.items():
            last_ns[start] = max(at, last_ns.get(start, 0))
    rows = [row for part in parts for row in part[1]]
    print(report(max(part[0] for part in parts), rows, closed_ns, last_ns), flush=True)


main()
