"""Classical scaling over all ranks: the leading eigenvectors of the doubly centered squared distances, as a start for
SMACOF.

Uses a block Krylov subspace: the matrix is never formed, each step reads the distances once, and a few steps suffice
for a start. Rank 0 does the small linear algebra and sends the results to the others. Source: Torgerson (1952); Musco
and Musco, "Randomized block Krylov methods" (2015).
"""

from __future__ import annotations

import numpy as np

from tidemill.ml._distances import Array, Problem
from tidemill.ml._smacof import totals

__all__ = ["classical_start"]

#: Vectors beyond those wanted, maximum number of steps, and the residual at which steps end, relative to the largest
#: eigenvalue.
_MORE, _STEPS_MAX, _RESIDUAL = 4, 6, 1e-5

#: Eigenvalues below this fraction of the largest are rounding errors.
_NEGLIGIBLE = 1e-6


def classical_start(problem: Problem, k: int, rng: np.random.Generator) -> Array:
    """Return positions (n, k) of classical scaling, in the problem's unit, the same on every rank; collective.

    A missing distance is replaced by the root mean square of its two points' known ones. Coordinates without a positive
    eigenvalue are small random numbers from `rng`; that of rank 0 is used.
    """
    comm, n = problem.comm, problem.n
    krylov = _Krylov(n, k, rng) if comm.rank == 0 else None
    gram = _Gram(problem)
    while True:
        block = krylov.block if krylov is not None else None
        result = krylov.result if krylov is not None else None
        if comm.size > 1:
            block, result = comm.bcast((block, result), root=0)
        if result is not None:
            return result
        assert block is not None, "rank 0 has a block until it has a result"
        product = gram.times(block)
        if krylov is not None:
            krylov.take(product)


class _Gram:
    """-1/2 J D J, where D holds the squared distances and J is centering; without points of zero weight."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        columns = problem.weights.columns
        self.used = np.ones((problem.n, 1)) if columns is None else (columns > 0)[:, None].astype(np.float64)
        self.missing = columns is None
        if self.missing:
            ones = np.zeros((problem.n, 1))
            squares, missing = self._laplacian("squares", ones), self._laplacian("missing", ones)
            self.mean = squares[:, 1:] / np.maximum(problem.n - 1 - missing[:, 1:], 1.0)
            self.missing = bool(missing[:, 1].any())

    def _laplacian(self, coefficients: str, points: Array) -> Array:
        p = self.problem
        out = np.empty((p.counts[p.comm.rank], points.shape[1] + 1))
        p.cells.laplacian(p.pool, coefficients, np.ascontiguousarray(points), out)
        return p.gather(out)

    def _centred(self, points: Array) -> Array:
        result: Array = self.used * (points - totals(self.used * points) / totals(self.used))
        return result

    def _product(self, coefficients: str, points: Array) -> Array:
        """Return the coefficients times `points`, from their Laplacian."""
        found = self._laplacian(coefficients, points)
        result: Array = np.ascontiguousarray(found[:, -1:] * points - found[:, :-1])
        return result

    def times(self, points: Array) -> Array:
        """Return the product with (n, b); collective."""
        points = self._centred(points)
        product = self._product("squares", points)
        if self.missing:
            b = points.shape[1]
            filled = self._product("missing", np.concatenate([points, self.mean * points], axis=1))
            product += 0.5 * (self.mean * filled[:, :b] + filled[:, b:])
        return -0.5 * self._centred(product)


class _Krylov:
    """Rank 0's part: the basis so far, and its leading eigenvectors."""

    def __init__(self, n: int, k: int, rng: np.random.Generator) -> None:
        self.k, self.rng, self.steps = k, rng, 0
        self.basis, self.products = np.empty((n, 0)), np.empty((n, 0))
        # Any block works; a constant one makes results repeat.
        block = np.random.default_rng(0).standard_normal((n, min(n, k + _MORE)))
        # Contiguous rows, as received in messages, so that products of matrices are rounded in the same way.
        self.block: Array = np.ascontiguousarray(np.linalg.qr(block)[0])
        self.result: Array | None = None

    def take(self, product: Array) -> None:
        """Add the product with the block, and return the next block or the result."""
        self.steps += 1
        self.basis = np.concatenate([self.basis, self.block], axis=1)
        self.products = np.concatenate([self.products, product], axis=1)
        small = self.basis.T @ self.products
        values, vectors = np.linalg.eigh(0.5 * (small + small.T))
        chosen = np.argsort(-values)[: self.k]
        values, vectors = values[chosen], vectors[:, chosen]
        top = max(float(np.abs(values).max()), np.finfo(float).tiny)
        rests = self.products @ vectors - self.basis @ vectors * values
        done = float(np.sqrt((rests**2).sum(axis=0)).max()) <= _RESIDUAL * top
        following = product
        for _ in range(2):
            following = following - self.basis @ (self.basis.T @ following)
        q, r = np.linalg.qr(following)
        q = q[:, np.abs(np.diag(r)) > 1e-10 * top]
        # Rounding leaves traces of directions that are already in the basis; they must not be added again.
        q = q - self.basis @ (self.basis.T @ q)
        room = len(q) - self.basis.shape[1]
        if done or self.steps == _STEPS_MAX or q.shape[1] == 0 or room <= 0:
            self.result = self._positions(values, self.basis @ vectors)
        else:
            self.block = np.ascontiguousarray(np.linalg.qr(q[:, :room])[0])

    def _positions(self, values: Array, vectors: Array) -> Array:
        n = len(vectors)
        out = np.zeros((n, self.k))
        top = max(float(values.max(initial=0.0)), 0.0)
        for c in range(min(self.k, len(values))):
            if values[c] > _NEGLIGIBLE * top:
                # Signs are arbitrary, so make the largest coordinate positive.
                column = vectors[:, c]
                out[:, c] = column * np.sqrt(values[c]) * np.sign(column[np.abs(column).argmax()])
            elif values[c] < -_NEGLIGIBLE * top:
                out[:, c] = self.rng.standard_normal(n) * 0.01 * np.sqrt(max(top, -values[c]) / n)
        return out
