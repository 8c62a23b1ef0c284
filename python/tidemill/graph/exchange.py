"""Exchanges: how messages of one task of a graph reach another (`tidemill.exchange`).

Each function returns an `Exchange` for `Graph.connect`. Exchanges that use columns (partition, reduce, sort or join by
a column) need a port of tables; the others also move arrays and objects.

>>> import tidemill as tm
>>> tm.exchange.partition("word")
<exchange: partition by word in 1024 buckets>
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

import numpy as np

from tidemill._callback import run_in_callback
from tidemill._duration import Duration, micros
from tidemill._tables.table import Table
from tidemill._tidemill import NativeExchange, NativeReduction, NativeTable
from tidemill.graph._errors import GraphError
from tidemill.graph._messages import PortType, decode, encode
from tidemill.graph._rounds import PortRounds
from tidemill.graph._task import keep

__all__ = [
    "Exchange",
    "Rounds",
    "all_gather",
    "all_reduce",
    "broadcast",
    "direct",
    "gather",
    "join",
    "keyed_gather",
    "keyed_reduce",
    "partition",
    "reduce",
    "sort",
    "union",
]

#: A column, or several.
Columns: TypeAlias = "str | Sequence[str]"
#: Operations by column; or one operation, or a function of two, for whole messages.
How: TypeAlias = "Mapping[str, str] | str | Callable[[Any, Any], Any]"


@dataclass(frozen=True)
class Rounds:
    """How an exchange divides messages into rounds, for ``rounds=``; ``"strict"`` or ``"partial"`` alone means rounds
    of messages.

    Parameters
    ----------
    end : {"strict", "partial"}, default="strict"
        When a source copy ends and others send more: ``"strict"`` raises an error that names it, ``"partial"``
        continues without it.
    rows : int, optional
        A round has this many rows of each copy, in any number of messages; a copy's last round may have fewer. An array
        or an object counts as a row. By default a round is a message. Not in loops.
    time : str, float or timedelta, optional
        Length of event time that makes a round, as a duration (``"1s"``, ``"5m"``, seconds). Round n has the rows whose
        time is from ``start + n * time`` on, before the beginning of the next round, and may have none. It is complete
        when every source copy has sent a row of a later round, or has ended, whatever `end` says. A gap in the times sends
        a message for each round in it, without rows; a row more than 2**20 rounds ahead of the one that is open is an
        error. Ports of tables only; not in loops.
    on : str, optional
        The column with the times, of timestamps or dates; with `time`. Rows of a copy come in the order of their times:
        one that comes after a row of a later round is left out, and counted (`EdgeReport.late_rows`), as are rows without
        a time and those before `start`.
    start : datetime or str, optional
        Where round 0 begins, such as ``"2026-01-31"`` (ISO 8601, UTC unless it says otherwise); with `time`.
    max_out_of_orderness : str, float or timedelta, default=0
        By how much a row may be earlier than one before it of the same copy. A round ends that much later.

    Raises
    ------
    GraphError
        When `end` is something else, `rows` is not a positive integer, `time` is not a duration above 0, or one of
        `rows`, `time`, `on` and `start` is missing or too many. When the graph runs: `on` is no column of times.

    Examples
    --------
    >>> import tidemill as tm
    >>> seconds = tm.exchange.Rounds(time="1s", on="at", start="2026-01-31")
    >>> tm.exchange.keyed_reduce("sensor", {"reading": "max"}, rounds=seconds)
    <exchange: keyed reduce by sensor: max(reading) by rounds of 1 s>
    """

    end: str = "strict"
    rows: int | None = None
    time: Duration | None = None
    on: str | None = None
    start: datetime | str | None = None
    max_out_of_orderness: Duration = 0

    def __post_init__(self) -> None:
        if self.end not in ("strict", "partial"):
            raise GraphError(f'rounds={self.end!r} must be "strict" or "partial", or left out')
        if self.rows is not None and _number("Rounds: rows", self.rows) < 1:
            raise GraphError(f"Rounds: rows={self.rows}: a round has at least one row")
        if self.time is None:
            if self.on is not None or self.start is not None or self.max_out_of_orderness != 0:
                raise GraphError(
                    "Rounds: on=, start= and max_out_of_orderness= are for rounds of time; pass their length, such as "
                    'time="1s"'
                )
            return
        if self.rows is not None:
            raise GraphError("Rounds: a round is either so many rows or a length of time; pass rows= or time=")
        if self.on is None or self.start is None:
            raise GraphError("Rounds: time= needs on=, the column with the times, and start=, where round 0 begins")
        self._slices(None)

    def _of(self, exchange: NativeExchange, source: PortType | None) -> NativeExchange:
        """Return an exchange of what `source` sends by these rounds."""
        partial = self.end == "partial"
        if self.time is not None:
            return exchange.by_rounds(partial, slices=self._slices(source))
        return exchange.by_rounds(partial) if self.rows is None else exchange.by_rounds(partial, int(self.rows))

    def _slices(self, source: PortType | None) -> tuple[int, int, int, int]:
        """Return the number of the column, and start, length and disorder in microseconds."""
        assert self.time is not None and self.start is not None
        length = micros(self.time, "Rounds: time", GraphError)
        if length < 1:
            raise GraphError(f"Rounds: time={self.time!r}: a round has a length above 0")
        disorder = micros(self.max_out_of_orderness, "Rounds: max_out_of_orderness", GraphError)
        column = 0
        if source is not None:
            columns = list(source.columns)
            if self.on not in columns:
                raise GraphError(
                    f"Rounds: on={self.on!r} is not a column of the port; its columns are {', '.join(columns)}"
                )
            column = columns.index(self.on)
        return column, _microseconds(self.start), length, disorder


class Exchange:
    """A route from the copies of one task to those of another; returned by the functions of `tidemill.exchange`."""

    def __init__(
        self,
        make: Callable[[PortType | None], NativeExchange],
        by_column: bool = False,
        rounds: Rounds | None = None,
        lists: bool = True,
        rows: bool = False,
        to_all: bool = False,
    ) -> None:
        self._make = make if rounds is None else lambda source: rounds._of(make(source), source)
        self._by_column = by_column or (rounds is not None and rounds.time is not None)
        self._partial = rounds is not None and rounds.end == "partial"
        #: What arrives by rounds.
        self._arriving = None if rounds is None else PortRounds(lists, rows)
        #: Whether all copies get the same.
        self._to_all = to_all

    def _native(self, source: PortType) -> NativeExchange:
        """Return the native exchange for a port's messages."""
        if self._by_column and source.kind != "table":
            raise GraphError(
                f"{self!r} needs columns, but the port sends {source.kind}; give it a schema of columns, such as "
                '{"n": "int64"}'
            )
        return self._make(source)

    def __repr__(self) -> str:
        return f"<exchange: {self._make(None).describe()}>"


