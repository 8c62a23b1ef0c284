"""User functions as steps of a query: on batches, on rows, on groups of rows."""

from __future__ import annotations

import copy
import functools
import textwrap
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemill._callback import run_in_callback
from tidemill._needs import needed
from tidemill._tables import workers as _workers
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import (
    Row,
    Schema,
    as_list,
    check_row,
    describe_error,
    function_name,
    parse_schema,
    table_of_rows,
    take_result,
)
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable

if TYPE_CHECKING:
    from tidemill._streaming.process import Function
    from tidemill._streaming.state import ItemType
    from tidemill._tables.durations import Duration
    from tidemill.dataset._dataset import DataSet
    from tidemill.dataset._lookup import Source

__all__ = [
    "KeyedRows",
    "filter_rows",
    "lookup",
    "map_batches",
    "map_rows",
    "map_tables",
    "reduce_rows",
]

#: Returns tables for a table; the second argument, if present, is a table without rows that has the columns found at
#: first.
OnTable = Callable[[NativeTable, "NativeTable | None"], list[NativeTable]]

#: Rows that are used to determine the schema of a function's results.
_SAMPLED_ROWS = 100

#: Exceptions of a function: on a thread of a query, ``sys.exit()`` does not end the program.
_FAILURES = (Exception, SystemExit)


def map_batches(data: DataSet, function: Callable[[Any], Any], schema: Schema | None, retries: int) -> DataSet:
    """See `DataSet.map_batches`."""
    pyarrow = needed("pyarrow", "map_batches")
    name = function_name(function)
    call = _retried(function, retries, name)

    def on_table(native: NativeTable, _found: NativeTable | None) -> list[NativeTable]:
        table = Table(native).to_arrow().combine_chunks()
        # pyarrow makes no batches of zero rows, but the function must still show what it would return.
        batches = table.to_batches() or [pyarrow.RecordBatch.from_pylist([], schema=table.schema)]
        return [part for batch in batches for part in called(batch)]

    def called(batch: Any) -> list[NativeTable]:
        try:
            return [take_result(part) for part in as_list(call(batch))]
        except _FAILURES as error:
            first = f", the first {batch.slice(0, 1).to_pylist()[0]!r}" if batch.num_rows else ""
            raise DataSetError(f"{name} failed on {batch.num_rows} rows{first}: {describe_error(error)}") from error

    return map_tables(data, name, on_table, schema)


def map_rows(
    data: DataSet, function: Callable[[Row], Any], schema: Schema | None, retries: int, several: bool
) -> DataSet:
    """See `DataSet.map` and `DataSet.flat_map`."""
    name = function_name(function)

    def listed(row: Row) -> list[Row]:
        made = function(row)
        if isinstance(made, Mapping):
            raise TypeError("flat_map takes a list of rows, but got one row; return [row], or use map")
        # Rows of a generator are made here, and may raise here.
        return list(made)

    call = _retried(listed if several else function, retries, name)

    def on_table(native: NativeTable, found: NativeTable | None) -> list[NativeTable]:
        rows = Table(native).to_pylist()
        made = [_called(call, row, name) for row in rows]

        def table(count: int) -> NativeTable:
            return table_of_rows(
                [row for part in made[:count] for row in part] if several else made[:count], schema, found
            )

        try:
            return [table(len(made))]
        except Exception as error:
            wrong, why = _first_wrong(table, len(made), error)
            # A function of flat_map may return any number of rows.
            of = textwrap.shorten(repr(made[wrong]), 500, placeholder=" ...")
            raise DataSetError(f"{name} returned {of} for the row {rows[wrong]!r}: {describe_error(why)}") from None

    return map_tables(data, name, on_table, schema)


def filter_rows(data: DataSet, function: Callable[[Row], object], retries: int) -> DataSet:
    """See `DataSet.filter`."""
    name = function_name(function)
    call = _retried(function, retries, name)

    def on_table(native: NativeTable, _found: NativeTable | None) -> list[NativeTable]:
        return [native.filter([bool(_called(call, row, name)) for row in Table(native).to_pylist()])]

    return map_tables(data, name, on_table, data._native)


def lookup(
    data: DataSet,
    source: Source,
    keys: list[str],
    schema: Schema,
    how: str,
    cache_rows: int,
    cache_s: float | None,
    retries: int,
) -> DataSet:
    """See `DataSet.lookup`."""
    from tidemill.dataset._lookup import Lookup

    name = function_name(source)
    added = NativeTable.empty(parse_schema(schema))
    there = [field for field, _ in added.fields if field in data.columns]
    if there:
        raise DataSetError(f"{name}: column {there[0]!r} already exists; rename it, or what is looked up")
    if not added.fields:
        raise DataSetError(f"{name}: a schema needs at least one column")
    by_rows = getattr(source, "of_rows", None)
    ask = run_in_callback("a source of lookup", _retried(source if by_rows is None else by_rows, retries, name))
    call = Lookup(ask, name, keys, added, how, cache_rows, cache_s, takes_rows=by_rows is not None)
    return data._step(data._native.map_batches(name, call, data._native.empty().beside(added)))


