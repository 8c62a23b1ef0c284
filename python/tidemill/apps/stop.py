"""``tidemill stop``: make a stream on this machine take a last checkpoint and end."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from tidemill._streaming import status as _status
from tidemill.apps._arguments import duration_s

__all__ = ["main"]

#: Between two looks whether it has.
_LOOK_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when the stream has stopped, 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill stop",
        description="Make a stream take a last checkpoint, commit, and end. Started again, it resumes from that checkpoint. Run this "
        "on the machine of the stream's worker 0.",
    )
    add = parser.add_argument
    add("name", nargs="?", help="name of the job, as passed to write_stream(name=); optional if only one stream runs")
    add("--pid", type=int, help="process id of its worker 0, if several streams share a name")
    add(
        "--timeout",
        type=duration_s,
        metavar="TIME",
        help="how long to wait for it to stop, such as 60s (default: no limit)",
    )
    options = parser.parse_args(argv)
    told = _status.jobs()
    jobs = [status for status in told if status["worker"] == 0]
    found = [job for job in jobs if options.name in (None, job["job"]) and options.pid in (None, job["pid"])]
    if len(found) > 1:
        return _fail(f"several streams run on this machine{_listed(found)}")
    if not found:
        ids = {job["job_id"] for job in jobs}
        elsewhere = {
            (status["job"], status["first_host"])
            for status in told
            if options.name in (None, status["job"]) and status["job_id"] not in ids
        }
        if elsewhere and options.pid is None:
            named = ", ".join(f"{job!r} on host {host}" for job, host in sorted(elsewhere))
            return _fail(f"streams are stopped on the machine of their worker 0: {named}")
        return _fail(f"no such stream runs on this machine{_listed(jobs)}")
    job = found[0]
    if job["durable"] is None:
        return _fail(f"stream {job['job']!r} makes no checkpoints that it could go on from; end it with Ctrl-C")
    return _stop(job, options.timeout)


def _stop(job: dict[str, Any], timeout_s: float | None) -> int:
    asked, stopped = _status.stopping(job)
    try:
        asked.touch()
    except OSError as error:
        return _fail(f"stream {job['job']!r} cannot be asked: {error}")
    begun = time.monotonic()
    while not stopped.exists():
        # In this order: it says that it has stopped, and only then goes.
        gone = not any(one.get("file") == job["file"] for one in _status.jobs())
        if gone and not stopped.exists():
            asked.unlink(missing_ok=True)
            return _fail(f"stream {job['job']!r} ended before it had made its last checkpoint; its own output says why")
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            return _fail(f"stream {job['job']!r} has not stopped after {timeout_s:g} s; it keeps trying")
        time.sleep(_LOOK_S)
    # That it has stopped stays there for whoever has asked, too. It may not have seen this one's question.
    asked.unlink(missing_ok=True)
    print(f"stream {job['job']!r} has stopped; when started again, it resumes from its last checkpoint")
    return 0


def _listed(jobs: list[dict[str, Any]]) -> str:
    named = ", ".join(f"{job['job']!r} (--pid {job['pid']})" for job in jobs)
    return f": {named}" if named else ""


def _fail(message: str) -> int:
    print(f"tidemill stop: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
