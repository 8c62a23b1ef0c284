"""What tests of DataSets share."""

from __future__ import annotations

from typing import Any

import pytest
from tidemill import _tidemill

#: Why there are no DataSets: the native module may be built without DataFusion, which takes long to compile.
WITHOUT = None if hasattr(_tidemill, "QueryEngine") else "the native module was built without its feature `dataset`"

needs_datasets = pytest.mark.skipif(WITHOUT is not None, reason=str(WITHOUT))


def rows(data: Any) -> list[tuple[Any, ...]]:
    """The rows of a DataSet or Table as tuples, sorted: only `sort` promises an order."""
    columns = data.to_dict()
    return sorted(zip(*columns.values(), strict=True), key=lambda row: [(value is None, str(value)) for value in row])
