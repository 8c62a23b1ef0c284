"""Streams read by a user function, for servers and files without a built-in connector."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from tidemill._streaming.sinks import Guarantee
from tidemill._tables import workers as _workers
from tidemill._tables.durations import Duration, seconds
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Row, Schema, function_name, parse_schema, table_of_rows, take_table
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable, stream_of_function
from tidemill.dataset._dataset import DataSet
from tidemill.stream._time import Time, times

__all__ = ["Read", "from_function"]

#: Called with a split and the position to resume after, which is None at the beginning of the split. Yields rows with
#: the position after them, or None when there is nothing at the moment; the split ends when it returns.
Read = Callable[[str, Any], Iterable["tuple[list[Row] | Table | Any, Any] | None"]]


def from_function(
    read: Read,
    schema: Schema,
    *,
    splits: Iterable[str] = ("all",),
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    poll_interval: Duration = "100ms",
    guarantee: Guarantee = "exactly_once",
    acknowledge: Callable[[str, Any], object] | None = None,
    name: str | None = None,
) -> DataSet:
    """Read a stream with your own function, which can resume from a checkpoint: for sources without a connector.

    Parameters
    ----------
    read : callable
        ``read(split, position)`` returns an iterator; usually it is a generator. It yields pairs of rows and a
        position: rows are a list of dicts, a `Table`, or a table with the Arrow PyCapsule interface; a position is any
        object that can be pickled from which `read` can resume after these rows. It yields ``None`` when there are no
        rows at the moment, and returns at the end of the split. At first ``position`` is None; when the job resumes
        from a checkpoint, it is that of the last rows in the checkpoint. It may block: it runs on a separate thread for
        each split.
    schema : mapping of str to str, or Arrow schema
        Types by column.
    splits : iterable of str, default=("all",)
        The parts that can be read separately, such as shards; the same on every worker. They are distributed over the
        threads of all workers, and each call of `read` reads one. When a job resumes, you can add splits and remove
        those that have ended. `read` may be called once more for a split that has ended.
    time, max_out_of_orderness, idle_after
        As in `from_table`. A split counts as idle only when `read` yields None, not while `read` blocks.
    poll_interval : str, number of seconds or timedelta, default="100ms"
        How long to wait after a None before reading on.
    guarantee : {"exactly_once", "at_least_once", "at_most_once"}, default="exactly_once"
        What the source guarantees when a job fails and resumes from a checkpoint. Exactly once: the same rows follow a
        position whenever it is read. At least once: rows may come again, as from a queue that redelivers unacknowledged
        messages. At most once: rows since the checkpoint are lost. A job that requires more does not start.
    acknowledge : callable, optional
        ``acknowledge(split, position)`` is called when a checkpoint with this position is durable, so that nothing
        before it will be read again; without checkpoints, at the end. If several positions have become durable since
        the last call, it gets only the last one. If a job fails before the call, the call follows when it has resumed,
        with the next checkpoint.
    name : str, optional
        Name of the source in plans and checkpoints; by default the function's name.

    Raises
    ------
    DataSetError
        If an option is invalid. Exceptions of `read`, and rows that do not match `schema`, are errors of the job, which
        name the split.

    Examples
    --------
    >>> import tidemill as tm
    >>> def read(split, position):
    ...     for number in range(position or 0, 3):
    ...         yield [{"split": split, "number": number}], number + 1
    >>> seen = []
    >>> numbers = tm.stream.from_function(read, {"split": "str", "number": "int64"}, splits=["a", "b"])
    >>> _ = numbers.write_stream(lambda table: seen.extend(tuple(row.values()) for row in table.to_pylist()))
    >>> sorted(seen)
    [('a', 0), ('a', 1), ('a', 2), ('b', 0), ('b', 1), ('b', 2)]
    """
    if not callable(read):
        raise TypeError(f"from_function takes a function of a split and a position, not {read!r}")
    called = function_name(read) if name is None else name
    if not isinstance(called, str) or not called:
        raise DataSetError(f"name={name!r} must be a non-empty string")
    given = parse_schema(schema)
    if given == []:
        raise DataSetError(f"{called}: a schema needs at least one column")
    names = [splits] if isinstance(splits, str) else list(splits) if isinstance(splits, Iterable) else []
    if not names or not all(isinstance(split, str) and split for split in names) or len(set(names)) < len(names):
        raise DataSetError(f"splits={splits!r} must be one or more non-empty names, without repeats")
    _workers.check_alike("stream.from_function", splits=repr(names), name=repr(called), guarantee=repr(guarantee))
    empty = table_of_rows([], schema)

    def reader(split: str, position: bytes | None) -> _Reader:
        return _Reader(read, called, split, position, schema, empty, needs_position=guarantee != "at_most_once")

    rest = seconds(poll_interval, "poll_interval")
    if rest == 0:
        raise DataSetError(f"poll_interval={poll_interval!r} must be greater than zero, for example '10ms'")
    if guarantee not in get_args(Guarantee):
        raise DataSetError(f"guarantee={guarantee!r} is not {' or '.join(map(repr, get_args(Guarantee)))}")
    if acknowledge is not None and not callable(acknowledge):
        raise TypeError(f"acknowledge= must be a function of a split and a position, not {acknowledge!r}")

    def durable(places: list[tuple[str, bytes]]) -> None:
        for split, position in places:
            with _named(f"{called}, split {split!r}, acknowledge"):
                acknowledge(split, pickle.loads(position))  # type: ignore[misc]

    told = times(time, max_out_of_orderness, idle_after)
    return DataSet(
        stream_of_function(
            engine(), called, reader, names, given, told, rest, guarantee, None if acknowledge is None else durable
        )
    )


#: Marks the end of an iterator.
_END = object()


@contextmanager
def _named(of: str) -> Iterator[None]:
    """Add the split to errors of the function."""
    try:
        yield
    except Exception as error:
        raise DataSetError(f"{of}: {type(error).__name__}: {error}") from error


#: Units of time, from coarse to fine.
_UNITS = {"s": 0, "ms": 1, "us": 2, "\N{MICRO SIGN}s": 2, "ns": 3}


def _may_be(found: str, wanted: str) -> bool:
    """Return whether all values of one Arrow type survive a cast to another."""
    if found.startswith("Dictionary("):
        # Compare both indexes and values.
        return _may_be(found[:-1].partition(", ")[2], wanted)
    if found in (wanted, "Null"):
        return True
    if found.startswith("Float") and wanted.startswith("Float"):
        return found <= wanted
    if found.startswith(("Int", "UInt")) and wanted == "Float64":
        return found not in ("Int64", "UInt64")
    for begins in (("Int", "UInt"), ("Utf8", "LargeUtf8"), ("Binary", "LargeBinary", "FixedSizeBinary")):
        if found.startswith(begins) and wanted.startswith(begins):
            return True
    # A finer unit can represent all times of a coarser one; the contents of lists and structs are not checked.
    (of, _, more), (other, _, then) = found.partition("("), wanted.partition("(")
    if of != other or not more:
        return False
    if of not in ("Timestamp", "Duration", "Time32", "Time64"):
        return of in ("List", "LargeList", "ListView", "Struct", "Map", "FixedSizeList")
    (unit, _, zone), (finer, _, same) = more.rstrip(")").partition(", "), then.rstrip(")").partition(", ")
    return zone == same and _UNITS.get(unit, 9) <= _UNITS.get(finer, -1)


class _Reader:
    """Reads a split; called by the engine."""

    def __init__(
        self,
        read: Read,
        name: str,
        split: str,
        position: bytes | None,
        schema: Schema,
        empty: NativeTable,
        *,
        needs_position: bool,
    ) -> None:
        self._of = f"{name}, split {split!r}"
        self._schema = schema
        self._empty = empty
        self._needs_position = needs_position
        self._saved = position
        with _named(self._of):
            found = read(split, None if position is None else pickle.loads(position))
        if not isinstance(found, Iterable):
            raise DataSetError(f"{self._of}: it returned {found!r}, which has no rows and positions; let it yield them")
        self._rows = iter(found)

    def next(self) -> tuple[NativeTable | None, bytes] | None:
        """Return rows and the position after them; no rows if there are none at the moment; None at the end."""
        with _named(self._of):
            found = next(self._rows, _END)
        if found is _END:
            return None
        if found is None:
            return None, b""
        if not isinstance(found, tuple) or len(found) != 2:
            raise DataSetError(
                f"{self._of}: it must yield pairs of rows and the position after them, or None, not {found!r}"
            )
        rows, position = found
        try:
            saved = pickle.dumps(position)
        except Exception as error:
            raise DataSetError(f"{self._of}: the position {position!r} cannot be pickled: {error}") from error
        native = self._native(rows)
        if native.num_rows == 0 and (position is None or saved == self._saved):
            # Without a pause, repeated calls would occupy the thread, and take time from others.
            return None, b""
        if position is None and self._needs_position:
            raise DataSetError(
                f"{self._of}: rows came with the position None, the split's beginning, so a job that resumes would read them again; "
                'yield the position to resume from after them, or pass guarantee="at_most_once"'
            )
        self._saved = saved
        return native, saved

    def _native(self, rows: Any) -> NativeTable:
        try:
            if isinstance(rows, list):
                return table_of_rows(rows, self._schema)
            native = rows._native if isinstance(rows, Table) else take_table(rows)
            announced, found = (dict(table.fields) for table in (self._empty, native))
            if sorted(announced) != sorted(found):
                raise DataSetError(f"rows have the columns {list(found)} but {list(announced)} were declared")
            for column, wanted in announced.items():
                if not _may_be(found[column], wanted):
                    raise DataSetError(f"column {column!r} is {found[column]} but {wanted} was declared: cast it")
            return native.cast(self._empty)
        except (DataSetError, TypeError) as error:
            raise DataSetError(f"{self._of}: {error}") from error
