"""Moves of a stream's keys and of its sources' splits, and their outcome as text."""

from __future__ import annotations

import sys
from typing import Any

from tidemill.apps import _jobs
from tidemill.apps._plain import plain

__all__ = ["run", "scaled_lines"]


def run(command: str, job: dict[str, Any] | str, request: dict[str, Any], timeout_s: float | None) -> int:
    """Ask a job to move keys and splits and print the outcome; return the exit code."""
    if isinstance(job, str):
        return _jobs.fail(command, job)
    if job["durable"] is None:
        return _jobs.fail(
            command,
            f"stream {job['job']!r} makes no checkpoints, at which keys and splits move; start it with checkpoint=",
        )
    answer = _jobs.asked(job, request, timeout_s)
    if "error" in answer:
        return _jobs.fail(command, plain(answer["error"]))
    free = "stop the stream and start it elsewhere" if job.get("launch") is None else "use --restart"
    for line in _lines(job["job"], answer, free):
        print(plain(line))
    sys.stdout.flush()
    return 0


def _lines(job: str, answer: dict[str, Any], free: str) -> list[str]:
    """Return a job's answer as lines; `free` describes how to free a host completely."""
    head = f"stream {job!r}: "
    if "said" in answer:
        return [head + answer["said"], *_stays(answer, free)]
    moves = _moves(answer)
    if answer["dry_run"]:
        lines = [f"{head}would move {moves}; copies would take no rows for about {_time(answer['waited_s'])}"]
    else:
        lines = [
            f"{head}moved {moves} at checkpoint {answer['epoch']}; copies took no rows for up to "
            f"{_time(answer['waited_s'])}",
        ]
    if (gain := answer.get("gain")) is not None and gain >= 0.01:
        lines.append(f"  expected gain: {100 * gain:.0f}%")
    lines += _details(answer)
    for host in answer["hosts"]:
        drained = "  (drained)" if host["drained"] else ""
        lines.append(f"  host {host['host']}: {host['before']:,} -> {host['after']:,} buckets{drained}")
    return lines + _stays(answer, free)


def scaled_lines(job: str, answer: dict[str, Any]) -> list[str]:
    """Return the answer of a job that was scaled without a stop, or would be, as lines."""
    before, after = answer["scaled"]
    moves = _moves(answer)
    head = f"stream {job!r}: "
    if answer["dry_run"]:
        lines = [f"{head}would be scaled from {before} to {_count(after, 'worker')} without a stop"]
        if moves:
            lines.append(f"  would move {moves}; copies would take no rows for about {_time(answer['waited_s'])}")
    else:
        lines = [f"{head}scaled from {before} to {_count(after, 'worker')} without a stop"]
        if moves:
            lines.append(
                f"  moved {moves} at checkpoint {answer['epoch']}; copies took no rows for up to {_time(answer['waited_s'])}"
            )
    lines += _details(answer)
    for worker in answer["workers"]:
        spare = "  (spare)" if worker["spare"] else ""
        lines.append(f"  worker {worker['worker']}: {worker['before']:,} -> {worker['after']:,} buckets{spare}")
    return lines


def _moves(answer: dict[str, Any]) -> str:
    """Return what moves, or has moved; empty if nothing."""
    state = "" if answer["bytes"] is None else f", with {_size(answer['bytes'])} of state"
    splits = answer.get("moved_splits", sum(len(of["splits"]) for of in answer["splits"]))
    moves = _count(answer["buckets"], "bucket") + state if answer["buckets"] else ""
    if not answer["splits"]:
        return moves
    return f"{moves}, and {_count(splits, 'split')} of sources" if moves else _count(splits, "split")


def _details(answer: dict[str, Any]) -> list[str]:
    """Return the buckets and splits that move, by task."""
    lines = [f"  {task['task']}: {task['moved']:,} of {task['buckets']:,} buckets" for task in answer["tasks"]]
    return lines + [f"  {of['task']}: {_named(of['splits'])} to {of['to']}" for of in answer["splits"]]


def _stays(answer: dict[str, Any], free: str) -> list[str]:
    """Return what remains on a drained host when its keys have moved."""
    if not (stays := answer.get("stays")):
        return []
    tasks = f", with copies of {', '.join(stays['tasks'])}, which do not move" if stays["tasks"] else ""
    named = ", ".join(str(worker) for worker in stays["workers"])
    workers = f"worker{'' if len(stays['workers']) == 1 else 's'} {named}"
    return [f"  stays on host {stays['host']}: {workers}{tasks}; to free the host, {free}"]


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _named(splits: list[str]) -> str:
    """Return the names of splits, the first twenty of many."""
    more = f" and {len(splits) - 20} more" if len(splits) > 20 else ""
    return f"split{'' if len(splits) == 1 else 's'} {', '.join(splits[:20])}{more}"


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
