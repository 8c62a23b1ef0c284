"""RabbitMQ: queues as sources, queues and exchanges as sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from tidemill._streaming.sinks import Connector
from tidemill._tables.durations import Duration
from tidemill._tables.errors import DataSetError
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema
from tidemill.stream._options import ReadOptions, connection, described
from tidemill.stream._time import Time
from tidemill.stream._tls import Tls

if TYPE_CHECKING:
    from tidemill.stream._options import Quarantine

__all__ = ["from_rabbitmq", "to_rabbitmq"]

#: Fields of a message other than its body.
Metadata = Literal["exchange", "routing_key", "timestamp", "message_id", "correlation_id", "redelivered", "headers"]


def from_rabbitmq(
    url: str,
    queue: str,
    schema: Schema | None = None,
    *,
    format: Literal["json", "text", "raw"] = "json",
    id: Literal["message_id", "correlation_id"] | None = None,
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    prefetch: int = 50_000,
    metadata: Mapping[str, Metadata] | None = None,
    stop_at_end: bool = False,
    on_error: OnError = "raise",
    quarantine: Quarantine | None = None,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
) -> DataSet:
    """Read a RabbitMQ queue: messages are acknowledged when the checkpoint that they belong to is durable.

    After a failure, or when the connection is lost, unacknowledged messages are delivered again: each message is a row
    at least once. With `id`, it is a row exactly once, provided that every message has a unique id, is redelivered
    within an hour, and the server loses no acknowledgement that is older than ten seconds; one thread reads the queue
    in this case. Without ``checkpoint=``, messages are acknowledged as they are read.

    Parameters
    ----------
    url : str
        ``amqp://HOST:PORT/VHOST``, or ``amqps:`` for TLS. User and password are those in the URL, else
        ``TIDEMILL_RABBITMQ_USER`` and ``TIDEMILL_RABBITMQ_PASSWORD`` from the environment.
    queue : str
        Name of an existing queue.
    schema : mapping of str to str, or Arrow schema
        Types by column of JSON objects; ``"text"`` and ``"raw"`` have one column, called ``value`` unless the schema
        names it.
    format : {"json", "text", "raw"}, default="json"
        Format of messages; ``"raw"`` gives their bytes unchanged.
    id : {"message_id", "correlation_id"}, optional
        The property that identifies messages.
    time, max_out_of_orderness, idle_after
        As in `from_table`.
    prefetch : int, default=50000
        Number of unacknowledged messages that a thread may have, and so the most that it reads between two checkpoints.
    metadata : mapping of str to str, optional
        Columns to add after those of messages: names, each with one of these fields: ``"exchange"``, ``"routing_key"``
        (str), ``"timestamp"`` (timestamp[s], when the message was sent, if the sender sets it; `time` may name it),
        ``"message_id"``, ``"correlation_id"`` (str), ``"redelivered"`` (bool), ``"headers"`` (list of structs of
        ``name`` and ``value``, str; values that are not strings become JSON).
    stop_at_end : bool, default=False
        End when the queue is empty.
    on_error, quarantine
        As in `from_files`. A bad message is identified by queue and id, and is written with its ``routing_key``, unless
        that is the queue's name, and its ``headers``, if any. A sink also gets its ``timestamp``, and header values
        that are not strings as JSON.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As in `from_redis`.
    tls : Tls, optional
        Certificates, for ``amqps:``.

    Raises
    ------
    DataSetError
        If an option is invalid. Errors in a message or the queue are errors of the job, which name it.
    """
    return ReadOptions(time, max_out_of_orderness, idle_after, stop_at_end, on_error, quarantine).stream(
        "rabbitmq",
        schema,
        **connection(connect_timeout, tls),
        url=url,
        queue=queue,
        format=format,
        id=id,
        prefetch=prefetch,
        metadata=list(metadata.items()) if metadata else None,
    )


def to_rabbitmq(
    url: str,
    queue: str | None = None,
    *,
    exchange: str | None = None,
    routing_key: str | None = None,
    key: str | None = None,
    value: str | None = None,
    record_bytes_max: int = 16 << 20,
    epoch_bytes_max: int = 256 << 20,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
) -> Connector:
    """Publish persistent messages to a RabbitMQ queue or exchange, each at least once. A sink of
    `DataSet.write_stream`.

    Rows are part of the checkpoint; when it is durable, they are published, and the server confirms each. Messages that
    are published again, after a failure or a lost connection, have the same ``message_id`` as before. A message that is
    routed to no queue is an error. If the queue is not durable, and so loses its messages when the server stops, a
    message on the terminal says so.

    Parameters
    ----------
    url : str
        As in `from_rabbitmq`.
    queue : str, optional
        The queue; alternatively set `exchange`.
    exchange, routing_key : str, optional
        The exchange, and the routing key of messages.
    key : str, optional
        The column with each row's routing key, instead of `routing_key`.
    value : str, optional
        The column whose bytes or strings are the messages; by default all columns as a JSON object.
    record_bytes_max : int, default=16777216
        A row whose message is larger is an error; servers accept at most their ``max_message_size``.
    epoch_bytes_max : int, default=268435456
        Bytes of rows that a thread may hold between two checkpoints; at half of it, a checkpoint is taken early.
    connect_timeout, tls
        As in `from_rabbitmq`.
    """
    if (queue is None) == (exchange is None) or (queue is not None and (routing_key or key) is not None):
        raise DataSetError("to_rabbitmq takes a queue, or an exchange with routing_key= or key=")
    options = {"exchange": exchange, "routing_key": queue or routing_key, "key": key, "value": value}
    limits = {"record_bytes_max": record_bytes_max, "epoch_bytes_max": epoch_bytes_max}
    return Connector(described("rabbitmq", url=url, **options, **limits, **connection(connect_timeout, tls)))
