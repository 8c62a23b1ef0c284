"""Functions of programs as steps of a query."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import standing
import tidemill as tm
from datasets import rows


def numbers(count: int = 20_000) -> tm.DataSet:
    return tm.from_dict({"x": list(range(count)), "k": [f"k{i % 7}" for i in range(count)]})


def test_batches() -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert isinstance(batch, pa.RecordBatch)
        return pa.record_batch({"y": pc.multiply(batch["x"], 2), "k": batch["k"]})

    doubled = numbers().map_batches(double)
    assert doubled.schema == {"y": "Int64", "k": "Utf8"}
    assert rows(doubled.select(tm.col("y").sum())) == [(2 * sum(range(20_000)),)]
    # Only the requested columns come out, and further steps follow.
    assert doubled.filter(tm.col("y") > 39_990).sort("y").to_dict()["y"] == [39_992, 39_994, 39_996, 39_998]
    # One partition makes one batch; with several threads, each has one.
    many = numbers(10).repartition(1).map_batches(lambda batch: [batch, None or batch.slice(0, 1)])
    assert many.count() == 11
    assert numbers(10).map_batches(lambda batch: None, schema={"z": "int64"}).count() == 0
    # Texts are texts, however they lie in memory.
    texts = numbers(3).map_batches(lambda batch: batch.select(["k"]), schema={"k": "str"})
    assert texts.sort("k").to_dict() == {"k": ["k0", "k1", "k2"]}
    assert numbers(10).map_batches(lambda batch: pa.Table.from_batches([batch])).count() == 10


def test_rows() -> None:
    assert numbers().map(lambda row: {"y": row["x"] + 0.5}).select(tm.col("y").sum()).to_dict() == {
        "y": [sum(range(20_000)) + 10_000.0]
    }
    words = tm.from_dict({"line": ["a b", "", "c a a"]})
    split = words.flat_map(lambda row: [{"word": word} for word in row["line"].split()])
    assert rows(split.group_by("word").count()) == [("a", 3), ("b", 1), ("c", 1)]
    assert numbers(100).filter(lambda row: row["x"] % 10 == 3, tm.col("x") < 50).sort("x").to_dict()["x"] == [
        3,
        13,
        23,
        33,
        43,
    ]
    typed = numbers(3).map(lambda row: {"n": None}, schema={"n": "float32"})
    assert typed.schema == {"n": "Float32"} and typed.to_dict() == {"n": [None] * 3}


def test_reduce_and_keys() -> None:
    def larger(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
        return one if one["x"] > two["x"] else two

    assert numbers().reduce(larger) == {"x": 19_999, "k": "k0"}
    assert numbers(0).filter(tm.col("x") > 0).reduce(larger) is None
    top = rows(numbers().key_by("k").reduce(larger))
    assert top == sorted((x, f"k{x % 7}") for x in range(19_993, 20_000))

    def spread(key: dict[str, Any], table: tm.Table) -> dict[str, Any]:
        x = table.to_dict()["x"]
        return {**key, "least": min(x), "rows": len(table)}

    applied = numbers(70).key_by("k").apply(spread)
    assert rows(applied) == [(f"k{i}", i, 10) for i in range(7)]
    all_rows = numbers(70).key_by("k").apply(lambda key, table: table)
    assert rows(all_rows) == rows(numbers(70))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (
            lambda: numbers(10).map(lambda row: {"y": 1 // row["x"]}, {"y": "int64"}).collect(),
            ["'x': 0", "ZeroDivisionError"],
        ),
        (lambda: numbers(10).map_batches(lambda batch: 3, {"y": "int64"}).collect(), ["int"]),
        (
            lambda: numbers(10).map_batches(lambda batch: batch, {"x": "int64"}).collect(),
            ["returned the columns x: Int64, k: Utf8, but x: Int64 were declared"],
        ),
        (lambda: numbers(10).map(lambda row: {"z": 1}, {"y": "int64"}).collect(), ["['z'] but ['y']"]),
        (lambda: numbers(10).map(lambda row: row["x"], {"y": "int64"}).collect(), ["a row must be a dict, not int"]),
        (lambda: numbers(10).map(lambda row: {"y": "a"}, {"y": "int64"}).collect(), ["'a'"]),
        (
            lambda: numbers(10).flat_map(lambda row: row),
            ["'x': 0", "flat_map takes a list of rows, but got one row"],
        ),
        # Results of a function are checked for many rows at once; the error names one row all the same.
        (
            lambda: numbers(10).map(lambda row: {"y": "a" if row["x"] == 7 else 1}, {"y": "int64"}).collect(),
            ["returned {'y': 'a'} for the row {'x': 7, 'k': 'k0'}: ", 'in column "y"'],
        ),
        (
            lambda: numbers(10).map(lambda row: {"y": "a" if row["x"] == 7 else 1}),
            ["returned {'y': 'a'} for the row {'x': 7, 'k': 'k0'}: ", 'in column "y"'],
        ),
        (
            lambda: (
                numbers(10)
                .repartition(1)
                .flat_map(lambda row: [{"y" if row["x"] < 3 else "z": 1}] * row["x"], {"y": "int64"})
                .count()
            ),
            ["returned [{'z': 1}, {'z': 1}, {'z': 1}] for the row {'x': 3, 'k': 'k3'}: "],
        ),
        (
            lambda: numbers(9).repartition(1).reduce(lambda one, two: {"x": 1}),
            ["failed on the rows {'x': 0, 'k': 'k0'} and {'x': 1, 'k': 'k1'}: it returned the columns ['x'], not"],
        ),
        (
            lambda: numbers(9).repartition(1).reduce(lambda one, two: 5),
            ["failed on the rows {'x': 0,", "a row must be a dict, not int"],
        ),
        (
            lambda: numbers(9).repartition(1).reduce(lambda one, two: {**one, "x": "a"}),
            ["made the row {'x': 'a', 'k': 'k0'}: "],
        ),
        (
            lambda: (
                numbers(9).key_by("k").reduce(lambda one, two: {**one, "x": "a"} if one["k"] == "k1" else one).collect()
            ),
            ["made the row {'x': 'a', 'k': 'k1'}: ", 'in column "x"'],
        ),
        (
            lambda: numbers(9).map(lambda row: sys.exit(3) if row["x"] == 4 else {"x": 1}, {"x": "int64"}).count(),
            ["failed on the row {'x': 4, 'k': 'k4'}: it called exit(3)"],
        ),
        (
            lambda: numbers(9).map(lambda row: sys.exit("no")),
            ["failed on the row {'x': 0, 'k': 'k0'}: it called exit('no')"],
        ),
        (lambda: numbers(10).map(lambda row: {"y": None}), ["only None in y"]),
        (lambda: numbers(0).filter(tm.col("x") > 1).map(lambda row: row), ["give schema="]),
        (lambda: numbers(9).key_by("k").apply(lambda key, table: 1 / 0, {"y": "int64"}).collect(), ["key {'k': 'k"]),
        (
            lambda: numbers(9).repartition(1).map_batches(lambda batch: 1 / 0, {"y": "int64"}).collect(),
            ["failed on 9 rows, the first {'x': 0, 'k': 'k0'}: division by zero"],
        ),
        (
            lambda: numbers(9).repartition(1).reduce(lambda one, two: 1 / 0),
            ["failed on the rows {'x': 0, 'k': 'k0'} and {'x': 1,"],
        ),
        (
            lambda: numbers(9).key_by("k").reduce(lambda one, two: 1 / 0).collect(),
            ["failed on the rows {'x': ", " and {'x': ", "{'x': 0, 'k': 'k0'}", "{'x': 7, 'k': 'k0'}", "division"],
        ),
    ],
)
def test_errors_say_what_failed(action: Any, words: list[str]) -> None:
    with pytest.raises(tm.DataSetError) as caught:
        action()
    for word in words:
        assert word in str(caught.value)


PROGRAM = """
import os, sys
import tidemill as tm