def reduce_rows(data: DataSet, function: Callable[[Row, Row], Row], retries: int) -> Row | None:
    """See `DataSet.reduce`."""
    name = function_name(function)
    call = _retried(function, retries, name)

    def on_table(native: NativeTable, _found: NativeTable | None) -> list[NativeTable]:
        rows = Table(native).to_pylist()
        return [_reduced([_folded(call, rows, name)] if rows else [], data._native, name)]

    parts = map_tables(data, name, on_table, data._native).collect().to_pylist()
    return _folded(call, parts, name) if parts else None


class KeyedRows:
    """The rows of a DataSet by the values of some columns; returned by `DataSet.key_by`."""

    def __init__(self, data: DataSet, keys: tuple[str, ...]) -> None:
        if not keys:
            raise DataSetError("key_by needs at least one column")
        self._data = data
        self._keys = keys

    def reduce(self, function: Callable[[Row, Row], Row], *, retries: int = 0) -> DataSet:
        """Combine the rows of each key into one: ``function(row, row)`` combines two rows into one, repeatedly, in any
        order. `retries` as in `DataSet.map_batches`.

        Returns
        -------
        DataSet
            One row for each key, with the same columns.

        Examples
        --------
        >>> import tidemill as tm
        >>> data = tm.from_dict({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        >>> longest = data.key_by("k").reduce(lambda one, two: max(one, two, key=lambda row: row["x"]))
        >>> longest.sort("k").to_pylist()
        [{'k': 'a', 'x': 3}, {'k': 'b', 'x': 2}]
        """
        keys, schema, name = self._keys, self._data._native, function_name(function)
        call = _retried(function, retries, name)

        def by_key(rows: list[Row]) -> list[Row]:
            groups: dict[tuple[Any, ...], list[Row]] = {}
            for row in rows:
                groups.setdefault(tuple(_hashable(row[key]) for key in keys), []).append(row)
            return [_folded(call, group, name) for group in groups.values()]

        def on_table(native: NativeTable, _found: NativeTable | None) -> list[NativeTable]:
            return [_reduced(by_key(Table(native).to_pylist()), schema, name)]

        # Reduce where the rows are first, so that only one for each key and batch is sent to another worker.
        reduced = map_tables(self._data, name, on_table, schema)
        whole = KeyedRows(reduced, keys)

        def folded(_key: Row, table: Table, _found: NativeTable | None) -> list[NativeTable]:
            # All rows are of one key in terms of the query; to Python, NaN keys differ.
            return [_reduced([_folded(call, table.to_pylist(), name)], schema, name)]

        return whole._apply(name, folded, schema)

    def apply(
        self, function: Callable[[Row, Table], Any], schema: Schema | None = None, *, retries: int = 0
    ) -> DataSet:
        """Apply ``function(key, table)`` to all rows of each key.

        Parameters
        ----------
        function : callable
            Called once for each key, with a dict of the key columns and a `Table` of the rows, in no particular order.
            It returns a row (a dict), a list of rows, or a table that `from_arrow` accepts.
        schema : mapping of str to str, or pyarrow.Schema, optional
            Schema of its result; by default inferred by calling it for some keys.
        retries : int
            As in `DataSet.map_batches`.

        Examples
        --------
        >>> import tidemill as tm
        >>> data = tm.from_dict({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        >>> data.key_by("k").apply(lambda key, table: {**key, "rows": len(table)}).sort("k").to_pylist()
        [{'k': 'a', 'rows': 2}, {'k': 'b', 'rows': 1}]
        """
        name = function_name(function)
        call = _retried(function, retries, name)

        def made(key: Row, table: Table, found: NativeTable | None) -> list[NativeTable]:
            out = call(key, table)
            rows = [out] if isinstance(out, Mapping) else out
            if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
                return [table_of_rows(rows, schema, found)]
            return [take_result(rows)]

        return self._apply(name, made, schema)

    def process(
        self,
        function: Function,
        schema: Schema,
        *,
        ttl: Duration | None = None,
        state: Schema | None = None,
        lists: Mapping[str, ItemType] | None = None,
        maps: Mapping[str, tuple[str, ItemType]] | None = None,
        aggregates: Mapping[str, ItemType] | None = None,
    ) -> DataSet:
        """Apply ``function(key, rows, context)`` to a stream's rows of each key, with per-key state and timers.

        The function is called with the key (a dict of the key columns) and a list of new rows (dicts) in order, and
        with no rows when a timer or an alarm fires. Its state is part of checkpoints.

        Parameters
        ----------
        function : callable
            Returns a row (a dict), a list of rows, or None. Its third argument is a `tidemill.stream.KeyContext`.
        schema : mapping of str to str, or Arrow schema
            Schema of its result.
        ttl : str, number of seconds or timedelta, optional
            Forget a key's state, including timers and alarms, when the stream's time has advanced by this much since it
            first advanced after the key's last row; by default never. Rows that are read together arrive together,
            however far apart their times are. A source without ``time=`` has no time until it ends, so nothing is
            forgotten; `explain` and a warning name such a source.
        state : mapping of str to str, or Arrow schema, optional
            Fields of a key's state, which then must be a dict of them: other names and types are an error. If you add
            fields, the program resumes from an older checkpoint with None for the new ones; if you remove fields or
            change types, it does not start. By default the state is any object that can be pickled, and your program
            must handle the state that an earlier version has saved.
        lists : mapping of str to str, or to mapping of str to str, optional
            The key's lists (`KeyContext.list_state`) and the types of their items: values of one type, or dicts with
            fields. Items are checked when you add them, and no other lists are allowed. You can add fields later, as
            for `state`, and lists.
        maps : mapping of str to tuple, optional
            The key's maps: for each, the type of its names and the types of its items, as for `lists`.
        aggregates : mapping of str to str, or to mapping of str to str, optional
            The key's aggregates (`KeyContext.aggregate_state`) and the types of their accumulators, as for `lists`.

        Raises
        ------
        DataSetError
            If this is not a stream: use `apply` for a function on all rows of a key.
        """
        from tidemill._streaming.process import KeyedLogic
        from tidemill._streaming.state import Declared
        from tidemill._tables.durations import micros

        if not callable(function):
            raise TypeError(f"process takes a function of a key, rows and a context, not {function!r}")
        name = function_name(function)
        if not self._data._native.is_stream():
            raise DataSetError(f"{name}: process takes the rows of streams as they come; of a table, use apply")
        fields = dict(self._data._native.fields)
        nested = [key for key in self._keys if fields.get(key, "").startswith(("List", "LargeList", "Struct", "Map"))]
        if nested:
            raise DataSetError(f"{name}: column {nested[0]!r} ({fields[nested[0]]}) cannot be a key of process")
        kept = None if ttl is None else micros(ttl, "ttl")
        if kept is not None and kept <= 0:
            raise DataSetError(f"{name}: ttl={ttl!r} must be more than zero")
        given = parse_schema(schema)
        if given == []:
            raise DataSetError(f"{name}: a schema needs at least one column")
        keeps: Any = None if state is None else parse_schema(state, "state")
        if keeps == []:
            raise DataSetError(
                f"{name}: state= needs at least one field; without it a state is anything that can be pickled"
            )

        def resolve(types: Schema) -> list[tuple[str, str]]:
            return table_of_rows([], types).fields

        declared = Declared(None if state is None else resolve(state), lists, maps, aggregates, resolve)
        if lists is not None or maps is not None or aggregates is not None:
            if not isinstance(state or {}, Mapping):
                raise DataSetError(
                    f"{name}: beside lists=, maps= and aggregates=, state= is a mapping of names to types"
                )
            keeps = [*(keeps or []), *declared.columns()] or None

        called = run_in_callback("a function of process", function)

        def logic() -> KeyedLogic:
            return KeyedLogic(called, name, self._keys, schema, declared)

        return self._data._step(self._data._native.process(name, list(self._keys), logic, given, keeps, kept))

    def _apply(
        self, name: str, made: Callable[[Row, Table, NativeTable | None], list[NativeTable]], schema: Schema | None
    ) -> DataSet:
        from tidemill.dataset._expr import col, lit
        from tidemill.dataset._functions import aggregate, scalar

        inside = "rows"
        while inside in self._data.columns:
            inside += "_"
        pairs = [part for name in self._data.columns for part in (lit(name), col(name))]
        rows = aggregate("array_agg", scalar("named_struct", *pairs)).alias(inside)
        grouped = self._data.group_by(*self._keys).agg(rows)
        keys = list(self._keys)

        def on_table(native: NativeTable, first: NativeTable | None) -> list[NativeTable]:
            columns = [native.column(key) for key in keys]
            found = zip(*columns, strict=True)
            done: list[NativeTable] = []
            for values, table in zip(found, native.lists(inside), strict=True):
                key = dict(zip(keys, values, strict=True))
                try:
                    done += made(key, Table(table), first)
                except _FAILURES as error:
                    raise DataSetError(f"{name} failed on the key {key!r}: {describe_error(error)}") from error
            return done

        return map_tables(grouped, name, on_table, schema)


