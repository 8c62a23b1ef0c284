"""DataSets of files, tables in memory, and SQL queries."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union

from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.places import StorageOptions, as_options, at_home, is_read, is_url
from tidemill._tables.rows import ArrowStream, parse_schema, take_table
from tidemill._tables.values import from_values
from tidemill._tidemill import NativeTable
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._each_host import own_files
from tidemill.dataset._expr import col

if TYPE_CHECKING:
    from tidemill._tidemill import NativeDataSet, QueryEngine

__all__ = [
    "from_arrow",
    "from_dict",
    "from_local",
    "from_pylist",
    "null_pattern",
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


class ArrowSchema(Protocol):
    """Any schema with the Arrow PyCapsule interface."""

    def __arrow_c_schema__(self) -> Any: ...


Schema = Mapping[str, str] | ArrowSchema

#: How to handle unreadable rows.
OnError = Literal["raise", "skip", "quarantine"]


def _paths(given: Paths) -> list[str]:
    paths = [given] if isinstance(given, (str, os.PathLike)) else given
    return [at_home(path) for path in paths]


def _read(
    paths: list[str],
    each_host: bool,
    read: Callable[[list[str], Any], NativeDataSet],
    schema: Schema | None = None,
    *,
    one_header: bool = False,
    partition_schema: Mapping[str, str] | None = None,
) -> DataSet:
    """Return the rows of the files that `read` reads: the same on all hosts, or those of each."""
    given = optional_schema(schema)
    if each_host:
        data = DataSet(own_files(paths, read, schema=given, one_header=one_header))
    else:
        data = DataSet(read(paths, given))
    return data if partition_schema is None else _with_partitions(data, partition_schema)


def _with_partitions(data: DataSet, schema: Mapping[str, str]) -> DataSet:
    """Convert columns from folder names, which are strings, to other types."""
    missing = [name for name in schema if name not in data.columns]
    if missing:
        raise DataSetError(
            f"partition_schema= names column {missing[0]!r}; there are: {', '.join(data.columns)}. It is for folders named column=value"
        )
    return data.with_columns(**{name: col(name).cast(kind) for name, kind in schema.items()})


def quarantine_folder(
    folder: str | os.PathLike[str] | None,
    paths: Sequence[str],
    each_host: bool,
    file: str = "bad-00000000-00000.json",
    *,
    folders: bool = True,
) -> str | None:
    """Return the folder for bad rows. It must not be among the files that are read, or the next read would take them
    for data.

    `file` is the name of one of its files; `folders` as in `is_read`.
    """
    if folder is None:
        return None
    where = at_home(folder)
    if is_url(where):
        raise DataSetError(f"quarantine={where!r} must be a local folder")
    if each_host:
        raise DataSetError(
            f"quarantine={where!r} cannot be combined with each_host=True: two hosts may have files of the same name; use on_error='skip'"
        )
    for path in paths:
        if is_read(f"{where}/{file}", path, folders=folders):
            raise DataSetError(
                f"quarantine={where!r} is within {path!r}, which is read; use a separate folder for bad rows"
            )
    return where


def optional_schema(given: Schema | None) -> Any:
    return None if given is None else parse_schema(given)


def read_csv(
    paths: Paths,
    *,
    schema: Schema | None = None,
    schema_overrides: Schema | None = None,
    header: bool = True,
    delimiter: str = ",",
    quote: str = '"',
    comment: str | None = None,
    null: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    newlines_in_values: bool = False,
    encoding: str = "utf-8",
    infer: Literal["relaxed", "strict"] = "relaxed",
    infer_rows: int = 1000,
    partition_schema: Mapping[str, str] | None = None,
    file_column: str | None = None,
    on_error: OnError = "raise",
    quarantine: str | os.PathLike[str] | None = None,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    """Read CSV files, also compressed ones (``.gz``, ``.bz2``, ``.xz``, ``.zst``).

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        Files, folders (including everything below them that is not hidden) and globs, local or in an object store:
        ``s3://bucket/...``, ``gs://``, ``az://``, ``abfss://``, ``http(s)://`` (one file), ``file:///``. The same on
        every worker.
    schema : mapping of str to str, or Arrow schema, optional
        Types by column; by default inferred from the first rows.
    schema_overrides : mapping of str to str, or Arrow schema, optional
        Types of some columns; those of the others are inferred.
    header : bool, default=True
        Whether the first line has the column names; otherwise they are ``column_1``, ``column_2``, ...
    delimiter, quote : str
        One ASCII character each.
    comment : str, optional
        Skip lines that begin with this character.
    null : str or sequence of str, optional
        Strings that mean null, such as ``["N/A", "-"]``. A value must equal one of them exactly. Empty values are null,
        too.
    columns : sequence of str, optional
        Read only these columns, in this order; by default all.
    newlines_in_values : bool, default=False
        Whether quoted values may contain line ends; if so, files are not split for parallel reading.
    encoding : str, default="utf-8"
        Encoding of the files: ``"utf-16"``, ``"latin-1"``, ``"windows-1252"``, ``"shift_jis"``, ... Each file in
        another encoding than UTF-8 is read by a single thread. Bytes that are invalid in the encoding are an error.
    infer : {"relaxed", "strict"}, default="relaxed"
        How to infer types. ``"relaxed"``: integers with leading zeros or a plus sign (``007``) are codes, so their
        column becomes ``str``. ``"strict"``: so does a column with any value that would print differently (``1.10``,
        ``1E5``, ``TRUE``); such a value after the first `infer_rows` rows is an error.
    infer_rows : int, default=1000
        Number of rows of a file from which to infer types. A later value that would lose information in its type (a
        time of day in a column of dates, ``1.7`` among integers) is an error.
    partition_schema : mapping of str to str, optional
        Types of columns that come from folder names ``column=value``; by default ``str``.
    file_column : str, optional
        Name of a column to add with the path or URL of each row's file.
    on_error : {"raise", "skip", "quarantine"}, default="raise"
        How to handle a bad row: one with more or fewer values than columns, a value that does not match its column's
        type, an unclosed quote, or bytes that are not UTF-8. ``"raise"``: the action fails, and names file and line.
        ``"skip"``: the row is left out; a `BadRowsWarning` at the end of the action gives their number, and so does
        `last_report`. ``"quarantine"``: like ``"skip"``, and the rows are written to files in `quarantine`.
    quarantine : str or path-like, optional
        A local folder that all workers share, for JSON-lines files with ``file``, ``line``, ``reason`` and ``text`` of
        each bad row. It must be outside the folders that are read.
    each_host : bool, default=False
        For files that differ between hosts, such as logs: the DataSet has the rows of the files of all hosts. Each file
        is read once, by a worker of a host that has it. A host may have none. Files on several hosts are the same file
        if they have the same path, size and modification time. In a job on several hosts the call is collective; on one
        host this option has no effect.
    storage_options : mapping of str to str, optional
        Options of the object store, such as ``{"aws_region": "eu-central-1"}``; they override environment variables
        (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...).

    Raises
    ------
    DataSetError
        If a file does not exist, cannot be read from the store, or is not CSV.
    """
    if infer not in ("relaxed", "strict"):
        raise DataSetError(f'infer={infer!r}: use "relaxed" or "strict"')
    given = _paths(paths)
    bad_rows = quarantine_folder(quarantine, given, each_host)
    pattern = null_pattern(null)
    data = _read(
        given,
        each_host,
        lambda files, schema: engine().read(
            files,
            "csv",
            schema,
            infer_rows,
            header=header,
            delimiter=delimiter,
            quote=quote,
            comment=comment,
            newlines_in_values=newlines_in_values,
            null=pattern,
            on_error=on_error,
            overrides=optional_schema(schema_overrides),
            strict=infer == "strict",
            encoding=encoding,
            file_column=file_column,
            quarantine=bad_rows,
            storage_options=as_options(storage_options),
        ),
        schema,
        one_header=True,
        partition_schema=partition_schema,
    )
    return data if columns is None else data.select(*columns)


def null_pattern(null: str | Sequence[str] | None) -> str | None:
    """Return a regular expression that matches the strings that mean null.

    The engine searches for it when it infers types, hence the anchors. Empty values stay null, too.

    Raises
    ------
    DataSetError
        If `null` is neither a string nor a list of strings.
    """
    if null is None:
        return None
    texts = [null] if isinstance(null, str) else list(null)
    if not all(isinstance(text, str) for text in texts):
        raise DataSetError(f'null= must be one or several strings, such as ["N/A", "-"], not {null!r}')
    # Escapes that Python and Rust share; Rust does not accept an escaped space.
    escaped = [re.sub(r"([\\.+*?()|\[\]{}^$#&~-])", r"\\\1", text) for text in texts]
    return f"^(?:{'|'.join([*escaped, ''])})$"


def read_json(
    paths: Paths,
    *,
    schema: Schema | None = None,
    encoding: str = "utf-8",
    infer_rows: int = 1000,
    partition_schema: Mapping[str, str] | None = None,
    file_column: str | None = None,
    on_error: OnError = "raise",
    quarantine: str | os.PathLike[str] | None = None,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    """Read files with a JSON object on each line; otherwise like `read_csv`.

    Without `schema`, the columns are those of the first `infer_rows` objects: fields that only later ones have are
    ignored. A line that is not a complete JSON object is a bad row, and so is one with a value that would lose
    information in its column's type: a number with a fraction in a column of integers, a time of day in one of dates.
    """
    given = _paths(paths)
    bad_rows = quarantine_folder(quarantine, given, each_host)
    return _read(
        given,
        each_host,
        lambda files, schema: engine().read(
            files,
            "json",
            schema,
            infer_rows,
            encoding=encoding,
            file_column=file_column,
            on_error=on_error,
            quarantine=bad_rows,
            storage_options=as_options(storage_options),
        ),
        schema,
        partition_schema=partition_schema,
    )


def read_parquet(
    paths: Paths,
    *,
    schema: Schema | None = None,
    partition_schema: Mapping[str, str] | None = None,
    file_column: str | None = None,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    """Read Parquet files. Queries read only the columns and row groups that they need.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        As in `read_csv`. The DataSet has the columns of all files, with nulls for files that lack one, in types that
        can represent all values: `int64` for `int32` and `int64`.
    schema : mapping of str to str, or Arrow schema, optional
        Columns and types to use instead. A value that does not fit its type is an error when it is read.
    partition_schema : mapping of str to str, optional
        Types of columns that come from folder names ``column=value``; by default ``str``.
    file_column : str, optional
        Name of a column to add with the path or URL of each row's file.
    each_host : bool, default=False
        As in `read_csv`.
    storage_options : mapping of str to str, optional
        As in `read_csv`.

    Raises
    ------
    DataSetError
        If a file does not exist or is not Parquet, or the types of a column in two files have no common type.
    """
    return _read(
        _paths(paths),
        each_host,
        lambda files, schema: engine().read(
            files, "parquet", schema, file_column=file_column, storage_options=as_options(storage_options)
        ),
        schema,
        partition_schema=partition_schema,
    )


def read_ipc(
    paths: Paths,
    *,
    schema: Schema | None = None,
    partition_schema: Mapping[str, str] | None = None,
    file_column: str | None = None,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    """Read Arrow IPC files (also called Feather 2) or streams. Arguments, and files with differing columns, as in
    `read_parquet`.
    """
    return _read(
        _paths(paths),
        each_host,
        lambda files, schema: engine().read(
            files, "ipc", schema, file_column=file_column, storage_options=as_options(storage_options)
        ),
        schema,
        partition_schema=partition_schema,
    )


def read_text(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    file_column: str | None = None,
    on_error: OnError = "raise",
    quarantine: str | os.PathLike[str] | None = None,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    r"""Read text as one column ``line``, without the line ends (``\n`` or ``\r\n``); also compressed files.

    Otherwise like `read_csv`; a line that is invalid in its encoding is a bad row.
    """
    given = _paths(paths)
    bad_rows = quarantine_folder(quarantine, given, each_host)
    return _read(
        given,
        each_host,
        lambda files, _: engine().read(
            files,
            "text",
            encoding=encoding,
            file_column=file_column,
            on_error=on_error,
            quarantine=bad_rows,
            storage_options=as_options(storage_options),
        ),
    )


def read_npy(
    paths: Paths,
    columns: Sequence[str] | None = None,
    *,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    """Read arrays in NumPy's ``.npy`` format: shape (n,) as one column, shape (n, d) as d columns, records as their
    fields.

    Rows are read when a query needs them, and each worker reads its share of each array. Arrays in C order are read row
    by row, and only the columns that the query needs are copied. Of arrays in Fortran order, only those columns are
    read; from an object store this takes a request and a few MiB of memory for each column. Counting rows reads no
    data.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        As in `read_csv`; also a folder written by `DataSet.write_npy`. Several arrays are stacked vertically and must
        have the same type and number of columns.
    columns : sequence of str, optional
        Column names; by default ``value``, or ``column_1``, ``column_2``, ..., or those of the fields.
    each_host : bool, default=False
        As in `read_csv`.
    storage_options : mapping of str to str, optional
        As in `read_csv`.

    Raises
    ------
    DataSetError
        If a file is not an array, is truncated, or is compressed; or if its type is not supported. Supported types are
        bool, integers and floats of up to 64 bits, and ``datetime64`` and ``timedelta64`` in ``s``, ``ms``, ``us`` or
        ``ns``, whose ``NaT`` becomes null.
    """
    names = None if columns is None else list(columns)

    def read(files: list[str], schema: Any) -> NativeDataSet:
        found = engine().read_npy(files, names, as_options(storage_options))
        if schema is not None and (mine := found.empty().fields) != schema.fields:
            raise DataSetError(
                f"{files[0]} has the columns {_listing(mine)}, and with those of other hosts it would have {_listing(schema.fields)}: "
                "convert arrays to one type, with astype"
            )
        return found

    return _read(_paths(paths), each_host, read)


def _listing(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields)


def read_records(
    paths: Paths,
    columns: Mapping[str, int],
    *,
    each_host: bool = False,
    storage_options: StorageOptions | None = None,
) -> DataSet:
    """Read files of fixed-length records without headers.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        As in `read_csv`.
    columns : mapping of str to int
        Length of each column in bytes, in record order.
    each_host : bool, default=False
        As in `read_csv`.
    storage_options : mapping of str to str, optional
        As in `read_csv`.

    Raises
    ------
    DataSetError
        If a file does not exist, does not hold a whole number of records, or has the name of a compressed file
        (``.gz``, ``.bz2``, ``.xz``, ``.zst``).
    """
    return _read(
        _paths(paths),
        each_host,
        lambda files, _: engine().read_records(files, list(columns.items()), as_options(storage_options)),
    )


def from_arrow(table: ArrowStream) -> DataSet:
    """Use a table of any library with the Arrow PyCapsule interface, without copying.

    Run-end encoded columns are expanded, and dictionary keys of less than 32 bits are widened to 32.

    Every worker of a job passes the same table, and each reads a share of it; if workers have different tables, use
    `from_local`.

    Parameters
    ----------
    table : pyarrow.Table, polars.DataFrame, pandas.DataFrame, DuckDB relation, `Table`, ...

    Raises
    ------
    TypeError
        If it has no ``__arrow_c_stream__``.
    """
    return DataSet(engine().table(take_table(table)))


def from_local(table: ArrowStream) -> DataSet:
    """Use this worker's part of a table; the DataSet has the rows of all workers. Each part stays where it is.

    Parameters
    ----------
    table : pyarrow.Table, polars.DataFrame, pandas.DataFrame, `Table`, ...
        As in `from_arrow`; columns must be the same on every worker, otherwise actions raise an error that names the
        differences.
    """
    from tidemill._job import init

    job = init()
    native = take_table(table)
    made = engine().table(native) if job.size == 1 else engine().part(native, job.rank, job.size)
    return DataSet(made)


def from_dict(columns: Mapping[str, Sequence[Any]], schema: Mapping[str, str] | None = None) -> DataSet:
    """Build a small table from lists of Python values, one for each column.

    Parameters
    ----------
    columns : mapping of str to sequence
        Lists of the same length; None is null.
    schema : mapping of str to str, optional
        Types of some or all columns; by default that of the first value that is not None.
    """
    return DataSet(engine().table(_listed(engine(), columns, schema or {})))


def from_pylist(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, str] | None = None) -> DataSet:
    """Build a small table from dicts of Python values, one for each row. `Table.to_pylist` is the inverse.

    Parameters
    ----------
    rows : iterable of mapping
        Columns that a row does not have are null. Columns come in the order in which they first appear.
    schema : mapping of str to str, optional
        Types of some or all columns; by default that of the first value that is not None. Columns that no row has are
        added, too.

    Examples
    --------
    >>> import tidemill as tm
    >>> tm.from_pylist([{"a": 1}, {"a": 2, "b": "x"}]).to_dict()
    {'a': [1, 2], 'b': [None, 'x']}
    """
    if isinstance(rows, (Mapping, str, bytes)) or not isinstance(rows, Iterable):
        raise TypeError(f'from_pylist takes a list of rows, [{{"a": 1}}, {{"a": 2}}], not a {type(rows).__name__}')
    given = list(rows)
    columns: dict[str, None] = {}
    for at, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise TypeError(f'from_pylist: row {at} is a {type(row).__name__}; rows must be dicts, such as {{"a": 1}}')
        columns.update(dict.fromkeys(row))
    for name in columns:
        if not isinstance(name, str):
            raise TypeError(f"from_pylist: column names must be strings, not {name!r}")
    columns.update(dict.fromkeys(schema or {}))
    return from_dict({name: [row.get(name) for row in given] for name in columns}, schema)


def _listed(engine: QueryEngine, columns: Mapping[str, Sequence[Any]], schema: Mapping[str, str]) -> NativeTable:
    if not isinstance(columns, Mapping):
        raise TypeError(f'from_dict takes lists by column, {{"a": [1, 2]}}, not a {type(columns).__name__}')
    for name, values in columns.items():
        if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
            raise TypeError(f"from_dict: column {name!r} must be a list of values, not {values!r}")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataSetError(f"columns have different lengths: {lengths}")
    types = [(name, schema.get(name)) for name in columns]
    return from_values(
        lambda lists: NativeTable.from_lists(
            [(name, values, of) for (name, of), values in zip(types, lists, strict=True)]
        ),
        [list(values) for values in columns.values()],
    )


def sql(query: str, /, **tables: DataSet | ArrowStream) -> DataSet:
    """Run a SQL query over DataSets, by the names given here, and over files, written as ``'path/of.parquet'``.

    >>> import tidemill as tm
    >>> trades = tm.from_dict({"symbol": ["A", "B", "A"], "price": [1.0, 2.0, 4.0]})
    >>> tm.sql("select symbol, max(price) as top from trades group by symbol order by symbol", trades=trades).to_pylist()
    [{'symbol': 'A', 'top': 4.0}, {'symbol': 'B', 'top': 2.0}]

    Parameters
    ----------
    query : str
        Query in DataFusion's SQL; names are case-sensitive. Nulls sort as larger than all values: with ``desc`` they
        come first, unless you write ``nulls last``.
    **tables
        DataSets, or tables that `from_arrow` accepts.

    Raises
    ------
    DataSetError
        If the text does not parse, is not a query, or uses an unknown name.
    """
    given = [(name, table if isinstance(table, DataSet) else from_arrow(table)) for name, table in tables.items()]
    try:
        return DataSet(engine().sql(query, [(name, table._native) for name, table in given]))
    except DataSetError as error:
        # The engine's message names its internal catalog, which does not help users.
        missing = re.fullmatch(r"table 'datafusion\.public\.(.*)' not found", str(error))
        if missing is None:
            raise
        name = missing[1]
        if "/" in name or Path(name).suffix:
            raise DataSetError(f"sql: there is no file {str(Path(name).absolute())!r}") from None
        there = f"there are {', '.join(tables)}" if tables else "there are none"
        raise DataSetError(
            f"sql: no table {name!r}, {there}; pass it under that name, or name a file in quotes"
        ) from None
