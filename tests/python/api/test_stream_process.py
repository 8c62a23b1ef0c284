"""Keyed functions of programs over streams: states, timers, and recovery after a failure."""

from __future__ import annotations

import math
import pickle
import random
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
import tidemill as tm
from keyed import NativeKeyedEngine, call, engine, listed, states
from tidemill._streaming.items import ListState, MapState, Part

SECOND = timedelta(seconds=1)
START = datetime(1970, 1, 1)
Rows = list[dict[str, Any]]
#: After this many saved changes, a bucket is saved in full again.
CHANGES_MAX = 300


def table(rows: int = 2000) -> pa.Table:
    times = pa.array(range(0, rows * 1000, 1000), pa.timestamp("us"))
    return pa.table({"k": [at * 7 % 13 for at in range(rows)], "x": range(rows), "at": times})


def among_others(rows: Iterable[tuple[int, str]]) -> pa.Table:
    """Return rows at some milliseconds, between others that advance time."""
    all_rows = sorted([*rows, *((at, "other") for at in range(3, 1100, 10))])
    at, keys = zip(*all_rows, strict=True)
    return pa.table({"k": keys, "at": pa.array(at, pa.timestamp("ms"))})


def stream(of: pa.Table, **options: Any) -> tm.DataSet:
    return tm.stream.from_table(of, time="at", rows_per_batch=options.pop("rows_per_batch", 50), **options)


def driven(one: NativeKeyedEngine, of: pa.Table) -> Rows:
    """Return an engine's results for rows, each followed by its time; with `written`, the time at a row would depend on
    speed.
    """
    made = []
    for row in of.to_pylist():
        made += call(one, row["k"], {name: [value] for name, value in row.items()})
        made += listed(one.time(micros(row["at"]))[0])
    return made + listed(one.time(2**63 - 1)[0])


def micros(at: datetime) -> int:
    return (at - START) // timedelta(microseconds=1)


def written(data: tm.DataSet, into: Rows | None = None, **options: Any) -> Rows:
    seen: Rows = [] if into is None else into
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return seen


