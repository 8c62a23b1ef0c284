"""A stream whose rows go from all workers to all, for some time; how many were taken at each moment, and what processors that took.

    control_worker.py POINTS

POINTS is a JSON list of one object with `edge` ("keyed" or "shuffle"), `controller` ("off" or "on"), `row_bytes`, `work_us` (of each row),
`rows_per_s` (of all workers together, 0 for as fast as they go), `seconds`, `seed` and `folder` (of checkpoints). Rank 0 prints {"begun"}, the clock at which the rows begin, and at the end {"rates", "cpu", "rows", "taken"}: bytes of rows
taken in each second and processors used in it, by all workers together, and how many rows were read and taken. All workers are on this
machine, so they have one clock.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tidemill as tm

KEYS = 4096
ROWS_PER_BATCH = 16
#: Batches that are made beforehand, and sent again and again: what is measured is not how fast Python makes rows.
BATCHES = 32
SAMPLE_S = 0.25


class Taken:
    """What this worker has read and taken, and samples of that: time, rows taken and seconds of processors."""

    def __init__(self) -> None:
        self.read = 0
        self.rows = 0
        self.samples: list[tuple[float, int, float]] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Taken:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def take(self, rows: int) -> None:
        with self._lock:
            self.rows += rows

    def has_read(self, rows: int) -> None:
        with self._lock:
            self.read += rows

    def _sample(self) -> None:
        while True:
            over = self._over.wait(SAMPLE_S)
            used = resource.getrusage(resource.RUSAGE_SELF)
            self.samples.append((time.monotonic(), self.rows, used.ru_utime + used.ru_stime))
            if over:
                return


def batches(point: dict[str, Any], split: str) -> list[tm.Table]:
    """Rows with random keys and payloads, which nothing can compress; the same in every run of a seed."""
    rng = np.random.default_rng([point["seed"], int(split)])
    payloads = rng.integers(0, 256, (BATCHES * ROWS_PER_BATCH, point["row_bytes"] // 2), dtype=np.uint8)
    texts = np.array([payload.tobytes().hex() for payload in payloads], dtype=object)
    keys = rng.integers(0, KEYS, len(texts))
    return [
        tm.Table.from_numpy({"key": keys[at : at + ROWS_PER_BATCH], "payload": texts[at : at + ROWS_PER_BATCH]})
        for at in range(0, len(texts), ROWS_PER_BATCH)
    ]


def spin(seconds: float) -> None:
    """Work for some time of this thread's own."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def stream(point: dict[str, Any], begun: float, splits: int, taken: Taken) -> tm.DataSet:
    until, work_s = begun + point["seconds"], point["work_us"] / 1e6
    pause_s = ROWS_PER_BATCH * splits / point["rows_per_s"] if point["rows_per_s"] else 0.0

    def read(split: str, position: int | None) -> Iterator[tuple[tm.Table, int]]:
        made = batches(point, split)
        number, due = position or 0, begun
        while (now := time.monotonic()) < until:
            # Rows that it could not read in time it does not read later: they would come on top.
            due = max(due, now)
            time.sleep(due - now)
            due += pause_s
            table = made[number % len(made)]
            number += 1
            taken.has_read(table.num_rows)
            yield table, number

    def count(key: dict[str, Any], rows: list[dict[str, Any]], context: Any) -> None:
        spin(work_s * len(rows))
        taken.take(len(rows))

    def count_batch(batch: Any) -> Any:
        spin(work_s * batch.num_rows)
        taken.take(batch.num_rows)
        return batch

    schema = {"key": "int64", "payload": "str"}
    rows = tm.stream.from_function(read, schema, splits=[str(at) for at in range(splits)], name="rows")
    if point["edge"] == "keyed":
        return rows.key_by("key").process(count, {"n": "int64"})
    return rows.shuffle().map_batches(count_batch, schema)


def by_second(
    samples: list[tuple[float, int, float]], begun: float, seconds: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows taken, and seconds of processors, in each second since the begin."""
    at, rows, cpu = (np.array(column, dtype=float) for column in zip(*samples, strict=True))
    edges = begun + np.arange(seconds + 1)
    return np.diff(np.interp(edges, at, rows)), np.diff(np.interp(edges, at, cpu))


def run(job: Any, point: dict[str, Any]) -> None:
    with Taken() as taken:
        begun = job.comm.bcast(time.monotonic() if job.rank == 0 else None)
        if job.rank == 0:
            print(json.dumps({"begun": begun}), flush=True)
        made = stream(point, begun, job.comm.size, taken)
        made.write_stream(lambda rows: None, name="control", checkpoint=point["folder"], controller=point["controller"])
    parts = job.comm.gather((by_second(taken.samples, begun, point["seconds"]), taken.read, taken.rows))
    if job.rank != 0:
        return
    rates = sum(rows for (rows, _), _, _ in parts) * point["row_bytes"]
    found = {"rates": rates.tolist(), "cpu": sum(cpu for (_, cpu), _, _ in parts).tolist()}
    print(
        json.dumps({**found, "rows": sum(read for _, read, _ in parts), "taken": sum(rows for _, _, rows in parts)}),
        flush=True,
    )


def main() -> None:
    job = tm.init()
    (point,) = json.loads(sys.argv[1])
    run(job, point)


main()
