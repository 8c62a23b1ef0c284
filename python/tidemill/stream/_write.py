"""Jobs that write streams: one query or several, each to a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill._streaming import write as _write
from tidemill._streaming.checkpoint import Checkpoint
from tidemill._streaming.running import Running
from tidemill._streaming.sinks import Guarantee
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
) -> dict[str, Any]:
    """Write several queries over streams, each to a sink of its own, as one job, until all have ended; collective.

    The job has one checkpoint for all of them, so that sinks that commit have each row once together, and is stopped, goes on and
    is looked at as one. What queries have in common, the DataSet that they are made from, is done once: one
    ``tm.stream.from_kafka(...)`` is read once, a window that two of them build on is counted once. Where the same topic is read by
    two calls there are two sources.

    Parameters
    ----------
    queries : iterable of (DataSet, sink)
        Sinks are those of `DataSet.write_stream`.
    late_output, name, checkpoint, stop_when, guarantee, on_progress, allow_loops, drop_state
        As for `DataSet.write_stream`. `late_output` is for the windows of all queries, or for steps by their names, and `guarantee` what every sink must give.

    Returns
    -------
    dict
        What this worker saw on each edge, and how long it took.

    Raises
    ------
    DataSetError
        On every worker, as for `DataSet.write_stream`; what is wrong with a query names its sink.

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
    )


def explain(queries: Iterable[tuple[DataSet, AnySink]]) -> str:
    """The tasks of the job that `write` would run, which of them several queries share, and what each sink has of its rows; collective."""
    return _write.explain(_pairs(queries))


def _pairs(queries: Iterable[tuple[DataSet, Any]]) -> list[tuple[NativeDataSet, Any]]:
    pairs = list(queries)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], DataSet)):
            raise TypeError(f"each query must be a pair of a DataSet and its sink, not {type(pair).__name__}")
    if not pairs:
        raise DataSetError("a job needs at least one query to write, but there is none")
    return [(query._native, sink) for query, sink in pairs]
