"""Rounds through Tidemill's task graphs, and by hand with mpi4py; `peers/rounds_mpi.cc` is the same by hand in C++.

    rounds_worker.py tidemill|openmpi OPERATION TASKS BYTES ROUNDS SINGLE

What the operations are, and what is timed, is told in that file. Rank 0 prints the same JSON object as it does.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tables import percentile  # beside this file

WARM_UPS = 2
Message = Any  # an array of float64
Times = Sequence[Sequence[int]]  # in nanoseconds, of each source or target one for each lone round
#: So many rounds, and the folder for pipes if they are lone: seconds, a sum over all targets, when they began and ended.
Run = Callable[[int, "str | None"], "tuple[float, float, Times, Times]"]


def make(words: int) -> Callable[[int, int], Message]:
    base = np.arange(words, dtype=np.float64)
    return lambda source, number: base + (source + number)


def summary(rate_s: float, starts_ns: Times, ends_ns: Times, total: float) -> str:
    """What rank 0 prints."""
    last = zip(np.max(starts_ns, axis=0), np.max(ends_ns, axis=0), strict=True)
    latencies_s = [float(end - start) / 1e9 for start, end in last]
    found = {"rate_s": rate_s, "p50_s": percentile(latencies_s, 50), "p99_s": percentile(latencies_s, 99)}
    return json.dumps({**found, "digest": f"{total:.0f}"})


class Handover:
    """Lets the sources of a lone round begin when all targets have the result of the one before, across processes.

    Each source reads a pipe with a name, into which each target writes a byte. It waits outside of what is timed.
    """

    def __init__(self, folder: str, sources: int, targets: int, make_pipes: bool) -> None:
        self.paths = [Path(folder) / f"source-{number}" for number in range(sources)]
        self.targets = targets
        for path in self.paths if make_pipes else ():
            os.mkfifo(path)

    def wait(self, pipe: int) -> None:
        left = self.targets
        while left:
            left -= len(os.read(pipe, left))

    def open(self, source: int) -> int:
        # Opened for both, so that nobody waits for the other side to open it.
        return os.open(self.paths[source], os.O_RDWR)

    def open_all(self) -> list[int]:
        return [self.open(source) for source in range(len(self.paths))]


def tidemill(operation: str, tasks: int, words: int, rounds: int, single: int) -> str:
    """The copies of source and target are spread over the workers; of `reduce` the target is one, of `broadcast` the source."""
    import tidemill as tm

    job = tm.init()
    run = loops(tasks, words) if operation == "loop" else flows(operation, tasks, words)
    for _ in range(WARM_UPS):
        run(rounds, None)
    rate_s, total, _, _ = run(rounds, None)
    folder = job.comm.bcast(tempfile.mkdtemp(prefix="tidemill-bench-") if job.rank == 0 else None)
    _, _, starts, ends = run(single, folder)
    if job.rank != 0:
        return ""
    shutil.rmtree(folder)
    return summary(rate_s, starts, ends, total)


def flows(operation: str, tasks: int, words: int) -> Run:
    """From sources to targets; lone rounds if there is a folder for pipes."""
    import tidemill as tm

    job, message = tm.init(), make(words)
    sources, targets = (1 if operation == "broadcast" else tasks), (1 if operation == "reduce" else tasks)
    exchange = {
        "reduce": lambda: tm.exchange.reduce("sum", rounds="strict"),
        "broadcast": tm.exchange.broadcast,
        "allreduce": lambda: tm.exchange.all_reduce("sum", rounds="strict"),
    }[operation]

    def many(rounds: int, out: Any, context: Any) -> None:
        for number in range(rounds):
            out.send(message(context.copy, number))

    def one_at_a_time(rounds: int, handover: Handover, out: Any, context: Any) -> list[int]:
        pipe, starts = handover.open(context.copy), []
        for number in range(rounds):
            if number:
                handover.wait(pipe)
            starts.append(time.monotonic_ns())
            out.send(message(context.copy, number))
            out.flush()
        os.close(pipe)
        return starts

    def receive(handover: Handover | None, results: Any, context: Any) -> tuple[float, list[int]]:
        pipes = handover.open_all() if handover else []
        total, ends = 0.0, []
        for result in results:
            total += float(result.sum())
            if handover:
                ends.append(time.monotonic_ns())
            for pipe in pipes:
                os.write(pipe, b"\0")
        for pipe in pipes:
            os.close(pipe)
        return total, ends

    def run(rounds: int, folder: str | None) -> tuple[float, float, Times, Times]:
        handover = Handover(folder, sources, targets, job.rank == 0) if folder else None
        send = functools.partial(one_at_a_time, rounds, handover) if handover else functools.partial(many, rounds)
        graph = tm.Graph(operation)
        source = graph.source("source", send, schema="arrays", parallelism=sources)
        target = graph.sink("target", functools.partial(receive, handover), parallelism=targets)
        graph.connect(source, target, exchange())
        job.comm.Barrier()
        start = time.perf_counter()
        found = graph.run()
        rate_s = time.perf_counter() - start
        totals, ends = zip(*found["target"].values(), strict=True)
        return rate_s, sum(totals), list(found["source"].values()), ends

    return run


def loops(tasks: int, words: int) -> Run:
    """Of one task, whose edge leads back: a copy sends when it has the sum of the round before."""
    import tidemill as tm

    job, message = tm.init(), make(words)

    def step(results: Any, out: Any, context: Any) -> tuple[float, list[int], list[int]]:
        total, starts, ends = 0.0, [], []
        for number, _ in enumerate(results.rounds()):
            starts.append(time.monotonic_ns())
            out.send(message(context.copy, number))
            total += float(next(results).sum())
            ends.append(time.monotonic_ns())
        return total, starts, ends

    def run(rounds: int, _: str | None) -> tuple[float, float, Times, Times]:
        graph = tm.Graph("loop")
        task = graph.compute("step", step, schema="arrays", parallelism=tasks)
        graph.feedback(task, task, tm.exchange.all_reduce("sum", rounds="strict"), limit=rounds)
        job.comm.Barrier()
        start = time.perf_counter()
        found = graph.run()
        rate_s = time.perf_counter() - start
        totals, starts, ends = zip(*found["step"].values(), strict=True)
        return rate_s, sum(totals), starts, ends

    return run


def openmpi(operation: str, tasks: int, words: int, rounds: int, single: int) -> str:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    assert size == tasks, "a rank for each task"
    message = make(words)
    result, none = np.zeros(words), np.zeros(0)

    def step(number: int) -> float:
        """One round; the sum of what arrives here."""
        if operation == "broadcast":
            mine = message(0, number) if rank == 0 else result
            comm.Bcast(mine, 0)
            return float(mine.sum())
        if operation == "reduce":
            comm.Reduce(message(rank, number), result, MPI.SUM, 0)
            return float(result.sum()) if rank == 0 else 0.0
        comm.Allreduce(message(rank, number), result, MPI.SUM)
        return float(result.sum())

    def hand_over() -> None:
        """Return at the sources when all targets have their result; targets that are not sources continue at once."""
        if operation == "loop":
            return
        if operation != "broadcast":
            comm.Barrier()
        elif rank:
            comm.Send(none, 0)
        for other in range(1, size) if operation == "broadcast" and rank == 0 else ():
            comm.Recv(none, other)

    def many() -> tuple[float, float]:
        comm.Barrier()
        start = time.perf_counter()
        total = sum(step(number) for number in range(rounds))
        comm.Barrier()
        return time.perf_counter() - start, total

    def one_at_a_time() -> tuple[Any, Any]:
        starts, ends = np.zeros(single, np.int64), np.zeros(single, np.int64)
        comm.Barrier()
        for number in range(single):
            starts[number] = time.monotonic_ns()
            step(number)
            ends[number] = time.monotonic_ns()
            hand_over()
        all_starts, all_ends = comm.gather(starts), comm.gather(ends)
        if rank:
            return [], []
        return all_starts[: 1 if operation == "broadcast" else size], all_ends[: 1 if operation == "reduce" else size]

    for _ in range(WARM_UPS):
        many()
    rate_s, total = many()
    starts, ends = one_at_a_time()
    totals = comm.gather(total)
    return summary(rate_s, starts, ends, sum(totals)) if rank == 0 else ""


def main() -> None:
    system, operation, *numbers = sys.argv[1:]
    found = {"tidemill": tidemill, "openmpi": openmpi}[system](
        operation, *map(int, numbers[:1]), int(numbers[1]) // 8, *map(int, numbers[2:])
    )
    if found:
        print(found, flush=True)


main()
