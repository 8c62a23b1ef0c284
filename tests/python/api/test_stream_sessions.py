"""Sessions with late rows, and with early results.

Late rows are sent when the results of all earlier rows have arrived, so the expected results do not depend on speed.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import test_stream_late
import tidemill as tm
from test_stream_late import ROUND_S, SECOND, START, Row, served, user, written

GAP_S = 6


class Session(NamedTuple):
    """A session of the model: its user, its rows in order of arrival, and the number in no early result."""

    user: str
    rows: list[int]
    untold: int
    given: bool

    @property
    def start(self) -> int:
        return min(self.rows)

    @property
    def end(self) -> int:
        return max(self.rows) + GAP_S


class Result(NamedTuple):
    user: str
    start: int
    end: int
    rows: int
    total: int
    final: bool


def result(of: Session, final: bool) -> Result:
    return Result(of.user, of.start, of.end, len(of.rows), sum(of.rows), final)


class Model:
    """A model to which rows are added one by one."""

    def __init__(self, emit_early_rows: int | None = None) -> None:
        self.sessions: list[Session] = []
        self.time = 0
        self._early_rows = emit_early_rows

    def add(self, second: int) -> list[Result]:
        near = [of for of in self.sessions if of.user == user(second) and of.start - GAP_S < second < of.end]
        rows = [number for of in near for number in of.rows] + [second]
        joined = Session(user(second), rows, sum(of.untold for of in near) + 1, False)
        made = []
        if self._early_rows is not None and joined.untold >= self._early_rows and joined.end > self.time:
            made.append(result(joined, False))
            joined = joined._replace(untold=0)
        self.sessions = [of for of in self.sessions if of not in near] + [joined]
        return made

    def pass_to(self, time: int) -> list[Result]:
        """Advance time; return the results of sessions that have ended and changed."""
        self.time = max(self.time, time)
        due = [of for of in self.sessions if of.end <= self.time and not of.given]
        self.sessions = [of._replace(given=True, untold=0) if of in due else of for of in self.sessions]
        return [result(of, True) for of in due]


def rounds(seed: int) -> list[list[int]]:
    """Like those of `test_stream_late`, but whole pairs of rows may be late, so that there are gaps until they come, or
    permanently.
    """
    dice = random.Random(seed)
    sent: list[list[int]] = [[] for _ in range(test_stream_late.ROUNDS)]
    late: list[list[int]] = [[] for _ in sent]
    for pair in range(ROUND_S * len(sent) // 2):
        number = 2 * pair // ROUND_S
        can_wait = 2 * pair % ROUND_S < 20 and number + 2 < len(sent)
        if dice.random() < 0.15:
            continue
        if can_wait and dice.random() < 0.45:
            some = late[number + dice.randint(1, 2)]
            some += dice.sample([2 * pair, 2 * pair + 1], 2)
        else:
            sent[number] += [2 * pair, 2 * pair + 1]
    for some in late:
        dice.shuffle(some)
    return [before + seconds for before, seconds in zip(late, sent, strict=True)]


def replaced(results: list[Result]) -> tuple[list[Result], int]:
    """Return the results that no later one replaces, and how many were replaced by one that merges several."""
    left: list[Result] = []
    merged = 0
    for new in results:
        within = [old for old in left if old.user == new.user and new.start <= old.start and old.end <= new.end]
        merged += len(within) if len({old.start for old in within}) > 1 else 0
        left = [old for old in left if old not in within] + [new]
    return left, merged


def found(seen: list[Row]) -> list[Result]:
    def second(at: Any) -> int:
        return int((at - START) / SECOND)

    return [
        Result(
            of["user"],
            second(of["window_start"]),
            second(of["window_end"]),
            of["rows"],
            of["total"],
            of.get("window_final", True),
        )
        for of in seen
    ]


@pytest.mark.parametrize("late_output", [False, True])
@pytest.mark.parametrize("early", [{}, {"emit_early_rows": 1}, {"emit_early_rows": 3}, {"emit_early_every": "5ms"}])
@pytest.mark.parametrize("seed", range(2))
def test_late_rows_change_sessions(early: dict[str, Any], late_output: bool, seed: int) -> None:
    """Results are corrected when late rows extend or merge sessions, and never otherwise; when each result has replaced
    those within it, the sessions of all rows remain.
    """
    sent = rounds(seed)
    model = Model(early.get("emit_early_rows"))
    expected: list[Result] = []
    counts: list[int] = []
    for seconds in sent:
        expected += [made for second in seconds for made in model.add(second)]
        expected += model.pass_to(max(seconds))
        counts.append(len(expected))
    expected += model.pass_to(10**6)
    seen: list[Row] = []
    # Those by the clock are more than are waited for.
    awaited: list[Row] = []
    left_out: list[Row] = []

    def take(table: tm.Table) -> None:
        rows = table.to_pylist()
        seen.extend(rows)
        awaited.extend(row for row in rows if "emit_early_every" not in early or row["window_final"])

    with served(sent, counts, awaited) as stream:
        window = tm.stream.window(tm.stream.session(timedelta(seconds=GAP_S)), on="at", allowed_lateness="1h", **early)
        sessions = stream.group_by("user", window).agg(rows=tm.count(), total=tm.col("n").sum())
        late = (lambda table: left_out.extend(table.to_pylist())) if late_output else None
        sessions.write_stream(take, late_output=late)
    assert not left_out and tm.last_report().late_rows == 0
    assert Counter(found(awaited)) == Counter(expected)
    results = found(seen)
    assert len({of.final for of in results}) == 2 or "emit_early_rows" not in early

    left, merged = replaced(results)
    assert merged > 1, "the test is of sessions that become one"
    assert all(of.final for of in left)
    plain = Model()
    for second in sorted(second for seconds in sent for second in seconds):
        plain.add(second)
    assert sorted(left) == sorted(plain.pass_to(10**6))


@pytest.mark.parametrize("early", [{}, {"emit_early_rows": 100}])
@pytest.mark.parametrize("late_output", [False, True])
def test_rows_later_than_that(late_output: bool, early: dict[str, Any]) -> None:
    """A row after even the allowed lateness begins nothing, and goes where late rows go; one near a live session is in
    that.
    """
    sent = [[0, 6], [300], [12, 192, 186, 180], [306]]
    assert {user(second) for seconds in sent for second in seconds} == {"a"}
    seen: list[Row] = []
    with served(sent, [0, 1, 1, 2], seen) as stream:
        window = tm.stream.window(tm.stream.session("12s"), on="at", allowed_lateness="100s", **early)
        sessions = stream.group_by("user", window).agg(rows=tm.count(), total=tm.col("n").sum())
        left = written(sessions, seen, late_output)
    # When 300 has come, the first session is forgotten: 12 would have been in it. 192 is kept until 304, and 180 is
    # near it through 186.
    assert [of["n"] for of in left] == ([12] if late_output else [])
    assert tm.last_report().late_rows == (0 if late_output else 1)
    expected = [("a", 0, 18, 2, 6, True), ("a", 180, 204, 3, 558, True), ("a", 300, 318, 2, 606, True)]
    assert [tuple(of) for of in found(seen)] == expected


def test_results_by_rows() -> None:
    """Each covers exactly the rows that had come by then, with the resulting window."""
    source = tm.stream.from_generator(rows=3000, splits=1, step="1s")
    number = tm.col("number")
    rows = source.select("time", "number", key=number * 7 % 3).filter(number * number % 17 > 9)
    window = tm.stream.window(tm.stream.session("13s"), on="time", emit_early_rows=2)
    seen: list[Row] = []
    results = rows.group_by("key", window).agg(all=number.to_list(), n=tm.count())
    results.write_stream(lambda table: seen.extend(table.to_pylist()))
    sessions: dict[int, list[list[int]]] = {}
    for n in range(3000):
        if n * n % 17 > 9:
            of_key = sessions.setdefault(n * 7 % 3, [[]])
            if of_key[-1] and n - of_key[-1][-1] >= 13:
                of_key.append([])
            of_key[-1].append(n)
    expected: Counter[tuple[int, str, bool]] = Counter()
    for key, of_key in sessions.items():
        for session in of_key:
            expected.update((key, str(session[:n]), False) for n in range(2, len(session) + 1, 2))
            expected[key, str(session), True] += 1
    assert Counter((of["key"], str(of["all"]), of["window_final"]) for of in seen) == expected
    assert sum(not final for *_, final in expected.elements()) > 100
    begin = min(of["window_start"] for of in seen) - timedelta(seconds=min(s[0][0] for s in sessions.values()))
    for of in seen:
        assert of["window_start"] == begin + timedelta(seconds=of["all"][0])
        assert of["window_end"] == begin + timedelta(seconds=of["all"][-1] + 13)


def test_results_so_far() -> None:
    """By the clock: they only grow, are of open sessions, and the last of each equals the result without them."""
    seconds = [second for second in range(600) if second % 60 < 40]
    table = tm.from_dict({"n": seconds}).select("n", at=tm.col("n").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="100s", rows_per_batch=1, rows_per_s=800)
    seen: list[Row] = []
    window = tm.stream.window(tm.stream.session("15s"), on="at", emit_early_every="10ms")
    stream.group_by(window).agg(rows=tm.count()).write_stream(lambda rows: seen.extend(rows.to_pylist()))
    final = [of for of in seen if of["window_final"]]
    assert [of["rows"] for of in sorted(final, key=lambda of: of["window_start"])] == [40] * 10
    assert len(seen) > len(final), "none came early"
    for of in final:
        within = [
            one for one in seen if of["window_start"] <= one["window_start"] and one["window_end"] <= of["window_end"]
        ]
        assert within[-1] is of and sum(one["window_final"] for one in within) == 1


def test_in_sql() -> None:
    """`late` and `early` accept sessions."""
    rows = tm.from_dict({"s": [0, 1, 2, 30, 31]}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    query = "select w['final'] as last, n from (select {} as w, count(*) as n from rows group by w)"
    for call, expected in (
        ("early(late(session(at, '10 seconds'), '1 hour'), 2)", [(False, 2), (False, 2), (True, 2), (True, 3)]),
        ("late(early(session(at, '10 seconds'), 3), '1 hour')", [(False, 3), (True, 2), (True, 3)]),
    ):
        seen: list[Row] = []
        source = tm.stream.from_table(rows, time="at", max_out_of_orderness="1h")
        tm.sql(query.format(call), rows=source).write_stream(lambda table, seen=seen: seen.extend(table.to_pylist()))
        assert sorted((of["last"], of["n"]) for of in seen) == expected


def test_they_are_rows_of_a_stream() -> None:
    """Corrections and early results have the time of their session's end, so none is late for a following window."""
    sent = rounds(5)
    plain = Model()
    for second in sorted(second for seconds in sent for second in seconds):
        plain.add(second)
    seen: list[Row] = []
    with served(sent, [0] * len(sent), seen) as stream:
        window = tm.stream.window(
            tm.stream.session(timedelta(seconds=GAP_S)), on="at", allowed_lateness="1h", emit_early_rows=2
        )
        sessions = stream.group_by("user", window).agg(rows=tm.count())
        timed = sessions.select("window_final", at=tm.col("window_end") - timedelta(microseconds=1))
        final = tm.col("window_final").cast("int64").sum()
        counts = timed.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(final=final)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            counts.write_stream(lambda table: seen.extend(table.to_pylist()))
    # The advance of time among rows that are sent at once depends on speed, so more results may have been corrected.
    assert sum(of["final"] for of in seen) >= len(plain.sessions)
