"""Task graphs made by chance: tasks that read others by any exchange, against a few lines of Python."""

from __future__ import annotations

import pytest
import standing
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

def renamed(rows, out, context):
    for table in rows:
        made = [{"j": row["k"], "w": row["v"], "t": row["s"]} for row in table.to_pylist()]
        out.send(pa.RecordBatch.from_pylist(made, pa.schema([("j", "int64"), ("w", "int64"), ("t", "string")])))

def pair(rows):
    # Of both sides one row, of one without a partner what there is.
    return [{"k": row["j"] if row["k"] is None else row["k"], "v": (row["v"] or 0) * 7 + (row["w"] or 0), "s": row["s"] or row["t"]} for row in rows]

def work_pairs(rows, out, context):
    work((pa.Table.from_pylist(pair(table.to_pylist()), pa.schema([("k", "int64"), ("v", "int64"), ("s", "string")])) for table in rows), out, context)

def joined(left, right, how):
    by = collections.defaultdict(list)
    for row in right:
        if row["k"] is not None:
            by[row["k"]].append(row)
    there, none = {row["k"] for row in left} - {None}, {"k": None, "v": None, "s": None}
    if how in ("semi", "anti"):
        return [row for row in left if (row["k"] in by) == (how == "semi")]
    found = [(one, two) for one in left for two in by.get(one["k"], [])]
    if how in ("left", "full"):
        found += [(one, none) for one in left if one["k"] not in by]
    if how in ("right", "full"):
        found += [(none, two) for two in right if two["k"] not in there]
    return pair([{**one, "j": two["k"], "w": two["v"], "t": two["s"]} for one, two in found])

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
        ways += [(x.keyed_reduce("k", {"v": "sum"}), keyed(rows)), (x.reduce({"v": "sum", "k": "max"}, to=targets - 1), total(rows)),
                 (x.all_reduce({"v": "sum", "k": "max"}), total(rows) * targets)]
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
        kind = dice.choice(["edges", "edges", "union", "join", "join"])
        from_ = dice.sample(nodes, min(len(nodes), 2 if kind == "join" else dice.randint(1, 3)))
        is_join, how = kind == "join" and len(from_) == 2, dice.choice(["inner", "left", "right", "full", "semi", "anti"])
        if is_join and len(joined(from_[0].rows, from_[1].rows, how)) > 4000:
            how = "semi"
        pairs = is_join and how not in ("semi", "anti")
        task = graph.compute(f"task{i}", work_pairs if pairs else work, schema=SCHEMA, parallelism=copies)
        if is_join:
            left, right = (node.task for node in from_)
            if pairs:
                # Where both sides' columns arrive they have different names.
                right = graph.compute(f"right{i}", renamed, schema={"j": "int64", "w": "int64", "t": "str"}, parallelism=dice.randint(1, 3))
                graph.connect(from_[1].task, right, x.partition())
            broadcast = how not in ("right", "full") and copies == from_[0].copies and dice.random() < 0.5
            graph.connect([left, right], task, x.join({"k": "j"} if pairs else "k", how, broadcast_right=broadcast))
            arrived = joined(from_[0].rows, from_[1].rows, how)
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

for seed in range(int(sys.argv[1])):
    graph, wanted = build(seed)
    result = graph.run()
    for name, rows in wanted.items():
        try:
            same(flat(result[name].values()), rows)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {name}: {graph.explain()}") from error
print("done")
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("size", "seeds"), [(1, 60), (2, 40), (3, 30), (5, 15), (8, 10)])
def test_graphs_made_by_chance(size: int, seeds: int) -> None:
    assert standing.run_program(program(RANDOM), str(seeds), workers=size) == ["done\n"] * size