def direct(*, rounds: str | Rounds | None = None) -> Exchange:
    """Send from each copy to the copy with the same number; both tasks must have as many copies. Messages within a
    worker are not copied.

    Parameters
    ----------
    rounds : {"strict", "partial"} or Rounds, optional
        Deliver message by message, tables without rows included, as edges of loops must (`Graph.feedback`).
    """
    made = _rounds("direct", rounds)
    by_rows = made is not None and made.rows is not None
    return Exchange(lambda _: NativeExchange.direct(), rounds=made, lists=by_rows)


def broadcast(
    *,
    along: str | None = None,
    message_bytes: int | None = None,
    message_rate: float | None = None,
    rounds: str | Rounds | None = None,
) -> Exchange:
    """Send everything to every copy, along a tree of workers; a worker receives each batch once, however many copies it
    runs.

    Parameters
    ----------
    along : str, optional
        The tree of workers to use: ``"binomial"``, ``"binary"``, ``"flat"``, ``"chain"``, ``"ring"`` or ``"double"``,
        all of which go between hosts first; two of the first four, such as ``"flat/binary"``, one between hosts and one
        within them; or ``"serial"``, from the root to every worker. By default Tidemill chooses the tree for the hosts
        and workers that the graph runs on; `Graph.explain` prints it. For comparison, ``"copies"`` sends to every copy
        separately.
    message_bytes : int, default=16384
        Approximate size of a message, for the choice of the tree.
    message_rate : float, optional
        Approximate number of messages per second: the choice is then the tree with the lowest latency among those that
        keep up. 0 means that each message comes alone. By default, the choice assumes that a few messages follow each
        other.
    rounds : {"strict", "partial"} or Rounds, optional
        Deliver by rounds: the n-th messages of all source copies make the n-th result, in the order of the copies: a
        table of all rows, or a list of arrays or objects. It arrives as soon as every copy has sent its n-th message. A
        copy that is far ahead of the slowest waits. When a copy ends and others send more, ``"strict"`` raises an
        error, and ``"partial"`` continues without that copy. By default messages arrive one by one.
    """
    made = _rounds("broadcast", rounds)
    traffic = _traffic("broadcast", along, message_bytes, message_rate)
    return Exchange(lambda _: NativeExchange.broadcast(along, *traffic), rounds=made, to_all=True)


