"""Joining a job: what `init` returns, how often it may be called, and what happens around its end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launched import PATIENCE_S, run

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEMILL_RANK", "TIDEMILL_SIZE"))}


def program(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    return file


def alone(tmp_path: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, program(tmp_path, text)]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **env}, timeout=60)


def on(workers: int, tmp_path: Path, text: str, *options: str) -> tuple[int, list[str], str]:
    done = run("run", "-n", str(workers), *options, program(tmp_path, text))
    return done.returncode, sorted(done.stdout.decode().splitlines()), done.stderr.decode()


def test_a_program_alone_is_a_job_of_one(tmp_path: Path) -> None:
    done = alone(
        tmp_path,
        """
        import tidemill as tm
        job = tm.init()
        assert job is tm.init() and (job.rank, job.size) == (0, 1) and job.comm.allgather("x") == ["x"]
        assert job.workers[0]["transport"] is None and job.workers[0]["pid"] > 0
        print(job)
        """,
    )
    assert done.stdout == "<tidemill.Job: rank 0 of 1>\n", done.stderr


def test_a_job_is_joined_without_numpy(tmp_path: Path) -> None:
    """Importing NumPy would take most of a worker's start, even for programs that do not use it."""
    done = alone(
        tmp_path,
        """
        import sys
        import tidemill as tm
        from tidemill.mpi import MPI
        comm = tm.init().comm
        assert comm.Dup().allreduce(3) == comm.bcast(3) == 3 and MPI.DOUBLE == MPI.Datatype(MPI.DOUBLE) and MPI.SUM != MPI.MAX
        assert tm.from_pylist([{"a": 1}]).group_by("a").agg(n=tm.count()).to_pylist() == [{"a": 1, "n": 1}]
        assert comm.gather([b"x"]) == [[b"x"]] and comm.scatter([4]) == 4 and comm.alltoall([5]) == [5]
        assert "numpy" not in sys.modules and "ctypes" not in sys.modules
        assert MPI.DOUBLE.extent == MPI.DOUBLE.size == 8 and MPI.Alloc_mem(5).nbytes == 5
        import numpy as np
        total = np.zeros(1)
        comm.Allreduce(np.ones(1), total)
        assert total[0] == 1
        """,
    )
    assert done.returncode == 0, done.stderr


def test_ranks_and_sizes(tmp_path: Path) -> None:
    code, lines, err = on(
        3,
        tmp_path,
        """
        import tidemill as tm
        from tidemill.mpi import MPI
        job = tm.init()
        assert job.comm is MPI.COMM_WORLD and tm.init() is job
        assert [w["rank"] for w in job.workers] == [0, 1, 2]
        print(job.rank, job.size, sorted({w["transport"] for w in job.workers if w["rank"] != job.rank}))
        """,
    )
    assert (code, lines) == (0, [f"[{r}] {r} 3 ['shm']" for r in range(3)]), err


def test_transport_by_argument(tmp_path: Path) -> None:
    code, lines, err = on(
        2,
        tmp_path,
        """
        import tidemill as tm
        job = tm.init(transport="tcp", stall_warning="5s")
        print(job.workers[1 - job.rank]["transport"])
        """,
    )
    assert (code, lines) == (0, ["[0] tcp", "[1] tcp"]), err


@pytest.mark.parametrize("argument", ["transport='pigeon'", "stall_warning=-1"])
def test_wrong_arguments(tmp_path: Path, argument: str) -> None:
    done = alone(tmp_path, f"import tidemill as tm\ntm.init({argument})")
    assert done.returncode == 1 and argument.split("=")[1].strip("'") in done.stderr


def test_after_finalize(tmp_path: Path) -> None:
    done = alone(
        tmp_path,
        """
        import tidemill as tm
        from tidemill.mpi import MPI
        comm = MPI.COMM_WORLD
        assert MPI.Is_initialized() and not MPI.Is_finalized()
        MPI.Finalize()
        assert MPI.Is_initialized() and MPI.Is_finalized()
        for call in (tm.init, MPI.Init, MPI.Finalize):
            try:
                call()
            except MPI.Exception as error:
                print("left" in str(error))
        """,
    )
    assert done.stdout.split() == ["True"] * 3 and done.returncode == 0, done.stderr


