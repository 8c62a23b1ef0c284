"""``tidemill stop``: make a stream on this machine take a last checkpoint and end."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from tidemill._streaming import status as _status
from tidemill.apps import _jobs

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when the stream has stopped, 1 otherwise, with a message that says why."""
    parser = argparse.ArgumentParser(
        prog="tidemill stop",
        description="Make a stream take a last checkpoint, commit, and end. Started again, it resumes from that checkpoint. Run this "
        "on the machine of the stream's worker 0.",
    )
    _jobs.add_options(parser, "for it to stop")
    options = parser.parse_args(argv)
    job = _jobs.found(options.name, options.pid, "stopped")
    if isinstance(job, str):
        return _jobs.fail("stop", job)
    if job["durable"] is None:
        return _jobs.fail(
            "stop", f"stream {job['job']!r} makes no checkpoints that it could go on from; end it with Ctrl-C"
        )
    return _stop(job, options.timeout)


def _stop(job: dict[str, Any], timeout_s: float | None) -> int:
    asked, stopped = _status.stopping(job)
    try:
        asked.touch()
    except OSError as error:
        return _jobs.fail("stop", f"stream {job['job']!r} cannot be asked: {error}")
    begun = time.monotonic()
    while not stopped.exists():
        # In this order, since it reports that it has stopped before it disappears.
        gone = not any(one.get("file") == job["file"] for one in _status.jobs())
        if gone and not stopped.exists():
            asked.unlink(missing_ok=True)
            return _jobs.fail(
                "stop", f"stream {job['job']!r} ended before it had made its last checkpoint; its own output says why"
            )
        if timeout_s is not None and time.monotonic() - begun > timeout_s:
            return _jobs.fail("stop", f"stream {job['job']!r} has not stopped after {timeout_s:g} s; it keeps trying")
        time.sleep(_jobs.LOOK_S)
    # The confirmation stays for other requesters. The job may not have seen this request.
    asked.unlink(missing_ok=True)
    print(f"stream {job['job']!r} has stopped; when started again, it resumes from its last checkpoint")
    return 0


if __name__ == "__main__":
    sys.exit(main())
