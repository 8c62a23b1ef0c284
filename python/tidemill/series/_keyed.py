"""Rows of a running stream: files that grow as its source, and the cleaning of each series with a state of its own.

The rules are those of `_clean`. What they say of a series alone is done here, for each time when all of its rows have
come. Whether a small split is real depends on the splits of all series, so it goes on with the row, as does what the
report counts (`told`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from tidemill._tables.table import Table
from tidemill._tidemill import NativeTable
from tidemill.dataset import DataSet, coalesce, col, lit
from tidemill.dataset._map import map_tables
from tidemill.series._arriving import Lacking
from tidemill.series._clean import caps_name, pivot
from tidemill.series._panel import Array
from tidemill.series._read import Columns, find_columns
from tidemill.series._rules import Rules
from tidemill.series._splits import Split, detect, weigh
from tidemill.series._tail import FileTail, NewRows

__all__ = ["CLEAN", "NUMBERS", "ROWS", "cleaning", "file_rows", "stream_rows"]

#: Roles of numeric columns.
NUMBERS = ("value", "cap", "shares", "volume", "split", "split_shares", "price")
#: Columns of rows as they are read. Absent roles are not among `roles`; a row with `until` ends all times before it.
ROWS = {
    "id": "str",
    "at": "timestamp[us]",
    "until": "timestamp[us]",
    "roles": "str",
    "told": "str",
    **dict.fromkeys(NUMBERS, "float64"),
}
#: Columns of a cleaned value; `ratio` and `evidence` are those of a split at this time, NaN if there is none.
CLEAN = {
    "id": "str",
    "at": "timestamp[us]",
    "value": "float64",
    "cap": "float64",
    "caps_name": "str",
    "ratio": "float64",
    "evidence": "float64",
    "told": "str",
}
#: The number of a series' values before the new one that jumps are compared with.
_BEFORE = 40
#: A time is complete when the stream's time is this much later.
MOMENT = timedelta(microseconds=1)


def file_rows(open_tail: Callable[[], FileTail]) -> Callable[[str, Any], Iterator[tuple[Table, Any] | None]]:
    """Return the function that reads files for `tidemill.stream.from_function`. Its position is how far they were read."""

    def rows(_split: str, position: Any) -> Iterator[tuple[Table, Any] | None]:
        tail = open_tail()
        told: dict[str, int] | None = None
        if position is not None:
            standing, told = position
            tail.resume(standing)
        while True:
            new = tail.take()
            if new is None:
                # If there is more to read already, do not wait.
                if not tail.is_behind:
                    yield None
                continue
            assert tail.columns is not None
            head: dict[str, Any] = {}
            if told is None:
                head = {"columns": tail.columns.named(), "notes": list(tail.columns.notes), "dated": new.dated}
            before, told = told or {}, dict(tail.left_out)
            counts = {rule: count - before.get(rule, 0) for rule, count in told.items()}
            counts["rows"] = counts["without_key"]
            yield _table(new, tail.columns, json.dumps(head | _nonzero(counts))), (tail.standing(), told)

    return rows


def _nonzero(counts: Mapping[str, int]) -> dict[str, int]:
    return {rule: count for rule, count in counts.items() if count}


def _table(new: NewRows, columns: Columns, told: str) -> Table:
    """Return rows of times that are over, by time; each is when its last row has come."""
    count = len(new.codes)
    order = np.argsort(new.times, kind="stable")
    times = new.times[order]
    ends = np.concatenate([times[1:] != times[:-1], [True]])
    until = np.where(ends, (times + 1).astype("datetime64[us]"), np.datetime64("NaT"))
    numbers = {role: new.numbers[role][order] if role in new.numbers else np.full(count, np.nan) for role in NUMBERS}
    roles = ",".join(role for role in NUMBERS if role in new.numbers)
    return Table.from_numpy(
        {
            "id": np.array(new.ids)[new.codes[order]],
            "at": times.astype("datetime64[us]"),
            "until": until,
            "roles": np.full(count, f"{roles};{_caps_name(columns)}"),
            "told": np.array([told, *[""] * (count - 1)]),
            **numbers,
        }
    )


def _caps_name(columns: Columns) -> str:
    has_caps = columns.cap or columns.shares or columns.volume
    return caps_name(columns) if has_caps else ""


@dataclass
class _Series:
    """The state of a series."""

    #: Rows of times that are not complete.
    waiting: dict[datetime, list[dict[str, Any]]] = field(default_factory=dict)
    #: The last positive value, unadjusted.
    last: float = math.nan
    #: If splits are detected: the last values, adjusted.
    recent: list[float] = field(default_factory=list)
    #: What the next row adds to the report.
    told: dict[str, Any] = field(default_factory=dict)

    def tell(self, told: Mapping[str, Any]) -> None:
        """Add counts, or set other values."""
        for name, what in told.items():
            self.told[name] = self.told.get(name, 0) + what if isinstance(what, int) and name != "dated" else what


def cleaning(rules: Rules) -> Callable[[Mapping[str, Any], list[dict[str, Any]], Any], list[dict[str, Any]]]:
    """Return the function that cleans each series, for `process` of a stream that is keyed by id."""

    def clean(key: Mapping[str, Any], rows: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        series: _Series = context.state or _Series()
        for row in rows:
            told: dict[str, Any] = json.loads(row["told"]) if row["told"] else {}
            told["rows"] = told.get("rows", 0) + 1
            if context.time is not None and row["at"] < context.time:
                told["late"] = 1
            else:
                series.waiting.setdefault(row["at"], []).append(row)
            series.tell(told)
        # One timer for all times: if many arrive together, many are complete together, and cleaned together.
        over = sorted(at for at in series.waiting if context.timers and at < context.time)
        made = _cleaned(key["id"], series, over, rules) if over else []
        if series.waiting:
            context.set_timer(min(series.waiting) + MOMENT)
        context.state = series
        return made

    return clean


def _cleaned(name: str, series: _Series, over: list[datetime], rules: Rules) -> list[dict[str, Any]]:
    """Return a cleaned row for each time that is over."""
    groups = [series.waiting.pop(at) for at in over]
    rows = [row for group in groups for row in group]
    roles, _, caps = rows[0]["roles"].partition(";")
    numbers = {role: np.array([row[role] for row in rows], dtype=np.float64) for role in roles.split(",")}
    places = np.repeat(np.arange(len(over)), [len(group) for group in groups])
    stamps = np.array(over, dtype="datetime64[us]")
    values, worth, splits, counts = pivot(
        np.zeros(len(rows), dtype=np.int64), places, numbers, 1, len(over), rules, [name], stamps
    )
    # The treatment of splits is decided later.
    series.tell(_nonzero(counts))
    # A time without anything to report has a single row.
    series.tell({"rows": 1 - len(over)})
    if rules.splits == "detect":
        found = _detected(series, values[0])
    else:
        found = _weighed(series, values, splits)
    made = []
    for place, at in enumerate(over):
        ratio, evidence = found.get(place, (math.nan, math.nan))
        worth_here = math.nan if worth is None else float(worth[0, place])
        made.append(
            {
                "id": name,
                "at": at,
                "value": float(values[0, place]),
                "cap": worth_here,
                "caps_name": caps,
                "ratio": ratio,
                "evidence": evidence,
                "told": "" if series.told == {"rows": 1} else json.dumps(series.told),
            }
        )
        series.told = {"rows": 1}
    series.told = {}
    return made


def _weighed(series: _Series, values: Array, splits: list[Split]) -> dict[int, tuple[float, float]]:
    """Return ratio and evidence of each split of the column, by the place of its time."""
    behind = np.concatenate([[[series.last]], values], axis=1)
    each = weigh(behind, [Split(0, split.place + 1, split.ratio) for split in splits])
    above = np.flatnonzero(values[0] > 0)
    if len(above):
        series.last = float(values[0, above[-1]])
    return {split.place: (split.ratio, part) for split, part in zip(splits, each, strict=True)}


def _detected(series: _Series, values: Array) -> dict[int, tuple[float, float]]:
    """Return the splits at which values jump; each is judged by the values before it, whatever has come behind it."""
    found = {}
    for place, value in enumerate(values.tolist()):
        if not value > 0:
            continue
        row = np.array([[*series.recent, value]])
        for split in detect(row, begin=max(1, len(series.recent))):
            found[place] = split.ratio, math.nan
            series.recent = [one / split.ratio for one in series.recent]
        series.recent = [*series.recent[1 - _BEFORE :], value]
    return found


def stream_rows(
    stream: DataSet, chosen: Mapping[str, str | None], say: Callable[[str], object]
) -> tuple[DataSet, Columns]:
    """Return the rows of a stream, and its columns by role. Rows without id or time are left out; `say` is called once on each
    worker that has read only rows without id, time or value.
    """
    columns = find_columns(stream.columns, dict(chosen))
    named = columns.named()
    nothing = lit(float("nan"))
    roles = [role for role in NUMBERS if role in named]
    rows = stream.select(
        # In the same way as `plain_id`.
        id=coalesce(col(columns.id).cast("str"), lit("")).str.strip().str.replace_match(r"^(\d+)\.0$", r"\1"),
        at=col(columns.time).cast("timestamp[us]"),
        timed=col(columns.time).is_not_null(),
        roles=lit(f"{','.join(roles)};{_caps_name(columns)}"),
        told=lit(""),
        **{role: coalesce(col(named[role]).cast("float64"), nothing) if role in named else nothing for role in NUMBERS},
    )
    lacking = Lacking(columns)
    said = False

    def look(table: NativeTable, _found: NativeTable | None) -> list[NativeTable]:
        nonlocal said
        lacking.count(table)
        if not said and (note := lacking.note()):
            said = True
            say(f"  {note}")
        return [table]

    rows = map_tables(rows, "rows without a time", look, rows._native)
    return rows.filter(col("timed") & (col("id") != "")), columns