job = tm.init()
data = tm.from_dict({"x": list(range(40_000)), "k": [i % 11 for i in range(40_000)]})
doubled = data.map(lambda row: {"y": row["x"] * 2, "k": row["k"], "by": os.getpid()})
assert doubled.select(tm.col("y").sum()).to_dict() == {"y": [2 * sum(range(40_000))]}
assert len(doubled.select("by").distinct().to_pylist()) == job.size, "every worker has its share"
assert data.key_by("k").reduce(lambda a, b: {"x": a["x"] + b["x"], "k": a["k"]}).select(tm.col("x").sum()).to_dict() == {
    "x": [sum(range(40_000))]}
assert data.reduce(lambda a, b: {"x": a["x"] + b["x"], "k": 0})["x"] == sum(range(40_000))
def wrong(row):
    if row["x"] == 39_999:
        raise ValueError("this row")
    return row
try:
    data.map(wrong).count()
except tm.DataSetError as error:
    text = str(error)
assert "ValueError: this row" in text and "'x': 39999" in text and "on worker" in text, text
assert all(one == text for one in job.comm.allgather(text))
def on_one(row):
    if job.rank == 0:
        raise ValueError("only here")
    return row
try:
    data.map(on_one)
except tm.DataSetError as error:
    assert "only here" in str(error)
