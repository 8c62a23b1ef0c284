"""Task graphs: tasks with Python functions, and exchanges between them; the level below DataSets.

`tidemill.Graph` builds and runs them; `tidemill.exchange` has the exchanges.

>>> import tidemill as tm
>>> graph = tm.Graph()
>>> words = graph.source("words", lambda out, context: out.send({"word": ["tide", "mill", "tide"], "n": [1, 1, 1]}),
...     schema={"word": "str", "n": "int64"}, parallelism=1)
>>> counts = graph.sink("counts", parallelism=1)
>>> graph.connect(words, counts, tm.exchange.keyed_reduce("word", {"n": "sum"}))
>>> sorted(graph.run()["counts"][0].to_pylist(), key=lambda row: row["word"])
[{'word': 'mill', 'n': 1}, {'word': 'tide', 'n': 2}]
"""

from __future__ import annotations

from tidemill.graph import exchange
from tidemill.graph._applications import Applications
from tidemill.graph._errors import Cancelled, GraphError
from tidemill.graph._graph import Graph, Port, Task
from tidemill.graph._makespan import Makespan, Move
from tidemill.graph._placement import TaskInfo, WorkerInfo
from tidemill.graph._result import EdgeReport, Result
from tidemill.graph._task import Context, Input, Output
from tidemill.graph.exchange import Exchange

__all__ = [
    "Applications",
    "Cancelled",
    "Context",
    "EdgeReport",
    "Exchange",
    "Graph",
    "GraphError",
    "Input",
    "Makespan",
    "Move",
    "Output",
    "Port",
    "Result",
    "Task",
    "TaskInfo",
    "WorkerInfo",
    "exchange",
]
