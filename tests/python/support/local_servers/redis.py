"""An in-memory Redis."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis
import redis.backoff
import redis.retry

from .server import Server


class Redis(Server):
    """Answers on a port, and on a Unix socket in `folder`. A restart forgets the data, unless `keep` was called."""

    name = "Redis"
    port_count = 1

    @staticmethod
    def missing() -> str | None:
        return None if shutil.which("redis-server") else "no Redis to test with"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.ports[0]}/0"

    @property
    def socket_path(self) -> Path:
        return self.folder / "redis.sock"

    def client(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.ports[0], decode_responses=True)

    def keep(self) -> None:
        """Write every command to disk before it is answered, also after later restarts.

        Loading then takes long, as with a large database, and meanwhile clients are told that the server is still
        loading.
        """
        with self.client() as client:
            client.config_set("key-load-delay", 200)  # us
            client.config_set("appendfsync", "always")
            client.config_set("appendonly", "yes")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.02)
            client.config_rewrite()

    def configure(self) -> None:
        settings = {
            "bind": "127.0.0.1",
            "port": self.ports[0],
            "unixsocket": self.socket_path,
            "dir": self.folder,
            "save": '""',
            "appendonly": "no",
        }
        self._config_file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        return ["redis-server", self._config_file], os.environ

    def answers(self) -> bool:
        # Through the socket, which cannot belong to another server.
        once = redis.retry.Retry(redis.backoff.NoBackoff(), retries=0)
        with redis.Redis(unix_socket_path=str(self.socket_path), retry=once) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    @property
    def _config_file(self) -> Path:
        return self.folder / "redis.conf"
