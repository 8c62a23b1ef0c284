"""``tidemill scale``: give a running stream more or fewer workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tidemill.apps import _jobs, _scaling
from tidemill.apps._moves import scaled_lines
from tidemill.apps._plain import plain

__all__ = ["main"]

#: The maximum that `tidemill run` starts.
_WORKERS_MAX = 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when the stream runs with the new workers, 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill scale",
        description="Give a running stream more or fewer workers: no row is lost or counted twice. Among the workers that the job has, spare "
        "ones included (tidemill run --max-workers), keys and splits of sources move while the stream runs. Beyond them, or where something "
        "cannot move, the stream makes a checkpoint, and `tidemill run`, which started it, starts its program again with the new number of "
        "workers, from that checkpoint. Run this on the machine of the stream's worker 0.",
    )
    add = parser.add_argument
    add("-n", "--workers", type=_workers, required=True, metavar="N", help="new number of workers")
    _jobs.add_options(parser, "for the stream to run again", "10min")
    add(
        "--all-hosts", action="store_true", help="start workers also on emulated hosts that drain --restart has emptied"
    )
    add(
        "--restart",
        action="store_true",
        help="start the program again even if the stream need not stop: workers that it no longer needs end, instead of "
        "waiting as spare ones",
    )
    add("--dry-run", action="store_true", help="print what would be done and how long it should take, and do nothing")
    options = parser.parse_args(argv)
    job = _jobs.found(options.name, options.pid, "scaled")
    if isinstance(job, str):
        return _jobs.fail("scale", job)
    restart = options.restart or options.all_hosts
    active = job.get("active") or job["workers"]
    if options.workers == active and not (options.all_hosts or (restart and job["workers"] > active)):
        print(f"stream {job['job']!r} has {active} worker{'' if active == 1 else 's'} already")
        return 0
    if not restart and job["durable"] is not None and "active" in job:
        request = {"kind": "scale", "workers": options.workers, "dry_run": options.dry_run}
        answer = _jobs.asked(job, request, options.timeout)
        if "restart" not in answer:
            return _told(job, answer)
        print(plain(f"stream {job['job']!r}: not without a stop: {answer['restart']}"), flush=True)
    request = {"workers": options.workers, "all_hosts": options.all_hosts}
    return _scaling.run("scale", job, request, dry_run=options.dry_run, timeout_s=options.timeout)


def _told(job: dict[str, Any], answer: dict[str, Any]) -> int:
    """Print the outcome of a request to scale without a stop; return the exit code."""
    if "error" in answer:
        return _jobs.fail("scale", plain(answer["error"]))
    lines = [f"stream {job['job']!r} has {answer['said']}"] if "said" in answer else scaled_lines(job["job"], answer)
    for line in lines:
        print(plain(line))
    sys.stdout.flush()
    return 0


def _workers(text: str) -> int:
    """Parse a number of workers."""
    if not text.isdecimal() or not 1 <= int(text) <= _WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {_WORKERS_MAX}, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
