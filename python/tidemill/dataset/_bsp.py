"""Functions that communicate with each other, one or several on each worker: once on a table, or often on a stream.

On a table each is a copy of a graph task. The graph gives them a communicator of their own, ends the calls in which
others wait when one fails, and raises the same error on all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tidemill._callback import is_task, run_in_callback
from tidemill._job import init
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import Schema, function_name, parse_schema, take_table
from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable

if TYPE_CHECKING:
    from tidemill._streaming.bsp import BspLogic, Merge, Place, Split
    from tidemill.dataset._dataset import DataSet
    from tidemill.dataset._expr import Expr
    from tidemill.graph import Context, Output

__all__ = ["run", "step"]


def run(function: Callable[[Any, Table], Any], table: Table, parallelism: int | None) -> DataSet:
    """See `DataSet.bsp`; `table` holds this worker's rows."""
    from tidemill.dataset._read import from_local
    from tidemill.graph import Graph, GraphError, exchange

    if is_task():
        raise DataSetError("bsp: a function of bsp, or of a graph's task, cannot call it; call it after that one")
    job = init()
    copies = _copies(parallelism, job.size)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    mine = [copy for copy, worker in enumerate(copies) if worker == job.rank]
    ends = [len(table) * at // len(mine) for at in range(len(mine) + 1)]
    parts: dict[int, Table] = {}

    def call(out: Output, context: Context) -> None:
        at = context.copy - mine[0]
        rows = table.slice(ends[at], ends[at + 1] - ends[at])
        part = parts[at] = Table(take_table(function(context.comm, rows)))
        out.send((context.copy, part._native.fields))

    graph = Graph("bsp")
    calls = graph.source("bsp", call, parallelism=len(copies), comm=True)
    columns = graph.sink("columns", parallelism=1)
    graph.connect(calls, columns, exchange.gather())
    try:
        made = dict(graph.run(placement={"bsp": copies, "columns": [0]})["columns"][0])
    except GraphError as error:
        where = "" if error.worker is None else f"{name} failed on worker {error.worker}: "
        raise DataSetError(f"bsp: {where}{str(error).partition(': ')[2] if where else error}") from None
    for copy, worker in enumerate(copies):
        if made[copy] != made[0]:
            raise DataSetError(
                f"bsp: {name} returned the columns {_words(made[0])} on worker 0 and {_words(made[copy])} on worker {worker}; "
                "they must be the same on every worker"
            )
    first, *others = (parts[at]._native for at in range(len(mine)))
    return from_local(Table(NativeTable.concat(first, others)))


def step(
    data: DataSet,
    function: Callable[..., Any],
    schema: Schema | None,
    window: Expr | None,
    by: str | Iterable[str],
    state: tuple[Merge | None, Split | None],
    parallelism: int | None,
    on_busy: str,
    time: str | None,
    make_logic: Callable[[Callable[..., Any], str, Place], BspLogic] | None = None,
) -> DataSet:
    """See `DataSet.bsp` on a stream; `state` merges and splits states. `make_logic` makes what calls the function, given that,
    its name and a copy's place.
    """
    from tidemill._streaming.bsp import BspLogic
    from tidemill.dataset._expr import Expr

    name = function_name(function)
    if schema is None or not (given := parse_schema(schema)):
        raise DataSetError(f"{name}: bsp on a stream needs schema=, the names and types of the columns that it returns")
    if window is not None and not isinstance(window, Expr):
        raise DataSetError(
            f'{name}: window= takes a window of time, such as tm.stream.window(tm.stream.tumbling("10s"), on="time"), or of '
            "a number of rows: tm.stream.window(tm.stream.count_window(1000))"
        )
    if parallelism is not None and (
        isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism < 2**20
    ):
        raise DataSetError(f"{name}: parallelism={parallelism!r} must be a positive integer")
    if on_busy not in ("wait", "drop", "latest"):
        raise DataSetError(f'{name}: on_busy={on_busy!r} must be "wait", "drop" or "latest"')
    if on_busy != "wait" and window is None:
        raise DataSetError(f"{name}: on_busy={on_busy!r} needs a window=: rows of a checkpoint are never left out")
    if time is not None and not isinstance(time, str):
        raise DataSetError(f"{name}: time={time!r} must be the name of a column of schema=")
    columns = [by] if isinstance(by, str) else list(by)
    called = run_in_callback("a function of bsp", function)

    def logic(*place: Any) -> BspLogic:
        if make_logic is not None:
            return make_logic(called, name, place)
        return BspLogic(called, name, schema, *state, place)

    native = None if window is None else window._native
    return data._step(data._native.bsp(name, logic, given, columns, native, parallelism, on_busy, time))


def _copies(parallelism: int | None, workers: int) -> list[int]:
    """Return the worker of each call."""
    if parallelism is None:
        parallelism = workers
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < workers:
        raise DataSetError(
            f"bsp: parallelism={parallelism!r} must be an integer of at least {workers}, the number of workers: "
            "each calls the function on its own rows"
        )
    return [copy * workers // parallelism for copy in range(parallelism)]


def _words(schema: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in schema) or "(none)"
