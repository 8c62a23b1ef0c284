"""One worker of a communicator benchmark: the same program under every system, with only the import line switched.

    comm_worker.py SYSTEM SOCKET

It connects to the runner's Unix socket and does what it is told, a line of JSON at a time: run operation `op` with
messages of `size` bytes, `batches` times `iterations`. Between commands it sleeps in the socket, outside the
communicator, so that the workers of several systems can be alive at once and be measured in turn.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import sys
import time
import zlib
from typing import Any, Protocol

import numpy as np

if sys.argv[1] == "tidemill":
    from tidemill.mpi import MPI
else:
    from mpi4py import MPI

Array = Any
comm: Any = MPI.COMM_WORLD  # one type for both systems
rank, size = comm.Get_rank(), comm.Get_size()
# Point to point runs on pairs (i, i + size/2), all at once; with two workers that is the usual ping-pong.
half = size // 2
partner = (rank + half) % size
first_half = rank < half


def pattern(count: int, seed: int) -> Array:
    """`count` float64 that both ends can compute; small whole numbers, so that sums are exact in any order."""
    return np.arange(count, dtype=np.float64) % 1021 + seed


class Operation(Protocol):
    """One thing to time: a call does it once, and `check` returns what came of it and what should have."""

    ways: int  # divides the time of a call: messages of a window, directions of a round trip

    def __call__(self) -> None: ...
    def check(self) -> tuple[Array, Array]: ...


class Latency:
    """Ping-pong of blocking Send and Recv; the time is one way, half of a round trip."""

    ways = 2

    def __init__(self, count: int) -> None:
        self.out, self.into = pattern(count, rank), np.zeros(count)

    def __call__(self) -> None:
        if first_half:
            comm.Send(self.out, partner, 1)
            comm.Recv(self.into, partner, 1)
        else:
            comm.Recv(self.into, partner, 1)
            comm.Send(self.out, partner, 1)

    def check(self) -> tuple[Array, Array]:
        return self.into, pattern(self.into.size, partner)


class Bandwidth:
    """A window of Isend to distinct slices, answered by one small message; the time is per message of the window."""

    def __init__(self, count: int) -> None:
        self.ways = max(4, min(64, (64 << 20) // (8 * count)))
        self.data = pattern(count * self.ways, rank) if first_half else np.zeros(count * self.ways)
        self.slices = [self.data[i * count : (i + 1) * count] for i in range(self.ways)]
        self.answer = np.zeros(1)

    def __call__(self) -> None:
        if first_half:
            requests = [comm.Isend(part, partner, 2) for part in self.slices]
            MPI.Request.Waitall(requests)
            comm.Recv(self.answer, partner, 3)
        else:
            requests = [comm.Irecv(part, partner, 2) for part in self.slices]
            MPI.Request.Waitall(requests)
            comm.Send(self.answer, partner, 3)

    def check(self) -> tuple[Array, Array]:
        return self.data, pattern(self.data.size, rank if first_half else partner)


class Bcast:
    """The root moves on by one each time, so that no root can run ahead of the workers it feeds."""

    ways = 1

    def __init__(self, count: int) -> None:
        self.data, self.count, self.root = pattern(count, rank), count, 0

    def __call__(self) -> None:
        comm.Bcast(self.data, self.root)
        self.root = (self.root + 1) % size

    def check(self) -> tuple[Array, Array]:
        # After the first call every rank held rank 0's values and later roots passed on the same.
        return self.data, pattern(self.count, 0)


class Allreduce:
    """Sum of float64 from one buffer into another."""

    ways = 1

    def __init__(self, count: int) -> None:
        self.out, self.into = pattern(count, rank), np.zeros(count)

    def __call__(self) -> None:
        comm.Allreduce(self.out, self.into, MPI.SUM)

    def check(self) -> tuple[Array, Array]:
        return self.into, size * pattern(self.into.size, 0) + size * (size - 1) / 2


class Alltoall:
    """The size is what each worker sends to each one, itself included, as in the OSU benchmarks."""

    ways = 1

    def __init__(self, count: int) -> None:
        self.out = np.concatenate([pattern(count, rank * size + dest) for dest in range(size)])
        self.into = np.zeros(count * size)
        self.count = count

    def __call__(self) -> None:
        comm.Alltoall(self.out, self.into)

    def check(self) -> tuple[Array, Array]:
        return self.into, np.concatenate([pattern(self.count, source * size + rank) for source in range(size)])


class Barrier:
    ways = 1

    def __init__(self, count: int) -> None:
        pass

    def __call__(self) -> None:
        comm.Barrier()

    def check(self) -> tuple[Array, Array]:
        return np.zeros(0), np.zeros(0)


OPERATIONS: dict[str, type[Any]] = {
    "latency": Latency,
    "bandwidth": Bandwidth,
    "bcast": Bcast,
    "allreduce": Allreduce,
    "alltoall": Alltoall,
    "barrier": Barrier,
}


def measure(operation: Operation, iterations: int, batches: int) -> list[float]:
    """Seconds per operation in each batch, on this rank's clock; ranks leave a barrier together before each batch."""
    times: list[float] = []
    for _ in range(max(1, iterations // 10)):
        operation()
    for _ in range(batches):
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            operation()
        times.append((time.perf_counter() - start) / (iterations * operation.ways))
    return times


def cpu_of_a_wait(seconds: float) -> float:
    """CPU time used by rank 1, all its threads, over wall time, while it waits `seconds` in a blocking Recv."""
    data = np.zeros(1)
    comm.Barrier()
    if rank == 0:
        time.sleep(seconds)
        comm.Send(data, 1, 4)
        return 0.0
    if rank > 1:
        time.sleep(seconds)
        return 0.0
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    comm.Recv(data, 0, 4)
    after, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - start
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) / wall


def main() -> None:
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(sys.argv[2])
    lines = channel.makefile("rw")

    def reply(**message: Any) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    reply(system=sys.argv[1], rank=rank, size=size, pid=os.getpid(), library=MPI.Get_library_version())
    gc.disable()
    key: tuple[str, int] | None = None
    operation: Operation | None = None
    for line in lines:
        command = json.loads(line)
        if command["op"] == "cpu_of_a_wait":
            reply(cpu=cpu_of_a_wait(command["seconds"]))
            continue
        if key != (command["op"], command["size"]):
            operation = None  # frees the old buffers before the new ones are made
            key = (command["op"], command["size"])
            operation = OPERATIONS[command["op"]](command["size"] // 8)
        assert operation is not None
        if command.get("verify"):
            operation()
            got, expected = operation.check()
            reply(correct=bool(np.array_equal(got, expected)), checksum=zlib.crc32(got))
        else:
            times = measure(operation, command["iterations"], command["batches"])
            reply(times=times, ways=operation.ways)


main()
