"""The placement of programs: who gets workers to itself, and how many."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import seeds
import standing
import tidemill as tm
from tidemill.graph import Applications, TaskInfo, WorkerInfo

MIB = 1 << 20


def workers_on(*hosts: str, memory_mib: int = 0) -> list[WorkerInfo]:
    return [WorkerInfo(rank, host, 2.0, memory_mib * MIB) for rank, host in enumerate(hosts)]


def program(name: str, *sources: str, workers: int, copies: int = 0, cores: float = 0, memory_mib: int = 0) -> TaskInfo:
    return TaskInfo(name, copies or workers, not copies, cores, memory_mib * MIB, [], True, sources)


def measured(seconds: dict[str, float], traffic: dict[tuple[str, str], int]) -> Any:
    return tm.graph.Result(
        {}, {name: {0: time} for name, time in seconds.items()}, traffic, {"edges": [], "spilled_bytes": 0, "wall_s": 0}
    )


def test_programs_at_the_same_time_are_apart_in_proportion() -> None:
    six = workers_on(*"aabbcc")
    tasks = [
        program("stream", workers=6, cores=1),
        program("query", workers=6, cores=2),
        program("solve", "stream", "query", workers=6),
    ]
    plan = Applications()(tasks, six)
    assert plan == {"stream": [0, 1], "query": [2, 3, 4, 5], "solve": [0, 1, 2, 3, 4, 5]}
    # As measured, and without sharing; traffic draws the solver to the host of the query.
    found = measured({"stream": 3, "query": 1, "solve": 1}, {("stream", "solve"): 10, ("query", "solve"): 1000})
    assert Applications(found)(tasks, six)["stream"] == [0, 1, 2, 3]
    apart = Applications(found, share=False)(tasks, workers_on(*"aabbbb"))
    assert sorted(itertools.chain(*apart.values())) == list(range(6)), apart
    # A fixed number of copies is kept.
    tasks[1] = program("query", workers=6, copies=1, cores=100)
    assert Applications()(tasks, six)["stream"] == [0, 1, 2, 3, 4]


def test_heavy_edges_stay_on_a_host() -> None:
    """A program that takes what another one sends goes to its host; tasks between go to the workers beside them."""
    four = workers_on(*"abab")
    tasks = [
        program("left", workers=4, copies=2),
        program("right", workers=4, copies=2),
        TaskInfo("clean", 2, False, 0, 0, [], False, ("right",)),
        program("sum", "clean", workers=4, copies=2),
        program("both", "left", "sum", workers=4, copies=1),
    ]
    plan = Applications()(tasks, four)
    assert plan["left"] == [0, 2], "one host"
    assert plan["right"] == plan["clean"] == plan["sum"] == [1, 3]
    near = {"left": 5, "sum": 500}
    found = measured({}, {(name, "both"): sent for name, sent in near.items()})
    assert Applications(found)(tasks, four)["both"] == [1]


def test_more_programs_than_workers_share() -> None:
    tasks = [program(name, workers=2, cores=cores) for name, cores in zip("abcd", [1, 5, 1, 4], strict=True)]
    assert Applications()(tasks, workers_on("x", "x")) == {"a": [1], "b": [0], "c": [0], "d": [1]}
    few = [program(name, workers=1) for name in "ab"]
    assert Applications()(few, workers_on("x")) == {"a": [0], "b": [0]}
    heavy = [program(name, workers=1, memory_mib=60) for name in "ab"]
    with pytest.raises(tm.GraphError, match=r"worker 0 would run a, b, which need .*TIDEMILL_MEMORY"):
        Applications()(heavy, workers_on("x", memory_mib=100))


@pytest.mark.parametrize("case", range(20))
def test_programs_that_may_meet_never_do(case: int) -> None:
    """In any graph: with enough workers, programs that can run at the same time are disjoint."""
    chance = seeds.dice("programs", case)
    names = [f"p{number}" for number in range(chance.randint(2, 7))]
    leads = {(one, other) for one, other in itertools.combinations(names, 2) if chance.random() < 0.4}
    workers = chance.randint(len(names), 12)
    sources = {name: [one for one, other in sorted(leads) if other == name] for name in names}
    tasks = [program(name, *sources[name], workers=workers, cores=chance.randint(0, 3)) for name in names]
    plan = Applications()(tasks, workers_on(*(chance.choice("abc") for _ in range(workers))))
    after = {name: {name} for name in names}
    for name in names:
        for source in sources[name]:
            after[name] |= after[source]
    for one, other in itertools.combinations(names, 2):
        if one not in after[other]:
            assert not set(plan[one]) & set(plan[other]), (leads, plan)
    assert all(plan[name] and len(set(plan[name])) == len(plan[name]) for name in names)


def planned() -> Any:
    """A graph of three programs, without a word of where they run."""

    def send(out: Any, context: Any) -> int:
        out.send((context.task, context.comm.allreduce(1)))
        return context.worker

    def receive(rows: Any, context: Any) -> Any:
        return sorted(set(rows)), context.worker

    graph = tm.Graph("planned")
    sources = [graph.source(name, send, comm=True, cores=cores) for name, cores in [("small", 1), ("large", 2)]]
    sink = graph.sink("sink", receive, comm=True)
    for source in sources:
        graph.connect(source, sink, tm.exchange.broadcast())
    result = graph.run(placement="applications")
    again = graph.run(placement=graph.plan("applications"))
    assert again["sink"] == result["sink"]
    assert graph.run()["sink"][0][0] == [(name, tm.init().size) for name in ("large", "small")]
    return (
        graph.plan("applications"),
        {name: list(result[name].values()) for name in ("small", "large")},
        result["sink"],
        graph.explain(placement="applications"),
        graph.explain("svg", placement="applications"),
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_a_graph_of_programs_needs_no_places(workers: int) -> None:
    small, large = ([0], [1, 2]) if workers == 3 else ([0], [0])
    for plan, ran, sink, text, svg in standing.run(planned, workers=workers):
        assert plan == {"small": small, "large": large, "sink": list(range(workers))}
        assert ran == {"small": small, "large": large}
        assert sink == {worker: ([("large", len(large)), ("small", 1)], worker) for worker in range(workers)}
        others = "sink" if workers == 3 else "large, sink"
        assert f'source "small": 1 copy on workers 0, shared with {others}' in text
        assert re.search(r"shared with", svg)
