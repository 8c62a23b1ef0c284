"""Functions that make expressions out of several, or out of none."""

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
    """A choice being written down: ``when(a).then(x).when(b).then(y).otherwise(z)``.

    It is an expression of its own once it has a value: null where no condition holds and there is no ``otherwise``.
    """

    def __init__(self, branches: list[tuple[Expr, Expr]], condition: Expr) -> None:
        self._branches = branches
        self._condition = condition

    def then(self, value: object) -> Then:
        """The value where the condition holds; a string is itself, not a column."""
        return Then([*self._branches, (self._condition, as_value(value))])


class Then(Expr):
    """A choice with at least one value."""

    __slots__ = ("_branches",)

    def __init__(self, branches: list[tuple[Expr, Expr]]) -> None:
        self._branches = branches
        super().__init__(self._case(None))

    def _case(self, otherwise: NativeExpr | None) -> NativeExpr:
        return NativeExpr.case([(when._native, then._native) for when, then in self._branches], otherwise)

    def when(self, condition: Expr) -> When:
        """Another condition, for rows where none before holds."""
        return When(self._branches, condition)

    def otherwise(self, value: object) -> Expr:
        """The value where no condition holds."""
        return Expr(self._case(as_value(value)._native))


def when(condition: Expr) -> When:
    """Begin a choice: ``when(col("x") > 0).then("plus").otherwise("minus")``."""
    return When([], condition)


def count(*, where: Expr | None = None) -> Expr:
    """Count the rows (those for which `where` holds), as ``count``."""
    if where is None:
        return Expr(engine().count_rows())
    return Expr(engine().aggregate("count", [as_value(1)._native], False, where._native)).alias("count")


def sum(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The sum of a column's values, as ``col(column).sum()``."""
    return as_expr(column).sum(where=where)


def mean(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The mean of a column's values, as ``col(column).mean()``."""
    return as_expr(column).mean(where=where)


def min(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The smallest of a column's values, as ``col(column).min()``."""
    return as_expr(column).min(where=where)


def max(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The largest of a column's values, as ``col(column).max()``."""
    return as_expr(column).max(where=where)


def median(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The median of a column's values, as ``col(column).median()``."""
    return as_expr(column).median(where=where)


def std(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The sample standard deviation of a column's values, as ``col(column).std()``."""
    return as_expr(column).std(where=where)


def var(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """The sample variance of a column's values, as ``col(column).var()``."""
    return as_expr(column).var(where=where)


def n_unique(column: str | Expr, *, where: Expr | None = None) -> Expr:
    """Count the distinct values of a column, as ``col(column).n_unique()``."""
    return as_expr(column).n_unique(where=where)


def first(column: str | Expr, order_by: Order = (), *, where: Expr | None = None) -> Expr:
    """The first value of a column in the order of `order_by`, as ``col(column).first()``."""
    return as_expr(column).first(order_by, where=where)


def last(column: str | Expr, order_by: Order = (), *, where: Expr | None = None) -> Expr:
    """The last value of a column in the order of `order_by`, as ``col(column).last()``."""
    return as_expr(column).last(order_by, where=where)


def coalesce(*exprs: IntoExpr) -> Expr:
    """The first that is not null; strings are columns."""
    return call("coalesce", *(as_expr(expr) for expr in exprs))


def concat_str(*exprs: IntoExpr, separator: str = "") -> Expr:
    """The texts of all, one after the other; nulls are left out, strings are columns. Tables are put together by `concat`."""
    return call("concat_ws", as_value(separator), *(as_expr(expr) for expr in exprs)).alias(
        as_expr(exprs[0]).output_name if exprs else "literal"
    )


def row_number() -> Expr:
    """The row's number in its window, from 1; without ``over`` of all rows, in whatever order they come."""
    return Expr(engine().window("row_number", []))


def rank() -> Expr:
    """The row's rank in its window's order, from 1; equals share the first one's. Needs ``over``."""
    return Expr(engine().window("rank", []))


def dense_rank() -> Expr:
    """The row's rank, without gaps after equals. Needs ``over``."""
    return Expr(engine().window("dense_rank", []))


def percent_rank() -> Expr:
    """The row's rank within 0 and 1: of the other rows of its partition, the share that comes before it and its equals. Needs ``over``."""
    return Expr(engine().window("percent_rank", []))


def cume_dist() -> Expr:
    """Of the rows of its partition, the share that comes before the row, or with it as its equals and itself do. Needs ``over``."""
    return Expr(engine().window("cume_dist", []))


def ntile(parts: int) -> Expr:
    """Which of `parts` the row is in, from 1, when its partition is cut into so many in their order, the first ones a row longer where they do
    not come out even. Needs ``over``.
    """
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise DataSetError(f"ntile cuts into at least one part, not {parts!r}")
    return Expr(engine().window("ntile", [as_value(parts)._native]))


def scalar(name: str, *args: object) -> Expr:
    """Call any scalar function of DataFusion by its SQL name; strings are values, not columns."""
    return call(name, *(as_value(arg) for arg in args))


def aggregate(name: str, *args: object, distinct: bool = False, where: Expr | None = None) -> Expr:
    """Call any aggregate function of DataFusion by its SQL name; strings are values, not columns."""
    native = [as_value(arg)._native for arg in args]
    return Expr(engine().aggregate(name, native, distinct, None if where is None else where._native))
