"""The rows of one rank in the form that kernels need, and the sums over all ranks for k-means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._job import Comm, allreduce

__all__ = ["Moments", "Shard", "moments"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Weight of some rows, and for each feature the weighted sum and sum of squares about `centre`; all (d,)."""

    weight: float
    centre: Array
    sums: Array
    squares: Array

    def total(self) -> Array:
        """Weighted sum of each feature."""
        result: Array = self.weight * self.centre + self.sums
        return result

    def squares_about(self, centre: Array) -> Array:
        """Return the weighted sum of squares of each feature about another center."""
        way = centre - self.centre
        result: Array = self.squares - 2 * way * self.sums + self.weight * way**2
        return result


def moments(pool: native.KernelPool, x: NDArray[Any], weights: Array | None) -> tuple[Moments, Moments, bool]:
    """Return the moments of rows (n, d) without and with weights, and whether all values are finite; in one pass.

    They are about the mean of a few rows, to avoid cancellation for data far from the origin.
    """
    sample = x[:: max(1, len(x) // 1000)]
    with np.errstate(all="ignore"):
        about = sample.mean(axis=0, dtype=np.float64).astype(x.dtype) if len(x) else np.zeros(x.shape[1], x.dtype)
    plain, weighted, weight, finite = native.kmeans_statistics(pool, x, about, weights)
    centre = about.astype(np.float64)
    return Moments(float(len(x)), centre, *plain), Moments(weight, centre, *weighted), finite


@dataclass
class Shard:
    """Rows of this rank, minus `shift`: the kernels' documentation explains why."""

    comm: Comm
    pool: native.KernelPool
    #: (n, d), float32 or float64, C-contiguous.
    x: NDArray[Any]
    #: (d,), the dtype of `x`.
    shift: NDArray[Any]
    #: (n,) or None for ones.
    weights: Array | None
    #: The number of this rank's first row among those of all ranks, and the total number of rows.
    offset: int
    n_total: int

    @property
    def n(self) -> int:
        """Number of rows of this rank."""
        return int(self.x.shape[0])

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.x.shape[1])

    def weight(self, rows: NDArray[np.intp]) -> Array:
        """Return the weights of some rows of this rank."""
        return np.ones(len(rows)) if self.weights is None else self.weights[rows]

    def weight_total(self) -> float:
        """Sum the weights of the rows of this rank."""
        return float(self.n) if self.weights is None else float(self.weights.sum())

    def shifted(self, rows: NDArray[np.intp]) -> Array:
        """Return some rows of this rank minus the shift, (m, d) float64."""
        result: Array = (self.x[rows] - self.shift).astype(np.float64)
        return result

    def gather(self, numbers: NDArray[np.int64]) -> Array:
        """Return the rows with these numbers, minus the shift, (m, d), on every rank; all ranks pass the same numbers."""
        out = np.zeros((len(numbers), self.d))
        mine = (numbers >= self.offset) & (numbers < self.offset + self.n)
        out[mine] = self.shifted((numbers[mine] - self.offset).astype(np.intp))
        return allreduce(self.comm, out)

    def assign(self, centres: Array) -> NDArray[np.int32]:
        """Return the nearest center of each row of this rank."""
        return native.kmeans_assign(self.pool, self.x, self.shift, centres)

    def inertia(self, centres: Array, labels: NDArray[np.int32]) -> float:
        """Return the weighted sum of squared distances of all ranks' rows to the centers of their labels."""
        local = native.kmeans_inertia(self.pool, self.x, self.shift, self.weights, centres, labels)
        return float(allreduce(self.comm, np.array([local]))[0])
