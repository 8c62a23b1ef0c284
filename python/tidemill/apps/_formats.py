"""Reads each rank's share of a table: CSV (also ``.gz``), Parquet, ``.npy``, and the IDX files of MNIST.

Text is divided by bytes, and a line belongs to the rank in whose part it begins; Parquet is divided by row groups;
``.npy`` and IDX by rows. A compressed file cannot be entered in the middle, so each rank decompresses it up to the end
of its part.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from tidemill.apps._table import Bad, Column, Share, TableError, fail_together
from tidemill.ml._job import Comm

__all__ = ["Choose", "read"]

#: Selects columns by number, once they are known.
Choose = Callable[[list[Column]], list[int]]

#: The lines that determine delimiter, header and kinds; and the bytes read at a time.
_SAMPLE_LINES = 1000
_BLOCK_BYTES = 4 << 20
_DELIMITERS = ",\t;|"


@dataclass(frozen=True)
class Layout:
    """Layout of a text file."""

    delimiter: str
    header: bool
    columns: list[Column]
    #: A note for the user about the header, if it was a guess that may be wrong.
    note: str | None = None


def read(comm: Comm, path: Path, choose: Choose, *, delimiter: str | None = None, header: bool | None = None) -> Share:
    """Read a rank's share of the chosen columns. Collective; a failure is raised on every rank.

    Parameters
    ----------
    path : Path
        The file name determines the format: ``.npy``, ``.parquet`` or ``.pq``, ``idx?-ubyte``, else text.
    delimiter, header : optional
        For text: the field separator, and whether the first line has the column names; by default detected from the
        first lines.

    Raises
    ------
    TableError
        If the file is missing, empty or does not match its name.
    """
    name = path.name.removesuffix(".gz")

    def work() -> Share:
        if not path.is_file():
            raise TableError(f"{path}: no such file")
        if name.endswith(".npy"):
            return _read_npy(comm, path, choose)
        if name.endswith((".parquet", ".pq")):
            return _read_parquet(comm, path, choose)
        if name.endswith("-ubyte"):
            return _read_idx(comm, path, choose)
        return _read_text(comm, path, choose, delimiter, header)

    return cast(Share, fail_together(comm, work))


def _bounds(comm: Comm, total: int) -> tuple[int, int]:
    return total * comm.rank // comm.size, total * (comm.rank + 1) // comm.size


def _number_share(path: Path, array: NDArray[Any], names: list[str], choose: Choose) -> Share:
    """Return a share from a matrix of numbers; rows with a value that is not finite are bad."""
    columns = [Column(name, text=False) for name in names]
    chosen = choose(columns)
    values = np.ascontiguousarray(array[:, chosen], dtype=np.float64)
    good = np.asarray(np.isfinite(values).all(axis=1), dtype=np.bool_)
    bad = []
    for row in np.flatnonzero(~good):
        column = int(np.flatnonzero(~np.isfinite(values[row]))[0])
        bad.append(Bad(int(row), f"column {names[chosen[column]]!r} is {values[row, column]}"))
    kept = values[good]
    return Share([columns[i] for i in chosen], list(kept.T), good, bad, places=len(values))


def _read_npy(comm: Comm, path: Path, choose: Choose) -> Share:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise TableError(f"{path}: not a .npy file of numbers: {error}") from error
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or array.size == 0:
        raise TableError(
            f"{path}: has shape {array.shape} of {array.dtype}, but rows and columns of numbers are needed"
        )
    array = array.reshape(len(array), -1)
    start, end = _bounds(comm, len(array))
    return _number_share(path, array[start:end], [str(i) for i in range(array.shape[1])], choose)


def _read_idx(comm: Comm, path: Path, choose: Choose) -> Share:
    with _open(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:3] != b"\0\0\x08" or magic[3] < 1:
            raise TableError(f"{path}: not an IDX file of bytes")
        shape = np.frombuffer(file.read(4 * magic[3]), dtype=">u4").astype(np.int64)
        start, end = _bounds(comm, int(shape[0]))
        width = int(np.prod(shape[1:]))
        file.seek(4 + 4 * magic[3] + start * width)
        data = np.frombuffer(file.read((end - start) * width), dtype=np.uint8)
    if len(data) != (end - start) * width:
        raise TableError(f"{path}: ends before its {shape[0]} rows do")
    return _number_share(path, data.reshape(-1, width), [str(i) for i in range(width)], choose)


def _read_parquet(comm: Comm, path: Path, choose: Choose) -> Share:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise TableError(f"{path}: reading Parquet needs pyarrow; install it with: pip install pyarrow") from error
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise TableError(f"{path}: not a Parquet file: {error}") from error
    columns = []
    for column in file.schema_arrow:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise TableError(f"{path}: column {column.name!r} of type {column.type} is neither numbers nor text")
        columns.append(Column(column.name, text))
    chosen = choose(columns)
    names = [columns[i].name for i in chosen]
    start, end = _bounds(comm, file.metadata.num_rows)
    tables, before = [], 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        first, last = max(start, before), min(end, before + rows)
        if first < last:
            tables.append(file.read_row_group(group, columns=names).slice(first - before, last - first))
        before += rows
    schema = pa.schema([file.schema_arrow.field(name) for name in names])
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    good = np.ones(end - start, dtype=bool)
    reasons: dict[int, str] = {}
    raw: list[Any] = []
    for i, name in zip(chosen, names, strict=True):
        if columns[i].text:
            values = table[name].to_pylist()
            wrong = np.array([value is None for value in values], dtype=bool)
        else:
            values = np.array(table[name].cast(pa.float64()).to_numpy(), dtype=np.float64)
            wrong = ~np.isfinite(values)
        raw.append(values)
        for row in np.flatnonzero(wrong & good):
            reasons[int(row)] = f"column {name!r} is {'missing' if columns[i].text else values[row]}"
        good &= ~wrong
    kept: list[NDArray[np.float64] | list[str]] = [
        [value for value, keep in zip(values, good, strict=True) if keep] if isinstance(values, list) else values[good]
        for values in raw
    ]
    bad = [Bad(row, reasons[row]) for row in sorted(reasons)]
    return Share([columns[i] for i in chosen], kept, good, bad, places=end - start)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _size(path: Path) -> int:
    """Return the bytes of decompressed text. The length in a ``.gz`` cannot be trusted, so it is decompressed."""
    if path.suffix != ".gz":
        return path.stat().st_size
    total = 0
    with _open(path) as file:
        while block := file.read(1 << 20):
            total += len(block)
    return total


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    """Yield the fields of each line; none for an empty line.

    Raises
    ------
    csv.Error
        Also if a row spans several lines, by a quoted line break: such rows cannot be divided by bytes.
    """
    rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    if len(rows) != len(lines):
        raise csv.Error("a quoted field has a line break")
    return rows


def _rows_one_by_one(lines: list[bytes], delimiter: str) -> list[list[str] | None]:
    """Like `_rows`, with ``None`` for lines that cannot be read."""
    rows: list[list[str] | None] = []
    for line in lines:
        try:
            rows.extend(_rows([line.decode("utf-8-sig")], delimiter))
        except (UnicodeDecodeError, csv.Error):
            rows.append(None)
    return rows


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _sniff(path: Path, delimiter: str | None, header: bool | None) -> Layout:
    """Detect delimiter, header and kinds from the first lines."""
    with _open(path) as file:
        lines = [line.rstrip(b"\r\n") for line in itertools.islice(file, _SAMPLE_LINES)]
    if not any(line.strip() for line in lines):
        raise TableError(f"{path}: the file is empty")

    def split(candidate: str) -> list[list[str]]:
        return [row for row in _rows_one_by_one(lines, candidate) if row]

    def widths(candidate: str) -> list[int]:
        return [len(row) for row in split(candidate)] or [0]

    if delimiter is None:
        # The best one splits most lines into the same number of fields, and into the largest number.
        def merit(candidate: str) -> tuple[float, int]:
            counts = widths(candidate)
            common = max(set(counts), key=counts.count)
            return (counts.count(common) / len(counts) if common > 1 else 0.0, common)

        best = max([*_DELIMITERS, " "], key=merit)
        delimiter = best if merit(best)[0] > 0.5 else ","
    rows = split(delimiter)
    if not rows:
        raise TableError(f"{path}: no line can be read as text")
    counts = [len(row) for row in rows]
    width = max(set(counts), key=counts.count)
    body = [row for row in rows[1:] if len(row) == width]
    number_columns = [sum(_is_number(row[i]) for row in body) * 2 > len(body) for i in range(width)]
    note = None
    if header is None:
        header, note = _is_header(rows[0], body, number_columns)
    names = [field.strip() for field in rows[0]] if header and len(rows[0]) == width else [str(i) for i in range(width)]
    repeated = {name for name in names if names.count(name) > 1}
    names = [f"{name}.{i}" if name in repeated or not name else name for i, name in enumerate(names)]
    if not header:
        body = [row for row in rows if len(row) == width]
        number_columns = [sum(_is_number(row[i]) for row in body) * 2 > len(body) for i in range(width)]
    return Layout(
        delimiter, header, [Column(name, not number) for name, number in zip(names, number_columns, strict=True)], note
    )


#: From this many consecutive numbers on, counting up or rising is not a coincidence.
_COUNTING_MIN = 3
_RISING_MIN = 6


def _is_header(first: list[str], body: list[list[str]], number_columns: list[bool]) -> tuple[bool, str | None]:
    """Return whether the first line has column names, and a message for the user if that is a guess.

    `body` has the other lines of the sample, all as wide as `number_columns`.
    """
    if len(first) != len(number_columns):
        return False, None
    if not any(map(_is_number, first)):
        # Names are above columns with numbers.
        return any(number_columns) or not body, None
    columns = [i for i, number in enumerate(number_columns) if number]
    if not body or not columns:
        return False, None
    numbers = [i for i in columns if _is_number(first[i])]
    counts = _counts([first[i] for i in numbers])
    if len(numbers) < len(columns):
        # A word above numbers is a name, and so are numbers next to it: label,0,1,2. A missing value is not a word.
        words = [first[i].strip() for i in columns if i not in numbers]
        named = all(word and word.lower() not in _MISSING for word in words)
        return named and (counts or len(numbers) == 1), None
    shown = ", ".join(field.strip() for field in first[:4]) + (", ..." if len(first) > 4 else "")
    others = [[row[i] for i in numbers] for row in body]
    whole = any(_is_whole(field) for row in others for field in row)
    if counts and len(numbers) > 1 and not whole:
        # Integers that count up, above numbers that are all written with a fraction.
        return True, f"the first line ({shown}) is taken as a header; use --header no if it is a row of data"
    doubtful = (
        (len(numbers) >= _COUNTING_MIN and counts and not any(map(_counts, others)))
        or (len(numbers) >= _RISING_MIN and _rises(first[i] for i in numbers) and not any(map(_rises, others)))
        or (len(numbers) == 1 and first[numbers[0]].strip() == "0" and not whole)
    )
    if doubtful:
        return (
            False,
            f"the first line ({shown}) looks like a header, but is taken as a row of data; --header yes|no says which it is",
        )
    return False, None


#: Words that mean a missing number.
_MISSING = frozenset(
    {"na", "n/a", "nan", "null", "none", "nil", "inf", "-inf", "+inf", "infinity", "-infinity", "?", "-"}
)


def _is_whole(field: str) -> bool:
    """Return whether a field is written as an unsigned integer."""
    field = field.strip()
    return field.isascii() and field.isdigit()


def _counts(fields: Iterable[str]) -> bool:
    """Return whether fields are integers that count up by one: 0, 1, 2 or 2019, 2020."""
    fields = list(fields)
    if not fields or not all(map(_is_whole, fields)):
        return False
    start = int(fields[0])
    return [int(field) for field in fields] == list(range(start, start + len(fields)))


def _rises(fields: Iterable[str]) -> bool:
    """Return whether fields are increasing numbers."""
    fields = list(fields)
    return all(map(_is_number, fields)) and all(float(a) < float(b) for a, b in itertools.pairwise(fields))


def _read_text(comm: Comm, path: Path, choose: Choose, delimiter: str | None, header: bool | None) -> Share:
    layout = _sniff(path, delimiter, header)
    if layout.note and comm.rank == 0:
        print(f"tidemill kmeans: {path}: {layout.note}", file=sys.stderr)
    chosen = choose(layout.columns)
    parser = _Parser(layout, chosen)
    start, end = _bounds(comm, _size(path))
    with _open(path) as file:
        if start > 0:
            file.seek(start - 1)
            # Skip the rest of the line that began in the previous rank's part.
            start += len(file.readline()) - 1
        at = start
        while at < end:
            block = file.read(min(_BLOCK_BYTES, end - at))
            if not block.endswith(b"\n"):
                block += file.readline()
            if not block:
                break
            parser.take(block, skip=int(at == 0 and layout.header))
            at += len(block)
    return parser.share()


class _Parser:
    """Parses lines into columns, batch by batch."""

    def __init__(self, layout: Layout, chosen: list[int]) -> None:
        self.layout = layout
        self.chosen = chosen
        self.lines = 0
        self.bad: list[Bad] = []
        self.good: list[NDArray[np.bool_]] = []
        self.values: list[list[Any]] = [[] for _ in chosen]

    def take(self, block: bytes, skip: int) -> None:
        """Read the lines of `block` except the first `skip`."""
        block = block.removesuffix(b"\n")
        rows: Sequence[list[str] | None]
        try:
            # Not splitlines(), which also splits at characters that can be part of a field.
            lines = block.decode("utf-8-sig" if self.lines == 0 else "utf-8").split("\n")
            rows = _rows(lines, self.layout.delimiter)
        except (UnicodeDecodeError, csv.Error):
            rows = _rows_one_by_one(block.split(b"\n"), self.layout.delimiter)
        self._convert([(line, row) for line, row in enumerate(rows) if row != [] and line >= skip])
        self.lines += len(rows)

    def _convert(self, rows: list[tuple[int, list[str] | None]]) -> None:
        width = len(self.layout.columns)
        good = np.ones(len(rows), dtype=bool)
        reasons: dict[int, str] = {}
        blank = ["0"] * width
        whole: list[list[str]] = []
        for at, (_, row) in enumerate(rows):
            if row is not None and len(row) == width:
                whole.append(row)
                continue
            whole.append(blank)
            good[at] = False
            reasons[at] = (
                "not UTF-8 text, or a quoted field with a line break"
                if row is None
                else f"{len(row)} fields, but {width} are expected"
            )
        columns = list(zip(*whole, strict=True)) or [()] * width
        converted: list[Any] = []
        for number in self.chosen:
            column, fields = self.layout.columns[number], columns[number]
            if column.text:
                converted.append(fields)
                continue
            try:
                values = np.fromiter(map(float, fields), np.float64, len(fields))
            except ValueError:
                values = np.array([float(field) if _is_number(field) else math.nan for field in fields])
            for at in map(int, np.flatnonzero(~np.isfinite(values) & good)):
                field = fields[at].strip()
                good[at] = False
                reasons[at] = f"column {column.name!r}: " + (f"{field!r} is not a number" if field else "nothing there")
            converted.append(values)
        for kept, values in zip(self.values, converted, strict=True):
            if isinstance(values, np.ndarray):
                kept.append(values[good])
            else:
                kept.extend(itertools.compress(values, good))
        self.good.append(good)
        self.bad.extend(Bad(self.lines + rows[at][0], reasons[at]) for at in sorted(reasons))

    def share(self) -> Share:
        columns = [self.layout.columns[i] for i in self.chosen]
        values: list[NDArray[np.float64] | list[str]] = [
            kept if column.text else np.concatenate([np.empty(0), *kept])
            for column, kept in zip(columns, self.values, strict=True)
        ]
        good = np.concatenate([np.empty(0, dtype=bool), *self.good])
        return Share(columns, values, good, self.bad, places=self.lines)
