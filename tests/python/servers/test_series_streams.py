"""Panels that streams grow: tables, files, a real Redis, Kafka and WebSocket, on one and two workers, stopped and
restarted.
"""

from __future__ import annotations

import json
import queue
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pytest
import tidemill as tm
import websockets.sync.server
from local_servers import Kafka, Redis
from tidemill import series
from tidemill.apps._arriving import from_url
from tidemill.viz import FrameError, FrameReader

IDS = 8


def day(number: int) -> str:
    return str(np.busday_offset("2024-01-01", number, roll="forward"))


def rows(numbers: range, seed: int = 0) -> list[dict[str, Any]]:
    """The rows of some days; any range gives the same rows."""
    rng = np.random.default_rng(seed)
    price = np.round(50 * np.exp(np.cumsum(rng.normal(scale=0.02, size=(200, IDS)), axis=0)), 4)
    return [
        {"time": f"{day(n)}T00:00:00", "id": f"s{one}", "value": float(price[n, one]), "volume": 100.0 + n}
        for n in numbers
        for one in range(IDS)
    ]


def table(rows: list[dict[str, Any]]) -> tm.Table:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return tm.from_dict(columns).with_columns(time=tm.col("time").cast("timestamp[us]")).collect()


def all_of(stream: tm.DataSet, **options: Any) -> tuple[series.Panel, series.Report]:
    """What was followed by the end of the stream."""
    with series.Follower(stream, poll_interval=0.001, **options) as follower:
        launched.wait_until(lambda: (follower.poll() and False) or follower.ended, "the end of the stream")
    assert follower.panel is not None and follower.report is not None
    return follower.panel, follower.report


def test_the_panel_is_that_of_the_table() -> None:
    """From several splits, read at different speeds: a day is over when all have reached it, not when one has moved on."""
    told = rows(range(40))
    told[100]["id"], told[101]["id"], told[105]["value"] = None, " ", -told[105]["value"]
    told.append({**told[-1], "value": 7.0})
    told += [{**told[50], "time": None}, {**told[60], "time": None}]
    whole = table(told)
    panel, report = all_of(tm.stream.from_table(whole, time="time", rows_per_batch=5))
    expected, batch = series.clean(tm.from_arrow(whole))
    np.testing.assert_array_equal(panel.values, expected.values)
    np.testing.assert_array_equal(panel.caps, expected.caps)  # type: ignore[arg-type]
    assert panel.ids.tolist() == expected.ids.tolist()
    assert panel.times.tolist() == expected.times.tolist()
    assert (report.rows, report.counts) == (batch.rows, batch.counts)
    assert report.counts["without_key"] == 4
    assert report.counts["duplicates"] == 1


def test_steps_before_it_and_columns_that_are_named() -> None:
    """A query before it, dates as times, whole numbers as values."""
    told = tm.from_arrow(table(rows(range(5)))).with_columns(
        on=tm.col("time").cast("date32"), cents=(tm.col("value") * 100).cast("int64")
    )
    stream = tm.stream.from_table(told.drop("time", "value").collect(), time="on").filter(tm.col("id") != "s3")
    panel, report = all_of(stream, columns={"time": "on", "value": "cents"})
    assert panel.values.shape == (5, IDS - 1)
    assert report.columns == {"id": "id", "time": "on", "value": "cents", "volume": "volume"}


def test_what_cannot_be_followed(tmp_path: Path) -> None:
    told = table(rows(range(3)))
    with pytest.raises(series.SeriesError, match="no column is named like a value"):
        series.Follower(tm.stream.from_table(told, time="time").drop("value"))
    with pytest.raises(series.SeriesError, match="'volume' is Float64: cast it"):
        series.Follower(tm.stream.from_table(told, time="time"), columns={"time": "volume", "volume": None})
    (tmp_path / "rows.json").write_text('{"time": "2024-01-02T00:00:00", "id": "a", "value": "cheap"}\n')
    stream = tm.stream.from_files(tmp_path, {"time": "timestamp[us]", "id": "str", "value": "float64"}, time="time")
    with pytest.raises(series.SeriesError, match=r"the stream failed: .*rows\.json"):
        all_of(stream)


