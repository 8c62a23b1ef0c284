"""Task graphs made by chance: tasks that read others by any exchange, against a few lines of Python."""

from __future__ import annotations

from pathlib import Path

import launched
import pytest
from graphs import program

RANDOM = """
import random

COLUMNS = ["k", "v", "s"]

def step(rows):
    # What a task does to each row; after a reduction some columns are not there.
    return [{"k": k if k is None else (k + 1) % 13, "v": row["v"] * 31 % 99991, "s": row.get("s") or "none"} for row in rows for k in [row["k"]]]

def give(rows, batch):
    def send(out, context):
        mine = rows[context.copy::context.copies]
        for at in range(0, len(mine), batch):
            out.send(pa.RecordBatch.from_pylist(mine[at:at + batch]))
    return send

def work(rows, out, context):
    for table in rows:
        out.send(pa.RecordBatch.from_pylist(step(table.to_pylist()), pa.schema([("k", "int64"), ("v", "int64"), ("s", "string")])))

class Node:
    def __init__(self, task, rows, copies):
        self.task, self.rows, self.copies, self.is_read = task, rows, copies, False

def keyed(rows):
    sums = collections.Counter()
    for row in rows:
        sums[row["k"]] += row["v"]
    return [{"k": k, "v": v} for k, v in sums.items()]

def total(rows):
    keys = [row["k"] for row in rows if row["k"] is not None]
    return [{"v": sum(row["v"] for row in rows), "k": max(keys, default=None)}] if rows else []

def pick(dice, rows, copies, targets, alone):
    # An exchange, and what arrives at all copies together. Of several nodes at once (`copies` None), or beside other edges, not all go.
    same_rows = [x.partition("k"), x.partition(["k", "s"]), x.partition(), x.partition(ranges="v"), x.gather(targets - 1), x.keyed_gather("k"),
                 x.sort("v"), x.partition(lambda table, copies: table.to_numpy()["v"] % copies)]
    ways = [(exchange, rows) for exchange in same_rows]
    if len(rows) * targets < 3000:
        ways += [(exchange, rows * targets) for exchange in (x.broadcast(along=dice.choice(["flat", "binary", "binomial", "chain"])), x.all_gather())]
    if copies == targets:
        ways += [(x.direct(), rows)] * 4
    if alone:
        ways += [(x.keyed_reduce("k", {"v": "sum"}), keyed(rows)), (x.reduce({"v": "sum", "k": "max"}, to=targets - 1), total(rows))]
    return dice.choice(ways)

def build(seed):
    dice = random.Random(seed)
    text = "long " * (800 if seed % 5 == 4 else 1)  # more than a window of credit, or nearly nothing
    graph = tm.Graph(f"random {seed}")
    nodes = []
    for i in range(dice.randint(1, 3)):
        rows = [{"k": None if dice.random() < 0.1 else dice.randrange(13), "v": dice.randrange(99991), "s": f"{text}{n % 5}"}
                for n in range(dice.choice([0, 1, 60, 900]))]
        copies = dice.randint(1, 4)
        task = graph.source(f"source{i}", give(rows, dice.choice([1, 50, 400])), schema=SCHEMA, parallelism=copies)
        nodes.append(Node(task, rows, copies))
    for i in range(dice.randint(1, 7)):
        copies = dice.randint(1, 4)
        task = graph.compute(f"task{i}", work, schema=SCHEMA, parallelism=copies)
        kind = dice.choice(["edges", "edges", "union", "join"])
        from_ = dice.sample(nodes, min(len(nodes), 2 if kind == "join" else dice.randint(1, 3)))
        if kind == "join" and len(from_) == 2:
            how = dice.choice(["semi", "anti"])
            graph.connect([node.task for node in from_], task, x.join("k", how))
            there = {row["k"] for row in from_[1].rows} - {None}
            arrived = [row for row in from_[0].rows if (row["k"] in there) == (how == "semi")]
        elif kind == "union":
            exchange, arrived = pick(dice, flat(node.rows for node in from_), None, copies, False)
            graph.connect([node.task for node in from_], task, x.union(exchange))
        else:
            arrived = []
            for node in from_:
                # Rows that are reduced have other columns, and what arrives at one input has one schema.
                exchange, rows = pick(dice, node.rows, node.copies, copies, len(from_) == 1)
                graph.connect(node.task, task, exchange)
                arrived += rows
        for node in from_:
            node.is_read = True
        nodes.append(Node(task, step(arrived), copies))
    wanted = {}
    for i, node in enumerate(nodes):
        if not node.is_read:
            sink = graph.sink(f"sink{i}", received, parallelism=dice.randint(1, 3))
            graph.connect(node.task, sink, x.partition())
            wanted[f"sink{i}"] = node.rows
    return graph, wanted

for seed in range(60):
    graph, wanted = build(seed)
    result = graph.run()
    for name, rows in wanted.items():
        try:
            same(flat(result[name].values()), rows)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {name}: {graph.explain()}") from error
print("done")
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_graphs_made_by_chance(size: int, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(program(RANDOM))
    result = launched.run("run", "-n", str(size), app)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().count("done") == size
