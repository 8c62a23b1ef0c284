"""Windows by time, and by number of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidemill._tables.durations import Duration, micros
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import window_of
from tidemill.dataset._expr import Expr, IntoExpr, call, col, lit
from tidemill.stream._custom import Assign, CustomWindow
from tidemill.stream._keys import WindowKey

__all__ = [
    "Windows",
    "bounded_delay",
    "calendar_window",
    "count_window",
    "custom_window",
    "session",
    "sliding",
    "tumbling",
    "window",
]

#: Far enough below the range of 64-bit integers that numbers of rows can be added.
_ROWS_MAX = 10**18
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Windows:
    """A way to form windows; returned by `tumbling`, `sliding`, `calendar_window`, `session`, `count_window` and
    `custom_window`.
    """

    kind: str
    #: In microseconds, in rows, or in calendar units.
    size: int
    slide: int
    #: For calendar windows.
    zone: str = ""
    #: For count windows: how long a key is remembered, in microseconds.
    ttl: int | None = None
    #: For custom windows: the function, and the columns passed to it.
    assign: Assign | None = None
    columns: tuple[str, ...] = ()


def tumbling(size: Duration) -> Windows:
    """Return windows of one size, one after the other, aligned to 1970-01-01 00:00 UTC.

    Parameters
    ----------
    size : str, number of seconds or timedelta
        Length of a window, for example ``"10s"``, ``"250ms"``, ``"1h30m"``.
    """
    return sliding(size, size)


def sliding(size: Duration, slide: Duration) -> Windows:
    """Return windows of one size that begin every `slide`: a row is in all windows that contain its time."""
    return Windows("sliding", micros(size, "size"), micros(slide, "slide"))


def session(gap: Duration) -> Windows:
    """Return session windows: for each key, rows less than `gap` apart. A session ends `gap` after its last row."""
    return Windows("session", micros(gap, "gap"), 0)


def calendar_window(length: str, tz: str = "UTC") -> Windows:
    """Return windows of whole calendar days, weeks, months or years, one after the other, from midnight in a time zone.

    Parameters
    ----------
    length : str
        ``"1d"``, ``"1w"`` (starting on Monday), ``"1mo"``, ``"3mo"`` (quarters), ``"1y"``.
    tz : str, default="UTC"
        A time zone such as ``"Europe/Berlin"``, or an offset such as ``"+01:00"``.
    """
    found = re.fullmatch(r"(\d{1,9})\s*(d|w|mo|y)", length) if isinstance(length, str) else None
    if not found:
        raise DataSetError(f'{length!r} is not a calendar length; use "1d", "1w", "1mo" or "1y"')
    return Windows(found[2], int(found[1]), 0, tz)


def count_window(size: int, slide: int | None = None, *, ttl: Duration | None = None) -> Windows:
    """Return windows of a number of rows for each key, in order of arrival: one after the other, or one starting every
    `slide` rows.

    Their ``window_start`` and ``window_end`` are row numbers of the key: of the first row, and of the first row after
    the last. A window produces its result with its last row; windows that are not full when the stream ends produce
    none.

    Parameters
    ----------
    size : int
        Number of rows in a window.
    slide : int, optional
        Number of rows from the start of one window to the start of the next; by default `size`.
    ttl : str, number of seconds or timedelta, optional
        Forget the row count of a key when none of its rows has come for this long, by the rows' times, which you pass
        to `window` as `on`. A later row starts from 0 again, and windows of the key that were not full produce nothing.
        Rows whose time is null are left out and counted in this case. By default keys are remembered forever.

    Notes
    -----
    In SQL, write ``counting(size)``, ``counting(size, slide)``, ``counting(time, size, ttl)`` and ``counting(time,
    size, slide, ttl)``.
    """
    for number in (size, slide):
        if number is not None and not _is_whole(number):
            raise TypeError(f"a window needs an integer number of rows, not {number!r}")
        if number is not None and number > _ROWS_MAX:
            raise DataSetError(f"a window of {number} rows is too large; the largest has {_ROWS_MAX}")
    return Windows("count", size, size if slide is None else slide, ttl=None if ttl is None else micros(ttl, "ttl"))


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def custom_window(assign: Assign, columns: str | Iterable[str] = ()) -> Windows:
    """Return windows that a function assigns to batches of rows, from their times and columns.

    Parameters
    ----------
    assign : callable
        Called as ``assign(times, *columns)`` with pyarrow arrays: the times of some rows, ``timestamp[us]`` without
        nulls, and the same rows' columns. It returns two arrays, of starts and of ends, with a timestamp for each row:
        a row is in the window from its start, inclusive, to its end, exclusive. For rows in several windows, return
        arrays of lists; duplicate windows count once. A row with a null start is in no window. The function must be
        deterministic, since rows come again after a failure. Several threads call it. Needs pyarrow.
    columns : str or iterable of str, optional
        Columns to pass to it.

    Notes
    -----
    A window produces its result when time has passed its end. `allowed_lateness=`, `emit_early_every=` and
    `emit_early_rows=` work as they do for windows of one length; `emit_early_event_time=` is not supported. State is
    kept by key and window start, so different workers may keep two windows of one key.
    """
    if not callable(assign):
        raise TypeError(f"custom_window takes a function, not {assign!r}")
    return Windows("custom", 0, 0, assign=assign, columns=(columns,) if isinstance(columns, str) else tuple(columns))


def window(
    windows: Windows,
    on: IntoExpr | None = None,
    *,
    allowed_lateness: Duration = 0,
    emit_early_every: Duration | None = None,
    emit_early_event_time: Duration | None = None,
    emit_early_rows: int | None = None,
) -> Expr:
    """Return the window of a row, as a key of `DataSet.group_by`; the result has columns ``window_start`` and
    ``window_end``.

    Parameters
    ----------
    windows : Windows
        `tumbling`, `sliding`, `calendar_window`, `session`, `count_window` or `custom_window`.
    on : str or Expr
        Each row's time: a timestamp or a date. None for `count_window`, whose windows follow the order of arrival,
        unless it has a `ttl`.
    allowed_lateness : str, number of seconds or timedelta, default=0
        How long after its end a window still accepts late rows. Each late row produces the window's result again,
        corrected. Rows that come later than that are left out, or go to ``late_output`` of `DataSet.write_stream`; rows
        without a time are left out and counted. If a late row extends a session or merges two, the result comes again
        with a different window: a result replaces earlier ones of the same key whose windows lie within its own.
    emit_early_every : str, number of seconds or timedelta, optional
        Also emit the current result of a window at this interval of the machine's clock, if it has changed. The result
        then has a column ``window_final``: false in early results, true when the window is over.
    emit_early_event_time : str, number of seconds or timedelta, optional
        Instead of `emit_early_every`: emit the current result of a key each time this much more of the window's event
        time has passed, if the key has had rows in that interval. The result covers exactly the rows before that time.
        Such results are deterministic: failures and the rate of rows do not change them. A row that comes after its
        interval has passed is in the next result. Not available for sessions.
    emit_early_rows : int, optional
        Instead of `emit_early_every`: emit the current result of a key each time this many more of its rows are in the
        window, computed from exactly those rows, and at the end of the window as usual. Such results are deterministic:
        failures do not change them. For sessions: whenever a session has this many rows that no result has included.
        For other windows, it cannot be combined with `allowed_lateness`.

    Examples
    --------
    >>> import tidemill as tm
    >>> rows = tm.from_dict({"user": ["a", "b", "a"], "s": [1, 2, 11]})
    >>> rows = rows.select("user", ts=tm.col("s").cast("timestamp[s]")).collect()
    >>> clicks = tm.stream.from_table(rows, time="ts")
    >>> counts = clicks.group_by("user", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(n=tm.count())
    >>> seen = []
    >>> _ = counts.select("user", "n").write_stream(lambda table: seen.extend(table.to_pylist()))
    >>> sorted(seen, key=str)
    [{'user': 'a', 'n': 1}, {'user': 'a', 'n': 1}, {'user': 'b', 'n': 1}]
    """
    if not isinstance(windows, Windows):
        raise TypeError(f'a window must be tumbling("10s"), session("1m") or the like, not {windows!r}')
    if windows.kind == "count":
        early = (emit_early_every, emit_early_event_time, emit_early_rows)
        if allowed_lateness != 0 or any(option is not None for option in early):
            raise DataSetError(
                "windows of rows take no allowed_lateness=, emit_early_every=, emit_early_event_time= or emit_early_rows=: "
                "apart from ttl=, they do not depend on time"
            )
        if (on is None) != (windows.ttl is None):
            raise DataSetError(
                "windows of rows do not use time, so on= is for count_window(..., ttl=): the time that keys are remembered by"
            )
        on = lit(0) if on is None else on
    if emit_early_rows is not None and not _is_whole(emit_early_rows):
        raise TypeError(f"emit_early_rows is a whole number of rows, not {emit_early_rows!r}")
    time = col(on) if isinstance(on, str) else on
    if not isinstance(time, Expr):
        raise TypeError("on is the column, or an expression, with each row's event time")
    lateness = micros(allowed_lateness, "allowed_lateness")
    every = None if emit_early_every is None else micros(emit_early_every, "emit_early_every")
    step = None if emit_early_event_time is None else micros(emit_early_event_time, "emit_early_event_time")
    if windows.assign is not None:
        if step is not None:
            raise DataSetError(
                "windows of a function have early results by the clock (emit_early_every=) or by rows (emit_early_rows=), not by event time"
            )
        return CustomWindow(windows.assign, windows.columns, time, lateness, every, emit_early_rows)
    how = (windows.kind, windows.size, windows.slide, lateness, every, step, emit_early_rows, windows.zone, windows.ttl)
    return WindowKey(window_of(time._native, *how), any(given is not None for given in (every, step, emit_early_rows)))


def bounded_delay(time: IntoExpr, by: Duration) -> Expr:
    """Declare that a time column is never more than `by` behind the stream's time, for windows over another time column
    than the source's.

    The column itself does not change. Windows know the progress of the column that ``time=`` of the source names, also
    if it is shifted by a constant duration, cast to coarser units, or truncated to hours or days. Windows over any
    other column are rejected, because they would end before their rows have come. A row that is further behind than
    `by` is late. For a table this has no effect.

    Parameters
    ----------
    time : str or Expr
        A timestamp or a date.
    by : str, number of seconds or timedelta
        How long windows wait for their rows.

    Examples
    --------
    >>> import tidemill as tm
    >>> ordered = tm.stream.bounded_delay("ordered_at", "1h")
    >>> hours = tm.stream.window(tm.stream.tumbling("1h"), on=ordered)
    """
    days, us = divmod(micros(by, "by"), _DAY_US)
    return call("behind", col(time) if isinstance(time, str) else time, lit(f"{days} days {us} microseconds"))
