"""Where checkpoints lie, and what is in them: object stores, also when they are away, and rows that barriers have overtaken."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import launched
import object_server
import pytest
import seeds
import tidemill as tm
from object_server import server
from recovered import JOB, check, folder, live_and_die
from stream_kills import kill_one

__all__ = ["folder", "server"]


def wait_for_epoch(job: subprocess.Popen[bytes], place: Path, before: set[Path]) -> set[Path]:
    """Wait for a checkpoint that was not there before, or the job's end; returns those that are there."""
    launched.wait_until(lambda: job.poll() is not None or bool(launched.epochs(place) - before), "a checkpoint")
    return launched.epochs(place)


def is_hurried(epoch: Path) -> bool:
    """Whether a checkpoint has rows in flight; not one that has been cleared away meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return b'"in_flight"' in epoch.read_bytes()
    return False


def test_stores_that_only_the_program_knows(server: object_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What storage_options= tells write_stream, the command could not be told: it listed and copied nothing."""
    told = {f"aws_{name.removeprefix('AWS_').lower()}": value for name, value in server.env.items()}
    for name in server.env:
        monkeypatch.delenv(name, raising=False)
    url = "s3://jobs/told"
    rows = tm.stream.from_generator(rows=100)
    rows.write_stream(lambda _: None, checkpoint=tm.stream.Checkpoint(url, storage_options=told), name="told")
    given = [f"--storage-option={name}={value}" for name, value in told.items()]
    listed = launched.run("checkpoints", url, *given)
    assert listed.returncode == 0 and b'job "told"  finished' in listed.stdout, listed.stderr
    copied = launched.run("checkpoints", url, "--copy", "s3://jobs/saved", *given)
    assert copied.returncode == 0 and b"to s3://jobs/saved" in copied.stdout, copied.stderr
    assert launched.run("checkpoints", "s3://jobs/saved", *given).stdout.count(b"finished") == 1
    local = server.root / "local"
    assert launched.run("checkpoints", url, "--copy", local, *given).returncode == 0
    assert launched.epochs(local)
    wrong = launched.run("checkpoints", url, "--storage-option", "swordfish")
    assert wrong.returncode == 2 and b"it is KEY=VALUE" in wrong.stderr and b"swordfish" not in wrong.stderr


def test_checkpoints_in_an_object_store(folder: Path, server: object_server.Server) -> None:
    """Workers die, and the job goes on from what lies in the store; nobody needs a folder."""
    dice = seeds.dice()
    url, place = "s3://jobs/killed", server.root / "jobs" / "killed"
    job = launched.start("run", "-n", "2", "--restarts", "30", JOB, folder, "windows", url, env=server.env)
    before: set[Path] = set()
    for _ in range(3):
        before = wait_for_epoch(job, place, before)
        if job.poll() is None:
            kill_one(folder, dice)
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    check(folder)
    assert not (folder / "checkpoints").exists()
    listed = launched.run("checkpoints", "-n", "1", url, env=server.env)
    assert listed.returncode == 0, listed.stderr
    assert b'job "killed"  finished' in listed.stdout


def test_a_store_that_is_away(folder: Path, server: object_server.Server) -> None:
    """Its server dies and comes back: the stream goes on meanwhile, and a worker that dies afterwards loses nothing."""
    url, place = "s3://jobs/killed", server.root / "jobs" / "killed"
    job = launched.start("run", "-n", "2", "--restarts", "3", JOB, folder, "windows", url, env=server.env)
    wait_for_epoch(job, place, set())
    server.stop()
    time.sleep(1)
    before = launched.epochs(place)
    server.start()
    wait_for_epoch(job, place, before)
    if job.poll() is None:
        kill_one(folder, seeds.dice())
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    check(folder)


def test_a_list_of_checkpoints(tmp_path: Path) -> None:
    """One that is damaged is named, and with --quick it is not looked for."""
    stream = tm.stream.from_generator(2000, rows=400, step="1ms").group_by(
        "key", tm.stream.window(tm.stream.tumbling("1h"), on="time")
    )
    looked = 0

    def enough() -> bool:
        nonlocal looked
        looked += 1
        return looked > 3

    stream.agg(n=tm.count()).write_stream(
        lambda _: None, checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="20ms"), stop_when=enough
    )
    place = tmp_path / "c"
    listed = launched.run("checkpoints", "-n", "1", place)
    assert listed.returncode == 0 and b"whole" in listed.stdout, listed
    for file in (place / "state").glob("*/*"):
        file.write_bytes(b"")
    damaged = launched.run("checkpoints", "-n", "1", place)
    assert damaged.returncode == 1 and b"is truncated" in damaged.stdout, damaged
    quick = launched.run("checkpoints", "-n", "1", "--quick", place)
    assert quick.returncode == 0 and b"truncated" not in quick.stdout, quick
    rows = tm.stream.from_generator(2000, rows=400, step="1ms").group_by(
        "key", tm.stream.window(tm.stream.tumbling("1h"), on="time")
    )
    with pytest.raises(tm.DataSetError, match="come again, which the job must not do"):
        rows.agg(n=tm.count()).write_stream(
            tm.stream.to_files(tmp_path / "out"), checkpoint=place, guarantee="exactly_once"
        )


