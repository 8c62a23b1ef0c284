"""Functions that a running one spawns on other workers."""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import launched
import numpy as np
import pytest
import standing
import tidemill as tm

x = tm.exchange


def where(n: int) -> tuple[int, int, int]:
    """The worker that this runs on, and the size of the job that it sees."""
    return tm.init().size, n * n, tm.init()._ranks[0] if tm.init()._ranks else 0


def squares(count: int) -> tm.Graph:
    graph = tm.Graph("squares")
    source = graph.source("numbers", lambda out, context: [out.send(n) for n in range(count)] and None, parallelism=1)
    graph.connect(source, graph.sink("sum", lambda ns, context: sum(n * n for n in ns), parallelism=1), x.gather())
    return graph


def fails(n: int) -> None:
    raise ValueError(f"within {n}")


def unpicklable() -> Any:
    return threading.Lock()


def deeper(depth: int) -> tm.Graph:
    """A graph whose function spawns the next one, elsewhere."""
    graph = tm.Graph(f"depth {depth}", spawns=True)

    def work(out: Any, context: Any) -> int:
        return depth + (context.spawn(deeper, depth - 1).result()["work"][0] if depth else 0)

    graph.connect(graph.source("work", work, parallelism=1), graph.sink("end", parallelism=1))
    return graph


def alone(work: Any, **options: Any) -> Any:
    graph = tm.Graph("search", spawns=True)
    graph.connect(
        graph.source("work", work, **({"parallelism": 1} | options)), graph.sink("end", parallelism=1), x.gather()
    )
    return graph.run()["work"]


def search() -> Any:
    def work(out: Any, context: Any) -> Any:
        named = [context.spawn(where, n, worker=np.int64(n % context.workers)) for n in range(20)]
        chosen = [context.spawn(where, n) for n in range(6 * context.workers)]
        graphs = [context.spawn(squares, count, worker=context.workers - 1) for count in range(5)]
        workers = context.workers
        assert context.spawn(lambda n: n + workers, 1).result() == 1 + workers, "a function by value"
        return (
            [future.result() for future in named],
            sorted({future.result()[2] for future in chosen}),
            [future.result()["sum"][0] for future in graphs],
        )

    return alone(work, parallelism=2)


@pytest.mark.parametrize("workers", [1, 3])
def test_functions_run_on_the_workers_they_are_for(workers: int) -> None:
    named = [(1, n * n, n % workers) for n in range(20)]
    sums = [sum(n * n for n in range(count)) for count in range(5)]
    for found in standing.run(search, workers=workers):
        assert found == dict.fromkeys(range(2), (named, list(range(workers)), sums))


def errors() -> None:
    last = tm.init().size - 1

    def raised(work: Any) -> tm.GraphError:
        with pytest.raises(tm.GraphError) as caught:
            alone(work)
        said = tm.init().comm.allgather(str(caught.value).splitlines()[0])
        assert len(set(said)) == 1, said
        return caught.value

    def taken(out: Any, context: Any) -> str:
        with pytest.raises(tm.GraphError, match=rf"function 'fails' on worker {last}: ValueError: within 3") as caught:
            context.spawn(fails, 3, worker=last).result()
        assert caught.value.worker == last
        assert "test_graph_spawn.py" in str(caught.value), "where it was raised"
        return "went on"

    assert alone(taken) == {0: "went on"}
    # Also if nobody takes its result.
    assert f"function 'fails' on worker {last}: ValueError: within 4" in str(
        raised(lambda out, context: context.spawn(fails, 4, worker=last) and None)
    )
    assert "cannot pickle" in str(raised(lambda out, context: context.spawn(unpicklable, worker=last).result()))
    assert "function 'fails' cannot go to another worker" in str(
        raised(lambda out, context: context.spawn(fails, threading.Lock()).result())
    )
    for worker in (last + 1, -1, 0.0):
        assert f"worker={worker} is none of the workers 0 to {last}" in str(
            raised(lambda out, context, worker=worker: context.spawn(fails, 1, worker=worker).result())
        )
    assert "spawn a function that returns it" in str(
        raised(lambda out, context: context.spawn(squares(1), worker=0).result())
    )
    # The job goes on, and nothing is left over.
    assert alone(lambda out, context: context.spawn(squares, 3).result()["sum"][0]) == {0: 5}


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_home(workers: int) -> None:
    standing.run(errors, workers=workers)


