"""A graph whose source is a stream, and whose workers are killed.

Run as ``enclosed_job.py FOLDER``: the stream reads numbered rows of splits and sends those of odd numbers; a task doubles them, and
sinks keep how often each has come. Worker 0 writes what they kept to FOLDER/found.json; pids go to FOLDER/pids.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tidemill as tm

SPLITS, BATCHES, ROWS = 3, 150, 8


def read(split: str, position: int | None) -> Iterator[tuple[list[dict[str, int]], int]]:
    for batch in range(position or 0, BATCHES):
        time.sleep(0.005)
        yield [{"split": int(split), "n": batch * ROWS + at} for at in range(ROWS)], batch + 1


def odd(out: Any, context: Any) -> str:
    with tm.group(context.comm):
        rows = tm.stream.from_function(read, {"split": "int64", "n": "int64"}, splits=map(str, range(SPLITS)))
        rows.filter(tm.col("n") % 2 == 1).write_stream(out.send)
    return "sent"


def double(rows: tm.Table, out: Any, context: Any) -> None:
    columns = rows.to_numpy()
    context.state = (context.state or 0) + len(rows)
    out.send({"split": columns["split"], "n": 2 * columns["n"]})


def count(rows: tm.Table, context: Any) -> None:
    context.state = context.state or Counter[tuple[int, int]]()
    context.state.update((row["split"], row["n"]) for row in rows)


def graph() -> tm.Graph:
    graph = tm.Graph("enclosed")
    kinds = {"split": "int64", "n": "int64"}
    stream = graph.source("odd", odd, schema=kinds, comm=True)
    doubled = graph.compute("double", double, schema=kinds, parallelism=2, each=True)
    graph.connect(stream, doubled, tm.exchange.partition())
    graph.connect(doubled, graph.sink("count", count, parallelism=2, each=True), tm.exchange.partition("n"))
    return graph


def expected() -> dict[str, Any]:
    numbers = range(1, BATCHES * ROWS, 2)
    return {
        "doubled": SPLITS * len(numbers),
        "rows": sorted([split, 2 * n, 1] for split in range(SPLITS) for n in numbers),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pids" / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")
    result = graph().run(checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="50ms"))
    if tm.init().rank == 0:
        kept = [[*row, often] for counts in result["count"].values() for row, often in counts.items()]
        found = {"doubled": sum(result["double"].values()), "rows": sorted(kept)}
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
