"""A job whose workers are killed: a stream at a rate, windows, and a sink of files that must hold every window exactly once.

Run as ``stream_job.py FOLDER``: checkpoints go to FOLDER/checkpoints, results to FOLDER/results, pids to FOLDER/pids.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import tidemill as tm

ROWS = 40_000
KEYS = 50
ROWS_PER_S = 12_000


def table() -> pa.Table:
    """A thousand rows a second of event time, the same on every worker and in every life of the job."""
    times = [at * 1000 + at * 7919 % 5000 for at in range(ROWS)]
    keys = [at * at % 9973 % KEYS for at in range(ROWS)]
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), "key": keys})


def expected() -> dict[tuple[int, int], int]:
    """Rows by key and start of a window of a second."""
    counts: dict[tuple[int, int], int] = {}
    rows = table()
    for time, key in zip(rows["ts"].cast(pa.int64()).to_pylist(), rows["key"].to_pylist(), strict=True):
        of = (key, time // 1_000_000)
        counts[of] = counts.get(of, 0) + 1
    return counts


class Files:
    """A file of JSON lines for each commit, which appears when its checkpoint is durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[list[int]] = []

    def write(self, rows: tm.Table) -> None:
        for row in rows.to_pylist():
            start = pa.scalar(row["window_start"], pa.timestamp("us")).value
            self._rows.append([row["key"], start // 1_000_000, row["n"]])

    def prepare(self, epoch: int) -> bytes:
        rows, self._rows = self._rows, []
        name = f"{epoch:06}-{rows[0][0]}-{os.getpid()}" if rows else ""
        return json.dumps([name, rows]).encode() if rows else b""

    def commit(self, prepared: bytes) -> None:
        name, rows = json.loads(prepared)
        hidden = self._folder / f".{name}.{os.getpid()}"
        hidden.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        hidden.rename(self._folder / name)


def main() -> None:
    folder = Path(sys.argv[1])
    rank = tm.init().rank
    (folder / "pids" / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    stream = tm.stream.from_table(table(), time="ts", out_of_order="6ms", rows_per_batch=100, rows_per_s=ROWS_PER_S)
    counts = stream.group_by("key", tm.window(tm.tumbling("1s"), on="ts")).agg(n=tm.count())
    counts.write_stream(Files(folder / "results"), name="killed", checkpoint=folder / "checkpoints", every="100ms")


if __name__ == "__main__":
    main()
