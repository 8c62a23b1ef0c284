"""Groups of rows, and what is computed of each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.dataset._errors import DataSetError
from tidemill.dataset._expr import Expr, IntoExpr, columns, flat
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
        keys, wanted = flat(self._keys), columns(aggregates, named)
        if any(type(key) is not Expr for key in keys):
            from tidemill.stream import _custom, _keys

            window = _keys.find(keys, wanted)
            if isinstance(window, _custom.CustomWindow):
                return _custom.aggregated(self._data, keys, wanted, window)
        try:
            return self._data._step(self._data._native.aggregate([key._native for key in keys], wanted))
        except DataSetError as error:
            # The engine looks among keys and aggregates.
            missing = re.match(r'no column "(.*?)"', str(error))
            if missing is None or missing[1] not in self._data.columns:
                raise
            raise DataSetError(
                f'column "{missing[1]}" is neither a key nor aggregated: a group has many values of it; say what of them is wanted, '
                f'such as col("{missing[1]}").sum()'
            ) from None

    def count(self) -> DataSet:
        """How many rows each group has, as ``count``."""
        return self.agg(count())
