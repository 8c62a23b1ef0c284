"""DataSets in jobs of several workers: the same rows everywhere, the same errors everywhere, and one copy of the output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import launched
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import standing

PROGRAM = """
import sys
import pyarrow
import tidemill as tm

job = tm.init()
folder = sys.argv[1]
sales = tm.read_csv(folder + "/*.csv")
mine = pyarrow.table({"shop": [f"s{job.rank}"], "rank": [job.rank]})
shops = tm.from_local(mine)
by_shop = sales.group_by("shop").agg(tm.col("amount").sum(), n=tm.count())
rows = by_shop.sort("shop").to_pylist()
# All workers see the same rows of any limit, though no promise says which rows.
some = sales.limit(7).to_pylist()
only = by_shop.collect(root=job.size - 1)
errors = []
for wrong in [
    lambda: sales.select(tm.col("shop").cast("int64")).collect(),
    lambda: sales.filter(tm.col("shop").cast("int64") == 1).count(),
    lambda: sales.write_csv(folder),
    *([lambda: sales.write_csv(f"{folder}/out{job.rank}"), lambda: sales.materialize(f"{folder}/kept{job.rank}")]
      if job.size > 1 else []),
]:
    try:
        wrong()
    except tm.DataSetError as error:
        errors.append(str(error))
written = sales.write_parquet(folder + "/out")
again = tm.read_parquet(folder + "/out").count()
seen = job.comm.allgather((rows, some, errors, written, again, shops.count()))
assert all(one == seen[0] for one in seen), seen
last = job.rank == job.size - 1
for given in [by_shop.to_dict(root=job.size - 1)["n"], by_shop.to_pylist(root=job.size - 1), by_shop.to_arrow(root=job.size - 1),
              by_shop.to_pandas(root=job.size - 1), by_shop.to_polars(root=job.size - 1)]:
    assert len(given) == (3 if last else 0), given
described = by_shop.describe(root=job.size - 1)
assert described.schema == by_shop.describe().schema and len(described) == (9 if last else 0), described
assert len(only) == (3 if job.rank == job.size - 1 else 0), only
assert only.columns == ["shop", "amount", "n"]
assert len(errors) == (3 if job.size == 1 else 5) and "exists" in errors[2], errors
for error, (call, name) in zip(errors[3:], [("write_csv", "out"), ("materialize", "kept")]):
    assert error.startswith(f"{call}: path= is ") and f"{name}0' on worker 0 and " in error, error
