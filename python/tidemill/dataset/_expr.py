"""Expressions: computations on the columns of a row, a group, or a window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Union

from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeExpr

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet
    from tidemill.dataset._namespaces import DateTimes, Lists, Strings

__all__ = ["Expr", "GroupKey", "IntoExpr", "as_expr", "call", "col", "columns", "flat", "lit", "names_of", "sort_keys"]

#: A column name where a column is expected, otherwise a literal.
IntoExpr = Union["Expr", str, Any]
#: The type `str`, for use in `Expr`, where `str` is a property.
Text = str


class Expr:
    """An expression. Create it with `col`, `lit`, `when` and the methods here; it has no data until a DataSet evaluates
    it.

    Operators work as in Python: ``/`` is true division, ``//`` and ``%`` round down. Comparisons give expressions, and
    ``&``, ``|``, ``^``, ``~`` combine them: ``(col("a") > 1) & (col("b") == "x")``. A null on either side gives null.
    ``col("s") + "text"`` and ``col("s") + col("t")`` concatenate strings. An expression has the name of its
    leftmost column unless you rename it with `alias`.
    """

    __slots__ = ("_native",)
    # Comparisons make expressions, so they cannot be used by hash tables.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, native: NativeExpr) -> None:
        native.check()
        self._native = native

    def __repr__(self) -> Text:
        return f"<Expr {self._native}>"

    def __reduce__(self) -> NoReturn:
        raise DataSetError(
            "an expression belongs to the process that made it, and cannot be sent to another: make it inside the function that runs there"
        )

    def __bool__(self) -> NoReturn:
        raise TypeError("an expression is neither true nor false; use &, | and ~ instead of and, or and not")

    def _binary(self, op: str, right: object) -> Expr:
        return Expr(self._native.binary(op, as_value(right)._native))

    def _reflected(self, op: str, left: object) -> Expr:
        return Expr(as_value(left)._native.binary(op, self._native))

    def __add__(self, other: object) -> Expr:
        # Whether two columns hold strings is known only with their table, so it is decided then.
        return self._binary("||" if isinstance(other, str) else "+", other)

    def __radd__(self, other: object) -> Expr:
        return self._reflected("||" if isinstance(other, str) else "+", other)

    def __sub__(self, other: object) -> Expr:
        return self._binary("-", other)

    def __rsub__(self, other: object) -> Expr:
        return self._reflected("-", other)

    def __mul__(self, other: object) -> Expr:
        return self._binary("*", other)

    def __rmul__(self, other: object) -> Expr:
        return self._reflected("*", other)

    def __truediv__(self, other: object) -> Expr:
        return self._binary("/", other)

    def __rtruediv__(self, other: object) -> Expr:
        return self._reflected("/", other)

    def __floordiv__(self, other: object) -> Expr:
        return self._binary("//", other)

    def __rfloordiv__(self, other: object) -> Expr:
        return self._reflected("//", other)

    def __mod__(self, other: object) -> Expr:
        return self._binary("%", other)

    def __rmod__(self, other: object) -> Expr:
        return self._reflected("%", other)

    def __pow__(self, other: object) -> Expr:
        return call("power", self, as_value(other))

    def __rpow__(self, other: object) -> Expr:
        return call("power", as_value(other), self)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary("==", other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return self._binary("!=", other)

    def __lt__(self, other: object) -> Expr:
        return self._binary("<", other)

    def __le__(self, other: object) -> Expr:
        return self._binary("<=", other)

    def __gt__(self, other: object) -> Expr:
        return self._binary(">", other)

    def __ge__(self, other: object) -> Expr:
        return self._binary(">=", other)

    def __and__(self, other: object) -> Expr:
        return self._binary("&", other)

    def __rand__(self, other: object) -> Expr:
        return self._reflected("&", other)

    def __or__(self, other: object) -> Expr:
        return self._binary("|", other)

    def __ror__(self, other: object) -> Expr:
        return self._reflected("|", other)

    def __xor__(self, other: object) -> Expr:
        right = as_value(other)
        return (self | right) & ~(self & right)

    def __rxor__(self, other: object) -> Expr:
        return as_value(other) ^ self

    def __invert__(self) -> Expr:
        return Expr(self._native.invert())

    def __neg__(self) -> Expr:
        return Expr(self._native.negative())

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        return self.abs()

    def __round__(self, decimals: int = 0) -> Expr:
        return self.round(decimals)

    # Names and types.

    def alias(self, name: Text) -> Expr:
        """Rename the result to `name`."""
        return Expr(self._native.alias(name))

    @property
    def output_name(self) -> Text:
        """Return the name of the result."""
        return self._native.output_name

    def cast(self, dtype: Text, *, strict: bool = True) -> Expr:
        """Convert the values to another type.

        Parameters
        ----------
        dtype : str
            Such as ``"int64"``, ``"float32"``, ``"str"``, ``"date"``, ``"datetime[ns]"``, ``"decimal(12, 2)"``.
        strict : bool, default=True
            If True, a value that does not fit is an error; otherwise it becomes null.
        """
        return Expr(self._native.cast(dtype, strict))

    # Nulls and choices.

    def is_null(self) -> Expr:
        """Test whether the value is null."""
        return Expr(self._native.is_null())

    def is_not_null(self) -> Expr:
        """Test whether the value is not null."""
        return ~self.is_null()

    def fill_null(self, value: object) -> Expr:
        """Replace nulls with `value`."""
        return call("coalesce", self, as_value(value))

    def eq_missing(self, other: object) -> Expr:
        """Test whether both are equal or both null; the result is never null."""
        return self._binary("is_not_distinct", other)

    def is_in(self, values: Iterable[object]) -> Expr:
        """Test whether the value is one of `values`."""
        return Expr(self._native.is_in([as_value(value)._native for value in values]))

    def between(self, low: object, high: object) -> Expr:
        """Test whether ``low <= value <= high``."""
        return (self >= low) & (self <= high)

    # Numbers.

    def abs(self) -> Expr:
        """Return the absolute value."""
        return call("abs", self)

    def round(self, decimals: int = 0) -> Expr:
        """Round to `decimals` places, halves away from zero."""
        return call("round", self, lit(decimals))

    def floor(self) -> Expr:
        """Round down to an integer."""
        return call("floor", self)

    def ceil(self) -> Expr:
        """Round up to an integer."""
        return call("ceil", self)

    def sqrt(self) -> Expr:
        """Return the square root."""
        return call("sqrt", self)

    def exp(self) -> Expr:
        """Return *e* to the power of the value."""
        return call("exp", self)

    def log(self, base: float | None = None) -> Expr:
        """Return the logarithm, natural unless `base` is given."""
        return call("ln", self) if base is None else call("log", lit(float(base)), self)

    def is_nan(self) -> Expr:
        """Test whether the value is NaN."""
        return call("isnan", self)

    # Aggregates: many values to one, over a group, a window, or a whole table. Nulls do not count.

    def _aggregate(self, name: Text, *more: Expr, where: Expr | None = None, distinct: bool = False) -> Expr:
        args = [self._native, *(expr._native for expr in more)]
        return Expr(engine().aggregate(name, args, distinct, None if where is None else where._native))

    def sum(self, *, where: Expr | None = None) -> Expr:
        """Return the sum of the values (for which `where` holds); overflow of the type is an error."""
        return self._aggregate("sum", where=where)

    def mean(self, *, where: Expr | None = None) -> Expr:
        """Return the mean."""
        return self._aggregate("avg", where=where)

    def min(self, *, where: Expr | None = None) -> Expr:
        """Return the minimum."""
        return self._aggregate("min", where=where)

    def max(self, *, where: Expr | None = None) -> Expr:
        """Return the maximum."""
        return self._aggregate("max", where=where)

    def count(self, *, where: Expr | None = None) -> Expr:
        """Count the values that are not null."""
        return self._aggregate("count", where=where)

    def n_unique(self, *, where: Expr | None = None) -> Expr:
        """Count the distinct values."""
        return self._aggregate("count", where=where, distinct=True)

    def std(self, *, where: Expr | None = None) -> Expr:
        """Return the sample standard deviation (``ddof=1``)."""
        return self._aggregate("stddev", where=where)

    def var(self, *, where: Expr | None = None) -> Expr:
        """Return the sample variance (``ddof=1``)."""
        return self._aggregate("var", where=where)

    def median(self, *, where: Expr | None = None) -> Expr:
        """Return the median; for an even number of values, the mean of the middle two."""
        return self._aggregate("median", where=where)

    def quantile(self, q: float, *, where: Expr | None = None) -> Expr:
        """Return the `q`-quantile, ``0 <= q <= 1``, interpolated linearly to within a millionth of the distance between
        two values.
        """
        return self._aggregate("percentile_cont", lit(float(q)), where=where)

    def any(self, *, where: Expr | None = None) -> Expr:
        """Test whether any value is true."""
        return self._aggregate("bool_or", where=where)

    def all(self, *, where: Expr | None = None) -> Expr:
        """Test whether all values are true."""
        return self._aggregate("bool_and", where=where)

    def first(self, order_by: Order = (), *, where: Expr | None = None) -> Expr:
        """Return the first value in the order of `order_by`; without it, any value, or with `over` the first of the
        window.
        """
        return self._ordered("first_value", order_by, where)

    def last(self, order_by: Order = (), *, where: Expr | None = None) -> Expr:
        """Return the last value in the order of `order_by`; without it, any value, or with `over` the last of the
        window.
        """
        return self._ordered("last_value", order_by, where)

    def to_list(self, order_by: Order = (), *, where: Expr | None = None) -> Expr:
        """Collect all values, including nulls, into one list."""
        return self._ordered("array_agg", order_by, where)

    def _ordered(self, name: Text, order_by: Order, where: Expr | None) -> Expr:
        filters = None if where is None else where._native
        return Expr(engine().aggregate(name, [self._native], False, filters, sort_keys(order_by)))

    # Windows.

    def over(
        self,
        partition_by: Order = (),
        *,
        order_by: Order = (),
        descending: bool | Iterable[bool] = False,
        nulls_last: bool | Iterable[bool] = True,
        rows: tuple[int | None, int | None] | None = None,
    ) -> Expr:
        """Evaluate the aggregates in this expression for each row, over the rows of its window.

        Parameters
        ----------
        partition_by : str, Expr or list of them
            The window contains the rows with the same values of these.
        order_by : str, Expr or list of them
            With an order, the window ends with the current row (and rows that are equal to it): a running total.
        descending : bool or iterable of bool, default=False
            Direction of `order_by`, or of each of its columns.
        nulls_last : bool or iterable of bool, default=True
            Whether nulls come after all other values, in both directions; for all columns, or for each.
        rows : (int or None, int or None), optional
            First and last row of the window relative to the current one: ``(-2, 0)`` means three rows, ``(None, None)``
            all.
        """
        partition = [as_expr(key)._native for key in listed(partition_by)]
        return Expr(self._native.over(partition, sort_keys(order_by, descending, nulls_last), rows))

    def shift(self, rows: int = 1) -> Expr:
        """Return the value this many rows earlier (negative: later) in the window. Use it with `over` and an order.

        Without `over`, the window is all rows in arbitrary order, which may differ from run to run.
        """
        name = "lag" if rows >= 0 else "lead"
        return Expr(engine().window(name, [self._native, lit(abs(rows))._native]))

    def nth_value(self, n: int, *, where: Expr | None = None) -> Expr:
        """Return the `n`-th value of the window (of the rows for which `where` holds), counted from 1, or from the end
        with -1 as the last; null if there are fewer. Use it with `over` and an order: unless you give `rows`, an
        ordered window ends with the current row.

        `first` and `last` accept windows, too.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n == 0:
            raise DataSetError(f"nth_value: rows are counted from 1, or -1 from the end, not {n!r}")
        return Expr(
            engine().window("nth_value", [self._native, lit(n)._native], None if where is None else where._native)
        )

    # Kinds of values.

    @property
    def str(self) -> Strings:
        """Return the namespace of string functions."""
        from tidemill.dataset._namespaces import Strings

        return Strings(self)

    @property
    def dt(self) -> DateTimes:
        """Return the namespace of date and time functions."""
        from tidemill.dataset._namespaces import DateTimes

        return DateTimes(self)

    @property
    def list(self) -> Lists:
        """Return the namespace of list functions."""
        from tidemill.dataset._namespaces import Lists

        return Lists(self)

    def field(self, name: Text) -> Expr:
        """Return a field of a struct."""
        return call("get_field", self, lit(name)).alias(name)


