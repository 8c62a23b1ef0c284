"""DataSets in object stores, against a real S3 server: what is read, what appears and when, and what fails."""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.server
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import numpy as np
import object_server
import pytest
import tidemill as tm
import workers
from datasets import rows
from tidemill import series


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_server.Server]:
    root = tmp_path_factory.mktemp("s3") / "root"
    root.mkdir()
    server = object_server.Server(root)
    yield server
    server.stop()


@pytest.fixture
def bucket(server: object_server.Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bucket of the test's own; the environment says where."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    number = len(list(server.root.glob("bucket-*")))
    return server.bucket(f"bucket-{number}")


def url(bucket: Path, key: str = "") -> str:
    return f"s3://{bucket.name}/{key}"


def objects(bucket: Path) -> list[str]:
    """The keys of a bucket, except those that only mark output as complete."""
    return sorted(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())


DATA = {"n": [1, 2, 3, 4], "s": ["a", "b", "c", 'd, "e"']}


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "ipc"])
def test_every_format_there_and_back(bucket: Path, form: str) -> None:
    data = tm.from_dict(DATA)
    write, read = getattr(data, f"write_{form}"), getattr(tm, f"read_{form}")
    assert write(url(bucket, "out")) == 4
    assert rows(read(url(bucket, "out"))) == rows(data)
    assert rows(read(url(bucket, "out/"))) == rows(data)
    assert "out/_SUCCESS" in objects(bucket) and "out/_unfinished" not in objects(bucket)
    assert rows(read(url(bucket, "o*"))) == rows(data)
    assert write(url(bucket, "none"), partition_by=["s"]) == 4
    assert rows(read(url(bucket, "none")).select("n", "s")) == rows(data)
    nothing = data.filter(tm.col("n") > 9)
    assert getattr(nothing, f"write_{form}")(url(bucket, "empty")) == 0
    if form != "json":
        assert read(url(bucket, "empty")).columns == ["n", "s"]


def test_records_text_and_npy(bucket: Path) -> None:
    records = tm.from_arrow(_records(5000))
    assert records.write_records(url(bucket, "records")) == 5000
    back = tm.read_records(url(bucket, "records"), {"key": 4, "value": 8})
    assert rows(back) == rows(records)
    lines = [f"line {number} {'ä' * (number % 90)}" for number in range(60_000)]
    (bucket / "a.txt").write_text("\n".join(lines))
    assert sorted(tm.read_text(url(bucket, "a.txt")).to_dict()["line"]) == sorted(lines)
    data = tm.from_dict({"text": lines})
    assert data.write_text(url(bucket, "texts"), compression="zstd") == len(lines)
    assert tm.read_text(url(bucket, "texts")).to_dict() == {"line": lines}
    numbers = tm.from_dict({"a": list(range(200_000)), "b": [0.5] * 200_000})
    assert numbers.write_npy(url(bucket, "arrays")) == 200_000
    assert tm.read_npy(url(bucket, "arrays"), columns=["a", "b"]).to_dict() == numbers.to_dict()
    np.save(bucket / "a.npy", np.arange(6.0).reshape(3, 2))
    assert tm.read_npy(url(bucket, "a.npy")).to_dict() == {"column_1": [0.0, 2.0, 4.0], "column_2": [1.0, 3.0, 5.0]}
    columns = np.asfortranarray(np.arange(300_000.0).reshape(-1, 3))
    np.save(bucket / "f.npy", columns)
    found = tm.read_npy(url(bucket, "f.npy")).collect().to_numpy()
    assert (np.stack(list(found.values()), axis=1) == columns).all()
    with pytest.raises(tm.DataSetError, match=r"there is no object or folder s3://.*none\.npy"):
        tm.read_npy(url(bucket, "none.npy"))


def _records(count: int) -> Any:
    pa = pytest.importorskip("pyarrow")
    keys = [number.to_bytes(4, "big") for number in range(count)]
    values = [bytes([number % 251]) * 8 for number in range(count)]
    return pa.table({"key": pa.array(keys, pa.binary(4)), "value": pa.array(values, pa.binary(8))})