def all_gather(
    *,
    along: str | None = None,
    message_bytes: int | None = None,
    message_rate: float | None = None,
    rounds: str | Rounds | None = None,
) -> Exchange:
    """Send the messages of all copies to every copy: `broadcast` from several copies."""
    return broadcast(along=along, message_bytes=message_bytes, message_rate=message_rate, rounds=rounds)


def gather(to: int = 0, *, along: str | None = None, rounds: str | Rounds | None = None) -> Exchange:
    """Send everything to copy `to`; the others get nothing.

    Parameters
    ----------
    to : int, default=0
        Number of the receiving copy.
    along : str, optional
        As in `broadcast`, except ``"copies"``: a tree of workers, hosts first, on which small messages are combined. Use
        it for little data from many workers on many hosts. By default every copy sends to `to` directly.
    rounds : {"strict", "partial"} or Rounds, optional
        As in `broadcast`; not with `along`.
    """
    copy = _number("gather: to", to)
    if rounds is not None and along is not None:
        raise GraphError(f"gather: along={along!r} combines messages as they come; leave it out with rounds={rounds!r}")
    return Exchange(lambda _: NativeExchange.gather(copy, along), rounds=_rounds("gather", rounds))


def partition(
    by: Columns | Callable[[Any, int], Any] | None = None,
    *,
    ranges: Columns | None = None,
    buckets: int | None = None,
    owners: Sequence[int] | None = None,
    rounds: str | Rounds | None = None,
) -> Exchange:
    """Send each row, or message, to one copy.

    Parameters
    ----------
    by : str, sequence of str, or callable, optional
        Columns: rows with equal values go to the same copy. All hashable types are supported; nulls equal each other,
        and so do NaNs. Or a function ``by(table, copies)`` that returns the copy of each row as an array of integers;
        for arrays and objects, ``by(message, copies)`` returns one copy. By default messages go to the copies in turn;
        a copy without room is skipped while others have some.
    ranges : str or sequence of str, optional
        Columns: every copy gets a range of their values with about the same number of rows; copy 0 gets the smallest
        values.
    buckets : int, optional
        Number of buckets that keys are hashed to, from 1 to 1048576, by default 1024. Buckets are distributed evenly
        over the copies.
    owners : sequence of int, optional
        The copy of each bucket, instead of an even distribution.
    rounds : {"strict", "partial"} or Rounds, optional
        As in `broadcast`: every copy gets its part of the n-th messages, perhaps without rows. Needs `by`; not with
        `ranges`.
    """
    made = _rounds("partition", rounds)
    if made is not None and (ranges is not None or by is None):
        how = "by ranges" if ranges is not None else "in turn"
        raise GraphError(f"partition: messages dealt {how} have no rounds; partition by columns or a function")
    if by is not None and ranges is not None:
        raise GraphError("partition: pass columns, a function, or ranges, but only one of them")
    if (by is None or callable(by)) and (buckets is not None or owners is not None):
        what = "buckets" if owners is None else "owners"
        raise GraphError(f"partition: {what}= applies to keys made of columns; name the columns, partition(by=...)")
    if ranges is not None:
        keys = [(name, False, None) for name in _columns(ranges)]
        return Exchange(lambda _: NativeExchange.ranges(keys), by_column=True)
    if by is None:
        return Exchange(lambda _: NativeExchange.round_robin())
    if callable(by):
        function = by
        return Exchange(lambda _: NativeExchange.partition_with(_name(function), _assigning(function)), rounds=made)
    columns, count = _columns(by), _number("partition: buckets", 1024 if buckets is None else buckets)
    owned = None if owners is None else [_number("partition: owners", copy) for copy in owners]
    if owned == []:
        raise GraphError("partition: owners=[] owns no bucket; name the copy of each bucket")
    return Exchange(lambda _: NativeExchange.partition(columns, count, owned), by_column=True, rounds=made)


