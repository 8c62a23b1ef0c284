"""Jobs that write streams, each to a sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

from tidemill._job import init
from tidemill._streaming import late as _late
from tidemill._streaming import log as _log
from tidemill._streaming import metrics as _metrics
from tidemill._streaming import scale as _scale
from tidemill._streaming import status as _status
from tidemill._streaming.check import look_at_sinks
from tidemill._streaming.controller import Controller, ControllerMode, as_controller
from tidemill._streaming.running import Running
from tidemill._streaming.sinks import Guarantee, native_sink, sink_name
from tidemill._tables import workers as _workers
from tidemill._tables.checkpoint import Checkpoint, as_checkpoint
from tidemill._tables.enclosing import enclosing
from tidemill._tables.engine import copies, engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.report import RowReport, remember
from tidemill._tidemill import NativeDataSet, NativeStreamJob, explain_stream

__all__ = ["explain", "run", "run_plainly"]


def explain(queries: list[tuple[NativeDataSet, Any]]) -> str:
    """Return the tasks of the job that `run` would run, and the guarantee of each sink; collective. A sink may be None."""
    pairs = [(query, None if sink is None else native_sink(sink), sink_name(sink)) for query, sink in queries]
    return explain_stream(engine(), init().comm, pairs)


def run(
    call: str,
    queries: list[tuple[NativeDataSet, Any]],
    *,
    late_output: Any,
    name: str,
    checkpoint: Checkpoint | str | Path | None,
    stop_when: Callable[[], bool] | None,
    guarantee: str | None,
    on_progress: Callable[[Running], object] | None,
    allow_loops: bool,
    drop_state: Iterable[str],
    controller: Controller | ControllerMode,
) -> dict[str, Any]:
    """Run `write` and `DataSet.write_stream`; warnings point at their caller."""
    if not isinstance(name, str) or not name:
        raise DataSetError(f"name must be a non-empty string, not {name!r}")
    if guarantee is not None and guarantee not in get_args(Guarantee):
        raise DataSetError(f"guarantee={guarantee!r} is not {' or '.join(map(repr, get_args(Guarantee)))}")
    acting = as_controller(controller)
    late_sinks = _late_sinks(late_output)
    checkpoint, queries, late_sinks = _enclosed(call, name, checkpoint, queries, late_sinks)
    if acting.mode == "on" and checkpoint is None:
        raise DataSetError("controller='on' needs checkpoint=: keys move at checkpoints")
    if stop_when is not None and checkpoint is None:
        raise DataSetError("stop_when= needs checkpoint=, from which the job resumes")
    if on_progress is not None and checkpoint is None:
        raise DataSetError("on_progress= needs checkpoint=: keys move at checkpoints")
    dropped = list(drop_state) if isinstance(drop_state, Iterable) and not isinstance(drop_state, str) else [drop_state]
    if isinstance(drop_state, str) or not all(isinstance(step, str) and step for step in dropped):
        raise DataSetError(f"drop_state={drop_state!r} must be a list of step names, such as ['window 2']")
    if dropped and checkpoint is None:
        raise DataSetError("drop_state= needs checkpoint=: it drops state that a checkpoint holds")
    settings = as_checkpoint(checkpoint)
    given = "None" if settings is None else "given"
    of = f"of {len(queries)}"
    _workers.check_alike(
        call,
        queries=of,
        name=repr(name),
        checkpoint=given,
        guarantee=repr(guarantee),
        allow_loops=repr(allow_loops),
        drop_state=repr(dropped),
        controller=repr(acting),
    )

    def make() -> NativeStreamJob:
        outputs = [(query, native_sink(sink), sink_name(sink)) for query, sink in queries]
        late_outputs = [(step, native_sink(sink), sink_name(sink)) for step, sink in late_sinks] or None
        place = None
        if settings is not None:
            place = settings._native(at_most_once=guarantee == "at_most_once", drop_state=dropped)
        checks = partial(look_at_sinks, loops=allow_loops)
        return NativeStreamJob(engine(), outputs, name, place, guarantee, late_outputs, checks)

    job = _workers.made_by_all(make)
    # Messages are shown only for worker 0.
    is_first = init().rank == 0
    asked = stop_when if is_first else None
    watching = (lambda native: on_progress(Running(native, copies()))) if on_progress is not None and is_first else None
    if is_first:
        watching = _scale.answering(watching)
    status = _status.place(name, init().comm)
    with _figures(json.loads(status[1])["job_id"]):
        report, count, first, late = job.run(
            engine(), init().comm, asked, status, watching, _log.tell, acting._native()
        )
    skipped, first = _workers.total_bad_records(count, first)
    late_rows, untimed_rows, skipped_rows = _late.total(late)
    # Before any warning, since a filter may turn it into an exception.
    remember(RowReport(skipped, late_rows.total(), untimed_rows.total(), skipped_rows.total()))
    _workers.warn_of_bad_records(skipped, first)
    _late.warn_of(late_rows, untimed_rows, skipped_rows)
    if settings is not None:
        _scale.leave_if_asked(init().comm)
    return report


def run_plainly(call: str, query: NativeDataSet, sink: Any) -> None:
    """Write a stream without checkpoints, by the name of `call`; collective."""
    run(
        call,
        [(query, sink)],
        late_output=None,
        name=call,
        checkpoint=None,
        stop_when=None,
        guarantee=None,
        on_progress=None,
        allow_loops=True,
        drop_state=(),
        controller="advise",
    )


@contextmanager
def _figures(job_id: str) -> Iterator[None]:
    """Serve metrics of the job from worker 0, if requested; failure is an error on every worker. Collective."""
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


def _enclosed(
    call: str,
    name: str,
    checkpoint: Checkpoint | str | Path | None,
    queries: list[tuple[NativeDataSet, Any]],
    late: list[tuple[str | None, Any]],
) -> tuple[Checkpoint | str | Path | None, list[tuple[NativeDataSet, Any]], list[tuple[str | None, Any]]]:
    """Return checkpoint, queries and late sinks of a job, as they are where it runs in a graph that makes checkpoints."""
    task = enclosing.get()
    if task is None:
        return checkpoint, queries, late
    if checkpoint is not None:
        raise DataSetError(
            f"{call}: the checkpoints of the graph cover this stream, which runs in its task {task.name!r}; leave out checkpoint="
        )
    made, sinks = task.open(name, [sink for _, sink in [*queries, *late]])
    asked = [(query, sink) for (query, _), sink in zip(queries, sinks, strict=False)]
    return made, asked, [(step, sink) for (step, _), sink in zip(late, sinks[len(queries) :], strict=True)]


def _late_sinks(late_output: Any) -> list[tuple[str | None, Any]]:
    """Return the sinks for late rows: by step, or one for all windows."""
    if late_output is None:
        return []
    if not isinstance(late_output, Mapping):
        return [(None, late_output)]
    for step in late_output:
        if not isinstance(step, str):
            raise TypeError(
                f"late_output must map names of steps to sinks, such as 'join 1 left'; a name is not {step!r}"
            )
    return list(late_output.items())
