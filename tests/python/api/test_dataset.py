"""Steps of a DataSet, each compared with plain Python over the same rows."""

from __future__ import annotations

import collections
import datetime as dt
import pickle
import random
import re
import statistics
import subprocess
import sys
import time as time_module
from datetime import UTC, time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import tidemill as tm
from datasets import rows

RNG = random.Random(7)
KEYS = [RNG.choice(["a", "b", "c", None]) for _ in range(20_000)]
VALUES = [RNG.choice([None, *range(50)]) for _ in KEYS]


@pytest.fixture(scope="module")
def data() -> tm.DataSet:
    """Enough rows for several batches and partitions, with nulls in both columns."""
    return tm.from_dict({"k": KEYS, "x": VALUES})


def test_columns(data: tm.DataSet) -> None:
    assert data.columns == ["k", "x"]
    assert data.schema == {"k": "Utf8", "x": "Int64"}
    assert data.select("x", y=tm.col("x") + 1).columns == ["x", "y"]
    assert data.select(["k", tm.col("x").alias("z")]).columns == ["k", "z"]
    assert data.with_columns(tm.col("x") * 2, n=tm.lit(None)).columns == ["k", "x", "n"]
    assert data.drop("k").columns == data.drop(["k"]).columns == ["x"]
    assert data.rename({"k": "key"}).columns == ["key", "x"]


def test_a_replaced_column_keeps_its_place(data: tm.DataSet) -> None:
    doubled = data.with_columns(tm.col("x") * 2).select("x").to_dict()["x"]
    assert collections.Counter(doubled) == collections.Counter(None if x is None else 2 * x for x in VALUES)


def test_filter_leaves_out_false_and_null(data: tm.DataSet) -> None:
    kept = data.filter(tm.col("x") > 25, tm.col("k") == "a")
    pairs = zip(KEYS, VALUES, strict=True)
    assert rows(kept) == sorted(
        ((k, x) for k, x in pairs if x is not None and x > 25 and k == "a"), key=lambda r: str(r[1])
    )
    assert data.drop_nulls().count() == sum(k is not None and x is not None for k, x in zip(KEYS, VALUES, strict=True))


def test_group_by_against_python(data: tm.DataSet) -> None:
    groups: dict[str | None, list[int]] = collections.defaultdict(list)
    for k, x in zip(KEYS, VALUES, strict=True):
        groups[k] += [] if x is None else [x]
    x = tm.col("x")
    found = data.group_by("k").agg(
        sum=x.sum(),
        mean=x.mean(),
        low=x.min(),
        high=x.max(),
        n=x.count(),
        rows=tm.count(),
        unique=x.n_unique(),
        std=x.std(),
        var=x.var(),
        median=x.median(),
        p75=x.quantile(0.75),
        big=x.sum(where=x > 25),
        spread=x.max() - x.min(),
    )
    by_key = {row["k"]: row for row in found.collect()}
    assert set(by_key) == set(groups)
    for key, values in groups.items():
        row = by_key[key]
        assert row["sum"] == sum(values)
        assert row["mean"] == pytest.approx(statistics.fmean(values))
        assert (row["low"], row["high"], row["spread"]) == (min(values), max(values), max(values) - min(values))
        assert (row["n"], row["rows"]) == (len(values), KEYS.count(key))
        assert row["unique"] == len(set(values))
        assert row["std"] == pytest.approx(statistics.stdev(values))
        assert row["var"] == pytest.approx(statistics.variance(values))
        assert row["median"] == statistics.median(values)
        assert row["p75"] == pytest.approx(statistics.quantiles(values, n=4, method="inclusive")[2])
        assert row["big"] == sum(value for value in values if value > 25)


def test_aggregates_are_called_after_their_column(data: tm.DataSet) -> None:
    assert data.group_by("k").agg(tm.col("x").sum()).columns == ["k", "x"]
    assert data.group_by("k").count().columns == ["k", "count"]
    assert data.select(tm.col("x").sum(), tm.count()).to_pylist() == [
        {"x": sum(x for x in VALUES if x is not None), "count": len(VALUES)}
    ]


def test_group_by_an_expression() -> None:
    data = tm.from_dict({"x": [1, 2, 3, 4, 5]})
    found = data.group_by((tm.col("x") % 2).alias("odd")).agg(tm.col("x").to_list(order_by="x"))
    assert rows(found) == [(0, [2, 4]), (1, [1, 3, 5])]


