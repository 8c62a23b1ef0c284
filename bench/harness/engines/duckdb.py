"""DuckDB with two threads; tables in memory are its own, which it scans faster than Arrow's."""

from __future__ import annotations

from pathlib import Path

import duckdb

from . import SQL, Query, Sorter, Task

WORDS = "select word, count(*) as n from (select unnest(string_split(line, ' ')) as word from {text}) group by word"


def connect(task: Task) -> duckdb.DuckDBPyConnection:
    # Without this, output has the order of the input's rows, which holds memory and is not asked for.
    config = {"threads": 2, "preserve_insertion_order": False, "temp_directory": str(task.folder / "spill")}
    if task.memory_mib:
        config["memory_limit"] = f"{task.memory_mib}MiB"
    return duckdb.connect(config=config)


def queries(task: Task) -> Query:
    connection = connect(task)
    options = "header = false, delim = '\x01', quote = '', escape = '', columns = {'line': 'VARCHAR'}"
    sources = {"text": f"read_csv('{task.text}', {options})"}
    for table in task.tables:
        sources[table] = f"read_parquet('{task.folder}/{table}/*.parquet')"
        if task.in_memory:
            connection.execute(f"create table {table} as select * from {sources[table]}")
            sources[table] = table
    query = {**SQL, "words": WORDS}[task.query].format(**sources)
    return lambda: connection.sql(query).to_arrow_table()


def sorter(task: Task) -> Sorter:
    connection = connect(task)

    def run(source: Path, target: Path) -> None:
        target.mkdir()
        records = f"select * from read_parquet('{source}/parquet/*.parquet') order by key"
        connection.execute(f"copy ({records}) to '{target}/0.parquet' (format parquet, compression uncompressed)")

    return run
