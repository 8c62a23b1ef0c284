"""``tidemill info --job``: placement of a job's workers, the links between them, and their speed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import tidemill as tm
from tidemill.apps._arguments import Parser

__all__ = ["main"]

_SMALL_BYTES = 8
_LARGE_BYTES = 4 << 20
_ROUNDS = 5


def _one_way(comm: Any, peer: int, nbytes: int, repeats: int) -> float:
    """Return the seconds for one message of ``nbytes`` between rank 0 and ``peer``: the median of a few rounds of
    ping-pong.
    """
    data = np.zeros(nbytes, np.uint8)
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            if comm.rank == 0:
                comm.Send(data, peer)
                comm.Recv(data, peer)
            else:
                comm.Recv(data, 0)
                comm.Send(data, 0)
        times.append((time.perf_counter() - start) / (2 * repeats))
    return sorted(times)[_ROUNDS // 2]


def _reason(worker: dict[str, Any], here: dict[str, Any]) -> str:
    if worker["transport"] is None:
        return "this worker"
    if worker["transport"] == "tcp":
        if worker["host_id"] != here["host_id"]:
            return "on another host"
        return worker["lack"] or "TIDEMILL_TRANSPORT=tcp"
    return "same host" + (f"; {worker['lack']}" if worker["lack"] else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on this worker; returns its exit code."""
    parser = Parser(prog="tidemill info --job", description="Measure the links of a job.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)

    job = tm.init()
    rows = []
    for worker in job.workers:
        row = {**worker, "reason": _reason(worker, job.workers[job.rank])}
        peer = worker["rank"]
        if peer != 0:
            if job.rank in (0, peer):
                _one_way(job.comm, peer, _SMALL_BYTES, 100)  # The first messages warm caches and connections.
                row["latency_us"] = _one_way(job.comm, peer, _SMALL_BYTES, 500) * 1e6
                row["bandwidth_gb_s"] = _LARGE_BYTES / _one_way(job.comm, peer, _LARGE_BYTES, 10) / 1e9
            job.comm.Barrier()
        rows.append(row)
    if job.rank != 0:
        return 0
    if options.json:
        print(json.dumps(rows))
        return 0
    print(
        f"{'rank':>4} {'host':16} {'pid':>8} {'cores':>5} {'socket':>6} {'core':>4}  "
        f"{'transport':10} {'latency':>10} {'bandwidth':>12}  why"
    )
    for row in rows:
        latency = f"{row['latency_us']:.2f} us" if "latency_us" in row else ""
        bandwidth = f"{row['bandwidth_gb_s']:.1f} GB/s" if "bandwidth_gb_s" in row else ""
        socket, core = ("-" if row[of] is None else row[of] for of in ("socket", "core"))
        place = f"{row['rank']:4} {row['host'][:16]:16} {row['pid']:8} {row['cores']:5} {socket:>6} {core:>4}"
        print(f"{place}  {row['transport'] or '-':10} {latency:>10} {bandwidth:>12}  {row['reason']}")
    print(
        f"latency: {_SMALL_BYTES} B one way; bandwidth: messages of {_LARGE_BYTES >> 20} MiB; both between rank 0 and the row's\n"
        "socket, core: - where the worker may use several"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
