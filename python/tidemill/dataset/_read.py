"""DataSets of files, of tables in memory, and of SQL queries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

from tidemill._tidemill import NativeTable
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._engine import engine
from tidemill.dataset._errors import DataSetError
from tidemill.dataset._table import Table

if TYPE_CHECKING:
    from tidemill._tidemill import QueryEngine

__all__ = [
    "from_arrow",
    "from_dict",
    "from_local",
    "read_csv",
    "read_ipc",
    "read_json",
    "read_npy",
    "read_parquet",
    "read_text",
    "sql",
]

#: A file, a folder (everything below it), a glob, or several of them.
Paths = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]


class ArrowStream(Protocol):
    """Any table of pyarrow, Polars, pandas, DuckDB, ... with the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowSchema(Protocol):
    """Any schema with the Arrow PyCapsule interface."""

    def __arrow_c_schema__(self) -> Any: ...


Schema = Mapping[str, str] | ArrowSchema


def _paths(given: Paths) -> list[str]:
    return [os.fspath(given)] if isinstance(given, (str, os.PathLike)) else [os.fspath(path) for path in given]


def _schema(given: Schema | None) -> Any:
    return list(given.items()) if isinstance(given, Mapping) else given


def read_csv(
    paths: Paths,
    *,
    schema: Schema | None = None,
    header: bool = True,
    delimiter: str = ",",
    quote: str = '"',
    comment: str | None = None,
    null: str | None = None,
    newlines_in_values: bool = False,
    infer_rows: int = 1000,
) -> DataSet:
    r"""Read CSV files; compressed ones (``.gz``, ``.bz2``, ``.xz``, ``.zst``) too.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        Files, folders (with everything below that is not hidden) and globs; the same on every worker.
    schema : mapping of str to str, or Arrow schema, optional
        Types by column; by default they are found out from the first rows.
    header : bool, default=True
        Whether the first line names the columns; without, they are ``column_1``, ``column_2``, ...
    delimiter, quote : str
        One ASCII character each.
    comment : str, optional
        Lines that begin with this character are left out.
    null : str, optional
        A regular expression of values that stand for null, beside nothing.
    newlines_in_values : bool, default=False
        Whether quoted values may contain line ends; files are then not read in pieces.
    infer_rows : int, default=1000
        Rows of a file that its types are found out from.

    Raises
    ------
    DataSetError
        If there is no such file, or it is no CSV.
    """
    return DataSet(
        engine().read(
            _paths(paths),
            "csv",
            _schema(schema),
            infer_rows,
            header=header,
            delimiter=delimiter,
            quote=quote,
            comment=comment,
            newlines_in_values=newlines_in_values,
            null=null,
        )
    )


def read_json(paths: Paths, *, schema: Schema | None = None, infer_rows: int = 1000) -> DataSet:
    """Read files with a JSON object in each line; otherwise like `read_csv`."""
    return DataSet(engine().read(_paths(paths), "json", _schema(schema), infer_rows))


def read_parquet(paths: Paths, *, schema: Schema | None = None) -> DataSet:
    """Read Parquet files; only the columns and row groups that a query needs are read."""
    return DataSet(engine().read(_paths(paths), "parquet", _schema(schema)))


def read_ipc(paths: Paths, *, schema: Schema | None = None) -> DataSet:
    """Read Arrow IPC files (also called Feather 2) or streams."""
    return DataSet(engine().read(_paths(paths), "ipc", _schema(schema)))


def read_text(paths: Paths) -> DataSet:
    r"""Read UTF-8 text as one column ``line``, without the line ends (``\n`` or ``\r\n``); compressed files too."""
    return DataSet(engine().read(_paths(paths), "text"))