def test_first_and_last_follow_their_order() -> None:
    data = tm.from_dict({"k": [1, 1, 2], "t": [5, 3, 1], "v": ["late", "early", "only"]})
    v = tm.col("v")
    assert rows(data.group_by("k").agg(a=v.first("t"), b=v.last("t"))) == [(1, "early", "late"), (2, "only", "only")]


LEFT = {"k": [1, 2, 2, None, 4], "v": ["a", "b", "c", "d", "e"]}
RIGHT = {"k": [2, 2, 4, 5, None], "v": ["x", "y", "z", "w", "n"], "w": [1, 2, 3, 4, 5]}
INNER: list[tuple[Any, ...]] = [
    (2, "b", "x", 1),
    (2, "b", "y", 2),
    (2, "c", "x", 1),
    (2, "c", "y", 2),
    (4, "e", "z", 3),
]
LEFT_ONLY: list[tuple[Any, ...]] = [(1, "a", None, None), (None, "d", None, None)]
RIGHT_ONLY: list[tuple[Any, ...]] = [(5, None, "w", 4), (None, None, "n", 5)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", INNER),
        ("left", INNER + LEFT_ONLY),
        ("right", INNER + RIGHT_ONLY),
        ("full", INNER + LEFT_ONLY + RIGHT_ONLY),
        ("outer", INNER + LEFT_ONLY + RIGHT_ONLY),
        ("semi", [(2, "b"), (2, "c"), (4, "e")]),
        ("anti", [(1, "a"), (None, "d")]),
    ],
)
def test_joins(how: Any, expected: list[tuple[Any, ...]]) -> None:
    joined = tm.from_dict(LEFT).join(tm.from_dict(RIGHT), on="k", how=how)
    assert joined.columns == (["k", "v"] if how in ("semi", "anti") else ["k", "v", "v_right", "w"])
    assert collections.Counter(rows(joined)) == collections.Counter(expected)


def test_join_by_other_names_and_cross() -> None:
    left, right = tm.from_dict({"a": [1, 2]}), tm.from_dict({"b": [2, 3], "a": ["x", "y"]})
    assert rows(left.join(right, left_on="a", right_on="b")) == [(2, "x")]
    assert left.join(right, left_on="a", right_on="b").columns == ["a", "a_right"]
    assert rows(left.join(right, how="cross")) == [(1, 2, "x"), (1, 3, "y"), (2, 2, "x"), (2, 3, "y")]


def test_a_table_joins_itself() -> None:
    data = tm.from_dict({"k": [1, 2], "v": [10, 20]})
    assert rows(data.join(data, on="k").join(data, on="k", suffix="_3")) == [(1, 10, 10, 10), (2, 20, 20, 20)]


def test_sort(data: tm.DataSet) -> None:
    found = data.sort("k", "x", descending=[True, False]).to_pylist()
    # Nulls come last in both directions.
    order = {"c": 0, "b": 1, "a": 2, None: 3}
    pairs = sorted(zip(KEYS, VALUES, strict=True), key=lambda p: (order[p[0]], p[1] is None, p[1] or 0))
    assert [(row["k"], row["x"]) for row in found] == pairs
    assert data.sort(-tm.col("x"), nulls_last=False).limit(3, skip=VALUES.count(None)).to_dict()["x"] == [49, 49, 49]


def test_rows_of_a_plain_table_keep_their_order(data: tm.DataSet) -> None:
    assert data.to_dict() == {"k": KEYS, "x": VALUES}


def test_limit_distinct_union(data: tm.DataSet) -> None:
    assert data.limit(3).count() == 3
    assert data.head(0).to_pylist() == []
    assert data.distinct().count() == len(set(zip(KEYS, VALUES, strict=True)))
    assert data.distinct("k").count() == 4
    twice = data.union(data.select("x", "k"))
    assert twice.columns == ["k", "x"]
    assert collections.Counter(rows(twice)) == collections.Counter(
        {pair: 2 * n for pair, n in collections.Counter(rows(data)).items()}
    )


def test_explode_and_repartition(data: tm.DataSet) -> None:
    lists = tm.from_dict({"k": ["a", "b"], "v": [[1, 2], [3]]})
    assert rows(lists.explode("v")) == [("a", 1), ("a", 2), ("b", 3)]
    assert data.repartition(5).count() == len(KEYS)
    assert rows(data.repartition(3, "k")) == rows(data)
    with pytest.raises(tm.DataSetError, match=r"repartition\(-1\): there must be at least one partition"):
        data.repartition(-1)


def test_cache_reads_once(tmp_path: object) -> None:
    cached = tm.from_dict({"x": [3, 1]}).filter(tm.col("x") > 1).cache()
    assert cached.to_dict() == {"x": [3]}
    assert cached.schema == {"x": "Int64"}


