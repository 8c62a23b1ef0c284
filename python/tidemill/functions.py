"""SQL functions without a name at the top level: ranks of rows in a window, and any other function by name.

The functions that most programs need (`tidemill.col`, `tidemill.when`, `tidemill.sum`, `tidemill.coalesce`, ...) are at
the top level.

>>> import tidemill as tm
>>> data = tm.from_dict({"k": ["a", "a", "b"], "x": [3, 1, 2]})
>>> data.select("k", "x", place=tm.functions.rank().over("k", order_by="x")).sort("k", "x").to_dict()
{'k': ['a', 'a', 'b'], 'x': [1, 3, 2], 'place': [1, 2, 1]}
>>> data.select(root=tm.functions.scalar("sqrt", tm.col("x") + 1)).sort("root").to_dict()["root"][-1]
2.0
"""

from __future__ import annotations

from tidemill.dataset._functions import (
    aggregate,
    cume_dist,
    dense_rank,
    ntile,
    percent_rank,
    rank,
    row_number,
    scalar,
)

__all__ = [
    "aggregate",
    "cume_dist",
    "dense_rank",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
    "scalar",
]


def __dir__() -> list[str]:
    # For completion at a prompt: without this module's own imports.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