class GroupKey(Expr):
    """A key of `DataSet.group_by` that controls how groups are formed: the windows of `tidemill.stream`."""

    __slots__ = ()

    def aggregated(self, data: DataSet, keys: list[Expr], aggregates: list[NativeExpr]) -> DataSet | None:
        """Return the groups of `data` by `keys`, which include this one, with their aggregates; None to group by the
        keys' values.

        Raises
        ------
        DataSetError
            If this key cannot be combined with the others.
        """
        raise NotImplementedError


#: One column or expression, or several of them.
Order = str | Expr | Iterable[str | Expr]


def col(name: str) -> Expr:
    """Return the column called `name`, exactly as written."""
    return Expr(NativeExpr.column(name))


def lit(value: object) -> Expr:
    """Return a literal: None, bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, or a NumPy
    scalar.
    """
    return Expr(NativeExpr.literal(value))


def as_expr(value: IntoExpr) -> Expr:
    """Return an argument as an expression where columns are expected: a string is a column name."""
    if isinstance(value, Expr):
        return value
    return col(value) if isinstance(value, str) else lit(value)


def as_value(value: object) -> Expr:
    """Return an argument as an expression where values are expected: a string is a literal."""
    return value if isinstance(value, Expr) else lit(value)


def call(name: str, *args: Expr) -> Expr:
    """Call a scalar function of DataFusion."""
    return Expr(engine().call(name, [arg._native for arg in args]))


