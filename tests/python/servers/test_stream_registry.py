"""Schemas of Kafka's values in a registry: a real broker, Confluent's own serializers, and a registry that speaks its
REST API.

The registry is our own (`Registry`), written to the documented API: none could be installed from the package
registries.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tidemill as tm
from local_servers import Kafka

CLICK = {"type": "record", "name": "Click", "fields": [{"name": "x", "type": "long"}, {"name": "s", "type": "string"}]}
OLD = {"type": "record", "name": "Click", "fields": [{"name": "x", "type": "long"}]}
NEW = {**CLICK, "fields": [CLICK["fields"][0], {"name": "s", "type": "string", "default": "none"}]}


class Registry:
    """Schemas by number and subject; requests are counted."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: Counter[str] = Counter()
        self.ailing = 0
        self.password: str | None = None
        self.incompatible = False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do(self) -> None:
                path = self.path.split("?")[0]
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
                registry.asked[f"{self.command} {path}"] += 1
                if registry.ailing > 0:
                    registry.ailing -= 1
                    return self.answer(503, {"error_code": 50003, "message": "not yet"})
                given = self.headers.get("Authorization", "")
                if registry.password and given != "Basic " + base64.b64encode(registry.password.encode()).decode():
                    return self.answer(401, {"error_code": 401, "message": "Unauthorized"})
                self.answer(*registry.answer(path, body))

            do_GET = do_POST = do

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
        number = next((number for number, known in self.schemas.items() if known == entry), len(self.schemas) + 1)
        self.schemas[number] = entry
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            known = self.schemas.get(int(found[1]))
            return (200, known) if known else (404, {"error_code": 40403, "message": "Schema not found"})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/latest", path):
            numbers = self.subjects.get(found[1])
            if not numbers:
                return 404, {"error_code": 40401, "message": "Subject not found"}
            about = {"subject": found[1], "id": numbers[-1], "version": len(numbers)}
            return 200, about | self.schemas[numbers[-1]]
        if (found := re.fullmatch(r"/subjects/([^/]+)/versions", path)) and body:
            if self.incompatible:
                return 409, {"error_code": 409, "message": "field x is gone"}
            return 200, {"id": self.add(found[1], body["schema"], body.get("schemaType", "AVRO"))}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    yield found
    found.server.shutdown()


