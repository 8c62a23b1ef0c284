"""Queries cut into pieces that all workers run: the same rows as one worker gives, however many there are."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import launched
import pytest
import standing
import workers

#: Prints a digest of each query's rows; a single worker runs it in this form, too.
QUERIES = r"""
import hashlib, json, math, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tidemill as tm

job = tm.init()
folder = Path(sys.argv[1])
rng = np.random.default_rng(5)
n = 150_000
def nulls(values, every):
    return [None if i % every == 0 else v for i, v in enumerate(values)]
big = tm.from_arrow(pa.table({
    "k": pa.array(nulls(rng.integers(0, 5000, n).tolist(), 97), pa.int64()),
    "g": pa.array([f"group {i}" for i in rng.integers(0, 40, n)]).dictionary_encode(),
    "x": pa.array(rng.integers(-1000, 1000, n)),
    "f": pa.array(np.where(np.arange(n) % 50 == 0, math.nan, np.arange(n) % 7 - 3.0)),
    "s": pa.array([f"text {i % 1000} that is longer than twelve bytes" for i in range(n)]),
    "day": pa.array(rng.integers(0, 400, n), pa.int32()).cast(pa.date32()),
    "deep": pa.array([[i % 3, None] if i % 5 else None for i in range(n)]),
}))
other = tm.from_arrow(pa.table({
    "k": pa.array(nulls(list(range(2500, 142_500)), 89), pa.int64()),
    "y": pa.array(np.arange(140_000) % 11),
}))
small = tm.from_dict({"k": [1, 2, 2, 3, None, 9999], "name": ["a", "b", "c", None, "e", "f"]})
none = big.filter(tm.col("x") > 10_000)
skewed = tm.from_arrow(pa.table({"k": [7] * 20_000 + list(range(100)), "v": list(range(20_100))}))
x, k = tm.col("x"), tm.col("k")
csv = tm.read_csv(folder / "*.csv")
def totals(comm, table):
    total, rows = comm.allreduce(int(table.to_numpy()["x"].sum())), comm.allreduce(len(table))
    mine = 1 if comm.rank == comm.size - 1 else 0
    return tm.Table.from_numpy({"sum": np.array([total] * mine, np.int64), "rows": np.array([rows] * mine, np.int64)})
