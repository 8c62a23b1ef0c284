"""Initial centers of k-means over the rows of all ranks: k-means||, greedy k-means++ or random rows.

A row's probability depends on its number among all rows, never on its rank: seeds are the same for any number of
workers, up to rounding of sums. Numbers that all ranks must agree on come from one generator that is seeded identically
everywhere, and are drawn in the same order.

Source: Arthur and Vassilvitskii, "k-means++" (2007); Bahmani et al., "Scalable k-means++" (2012).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._job import allreduce
from tidemill.ml._shard import Array, Shard

__all__ = ["parallel", "plus_plus", "random_rows"]

#: Rounds of k-means||, each of which draws about this many times k candidates.
_ROUNDS = 3
_OVERSAMPLING = 2.0


class _Closest:
    """Each row's squared distance to the nearest seed so far, and the index of that seed."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.distances = np.ones(shard.n)
        self.index = np.zeros(shard.n, dtype=np.uint32)
        self.potential = shard.weight_total()
        self.seeds = np.empty((0, shard.d))

    def add(self, seeds: Array) -> float:
        """Add seeds; return the new sum of weight times distance over all ranks."""
        if len(self.seeds) == 0:
            self.distances.fill(np.inf)
        s = self.shard
        if len(seeds):
            self.potential = native.kmeans_nearest_update(
                s.pool, s.x, s.shift, s.weights, seeds, len(self.seeds), self.distances, self.index
            )
        self.seeds = np.concatenate([self.seeds, seeds])
        return float(allreduce(s.comm, np.array([self.potential]))[0])

    def potentials(self, trials: Array) -> Array:
        """Return the result that `add` would have for each of the trials alone."""
        s = self.shard
        local = native.kmeans_potentials(s.pool, s.x, s.shift, s.weights, trials, self.distances)
        return allreduce(s.comm, np.array(local))

    def pick(self, chances: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return, for each number in [0, 1), the row at that fraction of the running sum of weight times distance."""
        s = self.shard
        ends = np.cumsum(s.comm.allgather(self.potential))
        targets = chances * ends[-1]
        # The last rank with any weight takes what rounding leaves beyond the end.
        last = int(np.flatnonzero(np.diff(ends, prepend=0.0) > 0)[-1])
        owner = np.minimum(np.searchsorted(ends, targets, side="right"), last)
        mine = owner == s.comm.rank
        start = ends[s.comm.rank] - self.potential
        found = np.zeros(len(chances))
        if mine.any():
            rows = native.kmeans_locate(s.x, s.shift, s.weights, self.distances, list(targets[mine] - start))
            found[mine] = np.array(rows) + s.offset
        return allreduce(s.comm, found).astype(np.int64)


def plus_plus(shard: Shard, k: int, rng: np.random.Generator, start: Array | None = None) -> Array:
    """Greedy k-means++: each next seed is the best of a few drawn in proportion to the distance from earlier ones.

    Returns (k, d), minus the shift. `start` are seeds to begin with.
    """
    closest = _Closest(shard)
    if start is not None and len(start):
        potential = closest.add(start)
    else:
        potential = closest.add(shard.gather(closest.pick(rng.random(1))))
    trials = 2 + int(math.log(k))
    while len(closest.seeds) < k:
        chances = rng.random(trials)
        if not potential > 0:
            # Every row coincides with a seed: any row works, and its cluster will be empty.
            numbers = (chances[:1] * shard.n_total).astype(np.int64)
            potential = closest.add(shard.gather(numbers))
            continue
        candidates = shard.gather(closest.pick(chances))
        best = int(np.argmin(closest.potentials(candidates)))
        potential = closest.add(candidates[best : best + 1])
    return closest.seeds


def parallel(shard: Shard, k: int, rng: np.random.Generator) -> Array:
    """k-means||: a few rounds that draw many candidates at once, which k-means++ then reduces to k.

    Returns (k, d), minus the shift.
    """
    seed = int(rng.integers(2**63))
    closest = _Closest(shard)
    potential = closest.add(shard.gather(closest.pick(rng.random(1))))
    for number in range(_ROUNDS):
        if not potential > 0:
            break
        scale = _OVERSAMPLING * k / potential
        rows = native.kmeans_draw(
            shard.x, shard.shift, shard.weights, closest.distances, scale, seed, number, shard.offset
        )
        # Ranks hold rows in order, so this is the order of the rows' numbers.
        drawn = shard.comm.allgather(shard.shifted(np.array(rows, dtype=np.intp)))
        potential = closest.add(np.concatenate(drawn))
    candidates = closest.seeds
    local = np.bincount(closest.index, weights=shard.weights, minlength=len(candidates))
    weights = allreduce(shard.comm, local.astype(np.float64))
    candidates, weights = candidates[weights > 0], weights[weights > 0]
    if len(candidates) <= k:
        return plus_plus(shard, k, rng, start=candidates)
    seeds = _thin_out(shard, candidates, weights, k, rng) if shard.comm.rank == 0 else None
    result: Array = shard.comm.bcast(seeds, root=0)
    return result


def _thin_out(shard: Shard, candidates: Array, weights: Array, k: int, rng: np.random.Generator) -> Array:
    """Return k of the weighted candidates, by k-means++ and a few steps of Lloyd's on them; on one rank alone."""
    from tidemill.ml._job import active, using

    with using(None):
        alone = Shard(active(), shard.pool, candidates, np.zeros(shard.d), weights, 0, len(candidates))
    centres = plus_plus(alone, k, rng)
    fit = native.KMeansFit(alone.pool, alone.x, alone.shift, alone.weights, k, "auto", 5)
    out = np.empty(k * shard.d + k)
    for _ in range(5):
        fit.step(alone.pool, alone.x, alone.shift, alone.weights, centres, out)
        totals = out[k * shard.d :]
        full = totals > 0
        centres[full] = out[: k * shard.d].reshape(k, -1)[full] / totals[full, None]
    return centres


def random_rows(shard: Shard, k: int, rng: np.random.Generator) -> Array:
    """Draw k distinct rows, by weight; returns (k, d), minus the shift.

    Each row draws a waiting time with its weight as rate, and the k shortest win (Efraimidis and Spirakis, 2006).
    """
    # All ranks draw the numbers for their rows from one sequence with random access.
    bits = np.random.Philox(key=int(rng.integers(2**63)))
    # One step of the counter makes four numbers.
    bits.advance(shard.offset // 4)
    draws = np.random.Generator(bits).random(shard.offset % 4 + shard.n)[shard.offset % 4 :]
    with np.errstate(divide="ignore"):
        waits = -np.log1p(-draws) / shard.weight(np.arange(shard.n))
    best = np.argsort(waits, kind="stable")[:k]
    everyone = shard.comm.allgather((waits[best], best + shard.offset))
    waits = np.concatenate([waits for waits, _ in everyone])
    numbers = np.concatenate([numbers for _, numbers in everyone])
    chosen = numbers[np.lexsort((numbers, waits))[:k]]
    return shard.gather(chosen.astype(np.int64))
