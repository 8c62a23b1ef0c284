"""Workers that stay from test to test, since starting a job takes most of the time of a small test.

Tests that kill workers, change their settings, or check how they start and end need new ones: `tidemill.run`,
`workers.Job`.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import cloudpickle
import launched
import tidemill

R = TypeVar("R")

#: Maximum number of jobs to keep: each process of pytest-xdist has its own, and workers take memory.
JOBS_MAX = 4

# Workers get these functions by value, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: By size; the most recently used one is last.
_standing: dict[int, tidemill.Workers] = {}


def run(fn: Callable[..., R], *args: Any, workers: int) -> list[R]:
    """Run a function on all of `workers` standing workers; return the results by rank."""
    job = _standing.pop(workers, None) or tidemill.Workers(workers)
    _standing[workers] = job
    while len(_standing) > JOBS_MAX:
        _end(_standing.pop(next(iter(_standing))))
    try:
        return job.run(_apart, fn, args, timeout=launched.PATIENCE_S)
    except tidemill.WorkerLost:
        _standing.pop(workers).close()
        raise


def run_program(source: str, *args: str | Path, workers: int) -> list[str]:
    """Run a script on standing workers, as if each had been started with it; return what each printed to standard
    output.
    """
    with TemporaryDirectory(prefix="tidemill-tests-") as folder:
        # In a separate folder, since programs create files next to themselves, and tracebacks show their lines.
        script = Path(folder, "app.py")
        script.write_text(source)
        return run(_run_script, str(script), *map(str, args), workers=workers)


def close() -> None:
    """End all workers."""
    while _standing:
        _end(_standing.popitem()[1])


def _end(job: tidemill.Workers) -> None:
    """End workers, which must end successfully: leftovers of a test may crash the interpreter at its end."""
    processes = [] if job._processes is None else [worker.process for worker in job._processes.all]
    job.close()
    # A worker that takes longer than `close` waits is killed, which may happen on a busy machine without any error.
    codes = [process.returncode for process in processes]
    assert all(code in (0, -signal.SIGKILL) for code in codes), f"workers of tests ended with {codes}"


def _apart(fn: Callable[..., R], args: tuple[Any, ...]) -> R:
    """On a worker: call a function, and restore the environment and the current folder."""
    environment, folder = dict(os.environ), Path.cwd()
    try:
        return fn(*args)
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)


def _run_script(*words: str) -> str:
    """On a worker: run a script."""
    before = sys.argv
    sys.argv = list(words)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()
