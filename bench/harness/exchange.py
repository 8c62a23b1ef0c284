"""The benchmark of exchanges: messages through task graphs, beside the same by hand over Open MPI and with Flink.

Each of the three with functions in Python, and in a compiled language. Two workers; every system in turn, over several rounds;
the digest of what arrives must be the same for all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .once import in_turn, lasts, run_once
from .systems import BENCH, PEERS, SINGLE_THREADED, SYSTEMS, Launch, present

PYFLINK = BENCH / "peers" / "exchange_pyflink.py"
FLINK = PEERS / "flink"
FLINK_CLASSES = FLINK / "classes"
FLINK_JARS = "lib/python*/site-packages/pyflink/lib"
PYFLINK_PACKAGE = "lib/python*/site-packages/pyflink/datastream"
TASK_MANAGERS = {"flink-2x1": 2, "flink-1x2": 1}
OPERATIONS = ("partition", "reduce", "gather", "broadcast")
WORKERS = 2
TIMEOUT_S = 120


@dataclass(frozen=True)
class Setting:
    messages: dict[int, int]  # of each source, by their size in bytes
    rounds: int


SETTINGS = {
    "full": Setting({128: 1_000_000, 128 << 10: 5000}, rounds=5),
    "quick": Setting({128: 50_000, 128 << 10: 2000}, rounds=3),
    "tiny": Setting({128: 100}, rounds=1),
}


@dataclass(frozen=True)
class Programs:
    """One benchmark's programs: of Tidemill and of Open MPI, in Python and compiled, and of Flink in Java."""

    worker: str
    binaries: dict[str, Path]
    flink: str

    def missing(self, system: str) -> str | None:
        """What keeps a system from running here, with the remedy; None when it can run."""
        if system in TASK_MANAGERS:
            built = shutil.which("java") and (FLINK_CLASSES / f"{self.flink}.class").exists()
            return None if built else "java or its program is missing: run bench/setup_peers.sh"
        if system in self.binaries and not self.binaries[system].exists():
            return "not built: run bench/setup_peers.sh"
        return SYSTEMS[launcher(system)].missing()

    def launch(self, system: str, given: Sequence[str]) -> Launch:
        if system in self.binaries:
            return SYSTEMS[launcher(system)].launch_binary(WORKERS, "shm", [str(self.binaries[system]), *given])
        if system in TASK_MANAGERS:
            return flink_java(self.flink, [str(TASK_MANAGERS[system]), *given])
        return SYSTEMS[system].launch(WORKERS, "shm", [self.worker, system, *given])


def programs(name: str, flink: str) -> Programs:
    """Those called `name`, and `flink` in Java, where `bench/setup_peers.sh` puts them."""
    binaries = {"tidemill-rust": PEERS / "bin" / f"{name}_tidemill", "openmpi-c++": PEERS / "bin" / f"{name}_mpi"}
    return Programs(str(BENCH / "harness" / f"{name}_worker.py"), binaries, flink)


PROGRAMS = programs("exchange", "ExchangeFlink")
ALL = ("tidemill", "openmpi", "pyflink", *PROGRAMS.binaries, *TASK_MANAGERS)


def missing(system: str) -> str | None:
    """As `Programs.missing`."""
    if system == "pyflink":
        installed = shutil.which("java") and any(FLINK.glob(PYFLINK_PACKAGE))
        return None if installed else "java or apache-flink is missing: run bench/setup_peers.sh"
    return PROGRAMS.missing(system)


def launcher(system: str) -> str:
    return system.partition("-")[0]


def launch(system: str, operation: str, size: int, messages: int) -> Launch:
    given = [operation, str(size), str(messages)]
    if system == "pyflink":
        return Launch([str(FLINK / "bin" / "python"), str(PYFLINK), *given], dict(SINGLE_THREADED))
    return PROGRAMS.launch(system, given)


def flink_java(program: str, given: Sequence[str], libraries: Sequence[str] = (), heap: str = "4g") -> Launch:
    """A program in Java with Flink's libraries, and others."""
    (jars,) = FLINK.glob(FLINK_JARS)
    path = ":".join([str(FLINK_CLASSES), f"{jars}/*", *libraries])
    return Launch(["java", f"-Xmx{heap}", "-XX:+UseParallelGC", "-cp", path, program, *given])


def measure(name: str, systems: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs setting `name`; the raw results: of every operation and size the times, digests and failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    known = ALL[:1] if name == "tiny" else ALL
    running = present(name, systems, known, missing, lambda line: say(f"exchanges: {line}"))
    cases = []
    for operation in OPERATIONS if running else ():
        for size, messages in setting.messages.items():
            cases.append(measure_case(operation, size, messages, running, rounds, say))
    say(f"exchanges: {len(cases)} cases, {rounds} rounds")
    return {"rounds": rounds, "workers": WORKERS, "cases": cases}


def measure_case(
    operation: str, size: int, messages: int, systems: Sequence[str], rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    def run(system: str, _: int) -> dict[str, Any]:
        found = run_once(launch(system, operation, size, messages), "rate_s", TIMEOUT_S)
        latency = {} if found["latency_s"] is None else {"latency_s": found["latency_s"]}
        return {"message_s": found["rate_s"] / messages, "digest": found["digest"], **latency}

    found, failures = in_turn(systems, rounds, run, say, f"{operation} of {size} B")
    described = {"operation": operation, "size": size, "messages": messages}
    times = {name: found.get(name, {}) for name in ("message_s", "latency_s")}
    return {**described, **times, "digests": lasts(found.get("digest", {})), "failures": failures}
