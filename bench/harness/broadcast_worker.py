"""A broadcast, an answer of each task, and back: one source, N tasks, one sink, on the workers of several hosts.

    broadcast_worker.py POINTS

POINTS is a JSON list of objects with `overlay`, `tasks`, `size` (bytes), `singles`, `single_s`, `many`; all of them are run in turn by the same
workers. Source and sink are on worker 0, so one clock times both. Rank 0 prints a JSON object for each point.

Tasks are spread over hosts first, then over the workers of each. A task answers with eight bytes, so that answers do not limit the rate.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tidemill as tm
from tables import percentile  # beside this file

#: Messages that are not timed, before those that are.
WARM_UPS = 2


def spread_over_hosts(hosts: Sequence[str]) -> list[int]:
    """The workers in the order in which they get tasks: a first one of each host, then a second one, and so on."""
    seen: Counter[str] = Counter()
    places = []
    for rank, host in enumerate(hosts):
        places.append((seen[host], rank))
        seen[host] += 1
    return [rank for _, rank in sorted(places)]


class Answers:
    """What the sink has of the answers to each message, for the source, which is in the same process."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self.counts: Counter[int] = Counter()
        self.done = threading.Semaphore(0)
        self.starts_ns: list[int] = []
        self.ends_ns: list[int] = []

    def count(self, number: int) -> None:
        self.counts[number] += 1
        if self.counts[number] == self.tasks:
            self.ends_ns.append(time.perf_counter_ns())
            self.done.release()

    def are_complete(self) -> bool:
        return set(self.counts.values()) <= {self.tasks} and len(self.counts) == len(self.ends_ns)


def answer(messages: Any, out: Any, context: Any) -> None:
    for message in messages:
        out.send(message[:1].copy())
        out.flush()


def run(job: Any, point: dict[str, Any], order: Sequence[int], is_single: bool) -> tuple[Answers, float]:
    """One run of the graph; what worker 0 knows of it, and processor seconds of all workers."""
    answers = Answers(point["tasks"])
    base = np.zeros(max(point["size"] // 8, 1))

    def message(number: int) -> Any:
        made = base.copy()
        made[0] = number
        return made

    def singles(out: Any, context: Any) -> None:
        until = time.perf_counter() + point["single_s"]
        for number in range(point["singles"] + WARM_UPS):
            # Three at least, however long they take.
            if number >= WARM_UPS + 3 and time.perf_counter() > until:
                break
            one = message(number)
            answers.starts_ns.append(time.perf_counter_ns())
            out.send(one)
            out.flush()
            answers.done.acquire()

    def many(out: Any, context: Any) -> None:
        for number in range(point["many"]):
            one = message(number)
            answers.starts_ns.append(time.perf_counter_ns())
            out.send(one)
        out.flush()

    def collect(results: Any, context: Any) -> None:
        for result in results:
            answers.count(int(result[0]))

    graph = tm.Graph("broadcast")
    source = graph.source("source", singles if is_single else many, schema="arrays", parallelism=1)
    work = graph.compute("work", answer, schema="arrays", parallelism=point["tasks"])
    sink = graph.sink("sink", collect, parallelism=1)
    graph.connect(source, work, tm.exchange.broadcast(along=point["overlay"]))
    graph.connect(work, sink, tm.exchange.gather())
    places = [order[task % len(order)] for task in range(point["tasks"])]
    job.comm.Barrier()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    graph.run(placement={"source": [0], "work": places, "sink": [0]}, share=False)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    own_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    busy_s = job.comm.allreduce(own_s)
    # Of the whole run, which begins and ends the graph as well.
    return answers, busy_s / wall_s / (os.cpu_count() or 1)


def measured(job: Any, point: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"overlay": point["overlay"], "tasks": point["tasks"], "size": point["size"]}
    answers, cpu = run(job, point, order, is_single=True)
    if job.rank == 0:
        latencies_s = [(end - start) / 1e9 for start, end in zip(answers.starts_ns, answers.ends_ns, strict=True)][
            WARM_UPS:
        ]
        found |= {f"p{part}_s": percentile(latencies_s, part) for part in (50, 90, 99)}
        found |= {"singles": len(latencies_s), "single_cpu": cpu, "right": answers.are_complete()}
    answers, cpu = run(job, point, order, is_single=False)
    if job.rank == 0:
        took_s = (max(answers.ends_ns) - answers.starts_ns[0]) / 1e9
        found |= {"rate": point["many"] / took_s, "many": point["many"], "many_cpu": cpu}
        found["right"] &= answers.are_complete()
    return found


def main() -> None:
    job = tm.init()
    order = spread_over_hosts([str(worker["host"]) for worker in job.workers])
    for point in json.loads(sys.argv[1]):
        found = measured(job, point, order)
        if job.rank == 0:
            print(json.dumps(found), flush=True)


main()
