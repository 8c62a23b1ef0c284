"""Structs, lists of them and maps in functions of the program: what goes in comes out, with nulls at any depth."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pytest
import standing
import tidemill as tm

POINT = pa.struct([("x", pa.int64()), ("name", pa.string())])
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("point", POINT),
        ("points", pa.list_(POINT)),
        ("deep", pa.struct([("inner", pa.struct([("values", pa.list_(pa.list_(pa.float64())))]))])),
        ("ages", pa.map_(pa.string(), pa.int64())),
        ("places", pa.map_(pa.string(), POINT)),
        ("pair", pa.list_(pa.int64(), 2)),
        ("long", pa.large_list(pa.string())),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "k": 1,
        "point": {"x": 1, "name": "a"},
        "points": [{"x": 2, "name": None}, None, {"x": None, "name": "c"}],
        "deep": {"inner": {"values": [[1.5], [], None, [None, 2.5]]}},
        "ages": [("ada", 36), ("bob", None)],
        "places": [("home", {"x": 1, "name": "h"}), ("work", None)],
        "pair": [1, 2],
        "long": ["a", None],
    },
    dict.fromkeys(SCHEMA.names),
    {
        "k": 2,
        "point": {"x": None, "name": None},
        "points": [],
        "deep": {"inner": None},
        "ages": [],
        "places": [],
        "pair": [None, 4],
        "long": [],
    },
    {
        "k": 1,
        "point": None,
        "points": None,
        "deep": None,
        "ages": None,
        "places": None,
        "pair": None,
        "long": None,
    },
]


def nested() -> tm.DataSet:
    return tm.from_arrow(pa.Table.from_pylist(ROWS, SCHEMA))


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def test_what_comes_in_goes_out() -> None:
    """As in pyarrow's tables, with given and inferred types."""
    assert nested().collect().to_pylist() == ROWS == nested().to_arrow().to_pylist()
    for given in [SCHEMA, None]:
        same = nested().map(lambda row: row, given)
        assert in_order(same.to_pylist()) == in_order(ROWS)
        assert in_order(same.to_arrow().to_pylist()) == in_order(ROWS)
        twice = nested().flat_map(lambda row: [row, row], given)
        assert in_order(twice.to_pylist()) == in_order(ROWS * 2)
    assert nested().map(lambda row: row, SCHEMA).schema == nested().schema
    kept = nested().filter(lambda row: row["point"] is not None and row["point"]["x"] == 1)
    assert kept.to_pylist() == ROWS[:1]


