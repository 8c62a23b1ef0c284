"""The benchmark of loops: K-means and multidimensional scaling in each way that users can write them, on two workers of one thread.

Bulk-synchronous, in a stream, and as a loop of tasks; beside K-means of Spark. All do as many iterations from the same start, so all must
come to an equally good answer.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import kmeans
from .exchange import WORKERS
from .kmeans import INERTIA_TOLERANCE, SAMPLE_ROWS, Case, inertia, read_centres
from .mds import DIMENSIONS, FEATURES, STRESS_TOLERANCE, stress
from .once import fit_seconds, in_turn, others_than_the_best, run_once
from .systems import BENCH, SYSTEMS, Launch, present
from .tables import OURS, duration, order, spread, table

WORKER = str(BENCH / "harness" / "loops_worker.py")
WAYS = ("bsp", "bsp-in-stream", "bsp-numpy", "loop", "loop-kernels")
OURS_ALL = tuple(f"{OURS}-{way}" for way in WAYS)
PEERS = {"kmeans": ("spark-mllib",), "mds": ()}


@dataclass(frozen=True)
class Setting:
    kmeans: Case
    points: int
    iterations: int
    rounds: int
    timeout_s: float = 300.0


SETTINGS = {
    "full": Setting(Case(400_000, 32, 50, "float32"), points=2000, iterations=10, rounds=5),
    "quick": Setting(Case(100_000, 32, 50, "float32"), points=1000, iterations=10, rounds=3),
    "tiny": Setting(Case(2000, 3, 4, "float32"), points=150, iterations=2, rounds=1, timeout_s=120),
}


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    return SYSTEMS[OURS].missing() if system.startswith(OURS) else kmeans.missing(system)


def launch(system: str, problem: str, case: Case, files: dict[str, Path], iterations: int) -> Launch:
    if not system.startswith(OURS):
        return kmeans.launch(system, case, files, iterations)
    given = [system.removeprefix(f"{OURS}-"), problem, str(files["rows"]), str(files["centres"])]
    command = [WORKER, *given, str(iterations), str(files[system])]
    return SYSTEMS[OURS].launch(WORKERS, "shm", command, ["--threads", "1"])


def measure(
    name: str, systems: Sequence[str] | None, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs setting `name`, its problems named in `only` or all; the raw results: of each one times, quality and failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    known = (*OURS_ALL, *PEERS["kmeans"])
    running = present(name, systems, known, missing, lambda line: say(f"loops: {line}"))
    cases = []
    for problem, peers in PEERS.items():
        chosen = [system for system in running if system in (*OURS_ALL, *peers)]
        if chosen and (not only or problem in only):
            with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
                cases.append(measure_case(problem, chosen, rounds, setting, Path(folder), say))
    return {"rounds": rounds, "iterations": setting.iterations, "workers": WORKERS, "cases": cases}


def measure_case(
    problem: str, systems: list[str], rounds: int, setting: Setting, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    begun = time.monotonic()
    case = setting.kmeans
    rows, start = case.generate() if problem == "kmeans" else points(setting.points)
    delta = distances(rows) if problem == "mds" else None
    files = {name: folder / f"{name}.npy" for name in ("rows", "centres", *systems)}
    np.save(files["rows"], rows)
    np.save(files["centres"], start)
    quality: dict[str, float] = {}

    def run(system: str, number: int) -> dict[str, Any]:
        times = run_once(launch(system, problem, case, files, setting.iterations), "fit_s", setting.timeout_s)
        if number == 0 and problem == "kmeans":
            quality[system] = inertia(rows[:SAMPLE_ROWS], read_centres(files[system], case))
        elif number == 0:
            quality[system] = stress(delta, np.load(files[system]))
        return {"all_s": times["fit_s"], **fit_seconds(times, "fit_s", setting.iterations)}

    found, failures = in_turn(systems, rounds, run, say, problem)
    what, tolerance = ("inertia", INERTIA_TOLERANCE) if problem == "kmeans" else ("stress", STRESS_TOLERANCE)
    failures |= others_than_the_best(quality, tolerance, what, say, problem)
    say(f"loops, {problem}: {rounds} rounds, {time.monotonic() - begun:.0f} s")
    times = {name: found.get(name, {}) for name in ("all_s", "further_s")}
    sizes = {"rows": len(rows), "columns": rows.shape[1], "k": len(start) if problem == "kmeans" else DIMENSIONS}
    return {"problem": problem, **sizes, **times, "what": what, "quality": quality, "failures": failures}


def points(count: int) -> tuple[Any, Any]:
    """Normal vectors, whose distances are scaled, and positions to start from; seeded."""
    rng = np.random.default_rng(count)
    return rng.standard_normal((count, FEATURES)), rng.standard_normal((count, DIMENSIONS))


def distances(vectors: Any) -> Any:
    return np.vstack(
        [np.sqrt(((vectors[at : at + 250, None] - vectors) ** 2).sum(axis=2)) for at in range(0, len(vectors), 250)]
    )


# --- the report ------------------------------------------------------------------------------------------------------
def section(loops: dict[str, Any]) -> str:
    """The tables of a report; the ratio is to the time of bulk-synchronous programs with the same iteration."""
    count = loops["iterations"]
    parts = [
        "## Loops",
        "",
        f"{count} iterations on {loops['workers']} workers with one thread each, median of {loops['rounds']} rounds. *All*: from rows in memory to the answer.",
        f"*Further*: the cost of one more iteration, (all of {count} - all of 1) / {count - 1}. *Ratio*: all, and further, over those of the",
        "bulk-synchronous program with the same iteration.",
        "",
    ]
    for case in loops["cases"]:
        title = (
            f"K-means, {case['rows']:,} x {case['columns']}, k={case['k']}"
            if case["problem"] == "kmeans"
            else f"MDS, {case['rows']:,} points in {case['k']} dimensions"
        )
        rows = []
        for name in sorted(case["all_s"], key=order):
            base = BASES.get(name)
            ratios = [ratio(case[key], name, base) for key in ("all_s", "further_s")]
            rows.append(
                [
                    name,
                    duration(statistics.median(case["all_s"][name])),
                    f"±{spread(case['all_s'][name]):.0%}",
                    duration(statistics.median(case["further_s"][name])),
                    *ratios,
                    f"{case['quality'][name]:.6g}",
                ]
            )
        header = ["way", "all", "spread", "further", "ratio of all", "of further", case["what"]]
        parts += [f"### {title}", "", table(header, rows), ""]
        parts += [f"- {name}: {why}" for name, why in case["failures"].items()]
        parts += [""] if case["failures"] else []
    return "\n".join(parts)


#: What each way is compared with: an estimator and its kernels with the estimator, an iteration in NumPy with that.
BASES = {
    f"{OURS}-bsp-in-stream": f"{OURS}-bsp",
    f"{OURS}-loop": f"{OURS}-bsp-numpy",
    f"{OURS}-loop-kernels": f"{OURS}-bsp",
    "spark-mllib": f"{OURS}-bsp",
}


def ratio(times: dict[str, list[float]], name: str, base: str | None) -> str:
    if base is None or not times.get(base):
        return ""
    below = statistics.median(times[base])
    return f"{statistics.median(times[name]) / below:.2f}" if below > 0 else "-"