sql = lambda query: tm.sql(query, big=big, other=other, small=small, none=none, skewed=skewed, csv=csv)
queries = {
    "group by one key": lambda: big.group_by("k").agg(x.sum(), n=tm.count()),
    "group by a dictionary and a date": lambda: big.group_by("g", "day").agg(x.min(), top=x.max()),
    "group by floats with NaN": lambda: big.group_by("f").agg(x.sum()),
    "group by lists": lambda: big.group_by("deep").agg(n=tm.count()),
    "median and distinct": lambda: big.group_by("g").agg(x.median(), d=k.n_unique()),
    "all rows to one": lambda: big.select(x.sum(), m=x.max(), n=tm.count()),
    "count of columns that are not read": lambda: sql("select count(*) as n from big where x > 5"),
    "distinct": lambda: big.select("g", "f").distinct(),
    "sort": lambda: big.sort("x", "k", "s", "day").select("x", "k", "s"),
    "top": lambda: big.sort("x", "s", "k", "day", descending=True).limit(25).select("x", "s", "k"),
    "limit": lambda: big.select("g").limit(100_000).select(n=tm.count()),
    "skip": lambda: big.sort("x", "k", "s", "day").limit(7, skip=70_000).select("x", "k", "s"),
    "union": lambda: big.select("k").union(other.select("k"), small.select("k")).group_by("k").agg(n=tm.count()),
    "union, then broadcast join": lambda: big.select("k", "x").union(big.select("k", "x")).join(small, on="k"),
    "empty": lambda: none.group_by("k").agg(x.sum()),
    "empty, one row": lambda: none.select(x.sum(), n=tm.count()),
    "join with nothing": lambda: big.select("k", "x").join(none.select("k", "s"), on="k", how="left").select(k.sum(), n=tm.count()),
    "one key": lambda: skewed.join(skewed.filter(tm.col("v") % 1000 == 0), on="k").select(n=tm.count(), s=tm.col("v").sum()),
    "explode": lambda: big.select("x", "deep").explode("deep").group_by("deep").agg(x.sum()),
    "window": lambda: big.select("g", "x", "s", r=tm.functions.row_number().over("g", order_by=["x", "s", "day", "k"])).filter(tm.col("r") < 5),
    "window over all": lambda: big.select("x", c=x.sum().over(order_by="x")).distinct(),
    "strings": lambda: big.group_by(tm.col("s").str.slice(5, 3)).agg(n=tm.count()),
    "files": lambda: csv.group_by("shop").agg(tm.col("amount").sum()),
    "files joined": lambda: csv.join(small, left_on="amount", right_on="k").select("shop", "name"),
    "scalar subquery": lambda: sql("select k, x from big where x = (select max(x) from big) and k > (select avg(k) from other)"),
    "nested subquery": lambda: sql("select count(*) as n from big where x > (select avg(x) from big where x > (select min(y) from other))"),
    "in": lambda: sql("select count(*) as n, sum(x) as s from big where k in (select k from other where y = 3)"),
    "not in, with nulls": lambda: sql("select count(*) as n from big where k not in (select k from small)"),
    "not in": lambda: sql("select count(*) as n from big where k not in (select k from small where k is not null)"),
    "exists": lambda: sql("select count(*) as n from other o where exists (select 1 from big b where b.k = o.k and b.x > o.y)"),
    "unequal join": lambda: sql("select count(*) as n, sum(b.x) as s from small a left join big b on b.k < a.k and b.x > 900"),
    "unequal full join": lambda: sql("select count(*) as n, count(a.k) as a, count(b.k) as b from small a full join other b on b.k < a.k"),
    "cross": lambda: small.join(skewed.limit(0).union(skewed.filter(tm.col("v") < 500)), how="cross").select(n=tm.count(), s=tm.col("v").sum()),
    "except": lambda: sql("select k from other except select k from big"),
    "intersect": lambda: sql("select k from other intersect select k from big"),
    "rollup": lambda: sql("select g, f, sum(x) as s from big group by rollup (g, f)"),
    "recursive": lambda: sql("with recursive t as (select 1 as i union all select i + 1 from t where i < 50) select sum(i) as s from t"),
    "repartition": lambda: big.repartition(5, "k").group_by("k").agg(x.sum()),
    "cached": lambda: big.filter(x > 0).cache().group_by("g").agg(x.sum()),
    "cached, top": lambda: big.select("x", "s").cache().group_by("x").agg(n=tm.count()).sort("x").limit(9),
    "cached, recursive": lambda: tm.sql(
        "with recursive t as (select min(x) as i, count(*) as n from held union all select i + 1, n from t where i < -990) select * from t",
        held=big.select("x").cache()),
    "broadcast of much": lambda: big.select("x", "s", y=x + 1).join(
        other.filter(tm.col("y") < 9).select(z="y", w="k").limit(200), how="cross").filter(tm.col("w") == x).select(n=tm.count()),
    "unequal join of much": lambda: tm.sql(
        "select count(*) as n from big b join wide w on b.x + b.k > 5900 - w.y", big=big.filter(x > 997), wide=other.with_columns(
            a=tm.col("k") * 2, b=tm.col("k") * 3)),
    "series": lambda: tm.sql("select count(*) as n, sum(x) as s from big join generate_series(0, 500) g on big.x = g.value", big=big),
    "bsp": lambda: big.select("x").bsp(totals),
}
for how in ["inner", "left", "right", "full", "semi", "anti"]:
    for name, one, two in [("big", big, other), ("small", small, other), ("small right", other, small)]:
        queries[f"{how} join, {name}"] = lambda how=how, one=one, two=two: (
            one.join(two, on="k", how=how).group_by("k").agg(n=tm.count()))

def texts(column):
    # Hashing many rows in Python would take longer than the query.
    nested = pa.types.is_nested(column.type)
    found = pa.chunked_array([[str(value) for value in column.to_pylist()]], pa.string()) if nested else column.cast(pa.string())
    return found.fill_null("None")
def digest(table, in_order):
    lines = pc.binary_join_element_wise(*map(texts, pa.table(table).columns), "|")
    lines = lines if in_order else lines.sort()
    return f"{len(lines)} rows {hashlib.sha256(chr(10).join(lines.to_pylist()).encode()).hexdigest()[:16]} of {table.columns}"
