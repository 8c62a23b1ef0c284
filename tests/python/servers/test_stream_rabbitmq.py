"""Queues of a real RabbitMQ: what is acknowledged when, what is redelivered, and how the job treats it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import launched
import pika
import pika.exceptions
import pytest
import tidemill as tm
from local_servers import RabbitMQ

SCHEMA = {"key": "str", "ts": "timestamp[ms]", "x": "int64"}


def publish(server: RabbitMQ, queue: str, numbers: Iterable[int]) -> None:
    """Publish a message for each number, with the number as its id."""
    with server.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for at in numbers:
            row = {"key": f"k{at % 5}", "ts": f"2026-01-01T00:00:{at // 50 % 60:02}.000", "x": at}
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(at))
            channel.basic_publish("", queue, json.dumps(row), properties)


def declare(server: RabbitMQ, queue: str) -> None:
    with server.connect() as connection:
        connection.channel().queue_declare(queue, durable=True)


def waiting(server: RabbitMQ, queue: str) -> int:
    """Count the messages that have not been delivered."""
    with server.connect() as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def is_settled(server: RabbitMQ, queue: str) -> bool:
    """Whether a queue is empty, and all its delivered messages are acknowledged."""
    with server.connect() as connection:
        found = connection.channel().queue_declare(queue, passive=True).method
        return bool(found.message_count == 0 and found.consumer_count == 0)


def take_all(server: RabbitMQ, queue: str) -> list[tuple[str, dict[str, Any]]]:
    """Take everything in a queue: ids and rows."""
    found = []
    with server.connect() as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            assert properties.delivery_mode == 2
            found.append((properties.message_id, json.loads(body)))


def lines(folder: Path) -> list[int]:
    return [json.loads(line)["x"] for file in folder.glob("part-*") for line in file.read_text().splitlines()]


def writing(body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


def test_rabbitmq_to_rabbitmq(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """In the end, everything read is acknowledged, and all results are published."""
    publish(rabbitmq, "clicks", range(2000))
    declare(rabbitmq, "counts")
    for checkpoint in (tmp_path / "checkpoints", None):
        stream = tm.stream.from_rabbitmq(
            rabbitmq.url, "clicks", SCHEMA, id="message_id", time="ts", max_out_of_orderness="1m", stop_at_end=True
        )
        counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(n=tm.count())
        settings = None if checkpoint is None else tm.stream.Checkpoint(checkpoint, interval="100ms")
        counts.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, "counts"), checkpoint=settings)
        launched.wait_until(lambda: waiting(rabbitmq, "counts") >= 20, "what was published")
        launched.wait_until(lambda: is_settled(rabbitmq, "clicks"), "an empty queue")
        found = take_all(rabbitmq, "counts")
        assert len({id for id, _ in found}) == len(found) == 5 * 4
        assert sum(row["n"] for _, row in found) == 2000
        publish(rabbitmq, "clicks", range(2000))


def test_a_query_that_ends_before_its_job(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Its messages are acknowledged with the next checkpoint, not only when all other queries of the job have ended."""
    publish(rabbitmq, "early", range(300))
    seen, settled = list[int](), list[bool]()
    deadline = time.monotonic() + launched.PATIENCE_S

    def stop() -> bool:
        if is_settled(rabbitmq, "early"):
            settled.append(True)
        return bool(settled) or time.monotonic() > deadline

    ends = tm.stream.from_rabbitmq(rabbitmq.url, "early", SCHEMA, id="message_id", stop_at_end=True)
    goes_on = tm.stream.from_generator(100)
    queries = [(ends, lambda table: seen.extend(table.to_dict()["x"])), (goes_on, lambda table: None)]
    tm.stream.write(queries, checkpoint=tm.stream.Checkpoint(tmp_path, interval="100ms"), stop_when=stop)
    assert settled
    assert sorted(seen) == list(range(300))


