"""The servers that tests of stream connectors use behave as those tests assume."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import launched
import local_servers
import pika
import pika.exceptions
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from local_servers import Kafka, RabbitMQ, Redis
from local_servers.server import PATIENCE_S, free_ports

SUPPORT = Path(local_servers.__file__).parents[1]


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic with one partition."""
    name = f"topic-{uuid.uuid4()}"
    kafka.create_topic(name)
    return name


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> str:
    """A durable queue."""
    name = f"queue-{uuid.uuid4()}"
    rabbitmq.declare(name)
    return name


def test_a_server_ends_with_the_tests_that_started_it(tmp_path: Path) -> None:
    """A killed test run would leave servers running, each with its port and its memory."""
    Redis(tmp_path).stop()  # skips where there is none
    program = f"import pathlib, local_servers, time\nprint(local_servers.Redis(pathlib.Path({str(tmp_path)!r})).ports[0], flush=True)\ntime.sleep(600)"
    tests = subprocess.Popen([sys.executable, "-c", program], cwd=SUPPORT, stdout=subprocess.PIPE)
    assert tests.stdout is not None
    port = int(tests.stdout.readline())
    (guard,) = launched.children(tests.pid)
    (server,) = launched.children(guard)
    assert _listens(port) and launched.is_running(server)
    tests.kill()
    launched.wait_until(lambda: not launched.is_running(guard), "the guard's end")
    assert not launched.is_running(server) and not _listens(port)
    tests.communicate()


def test_a_server_that_finds_its_port_taken_takes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice of a port and the server's start, somebody else may take it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = iter([[taken.getsockname()[1]], free_ports(1)])
        monkeypatch.setattr("local_servers.server.free_ports", lambda count: next(choices))
        server = Redis(tmp_path)
        try:
            assert server.client().ping()
        finally:
            server.stop()


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the log, nobody knows what to fix."""
    monkeypatch.setattr(Redis, "command", lambda self: (["redis-server", "--no-such-option", "1"], os.environ))
    with pytest.raises(pytest.fail.Exception, match=r"Redis did not start(?s:.*)no-such-option"):
        Redis(tmp_path)


def test_kafka_keeps_order_in_partitions(kafka: Kafka) -> None:
    """A helper that mixed up partitions or offsets would fail tests of correct sources."""
    topic = f"topic-{uuid.uuid4()}"
    kafka.create_topic(topic, partitions=3)
    for partition in range(3):
        kafka.produce(topic, [f"{partition}.{i}" for i in range(4)], partition=partition)
    found = [(message.partition(), message.offset(), message.value()) for message in kafka.read(topic)]
    assert found == [(partition, i, b"%d.%d" % (partition, i)) for partition in range(3) for i in range(4)]

    kafka.add_partitions(topic, 4)
    kafka.produce(topic, ["3.0"], partition=3)
    assert kafka.values(topic)[-1] == b"3.0"


def test_kafka_reads_from_an_offset(kafka: Kafka, topic: str) -> None:
    """Sources resume at offsets that they keep themselves, and ask how far a partition reaches."""
    kafka.produce(topic, map(str, range(10)))
    consumer = kafka.consumer()
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 10)
    consumer.assign([TopicPartition(topic, 0, 7)])
    assert [_next(consumer) for _ in range(3)] == [b"7", b"8", b"9"]
    consumer.close()


def test_kafka_shares_a_topic_in_a_group(kafka: Kafka) -> None:
    """Commits of offsets and the group coordinator work with one broker."""
    topic = f"topic-{uuid.uuid4()}"
    kafka.create_topic(topic, partitions=2)
    kafka.produce(topic, map(str, range(20)))
    consumer = kafka.consumer(group_id=topic)
    consumer.subscribe([topic])
    first = [_next(consumer) for _ in range(15)]
    consumer.commit(asynchronous=False)
    consumer.close()

    consumer = kafka.consumer(group_id=topic)
    consumer.subscribe([topic])
    rest = [_next(consumer) for _ in range(5)]
    consumer.close()
    assert Counter(first + rest) == Counter(b"%d" % i for i in range(20))


def test_kafka_shows_a_transaction_when_it_commits(kafka: Kafka, topic: str) -> None:
    """Sinks promise this to their users: nothing before the commit, then everything, and nothing from aborted
    transactions.
    """
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, "kept")
    assert producer.flush(PATIENCE_S) == 0
    assert kafka.values(topic, decided=False) == []
    assert kafka.values(topic, isolation="read_uncommitted") == [b"kept"]
    producer.commit_transaction(PATIENCE_S)
    assert kafka.values(topic) == [b"kept"]

    producer.begin_transaction()
    producer.produce(topic, "dropped")
    assert producer.flush(PATIENCE_S) == 0
    producer.abort_transaction(PATIENCE_S)
    assert kafka.values(topic) == [b"kept"]
    assert kafka.values(topic, isolation="read_uncommitted") == [b"kept", b"dropped"]


def test_kafka_commits_offsets_with_a_transaction(kafka: Kafka, topic: str) -> None:
    """A program's consumed and produced records change together."""
    kafka.produce(topic, ["a", "b"])
    consumer = kafka.consumer(group_id=topic)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert _next(consumer) == b"a"
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(PATIENCE_S)

    def kept() -> int:
        with_group = kafka.consumer(group_id=topic)
        (partition,) = with_group.committed([TopicPartition(topic, 0)], PATIENCE_S)
        with_group.close()
        return int(partition.offset)

    for end in (producer.abort_transaction, producer.commit_transaction):
        before = kept()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            consumer.position([TopicPartition(topic, 0)]), consumer.consumer_group_metadata(), PATIENCE_S
        )
        end(PATIENCE_S)
        assert (before, kept()) == ((-1001, -1001) if end == producer.abort_transaction else (-1001, 1))
    consumer.close()


