"""Benchmarks of exchanges, rounds, broadcasts and topologies: the tiny run, and the arithmetic of their reports."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import benched
import pytest
from harness import broadcast, exchange, records, report, rounds, topologies


@pytest.mark.slow
def test_tiny_run_exchanges_messages(tiny: Path) -> None:
    """The result is known: the sum of everything sent."""
    results = benched.results(tiny)
    assert [case["operation"] for case in results["exchange"]["cases"]] == list(exchange.OPERATIONS)
    for case in results["exchange"]["cases"]:
        sources = 1 if case["operation"] == "broadcast" else 2
        sent = sum(source + number + i for source in range(sources) for number in range(100) for i in range(16))
        assert case["failures"] == {} and case["digests"] == {"tidemill": str(2 * sent if sources == 1 else sent)}


@pytest.mark.slow
def test_tiny_run_exchanges_records(tiny: Path) -> None:
    """The result is known: the sum of all words, and every key at one target, or at each."""
    results = benched.results(tiny)
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
    """A wrong sum would appear in `failures`."""
    path = next(tiny.glob("tiny-*.json"))
    cases = json.loads(path.read_text())["rounds"]["cases"]
    assert [(case["operation"], case["tasks"]) for case in cases] == [(o, n) for o in rounds.OPERATIONS for n in (2, 4)]
    for case in cases:
        assert case["failures"] == {} and case["round_s"]["tidemill"][0] > 0
        assert 0 < case["p50_s"]["tidemill"][0] <= case["p99_s"]["tidemill"][0]
    assert "all to one, 4 tasks, 4 KiB" in path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_tiny_run_broadcasts_along_every_overlay(tiny: Path) -> None:
    """A missing or duplicate answer would appear in `right`; an overlay that hangs, in `failures`."""
    found = benched.results(tiny)["broadcast"]
    if found["missing"]:
        pytest.skip(found["missing"])
    assert found["failures"] == {} and set(found["cases"]) == {"tcp", "shm"}
    for cases in found["cases"].values():
        assert [case["overlay"] for case in cases] == list(broadcast.OVERLAYS)
        assert all(case["right"] and 0 < case["p50_s"] <= case["p99_s"] and case["rate"] > 0 for case in cases)


@pytest.mark.slow
def test_tiny_run_acknowledges_both_topologies(tiny: Path) -> None:
    """A missing or duplicate acknowledgement would appear in `right`; a source that waits forever, in `failures`."""
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["topologies"]
    assert found["failures"] == {}
    assert set(found["cases"]) == set(topologies.TRANSPORTS) - ({"hosts"} if found["missing"] else set())
    given = [topologies.label(dataclasses.asdict(one)) for one in topologies.points(topologies.SETTINGS["tiny"], None)]
    for cases in found["cases"].values():
        assert [topologies.label(case) for case in cases] == given
        assert all(case["right"] and 0 < case["p50_s"] <= case["p99_s"] and case["rate"] > 0 for case in cases)
    assert "no InfiniBand" in path.with_suffix(".md").read_text()


def test_exchanges_are_judged_by_hand_and_by_flink_in_their_language() -> None:
    """Flink is compared by rates, the inverse of the ratio to MPI code; a Python function is never compared with a
    compiled one.
    """
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


def test_rounds_have_a_known_sum() -> None:
    def slow(sources: int, targets: int, size: int, count: int) -> str:
        messages = ((s, n, i) for s in range(sources) for n in range(count) for i in range(size // 8))
        return str(targets * sum(map(sum, messages)))

    assert rounds.expected("reduce", 3, 40, 7) == slow(3, 1, 40, 7)
    assert rounds.expected("broadcast", 3, 40, 7) == slow(1, 3, 40, 7)
    assert rounds.expected("allreduce", 3, 40, 7) == rounds.expected("loop", 3, 40, 7) == slow(3, 3, 40, 7)


def test_rounds_are_judged_by_the_faster_by_hand_and_by_flink() -> None:
    """Flink is compared by rates, which invert the ratio; lone rounds are compared by their medians."""
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
    lines = benched.lines(text)
    assert any("| 25,000 ±0% |" in line and "5.00 openmpi-c++ | 2.00 flink-1x2 |" in line for line in lines)
    assert "| all to one, 2 tasks, 4 KiB | 90 us, 300 us | - | - | 30 us, 40 us | - | 3.00 openmpi |" in lines
    assert "- flink-2x1 on all to one, 2 tasks, 4 KiB: lost" in lines


def test_broadcasts_are_compared_with_serial_sending(tmp_path: Path) -> None:
    """The goals are for most tasks, and for sizes at which links are the limit."""

    def case(overlay: str, tasks: int, size: int, p50_s: float, rate: float) -> dict[str, Any]:
        numbers = {"p50_s": p50_s, "p90_s": p50_s, "p99_s": p50_s, "rate": rate, "singles": 3, "right": True}
        return {"overlay": overlay, "tasks": tasks, "size": size, "single_cpu": 0.5, "many_cpu": 0.25, **numbers}

    setting = broadcast.SETTINGS["full"]
    alone = [case("copies", 60, 10_000, 0.06, 20.0), case("binary", 60, 10_000, 0.01, 100.0)]
    alone += [case("chain", 60, 10_000, 0.03, 400.0), case("copies", 60, 100, 0.01, 100.0)]
    shared = [case("chain", 60, 10_000, 0.021, 400.0)]
    run = {"setting": dataclasses.asdict(setting), "missing": None, "failures": {"shared memory": "lost"}}
    text = broadcast.section({**run, "cases": {"tcp": alone, "shm": shared}})
    lines = benched.lines(text)
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
    """A transport that lacks a point has a gap in its row, not another point's figures; objects have no row."""

    def case(topology: str, size: int, p50_s: float, kind: str = "arrays") -> dict[str, Any]:
        copies = {"sources": 4, "tasks": 4 if topology == "A" else 8, "size": size, "pending": 10, "kind": kind}
        times = {"p50_s": p50_s, "p90_s": 2 * p50_s, "p99_s": 3 * p50_s, "rate": 1000.0, "cpu": 0.5, "busy_s": 0.3}
        return {"topology": topology, **copies, **times, "messages": 1000, "serialize_s": 3e-5, "right": True}

    shm = [case("A", 128, 0.001), case("A", 128_000, 0.002), case("B", 128, 0.001), case("B", 128, 0.1, "objects")]
    cases = {"shm": shm, "tcp": [case("A", 128, 0.0015), case("B", 128, 0.002)], "hosts": [case("A", 128_000, 0.02)]}
    setting = dataclasses.asdict(topologies.SETTINGS["full"])
    run = {"setting": setting, "cases": cases, "failures": {"TCP": "lost"}, "missing": None}
    text = topologies.section(run)
    lines = benched.lines(text)
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
