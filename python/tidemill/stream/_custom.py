"""Windows that a user function assigns.

A window with a fixed end takes no row after it, so to the engine such windows are just their ends: each is a tumbling
window of one microsecond, the last one before its end, and its start is an additional key. Panes, late rows, early
results, checkpoints and key migration work as for other windows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import function_name, take_result
from tidemill._tables.table import Table
from tidemill._tidemill import NativeExpr, NativeTable, window_of
from tidemill.dataset._expr import Expr, col
from tidemill.stream._keys import WindowKey, find

if TYPE_CHECKING:
    import pyarrow

    from tidemill.dataset._dataset import DataSet

__all__ = ["Assign", "CustomWindow", "assigned"]

#: Maps times of rows, and columns, to starts and ends of windows.
Assign = Callable[..., tuple[Any, Any]]

#: Columns of rows that were assigned to windows.
_START, _END = "window_start", "window_end"
#: The time of rows, as the function gets it; and the key with the starts of windows, next to the microsecond windows.
_TIME, _STARTS = "tidemill time", "tidemill window start"
_MICROSECOND = timedelta(microseconds=1)


class CustomWindow(WindowKey):
    """A key of `group_by` whose windows a function assigns. It cannot be used as a value."""

    __slots__ = ("assign", "early", "emit_early_rows", "given", "lateness", "time")

    def __init__(
        self,
        assign: Assign,
        given: tuple[str, ...],
        time: Expr,
        lateness: int,
        early: int | None,
        emit_early_rows: int | None,
    ) -> None:
        super().__init__(time._native, early is not None or emit_early_rows is not None)
        self.assign = assign
        self.given = given
        self.time = time
        self.lateness = lateness
        self.early = early
        self.emit_early_rows = emit_early_rows

    def alias(self, name: str) -> Expr:
        raise DataSetError(
            f"windows of a function are called window_start and window_end, not {name!r}; rename the result's columns"
        )

    def aggregated(self, data: DataSet, keys: list[Expr], aggregates: list[NativeExpr]) -> DataSet:
        """Group by the windows that the function assigns."""
        find(keys, aggregates)
        return _aggregated(data, keys, aggregates, self)


def _aggregated(data: DataSet, keys: list[Expr], aggregates: list[NativeExpr], window: CustomWindow) -> DataSet:
    """Group by `keys`, one of which is the window, and aggregate."""
    data = assigned(data, window)
    how = ("sliding", 1, 1, window.lateness, window.early, None, window.emit_early_rows)
    native = window_of((col(_END) - _MICROSECOND)._native, *how)
    window_keys = [col(_START).alias(_STARTS)._native, native]
    others = [one for key in keys for one in (window_keys if key is window else [key._native])]
    found = data._step(data._native.aggregate(others, aggregates))
    names = [name for name in found.columns if name != _START]
    return found.select(*[col(name).alias(_START) if name == _STARTS else col(name) for name in names])


def assigned(data: DataSet, window: CustomWindow) -> DataSet:
    """Return the rows with their windows, one row for each window."""
    for name in (_START, _END):
        if name in data.columns:
            raise DataSetError(f"column {name!r} already exists, but windows add one; rename it first")
    missing = [name for name in window.given if name not in data.columns]
    if missing:
        raise DataSetError(f"custom: no column {missing[0]!r}; there are {', '.join(data.columns)}")
    time = window.time.cast("timestamp[us]")
    # A column that keeps its name lags behind the stream's time as before, and a window ends after each of its rows.
    timed = data.with_columns(**{_TIME: time, _END: time + _MICROSECOND})
    before = data._native.empty()
    names, is_stream = data.columns, data._native.is_stream()

    def call(native: NativeTable) -> list[NativeTable]:
        batches = Table(native).to_arrow().combine_chunks().to_batches()
        made = [_in_windows(batch, window, names) for batch in batches]
        if is_stream:
            # Rows without a time are in no window, and are counted there.
            made += [_without_time(batch, names) for batch in batches]
        return [take_result(batch) for batch in made] or [before.beside(_added())]

    native = timed._native.map_batches(function_name(window.assign), call, before.beside(_added()))
    return data._step(native)


def _added() -> NativeTable:
    return NativeTable.empty([(_START, "timestamp[us]"), (_END, "timestamp[us]")])


def _in_windows(batch: pyarrow.RecordBatch, window: CustomWindow, names: list[str]) -> pyarrow.RecordBatch:
    import pyarrow
    import pyarrow.compute as pc

    name = function_name(window.assign)
    batch = batch.filter(pc.is_valid(batch[_TIME]))
    times = batch[_TIME]
    made = window.assign(times, *(batch[column] for column in window.given))
    if not isinstance(made, tuple) or len(made) != 2:
        raise DataSetError(f"{name} returned {type(made).__name__}, not a tuple of starts and ends")
    starts, ends = (_array(pyarrow, array) for array in made)
    for what, array in (("starts", starts), ("ends", ends)):
        if len(array) != batch.num_rows:
            raise DataSetError(
                f"{name} returned {len(array)} {what} for {batch.num_rows} rows; it must return one per row"
            )
    if _is_list(pyarrow, starts) != _is_list(pyarrow, ends):
        raise DataSetError(
            f"{name} returned {starts.type} for starts and {ends.type} for ends; both must be times, or lists of times"
        )
    rows = pyarrow.array(range(batch.num_rows), pyarrow.int64())
    is_list = _is_list(pyarrow, starts)
    if is_list:
        rows = pc.list_parent_indices(starts)
        if not rows.equals(pc.list_parent_indices(ends)):
            raise DataSetError(f"{name} returns lists of starts and of ends that differ in length")
        starts, ends = pc.list_flatten(starts), pc.list_flatten(ends)
    starts, ends = _times(pyarrow, starts, name), _times(pyarrow, ends, name)
    kept = pc.is_valid(starts)
    rows, starts, ends = (array.filter(kept) for array in (rows, starts, ends))
    if ends.null_count:
        start = starts[pc.index(ends.is_null(), True).as_py()]
        raise DataSetError(
            f"{name} returned null as the end of a window from {start} on; a row whose start is null is in no window"
        )
    if is_list:
        # A row that is assigned to a window twice is in it once.
        windows = pyarrow.table([rows, starts, ends], ["row", "start", "end"])
        windows = windows.group_by(windows.column_names, use_threads=False).aggregate([])
        rows, starts, ends = (column.combine_chunks() for column in windows.columns)
    taken = batch.select(names).take(rows)
    at = times.take(rows)
    outside = pc.or_(pc.greater(starts, at), pc.less_equal(ends, at))
    if pc.any(outside).as_py():
        row = pc.index(outside, True).as_py()
        raise DataSetError(
            f"{name} assigned a row at {at[row]} to the window from {starts[row]} to {ends[row]}, which does not contain it"
        )
    columns = [*taken.columns, starts, ends]
    return pyarrow.RecordBatch.from_arrays(columns, names=[*names, _START, _END])


def _without_time(batch: pyarrow.RecordBatch, names: list[str]) -> pyarrow.RecordBatch:
    import pyarrow
    import pyarrow.compute as pc

    rows = batch.filter(pc.is_null(batch[_TIME])).select(names)
    nulls = pyarrow.nulls(rows.num_rows, pyarrow.timestamp("us"))
    return pyarrow.RecordBatch.from_arrays([*rows.columns, nulls, nulls], names=[*names, _START, _END])


def _array(pyarrow: Any, array: Any) -> Any:
    """Return an Arrow array, converting if necessary."""
    if isinstance(array, pyarrow.ChunkedArray):
        return array.combine_chunks()
    return array if isinstance(array, pyarrow.Array) else pyarrow.array(array)


def _is_list(pyarrow: Any, array: Any) -> bool:
    types = pyarrow.types
    return bool(types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type))


def _times(pyarrow: Any, array: Any, name: str) -> Any:
    types = pyarrow.types
    if not (types.is_timestamp(array.type) or types.is_date(array.type) or types.is_null(array.type)):
        raise DataSetError(f"{name} returned {array.type}; starts and ends of windows must be timestamps")
    # Fractions of a microsecond would be lost silently.
    return array.cast(pyarrow.timestamp("us"))
