"""Benchmarks of communicators and of starts: the tiny run, and the arithmetic of their report."""

from __future__ import annotations

from pathlib import Path

import benched
import pytest
from harness import comm, report


@pytest.mark.slow
def test_tiny_run_measures_every_communicator_point(tiny: Path) -> None:
    """A worker that fails, hangs or computes a wrong result would appear in `failures` or leave a point empty."""
    results = benched.results(tiny)
    for configuration in results["comm"]["configurations"]:
        assert configuration["failures"] == {}
        for point, times in configuration["samples_s"].items():
            assert len(times["tidemill"]) == 1 and times["tidemill"][0] > 0, point
            assert configuration["checksums"][point]["tidemill"], point
        assert configuration["wait_cpu"]["tidemill"][0] >= 0


@pytest.mark.slow
def test_tiny_run_starts_one_worker_and_four(tiny: Path) -> None:
    results = benched.results(tiny)
    assert results["startup"]["failures"] == {}
    assert set(results["startup"]["answer_s"]) == {"tidemill", "tidemill-2", "tidemill-4"}


def results(workers: int = 2) -> dict[str, object]:
    """Raw results with known ratios: 0.5 to MPICH on one point, 2.0 to Open MPI on the other, one point without us."""
    samples = {
        "bcast 8": {"tidemill": [1e-6, 9e-6, 1e-6], "openmpi": [4e-6] * 3, "mpich": [2e-6] * 3},
        "allreduce 1048576": {"tidemill": [4e-3], "openmpi": [2e-3], "mpich": [3e-3]},
        "barrier 0": {"openmpi": [1e-6]},
    }
    configuration = {
        "transport": "shm",
        "workers": workers,
        "oversubscribed": workers > 2,
        "samples_s": samples,
        "wait_cpu": {"tidemill": [0.01], "openmpi": [1.0]},
        "failures": {"mpich": "did not start: no such file"},
    }
    return {"configurations": [configuration]}


def test_ratio_is_to_the_fastest_peer_by_medians() -> None:
    """A mean instead of a median would take one slow round of `bcast` for typical."""
    ratios = report.comm_ratios(results()["configurations"][0])
    assert ratios["bcast 8"] == (pytest.approx(0.5), "mpich")
    assert ratios["allreduce 1048576"] == (pytest.approx(2.0), "openmpi")
    assert "barrier 0" not in ratios


def test_more_workers_than_cores_are_judged_against_open_mpi() -> None:
    """MPICH cannot yield; beating it there would prove nothing."""
    ratios = report.comm_ratios(results(workers=4)["configurations"][0])
    assert ratios["bcast 8"] == (pytest.approx(0.25), "openmpi")


def test_summary_names_the_worst_point_and_the_mean() -> None:
    text = report.comm_section(results())
    assert "2.00 (allreduce 1 MiB)" in text and "1 of 2" in text
    assert "| 1.00 |" in " ".join(text.split())  # geometric mean of 0.5 and 2
    assert "mpich: did not start" in text and "tidemill 1%, openmpi 100%" in text


def test_turns_rotate() -> None:
    assert comm.rotated(["a", "b", "c"], 1) == ["b", "c", "a"]
    assert comm.rotated([], 3) == []


def test_plot_draws_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = report.plot({"comm": results()}, tmp_path / "ratios")
    assert [path.suffix for path in written] == [".svg", ".png"]
    assert all(path.stat().st_size > 1000 for path in written)
    assert report.plot({}, tmp_path / "nothing") == []
