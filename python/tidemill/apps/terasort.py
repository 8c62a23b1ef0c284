"""``tidemill terasort``: sort 100-byte records by their first 10 bytes, on all workers, spilling to disk if memory is
short.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import tidemill as tm
from tidemill.apps import _tera
from tidemill.apps._arguments import Parser

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = Parser(
        prog="tidemill terasort",
        description="Sort 100-byte records by their first 10 bytes on all workers of the job.",
        epilog="--memory limits each worker; beyond it, sorted runs spill to --spill-dir",
    )
    parser.add_argument("input", type=Path, help="folder of record files, as written by teragen, or a single file")
    parser.add_argument("output", type=Path, help="new folder, with one file per key range, in key order")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    options = parser.parse_args(argv)
    job = tm.init()
    there = job.comm.bcast(options.output.exists() if job.rank == 0 else None)
    if there and not options.overwrite:
        parser.error(f"{options.output} exists; --overwrite replaces it")
    started = time.perf_counter()
    try:
        data = tm.read_records(options.input, _tera.COLUMNS)
        rows = data.sort("key").write_records(options.output, overwrite=options.overwrite)
    except tm.DataSetError as error:
        parser.error(str(error))
    if job.rank == 0:
        seconds = time.perf_counter() - started
        rate = rows * _tera.RECORD_BYTES / 1e6 / seconds
        print(f"{rows:,} records sorted into {options.output}, {seconds:.2f} s, {rate:.0f} MB/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
