"""`DataSet`: a lazy table. Methods add steps, actions run them."""

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

    from tidemill._streaming.checkpoint import Checkpoint
    from tidemill._streaming.running import Running
    from tidemill._streaming.sinks import AnySink, LateOutput
    from tidemill._tables.places import StorageOptions
    from tidemill.dataset._database import Connection
    from tidemill.dataset._lookup import Source

__all__ = ["DataSet"]

How = Literal["inner", "left", "right", "full", "outer", "semi", "anti", "cross"]

#: Methods that need all rows, which a stream never has.
_OF_TABLES = frozenset((
    "bsp", "cache", "collect", "collect_local", "count", "describe", "head", "limit", "materialize", "persist_local",
    "pivot", "reduce", "repartition", "sort", "to_arrow", "to_dict", "to_pandas", "to_polars", "to_pylist",
    "value_counts", "write_csv", "write_database", "write_ipc", "write_json", "write_npy", "write_parquet",
    "write_records", "write_text",
))  # fmt: skip
#: Methods for a query that runs on and on.
_OF_STREAMS = frozenset(("step_name", "write_stream"))


class DataSet(DataSetWriters):
    """A lazy table; made by `read_csv` and its like, `from_arrow`, `sql`, and by the methods of another.

    Methods return a new DataSet and read nothing; a column that does not exist is an error at once. Rows have no order but
    that of `sort`. Actions (`collect`, ``to_*``, `count`, `show`, ``write_*``, `explain`) are collective: every worker of the
    job calls the same ones in the same order, and gets the same.

    Attributes
    ----------
    schema : dict of str to str
        Arrow's types by column.
    columns : list of str
        The columns' names, in order.
    """

    __slots__ = ()

    def __init__(self, native: NativeDataSet) -> None:
        self._native = native

    @staticmethod
    def _step(native: NativeDataSet) -> DataSet:
        return DataSet(native)

    def __repr__(self) -> str:
        """Columns, types and the first ten rows.

        In a job of one worker that runs the query, for two seconds at most. With several workers, and of streams, there are no rows: a
        display must not wait for the other workers.
        """
        return _shown.dataset_text(self._native)

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return _shown.dataset_html(self._native)

    def __dir__(self) -> list[str]:
        """Attributes for completion: a stream does not offer what only tables can do, and a table not what streams are for."""
        hidden = _OF_TABLES if self._native.is_stream() else _OF_STREAMS
        return [name for name in super().__dir__() if name not in hidden]

    def __reduce__(self) -> NoReturn:
        raise DataSetError(
            "a DataSet is a query of the process that made it, and cannot be sent to another: make it inside the function that runs there, "
            "or pass its rows, data.collect(), and make a DataSet of them there with from_arrow; return data.collect() likewise"
        )

    @property
    def schema(self) -> dict[str, str]:
        """Arrow's types by column."""
        return dict(self._native.fields)

    @property
    def columns(self) -> list[str]:
        """The columns' names, in order."""
        return self._native.names

    # Columns.

    def select(self, *exprs: IntoExpr | Iterable[IntoExpr], **named: Any) -> DataSet:
        """These columns and no others; with aggregates, one row over the whole table.

        Parameters
        ----------
        *exprs : str, Expr or iterable of them
            Strings are columns.
        **named
            Expressions by the names that they get.

        Examples
        --------
        >>> import tidemill as tm
        >>> tm.from_dict({"a": [1, 2]}).select("a", b=tm.col("a") * 10).to_pylist()
        [{'a': 1, 'b': 10}, {'a': 2, 'b': 20}]
        """
        return self._step(self._native.select(columns(exprs, named)))

    def with_columns(self, *exprs: IntoExpr | Iterable[IntoExpr], **named: Any) -> DataSet:
        """All columns and these; one with an existing name takes its place."""
        return self._step(self._native.with_columns(columns(exprs, named)))

    def drop(self, *names: str | Iterable[str]) -> DataSet:
        """All columns but these."""
        return self._step(self._native.drop(names_of(names, "drop")))

    def rename(self, names: Mapping[str, str]) -> DataSet:
        """The same columns, those that are keys of `names` by their new names."""
        return self._step(self._native.rename(list(names.items())))

    # Rows.

    def filter(self, *predicates: Expr | Callable[[Row], object], retries: int = 0) -> DataSet:
        """The rows for which all predicates are true (neither false nor null).

        Parameters
        ----------
        *predicates : Expr or callable
            A function gets each row as a dict; expressions are much faster.
        retries : int
            Of functions, as for `map_batches`.
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
        """Sorted rows. What comes after may mix them again, but for `limit` and a choice of columns: sort last.

        Parameters
        ----------
        by, *more : str or Expr
            What to sort by; later ones decide between equals.
        descending : bool or iterable of bool, default=False
            The direction of all, or of each.
        nulls_last : bool or iterable of bool, default=True
            Whether nulls come after everything else, in both directions; of all, or of each.
        """
        keys = sort_keys([*listed(by), *more], descending, nulls_last)
        if not keys:
            raise DataSetError("sort needs at least one column")
        return self._step(self._native.sort(keys))

    def limit(self, count: int, skip: int = 0, *, offset: int | None = None) -> DataSet:
        """At most `count` rows after the first `skip`: of a sorted table the first, else any. `offset` is another name of `skip`."""
        if offset is not None:
            if skip:
                raise ValueError("limit: skip and offset are the same; pass only one")
            skip = offset
        if count < 0 or skip < 0:
            raise ValueError("limit cannot be negative")
        return self._step(self._native.limit(skip, count))

    def head(self, count: int = 5) -> DataSet:
        """At most `count` rows."""
        return self.limit(count)

    def sample(self, fraction: float) -> DataSet:
        """About this fraction of the rows, each kept or not by chance; others every time, also where one query has it twice.

        ``data.sample(0.1).cache()`` keeps those that were drawn.

        Raises
        ------
        ValueError
            If `fraction` is not within 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
        from tidemill.dataset._functions import scalar

        return self.filter(scalar("random") < fraction)

    def distinct(self, *subset: str | Iterable[str], ttl: Duration | None = None) -> DataSet:
        """Each different row once; with `subset`, one row, any, for each different value of those columns.

        With `ttl`, of a stream whose rows tell time: the first, and each that is at least so much later than the last of its kind
        which was given. What is older than that is not remembered. Rows without a time (null) are left out, and counted.
        """
        names = names_of(subset, "distinct")
        return self._step(self._native.distinct(names, None if ttl is None else micros(ttl, "ttl")))

    def with_row_index(self, name: str = "index", offset: int = 0, *, order_by: Order = ()) -> DataSet:
        """All rows with a number in front, a column `name` from `offset` on.

        Parameters
        ----------
        name : str, default="index"
        offset : int, default=0
            The first number.
        order_by : str, Expr or list of them
            The order that rows are numbered in. By default that of `sort`, if it was the step before this one (or before a `limit`
            before this one); else rows have no order, and each may get another number each time.

        Returns
        -------
        DataSet
            Sorted by the number, if there was an order.

        Notes
        -----
        Numbers without gaps need all rows in one place: one worker numbers them.

        >>> import tidemill as tm
        >>> tm.from_dict({"x": [3, 1, 2]}).sort("x").with_row_index().to_dict()
        {'index': [0, 1, 2], 'x': [1, 2, 3]}
        """
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"with_row_index: offset must be an integer, not {offset!r}")
        return self._step(self._native.with_row_index(name, offset, sort_keys(order_by)))

    def fill_null(self, value: Any, *subset: str | Iterable[str]) -> DataSet:
        """The same rows with `value` in place of nulls.

        Parameters
        ----------
        value : object
            A value, or a mapping of values by column.
        *subset : str or iterable of str
            The columns that it is for. By default those whose type it fits: a number is for columns of numbers, a text for those of
            texts, and so on. Whole numbers keep the column's type.

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
        """How many rows there are of each value of these columns (of each different row without names), as ``count``; the most first.

        >>> import tidemill as tm
        >>> tm.from_dict({"x": ["a", "b", "a"]}).value_counts("x").to_dict()
        {'x': ['a', 'b'], 'count': [2, 1]}
        """
        wanted = names_of(names, "value_counts") or self.columns
        if "count" in wanted:
            raise DataSetError('value_counts: column "count" already exists; rename it first')
        counted = self.group_by(*wanted).count()
        # Equal counts in the order of their values.
        return counted.sort("count", *wanted, descending=[True, *(False for _ in wanted)])

    def drop_nulls(self, *subset: str | Iterable[str]) -> DataSet:
        """The rows without nulls (in those columns)."""
        from tidemill.dataset._expr import col

        return self.filter(*(col(name).is_not_null() for name in names_of(subset, "drop_nulls") or self.columns))

    def explode(self, *names: str | Iterable[str]) -> DataSet:
        """One row for each element of the lists in these columns, none for an empty one or null; other columns are repeated."""
        return self._step(self._native.explode(names_of(names, "explode")))

    # Functions of the program. They run on every worker, which must be able to call them at any time.

    def map_batches(self, function: Callable[[Any], Any], schema: Schema | None = None, *, retries: int = 0) -> DataSet:
        """Apply a function to batches of rows.

        Parameters
        ----------
        function : callable
            It gets a ``pyarrow.RecordBatch`` of some rows and returns one, a ``pyarrow.Table``, any table that `from_arrow`
            takes, or a list of them, or None. Needs pyarrow.
        schema : mapping of str to str, or pyarrow.Schema, optional
            What it returns; by default found out by calling it with the first hundred rows, which is an action.
        retries : int
            How often it is called again with the same rows when it raises an exception; each time is a warning. For functions
            that ask other services.

        Raises
        ------
        DataSetError
            By the action: with the traceback of the function and the worker it ran on.
        """
        return _map.map_batches(self, function, schema, retries)

    def map(self, function: Callable[[Row], Row], schema: Schema | None = None, *, retries: int = 0) -> DataSet:
        """Apply a function to each row; it takes a dict and returns a dict. `retries` as for `map_batches`.

        >>> import tidemill as tm
        >>> tm.from_dict({"x": [1, 2]}).map(lambda row: {"y": row["x"] ** 2}).sort("y").to_dict()
        {'y': [1, 4]}
        """
        return _map.map_rows(self, function, schema, retries, several=False)

    def flat_map(
        self, function: Callable[[Row], Iterable[Row]], schema: Schema | None = None, *, retries: int = 0
    ) -> DataSet:
        """The rows that a function makes of each row: any number of dicts of a dict. `retries` as for `map_batches`."""
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
        """The rows with what a function finds for their keys, somewhere outside: a join with a service or a database.

        Parameters
        ----------
        source : callable
            It is called with a list of different keys, values of the column `on` or tuples of several, and gives for each a dict
            with the columns of `schema`, or None: a list in the order of the keys, or a dict by key. Several threads call it.
            `tidemill.stream.redis_lookup` makes one.
        on : str or iterable of str
            The columns that are the key. Of a null nothing is found.
        schema : mapping of str to str, or Arrow schema
            The columns that are added. Values are cast to their types: texts may be numbers.
        how : {"left", "inner"}, default="left"
            Whether rows are kept for which nothing is found, with nulls.
        cache_rows : int, default=100000
            How many keys each worker remembers, with what was found or that nothing was: those used last. 0 remembers none.
        cache_for : str, number of seconds or timedelta, optional
            For how long; by default for as long as there is this DataSet.
        retries : int
            As for `map_batches`.

        Notes
        -----
        What is found may change between two calls: a row that is read again after a failure may find something else.

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
        self.select(*keys)  # says which is not there
        if isinstance(cache_rows, bool) or not isinstance(cache_rows, int) or cache_rows < 0:
            raise DataSetError(f"cache_rows must be a non-negative integer, not {cache_rows!r}")
        cache_s = None if cache_for is None else seconds(cache_for, "cache_for")
        return _map.lookup(self, source, keys, schema, how, cache_rows, cache_s, retries)

    def reduce(self, function: Callable[[Row, Row], Row], *, retries: int = 0) -> Row | None:
        """One row of all: ``function(row, row)`` makes one of two, again and again, in any order. An action. `retries` as for
        `map_batches`.

        Returns
        -------
        dict or None
            None of no rows.
        """
        return _map.reduce_rows(self, function, retries)

    def key_by(self, *keys: str | Iterable[str]) -> KeyedRows:
        """The rows by the values of these columns, for functions of the program: its ``reduce`` and ``apply``."""
        return KeyedRows(self, tuple(names_of(keys, "key_by")))

    # Several rows, several tables.

    def group_by(self, *keys: IntoExpr) -> GroupBy:
        """Groups of rows with the same keys; its ``agg`` says what is wanted of each."""
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
        """Rows of this table with those of `other` that have the same keys; a null equals nothing.

        Parameters
        ----------
        other : DataSet
        on : str or iterable of str
            Keys that have the same names in both.
        how : {"inner", "left", "right", "full", "semi", "anti", "cross"}, default="inner"
            Which rows are kept: ``left`` and ``right`` keep all of one table, ``full`` (or ``outer``) of both; ``semi`` keeps
            the rows of this table that have a partner, ``anti`` those that have none; ``cross`` makes every pair.
        left_on, right_on : str or iterable of str
            Keys with different names, in place of `on`.
        suffix : str, default="_right"
            What columns of `other` get whose names this table has too.
        where : Expr, optional
            What else must hold of two rows, by the columns' names in the result; those of `other` with `suffix` where this
            table has them too, keys as well. Of two streams it bounds the time from one to the other.
        ttl : str, number of seconds or timedelta, optional
            Of two streams whose rows tell time: for how long rows are remembered. Partners are less than that apart, by the times of rows,
            so no row is kept forever; one without a time (null) finds no partner.

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
        """The rows of all; they have the same columns, in any order."""
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
        """A wide table: a row for each value of `index`, a column for each value of `on`.

        Parameters
        ----------
        on : str
            The column whose values become columns, called as the values are written.
        index : str or iterable of str
            The columns that say which row a value is in.
        values : str
            The column whose values fill the cells; where there is none, a cell is null.
        aggregate : {"first", "last", "sum", "mean", "min", "max", "median", "count"}, default="first"
            What a cell holds if there are several.
        on_values : iterable, optional
            The values of `on` that become columns, in this order. By default all of them, sorted; to find them out is an action.

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
        """A long table: a row for each cell of the columns `on`, with the column's name and the value.

        Parameters
        ----------
        on : str or iterable of str, optional
            The columns that become rows; by default all but `index`. Their types have one in common.
        index : str or iterable of str, optional
            The columns that are kept; by default none.
        variable_name, value_name : str
            What the two new columns are called.

        Examples
        --------
        >>> import tidemill as tm
        >>> wide = tm.from_dict({"shop": ["n", "s"], "tea": [3, 5], "salt": [1, None]})
        >>> wide.unpivot(index="shop").sort("shop", "variable").to_dict()["value"]
        [1, 3, None, 5]
        """
        return _shape.unpivoted(self, on, index, variable_name, value_name)

    def repartition(self, partitions: int, *by: IntoExpr) -> DataSet:
        """Put the rows into another number of partitions.

        Partition ``i`` runs on worker ``i % workers``. Steps that work row by row, such as `filter`, `select` and `map`, leave rows where
        they are; joins, groups, sorts and windows may move them.

        Parameters
        ----------
        partitions : int
            How many, at least 1.
        *by : str or Expr
            Rows with equal values of these are in one partition. Without any, each partition has as many rows, give or take a few.

        Returns
        -------
        DataSet

        Raises
        ------
        DataSetError
            If `partitions` is less than 1, there is no such column, or the rows are those of a stream.
        """
        if partitions < 1:
            raise DataSetError(f"repartition({partitions}): rows need at least one partition")
        if self._native.is_stream():
            # Lowering a stream drops partitionings, as those of the planner mean nothing there.
            raise DataSetError(
                "repartition is not supported on a stream: leave it out; to bring rows with equal keys to one worker, "
                "use a step with keys, such as group_by(...) or key_by(...).process(...)"
            )
        return self._step(self._native.repartition(partitions, columns(by, {})))

    def cache(self) -> DataSet:
        """Run the steps so far, and keep the rows for all that comes after, each on the worker that made it: in memory as long as its
        budget allows, then on its disk, in ``TIDEMILL_SPILL_DIR``. An action.
        """
        from tidemill._job import init

        job = init()
        return self._step(engine().part(self.collect_local()._native, job.rank, job.size))

    def materialize(self, path: str | Path, *, storage_options: StorageOptions | None = None) -> DataSet:
        """Read the rows of the steps so far from the folder `path`, if an earlier run left them there; otherwise compute them now
        and write them there as Parquet. An action.

        A job that is started again resumes from the folders that it has materialized. A folder appears when it is complete. If you
        change the steps or their input, remove it.

        Parameters
        ----------
        path : str or Path
            As for `write_csv`. In an object store, what a job has left that was killed while it appeared is made anew: at once if it
            was a process of this machine, else when nothing has changed there for 15 seconds.
        storage_options : mapping of str to str, optional
            As for `read_csv`.

        Raises
        ------
        DataSetError
            On every worker: also if it cannot be told whether the folder is there.
        """
        from tidemill._tables.places import as_options, at_home
        from tidemill.dataset._read import read_parquet

        _workers.check_alike("materialize", path=repr(at_home(path)))
        # What one worker sees goes for all: the folder may be appearing just now.
        if not _workers.from_first(lambda: engine().settle(at_home(path), as_options(storage_options))):
            self.write_parquet(path, storage_options=storage_options)
        return read_parquet(path, storage_options=storage_options).select(*self.columns)

    # Actions.

    def collect(self, *, root: int | None = None) -> Table:
        """Run the query.

        Parameters
        ----------
        root : int, optional
            The only worker that gets the rows; the others get an empty table. By default all do.

        Returns
        -------
        Table

        Raises
        ------
        DataSetError
            What went wrong, on every worker.
        """
        return _workers.collect(self._native, root)

    def collect_local(self) -> Table:
        """Run the query and keep its rows where they were made: every row is on one worker.

        The rows of a small table are spread evenly over the workers, unless they are sorted or `repartition` has placed them.
        For what comes next is up to each worker, such as an algorithm with a communicator; `from_local` leads back.

        Returns
        -------
        Table
            This worker's rows; of a job of one worker all.
        """
        return _workers.collect_local(self._native)

    def persist_local(self) -> dict[str, Any]:
        """Run the query and give each worker its rows as arrays that it may change in place, for iterative algorithms.

        Returns
        -------
        dict of str to numpy.ndarray
            An array for each column, as `Table.to_numpy` makes them. All own their memory.
        """
        return self.collect_local().to_numpy()

    def bsp(self, function: Callable[[Any, Table], Any]) -> DataSet:
        """Run a function on every worker, on the rows that this worker has made, with a communicator: bulk-synchronous code
        within a query. An action.

        Parameters
        ----------
        function : callable
            ``function(comm, table)``, called once on each worker, on a thread of its own; ``comm`` is a communicator of all
            workers for this call, with their ranks, and what ``function`` returns becomes this worker's part of the result:
            anything that `from_local` takes, a `Table` for example, with the same columns on every worker.

        Returns
        -------
        DataSet

        Raises
        ------
        DataSetError
            On every worker, if ``function`` raises on one: calls in ``comm`` that others wait in are ended by a
            `tidemill.Cancelled`. Also if it returns on one while others still wait for it in ``comm``, or if what it
            returns differs in its columns.

        Examples
        --------
        >>> import tidemill as tm
        >>> def centred(comm, table):
        ...     x = table.to_numpy()["x"]
        ...     total, rows = comm.allreduce(x.sum()), comm.allreduce(len(x))
        ...     return tm.Table.from_numpy({"x": x - total / rows})
        >>> tm.from_dict({"x": [1.0, 2.0, 6.0]}).bsp(centred).sort("x").to_dict()
        {'x': [-2.0, -1.0, 3.0]}
        """
        from tidemill.dataset._bsp import run

        return run(function, self.collect_local())

    def count(self) -> int:
        """Return the number of rows."""
        rows: int = _workers.collect(self._native.counted()).to_dict()["rows"][0]
        return rows

    def describe(self, *, root: int | None = None) -> Table:
        """Statistics of each column: how many values and nulls, mean, standard deviation, quartiles, least and greatest. An action.

        Parameters
        ----------
        root : int, optional
            As for `collect`.

        Returns
        -------
        Table
            A row for each of ``count``, ``null_count``, ``mean``, ``std``, ``min``, ``25%``, ``50%``, ``75%``, ``max``, which the column
            ``statistic`` names, and a column for each of this table. Those of numbers and booleans are ``float64``; those of texts,
            dates and times are texts, with ``min`` and ``max``, and ``mean`` of dates and times. What a column has not is null.

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
        """Write the rows into a table of a database, in one transaction; an action. Worker 0 writes them.

        Parameters
        ----------
        table : str
            The table's name.
        connection : str or callable
            As for `read_database`.
        if_exists : {"fail", "append", "replace"}, default="fail"
            What becomes of a table that is there already.

        Returns
        -------
        int
            How many rows were written, on every worker.

        Raises
        ------
        DataSetError
            On every worker: what the database says. Then nothing is written.
        """
        from tidemill.dataset._database import write

        return write(self, table, connection, if_exists)

    def show(self, count: int = 20) -> None:
        """Print at most `count` rows, on worker 0; a null is ``null``, a text without characters nothing.

        A stream runs until it has given so many, or ends; nothing is committed, so sources that can be read again are where they were.
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
        """What will be done; with ``"analyze"`` it is done, and rows and times of each step are told.

        Of a stream: its tasks, and what becomes of its rows when the job fails and goes on; with `sink`, what this sink of
        `write_stream` has of them. Collective.
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
        """A list of Python values for each column; `root` as for `collect`."""
        return self.collect(root=root).to_dict()

    def to_pylist(self, *, root: int | None = None) -> list[dict[str, Any]]:
        """A dict for each row; `root` as for `collect`."""
        return self.collect(root=root).to_pylist()

    def to_arrow(self, *, root: int | None = None) -> pyarrow.Table:
        """A ``pyarrow.Table``; needs pyarrow. `root` as for `collect`."""
        return self.collect(root=root).to_arrow()

    def to_pandas(self, *, root: int | None = None, **options: Any) -> pandas.DataFrame:
        """A pandas frame; needs pyarrow and pandas. `root` as for `collect`, `options` as for `Table.to_pandas`."""
        return self.collect(root=root).to_pandas(**options)

    def to_polars(self, *, root: int | None = None) -> polars.DataFrame:
        """A Polars frame; needs Polars. `root` as for `collect`."""
        return self.collect(root=root).to_polars()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.collect().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.collect())

    def step_name(self, name: str) -> DataSet:
        """Name the last step of a stream that keeps state (windows, a join, `distinct`, `process`), or else its source.

        Checkpoints, plans, errors and `late_output=` use that name. A step without a name is found again by its kind and its number in the
        order of the program; one that has a name is found by that, wherever it comes, and has no number: a step that gets a name later moves
        the numbers of those behind it.

        Parameters
        ----------
        name : str
            One of the job's own.

        Returns
        -------
        DataSet
            The same rows.

        Raises
        ------
        DataSetError
            If this is no stream. When it is written: if the name is another step's, or rows come from several steps or from one that several
            queries have in common.

        Examples
        --------
        >>> import tidemill as tm
        >>> numbers = tm.stream.from_table(tm.from_dict({"n": [1, 2, 1]}).collect())
        >>> kinds = numbers.distinct().step_name("kinds")
        >>> "kinds" in kinds.explain()
        True
        """
        if not isinstance(name, str) or not name.strip():
            raise DataSetError(f"step_name({name!r}): a name is a text that is not empty")
        if ", " in name:
            raise DataSetError(
                f"step_name({name!r}): a name has no comma with a space behind it, as tasks of a step are called by its name and that"
            )
        return self._step(self._native.named(name))

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
    ) -> dict[str, Any]:
        """Write a stream until it ends; collective. Several queries at once are written by `tidemill.stream.write`.

        Parameters
        ----------
        sink : callable, Connector or Sink
            A function that is called with each table of rows; a sink of the engine's own, such as `tidemill.stream.to_files`; or
            an object with ``write``, ``prepare`` and ``commit``, which
            makes rows appear once, whatever fails in between: see `tidemill.stream.Sink`.
        late_output : callable, Connector or Sink, or mapping of str to them, optional
            Where rows go that come too late for a window, as they come to its `group_by`; without it, they are counted and left
            out. Rows are then sent to the owners of their keys as they are, without pre-aggregation where they are read. Or a mapping
            of sinks by the names of steps, as warnings and `explain` show them: ``{"window 2": sink}``, and ``{"join 1 left": sink}``
            for rows of the left side of a join that bounds the time of partners.
        name : str, default="stream"
            The job's name: checkpoints belong to it.
        checkpoint : tidemill.stream.Checkpoint, str or Path, optional
            Where the job's checkpoints are and how they are made; a folder, or the URL of one in an object store, stands for
            ``Checkpoint(path)``. The job resumes from the newest checkpoint there, if there is one, also with another number of workers.
            Without it, a failure loses what was on its way.
        stop_when : callable, optional
            Called on worker 0 about ten times a second: as soon as it returns true, the job makes a last checkpoint, commits, and
            returns. It resumes from there when it is started again. Needs `checkpoint`.
        guarantee : {"exactly_once", "at_least_once", "at_most_once"}, optional
            How often each row reaches the sink when the job fails and resumes. The first two are the least that you accept: a
            job whose sources, sink and options cannot give it does not start, and says why; by default it gives what it can. A job
            that must give exactly once does not fall back to an older checkpoint when the newest is damaged, either. At most once
            works differently: rows are held until a checkpoint says that they were read, no step's state is saved,
            and sinks commit at once; what a failure interrupts is lost, and nothing comes twice.
        on_progress : callable, optional
            Called on worker 0 about ten times a second with the running job, a `tidemill.stream.Running`, which can move
            keys to other workers. Needs `checkpoint`.
        allow_loops : bool, default=False
            Whether rows may come back to the topic, queue, stream or folder that the job has written them into, for example to retry
            them. By default such a job does not start, because rows could go round forever.
        drop_state : iterable of str, optional
            Names of steps and sources, as in errors and `tidemill checkpoints --state`, that the program no longer has and whose
            state in the checkpoint you no longer need. Without it, such a job does not start. Needs `checkpoint`.

        Returns
        -------
        dict
            What this worker saw on each edge, and how long it took.

        Raises
        ------
        DataSetError
            On every worker: a step that a stream cannot have, what a source, a function or the sink failed with, checkpoints
            that are another job's or cannot be read.
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
        )