def nested() -> Any:
    assert alone(lambda out, context: context.spawn(deeper, 5).result()["work"][0]) == {0: 15}
    with pytest.raises(tm.GraphError, match="function 'deeper' would run 17 graphs deep"):
        alone(lambda out, context: context.spawn(deeper, 20).result()["work"][0])


def test_functions_that_spawn_again() -> None:
    standing.run(nested, workers=2)


def test_what_does_not_spawn(tmp_path: Any) -> None:
    def work(out: Any, context: Any) -> None:
        context.spawn(fails, 1)

    graph = tm.Graph("plain")
    graph.connect(graph.source("work", work, parallelism=1), graph.sink("end", parallelism=1))
    with pytest.raises(
        tm.GraphError, match="the workers of this graph do not wait for functions; make it with spawns=True"
    ):
        graph.run()
    graph = tm.Graph("saved", spawns=True)
    graph.connect(graph.source("work", work, parallelism=1), graph.sink("end", each=True, parallelism=1, function=work))
    with pytest.raises(tm.GraphError, match="graph 'saved' has spawns=True, so it cannot make checkpoints"):
        graph.run(checkpoint=tmp_path)


_started = threading.Event()
_over = threading.Event()


def waits() -> None:
    _started.set()
    _over.wait(launched.PATIENCE_S)


def test_a_run_that_fails_while_a_function_is_under_way() -> None:
    """Who waits for it is not left waiting, and the next run has nothing of it."""
    _started.clear()
    _over.clear()

    def spawns(out: Any, context: Any) -> None:
        context.spawn(waits).result()

    def breaks(out: Any, context: Any) -> None:
        _started.wait(launched.PATIENCE_S)
        raise ValueError("beside it")

    graph = tm.Graph("breaks", spawns=True)
    ends = graph.sink("end", inputs=["a", "b"], function=lambda a, b, context: [*a, *b] and None, parallelism=1)
    graph.connect(graph.source("spawns", spawns, parallelism=1), ends["a"])
    graph.connect(graph.source("breaks", breaks, parallelism=1), ends["b"])
    with pytest.raises(tm.GraphError, match="beside it"):
        graph.run()
    _over.set()
    assert alone(lambda out, context: context.spawn(squares, 3).result()["sum"][0]) == {0: 5}


def fails_late() -> None:
    waits()
    raise ValueError("after all")


@pytest.mark.parametrize("asks", ["result", "exception"])
def test_a_function_that_was_not_waited_for_long_enough(asks: str) -> None:
    """Its caller has not been told how it ended: the run ends after it, and with its error."""

    def work(out: Any, context: Any, called: Any) -> None:
        _started.clear()
        _over.clear()
        future = context.spawn(called)
        assert _started.wait(launched.PATIENCE_S)
        with pytest.raises(concurrent.futures.TimeoutError):
            getattr(future, asks)(timeout=0.01)
        threading.Timer(0.1, _over.set).start()

    alone(lambda out, context: work(out, context, waits))
    assert _over.is_set()
    with pytest.raises(tm.GraphError, match="function 'fails_late' on worker 0: ValueError: after all"):
        alone(lambda out, context: work(out, context, fails_late))


class Large:
    """What a function returns, of which one would like to have few."""


def test_results_that_nobody_needs_go_before_the_function_ends() -> None:
    """Both those that it has taken, and those that it has never asked for."""
    alive = weakref.WeakSet[Large]()

    def work(out: Any, context: Any) -> list[int]:
        most = 0
        for _ in range(1000):
            future = context.spawn(Large)
            alive.add(future.result())
            most = max(most, len(alive))
        for _ in range(10):
            futures = [context.spawn(Large) for _ in range(50)]
            for future in futures:
                future.add_done_callback(lambda future: alive.add(Future.result(future)))
            concurrent.futures.wait(futures)
            most = max(most, len(alive))
        return [most]

    (most,) = alone(work)[0]
    assert most < 300
