"""What all tests have in common."""

import signal
from collections.abc import Iterator
from typing import TypeVar

import pytest
import servers

Kind = TypeVar("Kind", servers.Kafka, servers.Redis, servers.RabbitMQ)

# Who starts the tests may ignore signals (`nohup`, a job in the background), and the launcher hands that on to its workers, as
# it should: the tests of signals begin with what a terminal gives.
for number, usual in {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Kafka]:
    """A Kafka broker that all tests share: each makes topics of its own."""
    yield from _running(servers.Kafka, tmp_path_factory)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Redis]:
    """A Redis that all tests share: each has keys of its own, and counts on nothing older."""
    yield from _running(servers.Redis, tmp_path_factory)


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RabbitMQ]:
    """A RabbitMQ node that all tests share: each makes queues of its own."""
    yield from _running(servers.RabbitMQ, tmp_path_factory)


def _running(kind: type[Kind], folders: pytest.TempPathFactory) -> Iterator[Kind]:
    server = kind(folders.mktemp(kind.__name__))
    yield server
    server.stop()
