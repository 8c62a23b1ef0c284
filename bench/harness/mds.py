"""The benchmark of multidimensional scaling: seconds per iteration, stress and memory beside scikit-learn's SMACOF, from the same start.

Besides, of Tidemill alone: 20 random starts with and without annealing, and 30,000 points.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .once import fit_seconds, in_turn, others_than_the_best, run_once, run_watched
from .systems import BENCH, PEERS, SINGLE_THREADED, SYSTEMS, Launch

WORKER = str(BENCH / "harness" / "mds_worker.py")
FEATURES, DIMENSIONS = 10, 3
STRESS_TOLERANCE = 1e-4  # of systems that did the same computation, in float32 and in float64


@dataclass(frozen=True)
class Setting:
    points: tuple[int, ...]
    iterations: int
    rounds: int
    seeds: int
    large: int
    timeout_s: float = 900.0


SETTINGS = {
    "full": Setting((2000, 5000, 10_000), iterations=20, rounds=5, seeds=20, large=30_000),
    "quick": Setting((2000, 5000, 10_000), iterations=6, rounds=2, seeds=20, large=30_000),
    "tiny": Setting((150,), iterations=2, rounds=1, seeds=2, large=200, timeout_s=120),
}
OURS = ("tidemill-1x2", "tidemill-2x1", "tidemill-1x2-fixed16")
PEER_SYSTEMS = ("sklearn",)
#: Of annealing: what is embedded, by the name the report gives it.
STARTS = ("10 features in 2 dimensions", "normal points, 19 of 20 distances missing")


def sklearn_python() -> str | None:
    """An interpreter that has scikit-learn: that of the peers, else this one."""
    if (PEERS / "ml" / ".stamp").exists():
        return str(PEERS / "ml" / "bin" / "python")
    return sys.executable if importlib.util.find_spec("sklearn") else None


def launch(system: str, arguments: Sequence[str]) -> Launch:
    """How `system` is started: two cores for each."""
    if system.startswith("tidemill"):
        workers, threads = (2, 1) if "2x1" in system else (1, 2)
        command = [WORKER, system, *arguments]
        return SYSTEMS["tidemill"].launch(workers, "shm", command, ["--threads", str(threads)])
    python = sklearn_python()
    assert python is not None, "checked before"
    return Launch([python, WORKER, system, *arguments], dict.fromkeys(SINGLE_THREADED, "2"))


def generate(n: int, folder: Path) -> tuple[Path, Path]:
    """Distances of normal vectors, and positions to start from, in files; seeded."""
    rng = np.random.default_rng(n)
    vectors = rng.standard_normal((n, FEATURES))
    squares = (vectors**2).sum(axis=1)
    delta = np.lib.format.open_memmap(folder / "delta.npy", "w+", np.float64, (n, n))
    for first in range(0, n, 500):
        rows = slice(first, first + 500)
        delta[rows] = np.sqrt(np.maximum(squares[rows, None] + squares - 2 * vectors[rows] @ vectors.T, 0))
    for first in range(0, n, 500):  # the same in both directions, to the last bit
        rows = slice(first, first + 500)
        delta[rows, :first] = delta[:first, rows].T
        block = delta[rows, rows]
        delta[rows, rows] = (block + block.T) / 2
    np.fill_diagonal(delta, 0)
    delta.flush()
    np.save(folder / "start.npy", rng.standard_normal((n, DIMENSIONS)))
    return folder / "delta.npy", folder / "start.npy"


def stress(delta: Any, positions: Any) -> float:
    """Of all pairs, in float64, by the definition."""
    total = 0.0
    for first in range(0, len(positions), 250):
        ways = positions[first : first + 250, None] - positions
        total += float(((np.sqrt(np.einsum("ijk,ijk->ij", ways, ways)) - delta[first : first + 250]) ** 2).sum())
    return total / 2


def measure(
    name: str, systems: Sequence[str] | None, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs setting `name`; `only` names parts of it: numbers of points, `annealing`, `large`. Returns the raw results."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    wanted = OURS if name == "tiny" else OURS + PEER_SYSTEMS
    if systems:
        wanted = tuple(s for s in OURS + PEER_SYSTEMS if any(s == one or s.startswith(one + "-") for one in systems))
    if "sklearn" in wanted and sklearn_python() is None:
        say("sklearn is left out: not installed: run bench/setup_peers.sh")
        wanted = tuple(s for s in wanted if s != "sklearn")
    cases = []
    for n in setting.points:
        if only and str(n) not in only:
            continue
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            cases.append(measure_case(n, list(wanted), rounds, setting, Path(folder), say))
    found: dict[str, Any] = {"rounds": rounds, "iterations": setting.iterations, "cases": cases}
    ours = [s for s in wanted if s.startswith("tidemill-1x2")]
    if ours and (not only or "annealing" in only):
        found["annealing"] = []
        for what in range(len(STARTS)):
            arguments = ["annealing", str(what), str(setting.seeds)]
            runs = run_once(launch(OURS[0], arguments), "plain", setting.timeout_s)
            found["annealing"].append({"what": STARTS[what], **runs})
            say(f"annealing, {STARTS[what]}: {setting.seeds} seeds")
    if ours and (not only or "large" in only):
        found["large"] = []
        for storage in ("fixed16", "vectors"):
            run = run_watched(launch(OURS[0], ["large", str(setting.large), storage]), setting.timeout_s)
            found["large"].append({"points": setting.large, "storage": storage, **run})
            say(f"{setting.large} points, {storage}: {run['query_s']:.1f} s, {run['peak_mib']} MiB")
    return found


def measure_case(
    n: int, systems: list[str], rounds: int, setting: Setting, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    started = time.monotonic()
    delta, start = generate(n, folder)
    stresses: dict[str, float] = {}

    def run(system: str, number: int) -> dict[str, Any]:
        out = folder / f"{system}.npy"
        arguments = ["fit", str(delta), str(start), str(setting.iterations), str(out)]
        found = run_watched(launch(system, arguments), setting.timeout_s)
        if number == 0:
            stresses[system] = stress(np.load(delta, mmap_mode="r"), np.load(out))
        memory = {name: found[name] for name in ("peak_mib", "own_mib")}
        return {**fit_seconds(found, "query_s", setting.iterations), **memory}

    found, failures = in_turn(systems, rounds, run, say, f"{n} points")
    failures |= others_than_the_best(stresses, STRESS_TOLERANCE, "stress", say, f"{n} points")
    say(f"MDS of {n} points: {rounds} rounds, {time.monotonic() - started:.0f} s")
    measured = {name: found.get(name, {}) for name in ("fit_s", "further_s", "peak_mib", "own_mib")}
    return {"points": n, **measured, "stress": stresses, "failures": failures}
