"""DataSets of files, of tables in memory, and of SQL queries."""

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

#: What becomes of rows that cannot be read.
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
    """The rows of files that `read` reads: the same on all hosts, or those of each."""
    given = optional_schema(schema)
    if each_host:
        data = DataSet(own_files(paths, read, schema=given, one_header=one_header))
    else:
        data = DataSet(read(paths, given))
    return data if partition_schema is None else _with_partitions(data, partition_schema)


def _with_partitions(data: DataSet, schema: Mapping[str, str]) -> DataSet:
    """Columns that folders name, which are texts, as other types."""
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
    """The folder for bad rows, which must not be among the files that are read: the next read would take them for data.

    `file` is what one of its files is called, and `folders` as for `is_read`.
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
    r"""Read CSV files; compressed ones (``.gz``, ``.bz2``, ``.xz``, ``.zst``) too.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        Files, folders (with everything below that is not hidden) and globs, local or of an object store: ``s3://bucket/...``,
        ``gs://``, ``az://``, ``abfss://``, ``http(s)://`` (one file), ``file:///``. The same on every worker.
    schema : mapping of str to str, or Arrow schema, optional
        Types by column; by default they are found out from the first rows.
    schema_overrides : mapping of str to str, or Arrow schema, optional
        Types of some columns; those of the others are found in the files.
    header : bool, default=True
        Whether the first line names the columns; without, they are ``column_1``, ``column_2``, ...
    delimiter, quote : str
        One ASCII character each.
    comment : str, optional
        Lines that begin with this character are left out.
    null : str or sequence of str, optional
        Texts that stand for null, such as ``["N/A", "-"]``. A value has to equal one of them exactly. Empty values are null too.
    columns : sequence of str, optional
        Read only these columns, in this order; by default all.
    newlines_in_values : bool, default=False
        Whether quoted values may contain line ends; files are then not read in pieces.
    encoding : str, default="utf-8"
        Of the files: ``"utf-16"``, ``"latin-1"``, ``"windows-1252"``, ``"shift_jis"``, ... Files in another encoding than UTF-8 are
        read whole, each by one thread. Bytes that are not text in the encoding are an error.
    infer : {"relaxed", "strict"}, default="relaxed"
        How types are found. ``"relaxed"``: whole numbers with zeros before them or a plus sign (``007``) are codes, so their column is
        text. ``"strict"``: so is every number that would print differently (``1.10``, ``1E5``, ``TRUE``), and one that comes after
        the first `infer_rows` rows is an error.
    infer_rows : int, default=1000
        Rows of a file that its types are found out from. A later value that its type would cut (a time of day in a column of
        dates, ``1.7`` among whole numbers) is an error.
    partition_schema : mapping of str to str, optional
        Types of columns that folders named ``column=value`` give; by default they are text.
    file_column : str, optional
        The name of a column to add with the path or URL of each row's file.
    on_error : {"raise", "skip", "quarantine"}, default="raise"
        What becomes of a row with more or fewer values than columns, a value that is not of its column's type, a quote that is
        not closed, or bytes that are not UTF-8. ``"raise"``: the action fails, and names file and line. ``"skip"``: the row
        is left out; a `BadRowsWarning` at the end of the action tells how many were, and so does `last_report`.
        ``"quarantine"``: the same, and the rows are written into files in `quarantine`.
    quarantine : str or path-like, optional
        A local folder, that all workers share, for files of JSON lines: ``file``, ``line``, ``reason`` and ``text`` of each
        bad row. None within those that are read.
    each_host : bool, default=False
        For files that hosts have of their own, such as logs: the DataSet has the rows of the files of all hosts, each file once,
        read by a worker of a host that has it. A host may have none. Files of one path are one file if they have the same size
        and time of the last change. In a job on several hosts the call is collective; on one host it changes nothing.
    storage_options : mapping of str to str, optional
        What an object store has to be told, such as ``{"aws_region": "eu-central-1"}``; it goes before what the environment
        says (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...).

    Raises
    ------
    DataSetError
        If there is no such file, the store does not give it, or it is no CSV.
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
    """A regular expression of the texts that stand for null.

    The engine searches for it where it infers types, hence the anchors. Empty values stay null beside the texts.

    Raises
    ------
    DataSetError
        `null` is neither a text nor several.
    """
    if null is None:
        return None
    texts = [null] if isinstance(null, str) else list(null)
    if not all(isinstance(text, str) for text in texts):
        raise DataSetError(f'null= must be one or several strings, such as ["N/A", "-"], not {null!r}')
    # Escapes that Python and Rust share; Rust refuses to escape a space.
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
    """Read files with a JSON object in each line; otherwise like `read_csv`.

    Without `schema` there are the columns of the first `infer_rows` objects: those that only later ones have are left out.
    A line that is no whole object is a bad row, and so is one with a value that its column's type would cut: a number that has a fraction
    in a column of whole numbers, a time of day in one of dates.
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
    """Read Parquet files; only the columns and row groups that a query needs are read.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        As for `read_csv`. The DataSet has the columns of all files, null in those that lack one, of types that have the values of
        all: of `int32` and `int64` it is `int64`.
    schema : mapping of str to str, or Arrow schema, optional
        Columns and types to have instead. A value that has no place in its type is an error, when it is read.
    partition_schema : mapping of str to str, optional
        Types of columns that folders named ``column=value`` give; by default they are text.
    file_column : str, optional
        The name of a column to add with the path or URL of each row's file.
    each_host : bool, default=False
        As for `read_csv`.
    storage_options : mapping of str to str, optional
        As for `read_csv`.

    Raises
    ------
    DataSetError
        If there is no such file, it is no Parquet, or the types of a column in two files have none in common.
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
    """Read Arrow IPC files (also called Feather 2) or streams. Arguments, and files with other columns, as for `read_parquet`."""
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
    r"""Read text as one column ``line``, without the line ends (``\n`` or ``\r\n``); compressed files too.

    Otherwise like `read_csv`; a line that is not in its encoding is a bad row.
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
    """Read arrays of NumPy's ``.npy`` format: of shape (n,) as one column, of shape (n, d) as d columns, of records as their fields.

    Rows are read when a query needs them, in shares: a worker reads its part of each array. Arrays in C's order are read row by row, and the
    columns copied that the query needs; of those in Fortran's no others are read, which from an object store is a request for each
    column and some MiB. To count rows nothing is read.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        As for `read_csv`: also a folder that `DataSet.write_npy` has written. Several arrays, one below the other, are of the same
        type and number of columns.
    columns : sequence of str, optional
        Their names; by default ``value``, or ``column_1``, ``column_2``, ..., or those of the fields.
    each_host : bool, default=False
        As for `read_csv`.
    storage_options : mapping of str to str, optional
        As for `read_csv`.

    Raises
    ------
    DataSetError
        If a file is no such array, or not all of one, or is compressed; or the type of its values is none of bool, integers and floats of
        up to 64 bits, ``datetime64`` and ``timedelta64`` in ``s``, ``ms``, ``us`` or ``ns``. Their ``NaT`` is null.
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
    """Read files of records of a fixed length, without headers.

    Parameters
    ----------
    paths : str, path-like, or iterable of them
        As for `read_csv`.
    columns : mapping of str to int
        The bytes of each column, in their order in a record.
    each_host : bool, default=False
        As for `read_csv`.
    storage_options : mapping of str to str, optional
        As for `read_csv`.

    Raises
    ------
    DataSetError
        If there is no such file, one does not hold whole records, or its name says that it is compressed (``.gz``, ``.bz2``, ``.xz``,
        ``.zst``).
    """
    return _read(
        _paths(paths),
        each_host,
        lambda files, _: engine().read_records(files, list(columns.items()), as_options(storage_options)),
    )


