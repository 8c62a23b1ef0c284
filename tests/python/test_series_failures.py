"""A worker is killed in the middle of a fit, of frames, and of ``tidemill series``: the others say so, and what was written is whole."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import launched
import pytest
import workers
from tidemill import series
from tidemill.viz import FrameReader

FIT = """
import os, pathlib
import numpy as np
import tidemill as tm
from tidemill.ml import MDS

class Told(MDS):
    def _report(self, iteration):
        if iteration.number == 5:
            pathlib.Path(f"{comm.rank}.pid").write_text(f"{os.getpid()}\\n")

comm = tm.init().comm
points = np.random.default_rng(1).standard_normal((150, 12))
mine = slice(150 * comm.rank // comm.size, 150 * (comm.rank + 1) // comm.size)
distances = np.linalg.norm(points[mine, None] - points, axis=2)
weights = np.ones_like(distances) if {matrix} else None
try:
    # Never at its end: without a tolerance, it goes on until rounding stops it.
    while True:
        Told(init="random", max_iter=10**6, tol=0.0, acceleration={acceleration}).fit(distances, weights=weights)
except tm.WorkerLost as error:
    print("lost", error.rank)
"""

FRAMES = """
import os, pathlib
import numpy as np
import tidemill as tm
from tidemill import series
from tidemill.series import _embed

comm = tm.init().comm
_embed.ALONE_IDS_MAX = {alone_ids_max}
steps = np.random.default_rng(0).normal(scale=0.01, size=(200, 40))
days = np.arange("2024-01-01", "2024-07-19", dtype="datetime64[D]").astype("datetime64[us]")
panel = series.Panel(days, np.array([f"s{{n:02}}" for n in range(40)]), np.exp(steps.cumsum(axis=0)))
try:
    while True:
        for frame in series.embed(panel, series.windows(panel.times, "60d", "1d"), start={start!r}):
            pathlib.Path(f"{{comm.rank}}.pid").write_text(f"{{os.getpid()}}\\n")
except tm.WorkerLost as error:
    print("lost", error.rank)
"""


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "tidemill" in name}


def killed_at_random(folder: Path, program: str, count: int, rounds: int) -> None:
    """Kill one of `count` workers, each in turn, and expect the others to hear of it."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    before = shared_memory()
    for victim in range(rounds):
        inside = folder / str(victim)
        inside.mkdir()
        with workers.Job(inside, count, program) as job:
            launched.pids_in(inside, count)
            time.sleep(chance.uniform(0, 0.2))
            job.workers[victim].send_signal(signal.SIGKILL)
            results = job.finish()
        for rank, (code, out, err) in enumerate(results):
            if rank != victim:
                assert (code, out) == (0, f"lost {victim}\n"), f"rank {rank} of seed {seed}: {out}{err}"
    assert shared_memory() <= before


@pytest.mark.parametrize(("matrix", "acceleration"), [(False, 0), (False, 5), (True, 0)])
def test_a_kill_in_the_middle_of_a_fit(matrix: bool, acceleration: int, tmp_path: Path) -> None:
    """An iteration whose gathering missed the news would wait for ever for a worker's rows."""
    program = FIT.replace("{matrix}", str(matrix)).replace("{acceleration}", str(acceleration))
    killed_at_random(tmp_path, program, 3, 2)


@pytest.mark.parametrize(("start", "alone_ids_max"), [("previous", 2000), ("independent", 2000), ("previous", 0)])
def test_a_kill_between_frames(start: str, alone_ids_max: int, tmp_path: Path) -> None:
    """Whoever waits for the frame before, or for a round to end, must hear that its maker is gone."""
    killed_at_random(tmp_path, FRAMES.format(start=start, alone_ids_max=alone_ids_max), 3, 3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_in_the_middle_of_the_command(victim: int, tmp_path: Path) -> None:
    """What lies in the folder then is whole frames, which show; there is no summary, and a new start says what is there."""
    prices, _ = series.write_market(tmp_path / "data", 60, 400)
    before = shared_memory()
    out = tmp_path / "out"
    command = ("series", "-n", "2", "--no-prefix", prices, "--window", "60d", "--shift", "1d", "--out", out)
    running = launched.start(*command)
    index = out / "index.jsonl"
    launched.wait_until(lambda: index.exists() and index.read_text().count('"frame"') >= 20, "20 frames")
    pids = {rank: pid for pid in launched.children(running.pid) if (rank := rank_of(pid)) is not None}
    os.kill(pids[victim], signal.SIGKILL)
    _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode != 0
    assert f"worker {victim} was killed by SIGKILL" in errors.decode()
    for pid in pids.values():
        launched.wait_until(lambda pid=pid: not launched.is_running(pid), "the end of the workers")  # type: ignore[misc]
    assert shared_memory() <= before
    assert not (out / "summary.json").exists()
    reader = FrameReader(out)
    assert 20 <= len(reader) < 341
    for frame in reader:
        assert len(frame.positions) > 50
    again = launched.run(*command)
    assert again.returncode == 1
    assert b"has frames already; --overwrite replaces them" in again.stderr


def rank_of(pid: int) -> int | None:
    """The rank of a process of a job; None of one that is no worker."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ranks = [word.partition(b"=")[2] for word in words if word.startswith(b"TIDEMILL_RANK=")]
    return int(ranks[0]) if ranks else None
