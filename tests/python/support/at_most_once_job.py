"""A job that delivers each row at most once, and whose workers are killed.

Run as ``at_most_once_job.py FOLDER WHAT [SERVER]``: ``rows`` go to a function, ``windows`` are counts of rows,
``committed`` goes to a sink with `prepare` and `commit`; ``rabbitmq`` reads a queue, and ``kafka`` copies a topic to
another. Results go to FOLDER/results, pids to FOLDER/pids.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import stream_job
import tidemill as tm


def slowly(rows: tm.Table) -> tm.Table:
    time.sleep(0.2)
    return rows


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    rank = tm.init().rank
    (folder / "pids" / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    schema = {"row": "int64"}
    if what == "rabbitmq":
        stream = tm.stream.from_rabbitmq(sys.argv[3], "once", schema, prefetch=500, stop_at_end=True)
    elif what == "kafka":
        stream = tm.stream.from_kafka(sys.argv[3], "once-in", schema, stop_at_end=True)
    else:
        stream = tm.stream.from_table(
            stream_job.table(),
            time="ts",
            max_out_of_orderness="6ms",
            rows_per_batch=100,
            rows_per_s=stream_job.ROWS_PER_S,
        )
    if what in ("rabbitmq", "kafka"):
        # Slow enough that a worker can be killed in the middle.
        stream = stream.map_batches(slowly, schema)
    rows = stream_job.windows(stream) if what == "windows" else stream.select("row")
    out = os.open(folder / "results" / f"{rank}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(table: tm.Table) -> None:
        # A single call, so that a killed worker leaves no partial line.
        os.write(out, "".join(f"{line}\n" for line in stream_job.lines(table)).encode())

    sink: Any = write
    if what == "committed":
        sink = stream_job.Files(folder / "results")
    elif what == "kafka":
        sink = tm.stream.to_kafka(sys.argv[3], "once-out")
    rows.write_stream(
        sink,
        name="once",
        checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="50ms"),
        guarantee="at_most_once",
    )


if __name__ == "__main__":
    main()
