"""Files with the costs of links and control messages: measured by ``tidemill tune --links``, read by ``tidemill simulate --parameters``."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from tidemill import _tidemill

__all__ = ["ParametersError", "describe", "measure", "read_parameters", "write_parameters"]

_VERSION = 1
_LINKS = ("same_host", "other_host")
_COSTS = (*_LINKS, "other_rack_latency_s", "reduce_per_byte_s", "copy_per_byte_s")
_BYTES_MAX = 1 << 20
#: The number of round trips in a file, at even intervals of their order.
_SAMPLES = 100


class ParametersError(Exception):
    """A file of parameters, or its use, is invalid; the message says what to do."""


def measure(comm: Any) -> dict[str, Any]:
    """Measure and return the parameters of a job's links, as in a file. Collective; only rank 0's are complete."""
    measured = _tidemill.measure_links(comm)
    trips = measured.pop("round_trips_s")
    if "other_host" in measured:
        # Racks are not known here, so other racks are assumed to be as far as other hosts.
        measured["other_rack_latency_s"] = measured["other_host"][0]
    # The processor's time of this machine, which depends on no other worker. Rank 0 writes the file.
    rates = _tidemill.measure_control() if comm.rank == 0 else {}
    return {
        "version": _VERSION,
        "costs": measured,
        "rates": rates,
        "shared_cores": _shared_cores(comm),
        "round_trips_s": trips[:: max(1, len(trips) // _SAMPLES)],
    }


def _shared_cores(comm: Any) -> int | None:
    """Return the cores of the machine if all workers are on one, emulated hosts or not, and have no core each."""
    boots = comm.allgather(Path("/proc/sys/kernel/random/boot_id").read_text())
    cores = len(os.sched_getaffinity(0))
    return cores if len(set(boots)) == 1 and cores < comm.size else None


def write_parameters(path: str, parameters: dict[str, Any]) -> None:
    """Write a file that `read_parameters` reads."""
    Path(path).write_text(json.dumps(parameters, indent=1) + "\n")


def read_parameters(path: str) -> dict[str, Any]:
    """Return the contents of a file: ``costs`` and ``rates`` that it has, and samples.

    Raises
    ------
    ParametersError
        If it cannot be read or has something else in it.
    """
    remedy = "`tidemill tune --links FILE -n 4` writes one"
    try:
        if Path(path).stat().st_size > _BYTES_MAX:
            raise ParametersError(f"{path}: {_BYTES_MAX} bytes are the limit of a file of parameters; {remedy}")
        read = json.loads(Path(path).read_text())
    except OSError as error:
        raise ParametersError(f"{path}: {error.strerror}; {remedy}") from None
    except ValueError as error:
        raise ParametersError(f"{path} is no file of parameters ({error}); {remedy}") from None
    if not isinstance(read, dict) or read.get("version") != _VERSION:
        raise ParametersError(f"{path} is no file of parameters of version {_VERSION}; {remedy}")
    costs, rates = read.get("costs", {}), read.get("rates", {})
    known = _tidemill.simulate_defaults("allreduce")["rates"]
    for name, value in (*costs.items(), *rates.items()):
        if name not in _COSTS and name not in known:
            raise ParametersError(f"{path}: unknown parameter {name!r}; known are {', '.join((*_COSTS, *known))}")
        numbers = value if name in _LINKS else [value]
        wrong = not isinstance(numbers, list) or len(numbers) != (3 if name in _LINKS else 1)
        if wrong or not all(_is_cost(number) for number in numbers):
            what = "latency, overhead and seconds per byte" if name in _LINKS else "a number"
            raise ParametersError(f"{path}: {name} must be {what}, 0 or more, not {value!r}")
    # Native code takes a link as a tuple, which JSON does not have.
    read["costs"] = {name: tuple(value) if name in _LINKS else value for name, value in costs.items()}
    return read


def _is_cost(number: object) -> bool:
    return isinstance(number, (int, float)) and math.isfinite(number) and number >= 0


def describe(parameters: dict[str, Any]) -> list[str]:
    """Return lines that say what was measured."""
    lines = []
    for name, words in zip(_LINKS, ("within a host", "between hosts"), strict=True):
        if name in parameters["costs"]:
            latency_s, overhead_s, per_byte_s = parameters["costs"][name]
            rate = f"{1e-6 / per_byte_s:,.0f} MB/s" if per_byte_s > 0 else "unbounded"
            lines.append(f"{words}: latency {latency_s * 1e6:.1f} us, overhead {overhead_s * 1e6:.1f} us, {rate}")
    rates = parameters["rates"]
    if "message_s" in rates and "handshake_s" in rates:
        message_us, handshake_us = rates["message_s"] * 1e6, rates["handshake_s"] * 1e6
        lines.append(
            f"control plane: {message_us:.1f} us of the processor for a message, {handshake_us:.0f} us for a handshake"
        )
    cores = parameters["shared_cores"]
    if cores is not None:
        lines.append(f"all workers share {cores} cores")
    return lines
