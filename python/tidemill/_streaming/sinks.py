"""Sinks of streams, as the engine takes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from tidemill._callback import run_in_callback
from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable

__all__ = ["Connector", "Guarantee", "Sink", "native_sink", "sink_name"]

#: Delivery guarantee for rows when a job fails and resumes.
Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]


class Sink(Protocol):
    """A sink that writes each row exactly once. Each thread of each worker has its own, created by `copy.deepcopy`:
    create objects that cannot be copied, such as open files, in the first `write`.

    The result of `prepare` becomes part of the checkpoint; `commit` gets it when the checkpoint is durable, and again
    when a job resumes from this checkpoint: the second call must change nothing.
    """

    def write(self, rows: Table, /) -> None:
        """Accept rows; they need not become visible yet."""

    def prepare(self, epoch: int, /) -> bytes:
        """Make the rows written since the last call ready to commit, and return what `commit` needs; empty bytes if
        there are none.
        """

    def commit(self, prepared: bytes, /) -> None:
        """Make the prepared rows visible."""


@dataclass(frozen=True)
class Connector:
    """A built-in sink; returned by `to_files` and similar functions."""

    #: Not shown, because it may contain a password.
    spec: str = field(repr=False)


if TYPE_CHECKING:
    #: The sinks that `DataSet.write_stream` accepts.
    AnySink: TypeAlias = Sink | Connector | Callable[[Table], None]
    #: One sink, or several by step name.
    LateOutput: TypeAlias = AnySink | Mapping[str, AnySink]


def sink_name(sink: Any) -> str:
    """Return the sink's name for messages."""
    return str(getattr(sink, "__name__", type(sink).__name__))


def native_sink(sink: AnySink) -> Any:
    """Return a sink that takes native tables, or the description of a built-in sink."""
    if isinstance(sink, Connector):
        return sink.spec
    if not hasattr(sink, "prepare"):
        if not callable(sink):
            raise TypeError("a sink must be a function of a table, or have the methods write, prepare and commit")
        called = run_in_callback("a sink", sink)

        def write(rows: NativeTable) -> None:
            called(Table(rows))

        # For sinks of this package: the maximum number of copies.
        if (most := getattr(sink, "_copies_max", None)) is not None:
            write._copies_max = most  # type: ignore[attr-defined]
        return write
    if missing := [method for method in ("write", "commit") if not hasattr(sink, method)]:
        raise TypeError(f"a sink that has prepare needs {' and '.join(missing)}, too")
    made = _TableSink(cast("Sink", sink))
    if (most := getattr(sink, "_copies_max", None)) is not None:
        made._copies_max = most
    return made


class _TableSink:
    _copies_max: int

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

    def placed(self, copy: int) -> None:
        """Tell a sink of this package the number of the copy that this is."""
        if (placed := getattr(self._sink, "_placed", None)) is not None:
            placed(copy)

    def write(self, rows: NativeTable) -> None:
        # Wrapped here, because each thread gets a deep copy of this object, and a wrapper made earlier would refer to
        # the original.
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
