"""A stream whose rows go from all workers to all, for some time; how many were taken at each moment, and what processors that took.

    control_worker.py POINTS

POINTS is a JSON list of one object with `edge` ("keyed", "shuffle" or "plugs"), `controller` ("off" or "on"), `row_bytes`, `work_us` (of each row),
`rows_per_s` (of all workers together, 0 for as fast as they go), `seconds`, `seed`, `drawn_s` (from when to when the rates of plugs are drawn) and `folder` (of
checkpoints, and of what commands read). Rank 0 prints {"begun"}, the clock at which the rows begin, and at the end {"rates", "cpu", "rows", "taken", "late"}: bytes
of rows taken in each second and processors used in it, by all workers together, how many rows were read and taken, and how many were too late for their
windows. All workers are on this machine, so they have one clock.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tidemill as tm

KEYS = 4096
#: So few that some hosts have many readings, and others few, when rates are drawn.
PLUGS = 128
#: A reading in so many is late, by more than the stream waits.
LATE_EVERY, LATE_US, WAIT = 100, 5_000_000, "1s"
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


class Decisions(logging.Handler):
    """What the stream has logged of checkpoints and its controller, with the times."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, str]] = []
        log = logging.getLogger("tidemill.stream")
        log.setLevel("INFO")
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append((time.monotonic(), record.getMessage()))


class Batches:
    """Rows with random keys and payloads, which nothing can compress; the same in every run of a seed."""

    def __init__(self, point: dict[str, Any], split: str, begun: float) -> None:
        rng = np.random.default_rng([point["seed"], int(split)])
        payloads = rng.integers(0, 256, (BATCHES * ROWS_PER_BATCH, point["row_bytes"] // 2), dtype=np.uint8)
        self._texts = np.array([payload.tobytes().hex() for payload in payloads], dtype=object)
        self._keys = rng.integers(0, KEYS, len(self._texts))
        self._made = [tm.Table.from_numpy(self._columns(at)) for at in range(BATCHES)]
        # All splits have the same plugs.
        weights = np.maximum(np.random.default_rng(point["seed"]).normal(5, 5, PLUGS), 0)
        self._plugs = rng.integers(0, PLUGS, len(self._texts))
        self._drawn = rng.choice(PLUGS, len(self._texts), p=weights / weights.sum())
        self._drawn_from, self._drawn_to = (begun + second for second in point["drawn_s"])

    def _columns(self, number: int) -> dict[str, Any]:
        rows = slice(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH)
        return {"key": self._keys[rows], "payload": self._texts[rows]}

    def rows(self, number: int) -> tm.Table:
        return self._made[number % BATCHES]

    def readings(self, number: int, now: float) -> tm.Table:
        """Rows of plugs, with their times."""
        columns = self._columns(number % BATCHES)
        plugs = self._drawn if self._drawn_from <= now < self._drawn_to else self._plugs
        columns["key"] = plugs[number % BATCHES * ROWS_PER_BATCH :][:ROWS_PER_BATCH]
        late = np.arange(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH) % LATE_EVERY == 0
        at = np.full(ROWS_PER_BATCH, time.time_ns() // 1000) - LATE_US * late
        return tm.Table.from_numpy({**columns, "at": at.astype("M8[us]")})


def spin(seconds: float) -> None:
    """Work for some time of this thread's own."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def streams(point: dict[str, Any], begun: float, splits: int, taken: Taken) -> list[tm.DataSet]:
    """Of one source; the first one counts its rows."""
    until, work_s = begun + point["seconds"], point["work_us"] / 1e6
    pause_s = ROWS_PER_BATCH * splits / point["rows_per_s"] if point["rows_per_s"] else 0.0
    of_plugs = point["edge"] == "plugs"

    def read(split: str, position: int | None) -> Iterator[tuple[tm.Table, int]]:
        made = Batches(point, split, begun)
        number, due = position or 0, begun
        while (now := time.monotonic()) < until:
            # Rows that it could not read in time it does not read later: they would come on top.
            due = max(due, now)
            time.sleep(due - now)
            due += pause_s
            table = made.readings(number, now) if of_plugs else made.rows(number)
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
    names = [str(at) for at in range(splits)]
    if of_plugs:
        timed = {**schema, "at": "timestamp[us]"}
        rows = tm.stream.from_function(read, timed, splits=names, time="at", max_out_of_orderness=WAIT, name="readings")
        window = tm.stream.window(tm.stream.tumbling("1s"), on="at")
        return [rows.key_by("key").process(count, {"n": "int64"}), rows.group_by("key", window).agg(n=tm.count())]
    rows = tm.stream.from_function(read, schema, splits=names, name="rows")
    if point["edge"] == "keyed":
        return [rows.key_by("key").process(count, {"n": "int64"})]
    return [rows.shuffle().map_batches(count_batch, schema)]


def by_second(
    samples: list[tuple[float, int, float]], begun: float, seconds: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows taken, and seconds of processors, in each second since the begin."""
    at, rows, cpu = (np.array(column, dtype=float) for column in zip(*samples, strict=True))
    edges = begun + np.arange(seconds + 1)
    return np.diff(np.interp(edges, at, rows)), np.diff(np.interp(edges, at, cpu))


def run(job: Any, point: dict[str, Any]) -> None:
    decisions = Decisions()
    with Taken() as taken:
        begun = job.comm.bcast(time.monotonic() if job.rank == 0 else None)
        if job.rank == 0:
            print(json.dumps({"begun": begun}), flush=True)
        queries = [(made, lambda rows: None) for made in streams(point, begun, job.comm.size, taken)]
        checkpoint = f"{point['folder']}/checkpoints"
        with warnings.catch_warnings():
            # They are counted.
            warnings.simplefilter("ignore", tm.stream.LateRowsWarning)
            tm.stream.write(queries, name="control", checkpoint=checkpoint, controller=point["controller"])
    late = tm.last_report().late_rows
    parts = job.comm.gather((by_second(taken.samples, begun, point["seconds"]), taken.read, taken.rows))
    if job.rank != 0:
        return
    by_host = [(rows * point["row_bytes"]).tolist() for (rows, _), _, _ in parts]
    rates = sum(rows for (rows, _), _, _ in parts) * point["row_bytes"]
    found = {"rates": rates.tolist(), "cpu": sum(cpu for (_, cpu), _, _ in parts).tolist()}
    found |= {"rows": sum(read for _, read, _ in parts), "taken": sum(rows for _, _, rows in parts), "late": late}
    found |= {"by_host": by_host, "decisions": [(at - begun, line) for at, line in decisions.told]}
    print(json.dumps(found), flush=True)


def main() -> None:
    (point,) = json.loads(sys.argv[1])
    # Where commands find the stream, which is another folder on each host.
    os.environ["XDG_RUNTIME_DIR"] = f"{point['folder']}/run"
    job = tm.init()
    run(job, point)


main()
