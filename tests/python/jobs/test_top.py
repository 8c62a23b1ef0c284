"""``tidemill top``: it shows running streams, and no others."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import launched
import pytest
from tidemill._streaming import status as _status
from tidemill.apps import _top_looks
from tidemill.apps._plain import plain

APP = """
import tidemill as tm

clicks = tm.stream.from_generator(20_000, keys=100, splits=2)
clicks = clicks.with_columns(time=tm.when(tm.col("number") % 1000 > 0).then(tm.col("time")))
time = tm.stream.bounded_delay("time", 0)
counts = clicks.group_by("key", tm.stream.window(tm.stream.tumbling("1s"), on=time)).agg(n=tm.count())
counts.write_stream(lambda rows: None, name="clicks", checkpoint=tm.stream.Checkpoint("checkpoints", interval="200ms"))
"""


#: Copy 1 of a step is late to each collective.
LATE = """
import time

import numpy as np
import tidemill as tm


def met(comm, rows, context):
    if context.copy == 1:
        time.sleep(0.03)
    comm.Allreduce(np.ones(4), np.zeros(4))


numbers = tm.stream.from_generator(200, keys=10, splits=2)
window = tm.stream.window(tm.stream.tumbling("100ms"), on="time")
met = numbers.bsp(met, {"n": "int64"}, window=window, parallelism=2)
met.write_stream(lambda rows: None, name="clicks", checkpoint=tm.stream.Checkpoint("checkpoints", interval="1s"))
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@contextmanager
def started(folder: Path, env: dict[str, str], *options: str, app: str = APP) -> Iterator[Popen[bytes]]:
    (folder / "app.py").write_text(app)
    running = launched.start("run", "-n", "2", *options, "app.py", env=env, cwd=folder)
    try:
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
        running.communicate(timeout=launched.PATIENCE_S)


@pytest.fixture
def job(tmp_path: Path, env: dict[str, str]) -> Iterator[Popen[bytes]]:
    with started(tmp_path, env) as running:
        yield running


def test_a_stream_that_runs(job: Popen[bytes], env: dict[str, str]) -> None:
    """Both workers, every edge, with rows arriving, a time that advances and a checkpoint."""

    def runs() -> bool:
        assert job.poll() is None, "the job has ended"
        workers = launched.statuses(env)
        return len(workers) == 2 and all(w["durable"] and any(e["time"] for e in w["edges"]) for w in workers)

    launched.wait_until(runs, "both workers to tell of a checkpoint")
    first, second = launched.statuses(env)
    assert {first["worker"], second["worker"]} == {0, 1} and first["job"] == "clicks"
    shown = launched.run("top", "--once", "--every", "1.5", env=env)
    assert shown.returncode == 0, shown.stderr
    head, untimed, heading, *edges = (
        line for line in shown.stdout.decode().splitlines() if "held back by split" not in line
    )
    assert head.startswith("stream 'clicks'  2 of 2 workers  running ")
    assert re.search(r"  checkpoint \d+, \d+\.\d s old, \d[\d.]* k?B$", head), head
    assert re.fullmatch(r"  had no time: [\d,]+ rows for window \d+", untimed), untimed
    assert heading.split()[:3] == ["rows/s", "remote/s", "queued"]
    source = next(line for line in edges if line.strip().startswith("source generator"))
    assert " 2026-01-01 00:00:" in source
    rates = [cell for cell in source.split() if cell.replace(",", "").isdigit()]
    assert int(rates[0].replace(",", "")) > 0, source
    each = launched.run("top", "--once", "--workers", "--every", "1.5", env=env).stdout.decode()
    for worker in (first, second):
        line = re.search(rf"^ +worker {worker['worker']} on {worker['host']} +([\d,]+) ", each, re.MULTILINE)
        assert line and int(line[1].replace(",", "")) > 0, each


def test_two_streams_of_one_name(job: Popen[bytes], env: dict[str, str], tmp_path: Path) -> None:
    """Each is shown by itself: together they would look like one of four workers, with the rates of both."""
    (tmp_path / "beside").mkdir()
    with started(tmp_path / "beside", env) as beside:

        def run() -> bool:
            assert job.poll() is None and beside.poll() is None, "a job has ended"
            return len(launched.statuses(env)) == 4

        launched.wait_until(run, "the workers of both")
        workers: dict[str, list[int]] = {}
        for worker in launched.statuses(env):
            workers.setdefault(worker["job_id"], []).append(worker["worker"])
        assert [sorted(of_one) for of_one in workers.values()] == [[0, 1], [0, 1]]
        shown = launched.run("top", "--once", "--every", "0.1", env=env)
        heads = [line for line in shown.stdout.decode().splitlines() if line.startswith("stream ")]
        assert [head.partition("  running ")[0] for head in heads] == ["stream 'clicks'  2 of 2 workers"] * 2


def test_streams_that_have_gone(job: Popen[bytes], env: dict[str, str]) -> None:
    """A killed stream leaves a file behind, but does not run."""
    launched.wait_until(lambda: len(launched.statuses(env)) == 2, "both workers")
    for worker in launched.statuses(env):
        os.kill(worker["pid"], signal.SIGKILL)
    job.communicate(timeout=launched.PATIENCE_S)
    shown = launched.run("top", "--once", "--every", "0.1", env=env)
    assert (shown.returncode, shown.stdout) == (1, b"no stream runs on this machine\n")
    assert not any(Path(env["XDG_RUNTIME_DIR"]).rglob("*.json"))


