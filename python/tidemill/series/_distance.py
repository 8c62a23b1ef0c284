"""Distances between series in a window, weights of series, and reference series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill.series._read import SeriesError

__all__ = [
    "REFERENCES",
    "Kind",
    "Length",
    "Of",
    "check_length",
    "distances",
    "lengths",
    "references",
    "weights",
    "why_no_references",
]

Array = NDArray[np.float64]

#: Quantity to compare: changes of the logarithm from one time to the next, differences, or the values themselves.
Of = Literal["changes", "differences", "values"]
#: L in the distance: 1, or 10 |log(last / first)|.
Length = Literal["one", "log"]
#: ``(values (w, n), rows) -> (len(rows), n)``
Function = Callable[[Array, slice], Array]
Kind = Literal["correlation", "euclidean"] | Function

#: Reference series by name, with the rate a of each: a rising one grows by the factor 1 + a/250 per day, a falling one
#: shrinks by it.
REFERENCES: dict[str, float] = {
    "constant": 0.0,
    "+0.1 a year": 0.1,
    "-0.1 a year": -0.1,
    "+0.2 a year": 0.2,
    "-0.2 a year": -0.2,
}

#: Trading days of a year.
_DAYS_A_YEAR = 250
#: If the spread is this many units in the last place of the compared numbers, it is a rounding error, and the series is
#: constant.
_CONSTANT = 8 * np.finfo(np.float64).eps


def distances(
    values: Array,
    *,
    kind: Kind = "correlation",
    of: Of = "changes",
    length: Length = "one",
    rows: slice | None = None,
) -> Array:
    """Compute distances between series in a window.

    ``"correlation"``: d_ij = sqrt(L_i^2 + L_j^2 - 2 L_i L_j c_ij), the third side of a triangle with sides L_i and L_j
    and an angle whose cosine is the Pearson correlation c_ij. With L = 1 that is sqrt(2 (1 - c)), from 0 to 2.

    Parameters
    ----------
    values : ndarray of shape (w, n)
        Without gaps.
    kind : {"correlation", "euclidean"} or callable, default="correlation"
        ``"euclidean"``: the root of the sum of squared differences. A function takes `values` and `rows`, and returns
        an array (m, n) of nonnegative numbers: the distances of those series to all. It must be symmetric, and 0 on the
        diagonal.
    of : {"changes", "differences", "values"}, default="changes"
        Quantity to compare: log(v_t / v_{t-1}), for which values must be above 0; v_t - v_{t-1}; or v_t. The values of
        any two series that rise over a window correlate; changes measure whether they move together from day to day,
        and show the sectors of a market best.
    length : {"one", "log"}, default="one"
        For correlation: L_i = 1, or 10 abs(log(last / first)) with the ratio clipped to [0.1, 10], which puts a series
        that ends where it began at the origin.
    rows : slice, optional
        The series whose distances to compute; by default all.

    Returns
    -------
    ndarray of shape (m, n)
        c is 0 between a constant series and one that changes, and 1 between two constant ones.

    Raises
    ------
    SeriesError
        If values are not above 0 but must be, there are too few times, or a function returns an array of another shape.
    """
    check_length(kind, length)
    wanted = rows if rows is not None else slice(0, values.shape[1])
    if callable(kind):
        made = np.asarray(kind(values, wanted), dtype=np.float64)
        shape = (len(range(values.shape[1])[wanted]), values.shape[1])
        if made.shape != shape:
            raise SeriesError(f"the function of distances returned an array of shape {made.shape}, not {shape}")
        if not (made >= 0).all():
            raise SeriesError("the function of distances returned numbers that are below 0 or not a number")
        return made
    compared = _compared(values, of)
    if not len(compared):
        raise SeriesError(f"a window of {len(values)} times has no {of} to compare; choose a longer one")
    if kind == "euclidean":
        squares = (compared**2).sum(axis=0)
        squared = compared[:, wanted].T @ compared
        squared *= -2.0
        squared += squares[wanted, None]
        squared += squares
    elif kind == "correlation":
        unit, constant = _standard(compared, _scale(values, of))
        squared = unit[:, wanted].T @ unit
        if constant.any():
            squared[np.ix_(constant[wanted], constant)] = 1.0
        # In place, because the matrix is the largest object.
        if length == "one":
            squared *= -2.0
            squared += 2.0
        else:
            side = lengths(values, length)
            squared *= -2.0 * side[wanted, None]
            squared *= side
            squared += side[wanted, None] ** 2
            squared += side**2
    else:
        raise SeriesError(f"kind must be 'correlation', 'euclidean' or a function, not {kind!r}")
    # The distance of a series to itself is 0, except for rounding.
    own = np.arange(values.shape[1])[wanted]
    squared[np.arange(len(own)), own] = 0.0
    apart: Array = np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)
    return apart


def check_length(kind: Kind, length: Length) -> None:
    """Raise if L is unknown, or would have no effect."""
    if length not in ("one", "log"):
        raise SeriesError(f"length must be 'one' or 'log', not {length!r}")
    if length == "log" and kind != "correlation":
        raise SeriesError(
            '--length log (length="log") is of --distance correlation (kind="correlation"); other distances have no such length: leave it out'
        )


def _compared(values: Array, of: Of) -> Array:
    if of == "values":
        return values
    if of == "differences":
        return np.diff(values, axis=0)
    if of == "changes":
        _above_zero(
            values, '--of changes (of="changes")', '--of differences (of="differences") compares values of any sign'
        )
        return np.diff(np.log(values), axis=0)
    raise SeriesError(f"of must be 'changes', 'differences' or 'values', not {of!r}")


def _above_zero(values: Array, what: str, remedy: str) -> None:
    if values.size and not values.min() > 0:
        least = int(values.min(axis=0).argmin())
        raise SeriesError(f"{what} needs values above 0, but there is {values.min():g} in series {least}; {remedy}")


def _scale(values: Array, of: Of) -> Array:
    """Return the magnitude (n,) of the numbers that were rounded before they were compared, which determines their
    rounding error.

    Changes are differences of logarithms of numbers that were rounded themselves.
    """
    if of == "changes":
        found: Array = 1.0 + np.abs(np.log(values)).max(axis=0)
        return found
    largest: Array = np.abs(values).max(axis=0)
    return largest


def _standard(values: Array, scale: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Return columns of mean 0 and length 1, whose products are correlations, 0 for constant columns; and which columns
    are constant.

    A column is constant if its spread is no more than the rounding error of numbers as large as `scale` (n,).
    """
    centred = values - values.mean(axis=0)
    # The mean of large numbers has a rounding error larger than their differences.
    centred -= centred.mean(axis=0)
    norm = np.sqrt((centred**2).sum(axis=0))
    constant = norm <= _CONSTANT * scale * np.sqrt(len(values))
    centred /= np.where(constant, 1.0, norm)
    centred[:, constant] = 0.0
    return centred, constant


