"""The benchmark of splits: the same operations by one worker of one thread, one of two threads, and two of one.

One thread does all the work, so it may take twice the time of two; what it takes beyond that is lost somewhere.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .comm import SystemFailed, rotated
from .memory import Watch
from .systems import BENCH, SINGLE_THREADED, Launch
from .tables import duration, table

WORKER = BENCH / "harness" / "splits_worker.py"
#: Workers and threads of each.
SPLITS = {"1x1": (1, 1), "1x2": (1, 2), "2x1": (2, 1)}
SIZES = {
    "full": {"rows": 16_000_000, "records": 8_000_000},
    "quick": {"rows": 4_000_000, "records": 2_000_000},
    "tiny": {"rows": 20_000, "records": 2_000},
}
OPERATIONS = ("group", "join", "sort", "window", "map_batches", "records")
ROUNDS = {"full": 5, "quick": 3, "tiny": 1}
REPEATS = {"full": 3, "quick": 3, "tiny": 1}
TIMEOUT_S = 1200
#: K-means and MDS add up in another order in each split, and a point between two centers may go either way.
ANSWER_TOLERANCE = 1e-3
#: The time of one thread over that of two, at most.
GOAL = 2.2


def measure(name: str, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs all splits in turn, in every round; the raw results: seconds by operation and split, failures."""
    rounds = rounds or ROUNDS[name]
    found = in_all(SPLITS, OPERATIONS, SIZES[name], rounds, REPEATS[name], say, "splits")
    return {"rounds": rounds, **SIZES[name], **found}


def in_all(
    splits: Mapping[str, tuple[int, int]],
    operations: Sequence[str],
    sizes: dict[str, int],
    rounds: int,
    repeats: int,
    say: Callable[[str], None],
    called: str,
) -> dict[str, Any]:
    """All splits in turn, in every round from another one on: seconds and answers by operation and split, and failures.

    A split whose answer is not that of the first one is among the failures, its seconds among the others.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    answers: dict[str, dict[str, str | float]] = {}
    failures: dict[str, str] = {}
    left = list(splits)
    with tempfile.TemporaryDirectory(prefix="tidemill-splits-") as folder:
        if "records" in operations:
            write_records(Path(folder) / "records", sizes["records"])
        for number in range(rounds):
            for split in rotated(list(left), number):
                try:
                    found = run(*splits[split], Path(folder), sizes, repeats, operations)
                except SystemFailed as error:
                    failures[split] = str(error)
                    left.remove(split)
                    say(f"{split}: {error}")
                    continue
                for operation, times in found["splits"].items():
                    seconds.setdefault(operation, {}).setdefault(split, []).extend(times)
                    answers.setdefault(operation, {})[split] = found["answers"][operation]
            say(f"{called}: round {number + 1} of {rounds}")
    for operation, of in answers.items():
        for split, why in differing(of).items():
            failures[split] = f"{operation}: {why}"
            say(f"{split}: {failures[split]}")
    return {"seconds": seconds, "answers": answers, "failures": failures}


def differing(answers: Mapping[str, str | float]) -> dict[str, str]:
    """The splits whose answers are not that of the first; numbers may differ by rounding."""
    first = next(iter(answers.values()))
    return {
        split: f"its answer is {answer}, not {first}"
        for split, answer in answers.items()
        if not (
            answer == first if isinstance(answer, str) else math.isclose(answer, float(first), rel_tol=ANSWER_TOLERANCE)
        )
    }


def write_records(folder: Path, count: int) -> None:
    from tidemill.apps import _tera

    folder.mkdir()
    for part, at in enumerate(range(0, count, 1_000_000)):
        _tera.records(at, min(1_000_000, count - at), 0).tofile(folder / f"part-{part:05}")


def run(
    workers: int, threads: int, folder: Path, sizes: dict[str, int], repeats: int, operations: Sequence[str]
) -> dict[str, Any]:
    """Seconds and answer of every operation, by a job of its own."""
    job = ["-m", "tidemill", "run", "-n", str(workers), "--threads", str(threads), "--no-prefix"]
    given = json.dumps({**sizes, "threads": threads})
    program = [sys.executable, str(WORKER), str(folder), given, str(repeats), ",".join(operations)]
    # One thread for NumPy's products: what is shared is shared by workers and their threads.
    process = Launch([sys.executable, *job, *program], SINGLE_THREADED).start()
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
            found: dict[str, Any] = json.loads(line)
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
