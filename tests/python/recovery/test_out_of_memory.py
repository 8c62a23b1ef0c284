"""Jobs in a container with little memory: they keep within its limit; when the kernel kills a worker all the same, the
job says so and restarts.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import cgroups
import stream_job
from recovered import folder, read

__all__ = ["folder"]

#: A query and a stream want several times this.
LIMIT = 400 << 20
KEYS = 900_000

WITHIN = """
import json
import sys
from pathlib import Path

import tidemill as tm

KEYS = int(sys.argv[2])
job = tm.init()
folder = Path(sys.argv[1])

# 400 MB, sorted.
made = "select value * 7919 % 4000037 as key, lpad(cast(value as varchar), 90, 'x') as text from generate_series(1, 4000000)"
tm.sql(made).sort("key").write_parquet(folder / "sorted")
look = "select count(*) as n, sum(key) as sum, sum(length(text)) as bytes from rows"
keys = tm.sql(look, rows=tm.read_parquet(folder / "sorted")).collect().to_dict()

# A window with 600 MB of keys.
name = tm.functions.scalar("lpad", (tm.col("number") * 7919 % KEYS).cast("str"), 300, "x")
rows = tm.stream.from_generator(0, rows=2 * KEYS, splits=4, step="1ms", max_out_of_orderness="60s").select("number", "time", name=name)
counts = rows.group_by("name", tm.stream.window(tm.stream.tumbling("3000d"), on="time")).agg(n=tm.count())
found = [0, 0]

def take(table):
    n = table.to_dict()["n"]
    found[0] += len(n)
    found[1] += sum(n)

report = counts.write_stream(take)
(folder / f"{job.rank}.found").write_text(json.dumps([found, report["spilled_bytes"], keys]))
"""

KILLED = """
import sys
from pathlib import Path

import tidemill as tm
from stream_job import Files

folder = Path(sys.argv[1])

def grow(row):
    if row["number"] == 3000 and not (folder / "grown").exists():
        (folder / "grown").touch()
        held = [bytearray(64 << 20) for _ in range(100)]
    return row

rows = tm.stream.from_generator(2000, rows=6000, splits=2).select("number").map(grow, {"number": "int64"})
rows.write_stream(Files(folder / "results"), checkpoint=tm.stream.Checkpoint(folder / "checkpoints", interval="200ms"))
"""


def test_a_query_and_a_stream_keep_within_the_limit(folder: Path) -> None:
    """Workers were killed because budgets ignored the interpreters' memory, and because whole states were copied for
    sorting before they went to disk.
    """
    app = folder / "app.py"
    app.write_text(WITHIN)
    with cgroups.limited(LIMIT) as group:
        ran = group.run("run", "-n", "2", "--spill-dir", folder, app, folder, str(KEYS))
        assert ran.returncode == 0, ran.stderr.decode()
        assert group.kills() == 0
    told = [json.loads((folder / f"{rank}.found").read_text()) for rank in range(2)]
    assert [sum(found[at] for found, _, _ in told) for at in range(2)] == [KEYS, 2 * KEYS]
    assert sum(spilled for _, spilled, _ in told) > LIMIT
    # 7919 and 4000037 are coprime: 37 remainders are missing, namely those of 0 and of 4000001 and up.
    left_out = sum(value * 7919 % 4_000_037 for value in [0, *range(4_000_001, 4_000_037)])
    keys = {"n": [4_000_000], "sum": [4_000_037 * 4_000_036 // 2 - left_out], "bytes": [4_000_000 * 90]}
    assert all(of_worker == keys for _, _, of_worker in told)


def test_a_worker_that_the_kernel_kills_for_memory(folder: Path) -> None:
    """The message has the limit and the remedy, not only a signal; and with --restarts the job resumes from its
    checkpoint, exactly once.
    """
    app = folder / "app.py"
    app.write_text(KILLED)
    env = {"PYTHONPATH": f"{Path(stream_job.__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
    with cgroups.limited(LIMIT) as group:
        ran = group.run("run", "-n", "2", "--restarts", "1", app, folder, env=env)
        assert group.kills() >= 1, ran.stderr.decode()
        said = f"was killed by SIGKILL by the kernel's out-of-memory killer: this container may use 400 MiB (cgroup {group.limit});"
    told = ran.stderr.decode()
    # Usually the one that grew, but the kernel chooses, and on a busy machine it may take the other one, too.
    assert re.search(rf"tidemill: worker [01] {re.escape(said)} raise that limit", told), told
    assert "starting the job again (1 of 1)" in told and "resumes from checkpoint" in told, told
    assert ran.returncode == 0, told
    assert sorted(row["number"] for row in read(folder / "results")) == list(range(6000))