def listed(given: Order) -> list[str | Expr]:
    """Return one item or several as a list."""
    return [given] if isinstance(given, (str, Expr)) else list(given)


def flat(exprs: Iterable[IntoExpr | Iterable[IntoExpr]]) -> list[Expr]:
    """Return columns, and lists of columns, as a flat list of expressions."""
    found: list[Expr] = []
    for expr in exprs:
        if isinstance(expr, Iterable) and not isinstance(expr, (str, bytes, Expr)):
            found += map(as_expr, expr)
        else:
            found.append(as_expr(expr))
    return found


def columns(exprs: Iterable[IntoExpr | Iterable[IntoExpr]], named: dict[str, Any]) -> list[NativeExpr]:
    """Return the arguments of `select` and similar methods (columns, lists of columns, and ``name=expression``) as
    expressions.
    """
    all_named = (as_expr(expr).alias(name) for name, expr in named.items())
    return [expr._native for expr in (*flat(exprs), *all_named)]


def names_of(given: Iterable[str | Iterable[str]], call: str) -> list[str]:
    """Return column names, including those in lists."""
    names: list[str] = []
    for one in given:
        names += [one] if isinstance(one, str) or not isinstance(one, Iterable) else one
    for name in names:
        if not isinstance(name, str):
            what = "an expression, which with_columns makes a column of" if isinstance(name, Expr) else repr(name)
            raise TypeError(f"{call} takes names of columns, not {what}")
    return names


def sort_keys(
    by: Order, descending: bool | Iterable[bool] = False, nulls_last: bool | Iterable[bool] = True
) -> list[tuple[NativeExpr, bool, bool]]:
    """Return sort keys with their directions, and whether nulls come last; `ValueError` if their numbers differ."""
    keys = [as_expr(key)._native for key in listed(by)]

    def of_each(given: bool | Iterable[bool], name: str) -> list[bool]:
        values = [given] * len(keys) if isinstance(given, bool) else list(given)
        if len(values) != len(keys):
            raise ValueError(f"{name} has {len(values)} values for {len(keys)} columns")
        return values

    return list(zip(keys, of_each(descending, "descending"), of_each(nulls_last, "nulls_last"), strict=True))
