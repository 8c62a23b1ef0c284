"""Restarts of a running stream's job with other workers by its launcher: the request, and its outcome."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tidemill._streaming import scale as _scale
from tidemill._streaming import status as _status
from tidemill.apps import _jobs
from tidemill.apps._plain import plain
from tidemill.hosts._commands import start_time

__all__ = ["run"]

#: The default maximum wait: a program may have much to do before its stream, but its launcher may also have died.
_PATIENCE_S = 600.0


def run(command: str, job: dict[str, Any], request: dict[str, Any], *, dry_run: bool, timeout_s: float | None) -> int:
    """Have a job started again with ``workers``, and without the host ``leave`` or with ``all_hosts``, as `request` says; return the
    exit code.
    """
    patience_s = _PATIENCE_S if timeout_s is None else timeout_s
    stream = f"stream {job['job']!r}"
    if job["durable"] is None:
        return _jobs.fail(command, f"{stream} makes no checkpoints to resume from; start it with checkpoint=")
    if job.get("launch") is None:
        return _jobs.fail(
            command,
            f"{stream} was not started by `tidemill run`, so no launcher can start workers (or its write_stream is not in the main thread); "
            "use `tidemill stop`, and start it with other workers: it resumes from its last checkpoint",
        )
    if dry_run:
        print(plain(f"{stream}: {_predicted(job, request)}"))
        return 0
    folder = Path(job["launch"])
    try:
        # Next to the job's folder, which is deleted with the job; the launcher does not run on an emulated host, but
        # sees its files.
        with tempfile.TemporaryDirectory(prefix="tidemill-scale-", dir=folder.parent) as private:
            answered = Path(private) / "answer.json"
            answer = _answer(job, folder, {**request, "answer": str(answered), "asked_s": time.time()}, patience_s)
    except FileExistsError:
        return _jobs.fail(command, f"{stream} is being scaled already")
    except OSError as error:
        return _jobs.fail(command, f"{stream} cannot be asked: {error}")
    if "error" in answer:
        return _jobs.fail(command, plain(f"{stream}: {answer['error']}"))
    print(plain(f"{stream}: {_scale.described(answer)}"), flush=True)
    return 0


def _answer(job: dict[str, Any], folder: Path, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Ask, and wait for the answer of the stream's next worker 0 or of the launcher."""
    answered = Path(request["answer"])
    begun = time.monotonic()
    _scale.ask(folder, request)
    asked, _ = _status.stopping(job)
    try:
        asked.touch()
    except OSError:
        _scale.withdraw(folder)
        raise
    while not answered.exists():
        # The folder is deleted when the launch ends: either the stream stopped for this request, or the launcher
        # answers.
        is_here = any(one.get("file") == job["file"] for one in _status.jobs())
        if not is_here:
            asked.unlink(missing_ok=True)
        if time.monotonic() - begun > timeout_s:
            return {"error": f"it does not run again yet after {timeout_s:g} s; the job's own output says why"}
        time.sleep(_jobs.LOOK_S)
    told: dict[str, Any] = json.loads(answered.read_text())
    return told


def _predicted(job: dict[str, Any], request: dict[str, Any]) -> str:
    """Return what would be done, and how long the stream would pause, estimated from its start and last checkpoint."""
    workers, now = request["workers"], job.get("active") or job["workers"]
    hosts = f", none of them on host {request['leave']}" if request.get("leave") else ""
    what = f"would be started again with {workers} worker{'' if workers == 1 else 's'} instead of {now}{hosts}"
    made = job.get("checkpoint")
    start_s = _start_s(job)
    if start_s is None:
        return what
    saved_s = made["took_s"] if made else 0.0
    state = f"; {made['bytes'] / 1e6:,.1f} MB of state would be read" if made else ""
    return (
        f"{what}; it would stand for about {start_s + saved_s:.1f} s: its program took {start_s:.1f} s to come to the stream, "
        f"the newest checkpoint {saved_s:.1f} s{state}"
    )


def _start_s(job: dict[str, Any]) -> float | None:
    """Return how long worker 0 ran before it started the stream."""
    ticks = start_time(job["pid"])
    return None if ticks is None else max(0.0, float(job["begun_up_s"]) - ticks / os.sysconf("SC_CLK_TCK"))
