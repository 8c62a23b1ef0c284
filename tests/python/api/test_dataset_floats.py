"""Special floats: all NaNs are one value, the largest; both zeros are one; values that leave a frame leave no trace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import standing
import tidemill as tm

NAN = math.nan
#: The kind of each row: rows of a kind are equal. NaNs with a sign, as from 0.0 / 0.0, and with a payload.
BITS = [0xFFF8 << 48, 0x7FF8 << 48, (0x7FF8 << 48) + 1, 0xFFF0_0000_0000_0007]
VALUES = [*np.array(BITS, np.uint64).view(np.float64), 0.0, -0.0, -0.0, 1.5, -1.5, math.inf, -math.inf]
KINDS = ["nan", "nan", "nan", "nan", "0", "0", "0", "1.5", "-1.5", "inf", "-inf"]
ORDER = ["-inf", "-1.5", "0", "1.5", "inf", "nan"]
x, i = tm.col("x"), tm.col("i")


@pytest.fixture(params=["float64", "float32"])
def odd(request: pytest.FixtureRequest) -> tm.DataSet:
    """pyarrow's own conversions would make nulls of NaNs."""
    with np.errstate(invalid="ignore"):
        values = pa.array(np.array(VALUES).astype(request.param), from_pandas=False)
    return tm.from_arrow(pa.table({"i": range(len(VALUES)), "x": values, "l": values}))


def kind(value: float) -> str:
    return "nan" if math.isnan(value) else "0" if value == 0 else f"{value:g}"


def kinds(found: list[Any]) -> list[str]:
    return [kind(value) for value in found]


def of(*names: str) -> list[int]:
    return [row for row, name in enumerate(KINDS) if name in names]


def numbers(data: tm.DataSet) -> list[int]:
    return sorted(data.to_dict()["i"])


COUNTS = {name: KINDS.count(name) for name in ORDER}


@pytest.mark.parametrize("key", [[], ["n"], ["t"]], ids=["alone", "with a number", "with a text"])
def test_groups(odd: tm.DataSet, key: list[str]) -> None:
    data = odd.with_columns(n=i * 0, t=(i * 0).cast("str"))
    found = data.group_by("x", *key).agg(n_=tm.count()).to_dict()
    assert dict(zip(kinds(found["x"]), found["n_"], strict=True)) == COUNTS
    assert len(found["x"]) == len(COUNTS)
    assert sorted(kinds(data.select("x", *key).distinct().to_dict()["x"])) == sorted(ORDER)
    assert sorted(kinds(data.distinct("x").to_dict()["x"])) == sorted(ORDER)
    assert data.select(n=x.n_unique()).to_dict() == {"n": [len(ORDER)]}


def test_groups_of_nested_floats(odd: tm.DataSet) -> None:
    for made in ["make_array(x)", "named_struct('a', x)", "make_array(named_struct('a', x))"]:
        found = tm.sql(f"select v, count(*) as n from (select {made} as v from t) group by v", t=odd)
        assert sorted(found.to_dict()["n"]) == sorted(COUNTS.values()), made


def test_order(odd: tm.DataSet) -> None:
    """Equal rows keep the order of the second key; their values do not change."""
    for descending in (False, True):
        found = odd.sort("x", "i", descending=[descending, False]).to_dict()
        expected = [row for name in (ORDER[::-1] if descending else ORDER) for row in of(name)]
        assert found["i"] == expected
        zeros = [math.copysign(1, value) for value in found["x"] if value == 0]
        assert zeros == [1, -1, -1]
    assert odd.sort("x", "i", descending=True).limit(5).to_dict()["i"] == [*of("nan")[::-1], 9]
    assert odd.sort(-i).sort("x", "i").limit(2).to_dict()["i"] == [10, 8]


