"""Storm beside our broadcasts: its tiny run where it is installed, and, without Java, its settings, its place in the report, and its end."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import benched
import launched
import pytest
from harness import broadcast, comm, storm
from harness.systems import Launch


def cluster_of(hosts: int) -> Any:
    """Hosts by their names and addresses, whose commands run on this machine."""
    each = [SimpleNamespace(name=f"lab-{n}", address=f"10.77.0.{n + 1}") for n in range(hosts)]
    return SimpleNamespace(hosts=each, prefix=lambda host: [])


def case(overlay: str, tasks: int, size: int, p50_s: float = 0.01) -> dict[str, Any]:
    numbers = {"p50_s": p50_s, "p90_s": p50_s, "p99_s": p50_s, "rate": 1 / p50_s, "singles": 3, "right": True}
    return {"overlay": overlay, "tasks": tasks, "size": size, "single_cpu": 0.5, "many_cpu": 0.25, **numbers}


@pytest.mark.slow
@pytest.mark.skipif(storm.missing() is not None, reason=f"{storm.missing()}")
def test_tiny_run_with_storm(tmp_path: Path) -> None:
    """A lost tuple, or a topology that does not start, would appear in `failures`."""
    command = [sys.executable, str(benched.BENCH / "run.py"), "--tiny", "--only", "broadcast", "--out", str(tmp_path)]
    command += ["--systems", "tidemill,storm", "--cases", "copies"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    found = benched.results(tmp_path)["broadcast"] if done.returncode == 0 else {}
    if found.get("missing"):
        pytest.skip(found["missing"])
    assert done.returncode == 0 and found["failures"] == {}, done.stdout + done.stderr
    assert [one["overlay"] for one in found["cases"]["tcp"]] == ["copies", "storm"]
    (of_storm,) = (one for one in found["cases"]["tcp"] if one["overlay"] == "storm")
    assert of_storm["right"] and 0 < of_storm["p50_s"] <= of_storm["p99_s"] and of_storm["rate"] > 0


def test_storm_stands_behind_serial_sending() -> None:
    """Its gains are relative to our serial sending; where ours was not measured, Storm is still shown."""
    ours = [case("copies", 60, 100), case("binary", 60, 100), case("copies", 60, 1000), case("binary", 60, 1000)]
    others = [case("storm", 60, 1000, 0.02), case("storm", 10, 1000)]
    merged = broadcast.beside_serial(ours, others)
    assert [(one["overlay"], one["tasks"], one["size"]) for one in merged] == [
        ("copies", 60, 100),
        ("binary", 60, 100),
        ("copies", 60, 1000),
        ("storm", 60, 1000),
        ("binary", 60, 1000),
        ("storm", 10, 1000),
    ]
    run = {"setting": dataclasses.asdict(broadcast.SETTINGS["full"]), "missing": None, "failures": {"Storm": "lost"}}
    text = broadcast.section({**run, "cases": {"tcp": merged}})
    lines = benched.lines(text)
    assert "| 1 kB, Storm, per task | 20 ms | 20 ms | 20 ms | 3 | 0.50 | 50% | 50 | 0.50 | 25% |" in lines
    assert "- Storm: lost" in lines and "*Storm* sends" in text
    assert "*Storm* sends" not in broadcast.section({**run, "cases": {"tcp": ours}})


def test_storm_is_told_each_point_once() -> None:
    """Storm has one way to broadcast, however many overlays are measured."""
    given = list(broadcast.points(broadcast.SETTINGS["full"], ["60-10000", "chain-10-1000000"]))
    told = storm.arguments(broadcast.serial_points(given))
    assert [line.split(",")[:2] for line in told] == [
        ["10", "1000000"],
        ["60", "10000"],
        ["60", "100000"],
        ["60", "1000000"],
    ]
    assert all(len(line.split(",")) == 5 and float(line.split(",")[3]) == 3.0 for line in told)


def test_hosts_of_storm_know_each_other(tmp_path: Path) -> None:
    storm.configure(cluster_of(3).hosts, 4, tmp_path)
    told = [json.loads((tmp_path / str(n) / "conf" / "storm.yaml").read_text()) for n in range(3)]
    assert [one["storm.local.hostname"] for one in told] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert all(one["nimbus.seeds"] == one["storm.zookeeper.servers"] == ["10.77.0.1"] for one in told)
    assert all(one["supervisor.slots.ports"] == [6700, 6701, 6702, 6703] for one in told)
    assert len({one["storm.local.dir"] for one in told}) == 3
    assert "10.77.0.2 lab-1\n" in (tmp_path / "hosts").read_text()
    assert str(tmp_path / "hosts") in told[0]["worker.childopts"]


def test_storm_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "PROGRAM_JAR", tmp_path / "broadcast.jar")
    monkeypatch.setattr(storm, "JARS", tmp_path)
    assert storm.missing() == "java or its program is missing: run bench/setup_peers.sh storm"
    assert storm.version() is None
    (tmp_path / "storm-server-2.6.4.jar").touch()
    assert storm.version() == "2.6.4"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_nothing_of_storm_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are children of supervisors; ending only the supervisors would leave them."""
    pids: list[int] = []

    def program(cluster: Any, host: int, folder: Path, name: str, command: Any) -> Launch:
        return Launch(["sh", "-c", f"sleep 60 & echo $! > {folder}/{host}-{name}.pid; wait"])

    monkeypatch.setattr(storm, "java", program)
    monkeypatch.setattr(storm, "await_port", lambda *_: None)
    with pytest.raises(ValueError), storm.started(cluster_of(2), 4) as folder:
        while len(files := list(folder.glob("*.pid"))) < 4 or not all(file.read_text().strip() for file in files):
            os.sched_yield()
        pids += [int(file.read_text()) for file in files]
        assert all(map(is_alive, pids))
        raise ValueError
    assert len(pids) == 4 and not folder.exists()
    # Killed processes end when the kernel gets to them.
    launched.wait_until(lambda: not any(map(is_alive, pids)), "the end of all workers")


def test_a_daemon_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "START_S", 0.2)
    cluster = cluster_of(1)
    cluster.hosts[0].address = "127.0.0.1"
    output = tmp_path / "nimbus.out"
    output.write_text("Error: no memory\n")
    # Nothing listens on port 1.
    with pytest.raises(comm.SystemFailed, match="nimbus has not started: Error: no memory"):
        storm.await_port(cluster, 1, output)


def test_errors_in_logs_are_told_once(tmp_path: Path) -> None:
    for host in ("0", "1"):
        (tmp_path / host / "artifacts").mkdir(parents=True)
        (tmp_path / host / "artifacts" / "worker.log").write_text("a [WARN] slow\nb [ERROR] no connection\n")
    assert storm.last_errors(tmp_path) == ["b [ERROR] no connection"]
