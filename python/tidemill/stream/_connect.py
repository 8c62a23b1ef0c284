"""Connectors: streams that come from outside, and sinks that rows leave by."""

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

#: How brokers of Kafka are told user and password.
Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
#: What is known of a record of Kafka besides its value.
Metadata = Literal["topic", "partition", "offset", "timestamp", "key", "headers"]
#: Where headers come from: a column that has all of a record, columns by the names of headers, or several of these.
Headers: TypeAlias = "str | Mapping[str, str] | Iterable[str | Mapping[str, str]]"


def described(kind: str, **options: Any) -> str:
    """What the engine is told of a connector; an option that is None is left out."""
    return json.dumps({"kind": kind, **{name: value for name, value in options.items() if value is not None}})


def bad(on_error: OnError, quarantine: Quarantine | None, path: str | None = None) -> str | dict[str, str]:
    """What becomes of records that are no rows, as the engine takes it; of files, `path` says which are read."""
    if (on_error == "quarantine") != (quarantine is not None):
        raise DataSetError('on_error="quarantine" and quarantine=, a folder or sink for bad records, need each other')
    if quarantine is not None and not isinstance(quarantine, str | os.PathLike):
        return {"sink": "hex" if _takes_texts(quarantine) else "raw"}
    # One of the names that the engine gives.
    file = "source_files-0.jsonl"
    folder = quarantine_folder(quarantine, [] if path is None else [path], False, file, folders=False)
    return on_error if folder is None else {"quarantine": folder}


def _takes_texts(sink: object) -> bool:
    """Whether a sink has no way to write bytes and lists."""
    spec = json.loads(sink.spec) if isinstance(sink, Connector) else {}
    return spec.get("kind") == "redis" or (spec.get("kind"), spec.get("format")) == ("files", "csv")


