"""Streams whose checkpoints go to a store that is slow, or full: they go on, and nothing is lost or duplicated."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import disks
import launched
import object_server
import pytest
import store_job
from object_server import server
from recovered import folder, read
from stream_kills import pids

__all__ = ["folder", "server"]

JOB = Path(store_job.__file__)
#: Makes checkpoints of some hundred kilobytes.
PAD = "10000"


class Slow:
    """A proxy between a job and its store, which lets little through at once, or nothing."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = threading.Event()
        self._open.set()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def stop(self) -> None:
        self._over.set()
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                self._open.wait()
                # 256 KiB a second, and some milliseconds each way.
                self._over.wait(0.005 + len(data) / (256 << 10))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            target.close()


@pytest.fixture
def slow(server: object_server.Server) -> Iterator[tuple[object_server.Server, Slow]]:
    between = Slow(server.port)
    yield server, between
    between.stop()


class Job:
    """A job on two workers whose checkpoints are in a folder, or in a store backed by one."""

    def __init__(self, folder: Path, place: str, lies: Path, env: dict[str, str] | None = None) -> None:
        self._folder, self._lies = folder, lies
        for file in (folder / "pids").iterdir():
            file.unlink()
        with (folder / "errors").open("ab") as errors:
            self.process = launched.start("run", "-n", "2", JOB, folder, place, "1000", PAD, env=env, stderr=errors)

    def told(self) -> str:
        return (self._folder / "errors").read_text()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def looks() -> bool:
            assert self.process.poll() is None, self.told()
            return condition()

        launched.wait_until(looks, what)

    def wait_for_epochs(self, count: int) -> None:
        seen: set[Path] = set(launched.epochs(self._lies))
        before = len(seen)

        def come() -> bool:
            seen.update(launched.epochs(self._lies))
            return len(seen) - before >= count

        self.wait_until(come, f"{count} new checkpoints")

    def wait_for_words(self, words: str) -> str:
        """Wait until the job prints this from now on; return the line."""
        before = len(self.told())

        def line() -> str:
            return next(
                (line for line in self.told()[before:].splitlines(True) if words in line and line[-1] == "\n"), ""
            )

        self.wait_until(lambda: bool(line()), words)
        return line()

    def wait_for_rows(self) -> None:
        """Wait until more batches have reached the sink."""
        seen = self._folder / "seen"
        before = seen.stat().st_size
        self.wait_until(lambda: seen.stat().st_size > before + 3, "rows at the sink")

    def end(self) -> None:
        (self._folder / "stop").touch()
        self.process.wait(timeout=launched.PATIENCE_S)
        assert self.process.returncode == 0, self.told()
        (self._folder / "stop").unlink()
        store_job.check(read(self._folder / "results"))

    def kill(self) -> None:
        workers = pids(self._folder)
        for pid in [self.process.pid, *workers]:
            if launched.is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=launched.PATIENCE_S)
        launched.wait_until(lambda: not any(map(launched.is_running, workers)), "the workers' end")