def reduce(
    how: How,
    *,
    to: int = 0,
    along: str | None = None,
    message_bytes: int | None = None,
    message_rate: float | None = None,
    rounds: str | Rounds | None = None,
) -> Exchange:
    """Combine all rows, or messages, into one for copy `to`, reducing along the way. If there are none, nothing is
    sent.

    Parameters
    ----------
    how : mapping of str to str, str, or callable
        For tables ``{"column": "sum"}``, or ``"product"``, ``"min"``, ``"max"``, ``"any"``; other columns are dropped;
        ``"product"`` does not support decimals. Or a function of two rows, as dicts, that returns one with the same
        columns. For arrays and objects one of ``"sum"``, ``"product"``, ``"min"``, ``"max"`` (elementwise for arrays),
        or a function of two messages. Functions are called in any order.
    to : int, default=0
        Number of the receiving copy.
    along, message_bytes, message_rate : optional
        As in `broadcast`, except ``"copies"``; results go up the tree.
    rounds : {"strict", "partial"} or Rounds, optional
        Combine by rounds: the n-th messages of all source copies make the n-th result, which arrives as soon as every
        copy has sent its n-th message. So sources need not end. A result for a table port is one row, and a table that
        arrives has the rows of one or several rounds, in order; a message without rows does not count. A copy that is
        far ahead of the slowest waits. When a copy ends and others send more, ``"strict"`` raises an error, and
        ``"partial"`` continues without that copy. By default everything becomes one result, at the end.

    Raises
    ------
    GraphError
        When it runs with ``rounds="strict"``, if copies have sent unequal numbers of messages.
    """
    copy, made = _number("reduce: to", to), _rounds("reduce", rounds)
    traffic = _traffic("reduce", along, message_bytes, message_rate)
    if along is not None and made is not None and made.time is not None:
        raise GraphError(f'reduce: rounds of time go up a "flat" tree; leave out along={along!r}')
    return Exchange(
        lambda source: NativeExchange.reduce(_reduction(how, source), copy, along, *traffic),
        rounds=made,
        lists=False,
        rows=True,
    )


def all_reduce(
    how: How,
    *,
    along: str | None = None,
    message_bytes: int | None = None,
    message_rate: float | None = None,
    rounds: str | Rounds | None = None,
) -> Exchange:
    """Like `reduce`, to every copy."""
    made, traffic = _rounds("all_reduce", rounds), _traffic("all_reduce", along, message_bytes, message_rate)
    return Exchange(
        lambda source: NativeExchange.all_reduce(_reduction(how, source), along, *traffic),
        rounds=made,
        lists=False,
        rows=True,
        to_all=True,
    )


def keyed_reduce(
    by: Columns,
    how: How | None = None,
    *,
    buckets: int = 1024,
    along: str | None = None,
    message_bytes: int | None = None,
    message_rate: float | None = None,
    rounds: str | Rounds | None = None,
) -> Exchange:
    """Combine the rows of each key into one, at the copy that owns the key, after combining at the senders, and perhaps on
    the way.

    Parameters
    ----------
    by : str or sequence of str
        Key columns.
    how : mapping of str to str, or callable, optional
        As in `reduce`; by default empty, which returns the distinct keys.
    buckets : int, default=1024
        As in `partition`.
    along : str, optional
        Trees of workers, one to each copy, along which rows with equal keys are combined: ``"flat"``, where one worker
        of each host collects the host's rows for a copy; ``"binomial"``, with few messages from each worker; or both,
        between hosts and within them, such as ``"binomial/flat"``. ``"serial"`` sends from each worker to each copy.
        With `rounds`, `message_bytes` or `message_rate`, Tidemill by default chooses trees for the hosts and workers
        that the graph runs on, and `Graph.explain` prints them; otherwise the default is ``"serial"``.
    message_bytes : int, default=16384
        Approximate bytes that a worker has for all copies, in a round or in total, for the choice of the trees.
    message_rate : float, optional
        As in `broadcast`, for rounds.
    rounds : {"strict", "partial"} or Rounds, optional
        As in `partition`: a row for each key in the n-th messages.
    """
    columns, count = _columns(by), _number("keyed_reduce: buckets", buckets)
    what: How = {} if how is None else how
    traffic = _traffic("keyed_reduce", along, message_bytes, message_rate)
    return Exchange(
        lambda source: NativeExchange.keyed_reduce(columns, _reduction(what, source, columns), count, along, *traffic),
        by_column=True,
        rounds=_rounds("keyed_reduce", rounds),
    )


