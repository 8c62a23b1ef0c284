"""Groups of workers that are jobs by themselves, graphs of applications, and graphs that running functions make."""

from __future__ import annotations

import threading
import time
from typing import Any

import launched
import numpy as np
import pytest
import standing
import tidemill as tm
from tidemill.ml import KMeans
from tidemill.mpi import MPI

x = tm.exchange


def side_by_side() -> Any:
    """Two groups of three workers, of one and two, each with its own query, stream, graph and estimator."""
    job = tm.init()
    comm = job.comm.Split(min(job.rank, 1))
    first = job.rank == 0
    with tm.group(comm) as group:
        assert tm.init() is group
        assert (group.rank, group.size) == (comm.rank, comm.size)
        assert [worker["pid"] for worker in group.workers] == comm.allgather(job.workers[job.rank]["pid"])
        table = tm.from_dict({"key": np.arange(3000) % (3 if first else 5), "n": np.arange(3000)})
        sums = sorted(tuple(row.values()) for row in table.group_by("key").agg(n=tm.col("n").sum()).to_pylist())
        assert sums == [(key, sum(range(key, 3000, len(sums)))) for key in range(len(sums))]
        at = {"at": np.arange(3000).astype("datetime64[s]").astype("datetime64[us]"), "n": np.arange(3000)}
        stream = tm.stream.from_table(tm.Table.from_numpy(at), time="at", rows_per_batch=100)
        window = tm.stream.window(tm.stream.tumbling("1000s"), on="at")
        rows: list[Any] = []
        stream.group_by(window).agg(n=tm.col("n").count()).write_stream(lambda table: rows.extend(table.to_pylist()))
        rows = [row for part in comm.allgather(rows) for row in part]
        assert [row["n"] for row in sorted(rows, key=lambda row: str(row))] == [1000] * 3
        graph = tm.Graph("of a group")
        source = graph.source("source", lambda out, context: out.send((context.worker, context.workers)), per_worker=1)
        graph.connect(source, graph.sink("sink", parallelism=1), x.gather())
        assert sorted(graph.run()["sink"][0]) == [(worker, comm.size) for worker in range(comm.size)]
        data = np.random.default_rng(0).normal(size=(200, 2))
        centers = KMeans(2, init=data[:2]).fit(data[comm.rank :: comm.size]).cluster_centers_
    assert tm.init() is job
    assert table is not None
    return len(sums), centers.round(6).tolist()


def test_groups_are_jobs_side_by_side() -> None:
    (three, one), *others = standing.run(side_by_side, workers=3)
    assert three == 3
    assert all(keys == 5 and np.allclose(centers, one) for keys, centers in others)