assert shops.count() == job.size
if job.rank == 0:
    print(rows, written, again)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_same_rows_on_any_number_of_workers(workers: int, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for part in range(3):
        lines = [f"s{number % 3},{number}" for number in range(part * 1000, part * 1000 + 1000)]
        (data / f"{part}.csv").write_text("shop,amount\n" + "\n".join(lines) + "\n")
    outputs = standing.run_program(PROGRAM, data, workers=workers)
    sums = [sum(n for n in range(3000) if n % 3 == shop) for shop in range(3)]
    expected = [{"shop": f"s{shop}", "amount": sums[shop], "n": 1000} for shop in range(3)]
    assert outputs == [f"{expected} 3000 3000\n", *[""] * (workers - 1)]


def test_interrupt_ends_a_long_query(tmp_path: Path) -> None:
    """Ctrl-C during a query that would run for hours raises KeyboardInterrupt, and Python threads run meanwhile."""
    program = (
        "import threading, tidemill as tm\n"
        "n = tm.from_dict({'x': list(range(100_000))})\n"
        "threading.Timer(0.3, lambda: print('running', flush=True)).start()\n"
        "try:\n"
        "    n.join(n, how='cross').join(n, how='cross', suffix='_3').filter(tm.col('x') * tm.col('x_right') == -1).count()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"running\n", "the query holds the GIL"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=launched.PATIENCE_S)[0] == b"interrupted\n"
        assert process.returncode == 0
    finally:
        process.kill()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sort_of_long_rows_spills(tmp_path: Path, threads: int) -> None:
    """Batches have 8192 rows however long these are: a merge that needed hundreds of MiB was refused them, despite room
    on disk.
    """
    program = """
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import tidemill as tm

rng = np.random.default_rng(1)
for rows, texts, length in [(160, 1, 100_000), (16_000, 1, 1_000), (2_000, 100, 60), (5, 1, 2_000_000)]:
    key = rng.permutation(rows)
    text = lambda at: pa.array([f"{k:08}{at:04}".ljust(length, "*") for k in key])
    pq.write_table(pa.table({"key": key, **{f"t{at}": text(at) for at in range(texts)}}), "rows.parquet")
    data = tm.read_parquet("rows.parquet")
    data.sort("key").write_parquet("by-key", overwrite=True)
    data.sort("t0", descending=True).write_parquet("by-text", overwrite=True)
    for folder, order in ("by-key", slice(None)), ("by-text", slice(None, None, -1)):
        found = [pq.read_table(file) for file in Path(folder).glob("*.parquet")]
        found = pa.concat_tables(sorted(found, key=lambda table: table["key"][0].as_py(), reverse=folder == "by-text"))
        assert found["key"].to_pylist() == list(range(rows))[order], (rows, folder)
        assert all(found[f"t{texts - 1}"][at].as_py()[:12] == f"{found['key'][at].as_py():08}{texts - 1:04}" for at in range(rows))
print("done")
"""
    spill = tmp_path / "spill"
    spill.mkdir()
    env = {**os.environ, "TIDEMILL_SPILL_DIR": str(spill), "TIDEMILL_MEMORY": "24MiB", "TIDEMILL_THREADS": str(threads)}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=env, capture_output=True, timeout=launched.PATIENCE_S, cwd=tmp_path)
    assert result.stdout == b"done\n", result.stderr.decode()
    assert list(spill.iterdir()) == []


def test_no_addresses_and_no_room_to_spill(tmp_path: Path) -> None:
    """A refusal by the system is an error with a remedy; unchecked, threads that cannot start would end the process."""
    program = """
import random, resource, sys
import tidemill as tm

if "addresses" in sys.argv:
    resource.setrlimit(resource.RLIMIT_AS, (500 << 20, 500 << 20))
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 10, 256 << 10))
try:
    tm.from_dict({"x": random.Random(1).choices(range(10**9), k=1_000_000)}).sort("x").collect()
except tm.DataSetError as error:
    print(error)
"""

    def told(what: str, spill: Path) -> str:
        env = {**os.environ, "TIDEMILL_SPILL_DIR": str(spill), "TIDEMILL_MEMORY": "16MiB", "TIDEMILL_THREADS": "4"}
        command = [sys.executable, "-c", program, what]
        result = subprocess.run(command, env=env, capture_output=True, timeout=launched.PATIENCE_S)
        assert (result.returncode, result.stderr) == (0, b""), result
        return result.stdout.decode()

    assert re.match(
        r"`ulimit -v` leaves this process \d+ MiB of address space, but 4 query threads take \d+ MiB",
        told("addresses", tmp_path),
    )
    full = told("disk", tmp_path)
    assert full.startswith(f"spilling to {tmp_path}: ") and re.search(
        r"written \d+ MiB .*--spill-dir, or raise --memory", full
    ), full
    missing = told("disk", tmp_path / "file" / "folder") if (tmp_path / "file").write_text("") == 0 else ""
    assert missing.startswith(f"spilling to {tmp_path}/file/folder: ") and "--spill-dir" in missing, missing
    (tmp_path / "file").unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_budget_spills(tmp_path: Path) -> None:
    """A sort beyond the budget gives the same rows, through files that are gone afterwards."""
    program = (
        "import random, tidemill as tm\n"
        "x = list(range(1_000_000)); random.Random(1).shuffle(x)\n"
        "data = tm.from_dict({'x': x}).with_columns(pad=tm.col('x').cast('str').str.pad_start(40, '*')).sort('x')\n"
        "print('spill_count=0,' in data.explain('analyze').split('SortExec', 1)[1].splitlines()[0])\n"
        "assert data.collect().to_dict()['x'] == list(range(1_000_000))\n"
    )
    for memory, in_memory in [("", b"True\n"), ("32MiB", b"False\n")]:
        env = {**os.environ, "TIDEMILL_SPILL_DIR": str(tmp_path), "TIDEMILL_MEMORY": memory, "TIDEMILL_THREADS": "1"}
        result = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, timeout=120)
        assert result.stdout == in_memory, result
        assert result.returncode == 0, result.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def rows_640_mib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of a million rows: the same numbers ``x`` in random order, ``y`` from 0, ``s`` of 64 digits."""
    folder = tmp_path_factory.mktemp("rows")
    random = np.random.default_rng(1)
    for part in range(8):
        y = pa.array(np.arange(part * 1_000_000, (part + 1) * 1_000_000))
        digits = pc.utf8_lpad(y.cast("string"), 64, "0")
        columns = {"x": random.integers(0, 1 << 62, len(y)), "y": y, "s": digits}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet", row_group_size=100_000)
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["sort", "group", "join", "window"])
def test_the_process_stays_within_its_budget(what: str, rows_640_mib: Path, tmp_path: Path) -> None:
    """Finds uncounted memory: the kernel would kill a worker that promises to spill."""
    program = """
