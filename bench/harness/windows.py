"""The benchmark of windows: a keyed count in tumbling windows of event time, as fast as it goes and at a pace.

Events have one of 1000 keys, and times in order but for a jitter of up to 100 ms, which is how far out of order the systems expect them
to be; windows are of one second. How event `i` is made is told in `windows_events.py`. Each system is a program that is given

    throughput|latency EVENTS PER_SECOND

of which the last is the number of events in a second of event time, and prints {"elapsed_s", "counted", "digest", "latency_s"}:
`throughput` the time of all events, made before, from the first until the last row of the result has arrived; `latency` the times, while
a source emits each event when it is due, from the moment it has emitted the watermark that closes a window, or the event by which one
could, until the last row of the window has arrived.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .comm import SystemFailed
from .exchange import FLINK, FLINK_CLASSES, flink_java
from .once import in_turn, run_once
from .systems import BENCH, PEERS, SINGLE_THREADED, SPARK, Launch, present, spark_submit
from .systems import SYSTEMS as LAUNCHERS
from .windows_events import answer

OURS = LAUNCHERS["tidemill"]
WORKER = BENCH / "harness" / "windows_worker.py"
TIDEMILL_EVENTS_MAX = 300_000_000
TIMEOUT_S = 600
EVENT_TIME_S = 10  # of the events that come as fast as they go
PACE_PER_S = 30_000  # at which all are measured, beside half of their own peak
CHECKED_EVENTS = 10_000_000  # of more only the number is checked
LAG_MAX = 1.25  # of the time that a paced run should take


@dataclass(frozen=True)
class Setting:
    events: int
    paced_s: int  # how long a source keeps its pace
    rounds: int


SETTINGS = {
    "full": Setting(10_000_000, paced_s=30, rounds=5),
    "quick": Setting(2_000_000, paced_s=10, rounds=2),
    "tiny": Setting(100_000, paced_s=3, rounds=1),
}


@dataclass(frozen=True)
class System:
    needs: Path  # without which it cannot run
    launch: Callable[[list[str]], Launch]  # from what the program is given
    share: float = 1.0  # of the events: what takes a minute for a tenth of them would take no less for each of all
    events_max: float = math.inf  # where all events of a paced stream lie in memory: it is so much shorter


def tidemill(workers: int, threads: int, *words: str) -> System:
    launch = OURS.launch
    options = ["--threads", str(threads)]
    return System(
        WORKER,
        lambda given: launch(workers, "shm", [str(WORKER), *words, *given], options),
        events_max=TIDEMILL_EVENTS_MAX,
    )


def timely(way: str) -> System:
    binary = PEERS / "bin" / "windows_timely"
    return System(binary, lambda given: Launch([str(binary), way, *given]))


def flink(api: str) -> System:
    return System(FLINK_CLASSES / "WindowsFlink.class", lambda given: flink_java("WindowsFlink", [api, *given]))


def python(name: str, *launcher: str, share: float = 1.0) -> System:
    """A program in the environment of this name; `launcher` is a command of it and its options."""
    folder = PEERS / name / "bin"
    program = [*launcher, "python", str(BENCH / "peers" / f"windows_{name}.py")]
    env = {**SINGLE_THREADED, "PYTHONPATH": str(BENCH / "harness"), "PATH": f"{folder}:{os.environ['PATH']}"}
    return System(
        PEERS / name / ".stamp", lambda given: Launch([str(folder / program[0]), *program[1:], *given], env), share
    )


def pyflink(given: list[str]) -> Launch:
    argv = [str(FLINK / "bin" / "python"), str(BENCH / "peers" / "windows_pyflink.py"), *given]
    return Launch(argv, {**SINGLE_THREADED, "HADOOP_CLASSPATH": str(FLINK_CLASSES)})


def spark(given: list[str]) -> Launch:
    return spark_submit("WindowsSpark", given, heap="4g")


SYSTEMS = {
    "tidemill-2x1": tidemill(2, 1),
    "tidemill-1x2": tidemill(1, 2),
    "tidemill-2x1-function": tidemill(2, 1, "--function"),
    "tidemill-1x2-function": tidemill(1, 2, "--function"),
    "timely": timely("exchange"),
    "timely-local": timely("local"),
    "flink": flink("datastream"),
    "flink-sql": flink("sql"),
    "pyflink": System(FLINK_CLASSES / "WindowsFlink.class", pyflink, share=0.1),
    "spark": System(SPARK / "classes" / "WindowsSpark.class", spark),
    "bytewax": python("bytewax"),
    "pathway": python("pathway", "pathway", "spawn", "--threads", "2"),
}
JAVA = ("flink", "flink-sql", "pyflink", "spark")


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if system in JAVA and not shutil.which("java"):
        return "java is missing: run bench/setup_peers.sh"
    return None if SYSTEMS[system].needs.exists() else "not installed: run bench/setup_peers.sh"


right = cache(answer)


def run(system: str, mode: str, events: int, per_second: int) -> dict[str, Any]:
    """What a system's program prints; the count of what it counted, and with few enough events the digest, must be right."""
    found = run_once(SYSTEMS[system].launch([mode, str(events), str(per_second)]), "elapsed_s", TIMEOUT_S)
    if found["counted"] != events:
        raise SystemFailed(f"counted {found['counted']:,} of {events:,} events")
    if events <= CHECKED_EVENTS and found["digest"] != right(events, per_second):
        raise SystemFailed("a wrong result")
    if mode == "latency" and found["elapsed_s"] > LAG_MAX * events / per_second:
        raise SystemFailed(f"took {found['elapsed_s']:.1f} s for events of {events / per_second:.0f} s")
    return found


def measure(name: str, systems: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs setting `name`; the raw results: of every system the times of an event, the latencies at each pace, failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    known = [system for system in SYSTEMS if name != "tiny" or system.startswith("tidemill")]
    running = present(name, systems, known, missing, lambda line: say(f"windows: {line}"))
    events = {system: int(setting.events * SYSTEMS[system].share) for system in running}
    per_second = {system: count // EVENT_TIME_S for system, count in events.items()}
    cases = [measure_case("throughput", per_second, EVENT_TIME_S, rounds, say)] if running else []
    for case in cases[:1]:
        half_per_s = {system: int(0.5 / statistics.median(times)) for system, times in case["event_s"].items()}
        for pace_per_s in (dict.fromkeys(half_per_s, PACE_PER_S), half_per_s):
            cases.append(measure_case("latency", pace_per_s, setting.paced_s, rounds, say))
    say(f"windows: {len(cases)} cases, {rounds} rounds")
    return {"rounds": rounds, "events": setting.events, "paced_s": setting.paced_s, "cases": cases}


def measure_case(
    mode: str, per_second: dict[str, int], seconds: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The times of an event, or the latencies of all windows, of systems with so many events in each of these seconds."""

    def turn(system: str, _: int) -> dict[str, Any]:
        events = int(min(seconds, SYSTEMS[system].events_max / per_second[system]) * per_second[system])
        found = run(system, mode, events, per_second[system])
        if mode == "throughput":
            return {"event_s": found["elapsed_s"] / events}
        return {"latency_s": found["latency_s"]}

    found, failures = in_turn(list(per_second), rounds, turn, lambda line: say(f"windows: {line}"), mode)
    times = {name: found.get(name, {}) for name in ("event_s", "latency_s")}
    return {"mode": mode, "per_second": per_second, **times, "failures": failures}
