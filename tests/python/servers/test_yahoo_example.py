"""``examples/yahoo.py`` on a real Redis: every count is right, also by way of Kafka and after a failure."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import launched
import pytest
from local_servers import Kafka, Redis

PROGRAM = Path(__file__).parents[3] / "examples" / "yahoo.py"


@pytest.fixture
def yahoo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    return importlib.import_module("yahoo")


def run(workers: int, *args: str | Path) -> list[str]:
    words = [str(PROGRAM), *map(str, args)]
    command = [sys.executable, *words] if workers == 1 else launched.command("run", "-n", str(workers), *words)
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return [line.removeprefix("[0] ") for line in done.stdout.decode().splitlines()]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_count(redis_server: Redis, workers: int) -> None:
    """A second run finds the counts of the first, and more of them than it makes itself."""
    for events, windows in ((30_000, 3), (15_000, 2)):
        prefix = f"ads-{workers}:"
        timed, checked = run(workers, "--redis", redis_server.url, "--prefix", prefix, "--events", str(events))
        assert timed.startswith(f"{events:,} events in ")
        assert checked.startswith(f"{windows * 100} counts of ") and checked.endswith(" views, all right")
        client = redis_server.client()
        keys = client.keys(f"{prefix}count:*")
        assert len(keys) == windows * 100 and f"{prefix}count:campaign7:2026-01-01T00:00:10" in keys
        views = sum(int(client.hget(key, "seen")) for key in keys)
        assert f"{views:,} views" in checked and abs(views - events / 3) < events / 50


def test_by_way_of_kafka(redis_server: Redis, kafka: Kafka) -> None:
    kafka.create_topic("ads", 3)
    args = ["--redis", redis_server.url, "--prefix", "kafka:", "--kafka", kafka.bootstrap, "--topic", "ads"]
    checked = run(2, *args, "--events", "20000")[1]
    assert checked.startswith("200 counts of ") and checked.endswith(" views, all right")
    assert len(kafka.values("ads")) == 20_000


def test_after_a_worker_was_killed(redis_server: Redis, tmp_path: Path) -> None:
    """Counts before the last checkpoint are not lost, and later ones count once."""
    args = ["--redis", redis_server.url, "--prefix", "killed:", "--events", "40000", "--rate", "8000"]
    command = ["run", "-n", "2", "--restarts", "1", PROGRAM, *args, "--checkpoint", tmp_path / "checkpoints"]
    running = launched.start(*command)
    counts = tmp_path / "checkpoints" / "counts"
    launched.wait_until(lambda: running.poll() is not None or bool(launched.epochs(counts)), "a checkpoint")
    # The last child is a worker; the first one is the launcher's own.
    for victim in launched.children(running.pid)[-1:]:
        os.kill(victim, signal.SIGKILL)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, (out + err).decode()
    assert b"400 counts of " in out and b"all right" in out
    if b"starting the job again" not in err:
        pytest.skip("the job was over before a worker could be killed")


def test_a_wrong_count_is_told(redis_server: Redis, yahoo: ModuleType) -> None:
    """A check that never finds an error would prove nothing."""
    client = redis_server.client()
    client.hset("wrong:count:a:1", "seen", 3)
    right = Counter({"a:1": 3})
    assert yahoo.difference(client, "wrong:", right) == ""
    assert yahoo.difference(client, "wrong:", right + Counter({"b:1": 1})) == "b:1 is None, not 1"
    assert yahoo.difference(client, "wrong:", Counter({"a:1": 4})) == "a:1 is 3, not 4"
    client.hset("wrong:count:c:1", "seen", 1)
    assert yahoo.difference(client, "wrong:", right) == "c:1 is 1, not 0"


def test_a_redis_has_to_be_named() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, timeout=60)
    assert done.returncode == 2 and b"required: --redis" in done.stderr
