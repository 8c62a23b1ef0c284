"""Commands for one running stream of this machine: selecting it, and requests to its worker 0."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from tidemill._streaming import status as _status
from tidemill.apps._arguments import duration_s

__all__ = ["LOOK_S", "add_options", "asked", "fail", "found"]

#: The interval between checks whether a job has carried out a request.
LOOK_S = 0.1


def add_options(parser: argparse.ArgumentParser, until: str, default: str = "no limit") -> None:
    """Add the options that say which stream is meant, and how long to wait."""
    add = parser.add_argument
    add("name", nargs="?", help="name of the job, as passed to write_stream(name=); optional if only one stream runs")
    add("--pid", type=int, help="process id of its worker 0, if several streams share a name")
    add(
        "--timeout",
        type=duration_s,
        metavar="TIME",
        help=f"how long to wait {until}, such as 60s (default: {default})",
    )


def found(name: str | None, pid: int | None, done: str) -> dict[str, Any] | str:
    """Return the status of the worker 0 of the only stream that `name` and `pid` fit; else why there is none. `done` is what
    happens to streams, such as "stopped".
    """
    told = _status.jobs()
    jobs = [status for status in told if status["worker"] == 0]
    fitting = [job for job in jobs if name in (None, job["job"]) and pid in (None, job["pid"])]
    if len(fitting) > 1:
        return f"several streams run on this machine{_listed(fitting)}"
    if fitting:
        return fitting[0]
    ids = {job["job_id"] for job in jobs}
    elsewhere = {
        (status["job"], status["first_host"])
        for status in told
        if name in (None, status["job"]) and status["job_id"] not in ids
    }
    if elsewhere and pid is None:
        named = ", ".join(f"{job!r} on host {host}" for job, host in sorted(elsewhere))
        return f"streams are {done} on the machine of their worker 0: {named}"
    return f"no such stream runs on this machine{_listed(jobs)}"


def asked(job: dict[str, Any], request: dict[str, Any], timeout_s: float | None) -> dict[str, Any]:
    """Ask a job for a move of its keys, and return its answer, or one with an ``error``."""
    request_id = secrets.token_hex(8)
    asking, answered = _status.moving(job, request_id)
    draft = asking.with_suffix(f".{request_id}.draft")
    begun = time.monotonic()
    is_asked = False
    try:
        draft.write_text(json.dumps({**request, "id": request_id}))
        while True:
            # One request at a time: the job removes a request before it reads the next.
            is_asked = is_asked or _linked(draft, asking)
            gone = not any(one.get("file") == job["file"] for one in _status.jobs())
            if answered.exists():
                answer: dict[str, Any] = json.loads(answered.read_text())
                return answer
            if gone:
                return {"error": f"stream {job['job']!r} has ended; its own output says why"}
            if timeout_s is not None and time.monotonic() - begun > timeout_s:
                later = "it moves its keys at its next checkpoint all the same" if is_asked else "another request waits"
                return {"error": f"stream {job['job']!r} has not answered after {timeout_s:g} s; {later}"}
            time.sleep(LOOK_S)
    except OSError as error:
        return {"error": f"stream {job['job']!r} cannot be asked: {error}"}
    finally:
        draft.unlink(missing_ok=True)
        answered.unlink(missing_ok=True)


def _linked(draft: Path, asking: Path) -> bool:
    """Give a whole request its name, unless there is another one."""
    try:
        os.link(draft, asking)
    except FileExistsError:
        return False
    return True


def _listed(jobs: list[dict[str, Any]]) -> str:
    named = ", ".join(f"{job['job']!r} (--pid {job['pid']})" for job in jobs)
    return f": {named}" if named else ""


def fail(command: str, message: str) -> int:
    """Say why a command has failed; return its exit code."""
    print(f"tidemill {command}: {message}", file=sys.stderr)
    return 1
