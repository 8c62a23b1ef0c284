"""Placements by measurements, compared with all possible placements."""

from __future__ import annotations

import itertools
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
import standing
import tidemill as tm
from tidemill.graph import Makespan, TaskInfo, WorkerInfo
from tidemill.graph._makespan import _Estimate


def info(name: str, copies: int, per_worker: bool = False) -> TaskInfo:
    return TaskInfo(name, copies, per_worker, 0, 0, [])


def worker(rank: int, host: str = "a", cores: float = 1) -> WorkerInfo:
    return WorkerInfo(rank, host, cores, 0)


def measured(seconds: dict[str, list[float]], traffic: dict[tuple[str, str], int] | None = None) -> Any:
    return SimpleNamespace(seconds={task: dict(enumerate(of)) for task, of in seconds.items()}, traffic=traffic or {})


def cost(model: Makespan, plan: dict[str, list[int]], tasks: list[TaskInfo], workers: list[WorkerInfo]) -> float:
    estimate = _Estimate(model, tasks, workers)
    for task, places in plan.items():
        for copy, at in enumerate(places):
            estimate.put((task, copy), at)
    return estimate.makespan()


def test_long_copies_are_spread_and_talkers_stay_together() -> None:
    workers = [worker(0), worker(1)]
    tasks = [info("a", 4)]
    plan = Makespan(measured({"a": [4, 3, 2, 1]}))(tasks, workers)
    assert sorted(sum([4, 3, 2, 1][copy] for copy in range(4) if plan["a"][copy] == at) for at in (0, 1)) == [5, 5]
    # The transfer takes longer than computing both on one worker.
    talk = measured({"a": [1], "b": [1]}, {("a", "b"): 5_000_000_000})
    plan = Makespan(talk)([info("a", 1), info("b", 1)], [worker(0), worker(1, "b")])
    assert plan["a"] == plan["b"]
    near = Makespan(measured({"a": [1], "b": [1]}, {("a", "b"): 1000}))([info("a", 1), info("b", 1)], workers)
    assert near["a"] != near["b"]
    # A worker with more cores gets more copies.
    plan = Makespan(measured({"a": [1.0] * 8}))([info("a", 8)], [worker(0, cores=3), worker(1)])
    assert plan["a"].count(0) == 6


def test_placements_are_near_the_best() -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    for _ in range(30):
        workers = [worker(rank, dice.choice("ab"), dice.choice([1, 2])) for rank in range(dice.randint(2, 3))]
        tasks = [info("a", dice.randint(1, 3)), info("b", dice.randint(1, 3))]
        seconds = {task.name: [dice.uniform(0, 2) for _ in range(task.copies)] for task in tasks}
        model = Makespan(measured(seconds, {("a", "b"): dice.choice([0, 10**8, 10**9])}))
        total = sum(task.copies for task in tasks)
        costs = []
        for places in itertools.product(range(len(workers)), repeat=total):
            plan = {"a": list(places[: tasks[0].copies]), "b": list(places[tasks[0].copies :])}
            costs.append(cost(model, plan, tasks, workers))
        found = model(tasks, workers)
        # Longest first takes at most 4/3 of the best time (Graham); traffic and cores add to this.
        assert cost(model, found, tasks, workers) <= 1.6 * min(costs) + 1e-9, f"seed {seed}"
        bad = {task.name: [0] * task.copies for task in tasks}
        moves = model.moves(bad, tasks, workers)
        assert all(move.gain_s > 0 and move.source != move.target for move in moves), f"seed {seed}"
        for move in moves:
            before = cost(model, bad, tasks, workers)
            assert bad[move.task][move.copy] == move.source
            bad[move.task][move.copy] = move.target
            assert before - cost(model, bad, tasks, workers) == pytest.approx(move.gain_s), f"seed {seed}"


def heavy_and_light() -> Any:
    def work(rows: Any, context: Any) -> None:
        list(rows)
        end = time.thread_time() + (0.3 if context.copy in (0, 2) else 0.01)
        while time.thread_time() < end:
            pass

    graph = tm.Graph("uneven")
    source = graph.source("numbers", lambda out, context: out.send(bytes(100_000)), parallelism=1)
    graph.connect(source, graph.sink("work", work, parallelism=4), tm.exchange.broadcast())
    before = graph.plan()
    result = graph.run()
    assert sorted(result.seconds["work"]) == [0, 1, 2, 3]
    assert (
        min(result.seconds["work"][copy] for copy in (0, 2))
        > 0.25
        > max(result.seconds["work"][copy] for copy in (1, 3))
    )
    assert result.traffic["numbers", "work"] >= 100_000
    after = Makespan(result)
    return before["work"], graph.plan(after)["work"], graph.run(placement=after)["work"]


def test_a_run_is_measured_and_placed_anew() -> None:
    for before, after, _ in standing.run(heavy_and_light, workers=2):
        assert before == [0, 1, 0, 1], "both long copies on one worker"
        assert after[0] != after[2]


def test_throughput_is_positive() -> None:
    with pytest.raises(tm.GraphError, match="network_bytes_per_s=0 must be more than 0"):
        Makespan(measured({}), network_bytes_per_s=0)
