"""A single-node Kafka, broker and controller in one (KRaft), with helpers for tests."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from .server import PATIENCE_S, Server

POM = Path(__file__).parents[4] / "tools/kafka/pom.xml"
CLUSTER_ID = "dGlkZW1pbGwtdGVzdHMtMQ"


class Kafka(Server):
    """Answers on `bootstrap`. A restart keeps everything that was acknowledged, even after SIGKILL."""

    name = "Kafka"
    #: One for clients, and one for the controller.
    port_count = 2

    @staticmethod
    def missing() -> str | None:
        if not (_jars() / "stamp").exists():
            return "no Kafka to test with"
        return None if shutil.which("java") else "no Java to run Kafka with"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @functools.cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self._client_config())

    def producer(self, **config: Any) -> Producer:
        """Return a producer; `config` has ``_`` for the dots in Kafka's names."""
        return Producer(self._client_config() | _dotted(config))

    def consumer(self, **config: Any) -> Consumer:
        """Return a consumer that starts at the earliest message and does not commit by itself, unless `config` says so."""
        usual = {"group.id": "tests", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return Consumer(self._client_config() | usual | _dotted(config))

    def create_topic(self, topic: str, partitions: int = 1, **config: Any) -> None:
        new = NewTopic(topic, partitions, 1, config={name: str(value) for name, value in _dotted(config).items()})
        self.admin.create_topics([new])[topic].result(PATIENCE_S)

    def add_partitions(self, topic: str, total: int) -> None:
        """Add partitions up to a total, and wait until clients can see them, since the broker acknowledges before that."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while len(self.admin.list_topics(topic, PATIENCE_S).topics[topic].partitions) < total:
            assert time.monotonic() < deadline, f"{self.name} does not show the partitions of {topic}"
            time.sleep(0.02)

    def produce(
        self, topic: str, values: Iterable[bytes | str], *, partition: int = -1, key: bytes | None = None
    ) -> None:
        """Write `values` and wait until all are acknowledged; to `partition`, or chosen by `key` or at random."""
        producer = self.producer()
        failed: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            producer.produce(topic, value, key, partition, on_delivery=on_delivery)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0, f"{self.name} does not acknowledge"
        assert not failed, failed[0]

    def read(self, topic: str, *, isolation: str = "read_committed", decided: bool = True) -> list[Message]:
        """Return the current contents of `topic`, partition by partition; with ``"read_uncommitted"``, including open
        transactions.

        A commit is acknowledged when it is decided, but visible only when the brokers have informed each partition:
        this waits for that, until no transaction is open, unless `decided` is false.
        """
        consumer = self.consumer(isolation_level=isolation, enable_partition_eof=True)
        try:
            partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
            if isolation == "read_committed" and decided:
                self._await_decisions(consumer, [TopicPartition(topic, partition) for partition in partitions])
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            messages: list[Message] = []
            unread = set(partitions)
            while unread:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, f"{self.name} does not answer"
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.remove(message.partition())
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        return sorted(messages, key=lambda message: (message.partition(), message.offset()))

    def _await_decisions(self, committed: Consumer, partitions: list[TopicPartition]) -> None:
        """Wait until readers of committed messages see as many as readers of all."""
        everything = self.consumer(isolation_level="read_uncommitted")
        deadline = time.monotonic() + PATIENCE_S
        try:
            for partition in partitions:
                while _end(committed, partition) < _end(everything, partition):
                    assert time.monotonic() < deadline, f"a transaction of {partition} stays open"
                    time.sleep(0.01)
        finally:
            everything.close()

    def values(self, topic: str, *, isolation: str = "read_committed", decided: bool = True) -> list[bytes | None]:
        """Return the values from `read`."""
        return [message.value() for message in self.read(topic, isolation=isolation, decided=decided)]

    def properties(self) -> dict[str, Any]:
        """Return the broker's settings."""
        port, controller_port = self.ports[:2]
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "log.dirs": self.folder / "data",
            "auto.create.topics.enable": "false",
            # Tests use old timestamps: a broker that keeps records for a week would delete them while they are read.
            "log.retention.ms": -1,
            # Transactions and groups on a single broker, without waiting for others.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # A killed broker cannot return before its session has ended, by default after 9 seconds.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            # So that tests of transaction timeouts need not wait long.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        }

    def configure(self) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self._config_file.write_text("".join(f"{name}={value}\n" for name, value in self.properties().items()))
        arguments = ["format", "--cluster-id", CLUSTER_ID, "--config", str(self._config_file)]
        made = subprocess.run(_java("kafka.tools.StorageTool", *arguments), capture_output=True, text=True)
        if made.returncode != 0:
            pytest.fail(f"Kafka's storage could not be made:\n{made.stdout}{made.stderr}")

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        return _java("kafka.Kafka", str(self._config_file)), os.environ

    def answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.ports[0])) != 0:
                return False  # sooner than a client would notice
        try:
            found = AdminClient(self._client_config() | {"log_level": 0}).list_topics(timeout=1)
        except KafkaException:
            return False
        return found.cluster_id == CLUSTER_ID and len(found.brokers) == 1

    @property
    def _config_file(self) -> Path:
        return self.folder / "server.properties"

    def _client_config(self) -> dict[str, Any]:
        # Reconnect soon after a restart; by default, clients wait a second.
        return {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 200}


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the offset up to which `consumer` may currently read."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            end: int = consumer.get_watermark_offsets(partition, PATIENCE_S, cached=False)[1]
            return end
        except KafkaException:
            # A restarted broker does not lead any partition yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _jars() -> Path:
    """Return where `tools/setup-servers` installs Kafka."""
    version = re.search("<kafka.version>(.*)<", POM.read_text())
    assert version is not None, f"{POM} names no version"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"tidemill/kafka-{version[1]}"


def _java(*command: str) -> list[str]:
    # Little memory, and the settings with the fastest start.
    options = ["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
    return ["java", *options, "-cp", f"{_jars()}/*", *command]


def _dotted(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in config.items()}
