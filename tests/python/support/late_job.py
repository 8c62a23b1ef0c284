"""A job whose copies count rows in rounds, one of them late: it waits until FOLDER/release exists.

Run as ``late_job.py FOLDER``: rounds are written to files of FOLDER/results, each once. A process whose function waits has
written FOLDER/waits/PID.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tidemill as tm
from stream_job import Files

ROWS, ROWS_PER_ROUND = 3000, 100


def main() -> None:
    folder = Path(sys.argv[1])

    def count(rows: tm.Table, value: np.ndarray | None) -> Any:
        columns = rows.to_dict()
        if 0 in columns["k"] and value is not None and not (folder / "release").exists():
            (folder / "waits" / str(os.getpid())).touch()
            while not (folder / "release").exists():
                time.sleep(0.01)
        return np.array([len(rows), sum(columns["n"])])

    n = np.arange(ROWS)
    rows = tm.from_dict({"n": n, "k": n % 8, "ms": n * 1000 // ROWS_PER_ROUND})
    rows = rows.select("n", "k", at=tm.col("ms").cast("timestamp[ms]")).collect()
    stream = tm.stream.from_table(rows, time="at", rows_per_batch=20, rows_per_s=1500)
    rounds = tm.stream.all_reduce(stream, count, every="1s", on="at", by="k", parallelism=2, max_wait="20ms")
    rounds.write_stream(
        Files(folder / "results"),
        name="late",
        checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="50ms"),
    )


if __name__ == "__main__":
    main()
