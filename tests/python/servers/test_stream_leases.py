"""One job at a time per place in an object store: a second is refused, and one begins once nobody holds the place any
more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import object_server
import pytest
import store_job
from object_server import server
from recovered import folder, read
from stream_kills import pids

__all__ = ["folder", "server"]

JOB = Path(store_job.__file__)
URL = "s3://jobs/mine"
WAITS = b"if it does not renew"


@pytest.fixture
def jobs() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The running jobs; those left by a test are killed."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for job in running:
        if job.poll() is None:
            job.kill()
        job.communicate(timeout=launched.PATIENCE_S)


def place(server: object_server.Server) -> Path:
    return server.root / "jobs" / "mine"


def lease(server: object_server.Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place(server) / "lease").read_text())
    return found


def start(folder: Path, server: object_server.Server, *words: str) -> subprocess.Popen[bytes]:
    for file in (folder / "pids").iterdir():
        file.unlink()
    with (folder / "errors").open("ab") as errors:
        return launched.start("run", "-n", "1", *words, JOB, folder, URL, env=server.env, stderr=errors)


def told(folder: Path) -> bytes:
    """What the jobs that `start` started have printed so far."""
    return (folder / "errors").read_bytes()


def new_epoch(job: subprocess.Popen[bytes], folder: Path, server: object_server.Server) -> None:
    before = launched.epochs(place(server))

    def made() -> bool:
        assert job.poll() is None, told(folder).decode()
        return bool(launched.epochs(place(server)) - before)

    launched.wait_until(made, "a checkpoint")


def end(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Have a job make its last checkpoint; check that everything written together is exact."""
    (folder / "stop").touch()
    job.wait(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, told(folder).decode()
    (folder / "stop").unlink()
    store_job.check(read(folder / "results"))


def test_a_second_job_is_refused(
    folder: Path, server: object_server.Server, jobs: list[subprocess.Popen[bytes]]
) -> None:
    """It learns who holds the place; the first goes on, and releases it at its end, so that the next need not wait."""
    jobs.append(start(folder, server))
    new_epoch(jobs[0], folder, server)
    first = pids(folder)
    second = launched.run("run", "-n", "2", JOB, folder, URL, env=server.env)
    assert second.returncode != 0
    wanted = f'another job writes there; each job needs a place of its own (it is held by job "stored", process {first[0]} on {socket.gethostname()}, with a lease until '
    assert f"checkpoints in {URL}: {wanted}" in second.stderr.decode(), second.stderr.decode()
    new_epoch(jobs[0], folder, server)
    end(jobs[0], folder)
    assert lease(server)["free"]
    jobs.append(start(folder, server))
    new_epoch(jobs[1], folder, server)
    end(jobs[1], folder)
    assert WAITS not in told(folder)


def test_a_job_that_was_killed(folder: Path, server: object_server.Server, jobs: list[subprocess.Popen[bytes]]) -> None:
    """Here it is certainly dead: the next job, started by the launcher or by hand, begins at once."""
    jobs.append(start(folder, server, "--restarts", "1"))
    new_epoch(jobs[0], folder, server)
    holder = lease(server)
    os.kill(pids(folder)[0], signal.SIGKILL)
    launched.wait_until(lambda: lease(server)["owner"] != holder["owner"], "another run of the job")
    new_epoch(jobs[0], folder, server)
    assert b"starting the job again (1 of 1)" in told(folder)
    workers = pids(folder)
    for pid in [jobs[0].pid, *workers]:
        os.kill(pid, signal.SIGKILL)
    jobs[0].wait(timeout=launched.PATIENCE_S)
    launched.wait_until(lambda: not any(map(launched.is_running, workers)), "the worker's end")
    jobs.append(start(folder, server))
    new_epoch(jobs[1], folder, server)
    end(jobs[1], folder)
    assert WAITS not in told(folder)


def test_a_job_elsewhere_that_does_no_more(
    folder: Path, server: object_server.Server, jobs: list[subprocess.Popen[bytes]]
) -> None:
    """The state of another machine is unknown: the next job waits until a lease has gone unrenewed for its whole
    duration.
    """
    jobs.append(start(folder, server))
    new_epoch(jobs[0], folder, server)
    end(jobs[0], folder)
    old = lease(server)
    old["process"] |= {"host": "elsewhere", "boot": "another"}
    (place(server) / "lease").write_text(json.dumps(old | {"free": False, "lasts_ms": 1500}))
    jobs.append(start(folder, server))
    new_epoch(jobs[1], folder, server)
    process = old["process"]["pid"]
    assert f'held by job "stored", process {process} on elsewhere, with a lease until' in told(folder).decode()
    end(jobs[1], folder)


def test_a_job_that_stood_still(
    folder: Path, server: object_server.Server, jobs: list[subprocess.Popen[bytes]]
) -> None:
    """It cannot renew, and another takes the place; when it continues it commits nothing more, and says who has it."""
    jobs.append(start(folder, server))
    new_epoch(jobs[0], folder, server)
    stopped = pids(folder)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        jobs.append(start(folder, server))
        new_epoch(jobs[1], folder, server)
        assert WAITS in told(folder)
        second = pids(folder)[0]
    finally:
        os.kill(stopped, signal.SIGCONT)
    jobs[0].wait(timeout=launched.PATIENCE_S)
    assert jobs[0].returncode != 0
    assert f'it is held by job "stored", process {second} on ' in told(folder).decode()
    new_epoch(jobs[1], folder, server)
    end(jobs[1], folder)


def test_a_store_that_is_away_for_longer_than_a_lease(
    folder: Path, server: object_server.Server, jobs: list[subprocess.Popen[bytes]]
) -> None:
    """Nothing is committed meanwhile, and the job says why; it goes on when the store is back, if no other has come."""
    jobs.append(start(folder, server))
    new_epoch(jobs[0], folder, server)
    server.stop()
    launched.wait_until(lambda: b"nothing is committed until it is" in told(folder), "a job that tells of its lease")
    committed, seen = len(read(folder / "results")), (folder / "seen").stat().st_size
    launched.wait_until(lambda: (folder / "seen").stat().st_size > seen, "rows that come to the sink all the same")
    assert len(read(folder / "results")) == committed
    server.start()
    new_epoch(jobs[0], folder, server)
    end(jobs[0], folder)