def keyed_gather(by: Columns, *, buckets: int = 1024, rounds: str | Rounds | None = None) -> Exchange:
    """Send all rows of a key to the copy that owns it, one key after the other: the rows of each key are contiguous.

    Parameters
    ----------
    by : str or sequence of str
        Key columns.
    buckets : int, default=1024
        As in `partition`.
    rounds : {"strict", "partial"} or Rounds, optional
        As in `partition`: the rows of the n-th messages, one key after the other.
    """
    columns, count = _columns(by), _number("keyed_gather: buckets", buckets)
    made = _rounds("keyed_gather", rounds)
    return Exchange(lambda _: NativeExchange.keyed_gather(columns, count), by_column=True, rounds=made)


def join(
    on: Columns | Mapping[str, str], how: str = "inner", *, broadcast_right: bool = False, buckets: int = 1024
) -> Exchange:
    """Join the rows of two sources with equal keys; an edge from two ports, the left and the right.

    Parameters
    ----------
    on : str, sequence of str, or mapping of str to str
        Key columns with the same name, or a mapping from left to right columns. Null keys never match. If the result
        has columns of both sides, all their names must differ, including those of keys.
    how : {"inner", "left", "right", "full", "semi", "anti"}
        Which rows without a match to keep; ``semi`` and ``anti`` return only left rows, with and without a match.
    broadcast_right : bool, default=False
        Send the right side, which should be small, to all copies, and leave the left side in place.
    buckets : int, default=1024
        As in `partition`, for both sides; no effect with `broadcast_right`.
    """
    count = _number("join: buckets", buckets)
    pairs = list(on.items()) if isinstance(on, Mapping) else [(name, name) for name in _columns(on)]
    return Exchange(lambda _: NativeExchange.join(how, pairs, broadcast_right, count), by_column=True)


def sort(
    by: Columns,
    *,
    descending: bool | Sequence[bool] = False,
    nulls_first: bool | None = None,
    sample_all: bool = False,
) -> Exchange:
    """Sort globally: every copy gets a sorted range, and copy 0's rows come before copy 1's. Spills to disk beyond the
    memory budget.

    Parameters
    ----------
    by : str or sequence of str
        Sort columns, most significant first.
    descending : bool or sequence of bool, default=False
        Whether to sort in descending order; for all columns or for each.
    nulls_first : bool, optional
        Whether nulls come first; by default they sort as the smallest values.
    sample_all : bool, default=False
        Sample the ranges from all rows, not only from the first 64 MiB of each copy.
    """
    columns = _columns(by)
    falling = [descending] * len(columns) if isinstance(descending, bool) else list(descending)
    if len(falling) != len(columns):
        raise GraphError(f"sort: descending has {len(falling)} values for {len(columns)} columns")
    keys = [(name, falls, nulls_first) for name, falls in zip(columns, falling, strict=True)]
    return Exchange(lambda _: NativeExchange.sort(keys, sample_all), by_column=True)


def union(by: Exchange | None = None) -> Exchange:
    """Combine the messages of several ports, in no particular order; an edge from several ports.

    Parameters
    ----------
    by : Exchange, optional
        Exchange for each of them; `direct` by default.
    """
    each = direct() if by is None else by
    if not isinstance(each, Exchange):
        raise GraphError(f"union: by={by!r} must come from a function of tidemill.exchange, such as partition")
    if each._arriving is not None:
        raise GraphError("union: messages of several ports have no rounds; leave rounds= out of by=")
    return Exchange(lambda source: NativeExchange.union(each._make(source)), by_column=each._by_column)


def _columns(given: Columns) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _number(what: str, given: Any) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise GraphError(f"{what}={given!r} must be an integer") from None
    if not 0 <= number < 1 << 32:
        raise GraphError(f"{what}={number} is not from 0 to {(1 << 32) - 1}")
    return number


def _microseconds(moment: datetime | str) -> int:
    """Return a moment as microseconds since 1970 UTC."""
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at
        return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    except (AttributeError, TypeError, ValueError):
        raise GraphError(
            f'Rounds: start={moment!r} is not a moment; use a datetime, or "2026-01-31T12:00:00"'
        ) from None


