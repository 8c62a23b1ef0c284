"""A disk that returns other bytes than were written: the result is an error that says where, never rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import launched
import pytest
from graphs import program

#: Changes a byte of this process's files in its spill directory.
DAMAGE = """
import ctypes, os, random
import tidemill as tm

spill = os.environ["TIDEMILL_SPILL_DIR"]

def change(file, at):
    file.seek(at)
    byte = file.read(1)
    file.seek(at)
    file.write(bytes([byte[0] ^ 4]))

def damage_files(at_least=200_000):
    done = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(spill + "/"):
                with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file:
                    size = os.fstat(file.fileno()).st_size
                    if size > at_least:
                        change(file, size // 2)
                        done += 1
        except FileNotFoundError:  # closed meanwhile
            pass
    return done

def damage_mappings():
    places = [line.split() for line in open("/proc/self/maps") if f" {spill}/" in line]
    for place in places:
        start, end = (int(part, 16) for part in place[0].split("-"))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3) == 0
        ctypes.c_ubyte.from_address((start + end) // 2).value ^= 4
    return len(places)

def fails(action, *words):
    try:
        action()
    except (tm.DataSetError, tm.GraphError) as error:
        text = str(error)
    else:
        raise AssertionError("rows came of what is damaged")
    assert all(word in text for word in ("differs from the data written", "checksum", "is the disk faulty?", *words)), text
"""

QUERIES = """
done = 0

def spoil(batch):
    global done
    # Once there is something on disk.
    done = done or damage_files()
    return batch

x = list(range(600_000))
random.Random(1).shuffle(x)
wide = tm.col("x").cast("str").str.pad_start(60, "*")
data = tm.from_dict({"x": x}).map_batches(spoil, {"x": "int64"}).with_columns(pad=wide)
query = {
    "sort": lambda: data.sort("x").collect(),
    "group": lambda: data.group_by("pad").agg(tm.col("x").sum()).collect(),
    "window": lambda: data.with_columns(n=tm.functions.row_number().over(tm.col("x") % 7, order_by="pad")).select(tm.col("n").sum()).collect(),
    "join": lambda: data.join(tm.from_dict({"x": x}).with_columns(other=wide), on="x").select(tm.col("pad").max(), tm.col("other").max()).collect(),
}[sys.argv[1]]
fails(query, spill)
assert done > 0
print("done")
"""


def run(text: str, *arguments: str, tmp_path: Path, memory: str) -> None:
    env = {**os.environ, "TIDEMILL_MEMORY": memory, "TIDEMILL_SPILL_DIR": str(tmp_path), "TIDEMILL_THREADS": "1"}
    command = [sys.executable, "-c", "import sys\n" + DAMAGE + text, *arguments]
    result = subprocess.run(command, env=env, capture_output=True, timeout=launched.PATIENCE_S)
    assert result.stdout == b"done\n", result.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("query", ["sort", "group", "window", "join"])
def test_what_queries_spill(query: str, tmp_path: Path) -> None:
    """DataFusion does not verify what it reads back: without our checksums, a changed byte would be a wrong value, or a
    crash.
    """
    run(QUERIES, query, tmp_path=tmp_path, memory="24MiB")


def test_what_is_cached_on_disk(tmp_path: Path) -> None:
    """Nothing can fail when rows in a mapped file are read: they must be verified before."""
    text = """
data = tm.from_dict({"x": list(range(1_000_000))}).with_columns(y=tm.col("x") * 2).cache()
assert data.select(tm.col("y").sum()).to_dict() == {"y": [999_999_000_000]}
local = data.collect_local()
assert damage_mappings() > 0
fails(lambda: data.select(tm.col("x").sum(), tm.col("y").sum()).collect(), spill)
print("done")
"""
    run(text, tmp_path=tmp_path, memory="2MiB")


GRAPH = """
import sys
EXCHANGE = {"sort": x.sort("v"), "keyed_gather": x.keyed_gather("k"), "keyed_reduce": x.keyed_reduce("v", {"k": "max"})}[sys.argv[1]]

def send(out, context):
    done = 0
    for start in range(0, 100_000_000, 10_000):
        v = np.random.default_rng(start).permutation(10_000) + start
        out.send({"k": v % 1000, "v": v, "s": [f"text {n}" for n in v]})
        done = done or damage_files()
        if done:
            return

def send_once(out, context):
    if context.worker == 0:
        send(out, context)

graph = tm.Graph("damaged")
a = graph.source("a", send_once, schema=SCHEMA)
b = graph.sink("b", lambda rows, context: sum(1 for _ in rows), parallelism=1)
graph.connect(a, b, EXCHANGE)
fails(graph.run, "a.out -> b.in", sys.argv[1].replace("_", " "))
print("done")
"""


@pytest.mark.parametrize("exchange", ["sort", "keyed_gather", "keyed_reduce"])
def test_the_edge_is_named(exchange: str, tmp_path: Path) -> None:
    """With several exchanges in flight, every worker must learn which of them cannot go on."""
    app = tmp_path / "app.py"
    app.write_text(program(DAMAGE, GRAPH))
    spill = tmp_path / "spill"
    spill.mkdir()
    env = {**os.environ, "TIDEMILL_MEMORY": "8MiB", "TIDEMILL_SPILL_DIR": str(spill)}
    result = launched.run("run", "-n", "2", app, exchange, env=env)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().count("done") == 2
    assert list(spill.iterdir()) == []


READERS = """
import gzip, os, random, resource
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from mutations import mutated

# A length from a file must not become an allocation.
resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30))
seed = os.environ["TIDEMILL_TEST_SEED"]
dice = random.Random(seed)
table = pa.table({"a": range(200), "s": [f"text {n}" for n in range(200)]})
lines = "a,s\\n" + "".join(f"{n},text {n}\\n" for n in range(200))
records = "".join('{"a": %d, "s": "text"}\\n' % n for n in range(200))
whole = {}
for name, text, read in ("a.csv", lines, tm.read_csv), ("a.jsonl", records, tm.read_json), ("a.txt", lines, tm.read_text):
    whole[name + ".gz"] = gzip.compress(text.encode()), read
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(text.encode())
    whole[name + ".zst"] = packed.getvalue().to_pybytes(), read
for codec in "zstd", "gzip", "snappy", "lz4":
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression=codec)
    whole[codec + ".parquet"] = out.getvalue().to_pybytes(), tm.read_parquet
for name, (data, read) in whole.items():
    Path(name).write_bytes(data)
    assert read(name).count() >= 200, name
refused = 0
for number in range(400):
    name = dice.choice(list(whole))
    data, read = whole[name]
    Path(name).write_bytes(mutated(dice, data))
    try:
        read(name).collect()
    except tm.DataSetError as error:
        assert name in str(error) and "internal" not in str(error).lower(), (seed, number, str(error))
        refused += 1
assert refused > 200, refused
print("done")
"""


def test_compressed_files_that_are_damaged(tmp_path: Path) -> None:
    """Either the rows are intact, or an error names the file: no panic, no "internal error", no allocation of a size
    that the file claims.
    """
    env = {
        **os.environ,
        "TIDEMILL_THREADS": "2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", "import sys\nimport tidemill as tm\n" + READERS]
    result = subprocess.run(command, env=env, capture_output=True, timeout=launched.PATIENCE_S, cwd=tmp_path)
    assert result.stdout == b"done\n", result.stderr.decode()
    assert b"panicked" not in result.stderr, result.stderr.decode()
