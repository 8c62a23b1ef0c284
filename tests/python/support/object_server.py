"""A real S3 server on loopback, over a folder: `s3s-fs`, which checks signatures and supports multipart uploads.

``make setup-s3`` builds it into ``.venv/bin``; tests are skipped, with a message, if it does not exist.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import launched
import pytest
from local_servers.server import free_ports

ACCESS_KEY = "tidemill"
SECRET_KEY = "not much of a secret"


class Server:
    """The server; each folder in `root` is a bucket."""

    def __init__(self, root: Path) -> None:
        program = Path(sys.executable).parent / "s3s-fs"
        found = str(program) if program.exists() else shutil.which("s3s-fs")
        if found is None:
            pytest.skip("no S3 server to test with; make setup-s3 builds it")
        self.root = root
        self.port = free_ports(1)[0]
        self.log = root.parent / "s3s-fs.log"
        self._program = found
        self.start()

    def start(self) -> None:
        """Start the server, also again after `stop`."""
        keys = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self._program, "--host", "127.0.0.1", "--port", str(self.port), *keys, str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        launched.wait_until(self._answers, "the S3 server")

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def env(self) -> dict[str, str]:
        """Return the environment that a program needs to use the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def bucket(self, name: str) -> Path:
        """Create a bucket; its objects are the files in the folder returned."""
        folder = self.root / name
        folder.mkdir()
        return folder

    def uploads(self) -> int:
        """Count the uploads in progress."""
        return len(list(self.root.glob(".upload-*.json")))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yield a server with a bucket `jobs`, for one test."""
    (tmp_path / "s3").mkdir()
    server = Server(tmp_path / "s3")
    server.bucket("jobs")
    yield server
    server.stop()