def test_joins(odd: tm.DataSet) -> None:
    pairs = [(a, b) for a, one in enumerate(KINDS) for b, two in enumerate(KINDS) if one == two]
    found = odd.join(odd, on="x").select("i", "i_right").to_dict()
    assert sorted(zip(found["i"], found["i_right"], strict=True)) == pairs
    nan_only = odd.filter(i == 0)
    assert numbers(odd.join(nan_only, on="x", how="semi")) == of("nan")
    assert numbers(odd.join(nan_only, on="x", how="anti")) == [row for row in range(len(KINDS)) if KINDS[row] != "nan"]
    for query in [
        "select t.i from t join n on t.x = n.x",
        "select i from t where x in (select x from n)",
        "select t.i from t, n where t.x = n.x",
    ]:
        assert numbers(tm.sql(query, t=odd, n=nan_only)) == of("nan"), query
    for query in ["select x from t except select x from n", "select x from t where x not in (select x from n)"]:
        assert "nan" not in kinds(tm.sql(query, t=odd, n=nan_only).to_dict()["x"]), query


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (x == 0, of("0")),
        (x == NAN, of("nan")),
        (x != NAN, of(*ORDER[:-1])),
        (x > 1, of("1.5", "inf", "nan")),
        (x >= math.inf, of("inf", "nan")),
        (x < 1, of("-inf", "-1.5", "0")),
        (x <= -1, of("-inf", "-1.5")),
        (tm.lit(1.0) > x, of("-inf", "-1.5", "0")),
        (tm.lit(1.0) < x, of("1.5", "inf", "nan")),
        (~(x < 1), of("1.5", "inf", "nan")),
        (x + 1 < 2, of("-inf", "-1.5", "0")),
        (x + 1 > 2, of("1.5", "inf", "nan")),
        (x.between(-2, 2), of("-1.5", "0", "1.5")),
        (~x.between(-2, 2), of("-inf", "inf", "nan")),
        (x.between(0, NAN), of("0", "1.5", "inf", "nan")),
        (x.is_in([0.0]), of("0")),
        (x.is_in([1.5, NAN]), of("1.5", "nan")),
        (x.is_in([1.5, -0.0, 7.0, 8.0, 9.0, 10.0]), of("1.5", "0")),
        (x.is_in([1.5, 7.0]), of("1.5")),
        (x.is_nan(), of("nan")),
        (x == tm.col("l"), list(range(len(KINDS)))),
        (x != tm.col("l"), []),
        (x.eq_missing(tm.col("l") * 1), list(range(len(KINDS)))),
        (x * 0 == x * 0, list(range(len(KINDS)))),
    ],
)
def test_comparisons(odd: tm.DataSet, condition: tm.Expr, expected: list[int]) -> None:
    assert numbers(odd.filter(condition)) == sorted(expected)


def test_comparisons_with_null() -> None:
    data = tm.from_dict({"x": [None, 1.0]})
    assert data.select(a=x < 2, b=x > 2, c=x == NAN).to_dict() == {
        "a": [None, True],
        "b": [None, False],
        "c": [None, False],
    }


def test_windows(odd: tm.DataSet) -> None:
    found = odd.select(
        "i",
        n=tm.count().over("x"),
        rank=tm.functions.rank().over(order_by="x"),
        dense=tm.functions.dense_rank().over(order_by="x"),
        peers=tm.count().over(order_by="x"),
        low=x.min().over(),
    ).sort("i")
    places = {name: ORDER.index(name) for name in ORDER}
    before = {name: sum(COUNTS[other] for other in ORDER[: places[name]]) for name in ORDER}
    assert found.to_dict() == {
        "i": list(range(len(KINDS))),
        "n": [COUNTS[name] for name in KINDS],
        "rank": [1 + before[name] for name in KINDS],
        "dense": [1 + places[name] for name in KINDS],
        "peers": [before[name] + COUNTS[name] for name in KINDS],
        "low": [-math.inf] * len(KINDS),
    }


