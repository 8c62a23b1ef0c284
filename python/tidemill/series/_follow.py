"""Growing panels: files that rows are appended to, folders with new files, and streams.

Worker 0 looks for new rows periodically (`Tail`), and sends them to all; so all workers have the same panel at the same
moment, and can embed the next window together. (A stream by itself would give each worker different rows, at any time.)

A time is complete when a later one has come, or when no row has come for a while (`settle`). Then it becomes a row of
the panel. A row that comes for a complete time is left out and counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from hashlib import blake2b
from itertools import pairwise
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill._duration import Duration, micros
from tidemill._job import init
from tidemill.dataset import DataSet, DataSetError
from tidemill.series._arriving import StreamTail
from tidemill.series._clean import caps_name, pivot
from tidemill.series._panel import Panel
from tidemill.series._read import Columns, SeriesError, collective_try
from tidemill.series._rules import Report, Rules
from tidemill.series._splits import Evidence, Split, adjust, detect, weigh
from tidemill.series._tail import FileTail, NewRows, Tail
from tidemill.series._windows import label

__all__ = ["Follower"]

#: The number of times before the new ones that jumps are compared with.
_BEFORE = 40


class Follower:
    """A growing panel. Collective: every worker creates one and calls the same methods.

    Parameters
    ----------
    source : path or DataSet
        A CSV file, a folder (all files below it), or a glob. Worker 0 must have access. It may be empty or not exist
        yet. CSV must be uncompressed, with a header in each file; Parquet files cannot grow, but new ones may appear.
        Or a stream, for example from `tidemill.stream.from_kafka`, with steps that process each batch by itself; its
        event time is the column of times. Only worker 0 reads it, from the beginning of its source.
    rules : Rules, optional
    columns : mapping of str to str, optional
        Names by role, as in `clean`.
    settle : str, number of seconds or timedelta, default="2s"
        When no row has come for this long, the last time is complete; for a file, unless its last line has no line feed
        yet.
    poll_interval : str, number of seconds or timedelta, default="200ms"
        Interval at which worker 0 looks for new rows; more than zero.
    delimiter, null, on_error : optional
        For files, as in `clean`. For a stream, set them at its source.

    Attributes
    ----------
    panel : Panel or None
        None until the first time is complete.
    report : Report or None
    note : str
        Why the stream's rows so far have had no effect, for example because they have no time; otherwise empty.
    ended : bool
        Whether the stream has ended and is completely in the panel. Files never end.

    Examples
    --------
    >>> import tidemill as tm
    >>> prices = {"day": [0, 0, 1, 1], "id": ["a", "b", "a", "b"], "price": [10.0, 20.0, 11.0, 19.0]}
    >>> prices = tm.from_dict(prices).select("id", "price", day=(tm.col("day") * 86400).cast("timestamp[s]")).collect()
    >>> with tm.series.Follower(tm.stream.from_table(prices, time="day")) as follower:
    ...     while not follower.ended:
    ...         if follower.poll():
    ...             print(follower.panel)
    Panel of 2 series at 2 times, 1970-01-01 to 1970-01-02
    """

    def __init__(
        self,
        source: str | PathLike[str] | DataSet,
        rules: Rules | None = None,
        *,
        columns: Mapping[str, str | None] | None = None,
        settle: Duration = "2s",
        poll_interval: Duration = "200ms",
        delimiter: str | None = None,
        null: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        settle_s = micros(settle, "settle", SeriesError) / 1_000_000
        self._poll_s = micros(poll_interval, "poll_interval", SeriesError) / 1_000_000
        if self._poll_s == 0:
            raise SeriesError(f'poll_interval={poll_interval!r} must be greater than zero, for example "200ms"')
        self._comm = init().comm
        self._rules = rules or Rules()
        self._chosen = dict(columns or {})
        self.panel: Panel | None = None
        self.report: Report | None = None
        self.note = ""
        self.ended = False
        self._taken = 0
        self._caps_name = "capital"
        #: The combined evidence of the panel's splits.
        self._evidence = 0.0
        self._digest = b""
        self._digests: dict[int, str] = {}

        def opened() -> Tail | None:
            if self._comm.rank != 0:
                return None
            if isinstance(source, DataSet):
                try:
                    return StreamTail(source, self._chosen, settle_s)
                except DataSetError as error:
                    raise SeriesError(str(error)) from error
            return FileTail(os.fspath(source), self._chosen, settle_s, delimiter, null, on_error == "skip")

        self._tail = collective_try(self._comm, opened)

    def close(self) -> None:
        """Stop following a stream."""
        if self._tail is not None:
            self._tail.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fingerprint(self, time: Any) -> str:
        """Return a fingerprint of the rows up to a time of the panel: strings that are equal for the same rows, however
        they arrived.
        """
        return self._digests[int(np.asarray(time).astype(np.int64))]

    def poll(self) -> bool:
        """Wait for a moment, then add the rows that have come. Returns whether the panel may have grown.

        Raises
        ------
        SeriesError
            On every worker: if a line is not a row, with file and line; if a file has become shorter; if a stream
            fails.
        """

        def look() -> tuple[NewRows | None, Columns | None, dict[str, int], str, bool] | None:
            tail = self._tail
            return None if tail is None else (tail.take(), tail.columns, tail.left_out, tail.note(), tail.ended)

        told: Any = collective_try(self._comm, look)
        rows, columns, left_out, self.note, self.ended = told if self._comm.size == 1 else self._comm.bcast(told)
        if self.report is None and rows is not None:
            self._caps_name = caps_name(columns)
            self.report = Report(columns.named(), notes=list(columns.notes))
        if self.report is not None:
            self._taken += 0 if rows is None else len(rows.codes)
            self.report.rows = self._taken + left_out.get("without_key", 0)
            self.report.counts.update(left_out)
        if rows is None:
            # Only worker 0 sleeps: the others wait for it.
            if self._comm.rank == 0 and not self.ended:
                time.sleep(self._poll_s)
            return False
        self._append(rows)
        return True

    def _append(self, rows: NewRows) -> None:
        assert self.report is not None
        counts = self.report.counts
        old = self.panel
        kind = "datetime64[us]" if rows.dated else "int64"
        if old is not None:
            late = rows.times <= old.times[-1].astype(np.int64)
            counts["late"] += int(late.sum())
            rows.codes, rows.times = rows.codes[~late], rows.times[~late]
            rows.numbers = {role: column[~late] for role, column in rows.numbers.items()}
        self._take_digests(rows)
        before: list[str] = [] if old is None else old.ids.tolist()
        ids = sorted({*before, *(rows.ids[code] for code in np.unique(rows.codes).tolist())})
        numbering = {name: number for number, name in enumerate(ids)}
        times = np.unique(rows.times)
        stamps = times.astype(kind)
        codes = np.array([numbering.get(name, -1) for name in rows.ids], dtype=np.int64)[rows.codes]
        places = np.searchsorted(times, rows.times)
        block, caps, splits, made = pivot(codes, places, rows.numbers, len(ids), len(times), self._rules, ids, stamps)
        there = ~np.isnan(block).all(axis=0)
        width = 0 if old is None else len(old.times)
        values = np.full((len(ids), width + len(times)), np.nan)
        worth = None if caps is None else np.full(values.shape, np.nan)
        if old is not None:
            seats = [numbering[name] for name in before]
            values[seats, :width] = old.values.T
            if worth is not None and old.caps is not None:
                worth[seats, :width] = old.caps.T
        values[:, width:] = block
        if worth is not None and caps is not None:
            worth[:, width:] = caps
        if self._rules.splits == "detect":
            start = max(0, width - _BEFORE)
            splits = [
                type(one)(one.series, one.place + start, one.ratio)
                for one in detect(values[:, start:], begin=max(1, width - start))
            ]
            self.report.found += [(ids[one.series], _at(old, stamps, one.place), one.ratio) for one in splits]
        else:
            splits = [type(one)(one.series, one.place + width, one.ratio) for one in splits]
        flat: list[Split] = []
        if self._rules.splits == "column":
            each = weigh(values, splits)
            table = Evidence(((one.place, part) for one, part in zip(splits, each, strict=True)), self._evidence)
            flat, self._evidence = table.flat(splits, each), table.all
        adjust(values, splits, flat)
        made["splits"], made["flat_splits"] = len(splits) - len(flat), len(flat)
        for rule, count in made.items():
            counts[rule] += count
        self.report.flat += [(ids[one.series], _at(old, stamps, one.place), one.ratio) for one in flat]
        self.report.check_splits(self._chosen.get("split"))
        # A time without any value does not count.
        shown = np.concatenate([np.ones(width, bool), there])
        all_times = stamps if old is None else np.concatenate([old.times, stamps])
        if shown.any():
            kept = ~np.isnan(values).all(axis=1)
            self.panel = Panel(
                all_times[shown],
                np.array(ids)[kept],
                values[kept][:, shown].T,
                None if worth is None else worth[kept][:, shown].T,
                self._caps_name,
            )
            self._count()

    def _take_digests(self, rows: NewRows) -> None:
        """Chain the digest of the rows of each new time with the previous one, by id and, within an id, in order of
        arrival.
        """
        names = np.array(rows.ids)[rows.codes]
        order = np.lexsort((names, rows.times))
        names, times = names[order], rows.times[order]
        numbers = np.column_stack(list(rows.numbers.values()))[order]
        starts = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1]])) if len(times) else np.empty(0, int)
        for begin, end in pairwise([*starts.tolist(), len(times)]):
            told = "\n".join([str(times[begin]), *names[begin:end].tolist()]).encode()
            self._digest = blake2b(self._digest + told + b"\n" + numbers[begin:end].tobytes(), digest_size=16).digest()
            self._digests[int(times[begin])] = self._digest.hex()

    def _count(self) -> None:
        assert self.panel is not None and self.report is not None
        there = ~np.isnan(self.panel.values)
        first, last = there.argmax(axis=0), len(there) - 1 - there[::-1].argmax(axis=0)
        self.report.counts["gaps"] = int((last - first + 1 - there.sum(axis=0)).sum())
        self.report.ids, self.report.times = len(self.panel.ids), len(self.panel.times)
        self.report.first, self.report.last = label(self.panel.times[0]), label(self.panel.times[-1])


def _at(old: Panel | None, stamps: NDArray[Any], place: int) -> str:
    width = 0 if old is None else len(old.times)
    if old is not None and place < width:
        return label(old.times[place])
    return label(stamps[place - width])
