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

#: How brokers of Kafka are told user and password.
Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
#: What is known of a record of Kafka besides its value.
Metadata = Literal["topic", "partition", "offset", "timestamp", "key", "headers"]
#: Where headers come from: a column that has all of a record, columns by the names of headers, or several of these.
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
    tls, sasl, config
        As for `from_kafka`.

    Raises
    ------
    TypeError
        If `headers` names no columns. That a column is not there, or has no headers, is an error of `DataSet.write_stream`.
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
    """Columns with the names of their headers; None is the name of one that has names, too."""
    columns: list[tuple[str | None, str]] = []
    for part in [given] if isinstance(given, str | Mapping) or not isinstance(given, Iterable) else given:
        columns += part.items() if isinstance(part, Mapping) else [(None, part)]
    for name, column in columns:
        if not (isinstance(name, str | None) and isinstance(column, str)):
            wrong = column if isinstance(name, str | None) else name
            raise TypeError(f"headers= must have column names, or columns by header name, not {wrong!r}")
    return columns
