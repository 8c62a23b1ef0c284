"""Records that are not rows go to a sink of the job: each once, with all that is known about it."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import kafka_job
import launched
import pika
import pytest
import stream_job
import tidemill as tm
from local_servers import Kafka, RabbitMQ, Redis
from stream_kills import run_and_kill

JOB = Path(kafka_job.__file__)
PARTITIONS = 4
SCHEMA = {"x": "int64"}


class Rows:
    """Keeps the rows it receives."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, table: tm.Table) -> None:
        self.rows += table.to_pylist()


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("part-*")) for line in file.read_text().splitlines()]


def test_poison_comes_once_whatever_is_killed(tmp_path: Path, kafka: Kafka) -> None:
    """Finds a bad record that is lost or duplicated when the workers that read it die, or that lacks its key or
    headers.
    """
    (tmp_path / "pids").mkdir()
    source, target = "poisoned", "healthy"
    kafka.create_topic(source, PARTITIONS)
    for topic in (target, f"{target}-dead"):
        kafka.create_topic(topic, 2)
    rows = stream_job.lines(stream_job.tm.from_arrow(stream_job.table()).collect())
    producer = kafka.producer()
    poison = range(7, len(rows), 101)
    for at, row in enumerate(rows):
        if at in poison:
            headers = [("trace", str(at).encode()), ("raw", b"\xff"), ("none", None)]
            producer.produce(source, f"poison {at}", f"key {at}", at % PARTITIONS, headers=headers)
        producer.produce(source, row, partition=at % PARTITIONS)
        producer.poll(0)
    assert producer.flush(launched.PATIENCE_S) == 0

    def pause(dice: random.Random, kills: int) -> float:
        if kills == 2:
            (tmp_path / "go").touch()
        return dice.uniform(0.2, 1.0)

    run_and_kill(tmp_path, 5, pause, JOB, tmp_path, kafka.bootstrap, source, target, "poison")
    copied = [json.loads(value or b"{}")["row"] for value in kafka.values(target)]
    assert Counter(copied) == Counter(range(stream_job.ROWS))
    sent = {(m.partition(), m.offset()): m for m in kafka.read(source) if (m.value() or b"").startswith(b"poison")}
    assert len(sent) == len(poison)
    found = [json.loads(value or b"{}") for value in kafka.values(f"{target}-dead")]
    assert Counter((row["partition"], row["offset"]) for row in found) == Counter(sent.keys())
    for row in found:
        record = sent[row["partition"], row["offset"]]
        assert json.loads(row["place"]) == {"topic": source, "partition": row["partition"], "offset": row["offset"]}
        assert (row["source"], row["reason"] != "") == (source, True)
        assert (bytes.fromhex(row["key"]), bytes.fromhex(row["value"])) == (record.key(), record.value())
        assert datetime.fromisoformat(row["timestamp"]) == datetime.fromtimestamp(
            record.timestamp()[1] / 1000, timezone.utc
        ).replace(tzinfo=None)
        headers = [(one["name"], bytes.fromhex(one["value"]) if "value" in one else None) for one in row["headers"]]
        assert headers == record.headers()


