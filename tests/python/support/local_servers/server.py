"""The common part of all servers: fixed ports, a start that waits until the server answers, and a reliable end."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

#: Longer than any server takes to start on the slowest machine.
PATIENCE_S = 120.0
GUARD = Path(__file__).with_name("guard.py")


class PortTakenError(Exception):
    """Another process has taken one of the ports."""


class Server(ABC):
    """A server that runs from its creation until `stop`, on its own ports, with its data in `folder`.

    If the tests are killed, it ends with them (see `guard.py`).
    """

    #: Its name for messages, and the number of ports it needs.
    name: str
    port_count: int

    def __init__(self, folder: Path) -> None:
        reason = self.missing()
        if reason is not None:
            pytest.skip(f"{reason}; make setup-servers installs it")
        self.folder = folder
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        for attempts_left in reversed(range(5)):
            self.ports = free_ports(self.port_count)
            try:
                self.configure()
                self.start()
                return
            except PortTakenError as error:
                assert attempts_left > 0, error

    @staticmethod
    @abstractmethod
    def missing() -> str | None:
        """Return what is not installed, or None."""

    @abstractmethod
    def configure(self) -> None:
        """Write the files that must be in `folder` before the first start."""

    @abstractmethod
    def command(self) -> tuple[Sequence[str | Path], Mapping[str, str]]:
        """Return the command that runs the server in the foreground, and its environment."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves its clients."""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers, on its previous ports and with the data that it has kept."""
        assert not self.is_running, f"{self.name} is running"
        command, env = self.command()
        with self.log.open("ab") as log:
            log_begin = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", GUARD, *command],
                env=env,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # The terminal's Ctrl-C is for the tests, which stop the server at their end.
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self.answers():
            if self.is_running and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            self.stop()
            text = self.log.read_bytes()[log_begin:].decode(errors="replace")
            if re.search("address.* in use|eaddrinuse", text, re.IGNORECASE):
                raise PortTakenError(text)
            pytest.fail(f"{self.name} did not start; its log ends with\n{text[-5000:]}")

    def stop(self, *, gently: bool = False) -> None:
        """End the server, by SIGTERM and with time to shut down if `gently`, by SIGKILL otherwise."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        if gently:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
        process.stdin.close()
        process.wait()

    def restart(self, *, gently: bool = False) -> None:
        """Stop the server like `stop` and start it again; clients find it at the same address."""
        self.stop(gently=gently)
        self.start()


def free_ports(count: int) -> list[int]:
    """Find `count` unused ports of loopback.

    They are below those that the system uses for outgoing connections: one of these could take the place of a
    restarting server, even one of its own client, which would then talk to itself.
    """
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(10_000, max(lowest_outgoing, 20_000))
    # Independent of the tests' seed: two runs with the same seed would choose the same ports.
    choice = random.SystemRandom()
    ports: list[int] = []
    while len(ports) < count:
        port = choice.choice(candidates)
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As servers do: an ended connection on the port does not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            if port not in ports:
                ports.append(port)
    return ports