def bad_to(quarantine: Quarantine | None) -> tuple[object, str] | None:
    """The sink that records go to that are no rows, as the engine takes it, and its name; None, if they go to none."""
    if quarantine is None or isinstance(quarantine, str | os.PathLike):
        return None
    if not (isinstance(quarantine, Connector) or callable(quarantine) or hasattr(quarantine, "prepare")):
        raise TypeError(
            f"quarantine= must be a folder, or a sink as write_stream takes it, not {type(quarantine).__name__}"
        )
    return native_sink(quarantine), sink_name(quarantine)


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
    """Read a topic of Kafka: each partition is a split, whose offset is part of checkpoints; no consumer group is used.

    It is an error if the topic was deleted and recreated while the job was down.

    Parameters
    ----------
    servers : str
        ``host:port``, several with commas between.
    topic : str
    schema : mapping of str to str, or Arrow schema
        Types by column of JSON objects; ``"avro"`` has those of `avro_schema`, ``"text"`` one column, ``value`` unless a schema of one names
        it; ``"raw"`` has ``key``, ``value``, ``partition``, ``offset`` and ``timestamp``.
    format : {"json", "avro", "text", "raw"}, default="json"
        What a record's value is; ``"raw"`` is its bytes as they are.
    confluent_header : bool, default=False
        Of JSON without `registry`: values begin with Confluent's header, five bytes that are passed over.
    avro_schema : str or mapping, optional
        Of Avro: the schema that values are read as, in JSON. Without `avro_writers` and `registry` they were written with the same;
        with `registry`, it is by default the newest of the subject ``TOPIC-value`` when the job begins.
    avro_writers : mapping of int to str or mapping, optional
        Of Avro in Confluent's wire format: the schemas that values were written with, by their numbers, where no registry is to
        be asked. A value whose schema has another number is bad.
    registry : str, optional
        ``http://HOST:PORT`` or ``https:`` of a schema registry, for Avro and JSON in Confluent's wire format: it is asked for each
        schema that values were written with, once. A value whose schema it does not know, or whose schema is of another kind, is bad.
        Who asks is in the URL, else in ``TIDEMILL_REGISTRY_USER`` and ``TIDEMILL_REGISTRY_PASSWORD``.
    time, max_out_of_orderness, idle_after
        As for `from_table`.
    start : {"earliest", "latest"} or datetime, default="earliest"
        Where a job begins that goes on from no checkpoint; of each partition at the first record that is not older than a time (UTC
        without a time zone), or at its end where there is none.
    metadata : mapping of str to str, optional
        More columns, behind those of values: what each is called, and which of these it has: ``"topic"`` (str), ``"partition"``
        (int32), ``"offset"`` (int64), ``"timestamp"`` (timestamp[ms], when the record was written; `time` may name it), ``"key"`` (binary),
        ``"headers"`` (list of structs of ``name``, str, and ``value``, binary). ``"raw"`` has most of them without being asked.
    stop_at_end : bool, default=False
        End when every partition has been read as far as there is anything.
    on_error, quarantine
        As for `from_files`; a bad record is named by topic, partition and offset, and written down with its ``timestamp`` (in files milliseconds since
        1970), its ``key`` and ``headers``, if it has them, so that it can be produced again. ``quarantine=to_kafka(servers, "dead", id="dead",
        key="key", value="value")`` is a dead-letter topic that has key and value as they were.
    isolation : {"read_committed", "read_uncommitted"}, default="read_committed"
        Whether records of transactions are read when these are committed, or at once, also those that are given up later.
    discovery_interval : str, number of seconds or timedelta, default="30s"
        Between looks for new partitions; 0 is never.
    connect_timeout : str, number of seconds or timedelta, default="30s"
        How long brokers and registry may keep silent when the job begins; brokers that go away later are waited for.
    tls : Tls, optional
        Speak TLS with the brokers, with these certificates; ``Tls()`` takes those of the environment.
    sasl : {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}, optional
        How brokers are told the user and password of ``TIDEMILL_KAFKA_USER`` and ``TIDEMILL_KAFKA_PASSWORD``, if these are set; ``"PLAIN"``, which shows
        the password to who listens without TLS, unless it is said.
    config : mapping, optional
        What else the client is to be told, by the names of librdkafka.

    Raises
    ------
    DataSetError
        If an option makes no sense. What is wrong with a record is an error of the job that names its partition and offset.
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
    """Where reading begins, as the engine takes it."""
    if isinstance(start, datetime):
        return {"timestamp_ms": _millis(start)}
    if start not in ("earliest", "latest"):
        raise DataSetError(f'start={start!r} is not "earliest", "latest" or a datetime, such as datetime(2026, 1, 31)')
    return start


def _millis(at: datetime) -> int:
    """The first millisecond that is not before a time; brokers know none before 1970."""
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
    """A sink of `DataSet.write_stream`: records of a topic, each once for who reads what is committed.

    Rows are part of the checkpoint; when it is durable, one transaction writes them and notes that it has. At half of `epoch_bytes_max` of
    them, of one thread, a checkpoint is made sooner. Brokers keep the note for as long as offsets of groups without members
    (``offsets.retention.minutes``, a week by default): a job that goes on after longer may write its last checkpoint's rows again.

    Parameters
    ----------
    servers, topic : str
    id : str, optional
        What the job is called at the brokers, where nobody else may be called so: two jobs of one name fail. Without it rows come at
        least once.
    key : str, optional
        The column that is a record's key.
    value : str, optional
        The column whose bytes or text are a record's value; by default all columns that are no `headers`, as `format` says.
    headers : str or mapping of str to str, or iterable of these, optional
        A column that has all headers of a record: a list of structs of ``name`` (text) and ``value`` (bytes or text; null is a header
        without a value), as `from_kafka` gives them with ``metadata={"headers": "headers"}``, or a map. Or columns by the names of headers, each with
        one value; where it is null the record has no such header. Of several, such as ``["headers", {"trace": "trace_id"}]``, records have all, in their order.
    format : {"json", "avro"}, default="json"
        A JSON object, as of `to_files`, or an Avro record, which needs a registry.
    registry : str, optional
        A schema registry, as for `from_kafka`: the schema of the rows is registered for the subject ``TOPIC-value``, and its number is
        in front of values, as Confluent's serializers write them.
    avro_schema : str or mapping, optional
        Of Avro: by which schema; by default one that is made of the columns, and called as the topic.
    transaction_timeout : str, number of seconds or timedelta, default="1m"
        How long brokers let the transaction of one checkpoint take; no longer than their ``transaction.max.timeout.ms``. It is opened when
        all of its rows are there, so it need not be as long as a checkpoint takes.
    record_bytes_max : int, default=1000000
        A row that makes more is an error; brokers take no more than ``max.message.bytes`` of the topic.
    epoch_bytes_max : int, default=268435456
        With `id`: what a thread may keep of rows from one checkpoint to the next.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As for `from_redis`.
    tls : Tls, optional
        Speak TLS with the brokers, with these certificates; ``Tls()`` takes those of the environment.
    sasl : {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}, optional
        How brokers are told the user and password of ``TIDEMILL_KAFKA_USER`` and ``TIDEMILL_KAFKA_PASSWORD``, if these are set; ``"PLAIN"``, which shows
        the password to who listens without TLS, unless it is said.
    config : mapping, optional
        What else the client is to be told, by the names of librdkafka.

    Raises
    ------
    TypeError
        If `headers` names no columns. That a column is not there, or has no headers, is an error of `DataSet.write_stream`.
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
    """Columns with the names of their headers; None is the name of one that has names, too."""
    columns: list[tuple[str | None, str]] = []
    for part in [given] if isinstance(given, str | Mapping) or not isinstance(given, Iterable) else given:
        columns += part.items() if isinstance(part, Mapping) else [(None, part)]
    for name, column in columns:
        if not (isinstance(name, str | None) and isinstance(column, str)):
            wrong = column if isinstance(name, str | None) else name
            raise TypeError(f"headers= must have column names, or columns by header name, not {wrong!r}")
    return columns