def map_tables(data: DataSet, name: str, function: OnTable, schema: Schema | None) -> DataSet:
    on_table: OnTable = run_in_callback("a function of a query", function)
    if schema is None:
        found = _sampled(data, name, on_table)

        def as_found(native: NativeTable) -> list[NativeTable]:
            # Types inferred from each batch separately may differ between batches.
            return [table.cast(found) for table in on_table(native, found) if table.num_rows]

        return data._step(data._native.map_batches(name, as_found, found))
    given = parse_schema(schema)
    if given == []:
        raise DataSetError(f"{name}: a schema needs at least one column")
    return data._step(data._native.map_batches(name, lambda native: on_table(native, None), given))


def _sampled(data: DataSet, name: str, on_table: OnTable) -> NativeTable:
    """Return the function's result for some rows, for its schema. An action; worker 0 runs it for all."""
    if data._native.is_stream():
        raise DataSetError(
            f"{name}: a stream has no first rows to find out from; give schema={{...}}, as types by column"
        )
    # Take the first rows: arbitrary ones would differ with the number of workers, or from run to run.
    sample = _workers.collect_first(data._native, _SAMPLED_ROWS)

    def made() -> Table | None:
        tables = on_table(sample._native, None)
        # A table without rows tells its types, too, if it has any.
        some = (table for table in tables if table.fields and (table.num_rows or not table.untyped))
        # A group may contain only nulls.
        first = min(some, key=lambda table: (bool(table.untyped), not table.num_rows), default=None)
        return None if first is None else Table(first.slice(0, 0))

    def says(error: Exception) -> str:
        cause = f": {error.__cause__!r}" if error.__cause__ is not None else ""
        return f"{name}: {type(error).__name__}: {describe_error(error)}{cause}"

    found = _workers.from_first(made, says)
    if found is None:
        raise DataSetError(
            f"{name} made no rows from the first {_SAMPLED_ROWS}; give schema={{...}}, as types by column"
        )
    native: NativeTable = found._native
    if native.untyped:
        raise DataSetError(
            f"{name} made only None in {', '.join(native.untyped)} at first; give schema={{...}}, as types by column"
        )
    return native


