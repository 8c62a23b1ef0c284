"""Growing files, and folders with new files, as worker 0 of a `Follower` reads them.

Lines become the same rows as in `tidemill.series.clean`: rows that it leaves out are left out, and errors are the same.
A line is complete when its line feed has been written, however long that takes: half a line may look like a row with
another value. Only if a later file of the folder has appeared and this one does not grow, its last line needs no line
feed. Until then later files wait, since their days would complete this file's. For the same reason no day is complete
before all existing files have been read: each may have rows of any day, for example if a folder has one file for each
series.

A Parquet file is read once, when it is complete, as its last bytes show.
"""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.dataset import DataSetError
from tidemill.series._panel import Array
from tidemill.series._read import (
    Columns,
    SeriesError,
    delimiter_of,
    files_of,
    find_columns,
    format_of,
    open_source,
    plain_id,
    read_rows,
    steps_or_dates,
)

__all__ = ["FileTail", "NewRows", "Tail", "date_of_number"]

#: Bytes that are read at a time, so that long files do not fill the memory with strings.
_PIECE_BYTES = 64 << 20
#: The beginning and end of a Parquet file, and its minimum size.
_PARQUET, _PARQUET_BYTES_MIN = b"PAR1", 12
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d(?:\.\d+)?))?(Z|[+-]\d\d:?\d\d)?")
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE)

#: The attributes that a tail of files needs to resume.
_STANDING = ("columns", "left_out", "_files", "_dated", "_codes", "_waiting")

_Row = tuple[int, int, tuple[float, ...]]


@dataclass
class NewRows:
    """New rows: ids by code, times in microseconds or integers, numbers by role."""

    ids: list[str]
    codes: NDArray[np.int64]
    times: NDArray[np.int64]
    dated: bool
    numbers: dict[str, Array]


class Tail(Protocol):
    """Source of the rows of a `Follower`; only on worker 0."""

    #: None before the columns are known.
    columns: Columns | None
    #: The number of dropped rows by rule; see `RULES` of cleaning.
    left_out: dict[str, int]
    #: Whether no more rows can arrive.
    ended: bool

    def take(self) -> NewRows | None:
        """Return new rows of complete times, and late rows. Does not wait.

        Raises
        ------
        SeriesError
            If they cannot be read.
        """

    def note(self) -> str:
        """Return why the rows so far have had no effect; empty if they have, or will have."""

    def close(self) -> None:
        """Release the source."""


@dataclass
class _File:
    """Reading position in a file."""

    offset: int = 0
    line: int = 0
    #: The size and the time at the last check.
    size: int = -1
    #: The index of each role's column; None before the header.
    fields: dict[str, int] | None = None
    width: int = 0
    #: Whether the last line was read without its line feed.
    cut: bool = False


