"""A job that copies every line of a store's objects once, and whose workers are killed.

Run as ``objects_job.py FOLDER URL``: objects below URL/in are copied to URL/out, checkpoints go to FOLDER/checkpoints,
pids to FOLDER/pids.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import tidemill as tm


def slowly(rows: tm.Table) -> tm.Table:
    time.sleep(0.05)
    return rows


def main() -> None:
    folder, url = Path(sys.argv[1]), sys.argv[2]
    (folder / "pids" / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")
    schema = {"n": "int64"}
    lines = tm.stream.from_files(f"{url}/in", schema, stop_at_end=True)
    copied = lines.map_batches(slowly, schema)
    copied.write_stream(
        tm.stream.to_files(f"{url}/out"),
        name="objects",
        checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="50ms"),
    )


if __name__ == "__main__":
    main()
