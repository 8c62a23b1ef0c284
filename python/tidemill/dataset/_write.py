"""Writing tables: the methods of `DataSet` that write files, and their common parts."""

from __future__ import annotations

import importlib
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tidemill._tables import workers as _workers
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.places import at_home
from tidemill._tidemill import NativeDataSet, join_files
from tidemill.dataset._expr import col, columns, names_of

if TYPE_CHECKING:
    from tidemill._tables.places import StorageOptions

__all__ = ["DataSetWriters"]

#: As Parquet's writer names them, with the default level for codecs that have levels.
_PARQUET_CODECS = {
    "none": "uncompressed",
    "lz4": "lz4_raw",
    "gzip": "gzip(6)",
    "brotli": "brotli(5)",
    "zstd": "zstd(3)",
}


class DataSetWriters:
    """The writing methods of `DataSet`. An output folder appears when everything is written; unless you set
    `overwrite`, it must not exist.
    """

    __slots__ = ("_native",)

    _native: NativeDataSet

    def write_csv(
        self,
        path: str | Path,
        *,
        delimiter: str = ",",
        header: bool = True,
        compression: Literal["gzip", "bzip2", "xz", "zstd"] | None = None,
        partition_by: Iterable[str] = (),
        single_file: bool = False,
        overwrite: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> int:
        """Write CSV files into the new folder `path`, all or nothing.

        Nulls and empty strings are both written as empty values: `read_csv` reads both as null.

        Parameters
        ----------
        path : str or Path
            A local folder, or the URL of one in an object store: ``s3://bucket/folder``, ``gs://``, ``az://``,
            ``abfss://``.
        delimiter : str, default=","
        header : bool, default=True
            Whether files begin with the column names.
        compression : {"gzip", "bzip2", "xz", "zstd"}, optional
        partition_by : iterable of str
            Columns to partition by: each distinct value gets a folder ``column=value``, and the files do not contain
            these columns.
        single_file : bool, default=False
            Write one file, `path` itself, instead of a folder, on a file system that all workers share. Worker 0 joins
            the workers' parts, so it takes longer.
        overwrite : bool, default=False
            Whether to replace an existing folder or file, at the very end.
        storage_options : mapping of str to str, optional
            As in `read_csv`.

        Returns
        -------
        int
            Number of rows written.

        Raises
        ------
        DataSetError
            On every worker; in that case nothing is left behind, and an existing folder is unchanged.
        """
        layout: dict[str, Any] = {"delimiter": delimiter, "header": header}
        to = (path, "csv", compression or "", partition_by, overwrite, storage_options)
        return _write_one(self._native, *to, **layout) if single_file else _write(self._native, *to, **layout)

    def write_json(
        self,
        path: str | Path,
        *,
        compression: Literal["gzip", "bzip2", "xz", "zstd"] | None = None,
        partition_by: Iterable[str] = (),
        single_file: bool = False,
        overwrite: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> int:
        """Write files with a JSON object on each line; otherwise like `write_csv`.

        NaN and infinity, which JSON does not have, become null.
        """
        to = (path, "json", compression or "", partition_by, overwrite, storage_options)
        return _write_one(self._native, *to) if single_file else _write(self._native, *to)

    def write_parquet(
        self,
        path: str | Path,
        *,
        compression: str | None = "zstd",
        partition_by: Iterable[str] = (),
        single_file: bool = False,
        overwrite: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> int:
        """Write Parquet files; otherwise like `write_csv`.

        Parameters
        ----------
        compression : str or None, default="zstd"
            ``"snappy"``, ``"lz4"``, ``"gzip"``, ``"brotli"`` or ``"zstd"``, the last three optionally with a level,
            such as ``"zstd(3)"``; None or ``"none"`` for no compression.
        """
        kind = "none" if compression is None else compression
        codec = _PARQUET_CODECS.get(kind, kind)
        to = (path, "parquet", codec, partition_by, overwrite, storage_options)
        return _write_one(self._native, *to) if single_file else _write(self._native, *to)

    def write_ipc(
        self,
        path: str | Path,
        *,
        compression: Literal["lz4", "zstd"] | None = "lz4",
        partition_by: Iterable[str] = (),
        single_file: bool = False,
        overwrite: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> int:
        """Write Arrow IPC files; otherwise like `write_csv`.

        Parameters
        ----------
        compression : {"lz4", "zstd"} or None, default="lz4"
            Compression of each buffer; uncompressed files can be memory-mapped and used as they are.
        """
        to = (path, "ipc", compression or "none", partition_by, overwrite, storage_options)
        return _write_one(self._native, *to) if single_file else _write(self._native, *to)

    def write_records(
        self, path: str | Path, *, overwrite: bool = False, storage_options: StorageOptions | None = None
    ) -> int:
        """Write fixed-length records, one file for each partition, in the order of partitions; all columns must be of
        fixed-size binary type.
        """
        return _write(self._native, path, "records", "", (), overwrite, storage_options)

    def write_text(
        self,
        path: str | Path,
        *,
        compression: Literal["gzip", "bzip2", "xz", "zstd"] | None = None,
        overwrite: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> int:
        r"""Write the only column, of type ``str``, as lines, for `read_text`; otherwise like `write_csv`.

        There is one file for each partition, in the order of partitions. Lines end with ``\n``.

        Raises
        ------
        DataSetError
            Also for a null, and for a string that contains a line end (``\n``, or ``\r`` at its end), which would be
            read as several lines; the error names row and file.
        """
        return _write(self._native, path, "text", compression or "", (), overwrite, storage_options)

    def write_npy(
        self, path: str | Path, *, overwrite: bool = False, storage_options: StorageOptions | None = None
    ) -> int:
        """Write NumPy ``.npy`` files, for `read_npy`; otherwise like `write_csv`.

        There is one file for each partition, in the order of partitions: an array of shape (rows, columns), or (rows,)
        if there is one column. Columns must be bool, integers or floats; different types are promoted as in NumPy
        (``int64`` and ``float32`` to ``float64``, for example). Sorted rows keep their order if all columns had the
        same type before sorting.

        Raises
        ------
        DataSetError
            Also for a column of another type, and for a null, which arrays cannot represent; the error names row and
            file.
        """
        return _write(_as_one_type(self._native), path, "npy", "", (), overwrite, storage_options)


def _as_one_type(data: NativeDataSet) -> NativeDataSet:
    """Return the data with all columns promoted to NumPy's common type, if there is one."""
    import numpy as np

    kinds = [kind.lower().replace("boolean", "bool") for _, kind in data.fields]
    if len(set(kinds)) == 1 or not all(re.fullmatch(r"bool|u?int\d+|float\d+", kind) for kind in kinds):
        return data
    whole = np.result_type(*kinds).name
    return data.select(columns([col(name).cast(whole) for name in data.names], {}))


def _write(
    data: NativeDataSet,
    path: str | Path,
    format: str,
    compression: str,
    partition_by: Iterable[str],
    overwrite: bool,
    storage_options: StorageOptions | None,
    **layout: Any,
) -> int:
    from tidemill._job import init
    from tidemill._tables.places import as_options

    place = at_home(path)
    _workers.check_alike(f"write_{format}", path=repr(place))
    keys = names_of([partition_by], "partition_by")
    if keys and set(keys) >= set(data.names):
        raise DataSetError(f"partition_by={keys} are all columns; at least one must stay in the files")
    # Sorted data is written as with several workers even on one: in ranges, one per thread, which is faster.
    workers = init().comm if format in ("records", "text", "npy") else _workers.comm()
    with _workers.reading() as watch:
        rows = data.write(
            engine(),
            workers,
            place,
            format,
            compression=compression,
            partition_by=keys,
            overwrite=overwrite,
            storage_options=as_options(storage_options),
            watch=watch,
            **layout,
        )
    _workers.report_bad_rows(data)
    return rows


def _write_one(
    data: NativeDataSet,
    path: str | Path,
    format: str,
    compression: str,
    partition_by: Iterable[str],
    overwrite: bool,
    storage_options: StorageOptions | None,
    **layout: Any,
) -> int:
    """Write one file: write a folder beside it, which worker 0 then joins. Collective."""
    from tidemill._job import init

    place = at_home(path)
    if "://" in place:
        raise DataSetError(f"single_file=True writes a file on a shared file system; {place} is in a store")
    if names_of([partition_by], "partition_by"):
        raise DataSetError("single_file=True writes one file, but partition_by= many folders: choose one")
    if format == "csv" and compression == "zstd" and layout["header"]:
        raise DataSetError("single_file=True has no header where compression='zstd': take 'gzip', or header=False")
    _workers.check_alike(f"write_{format}", path=repr(place), single_file="True")
    job, file = init(), Path(place)

    def agreed(work: Callable[[], Any]) -> Any:
        """Return worker 0's result on all workers, or raise its error."""
        done: tuple[Any, str | None] = (None, None)
        if job.rank == 0:
            try:
                done = (work(), None)
            except OSError as error:
                done = (None, f"{error.filename or place}: {error.strerror or error}")
            except DataSetError as error:
                done = (None, str(error))
        made, failed = job.comm.bcast(done) if job.size > 1 else done
        if failed is not None:
            raise DataSetError(failed)
        return made

    def begin() -> str:
        if file.is_dir():
            raise DataSetError(f"{place} is a folder; single_file=True writes a file: choose another path")
        if file.exists() and not overwrite:
            raise DataSetError(f"{place} already exists; overwrite=True replaces it")
        file.parent.mkdir(parents=True, exist_ok=True)
        return str(file.parent / f".{file.name}.{secrets.token_hex(4)}")

    hidden = Path(agreed(begin))
    parts, whole = hidden.with_name(f"{hidden.name}.parts"), hidden.with_name(f"{hidden.name}.whole")
    # The header is written only once, at the beginning.
    within = {**layout, "header": False} if format == "csv" else layout
    try:
        rows = _write(data, parts, format, compression, (), False, storage_options, **within)

        def finish() -> None:
            files = sorted((at for at in parts.rglob("*") if at.is_file()), key=_by_numbers)
            if format in ("parquet", "ipc"):
                join_files(format == "parquet", [str(at) for at in files], str(whole), compression)
            else:
                head = _header(data.names, layout["delimiter"]) if format == "csv" and layout["header"] else b""
                with whole.open("xb") as out:
                    out.write(_compressed(head, compression) if head else b"")
                    for at in files:
                        with at.open("rb") as part:
                            shutil.copyfileobj(part, out, 1 << 20)
                    out.flush()
                    os.fsync(out.fileno())
            whole.replace(file)

        agreed(finish)
    finally:
        if job.rank == 0:
            whole.unlink(missing_ok=True)
            shutil.rmtree(parts, ignore_errors=True)
    return rows


def _by_numbers(file: Path) -> list[tuple[int, str]]:
    """Sort key that puts ``part-2`` before ``part-10``."""
    words = re.split(r"(\d+)", file.name)
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def _header(names: list[str], delimiter: str) -> bytes:
    import csv

    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
    return line.getvalue().encode()


def _compressed(text: bytes, compression: str) -> bytes:
    """Compress data as a self-contained part, so that parts can be concatenated."""
    if not compression:
        return text
    # Some builds of Python lack one of these modules.
    module = importlib.import_module({"gzip": "gzip", "bzip2": "bz2", "xz": "lzma"}[compression])
    return bytes(module.compress(text))
