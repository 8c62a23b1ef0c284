"""TLS of connectors: real servers with certificates, and those that must be refused."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import launched
import pika
import pytest
import redis
import tidemill as tm
import websockets.exceptions
import websockets.sync.server
from certificates import Certificates
from local_servers import RabbitMQ, Redis
from local_servers.server import free_ports

SCHEMA = {"x": "int64"}
Tls = tm.stream.Tls


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERTIFICATE", "KEY"):
        monkeypatch.delenv(f"TIDEMILL_TLS_{name}", raising=False)


class TlsRedis(Redis):
    """Over TLS only, apart from the socket in its folder; clients need a certificate."""

    files: Certificates

    def configure(self) -> None:
        super().configure()
        settings = {
            "port": 0,
            "tls-port": self.ports[0],
            "tls-cert-file": self.files.path("server"),
            "tls-key-file": self.files.path("server-key"),
            "tls-ca-cert-file": self.files.path("ca"),
            "tls-auth-clients": "yes",
        }
        with self._config_file.open("a") as file:
            file.writelines(f"{name} {value}\n" for name, value in settings.items())

    @property
    def url(self) -> str:
        return f"rediss://localhost:{self.ports[0]}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket_path), decode_responses=True)


class TlsRabbitMQ(RabbitMQ):
    """Over TLS on an additional port."""

    files: Certificates
    port_count = 4

    def configure(self) -> None:
        super().configure()
        settings = {
            "listeners.ssl.1": f"127.0.0.1:{self.ports[3]}",
            "ssl_options.cacertfile": self.files.path("ca"),
            "ssl_options.certfile": self.files.path("server"),
            "ssl_options.keyfile": self.files.path("server-key"),
            "ssl_options.verify": "verify_none",
        }
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@localhost:{self.ports[3]}/%2f"

    def command(self) -> tuple[Any, Mapping[str, str]]:
        command, env = super().command()
        # As for any server at another address: the variable would add a separate listener for TLS.
        return command, env


def written(stream: tm.DataSet, **options: Any) -> list[Any]:
    rows: list[Any] = []
    stream.write_stream(lambda table: rows.extend(table.to_dict()["x"]), **options)
    return rows


def test_redis(tmp_path: Path, files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, with files from arguments and from the environment; a client without a certificate learns what is
    missing.
    """
    monkeypatch.setattr(TlsRedis, "files", files, raising=False)
    server = TlsRedis(tmp_path)
    try:
        own = Tls(ca=files.path("ca"), certificate=files.path("client"), key=files.path("client-key"))
        rows = tm.from_dict({"x": list(range(50))}).collect()
        tm.stream.from_table(rows).write_stream(tm.stream.to_redis(server.url, stream="numbers", tls=own))
        source = tm.stream.from_redis(server.url, "numbers", SCHEMA, stop_at_end=True, tls=own)
        assert written(source) == list(range(50))
        for name, file in {"CA": "ca", "CERTIFICATE": "client", "KEY": "client-key"}.items():
            monkeypatch.setenv(f"TIDEMILL_TLS_{name}", str(files.path(file)))
        assert len(written(tm.stream.from_redis(server.url, "numbers", SCHEMA, stop_at_end=True))) == 50
        with server.client() as client:
            client.hset("name:1", "name", "one")
        found = tm.stream.redis_lookup(server.url, "name", prefix="name:")([1, 2])
        assert found == [{"name": "one"}, None]
        monkeypatch.delenv("TIDEMILL_TLS_CERTIFICATE")
        monkeypatch.delenv("TIDEMILL_TLS_KEY")
        with pytest.raises(tm.DataSetError, match=r"(?i)certificate.?required.*set certificate= and key="):
            written(tm.stream.from_redis(server.url, "numbers", SCHEMA, stop_at_end=True))
    finally:
        server.stop()


