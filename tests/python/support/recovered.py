"""Jobs of `stream_job.py` in a folder of a test: several runs of a job, and the expected result of all of them
together.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launched
import pytest
import stream_job
from stream_kills import pids

JOB = Path(stream_job.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("results", "late", "pids"):
        (tmp_path / name).mkdir()
    return tmp_path


def check(folder: Path, query: str = "windows") -> None:
    """Compare the output with the result of the query over a table."""
    seen = Counter(line for file in (folder / "results").glob("[!.]*") for line in file.read_text().splitlines())
    expected = stream_job.expected(query)
    assert len(expected) > 50
    more, less = seen - expected, expected - seen
    assert not more and not less, (
        f"{more.total()} rows too many ({list(more)[:5]}), {less.total()} too few ({list(less)[:5]})"
    )


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("[!.]*") for line in file.read_text().splitlines()]


def live_and_die(folder: Path, workers: int, *words: str, until: Callable[[Path], bool] = lambda epoch: True) -> None:
    """Start the job; kill all of it, including the launcher, once it has made a checkpoint that satisfies `until`."""
    before = launched.epochs(folder / "checkpoints")
    job = launched.start("run", "-n", str(workers), JOB, folder, *words)

    def made() -> bool:
        return any(map(until, launched.epochs(folder / "checkpoints") - before))

    launched.wait_until(lambda: made() or job.poll() is not None, "a new checkpoint")
    assert made(), "the job ended before it made such a checkpoint"
    workers_pids = pids(folder)
    for pid in [*workers_pids, job.pid]:
        if launched.is_running(pid):
            os.kill(pid, signal.SIGKILL)
    job.communicate(timeout=launched.PATIENCE_S)
    launched.wait_until(lambda: not any(map(launched.is_running, workers_pids)), "the workers' end")
