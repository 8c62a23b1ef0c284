"""Tables of points: CSV, Parquet and Arrow, read with the readers of DataSets."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Any

from tidemill.viz.library._cloud import Cloud, Limits, UploadError, clouds_of_columns, name_is_text

__all__ = ["read_table"]

#: A table with more columns than this does not contain points.
_COLUMNS_MAX = 256
#: Maximum bytes of the first line of a CSV that are searched for names.
_HEADER_BYTES_MAX = 1 << 16


def read_table(file: str, path: Path, kind: str, limits: Limits) -> list[Cloud]:
    """Read a table: one cloud, or one for each value of its column of times. Columns are as in `clouds_of_columns`.

    Parameters
    ----------
    file : str
        Name of the file in messages.
    path : Path
        Path of the file.
    kind : {"csv", "tsv", "parquet", "ipc"}

    Raises
    ------
    UploadError
        If the file is invalid; for CSV the message gives the line.
    """
    from tidemill import dataset

    if kind == "parquet":
        _check_footer(file, path)
    try:
        if kind in ("csv", "tsv"):
            # Types are those of all rows, since a column may look numeric for many rows.
            delimiter = "\t" if kind == "tsv" else ","
            _check_header(file, path, delimiter)
            data = dataset.read_csv(path, delimiter=delimiter, newlines_in_values=True, infer_rows=limits.points)
            # Ids, labels, times and groups keep their text: 007 is not 7.
            types = {
                name: "str" if name_is_text(name) or str(kind) == "Null" else str(kind)
                for name, kind in data.schema.items()
            }
            data = dataset.read_csv(path, delimiter=delimiter, newlines_in_values=True, schema=types)
        else:
            data = dataset.read_parquet(path) if kind == "parquet" else dataset.read_ipc(path)
        if len(data.schema) > _COLUMNS_MAX:
            raise UploadError(f"{file}: it has {len(data.schema)} columns, which are more than {_COLUMNS_MAX}")
        table = data.limit(limits.points + 1).collect_local()
    except dataset.DataSetError as error:
        raise UploadError(f"{file}: {_said(error, path)}") from None
    if table.num_rows > limits.points:
        raise UploadError(f"{file}: it has more than {limits.points:,} rows, which is the limit of a frame")
    if table.num_rows == 0:
        raise UploadError(f"{file}: it has no rows")
    columns = {name: [_plain(file, name, value) for value in column] for name, column in table.to_dict().items()}
    return clouds_of_columns(file, columns)


def _check_header(file: str, path: Path, delimiter: str) -> None:
    """Check the first line of a CSV for another encoding, as some programs save, and for missing column names."""
    with path.open("rb") as data:
        line = data.readline(_HEADER_BYTES_MAX)
    # In UTF-16, each letter of a name has a zero byte next to it.
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line[:4]:
        raise UploadError(f"{file}: it is UTF-16 and not UTF-8; save the file in that encoding")
    try:
        names = next(csv.reader([line.decode("utf-8-sig", "replace")], delimiter=delimiter), [])
    except csv.Error:
        # Reading the rows gives a better message.
        return
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UploadError(
            f"{file}: its first line names column {twice!r} twice; give each a name of its own, and put a line of names before the rows if "
            "there is none"
        )


def _check_footer(file: str, path: Path) -> None:
    """Check the end of a Parquet file: the length of the metadata, and a magic number. The library trusts that length."""
    with path.open("rb") as data:
        size = data.seek(0, 2)
        data.seek(max(0, size - 8))
        end = data.read()
    if size < 12 or end[4:] != b"PAR1" or int.from_bytes(end[:4], "little") > size - 12:
        raise UploadError(f"{file}: it cannot be read as Parquet: it does not end like such a file; is it truncated?")


def _said(error: Exception, path: Path) -> str:
    """Return the message without the path of the file, which users must not see."""
    text = str(error).replace(str(path.absolute()), "the file").replace(str(path.absolute()).lstrip("/"), "the file")
    return text.replace(str(path), "the file").replace(path.name, "the file").partition("\n")[0][:500]


def _plain(file: str, name: str, value: Any) -> Any:
    """Return a cell as number, text or None."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, list, dict, tuple)):
        raise UploadError(f"{file}: column {name!r} has neither texts nor numbers; leave it out")
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