def read_npy(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> DataSet:
    """Read an array of NumPy's ``.npy`` format: of shape (n,) as one column, of shape (n, d) as d columns.

    Parameters
    ----------
    path : str or path-like
    columns : sequence of str, optional
        Their names; by default ``value``, or ``column_1``, ``column_2``, ...

    Raises
    ------
    DataSetError
        If it is no such file, or its type is none of bool, integer and float.
    """
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataSetError(f"{os.fspath(path)} cannot be read as .npy: {error}") from None
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise DataSetError(
            f"{os.fspath(path)} has shape {array.shape} and type {array.dtype}; a table has at most 2 axes"
        )
    parts = [array] if array.ndim == 1 else list(array.T)
    if columns is None:
        columns = ["value"] if array.ndim == 1 else [f"column_{place + 1}" for place in range(len(parts))]
    if len(columns) != len(parts):
        raise DataSetError(f"{os.fspath(path)} has {len(parts)} columns, not {len(columns)}")
    return DataSet(engine().table(Table.from_numpy(dict(zip(columns, parts, strict=True)))._native))


def read_records(path: Paths, columns: Mapping[str, int]) -> DataSet:
    """Read files of records of a fixed length, without headers.

    Parameters
    ----------
    path : path or iterable of paths
        Files, or folders of files.
    columns : mapping of str to int
        The bytes of each column, in their order in a record.

    Raises
    ------
    DataSetError
        If there is no such file, or one does not hold whole records.
    """
    files: list[str] = []
    for name in map(Path, _paths(path)):
        inside = sorted(p for p in name.rglob("*") if p.is_file() and not p.name.startswith((".", "_")))
        files += map(str, inside) if name.is_dir() else [str(name)]
    return DataSet(engine().read_records(files, list(columns.items())))


def from_arrow(table: ArrowStream) -> DataSet:
    """Take a table of any library with the Arrow PyCapsule interface, without copying.

    Every worker of a job gives the same table, of which each reads a share; `from_local` is for workers that have different
    ones.

    Parameters
    ----------
    table : pyarrow.Table, polars.DataFrame, pandas.DataFrame, DuckDB relation, `Table`, ...

    Raises
    ------
    TypeError
        If it has no ``__arrow_c_stream__``.
    """
    return DataSet(engine().table(_taken(table)))


def from_local(table: ArrowStream) -> DataSet:
    """Take this worker's part of a table; the DataSet has the rows of all workers. Each part stays where it is.

    Parameters
    ----------
    table : pyarrow.Table, polars.DataFrame, pandas.DataFrame, `Table`, ...
        As for `from_arrow`; the same columns on every worker.
    """
    from tidemill._job import init

    job = init()
    native = _taken(table)
    made = engine().table(native) if job.size == 1 else engine().part(native, job.rank, job.size)
    return DataSet(made)


def _taken(table: ArrowStream) -> NativeTable:
    if not hasattr(table, "__arrow_c_stream__"):
        raise TypeError(
            f"{type(table).__name__} has no __arrow_c_stream__; tables of pyarrow, Polars, DuckDB and pandas (2.2 or newer) have"
        )
    return NativeTable.take(table)


def from_dict(columns: Mapping[str, Sequence[Any]], schema: Mapping[str, str] | None = None) -> DataSet:
    """Make a table of lists of Python values, one for each column; for small ones.

    Parameters
    ----------
    columns : mapping of str to sequence
        All of one length; None is null.
    schema : mapping of str to str, optional
        Types of some or all columns; by default that of the first value that is not None.
    """
    return DataSet(engine().table(_listed(engine(), columns, schema or {})))


def _listed(engine: QueryEngine, columns: Mapping[str, Sequence[Any]], schema: Mapping[str, str]) -> NativeTable:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataSetError(f"columns have different lengths: {lengths}")
    return NativeTable.from_lists([(name, list(values), schema.get(name)) for name, values in columns.items()])


def sql(query: str, **tables: DataSet | ArrowStream) -> DataSet:
    """Run a SQL query over DataSets, by the names given here, and over files, as ``'path/of.parquet'``.

    >>> import tidemill as tm
    >>> trades = tm.from_dict({"symbol": ["A", "B", "A"], "price": [1.0, 2.0, 4.0]})
    >>> tm.sql("select symbol, max(price) as top from trades group by symbol order by symbol", trades=trades).to_pylist()
    [{'symbol': 'A', 'top': 4.0}, {'symbol': 'B', 'top': 2.0}]

    Parameters
    ----------
    query : str
        In DataFusion's SQL; names are case-sensitive.
    **tables
        DataSets, or tables that `from_arrow` takes.

    Raises
    ------
    DataSetError
        If it does not parse, is not a query, or names what is not there.
    """
    given = [(name, table if isinstance(table, DataSet) else from_arrow(table)) for name, table in tables.items()]
    return DataSet(engine().sql(query, [(name, table._native) for name, table in given]))