only = sys.argv[2] if len(sys.argv) > 2 else ""
for name, query in queries.items():
    if only not in name or name in sys.argv[3:]:
        continue
    seen = digest(query().collect(), name in ("sort", "top", "skip"))
    everybody = job.comm.allgather(seen)
    assert all(one == seen for one in everybody), (name, everybody)
    if job.rank == 0:
        print(json.dumps([name, seen]), flush=True)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("distributed")
    app = folder / "app.py"
    app.write_text(QUERIES)
    data = folder / "data"
    data.mkdir()
    for part in range(5):
        lines = [f"s{number % 3},{number}" for number in range(part * 1000, part * 1000 + 1000 * (part != 3))]
        (data / f"{part}.csv").write_text("shop,amount\n" + "\n".join(lines) + ("\n" if lines else ""))
    return app, data


@pytest.fixture(scope="module")
def alone(program: tuple[Path, Path]) -> dict[str, str]:
    """What one worker, and so DataFusion by itself, prints."""
    result = subprocess.run([sys.executable, *program], capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr.decode()
    return dict(map(json.loads, result.stdout.decode().splitlines()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "threads"), [(2, 1), (2, 2), (3, 1), (4, 1)])
def test_many_workers_give_the_rows_of_one(
    program: tuple[Path, Path], alone: dict[str, str], size: int, threads: int
) -> None:
    result = launched.run("run", "-n", str(size), "--threads", str(threads), *program)
    assert result.returncode == 0, result.stderr.decode()
    lines = [line.removeprefix("[0] ") for line in result.stdout.decode().splitlines()]
    assert dict(map(json.loads, lines)) == alone


def test_spilling_gives_the_same_rows(program: tuple[Path, Path], alone: dict[str, str], tmp_path: Path) -> None:
    """With a budget that most queries exceed, the same rows come out, by way of the disk."""
    env = {"TIDEMILL_MEMORY": "32MiB", "TIDEMILL_SPILL_DIR": str(tmp_path)}
    result = launched.run("run", "-n", "2", "--threads", "1", *program, env=env)
    assert result.returncode == 0, result.stderr.decode()
    lines = [line.removeprefix("[0] ") for line in result.stdout.decode().splitlines()]
    assert dict(map(json.loads, lines)) == alone
    assert list(tmp_path.iterdir()) == []


WIDE = """
import numpy as np
import tidemill as tm

job = tm.init()
wide = tm.from_dict({"x": list(range(20_000))}).select(*((tm.col("x") + i).alias(f"x{i}") for i in range(64)))
# Columns of a block received from another worker share one allocation.
table = wide.filter(tm.col("x0") % 3 > 0).collect()
assert len(table) == 13_333 and len(table.columns) == 64
assert 64 * 8 * 13_333 <= table.nbytes < 3 * 64 * 8 * 13_333, table.nbytes
"""


def test_a_result_of_many_columns_fits_into_its_budget(tmp_path: Path) -> None:
    """7 MB of 64 columns are 7 MB, and not 64 times as much."""
    with workers.Job(tmp_path, 2, WIDE, {"TIDEMILL_MEMORY": "128MiB"}) as job:
        job.succeed()


CACHED = """
import os
import tidemill as tm

job = tm.init()
spill = os.environ["TIDEMILL_SPILL_DIR"]
many = tm.sql("select value as x, lpad(cast(value as varchar), 90, '*') as s from generate_series(1, 1000000)")
cached = many.cache()
mapped = [line for line in open("/proc/self/maps") if spill in line]
assert job.comm.allreduce(len(mapped)) > 10, mapped
for _ in range(2):
    found = cached.select(n=tm.count(), x=tm.col("x").sum(), least=tm.col("s").min()).to_dict()
    assert found == {"n": [1_000_000], "x": [500_000_500_000], "least": ["*" * 89 + "1"]}, found
assert cached.sort("x", descending=True).limit(2).to_dict()["x"] == [1_000_000, 999_999]
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [1, 2])
def test_what_is_cached_beyond_memory_lies_on_disk(size: int, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    env = {"TIDEMILL_MEMORY": "32MiB", "TIDEMILL_SPILL_DIR": str(spill)}
    with workers.Job(tmp_path, size, CACHED, env) as job:
        job.succeed()
    assert list(spill.iterdir()) == []


DIFFERENT = """
import numpy as np
import tidemill as tm

job = tm.init()
last = job.rank == job.size - 1
kinds = [
    {"x": np.arange(3), "y": np.arange(3) if last else np.zeros(3)},
    {"x": np.arange(3), ("z" if last else "y"): np.zeros(3)},
    {"b": np.arange(3), "a": np.zeros(3)} if last else {"a": np.zeros(3), "b": np.arange(3)},
]
fine = tm.from_local(tm.Table.from_numpy({"x": np.arange(3)}))
for columns in kinds:
    try:
        fine.join(tm.from_local(tm.Table.from_numpy(columns)), how="cross").count()
        raise SystemExit("no error")
    except tm.DataSetError as error:
        assert set(job.comm.allgather(str(error))) == {str(error)}
        if job.rank == 0:
            print(error)
assert fine.count() == 3 * job.size
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [2, 3])
def test_parts_of_different_columns(size: int) -> None:
    """Every worker names the columns that differ, and whose they are; and the job goes on."""
    lines = standing.run_program(DIFFERENT, workers=size)[0].splitlines()
    last = f"worker {size - 1}"
    before = "from_local: the parts of a table have different columns: "
    after = "; give every worker the same ones with select and cast"
    assert [line.removeprefix(before).removesuffix(after) for line in lines] == [
        f'"y" is Float64 on worker 0, but Int64 on {last}',
        f'"y" is Float64 on worker 0, but not there on {last}; "z" is not there on worker 0, but Float64 on {last}',
        f'"a", "b" on worker 0, but "b", "a" on {last}',
    ]