def test_a_file_that_grows_and_closing_it(tmp_path: Path) -> None:
    """The last day is over when nothing more arrives; closing ends the thread that reads."""
    path = tmp_path / "rows.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(range(3))))
    schema = {"time": "timestamp[us]", "id": "str", "value": "float64", "volume": "float64"}
    with series.Follower(tm.stream.from_files(path, schema, time="time"), settle=0.1, poll_interval=0.01) as follower:

        def grown(days: int) -> Callable[[], bool]:
            def look() -> bool:
                follower.poll()
                return follower.panel is not None and len(follower.panel.times) == days

            return look

        launched.wait_until(grown(3), "three days")
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows(range(3, 5)))
        launched.wait_until(grown(5), "five days")
        assert any(thread.name == "tidemill-series-stream" for thread in threading.enumerate())
        # Rows for days that are over: once because nothing arrived any more, and once by the stream's time.
        with path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in [*rows(range(4, 6))[1:], *rows(range(1))[:2]])
        late = IDS - 1 + 2
        launched.wait_until(lambda: grown(6)() and follower.report.counts["late"] == late, "late rows")  # type: ignore[union-attr]
        assert follower.panel is not None and follower.panel.values[0, 0] == rows(range(1))[0]["value"]
    assert not any(thread.name == "tidemill-series-stream" for thread in threading.enumerate())


#: Adds the rows of some days to a stream.
Add = Callable[[range], None]


def in_redis(server: Redis, key: str) -> tuple[str, Add]:
    """A stream in Redis: the URL to follow, and a function that adds to it."""

    def add(numbers: range) -> None:
        with server.client().pipeline() as pipeline:
            for row in rows(numbers):
                pipeline.xadd(key, row)
            pipeline.execute()

    return f"{server.url}?streams={key}", add


def in_kafka(server: Kafka, topic: str) -> tuple[str, Add]:
    """The same for Kafka, with half of the ids in each of two partitions: a day is over when both have moved on."""
    server.create_topic(topic, 2)

    def add(numbers: range) -> None:
        for partition in (0, 1):
            told = [json.dumps(row) for row in rows(numbers) if int(row["id"][1:]) % 2 == partition]
            server.produce(topic, told, partition=partition)

    return f"kafka://{server.bootstrap}/{topic}", add