SCHEMAS = """
import datetime, decimal, random

ODD = [math.nan, -0.0, 0.0, math.inf, -math.inf, 1e300, 5e-324]
def number(n):
    return ODD[n] if n < len(ODD) else n / 2

# Types of keys, and for each whole number a value; NaN and both zeros among floats. Values inside others are never null.
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
KEYS = {
    "int64": (pa.int64(), lambda n: n - 3),
    "uint8": (pa.uint8(), lambda n: n % 256),
    "bool": (pa.bool_(), lambda n: n % 2 == 0),
    "float64": (pa.float64(), number),
    "float32": (pa.float32(), lambda n: number(n) if n not in (5, 6) else 0.25),
    "text": (pa.string(), lambda n: "" if n == 0 else f"text {n}" * (n % 4)),
    "view": (pa.string_view(), lambda n: f"{'long ' * (n % 5)}{n}"),
    "bytes": (pa.binary(), lambda n: bytes([n % 256, 0])),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda n: f"d{n}"),
    "date": (pa.date32(), lambda n: datetime.date(1970, 1, 1) + datetime.timedelta(n - 5)),
    "time": (pa.timestamp("us"), lambda n: datetime.datetime(2000, 1, 1) + datetime.timedelta(seconds=n - 5)),
    "decimal": (pa.decimal128(12, 2), lambda n: decimal.Decimal(n - 4) / 4),
    "list": (pa.list_(pa.int64()), lambda n: list(range(n % 4)) + [n]),
    "struct": (STRUCT, lambda n: {"a": n % 3, "b": f"b{n}"}),
    "lists": (pa.list_(STRUCT), lambda n: [{"a": i, "b": f"{n}"} for i in range(n % 3)] + [{"a": n, "b": ""}]),
}
# What only travels: nulls at every depth.
PAYLOADS = {
    "nothing": (pa.null(), lambda n: None),
    "map": (pa.map_(pa.string(), pa.int64()), lambda n: None if n % 5 == 0 else [(f"{i}", None if i == 1 else n) for i in range(n % 3)]),
    "deep": (pa.struct([("l", pa.list_(pa.struct([("f", pa.float64()), ("d", pa.dictionary(pa.int8(), pa.string()))])))]),
             lambda n: None if n % 7 == 0 else {"l": None if n % 5 == 0 else [None if i == 1 else {"f": number(n), "d": f"{n % 3}"} for i in range(n % 4)]}),
    "fixed": (pa.list_(pa.float32(), 2), lambda n: None if n % 3 == 0 else [None, 0.5]),
    "text": (pa.large_string(), lambda n: None if n % 4 == 0 else "x" * (n % 50)),
}

def exact(value):
    # Equal for what is the same: NaN too, and not for the two zeros.
    if isinstance(value, (list, tuple)):
        return tuple(map(exact, value))
    if isinstance(value, dict):
        return tuple((name, exact(inner)) for name, inner in value.items())
    return repr(value) if isinstance(value, float) else value

def as_key(value):
    # Both zeros are one.
    return exact(value + 0.0 if isinstance(value, float) else value)

def alike(found, wanted, what):
    found, wanted = collections.Counter(map(exact, found)), collections.Counter(map(exact, wanted))
    assert found == wanted, (what, "missing", list((wanted - found))[:3], "too many", list((found - wanted))[:3])

def rows_of_seed(dice, kind, nulls):
    count = dice.choice([0, 1, 2, 40, 40, 400])
    values = dice.choice([1, 5, 5, 30, None])  # one key, some, or a key for each row
    of, null = KEYS[kind][1], dice.choice([0, 0.1, 1.0]) if nulls else 0
    some = [n if values is None else dice.randrange(values) for n in range(count)]
    return [{"k": None if dice.random() < null else of(n), "l": n % 3, "w": at, "v": None if n % 3 == 0 else n} for at, n in enumerate(some)]

def sender(rows, schema, batch, empties):
    def send(out, context):
        mine = rows[context.copy::context.copies]
        if empties:
            out.send(schema.empty_table())
        for at in range(0, len(mine), batch):
            out.send(pa.RecordBatch.from_pylist(mine[at:at + batch], schema))
            if empties:
                out.send(schema.empty_table())
    return send

def run(graph, sink):
    result = graph.run()
    return [result[sink.name][copy] for copy in sorted(result[sink.name])]

def taken(rows, context):
    return [row for table in rows for row in table.to_pylist()]

def groups(rows):
    found = collections.defaultdict(list)
    for row in rows:
        found[as_key(row["k"])].append(row)
    return found

def check_one(dice, seed):
    kind, payload = dice.choice(list(KEYS)), dice.choice(list(PAYLOADS))
    rows = [{**row, "p": PAYLOADS[payload][1](row["w"])} for row in rows_of_seed(dice, kind, nulls=True)]
    schema = pa.schema([("k", KEYS[kind][0]), ("l", pa.int64()), ("w", pa.int64()), ("v", pa.int64()), ("p", PAYLOADS[payload][0])])
    copies, targets = dice.randint(1, 5), dice.randint(1, 5)
    to, along = dice.randrange(targets), dice.choice(["binomial", "binary", "flat", "chain"])
    buckets = dice.choice([1, 7, 1024])
    name = dice.choice(WAYS)
    exchange = {
        "direct": lambda: x.direct(), "broadcast": lambda: x.broadcast(along=along), "all_gather": lambda: x.all_gather(along=along),
        "gather": lambda: x.gather(to, along=dice.choice([None, along])), "turn": lambda: x.partition(), "key": lambda: x.partition("k", buckets=buckets),
        "keys": lambda: x.partition(["k", "l"], buckets=buckets), "ranges": lambda: x.partition(ranges=["v", "w"]),
        "function": lambda: x.partition(lambda table, copies: table.to_numpy()["w"] % copies),
        "sort": lambda: x.sort(["v", "w"], descending=falls, nulls_first=first), "sort key": lambda: x.sort(["k", "w"], descending=falls),
        "keyed_gather": lambda: x.keyed_gather("k", buckets=buckets), "distinct": lambda: x.keyed_reduce("k", buckets=buckets),
        "keyed_reduce": lambda: x.keyed_reduce("k", {"w": op}, buckets=buckets), "keys reduced": lambda: x.keyed_reduce(["k", "l"], {"w": op}),
        "reduce": lambda: x.reduce({"w": op}, to=to, along=along), "all_reduce": lambda: x.all_reduce({"w": op}, along=along),
        "union": lambda: x.union(x.partition("k")),
    }
    falls, first, op = dice.random() < 0.5, dice.choice([None, True, False]), dice.choice(["sum", "min", "max"])
    if name == "direct":
        targets = copies
    what = f"seed {seed}: {name} of {len(rows)} rows with keys of {kind}, {payload}, {copies} to {targets}, {op}"
    of = {"sum": sum, "min": min, "max": max}[op]
    try:
        graph = tm.Graph(f"seed {seed}")
        source = graph.source("source", sender(rows, schema, dice.choice([1, 7, 1000]), dice.random() < 0.3), schema=schema, parallelism=copies)
        sink = graph.sink("sink", taken, parallelism=targets)
        graph.connect([source, source] if name == "union" else source, sink, exchange[name]())
        parts = run(graph, sink)
    except tm.GraphError as error:
        raise AssertionError(what) from error
    every = flat(parts)
    if name in ("broadcast", "all_gather"):
        for part in parts:
            alike(part, rows, what)
    elif name in ("reduce", "all_reduce"):
        one = [{"w": of(row["w"] for row in rows)}] if rows else []
        assert parts == [one if name == "all_reduce" or copy == to else [] for copy in range(targets)], (what, parts)
    elif name in ("distinct", "keyed_reduce", "keys reduced"):
        wanted = collections.defaultdict(list)
        for row in rows:
            wanted[(as_key(row["k"]), *([row["l"]] if name == "keys reduced" else []))].append(row["w"])
        found = [((as_key(row["k"]), *([row["l"]] if name == "keys reduced" else [])), row.get("w")) for row in every]
        alike(found, [(key, None if name == "distinct" else of(values)) for key, values in wanted.items()], what)
    else:
        alike(every, rows * 2 if name == "union" else rows, what)
    if name == "direct":
        for copy, part in enumerate(parts):
            assert exact(part) == exact(rows[copy::copies]), what
    if name == "gather":
        assert all(not part for copy, part in enumerate(parts) if copy != to), what
    if name == "function":
        assert all(row["w"] % targets == copy for copy, part in enumerate(parts) for row in part), what
    if name in ("key", "keyed_gather", "union"):
        owners = [set(groups(part)) for part in parts]
        assert sum(map(len, owners)) == len(set().union(*owners)), what
    if name == "keyed_gather":
        for part in parts:
            runs = [key for key, _ in itertools.groupby(as_key(row["k"]) for row in part)]
            assert len(runs) == len(set(runs)), what
    if name == "sort":
        nulls = (falls if first is None else not first)
        def place(row):
            v = row["v"]
            return (nulls if v is None else not nulls, 0 if v is None else -v if falls else v, -row["w"] if falls else row["w"])
        assert [row["w"] for row in every] == [row["w"] for row in sorted(rows, key=place)], what
    if name == "sort key":
        # What the order of nested values is, Arrow knows; equal ones follow each other.
        runs = [key for key, _ in itertools.groupby(exact(row["k"]) for row in every)]
        assert len(runs) == len(set(runs)), what
    if name == "ranges":
        spans = [((row["v"] is not None, row["v"] or 0, row["w"]), copy) for copy, part in enumerate(parts) for row in part]
        assert [copy for _, copy in sorted(spans)] == sorted(copy for _, copy in spans), what

def check_join(dice, seed):
    kind, how = dice.choice(list(KEYS)), dice.choice(["inner", "left", "right", "full", "semi", "anti"])
    left = [{"k": row["k"], "a": row["w"]} for row in rows_of_seed(dice, kind, nulls=True)]
    right = [{"j": row["k"], "b": row["w"]} for row in rows_of_seed(dice, kind, nulls=True)][:40]
    copies, targets = [dice.randint(1, 4), dice.randint(1, 4)], dice.randint(1, 5)
    broadcast = how in ("inner", "left", "semi", "anti") and dice.random() < 0.3
    if broadcast:
        copies[0] = targets
    what = f"seed {seed}: {how} join of {len(left)} and {len(right)} rows by {kind}, {copies} to {targets}, broadcast: {broadcast}"
    graph = tm.Graph(f"seed {seed}")
    sources = []
    for at, (key, value, rows) in enumerate([("k", "a", left), ("j", "b", right)]):
        schema = pa.schema([(key, KEYS[kind][0]), (value, pa.int64())])
        sources.append(graph.source(f"source{at}", sender(rows, schema, dice.choice([1, 9, 1000]), True), schema=schema, parallelism=copies[at]))
    sink = graph.sink("sink", taken, parallelism=targets)
    graph.connect(sources, sink, x.join({"k": "j"}, how, broadcast_right=broadcast, buckets=dice.choice([3, 1024])))
    by = collections.defaultdict(list)
    for row in right:
        if row["j"] is not None:
            by[as_key(row["j"])].append(row)
    partners = [by[as_key(row["k"])] if row["k"] is not None else [] for row in left]
    pairs = [{**one, **two} for one, some in zip(left, partners) for two in some]
    if how in ("left", "full"):
        pairs += [{**one, "j": None, "b": None} for one, some in zip(left, partners) if not some]
    if how in ("right", "full"):
        there = {as_key(row["k"]) for row in left if row["k"] is not None}
        pairs += [{"k": None, "a": None, **two} for two in right if two["j"] is None or as_key(two["j"]) not in there]
    if how in ("semi", "anti"):
        pairs = [one for one, some in zip(left, partners) if bool(some) == (how == "semi")]
    alike(flat(run(graph, sink)), pairs, what)

WAYS = ["direct", "broadcast", "all_gather", "gather", "turn", "key", "keys", "ranges", "function", "sort", "sort key", "keyed_gather", "distinct",
        "keyed_reduce", "keys reduced", "reduce", "all_reduce", "union"]
first = int(sys.argv[1])
for seed in range(first, first + int(sys.argv[2])):
    dice = random.Random(seed)
    (check_join if dice.random() < 0.25 else check_one)(dice, seed)
print("done")
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", range(1, 9))
def test_schemas_made_by_chance(size: int) -> None:
    """Every exchange over keys of every type, with what is rare: no rows, one key, a key for each row, nulls, NaN, empty batches."""
    # More workers take longer to start and to meet than to run.
    words = str(1000 * size), str(240 // size)
    assert standing.run_program(program(SCHEMAS), *words, workers=size) == ["done\n"] * size
