"""Connectors: sources of external streams, and sinks."""

from __future__ import annotations

import glob
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tidemill._job import init
from tidemill._streaming.sinks import Connector, native_sink, sink_name
from tidemill._tables.durations import Duration, micros, seconds
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.places import at_home
from tidemill._tidemill import stream_of
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema, optional_schema, quarantine_folder
from tidemill.stream._time import Time, times
from tidemill.stream._tls import Tls, files

if TYPE_CHECKING:
    from tidemill._streaming.sinks import AnySink

    #: Where records go that are no rows: a folder, or a sink.
    Quarantine: TypeAlias = str | os.PathLike[str] | AnySink

__all__ = [
    "bad",
    "bad_to",
    "described",
    "from_files",
    "from_generator",
    "from_kafka",
    "speed",
    "times",
    "to_files",
    "to_kafka",
]

#: SASL mechanism for Kafka brokers.
Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
#: Fields of a Kafka record other than its value.
Metadata = Literal["topic", "partition", "offset", "timestamp", "key", "headers"]
#: Source of headers: a column that holds all headers of a record, columns by header name, or several of these.
Headers: TypeAlias = "str | Mapping[str, str] | Iterable[str | Mapping[str, str]]"


def described(kind: str, **options: Any) -> str:
    """Return a connector's options for the engine, without those that are None."""
    return json.dumps({"kind": kind, **{name: value for name, value in options.items() if value is not None}})


def bad(on_error: OnError, quarantine: Quarantine | None, path: str | None = None) -> str | dict[str, str]:
    """Return how to handle bad records, as the engine takes it; for files, `path` says which are read."""
    if (on_error == "quarantine") != (quarantine is not None):
        raise DataSetError('on_error="quarantine" and quarantine=, a folder or sink for bad records, need each other')
    if quarantine is not None and not isinstance(quarantine, str | os.PathLike):
        return {"sink": "hex" if _takes_texts(quarantine) else "raw"}
    # One of the names that the engine gives.
    file = "source_files-0.jsonl"
    folder = quarantine_folder(quarantine, [] if path is None else [path], False, file, folders=False)
    return on_error if folder is None else {"quarantine": folder}


def _takes_texts(sink: object) -> bool:
    """Return whether a sink cannot write bytes and lists."""
    spec = json.loads(sink.spec) if isinstance(sink, Connector) else {}
    return spec.get("kind") == "redis" or (spec.get("kind"), spec.get("format")) == ("files", "csv")


