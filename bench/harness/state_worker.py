"""What keeping state costs with Tidemill: checkpoints, going on after a failure, keys that move.

    state_worker.py cost|recovery|move EVERY_S KEYS HOT ROWS FOLDER

The modes, the rows and what is printed: see `state.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tidemill as tm

PACE_PER_S = 1_000_000  # of all modes but `cost`
QUIET_S = 1.0  # after all keys have come, and between moves
MOVES = 5


def rows(count: int, keys: int, hot: int, per_s: float) -> tm.DataSet:
    """Each key once, then keys at random, of those that are hot."""
    numbers = tm.stream.from_generator(per_s, rows=count, keys=1 << 62, splits=2, step="1us")
    query = f"select number, time, case when number < {keys} then number else key % {hot} end as key from numbers"
    return tm.sql(query, numbers=numbers)


def totals(of: tm.DataSet) -> tm.DataSet:
    """48 bytes for each key, until the stream ends."""
    number = tm.col("number")
    windows = of.group_by("key", tm.stream.window(tm.stream.tumbling("365d"), on="time"))
    return windows.agg(n=tm.count(), sum=number.sum(), least=number.min(), most=number.max())


def cost(every_s: float, keys: int, hot: int, count: int, folder: Path) -> None:
    job = tm.init()
    passed: list[tuple[float, int]] = []  # when batches came, right behind the source, and how many rows of each

    def look(batch: Any) -> Any:
        passed.append((time.monotonic(), batch.num_rows))
        return batch

    made = rows(count, keys, hot, 0).map_batches(look, {"number": "int64", "time": "timestamp[us]", "key": "int64"})
    counted: list[int] = []
    checkpoint = tm.stream.Checkpoint(folder, interval=every_s, keep=1) if every_s else None
    sums = totals(made).group_by("window_start").agg(n=tm.col("n").sum())
    job.comm.barrier()
    sums.write_stream(lambda sums: counted.extend(sums.to_dict()["n"]), checkpoint=checkpoint)
    parts = job.comm.gather((passed, sum(counted)))
    if job.rank != 0:
        return
    times = sorted(one for passed, _ in parts for one in passed)
    before, steady = 0, []
    for at, of in times:
        before += of
        if before > keys + keys // 4:
            steady.append((at, of))
    span_s = steady[-1][0] - steady[0][0]
    longest_s = max(after - at for (at, _), (after, _) in zip(steady, steady[1:], strict=False))
    made_epochs = (
        [int(file.name) for file in (folder / "epochs").glob("[0-9]*") if file.name.isdigit()] if every_s else [0]
    )
    found = {
        "per_s": sum(of for _, of in steady[1:]) / span_s,
        "elapsed_s": times[-1][0] - times[0][0],
        "longest_wait_s": longest_s,
        "checkpoints": max(made_epochs),
        "counted": sum(counted for _, counted in parts),
    }
    print(json.dumps(found), flush=True)


def recovery(every_s: float, keys: int, hot: int, count: int, folder: Path) -> None:
    """Writes when each result came, and the number of the run, into a file of each worker, until it is killed."""
    job = tm.init()
    restart = os.environ.get("TIDEMILL_RESTART", "0")
    made = rows(count, keys, hot, PACE_PER_S)
    often = made.group_by(tm.stream.window(tm.stream.tumbling("50ms"), on="time")).agg(n=tm.count())
    both = often.select("n").union(totals(made).select("n"))
    with (folder / f"results-{job.rank}").open("a") as results:

        def take(_: tm.Table) -> None:
            results.write(f"{restart} {time.monotonic_ns()}\n")
            results.flush()

        both.write_stream(take, checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval=every_s))


class Mover:
    """Moves all keys to the other copy, again and again, and says when it is done."""

    def __init__(self, begins_s: float) -> None:
        self._next = time.monotonic() + begins_s
        self._asked = 0
        self.moves: list[tm.stream.Move] = []

    def __call__(self, running: tm.stream.Running) -> None:
        self.moves = running.moves
        if not all(move.done for move in self.moves):
            self._next = time.monotonic() + QUIET_S
        elif time.monotonic() > self._next and self._asked < MOVES:
            ((task, owners),) = [(task, owners) for task, owners in running.owners.items() if max(owners) > 0]
            running.rebalance(task, [(owner + 1) % (max(owners) + 1) for owner in owners])
            self._asked += 1

    def done(self) -> bool:
        return len(self.moves) == MOVES and all(move.done for move in self.moves)


def move(every_s: float, keys: int, hot: int, count: int, folder: Path) -> None:
    job = tm.init()
    mover = Mover(keys / PACE_PER_S + QUIET_S)
    made = totals(rows(count, keys, hot, PACE_PER_S)).select("n")
    made.write_stream(
        lambda _: None,
        checkpoint=tm.stream.Checkpoint(folder, interval=every_s),
        on_progress=mover,
        stop_when=mover.done,
    )
    if job.rank == 0:
        moves = [{"waited_s": one.waited_s, "bytes": one.moved_bytes, "error": one.error} for one in mover.moves]
        print(json.dumps({"moves": moves}), flush=True)


def main() -> None:
    mode, every_s, *numbers = sys.argv[1:-1]
    keys, hot, count = map(int, numbers)
    modes = {"cost": cost, "recovery": recovery, "move": move}
    modes[mode](float(every_s), keys, hot, count, Path(sys.argv[-1]))


main()
