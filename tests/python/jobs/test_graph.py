"""Task graphs from Python: every exchange, message and way to shape a graph, against a few lines of Python."""

from __future__ import annotations

import gc
import os
import weakref
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import launched
import pytest
import standing
import tidemill as tm
import workers
from graphs import program

EXCHANGES = """
ALL = all_rows()

parts = through(x.direct(), targets=3)
assert parts == [rows_of(copy) for copy in range(3)]
assert through(None, targets=3) == parts

for along in None, "binomial", "binary", "flat", "chain", "ring", "double", "serial", "flat/binary", "copies":
    for part in through(x.broadcast(along=along)):
        same(part, ALL)
for part in through(x.all_gather()):
    same(part, ALL)

for along in None, "binomial", "binary", "flat", "chain", "ring", "double", "serial", "flat/binary":
    parts = through(x.gather(2, along=along))
    same(parts[2], ALL)
    assert parts[0] == parts[1] == parts[3] == []
    for copy in range(3):
        assert [row for row in parts[2] if row["v"] // 1000 == copy] == rows_of(copy), "a sender's order"

parts = through(x.partition("k"))
same(flat(parts), ALL)
owners = collections.defaultdict(set)
for copy, part in enumerate(parts):
    for row in part:
        owners[row["k"]].add(copy)
assert all(len(copies) == 1 for copies in owners.values()), owners
assert len(set().union(*owners.values())) > 1
same(flat(through(x.partition(["k", "s"], buckets=7))), ALL)
parts = through(x.partition("k", owners=[3, 3]))
same(parts[3], ALL)

parts = through(x.partition())
same(flat(parts), ALL)
assert all(parts), "in turn"

parts = through(x.partition(lambda table, copies: table.to_numpy()["v"] % copies))
same(flat(parts), ALL)
assert all(row["v"] % 4 == copy for copy, part in enumerate(parts) for row in part)

parts = through(x.partition(ranges="v"))
same(flat(parts), ALL)
edges = [(min(row["v"] for row in part), max(row["v"] for row in part)) for part in parts if part]
assert len(edges) > 1 and all(a[1] < b[0] for a, b in itertools.pairwise(edges)), edges
same(flat(through(x.partition(ranges="v"), targets=1)), ALL)

wanted = {"v": sum(row["v"] for row in ALL), "k": max(row["k"] for row in ALL if row["k"] is not None)}
parts = through(x.reduce({"v": "sum", "k": "max"}, to=1))
assert parts == [[], [wanted], [], []], parts
assert through(x.all_reduce({"v": "sum", "k": "max"}, along="chain")) == [[wanted]] * 4
biggest = max(ALL, key=lambda row: row["v"])
assert through(x.reduce(lambda a, b: max(a, b, key=lambda row: row["v"])))[0] == [biggest]

sums = collections.Counter()
for row in ALL:
    sums[row["k"]] += row["v"]
wanted = [{"k": k, "v": v} for k, v in sums.items()]
same(flat(through(x.keyed_reduce("k", {"v": "sum"}))), wanted)
same(flat(through(x.keyed_reduce("k"))), [{"k": k} for k in sums])
def add(a, b):
    return {"v": a["v"] + b["v"], "s": min(a["s"], b["s"])}
found = flat(through(x.keyed_reduce("k", add)))
same([{"k": row["k"], "v": row["v"]} for row in found], wanted)

parts = through(x.keyed_gather("k"))
same(flat(parts), ALL)
for part in parts:
    runs = [k for k, _ in itertools.groupby(row["k"] for row in part)]
    assert len(runs) == len(set(runs)), "a key came again"

for descending in False, True:
    ordered = flat(through(x.sort("v", descending=descending)))
    assert [row["v"] for row in ordered] == sorted((row["v"] for row in ALL), reverse=descending)
found = flat(through(x.sort(["s", "v"], descending=[True, False], sample_all=True)))
assert [(row["s"], row["v"]) for row in found] == [(row["s"], row["v"]) for row in sorted(sorted(ALL, key=lambda r: r["v"]), key=lambda r: r["s"], reverse=True)]
found = [row["k"] for row in flat(through(x.sort("k", nulls_first=False)))]
assert found[-30:] == [None] * 30

# Of two sources.
LEFT = [{"k": i % 10, "l": i} for i in range(40)] + [{"k": None, "l": -1}]
RIGHT = [{"j": i, "r": i * 100} for i in range(5, 15)] + [{"j": None, "r": -1}]
def halves(rows):
    return lambda out, context: out.send(pa.RecordBatch.from_pylist(rows[context.copy::context.copies]))
def joined(exchange, targets=2):
    graph = tm.Graph()
    left = graph.source("left", halves(LEFT), schema={"k": "int64", "l": "int64"}, parallelism=2)
    right = graph.source("right", halves(RIGHT), schema={"j": "int64", "r": "int64"}, parallelism=3)
    sink = graph.sink("sink", lambda rows, context: [tuple(row) for table in rows for row in zip(*table.to_dict().values())], parallelism=targets)
    graph.connect([left, right], sink, exchange)
    return sorted((row for rows in graph.run()["sink"].values() for row in rows), key=str)
def reference(how):
    pairs = [(a, b) for a in LEFT for b in RIGHT if a["k"] is not None and a["k"] == b["j"]]
    has = lambda row, side: any(row is pair[side] for pair in pairs)
    rows = [(a["k"], a["l"], b["j"], b["r"]) for a, b in pairs]
    alone = [a for a in LEFT if not has(a, 0)]
    if how in ("left", "full"):
        rows += [(a["k"], a["l"], None, None) for a in alone]
    if how in ("right", "full"):
        rows += [(None, None, b["j"], b["r"]) for b in RIGHT if not has(b, 1)]
    if how == "semi":
        rows = [(a["k"], a["l"]) for a in LEFT if has(a, 0)]
    if how == "anti":
        rows = [(a["k"], a["l"]) for a in alone]
    return sorted(rows, key=str)
for how in "inner", "left", "right", "full", "semi", "anti":
    found = joined(x.join({"k": "j"}, how))
    assert found == reference(how), (how, found, reference(how))
assert joined(x.join({"k": "j"}, broadcast_right=True)) == reference("inner")

graph = tm.Graph()
a, b = (graph.source(name, source(100), schema=SCHEMA, parallelism=2) for name in "ab")
sink = graph.sink("sink", parallelism=3)
graph.connect([a, b], sink, x.union(x.partition("k")))
same([row for table in graph.run()["sink"].values() for row in table.to_pylist()], all_rows(100, 2) * 2)

# No rows; more copies than rows.
empty = {name: through(exchange, count=0) for name, exchange in {
    "partition": x.partition("k"), "reduce": x.reduce({"v": "sum"}), "keyed": x.keyed_reduce("k", {"v": "sum"}),
    "sort": x.sort("v"), "ranges": x.partition(ranges="v"), "function": x.reduce(lambda a, b: a), "broadcast": x.broadcast()}.items()}
assert all(parts == [[]] * 4 for parts in empty.values()), empty
for exchange in x.partition("k"), x.partition(), x.sort("v"), x.partition(ranges="v"), x.keyed_gather("s"):
    same(flat(through(exchange, copies=5, targets=7, count=1)), all_rows(1, 5))

# One and the same everywhere.
assert len(set(map(str, job.comm.allgather(empty)))) == 1
print("done")
"""