def test_least_and_largest(odd: tm.DataSet) -> None:
    assert kinds([*odd.select(a=x.min(), b=x.max()).to_pylist()[0].values()]) == ["-inf", "nan"]
    of_nan = odd.filter(i.is_in([0, 7]))
    assert kinds([*of_nan.select(a=x.min(), b=x.max(), c=x.median()).to_pylist()[0].values()]) == ["1.5", "nan", "nan"]
    assert math.copysign(1, odd.filter(i == 5).select(x.min()).to_dict()["x"][0]) == -1
    query = "select greatest(x, 1.0) as g, least(x, 1.0) as l, nullif(x, 'nan'::double) as n, nullif(x, 0.0) as z from t where i = {}"
    for row, expected in [(0, ["nan", "1", None, "nan"]), (5, ["1", "0", "0", None]), (7, ["1.5", "1", "1.5", "1.5"])]:
        found = tm.sql(query.format(row), t=odd).to_pylist()[0].values()
        assert [None if value is None else kind(value) for value in found] == expected
    cases = tm.sql("select case x when 'nan'::double then 'n' when 0.0 then 'z' end as c from t order by i", t=odd)
    assert cases.to_dict()["c"] == [{"nan": "n", "0": "z"}.get(name) for name in KINDS]


@pytest.mark.parametrize("type", [pa.float64(), pa.float32(), pa.float16()])
def test_least_and_largest_of_groups(type: pa.DataType) -> None:
    """In any order of rows and batches."""
    nan, inf = math.nan, math.inf
    for values, least, most in [
        ([nan, 1.5, 2.0], "1.5", "nan"),
        ([1.5, nan, 2.0], "1.5", "nan"),
        ([nan, -inf, 1.0], "-inf", "nan"),
        ([-inf, -inf, None], "-inf", "-inf"),
        ([inf, None], "inf", "inf"),
        ([nan, None, nan], "nan", "nan"),
    ]:
        column = pa.array(np.array([0.0 if v is None else v for v in values]), from_pandas=False).cast(type)
        column = pa.array([None if v is None else c for v, c in zip(values, column, strict=True)], type)
        table = pa.table({"k": ["a"] * len(values), "x": column})
        rows = pa.Table.from_batches(table.to_batches(max_chunksize=1))
        for data in tm.from_arrow(table), tm.from_arrow(rows), tm.from_arrow(table).repartition(3):
            found = data.group_by("k").agg(a=x.min(), b=x.max()).to_pylist()
            assert [kinds([row["a"], row["b"]]) for row in found] == [[least, most]], (values, found)
    nothing = tm.from_arrow(pa.table({"k": ["a"], "x": pa.array([None], type)}))
    assert nothing.group_by("k").agg(a=x.min(), b=x.max()).to_pylist() == [{"k": "a", "a": None, "b": None}]


ON_WORKERS = """
import math
import numpy as np
import pyarrow as pa
import tidemill as tm

job = tm.init()
values = np.array(BITS, np.uint64).view(np.float64).tolist() + [0.0, -0.0, 1.5, -1.5]
n = 60_000
at = np.arange(n) * 7919 % len(values)
data = tm.from_arrow(pa.table({"i": np.arange(n), "x": pa.array(np.array(values)[at], from_pandas=False)}))
kind = lambda v: "nan" if math.isnan(v) else str(v + 0.0)
expected = {"nan": n // 2, "0.0": n // 4, "1.5": n // 8, "-1.5": n // 8}
for step in (data.group_by("x"), data.repartition(3, "x").group_by("x"), data.group_by("x", tm.col("i") * 0)):
    found = step.agg(n=tm.count()).to_dict()
    assert dict(zip(map(kind, found["x"]), found["n"], strict=True)) == expected, found
    assert len(found["x"]) == 4
assert sorted(map(kind, data.select("x").distinct().to_dict()["x"])) == sorted(expected)
few = data.limit(0).union(data.filter(tm.col("i") < 8))
pairs = data.join(few.select("x", j="i"), on="x").select(n=tm.count()).to_dict()
assert pairs == {"n": [n // 2 * 4 + n // 4 * 2 + n // 8 * 2]}, pairs
ordered = data.sort("x", "i").to_dict()
ranks = {"-1.5": 0, "0.0": 1, "1.5": 2, "nan": 3}
places = [(ranks[kind(v)], i) for v, i in zip(ordered["x"], ordered["i"], strict=True)]
assert places == sorted(places)
shares = data.select("i", r=tm.functions.dense_rank().over(order_by="x")).group_by("r").agg(n=tm.count()).sort("r")
assert shares.to_dict()["n"] == [n // 8, n // 4, n // 8, n // 2], shares.to_dict()
""".replace("BITS", str(BITS))


