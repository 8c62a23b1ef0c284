"""Exchanges through Tidemill's task graphs, and by hand with mpi4py; `peers/exchange_mpi.cc` is the same by hand in C++.

    exchange_worker.py tidemill|openmpi OPERATION BYTES MESSAGES

What the operations are is told in that file. Rank 0 prints the same JSON object as it does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

WINDOW, DATA, END = 64, 1, 2
SINGLE = 200  # messages that are sent one at a time
PAUSE_S = 0.002  # between them
Message = Any  # an array of int64


def make(words: int) -> Callable[[int, int], Message]:
    base = np.arange(words)
    return lambda source, number: base + (source + number)


def tidemill(operation: str, words: int, messages: int) -> dict[str, Any]:
    """Sources and targets are one copy on each worker; of `gather` and `reduce` the target is one, of `broadcast` the source."""
    import tidemill as tm

    job = tm.init()
    message = make(words)
    exchange = {
        "partition": tm.exchange.partition,
        "reduce": lambda: tm.exchange.reduce({"v": "sum"}),
        "gather": tm.exchange.gather,
        "broadcast": tm.exchange.broadcast,
    }[operation]

    def graph(send: Callable[..., Any], receive: Callable[..., Any]) -> tm.Graph:
        made = tm.Graph(operation)
        source = made.source("source", send, schema={"v": "int64"}, parallelism=1 if operation == "broadcast" else None)
        made.connect(
            source,
            made.sink("target", receive, parallelism=1 if operation in ("gather", "reduce") else None),
            exchange(),
        )
        return made

    def many(count: int) -> tuple[float, int]:
        def send(out: Any, context: Any) -> None:
            for number in range(count):
                out.send({"v": message(context.copy, number)})

        def receive(rows: Any, context: Any) -> int:
            return sum(int(table.to_numpy()["v"].sum()) for table in rows)

        whole = graph(send, receive)
        job.comm.Barrier()
        start = time.perf_counter()
        totals = whole.run()["target"]
        return time.perf_counter() - start, sum(totals.values())

    def one_at_a_time() -> float:
        """From `send` to the arrival; the clock is the same in all processes of a host."""

        def send(out: Any, context: Any) -> None:
            for _ in range(SINGLE):
                time.sleep(PAUSE_S)
                out.send({"v": np.full(words, time.monotonic_ns())})
                out.flush()

        def receive(rows: Any, context: Any) -> list[int]:
            return [time.monotonic_ns() - int(table.to_numpy()["v"][0]) for table in rows]

        arrived = graph(send, receive).run()["target"]
        return statistics.median([latency for times in arrived.values() for latency in times]) / 1e9

    many(messages)
    rate_s, total = many(messages)
    # A reduction gives nothing before all has come.
    latency_s = one_at_a_time() if operation != "reduce" else None
    return {"rate_s": rate_s, "latency_s": latency_s, "digest": str(total % 2**64)} if job.rank == 0 else {}


def openmpi(operation: str, words: int, messages: int) -> dict[str, Any]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    message = make(words)
    every = np.zeros((size, words), np.int64)
    none = np.zeros(0, np.int64)

    def steps(count: int) -> Iterator[int]:
        """The sums of what arrives here, a message of all sources after the other."""
        for number in range(count):
            if operation == "broadcast":
                every[0] = message(0, number) if rank == 0 else 0
                comm.Bcast(every[0], 0)
                yield int(every[0].sum())
            elif operation == "reduce":
                comm.Reduce(message(rank, number), every[0], MPI.SUM, 0)
                yield int(every[0].sum()) if rank == 0 else 0
            else:
                comm.Gather(message(rank, number), every, 0)
                yield int(every.sum()) if rank == 0 else 0

    def partition(count: int) -> int:
        buffers = np.zeros((WINDOW, words), np.int64)
        receives = [comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG) for buffer in buffers]
        sends: dict[int, tuple[Any, Message]] = {}
        vacant, ended, total, number, status = list(range(WINDOW)), 0, 0, 0, [MPI.Status() for _ in range(WINDOW)]
        while ended < size or number <= count:
            while number < count and vacant:
                to, made = (rank + number) % size, message(rank, number)
                number += 1
                if to == rank:
                    total += int(made.sum())
                else:
                    slot = vacant.pop()
                    sends[slot] = (comm.Isend(made, to, DATA), made)
            if number == count:  # messages of one pair keep their order: the end comes last
                number += 1
                ended += 1
                for to in set(range(size)) - {rank}:
                    comm.Send(none, to, END)
            for slot in [slot for slot, (request, _) in sends.items() if request.Test()]:
                del sends[slot]
                vacant.append(slot)
            for slot in MPI.Request.Testsome(receives, status) or ():
                arrived = status.pop(0)
                status.append(MPI.Status())
                if arrived.tag == END:
                    ended += 1
                else:
                    total += int(buffers[slot].sum())
                receives[slot] = comm.Irecv(buffers[slot], MPI.ANY_SOURCE, MPI.ANY_TAG)
        MPI.Request.Waitall([request for request, _ in sends.values()])
        for receive in receives:
            receive.Cancel()
            receive.Wait()
        return total

    def many(count: int) -> tuple[float, int]:
        comm.Barrier()
        start = time.perf_counter()
        total = partition(count) if operation == "partition" else sum(steps(count))
        comm.Barrier()
        return time.perf_counter() - start, total

    def one_at_a_time() -> float:
        comm.Barrier()
        start = time.perf_counter()
        if operation != "partition":
            for _ in steps(SINGLE):
                comm.Barrier()
        for number in range(SINGLE if operation == "partition" else 0):
            if rank == 0:
                comm.Send(message(0, number), 1, DATA)
                comm.Recv(none, 1, END)
            elif rank == 1:
                comm.Recv(every[0], 0, DATA)
                comm.Send(none, 0, END)
        passes = 2 if operation == "partition" else 1  # there and back
        return (time.perf_counter() - start) / SINGLE / passes

    many(messages)
    rate_s, total = many(messages)
    latency_s = one_at_a_time()
    totals = comm.gather(total)
    return {"rate_s": rate_s, "latency_s": latency_s, "digest": str(sum(totals) % 2**64)} if totals else {}


def main() -> None:
    system, operation, size, messages = sys.argv[1:]
    found = {"tidemill": tidemill, "openmpi": openmpi}[system](operation, int(size) // 8, int(messages))
    if found:
        print(json.dumps(found), flush=True)


main()