MESSAGES = """
# Objects: any that can be pickled, None too.
def send(out, context):
    for i in range(20):
        out.send((context.copy, i, {"n": i}))
    out.send(None)

def objects(exchange, targets=3):
    graph = tm.Graph()
    a = graph.source("a", send, parallelism=2)
    b = graph.sink("b", parallelism=targets)
    graph.connect(a, b, exchange)
    values = graph.run()["b"]
    return [values[copy] for copy in range(targets)]

WANTED = [(copy, i, {"n": i}) for copy in range(2) for i in range(20)] + [None, None]
for exchange in x.broadcast(), x.all_gather():
    assert all(sorted(part, key=str) == sorted(WANTED, key=str) for part in objects(exchange))
assert sorted(objects(x.gather())[0], key=str) == sorted(WANTED, key=str)
assert sorted(flat(objects(x.partition())), key=str) == sorted(WANTED, key=str)
parts = objects(x.partition(lambda message, copies: 0 if message is None else message[1] % copies))
assert sorted(flat(parts), key=str) == sorted(WANTED, key=str)
assert all(message is None or message[1] % 3 == copy for copy, part in enumerate(parts) for message in part)

def numbers(out, context):
    for i in range(50):
        out.send(i + 1)

graph = tm.Graph()
a, b = graph.source("a", numbers, parallelism=3), graph.sink("b", parallelism=2)
graph.connect(a, b, x.all_reduce("sum"))
assert graph.run()["b"] == {0: [3 * 1275], 1: [3 * 1275]}
graph = tm.Graph()
a, b = graph.source("a", numbers, parallelism=3), graph.sink("b", parallelism=2)
graph.connect(a, b, x.reduce(math.gcd, to=1))
assert graph.run()["b"] == {0: [], 1: [1]}

# Arrays: of any shape and dtype, larger than a stream's window too; what arrives does not change with what was sent.
ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(7), np.zeros((0, 4), np.int16), np.array([True, False]),
          np.arange(4, dtype=">i4"), np.array(["a", "bcd"]), np.array([1 + 2j]), np.arange(24).reshape(4, 6).T,
          np.array(["2024-01-01"], "datetime64[D]"), np.arange(1_500_000)]

def send_arrays(out, context):
    for array in ARRAYS:
        mine = array.copy()
        out.send(mine)
        if mine.size and mine.dtype.kind in "if" and mine.flags.writeable:
            mine[...] = 99

def take_arrays(arrays, context):
    found = list(arrays)
    assert not any(array.flags.writeable for array in found)
    return [array.copy() for array in found]

graph = tm.Graph()
a, b = graph.source("a", send_arrays, schema="arrays", parallelism=1), graph.sink("b", take_arrays, parallelism=3)
graph.connect(a, b, x.broadcast())
for found in graph.run()["b"].values():
    assert len(found) == len(ARRAYS)
    for one, other in zip(found, ARRAYS):
        assert one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other), (one, other)

graph = tm.Graph()
a = graph.source("a", lambda out, context: [out.send(np.full(5, context.copy + i)) for i in range(4)] and None, schema="arrays", parallelism=3)
b = graph.sink("b", parallelism=2)
graph.connect(a, b, x.all_reduce("max"))
assert all(np.array_equal(found[0], np.full(5, 5)) and len(found) == 1 for found in graph.run()["b"].values())

# Tables: as dicts of arrays or lists, of Arrow or our own; texts, dictionaries and narrow numbers as the port declares them.
def tables(out, context):
    out.send({"n": [0, 1, 2], "s": ["a", "b", None]})
    out.send(pa.table({"s": pa.array(["c"]).dictionary_encode(), "n": pa.array([3], pa.int8())}))
    out.send(tm.Table.from_numpy({"n": np.arange(0)}).to_arrow().append_column("s", pa.array([], pa.string())))
    out.send(pa.record_batch({"n": [4], "s": pa.array(["d"], pa.large_string())}))

graph = tm.Graph()
a, b = graph.source("a", tables, schema=pa.schema([("n", pa.int64()), ("s", pa.string())]), parallelism=1), graph.sink("b", parallelism=1)
graph.connect(a, b)
table = graph.run()["b"][0]
assert table.to_dict() == {"n": [0, 1, 2, 3, 4], "s": ["a", "b", None, "c", "d"]}, table
assert table.schema == {"n": "Int64", "s": "Utf8"}

# Nothing at all has columns, too.
graph = tm.Graph()
a, b = graph.source("a", lambda out, context: None, schema={"n": "int64"}), graph.sink("b")
graph.connect(a, b)
assert [(len(table), table.schema) for table in graph.run()["b"].values()] == [(0, {"n": "Int64"})] * job.size
print("done")
"""