def test_windows() -> None:
    data = tm.from_dict({"k": ["a", "a", "b", "a"], "t": [1, 2, 3, 4], "x": [1.0, 2.0, 10.0, 6.0]})
    x = tm.col("x")
    found = data.with_columns(
        share=x / x.sum().over("k"),
        total=x.sum().over("k", order_by="t"),
        pair=x.mean().over("k", order_by="t", rows=(-1, 0)),
        row=tm.functions.row_number().over("k", order_by="t"),
        rank=tm.functions.rank().over(order_by="x", descending=True),
        before=x.shift().over("k", order_by="t"),
        after=x.shift(-1).over("k", order_by="t"),
    ).sort("t")
    assert found.to_dict() == {
        "k": ["a", "a", "b", "a"],
        "t": [1, 2, 3, 4],
        "x": [1.0, 2.0, 10.0, 6.0],
        "share": [1 / 9, 2 / 9, 1.0, 6 / 9],
        "total": [1.0, 3.0, 10.0, 9.0],
        "pair": [1.0, 1.5, 10.0, 4.0],
        "row": [1, 2, 1, 3],
        "rank": [4, 3, 1, 2],
        "before": [None, 1.0, None, 2.0],
        "after": [2.0, 6.0, None, None],
    }
    assert rows(data.filter(x == x.max().over("k")).select("k", "x")) == [("a", 6.0), ("b", 10.0)]


def test_sql(data: tm.DataSet) -> None:
    found = tm.sql("SELECT k, COUNT(*) AS N FROM data WHERE x > 10 GROUP BY k", data=data)
    assert found.columns == ["k", "N"]
    count = collections.Counter(k for k, x in zip(KEYS, VALUES, strict=True) if x is not None and x > 10)
    assert dict(rows(found)) == dict(count)
    both = tm.sql(
        "select a.Key, b.v from a join b on a.Key = b.Key",
        a=tm.from_dict({"Key": [1]}),
        b=tm.from_dict({"Key": [1], "v": [2]}),
    )
    assert both.to_pylist() == [{"Key": 1, "v": 2}]
    assert both.filter(tm.col("v") > 1).count() == 1
    with pytest.raises(tm.DataSetError, match="sql: no table 'trades', there are data; pass it under that name"):
        tm.sql("SELECT * FROM data WHERE x > (SELECT max(x) FROM trades)", data=data)


def test_a_table_of_sql_may_have_any_name() -> None:
    """A table called ``query`` was mistaken for the query."""
    assert tm.sql("select x from query", query=tm.from_dict({"x": [1]})).to_dict() == {"x": [1]}


def test_split_texts_are_exploded_in_one_step() -> None:
    """The same as in two steps, which `list` separates, and in SQL: empty strings and nulls have no parts."""
    texts = ["", None, "a", " ", "a  b", "one that is longer than twelve bytes", "x y " * 30]
    for kind in pa.string(), pa.large_string(), pa.string_view():
        lines = tm.from_arrow(pa.table({"i": list(range(len(texts))), "line": pa.array(texts, kind)}))
        split = lines.select("i", word=tm.col("line").str.split(" "))
        assert "SplitExec" in split.explode("word").explain() and "UnnestExec" not in split.explode("word").explain()
        expected = [(i, word) for i, text in enumerate(texts) if text for word in text.split(" ")]
        found = split.explode("word").to_dict()
        assert list(zip(found["i"], found["word"], strict=True)) == expected
        apart = split.with_columns(n=tm.col("word").list.len()).explode("word").drop("n")
        assert apart.to_dict() == found
        only = tm.sql("select unnest(string_to_array(line, ' ')) as word from lines", lines=lines)
        assert only.to_dict()["word"] == found["word"]


