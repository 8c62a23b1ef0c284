"""Functions that communicate with each other, one on each worker.

Each is a copy of a graph task. The graph gives them a communicator of their own, ends the calls in which others wait
when one fails, and raises the same error on all workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill._callback import is_task
from tidemill._job import init
from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table

if TYPE_CHECKING:
    from tidemill.dataset._dataset import DataSet
    from tidemill.graph import Context, Output

__all__ = ["run"]


def run(function: Callable[[Any, Table], Any], table: Table) -> DataSet:
    """See `DataSet.bsp`; `table` holds this worker's rows."""
    from tidemill._tables.rows import take_table
    from tidemill.dataset._read import from_local
    from tidemill.graph import Graph, GraphError, exchange

    if is_task():
        raise DataSetError("bsp: a function of bsp, or of a graph's task, cannot call it; call it after that one")
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    part: list[Table] = []

    def call(out: Output, context: Context) -> None:
        part.append(Table(take_table(function(context.comm, table))))
        out.send((context.worker, part[0]._native.fields))

    workers = list(range(init().size))
    graph = Graph("bsp")
    calls = graph.source("bsp", call, parallelism=len(workers), comm=True)
    columns = graph.sink("columns", parallelism=1)
    graph.connect(calls, columns, exchange.gather())
    try:
        made = dict(graph.run(placement={"bsp": workers, "columns": [0]})["columns"][0])
    except GraphError as error:
        where = "" if error.worker is None else f"{name} failed on worker {error.worker}: "
        raise DataSetError(f"bsp: {where}{str(error).partition(': ')[2] if where else error}") from None
    for worker in workers:
        if made[worker] != made[0]:
            raise DataSetError(
                f"bsp: {name} returned the columns {_words(made[0])} on worker 0 and {_words(made[worker])} on worker {worker}; "
                "they must be the same on every worker"
            )
    return from_local(part[0])


def _words(schema: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in schema) or "(none)"
