"""The k-means benchmark: every system fits the same data from the same centres, in turn, over several rounds.

Two cores are given to each: two threads, or two ranks of one. The final centres of all must be equally good, which one
reference computation here checks on a sample of the rows, so that nobody wins by doing something else.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .once import fit_seconds, in_turn, others_than_the_best, run_once
from .systems import BENCH, PEERS, SINGLE_THREADED, SPARK, SYSTEMS, Launch, spark_submit

WORKER = str(BENCH / "harness" / "kmeans_worker.py")
SAMPLE_ROWS = 20_000
INERTIA_TOLERANCE = 2e-3  # rounding sends a few points another way in each iteration, and float32 more of them
ELKAN_BOUNDS_BYTES_MAX = 2 << 30
#: Real data, where it is there.
DATA = Path(os.environ.get("TIDEMILL_DATA", BENCH.parent / "../shared/data")) / "kmeans"
KDD, DIGITS = "kddcup.data_10_percent.gz", "optdigits_test.csv.gz"
KDD_TEXTS = (1, 2, 3, 41)
#: They start from rows of their own choice, and so end in another place: how much worse than the best that may be.
OWN_START = {"superkmeans": 0.05, "spark-ml": 0.5}


@dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    k: int
    dtype: str
    #: What the rows are: "blobs", "line", "kdd", "kdd-standardized" or "digits".
    kind: str = "blobs"
    #: In place of the setting's: real data converges early.
    iterations: int | None = None

    @property
    def name(self) -> str:
        kind = "" if self.kind == "blobs" else f"-{self.kind}"
        return f"{self.rows}x{self.columns}-k{self.k}-{self.dtype}{kind}"

    def lacks(self) -> str | None:
        """The file that is not there, if the case needs one."""
        file = DATA / (DIGITS if self.kind == "digits" else KDD)
        return str(file) if self.kind.startswith(("kdd", "digits")) and not file.exists() else None

    def generate(self) -> tuple[Any, Any]:
        """The rows, and `k` different ones of them as first centres; seeded.

        Blobs are Gaussian, of deviation 1, and overlap: their own centres are normal with a deviation that puts neighbours about
        four deviations apart, close enough that no fit converges within the measured iterations. A line is normal noise and
        a multiple, up to 40, of one direction: features that are all correlated. The network connections of KDD Cup 1999
        are their columns of numbers, as they are or standardized; the digits are 8 x 8 pictures.
        """
        rng = np.random.default_rng(20240229)
        if self.kind == "line":
            along = rng.uniform(0, 40, self.rows)[:, None] * rng.normal(0, 1, self.columns)
            rows = along + rng.normal(0, 1, (self.rows, self.columns))
        elif self.kind == "blobs":
            blobs = rng.normal(0, 5.0 if self.columns < 10 else 0.3, (self.k, self.columns))
            rows = blobs[rng.integers(self.k, size=self.rows)] + rng.normal(0, 1, (self.rows, self.columns))
        else:
            rows = self.read()
        rows = np.ascontiguousarray(rows, dtype=self.dtype)
        assert rows.shape == (self.rows, self.columns), rows.shape
        order = rng.permutation(self.rows)
        if self.kind in ("blobs", "line"):
            return rows, rows[order[: self.k]].copy()
        # Real rows repeat: a second centre in the same place would have none.
        _, first = np.unique(rows[order[:20_000]], axis=0, return_index=True)
        return rows, rows[order[np.sort(first)[: self.k]]].copy()

    def read(self) -> Any:
        """Real rows."""
        if self.kind == "digits":
            with gzip.open(DATA / DIGITS, "rt") as file:
                return np.loadtxt(file, delimiter=",", skiprows=1, usecols=range(64))
        with gzip.open(DATA / KDD, "rt") as file:
            rows = np.loadtxt(file, delimiter=",", usecols=[at for at in range(42) if at not in KDD_TEXTS])
        if self.kind == "kdd-standardized":
            deviation = rows.std(axis=0)
            rows = (rows - rows.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        return rows


@dataclass(frozen=True)
class Setting:
    cases: tuple[Case, ...]
    iterations: int
    rounds: int
    timeout_s: float = 300.0


SHAPES = ((1_000_000, 2, 10), (1_000_000, 2, 1000), (200_000, 100, 100))
BOTH = tuple(Case(*shape, dtype) for shape in SHAPES for dtype in ("float32", "float64"))
OTHER_KINDS = (
    Case(200_000, 100, 100, "float32", "line"),
    Case(494_021, 38, 23, "float32", "kdd", iterations=4),
    Case(494_021, 38, 23, "float32", "kdd-standardized", iterations=8),
    Case(1797, 64, 10, "float32", "digits", iterations=6),
)
SETTINGS = {
    "full": Setting(BOTH + OTHER_KINDS, iterations=20, rounds=5),
    "quick": Setting(BOTH + OTHER_KINDS, iterations=10, rounds=3),
    "tiny": Setting((Case(2000, 3, 4, "float32"), Case(2000, 3, 4, "float64")), iterations=2, rounds=1, timeout_s=120),
}


# --- the systems -----------------------------------------------------------------------------------------------------
def launch(system: str, case: Case, files: dict[str, Path], iterations: int) -> Launch:
    """How `system` is started on `case`."""
    tail = [str(files["rows"]), str(files["centres"]), str(iterations), str(files[system])]
    if system.startswith("tidemill"):
        workers, threads = (2, 1) if "2x1" in system else (1, 2)
        return SYSTEMS["tidemill"].launch(
            workers, "shm", [WORKER, system, str(threads), *tail], ["--threads", str(threads)]
        )
    if system == "c-mpi":
        element = "float" if case.dtype == "float32" else "double"
        shape = [str(case.rows), str(case.columns), str(case.k)]
        program = str(PEERS / "bin" / f"lloyd_mpi_{element}")
        return SYSTEMS["openmpi"].launch_binary(2, "shm", [program, *tail[:2], *shape, *tail[2:]])
    if system.startswith("spark"):
        shape = [case.dtype, str(case.rows), str(case.columns), str(case.k)]
        return spark_submit("KMeansSpark", [system.removeprefix("spark-"), *tail, *shape], heap="6g")
    if system == "numpy-mpi":
        return SYSTEMS["openmpi"].launch(2, "shm", [WORKER, system, "1", *tail])
    threads_env = {name: "2" for name in SINGLE_THREADED}
    return Launch([str(PEERS / "ml" / "bin" / "python"), WORKER, system, "2", *tail], threads_env)


OURS = ("tidemill-2x1", "tidemill-1x2")
OURS_PLAIN = ("tidemill-2x1-lloyd",)  # without bounds or trees: shown, so that one sees what each of the two brings
PEER_SYSTEMS = (
    "sklearn-lloyd",
    "sklearn-elkan",
    "faiss",
    "superkmeans",
    "numpy-mpi",
    "c-mpi",
    "spark-mllib",
    "spark-ml",
)


def unfit(system: str, case: Case) -> str | None:
    """Why `system` cannot run `case` by its nature; such a pair is left out without being called a failure."""
    if system in ("faiss", "superkmeans") and case.dtype != "float32":
        return "float32 only"
    if system == "sklearn-elkan" and case.rows * case.k * np.dtype(case.dtype).itemsize > ELKAN_BOUNDS_BYTES_MAX:
        return "its bounds, one number per row and centre, would take gigabytes"
    return None


def missing(system: str) -> str | None:
    """What keeps a peer from running here, with the remedy; None when it can run."""
    needs = {
        "sklearn-lloyd": PEERS / "ml" / ".stamp",
        "sklearn-elkan": PEERS / "ml" / ".stamp",
        "faiss": PEERS / "ml" / ".stamp",
        "superkmeans": PEERS / "ml" / ".stamp",
        "numpy-mpi": PEERS / "openmpi" / ".stamp",
        "c-mpi": PEERS / "bin" / "lloyd_mpi_double",
        "spark-mllib": SPARK / "classes" / "KMeansSpark.class",
        "spark-ml": SPARK / "classes" / "KMeansSpark.class",
    }
    if system not in needs:
        return None
    if not needs[system].exists() or (system.endswith("-mpi") and shutil.which("mpirun.openmpi") is None):
        return "not installed: run bench/setup_peers.sh"
    if system.startswith("spark") and not shutil.which("java"):
        return "java is missing: run bench/setup_peers.sh"
    return None


# --- measuring -------------------------------------------------------------------------------------------------------
def inertia(rows: Any, centres: Any) -> float:
    """Sum of squared distances to the nearest centre, in float64."""
    rows, centres = rows.astype(np.float64), centres.astype(np.float64)
    total = 0.0
    for start in range(0, len(rows), 2000):
        part = rows[start : start + 2000]
        squares = (part**2).sum(1)[:, None] - 2 * part @ centres.T + (centres**2).sum(1)
        total += float(squares.min(axis=1).sum())
    return total


def measure(
    name: str, systems: Sequence[str] | None, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs setting `name`, its cases named in `only` or all, and returns the raw results: for every case the times, inertias and failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    known = OURS + OURS_PLAIN + PEER_SYSTEMS
    wanted: tuple[str, ...] = OURS if name == "tiny" else known
    if systems:  # "tidemill" means all ways it runs
        wanted = tuple(
            s for s in OURS + PEER_SYSTEMS if any(s == given or s.startswith(given + "-") for given in systems)
        )
    present = []
    for system in wanted:
        if why := missing(system):
            say(f"{system} is left out: {why}")
        else:
            present.append(system)
    cases = []
    for case in setting.cases:
        if only and not any(part in case.name for part in only):
            continue
        if lacking := case.lacks():
            say(f"k-means {case.name} is left out: {lacking} is not there (TIDEMILL_DATA names the folder above)")
            continue
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            cases.append(measure_case(case, present, rounds, setting, Path(folder), say))
    return {"rounds": rounds, "iterations": setting.iterations, "cases": cases}


def measure_case(
    case: Case, systems: list[str], rounds: int, setting: Setting, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    started = time.monotonic()
    iterations = case.iterations or setting.iterations
    rows, centres = case.generate()
    files = {name: folder / f"{name}.npy" for name in ("rows", "centres", *systems)}
    np.save(files["rows"], rows)
    np.save(files["centres"], centres)
    inertias: dict[str, float] = {}

    def run(system: str, number: int) -> dict[str, Any]:
        times = run_once(launch(system, case, files, iterations), "fit_s", setting.timeout_s)
        if number == 0:
            inertias[system] = inertia(rows[:SAMPLE_ROWS], read_centres(files[system], case))
        return fit_seconds(times, "fit_s", iterations)

    fit = [system for system in systems if unfit(system, case) is None]
    found, failures = in_turn(fit, rounds, run, say, case.name)
    given = {name: value for name, value in inertias.items() if name not in OWN_START}
    failures |= others_than_the_best(given, INERTIA_TOLERANCE, "inertia", say, case.name)
    for name in OWN_START.keys() & inertias.keys():
        # Better by chance is no failure of the others.
        least = min(given.values(), default=inertias[name])
        both = {name: max(inertias[name], least), "the best": least}
        failures |= others_than_the_best(both, OWN_START[name], "inertia", say, case.name)
    say(f"k-means {case.name}: {rounds} rounds, {time.monotonic() - started:.0f} s")
    times = {name: found.get(name, {}) for name in ("fit_s", "further_s")}
    return {**case.__dict__, **times, "inertia": inertias, "failures": failures}


def read_centres(path: Path, case: Case) -> Any:
    """The centres a system left: .npy from Python, bare numbers from C and Java."""
    if path.read_bytes()[:6] == b"\x93NUMPY":
        return np.load(path)
    return np.fromfile(path, case.dtype).reshape(case.k, case.columns)
