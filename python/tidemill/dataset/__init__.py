"""DataSets: lazy tables with expressions and SQL, run by Apache DataFusion.

Nothing is read before an action (``collect``, ``count``, ``show``, ``write_*``) runs the steps that lead to it. All names
here are names of `tidemill` too.

>>> import tidemill as tm
>>> trades = tm.from_dict({"symbol": ["A", "B", "A"], "price": [1.0, 2.0, 4.0]})
>>> trades.group_by("symbol").agg(mean=tm.col("price").mean()).sort("symbol").to_pylist()
[{'symbol': 'A', 'mean': 2.5}, {'symbol': 'B', 'mean': 2.0}]
"""

from __future__ import annotations

from tidemill.dataset._dataset import DataSet
from tidemill.dataset._errors import BadRowsWarning, DataSetError
from tidemill.dataset._expr import Expr, col, lit
from tidemill.dataset._functions import (
    aggregate_function,
    coalesce,
    concat,
    count,
    cume_dist,
    dense_rank,
    function,
    ntile,
    percent_rank,
    rank,
    row_number,
    when,
)
from tidemill.dataset._group import GroupBy
from tidemill.dataset._map import KeyedRows
from tidemill.dataset._read import (
    from_arrow,
    from_dict,
    from_local,
    read_csv,
    read_ipc,
    read_json,
    read_npy,
    read_parquet,
    read_records,
    read_text,
    sql,
)
from tidemill.dataset._table import Table
from tidemill.dataset._workers import skipped_rows

__all__ = [
    "BadRowsWarning",
    "DataSet",
    "DataSetError",
    "Expr",
    "GroupBy",
    "KeyedRows",
    "Table",
    "aggregate_function",
    "coalesce",
    "col",
    "concat",
    "count",
    "cume_dist",
    "dense_rank",
    "from_arrow",
    "from_dict",
    "from_local",
    "function",
    "lit",
    "ntile",
    "percent_rank",
    "rank",
    "read_csv",
    "read_ipc",
    "read_json",
    "read_npy",
    "read_parquet",
    "read_records",
    "read_text",
    "row_number",
    "skipped_rows",
    "sql",
    "when",
]
