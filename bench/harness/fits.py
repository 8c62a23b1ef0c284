"""How the programs of estimators are timed: by fits that all ranks do together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def timed(
    comm: Any, fit: Callable[[int], Any], iterations: int, *, enough_s: float, repeats_max: int
) -> tuple[float, Any]:
    """The median of a few fits, while they are cheap, and what the last one found."""
    seconds: list[float] = []
    again = True
    while again:
        comm.Barrier()
        start = time.perf_counter()
        found = fit(iterations)
        seconds.append(time.perf_counter() - start)
        # Rank 0 decides for all: a fit is collective.
        again = comm.bcast(sum(seconds) < enough_s and len(seconds) < repeats_max)
    return statistics.median(seconds), found
