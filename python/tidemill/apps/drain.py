"""``tidemill drain``: move all keys of a running stream away from a host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemill.apps import _jobs, _moves

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when the host has no keys, 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill drain",
        description="Move all keys of a running stream, with their state, from a host to the others: before maintenance, or where the "
        "host is slow. No row is lost or counted twice. The host gets no keys until --undo. Run this on the machine of the stream's "
        "worker 0.",
    )
    add = parser.add_argument
    add("host", help="name of the host, as tidemill top shows it")
    _jobs.add_options(parser, "for the keys to move")
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--undo", action="store_true", help="let the host get keys again; tidemill balance moves them there"
    )
    one.add_argument("--dry-run", action="store_true", help="print what would move, and move nothing")
    options = parser.parse_args(argv)
    request = {"kind": "undo" if options.undo else "drain", "host": options.host, "dry_run": options.dry_run}
    return _moves.run("drain", _jobs.found(options.name, options.pid, "drained"), request, options.timeout)


if __name__ == "__main__":
    sys.exit(main())