@contextmanager
def websocket() -> Iterator[tuple[str, Add]]:
    """A server that sends to whoever connects first."""
    coming: queue.Queue[str | None] = queue.Queue()

    def talk(connection: websockets.sync.server.ServerConnection) -> None:
        for message in iter(coming.get, None):
            connection.send(message)

    def add(numbers: range) -> None:
        for row in rows(numbers):
            coming.put(json.dumps(row))

    with websockets.sync.server.serve(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/prices", add
        coming.put(None)
        server.shutdown()
        thread.join(launched.PATIENCE_S)


def frames_in(folder: Path) -> int:
    try:
        return len(FrameReader(folder))
    except FrameError:
        return 0


def following(url: str, out: Path, workers: int, *more: str | Path) -> subprocess.Popen[bytes]:
    """Follow a stream whose days are over when a later one has come to all its parts, and not before."""
    return launched.start(
        "series", "-n", str(workers), "--no-prefix", url, "--follow", "--settle", "3600", "--out", out,
        "--window", "20d", "--shift", "2d", "--volume", "volume", *more,
    )  # fmt: skip


def wait_for_frames(running: subprocess.Popen[bytes], out: Path, count: int, what: str) -> None:
    """Wait for so many frames; a job that ends before it is stopped fails the test with what it printed."""
    launched.wait_until(lambda: frames_in(out) == count or running.poll() is not None, what)
    if running.poll() is not None:
        _, errors = running.communicate()
        pytest.fail(f"the job ended with {running.returncode} before {what}:\n{errors.decode()}")


def followed(running: subprocess.Popen[bytes], out: Path, add: Add, how: int = signal.SIGINT) -> None:
    """The first 30 days become six frames, two days that arrive later one more; then it is stopped."""
    add(range(31))
    wait_for_frames(running, out, 6, "the frames of what there was")
    add(range(31, 33))
    wait_for_frames(running, out, 7, "the frame of what has come")
    ended(running, how)


def ended(running: subprocess.Popen[bytes], how: int = signal.SIGINT) -> str:
    running.send_signal(how)
    printed, errors = running.communicate(timeout=launched.PATIENCE_S)
    if how == signal.SIGINT:
        # On a busy machine a run lasts long enough for a checkpoint, and the next one says so; or the next checkpoint
        # is late, which is only a notice.
        usual = re.compile(" resumes from checkpoint |checkpoint.*, and one is due every ")
        unexpected = [line for line in errors.decode().splitlines() if not usual.search(line)]
        assert (running.returncode, unexpected) == (0, []), errors.decode()
    return printed.decode()


def same_as_a_batch(out: Path, days: int, frames: int) -> None:
    """Check that the frames are, to the bit, those of a file with the rows of so many days."""
    path, whole = out.with_name("prices.csv"), out.with_name("whole")
    told = "".join(",".join(map(str, row.values())) + "\n" for row in rows(range(days)))
    path.write_text("time,id,value,volume\n" + told)
    done = launched.run("series", path, "--window", "20d", "--shift", "2d", "--out", whole)
    assert done.returncode == 0, done.stderr
    assert frames_in(out) == len(list(whole.glob("frame-*"))) == frames
    for file in whole.glob("frame-*"):
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.sampled(1, always=(signal.SIGKILL,))
@pytest.mark.parametrize(
    ("server", "workers", "how"),
    [
        ("redis_server", 1, signal.SIGINT),
        ("redis_server", 2, signal.SIGINT),
        ("redis_server", 1, signal.SIGKILL),
        ("redis_server", 2, signal.SIGKILL),
        ("kafka", 2, signal.SIGKILL),
    ],
)
def test_the_command_follows_a_stream_that_a_server_keeps(
    server: str, workers: int, how: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A new day becomes a frame; a job that was stopped or killed continues after its frames; and they equal those of a
    batch over the same rows.
    """
    there = request.getfixturevalue(server)
    url, add = (in_redis if server == "redis_server" else in_kafka)(there, tmp_path.name)
    out = tmp_path / "out"
    followed(following(url, out, workers), out, add, how)
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("frame-*")}
    assert len(before) == 7
    add(range(33, 37))
    running = following(url, out, workers)
    wait_for_frames(running, out, 9, "the frames of what came meanwhile")
    printed = ended(running)
    assert f"7 frames are there, up to {day(31)}" in printed
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    same_as_a_batch(out, days=36, frames=9)


@pytest.mark.parametrize(
    ("server", "how"), [("redis_server", signal.SIGINT), ("redis_server", signal.SIGKILL), ("kafka", signal.SIGKILL)]
)
def test_a_stream_that_a_server_keeps_is_followed_from_checkpoints(
    server: str, how: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The same, where consumed rows cannot be read again."""
    there = request.getfixturevalue(server)
    url, add = (in_redis if server == "redis_server" else in_kafka)(there, tmp_path.name)
    out = tmp_path / "out"
    saved = tmp_path / "checkpoints"
    followed(following(url, out, 2, "--checkpoint", saved), out, add, how)
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("frame-*")}
    assert len(before) == 7
    add(range(33, 37))
    running = following(url, out, 2, "--checkpoint", saved)
    wait_for_frames(running, out, 9, "the frames of what came meanwhile")
    ended(running)
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    same_as_a_batch(out, days=36, frames=9)


def test_a_part_of_a_stream_that_is_slow_is_waited_for(redis_server: Redis, tmp_path: Path) -> None:
    """After a second of silence a key stopped holding time back, whatever the configured wait, and its rows were then
    late.
    """
    schema = {"time": "timestamp[us]", "id": "str", "value": "float64"}
    keys = [f"{tmp_path.name}:{part}" for part in (0, 1)]
    stream = from_url(f"{redis_server.url}?streams={','.join(keys)}", schema, "time", settle_s=3600)
    with redis_server.client() as client, series.Follower(stream, settle=3600, poll_interval=0.01) as follower:

        def add(part: int, numbers: range) -> None:
            for row in rows(numbers):
                if int(row["id"][1:]) % 2 == part:
                    client.xadd(keys[part], row)

        def look(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                follower.poll()

        def has(days: int) -> bool:
            follower.poll()
            return follower.panel is not None and len(follower.panel.times) == days

        add(0, range(4))
        add(1, range(4))
        launched.wait_until(lambda: has(3), "three days")
        add(0, range(4, 8))
        look(1.3)
        add(0, range(8, 9))
        look(0.2)
        assert has(3)
        add(1, range(4, 9))
        launched.wait_until(lambda: has(8), "the other days")
        assert follower.report is not None
        assert follower.report.counts["late"] == follower.report.counts["gaps"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_follows_a_websocket(workers: int, tmp_path: Path) -> None:
    """Messages that arrive while it is followed become frames; none of them can be read again."""
    out = tmp_path / "out"
    with websocket() as (url, add):
        followed(following(url, out, workers), out, add)
    same_as_a_batch(out, days=32, frames=7)


def test_lines_that_a_server_sends() -> None:
    """By URL, as the command opens them; its last day is over when nothing more arrives."""
    schema = {"time": "timestamp[us]", "id": "str", "value": "float64"}
    sent = "".join(json.dumps({name: row[name] for name in schema}) + "\n" for row in rows(range(3)))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(sent.encode())
                over.wait(launched.PATIENCE_S)

        over = threading.Event()
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        stream = from_url(f"tcp://127.0.0.1:{server.getsockname()[1]}", schema, "time", settle_s=0.5)
        with series.Follower(stream, settle=0.5, poll_interval=0.01) as follower:

            def look() -> bool:
                follower.poll()
                return follower.panel is not None and len(follower.panel.times) == 3

            launched.wait_until(look, "three days")
            assert follower.panel is not None
            assert follower.panel.values.tolist()[2] == [row["value"] for row in rows(range(3))[2 * IDS :]]
        over.set()
        sending.join(launched.PATIENCE_S)


#: For sources that hand out each row once: why they are not followed, and what to do.
ONCE = (
    "are not followed: what was acknowledged while it was read would be lost when the command is started again. "
    "Have them written to files of a folder, to Kafka or to a stream of Redis, and follow that"
)


def test_records_that_cannot_be_read_are_left_out_if_asked_for() -> None:
    """The message about such a record names the option, and the command refused it for streams."""
    good = rows(range(3))
    lines = [*map(json.dumps, good[:5]), "{oops", *map(json.dumps, good[5:])]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall("".join(line + "\n" for line in lines).encode())
                stop.wait(launched.PATIENCE_S)

        stop = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        schema = {"id": "str", "time": "timestamp[us]", "value": "float64"}
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with series.Follower(from_url(url, schema, "time", 0.2, on_error="skip"), settle=0.2) as follower:

            def whole() -> bool:
                follower.poll()
                return follower.panel is not None and len(follower.panel.times) == 3

            launched.wait_until(whole, "three days")
            stop.set()


def sent(lines: list[dict[str, Any]], out: Path, until: str, *more: str | Path) -> tuple[str, str]:
    """The output and errors of the command that follows a server of these lines, once it has ended or printed a text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall("".join(json.dumps(line) + "\n" for line in lines).encode())
                stop.wait(launched.PATIENCE_S)

        stop = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        running = launched.start(
            "series", "-n", "2", "--no-prefix", f"tcp://127.0.0.1:{server.getsockname()[1]}", "--follow", "--settle", "0.2",
            "--window", "3r", "--shift", "1r", "--out", out, *more,
        )  # fmt: skip
        assert running.stdout is not None
        printed = ""
        while until not in printed and (line := running.stdout.readline().decode()):
            printed += line
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=launched.PATIENCE_S)
        stop.set()
    return printed + rest.decode(), errors.decode()


def renamed(new: dict[str, str], **values: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """The rows of five days with other names, and converted values."""
    told = [{**row, **{name: make(row) for name, make in values.items()}} for row in rows(range(5))]
    return [{new.get(name, name): value for name, value in row.items()} for row in told]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_numbers_are_dates_in_streams_as_in_files(checkpoint: bool, tmp_path: Path) -> None:
    """20240101 was silently taken for twenty seconds after 1970, and seconds since 1970 were misread, too."""
    # With checkpoints, the last day is over only when there is a later one.
    last = 3 if checkpoint else 4
    one, two = (("--checkpoint", tmp_path / name) if checkpoint else () for name in ("one", "two"))
    lines = renamed({}, time=lambda row: int(row["time"][:10].replace("-", "")))
    printed, _ = sent(lines, tmp_path / "out", f"{day(last)}: {IDS} ids", *one)
    assert f"{day(2)}: {IDS} ids" in printed
    lines = renamed({}, time=lambda row: int(np.datetime64(row["time"], "s").astype(int)))
    _, errors = sent(lines, tmp_path / "seconds", "ids", *two)
    assert (
        "times are numbers, which are taken as microseconds since 1970, and so 1970-01-01T00:28:24 is one; write"
        in errors
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("new", "lacks"),
    [
        ({"id": "ticker", "time": "date", "value": "close"}, "id in 'id' and time in 'time' and value in 'value'"),
        ({"value": "close"}, "value in 'value'"),
    ],
)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_stream_whose_fields_have_other_names_says_so(
    checkpoint: bool, new: dict[str, str], lacks: str, tmp_path: Path
) -> None:
    """The command waited for rows without a word."""
    told = f"rows have come so far, all without {lacks}; where a field has another name: --id NAME, --time NAME, --value NAME"
    more = ("--checkpoint", tmp_path / "checkpoints") if checkpoint else ()
    printed, errors = sent(renamed(new), tmp_path / "out", told, *more)
    assert told in printed
    assert "for window" not in errors


def test_ids_may_be_numbers_of_json(tmp_path: Path) -> None:
    printed, _ = sent(renamed({}, id=lambda row: 10000 + int(row["id"][1:])), tmp_path / "out", f"{day(4)}: {IDS} ids")
    assert f"{day(2)}: {IDS} ids" in printed
    assert set(FrameReader(tmp_path / "out").ids) >= {str(10000 + number) for number in range(IDS)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["redis://127.0.0.1:1/0?streams=a"], "is a stream: --follow it"),
        (["redis://me:secret@127.0.0.1:1/0", "--follow"], "'redis://127.0.0.1:1/0' names no stream; one looks like redis://HOST"),
        (["kafka://127.0.0.1:1", "--follow"], "one looks like kafka://HOST:PORT,HOST:PORT/TOPIC"),
        (["tcp://127.0.0.1:port", "--follow"], "one looks like tcp://HOST:PORT"),
        (["ws://127.0.0.1:1/x", "--follow", "--null", "NA"], "are of files, not of streams"),
        (["amqp://me:secret@127.0.0.1/prices", "--follow"], f"amqp://127.0.0.1/prices: messages of RabbitMQ {ONCE}"),
        (["amqps://me:secret@127.0.0.1/prices"], f"amqps://127.0.0.1/prices: messages of RabbitMQ {ONCE}"),
        (["https://127.0.0.1:1/prices", "--follow"], f"messages of a webhook {ONCE}"),
        (["s3://prices/all.csv", "--follow"], "s3://prices/all.csv: only files on this machine's file system can be followed"),
    ],
)  # fmt: skip
def test_urls_that_name_no_stream(arguments: list[str], message: str, tmp_path: Path) -> None:
    """URLs that are not streams, and streams that cannot be followed: the command waited without a word."""
    done = launched.run("series", *arguments, "--out", tmp_path / "out")
    assert done.returncode != 0
    assert message in " ".join(done.stderr.decode().split())
    assert "secret" not in done.stderr.decode()
