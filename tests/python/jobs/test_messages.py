"""Messages of all sizes, by each of the ways that length and transport select."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import workers

PROGRAM = """
    import os
    os.sched_setaffinity(0, {CORES[int(os.environ["RANK"]) % len(CORES)]})
    import numpy as np
    from tidemill.mpi import MPI

    comm = MPI.COMM_WORLD
    peer = 1 - comm.rank
    KIB = 1024
    edges = [16 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
    sizes = [0, 1] + [edge + d for edge in edges for d in (-1, 0, 1)] + [5 * KIB * KIB + 3]

    def message(rank, size):
        return np.random.default_rng(size * 2 + rank).integers(0, 256, size, dtype=np.uint8)

    for size in sizes:
        mine, theirs = message(comm.rank, size), message(peer, size)
        found = np.zeros(size + 5000, np.uint8)
        for at in (0, 16, 4096 - 16):
            status = MPI.Status()
            comm.Sendrecv(mine, peer, 1, found[at : at + size], peer, 1, status)
            assert status.Get_count(MPI.BYTE) == size
            assert (found[at : at + size] == theirs).all() and not found[at + size :].any(), (size, at)
            found[:] = 0

    # All at once, in one direction; the last receive is posted first.
    messages = [message(0, size) for size in sizes]
    if comm.rank == 0:
        requests = [comm.Isend(data, peer, tag) for tag, data in enumerate(messages)]
    else:
        rooms = [np.empty(size, np.uint8) for size in sizes]
        requests = [comm.Irecv(room, peer, tag) for tag, room in reversed(list(enumerate(rooms)))]
    assert all(type(request) is MPI.Request for request in requests)
    MPI.Request.Waitall(requests)
    if comm.rank == 1:
        assert all((room == data).all() for room, data in zip(rooms, messages, strict=True))

    # Windows of offered and short messages, several of which one call may copy; every other one is misaligned.
    for size in 17 * KIB, 40 * KIB, 64 * KIB:
        window = [message(0, size + i) for i in range(40)]
        if comm.rank == 0:
            comm.Barrier()
            MPI.Request.Waitall([comm.Isend(data, peer, 4) for data in window])
        else:
            rooms = [np.empty(data.size + 16, np.uint8)[i % 2 * 16 :][: data.size] for i, data in enumerate(window)]
            requests = [comm.Irecv(room, peer, 4) for room in rooms]
            comm.Barrier()
            MPI.Request.Waitall(requests)
            assert all((room == data).all() for room, data in zip(rooms, window, strict=True)), size

    # A receive that is too short raises an error, and the next message arrives.
    for size in sizes[-1], 200 * KIB:
        if comm.rank == 0:
            comm.Send(message(0, size), peer)
            comm.Send(np.ones(3), peer)
        else:
            try:
                comm.Recv(np.empty(size - 1, np.uint8), peer)
                raise SystemExit("nothing was said")
            except MPI.Exception as error:
                assert error.Get_error_class() == MPI.ERR_TRUNCATE
            room = np.zeros(3)
            comm.Recv(room, peer)
            assert room.all()

    # A worker that computes does not obstruct others that wait for its message: rank 0 calls nothing until rank 1 has
    # all.
    if comm.rank == 0:
        requests = [comm.Isend(message(0, size), peer) for size in (200 * KIB, 900 * KIB, 3 * KIB * KIB)]
        import time
        while not os.path.exists("taken"):
            time.sleep(0.001)
        MPI.Request.Waitall(requests)
    else:
        for size in 200 * KIB, 900 * KIB, 3 * KIB * KIB:
            room = np.empty(size, np.uint8)
            comm.Recv(room, peer)
            assert (room == message(0, size)).all()
        open("taken", "w").close()
    comm.Barrier()
    print("all")
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "env", [{}, {"TIDEMILL_SINGLE_COPY": "0"}, {"TIDEMILL_TRANSPORT": "tcp"}], ids=["single copy", "pieces", "tcp"]
)
@pytest.mark.parametrize("own_cores", [True, False])
def test_messages_arrive_whole_by_every_way(tmp_path: Path, own_cores: bool, env: dict[str, str]) -> None:
    """Workers with their own cores poll for each other; those that share one core must sleep."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if own_cores and len(cores) < 2:
        pytest.skip("needs two cores")
    chosen = cores if own_cores else cores[:1]
    program = PROGRAM.replace("CORES", str(chosen))
    with workers.Job(tmp_path, 2, program, env) as job:
        assert job.succeed() == ["all\n"] * 2
