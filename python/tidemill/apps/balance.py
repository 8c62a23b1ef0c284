"""``tidemill balance``: spread the keys of a running stream over its hosts and workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemill.apps import _jobs, _moves

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when load is balanced, 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill balance",
        description="Move keys of a running stream, with their state, so that each copy has as much work as it can do, and splits of its "
        "sources, so that each copy has about as many. No row is lost or counted twice. Hosts that are drained (tidemill drain) get none. Run this on the machine of the stream's worker 0.",
    )
    _jobs.add_options(parser, "for the keys and splits to move")
    parser.add_argument("--dry-run", action="store_true", help="print what would move, and move nothing")
    options = parser.parse_args(argv)
    request = {"kind": "balance", "dry_run": options.dry_run}
    return _moves.run("balance", _jobs.found(options.name, options.pid, "balanced"), request, options.timeout)


if __name__ == "__main__":
    sys.exit(main())
