"""``tidemill top``: the streams that run on this machine, as they are now."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from tidemill.apps._arguments import Parser
from tidemill.stream import _status

__all__ = ["main"]

Status = dict[str, Any]
_HEADING = ("", "rows/s", "remote/s", "queued", "blocked", "time", "behind", "held back by")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 with ``--once`` or ``--json`` where no stream runs."""
    parser = Parser(
        prog="tidemill top",
        description="Show the streams that run on this machine: rates, queues, back-pressure, event time, checkpoints.",
    )
    parser.add_argument("--every", type=float, metavar="S", help="seconds between two looks (default 1)")
    parser.add_argument("--once", action="store_true", help="look twice, print what there is between, and end")
    parser.add_argument("--json", action="store_true", help="look once, print what the workers tell, as JSON, and end")
    options = parser.parse_args(argv)
    if options.json and options.every is not None:
        parser.error("--json looks once, so there is no --every")
    every = 1.0 if options.every is None else options.every
    if not 0.1 <= every <= 3600:
        parser.error("--every is from 0.1 to 3600 seconds")
    before = _status.jobs()
    if options.json:
        print(json.dumps(before))
        return 0 if before else 1
    try:
        while True:
            time.sleep(every)
            now = _status.jobs()
            lines = [line for job in _grouped(now) for line in _lines(job, before)]
            if options.once:
                print("\n".join(lines) if lines else "no stream runs on this machine")
                return 0 if lines else 1
            width, height = shutil.get_terminal_size()
            shown = (lines or ["no stream runs on this machine; Ctrl-C ends this"])[: height - 1]
            # From the top left corner, each line to its end, and what is below.
            sys.stdout.write("\x1b[H" + "".join(f"{line[:width]}\x1b[K\n" for line in shown) + "\x1b[J")
            sys.stdout.flush()
            before = now
    except KeyboardInterrupt:
        return 0


def _grouped(workers: list[Status]) -> list[list[Status]]:
    """Workers of the same job together: others may have its name."""
    groups: dict[str, list[Status]] = {}
    for status in workers:
        groups.setdefault(status["job_id"], []).append(status)
    return list(groups.values())


def _lines(job: list[Status], before: list[Status]) -> list[str]:
    """What is shown of a job."""
    earlier = {(status["pid"], status["begun_s"]): status for status in before}
    first = job[0]
    running = _short(max(status["at_s"] for status in job) - min(status["begun_s"] for status in job))
    epochs = _checkpoint(job)
    here = f"{len(job)} of {first['workers']} workers here"
    spilled = sum(status["spilled_bytes"] for status in job)
    lines = [
        f"stream {first['job']!r}  {here}  running {running}  {epochs}"
        + (f"  spilled {_bytes(spilled)}" if spilled else "")
    ]
    for what, counted in (("came too late", "late"), ("had no time", "untimed")):
        counts: Counter[str] = Counter()
        for step, count in (count for status in job for count in status.get(counted, [])):
            counts[step] += count
        if counts:
            lines.append(f"  {what}: " + ", ".join(f"{count:,} rows for {step}" for step, count in counts.items()))
    rows: dict[str, list[Any]] = {}
    for status in job:
        old = earlier.get((status["pid"], status["begun_s"]))
        seconds = status["at_s"] - old["at_s"] if old else 0.0
        olds = {edge["edge"]: edge for edge in old["edges"]} if old else {}
        for edge in status["edges"]:
            last = olds.get(edge["edge"])
            row = rows.setdefault(edge["edge"], [0.0, 0.0, 0, 0.0, None, None])
            if last and seconds > 0:
                row[0] += (edge["rows_sent"] - last["rows_sent"]) / seconds
                row[1] += (edge["remote_bytes"] - last["remote_bytes"]) / seconds
                row[3] = max(row[3], (edge["blocked_ns"] - last["blocked_ns"]) / 1e9 / seconds)
            row[2] += edge["queue_bytes"]
            if edge["time"] is not None and (row[4] is None or edge["time"] < row[4]):
                row[4], row[5] = edge["time"], edge["held_by"]
    splits = {(of["task"], of["copy"]): of["held_by"] for status in job for of in status.get("sources", [])}
    latest = max((row[4] for row in rows.values() if row[4] is not None), default=None)
    table = [_HEADING]
    for edge, (rate, remote, queued, blocked, at, held_by) in rows.items():
        behind = "" if at is None or latest is None else _short((latest - at) / 1e6)
        held = "" if held_by is None or latest == at else _held(edge, held_by, splits)
        cells = (
            f"{rate:,.0f}",
            _bytes(remote),
            _bytes(queued),
            f"{100 * min(blocked, 1):.0f}%",
            _time(at),
            behind,
            held,
        )
        table.append((edge, *cells))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row_cells in table:
        cells_ = [
            cell.ljust(width) if at in (0, 7) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row_cells, widths, strict=True))
        ]
        lines.append("  ".join(["", *cells_]).rstrip())
    lines += _held_back([source for status in job for source in status.get("sources", [])])
    return [*lines, ""]


def _checkpoint(job: list[Status]) -> str:
    """The last checkpoint; worker 0 knows when it was made, and how much state it refers to."""
    if job[0]["durable"] is None:
        return "no checkpoints"
    durable = max(status["durable"] for status in job)
    words = [f"checkpoint {durable}"] if durable else ["no checkpoint yet"]
    for status in job:
        if (made := status.get("checkpoint")) is not None:
            if not durable:
                words = ["going on from a checkpoint"]
            words += [f"{_short(max(status['at_s'] - made['at_s'], 0))} old", _bytes(made["bytes"])]
    return ", ".join(words)


def _held_back(sources: list[dict[str, Any]]) -> list[str]:
    """Of each source the split that is furthest behind, if others are ahead of it."""
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
            how = "has not told any" if behind is None else f"{_short(behind / 1e6)} behind"
            lines.append(f"  time of {task}: held back by {slowest['held_by']} (copy {slowest['copy']}), {how}")
    return lines


def _held(edge: str, copy: int, splits: dict[tuple[str, int], str | None]) -> str:
    """Who holds time back: of a source on this machine also which split."""
    split = next((split for (task, of), split in splits.items() if of == copy and edge.startswith(f"{task}.")), None)
    return f"copy {copy}" if split is None else f"copy {copy}: {split}"


def _time(us: int | None) -> str:
    if us is None:
        return "unknown"
    try:
        return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return "the end"


def _short(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


if __name__ == "__main__":
    sys.exit(main())
