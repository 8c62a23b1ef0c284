"""Running one system to its end, and reading the times that it prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import IO, Any

from .comm import SystemFailed, rotated
from .memory import Watch
from .systems import SINGLE_THREADED, Launch


def run_once(command: Launch, key: str, timeout_s: float) -> dict[str, Any]:
    """Starts one process group, waits for it, and returns the JSON object that it printed, whose first key is `key`."""
    process = command.start()
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise SystemFailed(f"took longer than {timeout_s:.0f} s") from None
    finally:
        # Also when the benchmark itself is told to end.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for line in output.splitlines():
        if f'{{"{key}"' in line:  # Tidemill puts the rank in front
            found: dict[str, Any] = json.loads(line[line.index("{") :])
            return found
    raise SystemFailed(" | ".join(output.strip().splitlines()[-3:]) or f"exit code {process.returncode}, no output")


@contextlib.contextmanager
def watched(command: Launch, timeout_s: float) -> Iterator[tuple[subprocess.Popen[str], IO[str], Watch]]:
    """Starts one process group, whose end is the end of the block; the process, what it prints, and the watch on its memory and its time."""
    process = command.start()
    assert process.stdout is not None
    watch = Watch(process.pid, timeout_s)
    watch.start()
    try:
        yield process, process.stdout, watch
    finally:
        watch.stop()
        if process.poll() is None:
            watch.kill()
            process.wait()


def run_watched(command: Launch, timeout_s: float) -> dict[str, Any]:
    """As `run_once`, with the memory of all its processes from its line {"ready": ...} to that of `query_s`, or to its end.

    Returns what the JSON objects that it printed hold together, and `peak_mib` and `own_mib`.
    """
    found: dict[str, Any] = {}
    said: deque[str] = deque(maxlen=500)
    with watched(command, timeout_s) as (process, output, watch):
        for line in output:
            said.append(line.strip())
            place = line.find('{"')  # Tidemill puts the rank in front
            if place < 0:
                continue
            with contextlib.suppress(json.JSONDecodeError):
                found.update(json.loads(line[place:]))
            if '"ready"' in line:
                watch.begin()
            if '"query_s"' in line:
                watch.look()
                found.update(peak_mib=watch.peak_kib >> 10, own_mib=watch.own_kib >> 10)
        code = process.wait()
    if watch.killed_because:
        raise SystemFailed(watch.killed_because)
    if code != 0 or "query_s" not in found:
        raise SystemFailed(complaint(list(said)) or f"exit code {code}, no output")
    return found


def points_job(worker: str, options: Sequence[str], tcp: bool, points: Sequence[Any]) -> Launch:
    """The job of program `worker` under these options of `tidemill run`, which is told `points`, dataclasses, as JSON."""
    job = [sys.executable, "-m", "tidemill", "run", *options, "--no-prefix"]
    # Heartbeats wait behind what fills a link for seconds.
    env = {**SINGLE_THREADED, "TIDEMILL_FAILURE_TIMEOUT": "120"}
    env |= {"TIDEMILL_TRANSPORT": "tcp"} if tcp else {}
    return Launch([*job, sys.executable, worker, json.dumps([asdict(point) for point in points])], env)


def run_points(
    command: Launch, key: str, points: int, timeout_s: float, heard: Callable[[dict[str, Any], int], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """The JSON objects, one for each point, that it printed, whose first key is `key`, and why it went no further.

    `heard` is called with each of them, and the number so far, as they come.
    """
    results: list[dict[str, Any]] = []
    said: deque[str] = deque(maxlen=5)
    with watched(command, timeout_s) as (process, output, watch):
        for line in output:
            if line.startswith(f'{{"{key}"'):
                results.append(json.loads(line))
                heard(results[-1], len(results))
            else:
                said.append(line.strip())
        code = process.wait()
    if len(results) == points and code == 0:
        return results, None
    return results, watch.killed_because or " | ".join(said) or f"exit code {code}, no output"


def in_turn(
    systems: Sequence[str], rounds: int, run: Callable[[str, int], dict[str, Any]], say: Callable[[str], None], on: str
) -> tuple[dict[str, dict[str, list[Any]]], dict[str, str]]:
    """Every system once a round, each round from another one on; one that fails takes part no more.

    `run` gets a system and the round's number. Returns what it returned of each system, by name a value for each round, first by that name; and
    why systems failed.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    failures: dict[str, str] = {}
    left = list(systems)
    for number in range(rounds):
        for system in rotated(list(left), number):
            try:
                values = run(system, number)
            except SystemFailed as error:
                failures[system] = str(error)
                left.remove(system)
                say(f"{system} on {on}: {error}")
                continue
            for name, value in values.items():
                found.setdefault(name, {}).setdefault(system, []).append(value)
    return found, failures


def lasts(values: dict[str, list[Any]]) -> dict[str, Any]:
    """Of each system what the last round gave, where all rounds give the same."""
    return {system: of[-1] for system, of in values.items()}


def fit_seconds(times: dict[str, Any], total: str, iterations: int) -> dict[str, float]:
    """Seconds of an iteration, of all and of those behind the first, from the time of a whole fit and that of one of a single iteration."""
    return {"fit_s": times[total] / iterations, "further_s": (times[total] - times["first_s"]) / (iterations - 1)}


def others_than_the_best(
    values: dict[str, float], tolerance: float, what: str, say: Callable[[str], None], on: str
) -> dict[str, str]:
    """Of systems that did the same computation, those whose result is worse than the best by more than `tolerance`, and by how much."""
    best = min(values.values(), default=0.0)
    failures = {}
    for system, value in values.items():
        if value > best * (1 + tolerance):
            failures[system] = f"its {what} is {value / best - 1:.2%} above the least: not the same computation"
            say(f"{system} on {on}: {failures[system]}")
    return failures


def complaint(lines: list[str]) -> str:
    """What a failed program's last lines say: the last one that begins with an error, for Java's stack may follow."""
    named = [line for line in lines if re.match(r"(\[\d+\] )?(Caused by: |: )?[\w.]+(Error|Exception)\b", line)]
    return named[-1] if named else " | ".join(lines[-3:])