def test_on_several_workers() -> None:
    """Rows of one key meet on one worker: the hash of a key depends only on its value."""
    standing.run_program(ON_WORKERS, workers=2)


#: Functions of a frame's values, as in Python; None if there are too few.
FRAMES: dict[str, tuple[Callable[[tm.Expr], tm.Expr], Callable[[list[float]], float | None]]] = {
    "sum": (lambda of: of.sum(), lambda v: math.fsum(v) if v else None),
    "mean": (lambda of: of.mean(), lambda v: math.fsum(v) / len(v) if v else None),
    "var": (lambda of: of.var(), lambda v: statistics.variance(v) if len(v) > 1 else None),
    "std": (lambda of: of.std(), lambda v: statistics.stdev(v) if len(v) > 1 else None),
    "var_pop": (lambda of: tm.functions.aggregate("var_pop", of), lambda v: statistics.pvariance(v) if v else None),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("frame", [(-2, 0), (-1, 1), (1, 2), (-4, -2), (0, 3)])
def test_frames_that_slide(name: str, frame: tuple[int, int]) -> None:
    """A NaN or infinity affected all later frames, and small numbers were lost next to 1e16."""
    made, expected = FRAMES[name]
    values = [
        1.0,
        2.5,
        NAN,
        4.0,
        1e16,
        1.5,
        None,
        0.25,
        3.0,
        math.inf,
        2.0,
        None,
        None,
        None,
        1.0,
        -math.inf,
        5.0,
        7.0,
        0.5,
        0.5,
    ]
    data = tm.from_dict({"i": range(len(values)), "x": values})
    found = data.select("i", r=made(x).over(order_by="i", rows=frame)).sort("i").to_dict()["r"]
    for row, result in enumerate(found):
        seen = [v for v in values[max(0, row + frame[0]) : max(0, row + frame[1] + 1)] if v is not None]
        if all(map(math.isfinite, seen)):
            assert result == (None if (wanted := expected(seen)) is None else pytest.approx(wanted, rel=1e-12)), (
                row,
                seen,
            )
        elif name in ("sum", "mean"):
            assert str(result) == str(sum(seen)), (row, seen)


def test_frames_of_pairs_and_ranges() -> None:
    data = tm.from_dict(
        {"g": [1] * 6 + [2] * 2, "i": [0, 1, 2, 3, 4, 5, 0, 1], "x": [NAN, 1e16, 1.0, 2.0, 4.0, 3.0, 5.0, 6.0]}
    )
    found = tm.sql(
        """select g, i, covar_samp(x, i) over w as c, corr(x, i) over w as r, regr_slope(x, i) over w as m,
           sum(x) over (partition by g order by i range between 1 preceding and current row) as s,
           avg(x) over (partition by g order by i groups between 1 preceding and current row) as a
           from t window w as (partition by g order by i rows between 1 preceding and current row) order by g, i""",
        t=data,
    ).to_dict()
    assert found["c"][3:] == [0.5, 1.0, -0.5, None, 0.5]
    assert found["r"][3:] == pytest.approx([1.0, 1.0, -1.0, None, 1.0])
    assert found["m"][3:] == [1.0, 2.0, -1.0, None, 1.0]
    assert found["s"][3:] == [3.0, 6.0, 7.0, 5.0, 11.0]
    assert found["a"][3:] == [1.5, 3.0, 3.5, 5.0, 5.5]


def test_a_long_frame_costs_no_more() -> None:
    """Summing each frame from scratch would take minutes."""
    rows = 300_000
    data = tm.from_dict({"i": range(rows), "x": [1.0] * rows})
    total = data.select(r=x.sum().over(order_by="i", rows=(-99_999, 0))).select(tm.col("r").sum()).to_dict()["r"]
    assert total == [99_999 * 100_000 / 2 + 100_000.0 * (rows - 99_999)]