def test_a_dead_letter_topic_has_records_as_they_were(kafka: Kafka, tmp_path: Path) -> None:
    """Resending them takes their bytes, not a description; a missing value is not an empty one. The warning is given
    all the same.
    """
    kafka.create_topic("ill")
    kafka.create_topic("ill-dead")
    producer = kafka.producer()
    headers = [("trace", b"7"), ("raw", b"\xff"), ("none", None), ("trace", b"8")]
    for key, value, sent in (
        (b"ann", b"nonsense", headers),
        (b"\xfe", b"\xff\x00", None),
        (b"ben", None, headers[:1]),
        (None, b"", None),
        (b"good", b'{"x": 1}', headers),
    ):
        producer.produce("ill", value, key, headers=sent)
    producer.flush()
    as_it_was: Any = {"key": "key", "value": "value", "headers": ["headers", {"error": "reason"}]}
    dead = tm.stream.to_kafka(kafka.bootstrap, "ill-dead", id="ill-dead", **as_it_was)
    options: Any = {"stop_at_end": True, "on_error": "quarantine", "quarantine": dead}
    stream = tm.stream.from_kafka(kafka.bootstrap, "ill", SCHEMA, **options)
    rows = Rows()
    with pytest.warns(tm.BadRowsWarning, match="^4 records .* offset 0: "):
        stream.write_stream(rows, checkpoint=tmp_path / "checkpoints")
    assert rows.rows == [{"x": 1}] and tm.last_report().skipped_rows == 4
    found = [(record.key(), record.value()) for record in kafka.read("ill-dead")]
    assert found == [(b"ann", b"nonsense"), (b"\xfe", b"\xff\x00"), (b"ben", None), (None, b"")]
    beside = [record.headers() or [] for record in kafka.read("ill-dead")]
    assert [of[:-1] for of in beside] == [headers, [], headers[:1], []]
    assert all(of[-1][0] == "error" and of[-1][1] for of in beside)


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_lines_of_files(tmp_path: Path) -> None:
    """A function, files that commit, and at most once: each gets every bad line, and the good ones stay as they were."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        (tmp_path / f"in/{number}.jsonl").write_bytes(b'{"x": 1}\n\xff\n{"x": 2}\n{"x": "two"}\n' * 100)
    dead = Rows()

    def read(sink: Any, **options: Any) -> list[int]:
        rows = Rows()
        stream = tm.stream.from_files(tmp_path / "in", SCHEMA, stop_at_end=True, on_error="quarantine", quarantine=sink)
        stream.write_stream(rows, **options)
        assert tm.last_report().skipped_rows == 800
        return sorted(row["x"] for row in rows.rows)

    expected = [1] * 400 + [2] * 400
    assert read(dead) == expected
    places = [(row["source"], row["offset"], row["value"]) for row in dead.rows]
    block = len(b'{"x": 1}\n\xff\n{"x": 2}\n{"x": "two"}\n')
    lines = [(at * block + 9, b"\xff") for at in range(100)] + [(at * block + 20, b'{"x": "two"}') for at in range(100)]
    files = [str(tmp_path / f"in/{number}.jsonl") for number in range(4)]
    assert Counter(places) == Counter((file, at, line) for file in files for at, line in lines)
    first = dead.rows[0]
    assert json.loads(first["place"]) == {"file": first["source"], "byte": first["offset"]}
    assert [first[name] for name in ("partition", "timestamp", "key", "headers")] == [None] * 4
    assert list(first) == ["source", "place", "partition", "offset", "timestamp", "key", "value", "headers", "reason"]

    commits = tm.stream.to_files(tmp_path / "out", prefix="part")
    assert read(commits, checkpoint=tmp_path / "checkpoints") == expected
    assert Counter((row["source"], row["offset"]) for row in written(tmp_path / "out")) == Counter(
        (file, at) for file in files for at, _ in lines
    )
    dead.rows.clear()
    assert read(dead, checkpoint=tmp_path / "held", guarantee="at_most_once") == expected
    assert len(dead.rows) == 800


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_a_job_that_is_stopped_goes_on_behind_its_poison(tmp_path: Path) -> None:
    """Otherwise records quarantined before a checkpoint would come again after it, or later ones never."""
    file, out, checkpoints = tmp_path / "lines.jsonl", tmp_path / "out", tmp_path / "checkpoints"
    for life in range(3):
        with file.open("a") as lines:
            lines.write(f'nonsense {life}\n{{"x": {life}}}\n')
        rows = Rows()
        stream = tm.stream.from_files(
            file,
            SCHEMA,
            poll_interval="10ms",
            on_error="quarantine",
            quarantine=tm.stream.to_files(out / "dead"),
        )
        stream.write_stream(
            rows,
            checkpoint=tm.stream.Checkpoint(checkpoints, interval="50ms"),
            stop_when=lambda rows=rows: bool(rows.rows),
        )
        assert rows.rows == [{"x": life}]
        assert sorted(bytes.fromhex(row["value"]).decode() for row in written(out / "dead")) == [
            f"nonsense {before}" for before in range(life + 1)
        ]


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_a_stream_that_is_read_twice(tmp_path: Path) -> None:
    """Two queries over one source, and a stream joined with itself: its bad records came once for each read."""
    (tmp_path / "lines.jsonl").write_text('{"x": 1}\nnonsense\n{"x": 2}\n')
    dead, rows, others = Rows(), Rows(), Rows()
    stream = tm.stream.from_files(
        tmp_path / "lines.jsonl", SCHEMA, stop_at_end=True, on_error="quarantine", quarantine=dead
    )
    tm.stream.write([(stream.filter(tm.col("x") < 2), rows), (stream.filter(tm.col("x") > 1), others)])
    assert (rows.rows, others.rows, len(dead.rows)) == ([{"x": 1}], [{"x": 2}], 1)
    dead.rows.clear()
    both = Rows()
    stream.union(stream).write_stream(both)
    assert (sorted(row["x"] for row in both.rows), len(dead.rows)) == ([1, 1, 2, 2], 1)
    text = stream.explain(sink=rows)
    assert "bad records, sink Rows" in text and "the sink Rows has each row at least once" in text


def test_entries_of_redis(redis_server: Redis, tmp_path: Path) -> None:
    """Their ids say where they are; a Redis stream, which takes texts only, gets their bytes in hexadecimal."""
    client = redis_server.client()
    entries = [{"value": b'{"x": 1}'}, {"value": b"\xff"}, {"value": b'{"x": 2}'}, {"other": b"7"}]
    ids = [client.xadd("letters", entry) for entry in entries]
    dead = tm.stream.to_redis(redis_server.url, stream="letters-dead", id="letters-dead")
    stream = tm.stream.from_redis(
        redis_server.url, "letters", SCHEMA, format="json", stop_at_end=True, on_error="quarantine", quarantine=dead
    )
    rows = Rows()
    with pytest.warns(tm.BadRowsWarning, match='^2 records .* stream "letters", id '):
        stream.write_stream(rows, checkpoint=tmp_path / "checkpoints")
    assert rows.rows == [{"x": 1}, {"x": 2}]
    letters = [fields for _, fields in client.xrange("letters-dead")]
    texts = [{str(name): str(value) for name, value in fields.items()} for fields in letters]
    assert [json.loads(of["place"]) for of in texts] == [
        {"stream": "letters", "id": ids[1]},
        {"stream": "letters", "id": ids[3]},
    ]
    assert [(of["source"], bytes.fromhex(of["value"])) for of in texts] == [("letters", b"\xff"), ("letters", b"")]
    assert texts[1]["reason"] == 'it has no field "value"'


def test_messages_of_rabbitmq(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Headers with types, a time in seconds, and ids; quarantined messages are acknowledged."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("letters", durable=True)
        properties = pika.BasicProperties(message_id="m", timestamp=1767225600, headers={"trace": "ä", "tries": 3})
        channel.basic_publish("", "letters", "nonsense", properties)
        channel.basic_publish("", "letters", '{"x": 1}', pika.BasicProperties(message_id="n"))
    rows, dead = Rows(), Rows()
    stream = tm.stream.from_rabbitmq(
        rabbitmq.url,
        "letters",
        SCHEMA,
        id="message_id",
        stop_at_end=True,
        on_error="quarantine",
        quarantine=dead,
    )
    with pytest.warns(tm.BadRowsWarning, match='^1 record .* queue "letters", message_id "m"'):
        stream.write_stream(rows, checkpoint=tmp_path / "checkpoints")
    assert rows.rows == [{"x": 1}]
    (letter,) = dead.rows
    assert (letter["source"], letter["timestamp"], letter["value"]) == ("letters", datetime(2026, 1, 1), b"nonsense")
    assert {one["name"]: one["value"] for one in letter["headers"]} == {"trace": "ä".encode(), "tries": b"3"}
    assert json.loads(letter["place"])["message_id"] == "m"


def test_lines_of_a_server() -> None:
    """One line that is too long, and one cut off, with no good one after them: they waited for a line that does not
    come.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def talk() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"x": 1}\nnonsense\n')
                time.sleep(0.05)
                connection.sendall(b"y" * 3000)

        thread = threading.Thread(target=talk)
        thread.start()
        rows, dead = Rows(), Rows()
        stream = tm.stream.from_socket(
            "127.0.0.1",
            listener.getsockname()[1],
            SCHEMA,
            line_bytes_max=1000,
            stop_at_end=True,
            on_error="quarantine",
            quarantine=dead,
        )
        with pytest.warns(tm.BadRowsWarning, match="^2 records "):
            stream.write_stream(rows)
        thread.join(launched.PATIENCE_S)
    assert rows.rows == [{"x": 1}]
    assert [(json.loads(row["place"])["line"], row["value"][:8]) for row in dead.rows] == [
        (2, b"nonsense"),
        (3, b"y" * 8),
    ]


