"""DataFusion alone, through its own Python package: what Tidemill's engine does without Tidemill."""

from __future__ import annotations

from pathlib import Path

import datafusion as df
import pyarrow.parquet as pq

from . import SQL, Query, Sorter, Task

PARTITIONS = 2
WORDS = "select word, count(*) as n from (select unnest(string_to_array(line, ' ')) as word from text) group by word"


def context(task: Task) -> df.SessionContext:
    runtime = df.RuntimeEnvBuilder().with_disk_manager_specified(str(task.folder))
    if task.memory_mib:
        runtime = runtime.with_fair_spill_pool(task.memory_mib << 20)
    return df.SessionContext(df.SessionConfig().with_target_partitions(PARTITIONS), runtime)


def queries(task: Task) -> Query:
    session = context(task)
    if task.query == "words":
        import pyarrow as pa

        # A delimiter that no line has: each line is one column.
        schema = pa.schema({"line": pa.string()})
        session.register_csv(
            "text", str(task.text), schema=schema, has_header=False, delimiter="\x01", file_extension=".txt"
        )
    for table in task.tables:
        if task.in_memory:
            # As many rows in a batch as DataFusion's operators hand on, and the same number of batches to each thread.
            batches = pq.read_table(task.folder / table).combine_chunks().to_batches(max_chunksize=8192)
            session.register_record_batches(table, [batches[part::PARTITIONS] for part in range(PARTITIONS)])
        else:
            session.register_parquet(table, str(task.folder / table))
    query = {**SQL, "words": WORDS}[task.query].format(facts="facts", dimension="dimension")
    return lambda: session.sql(query).to_arrow_table()


def sorter(task: Task) -> Sorter:
    session = context(task)

    def run(source: Path, target: Path) -> None:
        target.mkdir()
        session.deregister_table("records")
        session.register_parquet("records", str(source / "parquet"))
        options = "stored as parquet options ('format.compression' 'uncompressed', 'format.dictionary_enabled' 'false')"
        session.sql(f"copy (select * from records order by key) to '{target}/0.parquet' {options}").collect()

    return run
