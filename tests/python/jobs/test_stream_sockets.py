"""Connections: lines of a server, messages of a WebSocket, posts to our own server."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import hmac
import http.client
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill as tm
from local_servers.server import free_ports

SCHEMA = {"x": "int64"}


@contextlib.contextmanager
def serving(*talks: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve one connection after the other, and close each; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            for talk in talks:
                connection, _ = listener.accept()
                with connection:
                    talk(connection)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(launched.PATIENCE_S)
        assert not thread.is_alive()


def seen(stream: tm.DataSet, **options: Any) -> list[Any]:
    rows: list[Any] = []
    stream.write_stream(lambda table: rows.extend(next(iter(row.values())) for row in table.to_pylist()), **options)
    return rows


def test_lines_of_a_server(tmp_path: Path) -> None:
    """Lines in pieces, empty ones, one that is too long, and a last one without a newline."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(b'{"x": 1}\r\n\n{"x"')
        time.sleep(0.05)
        connection.sendall(b': 2}\nnonsense\n{"x": "' + b"y" * (3 << 20) + b'"}\n{"x": 3}')

    with serving(talk) as port:
        options: Any = {"on_error": "quarantine", "quarantine": tmp_path / "bad"}
        with pytest.warns(tm.BadRowsWarning, match="^2 records .* socket 127.0.0.1:.* line 4: "):
            assert seen(tm.stream.from_socket("127.0.0.1", port, SCHEMA, stop_at_end=True, **options)) == [1, 2, 3]
    (file,) = (tmp_path / "bad").iterdir()
    bad = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(record["line"], record["text"][:8]) for record in bad] == [(4, "nonsense"), (5, '{"x": "y')]


def test_csv_and_text_of_a_server() -> None:
    with serving(lambda connection: connection.sendall(b"1;a\n2;b\n")) as port:
        csv = tm.stream.from_socket(
            "127.0.0.1", port, {"x": "int64", "y": "str"}, format="csv", delimiter=";", stop_at_end=True
        )
        assert seen(csv.select("y")) == ["a", "b"]
    with serving(lambda connection: connection.sendall(b"one\ntwo")) as port:
        assert seen(tm.stream.from_socket("127.0.0.1", port, format="text", stop_at_end=True)) == ["one", "two"]


def test_a_server_that_goes_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The connection is made again, and the user is told that it was lost."""
    rows: list[Any] = []
    with serving(*[lambda connection, x=x: connection.sendall(b'{"x": %d}\n' % x) for x in range(3)]) as port:  # type: ignore[misc]
        stream = tm.stream.from_socket("127.0.0.1", port, SCHEMA)
        stream.write_stream(
            lambda table: rows.extend(row["x"] for row in table.to_pylist()),
            checkpoint=tmp_path / "checkpoints",
            stop_when=lambda: len(rows) == 3,
        )
    assert rows == [0, 1, 2]
    assert "closed by the server; anything it sends before reconnecting is lost" in capfd.readouterr().err


def frame(data: bytes, code: int = 1) -> bytes:
    """A WebSocket frame as servers write it."""
    length = struct.pack("!B", len(data)) if len(data) < 126 else struct.pack("!BH", 126, len(data))
    return bytes([0x80 | code]) + length + data


def shake_hands(connection: socket.socket) -> bytes:
    """Answer the client's handshake; return its request."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    return head


def test_what_a_job_that_goes_on_has_missed(tmp_path: Path) -> None:
    """Nobody sends it again: the job says so, with or without a checkpoint."""
    app = tmp_path / "app.py"
    app.write_text(
        """
import os, pathlib, signal, sys
import tidemill as tm

tm.init()
port, place = sys.argv[1:]

def take(rows):
    saved = place and any(file.name.isdigit() for file in pathlib.Path(place, "epochs").glob("*"))
    if os.environ["TIDEMILL_RESTART"] == "0" and (saved or not place):
        os.kill(os.getpid(), signal.SIGKILL)

options = {"checkpoint": tm.stream.Checkpoint(place, interval="20ms")} if place else {}
tm.stream.from_socket("127.0.0.1", int(port), {"x": "int64"}, stop_at_end=True).write_stream(take, **options)
"""
    )

    def talk(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b'{"x": 1}\n')
                time.sleep(0.01)

    def end(connection: socket.socket) -> None:
        connection.sendall(b'{"x": 2}\n')

    cases = {
        "": "received before the job was restarted are lost",
        str(tmp_path / "c"): "received after the checkpoint from which the job resumes are lost",
    }
    for place, lost in cases.items():
        with serving(talk, end) as port:
            job = launched.run("run", "-n", "1", "--restarts", "1", str(app), str(port), place)
        assert job.returncode == 0 and f"socket 127.0.0.1:{port}: data {lost}" in job.stderr.decode(), (
            job.stderr.decode()
        )