def test_rows_that_nobody_takes(rabbitmq: RabbitMQ) -> None:
    """A sink that publishes to nowhere, and errors that show passwords or say nothing."""
    rows = tm.stream.from_generator(rows=3)
    with rabbitmq.connect() as connection:
        connection.channel().exchange_declare("unbound", "direct", durable=True)
    with pytest.raises(tm.DataSetError, match=r'exchange "unbound": no queue is bound to routing key "x"'):
        rows.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, exchange="unbound", routing_key="x"))
    with pytest.raises(tm.DataSetError, match=r'exchange "nowhere": .*NOT_FOUND'):
        rows.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, exchange="nowhere", routing_key="x"))
    with pytest.raises(tm.DataSetError, match=r'queue "nowhere": .*NOT_FOUND'):
        tm.stream.from_rabbitmq(rabbitmq.url, "nowhere", format="text").write_stream(lambda _: None)
    url = rabbitmq.url.replace("guest:guest", "guest:swordfish")
    assert "swordfish" not in repr(tm.stream.to_rabbitmq(url, "counts"))
    with pytest.raises(tm.DataSetError, match="ACCESS_REFUSED") as error:
        tm.stream.from_rabbitmq(url, "clicks", format="text").write_stream(lambda _: None)
    assert "swordfish" not in str(error.value)
    with pytest.raises(tm.DataSetError, match="`url` must be amqp"):
        tm.stream.from_rabbitmq("http://x", "clicks", format="text")
    with pytest.raises(tm.DataSetError, match="takes a queue, or an exchange"):
        tm.stream.to_rabbitmq(url, "counts", exchange="x")


def test_a_sink_that_has_nowhere_to_go(rabbitmq: RabbitMQ) -> None:
    """A wrong name or password surfaced with the first rows, and there are none here."""
    declare(rabbitmq, "silent")
    declare(rabbitmq, "taken")
    stream = tm.stream.from_rabbitmq(rabbitmq.url, "silent", format="text", stop_at_end=True)
    with pytest.raises(tm.DataSetError, match=r'queue "nowhere": .*NOT_FOUND.*: declare it before the job starts'):
        stream.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, "nowhere"))
    with pytest.raises(tm.DataSetError, match=r'exchange "nowhere": .*NOT_FOUND.*: declare it before the job starts'):
        stream.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, exchange="nowhere", routing_key="x"))
    url = rabbitmq.url.replace("guest:guest", "guest:swordfish")
    with pytest.raises(tm.DataSetError, match="ACCESS_REFUSED") as error:
        stream.write_stream(tm.stream.to_rabbitmq(url, "taken"))
    assert "swordfish" not in str(error.value)
    # What exists is accepted: a queue, an exchange of any kind.
    with rabbitmq.connect() as connection:
        connection.channel().exchange_declare("heads", "headers", durable=True)
    stream.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, "taken"))
    stream.write_stream(tm.stream.to_rabbitmq(rabbitmq.url, exchange="heads"))