def test_init_in_several_threads_joins_once(tmp_path: Path) -> None:
    code, lines, err = on(
        2,
        tmp_path,
        """
        import threading
        import tidemill as tm
        jobs = []
        threads = [threading.Thread(target=lambda: jobs.append(tm.init())) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(len({id(job) for job in jobs}), jobs[0].comm.allreduce(1))
        """,
    )
    assert (code, lines) == (0, ["[0] 1 2", "[1] 1 2"]), err


def test_threads_communicate_at_the_same_time(tmp_path: Path) -> None:
    """A waiting thread must not keep another from its messages: every wait releases the GIL."""
    code, lines, err = on(
        2,
        tmp_path,
        """
        import threading
        import numpy as np
        from tidemill.mpi import MPI
        comm = MPI.COMM_WORLD
        peer = 1 - comm.rank
        comms = [comm.Dup() for _ in range(4)]
        wrong = []
        def add(a, b, datatype):
            np.frombuffer(b)[:] += np.frombuffer(a)
        op = MPI.Op.Create(add)
        def talk(i):
            got = np.empty(1000)
            for n in range(100):
                if (comm.rank + i) % 2:
                    comms[i].Send(np.full(1000, 10.0 * i + n), peer)
                    comms[i].Recv(got, peer)
                else:
                    comms[i].Recv(got, peer)
                    comms[i].Send(np.full(1000, 10.0 * i + n), peer)
                if got[0] != 10 * i + n:
                    wrong.append((i, n))
                comms[i].Allreduce(MPI.IN_PLACE, got)
                # A Python function needs the GIL, wherever the native code runs it.
                total = np.empty(1000)
                comms[i].Iallreduce(np.ones(1000), total, op).Wait()
                if total[0] != 2:
                    wrong.append((i, n, total[0]))
        threads = [threading.Thread(target=talk, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(wrong)
        """,
    )
    assert (code, lines) == (0, ["[0] []", "[1] []"]), err


def test_an_exception_in_a_thread_is_told_too(tmp_path: Path) -> None:
    """The main thread of that worker goes on, but whoever waits for the thread's messages must not wait forever."""
    code, lines, err = on(
        2,
        tmp_path,
        """
        import threading
        import tidemill as tm
        comm = tm.init().comm
        if comm.rank == 0:
            def fail():
                raise ValueError("in a thread")
            threading.Thread(target=fail).start()
        try:
            comm.recv(source=1 - comm.rank)
        except tm.PeerFailed as error:
            print(error.rank, "in a thread" in error.traceback)
        """,
    )
    assert (code, lines) == (0, ["[0] 0 True", "[1] 0 True"]), err


def test_who_is_alone_goes_on_after_an_exception() -> None:
    """In a thread, and at a prompt: neither ends the program, and nobody waits for a lost worker."""
    lines = """
import threading
import tidemill as tm
comm = tm.init().comm
thread = threading.Thread(target=lambda: [].pop())
thread.start(); thread.join()
{}.popitem()
print("and still", comm.allreduce(3))
"""
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=lines, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S
    )
    assert "and still 3" in done.stdout, done.stderr
    assert "pop from empty list" in done.stderr
    assert "dictionary is empty" in done.stderr


def test_child_processes_are_no_workers(tmp_path: Path) -> None:
    """A worker's children must not try to take its place, whether spawned or separate programs."""
    code, lines, err = on(
        2,
        tmp_path,
        """
        import multiprocessing, os, subprocess, sys
        from tidemill.mpi import MPI

        def child(connection):
            connection.send(MPI.COMM_WORLD.size)

        if __name__ == "__main__":
            comm = MPI.COMM_WORLD
            here, there = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=child, args=(there,))
            process.start()
            size = here.recv()
            process.join()
            command = [sys.executable, "-c", "import tidemill as tm; print(tm.init().size)"]
            out = subprocess.run(command, capture_output=True, text=True).stdout.strip()
            print(size, out, comm.allreduce(1))
        """,
    )
    assert (code, lines) == (0, ["[0] 1 1 2", "[1] 1 1 2"]), err


def test_run_within_a_worker(tmp_path: Path) -> None:
    code, lines, err = on(
        2,
        tmp_path,
        """
        import tidemill as tm
        job = tm.init()
        print(tm.run(lambda: tm.init().comm.allreduce(1), workers=2), job.comm.allreduce(1))
        """,
    )
    assert (code, lines) == (0, ["[0] [2, 2] 2", "[1] [2, 2] 2"]), err
