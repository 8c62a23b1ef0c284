"""Polars, with its in-memory or its streaming engine; POLARS_MAX_THREADS=2 is set where it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from . import WINDOWS, Query, Sorter, Task


def engine(task: Task) -> Any:
    return "streaming" if task.engine.endswith("streaming") else "in-memory"


def queries(task: Task) -> Query:
    how = engine(task)
    if task.query == "words":
        return lambda: words(task.text).collect(engine=how)
    facts, *dimension = (table(task, name) for name in task.tables)
    if task.query in WINDOWS:
        return lambda: windows(facts, task.query, how == "streaming").collect(engine=how)
    x = pl.col("x").sum()
    if dimension:
        return lambda: facts.join(dimension[0], on="k").group_by("g").agg(x).collect(engine=how)
    return lambda: facts.group_by("k").agg(x).collect(engine=how)


def windows(facts: pl.LazyFrame, query: str, streaming: bool) -> pl.LazyFrame:
    """Each in the way that took the least time of those tried; `v` has no equals, so a rank is a row's number."""
    k, v, x = pl.col("k"), pl.col("v"), pl.col("x")
    if query == "row-number":
        rows = facts.select("x", w=v.rank("ordinal").over("k").cast(pl.Int64))
    elif query == "running-sum" and streaming:
        rows = facts.sort("v").select("x", w=x.cum_sum().over("k"))
    elif query == "running-sum":
        rows = facts.select("x", w=x.cum_sum().over("k", order_by="v"))
    else:
        # Neighbors in one sort of all rows, where they have the same key.
        one, two = (
            pl.when(k == k.shift(by)).then(x.shift(by)).otherwise(other) for by, other in ((1, 5000), (-2, 7000))
        )
        rows = facts.sort("k", "v").select("x", w=one + 3 * two)
    return rows.select(k=pl.len().cast(pl.Int64), x=(pl.col("w") * (x + 2000)).sum())


def table(task: Task, name: str) -> pl.LazyFrame:
    lazy = pl.scan_parquet(task.parquet(name))
    return lazy.collect().rechunk().lazy() if task.in_memory else lazy


def words(text: Path) -> pl.LazyFrame:
    # The separator is a character that no line has: each line is one column.
    lines = pl.scan_csv(text, has_header=False, separator="\x01", quote_char=None, new_columns=["line"])
    return lines.select(word=pl.col("line").str.split(" ")).explode("word").group_by("word").agg(pl.len())


def sorter(task: Task) -> Sorter:
    how = engine(task)

    def run(source: Path, target: Path) -> None:
        target.mkdir()
        records = pl.scan_parquet(source / "parquet" / "*.parquet").sort("key")
        records.sink_parquet(target / "0.parquet", compression="uncompressed", engine=how)

    return run
