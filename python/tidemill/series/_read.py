"""Rows of a long table (id, time, value, further columns) from files, DataSets and Arrow tables.

Each worker gets the rows that it has read, with the position of each in the source. So "the earliest" of two rows is
the one that comes first in the files, however many workers and threads read them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill._collective_errors import fail_together
from tidemill._tables.engine import engine
from tidemill._tables.workers import collect_in_order
from tidemill._tidemill import NativeTable
from tidemill.dataset import (
    BadRowsWarning,
    DataSet,
    DataSetError,
    coalesce,
    col,
    from_arrow,
    lit,
    read_csv,
    read_ipc,
    read_json,
    read_parquet,
)
from tidemill.series._errors import SeriesError
from tidemill.series._zones import wall, zone_of

__all__ = [
    "FORMATS",
    "PACKED",
    "Columns",
    "Rows",
    "SeriesError",
    "Source",
    "collective_try",
    "delimiter_of",
    "files_of",
    "find_columns",
    "format_of",
    "open_source",
    "open_texts",
    "plain_id",
    "read_rows",
    "steps_or_dates",
]

T = TypeVar("T")

#: A file, a folder, a glob, several of them, a DataSet, or a table of any library with the Arrow PyCapsule interface.
Source = Any

#: Usual names of columns, ignoring case, spaces and underscores; the first match is used.
KNOWN: dict[str, tuple[str, ...]] = {
    "id": ("id", "ticker", "symbol", "permno", "series", "name", "key"),
    "time": ("time", "date", "datetime", "timestamp", "day"),
    "value": ("value", "adjclose", "adjustedclose", "close", "price", "prc"),
    "cap": ("cap", "marketcap", "mktcap", "capitalization", "weight"),
    "shares": ("sharesoutstanding", "outstandingshares", "shrout"),
    "volume": ("volume", "vol"),
    "split": ("split", "splitratio", "splitfactor", "stocksplits", "splits"),
    # A second factor is used only if it is named, because its usual names do not distinguish it from the first.
    "split_shares": (),
    # Looked for only next to adjusted values: unadjusted ones are themselves the price paid.
    "price": ("close", "price", "prc"),
}
_NEEDED = ("id", "time", "value")

#: Formats by file name suffix, before any suffix for compression; all other files are CSV.
FORMATS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".ipc", ".feather", ".arrows"), "ipc"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    ".csv": "csv",
}
PACKED = (".gz", ".bz2", ".xz", ".zst")


#: Maximum number of rows in a partition.
_PARTITION = 1 << 40


@dataclass(frozen=True)
class Columns:
    """Columns by role; None if there is none. `notes` name ignored columns, and why."""

    id: str
    time: str
    value: str
    cap: str | None = None
    shares: str | None = None
    volume: str | None = None
    split: str | None = None
    split_shares: str | None = None
    price: str | None = None
    notes: tuple[str, ...] = ()

    def named(self) -> dict[str, str]:
        """Existing columns, by their role."""
        return {role: getattr(self, role) for role in KNOWN if getattr(self, role) is not None}


@dataclass
class Rows:
    """Rows of one worker."""

    #: The distinct ids and times. Dates are in microseconds since 1970, by the clock of the column's time zone; other
    #: times are the given numbers.
    ids: list[str]
    times: NDArray[np.int64]
    #: The id of each row, (n,) int32; -1 if it has none.
    codes: NDArray[np.int32]
    places: NDArray[np.int32]
    #: (n,) int64, increasing with the position in the source, also compared with rows of other workers; None if rows
    #: have no order.
    order: NDArray[np.int64] | None
    #: Whether times are dates.
    dated: bool
    #: (n,) float64 by role, without id and time; NaN for missing values.
    numbers: dict[str, NDArray[np.float64]]

    def where(self, kept: NDArray[np.bool_]) -> Rows:
        """Return the rows for which `kept` (n,) is true."""
        return replace(
            self,
            codes=self.codes[kept],
            places=self.places[kept],
            order=None if self.order is None else self.order[kept],
            numbers={role: column[kept] for role, column in self.numbers.items()},
        )


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(" ", "").replace("-", "")


def _plural(role: str) -> str:
    """Return how messages name the numbers of a role."""
    return {"shares": "shares", "split_shares": "second factors of splits"}.get(role, f"{role}s")


def find_columns(names: Sequence[str], chosen: Mapping[str, str | None]) -> Columns:
    """Assign roles to columns: by the names chosen for roles, else by usual names.

    If values are adjusted, according to their name, splits are used only if chosen, and the price paid is in another
    column.

    Raises
    ------
    SeriesError
        If a chosen column does not exist, or no column has a usual name for ids, times or values.
    """
    there = ", ".join(names)
    found: dict[str, str] = {}
    notes: list[str] = []
    adjusted = False
    for role, usual in KNOWN.items():
        name = chosen.get(role)
        if name is not None:
            if name not in names:
                raise SeriesError(f"no column {name!r} for the {_plural(role)}; there are: {there}")
            found[role] = name
            adjusted |= role == "value" and "adj" in _plain(name)
            continue
        if role == "price" and not (
            adjusted and "cap" not in found and not found.keys().isdisjoint(("shares", "volume"))
        ):
            continue
        if (role == "cap" and chosen.get("shares")) or (role == "shares" and chosen.get("volume")):
            # The value of a series comes from the named column.
            continue
        by_plain = {_plain(other): other for other in reversed(names)}
        hit = next((by_plain[word] for word in usual if word in by_plain), None)
        if hit is None and role in _NEEDED:
            raise SeriesError(
                f"no column is named like {'an' if role == 'id' else 'a'} {role} ({', '.join(usual)}); name it: {role}=..., --{role} COLUMN; there are: {there}"
            )
        if hit is None or hit in found.values():
            continue
        if role == "value":
            adjusted = "adj" in _plain(hit)
        elif role == "split" and adjusted:
            notes.append(f"splits in {hit!r} were left alone: {found['value']!r} is adjusted for them, by its name")
            continue
        found[role] = hit
    if "split_shares" in found and "split" not in found:
        raise SeriesError(
            f"column {found['split_shares']!r} has a second factor of splits, to compare with the first: name that one too, "
            "--split COLUMN (split=...)"
        )
    if len(set(found.values())) < len(found):
        raise SeriesError(f"a column can be only one thing, not: {found}")
    return Columns(**found, notes=tuple(notes))


def open_source(
    source: Source,
    chosen: Mapping[str, str | None],
    *,
    delimiter: str | None = None,
    null: str | Sequence[str] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> tuple[DataSet, Columns]:
    """Open the source of series, and find its columns. The same on every worker.

    Raises
    ------
    DataSetError
        If a file does not exist, or cannot be read.
    SeriesError
        See `find_columns`.
    """
    if isinstance(source, DataSet):
        return source, find_columns(source.columns, chosen)
    if hasattr(source, "__arrow_c_stream__"):
        data = from_arrow(source)
        return data, find_columns(data.columns, chosen)
    paths = [os.fspath(path) for path in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    if not paths:
        raise SeriesError("no file was given")
    kind = format_of(paths[0])
    if kind == "parquet":
        data = read_parquet(paths)
    elif kind == "ipc":
        data = read_ipc(paths)
    elif kind == "json":
        data = read_json(paths, on_error=on_error)
    else:
        if delimiter is None:
            delimiter = delimiter_of(paths[0])
        # Do not infer types from the first rows: an id may look like a number for a thousand rows, and a volume like an
        # integer. Only the type of times must be determined.
        names = read_csv(paths, delimiter=delimiter, infer_rows=1).columns
        columns = find_columns(names, chosen)
        schema = dict.fromkeys(names, "str")
        # An invalid value must not hide the time next to it.
        texts = read_csv(paths, schema=schema, delimiter=delimiter, null=null, on_error="skip")
        schema |= {name: "float64" for role, name in columns.named().items() if role not in ("id", "time")}
        schema[columns.time], first = _time_type(texts, columns.time)
        data = read_csv(paths, schema=schema, delimiter=delimiter, null=null, on_error=on_error)
        if (offset := _offset(first)) is not None:
            note = f"times have offsets, such as {offset}, and were taken in UTC: days are those of UTC"
            columns = find_columns(data.columns, chosen)
            return data, replace(columns, notes=(*columns.notes, note))
    return data, find_columns(data.columns, chosen)


def _offset(text: str) -> str | None:
    """Return the offset from UTC of a time given as a string; None if there is none."""
    found = re.search(r"\d\d:\d\d.*([+-]\d\d:?\d\d)$", text.strip())
    return None if found is None or not found[1].strip("+-0:") else found[1]


def files_of(path: str) -> list[str]:
    """Return the files of a local path, by the rules of the file readers and in their order; empty if there are none
    yet.

    Raises
    ------
    SeriesError
        If the path is not a valid glob, or a folder cannot be listed.
    """
    try:
        # A query orders files by their full paths.
        return sorted(engine().find_files([path]))
    except DataSetError as error:
        if str(error).startswith(("there is no file or folder", "there are no files in")):
            return []
        raise SeriesError(str(error)) from error


def format_of(path: str) -> str:
    """Return the format of a file, or of the first file of a folder, by its name."""
    place = Path(path)
    if "://" not in path and place.is_dir():
        inside = files_of(path)
        if not inside:
            raise SeriesError(f"{path}: no files in this folder")
        place = Path(inside[0])
    suffixes = [word.lower() for word in place.suffixes]
    while suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return FORMATS.get(suffixes[-1] if suffixes else "", "csv")


def delimiter_of(path: str) -> str:
    """Return the field separator of a CSV, by its file name."""
    return "\t" if format_of(path) == "tsv" else ","


def _time_type(texts: DataSet, name: str, *, alone: bool = False) -> tuple[str, str]:
    """Return the type of times given as strings, judging by the first ones, and an example of it. Collective, or
    `alone`, as in `read_rows`.
    """
    texts = texts.select(col(name).cast("str")).filter(col(name).is_not_null()).limit(20)
    if alone:
        first = collect_in_order(texts._native, alone=True)[0].column(name)
    else:
        with warnings.catch_warnings():
            # Problems with the rows are reported when they are actually read.
            warnings.simplefilter("ignore", BadRowsWarning)
            first = texts.to_dict()[name]
    if all(re.fullmatch(r"-?\d+", text.strip()) for text in first):
        return "int64", next(iter(first), "none at all")
    odd = [text for text in first if not re.match(r"\d{4}-\d\d-\d\d", text.strip())]
    return ("str", odd[0]) if odd else ("timestamp[us]", first[0])


def read_rows(data: DataSet, columns: Columns, *, alone: bool = False) -> Rows:
    """Read this worker's share of the rows. Collective; or, if it is `alone`, read all of them, and other workers need
    not call it.

    Raises
    ------
    SeriesError
        On every worker: if times are neither dates nor integers, nor strings of these.
    DataSetError
        On every worker: if rows cannot be read; with file, line and reason of the first.
    """
    kind, stamps = data.schema[columns.time], col(columns.time)
    dated, is_text = kind.startswith(("Date", "Timestamp")), "Utf8" in kind
    if not dated and not kind.startswith(("Int", "UInt")):
        looks, such = _time_type(data, columns.time, alone=alone)
        if not is_text or looks == "str":
            raise SeriesError(
                f"times in column {columns.time!r} are {'text' if is_text else kind}, such as {such!r}; dates as 2016-12-30, "
                "times as 2016-12-30T17:00:00 or whole numbers are read; of a DataSet, .str.to_date(...) makes dates of texts"
            )
        dated, stamps = looks != "int64", stamps.cast("str").str.strip().cast(looks)
    time = (stamps.cast("timestamp[us]") if dated else stamps).cast("int64")
    parts: dict[str, Any] = {"id": col(columns.id).cast("str"), "time": time}
    for role, name in columns.named().items():
        if role not in ("id", "time"):
            parts[role] = coalesce(col(name).cast("float64"), lit(float("nan")))
    try:
        table, counts = collect_in_order(data.select(**parts)._native, alone=alone)
    except DataSetError as error:
        if is_text and "Parser error" in str(error):
            raise SeriesError(f"times in column {columns.time!r} are text, and one is not a time: {error}") from error
        texts = [
            repr(name)
            for role, name in columns.named().items()
            if role not in ("id", "time") and "Utf8" in data.schema[name]
        ]
        if texts and "Cannot cast string" in str(error):
            raise SeriesError(
                f"values in column {' or '.join(texts)} are text, and one is not a number: {error}; write numbers like 100.12, "
                "without currency signs or commas"
            ) from error
        raise
    codes, names = _coded(table, "id")
    places, times = _coded(table, "time")
    ids = [plain_id(text) for text in names]
    # An empty id counts as missing.
    unnamed = [code for code, name in enumerate(ids) if not name]
    if unnamed:
        codes = np.where(np.isin(codes, unnamed), -1, codes)
    arrays = {role: data for role, _, data in table.to_arrays() if role not in ("id", "time")}
    numbers = {role: np.empty(0) if data is None else data.view(np.float64) for role, data in arrays.items()}
    order = None
    if data._native.is_in_order:
        order = np.concatenate([np.arange(count) + number * _PARTITION for number, count in enumerate([*counts, 0])])
    clock = wall(np.array(times, dtype=np.int64), zone_of(kind))
    return Rows(ids, clock, codes, places, order, dated, numbers)


def plain_id(text: str) -> str:
    """Return a normalized id: without surrounding spaces, and integers without the ``.0`` of those that became floats,
    as in pandas.
    """
    text = text.strip()
    return text[:-2] if text.endswith(".0") and text[:-2].isdecimal() else text


def _coded(table: NativeTable, column: str) -> tuple[NDArray[np.int32], list[Any]]:
    """Return a column as numbers of its distinct values, and these values: avoids a Python object for each row."""
    codes, distinct = table.codes(column)
    return np.frombuffer(codes, dtype=np.int32), [value for value in distinct.column(column) if value is not None]


def steps_or_dates(times: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return integers such as 20161230 as dates, if all are valid dates: microseconds since 1970, else None."""
    if not len(times) or times.min() < 1900_01_01 or times.max() > 2199_12_31:
        return None
    year, month, day = times // 10000, times // 100 % 100, times % 100
    if month.min() < 1 or month.max() > 12 or day.min() < 1:
        return None
    months = (year - 1970) * 12 + month - 1
    dates = months.astype("datetime64[M]").astype("datetime64[D]") + (day - 1)
    # A day that does not exist in its month would become one of the next month.
    if (dates.astype("datetime64[M]").astype(np.int64) != months).any():
        return None
    micros: NDArray[np.int64] = dates.astype("datetime64[us]").astype(np.int64)
    return micros


def collective_try(comm: Any, work: Callable[[], T]) -> T:
    """Run work that may fail on one worker only; then all raise, so that none waits for one that has left.

    Raises
    ------
    SeriesError
        On every worker, if `work` raised `ValueError` or `OSError` on one: the message of the first.
    """
    return fail_together(comm, work, lambda said, _: SeriesError(said), catches=(ValueError, OSError))


def open_texts(source: Source) -> DataSet:
    """Open a table, with all columns of a CSV as strings."""
    if hasattr(source, "__arrow_c_stream__"):
        return from_arrow(source)
    path = os.fspath(source)
    kind = format_of(path)
    if kind == "parquet":
        return read_parquet(path)
    if kind == "ipc":
        return read_ipc(path)
    if kind == "json":
        return read_json(path)
    delimiter = delimiter_of(path)
    names = read_csv(path, delimiter=delimiter, infer_rows=1).columns
    return read_csv(path, schema=dict.fromkeys(names, "str"), delimiter=delimiter)
