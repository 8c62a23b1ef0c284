"""Groups of rows, and their aggregates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill._tables.errors import DataSetError
from tidemill.dataset._expr import Expr, GroupKey, IntoExpr, col, columns, flat, names_of
from tidemill.dataset._functions import count
from tidemill.dataset._shape import plain_kind

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet

__all__ = ["GroupBy"]


class GroupBy:
    """The rows of a DataSet grouped by the values of keys; returned by `DataSet.group_by`."""

    def __init__(self, data: DataSet, keys: tuple[IntoExpr, ...]) -> None:
        self._data = data
        self._keys = keys

    def agg(self, *aggregates: IntoExpr | Iterable[IntoExpr], **named: Expr) -> DataSet:
        """Return one row for each group: the keys, then these aggregates.

        >>> import tidemill as tm
        >>> data = tm.from_dict({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        >>> data.group_by("k").agg(tm.col("x").sum(), share=tm.col("x").max() / tm.count()).sort("k").to_pylist()
        [{'k': 'a', 'x': 4, 'share': 1.5}, {'k': 'b', 'x': 2, 'share': 2.0}]
        """
        keys, wanted = flat(self._keys), columns(aggregates, named)
        for key in keys:
            if isinstance(key, GroupKey):
                made = key.aggregated(self._data, keys, wanted)
                if made is not None:
                    return made
        try:
            return self._data._step(self._data._native.aggregate([key._native for key in keys], wanted))
        except DataSetError as error:
            # The engine's message lists keys and aggregates.
            missing = re.match(r'no column "(.*?)"', str(error))
            if missing is None or missing[1] not in self._data.columns:
                raise
            raise DataSetError(
                f'column "{missing[1]}" is neither a key nor aggregated: a group has many values of it; choose how to aggregate them, '
                f'such as col("{missing[1]}").sum()'
            ) from None

    def count(self) -> DataSet:
        """Count the rows of each group, as ``count``."""
        return self.agg(count())

    def sum(self, *names: str | Iterable[str]) -> DataSet:
        """Return the sums of these columns in each group; by default, of all numeric and duration columns that are not keys.

        >>> import tidemill as tm
        >>> tm.from_dict({"k": ["a", "b", "a"], "x": [1, 2, 3]}).group_by("k").sum().sort("k").to_dict()
        {'k': ['a', 'b'], 'x': [4, 2]}
        """
        return self._of_each("sum", names, (*_NUMBERS, "Duration"))

    def mean(self, *names: str | Iterable[str]) -> DataSet:
        """Return the means of these columns in each group; by default, of all numeric columns that are not keys."""
        return self._of_each("mean", names, _NUMBERS)

    def min(self, *names: str | Iterable[str]) -> DataSet:
        """Return the minimums of these columns in each group; by default, of all ordered columns that are not keys."""
        return self._of_each("min", names, _IN_ORDER)

    def max(self, *names: str | Iterable[str]) -> DataSet:
        """Return the maximums of these columns in each group; by default, of all ordered columns that are not keys."""
        return self._of_each("max", names, _IN_ORDER)

    def _of_each(self, which: str, names: tuple[str | Iterable[str], ...], kinds: tuple[str, ...]) -> DataSet:
        wanted = names_of(names, which)
        if not wanted:
            keys = {key.output_name for key in flat(self._keys)}
            wanted = [
                name
                for name, kind in self._data.schema.items()
                if name not in keys and plain_kind(kind).startswith(kinds)
            ]
            if not wanted:
                raise DataSetError(f"{which}: there is no column besides the keys to aggregate")
        return self.agg(*(getattr(col(name), which)() for name in wanted))


_NUMBERS = ("Int", "UInt", "Float", "Decimal")
_IN_ORDER = (*_NUMBERS, "Utf8", "LargeUtf8", "Boolean", "Date", "Time", "Duration", "Binary", "LargeBinary")
