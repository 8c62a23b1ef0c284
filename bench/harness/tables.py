"""What all reports are made of: numbers of several rounds, as people read them, in tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

OURS = "tidemill"


# --- numbers ---------------------------------------------------------------------------------------------------------
def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers; NaN of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def spread(samples: Sequence[float]) -> float:
    """Half the distance from the least to the greatest sample, over the median."""
    return (max(samples) - min(samples)) / 2 / statistics.median(samples)


def percentile(samples: Sequence[float], part: int) -> float:
    """The least sample that at least `part` percent of them do not pass."""
    return sorted(samples)[math.ceil(len(samples) * part / 100) - 1]


# --- text ------------------------------------------------------------------------------------------------------------
def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded so that it also reads well in a terminal; the first column is left-aligned."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])])


def duration(seconds: float) -> str:
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}" if abs(seconds) < 100 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds:.3g} s"


def size_name(size: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def cell(times: dict[str, list[float]], name: str) -> str:
    return duration(statistics.median(times[name])) if times.get(name) else "-"


def order(name: str) -> tuple[bool, str]:
    """Tidemill first, then the peers by name."""
    return (not name.startswith(OURS), name)
