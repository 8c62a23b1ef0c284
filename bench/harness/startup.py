"""The benchmark of start-up: from the start of an interpreter to the answer of a trivial query, and to the end of the process.

Nothing is warm but the system's cache of files: each turn starts everything afresh.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from .comm import SystemFailed, rotated
from .memory import Watch
from .systems import PEERS, SYSTEMS, Launch

ROUNDS = {"full": 15, "quick": 5, "tiny": 1}
TIMEOUT_S = 60
ANSWER = "rows: 1"
OURS = {"tidemill": 1, "tidemill-2": 2, "tidemill-4": 4}
TIDEMILL = "import tidemill as tm; n = tm.from_dict({'x': [1]}).count(); print('rows:', n, flush=True)"
SPARK = """from pyspark.sql import SparkSession
spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').config('spark.log.level', 'ERROR').getOrCreate()
print('rows:', spark.range(1).count(), flush=True)"""
PEER_PROGRAMS = {
    "python": ("tables", "print('rows:', len([1]), flush=True)"),
    "numpy": ("tables", "import numpy; print('rows:', len(numpy.array([1])), flush=True)"),
    "polars": ("tables", "import polars; print('rows:', len(polars.DataFrame({'x': [1]})), flush=True)"),
    "duckdb": (
        "tables",
        "import duckdb; print('rows:', duckdb.sql('select count(*) from (select 1)').fetchall()[0][0], flush=True)",
    ),
    "datafusion": (
        "tables",
        "import datafusion; print('rows:', datafusion.SessionContext().from_pydict({'x': [1]}).count(), flush=True)",
    ),
    "spark": ("spark", SPARK),
}


def launch(system: str) -> Launch:
    if system in OURS:
        command = [sys.executable, "-c", TIDEMILL]
        workers = OURS[system]
        return SYSTEMS["tidemill"].launch_binary(workers, "shm", command) if workers > 1 else Launch(command)
    env, program = PEER_PROGRAMS[system]
    return Launch([str(PEERS / env / "bin" / "python"), "-c", program])


def measure(name: str, systems: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Starts every system once a round, in turn; the raw results: times to the answer and to the end, failures."""
    rounds = rounds or ROUNDS[name]
    left = [s for s in OURS if not systems or s in systems or "tidemill" in systems]
    if name != "tiny":
        wanted = [s for s in PEER_PROGRAMS if not systems or s in systems]
        left += [s for s in wanted if (PEERS / PEER_PROGRAMS[s][0] / ".stamp").exists()]
        for absent in sorted(set(wanted) - set(left)):
            say(f"{absent} is left out: not installed: run bench/setup_peers.sh")
    answer_s: dict[str, list[float]] = {}
    end_s: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    # A first round only brings programs and libraries into the system's cache.
    for number in range(0 if name == "tiny" else -1, rounds):
        for system in rotated(list(left), number):
            try:
                answered, ended = run(system)
            except SystemFailed as error:
                failures[system] = str(error)
                left.remove(system)
                say(f"start of {system}: {error}")
                continue
            if number >= 0:
                answer_s.setdefault(system, []).append(answered)
                end_s.setdefault(system, []).append(ended)
    say(f"start-up: {rounds} rounds")
    return {"rounds": rounds, "answer_s": answer_s, "end_s": end_s, "failures": failures}


def run(system: str) -> tuple[float, float]:
    """Seconds until every worker has told the answer, and until all is over."""
    command = launch(system)
    start = time.perf_counter()
    process = command.start()
    assert process.stdout is not None
    watch = Watch(process.pid, TIMEOUT_S)
    watch.start()
    awaited, answered, said = OURS.get(system, 1), 0.0, []
    try:
        for line in process.stdout:
            said.append(line.strip())
            if line.rstrip().endswith(ANSWER):
                awaited -= 1
                answered = time.perf_counter() - start
        process.wait()
        ended = time.perf_counter() - start
    finally:
        watch.stop()
        if process.poll() is None:
            watch.kill()
            process.wait()
    if awaited > 0:
        raise SystemFailed(
            watch.killed_because or " | ".join(said[-3:]) or f"exit code {process.returncode}, no output"
        )
    return answered, ended