def test_reductions() -> None:
    """Reductions have the columns of their input, whatever those are."""

    def more(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
        return max(one, two, key=lambda row: (len(row["points"] or []), row["k"] or 0))

    assert nested().reduce(more) == ROWS[0]
    by_key = nested().key_by("k").reduce(more)
    assert in_order(by_key.to_pylist()) == in_order(ROWS[:3])
    applied = nested().key_by("k").apply(lambda key, table: [row for row in table.to_pylist() if row["point"]])
    assert in_order(applied.to_pylist()) == in_order([ROWS[0], ROWS[2]])
    by_struct = nested().key_by("point").reduce(lambda one, two: one)
    assert len(by_struct.to_pylist()) == 3


def test_types_are_found_out() -> None:
    """Types are inferred from all rows sampled: one may have fewer fields than the others."""
    rows = tm.from_dict({"i": [0, 1, 2]})
    made = {
        0: {"s": {"a": 1}, "l": [], "m": [("x", 1)]},
        1: {"s": {"b": "z", "a": None}, "l": [{"c": 1}, {"d": [2.5]}], "m": []},
        2: {"s": None, "l": None, "m": None},
    }
    found = rows.map(lambda row: made[row["i"]])
    assert in_order(found.to_pylist()) == in_order(
        [
            {"s": {"a": 1, "b": None}, "l": [], "m": [("x", 1)]},
            {"s": {"a": None, "b": "z"}, "l": [{"c": 1, "d": None}, {"c": None, "d": [2.5]}], "m": []},
            {"s": None, "l": None, "m": None},
        ]
    )
    types = found.schema
    assert types["s"].startswith("Struct") and types["m"].startswith("Map") and "Float64" in types["l"]
    # Rust steps continue with the result.
    assert found.select(a=tm.functions.scalar("get_field", tm.col("s"), "a")).drop_nulls().to_pylist() == [{"a": 1}]
    # Later rows have fewer fields, or whole numbers where floats were.


def test_types_by_name() -> None:
    """`schema` accepts types in the form in which it prints them."""
    types = {
        "p": 'Struct("x": Int64, "tags": List(Utf8))',
        "m": 'Map("entries": non-null Struct("key": non-null Utf8, "value": Float64), unsorted)',
    }
    for kinds in [types, nested().select(p=tm.col("deep"), m=tm.col("ages")).schema]:
        made = tm.from_dict({"i": [1]}).map(lambda row: {"p": None, "m": {"a": 1}}, kinds)
        assert made.to_pylist() == [{"p": None, "m": [("a", 1)]}], kinds
    columns = {"p": [{"x": 1, "tags": ["a"]}, {"tags": None}, None], "m": [{"a": 1}, [("a", None)], None]}
    assert tm.from_dict(columns, types).to_dict() == {
        "p": [{"x": 1, "tags": ["a"]}, {"x": None, "tags": None}, None],
        "m": [[("a", 1.0)], [("a", None)], None],
    }
    assert tm.from_dict({"p": [{"x": math.inf}, None]}).to_dict() == {"p": [{"x": math.inf}, None]}


@pytest.mark.parametrize(
    ("made", "given", "words"),
    [
        ({"p": {"z": 1}}, pa.schema([("p", POINT)]), ["a field 'z'", "x, name"]),
        ({"p": {"x": "a"}}, pa.schema([("p", POINT)]), ["'a'"]),
        ({"p": 3}, pa.schema([("p", POINT)]), ["3 is not a dict"]),
        ({"p": {1: 2}}, None, ["cannot become a struct", "a map is a list of pairs"]),
        ({"p": 3}, pa.schema([("p", pa.list_(POINT))]), ["3 is not a list"]),
        ({"p": [1]}, pa.schema([("p", pa.list_(pa.int64(), 2))]), ["not a list of 2 values"]),
        ({"p": [1]}, pa.schema([("p", pa.map_(pa.string(), pa.int64()))]), ["1 is not a pair"]),
        ({"p": [(None, 1)]}, pa.schema([("p", pa.map_(pa.string(), pa.int64()))]), ["key"]),
        ({"p": {"x": None}}, None, ["only None in p", "give schema="]),
        ({"p": []}, None, ["only None in p", "give schema="]),
    ],
)
def test_errors_say_what_does_not_fit(made: dict[str, Any], given: Any, words: list[str]) -> None:
    with pytest.raises(tm.DataSetError) as caught:
        tm.from_dict({"i": [1]}).map(lambda row: made, given).collect()
    text = str(caught.value)
    assert all(word.replace("'", '"') in text.replace("'", '"') for word in words), text


def test_a_list_in_itself_is_an_error() -> None:
    """Such a list has no end, but a thread's stack has one."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="more than 64 deep"):
        tm.from_dict({"x": [endless]})


def test_columns_that_come_later_are_an_error() -> None:
    """They would silently be lost otherwise."""
    calls: list[int] = []

    def later(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row["i"])
        return {"a": 1} if len(calls) <= 200 else {"a": 1, "b": 2}

    data = tm.from_dict({"i": list(range(30_000))}).map(later)
    with pytest.raises(tm.DataSetError, match=r"\['a', 'b'\] but earlier rows had \['a'\]"):
        data.collect()


def test_intervals_and_unions_in_python() -> None:
    """Not texts that look like them: named tuples that compare like pyarrow's, and what a union contains."""
    days = pa.array([pa.MonthDayNano([1, 2, 3]), None, pa.MonthDayNano([-1, 0, 10**9])])
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1, 1], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", None])], ["n", "s"]
    )
    found = tm.from_arrow(pa.table({"days": days, "of": union})).to_pylist()
    assert found == [{"days": (1, 2, 3), "of": 1}, {"days": None, "of": "b"}, {"days": (-1, 0, 10**9), "of": None}]
    assert found[0]["days"] == days[0].as_py() and found[0]["days"].months == 1
    made = tm.sql(
        "select interval '1 month 2 days' as m, arrow_cast('3 days', 'Interval(DayTime)') as d, "
        "arrow_cast('14 months', 'Interval(YearMonth)') as y"
    )
    month, day, year = made.to_pylist()[0].values()
    assert month == (1, 2, 0) and str(month) == "MonthDayNano(months=1, days=2, nanoseconds=0)"
    assert day == dt.timedelta(days=3) and year == (14, 0, 0)
    again = tm.from_dict({"t": [dt.datetime(2024, 1, 31)], "m": [month]})
    assert again.select(u=tm.col("t") + tm.lit(month), v=tm.col("t") + tm.col("m")).to_pylist() == [
        {"u": dt.datetime(2024, 3, 2), "v": dt.datetime(2024, 3, 2)}
    ]


