"""`tidemill series --follow --checkpoint`, whose workers are killed while prices arrive: its frames equal those of an
undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import launched
import numpy as np
import seeds
from tidemill.viz import FrameError, FrameReader

HEAD = "date,ticker,price,volume,split\n"
WINDOWS = ("--window", "20d", "--shift", "2d")
DAYS = 60


def days() -> list[str]:
    """The rows of each day: one series comes late, one disappears, one has gaps, negative prices and two rows for a
    day, and two split.
    """
    rng = np.random.default_rng(3)
    price = 50 * np.exp(np.cumsum(rng.normal(scale=0.02, size=(DAYS, 10)), axis=0))
    price[33:, 2] /= 2
    price[41:, 5] *= 4
    told = {(33, 2): "2", (41, 5): "0.25", (37, 7): "3"}
    made = []
    for day in range(DAYS):
        date = np.busday_offset("2024-01-01", day, roll="forward")
        lines = []
        for one in range(10):
            if (one == 3 and day < 25) or (one == 8 and day > 40) or (one == 4 and day % 21 == 7):
                continue
            sign = "-" if one == 4 and day % 9 == 0 else ""
            lines.append(f"{date},s{one},{sign}{price[day, one]:.4f},{100 + day},{told.get((day, one), '')}\n")
        if day % 10 == 5:
            lines.append(f"{date},s4,1.5,1,\n")
        made.append("".join(lines))
    return made


def start(path: Path, out: Path, *more: str, workers: int = 2) -> subprocess.Popen[bytes]:
    """Without settling, only rows decide what is over."""
    return launched.start(
        "series", "-n", str(workers), "--restarts", "30", path, "--follow", "--settle", "1h", "--out", out,
        "--checkpoint", out / "checkpoints", *WINDOWS, *more,
    )  # fmt: skip


def frames_in(out: Path) -> int:
    try:
        return len(FrameReader(out))
    except FrameError:
        return 0


def end(job: subprocess.Popen[bytes]) -> str:
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    return out.decode()


def same(out: Path, other: Path) -> None:
    """Check that two folders have the same frames, to the bit, and the same report of cleaning."""
    files = sorted(file.name for file in other.glob("frame-*"))
    assert sorted(file.name for file in out.glob("frame-*")) == files
    for name in files:
        assert (out / name).read_bytes() == (other / name).read_bytes(), name
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (out, other))
    assert one["per_frame"] == two["per_frame"]
    assert one["cleaning"] == two["cleaning"]


def test_workers_that_are_killed_while_prices_come_in(tmp_path: Path) -> None:
    path, calm, hit = tmp_path / "prices.csv", tmp_path / "calm", tmp_path / "hit"
    parts, dice, kills = days(), seeds.dice(), 0
    path.write_text(HEAD + "".join(parts[:24]))
    job = start(path, hit)
    try:
        for number in range(24, DAYS, 4):
            # The first checkpoint may not exist yet.
            launched.wait_until(lambda: frames_in(hit) > 0, "a frame")
            with path.open("a") as file:
                file.writelines(parts[number : number + 4])
            time.sleep(dice.uniform(0.0, 0.4))
            # Between two lives there are no workers.
            with contextlib.suppress(OSError):
                if kills < 3 and (victims := launched.children(job.pid)):
                    os.kill(dice.choice(victims), signal.SIGKILL)
                    kills += 1
        launched.wait_until(lambda: frames_in(hit) == 20 or job.poll() is not None, "the last frame")
    finally:
        end(job)
    assert kills > 0
    job = start(path, calm)
    launched.wait_until(lambda: frames_in(calm) == 20 or job.poll() is not None, "the last frame")
    end(job)
    same(hit, calm)


def test_a_job_that_is_started_again_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    path, out, calm = tmp_path / "prices.csv", tmp_path / "out", tmp_path / "calm"
    parts = days()
    path.write_text(HEAD + "".join(parts[:41]))
    job = start(path, out)
    launched.wait_until(lambda: frames_in(out) == 11 or job.poll() is not None, "the frames of the first rows")
    launched.wait_until(lambda: bool(launched.epochs(out / "checkpoints")), "a checkpoint")
    end(job)
    before = {file: file.stat().st_mtime_ns for file in out.glob("frame-*")}
    with path.open("a") as file:
        file.writelines(parts[41:])
    job = start(path, out, workers=3)
    launched.wait_until(lambda: frames_in(out) == 20 or job.poll() is not None, "the last frame")
    end(job)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    job = start(path, calm, workers=1)
    launched.wait_until(lambda: frames_in(calm) == 20 or job.poll() is not None, "the last frame")
    end(job)
    same(out, calm)
    # Other options are refused, before anything is read.
    done = launched.run(
        "series",
        path,
        "--follow",
        "--window",
        "10d",
        "--shift",
        "2d",
        "--out",
        out,
        "--checkpoint",
        out / "checkpoints",
    )
    assert done.returncode == 1
    assert b"has frames made with window='20d', not '10d'" in done.stderr
