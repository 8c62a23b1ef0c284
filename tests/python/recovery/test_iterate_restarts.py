"""`tidemill.iterate` with checkpoints in a job whose workers are killed: the launcher starts it again, and it goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill as tm

PROGRAM = """
import os, pathlib, signal, sys
import tidemill as tm

job, folder = tm.init(), pathlib.Path(sys.argv[1])
ring = 40
deaths = len(list(folder.glob("death-*")))


def lmap(town, distance):
    yield town, distance
    yield (town + 1) % ring, distance + 1
    # Both lives that end do so in the middle of a sweep, one worker each.
    if job.rank == deaths and deaths < 2 and len(list(folder.glob("saved/round-*/manifest.json"))) > deaths:
        (folder / f"death-{deaths}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


found = tm.iterate(
    {town: 0 if town == 0 else 1000 for town in range(ring * job.rank // job.size, ring * (job.rank + 1) // job.size)},
    lmap=lmap,
    lreduce=lambda town, distances: min(distances),
    until=lambda before, after: before == after,
    checkpoint=folder / "saved",
    checkpoint_rounds=4,
)
account = found.account
(folder / f"result-{job.rank}").write_text(repr((found.state, account.rounds, account.resumed_round)))
"""


def test_a_killed_job_goes_on(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(PROGRAM)
    done = launched.run("run", "-n", "3", "--restarts", "3", app, tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert len(list(tmp_path.glob("death-*"))) == 2
    results = [eval((tmp_path / f"result-{rank}").read_text()) for rank in range(3)]
    assert {town: far for state, _, _ in results for town, far in state.items()} == {town: town for town in range(40)}
    for _, rounds, resumed_round in results:
        assert rounds == 40 and resumed_round >= 4 and resumed_round % 4 == 0


def killed_apart(folder: str) -> str:
    """On a worker: one dies while nobody waits for it."""
    job = tm.init()

    def local(x: int, ghosts: Any) -> int:
        if job.rank == 1 and x == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return x + 1

    try:
        tm.iterate(0, local=local, boundary=lambda x: dict.fromkeys(range(job.size), x), sync="async", staleness=1)
    except tm.WorkerLost as error:
        Path(folder, f"lost-{job.rank}").write_text(str(error))
        raise
    return "not lost"


def test_apart_a_lost_worker_is_lost_on_all(tmp_path: Path) -> None:
    with pytest.raises(tm.WorkerLost):
        tm.run(killed_apart, str(tmp_path), workers=3)
    assert {path.name for path in tmp_path.iterdir()} == {"lost-0", "lost-2"}
