"""``tidemill tpch``: run TPC-H queries on all workers, and compare the answers with DuckDB's.

Worker 0 generates the data once, with the program ``tpchgen-cli``. The queries and data are those of TPC-H, but this is
not a TPC-H benchmark: the times cannot be compared with published results.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import tidemill as tm
from tidemill.apps._arguments import Parser, queries
from tidemill.apps.tpch_queries import QUERIES, TABLES, query
from tidemill.ml._job import collective_try

__all__ = ["main"]

#: Files of each large table, so that every thread of a job can read its own.
_PARTS = 8
#: Rows of the table `supplier` at scale 1.
_SUPPLIERS = 10_000
#: Relative difference of two numbers that count as equal, because sums of floats depend on their order.
_TOLERANCE = 1e-9

Row = tuple[Any, ...]


def _numbers(text: str) -> list[int]:
    """Parse a list of queries like ``1,6,10-12``."""
    return queries(text, list(QUERIES))


def _scale(text: str) -> float:
    """Parse a scale at which every table has rows."""
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0.001 <= scale <= 100_000:
        raise argparse.ArgumentTypeError(f"must be a number from 0.001 to 100000, not {text!r}")
    return scale


def _cache(scale: float) -> Path:
    """Return the folder for data of a scale."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tidemill" / "tpch" / f"scale-{scale:g}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="tidemill tpch",
        description="Run TPC-H queries on all workers of the job.",
        epilog="tidemill tpch -n 2 --scale 0.1 --queries 1,6,10-12 --check",
    )
    add = parser.add_argument
    add("--scale", type=_scale, default=0.1, metavar="X", help="size of the data, about X GB as text (default 0.1)")
    add(
        "--queries",
        type=_numbers,
        default=list(QUERIES),
        metavar="LIST",
        help="queries to run, such as 1,6,10-12 (default: all)",
    )
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with the tables as Parquet; created if missing (default: ~/.cache/tidemill/tpch/scale-X)",
    )
    add("--cached", action="store_true", help="first read all tables into the workers' memory")
    add("--check", action="store_true", help="compare each answer with DuckDB's")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on this worker; the exit code is 0, or 1 if a query fails or an answer differs."""
    arguments = _arguments(argv)
    job = tm.init()
    folder = arguments.data or _cache(arguments.scale)

    def prepare() -> None:
        if job.rank != 0:
            return
        if arguments.check and importlib.util.find_spec("duckdb") is None:
            raise ValueError("--check needs DuckDB; install it with: pip install duckdb")
        _make(folder, arguments.scale)

    tables: dict[str, tm.DataSet] = {}

    def read() -> None:
        tables.update({name: tm.read_parquet(_source(folder, name)) for name in TABLES})

    try:
        # The others wait here while worker 0 generates the data.
        collective_try(job.comm, prepare)
        collective_try(job.comm, read)
        suppliers = tables["supplier"].count()
        if abs(suppliers - arguments.scale * _SUPPLIERS) > 1:
            raise ValueError(f"{folder} has data of scale {suppliers / _SUPPLIERS:g}, not {arguments.scale:g}")
        if arguments.cached:
            tables = {name: table.cache() for name, table in tables.items()}
    except (ValueError, tm.DataSetError) as error:
        if job.rank == 0:
            print(f"tidemill tpch: {error}", file=sys.stderr)
        # The launcher stops the others when one fails, which must not happen before worker 0 has printed its message.
        job.comm.Barrier()
        return 1
    return _run(job, tables, arguments, folder)


def _run(job: Any, tables: dict[str, tm.DataSet], arguments: argparse.Namespace, folder: Path) -> int:
    """Run the queries one after the other; returns the exit code."""
    say = print if job.rank == 0 else _silent
    say(f"scale {arguments.scale:g} on {job.size} worker(s), from {folder}{' in memory' * arguments.cached}")
    wrong: list[int] = []
    total = 0.0
    for number in arguments.queries:
        text = query(number, arguments.scale)
        job.comm.Barrier()
        begin = time.perf_counter()
        try:
            answer = tm.sql(text, **tables).collect(root=0)
        except tm.DataSetError as error:
            # Every worker gets this error.
            wrong.append(number)
            say(f"Q{number:<3} failed: {error}")
            continue
        seconds = time.perf_counter() - begin
        total += seconds
        difference = ""
        if arguments.check and job.rank == 0:
            difference = _difference(_rows(answer), _duckdb(folder, text), _order(text, answer.columns))
        outcome = f"differs: {difference}" if difference else "as DuckDB" if arguments.check else ""
        say(f"Q{number:<3} {seconds:9.3f} s {len(answer):7,} rows  {outcome}".rstrip())
        # Only worker 0 knows the result, but all must end in the same way.
        if job.comm.bcast(bool(difference), root=0):
            wrong.append(number)
    say(f"all  {total:9.3f} s")
    if wrong:
        say(f"tidemill tpch: wrong or failed: {', '.join(f'Q{number}' for number in wrong)}", file=sys.stderr)
    job.comm.Barrier()
    return 1 if wrong else 0


def _silent(*_: object, **__: object) -> None:
    pass


def _source(folder: Path, table: str) -> Path:
    """Return a table's folder or file."""
    file = folder / f"{table}.parquet"
    return file if file.is_file() else folder / table


