"""``tidemill scale``: give a running stream more or fewer workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemill.apps import _jobs, _scaling

__all__ = ["main"]

#: The maximum that `tidemill run` starts.
_WORKERS_MAX = 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when the stream runs with the new workers, 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill scale",
        description="Give a running stream more or fewer workers. The stream makes a checkpoint, and `tidemill run`, which started it, "
        "starts its program again with the new number of workers, from that checkpoint: no row is lost or counted twice. Run this on the "
        "machine of the stream's worker 0.",
    )
    add = parser.add_argument
    add("-n", "--workers", type=_workers, required=True, metavar="N", help="new number of workers")
    _jobs.add_options(parser, "for the stream to run again", "10min")
    add(
        "--all-hosts", action="store_true", help="start workers also on emulated hosts that drain --restart has emptied"
    )
    add("--dry-run", action="store_true", help="print what would be done and how long it should take, and do nothing")
    options = parser.parse_args(argv)
    job = _jobs.found(options.name, options.pid, "scaled")
    if isinstance(job, str):
        return _jobs.fail("scale", job)
    if options.workers == job["workers"] and not options.all_hosts:
        print(f"stream {job['job']!r} has {job['workers']} worker{'' if job['workers'] == 1 else 's'} already")
        return 0
    request = {"workers": options.workers, "all_hosts": options.all_hosts}
    return _scaling.run("scale", job, request, dry_run=options.dry_run, timeout_s=options.timeout)


def _workers(text: str) -> int:
    """Parse a number of workers."""
    if not text.isdecimal() or not 1 <= int(text) <= _WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {_WORKERS_MAX}, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
