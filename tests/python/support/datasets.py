"""Helpers for tests of DataSets."""

from __future__ import annotations

from typing import Any


def rows(data: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a DataSet or Table as tuples, sorted, because only `sort` guarantees an order."""
    columns = data.to_dict()
    return sorted(zip(*columns.values(), strict=True), key=lambda row: [(value is None, str(value)) for value in row])