RESULTS = """
import sys
from pathlib import Path
import numpy as np
import tidemill as tm

job = tm.init()
folder = Path(sys.argv[1])
data = tm.from_dict({"x": list(range(100_000))}).with_columns(k=tm.col("x") % 10, g=tm.col("x") % 3)

# Each row is on one worker.
mine = data.collect_local()
assert job.comm.allreduce(len(mine)) == 100_000
assert job.comm.allreduce(int(mine.to_numpy()["x"].sum())) == sum(range(100_000))
arrays = data.with_columns(f=tm.col("x") * 0.5, s=tm.col("x").cast("str")).persist_local()
assert arrays["x"].dtype == np.int64 and arrays["f"].dtype == np.float64 and arrays["s"].dtype == object
arrays["f"] += 1.0
assert job.comm.allreduce(float(arrays["f"].sum())) == sum(range(100_000)) * 0.5 + 100_000
again = tm.from_local(tm.Table.from_numpy({"f": arrays["f"]}))
assert again.select(n=tm.count(), s=tm.col("f").sum()).to_dict() == {"n": [100_000], "s": [sum(range(100_000)) * 0.5 + 100_000]}

# All write, and all read.
assert data.write_parquet(folder / "plain") == 100_000
assert data.write_parquet(folder / "parts", partition_by=["k"]) == 100_000
assert data.sort("x").write_csv(folder / "sorted") == 100_000
assert data.filter(tm.col("x") < 0).write_parquet(folder / "none") == 0
job.comm.barrier()
for name in ["plain", "parts"]:
    back = tm.read_parquet(folder / name)
    assert back.select(n=tm.count(), s=tm.col("x").sum()).to_dict() == {"n": [100_000], "s": [sum(range(100_000))]}, name
assert sorted(path.name for path in (folder / "parts").iterdir()) == [f"k={k}" for k in range(10)]
assert tm.read_csv(folder / "sorted").count() == 100_000
assert tm.read_parquet(folder / "none").columns == ["x", "k", "g"]
if job.rank == 0:
    # Sorted output has one folder per range; read in the order of the paths, it is sorted.
    files = sorted((folder / "sorted").rglob("*.csv"))
    assert len({file.parent for file in files}) == job.size
    lines = [line for file in files for line in file.read_text().splitlines()[1:]]
    assert lines == [f"{x},{x % 10},{x % 3}" for x in range(100_000)]

assert "one worker" not in data.sort("x").limit(3).explain()
assert "on one worker: RecursiveQueryExec" in tm.sql(
    "with recursive t as (select 1 as i union all select i + 1 from t where i < 9) select i from t").explain()
# Parts that lie on workers, after other tables.
local = tm.from_local(tm.Table.from_numpy({"x": np.arange(5) + 10 * job.rank}))
two = tm.from_dict({"x": [-1, -2]})
assert two.union(local).count() == 2 + 5 * job.size
assert local.union(two, local, local.cache()).count() == 2 + 15 * job.size
held = tm.from_dict({"z": [99_990, 99_980]})
some = tm.sql("select x, k from data where x > (select min(z) from held)", data=data, held=held)
assert some.sort("k").write_parquet(folder / "some") == 19
assert some.sort("k", "x").collect().to_dict()["k"] == sorted(x % 10 for x in range(99_981, 100_000))
text = data.group_by("k").agg(tm.count()).explain()
assert "stage 0" in text and ("by hash of" in text), text
errors = []
for wrong in [
    lambda: data.write_parquet(folder / "plain"),
    lambda: tm.from_dict({"x": [job.rank]}).collect(),
    lambda: data.select(tm.col("x") // (tm.col("x") - 99_999)).collect(),
    lambda: tm.read_csv(folder / "bad.csv", schema={"a": "int64"}).collect(),
    lambda: data.collect(root=9),
    lambda: data.bsp(lambda comm, table: tm.Table.from_numpy({f"c{comm.rank}": np.zeros(3)})).collect(),
    lambda: tm.from_arrow(tm.Table.from_numpy({"x": np.arange(5000 if job.rank else 50_000)})).sort("x").write_parquet(folder / "no"),
]:
    try:
        wrong()
    except tm.DataSetError as error:
        errors.append(str(error))
assert len(errors) == 7, errors
assert all(one == errors for one in job.comm.allgather(errors)) or job.size == 1, job.comm.allgather(errors)
if job.rank == 0:
    print("\\n".join(errors))
"""


