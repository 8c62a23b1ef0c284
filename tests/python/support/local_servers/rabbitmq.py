"""A separate RabbitMQ node, run by an ordinary user."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pika
import pika.exceptions

from .server import PATIENCE_S, Server

#: The command on the path is a wrapper for root only; this is the program that it runs.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMQ(Server):
    """Answers AMQP 0-9-1 on a port, user and password ``guest``. A restart keeps durable queues and persistent messages."""

    name = "RabbitMQ"
    #: AMQP, inter-node traffic, and Erlang's name service.
    port_count = 3

    @staticmethod
    def missing() -> str | None:
        return None if PROGRAM.exists() else "no RabbitMQ to test with"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.ports[0]}/%2f"

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.url))

    def declare(self, queue: str) -> None:
        """Declare a durable queue, and wait until it survives a kill: the node writes declarations some seconds later."""
        with self.connect() as connection:
            connection.channel().queue_declare(queue, durable=True)
        deadline = time.monotonic() + PATIENCE_S
        while not self._has_written(queue):
            assert time.monotonic() < deadline, f"RabbitMQ has not written its queue {queue}"
            time.sleep(0.05)

    def _has_written(self, queue: str) -> bool:
        # Its database, Mnesia, writes the changes of a transaction immediately, but the decision up to two seconds
        # later: if it is killed in between, it rolls everything back when it restarts. Whatever is in its tables is
        # decided.
        name, decided = queue.encode(), b"decision"
        for file in self.folder.glob("mnesia/*/*"):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # a log that was merged into a table
                _, found, behind = file.read_bytes().rpartition(name)
                if found and (not file.name.endswith(".LOG") or decided in behind):
                    return True
        return False

    def configure(self) -> None:
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text("log.console = true\nlog.file = false\n")
        (self.folder / "none.conf").touch()

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        amqp, dist, epmd = map(str, self.ports[:3])
        settings = {
            "RABBITMQ_NODENAME": "tidemill@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": amqp,
            "RABBITMQ_DIST_PORT": dist,
            "RABBITMQ_MNESIA_BASE": self.folder / "mnesia",
            "RABBITMQ_LOG_BASE": self.folder / "logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq.conf",
            "RABBITMQ_LOG": "-color",
            # Without the machine's configuration.
            "RABBITMQ_CONF_ENV_FILE": self.folder / "none.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.folder / "none.config",
            # Two schedulers that do not spin while idle leave the machine to the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": epmd,
            # The location of the cookie.
            "HOME": self.folder,
        }
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
        return [PROGRAM], theirs | {name: str(value) for name, value in settings.items()}

    def answers(self) -> bool:
        try:
            with self.connect() as connection:
                connection.channel()
            return True
        except (pika.exceptions.AMQPError, OSError):
            return False
