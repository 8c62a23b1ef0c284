"""The events of the benchmark of windows, the answer to it, and what a program in Python reports. Peers import it too.

Event `i` of a stream of `per_second` events in a second of event time has, from random bits that `i` gives, a key and a jitter; its time is
that of its place in the stream less the jitter. So every program makes the same events, in any language and from anywhere on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEYS, WINDOW_MS, LATENESS_MS = 1000, 1000, 100
DRAWN = 1 << 20  # events after which the random bits come again: a fast program has no time to draw for each
BLOCK = 1_000_000  # events made at a time


def mix(numbers: Any) -> NDArray[np.uint64]:
    """The output function of the generator SplitMix64 (Steele, Lea and Flood, 2014)."""
    z = np.asarray(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def events(numbers: NDArray[np.int64], per_second: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys and times, in ms, of the events with these numbers."""
    random = mix(numbers % DRAWN + 1)
    keys = (random & np.uint64(0xFFFFFFFF)) % np.uint64(KEYS)
    jitter = (random >> np.uint64(32)) % np.uint64(LATENESS_MS + 1)
    return keys.astype(np.int64), numbers * 1000 // per_second + LATENESS_MS - jitter.astype(np.int64)


def answer(count: int, per_second: int) -> str:
    """The digest of the right rows."""
    windows = count * 1000 // per_second // WINDOW_MS + 2
    counts = np.zeros(windows * KEYS, np.int64)
    for start in range(0, count, BLOCK):
        keys, times = events(np.arange(start, min(start + BLOCK, count)), per_second)
        counts += np.bincount(times // WINDOW_MS * KEYS + keys, minlength=len(counts))
    (places,) = counts.nonzero()
    return digest(zip(places // KEYS * WINDOW_MS, places % KEYS, counts[places], strict=True))


def digest(rows: Iterable[tuple[int, int, int]]) -> str:
    """A sum over rows (start of the window in ms, key, count), in whatever order."""
    starts, keys, counts = np.array(list(rows), np.uint64).reshape(-1, 3).T
    return str((mix(starts * np.uint64(1000) + keys) * counts).sum(dtype=np.uint64))


def report(
    elapsed_s: float, rows: list[tuple[int, int, int]], closed_ns: dict[int, int], arrived_ns: dict[int, int]
) -> str:
    """What a program prints: `closed_ns` and `arrived_ns` are when the source closed a window, and when its last row came."""
    latency_s = [(arrived_ns[start] - at) / 1e9 for start, at in sorted(closed_ns.items())]
    counted = sum(count for _, _, count in rows)
    return json.dumps({"elapsed_s": elapsed_s, "counted": counted, "digest": digest(rows), "latency_s": latency_s})