def test_results_writes_and_errors_of_three_workers(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a\n1\n2\nx\n")
    said = standing.run_program(RESULTS, tmp_path, workers=3)[0]
    exists, differ, zero, bad, root, parts, sizes = said.splitlines()
    assert "exists; overwrite=True replaces it" in exists
    assert 'do not run the same query (first seen in task "stage 0")' in differ
    assert "ivide by zero" in zero
    assert "bad.csv" in bad
    assert "no such worker" in root
    assert "returned the columns c0: Float64 on worker 0 and c1: Float64 on worker 1" in parts
    assert "do not run the same query" in sizes
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.csv",
        "none",
        "parts",
        "plain",
        "some",
        "sorted",
    ]


# A function of `bsp` fails on one worker while the others are anywhere in their communicator.
BSP = """
import sys, time
import numpy as np
import tidemill as tm

job = tm.init()
data = tm.from_dict({"v": list(range(8))})
copies = int(sys.argv[1])
last = copies - 1

def collective(comm, table):
    return 1 / 0 if comm.rank == last else comm.allreduce(1)

def halfway(comm, table):
    comm.barrier()
    comm.allreduce(np.ones(1000))
    return comm.recv(source=last) if comm.rank != last else 1 / 0

def of_its_own(comm, table):
    return 1 / 0 if comm.rank == last else comm.Dup().barrier()

def computes(comm, table):
    while comm.rank != last:
        time.sleep(0.01)
    return 1 / 0

def no_table(comm, table):
    return table if comm.rank != last else None

for function in collective, halfway, of_its_own, computes, no_table:
    begun = time.monotonic()
    try:
        data.bsp(function, parallelism=copies)
    except tm.DataSetError as error:
        told = str(error)
    else:
        raise AssertionError(function)
    assert told.startswith(f"bsp: {function.__name__} failed on worker {job.size - 1}: "), told
    assert ("NoneType" in told) if function is no_table else ("ZeroDivisionError" in told and "app.py" in told), told
    assert len(set(job.comm.allgather(told))) == 1
    assert time.monotonic() - begun < 30
    # The steps after it are not disturbed.
    assert data.count() == 8

def waits(call, who):
    def function(comm, table):
        if comm.rank in who:
            call(comm)
        return table
    return function

some = range(last)
for call, who, words in (
    (lambda comm: comm.barrier(), some, "barrier #"),
    (lambda comm: comm.allreduce(np.ones(100_000)), some, "allgather #"),
    (lambda comm: comm.allreduce({"of": "objects"}), some, " on comm"),
    (lambda comm: comm.recv(source=last), some, f"recv from rank {last} on comm"),
    (lambda comm: comm.recv(), [0], "recv from any rank on comm"),
    (lambda comm: comm.probe(), [0], "probe on comm"),
):
    if last == 0:
        continue
    begun = time.monotonic()
    try:
        data.bsp(waits(call, who), parallelism=copies)
    except tm.DataSetError as error:
        # Not the traceback below it, which may show the lines above.
        told = str(error).splitlines()[0]
    else:
        raise AssertionError(words)
    assert "'s function returned while this one waits in " in told and words in told, told
    assert len(set(job.comm.allgather(told))) == 1
    assert time.monotonic() - begun < 9, "before the wait is explained as a long one"
    assert data.count() == 8
# What was sent earlier is received, and a send that nobody takes blocks nobody.
def late(comm, table):
    if comm.rank == last:
        comm.send(np.ones(1_000_000), dest=0, tag=1) if last > 0 else None
        return table
    time.sleep(0.3)
    if comm.rank == 0:
        assert comm.recv(source=last, tag=1).sum() == 1_000_000
    comm.send(np.ones(1_000_000), dest=last)
    return table
assert data.bsp(late, parallelism=copies).count() == 8

try:
    data.bsp(lambda comm, table: data.bsp(lambda comm, table: table))
except tm.DataSetError as error:
    assert "cannot call it" in str(error), error

# Each call has a part of its worker's rows, in order; copies of a worker have consecutive ranks.
def shares(comm, table):
    rows = np.array(comm.allgather(len(table)))
    assert rows.sum() == 8 and rows.max() - rows.min() <= 1, rows
    return tm.Table.from_numpy({"r": np.full(len(table), comm.rank), "v": table.to_numpy()["v"]})
of_rank = data.bsp(shares, parallelism=copies).sort("v").to_dict()
assert of_rank["v"] == list(range(8)) and of_rank["r"] == sorted(of_rank["r"]), of_rank
try:
    data.bsp(shares, parallelism=job.size - 1)
except tm.DataSetError as error:
    assert f"parallelism={job.size - 1} must be an integer of at least {job.size}" in str(error), error
else:
    raise AssertionError("fewer calls than workers")
print("done")
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("size", "copies"), [(1, 1), (2, 2), (3, 3), (1, 3), (2, 5)])
def test_a_function_of_bsp_that_fails_ends_the_others(size: int, copies: int) -> None:
    """The others waited forever in their collective, or mixed it up with the next action's."""
    assert standing.run_program(BSP, str(copies), workers=size) == ["done\n"] * size


