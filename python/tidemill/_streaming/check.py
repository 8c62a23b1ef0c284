"""Checks before a job starts: sinks that would interfere with each other, and rows that would return to the sink that
wrote them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from tidemill._tables.errors import DataSetError
from tidemill._tables.places import is_read

__all__ = ["look_at_sinks"]

Spec = Mapping[str, Any]


def look_at_sinks(described: Iterable[tuple[str, Iterable[str]]], *, loops: bool = False) -> None:
    """Raise if a job must not start; `loops` allows rows to return. `described` are its sinks, each with the sources of
    its rows.
    """
    sinks = [(json.loads(sink), [json.loads(source) for source in sources]) for sink, sources in described]
    _check_apart([sink for sink, _ in sinks])
    if not loops:
        _check_loops(sinks)


def _check_apart(sinks: list[Spec]) -> None:
    """Raise if two sinks of a job would overwrite each other's files, or mistake each other's commits for their own."""
    seen: set[tuple[str, object]] = set()
    for sink in sinks:
        own = (sink["kind"], _folder(sink) if sink["kind"] == "files" else sink.get("id"))
        if own in seen and own[0] == "files":
            raise DataSetError(f"two sinks write into the same folder, {own[1]}; give each its own folder")
        if own in seen and own[1] is not None:
            raise DataSetError(f"two sinks of {own[0]} are named {own[1]!r}; give each its own id=")
        seen.add(own)


class Way(NamedTuple):
    """A path by which rows of a sink reach a source."""

    words: str
    #: Where to write instead.
    instead: str


def _check_loops(sinks: list[tuple[Spec, list[Spec]]]) -> None:
    """Raise if rows would return to the sink that wrote them, directly or through other sinks, since they might
    circulate forever.
    """
    for first in range(len(sinks)):
        # Sources that rows of the first sink reach, with the sink and the way by which they do.
        came: dict[int, tuple[int, Way]] = {}
        waiting = [first]
        while waiting and first not in came:
            sink = waiting.pop(0)
            for other, (_, sources) in enumerate(sinks):
                way = next(filter(None, (_way(sinks[sink][0], source) for source in sources)), None)
                if way is not None and other not in came:
                    came[other] = (sink, way)
                    waiting.append(other)
        if first in came:
            at, ways = first, list[Way]()
            while not ways or at != first:
                at, way = came[at]
                ways.insert(0, way)
            words = ", and ".join(way.words for way in ways)
            instead = ", or ".join(dict.fromkeys(way.instead for way in ways))
            raise DataSetError(
                f"the job would read what it writes: {words}; write into {instead}, or pass allow_loops=True if rows do not return forever"
            )


def _way(sink: Spec, source: Spec) -> Way | None:
    """Return the path by which rows of a sink reach a source; None if they do not, as far as the options of both tell."""
    if sink["kind"] != source["kind"] or sink["kind"] not in _WAYS:
        return None
    return _WAYS[sink["kind"]](sink, source)


def _files(sink: Spec, source: Spec) -> Way | None:
    # Stores with the same name may be different ones.
    if _endpoints(source) != _endpoints(sink):
        return None
    name = f"{sink['prefix']}-1-0-1.{'jsonl' if sink['format'] == 'json' else sink['format']}"
    if not is_read(f"{_folder(sink)}/{name}", source["path"], folders=False):
        return None
    instead = "a folder that is not within what is read, or one whose name begins with an underscore"
    return Way(f"{sink['path']} is within {source['path']}", instead)


def _folder(sink: Spec) -> str:
    """Return the folder of a sink of files."""
    path: str = sink["path"]
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def _endpoints(spec: Spec) -> dict[str, str]:
    """Return the endpoint options of a file connector's store."""
    options: Mapping[str, str] = spec.get("storage_options", {})
    return {name.lower(): value for name, value in options.items() if "endpoint" in name.lower()}


def _kafka(sink: Spec, source: Spec) -> Way | None:
    # Clients may be given only some of a cluster's brokers, and different ones.
    common = sorted(_brokers(sink) & _brokers(source))
    if sink["topic"] != source["topic"] or not common:
        return None
    return Way(f"it writes the topic {sink['topic']!r} of {common[0]}, and reads it", "another topic")


def _brokers(spec: Spec) -> set[str]:
    named = (server.strip().lower().rpartition("://")[2] for server in spec["servers"].split(","))
    return {server if ":" in server else f"{server}:9092" for server in named if server}


def _redis(sink: Spec, source: Spec) -> Way | None:
    server, database = _server(sink, 6379)
    if (server, database or "0") != (_server(source, 6379)[0], _server(source, 6379)[1] or "0"):
        return None
    if sink.get("stream") not in source["streams"]:
        return None
    return Way(f"it writes the stream {sink['stream']!r} of {server}, and reads it", "another stream")


def _rabbitmq(sink: Spec, source: Spec) -> Way | None:
    # Only the server knows which queues an exchange or a key column leads to.
    if sink.get("exchange") or sink.get("key") or _server(sink, 5672) != _server(source, 5672):
        return None
    if sink["routing_key"] != source["queue"]:
        return None
    return Way(f"it writes the queue {source['queue']!r} of {_server(sink, 5672)[0]}, and reads it", "another queue")


def _server(spec: Spec, port: int) -> tuple[str, str]:
    """Return host and port of a URL, and the name of the resource there."""
    url: SplitResult = urlsplit(spec["url"])
    default = port - 1 if url.scheme == "amqps" else port
    return f"{url.hostname}:{url.port or default}", unquote(url.path).strip("/")


_WAYS: dict[str, Callable[[Spec, Spec], Way | None]] = {
    "files": _files,
    "kafka": _kafka,
    "redis": _redis,
    "rabbitmq": _rabbitmq,
}
