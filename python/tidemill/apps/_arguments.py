"""Command lines of the applications."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

import tidemill as tm

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """A parser for programs that every worker runs: what is wrong with the command line is said once, by rank 0."""

    def error(self, message: str) -> NoReturn:
        """Ends all workers with exit code 2. Every worker has the same command line, so every worker comes here."""
        job = tm.init()
        if job.rank == 0:
            self.print_usage(sys.stderr)
            print(f"{self.prog}: error: {message}", file=sys.stderr, flush=True)
        # The launcher stops the others when one fails, which shall not be before rank 0 has spoken.
        job.comm.Barrier()
        self.exit(2)
