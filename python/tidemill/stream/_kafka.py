"""Kafka: topics as sources and sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tidemill._streaming.sinks import Connector
from tidemill._tables.durations import Duration, seconds
from tidemill._tables.errors import DataSetError
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema
from tidemill.stream._options import ReadOptions, connection, described, guarantee
from tidemill.stream._time import Time
from tidemill.stream._tls import Tls

if TYPE_CHECKING:
    from tidemill.stream._options import Quarantine

__all__ = ["from_kafka", "to_kafka"]

#: How user and password are sent to Kafka brokers.
Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
#: The metadata of a Kafka record.
Metadata = Literal["topic", "partition", "offset", "timestamp", "key", "headers"]
#: The columns with headers: one with all headers of a record, columns by header name, or several of these.
Headers: TypeAlias = "str | Mapping[str, str] | Iterable[str | Mapping[str, str]]"


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
    return ReadOptions(time, max_out_of_orderness, idle_after, stop_at_end, on_error, quarantine).stream(
        "kafka",
        schema,
        **_topic_options(servers, topic, registry, sasl, config),
        **connection(connect_timeout, tls),
        format=format,
        avro_schema=avro_schema,
        avro_writers=avro_writers,
        start=_start(start),
        metadata=list(metadata.items()) if metadata else None,
        confluent_header=confluent_header,
        isolation=isolation,
        discover_interval_s=seconds(discovery_interval, "discovery_interval"),
    )


def _topic_options(
    servers: str, topic: str, registry: str | None, sasl: Sasl | None, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the options of a topic and its brokers, as the engine takes them."""
    if not isinstance(topic, str) or not topic:
        raise DataSetError(f"topic={topic!r} must be a topic name, a non-empty string")
    more = dict(config) if config else None
    return {"servers": servers, "topic": topic, "registry": registry, "sasl": sasl, "config": more}


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
    tls, sasl, config
        As in `from_kafka`.

    Raises
    ------
    TypeError
        If `headers` is neither a column name nor a mapping. If a column does not exist or does not hold headers,
        `DataSet.write_stream` raises.
    """
    spec = described(
        "kafka",
        **_topic_options(servers, topic, registry, sasl, config),
        **connection(connect_timeout, tls),
        **guarantee(id),
        key=key,
        value=value,
        headers=None if headers is None else _headers(headers),
        format=format,
        avro_schema=avro_schema,
        transaction_timeout_s=seconds(transaction_timeout, "transaction_timeout"),
        record_bytes_max=record_bytes_max,
        epoch_bytes_max=epoch_bytes_max,
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
