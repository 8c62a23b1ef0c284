"""``tidemill checkpoints``: lists the checkpoints of a stream, verifies them, and copies one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timezone

from tidemill._job import init
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import copy_checkpoint, list_checkpoints
from tidemill.apps._arguments import Parser, add_storage_option

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 1 if a checkpoint is damaged."""
    parser = Parser(
        prog="tidemill checkpoints", description="List the checkpoints of a stream, newest first, or copy one."
    )
    parser.add_argument("place", help="folder or URL that was passed to write_stream")
    parser.add_argument("--state", action="store_true", help="show the state that each task keeps, and its version")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="read only the manifests; do not check that the files they refer to are complete",
    )
    parser.add_argument(
        "--copy",
        metavar="TO",
        help="copy the newest checkpoint to this folder or URL; a job can resume from the copy, which is never removed automatically",
    )
    add_storage_option(parser, "With --copy, both stores get it. ")
    parser.add_argument(
        "--epoch", type=int, metavar="N", help="with --copy: copy the checkpoint of this epoch instead of the newest"
    )
    # This command does not use several workers, but accepts the launcher's option like others.
    parser.add_argument("-n", "--workers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.epoch is not None and (options.copy is None or options.epoch < 0):
        parser.error("--epoch goes with --copy, and is not negative")
    storage = dict(options.storage_option)
    # One worker is enough; the others have nothing to do.
    if init().rank != 0:
        return 0
    try:
        if options.copy is not None:
            epoch, size = copy_checkpoint(engine(), options.place, options.copy, storage, options.epoch)
            print(f"copied epoch {epoch}, {size / 2**20:,.2f} MiB, to {options.copy}")
            return 0
        found = list_checkpoints(engine(), options.place, storage, not options.quick)
    except DataSetError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    if not found:
        print(f"no checkpoints in {options.place}")
    for epoch, made, damage in found:
        if made is None:
            print(f"{epoch:>8}  {_plain(str(damage))}")
            continue
        job, at_ms, finished, size, tasks = made
        at = datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        copies = max((copies for _, copies, _ in tasks), default=0)
        state = _plain(damage) if damage else ("finished" if finished else "there" if options.quick else "whole")
        print(
            f'{epoch:>8}  {at} UTC  {size / 2**20:10,.2f} MiB  {len(tasks)} tasks x {copies}  job "{_plain(job)}"  {state}'
        )
        for task, _, kept in tasks if options.state else ():
            if kept is not None:
                version, fields = kept
                print(f"          {_plain(task)}, version {version}: {_plain(fields)}")
    return 1 if any(damage for *_, damage in found) else 0


def _plain(text: str) -> str:
    """Return text in one line: names may contain terminal commands."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


if __name__ == "__main__":
    raise SystemExit(main())
