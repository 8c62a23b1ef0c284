"""Distances between series in a window, how much each weighs, and series to compare with."""

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

#: What is compared: day-to-day changes of the logarithm, differences, or the values themselves.
Of = Literal["changes", "differences", "values"]
#: L in the distance: 1, or 10 |log(last / first)|.
Length = Literal["one", "log"]
#: ``(values (w, n), rows) -> (len(rows), n)``
Function = Callable[[Array, slice], Array]
Kind = Literal["correlation", "euclidean"] | Function

#: Series to compare with, by name, and the rate a of each: one that rises grows by the factor 1 + a/250 a day, one that falls shrinks by it.
REFERENCES: dict[str, float] = {
    "constant": 0.0,
    "+0.1 a year": 0.1,
    "-0.1 a year": -0.1,
    "+0.2 a year": 0.2,
    "-0.2 a year": -0.2,
}

#: Trading days of a year.
_DAYS_A_YEAR = 250
#: A spread of so many units in the last place of what was compared is rounding: the series is constant.
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

    ``"correlation"``: d_ij = sqrt(L_i^2 + L_j^2 - 2 L_i L_j c_ij), the length of the third side between two of lengths L_i and L_j
    at an angle of which the Pearson correlation c_ij is the cosine. With L = 1 that is sqrt(2 (1 - c)), from 0 to 2.

    Parameters
    ----------
    values : ndarray of shape (w, n)
        Without gaps.
    kind : {"correlation", "euclidean"} or callable, default="correlation"
        ``"euclidean"``: the root of the summed squares of differences. A function gets `values` and `rows`, and returns
        an array (m, n) of numbers from 0 on: the distances of those series to all. It is symmetric, and 0 on the diagonal.
    of : {"changes", "differences", "values"}, default="changes"
        What is compared: log(v_t / v_{t-1}), for which values must be above 0; v_t - v_{t-1}; or v_t. Two series that both rise
        over a window have values that correlate, whatever else they do; that they move together from day to day is
        told by their changes, which show the sectors of a market best.
    length : {"one", "log"}, default="one"
        Of correlation: L_i = 1, or 10 abs(log(last / first)) with the ratio cut to [0.1, 10]: then a series that ends where it began is at the origin.
    rows : slice, optional
        The series whose distances are wanted; default all.

    Returns
    -------
    ndarray of shape (m, n)
        c is 0 between a series that does not change and one that does, and 1 between two that do not.

    Raises
    ------
    SeriesError
        Values that must be above 0 and are not, too few times, or what a function returns has another shape.
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
        # In place: the matrix is the largest thing there is.
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
        raise SeriesError(f"kind is 'correlation', 'euclidean' or a function, not {kind!r}")
    # Nothing is far from itself, but for rounding.
    own = np.arange(values.shape[1])[wanted]
    squared[np.arange(len(own)), own] = 0.0
    apart: Array = np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)
    return apart


def check_length(kind: Kind, length: Length) -> None:
    """Refuse an L that is none, or that would not be used."""
    if length not in ("one", "log"):
        raise SeriesError(f"length is 'one' or 'log', not {length!r}")
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
    raise SeriesError(f"of is 'changes', 'differences' or 'values', not {of!r}")


def _above_zero(values: Array, what: str, remedy: str) -> None:
    if values.size and not values.min() > 0:
        least = int(values.min(axis=0).argmin())
        raise SeriesError(f"{what} needs values above 0, but there is {values.min():g} in series {least}; {remedy}")


def _scale(values: Array, of: Of) -> Array:
    """The size (n,) of the numbers that were rounded before they were compared, on which it depends what a spread of rounding is.

    Changes are differences of logarithms of numbers that were rounded themselves.
    """
    if of == "changes":
        found: Array = 1.0 + np.abs(np.log(values)).max(axis=0)
        return found
    largest: Array = np.abs(values).max(axis=0)
    return largest


def _standard(values: Array, scale: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Columns of mean 0 and length 1, so that products of them are correlations; 0 where a column is constant, and which are.

    A column is constant if it spreads by no more than rounding does in numbers as large as `scale` (n,).
    """
    centred = values - values.mean(axis=0)
    # The mean of large numbers is rounded by more than these differ.
    centred -= centred.mean(axis=0)
    norm = np.sqrt((centred**2).sum(axis=0))
    constant = norm <= _CONSTANT * scale * np.sqrt(len(values))
    centred /= np.where(constant, 1.0, norm)
    centred[:, constant] = 0.0
    return centred, constant


def lengths(values: Array, length: Length) -> Array:
    """L of each series of a window (w, n), as an array (n,); see `distances`."""
    if length == "one":
        return np.ones(values.shape[1])
    if length != "log":
        raise SeriesError(f"length is 'one' or 'log', not {length!r}")
    _above_zero(values[[0, -1]], '--length log (length="log")', '--length one (length="one") takes values of any sign')
    side: Array = 10.0 * np.abs(np.log(np.clip(values[-1] / values[0], 0.1, 10.0)))
    return side


def weights(caps: Array | None, count: int) -> Array:
    """Weigh series by what they are worth: w_i = max(0.05 max M, M_i)^(1/4); the weight of a pair is w_i w_j.

    Parameters
    ----------
    caps : ndarray of shape (n,) or None
        M: capital, or mean traded value; what is not known counts as 0. None: all weigh 1.
    count : int
        n.

    Returns
    -------
    ndarray of shape (n,)
        Scaled so that the least is 1, which changes no embedding.
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
    """Say why the series of `REFERENCES` have no meaning among distances of that kind; None where they have one.

    Correlation with ``of="values"`` tells who rises and falls like an even rise, and ``length="log"`` who ends as far from where it
    began. Euclidean distance with ``of="changes"`` tells who moves little: the references hardly do.
    """
    if callable(kind):
        return "only who wrote the function of distances knows what they mean in it"
    if kind == "euclidean":
        scale = "begin at 1, and Euclidean distance compares values and differences as they are"
        return None if of == "changes" else f"they {scale}"
    if of == "values" or length == "log":
        return None
    return "an even rise has no changes to correlate"


def references(times: NDArray[Any]) -> Array:
    """Make the series of `REFERENCES` along the times of a window: (w, 5), each beginning at 1.

    Each day that has data is one step, and a year has 250: a rise at rate a multiplies by 1 + a/250, and the fall at that rate divides by the
    same, so the two mirror each other in logarithms. Weekends and holidays are no steps. The times of days that have several share the
    steps evenly; where times are numbers, each is a step.
    """
    days = len(np.unique(times.astype("datetime64[D]"))) if times.dtype.kind == "M" else len(times)
    # Even steps: a series that moved only at the first time of a day would correlate with whatever else does.
    steps = np.arange(len(times)) * (days / max(1, len(times)))
    rates = np.array(list(REFERENCES.values()))
    factors = (1.0 + np.abs(rates) / _DAYS_A_YEAR) ** np.sign(rates)
    grown: Array = factors ** steps[:, None]
    return grown
