"""Workers that stay from test to test: most of a test that computes something small would be the start of its job.

What kills workers, changes their settings, or looks at how they start and end, is for new ones: `tidemill.run`, `workers.Job`.
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

#: How many jobs to keep: each process of pytest-xdist has its own, and workers take memory.
JOBS_MAX = 4

# Workers get these functions by value, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: By size, the one that was used last behind.
_standing: dict[int, tidemill.Workers] = {}


def run(fn: Callable[..., R], *args: Any, workers: int) -> list[R]:
    """Run a function on all of `workers` workers that stay; return what each returned, by rank."""
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
    """Run a script on workers that stay, as if each had been started with it; return what each printed to standard output."""
    with TemporaryDirectory(prefix="tidemill-tests-") as folder:
        # In a folder of its own: programs put files beside them, and tracebacks show their lines.
        script = Path(folder, "app.py")
        script.write_text(source)
        return run(_run_script, str(script), *map(str, args), workers=workers)


def close() -> None:
    """End all workers."""
    while _standing:
        _end(_standing.popitem()[1])


def _end(job: tidemill.Workers) -> None:
    """End workers, which must end well: what a test has left may crash the interpreter at its end."""
    processes = [] if job._processes is None else [worker.process for worker in job._processes.all]
    job.close()
    # One that takes longer than `close` waits is killed, on a busy machine also for no fault.
    codes = [process.returncode for process in processes]
    assert all(code in (0, -signal.SIGKILL) for code in codes), f"workers of tests ended with {codes}"


def _apart(fn: Callable[..., R], args: tuple[Any, ...]) -> R:
    """On a worker: leave the environment and the folder as they were."""
    environment, folder = dict(os.environ), Path.cwd()
    try:
        return fn(*args)
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)


def _run_script(*words: str) -> str:
    """On a worker."""
    before = sys.argv
    sys.argv = list(words)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()