def test_a_store_that_is_slow(folder: Path, slow: tuple[object_server.Server, Slow]) -> None:
    """Rows reach the sink while a checkpoint is being written; one is written at a time, and old ones are removed."""
    server, between = slow
    place = server.root / "jobs" / "slow"
    env = {**server.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{between.port}"}
    job = Job(folder, "s3://jobs/slow", place, env)
    try:
        job.wait_for_epochs(2)
        most = 0

        def under_way() -> set[int]:
            """Epochs with states, but no checkpoint yet."""
            states = {int(file.name.partition("-")[0]) for file in (place / "state").glob("*/[0-9]*-[0-9]*-[0-9]*")}
            newest = max((int(epoch.name) for epoch in launched.epochs(place)), default=0)
            return {epoch for epoch in states if epoch > newest}

        for _ in range(3):
            between.hold()
            before = launched.epochs(place)
            job.wait_for_rows()
            # One that the server had received almost completely may still appear.
            assert len(launched.epochs(place) - before) <= 1
            most = max(most, len(under_way()))
            between.let_go()
            job.wait_for_epochs(1)
            most = max(most, len(under_way()))
        assert most <= 1, "barriers went out before the checkpoint of those before was made"
        # Three are kept, and a new one until the oldest has been removed.
        assert len(launched.epochs(place)) <= 4
        job.end()
    finally:
        job.kill()


@pytest.fixture
def small(folder: Path) -> Iterator[Path]:
    with disks.small(folder, "8m") as small:
        yield small


def test_a_folder_that_is_full(folder: Path, small: Path) -> None:
    """Checkpoints fail, which the job reports with a remedy, and the last one stays whole; with room they succeed
    again. A job killed meanwhile does not begin while there is no room, and then resumes from that one.
    """
    place, ballast = small / "checkpoints", small / "ballast"
    started = Job(folder, str(place), place)
    try:
        started.wait_for_epochs(2)
        for killed in (True, False):
            disks.fill(ballast)
            told = started.wait_for_words("No space left on device")
            assert f"checkpoints in {place}: " in told
            assert "free space there" in told
            # Those removed now and then free a little room.
            disks.fill(ballast)
            started.wait_for_rows()
            if killed:
                started.kill()
                disks.fill(ballast)
                again = launched.run("run", "-n", "2", JOB, folder, place, "1000", PAD)
                assert again.returncode != 0
                assert b"No space left on device" in again.stderr and b"free space there" in again.stderr, again.stderr
            newest = max(int(epoch.name) for epoch in launched.epochs(place))
            listed = launched.run("checkpoints", "-n", "1", place)
            assert listed.returncode == 0 and b"whole" in listed.stdout, listed
            ballast.unlink()
            if killed:
                started = Job(folder, str(place), place)
            started.wait_for_epochs(1)
            assert max(int(epoch.name) for epoch in launched.epochs(place)) > newest
        started.end()
    finally:
        started.kill()


RESULTS = """
import sys
from pathlib import Path

import tidemill as tm

folder, rows = Path(sys.argv[1]), int(sys.argv[2])
numbers = tm.stream.from_generator(20_000, rows=rows, splits=2).select("number")
try:
    numbers.write_stream(tm.stream.to_files(sys.argv[3], format="csv"), checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="100ms"))
except tm.TidemillError as error:
    (folder / f"{tm.init().rank}.told").write_text(str(error))
    raise
"""


def test_a_disk_of_results_that_is_full(folder: Path, small: Path) -> None:
    """Both workers say which file lacks room and what to do; with room the job resumes, and each row is there once."""
    app, ballast, errors = folder / "app.py", small / "ballast", folder / "errors"
    app.write_text(RESULTS)
    command = ("run", "-n", "2", app, folder)
    with errors.open("wb") as file:
        running = launched.start(*command, "10000000", small / "out", stderr=file)
    launched.wait_until(lambda: running.poll() is not None or bool(launched.epochs(folder / "checkpoints")), "an epoch")
    disks.fill(ballast)
    assert running.wait(launched.PATIENCE_S) == 1
    for rank in range(2):
        told = (folder / f"{rank}.told").read_text()
        assert f"{small}/out/.part-" in told and "No space left on device" in told, told
        assert "free space there and start the job again: with checkpoint= it resumes from its last checkpoint" in told
    ballast.unlink()
    done = max(number for number in numbers_in(small / "out")) if list((small / "out").glob("*.csv")) else 0
    again = launched.run(*command, str(done + 20_000), small / "out")
    assert again.returncode == 0, again.stderr.decode()
    assert b"resumes from checkpoint" in again.stderr
    numbers = numbers_in(small / "out")
    assert sorted(numbers) == list(range(done + 20_000))


def numbers_in(folder: Path) -> list[int]:
    """The values in committed CSV files with one column."""
    files = [file for file in folder.iterdir() if not file.name.startswith(".")]
    return [int(line) for file in files for line in file.read_text().split()[1:]]


AWAY = """
import gc
import time

import tidemill as tm
from tidemill._tables import engine


def fail(rows):
    raise ValueError("on purpose")


away = tm.stream.from_files("s3://bucket/in", {"number": "int64"})
try:
    tm.stream.from_generator(1000).select("number").union(away).write_stream(fail)
except tm.DataSetError as error:
    print(error)
# The end of the program, which leaves some time to what still runs.
engine._engines.clear()
del away
gc.collect()
time.sleep(1)
"""


def test_a_job_ends_whose_store_does_not_answer(tmp_path: Path) -> None:
    """A thread that retries requests to the store stops when the run is over: it panicked when the threads for its
    requests had ended.
    """
    app = tmp_path / "app.py"
    app.write_text(AWAY)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    env = {**os.environ, **keys, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    ran = subprocess.run([sys.executable, app], env=env, capture_output=True, text=True, timeout=launched.PATIENCE_S)
    assert ran.returncode == 0 and "on purpose" in ran.stdout, ran.stderr
    assert "panicked" not in ran.stderr, ran.stderr
