"""Graphs whose nodes are drawn by chance from all kinds there are: functions, rounds, loops, solvers, queries, streams, functions that
the copies of a stream enter together, graphs made on the way.

Each node makes numbers of numbers, whatever copies they are on, so that a few lines of Python find the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
import seeds
import standing
import tidemill as tm

x = tm.exchange
MODULUS = 99_991
N = {"n": "int64"}

Numbers = list[int]
Node = Callable[..., None]


def taken(rows: Any) -> Any:
    parts = [table.to_numpy()["n"] for table in rows]
    return np.concatenate([np.empty(0, np.int64), *parts])


def send(out: Any, numbers: Any) -> None:
    for part in np.array_split(np.asarray(numbers, np.int64), 3):
        if len(part):
            out.send({"n": part})


# --- what each kind of node does, and the same in a line -------------------------------------------------------------
def mapped(rows: Any, out: Any, context: Any) -> None:
    for table in rows:
        out.send({"n": table.to_numpy()["n"] * 31 % MODULUS})


def looped(rows: Any, back: Any, out: Any, sums: Any, context: Any) -> None:
    """Three times: add the sum of all copies to each number."""
    mine = taken(rows)
    for _ in back.rounds():
        sums.send(int(mine.sum()))
        mine = (mine + next(back)) % MODULUS
    send(out, mine)


def loop_of(numbers: Numbers) -> Numbers:
    for _ in range(3):
        total = sum(numbers)
        numbers = [(n + total) % MODULUS for n in numbers]
    return numbers


def solved(rows: Any, out: Any, context: Any) -> None:
    mine = taken(rows)
    largest = context.comm.allreduce(int(mine.max(initial=0)), op=max)
    count = context.comm.allreduce(len(mine))
    send(out, (mine * (largest % 7 + 1) + count) % MODULUS)


def solution_of(numbers: Numbers) -> Numbers:
    return [(n * (max(numbers, default=0) % 7 + 1) + len(numbers)) % MODULUS for n in numbers]


def queried(rows: Any, out: Any, context: Any) -> None:
    """A query of the copies' workers over the rows of all of them."""
    mine = tm.Table.from_numpy({"n": taken(rows)})
    with tm.group(context.comm):
        table = tm.from_local(mine)
        sums = table.with_columns(key=tm.col("n") % 11).group_by("key").agg(n=tm.col("n").sum())
        found = sums.collect()
    if context.copy == 0:
        send(out, found.to_numpy()["n"] % MODULUS)


def query_of(numbers: Numbers) -> Numbers:
    sums: Counter[int] = Counter()
    for n in numbers:
        sums[n % 11] += n
    return [total % MODULUS for total in sums.values()]


def streamed(rows: Any, out: Any, context: Any) -> None:
    """A stream on each copy's own worker, of windows of a minute, a number each second."""
    mine = taken(rows).tolist()
    start = datetime(2026, 1, 1)
    made = [{"at": start + timedelta(seconds=at), "n": n} for at, n in enumerate(mine)]
    if not made:
        return
    with tm.group(tm.mpi.COMM_SELF):
        stream = tm.stream.from_table(tm.from_pylist(made).collect(), time="at", rows_per_batch=40)
        window = tm.stream.window(tm.stream.tumbling("1m"), on="at")
        kept = stream.group_by(window, "n").agg(count=tm.count())
        # A window has each number once, with how often it came.
        kept.select("n", "count").write_stream(lambda table: send(out, np.repeat(*table.to_numpy().values())))


def spawned(rows: Any, out: Any, context: Any) -> None:
    """A graph for each half of the numbers, while the other one runs."""

    def squares(numbers: Any) -> tm.Graph:
        graph = tm.Graph("squares")
        source = graph.source("numbers", lambda out, context: send(out, numbers), schema=N, parallelism=1)
        square = graph.compute(
            "squares", lambda rows, out, context: send(out, taken(rows) ** 2 % MODULUS), schema=N, parallelism=2
        )
        graph.connect(source, square, x.partition("n"))
        graph.connect(square, graph.sink("all", lambda rows, context: taken(rows), parallelism=1), x.gather())
        return graph

    for future in [context.spawn(squares(half)) for half in np.array_split(taken(rows), 2)]:
        send(out, future.result()["all"][0])


def spread(rows: Any, out: Any, context: Any) -> None:
    """A graph on the workers of all copies, whose tasks exchange what the copies have."""
    mine = taken(rows)

    def again(numbers: Any, out: Any, context: Any) -> None:
        send(out, taken(numbers) * 17 % MODULUS)

    graph = tm.Graph("spread")
    source = graph.source("numbers", lambda out, context: send(out, mine), schema=N)
    task = graph.compute("again", again, schema=N)
    graph.connect(source, task, x.partition("n"))
    graph.connect(task, graph.sink("all", lambda rows, context: taken(rows)), x.partition())
    future = context.spawn(graph, comm=context.comm)
    send(out, future.result()["all"][context.copy])


