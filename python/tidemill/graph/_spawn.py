"""Graphs made on the way: a function of a running graph runs others, on its worker or on the workers of its copies. `_functions`
runs functions on other workers.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tidemill._callback import lifted
from tidemill._group import check_group
from tidemill._job import entered, group_of, whole
from tidemill._tidemill import NativeTaskCopy
from tidemill.graph._errors import GraphError

if TYPE_CHECKING:
    from tidemill.graph._graph import Graph
    from tidemill.mpi import Intracomm

__all__ = ["Spawned", "depth", "leave_slot", "level_of", "run_alone", "spawn", "take_slot"]

#: Graphs and functions within others, and those that run at once on a worker.
_DEPTH_MAX = 16
_RUNNING_MAX = 256

_slots = threading.BoundedSemaphore(_RUNNING_MAX)


class _Twins:
    """Communicators of the same ranks as another: graphs that run at once would take each other's messages on one."""

    def __init__(self) -> None:
        self.comms: list[Intracomm] = []
        #: Those that nothing runs on at this rank, by number.
        self.free: set[int] = set()


#: Of each communicator, by its state.
_twins: WeakKeyDictionary[Any, _Twins] = WeakKeyDictionary()


class _Depth(threading.local):
    value = 0


#: How many graphs deep the function of the calling thread was spawned.
depth = _Depth()


class Spawned(Future[Any]):
    """The outcome of a spawned graph or function."""

    #: Whether somebody has been told it.
    taken = False

    def result(self, timeout: float | None = None) -> Any:
        # If the time is over before it, nobody has been told, and who has spawned it must still wait.
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.taken = True
        return error

    @property
    def owed(self) -> bool:
        """Whether who has spawned it has to wait for it: it goes on, or nobody has been told its error."""
        return not (self.taken or (self.done() and super().exception() is None))


def spawn(graph: Graph, copy: NativeTaskCopy, comm: Intracomm | None) -> Spawned:
    """Run a graph on a thread that ends with the run of `copy`: on this worker alone, or on those of `comm`, all of which
    call this. See `Context.spawn`.
    """
    if comm is not None:
        check_group(comm, "spawn")
    level = depth.value + 1
    refused = _refused_level(f"graph {graph.name!r}", level) or take_slot(f"graph {graph.name!r}")
    twins, number = None, 0
    try:
        if comm is not None:
            twins = _twins.setdefault(comm._state, _Twins())
            number = _agreed(graph, refused, comm, twins)
        elif refused is not None:
            raise GraphError(refused)
    except BaseException:
        if refused is None:
            _slots.release()
        raise
    group = group_of(whole()._self if twins is None else twins.comms[number])
    future = Spawned()
    future.set_running_or_notify_cancel()

    def run() -> None:
        copy.join_thread()
        depth.value = level
        try:
            with entered(group), lifted():
                result = graph.run()
        except BaseException as error:
            _slots.release()
            future.set_exception(error)
        else:
            _slots.release()
            if twins is not None:
                twins.free.add(number)
            future.set_result(result)

    threading.Thread(target=run, name=f"graph {graph.name}", daemon=True).start()
    return future


def level_of(what: str) -> int:
    """Return how deep something that this thread spawns runs."""
    level = depth.value + 1
    if refused := _refused_level(what, level):
        raise GraphError(refused)
    return level


def take_slot(what: str) -> str | None:
    """Count something that runs on this worker, or return why it cannot."""
    if not _slots.acquire(blocking=False):
        return f"{_RUNNING_MAX} spawned graphs and functions run on this worker; wait for some of them before you spawn {what}"
    return None


def leave_slot() -> None:
    """Count it no longer."""
    _slots.release()


def run_alone(value: Any) -> Any:
    """Return what a function returns; if that is a graph, the `Result` of its run on this worker."""
    from tidemill.graph._graph import Graph

    return value.run() if isinstance(value, Graph) else value


def _refused_level(what: str, level: int) -> str | None:
    if level <= _DEPTH_MAX:
        return None
    return f"{what} would run {level} graphs deep; at most {_DEPTH_MAX} run within each other"


def _agreed(graph: Graph, refused: str | None, comm: Intracomm, twins: _Twins) -> int:
    """Return the number of the twin of `comm` that a graph runs on, if all ranks are about to run the same one; otherwise
    raise on all of them.
    """
    all_said: list[tuple[str, str | None, set[int]]] = comm.allgather((graph.name, refused, twins.free.copy()))
    for rank, (name, why, _) in enumerate(all_said):
        if why is not None:
            raise GraphError(why if rank == comm.rank else f"rank {rank} of {comm.Get_name()}: {why}")
        if name != all_said[0][0]:
            raise GraphError(
                f"spawn: rank 0 of {comm.Get_name()} spawns graph {all_said[0][0]!r}, and rank {rank} {name!r}; all of its "
                "ranks spawn the same graphs, in the same order"
            )
    # Ranks come to the end of a run at different times; all take one that all are done with.
    if free := set.intersection(*(free for *_, free in all_said)):
        number = min(free)
        twins.free.discard(number)
        return number
    twins.comms.append(comm.Dup())
    return len(twins.comms) - 1
