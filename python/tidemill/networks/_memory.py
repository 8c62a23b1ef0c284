"""How much memory a network takes, stated before it is read, and compared with this worker's budget."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill._errors import TidemillError
from tidemill._job import init
from tidemill._tables.engine import memory_budget

__all__ = ["Estimate", "NetworkTooLargeError", "check", "check_whole", "of_links", "within_budget"]

#: What takes less is not compared with the budget.
_SMALL_BYTES = 64 << 20
#: The part of a budget that working memory of an algorithm may take, and the least of it.
_WORKING_SHARE, _WORKING_BYTES = 1 / 16, 1 << 20


class NetworkTooLargeError(TidemillError, MemoryError):
    """A network takes more memory than this worker's budget; the message has both numbers."""


@dataclass(frozen=True)
class Estimate:
    """How much memory `read` will take on each worker, estimated from the beginning of a file.

    Attributes
    ----------
    links : int
        Approximate number of lines with links.
    weighted : bool
        Whether links have weights.
    held_bytes : int
        Bytes that the network takes once it is read, without ids.
    peak_bytes : int
        Bytes that reading it takes.
    budget_bytes : int or None
        Bytes that this worker may take; None if there is no limit.
    """

    links: int
    weighted: bool
    held_bytes: int
    peak_bytes: int
    budget_bytes: int | None


def of_links(links: int, nodes: int, weighted: bool, both: bool, workers: int | None = None) -> tuple[int, int]:
    """Return the bytes that a network takes, and those that are taken while it is read.

    `both`: links lead both ways. With a number of workers, each has a share of the network, and these are a worker's bytes.
    """
    if workers is not None:
        links, nodes = -(-links // workers), -(-nodes // workers)
        ways, read = 2 if both else 1, links * (24 if weighted else 16)
        # Links by number, those that came from others, and their sort, which makes the rows.
        dealing = links * (16 if weighted else 8) + ways * links * (44 if weighted else 20)
        return ways * links * (12 if weighted else 4) + 8 * nodes, max(2 * read, dealing) + 32 * nodes
    held = (2 if both else 1) * links * (12 if weighted else 4) + 8 * nodes
    read = links * (24 if weighted else 16)
    # Pieces are joined; later what was read stands beside numbers of nodes, sorted links and the rows.
    building = read + 8 * links + (2 if both else 1) * links * (28 if weighted else 12)
    return held, max(2 * read, building) + 24 * nodes


def check(
    what: str, links: int, nodes: int = 0, weighted: bool = False, both: bool = False, workers: int | None = None
) -> None:
    """Compare what reading a network takes with this worker's budget; `workers` as for `of_links`.

    Raises
    ------
    NetworkTooLargeError
        If it takes more.
    """
    _, peak = of_links(links, nodes, weighted, both, workers)
    share = "" if workers is None else f", shared by {workers} workers"
    other = "or share it among several workers (together=True)" if workers is None else "or use more workers"
    _check(
        f"reading {what} takes about {_sized(peak)} for {links:,} links{share}",
        peak,
        ("read it without weights (weights=False), " if weighted else "") + other,
    )


def check_whole(links: int, nodes: int, weighted: bool) -> None:
    """Compare what collecting a distributed network takes with this worker's budget.

    Raises
    ------
    NetworkTooLargeError
        If it takes more.
    """
    # Arrays are received, and copied into rows.
    peak = 2 * (links * (12 if weighted else 4) + 16 * nodes)
    _check(
        f"the whole network takes about {_sized(peak)} for {links:,} links",
        peak,
        "or use functions that compute on a distributed network (see DistributedNetwork)",
    )


def within_budget(bytes_each: int, most: int) -> int:
    """Return how many things of so many bytes an algorithm may hold at a time, at least 1 and at most `most`."""
    budget = memory_budget(init())
    if budget is None:
        return most
    return max(1, min(most, int(max(budget * _WORKING_SHARE, _WORKING_BYTES)) // bytes_each))


def _check(what: str, peak: int, other: str) -> None:
    if peak < _SMALL_BYTES:
        return
    budget = memory_budget(init())
    if budget is not None and peak > budget:
        raise NetworkTooLargeError(
            f"{what}, but this worker may take {_sized(budget)}: give it more (--memory or TIDEMILL_MEMORY; none for no limit), "
            f"run fewer workers on this host, {other}"
        )


def _sized(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
