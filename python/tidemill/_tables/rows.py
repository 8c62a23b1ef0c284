"""Tables from user data: dicts as rows, tables of other libraries, schemas; and names of user functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tidemill._tables.errors import DataSetError
from tidemill._tables.values import from_values
from tidemill._tidemill import NativeTable

__all__ = [
    "ArrowStream",
    "Row",
    "Schema",
    "as_list",
    "check_row",
    "describe_error",
    "function_name",
    "parse_schema",
    "table_of_rows",
    "take_result",
    "take_table",
]

#: A row: values by column.
Row = dict[str, Any]
#: Types by column, or an object with ``__arrow_c_schema__``, such as a ``pyarrow.Schema``.
Schema = Mapping[str, str] | Any


class ArrowStream(Protocol):
    """Any table of pyarrow, Polars, pandas, DuckDB, ... with the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def parse_schema(schema: Schema, what: str = "schema") -> Any:
    """Return a schema as the engine takes it; `what` names the argument in errors."""
    if not isinstance(schema, Mapping):
        if not hasattr(schema, "__arrow_c_schema__"):
            raise DataSetError(f'{what}= must be types by column, {{"n": "int64"}}, or an Arrow schema, not {schema!r}')
        return schema
    for name, of in schema.items():
        if not isinstance(name, str) or not isinstance(of, str):
            raise DataSetError(f'{what}= must have strings for names and types, "n": "int64", not {name!r}: {of!r}')
    return list(schema.items())


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function for errors."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def describe_error(error: BaseException) -> str:
    """Return the message of an exception in one line, with the notes added on the way, such as the column."""
    if isinstance(error, SystemExit):
        return f"it called exit({'' if error.code is None else repr(error.code)})"
    return " ".join([str(error), *getattr(error, "__notes__", [])])


def table_of_rows(rows: list[Row], schema: Schema | None, found: NativeTable | None = None) -> NativeTable:
    """Return a table of rows, with the columns of `schema` if given, else those `found` in earlier rows; values that a
    row does not have are null.
    """
    if schema is None and found is None:
        columns = dict.fromkeys(name for row in rows for name in check_row(row))
        return from_values(
            lambda lists: NativeTable.from_lists(
                [(name, values, None) for name, values in zip(columns, lists, strict=True)]
            ),
            [[row.get(name) for row in rows] for name in columns],
        )
    given = found if schema is None else schema
    names = list(given) if isinstance(given, Mapping) else [name for name, _ in _fields(given)]
    known = set(names)
    for row in rows:
        has = set(check_row(row))
        if schema is not None and has != known:
            raise DataSetError(f"a row has the columns {list(row)} but {names} were declared")
        if not has <= known:
            raise DataSetError(
                f"a row has the columns {list(row)} but earlier rows had {names}; give schema={{...}}, as types by column"
            )
    types = list(given.items()) if isinstance(given, Mapping) else given
    lists = [[row.get(name) for row in rows] for name in names]
    return from_values(lambda values: NativeTable.from_lists_as(values, types), lists)


def check_row(row: Any) -> Mapping[str, Any]:
    """Return the argument if it is a row; otherwise raise."""
    if not isinstance(row, Mapping):
        raise DataSetError(f"a row must be a dict, not {type(row).__name__}")
    return row


def _fields(schema: Any) -> list[tuple[str, str]]:
    if hasattr(schema, "fields"):
        fields: list[tuple[str, str]] = schema.fields
        return fields
    return [(name, "") for name in schema.names]


def as_list(made: Any) -> Iterable[Any]:
    """Return the result of a function as a list: of one item, several, or none for None."""
    if made is None:
        return []
    return made if isinstance(made, list) else [made]


def take_table(table: ArrowStream) -> NativeTable:
    """Take the table that a call was given."""
    if not hasattr(table, "__arrow_c_stream__"):
        raise TypeError(
            f"{type(table).__name__} has no __arrow_c_stream__; tables of pyarrow, Polars, DuckDB and pandas (2.2 or newer) have"
        )
    return NativeTable.take(table)


def take_result(table: Any) -> NativeTable:
    """Take a table or a batch that a function returned."""
    if hasattr(table, "__arrow_c_array__") and not hasattr(table, "__arrow_c_stream__"):
        import pyarrow

        table = pyarrow.Table.from_batches([pyarrow.record_batch(table)])
    if not hasattr(table, "__arrow_c_stream__"):
        raise DataSetError(f"it returned {type(table).__name__}, which is not a table")
    return NativeTable.take(table)
