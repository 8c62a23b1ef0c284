"""Programs written for mpi4py give the right answers over Tidemill, on any transport and any number of workers.

The programs are in `mpi_programs`; each is a script that does not mention Tidemill. `harness.py` there explains how the
same files run under the real mpi4py, which checks the programs themselves (`test_the_programs_hold_for_real_mpi`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import launched
import pytest
import seeds
from launched import run

PROGRAMS = Path(__file__).parents[1] / "mpi_programs"
NAMES = sorted(file.stem for file in PROGRAMS.glob("*.py") if file.stem not in ("harness", "everything"))
#: Workers and transport of the jobs that run all programs.
JOBS = [(1, "auto"), (2, "auto"), (3, "auto"), (5, "auto"), (3, "tcp")]
#: A real mpi4py to check the programs against: the interpreter of an environment that has it, over Open MPI.
PEER = Path(os.environ.get("TIDEMILL_PEER_PYTHON", Path(__file__).parents[3] / "bench/.peers/openmpi/bin/python"))


def check(workers: int, *options: str, names: list[str] = NAMES, **env: str) -> None:
    """Run the programs in one job; a failure names the program and its check."""
    code, text = report(workers, *options, names=names, **env)
    assert code == 0, text
    for name in names:
        assert has_passed(name, workers, text), text


def report(workers: int, *options: str, names: list[str], **env: str) -> tuple[int, str]:
    """The exit code of a job, and its output; a job that hangs is killed, and has failed."""
    try:
        done = run("run", "-n", str(workers), *options, PROGRAMS / "everything.py", *names, env=env)
    except subprocess.TimeoutExpired as error:
        return 1, (error.stdout or b"").decode() + (error.stderr or b"").decode() + f"\n{error}"
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def has_passed(name: str, workers: int, text: str) -> bool:
    return re.search(rf"\b{name} ok: [1-9]\d* checks on {workers} ranks", text) is not None


@cache
def failures(workers: int, transport: str) -> dict[str, str]:
    """The errors of the programs that failed. A failure ends the job; the programs after it run in another."""
    failed = {}
    left = NAMES
    while left:
        code, text = report(workers, "--transport", transport, names=left)
        begun = 0
        while begun < len(left) and has_passed(left[begun], workers, text):
            begun += 1
        # A job that ends badly after its last program blames that program.
        if code != 0 or begun < len(left):
            failed[left[min(begun, len(left) - 1)]] = text
        left = left[begun + 1 :]
    return failed


def jobs() -> list[Any]:
    """Each job, with all its programs, in one pytest-xdist process, so that it starts once."""
    return [
        pytest.param(*job, id=f"{job[0]}-{job[1]}", marks=pytest.mark.xdist_group(f"MPI programs {job}"))
        for job in JOBS
    ]


# Whatever is sampled, one job has several workers and one uses sockets.
@pytest.mark.sampled(2, always=("tcp",), by="workers")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("workers", "transport"), jobs())
def test_program(workers: int, transport: str, name: str) -> None:
    text = failures(workers, transport).get(name)
    assert text is None, text


def test_each_by_itself() -> None:
    """A program is a script that runs without the others."""
    name = seeds.dice().choice(NAMES)
    done = run("run", "-n", "3", PROGRAMS / f"{name}.py")
    assert done.returncode == 0 and f"{name} ok: ".encode() in done.stdout, (name, done)


def test_without_single_copy() -> None:
    """On kernels that forbid reading another process's memory, large messages go in pieces."""
    check(2, names=["p2p_buffers", "p2p_objects", "collectives_buffers"], TIDEMILL_SINGLE_COPY="0")


@pytest.mark.parametrize(
    "launcher",
    [["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root"], ["mpiexec.hydra"]],
    ids=["openmpi", "mpich"],
)
def test_started_by_mpirun(launcher: list[str]) -> None:
    """On clusters, programs start with whatever launcher is there."""
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"needs {launcher[0]} (make setup-peers installs it)")
    if "openmpi" in launcher[0] and os.geteuid() != 0:
        launcher = launcher[:-1]
    for name in ("p2p_objects", "collectives_buffers"):
        done = subprocess.run(
            [*launcher, "-n", "3", sys.executable, PROGRAMS / f"{name}.py"],
            capture_output=True,
            timeout=launched.PATIENCE_S,
        )
        assert done.returncode == 0 and b"on 3 ranks" in done.stdout, done.stdout.decode() + done.stderr.decode()


@pytest.mark.skipif(
    not PEER.exists() or shutil.which("mpirun.openmpi") is None,
    reason="needs mpi4py over Open MPI (bench/setup_peers.sh makes it)",
)
def test_the_programs_hold_for_real_mpi() -> None:
    """The programs expect what real MPI does, so that Tidemill is not tested against a misunderstanding."""
    settings = {"TIDEMILL_TEST_MPI": "mpi4py", "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    settings["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    done = subprocess.run(
        ["mpirun.openmpi", "--oversubscribe", "-n", "2", PEER, PROGRAMS / "everything.py"],
        env={**os.environ, **settings},
        capture_output=True,
        timeout=launched.PATIENCE_S,
    )
    text = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0 and text.count("checks on 2 ranks") == len(NAMES), text


def test_the_command_for_mpi4pys_own_tests(tmp_path: Path) -> None:
    """A test passes when it passes on every rank, and out-of-scope tests do not run."""
    (tmp_path / "arrayimpl.py").write_text("ArrayBackends = []\n")
    (tmp_path / "test_win.py").write_text("raise RuntimeError('is not run')\n")
    (tmp_path / "test_small.py").write_text(
        textwrap.dedent("""
            import unittest
            from mpi4py import MPI
            from mpi4py.util import pkl5

            class TestSmall(unittest.TestCase):
                def testSum(self):
                    self.assertEqual(pkl5.Intracomm(MPI.COMM_WORLD).allreduce(1), 2)

                def testFirst(self):
                    self.assertEqual(MPI.COMM_WORLD.rank, 0)

                @unittest.skip("always")
                def testSkipped(self):
                    pass
        """)
    )
    tool = Path(__file__).parents[3] / "tools/mpi4py-tests"
    done = subprocess.run(
        [sys.executable, tool, "--folder", tmp_path, "-n", "2"],
        capture_output=True,
        text=True,
        timeout=launched.PATIENCE_S,
    )
    assert done.returncode == 1, done.stderr
    assert "test_win: not run (one-sided communication)" in done.stdout
    assert "test_small: 1 failed, 1 passed, 1 skipped" in done.stdout
    assert "  TestSmall.testFirst: AssertionError: 1 != 0" in done.stdout
    assert done.stdout.endswith("1 of 2 passed (50.0 %), 1 skipped\n")
