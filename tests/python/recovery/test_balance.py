"""``tidemill balance`` and ``tidemill drain`` for a stream whose workers are all on this machine."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

import counted
import launched
import pytest
import standing_job
from tidemill._streaming import status as _status
from tidemill.apps import _jobs, balance

#: Moves all keys to one copy of each step, once.
CROWDED = counted.APP.replace(
    "checkpoint=checkpoint)",
    """checkpoint=checkpoint, on_progress=crowd)""",
).replace(
    "checkpoint = tm",
    """

def crowd(running):
    if not running.moves:
        running.rebalance_all({task: [0] * len(owners) for task, owners in running.owners.items()})


checkpoint = tm""",
)
#: Rows that were read wait beside their source, so its splits stay.
NO_KEYS = """
import tidemill as tm

numbers = tm.stream.from_generator(300, splits=2).select("number")
numbers.write_stream(lambda rows: None, name="numbers", checkpoint="checkpoints", guarantee="at_most_once")
"""
NO_CHECKPOINTS = """
import tidemill as tm

tm.stream.from_generator(300, splits=2).write_stream(lambda rows: None, name="numbers")
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def started(folder: Path, env: dict[str, str], jobs: list[Popen[bytes]], app: str) -> Popen[bytes]:
    """Start two workers with two threads each, and wait until rows have arrived."""
    (folder / "app.py").write_text(app)
    job = launched.start("run", "-n", "2", "--threads", "2", "app.py", env=env, cwd=folder)
    jobs.append(job)

    def has_rows() -> bool:
        assert job.poll() is None, "the job has ended"
        found = launched.statuses(env)
        return len(found) == 2 and all(any(edge["rows_sent"] for edge in one["edges"]) for one in found)

    launched.wait_until(has_rows, "rows")
    return job


def asked(env: dict[str, str], *words: str) -> CompletedProcess[bytes]:
    return launched.run(*words, "--timeout", "60s", env=env)


def test_keys_that_are_crowded_are_spread(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """No row is lost, duplicated or counted out of order."""
    job = started(tmp_path, env, jobs, CROWDED)

    def predicts() -> bool:
        would = asked(env, "balance", "numbers", "--dry-run")
        assert would.returncode == 0, would.stderr
        return b"would move " in would.stdout

    launched.wait_until(predicts, "keys that are crowded, and steps that are measured")
    done = asked(env, "balance", "numbers")
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.decode().splitlines()
    assert re.match(r"stream 'numbers': moved [\d,]+ buckets?, with [\d.]+ k?B of state at checkpoint \d+; ", first), (
        first
    )
    assert any(re.fullmatch(r"  .+: [\d,]+ of 1,024 buckets", line) for line in others), others
    stopped = launched.run("stop", "numbers", env=env)
    assert stopped.returncode == 0, stopped.stderr
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err
    assert counted.check(tmp_path) > 0
    left = {file.suffix for file in (tmp_path / f"tidemill-{os.getuid()}" / "streams").iterdir()}
    assert left == {".stopped"}


def test_what_cannot_be_asked_for(tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]]) -> None:
    """The message names what exists, and what helps."""
    for words in (("balance",), ("drain", "there")):
        nobody = asked(env, *words)
        assert nobody.returncode == 1
        assert nobody.stderr.decode() == f"tidemill {words[0]}: no such stream runs on this machine\n"
    job = started(tmp_path, env, jobs, counted.APP)
    host = json.loads(launched.run("top", "--json", env=env).stdout)[0]["host"]
    for words, message in (
        (("drain", "nowhere"), f'no host "nowhere"; the hosts of this stream are {host}'),
        (("drain", host), f"{host} is the only host of this stream: its keys have nowhere to go"),
        (("drain", host, "--undo"), f'host "{host}" is not drained; no host is'),
        (("drain", host, "others"), "no such stream runs on this machine: 'numbers' (--pid "),
    ):
        refused = asked(env, *words)
        assert refused.returncode == 1 and message in refused.stderr.decode(), refused
    assert job.poll() is None
    stopped = launched.run("stop", "numbers", env=env)
    assert stopped.returncode == 0, stopped.stderr
    job.wait(launched.PATIENCE_S)
    assert counted.check(tmp_path) > 0


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (NO_KEYS, "this stream has no step whose keys can move, and no source whose splits can; its steps are "),
        (
            NO_CHECKPOINTS,
            "stream 'numbers' makes no checkpoints, at which keys and splits move; start it with checkpoint=",
        ),
    ],
)
def test_streams_whose_keys_cannot_move(
    tmp_path: Path, env: dict[str, str], jobs: list[Popen[bytes]], app: str, message: str
) -> None:
    started(tmp_path, env, jobs, app)
    refused = asked(env, "balance")
    assert refused.returncode == 1 and message in refused.stderr.decode(), refused


def test_several_that_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its own answer; requests are handled one after the other."""
    file = standing_job.status_file(tmp_path, monkeypatch)
    job = _status.jobs()[0]
    answers: list[dict[str, Any]] = []

    def ask(number: int) -> None:
        answer = _jobs.asked(job, {"kind": "balance", "dry_run": True, "number": number}, None)
        answers.append({**answer, "asked": number})

    asking = [threading.Thread(target=functools.partial(ask, number)) for number in range(3)]
    for one in asking:
        one.start()
    # As a job does.
    request_file, seen = file.with_suffix(".move"), []
    for _ in range(3):
        launched.wait_until(request_file.exists, "a request")
        request = json.loads(request_file.read_text())
        seen.append(request["number"])
        request_file.unlink()
        draft = file.with_suffix(".drafted")
        draft.write_text(json.dumps({"said": str(request["number"])}))
        draft.rename(file.with_suffix(f".{request['id']}.moved"))
    for one in asking:
        one.join(launched.PATIENCE_S)
    assert sorted(seen) == [0, 1, 2] and all(answer["said"] == str(answer["asked"]) for answer in answers)
    assert [left.name for left in file.parent.iterdir()] == [file.name]


def test_a_stream_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends after its time, and when the stream has ended."""
    file = standing_job.status_file(tmp_path, monkeypatch)
    assert balance.main(["--timeout", "200ms"]) == 1
    assert "stream 'numbers' has not answered after 0.2 s; it moves its keys" in capsys.readouterr().err
    job = _status.jobs()[0]
    file.unlink()
    assert _jobs.asked(job, {"kind": "balance"}, None) == {
        "error": "stream 'numbers' has ended; its own output says why"
    }