def rounds_of(rows: Any, out: Any, context: Any) -> None:
    """Three rounds, whatever a copy has."""
    for part in np.array_split(taken(rows), 3):
        out.send(part)


def in_rounds(rounds: Any, out: Any, context: Any) -> None:
    """Each round of all copies, at one of those that get them."""
    for number, parts in enumerate(rounds):
        if number % context.copies == context.copy:
            send(out, np.concatenate(parts) * 13 % MODULUS)


def stepped(rows: Any, out: Any, context: Any) -> None:
    """A stream on the copies' workers, with a function that its own copies enter together for each so many rows."""
    size = 9
    mine = tm.Table.from_numpy({"n": taken(rows)})

    def step(comm: Any, rows: tm.Table, inner: Any) -> tm.Table:
        assert comm.allreduce(len(rows)) == size
        return tm.Table.from_numpy({"n": (rows.to_numpy()["n"] + size) % MODULUS})

    with tm.group(context.comm):
        whole = tm.from_local(mine).collect()
        full = len(whole) // size * size
        if full:
            stream = tm.stream.from_table(whole.slice(0, full), rows_per_batch=7)
            window = tm.stream.window(tm.stream.count_window(size))
            stream.bsp(step, N, window=window, parallelism=3).write_stream(out.send)
    if context.copy == 0:
        send(out, (whole.to_numpy()["n"][full:] + size) % MODULUS)


def square_of(numbers: Numbers) -> Numbers:
    return [n * n % MODULUS for n in numbers]


KINDS: dict[str, tuple[Node, Callable[[Numbers], Numbers]]] = {
    "map": (mapped, lambda numbers: [n * 31 % MODULUS for n in numbers]),
    "loop": (looped, loop_of),
    "solver": (solved, solution_of),
    "query": (queried, query_of),
    "stream": (streamed, lambda numbers: numbers),
    "spawn": (spawned, square_of),
    "spawn together": (spread, lambda numbers: [n * 17 % MODULUS for n in numbers]),
    "rounds": (in_rounds, lambda numbers: [n * 13 % MODULUS for n in numbers]),
    "steps in a stream": (stepped, lambda numbers: [(n + 9) % MODULUS for n in numbers]),
}


def composed(seed: int) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Graphs by chance: what each is made of, what it gives, and what it should."""
    dice = random.Random(seed)
    job = tm.init()
    for _ in range(3):
        numbers = [dice.randrange(MODULUS) for _ in range(dice.choice([0, 1, 7, 200]))]
        graph, wanted, words = tm.Graph("mixed"), numbers, []

        def give(out: Any, context: Any, numbers: Numbers = numbers) -> None:
            send(out, numbers[context.copy :: context.copies])

        last = graph.source("numbers", give, schema=N, parallelism=dice.randint(1, 3))
        port = last["out"]
        for at in range(dice.randint(1, 4)):
            kind = dice.choice(list(KINDS))
            function, reference = KINDS[kind]
            one_each = kind in ("query", "spawn together", "steps in a stream")
            copies = dice.randint(1, job.size if one_each else 4)
            words.append(f"{kind} x{copies}")
            name = f"{kind} {at}"
            if kind == "loop":
                outputs = {"out": N, "sums": None}
                task = graph.compute(name, function, inputs=["rows", "back"], outputs=outputs, parallelism=copies)
                graph.feedback(task["sums"], task["back"], x.all_reduce("sum", rounds="strict"), limit=3)
                entry = task["rows"]
            elif kind == "rounds":
                first = graph.compute(f"{name} begin", rounds_of, schema="arrays", parallelism=copies)
                task = graph.compute(name, function, schema=N, parallelism=dice.randint(1, 4))
                graph.connect(first, task, x.all_gather(rounds="strict"))
                entry = first["in"]
            else:
                task = graph.compute(name, function, schema=N, parallelism=copies, comm=one_each or kind == "solver")
                entry = task["in"]
            graph.connect(port, entry, dice.choice([x.partition("n"), x.partition(), x.gather(copies - 1)]))
            port, wanted = task["out"], reference(wanted)
        graph.connect(port, graph.sink("all", lambda rows, context: taken(rows).tolist(), parallelism=1), x.gather())
        found = graph.run()["all"][0]
        yield ", ".join(words), sorted(found), sorted(wanted)


def compare(seed: int) -> None:
    for words, found, wanted in composed(seed):
        assert found == wanted, f"seed {seed}: {words}"


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_graphs_of_all_kinds_of_nodes(workers: int) -> None:
    dice = seeds.dice("mixed graphs", workers)
    for _ in range(3):
        standing.run(compare, dice.randrange(1 << 32), workers=workers)
