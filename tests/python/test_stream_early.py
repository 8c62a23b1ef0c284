"""Windows that give what they have so far."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
import tidemill as tm

Row = dict[str, Any]


def rows(seed: int, count: int = 600) -> tm.Table:
    """Rows a second apart, a little out of order."""
    dice = random.Random(seed)
    seconds = sorted(range(count), key=lambda second: second + dice.uniform(0, 5))
    columns = {"s": seconds, "user": [dice.choice("abc") for _ in seconds]}
    return tm.from_dict(columns).select("user", at=tm.col("s").cast("timestamp[s]")).collect()


def written(stream: tm.DataSet) -> list[Row]:
    seen: list[Row] = []
    stream.write_stream(lambda table: seen.extend(table.to_pylist()))
    return seen


@pytest.mark.parametrize("by", [[], ["user"]])
@pytest.mark.parametrize("late_to", [False, True])
def test_early_results_grow_until_the_last(by: list[str], late_to: bool) -> None:
    """Each window's results only grow, the last is what there would be without early ones, and nothing follows it."""
    table = rows(1)
    stream = tm.stream.from_table(table, time="at", out_of_order="10s", rows_per_batch=2, rows_per_s=600)
    window = tm.window(tm.tumbling("2m"), on="at", early="30ms")
    counts = stream.group_by(*by, window).agg(rows=tm.count())
    seen: list[Row] = []
    options: Any = {"late_to": lambda table: None} if late_to else {}
    counts.write_stream(lambda table: seen.extend(table.to_pylist()), **options)
    of_window: dict[Any, list[Row]] = defaultdict(list)
    for row in seen:
        of_window[row["window_start"], row.get("user")].append(row)
    for results in of_window.values():
        assert [row["window_final"] for row in results] == [False] * (len(results) - 1) + [True]
        assert [row["rows"] for row in results] == sorted(row["rows"] for row in results)
    assert len(seen) > len(of_window), "none came early"
    last = [results[-1] for results in of_window.values()]
    plain = tm.from_arrow(table).group_by(*by, window).agg(rows=tm.count()).to_pylist()
    assert Counter(map(str, last)) == Counter(map(str, plain))


def test_windows_that_overlap() -> None:
    """What has been given early is not lost to windows that share panes."""
    table = rows(2)
    stream = tm.stream.from_table(table, time="at", out_of_order="10s", rows_per_batch=2, rows_per_s=600)

    def sums(window: Any) -> tm.DataSet:
        return stream.group_by("user", window).agg(rows=tm.count())

    windows = tm.sliding("2m", "30s")
    early = written(sums(tm.window(windows, on="at", early="30ms")).filter(tm.col("window_final")).drop("window_final"))
    assert Counter(map(str, early)) == Counter(map(str, written(sums(tm.window(windows, on="at")))))


def test_windows_that_do_not_change_are_silent() -> None:
    """A window gives nothing twice: three rows let it change three times at most."""
    seconds = [0, 1, 2]
    table = tm.from_dict({"s": seconds}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=6)
    window = tm.window(tm.tumbling("1h"), on="at", early="10ms")
    seen = written(stream.group_by(window).agg(rows=tm.count()))
    assert len(seen) <= 4 and seen[-1] == {**seen[-1], "window_final": True, "rows": 3}


def test_what_cannot_be() -> None:
    stream = tm.stream.from_table(rows(3), time="at")
    with pytest.raises(tm.DataSetError, match="early results of session windows"):
        stream.group_by(tm.window(tm.stream.session("1m"), on="at", early="1s")).agg(n=tm.count()).write_stream(print)
    with pytest.raises(tm.DataSetError, match="every millisecond or less often"):
        tm.window(tm.tumbling("1m"), on="at", early=0)