def test_kafka_fences_the_older_of_two_producers(kafka: Kafka, topic: str) -> None:
    """A worker presumed dead must not commit after its successor has begun; its open transaction is aborted."""
    older = kafka.producer(transactional_id=topic)
    older.init_transactions(PATIENCE_S)
    older.begin_transaction()
    older.produce(topic, "of the older")
    assert older.flush(PATIENCE_S) == 0
    newer = kafka.producer(transactional_id=topic)
    newer.init_transactions(PATIENCE_S)
    with pytest.raises(KafkaException) as caught:
        older.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].code() == KafkaError._FENCED
    newer.begin_transaction()
    newer.produce(topic, "of the newer")
    newer.commit_transaction(PATIENCE_S)
    assert kafka.values(topic) == [b"of the newer"]


@pytest.mark.parametrize("gently", [True, False], ids=["SIGTERM", "SIGKILL"])
def test_kafka_keeps_its_data_over_a_restart(kafka: Kafka, topic: str, gently: bool) -> None:
    """Messages, offsets, and an open transaction, which its producer continues as if nothing had happened."""
    kafka.produce(topic, ["before"])
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, "across")
    assert producer.flush(PATIENCE_S) == 0
    kafka.restart(gently=gently)
    assert kafka.values(topic, decided=False) == [b"before"]
    producer.produce(topic, "after")
    producer.commit_transaction(PATIENCE_S)
    assert kafka.values(topic) == [b"before", b"across", b"after"]


def test_redis_keeps_hashes(redis_server: Redis) -> None:
    """Lookups by key, many in one request."""
    client = redis_server.client()
    client.hset("user:1", mapping={"name": "Ada", "born": "1815"})
    client.hset("user:2", mapping={"name": "Alan", "born": "1912"})
    pipeline = client.pipeline(transaction=False)
    for user in (1, 2, 3):
        pipeline.hgetall(f"user:{user}")
    assert pipeline.execute() == [{"name": "Ada", "born": "1815"}, {"name": "Alan", "born": "1912"}, {}]


def test_redis_streams_give_again_what_was_not_acknowledged(redis_server: Redis) -> None:
    """A source resumes either after an id it has kept, or by its group's list of pending entries."""
    client = redis_server.client()
    ids = [client.xadd("events", {"n": n}) for n in range(4)]
    ((_, later),) = client.xread({"events": ids[1]})
    assert [fields["n"] for _, fields in later] == ["2", "3"]

    client.xgroup_create("events", "group", id="0")
    ((_, taken),) = client.xreadgroup("group", "worker", {"events": ">"}, count=2)
    client.xack("events", "group", taken[0][0])
    ((_, pending),) = client.xreadgroup("group", "worker", {"events": "0"})
    assert [identity for identity, _ in pending] == [ids[1]]


def test_redis_forgets_over_a_restart(redis_server: Redis) -> None:
    """Tests of lost connections rely on the same port, and on data being gone."""
    client = redis_server.client()
    client.set("key", "value")
    redis_server.restart()
    assert redis_server.client().get("key") is None


def test_rabbitmq_confirms_what_it_has(rabbitmq: RabbitMQ, queue: str) -> None:
    """A sink may drop a message once it is confirmed; one that no queue takes comes back."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        channel.basic_publish("", queue, b"kept", persistent, mandatory=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", f"{queue}-that-is-not", b"lost", persistent, mandatory=True)
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert (body, method.redelivered) == (b"kept", False)


def test_rabbitmq_gives_again_what_was_not_acknowledged(rabbitmq: RabbitMQ, queue: str) -> None:
    """A dead worker's messages are delivered to another, marked as redelivered."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        for body in (b"done", b"in hand"):
            channel.basic_publish("", queue, body)

    program = f"""
import pika, time
channel = pika.BlockingConnection(pika.URLParameters({rabbitmq.url!r})).channel()
method, _, _ = channel.basic_get({queue!r})
channel.basic_ack(method.delivery_tag)
print(channel.basic_get({queue!r})[2].decode(), flush=True)
time.sleep(600)"""
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"in hand\n"
    worker.kill()
    worker.communicate()

    with rabbitmq.connect() as connection:
        for method, _, body in connection.channel().consume(queue, auto_ack=True):
            assert (body, method.redelivered) == (b"in hand", True)
            break


def test_rabbitmq_keeps_what_it_confirmed_over_a_restart(rabbitmq: RabbitMQ, queue: str) -> None:
    """SIGKILL loses neither durable queues nor persistent messages."""
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"kept", pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent))
    # Its name service is a daemon, which would stay after each run if it were not ended too.
    assert all(map(_listens, rabbitmq.ports))
    rabbitmq.stop()
    assert not any(map(_listens, rabbitmq.ports))
    rabbitmq.start()
    with rabbitmq.connect() as connection:
        _, _, body = connection.channel().basic_get(queue, auto_ack=True)
        assert body == b"kept"


def _next(consumer: Consumer) -> bytes:
    message = consumer.poll(PATIENCE_S)
    assert message is not None, "no message came"
    assert message.error() is None, message.error()
    return bytes(message.value())


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
