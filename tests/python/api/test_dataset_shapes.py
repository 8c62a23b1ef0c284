"""Reshaping tables: concatenated, wide and long, numbered, filled, counted."""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
import seeds
import standing
import tidemill as tm
from datasets import rows

SALES = {
    "shop": ["n", "n", "s", None, "n"],
    "item": ["tea", "salt", "tea", None, "tea"],
    "sold": [3, 1, 5, 7, None],
}


@pytest.fixture
def sales() -> tm.DataSet:
    return tm.from_dict(SALES)


def test_rows_as_dicts() -> None:
    given: list[dict[str, Any]] = [{"a": 1}, {"b": "x", "a": None}, {}]
    data = tm.from_pylist(given)
    assert data.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}]
    assert tm.from_pylist(data.collect()).to_dict() == data.to_dict()
    typed = tm.from_pylist(iter(given), {"a": "int8", "c": "date"})
    assert typed.schema["a"] == "Int8" and typed.schema["c"] == "Date32"
    assert tm.from_pylist([], {"a": "int64"}).to_dict() == {"a": []}
    for wrong, words in (
        ({"a": [1]}, "a list of rows"),
        ([1], "row 0 is a int"),
        ([{1: 2}], "names must be strings, not 1"),
    ):
        with pytest.raises(TypeError, match=words):
            tm.from_pylist(wrong)  # type: ignore[arg-type]


def test_concat(sales: tm.DataSet) -> None:
    assert tm.concat([sales]).to_dict() == SALES
    turned = sales.select("sold", "item", "shop")
    assert tm.concat([sales, turned.collect()]).count() == 10
    found = tm.concat(
        [tm.from_dict({"x": [1]}), tm.from_dict({"y": [dt.date(2024, 1, 1)], "x": [2.5]})], how="diagonal"
    )
    assert found.schema == {"x": "Float64", "y": "Date32"}
    assert rows(found) == [(1.0, None), (2.5, dt.date(2024, 1, 1))]
    with pytest.raises(tm.DataSetError, match="only the first has"):
        tm.concat([sales, sales.drop("sold")])
    for texts in ("shop", ["shop", tm.col("item")]):
        with pytest.raises(TypeError, match="concat_str joins texts"):
            tm.concat(texts)  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="at least one table"):
        tm.concat([])


def test_wide_and_long(sales: tm.DataSet) -> None:
    wide = sales.pivot("item", index="shop", values="sold", aggregate="sum").sort("shop")
    assert wide.to_pylist() == [
        {"shop": "n", "salt": 1, "tea": 3, "null": None},
        {"shop": "s", "salt": None, "tea": 5, "null": None},
        {"shop": None, "salt": None, "tea": None, "null": 7},
    ]
    chosen = sales.pivot("item", index=["shop"], values="sold", aggregate="count", on_values=["tea", "milk"])
    assert chosen.columns == ["shop", "tea", "milk"]
    assert rows(chosen) == [("n", 1, 0), ("s", 1, 0), (None, 0, 0)]
    long = wide.unpivot(["salt", "tea"], index="shop", variable_name="item", value_name="sold").drop_nulls()
    assert rows(long) == [("n", "salt", 1), ("n", "tea", 3), ("s", "tea", 5)]
    mixed = tm.from_dict({"a": [1], "b": [0.5]}).unpivot()
    assert mixed.to_dict() == {"variable": ["a", "b"], "value": [1.0, 0.5]}
    for wrong, words in (
        (lambda: sales.pivot("nope", index="shop", values="sold"), 'no column "nope"'),
        (lambda: sales.pivot("item", index="shop", values="sold", aggregate="mode"), "unknown aggregate 'mode'"),
        (
            lambda: sales.pivot("sold", index="shop", values="item", on_values=["shop"]),
            "two columns would be named 'shop'",
        ),
        (lambda: sales.unpivot(), "'shop' is Utf8 and 'sold' is Int64"),
        (lambda: sales.unpivot("nope"), 'no column "nope"'),
        (lambda: sales.unpivot(index=sales.columns), "no column to turn into rows"),
        (lambda: sales.unpivot("sold", index="shop", value_name="shop"), "column 'shop' already exists"),
    ):
        with pytest.raises(tm.DataSetError, match=words):
            wrong()
    many = tm.from_dict({"k": [1] * 1001, "v": list(range(1001))})
    with pytest.raises(tm.DataSetError, match="more than 1000 values; name those that you want"):
        many.pivot("v", index="k", values="v")