class FileTail:
    """The rows of a file, a folder or a glob.

    Parameters
    ----------
    path : str
    chosen : dict of str to str
        Columns by role.
    settle_s : float
        When nothing has come for this long, the last time is complete.
    delimiter : str, optional
    null : str or sequence of str, optional
        Strings that mean null.
    lenient : bool
        Whether to leave out lines that are not rows.
    piece_bytes : int, optional
        Bytes of a file that are read at a time.

    Attributes
    ----------
    is_behind : bool
        Whether a file has more than was read at once.
    """

    ended = False

    def __init__(
        self,
        path: str,
        chosen: dict[str, str | None],
        settle_s: float,
        delimiter: str | None,
        null: str | Sequence[str] | None,
        lenient: bool,
        piece_bytes: int | None = None,
    ) -> None:
        self._path, self._chosen, self._settle_s = path, chosen, settle_s
        self._delimiter, self._lenient = delimiter, lenient
        self._piece_bytes = piece_bytes or _PIECE_BYTES
        if "://" in path:
            raise SeriesError(f"{path}: only files on this machine's file system can be followed; give their path")
        self._null = frozenset([null] if isinstance(null, str) else null or ())
        self._files: dict[str, _File] = {}
        #: The position of each file among the existing ones.
        self._order: dict[str, int] = {}
        self.columns: Columns | None = None
        self.left_out = {"unreadable": 0, "without_key": 0}
        self._dated: bool | None = None
        self._stamps: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        #: Rows of times that are not complete, by file: id, time, numbers.
        self._waiting: dict[str, list[_Row]] = {}
        self._quiet_since = time.monotonic()
        self.is_behind = False
        #: Whether other files were not read to their ends yet, so that they may contain rows of any time.
        self._is_partial = False
        #: Whether a line is incomplete: the last time cannot be complete before that line is.
        self._is_cut = False

    def take(self) -> NewRows | None:
        """See `Tail`."""
        self._read(settled=False)
        settled = self._is_quiet()
        if settled:
            self._read(settled=True)
            # Something may have arrived at this very moment.
            settled = self._is_quiet() and not self._is_cut
        if not self._waiting or self._is_partial:
            return None
        last = None if settled else max(row[1] for rows in self._waiting.values() for row in rows)
        over: list[_Row] = []
        waiting: dict[str, list[_Row]] = {}
        # Of two rows, the one in the earlier file counts, regardless of when it was read.
        for path in sorted(self._waiting, key=lambda path: self._order.get(path, -1)):
            rows = self._waiting[path]
            over += [row for row in rows if row[1] != last]
            waiting[path] = [row for row in rows if row[1] == last]
        self._waiting = {path: rows for path, rows in waiting.items() if rows}
        if not over:
            return None
        assert self.columns is not None
        roles = [role for role in self.columns.named() if role not in ("id", "time")]
        columns = zip(*(row[2] for row in over), strict=True)
        return NewRows(
            ids=list(self._codes),
            codes=np.array([row[0] for row in over], dtype=np.int64),
            times=np.array([row[1] for row in over], dtype=np.int64),
            dated=bool(self._dated),
            numbers={role: np.array(column) for role, column in zip(roles, columns, strict=True)},
        )

    def standing(self) -> dict[str, Any]:
        """Return the state for `resume`: how far files were read, and rows that wait. It can be pickled."""
        return {name: getattr(self, name) for name in _STANDING}

    def resume(self, standing: dict[str, Any]) -> None:
        """Continue where another tail of the same files was."""
        for name in _STANDING:
            setattr(self, name, standing[name])

    def note(self) -> str:
        """Return an empty string: a file without the required columns is an error."""
        return ""

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""

    def _is_quiet(self) -> bool:
        return not self.is_behind and time.monotonic() - self._quiet_since >= self._settle_s

    def _read(self, settled: bool) -> None:
        """Queue new complete lines as rows; at most `_piece_bytes` of a file at a time."""
        paths = files_of(self._path)
        self._order = {path: place for place, path in enumerate(paths)}
        self.is_behind = self._is_partial = self._is_cut = False
        for path in paths:
            is_last = path == paths[-1]
            kind = format_of(path)
            if kind not in ("csv", "tsv", "parquet") or path.endswith((".gz", ".zst", ".bz2", ".xz")):
                raise SeriesError(f"{path}: only CSV that is not compressed and Parquet files can be followed")
            state = self._files.setdefault(path, _File())
            with Path(path).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < state.offset:
                    raise SeriesError(
                        f"{path} has become shorter while it was followed: {size} bytes after {state.offset}"
                    )
                still, state.size = size == state.size, size
                if not still:
                    self._quiet_since = time.monotonic()
                if kind == "parquet" and not size and not settled:
                    # The file was just created, and its rows come before those of later files.
                    self._is_partial = not is_last
                    break
                if size == state.offset:
                    continue
                if kind == "parquet":
                    if not settled and not _is_whole(file, size):
                        self._is_partial = not is_last
                        break
                    self._wait(path, self._table(path, state))
                    state.offset, self._quiet_since = size, time.monotonic()
                    continue
                file.seek(state.offset)
                piece = file.read(min(self._piece_bytes, size - state.offset))
            if state.offset + len(piece) < size:
                self.is_behind = True
                # A single file yields its days while it is being read.
                self._is_partial |= len(paths) > 1
            whole = piece.rfind(b"\n") + 1
            rest = whole < len(piece) == size - state.offset
            if rest and still and not is_last:
                whole, rest = len(piece), False
            elif not whole and len(piece) == self._piece_bytes:
                raise SeriesError(f"{path}: line {state.line + 1} has more than {self._piece_bytes} bytes")
            self._wait(path, self._lines(path, state, piece[:whole]))
            if whole and not settled:
                # Reading much takes long, which does not count as quiet time.
                self._quiet_since = time.monotonic()
            if rest:
                self._is_cut, self._is_partial = is_last, self._is_partial or not is_last
                break

    def _wait(self, path: str, rows: list[_Row]) -> None:
        if rows:
            self._waiting.setdefault(path, []).extend(rows)

    def _table(self, path: str, state: _File) -> list[_Row]:
        """Return the rows of a Parquet file."""
        if state.offset:
            raise SeriesError(f"{path} has grown since it was read: write new rows to a new file")
        try:
            data, columns = open_source(path, self._chosen)
            read = read_rows(data, columns, alone=True)
            stamps = read.times.astype("datetime64[us]") if read.dated else read.times
            times = [self._time(text) for text in stamps.astype(str).tolist()]
        except (DataSetError, ValueError) as error:
            raise SeriesError(f"{path}: {error}") from error
        self._agree(path, columns)
        codes = [self._codes.setdefault(name, len(self._codes)) if name else -1 for name in read.ids]
        keyed = (read.codes >= 0) & (read.places >= 0)
        self.left_out["without_key"] += int(len(keyed) - keyed.sum())
        numbers = [read.numbers[role][keyed].tolist() for role in columns.named() if role not in ("id", "time")]
        places = zip(read.codes[keyed].tolist(), read.places[keyed].tolist(), zip(*numbers, strict=True), strict=True)
        return [(codes[code], times[place], row) for code, place, row in places]

    def _agree(self, path: str, columns: Columns) -> None:
        """Check that all files have the same columns."""
        if self.columns is not None and columns != self.columns:
            raise SeriesError(
                f"{path} has other columns than the files before: {columns.named()}, not {self.columns.named()}"
            )
        self.columns = columns

    def _lines(self, path: str, state: _File, piece: bytes) -> list[_Row]:
        try:
            text = piece.decode("utf-8-sig" if state.offset == 0 else "utf-8")
        except UnicodeDecodeError as error:
            raise SeriesError(f"{path}, behind byte {state.offset}: not UTF-8: {error}") from error
        if piece and state.cut:
            end = re.match("\r?\n", text)
            if end is None:
                raise SeriesError(
                    f"{path}, line {state.line}: it had no line feed and was used when a later file appeared, but now it continues; "
                    "write files one after the other, or under a name that begins with a dot and rename them"
                )
            text = text[end.end() :]
        state.offset += len(piece)
        lines = text.split("\n")
        state.cut = bool(lines[-1]) or (state.cut and not piece)
        if not lines[-1]:
            lines.pop()
        delimiter = self._delimiter or delimiter_of(path)
        rows = []
        for line in lines:
            state.line += 1
            row = self._line(path, state, line.removesuffix("\r"), delimiter)
            if row is not None:
                rows.append(row)
        return rows

    def _line(self, path: str, state: _File, text: str, delimiter: str) -> _Row | None:
        if not text:
            return None
        fields = next(csv.reader([text], delimiter=delimiter))
        if state.fields is None:
            self._header(path, state, fields)
            return None
        try:
            if text.count('"') % 2:
                raise ValueError("a quote is not closed")
            row = self._row(state, fields)
        except ValueError as error:
            if not self._lenient:
                raise SeriesError(
                    f'{path}, line {state.line}: {error}; --bad-rows skip (on_error="skip") leaves such rows out'
                ) from error
            self.left_out["unreadable"] += 1
            return None
        if row is None:
            self.left_out["without_key"] += 1
        return row

    def _header(self, path: str, state: _File, names: list[str]) -> None:
        if (twice := next((name for place, name in enumerate(names) if name in names[:place]), None)) is not None:
            raise SeriesError(f"{path}: column {twice!r} appears twice in the header; give each its own name")
        try:
            columns = find_columns(names, self._chosen)
        except SeriesError as error:
            raise SeriesError(f"{path}: {error}") from error
        self._agree(path, columns)
        state.fields = {role: names.index(name) for role, name in columns.named().items()}
        state.width = len(names)

    def _row(self, state: _File, fields: list[str]) -> _Row | None:
        """Return a row; None if it has no id or no time."""
        assert state.fields is not None
        if len(fields) != state.width:
            raise ValueError(f"{state.width} values expected, {len(fields)} found")
        texts = {role: "" if self._is_null(fields[place]) else fields[place] for role, place in state.fields.items()}
        stamp = texts.pop("time")
        name = plain_id(texts.pop("id"))
        at = self._stamps.get(stamp)
        if at is None and stamp:
            at = self._stamps[stamp] = self._time(stamp)
        numbers = tuple(_number(role, text) for role, text in texts.items())
        if at is None or not name:
            return None
        return self._codes.setdefault(name, len(self._codes)), at, numbers

    def _is_null(self, text: str) -> bool:
        return text in self._null

    def _time(self, text: str) -> int:
        """Return a time. All have the type of the first one: a date, or an integer; integers like 20161230 are dates."""
        is_whole = re.fullmatch(r"-?\d+", text) is not None
        micros = date_of_number(int(text)) if is_whole else _date(text)
        if self._dated is None:
            self._dated = micros is not None or not is_whole
        if not self._dated:
            if not is_whole:
                raise ValueError(f"{text!r} is not an integer, unlike earlier times")
            return int(text)
        if micros is None:
            raise ValueError(f"{text!r} is not a time such as 2016-12-30 or 2016-12-30T17:00:00")
        return micros


def _is_whole(file: BinaryIO, size: int) -> bool:
    """Return whether the end of a Parquet file exists."""
    if size < _PARQUET_BYTES_MIN:
        return False
    file.seek(-len(_PARQUET), os.SEEK_END)
    return file.read() == _PARQUET


def date_of_number(number: int) -> int | None:
    """Return a number such as 20161230 as microseconds since 1970; None if it is not a date."""
    dates = steps_or_dates(np.array([number])) if abs(number) < 2**63 else None
    return None if dates is None else int(dates[0])


def _date(text: str) -> int | None:
    """Return microseconds since 1970, in UTC."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, clock, zone = found.groups()
    try:
        micros = int(np.datetime64(f"{day}T{(clock or '00:00:00')[:15]}", "us").astype(np.int64))
    except ValueError:
        return None
    if zone is None or zone == "Z":
        return micros
    minutes = 60 * int(zone[1:3]) + int(zone[-2:])
    return micros - (1 if zone[0] == "+" else -1) * minutes * 60_000_000


def _number(role: str, text: str) -> float:
    if not text:
        return float("nan")
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a number, but the column of {role}s has numbers")
    return float(text)
