"""``tidemill simulate``: predict what a program takes on a cluster that you do not have.

Real schedules of collectives, and the routes of exchanges, on a network of hosts and racks in virtual time. The guide is
``docs/scaling.md``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tidemill import _tidemill
from tidemill.apps._arguments import Parser, duration_s
from tidemill.apps._links import ParametersError, read_parameters
from tidemill.apps._simulation import simulation_request
from tidemill.apps._validate import validate

__all__ = ["main"]

_WORKLOADS = (
    "allreduce", "bcast", "alltoall", "partition", "keyed", "kmeans", "mds", "terasort", "rendezvous", "loss",
    "checkpoint",
)  # fmt: skip

#: The activities of the busiest workers, with their descriptions.
_BUSY = {
    "work_s": "the work of each worker",
    "overhead_s": "the processor's time for messages",
    "memory_s": "memory within hosts",
    "host_out_s": "what a host can send",
    "host_in_s": "what a host can receive",
    "rack_s": "the links between racks",
}

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 with a message that says what to change."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "--validate" in words:
        return _validate(words)
    options = _parser().parse_args(words)
    try:
        request = _request(options)
        started = time.perf_counter()
        outcome = _tidemill.simulate(request)
        took_s = time.perf_counter() - started
    except (ValueError, OSError, ParametersError) as error:
        print(f"tidemill simulate: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_as_json(request, outcome)))
    else:
        print(_table(options, request, outcome, took_s))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemill simulate",
        description="Predict how long a program takes on a cluster that you do not have.",
        epilog="Example: tidemill simulate allreduce --workers 16384 --hosts 1024 --racks 32 --oversubscription 4",
    )
    parser.add_argument("workload", choices=_WORKLOADS, metavar="WORKLOAD", help=", ".join(_WORKLOADS))
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--workers", type=_count, required=True, metavar="N", help="number of workers")
    cluster.add_argument("--hosts", type=_count, metavar="N", help="number of hosts (default: 16 workers on each)")
    cluster.add_argument("--racks", type=_count, default=1, metavar="N", help="number of racks (default: 1)")
    cluster.add_argument(
        "--oversubscription",
        type=float,
        default=1.0,
        metavar="X",
        help="how many times as much the hosts of a rack can send as the link of the rack carries (default: 1)",
    )
    cluster.add_argument(
        "--slow",
        type=_slow,
        action="append",
        default=[],
        metavar="HOST:X[:Y]",
        help="slow down the links of a host to X times their rate; with Y, X is for sending and Y for receiving",
    )
    cluster.add_argument(
        "--fail",
        type=_failure,
        action="append",
        default=[],
        metavar="WORKER:TIME",
        help="let a worker die at this time",
    )
    cluster.add_argument(
        "--failure-timeout",
        type=duration_s,
        default=10.0,
        metavar="TIME",
        help="time until the others notice (default: 10s)",
    )
    cluster.add_argument(
        "--noise",
        default="0",
        metavar="X",
        help="standard deviation of the logarithm of all times, such as 0.1; or `measured`, from --parameters "
        "(default: 0)",
    )
    cluster.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default: 1)")
    cluster.add_argument(
        "--parameters",
        metavar="FILE",
        help="costs of links and rates of work, a file written by `tidemill tune --links FILE`",
    )
    cluster.add_argument(
        "--shared-cores",
        action="store_true",
        help="let all workers share the cores that --parameters names, as on emulated hosts (default: one core each)",
    )
    cluster.add_argument(
        "--table",
        metavar="FILE",
        help="table of algorithms, written by `tidemill tune` (default: choose by the cost model)",
    )
    size = parser.add_argument_group("the program")
    size.add_argument(
        "--bytes",
        type=_size,
        metavar="SIZE",
        help="size of the vector, or of each worker's rows or blocks (default: 8MiB); in a rendezvous, of a worker's card (150)",
    )
    size.add_argument(
        "--points", type=_count, metavar="N", help="total number of points of kmeans or mds (default: 16777216)"
    )
    size.add_argument("--clusters", type=_count, metavar="N", help="number of centers of kmeans (default: 100)")
    size.add_argument(
        "--dimensions",
        type=_count,
        metavar="N",
        help="dimensions of points of kmeans, or of the picture of mds (default: 32; 3)",
    )
    size.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        help="number of calls of a collective, of iterations, or of copies that each worker reports at a checkpoint (default: 1)",
    )
    size.add_argument(
        "--fanout",
        type=_count,
        metavar="N",
        help="maximum number of children of a worker on the control plane; --workers makes it a star (default: as in a job)",
    )
    size.add_argument(
        "--skew",
        type=_exponent,
        default=0.0,
        metavar="X",
        help="exponent of Zipf's law for the keys of partition and keyed, over buckets, such as 1.1 (default: 0, the same for all keys)",
    )
    size.add_argument(
        "--window",
        type=_size,
        metavar="SIZE",
        help="credit: bytes of rows that may be under way from one worker to another (default: no limit)",
    )
    size.add_argument(
        "--algorithm",
        metavar="NAME",
        help="algorithm of the collective; on one host also shared_memory or single_copy (default: the tuner's choice)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, including when each worker ends")
    parser.add_argument(
        "--validate",
        action="store_true",
        help="measure collectives on the workers of this job, and compare them with the prediction",
    )
    return parser


def _validate(words: list[str]) -> int:
    """Validate the model; called on every worker of a job."""
    parser = Parser(
        prog="tidemill simulate --validate",
        description="Measure collectives on the workers of a job, and print them beside the predictions.",
        epilog="Example: tidemill simulate --validate --on lab -n 8",
    )
    parser.add_argument("--validate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--parameters", metavar="FILE", help="costs of links (default: measured at the start)")
    parser.add_argument(
        "--largest", type=_size, default=1 << 20, metavar="SIZE", help="largest size to measure (default: 1MiB)"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each point")
    options = parser.parse_args(words)
    try:
        return validate(options.parameters, options.largest, as_json=options.json)
    except ParametersError as error:
        print(f"tidemill simulate: {error}", file=sys.stderr)
        return 2


def _request(options: argparse.Namespace) -> dict[str, Any]:
    parameters = read_parameters(options.parameters) if options.parameters else {}
    sizes = {name: getattr(options, name) for name in ("bytes", "points", "clusters", "dimensions", "steps")}
    measured: list[float] = []
    if options.noise == "measured":
        measured = parameters.get("round_trips_s", [])
        if not measured:
            raise ParametersError("--noise measured takes its samples from --parameters FILE, which has none here")
        noise = 0.0
    else:
        try:
            noise = float(options.noise)
        except ValueError:
            raise ParametersError(f"--noise {options.noise}: pass a number such as 0.1, or `measured`") from None
    return simulation_request(
        options.workload,
        options.workers,
        options.hosts or max(1, (options.workers + 15) // 16),
        parameters,
        racks=options.racks,
        oversubscription=options.oversubscription,
        algorithm=options.algorithm,
        fanout=options.fanout,
        skew=options.skew,
        window_bytes=options.window,
        table=options.table,
        slow=options.slow,
        noise=noise,
        round_trips_s=measured,
        failures=options.fail,
        failure_timeout_s=options.failure_timeout,
        shared_cores=parameters.get("shared_cores") if options.shared_cores else None,
        seed=options.seed,
        **{name: size for name, size in sizes.items() if size is not None},
    )


def _bound(outcome: dict[str, Any]) -> str:
    """Describe what the time was spent on."""
    total_s = float(outcome["end_s"].max())
    name = max(_BUSY, key=lambda name: outcome[name])
    share = outcome[name] / total_s if total_s > 0 else 0.0
    if share < 0.5:
        return f"waiting for messages (the busiest: {_BUSY[name]}, {share:.0%})"
    return f"{_BUSY[name]} ({share:.0%} of the time)"


def _table(options: argparse.Namespace, request: dict[str, Any], outcome: dict[str, Any], took_s: float) -> str:
    ends_s = np.sort(outcome["end_s"])
    lost = int(outcome["unfinished"].sum())
    where = f"{request['workers']} workers, {request['hosts']} hosts, {request['racks']} racks"
    lines = [
        ("workload", f"{request['workload']} on {where}"),
        *(("algorithm", _how(*choice)) for choice in outcome["choices"]),
        ("first worker", _time(ends_s[0])),
        ("median", _time(ends_s[len(ends_s) // 2])),
        ("last worker", _time(ends_s[-1])),
        ("messages", f"{outcome['messages']:,}"),
        ("bytes", _bytes(outcome["bytes"])),
        ("between hosts", _bytes(outcome["bytes_between_hosts"])),
        ("between racks", _bytes(outcome["bytes_between_racks"])),
        ("bound by", _bound(outcome)),
    ]
    if lost:
        died = ", ".join(str(rank) for rank, _ in options.fail)
        lines.append(("not finished", f"{lost} workers: {died} died, the others waited until the failure timeout"))
    lines.append(("simulated in", f"{took_s:.2f} s"))
    return "\n".join(f"{name:14} {value}" for name, value in lines)


def _how(collective: str, algorithm: str, chunk: int) -> str:
    return f"{collective} by {algorithm}" + (f", chunks of {_bytes(chunk)}" if chunk else "")


def _as_json(request: dict[str, Any], outcome: dict[str, Any]) -> dict[str, Any]:
    return {
        "request": request,
        **outcome,
        "end_s": outcome["end_s"].tolist(),
        "unfinished": np.flatnonzero(outcome["unfinished"]).tolist(),
        "bound_by": _bound(outcome),
    }


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _bytes(count: float) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} PiB"


# --- words of the command line ---------------------------------------------------------------------------------------
def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise argparse.ArgumentTypeError(f'{text!r} is not a size, such as "8MiB", "64KiB" or "1000000"')
    return int(float(found[1]) * unit)


def _exponent(text: str) -> float:
    try:
        exponent = float(text)
        if not 0 <= exponent <= 100:
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an exponent of Zipf's law: 0 for evenly, such as 1.1"
        ) from None
    return exponent


def _slow(text: str) -> tuple[int, float, float]:
    found = re.fullmatch(r"([0-9]+):([0-9.]+)(?::([0-9.]+))?", text)
    try:
        if found is None:
            raise ValueError
        outgoing = float(found[2])
        return int(found[1]), outgoing, float(found[3]) if found[3] else outgoing
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a slow host: "3:0.2" is host 3 with links at 0.2 times their rate'
        ) from None


def _failure(text: str) -> tuple[int, float]:
    rank, colon, at = text.partition(":")
    if not colon or not rank.isdecimal():
        raise argparse.ArgumentTypeError(f'{text!r} is not a failure: "5:10ms" is worker 5, which dies after 10 ms')
    return int(rank), duration_s(at)


if __name__ == "__main__":
    sys.exit(main())
