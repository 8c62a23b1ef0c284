"""``tidemill drain``: move all keys and splits of a running stream, or with ``--restart`` all of it, away from a host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tidemill._streaming import status as _status
from tidemill.apps import _jobs, _moves, _scaling

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when the host has no keys and splits (or nothing at all), 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill drain",
        description="Move all keys of a running stream, with their state, and the splits of its sources from a host to the others: before "
        "maintenance, or where the host is slow. No row is lost or counted twice. The host gets none until --undo. Run this on the "
        "machine of the stream's worker 0.",
    )
    add = parser.add_argument
    add("host", help="name of the host, as tidemill top shows it")
    _jobs.add_options(parser, "for the keys and splits to move")
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--undo", action="store_true", help="let the host get keys again; tidemill balance moves them there"
    )
    one.add_argument("--dry-run", action="store_true", help="print what would move, and move nothing")
    add(
        "--restart",
        action="store_true",
        help="start the job again without the host, from a checkpoint made for this: no worker, copy or source stays "
        "there. Only for jobs that `tidemill run --on` started",
    )
    options = parser.parse_args(argv)
    if options.restart:
        if options.undo:
            parser.error("to use the host again after --restart, use tidemill scale --all-hosts")
        return _restart(options)
    request = {"kind": "undo" if options.undo else "drain", "host": options.host, "dry_run": options.dry_run}
    return _moves.run("drain", _jobs.found(options.name, options.pid, "drained"), request, options.timeout)


def _restart(options: argparse.Namespace) -> int:
    """Restart the job without the host; the other hosts get no additional workers."""
    job = _jobs.found(options.name, options.pid, "drained")
    if isinstance(job, str):
        return _jobs.fail("drain", job)
    hosts = _hosts(job)
    if options.host not in hosts:
        named = ", ".join(sorted(set(hosts)))
        return _jobs.fail("drain", f'no host "{options.host}"; the hosts of this stream are {named}')
    workers = min(sum(host != options.host for host in hosts), job.get("active") or len(hosts))
    if workers == 0:
        return _jobs.fail("drain", f"{options.host} is the only host of this stream: its workers have nowhere to go")
    request = {"workers": workers, "leave": options.host}
    return _scaling.run("drain", job, request, dry_run=options.dry_run, timeout_s=options.timeout)


def _hosts(job: dict[str, Any]) -> list[str]:
    """Return the hosts of those workers of a job that have reported theirs."""
    return [str(one["host"]) for one in _status.jobs() if one["job_id"] == job["job_id"]]


if __name__ == "__main__":
    sys.exit(main())
