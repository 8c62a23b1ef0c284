"""Functions that build expressions from several others, or from none."""

from __future__ import annotations

from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeExpr
from tidemill.dataset._expr import Expr, IntoExpr, Order, as_expr, as_value, call

__all__ = [
    "When",
    "aggregate",
    "coalesce",
    "concat_str",
    "count",
    "cume_dist",
    "dense_rank",
    "first",
    "last",
    "max",
    "mean",
    "median",
    "min",
    "n_unique",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
    "scalar",
    "std",
    "sum",
    "var",
    "when",
]


class When:
    """An unfinished conditional expression: ``when(a).then(x).when(b).then(y).otherwise(z)``.

    It becomes an expression once it has a value: null where no condition holds, unless there is an ``otherwise``.
    """

    def __init__(self, branches: list[tuple[Expr, Expr]], condition: Expr) -> None:
        self._branches = branches
        self._condition = condition

    def then(self, value: object) -> Then:
        """Set the value where the condition holds; a string is a literal, not a column."""
        return Then([*self._branches, (self._condition, as_value(value))])


class Then(Expr):
    """A conditional expression with at least one value."""

    __slots__ = ("_branches",)

    def __init__(self, branches: list[tuple[Expr, Expr]]) -> None:
        self._branches = branches
        super().__init__(self._case(None))

    def _case(self, otherwise: NativeExpr | None) -> NativeExpr:
        return NativeExpr.case([(when._native, then._native) for when, then in self._branches], otherwise)

    def when(self, condition: Expr) -> When:
        """Add a condition, for rows where none of the earlier ones holds."""
        return When(self._branches, condition)

    def otherwise(self, value: object) -> Expr:
        """Set the value where no condition holds."""
        return Expr(self._case(as_value(value)._native))


def when(condition: Expr) -> When:
    """Begin a conditional expression: ``when(col("x") > 0).then("plus").otherwise("minus")``."""
    return When([], condition)


def count(*, where: Expr | None = None) -> Expr:
    """Count the rows (those for which `where` holds), as ``count``."""
    if where is None:
        return Expr(engine().count_rows())
    return Expr(engine().aggregate("count", [as_value(1)._native], False, where._native)).alias("count")


def sum(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the sum of a column, like ``col(column).sum()``."""
    return as_expr(column).sum(where=where)


def mean(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the mean of a column, like ``col(column).mean()``."""
    return as_expr(column).mean(where=where)


def min(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the minimum of a column, like ``col(column).min()``."""
    return as_expr(column).min(where=where)


def max(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the maximum of a column, like ``col(column).max()``."""
    return as_expr(column).max(where=where)


def median(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the median of a column, like ``col(column).median()``."""
    return as_expr(column).median(where=where)


def std(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the sample standard deviation of a column, like ``col(column).std()``."""
    return as_expr(column).std(where=where)


def var(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Return the sample variance of a column, like ``col(column).var()``."""
    return as_expr(column).var(where=where)


def n_unique(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Count the distinct values of a column, like ``col(column).n_unique()``."""
    return as_expr(column).n_unique(where=where)


def first(column: str | Expr, order_by: Order = (), *, where: Expr | None = None) -> Expr:
    """Return the first value of a column in the order of `order_by`, like ``col(column).first()``."""
    return as_expr(column).first(order_by, where=where)


def last(column: str | Expr, order_by: Order = (), *, where: Expr | None = None) -> Expr:
    """Return the last value of a column in the order of `order_by`, like ``col(column).last()``."""
    return as_expr(column).last(order_by, where=where)


def coalesce(*exprs: IntoExpr) -> Expr:
    """Return the first value that is not null; strings are columns."""
    return call("coalesce", *(as_expr(expr) for expr in exprs))


def concat_str(*exprs: IntoExpr, separator: str = "") -> Expr:
    """Concatenate strings; nulls are left out, strings are column names. To concatenate tables, use `concat`."""
    return call("concat_ws", as_value(separator), *(as_expr(expr) for expr in exprs)).alias(
        as_expr(exprs[0]).output_name if exprs else "literal"
    )


def row_number() -> Expr:
    """Return the row's number in its window, from 1; without ``over``, among all rows in arbitrary order."""
    return Expr(engine().window("row_number", []))


def rank() -> Expr:
    """Return the row's rank in the order of its window, from 1; equal rows share the rank of the first. Needs ``over``."""
    return Expr(engine().window("rank", []))


def dense_rank() -> Expr:
    """Return the row's rank, without gaps after equal rows. Needs ``over``."""
    return Expr(engine().window("dense_rank", []))


def percent_rank() -> Expr:
    """Return the row's rank from 0 to 1: the fraction of the other rows in its partition that come before it and its
    equals. Needs ``over``.
    """
    return Expr(engine().window("percent_rank", []))


def cume_dist() -> Expr:
    """Return the fraction of the partition's rows that come before the row or are equal to it, including itself. Needs
    ``over``.
    """
    return Expr(engine().window("cume_dist", []))


def ntile(parts: int) -> Expr:
    """Split each partition, in order, into `parts` buckets and return the row's bucket, from 1. If sizes are uneven,
    the first buckets have one row more. Needs ``over``.
    """
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise DataSetError(f"ntile needs at least one part, not {parts!r}")
    return Expr(engine().window("ntile", [as_value(parts)._native]))


def scalar(name: str, *args: object) -> Expr:
    """Call any scalar function of DataFusion by its SQL name; strings are values, not columns."""
    return call(name, *(as_value(arg) for arg in args))


def aggregate(name: str, *args: object, distinct: bool = False, where: Expr | None = None) -> Expr:
    """Call any aggregate function of DataFusion by its SQL name; strings are values, not columns."""
    native = [as_value(arg)._native for arg in args]
    return Expr(engine().aggregate(name, native, distinct, None if where is None else where._native))
