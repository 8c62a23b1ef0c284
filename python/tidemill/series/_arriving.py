"""Rows of a stream (`tidemill.stream`), as worker 0 of a `Follower` gets them.

Worker 0 runs the stream by itself, on a thread: prices are few compared to the data computed from them, and all workers
need all of them, in step. A time of the panel is a window of one microsecond, so that it ends when the stream's time
says so, however many partitions rows come from; and early results give its current rows, in case it is the last time
because nothing more comes.

Nothing of it is saved: a restarted job reads the stream from the beginning of its source, as it would a file.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from typing import Any

import numpy as np

from tidemill._job import init
from tidemill._streaming import status as _status
from tidemill._streaming.sinks import native_sink
from tidemill._tables.engine import new_engine
from tidemill._tables.table import Table
from tidemill._tidemill import NativeStreamJob, NativeTable
from tidemill.dataset import DataSet, coalesce, col, lit
from tidemill.dataset._map import map_tables
from tidemill.series._read import Columns, SeriesError, find_columns, plain_id
from tidemill.series._tail import NewRows, date_of_number
from tidemill.series._zones import wall, zone_of
from tidemill.stream import tumbling, window

__all__ = ["Lacking", "StreamTail"]

#: Minimum number of seconds between two early results.
_EARLY_S = 0.05
#: Seconds that closing waits for the stream to notice.
_CLOSE_S = 10.0

_Cells = dict[str, list[Any]]


class _Closed(Exception):
    """Ends the stream when its rows are no longer needed."""


class Lacking:
    """What all rows so far have lacked, until one arrives with id, time and value."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._counts: dict[str, int] | None = {"rows": 0, "id": 0, "time": 0, "value": 0}

    def count(self, rows: NativeTable) -> None:
        """Count rows with the columns ``id`` ("" if there is none), ``timed`` and ``value``."""
        if self._counts is None:
            return
        there = {
            "id": [bool(name.strip()) for name in rows.column("id")],
            "time": rows.column("timed"),
            "value": [not math.isnan(value) for value in rows.column("value")],
        }
        if any(all(row) for row in zip(*there.values(), strict=True)):
            self._counts = None
            return
        self._counts["rows"] += len(there["id"])
        for role, known in there.items():
            self._counts[role] += known.count(False)

    def note(self) -> str:
        """Return why rows have had no effect; empty if they have, or none has come."""
        lacking = dict(self._counts or {})
        count = lacking.pop("rows", 0)
        if not count:
            return ""
        none = [f"{role} in {self._columns.named()[role]!r}" for role, rows in lacking.items() if rows == count]
        lacks = f"without {' and '.join(none)}" if none else "each without id, time or value"
        return f"{count:,} rows have come so far, all {lacks}; where a field has another name: " + ", ".join(
            f"--{role} NAME" for role in lacking
        )


