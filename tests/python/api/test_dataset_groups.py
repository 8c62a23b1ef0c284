"""Group-by with one key of integers, dates or times, whose first half is our own: the groups of pyarrow for any keys."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import tidemill as tm

#: Groups a table by a key of each type and prints differences from pyarrow's groups. One budget has room for few groups
#: at a time.
PROGRAM = """
import sys
import numpy as np
import pyarrow as pa
import tidemill as tm

rng = np.random.default_rng(3)
keys, ROWS = map(int, sys.argv[1:])

def grouped(key, name):
    x = pa.array(rng.integers(-1000, 1000, ROWS), mask=rng.random(ROWS) < 0.1)
    table = pa.table({"k": key, "x": x})
    own = tm.col("x")
    found = tm.from_arrow(table).group_by("k").agg(s=own.sum(), low=own.min(), n=own.count(), m=own.mean(), rows=tm.count())
    assert "GroupExec" in found.explain(), found.explain()
    found = pa.table(found.collect()).sort_by("k")
    functions = [("x", "sum"), ("x", "min"), ("x", "count"), ("x", "mean"), ([], "count_all")]
    expected = table.group_by("k").aggregate(functions).sort_by("k")
    assert found["k"].type == key.type, (name, found["k"].type)
    for ours, theirs in zip(found.column_names, ["k", "x_sum", "x_min", "x_count", "x_mean", "count_all"]):
        a, b = (column.combine_chunks() for column in (found[ours], expected[theirs]))
        assert a.equals(b.cast(a.type)), (name, ours)
    assert len(found) == len(expected)

spread = rng.integers(0, keys, ROWS)
# With many rows, and where groups spill, one type is enough: types are the same there.
others = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.uint64()]
for kind in [pa.int64()] if ROWS > 100_000 else [*others, pa.int64()]:
    wide = spread if kind.bit_width > 16 else spread % 100
    values = pa.array(wide, mask=rng.random(ROWS) < 0.01).cast(kind)
    grouped(values, kind)
if ROWS > 100_000:
    print("same")
    sys.exit()
