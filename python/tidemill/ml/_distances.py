"""Distances from one rank's points to all points: checked, stored for the kernels, and compared across the diagonal.

Invalid input is rejected on every rank, and the error names the cell. Input is read in blocks of rows, so that it may
be a file that is larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._estimator import matrix
from tidemill.ml._job import Comm, collective_try

__all__ = [
    "ROUNDING",
    "SQUARED_MAX",
    "Array",
    "Computed",
    "Metric",
    "Problem",
    "Rows",
    "Weights",
    "from_table",
    "from_vectors",
    "gather",
    "rows_of",
    "table",
    "weights_of",
]

Array = NDArray[np.float64]

#: Above this, squares or sums of many may overflow float64.
SQUARED_MAX = 1e150

#: Bytes of the blocks that input is read in, and that ranks exchange.
_BLOCK_BYTES = 8 << 20

#: Tolerance, as a fraction of the largest distance, for the asymmetry of a pair and for nonzero diagonal elements: the
#: rounding error of distances computed from large squares, in float32 and in float64.
ROUNDING = 1e-4
_ROUNDING_FLOAT64 = 1e-6
#: The same for weights, relative to the largest.
_WEIGHTS_TOLERANCE = 1e-4


class Rows:
    """Rows of any object that can be sliced like an array, in blocks of float32 or float64."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.shape: tuple[int, int] = (int(source.shape[0]), int(source.shape[1]))
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if source.dtype in (np.float16, np.float32) else np.float64)

    def block(self, first: int, last: int, dtype: Any = None) -> NDArray[Any]:
        """Return some rows, C-contiguous."""
        return np.ascontiguousarray(self.source[first:last], dtype=dtype or self.dtype)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Return the blocks to read, as ranges of rows."""
        step = max(1, _BLOCK_BYTES // (8 * max(1, self.shape[1])))
        for first in range(0, self.shape[0], step):
            yield first, min(first + step, self.shape[0])


#: Returns distances (m, n) between the rows of two arrays (m, d) and (n, d), float64; like
#: ``scipy.spatial.distance.cdist``.
Metric = Callable[[Array, Array], Any]


class Computed:
    """Distances between rows by a user function, computed on each read; can be sliced like an array."""

    dtype = np.dtype(np.float64)

    def __init__(self, metric: Metric, x: Array, points: Array) -> None:
        self.metric, self.x, self.points = metric, x, points
        self.shape = (len(x), len(points))

    def __getitem__(self, rows: slice) -> Array:
        part = self.x[rows]
        made = np.asarray(self.metric(part, self.points), dtype=np.float64)
        wanted = (len(part), len(self.points))
        if made.shape != wanted:
            raise ValueError(
                f"metric returned shape {made.shape} for arrays of shape {part.shape} and {self.points.shape}: it gets two arrays of rows, "
                f"and returns the distances of each row of one from each of the other, {wanted}"
            )
        return made


def rows_of(x: Any, estimator: str, empty_allowed: bool) -> tuple[Rows, NDArray[np.object_] | None]:
    """Return `x` as rows, and its column names. Arrays, memory maps and objects that can be sliced like them are not
    copied.

    Raises
    ------
    ValueError, TypeError
        With scikit-learn's messages, for anything that is not a matrix of real numbers.
    """
    lazy = not isinstance(x, np.ndarray) and hasattr(x, "dtype") and hasattr(x, "__getitem__")
    lazy = lazy and not any(hasattr(x, name) for name in ("columns", "toarray", "__array_function__"))
    plain = type(x) in (np.ndarray, np.memmap) or lazy
    if plain and len(getattr(x, "shape", ())) == 2 and np.dtype(x.dtype).kind in "fiub" and 0 not in x.shape:
        return Rows(x), None
    array, names = matrix(x, estimator, empty_allowed)
    return Rows(array), names


@dataclass(frozen=True)
class Weights:
    """Weight of each pair: ``u_i u_j`` (`columns`, (n,), the largest 1), or rows of a matrix, in units of `unit`."""

    columns: Array | None
    rows: Rows | None
    #: The user's value of a weight of 1 in the kernels.
    unit: float
    #: How the kernels store the weights of a matrix.
    storage: str = "float32"


@dataclass
class Problem:
    """Distances and weights as the kernels store them, and the position of this rank's rows among all."""

    comm: Comm
    pool: native.KernelPool
    cells: native.MdsDistances
    #: The number of rows of each rank.
    counts: list[int]
    weights: Weights
    #: The user's value of a distance of 1 in the kernels.
    unit: float
    #: The largest distance, or an upper bound for vectors, in units of `unit`.
    largest: float

    def find_largest(self) -> None:
        """Find the largest distance if only a bound is known; collective."""
        mine, n = self.counts[self.comm.rank], self.n
        step = max(1, _BLOCK_BYTES // (4 * n))
        blocks = (self.cells.block(False, (at, min(at + step, mine)), (0, n)) for at in range(0, mine, step))
        largest = max((float(block.max()) for block in blocks), default=0.0)
        self.largest = max(collective_try(self.comm, lambda: largest))

    @property
    def n(self) -> int:
        """Number of points."""
        return sum(self.counts)

    @property
    def own(self) -> slice:
        """The range of this rank's rows among all."""
        first = sum(self.counts[: self.comm.rank])
        return slice(first, first + self.counts[self.comm.rank])

    def gather(self, local: Array) -> Array:
        """Return the rows of all ranks, (n, c), from those of each; collective."""
        return gather(self.comm, local, self.counts)


def gather(comm: Comm, local: NDArray[Any], counts: list[int]) -> NDArray[Any]:
    """Return the rows of all ranks, in order; collective."""
    if comm.size == 1:
        return local
    width = local.shape[1]
    out = np.empty((sum(counts), width), local.dtype)
    comm.Allgatherv(np.ascontiguousarray(local), [out, [count * width for count in counts]])
    return out


# --- reading ---------------------------------------------------------------------------------------------------------
def weights_of(comm: Comm, pool: native.KernelPool, given: Any, counts: list[int], storage: str) -> Weights:
    """Return the user's weights: None, a vector for all or for this rank's points, or rows of a matrix. Collective.

    Raises
    ------
    ValueError
        On every rank: for shapes that do not match, invalid weights, or weights that are all zero.
    """
    n, m = sum(counts), counts[comm.rank]
    first = sum(counts[: comm.rank])

    def check() -> tuple[str, Any]:
        if given is None:
            return "none", None
        if (hasattr(given, "shape") and len(given.shape) == 2) or np.ndim(given) == 2:
            rows, _ = rows_of(given, "MDS", empty_allowed=True)
            if rows.shape != (m, n) and m > 0:
                raise ValueError(f"weights must have the shape of this rank's distances, {(m, n)}, not {rows.shape}.")
            largest = 0.0
            for begin, end in rows.ranges() if m else ():
                found, bad, _ = native.mds_inspect(pool, rows.block(begin, end), None, None, None)
                if bad is not None:
                    row, column, why = bad
                    raise ValueError(f"The weight of points {first + begin + row} and {column} is {why}.")
                largest = max(largest, found)
            return "matrix", largest
        vector = np.asarray(given, dtype=np.float64)
        if vector.shape not in ((n,), (m,)):
            raise ValueError(
                f"weights must be one number for each of the {n} points or of this rank's {m}, or a matrix of shape "
                f"{(m, n)}; they have shape {vector.shape}."
            )
        own = vector[first : first + m] if vector.shape == (n,) else vector
        bad_rows = np.flatnonzero(~(np.isfinite(own) & (own >= 0)))
        if len(bad_rows):
            row = int(bad_rows[0])
            raise ValueError(f"The weight of point {first + row} is {own[row]}: it must be finite and not negative.")
        return "vector", own

    everyone = collective_try(comm, check)
    kinds = {kind for (kind, _), count in zip(everyone, counts, strict=True) if count}
    if len(kinds) > 1:
        raise ValueError(f"The ranks disagree on what weights are: {[kind for kind, _ in everyone]}.")
    kind = kinds.pop()
    if kind == "none":
        return Weights(np.ones(n), None, 1.0)
    if kind == "vector":
        columns = np.concatenate([own for (_, own), count in zip(everyone, counts, strict=True) if count])
        largest = float(columns.max())
    else:
        largest = max(largest for (kind, largest), count in zip(everyone, counts, strict=True) if count)
    if not largest > 0 and n > 1:
        raise ValueError("All weights are zero: at least one pair of points must count.")
    if kind == "matrix":
        rows, _ = rows_of(given, "MDS", empty_allowed=True)
        return Weights(None, rows, largest or 1.0, storage)
    if not largest < SQUARED_MAX:
        raise ValueError(
            f"Weights are too large, up to {largest:.6g}: their products overflow float64. Only their ratios count."
        )
    # With the precision of the kernels.
    return Weights((columns / (largest or 1.0)).astype(np.float32).astype(np.float64), None, (largest or 1.0) ** 2)


def table(
    rows: Rows, pool: native.KernelPool, first: int | None, weights: Weights, at: int = 0, rounding: float = ROUNDING
) -> float:
    """Check all distances and return the largest. `first` is the column number of row 0, `at` the number of row 0 in
    messages.

    Raises
    ------
    ValueError
        Naming the first pair whose distance is negative, infinite, or NaN although it is not missing, or the first
        nonzero diagonal element.
    """
    largest, off = 0.0, (0.0, 0)
    for begin, end in rows.ranges():
        dtype = rows.dtype if weights.rows is None or weights.rows.dtype == rows.dtype else np.float64
        block = rows.block(begin, end, dtype)
        beside = None if weights.rows is None else weights.rows.block(begin, end, dtype)
        diagonal = None if first is None else first + begin
        found, bad, own = native.mds_inspect(pool, block, diagonal, beside, weights.columns)
        if bad is not None:
            row, column, why = bad
            remedy = {
                "NaN": "Where a distance is missing, give it weight 0.",
                "infinite": "Where a distance is unknown, give NaN and weight 0. Input X contains infinity.",
                "negative": "Negative values in data are not distances: convert similarities to distances first.",
            }[why]
            if why == "negative" and block[row, column] >= -rounding * np.nanmax(np.abs(block)):
                remedy = "That is rounding: np.maximum(X, 0) takes it away."
            raise ValueError(
                f"The distance of point {at + begin + row} to point {column} is {why} "
                f"(row {begin + row}, column {column} of X). {remedy}"
            )
        if own is not None and own[0] > off[0]:
            off = (own[0], begin + own[1])
        largest = max(largest, found)
    if off[0] > rounding * largest:
        raise ValueError(
            f"The distance of point {at + off[1]} to itself is {off[0]:.6g}, not 0: X must hold distances, not similarities."
        )
    return largest


def from_table(
    comm: Comm,
    pool: native.KernelPool,
    rows: Rows,
    counts: list[int],
    weights: Weights,
    storage: str,
    rounding: float | None = None,
) -> Problem:
    """Store this rank's rows of a distance matrix; collective. `rounding`: see `ROUNDING`; by default that of the type.

    Raises
    ------
    ValueError
        On every rank: for invalid distances, an asymmetric matrix, or too few distances to connect all points.
    """
    first = sum(counts[: comm.rank])

    # Distances of one rank are compared with another's.
    if rounding is None:
        rounding = max(
            collective_try(
                comm, lambda: ROUNDING if rows.dtype == np.float32 and counts[comm.rank] else _ROUNDING_FLOAT64
            )
        )

    def look() -> float:
        found = table(rows, pool, first, weights, first, rounding)
        if not found < SQUARED_MAX:
            raise ValueError(
                f"Distances in X are too large, up to {found:.6g}: their squares overflow float64. Give them in a larger unit."
            )
        return found

    largest = max(collective_try(comm, look))
    unit = unit_of(largest, storage)

    def keep() -> native.MdsDistances:
        cells = native.MdsDistances(counts[comm.rank], sum(counts), first, storage)
        fill(cells, pool, rows, weights, unit)
        return cells

    return _checked(Problem(comm, pool, _here(comm, keep), counts, weights, unit, largest / unit), storage, rounding)


def from_vectors(
    comm: Comm, pool: native.KernelPool, x: NDArray[np.float32], counts: list[int], weights: Weights, unit: float
) -> tuple[Problem, NDArray[np.float32]]:
    """Return distances between vectors, centered and in units of `unit`, of this rank and all; and the vectors of all.
    Collective.
    """
    first = sum(counts[: comm.rank])
    columns = gather(comm, x, counts)

    def keep() -> native.MdsDistances:
        cells = native.MdsDistances.of_vectors(x, columns, first)
        fill(cells, pool, None, weights, unit)
        return cells

    return _checked(Problem(comm, pool, _here(comm, keep), counts, weights, unit, 1.0)), columns


def unit_of(largest: float, storage: str) -> float:
    """Return the unit in which no distance exceeds 1: a power of two, which causes no rounding; for fixed point, the
    largest distance.
    """
    if not largest > 0:
        return 1.0
    return largest if storage == "fixed16" else 2.0 ** math.ceil(math.log2(largest))


def fill(cells: native.MdsDistances, pool: native.KernelPool, rows: Rows | None, weights: Weights, unit: float) -> None:
    """Fill `cells` with distances and weights, block by block."""
    if rows is not None:
        for begin, end in rows.ranges():
            cells.fill(pool, begin, rows.block(begin, end), unit)
    if weights.rows is not None:
        cells.make_weights(weights.storage)
        for begin, end in weights.rows.ranges():
            cells.weigh(pool, begin, weights.rows.block(begin, end), weights.unit)


def _here(comm: Comm, work: Callable[[], native.MdsDistances]) -> native.MdsDistances:
    """Return the result of `work` on this rank; if it fails on one, every rank raises."""
    mine: list[native.MdsDistances] = []
    collective_try(comm, lambda: mine.append(work()))
    return mine[0]


# --- checks that involve all ranks -----------------------------------------------------------------------------------
def _checked(problem: Problem, storage: str | None = None, rounding: float = ROUNDING) -> Problem:
    # The distance by which rounding can separate two almost equal numbers.
    steps = {"float32": 0.0, "float16": 2.0**-11, "fixed16": 1.0 / 65535}
    if storage is not None:
        _check_symmetry(problem, weights=False, tolerance=rounding * problem.largest + steps[storage])
    if problem.weights.rows is not None:
        _check_symmetry(problem, weights=True, tolerance=_WEIGHTS_TOLERANCE + steps[problem.weights.storage])
        _check_connected(problem)
    return problem


def _check_symmetry(problem: Problem, weights: bool, tolerance: float) -> None:
    """Raise on every rank unless each pair has the same distance, or weight, in both directions.

    Each pair of ranks exchanges its parts of each other's points, in pieces: rank r sends to r + s what r + s compares,
    for each distance s halfway around the ring.
    """
    comm, cells, counts = problem.comm, problem.cells, problem.counts
    starts = np.concatenate([[0], np.cumsum(counts)])
    mine = counts[comm.rank]
    found: tuple[int, int, float, float] | None = None
    widest = max(1, max(counts))
    step = max(1, _BLOCK_BYTES // (4 * widest))

    def compare(other: int, begin: int, theirs: NDArray[np.float32]) -> None:
        nonlocal found
        at = int(starts[other]) + begin
        different = cells.first_difference(problem.pool, weights, (at, at + len(theirs)), theirs, tolerance)
        if different is not None and found is None:
            row, column, value, across = different
            found = (int(starts[comm.rank]) + row, column, value, across)

    for begin in range(0, mine, step):
        end = min(begin + step, mine)
        here = int(starts[comm.rank])
        compare(comm.rank, begin, cells.block(weights, (begin, end), (here, here + mine)))
    for distance in range(1, comm.size // 2 + 1):
        to, source = (comm.rank + distance) % comm.size, (comm.rank - distance) % comm.size
        # All ranks make the same number of steps; shorter parts send empty messages at the end.
        for begin in range(0, widest, step):
            sent = (min(begin, mine), min(begin + step, mine))
            part = cells.block(weights, sent, (int(starts[to]), int(starts[to + 1])))
            rows = max(0, min(begin + step, counts[source]) - begin)
            theirs = np.empty((rows, mine), np.float32)
            comm.Sendrecv(part, to, 0, theirs, source, 0)
            if theirs.size:
                compare(source, begin, theirs)

    def check() -> None:
        if found is None:
            return
        i, j, value, across = found
        unit = problem.weights.unit if weights else problem.unit
        what, given = ("weight", "weights") if weights else ("distance", "X")
        raise ValueError(
            f"The {what} of point {i} to point {j} is {value * unit:.6g}, but that of point {j} to point {i} is "
            f"{across * unit:.6g}: {given} must be symmetric. Take the mean of both, or give {'0' if weights else 'weight 0'} to what is unknown."
        )

    collective_try(comm, check)


def _check_connected(problem: Problem) -> None:
    """Raise on every rank unless weights connect all points: otherwise parts could be anywhere."""
    comm = problem.comm
    parents: NDArray[np.uint32] = problem.cells.components()
    for other in comm.allgather(parents) if comm.size > 1 else ():
        # Merge two partitions: each point belongs to one part in each.
        parents = _join(parents, other)
    parts = np.unique(parents)
    if len(parts) <= 1:
        return
    smallest = min(parts, key=lambda part: int((parents == part).sum()))
    points = np.flatnonzero(parents == smallest)
    names = ", ".join(str(point) for point in points[:5]) + (", ..." if len(points) > 5 else "")
    raise ValueError(
        f"The weights leave {len(parts)} groups of points without any distance between them, the smallest of {len(points)} "
        f"point(s): {names}. They could lie anywhere: give a distance between the groups a weight, or embed each by itself."
    )


def _join(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the finest partition that is coarser than both; each maps every point to the first of its part."""
    while True:
        joined = a.copy()
        # The minimum part over the points of each part of `b`, and vice versa, until nothing changes.
        np.minimum.at(joined, b, a)
        joined = np.minimum(joined[b], a)
        least = np.arange(len(a), dtype=a.dtype)
        np.minimum.at(least, a, joined)
        joined = least[a]
        if (joined == a).all():
            return joined
        a = joined
