"""Files with different schemas are one table: no value is truncated, no column is lost, and incompatible types are
named.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import standing
import tidemill as tm
from datasets import rows

READ: dict[str, Callable[..., tm.DataSet]] = {"parquet": tm.read_parquet, "ipc": tm.read_ipc}


def table(**columns: tuple[list[Any], pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})


def write(folder: Path, form: str, *tables: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, made in enumerate(tables):
        if form == "parquet":
            pq.write_table(made, folder / f"{number}.parquet")
        else:
            feather.write_feather(made, str(folder / f"{number}.arrow"), compression="uncompressed")


WIDENED: list[tuple[list[pa.DataType], list[list[Any]], list[Any]]] = [
    ([pa.int32(), pa.int64()], [[1, None], [2**40]], [1, 2**40, None]),
    ([pa.int64(), pa.int8()], [[2**40], [-1]], [-1, 2**40]),
    ([pa.uint8(), pa.int8()], [[200], [-100]], [-100, 200]),
    ([pa.int64(), pa.float64()], [[1], [2.5]], [1.0, 2.5]),
    ([pa.float32(), pa.float64()], [[0.5], [0.1]], [0.1, 0.5]),
    ([pa.string(), pa.large_string(), pa.string_view()], [["a"], ["b"], [None]], ["a", "b", None]),
    ([pa.null(), pa.string()], [[None], ["b"]], ["b", None]),
    (
        [pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns")],
        [[1], [2], [3000]],
        [dt.datetime(1970, 1, 1, 0, 0, 0, 2), dt.datetime(1970, 1, 1, 0, 0, 0, 3), dt.datetime(1970, 1, 1, 0, 0, 1)],
    ),
    ([pa.decimal128(5, 2), pa.decimal128(6, 4)], [[Decimal("1.25")], [Decimal("0.0001")]], [Decimal("0.0001"), Decimal("1.2500")]),
    ([pa.list_(pa.int32()), pa.list_(pa.int64())], [[[1, None]], [[2**40]]], [[1, None], [2**40]]),
    (
        [pa.struct({"a": pa.int32()}), pa.struct({"b": pa.string(), "a": pa.int64()})],
        [[{"a": 1}, None], [{"a": 2**40, "b": "x"}]],
        [None, {"a": 1, "b": None}, {"a": 2**40, "b": "x"}],
    ),
    ([pa.dictionary(pa.int8(), pa.string()), pa.string()], [["a"], ["b"]], ["a", "b"]),
]  # fmt: skip


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize(("types", "values", "expected"), WIDENED)
def test_types_become_wide_enough(
    tmp_path: Path, form: str, types: list[pa.DataType], values: list[list[Any]], expected: list[Any]
) -> None:
    write(tmp_path, form, *(table(x=(some, kind)) for some, kind in zip(values, types, strict=True)))
    found = READ[form](tmp_path).to_dict()["x"]
    assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("form", READ)
def test_columns_that_some_files_have(tmp_path: Path, form: str) -> None:
    write(
        tmp_path,
        form,
        table(n=([1], pa.int64())),
        table(s=(["b"], pa.string()), n=([2], pa.int32())),
        table(x=([0.5], pa.float64()), n=([3], pa.int64())),
    )
    data = READ[form](tmp_path)
    assert data.columns == ["n", "s", "x"]
    assert data.sort("n").to_pylist() == [
        {"n": 1, "s": None, "x": None},
        {"n": 2, "s": "b", "x": None},
        {"n": 3, "s": None, "x": 0.5},
    ]
    assert data.filter(tm.col("s").is_not_null() & (tm.col("n") > 1)).select("n").to_pylist() == [{"n": 2}]
    assert data.count() == 3


def test_what_files_know_of_their_values_is_not_taken_for_the_tables(tmp_path: Path) -> None:
    """The minimum and maximum in a file's statistics have its own type: decisions based only on them would skip files."""
    write(
        tmp_path, "parquet", table(n=([5, 7], pa.int64())), table(n=([1, 100], pa.int32())), table(n=([6], pa.int64()))
    )
    data, n = tm.read_parquet(tmp_path), tm.col("n")
    assert rows(data.select(n.max())) == [(100,)]
    assert rows(data.select(n.min())) == [(1,)]
    assert data.select(least=n.min(), most=n.max(), all=tm.count()).to_pylist() == [{"least": 1, "most": 100, "all": 5}]
    assert rows(data.filter(n > 6)) == [(100,), (7,)]
    assert rows(data.filter(n < 5)) == [(1,)]
    assert data.sort("n").limit(1).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (([1], pa.int64()), (["a"], pa.string())),
        (([1], pa.uint64()), ([1], pa.int64())),
        (([1], pa.timestamp("us", "UTC")), ([1], pa.timestamp("us"))),
        (([{"a": 1}], pa.struct({"a": pa.int64()})), ([{"a": True}], pa.struct({"a": pa.bool_()}))),
    ],
)
def test_types_without_one_in_common_are_an_error_at_once(tmp_path: Path, form: str, first: Any, second: Any) -> None:
    write(tmp_path, form, table(x=first, y=first), table(y=first, x=first), table(x=second))
    with pytest.raises(tm.DataSetError) as raised:
        READ[form](tmp_path)
    text = str(raised.value)
    suffix = "parquet" if form == "parquet" else "arrow"
    assert 'column "x" is ' in text and "no type in common" in text
    assert f"{tmp_path}/0.{suffix}" in text and f"{tmp_path}/2.{suffix}" in text


