"""One host receives slowly: adaptive all-reduces go around it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import launched
import pytest
import tidemill.testing
from tidemill.hosts import Cluster

pytestmark = pytest.mark.xdist_group("hosts")

HOSTS = 4
SLOW = 2
cluster = tidemill.testing.hosts(HOSTS, scope="module", bandwidth="40mbit")

#: Reduces a vector of 1 MiB, and prints the path that it took.
PROGRAM = """
import numpy as np

from tidemill.mpi import COMM_WORLD as comm

mine, total = np.full(1 << 17, float(comm.rank)), np.empty(1 << 17)
for _ in range(2):
    comm.Allreduce(mine, total, algorithm="adaptive")
    assert (total == sum(range(comm.size))).all()
if comm.rank == 0:
    print(comm.overlay())
"""


def test_all_reduces_go_around_a_slow_link(tmp_path: Path, cluster: Cluster) -> None:
    """A ring would pass everything through the slow host; trees in which it combines would, too."""
    app = tmp_path / "app.py"
    app.write_text(textwrap.dedent(PROGRAM))
    cluster.set(SLOW, incoming="4mbit")
    job = launched.run("run", "--on", cluster.name, "-n", str(HOSTS), app)
    assert job.returncode == 0, job.stderr.decode()
    output = job.stdout.decode()
    assert f"rank {SLOW}'s host receives" in output and "without an overlay" in output, output