WRITTEN = """
import os
from pathlib import Path
import tidemill as tm

job = tm.init()
folder = Path.cwd()
data = tm.from_dict({"x": list(range(300_000))}).with_columns(y=tm.col("x").cast("str"))
(folder / f"{job.rank}.pid").write_text(f"{os.getpid()}\\n")
if (folder / "again").exists():
    data.write_parquet(folder / "out", overwrite=True)
    job.comm.barrier()
    assert sorted(tm.read_parquet(folder / "out").collect()["x"]) == list(range(300_000))
else:
    try:
        while True:
            data.write_parquet(folder / "out", overwrite=True)
    except tm.WorkerLost as error:
        print("lost", error.rank)
"""


def test_a_write_whose_first_worker_is_killed(tmp_path: Path) -> None:
    """Its leftovers neither appear in the next write's output nor stay beside it."""

    def hidden() -> list[Path]:
        return [path for path in tmp_path.iterdir() if path.name.startswith(".out")]

    with workers.Job(tmp_path, 2, WRITTEN) as job:
        launched.pids_in(tmp_path, 2)

        def stopped_in_a_write() -> bool:
            job.workers[1].send_signal(signal.SIGSTOP)
            time.sleep(0.05)
            if any(path.is_dir() and any(path.iterdir()) for path in hidden()):
                return True
            job.workers[1].send_signal(signal.SIGCONT)
            time.sleep(0.05)
            return False

        launched.wait_until(stopped_in_a_write, "a write under way")
        job.workers[0].kill()
        job.workers[1].send_signal(signal.SIGCONT)
        results = job.finish()
    assert results[1][:2] == (0, "lost 0\n"), results[1]
    assert hidden() != []
    (tmp_path / "again").touch()
    with workers.Job(tmp_path, 2, WRITTEN) as job:
        job.succeed()
    assert hidden() == []


