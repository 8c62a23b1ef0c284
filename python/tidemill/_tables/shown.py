"""Display of rows: the `repr` of tables and DataSets, and their HTML in notebooks."""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING, Any

from tidemill._job import init
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeTable

if TYPE_CHECKING:
    from tidemill._tidemill import NativeDataSet

__all__ = ["dataset_html", "dataset_text", "table_html", "table_text"]

#: Rows of a Table that are shown; the others are only counted.
_TABLE_ROWS = 20
#: Rows of a DataSet that are shown.
_DATASET_ROWS = 10
#: How long a display may take to run a query, in seconds.
_PATIENCE_S = 2.0
#: Maximum characters of a value in HTML.
_CELL_MAX = 80


class _TooLong(Exception):
    """A query takes longer than a display may take."""


def table_text(table: NativeTable) -> str:
    """Return the first rows as text, with types."""
    shown = table.slice(0, _TABLE_ROWS).format(types=True)
    rest = table.num_rows - _TABLE_ROWS
    return f"{shown}\n... {rest} more rows" if rest > 0 else shown


def table_html(table: NativeTable) -> str:
    """Return the first rows as HTML, with types."""
    rest = table.num_rows - _TABLE_ROWS
    return _html(table.slice(0, _TABLE_ROWS), f"... {rest} more rows" if rest > 0 else None)


def dataset_text(data: NativeDataSet) -> str:
    """Return the schema, and the first rows if they are available here and now."""
    found = _first_rows(data)
    if isinstance(found, str):
        return f"<DataSet {', '.join(f'{name}: {kind}' for name, kind in data.fields)}; {found}>"
    return f"{found.slice(0, _DATASET_ROWS).format(types=True)}{_more(found)}"


def dataset_html(data: NativeDataSet) -> str:
    """Return the same as HTML."""
    found = _first_rows(data)
    if isinstance(found, str):
        return _html(data.empty(), f"DataSet; {found}")
    return _html(found.slice(0, _DATASET_ROWS), _more(found).strip() or None)


def _more(found: NativeTable) -> str:
    return "\n... more rows; count() says how many" if found.num_rows > _DATASET_ROWS else ""


def _first_rows(data: NativeDataSet) -> NativeTable | str:
    """Return one row more than is shown, or why there are none.

    An object may be displayed by one worker, a debugger or a traceback, at any time: displaying must not run anything
    collective, slow or with side effects, and must not fail.
    """
    if data.is_stream():
        return "a stream: write_stream(print) shows its rows"
    if init().size > 1:
        return "show() prints its first rows, on all workers together"
    if data.is_lenient:
        return "show() prints its first rows, and counts those that cannot be read"
    end = time.monotonic() + _PATIENCE_S

    def watch(_rows: int, _of: int | None) -> None:
        if time.monotonic() > end:
            raise _TooLong

    try:
        return data.limit(0, _DATASET_ROWS + 1).collect(engine(), watch)
    except _TooLong:
        return f"its rows take more than {_PATIENCE_S:.0f} s to make: show() prints the first"
    except DataSetError as error:
        return f"its rows cannot be made: {error}"


def _html(table: NativeTable, note: str | None) -> str:
    fields = table.fields
    heads = "".join(f"<th>{html.escape(name)}</th>" for name, _ in fields)
    kinds = "".join(f"<td><small>{html.escape(kind)}</small></td>" for _, kind in fields)
    columns = [table.column(name) for name, _ in fields]
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in zip(*columns, strict=True))
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<div><table><thead><tr>{heads}</tr><tr>{kinds}</tr></thead><tbody>{rows}</tbody></table>{below}</div>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td><i>null</i></td>"
    text = str(value)
    text = f"{text[: _CELL_MAX - 3]}..." if len(text) > _CELL_MAX else text
    return f"<td>{html.escape(text)}</td>"