def _rounds(what: str, given: Any) -> Rounds | None:
    if given is None or isinstance(given, Rounds):
        return given
    if given not in ("strict", "partial"):
        raise GraphError(f'{what}: rounds={given!r} must be "strict" or "partial", Rounds(...), or left out')
    return Rounds(str(given))


def _traffic(what: str, along: str | None, message_bytes: Any, message_rate: Any) -> tuple[int | None, int | None]:
    """Bytes of a message, and whole messages in a second, as far as they are known."""
    for name, given in (("message_bytes", message_bytes), ("message_rate", message_rate)):
        if given is not None and along is not None:
            raise GraphError(f"{what}: {name}= is for choosing a tree; leave it out with along={along!r}")
    size = None if message_bytes is None else _number(f"{what}: message_bytes", message_bytes)
    if message_rate is None:
        return size, None
    if not isinstance(message_rate, (int, float)) or not 0 <= message_rate < 1 << 32:
        raise GraphError(f"{what}: message_rate={message_rate!r} is not a number of messages a second, 0 or more")
    return size, round(message_rate)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _assigning(function: Callable[[Any, int], Any]) -> Callable[[NativeTable, int], Any]:
    def assign(native: NativeTable, copies: int) -> Any:
        try:
            return targets_of(native, copies)
        except BaseException as error:
            keep(error)
            raise

    def targets_of(native: NativeTable, copies: int) -> Any:
        messages = decode(native)
        if len(messages) == 1 and isinstance(messages[0], Table):
            targets = _whole(function(messages[0], copies), function)
        else:
            targets = np.array([operator.index(function(message, copies)) for message in messages], dtype=np.int64)
        wrong = targets[(targets < 0) | (targets >= copies)]
        if wrong.size:
            raise GraphError(f"{_name(function)} returned copy {wrong[0]}, but there are only {copies}")
        return targets

    return run_in_callback("a function of an exchange", assign)


def _whole(targets: Any, function: Callable[..., Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    given = np.asarray(targets)
    if given.dtype.kind not in "biu" and given.size:
        raise GraphError(f"{_name(function)} returned {given.dtype}; it must return the copy of each row as integers")
    return np.ascontiguousarray(given, dtype=np.int64)


_OF_ARRAYS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_OF_OBJECTS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "product": operator.mul,
    "min": min,
    "max": max,
}


def _reduction(how: How, source: PortType | None, keys: Sequence[str] = ()) -> NativeReduction:
    if isinstance(how, Mapping):
        if source is not None and source.kind != "table":
            raise GraphError(
                f'a reduction of columns, but the port sends {source.kind}; use "sum" or a function of two messages'
            )
        return NativeReduction.of_columns(list(how.items()))
    kind = "table" if source is None else source.kind
    columns = [] if source is None else [name for name in source.columns if name not in keys]
    if not isinstance(how, str):
        if not callable(how):
            raise GraphError(
                f"{how!r} is not a reduction: use operations by column, one operation, or a function of two messages"
            )
        return NativeReduction.of_function(_name(how), columns, _folding(how, kind))
    known = _OF_ARRAYS if kind == "arrays" else _OF_OBJECTS
    if kind == "table" and source is not None:
        raise GraphError(f'reduce({how!r}): for tables, say which columns, as in {{"n": {how!r}}}')
    if how not in known:
        raise GraphError(f"unknown reduction {how!r}; use {', '.join(known)}, or a function of two messages")
    elementwise = how if kind == "arrays" else None
    return NativeReduction.of_function(how, columns, _folding(known[how], kind), elementwise)


def _folding(
    function: Callable[[Any, Any], Any], kind: str
) -> Callable[[NativeTable, Sequence[int], int], NativeTable]:
    def fold(native: NativeTable, groups: Sequence[int], count: int) -> NativeTable:
        messages = Table(native).to_pylist() if kind == "table" else decode(native)
        folded: dict[int, Any] = {}
        for message, group in zip(messages, groups, strict=True):
            folded[group] = function(folded[group], message) if group in folded else message
        results = [folded[group] for group in range(count)]
        if kind != "table":
            return encode(kind, results)
        names = [name for name, _ in native.fields]
        for row in results:
            if not isinstance(row, Mapping) or set(row) != set(names):
                raise GraphError(f"{_name(function)} returned {row!r}, not a dict with the columns {', '.join(names)}")
        return NativeTable.from_lists_as([[row[name] for row in results] for name in names], native)

    return run_in_callback("a function of an exchange", fold)