SHAPES = """
# Several ports, by name; a task that takes from both; a communicator; metrics; a graph that runs twice.
def split(numbers, even, odd, context):
    for table in numbers:
        n = table.to_numpy()["n"]
        even.send({"n": n[n % 2 == 0]})
        odd.send({"n": n[n % 2 == 1]})

def both(even, odd, context):
    counts = collections.Counter()
    while (came := context.receive()) is not None:
        port, table = came
        assert all(n % 2 == (port == "odd") for n in table.to_dict()["n"])
        counts[port] += len(table)
    return dict(counts), context.comm.allreduce(counts["even"]), (context.comm.rank, context.comm.size)

def send(out, context):
    assert (context.copies, context.workers) == (2, job.size) and context.comm is None and not context.cancelled
    for start in range(0, 10_000, 1000):
        out.send({"n": np.arange(start, start + 1000)})
        out.flush()

N = {"n": "int64"}
graph = tm.Graph("shapes")
a = graph.source("a", send, schema=N, parallelism=2)
s = graph.compute("s", split, inputs=["numbers"], outputs={"even": N, "odd": N}, parallelism=3)
t = graph.sink("t", both, inputs={"even": N, "odd": None}, parallelism=job.size, comm=True)
graph.connect(a, s, x.partition("n"))
graph.connect(s["even"], t["even"], x.partition())
graph.connect(s["odd"], t["odd"], x.partition("n"))
for _ in range(2):
    result = graph.run()
    found = result["t"]
    assert sorted(found) == list(range(job.size))
    assert all((found[copy][1], found[copy][2]) == (10_000, (copy, job.size)) for copy in found), found
    assert sum(counts[port] for counts, _, _ in found.values() for port in counts) == 20_000
    assert result["a"] == {} and result.values["s"] == {}
    sent = job.comm.allreduce(result.edge("a.out -> s.numbers").rows_sent)
    assert sent == 20_000 == job.comm.allreduce(sum(result.edge("a.out -> s.numbers").bucket_rows))
    assert job.comm.allreduce(sum(edge.remote_bytes for edge in result.edges)) > 0 or job.size == 1
    assert result.wall_s > 0 and result.spilled_bytes == 0
    mine = graph.run(share=False)["t"]
    assert sorted(mine) == [job.rank]

# Who waits for answers to rows that go by their key need not flush.
answers = threading.Semaphore(0)
def ask(out, context):
    for n in range(5):
        out.send({"n": [n]})
        assert answers.acquire(timeout=60), n
def answer(rows, out, context):
    for table in rows:
        out.send(table)
def take(rows, context):
    for table in rows:
        answers.release(len(table))
graph = tm.Graph()
a, b = graph.source("a", ask, schema=N, parallelism=1), graph.compute("b", answer, schema=N, parallelism=3)
graph.connect(a, b, x.partition("n"))
graph.connect(b, graph.sink("c", take, parallelism=1), x.partition("n"))
graph.run()

# By rounds: the n-th messages make the n-th result while their sources go on, until nobody takes any more.
def counts(out, context):
    for n in itertools.count():
        if not out.wanted:
            return n
        out.send(np.full(3, n * (context.copy + 1)))
def first(arrays, context):
    return [array.tolist() for array, _ in zip(arrays, range(50))]
for exchange, copies in (x.all_reduce("sum", rounds="strict"), 2), (x.reduce("sum", rounds="strict"), 1):
    graph = tm.Graph()
    a = graph.source("a", counts, schema="arrays", parallelism=3)
    graph.connect(a, graph.sink("b", first, parallelism=copies), exchange)
    result = graph.run()
    assert result["b"] == {copy: [[6 * n] * 3 for n in range(50)] for copy in range(copies)}, result["b"]
    assert min(result["a"].values()) >= 50
def some(out, context):
    for n in range(3 + context.copy):
        out.send([n, context.copy])
def rows(out, context):
    for n in range(4):
        out.send({"n": np.full(n + 1, context.copy), "other": np.zeros(n + 1)})
graph = tm.Graph()
graph.connect(graph.source("a", some, parallelism=3), graph.sink("b", parallelism=1), x.reduce(lambda a, b: sorted(a + b), rounds="partial"))
c = graph.source("c", rows, schema={"n": "int64", "other": "float64"}, parallelism=3)
graph.connect(c, graph.sink("d", lambda tables, context: [n for table in tables for n in table["n"]], parallelism=2), x.all_reduce({"n": "sum"}, rounds="strict"))
result = graph.run()
assert [len(message) for message in result["b"][0]] == [6, 6, 6, 4, 2], result["b"]
assert result["b"][0][3] == sorted([3, 1, 3, 2]) and result["b"][0][4] == [4, 2]
assert result["d"] == {0: [3, 6, 9, 12], 1: [3, 6, 9, 12]}
graph = tm.Graph()
graph.connect(graph.source("a", some, parallelism=3), graph.sink("b", parallelism=1), x.reduce(max, rounds="strict"))
try:
    graph.run()
except tm.GraphError as error:
    # Which of the two that end before copy 2 is seen first is open.
    told = str(error)
    assert "rounds of unequal length: " in told and ("after 3 messages" in told or "after 4 messages" in told), told
else:
    raise AssertionError("unequal rounds")

# Copies of one worker have a communicator, too: objects, arrays, and functions of the program in a reduction.
def solve(out, context):
    comm = context.comm
    assert (comm.rank, comm.size) == (context.copy, context.copies) == (context.copy, 2 * job.size + 1)
    most = comm.allreduce((context.copy, "copy"), op=max)
    total = np.zeros(100_000)
    comm.Allreduce(np.full(100_000, context.copy, "float64"), total)
    below = comm.sendrecv(context.worker, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    halves = comm.Split(comm.rank % 2)
    out.send((most, float(total.max()), below, halves.allgather(comm.rank)))
graph = tm.Graph("solvers")
a = graph.source("a", solve, parallelism=2 * job.size + 1, comm=True)
graph.connect(a, graph.sink("b", parallelism=1), x.gather())
for _ in range(2):
    found = graph.run()["b"][0]
    last = 2 * job.size
    assert {(most, total) for most, total, _, _ in found} == {((last, "copy"), last * (last + 1) / 2)}
    assert sorted(below for _, _, below, _ in found) == sorted(copy % job.size for copy in range(last + 1))
    assert {tuple(half) for _, _, _, half in found} == {tuple(range(0, last + 1, 2)), tuple(range(1, last + 1, 2))}

# A diamond: both ways end although one task feeds both.
graph = tm.Graph()
a = graph.source("a", lambda out, context: [out.send(bytes(100_000)) for _ in range(600)] and None, parallelism=1)
def two(left, right, context):
    counts = collections.Counter()
    while (came := context.receive()) is not None:
        counts[came[0]] += 1
    return counts
b = graph.sink("b", two, inputs=["left", "right"], parallelism=1)
graph.connect(a, b["left"])
graph.connect(a, b["right"])
assert graph.run()["b"][0] == {"left": 600, "right": 600}

# Back-pressure: a sender waits for a slow receiver, and what lies between stays small.
sent = []
def fast(out, context):
    for i in range(400):
        out.send(np.zeros(125_000))
        sent.append(i)
def slow(arrays, context):
    count = 0
    for array in arrays:
        if count == 0:
            time.sleep(0.5)
            ahead = len(sent)
        count += 1
    return count, ahead
graph = tm.Graph()
a = graph.source("a", fast, schema="arrays", per_worker=1)
b = graph.sink("b", slow, per_worker=1)
graph.connect(a, b)
assert all(count == 400 and ahead < 100 for count, ahead in graph.run()["b"].values())

# A function that stops early: what is still sent to it is dropped.
graph = tm.Graph()
a = graph.source("a", lambda out, context: [out.send(np.zeros(10_000)) for _ in range(500)] and None, schema="arrays", parallelism=2)
b = graph.sink("b", lambda arrays, context: len(next(arrays)), parallelism=1)
graph.connect(a, b, x.gather())
assert graph.run()["b"] == {0: 10_000}

# So a source without an end comes to one.
def endless(out, context):
    count = 0
    while out.wanted:
        out.send({"n": [context.copy]})
        count += 1
    return count
graph = tm.Graph()
a = graph.source("a", endless, schema=N, parallelism=2)
b = graph.compute("b", lambda rows, out, context: next(out.send(table) for table in rows), schema=N, per_worker=1)
c = graph.sink("c", lambda rows, context: sum(len(table) for table in rows), parallelism=1)
graph.connect(a, b, x.partition())
graph.connect(b, c, x.gather())
result = graph.run()
assert result["c"] == {0: job.size} and sum(result["a"].values()) >= job.size, result["a"]

# Behind what goes to all, too: when none of them takes any more, along whichever tree, and not before.
def after(rows, context):
    return sum(len(table) for table, _ in zip(rows, range(1 + 20 * context.copy)))
for exchange in x.broadcast(), x.broadcast(along="chain"), x.broadcast(along="flat"), x.broadcast(along="ring"), x.broadcast(along="double"), x.broadcast(along="copies"), x.all_gather(), x.union(x.broadcast()):
    graph = tm.Graph()
    a = graph.source("a", endless, schema=N, parallelism=2)
    b = graph.sink("b", after, per_worker=2)
    graph.connect([a], b, exchange)
    result = graph.run()
    assert all(rows >= 1 + 20 * copy for copy, rows in result["b"].items()), result["b"]
    assert len(result["b"]) == 2 * job.size and sum(result["a"].values()) >= 1, result["a"]

# Functions that are called with every message, of tables, arrays and objects; they end when nobody takes any more.
for schema, one in (N, {"n": [1, 2, 3]}), ("arrays", np.zeros(3)), (None, [1, 2, 3]):
    seen = []
    def forward(message, out, context):
        seen.append(len(message))
        out.send(message)
        out.send(message)
    graph = tm.Graph()
    a = graph.source("a", lambda out, context: [out.send(one) for _ in range(100)] and None, schema=schema, parallelism=2)
    b = graph.compute("b", forward, schema=schema, each=True, parallelism=3)
    c = graph.sink("c", lambda message, context: seen.append(len(message) << 20), each=True, parallelism=2)
    graph.connect(a, b, x.partition())
    graph.connect(b, c, x.partition())
    assert graph.run().values == {"a": {}, "b": {}, "c": {}}
    assert job.comm.allreduce(sum(seen)) == 600 + (1200 << 20)
graph = tm.Graph()
a = graph.source("a", endless, schema=N, parallelism=2)
b = graph.compute("b", lambda table, out, context: out.send(table), schema=N, each=True, parallelism=3)
c = graph.sink("c", lambda rows, context: len(next(rows)), parallelism=1)
graph.connect(a, b, x.broadcast())
graph.connect(b, c, x.gather())
assert graph.run()["c"][0] >= 1

# Where copies run: by name, by a plan, by a function; the same on all.
graph = tm.Graph("placed")
a = graph.source("a", lambda out, context: None, schema=N, parallelism=4, cores=1, memory="1MiB", locations=[[job.workers[0]["host"]]] * 4)
b = graph.sink("b", lambda rows, context: context.worker, parallelism=3)
graph.connect(a, b, x.partition("n"))
last = job.size - 1
plan = graph.plan()
assert plan == {"a": [i % job.size for i in range(4)], "b": [i % job.size for i in range(3)]}
assert set(graph.run(placement={"a": [last] * 4, "b": [last] * 3})["b"].values()) == {last}
seen = []
def place(tasks, workers):
    seen.append((tasks, workers))
    return {task.name: [len(workers) - 1] * task.copies for task in tasks}
assert set(graph.run(placement=place)["b"].values()) == {last}
(tasks, infos), = seen
assert [(task.name, task.copies, task.cores, task.memory_bytes, len(task.locations)) for task in tasks] == [("a", 4, 1, 1 << 20, 4), ("b", 3, 0, 0, 0)]
assert [info.rank for info in infos] == list(range(job.size)) and all(info.cores >= 1 for info in infos)
for name in "round_robin", "first_fit", "locality":
    try:
        assert len(graph.run(placement=name)["b"]) == 3
    except tm.GraphError as error:
        assert name == "first_fit" and "cores" in str(error), error
assert graph.explain().startswith('graph "placed" on ') and "digraph" in graph.explain("dot") and "</svg>" in graph.explain("svg")

# What a tree is chosen for is printed, as far as it was told.
graph = tm.Graph()
a = graph.source("a", lambda out, context: out.send({"n": list(range(9))}), schema=N, parallelism=1)
b = graph.sink("b", lambda rows, context: sum(len(part) for part in rows), parallelism=3)
graph.connect(a, b, x.broadcast(message_bytes=100, message_rate=5000.4))
assert "chosen for 5000 messages of 100 bytes a second between" in graph.explain(), graph.explain()
assert set(graph.run()["b"].values()) == {9}
for wrong in {"message_rate": -1}, {"message_rate": "fast"}, {"message_rate": 5, "along": "chain"}:
    try:
        x.broadcast(**wrong)
    except tm.GraphError as error:
        assert "message_rate=" in str(error), error
    else:
        raise AssertionError(wrong)
print("done")
"""

