"""The benchmark of DataSets: every system answers the same queries over the same rows, in turn, over several rounds.

Two cores are given to each: two threads, or two workers of one. A digest of the answer must be the same for all. Beside the
time stands the most memory that all processes of a system held.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import inputs
from .engines import WINDOWS
from .exchange import FLINK_CLASSES, flink_java
from .once import in_turn, lasts, run_watched
from .systems import BENCH, PEERS, SYSTEMS, Launch

WORKER = str(BENCH / "harness" / "dataset_worker.py")


@dataclass(frozen=True)
class Case:
    """A query and its input: `rows` of a table, of text, or of records to sort; `keys` among them."""

    query: str
    rows: int
    keys: int = 0
    in_memory: bool = False
    skewed: bool = False
    memory_mib: int = 0  # a bound on the memory of all processes of a system; 0 without

    @property
    def name(self) -> str:
        where = {"sort": "", "words": ""}.get(self.query, "-memory" if self.in_memory else "-files")
        skewed = "-skewed" if self.skewed else ""
        keys = f"-{self.keys}" if self.keys else ""
        budget = f"-{self.memory_mib}mib" if self.memory_mib else ""
        return f"{self.query}{skewed}{where}-{self.rows}{keys}{budget}"

    def resized(self, rows: int) -> Case:
        """With so many rows, if it is one of window functions; the keys change in proportion."""
        return replace(self, rows=rows, keys=max(1, rows * self.keys // self.rows)) if self.query in WINDOWS else self

    @property
    def title(self) -> str:
        """For the head of a table."""
        if self.query == "sort":
            bound = f", {self.memory_mib:,} MiB of memory" if self.memory_mib else ""
            return f"sort, {self.rows:,} records of 100 bytes{bound}"
        if self.query == "words":
            return f"words, {self.rows:,} lines"
        where = "in memory" if self.in_memory else "Parquet files"
        where += f", {self.memory_mib:,} MiB of memory" if self.memory_mib else ""
        keys = f"{self.keys:,} {'skewed ' if self.skewed else ''}keys"
        return f"{self.query}, {self.rows:,} rows, {keys}, {where}"

    @property
    def input(self) -> tuple[object, ...]:
        """Cases with the same one can share what was generated."""
        return ("windows" if self.query in WINDOWS else self.query, self.rows, self.keys, self.skewed)

    def generate(self, folder: Path, parquet_records: bool) -> None:
        """Writes the input; seeded."""
        if self.query == "words":
            inputs.text(folder / "text.txt", self.rows)
        elif self.query == "sort":
            inputs.records(folder / "many", self.rows, parquet_records)
            inputs.records(folder / "few", min(self.rows, 10_000), parquet_records)
        elif self.query in WINDOWS:
            inputs.ordered(folder, self.rows, self.keys)
        else:
            inputs.tables(folder, self.rows, self.keys, self.skewed, dimension=self.query == "join")


@dataclass(frozen=True)
class Setting:
    cases: tuple[Case, ...]
    rounds: int
    timeout_s: float = 300.0


def windows(rows: int, keys: int, bounded_rows: int, memory_mib: int) -> tuple[Case, ...]:
    """The cases of window functions: each in memory and from files, and one with a bound on memory."""
    cases = [Case(query, rows, keys, in_memory=in_memory) for query in WINDOWS for in_memory in (True, False)]
    # As many rows of a key as without the bound.
    bounded = [Case(query, bounded_rows, bounded_rows * keys // rows, memory_mib=memory_mib) for query in WINDOWS]
    return (*cases, *bounded)


SETTINGS = {
    "full": Setting(
        (
            Case("group", 50_000_000, 1_000_000, in_memory=True),
            Case("group", 50_000_000, 1_000_000),
            Case("group", 50_000_000, 1_000_000, in_memory=True, skewed=True),
            Case("group", 50_000_000, 100, in_memory=True),
            Case("join", 20_000_000, 2_000_000, in_memory=True),
            Case("join", 20_000_000, 2_000_000),
            Case("join", 20_000_000, 2_000_000, in_memory=True, skewed=True),
            Case("join", 20_000_000, 1000, in_memory=True),
            Case("words", 7_200_000),
            Case("sort", 10_000_000),
            Case("sort", 40_000_000),
            Case("sort", 40_000_000, memory_mib=1024),
            *windows(8_000_000, 1_000_000, 48_000_000, 1024),
        ),
        rounds=5,
    ),
    "quick": Setting(
        (
            Case("group", 5_000_000, 100_000, in_memory=True),
            Case("group", 5_000_000, 100_000),
            Case("group", 5_000_000, 100_000, in_memory=True, skewed=True),
            Case("join", 2_000_000, 200_000, in_memory=True),
            Case("join", 2_000_000, 200_000),
            Case("join", 2_000_000, 200_000, in_memory=True, skewed=True),
            Case("join", 2_000_000, 1000, in_memory=True),
            Case("words", 600_000),
            Case("sort", 2_000_000),
            Case("sort", 6_000_000, memory_mib=512),
            *windows(8_000_000, 1_000_000, 16_000_000, 512),
        ),
        rounds=3,
        timeout_s=120,
    ),
    "tiny": Setting(
        (
            Case("group", 2000, 10, in_memory=True),
            Case("join", 2000, 200, skewed=True),
            Case("words", 200),
            Case("row-number", 2000, 250, in_memory=True),
            Case("running-sum", 2000, 250),
            Case("lag-lead", 2000, 250, memory_mib=256),
            Case("sort", 2000, memory_mib=256),
        ),
        rounds=1,
        timeout_s=120,
    ),
}
OURS = ("tidemill-2x1", "tidemill-1x2")
# The virtual environment of each, below bench/.peers.
PEER_SYSTEMS = {
    "polars": "tables",
    "polars-streaming": "tables",
    "duckdb": "tables",
    "datafusion": "tables",
    "spark": "spark",
    "flink": "flink",
    "dask": "dask",
    "ray": "ray",
    "numpy": "tables",
    "pyarrow": "tables",
}
SORT = {"tidemill", "polars", "duckdb", "datafusion", "spark", "flink", "numpy", "pyarrow"}
SORT_RECORDS = {"tidemill", "flink", "numpy", "pyarrow"}  # the others read and write Parquet
ONLY_SORT = {"flink", "numpy", "pyarrow"}
# Can be told how much memory to use; Polars' streaming engine cannot, and is shown as it is.
SORT_BOUNDED = {"tidemill", "duckdb", "datafusion", "spark", "flink", "polars-streaming"}
WINDOW = {"tidemill", "polars", "duckdb", "datafusion", "spark"}
WINDOW_BOUNDED = WINDOW - {"polars"}


def able(system: str, case: Case) -> bool:
    """Whether a system has what a case asks for."""
    library = system.split("-")[0]
    if case.query in WINDOWS:
        return library in (WINDOW_BOUNDED if case.memory_mib else WINDOW)
    if case.query != "sort":
        return library not in ONLY_SORT
    return library in SORT and (not case.memory_mib or library in SORT_BOUNDED or system in SORT_BOUNDED)


def launch(system: str, case: Case, folder: Path) -> Launch:
    """How `system` is started on `case`."""
    program = [WORKER, system, case.query, str(folder), "--memory-mib", str(case.memory_mib)]
    if case.in_memory:
        program.append("--in-memory")
    if system.startswith("tidemill"):
        workers, threads = (2, 1) if "2x1" in system else (1, 2)
        options = ["--threads", str(threads), "--spill-dir", str(folder)]
        if case.memory_mib:
            options += ["--memory", f"{case.memory_mib // workers}MiB"]
        return SYSTEMS["tidemill"].launch(workers, "shm", program, options)
    if system == "flink":
        # Its sorts hold records outside of the heap, and clear that memory first: more than they need takes seconds. With a bound the
        # virtual machine itself has an eighth.
        heap_mib, managed_mib = 2048, max(256, case.rows * 150 >> 20)
        if case.memory_mib:
            heap_mib, managed_mib = case.memory_mib // 4, case.memory_mib * 5 // 8
        return flink_java("SortFlink", [str(folder), str(managed_mib)], heap=f"{heap_mib}m")
    python = PEERS / PEER_SYSTEMS[system] / "bin" / "python"
    # Rust's libraries take a thread for each core unless told otherwise; Ray would report home.
    threads = {"POLARS_MAX_THREADS": "2", "TOKIO_WORKER_THREADS": "2", "RAY_USAGE_STATS_ENABLED": "0"}
    return Launch([str(python), *program], {**threads, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if system in PEER_SYSTEMS and not (PEERS / PEER_SYSTEMS[system] / ".stamp").exists():
        return "not installed: run bench/setup_peers.sh"
    if system == "flink" and not (FLINK_CLASSES / "SortFlink.class").exists():
        return "not built: run bench/setup_peers.sh"
    if system in ("spark", "flink") and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        return "it needs Java 17 or newer: run bench/setup_peers.sh"
    return None


def measure(
    name: str,
    systems: Sequence[str] | None,
    only: Sequence[str] | None,
    rounds: int | None,
    say: Callable[[str], None],
    window_rows: int | None = None,
) -> dict[str, Any]:
    """Runs setting `name`, its cases named in `only` or all; the raw results: of every case times, memory, digests, failures.

    `window_rows` replaces the number of rows of window functions; each key has as many as before.
    """
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    wanted: tuple[str, ...] = OURS if name == "tiny" else (*OURS, *PEER_SYSTEMS)
    if systems:
        wanted = tuple(
            s for s in (*OURS, *PEER_SYSTEMS) if any(s == given or s.startswith(given + "-") for given in systems)
        )
    present = []
    for system in wanted:
        if why := missing(system):
            say(f"{system} is left out: {why}")
        else:
            present.append(system)
    resized = [case.resized(window_rows) if window_rows else case for case in setting.cases]
    chosen = [case for case in resized if not only or any(part in case.name for part in only)]
    cases = []
    while chosen:
        # Cases that follow each other over the same input share it.
        same = [case for case in chosen if case.input == chosen[0].input]
        chosen = [case for case in chosen if case.input != same[0].input]
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            say(f"DataSets {same[0].name}: making the input")
            same[0].generate(Path(folder), any(able(s, same[0]) and s not in SORT_RECORDS for s in present))
            cases += [measure_case(case, present, rounds, setting.timeout_s, Path(folder), say) for case in same]
    return {"rounds": rounds, "cases": cases}


def measure_case(
    case: Case, systems: list[str], rounds: int, timeout_s: float, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    started = time.monotonic()
    measured = ("query_s", "peak_mib", "own_mib")

    def turn(system: str, _: int) -> dict[str, Any]:
        found = run(system, case, folder, timeout_s)
        say(f"  {system}: {found['query_s']:.3g} s, {found['peak_mib']:,} MiB")
        return {name: found[name] for name in (*measured, "digest")}

    taking_part = [system for system in systems if able(system, case)]
    found, failures = in_turn(taking_part, rounds, turn, say, case.name)
    digests = lasts(found.get("digest", {}))
    if len(set(digests.values())) > 1:
        say(f"the answers to {case.name} differ: {digests}")
    say(f"DataSets {case.name}: {rounds} rounds, {time.monotonic() - started:.0f} s")
    described = {**asdict(case), "name": case.name, "title": case.title}
    values = {name: found.get(name, {}) for name in measured}
    return {**described, **values, "digests": digests, "failures": failures}


def run(system: str, case: Case, folder: Path, timeout_s: float) -> dict[str, Any]:
    """One turn of one system; the output of a sort is checked and removed."""
    made = [folder / name for name in ("sorted", "few-sorted", "spill", "spark")]
    try:
        # What the one before has written and the system not yet: nobody pays for another's.
        os.sync()
        found = run_watched(launch(system, case, folder), timeout_s)
        if case.query == "sort":
            found["digest"] = inputs.sorted_digest(folder / "sorted")
        return found
    finally:
        for output in made:
            shutil.rmtree(output, ignore_errors=True)
