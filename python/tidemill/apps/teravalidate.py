"""``tidemill teravalidate``: check that records are in order, and print their number and checksum, which sorting does
not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tidemill as tm
from tidemill._collective_errors import fail_together
from tidemill.apps import _tera
from tidemill.apps._arguments import Parser

__all__ = ["main"]

#: Records checked at a time.
_BLOCK = 200_000

Key = tuple[int, int]


class Found(NamedTuple):
    """Summary of a file."""

    records: int
    checksum: int
    first: Key | None
    last: Key | None
    #: The first record that is smaller than the previous one.
    disorder: int | None


def look(path: Path) -> Found:
    """Read a file of records."""
    total, sum_, first, last, disorder = 0, 0, None, None, None
    with path.open("rb") as file:
        while raw := file.read(_BLOCK * _tera.RECORD_BYTES):
            if len(raw) % _tera.RECORD_BYTES:
                raise ValueError(f"{path} ends within a record")
            block = np.frombuffer(raw, np.uint8).reshape(-1, _tera.RECORD_BYTES)
            high, low = _tera.keys(block)
            smaller = (high[1:] < high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] < low[:-1]))
            begin = (int(high[0]), int(low[0]))
            if disorder is None and last is not None and begin < last:
                disorder = total
            if disorder is None and smaller.any():
                disorder = total + int(smaller.argmax()) + 1
            first = first or begin
            last = (int(high[-1]), int(low[-1]))
            sum_ = (sum_ + _tera.checksum(block)) % 2**64
            total += len(block)
    return Found(total, sum_, first, last, disorder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 1 if records are out of order."""
    parser = Parser(prog="tidemill teravalidate", description="Check the order of records on all workers of the job.")
    parser.add_argument(
        "folder", type=Path, help="folder of record files, in the order of their paths, or a single file"
    )
    options = parser.parse_args(argv)
    job = tm.init()
    files = job.comm.bcast(_tera.files_of(options.folder) if job.rank == 0 else None)
    if not files:
        parser.error(f"{options.folder} has no files")

    def mine() -> dict[int, Found]:
        return {place: look(path) for place, path in enumerate(files) if place % job.size == job.rank}

    try:
        part = fail_together(job.comm, mine, lambda said, _: OSError(said), catches=(OSError, ValueError))
    except OSError as error:
        parser.error(str(error))
    found = {place: one for part in job.comm.allgather(part) for place, one in part.items()}
    problem, last = None, None
    for place, path in enumerate(files):
        one = found[place]
        if one.disorder is not None:
            problem = problem or f"{path}: record {one.disorder} comes after a larger one"
        if one.first is not None and last is not None and one.first < last:
            problem = problem or f"{path} begins before the file in front of it ends"
        last = one.last or last
    if job.rank == 0:
        total = sum(one.records for one in found.values())
        sum_ = sum(one.checksum for one in found.values()) % 2**64
        print(f"{total:,} records in {len(files)} files, checksum {sum_:016x}, {problem or 'in order'}")
    # The launcher stops the others when one fails, which must not happen before worker 0 has printed its message.
    job.comm.barrier()
    return 1 if problem else 0


if __name__ == "__main__":
    raise SystemExit(main())
