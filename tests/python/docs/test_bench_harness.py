"""What benchmarks have in common: their report, peers, the viewer's pages, and how they watch processes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import benched
import pytest
from harness import comm, dataset, memory, once, report, viewer
from harness.engines import WINDOWS


@pytest.mark.slow
def test_tiny_run_can_be_rendered_again(tiny: Path) -> None:
    """Raw results allow a report to be made again: the JSON must hold all that a report needs."""
    saved = next(tiny.glob("tiny-*.json"))
    command = [sys.executable, str(benched.BENCH / "run.py"), "--report", str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "2 workers, same host" in done.stdout
    assert saved.with_suffix(".md").read_text().strip() == done.stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(viewer.missing() is not None, reason=f"{viewer.missing()}")
def test_tiny_run_looks_at_the_main_job_and_at_points(tiny: Path) -> None:
    """A page that shows nothing, or fetches what it does not show, would be measured all the same."""
    path = next(tiny.glob("tiny-*.json"))
    cases = {case["case"]: case for case in json.loads(path.read_text())["viewer"]["cases"]}
    assert set(cases) == {"market", "1000"}
    for case in cases.values():
        assert len(case["fill_ms"]) == 2 and case["picture_s"] > 0 and case["frames_fetched"] == case["frames"]
        # With so few points, most of this is the index; but changes, capital and heat maps, which are not shown, are
        # not fetched.
        assert 5 < case["fetched_bytes"] < case["stored_bytes"]
    assert "(market)" in path.with_suffix(".md").read_text()


PEERS_IN_TINY = {
    "comm": ("openmpi5", benched.BENCH / ".peers" / "openmpi5" / ".stamp"),
    "dataset": ("duckdb,polars", benched.BENCH / ".peers" / "tables" / ".stamp"),
    "kmeans": ("spark-mllib,spark-ml", benched.BENCH / ".peers" / "spark" / "classes" / "KMeansSpark.class"),
    "rounds": ("flink-1x2,openmpi-c++", benched.BENCH / ".peers" / "flink" / "classes" / "RoundsFlink.class"),
    "loops": ("spark-mllib", benched.BENCH / ".peers" / "spark" / "classes" / "KMeansSpark.class"),
    "dataset sort": ("flink", benched.BENCH / ".peers" / "flink" / "classes" / "SortFlink.class"),
}


@pytest.mark.slow
@pytest.mark.parametrize("only", PEERS_IN_TINY)
def test_tiny_run_with_peers(only: str, tmp_path: Path) -> None:
    """Where peers are installed, they must still run and agree with Tidemill."""
    systems, needs = PEERS_IN_TINY[only]
    if not needs.exists():
        pytest.skip(f"{systems} is not installed: run bench/setup_peers.sh")
    command = [
        sys.executable,
        str(benched.BENCH / "run.py"),
        "--tiny",
        "--only",
        only.split()[0],
        "--out",
        str(tmp_path),
    ]
    command += ["--systems", f"{systems},tidemill"]
    cases = {
        "dataset": ",".join(WINDOWS),
        "dataset sort": "sort",
        "kmeans": "float32",
        "rounds": "reduce-2,broadcast-2,allreduce-2",
        "loops": "kmeans",
    }
    command += ["--cases", cases[only]] if only in cases else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(tmp_path.glob("tiny-*.json")).read_text())[only.split()[0]]
    for case in found.get("cases", found.get("configurations", [])):
        assert case["failures"] == {}
        # The code that runs them checks centers, arrays and sums.
        fits = case.get("fit_s") or case.get("round_s") or case.get("all_s", {})
        times = case.get("samples_s", {"": fits})
        answers = case.get("digests") or {name: "" for of in times.values() for name in of}
        assert any(not name.startswith("tidemill") for name in answers)
        assert len(set(answers.values())) == 1


def test_geometric_mean_and_spread() -> None:
    assert report.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(report.geometric_mean([]))
    assert report.spread([1.0, 2.0, 3.0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.1e-7, "0.41 us"), (1.06e-4, "106 us"), (2.9e-3, "2.9 ms"), (0.999, "999 ms"), (1.5, "1.5 s")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text


def test_memory_is_that_of_all_processes() -> None:
    """A system that hides its memory in a child would look small."""
    child = "import sys; data = b'x' * (80 << 20); print('made', flush=True); sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == b"made\n"
        watch = memory.Watch(process.pid, 60)
        watch.begin()
        process.stdin.close()
    assert 80 << 10 <= watch.own_kib <= watch.peak_kib < 400 << 10


def test_what_takes_too_long_is_ended_with_its_children() -> None:
    program = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    )
    with pytest.raises(comm.SystemFailed, match="took longer than 1 s"):
        once.run_watched(dataset.Launch([sys.executable, "-c", program]), 1)
    assert memory.descendants(1 << 40) == [1 << 40]