def test_aggregates_with_an_order_of_their_own_over_windows() -> None:
    data = tm.from_dict({"k": ["a", "a", "b", "a"], "n": [3, 1, 9, 2]})
    n = tm.col("n")
    found = data.select(
        "k", "n", up=n.to_list("n").over("k"), first=n.first("n").over("k"), last=n.last("n").over("k")
    ).sort("k", "n")
    assert found.to_dict() == {
        "k": ["a", "a", "a", "b"],
        "n": [1, 2, 3, 9],
        "up": [[1, 2, 3]] * 3 + [[9]],
        "first": [1, 1, 1, 9],
        "last": [3, 3, 3, 9],
    }
    with pytest.raises(tm.DataSetError, match="has an order of its own: leave out order_by and rows"):
        n.first("n").over("k", order_by="n")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select k from a except all select k from b", "would not count repeated rows"),
        ("with c as (select k from a union select k from b intersect all select k from a) select * from c", "ALL"),
        ("select k from a tablesample (10 percent)", "DataSet.sample takes a sample of the rows"),
        ("select k from a prewhere k > 1", "write WHERE"),
    ],
)
def test_sql_that_would_mean_something_else(query: str, message: str) -> None:
    a, b = tm.from_dict({"k": [1, 2], "n": [1, 2]}), tm.from_dict({"k": [2, 3]})
    with pytest.raises(tm.DataSetError, match=message):
        tm.sql(query, a=a, b=b)
    assert tm.sql("select k from a left join b using (k) except select 1", a=a, b=b).to_dict() == {"k": [2]}


def test_explain(data: tm.DataSet) -> None:
    grouped = data.group_by("k").agg(tm.col("x").sum())
    assert "Aggregate" in grouped.explain("logical")
    assert "AggregateExec" in grouped.explain()
    assert "output_rows" in grouped.explain("analyze")


def test_show_and_repr(capsys: pytest.CaptureFixture[str], data: tm.DataSet) -> None:
    """A null is distinguishable from an empty string, and the display of rows includes types."""
    names = tm.from_dict({"name": ["x", None, ""]})
    names.show()
    assert capsys.readouterr().out == "+------+\n| name |\n+------+\n| x    |\n| null |\n|      |\n+------+\n"
    data.show(25)
    assert len(capsys.readouterr().out.splitlines()) == 25 + 4
    assert repr(names) == "+------+\n| name |\n| Utf8 |\n+------+\n| x    |\n| null |\n|      |\n+------+"
    assert repr(data).endswith("... more rows; count() says how many") and len(repr(data).splitlines()) == 10 + 5 + 1
    assert repr(data.collect()).endswith(f"... {len(KEYS) - 20} more rows")
    cells = tm.from_dict({"<b>": ["a<b", None, "x" * 200]})
    for html in (cells._repr_html_(), cells.collect()._repr_html_()):
        assert (
            "<th>&lt;b&gt;</th>" in html
            and "<td>a&lt;b</td>" in html
            and "<i>null</i>" in html
            and "x" * 81 not in html
        )
    assert "... more rows" in data._repr_html_() and f"... {len(KEYS) - 20} more rows" in data.collect()._repr_html_()


