"""Cleaning: turns rows of a long table into a panel; every rule counts its changes.

The rules are those of the source work on daily stock prices (Kamburugamuve and others, "TSmap3D: Browser visualization
of high dimensional time series data", 2016): a negative price is the mean of bid and ask, a missing one is that of the
day before, prices are adjusted for splits, and the earlier of two records of a day is used.

Workers divide the series: each reads its part of the rows, sends every row to the worker that owns its id, and
cleans its own ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill._job import init
from tidemill.dataset import DataSet, last_report
from tidemill.series._panel import Array, Panel
from tidemill.series._read import (
    Columns,
    Rows,
    SeriesError,
    Source,
    collective_try,
    open_source,
    read_rows,
    steps_or_dates,
)
from tidemill.series._rules import Report, Rules
from tidemill.series._splits import Evidence, Split, adjust, detect, given, same_factors, weigh
from tidemill.series._windows import label

__all__ = ["caps_name", "clean", "pivot"]


def clean(
    source: Source,
    rules: Rules | None = None,
    *,
    id: str | None = None,
    time: str | None = None,
    value: str | None = None,
    cap: str | None = None,
    shares: str | None = None,
    volume: str | None = None,
    split: str | None = None,
    split_shares: str | None = None,
    price: str | None = None,
    delimiter: str | None = None,
    null: str | Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> tuple[Panel, Report]:
    """Read a long table, clean it, and return a panel. Collective.

    Parameters
    ----------
    source : path, iterable of paths, DataSet or Arrow table
        A row for each id and time. Files are CSV (also ``.gz``, ``.bz2``, ``.xz``, ``.zst``), Parquet, Arrow IPC or
        JSON lines, by their names; the same on every worker. Of duplicate rows, the earliest is used: the first in the
        file, or in the file whose path sorts first. Rows of a DataSet have the order of its source or of its last
        `sort`. If steps other than `filter`, `select` and new columns follow, they have no order, and of different
        values the smallest is used.
    rules : Rules, optional
    id, time, value, cap, shares, volume, split, split_shares, price : str, optional
        Names of columns; by default found by their usual names.

        Times are dates, with or without a time of day, or integers, which are dates like 20161230 if all of them are
        valid as such; or strings of these.

        For weights, `cap` is the worth of the series; without it, the worth is price x `shares` outstanding, else price
        x `volume`, as traded. `price` is the price paid, which is the value, unless the value is adjusted (such as
        ``adj_close``): then it is the column ``close``.

        With an adjusted value, a column of splits is used only if you name it here. `split_shares` is the factor of
        shares beside the factor of prices in `split`, as FACSHR beside FACPR in CRSP; rows in which the two differ are
        left out. It is used only if you name it here.
    delimiter, null, on_error : optional
        For CSV, as in `tidemill.read_csv`.

    Returns
    -------
    panel : Panel
    report : Report

    Raises
    ------
    SeriesError, tidemill.DataSetError
        On every worker, if the source is invalid; if a column was not found, the message says how to name it.
    """
    chosen = {
        "id": id,
        "time": time,
        "value": value,
        "cap": cap,
        "shares": shares,
        "volume": volume,
        "split": split,
        "split_shares": split_shares,
        "price": price,
    }
    data, columns = open_source(source, chosen, delimiter=delimiter, null=null, on_error=on_error)
    cleaning = _Cleaning(init().comm, rules or Rules(), Report(columns.named(), notes=list(columns.notes)))
    rows = _read(cleaning, data, columns, counts_unreadable=on_error == "skip")
    numbered = _numbered(cleaning, rows)
    own = _pivoted(cleaning, numbered, _exchanged(cleaning, numbered))
    _adjusted(cleaning, numbered, own)
    _counted(cleaning, own, is_in_order=rows.order is not None)
    cleaning.report.check_splits(split)
    panel = _gathered(cleaning.comm, numbered.times, numbered.ids, own.values, own.caps)
    panel.caps_name = caps_name(columns)
    report = cleaning.report
    report.ids, report.times = len(panel.ids), len(panel.times)
    report.first, report.last = label(panel.times[0]), label(panel.times[-1])
    return panel, report


@dataclass(frozen=True)
class _Cleaning:
    """Common data of all steps of `clean`: the communicator, the rules, and the counts."""

    comm: Any
    rules: Rules
    report: Report


@dataclass(frozen=True)
class _Rows:
    """Rows by series and time, both numbered from 0."""

    #: (n,)
    codes: NDArray[np.int64]
    places: NDArray[np.intp]
    #: (n,), the position of each row in the source; None if it has none.
    order: NDArray[np.int64] | None
    #: (n,) by role.
    numbers: dict[str, Array]


@dataclass(frozen=True)
class _Numbered:
    """The rows that this worker has read, and the ids and times of all workers, which define the same numbers
    everywhere.
    """

    rows: _Rows
    ids: list[str]
    times: NDArray[Any]
    #: (ids,), the worker that cleans each id.
    owners: NDArray[np.intp]
    #: This worker's ids.
    own: slice


@dataclass(frozen=True)
class _Own:
    """The part of the panel that this worker cleans: values and caps (ids, times), and the splits of its ids."""

    values: Array
    caps: Array | None
    splits: list[Split]
    counts: dict[str, int]


def _read(cleaning: _Cleaning, data: DataSet, columns: Columns, *, counts_unreadable: bool) -> Rows:
    """Read this worker's share of the rows, without those that lack an id or a time."""
    comm, report = cleaning.comm, cleaning.report
    rows = read_rows(data, columns)
    report.counts["unreadable"] = last_report().skipped_rows if counts_unreadable else 0
    keyed = (rows.codes >= 0) & (rows.places >= 0)
    report.rows, with_key = comm.allreduce(np.array([len(keyed), keyed.sum()])).tolist()
    report.counts["without_key"] = report.rows - with_key
    return rows if keyed.all() else rows.where(keyed)