class StreamTail:
    """The rows of a stream; see `Tail`.

    Parameters
    ----------
    stream : DataSet
        A stream whose event time is the column of times.
    chosen : dict of str to str
        Columns by role.
    settle_s : float
        When nothing has come for this long, the last time is complete.
    """

    def __init__(self, stream: DataSet, chosen: dict[str, str | None], settle_s: float) -> None:
        columns = find_columns(stream.columns, chosen)
        self.columns: Columns | None = columns
        self.left_out = {"without_key": 0}
        self.ended = False
        self._settle_s = settle_s
        kind = stream.schema[columns.time]
        if not kind.startswith(("Date", "Timestamp")):
            raise SeriesError(
                f"times of a stream are its event time, but column {columns.time!r} is {kind}: cast it to a timestamp, and give it as time= to the source"
            )
        self._zone = zone_of(kind)
        self._roles = [role for role in columns.named() if role not in ("id", "time")]
        nothing = lit(float("nan"))
        rows = stream.select(
            at=col(columns.time).cast("timestamp[us]"),
            timed=col(columns.time).is_not_null(),
            id=coalesce(col(columns.id).cast("str"), lit("")),
            **{role: coalesce(col(columns.named()[role]).cast("float64"), nothing) for role in self._roles},
        )
        # Windows would drop rows without a time as well, but would not report it before the stream ends.
        rows = map_tables(rows, "rows without a time", self._count_lacking, rows._native).filter(col("timed"))
        times = window(tumbling("1us"), on="at", emit_early_every=max(_EARLY_S, settle_s / 2))
        cells = {name: col(name).to_list() for name in ("id", *self._roles)}
        self._windows = rows.group_by(times).agg(at=col("at").cast("int64").min(), **cells)
        self._lock = threading.Lock()
        #: By time that was not taken yet: what has arrived, and whether it is complete. For times that were taken
        #: before they were complete: how much.
        self._open: dict[int, tuple[_Cells, bool]] = {}
        self._taken: dict[int, int] = {}
        self._late: list[tuple[int, _Cells]] = []
        self._changed = time.monotonic()
        self._failure: Exception | None = None
        self._lacking = Lacking(columns)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemill-series-stream", daemon=True)
        self._thread.start()
        # The interpreter must not end while the stream calls it.
        weakref.finalize(self, _end, self._closing, self._thread)

    def take(self) -> NewRows | None:
        """See `Tail`."""
        with self._lock:
            if self._failure is not None:
                raise SeriesError(f"the stream failed: {_told(self._failure)}") from self._failure
            ended = not self._thread.is_alive()
            settled = ended or time.monotonic() - self._changed >= self._settle_s
            over = [at for at in sorted(self._open) if settled or self._open[at][1]]
            parts = self._late
            self._late = []
            for at in over:
                cells, whole = self._open.pop(at)
                parts.append((at, cells))
                if not whole:
                    self._taken[at] = len(cells["id"])
            self.ended = ended
        return self._rows(parts) if parts else None

    def note(self) -> str:
        """See `Tail`."""
        with self._lock:
            return self._lacking.note()

    def close(self) -> None:
        """End the stream."""
        _end(self._closing, self._thread)

    def _rows(self, parts: list[tuple[int, _Cells]]) -> NewRows | None:
        # JSON numbers were read as microseconds since 1970; numbers such as 20161230 are dates here, too, in the same
        # order.
        told = [at if (date := date_of_number(at)) is None else date for at, _ in parts]
        stamps = wall(np.array(told, dtype=np.int64), self._zone)
        times = np.repeat(stamps, [len(cells["id"]) for _, cells in parts]).astype(np.int64)
        names = np.array([plain_id(name) for _, cells in parts for name in cells["id"]])
        named = names != ""
        with self._lock:
            self.left_out["without_key"] += int(len(names) - named.sum())
        ids, codes = np.unique(names[named], return_inverse=True)
        numbers = {
            role: np.array([number for _, cells in parts for number in cells[role]], dtype=np.float64)[named]
            for role in self._roles
        }
        return NewRows(ids.tolist(), codes.astype(np.int64), times[named], True, numbers)

    # ---- in the stream's thread

    def _run(self) -> None:
        job = init()
        try:
            # A separate engine whose only worker is this one.
            engine = new_engine(job, threads=1, workers=1)
            outputs = [(self._windows._native, native_sink(self._come), "series")]
            late = [(None, native_sink(self._come_late), "late rows of series")]
            stream = NativeStreamJob(engine, outputs, "series", late=late)
            stream.run(engine, job._self, self._look, _status.place("series", job._self))
        except _Closed:
            pass
        except Exception as error:
            with self._lock:
                self._failure = error

    def _look(self) -> bool:
        if self._closing.is_set():
            raise _Closed
        return False

    def _count_lacking(self, rows: NativeTable, _found: NativeTable | None) -> list[NativeTable]:
        timed = rows.column("timed")
        with self._lock:
            self.left_out["without_key"] += timed.count(False)
            self._lacking.count(rows)
        return [rows]

    def _come(self, table: Table) -> None:
        told = table.to_dict()
        with self._lock:
            for row, (at, whole) in enumerate(zip(told["at"], told["window_final"], strict=True)):
                cells = {name: told[name][row] for name in ("id", *self._roles)}
                taken = self._taken.get(at)
                if taken is None:
                    self._open[at] = (cells, whole)
                elif len(cells["id"]) > taken:
                    self._late.append((at, {name: column[taken:] for name, column in cells.items()}))
                    self._taken[at] = len(cells["id"])
                if whole:
                    self._taken.pop(at, None)
            self._changed = time.monotonic()

    def _come_late(self, table: Table) -> None:
        told = table.to_dict()
        with self._lock:
            for row, at in enumerate(told["at"]):
                micros = int(np.datetime64(at.replace(tzinfo=None), "us").astype(np.int64))
                self._late.append((micros, {name: [told[name][row]] for name in ("id", *self._roles)}))


def _told(failure: Exception) -> str:
    """Return a stream's error in the terms of series."""
    return str(failure).replace(
        'on_error "skip" or "quarantine" continues', '--bad-rows skip (on_error="skip" of the source) continues'
    )


def _end(closing: threading.Event, thread: threading.Thread) -> None:
    closing.set()
    with contextlib.suppress(RuntimeError):
        thread.join(_CLOSE_S)
