"""Benchmarks of streams: the tiny run, the right answers, and the arithmetic of their reports."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import benched
import pytest
from harness import nexmark, report, report_streams, windows_events, yahoo


@pytest.mark.slow
def test_tiny_run_answers_nexmark_both_ways(tiny: Path) -> None:
    """Two workers of one thread and one of two must produce the same rows, and each query some."""
    results = benched.results(tiny)
    assert [case["query"] for case in results["nexmark"]["cases"]] == list(nexmark.QUERIES)
    for case in results["nexmark"]["cases"]:
        assert case["failures"] == {} and set(case["elapsed_s"]) == {"tidemill-2x1", "tidemill-1x2"}
        (answer,) = set(case["answers"].values())
        assert int(answer.split()[0]) > 0


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no Redis to test with")
def test_tiny_run_counts_views_both_ways(tiny: Path) -> None:
    """A wrong count, a view that did not query Redis, or one whose count was not set, would appear in `failures`."""
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
            # A view's wait for Redis is part of its latency.
            assert all(case[part][name][0]["p50"] < times["max"] for part in ("lookup_s", "write_s") if part in case)
    assert "a query per view, 1,000/s, tidemill-2x1" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_tiny_run_keeps_state(tiny: Path) -> None:
    """A row lost or counted twice, or a job that does not come back, would appear in `failures`."""
    results = benched.results(tiny)
    cases = {case["case"]: case for case in results["state"]["cases"]}
    assert set(cases) == {"cost-all", "cost-hot", "recovery", "move"}
    assert all(case["failures"] == {} and case["found"] for case in cases.values())
    for name in ("cost-all", "cost-hot"):
        for ((plain, saved),) in cases[name]["found"].values():
            assert plain["checkpoints"] == 0 < saved["checkpoints"]


def test_windows_have_a_known_answer() -> None:
    """A slip in the arithmetic of events would otherwise make all systems appear wrong, or all right."""
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


def test_windows_are_judged_by_the_best_peer_and_by_all_rounds() -> None:
    """For rates, higher is better, unlike for latencies; and a slow window of one round must show in the 99th
    percentile.
    """
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
    lines = benched.lines(text)
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
    lines = benched.lines(text)
    assert "| 3 | 7 | 8 M ±400% | 4 M ±0% | 2 M ±0% | 4 | 2 |" in lines
    assert "- flink-sql on query 6: cannot" in lines and "All answers are the same." in lines
    assert "Geometric means: tidemill-1x2 4, tidemill-2x1 2." in text
    case["answers"]["flink-sql"] = "7 b"
    assert "- query 3: answers differ" in report_streams.nexmark_section(run)


def test_yahoo_counts_what_is_in_its_files(tmp_path: Path) -> None:
    """The right answer is computed from numbers, the systems' from lines."""
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
    lines = benched.lines(text)
    assert "| tidemill-2x1 | 2 M | ±50% | 2 |" in lines and "- tidemill-1x2: lost" in lines
    assert "Latency" not in text and "Flink was not measured" not in text


def test_yahoo_tells_the_time_of_redis_apart() -> None:
    """Percentiles are medians over rounds; what was not requested or did not run has none."""

    def times(scale: float) -> dict[str, float]:
        return {"p50": 0.001 * scale, "p90": 0.002 * scale, "p99": 0.003 * scale, "p99.9": 0.004 * scale, "max": 0.5}

    own = [{"queries": 1000, "query_us": 0.25, "core": 0.125, "plain_per_s": 2e6}] * 3
    ours = "tidemill-2x1"
    asked = {"campaigns": "query", "elapsed_s": {ours: [1.0, 2.0, 4.0]}, "redis": {ours: own}, "failures": {}}
    paced = {"latency_s": {ours: [times(1), times(9), times(2)]}, "write_s": {ours: [times(0.1)] * 3}}
    run = {"rounds": 3, "events": 3_000_000, "per_second": 10, "paced_s": 5}
    paces = [{**asked, **paced, "campaigns": "table", "per_second": 10_000, "failures": {"tidemill-1x2": "late"}}]
    text = report_streams.yahoo_section({**run, "cases": [asked], "paced": paces})
    lines = benched.lines(text)
    assert "| tidemill-2x1 | 1.5 M | ±75% | - |" in lines
    assert any(line.startswith("- tidemill-2x1: 500 queries/s. Redis itself: 0.25 us in each, 12%") for line in lines)
    latency = "| in a table, 10,000/s, tidemill-2x1 | 2 ms | 4 ms | 6 ms | 8 ms | 500 ms | - | 100 us, 300 us | 12% |"
    assert latency in lines and "- tidemill-1x2 paced, in a table, 10,000/s: late" in lines
    assert report_streams.sections({"yahoo": {**run, "cases": [], "paced": paces}})


def test_checkpoints_are_judged_by_what_ran_together() -> None:
    """A machine that is slower in one round is slower with and without checkpoints."""

    def ran(per_s: float, checkpoints: int) -> dict[str, float]:
        return {"per_s": per_s, "longest_wait_s": 0.25, "elapsed_s": 10.0, "checkpoints": checkpoints, "counted": 7}

    pairs = [[ran(10e6, 0), ran(9e6, 5)], [ran(5e6, 0), ran(4e6, 5)], [ran(9e6, 0), ran(8.1e6, 5)]]
    cost = {"case": "cost-all", "found": {"tidemill-2x1": pairs}, "failures": {}}
    moves = {"case": "move", "found": {"tidemill-2x1": [[0.1, 0.3], [0.2]]}, "failures": {"tidemill-1x2": "alone"}}
    run = {"rounds": 3, "keys": 20_000_000, "fewer_keys": 2_000_000, "key_bytes": 48, "every_s": 1.0}
    text = report_streams.state_section({**run, "cases": [cost, moves]})
    lines = benched.lines(text)
    assert "| tidemill-2x1 | 9 M | 8.1 M | 0.90 | 250 ms | 2 s |" in lines
    assert "| tidemill-2x1 | 200 ms | 100 ms | 300 ms |" in lines and "- tidemill-1x2: alone" in lines
    assert "### Checkpoints of 960 MB, rows of all keys" in lines
