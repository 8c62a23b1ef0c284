"""Tidemill. A table in memory is `from_local`: each worker holds a share of the rows. The answer goes to worker 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tidemill as tm

from . import WINDOWS, Query, Sorter, Task


def queries(task: Task) -> Query:
    if task.query == "words":
        return lambda: words(task.text)
    facts, *dimension = (loaded(task, table) if task.in_memory else files(task, table) for table in task.tables)
    if task.query in WINDOWS:
        return lambda: windows(facts, task.query).collect(root=0)
    x = tm.col("x").sum()
    if dimension:
        return lambda: facts.join(dimension[0], on="k").group_by("g").agg(x).collect(root=0)
    return lambda: facts.group_by("k").agg(x).collect(root=0)


def windows(facts: tm.DataSet, query: str) -> tm.DataSet:
    x = tm.col("x")

    def over(function: tm.Expr) -> tm.Expr:
        return function.over("k", order_by="v")

    number = {
        "row-number": over(tm.functions.row_number()),
        "running-sum": over(x.sum()),
        "lag-lead": over(x.shift(1)).fill_null(5000) + 3 * over(x.shift(-2)).fill_null(7000),
    }[query]
    return facts.select("x", w=number).select(k=tm.count(), x=(tm.col("w") * (x + 2000)).sum())


def words(text: Path) -> Any:
    lines = tm.read_text(text)
    return lines.select(word=tm.col("line").str.split(" ")).explode("word").group_by("word").count().collect(root=0)


def files(task: Task, table: str) -> tm.DataSet:
    return tm.read_parquet(task.folder / table)


def loaded(task: Task, table: str) -> tm.DataSet:
    import pyarrow as pa
    import pyarrow.parquet as pq

    job = tm.init()
    mine = [pq.read_table(path) for path in task.parquet(table)[job.rank :: job.size]]
    return tm.from_local(pa.concat_tables(mine))


def sorter(task: Task) -> Sorter:
    """As `tidemill terasort` does it."""
    from tidemill.apps._tera import COLUMNS
    from tidemill.dataset._read import read_records

    def run(source: Path, target: Path) -> None:
        read_records(source / "records", COLUMNS).sort("key").write_records(target)

    return run