def test_a_display_runs_nothing_that_takes_long_or_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A debugger, a traceback or a prompt may request it at any time."""
    from tidemill._tables import shown as _shown

    failing = tm.from_dict({"s": ["a"]}).select(tm.col("s").cast("int64"))
    assert (
        repr(failing).startswith("<DataSet s: Int64; its rows cannot be made: ")
        and "cannot be made" in failing._repr_html_()
    )
    assert "a stream" in repr(tm.stream.from_generator(10))
    (tmp_path / "a.csv").write_text("x\n1\nzwei\n")
    lenient = tm.read_csv(str(tmp_path / "a.csv"), schema={"x": "int64"}, on_error="skip")
    assert repr(lenient).startswith("<DataSet x: Int64; show() prints its first rows")
    monkeypatch.setattr(_shown, "_PATIENCE_S", 0.0)
    slow = tm.from_dict({"x": [1]}).map(lambda row: time_module.sleep(3) or row, {"x": "int64"})
    began = time_module.monotonic()
    assert "its rows take more than" in repr(slow)
    assert time_module.monotonic() - began < 60


def test_tables_can_be_pickled(data: tm.DataSet) -> None:
    table = data.collect()
    assert pickle.loads(pickle.dumps(table)).to_dict() == table.to_dict()
    assert table.slice(3, 2).to_dict()["k"] == KEYS[3:5]
    assert (len(table), table.num_rows, table["k"][:3]) == (len(KEYS), len(KEYS), KEYS[:3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda d: d.select("X"), r'no column "X" \(did you mean "x"\?\); there are: k, x$'),
        (lambda d: d.filter(tm.col("kk") == 1), r'no column "kk" \(did you mean "k"\?\)'),
        (lambda d: d.drop("y"), r'no column "y"'),
        (lambda d: d.sort("y"), r'no column "y"'),
        (lambda d: d.group_by("y").agg(tm.count()), r'no column "y"'),
        (
            lambda d: d.group_by("k").agg(s=tm.col("x")),
            r'column "x" is neither a key nor aggregated.* col\("x"\)\.sum\(\)',
        ),
        (lambda d: d.group_by("k").agg(s=tm.col("y")), r'no column "y"; there are: k, x'),
        (lambda d: d.join(d, on="y"), r'no column "y"'),
        (lambda d: d.rename({"y": "z"}), r'no column "y"'),
        (lambda d: d.rename({"k": "x"}), r"x"),
        (lambda d: d.join(d.select(k=tm.lit(1)), on="k"), r'cannot join "k" of type Utf8 with "k" of type Int64'),
        (lambda d: d.join(d), r"needs columns to join on"),
        (lambda d: d.join(d, on="k", how="outre"), r'unknown join "outre"'),
        (lambda d: d.union(d.drop("k")), r'only the first has \["k"\]'),
        (lambda d: d.with_columns(tm.col("x").sum()), r"over\(\)"),
        (lambda d: d.with_columns(tm.col("x").over("k")), r"over\(\)"),
        (lambda d: d.filter(tm.col("x") + 1), r"(?i)boolean"),
        (lambda d: tm.functions.scalar("uper", tm.col("k")), r'no function "uper" \(did you mean "upper"\?\)'),
        (lambda d: tm.col("x").cast("integer"), r'unknown type "integer"'),
        (lambda d: tm.sql("select nope from d", d=d), r'no column "nope"'),
        (lambda d: tm.sql("selec x from d", d=d), r"SQL"),
        (lambda d: tm.sql("drop table d", d=d), r"DDL"),
        (lambda d: tm.sql("select * from missing"), r"missing"),
        (lambda d: tm.sql("select * from 'missing.csv'"), r"sql: there is no file '/.*/missing\.csv'"),
        (
            lambda d: tm.sql("select * from '/dev/null'"),
            r"/dev/null: SQL recognizes files by their names, which end with .*; the read functions support more",
        ),
        (
            lambda d: d.select(tm.col("k").cast("int64")).collect(),
            r"Cannot cast string '[abc]' to value of Int64 type, in cast\(k as Int64\); cast\(..., strict=False\)",
        ),
        (
            lambda d: d.filter(tm.col("k") == 1).collect(),
            r"Cannot cast string '[abc]' to value of Int64 type, in cast\(k as Int64\)",
        ),
        (
            lambda d: d.select(tm.col("k").cast("datetime")).collect(),
            r"parsing timestamp from '[abc]'.*, in cast\(k as Timestamp",
        ),
        (
            lambda d: (
                d.select(tm.col("x").cast("int64") * 100, z=tm.col("x").cast("int8") * 1)
                .filter(tm.col("x") > 0)
                .select((tm.col("x") * 10).cast("int8"))
                .collect()
            ),
            r"Can't cast value \d+ to type Int8, in ",
        ),
        (lambda d: d.select(tm.col("x") // 0).collect(), r"(?i)divide by zero error, in the divisor 0"),
        (
            lambda d: d.select(tm.col("x") % (tm.col("x") - tm.col("x"))).collect(),
            r"Divide by zero error, in the divisor x - x;",
        ),
        (
            lambda d: d.select(s=tm.col("x").sum(), k="k"),
            r'select: sum\(x\) has one value for all rows, but "k" has one per row; give the former a window with over\(\)',
        ),
        (lambda d: d.select(tm.col("x").sum(), tm.col("x")), r'two columns would be named "x"; rename one of them'),
        (lambda d: d.select("x", x=tm.col("k")), r'two columns would be named "x"; rename one of them'),
        (lambda d: tm.from_dict({"l": [[[1]]]}).select(tm.col("l").max()), r"no max of List\(.*cannot be ordered"),
        (lambda d: d.with_row_index("x"), r'with_row_index: column "x" already exists'),
        (lambda d: d.sort([]), r"sort needs at least one column"),
        (lambda d: d.collect(root=1), r"root=1: no such worker"),
    ],
)
def test_mistakes_are_named(data: tm.DataSet, wrong: object, message: str) -> None:
    with pytest.raises(tm.DataSetError, match=message) as caught:
        wrong(data)  # type: ignore[operator]
    assert isinstance(caught.value, tm.TidemillError)


def test_wrong_kinds_of_arguments() -> None:
    data = tm.from_dict({"x": [1]})
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(tm.col("x") == 1)
    with pytest.raises(TypeError, match="filter needs expressions"):
        data.filter("x")  # type: ignore[arg-type]
    for call, words in {
        lambda: data.union(pl.DataFrame({"x": [1]})): "union needs DataSets, not DataFrame; from_arrow makes one",
        lambda: data.union([data]): "union needs DataSets, not list",
        lambda: data.join(data, on=tm.col("x")): "join takes names of columns, not an expression",
        lambda: data.join(data, on=[tm.col("x")]): "join takes names of columns, not an expression",
        lambda: data.drop(tm.col("x")): "drop takes names of columns, not an expression",
        lambda: data.distinct(5): "distinct takes names of columns, not 5",
        lambda: tm.from_dict([{"x": 1}]): "from_dict takes lists by column, .*, not a list",
        lambda: tm.from_dict({"x": 5}): "column 'x' must be a list of values, not 5",
        lambda: tm.from_dict({"x": "ab"}): "column 'x' must be a list of values, not 'ab'",
    }.items():
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(TypeError, match="values of type object cannot become literals"):
        tm.lit(object())
    with pytest.raises(TypeError, match="Int64 and Utf8"):
        tm.from_dict({"x": [1, "a"]})
    with pytest.raises(TypeError, match="time-of-day values cannot have a time zone"):
        tm.from_dict({"t": [time(13, 45, tzinfo=UTC)]})
    assert tm.from_dict({"t": ["13:45:00"]}, {"t": "time"}).to_dict() == {"t": [time(13, 45)]}
    with pytest.raises(tm.DataSetError, match="different lengths"):
        tm.from_dict({"x": [1], "y": []})


def test_import_is_light() -> None:
    """Importing tidemill loads neither the native module's users nor NumPy; the first DataSet does not need pyarrow."""
    program = (
        "import sys, tidemill as tm\n"
        "assert not {'tidemill.dataset', 'numpy', 'pyarrow'} & set(sys.modules)\n"
        "assert tm.from_dict({'x': [1]}).count() == 1\n"
        "assert not {'pyarrow', 'pandas', 'polars'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_tables_of_arrow_need_no_pandas() -> None:
    """pyarrow imports pandas to check for a frame, which takes a third of a second on every worker with a function on
    batches.
    """
    program = (
        "import sys, tidemill as tm\n"
        "data = tm.from_dict({'x': [1, 2]})\n"
        "assert data.map_batches(lambda batch: batch).to_arrow()['x'].to_pylist() == [1, 2]\n"
        "assert data.filter(tm.col('x') > 2).collect().to_arrow().schema.names == ['x']\n"
        "assert 'pyarrow' in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_columns_in_lists() -> None:
    """In the forms that `select` accepts; they were "not an instance of 'str'"."""
    data = tm.from_dict({"k": ["a", "a", None], "x": [1, 1, 2], "l": [[1], [2], [3]]})
    assert data.distinct(["k", "x"]).count() == data.distinct("k", ["x"]).count() == 2
    assert data.drop_nulls(["k"]).count() == 2
    assert data.explode(["l"]).count() == 3
    assert data.key_by(["k", "x"]).apply(lambda key, table: key).count() == 2


def test_a_column_of_a_table_is_that_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other columns were converted to Python values, too, and discarded."""
    table = tm.from_dict({"x": [1, 2], "s": ["a", "b"]}).collect()
    monkeypatch.delattr(tm.Table, "to_dict")
    assert table["s"] == ["a", "b"]
    with pytest.raises(KeyError, match="t"):
        table["t"]


def test_arrays_of_columns() -> None:
    """Dates, times and fixed-size lists became arrays of Python objects."""
    columns: dict[str, Any] = {
        "day": pa.array([1, 2], pa.date32()),
        "ms": pa.array([dt.date(1970, 1, 2), dt.date(1970, 1, 3)], pa.date64()),
        "zone": pa.array([1, 2], pa.timestamp("ns", "Europe/Paris")),
        "s": pa.array([1, 2], pa.timestamp("s")),
        "span": pa.array([1, 2], pa.duration("us")),
        "point": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    }
    arrays = tm.from_arrow(pa.table(columns)).persist_local()
    days = np.array(["1970-01-02", "1970-01-03"], "M8[D]")
    expected = {
        "day": days,
        "ms": days.astype("M8[ms]"),
        "zone": np.array([1, 2], "M8[ns]"),
        "s": np.array([1, 2], "M8[s]"),
        "span": np.array([1, 2], "m8[us]"),
        "point": np.array([[1, 2], [3, 4]], "f4"),
    }
    for name, array in arrays.items():
        assert array.dtype == expected[name].dtype and (array == expected[name]).all() and array.flags.writeable, name
    empty = tm.from_arrow(pa.table(columns)).limit(0).collect().to_numpy()
    assert empty["point"].shape == (0, 2) and empty["s"].dtype == "M8[s]"
    # With nulls they are objects, as numbers are.
    nulls = {"day": pa.array([None, 2], pa.date32()), "point": pa.array([None, [1, 2]], pa.list_(pa.int8(), 2))}
    assert tm.from_arrow(pa.table(nulls)).collect().to_numpy()["day"].tolist() == [None, dt.date(1970, 1, 3)]
    assert tm.from_arrow(pa.table(nulls)).collect().to_numpy()["point"].tolist() == [None, [1, 2]]


def test_sample_and_describe() -> None:
    data = tm.from_dict({"x": list(range(20_000)), "s": ["a"] * 20_000})
    assert data.sample(0.0).count() == 0 and data.sample(1.0).count() == 20_000
    # Six standard deviations: this does not fail by chance.
    assert abs(data.sample(0.25).count() - 5000) < 6 * (20_000 * 0.25 * 0.75) ** 0.5
    with pytest.raises(ValueError, match="between 0 and 1"):
        data.sample(2)


def test_describe() -> None:
    """Every column is included, whatever its type; numbers agree with the module `statistics`."""
    x, day = [5.0, 1.0, None, 2.5, 10.0], dt.date(2024, 2, 28)
    data = tm.from_dict(
        {
            "x": x,
            "i": [2**53, -(2**53), None, 1, 2],
            "s": ["b", None, "", "z", "a"],
            "d": [day, day + dt.timedelta(days=2), None, None, None],
            "t": [None, dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 3), None, None],
            "b": [True, False, None, True, True],
            "l": [[1], None, [], [2], [3]],
        }
    )
    table = data.describe()
    assert table["statistic"] == ["count", "null_count", "mean", "std", "min", "25%", "50%", "75%", "max"]
    numbers = [value for value in x if value is not None]
    quartiles = statistics.quantiles(numbers, n=4, method="inclusive")
    expected = [4, 1, statistics.fmean(numbers), statistics.stdev(numbers), 1.0, *quartiles, 10.0]
    assert table["x"] == pytest.approx(expected)
    assert (table["i"][2], table["i"][6], table["i"][8]) == (0.75, 1.5, float(2**53))
    assert table["s"] == ["4", "1", None, None, "", None, None, None, "z"]
    assert table["d"] == ["2", "3", "2024-02-29", None, "2024-02-28", None, None, None, "2024-03-01"]
    assert table["t"][2] == "2024-01-02T00:00:00" and table["t"][8] == "2024-01-03T00:00:00"
    assert table["b"] == pytest.approx([4, 1, 0.75, 0.5, 0.0, 0.75, 1.0, 1.0, 1.0])
    assert table["l"] == ["4", "1", *[None] * 7]
    assert data.filter(tm.col("x") > 100).describe()["x"] == [0, 0, *[None] * 7]


def test_arrays_go_there_and_back() -> None:
    """The result of `to_numpy` is valid input for `from_numpy`, along with other columns."""
    day, time = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, 2, 3, 4)
    table = tm.from_dict(
        {
            "i": [1, 2, 3],
            "n": [1, None, 3],
            "f": [0.5, float("inf"), 2.0],
            "s": ["é", None, ""],
            "d": [day, dt.date(1, 1, 1), dt.date(9999, 12, 31)],
            "t": [time, time, dt.datetime(1, 1, 1)],
            "u": [dt.timedelta(microseconds=1), dt.timedelta(days=-1), dt.timedelta(0)],
            "nd": [day, None, day],
            "b": [True, False, True],
            "nb": [True, None, False],
            "y": [b"\x00", None, b""],
            "l": [[1, 2], [], None],
            "m": [{"a": 1}, None, {"a": 2}],
        }
    ).collect()
    back = tm.Table.from_numpy(table.to_numpy())
    assert back.to_dict() == table.to_dict()
    assert back.columns == table.columns
    fixed = tm.from_arrow(pa.table({"p": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))})).collect()
    assert tm.Table.from_numpy(fixed.to_numpy()).schema == fixed.schema

    masked = np.ma.masked_array([1, 2], mask=[False, True])
    columns: dict[str, Any] = {
        "text": np.array(["ab", "c"]),
        "bytes": np.array([b"ab", b"c"]),
        "list": ["x", None],
        "masked": masked,
        "mixed": [1.5, None],
        "nat": np.array(["2024-01-01T01", "NaT"], "M8[h]"),
        "month": np.array(["2024-02", "NaT"], "M8[M]"),
        "ns": np.array([1, 2], "m8[ns]"),
        "big": np.array([1, 2], ">i4"),
        "step": np.arange(4)[::2],
        "deep": np.arange(8).reshape(2, 2, 2),
        "times": np.array([["2024-01-01"], ["NaT"]], "M8[D]"),
        "nan": np.array(["a", float("nan")], object),
    }
    found = tm.Table.from_numpy(columns)
    assert found.to_dict() == {
        "text": ["ab", "c"],
        "bytes": [b"ab", b"c"],
        "list": ["x", None],
        "masked": [1, None],
        "mixed": [1.5, None],
        "nat": [dt.datetime(2024, 1, 1, 1), None],
        "month": [dt.date(2024, 2, 1), None],
        "ns": [dt.timedelta(0), dt.timedelta(0)],
        "big": [1, 2],
        "step": [0, 2],
        "deep": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        "times": [[dt.date(2024, 1, 1)], [None]],
        "nan": ["a", None],
    }
    assert found.schema["ns"] == "Duration(ns)" and found.schema["big"] == "Int32"
    for wrong, words in (
        ({"a": [1], "b": [1, 2]}, "columns have different lengths: {'a': 1, 'b': 2}"),
        ({"a": np.array([1j])}, "column 'a' holds complex numbers"),
        ({"a": np.zeros(1, [("x", int)])}, "column 'a' holds records"),
        ({"a": np.array(1)}, "column 'a' is one value"),
        ({"a": 1}, "column 'a' is an array or a list of values, not 1"),
        ({"a": "text"}, "column 'a' is an array or a list of values, not 'text'"),
        ({"a": np.array([1], "m8[M]")}, "how long a month is"),
        ({"a": np.array([1, "x"], object)}, "column 'a': values of one column have types Int64 and Utf8"),
        ({"a": np.array([object()])}, "column 'a': values of type object cannot become literals"),
        ({"a": np.zeros(1, np.longdouble)}, "column 'a' is of float128"),
    ):
        with pytest.raises(tm.DataSetError, match=re.escape(words)):
            tm.Table.from_numpy(wrong)


def test_whole_numbers_of_64_bits() -> None:
    """Integers of 2^63 or more meet smaller ones in rows that functions return, too; means have all their digits."""
    large = [1, 2**63, None, 2**64 - 1]
    data = tm.from_dict({"x": large}, {"x": "uint64"})
    assert data.map(lambda row: row).to_dict()["x"] == large
    assert tm.from_dict({"x": [2**63, 1.5, 1]}).to_dict()["x"] == [2.0**63, 1.5, 1.0]
    for values, words in (([-1, 2**63], "no integer type holds both"), ([2**64], "more than 64 bits")):
        with pytest.raises(OverflowError, match=words):
            tm.from_dict({"x": values})
    x, least, most = tm.col("x"), -(2**63), 2**63 - 1
    signed = tm.from_dict({"k": [1, 1, 1, 2, 3], "x": [least, most, 7, None, most]})
    assert signed.select(x.mean()).to_dict()["x"] == [float((least + 2 * most + 7) / 4)]
    assert rows(signed.group_by("k").agg(x.mean())) == [(1, 2.0), (2, None), (3, float(most))]
    assert data.select(x.mean(), m=x.mean(where=x > 1)).to_dict() == {
        "x": [(3 * 2**63) / 3],
        "m": [float((2**63 + 2**64 - 1) / 2)],
    }
    twice = tm.from_dict({"k": [1, 2, 1, 1], "x": [least, 3, most, most]})
    found = tm.sql("select k, avg(distinct x) as m from t group by k order by k", t=twice).to_dict()
    assert found == {"k": [1, 2], "m": [-0.5, 3.0]}
    running = tm.from_dict({"i": [1, 2, 3, 4], "x": [most, least, 6, 8]}).with_columns(
        x.mean().over(order_by="i", rows=(-1, 0))
    )
    assert running.sort("i").to_dict()["x"] == [float(most), -0.5, (least + 6) / 2, 7.0]
    for kind in ("int8", "uint32", "float32", "decimal(5, 1)"):
        small = tm.from_dict({"x": [1, 2]}).select(x.cast(kind).mean())
        assert small.schema["x"] == ("Decimal128(9, 5)" if kind.startswith("decimal") else "Float64")
        assert [float(value) for value in small.to_dict()["x"]] == [1.5]
    with pytest.raises(tm.DataSetError, match=r"^there is no avg of Utf8; cast it to a type that has one$"):
        tm.from_dict({"x": ["a"]}).select(x.mean()).collect()