import sys
import threading
import tidemill as tm

def resident():
    kib = {line.split(":")[0]: line.split()[1] for line in open("/proc/self/status") if line.startswith(("Rss", "Vm"))}
    return {name: int(kib[name]) << 10 for name in ("RssAnon", "VmRSS", "VmHWM")}

def look():
    global peak
    while not done.wait(0.002):
        peak = max(peak, resident()["RssAnon"])

tm.from_dict({"n": [1]}).count()
before = resident()
peak, done = before["RssAnon"], threading.Event()
watcher = threading.Thread(target=look)
watcher.start()
data = tm.read_parquet(sys.argv[2])
other = tm.read_parquet(sys.argv[2]).select("x", z="y")
made = {
    "sort": lambda: data.sort("x"),
    "group": lambda: data.group_by("s").agg(n=tm.count(), y=tm.col("y").max()),
    "join": lambda: data.join(other, on="x"),
    "window": lambda: data.with_columns(place=tm.functions.row_number().over("x", order_by="y")),
}[sys.argv[1]]()
made.write_parquet("out")
all_peak = resident()["VmHWM"]
done.set()
watcher.join()
assert tm.read_parquet("out").count() == 8_000_000
print((all_peak - before["VmRSS"]) / (256 << 20), (peak - before["RssAnon"]) / (256 << 20))
"""
    env = {**os.environ, "TIDEMILL_SPILL_DIR": str(tmp_path), "TIDEMILL_MEMORY": "256MiB", "TIDEMILL_THREADS": "2"}
    command = [sys.executable, "-c", program, what, str(rows_640_mib)]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr.decode()
    # The second counts only the process's own memory, without pages of files.
    all_pages, own = map(float, result.stdout.split())
    # A join reads two files at a time, with Parquet's memory for that.
    assert all_pages < (1.5 if what == "join" else 1.25), f"{all_pages} of the budget, {own} without pages of files"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", ["32MiB", "64MiB"])
def test_a_small_budget_sorts_into_parquet(memory: str, rows_640_mib: Path, tmp_path: Path) -> None:
    """A sort's memory for merges, and Parquet's buffers before it writes, must leave room for each other."""
    program = """
import sys
import tidemill as tm

tm.read_parquet(sys.argv[1]).sort("x").write_parquet("out")
"""
    spill = tmp_path / "spill"
    spill.mkdir()
    env = {**os.environ, "TIDEMILL_SPILL_DIR": str(spill), "TIDEMILL_MEMORY": memory, "TIDEMILL_THREADS": "2"}
    command = [sys.executable, "-c", program, str(rows_640_mib / "0.parquet")]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert list(spill.iterdir()) == []
    parts = sorted(tmp_path.glob("out/*.parquet"))
    written = pa.concat_tables([pq.read_table(part) for part in parts])
    expected = pq.read_table(rows_640_mib / "0.parquet").sort_by("x")
    assert written.cast(expected.schema) == expected
    # 1 with the usual groups; too small ones would be slow to read.
    assert 1 < sum(pq.ParquetFile(part).num_row_groups for part in parts) < 100


@pytest.mark.parametrize(
    ("name", "value"), [("TIDEMILL_MEMORY", "lots"), ("TIDEMILL_THREADS", "0"), ("TIDEMILL_MEMORY", "1KiB")]
)
def test_settings_that_cannot_be(name: str, value: str) -> None:
    program = "import tidemill as tm\ntm.from_dict({'x': [1, 2]}).sort('x').group_by('x').count().sort('x').collect()"
    result = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, name: value}, capture_output=True, timeout=60
    )
    assert result.returncode == 1
    last = result.stderr.decode().splitlines()[-1] if value != "1KiB" else result.stderr.decode()
    assert (name if value != "1KiB" else "out of memory budget") in last, result.stderr.decode()


def test_queries_after_fork_and_in_threads() -> None:
    """A forked child has none of its parent's threads and must start its own; Python threads query concurrently."""
    program = (
        "import os, threading, tidemill as tm\n"
        "data = tm.from_dict({'k': list(range(100)) * 50})\n"
        "assert data.count() == 5000\n"
        "child = os.fork()\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(data.distinct().count())) for _ in range(8)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert found == [100] * 8, found\n"
        "assert child == 0 or os.waitpid(child, 0)[1] == 0\n"
        "os._exit(0) if child == 0 else print('done')\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert result.stdout == b"done\n", result.stderr.decode()
