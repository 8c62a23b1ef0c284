"""A job whose workers are killed: a query over streams at a rate, and a sink of files that must contain every row
exactly once.

Run as ``stream_job.py FOLDER [QUERY [moving] [hurried] [URL]]``: checkpoints go to FOLDER/checkpoints or the URL,
results to FOLDER/results, pids to FOLDER/pids. The query ``late`` has rows that are often late, which go to
FOLDER/late. With ``moving``, keys constantly move between workers, and the outcomes go to FOLDER/moves. With
``hurried``, the sink is slow, and barriers overtake the rows that wait for it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import seeds
import tidemill as tm

INT64 = pa.int64()
SECOND = timedelta(seconds=1)
ROWS = 40_000
KEYS = 50
ROWS_PER_S = 12_000


def whole(values: Sequence[int], kind: pa.DataType = INT64) -> pa.Array:
    """Return integers, or times. `pa.array` would import pandas, which takes longer than the rest of a worker's start."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, np.int64))])


def table(rows: int = ROWS, late: bool = False) -> pa.Table:
    """Return a thousand rows per second of event time, the same on every worker and in every run; with `late`, some are
    far back.
    """
    times = [at * 1000 + at * 7919 % 5000 - (300_000 if late and at % 7 == 0 else 0) for at in range(rows)]
    keys = [at * at % 9973 % KEYS for at in range(rows)]
    return pa.table({"ts": whole(times, pa.timestamp("us")), "key": whole(keys), "row": whole(range(rows))})