def lengths(values: Array, length: Length) -> Array:
    """Return L of each series of a window (w, n), as an array (n,); see `distances`."""
    if length == "one":
        return np.ones(values.shape[1])
    if length != "log":
        raise SeriesError(f"length must be 'one' or 'log', not {length!r}")
    _above_zero(values[[0, -1]], '--length log (length="log")', '--length one (length="one") takes values of any sign')
    side: Array = 10.0 * np.abs(np.log(np.clip(values[-1] / values[0], 0.1, 10.0)))
    return side


def weights(caps: Array | None, count: int) -> Array:
    """Return weights of series by their worth: w_i = max(0.05 max M, M_i)^(1/4); the weight of a pair is w_i w_j.

    Parameters
    ----------
    caps : ndarray of shape (n,) or None
        M: capital, or mean traded value; NaN counts as 0. None: all weights are 1.
    count : int
        n.

    Returns
    -------
    ndarray of shape (n,)
        Scaled so that the minimum is 1, which does not change embeddings.
    """
    if caps is None:
        return np.ones(count)
    worth = np.where(np.isfinite(caps), np.maximum(caps, 0.0), 0.0)
    if not len(worth) or worth.max() == 0:
        return np.ones(count)
    floor = 0.05 * worth.max()
    weight: Array = np.maximum(worth, floor) ** 0.25
    scaled: Array = weight / weight.min()
    return scaled


def why_no_references(kind: Kind, of: Of, length: Length) -> str | None:
    """Return why the series of `REFERENCES` are meaningless for this kind of distances; None if they are meaningful.

    Correlation with ``of="values"`` measures how evenly a series rises and falls, and ``length="log"`` how far it ends
    from its beginning. Euclidean distance with ``of="changes"`` measures how much it moves: the references hardly do.
    """
    if callable(kind):
        return "their meaning in your own distance function is unknown"
    if kind == "euclidean":
        scale = "begin at 1, and Euclidean distance compares values and differences as they are"
        return None if of == "changes" else f"they {scale}"
    if of == "values" or length == "log":
        return None
    return "an even rise has no changes to correlate"


def references(times: NDArray[Any]) -> Array:
    """Return the series of `REFERENCES` along the times of a window: (w, 5), each beginning at 1.

    Each day with data is one step, and a year has 250: a rise at rate a multiplies by 1 + a/250, and the fall at that
    rate divides by the same, so the two mirror each other in logarithms. Weekends and holidays are not steps. If days
    have several times, these divide the step evenly; if times are integers, each is a step.
    """
    days = len(np.unique(times.astype("datetime64[D]"))) if times.dtype.kind == "M" else len(times)
    # Even steps: a series that moved only at the first time of a day would correlate with any other that does.
    steps = np.arange(len(times)) * (days / max(1, len(times)))
    rates = np.array(list(REFERENCES.values()))
    factors = (1.0 + np.abs(rates) / _DAYS_A_YEAR) ** np.sign(rates)
    grown: Array = factors ** steps[:, None]
    return grown
