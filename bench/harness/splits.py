"""The benchmark of splits: the same operations by one worker of one thread, one of two threads, and two of one.

One thread does all the work, so it may take twice the time of two; what it takes beyond that is lost somewhere.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .comm import SystemFailed, rotated
from .memory import Watch
from .systems import BENCH, Launch
from .tables import duration, table

WORKER = BENCH / "harness" / "splits_worker.py"
#: Workers and threads of each.
SPLITS = {"1x1": (1, 1), "1x2": (1, 2), "2x1": (2, 1)}
ROWS = {"full": 16_000_000, "quick": 4_000_000, "tiny": 20_000}
RECORDS = {"full": 8_000_000, "quick": 2_000_000, "tiny": 2_000}
ROUNDS = {"full": 5, "quick": 3, "tiny": 1}
REPEATS = {"full": 3, "quick": 3, "tiny": 1}
TIMEOUT_S = 1200
#: The time of one thread over that of two, at most.
GOAL = 2.2


def measure(name: str, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs all splits in turn, in every round; the raw results: seconds by operation and split, failures."""
    rounds = rounds or ROUNDS[name]
    seconds: dict[str, dict[str, list[float]]] = {}
    failures: dict[str, str] = {}
    left = list(SPLITS)
    with tempfile.TemporaryDirectory(prefix="tidemill-splits-") as folder:
        write_records(Path(folder) / "records", RECORDS[name])
        for number in range(rounds):
            for split in rotated(left, number):
                try:
                    found = run(split, Path(folder), ROWS[name], REPEATS[name])
                except SystemFailed as error:
                    failures[split] = str(error)
                    left = [other for other in left if other != split]
                    say(f"{split}: {error}")
                    continue
                for operation, times in found.items():
                    seconds.setdefault(operation, {}).setdefault(split, []).extend(times)
            say(f"splits: round {number + 1} of {rounds}")
    return {"rounds": rounds, "rows": ROWS[name], "records": RECORDS[name], "seconds": seconds, "failures": failures}


def write_records(folder: Path, count: int) -> None:
    from tidemill.apps import _tera

    folder.mkdir()
    for part, at in enumerate(range(0, count, 1_000_000)):
        _tera.records(at, min(1_000_000, count - at), 0).tofile(folder / f"part-{part:05}")


def run(split: str, folder: Path, rows: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of every operation, by a job of its own."""
    workers, threads = SPLITS[split]
    job = ["-m", "tidemill", "run", "-n", str(workers), "--threads", str(threads), "--no-prefix"]
    program = [sys.executable, str(WORKER), str(folder), str(rows), str(repeats)]
    process = Launch([sys.executable, *job, *program]).start()
    assert process.stdout is not None
    watch = Watch(process.pid, TIMEOUT_S)
    watch.start()
    said: list[str] = []
    try:
        said = [line.strip() for line in process.stdout]
        process.wait()
    finally:
        watch.stop()
        if process.poll() is None:
            watch.kill()
            process.wait()
    for line in said:
        if line.startswith('{"splits"'):
            found: dict[str, list[float]] = json.loads(line)["splits"]
            return found
    raise SystemFailed(watch.killed_because or " | ".join(said[-3:]) or f"exit code {process.returncode}, no output")


def ratios(times: dict[str, list[float]]) -> tuple[float, float] | None:
    """The time of one thread over that of one worker of two, and over that of two of one; None if one of them is missing."""
    medians = {split: statistics.median(of) for split, of in times.items()}
    if set(medians) != set(SPLITS):
        return None
    return medians["1x1"] / medians["1x2"], medians["1x1"] / medians["2x1"]


def section(splits: dict[str, Any]) -> str:
    """The table of a report."""
    rows = []
    for operation, times in splits["seconds"].items():
        cells = [duration(statistics.median(times[split])) if times.get(split) else "" for split in SPLITS]
        found = ratios(times)
        rows.append([operation, *cells, *([f"{ratio:.2f}" for ratio in found] if found else ["", ""])])
    parts = [
        "## Splits",
        "",
        f"The same operations by workers x threads: {splits['rows']:,} rows, {splits['records']:,} records; medians of {splits['rounds']} rounds. "
        f"Goal: 1x1 takes at most {GOAL} times as long as 1x2.",
        "",
        table(["operation", *SPLITS, "1x1 / 1x2", "1x1 / 2x1"], rows),
    ]
    return "\n".join([*parts, *(f"- {name}: {why}" for name, why in splits["failures"].items())])
