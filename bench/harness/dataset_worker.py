"""One query under one system: from the files to all rows of the answer in memory.

    dataset_worker.py SYSTEM QUERY FOLDER

Prints one JSON object: `query_s`, the median of the seconds of a few runs after one that does not count, and `digest` of the
answer. The files are in the system's cache by then; nothing of them is kept by the program between runs.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Query = Callable[[], Any]  # a table with the Arrow PyCapsule interface: a key and a whole number in each row
ENOUGH_S, REPEATS_MAX = 2.0, 5

SQL = {
    "group": "select k, sum(x)::bigint as x from {facts} group by k",
    "join": "select g, sum(x)::bigint as x from {facts} f join {dimension} d on f.k = d.k group by g",
    "words": "select word, count(*) as n from (select unnest(string_split(line, ' ')) as word from {text}) group by word",
}


def tidemill(system: str, query: str, folder: Path) -> tuple[Any, Query]:
    """The answer goes to worker 0."""
    import tidemill as tm

    def run() -> Any:
        x = tm.col("x")
        if query == "words":
            words = tm.read_text(folder / "text.txt").select(word=tm.col("line").str.split(" ")).explode("word")
            return words.group_by("word").count().collect(root=0)
        facts = tm.read_parquet(folder / "facts")
        if query == "join":
            joined = facts.join(tm.read_parquet(folder / "dimension"), on="k")
            return joined.group_by("g").agg(x.sum()).collect(root=0)
        return facts.group_by("k").agg(x.sum()).collect(root=0)

    return tm.init().comm, run


def polars(system: str, query: str, folder: Path) -> tuple[Any, Query]:
    import polars as pl

    engine = "streaming" if system.endswith("streaming") else "in-memory"

    def run() -> Any:
        if query == "words":
            # The separator is a character that no line has: each line is one column.
            lines = pl.scan_csv(
                folder / "text.txt", has_header=False, separator="\x01", quote_char=None, new_columns=["line"]
            )
            words = lines.select(word=pl.col("line").str.split(" ")).explode("word")
            return words.group_by("word").agg(pl.len()).collect(engine=engine)
        facts = pl.scan_parquet(folder / "facts" / "*.parquet")
        if query == "join":
            joined = facts.join(pl.scan_parquet(folder / "dimension" / "*.parquet"), on="k")
            return joined.group_by("g").agg(pl.col("x").sum()).collect(engine=engine)
        return facts.group_by("k").agg(pl.col("x").sum()).collect(engine=engine)

    return None, run


def duckdb(system: str, query: str, folder: Path) -> tuple[Any, Query]:
    import duckdb as library

    connection = library.connect(config={"threads": 2})
    sources = {name: f"read_parquet('{folder}/{name}/*.parquet')" for name in ("facts", "dimension")}
    options = "header = false, delim = '\x01', quote = '', escape = '', columns = {'line': 'VARCHAR'}"
    sources["text"] = f"read_csv('{folder}/text.txt', {options})"

    def run() -> Any:
        return connection.sql(SQL[query].format(**sources)).to_arrow_table()

    return None, run


SYSTEMS = {"tidemill": tidemill, "polars": polars, "duckdb": duckdb}


def digest(answer: Any) -> str:
    import pyarrow as pa

    rows = sorted(zip(*(column.to_pylist() for column in pa.table(answer).columns), strict=True))
    return f"{len(rows)} {hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}"


def main() -> None:
    system, query, folder = sys.argv[1:]
    comm, run = SYSTEMS[system.split("-")[0]](system, query, Path(folder))
    run()  # warm-up: page faults, thread pools, libraries loaded late
    seconds: list[float] = []
    again = True
    while again:
        if comm:
            comm.Barrier()
        start = time.perf_counter()
        answer = run()
        seconds.append(time.perf_counter() - start)
        again = sum(seconds) < ENOUGH_S and len(seconds) < REPEATS_MAX
        if comm:  # rank 0 decides for all: a query is collective
            again = comm.bcast(again)
    if comm is None or comm.rank == 0:
        print(json.dumps({"query_s": statistics.median(seconds), "digest": digest(answer)}), flush=True)


main()
