"""Panels that grow: files that rows are appended to, and folders that files come into.

Worker 0 looks at the files every now and then, takes the whole lines that are new, and hands them to all; so all workers
have the same panel at the same moment, and may embed the next window together. (The sources of `tidemill.stream` deal the
files to workers, each of which gets its rows when they come; here all need all of them, in step.)

A time is over when a later one has come, or when no row has come for a while (`settle_s`). Then it becomes a row of the panel. A row
that comes for a time that is over is left out, and counted.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import tidemill
from tidemill.series._clean import Report, Rules, pivot
from tidemill.series._panel import Array, Panel
from tidemill.series._read import Columns, SeriesError, find_columns, together
from tidemill.series._splits import adjust, detect
from tidemill.series._windows import label

__all__ = ["Follower"]

#: Bytes that are read at a time, so that a long file does not fill the memory with texts.
_PIECE_BYTES = 64 << 20
#: Times before the new ones that a jump is judged by.
_BEFORE = 40
#: Below all times: what NumPy makes of none is lower still.
_NO_TIME = -(2**62)


@dataclass
class _Rows:
    """Rows that have come: ids by code, times in microseconds or whole numbers, numbers by role."""

    ids: list[str]
    codes: NDArray[np.int64]
    times: NDArray[np.int64]
    dated: bool
    numbers: dict[str, Array]


class Follower:
    """A panel of files that grow. Collective: every worker makes one, and calls the same methods.

    Parameters
    ----------
    path : path
        A CSV file, a folder (the files in it), or a glob; plain text with a header in each file. Worker 0 must see it. It may be
        empty, or not there yet.
    rules : Rules, optional
    columns : mapping of str to str, optional
        By role, as for `clean`.
    settle_s : float, default=2.0
        When nothing has come for so long, the last time is over.
    every_s : float, default=0.2
        How often files are looked at.
    delimiter : str, default=","
    on_error : {"raise", "skip"}, default="raise"
        What becomes of a line that is no row.

    Attributes
    ----------
    panel : Panel or None
        None until the first time is over.
    report : Report or None
    """

    def __init__(
        self,
        path: str | PathLike[str],
        rules: Rules | None = None,
        *,
        columns: Mapping[str, str | None] | None = None,
        settle_s: float = 2.0,
        every_s: float = 0.2,
        delimiter: str = ",",
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        if settle_s < 0 or every_s <= 0:
            raise SeriesError(f"settle_s={settle_s} is at least 0, every_s={every_s} more than 0")
        self._comm = tidemill.init().comm
        self._rules = rules or Rules()
        self._every_s = every_s
        self._tail = _Tail(os.fspath(path), dict(columns or {}), settle_s, delimiter, on_error)
        self.panel: Panel | None = None
        self.report: Report | None = None
        self._digest = b""
        self._digests: dict[int, str] = {}

    def fingerprint(self, time: Any) -> str:
        """Tell what rows were taken up to a time of the panel: texts that are alike for the same rows, however they came."""
        return self._digests[int(np.asarray(time).astype(np.int64))]

    def poll(self) -> bool:
        """Wait for a moment, then take what has come. Returns whether the panel has grown.

        Raises
        ------
        SeriesError
            On every worker: a line that is no row, with file and line; a file that has become shorter.
        """

        def look() -> _Rows | None:
            return self._tail.take() if self._comm.rank == 0 else None

        rows = together(self._comm, look)
        told = (rows, self._tail.columns, self._tail.bad)
        rows, columns, bad = told if self._comm.size == 1 else self._comm.bcast(told)
        if rows is None:
            # Only worker 0 rests: the others wait for it.
            if self._comm.rank == 0:
                time.sleep(self._every_s)
            return False
        assert columns is not None
        self._append(rows, columns)
        assert self.report is not None
        self.report.counts["unreadable"] = bad
        return True

    def _append(self, rows: _Rows, columns: Columns) -> None:
        if self.report is None:
            self.report = Report(columns.named())
        counts = self.report.counts
        self.report.rows += len(rows.codes)
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
        adjust(values, splits)
        made["splits"] = len(splits)
        for rule, count in made.items():
            counts[rule] += count
        # A time without any value is none.
        shown = np.concatenate([np.ones(width, bool), there])
        all_times = stamps if old is None else np.concatenate([old.times, stamps])
        if shown.any():
            kept = ~np.isnan(values).all(axis=1)
            self.panel = Panel(
                all_times[shown],
                np.array(ids)[kept],
                values[kept][:, shown].T,
                None if worth is None else worth[kept][:, shown].T,
            )
            self._count()

    def _take_digests(self, rows: _Rows) -> None:
        """Chain what the rows of each new time are to what was before, by id and, of one id, as they came."""
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


@dataclass
class _File:
    """How far a file has been read."""

    offset: int = 0
    line: int = 0
    #: Where each role's column is; None before the header.
    fields: dict[str, int] | None = None
    width: int = 0


class _Tail:
    """Worker 0's view of the files."""

    def __init__(
        self, path: str, chosen: dict[str, str | None], settle_s: float, delimiter: str, on_error: str
    ) -> None:
        self._path, self._chosen, self._settle_s = path, chosen, settle_s
        self._delimiter, self._lenient = delimiter, on_error == "skip"
        self._files: dict[str, _File] = {}
        self.columns: Columns | None = None
        self.bad = 0
        self._dated: bool | None = None
        self._stamps: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        #: Rows of times that are not over: id, time, numbers.
        self._waiting: list[tuple[int, int, tuple[float, ...]]] = []
        self._quiet_since = time.monotonic()

    def take(self) -> _Rows | None:
        """The rows of times that are over and have not been taken."""
        new = self._read()
        if new:
            self._quiet_since = time.monotonic()
            self._waiting += new
        if not self._waiting:
            return None
        over = self._waiting
        if time.monotonic() - self._quiet_since < self._settle_s:
            last = max(row[1] for row in self._waiting)
            over = [row for row in self._waiting if row[1] < last]
            self._waiting = [row for row in self._waiting if row[1] == last]
        else:
            self._waiting = []
        if not over:
            return None
        assert self.columns is not None
        roles = [role for role in self.columns.named() if role not in ("id", "time")]
        columns = zip(*(row[2] for row in over), strict=True)
        return _Rows(
            ids=list(self._codes),
            codes=np.array([row[0] for row in over], dtype=np.int64),
            times=np.array([row[1] for row in over], dtype=np.int64),
            dated=bool(self._dated),
            numbers={role: np.array(column) for role, column in zip(roles, columns, strict=True)},
        )

    def _paths(self) -> list[str]:
        place = Path(self._path)
        if place.is_dir():
            return sorted(str(child) for child in place.iterdir() if child.is_file() and child.name[0] not in "._")
        if place.exists():
            return [self._path]
        return sorted(str(child) for child in place.parent.glob(place.name))

    def _read(self) -> list[tuple[int, int, tuple[float, ...]]]:
        """The whole lines that are new, as rows; at most `_PIECE_BYTES` of a file at a time."""
        rows: list[tuple[int, int, tuple[float, ...]]] = []
        for path in self._paths():
            if path.endswith((".gz", ".zst", ".bz2", ".xz", ".parquet")):
                raise SeriesError(f"{path}: only plain text can be followed while it grows")
            state = self._files.setdefault(path, _File())
            with Path(path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < state.offset:
                    raise SeriesError(
                        f"{path} has become shorter while it was followed: {size} bytes after {state.offset}"
                    )
                if size == state.offset:
                    continue
                file.seek(state.offset)
                piece = file.read(_PIECE_BYTES)
            whole = piece.rfind(b"\n") + 1
            if not whole:
                if len(piece) == _PIECE_BYTES:
                    raise SeriesError(f"{path}: line {state.line + 1} has more than {_PIECE_BYTES} bytes")
                continue
            try:
                lines = piece[:whole].decode("utf-8-sig" if state.offset == 0 else "utf-8").splitlines()
            except UnicodeDecodeError as error:
                raise SeriesError(f"{path}, behind byte {state.offset}: not UTF-8: {error}") from error
            state.offset += whole
            rows += self._rows(path, state, lines)
        return rows

    def _rows(self, path: str, state: _File, lines: list[str]) -> list[tuple[int, int, tuple[float, ...]]]:
        rows = []
        for text in lines:
            state.line += 1
            if not text.strip():
                continue
            fields = next(csv.reader([text], delimiter=self._delimiter))
            if state.fields is None:
                self._header(path, state, fields)
                continue
            try:
                row = self._row(state, fields)
            except ValueError as error:
                if not self._lenient:
                    raise SeriesError(
                        f'{path}, line {state.line}: {error}; --bad-rows skip (on_error="skip") leaves such rows out'
                    ) from error
                self.bad += 1
                continue
            rows.append(row)
        return rows

    def _header(self, path: str, state: _File, names: list[str]) -> None:
        try:
            columns = find_columns(names, self._chosen)
        except SeriesError as error:
            raise SeriesError(f"{path}: {error}") from error
        if self.columns is not None and columns != self.columns:
            raise SeriesError(
                f"{path} has other columns than the files before: {columns.named()}, not {self.columns.named()}"
            )
        self.columns = columns
        state.fields = {role: names.index(name) for role, name in columns.named().items()}
        state.width = len(names)

    def _row(self, state: _File, fields: list[str]) -> tuple[int, int, tuple[float, ...]]:
        assert state.fields is not None
        if len(fields) != state.width:
            raise ValueError(f"{state.width} values expected, {len(fields)} found")
        name = fields[state.fields["id"]].strip()
        if not name:
            raise ValueError("there is no id")
        stamp = fields[state.fields["time"]].strip()
        at = self._stamps.get(stamp)
        if at is None:
            at = self._stamps[stamp] = self._time(stamp)
        numbers = tuple(
            _number(role, fields[place]) for role, place in state.fields.items() if role not in ("id", "time")
        )
        return self._codes.setdefault(name, len(self._codes)), at, numbers

    def _time(self, text: str) -> int:
        if text.lstrip("-").isdigit():
            if len(text) == 8 and self._dated is not False:
                text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
            elif self._dated:
                raise ValueError(f"{text!r} is no date")
            else:
                self._dated = False
                return int(text)
        elif self._dated is False:
            raise ValueError(f"{text!r} is no whole number, as the times before are")
        try:
            micros = int(np.datetime64(text.rstrip("Z"), "us").astype(np.int64))
        except ValueError:
            micros = _NO_TIME
        if micros <= _NO_TIME:
            raise ValueError(f"{text!r} is no time such as 2016-12-30 or 2016-12-30T17:00:00")
        self._dated = True
        return micros


def _number(role: str, text: str) -> float:
    text = text.strip()
    if not text:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number, and the column of {role}s has numbers") from None