def test_a_copy_that_cannot_be_cleared_away_says_both(tmp_path: Path) -> None:
    """Where a copy fails, and what it has written cannot be deleted, the first error is not lost behind the second."""
    place, fine, full = tmp_path / "place", tmp_path / "fine", tmp_path / "full"
    rows = tm.stream.from_generator(0, rows=400, step="1ms").group_by(
        "key", tm.stream.window(tm.stream.tumbling("1h"), on="time")
    )
    rows.agg(n=tm.count()).write_stream(lambda table: None, checkpoint=tm.stream.Checkpoint(place, interval="50ms"))
    copied = launched.run("checkpoints", "-n", "1", place, "--copy", fine)
    assert copied.returncode == 0, copied.stderr.decode()
    # A folder in a file's place: neither can it be written, nor deleted as a file.
    file = next(path for path in (fine / "state").rglob("*") if path.is_file())
    (full / file.relative_to(fine) / "within").mkdir(parents=True)
    failed = launched.run("checkpoints", "-n", "1", place, "--copy", full)
    first, second = failed.stderr.decode().split("; and the files already copied could not be deleted: ")
    assert failed.returncode == 2 and f"checkpoints in {full}: " in first and "delete" not in first
    assert file.name in second


def test_a_job_goes_on_from_a_copy(tmp_path: Path, server: object_server.Server) -> None:
    """A checkpoint that is copied while its job runs, and clears away old ones, is where another job goes on from, whatever becomes of the
    first place; by way of an object store, too."""

    def counts(rows_per_s: float, rows: int | None = None) -> tm.DataSet:
        made = tm.stream.from_generator(rows_per_s, rows=rows, keys=5, step="1ms")
        return made.group_by("key", tm.stream.window(tm.stream.tumbling("100s"), on="time")).agg(n=tm.count())

    def written(**options: Any) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []
        counts(0, 1_000_000).write_stream(lambda table: seen.extend(table.to_pylist()), **options)
        return sorted(seen, key=str)

    def copied(place: object, to: object, *options: object) -> subprocess.CompletedProcess[bytes]:
        return launched.run("checkpoints", "-n", "1", place, "--copy", to, *options, env=server.env)

    place, copies = tmp_path / "running", [tmp_path / f"copy{at}" for at in range(3)]

    def stop() -> bool:
        for copy in copies if launched.epochs(place) else ():
            done = copied(place, copy)
            assert done.returncode == 0 and b"copied epoch" in done.stdout, done
        return copies[0].exists()

    counts(1000).write_stream(lambda _: None, checkpoint=tm.stream.Checkpoint(place, interval="300ms"), stop_when=stop)
    for path in (place / "epochs").iterdir():
        path.unlink()
    (epoch,) = (int(path.name) for path in launched.epochs(copies[0]))
    assert copied(copies[0], "s3://jobs/copy", "--epoch", epoch).returncode == 0
    assert copied("s3://jobs/copy", tmp_path / "back").returncode == 0
    whole = written()
    assert len(whole) == 50
    for copy in (tmp_path / "back", *copies[1:]):
        assert written(checkpoint=copy) == whole

    full = copied(copies[0], copies[1])
    assert full.returncode == 2 and b"it already has checkpoints" in full.stderr, full
    none = copied(place, tmp_path / "none")
    assert none.returncode == 2 and b"no checkpoint to copy" in none.stderr, none
    assert copied(copies[0], tmp_path / "none", "--epoch", epoch + 99).returncode == 2
    assert launched.run("checkpoints", "-n", "1", copies[0], "--epoch", "3").returncode == 2


def test_names_in_a_list_of_checkpoints(tmp_path: Path) -> None:
    """A name with a line feed and a terminal's commands stays within its line, and is shown as it is written in Python."""
    key = tm.col("number").alias("n\n\x1b[2J")
    counts = (
        tm.stream.from_generator(rows=4).group_by(key, tm.stream.window(tm.stream.count_window(2))).agg(n=tm.count())
    )
    counts.write_stream(lambda _: None, checkpoint=tmp_path / "c", name="a\nb\x1b[31mred")
    listed = launched.run("checkpoints", "-n", "1", "--state", tmp_path / "c")
    assert listed.returncode == 0, listed
    first, second = listed.stdout.decode().splitlines()
    assert r'job "a\nb\x1b[31mred"  finished' in first
    assert r"(key n\n\x1b[2J: Int64" in second


