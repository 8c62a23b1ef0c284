"""``tidemill scale``: a stream continues with more or fewer workers, and every row still counts once."""

from __future__ import annotations

import functools
import json
import os
import re
from pathlib import Path
from subprocess import Popen
from typing import Any

import counted
import launched
import pytest
import standing_job
from tidemill._streaming import scale as _scale
from tidemill.apps import scale

#: A worker is killed during the second start, before its stream runs.
DIES_STARTING = """
import os
import signal

if os.environ["TIDEMILL_RESTART"] == "1" and os.environ["TIDEMILL_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""
#: A worker is killed when its stream has stopped, before anybody may know.
DIES_STOPPING = """
import os
import signal

from tidemill._streaming import scale as _scale

def dies(comm, leave=_scale.leave_if_asked):
    if comm.rank == 1 and os.environ["TIDEMILL_RESTART"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    leave(comm)

_scale.leave_if_asked = dies
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}


def has_workers(env: dict[str, str], workers: int) -> bool:
    return len(launched.statuses(env)) == workers


def started(folder: Path, env: dict[str, str], jobs: list[Popen[bytes]], app: str) -> Popen[bytes]:
    """Start two workers, and wait until rows have arrived."""
    (folder / "app.py").write_text(app)
    job = launched.start("run", "-n", "2", "--threads", "1", "app.py", env=env, cwd=folder)
    jobs.append(job)

    def has_rows() -> bool:
        assert job.poll() is None, "the job has ended"
        found = launched.statuses(env)
        return len(found) == 2 and all(any(edge["rows_sent"] for edge in one["edges"]) for one in found)

    launched.wait_until(has_rows, "rows")
    return job


def stopped(folder: Path, env: dict[str, str], job: Popen[bytes]) -> str:
    """Stop a job, which must have ended well, and check its results; return its standard error."""
    done = launched.run("stop", "numbers", env=env)
    assert done.returncode == 0, done.stderr
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err
    assert counted.check(folder) > 0
    left = {file.name for file in folder.glob("tidemill-*")}
    assert left == {f"tidemill-{os.getuid()}"}, "nobody waits for an answer"
    return str(err.decode())


def test_a_stream_that_is_scaled(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """Up and down; the program continues after the stream only when it is stopped."""
    job = started(tmp_path, env, jobs, counted.APP + "print('on it goes')\n")
    predicted = launched.run("scale", "numbers", "-n", "3", "--dry-run", env=env)
    would = b"would be started again with 3 workers instead of 2; it would stand for about "
    assert would in predicted.stdout, predicted
    same = launched.run("scale", "-n", "2", env=env)
    assert (same.returncode, same.stdout) == (0, b"stream 'numbers' has 2 workers already\n")
    for before, workers in ((2, 3), (3, 1)):
        done = launched.run("scale", "-n", str(workers), env=env)
        assert done.returncode == 0, done.stderr
        what = rf"scaled from {before} to {workers} workers?; the stream stood for [\d.]+ s\n"
        assert re.fullmatch(f"stream 'numbers': {what}", done.stdout.decode()), done.stdout
        launched.wait_until(functools.partial(has_workers, env, workers), f"{workers} workers")
    done = launched.run("stop", "numbers", env=env)
    assert done.returncode == 0, done.stderr
    out, err = job.communicate(timeout=launched.PATIENCE_S)
    assert (job.returncode, out) == (0, b"[0] on it goes\n"), err
    assert counted.check(tmp_path) > 0
    assert err.count(b"tidemill: scaling the job from ") == 2


@pytest.mark.parametrize(
    ("dies", "workers", "message"),
    [
        (DIES_STARTING, 2, "the job failed with 3 workers before its stream ran again; it continues with 2 as before"),
        (DIES_STOPPING, 3, "a worker failed meanwhile, so from the checkpoint before"),
    ],
    ids=["starting", "stopping"],
)
def test_workers_that_die_meanwhile(
    tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]], dies: str, workers: int, message: str
) -> None:
    """The job resumes with the new number of workers or the old one, even without restarts."""
    job = started(tmp_path, env, jobs, dies + counted.APP)
    done = launched.run("scale", "-n", "3", env=env)
    assert done.returncode == (0 if workers == 3 else 1), done
    if workers == 2:
        assert f"tidemill scale: stream 'numbers': {message}" in done.stderr.decode()
    launched.wait_until(functools.partial(has_workers, env, workers), f"{workers} workers")
    assert message in stopped(tmp_path, env, job)


def test_a_launcher_that_gives_up(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """Whoever waits learns that the job has ended."""
    always = "import os\nif os.environ['TIDEMILL_RESTART'] != '0':\n    raise SystemExit(3)\n"
    job = started(tmp_path, env, jobs, always + counted.APP)
    done = launched.run("scale", "-n", "1", env=env)
    assert (done.returncode, done.stderr.decode()) == (
        1,
        "tidemill scale: stream 'numbers': the job has ended; its own output says why\n",
    )
    assert job.wait(launched.PATIENCE_S) == 3


def test_what_cannot_be_scaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what to do instead."""
    file = standing_job.status_file(tmp_path, monkeypatch)
    job = json.loads(file.read_text()) | {"workers": 2, "host": "here", "launch": None}

    def refused(**changed: Any) -> str:
        file.write_text(json.dumps(job | changed))
        assert scale.main(["-n", "3", "--timeout", "200ms"]) == 1
        return capsys.readouterr().err

    assert "was not started by `tidemill run`" in refused()
    assert "makes no checkpoints" in refused(durable=None)
    assert "'numbers' on host there" in refused(worker=1, first_host="there")
    (launch := tmp_path / "launch").mkdir()
    _scale.ask(launch, {})
    assert "is being scaled already" in refused(launch=str(launch))
    _scale.withdraw(launch)
    assert "does not run again yet after 0.2 s" in refused(launch=str(launch))
    assert (launch / "scale.json").exists() and file.with_suffix(".stop").exists(), "it is done all the same"
    assert [left.name for left in tmp_path.glob("tidemill-scale-*")] == []
    for number in ("0", "-1", "x", "5000"):
        with pytest.raises(SystemExit, match="2"):
            scale.main(["-n", number])
