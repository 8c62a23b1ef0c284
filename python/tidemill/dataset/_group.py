"""Groups of rows, and what is computed of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.dataset._expr import Expr, IntoExpr, columns
from tidemill.dataset._functions import count

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet

__all__ = ["GroupBy"]


class GroupBy:
    """The rows of a DataSet by the values of its keys; made by `DataSet.group_by`."""

    def __init__(self, data: DataSet, keys: tuple[IntoExpr, ...]) -> None:
        self._data = data
        self._keys = keys

    def agg(self, *aggregates: IntoExpr | Iterable[IntoExpr], **named: Expr) -> DataSet:
        """One row for each group: the keys, then these aggregates.

        >>> import tidemill as tm
        >>> data = tm.from_dict({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        >>> data.group_by("k").agg(tm.col("x").sum(), share=tm.col("x").max() / tm.count()).sort("k").to_pylist()
        [{'k': 'a', 'x': 4, 'share': 1.5}, {'k': 'b', 'x': 2, 'share': 2.0}]
        """
        wanted = columns(aggregates, named)
        if any(type(key) is not Expr and isinstance(key, Expr) for key in self._keys):
            from tidemill.stream import _custom

            at = _custom.custom_key(self._keys)
            if at is not None:
                return _custom.aggregated(self._data, self._keys, wanted, at)
        return self._data._step(self._data._native.aggregate(columns(self._keys, {}), wanted))

    def count(self) -> DataSet:
        """How many rows each group has, as ``count``."""
        return self.agg(count())