def test_another_sink_after_a_clean_end(tmp_path: Path) -> None:
    """Where nothing is left to be committed a sink of another place goes on; where something may be, rows of it would be lost."""
    seen = 0

    def enough() -> bool:
        nonlocal seen
        seen += 1
        return seen > 5

    def write(place: str, **more: Any) -> None:
        stream = tm.stream.from_generator(2000, rows=20_000).select("number")
        options = {
            "checkpoint": tm.stream.Checkpoint(tmp_path / "c", interval="50ms"),
            "guarantee": "exactly_once",
        } | more
        stream.write_stream(tm.stream.to_files(tmp_path / place), **options)

    write("first", stop_when=enough)
    seen = 0
    write("second", stop_when=enough)
    # As a job leaves it that was killed: with what its sink has prepared, which may be committed or not.
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import json, os, signal, threading, tidemill as tm
from pathlib import Path
epochs = Path({str(tmp_path / "c/epochs")!r})
before = set(epochs.iterdir())
# The first is the one that the job goes on from, made its own.
before.add(epochs / f"{{max(int(epoch.name) for epoch in before) + 1:020}}")
def has_prepared(epoch):
    try:
        tasks = json.loads(epoch.read_text().partition("\\n")[2])["tasks"]
    except FileNotFoundError:
        return False
    return any(state["splits"] for name, state in tasks.items() if name.startswith("sink "))
def look():
    while not any(map(has_prepared, set(epochs.glob("[0-9]" * 20)) - before)):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=look, daemon=True).start()
rows = tm.stream.from_generator(2000, rows=20_000).select("number")
rows.write_stream(tm.stream.to_files({str(tmp_path / "second")!r}), checkpoint=tm.stream.Checkpoint({str(tmp_path / "c")!r}, interval="50ms"))
"""
    )
    killed = launched.run("run", "-n", "1", app)
    assert b"was killed by SIGKILL" in killed.stderr, killed
    with pytest.raises(
        tm.DataSetError, match=r"they hold state of a task \"sink .*: start the program as it was, and end it"
    ):
        write("third")
    seen = 0
    write("second", stop_when=enough)
    write("third")
    # Also at the end of the rows.
    write("fourth")
    numbers = [
        row["number"] for name in ("first", "second", "third") for row in tm.read_json(tmp_path / name).to_pylist()
    ]
    assert sorted(numbers) == list(range(20_000))
    assert not (tmp_path / "fourth").exists() or not list((tmp_path / "fourth").glob("part-*"))


def test_places_that_cannot_be(folder: Path) -> None:
    stream = tm.stream.from_generator(10, rows=10)
    for place, reason in {
        "memory:///job": "checkpoints in memory are lost when the process ends",
        "https://localhost/job": "checkpoints need a folder or an object store",
        "s4://bucket/job": "no store has such a URL",
    }.items():
        with pytest.raises(tm.DataSetError, match=reason):
            stream.write_stream(lambda table: None, checkpoint=place)
    # Also where several workers are started, as by default: those with nothing to do are not waited for.
    listed = launched.run("checkpoints", "-n", "3", folder / "nowhere")
    assert listed.returncode == 2 and b"there is no such folder" in listed.stderr
    assert b"Traceback" not in listed.stderr


def test_barriers_that_overtake(folder: Path) -> None:
    """A slow sink holds up what is before it: checkpoints are made all the same, with the rows that wait, and the job is killed
    and goes on with other workers.
    """
    for workers in (2, 3, 1):
        live_and_die(folder, workers, "pairs", "hurried", until=is_hurried)
    job = launched.start("run", "-n", "2", JOB, folder, "pairs", "hurried")
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    check(folder, "pairs")


def test_sources_go_on_after_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What has come since the job came to its end is read when it is started again: each line once."""
    lines = tmp_path / "lines"
    lines.mkdir()

    def run() -> list[int]:
        seen: list[int] = []
        numbers = tm.stream.from_files(lines, {"n": "int64"}, stop_at_end=True).filter(tm.col("n") > 0)
        numbers.write_stream(lambda rows: seen.extend(row["n"] for row in rows.to_pylist()), checkpoint=tmp_path / "c")
        return sorted(seen)

    (lines / "a.json").write_text('{"n": 1}\n')
    assert run() == [1]
    assert "had finished" not in capfd.readouterr().err
    (lines / "b.json").write_text('{"n": 2}\n')
    with (lines / "a.json").open("a") as file:
        file.write('{"n": 3}\n')
    assert run() == [2, 3]
    assert re.search(
        r'job "stream" had finished, at checkpoint \d+ in .*/c: its sources resume', capfd.readouterr().err
    )
    assert run() == []
    (lines / "c.json").write_text('{"n": 4}\n')
    assert run() == [4]


