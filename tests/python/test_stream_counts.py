"""Windows of so many rows of each key."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
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
    """Each row of a key is in the windows that it should be in, once; what is not full gives nothing."""
    dice = random.Random(size * slide)
    count = 3000
    users = [dice.choice("abcdefgh") * dice.choice([1, 1, 1, 2]) for _ in range(count)]
    table = tm.from_dict({"user": users, "n": list(range(count))}).collect()
    stream = tm.stream.from_table(table, rows_per_batch=batch)
    window = tm.window(tm.stream.counting(size, slide))
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
        # Each row once, but for those that are in no full window.
        total = sum(row["sum"] for row in seen)
        assert total <= sum(range(count))
        if size == 1:
            assert total == sum(range(count))


def test_rows_come_in_their_order() -> None:
    """From one part of a source, rows of a key are counted as they come."""
    table = tm.from_dict({"user": ["a", "b"] * 50, "n": list(range(100))}).collect()
    stream = tm.stream.from_table(table, rows_per_batch=100)
    window = tm.window(tm.stream.counting(10))
    seen = written(stream.group_by("user", window).agg(least=tm.col("n").min(), most=tm.col("n").max()))
    a = sorted((row["window_start"], row["least"], row["most"]) for row in seen if row["user"] == "a")
    assert a == [(start, 2 * start, 2 * start + 18) for start in range(0, 50, 10)]


def test_without_keys() -> None:
    """All rows of all workers are counted together."""
    table = tm.from_dict({"n": list(range(1050))}).collect()
    stream = tm.stream.from_table(table, rows_per_batch=9)
    seen = written(stream.group_by(tm.window(tm.stream.counting(100))).agg(rows=tm.count(), least=tm.col("n").min()))
    assert sorted(row["window_start"] for row in seen) == list(range(0, 1000, 100))
    assert all(row["rows"] == 100 for row in seen)


def test_many_keys_and_long_windows() -> None:
    """More keys than are looked at without putting together what is kept of them."""
    count = 40_000
    table = tm.from_dict({"n": list(range(count))}).select(key=tm.col("n") % 3000, n=tm.col("n")).collect()
    stream = tm.stream.from_table(table, rows_per_batch=500)
    seen = written(stream.group_by("key", tm.window(tm.stream.counting(13))).agg(rows=tm.count(), n=tm.col("n").sum()))
    # 40,000 rows of 3,000 keys: 13 of each, and a 14th of some.
    assert Counter(row["rows"] for row in seen) == {13: 3000}
    assert len({row["key"] for row in seen}) == 3000


def test_what_cannot_be() -> None:
    table = tm.from_dict({"s": [1]}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at")
    with pytest.raises(tm.DataSetError, match="they look at no time"):
        tm.window(tm.stream.counting(3), on="at")
    with pytest.raises(tm.DataSetError, match="more than zero"):
        tm.window(tm.stream.counting(0))
    with pytest.raises(tm.DataSetError, match="would leave rows out"):
        tm.window(tm.stream.counting(2, 3))
    with pytest.raises(TypeError, match="a whole number of rows"):
        tm.stream.counting(1.5)  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="is too large"):
        tm.stream.counting(2**70)
    with pytest.raises(TypeError, match="on is the column"):
        tm.window(tm.tumbling("1s"))
    counts = stream.group_by(tm.window(tm.stream.counting(3))).agg(last=tm.col("at").max())
    with pytest.raises(tm.DataSetError, match="windows of rows, and joins that do not bound"):
        counts.group_by(tm.window(tm.tumbling("1s"), on="last")).agg(n=tm.count()).write_stream(print)
    with pytest.raises(tm.DataSetError, match="the query has none"):
        counts.write_stream(print, late_to=print)
    with pytest.raises(tm.DataSetError, match="outside of a group_by of a stream"):
        tm.from_arrow(table).group_by(tm.window(tm.stream.counting(3))).agg(n=tm.count()).collect()
