"""Count windows: a number of rows of each key."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import tidemill as tm

Row = dict[str, Any]


def written(stream: tm.DataSet, **options: Any) -> list[Row]:
    seen: list[Row] = []
    stream.write_stream(lambda table: seen.extend(table.to_pylist()), **options)
    return seen


@pytest.mark.parametrize(("size", "slide"), [(1, 1), (7, 7), (10, 4), (6, 3), (5, 1)])
@pytest.mark.parametrize("batch", [1, 50, 5000])
def test_each_key_has_its_windows(size: int, slide: int, batch: int) -> None:
    """Each row of a key is in the expected windows, once; incomplete windows give no result."""
    dice = random.Random(size * slide)
    count = 3000
    users = [dice.choice("abcdefgh") * dice.choice([1, 1, 1, 2]) for _ in range(count)]
    table = tm.from_dict({"user": users, "n": list(range(count))}).collect()
    stream = tm.stream.from_table(table, rows_per_batch=batch)
    window = tm.stream.window(tm.stream.count_window(size, slide))
    n = tm.col("n")
    seen = written(stream.group_by("user", window).agg(rows=tm.count(), sum=n.sum(), kinds=n.n_unique()))
    windows: dict[str, list[Row]] = defaultdict(list)
    for row in seen:
        windows[row["user"]].append(row)
    for user, rows in Counter(users).items():
        found = sorted(windows[user], key=lambda row: row["window_start"])
        starts = list(range(0, rows - size + 1, slide))
        assert [(row["window_start"], row["window_end"]) for row in found] == [(at, at + size) for at in starts]
        assert all(row["rows"] == row["kinds"] == size for row in found)
    if size == slide:
        # Each row once, except for those that are in no full window.
        total = sum(row["sum"] for row in seen)
        assert total <= sum(range(count))
        if size == 1:
            assert total == sum(range(count))


def test_rows_come_in_their_order() -> None:
    """From a source with one split, rows of a key are counted in the order of arrival."""
    table = tm.from_dict({"user": ["a", "b"] * 50, "n": list(range(100))}).collect()
    stream = tm.stream.from_table(table, rows_per_batch=100)
    window = tm.stream.window(tm.stream.count_window(10))
    seen = written(stream.group_by("user", window).agg(least=tm.col("n").min(), most=tm.col("n").max()))
    a = sorted((row["window_start"], row["least"], row["most"]) for row in seen if row["user"] == "a")
    assert a == [(start, 2 * start, 2 * start + 18) for start in range(0, 50, 10)]


def test_without_keys() -> None:
    """All rows of all workers are counted together."""
    table = tm.from_dict({"n": list(range(1050))}).collect()
    stream = tm.stream.from_table(table, rows_per_batch=9)
    seen = written(
        stream.group_by(tm.stream.window(tm.stream.count_window(100))).agg(rows=tm.count(), least=tm.col("n").min())
    )
    assert sorted(row["window_start"] for row in seen) == list(range(0, 1000, 100))
    assert all(row["rows"] == 100 for row in seen)


def test_many_keys_and_long_windows() -> None:
    """More keys than are processed without merging their state."""
    count = 40_000
    table = tm.from_dict({"n": list(range(count))}).select(key=tm.col("n") % 3000, n=tm.col("n")).collect()
    stream = tm.stream.from_table(table, rows_per_batch=500)
    seen = written(
        stream.group_by("key", tm.stream.window(tm.stream.count_window(13))).agg(rows=tm.count(), n=tm.col("n").sum())
    )
    # 40,000 rows of 3,000 keys: 13 of each, and a 14th for some.
    assert Counter(row["rows"] for row in seen) == {13: 3000}
    assert len({row["key"] for row in seen}) == 3000


def seconds(rows: int, keys: int) -> tm.DataSet:
    """Return rows of some keys, a second apart, in one order."""
    return tm.stream.from_generator(rows=rows, keys=keys, splits=1, step="1s", seed=3).select("key", "number", "time")


def windows_of(rows: list[Row], size: int, slide: int, ttl: int) -> list[tuple[int, int, int]]:
    """Return the key, the start and the sum of each window."""
    found, since, last = list[tuple[int, int, int]](), defaultdict[int, list[int]](list), dict[int, int]()
    for row in rows:
        key, number = row["key"], row["number"]
        if number >= last.get(key, number) + ttl:
            since[key].clear()
        last[key] = number
        since[key].append(number)
        if (count := len(since[key])) >= size and (count - size) % slide == 0:
            found.append((key, count - size, sum(since[key][-size:])))
    return sorted(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("size", "slide", "ttl"), [(5, 2, 40), (1, 1, 1), (3, 3, 12), (4, 1, 200)])
def test_keys_that_are_remembered_for_a_time(size: int, slide: int, ttl: int, tmp_path: Path) -> None:
    """A row that is at least the ttl later than the last one of its key begins a new window, and no other does, however
    rows are batched, and across a stop.
    """
    source = seconds(40_000, 20)
    rows = written(source)
    expected = windows_of(rows, size, slide, ttl)
    assert len(expected) > 500

    def sums(stream: tm.DataSet) -> tm.DataSet:
        window = tm.stream.window(tm.stream.count_window(size, slide, ttl=ttl), on="time")
        return stream.group_by("key", window).agg(sum=tm.col("number").sum())

    def told(seen: list[Row]) -> list[tuple[int, int, int]]:
        assert all(row["window_end"] == row["window_start"] + size for row in seen)
        return sorted((row["key"], row["window_start"], row["sum"]) for row in seen)

    assert told(written(sums(source))) == expected
    lines = [json.dumps({**row, "time": str(row["time"])}) + "\n" for row in rows]
    file, seen = tmp_path / "rows.json", list[Row]()
    schema = {"key": "int64", "number": "int64", "time": "timestamp[us]"}
    # It stops somewhere in the first part; the rest is written afterwards.
    for part, at_end in ((lines[:30_000], False), (lines[30_000:], True)):
        with file.open("a") as more:
            more.writelines(part)
        grown = sums(tm.stream.from_files(file, schema, time="time", stop_at_end=at_end))
        stop = None if at_end else lambda: len(seen) >= 300
        grown.write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"),
            stop_when=stop,
        )
        assert at_end or len(seen) < len(expected)
    assert told(seen) == expected


def test_keys_come_and_go() -> None:
    """More keys than may be stored at a time, each with a few rows: state of expired keys is removed."""
    count = 200_000
    source = tm.stream.from_generator(rows=count, splits=1, step="1s").select(
        "number", "time", key=tm.col("number") - tm.col("number") % 4
    )
    window = tm.stream.window(tm.stream.count_window(3, ttl="1h"), on="time")
    seen = written(source.group_by("key", window).agg(least=tm.col("number").min()))
    assert len(seen) == count // 4 and all(row["least"] == row["key"] for row in seen)


def test_rows_without_a_time_and_windows_of_rows() -> None:
    """They are dropped and counted if keys have a ttl; otherwise times are not checked."""
    table = tm.from_dict({"s": [None, 0, None, 5, 20, 21]}).select("s", at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at", rows_per_batch=100)
    with pytest.warns(tm.stream.NoTimeWarning, match="2 rows had no time and were left out"):
        seen = written(
            stream.group_by(tm.stream.window(tm.stream.count_window(2, ttl="10s"), on="at")).agg(s=tm.col("s").sum())
        )
    assert [(row["window_start"], row["s"]) for row in seen] == [(0, 5), (0, 41)]
    seen = written(stream.group_by(tm.stream.window(tm.stream.count_window(2))).agg(s=tm.col("s").sum()))
    assert [row["window_start"] for row in seen] == [0, 2, 4]


def test_keys_for_a_time_are_another_state(tmp_path: Path) -> None:
    """State without a ttl contains no times, so a job with a ttl cannot resume from it."""
    # Without an end, so that it does not end before it is asked to stop.
    stream = tm.stream.from_generator(1000, keys=7, splits=1, step="1s")
    forever = tm.stream.window(tm.stream.count_window(3))
    written(stream.group_by("key", forever).agg(n=tm.count()), checkpoint=tmp_path / "c", stop_when=lambda: True)
    for_a_time = tm.stream.window(tm.stream.count_window(3, ttl="1h"), on="time")
    with pytest.raises(
        tm.DataSetError, match=r"it held windows of 3 rows every 3 rows, but now holds .* of keys for a"
    ):
        written(stream.group_by("key", for_a_time).agg(n=tm.count()), checkpoint=tmp_path / "c")


def test_what_cannot_be() -> None:
    table = tm.from_dict({"s": [1]}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at")
    for windows, on in ((tm.stream.count_window(3), "at"), (tm.stream.count_window(3, ttl="1h"), None)):
        with pytest.raises(tm.DataSetError, match=r"on= is for count_window\(\.\.\., ttl=\)"):
            tm.stream.window(windows, on=on)
    with pytest.raises(tm.DataSetError, match="they do not depend on time"):
        tm.stream.window(tm.stream.count_window(3, ttl="1h"), on="at", allowed_lateness="1h")
    with pytest.raises(tm.DataSetError, match="a positive ttl"):
        tm.stream.window(tm.stream.count_window(3, ttl=0), on="at")
    with pytest.raises(tm.DataSetError, match="nothing says how far it lags behind the stream's time"):
        other = stream.with_columns(other=tm.functions.scalar("coalesce", tm.col("at"), tm.col("at")))
        window = tm.stream.window(tm.stream.count_window(3, ttl="1h"), on="other")
        other.group_by(window).agg(n=tm.count()).write_stream(print)
    with pytest.raises(tm.DataSetError, match="must be positive"):
        tm.stream.window(tm.stream.count_window(0))
    with pytest.raises(tm.DataSetError, match="would skip rows"):
        tm.stream.window(tm.stream.count_window(2, 3))
    with pytest.raises(TypeError, match="an integer number of rows"):
        tm.stream.count_window(1.5)  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="is too large"):
        tm.stream.count_window(2**70)
    with pytest.raises(TypeError, match="on is the column"):
        tm.stream.window(tm.stream.tumbling("1s"))
    counts = stream.group_by(tm.stream.window(tm.stream.count_window(3))).agg(last=tm.col("at").max())
    with pytest.raises(tm.DataSetError, match="windows of rows, and joins without a time bound"):
        counts.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="last")).agg(n=tm.count()).write_stream(print)
    with pytest.raises(tm.DataSetError, match="the query has none"):
        counts.write_stream(print, late_output=print)
    with pytest.raises(tm.DataSetError, match="outside of a group_by of a stream"):
        tm.from_arrow(table).group_by(tm.stream.window(tm.stream.count_window(3))).agg(n=tm.count()).collect()