def test_a_stream_that_is_started_again(tmp_path: Path, env: dict[str, str]) -> None:
    """A worker is killed and all are restarted: the old ones are no longer shown."""
    with started(tmp_path, env, "--restarts", "1") as running:
        launched.wait_until(lambda: running.poll() is not None or len(launched.statuses(env)) == 2, "both workers")
        before = launched.statuses(env)
        os.kill(before[1]["pid"], signal.SIGKILL)

        def again() -> bool:
            assert running.poll() is None, "the job has ended"
            now = launched.statuses(env)
            return len(now) == 2 and {worker["job_id"] for worker in now}.isdisjoint({before[0]["job_id"]})

        launched.wait_until(again, "both workers of the job that is started again")


def test_rates_of_who_tells_seldom() -> None:
    """Between two looks without a new report, a worker's rates are unknown rather than zero."""

    def tells(at_s: float) -> list[dict[str, Any]]:
        return [{"job_id": "a", "worker": 0, "at_s": at_s}]

    looks: _top_looks.Looks = {}
    seen = []
    for at_s in (1.0, 1.0, 5.0, 5.0, 9.0):
        looks = _top_looks.looked(looks, tells(at_s))
        before, now = looks["a", 0]
        seen.append((before and before["at_s"], now["at_s"]))
    assert seen == [(None, 1.0), (None, 1.0), (1.0, 5.0), (1.0, 5.0), (5.0, 9.0)]
    assert _top_looks.looked(looks, []) == {}


def test_options_that_make_no_sense(env: dict[str, str]) -> None:
    wrong = launched.run("top", "--every", "0", env=env)
    assert wrong.returncode == 2
    assert b"--every is from 0.1 to 3600 seconds" in wrong.stderr
    # Repeated or refreshed output is for people; a program gets its answer at once.
    wrong = launched.run("top", "--json", "--every", "2", env=env)
    assert wrong.returncode == 2
    assert b"--json looks once, so it does not allow --every" in wrong.stderr
    wrong = launched.run("top", "--json", "--workers", env=env)
    assert wrong.returncode == 2
    assert b"--json lists each worker anyway" in wrong.stderr
    for once in ((), ("--once",)):
        none = launched.run("top", "--json", *once, env=env)
        assert (none.returncode, none.stdout) == (1, b"[]\n")


def test_what_others_have_put_there_is_not_believed(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folder for temporary files another user may be first: with a folder, with a link, with foreign files."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = _status._file()
    assert own is not None
    folder = Path(own).parent
    # Of a process that no longer exists: our file is removed, and nothing else.
    gone = json.dumps({"at_s": 0, "pid": 1}) + "\n"
    victim = tmp_path / "victim.json"
    victim.write_text(gone)
    (folder / "1-1.json").write_text(gone)
    (folder / "notes.json").write_text(gone)
    (folder / "2-2.json").symlink_to(victim)
    os.mkfifo(folder / "3-3.json")
    for number, text in enumerate(("", "[]", "{}", "\xff", "[" * 100_000, '{"at_s": "now", "pid": []}')):
        (folder / f"4-{number}.json").write_text(text)
    assert _status.jobs() == []
    assert not (folder / "1-1.json").exists()
    assert victim.exists() and (folder / "notes.json").exists() and (folder / "2-2.json").is_symlink()
    # Where others can write, nothing is read, removed or written.
    (folder / "1-1.json").write_text(gone)
    folder.chmod(0o777)
    assert _status.jobs() == [] and _status._file() is None and (folder / "1-1.json").exists()
    folder.chmod(0o700)
    moved = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(moved)
    assert _status.jobs() == [] and _status._file() is None and (moved / "1-1.json").exists()


def test_whatever_the_clock_is_set_to(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running streams were taken for killed ones when the clock was set forward, and their files were removed."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = _status._file()
    assert file is not None
    for jump_s in (86_400, -86_400):
        told = {
            "pid": os.getpid(),
            "job_id": "a",
            "worker": 0,
            "at_s": time.time() - jump_s,
            "up_s": _status._up_s() - 2,
        }
        Path(file).write_text(json.dumps(told) + "\n")
        (worker,) = _status.jobs()
        assert 2 <= worker["silent_s"] < 60
    # The next stream, and not only a viewer, also removes what killed workers left.
    Path(file).with_name("4194305-0.json").write_text(json.dumps({**told, "pid": 4_194_305}) + "\n")
    assert _status._file() is not None and [path.name for path in Path(file).parent.iterdir()] == [Path(file).name]


def test_who_is_late_to_collectives(env: dict[str, str], tmp_path: Path) -> None:
    """The others wait for one copy of a step, according to their own counts: clocks are not compared."""
    with started(tmp_path, env, "--threads", "1", app=LATE) as job:

        def names_it() -> bool:
            assert job.poll() is None, "the job has ended"
            shown = " ".join(launched.run("top", "--once", "--why", env=env).stdout.decode().split())
            late = re.search(r"late: copy (\d) of bsp \d+ on \S+ comes (\d+) ms late to its collectives, ", shown)
            return late is not None and late[1] == "1" and int(late[2]) >= 20

        launched.wait_until(names_it, "the copy that the other one waits for")


def test_texts_of_jobs_cannot_move_the_cursor() -> None:
    """Whoever names a job does not control the viewer's terminal."""
    assert plain("job \x1b[2J\r\n\x9b\u202e") == "job \\x1b[2J\\r\\n\\x9b\\u202e"
    assert plain("Zähler №1") == "Zähler №1"