def test_fill_null() -> None:
    """Each column keeps its type, and columns that the value does not fit are unchanged."""
    day, time = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 1)
    types = {"i": "int32", "f": "float32", "u": "uint64"}
    nothing = {"i": [None], "f": [None], "u": [None], "s": [None], "d": [None], "t": [None], "b": [None], "l": [None]}
    types |= {"s": "str", "d": "date", "t": "datetime[ms]", "b": "bool", "l": "List(Int64)"}
    data = tm.from_dict(nothing, types)
    for value, filled in (
        (7, {"i": 7, "f": 7.0, "u": 7}),
        ("x", {"s": "x"}),
        (True, {"b": True}),
        (day, {"d": day, "t": dt.datetime(2020, 1, 1)}),
        (time, {"t": time}),
        (dt.timedelta(1), {}),
    ):
        found = data.fill_null(value)
        assert found.schema == data.schema, value
        assert found.to_pylist() == [dict.fromkeys(types) | filled], value
    assert data.fill_null(0, "i").to_pylist() == [dict.fromkeys(types) | {"i": 0}]
    assert data.fill_null({"i": 0, "s": tm.lit("y")}).to_pylist() == [dict.fromkeys(types) | {"i": 0, "s": "y"}]
    for wrong, words in (
        (lambda: data.fill_null({"nope": 1}), 'no column "nope"'),
        (lambda: data.fill_null(tm.col("i")), "needs the columns that it is for"),
        (lambda: data.fill_null({"i": 1}, "i"), "either values by column"),
    ):
        with pytest.raises(tm.DataSetError, match=words):
            wrong()


def test_counts_and_groups(sales: tm.DataSet) -> None:
    assert sales.value_counts("item").to_dict() == {"item": ["tea", "salt", None], "count": [3, 1, 1]}
    assert sales.value_counts().columns == ["shop", "item", "sold", "count"]
    groups = sales.group_by("shop")
    assert rows(groups.sum()) == [("n", 4), ("s", 5), (None, 7)]
    assert rows(groups.mean("sold")) == [("n", 2.0), ("s", 5.0), (None, 7.0)]
    assert rows(groups.max()) == [("n", "tea", 3), ("s", "tea", 5), (None, None, 7)]
    assert rows(groups.min("item")) == [("n", "salt"), ("s", "tea"), (None, None)]
    assert rows(groups.count()) == [("n", 3), ("s", 1), (None, 1)]
    coded = tm.from_arrow(pa.table({"k": [1, 1, 2], "c": pa.array(["a", "b", None]).dictionary_encode()}))
    assert rows(coded.group_by("k").max()) == [(1, "b"), (2, None)]
    assert coded.fill_null("?").sort("k").to_dict()["c"][2] == "?" and coded.describe()["c"][8] == "b"
    with pytest.raises(tm.DataSetError, match="no column besides the keys"):
        sales.select("shop").group_by("shop").sum()
    x = tm.col("sold")
    for made, same in (
        (tm.sum("sold"), x.sum()),
        (tm.mean("sold", where=x > 1), x.mean(where=x > 1)),
        (tm.min("sold"), x.min()),
        (tm.max(x + 1), (x + 1).max()),
        (tm.median("sold"), x.median()),
        (tm.std("sold"), x.std()),
        (tm.var("sold"), x.var()),
        (tm.n_unique("item"), tm.col("item").n_unique()),
        (tm.first("item", "sold"), tm.col("item").first("sold")),
        (tm.last("item", "sold", where=x > 1), tm.col("item").last("sold", where=x > 1)),
    ):
        assert str(made) == str(same)
    assert sales.sort("sold").limit(2, offset=1).to_dict()["sold"] == [3, 5]


