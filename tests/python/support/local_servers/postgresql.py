"""A separate PostgreSQL on loopback, with a newly created cluster."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from local_servers.server import Server

#: PostgreSQL refuses to run as root. The distribution's package creates this user.
USER = "postgres"


def _programs() -> Path | None:
    """Return the folder of the server's programs, which distributions do not put on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    program = shutil.which("postgres")
    return Path(program).resolve().parent if program else None


def _as_user() -> list[str]:
    """Return the prefix of commands, so that the server does not run as root."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.geteuid() == 0 else []


class PostgreSQL(Server):
    """A database ``postgres`` for the user ``tests``, without a password."""

    name = "PostgreSQL"
    port_count = 1

    @staticmethod
    def missing() -> str | None:
        if _programs() is None:
            return "no PostgreSQL server"
        if os.geteuid() == 0:
            if shutil.which("setpriv") is None:
                return "PostgreSQL refuses to be root, and there is no setpriv (of util-linux)"
            try:
                pwd.getpwnam(USER)
            except KeyError:
                return f"PostgreSQL refuses to be root, and there is no user {USER}"
        return None

    @property
    def uri(self) -> str:
        return f"postgresql://tests@127.0.0.1:{self.ports[0]}/postgres"

    def configure(self) -> None:
        if hasattr(self, "data"):
            return
        # Folders of tests may be visible only to root, so the cluster uses one that its user can access.
        self.data = Path(tempfile.mkdtemp(prefix="tidemill-postgresql-")) if os.geteuid() == 0 else self.folder / "data"
        if os.geteuid() == 0:
            shutil.chown(self.data, USER, USER)
        programs = _programs()
        assert programs is not None
        made = subprocess.run(
            [
                *_as_user(),
                programs / "initdb",
                "-D",
                self.data,
                "-U",
                "tests",
                "-A",
                "trust",
                "--no-sync",
                "-E",
                "UTF8",
            ],
            cwd="/",
            capture_output=True,
        )
        assert made.returncode == 0, made.stderr.decode()

    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        programs = _programs()
        assert programs is not None
        options = ["-p", str(self.ports[0]), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        # Files in the cluster's folder. A killed server would leave others behind in /dev/shm.
        options += ["-c", "dynamic_shared_memory_type=mmap"]
        return [*_as_user(), programs / "postgres", "-D", self.data, "-F", *options], dict(os.environ)

    def remove(self) -> None:
        """End the server, and remove its data."""
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.ports[0]), 1) as connection:
                # A startup message; a server that is not ready refuses it with a message that begins with E.
                connection.sendall(b"\x00\x00\x00\x26\x00\x03\x00\x00user\x00tests\x00database\x00postgres\x00\x00")
                return connection.recv(1) == b"R"
        except OSError:
            return False
