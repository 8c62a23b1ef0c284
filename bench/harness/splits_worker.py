"""One job of the benchmark of splits: runs every operation some times, and worker 0 prints the seconds of each as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tidemill as tm
from tidemill.apps import _tera


def main(folder: Path, rows: int, repeats: int) -> None:
    job = tm.init()
    # A share for each worker: the same rows in all, however they are split.
    here = np.arange(job.rank, rows, job.size, dtype=np.int64)
    mixed = (here * 2654435761) % 4294967296
    keys = mixed % max(rows // 64, 1)
    data = tm.from_local(tm.Table.from_numpy({"k": keys, "v": mixed, "x": here.astype(np.float64)}))
    other = tm.from_arrow(
        tm.Table.from_numpy({"k": np.arange(max(rows // 64, 1)), "g": np.arange(max(rows // 64, 1)) % 10})
    )
    v, x = tm.col("v"), tm.col("x")
    out = folder / f"sorted-{job.size}"
    operations: dict[str, Any] = {
        "group": lambda: data.group_by("k").agg(s=v.sum(), m=x.mean()).select(n=tm.count()).collect(root=0),
        "join": lambda: data.join(other, on="k").group_by("g").agg(s=v.sum()).collect(root=0),
        "sort": lambda: data.sort("v").collect_local(),
        "window": lambda: (
            data.with_columns(r=tm.row_number().over("k", order_by="v")).select(r=tm.col("r").sum()).collect(root=0)
        ),
        "map_batches": lambda: data.map_batches(lambda batch: batch, schema=None).select(n=tm.count()).collect(root=0),
        "records": lambda: (
            tm.read_records(folder / "records", _tera.COLUMNS).sort("key").write_records(out, overwrite=True)
        ),
    }
    seconds: dict[str, list[float]] = {}
    for name, operation in operations.items():
        operation()
        for _ in range(repeats):
            job.comm.barrier()
            start = time.perf_counter()
            operation()
            job.comm.barrier()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    if job.rank == 0:
        print(json.dumps({"splits": seconds}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