def test_rabbitmq(tmp_path: Path, files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TlsRabbitMQ, "files", files, raising=False)
    server = TlsRabbitMQ(tmp_path)
    try:
        with server.connect() as connection:
            connection.channel().queue_declare("numbers", durable=True)
        tls = Tls(ca=files.path("ca"))
        rows = tm.from_dict({"x": list(range(50))}).collect()
        tm.stream.from_table(rows).write_stream(tm.stream.to_rabbitmq(server.tls_url, "numbers", tls=tls))
        source = tm.stream.from_rabbitmq(server.tls_url, "numbers", SCHEMA, stop_at_end=True, tls=tls)
        assert sorted(written(source)) == list(range(50))
        # The server takes unknown clients; but our client refuses a server that it does not trust.
        stranger = tm.stream.from_rabbitmq(server.tls_url, "numbers", SCHEMA, tls=Tls(ca=files.path("other-ca")))
        with pytest.raises(tm.DataSetError, match=r"UnknownIssuer.*TIDEMILL_TLS_CA") as error:
            written(stranger)
        assert "guest" not in str(error.value)
        parameters = pika.URLParameters(server.tls_url)
        parameters.ssl_options = pika.SSLOptions(files.client(), "localhost")
        with pika.BlockingConnection(parameters) as connection:
            assert connection.channel().queue_declare("numbers", passive=True).method.message_count == 0
    finally:
        server.stop()


def test_websocket(files: Certificates) -> None:
    def talk(connection: websockets.sync.server.ServerConnection) -> None:
        assert connection.recv() == "all of them"
        for x in range(20):
            connection.send(json.dumps({"x": x}))

    with websockets.sync.server.serve(talk, "localhost", 0, ssl=files.server()) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"wss://localhost:{server.socket.getsockname()[1]}/numbers"
        tls = Tls(ca=files.path("ca"))
        source = tm.stream.from_websocket(url, SCHEMA, send="all of them", stop_at_end=True, tls=tls)
        assert written(source) == list(range(20))
        server.shutdown()


@contextmanager
def speaking(context: ssl.SSLContext | None, text: bytes = b"") -> Iterator[int]:
    """Send `text` over TLS to whoever connects; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()
        listener.settimeout(0.05)

        def work() -> None:
            while not done.is_set():
                with suppress(OSError):
                    connection, _ = listener.accept()
                    connection.settimeout(5)
                    with connection, suppress(OSError, ssl.SSLError):
                        if context is None:
                            connection.sendall(text)
                            continue
                        with context.wrap_socket(connection, server_side=True) as encrypted:
                            encrypted.sendall(text)
                            # Without this close message it would look like a cut connection.
                            encrypted.unwrap()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            done.set()
            thread.join(launched.PATIENCE_S)


def test_lines_of_a_server(files: Certificates) -> None:
    with speaking(files.server(), b'{"x": 1}\n{"x": 2}\n') as port:
        source = tm.stream.from_socket("localhost", port, SCHEMA, stop_at_end=True, tls=Tls(ca=files.path("ca")))
        assert written(source) == [1, 2]


CLIENTS: dict[str, Callable[[int, Tls], tm.DataSet]] = {
    "redis": lambda port, tls: tm.stream.from_redis(f"rediss://:secret@localhost:{port}/0", "a", SCHEMA, tls=tls),
    "rabbitmq": lambda port, tls: tm.stream.from_rabbitmq(
        f"amqps://u:secret@localhost:{port}/%2f", "a", SCHEMA, tls=tls
    ),
    "websocket": lambda port, tls: tm.stream.from_websocket(f"wss://localhost:{port}/?secret", SCHEMA, tls=tls),
    "socket": lambda port, tls: tm.stream.from_socket("localhost", port, SCHEMA, tls=tls),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("server", "ca", "message"),
    [
        ("server", "other-ca", "no trusted authority signed.*ca= or TIDEMILL_TLS_CA"),
        ("elsewhere", "ca", 'not valid for name.*"localhost".*connect to the server by a name'),
        ("expired", "ca", "certificate expired.*the server needs a new certificate"),
        (None, "ca", "does not speak TLS on this port"),
    ],
)
def test_who_is_not_trusted(files: Certificates, client: str, server: str | None, ca: str, message: str) -> None:
    """Refused at once, with what is wrong and what to do; and no message has a password."""
    context = None if server is None else files.server(server)
    with speaking(context, b"220 hello\r\n" * 10) as port:
        source = CLIENTS[client](port, Tls(ca=files.path(ca)))
        with pytest.raises(tm.DataSetError, match=message) as error:
            written(source)
    assert "secret" not in str(error.value)


def test_webhook(files: Certificates) -> None:
    """Our own server, which asks for clients' certificates: others cannot even post."""
    own = {"certificate": files.path("server"), "key": files.path("server-key")}
    [port] = free_ports(1)
    source = tm.stream.from_webhook(port, SCHEMA, tls=Tls(ca=files.path("ca"), **own))
    seen: list[int] = []
    ended = threading.Event()
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            source.write_stream(
                lambda table: seen.extend(table.to_dict()["x"]), checkpoint=checkpoints, stop_when=ended.is_set
            )
        except BaseException as error:
            failed.append(error)

    def post(context: ssl.SSLContext | None) -> int:
        connection: http.client.HTTPConnection
        if context is None:
            connection = http.client.HTTPConnection("localhost", port, timeout=launched.PATIENCE_S)
        else:
            connection = http.client.HTTPSConnection("localhost", port, timeout=launched.PATIENCE_S, context=context)
        connection.request("POST", "/", '{"x": 1}')
        return connection.getresponse().status

    import tempfile

    with tempfile.TemporaryDirectory() as checkpoints:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            launched.wait_until(
                lambda: bool(failed) or socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the webhook"
            )
            assert post(files.client("client")) == 200
            for context in (files.client(), files.client("stranger"), None):
                with pytest.raises((OSError, http.client.HTTPException)):
                    post(context)
        finally:
            ended.set()
            thread.join(launched.PATIENCE_S)
    assert not failed
    assert seen == [1]