SMALL = """
here = os.path.dirname(os.path.abspath(__file__))

# Behind the first, small messages wait for more: not for one that never comes, nor for the function that sent them.
def last_words(kind, message):
    def send(out, context):
        for number in range(3):
            out.send(message(number))
        while not os.path.exists(f"{here}/{kind}"):
            time.sleep(0.005)

    def receive(messages, context):
        came = 0
        for one in messages:
            came += len(one) if isinstance(one, tm.Table) else 1
            if came == 3:
                open(f"{here}/{kind}", "w").close()
        return came

    graph = tm.Graph(kind)
    a = graph.source("a", send, schema={"v": "int64"} if kind == "tables" else kind, parallelism=1)
    graph.connect(a, graph.sink("b", receive, parallelism=job.size), x.gather(job.size - 1))
    return graph.run()["b"][job.size - 1]

assert last_words("tables", lambda number: {"v": np.array([number])}) == 3
assert last_words("arrays", lambda number: np.array([number])) == 3
assert last_words("objects", lambda number: number) == 3

# Among large ones they keep their order, and none is lost, whoever sends.
COUNT, LARGE = 4000, 3000

def many(out, context):
    def some(thread):
        for number in range(COUNT):
            rows = LARGE if number % 500 == 77 else number % 3
            out.send({"from": np.full(rows, 2 * context.copy + thread), "v": np.full(rows, number)})

    other = threading.Thread(target=some, args=(1,))
    other.start()
    some(0)
    other.join()

def in_order(tables, context):
    last, rows = collections.Counter(), 0
    for table in tables:
        columns = table.to_numpy()
        for sender in np.unique(columns["from"]):
            of = columns["v"][columns["from"] == sender]
            assert of[0] >= last[sender] and (np.diff(of) >= 0).all(), "a sender's order"
            last[sender] = of[-1]
        rows += len(table)
    return rows

total = 4 * sum(LARGE if number % 500 == 77 else number % 3 for number in range(COUNT))
for exchange, share in (x.gather(), 1), (x.broadcast(), 3), (x.partition("v"), 1), (x.partition(), 1):
    graph = tm.Graph("mixed")
    a = graph.source("a", many, schema={"from": "int64", "v": "int64"}, parallelism=2)
    graph.connect(a, graph.sink("b", in_order, parallelism=3), exchange)
    assert sum(graph.run()["b"].values()) == share * total
print("done")
"""


