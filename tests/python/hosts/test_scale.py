"""Many workers, large messages, workers on several hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import workers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [24, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_many_workers_on_few_cores_finish(tmp_path: Path, transport: str, count: int) -> None:
    """Waiting workers must yield their core, or so many would starve each other."""
    program = """
        import numpy as np
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD
        total = np.empty(1000)
        for _ in range(20):
            comm.Allreduce(np.full(1000, comm.rank + 1.0), total)
            comm.Barrier()
        assert (total == comm.size * (comm.size + 1) / 2).all()
        everybody = np.empty(comm.size)
        comm.Alltoall(np.full(comm.size, float(comm.rank)), everybody)
        assert (everybody == np.arange(comm.size)).all()
        assert comm.allgather(comm.rank) == list(range(comm.size))
        half = comm.Split(comm.rank % 2, comm.rank)
        assert half.allreduce(1) == comm.size // 2
        big = np.arange(100_000) if comm.rank == 3 else np.empty(100_000, int)
        comm.Bcast(big, root=3)
        assert big[-1] == 99_999
    """
    with workers.Job(tmp_path, count, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        job.succeed()


def _available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) / 2**20
    return 0.0


@pytest.mark.timeout(900)  # what takes seconds by itself takes minutes where others want the memory's bandwidth, too
@pytest.mark.skipif(_available_gib() < 12, reason="needs 12 GiB of free memory")
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_messages_over_2_gib(tmp_path: Path, transport: str) -> None:
    """A 32-bit count anywhere along the way would truncate the message or refuse it."""
    program = """
        import numpy as np
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD
        n = 2**31 + 5
        data = np.zeros(n, np.uint8)
        if comm.rank == 0:
            data[:3], data[-3:], data[2**31] = 1, 2, 3
            comm.Send(data, 1)
            data[:] = 0
        else:
            status = MPI.Status()
            comm.Recv(data, 0, status=status)
            assert status.Get_count(MPI.BYTE) == n
            assert data[:4].tolist() == [1, 1, 1, 0] and data[-4:].tolist() == [0, 2, 2, 2] and data[2**31] == 3
            data[:] = 0
            data[-1] = 7
        comm.Bcast(data, root=1)
        assert data[-1] == 7 and data[0] == 0
        data[0] = 1
        comm.Allreduce(MPI.IN_PLACE, data)
        assert data[0] == 2 and data[-1] == 14
        # As an object: the array travels beside its pickle.
        if comm.rank == 0:
            comm.send({"data": data}, 1)
        else:
            del data
            data = comm.recv(source=0)["data"]
            assert data.size == n and data[0] == 2 and data[-1] == 14
    """
    with workers.Job(tmp_path, 2, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        job.succeed(patience_s=850)


def _can_unshare() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="needs root and unshare(1), to make a second host of a PID namespace")
def test_shared_memory_within_a_host_and_tcp_between(tmp_path: Path) -> None:
    """The choice must follow the hosts: a wrong guess would read another host's memory, or be slow."""
    program = """
        import numpy as np
        import tidemill as tm

        job = tm.init()
        comm = job.comm
        print([worker["transport"] for worker in job.workers])
        for n in (1, 5_000, 300_000):
            total = np.empty(n)
            comm.Allreduce(np.full(n, comm.rank + 1.0), total)
            assert (total == 6).all()
            out = np.empty((3, n))
            comm.Allgather(np.full(n, float(comm.rank)), out)
            assert (out == np.arange(3)[:, None]).all()
        assert comm.bcast("hello" if comm.rank == 2 else None, root=2) == "hello"
    """
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with workers.Job(tmp_path, 3, program, prefixes={2: apart}) as job:
        outputs = job.succeed()
    assert outputs == ["[None, 'shm', 'tcp']\n", "['shm', None, 'tcp']\n", "['tcp', 'tcp', None]\n"]
