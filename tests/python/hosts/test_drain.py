"""``tidemill drain``: a host of a running stream loses its keys and gets them back, while every row counts once."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import counted
import launched
import pytest
import tidemill.testing
import workers
from tidemill.hosts import Cluster

# One pair of hosts at a time: each takes many processes.
pytestmark = pytest.mark.xdist_group("hosts")

#: Workers on each host.
LOCAL = 2

hosts = tidemill.testing.hosts(2)


def _own_folder(hosts: Cluster, folder: Path) -> None:
    """Give each host its own folder under one name: hosts number their processes alike."""
    folder.mkdir()
    for host in range(2):
        mount = [*hosts.prefix(host), "mount", "-t", "tmpfs", "tmpfs", str(folder)]
        subprocess.run(mount, check=True, capture_output=True, timeout=launched.PATIENCE_S)


def test_a_host_is_left_by_everything(tmp_path: Path, hosts: Cluster) -> None:
    """Neither workers nor sources stay there; the host gets workers again when the stream is scaled to all hosts."""
    _own_folder(hosts, tmp_path / "run")
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run"), "TIDEMILL_FAILURE_TIMEOUT": "60"}
    here, there = (host.name for host in hosts.hosts)
    (tmp_path / "app.py").write_text(counted.APP)

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*hosts.prefix(0), *launched.command(*words)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=launched.PATIENCE_S)

    def hosts_of_workers() -> list[str]:
        told: list[dict[str, Any]] = json.loads(ran("top", "--json").stdout)
        work = all(any(edge["rows_sent"] for edge in one["edges"]) for one in told)
        return [str(one["host"]) for one in told] if work else []

    # The launcher looks for the cluster where it runs; workers and commands find each other in the hosts' own folders.
    inner = ["env", f"XDG_RUNTIME_DIR={tmp_path / 'run'}", sys.executable, "app.py"]
    job = launched.start("run", "-n", "4", "--on", hosts.name, "--threads", "1", *inner, cwd=tmp_path)
    try:
        launched.wait_until(lambda: hosts_of_workers() == 2 * [here] + 2 * [there], "rows of all workers")
        would = ran("drain", there, "--restart", "--dry-run")
        assert f"started again with 2 workers instead of 4, none of them on host {there}" in would.stdout, would
        drained = ran("drain", there, "--restart")
        assert "scaled from 4 to 2 workers; the stream stood for " in drained.stdout, drained
        launched.wait_until(lambda: hosts_of_workers() == 2 * [here], "workers on the other host alone")
        only = ran("drain", here, "--restart")
        assert only.returncode == 1 and f"{here} is the only host of this stream" in only.stderr, only
        # The host stays empty until `--all-hosts` includes it.
        assert ran("scale", "-n", "3").returncode == 0
        launched.wait_until(lambda: hosts_of_workers() == 3 * [here], "a worker more")
        assert ran("scale", "-n", "4", "--all-hosts").returncode == 0
        launched.wait_until(lambda: hosts_of_workers() == 2 * [here] + 2 * [there], "workers on all hosts")
        assert ran("stop", "numbers").returncode == 0
        _, err = job.communicate(timeout=launched.PATIENCE_S)
        assert job.returncode == 0, err
    finally:
        job.kill()
        job.communicate(timeout=launched.PATIENCE_S)
    assert counted.check(tmp_path) > 0


def test_a_host_is_drained_and_comes_back(tmp_path: Path, hosts: Cluster) -> None:
    """Counts stay exact across a drain, an undo and a balance; of the host's workers, keys and splits move."""
    _own_folder(hosts, tmp_path / "run")
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "TIDEMILL_FAILURE_TIMEOUT": "60", "TIDEMILL_THREADS": "2"}
    here, there = (host.name for host in hosts.hosts)

    def ran(host: int, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*hosts.prefix(host), *launched.command(*words)]
        options = {"capture_output": True, "text": True, "timeout": launched.PATIENCE_S}
        return subprocess.run(command, env={**os.environ, **env}, **options)  # type: ignore[call-overload,no-any-return]

    def succeeded(*words: str) -> str:
        done = ran(0, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def buckets(shown: str, host: str) -> tuple[int, int]:
        """How many buckets a host had, and has now."""
        line = re.search(rf"^  host {host}: ([\d,]+) -> ([\d,]+) buckets", shown, re.MULTILINE)
        assert line, shown
        return int(line[1].replace(",", "")), int(line[2].replace(",", ""))

    def all_work() -> bool:
        told: list[dict[str, Any]] = json.loads(ran(0, "top", "--json").stdout)
        return len(told) == 2 * LOCAL and all(any(edge["rows_sent"] for edge in one["edges"]) for one in told)

    prefixes = {rank: hosts.prefix(rank // LOCAL) for rank in range(2 * LOCAL)}
    program_env = {"MASTER_ADDR": hosts.hosts[0].address, **env}
    with workers.Job(tmp_path, 2 * LOCAL, counted.APP, program_env, prefixes) as running:
        launched.wait_until(all_work, "rows of all workers")
        unknown = ran(0, "drain", "nowhere")
        assert unknown.returncode == 1
        assert f'no host "nowhere"; the hosts of this stream are {here}, {there}' in unknown.stderr, unknown
        elsewhere = ran(1, "drain", there)
        where = f"streams are drained on the machine of their worker 0: 'numbers' on host {here}"
        assert (elsewhere.returncode, elsewhere.stderr) == (1, f"tidemill drain: {where}\n")

        would = succeeded("drain", there, "--dry-run")
        assert re.search("stream 'numbers': would move [1-2],[0-9]{3} buckets", would), would
        assert buckets(would, there) == (1024, 0) and buckets(would, here) == (1024, 2048)
        drained = succeeded("drain", there)
        assert re.search("stream 'numbers': moved [1-2],[0-9]{3} buckets", drained), drained
        assert buckets(drained, there) == (1024, 0), "two steps of 1024 buckets on two hosts, and none moved before"
        assert drained.count(" of 1,024 buckets") == 2, "both steps at one checkpoint"
        assert ", and 2 splits of sources at checkpoint" in drained, drained
        assert f"  source generator 1: splits 2, 3 to host {here}" in drained, drained
        stays = f"stays on host {there}: workers 2, 3, with copies of "
        assert stays in drained and "source" not in drained[drained.index(stays) :], drained
        assert f"nothing to move: host {there} has no keys" in succeeded("drain", there)

        def is_kept() -> bool:
            kept = succeeded("why", str(tmp_path / "checkpoints"), "--json")
            return bool(json.loads(kept)["drained"] == [there])

        launched.wait_until(is_kept, "what a job that starts again goes on from")
        # It stays drained.
        again = succeeded("balance")
        assert "nothing to move" in again or buckets(again, there) == (0, 0), again
        only = ran(0, "drain", here)
        assert only.returncode == 1 and "all other hosts are drained" in only.stderr, only

        undone = succeeded("drain", there, "--undo")
        assert f"host {there} gets keys and splits again at the next balance" in undone
        assert ran(0, "drain", there, "--undo").returncode == 1, "it is not drained any more"

        def is_back() -> bool:
            back = succeeded("balance")
            return "nothing to move" not in back and buckets(back, there)[1] > 0

        launched.wait_until(is_back, "keys on both hosts")
        assert ran(0, "stop", "numbers").returncode == 0
        running.succeed()
    assert counted.check(tmp_path) > 0


def test_a_worker_is_killed_after_a_drain(tmp_path: Path, hosts: Cluster) -> None:
    """What has moved stays where it is, and no row is read twice, whoever is killed at once."""
    _own_folder(hosts, tmp_path / "run")
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    here, there = (host.name for host in hosts.hosts)
    (tmp_path / "app.py").write_text(counted.APP)

    def ran(*words: str, host: int = 0) -> subprocess.CompletedProcess[str]:
        command = [*hosts.prefix(host), *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=launched.PATIENCE_S)

    def asked(*words: str) -> str:
        done = ran(*launched.command(*words))
        assert done.returncode == 0, done
        return done.stdout

    def rows() -> dict[int, int]:
        """Rows that each worker has sent, by process, once all of them have reported."""
        told: list[dict[str, Any]] = json.loads(ran(*launched.command("top", "--json")).stdout or "[]")
        counts = {int(one["pid"]): sum(edge["rows_sent"] for edge in one["edges"]) for one in told}
        return counts if len(told) == 4 else {}

    def has_others(than: AbstractSet[int]) -> bool:
        now = rows()
        return any(now.values()) and now.keys() != than

    inner = ["env", f"XDG_RUNTIME_DIR={tmp_path / 'run'}", sys.executable, "app.py"]
    launcher = ["run", "-n", "4", "--on", hosts.name, "--threads", "1", "--restarts", "3", *inner]
    job = launched.start(*launcher, cwd=tmp_path)
    try:
        launched.wait_until(lambda: any(rows().values()), "rows")
        for host in (1, 0):
            shown = asked("drain", there)
            assert host == 0 or f"  source generator 1: splits 2, 3 to host {here}" in shown, shown
            told: list[dict[str, Any]] = json.loads(asked("top", "--json"))
            victim = next(one for one in told if one["host"] == hosts.hosts[host].name)
            assert ran("kill", "-9", str(victim["pid"]), host=host).returncode == 0
            launched.wait_until(functools.partial(has_others, rows().keys()), "rows of another run")
        assert "nothing to move" in asked("drain", there)
        asked("stop", "numbers")
        _, err = job.communicate(timeout=launched.PATIENCE_S)
        assert job.returncode == 0, err
    finally:
        job.kill()
        job.communicate(timeout=launched.PATIENCE_S)
    assert counted.check(tmp_path) > 0