@pytest.mark.sampled(2, by="size")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("part", [EXCHANGES, MESSAGES, SHAPES, SMALL], ids=["exchanges", "messages", "shapes", "small"])
def test_on_workers(size: int, part: str) -> None:
    assert standing.run_program(program(part), workers=size) == ["done\n"] * size


def test_copies_run_near_their_data(tmp_path: Path) -> None:
    """Each worker is told another place in the network; one that did not hear of the others' would plan otherwise."""
    locations = ["zone-a/rack-1/h1", "zone-a/rack-2/h2", "zone-b/rack-1/h3"]
    program = f"""
        import tidemill as tm

        job = tm.init()
        assert [worker["location"] for worker in job.workers] == {locations}
        graph = tm.Graph()
        wanted = [["h2"], ["zone-a/rack-1/h9"], ["zone-b/rack-9/h9"], ["h9"]]
        a = graph.source("a", lambda out, context: context.worker, schema={{"n": "int64"}}, parallelism=4, locations=wanted)
        graph.connect(a, graph.sink("b", parallelism=1), tm.exchange.gather())

        def place(tasks, workers):
            assert [worker.location for worker in workers] == {locations}
            assert tasks[0].locations == wanted
            return graph.plan("locality")

        for placement in "locality", place:
            # That of which nothing is known goes where there is the least to do: the sink is on worker 0.
            assert graph.run(placement=placement)["a"] == {{0: 1, 1: 0, 2: 2, 3: 1}}
        print("done")
    """
    prefixes = {rank: ["env", f"TIDEMILL_LOCATION={location}"] for rank, location in enumerate(locations)}
    with workers.Job(tmp_path, len(locations), program, prefixes=prefixes) as running:
        assert running.succeed() == ["done\n"] * len(locations)


