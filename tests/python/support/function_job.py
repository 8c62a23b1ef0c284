"""A job whose source is a function of the program, and whose workers are killed.

Run as ``function_job.py FOLDER``: each split contains numbers, which are written to files of FOLDER/results, each once;
pids go to FOLDER/pids.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tidemill as tm

SPLITS, ROWS = ["north", "south", "west"], 2000


def read(split: str, position: int | None) -> Iterator[tuple[list[dict[str, Any]], int] | None]:
    """Yield numbers from 0, ten at a time, with pauses; a position is the next number."""
    for first in range(position or 0, ROWS, 10):
        time.sleep(0.005)
        if first % 100 == 0:
            yield None
        yield [{"split": split, "number": number} for number in range(first, first + 10)], first + 10


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pids" / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")
    rows = tm.stream.from_function(read, {"split": "str", "number": "int64"}, splits=SPLITS, poll_interval="1ms")
    sink = tm.stream.to_files(folder / "results")
    rows.write_stream(
        sink, checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="50ms"), guarantee="exactly_once"
    )


if __name__ == "__main__":
    main()