def _called(function: Callable[[Row], Any], row: Row, name: str) -> Any:
    try:
        return function(row)
    except _FAILURES as error:
        raise DataSetError(f"{name} failed on the row {row!r}: {describe_error(error)}") from error


def _first_wrong(make: Callable[[int], object], count: int, error: Exception) -> tuple[int, Exception]:
    """Return the first of `count` things that is incompatible with those before it, and why: ``make(count)`` has failed
    with `error`.
    """
    fine = 0
    while fine + 1 < count:
        half = (fine + count) // 2
        try:
            make(half)
            fine = half
        except Exception as of_half:
            count, error = half, of_half
    return count - 1, error


def _retried(function: Callable[..., Any], retries: int, name: str) -> Callable[..., Any]:
    """Return the function with retries: it is called again with the same arguments when it fails, at most `retries`
    times.

    Rows, keys and lists are the same each time, even if an earlier call has modified its arguments.
    """
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise DataSetError(f"retries must be a non-negative integer, not {retries!r}")
    if retries == 0:
        return function

    def call(*arguments: Any) -> Any:
        for again in range(1, retries + 1):
            # Batches and tables are immutable.
            mine = [copy.deepcopy(one) if isinstance(one, (dict, list)) else one for one in arguments]
            try:
                return function(*mine)
            except Exception as error:
                what = f"{name} failed ({type(error).__name__}: {error})"
                warnings.warn(f"{what}; calling it again ({again} of {retries})", RuntimeWarning, stacklevel=2)
        return function(*arguments)

    return call


def _folded(function: Callable[[Row, Row], Row], rows: list[Row], name: str) -> Row:
    # The names are taken before the calls: a function may modify the rows it is given.
    columns = list(rows[0])

    def both(one: Row, two: Row) -> Row:
        try:
            made = function(one, two)
            if check_row(made).keys() != set(columns):
                raise DataSetError(f"it returned the columns {list(made)}, not {columns}")
        except _FAILURES as error:
            raise DataSetError(f"{name} failed on the rows {one!r} and {two!r}: {describe_error(error)}") from error
        return made

    return functools.reduce(both, rows)


def _reduced(rows: list[Row], schema: Schema, name: str) -> NativeTable:
    """Return a table of rows, each of which a function has combined from several."""
    try:
        return table_of_rows(rows, schema)
    except Exception as error:
        wrong, why = _first_wrong(lambda count: table_of_rows(rows[:count], schema), len(rows), error)
        raise DataSetError(f"{name} made the row {rows[wrong]!r}: {describe_error(why)}") from None


def _hashable(value: Any) -> Any:
    """Return a hashable equivalent of lists, and of structs, which are dicts here."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(inner)) for name, inner in value.items())
    return value
