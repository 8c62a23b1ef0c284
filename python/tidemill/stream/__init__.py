"""Streams: DataSets with unbounded rows, their sources and their sinks.

The guide is ``docs/streams.md``.
"""

from __future__ import annotations

from typing import Any

from tidemill._streaming.bsp import BspContext
from tidemill._streaming.controller import Controller
from tidemill._streaming.items import AggregateState, ListState, MapState
from tidemill._streaming.late import LateRowsWarning, NoTimeWarning, SkippedRowsWarning
from tidemill._streaming.process import KeyContext
from tidemill._streaming.running import Move, Running
from tidemill._streaming.sinks import Connector, Sink
from tidemill._tables.checkpoint import Checkpoint
from tidemill._tables.durations import Duration
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import take_table
from tidemill._tables.table import Table
from tidemill._tidemill import stream_of_table
from tidemill.dataset._dataset import DataSet
from tidemill.stream._all_reduce import all_reduce
from tidemill.stream._connect import from_files, from_generator, speed, to_files
from tidemill.stream._kafka import from_kafka, to_kafka
from tidemill.stream._rabbitmq import from_rabbitmq, to_rabbitmq
from tidemill.stream._redis import from_redis, redis_lookup, to_redis
from tidemill.stream._sockets import from_socket, from_webhook, from_websocket
from tidemill.stream._source import from_function
from tidemill.stream._time import Time, TimeColumn, processing_time, punctuated_watermarks, times
from tidemill.stream._tls import Tls
from tidemill.stream._windows import (
    Windows,
    bounded_delay,
    calendar_window,
    count_window,
    custom_window,
    session,
    sliding,
    tumbling,
    window,
)
from tidemill.stream._write import explain, write

__all__ = [
    "AggregateState",
    "BspContext",
    "Checkpoint",
    "Connector",
    "Controller",
    "Duration",
    "KeyContext",
    "LateRowsWarning",
    "ListState",
    "MapState",
    "Move",
    "NoTimeWarning",
    "Running",
    "Sink",
    "SkippedRowsWarning",
    "Time",
    "TimeColumn",
    "Tls",
    "Windows",
    "all_reduce",
    "bounded_delay",
    "calendar_window",
    "count_window",
    "custom_window",
    "explain",
    "from_files",
    "from_function",
    "from_generator",
    "from_kafka",
    "from_rabbitmq",
    "from_redis",
    "from_socket",
    "from_table",
    "from_webhook",
    "from_websocket",
    "processing_time",
    "punctuated_watermarks",
    "redis_lookup",
    "session",
    "sliding",
    "to_files",
    "to_kafka",
    "to_rabbitmq",
    "to_redis",
    "tumbling",
    "window",
    "write",
]


def from_table(
    table: Any,
    *,
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    rows_per_batch: int = 8192,
    rows_per_s: float = 0,
    name: str = "table",
) -> DataSet:
    """Read a table in memory as a bounded stream: to try out, test or measure a query.

    Parameters
    ----------
    table : Table, or any table with the Arrow PyCapsule interface
        The table, the same on every worker.
    time : str, `processing_time` or `punctuated_watermarks`, optional
        The column with each row's event time, a timestamp or a date. Windows need a time.
    max_out_of_orderness : str, number of seconds or timedelta, default=0
        How far a row's time may lie behind the latest time before it; rows further behind are late.
    idle_after : str, number of seconds or timedelta, default="1s"
        How long a split of the source may have no rows before it no longer holds back the stream's time.
    rows_per_batch : int, default=8192
        Number of rows per batch.
    rows_per_s : float, default=0
        Rate of rows per second; 0 means as fast as they are processed.
    name : str, default="table"
        Name of the source in plans and checkpoints.

    Raises
    ------
    DataSetError
        If `time` is not a column of times, or an option is invalid.
    """
    native = table._native if isinstance(table, Table) else take_table(table)
    told = times(time, max_out_of_orderness, idle_after)
    if isinstance(rows_per_batch, bool) or not isinstance(rows_per_batch, int) or rows_per_batch < 1:
        raise DataSetError(f"rows_per_batch={rows_per_batch!r} must be a positive integer")
    return DataSet(stream_of_table(engine(), native, name, told, rows_per_batch, speed(rows_per_s)))


def __dir__() -> list[str]:
    # For completion at a prompt: without this module's own imports.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
