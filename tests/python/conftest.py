"""What all tests have in common."""

import signal
from collections.abc import Iterator
from typing import TypeVar

import pytest
import servers

#: Files of tests that take longest, those first that take most. Files are dealt to processes whole: a long one that began last would
#: keep one busy when the others have nothing left.
LONGEST = [
    "test_stream_recovery",
    "test_stream_evolution",
    "test_stream_state",
    "test_stream_rabbitmq",
    "test_bench",
    "test_stream_kafka_tls",
    "test_stream_checkpoints",
    "test_dataset_distributed",
    "test_failures",
    "test_viz_browser",
    "test_mpi_programs",
    "test_hosts",
    "test_dataset_spilled_joins",
    "test_series_clean",
    "test_dataset_workers",
    "test_series_streams",
    "test_scale",
    "test_stream_at_most_once",
    "test_series_follow",
    "test_series_failures",
    "test_dataset_stores",
    "test_stream_kafka",
    "test_viz_browser_camera",
    "test_stream_connectors",
    "test_dataset_groups",
    "test_series_app",
    "test_viz_library_browser",
    "test_mds_workers",
    "test_stream_leases",
    "test_series_embed",
    "test_stream_dead_letters",
    "test_servers",
]

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; `--no-loadscope-reorder` keeps it so, where pytest-xdist would begin with those of most tests."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


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
