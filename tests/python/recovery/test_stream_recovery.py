"""Streams whose workers are killed: the results are exact, whatever died when, and however many workers resume.

``crates/stream/src/stories`` tests from seeds, in one thread, what each query keeps and how it moves. Here a few of
them die for real; ``--all`` runs every query.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import launched
import pyarrow as pa
import pytest
import seeds
import stream_job
import tidemill as tm
from recovered import JOB, check, folder, live_and_die, read
from stream_kills import has_checkpoint, kill_one, run_and_kill

__all__ = ["folder"]


def check_late(folder: Path) -> None:
    """Each row is either in its window's result, which comes once, or came too late."""
    results, late = read(folder / "results"), read(folder / "late")
    assert len({(row["key"], row["window_start"]) for row in results}) == len(results)
    rows = tm.from_arrow(stream_job.table(late=True))
    expected = {(row["key"], str(row["window_start"])): row["n"] for row in stream_job.narrow(rows).to_pylist()}
    seen = Counter({(row["key"], row["window_start"]): row["n"] for row in results})
    numbers = {row["row"]: (row["key"], datetime.fromisoformat(row["ts"])) for row in late}
    assert len(numbers) == len(late) > 50
    for key, at in numbers.values():
        seen[key, str(at.replace(microsecond=at.microsecond // 20_000 * 20_000))] += 1
    assert seen == expected


@pytest.mark.sampled(1, always=("windows", "pairs"))
@pytest.mark.parametrize("query", [*stream_job.QUERIES, "late"])
def test_workers_that_are_killed(folder: Path, query: str) -> None:
    """A worker dies again and again, at any moment; the launcher restarts the job, and nothing is lost or duplicated."""
    run_and_kill(folder, 6, lambda dice, _: dice.uniform(0.1, 0.9), JOB, folder, query)
    if query == "late":
        check_late(folder)
    else:
        check(folder, query)


@pytest.mark.sampled(1, always=("windows", "pairs"))
@pytest.mark.parametrize("query", [*stream_job.QUERIES, "late"])
def test_keys_that_move(folder: Path, query: str) -> None:
    """Buckets change owners all the time, with all their state, and no result is affected."""
    ran = launched.run("run", "-n", "2", JOB, folder, query, "moving")
    assert ran.returncode == 0, ran.stderr.decode()
    if query == "late":
        check_late(folder)
    else:
        check(folder, query)
    moves = json.loads((folder / "moves").read_text())
    # A request that comes too late, when the stream ends, is told so.
    assert [move for move in moves if move["error"] is None and move["buckets"]], moves
    assert sum(move["moved_bytes"] for move in moves) > 0


def test_keys_that_move_while_workers_are_killed(folder: Path) -> None:
    """Killed between a barrier with a map and the next checkpoint, or anywhere else: the job resumes from what is
    durable.
    """
    dice = seeds.dice()
    job = launched.start("run", "-n", "2", "--restarts", "30", JOB, folder, "pairs", "moving")
    for _ in range(5):
        launched.wait_until(lambda: job.poll() is not None or has_checkpoint(folder), "the first checkpoint")
        time.sleep(dice.uniform(0.2, 0.8))
        if job.poll() is None:
            kill_one(folder, dice)
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    check(folder, "pairs")


@pytest.mark.sampled(1, always=("windows",))
@pytest.mark.parametrize("query", ["windows", "pairs", "by_hand", "together"])
def test_a_job_that_goes_on_with_other_workers(folder: Path, query: str) -> None:
    """The whole job is killed, launcher included, and started by hand with another number of workers each time."""
    for workers in (2, 3, 1):
        live_and_die(folder, workers, query)
    job = launched.start("run", "-n", "2", JOB, folder, query)
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    check(folder, query)


def test_windows_for_late_rows_do_not_come_again(tmp_path: Path) -> None:
    """A window that late rows may still change gives another result when one has, not because the job resumes from a
    checkpoint.
    """
    rows = tm.from_dict({"s": list(range(2000))}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(rows, time="at", rows_per_batch=10, rows_per_s=2000)
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("100s"), on="at", allowed_lateness="10h")).agg(
        n=tm.count()
    )
    seen: list[tuple[datetime, int]] = []

    def take(table: tm.Table) -> None:
        seen.extend((row["window_start"], row["n"]) for row in table.to_pylist())

    counts.write_stream(
        take, checkpoint=tm.stream.Checkpoint(tmp_path, interval="100ms"), stop_when=lambda: len(seen) > 4
    )
    before = len(seen)
    assert 4 < before < 20
    counts.write_stream(take, checkpoint=tm.stream.Checkpoint(tmp_path, interval="100ms"))
    assert sorted(n for _, n in seen) == [100] * 20 and len({start for start, _ in seen}) == 20


def test_a_session_goes_on_as_one(tmp_path: Path) -> None:
    """A session's rows arrived in several batches before the checkpoint, and none arrives after it."""
    rows = tm.from_dict({"s": list(range(4000))}).with_columns(at=tm.col("s").cast("timestamp[s]")).collect()
    passed: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        passed.append(batch.num_rows)
        return batch

    stream = tm.stream.from_table(rows, time="at", rows_per_batch=10, rows_per_s=2000)
    some = stream.map_batches(count, schema=rows.schema).filter(tm.col("s") < 100)
    counts = some.group_by(tm.stream.window(tm.stream.session("10h"), on="at")).agg(n=tm.count())
    seen: list[int] = []

    def take(table: tm.Table) -> None:
        seen.extend(row["n"] for row in table.to_pylist())

    counts.write_stream(
        take, checkpoint=tm.stream.Checkpoint(tmp_path, interval="1h"), stop_when=lambda: sum(passed) > 200
    )
    counts.write_stream(take, checkpoint=tm.stream.Checkpoint(tmp_path, interval="1h"))
    assert seen == [100]


def test_two_jobs_in_one_place(folder: Path) -> None:
    """The second is refused at once, and the first goes on."""
    first = launched.start("run", "-n", "1", JOB, folder)
    (worker,) = launched.pids_in(folder / "pids", 1)
    lock = folder / "checkpoints" / "lock"
    # It names its holder once that has it.
    launched.wait_until(lambda: lock.exists() and lock.stat().st_size > 0, "the first job's lock")
    # On a busy machine the first job would end before the second begins.
    os.kill(worker, signal.SIGSTOP)
    try:
        second = launched.run("run", "-n", "1", JOB, folder)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert second.returncode != 0
    assert b"another job writes there; each job needs a place of its own" in second.stderr
    _, err = first.communicate(timeout=launched.PATIENCE_S)
    assert first.returncode == 0, err.decode()
    check(folder)


def test_a_job_that_stops_and_goes_on(folder: Path) -> None:
    """Stopped at a checkpoint it ends well, is listed as whole, and resumes as if nothing had happened."""
    app = folder / "stops.py"
    app.write_text(
        f"""
import sys
sys.path.insert(0, {str(JOB.parent)!r})
import stream_job, tidemill as tm
from pathlib import Path
write = tm.DataSet.write_stream
asked = []
def stop():
    asked.append(1)
    return len(asked) > 3
tm.DataSet.write_stream = lambda self, sink, **options: write(self, sink, stop_when=stop, **options)
sys.argv[1:] = [{str(folder)!r}]
stream_job.main()
print("asked" if asked else "heard of nobody")
"""
    )
    stopped = launched.run("run", "-n", "2", app)
    assert stopped.returncode == 0, stopped.stderr
    assert b"[0] asked" in stopped.stdout and b"[1] heard of nobody" in stopped.stdout
    listed = launched.run("checkpoints", "-n", "1", folder / "checkpoints")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.decode().splitlines()
    assert 0 < len(lines) <= 3 and all('job "killed"  whole' in line for line in lines), lines
    done = launched.run("run", "-n", "3", JOB, folder)
    assert done.returncode == 0, done.stderr
    check(folder)
    listed = launched.run("checkpoints", "-n", "1", folder / "checkpoints")
    assert listed.stdout.decode().splitlines()[0].endswith("finished")

    newest = max(launched.epochs(folder / "checkpoints"))
    newest.write_bytes(newest.read_bytes()[:-5])
    listed = launched.run("checkpoints", "-n", "1", folder / "checkpoints")
    assert listed.returncode == 1
    assert b"its checksum is wrong" in listed.stdout


def test_other_windows_are_refused(folder: Path) -> None:
    """States of windows of another length make no sense for these."""
    app = folder / "app.py"
    app.write_text(
        f"""
import sys
sys.path.insert(0, {str(JOB.parent)!r})
import stream_job, tidemill as tm
stream = tm.stream.from_table(stream_job.table(), time="ts", rows_per_batch=100, rows_per_s=12000)
windows = tm.stream.session("1s") if sys.argv[1] == "session" else tm.stream.tumbling(sys.argv[1])
counts = stream.group_by("key", tm.stream.window(windows, on="ts")).agg(n=tm.count())
asked = []
counts.write_stream(lambda _: None, checkpoint={str(folder / "checkpoints")!r}, stop_when=lambda: asked.append(1) or len(asked) > 3)
"""
    )
    assert launched.run("run", "-n", "1", app, "1h").returncode == 0
    for windows in ("10m", "session"):
        other = launched.run("run", "-n", "1", app, windows)
        assert other.returncode != 0
        assert b"it held windows of" in other.stderr
