"""Killing workers of a job over streams that has checkpoints and pids in its folder, as `stream_job.py` has."""

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
    """Of workers that have begun; one that begins just now may have written nothing yet."""
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
    """Run a job on two workers to its end, while one of them dies again and again, at most `most` times.

    The first dies as soon as there is a checkpoint, lest the job be over; `pause` gives the seconds until each further one, from the
    dice and the number of kills so far.
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