def bad_to(quarantine: Quarantine | None) -> tuple[object, str] | None:
    """Return the sink for bad records, as the engine takes it, and its name; None if there is none."""
    if quarantine is None or isinstance(quarantine, str | os.PathLike):
        return None
    if not (isinstance(quarantine, Connector) or callable(quarantine) or hasattr(quarantine, "prepare")):
        raise TypeError(
            f"quarantine= must be a folder, or a sink as write_stream takes it, not {type(quarantine).__name__}"
        )
    return native_sink(quarantine), sink_name(quarantine)


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
    skipping = bad(on_error, quarantine, at_home(path))
    storage = dict(storage_options) if storage_options else None
    spec = described(
        "files",
        path=at_home(path),
        format=format,
        stop_at_end=stop_at_end,
        on_error=skipping,
        list_interval_ms=None
        if discovery_interval is None
        else _whole_millis(discovery_interval, "discovery_interval"),
        poll_interval_ms=_whole_millis(poll_interval, "poll_interval"),
        storage_options=storage,
        **csv,
    )
    made = DataSet(
        stream_of(
            engine(), spec, optional_schema(schema), times(time, max_out_of_orderness, idle_after), bad_to(quarantine)
        )
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
    keys = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    if not all(isinstance(key, str) for key in keys):
        raise DataSetError(f"partition_by={partition_by!r} must be a list of column names, such as ['day']")
    options: dict[str, Any] = {"format": format, "prefix": prefix, "partition_by": keys or None}
    return Connector(described("files", path=at_home(path), storage_options=storage, **options))


def from_kafka(
    servers: str,
    topic: str,
    schema: Schema | None = None,
    *,
    format: Literal["json", "avro", "text", "raw"] = "json",
    confluent_header: bool = False,
    avro_schema: str | Mapping[str, Any] | None = None,
    avro_writers: Mapping[int, str | Mapping[str, Any]] | None = None,
    registry: str | None = None,
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    start: Literal["earliest", "latest"] | datetime = "earliest",
    metadata: Mapping[str, Metadata] | None = None,
    stop_at_end: bool = False,
    on_error: OnError = "raise",
    quarantine: Quarantine | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    discovery_interval: Duration = "30s",
    connect_timeout: Duration = "30s",
    tls: Tls | None = None,
    sasl: Sasl | None = None,
    config: Mapping[str, Any] | None = None,
) -> DataSet:
    """Read a Kafka topic: each partition is a split, whose offset is part of checkpoints; no consumer group is used.

    It is an error if the topic was deleted and recreated while the job was down.

    Parameters
    ----------
    servers : str
        ``host:port``, several separated by commas.
    topic : str
    schema : mapping of str to str, or Arrow schema
        Types by column of JSON objects. ``"avro"`` has those of `avro_schema`; ``"text"`` has one column, called
        ``value`` unless the schema names it; ``"raw"`` has ``key``, ``value``, ``partition``, ``offset`` and
        ``timestamp``.
    format : {"json", "avro", "text", "raw"}, default="json"
        Format of record values; ``"raw"`` gives their bytes unchanged.
    confluent_header : bool, default=False
        For JSON without `registry`: values begin with Confluent's header of five bytes, which is skipped.
    avro_schema : str or mapping, optional
        For Avro: the reader schema, in JSON. Without `avro_writers` and `registry` it is the writer schema, too;
        with `registry`, it is by default the newest schema of the subject ``TOPIC-value`` when the job starts.
    avro_writers : mapping of int to str or mapping, optional
        For Avro in Confluent's wire format without a registry: the writer schemas by their ids. A value with another
        schema id is bad.
    registry : str, optional
        ``http://HOST:PORT`` or ``https:`` URL of a schema registry, for Avro and JSON in Confluent's wire format. Each
        writer schema is requested once. A value is bad if the registry does not know its schema, or the schema is of
        another kind. User and password are those in the URL, else ``TIDEMILL_REGISTRY_USER`` and
        ``TIDEMILL_REGISTRY_PASSWORD``.
    time, max_out_of_orderness, idle_after
        As in `from_table`.
    start : {"earliest", "latest"} or datetime, default="earliest"
        Where a job starts reading if it does not resume from a checkpoint. A time (UTC if it has no time zone) means
        the first record of each partition that is not older, or the partition's end if there is none.
    metadata : mapping of str to str, optional
        Columns to add after those of values: names, each with one of these fields: ``"topic"`` (str), ``"partition"``
        (int32), ``"offset"`` (int64), ``"timestamp"`` (timestamp[ms], when the record was written; `time` may name it),
        ``"key"`` (binary), ``"headers"`` (list of structs of ``name``, str, and ``value``, binary). ``"raw"`` has most
        of them already.
    stop_at_end : bool, default=False
        End when every partition has been read to its end.
    on_error, quarantine
        As in `from_files`. A bad record is identified by topic, partition and offset, and is written with its
        ``timestamp`` (in files as milliseconds since 1970), ``key`` and ``headers``, if it has them, so that you can
        produce it again. ``quarantine=to_kafka(servers, "dead", id="dead", key="key", value="value")`` is a dead-letter
        topic that preserves key and value.
    isolation : {"read_committed", "read_uncommitted"}, default="read_committed"
        Whether records of transactions are read once these are committed, or at once, including those that are aborted
        later.
    discovery_interval : str, number of seconds or timedelta, default="30s"
        How often to look for new partitions; 0 means never.
    connect_timeout : str, number of seconds or timedelta, default="30s"
        How long to wait for brokers and registry when the job starts. A job waits without limit for brokers that become
        unreachable later.
    tls : Tls, optional
        Use TLS with the brokers, with these certificates; ``Tls()`` takes those of the environment.
    sasl : {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}, optional
        SASL mechanism for the user and password in ``TIDEMILL_KAFKA_USER`` and ``TIDEMILL_KAFKA_PASSWORD``, if these
        are set; by default ``"PLAIN"``, which without TLS exposes the password to anyone on the network.
    config : mapping, optional
        Further options of the client, by their names in librdkafka.

    Raises
    ------
    DataSetError
        If an option is invalid. Errors in a record are errors of the job, which name its partition and offset.
    """
    spec = described(
        "kafka",
        servers=servers,
        topic=_topic(topic),
        format=format,
        avro_schema=avro_schema,
        avro_writers=avro_writers,
        registry=registry,
        start=_start(start),
        metadata=list(metadata.items()) if metadata else None,
        stop_at_end=stop_at_end,
        confluent_header=confluent_header,
        on_error=bad(on_error, quarantine),
        isolation=isolation,
        discover_interval_s=seconds(discovery_interval, "discovery_interval"),
        patience_s=seconds(connect_timeout, "connect_timeout"),
        tls=files(tls),
        sasl=sasl,
        config=dict(config) if config else None,
    )
    return DataSet(
        stream_of(
            engine(), spec, optional_schema(schema), times(time, max_out_of_orderness, idle_after), bad_to(quarantine)
        )
    )


def _topic(topic: str) -> str:
    if not isinstance(topic, str) or not topic:
        raise DataSetError(f"topic={topic!r} must be a topic name, a non-empty string")
    return topic


def _start(start: str | datetime) -> Any:
    """Return where reading begins, as the engine takes it."""
    if isinstance(start, datetime):
        return {"timestamp_ms": _millis(start)}
    if start not in ("earliest", "latest"):
        raise DataSetError(f'start={start!r} is not "earliest", "latest" or a datetime, such as datetime(2026, 1, 31)')
    return start


def _millis(at: datetime) -> int:
    """Return the first millisecond that is not before a time; brokers know none before 1970."""
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return max(0, -((datetime(1970, 1, 1, tzinfo=timezone.utc) - at) // timedelta(milliseconds=1)))


def to_kafka(
    servers: str,
    topic: str,
    *,
    id: str | None = None,
    key: str | None = None,
    value: str | None = None,
    headers: Headers | None = None,
    format: Literal["json", "avro"] = "json",
    registry: str | None = None,
    avro_schema: str | Mapping[str, Any] | None = None,
    transaction_timeout: Duration = "1m",
    record_bytes_max: int = 1_000_000,
    epoch_bytes_max: int = 256 << 20,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
    sasl: Sasl | None = None,
    config: Mapping[str, Any] | None = None,
) -> Connector:
    """Write records to a Kafka topic, each exactly once for consumers that read committed records. A sink of
    `DataSet.write_stream`.

    Rows are part of the checkpoint. When it is durable, one transaction writes them and records that it has done so.
    When a thread holds half of `epoch_bytes_max`, a checkpoint is taken early. Brokers keep this record as long as
    offsets of groups without members (``offsets.retention.minutes``, a week by default): a job that resumes later than
    that may write its last checkpoint's rows again.

    Parameters
    ----------
    servers, topic : str
    id : str, optional
        Unique name of the job at the brokers: two jobs with the same id fail. Without it, rows are written at least
        once.
    key : str, optional
        The column with record keys.
    value : str, optional
        The column whose bytes or strings are record values; by default all columns except `headers`, in `format`.
    headers : str or mapping of str to str, or iterable of these, optional
        A column that holds all headers of a record: a list of structs of ``name`` (str) and ``value`` (bytes or str;
        null is a header without a value), as `from_kafka` returns them with ``metadata={"headers": "headers"}``, or a
        map. Or a mapping from header names to columns, each with one value; a null means that the record does not have
        this header. With several, such as ``["headers", {"trace": "trace_id"}]``, records have all of them, in this
        order.
    format : {"json", "avro"}, default="json"
        A JSON object, as in `to_files`, or an Avro record, which needs a registry.
    registry : str, optional
        A schema registry, as in `from_kafka`: the schema of the rows is registered for the subject ``TOPIC-value``, and
        its id precedes values, as Confluent's serializers write them.
    avro_schema : str or mapping, optional
        For Avro: the schema to write with; by default one derived from the columns, with the name of the topic.
    transaction_timeout : str, number of seconds or timedelta, default="1m"
        Limit for the transaction of one checkpoint; at most the brokers' ``transaction.max.timeout.ms``. The
        transaction begins when all of its rows have arrived, so it may be shorter than the checkpoint interval.
    record_bytes_max : int, default=1000000
        A row whose record is larger is an error; brokers accept at most ``max.message.bytes`` of the topic.
    epoch_bytes_max : int, default=268435456
        With `id`: bytes of rows that a thread may hold between two checkpoints.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As in `from_redis`.
    tls : Tls, optional
        Use TLS with the brokers, with these certificates; ``Tls()`` takes those of the environment.
    sasl : {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}, optional
        SASL mechanism for the user and password in ``TIDEMILL_KAFKA_USER`` and ``TIDEMILL_KAFKA_PASSWORD``, if these
        are set; by default ``"PLAIN"``, which without TLS exposes the password to anyone on the network.
    config : mapping, optional
        Further options of the client, by their names in librdkafka.

    Raises
    ------
    TypeError
        If `headers` is neither a column name nor a mapping. If a column does not exist or does not hold headers,
        `DataSet.write_stream` raises.
    """
    guarantee = "exactly_once" if id is not None else "at_least_once"
    spec = described(
        "kafka",
        servers=servers,
        topic=_topic(topic),
        guarantee=guarantee,
        id=id,
        key=key,
        value=value,
        headers=None if headers is None else _headers(headers),
        format=format,
        registry=registry,
        avro_schema=avro_schema,
        transaction_timeout_s=seconds(transaction_timeout, "transaction_timeout"),
        record_bytes_max=record_bytes_max,
        epoch_bytes_max=epoch_bytes_max,
        patience_s=seconds(connect_timeout, "connect_timeout"),
        tls=files(tls),
        sasl=sasl,
        config=dict(config) if config else None,
    )
    return Connector(spec)


def _headers(given: Headers) -> list[tuple[str | None, str]]:
    """Return columns with the names of their headers; None for a column that contains names, too."""
    columns: list[tuple[str | None, str]] = []
    for part in [given] if isinstance(given, str | Mapping) or not isinstance(given, Iterable) else given:
        columns += part.items() if isinstance(part, Mapping) else [(None, part)]
    for name, column in columns:
        if not (isinstance(name, str | None) and isinstance(column, str)):
            wrong = column if isinstance(name, str | None) else name
            raise TypeError(f"headers= must have column names, or columns by header name, not {wrong!r}")
    return columns