def test_globs_folders_hidden_and_compressed_objects(bucket: Path) -> None:
    names = ["a.csv", "b [1] %20 ü.csv", "deep/c.csv", ".hidden.csv", "_log/d.csv", "deep/_part.csv"]
    for value, name in enumerate(names):
        (bucket / "in" / name).parent.mkdir(exist_ok=True, parents=True)
        (bucket / "in" / name).write_text(f"x\n{value}\n")
    assert rows(tm.read_csv(url(bucket, "in"))) == [(0,), (1,), (2,)]
    assert rows(tm.read_csv(url(bucket, "in/*.csv"))) == [(0,), (1,)]
    assert rows(tm.read_csv(url(bucket, "in/d*"))) == [(2,)]
    assert rows(tm.read_csv([url(bucket, "in/a.csv"), url(bucket, "in/b [1] %20 ü.csv")])) == [(0,), (1,)]
    assert rows(tm.read_csv(url(bucket, ""), schema={"x": "int64"})) == [(0,), (1,), (2,)]
    (bucket / "z.csv.gz").write_bytes(gzip.compress(b"x\n7\n"))
    assert rows(tm.read_csv(url(bucket, "z.csv.gz"))) == [(7,)]
    assert rows(tm.sql(f"select x + 1 as y from '{url(bucket, 'in/a.csv')}'")) == [(1,)]
    assert rows(tm.sql(f"select sum(x) as s from '{url(bucket, 'in')}'")) == [(3,)]
    with pytest.raises(tm.DataSetError, match="SQL recognizes files by their names"):
        tm.sql(f"select * from '{_odd(bucket)}'")
    with pytest.raises(tm.DataSetError, match=r"there are no files in s3://.*\*\.json"):
        tm.read_json(url(bucket, "in/*.json"))


def test_columns_of_one_name(bucket: Path) -> None:
    """The second one was read as the first, or not at all."""
    (bucket / "twice.csv").write_text("date,id,close,close\n2024-01-02,a,1,2\n")
    with pytest.raises(tm.DataSetError, match=r's3://.*twice\.csv: two of its columns are named "close"; give each'):
        tm.read_csv(url(bucket, "twice.csv"))
    with pytest.raises(tm.DataSetError, match=r"twice\.csv: two of its columns"):
        series.clean(url(bucket, "twice.csv"))
    schema = dict.fromkeys(("date", "id", "close", "paid"), "str")
    assert rows(tm.read_csv(url(bucket, "twice.csv"), schema=schema)) == [("2024-01-02", "a", "1", "2")]


def _odd(bucket: Path) -> str:
    (bucket / "odd.name").write_text("x\n")
    return url(bucket, "odd.name")


def test_a_thousand_objects(bucket: Path) -> None:
    """A listing comes in pages of a thousand."""
    (bucket / "many").mkdir()
    for number in range(1100):
        (bucket / "many" / f"{number:04}.csv").write_text(f"x\n{number}\n")
    found = tm.read_csv(url(bucket, "many"), schema={"x": "int64"})
    assert found.select(n=tm.count(), s=tm.col("x").sum()).to_dict() == {"n": [1100], "s": [sum(range(1100))]}


def test_what_exists_is_kept_or_replaced(bucket: Path) -> None:
    data = tm.from_dict(DATA)
    data.write_csv(url(bucket, "out"))
    before = objects(bucket)
    with pytest.raises(tm.DataSetError, match=r"s3://.*/out exists; overwrite=True replaces it"):
        data.write_csv(url(bucket, "out"))
    with pytest.raises(tm.DataSetError, match="Cannot cast"):
        data.select(tm.col("s").cast("int64")).write_csv(url(bucket, "out"), overwrite=True)
    assert objects(bucket) == before
    assert data.select("n").write_csv(url(bucket, "out"), overwrite=True) == 4
    assert tm.read_csv(url(bucket, "out")).columns == ["n"]
    assert not set(before) & set(objects(bucket)) - {"out/_SUCCESS"}
    with pytest.raises(tm.DataSetError, match="name a folder in it"):
        data.write_csv(url(bucket))


