"""``tidemill tune``: measure every collective algorithm on the workers of a job, and save the best.

Jobs of this user read the table at startup (rank 0 sends it to the others). Run it once for each kind of machine, and
once for each number of workers that you use: rules for other numbers of workers are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tidemill as tm
from tidemill import _tidemill
from tidemill.apps._arguments import Parser, duration_s
from tidemill.apps._links import describe, measure, write_parameters

__all__ = ["main"]


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"


def _measure_links(job: Any, path: str) -> int:
    parameters = measure(job.comm)
    if job.rank > 0:
        return 0
    try:
        write_parameters(path, parameters)
    except OSError as error:
        print(f"tidemill tune: {path}: {error.strerror}; name another file with --links", file=sys.stderr)
        return 1
    print("\n".join([*describe(parameters), f"written: {path}"]))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on this worker; returns its exit code."""
    parser = Parser(
        prog="tidemill tune",
        description="Measure the collectives on the workers of this job and save the fastest algorithms.",
        epilog="Example: tidemill tune -n 4",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="file for the table (default: $TIDEMILL_TUNE or ~/.config/tidemill/tune.toml)"
    )
    parser.add_argument(
        "--budget", type=duration_s, default=0.02, metavar="TIME", help="time for each measurement (default 20ms)"
    )
    parser.add_argument(
        "--largest", type=int, default=8 << 20, metavar="BYTES", help="largest message size to measure (default 8 MiB)"
    )
    parser.add_argument(
        "--links",
        metavar="FILE",
        help="measure what messages cost instead, and write it to this file, for `tidemill simulate --parameters`",
    )
    options = parser.parse_args(argv)

    job = tm.init()
    if job.size == 1:
        print(
            "tidemill tune: one worker has nothing to measure; start several, as in: tidemill tune -n 4",
            file=sys.stderr,
        )
        return 2
    if options.links:
        return _measure_links(job, options.links)

    def report(
        collective: str,
        order: str,
        size: int,
        algorithm: str,
        chunk: int,
        blocking: str | None,
        seconds: float,
        untuned: float,
    ) -> None:
        if job.rank == 0:
            how = f"{algorithm}, chunks of {_size(chunk)}" if chunk else algorithm
            if blocking:
                how = f"{blocking} (non-blocking: {how})"
            gain = f"{untuned / seconds:5.2f}x" if seconds > 0 and untuned > 0 else ""
            print(f"{collective:21} {order:10} {_size(size):>8}  {seconds * 1e6:10.1f} us  {gain:7} {how}", flush=True)

    if job.rank == 0:
        print(f"{'collective':21} {'order':10} {'size':>8}  {'time':>13}  {'gain':7} algorithm")
    try:
        path = _tidemill.tune(job.comm, options.out, options.budget, options.largest, report)
    except OSError as error:
        print(f"tidemill tune: {error}", file=sys.stderr)
        return 1
    if job.rank == 0:
        print(f"written: {path} (gain: over what runs where nothing was measured)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
