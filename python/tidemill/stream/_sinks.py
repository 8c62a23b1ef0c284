"""Sinks of streams as the engine takes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from tidemill._callback import run_in_callback
from tidemill._tidemill import NativeTable
from tidemill.dataset._errors import DataSetError
from tidemill.dataset._table import Table

if TYPE_CHECKING:
    from tidemill.stream import Sink

__all__ = ["Connector", "Guarantee", "native_sink", "sink_name"]

#: What becomes of a row when its job fails and goes on.
Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]


@dataclass(frozen=True)
class Connector:
    """A sink of the engine's own; made by `to_files` and its like."""

    #: Not shown: it may have a password.
    spec: str = field(repr=False)


if TYPE_CHECKING:
    AnySink: TypeAlias = Sink | Connector | Callable[[Table], None]
    #: One sink, or several by the names of steps.
    LateOutput: TypeAlias = AnySink | Mapping[str, AnySink]


def sink_name(sink: Any) -> str:
    """What it is called in messages."""
    return str(getattr(sink, "__name__", type(sink).__name__))


def native_sink(sink: AnySink) -> Any:
    """The sink with tables as people know them, or what describes it."""
    if isinstance(sink, Connector):
        return sink.spec
    if not hasattr(sink, "prepare"):
        if not callable(sink):
            raise TypeError("a sink must be a function of a table, or have the methods write, prepare and commit")
        called = run_in_callback("a sink", sink)

        def write(rows: NativeTable) -> None:
            called(Table(rows))

        # Of the package's own: how many copies it may have.
        if (most := getattr(sink, "_copies_max", None)) is not None:
            write._copies_max = most  # type: ignore[attr-defined]
        return write
    if missing := [method for method in ("write", "commit") if not hasattr(sink, method)]:
        raise TypeError(f"a sink that has prepare needs {' and '.join(missing)}, too")
    return _TableSink(cast("Sink", sink))


class _TableSink:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __deepcopy__(self, memo: dict[int, Any]) -> _TableSink:
        try:
            return _TableSink(copy.deepcopy(self._sink, memo))
        except Exception as error:
            raise DataSetError(
                f"the sink {sink_name(self._sink)} cannot be copied for each thread: {error}; let it open files and "
                "connections in its first write, not before, or give it a __deepcopy__"
            ) from error

    def write(self, rows: NativeTable) -> None:
        # Each thread has a deep copy of this, of which a function made before would be none.
        run_in_callback("a sink", self._sink.write)(Table(rows))

    def prepare(self, epoch: int) -> bytes:
        prepared = self._sink.prepare(epoch)
        if not isinstance(prepared, bytes):
            name, kind = sink_name(self._sink), type(prepared).__name__
            raise TypeError(
                f'prepare of the sink {name} returned {kind}; it must return bytes, b"" if there is nothing'
            )
        return prepared

    def commit(self, prepared: bytes) -> None:
        self._sink.commit(prepared)
