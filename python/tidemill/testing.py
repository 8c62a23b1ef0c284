"""Fixtures for tests of programs that use Tidemill, with pytest."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any, Literal

from tidemill._needs import needed
from tidemill.hosts import Cluster, HostsError, up

__all__ = ["hosts"]

_numbers = itertools.count(1)


def hosts(
    count: int,
    *,
    bandwidth: str | None = None,
    cpus: float | None = None,
    scope: Literal["function", "class", "module", "package", "session"] = "function",
) -> Any:
    """Return a pytest fixture: a cluster of emulated hosts, on which you start workers, and cut or kill a host.

    If this machine or user cannot have emulated hosts, tests that use the fixture are skipped, with the reason.

    Parameters
    ----------
    count : int
        Number of hosts.
    bandwidth, cpus : optional
        As in `tidemill.hosts.up`.
    scope : str, default="function"
        How long a cluster is used, as for any fixture. With a scope other than ``"function"``, a test finds the hosts
        as the tests before it have left them.

    Returns
    -------
    fixture
        Its value is a `tidemill.hosts.Cluster`.

    Examples
    --------
    In a test file::

        import subprocess
        import tidemill.testing

        cluster = tidemill.testing.hosts(3, bandwidth="100mbit")


        def test_a_lost_host(cluster):
            job = subprocess.Popen(["tidemill", "run", "--on", cluster.name, "-n", "6", "app.py"])
            ...
            cluster.kill(2)
            assert job.wait() != 0
    """
    pytest = needed("pytest", "tidemill.testing")

    def cluster() -> Iterator[Cluster]:
        try:
            made = up(count, bandwidth=bandwidth, cpus=cpus, name=f"test-{os.getpid()}-{next(_numbers)}")
        except HostsError as error:
            pytest.skip(str(error))
        with made:
            yield made

    return pytest.fixture(scope=scope)(cluster)
