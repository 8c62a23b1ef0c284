"""Share splits: given by a column, or detected by their jumps; values before them are divided by the ratio.

Many tables have splits beside prices that are already adjusted for them. So at a given split, the value must jump. For
a large split, the two values around it show this. A small one, such as a stock dividend, may be hidden in normal daily
changes; but a table is either adjusted throughout or not at all, so all splits up to that time decide together. Later
rows change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill.series._read import SeriesError
from tidemill.series._windows import label

__all__ = ["Evidence", "Split", "adjust", "detect", "given", "same_factors", "weigh"]

Array = NDArray[np.float64]

#: Usual ratios of splits, as new shares per old one; their inverses are reverse splits.
_USUAL = np.array([1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50])
_RATIOS = np.sort(np.concatenate([_USUAL, 1 / _USUAL]))
_LEAST = np.log(1.5) - 0.06
#: A jump does not count if it is within this many typical changes of the series.
_BEYOND = 8.0
#: After the ratio is removed, the remaining change must be within this many typical ones.
_WITHIN = 2.0
_WITHIN_MAX = 0.06
#: The number of changes around a jump that define the typical change.
_AROUND = 20
#: Two factors of a split agree, except for rounding, if they differ by less than this fraction.
_SAME_FACTOR = 1e-5
#: A split with a smaller ratio, up or down, may look like the normal changes of a value.
_SEEN = np.log(1.25)


@dataclass(frozen=True)
class Split:
    """Series and time index, both numbered from 0, of the first value after a split; and the ratio of new shares to old
    ones.
    """

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
    """Return the splits in rows: the first of each series and time. `split_is`: see `Rules`.

    Raises
    ------
    SeriesError
        If a ratio is below 0.
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


def same_factors(one: Array, other: Array, split_is: Literal["ratio", "added"] = "ratio") -> NDArray[np.bool_]:
    """Return for each row (n,) whether two columns of splits agree. Values that mean no split are equal."""

    def ratios(told: Array) -> Array:
        found = told + 1 if split_is == "added" else told
        plain: Array = np.where(np.isfinite(found) & (found != 0), found, 1.0)
        return plain

    alike: NDArray[np.bool_] = np.isclose(ratios(one), ratios(other), rtol=_SAME_FACTOR, atol=0)
    return alike


def weigh(values: Array, splits: Sequence[Split]) -> list[float]:
    """Return the evidence for each split in the values (series, times), which are not adjusted for it.

    It is the square of the change from the previous value, minus the square of the change that remains without the
    split: above 0 if the value jumps. Larger splits count more, up to a limit. NaN if a value is missing.
    """
    found = []
    for split in splits:
        row = values[split.series]
        before = np.flatnonzero(row[: split.place] > 0)
        if len(before) and row[split.place] > 0:
            change, jump = np.log(row[split.place] / row[before[-1]]), -np.log(split.ratio)
            found.append(float(np.clip(jump * (2 * change - jump), -(_SEEN**2), _SEEN**2)))
        else:
            found.append(float("nan"))
    return found


class Evidence:
    """Combined evidence of a table's splits, up to each time.

    Parameters
    ----------
    parts : iterable of (int, float)
        Time index and result of `weigh`, for all splits of all series.
    before : float
        Evidence of splits at earlier times.
    """

    def __init__(self, parts: Iterable[tuple[int, float]], before: float = 0.0) -> None:
        seen = sorted(part for part in parts if not np.isnan(part[1]))
        self._places = [place for place, _ in seen]
        # In the order of times, so that the sum does not depend on where a growing table was cut.
        self._sums = np.add.accumulate([before, *(part for _, part in seen)])

    @property
    def all(self) -> float:
        """Evidence of all splits."""
        return float(self._sums[-1])

    def up_to(self, place: int) -> float:
        """Return the evidence of all splits at time index `place` or before."""
        return float(self._sums[np.searchsorted(self._places, place, side="right")])

    def flat(self, splits: Sequence[Split], each: Sequence[float]) -> list[Split]:
        """Return the splits at which the value does not jump.

        A large one decides by itself; for a small one, or if a value is missing, all splits of the table up to that
        time decide. Without evidence, it counts as a jump.
        """

        def jumps(split: Split, part: float) -> bool:
            is_clear = abs(np.log(split.ratio)) >= _SEEN and not np.isnan(part)
            return (part if is_clear else self.up_to(split.place)) >= 0

        found = [split for split, part in zip(splits, each, strict=True) if not jumps(split, part)]
        return sorted(found, key=_order)


def adjust(values: Array, splits: Iterable[Split], flat: Iterable[Split] = ()) -> None:
    """Divide the values (series, times) before each split by its ratio, in place; except for splits that are `flat`."""
    for split in sorted({*splits} - {*flat}, key=_order):
        values[split.series, : split.place] /= split.ratio


def _order(split: Split) -> tuple[int, int]:
    return split.series, split.place


def detect(values: Array, begin: int = 1) -> list[Split]:
    """Detect splits by their jumps in values (series, times), at time indices from `begin` on.

    A jump is a split if it has a usual ratio, to within the normal daily changes of the series, and is itself far
    larger than these. The fall of a share by half, as in a crash, comes in days of large changes, and is rarely as
    close to a ratio.
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
            # The standard deviation of normally distributed changes with this median of absolute values.
            usual = max(1.4826 * float(np.median(np.abs(around))), 0.002)
            left = change[jump] + np.log(_RATIOS)
            nearest = int(np.abs(left).argmin())
            if abs(change[jump]) > _BEYOND * usual and abs(left[nearest]) < min(_WITHIN * usual, _WITHIN_MAX):
                found.append(Split(series, int(places[jump + 1]), float(_RATIOS[nearest])))
    return found