def test_windows_after_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They have given all: that there is nothing to do is said, and another program is refused, as before the end."""
    rows = tm.from_dict({"k": [1, 2], "s": [3, 14]}).select("k", at=tm.col("s").cast("timestamp[s]")).collect()

    def run(window: tm.Expr | None) -> int:
        seen: list[Any] = []
        stream = tm.stream.from_table(rows, time="at")
        made = stream if window is None else stream.group_by("k", window).agg(n=tm.count())
        made.write_stream(lambda table: seen.extend(table.to_pylist()), checkpoint=tmp_path / "c")
        return len(seen)

    tens = tm.stream.window(tm.stream.tumbling("10s"), on="at")
    assert run(tens) == 2
    capfd.readouterr()
    assert run(tens) == 0
    assert "nothing to do, since its windows and other steps" in capfd.readouterr().err
    with pytest.raises(
        tm.DataSetError, match=r"it held windows of 10000000 us .*, but now holds windows of 1000000 us"
    ):
        run(tm.stream.window(tm.stream.tumbling("1s"), on="at"))
    with pytest.raises(
        tm.DataSetError, match=r'state of a task "window \d", which the job no longer has; checkpoints identify a step'
    ):
        run(None)


def test_a_window_more_after_the_end(tmp_path: Path) -> None:
    """It would have nothing of what was read before."""
    numbers = tm.stream.from_generator(rows=5).select("number")
    numbers.write_stream(lambda rows: None, checkpoint=tmp_path)
    counts = numbers.group_by("number", tm.stream.window(tm.stream.count_window(1))).agg(n=tm.count())
    with pytest.raises(tm.DataSetError, match=r'has finished and had no task "window \d"; start fresh in another'):
        counts.write_stream(lambda rows: None, checkpoint=tmp_path)


def test_a_place_that_lost_its_epochs_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A job that began anew there would write its output twice. One that resumes says from where."""
    place = tmp_path / "checkpoints"
    seen: list[int] = []

    def run() -> None:
        before = len(seen)
        tm.stream.from_generator(2000).write_stream(
            lambda table: seen.extend(table.to_dict()["number"]),
            checkpoint=tm.stream.Checkpoint(place, interval="20ms"),
            stop_when=lambda: len(seen) > before and bool(launched.epochs(place)),
        )

    run()
    assert "resumes" not in capfd.readouterr().err
    newest = max(int(epoch.name) for epoch in launched.epochs(place))
    run()
    assert f'job "stream" resumes from checkpoint {newest} of {place}' in capfd.readouterr().err
    assert len(seen) == len(set(seen))
    for left in launched.epochs(place):
        left.unlink()
    before = len(seen)
    with pytest.raises(tm.DataSetError, match=r"epochs/, which lists them, is missing.* Restore epochs/; or"):
        run()
    assert len(seen) == before
    # A run that is killed before its first checkpoint leaves a claim and states, and has committed nothing.
    (place / "made").unlink()
    run()
    assert seen[before:].count(0) == 1


def test_signed_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can write there cannot choose what a job goes on with: unsigned, changed and other people's checkpoints are refused."""
    place = tmp_path / "c"

    def run() -> None:
        looked = 0

        def enough() -> bool:
            nonlocal looked
            looked += 1
            return looked > 3

        rows = tm.stream.from_generator(2000, rows=400, step="1ms").group_by(
            "key", tm.stream.window(tm.stream.tumbling("1h"), on="time")
        )
        rows.agg(n=tm.count()).write_stream(
            lambda _: None, checkpoint=tm.stream.Checkpoint(place, interval="20ms"), stop_when=enough
        )

    run()
    monkeypatch.setenv("TIDEMILL_CHECKPOINT_KEY", "a key of this test")
    with pytest.raises(Exception, match="is not signed"):
        run()
    shutil.rmtree(place)
    run()
    run()
    monkeypatch.setenv("TIDEMILL_CHECKPOINT_KEY", "another key of it.")
    with pytest.raises(Exception, match="signed with another key, or has changed since"):
        run()
    monkeypatch.delenv("TIDEMILL_CHECKPOINT_KEY")
    with pytest.raises(Exception, match="it is signed; set TIDEMILL_CHECKPOINT_KEY"):
        run()
