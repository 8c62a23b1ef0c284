"""A job with several sinks, whose workers are killed: windows of a stream and some of its rows, each in separate files.

Run as ``several_job.py FOLDER [stopping] [more]``: checkpoints go to FOLDER/checkpoints, results to FOLDER/windows and
FOLDER/rows, pids to FOLDER/pids. With ``stopping``, the job stops when it has made some checkpoints; with ``more``, it
has an additional query, to FOLDER/more.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import stream_job
import tidemill as tm
from stream_job import Files


def queries(rows: tm.DataSet) -> dict[str, tm.DataSet]:
    """Return the queries over the rows that pass a filter, by folder."""
    most = rows.filter(tm.col("row") % 3 > 0)
    made = {"windows": stream_job.windows(most), "rows": most.filter(tm.col("key") < 5).select("key", "row")}
    return {**made, "more": made["windows"].filter(tm.col("n") > 1)}


def expected() -> dict[str, Counter[str]]:
    """Return the results of each over the table."""
    made = queries(tm.from_arrow(stream_job.table()))
    return {name: Counter(stream_job.lines(query.collect())) for name, query in made.items()}


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    (folder / "pids" / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")
    stream = tm.stream.from_table(
        stream_job.table(), time="ts", max_out_of_orderness="6ms", rows_per_batch=100, rows_per_s=stream_job.ROWS_PER_S
    )
    made = {name: query for name, query in queries(stream).items() if name != "more" or "more" in words}

    def stop() -> bool:
        return "stopping" in words and len(list((folder / "windows").glob("[!.]*"))) > 3

    tm.stream.write(
        [(query, Files(folder / name)) for name, query in made.items()],
        name="killed",
        checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="100ms"),
        stop_when=stop,
        guarantee="exactly_once",
    )


if __name__ == "__main__":
    main()
