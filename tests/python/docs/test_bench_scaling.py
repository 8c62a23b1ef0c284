"""Benchmarks of all areas on more and more cores, and of the same cores split differently."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import benched
import pytest
from harness import report, scaling, splits


@pytest.mark.slow
def test_tiny_run_splits_jobs_every_way(tiny: Path) -> None:
    results = benched.results(tiny)
    assert results["splits"]["failures"] == {}
    assert all(set(times) == set(splits.SPLITS) for times in results["splits"]["seconds"].values())
    assert splits.ratios({"1x1": [4.0, 9.0, 5.0], "1x2": [2.0], "2x1": [2.5]}) == (2.5, 2.0)


@pytest.mark.slow
def test_tiny_run_scales_over_all_splits(tiny: Path) -> None:
    """Every area must run on all cores there are, in each split, with the same answer."""
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["scaling"]
    assert found["failures"] == {} and set(found["seconds"]) == set(scaling.AREAS)
    present = set(scaling.all_splits(scaling.cores()))
    assert all(set(times) == present for times in found["seconds"].values())
    assert all(set(answers) == present for answers in found["answers"].values())
    assert found["answers"]["records"]["1x1"].startswith("2000 ") and found["answers"]["sort"]["1x1"].endswith(
        " in order"
    )
    assert found["answers"]["stream"]["1x1"] == "5000"
    assert f"{scaling.cores()} core" in path.with_suffix(".md").read_text()


def test_splits_are_powers_of_two_on_the_cores_there_are() -> None:
    assert list(scaling.all_splits(1)) == ["1x1"]
    assert list(scaling.all_splits(2)) == ["1x1", "1x2", "2x1"]
    assert list(scaling.all_splits(6)) == ["1x1", "1x2", "2x1", "1x4", "2x2", "4x1"]
    assert splits.differing({"1x1": "5 a", "1x2": "5 a", "2x1": "5 b"}).keys() == {"2x1"}
    assert splits.differing({"1x1": 1.0, "2x1": 1.0001, "1x2": 1.1}).keys() == {"1x2"}


def test_scaling_tells_efficiency_and_what_it_could_not_show(tmp_path: Path) -> None:
    """Six cores have two that no split uses; an allreduce has no speed-up."""
    times = {"1x1": [4.0, 9.0, 4.0], "1x2": [2.0], "2x1": [2.5], "1x4": [1.25], "2x2": [1.0], "4x1": [2.0]}
    run: dict[str, Any] = {
        "rounds": 3,
        "sizes": {"rows": 1000},
        "splits": scaling.all_splits(6),
        "cores": 6,
        "threads_share_cores": True,
        "load": 7.0,
        "seconds": {"group": times, "allreduce-8": times},
        "failures": {"4x1": "sort: its answer is 1, not 2"},
    }
    text = scaling.section(run)
    lines = benched.lines(text)
    assert "| group_by | 2.00 | 1.60 | 3.20 | 4.00 | 2.00 |" in lines
    assert "| group_by | 100% | 80% | 80% | 100% | 50% |" in lines
    assert sum("allreduce of 8 B" in line for line in lines) == 1
    assert "6 cores: splits of 8 cores and more were left out" in text and "2 of the 6 cores" in text
    assert "threads that share cores" in text and "load average was 7.0" in text and "- 4x1: sort: its answer" in text
    pytest.importorskip("matplotlib")
    written = report.plot({"scaling": run}, tmp_path / "run")
    assert [path.name for path in written] == ["run-scaling.svg", "run-scaling.png"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_the_page_has_the_numbers_that_the_command_gives() -> None:
    """Those of docs/scaling.md, for up to 256 workers: more take minutes."""
    script = Path(__file__).parents[3] / "bench" / "predictions.py"
    checked = subprocess.run(
        [sys.executable, script, "--check", "--workers-max", "256"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert "| 256 |" in checked.stdout and "--skew 1.1" in checked.stdout
