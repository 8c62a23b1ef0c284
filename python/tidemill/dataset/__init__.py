"""DataSets: lazy tables with expressions and SQL, run by Apache DataFusion.

Nothing is read until an action (``collect``, ``count``, ``show``, ``write_*``) runs the steps that lead to it. All
names here are also names of `tidemill`.

>>> import tidemill as tm
>>> trades = tm.from_dict({"symbol": ["A", "B", "A"], "price": [1.0, 2.0, 4.0]})
>>> trades.group_by("symbol").agg(mean=tm.col("price").mean()).sort("symbol").to_pylist()
[{'symbol': 'A', 'mean': 2.5}, {'symbol': 'B', 'mean': 2.0}]
"""

from __future__ import annotations

from tidemill._tables.errors import BadRowsWarning, DataSetError
from tidemill._tables.report import RowReport, last_report
from tidemill._tables.table import Table
from tidemill.dataset._database import read_database
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._expr import Expr, col, lit
from tidemill.dataset._functions import (
    coalesce,
    concat_str,
    count,
    first,
    last,
    max,
    mean,
    median,
    min,
    n_unique,
    std,
    sum,
    var,
    when,
)
from tidemill.dataset._group import GroupBy
from tidemill.dataset._map import KeyedRows
from tidemill.dataset._read import (
    from_arrow,
    from_dict,
    from_local,
    from_pylist,
    read_csv,
    read_ipc,
    read_json,
    read_npy,
    read_parquet,
    read_records,
    read_text,
    sql,
)
from tidemill.dataset._shape import concat

__all__ = [
    "BadRowsWarning",
    "DataSet",
    "DataSetError",
    "Expr",
    "GroupBy",
    "KeyedRows",
    "RowReport",
    "Table",
    "coalesce",
    "col",
    "concat",
    "concat_str",
    "count",
    "first",
    "from_arrow",
    "from_dict",
    "from_local",
    "from_pylist",
    "last",
    "last_report",
    "lit",
    "max",
    "mean",
    "median",
    "min",
    "n_unique",
    "read_csv",
    "read_database",
    "read_ipc",
    "read_json",
    "read_npy",
    "read_parquet",
    "read_records",
    "read_text",
    "sql",
    "std",
    "sum",
    "var",
    "when",
]