def _make(folder: Path, scale: float) -> None:
    """Generate the data, unless they exist.

    Raises
    ------
    ValueError
        If a folder exists without all tables, or the data cannot be generated.
    """
    if folder.is_dir() and any(folder.iterdir()):
        missing = [name for name in TABLES if not _source(folder, name).exists()]
        if missing:
            raise ValueError(
                f"{folder} has files, but no table {' nor '.join(missing)}; name a new folder to make data"
            )
        return
    scripts = sysconfig.get_path("scripts")
    program = shutil.which("tpchgen-cli", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise ValueError("making the data needs tpchgen-cli 4 or newer; install it with: pip install tpchgen-cli")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Written next to its final place, and renamed when complete: an interrupted command leaves nothing that looks
        # like data.
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as parent:
            made = Path(parent) / "made"
            made.mkdir()
            command = [program, "parquet", "-s", f"{scale:g}", "--parts", str(_PARTS), "--quiet", "-o", str(made)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                raise ValueError(f"tpchgen-cli ended with {done.returncode}: {done.stderr.strip()}")
            made.rename(folder)
    except OSError as error:
        raise ValueError(f"the data cannot be made: {error}") from error


def _duckdb(folder: Path, text: str) -> list[Row]:
    """Return DuckDB's answer."""
    import duckdb

    with duckdb.connect() as connection:
        for name in TABLES:
            source = _source(folder, name)
            files = str(source if source.is_file() else source / "**" / "*.parquet").replace("'", "''")
            connection.execute(f"create view {name} as select * from read_parquet('{files}')")
        return list(connection.execute(text).fetchall())


def _rows(table: tm.Table) -> list[Row]:
    return list(zip(*table.to_dict().values(), strict=True))


def _order(text: str, columns: Sequence[str]) -> list[int]:
    """Return the columns that a query's rows are sorted by."""
    found = re.search(r"order by ([\w\s,]+?)(?:\s+limit \d+)?\s*$", text)
    return [columns.index(word.split()[0]) for word in found[1].split(",")] if found else []


def _difference(rows: list[Row], expected: list[Row], order: Iterable[int]) -> str:
    """Return how rows differ from the expected ones or, in the sort columns, from the expected order."""
    for row, other in zip_longest(sorted(rows, key=_key), sorted(expected, key=_key)):
        if row is None or other is None or len(row) != len(other) or not all(map(_same, row, other)):
            return f"{_shown(row)} here, {_shown(other)} of DuckDB"
    for place, (row, other) in enumerate(zip(rows, expected, strict=True)):
        if not all(_same(row[i], other[i]) for i in order):
            return f"order of row {place}: {_shown(row)} here, {_shown(other)} of DuckDB"
    return ""


def _shown(row: Row | None) -> str:
    return "no row" if row is None else f"({', '.join(map(str, row))})"


def _is_fraction(value: object) -> bool:
    return isinstance(value, (float, Decimal))


def _key(row: Row) -> tuple[Any, ...]:
    """Sort key for rows: exact values come first, so that rounding does not change the order."""
    exact = [(value is None, str(value)) for value in row if not _is_fraction(value)]
    return exact, [float(value) for value in row if _is_fraction(value)]


def _same(value: Any, other: Any) -> bool:
    """Return whether two values are equal up to rounding: floats in general, decimals in their last place."""
    if not (_is_fraction(value) and _is_fraction(other)):
        return bool(value == other)
    # An average of decimals is a decimal with limited places here, and a float in DuckDB.
    places = [Decimal(1).scaleb(int(one.as_tuple().exponent)) for one in (value, other) if isinstance(one, Decimal)]
    rounding = float(max(places)) if len(places) == 1 else 0.0
    return math.isclose(value, other, rel_tol=_TOLERANCE, abs_tol=rounding)


if __name__ == "__main__":
    sys.exit(main())
