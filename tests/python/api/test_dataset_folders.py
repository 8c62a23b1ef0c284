"""Folders whose names contain values, and files with different headers."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tidemill as tm

WAYS: dict[str, Any] = {
    "csv": (tm.DataSet.write_csv, tm.read_csv),
    "json": (tm.DataSet.write_json, tm.read_json),
    "parquet": (tm.DataSet.write_parquet, tm.read_parquet),
    "ipc": (tm.DataSet.write_ipc, tm.read_ipc),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "keys",
    [
        pa.array([0, None, 0]),
        pa.array([False, None, False]),
        pa.array(["", None, "a"]),
        pa.array([1.5, None, 0.0]),
        pa.array([datetime.date(1970, 1, 1), None, datetime.date(2020, 2, 29)]),
        pa.array(["x", None, "y"]).dictionary_encode(),
        pa.array([Decimal("1.50"), None, Decimal("0.00")]),
    ],
    ids=["int", "bool", "text", "float", "date", "dictionary", "decimal"],
)
def test_no_value_has_a_folder_of_its_own(tmp_path: Path, way: str, keys: pa.Array) -> None:
    write, read = WAYS[way]
    data = tm.from_arrow(pa.table({"k": keys, "v": [1, 2, 3]}))
    write(data, str(tmp_path / "out"), partition_by=["k"])
    rows = read(str(tmp_path / "out")).select("v", missing=tm.col("k").is_null()).sort("v").to_dict()
    assert rows == {"v": [1, 2, 3], "missing": [False, True, False]}
    assert (tmp_path / "out" / "k=__HIVE_DEFAULT_PARTITION__").is_dir()
    found = read(str(tmp_path / "out")).filter(tm.col("k").is_not_null()).select("v", "k").to_pylist()
    as_text = dict(zip([1, 2, 3], data.select(k=tm.col("k").cast("str")).to_dict()["k"], strict=True))
    assert {row["v"]: row["k"] for row in found} == {v: text for v, text in as_text.items() if text is not None}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_columns_of_folders_stay_where_values_stand_for_null(tmp_path: Path, on_error: Any) -> None:
    for year, text in {"2020": "n,s\nNA,x\n2,NA\n", "__HIVE_DEFAULT_PARTITION__": "n,s\n3,y\n"}.items():
        (tmp_path / f"year={year}").mkdir()
        (tmp_path / f"year={year}" / "a.csv").write_text(text)
    data = tm.read_csv(str(tmp_path), null="NA", on_error=on_error)
    assert data.sort("n").to_pylist() == [
        {"n": 2, "s": None, "year": "2020"},
        {"n": 3, "s": "y", "year": None},
        {"n": None, "s": "x", "year": "2020"},
    ]
    assert data.filter(tm.col("year") == "2020").count() == 2


def test_headers_in_another_order_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,amount\n1,100\n")
    (tmp_path / "b.csv").write_text("amount,id\n200,2\n")
    for on_error in ("raise", "skip"):
        with pytest.raises(
            tm.DataSetError, match=r"b\.csv: its columns are amount, id, but those of .*a\.csv are id, amount"
        ):
            tm.read_csv(str(tmp_path), on_error=on_error).collect()
    schema = {"id": "int64", "amount": "int64"}
    with pytest.raises(
        tm.DataSetError, match=r"b\.csv: its columns are amount, id; the schema has them in another order"
    ):
        tm.read_csv(str(tmp_path / "b.csv"), schema=schema).collect()
    apart = tm.read_csv(str(tmp_path / "a.csv")).union(tm.read_csv(str(tmp_path / "b.csv")))
    assert apart.sort("id").to_dict() == {"id": [1, 2], "amount": [100, 200]}
    # A schema may rename the columns.
    named = tm.read_csv(str(tmp_path / "a.csv"), schema={"number": "int64", "sum": "int64"})
    assert named.to_dict() == {"number": [1], "sum": [100]}


def test_a_type_keeps_its_zone() -> None:
    data = tm.from_dict({"at": [datetime.datetime(2020, 1, 1)]})
    for kind in ("datetime[us, Europe/Paris]", 'Timestamp(us, "Europe/Paris")'):
        assert "Europe/Paris" in data.select(at=tm.col("at").cast(kind)).schema["at"]
    with pytest.raises(tm.DataSetError, match="unknown type"):
        data.select(tm.col("at").cast("datetime[us, Paris]"))
