"""What workers of streams have reported to ``tidemill top``: each one's newest status and the one before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["QUIET_S", "Look", "Looks", "Status", "grouped", "is_quiet", "lacks_rates", "looked", "running_s", "told_s"]

Status = dict[str, Any]
#: A worker's previous status, if known, and its current one: rates are computed from their difference.
Look = tuple[Status | None, Status]
#: Samples by job and worker.
Looks = dict[tuple[str, int], Look]

#: Workers that have been silent for this long are marked, and later in large jobs, whose workers report less often.
QUIET_S = 5.0
_QUIET_S_PER_WORKER = 0.01


def told_s(status: Status) -> float:
    """Return when a worker last reported, on a monotonic clock: its machine's clock may be changed meanwhile."""
    return float(status.get("up_s") or status["at_s"])


def running_s(status: Status) -> float:
    """Return how long a stream has run on a worker, in seconds."""
    if status.get("up_s") and status.get("begun_up_s"):
        return float(status["up_s"] - status["begun_up_s"])
    return float(status["at_s"] - status["begun_s"])


def looked(looks: Looks, told: Iterable[Status]) -> Looks:
    """Return the state after another sample; workers that have reported nothing new keep their rates."""
    known: Looks = {}
    for status in told:
        worker = (status["job_id"], status["worker"])
        before, last = looks.get(worker, (None, None))
        if last is None or told_s(last) != told_s(status):
            # The status from before the stream runs has no edges yet, and so no rates.
            before = last if last is not None and (last.get("edges") or not status.get("edges")) else None
        known[worker] = (before, status)
    return known


def lacks_rates(looks: Looks) -> bool:
    """Return whether a worker has reported only once, so that more is about to come."""
    return any(before is None and not status["over"] and not is_quiet(status) for before, status in looks.values())


def grouped(looks: Looks) -> list[list[Look]]:
    """Group workers of the same job, in order: other jobs may have its name."""
    groups: dict[str, list[Look]] = {}
    for (job_id, _), look in looks.items():
        groups.setdefault(job_id, []).append(look)
    return [sorted(group, key=lambda look: int(look[1]["worker"])) for group in groups.values()]


def is_quiet(status: Status) -> bool:
    """Return whether a worker has been silent for long."""
    return bool(status["silent_s"] > QUIET_S + _QUIET_S_PER_WORKER * status["workers"])
