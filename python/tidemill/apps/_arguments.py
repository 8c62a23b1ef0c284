"""Command-line parsing for the applications."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import tidemill as tm
from tidemill._duration import Duration, micros

__all__ = ["Parser", "add_storage_option", "duration_s", "queries"]


class Parser(argparse.ArgumentParser):
    """A parser for programs that every worker runs: rank 0 alone reports errors in the command line."""

    def error(self, message: str) -> NoReturn:
        """End all workers with exit code 2. Every worker has the same command line, so every worker gets here."""
        job = tm.init()
        if job.rank == 0:
            self.print_usage(sys.stderr)
            print(f"{self.prog}: error: {message}", file=sys.stderr, flush=True)
        # The launcher stops the others when one fails, which must not happen before rank 0 has printed its message.
        job.comm.Barrier()
        self.exit(2)


def add_storage_option(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the option for the store of a URL, which becomes pairs in ``storage_option``."""
    parser.add_argument(
        "--storage-option",
        action="append",
        type=_storage_option,
        default=[],
        metavar="KEY=VALUE",
        help="option for the store of a URL, as in storage_options= of tidemill.stream.Checkpoint; repeat for each option. "
        f"{more}Pass secrets through the environment: anyone who can list processes can see the command line",
    )


def _storage_option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError("it is KEY=VALUE, such as aws_region=eu-central-1")
    return key, value


def queries(text: str, numbers: Sequence[int]) -> list[int]:
    """Parse a list of queries such as ``1,6,10-12``; `numbers` has the existing ones, without gaps."""
    chosen: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,2})(?:\s*-\s*(\d{1,2}))?\s*", word)
        named = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not named or named[0] not in numbers or named[-1] not in numbers:
            raise argparse.ArgumentTypeError(f"{word.strip()!r} is not a query; choose {numbers[0]} to {numbers[-1]}")
        chosen += named
    return chosen


def duration_s(text: str) -> float:
    """Parse a duration on the command line into seconds: ``"250ms"``, ``"10s"``, ``"1h30m"``, or a number of seconds."""
    try:
        given: Duration = float(text)
    except ValueError:
        given = text
    try:
        return micros(given, "TIME", argparse.ArgumentTypeError) / 1_000_000
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f'{text!r} is not a duration, such as "250ms", "10s" or "1m"') from None
