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

#: What is known of a message besides its bytes.
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
    """Read a queue of RabbitMQ: messages are acknowledged when the checkpoint that they belong to is durable.

    After a failure, and when the connection is lost, what was not acknowledged comes again: each message is a row at least
    once. With `id` it is a row exactly once, if every message has an id that no other has, comes again within an hour, and
    the server loses no acknowledgement that it has had for ten seconds; one thread reads the queue then. Without ``checkpoint=`` messages are acknowledged as they are read.

    Parameters
    ----------
    url : str
        ``amqp://HOST:PORT/VHOST``, or ``amqps:`` for TLS. User and password are those in it, else ``TIDEMILL_RABBITMQ_USER`` and
        ``TIDEMILL_RABBITMQ_PASSWORD`` of the environment.
    queue : str
        It has to be there.
    schema : mapping of str to str, or Arrow schema
        Types by column of JSON objects; ``"text"`` and ``"raw"`` have one column, ``value`` unless a schema of one names it.
    format : {"json", "text", "raw"}, default="json"
        What a message is; ``"raw"`` is its bytes as they are.
    id : {"message_id", "correlation_id"}, optional
        The property that tells messages apart.
    time, max_out_of_orderness, idle_after
        As for `from_table`.
    prefetch : int, default=50000
        How many messages a thread may have that are not acknowledged: no more than these are read from one checkpoint to the
        next.
    metadata : mapping of str to str, optional
        More columns, behind those of messages: what each is called, and which of these it has: ``"exchange"``, ``"routing_key"`` (str),
        ``"timestamp"`` (timestamp[s], when it was sent, if its sender says so; `time` may name it), ``"message_id"``, ``"correlation_id"`` (str),
        ``"redelivered"`` (bool), ``"headers"`` (list of structs of ``name`` and ``value``, str; what is no text is JSON).
    stop_at_end : bool, default=False
        End when the queue has nothing more to give.
    on_error, quarantine
        As for `from_files`; a bad message is named by queue and id, and written down with its ``routing_key``, where that is not the queue's
        name, and its ``headers``, if it has any. To a sink it comes with its ``timestamp``, and values of headers that are no texts as JSON.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As for `from_redis`.
    tls : Tls, optional
        Certificates, for ``amqps:``.

    Raises
    ------
    DataSetError
        If an option makes no sense. What is wrong with a message or the queue is an error of the job, and names it.
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
    """A sink of `DataSet.write_stream`: persistent messages for a queue or an exchange, each at least once.

    Rows are part of the checkpoint; when it is durable, they are published, and the server confirms each. What is published
    again, after a failure or a lost connection, has the same ``message_id`` as before. A message that no queue takes is an
    error. A queue that is not durable loses its messages with the server, which is printed.

    Parameters
    ----------
    url : str
        As for `from_rabbitmq`.
    queue : str, optional
        The queue; or
    exchange, routing_key : str, optional
        the exchange, and what it goes by.
    key : str, optional
        The column that has each row's routing key instead.
    value : str, optional
        The column whose bytes or text are a message; by default all columns as a JSON object.
    record_bytes_max : int, default=16777216
        A row that makes more is an error; servers take no more than their ``max_message_size``.
    epoch_bytes_max : int, default=268435456
        What a thread may keep of rows from one checkpoint to the next: at half of it one is made sooner.
    connect_timeout, tls
        As for `from_rabbitmq`.
    """
    if (queue is None) == (exchange is None) or (queue is not None and (routing_key or key) is not None):
        raise DataSetError("to_rabbitmq takes a queue, or an exchange with routing_key= or key=")
    options = {"exchange": exchange, "routing_key": queue or routing_key, "key": key, "value": value}
    limits = {"record_bytes_max": record_bytes_max, "epoch_bytes_max": epoch_bytes_max}
    return Connector(described("rabbitmq", url=url, **options, **limits, **connection(connect_timeout, tls)))
