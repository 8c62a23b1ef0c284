"""`DataSet.describe`: statistics of each column, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable
from tidemill.dataset._expr import Expr, col, lit
from tidemill.dataset._functions import count
from tidemill.dataset._shape import plain_kind

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet

__all__ = ["described"]

_NUMBERS = ("Int", "UInt", "Float", "Decimal")
#: Types whose minimum and maximum can be shown as text.
_IN_ORDER = ("Utf8", "LargeUtf8", "Date", "Time", "Duration")
_STATISTICS = ("count", "null_count", "mean", "std", "min", "25%", "50%", "75%", "max")
#: Exact quantiles need all values in memory, so they are estimated for more rows than this.
_EXACT_ROWS_MAX = 10_000_000


def described(data: DataSet, root: int | None) -> Table:
    """See `DataSet.describe`."""
    kinds = {name: plain_kind(kind) for name, kind in data.schema.items()}
    if not kinds:
        raise DataSetError("describe needs a column; there is none")
    counts = data.select(
        rows=count(), **{f"{at} count": col(name).count() for at, name in enumerate(kinds)}
    ).to_pylist()[0]
    is_exact = counts["rows"] <= _EXACT_ROWS_MAX
    asked = {
        f"{at} {what}": made
        for at, (name, kind) in enumerate(kinds.items())
        for what, made in _asked(name, kind, is_exact)
    }
    rows = data.select(rows=count(), **asked).collect(root=root).to_pylist()
    # One row, or none on workers other than the root.
    wanted = _STATISTICS if rows else ()
    columns: list[tuple[str, list[Any], str | None]] = [("statistic", list(wanted), "str")]
    for at, (name, kind) in enumerate(kinds.items()):
        if name == "statistic":
            raise DataSetError('describe adds a column "statistic"; rename yours first')
        of_all = {"count": counts[f"{at} count"], "null_count": counts["rows"] - counts[f"{at} count"]}
        found = [of_all.get(what, rows[0].get(f"{at} {what}")) for what in wanted]
        if kind.startswith(_NUMBERS) or kind == "Boolean":
            columns.append((name, [None if value is None else float(value) for value in found], "float64"))
        else:
            columns.append((name, [None if value is None else str(value) for value in found], "str"))
    return Table(NativeTable.from_lists(columns))


def _asked(name: str, kind: str, is_exact: bool) -> list[tuple[str, Expr]]:
    """Return the statistics of a column of this type, by name."""
    column = col(name)
    if kind.startswith(_NUMBERS) or kind == "Boolean":
        number = column.cast("int64") if kind == "Boolean" else column
        of_floats = number.cast("float64")

        def quantile(q: float) -> Expr:
            return of_floats.quantile(q) if is_exact else of_floats._aggregate("approx_percentile_cont", lit(q))

        return [
            ("mean", number.mean()),
            ("std", number.std()),
            ("min", number.min()),
            ("25%", quantile(0.25)),
            ("50%", quantile(0.5)),
            ("75%", quantile(0.75)),
            ("max", number.max()),
        ]
    if kind.startswith(_IN_ORDER):
        asked = [("min", column.min().cast("str")), ("max", column.max().cast("str"))]
        if kind.startswith(("Date", "Timestamp")):
            # Dates cannot represent half days.
            micros = column.cast("datetime[us]").cast("int64")
            middle = micros.mean().cast("int64").cast("datetime[us]")
            asked.append(("mean", (middle if kind.startswith("Timestamp") else middle.cast("date")).cast("str")))
        return asked
    return []
