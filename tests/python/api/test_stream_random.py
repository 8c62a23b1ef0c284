"""Random pipelines over a stream that ends give the same as over a table of its rows, in any order within bounds.

``TIDEMILL_STREAM_SEEDS=100:200`` runs these seeds, ``TIDEMILL_STREAM_SEEDS=17`` one; a failure prints its seed.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import tidemill as tm

SCHEMA = {"at": "timestamp[s]", "k": "str", "g": "int64", "x": "int64", "id": "int64"}
#: The number of seconds by which rows may be out of order.
BOUND_S = 20
COUNT = 240

Pipeline = Callable[[tm.DataSet, tm.DataSet], tm.DataSet]


def seeds() -> range:
    first, _, end = os.environ.get("TIDEMILL_STREAM_SEEDS", "0:24").partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def rows_of(dice: random.Random) -> list[dict[str, Any]]:
    """Return rows in the order of their time, with pauses, equal times, and nulls."""
    second, rows = 0, []
    for number in range(COUNT):
        second += dice.choice([0, 0, 1, 1, 2, 3, dice.choice([1, 40])])
        at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=second)
        rows.append(
            {
                "at": at.strftime("%Y-%m-%dT%H:%M:%S"),
                "k": dice.choice(["a", "b", "c", None]),
                "g": dice.randrange(4),
                "x": dice.choice([None, *range(-5, 20)]),
                "id": number,
            }
        )
    return rows


def in_order_of_arrival(rows: list[dict[str, Any]], dice: random.Random) -> list[dict[str, Any]]:
    """Return rows out of order by less than the bound."""
    jitter = [dice.choice([0.0, dice.uniform(0, BOUND_S - 1)]) for _ in rows]
    arrival = {row["id"]: datetime.fromisoformat(row["at"]).timestamp() + jitter[row["id"]] for row in rows}
    return sorted(rows, key=lambda row: arrival[row["id"]])


def stream_of(folder: Path, rows: list[dict[str, Any]], dice: random.Random) -> tuple[tm.DataSet, tm.DataSet]:
    """Return the table of the rows, and a stream of them: of files, each a split, or of the table in small batches."""
    folder.mkdir()
    arrived = in_order_of_arrival(rows, dice)
    files: list[list[dict[str, Any]]] = [[] for _ in range(dice.choice([1, 2, 3, 5]))]
    for row in arrived:
        dice.choice(files).append(row)
    for number, of_file in enumerate(files):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_file))
    table = tm.read_json(folder, schema=SCHEMA)
    bounds = {"max_out_of_orderness": f"{BOUND_S}s", "idle_after": "1h"}
    if dice.random() < 0.5:
        return table, tm.stream.from_files(folder, SCHEMA, time="at", stop_at_end=True, **bounds)
    (folder / "all").write_text("".join(json.dumps(row) + "\n" for row in arrived))
    whole = tm.read_json(folder / "all", schema=SCHEMA).collect()
    (folder / "all").unlink()
    return table, tm.stream.from_table(
        whole, time="at", rows_per_batch=dice.choice([1, 3, 10]), rows_per_s=5000, **bounds
    )


def pipeline(dice: random.Random) -> tuple[str, Pipeline]:
    """Return a pipeline, and its description for a failure."""
    steps: list[tuple[str, Callable[[tm.DataSet], tm.DataSet]]] = []
    for _ in range(dice.randrange(3)):
        bound = dice.randrange(-3, 15)
        made = {
            "above": lambda data, bound=bound: data.filter(tm.col("x") > bound),
            "known": lambda data: data.filter(tm.col("x").is_not_null()),
            "key": lambda data, bound=bound: data.filter((tm.col("k") == "a") | (tm.col("g") < bound % 4)),
            "more": lambda data, bound=bound: data.with_columns(x=tm.col("x") * 2 + tm.col("g") - bound),
            "chosen": lambda data: data.select("id", "k", "x", "g", "at"),
            "named": lambda data: data.rename({"id": "number"}).rename({"number": "id"}),
        }
        kind = dice.choice(list(made))
        steps.append((f"{kind} {bound}", made[kind]))
    ends = ["rows", "window", "window", "window", "distinct", "table", "self", "twice"]
    end = dice.choice(ends)
    size = dice.choice([5, 10, 30])
    panes = dice.choice([1, 1, 3])
    keys = dice.choice([[], ["k"], ["g"], ["k", "g"]])
    how = dice.choice(["inner", "left"])
    least = dice.choice([0, 0, 1, 2])

    def windowed(data: tm.DataSet) -> tm.DataSet:
        x, pane = tm.col("x"), timedelta(seconds=size)
        of = tm.stream.tumbling(pane)
        if panes > 1 and data._native.is_stream():
            of = tm.stream.sliding(panes * pane, pane)
        elif panes > 1:
            # A table has no overlapping windows: each row is in several that do not overlap.
            shifted = [data.with_columns(at=tm.col("at") - at * pane) for at in range(panes)]
            data = functools.reduce(lambda some, other: some.union(other), shifted)
        found = data.group_by(*keys, tm.stream.window(of, on="at")).agg(
            n=tm.count(), s=x.sum(), least=x.min(), most=x.max(), ids=tm.col("id").sum()
        )
        if panes > 1 and not data._native.is_stream():
            found = found.with_columns(window_end=tm.col("window_start") + panes * pane)
        return found.filter(tm.col("n") > least)

    def whole(data: tm.DataSet, others: tm.DataSet) -> tm.DataSet:
        for _, step in steps:
            data = step(data)
        if end == "window":
            return windowed(data)
        if end == "distinct":
            return data.select("k", "g").distinct()
        if end == "table":
            return windowed(data.join(others, on="g", how=how)) if least else data.join(others, on="g", how=how)
        if end == "self":
            later = data.select(g="g", at_then="at", id_then="id")
            soon = (tm.col("at_then") >= tm.col("at")) & (tm.col("at_then") <= tm.col("at") + timedelta(seconds=size))
            return data.select("g", "at", "id").join(later, on="g", how=how, where=soon)
        if end == "twice":
            wider = tm.stream.tumbling(f"{6 * size}s")
            of_windows = windowed(data).select("window_end", "n").group_by(tm.stream.window(wider, on="window_end"))
            return of_windows.agg(n=tm.col("n").sum(), windows=tm.count())
        return data

    told = f"{[name for name, _ in steps]} then {end}: {panes} x {size} s, keys {keys}, {how}, n > {least}"
    return told, whole


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def test_streams_say_what_tables_say(tmp_path: Path) -> None:
    compared = 0
    for seed in seeds():
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        table, stream = stream_of(folder, rows_of(dice), dice)
        told, whole = pipeline(dice)
        others = tm.from_dict({"g": [0, 1, 3], "name": ["zero", "one", "three"]})
        of_table = whole(table, others).collect().to_pylist()
        seen: list[dict[str, Any]] = []
        whole(stream, others).write_stream(lambda table, seen=seen: seen.extend(table.to_pylist()))
        missing, more = counted(of_table) - counted(seen), counted(seen) - counted(of_table)
        wrong = f"seed {seed}: {told}\nonly of the table: {list(missing)[:3]}\nonly of the stream: {list(more)[:3]}"
        assert not missing and not more, wrong
        assert tm.last_report().late_rows == 0, wrong
        compared += len(of_table)
    # Pipelines without results would all agree.
    assert compared > len(seeds())
