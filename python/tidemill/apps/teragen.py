"""``tidemill teragen``: generate records for ``tidemill terasort``, one file for each worker."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import tidemill as tm
from tidemill._collective_errors import fail_together
from tidemill.apps import _tera
from tidemill.apps._arguments import Parser

__all__ = ["main"]

#: Records generated at a time.
_BLOCK = 100_000
#: Errors of a full disk or quota.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = Parser(prog="tidemill teragen", description="Generate random 100-byte records on all workers of the job.")
    parser.add_argument("folder", type=Path, help="output folder; must not exist")
    parser.add_argument(
        "--records", type=int, required=True, metavar="N", help="number of records; ten million are 1 GB"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default %(default)s)")
    options = parser.parse_args(argv)
    if options.records < 0:
        parser.error("--records cannot be negative")
    job = tm.init()
    if job.comm.bcast(options.folder.exists() if job.rank == 0 else None):
        parser.error(f"{options.folder} exists")
    started = time.perf_counter()
    start, end = (options.records * rank // job.size for rank in (job.rank, job.rank + 1))
    # The folder appears when it is complete: what a killed command leaves is never used as input, and the next command
    # removes it.
    unfinished = options.folder.with_name(f".{options.folder.name}.unfinished")
    part = unfinished / f"part-{job.rank:05}.bin"

    def prepare() -> None:
        if job.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)

    def write() -> None:
        with part.open("wb") as file:
            for at in range(start, end, _BLOCK):
                # Unlike NumPy's own method, this reports the error of the disk.
                file.write(_tera.records(at, min(_BLOCK, end - at), options.seed).data)

    def appear() -> None:
        if job.rank == 0:
            unfinished.rename(options.folder)

    def says(error: OSError) -> str:
        full = f"; {options.folder} cannot be written there: free space, or write to another folder"
        return f"{error.filename or part}: {error.strerror or error}{full if error.errno in _FULL else ''}"

    try:
        for step in (prepare, write, appear):
            fail_together(job.comm, step, lambda said, _: OSError(said), catches=OSError, says=says)
    except OSError as error:
        if job.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        parser.error(str(error))
    if job.rank == 0:
        seconds = time.perf_counter() - started
        print(f"{options.records:,} records in {job.size} files in {options.folder}, {seconds:.2f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
