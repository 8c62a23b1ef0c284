"""A graph that makes checkpoints, and whose workers are killed.

Run as ``graph_job.py FOLDER``: two sources send numbers, one of which says where it goes on, and one of which begins anew; a task
squares them, another runs a query on some, sinks keep sums by key, of rounds and of queries, and worker 0 writes what they kept to
FOLDER/found.json; pids go to FOLDER/pids.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tidemill as tm

MESSAGES, ROWS, KEYS = 250, 8, 7
#: Each such round is queried.
QUERIED = 25


def message(copy: int, number: int) -> dict[str, list[int]]:
    """What a source sends as its message of this number."""
    numbers = range(number * ROWS, (number + 1) * ROWS)
    return {"key": [(3 * n + copy) % KEYS for n in numbers], "n": [2 * n + copy for n in numbers]}


def numbers(out: Any, context: Any) -> None:
    for number in range(context.position or 0, MESSAGES):
        out.send(message(context.copy, number))
        time.sleep(0.004)
        if context.copy == 0 and number % 3 == 0:
            context.position = number + 1


def square(rows: tm.Table, out: Any, context: Any) -> None:
    columns = rows.to_numpy()
    context.state = (context.state or 0) + len(rows)
    out.send({"key": columns["key"], "square": columns["n"] ** 2})


def query(rows: tm.Table, out: Any, context: Any) -> None:
    """Join a round with a table, and sum it up by what is found there: a batch query on the workers of all copies."""
    context.state = (context.state or 0) + 1
    if context.state % QUERIED == 1:
        with tm.group(context.comm):
            parities = tm.from_dict({"key": range(KEYS), "parity": [key % 2 for key in range(KEYS)]})
            joined = tm.from_arrow(rows).join(parities, on="key")
            sums = joined.group_by("parity").agg(n=tm.col("n").sum()).sort("parity").collect()
        # Each copy has the result, and has been called with the same rows.
        if context.copy == 0:
            out.send(sums)


def by_key(rows: tm.Table, context: Any) -> None:
    """Keep how many rows each key has, and their sum."""
    context.state = context.state or (Counter[int](), Counter[int]())
    for row in rows:
        context.state[0][row["key"]] += 1
        context.state[1][row["key"]] += row["square"]


def of_rounds(rows: tm.Table, context: Any) -> None:
    context.state = [*(context.state or []), *(row["n"] for row in rows)]


def graph() -> tm.Graph:
    graph = tm.Graph("numbers")
    source = graph.source("numbers", numbers, schema={"key": "int64", "n": "int64"}, parallelism=2)
    squares = graph.compute("squares", square, schema={"key": "int64", "square": "int64"}, parallelism=3, each=True)
    graph.connect(source, squares, tm.exchange.partition())
    sums = graph.sink("sums", by_key, parallelism=2, each=True)
    graph.connect(squares, sums, tm.exchange.partition("key"))
    queries = graph.compute("queries", query, schema={"parity": "int64", "n": "int64"}, comm=True, each=True)
    graph.connect(source, queries, tm.exchange.broadcast(rounds="strict"))
    queried = graph.sink("queried", of_rounds, parallelism=1, each=True)
    graph.connect(queries, queried, tm.exchange.gather())
    rounds = graph.sink("rounds", of_rounds, parallelism=1, each=True)
    graph.connect(source, rounds, tm.exchange.reduce({"n": "sum"}, rounds="strict"))
    return graph


def expected() -> dict[str, Any]:
    sent = [[message(copy, number) for copy in range(2)] for number in range(MESSAGES)]
    pairs = [pair for both in sent for one in both for pair in zip(one["key"], one["n"], strict=True)]
    return {
        "squared": len(pairs),
        "sums": {
            str(key): [sum(k == key for k, _ in pairs), sum(n * n for k, n in pairs if k == key)] for key in range(KEYS)
        },
        "queried": [
            sum(n for one in both for key, n in zip(one["key"], one["n"], strict=True) if key % 2 == parity)
            for both in sent[::QUERIED]
            for parity in range(2)
        ],
        "rounds": [sum(sum(one["n"]) for one in both) for both in sent],
    }


def found(result: Any) -> dict[str, Any]:
    return {
        "squared": sum(result["squares"].values()),
        "sums": {
            str(key): [count, sums[key]] for counts, sums in result["sums"].values() for key, count in counts.items()
        },
        "queried": result["queried"][0],
        "rounds": result["rounds"][0],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pids" / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")
    result = graph().run(checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="50ms"))
    if tm.init().rank == 0:
        (folder / "found.json").write_text(json.dumps(found(result)))


if __name__ == "__main__":
    main()