PARTS = """
import numpy as np
from pathlib import Path
import tidemill as tm

here = Path.cwd()
data = tm.sql("select (value * 7919) % 100003 as n from generate_series(0, 99999)")
texts = data.select(text=tm.col("n").cast("str"))
assert texts.write_text(here / "texts", compression="gzip") == 100_000
assert data.select(n=tm.col("n").cast("float64"), half=tm.col("n") / 2.0).sort("n").write_npy(here / "arrays") == 100_000
back = tm.read_text(here / "texts").select(n=tm.col("line").cast("int64")).sort("n").to_dict()["n"]
array = np.concatenate([np.load(path) for path in sorted((here / "arrays").iterdir())])
assert array.dtype == np.float64 and array[:, 0].tolist() == back and array[:, 1].tolist() == [n / 2 for n in back]
assert len(list((here / "arrays").iterdir())) > 1
# Each worker reads a share, even of a single file.
np.save(f"whole-{tm.init().rank}.npy", array)
tm.init().comm.barrier()
for arrays in tm.read_npy(here / "arrays", ["n", "half"]), tm.read_npy(here / "whole-0.npy", ["n", "half"]):
    mine = arrays.collect_local().to_numpy()
    assert 0 < len(mine["n"]) < 100_000 and (mine["n"] == mine["half"] * 2).all()
    assert arrays.sort("n").to_dict()["n"] == back
try:
    texts.select(text=tm.when(tm.col("text") == "5").then(tm.lit(None)).otherwise(tm.col("text"))).write_text(here / "none")
except tm.DataSetError as error:
    print(error)
"""


def test_workers_write_texts_and_arrays(tmp_path: Path) -> None:
    """Each writes its partitions into its own files, with sorted ones in the order of their paths; a refusal is the
    same for all.
    """
    with workers.Job(tmp_path, 2, PARTS, {"TIDEMILL_THREADS": "2"}) as job:
        first, second = job.succeed()
    assert first == second and "is null" in first and "part-0" in first, first
    assert not (tmp_path / "none").exists()


BLOCKED = """
import signal, time
import tidemill as tm

job = tm.init()
data = tm.from_dict({"x": list(range(100_000))})

def blocks(batch):
    print("running", flush=True)
    WAITS

try:
    data.map_batches(blocks, schema={"x": "int64"}).collect()
except KeyboardInterrupt:
    print("interrupted", data.count(), flush=True)
except tm.WorkerLost as error:
    print("lost", error.rank)
except tm.DataSetError as error:
    print("told", data.count(), flush=True)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("waits", ["time.sleep(1000)", "while True: time.sleep(0.01)"])
@pytest.mark.parametrize("ends", ["interrupt", "kill"])
def test_a_function_that_blocks_keeps_nobody(waits: str, ends: str, tmp_path: Path) -> None:
    """Ctrl-C and the loss of a worker end an action on all workers, whatever its functions wait for; so does the
    program's end.
    """
    with workers.Job(tmp_path, 2, BLOCKED.replace("WAITS", waits), {"TIDEMILL_THREADS": "1"}) as job:
        for worker in job.workers:
            assert worker.stdout is not None and worker.stdout.readline() == "running\n"
        job.workers[1].send_signal(signal.SIGINT if ends == "interrupt" else signal.SIGKILL)
        results = job.finish()
    if ends == "interrupt":
        assert [result[:2] for result in results] == [(0, "told 100000\n"), (0, "interrupted 100000\n")], results
    else:
        assert results[0][:2] == (0, "lost 1\n"), results


FULL = """
import resource
import sys
from pathlib import Path
import tidemill as tm

