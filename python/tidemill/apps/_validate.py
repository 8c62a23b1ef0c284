"""``tidemill simulate --validate``: collectives measured on the workers of a job, next to predictions."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tidemill as tm
from tidemill import _tidemill
from tidemill.apps._links import describe, measure, read_parameters
from tidemill.apps._simulation import simulation_request

__all__ = ["validate"]

_COLLECTIVES = ("allreduce", "bcast", "alltoall")
_SIZES = (8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
#: Calls of a collective, measured and predicted; fewer if they are slow.
_REPEATS = 20
_REPEATS_LONG = 5
_LONG_BYTES = 64 << 10
#: The goal for the model's median error.
_GOAL = 0.15


def validate(path: str | None, largest_bytes: int, *, as_json: bool) -> int:
    """Measure and print; every worker of the job calls it. Returns the exit code."""
    job = tm.init()
    comm = job.comm
    if job.size == 1:
        print("tidemill simulate: one worker sends nothing; start several, as in: -n 4", file=sys.stderr)
        return 2
    parameters = read_parameters(path) if path else measure(comm)
    host_of = _hosts(comm.allgather(_host()))
    if job.rank == 0 and not as_json:
        print(f"{job.size} workers on {max(host_of) + 1} hosts")
        print("\n".join(describe(parameters)))
        print(
            f"{'collective':10} {'bytes':>9}  {'measured':>12} {'predicted':>12}  {'error':>6}  algorithm", flush=True
        )
    errors: dict[str, list[float]] = {}
    for collective in _COLLECTIVES:
        for size in (size for size in _SIZES if size <= largest_bytes):
            repeats = _REPEATS_LONG if size > _LONG_BYTES else _REPEATS
            predicted = _predict(parameters, host_of, collective, size, repeats) if job.rank == 0 else None
            predicted_s, algorithm, chunk = comm.bcast(predicted, root=0)
            times_s = _tidemill.time_collective(comm, collective, size, algorithm, chunk, repeats)
            measured_s = times_s[len(times_s) // 2] / repeats
            error = predicted_s / measured_s - 1
            errors.setdefault(collective, []).append(abs(error))
            if job.rank == 0:
                how = f"{algorithm}, chunks of {chunk} B" if chunk else algorithm
                point = {"collective": collective, "bytes": size, "measured_s": measured_s, "predicted_s": predicted_s}
                line = f"{measured_s * 1e6:9.1f} us {predicted_s * 1e6:9.1f} us  {error:+6.0%}  {how}"
                print(
                    json.dumps({**point, "algorithm": how}) if as_json else f"{collective:10} {size:9}  {line}",
                    flush=True,
                )
    if job.rank == 0 and not as_json:
        print("\n".join(_summary(errors)))
    return 0


def _summary(errors: dict[str, list[float]]) -> list[str]:
    medians = [f"{collective} {statistics.median(values):.0%}" for collective, values in errors.items()]
    median = statistics.median(error for values in errors.values() for error in values)
    verdict = "within" if median <= _GOAL else "beyond"
    return [f"median error {median:.0%} ({', '.join(medians)}): {verdict} the goal of {_GOAL:.0%}"]


def _host() -> tuple[str, int]:
    """Return an identifier of this host, emulated or not."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").stat().st_ino


def _hosts(everyone: Sequence[tuple[str, int]]) -> list[int]:
    """Return the host of each worker, as numbers in the order of their first worker."""
    numbers: dict[tuple[str, int], int] = {}
    return [numbers.setdefault(host, len(numbers)) for host in everyone]


def _predict(
    parameters: dict[str, Any], host_of: list[int], collective: str, size: int, repeats: int
) -> tuple[float, str, int]:
    """Return the seconds of a call, its algorithm, and the bytes of a chunk."""
    told = {"host_of": host_of, "bytes": size, "steps": repeats, "shared_cores": parameters.get("shared_cores")}
    request = simulation_request(collective, len(host_of), max(host_of) + 1, parameters, **told)
    outcome = _tidemill.simulate(request)
    _, algorithm, chunk = outcome["choices"][0]
    return float(outcome["end_s"].max()) / repeats, algorithm, chunk
