"""Options that many connectors share, checked and passed to the engine in one place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemill._streaming.sinks import Connector, native_sink, sink_name
from tidemill._tables.durations import Duration, seconds
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import stream_of
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema, optional_schema, quarantine_folder
from tidemill.stream._time import Time, times
from tidemill.stream._tls import Tls, files

if TYPE_CHECKING:
    from tidemill._streaming.sinks import AnySink

    #: The destination of bad records: a folder, or a sink.
    Quarantine: TypeAlias = str | os.PathLike[str] | AnySink

__all__ = ["ReadOptions", "as_list", "connection", "described", "guarantee"]


def described(kind: str, **options: Any) -> str:
    """Return a connector as the engine takes it: JSON. Options that are None are left out."""
    return json.dumps({"kind": kind, **{name: value for name, value in options.items() if value is not None}})


def connection(connect_timeout: Duration, tls: Tls | None) -> dict[str, Any]:
    """Return the options of a connection to a server, as the engine takes them."""
    return {"patience_s": seconds(connect_timeout, "connect_timeout"), "tls": files(tls)}


def guarantee(id: str | None) -> dict[str, Any]:
    """Return the options of a sink that commits under a name, as the engine takes them: without a name it writes at least once."""
    return {"guarantee": "at_least_once" if id is None else "exactly_once", "id": id}


def as_list(names: str | Iterable[str]) -> list[str]:
    """Return one name, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


@dataclass(frozen=True)
class ReadOptions:
    """The options that sources share: how rows tell time, where reading ends, and what happens to bad records.

    `from_table` documents the first three, and `from_files` the others.
    """

    time: Time | None
    max_out_of_orderness: Duration
    idle_after: Duration
    stop_at_end: bool
    on_error: OnError
    quarantine: Quarantine | None

    def stream(self, kind: str, schema: Schema | None, *, path: str | None = None, **options: Any) -> DataSet:
        """Return the stream of a connector with these and its own `options`. `path` is which files it reads, if it reads files."""
        on_error = _on_error(self.on_error, self.quarantine, path)
        spec = described(kind, stop_at_end=self.stop_at_end, on_error=on_error, path=path, **options)
        told = times(self.time, self.max_out_of_orderness, self.idle_after)
        return DataSet(stream_of(engine(), spec, optional_schema(schema), told, _bad_to(self.quarantine)))


def _on_error(on_error: OnError, quarantine: Quarantine | None, path: str | None) -> str | dict[str, str]:
    """Return what happens to bad records, as the engine takes it."""
    if (on_error == "quarantine") != (quarantine is not None):
        raise DataSetError('on_error="quarantine" and quarantine=, a folder or sink for bad records, need each other')
    if quarantine is not None and not isinstance(quarantine, str | os.PathLike):
        return {"sink": "hex" if _takes_texts(quarantine) else "raw"}
    # One of the names that the engine uses.
    file = "source_files-0.jsonl"
    folder = quarantine_folder(quarantine, [] if path is None else [path], False, file, folders=False)
    return on_error if folder is None else {"quarantine": folder}


def _takes_texts(sink: object) -> bool:
    """Return whether a sink cannot write bytes and lists."""
    spec = json.loads(sink.spec) if isinstance(sink, Connector) else {}
    return spec.get("kind") == "redis" or (spec.get("kind"), spec.get("format")) == ("files", "csv")


def _bad_to(quarantine: Quarantine | None) -> tuple[object, str] | None:
    """Return the sink of bad records, as the engine takes it, and its name; None if they go to none."""
    if quarantine is None or isinstance(quarantine, str | os.PathLike):
        return None
    if not (isinstance(quarantine, Connector) or callable(quarantine) or hasattr(quarantine, "prepare")):
        raise TypeError(
            f"quarantine= must be a folder, or a sink as write_stream takes it, not {type(quarantine).__name__}"
        )
    return native_sink(quarantine), sink_name(quarantine)