def test_a_queue_that_is_not_durable(rabbitmq: RabbitMQ, capfd: pytest.CaptureFixture[str]) -> None:
    """Confirmed messages would be lost with the server: the job says so once, and only for such queues."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("transient", durable=False)
        channel.queue_declare("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    declare(rabbitmq, "durable")
    for queue, told in (("transient", 1), ("quorum", 0), ("durable", 0)):
        tm.stream.from_generator(rows=5, splits=3).write_stream(tm.stream.to_rabbitmq(rabbitmq.url, queue))
        assert capfd.readouterr().err.count("it is not durable") == told
        assert waiting(rabbitmq, queue) == 5


def test_routing_keys_and_bad_messages(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Each row goes where its key says, and a poison message is not read forever."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.exchange_declare("routed", "topic", durable=True)
        for queue in ("even", "odd"):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "routed", f"rows.{queue}")
        channel.queue_declare("mixed", durable=True)
        for body in ('{"x": 1}', "nonsense", '{"x": 2}'):
            channel.basic_publish("", "mixed", body, pika.BasicProperties(message_id=body))
    stream = tm.stream.from_rabbitmq(
        rabbitmq.url, "mixed", {"x": "int64"}, stop_at_end=True, on_error="quarantine", quarantine=tmp_path / "bad"
    )
    routed = stream.select("x", to=tm.when(tm.col("x") % 2 == 0).then("rows.even").otherwise("rows.odd"))
    with pytest.warns(tm.BadRowsWarning, match="^1 record .* rabbitmq mixed: "):
        routed.write_stream(
            tm.stream.to_rabbitmq(rabbitmq.url, exchange="routed", key="to"), checkpoint=tmp_path / "checkpoints"
        )
    assert [row["x"] for _, row in take_all(rabbitmq, "even")] == [2]
    assert [row["x"] for _, row in take_all(rabbitmq, "odd")] == [1]
    launched.wait_until(lambda: is_settled(rabbitmq, "mixed"), "an empty queue")
    (file,) = (tmp_path / "bad").iterdir()
    bad = json.loads(file.read_text())
    assert (bad["queue"], bad["message_id"], bad["text"]) == ("mixed", "nonsense", "nonsense")


def test_bytes_and_what_is_known_of_messages(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """Messages as bytes, with columns for their properties; bad ones are recorded, and shift no other's columns."""
    headers = {"trace": "ä", "tries": 3, "deep": {"a": [1, True]}, "raw": b"\xff"}
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.exchange_declare("known", "topic", durable=True)
        channel.queue_declare("known", durable=True)
        channel.queue_bind("known", "known", "#")
        sent = pika.BasicProperties(timestamp=1767225600, message_id="m", headers=headers)
        channel.basic_publish("known", "a.b", b'{"x": 1}', sent)
        channel.basic_publish("known", "c", b"\xff\x00", pika.BasicProperties(headers=headers))
        channel.basic_publish("", "known", b'{"x": 2}')
    launched.wait_until(lambda: waiting(rabbitmq, "known") == 3, "three messages")
    everything = ("exchange", "routing_key", "timestamp", "message_id", "correlation_id", "redelivered", "headers")
    metadata: Any = {f"of {name}": name for name in everything}

    def read(*schema: Any, **options: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        stream = tm.stream.from_rabbitmq(rabbitmq.url, "known", *schema, metadata=metadata, stop_at_end=True, **options)
        stream.write_stream(lambda table: rows.extend(table.to_pylist()))
        launched.wait_until(lambda: is_settled(rabbitmq, "known"), "an empty queue")
        return rows

    with pytest.warns(tm.BadRowsWarning, match="^1 record "):
        first, last = read({"x": "int64"}, on_error="quarantine", quarantine=tmp_path / "bad")
    assert list(first.values())[:-1] == [1, "known", "a.b", datetime(2026, 1, 1), "m", None, False]
    told = {"trace": "ä", "tries": "3", "deep": '{"a":[1,true]}', "raw": '{"hex":"ff"}'}
    assert {header["name"]: header["value"] for header in first["of headers"]} == told
    assert list(last.values()) == [2, "", "known", None, None, None, False, []]
    (file,) = (tmp_path / "bad").iterdir()
    bad = json.loads(file.read_text())
    assert (bad["exchange"], bad["routing_key"], bad["hex"]) == ("known", "c", "ff00")
    assert bad["headers"] == headers | {"raw": {"hex": "ff"}}

    with rabbitmq.connect() as connection:
        connection.channel().basic_publish("", "known", b"\xff\x00")
        connection.channel().basic_publish("", "known", b"")
    launched.wait_until(lambda: waiting(rabbitmq, "known") == 2, "two messages")
    assert sorted(row["value"] for row in read(format="raw")) == [b"", b"\xff\x00"]
    with pytest.raises(tm.DataSetError, match='`metadata` adds a column "value", which already exists'):
        tm.stream.from_rabbitmq(rabbitmq.url, "known", format="raw", metadata={"value": "message_id"})
    with pytest.raises(tm.DataSetError, match="raw has one column, of bytes: omit the schema, or use that one"):
        tm.stream.from_rabbitmq(rabbitmq.url, "known", {"x": "int64"}, format="raw")


def test_bad_messages_without_an_id(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """The only report about them was their queue, which thousands may have come from."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.exchange_declare("nameless", "topic", durable=True)
        channel.queue_declare("nameless", durable=True)
        channel.queue_bind("nameless", "nameless", "#")
        channel.basic_publish("", "nameless", '{"x": 1}')
        # Delivered to a consumer that did not take it.
        method, _, _ = channel.basic_get("nameless")
        channel.basic_nack(method.delivery_tag)
        launched.wait_until(lambda: waiting(rabbitmq, "nameless") == 1, "the message to come back")
        channel.basic_publish("nameless", "a.b", "nonsense", pika.BasicProperties(timestamp=1767225600))
        channel.basic_publish("nameless", "nameless", '{"x": "two"}', pika.BasicProperties(correlation_id="c"))
    launched.wait_until(lambda: waiting(rabbitmq, "nameless") == 3, "three messages")
    stream = tm.stream.from_rabbitmq(
        rabbitmq.url,
        "nameless",
        {"x": "int64"},
        id="message_id",
        stop_at_end=True,
        on_error="quarantine",
        quarantine=tmp_path / "bad",
    )
    first = 'queue "nameless", delivery_tag 1, redelivered true: a message has no message_id'
    with pytest.warns(tm.BadRowsWarning, match=f"^3 records .* rabbitmq nameless: {first}"):
        stream.write_stream(lambda _: None, checkpoint=tmp_path / "checkpoints")
    (file,) = (tmp_path / "bad").iterdir()
    bad = [json.loads(line) for line in file.read_text().splitlines()]
    reason = {"reason": "a message has no message_id"}
    told = [
        {"delivery_tag": 1, "redelivered": True, "text": '{"x": 1}'},
        {"exchange": "nameless", "routing_key": "a.b", "timestamp": 1767225600, "delivery_tag": 2, "text": "nonsense"},
        {"exchange": "nameless", "correlation_id": "c", "delivery_tag": 3, "text": '{"x": "two"}'},
    ]
    assert bad == [{"queue": "nameless", "redelivered": False, **reason, **of} for of in told]


@pytest.mark.parametrize("id", ["message_id", None])
def test_a_worker_that_is_killed(rabbitmq: RabbitMQ, tmp_path: Path, id: str | None) -> None:
    """Redelivered messages: with an id they give no duplicate rows; without one, no row is lost."""
    total = 4000
    queue = f"killed-{id}"
    declare(rabbitmq, queue)
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import json, os, signal, threading
from pathlib import Path
import tidemill as tm
job = tm.init()
if os.environ["TIDEMILL_RESTART"] in "01":
    # All of them, including the one that reads the queue.
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGKILL]).start()
out = Path({str(tmp_path / "out")!r})
def there():
    return len({{line for file in out.glob("part-*") for line in file.read_text().splitlines()}})
stream = tm.stream.from_rabbitmq({rabbitmq.url!r}, {queue!r}, {SCHEMA!r}, id={id!r})
stream.select("x").write_stream(
    tm.stream.to_files(out), checkpoint=tm.stream.Checkpoint({str(tmp_path / "checkpoints")!r}, interval="100ms"), stop_when=lambda: there() >= {total}
)
"""
    )

    def write() -> None:
        for at in range(0, total, 100):
            publish(rabbitmq, queue, range(at, at + 100))
            time.sleep(0.05)

    thread = writing(write)
    done = launched.run("run", "-n", "2", "--restarts", "2", app)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert b"(2 of 2)" in done.stderr
    counts = Counter(lines(tmp_path / "out"))
    assert counts.keys() == set(range(total))
    assert id is None or max(counts.values()) == 1
    # All are acknowledged.
    launched.wait_until(lambda: is_settled(rabbitmq, queue), "an empty queue")


def test_a_server_that_is_killed(tmp_path: Path) -> None:
    """The server dies while the job reads, acknowledges and publishes, and comes back."""
    total = 3000
    server = RabbitMQ(tmp_path)
    try:
        server.declare("taken-in")
        server.declare("given-out")

        def published() -> int:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                return waiting(server, "given-out")
            return 0

        def write() -> None:
            for at in range(0, total, 500):
                publish(server, "taken-in", range(at, at + 500))
                launched.wait_until(lambda at=at: published() > at, "rows that come out")  # type: ignore[misc]
                if at in (500, 1500):
                    server.restart()

        thread = writing(write)
        stream = tm.stream.from_rabbitmq(server.url, "taken-in", SCHEMA, id="message_id").select("x")
        stream.write_stream(
            tm.stream.to_rabbitmq(server.url, "given-out"),
            checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="100ms"),
            stop_when=lambda: not thread.is_alive() and published() >= total,
        )
        thread.join()
        found = take_all(server, "given-out")
        # Messages published twice have the same id twice.
        rows = {id: row["x"] for id, row in found}
        assert sorted(rows.values()) == list(range(total))
        launched.wait_until(lambda: is_settled(server, "taken-in"), "an empty queue")
    finally:
        server.stop()
