"""A job whose program changes between its runs: the same query, with fields added to its state.

Run as ``evolving_job.py FOLDER QUERY VERSION [stop]``: version 1 is the original query, 2 has additional nullable
fields, and others contain invalid changes. Results go to FOLDER/results, pids to FOLDER/pids; with ``stop``, the job
stops with a checkpoint.

``evolving_job.py FOLDER QUERY refused VERSION...`` tries versions that must not start, one after the other, and prints
the error of each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import stream_job
import tidemill as tm

ROWS, KEYS, ROWS_PER_S = 20_000, 50, 3000
KEY, ROW, X = tm.col("key"), tm.col("row"), tm.col("x")


def table() -> pa.Table:
    """Return a thousand rows per second of event time; `x` is nullable, and `y` is not."""
    fields = [("ts", pa.timestamp("us")), ("key", pa.int64()), ("row", pa.int64()), ("x", pa.int64())]
    schema = pa.schema([*fields, pa.field("y", pa.int64(), nullable=False)])
    rows = list(range(ROWS))
    times = stream_job.whole([row * 1000 for row in rows], pa.timestamp("us"))
    columns = [[row % KEYS for row in rows], rows, [3 * row for row in rows], rows]
    return pa.table([times, *map(stream_job.whole, columns)], schema=schema)


def aggregates(version: str) -> dict[str, tm.Expr]:
    """Return aggregates; in version 2, `low` and `middle` cover the rows since the change."""
    old = {"n": tm.count(), "sum": ROW.sum()}
    return {
        "1": old,
        "2": {"low": ROW.min(), **old, "middle": ROW.mean()},
        "counted": {**old, "more": X.count()},
        "other type": {**old, "sum": ROW.cast("float64").sum()},
        "other function": {**old, "sum": ROW.max()},
        "gone": {"n": tm.count()},
    }[version]


def windows(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Aggregate in one window that stays open all the time."""
    keys: list[Any] = ["key", (X % 2).alias("odd")] if version == "other key" else ["key"]
    made = aggregates("1" if version in ("other key", "by rows") else version)
    window = tm.stream.window(tm.stream.tumbling("1h"), on="ts", emit_early_rows=5 if version == "by rows" else None)
    return rows.group_by(*keys, window).agg(**made)


