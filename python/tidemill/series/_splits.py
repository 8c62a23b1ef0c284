"""Splits of shares: told by a column, or found by their jumps; values before them are divided by the ratio.

Many tables have splits beside prices that are adjusted for them already. So at a split that is told, the value must jump: whether it does is
seen in the two values around it alone, so that rows that come later change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill.series._read import SeriesError
from tidemill.series._windows import label

__all__ = ["Split", "adjust", "detect", "given"]

Array = NDArray[np.float64]

#: Ratios that splits usually have, new shares for an old one; their inverses are reverse splits.
_USUAL = np.array([1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50])
_RATIOS = np.sort(np.concatenate([_USUAL, 1 / _USUAL]))
_LEAST = np.log(1.5) - 0.06
#: A jump is none if it is within so many usual changes of the series.
_BEYOND = 8.0
#: What is left of a jump when the ratio is taken out must be a change as usual: within so many of them.
_WITHIN = 2.0
_WITHIN_MAX = 0.06
#: Changes around a jump that tell what is usual.
_AROUND = 20
#: A split by less than this ratio, up or down, cannot be told from what a value does on any day.
_SEEN = np.log(1.25)


@dataclass(frozen=True)
class Split:
    """Series and place among the times, both numbered from 0, of the first value after a split; new shares for an old one."""

    series: int
    place: int
    ratio: float


def given(
    codes: NDArray[np.int64],
    places: NDArray[np.intp],
    told: Array,
    ids: Sequence[str],
    times: NDArray[Any],
    split_is: Literal["ratio", "added"] = "ratio",
) -> list[Split]:
    """The splits that rows tell of: the first of each series and time. `split_is`: see `Rules`.

    Raises
    ------
    SeriesError
        A ratio that is below 0.
    """
    ratios = told + 1 if split_is == "added" else told
    found: dict[tuple[int, int], float] = {}
    for row in np.flatnonzero(np.isfinite(ratios) & (ratios != 0) & (ratios != 1)).tolist():
        where = (int(codes[row]), int(places[row]))
        if ratios[row] < 0:
            raise SeriesError(
                f"the split of {ids[where[0]]} at {label(times[where[1]])} is {told[row]:g}: it is how many new shares there are for "
                'an old one, such as 2, or 0.1, or with --split-is added (split_is="added") how many were added to it, such as 1, or -0.9; '
                '--splits keep (splits="keep") leaves the column alone'
            )
        found.setdefault(where, float(ratios[row]))
    return [Split(series, place, ratio) for (series, place), ratio in found.items()]


def adjust(values: Array, splits: Sequence[Split], *, look: bool = False) -> list[Split]:
    """Divide the values (series, times) before each split by its ratio, in place.

    With `look`, splits at which the value does not jump are left alone. They are returned.
    """
    flat: list[Split] = []
    for split in sorted(splits, key=lambda one: (one.series, one.place)):
        row = values[split.series]
        if look and not _jumps(row, split):
            flat.append(split)
        else:
            row[: split.place] /= split.ratio
    return flat


def _jumps(row: Array, split: Split) -> bool:
    """Whether the value changes by what the split says rather than not at all; yes where that cannot be seen."""
    before = np.flatnonzero(row[: split.place] > 0)
    jump = -np.log(split.ratio)
    if not len(before) or not row[split.place] > 0 or abs(jump) < _SEEN:
        return True
    change = np.log(row[split.place] / row[before[-1]])
    return bool(abs(change - jump) <= abs(change))


def detect(values: Array, begin: int = 1) -> list[Split]:
    """Find splits by their jumps in values (series, times), at places from `begin` on.

    A jump is a split if it is by a usual ratio, up to what the series does on any day, and far beyond that itself. The
    fall of a share by half, as in a crash, comes in days of large changes, and is rarely as near to a ratio.
    """
    found: list[Split] = []
    for series, row in enumerate(values):
        places = np.flatnonzero(row > 0)
        if len(places) < 3:
            continue
        change = np.diff(np.log(row[places]))
        for jump in np.flatnonzero(np.abs(change) > _LEAST).tolist():
            if places[jump + 1] < begin:
                continue
            around = np.delete(change[max(0, jump - _AROUND) : jump + _AROUND + 1], min(jump, _AROUND))
            # The standard deviation of normal changes with this median of their sizes.
            usual = max(1.4826 * float(np.median(np.abs(around))), 0.002)
            left = change[jump] + np.log(_RATIOS)
            nearest = int(np.abs(left).argmin())
            if abs(change[jump]) > _BEYOND * usual and abs(left[nearest]) < min(_WITHIN * usual, _WITHIN_MAX):
                found.append(Split(series, int(places[jump + 1]), float(_RATIOS[nearest])))
    return found
