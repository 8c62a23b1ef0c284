"""The benchmark of all-reduces with slow links: the tiny run, the least times that links allow, and the arithmetic of its report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import benched
import pytest
from harness import allreduce

MIB = 1 << 20
HALF = allreduce.Scenario("in-50", "one inbound at 50%", (1.0, 0.5, 1.0), (1.0, 1.0, 1.0))


@pytest.mark.slow
def test_tiny_run_adds_up_with_every_algorithm(tiny: Path) -> None:
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["allreduce"]
    assert found["failures"] == {} and set(found["skipped"]) <= {allreduce.ADAPTIVE}
    assert "## All-reduce" in path.with_suffix(".md").read_text()
    if found["missing"]:
        return
    variants = {*allreduce.STATIC, allreduce.ADAPTIVE, allreduce.TREES} - set(found["skipped"])
    for scenario, size in allreduce.chosen(allreduce.SETTINGS["tiny"], None):
        cases = [case for case in found["cases"] if (case["scenario"], case["size"]) == (scenario.name, size)]
        assert {case["variant"] for case in cases} == variants
        assert all(case["right"] and all(len(ranks) == 3 for ranks in case["ranks_s"]) for case in cases)


def test_least_times_by_hand() -> None:
    """Three hosts of 1 MB/s and a vector of 1 MB: one link, and all links together."""
    free = allreduce.Scenario("free", "nothing wrong", (1.0,) * 3, (1.0,) * 3)
    # 2 MB to add up, 3 MB until the second host has the result, 4 MB until all have it, at 3 MB/s.
    assert allreduce.bounds_s(1_000_000, free, 8.0) == pytest.approx([1.0, 1.0, 4 / 3])
    # Host 1 takes two seconds to receive it; the others take at least what all links together allow, now 2.5 MB/s.
    assert allreduce.bounds_s(1_000_000, HALF, 8.0) == pytest.approx([1.0, 1.2, 2.0])
    # All but host 1 itself wait for what it sends.
    out = dataclasses.replace(HALF, incoming=(1.0,) * 3, outgoing=(1.0, 0.25, 1.0))
    assert allreduce.bounds_s(1_000_000, out, 8.0) == pytest.approx([1.0, 4.0, 4.0])


def test_the_same_hosts_are_slow_in_every_run() -> None:
    setting = allreduce.SETTINGS["full"]
    given = {scenario.name: scenario for scenario in allreduce.scenarios(setting)}
    assert list(given.values()) == allreduce.scenarios(setting)
    assert len(given) == 1 + 4 + 1 + 2 * 2 + 1
    (slow,) = [host for host, share in enumerate(given["in-11"].incoming) if share == 0.11]
    assert slow > 0 and given["out-11"].outgoing[slow] == 0.11 and given["several-4"].incoming[slow] == 0.21
    assert all(0.05 <= share <= 1 for share in given["normal-74-seed-1"].incoming)
    assert given["normal-74-seed-0"] != given["normal-74-seed-1"]
    assert [size for _, size in allreduce.chosen(setting, ["in-11"])] == list(setting.sizes)


def results() -> dict[str, Any]:
    """For 3 hosts of 1 MiB/s: the ring takes three seconds for all, trees four and eight, adaptive two for the slow
    host and one for the others.
    """
    setting = allreduce.Setting(
        3,
        8.388608,
        (MIB,),
        MIB,
        ("in-50",),
        (0.5,),
        0,
        (),
        1,
        trees=2,
        trees_s=1.0,
        calls=3,
        budget_s=1.0,
        forced=(),
    )
    ranks = {
        "ring": [[3.0] * 3, [9.0] * 3, [3.0] * 3],
        "adaptive": [[1.0, 2.0, 1.2]],
        "random trees": [[4.0] * 3, [8.0] * 3],
        "Open MPI": [[6.0] * 3],
        "Open MPI, ring": [[5.0] * 3],
    }
    cases = [
        {
            "variant": name,
            "scenario": "in-50",
            "size": MIB,
            "ranks_s": of,
            "cpu": 0.1,
            "machine": 0.5,
            "right": True,
        }
        for name, of in ranks.items()
    ]
    return {
        "setting": dataclasses.asdict(setting),
        "scenarios": {"in-50": dataclasses.asdict(HALF)},
        "cases": cases,
        "skipped": {"x": "unknown"},
        "failures": {"gloo": "lost"},
        "missing": None,
    }


def test_times_are_compared_with_bounds_trees_and_the_best_static_algorithm() -> None:
    text = allreduce.section(results())
    lines = benched.lines(text)
    assert (
        "| one inbound at 50%, 1 MiB | 1.4 s | 3 s ring | 6 s | 8 s | 6 s | 5 s ring | - | 1.4 s | 4.29 | 2.14 |"
        in lines
    )
    assert "| ring | 3 s | 2.14 | 1.00 | 3 s | 1.50 | 3 | 10% | 50% |" in lines
    assert "| random trees, mean | 6 s | 4.29 | 2.00 | 6 s | 3.00 | 2 | 10% | 50% |" in lines
    assert "| adaptive | 1.4 s | 1.00 | 0.47 | 2 s | 1.00 | 1 | 10% | 50% |" in lines
    assert "Hosts that receive less than their links carry: 1: 50%." in lines
    assert {"All sums were right.", "- left out, x: unknown", "- gloo: lost"} <= set(lines)
    left_out = allreduce.section({**results(), "missing": "no rights"})
    assert left_out == "## All-reduce\n\nLeft out: no rights\n"


def test_times_over_bounds_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = allreduce.plot(results(), tmp_path / "run")
    assert [path.name for path in drawn] == ["run-allreduce.svg", "run-allreduce.png"]
    assert all(path.stat().st_size > 0 for path in drawn)
