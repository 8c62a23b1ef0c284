"""Benchmarks of k-means, scaling, loops and frames of the main job: the tiny run, and the arithmetic of their reports."""

from __future__ import annotations

from pathlib import Path

import benched
import pytest
from harness import kmeans, loops, mds, report, series


@pytest.mark.slow
def test_tiny_run_fits_k_means_both_ways(tiny: Path) -> None:
    """Two workers of one thread and one of two must give equally good centres."""
    results = benched.results(tiny)
    for case in results["kmeans"]["cases"]:
        assert case["failures"] == {}
        assert set(case["fit_s"]) == set(kmeans.OURS)
        first, second = (case["inertia"][name] for name in kmeans.OURS)
        assert first == pytest.approx(second, rel=1e-3)


@pytest.mark.slow
def test_tiny_run_scales_every_way(tiny: Path) -> None:
    """Two workers, one, and two bytes a distance must reach the same stress; starts and many points must have run."""
    results = benched.results(tiny)
    (case,) = results["mds"]["cases"]
    assert case["failures"] == {}
    assert set(case["fit_s"]) == set(case["own_mib"]) == set(mds.OURS)
    assert case["stress"]["tidemill-1x2"] == pytest.approx(case["stress"]["tidemill-2x1"], rel=1e-12)
    assert [len(one["plain"]) for one in results["mds"]["annealing"]] == [2, 2]
    assert {one["storage"] for one in results["mds"]["large"]} == {"fixed16", "vectors"}
    first, second = (one["stress"] for one in results["mds"]["large"])
    assert first == pytest.approx(second, rel=1e-3)


@pytest.mark.slow
def test_tiny_run_loops_every_way(tiny: Path) -> None:
    """A stream, a loop and a synchronous program reach the same result."""
    results = benched.results(tiny)
    assert [case["problem"] for case in results["loops"]["cases"]] == ["kmeans", "mds"]
    for case in results["loops"]["cases"]:
        assert case["failures"] == {} and set(case["all_s"]) == set(loops.OURS_ALL)
        first = case["quality"]["tidemill-bsp"]
        assert all(quality == pytest.approx(first, rel=1e-4) for quality in case["quality"].values())


@pytest.mark.slow
def test_tiny_run_makes_frames_both_ways(tiny: Path) -> None:
    """One worker and two must make equally good frames, in each way to share the work."""
    results = benched.results(tiny)
    cases = results["series"]["cases"]
    assert [(case["start"], case["jobs"], case["workers"]) for case in cases] == series.CASES
    for one, two, apart in (cases[:3], cases[3:]):
        assert one["frames"] == two["frames"] == apart["frames"] == 2
        assert one["stress"] == pytest.approx(two["stress"], rel=1e-3)
        assert one["communication"] == apart["communication"] == [0.0] != two["communication"]


def test_k_means_ratio_is_the_worse_of_whole_and_further() -> None:
    """A system with a cheap further iteration but a costly start must not be judged by its better side."""
    case = {
        "fit_s": {"tidemill-2x1": [3.0], "c-mpi": [4.0], "faiss": [5.0]},
        "further_s": {"tidemill-2x1": [1.0], "c-mpi": [4.0], "faiss": [2.0]},
    }
    assert report.kmeans_ratios(case) == {"tidemill-2x1": (pytest.approx(0.75), "c-mpi")}


def test_inertia_is_that_of_the_definition() -> None:
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(1)
    rows, centres = rng.normal(size=(50, 3)), rng.normal(size=(4, 3))
    direct = sum(min(((row - centre) ** 2).sum() for centre in centres) for row in rows)
    assert kmeans.inertia(rows, centres) == pytest.approx(direct)


def test_data_is_seeded_and_centres_are_rows() -> None:
    case = kmeans.Case(500, 3, 5, "float32")
    rows, centres = case.generate()
    again, _ = case.generate()
    assert (rows == again).all() and rows.dtype == centres.dtype == "float32"
    assert all((rows == centre).all(axis=1).any() for centre in centres)


def test_loops_are_compared_with_what_computes_the_same() -> None:
    times = {"tidemill-bsp": [1.0], "tidemill-bsp-numpy": [2.0], "tidemill-loop": [3.0, 3.0], "spark-mllib": [5.0]}
    case = {
        "problem": "kmeans",
        "rows": 1000,
        "columns": 2,
        "k": 3,
        "all_s": times,
        "further_s": {name: [0.5] for name in times},
        "what": "inertia",
        "quality": dict.fromkeys(times, 7.0),
        "failures": {},
    }
    text = loops.section({"rounds": 2, "iterations": 10, "workers": 2, "cases": [case]})
    lines = benched.lines(text)
    assert "| tidemill-loop | 3 s | ±0% | 500 ms | 1.50 | 1.00 | 7 |" in lines
    assert "| spark-mllib | 5 s | ±0% | 500 ms | 5.00 | 1.00 | 7 |" in lines
