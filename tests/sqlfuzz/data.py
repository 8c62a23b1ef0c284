"""Random schemas and tables, and the sources that they are read from."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import random
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import tidemill as tm

#: Kinds of values: the type in Arrow, its name for `schema=`, the name in DuckDB, and the values that are drawn.
ARROW = {
    "int": pa.int64(),
    "big": pa.int64(),
    "str": pa.string(),
    "float": pa.float64(),
    "dec": pa.decimal128(10, 2),
    "date": pa.date32(),
    "time": pa.timestamp("us"),
    "bool": pa.bool_(),
}
NAMES = {
    "int": "int64",
    "big": "int64",
    "str": "str",
    "float": "float64",
    "dec": "decimal(10, 2)",
    "date": "date",
    "time": "datetime",
    "bool": "bool",
}
VALUES: dict[str, list[Any]] = {
    "int": [None, -5, -1, 0, 0, 1, 1, 2, 3],
    # Beyond what a double holds exactly; compared, never added.
    "big": [None, -(2**63), 2**63 - 1, 2**53, 2**53 + 1, 0],
    "str": [None, "", "a", "a", "b", "ab", "x'y", "é"],
    # Sums of these are exact in any order.
    "float": [None, math.nan, math.inf, -0.0, 0.0, 0.5, 1.5, -4.0, 2.0],
    "dec": [None, Decimal("1.10"), Decimal("-2.25"), Decimal("0.00"), Decimal("99999999.99")],
    # Years that no count of nanoseconds reaches.
    "date": [None, dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29), dt.date(1969, 12, 31)],
    "time": [
        None,
        dt.datetime(1600, 1, 1),
        dt.datetime(3000, 1, 1, 0, 0, 0, 1),
        dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
        dt.datetime(1969, 12, 31, 12),
    ],
    "bool": [None, True, False],
}
#: A column of a name has the same kind in all tables, so that any two can be joined with USING.
COLUMNS = {
    "k": "int",
    "v": "int",
    "w": "int",
    "h": "big",
    "s": "str",
    "u": "str",
    "f": "float",
    "m": "dec",
    "d": "date",
    "t": "time",
    "p": "bool",
}
SOURCES = ["memory", "memory", "local", "chunks", "dictionary", "parquet", "parquet", "csv", "json"]


@dataclass(frozen=True)
class Table:
    """A table: `columns` are names and kinds, the first of them `i`, which numbers the rows."""

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    source: str

    def arrow(self) -> pa.Table:
        """The table, of plain types."""
        arrays = [pa.array([r[j] for r in self.rows], ARROW[kind]) for j, (_, kind) in enumerate(self.columns)]
        return pa.table(arrays, names=[name for name, _ in self.columns])

    def schema(self) -> dict[str, str]:
        """Types as `schema=` wants them."""
        return {name: NAMES[kind] for name, kind in self.columns}

    def with_rows(self, rows: tuple[tuple[Any, ...], ...]) -> Table:
        """The same table, with other rows."""
        return replace(self, rows=rows)


def tables(r: random.Random, sources: list[str] = SOURCES) -> list[Table]:
    """Draw three tables."""
    return [_table(r, name, r.choice(sources)) for name in "abc"]


def _table(r: random.Random, name: str, source: str) -> Table:
    names = ["k", *r.sample(sorted(set(COLUMNS) - {"k"}), r.randint(2, 5))]
    columns = (("i", "int"), *((n, COLUMNS[n]) for n in names))
    rows = tuple(
        (i, *(_plain(r.choice(VALUES[COLUMNS[n]]), source) for n in names))
        for i in range(r.choice([0, 1, 2, 5, 9, 9, 20]))
    )
    return Table(name, columns, rows, source)


def _plain(value: Any, source: str) -> Any:
    """What the source can say: an empty text of CSV is null, and JSON has neither NaN nor infinity."""
    if source == "csv" and value == "":
        return "c"
    if source == "json" and isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dataset(table: Table, folder: Path) -> tm.DataSet:
    """The table as a DataSet, from its source; files go below `folder`. To be called on all workers."""
    job = tm.init()
    arrow = table.arrow()
    if table.source == "memory":
        return tm.from_arrow(arrow)
    if table.source == "local":
        # The first worker has none, and those of a job of one all.
        parts = [i for i in range(len(arrow)) if job.size == 1 or i % (job.size - 1) == job.rank - 1]
        return tm.from_local(arrow.take(pa.array(parts, pa.int64())))
    if table.source == "chunks":
        cuts = [0, 0, min(1, len(arrow)), len(arrow) // 2, len(arrow), len(arrow)]
        cuts.sort()
        pieces = [arrow.slice(lo, hi - lo) for lo, hi in itertools.pairwise(cuts)]
        return tm.from_arrow(pa.concat_tables(pieces))
    if table.source == "dictionary":
        for j, (name, kind) in enumerate(table.columns):
            if kind == "str":
                arrow = arrow.set_column(j, name, arrow[name].combine_chunks().dictionary_encode())
        return tm.from_arrow(arrow)
    path = folder / f"{table.name}-{table.source}"
    if job.rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        for old in path.iterdir():
            old.unlink()
        half = len(arrow) // 2
        for n, piece in enumerate([arrow.slice(0, half), arrow.slice(half)]):
            _write(piece, path / f"{n}.{table.source}", table.source)
    job.comm.barrier()
    if table.source == "parquet":
        return tm.read_parquet(str(path))
    if table.source == "csv":
        return tm.read_csv(str(path), schema=table.schema())
    return tm.read_json(str(path), schema=table.schema())


def _write(arrow: pa.Table, path: Path, source: str) -> None:
    if source == "parquet":
        pq.write_table(arrow, path, row_group_size=3)
    elif source == "csv":
        pa.csv.write_csv(arrow, path)
    else:
        path.write_text("".join(json.dumps(row, default=_text) + "\n" for row in arrow.to_pylist()))


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else str(value)
