"""Streams by URL, for commands that follow them: server and stream."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any, Literal

from tidemill import stream
from tidemill.dataset import DataSet, DataSetError

__all__ = ["SHAPES", "from_url", "is_stream", "named", "why_not_followed"]

#: Forms of URLs, by scheme.
SHAPES = {
    "redis": "redis://HOST:PORT/NUMBER?streams=KEY,KEY",
    "rediss": "rediss://HOST:PORT/NUMBER?streams=KEY,KEY",
    "kafka": "kafka://HOST:PORT,HOST:PORT/TOPIC",
    "tcp": "tcp://HOST:PORT",
    "ws": "ws://HOST:PORT/PATH",
    "wss": "wss://HOST:PORT/PATH",
}

#: By scheme, sources of `tidemill.stream` that deliver each message only once. A restarted command reads a stream from
#: the beginning, but messages that it had acknowledged would be lost.
_HANDED_OUT_ONCE = {"amqp": "RabbitMQ", "amqps": "RabbitMQ", "http": "a webhook", "https": "a webhook"}


def is_stream(text: str) -> bool:
    """Return whether a string is the URL of a stream rather than a path."""
    return text.partition("://")[0] in SHAPES and "://" in text


def named(text: str) -> str:
    """Return a path unchanged, or the URL of a stream without user and password, which must not be shown."""
    if not is_stream(text) and why_not_followed(text) is None:
        return text
    parts = urllib.parse.urlsplit(text)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def why_not_followed(text: str) -> str | None:
    """Return why a source cannot be followed by URL although such streams exist, and what to do; None for all other
    URLs.
    """
    scheme, told, _ = text.partition("://")
    source = _HANDED_OUT_ONCE.get(scheme) if told else None
    if source is None:
        return None
    return (
        f"messages of {source} are not followed: what was acknowledged while it was read would be lost when the command is started "
        "again. Have them written to files of a folder, to Kafka or to a stream of Redis, and follow that"
    )


def from_url(
    url: str, schema: Mapping[str, str], time: str, settle_s: float, *, on_error: Literal["raise", "skip"] = "raise"
) -> DataSet:
    """Open a stream: entries of Redis streams by their fields; Kafka records, lines of a TCP server and WebSocket
    messages as JSON.

    Parameters
    ----------
    url : str
        See `SHAPES`.
    schema : mapping of str to str
        Types by column.
    time : str
        Column of event times.
    settle_s : float
        A split of the stream, such as a partition, that has had no rows for this long no longer holds back the stream's
        time.
    on_error : {"raise", "skip"}, default="raise"
        Whether unreadable records are errors or are left out.

    Raises
    ------
    DataSetError
        If the URL is not the URL of a stream.
    """
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query))
    path = parts.path.strip("/")
    told: dict[str, Any] = {"schema": dict(schema), "time": time, "idle_after": settle_s, "on_error": on_error}
    if parts.scheme in ("redis", "rediss") and query.keys() == {"streams"}:
        server = urllib.parse.urlunsplit(parts._replace(query=""))
        return stream.from_redis(server, query["streams"].split(","), **told)
    if parts.scheme == "kafka" and parts.netloc and path:
        return stream.from_kafka(parts.netloc, path, **told)
    if parts.scheme == "tcp" and parts.hostname and _port(parts) and not path:
        return stream.from_socket(parts.hostname, _port(parts), **told)
    if parts.scheme in ("ws", "wss") and parts.netloc:
        return stream.from_websocket(url, **told)
    raise DataSetError(f"{named(url)!r} names no stream; one looks like {SHAPES[parts.scheme]}")


def _port(parts: urllib.parse.SplitResult) -> int:
    try:
        return parts.port or 0
    except ValueError:
        return 0