def test_messages_of_a_websocket() -> None:
    """Texts, bytes and pings; the messages to send first; and messages that are not rows."""
    heard: list[bytes] = []

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        _, length = connection.recv(2, socket.MSG_WAITALL)
        mask = connection.recv(4, socket.MSG_WAITALL)
        masked = connection.recv(length & 0x7F, socket.MSG_WAITALL)
        heard.append(bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked)))
        connection.sendall(frame(b'{"x": 1}') + frame(b"are you there", 9) + frame(b'{"x": 2}', 2) + frame(b"no"))
        assert connection.recv(1)[0] & 0xF == 10  # the answer to the ping
        connection.sendall(frame(b"", 8))
        while connection.recv(100):
            pass

    with serving(talk) as port:
        stream = tm.stream.from_websocket(
            f"ws://127.0.0.1:{port}/feed?token=swordfish", SCHEMA, send="all", stop_at_end=True, on_error="skip"
        )
        with pytest.warns(tm.BadRowsWarning, match="^1 record .* message 3: ") as warned:
            assert seen(stream) == [1, 2]
    assert heard == [b"all"] and "swordfish" not in str(warned[0].message)


def test_dead_letters_of_a_websocket(tmp_path: Path) -> None:
    """Messages that are not rows reach a sink with their number among all messages, in the right order; good ones stay
    where they were.
    """

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        connection.sendall(frame(b"no") + frame(b'{"x": 1}') + frame(b"\xff\x00", 2) + frame(b'{"x": 2}'))
        time.sleep(0.1)
        connection.sendall(frame(b"") + frame(b"", 8))
        while connection.recv(100):
            pass

    dead: list[dict[str, Any]] = []
    with serving(talk) as port:
        stream = tm.stream.from_websocket(
            f"ws://127.0.0.1:{port}/feed?token=swordfish",
            SCHEMA,
            stop_at_end=True,
            on_error="quarantine",
            quarantine=lambda table: dead.extend(table.to_pylist()),
        )
        with pytest.warns(tm.BadRowsWarning, match="^3 records .* message 1: "):
            assert seen(stream, checkpoint=tmp_path) == [1, 2]
    places = [json.loads(row["place"]) for row in dead]
    assert [(place["message"], row["value"]) for place, row in zip(places, dead, strict=True)] == [
        (1, b"no"),
        (3, b"\xff\x00"),
        (5, b""),
    ]
    assert {row["source"] for row in dead} == {place["address"] for place in places}
    assert f"127.0.0.1:{port}" in dead[0]["source"] and "swordfish" not in str(dead)
    unknown = ("partition", "offset", "timestamp", "key", "headers")
    assert all(row[name] is None for row in dead for name in unknown) and all(row["reason"] for row in dead)


def test_bytes_of_a_websocket() -> None:
    """Each message is a row as it is, text or not, even an empty one."""

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        connection.sendall(frame(b"\xff\x00", 2) + frame(b"text") + frame(b"", 2) + frame(b"", 8))
        while connection.recv(100):
            pass

    with serving(talk) as port:
        raw = tm.stream.from_websocket(f"ws://127.0.0.1:{port}/", format="raw", stop_at_end=True)
        assert seen(raw) == [b"\xff\x00", b"text", b""]
    with serving(talk) as port:
        named = {"message": "binary"}
        raw = tm.stream.from_websocket(f"ws://127.0.0.1:{port}/", named, format="raw", stop_at_end=True)
        assert raw.columns == ["message"]
        assert seen(raw) == [b"\xff\x00", b"text", b""]
    with pytest.raises(tm.DataSetError, match="raw has one column, of bytes: omit the schema, or use that one"):
        tm.stream.from_websocket("ws://127.0.0.1:1/", SCHEMA, format="raw")


