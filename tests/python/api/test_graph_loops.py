"""Exchanges by rounds, and loops of task graphs: K-means, MDS, PageRank, loops within loops, and what goes wrong."""

from __future__ import annotations

import re
import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pyarrow as pa
import pytest
import standing
import tidemill as tm
from tidemill.ml import MDS, KMeans

x = tm.exchange
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])


def rows(copy: int, n: int) -> list[dict[str, int]]:
    """The n-th message of a copy; some have no rows."""
    return [{"k": (copy + 3 * n + i) % 5, "v": 100 * copy + 10 * n + i} for i in range((2 * n + copy) % 4)]


def all_rounds() -> None:
    """What every exchange makes of the n-th messages: at every copy a message for each round."""
    job, sources, targets, rounds = tm.init(), 3, 4, 70

    def send(out: Any, context: Any) -> None:
        for n in range(rounds):
            made = rows(context.copy, n)
            out.send({"k": np.array([row["k"] for row in made], int), "v": np.array([row["v"] for row in made], int)})

    def keep(tables: Any, context: Any) -> list[list[dict[str, int]]]:
        return [table.to_pylist() for table in tables]

    def through(exchange: Any, copies: int = targets) -> list[list[list[dict[str, int]]]]:
        graph = tm.Graph("rounds")
        source = graph.source("source", send, schema={"k": "int64", "v": "int64"}, parallelism=sources)
        graph.connect(source, graph.sink("sink", keep, parallelism=copies), exchange)
        return list(graph.run()["sink"].values())

    everything = [[row for copy in range(sources) for row in rows(copy, n)] for n in range(rounds)]
    assert through(x.direct(rounds="strict"), sources) == [[rows(c, n) for n in range(rounds)] for c in range(sources)]
    assert through(x.all_gather(rounds="strict")) == [everything] * targets
    assert through(x.gather(1, rounds="partial")) == [[], everything, [], []]
    parts = through(x.partition(lambda table, copies: table.to_numpy()["v"] % copies, rounds="strict"))
    assert parts == [
        [[row for row in made if row["v"] % targets == copy] for made in everything] for copy in range(targets)
    ]
    for exchange in x.partition("k", rounds="strict"), x.keyed_gather("k", rounds="strict"):
        parts = through(exchange)
        for n, made in enumerate(everything):
            there = [part[n] for part in parts]
            assert sorted(row["v"] for part in there for row in part) == sorted(row["v"] for row in made)
            assert all(len({tuple(row.values()) for row in part}) == len(part) for part in there)
    sums = through(x.keyed_reduce("k", {"v": "sum"}, rounds="strict"))
    for n, made in enumerate(everything):
        wanted: Counter[int] = Counter()
        for row in made:
            wanted[row["k"]] += row["v"]
        assert {row["k"]: row["v"] for part in sums for row in part[n]} == dict(wanted)

    def objects(out: Any, context: Any) -> None:
        for n in range(3 + context.copy):
            out.send((context.copy, n))

    for exchange, last in (x.gather(rounds="partial"), [(2, 4)]), (x.all_gather(rounds="partial"), [(2, 4)]):
        graph = tm.Graph("objects")
        source = graph.source("source", objects, parallelism=3)
        graph.connect(source, graph.sink("sink", parallelism=1), exchange)
        found = graph.run()["sink"][0]
        assert found[:3] == [[(copy, n) for copy in range(3)] for n in range(3)], found
        assert found[-1] == last
    assert job.comm.allreduce(1) == job.size


@WORKERS
def test_every_exchange_by_rounds(workers: int) -> None:
    standing.run(all_rounds, workers=workers)