def confluent(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def read(stream: tm.DataSet) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    stream.write_stream(lambda table: rows.extend(table.to_pylist()))
    return sorted(rows, key=lambda row: row["x"])


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_avro_by_several_writers(kafka: Kafka, registry: Registry, tmp_path: Path) -> None:
    """Values of an older schema and of the newest become the same kind of rows; poison goes to the quarantine, each
    with its reason.
    """
    old, new = registry.add("versions-value", OLD), registry.add("versions-value", NEW)
    other = registry.add("elsewhere", "{}", "JSON")
    kafka.create_topic("versions")
    values = [confluent(old, b"\x02"), confluent(new, b"\x04\x02a"), confluent(old, b"\x06")] * 100
    poison = [confluent(77, b"\x02"), confluent(new, b"\x04"), b"{}", confluent(other, b"{}")]
    kafka.produce("versions", values + poison)
    registry.ailing = 3
    options: Any = {"stop_at_end": True, "on_error": "quarantine", "quarantine": tmp_path / "bad"}
    rows = read(tm.stream.from_kafka(kafka.bootstrap, "versions", format="avro", registry=registry.url, **options))
    assert Counter((row["x"], row["s"]) for row in rows) == {(1, "none"): 100, (2, "a"): 100, (3, "none"): 100}
    bad = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
    reasons = {row["offset"] - 300: row["reason"] for row in bad}
    assert len(reasons) == 4
    assert f"number 77, which {registry.url}/ does not know" in reasons[0]
    assert reasons[2] == "it has no Confluent header"
    assert f"schema {other} of {registry.url}/ is one of JSON, not of AVRO" in reasons[3]
    # Once each, however many values use it.
    assert registry.asked[f"GET /schemas/ids/{old}"] == registry.asked["GET /schemas/ids/77"] == 1


def test_confluents_serializers(kafka: Kafka, registry: Registry) -> None:
    """Both directions, in Avro and JSON: we read what they write, and they read what we write."""
    library = pytest.importorskip(
        "confluent_kafka.schema_registry", reason="needs confluent-kafka[avro,schemaregistry]"
    )
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro", reason="needs fastavro")
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = library.SchemaRegistryClient({"url": registry.url})
    kafka.create_topic("theirs")
    context = SerializationContext("theirs", MessageField.VALUE)
    serialize = avro.AvroSerializer(client, json.dumps(CLICK))
    kafka.produce("theirs", [serialize({"x": x, "s": f"ä{x}"}, context) for x in range(50)])
    rows = tm.stream.from_kafka(kafka.bootstrap, "theirs", format="avro", registry=registry.url, stop_at_end=True)
    assert read(rows) == [{"x": x, "s": f"ä{x}"} for x in range(50)]

    kafka.create_topic("ours")
    table = tm.from_dict({"x": list(range(50)), "s": [None if x % 7 == 0 else f"ö{x}" for x in range(50)]}).collect()
    tm.stream.from_table(table).write_stream(
        tm.stream.to_kafka(kafka.bootstrap, "ours", format="avro", registry=registry.url, key="x")
    )
    deserialize = avro.AvroDeserializer(client)
    context = SerializationContext("ours", MessageField.VALUE)
    found = sorted((deserialize(value, context) for value in kafka.values("ours")), key=lambda row: row["x"])
    assert found == table.to_pylist()
    assert registry.subjects["ours-value"] and registry.asked["POST /subjects/ours-value/versions"] >= 1


def test_headers_are_not_in_the_schema(kafka: Kafka, registry: Registry) -> None:
    """A header's column was in the value, and in its schema, as well."""
    kafka.create_topic("headed-avro")
    table = tm.from_dict({"x": [1, 2], "s": ["a", None]}).collect()
    sink = tm.stream.to_kafka(kafka.bootstrap, "headed-avro", format="avro", registry=registry.url, headers={"s": "s"})
    tm.stream.from_table(table).write_stream(sink)
    options: Any = {"metadata": {"h": "headers"}, "stop_at_end": True}
    rows = read(tm.stream.from_kafka(kafka.bootstrap, "headed-avro", format="avro", registry=registry.url, **options))
    assert rows == [{"x": 1, "h": [{"name": "s", "value": b"a"}]}, {"x": 2, "h": []}]
    [number] = registry.subjects["headed-avro-value"]
    assert [field["name"] for field in json.loads(registry.schemas[number]["schema"])["fields"]] == ["x"]


def test_json(kafka: Kafka, registry: Registry, tmp_path: Path) -> None:
    """Exactly once, with the header before each object, and skipped when it is read again."""
    kafka.create_topic("objects")
    table = tm.from_dict({"x": list(range(30)), "s": ["a"] * 30}).collect()
    sink = tm.stream.to_kafka(kafka.bootstrap, "objects", registry=registry.url, id="objects-job")
    tm.stream.from_table(table).write_stream(sink, checkpoint=tmp_path / "c")
    [number] = registry.subjects["objects-value"]
    entry = registry.schemas[number]
    assert entry["schemaType"] == "JSON"
    assert json.loads(entry["schema"])["properties"] == {"x": {"type": "integer"}, "s": {"type": "string"}}
    assert all(value and value.startswith(confluent(number, b"{")) for value in kafka.values("objects"))
    schema = {"x": "int64", "s": "str"}
    rows = tm.stream.from_kafka(kafka.bootstrap, "objects", schema, registry=registry.url, stop_at_end=True)
    assert read(rows) == table.to_pylist()


def test_registries_that_refuse(kafka: Kafka, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password comes from the environment and is not shown; an error names a registry that refuses, and a remedy."""
    registry.password = "me:swordfish"
    registry.add("locked-value", CLICK)
    kafka.create_topic("locked")
    options: Any = {"format": "avro", "registry": registry.url, "stop_at_end": True}
    with pytest.raises(tm.DataSetError, match="TIDEMILL_REGISTRY_USER"):
        tm.stream.from_kafka(kafka.bootstrap, "locked", **options)
    monkeypatch.setenv("TIDEMILL_REGISTRY_USER", "me")
    monkeypatch.setenv("TIDEMILL_REGISTRY_PASSWORD", "swordfish")
    assert read(tm.stream.from_kafka(kafka.bootstrap, "locked", **options)) == []
    with pytest.raises(tm.DataSetError, match=f'{registry.url}/ has no subject "unknown-value"'):
        tm.stream.from_kafka(kafka.bootstrap, "unknown", **options)
    registry.incompatible = True
    stream = tm.stream.from_table(tm.from_dict({"x": [1]}).collect())
    with pytest.raises(tm.DataSetError, match=r"is not compatible with those of the subject .field x is gone") as error:
        stream.write_stream(tm.stream.to_kafka(kafka.bootstrap, "locked", format="avro", registry=registry.url))
    assert "swordfish" not in str(error.value)


def test_what_is_said_wrong() -> None:
    for options, message in (
        ({"format": "avro"}, "avro needs `avro_schema`, or a `registry`"),
        ({"format": "raw", "registry": "http://localhost:1"}, "`registry` is for `format` json and avro"),
        ({"format": "avro", "registry": "localhost:1"}, "`registry` must be http://HOST:PORT"),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            tm.stream.from_kafka("localhost:1", "a", **options)  # type: ignore[arg-type]
    stream = tm.stream.from_table(tm.from_dict({"x": [1]}).collect())
    for options, message in (
        ({"format": "avro"}, "avro needs `registry`"),
        ({"value": "x", "registry": "http://localhost:1"}, "values are whole rows, not a column `value`"),
        ({"avro_schema": CLICK}, "`avro_schema` is for `format` avro"),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            stream.write_stream(tm.stream.to_kafka("localhost:1", "a", **options))  # type: ignore[arg-type]