def by_rows(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Like `windows`, but also with a result after every fourth row of a key, and in later versions after every tenth."""
    window = tm.stream.window(tm.stream.tumbling("1h"), on="ts", emit_early_rows=4 if version == "1" else 10)
    made = rows.group_by("key", window).agg(**aggregates(version))
    return made.filter(tm.col("window_final")).drop("window_final")


def sessions(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Like `windows`: no key is silent long enough to end its session."""
    return rows.group_by("key", tm.stream.window(tm.stream.session("1m"), on="ts")).agg(**aggregates(version))


def counting(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Like `windows`: one window for all rows of a key."""
    return rows.group_by("key", tm.stream.window(tm.stream.count_window(ROWS // KEYS))).agg(**aggregates(version))


def pairs(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Join each row with one a second later, and keep it until then."""
    more = {"1": [], "2": [X], "not null": ["y"]}[version]
    then = rows.select(partner=ROW, again="ts")
    first = rows.select("row", "ts", *more, partner=ROW + 1000)
    where = (tm.col("again") >= tm.col("ts")) & (tm.col("again") <= tm.col("ts") + timedelta(seconds=1))
    return first.join(then, on="partner", how="left", where=where).drop("ts", "again")


def groups(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Return each row with its rank among those of its time; all wait until that time has passed."""
    placed = rows.with_columns(place=tm.functions.row_number().over("ts", order_by="row"))
    return placed.select("row", "place", *([X] if version == "2" else []))


def function(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Compute the same as `windows` by a function with a state that has fields."""
    state = {
        "1": {"n": "int64", "sum": "int64"},
        "2": {"low": "int64", "n": "int64", "sum": "int64"},
        "other type": {"n": "int64", "sum": "float64"},
        "gone": {"n": "int64"},
        "without names": None,
    }[version]
    far = timedelta(days=1)

    def count(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> Any:
        kept = context.state
        if context.timers:
            context.state = None
            return {**key, **kept, "low": kept.get("low")}
        if kept is None:
            context.set_timer(rows[0]["ts"] + far)
            kept = dict.fromkeys(state or {})
        kept["n"] = (kept["n"] or 0) + len(rows)
        if "sum" in kept:
            kept["sum"] = (kept["sum"] or 0) + sum(row["row"] for row in rows)
        if version == "2" and kept["low"] is None:
            kept["low"] = min(row["row"] for row in rows)
        context.state = kept
        return None

    schema = {"key": "int64", "n": "int64", "sum": "int64", "low": "int64"}
    return rows.key_by("key").process(count, schema, state=state)


def items(rows: tm.DataSet, version: str) -> tm.DataSet:
    """Compute the same by a list, a map and an aggregate that have fields."""
    item, low = {"row": "int64"}, {"n": "int64"}
    lists, maps = {
        **dict.fromkeys(["1", "other aggregate"], ({"seen": item}, {"of": ("int64", low)})),
        "2": (
            {"seen": {"at": "timestamp[us]", **item}},
            {"of": ("int64", {"low": "int64", **low}), "new": ("str", "str")},
        ),
        "other type": ({"seen": {"row": "float64"}}, {"of": ("int64", low)}),
        "other names": ({"seen": item}, {"of": ("str", low)}),
        "gone": ({"seen": item}, {}),
        "no fields": ({"seen": "int64"}, {"of": ("int64", low)}),
    }[version]
    # A new field among several existing ones.
    aggregates: dict[str, Any] = {"sum": "int64", **({"last": {"row": "int64"}} if version == "2" else {})}
    if version == "other aggregate":
        aggregates = {"sum": "float64"}
    far = timedelta(days=1)

    def count(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> Any:
        seen, of = context.list_state("seen"), context.map_state("of")
        total = context.aggregate_state("sum", "sum")
        if context.timers:
            assert version != "2" or all(set(item) == {"at", "row"} for item in seen)
            lows = [kept["low"] for kept in of.values() if version == "2" and kept["low"] is not None]
            n, sum_ = sum(kept["n"] for kept in of.values()), sum(item["row"] for item in seen)
            assert total.get() == sum_
            if version == "2":
                last = context.aggregate_state("last", lambda _, row: row)
                assert last.get() in (None, {"row": list(seen)[-1]["row"]})
                last.clear()
            total.clear()
            seen.clear()
            of.clear()
            return {**key, "n": n, "sum": sum_, "low": min(lows, default=None)}
        if not seen:
            context.set_timer(rows[0]["ts"] + far)
        for row in rows:
            number = row["row"]
            total.add(number)
            if version == "2":
                context.aggregate_state("last", lambda _, row: row).add({"row": number})
            seen.append({"row": number, **({"at": row["ts"]} if version == "2" else {})})
            kept = of.get(number % 3) or {"n": 0}
            kept["n"] += 1
            if version == "2" and kept.get("low") is None:
                kept["low"] = number
            of[number % 3] = kept
        return None

    schema = {"key": "int64", "n": "int64", "sum": "int64", "low": "int64"}
    return rows.key_by("key").process(count, schema, lists=lists, maps=maps, aggregates=aggregates)


QUERIES: dict[str, Callable[[tm.DataSet, str], tm.DataSet]] = {
    "windows": windows,
    "by_rows": by_rows,
    "sessions": sessions,
    "counting": counting,
    "pairs": pairs,
    "groups": groups,
    "function": function,
    "items": items,
}


def main() -> None:
    folder, query, version = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank = tm.init().rank
    (folder / "pids" / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    if version != "refused":
        write(folder, query, version)
        return
    for other in sys.argv[4:]:
        try:
            write(folder, query, other)
        except tm.DataSetError as error:
            print(json.dumps([other, str(error)]))
        else:
            sys.exit(f"{query}, {other}, was not refused")


def write(folder: Path, query: str, version: str) -> None:
    """Run the job."""
    rows = tm.stream.from_table(
        table(), time="ts", max_out_of_orderness="5s", rows_per_batch=100, rows_per_s=ROWS_PER_S
    )
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 8

    QUERIES[query](rows, version).write_stream(
        stream_job.Files(folder / "results"),
        name="evolving",
        checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="100ms"),
        stop_when=stop if "stop" in sys.argv else None,
    )


if __name__ == "__main__":
    main()
