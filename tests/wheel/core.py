"""What the wheel must do beside NumPy alone: k-means, a query, files, a stream with windows and collectives, on any number of workers."""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime
from pathlib import Path

import numpy as np
import tidemill as tm
from tidemill.ml import KMeans


def check_kmeans(job: tm.Job) -> None:
    """Two far clusters, rows on all workers."""
    rng = np.random.default_rng(job.rank)
    rows = np.concatenate([rng.normal(0, 0.1, (50, 3)), rng.normal(10, 0.1, (50, 3))])
    model = KMeans(n_clusters=2, random_state=0).fit(rows)
    centers = model.cluster_centers_[np.argsort(model.cluster_centers_[:, 0])]
    np.testing.assert_allclose(centers, [[0] * 3, [10] * 3], atol=0.2)
    labels = model.predict(rows)
    assert (labels[:50] == labels[0]).all() and (labels[50:] == labels[-1]).all() and labels[0] != labels[-1]


def check_query(folder: Path) -> None:
    """SQL and methods over the same rows, through Parquet (compressed by the C libraries in the wheel)."""
    table = {"name": ["a", "b", "a", "c"], "value": [1.0, 2.0, 3.0, 4.0]}
    tm.from_dict(table).write_parquet(str(folder / "rows"), compression="zstd", overwrite=True)
    rows = tm.read_parquet(str(folder / "rows"))
    sums = rows.group_by("name").agg(total=tm.col("value").sum()).sort("name")
    assert sums.to_pylist() == [
        {"name": "a", "total": 4.0},
        {"name": "b", "total": 2.0},
        {"name": "c", "total": 4.0},
    ]
    counts = tm.sql("select count(*) as n, max(value) as most from rows", rows=rows)
    assert counts.to_pylist() == [{"n": 4, "most": 4.0}]


def check_stream() -> None:
    """Windows of event time; which worker sees which result is free."""
    rows = tm.from_dict({"user": ["ann", "bob", "ann", "ann"], "second": [1, 4, 7, 12]})
    rows = rows.select("user", at=tm.col("second").cast("timestamp[s]")).collect()
    clicks = tm.stream.from_table(rows, time="at")
    window = tm.stream.window(tm.stream.tumbling("10s"), on="at")
    seen: list[tuple[datetime, str, int]] = []
    clicks.group_by("user", window).agg(clicks=tm.count()).write_stream(
        lambda table: seen.extend((row["window_start"], row["user"], row["clicks"]) for row in table.to_pylist())
    )
    everything = sorted(row for rows in tm.init().comm.allgather(seen) for row in rows)
    assert [(start.second, user, clicks) for start, user, clicks in everything] == [
        (0, "ann", 2),
        (0, "bob", 1),
        (10, "ann", 1),
    ], everything


def main() -> None:
    """Check everything, then print one line on each worker."""
    job = tm.init()
    total = np.empty(1)
    job.comm.Allreduce(np.array([job.rank + 1.0]), total)
    assert total[0] == job.size * (job.size + 1) / 2
    with tempfile.TemporaryDirectory() as own:
        folder = job.comm.bcast(own)
        check_kmeans(job)
        check_query(Path(folder))
        check_stream()
        job.comm.Barrier()
    # Optional packages are not to be needed, so none of them may have come in.
    others = {"pyarrow", "pandas", "sklearn", "scipy", "cloudpickle", "matplotlib"} & set(sys.modules)
    assert not others, others
    print(f"core: worker {job.rank} of {job.size} agrees")


if __name__ == "__main__":
    main()
