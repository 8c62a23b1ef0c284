"""Frames of a running stream: the solver that all workers enter for each time of the panel, inside the stream.

Its state is the end of the panel that later windows need, and what the next window starts from and is aligned to. All
copies have the same one: each gets all rows of a time, so that any of them can embed a window. Frames are those of
`Embedder`, bitwise equal for any number of copies.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._tables.table import Table
from tidemill.series._embed import Embedder, Frame
from tidemill.series._panel import Panel
from tidemill.series._read import Columns, SeriesError
from tidemill.series._relay import Past
from tidemill.series._rules import Report
from tidemill.series._splits import Evidence, Split
from tidemill.series._tail import date_of_number
from tidemill.series._windows import Window, label, windows

__all__ = ["FRAMES", "Cut", "Standing", "solver"]

#: Columns of frames: the number among frames, the frame, and in the last row of a call, the summary so far.
FRAMES = {"number": "int64", "time": "str", "frame": "binary", "told": "str"}


@dataclass(frozen=True)
class Cut:
    """How windows are cut, as in `windows`; and the column of splits that the user named."""

    length: str | int
    shift: str | int
    accumulate: bool = False
    split: str | None = None

    def windows(self, stamps: NDArray[Any]) -> list[Window]:
        """Return the windows that are full; further times may follow."""
        try:
            return windows(stamps, self.length, self.shift, accumulate=self.accumulate, growing=True)
        except SeriesError as error:
            if "no window is full" not in str(error):
                raise
            return []


@dataclass
class _Life:
    """First and last time of a series, and at how many it has a value."""

    first: int
    last: int = 0
    count: int = 0


@dataclass
class Standing:
    """The state of the solver."""

    #: All that frames depend on, except the rows.
    options: dict[str, Any]
    report: Report = field(default_factory=lambda: Report({}))
    dated: bool = True
    caps_name: str = ""
    #: All times so far, in microseconds; the rows of the first `dropped` were removed.
    times: list[int] = field(default_factory=list)
    dropped: int = 0
    #: Columns of rows by id, in the order in which ids first appeared. Earlier rows are shorter.
    seats: dict[str, int] = field(default_factory=dict)
    values: list[NDArray[np.float64]] = field(default_factory=list)
    caps: list[NDArray[np.float64]] = field(default_factory=list)
    #: For each id, in the same order.
    lives: list[_Life] = field(default_factory=list)
    #: The combined evidence of the splits so far.
    evidence: float = 0.0
    #: The number of windows so far, and what the next one needs of them.
    done: int = 0
    #: The windows without a frame.
    left_out: list[str] = field(default_factory=list)
    past: Past = field(default_factory=Past)

    def append(self, at: int, rows: Mapping[str, NDArray[Any]], cut: Cut) -> None:
        """Add the rows of a time, which are columns as in `CLEAN`, by id."""
        counts = self.report.counts
        for text in filter(None, rows["told"].tolist()):
            told = json.loads(text)
            self.report.columns = told.pop("columns", self.report.columns)
            self.report.notes = told.pop("notes", self.report.notes)
            self.dated = told.pop("dated", self.dated)
            # Most rows report only their existence, which is counted below.
            self.report.rows += told.pop("rows") - 1
            for rule, count in told.items():
                counts[rule] += count
        self.report.rows += len(rows["id"])
        self._adjust(at, {name: column[~np.isnan(rows["ratio"])] for name, column in rows.items()})
        self.report.check_splits(cut.split)
        shown = ~np.isnan(rows["value"])
        # A time without any value does not count.
        if not shown.any():
            return
        self.caps_name = rows["caps_name"][0]
        seats = [self.seats.setdefault(name, len(self.seats)) for name in rows["id"][shown].tolist()]
        self.values.append(self._row(seats, rows["value"][shown]))
        if self.caps_name:
            self.caps.append(self._row(seats, rows["cap"][shown]))
        self.lives += [_Life(len(self.times)) for _ in range(len(self.seats) - len(self.lives))]
        for seat in seats:
            self.lives[seat].last = len(self.times)
            self.lives[seat].count += 1
        self.times.append(at)

    def _row(self, seats: list[int], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        row = np.full(len(self.seats), np.nan)
        row[seats] = numbers
        return row

    def _adjust(self, at: int, rows: Mapping[str, NDArray[Any]]) -> None:
        """Divide earlier values by the ratios of splits, except for those at which the value does not jump."""
        ids, each = rows["id"].tolist(), rows["evidence"].tolist()
        if not ids:
            return
        splits = [Split(number, 0, ratio) for number, ratio in enumerate(rows["ratio"].tolist())]
        table = Evidence(((0, part) for part in each), self.evidence)
        detects = self.options["splits"] == "detect"
        flat = [] if detects else table.flat(splits, each)
        self.evidence = table.all
        time = label(self._stamps([at])[0])
        self.report.found += [(ids[one.series], time, one.ratio) for one in splits if detects]
        self.report.flat += [(ids[one.series], time, one.ratio) for one in flat]
        self.report.counts["splits"] += len(splits) - len(flat)
        self.report.counts["flat_splits"] += len(flat)
        for split in {*splits} - {*flat}:
            seat = self.seats.get(ids[split.series])
            for row in self.values:
                if seat is not None and seat < len(row):
                    row[seat] /= split.ratio

    def _stamps(self, times: list[int]) -> NDArray[Any]:
        return np.array(times, dtype=np.int64).astype("datetime64[us]" if self.dated else "int64")

    def embed(self, embedder: Embedder, cut: Cut) -> Iterator[tuple[int, str, bytes]]:
        """Yield the frames of windows that have become full, on rank 0 of the embedder's communicator."""
        full = cut.windows(self._stamps(self.times))
        if len(full) == self.done:
            return
        embedder.past = self.past
        panel = self._panel()
        shifted = [
            replace(window, begin=window.begin - self.dropped, end=window.end - self.dropped)
            for window in full[self.done :]
        ]
        yield from embedder.more(panel, shifted, _pickled)
        self.past, self.done = embedder.past, len(full)
        self.left_out += [window.label for window in embedder.left_out]
        # No later window begins before the last one.
        kept = full[-1].begin - self.dropped
        self.values, self.caps, self.dropped = self.values[kept:], self.caps[kept:], full[-1].begin

    def _panel(self) -> Panel:
        ids = np.array(list(self.seats))
        order = np.argsort(ids)

        def whole(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
            table = np.full((len(rows), len(ids)), np.nan)
            for number, row in enumerate(rows):
                table[number, : len(row)] = row
            return table[:, order]

        caps = whole(self.caps) if self.caps_name else None
        return Panel(
            self._stamps(self.times[self.dropped :]), ids[order], whole(self.values), caps, self.caps_name or "capital"
        )

    def told(self) -> str:
        """Return the summary of rows and windows so far, as JSON."""
        report, lives = self.report, self.lives
        report.counts["gaps"] = sum(life.last - life.first + 1 - life.count for life in lives)
        report.ids, report.times = len(self.seats), len(self.times)
        stamps = self._stamps([self.times[0], self.times[-1]])
        report.first, report.last = label(stamps[0]), label(stamps[1])
        return json.dumps({"cleaning": report.to_dict(), "left_out": self.left_out})


def _pickled(number: int, frame: Frame) -> tuple[int, str, bytes]:
    return number, frame.window.label, pickle.dumps(frame, protocol=5)


def solver(
    embedder: Embedder,
    cut: Cut,
    options: Mapping[str, Any],
    columns: Columns | None = None,
    check: Callable[[NDArray[Any]], object] | None = None,
) -> Callable[[Any, Table, Any], list[dict[str, Any]]]:
    """Return the function for `DataSet.bsp` on cleaned rows.

    Parameters
    ----------
    embedder : Embedder
        Its options; its communicator and its past are not used.
    cut : Cut
    options : mapping of str to JSON
        All that frames depend on, except the rows: a checkpoint of a job with others is refused.
    columns : Columns, optional
        The columns of a stream; rows of files tell of theirs. Times of a stream that are numbers such as 20161230 were read as
        microseconds, and are dates here.
    check : callable, optional
        Called with the times of a stream.
    """

    def solve(comm: Any, table: Table, context: Any) -> list[dict[str, Any]]:
        state: Standing = context.state or Standing(dict(options))
        if columns is not None:
            state.report.columns, state.report.notes = columns.named(), list(columns.notes)
        other = next((name for name, value in options.items() if state.options.get(name) != value), None)
        if other is not None:
            raise SeriesError(
                f"the checkpoint was made with {other}={state.options.get(other)!r}, not {options[other]!r}; use another checkpoint folder"
            )
        own = table.to_numpy()
        parts = [own] if comm.size == 1 else comm.allgather(own)
        rows = {name: np.concatenate([part[name] for part in parts]) for name in own}
        order = np.lexsort((rows["id"], rows["at"]))
        rows = {name: column[order] for name, column in rows.items()}
        times = rows.pop("at").astype("datetime64[us]").astype(np.int64)
        starts = np.flatnonzero(np.concatenate([[True], times[1:] != times[:-1]]))
        made: list[tuple[int, str, bytes]] = []
        for begin, end in pairwise([*starts.tolist(), len(times)]):
            at = int(times[begin])
            # Both have the same order.
            date = None if columns is None else date_of_number(at)
            state.append(at if date is None else date, {name: rows[name][begin:end] for name in rows}, cut)
            if check is not None:
                check(np.array(state.times[-1:]).astype("datetime64[us]"))
            made += state.embed(replace(embedder, comm=comm, left_out=[]), cut)
        context.state = state
        return [
            {"number": number, "time": time, "frame": frame, "told": state.told() if last else ""}
            for (number, time, frame), last in zip(made, [*[False] * (len(made) - 1), True], strict=False)
        ]

    return solve
