"""Tidemill: streaming, batch and bulk-synchronous programs in one job on one set of workers.

>>> import tidemill as tm
>>> job = tm.init()
>>> job.rank, job.size
(0, 1)
>>> job.comm.allreduce(1)
1

Everything is loaded on first use, so the import itself is fast.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill import dataset, functions, graph, ml, mpi, networks, series, stream, viz
    from tidemill._errors import (
        BufferMismatchError,
        CommError,
        MismatchError,
        OperationError,
        PeerFailed,
        TidemillError,
        TruncationError,
        UnsupportedError,
        WorkerLost,
    )
    from tidemill._group import group
    from tidemill._iterate import Iterated, IterationAccount, iterate
    from tidemill._job import Job, init
    from tidemill._run import Workers, run
    from tidemill.dataset import (
        BadRowsWarning,
        DataSet,
        DataSetError,
        Expr,
        GroupBy,
        KeyedRows,
        RowReport,
        Table,
        coalesce,
        col,
        concat,
        concat_str,
        count,
        first,
        from_arrow,
        from_dict,
        from_local,
        from_pylist,
        last,
        last_report,
        lit,
        max,
        mean,
        median,
        min,
        n_unique,
        read_csv,
        read_database,
        read_ipc,
        read_json,
        read_npy,
        read_parquet,
        read_records,
        read_text,
        sql,
        std,
        sum,
        var,
        when,
    )
    from tidemill.graph import Cancelled, Graph, GraphError, exchange
    from tidemill.mpi import Intracomm as Communicator

__all__ = [
    "BadRowsWarning",
    "BufferMismatchError",
    "Cancelled",
    "CommError",
    "Communicator",
    "DataSet",
    "DataSetError",
    "Expr",
    "Graph",
    "GraphError",
    "GroupBy",
    "Iterated",
    "IterationAccount",
    "Job",
    "KeyedRows",
    "MismatchError",
    "OperationError",
    "PeerFailed",
    "RowReport",
    "Table",
    "TidemillError",
    "TruncationError",
    "UnsupportedError",
    "WorkerLost",
    "Workers",
    "__version__",
    "coalesce",
    "col",
    "concat",
    "concat_str",
    "count",
    "dataset",
    "exchange",
    "first",
    "from_arrow",
    "from_dict",
    "from_local",
    "from_pylist",
    "functions",
    "graph",
    "group",
    "init",
    "iterate",
    "last",
    "last_report",
    "lit",
    "max",
    "mean",
    "median",
    "min",
    "ml",
    "mpi",
    "n_unique",
    "networks",
    "read_csv",
    "read_database",
    "read_ipc",
    "read_json",
    "read_npy",
    "read_parquet",
    "read_records",
    "read_text",
    "run",
    "series",
    "sql",
    "std",
    "stream",
    "sum",
    "var",
    "viz",
    "when",
]

__version__: str

#: The origin of each name: module, and name there (``None``: the module itself).
_SOURCES: dict[str, tuple[str, str | None]] = {
    "BufferMismatchError": ("tidemill._errors", "BufferMismatchError"),
    "CommError": ("tidemill._errors", "CommError"),
    "Cancelled": ("tidemill.graph", "Cancelled"),
    "Communicator": ("tidemill.mpi", "Intracomm"),
    "Graph": ("tidemill.graph", "Graph"),
    "GraphError": ("tidemill.graph", "GraphError"),
    "Iterated": ("tidemill._iterate", "Iterated"),
    "IterationAccount": ("tidemill._iterate", "IterationAccount"),
    "Job": ("tidemill._job", "Job"),
    "MismatchError": ("tidemill._errors", "MismatchError"),
    "OperationError": ("tidemill._errors", "OperationError"),
    "PeerFailed": ("tidemill._errors", "PeerFailed"),
    "TidemillError": ("tidemill._errors", "TidemillError"),
    "TruncationError": ("tidemill._errors", "TruncationError"),
    "UnsupportedError": ("tidemill._errors", "UnsupportedError"),
    "WorkerLost": ("tidemill._errors", "WorkerLost"),
    "Workers": ("tidemill._run", "Workers"),
    "__version__": ("tidemill._tidemill", "__version__"),
    "dataset": ("tidemill.dataset", None),
    "exchange": ("tidemill.graph.exchange", None),
    "functions": ("tidemill.functions", None),
    "graph": ("tidemill.graph", None),
    "group": ("tidemill._group", "group"),
    "init": ("tidemill._job", "init"),
    "iterate": ("tidemill._iterate", "iterate"),
    "ml": ("tidemill.ml", None),
    "mpi": ("tidemill.mpi", None),
    "networks": ("tidemill.networks", None),
    "run": ("tidemill._run", "run"),
    "series": ("tidemill.series", None),
    "stream": ("tidemill.stream", None),
    "viz": ("tidemill.viz", None),
    **{
        name: ("tidemill.dataset", name)
        for name in (
            "BadRowsWarning",
            "DataSet",
            "DataSetError",
            "Expr",
            "GroupBy",
            "KeyedRows",
            "RowReport",
            "Table",
            "coalesce",
            "col",
            "concat",
            "concat_str",
            "count",
            "first",
            "from_arrow",
            "from_dict",
            "from_local",
            "from_pylist",
            "last",
            "last_report",
            "lit",
            "max",
            "mean",
            "median",
            "min",
            "n_unique",
            "read_csv",
            "read_database",
            "read_ipc",
            "read_json",
            "read_npy",
            "read_parquet",
            "read_records",
            "read_text",
            "sql",
            "std",
            "sum",
            "var",
            "when",
        )
    },
}


if "TIDEMILL_CRASH_DIR" in os.environ:
    # Before the job is joined, so that a failure to join is shown only once, not by every worker.
    from tidemill import _crash

    _crash.install()


#: Two threads that load modules which import each other can find one half loaded, so one loads at a time.
_loading = threading.RLock()
# A child made by fork does not have the thread that may hold it.
os.register_at_fork(after_in_child=_loading._at_fork_reinit)  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inner = _SOURCES[name]
    with _loading:
        found = importlib.import_module(module)
        value = found if inner is None else getattr(found, inner)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # For completion at a prompt: without the modules that this one imports.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