else:
    raise AssertionError("the sample is worker 0's")
assert data.distinct().count() == 40_000
if job.rank == 0:
    print("done")
"""


def test_functions_are_called_again() -> None:
    """A function that fails occasionally is called again with the same rows; one that always fails is an error in the
    end.
    """
    calls: dict[int, int] = {}

    def flaky(row: dict[str, Any]) -> list[dict[str, Any]]:
        calls[row["x"]] = calls.get(row["x"], 0) + 1
        if row["x"] % 3 == 0 and calls[row["x"]] < 3:
            raise OSError("busy")
        return [row]

    data = tm.from_dict({"x": list(range(10))})
    with pytest.warns(RuntimeWarning, match=r"flaky failed \(OSError: busy\); calling it again \(2 of 2\)"):
        again = data.flat_map(flaky, {"x": "int64"}, retries=2)
        assert again.sort("x").to_dict() == {"x": list(range(10))}
    assert all(count == (3 if x % 3 == 0 else 1) for x, count in calls.items())
    calls.clear()
    with pytest.raises(tm.DataSetError, match=r"flaky failed on the row.*busy"), pytest.warns(RuntimeWarning):
        data.flat_map(flaky, {"x": "int64"}, retries=1).count()
    with pytest.raises(tm.DataSetError, match="retries must be a non-negative integer, not -1"):
        data.map_batches(lambda batch: batch, {"x": "int64"}, retries=-1)


def test_every_function_may_be_called_again() -> None:
    """`retries` exists on each step that takes a function: without it the first failure ends the action."""

    def sometimes(function: Any) -> Any:
        calls = iter(range(10**9))

        def busy(*arguments: Any) -> Any:
            if next(calls) % 5 == 0:
                raise OSError("busy")
            return function(*arguments)

        return busy

    def add(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
        return {**one, "x": one["x"] + two["x"]}

    data, whole = numbers(50), sum(range(50))
    steps = [
        lambda r: data.filter(sometimes(lambda row: row["x"] % 2), retries=r).count() == 25,
        lambda r: data.reduce(sometimes(add), retries=r)["x"] == whole,
        lambda r: sum(data.key_by("k").reduce(sometimes(add), retries=r).to_dict()["x"]) == whole,
        lambda r: (
            data.key_by("k").apply(sometimes(lambda key, table: {"n": len(table)}), {"n": "int64"}, retries=r).count()
            == 7
        ),
    ]
    for step in steps:
        with pytest.warns(RuntimeWarning, match="busy"):
            assert step(1)
        with pytest.raises(tm.DataSetError, match="busy"):
            step(0)


def test_each_call_gets_rows_as_they_came() -> None:
    """A function that changed its row before a failing service call changed it twice."""

    def at_first(function: Any) -> Any:
        """Wrap the function so that every second call fails after doing its work."""
        calls = iter(range(10**9))

        def busy(*arguments: Any) -> Any:
            made = function(*arguments)
            if next(calls) % 2 == 0:
                raise OSError("busy")
            return made

        return busy

    def more(row: dict[str, Any]) -> dict[str, Any]:
        row["x"] += 1
        row["s"]["l"].append(row["x"])
        return row

    def add(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
        one["x"] += two.pop("x")
        return {**one, **two}

    def named(key: dict[str, Any], table: tm.Table) -> dict[str, Any]:
        key["k"] += "!"
        return {"k": key["k"], "n": len(table)}

    def known(keys: list[int]) -> list[dict[str, int]]:
        return [{"y": keys.pop(0)} for _ in range(len(keys))]

    nested = tm.from_dict({"x": [1, 2, 3], "s": [{"l": [0]}, {"l": []}, {"l": [9]}]})
    data = numbers(50)
    schema = pa.schema([("x", pa.int64()), ("s", pa.struct([("l", pa.list_(pa.int64()))]))])
    steps = [
        (lambda: nested.map(at_first(more), schema, retries=1), [{"x": 2, "s": {"l": [0, 2]}}, {"x": 3, "s": {"l": [3]}}, {"x": 4, "s": {"l": [9, 4]}}]),
        (lambda: nested.flat_map(at_first(lambda row: [more(row)]), schema, retries=1).select("x"), [{"x": 2}, {"x": 3}, {"x": 4}]),
        (lambda: nested.filter(at_first(lambda row: more(row)["x"] == 3), retries=1).select("x"), [{"x": 2}]),
        (lambda: data.key_by("k").reduce(at_first(add), retries=1).select(tm.col("x").sum()), [{"x": sum(range(50))}]),
        (lambda: data.key_by("k").apply(at_first(named), {"k": "str", "n": "int64"}, retries=1).select("k"), [{"k": f"k{at}!"} for at in range(7)]),
        (lambda: data.lookup(at_first(known), "x", {"y": "int64"}, retries=1).filter(tm.col("x") != tm.col("y")), []),
    ]  # fmt: skip
    for step, wanted in steps:
        with pytest.warns(RuntimeWarning, match="busy"):
            made = step().to_pylist()
        assert sorted(made, key=str) == wanted
    with pytest.warns(RuntimeWarning, match="busy"):
        whole = data.reduce(at_first(add), retries=1)
    assert whole is not None and whole["x"] == sum(range(50))


def test_values_that_the_first_rows_do_not_show() -> None:
    # Separate batches: types are inferred from the first; the second alone would give others.
    parts = [pa.record_batch({"x": list(range(from_, to))}) for from_, to in [(0, 200), (200, 300)]]
    data = tm.from_arrow(pa.Table.from_batches(parts))
    late = data.map(lambda row: {"y": row["x"] if row["x"] < 200 else None})
    assert late.select(n=tm.col("y").count(), rows=tm.count()).to_dict() == {"n": [200], "rows": [300]}
    with pytest.raises(tm.DataSetError, match="or so"):
        data.map(lambda row: {"y": row["x"] if row["x"] < 200 else "0.5 or so"}).count()
    nothing = numbers(20_000).filter(lambda row: row["x"] < 0)
    assert nothing.count() == 0 and nothing.reduce(lambda one, two: one) is None


def test_a_table_without_rows_tells_its_types() -> None:
    """The function kept none of the first hundred rows; that was "made no rows", although it had declared the columns."""
    late = tm.from_dict({"x": list(range(1000))}).map_batches(lambda batch: batch.filter(pc.greater(batch["x"], 500)))
    assert late.schema == {"x": "Int64"} and late.count() == 499
    empty = numbers().filter(tm.col("x") < 0)
    assert empty.map_batches(lambda batch: batch).schema == empty.schema
    with pytest.raises(tm.DataSetError, match="made no rows from the first 100"):
        empty.map_batches(lambda batch: pa.table({"x": pa.array([], pa.null())}))


def test_arrays_in_rows_are_lists() -> None:
    """NumPy arrays were values of which "no literal can be made"."""
    times = np.array(["2020-01-01"], "M8[ns]")
    data = numbers(2).map(lambda row: {"a": np.arange(row["x"] + 1), "of": {"b": np.ones((1, 2), "f4")}, "t": times})
    assert data.sort(tm.col("a").list.len()).to_pylist() == [
        {"a": list(range(x + 1)), "of": {"b": [[1.0, 1.0]]}, "t": [dt.datetime(2020, 1, 1)]} for x in range(2)
    ]
    typed = numbers(2).map(lambda row: {"a": np.arange(2)}, pa.schema([("a", pa.list_(pa.float32()))]))
    assert typed.to_dict() == {"a": [[0.0, 1.0]] * 2}
    assert tm.from_dict({"a": [np.arange(2), None]}).to_dict() == {"a": [[0, 1], None]}


def test_keys_are_equal_as_in_queries() -> None:
    nan = float("nan")
    data = tm.from_dict({"k": [nan, 1.0, nan, None, None], "v": [1, 2, 3, 4, 5], "rows": [0] * 5})
    summed = data.key_by("k").reduce(lambda a, b: {**a, "v": a["v"] + b["v"]})
    assert sorted(summed.to_dict()["v"]) == [2, 4, 9]
    assert data.key_by("rows").apply(lambda key, table: {"n": len(table)}).to_dict() == {"n": [5]}
    # Lists can be keys as well, although Python's dicts cannot have them.
    nested = tm.from_dict({"k": [[1, 2], [3], [1, 2], None], "v": [1, 2, 3, 4]})
    summed = nested.key_by("k").reduce(lambda a, b: {**a, "v": a["v"] + b["v"]})
    assert sorted(summed.to_dict()["v"]) == [2, 4, 4]
    with pytest.raises(tm.DataSetError, match="at least one column"):
        data.key_by()


ENDS = """
import time
import tidemill as tm

