"""Anderson acceleration of a fixed-point iteration: extrapolates from several past steps instead of the last one alone.

All sums are formed in order and all small systems are solved in Python floats, so that ranks with the same points
compute bitwise equal results, whatever their processors and libraries.

Source: Anderson (1965); Walker and Ni, "Anderson acceleration for fixed-point iterations" (2011), in the form with
differences. Rejecting steps that do not decrease the objective follows Peng and others, "Anderson acceleration for
geometry optimization and physics simulation" (2018).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Anderson"]

Array = NDArray[np.float64]

#: Fraction of the trace that is added to the diagonal, because differences become nearly parallel as the iteration
#: converges.
_REGULAR = 1e-10


class Anderson:
    """Steps of x -> g(x), of which the last `depth` differences are kept: two arrays of the size of x for each.

    Parameters
    ----------
    depth : int
        At least 1.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.forget()

    def forget(self) -> None:
        """Drop the history, for example after a step has failed or g has changed."""
        self._step: Array | None = None
        self._image: Array | None = None
        #: Differences of steps g(x) - x and of images g(x), one per row; the row for the next one; and the products of
        #: the former.
        self._steps = self._images = np.empty((0, 0))
        self._next = 0
        self._products: list[list[float]] = []

    def extrapolate(self, x: Array, image: Array) -> Array | None:
        """Record that g(`x`) is `image`; return an extrapolated point, None while too few steps are known."""
        flat = image.ravel()
        step = flat - x.ravel()
        if self._step is None or self._image is None:
            self._step, self._image = step, flat
            self._steps, self._images = np.empty((2, self.depth, len(step)))
            return None
        place = self._next % self.depth
        np.subtract(step, self._step, out=self._steps[place])
        np.subtract(flat, self._image, out=self._images[place])
        self._step, self._image, self._next = step, flat, self._next + 1
        known = min(self._next, self.depth)
        steps = self._steps[:known]
        among, right = _sums(steps * steps[place]), _sums(steps * step)
        if len(self._products) < known:
            self._products.append([])
        for row, product in zip(self._products, among, strict=True):
            row[place:] = [product, *row[place + 1 :]]
        self._products[place] = among
        shares = _solved(self._products, right)
        if shares is None:
            return None
        found: Array = flat.copy()
        for share, difference in zip(shares, self._images, strict=False):
            found -= share * difference
        return found.reshape(image.shape)


def _sums(rows: Array) -> list[float]:
    """Return the sum of each row, in order."""
    sums: list[float] = np.add.accumulate(rows, axis=1)[:, -1].tolist()
    return sums


def _solved(products: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve the normal equations by Cholesky's method; None if they are singular."""
    count = len(right)
    added = _REGULAR * sum(products[place][place] for place in range(count))
    lower: list[list[float]] = []
    for i in range(count):
        row: list[float] = []
        for j in range(i):
            row.append((products[i][j] - sum(row[k] * lower[j][k] for k in range(j))) / lower[j][j])
        pivot = products[i][i] + added - sum(part * part for part in row)
        if not pivot > 0:
            return None
        lower.append([*row, math.sqrt(pivot)])
    half: list[float] = []
    for i in range(count):
        half.append((right[i] - sum(lower[i][k] * half[k] for k in range(i))) / lower[i][i])
    shares = [0.0] * count
    for i in reversed(range(count)):
        shares[i] = (half[i] - sum(lower[k][i] * shares[k] for k in range(i + 1, count))) / lower[i][i]
    return shares if all(map(math.isfinite, shares)) else None
