"""A chain or a fan of tasks whose sources get an acknowledgement of each message from the last task that handled it.

    topologies_worker.py POINTS

POINTS is a JSON list of objects with `topology`, `stages` (tasks behind the sources), `sources` and `tasks` (the copies of sources, and of each
stage), `size` (bytes), `pending`, `seconds`, `messages` and `kind`; all of them are run in turn by the same workers. Rank 0 prints a JSON object
for each point.

A source keeps `pending` messages in flight. Acknowledgements of 16 bytes go to a sink in the process of the source, so one clock times a message.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tidemill as tm
from tables import percentile  # beside this file

#: Of serialization, which is timed alone.
REPEATS_BYTES = 4_000_000


class Pending:
    """The messages in flight of one source, for the sink of its acknowledgements, which is in the same process."""

    def __init__(self, pending: int) -> None:
        self.pending = pending
        self.free = threading.Semaphore(pending)
        self.sent_ns: list[int] = []
        self.taken: list[tuple[int, int]] = []  # number and time of acknowledgements, as they come

    def acknowledge(self, number: int) -> None:
        self.taken.append((number, time.perf_counter_ns()))
        self.free.release()

    def is_right(self) -> bool:
        return sorted(number for number, _ in self.taken) == list(range(len(self.sent_ns)))

    def latencies_s(self) -> list[float]:
        """But for those of the first messages, which all leave at once."""
        return [(at - self.sent_ns[number]) / 1e9 for number, at in self.taken if number >= self.pending]

    def rate(self) -> float:
        """Messages a second, from when the first ones have come back."""
        start, end = self.taken[self.pending - 1][1], self.taken[-1][1]
        return (len(self.taken) - self.pending) / ((end - start) / 1e9)


def message(point: dict[str, Any], source: int, number: int, base: Any) -> Any:
    if point["kind"] == "objects":
        return source, number, base
    made = base.copy()
    made[:2] = source, number
    return made


def in_turn() -> Callable[[Any, int], int]:
    """Chooses copies in turn, whether they have room or not.

    `partition()` by itself passes over a copy without room: where links are full most messages would stay on the worker that has them, and
    nothing would be said of links.
    """
    numbers = itertools.count(tm.init().rank)
    return lambda one, copies: next(numbers) % copies


def graph_of(point: dict[str, Any], states: dict[int, Pending]) -> tm.Graph:
    """`states` is filled with the sources that run on this worker."""
    schema = None if point["kind"] == "objects" else "arrays"

    def send(out: Any, context: Any) -> None:
        mine, base = states[context.copy], payload(point)
        until = time.perf_counter() + point["seconds"]
        # As many as are in flight, and as many again, however long they take.
        least = 2 * mine.pending
        for number in range(max(point["messages"], least)):
            if number >= least and time.perf_counter() > until:
                break
            one = message(point, context.copy, number, base)
            if not mine.free.acquire(blocking=False):
                # What small messages are combined with may not come before one of them is back.
                out.flush()
                mine.free.acquire()
            mine.sent_ns.append(time.perf_counter_ns())
            out.send(one)
        out.flush()

    def forward(messages: Any, out: Any, context: Any) -> None:
        for one in messages:
            out.send(one)
            # Messages to a copy that a function chooses are collected; a source may be waiting for this one.
            out.flush()

    def handle(messages: Any, out: Any, context: Any) -> None:
        for one in messages:
            out.send(np.array([one[0], one[1]], dtype=np.int64))
            out.flush()

    def take(acknowledgements: Any, context: Any) -> None:
        mine = states[context.copy]
        for one in acknowledgements:
            mine.acknowledge(int(one[1]))

    graph = tm.Graph(f"topology {point['topology']}")
    last = graph.source("source", send, schema=schema, parallelism=point["sources"])
    for stage in range(1, point["stages"] + 1):
        is_last = stage == point["stages"]
        function, of = (handle, "arrays") if is_last else (forward, schema)
        task = graph.compute(f"task {stage}", function, schema=of, parallelism=point["tasks"])
        graph.connect(last, task, tm.exchange.partition(in_turn()))
        last = task
    sink = graph.sink("acknowledged", take, parallelism=point["sources"])
    graph.connect(last, sink, tm.exchange.partition(lambda one, copies: int(one[0])))
    return graph


def payload(point: dict[str, Any]) -> Any:
    numbers = np.zeros(max(point["size"] // 8, 2))
    return numbers.tolist() if point["kind"] == "objects" else numbers


def places(point: dict[str, Any], workers: int) -> dict[str, list[int]]:
    """All copies, one step after the other, on the workers in turn."""
    found = {"source": [copy % workers for copy in range(point["sources"])]}
    for stage in range(point["stages"]):
        first = point["sources"] + stage * point["tasks"]
        found[f"task {stage + 1}"] = [(first + copy) % workers for copy in range(point["tasks"])]
    return found | {"acknowledged": found["source"]}


class Ran(NamedTuple):
    """What one worker knows of a run."""

    latencies_s: list[float]
    rate: float
    messages: int
    is_right: bool
    busy_s: float


def run(job: Any, point: dict[str, Any]) -> Ran:
    where = places(point, job.comm.size)
    states = {copy: Pending(point["pending"]) for copy, rank in enumerate(where["source"]) if rank == job.rank}
    graph = graph_of(point, states)
    job.comm.Barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    graph.run(placement=where, share=False)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Ran(
        [latency_s for state in states.values() for latency_s in state.latencies_s()],
        sum(state.rate() for state in states.values()),
        sum(len(state.taken) for state in states.values()),
        all(state.is_right() for state in states.values()),
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def serialize_s(point: dict[str, Any]) -> float:
    """Processor seconds to serialize one message and to make it again."""
    one = message(point, 0, 0, payload(point))
    repeats = max(REPEATS_BYTES // point["size"], 10)
    start = time.process_time()
    for _ in range(repeats):
        pickle.loads(pickle.dumps(one, protocol=5))
    return (time.process_time() - start) / repeats


def measured(job: Any, point: dict[str, Any]) -> dict[str, Any] | None:
    start = time.perf_counter()
    everywhere = job.comm.gather(run(job, point))
    wall_s = time.perf_counter() - start
    if job.rank:
        return None
    ran = [Ran(*one) for one in everywhere]
    latencies_s = [latency_s for one in ran for latency_s in one.latencies_s]
    messages, busy_s = sum(one.messages for one in ran), sum(one.busy_s for one in ran)
    found = {name: point[name] for name in ("topology", "sources", "tasks", "size", "pending", "kind")}
    found |= {f"p{part}_s": percentile(latencies_s, part) for part in (50, 90, 99)}
    # Of the whole run, which begins and ends the graph as well.
    found |= {"cpu": busy_s / wall_s / (os.cpu_count() or 1), "busy_s": busy_s, "messages": messages}
    found |= {"rate": sum(one.rate for one in ran), "right": all(one.is_right for one in ran)}
    return found | {"serialize_s": serialize_s(point) if point["kind"] == "objects" else None}


def main() -> None:
    job = tm.init()
    for point in json.loads(sys.argv[1]):
        if found := measured(job, point):
            print(json.dumps(found), flush=True)


main()