def from_arrow(table: ArrowStream) -> DataSet:
    """Take a table of any library with the Arrow PyCapsule interface, without copying.

    Run-end encoded columns are written out, and keys of dictionaries that have less than 32 bits get 32.

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
    return DataSet(engine().table(take_table(table)))


def from_local(table: ArrowStream) -> DataSet:
    """Take this worker's part of a table; the DataSet has the rows of all workers. Each part stays where it is.

    Parameters
    ----------
    table : pyarrow.Table, polars.DataFrame, pandas.DataFrame, `Table`, ...
        As for `from_arrow`; the same columns on every worker, else an action is an error that says which differ.
    """
    from tidemill._job import init

    job = init()
    native = take_table(table)
    made = engine().table(native) if job.size == 1 else engine().part(native, job.rank, job.size)
    return DataSet(made)


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


def from_pylist(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, str] | None = None) -> DataSet:
    """Make a table of dicts of Python values, one for each row; for small ones. `Table.to_pylist` leads back.

    Parameters
    ----------
    rows : iterable of mapping
        A row need not have all columns: what it has not is null. Columns come in the order in which they are first seen.
    schema : mapping of str to str, optional
        Types of some or all columns; by default that of the first value that is not None. Columns that no row has are made, too.

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
    """Run a SQL query over DataSets, by the names given here, and over files, as ``'path/of.parquet'``.

    >>> import tidemill as tm
    >>> trades = tm.from_dict({"symbol": ["A", "B", "A"], "price": [1.0, 2.0, 4.0]})
    >>> tm.sql("select symbol, max(price) as top from trades group by symbol order by symbol", trades=trades).to_pylist()
    [{'symbol': 'A', 'top': 4.0}, {'symbol': 'B', 'top': 2.0}]

    Parameters
    ----------
    query : str
        In DataFusion's SQL; names are case-sensitive. In its order nulls are larger than everything else: ``desc`` has them first,
        unless it says ``nulls last``.
    **tables
        DataSets, or tables that `from_arrow` takes.

    Raises
    ------
    DataSetError
        If it does not parse, is not a query, or names what is not there.
    """
    given = [(name, table if isinstance(table, DataSet) else from_arrow(table)) for name, table in tables.items()]
    try:
        return DataSet(engine().sql(query, [(name, table._native) for name, table in given]))
    except DataSetError as error:
        # The engine says where it has looked, which is nothing to whoever asks.
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
