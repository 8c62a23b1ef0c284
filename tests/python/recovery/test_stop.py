"""``tidemill stop``: a stream makes a last checkpoint, ends, and resumes from there when it is started again."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import launched
import pytest
import standing
import standing_job
import tidemill as tm
from tidemill._streaming import status as _status
from tidemill.apps import stop

APP = """
import sys
import tidemill as tm

checkpoint = {"checkpoint": tm.stream.Checkpoint("checkpoints", interval="1h")} if "unsaved" not in sys.argv else {}
tm.stream.from_generator(300, splits=1).select("number").write_stream(tm.stream.to_files("results"), name="numbers", **checkpoint)
print("on it goes")
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def jobs(tmp_path: Path, jobs: list[Popen[bytes]]) -> list[Popen[bytes]]:
    (tmp_path / "app.py").write_text(APP)
    return jobs


def has_rows(env: dict[str, str], workers: int, job: Popen[bytes]) -> bool:
    assert job.poll() is None, "the job has ended"
    found = launched.statuses(env)
    return len(found) == workers and any(edge["rows_sent"] for one in found for edge in one["edges"])


def test_a_stream_that_is_stopped(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """It ends well, although no checkpoint was due; with another number of workers it resumes, and no row is lost or
    duplicated.
    """
    before = 0
    for workers in (2, 1):
        job = launched.start("run", "-n", str(workers), "app.py", env=env, cwd=tmp_path)
        jobs.append(job)
        launched.wait_until(functools.partial(has_rows, env, workers, job), "rows")
        stopped = launched.run("stop", "numbers", env=env)
        assert stopped.returncode == 0, stopped.stderr
        assert (
            stopped.stdout == b"stream 'numbers' has stopped; when started again, it resumes from its last checkpoint\n"
        )
        out, err = job.communicate(timeout=launched.PATIENCE_S)
        assert job.returncode == 0, err
        assert out.count(b"on it goes") == workers
        lines = [line for file in (tmp_path / "results").glob("part-*") for line in file.read_text().splitlines()]
        numbers = sorted(json.loads(line)["number"] for line in lines)
        assert numbers == list(range(len(numbers))) and len(numbers) > before
        before = len(numbers)
    left = list((tmp_path / f"tidemill-{os.getuid()}" / "streams").iterdir())
    assert len(left) == 2 and {file.suffix for file in left} == {".stopped"}


def ask_at_the_first_row(folder: str) -> tuple[list[dict[str, Any]], int]:
    """On every worker: what is known of the stream when its first row is there, and how many rows come until it has
    stopped, as its first row asks for.
    """
    known: list[dict[str, Any]] = []
    rows = 0

    def ask(table: tm.Table) -> None:
        nonlocal rows
        rows += len(table)
        if not known:
            known.extend(job for job in _status.jobs() if job["job"] == "known at once")
            _status.stopping(next(job for job in known if job["worker"] == 0))[0].touch()

    stream = tm.stream.from_generator(300, splits=1).select("number")
    stream.write_stream(ask, name="known at once", checkpoint=tm.stream.Checkpoint(folder, interval="1h"))
    return known, rows


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_is_known_before_its_first_row(tmp_path: Path, workers: int) -> None:
    """Nobody who sees a row is told that no such stream runs; and it stops although it has no checkpoint yet."""
    found = standing.run(ask_at_the_first_row, str(tmp_path), workers=workers)
    assert sum(rows for _, rows in found) > 0
    for known, rows in found:
        assert rows == 0 or sorted((job["worker"], job["durable"]) for job in known) == [(n, 0) for n in range(workers)]


def test_several_that_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All learn that the stream has stopped, whoever learns it first."""
    file = standing_job.status_file(tmp_path, monkeypatch)
    jobs, waiting, codes = _status.jobs, set[int](), list[int]()

    def seen() -> list[dict[str, Any]]:
        """Whoever looks here has already asked."""
        waiting.add(threading.get_ident())
        return jobs()

    asked, stopped = _status.stopping({"file": str(file)})
    asking = [threading.Thread(target=lambda: codes.append(stop._stop(jobs()[0], None))) for _ in range(3)]
    monkeypatch.setattr(_status, "jobs", seen)
    for one in asking:
        one.start()
    launched.wait_until(lambda: len(waiting) == 3, "all to ask")
    # As a job does.
    asked.rename(stopped)
    file.unlink()
    for one in asking:
        one.join(launched.PATIENCE_S)
    assert codes == [0, 0, 0]


def test_what_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed worker does not run because another process has its number, and files of stopped jobs are removed
    eventually.
    """
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = _status.folder()
    folder.mkdir(parents=True)

    def tells(name: str, at_s: float) -> None:
        about = {"job": name, "job_id": name, "worker": 0, "pid": os.getpid(), "at_s": at_s}
        (folder / name).write_text(json.dumps(about))

    def files() -> list[str]:
        return sorted(file.name for file in folder.iterdir())

    tells("1-0.json", time.time())
    tells("2-0.json", time.time() - 3600)
    for name in ("1-0.stop", "2-0.stop", "3-0.stop", "3-0.stopped", "3-0.new"):
        (folder / name).touch()
    assert [job["job"] for job in _status.jobs()] == ["1-0.json"]
    assert files() == ["1-0.json", "1-0.stop", "2-0.stop", "3-0.new", "3-0.stop", "3-0.stopped"]
    monkeypatch.setattr(_status, "_STOPPED_S", -1)
    _status.jobs()
    assert files() == ["1-0.json", "1-0.stop"]


def test_what_cannot_be_stopped(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """A stream that does not exist, one that could not resume, and one of several with the same name."""
    nobody = launched.run("stop", env=env)
    assert (nobody.returncode, nobody.stderr) == (1, b"tidemill stop: no such stream runs on this machine\n")
    jobs.append(launched.start("run", "-n", "1", "app.py", "unsaved", env=env, cwd=tmp_path))
    launched.wait_until(lambda: jobs[0].poll() is not None or len(launched.statuses(env)) == 1, "the first")
    unsaved = launched.run("stop", env=env)
    assert unsaved.returncode == 1 and b"stream 'numbers' makes no checkpoints" in unsaved.stderr
    other = launched.run("stop", "others", env=env)
    pid = launched.statuses(env)[0]["pid"]
    assert (
        other.returncode == 1
        and f"no such stream runs on this machine: 'numbers' (--pid {pid})" in other.stderr.decode()
    )
    (tmp_path / "beside").mkdir()
    jobs.append(launched.start("run", "-n", "1", "../app.py", env=env, cwd=tmp_path / "beside"))
    launched.wait_until(lambda: jobs[1].poll() is not None or len(launched.statuses(env)) == 2, "the second")
    several = launched.run("stop", "numbers", env=env)
    assert several.returncode == 1 and b"several streams run on this machine: " in several.stderr
    second = next(worker["pid"] for worker in launched.statuses(env) if worker["pid"] != pid)
    stopped = launched.run("stop", "--pid", str(second), env=env)
    assert stopped.returncode == 0, stopped.stderr
    assert jobs[1].wait(launched.PATIENCE_S) == 0 and jobs[0].poll() is None
