"""Jobs that write streams: one query or several, each to a sink."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tidemill._job import init
from tidemill._tidemill import explain_stream, write_stream
from tidemill.dataset import _workers
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._engine import copies, engine
from tidemill.dataset._errors import DataSetError
from tidemill.dataset._places import at_home
from tidemill.dataset._read import _told
from tidemill.stream import _late, _log, _metrics, _status
from tidemill.stream._check import look_at_sinks
from tidemill.stream._running import Running
from tidemill.stream._sinks import Guarantee, native_sink, sink_name
from tidemill.stream._time import Duration, seconds

if TYPE_CHECKING:
    from tidemill.dataset._read import StorageOptions
    from tidemill.stream._sinks import AnySink, LateTo

__all__ = ["explain", "run", "write"]

#: Options of checkpoints, as they are by default.
_DEFAULTS = {"storage_options": None, "every": None, "unaligned_after": "every", "timeout": 600, "keep": 3}


def write(
    queries: Iterable[tuple[DataSet, AnySink]],
    *,
    late_output: LateTo | None = None,
    name: str = "stream",
    checkpoint: str | Path | None = None,
    storage_options: StorageOptions | None = None,
    every: Duration | None = None,
    unaligned_after: Duration | Literal["every"] | None = "every",
    timeout: Duration = 600,
    keep: int = 3,
    stop: Callable[[], bool] | None = None,
    guarantee: Guarantee | None = None,
    watch: Callable[[Running], object] | None = None,
    loops: bool = False,
    forget: Iterable[str] = (),
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
    late_output, name, checkpoint, storage_options, every, unaligned_after, timeout, keep, stop, guarantee, watch, loops, forget
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
    return run(
        "stream.write",
        _pairs(queries),
        late_output=late_output,
        name=name,
        checkpoint=checkpoint,
        storage_options=storage_options,
        every=every,
        unaligned_after=unaligned_after,
        timeout=timeout,
        keep=keep,
        stop=stop,
        guarantee=guarantee,
        watch=watch,
        loops=loops,
        forget=forget,
    )


def explain(queries: Iterable[tuple[DataSet, AnySink]]) -> str:
    """The tasks of the job that `write` would run, which of them several queries share, and what each sink has of its rows; collective."""
    pairs = [(query._native, native_sink(sink), sink_name(sink)) for query, sink in _pairs(queries)]
    return explain_stream(engine(), init().comm, pairs)


def run(
    call: str,
    queries: list[tuple[DataSet, Any]],
    *,
    late_output: Any,
    name: str,
    checkpoint: str | Path | None,
    storage_options: StorageOptions | None,
    every: Duration | None,
    unaligned_after: Duration | Literal["every"] | None,
    timeout: Duration,
    keep: int,
    stop: Callable[[], bool] | None,
    guarantee: str | None,
    watch: Callable[[Running], object] | None,
    loops: bool,
    forget: Iterable[str],
) -> dict[str, Any]:
    """What `write` and `DataSet.write_stream` do; whoever called them is who warnings are for."""
    if not isinstance(name, str) or not name:
        raise DataSetError(f"name={name!r} is no name of a job: a text that is not empty")
    if guarantee is not None and guarantee not in get_args(Guarantee):
        raise DataSetError(f"guarantee={guarantee!r} is not {' or '.join(map(repr, get_args(Guarantee)))}")
    if stop is not None and checkpoint is None:
        raise DataSetError("stop= needs checkpoint=, a folder that the job goes on from")
    if watch is not None and checkpoint is None:
        raise DataSetError("watch= needs checkpoint=: keys move at checkpoints")
    of_checkpoints = {
        "storage_options": storage_options,
        "every": every,
        "unaligned_after": unaligned_after,
        "timeout": timeout,
        "keep": keep,
    }
    # What is as it is by default was perhaps not given at all.
    needless = next((option for option, value in of_checkpoints.items() if value != _DEFAULTS[option]), None)
    if needless is not None and checkpoint is None:
        raise DataSetError(
            f"{needless}= needs checkpoint=: it says how checkpoints are made, and without there are none"
        )
    forgotten = list(forget) if isinstance(forget, Iterable) and not isinstance(forget, str) else [forget]
    if isinstance(forget, str) or not all(isinstance(step, str) and step for step in forgotten):
        raise DataSetError(f"forget={forget!r} is no list of names of steps, such as ['window 2']")
    if forgotten and checkpoint is None:
        raise DataSetError("forget= needs checkpoint=: it is of what a checkpoint has")
    late_sinks = _late_sinks(late_output)
    at_most_once = guarantee == "at most once"
    place: dict[str, Any] | None = None
    if checkpoint is not None:
        if not os.fspath(checkpoint):
            raise DataSetError("checkpoint= is a folder or the URL of one, which cannot be empty")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise DataSetError(f"keep={keep!r} is no whole number from 1 on")
        if every is not None and seconds(every, "every") == 0:
            raise DataSetError(f"every={every!r} is no time between two checkpoints; it is more than zero, as '1s' is")
        if seconds(timeout, "timeout") == 0:
            raise DataSetError(f"timeout={timeout!r} gives every checkpoint up; it is more than zero")
        every_s = seconds((0.1 if at_most_once else 10) if every is None else every, "every")
        unaligned_s: float | None = None
        if unaligned_after == "every":
            unaligned_s = min(10.0, max(every_s, 1.0))
        elif unaligned_after is not None:
            unaligned_s = seconds(unaligned_after, "unaligned_after")
        place = {
            "place": at_home(checkpoint),
            "storage_options": _told(storage_options),
            "every": every_s,
            "unaligned_after": unaligned_s,
            "timeout": seconds(timeout, "timeout"),
            "keep": keep,
            "at_most_once": at_most_once,
            "forget": forgotten,
        }
    given = "None" if place is None else "given"
    of = f"of {len(queries)}"
    _workers.check_alike(
        call,
        queries=of,
        name=repr(name),
        checkpoint=given,
        guarantee=repr(guarantee),
        loops=repr(loops),
        forget=repr(forgotten),
    )
    # Worker 0 is who is heard.
    asked = stop if init().rank == 0 else None
    watching = (lambda native: watch(Running(native, copies()))) if watch is not None and init().rank == 0 else None
    status = _status.place(name, init().comm)
    with _figures(json.loads(status[1])["job_id"]):
        report, count, first, late = write_stream(
            engine(),
            init().comm,
            [(query._native, native_sink(sink), sink_name(sink)) for query, sink in queries],
            name,
            place,
            asked,
            status,
            guarantee,
            watching,
            [(step, native_sink(sink), sink_name(sink)) for step, sink in late_sinks] or None,
            lambda described: look_at_sinks(described, loops=loops),
            _log.tell,
        )
    _workers.report_bad_records(count, first)
    _late.report(late)
    return report


def run_plainly(call: str, query: DataSet, sink: Any) -> None:
    """Write a stream without checkpoints, by the name of `call`; collective."""
    run(
        call,
        [(query, sink)],
        late_output=None,
        name=call,
        checkpoint=None,
        storage_options=None,
        every=None,
        unaligned_after="every",
        timeout=600,
        keep=3,
        stop=None,
        guarantee=None,
        watch=None,
        loops=True,
        forget=(),
    )


@contextmanager
def _figures(job_id: str) -> Iterator[None]:
    """Serve figures of the job from worker 0, if they are wanted; that it cannot is an error on every worker. Collective."""
    job = init()
    with ExitStack() as serving:
        failed: str | None = None
        if job.rank == 0:
            try:
                serving.enter_context(_metrics.serving(job_id))
            except DataSetError as error:
                failed = str(error)
        if job.size > 1:
            failed = job.comm.bcast(failed)
        if failed is not None:
            raise DataSetError(failed)
        yield


def _late_sinks(late_output: Any) -> list[tuple[str | None, Any]]:
    """Where late rows go: by step, or one sink for all windows."""
    if late_output is None:
        return []
    if not isinstance(late_output, Mapping):
        return [(None, late_output)]
    for step in late_output:
        if not isinstance(step, str):
            raise TypeError(f"late_output has sinks by the names of steps, such as 'join 1 left', not by {step!r}")
    return list(late_output.items())


def _pairs(queries: Iterable[tuple[DataSet, Any]]) -> list[tuple[DataSet, Any]]:
    pairs = list(queries)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], DataSet)):
            raise TypeError(f"each query is a pair of a DataSet and its sink, not {type(pair).__name__}")
    if not pairs:
        raise DataSetError("a job writes at least one query; there is none")
    return pairs