def test_sinks_that_cannot_be(tmp_path: Path) -> None:
    """Values that are not sinks, one whose columns do not exist, one with a weaker guarantee than the job's, and two
    that conflict.
    """
    (tmp_path / "lines.jsonl").write_text('{"x": 1}\n')
    options: Any = {"stop_at_end": True, "on_error": "quarantine"}

    def files(**more: Any) -> tm.DataSet:
        return tm.stream.from_files(tmp_path / "lines.jsonl", SCHEMA, **(options | more))

    with pytest.raises(TypeError, match="quarantine= must be a folder, or a sink as write_stream takes it, not int"):
        files(quarantine=7)
    with pytest.raises(TypeError, match="a sink that has prepare needs write and commit, too"):
        files(quarantine=type("Half", (), {"prepare": None})())
    with pytest.raises(tm.DataSetError, match='`key`: no column "x"; the columns are source, place, partition'):
        files(quarantine=tm.stream.to_kafka("127.0.0.1:1", "dead", key="x"))
    with pytest.raises(tm.DataSetError, match="need each other"):
        files(quarantine=print, on_error="skip")
    with pytest.raises(tm.DataSetError, match="a folder or sink for bad records, need each other"):
        files()
    with pytest.raises(tm.DataSetError, match="the job cannot give exactly once: the sink print gives at least once"):
        files(quarantine=print).write_stream(
            tm.stream.to_files(tmp_path / "out"), checkpoint=tmp_path / "checkpoints", guarantee="exactly_once"
        )
    # A folder gets a record again when it is read again.
    with pytest.raises(tm.DataSetError, match=r"give exactly once: .* quarantine=tm.stream.to_files\(\".*dead\"\)"):
        files(quarantine=tmp_path / "dead").write_stream(
            tm.stream.to_files(tmp_path / "out"), checkpoint=tmp_path / "checkpoints", guarantee="exactly_once"
        )
    with pytest.raises(tm.DataSetError, match="two sinks write into the same folder"):
        files(quarantine=tm.stream.to_files(tmp_path / "out")).write_stream(tm.stream.to_files(tmp_path / "out"))
    with pytest.raises(tm.DataSetError, match="two sinks of kafka are named 'dead'"):
        dead = tm.stream.to_kafka("127.0.0.1:1", "dead", id="dead")
        tm.stream.write([(files(quarantine=dead), print), (files(quarantine=dead), print)])
    with pytest.raises(tm.DataSetError, match="the job would read what it writes"):
        tm.stream.from_files(
            tmp_path, SCHEMA, **options, quarantine=tm.stream.to_files(tmp_path / "dead")
        ).write_stream(print)
