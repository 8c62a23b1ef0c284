"""The benchmarks in their tiny setting, so that they cannot rot, and the arithmetic of their reports."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))

from harness import (  # noqa: E402
    broadcast,
    comm,
    dataset,
    exchange,
    inputs,
    kmeans,
    loops,
    mds,
    memory,
    nexmark,
    once,
    records,
    report,
    report_streams,
    rounds,
    scaling,
    series,
    splits,
    topologies,
    viewer,
    windows_events,
    yahoo,
)
from harness.engines import WINDOWS  # noqa: E402


# --- the whole, on Tidemill alone ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder left by one tiny run."""
    out = tmp_path_factory.mktemp("bench")
    command = [sys.executable, str(BENCH / "run.py"), "--tiny", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_tiny_run_measures_every_communicator_point(tiny: Path) -> None:
    """A worker that fails, hangs or computes something wrong would be in `failures` or leave a point empty."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    for configuration in results["comm"]["configurations"]:
        assert configuration["failures"] == {}
        for point, times in configuration["samples_s"].items():
            assert len(times["tidemill"]) == 1 and times["tidemill"][0] > 0, point
            assert configuration["checksums"][point]["tidemill"], point
        assert configuration["wait_cpu"]["tidemill"][0] >= 0


@pytest.mark.slow
def test_tiny_run_fits_k_means_both_ways(tiny: Path) -> None:
    """Two workers of one thread and one of two must give equally good centres."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    for case in results["kmeans"]["cases"]:
        assert case["failures"] == {}
        assert set(case["fit_s"]) == set(kmeans.OURS)
        first, second = (case["inertia"][name] for name in kmeans.OURS)
        assert first == pytest.approx(second, rel=1e-3)


@pytest.mark.slow
def test_tiny_run_scales_every_way(tiny: Path) -> None:
    """Two workers, one, and two bytes a distance must reach the same stress; starts and many points must have run."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    (case,) = results["mds"]["cases"]
    assert case["failures"] == {}
    assert set(case["fit_s"]) == set(case["own_mib"]) == set(mds.OURS)
    assert case["stress"]["tidemill-1x2"] == pytest.approx(case["stress"]["tidemill-2x1"], rel=1e-12)
    assert [len(one["plain"]) for one in results["mds"]["annealing"]] == [2, 2]
    assert {one["storage"] for one in results["mds"]["large"]} == {"fixed16", "vectors"}
    first, second = (one["stress"] for one in results["mds"]["large"])
    assert first == pytest.approx(second, rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(viewer.missing() is not None, reason=f"{viewer.missing()}")
def test_tiny_run_looks_at_the_main_job_and_at_points(tiny: Path) -> None:
    """A page that shows nothing, or fetches what it does not show, would be measured as well."""
    path = next(tiny.glob("tiny-*.json"))
    cases = {case["case"]: case for case in json.loads(path.read_text())["viewer"]["cases"]}
    assert set(cases) == {"market", "1000"}
    for case in cases.values():
        assert len(case["fill_ms"]) == 2 and case["picture_s"] > 0 and case["frames_fetched"] == case["frames"]
        # Of these few points the index is most of it; but changes, capital and heat maps, which are not shown, are not fetched.
        assert 5 < case["fetched_bytes"] < case["stored_bytes"]
    assert "(market)" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_tiny_run_answers_queries_both_ways(tiny: Path) -> None:
    """Two workers of one thread and one of two must give the same answer, and one with rows."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    queries = [case["query"] for case in results["dataset"]["cases"]]
    assert queries == ["group", "join", "words", "row-number", "running-sum", "lag-lead", "sort"]
    for case in results["dataset"]["cases"]:
        assert case["failures"] == {}
        assert set(case["query_s"]) == set(dataset.OURS)
        (digest,) = set(case["digests"].values())
        # The answers of window functions are one row, whose value NumPy knows.
        expected = window_digest(case) if case["query"] in WINDOWS else digest
        assert int(digest.split()[0]) >= 10 or case["query"] in WINDOWS
        assert digest == expected, case["name"]
        assert all(10 < mib < 100_000 for values in case["peak_mib"].values() for mib in values)
    assert digest.startswith("2000 ") and digest.endswith(" in order")


PEERS_IN_TINY = {
    "comm": ("openmpi5", BENCH / ".peers" / "openmpi5" / ".stamp"),
    "dataset": ("duckdb,polars", BENCH / ".peers" / "tables" / ".stamp"),
    "kmeans": ("spark-mllib,spark-ml", BENCH / ".peers" / "spark" / "classes" / "KMeansSpark.class"),
    "rounds": ("flink-1x2,openmpi-c++", BENCH / ".peers" / "flink" / "classes" / "RoundsFlink.class"),
    "loops": ("spark-mllib", BENCH / ".peers" / "spark" / "classes" / "KMeansSpark.class"),
    "dataset sort": ("flink", BENCH / ".peers" / "flink" / "classes" / "SortFlink.class"),
}


@pytest.mark.slow
@pytest.mark.parametrize("only", PEERS_IN_TINY)
def test_tiny_run_with_peers(only: str, tmp_path: Path) -> None:
    """Where peers are installed, they must still run and agree with Tidemill."""
    systems, needs = PEERS_IN_TINY[only]
    if not needs.exists():
        pytest.skip(f"{systems} is not installed: run bench/setup_peers.sh")
    command = [sys.executable, str(BENCH / "run.py"), "--tiny", "--only", only.split()[0], "--out", str(tmp_path)]
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
        # Centres, arrays and sums are checked by what runs them.
        fits = case.get("fit_s") or case.get("round_s") or case.get("all_s", {})
        times = case.get("samples_s", {"": fits})
        answers = case.get("digests") or {name: "" for of in times.values() for name in of}
        assert any(not name.startswith("tidemill") for name in answers)
        assert len(set(answers.values())) == 1


def window_digest(case: dict[str, Any]) -> str:
    """The digest of the right answer, in plain loops over the rows of each key."""
    np, pq = pytest.importorskip("numpy"), pytest.importorskip("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        inputs.ordered(Path(folder), case["rows"], case["keys"])
        rows = pq.read_table(Path(folder) / "facts").to_pylist()
    of_key: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: row["v"]):
        of_key.setdefault(row["k"], []).append(row["x"])
    total = 0
    for xs in of_key.values():
        for at, x in enumerate(xs):
            number = {
                "row-number": at + 1,
                "running-sum": sum(xs[: at + 1]),
                "lag-lead": (xs[at - 1] if at else 5000) + 3 * (xs[at + 2] if at + 2 < len(xs) else 7000),
            }[case["query"]]
            total += number * (x + 2000)
    both = np.array([len(rows)]).tobytes() + np.array([total]).tobytes()
    return f"1 {hashlib.sha256(both).hexdigest()[:16]}"


@pytest.mark.slow
def test_tiny_run_starts_one_worker_and_four(tiny: Path) -> None:
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    assert results["startup"]["failures"] == {}
    assert set(results["startup"]["answer_s"]) == {"tidemill", "tidemill-2", "tidemill-4"}


@pytest.mark.slow
def test_tiny_run_splits_jobs_every_way(tiny: Path) -> None:
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
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


@pytest.mark.slow
def test_tiny_run_exchanges_messages(tiny: Path) -> None:
    """What arrives is known: the sum of all that is sent."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    assert [case["operation"] for case in results["exchange"]["cases"]] == list(exchange.OPERATIONS)
    for case in results["exchange"]["cases"]:
        sources = 1 if case["operation"] == "broadcast" else 2
        sent = sum(source + number + i for source in range(sources) for number in range(100) for i in range(16))
        assert case["failures"] == {} and case["digests"] == {"tidemill": str(2 * sent if sources == 1 else sent)}


@pytest.mark.slow
def test_tiny_run_exchanges_records(tiny: Path) -> None:
    """What arrives is known: the sum of all words, and every key at one target, or at each."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    assert [case["operation"] for case in results["records"]["cases"]] == list(records.OPERATIONS)

    def sent(source: int) -> tuple[int, set[int]]:
        keys = [(number * 2654435761 & 0xFFFFFFFF) >> 22 for number in range(source, source + 1000)]
        words = sum(source + number + word for number in range(1000) for word in range(1, 16))
        return sum(keys) + words, set(keys)

    (first, keys_of_first), (second, keys_of_second) = sent(0), sent(1)
    digests = {
        "partition": f"{first + second} {len(keys_of_first | keys_of_second)}",
        "reduce": f"{first + second} 0",
        "broadcast": f"{2 * first} {2 * len(keys_of_first)}",
    }
    for case in results["records"]["cases"]:
        assert case["failures"] == {} and case["digests"] == {"tidemill": digests[case["operation"]]}, case


@pytest.mark.slow
def test_tiny_run_makes_rounds(tiny: Path) -> None:
    """A wrong sum would be in `failures`."""
    path = next(tiny.glob("tiny-*.json"))
    cases = json.loads(path.read_text())["rounds"]["cases"]
    assert [(case["operation"], case["tasks"]) for case in cases] == [(o, n) for o in rounds.OPERATIONS for n in (2, 4)]
    for case in cases:
        assert case["failures"] == {} and case["round_s"]["tidemill"][0] > 0
        assert 0 < case["p50_s"]["tidemill"][0] <= case["p99_s"]["tidemill"][0]
    assert "all to one, 4 tasks, 4 KiB" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_tiny_run_loops_every_way(tiny: Path) -> None:
    """A stream, a loop and a program in step come to the same."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    assert [case["problem"] for case in results["loops"]["cases"]] == ["kmeans", "mds"]
    for case in results["loops"]["cases"]:
        assert case["failures"] == {} and set(case["all_s"]) == set(loops.OURS_ALL)
        first = case["quality"]["tidemill-bsp"]
        assert all(quality == pytest.approx(first, rel=1e-4) for quality in case["quality"].values())


def test_rounds_have_a_known_sum() -> None:
    def slow(sources: int, targets: int, size: int, count: int) -> str:
        messages = ((s, n, i) for s in range(sources) for n in range(count) for i in range(size // 8))
        return str(targets * sum(map(sum, messages)))

    assert rounds.expected("reduce", 3, 40, 7) == slow(3, 1, 40, 7)
    assert rounds.expected("broadcast", 3, 40, 7) == slow(1, 3, 40, 7)
    assert rounds.expected("allreduce", 3, 40, 7) == rounds.expected("loop", 3, 40, 7) == slow(3, 3, 40, 7)


def test_rounds_are_judged_by_the_faster_by_hand_and_by_flink() -> None:
    """Flink is compared by rates, the other way up; lone rounds by their medians."""
    case = {
        "operation": "reduce",
        "tasks": 2,
        "size": 4096,
        "rounds": 10,
        "round_s": {
            "tidemill": [4e-5],
            "openmpi": [1e-5],
            "openmpi-c++": [8e-6],
            "flink-2x1": [9e-5],
            "flink-1x2": [8e-5],
        },
        "p50_s": {"tidemill": [6e-5, 1e-4, 9e-5], "openmpi": [3e-5]},
        "p99_s": {"tidemill": [2e-4, 3e-4, 8e-4], "openmpi": [4e-5]},
        "failures": {"flink-2x1": "lost"},
    }
    text = rounds.section({"repeats": 3, "workers": 2, "single": 200, "cases": [case]})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any("| 25,000 ±0% |" in line and "5.00 openmpi-c++ | 2.00 flink-1x2 |" in line for line in lines)
    assert "| all to one, 2 tasks, 4 KiB | 90 us, 300 us | - | - | 30 us, 40 us | - | 3.00 openmpi |" in lines
    assert "- flink-2x1 on all to one, 2 tasks, 4 KiB: lost" in lines


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
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| tidemill-loop | 3 s | ±0% | 500 ms | 1.50 | 1.00 | 7 |" in lines
    assert "| spark-mllib | 5 s | ±0% | 500 ms | 5.00 | 1.00 | 7 |" in lines


def test_records_are_judged_as_exchanges_are() -> None:
    case = {
        "operation": "partition",
        "record_s": {"tidemill-rust": [2e-8], "openmpi-c++": [1e-8], "flink-2x1": [9e-8], "flink-1x2": [8e-8]},
        "digests": {"tidemill-rust": "7 3", "flink-2x1": "7 4"},
        "failures": {},
    }
    text = report.records_section({"rounds": 1, "workers": 2, "records": 1000, "cases": [case]})
    assert "50 M" in text and "2.00 openmpi-c++" in text and "4.00 flink-1x2" in text and "in Python" not in text
    assert "Digests differ at: partition." in text


@pytest.mark.slow
def test_tiny_run_broadcasts_along_every_overlay(tiny: Path) -> None:
    """An answer that is missing, or comes twice, would be in `right`; an overlay that hangs, in `failures`."""
    found = json.loads(next(tiny.glob("tiny-*.json")).read_text())["broadcast"]
    if found["missing"]:
        pytest.skip(found["missing"])
    assert found["failures"] == {} and set(found["cases"]) == {"tcp", "shm"}
    for cases in found["cases"].values():
        assert [case["overlay"] for case in cases] == list(broadcast.OVERLAYS)
        assert all(case["right"] and 0 < case["p50_s"] <= case["p99_s"] and case["rate"] > 0 for case in cases)


@pytest.mark.slow
def test_tiny_run_acknowledges_both_topologies(tiny: Path) -> None:
    """An acknowledgement that is missing, or comes twice, would be in `right`; a source that waits for ever, in `failures`."""
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["topologies"]
    assert found["failures"] == {}
    assert set(found["cases"]) == set(topologies.TRANSPORTS) - ({"hosts"} if found["missing"] else set())
    given = [topologies.label(dataclasses.asdict(one)) for one in topologies.points(topologies.SETTINGS["tiny"], None)]
    for cases in found["cases"].values():
        assert [topologies.label(case) for case in cases] == given
        assert all(case["right"] and 0 < case["p50_s"] <= case["p99_s"] and case["rate"] > 0 for case in cases)
    assert "no InfiniBand" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_tiny_run_answers_nexmark_both_ways(tiny: Path) -> None:
    """Two workers of one thread and one of two must have the same rows, of which each query has some."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    assert [case["query"] for case in results["nexmark"]["cases"]] == list(nexmark.QUERIES)
    for case in results["nexmark"]["cases"]:
        assert case["failures"] == {} and set(case["elapsed_s"]) == {"tidemill-2x1", "tidemill-1x2"}
        (answer,) = set(case["answers"].values())
        assert int(answer.split()[0]) > 0


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no Redis to test with")
def test_tiny_run_counts_views_both_ways(tiny: Path) -> None:
    """A wrong count would be in `failures`, and so a view that did not ask Redis, or whose count was not set."""
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["yahoo"]
    assert [case["campaigns"] for case in found["cases"]] == ["table", "query"]
    assert [case["campaigns"] for case in found["paced"]] == ["table", "query", "checkpoints"]
    for case in (*found["cases"], *found["paced"]):
        assert case["failures"] == {} and set(case["elapsed_s"]) == {"tidemill-2x1", "tidemill-1x2"}
        assert all((one["queries"] > 0) == (case["campaigns"] == "query") for (one,) in case["redis"].values())
    for case in found["paced"]:
        for name, (times,) in case["latency_s"].items():
            assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["p99.9"] <= times["max"]
            # A view's wait for Redis is a part of its latency.
            assert all(case[part][name][0]["p50"] < times["max"] for part in ("lookup_s", "write_s") if part in case)
    assert "a query per view, 1,000/s, tidemill-2x1" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_tiny_run_keeps_state(tiny: Path) -> None:
    """A row that is lost or counted twice would be in `failures`, and so a job that does not come back."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    cases = {case["case"]: case for case in results["state"]["cases"]}
    assert set(cases) == {"cost-all", "cost-hot", "recovery", "move"}
    assert all(case["failures"] == {} and case["found"] for case in cases.values())
    for name in ("cost-all", "cost-hot"):
        for ((plain, saved),) in cases[name]["found"].values():
            assert plain["checkpoints"] == 0 < saved["checkpoints"]


@pytest.mark.slow
def test_tiny_run_makes_frames_both_ways(tiny: Path) -> None:
    """One worker and two must make equally good frames, in each way to share the work."""
    results = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    cases = results["series"]["cases"]
    assert [(case["start"], case["jobs"], case["workers"]) for case in cases] == series.CASES
    for one, two, apart in (cases[:3], cases[3:]):
        assert one["frames"] == two["frames"] == apart["frames"] == 2
        assert one["stress"] == pytest.approx(two["stress"], rel=1e-3)
        assert one["communication"] == apart["communication"] == [0.0] != two["communication"]


@pytest.mark.slow
def test_tiny_run_can_be_rendered_again(tiny: Path) -> None:
    """Raw results are kept so that a report can be remade: JSON must hold all a report needs."""
    saved = next(tiny.glob("tiny-*.json"))
    command = [sys.executable, str(BENCH / "run.py"), "--report", str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "2 workers, same host" in done.stdout
    assert saved.with_suffix(".md").read_text().strip() == done.stdout.strip()


# --- arithmetic ------------------------------------------------------------------------------------------------------
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
    """A mean instead of a median would take the one slow round of `bcast` for the rule."""
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


def test_k_means_ratio_is_the_worse_of_whole_and_further() -> None:
    """A system with a cheap further iteration but a costly start must not be shown by its better side."""
    case = {
        "fit_s": {"tidemill-2x1": [3.0], "c-mpi": [4.0], "faiss": [5.0]},
        "further_s": {"tidemill-2x1": [1.0], "c-mpi": [4.0], "faiss": [2.0]},
    }
    assert report.kmeans_ratios(case) == {"tidemill-2x1": (pytest.approx(0.75), "c-mpi")}


def test_data_sets_are_judged_by_the_fastest_peer_and_a_different_answer_is_told() -> None:
    case = {
        "title": "join, 1,000 rows",
        "memory_mib": 0,
        "query_s": {"tidemill-2x1": [3.0], "tidemill-1x2": [1.0], "polars": [2.0], "duckdb": [5.0]},
        "digests": {"tidemill-2x1": "10 a", "polars": "10 a", "duckdb": "9 b"},
        "failures": {"polars-streaming": "took longer than 1 s"},
    }
    memory_of_all = {name: [100, 120] for name in case["query_s"]}
    case.update(peak_mib=memory_of_all, own_mib=memory_of_all)
    text = report.dataset_section({"rounds": 1, "cases": [case]})
    assert "1.50 polars" in text and "0.50 polars" in text and "### join, 1,000 rows" in text and "120 MiB" in text
    assert "Answers differ" in text and "- polars-streaming: took longer" in text
    assert "1.20" in report.dataset_section({"rounds": 1, "cases": [{**case, "memory_mib": 100}]})


def test_exchanges_are_judged_by_hand_and_by_flink_in_their_language() -> None:
    """Flink is compared by rates, the other way up than the ratio to the same by hand; a Python function never with a compiled one."""
    case = {
        "operation": "reduce",
        "size": 131072,
        "message_s": {
            "tidemill": [4e-6],
            "openmpi": [8e-6],
            "pyflink": [9e-6],
            "tidemill-rust": [3e-6],
            "openmpi-c++": [2e-6],
            "flink-2x1": [9e-6],
            "flink-1x2": [1e-6],
        },
        "latency_s": {"flink-2x1": [3e-5]},
        "digests": {"tidemill": "1", "flink-2x1": "1"},
        "failures": {"pyflink": "out of memory"},
    }
    text = report.exchange_section({"rounds": 1, "workers": 2, "cases": [case]})
    python, compiled = text.split("### Functions in ")[1:]
    assert "0.50 openmpi " in python and "2.25 pyflink" in python and "openmpi-c++" not in python
    assert "1.50 openmpi-c++" in compiled and "0.33 flink-1x2" in compiled and "30 us" in compiled
    assert "The same arrived everywhere." in text and "- pyflink on reduce: out of memory" in text
    case["message_s"] = {"tidemill": [4e-6]}
    text = report.exchange_section({"rounds": 1, "workers": 2, "cases": [case]})
    assert "Python" in text and "Rust" not in text


def test_windows_are_judged_by_the_best_peer_and_by_all_rounds() -> None:
    """Rates are the other way up than latencies, and a slow window of one round must show in the 99th percentile."""
    seconds = {"tidemill": [2e-6, 1e-6, 9e-6], "timely": [1e-6], "flink": [4e-6]}
    throughput = {
        "mode": "throughput",
        "per_second": {},
        "event_s": seconds,
        "latency_s": {},
        "failures": {"spark": "lost"},
    }
    latencies = {"tidemill": [[0.001] * 10, [0.002] * 9 + [0.4]], "flink": [[0.004] * 10, [0.004] * 10]}
    paced = {"mode": "latency", "per_second": dict.fromkeys(latencies, 30_000), "latency_s": latencies, "failures": {}}
    text = report.windows_section({"rounds": 2, "events": 10, "paced_s": 3, "cases": [throughput, paced]})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| tidemill | 0.5 M | ±200% | 0.5 |" in lines and "- spark: lost" in lines
    assert "| tidemill | 30,000 | 1 ms | 0.25 | 400 ms | 100 | ±33% |" in lines
    assert "### Latency at 30,000 events/s" in text


def test_nexmark_is_judged_by_rates_and_a_different_answer_is_told() -> None:
    case = {
        "query": 3,
        "elapsed_s": {"tidemill-2x1": [2.0], "tidemill-1x2": [1.0, 9.0, 1.0], "flink-sql": [4.0]},
        "answers": {"tidemill-2x1": "7 a", "tidemill-1x2": "7 a", "flink-sql": "7 a"},
        "failures": {},
    }
    other = {**case, "query": 6, "elapsed_s": {"tidemill-1x2": [1.0]}, "failures": {"flink-sql": "cannot"}}
    run = {"rounds": 3, "events": 8_000_000, "step_us": 100, "cases": [case, other]}
    text = report_streams.nexmark_section(run)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| 3 | 7 | 8 M ±400% | 4 M ±0% | 2 M ±0% | 4 | 2 |" in lines
    assert "- flink-sql on query 6: cannot" in lines and "All answers are the same." in lines
    assert "Geometric means: tidemill-1x2 4, tidemill-2x1 2." in text
    case["answers"]["flink-sql"] = "7 b"
    assert "- query 3: answers differ" in report_streams.nexmark_section(run)


def test_yahoo_counts_what_is_in_its_files(tmp_path: Path) -> None:
    """The right answer comes from numbers, the systems' from lines."""
    setting = dataclasses.replace(yahoo.SETTINGS["tiny"], events=3000, per_second=100)
    files, right = yahoo.write_events(tmp_path, setting)
    found: Counter[str] = Counter()
    for file in files:
        events = [json.loads(line) for line in file.read_text().splitlines()]
        times = [event["event_time"] for event in events]
        assert times == sorted(times) and len(events) == 750
        for event in events:
            if event["event_type"] == "view":
                campaign = int(event["ad_id"].removeprefix("ad")) // yahoo.ADS_OF_EACH
                found[f"campaign{campaign}:{event['event_time'] // yahoo.WINDOW_MS * yahoo.WINDOW_MS}"] += 1
    assert found == right and 900 < found.total() < 1100


def test_yahoo_is_judged_by_rates() -> None:
    case = {"elapsed_s": {"tidemill-2x1": [1.0, 2.0, 3.0], "flink": [4.0]}, "failures": {"tidemill-1x2": "lost"}}
    text = report_streams.yahoo_section({"rounds": 3, "events": 4_000_000, "per_second": 10, "cases": [case]})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| tidemill-2x1 | 2 M | ±50% | 2 |" in lines and "- tidemill-1x2: lost" in lines
    assert "Latency" not in text and "Flink was not measured" not in text


def test_yahoo_tells_the_time_of_redis_apart() -> None:
    """Percentiles are medians over rounds; what was not asked for or did not run has none."""

    def times(scale: float) -> dict[str, float]:
        return {"p50": 0.001 * scale, "p90": 0.002 * scale, "p99": 0.003 * scale, "p99.9": 0.004 * scale, "max": 0.5}

    own = [{"queries": 1000, "query_us": 0.25, "core": 0.125, "plain_per_s": 2e6}] * 3
    ours = "tidemill-2x1"
    asked = {"campaigns": "query", "elapsed_s": {ours: [1.0, 2.0, 4.0]}, "redis": {ours: own}, "failures": {}}
    paced = {"latency_s": {ours: [times(1), times(9), times(2)]}, "write_s": {ours: [times(0.1)] * 3}}
    run = {"rounds": 3, "events": 3_000_000, "per_second": 10, "paced_s": 5}
    paces = [{**asked, **paced, "campaigns": "table", "per_second": 10_000, "failures": {"tidemill-1x2": "late"}}]
    text = report_streams.yahoo_section({**run, "cases": [asked], "paced": paces})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| tidemill-2x1 | 1.5 M | ±75% | - |" in lines
    assert any(line.startswith("- tidemill-2x1: 500 queries/s. Redis itself: 0.25 us in each, 12%") for line in lines)
    latency = "| in a table, 10,000/s, tidemill-2x1 | 2 ms | 4 ms | 6 ms | 8 ms | 500 ms | - | 100 us, 300 us | 12% |"
    assert latency in lines and "- tidemill-1x2 paced, in a table, 10,000/s: late" in lines
    assert report_streams.sections({"yahoo": {**run, "cases": [], "paced": paces}})


def test_broadcasts_are_compared_with_serial_sending(tmp_path: Path) -> None:
    """Goals are for most tasks and for sizes where links are the limit."""

    def case(overlay: str, tasks: int, size: int, p50_s: float, rate: float) -> dict[str, Any]:
        numbers = {"p50_s": p50_s, "p90_s": p50_s, "p99_s": p50_s, "rate": rate, "singles": 3, "right": True}
        return {"overlay": overlay, "tasks": tasks, "size": size, "single_cpu": 0.5, "many_cpu": 0.25, **numbers}

    setting = broadcast.SETTINGS["full"]
    alone = [case("copies", 60, 10_000, 0.06, 20.0), case("binary", 60, 10_000, 0.01, 100.0)]
    alone += [case("chain", 60, 10_000, 0.03, 400.0), case("copies", 60, 100, 0.01, 100.0)]
    shared = [case("chain", 60, 10_000, 0.021, 400.0)]
    run = {"setting": dataclasses.asdict(setting), "missing": None, "failures": {"shared memory": "lost"}}
    text = broadcast.section({**run, "cases": {"tcp": alone, "shm": shared}})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| 10 kB, binary | 10 ms | 10 ms | 10 ms | 3 | 6.00 | 50% | 100 | 5.00 | 25% |" in lines
    assert any("at least 5 times lower" in line and line.endswith("6.0 at 10 kB.") for line in lines)
    assert any("at least 10 times higher" in line and line.endswith("20.0 at 10 kB.") for line in lines)
    assert "| 60 tasks, 10 kB | 30 ms | 21 ms | 30% |" in lines and "- shared memory: lost" in lines
    given = list(broadcast.points(setting, ["binary-60-10000", "chain-10-100"]))
    named = {(point.overlay, point.tasks, point.size) for point in given}
    assert ("copies", 10, 100) in named and ("flat/binary", 60, 10_000) in named and len(given) == len(named) == 19
    assert broadcast.crossings("copies", 60, setting) == 52.5 and broadcast.crossings("chain", 60, setting) == 1
    left_out = broadcast.section({**run, "missing": "no rights", "cases": {}})
    assert left_out == "## Broadcast\n\nLeft out: no rights\n"
    pytest.importorskip("matplotlib")
    drawn = broadcast.plot({**run, "cases": {"tcp": alone, "shm": shared}}, tmp_path / "run")
    assert [path.name for path in drawn] == ["run-broadcast.svg", "run-broadcast.png"]


def test_topologies_are_in_one_table() -> None:
    """A transport that lacks a point has a gap in its row, not another point's figures; objects are no row of it."""

    def case(topology: str, size: int, p50_s: float, kind: str = "arrays") -> dict[str, Any]:
        copies = {"sources": 4, "tasks": 4 if topology == "A" else 8, "size": size, "pending": 10, "kind": kind}
        times = {"p50_s": p50_s, "p90_s": 2 * p50_s, "p99_s": 3 * p50_s, "rate": 1000.0, "cpu": 0.5, "busy_s": 0.3}
        return {"topology": topology, **copies, **times, "messages": 1000, "serialize_s": 3e-5, "right": True}

    shm = [case("A", 128, 0.001), case("A", 128_000, 0.002), case("B", 128, 0.001), case("B", 128, 0.1, "objects")]
    cases = {"shm": shm, "tcp": [case("A", 128, 0.0015), case("B", 128, 0.002)], "hosts": [case("A", 128_000, 0.02)]}
    setting = dataclasses.asdict(topologies.SETTINGS["full"])
    run = {"setting": setting, "cases": cases, "failures": {"TCP": "lost"}, "missing": None}
    text = topologies.section(run)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    first = "| A, 4 of each, 128 B, 10 in flight | 1 ms, 2 ms, 3 ms | 1e+03 | 50% |"
    assert f"{first} 1.5 ms, 3 ms, 4.5 ms | 1e+03 | 50% | - | - | - |" in lines
    assert {"| A, 128 B | 1.50 | - |", "| A, 128 kB | - | 10.00 |", "| B, 128 B | 2.00 | - |"} <= set(lines)
    assert "| 128 B, 4 to 8, shared memory | 300 us | 300 us | 30 us | 10% |" in lines
    assert "Each message was acknowledged once." in lines and "- TCP: lost" in lines
    assert not any(line.startswith("| B") and "objects" in line for line in lines)
    shm[0]["right"] = False
    left_out = topologies.section({**run, "missing": "no rights"})
    assert "left out: no rights" in left_out and "came twice: A, 4 of each, 128 B" in left_out


def test_topologies_vary_what_the_research_varies() -> None:
    full = topologies.SETTINGS["full"]
    given = list(topologies.points(full, None))
    assert len(given) == len(set(given)) and {(one.topology, one.stages) for one in given} == {("A", 7), ("B", 1)}
    deep = {(one.sources, one.size, one.pending) for one in given if one.topology == "A"}
    assert {(2, 16_000, 10), (8, 128, 10), (8, 128_000, 100)} <= deep and (8, 16_000, 10) not in deep
    assert all(one.sources == one.tasks for one in given if one.topology == "A")
    chosen = list(topologies.points(full, ["A-2-128-", "pickle"]))
    assert [(one.topology, one.size, one.kind) for one in chosen] == [
        ("A", 128, "arrays"),
        ("B", 128, "objects"),
        ("B", 128_000, "objects"),
    ]


def test_checkpoints_are_judged_by_what_ran_together() -> None:
    """A machine that is slower in one round is so with and without."""

    def ran(per_s: float, checkpoints: int) -> dict[str, float]:
        return {"per_s": per_s, "longest_wait_s": 0.25, "elapsed_s": 10.0, "checkpoints": checkpoints, "counted": 7}

    pairs = [[ran(10e6, 0), ran(9e6, 5)], [ran(5e6, 0), ran(4e6, 5)], [ran(9e6, 0), ran(8.1e6, 5)]]
    cost = {"case": "cost-all", "found": {"tidemill-2x1": pairs}, "failures": {}}
    moves = {"case": "move", "found": {"tidemill-2x1": [[0.1, 0.3], [0.2]]}, "failures": {"tidemill-1x2": "alone"}}
    run = {"rounds": 3, "keys": 20_000_000, "fewer_keys": 2_000_000, "key_bytes": 48, "every_s": 1.0}
    text = report_streams.state_section({**run, "cases": [cost, moves]})
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| tidemill-2x1 | 9 M | 8.1 M | 0.90 | 250 ms | 2 s |" in lines
    assert "| tidemill-2x1 | 200 ms | 100 ms | 300 ms |" in lines and "- tidemill-1x2: alone" in lines
    assert "### Checkpoints of 960 MB, rows of all keys" in lines


def test_windows_have_a_known_answer() -> None:
    """A slip in the arithmetic of events would otherwise show as all systems being wrong, or all of them right."""
    np = pytest.importorskip("numpy")
    keys, times = windows_events.events(np.arange(5000), 2000)
    places_ms = np.arange(5000) // 2
    assert set(keys) <= set(range(windows_events.KEYS)) and len(set(keys)) > 900
    assert (times >= places_ms).all() and (times <= places_ms + windows_events.LATENESS_MS).all()
    counts = Counter((int(at) // 1000 * 1000, int(key)) for at, key in zip(times, keys, strict=True))
    rows = [(start, key, count) for (start, key), count in counts.items()]
    assert windows_events.answer(5000, 2000) == windows_events.digest(rows) != windows_events.digest(rows[1:])
    assert windows_events.mix([1, 2]).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]  # the generator's first, of seed 0


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


def test_a_sort_that_loses_or_swaps_records_is_told(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    inputs.records(tmp_path / "in", 1000, parquet=True)
    plain = inputs.sorted_digest(tmp_path / "in" / "records")
    assert plain.startswith("1000 ") and plain.endswith("NOT in order")
    assert inputs.sorted_digest(tmp_path / "in" / "parquet") == plain
    rows = np.vstack(list(inputs.blocks(tmp_path / "in" / "records")))
    rows = rows[np.lexsort(rows[:, 9::-1].T)]

    def seen(name: str, records: object) -> str:
        (tmp_path / name).mkdir()
        records.tofile(tmp_path / name / "0")
        return inputs.sorted_digest(tmp_path / name)

    right = seen("right", rows)
    assert right == plain.replace("NOT in order", "in order")
    assert seen("swapped", rows[[1, 0, *range(2, 1000)]]).endswith("NOT in order")
    assert seen("lost", rows[1:]).split()[:2] != right.split()[:2]
    changed = rows.copy()
    changed[500, 20] ^= 1
    assert seen("changed", changed).split()[1] != right.split()[1]


def test_turns_rotate() -> None:
    assert comm.rotated(["a", "b", "c"], 1) == ["b", "c", "a"]
    assert comm.rotated([], 3) == []


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
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| group_by | 2.00 | 1.60 | 3.20 | 4.00 | 2.00 |" in lines
    assert "| group_by | 100% | 80% | 80% | 100% | 50% |" in lines
    assert sum("allreduce of 8 B" in line for line in lines) == 1
    assert "6 cores: splits of 8 cores and more were left out" in text and "2 of the 6 cores" in text
    assert "threads that share cores" in text and "load average was 7.0" in text and "- 4x1: sort: its answer" in text
    pytest.importorskip("matplotlib")
    written = report.plot({"scaling": run}, tmp_path / "run")
    assert [path.name for path in written] == ["run-scaling.svg", "run-scaling.png"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_plot_draws_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = report.plot({"comm": results()}, tmp_path / "ratios")
    assert [path.suffix for path in written] == [".svg", ".png"]
    assert all(path.stat().st_size > 1000 for path in written)
    assert report.plot({}, tmp_path / "nothing") == []
