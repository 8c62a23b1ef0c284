"""Kills workers of a job over streams with checkpoints and pids in its folder, such as `stream_job.py`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import launched
import seeds


def pids(folder: Path) -> list[int]:
    """Return the pids of workers that have started; a worker that is just starting may not have written its pid."""
    return [int(text) for file in (folder / "pids").glob("*.pid") if (text := file.read_text())]


def has_checkpoint(folder: Path) -> bool:
    return bool(launched.epochs(folder / "checkpoints"))


def kill_one(folder: Path, dice: random.Random) -> bool:
    """Kill a worker; returns whether there was one."""
    victims = [pid for pid in pids(folder) if launched.is_running(pid)]
    if victims:
        os.kill(dice.choice(victims), signal.SIGKILL)
    return bool(victims)


def run_and_kill(folder: Path, most: int, pause: Callable[[random.Random, int], float], *job: str | Path) -> None:
    """Run a job on two workers to its end, while one of them is killed repeatedly, at most `most` times.

    The first kill comes as soon as there is a checkpoint, so that the job does not end before; `pause` returns the
    seconds until each further one, given the generator and the number of kills so far.
    """
    dice = seeds.dice()
    running = launched.start("run", "-n", "2", "--restarts", "30", *job)
    kills = 0
    while running.poll() is None and kills < most:
        launched.wait_until(lambda: running.poll() is not None or has_checkpoint(folder), "the first checkpoint")
        if kills:
            time.sleep(pause(dice, kills))
        kills += running.poll() is None and kill_one(folder, dice)
    _, err = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode == 0, err.decode()
    assert kills > 0
