"""The usual display of ``tidemill top``: edges, steps, sources, workers and checkpoints of a stream."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from tidemill.apps._top_cluster import ClusterError, read_cluster
from tidemill.apps._top_looks import Look, Status, is_quiet, running_s, told_s
from tidemill.apps._top_text import short, size, table

__all__ = ["elsewhere", "heading", "stream_lines"]

_FLOW = ("rows/s", "remote/s", "queued", "blocked")
_EDGES = ("", *_FLOW, "time", "behind", "held back by")
_PARTS = ("", *_FLOW, "spilled")
_STEPS = ("step", "busy", "rows/s", "ms/row")
#: A step whose copies are all busy for less than this share of the time is not shown, unless it is a function of the
#: program.
_BUSY_MIN = 0.01
#: A checkpoint is marked when it is this many times older than its interval; with short intervals, after some seconds.
_OVERDUE_TIMES = 5
_OVERDUE_S = 5.0


@dataclass
class _Flow:
    """Flow over edges: rows and bytes per second to other workers, queued bytes, and the longest wait of any worker's
    senders.
    """

    rows: float = 0.0
    remote: float = 0.0
    queued: int = 0
    blocked: float = 0.0

    def add(self, other: _Flow) -> None:
        self.rows += other.rows
        self.remote += other.remote
        self.queued += other.queued
        self.blocked = max(self.blocked, other.blocked)

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row, below `_FLOW`."""
        return (
            f"{self.rows:,.0f}",
            size(self.remote),
            size(self.queued),
            f"{100 * min(self.blocked, 1):.0f}%",
        )


def stream_lines(looks: list[Look], each_worker: bool) -> list[str]:
    """Return the display of a job."""
    job = [status for _, status in looks]
    steps = _steps(looks)
    lines = [heading(job), *elsewhere(job), *_spare(job), *_quiet(job), *_overdue(job, steps), *_main_cause(job[0])]
    for what, counted in (("came too late", "late"), ("had no time", "untimed"), ("came while it was busy", "skipped")):
        counts: Counter[str] = Counter()
        for step, count in (count for status in job for count in status.get(counted, [])):
            counts[step] += count
        if counts:
            lines.append(f"  {what}: " + ", ".join(f"{count:,} rows for {step}" for step, count in counts.items()))
    flows = [_flows(look) for look in looks]
    lines += table([_EDGES, *_edges(job, flows)], texts=(0, 7))
    shown = [step for step in steps if step.busy >= _BUSY_MIN or step.is_function]
    if shown:
        lines += table([_STEPS, *(step.cells() for step in shown)], texts=(0,))
    lines += _held_back([source for status in job for source in status.get("sources", [])])
    parts: dict[str, list[int]] = {}
    if each_worker:
        spare = {at: ", spare" if status.get("spare") else "" for at, status in enumerate(job)}
        parts = {f"worker {status['worker']} on {status['host']}{spare[at]}": [at] for at, status in enumerate(job)}
    elif len(_hosts(job)) > 1:
        parts = {_named([job[at] for at in ats]): ats for ats in _hosts(job).values()}
    if parts:
        lines += table([_PARTS, *_parts(parts, job, flows)], texts=(0,))
    return [*lines, ""]


def heading(job: list[Status]) -> str:
    """Return the line about a job as a whole."""
    first, hosts = job[0], len(_hosts(job))
    here = f"{len(job)} of {first['workers']} workers" + (f" on {hosts} hosts" if hosts > 1 else "")
    # Each by the clock of its own machine.
    running = short(max(map(running_s, job)))
    spilled = sum(status["spilled_bytes"] for status in job)
    spilled_text = f"  spilled {size(spilled)}" if spilled else ""
    return f"stream {first['job']!r}  {here}  running {running}  {_checkpoint(job)}{spilled_text}"


def elsewhere(job: list[Status]) -> list[str]:
    """Return the machine that shows all workers, if it is not this one."""
    if job[0]["worker"] == 0:
        return []
    return [f"  tidemill top shows all workers on host {job[0]['first_host']}, where worker 0 is"]


def _spare(job: list[Status]) -> list[str]:
    """Return the workers that have no keys and splits, and wait until the job is scaled."""
    named = (
        _named(spares) for ats in _hosts(job).values() if (spares := [job[at] for at in ats if job[at].get("spare")])
    )
    return [f"  spare: {names}" for names in named]


