"""Files of lines that streams read."""

from __future__ import annotations

import json
from pathlib import Path

SCHEMA = {"key": "str", "ts": "timestamp[ms]", "x": "int64"}


def lines(folder: Path, count: int, files: int = 3) -> None:
    """Write rows at intervals of a second, fifty at a time, distributed to files."""
    folder.mkdir()
    for number in range(files):
        rows = [
            {"key": f"k{at % 5}", "ts": f"2026-01-01T00:{at // 50 // 60:02}:{at // 50 % 60:02}.000", "x": at}
            for at in range(number, count, files)
        ]
        (folder / f"{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
