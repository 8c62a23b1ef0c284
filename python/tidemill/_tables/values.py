"""Python values as columns, with NumPy arrays as lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tidemill._tidemill import NativeTable

__all__ = ["MonthDayNano", "from_values"]


class MonthDayNano(NamedTuple):
    """A calendar interval, as in pyarrow: the length of a month or a day depends on where it begins."""

    months: int
    days: int
    nanoseconds: int


def from_values(make: Callable[[list[list[Any]]], NativeTable], columns: list[list[Any]]) -> NativeTable:
    """Return the result of `make` for the columns' values."""
    try:
        return make(columns)
    except TypeError as error:
        # Few tables contain arrays, so do not look for them before the first attempt fails.
        try:
            plain = _plain(columns)
        except RecursionError:
            raise error from None
        if plain is columns:
            raise
        return make(plain)


def _plain(value: Any) -> Any:
    """Return the value with lists instead of arrays, at any depth; the value itself if it has none."""
    import numpy as np

    if isinstance(value, np.ndarray):
        # Units finer than Python's become integers in lists.
        return _plain((value.astype(f"{value.dtype.kind}8[us]") if value.dtype.kind in "mM" else value).tolist())
    if isinstance(value, dict):
        inner = {name: _plain(one) for name, one in value.items()}
        return inner if any(inner[name] is not one for name, one in value.items()) else value
    if isinstance(value, (list, tuple)):
        parts = [_plain(one) for one in value]
        if all(part is one for part, one in zip(parts, value, strict=True)):
            return value
        return tuple(parts) if isinstance(value, tuple) else parts
    return value