def running(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Rows:
    """Each row with the sum of its key so far."""
    made = []
    for row in rows:
        context.state = (context.state or 0) + row["x"]
        made.append({**key, "x": row["x"], "sum": context.state})
    return made


SCHEMA = {"k": "int64", "x": "int64", "sum": "int64"}


@pytest.mark.parametrize("rows_per_batch", [1, 50, 5000])
def test_a_state_for_each_key(rows_per_batch: int) -> None:
    """Rows of a key reach one state, however they are batched."""
    rows = table()
    seen = written(
        stream(rows, rows_per_batch=rows_per_batch).filter(tm.col("x") >= 0).key_by("k").process(running, SCHEMA)
    )
    assert len(seen) == 2000
    # Rows of a key are in one split of the table or another, in order within each.
    totals = {key: max(row["sum"] for row in seen if row["k"] == key) for key in range(13)}
    expected = {key: sum(x for x in range(2000) if x * 7 % 13 == key) for key in range(13)}
    assert totals == expected


def test_timers_go_off_when_time_has_passed(tmp_path: Any) -> None:
    """A user who does nothing for a twentieth of a second is reported once, with the previous number of rows."""

    def idle(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        if rows:
            count, last = context.state or (0, None)
            if last is not None:
                context.delete_timer(last + SECOND / 20)
            last = max(row["at"] for row in rows)
            context.state = (count + len(rows), last)
            context.set_timer(last + SECOND / 20)
            return None
        (count, last), context.state = context.state, None
        assert context.timers == [last + SECOND / 20] and context.time is not None and context.time >= context.timers[0]
        return {**key, "n": count, "until": last}

    at = [0, 10, 20, 200, 250, 500, 520, 1000]
    rows = among_others(zip(at, ["a", "b", "a", "a", "b", "a", "a", "b"], strict=True))
    schema = {"k": "str", "n": "int64", "until": "timestamp[us]"}
    seen = driven(engine(idle, schema, None, tmp_path, saves=False), rows)
    found = sorted((row["k"], row["n"], round((row["until"] - START) / SECOND * 1000)) for row in seen)
    found = [row for row in found if row[0] != "other"]
    assert found == [("a", 1, 200), ("a", 2, 20), ("a", 2, 520), ("b", 1, 10), ("b", 1, 250), ("b", 1, 1000)]
    # How far time has advanced when a row arrives depends on speed, but each counts once.
    result = tm.stream.from_table(rows, time="at", rows_per_batch=1, rows_per_s=1000)
    counts = Counter[str]()
    for row in written(result.key_by("k").process(idle, schema)):
        counts[row["k"]] += row["n"]
    assert counts == Counter(rows["k"].to_pylist())


def test_a_timer_that_sets_the_next() -> None:
    """Every tenth of a second while time advances; the stream still ends."""

    def ticks(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        at = context.timers[0] if context.timers else START
        if not rows or context.state is None:
            context.state = True
            context.set_timer(at + SECOND / 10)
        return [{**key, "at": at} for at in context.timers]

    seen = written(stream(table()).key_by("k").process(ticks, {"k": "int64", "at": "timestamp[us]"}))
    ticked = sorted((row["at"] - START) / SECOND for row in seen if row["k"] == 3)
    assert ticked == pytest.approx([tick / 10 for tick in range(1, len(ticked) + 1)])
    assert len(ticked) in (19, 20, 21)


def test_a_timer_that_is_set_by_the_time(tmp_path: Any) -> None:
    """Computing with the stream's time failed at the end: it was the maximum of `datetime`."""
    times: list[datetime | None] = []

    def every_second(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        if context.timers:
            assert context.time is not None and context.time >= context.timers[0]
            if key["k"] == "a":
                times.append(context.time)
            context.set_timer(context.time + SECOND)
            return {**key, "at": context.time}
        if context.state is None:
            context.state = True
            context.set_timer(rows[0]["at"] + SECOND / 4)
        return None

    schema = {"k": "str", "at": "timestamp[us]"}
    rows = among_others(zip([0, 300, 1400], "aaa", strict=True))
    seen = written(tm.stream.from_table(rows, time="at", rows_per_batch=1).key_by("k").process(every_second, schema))
    assert times and times == [row["at"] for row in seen if row["k"] == "a"]
    # At the end, time advances to the remaining timers.
    last = rows["at"].to_pylist()[-1]
    times.clear()
    driven(engine(every_second, schema, None, tmp_path, saves=False), rows)
    assert times[-1] == times[-2] + SECOND > last

    def at_the_end(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        if rows:
            context.set_alarm(context.now + timedelta(hours=1))
            return None
        return {**key, "at": context.time}

    kept = engine(at_the_end, schema, None, tmp_path)
    assert [row["at"] for row in driven(kept, rows) if row["k"] == "a"] == [last] * 3
    timeless = tm.stream.from_table(rows).key_by("k").process(at_the_end, schema)
    assert {row["at"] for row in written(timeless)} == {None}


def test_what_is_no_time() -> None:
    """Errors name the call and what it accepts."""
    for name, given, message in (
        ("set_timer", "10s", r"set_timer takes a datetime, such as context\.time \+ .*, not '10s'"),
        ("delete_timer", 5, "delete_timer takes a datetime, .*, not 5"),
        ("set_alarm", None, r"set_alarm takes a datetime, such as context\.now \+ .*, not None"),
    ):

        def wrong(
            key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext, name: str = name, given: Any = given
        ) -> Any:
            getattr(context, name)(given)

        with pytest.raises(tm.DataSetError, match=message):
            written(stream(table()).key_by("k").process(wrong, {"k": "int64"}))


def test_states_are_forgotten(tmp_path: Any) -> None:
    """With `ttl`, a key without rows for this long starts fresh."""

    def count(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.state = (context.state or 0) + len(rows)
        return {**key, "n": context.state}

    schema = {"k": "str", "n": "int64"}
    rows = among_others(zip([0, 30, 50, 400, 450, 800], ["a", "a", "b", "b", "a", "b"], strict=True))

    def counts(ttl: int | None) -> list[tuple[str, int]]:
        made = driven(engine(count, schema, ttl, tmp_path, saves=False), rows)
        return sorted((row["k"], row["n"]) for row in made if row["k"] != "other")

    assert counts(None) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]
    assert counts(200_000) == [("a", 1), ("a", 1), ("a", 2), ("b", 1), ("b", 1), ("b", 1)]
    # How far time has advanced when a row arrives depends on speed.
    source = tm.stream.from_table(rows, time="at", rows_per_batch=1, rows_per_s=1000).key_by("k")
    seen = written(source.process(count, schema, ttl="200ms"))
    assert {row["k"] for row in seen} == {"a", "b", "other"}


def test_a_key_is_not_forgotten_too_early(tmp_path: Any) -> None:
    """The idle time was counted from the time before a row, which may be long ago: after a pause, its key was forgotten
    at once.
    """

    def count(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.state = (context.state or 0) + len(rows)
        return {**key, "at": rows[-1]["at"], "n": context.state}

    schema = {"k": "str", "at": "timestamp[us]", "n": "int64"}
    times, keys = [0, 1000, 1005, 1014, 1025, 1026], "xaaaxa"
    rows = pa.table({"k": list(keys), "at": pa.array(times, pa.timestamp("s")).cast(pa.timestamp("us"))})

    def processor(folder: str) -> NativeKeyedEngine:
        return engine(count, schema, 10_000_000, tmp_path)

    expected = [1, 1, 2, 3, 1, 1]
    assert [row["n"] for row in driven(processor("one"), rows)] == expected
    # The same across checkpoints, and not earlier if everything is spilled, each time between a row and the time after
    # it.
    for spills in (True, False):
        one, made, now = processor("two"), Rows(), -(2**63)
        for row in rows.to_pylist():
            made += call(one, row["k"], {name: [value] for name, value in row.items()})
            if spills:
                one.spill(len(one.entries()))
            else:
                before, one = one, processor("three")
                for bucket, _, saved in before.snapshot(True):
                    one.restore(now, bucket, [saved] if saved else [])
            now = micros(row["at"])
            one.time(now)
        counts = [row["n"] for row in made]
        assert counts[:4] == expected[:4] and (spills or counts == expected)
        one.time(1_100_000_000)
        one.time(1_200_000_000)
        assert not one.entries() and not one.stored()


def test_rows_that_come_together_are_given_together(tmp_path: Any) -> None:
    """The function itself must handle pauses between rows of one batch: a `ttl` uses the stream's time, as documented."""
    rows = pa.table({"k": [*"aba"], "at": pa.array([0, 50, 100], pa.timestamp("s")), "x": [1, 1, 1]})

    def count(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.state = (context.state or 0) + len(rows)
        return {**key, "n": context.state}

    schema = {"k": "str", "n": "int64"}
    at_once = written(stream(rows).key_by("k").process(count, schema, ttl="10s"))
    alone = driven(engine(count, schema, 10_000_000, tmp_path, saves=False), rows)
    assert sorted(row["n"] for row in at_once if row["k"] == "a") == [2]
    assert [row["n"] for row in alone if row["k"] == "a"] == [1, 1]


def remember(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Rows:
    """Return the number of tenths of a second seen in the last fifth, and of rows in the last twentieth."""
    tenths, times = context.map_state("tenths", ttl="200ms"), context.list_state("times", ttl=SECOND / 20)
    for row in rows:
        tenths[(row["at"] - START) // (SECOND / 10)] = True
        times.append(row["at"])
    return [{**key, "at": row["at"], "tenths": len(tenths), "times": len(times)} for row in rows]


REMEMBERED = {"k": "str", "at": "timestamp[us]", "tenths": "int64", "times": "int64"}


def remembered(rows: pa.Table) -> Rows:
    """Return the expected results of `remember`, row by row, if time advances after each."""
    made: Rows = []
    kept: dict[str, tuple[dict[int, datetime], list[datetime]]] = {}
    now = datetime.max
    for row in rows.to_pylist():
        tenths, times = kept.setdefault(row["k"], ({}, []))
        for name in [name for name, at in tenths.items() if at + SECOND / 5 <= now < datetime.max]:
            del tenths[name]
        times[:] = [at for at in times if now == datetime.max or at + SECOND / 20 > now]
        # However long the pause before it was, an item counts from its own time.
        tenths[(row["at"] - START) // (SECOND / 10)] = row["at"]
        times.append(row["at"])
        made.append({"k": row["k"], "at": row["at"], "tenths": len(tenths), "times": len(times)})
        now = row["at"]
    return made


def test_items_are_forgotten(tmp_path: Any) -> None:
    """Each when it was put this long ago, whatever happens to the others; across snapshots, on disk, and without
    another row.
    """
    dice = random.Random(3)
    # All at different times, so that time advances after each.
    times = dice.sample([ms for ms in range(1100) if ms % 10 != 3], 150)
    rows = among_others((ms, dice.choice("ab")) for ms in times)
    expected = remembered(rows)
    assert {row["tenths"] for row in expected} >= {1, 2, 3} and {row["times"] for row in expected} > {1, 5}

    def processor() -> NativeKeyedEngine:
        return engine(remember, REMEMBERED, None, tmp_path)

    assert driven(processor(), rows) == expected
    # The same with a new processor after every few rows, from snapshots that may contain only changes, or from disk.
    one, made, parts = processor(), Rows(), list[bytes]()
    for at, row in enumerate(rows.to_pylist()):
        made += call(one, row["k"], {name: [value] for name, value in row.items()})
        now = micros(row["at"])
        one.time(now)
        if at % 3 == 0:
            for _, whole, part in one.snapshot(whole=at % 33 == 0):
                parts = [part] if whole else [*parts, part]
        if at % 6 == 0:
            one = processor()
            one.restore(now, 1, parts)
        elif at % 5 == 0:
            one.spill(len(one.entries()))
    assert made == expected
    # No more rows, but time advances: nothing is left, in memory or on disk.
    one.time(now + 100_000)
    assert one.entries()
    one.spill(1)
    one.time(now + 400_000)
    assert not one.entries() and not one.stored()


def told_again(parts: list[Part]) -> Part:
    """Return the result of parts that were saved one after the other."""
    made = None
    for part in parts:
        made = Part(*pickle.loads(pickle.dumps(tuple(part)))).after(made)
    assert made is not None
    return made


def test_a_list_of_which_all_is_forgotten_begins_anew() -> None:
    """Its names start from 0 again: mixed with saved ones, items would be restored in another order, or lost."""
    items, parts = ListState(), list[Part]()
    items._live(10)

    def put(now: int, *values: str) -> None:
        items._expire(now)
        items.extend(values)
        items._count_from(now)
        parts.append(items._part(whole=False))
        items._saved()

    put(0, "a")
    put(5, "b")
    # The saved state is now "b" alone, under a name that "y" has later.
    put(12)
    put(20, "x", "y")
    put(21, "z")
    assert list(items) == ["x", "y", "z"]
    found = told_again(parts)
    assert list(found.times.values()) == [20, 20, 21]
    again = ListState(found.values)
    assert list(again) == ["x", "y", "z"]
    again.append("w")
    assert list(again) == ["x", "y", "z", "w"]


def test_when_items_were_put_is_saved_when_it_becomes_known() -> None:
    """Otherwise, each failure would restart their time to live: those of a map that had none, and those put before the
    stream had a time.
    """
    items = MapState({"a": 1, math.nan: 2})
    parts = [items._part(whole=True)]
    items._saved()
    items._live(10)
    items._count_from(100)
    parts.append(items._part(whole=False))
    found = told_again(parts)
    assert found.ttl == 10 and list(found.times.values()) == [100, 100]

    early = MapState()
    early._live(10)
    early["a"] = 1
    parts = [early._part(whole=False)]
    early._saved()
    early._count_from(50)
    parts.append(early._part(whole=False))
    assert told_again(parts).times == {"a": 50}


def test_names_that_are_no_numbers_keep_their_time_on_disk(tmp_path: Any) -> None:
    """A pickled NaN is a different object: its item would live longer each time its key is loaded."""

    def put(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.map_state("m", ttl=timedelta(microseconds=1000))[math.nan] = rows[0]["x"]

    one = engine(put, {"k": "int64"}, None, tmp_path)
    one.time(100)
    assert not call(one, 1, {"x": [2]})
    one.time(200)
    one.time(900)
    one.spill(1)
    assert not one.entries()
    one.time(1199)
    assert not one.entries()
    one.time(1200)
    # It was loaded in order to be forgotten.
    assert not one.entries() and not one.stored()


def test_times_that_were_saved_are_not_copied_for_each_change() -> None:
    """Otherwise, a job that resumes copies all of them with each of some hundred parts; and the shared empty default
    must stay empty.
    """
    before = Part(False, True, {"a": 1}, [], 10, {"a": 5})
    found = Part(False, False, {"b": 2}, [], 10, {"b": 6}).after(before)
    assert found.times is before.times and found.times == {"a": 5, "b": 6}
    none = Part(False, True, {"a": 1}, [])
    assert Part(False, False, {"b": 2}, [], 10, {"b": 6}).after(none).times == {"b": 6}
    assert none.times == {} and none.times is Part._field_defaults["times"]


def test_when_items_were_put_takes_memory_too(tmp_path: Any) -> None:
    """A worker would exceed its budget if only the items of maps with a time to live were counted, not their times."""

    def held_bytes(ttl: str | None) -> int:
        def keep(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
            context.map_state("m", ttl=ttl).update(dict.fromkeys(range(10_000), 1.5))

        one = engine(keep, {"k": "int64"}, None, tmp_path)
        key = tm.from_dict({"k": [1]}).collect()._native
        one.time(100)
        one.rows(key, [1], [1], key)
        return one.held_bytes()

    assert held_bytes("1h") - held_bytes(None) > sys.getsizeof(dict.fromkeys(range(10_000), 1.5))


def test_items_are_forgotten_by_a_job_that_goes_on(tmp_path: Any) -> None:
    """Items put before the stop are forgotten, too, when their time has come, and no others."""
    numbers, times = list[int](), list[datetime]()
    # Items whose time is not known to have started, by key: the time of the call; and when it started at the latest.
    waiting, by = dict[int, dict[int, datetime]](), dict[int, datetime]()

    def keep(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        put, some = context.map_state("put"), context.map_state("some", ttl="1000s")
        if context.timers:
            return [{**key, "number": number, "at": at, "is_there": number in some} for number, at in put.items()]
        if context.time is not None:
            times.append(context.time)
            mine = waiting.setdefault(key["key"], {})
            for number in [number for number, called in mine.items() if called < context.time]:
                by[number] = context.time
                del mine[number]
            mine.update({row["number"]: context.time for row in rows})
        for row in rows:
            by.pop(row["number"], None)
            put[row["number"]] = some[row["number"]] = row["time"]
            numbers.append(row["number"])
        context.set_timer(START + timedelta(days=365 * 100))
        return None

    def kept(rows: int | None) -> tm.DataSet:
        source = tm.stream.from_generator(5000, rows=rows, keys=5, splits=1, step="1s")
        schema = {"key": "int64", "number": "int64", "at": "timestamp[us]", "is_there": "bool"}
        return source.key_by("key").process(keep, schema)

    def stop() -> bool:
        return bool(times) and max(times) - min(times) > 1500 * SECOND

    # It has no end, and runs for less than items live.
    assert written(kept(None), checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"), stop_when=stop) == []
    count = max(numbers) + 1 + 900
    seen = written(kept(count), checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"))
    assert len(seen) == count
    end = datetime(2026, 1, 1) + (count - 1) * SECOND
    # It counts from when time advances to it, so from its own time at the earliest.
    assert all(row["is_there"] or row["at"] + 1000 * SECOND <= end for row in seen)
    over = [row for row in seen if row["number"] in by and by[row["number"]] + 1000 * SECOND <= end]
    assert over and not any(row["is_there"] for row in over)
    assert any(row["is_there"] for row in seen)


def test_items_are_not_forgotten_too_early(tmp_path: Any) -> None:
    """They counted from the time before the row that put them, which may be long ago: after a pause, they were
    forgotten at once.
    """

    def keep(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        seen, last = context.list_state("seen", ttl="10s"), context.map_state("last", ttl="10s")
        total = context.aggregate_state("total", "sum", ttl="10s")
        for row in rows:
            seen.append(row["at"])
            last[row["at"]] = True
            total.add(1)
        return {**key, "seen": len(seen), "last": len(last), "total": total.get()}

    def processor(folder: str) -> NativeKeyedEngine:
        schema = {"k": "str", "seen": "int64", "last": "int64", "total": "int64"}
        return engine(keep, schema, None, tmp_path)

    rows = pa.table({"k": [*"xaaaxa"], "at": pa.array([0, 1000, 1005, 1014, 1025, 1026], pa.timestamp("s"))})
    one = processor("one")
    seen = [(row["seen"], row["last"], row["total"]) for row in driven(one, rows)]
    assert seen == [(1, 1, 1), (1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1), (1, 1, 1)]
    # A checkpoint between a row and the time after it: the resumed job counts from that.
    one = processor("two")
    one.time(0)
    key = tm.from_dict({"k": ["a"]}).collect()._native
    one.rows(key, [1], [1], tm.from_dict({"at": [1]}).collect()._native)
    for _ in range(2):
        before, one = one, processor("three")
        one.restore(0, 1, [part for _, _, part in before.snapshot(whole=True)])
        # Times are repeated, or even earlier ones come first, because splits are read again.
        one.time(0)
        one.time(-5)
    one.time(1_000_000_000)
    assert len(one.entries()) == 1
    parts = [part for _, _, part in one.snapshot(whole=False)]
    assert parts
    one.time(1_009_999_999)
    assert len(one.entries()) == 1
    one.time(1_010_000_000)
    assert not one.entries()


def test_a_time_to_live_without_time_is_told_of() -> None:
    """It forgets nothing before the end, which a plan says."""
    rows = tm.stream.from_table(pa.table({"k": [1]})).key_by("k")

    def nothing(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        return None

    assert "table: it has no time=" in rows.process(nothing, {"k": "int64"}, ttl="1h").explain()
    assert "it has no time=" not in rows.process(nothing, {"k": "int64"}).explain()


@pytest.mark.parametrize("ttl", [None, "1s", "1h"])
def test_what_a_timer_puts_does_not_keep_the_key(tmp_path: Any, ttl: str | None) -> None:
    """A key's time to live counts from its rows, whatever else it does meanwhile."""
    calls = list[datetime]()

    def again(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.list_state("l", ttl=ttl).append(1)
        assert context.time is not None
        calls.append(context.time)
        context.set_timer(context.time + 5 * SECOND)

    one = engine(again, {"k": "str"}, 12_000_000, tmp_path)
    one.time(0)
    key = tm.from_dict({"k": ["a"]}).collect()._native
    one.rows(key, [1], [1], key)
    for second in range(1, 100):
        one.time(second * 1_000_000)
    assert [(at - datetime(1970, 1, 1)).seconds for at in calls] == [0, 5, 10]
    assert not one.entries()


def test_keys_of_all_kinds() -> None:
    """Nulls form a key, NaNs form one, and several columns do."""
    rows = pa.table(
        {"a": [1.5, math.nan, None, math.nan, None, 1.5], "b": ["x", "y", None, "y", None, "z"], "x": range(6)}
    )

    def count(_: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.state = (context.state or 0) + len(rows)
        return {"b": rows[0]["b"], "n": context.state}

    source = tm.stream.from_table(rows, rows_per_batch=1)
    seen = written(source.key_by("a", "b").process(count, {"b": "str", "n": "int64"}))
    # From the last call for a key, because rows that arrive together are counted together.
    last: dict[str, int] = {}
    for row in seen:
        last[str(row["b"])] = max(row["n"], last.get(str(row["b"]), 0))
    assert last == {"None": 2, "x": 1, "y": 2, "z": 1}


def test_lists_and_maps(tmp_path: Any) -> None:
    """They work like Python's, each key has its own, and a key whose items are all removed is gone."""

    def count(x: int, times: Any, last: Any) -> Rows:
        times[x % 3] = times.get(x % 3, 0) + 1
        last.append(x)
        if len(last) < 10:
            return []
        made = {"zeros": times.pop(0, 0), "has_two": int(2 in times), "sum": sum(last), "kinds": len(times)}
        last.clear()
        return [made]

    def counts(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        times, last = context.map_state("times"), context.list_state("last")
        return [{**key, **made} for row in rows for made in count(row["number"], times, last)]

    # All rows in one order.
    source = tm.stream.from_generator(rows=2000, keys=13, splits=1)
    schema = dict.fromkeys(("key", "zeros", "has_two", "sum", "kinds"), "int64")
    seen = written(source.key_by("key").process(counts, schema))
    model: dict[int, tuple[dict[int, int], list[int], Rows]] = {}
    for row in written(source):
        times, last, made = model.setdefault(row["key"], ({}, [], []))
        made += [{"key": row["key"], **one} for one in count(row["number"], times, last)]
    assert len(model) == 13 and len(seen) > 150
    for key, (_, _, made) in model.items():
        assert [row for row in seen if row["key"] == key] == made

    def empty(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        times, last = context.map_state("times"), context.list_state("last")
        for row in rows:
            if row["x"] > 0:
                times[row["x"]] = last.append(row["x"])
            else:
                del times[-row["x"]]
                last.clear()

    one = engine(empty, {"k": "int64"}, None, tmp_path, saves=False)
    key = tm.from_dict({"k": [1]}).collect()._native
    for x in (3, -3):
        one.rows(key, [5], [1], tm.from_dict({"k": [1], "x": [x]}).collect()._native)
        assert list(states(one)) == ([1] if x > 0 else [])

    def both(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.map_state("items")["a"] = 1
        context.list_state("items")

    with pytest.raises(tm.DataSetError, match="'items' is a MapState of the key, not a ListState"):
        written(stream(table(100)).key_by("k").process(both, SCHEMA))

    def never(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.map_state("items", ttl="0s")

    with pytest.raises(tm.DataSetError, match="the ttl of 'items', '0s', must be greater than zero"):
        written(stream(table(100)).key_by("k").process(never, SCHEMA))


def test_aggregates(tmp_path: Any) -> None:
    """Each covers all values of its key so far, whatever was saved, spilled and resumed in between, and none of another
    key.
    """

    def add(spread: list[int], value: int) -> list[int]:
        spread.append(value)
        return spread

    def fold(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        count, total = context.aggregate_state("count", "count"), context.aggregate_state("total", "sum")
        least, most = context.aggregate_state("least", "min"), context.aggregate_state("most", "max")
        product = context.aggregate_state("product", lambda so_far, x: so_far * x % 1009)
        mean = context.aggregate_state("mean", lambda pair, x: (pair[0] + 1, pair[1] + x), initial=(0, 0))
        # Modified in place, with the same `initial` for all keys.
        every = context.aggregate_state("every", add, initial=[])
        for row in rows:
            for one in (count, total, least, most):
                one.add(row["x"])
                # These add no value.
                one.add(None)
            for one in (product, mean, every):
                one.add(row["x"])
        states = (count, total, least, most, product, mean, every)
        made = {**key, "all": repr([state.get() for state in states])}
        if rows and rows[-1]["x"] % 50 == 0:
            for state in states:
                state.clear()
            assert [state.get() for state in states] == [0, None, None, None, None, (0, 0), []]
            assert not any(states)
        return made

    def processor() -> NativeKeyedEngine:
        return engine(fold, {"k": "int64", "all": "str"}, None, tmp_path)

    dice = random.Random(4)
    one, parts, of_key = processor(), list[bytes](), dict[int, list[int]]()
    spilled = 0
    for turn in range(400):
        k, x = dice.randrange(5), dice.randrange(-100, 100)
        key = tm.from_dict({"k": [k]}).collect()._native
        made = one.rows(key, [1], [1], tm.from_dict({"k": [k], "x": [x]}).collect()._native)
        values = of_key.setdefault(k, [])
        values.append(x)
        product = values[0]
        for value in values[1:]:
            product = product * value % 1009
        pair = (len(values), sum(values))
        expected = [*pair, min(values), max(values), product, pair, values]
        assert tm.Table(made[0]).to_pylist() == [{"k": k, "all": repr(expected)}]
        if x % 50 == 0:
            values.clear()
        if turn % 4 == 0:
            for _, whole, part in one.snapshot(whole=turn % 40 == 0):
                parts = [part] if whole else [*parts, part]
        if turn % 12 == 0:
            one = processor()
            one.restore(0, 1, parts)
        elif turn % 7 == 0:
            one.spill(len(one.entries()))
            spilled += 1
    assert spilled > 10
    # In-place changes outside of `add` are saved, too.
    parts = [part for _, _, part in one.snapshot(whole=True)]

    def get(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.aggregate_state("every", add, initial=[]).get().append("got")

    changing = engine(get, {"k": "int64"}, None, tmp_path)
    changing.restore(0, 1, parts)
    k = next(k for k, values in of_key.items() if values)
    key = tm.from_dict({"k": [k]}).collect()._native
    changing.rows(key, [1], [1], key)
    parts += [part for _, _, part in changing.snapshot(whole=False)]
    again = processor()
    again.restore(0, 1, parts)
    assert states(again)[k].items["every"]._values == {0: [*of_key[k], "got"]}


def test_aggregates_are_forgotten(tmp_path: Any) -> None:
    """With `ttl`, when nothing has been added for this long; also in resumed jobs, and without another row."""

    def fold(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        total = context.aggregate_state("total", "sum", ttl="10s")
        for row in rows:
            total.add(row["x"])
        return {**key, "total": total.get()}

    def processor() -> NativeKeyedEngine:
        return engine(fold, {"k": "int64", "total": "int64"}, None, tmp_path)

    def add(of: NativeKeyedEngine, x: int) -> int:
        key = tm.from_dict({"k": [1]}).collect()._native
        made = of.rows(key, [1], [1], tm.from_dict({"k": [1], "x": [x]}).collect()._native)
        return int(tm.Table(made[0]).to_pylist()[0]["total"])

    one = processor()
    one.time(0)
    assert add(one, 1) == 1
    one.time(9_000_000)
    assert add(one, 2) == 3
    one.time(9_000_001)
    parts = [part for _, _, part in one.snapshot(whole=True)]
    one.time(18_000_000)
    assert add(one, 3) == 6
    one.time(18_000_001)
    one.time(28_000_000)
    assert one.entries()
    one.time(28_000_001)
    assert not one.entries()
    assert add(one, 4) == 4
    again = processor()
    again.restore(9_000_001, 1, parts)
    again.time(19_000_000)
    assert again.entries()
    again.time(19_000_001)
    assert not again.entries()


def test_aggregates_that_cannot_be() -> None:
    """Errors name the aggregate, and the existing ones."""

    def refused(said: str, change: Any) -> None:
        def process(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> None:
            change(context)

        with pytest.raises(tm.DataSetError, match=said):
            written(stream(table(10)).key_by("k").process(process, SCHEMA))

    names = "'count', 'sum', 'min', 'max' or a function of an accumulator and a value"
    refused(f"the aggregate 'a' is {names}, not 'mean'", lambda c: c.aggregate_state("a", "mean"))
    refused(
        "'a' is a ListState of the key, not a AggregateState",
        lambda c: (c.list_state("a"), c.aggregate_state("a", "sum")),
    )
    refused(
        "'a' is a AggregateState of the key, not a MapState",
        lambda c: (c.aggregate_state("a", "sum"), c.map_state("a")),
    )
    refused("the ttl of 'a', '0s', must be greater than zero", lambda c: c.aggregate_state("a", "sum", ttl="0s"))
    refused("division", lambda c: [c.aggregate_state("a", lambda x, y: x / y).add(n) for n in (1, 0)])


def test_what_is_saved_of_a_large_map(tmp_path: Any) -> None:
    """A checkpoint contains what was put, modified in place or removed since the last one, not everything."""

    def keep(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        items = context.map_state("items")
        for row in rows:
            if row["x"] >= 0:
                items[row["x"]] = [row["x"]]
            else:
                items[0].append(row["x"])
                del items[1]

    def rows(of: NativeKeyedEngine, numbers: list[int]) -> None:
        keys = tm.from_dict({"k": [1]}).collect()._native
        of.rows(keys, [5], [len(numbers)], tm.from_dict({"k": [1] * len(numbers), "x": numbers}).collect()._native)

    def processor() -> NativeKeyedEngine:
        return engine(keep, {"k": "int64"}, None, tmp_path)

    first = processor()
    rows(first, list(range(10_000)))
    parts = [part for _, _, part in first.snapshot(whole=True)]
    rows(first, [-1, 20_000])
    parts += [part for _, _, part in first.snapshot(whole=False)]
    assert len(parts) == 2 and len(parts[1]) * 100 < len(parts[0])
    again = processor()
    again.restore(0, 5, parts)
    (entry,) = states(again).values()
    expected = {number: [number] for number in [*range(10_000), 20_000] if number != 1} | {0: [0, -1]}
    assert dict(entry.items["items"]._values) == expected


def test_a_map_with_nan_for_a_name(tmp_path: Any) -> None:
    """It is one name, in a tuple, too: removed items are not restored from a checkpoint or disk, and items put again
    exist once.
    """

    def change(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        items = context.map_state("items")
        for row in rows:
            # Each is another object.
            name, pair = float("nan"), ("a", float("nan"))
            if row["x"] > 0:
                items[name] = items.get(name, 0) + row["x"]
                items[pair] = row["x"]
            elif name in items:
                assert pair in items
                del items[name], items[pair]

    def rows(of: NativeKeyedEngine, x: int) -> None:
        of.rows(key, [5], [1], tm.from_dict({"k": [1], "x": [x]}).collect()._native)

    def processor() -> NativeKeyedEngine:
        return engine(change, {"k": "int64"}, None, tmp_path)

    def items(of: NativeKeyedEngine) -> list[Any]:
        return [list(state.items["items"]._values.values()) for state in states(of).values()]

    def restored() -> NativeKeyedEngine:
        again = processor()
        again.restore(0, 5, parts)
        return again

    key = tm.from_dict({"k": [1]}).collect()._native
    one, parts = processor(), []
    for x, expected in [(1, [1, 1]), (2, [3, 2]), (3, [6, 3]), (-1, [])]:
        rows(one, x)
        parts += [part for _, _, part in one.snapshot(whole=False)]
        again = restored()
        assert items(one) == items(again) == ([expected] if expected else [])
        if expected:
            rows(again, 10)
            assert items(again) == [[expected[0] + 10, 10]]
        one = restored()
    # To disk, and back.
    rows(one, 7)
    one.spill(1)
    rows(one, 10)
    assert items(one) == [[17, 10]]


def test_small_changes_of_a_large_state(tmp_path: Any) -> None:
    """Checkpoints do not come to list thousands of parts: a bucket that changes in each is saved in full now and then,
    others are not saved.
    """

    def put(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        items = context.map_state("items")
        for row in rows:
            items[row["x"] % 1000] = row["x"]

    def rows(of: NativeKeyedEngine, key: int, numbers: range) -> None:
        keys = tm.from_dict({"k": [key]}).collect()._native
        all_rows = tm.from_dict({"k": [key] * len(numbers), "x": list(numbers)}).collect()
        of.rows(keys, [key], [len(numbers)], all_rows._native)

    def processor() -> NativeKeyedEngine:
        return engine(put, {"k": "int64"}, None, tmp_path)

    def take(of: NativeKeyedEngine) -> set[int]:
        """Take a snapshot; return which buckets were saved in full."""
        wholes = set()
        for bucket, whole, part in of.snapshot(whole=False):
            saved[bucket] = [part] if whole else [*saved.get(bucket, []), part]
            wholes |= {bucket} if whole else set()
        return wholes

    def restored() -> NativeKeyedEngine:
        again = processor()
        for bucket, parts in saved.items():
            again.restore(0, bucket, parts)
        return again

    def items(of: NativeKeyedEngine) -> dict[Any, Any]:
        return {key: dict(state.items["items"]._values) for key, state in states(of).items()}

    first, saved, wholes, longest = processor(), dict[int, list[bytes]](), [], 0
    rows(first, 1, range(1000))
    rows(first, 2, range(1000))
    for number in range(2000):
        rows(first, 1, range(1000 + number, 1001 + number))
        if number % 100 == 0:
            rows(first, 2, range(number, number + 1))
        wholes.append(take(first))
        longest = max(longest, *map(len, saved.values()))
    assert longest <= 1 + CHANGES_MAX < 500
    assert 0 < sum(1 in whole for whole in wholes) < 10 and not any(2 in whole for whole in wholes)
    again = restored()
    assert items(again) == items(first)
    # A job that resumes from many parts, perhaps of another version of the program, does not add more.
    saved[2] += [b""] * CHANGES_MAX
    again = restored()
    rows(again, 1, range(1))
    assert 2 in take(again) and len(saved[2]) == 1
    assert items(restored()) == items(again)


@pytest.mark.parametrize("ttl", [None, 5_000_000])
@pytest.mark.parametrize("step_ms", [0, 1])
def test_what_is_deleted_takes_no_memory(tmp_path: Any, step_ms: int, ttl: int | None) -> None:
    """A function that postpones its alarm and its timer at each call has one of each, not all that it has ever set."""
    clock = 0

    def put_off(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        if context.timers or context.alarms:
            context.state = None
            return [{**key, "timers": len(context.timers), "alarms": len(context.alarms)}]
        if context.state is not None:
            context.delete_timer(context.state)
            context.delete_alarm(context.state)
        context.state = context.now + 3600 * SECOND
        context.set_timer(context.state)
        context.set_alarm(context.state)
        return None

    schema = {"k": "int64", "timers": "int64", "alarms": "int64"}
    one = engine(put_off, schema, ttl, tmp_path, clock=lambda: clock)
    one.time(0)
    keys, ends = 3, [1, 2, 3]
    names = tm.from_dict({"k": list(range(keys))}).collect()._native
    for _ in range(5000):
        assert one.rows(names, [1] * keys, ends, names) == []
        clock += 1000 * step_ms
    assert one.held_bytes() < 1_000_000
    one.time(1)
    one.time(3_600_000_000 - 1)
    assert len(one.entries()) == (keys if ttl is None else 0)
    if ttl is None:
        made, _ = one.time(3_600_000_000 + clock)
        assert [tuple(row.values()) for native in made for row in tm.Table(native).to_pylist()] == [
            (key, 1, 0) for key in range(keys)
        ]


def test_a_timer_when_a_key_is_forgotten(tmp_path: Any) -> None:
    """Both are due at the same time, which is looked up once after deleted timers were removed: both happen."""

    def again(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.state = True
        for _ in range(2000 if rows else 0):
            context.delete_timer(START + 7 * SECOND)
            context.set_timer(START + 7 * SECOND)
        return [{**key, "n": 1} for _ in context.timers]

    one = engine(again, {"k": "int64", "n": "int64"}, 7_000_000, tmp_path)
    one.time(0)
    key = tm.from_dict({"k": [1]}).collect()._native
    one.rows(key, [1], [1], key)
    assert one.due()[0] == 1
    one.time(1)
    made, _ = one.time(7_000_000)
    assert len(made) == 1
    # Its rows count from a microsecond later.
    one.time(7_000_001)
    assert not one.entries()


def test_alarms_go_off_by_the_clock(tmp_path: Any) -> None:
    """Without a row or the stream's time; one that is set before the job stops fires when it resumes."""

    def wait(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        if context.alarms:
            assert not rows and not context.timers and context.alarms[0] <= context.now
            assert context.time is None or context.time.year < 9999, "at the end they all do"
            return [{**key, "at": at} for at in context.alarms]
        if context.state is None:
            context.state = context.now
            for ms in (30, 31, 500):
                context.set_alarm(context.state + ms * SECOND / 1000)
            context.delete_alarm(context.state + 31 * SECOND / 1000)
        return None

    # It has no end.
    source = tm.stream.from_generator(10, keys=1).key_by("key")
    seen: Rows = []
    waiting = source.process(wait, {"key": "int64", "at": "timestamp[us]"})
    written(waiting, into=seen, checkpoint=tmp_path / "c", stop_when=lambda: len(seen) >= 1)
    written(waiting, into=seen, checkpoint=tmp_path / "c", stop_when=lambda: len(seen) >= 2)
    assert [(row["at"] - seen[0]["at"]) / SECOND for row in seen] == [0, pytest.approx(0.47)]


@pytest.mark.parametrize("where", ["in memory", "on disk", "in a checkpoint"])
def test_alarms_when_the_clock_is_set(tmp_path: Any, where: str) -> None:
    """An alarm waits for its time, however the clock changes: set back, it waits longer; set forward, it fires, once."""
    clock, hour = 10**15, 3600 * 10**6

    def wait(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        if context.alarms:
            return [{**key, "at": at} for at in context.alarms]
        context.set_alarm(context.now + 10 * SECOND)
        return None

    def processor() -> NativeKeyedEngine:
        schema = {"k": "int64", "at": "timestamp[us]"}
        return engine(wait, schema, None, tmp_path, clock=lambda: clock)

    def came(of: NativeKeyedEngine, key: int) -> None:
        names = tm.from_dict({"k": [key]}).collect()._native
        assert of.rows(names, [key], [1], names) == []

    def rung(of: NativeKeyedEngine) -> list[tuple[int, int]]:
        """Return the keys whose alarms have fired, and how many seconds ago they were due."""
        made, more = of.ring()
        assert not more or of.ring() == ([], False)
        rows = [row for native in made for row in tm.Table(native).to_pylist()]
        return [(row["k"], (clock - round((row["at"] - START) / SECOND * 10**6)) // 10**6) for row in rows]

    def moved(of: NativeKeyedEngine) -> NativeKeyedEngine:
        """Return the same engine, after its state has moved elsewhere."""
        if where == "on disk":
            of.spill(len(of.entries()))
        if where != "in a checkpoint":
            return of
        again = processor()
        for bucket, _, part in of.snapshot(whole=True):
            again.restore(0, bucket, [part] if part else [])
        return again

    one = processor()
    came(one, 1)
    one = moved(one)
    clock -= hour
    assert rung(one) == []
    came(one, 2)
    assert one.next_alarm() == clock + 10 * 10**6
    one = moved(one)
    clock += 9 * 10**6
    assert rung(one) == []
    clock += 10**6
    assert rung(one) == [(2, 0)]
    assert one.next_alarm() == clock + hour
    one = moved(one)
    clock += 2 * hour
    assert rung(one) == [(1, 3600)]
    one = moved(one)
    clock -= 3 * hour
    assert (rung(one), one.next_alarm()) == ([], None)
    # What is set now uses the current clock.
    came(one, 1)
    assert one.next_alarm() == clock + 10 * 10**6
    clock += 10 * 10**6
    assert rung(one) == [(1, 0)]


def test_alarms_at_the_end() -> None:
    """All set alarms fire, however far away they are."""

    def wait(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.set_alarm(context.now + 1000 * SECOND)
        return [{**key, "n": len(context.alarms)}] if context.alarms else None

    seen = written(stream(table(13), rows_per_batch=13).key_by("k").process(wait, {"k": "int64", "n": "int64"}))
    assert sorted(row["k"] for row in seen) == list(range(13)) and all(row["n"] == 1 for row in seen)


def test_what_cannot_be(tmp_path: Any) -> None:
    """Errors name the function, the key and the remedy."""

    def fails(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        raise ValueError("seven")

    def lambdas(key: dict[str, Any], rows: Rows, context: tm.stream.KeyContext) -> Any:
        context.state = lambda: None

    rows = stream(table(100))
    with pytest.raises(tm.DataSetError, match=r"fails failed on the key \{'k': \d+\}: seven"):
        written(rows.key_by("k").process(fails, SCHEMA))
    with pytest.raises(tm.DataSetError, match="lambdas: a state cannot be pickled"):
        slow = stream(table(1000), rows_per_s=1000)
        written(
            slow.key_by("k").process(lambdas, SCHEMA), checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="50ms")
        )
    with pytest.raises(TypeError, match="process takes a function"):
        rows.key_by("k").process(5, SCHEMA)  # type: ignore[arg-type]
    for schema in (None, 5, ["k"]):
        with pytest.raises(tm.DataSetError, match="schema= must be types by column"):
            rows.key_by("k").process(running, schema)
    with pytest.raises(tm.DataSetError, match="schema= must have strings for names and types"):
        rows.key_by("k").process(running, {"k": int})
    with pytest.raises(tm.DataSetError, match="a schema needs at least one column"):
        rows.key_by("k").process(running, {})
    with pytest.raises(tm.DataSetError, match="of a table, use apply"):
        tm.from_arrow(table(10)).key_by("k").process(running, SCHEMA)
    with pytest.raises(tm.DataSetError, match='no column "q"'):
        rows.key_by("q").process(running, SCHEMA)
    with pytest.raises(tm.DataSetError, match="a row has the columns"):
        written(rows.key_by("k").process(running, {"k": "int64"}))
    with pytest.raises(tm.DataSetError, match="a stream has no first rows to find out from; give schema="):
        rows.map(lambda row: row)