def _numbered(cleaning: _Cleaning, rows: Rows) -> _Numbered:
    """Number the ids and times that have a row on any worker."""
    comm, report = cleaning.comm, cleaning.report
    own_ids = [rows.ids[code] for code in np.flatnonzero(np.bincount(rows.codes, minlength=len(rows.ids)))]
    own_times = rows.times[np.flatnonzero(np.bincount(rows.places, minlength=len(rows.times)))]
    everyone = comm.allgather((own_ids, own_times))
    ids = sorted({name for names, _ in everyone for name in names})
    numbers = np.unique(np.concatenate([stamps for _, stamps in everyone]))
    if not ids or not len(numbers):
        raise SeriesError(f"no row has an id and a time among the {report.rows:,} of the source")
    times: NDArray[Any] = numbers
    if rows.dated:
        times = numbers.astype("datetime64[us]")
    elif (dates := steps_or_dates(numbers)) is not None:
        # Numbers and dates have the same order.
        report.notes.append("times such as 20161230 were taken as dates")
        times = dates.astype("datetime64[us]")
    numbering = {name: number for number, name in enumerate(ids)}
    codes = np.array([numbering.get(name, -1) for name in rows.ids], dtype=np.int64)[rows.codes]
    places = np.searchsorted(numbers, rows.times)[rows.places]
    owners = np.searchsorted(np.arange(comm.size), np.arange(len(ids)) * comm.size // len(ids))
    own = slice(*np.searchsorted(owners, [comm.rank, comm.rank + 1]).tolist())
    return _Numbered(_Rows(codes, places, rows.order, rows.numbers), ids, times, owners, own)


def _exchanged(cleaning: _Cleaning, numbered: _Numbered) -> _Rows:
    """Send each row to the worker that owns its id; rows keep their order, or are ordered by value if they have none."""
    comm, rows = cleaning.comm, numbered.rows
    codes, places, order, numbers = rows.codes, rows.places, rows.order, rows.numbers
    columns: list[NDArray[Any]] = [codes, places, *([] if order is None else [order]), *numbers.values()]
    if comm.size > 1:
        # Few small numbers, which are sorted in one pass.
        to = numbered.owners.astype(np.uint16)[codes]
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
        order = None if order is None else order[sort]
    return _Rows(codes, places, order, dict(zip(numbers, rest, strict=True)))


def _pivoted(cleaning: _Cleaning, numbered: _Numbered, rows: _Rows) -> _Own:
    """Clean the rows of this worker's ids, and arrange them by series and time."""
    ids, times, own = numbered.ids[numbered.own], numbered.times, numbered.own

    def shaped() -> tuple[Array, Array | None, list[Split], dict[str, int]]:
        return pivot(
            rows.codes - own.start, rows.places, rows.numbers, len(ids), len(times), cleaning.rules, ids, times
        )

    made = _Own(*collective_try(cleaning.comm, shaped))
    return made if cleaning.rules.splits != "detect" else replace(made, splits=detect(made.values))


def _adjusted(cleaning: _Cleaning, numbered: _Numbered, own: _Own) -> None:
    """Divide values before splits by their ratios, in place, and return the splits that were found and those that are
    flat.
    """
    comm, rules, report = cleaning.comm, cleaning.rules, cleaning.report
    flat: list[Split] = []
    if rules.splits == "column":
        each = weigh(own.values, own.splits)
        parts = comm.allgather([(split.place, part) for split, part in zip(own.splits, each, strict=True)])
        flat = Evidence(chain.from_iterable(parts)).flat(own.splits, each)
    adjust(own.values, own.splits, flat)
    own.counts["splits"], own.counts["flat_splits"] = len(own.splits) - len(flat), len(flat)

    def listed(some: list[Split]) -> list[tuple[str, str, float]]:
        first = numbered.own.start
        named = [(numbered.ids[first + one.series], label(numbered.times[one.place]), one.ratio) for one in some]
        return [split for part in comm.allgather(named) for split in part]

    report.found = listed(own.splits if rules.splits == "detect" else [])
    report.flat = listed(flat)


def _counted(cleaning: _Cleaning, own: _Own, *, is_in_order: bool) -> None:
    """Count gaps, and add up the counts of all workers."""
    report = cleaning.report
    filled = ~np.isnan(own.values)
    lives = filled.any(axis=1)
    width = filled.shape[1]
    first, last = filled.argmax(axis=1), width - 1 - filled[:, ::-1].argmax(axis=1)
    own.counts["gaps"] = int((last - first + 1 - filled.sum(axis=1))[lives].sum())
    total = cleaning.comm.allreduce(np.array(list(own.counts.values()))).tolist()
    for rule, count in zip(own.counts, total, strict=True):
        report.counts[rule] += count
    if not is_in_order and report.counts["duplicates_that_differ"]:
        report.notes.append(
            "rows of this source have no order: if values differ, the smallest counts; .sort(...) gives an order"
        )


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
    """Clean rows and arrange them by series and time.

    Parameters
    ----------
    codes, places : ndarray of shape (n,)
        Series and time of each row, both numbered from 0.
    numbers : dict of str to ndarray of shape (n,)
    series, width : int
        Numbers of series and times.
    ids, times : the series' names and the times, for messages.

    Returns
    -------
    values : ndarray of shape (series, width)
    caps : ndarray of shape (series, width) or None
    splits : list of Split
        Splits of the column; values are not adjusted yet.
    counts : dict of str to int
    """
    counts = dict.fromkeys(
        (
            "factors_differ",
            "negative",
            "missing",
            "duplicates",
            "duplicates_that_differ",
            "splits",
            "flat_splits",
            "gaps",
        ),
        0,
    )
    if "split_shares" in numbers and rules.splits == "column":
        alike = same_factors(numbers["split"], numbers["split_shares"], rules.split_is)
        if not alike.all():
            counts["factors_differ"] = int(len(alike) - alike.sum())
            codes, places = codes[alike], places[alike]
            numbers = {role: column[alike] for role, column in numbers.items()}
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
    cap = _worth(numbers, value)
    cells = codes[there] * width + places[there]
    value = value[there]
    # The first row for each cell: assigning keeps the last value, so rows are assigned in reverse.
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


def _worth(numbers: dict[str, Array], value: Array) -> Array | None:
    """Return the worth of the series in each row; NaN if unknown, None if no row can have one."""
    if "cap" in numbers:
        return numbers["cap"]
    price = np.abs(numbers.get("price", value))
    if "shares" in numbers:
        shares = numbers["shares"]
        # 0 means an unknown number, and would lower the mean of the others.
        return price * np.where(shares > 0, shares, np.nan)
    return price * np.abs(numbers["volume"]) if "volume" in numbers else None


def _gathered(comm: Any, stamps: NDArray[Any], ids: list[str], values: Array, caps: Array | None) -> Panel:
    """Return the whole panel on every worker, without series and times that have no values at all."""

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
    """Return the name of a panel's `caps`, given its columns."""
    return "traded value" if columns.cap is None and columns.shares is None else "capital"
