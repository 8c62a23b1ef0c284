"""What an action reports about itself: rows read, on worker 0's terminal; rows and times of its steps; and that it
stops as early as it can.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import workers

#: Reads 400,000 rows in 50 batches that take a moment each.
SLOW = """
import time
import tidemill as tm
from tidemill import _progress
_progress._LONG_S = 0.0
numbers = tm.from_dict({"x": list(range(400_000))})
def slow(batch):
    time.sleep(0.04)
    return batch
"""


def drawings(stderr: str) -> list[str]:
    return [line.strip() for line in re.split("[\r\n]", stderr) if "rows" in line]


@pytest.mark.parametrize(
    "action", ["numbers.map_batches(slow).count()", "numbers.map_batches(slow).write_csv({folder!r})"]
)
def test_a_long_action_shows_what_it_reads(tmp_path: Path, action: str) -> None:
    program = SLOW + action.format(folder=str(tmp_path / "out"))
    for terminal in "", "100":
        environment = {**os.environ, "TIDEMILL_TERMINAL": terminal, "TIDEMILL_THREADS": "2"}
        command = [sys.executable, "-c", program.replace(str(tmp_path / "out"), str(tmp_path / f"out{terminal}"))]
        done = subprocess.run(command, capture_output=True, timeout=120, env=environment)
        stderr = done.stderr.decode()
        assert done.returncode == 0, stderr
        shown = drawings(stderr)
        if not terminal:
            assert shown == [] and "\r" not in stderr
            continue
        parts = [int(found[1]) for line in shown if (found := re.search(r"(\d+)%", line))]
        assert parts == sorted(parts) and len(parts) > 3 and parts[-1] > 50, shown
        assert any(re.search(r"[\d.]+ k of 400 k rows, [\d.]+ k rows/s, \d s left$", line) for line in shown), shown
        assert all(len(line) <= 100 for line in shown)
        assert stderr.split("\r")[-1] == "", "the line is taken away"


def test_the_rows_of_all_workers_are_shown_on_one(tmp_path: Path) -> None:
    program = SLOW + "print(numbers.map_batches(slow).count())"
    with workers.Job(tmp_path, 2, program, env={"TIDEMILL_TERMINAL": "100", "TIDEMILL_THREADS": "1"}) as job:
        (_, first_out, first_err), (_, second_out, second_err) = job.finish()
    assert first_out == second_out == "400000\n", first_err + second_err
    parts = [int(found[1]) for line in drawings(first_err) if (found := re.search(r"(\d+)%", line))]
    # Worker 0 itself reads half of them.
    assert parts and max(parts) > 50, first_err
    assert second_err == ""


def test_files_without_counts_are_estimated(tmp_path: Path) -> None:
    """The number of lines of a text is unknown; of a compressed one, even the number of bytes."""
    import gzip

    text = "x,y\n" + "".join(f"{i},{i}\n" for i in range(200_000))
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
    for name, expected in ("plain.csv", r"of 2\d\d k rows"), ("packed.csv.gz", r"k rows read, [\d.]+ k rows/s$"):
        program = SLOW + f"tm.read_csv({str(tmp_path / name)!r}).map_batches(slow).count()"
        environment = {**os.environ, "TIDEMILL_TERMINAL": "100", "TIDEMILL_THREADS": "2"}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert any(re.search(expected, line) for line in drawings(done.stderr)), done.stderr


ANALYZED = """
import json
import tidemill as tm
n, small = 100_000, tm.from_dict({"k": list(range(10)), "name": [f"n{i}" for i in range(10)]})
big = tm.from_dict({"k": [i % 50 for i in range(n)], "x": list(range(n))})
text = (
    big.filter(tm.col("x") >= 1000).join(small, on="k").map_batches(lambda batch: batch)
    .group_by("name").agg(n=tm.count()).sort("name").explain("analyze")
)
print(json.dumps(text))
"""


@pytest.mark.parametrize("size", [2, 3])
def test_analyze_tells_what_all_workers_did(tmp_path: Path, size: int) -> None:
    with workers.Job(tmp_path, size, ANALYZED, env={"TIDEMILL_THREADS": "2"}) as job:
        texts = [json.loads(out) for out in job.succeed()]
    assert all(text == texts[0] for text in texts)
    rows = {
        step: int(found[1])
        for step in ("FilterExec", "HashJoinExec", "MapExec", "DataSourceExec")
        if (found := re.search(rf"{step}.*?, rows=(\d+), time=[\d.]+ m?s", texts[0]))
    }
    assert rows["FilterExec"] == 99_000 and rows["HashJoinExec"] == rows["MapExec"] == 19_800, texts[0]
    assert rows["DataSourceExec"] in (10, 100_000), texts[0]
    edges = re.findall(
        r"^stage \d+\.out -> .*rows=(\d+), to own copies=.*, to other workers=.* [KM]?i?B, waited=", texts[0], re.M
    )
    assert "19800" not in edges and "10" in edges, "rows are counted before they cross"
    assert "all: " in texts[0]


#: Its rows are many times what may be in flight between workers.
LIMITED = """
import json
import pyarrow as pa
import tidemill as tm
calls = 0
def widened(batch):
    global calls
    calls += 1
    return pa.RecordBatch.from_arrays([batch["x"], pa.array(["." * 1000] * len(batch))], ["x", "wide"])
n = 1_000_000
keys = tm.from_dict({"x": list(range(0, n, 2))})
numbers = tm.from_dict({"x": list(range(n))}).map_batches(widened, schema={"x": "int64", "wide": "str"})
found = keys.join(numbers, on="x").limit(7).collect()
print(json.dumps([len(found), calls]))
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_limit_stops_what_comes_before_it(tmp_path: Path, size: int) -> None:
    """Across an exchange, too."""
    with workers.Job(tmp_path, size, LIMITED, env={"TIDEMILL_THREADS": "2"}) as job:
        results = [json.loads(out) for out in job.succeed()]
    batches = 1_000_000 / 8192
    assert all(rows == 7 for rows, _ in results)
    assert 0 < sum(calls for _, calls in results) < batches / 2, (results, batches)
