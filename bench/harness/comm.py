"""The communicator benchmark: all systems alive at once, measured point by point in turn, over several rounds.

A round starts every system afresh (process placement and memory layout are luck, and should vary). For each point,
an operation and a size, the systems then take turns A, B, C, so that a slow moment of the machine hits them alike. In
one turn a system runs a few batches of iterations; the turn's time is the median batch, where a batch takes as long as
its slowest rank. A point's time is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .systems import SYSTEMS, WORKER, oversubscribed

OPERATIONS = ("latency", "bandwidth", "bcast", "allreduce", "alltoall", "barrier")
SIZES = (8, 64, 512, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 16 << 20)
BATCHES = 5
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Plan:
    """What to measure: every operation at every size, for each number of workers and each transport."""

    systems: tuple[str, ...]
    workers: tuple[int, ...]
    transports: tuple[str, ...]
    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    rounds: int
    turn_s: float  # about how long one system's turn at one point may take
    wait_s: float  # how long the worker waits whose CPU use is measured
    turn_timeout_s: float = 120.0

    def points(self) -> list[tuple[str, int]]:
        return [(op, size) for op in self.operations for size in ((0,) if op == "barrier" else self.sizes)]


class SystemFailed(Exception):
    """A system did not start, gave a wrong result, died or hung; the message says which, with its last output."""


class Job:
    """The running workers of one system, each at the other end of a Unix socket."""

    def __init__(self, name: str, workers: int, transport: str, folder: Path) -> None:
        self.name, self.workers = name, workers
        self.peers: dict[int, IO[str]] = {}
        self.connections: list[socket.socket] = []
        self.pids: list[int] = []
        self.library = ""
        address = folder / f"{name}.socket"
        launch = SYSTEMS[name].launch(workers, transport, [str(WORKER), name, str(address)])
        self.output = (folder / f"{name}.log").open("w+b")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(workers)
            self.process = launch.start(self.output)
            try:
                self._accept(listener)
            except BaseException:
                self.close()
                raise

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self.peers) < self.workers:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if self.process.poll() is not None:
                    raise SystemFailed(f"did not start: {self._last_output()}") from None
                if time.monotonic() > deadline:
                    raise SystemFailed(f"did not start in {START_TIMEOUT_S:.0f} s: {self._last_output()}") from None
                continue
            connection.settimeout(START_TIMEOUT_S)
            self.connections.append(connection)
            lines = connection.makefile("rw")
            hello = json.loads(lines.readline() or "{}")
            if hello.get("size") != self.workers:
                raise SystemFailed(f"{self.workers} workers were asked for, one says it is of {hello.get('size')}")
            self.peers[hello["rank"]] = lines
            self.pids.append(hello["pid"])
            self.library = " ".join(hello["library"].replace("\0", "").splitlines()[0].split())

    def _last_output(self) -> str:
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-4:]) or "no output"

    def ask(self, timeout_s: float, **command: Any) -> list[dict[str, Any]]:
        """Sends one command to every worker and returns their answers by rank."""
        for connection in self.connections:
            connection.settimeout(timeout_s)
        try:
            for lines in self.peers.values():
                lines.write(json.dumps(command) + "\n")
                lines.flush()
            answers = [self.peers[rank].readline() for rank in range(self.workers)]
        except TimeoutError:
            raise SystemFailed(f"{command} took longer than {timeout_s:.0f} s") from None
        except OSError:
            answers = [""]
        if not all(answers):
            time.sleep(0.5)  # let the launcher print why
            raise SystemFailed(f"a worker died in {command}: {self._last_output()}")
        return [json.loads(answer) for answer in answers]

    def time(self, op: str, size: int, iterations: int, batches: int, timeout_s: float) -> float:
        """Seconds per operation: the median over batches of the slowest rank's time."""
        answers = self.ask(timeout_s, op=op, size=size, iterations=iterations, batches=batches)
        return float(statistics.median(max(batch) for batch in zip(*(a["times"] for a in answers), strict=True)))

    def close(self) -> None:
        """Ends the workers: closing the sockets ends their loops, and what is still there after that is killed."""
        for connection, lines in zip(self.connections, self.peers.values(), strict=False):
            with contextlib.suppress(OSError):  # a dead worker leaves a broken pipe
                connection.shutdown(socket.SHUT_RDWR)
                lines.close()
            connection.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            # Some launchers put each worker into a process group of its own.
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.output.close()


