"""Workers killed while rows are in flight or on disk: one clear error for the others, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import launched
import pytest
import workers
from graphs import program

VICTIM = 1

#: Keeps rows on disk for long, again and again.
QUERY = """
import os
from pathlib import Path
import tidemill as tm

job = tm.init()
folder = Path.cwd()
data = tm.read_records(folder / "in", {"key": 10, "value": 90})
other = data.select(key=tm.col("key"), other=tm.col("value"))
(folder / f"{job.rank}.pid").write_text(f"{os.getpid()}\\n")
try:
    while True:
        QUERY.write_records(folder / "out", overwrite=True)
except tm.WorkerLost as error:
    print("lost", error.rank)
"""

GRAPH = """
(Path.cwd() / f"{job.rank}.pid").write_text(f"{os.getpid()}\\n")

def send(out, context):
    generator = np.random.default_rng(context.copy)
    for _ in range(ROUNDS):
        out.send({"k": generator.integers(0, 1_000_000, 20_000), "v": np.arange(20_000)})

def take(rows, context):
    taken = 0
    for table in rows:
        taken += len(table)
        (Path.cwd() / f"{job.rank}.taken").write_text(str(taken))
        time.sleep(0.001)
    return taken

try:
    while True:
        graph = tm.Graph("killed")
        a = graph.source("a", send, schema={"k": "int64", "v": "int64"}, parallelism=3)
        graph.connect(a, graph.sink("b", take, parallelism=3), EXCHANGE)
        graph.run()
except tm.WorkerLost as error:
    print("lost", error.rank)
"""


def on_disk(pid: int, folder: Path) -> int:
    """Bytes in the files that a process has open in a folder; files there have no names."""
    total = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(file).startswith(f"{folder}/"):
                total += file.stat().st_size
        except FileNotFoundError:  # closed meanwhile
            continue
    return total


def kill_one(job: workers.Job, pause_s: float) -> None:
    """Kill the victim, and check that the others notice and end."""
    time.sleep(pause_s)
    job.workers[VICTIM].send_signal(signal.SIGKILL)
    for rank, (code, out, err) in enumerate(job.finish()):
        expected = (-signal.SIGKILL, "") if rank == VICTIM else (0, f"lost {VICTIM}\n")
        assert (code, out) == expected, f"worker {rank}: {err}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pause_s", [0.0, random.Random(7).uniform(0.1, 1.0)], ids=["at first", "later"])
@pytest.mark.parametrize(
    "what",
    [
        'data.sort("key")',
        'data.join(other, on="key")',
        'data.join(other, on="key", how="full")',
        'tm.sql("select a.key, b.other from a join b on a.key < b.key and b.key < a.key and a.value <> b.other", a=data, b=other)',
        "exchange",
    ],
    ids=["sort", "join", "full join", "join without keys", "exchange"],
)
def test_a_worker_that_is_killed_with_rows_on_disk(what: str, pause_s: float, tmp_path: Path) -> None:
    """Workers that wait for its rows must be told, whether it sorts, partitions rows or joins partitions, and all
    spilled data is gone.
    """
    spill = tmp_path / "spill"
    spill.mkdir()
    (tmp_path / "in").mkdir()
    generator = random.Random(3)
    for part in range(2):
        (tmp_path / "in" / f"{part}.bin").write_bytes(generator.randbytes(20_000_000))
    env = {"TIDEMILL_MEMORY": "8MiB", "TIDEMILL_SPILL_DIR": str(spill)}
    if what == "exchange":
        text = program("from pathlib import Path", GRAPH.replace("ROUNDS", "40").replace("EXCHANGE", 'x.sort("k")'))
    else:
        text = QUERY.replace("QUERY", what)
    with workers.Job(tmp_path, 3, text, env) as job:
        launched.pids_in(tmp_path, 3)
        victim = job.workers[VICTIM].pid
        launched.wait_until(lambda: on_disk(victim, spill) > 100_000, "rows of the victim on disk")
        kill_one(job, pause_s)
    assert list(spill.iterdir()) == []
    assert not [path for path in tmp_path.iterdir() if "unfinished" in path.name]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "exchange",
    ['x.partition("k")', "x.broadcast()", "x.gather(1)", 'x.keyed_reduce("k", {"v": "sum"})', 'x.keyed_gather("k")'],
)
def test_a_worker_that_is_killed_in_an_exchange(exchange: str, tmp_path: Path) -> None:
    """With rows in flight to it and from it: those that wait for them, or for credit, must learn that nothing will
    come.
    """
    endless = "10**9" if "keyed" not in exchange else "100"
    text = program("from pathlib import Path", GRAPH.replace("ROUNDS", endless).replace("EXCHANGE", exchange))
    with workers.Job(tmp_path, 3, text) as job:
        launched.pids_in(tmp_path, 3)
        launched.wait_until((tmp_path / f"{VICTIM}.taken").exists, "rows at the victim")
        kill_one(job, 0)
