"""Kafka over TLS, and users by SASL: a real broker with certificates and passwords, and clients that must be refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka_job
import pytest
import stream_job
import tidemill as tm
from certificates import Certificates
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives import serialization
from local_servers import Kafka
from local_servers.server import PATIENCE_S
from stream_kills import run_and_kill

JOB = Path(kafka_job.__file__)
SCHEMA = {"x": "int64"}
Tls = tm.stream.Tls
SECRET = "swordfish"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class TlsKafka(Kafka):
    """TLS on further ports: for everybody, for holders of a certificate, for users, under another name, and with an
    expired certificate.
    """

    files: Certificates
    listeners = ("TLS", "MUTUAL", "USERS", "ELSEWHERE", "EXPIRED")
    port_count = 2 + len(listeners)

    def servers(self, listener: str) -> str:
        return f"localhost:{self.ports[2 + self.listeners.index(listener)]}"

    def properties(self) -> dict[str, Any]:
        usual = super().properties()
        protocols = {name: "SASL_SSL" if name == "USERS" else "SSL" for name in self.listeners}
        protocols |= {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        return usual | {
            "listeners": ",".join([usual["listeners"], *(f"{name}://{self.servers(name)}" for name in self.listeners)]),
            "listener.security.protocol.map": ",".join(f"{name}:{of}" for name, of in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._keystore("server"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.files.path("ca"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.elsewhere.ssl.keystore.type": "PEM",
            "listener.name.elsewhere.ssl.keystore.location": self._keystore("elsewhere"),
            "listener.name.expired.ssl.keystore.type": "PEM",
            "listener.name.expired.ssl.keystore.location": self._keystore("expired"),
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.users.plain.sasl.jaas.config": f'{PLAIN} required user_ann="{SECRET}";',
            "listener.name.users.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        }

    def _keystore(self, name: str) -> Path:
        """A key and its certificate in one file, in Java's format."""
        key = serialization.load_pem_private_key(self.files.path(f"{name}-key").read_bytes(), None)
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file = self.folder / f"{name}-keystore.pem"
        file.write_bytes(
            key.private_bytes(pem, pkcs8, serialization.NoEncryption()) + self.files.path(name).read_bytes()
        )
        return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Certificates) -> Iterator[TlsKafka]:
    TlsKafka.files = files
    server = TlsKafka(tmp_path_factory.mktemp("kafka"))
    # Its password differs: a user of the wrong mechanism is not let in.
    of_ann = UserScramCredentialUpsertion(
        "ann", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), f"{SECRET}-scram".encode()
    )
    for done in server.admin.alter_user_scram_credentials([of_ann]).values():
        done.result(PATIENCE_S)
    server.create_topic("numbers")
    server.produce("numbers", [json.dumps({"x": x}) for x in range(50)])
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "KAFKA_USER", "KAFKA_PASSWORD"):
        monkeypatch.delenv(f"TIDEMILL_{name}", raising=False)


def written(servers: str, **options: Any) -> list[int]:
    rows: list[int] = []
    source = tm.stream.from_kafka(servers, "numbers", SCHEMA, stop_at_end=True, **options)
    source.write_stream(lambda table: rows.extend(table.to_dict()["x"]))
    return rows


