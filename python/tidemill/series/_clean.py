"""Cleaning: rows of a long table become a panel, and every rule counts what it did.

The rules are those of the source work on daily stock prices (Kamburugamuve and others, "TSmap3D: Browser visualization of
high dimensional time series data", 2016): a negative price is the mean of bid and ask, a missing one is that of the day before,
prices are adjusted for splits, of two records of a day the earlier counts.

Workers share the work by series: each reads its part of the rows, sends every row to the worker that has its id, and
cleans the ids that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import tidemill
from tidemill.dataset import skipped_rows
from tidemill.series._panel import Array, Panel
from tidemill.series._read import (
    Columns,
    SeriesError,
    Source,
    open_source,
    read_rows,
    steps_or_dates,
    together,
)
from tidemill.series._splits import Evidence, Split, adjust, detect, given, weigh
from tidemill.series._windows import label

__all__ = ["Report", "Rules", "caps_name", "clean", "pivot"]


@dataclass(frozen=True)
class Rules:
    """How rows are cleaned.

    Parameters
    ----------
    negative : {"absolute", "missing", "keep"}, default="absolute"
        What a value below 0 is: a price that stands for the mean of bid and ask, as in the prices of CRSP, so that its
        absolute value counts; no value; or a value like others. Unless they are kept, a value of 0 is no value either.
    splits : {"column", "detect", "keep"}, default="column"
        Values before a split are divided by its ratio, new shares for an old one: 2 where one share became two. ``"column"``: the
        ratio is in the column ``split`` in the row of the first day at the new price, if there is such a column; 0, 1 or nothing mean
        that there is none. Where the value does not jump by about the ratio, it is adjusted already, and is left alone. ``"detect"``: it is found where a value jumps by a usual ratio, far beyond what the
        series does on other days; the report lists what was found. ``"keep"``: values stay as they are.
    split_is : {"ratio", "added"}, default="ratio"
        What the column ``split`` says: new shares for an old one, or how many were added to each, as FACPR of CRSP does: 1 where one
        share became two, 0.5 where two became three, -0.9 where ten became one; 0, -1 or nothing mean that there is none.
    """

    negative: Literal["absolute", "missing", "keep"] = "absolute"
    splits: Literal["column", "detect", "keep"] = "column"
    split_is: Literal["ratio", "added"] = "ratio"

    def __post_init__(self) -> None:
        if self.negative not in ("absolute", "missing", "keep"):
            raise SeriesError(f"negative is 'absolute', 'missing' or 'keep', not {self.negative!r}")
        if self.splits not in ("column", "detect", "keep"):
            raise SeriesError(f"splits is 'column', 'detect' or 'keep', not {self.splits!r}")
        if self.split_is not in ("ratio", "added"):
            raise SeriesError(f"split_is is 'ratio' or 'added', not {self.split_is!r}")


#: Each rule, and what it did, in the order in which they are applied.
RULES = {
    "unreadable": "rows that cannot be read: left out",
    "without_key": "rows without id or time: left out",
    "negative": "negative values: their absolute value, or missing",
    "missing": "rows without a value: left out",
    "duplicates": "more rows of an id and a time: the earliest counts",
    "duplicates_that_differ": "of these, with another value than the earliest",
    "splits": "splits: values before them divided by the ratio",
    "flat_splits": "splits that were told, but where the value does not jump: left alone",
    "gaps": "times without a value between first and last of an id: filled in windows",
    "late": "rows of times that were over: left out",
}


@dataclass
class Report:
    """What cleaning did; the same on every worker.

    Attributes
    ----------
    columns : dict of str to str
        Which column was what.
    rows, ids, times : int
    first, last : str
        Times.
    counts : dict of str to int
        For each rule how often it did something.
    found : list of (id, time, ratio)
        Splits that were detected.
    flat : list of (id, time, ratio)
        Splits that were told, at which the value does not jump.
    notes : list of str
    """

    columns: dict[str, str]
    rows: int = 0
    ids: int = 0
    times: int = 0
    first: str = ""
    last: str = ""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    found: list[tuple[str, str, float]] = field(default_factory=list)
    flat: list[tuple[str, str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        columns = ", ".join(f"{role} {name!r}" for role, name in self.columns.items())
        lines = [
            f"{self.rows:,} rows of {self.ids:,} ids at {self.times:,} times, {self.first} to {self.last} ({columns})"
        ]
        lines += [f"  {count:>9,}  {RULES[rule]}" for rule, count in self.counts.items() if count]
        for splits, what in ((self.found, ""), (self.flat, ", but no jump")):
            lines += [f"             {name} {time}: {ratio:g} for 1{what}" for name, time, ratio in splits[:5]]
            if len(splits) > 5:
                lines.append(f"             and {len(splits) - 5:,} more, in the report")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def check_splits(self, column: str | None) -> None:
        """Refuse a column of splits that was named, if values do not jump at most of what it tells.

        Raises
        ------
        SeriesError
        """
        if column is None or self.counts["flat_splits"] <= self.counts["splits"]:
            return
        name, time, ratio = self.flat[0]
        raise SeriesError(
            f"values do not jump at {self.counts['flat_splits']:,} of the splits that column {column!r} tells, such as {name} at {time} "
            f"({ratio:g} for 1): the values are adjusted for them already, or the column says something else (--split-is); "
            '--splits keep (splits="keep") leaves the column alone'
        )


def clean(
    source: Source,
    rules: Rules | None = None,
    *,
    id: str | None = None,
    time: str | None = None,
    value: str | None = None,
    cap: str | None = None,
    volume: str | None = None,
    split: str | None = None,
    price: str | None = None,
    delimiter: str | None = None,
    null: str | Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> tuple[Panel, Report]:
    """Read a long table, clean it, and make a panel of it. Collective.

    Parameters
    ----------
    source : path, iterable of paths, DataSet or Arrow table
        With a row for each id and time. Files are CSV (``.gz``, ``.bz2``, ``.xz``, ``.zst`` too), Parquet, Arrow IPC or JSON lines by their
        names; the same on every worker. The earliest of two rows is the first in the file, of several files in that whose path sorts first. Rows
        of a DataSet have the order of its source or of its last `sort`; with other steps than `filter`, `select` and new columns behind that
        they have none, and of different values the least counts.
    rules : Rules, optional
    id, time, value, cap, volume, split, price : str, optional
        Columns; by default found by their usual names. `cap`: what the series is worth, else price x volume, for
        weights; `price`: what was paid for a piece, which is the value, but beside one that is adjusted (such as ``adj_close``) the
        column ``close``. With an adjusted value, a column of splits counts only if it is named here. Times are dates, with or without a time of day, or whole numbers, of which 20161230 is a date if all are such; or texts of these.
    delimiter, null, on_error : optional
        Of CSV, as for `tidemill.read_csv`.

    Returns
    -------
    panel : Panel
    report : Report

    Raises
    ------
    SeriesError, tidemill.DataSetError
        On every worker: what is wrong with the source, and how to name what was not found.
    """
    rules = rules or Rules()
    comm = tidemill.init().comm
    chosen = {"id": id, "time": time, "value": value, "cap": cap, "volume": volume, "split": split, "price": price}
    data, columns = open_source(source, chosen, delimiter=delimiter, null=null, on_error=on_error)
    rows = read_rows(data, columns)
    report = Report(columns.named(), notes=list(columns.notes))
    report.counts["unreadable"] = skipped_rows() if on_error == "skip" else 0
    total = int(comm.allreduce(len(rows.codes)))

    keyed = (rows.codes >= 0) & (rows.places >= 0)
    coded, placed, numbers = rows.codes, rows.places, rows.numbers
    if not keyed.all():
        coded, placed = coded[keyed], placed[keyed]
        numbers = {role: column[keyed] for role, column in numbers.items()}
    order = None if rows.order is None else rows.order[keyed]
    # Ids and times of all workers that have a row, numbered alike everywhere.
    own_ids = [rows.ids[code] for code in np.flatnonzero(np.bincount(coded, minlength=len(rows.ids)))]
    own_times = rows.times[np.flatnonzero(np.bincount(placed, minlength=len(rows.times)))]
    everyone = comm.allgather((own_ids, own_times))
    ids = sorted({name for names, _ in everyone for name in names})
    times = np.unique(np.concatenate([stamps for _, stamps in everyone]))
    if not ids or not len(times):
        raise SeriesError(f"there is no row with id and time among the {total:,} of the source")
    dated = rows.dated
    if not dated:
        dates = steps_or_dates(times)
        if dates is not None:
            # Their order is that of the numbers.
            report.notes.append("times such as 20161230 were taken as dates")
            dated = True
    numbering = {name: number for number, name in enumerate(ids)}
    codes = np.array([numbering.get(name, -1) for name in rows.ids], dtype=np.int64)[coded]
    places = np.searchsorted(times, rows.times)[placed]
    stamps: NDArray[Any] = times
    if dated:
        stamps = (dates if not rows.dated else times).astype("datetime64[us]")  # type: ignore[union-attr]

    owned = np.searchsorted(np.arange(comm.size), np.arange(len(ids)) * comm.size // len(ids))
    begin, end = np.searchsorted(owned, [comm.rank, comm.rank + 1]).tolist()
    codes, places, numbers = _exchange(comm, owned, codes, places, order, numbers)

    def shaped() -> tuple[Array, Array | None, list[Split], dict[str, int]]:
        return pivot(codes - begin, places, numbers, end - begin, len(stamps), rules, ids[begin:end], stamps)

    values, caps, splits, counts = together(comm, shaped)
    if rules.splits == "detect":
        splits = detect(values)
    flat: list[Split] = []
    if rules.splits == "column":
        each = weigh(values, splits)
        parts = comm.allgather([(split.place, part) for split, part in zip(splits, each, strict=True)])
        flat = Evidence(chain.from_iterable(parts)).flat(splits, each)
    adjust(values, splits, flat)
    counts["splits"], counts["flat_splits"] = len(splits) - len(flat), len(flat)
    filled = ~np.isnan(values)
    lives = filled.any(axis=1)
    width = filled.shape[1]
    first, last = filled.argmax(axis=1), width - 1 - filled[:, ::-1].argmax(axis=1)
    counts["gaps"] = int((last - first + 1 - filled.sum(axis=1))[lives].sum())

    for rule, count in zip(counts, comm.allreduce(np.array(list(counts.values()))).tolist(), strict=True):
        report.counts[rule] += count
    report.counts["without_key"] = total - int(comm.allreduce(int(keyed.sum())))

    def listed(own: list[Split]) -> list[tuple[str, str, float]]:
        named = [(ids[begin + one.series], label(stamps[one.place]), one.ratio) for one in own]
        return [split for part in comm.allgather(named) for split in part]

    report.found = listed(splits if rules.splits == "detect" else [])
    report.flat = listed(flat)
    report.check_splits(split)
    if order is None and report.counts["duplicates_that_differ"]:
        report.notes.append(
            "rows of this source have no order: of different values the least counts; .sort(...) gives an order"
        )
    panel = _gathered(comm, stamps, ids, values, caps)
    panel.caps_name = caps_name(columns)
    report.rows, report.ids, report.times = total, len(panel.ids), len(panel.times)
    report.first, report.last = label(panel.times[0]), label(panel.times[-1])
    return panel, report


def _exchange(
    comm: Any,
    owned: NDArray[np.intp],
    codes: NDArray[np.int64],
    places: NDArray[np.intp],
    order: NDArray[np.int64] | None,
    numbers: dict[str, Array],
) -> tuple[NDArray[np.int64], NDArray[np.intp], dict[str, Array]]:
    """Send each row to the worker that has its id; rows come in their order, or if they have none, in that of their values."""
    columns: list[NDArray[Any]] = [codes, places, *([] if order is None else [order]), *numbers.values()]
    if comm.size > 1:
        # Few and small numbers, which are sorted in one pass.
        to = owned.astype(np.uint16)[codes]
        by_owner = np.argsort(to, kind="stable")
        cuts = np.searchsorted(to[by_owner], np.arange(1, comm.size))
        parts = [np.split(column[by_owner], cuts) for column in columns]
        received = comm.alltoall([tuple(part[rank] for part in parts) for rank in range(comm.size)])
        columns = [np.concatenate(column) for column in zip(*received, strict=True)]
    codes, places, *rest = columns
    if order is not None:
        order = rest.pop(0)
        sort = None if (order[1:] > order[:-1]).all() else np.argsort(order)
    else:
        sort = np.lexsort(rest[::-1])
    if sort is not None:
        codes, places, rest = codes[sort], places[sort], [column[sort] for column in rest]
    return codes, places, dict(zip(numbers, rest, strict=True))


def pivot(
    codes: NDArray[np.int64],
    places: NDArray[np.intp],
    numbers: dict[str, Array],
    series: int,
    width: int,
    rules: Rules,
    ids: list[str],
    times: NDArray[Any],
) -> tuple[Array, Array | None, list[Split], dict[str, int]]:
    """Clean rows and put them where they belong.

    Parameters
    ----------
    codes, places : ndarray of shape (n,)
        The series and the time of each row, both numbered from 0.
    numbers : dict of str to ndarray of shape (n,)
    series, width : int
        How many series and times there are.
    ids, times : the series' names and the times, for messages.

    Returns
    -------
    values : ndarray of shape (series, width)
    caps : ndarray of shape (series, width) or None
    splits : list of Split
        Those of the column; values are not adjusted yet.
    counts : dict of str to int
    """
    counts = dict.fromkeys(
        ("negative", "missing", "duplicates", "duplicates_that_differ", "splits", "flat_splits", "gaps"), 0
    )
    value = np.where(np.isfinite(numbers["value"]), numbers["value"], np.nan)
    if rules.negative != "keep":
        below = value < 0
        counts["negative"] = int(below.sum())
        value = np.where(below, -value if rules.negative == "absolute" else np.nan, value)
        value[value == 0] = np.nan
    splits: list[Split] = []
    if "split" in numbers and rules.splits == "column":
        splits = given(codes, places, numbers["split"], ids, times, rules.split_is)
    there = ~np.isnan(value)
    counts["missing"] = int(len(value) - there.sum())
    cap = numbers.get("cap")
    if cap is None and "volume" in numbers:
        cap = np.abs(numbers.get("price", value)) * np.abs(numbers["volume"])
    cells = codes[there] * width + places[there]
    value = value[there]
    # Where a cell comes first: of numbers that are put in one place the last one stays, so the last rows go first.
    first = np.full(series * width, -1)
    first[cells[::-1]] = np.arange(len(cells) - 1, -1, -1)
    filled = np.flatnonzero(first >= 0)
    first = first[filled]
    again = len(cells) - len(first)
    values = np.full(series * width, np.nan)
    values[filled] = value[first]
    if again:
        counts["duplicates"] = again
        counts["duplicates_that_differ"] = int((value != values[cells]).sum())
    caps: Array | None = None
    if cap is not None:
        flat = np.full(series * width, np.nan)
        flat[filled] = cap[there][first]
        caps = flat.reshape(series, width)
    return values.reshape(series, width), caps, splits, counts


def _gathered(comm: Any, stamps: NDArray[Any], ids: list[str], values: Array, caps: Array | None) -> Panel:
    """The whole panel on every worker, without series and times that have no value at all."""

    def whole(own: Array) -> Array:
        if comm.size == 1:
            return own
        counts = comm.allgather(own.size)
        everything = np.empty((len(ids), len(stamps)))
        comm.Allgatherv(np.ascontiguousarray(own), [everything, counts])
        return everything

    values = whole(values)
    caps = None if caps is None else whole(caps)
    there = ~np.isnan(values)
    series, times = there.any(axis=1), there.any(axis=0)
    if not series.any():
        raise SeriesError("no row has a value that is left after cleaning")
    if not (series.all() and times.all()):
        values = values[series][:, times]
        caps = None if caps is None else caps[series][:, times]
    return Panel(stamps[times], np.array(ids)[series], values.T, None if caps is None else caps.T)


def caps_name(columns: Columns) -> str:
    """What the `caps` of a panel of these columns are."""
    return "traded value" if columns.cap is None else "capital"
