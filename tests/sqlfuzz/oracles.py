"""What a query has to give, and what it gives."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import tidemill as tm

from sqlfuzz.data import Table, dataset
from sqlfuzz.queries import Query

#: Errors that are no fault: what is refused says so, and what to write instead. Sums that are out of range are errors here. Which
#: columns a subquery in FROM has is not known to USING.
REFUSED = re.compile(r"out of range|overflow|beyond the range|more than one table to the left may have")


@dataclass(frozen=True)
class Failure:
    """A query that gave something else than it should."""

    oracle: str
    sql: str
    got: str
    want: str

    def __str__(self) -> str:
        return f"{self.oracle}\n  query: {self.sql}\n  got:   {self.got}\n  want:  {self.want}"

    def sort(self) -> str:
        """What two failures of one fault have in common, for shrinking: the oracle and the error, if it is one."""
        text = re.sub(r"[\"'`][^\"'`]*[\"'`]|\d+|x\d*\.\w+", "", self.got) if self.got.startswith("error") else "rows"
        return f"{self.oracle} {text[:60]}"


class Skipped(Exception):
    """The oracle cannot say."""


def plain(value: Any) -> Any:
    """A value as it is compared: numbers by nine digits, one zero, one NaN."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Decimal | int | float):
        if isinstance(value, float) and math.isnan(value):
            return "nan"
        if isinstance(value, int):
            return value
        number = float(f"{float(value):.9g}") + 0.0
        return int(number) if math.isfinite(number) and number == int(number) else number
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value


def bag(rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Rows without an order."""
    return Counter(tuple(plain(v) for v in row) for row in rows)


def told(rows: Counter[tuple[Any, ...]]) -> str:
    """Rows as a text."""
    return str(sorted(rows.elements(), key=str))[:2000]


class Data:
    """Tables in both engines."""

    def __init__(self, tables: list[Table], folder: Path) -> None:
        self.tables = tables
        self.duck = duckdb.connect()
        self.duck.execute("set threads to 1")
        self.sets: dict[str, tm.DataSet] = {}
        for table in tables:
            self.duck.register("given", table.arrow())
            self.duck.execute(f"create table {table.name} as select * from given")
            self.duck.unregister("given")
            self.sets[table.name] = dataset(table, folder)

    def want(self, sql: str) -> Counter[tuple[Any, ...]]:
        """What DuckDB gives."""
        try:
            return bag(self.duck.execute(sql).fetchall())
        except duckdb.Error as error:
            raise Skipped(str(error)) from error

    def query(self, sql: str, **more: tm.DataSet) -> tm.DataSet:
        """A query of Tidemill over the tables, and `more`, that it names."""
        used = {n: d for n, d in {**self.sets, **more}.items() if re.search(rf"\b{n}\b", sql)}
        return tm.sql(sql, **used)

    def rows(self, sql: str, **more: tm.DataSet) -> Counter[tuple[Any, ...]]:
        """What Tidemill gives."""
        return bag([tuple(r.values()) for r in self.query(sql, **more).to_pylist()])

    def digest(self, query: Query) -> str:
        """What stands for the rows of a query beside those of other numbers of workers."""
        try:
            rows = told(self.rows(query.sql()))
        except tm.DataSetError:
            # Its text names files, and which error comes first is nobody's promise.
            rows = "error"
        return hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()

    def close(self) -> None:
        """Give the tables back."""
        self.duck.close()


def _compare(oracle: str, sql: str, data: Data, want: Counter[tuple[Any, ...]], **more: tm.DataSet) -> Failure | None:
    try:
        got = data.rows(sql, **more)
    except tm.DataSetError as error:
        if REFUSED.search(str(error)):
            raise Skipped(str(error)) from error
        return Failure(oracle, sql, f"error {error}", told(want))
    return None if got == want else Failure(oracle, sql, told(got), told(want))


def check(query: Query, data: Data) -> Failure | None:
    """Ask all oracles.

    Raises
    ------
    Skipped
        If none could say.
    """
    known: Skipped | None = None
    try:
        want = data.want(query.sql(duck=True))
    except Skipped as error:
        known = error
    else:
        if failure := _compare("DuckDB", query.sql(), data, want):
            return failure
        if query.parts and (failure := _materialized(query, data, want)):
            return failure
        if failure := _planned_alike(query, data):
            return failure
    if query.base is not None and query.where is not None:
        if failure := _partitioned(query, data):
            return failure
        known = None
    if known:
        raise known
    return None


def _planned_alike(query: Query, data: Data) -> Failure | None:
    """The same plan each time, as each worker makes its own: an order that comes of a hash set would keep them from working together."""
    one, other = (data.query(query.sql()).explain().splitlines() for _ in range(2))
    apart = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
    return Failure("planned again", query.sql(), apart[1].strip(), apart[0].strip()) if apart else None


def _materialized(query: Query, data: Data, want: Counter[tuple[Any, ...]]) -> Failure | None:
    """The same, with a cache() after each named part: rules of the optimizer see one step at a time."""
    made: dict[str, tm.DataSet] = {}
    for name, part in query.parts:
        try:
            made[name] = data.query(part.sql(), **made).cache()
        except tm.DataSetError as error:
            # A part that the body does not read may fail by itself.
            raise Skipped(str(error)) from error
    return _compare("cache() of named parts", query.body.sql(), data, want, **made)


def _partitioned(query: Query, data: Data) -> Failure | None:
    """All rows are those of which a condition is true, false and null."""
    assert query.base is not None and query.where is not None
    base, where = query.base.sql(), query.where.sql()
    try:
        want = data.rows(query.wrap(base))
        parts = [data.rows(query.wrap(f"{base} where {p}")) for p in (where, f"not {where}", f"{where} is null")]
    except tm.DataSetError as error:
        if REFUSED.search(str(error)):
            raise Skipped(str(error)) from error
        return Failure("true, false and null", query.wrap(f"{base} where {where}"), f"error {error}", "rows")
    got = parts[0] + parts[1] + parts[2]
    if got == want:
        return None
    sql = query.wrap(f"{base} where {where}")
    return Failure("true, false and null", sql, " | ".join(told(p) for p in parts), told(want))
