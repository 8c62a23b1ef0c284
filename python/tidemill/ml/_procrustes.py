"""`procrustes`: the rotation, reflection, translation and scale that best align one set of points with another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Procrustes", "procrustes"]

Array = NDArray[np.float64]

#: Directions with singular values below this fraction of the largest are not determined.
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Procrustes:
    """Result of `procrustes`: `apply` maps points as ``scale * points @ rotation + translation``."""

    #: (k, k), orthogonal.
    rotation: Array
    #: (k,), in the units of the fixed points.
    translation: Array
    #: 1.0 unless a scale was requested.
    scale: float
    #: Weighted root of the mean squared distance between the mapped points and the fixed ones, in their units.
    residual: float
    #: The part of the fixed points' weighted variance that the mapped points explain: 1 if they coincide.
    fit: float

    @property
    def determinant(self) -> int:
        """1 for a rotation, -1 if it includes a reflection."""
        return 1 if np.linalg.det(self.rotation) > 0 else -1

    def apply(self, points: ArrayLike) -> Array:
        """Map points (..., k) into the space of the fixed ones."""
        result: Array = self.scale * np.asarray(points, dtype=np.float64) @ self.rotation + self.translation
        return result


def procrustes(
    moving: ArrayLike,
    fixed: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    scale: bool = False,
    reflection: bool = True,
) -> Procrustes:
    """Align `moving` with `fixed`, point by point, by the rigid motion with the least squared error. Local.

    Parameters
    ----------
    moving, fixed : array-like of shape (n, k)
        Corresponding points, row by row.
    weights : array-like of shape (n,), optional
        Weight of each pair; all 1 by default. Pairs of weight 0 may contain NaN.
    scale : bool, default=False
        Whether to scale as well.
    reflection : bool, default=True
        Whether to allow reflections.

    Returns
    -------
    Procrustes

    Raises
    ------
    ValueError
        If shapes do not match, a number is not finite, or all weights are 0.

    Notes
    -----
    Computed in closed form: with both sets centered at their weighted means, ``U S V' = moving' W fixed`` gives the
    rotation ``U V'``; without reflection, the last column of ``U`` changes its sign if the determinant is negative.
    This is the global optimum, and takes one pass over the points. If several rotations are equally good (points on a
    line, or one point), the result is the one closest to the identity, so that frames of an animation do not spin.
    Source: Schönemann (1966); Kabsch (1976); Umeyama (1991).

    Examples
    --------
    >>> from tidemill.ml import procrustes
    >>> found = procrustes([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], [[3.0, 1.0], [3.0, 2.0], [1.0, 1.0]])
    >>> found.determinant, found.apply([1.0, 0.0]).round(6).tolist()
    (1, [3.0, 2.0])
    """
    a, b = _points("moving", moving), _points("fixed", fixed)
    if a.shape != b.shape:
        raise ValueError(f"moving and fixed must have the same shape, not {a.shape} and {b.shape}.")
    w = _weights(weights, len(a))
    used = w > 0
    a, b, w = a[used], b[used], w[used] / w.max()
    for name, points in (("moving", a), ("fixed", b)):
        bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if len(bad):
            row = int(np.flatnonzero(used)[bad[0]])
            raise ValueError(f"Row {row} of {name} is not finite: give it weight 0 if it is missing.")
    share = w / w.sum()
    mean_a, mean_b = share @ a, share @ b
    a, b = a - mean_a, b - mean_b
    size_a, size_b = float(np.abs(a).max()), float(np.abs(b).max())
    # Normalized by the largest values, products neither overflow nor vanish.
    a, b = a / (size_a or 1.0), b / (size_b or 1.0)
    u, singular, vt = np.linalg.svd((a * share[:, None]).T @ b)
    signs = np.ones(len(singular))
    rank = int((singular > _NEGLIGIBLE * max(singular[0], np.finfo(float).tiny)).sum()) if size_a and size_b else 0
    rotation = _nearest_to_identity(u, vt, rank)
    if not reflection and np.linalg.det(rotation) < 0:
        # Reverse the direction that counts least; if its singular value is 0, this costs nothing.
        signs[-1] = -1.0
        rotation = _nearest_to_identity(u, vt, rank, mirrored=True)
    spread_a = float(share @ np.einsum("nk,nk->n", a, a))
    spread_b = float(share @ np.einsum("nk,nk->n", b, b))
    ratio = size_b / size_a if size_a else 1.0
    factor = float(singular @ signs) / spread_a * ratio if scale and spread_a > 0 else 1.0
    ways = factor * (size_a / (size_b or 1.0)) * a @ rotation - b
    rest = float(share @ np.einsum("nk,nk->n", ways, ways))
    fit = 1.0 - rest / spread_b if spread_b > 0 else float(rest == 0)
    return Procrustes(
        rotation, mean_b - factor * mean_a @ rotation, factor, float(np.sqrt(rest)) * (size_b or 1.0), fit
    )


def _nearest_to_identity(u: Array, vt: Array, rank: int, mirrored: bool = False) -> Array:
    """Return ``U V'``, with the directions beyond `rank`, which may be rotated freely, as close to the identity as
    possible.
    """
    k = len(u)
    core = u[:, :rank] @ vt[:rank]
    if rank == k:
        flip = np.ones(k)
        flip[-1] = -1.0 if mirrored else 1.0
        result: Array = (u * flip) @ vt
        return result
    left, _, right = np.linalg.svd(u[:, rank:].T @ vt[rank:].T)
    flip = np.ones(k - rank)
    flip[-1] = -1.0 if mirrored else 1.0
    result = core + u[:, rank:] @ ((left * flip) @ right) @ vt[rank:]
    return result


def _points(name: str, points: ArrayLike) -> Array:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must be points of shape (n, k), at least one of one coordinate, not {array.shape}.")
    return array


def _weights(weights: Any, n: int) -> Array:
    if weights is None:
        return np.ones(n)
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(f"weights must be one number for each of the {n} points, not of shape {array.shape}.")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        raise ValueError(f"Weight {bad[0]} is {array[bad[0]]}: weights must be finite and not negative.")
    if not array.any():
        raise ValueError("All weights are zero: at least one pair of points must count.")
    return array
