"""Jobs that write streams: one query or several, each to a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill._streaming import write as _write
from tidemill._streaming.controller import Controller, ControllerMode
from tidemill._streaming.running import Running
from tidemill._streaming.sinks import Guarantee
from tidemill._tables.checkpoint import Checkpoint
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeDataSet
from tidemill.dataset._dataset import DataSet

if TYPE_CHECKING:
    from tidemill._streaming.sinks import AnySink, LateOutput

__all__ = ["explain", "write"]


def write(
    queries: Iterable[tuple[DataSet, AnySink]],
    *,
    late_output: LateOutput | None = None,
    name: str = "stream",
    checkpoint: Checkpoint | str | Path | None = None,
    stop_when: Callable[[], bool] | None = None,
    guarantee: Guarantee | None = None,
    on_progress: Callable[[Running], object] | None = None,
    allow_loops: bool = False,
    drop_state: Iterable[str] = (),
    controller: Controller | ControllerMode = "advise",
) -> dict[str, Any]:
    """Write several queries over streams, each to a sink of its own, as one job, until all have ended; collective.

    The job takes one checkpoint for all queries, so that all sinks that commit do so together; you stop, resume and
    monitor it as one job. Steps that queries share, through a common DataSet, run once: a single
    ``tm.stream.from_kafka(...)`` is read once, and a window that two queries build on is computed once. Two calls that
    read the same topic are two sources.

    Parameters
    ----------
    queries : iterable of (DataSet, sink)
        Sinks as in `DataSet.write_stream`.
    late_output, name, checkpoint, stop_when, guarantee, on_progress, allow_loops, drop_state, controller
        As in `DataSet.write_stream`. `late_output` applies to the windows of all queries, or to steps by their names,
        and `guarantee` to every sink.

    Returns
    -------
    dict
        This worker's counts for each edge, and the time taken.

    Raises
    ------
    DataSetError
        On every worker, as in `DataSet.write_stream`; an error in a query names its sink.

    Examples
    --------
    >>> import tidemill as tm
    >>> numbers = tm.stream.from_table(tm.from_dict({"n": list(range(10))}).collect())
    >>> small, large = [], []
    >>> _ = tm.stream.write([
    ...     (numbers.filter(tm.col("n") < 5), lambda rows: small.extend(rows.to_dict()["n"])),
    ...     (numbers.filter(tm.col("n") > 7), lambda rows: large.extend(rows.to_dict()["n"])),
    ... ])
    >>> sorted(small), sorted(large)
    ([0, 1, 2, 3, 4], [8, 9])
    """
    return _write.run(
        "stream.write",
        _pairs(queries),
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


def explain(queries: Iterable[tuple[DataSet, AnySink]]) -> str:
    """Return the tasks of the job that `write` would run, which of them several queries share, and the guarantee of
    each sink; collective.
    """
    return _write.explain(_pairs(queries))


def _pairs(queries: Iterable[tuple[DataSet, Any]]) -> list[tuple[NativeDataSet, Any]]:
    pairs = list(queries)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], DataSet)):
            raise TypeError(f"each query must be a pair of a DataSet and its sink, not {type(pair).__name__}")
    if not pairs:
        raise DataSetError("a job needs at least one query to write, but there is none")
    return [(query._native, sink) for query, sink in pairs]