def _quiet(job: list[Status]) -> list[str]:
    """Return the workers that no longer report."""
    lines = []
    for ats in _hosts(job).values():
        of_host = [job[at] for at in ats]
        if over := [status for status in of_host if status["over"]]:
            lines.append(f"  nothing left to do: {_named(over)}")
        if quiet := [status for status in of_host if not status["over"] and is_quiet(status)]:
            silent_s = max(status["silent_s"] for status in quiet)
            lines.append(f"  nothing heard for {short(silent_s)}: {_named(quiet)}")
    return lines


def _main_cause(first: Status) -> list[str]:
    """Return the main cause of slowness that worker 0 reports."""
    try:
        cluster = read_cluster(first.get("cluster"))
    except ClusterError:
        # The other displays show it.
        return []
    if cluster is None or not cluster.causes:
        return []
    # The remedy is at the end of the sentence, which a terminal may cut off.
    return [f"  slow (more: --why): {cluster.causes[0].sentence}"]


def _hosts(job: list[Status]) -> dict[str, list[int]]:
    """Return the members of `job` by host."""
    hosts: dict[str, list[int]] = {}
    for at, status in enumerate(job):
        hosts.setdefault(status["host"], []).append(at)
    return hosts


def _named(workers: list[Status]) -> str:
    """Return the workers of a host, such as ``workers 0-3, 8 on node1``."""
    runs: list[list[int]] = []
    for worker in (status["worker"] for status in workers):
        if runs and runs[-1][-1] == worker - 1:
            runs[-1].append(worker)
        else:
            runs.append([worker])
    numbers = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"worker{'s' if len(workers) > 1 else ''} {numbers} on {workers[0]['host']}"


def _flows(look: Look) -> dict[str, _Flow]:
    """Return the flow over each edge of one worker."""
    before, status = look
    olds = {edge["edge"]: edge for edge in before["edges"]} if before else {}
    # The current activity of silent workers is unknown.
    known = before is not None and not status["over"] and not is_quiet(status)
    seconds = told_s(status) - told_s(before) if before and known else 0.0
    flows: dict[str, _Flow] = {}
    for edge in status["edges"]:
        flow = flows.setdefault(edge["edge"], _Flow(queued=edge["queue_bytes"]))
        if (old := olds.get(edge["edge"])) and seconds > 0:
            flow.rows = (edge["rows_sent"] - old["rows_sent"]) / seconds
            flow.remote = (edge["remote_bytes"] - old["remote_bytes"]) / seconds
            flow.blocked = (edge["blocked_ns"] - old["blocked_ns"]) / 1e9 / seconds
    return flows


