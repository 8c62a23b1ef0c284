"""A job from one topic of Kafka to another, exactly once, whose workers are killed.

Run as ``kafka_job.py FOLDER SERVERS FROM TO WHAT``: ``rows`` are copied, ``windows`` are counts of rows by key and second, as those of
`stream_job`; with ``poison`` rows are copied, and what is none goes to the topic TO-dead. Checkpoints go to FOLDER/checkpoints, pids to FOLDER/pids. A user of the environment is told by SCRAM, over TLS.

It is most often not over before FOLDER/go is there: rows of its last tenth wait for that. While they do no checkpoint is made, so as
long as there is none they go on, slowly.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import stream_job
import tidemill as tm
from stream_kills import has_checkpoint

SCHEMA = {"ts": "timestamp[us]", "key": "int64", "row": "int64"}


def main() -> None:
    folder, (servers, source, target, what) = Path(sys.argv[1]), sys.argv[2:]

    def paced(rows: tm.Table) -> tm.Table:
        """Delay rows for some seconds in all, in small steps: the job must make progress between two kills."""
        if max(row["row"] for row in rows.to_pylist()) >= 0.9 * stream_job.ROWS:
            while not (folder / "go").exists():
                time.sleep(0.2)
                if not has_checkpoint(folder):
                    break
        time.sleep(len(rows) / 2500)
        return rows

    rank = tm.init().rank
    (folder / "pids" / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    who: dict[str, Any] = {}
    if "TIDEMILL_KAFKA_USER" in os.environ:
        who = {"tls": tm.stream.Tls(), "sasl": "SCRAM-SHA-512"}
    more = dict(who)
    if what == "poison":
        dead = f"{target}-dead"
        more |= {"on_error": "quarantine", "quarantine": tm.stream.to_kafka(servers, dead, id=dead, **who)}
    stream = tm.stream.from_kafka(
        servers,
        source,
        SCHEMA,
        time="ts",
        max_out_of_orderness="6ms",
        stop_at_end=True,
        # Small batches, from all partitions in turn.
        config={"max.partition.fetch.bytes": 8192, "queued.min.messages": 100},
        **more,
    ).map_batches(paced, SCHEMA)
    rows = stream_job.windows(stream) if what == "windows" else stream.select("row")
    rows.write_stream(
        tm.stream.to_kafka(servers, target, id=target, **who),
        name="copied",
        checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="100ms"),
        guarantee="exactly_once",
    )


if __name__ == "__main__":
    main()
