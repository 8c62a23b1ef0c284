"""`shuffle()`: all workers process the rows of a source with few splits, and none is lost when a worker dies."""

from __future__ import annotations

import json
from pathlib import Path

import launched
import pytest
import tidemill as tm

PROGRAM = """
import sys

import tidemill as tm

rank = tm.init().rank
numbers = tm.stream.from_generator(rows=40_000, splits=1)


def where(row):
    return {"number": row["number"], "worker": rank}


rows = numbers.shuffle().map(where, {"number": "int64", "worker": "int64"})
rows.write_stream(tm.stream.to_files(sys.argv[1], format="json"), checkpoint=sys.argv[2])
"""


def test_all_workers_work_on_the_rows_of_one_split(tmp_path: Path) -> None:
    """Without it, the worker that reads would do everything."""
    app = tmp_path / "app.py"
    app.write_text(PROGRAM)
    done = launched.run("run", "-n", "3", app, tmp_path / "out", tmp_path / "checkpoints")
    assert done.returncode == 0, done.stderr.decode()
    rows = [json.loads(line) for file in (tmp_path / "out").rglob("part*") for line in file.read_text().splitlines()]
    assert sorted(row["number"] for row in rows) == list(range(40_000))
    assert {row["worker"] for row in rows} == {0, 1, 2}


def test_a_shuffle_is_a_step_of_the_plan_and_only_of_streams() -> None:
    rows = tm.from_dict({"n": [1, 2, 3]})
    stream = tm.stream.from_table(rows.collect())
    plan = stream.shuffle().select(n=tm.col("n") + 1).explain()
    assert "shuffle" in plan
    assert "partition in turn" in plan
    with pytest.raises(tm.DataSetError, match=r"this is not a stream; use repartition"):
        rows.shuffle()
