"""Passes a job's messages to Python's logging, in addition to standard error: to loggers below ``tidemill.stream``.

Decisions of the controller have their facts as attributes of the record, by names that OpenTelemetry's handler exports as they are.
"""

from __future__ import annotations

import json
import logging
from typing import Any

__all__ = ["tell"]

# Without a handler of the program, logging would print what is already on standard error.
logging.getLogger("tidemill").addHandler(logging.NullHandler())

_job = logging.getLogger("tidemill.stream")
_checkpoints = logging.getLogger("tidemill.stream.checkpoints")
_controller = logging.getLogger("tidemill.stream.controller")
_left_out = logging.getLogger("tidemill.stream.left_out")


def tell(said: list[str], made: tuple[int, float, int] | None, decided: list[str]) -> None:
    """Log lines that the job has printed, and the last checkpoint: its number, the seconds it took, and the bytes of
    state. Each line of the controller has a decision, in JSON, in `decided`.
    """
    decisions = map(_attributes, decided)
    for line in said:
        if " resumes from checkpoint " in line:
            _checkpoints.info(line)
        elif line.startswith("the controller "):
            _controller.info(line, extra=next(decisions, None))
        elif "checkpoint" in line:
            _checkpoints.warning(line)
        elif "left out" in line:
            _left_out.warning(line)
        else:
            _job.warning(line)
    if made is not None:
        epoch, seconds, size = made
        _checkpoints.info("checkpoint %d was made in %.3f s, %d bytes of state", epoch, seconds, size)


def _attributes(decision: str) -> dict[str, Any]:
    """Return the attributes of a decision's log record."""
    facts = json.loads(decision)
    outcome = facts["outcome"]
    failure = outcome.get("failed") if isinstance(outcome, dict) else None
    attributes = {
        "event.name": "tidemill.controller.decision",
        "tidemill.controller.outcome": "failed" if failure is not None else outcome,
        "tidemill.controller.failure": failure,
        "tidemill.controller.cause": facts["sentence"],
        "tidemill.controller.buckets": facts["buckets"],
        "tidemill.controller.gain.predicted": facts["predicted"],
        "tidemill.controller.gain.measured": facts["measured"],
    }
    return {name: value for name, value in attributes.items() if value is not None}
