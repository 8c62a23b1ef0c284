"""``tidemill tune`` measures, writes a table, and jobs follow it."""

from __future__ import annotations

import json
from pathlib import Path

import launched

PROGRAM = """
import numpy as np
from tidemill.mpi import MPI
total = np.zeros(3)
MPI.COMM_WORLD.Allreduce(np.ones(3), total)
assert total.tolist() == [MPI.COMM_WORLD.size] * 3
"""


def test_a_table_is_measured_and_followed(tmp_path: Path) -> None:
    table = tmp_path / "tune.toml"
    done = launched.run("tune", "-n", "2", "--out", table, "--budget", "0.0002", "--largest", "512")
    assert done.returncode == 0, done.stderr.decode()
    assert f"written: {table}" in done.stdout.decode()
    rules = table.read_text()
    assert 'collective = "allreduce", ranks = 2, hosts = 1' in rules and 'order = "repeatable"' in rules
    assert "[links]" in rules and "same_host = [" in rules and "other_host" not in rules
    (tmp_path / "app.py").write_text(PROGRAM)
    done = launched.run("run", "-n", "2", tmp_path / "app.py", env={"TIDEMILL_TUNE": str(table)})
    assert done.returncode == 0, done.stderr.decode()


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A job that went on without it would be slow, and nobody would know why."""
    table, app = tmp_path / "tune.toml", tmp_path / "app.py"
    app.write_text(PROGRAM)
    for text, words in [
        ("rules = [", "line 1"),
        ('version = 2\nrules = [{ collective = "fold", ranks = 2, hosts = 1, algorithm = "ring" }]\n', "fold"),
        ("version = 2\n[links]\nsame_host = [1e-6, -1.0, 1e-9]\n", "line 2: a link has a latency"),
    ]:
        table.write_text(text)
        done = launched.run("run", "-n", "2", app, env={"TIDEMILL_TUNE": str(table)})
        said = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 1 and str(table) in said and words in said, said
        assert "worker 0 failed" in said, said


def test_links_are_measured_and_simulated(tmp_path: Path) -> None:
    """What `tune` writes must be what `simulate` reads; and both measure on the workers of a job."""
    path = tmp_path / "links.json"
    done = launched.run("tune", "-n", "2", "--links", path)
    assert done.returncode == 0, done.stderr.decode()
    assert f"written: {path}" in done.stdout.decode() and "within a host: latency" in done.stdout.decode()
    assert "us of the processor for a message" in done.stdout.decode()
    assert json.loads(path.read_text())["rates"].keys() == {"message_s", "handshake_s"}
    done = launched.run("simulate", "rendezvous", "--workers", "300", "--parameters", path)
    assert done.returncode == 0 and "last worker" in done.stdout.decode(), done.stderr.decode()
    done = launched.run("simulate", "allreduce", "--workers", "64", "--parameters", path, "--noise", "measured")
    assert done.returncode == 0 and "last worker" in done.stdout.decode(), done.stderr.decode()
    done = launched.run("simulate", "--validate", "-n", "2", "--largest", "1KiB", "--parameters", path)
    assert done.returncode == 0 and "median error" in done.stdout.decode(), done.stderr.decode()