def test_headers_of_a_websocket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that authenticates its clients gets what the program or the environment says, and nobody else does."""
    asked: list[dict[str, str]] = []

    def talk(connection: socket.socket) -> None:
        head = shake_hands(connection).decode().splitlines()[1:]
        asked.append({name.lower(): value for name, _, value in (line.partition(": ") for line in head if line)})
        connection.sendall(frame(b'{"x": 1}') + frame(b"", 8))
        while connection.recv(100):
            pass

    def refuse(connection: socket.socket) -> None:
        while not connection.recv(4096).endswith(b"\r\n\r\n"):
            pass
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    given = ({"X-Api-Key": "swordfish", "Host": "feed.example"}, None, {"authorization": "Basic c3dvcmRmaXNo"})
    for headers, token in zip(given, (None, "perch", "perch"), strict=True):
        if token:
            monkeypatch.setenv("TIDEMILL_WEBSOCKET_TOKEN", token)
        with serving(talk) as port:
            url = f"ws://127.0.0.1:{port}/"
            assert seen(tm.stream.from_websocket(url, SCHEMA, headers=headers, stop_at_end=True)) == [1]
    assert (asked[0]["x-api-key"], asked[0]["host"]) == ("swordfish", "feed.example")
    assert [head.get("authorization") for head in asked] == [None, "Bearer perch", "Basic c3dvcmRmaXNo"]
    with serving(refuse) as port, pytest.raises(tm.DataSetError, match="401") as error:
        seen(tm.stream.from_websocket(f"ws://127.0.0.1:{port}/", SCHEMA, headers=given[0]))
    assert "swordfish" not in str(error.value) and "perch" not in str(error.value)
    for name, value in (("two words", "swordfish"), ("x", "sword\nfish"), ("Sec-WebSocket-Key", "swordfish")):
        with pytest.raises(tm.DataSetError, match="`headers`: ") as error:
            tm.stream.from_websocket("ws://127.0.0.1:1/", SCHEMA, headers={name: value})
        assert "swordfish" not in str(error.value) and name in str(error.value)


def test_messages_that_are_too_long() -> None:
    """The program sets how long a message or a line may be."""
    long = b'{"x": 1, "more": "' + b"y" * (2 << 20) + b'"}'

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        connection.sendall(bytes([0x82, 127]) + struct.pack("!Q", len(long)) + long + frame(b"", 8))
        while connection.recv(100):
            pass

    with serving(talk) as port:
        stream = tm.stream.from_websocket(
            f"ws://127.0.0.1:{port}/", SCHEMA, message_bytes_max=4 << 20, stop_at_end=True
        )
        assert seen(stream) == [1]
    with serving(lambda connection: connection.sendall(long + b"\n")) as port:
        stream = tm.stream.from_socket("127.0.0.1", port, SCHEMA, line_bytes_max=4 << 20, stop_at_end=True)
        assert seen(stream) == [1]


def test_a_websocket_server_that_restarts(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither a proxy's answers meanwhile nor a cut handshake ends a job; a persistent refusal does."""

    def refuse(status: bytes, connection: socket.socket) -> None:
        while not connection.recv(4096).endswith(b"\r\n\r\n"):
            pass
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    def cut(begun: bytes, connection: socket.socket) -> None:
        while not connection.recv(4096).endswith(b"\r\n\r\n"):
            pass
        connection.sendall(begun)

    def talk(connection: socket.socket) -> None:
        shake_hands(connection)
        connection.sendall(frame(b'{"x": 1}') + frame(b"", 8))
        while connection.recv(100):
            pass

    talks = [
        partial(refuse, b"503 Service Unavailable"),
        partial(cut, b""),
        partial(cut, b"HTTP/1.1 101 Switching"),
        talk,
    ]
    with serving(*talks) as port:
        assert seen(tm.stream.from_websocket(f"ws://127.0.0.1:{port}/", SCHEMA, stop_at_end=True)) == [1]
    told = capfd.readouterr().err
    assert told.count("anything it sends before reconnecting is lost") == 1 and "503 Service Unavailable" in told
    with (
        serving(partial(refuse, b"404 Not Found")) as port,
        pytest.raises(tm.DataSetError, match=f"websocket 127.0.0.1:{port}: .*404"),
    ):
        seen(tm.stream.from_websocket(f"ws://127.0.0.1:{port}/", SCHEMA, stop_at_end=True))


