"""A panel: values of many series at common times, the same on every worker; and the segments that windows cut from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.series._read import SeriesError
from tidemill.series._windows import Window, label

__all__ = ["Panel", "Segment", "check_missing", "fill"]

Array = NDArray[np.float64]


@dataclass
class Panel:
    """Values of many series at common times; the same on every worker.

    Memory is 8 bytes for each time and series on every worker, twice that with `caps`: workers share only reading,
    cleaning and pivoting, since windows overlap so much that sending their data would cost more than it saves.

    Attributes
    ----------
    times : ndarray of shape (T,)
        Increasing; ``datetime64[us]``, or int64 if times are integers.
    ids : ndarray of shape (n,) of str
        Sorted.
    values : ndarray of shape (T, n)
        NaN for missing values.
    caps : ndarray of shape (T, n) or None
        Basis of weights: the column of capital, else price x shares outstanding, else price x volume; NaN if unknown.
        None if there is none of these.
    caps_name : str, default="capital"
        Display name of `caps`; ``"traded value"`` for a cleaned panel in which they are price x volume.
    """

    times: NDArray[Any]
    ids: NDArray[np.str_]
    values: Array
    caps: Array | None = None
    caps_name: str = "capital"

    def __post_init__(self) -> None:
        # Lists are accepted, too, and dates as strings.
        self.times, self.ids = np.asarray(self.times), np.asarray(self.ids)
        if self.times.dtype.kind in "OU":
            self.times = self.times.astype("datetime64[us]")
        self.values = np.asarray(self.values, dtype=np.float64)
        if self.caps is not None:
            self.caps = np.asarray(self.caps, dtype=np.float64)
        shape = (len(self.times), len(self.ids))
        if self.values.shape != shape or (self.caps is not None and self.caps.shape != shape):
            raise SeriesError(f"values and caps of {shape[0]} times and {shape[1]} ids have shape {shape}")
        if len(self.times) > 1 and not (self.times[1:] > self.times[:-1]).all():
            raise SeriesError("the times of a panel must increase")

    def __repr__(self) -> str:
        if not len(self.times):
            return f"Panel of {len(self.ids)} series without times"
        return f"Panel of {len(self.ids)} series at {len(self.times)} times, {label(self.times[0])} to {label(self.times[-1])}"

    def seen(self, windows: Sequence[Window], missing_max: float = 0.05) -> NDArray[np.bool_]:
        """Return which series are in the segment of each window: (windows, n)."""
        check_missing(missing_max)
        # Missing values up to each time.
        missing = np.zeros((len(self.times) + 1, len(self.ids)), np.int32)
        np.cumsum(np.isnan(self.values), axis=0, out=missing[1:])
        begin, end = (np.array([getattr(one, name) for one in windows], np.intp) for name in ("begin", "end"))
        inside, length = missing[end] - missing[begin], (end - begin)[:, None]
        kept: NDArray[np.bool_] = (inside < length) & (inside <= missing_max * length)
        return kept

    def segment(self, window: Window, missing_max: float = 0.05) -> Segment:
        """Return the segment of a window: the series that have values for most of it, without gaps.

        A gap is filled with the value before it; at the window's beginning, with the first value. Only values of the
        window itself are used, so that a window is the same wherever the panel begins.

        Parameters
        ----------
        window : Window
        missing_max : float, default=0.05
            Series with a larger fraction of missing values in the window are left out.
        """
        check_missing(missing_max)
        part = self.values[window.begin : window.end].T
        missing = np.isnan(part).sum(axis=1)
        seen = missing < part.shape[1]
        kept = np.flatnonzero(seen & (missing <= missing_max * part.shape[1]))
        caps = None
        if self.caps is not None and len(kept):
            shown = self.caps[window.begin : window.end].T[kept]
            known = np.isfinite(shown)
            # The mean of the days on which it is known; weights have a minimum for series without one.
            caps = np.where(known, shown, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        return Segment(
            window=window,
            ids=self.ids[kept],
            index=kept,
            values=fill(part[kept]).T,
            caps=caps,
            filled=int(missing[kept].sum()),
            dropped=int(seen.sum() - len(kept)),
        )


@dataclass
class Segment:
    """The part of a panel in a window; returned by `Panel.segment`.

    Attributes
    ----------
    window : Window
    ids : ndarray of shape (n,) of str
    index : ndarray of shape (n,)
        Their positions among the panel's ids.
    values : ndarray of shape (w, n)
        Without gaps.
    caps : ndarray of shape (n,) or None
        Means over the window.
    filled, dropped : int
        Number of values that were filled in, and of series that were left out although they have values in the window.
    """

    window: Window
    ids: NDArray[np.str_]
    index: NDArray[np.intp]
    values: Array
    caps: Array | None
    filled: int
    dropped: int


def check_missing(missing_max: float) -> None:
    """Raise if this is not a fraction of a window's times."""
    if not 0 <= missing_max < 1:
        raise SeriesError(
            f"--missing (missing_max) is a part of a window's times, from 0 to below 1, not {missing_max:g}"
        )


def fill(rows: Array) -> Array:
    """Fill gaps in rows (n, w), each with at least one value: with the value before, at the beginning with the first
    one.
    """
    gaps = np.isnan(rows).any(axis=1)
    if not gaps.any():
        return rows
    filled: Array = rows.copy()
    # Few series have gaps, and the following is the most expensive part of cutting out a window.
    some = rows[gaps]
    there = ~np.isnan(some)
    # For each position, the last one with a value; before the first of them, the first.
    last = np.maximum.accumulate(np.where(there, np.arange(some.shape[1]), -1), axis=1)
    last = np.where(last < 0, there.argmax(axis=1)[:, None], last)
    filled[gaps] = np.take_along_axis(some, last, axis=1)
    return filled