@pytest.mark.parametrize("form", READ)
def test_a_given_schema_counts(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, table(n=([1, 2], pa.int64()), x=([1.0, -0.0], pa.float64())), table(n=([3], pa.int16())))
    schema = {"x": "int32", "n": "int8", "new": "str"}
    data = READ[form](tmp_path, schema=schema)
    assert data.sort("n").to_pylist() == [
        {"x": 1, "n": 1, "new": None},
        {"x": 0, "n": 2, "new": None},
        {"x": None, "n": 3, "new": None},
    ]


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (2**40, pa.int64(), "int32"),
        (-1, pa.int64(), "uint64"),
        (2.5, pa.float64(), "int64"),
        (1e30, pa.float64(), "int64"),
        (1e300, pa.float64(), "float32"),
        (2**53 + 1, pa.int64(), "float64"),
        (dt.datetime(2024, 1, 1, 12), pa.timestamp("us"), "date"),
        (1500, pa.timestamp("ms"), "datetime[s]"),
        (Decimal("1.25"), pa.decimal128(5, 2), "decimal(5, 1)"),
        ("a", pa.string(), "int64"),
        ([2.5], pa.list_(pa.float64()), "List(Int64)"),
    ],
)
def test_a_value_that_does_not_fit_a_given_schema(
    tmp_path: Path, form: str, value: Any, kind: Any, wanted: str
) -> None:
    write(tmp_path, form, table(x=([value, None], kind)))
    with pytest.raises(tm.DataSetError, match=r"[Cc]ast|not a value of type"):
        READ[form](tmp_path, schema={"x": wanted}).collect()


@pytest.mark.parametrize("form", READ)
def test_a_schema_that_a_file_cannot_have(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, table(x=([[1]], pa.list_(pa.int64()))))
    with pytest.raises(tm.DataSetError, match=r'column "x" is List.* in .*/0\.\w+, which cannot become Int64'):
        READ[form](tmp_path, schema={"x": "int64"})


@pytest.mark.parametrize("form", READ)
def test_columns_of_folders_stay(tmp_path: Path, form: str) -> None:
    write(tmp_path / "y=1", form, table(n=([1], pa.int32())))
    write(tmp_path / "y=__HIVE_DEFAULT_PARTITION__", form, table(n=([2**40], pa.int64()), s=(["b"], pa.string())))
    data = READ[form](tmp_path)
    assert data.sort("n").to_pylist() == [{"n": 1, "s": None, "y": "1"}, {"n": 2**40, "s": "b", "y": None}]
    assert data.filter(tm.col("y") == "1").select("n").to_pylist() == [{"n": 1}]


WORKERS = """
import json, sys
import tidemill as tm

read = getattr(tm, sys.argv[2])
data = read(sys.argv[1])
found = data.group_by("s").agg(tm.col("n").sum(), rows=tm.count()).sort("s").to_pylist()
try:
    read(sys.argv[3])
    error = None
except tm.DataSetError as raised:
    error = str(raised)
print(json.dumps([data.schema, found, error]))
"""


@pytest.mark.parametrize("form", READ)
def test_all_workers_see_one_schema(tmp_path: Path, form: str) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    parts = [
        table(n=(list(range(i, 20_000, 4)), kind))
        for i, kind in enumerate([pa.int16(), pa.int32(), pa.int64(), pa.uint16()])
    ]
    write(good, form, *parts, table(n=([1], pa.int8()), s=(["a"], pa.string())))
    write(bad, form, table(n=([1], pa.int64())), table(n=(["a"], pa.string())))
    told = []
    for size in (1, 2, 3):
        lines = standing.run_program(WORKERS, good, READ[form].__name__, bad, workers=size)
        assert len(lines) == size and len(set(lines)) == 1
        told.append(json.loads(lines[0]))
    assert told[0] == told[1] == told[2]
    schema, found, error = told[0]
    assert schema["n"] == "Int64" and "no type in common" in error
    assert found == [{"s": "a", "n": 1, "rows": 1}, {"s": None, "n": sum(range(20_000)), "rows": 20_000}]
