"""The benchmark of DataSets: every system answers the same queries over the same files, in turn, over several rounds.

Two cores are given to each: two threads, or two workers of one. A digest of the answer must be the same for all.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .comm import SystemFailed, rotated
from .once import run_once
from .systems import BENCH, PEERS, SYSTEMS, Launch

WORKER = str(BENCH / "harness" / "dataset_worker.py")
FILES = 8  # of each table: every thread has one to begin with
WORDS_A_LINE, VOCABULARY = 10, 50_000


@dataclass(frozen=True)
class Case:
    """A query and the size of its input: `rows` of a table, or of text; `groups` in the answer, words aside."""

    query: str
    rows: int
    groups: int

    @property
    def name(self) -> str:
        return f"{self.query}-{self.rows}-{self.groups}"

    def generate(self, folder: Path) -> None:
        """Writes the input; seeded."""
        rng = np.random.default_rng(20240229)
        if self.query == "words":
            # Few words are frequent and many are rare, as in a language.
            words = np.array([f"word{number:x}" for number in range(VOCABULARY)])
            drawn = words[np.minimum(rng.zipf(1.2, (self.rows, WORDS_A_LINE)), VOCABULARY) - 1]
            (folder / "text.txt").write_text("".join(" ".join(line) + "\n" for line in drawn))
            return
        keys = self.groups if self.query == "group" else max(1, self.rows // 10)
        facts = {"k": rng.integers(keys, size=self.rows), "x": rng.integers(-1000, 1000, size=self.rows)}
        write(folder / "facts", facts)
        if self.query == "join":
            write(folder / "dimension", {"k": rng.permutation(keys), "g": rng.integers(self.groups, size=keys)})


def write(folder: Path, columns: dict[str, Any]) -> None:
    """A table as Parquet, its rows shared among `FILES` files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    table = pa.table(columns)
    for number in range(FILES):
        start, end = len(table) * number // FILES, len(table) * (number + 1) // FILES
        pq.write_table(table.slice(start, end - start), folder / f"{number}.parquet")


@dataclass(frozen=True)
class Setting:
    cases: tuple[Case, ...]
    rounds: int
    timeout_s: float = 300.0


SETTINGS = {
    "full": Setting(
        (
            Case("group", 10_000_000, 100),
            Case("group", 10_000_000, 1_000_000),
            Case("join", 10_000_000, 1000),
            Case("words", 1_000_000, VOCABULARY),
        ),
        rounds=5,
    ),
    "quick": Setting(
        (
            Case("group", 2_000_000, 100),
            Case("group", 2_000_000, 200_000),
            Case("join", 2_000_000, 1000),
            Case("words", 200_000, VOCABULARY),
        ),
        rounds=3,
    ),
    "tiny": Setting(
        (Case("group", 2000, 10), Case("join", 2000, 10), Case("words", 200, VOCABULARY)), rounds=1, timeout_s=60
    ),
}
OURS = ("tidemill-2x1", "tidemill-1x2")
PEER_SYSTEMS = ("polars", "polars-streaming", "duckdb")


def launch(system: str, case: Case, folder: Path) -> Launch:
    """How `system` is started on `case`."""
    program = [WORKER, system, case.query, str(folder)]
    if system.startswith("tidemill"):
        workers, threads = (2, 1) if "2x1" in system else (1, 2)
        return SYSTEMS["tidemill"].launch(workers, "shm", program, ["--threads", str(threads)])
    return Launch([str(PEERS / "tables" / "bin" / "python"), *program], {"POLARS_MAX_THREADS": "2"})


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if system in PEER_SYSTEMS and not (PEERS / "tables" / ".stamp").exists():
        return "not installed: run bench/setup_peers.sh"
    return None


def measure(
    name: str, systems: Sequence[str] | None, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs setting `name`, its cases named in `only` or all; the raw results: of every case times, digests, failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    wanted: tuple[str, ...] = OURS if name == "tiny" else OURS + PEER_SYSTEMS
    if systems:
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
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            cases.append(measure_case(case, present, rounds, setting, Path(folder), say))
    return {"rounds": rounds, "cases": cases}


def measure_case(
    case: Case, systems: list[str], rounds: int, setting: Setting, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    started = time.monotonic()
    case.generate(folder)
    query_s: dict[str, list[float]] = {}
    digests: dict[str, str] = {}
    failures: dict[str, str] = {}
    left = list(systems)
    for number in range(rounds):
        for system in rotated(list(left), number):
            try:
                found = run_once(launch(system, case, folder), "query_s", setting.timeout_s)
            except SystemFailed as error:
                failures[system] = str(error)
                left.remove(system)
                say(f"{system} on {case.name}: {error}")
                continue
            query_s.setdefault(system, []).append(found["query_s"])
            digests[system] = found["digest"]
    if len(set(digests.values())) > 1:
        say(f"the answers to {case.name} differ: {digests}")
    say(f"DataSets {case.name}: {rounds} rounds, {time.monotonic() - started:.0f} s")
    return {**asdict(case), "query_s": query_s, "digests": digests, "failures": failures}