job = tm.init()
here = Path.cwd()
x = tm.col("x")
data = tm.from_dict({"x": list(range(400_000))}).with_columns(y=(x * 7919 % 400_009).cast("str").str.pad_start(60, "*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
errors = []
for action in [
    lambda: data.sort("y").collect(),
    lambda: data.write_parquet(here / "out", compression="uncompressed"),
    lambda: data.write_csv(here / "out"),
]:
    try:
        action()
        errors.append("nothing")
    except tm.DataSetError as error:
        errors.append(str(error))
assert all(one == errors for one in job.comm.allgather(errors))
assert data.count() == 400_000
if job.rank == 0:
    print("\\n---\\n".join(errors))
"""


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """A file that cannot grow, whether for spilling or for output, is an error on all workers, and nothing is left."""
    spill = tmp_path / "spill"
    spill.mkdir()
    env = {"TIDEMILL_MEMORY": "16MiB", "TIDEMILL_SPILL_DIR": str(spill), "TIDEMILL_THREADS": "1"}
    with workers.Job(tmp_path, 2, FULL, env) as job:
        sort, parquet, csv = job.succeed()[0].split("\n---\n")
    assert str(spill) in sort and "File too large" in sort, sort
    for told in parquet, csv:
        assert re.search(r"/\.out\.unfinished-\w+/.*: File too large", told), told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.py", "spill"]
    assert list(spill.iterdir()) == []


#: Windows and joins below functions, and where rows are: every line must hold for any number of workers.
PLACES = r"""
import numpy as np
import pyarrow as pa
import tidemill as tm
from tidemill import col
from pathlib import Path
import sys

job = tm.init()
folder = Path(sys.argv[1])
small = tm.from_dict({"g": [1, 2, 1, 2], "i": [1, 2, 3, 4]})
w = small.with_columns(w=col("i").sum().over("g"))
rows = lambda data: sorted(tuple(row.values()) for row in data.to_pylist())
right = [(1, 1, 4), (1, 3, 4), (2, 2, 6), (2, 4, 6)]
# The planner must not lose what steps below a function need: sums would cover only part of the rows.
m = w.map(lambda row: row)
assert rows(m) == rows(w.flat_map(lambda row: [row])) == rows(w.map_batches(lambda batch: batch)) == right, rows(m)
assert rows(m.map(lambda row: row).filter(lambda row: row["w"] > 4)) == right[2:]
assert rows(w.filter(lambda row: row["w"] > 4)) == right[2:]
assert w.reduce(lambda a, b: {**a, "w": a["w"] + b["w"]})["w"] == 20
assert rows(m.union(w)) == sorted(right + right)
assert rows(m.group_by("g").agg(s=col("w").sum())) == [(1, 8), (2, 12)]
assert rows(m.repartition(3, "g")) == right
assert m.write_parquet(folder / "m", overwrite=True) == 4 and rows(tm.read_parquet(folder / "m")) == right
texts = tm.from_dict({"t": ["a b", "a b", "c"]}).with_columns(n=tm.count().over("t"))
words = texts.select("n", word=col("t").str.split(" ")).explode("word").map(lambda row: row)
assert sorted(map(tuple, (row.values() for row in words.to_pylist()))) == [(1, "c"), (2, "a"), (2, "a"), (2, "b"), (2, "b")], words.to_pylist()
n = 40_000
arrow = pa.table({"i": np.arange(n), "k": np.arange(n) % 7})
memory = tm.from_arrow(arrow)
joined = memory.join(memory.filter(col("i") > 10).select("i", v=col("k")), on="i")
assert joined.map_batches(lambda batch: batch).count() == n - 11
assert rows(joined.map_batches(lambda batch: batch).select(s=col("v").sum())) == rows(joined.select(s=col("v").sum()))
memory.write_csv(folder / "csv", overwrite=True)
memory.write_parquet(folder / "parquet", overwrite=True)

for name, data in {"memory": memory, "csv": tm.read_csv(folder / "csv"), "parquet": tm.read_parquet(folder / "parquet")}.items():
    by_key = data.repartition(job.size, "k")
    plan = by_key.explain()
    assert ("by hash of k" in plan) and ("SpreadExec" in plan or job.size > 1), plan
    for places in (
        by_key.collect_local(), by_key.cache().collect_local(), by_key.filter(col("i") >= 0).map_batches(lambda b: b).collect_local(),
        by_key.bsp(lambda comm, table: table).collect_local(),
    ):
        mine = set(places.to_numpy()["k"].tolist())
        everyone = job.comm.allgather(mine)
        assert sum(map(len, everyone)) == 7 and set().union(*everyone) == set(range(7)), (name, everyone)
        assert sum(job.comm.allgather(places.num_rows)) == n
    assert {len(places) for places in job.comm.allgather(set(by_key.persist_local()["k"].tolist()))} != {7} or job.size == 1
    counts = job.comm.allgather(data.repartition(job.size).collect_local().num_rows)
    assert sum(counts) == n and max(counts) - min(counts) <= n // 50, (name, counts)
    # Results of few rows, and those of a limit, do so without being asked.
    counts = job.comm.allgather(data.limit(100).collect_local().num_rows)
    assert sum(counts) == 100 and max(counts) - min(counts) <= job.size, (name, counts)
few = tm.from_dict({"x": list(range(60))})
counts = job.comm.allgather(few.bsp(lambda comm, table: table).collect_local().num_rows)
assert sum(counts) == 60 and max(counts) - min(counts) <= 2 * job.size, counts
# Rows of a small table keep their order although all threads have some.
assert few.map(lambda row: row).to_dict()["x"] == list(range(60))
assert few.sort("x", descending=True).collect_local().num_rows in range(61)
assert len(few.repartition(8).map(lambda row: row).to_dict()["x"]) == 60
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_where_rows_are(tmp_path: Path, count: int) -> None:
    """A program that relies on equal keys being together, or on all workers having rows, must not silently be wrong."""
    standing.run_program(PLACES, tmp_path, workers=count)
