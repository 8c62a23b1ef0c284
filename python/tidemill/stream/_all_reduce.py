"""A value that all copies of a stream's step compute together, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from tidemill._streaming.bsp import Place
from tidemill._streaming.late_rounds import LateRoundLogic, OnTimeRoundLogic
from tidemill._streaming.rounds import OPERATIONS, RoundFunction, RoundLogic
from tidemill._tables.durations import Duration, seconds
from tidemill._tables.errors import DataSetError
from tidemill._tables.rows import function_name
from tidemill._tables.table import Table
from tidemill.dataset._bsp import step
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._expr import IntoExpr
from tidemill.stream._windows import Windows, tumbling, window

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

__all__ = ["all_reduce"]

_SCHEMA = {
    "round": "int64",
    "window_start": "timestamp[us]",
    "window_end": "timestamp[us]",
    "value": "List(Float64)",
}


def all_reduce(
    rows: DataSet,
    function: Callable[[Table, NDArray[numpy.float64] | None], ArrayLike],
    *,
    every: Duration | Windows | None = None,
    on: IntoExpr | None = None,
    op: Literal["sum", "mean", "min", "max"] = "sum",
    by: str | Iterable[str] = (),
    parallelism: int | None = None,
    max_wait: Duration | None = None,
) -> DataSet:
    """Return a stream of values that all copies of a function compute together: the totals of each second, or a model
    whose copies learn from different rows.

    In each round every copy is called with its rows, and what the copies return is reduced element by element. The
    result is one row of the stream, and every copy is given it in the next round.

    Parameters
    ----------
    rows : DataSet
        A stream.
    function : callable
        ``function(table, value)``: `table` has this copy's rows of the round, in the order of their times; `value` is
        the result of the round before, a ``float64`` array, or None in the first round. It returns a number or an
        array, of the same shape on all copies. A copy without rows is called, too.
    every : str, number of seconds, timedelta or Windows, optional
        Length of a round in event time, for example ``"1s"``; rounds without any rows are left out. Or
        ``tm.stream.count_window(1000)``: a round has a thousand rows of all copies together. By default a round has the
        rows from one checkpoint to the next, and the last one those up to the stream's end.
    on : str or Expr, optional
        The time of a row, for `every` in event time.
    op : {"sum", "mean", "min", "max"}, default="sum"
        How values are reduced. ``"mean"`` is over the copies, for models that each copy moves by its own rows.
    by : str or iterable of str, optional
        Rows with equal values in these columns go to the same copy. By default rows are spread by all their values.
    parallelism : int, optional
        Number of copies; by default as many as other steps have.
    max_wait : str, number of seconds or timedelta, optional
        A round does not wait for a copy whose function takes longer than this, for example ``"200ms"``. The round is
        reduced without that copy's part, and the part goes into the next round after the function has returned;
        ``"mean"`` is over the parts that a round has. The function then runs on a thread of its own. By default rounds
        wait for all copies.

    Returns
    -------
    DataSet
        A stream with the columns ``round`` (int64, from 0), ``window_start`` and ``window_end`` (timestamps of the
        round, null unless `every` is a length of time) and ``value`` (a list of float64: the array, flattened in C
        order). With rounds of event time, ``window_end`` is the time of a row, so windows can follow. With `max_wait`
        also ``left_out`` (a list of int64): the copies that were late, by their numbers from 0.

    Raises
    ------
    DataSetError
        If `rows` is a table, or options contradict each other. The job fails with it on every worker if the function
        raises, or if it returns different shapes on different copies or, with `max_wait`, in different rounds. A job
        that resumes without `max_wait` fails if its checkpoint has parts that rounds had left out.

    Notes
    -----
    The value is part of the stream's checkpoints, and a job that resumes with another number of copies continues with
    it. Each copy's part of each round is in one result, also after a failure: with `max_wait`, checkpoints have what was
    left out, as parts or as the rows that they are made of. At the end of the stream, what is left makes one more round,
    which waits for it.

    `max_wait` bounds the time of functions, from when all copies have the rows of a round. It does not bound how long
    rows take to arrive, and a worker that stands still holds up rounds until it counts as lost. The first round waits for
    all copies, a round that would have no part waits for one, and a copy with the rows of more than 16 rounds in hand is
    waited for.

    With `every`, arrays of 1 MiB or more are reduced while rows arrive and the next round fills, from the second round
    on; checkpoints wait until they are reduced. Without it a round ends at a checkpoint, so its rows wait for the result.
    Between hosts such arrays go around slow links, like ``comm.Allreduce(..., algorithm="adaptive")``: rates are measured
    between rounds, and each round has one overlay. Sums of floats may then differ in their last bits from run to run.

    `DataSet.bsp` is the general form: any collectives, any results, and a state for each copy.

    Examples
    --------
    >>> import tidemill as tm
    >>> table = tm.from_dict({"x": [1.0, 2.0, 6.0], "s": [1, 2, 11]})
    >>> table = table.select("x", at=tm.col("s").cast("timestamp[s]")).collect()
    >>> stream = tm.stream.from_table(table, time="at")
    >>> sums = tm.stream.all_reduce(stream, lambda rows, last: sum(rows.to_dict()["x"]), every="10s", on="at")
    >>> seen = []
    >>> _ = sums.write_stream(lambda table: seen.extend(table.to_pylist()))
    >>> [(row["round"], row["value"]) for row in seen]
    [(0, [3.0]), (1, [6.0])]
    """
    name = function_name(function)
    if not rows._native.is_stream():
        raise DataSetError(f"{name}: all_reduce is for streams, and this is a table; use bsp for one reduction")
    if op not in OPERATIONS:
        raise DataSetError(f'{name}: op={op!r} must be "sum", "mean", "min" or "max"')
    counts = isinstance(every, Windows)
    if (every is None or counts) != (on is None):
        raise DataSetError(
            f"{name}: every= is a length of event time, and on= is the column that has it; pass both, or neither. Windows of "
            "count_window take no on="
        )
    max_wait_s = None if max_wait is None else seconds(max_wait, f"{name}: max_wait")
    schema = _SCHEMA if max_wait is None else _SCHEMA | {"left_out": "List(Int64)"}

    def make_logic(called: RoundFunction, name: str, place: Place) -> RoundLogic:
        if max_wait_s is None:
            return OnTimeRoundLogic(called, name, schema, op, place)
        return LateRoundLogic(called, name, schema, op, place, max_wait_s)

    return step(
        rows,
        function,
        schema,
        None if every is None else window(every if isinstance(every, Windows) else tumbling(every), on=on),
        by,
        (None, None),
        parallelism,
        "wait",
        None if on is None else "window_end",
        make_logic,
    )
