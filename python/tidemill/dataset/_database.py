"""Database tables, read and written through ADBC (Arrow Database Connectivity).

Each worker that reads or writes loads the driver. Databases without an ADBC driver are read through any DB-API
connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing, nullcontext
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from tidemill._callback import check_outside
from tidemill._collective_errors import fail_together
from tidemill._job import init
from tidemill._needs import needed
from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet

__all__ = ["Connection", "read_database", "write"]

#: A URI, a function that opens a connection, or an open connection.
Connection = str | Callable[[], Any] | Any

#: The ADBC driver for each URI scheme.
_DRIVERS = {
    "sqlite": "adbc_driver_sqlite",
    "postgresql": "adbc_driver_postgresql",
    "postgres": "adbc_driver_postgresql",
}


def read_database(
    query: str,
    connection: Connection,
    *,
    partition_on: str | None = None,
) -> DataSet:
    """Read the result of a database query into memory. Collective: every worker makes the call.

    Needs ``pip install "tidemill[database]"``, which includes drivers for SQLite and PostgreSQL.

    Parameters
    ----------
    query : str
        Query in the database's own SQL.
    connection : str or callable
        A URI, ``"sqlite:///path/to.db"`` or ``"postgresql://user@host/name"``; or a function without arguments that
        opens an ADBC connection (``adbc_driver_manager.dbapi``, which has drivers for many databases) or a DB-API
        connection, such as ``sqlite3``. In a job of one worker you can also pass an open connection, which stays open.
    partition_on : str, optional
        A column of the result with integers, floats, dates or times. Its range is split into one part per worker, and
        each worker reads its part with its own query. Without it, worker 0 reads all rows and distributes them to the
        others.

    Returns
    -------
    DataSet
        The rows, each on one worker.

    Raises
    ------
    DataSetError
        On every worker: the database's error.
    ModuleNotFoundError
        If the driver is missing; the message says what to install.

    Notes
    -----
    With `partition_on`, each worker reads in its own transaction: rows that change meanwhile may be read twice or not at
    all.

    >>> import sqlite3, tidemill as tm
    >>> made = sqlite3.connect(":memory:")
    >>> _ = made.execute("create table trades (symbol text, price real)")
    >>> _ = made.execute("insert into trades values ('A', 1.5), ('B', null)")
    >>> tm.read_database("select * from trades", made).to_dict()
    {'symbol': ['A', 'B'], 'price': [1.5, None]}
    """
    from tidemill.dataset._read import from_local

    check_outside(DataSetError)
    job = init()
    if not isinstance(query, str):
        raise TypeError(f"read_database: the query must be a string, not a {type(query).__name__}")
    if partition_on is not None and not isinstance(partition_on, str):
        raise TypeError(f"read_database: partition_on must be a column name, not {partition_on!r}")
    if partition_on is None or job.size == 1:
        whole = _together(lambda: _read(connection, query) if job.rank == 0 else None, "read_database")
        if job.size == 1:
            return from_local(whole)
        parts = None
        if whole is not None:
            each = -(-len(whole) // job.size)
            parts = [whole.slice(rank * each, each) for rank in range(job.size)]
        return from_local(job.comm.scatter(parts))
    asked = _together(
        lambda: _parts(connection, query, partition_on, job.size) if job.rank == 0 else None, "read_database"
    )
    mine = job.comm.scatter(asked)
    part = _together(lambda: _read(connection, mine), "read_database")
    return from_local(_alike(part))


def write(data: DataSet, table: str, connection: Connection, if_exists: Literal["fail", "append", "replace"]) -> int:
    """See `DataSet.write_database`."""
    modes = {"fail": "create", "append": "create_append", "replace": "replace"}
    if if_exists not in modes:
        raise DataSetError(f'write_database: if_exists must be "fail", "append" or "replace", not {if_exists!r}')
    if not isinstance(table, str) or not table:
        raise DataSetError(f"write_database: the table name must be a string, not {table!r}")
    job = init()
    rows = data.collect(root=0)

    def put() -> int:
        if job.rank != 0:
            return 0
        with _opened(connection) as opened, closing(opened.cursor()) as cursor:
            if not hasattr(cursor, "adbc_ingest"):
                raise DataSetError(
                    "write_database needs an ADBC connection, such as that of adbc_driver_postgresql.dbapi.connect(...), or a URI, "
                    f"not a {type(opened).__module__}.{type(opened).__name__}"
                )
            cursor.adbc_ingest(table, rows.__arrow_c_stream__(), mode=modes[if_exists])
            opened.commit()
        return len(rows)

    count = _together(put, f"write_database: table {table!r}")
    return int(job.comm.bcast(count))


def _together(work: Callable[[], Any], call: str) -> Any:
    """Return the result of `work` if it fails on no worker. Collective."""
    missing: list[ModuleNotFoundError] = []

    def error(said: str, rank: int | None) -> Exception:
        if missing:
            return missing[0]
        return DataSetError(said if rank is None or init().size == 1 else f"{said} (on worker {rank})")

    def tried() -> Any:
        try:
            return work()
        except ModuleNotFoundError as lacking:
            missing.append(lacking)
            raise

    def says(failed: Exception) -> str:
        # Drivers return long messages of many lines, but the cause may be anywhere in them.
        if isinstance(failed, ModuleNotFoundError):
            return str(failed)
        remedy = '; if_exists="append" adds to it, "replace" recreates it' if "already exists" in str(failed) else ""
        return f"{call}: {str(failed).strip()}{remedy}"

    return fail_together(init().comm, tried, error, says=says)


def _opened(connection: Connection) -> Any:
    """Context manager for the connection, which closes it unless it was passed open."""
    if isinstance(connection, str):
        scheme, colon, rest = connection.partition(":")
        driver = _DRIVERS.get(scheme.lower())
        if not colon or driver is None:
            shown = re.sub(r"//[^@/]*@", "//...@", connection)
            raise DataSetError(
                f"no driver is known for {shown!r}; use sqlite:///path/to.db or postgresql://..., or for others a function that "
                "opens a connection, such as lambda: adbc_driver_manager.dbapi.connect(driver=...)"
            )
        connect = needed(f"{driver}.dbapi", f"a database of {scheme}").connect
        if driver == "adbc_driver_sqlite":
            # sqlite:///relative, sqlite:////absolute, sqlite:path, as in SQLAlchemy.
            return closing(connect(rest.removeprefix("///") if rest.startswith("///") else rest))
        return closing(connect(connection))
    if hasattr(connection, "cursor"):
        if init().size > 1:
            raise DataSetError(
                "in a job of several workers, pass a URI or a function that opens a connection, not an open one"
            )
        return nullcontext(connection)
    if callable(connection):
        return closing(connection())
    raise TypeError(f"a connection must be a URI or a function that opens one, not a {type(connection).__name__}")


def _read(connection: Connection, query: str) -> Table:
    with _opened(connection) as opened, closing(opened.cursor()) as cursor:
        cursor.execute(query)
        if cursor.description is None:
            raise DataSetError("the statement returns no rows; read_database takes a query")
        if hasattr(cursor, "fetch_arrow"):
            found = Table(NativeTable.take(cursor.fetch_arrow()))
            if not found.columns:
                raise DataSetError("the statement returns no rows; read_database takes a query")
            return found
        names = [column[0] for column in cursor.description]
        if len(set(names)) < len(names):
            raise DataSetError(f"two columns have the same name: {', '.join(names)}; rename them with AS")
        rows = cursor.fetchall()
        columns = [(name, [row[at] for row in rows], None) for at, name in enumerate(names)]
        return Table(NativeTable.from_lists(columns))


def _parts(connection: Connection, query: str, column: str, count: int) -> list[str]:
    """Return a query for each worker, which together return all rows."""
    name = '"' + column.replace('"', '""') + '"'
    inner = f"({query.strip().rstrip(';')}\n) as tidemill_rows"  # it may end with a comment
    found = _read(connection, f"select min({name}) as low, max({name}) as high from {inner}").to_pylist()[0]
    low, high = found["low"], found["high"]
    if low is None:
        return [f"select * from {inner}", *[f"select * from {inner} where 1 = 0"] * (count - 1)]
    if isinstance(low, (bool, str, bytes)) or not isinstance(low, (int, float, Decimal, date)):
        raise DataSetError(
            f"partition_on={column!r} has values such as {low!r}; whole numbers, floats, dates and times can be cut into parts"
        )
    bounds = [_between(low, high, at, count) for at in range(1, count)]
    conditions = []
    for at in range(count):
        parts = [f"{name} >= {_literal(bounds[at - 1])}"] if at else []
        parts += [f"{name} < {_literal(bounds[at])}"] if at < count - 1 else []
        text = " and ".join(parts)
        # Nulls must be in one of the parts, too.
        conditions.append(text if at else f"({text} or {name} is null)")
    return [f"select * from {inner} where {condition}" for condition in conditions]


def _between(low: Any, high: Any, at: int, count: int) -> Any:
    """Return the end of part `at` of `count`."""
    if isinstance(low, int):
        return low + (high - low + 1) * at // count
    if isinstance(low, float):
        return low + (high - low) * (at / count)
    if isinstance(low, date) and not isinstance(low, datetime):
        return date.fromordinal(low.toordinal() + (high - low).days * at // count)
    return low + (high - low) * at / count


def _literal(value: Any) -> str:
    if isinstance(value, (int, float, Decimal)):
        return repr(value) if isinstance(value, float) else str(value)
    return f"'{value.isoformat(' ') if isinstance(value, datetime) else value.isoformat()}'"


def _alike(part: Table) -> Table:
    """Return the same rows, with common types of all workers' parts. Collective.

    Databases without types, such as SQLite, derive them from the rows they return.
    """
    comm = init().comm
    empty, rows = part.slice(0, 0), len(part)
    given = comm.allgather((empty, rows))
    # A part without rows does not affect the types.
    counted = [(f"worker {rank}", other) for rank, (other, count) in enumerate(given) if count] or [
        ("worker 0", given[0][0])
    ]
    united = NativeTable.unite([other._native for _, other in counted], [name for name, _ in counted])
    return Table(part._native.cast(united))