def test_row_numbers() -> None:
    """In the order of a sort, with nulls and ties among its keys, for any number of partitions."""
    choice = seeds.dice()
    values = [choice.choice([None, *range(5000)]) for _ in range(20_000)]
    data = tm.from_dict({"x": values, "i": list(range(20_000))})
    by = sorted(range(20_000), key=lambda i: (values[i] is None, -(values[i] or 0), i))
    ordered = data.sort("x", "i", descending=[True, False])
    found = ordered.with_row_index()
    assert found.columns == ["index", "x", "i"]
    assert found.to_dict()["index"] == list(range(20_000))
    assert found.to_dict()["i"] == by
    assert ordered.limit(5).with_row_index("n", 10).to_dict() == {
        "n": list(range(10, 15)),
        "x": [values[i] for i in by[:5]],
        "i": by[:5],
    }
    assert data.with_row_index(order_by="i").filter(tm.col("index") == 77).to_dict()["i"] == [77]
    assert Counter(data.with_row_index(offset=-3).to_dict()["index"]) == Counter(range(-3, 19_997))


#: Each runs on two workers: both must agree on results, counts and numbers.
WORKERS = """
import tidemill as tm
job = tm.init()
sales = tm.from_dict(SALES)
if job.rank == 0:
    print(repr(sales), sales._repr_html_())  # on one worker only: it must not wait for the other
print(sales.pivot("item", index="shop", values="sold", aggregate="sum").sort("shop").to_dict())
print(sales.unpivot("sold", index="shop").sort("value").to_dict()["value"], sales.value_counts("shop").to_dict())
print(tm.concat([sales, sales.drop("item")], how="diagonal").count(), sales.fill_null(0).select(tm.sum("sold")).to_dict())
large = tm.from_dict({"x": [n * 7919 % 20011 for n in range(20000)]})
index = large.sort("x").with_row_index().to_dict()
print(index["index"] == list(range(20000)), index["x"] == sorted(index["x"]))
print(large.describe().to_dict()["x"][:2], len(large.describe(root=0)) > 0)
least, most = -(2**63), 2**63 - 1
wide = tm.from_dict({"k": [n % 3 for n in range(27000)], "x": [(least, most, 7)[n // 3 % 3] for n in range(27000)]})
print(wide.group_by("k").mean().sort("k").to_dict()["x"], wide.select(tm.mean("x")).to_dict()["x"])
"""


def test_on_workers() -> None:
    lines = [said.splitlines() for said in standing.run_program(WORKERS.replace("SALES", repr(SALES)), workers=2)]
    shown, *mine = lines[0]
    assert shown.startswith(
        "<DataSet shop: Utf8, item: Utf8, sold: Int64; show() prints its first rows, on all workers"
    )
    assert mine[:-2] == lines[1][:-2] and mine[-1] == lines[1][-1]
    assert mine[0] == str(
        {"shop": ["n", "s", None], "salt": [1, None, None], "tea": [3, 5, None], "null": [None, None, 7]}
    )
    assert mine[1] == str([1, 3, 5, 7, None]) + " " + str({"shop": ["n", "s", None], "count": [3, 1, 1]})
    assert mine[2:4] == ["10 {'sold': [16]}", "True True"]
    assert (mine[4], lines[1][4]) == ("[20000.0, 0.0] True", "[20000.0, 0.0] False")
    assert mine[5] == "[2.0, 2.0, 2.0] [2.0]"


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was just "No module named 'pyarrow'"."""
    data = tm.from_dict({"x": [1]})
    for module, call, words in (
        ("pyarrow", data.to_arrow, r'to_arrow needs pyarrow: pip install "tidemill\[files\]"'),
        ("pandas", data.to_pandas, "to_pandas needs pandas: pip install pandas"),
        ("polars", data.to_polars, "to_polars needs polars: pip install polars"),
        (
            "pyarrow",
            lambda: data.map_batches(lambda batch: batch),
            r'map_batches needs pyarrow: pip install "tidemill\[files\]"',
        ),
        ("cloudpickle", lambda: tm.run(int), r'tidemill.run needs cloudpickle: pip install "tidemill\[run\]"'),
        (
            "adbc_driver_sqlite",
            lambda: tm.read_database("select 1", "sqlite:///x"),
            r'a database of sqlite needs adbc_driver_sqlite: pip install "tidemill\[database\]"',
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            patch.setitem(sys.modules, f"{module}.dbapi", None)
            with pytest.raises(ModuleNotFoundError, match=words):
                call()


def test_names_at_a_prompt() -> None:
    """A module's own imports are not among its names."""
    for module in (tm, tm.functions, tm.stream):
        names = {name for name in dir(module) if not name.startswith("__")}
        assert names == {name for name in module.__all__ if not name.startswith("__")}