@contextlib.contextmanager
def running(plan: Plan, workers: int, transport: str, failed: Callable[[str, str], None]) -> Iterator[dict[str, Job]]:
    """Starts every system of the plan; those that do not start are reported through `failed` and left out."""
    jobs: dict[str, Job] = {}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        try:
            for name in plan.systems:
                try:
                    jobs[name] = Job(name, workers, transport, Path(folder))
                except SystemFailed as error:
                    failed(name, str(error))
            yield jobs
        finally:
            for job in jobs.values():
                job.close()


def verify(job: Job, op: str, size: int, plan: Plan) -> str:
    """Runs the operation once, has every rank compare its result with the expected one, and returns the checksums."""
    answers = job.ask(plan.turn_timeout_s, op=op, size=size, verify=True)
    if wrong := [rank for rank, answer in enumerate(answers) if not answer["correct"]]:
        raise SystemFailed(f"{op} of {size} bytes gave a wrong result on ranks {wrong}")
    return " ".join(f"{answer['checksum']:08x}" for answer in answers)


def calibrate(job: Job, op: str, size: int, plan: Plan) -> int:
    """Iterations per batch that make a turn of `BATCHES` batches take about `plan.turn_s`."""
    batch_s = plan.turn_s / BATCHES
    iterations = 1
    while True:
        answers = job.ask(plan.turn_timeout_s, op=op, size=size, iterations=iterations, batches=1)
        # The first batch pays for page faults and connections, so the count may grow by more than ten only in steps.
        seconds: float = max(a["times"][0] * a["ways"] for a in answers) * iterations
        if seconds >= batch_s / 4:
            return max(1, round(iterations * batch_s / seconds))
        iterations = min(iterations * 10, max(iterations + 1, round(iterations * batch_s / max(seconds, 1e-9))))


Samples = dict[str, dict[str, list[float]]]  # point -> system -> seconds, one per round


def measure(plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs the plan and returns the raw results: for every configuration its points, failures and CPU use of waiting."""
    configurations: list[dict[str, Any]] = []
    libraries: dict[str, str] = {}
    for transport in plan.transports:
        for workers in plan.workers:
            samples: Samples = {f"{op} {size}": {} for op, size in plan.points()}
            cpu: dict[str, list[float]] = {}
            failures: dict[str, str] = {}
            checksums: dict[str, dict[str, str]] = {point: {} for point in samples}
            counts: dict[tuple[str, str, int], int] = {}

            def failed(
                name: str, why: str, failures: dict[str, str] = failures, where: str = f"{workers} workers, {transport}"
            ) -> None:
                failures[name] = why
                say(f"{name} ({where}): {why}")

            for number in range(plan.rounds):
                started = time.monotonic()
                with running(plan, workers, transport, failed) as jobs:
                    libraries |= {name: job.library for name, job in jobs.items()}
                    for op, size in plan.points():
                        for name in rotated(list(jobs), number):
                            job, key = jobs[name], (name, op, size)
                            try:
                                checksums[f"{op} {size}"][name] = verify(job, op, size, plan)
                                counts[key] = calibrate(job, op, size, plan)
                                seconds = job.time(op, size, counts[key], BATCHES, plan.turn_timeout_s)
                            except SystemFailed as error:
                                failed(name, str(error))
                                jobs.pop(name).close()
                                continue
                            samples[f"{op} {size}"].setdefault(name, []).append(seconds)
                    for name, job in jobs.items():
                        answers = job.ask(plan.wait_s + 60, op="cpu_of_a_wait", seconds=plan.wait_s)
                        cpu.setdefault(name, []).append(answers[1]["cpu"])
                say(
                    f"{transport}, {workers} workers: round {number + 1} of {plan.rounds}, {time.monotonic() - started:.0f} s"
                )
            configurations.append(
                {
                    "transport": transport,
                    "workers": workers,
                    "oversubscribed": oversubscribed(workers),
                    "samples_s": samples,
                    "wait_cpu": cpu,
                    "failures": failures,
                    "checksums": checksums,
                    "iterations": {f"{name} {op} {size}": n for (name, op, size), n in counts.items()},
                }
            )
    return {"libraries": libraries, "rounds": plan.rounds, "turn_s": plan.turn_s, "configurations": configurations}


def rotated(names: list[str], by: int) -> list[str]:
    """The order of turns moves on by one each round, so that nobody always runs after the same neighbour."""
    return [names[(i + by) % len(names)] for i in range(len(names))] if names else []
