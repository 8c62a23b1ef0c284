"""Ends jobs that a test leaves running."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from subprocess import Popen

import launched
import pytest


@pytest.fixture
def jobs() -> Iterator[list[Popen[bytes]]]:
    """A list for the jobs that a test starts; those that still run at the test's end are interrupted."""
    running: list[Popen[bytes]] = []
    yield running
    for job in running:
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
        job.communicate(timeout=launched.PATIENCE_S)