def idle(*_: object) -> None:
    """A function of a task that does nothing."""


def run_and_forget(exchange: tm.graph.Exchange) -> weakref.ref[object]:
    """Runs a graph whose function leads back to it, and to something that is returned weakly."""

    class Data:
        pass

    def send(out: tm.graph.Output, context: tm.graph.Context) -> None:
        assert data is not None
        out.send(len(graphs))

    data = Data()
    graphs = [tm.Graph()]
    graphs[0].connect(graphs[0].source("a", send), graphs[0].sink("b"), exchange)
    assert graphs[0].run()["b"] == {0: [1]}
    return weakref.ref(data)


def test_graphs_are_collected() -> None:
    """What nobody uses any more must go, with all that it holds: an engine that stays would leave its spill folder."""
    exchanges = [tm.exchange.partition(lambda n, copies: 0), tm.exchange.reduce(lambda a, b: a), None]
    held = [run_and_forget(exchange) for exchange in exchanges]
    gc.collect()
    assert [ref() for ref in held] == [None, None, None]


def test_a_budget_spills(tmp_path: Path) -> None:
    """A sort of more than the budget gives the same rows, says what it spilled, and leaves no files."""
    app = tmp_path / "app.py"
    spill = tmp_path / "spill"
    spill.mkdir()
    app.write_text(
        program("""
        def send(out, context):
            rng = np.random.default_rng(context.copy)
            for _ in range(40):
                out.send({"n": rng.integers(0, 1 << 40, 100_000), "pad": rng.random(100_000)})
        def check(rows, context):
            last, count = -1, 0
            for table in rows:
                n = table.to_arrow()["n"].to_numpy()
                assert n[0] >= last and (np.diff(n) >= 0).all()
                last, count = n[-1], count + len(n)
            return count
        graph = tm.Graph()
        a = graph.source("a", send, schema={"n": "int64", "pad": "float64"}, parallelism=2)
        b = graph.sink("b", check, parallelism=2)
        graph.connect(a, b, x.sort("n"))
        result = graph.run()
        assert sum(result["b"].values()) == 8_000_000
        print("spilled", result.spilled_bytes > 0, flush=True)
        """)
    )
    env = {"TIDEMILL_MEMORY": "48MiB", "TIDEMILL_SPILL_DIR": str(spill)}
    result = launched.run("run", "-n", "2", app, env={**os.environ, **env})
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().count("spilled True") == 2
    assert list(spill.iterdir()) == []


def test_pictures() -> None:
    """Every task, edge and worker is on them, whatever names they have."""
    graph = tm.Graph('a <b> & "c"')
    a = graph.source('say "<hi>"', idle, schema={"n": "int64"}, parallelism=3)
    b = graph.compute("b", idle, schema={"n": "int64"}, parallelism=2)
    c = graph.sink("c", idle, inputs=["left", "right"], parallelism=2)
    graph.connect(a, b, tm.exchange.partition("n"))
    graph.connect(a, c["left"], tm.exchange.broadcast())
    graph.connect(b, c["right"])
    root = ElementTree.fromstring(graph.explain("svg"))
    words = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {'a <b> & "c"', 'say "<hi>"', "source x 3", "on workers 0 x3", "b", "c", "sink x 2"} <= words
    assert any("partition by n in 1024" in (text or "") for text in words)
    assert "out → left: broadcast" in " ".join(text or "" for text in words)
    assert graph.explain("text").count("\n") == 7
    assert '"say \\"<hi>\\"\\n' in graph.explain("dot")
