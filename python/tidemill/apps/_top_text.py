"""Text of ``tidemill top``: tables, and numbers as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Screen", "clipped", "counted", "fitting", "mbit", "percent", "short", "size", "table"]


@dataclass(frozen=True)
class Screen:
    """What text is for: columns, lines (None: as many as there are), and whether it can show blocks, such as ``▁``."""

    width: int
    height: int | None = None
    blocks: bool = True


def table(rows: Sequence[tuple[str, ...]], texts: tuple[int, ...]) -> list[str]:
    """Align cells in columns; those of `texts` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if at in texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(["", *cells]).rstrip())
    return lines


def short(seconds: float) -> str:
    """Return a time, such as ``3.1 s`` or ``12 min``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def size(count: float) -> str:
    """Return a number of bytes, such as ``1.5 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} B"


def mbit(bytes_s: float) -> str:
    """Return a rate in Mbit/s, without the unit."""
    rate = max(bytes_s, 0.0) * 8 / 1e6
    if rate >= 99.5:
        return f"{rate:,.0f}"
    return f"{rate:.1f}" if rate >= 0.05 else "<0.1" if rate > 0 else "0"


def percent(part: float, total: float = 1.0) -> str:
    """Return a share, a small one with a decimal; that of nothing is nothing."""
    share = 100 * part / total if total > 0 else 0.0
    if share >= 9.95 or share <= 0:
        return f"{share:.0f}%"
    return f"{share:.1f}%" if share >= 0.05 else "<0.1%"


def counted(count: int, what: str) -> str:
    """Return a number of things, such as ``1 host`` or ``42 hosts``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def clipped(text: str, width: int) -> str:
    """Return `text`, cut to `width`."""
    return text if len(text) <= width else f"{text[: width - 1]}~"


def fitting(order: Sequence[int], sizes: Mapping[int, int], room: int) -> list[int]:
    """Return the first parts, in this order, that fit; at least one."""
    fit: list[int] = []
    for part in order:
        room -= sizes[part]
        if room < 0 and fit:
            break
        fit.append(part)
    return fit
