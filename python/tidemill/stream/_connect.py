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
    """Rows a second, as the engine takes them."""
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
    """Make rows at a rate: columns ``number``, ``time`` and ``key``, the same ones again whenever they are asked for.

    Parameters
    ----------
    rows_per_s : float, default=0
        Of all workers together; 0 is as fast as they are taken.
    rows : int, optional
        How many there are; without it they have no end.
    keys : int, default=1000
        ``key`` is from 0 to this, exclusive, by a hash of the number.
    splits : int, optional
        Into how many shares the rows are dealt, each with an event time of its own; no more threads than this make rows. By default
        one share for each thread of each worker. A job that resumes from a checkpoint keeps the number it began with.
    seed : int, default=0
        Other seeds make other keys.
    step : str, number of seconds or timedelta, optional
        From one row's ``time`` to the next one's, counted from 2026-01-01; by default what `rows_per_s` says, or a microsecond.
    max_out_of_orderness, idle_after : str, number of seconds or timedelta
        As for `from_table`.
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
    """Read files that grow, and those that come: every line is a row, as soon as its end is written.

    Where there is none yet, a warning says so: the path may be a wrong one.
    Objects of a store are read, too, each once and as a whole, as they come.

    Parameters
    ----------
    path : str or path-like
        A local file, a folder (everything below it) or a glob, that all workers share; or the URL of an object (``s3://``, ``gs://``,
        ``az://``), or of all whose keys begin with it and a slash.
    schema : mapping of str to str, or Arrow schema
        Types by column; ``"text"`` has one column, ``line`` unless a schema of one names it.
    format : {"json", "csv", "text"}, default="json"
        JSON objects, CSV or anything, a line each, and not compressed. In JSON a time is a text, or a number in the unit of its column.
    time, max_out_of_orderness, idle_after
        As for `from_table`; each share of the files is a split.
    stop_at_end : bool, default=False
        End when everything that is there has been read.
    header : bool, default=True
        Of CSV: whether the first line of each file names its columns.
    delimiter : str, default=","
        Of CSV.
    on_error : {"raise", "skip", "quarantine"}, default="raise"
        What becomes of a line that is no row of the schema. ``"raise"``: the job fails, and names file and byte. ``"skip"``: it is left out; a line every ten
        seconds and a `BadRowsWarning` at the end tell how many were, and so does `tidemill.last_report`. ``"quarantine"``: the same,
        and it goes to `quarantine`.
    quarantine : str or path-like, or Connector, callable or Sink, optional
        A sink as `DataSet.write_stream` takes it, which has each bad record as surely as the job's sinks have rows: exactly once with a
        checkpoint and a sink that commits, or ``to_kafka(..., id=)``. They come to it as rows of ``source`` (str: the file), ``place`` (str: JSON, all that
        says where it is), ``partition`` (int32), ``offset`` (int64: its first byte), ``timestamp`` (timestamp[ms]), ``key``, ``value`` (binary),
        ``headers`` (list of structs of ``name``, str, and ``value``, binary) and ``reason`` (str), with null for what a source does not know.
        Or a local folder of this source alone, and not within `path`, for files of JSON lines: ``file``, ``byte``, ``reason``, and ``text`` or, of
        what is no UTF-8, ``hex``. A job that goes on after a failure may write one again there, so where it is to give exactly once it is refused with
        one of Tidemill's own sinks.
    discovery_interval : str, number of seconds or timedelta, optional
        Between looks for new files; by default a second, and five for the objects of a store.
    poll_interval : str, number of seconds or timedelta, default="100ms"
        Between looks for what was appended to those that are known.
    storage_options : mapping of str to str, optional
        Of a URL: what the store has to be told, as for `tidemill.read_csv`.

    Raises
    ------
    DataSetError
        If an option makes no sense, or `quarantine` lies within what is read. What is wrong with a line or a file is an error of the job, and
        names it.
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
    """Milliseconds of a pause, which is one at least."""
    if micros(length, name) < 1000:
        raise DataSetError(f"{name}={length!r} is too short a pause: use at least a millisecond")
    return micros(length, name) // 1000


def _is_there(path: str) -> bool:
    """Whether a path or a glob names something; not looked for in stores."""
    # A pattern may be absolute, which `Path.glob` refuses.
    return "://" in path or Path(path).exists() or any(True for _ in glob.iglob(path, recursive=True))  # noqa: PTH207


def to_files(
    path: str | os.PathLike[str],
    *,
    format: Literal["json", "csv", "parquet"] = "json",
    prefix: str = "part",
    partition_by: str | Iterable[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> Connector:
    """A sink of `DataSet.write_stream`: files in a folder, or objects of a store, each row once.

    A file appears, whole, when the checkpoint that its rows belong to is durable. In JSON nulls are left out, and a NaN or an infinity is a text (``"NaN"``,
    ``"Infinity"``, ``"-Infinity"``), which `from_files` reads as a number.

    Parameters
    ----------
    path : str or path-like
        A folder for this sink alone, that all workers share and no query that its rows come from reads; or a URL (``s3://``, ``gs://``, ``az://``). In a store rows are uploaded in parts as
        they come, which nobody sees before the upload is completed; what a run that fails has begun stays so, until the store's
        own rules remove uploads that do not end.
    format : {"json", "csv", "parquet"}, default="json"
        Each thread writes one file for each checkpoint (without checkpoints, for each second). Parquet files hold up to 32 MB of rows
        in memory before these go to disk; make checkpoints less often (``Checkpoint(path, interval="1m")``) for fewer and larger files.
    prefix : str, default="part"
        What names of files begin with. Of two sinks with one folder each needs its own.
    partition_by : str or iterable of str, optional
        A folder ``column=value`` for each different value of these columns, which then are not in the files: what `tidemill.read_parquet`,
        Hive, Spark and DuckDB read. A null is ``column=__HIVE_DEFAULT_PARTITION__``.
    storage_options : mapping of str to str, optional
        Of a URL: what the store has to be told, as for `tidemill.read_csv`.
    """
    storage = dict(storage_options) if storage_options else None
    keys = as_list(partition_by)
    if not all(isinstance(key, str) for key in keys):
        raise DataSetError(f"partition_by={partition_by!r} must be a list of column names, such as ['day']")
    options: dict[str, Any] = {"format": format, "prefix": prefix, "partition_by": keys or None}
    return Connector(described("files", path=at_home(path), storage_options=storage, **options))
