"""The generator, and files that rows come from and go to."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tidemill._job import init
from tidemill._streaming.sinks import Connector
from tidemill._tables.durations import Duration, micros
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.places import at_home
from tidemill._tidemill import stream_of
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema
from tidemill.stream._options import ReadOptions, as_list, described
from tidemill.stream._time import Time, times

if TYPE_CHECKING:
    from tidemill.stream._options import Quarantine

__all__ = ["from_files", "from_generator", "speed", "to_files"]


def speed(rows_per_s: float) -> float:
    """Return a rate in rows per second, as the engine takes it."""
    if not isinstance(rows_per_s, Real) or not 0 <= rows_per_s < float("inf"):
        raise DataSetError(f"rows_per_s={rows_per_s!r} must be positive, or 0 for as fast as possible")
    return float(rows_per_s)


def from_generator(
    rows_per_s: float = 0,
    *,
    rows: int | None = None,
    keys: int = 1000,
    splits: int | None = None,
    seed: int = 0,
    step: Duration | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
) -> DataSet:
    """Generate rows at a given rate: columns ``number``, ``time`` and ``key``, with the same values in every run.

    Parameters
    ----------
    rows_per_s : float, default=0
        Rows per second of all workers together; 0 means as fast as they are processed.
    rows : int, optional
        Number of rows; by default unlimited.
    keys : int, default=1000
        ``key`` is from 0 to this, exclusive, by a hash of the number.
    splits : int, optional
        Number of splits, each with its own event time; no more threads than this generate rows. By default one split
        for each thread of each worker. A job that resumes from a checkpoint keeps the number that it began with.
    seed : int, default=0
        Seed of the keys.
    step : str, number of seconds or timedelta, optional
        Difference between the ``time`` of consecutive rows, which starts at 2026-01-01; by default derived from
        `rows_per_s`, or a microsecond.
    max_out_of_orderness, idle_after : str, number of seconds or timedelta
        As in `from_table`.
    """
    if splits is not None and (isinstance(splits, bool) or not isinstance(splits, int) or splits < 1):
        raise DataSetError(f"splits={splits!r} must be at least 1, or None for one per thread")
    step_us = None if step is None else float(micros(step, "step"))
    options = {"rows": rows, "keys": keys, "splits": splits, "seed": seed, "step_us": step_us}
    spec = described("rate", rows_per_second=speed(rows_per_s), **options)
    return DataSet(stream_of(engine(), spec, None, times("time", max_out_of_orderness, idle_after)))


def from_files(
    path: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    format: Literal["json", "csv", "text"] = "json",
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    stop_at_end: bool = False,
    header: bool = True,
    delimiter: str = ",",
    on_error: OnError = "raise",
    quarantine: Quarantine | None = None,
    discovery_interval: Duration | None = None,
    poll_interval: Duration = "100ms",
    storage_options: Mapping[str, str] | None = None,
) -> DataSet:
    """Read files that grow, and new files as they appear: every line is a row, as soon as its line end is written.

    If there are no files yet, a warning says so, since the path may be wrong.
    Objects in a store are read, too: each one once and as a whole, as they appear.

    Parameters
    ----------
    path : str or path-like
        A local file, a folder (everything below it) or a glob, which all workers share; or the URL of an object
        (``s3://``, ``gs://``, ``az://``), or of all objects whose keys begin with it and a slash.
    schema : mapping of str to str, or Arrow schema
        Types by column; ``"text"`` has one column, called ``line`` unless the schema names it.
    format : {"json", "csv", "text"}, default="json"
        JSON objects, CSV or plain text, one per line, uncompressed. In JSON a time is a string, or a number in the unit
        of its column.
    time, max_out_of_orderness, idle_after
        As in `from_table`; each share of the files is a split.
    stop_at_end : bool, default=False
        End when everything that exists has been read.
    header : bool, default=True
        For CSV: whether the first line of each file has the column names.
    delimiter : str, default=","
        For CSV.
    on_error : {"raise", "skip", "quarantine"}, default="raise"
        How to handle a line that does not match the schema. ``"raise"``: the job fails, and names file and byte.
        ``"skip"``: the line is left out; a message every ten seconds and a `BadRowsWarning` at the end give the number
        of such lines, and so does `tidemill.last_report`. ``"quarantine"``: like ``"skip"``, and the line goes to
        `quarantine`.
    quarantine : str or path-like, or Connector, callable or Sink, optional
        A sink as in `DataSet.write_stream`, or a local folder.

        A sink gets bad records with the same guarantee as the job's sinks get rows: exactly once with a checkpoint and
        a sink that commits, or ``to_kafka(..., id=)``. Their columns are ``source`` (str: the file), ``place`` (str:
        JSON with the full position), ``partition`` (int32), ``offset`` (int64: its first byte), ``timestamp``
        (timestamp[ms]), ``key``, ``value`` (binary), ``headers`` (list of structs of ``name``, str, and ``value``,
        binary) and ``reason`` (str), with nulls for columns that do not apply to a source.

        A folder, for this source alone and outside `path`, gets files of JSON lines: ``file``, ``byte``, ``reason``,
        and ``text`` or, for invalid UTF-8, ``hex``. A job that resumes after a failure may write a record there again,
        so a folder is rejected if the job must give exactly once with one of Tidemill's own sinks.
    discovery_interval : str, number of seconds or timedelta, optional
        How often to look for new files; by default every second, and every five seconds in an object store.
    poll_interval : str, number of seconds or timedelta, default="100ms"
        How often to look for appended lines in known files.
    storage_options : mapping of str to str, optional
        For a URL: options of the store, as in `tidemill.read_csv`.

    Raises
    ------
    DataSetError
        If an option is invalid, or `quarantine` lies within the files that are read. Errors in a line or a file are
        errors of the job, which name it.
    """
    csv = {"has_header": header, "delimiter": delimiter} if format == "csv" else {}
    list_ms = None if discovery_interval is None else _whole_millis(discovery_interval, "discovery_interval")
    reading = ReadOptions(time, max_out_of_orderness, idle_after, stop_at_end, on_error, quarantine)
    made = reading.stream(
        "files",
        schema,
        path=at_home(path),
        format=format,
        list_interval_ms=list_ms,
        poll_interval_ms=_whole_millis(poll_interval, "poll_interval"),
        storage_options=dict(storage_options) if storage_options else None,
        **csv,
    )
    if init().rank == 0 and not _is_there(at_home(path)):
        warnings.warn(f"from_files: there is no file {at_home(path)} yet, so no rows until one appears", stacklevel=2)
    return made


def _whole_millis(length: Duration, name: str) -> int:
    """Return the milliseconds of an interval, at least one."""
    if micros(length, name) < 1000:
        raise DataSetError(f"{name}={length!r} is too short a pause: use at least a millisecond")
    return micros(length, name) // 1000


def _is_there(path: str) -> bool:
    """Return whether a path or a glob matches anything; stores are not checked."""
    # A pattern may be absolute, which `Path.glob` rejects.
    return "://" in path or Path(path).exists() or any(True for _ in glob.iglob(path, recursive=True))  # noqa: PTH207


def to_files(
    path: str | os.PathLike[str],
    *,
    format: Literal["json", "csv", "parquet"] = "json",
    prefix: str = "part",
    partition_by: str | Iterable[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> Connector:
    """Write files in a folder, or objects of a store, with each row exactly once. A sink of `DataSet.write_stream`.

    A file appears, complete, when the checkpoint of its rows is durable. In JSON, nulls are left out, and NaN and
    infinities are strings (``"NaN"``, ``"Infinity"``, ``"-Infinity"``), which `from_files` reads as numbers.

    Parameters
    ----------
    path : str or path-like
        A folder for this sink alone, which all workers share and which the query does not read; or a URL (``s3://``,
        ``gs://``, ``az://``). In a store, rows are uploaded in parts as they come; they become visible when the upload
        is completed. Uploads of a failed run stay incomplete until the store's own rules remove them.
    format : {"json", "csv", "parquet"}, default="json"
        Each thread writes one file for each checkpoint (without checkpoints, for each second). Parquet files hold up to
        32 MB of rows in memory before these go to disk; take checkpoints less often (``Checkpoint(path,
        interval="1m")``) for fewer and larger files.
    prefix : str, default="part"
        Beginning of file names. Two sinks that share a folder need different prefixes.
    partition_by : str or iterable of str, optional
        Columns to partition by: each distinct value gets a folder ``column=value``, and the files do not contain these
        columns. `tidemill.read_parquet`, Hive, Spark and DuckDB read this layout. A null is
        ``column=__HIVE_DEFAULT_PARTITION__``.
    storage_options : mapping of str to str, optional
        For a URL: options of the store, as in `tidemill.read_csv`.
    """
    storage = dict(storage_options) if storage_options else None
    keys = as_list(partition_by)
    if not all(isinstance(key, str) for key in keys):
        raise DataSetError(f"partition_by={partition_by!r} must be a list of column names, such as ['day']")
    options: dict[str, Any] = {"format": format, "prefix": prefix, "partition_by": keys or None}
    return Connector(described("files", path=at_home(path), storage_options=storage, **options))
