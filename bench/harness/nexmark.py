"""The benchmark of Nexmark: its queries over the same events, beside Flink's SQL.

Event `i` follows from `i` (`tidemill.apps.nexmark_events`), and is made while the query runs, by each system in its own language. Each
system is a program that is given

    QUERY EVENTS STEP_US

of which the last is the event time between two events, and prints {"elapsed_s", "rows", "digest"}: the time from the first event to the
last row, once it has run before, how many rows there are, and a sum over what they hold, which must be the same for all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exchange import FLINK_CLASSES, flink_java
from .once import in_turn, lasts, run_once
from .systems import BENCH, Launch, present
from .systems import SYSTEMS as LAUNCHERS

OURS = LAUNCHERS["tidemill"]
WORKER = BENCH / "harness" / "nexmark_worker.py"
STEP_US = 100
TIMEOUT_S = 900
QUERIES = (0, 1, 2, 3, 4, 5, 6, 7, 8)
NOT_IN_FLINK = {6: "Flink's SQL has no OVER window of an aggregate that is corrected (FLINK-19059)"}


@dataclass(frozen=True)
class Setting:
    events: int
    rounds: int


SETTINGS = {"full": Setting(10_000_000, 3), "quick": Setting(2_000_000, 1), "tiny": Setting(20_000, 1)}


@dataclass(frozen=True)
class System:
    needs: Path  # without which it cannot run
    launch: Callable[[list[str]], Launch]  # from what the program is given


def tidemill(workers: int, threads: int) -> System:
    options = ["--threads", str(threads)]
    return System(WORKER, lambda given: OURS.launch(workers, "shm", [str(WORKER), *given], options))


def flink(given: list[str]) -> Launch:
    from tidemill.apps.nexmark_events import _LETTERS

    return flink_java("NexmarkFlink", [*given, _LETTERS])


SYSTEMS = {
    "tidemill-2x1": tidemill(2, 1),
    "tidemill-1x2": tidemill(1, 2),
    "flink-sql": System(FLINK_CLASSES / "NexmarkFlink.class", flink),
}


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if system.startswith("flink") and not shutil.which("java"):
        return "java is missing: run bench/setup_peers.sh"
    return None if SYSTEMS[system].needs.exists() else "not installed: run bench/setup_peers.sh"


def measure(
    name: str,
    systems: Sequence[str] | None,
    cases: Sequence[str] | None,
    rounds: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs setting `name`; the raw results: of every query the times, rows, digests and failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    chosen = [number for number in QUERIES if not cases or f"q{number}" in cases]
    running = present(name, systems, SYSTEMS, missing, lambda line: say(f"nexmark: {line}"))
    measured = [measure_query(number, setting.events, running, rounds, say) for number in chosen] if running else []
    say(f"nexmark: {len(measured)} queries, {rounds} rounds")
    return {"rounds": rounds, "events": setting.events, "step_us": STEP_US, "cases": measured}


def measure_query(
    number: int, events: int, systems: Sequence[str], rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:

    def turn(system: str, _: int) -> dict[str, Any]:
        given = [str(number), str(events), str(STEP_US)]
        found = run_once(SYSTEMS[system].launch(given), "elapsed_s", TIMEOUT_S)
        return {"elapsed_s": found["elapsed_s"], "answer": f"{found['rows']} {found['digest']}"}

    unable = {}
    if number in NOT_IN_FLINK:
        unable = {system: NOT_IN_FLINK[number] for system in systems if system.startswith("flink")}
    able = [system for system in systems if system not in unable]
    found, failures = in_turn(able, rounds, turn, lambda line: say(f"nexmark: {line}"), f"query {number}")
    return {
        "query": number,
        "elapsed_s": found.get("elapsed_s", {}),
        "answers": lasts(found.get("answer", {})),
        "failures": unable | failures,
    }