def test_there_and_back(broker: TlsKafka, files: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Finds a build without TLS, or one that ignores its settings: both ways, with files from arguments, from the
    environment, and from the system.
    """
    tls = Tls(ca=files.path("ca"))
    assert written(broker.servers("TLS"), tls=tls) == list(range(50))
    broker.create_topic("back")
    rows = tm.stream.from_table(tm.from_dict({"x": list(range(30))}).collect())
    sink = tm.stream.to_kafka(broker.servers("TLS"), "back", id="back", tls=tls)
    rows.write_stream(sink, checkpoint=tmp_path / "c", guarantee="exactly_once")
    assert sorted(json.loads(value or b"")["x"] for value in broker.values("back")) == list(range(30))
    own = Tls(ca=files.path("ca"), certificate=files.path("client"), key=files.path("client-key"))
    assert len(written(broker.servers("MUTUAL"), tls=own)) == 50
    # OpenSSL and others take this for the system's.
    monkeypatch.setenv("SSL_CERT_FILE", str(files.path("ca")))
    assert len(written(broker.servers("TLS"), tls=Tls())) == 50
    assert len(written(broker.servers("TLS"), config={"security.protocol": "ssl"})) == 50
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("TIDEMILL_TLS_CA", str(files.path("ca")))
    assert len(written(broker.servers("TLS"), tls=Tls())) == 50


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("listener", "ca", "own", "message"),
    [
        ("TLS", "other-ca", None, r"certificate verify failed.*signed by a trusted authority \(ca=, TIDEMILL_TLS_CA\)"),
        ("ELSEWHERE", "ca", None, "certificate verify failed.*match the host name you connect to"),
        ("EXPIRED", "ca", None, "certificate verify failed.*not be expired"),
        ("MUTUAL", "ca", None, "the broker requires a client certificate: set certificate= and key="),
        ("MUTUAL", "ca", "stranger", "the broker does not accept our certificate"),
    ],
)
def test_who_is_not_trusted(
    broker: TlsKafka, files: Certificates, listener: str, ca: str, own: str | None, message: str
) -> None:
    """Refused, source and sink, with a remedy: an error that only says that no broker answers would send the user to
    the network.
    """
    who = {"certificate": files.path(own), "key": files.path(f"{own}-key")} if own else {}
    tls = Tls(ca=files.path(ca), **who)
    with pytest.raises(tm.DataSetError, match=message):
        written(broker.servers(listener), tls=tls)
    rows = tm.stream.from_table(tm.from_dict({"x": [1]}).collect())
    with pytest.raises(tm.DataSetError, match=message):
        rows.write_stream(tm.stream.to_kafka(broker.servers(listener), "numbers", id="refused", tls=tls))
    assert len(broker.values("numbers")) == 50


def test_users(broker: TlsKafka, files: Certificates, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Admitted by each mechanism with its password, and by no other; whatever fails, no message has a password."""
    servers, tls = broker.servers("USERS"), Tls(ca=files.path("ca"))
    monkeypatch.setenv("TIDEMILL_KAFKA_USER", "ann")
    monkeypatch.setenv("TIDEMILL_KAFKA_PASSWORD", SECRET)
    assert len(written(servers, tls=tls)) == len(written(servers, tls=tls, sasl="PLAIN")) == 50
    for sasl, message in {
        "SCRAM-SHA-512": "SASL authentication error.*TIDEMILL_KAFKA_PASSWORD and sasl=",
        "SCRAM-SHA-256": "mechanism handshake failed.*PLAIN.*set sasl= to a mechanism that the brokers support",
    }.items():
        with pytest.raises(tm.DataSetError, match=message) as error:
            written(servers, tls=tls, sasl=sasl)
        assert SECRET not in str(error.value)
    monkeypatch.setenv("TIDEMILL_KAFKA_PASSWORD", f"{SECRET}-scram")
    assert len(written(servers, tls=tls, sasl="SCRAM-SHA-512")) == 50
    with pytest.raises(tm.DataSetError, match="the brokers do not know this user, or the password is wrong") as error:
        written(servers, tls=tls)
    assert SECRET not in str(error.value)
    assert SECRET not in "".join(capfd.readouterr())


def test_what_is_said_wrong(files: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything runs: wrong files, a user without a password, an unknown mechanism."""

    def refused(message: str, **options: Any) -> None:
        with pytest.raises(tm.DataSetError, match=message):
            tm.stream.from_kafka("localhost:1", "a", SCHEMA, **options)

    refused("No such file", tls=Tls(ca=tmp_path / "none.pem"))
    refused("do not match", tls=Tls(certificate=files.path("client"), key=files.path("server-key")))
    refused("contradicts", tls=Tls(), config={"security.protocol": "SASL_PLAINTEXT"})
    refused("TIDEMILL_KAFKA_USER and TIDEMILL_KAFKA_PASSWORD need each other, and `sasl` needs both", sasl="PLAIN")
    monkeypatch.setenv("TIDEMILL_KAFKA_USER", "ann")
    refused("need each other")
    monkeypatch.setenv("TIDEMILL_KAFKA_PASSWORD", SECRET)
    refused("must be one of `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`", sasl="GSSAPI")


def test_exactly_once(broker: TlsKafka, files: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From topic to topic over TLS, as a user, while workers and the broker are killed: every record comes out once."""
    (tmp_path / "pids").mkdir()
    broker.create_topic("exact-in", 4)
    broker.create_topic("exact-out", 2)
    rows = stream_job.lines(tm.from_arrow(stream_job.table()).collect())
    for partition in range(4):
        broker.produce("exact-in", rows[partition::4], partition=partition)
    monkeypatch.setenv("TIDEMILL_TLS_CA", str(files.path("ca")))
    monkeypatch.setenv("TIDEMILL_KAFKA_USER", "ann")
    monkeypatch.setenv("TIDEMILL_KAFKA_PASSWORD", f"{SECRET}-scram")

    restarts = 0

    def pause(dice: Any, kills: int) -> float:
        nonlocal restarts
        if restarts == 0:
            broker.restart()
            restarts += 1
        if kills == 2:
            (tmp_path / "go").touch()
        return float(dice.uniform(0.2, 1.0))

    run_and_kill(tmp_path, 4, pause, JOB, tmp_path, broker.servers("USERS"), "exact-in", "exact-out", "rows")
    assert restarts == 1
    found = Counter(json.loads(value or b"{}")["row"] for value in broker.values("exact-out"))
    assert found == Counter(range(stream_job.ROWS))
