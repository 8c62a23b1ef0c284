"""An endless job, for tests of a stream when the store of its checkpoints misbehaves.

Run as ``store_job.py FOLDER PLACE [ROWS_PER_S [PAD]]``: checkpoints go to PLACE, results to FOLDER/results, pids to
FOLDER/pids. Each row has its number, and the number of earlier rows of its key, which is the key's state, along with
PAD more bytes. FOLDER/seen grows by a byte for each batch that reaches worker 0's sink, whether or not its checkpoint
is durable. When FOLDER/stop exists, the job makes a last checkpoint and ends.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import tidemill as tm
from stream_job import Files

KEYS = 50


class Seen(Files):
    """Like `Files`, but also records batches before they are committed."""

    def __init__(self, folder: Path, seen: Path) -> None:
        super().__init__(folder)
        self._seen = seen

    def write(self, rows: tm.Table) -> None:
        super().write(rows)
        with self._seen.open("ab") as file:
            file.write(b".")


def check(rows: list[dict[str, Any]]) -> None:
    """Check that every row up to a number exists, and was counted, exactly once."""
    assert sorted(row["number"] for row in rows) == list(range(len(rows)))
    keys = Counter(row["key"] for row in rows)
    assert sorted((row["key"], row["before"]) for row in rows) == [
        (key, before) for key in sorted(keys) for before in range(keys[key])
    ]


def main() -> None:
    folder, place = Path(sys.argv[1]), sys.argv[2]
    rate, pad = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((3, 1000), (4, 0)))
    (folder / "pids" / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")

    def numbered(key: dict[str, Any], rows: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        before, _ = context.state or (0, b"")
        # Random, so that a checkpoint cannot compress it.
        context.state = (before + len(rows), os.urandom(pad))
        return [{**key, "number": row["number"], "before": before + at} for at, row in enumerate(rows)]

    rows = tm.stream.from_generator(rate, keys=KEYS, splits=1).key_by("key")
    rows.process(numbered, {"key": "int64", "number": "int64", "before": "int64"}).write_stream(
        Seen(folder / "results", folder / "seen"),
        name="stored",
        checkpoint=tm.stream.Checkpoint(place, interval="100ms"),
        stop_when=(folder / "stop").exists,
    )


if __name__ == "__main__":
    main()
