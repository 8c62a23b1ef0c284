"""Reshaping tables: concatenate, pivot and unpivot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from tidemill._tables.errors import DataSetError
from tidemill.dataset._expr import Expr, as_value, call, col, lit, names_of

if TYPE_CHECKING:
    from tidemill._tables.rows import ArrowStream
    from tidemill.dataset._dataset import DataSet

__all__ = ["concat", "filled", "pivoted", "plain_kind", "unpivoted"]

#: Aggregates for the cells of a pivoted table.
Made = Literal["first", "last", "sum", "mean", "min", "max", "median", "count"]

#: A pivoted table with more columns is most likely a mistake, and slow to plan.
_PIVOTED_MAX = 1000


def concat(tables: Iterable[DataSet | ArrowStream], *, how: Literal["vertical", "diagonal"] = "vertical") -> DataSet:
    """Concatenate tables vertically. To concatenate strings of several columns, use `concat_str`.

    Parameters
    ----------
    tables : iterable of DataSet
        At least one DataSet, or table that `from_arrow` accepts.
    how : {"vertical", "diagonal"}, default="vertical"
        ``vertical``: all tables have the same columns, in any order; ``diagonal``: the result has the columns of all
        tables, with nulls for tables that lack one.

    Raises
    ------
    DataSetError
        If the columns differ, or their types are incompatible.

    Examples
    --------
    >>> import tidemill as tm
    >>> a, b = tm.from_dict({"x": [1]}), tm.from_dict({"x": [2], "y": ["b"]})
    >>> tm.concat([a, b], how="diagonal").sort("x").to_dict()
    {'x': [1, 2], 'y': [None, 'b']}
    """
    from tidemill.dataset._dataset import DataSet
    from tidemill.dataset._read import from_arrow

    if isinstance(tables, (str, Expr)):
        raise TypeError("concat puts tables below each other; concat_str joins texts")
    given = list(tables)
    if any(isinstance(table, (str, Expr)) for table in given):
        raise TypeError("concat puts tables below each other; concat_str joins texts")
    if how not in ("vertical", "diagonal"):
        raise DataSetError(f'concat: how must be "vertical" or "diagonal", not {how!r}')
    if not given:
        raise DataSetError("concat needs at least one table")
    made = [table if isinstance(table, DataSet) else from_arrow(table) for table in given]
    if how == "diagonal":
        names = list(dict.fromkeys(name for table in made for name in table.columns))
        # A null has no type, and takes that of the other tables' values.
        made = [
            table.with_columns(*(lit(None).alias(name) for name in names if name not in table.columns))
            for table in made
        ]
    return made[0].union(*made[1:])


def pivoted(
    data: DataSet, on: str, index: str | Iterable[str], values: str, aggregate: Made, on_values: Iterable[Any] | None
) -> DataSet:
    """See `DataSet.pivot`."""
    keys = names_of([index], "pivot")
    if aggregate not in ("first", "last", "sum", "mean", "min", "max", "median", "count"):
        raise DataSetError(f"pivot: unknown aggregate {aggregate!r}")
    data.select(*dict.fromkeys((on, values, *keys)))  # raises for missing columns
    if on_values is None:
        found = data.select(on).distinct().limit(_PIVOTED_MAX + 1).sort(on).collect()[on]
        if len(found) > _PIVOTED_MAX:
            raise DataSetError(
                f"pivot: {on!r} has more than {_PIVOTED_MAX} values; name those that you want with on_values=[...]"
            )
    else:
        found = list(on_values)
    cells: dict[str, Expr] = {}
    for value in found:
        name = "null" if value is None else str(value)
        if name in cells or name in keys:
            raise DataSetError(f"pivot: two columns would be named {name!r}; rename the key, or give on_values=")
        cells[name] = getattr(col(values), aggregate)(where=col(on).eq_missing(value))
    if not cells:
        return data.select(*keys).distinct()
    return data.group_by(*keys).agg(**cells)


def unpivoted(
    data: DataSet,
    on: str | Iterable[str] | None,
    index: str | Iterable[str] | None,
    variable_name: str,
    value_name: str,
) -> DataSet:
    """See `DataSet.unpivot`."""
    keys = [] if index is None else names_of([index], "unpivot")
    wanted = [name for name in data.columns if name not in keys] if on is None else names_of([on], "unpivot")
    if not wanted:
        raise DataSetError("unpivot: there is no column to turn into rows")
    data.select(*dict.fromkeys((*keys, *wanted)))  # raises for missing columns
    for name in (variable_name, value_name):
        if name in keys:
            raise DataSetError(f"unpivot: column {name!r} already exists; choose another variable_name= or value_name=")
    kinds = data.schema
    first = wanted[0]
    for name in wanted[1:]:
        # An array would try to convert strings next to numbers to numbers.
        if _family(kinds[name]) != _family(kinds[first]):
            raise DataSetError(
                f"unpivot: column {first!r} is {kinds[first]} and {name!r} is {kinds[name]}; give those of one kind, or cast them first"
            )
    names = call("make_array", *(lit(name) for name in wanted)).alias(variable_name)
    values = call("make_array", *(col(name) for name in wanted)).alias(value_name)
    return data.select(*keys, names, values).explode(variable_name, value_name)


def plain_kind(kind: str) -> str:
    """Return the type of the values, also if they are dictionary-encoded."""
    found = re.fullmatch(r"Dictionary\(\w+, (.*)\)", kind)
    return found[1] if found else kind


def _family(kind: str) -> str:
    """Return the name of the family of types that one array can hold."""
    kind = plain_kind(kind)
    if kind.startswith(("Int", "UInt", "Float", "Decimal")):
        return "number"
    return "text" if kind in ("Utf8", "LargeUtf8", "Utf8View") else kind


#: For each Python type, the column types (by the beginning of their names) whose nulls its values can replace.
_FILLED: tuple[tuple[type | tuple[type, ...], tuple[str, ...]], ...] = (
    (bool, ("Boolean",)),
    ((int, float, Decimal), ("Int", "UInt", "Float", "Decimal")),
    (str, ("Utf8", "LargeUtf8")),
    (bytes, ("Binary", "LargeBinary", "FixedSizeBinary")),
    (datetime, ("Timestamp",)),
    (date, ("Date", "Timestamp")),
    (time, ("Time32", "Time64")),
    (timedelta, ("Duration",)),
)


def filled(data: DataSet, value: Any, subset: tuple[str | Iterable[str], ...]) -> DataSet:
    """See `DataSet.fill_null`."""
    kinds = data.schema
    if isinstance(value, Mapping):
        if subset:
            raise DataSetError("fill_null takes either values by column, or one value and columns")
        wanted = dict(value)
    else:
        names = names_of(subset, "fill_null") or [name for name, kind in kinds.items() if _fits(value, kind)]
        wanted = dict.fromkeys(names, value)
    if not wanted:
        return data
    data.select(*wanted)  # raises for missing columns
    return data.with_columns(*(_filled(name, kinds[name], one) for name, one in wanted.items()))


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, Expr):
        raise DataSetError('fill_null with an expression needs the columns that it is for: fill_null(expression, "a")')
    for of, names in _FILLED:
        if isinstance(value, of):
            return plain_kind(kind).startswith(names)
    raise TypeError(f"fill_null: {value!r} cannot be a value of a column")


def _filled(name: str, kind: str, value: Any) -> Expr:
    filler = as_value(value)
    # The column keeps its type: int32 filled with 0 remains int32.
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if (is_whole and kind.startswith(("Int", "UInt", "Float"))) or isinstance(value, (date, time, timedelta)):
        filler = filler.cast(kind)
    return call("coalesce", col(name), filler).alias(name)