@dataclass
class _Step:
    """Load of a step: on the worker where it is busiest, as a fraction of the time of its copies there; and rows of all
    workers.
    """

    name: str
    busy: float = 0.0
    rows: float = 0.0
    busy_s: float = 0.0

    @property
    def is_function(self) -> bool:
        """Return whether it is a user function within a task."""
        return " in " in self.name

    def row_ms(self) -> float | None:
        """Return the time per row."""
        return 1e3 * self.busy_s / self.rows if self.rows > 0 else None

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row, below `_STEPS`."""
        row_ms = self.row_ms()
        taken = "" if row_ms is None else f"{row_ms:.1f}" if row_ms >= 10 else f"{row_ms:.2g}"
        return self.name, f"{100 * min(self.busy, 1):.0f}%", f"{self.rows:,.0f}", taken


def _steps(looks: list[Look]) -> list[_Step]:
    """Return the load of each step, busiest first; none before a second sample."""
    steps: dict[str, _Step] = {}
    for before, status in looks:
        seconds = status["at_s"] - before["at_s"] if before else 0.0
        if before is None or seconds <= 0 or status["over"] or is_quiet(status):
            continue
        olds = {work["step"]: work for work in before.get("steps", [])}
        for work in status.get("steps", []):
            old = olds.get(work["step"], {"busy_ns": 0, "rows": 0})
            step = steps.setdefault(work["step"], _Step(work["step"]))
            busy_s = (work["busy_ns"] - old["busy_ns"]) / 1e9 / seconds
            step.busy = max(step.busy, busy_s / max(work["copies"], 1))
            step.busy_s += busy_s
            step.rows += (work["rows"] - old["rows"]) / seconds
    return sorted(steps.values(), key=lambda step: -step.busy)


def _overdue(job: list[Status], steps: list[_Step]) -> list[str]:
    """Return a warning if the newest checkpoint is long overdue, with the slow step."""
    first = job[0]
    every_s = first.get("every_s")
    if not every_s or first["durable"] is None or first["worker"] != 0:
        return []
    made = first.get("checkpoint")
    age_s = first["at_s"] - max(made["at_s"] if made else 0.0, first["begun_s"])
    if age_s <= max(_OVERDUE_TIMES * every_s, _OVERDUE_S):
        return []
    what = "the newest checkpoint is" if made else "no checkpoint yet, after"
    line = f"  checkpoints are late: {what} {short(age_s)}{' old' if made else ''}, one is due every {short(every_s)}"
    # A task and a function within it are about equally busy; users know the function.
    slow = max(steps, key=lambda step: step.busy * (1.25 if step.is_function else 1), default=None)
    if slow is not None and slow.busy >= 0.5:
        line += f"; slow is {slow.name}, {100 * min(slow.busy, 1):.0f}% busy"
    return [line]


def _edges(job: list[Status], flows: list[dict[str, _Flow]]) -> list[tuple[str, ...]]:
    """Return the rows of the table of edges."""
    of_edges: dict[str, _Flow] = {}
    times: dict[str, tuple[int, int | None]] = {}
    for status, of_worker in zip(job, flows, strict=True):
        for edge in status["edges"]:
            name = edge["edge"]
            of_edges.setdefault(name, _Flow()).add(of_worker[name])
            if edge["time"] is not None and (name not in times or edge["time"] < times[name][0]):
                times[name] = (edge["time"], edge["held_by"])
    splits = {(of["task"], of["copy"]): of["held_by"] for status in job for of in status.get("sources", [])}
    latest = max((at for at, _ in times.values()), default=None)
    rows = []
    for name, flow in of_edges.items():
        at, held_by = times.get(name, (None, None))
        behind = "" if at is None or latest is None else short((latest - at) / 1e6)
        held = "" if held_by is None or latest == at else _held(name, held_by, splits)
        rows.append((name, *flow.cells(), _time(at), behind, held))
    return rows


def _parts(parts: dict[str, list[int]], job: list[Status], flows: list[dict[str, _Flow]]) -> list[tuple[str, ...]]:
    """Return the rows of the table of workers, or hosts, with the flow over all edges there."""
    rows = []
    for name, ats in parts.items():
        total = _Flow()
        for flow in (flow for at in ats for flow in flows[at].values()):
            total.add(flow)
        rows.append((name, *total.cells(), size(sum(job[at]["spilled_bytes"] for at in ats))))
    return rows


def _checkpoint(job: list[Status]) -> str:
    """Return the last checkpoint; worker 0 knows its time and the size of its state."""
    if job[0]["durable"] is None:
        return "no checkpoints"
    durable = max(status["durable"] for status in job)
    words = [f"checkpoint {durable}"] if durable else ["no checkpoint yet"]
    for status in job:
        if (made := status.get("checkpoint")) is not None:
            if not durable:
                words = ["going on from a checkpoint"]
            words += [f"{short(max(status['at_s'] - made['at_s'], 0))} old", size(made["bytes"])]
    return ", ".join(words)


def _held_back(sources: list[dict[str, Any]]) -> list[str]:
    """Return the split of each source that is furthest behind, if others are ahead of it."""
    lines = []
    for task in dict.fromkeys(source["task"] for source in sources):
        if any(source["untimed"] for source in sources if source["task"] == task):
            lines.append(f"  time of {task}: none before it ends, for it has no time=")
            continue
        copies = [source for source in sources if source["task"] == task and source["held_by"] is not None]
        ahead = max((copy["ahead"] for copy in copies if copy["ahead"] is not None), default=None)
        if ahead is None:
            continue
        slowest = min(copies, key=lambda copy: -math.inf if copy["time"] is None else float(copy["time"]))
        behind = None if slowest["time"] is None else ahead - slowest["time"]
        if behind != 0:
            how = "has not told any" if behind is None else f"{short(behind / 1e6)} behind"
            lines.append(f"  time of {task}: held back by {slowest['held_by']} (copy {slowest['copy']}), {how}")
    return lines


def _held(edge: str, copy: int, splits: dict[tuple[str, int], str | None]) -> str:
    """Return the workers that hold back time; for a source of these workers, also the split."""
    split = next((split for (task, of), split in splits.items() if of == copy and edge.startswith(f"{task}.")), None)
    return f"copy {copy}" if split is None else f"copy {copy}: {split}"


def _time(us: int | None) -> str:
    if us is None:
        return "unknown"
    try:
        return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return "the end"