def applications() -> Any:
    """A graph whose nodes are whole programs: a query on all workers, and a solver on one that takes its rows."""

    def query(out: Any, context: Any) -> None:
        with tm.group(context.comm):
            rows = tm.from_dict({"key": np.arange(6000) % 7, "n": np.arange(6000.0)})
            means = rows.group_by("key").agg(mean=tm.col("n").mean()).sort("key")
            table = means.collect()
        if context.copy == 0:
            out.send(table)

    def inner(context: Any, value: float) -> float:
        """A graph on the workers of a task's copies."""
        graph = tm.Graph("inner")
        source = graph.source("value", lambda out, context: out.send(np.array([value])), schema="arrays", per_worker=1)
        graph.connect(
            source, graph.sink("sum", lambda rows, context: float(sum(next(rows))), per_worker=1), x.all_reduce("sum")
        )
        with tm.group(context.comm):
            return min(graph.run()["sum"].values())

    def solve(tables: Any, out: Any, context: Any) -> None:
        for table in tables:
            means = table.to_dict()["mean"]
            share = sum(means[context.copy :: context.copies])
            out.send((inner(context, share), context.comm.allreduce(share)))

    graph = tm.Graph("applications")
    first = graph.source("query", query, schema={"key": "int64", "mean": "float64"}, comm=True)
    second = graph.compute("solve", solve, comm=True)
    graph.connect(first, second, x.broadcast())
    graph.connect(second, graph.sink("sink", parallelism=1), x.gather())
    return graph.run()["sink"][0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nodes_of_a_graph_are_whole_programs(workers: int) -> None:
    wanted = sum(np.arange(key, 6000, 7).mean() for key in range(7))
    for found in standing.run(applications, workers=workers):
        assert len(found) == workers
        assert np.allclose(found, wanted), found


def refusals() -> None:
    job = tm.init()
    for comm, told in [(MPI.COMM_NULL, "COMM_NULL"), (3, "3 is not a communicator of workers")]:
        with pytest.raises(tm.CommError, match=told), tm.group(comm):
            pass

    def copies(out: Any, context: Any) -> None:
        with tm.group(context.comm):
            pass

    graph = tm.Graph("copies")
    source = graph.source("a", copies, parallelism=2 * job.size, comm=True)
    graph.connect(source, graph.sink("b", parallelism=1), x.gather())
    with pytest.raises(tm.GraphError, match="joins several copies on one worker"):
        graph.run()

    def of_all(out: Any, context: Any) -> None:
        with tm.group(job.comm):
            pass

    def spawned(out: Any, context: Any) -> None:
        context.spawn(squares(3), comm=job.comm)

    for what, function in [("group", of_all), ("spawn", spawned)]:
        for options in ({}, {"comm": True}):
            graph = tm.Graph("outside")
            source = graph.source("a", function, parallelism=1, **options)
            graph.connect(source, graph.sink("b", parallelism=1))
            with pytest.raises(
                tm.GraphError, match=rf"{what}: MPI_COMM_WORLD has worker 1, where no copy of this task"
            ):
                graph.run()

    def runs(out: Any, context: Any) -> None:
        tm.Graph("inner").run()

    graph = tm.Graph("runs")
    graph.connect(graph.source("a", runs), graph.sink("b"))
    with pytest.raises(tm.GraphError, match=r"context.spawn\(graph\)"):
        graph.run()


def test_what_is_no_group_is_refused() -> None:
    standing.run(refusals, workers=2)


# --- graphs created at run time --------------------------------------------------------------------------------------
def squares(count: int) -> tm.Graph:
    graph = tm.Graph(f"squares of {count}")
    source = graph.source("numbers", lambda out, context: [out.send(n) for n in range(count)] and None, parallelism=1)
    square = graph.compute("squares", lambda n, out, context: out.send(n * n), each=True, parallelism=2)
    graph.connect(source, square, x.partition())
    graph.connect(square, graph.sink("sum", lambda rows, context: sum(rows), parallelism=1), x.gather())
    return graph


def knapsack() -> Any:
    """Branch and bound: a function splits problems that are too large, and spawns a graph for each half."""
    weights, values, most = [3, 4, 5, 9, 14, 6, 7, 8], [3, 4, 4, 10, 15, 5, 8, 9], 25

    def best(first: int, left: int) -> int:
        if first == len(weights):
            return 0
        without = best(first + 1, left)
        if weights[first] > left:
            return without
        return max(without, values[first] + best(first + 1, left - weights[first]))

    def branch(first: int, left: int) -> tm.Graph:
        def work(out: Any, context: Any) -> int:
            if first >= 3:
                return best(first, left)
            found = [context.spawn(branch(first + 1, left))]
            if weights[first] <= left:
                found.append(context.spawn(branch(first + 1, left - weights[first])))
            results = [future.result()["work"][0] or 0 for future in found]
            return max(results[0], values[first] + results[1] if len(results) > 1 else 0)

        graph = tm.Graph(f"from {first}")
        graph.connect(graph.source("work", work, parallelism=1), graph.sink("end", parallelism=1))
        return graph

    return branch(0, most).run()["work"][0], best(0, most)


@pytest.mark.parametrize("workers", [1, 2])
def test_functions_spawn_graphs_that_spawn_graphs(workers: int) -> None:
    for found, wanted in standing.run(knapsack, workers=workers):
        assert found == wanted


def many() -> Any:
    """Graphs of all copies at once, some of whose results are never taken."""

    def work(out: Any, context: Any) -> Any:
        futures = [context.spawn(squares(count)) for count in range(20)]
        return [future.result()["sum"][0] or 0 for future in futures[:10]]

    graph = tm.Graph("many")
    graph.connect(graph.source("work", work, per_worker=2), graph.sink("end", per_worker=2))
    return graph.run()["work"]


def test_many_graphs_run_at_once() -> None:
    wanted = [sum(n * n for n in range(count)) for count in range(10)]
    for found in standing.run(many, workers=2):
        assert found == dict.fromkeys(range(4), wanted)


def alone(work: Any) -> Any:
    graph = tm.Graph("outer")
    graph.connect(graph.source("work", work, parallelism=1), graph.sink("end", parallelism=1))
    return graph.run()["work"][0]


def test_errors_of_spawned_graphs_come_home() -> None:
    def fails(out: Any, context: Any) -> None:
        raise ValueError("within")

    def inner() -> tm.Graph:
        graph = tm.Graph("inner")
        graph.connect(graph.source("fails", fails, parallelism=1), graph.sink("end", parallelism=1))
        return graph

    def taken(out: Any, context: Any) -> str:
        with pytest.raises(tm.GraphError, match="within") as caught:
            context.spawn(inner()).result()
        return str(caught.value.task)

    assert alone(taken) == "fails"
    # Also for a graph whose result is never taken.
    with pytest.raises(tm.GraphError, match="ValueError: within"):
        alone(lambda out, context: context.spawn(inner()) and None)


def together() -> Any:
    """Copies spawn graphs on all of their workers, several at once, and one on some of them."""

    def ranks(n: int) -> tm.Graph:
        graph = tm.Graph(f"ranks {n}")
        source = graph.source(
            "rank", lambda out, context: out.send(np.array([n + context.worker])), schema="arrays", per_worker=1
        )
        sink = graph.sink("sum", lambda rows, context: int(next(rows)[0]), per_worker=1)
        graph.connect(source, sink, x.all_reduce("sum"))
        return graph

    def work(out: Any, context: Any) -> Any:
        futures = [context.spawn(ranks(n), comm=context.comm) for n in range(12)]
        half = context.comm.Split(context.copy % 2)
        futures += [context.spawn(ranks(100), comm=half), context.spawn(ranks(7))]
        return [list(future.result()["sum"].values()) for future in futures]

    graph = tm.Graph("outer")
    graph.connect(graph.source("work", work, comm=True), graph.sink("end", parallelism=1), x.gather())
    return graph.run()["work"]


@pytest.mark.parametrize("workers", [1, 3])
def test_graphs_are_spawned_on_all_workers_of_the_copies(workers: int) -> None:
    for found in standing.run(together, workers=workers):
        for copy, sums in found.items():
            half = len(range(copy % 2, workers, 2))
            wanted = [[sum(range(n, n + workers))] * workers for n in range(12)]
            assert sums == [*wanted, [sum(range(100, 100 + half))] * half, [7]]


def apart() -> None:
    """Errors of a graph of several copies are raised on every worker."""

    def inner(name: str, work: Any) -> tm.Graph:
        graph = tm.Graph(name)
        graph.connect(graph.source("source", work), graph.sink("sink", parallelism=1), x.gather())
        return graph

    def raised(work: Any, **options: Any) -> str:
        graph = tm.Graph("outer")
        graph.connect(graph.source("work", work, comm=True, **options), graph.sink("end", parallelism=1), x.gather())
        with pytest.raises(tm.GraphError) as caught:
            graph.run()
        said = tm.init().comm.allgather(str(caught.value).splitlines()[0])
        assert len(set(said)) == 1, said
        return str(said[0])

    def nothing(out: Any, context: Any) -> None:
        pass

    def differ(out: Any, context: Any) -> None:
        context.spawn(inner(f"of {context.copy}", nothing), comm=context.comm)

    assert "spawn: rank 0 of work spawns graph 'of 0', and rank 1 'of 1'" in raised(differ)

    def fail(out: Any, context: Any) -> None:
        def last(out: Any, inner: Any) -> None:
            if inner.worker == context.copies - 1:
                raise ValueError("within")
            out.send(1)

        context.spawn(inner("fails", last), comm=context.comm)

    assert "ValueError: within" in raised(fail)

    def leave(out: Any, context: Any) -> None:
        if context.copy != 1:
            context.spawn(inner("left", nothing), comm=context.comm)

    assert "worker 1's function returned while this one waits in allgather" in raised(leave)

    def crowd(out: Any, context: Any) -> None:
        context.spawn(inner("crowd", nothing), comm=context.comm)

    assert "joins several copies on one worker" in raised(crowd, per_worker=2)


def test_graphs_that_copies_spawn_apart() -> None:
    standing.run(apart, workers=2)


def test_depth_and_number_are_limited() -> None:
    def deeper(out: Any, context: Any) -> int:
        graph = tm.Graph("deeper")
        graph.connect(graph.source("work", deeper, parallelism=1), graph.sink("end", parallelism=1))
        return 1 + context.spawn(graph).result()["work"][0]

    with pytest.raises(tm.GraphError, match="would run 17 graphs deep; at most 16"):
        alone(deeper)
    event = threading.Event()

    def waiting() -> tm.Graph:
        graph = tm.Graph("waiting")
        source = graph.source("wait", lambda out, context: event.wait() and None, parallelism=1)
        graph.connect(source, graph.sink("end", parallelism=1))
        return graph

    def many_more(out: Any, context: Any) -> None:
        try:
            for _ in range(257):
                context.spawn(waiting())
        finally:
            event.set()

    with pytest.raises(tm.GraphError, match="256 spawned graphs and functions run on this worker"):
        alone(many_more)

    def spawns_again() -> bool:
        """Graphs of a failed run end soon after it."""
        try:
            return bool(alone(lambda out, context: context.spawn(squares(4)).result()["sum"][0]) == 14)
        except tm.GraphError as error:
            assert "spawned graphs and functions run on this worker" in str(error)
            return False

    launched.wait_until(spawns_again, "the end of what was spawned")


def test_a_spawned_graph_ends_with_the_run_of_its_function() -> None:
    ended = threading.Event()

    def forever(out: Any, context: Any) -> None:
        try:
            while not context.cancelled:
                time.sleep(0.01)
        finally:
            ended.set()

    started = threading.Event()

    def spawns(out: Any, context: Any) -> None:
        inner = tm.Graph("inner")
        inner.connect(inner.source("forever", forever, parallelism=1), inner.sink("end", parallelism=1))
        future = context.spawn(inner)
        started.set()
        future.result()

    def fails(out: Any, context: Any) -> None:
        started.wait()
        raise ValueError("beside it")

    graph = tm.Graph("outer")
    ends = graph.sink("end", inputs=["a", "b"], function=lambda a, b, context: [*a, *b] and None, parallelism=1)
    graph.connect(graph.source("spawns", spawns, parallelism=1), ends["a"])
    graph.connect(graph.source("fails", fails, parallelism=1), ends["b"])
    with pytest.raises(tm.GraphError, match="beside it"):
        graph.run()
    assert ended.wait(30)


def test_a_graph_runs_once_at_a_time() -> None:
    event = threading.Event()
    graph = tm.Graph("once")
    graph.connect(
        graph.source("wait", lambda out, context: event.wait() and None, parallelism=1),
        graph.sink("end", parallelism=1),
    )

    def twice(out: Any, context: Any) -> None:
        first = context.spawn(graph)
        while not graph._running.locked():
            time.sleep(0.001)
        try:
            context.spawn(graph).result()
        finally:
            event.set()
            first.result()

    with pytest.raises(tm.GraphError, match="graph 'once' is running already"):
        alone(twice)
