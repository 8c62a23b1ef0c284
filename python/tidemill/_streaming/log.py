"""Passes a job's messages to Python's logging, in addition to standard error: to loggers below ``tidemill.stream``."""

from __future__ import annotations

import logging

__all__ = ["tell"]

# Without a handler of the program's, logging would print what is on standard error already.
logging.getLogger("tidemill").addHandler(logging.NullHandler())

_job = logging.getLogger("tidemill.stream")
_checkpoints = logging.getLogger("tidemill.stream.checkpoints")
_controller = logging.getLogger("tidemill.stream.controller")
_left_out = logging.getLogger("tidemill.stream.left_out")


def tell(said: list[str], made: tuple[int, float, int] | None) -> None:
    """Log lines that the job has printed, and the last checkpoint: its number, the seconds it took, and the bytes of
    state.
    """
    for line in said:
        if " resumes from checkpoint " in line:
            _checkpoints.info(line)
        elif line.startswith("the controller "):
            _controller.info(line)
        elif "checkpoint" in line:
            _checkpoints.warning(line)
        elif "left out" in line:
            _left_out.warning(line)
        else:
            _job.warning(line)
    if made is not None:
        epoch, seconds, size = made
        _checkpoints.info("checkpoint %d was made in %.3f s, %d bytes of state", epoch, seconds, size)
