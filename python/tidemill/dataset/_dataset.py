"""`DataSet`: a lazy table. Methods add steps; actions run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tidemill._membership import current_rank
from tidemill._tables import shown as _shown
from tidemill._tables import workers as _workers
from tidemill._tables.durations import Duration, micros, seconds
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Row, Schema
from tidemill._tables.table import Table
from tidemill._tidemill import NativeDataSet
from tidemill.dataset import _map, _shape
from tidemill.dataset._expr import Expr, IntoExpr, Order, columns, listed, names_of, sort_keys
from tidemill.dataset._group import GroupBy
from tidemill.dataset._map import KeyedRows
from tidemill.dataset._write import DataSetWriters

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from tidemill._streaming.bsp import Merge, Split
    from tidemill._streaming.controller import Controller
    from tidemill._streaming.running import Running
    from tidemill._streaming.sinks import AnySink, LateOutput
    from tidemill._tables.checkpoint import Checkpoint
    from tidemill._tables.places import StorageOptions
    from tidemill.dataset._database import Connection
    from tidemill.dataset._lookup import Source

__all__ = ["DataSet"]

How = Literal["inner", "left", "right", "full", "outer", "semi", "anti", "cross"]

#: Methods that need all rows, which a stream never has.
_OF_TABLES = frozenset((
    "cache", "collect", "collect_local", "count", "describe", "head", "limit", "materialize", "persist_local",
    "pivot", "reduce", "repartition", "sort", "to_arrow", "to_dict", "to_pandas", "to_polars", "to_pylist",
    "value_counts", "write_csv", "write_database", "write_ipc", "write_json", "write_npy", "write_parquet",
    "write_records", "write_text",
))  # fmt: skip
#: Methods for continuous queries.
_OF_STREAMS = frozenset(("shuffle", "step_name", "write_stream"))


class DataSet(DataSetWriters):
    """A lazy table; returned by `read_csv` and similar functions, `from_arrow`, `sql`, and by methods of other
    DataSets.

    Methods return a new DataSet and read nothing; a column that does not exist raises at once. Rows have no order
    except after `sort`. Actions (`collect`, ``to_*``, `count`, `show`, ``write_*``, `explain`) are collective: every
    worker of the job makes the same calls in the same order, and gets the same result.

    Attributes
    ----------
    schema : dict of str to str
        Arrow types by column.
    columns : list of str
        Column names, in order.
    """

    __slots__ = ()

    def __init__(self, native: NativeDataSet) -> None:
        self._native = native

    @staticmethod
    def _step(native: NativeDataSet) -> DataSet:
        return DataSet(native)

    def __repr__(self) -> str:
        """Return columns, types and the first ten rows.

        In a job of one worker this runs the query, for at most two seconds. With several workers, and for streams, no
        rows are shown: displaying a DataSet must not wait for other workers.
        """
        return _shown.dataset_text(self._native)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return _shown.dataset_html(self._native)

    def __dir__(self) -> list[str]:
        """Return attributes for completion: those of streams only for a stream, those of tables only for a table."""
        hidden = _OF_TABLES if self._native.is_stream() else _OF_STREAMS
        return [name for name in super().__dir__() if name not in hidden]

    def __reduce__(self) -> NoReturn:
        raise DataSetError(
            "a DataSet belongs to the process that made it, and cannot be sent to another: make it inside the function that runs there, "
            "or pass its rows, data.collect(), and turn them into a DataSet there with from_arrow; return data.collect(), too"
        )

    @property
    def schema(self) -> dict[str, str]:
        """Arrow types by column."""
        return dict(self._native.fields)

    @property
    def columns(self) -> list[str]:
        """Column names, in order."""
        return self._native.names

    # Columns.

    def select(self, *exprs: IntoExpr | Iterable[IntoExpr], **named: Any) -> DataSet:
        """Select columns; if they are aggregates, compute one row for the whole table.

        Parameters
        ----------
        *exprs : str, Expr or iterable of them
            Strings are column names.
        **named
            Expressions by the names of their columns.

        Examples
        --------
        >>> import tidemill as tm
        >>> tm.from_dict({"a": [1, 2]}).select("a", b=tm.col("a") * 10).to_pylist()
        [{'a': 1, 'b': 10}, {'a': 2, 'b': 20}]
        """
        return self._step(self._native.select(columns(exprs, named)))

    def with_columns(self, *exprs: IntoExpr | Iterable[IntoExpr], **named: Any) -> DataSet:
        """Add columns; one with an existing name replaces that column."""
        return self._step(self._native.with_columns(columns(exprs, named)))

    def drop(self, *names: str | Iterable[str]) -> DataSet:
        """Remove these columns."""
        return self._step(self._native.drop(names_of(names, "drop")))

    def rename(self, names: Mapping[str, str]) -> DataSet:
        """Rename columns: `names` maps old names to new ones."""
        return self._step(self._native.rename(list(names.items())))

    # Rows.

    def filter(self, *predicates: Expr | Callable[[Row], object], retries: int = 0) -> DataSet:
        """Keep the rows for which all predicates are true (neither false nor null).

        Parameters
        ----------
        *predicates : Expr or callable
            Expressions, or functions that take a row as a dict; expressions are much faster.
        retries : int
            For functions, as in `map_batches`.
        """
        data = self
        for predicate in predicates:
            if not isinstance(predicate, Expr) and callable(predicate):
                data = _map.filter_rows(data, predicate, retries)
                continue
            if not isinstance(predicate, Expr):
                raise TypeError(f"filter needs expressions such as col('x') > 1, not {type(predicate).__name__}")
            data = data._step(data._native.filter(predicate._native))
        return data

    def sort(
        self,
        by: Order,
        *more: str | Expr,
        descending: bool | Iterable[bool] = False,
        nulls_last: bool | Iterable[bool] = True,
    ) -> DataSet:
        """Sort rows. Later steps may change the order again, except `limit` and selecting columns: sort last.

        Parameters
        ----------
        by, *more : str or Expr
            Sort keys; later ones break ties.
        descending : bool or iterable of bool, default=False
            Direction of all keys, or of each.
        nulls_last : bool or iterable of bool, default=True
            Whether nulls come after all other values, in both directions; for all keys, or for each.
        """
        keys = sort_keys([*listed(by), *more], descending, nulls_last)
        if not keys:
            raise DataSetError("sort needs at least one column")
        return self._step(self._native.sort(keys))

    def limit(self, count: int, skip: int = 0, *, offset: int | None = None) -> DataSet:
        """Return at most `count` rows after skipping the first `skip`: of a sorted table the first, else any. `offset`
        is an alias of `skip`.
        """
        if offset is not None:
            if skip:
                raise ValueError("limit: skip and offset are the same; pass only one")
            skip = offset
        if count < 0 or skip < 0:
            raise ValueError("limit cannot be negative")
        return self._step(self._native.limit(skip, count))

    def head(self, count: int = 5) -> DataSet:
        """Return at most `count` rows."""
        return self.limit(count)

    def sample(self, fraction: float) -> DataSet:
        """Keep about this fraction of the rows, each chosen at random. Every use draws a new sample, even two uses in
        one query.

        ``data.sample(0.1).cache()`` keeps one sample.

        Raises
        ------
        ValueError
            If `fraction` is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
        from tidemill.dataset._functions import scalar

        return self.filter(scalar("random") < fraction)

    def distinct(self, *subset: str | Iterable[str], ttl: Duration | None = None) -> DataSet:
        """Keep each different row once; with `subset`, keep any one row for each different value of those columns.

        For a stream whose rows have a time, `ttl` limits how long a row is remembered: the first row of a kind is kept,
        and each one that comes at least `ttl` after the last kept one. Rows without a time (null) are left out and
        counted.
        """
        names = names_of(subset, "distinct")
        return self._step(self._native.distinct(names, None if ttl is None else micros(ttl, "ttl")))

    def with_row_index(self, name: str = "index", offset: int = 0, *, order_by: Order = ()) -> DataSet:
        """Add a first column `name` that numbers the rows, starting at `offset`.

        Parameters
        ----------
        name : str, default="index"
        offset : int, default=0
            The first number.
        order_by : str, Expr or list of them
            The order in which rows are numbered. By default that of `sort`, if it was the previous step (or came before
            a `limit` that was). Otherwise rows have no order, and numbers may differ from run to run.

        Returns
        -------
        DataSet
            Sorted by the number, if the rows had an order.

        Notes
        -----
        One worker numbers all rows, since numbers without gaps need all rows in one place.

        >>> import tidemill as tm
        >>> tm.from_dict({"x": [3, 1, 2]}).sort("x").with_row_index().to_dict()
        {'index': [0, 1, 2], 'x': [1, 2, 3]}
        """
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"with_row_index: offset must be an integer, not {offset!r}")
        return self._step(self._native.with_row_index(name, offset, sort_keys(order_by)))

    def fill_null(self, value: Any, *subset: str | Iterable[str]) -> DataSet:
        """Replace nulls with `value`.

        Parameters
        ----------
        value : object
            A value, or a mapping of values by column.
        *subset : str or iterable of str
            Columns to fill. By default those whose type matches: a number fills columns of numbers, a string those of
            strings, and so on. Integers keep the column's type.

        Examples
        --------
        >>> import tidemill as tm
        >>> data = tm.from_dict({"n": [1, None], "s": [None, "b"]})
        >>> data.fill_null(0).to_dict()
        {'n': [1, 0], 's': [None, 'b']}
        >>> data.fill_null({"n": 0, "s": "?"}).to_dict()
        {'n': [1, 0], 's': ['?', 'b']}
        """
        return _shape.filled(self, value, subset)

    def value_counts(self, *names: str | Iterable[str]) -> DataSet:
        """Count the rows for each value of these columns (by default, for each different row), as ``count``; largest
        count first.

        >>> import tidemill as tm
        >>> tm.from_dict({"x": ["a", "b", "a"]}).value_counts("x").to_dict()
        {'x': ['a', 'b'], 'count': [2, 1]}
        """
        wanted = names_of(names, "value_counts") or self.columns
        if "count" in wanted:
            raise DataSetError('value_counts: column "count" already exists; rename it first')
        counted = self.group_by(*wanted).count()
        # Equal counts are ordered by their values.
        return counted.sort("count", *wanted, descending=[True, *(False for _ in wanted)])

    def drop_nulls(self, *subset: str | Iterable[str]) -> DataSet:
        """Remove rows that have a null in these columns (by default, in any)."""
        from tidemill.dataset._expr import col

        return self.filter(*(col(name).is_not_null() for name in names_of(subset, "drop_nulls") or self.columns))

    def explode(self, *names: str | Iterable[str]) -> DataSet:
        """Return one row for each element of the lists in these columns, and none for an empty or null list; other
        columns are repeated.
        """
        return self._step(self._native.explode(names_of(names, "explode")))

    # User functions. They run on every worker, which must be able to call them at any time.

    def map_batches(self, function: Callable[[Any], Any], schema: Schema | None = None, *, retries: int = 0) -> DataSet:
        """Apply a function to batches of rows.

        Parameters
        ----------
        function : callable
            Takes a ``pyarrow.RecordBatch`` of some rows and returns a ``pyarrow.RecordBatch``, a ``pyarrow.Table``, any
            table that `from_arrow` accepts, a list of these, or None. Needs pyarrow.
        schema : mapping of str to str, or pyarrow.Schema, optional
            Schema of its result; by default inferred by calling it with the first hundred rows, which is an action.
        retries : int
            How often to call it again with the same rows after an exception; each retry is a warning. For functions
            that call other services.

        Raises
        ------
        DataSetError
            By the action, if the function fails: with its traceback and the worker it ran on.
        """
        return _map.map_batches(self, function, schema, retries)

    def map(self, function: Callable[[Row], Row], schema: Schema | None = None, *, retries: int = 0) -> DataSet:
        """Apply a function to each row; it takes a dict and returns a dict. `retries` as in `map_batches`.

        >>> import tidemill as tm
        >>> tm.from_dict({"x": [1, 2]}).map(lambda row: {"y": row["x"] ** 2}).sort("y").to_dict()
        {'y': [1, 4]}
        """
        return _map.map_rows(self, function, schema, retries, several=False)

    def flat_map(
        self, function: Callable[[Row], Iterable[Row]], schema: Schema | None = None, *, retries: int = 0
    ) -> DataSet:
        """Apply a function to each row that returns any number of rows: it takes a dict and returns dicts. `retries` as
        in `map_batches`.
        """
        return _map.map_rows(self, function, schema, retries, several=True)

    def lookup(
        self,
        source: Source,
        on: str | Iterable[str],
        schema: Schema,
        *,
        how: Literal["left", "inner"] = "left",
        cache_rows: int = 100_000,
        cache_for: Duration | None = None,
        retries: int = 0,
    ) -> DataSet:
        """Add columns that a function looks up by key: a join with a service or a database.

        Parameters
        ----------
        source : callable
            Takes a list of distinct keys: values of the column `on`, or tuples if there are several columns. For each
            key it returns a dict with the columns of `schema`, or None: as a list in the order of the keys, or as a
            dict by key. Several threads call it. `tidemill.stream.redis_lookup` returns such a function.
        on : str or iterable of str
            The key columns. A null key finds nothing.
        schema : mapping of str to str, or Arrow schema
            The columns to add. Values are cast to their types, so strings may hold numbers.
        how : {"left", "inner"}, default="left"
            ``"left"`` keeps rows for which nothing is found, with nulls; ``"inner"`` drops them.
        cache_rows : int, default=100000
            Number of most recently used keys that each worker caches, including those for which nothing was found. 0
            turns the cache off.
        cache_for : str, number of seconds or timedelta, optional
            How long answers stay in the cache; by default as long as this DataSet exists.
        retries : int
            As in `map_batches`.

        Notes
        -----
        The function may return a different answer when it is called again, for example when rows are read again after a
        failure.

        >>> import tidemill as tm
        >>> names = {1: {"name": "one"}, 2: {"name": "two"}}
        >>> data = tm.from_dict({"x": [2, 1, 3]})
        >>> data.lookup(lambda keys: [names.get(key) for key in keys], on="x", schema={"name": "str"}).sort("x").to_dict()
        {'x': [1, 2, 3], 'name': ['one', 'two', None]}
        """
        if how not in ("left", "inner"):
            raise DataSetError(f'how must be "left" or "inner", not {how!r}')
        keys = [on] if isinstance(on, str) else list(on)
        if not keys:
            raise DataSetError("lookup needs at least one column to look up")
        self.select(*keys)  # raises for missing columns
        if isinstance(cache_rows, bool) or not isinstance(cache_rows, int) or cache_rows < 0:
            raise DataSetError(f"cache_rows must be a non-negative integer, not {cache_rows!r}")
        cache_s = None if cache_for is None else seconds(cache_for, "cache_for")
        return _map.lookup(self, source, keys, schema, how, cache_rows, cache_s, retries)

    def reduce(self, function: Callable[[Row, Row], Row], *, retries: int = 0) -> Row | None:
        """Combine all rows into one: ``function(row, row)`` combines two rows into one, repeatedly, in any order. An
        action. `retries` as in `map_batches`.

        Returns
        -------
        dict or None
            None if there are no rows.
        """
        return _map.reduce_rows(self, function, retries)

    def key_by(self, *keys: str | Iterable[str]) -> KeyedRows:
        """Key the rows by the values of these columns, for your own functions in ``reduce`` and ``apply``."""
        return KeyedRows(self, tuple(names_of(keys, "key_by")))

    # Several rows, several tables.

    def group_by(self, *keys: IntoExpr) -> GroupBy:
        """Group rows with the same keys; pass aggregates to ``agg`` of the result."""
        return GroupBy(self, keys)

    def join(
        self,
        other: DataSet,
        on: str | Iterable[str] | None = None,
        how: How = "inner",
        *,
        left_on: str | Iterable[str] | None = None,
        right_on: str | Iterable[str] | None = None,
        suffix: str = "_right",
        where: Expr | None = None,
        ttl: Duration | None = None,
    ) -> DataSet:
        """Join with the rows of `other` that have the same keys; null keys never match.

        Parameters
        ----------
        other : DataSet
        on : str or iterable of str
            Keys with the same name in both tables.
        how : {"inner", "left", "right", "full", "semi", "anti", "cross"}, default="inner"
            Which rows to keep: ``left`` and ``right`` keep all rows of one table, ``full`` (or ``outer``) of both;
            ``semi`` keeps the rows of this table that have a match, ``anti`` those without; ``cross`` returns every
            pair.
        left_on, right_on : str or iterable of str
            Keys with different names, instead of `on`.
        suffix : str, default="_right"
            Suffix for columns of `other` whose names this table has, too.
        where : Expr, optional
            A further condition on both rows. Use the column names of the result; columns of `other`, including keys,
            have `suffix` if this table has the name, too. For two streams, it bounds the time between two matching
            rows.
        ttl : str, number of seconds or timedelta, optional
            For two streams whose rows have a time: how long rows are remembered. Matching rows are less than `ttl`
            apart in event time, so no row is kept forever; a row without a time (null) never matches.

        Returns
        -------
        DataSet
            This table's columns, then those of `other` without its keys.
        """
        if not isinstance(other, DataSet):
            raise TypeError(f"join needs a DataSet, not {type(other).__name__}; from_arrow makes one of a table")
        if on is not None and (left_on is not None or right_on is not None):
            raise DataSetError("join: pass either on, or left_on and right_on")
        given = (on, on) if on is not None else (left_on, right_on)
        left, right = ([] if keys is None else names_of([keys], "join") for keys in given)
        if len(left) != len(right):
            raise DataSetError(f"join: {len(left)} keys on the left and {len(right)} on the right")
        pairs = list(zip(left, right, strict=True))
        condition = None if where is None else columns((where,), {})[0]
        remembered = None if ttl is None else micros(ttl, "ttl")
        return self._step(self._native.join(other._native, pairs, how, suffix, condition, remembered))

    def union(self, *others: DataSet) -> DataSet:
        """Return the rows of all tables; they must have the same columns, in any order."""
        native = self._native
        for other in others:
            if not isinstance(other, DataSet):
                raise TypeError(f"union needs DataSets, not {type(other).__name__}; from_arrow makes one of a table")
            native = native.union(other._native)
        return self._step(native)

    def pivot(
        self,
        on: str,
        *,
        index: str | Iterable[str],
        values: str,
        aggregate: Literal["first", "last", "sum", "mean", "min", "max", "median", "count"] = "first",
        on_values: Iterable[Any] | None = None,
    ) -> DataSet:
        """Reshape to a wide table: a row for each value of `index`, a column for each value of `on`.

        Parameters
        ----------
        on : str
            The column whose values become column names.
        index : str or iterable of str
            The columns that identify the row of a value.
        values : str
            The column whose values fill the cells; a cell without a value is null.
        aggregate : {"first", "last", "sum", "mean", "min", "max", "median", "count"}, default="first"
            How to combine several values of one cell.
        on_values : iterable, optional
            The values of `on` that become columns, in this order. By default all of them, sorted; finding them is an
            action.

        Examples
        --------
        >>> import tidemill as tm
        >>> sales = tm.from_dict({"shop": ["n", "n", "s"], "item": ["tea", "salt", "tea"], "sold": [3, 1, 5]})
        >>> sales.pivot("item", index="shop", values="sold").sort("shop").to_pylist()
        [{'shop': 'n', 'salt': 1, 'tea': 3}, {'shop': 's', 'salt': None, 'tea': 5}]
        """
        return _shape.pivoted(self, on, index, values, aggregate, on_values)

    def unpivot(
        self,
        on: str | Iterable[str] | None = None,
        *,
        index: str | Iterable[str] | None = None,
        variable_name: str = "variable",
        value_name: str = "value",
    ) -> DataSet:
        """Reshape to a long table: a row for each cell of the columns `on`, with the column's name and the value.

        Parameters
        ----------
        on : str or iterable of str, optional
            The columns that become rows; by default all but `index`. Their types must have a common type.
        index : str or iterable of str, optional
            The columns to keep; by default none.
        variable_name, value_name : str
            Names of the two new columns.

        Examples
        --------
        >>> import tidemill as tm
        >>> wide = tm.from_dict({"shop": ["n", "s"], "tea": [3, 5], "salt": [1, None]})
        >>> wide.unpivot(index="shop").sort("shop", "variable").to_dict()["value"]
        [1, 3, None, 5]
        """
        return _shape.unpivoted(self, on, index, variable_name, value_name)

    def repartition(self, partitions: int, *by: IntoExpr) -> DataSet:
        """Redistribute the rows over a number of partitions.

        Partition ``i`` runs on worker ``i % workers``. Steps that work row by row, such as `filter`, `select` and
        `map`, keep rows in place; joins, groups, sorts and windows may move them.

        Parameters
        ----------
        partitions : int
            Number of partitions, at least 1.
        *by : str or Expr
            Rows with equal values of these go to one partition. Without any, partitions have nearly the same number of
            rows.

        Returns
        -------
        DataSet

        Raises
        ------
        DataSetError
            If `partitions` is less than 1, a column does not exist, or this is a stream.
        """
        if partitions < 1:
            raise DataSetError(f"repartition({partitions}): there must be at least one partition")
        if self._native.is_stream():
            # Lowering a stream drops repartitionings, since those of the planner have no effect there.
            raise DataSetError(
                "repartition is not supported on a stream: to spread rows over all workers, use shuffle(); to bring rows "
                "with equal keys to one worker, use a step with keys, such as group_by(...) or key_by(...).process(...)"
            )
        return self._step(self._native.repartition(partitions, columns(by, {})))

    def cache(self) -> DataSet:
        """Run the steps so far and keep the rows for later use, each on the worker that produced it: in memory within the
        worker's budget, beyond it on its disk, in ``TIDEMILL_SPILL_DIR``. An action.
        """
        from tidemill._job import init

        job = init()
        return self._step(engine().part(self.collect_local()._native, job.rank, job.size))

    def materialize(self, path: str | Path, *, storage_options: StorageOptions | None = None) -> DataSet:
        """Read the result of the steps so far from the folder `path` if an earlier run stored it; otherwise compute it
        now and store it there as Parquet. An action.

        A restarted job resumes from the folders that it has materialized. A folder appears only when it is complete. If
        you change the steps or their input, remove it.

        Parameters
        ----------
        path : str or Path
            As in `write_csv`. In an object store, a folder that a killed job left half finished is written again: at
            once if that job ran on this machine, otherwise when nothing has changed there for 15 seconds.
        storage_options : mapping of str to str, optional
            As in `read_csv`.

        Raises
        ------
        DataSetError
            On every worker; also if the store does not say whether the folder exists.
        """
        from tidemill._tables.places import as_options, at_home
        from tidemill.dataset._read import read_parquet

        _workers.check_alike("materialize", path=repr(at_home(path)))
        # One worker decides for all, because the folder may be appearing at this moment.
        if not _workers.from_first(lambda: engine().settle(at_home(path), as_options(storage_options))):
            self.write_parquet(path, storage_options=storage_options)
        return read_parquet(path, storage_options=storage_options).select(*self.columns)

    # Actions.

    def collect(self, *, root: int | None = None) -> Table:
        """Run the query.

        Parameters
        ----------
        root : int, optional
            The only worker that gets the rows; the others get an empty table. By default all workers get them.

        Returns
        -------
        Table

        Raises
        ------
        DataSetError
            On every worker if the query fails; the message says why.
        """
        return _workers.collect(self._native, root)

    def collect_local(self) -> Table:
        """Run the query and keep its rows where they were produced: every row is on one worker.

        The rows of a small table are spread evenly over the workers, unless they are sorted or `repartition` has placed
        them. Use it for code that runs on each worker, such as an algorithm with a communicator; `from_local` is the
        inverse.

        Returns
        -------
        Table
            This worker's rows; all rows in a job of one worker.
        """
        return _workers.collect_local(self._native)

    def persist_local(self) -> dict[str, Any]:
        """Run the query and return this worker's rows as arrays that you may change in place, for iterative algorithms.

        Returns
        -------
        dict of str to numpy.ndarray
            An array for each column, as `Table.to_numpy` returns them. All own their memory.
        """
        return self.collect_local().to_numpy()

    def bsp(
        self,
        function: Callable[..., Any],
        schema: Schema | None = None,
        *,
        window: Expr | None = None,
        time: str | None = None,
        by: str | Iterable[str] = (),
        merge: Merge | None = None,
        split: Split | None = None,
        parallelism: int | None = None,
        on_busy: Literal["wait", "drop", "latest"] = "wait",
    ) -> DataSet:
        """Run a function on every worker, on this worker's rows, with a communicator: bulk-synchronous code within a
        query. On a table it is an action. On a stream it is a step that calls the function on and on: for each window
        that ends, all copies of the function enter it together.

        Parameters
        ----------
        function : callable
            On a table ``function(comm, table)``, called once on each worker, on a thread of its own; ``comm`` is a
            communicator of all workers for this call, with the ranks of the job. The return value becomes this worker's
            part of the result: anything that `from_local` accepts, for example a `Table`, with the same columns on
            every worker.

            On a stream ``function(comm, table, context)``: ``comm`` is a communicator of all copies, `table` has this
            copy's rows of the window, in the order of their times, and ``context`` is a `tidemill.stream.BspContext`
            with the copy's state and the window's start and end. It returns a table, a row (a dict), a list of rows, or
            None. A copy without rows is called, too. All copies must make the same collective calls.
        schema : mapping of str to str, or Arrow schema
            On a stream: names and types of the columns that it returns.
        window : Expr, optional
            On a stream: a window of time, such as ``tm.stream.window(tm.stream.tumbling("10s"), on="time")``: tumbling,
            sliding or calendar. Windows without any rows are left out. Or a window of a number of rows,
            ``tm.stream.window(tm.stream.count_window(1000))``: for each thousand rows that have come to all copies
            together, which are exactly those of the call. Rows that are no full window when the stream ends are in no
            call. By default the function is called at each checkpoint, with the rows since the one before, and when the
            stream ends.
        time : str, optional
            On a stream with a window: the column of `schema`, a timestamp, that is the time of the rows that the
            function returns, so that windows can follow. With a window of time, none may be earlier than the end of the
            window before, such as ``context.window_end``; with a window of a number of rows, none may be earlier than
            the latest time of the call's rows on any copy. Earlier ones come too late for windows behind.
        by : str or iterable of str, optional
            On a stream: rows with equal values in these columns go to the same copy. By default rows are spread by all
            their values.
        merge, split : callable, optional
            On a stream that resumes with another number of copies than its checkpoint has: ``merge(states)`` makes one
            state of a list of those of all copies, and ``split(state, copies)`` a list of one for each copy. Without
            `split` every copy begins with the merged state.
        parallelism : int, optional
            Call the function this many times at once, each call with a rank of its own in ``comm``. On a table at least
            once on each worker, which is the default: the rows of a worker that has several calls are split evenly
            among them, in order, and the ranks of a worker's calls are consecutive. On a stream it has as many copies
            as other steps by default.
        on_busy : {"wait", "drop", "latest"}, default="wait"
            On a stream: what happens to windows that end while the function is busy. They wait, and when enough rows
            wait, so do the sources; or they are left out; or all but the latest of them are left out. What is left out
            is counted, and reported like late rows.

        Returns
        -------
        DataSet

        Raises
        ------
        DataSetError
            On every worker, if ``function`` raises on one: others that wait in a call of ``comm`` get
            `tidemill.Cancelled`. Also if copies make different calls, if it returns on one while others still wait for
            it in ``comm``, if columns differ between workers, or if `parallelism` is less than the number of workers of
            a table.

        Notes
        -----
        On a stream the calls are part of its checkpoints: when a barrier passes, all copies have made the same calls,
        and their states are saved. After a failure all go back to that point, wherever in the middle of a collective
        they were. Rows later than their window's end are left out and counted.

        Examples
        --------
        >>> import tidemill as tm
        >>> def centred(comm, table):
        ...     x = table.to_numpy()["x"]
        ...     total, rows = comm.allreduce(x.sum()), comm.allreduce(len(x))
        ...     return tm.Table.from_numpy({"x": x - total / rows})
        >>> tm.from_dict({"x": [1.0, 2.0, 6.0]}).bsp(centred).sort("x").to_dict()
        {'x': [-2.0, -1.0, 3.0]}

        The mean of each ten seconds of a stream, over all copies, and how many there were before:

        >>> def mean(comm, table, context):
        ...     context.state = (context.state or 0) + 1
        ...     total = comm.allreduce(sum(table.to_dict()["x"]))
        ...     rows = comm.allreduce(len(table))
        ...     return {"mean": total / rows, "windows": context.state} if comm.rank == 0 else None
        >>> rows = tm.from_dict({"x": [1.0, 2.0, 6.0], "s": [1, 2, 11]})
        >>> rows = rows.select("x", at=tm.col("s").cast("timestamp[s]")).collect()
        >>> stream = tm.stream.from_table(rows, time="at")
        >>> means = stream.bsp(
        ...     mean, {"mean": "float64", "windows": "int64"}, window=tm.stream.window(tm.stream.tumbling("10s"), on="at")
        ... )
        >>> seen = []
        >>> _ = means.write_stream(lambda table: seen.extend(table.to_pylist()))
        >>> seen
        [{'mean': 1.5, 'windows': 1}, {'mean': 6.0, 'windows': 2}]
        """
        from tidemill.dataset._bsp import run, step

        if self._native.is_stream():
            return step(self, function, schema, window, by, (merge, split), parallelism, on_busy, time)
        given = {"schema": schema, "window": window, "time": time, "by": by or None, "merge": merge, "split": split}
        given["on_busy"] = None if on_busy == "wait" else on_busy
        if wrong := [name for name, value in given.items() if value is not None]:
            raise DataSetError(f"bsp: {wrong[0]}= is for streams, and this is a table")
        return run(function, self.collect_local(), parallelism)

    def count(self) -> int:
        """Return the number of rows."""
        rows: int = _workers.collect(self._native.counted()).to_dict()["rows"][0]
        return rows

    def describe(self, *, root: int | None = None) -> Table:
        """Compute statistics of each column: number of values and nulls, mean, standard deviation, quartiles, minimum
        and maximum. An action.

        Parameters
        ----------
        root : int, optional
            As in `collect`.

        Returns
        -------
        Table
            A row for each of ``count``, ``null_count``, ``mean``, ``std``, ``min``, ``25%``, ``50%``, ``75%``, ``max``,
            named in the column ``statistic``, and a column for each column of this table. Statistics of numbers and
            booleans are ``float64``. Those of strings, dates and times are strings: ``min`` and ``max``, and for dates
            and times also ``mean``. A statistic that a column does not have is null.

        Notes
        -----
        Quartiles are exact for up to ten million rows, estimated (t-digest) for more.

        >>> import tidemill as tm
        >>> found = tm.from_dict({"x": [1.0, 2.0, None], "s": ["a", "b", "c"]}).describe().to_dict()
        >>> dict(zip(found["statistic"], found["x"]))["mean"], dict(zip(found["statistic"], found["s"]))["max"]
        (1.5, 'c')
        """
        from tidemill.dataset._described import described

        return described(self, root)

    def write_database(
        self,
        table: str,
        connection: Connection,
        *,
        if_exists: Literal["fail", "append", "replace"] = "fail",
    ) -> int:
        """Write the rows into a database table, in one transaction. An action; worker 0 writes them.

        Parameters
        ----------
        table : str
            Name of the table.
        connection : str or callable
            As in `read_database`.
        if_exists : {"fail", "append", "replace"}, default="fail"
            What to do if the table already exists.

        Returns
        -------
        int
            Number of rows written, on every worker.

        Raises
        ------
        DataSetError
            On every worker: the database's error. In that case nothing is written.
        """
        from tidemill.dataset._database import write

        return write(self, table, connection, if_exists)

    def show(self, count: int = 20) -> None:
        """Print at most `count` rows, on worker 0. A null prints as ``null``, an empty string as nothing.

        A stream runs until it has produced this many rows, or ends. It commits nothing, so sources that can be read again
        keep their positions.
        """
        if self._native.is_stream():
            from tidemill._streaming.show import first_rows

            table = first_rows(self._native, count)
        else:
            table = self.limit(count).collect(root=0)
        if current_rank() == 0:
            print(table._native.format())

    def explain(
        self,
        how: Literal["logical", "optimized", "physical", "analyze"] = "physical",
        *,
        sink: AnySink | None = None,
    ) -> str:
        """Return the query plan; ``"analyze"`` runs the query and adds the rows and time of each step. Collective.

        For a stream, return its tasks, and what happens to its rows when the job fails and resumes. Pass `sink` to include
        a sink of `write_stream`.
        """
        if self._native.is_stream() and how == "physical":
            from tidemill._streaming.write import explain

            return explain([(self._native, sink)])
        if sink is not None:
            raise DataSetError('sink= is for streams, which are explained with how="physical"')
        workers = _workers.comm()
        if workers is None or how not in ("physical", "analyze"):
            return self._native.explain(engine(), how)
        with _workers.reading() as watch:
            return self._native.explain_on(engine(), workers, how == "analyze", watch)

    def to_dict(self, *, root: int | None = None) -> dict[str, list[Any]]:
        """Return a list of Python values for each column; `root` as in `collect`."""
        return self.collect(root=root).to_dict()

    def to_pylist(self, *, root: int | None = None) -> list[dict[str, Any]]:
        """Return a dict for each row; `root` as in `collect`."""
        return self.collect(root=root).to_pylist()

    def to_arrow(self, *, root: int | None = None) -> pyarrow.Table:
        """Return a ``pyarrow.Table``; needs pyarrow. `root` as in `collect`."""
        return self.collect(root=root).to_arrow()

    def to_pandas(self, *, root: int | None = None, **options: Any) -> pandas.DataFrame:
        """Return a pandas DataFrame; needs pyarrow and pandas. `root` as in `collect`, `options` as in
        `Table.to_pandas`.
        """
        return self.collect(root=root).to_pandas(**options)

    def to_polars(self, *, root: int | None = None) -> polars.DataFrame:
        """Return a Polars DataFrame; needs Polars. `root` as in `collect`."""
        return self.collect(root=root).to_polars()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.collect().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.collect())

    def step_name(self, name: str) -> DataSet:
        """Name the last step of a stream that keeps state (windows, a join, `distinct`, `process`), or its source if
        there is no such step.

        Checkpoints, plans, errors and `late_output=` use that name. A checkpoint identifies a named step by its name,
        wherever the step is in the program, and an unnamed one by its kind and its number in program order. Named steps
        have no number, so naming a step later changes the numbers of those after it.

        Parameters
        ----------
        name : str
            A name that no other step of the job has.

        Returns
        -------
        DataSet
            The same rows.

        Raises
        ------
        DataSetError
            If this is not a stream. When the stream is written: if another step has the name, or the rows come from
            several steps or from one that several queries share.

        Examples
        --------
        >>> import tidemill as tm
        >>> numbers = tm.stream.from_table(tm.from_dict({"n": [1, 2, 1]}).collect())
        >>> kinds = numbers.distinct().step_name("kinds")
        >>> "kinds" in kinds.explain()
        True
        """
        if not isinstance(name, str) or not name.strip():
            raise DataSetError(f"step_name({name!r}): a name must be a non-empty string")
        if ", " in name:
            raise DataSetError(
                f"step_name({name!r}): a name cannot contain a comma followed by a space, because names of tasks use it as a separator"
            )
        return self._step(self._native.named(name))

    def shuffle(self) -> DataSet:
        """Spread the rows of a stream over all workers, before costly steps.

        A source runs on at most as many workers as it has splits (partitions of a topic, files), and steps without keys
        run where the source does. After a shuffle they run on all workers. Batches go to the workers in turn. If a worker
        has no room, because it or its link is slow, `shuffle` skips it while others have room. Rows do not keep their
        order.

        Returns
        -------
        DataSet
            The same rows.

        Raises
        ------
        DataSetError
            If this is not a stream; use `repartition`.

        Examples
        --------
        >>> import tidemill as tm
        >>> numbers = tm.stream.from_table(tm.from_dict({"n": [1, 2, 3]}).collect())
        >>> doubled = numbers.shuffle().select(tm.col("n") * 2)
        >>> "shuffle" in doubled.explain()
        True
        """
        return self._step(self._native.shuffled())

    def write_stream(
        self,
        sink: AnySink,
        *,
        late_output: LateOutput | None = None,
        name: str = "stream",
        checkpoint: Checkpoint | str | Path | None = None,
        stop_when: Callable[[], bool] | None = None,
        guarantee: Literal["exactly_once", "at_least_once", "at_most_once"] | None = None,
        on_progress: Callable[[Running], object] | None = None,
        allow_loops: bool = False,
        drop_state: Iterable[str] = (),
        controller: Controller | Literal["off", "advise", "on"] = "advise",
    ) -> dict[str, Any]:
        """Write a stream until it ends; collective. To write several queries at once, use `tidemill.stream.write`.

        Parameters
        ----------
        sink : callable, Connector or Sink
            A function that is called with each table of rows; a built-in sink, such as `tidemill.stream.to_files`; or
            an object with ``write``, ``prepare`` and ``commit``, which writes each row exactly once even after
            failures: see `tidemill.stream.Sink`.
        late_output : callable, Connector or Sink, or mapping of str to them, optional
            Sink for rows that come too late for a window, in the form in which they reach its `group_by`; without it,
            they are counted and left out. With it, rows are sent to the owners of their keys without pre-aggregation
            where they are read. You can also pass a mapping of sinks by the names of steps, as warnings and `explain`
            show them: ``{"window 2": sink}``, and ``{"join 1 left": sink}`` for rows of the left side of a join that
            bounds the time between matches.
        name : str, default="stream"
            Name of the job; its checkpoints belong to this name.
        checkpoint : tidemill.stream.Checkpoint, str or Path, optional
            Location and options of the job's checkpoints; a folder, or the URL of one in an object store, stands for
            ``Checkpoint(path)``. The job resumes from the newest checkpoint there, if any, even with a different number
            of workers. Without checkpoints, a failure loses rows in flight.
        stop_when : callable, optional
            Called on worker 0 about ten times a second: as soon as it returns true, the job takes a last checkpoint,
            commits, and returns. Started again, it resumes from there. Needs `checkpoint`.
        guarantee : {"exactly_once", "at_least_once", "at_most_once"}, optional
            How often each row reaches the sink when the job fails and resumes. The first two are minimum requirements:
            a job whose sources, sink and options cannot meet them does not start, and says why. By default the job
            gives the best guarantee that it can. With ``"exactly_once"``, the job also does not fall back to an older
            checkpoint when the newest is damaged. ``"at_most_once"`` works differently: rows are held until a
            checkpoint records that they were read, no state is saved, and sinks commit at once. A failure loses rows in
            flight, and no row comes twice.
        on_progress : callable, optional
            Called on worker 0 about ten times a second with the running job, a `tidemill.stream.Running`, through which
            you can move keys to other workers. Needs `checkpoint`.
        allow_loops : bool, default=False
            Whether the job may read the topic, queue, stream or folder that it writes, for example to retry rows. By
            default such a job does not start, because rows could circulate forever.
        drop_state : iterable of str, optional
            Names of steps and sources, as in errors and `tidemill checkpoints --state`, that you have removed from the
            program and whose state in the checkpoint may be dropped. Without it, a job whose checkpoint has such state
            does not start. Needs `checkpoint`.
        controller : {"off", "advise", "on"} or tidemill.stream.Controller, default="advise"
            What the job does about hosts and links that hold it up. With ``"advise"``, ``tidemill top --why`` says
            which they are, and which keys to move to other workers; with ``"on"``, the job moves them itself, and moves
            them back if that did not help. ``"on"`` needs `checkpoint`. A `tidemill.stream.Controller` limits how often
            keys move and how much state moves with them. See "Why is my job slow?" in
            ``docs/stream-jobs.md``.

        Returns
        -------
        dict
            This worker's counts for each edge, and the time taken.

        Raises
        ------
        DataSetError
            On every worker: if a step is not supported in streams; if a source, a function or the sink fails; if
            checkpoints belong to another job or cannot be read.
        """
        from tidemill._streaming.write import run

        return run(
            "write_stream",
            [(self._native, sink)],
            late_output=late_output,
            name=name,
            checkpoint=checkpoint,
            stop_when=stop_when,
            guarantee=guarantee,
            on_progress=on_progress,
            allow_loops=allow_loops,
            drop_state=drop_state,
            controller=controller,
        )
