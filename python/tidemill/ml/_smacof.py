"""SMACOF over all ranks: majorization of the stress, conjugate gradients for its system, annealing, and interpolation
of new points.

Positions are those of all points, (n, k) float64 in the problem's unit, and bitwise equal on every rank: each rank
computes the rows of its points, and one Allgatherv of k + 1 numbers per point shares them. Sums that affect decisions
are formed in the order of points, never by a library that may add differently on another processor.

Numbers in parentheses refer to the steps in ``docs/mds.md``.

Source: de Leeuw (1977); de Leeuw and Mair (2009); Bae, Qiu and Fox (2010); Ruan and Fox (2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tidemill import _tidemill as native
from tidemill.ml._anderson import Anderson
from tidemill.ml._distances import Array, Problem

__all__ = ["Iteration", "Result", "interpolate", "random_start", "smacof", "spread_out", "temperatures"]

#: Conjugate gradients end when the residual has fallen to this fraction, or after this many steps. Starting from the
#: positions that the system was made from, each step decreases the majorizing function, so the stress cannot grow
#: wherever they end.
_RESIDUAL, _STEPS_MAX = 0.03, 100

#: A stress below this fraction of the weighted sum of squared distances is only the rounding error of float32.
_ROUNDING = 1e-13

#: How far points are moved apart when the temperature falls, in the problem's unit, since coinciding points have no
#: direction.
_JITTER = 1e-4

#: If the extent of points in a direction is below this fraction of their largest extent, it is a rounding error of a
#: rotated plane.
_FLAT = 1e-6

#: Squared distances with a mean below this are 0, because kernels add 1e-30 to each.
_NO_SQUARE = 1e-28

#: Old points whose variance in a direction is below this fraction of the largest do not determine a new point in this
#: direction.
_PLANE = 1e-6


@dataclass(frozen=True)
class Iteration:
    """Summary of one iteration; the same on every rank."""

    number: int
    #: Weighted stress, in the user's units, for the distances at this temperature.
    stress: float
    #: The annealing temperature, in the user's units; 0 without annealing.
    temperature: float
    #: The completed fraction of all temperatures and their iterations; it may end before 1.
    part: float


@dataclass
class Result:
    """Result of the iterations."""

    #: (n, k), in the problem's unit.
    positions: Array
    #: Weighted sum over pairs, in the problem's units.
    stress: float
    iterations: int = 0
    #: The stress after each iteration.
    stresses: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    conjugate_gradients: int = 0
    #: Whether the last temperature ended by the tolerance rather than by the number of iterations.
    converged: bool = False


def total(values: Array) -> float:
    """Return the sum in order, bitwise equal on every rank."""
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


def totals(values: Array) -> Array:
    """Return the sums of the columns of (n, k) in order, bitwise equal on every rank."""
    result: Array = np.add.accumulate(values, axis=0)[-1]
    return result


class _Passes:
    """Operations that read all distances, or weights, once each."""

    def __init__(self, problem: Problem, k: int) -> None:
        self.problem = problem
        self.local = np.empty((problem.counts[problem.comm.rank], k + 1))
        columns = problem.weights.columns
        self.columns = columns
        self.steps = 0
        if columns is None:
            degrees = self.laplacian(np.zeros((problem.n, k)))[:, k:]
            self.mass = total(degrees[:, 0])
            # Only a single point has no weights.
            self.degrees = np.where(degrees > 0, degrees, 1.0)
        else:
            self.mass = total(columns)

    def _gathered(self) -> Array:
        # On a single rank, the gathered array is the buffer itself, which the next pass writes to.
        rows = self.problem.gather(self.local)
        return rows.copy() if rows is self.local else rows

    def laplacian(self, points: Array) -> Array:
        """Return V (3) times `points`, and the degrees in one more column."""
        p = self.problem
        p.cells.laplacian(p.pool, "weights", np.ascontiguousarray(points), self.local)
        return self._gathered()

    def guttman(self, z: Array, shift: float = 0.0) -> tuple[Array, float]:
        """Return B(Z) Z (4) and the stress (1) of `z`, both for distances minus `shift` (9). For column weights, the
        rows of the former omit the factor of the row's own weight.
        """
        p = self.problem
        p.cells.guttman(p.pool, z[p.own], z, self.columns, shift, self.local)
        rows = self._gathered()
        stresses = rows[:, -1] if self.columns is None else self.columns * rows[:, -1]
        return rows[:, :-1], 0.5 * total(stresses)

    def solve(self, b: Array, z: Array) -> Array:
        """Return the X that minimizes the majorizing function: V X = B(Z) Z (5)."""
        if self.columns is not None:
            # (7), and if all are 1, (6): w_ij = u_i u_j makes V = m diag(u) - u u', m the sum of u. If u'X = 0, which a
            # translation achieves, V X = m diag(u) X.
            return b / self.mass
        return self._conjugate_gradients(b, z)

    def _conjugate_gradients(self, b: Array, z: Array) -> Array:
        """Solve by conjugate gradients (8), for all coordinates at once, preconditioned by the degrees (Jacobi)."""
        x = z.copy()
        residual = b - self.laplacian(x)[:, :-1]
        preconditioned = residual / self.degrees
        direction = preconditioned.copy()
        size = totals(residual * preconditioned)
        goal = _RESIDUAL**2 * size
        for _ in range(_STEPS_MAX):
            # A solved coordinate no longer changes.
            going = (size > goal) & (size > 0)
            if not going.any():
                break
            product = self.laplacian(direction)[:, :-1]
            self.steps += 1
            curvature = totals(direction * product)
            going &= curvature > 0
            step = np.divide(size, curvature, out=np.zeros_like(size), where=going)
            x += step * direction
            residual -= step * product
            preconditioned = residual / self.degrees
            before, size = size, np.where(going, totals(residual * preconditioned), size)
            goal = np.where(going, goal, size)
            direction = preconditioned + np.divide(size, before, out=np.zeros_like(size), where=before > 0) * direction
        centred: Array = x - totals(x) / len(x)
        return centred


def sum_of_squares(problem: Problem) -> float:
    """Return the weighted sum over pairs of squared distances: the stress if all points coincide; 0 if all weighted
    distances are 0.
    """
    passes = _Passes(problem, 1)
    squares = passes.guttman(np.zeros((problem.n, 1)))[1]
    pairs = passes.mass if problem.weights.columns is None else passes.mass**2
    return squares if squares > _NO_SQUARE * pairs else 0.0


def temperatures(problem: Problem, k: int, alpha: float, t_min: float | None) -> list[float]:
    """Return the falling temperatures of annealing (10), in the problem's unit, without the 0 at the end.

    They start below the temperature at which all distances vanish, ``largest / sqrt(2 k)``, fall by the factor `alpha`,
    and end before `t_min`, by default a hundredth of the first.
    """
    first = problem.largest / math.sqrt(2 * k)
    least = 0.01 * first if t_min is None else t_min / problem.unit
    found = []
    t = alpha * first
    while t > least and t > 0:
        found.append(t)
        t *= alpha
    return found


def random_start(problem: Problem, k: int, rng: np.random.Generator, size: float = 0.5) -> Array:
    """Return normal positions, drawn by rank 0; (n, k)."""
    drawn = rng.standard_normal((problem.n, k)) * size if problem.comm.rank == 0 else None
    return drawn if problem.comm.size == 1 and drawn is not None else problem.comm.bcast(drawn, root=0)


def spread_out(problem: Problem, start: Array, squares: float) -> Array:
    """Return `start`, moved off the point, line or plane in which its points lie, if leaving it can improve them;
    collective.

    B(Z) Z has no coordinate that Z does not have, so SMACOF would never leave it. The moves are deterministic, and grow
    with the error of the distances.
    """
    n, k = start.shape
    flat: Array | None = None
    if problem.comm.rank == 0:
        centred = start - totals(start) / n
        # Squares of distant positions must not overflow; and differences that float32 cannot represent in the unit
        # carry no shape.
        size = max(float(np.abs(centred).max()), 1e-15)
        squared, directions = np.linalg.eigh((centred / size).T @ (centred / size))
        reach = np.sqrt(np.maximum(squared, 0.0))
        without = reach <= max(_FLAT * reach[-1], 1e-15 / size)
        if k - without.sum() < min(k, n - 1):
            flat = directions[:, without]
    if problem.comm.size > 1:
        flat = problem.comm.bcast(flat, root=0)
    if flat is None or squares == 0:
        return start
    stress = _Passes(problem, k).guttman(start - totals(start) / n)[1]
    if stress <= _ROUNDING * squares:
        return start
    moves = random_start(problem, k, np.random.default_rng(0), 0.5 * math.sqrt(stress / squares))
    moved: Array = start + moves @ flat @ flat.T
    # Products of matrices may be rounded differently on another processor.
    return moved if problem.comm.size == 1 else problem.comm.bcast(moved, root=0)


def smacof(
    problem: Problem,
    start: Array,
    *,
    squares: float,
    max_iter: int,
    tol: float,
    falling: list[float],
    acceleration: int,
    rng: np.random.Generator,
    report: Callable[[Iteration], None],
) -> Result:
    """Iterate from `start` at each temperature of `falling` and then at 0, until the relative decrease of the stress is
    below `tol` or `max_iter` is reached.

    Parameters
    ----------
    start : ndarray of shape (n, k), in the problem's unit
    squares : float
        The `sum_of_squares`.
    max_iter : int
        Maximum number of iterations at each temperature.
    acceleration : int
        Number of past iterations that the acceleration uses; 0 for none.
    rng : Generator
        For the jitter of annealing; that of rank 0 is used.
    report : callable
        Called with each iteration, on every rank.
    """
    k = start.shape[1]
    passes = _Passes(problem, k)
    weights = problem.weights.columns
    centre = totals(start) / problem.n if weights is None else totals(weights[:, None] * start) / passes.mass
    z = start - centre
    scale = problem.unit**2 * problem.weights.unit
    floor = _ROUNDING * squares
    result = Result(z, 0.0)
    anderson = Anderson(acceleration) if acceleration else None
    levels = [*falling, 0.0]
    for level, temperature in enumerate(levels):
        if result.iterations:
            # Points that coincide would stay together forever.
            z = z + random_start(problem, k, rng, _JITTER) if falling else z
        shift = temperature * math.sqrt(2 * k)
        b, stress = passes.guttman(z, shift)
        if anderson is not None:
            anderson.forget()
        for step in range(1, max_iter + 1):
            converged = stress <= floor and bool(result.iterations)
            if converged:
                break
            before, image = stress, passes.solve(b, z)
            moved = None if anderson is None else anderson.extrapolate(z, image)
            if moved is not None:
                b, after = passes.guttman(moved, shift)
            if moved is None or not after < before:
                # The plain majorization step, which never increases the stress.
                if moved is not None and anderson is not None:
                    anderson.forget()
                moved = image
                b, after = passes.guttman(moved, shift)
            if after < before:
                z, stress = moved, after
            # Only rounding is left, since majorization never increases the stress: keep the better positions, and end.
            result.iterations += 1
            result.stresses.append(stress * scale)
            result.temperatures.append(temperature * problem.unit)
            part = (level + step / max_iter) / len(levels)
            report(Iteration(result.iterations, stress * scale, temperature * problem.unit, part))
            converged = before - stress <= tol * before
            if converged:
                break
        result.stress, result.converged = stress, converged
    result.positions = z
    result.conjugate_gradients = passes.steps
    return result


# --- new points ------------------------------------------------------------------------------------------------------
def interpolate(
    pool: native.KernelPool,
    cells: native.MdsDistances,
    positions: Array,
    distances: Array,
    weights: Array,
    *,
    weighted: bool,
    max_iter: int,
    tol: float,
) -> Array:
    """Return the best positions of new points among others that do not move (12): (q, k), in the unit of `positions`
    (n, k).

    Each new point minimizes its own weighted stress by majorization, from two starts: the position of its nearest
    neighbor, and the point where the distances would intersect if they were exact; if the other points lie in a plane,
    on a line or at one point, also from a point off it. The best result is kept.

    Parameters
    ----------
    cells, distances
        The distances (q, n) of the new points, as the kernels store them and as numbers.
    weights : ndarray of shape (n,) or (q, n)
    weighted : bool
        Whether `cells` contain the weights.
    """
    masses = np.broadcast_to(weights, distances.shape).sum(axis=1)
    nearest = positions[np.where(weights > 0, distances, np.inf).argmin(axis=1)]
    best: Array | None = None
    stresses = np.empty(0)
    columns = None if weighted else np.ascontiguousarray(weights)
    means = (weights @ positions) / masses[:, None]
    meeting = _intersection(positions, distances, weights)
    for start in (nearest, meeting, *_off_hull(meeting, positions, distances, weights)):
        z, ends = _majorize(pool, cells, positions, columns, start, means, masses, max_iter, tol)
        if best is None:
            best, stresses = z, ends
        else:
            better = ends < stresses
            best[better] = z[better]
    assert best is not None, "there are starts"
    return best


def _majorize(
    pool: native.KernelPool,
    cells: native.MdsDistances,
    positions: Array,
    columns: Array | None,
    start: Array,
    means: Array,
    masses: Array,
    max_iter: int,
    tol: float,
) -> tuple[Array, Array]:
    """Return each row's positions and stress after iterating (13) until none moves by more than `tol` of its root mean
    squared error.
    """
    z = np.ascontiguousarray(start)
    out = np.empty((len(z), z.shape[1] + 1))
    cells.guttman(pool, z, positions, columns, 0.0, out)
    for _ in range(max_iter):
        stress = out[:, -1].copy()
        moved = means + out[:, :-1] / masses[:, None]
        cells.guttman(pool, moved, positions, columns, 0.0, out)
        # Rounding must not undo the gains of iterations.
        better = out[:, -1] <= stress
        z = np.where(better[:, None], moved, z)
        if not (stress - out[:, -1] > tol * stress).any():
            return z, np.minimum(stress, out[:, -1])
    return z, out[:, -1]


def _intersection(positions: Array, distances: Array, weights: Array) -> Array:
    """Return where |x - x_j|^2 = delta_j^2 would hold, as equations linear in x and |x|^2, by weighted least squares;
    (q, k) (Gower, 1968).
    """
    k = positions.shape[1]
    squares = np.einsum("nk,nk->n", positions, positions)
    rows = np.concatenate([2 * positions, -np.ones((len(positions), 1))], axis=1)
    products = np.einsum("na,nb->nab", rows, rows).reshape(len(rows), -1)
    normal = (weights @ products).reshape(-1, k + 1, k + 1)
    right = (weights * (squares - distances**2)) @ rows
    solved: Array = np.einsum("qab,qb->qa", np.linalg.pinv(normal, rcond=1e-9, hermitian=True), right)
    return solved[:, :k]


def _off_hull(meeting: Array, positions: Array, distances: Array, weights: Array) -> list[Array]:
    """Return another start if for some rows the x_j with weight lie in a plane, on a line or at one point, which
    neither majorization nor the equations of `_intersection` leave: these rows of `meeting`, moved off it by the
    remainder of the squared distances.
    """
    lifted = None
    everything = np.broadcast_to(weights, distances.shape)
    hull: tuple[Array, Array, Array] | None = None
    for row, weight in enumerate(everything):
        if hull is None or weights.ndim == 2:
            centre = weight @ positions / weight.sum()
            away = positions - centre
            hull = (centre, *np.linalg.eigh((weight[:, None] * away).T @ away))
        centre, reach, directions = hull
        into = reach > _PLANE * reach[-1]
        if into.all():
            continue
        lifted = meeting.copy() if lifted is None else lifted
        inside = centre + directions[:, into] @ (directions[:, into].T @ (meeting[row] - centre))
        left = weight @ (distances[row] ** 2 - ((inside - positions) ** 2).sum(axis=1)) / weight.sum()
        lifted[row] = inside + math.sqrt(max(0.0, left)) * directions[:, 0]
    return [] if lifted is None else [lifted]