def test_what_a_dead_writer_left_is_refused(bucket: Path) -> None:
    """Objects appear one by one at the end of a write; if it dies there, nobody may take them for the complete output."""
    data = tm.from_dict(DATA)
    data.write_csv(url(bucket, "out"))
    (bucket / "out" / "_SUCCESS").unlink()
    (bucket / "out" / "_unfinished").write_text("id")
    for path in ["out", "out/", "out/*.csv"]:
        with pytest.raises(tm.DataSetError, match=r"is incomplete.*overwrite=True, or remove s3://.*/out/_unfinished"):
            tm.read_csv(url(bucket, path))
    assert data.write_csv(url(bucket, "out"), overwrite=True) == 4
    assert rows(tm.read_csv(url(bucket, "out"))) == rows(data)


def test_much_output_goes_in_parts(bucket: Path, server: object_server.Server) -> None:
    data = tm.from_dict({"x": list(range(300_000))}).with_columns(s=tm.col("x").cast("str").str.pad_start(90))
    assert data.write_csv(url(bucket, "out")) == 300_000
    assert tm.read_csv(url(bucket, "out")).select(tm.col("x").sum()).to_dict() == {"x": [sum(range(300_000))]}
    assert server.uploads() == 0


def test_what_goes_wrong_is_named(bucket: Path, server: object_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tm.from_dict(DATA)
    (bucket / "a.csv").write_text("x\n1\n")
    with pytest.raises(tm.DataSetError, match=r"s3://nowhere/a\.csv: there is no such bucket"):
        tm.read_csv("s3://nowhere/a.csv")
    with pytest.raises(tm.DataSetError, match="s3://nowhere/out"):
        data.write_csv("s3://nowhere/out")
    wrong = {"aws_secret_access_key": "wrong"}
    for act in [
        lambda: tm.read_csv(url(bucket, "a.csv"), storage_options=wrong),
        lambda: tm.read_csv(url(bucket, "*.csv"), storage_options=wrong),
        lambda: data.write_csv(url(bucket, "out"), storage_options=wrong),
    ]:
        with pytest.raises(tm.DataSetError, match=rf"{url(bucket)}.*: access denied; check the credentials"):
            act()
    with pytest.raises(tm.DataSetError, match='s3://x has no storage option "aws_reigon"'):
        tm.read_csv("s3://x/a", storage_options={"aws_reigon": "y"})
    with pytest.raises(tm.DataSetError, match="s4://x/a: no store has such a URL; use s3://"):
        tm.read_csv("s4://x/a")
    with pytest.raises(tm.DataSetError, match="files can only be read over HTTP"):
        data.write_csv("http://127.0.0.1:1/out")
    # Options take precedence over the environment, and a store is not reused with other options.
    for name in server.env:
        monkeypatch.delenv(name)
    options: dict[str, Any] = {**server.env, "AWS_ALLOW_HTTP": True}
    assert rows(tm.read_csv(url(bucket, "a.csv"), storage_options=options)) == [(1,)]
    assert data.write_csv(url(bucket, "with options"), storage_options=options) == 4
    (bucket / "a.csv").write_text("x\n1\ny\n")
    with pytest.raises(tm.DataSetError, match=rf"reading {url(bucket)}a\.csv: .*'y'"):
        tm.read_csv(url(bucket, "a.csv"), storage_options=options, infer_rows=1).collect()


def test_checkpoints(bucket: Path) -> None:
    made = []

    def seen(table: Any) -> Any:
        made.append(len(table))
        return table

    data = tm.from_dict(DATA).map_batches(seen, schema={"n": "int64", "s": "str"})
    for _ in range(2):
        assert rows(data.materialize(url(bucket, "point"))) == rows(tm.from_dict(DATA))
    assert sum(made) == 4


POINT = """
import os, sys
from pathlib import Path
import tidemill as tm

job, url, calls = tm.init(), sys.argv[1], Path(sys.argv[2])

def seen(table):
    with (calls / f"called.{job.rank}").open("a") as file:
        file.write("x")
    return table

data = tm.from_dict({"x": list(range(40_000))}).map_batches(seen, schema={"x": "int64"})
if job.rank == 0:
    (calls / "worker.pid").write_text(f"{os.getpid()}\\n")
try:
    kept = data.materialize(url)
except tm.DataSetError as error:
    print(error)
else:
    assert kept.select(tm.col("x").sum()).to_dict() == {"x": [sum(range(40_000))]}
    print("done")
"""


class Gate:
    """A proxy for the server that passes all requests, except that requests to complete uploads wait after the first."""

    def __init__(self, server: object_server.Server) -> None:
        self.has_held, self.may_go_on = threading.Event(), threading.Event()
        self._port = server.port
        self._let_through = threading.Semaphore(1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.env = {**server.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._listener.getsockname()[1]}"}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # A killed client resets its connections.
        with (
            contextlib.suppress(ConnectionError),
            client,
            socket.create_connection(("127.0.0.1", self._port)) as upstream,
        ):
            threading.Thread(target=self._hand_back, args=(upstream, client), daemon=True).start()
            while data := client.recv(1 << 16):
                if re.match(rb"POST \S+[?&]uploadId=", data) and not self._let_through.acquire(blocking=False):
                    self.has_held.set()
                    self.may_go_on.wait()
                upstream.sendall(data)

    @staticmethod
    def _hand_back(upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(1 << 16):
                client.sendall(data)


@pytest.fixture
def point(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(POINT)
    return tmp_path


def killed_while_it_appears(bucket: Path, server: object_server.Server, point: Path) -> None:
    """Leave the part of a checkpoint that remains when a job's worker 0 is killed once the first object has appeared."""
    gate = Gate(server)
    job = launched.start("run", "-n", "2", point / "app.py", url(bucket, "point"), point, env=gate.env)
    try:
        assert gate.has_held.wait(launched.PATIENCE_S)
        launched.wait_until(lambda: len(objects(bucket)) > 1, "the first object")
        os.kill(launched.pids_in(point, 1)[0], signal.SIGKILL)
        assert job.wait(launched.PATIENCE_S) != 0
    finally:
        job.kill()
        job.communicate()
    names = objects(bucket)
    assert len(names) == 2 and "point/_unfinished" in names, names
    # A store's own rules remove these eventually.
    for left in server.root.glob(".upload*"):
        left.unlink()
    for file in point.glob("called.*"):
        file.unlink()


def calls(point: Path) -> int:
    return sum(len(file.read_text()) for file in point.glob("called.*"))


def test_a_checkpoint_whose_writer_was_killed_is_made_anew(
    bucket: Path, server: object_server.Server, point: Path
) -> None:
    """Every later start failed; and half a checkpoint must never be taken for the whole."""
    killed_while_it_appears(bucket, server, point)
    for again in (False, True):
        result = launched.run(
            "run", "-n", "2", "--no-prefix", point / "app.py", url(bucket, "point"), point, env=server.env
        )
        assert result.stdout == b"done\n" * 2, result.stderr.decode()
        assert "point/_SUCCESS" in objects(bucket) and "point/_unfinished" not in objects(bucket)
        if not again:
            assert b"output is appearing" not in result.stderr, (
                "of a process of this machine it is known that it is gone"
            )
            made = calls(point)
            assert made > 0
    assert calls(point) == made


def test_a_checkpoint_whose_writer_died_elsewhere(bucket: Path, server: object_server.Server, point: Path) -> None:
    """The state of another machine is unknown: the checkpoint is created again once nothing has changed for longer than
    a writer would take.
    """
    killed_while_it_appears(bucket, server, point)
    (bucket / "point" / "_unfinished").write_text("of another version, or machine")
    began = time.monotonic()
    result = launched.run(
        "run", "-n", "2", "--no-prefix", point / "app.py", url(bucket, "point"), point, env=server.env
    )
    assert result.stdout == b"done\n" * 2, result.stderr.decode()
    assert time.monotonic() - began > 14
    assert f"output is appearing in {url(bucket, 'point')}, or was when its writer died" in result.stderr.decode()


def test_a_checkpoint_whose_writer_lives_is_waited_for(bucket: Path, server: object_server.Server, point: Path) -> None:
    """A job that is slow to complete its checkpoint must not lose it to the next one, however long it takes."""
    gate = Gate(server)
    first = launched.start("run", "-n", "2", "--no-prefix", point / "app.py", url(bucket, "point"), point, env=gate.env)
    second = None
    try:
        assert gate.has_held.wait(launched.PATIENCE_S)
        made = calls(point)
        second = launched.start(
            "run", "-n", "2", "--no-prefix", point / "app.py", url(bucket, "point"), point, env=server.env
        )
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(20)
        gate.may_go_on.set()
        for job in (first, second):
            said, err = job.communicate(timeout=launched.PATIENCE_S)
            assert (job.returncode, said) == (0, b"done\n" * 2), err.decode()
        assert calls(point) == made > 0, "the second reads what the first has made"
    finally:
        for job in filter(None, (first, second)):
            job.kill()
            job.communicate()


def test_a_checkpoint_that_cannot_be_looked_at_is_not_taken_for_none(
    bucket: Path, server: object_server.Server, point: Path
) -> None:
    """It was created again, which took as long as the first time, and then was an error of worker 0 alone."""
    args = ["run", "-n", "2", "--no-prefix", point / "app.py", url(bucket, "point"), point]
    assert launched.run(*args, env=server.env).stdout == b"done\n" * 2
    made = calls(point)
    denied = launched.run(*args, env={**server.env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    lines = denied.stdout.decode().splitlines()
    assert len(lines) == 2 and lines[0] == lines[1], denied.stderr.decode()
    assert "access denied; check the credentials" in lines[0]
    assert calls(point) == made


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Python's server with range requests, which every web server but this one supports."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        path = Path(self.translate_path(self.path))
        if not asked or not path.is_file():
            return super().do_GET()
        data = path.read_bytes()
        first, last = (int(word) if word else None for word in asked.split("-"))
        start = len(data) - (last or 0) if first is None else first
        end = len(data) - 1 if first is None or last is None else min(last, len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.send_header("Content-Length", str(end + 1 - start))
        self.end_headers()
        self.wfile.write(data[start : end + 1])
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests out of the tests' output."""


def test_http_file_and_memory_urls(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("x\n1\n2\n")
    handler = functools.partial(RangeHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        assert rows(tm.read_text(f"{base}/a%20b.csv")) == [("1",), ("2",), ("x",)]
        with pytest.raises(tm.DataSetError, match=r"http://127\.0\.0\.1:\d+/none"):
            tm.read_csv(f"{base}/none")
        # Rows from their offset on, columns in ranges of their own.
        for order in "CF":
            array = np.asarray(np.arange(300_000.0).reshape(-1, 3), order=order)
            np.save(tmp_path / "a.npy", array)
            found = tm.read_npy(f"{base}/a.npy").collect().to_numpy()
            assert (np.stack(list(found.values()), axis=1) == array).all(), order
        (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
        with pytest.raises(tm.DataSetError, match=r"http://127\.0\.0\.1:\d+/a\.npy cannot be read .* it is truncated"):
            tm.read_npy(f"{base}/a.npy")
        server.shutdown()
    assert rows(tm.read_csv(f"file://{tmp_path}/a%20b.csv")) == [(1,), (2,)]
    assert rows(tm.read_csv(f"file://{tmp_path}/*.csv")) == [(1,), (2,)]
    assert tm.from_dict(DATA).write_parquet(f"file://{tmp_path}/out") == 4
    assert tm.read_parquet(tmp_path / "out").count() == 4
    assert tm.from_dict(DATA).write_parquet("memory:///out") == 4
    assert rows(tm.read_parquet("memory:///out")) == rows(tm.from_dict(DATA))


SEVERAL = """
import sys
import numpy as np
import tidemill as tm

job, base = tm.init(), sys.argv[1]
data = tm.from_dict({"x": list(range(100_000))}).with_columns(k=tm.col("x") % 10, s=tm.col("x").cast("str"))
total = {"n": [100_000], "s": [sum(range(100_000))]}
for form in ["csv", "json", "parquet", "ipc"]:
    assert getattr(data, f"write_{form}")(f"{base}/{form}") == 100_000
    back = getattr(tm, f"read_{form}")(f"{base}/{form}")
    assert back.select(n=tm.count(), s=tm.col("x").sum()).to_dict() == total, form
assert data.write_parquet(f"{base}/parts", partition_by=["k"]) == 100_000
assert tm.read_parquet(f"{base}/parts").group_by("k").agg(n=tm.count()).sort("k").to_dict()["n"] == [10_000] * 10
assert data.sort("x", descending=True).write_csv(f"{base}/sorted") == 100_000
assert tm.read_csv(f"{base}/sorted").count() == 100_000
assert data.filter(tm.col("x") < 0).write_parquet(f"{base}/none") == 0
assert tm.read_parquet(f"{base}/none").columns == ["x", "k", "s"]
assert tm.read_text(f"{base}/csv").count() >= 100_001
assert tm.sql(f"select sum(x) as s from '{base}/parquet'").to_dict() == {"s": [sum(range(100_000))]}
errors = []
for wrong in [
    lambda: data.write_parquet(f"{base}/parquet"),
    lambda: data.write_parquet("s3://nowhere/out"),
    lambda: data.select(tm.col("x") // (tm.col("x") - 99_999)).write_csv(f"{base}/no"),
    lambda: tm.read_csv(f"{base}/nothing"),
    lambda: tm.read_csv(f"{base}/csv", storage_options={"aws_secret_access_key": "wrong"}),
]:
    try:
        wrong()
    except tm.DataSetError as error:
        errors.append(str(error))
assert len(errors) == 5, errors
assert data.limit(5).write_json(f"{base}/csv", overwrite=True) == 5
assert tm.read_json(f"{base}/csv").count() == 5
if job.rank == 0:
    print("\\n".join(error.splitlines()[0] for error in errors))
"""


@pytest.mark.parametrize("size", [1, 3])
def test_several_workers(bucket: Path, server: object_server.Server, tmp_path: Path, size: int) -> None:
    app = tmp_path / "app.py"
    app.write_text(SEVERAL)
    result = launched.run("run", "-n", str(size), app, url(bucket, "base"), env=server.env)
    assert result.returncode == 0, result.stderr.decode()
    exists, nowhere, zero, nothing, denied = (line.removeprefix("[0] ") for line in result.stdout.decode().splitlines())
    assert "exists; overwrite=True replaces it" in exists
    assert "s3://nowhere/out" in nowhere and "bucket" in nowhere
    assert "ivide by zero" in zero
    assert "there is no object or folder" in nothing
    assert "access denied" in denied
    assert server.uploads() == 0
    assert not list((bucket / "base").glob("no/*"))


KILLED = """
import os, time
from pathlib import Path
import tidemill as tm

job = tm.init()
text = "x" * 1000
def slow(table):
    if job.rank == 1:
        Path(f"{job.rank}.pid").write_text(f"{os.getpid()}\\n")
        time.sleep(3600)
    return table
data = tm.from_dict({"x": list(range(120_000))}).with_columns(s=tm.lit(text)).map_batches(
    slow, schema={"x": "int64", "s": "str"})
try:
    data.write_csv("s3://BUCKET/out")
except tm.WorkerLost as error:
    print("lost", error.rank)
"""


def test_a_worker_killed_in_mid_write_leaves_nothing(
    bucket: Path, server: object_server.Server, tmp_path: Path
) -> None:
    with workers.Job(tmp_path, 3, KILLED.replace("BUCKET", bucket.name), server.env) as job:
        launched.pids_in(tmp_path, 1)
        launched.wait_until(lambda: server.uploads() >= 2, "uploads of the two others")
        job.workers[1].kill()
        results = job.finish()
    for rank, (code, out, err) in enumerate(results):
        if rank != 1:
            assert (code, out) == (0, "lost 1\n"), err
    assert objects(bucket) == []
    assert server.uploads() == 0, "the others have taken theirs back"
