"""Malformed records, and jobs that resume with other options: reported, never guessed."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pytest
import tidemill as tm

EARLIEST, LATEST = -(2**63), 2**63 - 1


def from_file(path: Path, schema: Any, bad: list[str] | None = None, **options: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    rows = tm.stream.from_files(str(path), schema, stop_at_end=True, **options)
    rows.write_stream(lambda table: seen.extend(table.to_pylist()))
    return seen


@pytest.mark.parametrize("broken", [EARLIEST, EARLIEST + 1, -9 * 10**18, LATEST, LATEST - 10**9])
@pytest.mark.parametrize("keys", [[], ["key"]])
def test_a_time_that_is_none_spoils_no_window(broken: int, keys: list[str]) -> None:
    times = [1_000_000, 2_000_000, broken, 12_000_000, 13_000_000]
    table = pa.table({"key": ["a", "a", "a", "a", "b"], "at": pa.array(times, pa.timestamp("us"))})
    counted: list[tuple[int, int]] = []
    # One row per batch, or all together: values common to a whole batch are found in another way.
    for rows_per_batch in (1, 100):
        counted.clear()
        windows = tm.stream.from_table(table, time="at", rows_per_batch=rows_per_batch).group_by(
            *keys, tm.stream.window(tm.stream.tumbling("10s"), on="at")
        )
        sums = windows.agg(n=tm.count()).select("n", start=tm.col("window_start").cast("int64"))
        with pytest.warns(tm.stream.NoTimeWarning):
            sums.write_stream(lambda table: counted.extend((row["start"], row["n"]) for row in table.to_pylist()))
        expected = [(0, 2), (10_000_000, 1), (10_000_000, 1)] if keys else [(0, 2), (10_000_000, 2)]
        assert sorted(counted) == expected
        assert tm.last_report().rows_without_time == 1


def test_a_number_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n":1}\n{"n":2.5}\n{"n":3.0,"x":0.5}\n{"n":-0.9}\n')
    schema = {"n": "int64", "x": "float64"}
    bad = tmp_path / "bad"
    found = from_file(file, schema, on_error="quarantine", quarantine=str(bad))
    assert [row["n"] for row in found] == [1, 3]
    assert sum(len(part.read_text().splitlines()) for part in bad.iterdir()) == 2
    with pytest.raises(tm.DataSetError, match=r'2\.5 is not an integer, but column "n" is'):
        from_file(file, schema)


def test_a_function_does_not_cut_its_numbers() -> None:
    with pytest.raises(tm.DataSetError, match=r"2\.9 is not an integer"):
        tm.from_dict({"a": [1]}).map(lambda row: {"n": 2.9}, schema={"n": "int64"}).collect()
    assert tm.from_dict({"a": [1]}).map(lambda row: {"n": 2.0}, schema={"n": "int64"}).to_dict() == {"n": [2]}


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"n":1}\n{"n":2}\n', encoding="utf-8-sig")
    assert [row["n"] for row in from_file(file, {"n": "int64"})] == [1, 2]


def test_text_takes_the_schema_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a\nb\n")
    for schema in ({"line": "str"}, pa.schema([("line", pa.string())]), None):
        assert [row["line"] for row in from_file(file, schema, format="text")] == ["a", "b"]


def test_bad_dates_are_told_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("at,n\n2024-01-01,1\n2024-01-02,2\n2024-02-30,3\n")
    rows = tm.read_csv(str(file), schema={"at": "timestamp[us]", "n": "int64"})
    with pytest.raises(tm.DataSetError, match=r'rows\.csv: line 4: .*2024-02-30.*that of column "at"'):
        rows.collect()
    lenient = tm.read_csv(str(file), schema={"at": "timestamp[us]", "n": "int64"}, on_error="skip")
    with pytest.warns(tm.BadRowsWarning, match=r'line 4: .*2024-02-30.*that of column "at"'):
        assert lenient.to_dict()["at"] == [datetime(2024, 1, 1), datetime(2024, 1, 2)]


def stopped_early(stream: tm.DataSet, place: Path, rows: list[dict[str, Any]]) -> None:
    """Write a stream until some rows have come out; the checkpoint records where it was."""
    stream.write_stream(
        lambda table: rows.extend(table.to_pylist()),
        checkpoint=tm.stream.Checkpoint(place, interval="50ms"),
        stop_when=lambda: len(rows) > 200,
    )


def test_a_rate_goes_on_with_as_many_splits(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    stopped_early(tm.stream.from_generator(2000, rows=4000, splits=2), tmp_path / "checkpoints", rows)
    for splits in (1, 4):
        with pytest.raises(tm.DataSetError, match=f"has 2 splits, but `splits` is {splits}: it must not change"):
            stopped_early(tm.stream.from_generator(2000, rows=4000, splits=splits), tmp_path / "checkpoints", [])


def test_a_table_goes_on_with_the_same_batches(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    table = pa.table({"n": range(20_000)})

    def stream(rows_per_batch: int) -> tm.DataSet:
        return tm.stream.from_table(table, rows_per_batch=rows_per_batch, rows_per_s=5000)

    stopped_early(stream(50), tmp_path / "checkpoints", rows)
    with pytest.raises(tm.DataSetError, match="must not change"):
        stopped_early(stream(37), tmp_path / "checkpoints", [])


NOT_SHARED = """
import sys
import tidemill as tm

job = tm.init()
rows = tm.stream.from_generator(1000, rows=3000, splits=2)
rows.write_stream(lambda table: None, checkpoint=tm.stream.Checkpoint(f"{sys.argv[1]}-{job.rank}", interval="100ms"))
"""


def test_a_folder_of_each_worker_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(NOT_SHARED)
    done = launched.run("run", "-n", "2", program, tmp_path / "checkpoints")
    assert done.returncode != 0
    told = done.stderr.decode()
    assert re.search(r"worker 1 does not find what worker 0 wrote there", told), told