def test_what_is_said_wrong(tmp_path: Path, files: Certificates) -> None:
    """Before anything runs: files that are missing or wrong, half of a pair, TLS for an address without it."""
    table = tm.stream.from_table(tm.from_dict({"x": [1]}).collect())

    def refused(tls: Any, message: str, url: str = "rediss://localhost:1/0") -> None:
        with pytest.raises(tm.DataSetError, match=message):
            tm.stream.from_redis(url, "a", SCHEMA, tls=tls)

    refused(Tls(ca=tmp_path / "none.pem"), "none.pem: No such file")
    (tmp_path / "text.pem").write_text("text")
    refused(Tls(ca=tmp_path / "text.pem"), "text.pem: it contains no PEM certificate")
    refused(Tls(certificate=files.path("client")), "TIDEMILL_TLS_CERTIFICATE.*`key`.*need each other")
    wrong = Tls(ca=files.path("ca"), certificate=files.path("client"), key=files.path("server-key"))
    refused(wrong, "client.pem and the key .*server-key.pem do not match")
    refused(Tls(), "`tls` needs a rediss:// `url`", "redis://localhost:1/0")
    refused(Tls(ca=files.path("ca")), "without certificate checks", "rediss://localhost:1/0#insecure")
    for make in (
        lambda: tm.stream.from_rabbitmq("amqp://localhost:1/%2f", "a", SCHEMA, tls=Tls()),
        lambda: tm.stream.from_websocket("ws://localhost:1/", SCHEMA, tls=Tls()),
        lambda: table.write_stream(tm.stream.to_rabbitmq("amqp://localhost:1/%2f", "a", tls=Tls())),
    ):
        with pytest.raises(tm.DataSetError, match=r"`tls` needs an? (amqps|wss):// `url`"):
            make()
    with pytest.raises(tm.DataSetError, match="a TLS server needs its own `certificate` and `key`"):
        tm.stream.from_webhook(1, SCHEMA, tls=Tls())
    with pytest.raises(TypeError, match=r"tls must be a tidemill.stream.Tls"):
        tm.stream.from_redis("rediss://localhost:1/0", "a", SCHEMA, tls=True)  # type: ignore[arg-type]