def windows(rows: tm.DataSet) -> tm.DataSet:
    """Count the rows of each key in each second."""
    return rows.group_by("key", tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(n=tm.count())


def sliding(rows: tm.DataSet) -> tm.DataSet:
    """Count the rows of each key in each second that begins at a quarter."""
    if rows._native.is_stream():
        return rows.group_by("key", tm.stream.window(tm.stream.sliding("1s", "250ms"), on="ts")).agg(n=tm.count())
    # For a table, each row is assigned to its four windows explicitly.
    quarter = timedelta(seconds=0.25)
    quarters = rows.group_by("key", tm.stream.window(tm.stream.tumbling(quarter), on="ts")).agg(n=tm.count())
    windows = [
        quarters.select("key", "n", window_start=tm.col("window_start") - back * quarter).with_columns(
            window_end=tm.col("window_start") + SECOND
        )
        for back in range(4)
    ]
    four = windows[0].union(windows[1]).union(windows[2]).union(windows[3])
    return four.group_by("key", "window_start", "window_end").agg(n=tm.col("n").sum())


def early(rows: tm.DataSet) -> tm.DataSet:
    """Like `windows`, but also with early results."""
    window = tm.stream.window(tm.stream.tumbling("1s"), on="ts", emit_early_every="20ms")
    return rows.group_by("key", window).agg(n=tm.count()).filter(tm.col("window_final")).drop("window_final")


def by_rows(rows: tm.DataSet) -> tm.DataSet:
    """Like `sliding`, but also with a result after every seventh row of a key: which rows these are depends on timing,
    their number does not.
    """
    if rows._native.is_stream():
        window = tm.stream.window(tm.stream.sliding("1s", "250ms"), on="ts", emit_early_rows=7)
        return rows.group_by("key", window).agg(n=tm.count(), rows=tm.col("row").n_unique())
    last = sliding(rows).with_columns(window_final=tm.lit(True))
    early = [
        last.filter(tm.col("n") >= n).with_columns(n=tm.lit(n), window_final=tm.lit(False)) for n in range(7, 200, 7)
    ]
    all_ = functools.reduce(tm.DataSet.union, early, last)
    return all_.select("key", "window_start", "window_end", "window_final", "n", rows="n")


def by_steps(rows: tm.DataSet) -> tm.DataSet:
    """Like `windows`, but also with a result at each quarter in which the key has had rows."""
    if rows._native.is_stream():
        window = tm.stream.window(tm.stream.tumbling("1s"), on="ts", emit_early_event_time="250ms")
        return rows.group_by("key", window).agg(n=tm.count())
    quarters = rows.group_by("key", tm.stream.window(tm.stream.tumbling("250ms"), on="ts")).agg(n=tm.count())
    second = tm.col("at").cast("timestamp[s]").cast("timestamp[us]")
    quarters = quarters.select("key", "n", at="window_start").with_columns(window_start=second)
    so_far = tm.col("n").sum().over(partition_by=["key", "window_start"], order_by="at")
    early = quarters.with_columns(n=so_far).filter(tm.col("at") - tm.col("window_start") < timedelta(seconds=0.75))
    early = early.with_columns(window_end=tm.col("window_start") + SECOND, window_final=tm.lit(False))
    last = windows(rows).with_columns(window_final=tm.lit(True))
    return last.union(early.drop("at")).select("key", "window_start", "window_end", "window_final", "n")


def pairs(rows: tm.DataSet) -> tm.DataSet:
    """Return every row with those of its key that follow it within a tenth of a second, or alone."""
    later = rows.select("key", later="row", then="ts").filter(tm.col("later") % 3 == 0)
    where = (tm.col("then") > tm.col("ts")) & (tm.col("then") <= tm.col("ts") + timedelta(seconds=0.1))
    return rows.join(later, on="key", how="left", where=where).select("row", "later")


def near(rows: tm.DataSet) -> tm.DataSet:
    """Return every row with those of its key that are less than a tenth of a second away, or alone, and every third row
    of these.
    """
    others = rows.select("key", other="row", then="ts").filter(tm.col("other") % 3 == 0)
    if rows._native.is_stream():
        joined = rows.join(others, on="key", how="full", ttl="100ms")
    else:
        apart, tenth = tm.col("then") - tm.col("ts"), timedelta(seconds=0.1)
        joined = rows.join(others, on="key", how="full", where=(apart < tenth) & (apart > -tenth))
    return joined.select("row", "other")


def best(rows: tm.DataSet) -> tm.DataSet:
    """Return the two most frequent keys of each second."""
    ranked = windows(rows).with_columns(place=tm.functions.row_number().over("window_start", order_by=["n", "key"]))
    return ranked.filter(tm.col("place") <= 2).select("window_start", "key", "n")


def visits(rows: tm.DataSet) -> tm.DataSet:
    """Return sessions of each key, most with a few rows."""
    if rows._native.is_stream():
        return rows.group_by("key", tm.stream.window(tm.stream.session("90ms"), on="ts")).agg(n=tm.count())
    # For a table they are computed explicitly: a row begins a session if the previous one is far enough away.
    order = {"partition_by": "key", "order_by": "ts"}
    gap = (tm.col("ts") - tm.col("ts").shift().over(**order)) >= timedelta(seconds=0.09)
    first = tm.when(gap.fill_null(True)).then(1).otherwise(0)
    numbered = rows.with_columns(first=first).with_columns(session=tm.col("first").sum().over(**order))
    found = numbered.group_by("key", "session").agg(
        window_start=tm.col("ts").min(), window_end=tm.col("ts").max() + timedelta(seconds=0.09), n=tm.count()
    )
    return found.select("key", "window_start", "window_end", "n")


def kept_visits(rows: tm.DataSet) -> tm.DataSet:
    """Like `visits`, but kept for late rows that never come, and with early results at every second row."""
    if not rows._native.is_stream():
        return visits(rows)
    window = tm.stream.window(tm.stream.session("90ms"), on="ts", allowed_lateness="1s", emit_early_rows=2)
    return rows.group_by("key", window).agg(n=tm.count()).filter(tm.col("window_final")).drop("window_final")


def different(rows: tm.DataSet) -> tm.DataSet:
    """Return the distinct pairs of key and second."""
    return rows.select("key", second=tm.col("ts").cast("timestamp[s]")).distinct()


def remembered(rows: tm.DataSet) -> tm.DataSet:
    """Return the same, with keys remembered for longer than the job runs."""
    pairs = rows.select("key", "ts", second=tm.col("ts").cast("timestamp[s]"))
    of = {"ttl": "1h"} if rows._native.is_stream() else {}
    return pairs.distinct("key", "second", **of).select("key", "second")


def by_hand(rows: tm.DataSet) -> tm.DataSet:
    """Compute the same as `windows` by a function with a state, a list, a map and timers."""
    schema = {"key": "int64", "window_start": "timestamp[us]", "window_end": "timestamp[us]", "n": "int64"}
    if not rows._native.is_stream():
        return windows(rows)

    def count(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> Any:
        counts, numbers = context.map_state("counts"), context.list_state("numbers")
        for row in rows:
            end = row["ts"].replace(microsecond=0) + SECOND
            counts[end] = counts.get(end, 0) + 1
            numbers.append(row["row"])
            context.set_timer(end)
        context.state = (context.state or 0) + len(rows)
        assert len(set(numbers)) == len(numbers) == context.state, "the list is of another time than the state"
        made = [{**key, "window_start": at - SECOND, "window_end": at, "n": counts.pop(at)} for at in context.timers]
        if not counts:
            numbers.clear()
            context.state = None
        return made

    return rows.key_by("key").process(count, schema)


def together(rows: tm.DataSet) -> tm.DataSet:
    """Compute the same as `windows` by a function that all copies enter together, which counts the rows of each copy."""
    schema = {"key": "int64", "window_start": "timestamp[us]", "window_end": "timestamp[us]", "n": "int64"}
    if not rows._native.is_stream():
        return windows(rows)

    def count(comm: Any, rows: tm.Table, context: tm.stream.BspContext) -> Any:
        counts: Counter[int] = sum(comm.allgather(Counter(rows.to_dict()["key"])), Counter())
        # A kill finds one copy in this collective or in the next.
        context.state = (context.state or 0) + counts.total()
        assert set(comm.allgather(context.state)) == {context.state}, "the states are of different epochs"
        mine = [key for key in counts if key % comm.size == comm.rank]
        bounds = {"window_start": context.window_start, "window_end": context.window_end}
        return [{"key": key, **bounds, "n": counts[key]} for key in mine]

    second = tm.stream.window(tm.stream.tumbling("1s"), on="ts")
    # On two workers, some copies share one; on three, each has its own; on one, all share it.
    return rows.bsp(count, schema, window=second, parallelism=3)


def models(rows: tm.DataSet) -> tm.DataSet:
    """Count all rows until the end of each quarter of a second, in a value that all copies compute together."""
    if not rows._native.is_stream():
        quarter = tm.stream.window(tm.stream.tumbling("250ms"), on="ts")
        counts = rows.group_by(quarter).agg(n=tm.count())
        order = {"order_by": "window_start"}
        return counts.select(
            "window_start",
            round=tm.functions.row_number().over(**order).cast("int64") - 1,
            rows=tm.col("n").sum().over(**order),
        )

    def count(rows: tm.Table, value: np.ndarray | None) -> Any:
        # The mean of what the three copies return is the number of rows so far.
        return (0 if value is None else value) + 3 * len(rows)

    values = tm.stream.all_reduce(rows, count, every="250ms", on="ts", op="mean", parallelism=3)
    return values.select("window_start", "round", rows=tm.col("value").list.get(0).cast("int64"))


def hundreds(rows: tm.DataSet, for_a_time: bool = False) -> tm.DataSet:
    """Count each hundred rows of a key: which rows these are depends on timing, the number of hundreds does not."""
    if rows._native.is_stream():
        # Keys are remembered for longer than the job runs.
        window = (
            tm.stream.window(tm.stream.count_window(100, 50, ttl="1h"), on="ts")
            if for_a_time
            else tm.stream.window(tm.stream.count_window(100, 50))
        )
        return rows.group_by("key", window).agg(n=tm.count(), rows=tm.col("row").n_unique())
    counts = rows.group_by("key").agg(all=tm.count())
    windows = [
        counts.filter(tm.col("all") >= end).select(
            "key", window_start=tm.lit(end - 100), window_end=tm.lit(end), n=tm.lit(100), rows=tm.lit(100)
        )
        for end in range(100, 1000, 50)
    ]
    return functools.reduce(tm.DataSet.union, windows)


def quarters(times: pa.Array) -> tuple[Any, Any]:
    """Return the four windows of `sliding`, for `custom_window`."""
    at = times.cast(pa.int64()).to_numpy()
    starts = (at - at % 250_000)[:, None] - np.arange(4) * 250_000

    def lists(values: Any) -> Any:
        return pa.FixedSizeListArray.from_arrays(whole(values.ravel(), pa.timestamp("us")), 4)

    return lists(starts), lists(starts + 1_000_000)


def custom(rows: tm.DataSet) -> tm.DataSet:
    """Like `sliding`, with windows from a function."""
    if not rows._native.is_stream():
        return sliding(rows)
    return rows.group_by("key", tm.stream.window(tm.stream.custom_window(quarters), on="ts")).agg(n=tm.count())


QUERIES: dict[str, Callable[[tm.DataSet], tm.DataSet]] = {
    "windows": windows,
    "sliding": sliding,
    "early": early,
    "by_rows": by_rows,
    "by_steps": by_steps,
    "custom": custom,
    "hundreds": hundreds,
    "hundreds_for_a_time": functools.partial(hundreds, for_a_time=True),
    "pairs": pairs,
    "near": near,
    "best": best,
    "visits": visits,
    "kept_visits": kept_visits,
    "different": different,
    "remembered": remembered,
    "by_hand": by_hand,
    "together": together,
    "models": models,
}


def narrow(rows: tm.DataSet) -> tm.DataSet:
    """Count the rows of each key in short windows, for which rows that are far back are late."""
    return rows.group_by("key", tm.stream.window(tm.stream.tumbling("20ms"), on="ts")).agg(n=tm.count())


def lines(rows: tm.Table) -> list[str]:
    return [json.dumps(row, default=str) for row in rows.to_pylist()]


def expected(query: str) -> Counter[str]:
    """Return the expected result, from the query over the table."""
    return Counter(lines(QUERIES[query](tm.from_arrow(table())).collect()))


class Files:
    """A JSON lines file for each commit, which appears when its checkpoint is durable."""

    def __init__(self, folder: Path, pause_s: float = 0) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._pause_s = pause_s

    def write(self, rows: tm.Table) -> None:
        time.sleep(self._pause_s)
        self._lines += lines(rows)

    def prepare(self, epoch: int) -> bytes:
        rows, self._lines = self._lines, []
        # Copies on one worker prepare at the same time, but their rows differ.
        name = f"{epoch:06}-{os.getpid()}-{hash(rows[0]):x}" if rows else ""
        return json.dumps([name, rows]).encode() if rows else b""

    def commit(self, prepared: bytes) -> None:
        name, rows = json.loads(prepared)
        hidden = self._folder / f".{name}.{os.getpid()}"
        hidden.write_text("".join(f"{row}\n" for row in rows))
        hidden.rename(self._folder / name)


class Mover:
    """Moves the buckets of one task after another at random, each time the previous ones have moved."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._dice = seeds.dice()

    def __call__(self, running: tm.stream.Running) -> None:
        if all(move.done for move in running.moves):
            task = self._dice.choice(sorted(running.owners))
            copies = max(running.owners[task]) + 1
            running.rebalance(task, [self._dice.randrange(copies) for _ in running.owners[task]])
        done = [asdict(move) for move in running.moves if move.done]
        self._file.write_text(json.dumps(done))


def main() -> None:
    folder, query = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "windows"
    rank = tm.init().rank
    (folder / "pids" / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    late = query == "late"
    batch = 10 if late else 100
    stream = tm.stream.from_table(
        table(late=late), time="ts", max_out_of_orderness="6ms", rows_per_batch=batch, rows_per_s=ROWS_PER_S
    )
    rows = narrow(stream) if late else QUERIES[query](stream)
    watch = Mover(folder / "moves") if "moving" in sys.argv else None
    where = next((word for word in sys.argv[3:] if "://" in word), folder / "checkpoints")
    hurried = "hurried" in sys.argv
    late_output = Files(folder / "late") if late else None
    rows.write_stream(
        Files(folder / "results", pause_s=0.03 if hurried else 0),
        late_output=late_output,
        name="killed",
        checkpoint=tm.stream.Checkpoint(where, interval="100ms", unaligned_after=0 if hurried else 10),
        on_progress=watch,
    )


if __name__ == "__main__":
    main()
