"""Windows as keys of `DataSet.group_by`: at most one, whose column names must be unused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeExpr
from tidemill.dataset._expr import Expr, GroupKey

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet

__all__ = ["WindowKey", "find"]


class WindowKey(GroupKey):
    """The window of a row, as an expression. `named`: name of the result."""

    __slots__ = ("has_early", "named")

    def __init__(self, native: NativeExpr, has_early: bool, named: str | None = None) -> None:
        super().__init__(native)
        self.has_early = has_early
        self.named = named

    def alias(self, name: str) -> Expr:
        """Rename the window to `name`; not allowed for a key of `group_by`, where it is two columns."""
        return WindowKey(self._native.alias(name), self.has_early, name)

    def aggregated(self, data: DataSet, keys: list[Expr], aggregates: list[NativeExpr]) -> DataSet | None:
        """Check that the window can be combined with the other keys; it groups by its value."""
        find(keys, aggregates)
        return None


def find(keys: Sequence[Expr], aggregates: Sequence[NativeExpr]) -> WindowKey | None:
    """Return the window among `keys`, if there is one.

    Raises
    ------
    DataSetError
        If there are several, or names are invalid.
    """
    windows = [key for key in keys if isinstance(key, WindowKey)]
    if not windows:
        return None
    if len(windows) > 1:
        raise DataSetError("group_by has one window; group the results of one by the other")
    window = windows[0]
    if window.named is not None:
        raise DataSetError(
            f"a window's columns are called window_start and window_end, not {window.named!r}; rename the result's columns"
        )
    added = ["window_start", "window_end", *(["window_final"] if window.has_early else [])]
    others = [key._native for key in keys if key is not window]
    for name in (other.output_name for other in (*others, *aggregates)):
        if name in added:
            raise DataSetError(
                f"group_by: a window adds a column {name!r}, so nothing else may have that name; rename it with alias"
            )
    return window