ON_WORKERS = """
import tidemill as tm
job = tm.init()
n = 20_000
data = tm.from_dict({"i": list(range(n))})
made = data.map(lambda row: {"i": row["i"], "p": {"k": row["i"] % 7, "l": [{"v": row["i"]}] * (row["i"] % 3)}, "m": [("i", row["i"])]})
assert made.sort("i").to_pylist()[5] == {"i": 5, "p": {"k": 5, "l": [{"v": 5}, {"v": 5}]}, "m": [("i", 5)]}
def both(a, b):
    return {"i": a["i"] + b["i"], "p": {"k": a["p"]["k"], "l": []}, "m": [("i", a["m"][0][1] + b["m"][0][1])]}
sums = made.with_columns(k=tm.functions.scalar("get_field", tm.col("p"), "k"))
sums = sums.key_by("k").reduce(lambda a, b: {**both(a, b), "k": a["k"]}).sort("k").to_pylist()
wanted = [sum(range(k, n, 7)) for k in range(7)]
assert [row["i"] for row in sums] == wanted == [row["m"][0][1] for row in sums], sums
print("done")
"""


def test_on_several_workers(tmp_path: Path) -> None:
    """Nested rows cross workers, through sorts, groups and disks."""
    assert standing.run_program(ON_WORKERS, workers=3) == ["done\n"] * 3
    app = tmp_path / "app.py"
    app.write_text(ON_WORKERS)
    result = launched.run("run", "-n", "3", "--memory", "8MiB", app)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().count("done") == 3


FIRST = """
import json, sys
import pyarrow as pa
import tidemill as tm

job, folder = tm.init(), sys.argv[1]
n = 100_000
# The first rows of each part of the table, of a thread or a worker, are null, except in one part.
x = pa.array([float(i) if i < 50 or i % 9_000 > 5_000 else None for i in range(n)])
table = pa.table({"i": range(n), "x": x})
late = pa.table({"i": range(n), "x": pa.array([None if i < 200 else float(i) for i in range(n)])})
one = job.rank == job.size - 1
def made(data):
    found = data.map(lambda row: {"i": row["i"], "y": row["x"]})
    return [found.schema, found.select(tm.col("i").sum(), tm.col("y").sum()).to_pylist()]
def refused(data):
    try:
        data.map(lambda row: {"y": row["x"]})
    except tm.DataSetError as error:
        return str(error)
told = [
    made(tm.from_arrow(table)),
    made(tm.read_csv(folder + "/*.csv")),
    # One worker has all rows.
    made(tm.from_local(table if one else table.slice(0, 0))),
    made(tm.from_arrow(table).filter(tm.col("i") % 2 == 0)),
    tm.from_arrow(table).flat_map(lambda row: [{"z": row["x"]}] * (row["i"] % 2)).schema,
    refused(tm.from_arrow(late)),
]
for worker, theirs in enumerate(job.comm.allgather(told)):
    assert theirs == told, (worker, theirs, told)
if job.rank == 0:
    print(json.dumps(told))
"""


def test_types_are_found_out_from_the_first_rows_of_all(tmp_path: Path) -> None:
    """Rows chosen otherwise would differ between one worker and two, and from run to run."""
    lines = [f"{i},{i / 2 if i < 50 or i % 9_000 > 5_000 else ''}" for i in range(100_000)]
    for part in range(3):
        text = "\n".join(["i,x", *lines[part * 30_000 : (part + 1) * 30_000]])
        (tmp_path / f"{part}.csv").write_text(text + "\n")
    told = {standing.run_program(FIRST, tmp_path, workers=size)[0] for size in (1, 2, 3)}
    assert len(told) == 1, told
    assert "made only None in y at first" in told.pop()
