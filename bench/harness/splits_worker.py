"""One job of the benchmarks of splits and of scaling: runs every operation some times; worker 0 prints JSON.

    splits_worker.py FOLDER SIZES REPEATS OPERATION,...

SIZES is a JSON object: `threads` of a worker, `rows` of tables, `records` to sort in FOLDER/records, `points`, `columns` and `centres` of k-means, `objects` of MDS,
`events` of a stream. All splits work on the same data, whatever share of it each worker has. Prints {"splits": seconds of each operation,
"answers": what came of it}: a text, the same in all splits, or a number, the same but for rounding.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import inputs
import numpy as np
import pyarrow as pa
import tidemill as tm
import windows_events
from tidemill.apps import _tera
from tidemill.ml import MDS, KMeans
from tidemill.mpi import MPI

SEED = 20240229
KMEANS_ITERATIONS = MDS_ITERATIONS = 10
MACHINE_PARTS = 64  # pieces of work that have nothing to do with each other
STREAM_BATCH = 32_768


class Prepared(NamedTuple):
    """An operation with its data loaded: `run` is timed, `answer` is not; both on all workers."""

    run: Callable[[], Any]
    answer: Callable[[Any], str | float]


class Work:
    """The data of a job of so many workers, each piece made when an operation wants it."""

    def __init__(self, job: Any, folder: Path, sizes: dict[str, int]) -> None:
        self.job, self.folder, self.sizes = job, folder, sizes
        self._data: Any = None

    def share(self, count: int) -> slice:
        rank, size = self.job.rank, self.job.size
        return slice(count * rank // size, count * (rank + 1) // size)

    def total(self, number: float) -> float:
        return float(sum(self.job.comm.allgather(number)))

    @property
    def keys(self) -> int:
        return max(self.sizes["rows"] // 64, 1)

    @property
    def data(self) -> Any:
        if self._data is None:
            # The same rows in all, however they are split.
            here = np.arange(self.job.rank, self.sizes["rows"], self.job.size, dtype=np.int64)
            mixed = (here * 2654435761) % 4294967296
            columns = {"k": mixed % self.keys, "v": mixed, "x": here.astype(np.float64)}
            self._data = tm.from_local(tm.Table.from_numpy(columns))
        return self._data

    # Tables.

    def group(self) -> Prepared:
        v, x = tm.col("v"), tm.col("x")
        grouped = self.data.group_by("k").agg(s=v.sum(), m=x.mean())
        return self.collected(grouped.select(n=tm.count(), s=tm.col("s").sum()))

    def join(self) -> Prepared:
        other = tm.from_arrow(tm.Table.from_numpy({"k": np.arange(self.keys), "g": np.arange(self.keys) % 10}))
        return self.collected(self.data.join(other, on="k").group_by("g").agg(s=tm.col("v").sum()).sort("g"))

    def window(self) -> Prepared:
        numbered = self.data.with_columns(r=tm.functions.row_number().over("k", order_by="v"))
        return self.collected(numbered.select(r=tm.col("r").sum()))

    def map_batches(self) -> Prepared:
        return self.collected(self.data.map_batches(lambda batch: batch, schema=None).select(n=tm.count()))

    def collected(self, query: Any) -> Prepared:
        def answer(found: Any) -> str:
            return str(self.job.comm.bcast(pa.table(found).to_pylist() if self.job.rank == 0 else None))

        return Prepared(lambda: query.collect(root=0), answer)

    def sort(self) -> Prepared:
        data = self.data

        def answer(found: Any) -> str:
            v = pa.table(found)["v"].to_numpy()
            parts = self.job.comm.allgather((len(v), int(v.sum()), v[[0, -1]].tolist() if len(v) else []))
            ends = [end for *_, both in parts for end in both]
            ordered = all(self.job.comm.allgather(bool((np.diff(v) >= 0).all()))) and ends == sorted(ends)
            return f"{sum(n for n, *_ in parts)} {sum(s for _, s, _ in parts)} {'in' if ordered else 'NOT in'} order"

        return Prepared(lambda: data.sort("v").collect_local(), answer)

    def records(self) -> Prepared:
        out = self.folder / "sorted"

        def run() -> None:
            tm.read_records(self.folder / "records", _tera.COLUMNS).sort("key").write_records(out, overwrite=True)

        def answer(_: Any) -> str:
            return str(self.job.comm.bcast(inputs.sorted_digest(out) if self.job.rank == 0 else None))

        return Prepared(run, answer)

    # Numbers.

    def kmeans(self) -> Prepared:
        rng = np.random.default_rng(SEED)
        count, columns, k = (self.sizes[name] for name in ("points", "columns", "centres"))
        blobs = rng.normal(0, 0.5, (k, columns))
        points = (blobs[rng.integers(k, size=count)] + rng.normal(0, 1, (count, columns))).astype(np.float32)
        first, mine = points[:k].copy(), points[self.share(count)].copy()
        del points

        def run() -> Any:
            return KMeans(n_clusters=k, init=first, n_init=1, max_iter=KMEANS_ITERATIONS, tol=0).fit(mine)

        return Prepared(run, lambda model: float(model.inertia_))

    def mds(self) -> Prepared:
        rng = np.random.default_rng(SEED)
        count = self.sizes["objects"]
        vectors, start = rng.standard_normal((count, 10)), rng.standard_normal((count, 3))
        # Column by column, so that distances are the same in both directions to the last bit.
        rows: Any = sum(np.square(column[self.share(count), None] - column) for column in vectors.T)
        rows = np.sqrt(rows)

        def run() -> Any:
            return MDS(3, max_iter=MDS_ITERATIONS, tol=0).fit(rows, init=start)

        return Prepared(run, lambda model: float(model.stress_))

    # Streams.

    def stream(self) -> Prepared:
        count = self.sizes["events"]
        keys, times = windows_events.events(np.arange(count), max(1, count // 10))
        table = pa.table({"key": pa.array(keys), "ts": pa.array(times).view(pa.timestamp("ms"))})
        late, window_s = f"{windows_events.LATENESS_MS}ms", windows_events.WINDOW_MS / 1000
        source = tm.stream.from_table(table, time="ts", max_out_of_orderness=late, rows_per_batch=STREAM_BATCH)
        counts = source.group_by("key", tm.stream.window(tm.stream.tumbling(window_s), on="ts")).agg(n=tm.count())

        def run() -> int:
            found: list[Any] = []
            counts.write_stream(lambda rows: found.append(pa.table(rows)))
            return sum(int(rows["n"].to_numpy().sum()) for rows in found)

        return Prepared(run, lambda counted: str(int(self.total(counted))))

    # Communication, and the machine.

    def allreduce(self, count: int) -> Prepared:
        comm = MPI.COMM_WORLD
        data, into = np.ones(count), np.empty(count)

        def run() -> None:
            comm.Allreduce(data, into)

        return Prepared(run, lambda _: str(bool((into == self.job.size).all())))

    def machine(self) -> Prepared:
        """Work that shares nothing: the same pieces, each sorted by one thread of one worker. No job can be split better than this."""
        values = np.random.default_rng(SEED).random(max(1, self.sizes["rows"] // MACHINE_PARTS))
        mine = len(range(self.job.rank, MACHINE_PARTS, self.job.size))

        def run() -> int:
            with ThreadPoolExecutor(self.sizes["threads"]) as pool:
                return sum(len(one) for one in pool.map(lambda _: np.sort(values, kind="stable"), range(mine)))

        return Prepared(run, lambda done: str(int(self.total(done))))


OPERATIONS: dict[str, Callable[[Work], Prepared]] = {
    **{
        name: getattr(Work, name)
        for name in ("group", "join", "sort", "window", "map_batches", "records", "kmeans", "mds", "stream", "machine")
    },
    "allreduce-8": lambda work: work.allreduce(1),
    "allreduce-1048576": lambda work: work.allreduce(1 << 17),
}
ALLREDUCES = 100  # of one time


def main(folder: Path, sizes: dict[str, int], repeats: int, names: list[str]) -> None:
    job = tm.init()
    work = Work(job, folder, sizes)
    seconds: dict[str, list[float]] = {}
    answers: dict[str, str | float] = {}
    for name in names:
        run, answer = OPERATIONS[name](work)
        answers[name] = answer(run())
        times = ALLREDUCES if name.startswith("allreduce") else 1
        for _ in range(repeats):
            job.comm.barrier()
            start = time.perf_counter()
            for _ in range(times):
                run()
            job.comm.barrier()
            seconds.setdefault(name, []).append((time.perf_counter() - start) / times)
    if job.rank == 0:
        print(json.dumps({"splits": seconds, "answers": answers}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","))
