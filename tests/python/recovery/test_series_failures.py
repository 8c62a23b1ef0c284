"""A worker is killed in the middle of a fit, of frames, and of ``tidemill series``: the others say so, and everything
written is whole. A program fails, or does not take all frames: nobody waits forever, and nothing is left.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path

import launched
import numpy as np
import pytest
import seeds
import workers
from tidemill import series
from tidemill.series._relay import Making, Past, Relay, owner
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
    # This never converges: without a tolerance, it goes on until rounding stops it.
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


#: The beginning of the programs below: windows of a panel, on all workers.
MARKET = """
import os, time
import numpy as np
import tidemill as tm
from tidemill import series

comm = tm.init().comm
steps = np.random.default_rng(0).normal(scale=0.01, size=(120, 20))
days = np.arange("2024-01-01", "2024-04-30", dtype="datetime64[D]").astype("datetime64[us]")
panel = series.Panel(days, np.array([f"s{n:02}" for n in range(20)]), np.exp(steps.cumsum(axis=0)))
windows = series.windows(panel.times, "30d", "1d")
"""

RAISING = """
calls = 0

def apart(values, rows):
    global calls
    calls += 1
    if comm.rank == {rank} and calls == 5:
        raise RuntimeError("my own")
    return series.distances(values, rows=rows)

try:
    print(len(list(series.embed(panel, windows, kind=apart, start={start!r}))))
except tm.PeerFailed as error:
    print(error.rank, "my own" in error.traceback)
"""

STOPPING = """
def descriptors():
    return len(os.listdir("/proc/self/fd"))

whole = [frame.positions for frame in series.embed(panel, windows)]
before = descriptors()
for turn in range(60):
    for number, frame in enumerate(series.embed(panel, windows)):
        assert (frame.positions == whole[number]).all()
        if number == turn % 4:
            break
    # A generator that still exists has not finished.
    del frame
again = [frame.positions for frame in series.embed(panel, windows)]
assert all((one == other).all() for one, other in zip(again, whole, strict=True))
assert len(again) == len(windows)
comm.Barrier()
assert descriptors() <= before, (descriptors(), before)
"""

SLOW = """
from tidemill.series import _relay

most = 0

class Watched(_relay.Relay):
    def _note(self, kind, number, made):
        global most
        super()._note(kind, number, made)
        most = max(most, len(self._made))

series._embed.Relay = Watched
for frame in series.embed(panel, windows):
    if comm.rank == {slow}:
        time.sleep(0.01)
# One chain is on its way from each other worker, and this one's own.
assert most <= _relay._MADE_MAX + series._embed.KEY_EVERY * (comm.size + 1), most
"""


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "tidemill" in name}


def killed_at_random(folder: Path, program: str, count: int, rounds: int) -> None:
    """Kill one of `count` workers, each in turn, and expect the others to notice."""
    chance = seeds.dice(program)
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
                assert (code, out) == (0, f"lost {victim}\n"), f"rank {rank} of seed {seeds.SEED}: {out}{err}"
    assert shared_memory() <= before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("matrix", "acceleration"), [(False, 0), (False, 5), (True, 0)])
def test_a_kill_in_the_middle_of_a_fit(matrix: bool, acceleration: int, tmp_path: Path) -> None:
    """An iteration whose gather missed the news would wait forever for a worker's rows."""
    program = FIT.replace("{matrix}", str(matrix)).replace("{acceleration}", str(acceleration))
    killed_at_random(tmp_path, program, 3, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("start", "alone_ids_max"), [("previous", 2000), ("independent", 2000), ("previous", 0)])
def test_a_kill_between_frames(start: str, alone_ids_max: int, tmp_path: Path) -> None:
    """Workers that wait for the frame before, or for a round to end, must learn that its maker is gone."""
    killed_at_random(tmp_path, FRAMES.format(start=start, alone_ids_max=alone_ids_max), 3, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", ["previous", "independent"])
@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_of_the_program_in_a_window(rank: int, start: str, tmp_path: Path) -> None:
    """Without news, for example that a value cannot be measured, the others would wait for a frame."""
    program = MARKET + RAISING.replace("{rank}", str(rank)).replace("{start!r}", repr(start))
    with workers.Job(tmp_path, 3, program) as job:
        results = job.finish()
    for other, (code, out, err) in enumerate(results):
        if other == rank:
            assert code == 1 and "RuntimeError: my own" in err, f"{out}{err}"
        else:
            assert (code, out) == (0, f"{rank} True\n"), f"rank {other}: {out}{err}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [2, 3])
def test_frames_that_are_not_taken(count: int, tmp_path: Path) -> None:
    """What had been sent by then would be taken for frames of the next time, or each time would leave a communicator
    open.
    """
    with workers.Job(tmp_path, count, MARKET + STOPPING) as job:
        job.succeed()


@pytest.mark.parametrize("slow", [0, 1])
def test_frames_do_not_pile_up_before_who_takes_them_slowly(slow: int, tmp_path: Path) -> None:
    """A fast worker would make all frames, which a slow consumer would have to keep."""
    with workers.Job(tmp_path, 2, MARKET + SLOW.replace("{slow}", str(slow))) as job:
        job.succeed()


class Scripted:
    """A communicator of two whose only message arrives at the `look`-th poll, or at an earlier wait."""

    size, rank = 2, 0

    def __init__(self, look: int) -> None:
        self.look, self.looks, self.taken = look, 0, False

    def Dup(self) -> Scripted:
        return self

    def iprobe(self) -> bool:
        self.looks += 1
        return self.looks >= self.look and not self.taken

    def recv(self) -> bytes:
        assert not self.taken, "waits for what has come already"
        self.taken = True
        return pickle.dumps(("frame", 0, "frame"))

    def allgather(self, value: object) -> list[object]:
        return [value, None]

    def Free(self) -> None:
        pass


@pytest.mark.parametrize("look", range(1, 8))
def test_a_frame_that_comes_between_two_looks(look: int) -> None:
    """A worker that had just received the last frame believed that it had nothing to do, and waited forever for one
    more message.
    """

    def begin(number: int) -> Making[str]:
        raise AssertionError("the only window is the other worker's")

    relay: Relay[str, str, str] = Relay(
        Scripted(look),
        1,
        Past(),
        key_every=8,
        chained=True,
        begin=begin,
        settle=lambda past, made: (past, made),
        finish=lambda _, frame: frame,
        everywhere=True,
    )
    # How the relay knows that it was the last one is not tested here.
    relay.past = Past()
    assert list(relay.run()) == ["frame"]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 40])
def test_every_worker_has_windows_and_worker_0_the_fewest(size: int) -> None:
    """Without a turn of its own, a worker would let the others get arbitrarily far ahead."""
    counts = np.bincount([owner(number, size) for number in range(100 * size)], minlength=size)
    assert counts.min() == counts[0] > 0
    assert counts[1:].max() - counts[1:].min() <= 2
    gaps = np.diff([number for number in range(100 * size) if owner(number, size) == 0])
    assert gaps.max() < 2 * size
    assert owner(0, size) == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_in_the_middle_of_the_command(victim: int, tmp_path: Path) -> None:
    """The folder then has whole frames, which can be viewed; there is no summary, and a new start says what is there."""
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
    """The rank of a process of a job; None for a process that is not a worker."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ranks = [word.partition(b"=")[2] for word in words if word.startswith(b"TIDEMILL_RANK=")]
    return int(ranks[0]) if ranks else None