def slow(row):
    if row["x"] == 0:
        raise ValueError("early")
    time.sleep(0.001)
    return row

try:
    tm.from_dict({"x": list(range(100_000))}).map(slow, {"x": "int64"}).count()
except tm.DataSetError:
    print("ends")
"""


def test_a_program_ends_well_while_functions_run(tmp_path: Path) -> None:
    """A thread inside a function of the program when the interpreter ended crashed the process."""
    app = tmp_path / "app.py"
    app.write_text(ENDS)
    for _ in range(3):
        result = launched.run("run", "-n", "1", "--threads", "4", app)
        assert (result.returncode, result.stdout) == (0, b"[0] ends\n"), result.stderr.decode()


@pytest.mark.parametrize("workers", [1, 3])
def test_functions_on_several_workers(workers: int) -> None:
    program = PROGRAM if workers > 1 else PROGRAM.replace(' and "on worker" in text', "")
    assert standing.run_program(program, workers=workers) == ["done\n"] + [""] * (workers - 1)


WITHIN = """
import tidemill as tm

job = tm.init()
data, small = tm.from_dict({"x": list(range(1000))}), tm.from_dict({"y": [1, 2, 3]})

def graph(send, parallelism=1):
    made = tm.Graph()
    made.connect(made.source("a", send, parallelism=parallelism), made.sink("b", parallelism=parallelism))
    return made.run()["b"]

