"""A job with several times as much state as its workers may hold in memory; its rows, and the expected results, are
computed.

Run as ``state_job.py FOLDER QUERY [checkpoints [moving]]``: results go to FOLDER/results, spilled data to
FOLDER/spilled, pids to FOLDER/pids; with ``checkpoints``, these go to FOLDER/checkpoints; with ``moving``, keys
constantly move between workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import stream_job
import tidemill as tm

#: The memory of each worker. The interpreter and libraries are not counted, but threads and queues alone need more than
#: this, so memory is always short, and everything large enough for a file goes into one.
MEMORY = "8MiB"
#: The numbers of rows and of their keys, which take turns.
SIZES = {
    "windows": (400_000, 200_000),
    "small_windows": (1_200_000, 200),
    "pairs": (250_000, 250_000),
    "by_rows": (400_000, 100_000),
    "by_rows_of_numbers": (1_500_000, 500_000),
    "sessions": (600_000, 150_000),
    "counts": (400_000, 100_000),
    "different": (600_000, 400_000),
    "remembered": (600_000, 400_000),
    "states": (60_000, 20_000),
}
#: The number of rows after which a partner comes.
LATER = 150_000

NUMBER, KEY = tm.col("number"), tm.col("key")


def rows(query: str) -> tm.DataSet:
    """Return rows with the number of their key, from four sources that are not in step."""
    count, keys = SIZES[query]
    # Slow enough that a worker can be killed in the middle.
    rows_per_s = count / 8 if "checkpoints" in sys.argv else 0
    made = tm.stream.from_generator(rows_per_s, rows=count, splits=4, step="1ms", max_out_of_orderness="60s")
    return made.select("number", "time", key=NUMBER % keys)


def name(number: tm.Expr) -> tm.Expr:
    """Return a long string."""
    return tm.functions.scalar("lpad", number.cast("str"), 160, "x")


def windows(query: str) -> tm.DataSet:
    """Aggregate each key in a window with all of its rows."""
    made = rows(query).select("number", "time", name=name(KEY))
    counts = made.group_by("name", tm.stream.window(tm.stream.tumbling("30d"), on="time")).agg(
        n=tm.count(), sum=NUMBER.sum()
    )
    return counts.select("n", "sum", key=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"))


def small_windows(query: str) -> tm.DataSet:
    """Aggregate in thousands of windows with few keys, none of which ends before the stream does: each has two rows of
    each key.
    """
    count, keys = SIZES[query]
    rows_per_s = count / 8 if "checkpoints" in sys.argv else 0
    made = tm.stream.from_generator(rows_per_s, rows=count, splits=4, step="1ms", max_out_of_orderness="30d")
    window = tm.stream.window(tm.stream.tumbling(timedelta(milliseconds=2 * keys)), on="time")
    counts = made.select("number", "time", of=NUMBER % keys).group_by("of", window)
    return counts.agg(key=NUMBER.min(), n=tm.count(), sum=NUMBER.sum()).select("key", "n", "sum")


def by_rows(query: str) -> tm.DataSet:
    """Like `windows`, but the third row of each key gives a result, too."""
    made = rows(query).select("number", "time", name=name(KEY))
    window = tm.stream.window(tm.stream.tumbling("30d"), on="time", emit_early_rows=3)
    counts = made.group_by("name", window).agg(n=tm.count(), sum=NUMBER.sum())
    sum_ = tm.when(tm.col("window_final")).then(tm.col("sum")).otherwise(-1)
    return counts.select("n", sum=sum_, key=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"))


def by_rows_of_numbers(query: str) -> tm.DataSet:
    """Aggregate so many short keys that the metadata of their chains exceeds memory; the second row of three gives a
    result, too.
    """
    window = tm.stream.window(tm.stream.tumbling("30d"), on="time", emit_early_rows=2)
    counts = rows(query).group_by("key", window).agg(n=tm.count(), sum=NUMBER.sum())
    return counts.select("key", "n", sum=tm.when(tm.col("window_final")).then(tm.col("sum")).otherwise(-1))


def sessions(query: str) -> tm.DataSet:
    """Two sessions per key, one that ends while others still begin, and one at the end, because the third row of four
    is missing.
    """
    keys = SIZES[query][1]
    made = rows(query).filter(NUMBER // keys != 2).select("number", "time", name=name(KEY))
    gap = timedelta(milliseconds=keys + 10_000)
    counts = made.group_by("name", tm.stream.window(tm.stream.session(gap), on="time")).agg(
        n=tm.count(), sum=NUMBER.sum()
    )
    return counts.select("n", "sum", key=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"))


def counts(query: str) -> tm.DataSet:
    """Return a window of two panes per key, which its last row completes."""
    made = rows(query).select("number", name=name(KEY))
    counts = made.group_by("name", tm.stream.window(tm.stream.count_window(4, 2))).agg(n=tm.count(), sum=NUMBER.sum())
    return counts.select("n", "sum", key=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"))


def pairs(query: str) -> tm.DataSet:
    """Join each row with one that comes long after it."""
    first = rows(query).select("time", key=KEY, name=name(KEY))
    then = rows(query).select(then="time", key=KEY - LATER, n=NUMBER)
    late = timedelta(milliseconds=LATER)
    where = (tm.col("then") >= tm.col("time") + late) & (tm.col("then") <= tm.col("time") + late)
    joined = first.join(then, on="key", how="left", where=where)
    return joined.select("key", sum=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"), n=tm.col("n"))


def different(query: str) -> tm.DataSet:
    """Return the distinct names."""
    once = rows(query).select(name=name(KEY)).distinct()
    return once.select(key=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"), n=tm.lit(1), sum=tm.lit(0))


def remembered(query: str) -> tm.DataSet:
    """Return the distinct names with a ttl, which has no effect because all rows are within a month."""
    once = rows(query).select("time", name=name(KEY)).distinct("name", ttl="30d")
    return once.select(key=tm.functions.scalar("ltrim", tm.col("name"), "x").cast("int64"), n=tm.lit(1), sum=tm.lit(0))


def states(query: str) -> tm.DataSet:
    """Count the rows of each key by a function with a large state, which returns the count at the end."""
    far = timedelta(days=365)

    def count(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> Any:
        n, sum_, name = context.state or (0, 0, f"{key['key']:500}")
        if context.timers:
            context.state = None
            return {"key": int(name), "n": n, "sum": sum_}
        if not n:
            context.set_timer(rows[0]["time"] + far)
        context.state = (n + len(rows), sum_ + sum(row["number"] for row in rows), name)
        return None

    return rows(query).key_by("key").process(count, {"key": "int64", "n": "int64", "sum": "int64"})


QUERIES: dict[str, Callable[[str], tm.DataSet]] = {
    "windows": windows,
    "small_windows": small_windows,
    "by_rows": by_rows,
    "by_rows_of_numbers": by_rows_of_numbers,
    "sessions": sessions,
    "counts": counts,
    "pairs": pairs,
    "different": different,
    "remembered": remembered,
    "states": states,
}


def expected(query: str) -> pa.Table:
    """Return the expected result of a query, in the order of its keys."""
    count, keys = SIZES[query]
    if query == "pairs":
        partners = [key + LATER if key + LATER < count else None for key in range(keys)]
        return pa.table({"key": range(keys), "n": partners, "sum": range(keys)})
    if query in ("different", "remembered"):
        return pa.table({"key": range(keys), "n": [1] * keys, "sum": [0] * keys})
    if query == "small_windows":
        firsts = [start + key for start in range(0, count, 2 * keys) for key in range(keys)]
        return pa.table({"key": firsts, "n": [2] * len(firsts), "sum": [2 * first + keys for first in firsts]})
    if query == "sessions":
        keys_ = [key for key in range(keys) for _ in range(2)]
        sums = [sum_ for key in range(keys) for sum_ in (key + 3 * keys, 2 * key + keys)]
        return pa.table({"key": keys_, "n": [1, 2] * keys, "sum": sums})
    each = [range(key, count, keys) for key in range(keys)]
    if query.startswith("by_rows"):
        # In the order of keys and results: after the row before the last, and at the end.
        keys_ = [key for key in range(keys) for _ in range(2)]
        sums = [sum_ for one in each for sum_ in (-1, sum(one))]
        rows_ = count // keys
        return pa.table({"key": keys_, "n": [rows_ - 1, rows_] * keys, "sum": sums})
    return pa.table({"key": range(keys), "n": [len(one) for one in each], "sum": [sum(one) for one in each]})


class Files:
    """Write an Arrow file for each commit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: list[pa.Table] = []

    def write(self, rows: tm.Table) -> None:
        self._tables.append(rows.to_arrow())

    def prepare(self, epoch: int) -> bytes:
        if not self._tables:
            return b""
        tables, self._tables = pa.concat_tables(self._tables), []
        made = f"{epoch:06}-{os.getpid()}-{id(tables):x}"
        with pa.OSFile(str(self._folder / f".{made}"), "wb") as file, pa.ipc.new_file(file, tables.schema) as writer:
            writer.write_table(tables)
        return made.encode()

    def commit(self, prepared: bytes) -> None:
        made = prepared.decode()
        if (self._folder / f".{made}").exists():
            (self._folder / f".{made}").rename(self._folder / made)


def main() -> None:
    folder, query = Path(sys.argv[1]), sys.argv[2]
    rank = tm.init().rank
    (folder / "pids" / f"{rank}.pid").write_text(f"{os.getpid()}\n")

    def note(report: Any) -> None:
        (folder / "spilled" / str(rank)).write_text(str(report["spilled_bytes"]))

    options: dict[str, Any] = {}
    if "checkpoints" in sys.argv:
        options = {"checkpoint": tm.stream.Checkpoint(folder / "checkpoints", interval="300ms")}
    if "moving" in sys.argv:
        options["on_progress"] = stream_job.Mover(folder / "moves")
    note(QUERIES[query](query).write_stream(Files(folder / "results"), name="large", **options))


if __name__ == "__main__":
    main()
