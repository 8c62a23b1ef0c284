"""K-means with partial synchronization: parts of the rows run Lloyd's algorithm by themselves between two all-reduces.

A worker's rows lie in blocks, and a part is a set of blocks: to deal rows anew moves no row. A block keeps its own state of
the kernel, whose bounds hold for whatever centers come next, so it also stays valid in another part.

Parts dealt anew never settle exactly. So the rounds end when the common centers stop approaching, and Lloyd's algorithm over
all rows goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tidemill import _tidemill as native
from tidemill.ml._job import allreduce
from tidemill.ml._lloyd import Iteration
from tidemill.ml._shard import Array, Shard

__all__ = ["Account", "Partial", "partial_rounds"]

#: Rows are redistributed to parts after this many rounds.
_DEAL_EVERY = 3
#: The number of rounds without shrinking movement after which it is not expected to shrink.
_PATIENCE = 3
#: The default number of parts of a worker; fewer if parts would not have some rows of each cluster.
_PARTS = 8
_ROWS_OF_CLUSTER = 20
#: More blocks mix better, but cost more calls of the kernel, so blocks are at least this small part of a part.
_BLOCKS_OF_PART = 8
_ROWS_OF_BLOCK = 64


@dataclass
class Account:
    """The cost of a fit: all-reduces and passes over the rows.

    Attributes
    ----------
    sync : {"global", "partial"}
    rounds : int
        Number of rounds in which parts iterated by themselves; 0 with ``sync="global"``.
    iterations : int
        Number of iterations of Lloyd's algorithm over all rows, not counting rounds. Each round and each iteration takes one
        all-reduce.
    passes : float
        Number of passes over all rows: distances to compute, even if bounds skipped them, divided by those of one iteration.
    bytes_sent : int
        Bytes that this worker contributed to all-reduces; 0 on one worker.
    oscillated : bool
        Whether the rounds ended because the common centers did not settle.
    """

    sync: str = "global"
    rounds: int = 0
    iterations: int = 0
    passes: float = 0.0
    bytes_sent: int = 0
    oscillated: bool = False


@dataclass(frozen=True)
class Partial:
    """Result of rounds: the common centers, (k, d), minus the shift; and the account of how they were found."""

    centres: Array
    account: Account


class _Blocks:
    """The rows of this worker in blocks, each with the kernel's state, and the parts that they are dealt to."""

    def __init__(self, shard: Shard, k: int, parts: int | None, algorithm: str, steps_max: int, seed: int) -> None:
        self.shard, self.k = shard, k
        wanted = parts or max(1, min(_PARTS, shard.n // (_ROWS_OF_CLUSTER * k)))
        self.parts = min(wanted, shard.n)
        most = _BLOCKS_OF_PART * self.parts if self.parts > 1 else self.parts
        count = min(most, max(2 * self.parts, shard.n // _ROWS_OF_BLOCK), shard.n)
        cuts = np.linspace(0, shard.n, count + 1).astype(int)
        self.rows = [slice(first, end) for first, end in pairwise(cuts.tolist())]
        self.fits = [
            native.KMeansFit(shard.pool, shard.x[rows], shard.shift, self._weights(rows), k, algorithm, steps_max)
            for rows in self.rows
        ]
        self.chance = np.random.default_rng([seed, shard.comm.rank])

    def _weights(self, rows: slice) -> Array | None:
        return None if self.shard.weights is None else self.shard.weights[rows]

    def deal(self) -> list[list[int]]:
        """Return the blocks of each part."""
        order = self.chance.permutation(len(self.rows))
        return [order[at :: self.parts].tolist() for at in range(self.parts)]

    def step(self, blocks: list[int], centres: Array, out: Array) -> int:
        """Set `out` to the sums and weights of the clusters in some blocks; return how many rows changed their cluster."""
        shard, one, changed = self.shard, np.empty_like(out), 0
        out.fill(0)
        for at in blocks:
            rows = self.rows[at]
            changed += self.fits[at].step(shard.pool, shard.x[rows], shard.shift, self._weights(rows), centres, one)[0]
            out += one
        return changed

    def count(self, blocks: list[int]) -> int:
        """Count the rows of some blocks."""
        return sum(self.rows[at].stop - self.rows[at].start for at in blocks)


def partial_rounds(
    shard: Shard,
    centres: Array,
    *,
    parts: int | None,
    local_sweeps: int | None,
    weighted: bool,
    max_iter: int,
    tol: float,
    algorithm: str,
    squares: float,
    seed: int,
    report: Callable[[Iteration], None],
) -> Partial:
    """Let parts iterate from common centers, and replace these by the means over parts, until they settle or oscillate.

    A cluster that has no rows in a part has no say there; one that has none in any keeps its center.

    Parameters
    ----------
    shard : Shard
    centres : ndarray of shape (k, d)
        Less the shift; the same on every rank.
    parts : int or None
        Of each worker.
    local_sweeps : int or None
        Sweeps of a part in a round at most; None for as many as it takes to settle.
    weighted : bool
        Whether means over parts are weighted by the weight of the rows.
    max_iter : int
        Limit of rounds, and of the sweeps in one.
    tol : float
        Squared distance that all centers move together when they count as settled.
    squares : float
        Weighted sum of squares of all rows about the shift.
    seed : int
        For dealing; the same on every rank.
    report : callable
        Called with each round, on every rank; its inertia is that of the centers that the round began with.
    """
    k, d = centres.shape
    size = k * d + k
    blocks = _Blocks(shard, k, parts, algorithm, max_iter, seed)
    sweeps_max = max_iter if local_sweeps is None else local_sweeps
    # Means of parts as sums and weights; from the first sweep, inertia and the number of changed rows; and the rows
    # visited.
    local, out = np.empty(size + 3), np.empty(size)
    account = Account("partial")
    dealt: list[list[int]] = []
    before, least, stalled = centres, np.inf, 0
    for number in range(1, max_iter + 1):
        if (number - 1) % _DEAL_EVERY == 0:
            dealt = blocks.deal()
        local.fill(0)
        for part in dealt:
            _settle(blocks, part, centres, out, local, sweeps_max, tol, weighted)
        total = allreduce(shard.comm, local)
        sums, weights = total[: k * d].reshape(k, d), total[k * d : size]
        moved = centres.copy()
        np.divide(sums, weights[:, None], out=moved, where=weights[:, None] > 0)
        shift = float(np.sum((moved - centres) ** 2))
        back = float(np.sum((moved - before) ** 2)) if number > 1 else np.inf
        before, centres = centres, moved
        account.rounds = number
        account.passes += float(total[-1]) / shard.n_total
        account.bytes_sent += local.nbytes if shard.comm.size > 1 else 0
        report(Iteration(number, max(0.0, squares + float(total[-3])), shift, round(float(total[-2]))))
        if shift <= tol:
            break
        stalled = 0 if shift < least else stalled + 1
        least = min(least, shift)
        if back <= tol or stalled >= _PATIENCE:
            account.oscillated = True
            break
    return Partial(centres, account)


def _settle(
    blocks: _Blocks,
    part: list[int],
    common: Array,
    out: Array,
    local: Array,
    sweeps_max: int,
    tol: float,
    weighted: bool,
) -> None:
    """Iterate one part from the common centers until it settles; add what it found to `local`."""
    k, d = common.shape
    centres = common
    sums, weights = out[: k * d].reshape(k, d), out[k * d :]
    for sweep in range(1, sweeps_max + 1):
        changed = blocks.step(part, centres, out)
        local[-1] += blocks.count(part)
        if sweep == 1:
            local[-3] += weights @ np.einsum("kd,kd->k", common, common) - 2.0 * np.vdot(common, sums)
            local[-2] += changed
        moved = centres.copy()
        np.divide(sums, weights[:, None], out=moved, where=weights[:, None] > 0)
        shift = float(np.sum((moved - centres) ** 2))
        centres = moved
        # The first sweep compares rows with their clusters of the previous round, so no changes there are not a sign of
        # convergence.
        if shift <= tol or (sweep > 1 and changed == 0):
            break
    if weighted:
        local[: k * d + k] += out
    else:
        filled = weights > 0
        local[: k * d] += np.where(filled[:, None], centres, 0.0).ravel()
        local[k * d : k * d + k] += filled
