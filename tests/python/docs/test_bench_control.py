"""The benchmark of the controller: the tiny run, and the arithmetic of its report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import benched
import pytest
from harness import control


@pytest.mark.slow
def test_tiny_run_of_the_controller(tiny: Path) -> None:
    """All rows read are consumed, static and adaptive; a run that ends early would appear in `failures`."""
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["control"]
    assert found["failures"] == {} and set(found["cases"]) | set(found["missing"]) == {"keyed", "shuffle"}
    for runs in found["cases"].values():
        assert [run["mode"] for run in runs] == ["off", "on"]
        assert all(run["taken"] == run["rows"] > 0 and len(run["changes_s"]) == len(run["phases"]) for run in runs)
    assert "## Controller" in path.with_suffix(".md").read_text()


def test_what_links_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 8 hosts of 2 MB/s besides headers; by hand: 7/8 of the rows cross a link."""
    monkeypatch.setattr(control, "PAYLOAD", 1.0)
    setting = control.SETTINGS["full"]
    free, forty, twenty, _ = control.phases("keyed", setting, 0)
    assert control.possible("keyed", free, setting) == pytest.approx(64 / 7 * 2e6)
    assert control.possible("keyed", forty, setting) == pytest.approx(8 / 7 * 7.4 * 2e6)
    assert control.possible("keyed", twenty, setting) == pytest.approx(8 / 7 * 7.2 * 2e6)
    # Paced rows can all be consumed, if need be by the workers that have read them.
    assert control.possible("shuffle", twenty, setting) == pytest.approx(0.9 * 64 / 7 * 2e6)
    assert control.possible("cpu", free, setting) is None
    # A drained host goes on to read.
    assert control.possible("drain", control.phases("drain", setting, 0)[1], setting) == pytest.approx(8 * 2e6)


def test_draws_are_the_same_for_both_and_within_the_links() -> None:
    setting = control.SETTINGS["full"]
    given = control.phases("normal", setting, 3)
    assert given == control.phases("normal", setting, 3) != control.phases("normal", setting, 4)
    assert all(0.05 <= share <= 1 for phase in given for share in phase.inbound)
    assert [phase.hogs for phase in control.phases("cpu", setting, 0)] == [0, control.HOGS, 0]


def results() -> dict[str, Any]:
    """For 2 hosts that carry 2 MB/s each: static loses what the choked link loses, adaptive is back after two seconds."""
    setting = control.Setting(2, 16.0, 0.5, 4096, 10, 1)
    given = [dataclasses.asdict(phase) for phase in control.phases("keyed", setting, 0)]
    rates = {"off": [8e6] * 10 + [3e6] * 10 + [1.5e6] * 10 + [8e6] * 10}
    rates["on"] = [8e6] * 10 + [3e6] * 2 + [5.5e6] * 8 + [4.4e6] * 10 + [8e6] * 10
    told = {"off": {"said": ["moved 3 buckets"], "late": 2}, "on": {"said": [], "late": 0}}
    counts = {"off": {"rows": 100, "taken": 100}, "on": {"rows": 100, "taken": 99}}
    runs = [
        {"mode": mode, "seed": 0, "phases": given, "changes_s": [0, 10, 20, 30], "rates": of, "cpu": [1.0] * 40}
        | {"by_host": [[rate / 2 for rate in of]] * 2, "decisions": []}
        | told[mode]
        | counts[mode]
        for mode, of in rates.items()
    ]
    cases = {"keyed": runs, "shuffle": []}
    return {
        "setting": dataclasses.asdict(setting),
        "cases": cases,
        "failures": {"x": "lost"},
        "missing": {"cpu": "no rights"},
    }


def test_phases_are_judged_beside_what_was_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(control, "PAYLOAD", 1.0)
    lines = benched.lines(control.section(results()))
    assert "| free, seed 0 | 8.0 | 8.0 | 100% | 1.00 | 8.0 | 100% | 1.00 | 1.00 | 0 s | 50% | 50% |" in lines
    assert "| 40%, seed 0 | 5.6 | 3.0 | 54% | 1.00 | 5.5 | 98% | 1.00 | 1.83 | 2 s | 50% | 50% |" in lines
    assert "| 20%, seed 0 | 4.8 | 1.5 | 31% | 1.00 | 4.4 | 92% | 1.00 | 2.93 | 0 s | 50% | 50% |" in lines
    assert "- Goal: 1.5 times static between the first phase and the last; median of phases and seeds: 2.38." in lines
    assert "- static, seed 0: moved 3 buckets." in lines
    assert "- static, seed 0: 2 of 100 rows came too late for their windows." in lines
    assert "- adaptive, seed 0: 100 rows were read, and 99 taken." in lines
    assert "| 10 s, 40% | 3.0 | 50% | 3.0 | 50% |" in lines and "| 12 s, 40% | 3.0 | 50% | 5.5 | 50% |" in lines
    assert {"No result.", "- left out, cpu: no rights", "- x: lost"} <= set(lines)


def test_rates_are_drawn_over_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = control.plot(results(), tmp_path / "run")
    assert [path.name for path in drawn] == ["run-control.svg", "run-control.png"]
    assert all(path.stat().st_size > 0 for path in drawn)
