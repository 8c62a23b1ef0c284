"""``tidemill why``: the decisions of a stream's controller, in this run and earlier ones."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence

from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import controller_record
from tidemill.apps._arguments import add_storage_option
from tidemill.apps._jobs import fail
from tidemill.apps._top_cluster import ClusterError, read_decisions
from tidemill.apps._top_text import Screen
from tidemill.apps._top_why import decision_lines

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 if the record cannot be read."""
    parser = argparse.ArgumentParser(
        prog="tidemill why",
        description="List the decisions of a stream's controller, newest first: when, the gain in throughput that it expected, "
        "and the gain that it measured. The list is kept beside the checkpoints, so it includes earlier runs, and jobs that have ended. "
        "To see what slows a running stream down now, use tidemill top --why.",
    )
    parser.add_argument("place", help="folder or URL of the checkpoints, as passed to write_stream")
    parser.add_argument("--json", action="store_true", help="print the record as JSON; times are in seconds since 1970")
    add_storage_option(parser)
    options = parser.parse_args(argv)
    try:
        text = controller_record(engine(), options.place, dict(options.storage_option))
        record = json.loads(text) or {"decisions": [], "drained": []}
        decisions = read_decisions(record["decisions"])
    except (DataSetError, ClusterError, KeyError) as error:
        return fail("why", str(error))
    if options.json:
        print(json.dumps(record))
        return 0
    screen = Screen(shutil.get_terminal_size().columns)
    print("\n".join(decision_lines(decisions, time.time(), screen)))
    if record["drained"]:
        print(f"  drained hosts: {', '.join(record['drained'])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
