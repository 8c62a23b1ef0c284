"""Graphs made on the way: a function of a running graph runs others on its worker."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tidemill._callback import lifted
from tidemill._job import entered, group_of, whole
from tidemill._tidemill import NativeCopy
from tidemill.graph._errors import GraphError

if TYPE_CHECKING:
    from tidemill.graph._graph import Graph
    from tidemill.graph._result import Result

__all__ = ["SpawnedGraph", "depth", "spawn"]

#: Graphs within graphs, and graphs that run at once on a worker.
_DEPTH_MAX = 16
_RUNNING_MAX = 256

_slots = threading.BoundedSemaphore(_RUNNING_MAX)


class _Depth(threading.local):
    value = 0


#: How many graphs deep the function of the calling thread was spawned.
depth = _Depth()


class SpawnedGraph(Future["Result"]):
    """The outcome of a spawned graph."""

    #: Whether somebody has asked for it.
    taken = False

    def result(self, timeout: float | None = None) -> Result:
        self.taken = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.taken = True
        return super().exception(timeout)


def spawn(graph: Graph, copy: NativeCopy) -> SpawnedGraph:
    """Run a graph on this worker alone, on a thread that ends with the run of `copy`. See `Context.spawn`."""
    level = depth.value + 1
    if level > _DEPTH_MAX:
        raise GraphError(
            f"graph {graph.name!r} would run {level} graphs deep; at most {_DEPTH_MAX} run within each other"
        )
    if not _slots.acquire(blocking=False):
        raise GraphError(
            f"{_RUNNING_MAX} spawned graphs run on this worker; wait for some of them before you spawn {graph.name!r}"
        )
    future = SpawnedGraph()
    future.set_running_or_notify_cancel()

    def run() -> None:
        copy.join_thread()
        depth.value = level
        try:
            with entered(group_of(whole()._self)), lifted():
                result = graph.run()
        except BaseException as error:
            _slots.release()
            future.set_exception(error)
        else:
            _slots.release()
            future.set_result(result)

    threading.Thread(target=run, name=f"graph {graph.name}", daemon=True).start()
    return future