one = {"n": "int64"}
for action in [
    lambda: data.map(lambda row: {"n": small.count()}, one).select(tm.col("n").sum()).to_dict()["n"] == [3000],
    lambda: data.map(lambda row: {"n": small.count()}).count() == 1000,
    lambda: data.map_batches(lambda batch: tm.from_dict({"n": [1]}), one).to_dict()["n"][0] == 1,
    lambda: data.filter(lambda row: small.count() == 3).count() == 1000,
    lambda: data.reduce(lambda a, b: {"x": small.count()}) == {"x": 3},
    lambda: data.key_by("x").apply(lambda key, table: {"n": small.count()}, one).count() == 1000,
    lambda: data.lookup(lambda keys: [{"n": small.count()} for _ in keys], "x", one).count() == 1000,
    lambda: data.map(lambda row: {"n": len(graph(lambda out, context: out.send(1)))}, one).count() == 1000,
    lambda: graph(lambda out, context: out.send(small.count())) == {0: [3]},
]:
    try:
        assert action() and job.size == 1
    except tm.TidemillError as error:
        assert job.size > 1 and "cannot run a query or a graph, which all workers do together" in str(error), error
# Where each worker has a copy, all call together.
assert graph(lambda out, context: out.send(small.count()), job.size) == {copy: [3] for copy in range(job.size)}
assert small.bsp(lambda comm, table: data.limit(1).collect()).count() == job.size
print("done")
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_cannot_run_what_all_workers_run_together(workers: int) -> None:
    """The worker waited for the others forever, and they waited for the function's result."""
    assert standing.run_program(WITHIN, workers=workers) == ["done\n"] * workers