signed = pa.array(spread - keys // 2)
for kind in [pa.timestamp("us", "Europe/Berlin"), pa.timestamp("s"), pa.date64(), pa.duration("ms")]:
    grouped((signed if kind != pa.date64() else pa.array((spread - keys // 2) * 86_400_000)).cast(kind), kind)
grouped(pa.array(spread.astype(np.int32)).cast(pa.date32()), "date32")
# Equal bits except in the high half; and keys at distances of a power of two.
grouped(pa.array(spread << 40), "high")
grouped(pa.array((spread - keys // 2) * 2**20), "far")
print("same")
"""


# Rows are passed on without grouping if nearly all of the first million of a thread have distinct keys.
@pytest.mark.parametrize(
    ("keys", "rows", "memory"),
    [(50, 100_000, ""), (30_000, 100_000, ""), (1 << 40, 2_500_000, ""), (30_000, 400_000, "24MiB")],
    ids=["few", "many", "nearly all different", "many in little memory"],
)
def test_groups_are_those_of_pyarrow(keys: int, rows: int, memory: str) -> None:
    """A key that loses bits, is merged with another's group, or is lost when rows are passed on, changes a sum."""
    pytest.importorskip("pyarrow")
    env = {**os.environ, "TIDEMILL_THREADS": "2", "TIDEMILL_MEMORY": memory}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(keys), str(rows)], env=env, capture_output=True, timeout=300
    )
    assert result.stdout == b"same\n", result.stderr.decode()


def test_functions_with_filters() -> None:
    """Rows that an aggregate's own filter removes must still form their group."""
    import tidemill as tm

    rows = tm.from_dict({"k": [1, 2, 1, None, 2, None], "x": [1, 2, 3, 4, 5, 6]})
    found = tm.sql("select k, sum(x) filter (where x > 2) as s, count(*) as n from rows group by k", rows=rows)
    assert sorted(found.to_pylist(), key=lambda row: row["n"] * 100 + row["s"]) == [
        {"k": 1, "s": 3, "n": 2},
        {"k": 2, "s": 5, "n": 2},
        {"k": None, "s": 10, "n": 2},
    ]


MOST = 2**63 - 1
SUMS = {
    "groups": lambda d, c: d.group_by("k").agg(s=c.sum()),
    "groups by text": lambda d, c: d.group_by(tm.col("k").cast("str")).agg(s=c.sum()),
    "all rows": lambda d, c: d.select(s=c.sum()),
    "of those that differ": lambda d, c: tm.sql(
        "select sum(distinct x) as s, sum(distinct k) from t", t=d.select("k", x=c)
    ),
    "a window": lambda d, c: d.select(s=c.sum().over("k")),
    "a running sum": lambda d, c: d.select(s=c.sum().over("k", order_by="i")),
    "a sliding frame": lambda d, c: d.select(s=c.sum().over("k", order_by="i", rows=(-1, 0))),
    "sql": lambda d, c: tm.sql("select sum(x) as s from t group by k", t=d.select("k", x=c)),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (pa.int64(), [MOST, 1, 5], "to float64 or decimal"),
        (pa.int64(), [-MOST, -9, 0], "to float64 or decimal"),
        (pa.uint64(), [2**64 - 1, 1, 5], "to float64 or decimal"),
        (pa.decimal128(38), [Decimal(10**38 - 1), Decimal(1), Decimal(5)], "to float64"),
        (pa.decimal128(38), [Decimal(10**38 - 1), Decimal(10**38 - 2), Decimal(5)], "to float64"),
    ],
)
def test_a_sum_beyond_its_type_is_an_error(name: str, kind: pa.DataType, values: list[Any], said: str) -> None:
    """It wrapped around silently."""
    x = tm.col("x")
    data = tm.from_arrow(pa.table({"k": [1, 1, 2], "i": [1, 2, 3], "x": pa.array(values, kind)}))
    with pytest.raises(tm.DataSetError, match=f"is beyond the range of .*cast .* {said}"):
        SUMS[name](data, x).collect()
    # The suggested remedy works.
    assert SUMS[name](data, x.cast("float64")).to_dict()["s"]


def test_a_sum_may_be_beyond_its_type_on_the_way() -> None:
    """Only the total counts: partial sums of threads, and of some of the rows, may have any value."""
    rows = 40_000
    half = [MOST] * rows + [-MOST] * rows + [7, None]
    data = tm.from_dict({"k": [1] * len(half), "t": ["a"] * len(half), "x": half})
    x = tm.col("x")
    for found in [data.group_by("k").agg(s=x.sum()), data.group_by("t").agg(s=x.sum()), data.select(s=x.sum())]:
        assert found.to_dict()["s"] == [7]
    short = tm.from_dict({"i": range(6), "x": [MOST, 1, -5, None, -MOST, 1]}).filter(tm.col("i") >= 0)
    with pytest.raises(tm.DataSetError, match='the sum of "x" is beyond the range of Int64'):
        short.select(s=x.sum().over(order_by="i", rows=(-1, 0))).collect()
    assert short.select(s=x.sum().over(order_by="i", rows=(-2, 0))).limit(0).to_dict() == {"s": []}
    assert short.filter(tm.col("i") > 0).select(s=x.sum().over(order_by="i", rows=(-1, 0))).to_dict() == {
        "s": [1, -4, -5, -MOST, 1 - MOST]
    }
    few = tm.from_dict(
        {"x": [None, None], "d": [timedelta(days=1), timedelta(days=2)]}, schema={"x": "int64", "d": "duration"}
    )
    assert few.select(x.sum(), tm.col("d").sum()).to_dict() == {"x": [None], "d": [timedelta(days=3)]}
