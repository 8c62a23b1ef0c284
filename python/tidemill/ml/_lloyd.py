"""Lloyd's iterations over all ranks: one step of the kernel and one all-reduce each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._job import allreduce
from tidemill.ml._shard import Array, Shard

__all__ = ["Iteration", "Result", "cluster_sums", "lloyd"]


#: If a sum of squares is smaller than this fraction of its minuend, it has lost too many digits and is recomputed.
_CANCELLED = 1e-3


@dataclass(frozen=True)
class Iteration:
    """Summary of one iteration; the same on every rank."""

    number: int
    inertia: float
    #: The squared length of the combined move of all centers.
    shift: float
    #: The number of rows that changed their cluster.
    changed: int


@dataclass(frozen=True)
class Result:
    """Result of Lloyd's iterations."""

    #: (k, d), minus the shift, as rounded by `settle`.
    centres: Array
    #: For this rank's rows, with exactly these centers.
    labels: NDArray[np.int32]
    inertia: float
    iterations: int
    #: The weight of each cluster, (k,).
    weights: Array
    algorithm: str


def cluster_sums(shard: Shard, centres: Array) -> tuple[Array, Array]:
    """Return the weighted sums, (k, d), and the weights, (k,), of all ranks' rows by their nearest centers. Centers
    and sums are minus the shift.
    """
    k, d = centres.shape
    fit = native.KMeansFit(shard.pool, shard.x, shard.shift, shard.weights, k, "lloyd", 1)
    local = np.empty(k * d + k + 1)
    fit.step(shard.pool, shard.x, shard.shift, shard.weights, centres, local)
    local[-1] = 0
    total = allreduce(shard.comm, local)
    return total[: k * d].reshape(k, d), total[k * d : -1]


def lloyd(
    shard: Shard,
    centres: Array,
    *,
    max_iter: int,
    tol: float,
    algorithm: str,
    squares: float,
    settle: Callable[[Array], Array],
    report: Callable[[Iteration], None],
) -> Result:
    """Iterate from `centres` until no label changes, the centers move less than `tol`, or `max_iter` is reached.

    Parameters
    ----------
    centres : ndarray of shape (k, d), minus the shift
    tol : float
        Upper bound for the squared distance that all centers move together.
    squares : float
        Weighted sum of squared norms of all ranks' shifted rows.
    settle : callable
        Rounds centers to the values that the user gets; labels and inertia are those of the rounded ones.
    report : callable
        Called with each iteration, on every rank.
    """
    k, d = centres.shape
    fit = native.KMeansFit(shard.pool, shard.x, shard.shift, shard.weights, k, algorithm, max_iter)
    # The clusters' sums and weights, and the number of rows that changed: everything that ranks exchange, in one
    # message.
    local = np.empty(k * d + k + 1)

    def step(centres: Array) -> tuple[Array, Array, int]:
        changed, _ = fit.step(shard.pool, shard.x, shard.shift, shard.weights, centres, local)
        local[-1] = changed
        total = allreduce(shard.comm, local)
        return total[: k * d].reshape(k, d), total[k * d : -1], round(total[-1])

    def inertia_of(centres: Array, sums: Array, totals: Array) -> float:
        # Sum of w |x - c|^2 = sum of w |x|^2 + sum over clusters of (w |c|^2 - 2 c.s), which does not require the rows.
        norms = np.einsum("kd,kd->k", centres, centres)
        return max(0.0, squares + float(totals @ norms - 2.0 * np.vdot(centres, sums)))

    number = 0
    for number in range(1, max_iter + 1):
        sums, totals, changed = step(centres)
        inertia = inertia_of(centres, sums, totals)
        filled = totals.all()
        if not filled:
            _refill(shard, fit, centres, sums, totals)
        moved = centres.copy()
        np.divide(sums, totals[:, None], out=moved, where=True if filled else totals[:, None] > 0)
        way = moved - centres
        shift = float(np.vdot(way, way))
        centres = moved
        report(Iteration(number, inertia, shift, changed))
        if changed == 0 or shift <= tol:
            break
    centres = settle(centres)
    sums, totals, _ = step(centres)
    labels = fit.labels()
    inertia = inertia_of(centres, sums, totals)
    if inertia < _CANCELLED * squares:
        inertia = shard.inertia(centres, labels)
    return Result(centres, labels, inertia, number, totals, fit.algorithm)


def _refill(shard: Shard, fit: native.KMeansFit, centres: Array, sums: Array, totals: Array) -> None:
    """Give each empty cluster one of the rows that are farthest from their centers, like scikit-learn.

    Changes `sums` and `totals` identically on every rank. A row that is alone in its cluster stays there. If fewer rows
    than empty clusters differ from their centers, the remaining clusters stay empty.
    """
    k = len(totals)
    empty = np.flatnonzero(totals <= 0)
    labels = fit.labels()
    # At most k rows are alone in their clusters, so if any of these is not, it is among them.
    found = native.kmeans_farthest(shard.x, shard.shift, shard.weights, centres, labels, len(empty) + k)
    rows = np.array([row for _, row in found], dtype=np.intp)
    mine = (
        np.array([distance for distance, _ in found]),
        rows + shard.offset,
        labels[rows],
        shard.weight(rows),
        shard.shifted(rows),
    )
    columns = [np.concatenate(column) for column in zip(*shard.comm.allgather(mine), strict=True)]
    distances, numbers, labels_of, weights, points = columns
    order = np.lexsort((numbers, -distances))
    goals = iter(empty)
    goal = next(goals)
    for i in order:
        old = labels_of[i]
        # The tolerance allows for weights that do not add up exactly.
        if totals[old] - weights[i] <= 1e-12 * totals[old]:
            continue
        sums[old] -= weights[i] * points[i]
        totals[old] -= weights[i]
        sums[goal] = weights[i] * points[i]
        totals[goal] = weights[i]
        following = next(goals, None)
        if following is None:
            return
        goal = following
