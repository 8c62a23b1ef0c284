"""``tidemill scale``: a stream continues with more or fewer workers, and every row still counts once."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
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


def started(
    folder: Path, env: dict[str, str], jobs: list[Popen[bytes]], app: str, *options: str, spares: int = 0
) -> Popen[bytes]:
    """Start two workers, and spare ones as `options` say, and wait until rows have arrived."""
    (folder / "app.py").write_text(app)
    job = launched.start("run", "-n", "2", *options, "--threads", "1", "app.py", env=env, cwd=folder)
    jobs.append(job)

    def has_rows() -> bool:
        assert job.poll() is None, "the job has ended"
        found = launched.statuses(env)
        return len(found) == 2 + spares and has_sent(found) >= {0, 1}

    launched.wait_until(has_rows, "rows")
    return job


def has_sent(told: list[dict[str, Any]]) -> set[int]:
    """Return the workers that have sent rows."""
    return {one["worker"] for one in told if any(edge["rows_sent"] for edge in one["edges"])}


def pids(env: dict[str, str]) -> list[int]:
    return [one["pid"] for one in launched.statuses(env)]


def scaled(env: dict[str, str], *words: str) -> str:
    done = launched.run("scale", "numbers", *words, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def buckets(shown: str) -> dict[int, tuple[int, int, bool]]:
    """Return how many buckets each worker had and has now, and whether it is spare."""
    lines = re.findall(r"^  worker (\d+): ([\d,]+) -> ([\d,]+) buckets(  \(spare\))?$", shown, re.MULTILINE)
    return {
        int(worker): (int(old.replace(",", "")), int(new.replace(",", "")), bool(spare))
        for worker, old, new, spare in lines
    }


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
    """Up and down by restarts; the program continues after the stream only when it is stopped."""
    job = started(tmp_path, env, jobs, counted.APP + "print('on it goes')\n")
    why = "stream 'numbers': not without a stop: the job has 2 workers, spare ones included (tidemill run --max-workers)\n"
    predicted = scaled(env, "-n", "3", "--dry-run")
    assert predicted.startswith(why), predicted
    assert "would be started again with 3 workers instead of 2; it would stand for about " in predicted
    assert scaled(env, "-n", "2") == "stream 'numbers' has 2 workers already\n"
    for before, workers, option, reason in ((2, 3, [], why), (3, 1, ["--restart"], "")):
        what = rf"stream 'numbers': scaled from {before} to {workers} workers?; the stream stood for [\d.]+ s\n"
        done = scaled(env, "-n", str(workers), *option)
        assert re.fullmatch(re.escape(reason) + what, done), done
        launched.wait_until(functools.partial(has_workers, env, workers), f"{workers} workers")
    done = launched.run("stop", "numbers", env=env)
    assert done.returncode == 0, done.stderr
    out, err = job.communicate(timeout=launched.PATIENCE_S)
    assert (job.returncode, out) == (0, b"[0] on it goes\n"), err
    assert counted.check(tmp_path) > 0
    assert err.count(b"tidemill: scaling the job from ") == 2


def test_spare_workers_take_part_without_a_stop(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """All that spare workers get and give moves while rows flow, in the same processes; each row counts once."""
    job = started(tmp_path, env, jobs, counted.APP, "--max-workers", "4", spares=2)
    told = launched.statuses(env)
    assert has_sent(told) == {0, 1} and [one["spare"] for one in told] == [False, False, True, True]
    host = told[0]["host"]
    assert f"  spare: workers 2-3 on {host}\n" in launched.run("top", "--once", env=env).stdout.decode()
    before = pids(env)

    predicted = scaled(env, "-n", "4", "--dry-run")
    assert "would be scaled from 2 to 4 workers without a stop\n  would move 1,024 buckets" in predicted, predicted
    assert "and 2 splits of sources; copies would take no rows for about " in predicted
    # Two steps of 1024 buckets each.
    assert {worker: new for worker, (_, new, _) in buckets(predicted).items()} == dict.fromkeys(range(4), 512)

    grown = scaled(env, "-n", "4")
    assert "stream 'numbers': scaled from 2 to 4 workers without a stop\n  moved 1,024 buckets" in grown, grown
    assert all(new == 512 and not spare for _, new, spare in buckets(grown).values()), grown
    launched.wait_until(lambda: has_sent(launched.statuses(env)) == {0, 1, 2, 3}, "rows of all workers")
    assert "has 4 workers already" in scaled(env, "-n", "4")

    shrunk = scaled(env, "-n", "1")
    assert "scaled from 4 to 1 worker without a stop" in shrunk, shrunk
    assert {worker: (new, spare) for worker, (_, new, spare) in buckets(shrunk).items()} == {
        0: (2048, False),
        1: (0, True),
        2: (0, True),
        3: (0, True),
    }
    launched.wait_until(lambda: [one["spare"] for one in launched.statuses(env)] == [False, *[True] * 3], "its workers")
    assert "nothing to move" in launched.run("balance", "numbers", env=env).stdout.decode()
    assert "scaled from 1 to 3 workers without a stop" in scaled(env, "-n", "3")
    assert pids(env) == before
    assert "scaling the job" not in stopped(tmp_path, env, job)


def test_a_worker_is_killed_after_a_scale(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """The job starts again with the workers that it was scaled to, whichever of its checkpoints it resumes from."""
    job = started(tmp_path, env, jobs, counted.APP, "--max-workers", "4", "--restarts", "2", spares=2)

    def is_back(pid: int, active: int) -> bool:
        told = launched.statuses(env)
        spare = [one["spare"] for one in told]
        return len(told) == 4 and pid not in {one["pid"] for one in told} and spare.count(False) == active

    for active in (3, 1):
        assert "without a stop" in scaled(env, "-n", str(active))
        pid = launched.statuses(env)[2]["pid"]
        os.kill(pid, signal.SIGKILL)
        launched.wait_until(functools.partial(is_back, pid, active), f"{active} workers that are not spare")
        assert f"has {active} worker" in scaled(env, "-n", str(active))
    left = scaled(env, "-n", "2", "--dry-run")
    assert all(old == 0 for worker, (old, _, _) in buckets(left).items() if worker > 0), left
    err = stopped(tmp_path, env, job)
    assert err.count("starting the job again") == 2, err


def test_splits_that_cannot_move(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """The job is started again, and the command says why."""
    app = counted.APP.replace(
        'name="numbers", checkpoint=checkpoint', 'name="numbers", checkpoint=checkpoint, guarantee="at_most_once"'
    )
    started(tmp_path, env, jobs, app, "--max-workers", "3", spares=1)
    why = (
        'stream \'numbers\': not without a stop: the splits of "source generator 1" cannot move: the job guarantees "at_most_once", '
        "and rows that were read wait beside their source\n"
    )
    done = scaled(env, "-n", "3")
    assert re.fullmatch(
        re.escape(why) + r"stream 'numbers': scaled from 2 to 3 workers; the stream stood for [\d.]+ s\n", done
    ), done


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
    done = launched.run("scale", "-n", "1", "--restart", env=env)
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