def rounds_of_rows() -> tuple[Any, Any, Any]:
    """What a round of seven rows is, whatever messages they come in; and one of four arrays, or objects."""

    def tables(out: Any, context: Any) -> None:
        for n in range(0, 30, 3):
            out.send({"copy": np.full(3, context.copy), "n": np.arange(n, n + 3)})

    def arrays(out: Any, context: Any) -> None:
        for n in range(10):
            out.send(np.array([n, 1]))

    def objects(out: Any, context: Any) -> None:
        for n in range(10):
            out.send((context.copy, n))

    def keep(rounds: Any, context: Any) -> list[Any]:
        return [each.to_pylist() if isinstance(each, tm.Table) else each for each in rounds]

    def through(send: Any, schema: Any, exchange: Any) -> Any:
        graph = tm.Graph("rows")
        source = graph.source("source", send, schema=schema, parallelism=2)
        graph.connect(source, graph.sink("sink", keep, parallelism=1), exchange)
        return graph.run()["sink"][0]

    return (
        through(tables, {"copy": "int64", "n": "int64"}, x.gather(rounds=x.Rounds(rows=7))),
        through(arrays, "arrays", x.reduce("sum", rounds=x.Rounds(rows=4))),
        through(objects, None, x.gather(rounds=x.Rounds("partial", rows=4))),
    )


def rounds_of_time() -> Any:
    def send(out: Any, context: Any) -> None:
        start = datetime(2026, 1, 31)
        for n in range(0, 30, 3):
            at = [start + timedelta(milliseconds=100 * m + context.copy) for m in range(n, n + 3)]
            out.send({"at": at, "k": [m % 2 for m in range(n, n + 3)], "n": [n, n + 1, n + 2]})
        out.send({"at": [start], "k": [0], "n": [1000]})

    def keep(rounds: Any, context: Any) -> list[Any]:
        return [sorted(each.to_pylist(), key=lambda row: row["n"]) for each in rounds]

    second = x.Rounds(time="1s", on="at", start="2026-01-31T00:00:01")
    results = []
    for exchange in (
        x.keyed_reduce("k", {"n": "sum"}, along="flat", rounds=second),
        x.reduce({"n": "sum"}, rounds=second),
    ):
        graph = tm.Graph("seconds")
        schema = pa.schema([("at", pa.timestamp("us")), ("k", pa.int64()), ("n", pa.int64())])
        source = graph.source("source", send, schema=schema, parallelism=3)
        graph.connect(source, graph.sink("sink", keep, parallelism=1), exchange)
        result = graph.run()
        results.append((result["sink"][0], sum(edge.late_rows for edge in result.edges)))
    return results


@WORKERS
def test_rounds_of_time(workers: int) -> None:
    found = standing.run(rounds_of_time, workers=workers)
    for keyed, reduced in [[of for of, _ in results] for results in found]:
        even, odd = [[3 * sum(range(10 * at + k, 10 * at + 10, 2)) for at in (1, 2)] for k in (0, 1)]
        assert keyed == [[{"k": 0, "n": of}, {"k": 1, "n": also}] for of, also in zip(even, odd, strict=True)]
        assert reduced == [[{"n": of + also}] for of, also in zip(even, odd, strict=True)]
    assert all(sum(results[at][1] for results in found) == 3 * 11 for at in (0, 1)), (
        "the first second, and the last row"
    )
    with pytest.raises(tm.GraphError, match="time= needs on="):
        x.Rounds(time="1s")
    with pytest.raises(tm.GraphError, match="either so many rows or a length of time"):
        x.Rounds(time="1s", rows=3, on="at", start="2026-01-31")
    with pytest.raises(tm.GraphError, match="start='today' is not a moment"):
        x.Rounds(time="1s", on="at", start="today")


@WORKERS
def test_rounds_of_rows(workers: int) -> None:
    for tables, arrays, objects in standing.run(rounds_of_rows, workers=workers):
        cuts = [range(n, min(n + 7, 30)) for n in range(0, 30, 7)]
        assert tables == [[{"copy": copy, "n": n} for copy in range(2) for n in cut] for cut in cuts]
        assert [array.tolist() for array in arrays] == [[2 * 6, 8], [2 * 22, 8], [2 * 17, 4]]
        cuts = [range(n, min(n + 4, 10)) for n in range(0, 10, 4)]
        assert objects == [[(copy, n) for copy in range(2) for n in cut] for cut in cuts]
    with pytest.raises(tm.GraphError, match="a round has at least one row"):
        x.Rounds(rows=0)
    with pytest.raises(tm.GraphError, match='must be "strict" or "partial"'):
        x.Rounds("now and then")
    with pytest.raises(tm.GraphError, match="gather: rounds=3 must be"):
        x.gather(rounds=3)  # type: ignore[arg-type]