def post(
    port: int, body: bytes, path: str = "/rows", method: str = "POST", **headers: str
) -> tuple[int, str, str | None]:
    """Post; return status, text and Retry-After."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=launched.PATIENCE_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode(), response.getheader("Retry-After")
    finally:
        connection.close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_posts(tmp_path: Path) -> None:
    """Every answer says what became of the rows."""
    (port,) = free_ports(1)
    rows: list[int] = []
    answers: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        launched.wait_until(lambda: listens(port), "the server")
        for body in (b'{"x": 1}', b'{"x": 2}\n{"x": 3}', b'[{"x": 4}, {"x": 5}]', b"[]"):
            answers.append(post(port, body))
        for body in (b"nonsense", b'{"x": 6}{"x": "six"}', b'[{"x": 7}', b" " * (2 << 20)):
            answers.append(post(port, body))
        answers.append(post(port, b"{}", path="/other"))
        answers.append(post(port, b"{}", method="PUT"))
        answers.append(post(port, gzip.compress(b'{"x": 8}'), Content_Encoding="gzip"))
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    tm.stream.from_webhook(port, SCHEMA, path="/rows").write_stream(
        lambda table: rows.extend(row["x"] for row in table.to_pylist()),
        checkpoint=tmp_path / "checkpoints",
        stop_when=done.is_set,
    )
    assert sorted(rows) == [1, 2, 3, 4, 5]
    assert [status for status, *_ in answers] == [200, 200, 200, 200, 400, 400, 400, 413, 404, 405, 415]
    assert [text for _, text, _ in answers][:4] == ["1 rows\n", "2 rows\n", "2 rows\n", "0 rows\n"]
    assert answers[5][1].startswith("row 2: ")
    assert answers[-1][1] == "the body is compressed (gzip): send rows uncompressed\n"
    with pytest.raises(tm.DataSetError, match=r'answer. "durable" needs a job that makes checkpoints'):
        tm.stream.from_webhook(port, SCHEMA, answer="durable").write_stream(print)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(tm.DataSetError, match=f"webhook 127.0.0.1:{port}: .*in use"),
    ):
        tm.stream.from_webhook(port, SCHEMA).write_stream(print)


@pytest.mark.parametrize("port", [-1, 0, 65_536, 70_000, 1.0, "80", True, None])
def test_ports_that_are_none(port: Any) -> None:
    """The error gave no range, and nobody learned which port a webhook on port 0 had."""
    for made in (
        lambda: tm.stream.from_socket("localhost", port, SCHEMA),
        lambda: tm.stream.from_webhook(port, SCHEMA),
    ):
        with pytest.raises(tm.DataSetError, match=r"port=.* must be a port, an integer from 1 to 65535"):
            made()


@pytest.mark.parametrize("auth", ["token", "signature"])
def test_posts_of_who_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str) -> None:
    """Otherwise anybody who can reach the port could post."""
    variable = {"token": "TIDEMILL_WEBHOOK_TOKEN", "signature": "TIDEMILL_WEBHOOK_SECRET"}[auth]
    (port,) = free_ports(1)
    with pytest.raises(tm.DataSetError, match=f'`auth` is "{auth}", but {variable} is not set'):
        tm.stream.from_webhook(port, SCHEMA, auth=auth)  # type: ignore[arg-type]
    monkeypatch.setenv(variable, "swordfish")
    body = b'{"x": 1}'

    def signed(secret: bytes, body: bytes = body) -> str:
        return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()

    right, *wrong = {
        "token": (
            {"Authorization": "Bearer swordfish"},
            {},
            {"Authorization": "Bearer swordfis"},
            {"Authorization": "swordfish"},
        ),
        "signature": (
            {"X-Hub-Signature-256": signed(b"swordfish")},
            {},
            {"X-Hub-Signature-256": signed(b"perch")},
            {"X-Hub-Signature-256": signed(b"swordfish", b'{"x": 2}')},
            {"Authorization": "Bearer swordfish"},
        ),
    }[auth]
    rows: list[int] = []
    answers: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        launched.wait_until(lambda: listens(port), "the server")
        answers.extend(post(port, body, **headers) for headers in [*wrong, right])
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    # The variable alone is enough.
    tm.stream.from_webhook(port, SCHEMA, path="/rows").write_stream(
        lambda table: rows.extend(row["x"] for row in table.to_pylist()),
        checkpoint=tmp_path / "checkpoints",
        stop_when=done.is_set,
    )
    assert [status for status, *_ in answers] == [401] * len(wrong) + [200]
    assert rows == [1] and "swordfish" not in str(answers)
    other = {"token": "TIDEMILL_WEBHOOK_SECRET", "signature": "TIDEMILL_WEBHOOK_TOKEN"}[auth]
    monkeypatch.setenv(other, "perch")
    with pytest.raises(tm.DataSetError, match="choose with `auth` what"):
        tm.stream.from_webhook(port, SCHEMA)


def test_posts_to_a_busy_job(tmp_path: Path) -> None:
    """A job that cannot keep up says so, and takes each acknowledged row once."""
    (port,) = free_ports(1)
    rows: list[int] = []
    answers: Counter[tuple[int, str | None]] = Counter()
    busy, done = threading.Event(), threading.Event()
    # Long ones: the job has room for many short ones.
    count, padding = 150, "x" * 900_000

    def ask() -> None:
        launched.wait_until(lambda: listens(port), "the server")

        def send(x: int) -> None:
            body = json.dumps({"x": x, "padding": padding}).encode()
            while (answer := post(port, body))[0] != 200:
                answers[answer[0], answer[2]] += 1
                busy.set()
                time.sleep(0.1)

        threads = [threading.Thread(target=send, args=[x]) for x in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()

    def take(table: tm.Table) -> None:
        # Until a post was refused.
        assert busy.wait(launched.PATIENCE_S)
        rows.extend(row["x"] for row in table.to_pylist())

    threading.Thread(target=ask, daemon=True).start()
    stream = tm.stream.from_webhook(port, SCHEMA | {"padding": "str"}, path="/rows")
    stream.write_stream(take, checkpoint=tmp_path / "checkpoints", stop_when=done.is_set)
    assert answers.keys() == {(503, "1")}
    assert sorted(rows) == list(range(count))


def test_posts_that_are_answered_when_they_are_durable(tmp_path: Path) -> None:
    """A client with an answer need not post again, whatever happens to the job; one without an answer must."""
    (port,) = free_ports(1)
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import os, signal, threading
from pathlib import Path
import tidemill as tm
tm.init()
if os.environ["TIDEMILL_RESTART"] == "0":
    threading.Timer(1.5, os.kill, [os.getpid(), signal.SIGKILL]).start()
stream = tm.stream.from_webhook({port}, {SCHEMA!r}, path="/rows", answer="durable")
stream.write_stream(
    tm.stream.to_files({str(tmp_path / "out")!r}), checkpoint=tm.stream.Checkpoint({str(tmp_path / "checkpoints")!r}, interval="100ms"),
    stop_when=lambda: Path({str(tmp_path / "done")!r}).exists(),
)
"""
    )
    job = launched.start("run", "-n", "2", "--restarts", "1", app)
    begun = time.monotonic()
    sent = 0
    tries = 0
    # For longer than the first life of the job.
    while time.monotonic() < begun + 4 or sent < 20:
        assert job.poll() is None and time.monotonic() < begun + launched.PATIENCE_S
        tries += 1
        try:
            if post(port, b'{"x": %d}' % sent)[0] == 200:
                sent += 1
                continue
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.02)
    (tmp_path / "done").touch()
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0 and b"starting the job again" in err, err
    assert tries > sent
    lines = [line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines()]
    assert {json.loads(line)["x"] for line in lines} == set(range(sent))