def points() -> Any:
    random = np.random.default_rng(5)
    return random.normal(size=(600, 3)) + 4 * random.integers(0, 3, size=(600, 1))


def kmeans_loop() -> Any:
    """Centers by a loop, and by the estimator."""
    data, k = points(), 5

    def assign(totals: Any, out: Any, context: Any) -> Any:
        mine, centers = data[context.copy :: context.copies], data[:k].copy()
        for _ in totals.rounds():
            nearest = ((mine[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
            sums = np.zeros((k, 4))
            np.add.at(sums, nearest, np.hstack([mine, np.ones((len(mine), 1))]))
            out.send(np.hstack([sums, centers / context.copies]))
            total = next(totals)
            centers = total[:, :3] / total[:, 3:4]
        return centers

    def over(total: Any) -> bool:
        return bool(np.abs(total[:, :3] / total[:, 3:4] - total[:, 4:]).max() < 1e-12)

    graph = tm.Graph("k-means")
    task = graph.compute("assign", assign, schema="arrays", parallelism=4)
    graph.feedback(task, task, x.all_reduce("sum", rounds="strict"), until=over, limit=100)
    found = graph.run()["assign"]
    assert all(np.array_equal(found[0], other) for other in found.values())
    job = tm.init()
    fitted = KMeans(k, init=data[:k], tol=0).fit(data[job.rank :: job.size])
    return found[0], fitted.cluster_centers_


@WORKERS
def test_kmeans_as_a_loop(workers: int) -> None:
    for found, wanted in standing.run(kmeans_loop, workers=workers):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def mds_loop() -> Any:
    """Positions by a loop over the iterations of SMACOF, and by the estimator, from the same start."""
    objects = points()[:120]
    start = np.random.default_rng(1).normal(size=(len(objects), 2))
    apart = np.sqrt(((objects[:, None] - objects) ** 2).sum(axis=2))

    def embed(gathered: Any, stresses: Any, out: Any, stress: Any, context: Any) -> Any:
        """Guttman's transform of some rows, all rows together, and the stress of all."""
        mine = np.array_split(np.arange(len(objects)), context.copies)[context.copy]
        z, found = start - start.mean(axis=0), []
        for _ in stresses.rounds():
            away = np.sqrt(((z[mine, None] - z) ** 2).sum(axis=2))
            ratio = np.divide(apart[mine], away, out=np.zeros_like(away), where=away > 0)
            out.send((ratio.sum(axis=1)[:, None] * z[mine] - ratio @ z) / len(objects))
            z = np.concatenate(next(gathered))
            away = np.sqrt(((z[mine, None] - z) ** 2).sum(axis=2))
            stress.send(((away - apart[mine]) ** 2).sum() / 2)
            found.append(float(next(stresses)))
        return z, found

    graph = tm.Graph("mds")
    outputs = {"out": "arrays", "stress": "arrays"}
    task = graph.compute("embed", embed, inputs=["gathered", "stresses"], outputs=outputs, parallelism=3)
    graph.feedback(task["out"], task["gathered"], x.all_gather(rounds="strict"))
    graph.feedback(task["stress"], task["stresses"], x.all_reduce("sum", rounds="strict"), limit=40)
    found = graph.run()["embed"]
    job = tm.init()
    block = np.array_split(apart, job.size)[job.rank]
    wanted = MDS(2, max_iter=40, tol=0, acceleration=0, storage="float32").fit(block, init=start)
    return found[0][0], found[0][1][-1], wanted.positions_, wanted.stress_


@pytest.mark.parametrize("workers", [1, 2])
def test_mds_as_a_loop(workers: int) -> None:
    for found, stress, wanted, wanted_stress in standing.run(mds_loop, workers=workers):
        np.testing.assert_allclose(stress, wanted_stress, rtol=1e-4)
        np.testing.assert_allclose(found - found.mean(axis=0), wanted - wanted.mean(axis=0), atol=1e-3)


def nested() -> Any:
    """Three loops within each other, as MDS with annealing has them; the inner ones run many times."""

    def work(a: Any, b: Any, c: Any, outer: Any, middle: Any, inner: Any, context: Any) -> Any:
        trace = []
        for i in a.rounds():
            for j in b.rounds():
                for k in c.rounds():
                    inner.send(1)
                    trace.append((i, j, k, next(c)))
                middle.send(j)
                next(b)
            outer.send(i)
            next(a)
        return trace

    graph = tm.Graph("nested")
    outputs = {"outer": None, "middle": None, "inner": None}
    task = graph.compute("work", work, inputs=["a", "b", "c"], outputs=outputs, parallelism=3)
    graph.feedback(task["outer"], task["a"], x.all_reduce("sum", rounds="strict"), limit=2)
    graph.feedback(task["middle"], task["b"], x.all_reduce("max", rounds="strict"), until=lambda j: j == 3)
    graph.feedback(task["inner"], task["c"], x.all_gather(rounds="strict"), limit=2)
    return graph.run()["work"]


@WORKERS
def test_loops_within_loops(workers: int) -> None:
    ones = [1, 1, 1]
    wanted = [(i, j, k, ones) for i in (1, 2) for j in (1, 2, 3) for k in (1, 2)]
    for found in standing.run(nested, workers=workers):
        assert found == dict.fromkeys(range(3), wanted)


def large_messages() -> Any:
    """A loop of two tasks with messages many times what an edge holds, which go back before the head takes any."""

    def head(back: Any, out: Any, context: Any) -> Any:
        sizes = []
        for n in back.rounds():
            out.send(np.full(4_000_000, n, "u1"))
            sizes.append([int(part[-1]) for part in next(back)])
        return sizes

    def body(arrays: Any, out: Any, context: Any) -> None:
        for parts in arrays:
            out.send(parts[0] * 2)

    graph = tm.Graph("large")
    first = graph.compute("head", head, schema="arrays", parallelism=2)
    second = graph.compute("body", body, schema="arrays", parallelism=2)
    graph.connect(first, second, x.all_gather(rounds="strict"))
    graph.feedback(second, first, x.all_gather(rounds="strict"), limit=5)
    return graph.run()["head"]


@pytest.mark.parametrize("workers", [1, 2])
def test_messages_of_any_size_go_around(workers: int) -> None:
    for found in standing.run(large_messages, workers=workers):
        assert found == {copy: [[2 * n] * 2 for n in range(1, 6)] for copy in range(2)}


def failing(kind: str) -> str:
    """The error of a loop that goes wrong when it runs."""

    def work(back: Any, out: Any, context: Any) -> None:
        if kind == "receives first":
            next(back)
        if kind == "sends on":
            for n in range(100):
                out.send(n)
        for n in back.rounds():
            if kind == "leaves early" and context.copy == 1 and n == 4:
                return
            if kind == "raises" and context.copy == 1 and n == 4:
                raise RuntimeError("in the loop")
            out.send(n)
            next(back)

    graph = tm.Graph(kind)
    task = graph.compute("work", work, parallelism=2)
    graph.feedback(task, task, x.all_gather(rounds="strict"), limit=10)
    try:
        graph.run()
    except tm.GraphError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    "kind, told",
    [
        ("receives first", "this copy has sent only 0 messages on port 'out': send before you receive"),
        ("sends on", "at most 64 messages may be under way"),
        ("leaves early", 'copy 1 of task "work" ended after 3 messages, and others have sent more'),
        ("raises", "RuntimeError: in the loop"),
    ],
)
def test_a_loop_that_goes_wrong_is_named(kind: str, told: str) -> None:
    for error in standing.run(failing, kind, workers=2):
        assert told in error, error


def refused(build: Any) -> str:
    graph = tm.Graph("refused")

    def task(name: str, **options: Any) -> Any:
        return graph.compute(name, lambda rows, out, context: None, parallelism=2, **options)

    with pytest.raises(tm.GraphError) as caught:
        build(graph, task("a"), task("b"))
        graph.run()
    return str(caught.value)


def test_loops_that_cannot_run_are_refused() -> None:
    strict = x.all_reduce("sum", rounds="strict")
    direct = x.direct(rounds="strict")
    for build, told in [
        (lambda g, a, b: g.feedback(a, a, strict), "this loop has no end; pass until="),
        (lambda g, a, b: g.feedback(a, a, x.direct(), limit=3), "a feedback edge needs rounds"),
        (lambda g, a, b: g.feedback(a, a, direct, until=bool), "until= must see the same round at every copy"),
        (lambda g, a, b: g.feedback(a, a, strict, until=3), "until=3 must be a function"),
        (lambda g, a, b: g.feedback(a, a, strict, limit=0), "limit=0: a loop has at least one round"),
        (lambda g, a, b: g.feedback(a, a, strict, limit="x"), "limit='x' must be a number of rounds"),
        (
            lambda g, a, b: (g.connect(a, b), g.feedback(b, a, strict, limit=3)),
            "every edge needs an exchange by rounds",
        ),
        (lambda g, a, b: (g.connect(a, b, direct), g.connect(b, a)), "must be added with `feedback`"),
        (lambda g, a, b: g.feedback(a, b, strict, limit=3), "it does not lead back"),
        (lambda g, a, b: g.connect(a, b, x.partition(rounds="strict")), "messages dealt in turn have no rounds"),
        (lambda g, a, b: g.connect(a, b, x.gather(along="flat", rounds="strict")), "leave it out with rounds="),
        (lambda g, a, b: g.connect(a, b, x.union(direct)), "leave rounds= out of by="),
    ]:
        assert told in refused(build), told
    graph = tm.Graph()
    each = graph.compute("a", lambda row, out, context: None, each=True)
    with pytest.raises(tm.GraphError, match="each=True is called for every message, and cannot end a loop"):
        graph.feedback(each, each, strict, limit=3)


def test_a_port_outside_of_loops_has_no_rounds() -> None:
    graph = tm.Graph()
    source = graph.source("a", lambda out, context: None, parallelism=1)
    graph.connect(source, graph.sink("b", lambda rows, context: list(rows.rounds()), parallelism=1))
    with pytest.raises(tm.GraphError, match="port 'in' is in no loop"):
        graph.run()


STANDS_STILL = """
import tidemill as tm

def first(back, out, context):
    next(back)

def second(rows, out, context):
    for row in rows:
        out.send(row)

graph, round = tm.Graph(), tm.exchange.direct(rounds="strict")
one, two = graph.compute("first", first, parallelism=2), graph.compute("second", second, parallelism=2)
graph.connect(one, two, round)
graph.feedback(two, one, round, limit=3)
graph.run()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loop_in_which_all_wait_says_so(tmp_path: Path, workers: int) -> None:
    """Nothing will ever come: the program waits as it says, but it says why, and Ctrl-C ends it."""
    program = tmp_path / "still.py"
    program.write_text(STANDS_STILL)
    running = launched.start("run", "-n", str(workers), program, env={"TIDEMILL_STALL_WARNING": "0.2"})
    errors = launched.Output(running.stderr)
    launched.wait_until(lambda: "let one of them send before it receives" in errors.text, "an explanation")
    assert re.search(
        r"a task of a loop has waited for 0.2 s for (first.out -> second.in|second.out -> first.in)", errors.text
    )
    running.send_signal(signal.SIGINT)
    assert running.wait(launched.PATIENCE_S) == 130
