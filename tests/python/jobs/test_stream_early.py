"""Windows that give early results."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tidemill as tm

Row = dict[str, Any]

SECONDS = tm.functions.scalar("date_part", tm.lit("epoch"), tm.col("at")).cast("int64")


def _second(at: datetime) -> int:
    return int((at - datetime(1970, 1, 1)).total_seconds())


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
@pytest.mark.parametrize("late_output", [False, True])
def test_early_results_grow_until_the_last(by: list[str], late_output: bool) -> None:
    """Each window's results only grow, the last equals the one without early results, and nothing follows it."""
    table = rows(1)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=2, rows_per_s=600)
    window = tm.stream.window(tm.stream.tumbling("2m"), on="at", emit_early_every="30ms")
    counts = stream.group_by(*by, window).agg(rows=tm.count())
    seen: list[Row] = []
    options: Any = {"late_output": lambda table: None} if late_output else {}
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


@pytest.mark.parametrize("windows", [tm.stream.sliding("2m", "30s"), tm.stream.sliding("2m", "2s")])
def test_windows_that_overlap(windows: tm.stream.Windows) -> None:
    """Windows that share panes do not lose what was given early."""
    table = rows(2)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=2, rows_per_s=600)

    def sums(window: Any) -> tm.DataSet:
        return stream.group_by("user", window).agg(rows=tm.count())

    early = written(
        sums(tm.stream.window(windows, on="at", emit_early_every="30ms"))
        .filter(tm.col("window_final"))
        .drop("window_final")
    )
    assert Counter(map(str, early)) == Counter(map(str, written(sums(tm.stream.window(windows, on="at")))))


def test_windows_that_do_not_change_are_silent() -> None:
    """A window gives no result twice: three rows let it change three times at most."""
    seconds = [0, 1, 2]
    table = tm.from_dict({"s": seconds}).select(at=tm.col("s").cast("timestamp[s]")).collect()
    stream = tm.stream.from_table(table, time="at", rows_per_batch=1, rows_per_s=6)
    window = tm.stream.window(tm.stream.tumbling("1h"), on="at", emit_early_every="10ms")
    seen = written(stream.group_by(window).agg(rows=tm.count()))
    assert len(seen) <= 4 and seen[-1] == {**seen[-1], "window_final": True, "rows": 3}


def windows_of(table: tm.Table, windows: Any) -> Counter[tuple[str, int]]:
    """How many rows of each user each window has, by its start in seconds."""
    found: Counter[tuple[str, int]] = Counter()
    size, slide = windows.size // 1_000_000, windows.slide // 1_000_000
    for row in table.to_pylist():
        second = _second(row["at"])
        first = second - second % slide
        found.update((row["user"], start) for start in range(first, second - size, -slide))
    return found


@pytest.mark.parametrize("every", [1, 7, 100_000])
@pytest.mark.parametrize("batch", [1, 3000])
@pytest.mark.parametrize("windows", [tm.stream.tumbling("2m"), tm.stream.sliding("90s", "40s")])
def test_results_by_rows(windows: Any, batch: int, every: int) -> None:
    """One result per window and key after every so many rows, none missing or duplicated, whatever arrived together;
    and the usual one at the end.
    """
    table = rows(4, 3000)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=batch)
    values = {"rows": tm.count(), "kinds": tm.col("s").n_unique(), "least": tm.col("s").min(), "all": tm.col("s").sum()}

    def seen(**early: Any) -> list[Row]:
        window = tm.stream.window(windows, on="at", **early)
        return written(stream.with_columns(s=SECONDS).group_by("user", window).agg(**values))

    found = seen(emit_early_rows=every)
    at = Counter((row["user"], _second(row["window_start"]), row["rows"], row["window_final"]) for row in found)
    expected: Counter[Any] = Counter()
    for (user, start), count in windows_of(table, windows).items():
        expected.update((user, start, n, False) for n in range(every, count + 1, every))
        expected[user, start, count, True] += 1
    assert at == expected
    assert all(row["rows"] == row["kinds"] for row in found)
    last = [{name: row[name] for name in row if name != "window_final"} for row in found if row["window_final"]]
    assert Counter(map(str, last)) == Counter(map(str, seen()))


def test_results_by_rows_are_of_the_first_rows() -> None:
    """Not of those that arrived with them: a result at a row excludes the rows after it."""
    table = tm.from_dict({"s": list(range(100))}).select("s", at=tm.col("s").cast("timestamp[s]")).collect()
    made = tm.stream.from_generator(400, rows=100, splits=1, step="1s").select(s="number", at="time")
    for stream in (tm.stream.from_table(table, time="at", rows_per_batch=100), made):
        window = tm.stream.window(tm.stream.calendar_window("1d"), on="at", emit_early_rows=10)
        seen = written(stream.group_by(window).agg(most=tm.col("s").max(), all=tm.col("s").to_list()))
        assert [row["most"] for row in seen] == [*range(9, 100, 10), 99]
        assert [row["all"] for row in seen] == [list(range(n + 1)) for n in [*range(9, 100, 10), 99]]


def test_results_by_rows_and_late_rows(tmp_path: Path) -> None:
    """A row that comes too late is in no result, and goes where late rows go; a row without a time is in none."""
    file = tmp_path / "rows.json"

    def add(*seconds: int | None) -> None:
        times = [
            None if second is None else str(datetime(1970, 1, 1) + timedelta(seconds=second)) for second in seconds
        ]
        with file.open("a") as more:
            more.writelines(json.dumps({"s": s, "at": at}) + "\n" for s, at in zip(seconds, times, strict=True))

    add(0, 1, 2, None, *range(100, 120))
    schema = {"s": "int64", "at": "timestamp[s]"}
    stream = tm.stream.from_files(file, schema, time="at", idle_after="100ms")
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_rows=2)).agg(
        rows=tm.count()
    )
    late: list[Row] = []
    of_window: list[tuple[int, int, bool]] = []

    def take(made: tm.Table) -> None:
        for row in made.to_pylist():
            of_window.append((_second(row["window_start"]), row["rows"], row["window_final"]))
            if of_window[-1] == (0, 3, True):
                # Its window is over, so row 4 is late. The last row lets the windows before its own end.
                add(4, 120, 300)

    with pytest.warns(tm.stream.NoTimeWarning):
        counts.write_stream(
            take,
            late_output=lambda made: late.extend(made.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="100ms"),
            stop_when=lambda: (120, 1, True) in of_window,
        )
    second = [(60, n, False) for n in range(2, 21, 2)]
    assert sorted(of_window) == [(0, 2, False), (0, 3, True), *second, (60, 20, True), (120, 1, True)]
    assert [row["s"] for row in late] == [4]


def test_many_keys_by_rows() -> None:
    """More keys than trigger the eviction of useless ones, in windows that come and go."""
    count, keys = 120_000, 1500
    source = tm.stream.from_generator(rows=count, splits=2, step="1ms", max_out_of_orderness="20s").select(
        "time", "number", key=tm.col("number") % keys
    )
    window = tm.stream.window(tm.stream.tumbling("15s"), on="time", emit_early_rows=4)
    seen = written(source.group_by("key", window).agg(n=tm.count(), sum=tm.col("number").sum()))
    last = [row for row in seen if row["window_final"]]
    assert sum(row["n"] for row in last) == count and sum(row["sum"] for row in last) == sum(range(count))
    assert Counter(row["n"] for row in seen if not row["window_final"]) == {4: 8 * keys, 8: 8 * keys}
    assert Counter(row["n"] for row in last) == {10: 8 * keys}


def test_results_by_rows_of_windows_of_a_function() -> None:
    """Each window of a window function counts its own rows; and windows over a table give one result, like other kinds."""

    def minutes(times: Any) -> Any:
        starts = pc.floor_temporal(times, multiple=1, unit="minute")
        return starts, pc.add(starts, pa.scalar(timedelta(minutes=1)))

    table = rows(5, 600)
    window = tm.stream.window(tm.stream.custom_window(minutes), on="at", emit_early_rows=9)
    plain = tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_rows=9)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=100)
    seen, like = (written(stream.group_by("user", of).agg(n=tm.count())) for of in (window, plain))
    assert Counter(row["window_final"] for row in seen)[False] > 30
    assert Counter(map(str, seen)) == Counter(map(str, like))
    last = tm.from_arrow(table).group_by("user", plain).agg(n=tm.count()).to_pylist()
    assert Counter(str(row) for row in seen if row["window_final"]) == Counter(map(str, last))


def test_results_by_rows_are_rows_of_a_stream() -> None:
    """They have their window's time, so that none is late for a later window, though it comes before the others."""
    table = rows(6, 1200)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=40)
    counts = stream.group_by("user", tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_rows=5)).agg(
        n=tm.count()
    )
    counts = counts.select("n", "window_final", at=tm.col("window_end") - timedelta(microseconds=1))
    most = counts.group_by(tm.stream.window(tm.stream.tumbling("5m"), on="at")).agg(n=tm.col("n").max(), all=tm.count())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = written(most)
    windows = windows_of(table, tm.stream.tumbling("1m"))
    expected: dict[int, list[int]] = defaultdict(list)
    for (_, start), count in windows.items():
        expected[start - start % 300] += [*range(5, count + 1, 5), count]
    assert {_second(row["window_start"]): (row["n"], row["all"]) for row in seen} == {
        start: (max(counts), len(counts)) for start, counts in expected.items()
    }


def by_steps(table: tm.Table, windows: Any, step: int) -> Counter[tuple[str, int, int, bool]]:
    """For each window and user: how many rows there are before the end of each nonempty step, and in all."""
    size, slide = windows.size // 1_000_000, windows.slide // 1_000_000
    times: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in table.to_pylist():
        second = _second(row["at"])
        for start in range(second - second % slide, second - size, -slide):
            times[row["user"], start].append(second)
    found: Counter[tuple[str, int, int, bool]] = Counter()
    for (user, start), seconds in times.items():
        for end in range(start + step, start + size, step):
            if any(end - step <= second < end for second in seconds):
                found[user, start, sum(second < end for second in seconds), False] += 1
        found[user, start, len(seconds), True] += 1
    return found


CUMULATIVE = [
    (tm.stream.tumbling("2m"), 30),
    (tm.stream.tumbling("2m"), 45),
    (tm.stream.tumbling("10m"), 2),
    (tm.stream.sliding("90s", "40s"), 20),
    (tm.stream.sliding("2m", "1m"), 25),
]


@pytest.mark.parametrize("late_output", [False, True])
@pytest.mark.parametrize("batch", [1, 3000])
@pytest.mark.parametrize(("windows", "step"), CUMULATIVE)
def test_results_by_event_time(windows: Any, step: int, batch: int, late_output: bool) -> None:
    """At each step of a window exactly the rows before its end, of the keys that have some in it, however fast they
    come and whatever arrived together.
    """
    table = rows(7, 1500)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=batch)
    values = {"rows": tm.count(), "kinds": tm.col("s").n_unique(), "last": tm.col("s").max()}
    window = tm.stream.window(windows, on="at", emit_early_event_time=step)
    counts = stream.with_columns(s=SECONDS).filter(tm.col("s") % 50 < 35).group_by("user", window).agg(**values)
    seen: list[Row] = []
    options: Any = {"late_output": lambda table: None} if late_output else {}
    counts.write_stream(lambda table: seen.extend(table.to_pylist()), **options)
    some = tm.from_arrow(table).filter(SECONDS % 50 < 35).collect()
    found = Counter((row["user"], _second(row["window_start"]), row["rows"], row["window_final"]) for row in seen)
    assert found == by_steps(some, windows, step)
    assert all(row["rows"] == row["kinds"] for row in seen)
    assert all(row["last"] < _second(row["window_end"]) for row in seen)


def test_results_by_event_time_of_a_calendar() -> None:
    """Steps count from the window's start: for a day in Berlin that is an hour before midnight UTC, and the last step
    of a 23-hour day is shorter.
    """
    spring = datetime(2026, 3, 28, 12)
    hours = [spring + timedelta(hours=hour) for hour in range(48)]
    stream = tm.stream.from_table(tm.from_dict({"at": hours}).collect(), time="at", rows_per_batch=5)
    window = tm.stream.window(tm.stream.calendar_window("1d", tz="Europe/Berlin"), on="at", emit_early_event_time="6h")
    seen = written(stream.group_by(window).agg(rows=tm.count()))
    counts: dict[datetime, list[tuple[int, bool]]] = defaultdict(list)
    for row in seen:
        counts[row["window_start"]].append((row["rows"], row["window_final"]))
    assert counts == {
        # From noon on: there are five rows in its third step, which ends at 17:00.
        datetime(2026, 3, 27, 23): [(5, False), (11, True)],
        datetime(2026, 3, 28, 23): [(6, False), (12, False), (18, False), (23, True)],
        datetime(2026, 3, 29, 22): [(6, False), (12, False), (14, False), (14, True)],
    }


def test_results_by_event_time_and_late_rows(tmp_path: Path) -> None:
    """A row for a step that has passed is in the next result; one for a window that has passed corrects its result."""
    file = tmp_path / "rows.json"

    def add(*seconds: int) -> None:
        with file.open("a") as more:
            times = [str(datetime(1970, 1, 1) + timedelta(seconds=second)) for second in seconds]
            more.writelines(json.dumps({"at": at}) + "\n" for at in times)

    add(1, 12)
    stream = tm.stream.from_files(file, {"at": "timestamp[s]"}, time="at", idle_after="100ms")
    window = tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_event_time="10s", allowed_lateness="1h")
    seen: list[tuple[int, int, bool]] = []
    then = {(0, 1, False): (2, 25), (0, 3, False): (61,), (0, 4, True): (30, 62), (0, 5, True): (10_000,)}

    def take(made: tm.Table) -> None:
        for row in made.to_pylist():
            seen.append((_second(row["window_start"]), row["rows"], row["window_final"]))
            add(*then.pop(seen[-1], ()))

    counts = stream.group_by(window).agg(rows=tm.count())
    counts.write_stream(
        take, checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"), stop_when=lambda: (60, 2, True) in seen
    )
    of_first = [row for row in seen if row[0] == 0]
    assert of_first == [(0, 1, False), (0, 3, False), (0, 4, False), (0, 4, True), (0, 5, True)]


def test_many_keys_by_event_time() -> None:
    """Windows that combine many panes, with keys that come and go."""
    count, keys = 100_000, 3000
    source = tm.stream.from_generator(rows=count, splits=1, step="1ms").select(
        "time", "number", key=tm.col("number") % keys
    )
    # Each step has a third of the keys.
    window = tm.stream.window(tm.stream.tumbling("50s"), on="time", emit_early_event_time="1s")
    seen = written(source.group_by("key", window).agg(n=tm.count(), last=tm.col("number").max()))
    early = Counter(row["last"] // 1000 for row in seen if not row["window_final"])
    assert early == {step: 1000 for step in range(100) if step % 50 != 49}
    assert all(row["n"] == row["last"] % 50_000 // keys + 1 for row in seen if row["last"] < 50_000)
    last = [row for row in seen if row["window_final"]]
    assert sum(row["n"] for row in last) == count and len(last) == 2 * keys


def test_results_by_event_time_are_rows_of_a_stream() -> None:
    """They have their window's time, so that none is late for a later window, though it comes before the others."""
    table = rows(8, 1200)
    stream = tm.stream.from_table(table, time="at", max_out_of_orderness="10s", rows_per_batch=40)
    counts = stream.group_by(
        "user", tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_event_time="15s")
    ).agg(n=tm.count())
    counts = counts.select("n", at=tm.col("window_end") - timedelta(microseconds=1))
    sums = counts.group_by(tm.stream.window(tm.stream.tumbling("5m"), on="at")).agg(n=tm.col("n").sum(), all=tm.count())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = written(sums)
    expected: Counter[int] = Counter()
    for (_, start, count, _), times in by_steps(table, tm.stream.tumbling("1m"), 15).items():
        expected[start - start % 300] += count * times
    assert {_second(row["window_start"]): row["n"] for row in seen} == expected


def test_results_by_event_time_over_stops(tmp_path: Path) -> None:
    """A job that is stopped and resumed gives each result once, the same as without a stop."""
    table = rows(9, 3000)
    file = tmp_path / "rows.json"
    lines = [json.dumps({**row, "at": str(row["at"])}) + "\n" for row in table.to_pylist()]
    stops = [500, 900, 1700, None]
    seen: list[Row] = []
    written_to = 0
    for until in stops:
        with file.open("a") as more:
            more.writelines(lines[written_to:until])
        written_to = until or 0
        schema = {"user": "str", "at": "timestamp[s]"}
        stream = tm.stream.from_files(file, schema, time="at", max_out_of_orderness="10s", stop_at_end=until is None)
        counts = stream.group_by(
            "user", tm.stream.window(tm.stream.tumbling("2m"), on="at", emit_early_event_time="20s")
        ).agg(rows=tm.count())
        wanted = len(seen) + 20
        counts.write_stream(
            lambda made: seen.extend(made.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="50ms"),
            stop_when=None if until is None else lambda wanted=wanted: len(seen) >= wanted,
        )
    found = Counter((row["user"], _second(row["window_start"]), row["rows"], row["window_final"]) for row in seen)
    assert found == by_steps(table, tm.stream.tumbling("2m"), 20)


def test_steps_are_another_state(tmp_path: Path) -> None:
    """State whose panes are cut differently cannot be resumed."""
    stream = tm.stream.from_generator(1000, keys=7, splits=1, step="1s")

    def counts(**early: Any) -> tm.DataSet:
        return stream.group_by("key", tm.stream.window(tm.stream.tumbling("1h"), on="time", **early)).agg(n=tm.count())

    counts().write_stream(lambda rows: None, checkpoint=tmp_path / "c", stop_when=lambda: True)
    with pytest.raises(tm.DataSetError, match=r"but now holds windows of .*, in steps of 60000000 us"):
        counts(emit_early_event_time="1m").write_stream(print, checkpoint=tmp_path / "c")


def test_what_cannot_be() -> None:
    stream = tm.stream.from_table(rows(3), time="at")
    with pytest.raises(tm.DataSetError, match="by the clock, by event time or by rows; choose one"):
        tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_every="1s", emit_early_rows=5)
    with pytest.raises(tm.DataSetError, match="by the clock, by event time or by rows; choose one"):
        tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_event_time="1s", emit_early_rows=5)
    with pytest.raises(tm.DataSetError, match="by event time need a positive step"):
        tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_event_time=0)
    with pytest.raises(tm.DataSetError, match="windows of a function have early results by the clock"):
        tm.stream.window(tm.stream.custom_window(lambda times: (times, times)), on="at", emit_early_event_time="1s")
    session = tm.stream.window(tm.stream.session("1m"), on="at", emit_early_event_time="10s")
    with pytest.raises(tm.DataSetError, match=r"sessions with early results by event time \(emit_early_event_time=\)"):
        stream.group_by(session).agg(n=tm.count()).write_stream(print)
    for none in (0, -3):
        with pytest.raises(tm.DataSetError, match="early results by rows need a positive number of rows"):
            tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_rows=none)
    for wrong_number in (2.5, True, "10"):
        with pytest.raises(TypeError, match="emit_early_rows is a whole number of rows, not"):
            tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_rows=wrong_number)  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="they do not depend on time"):
        tm.stream.window(tm.stream.count_window(3), emit_early_rows=2)
    wrong = tm.stream.window(tm.stream.tumbling("1m"), on="at", allowed_lateness="1m", emit_early_rows=5)
    with pytest.raises(tm.DataSetError, match=r"take late rows \(allowed_lateness=\) and give results by rows"):
        stream.group_by(wrong).agg(n=tm.count()).write_stream(print)
    with pytest.raises(tm.DataSetError, match="an interval of at least a millisecond"):
        tm.stream.window(tm.stream.tumbling("1m"), on="at", emit_early_every=0)


LONG = """
import resource

import tidemill as tm


def peak_mib(rows: int) -> int:
    stream = tm.stream.from_generator(0, rows=rows, splits=1, step="1ms")
    window = tm.stream.window(tm.stream.tumbling("30d"), on="time", emit_early_rows=10)
    seen = []
    counts = stream.group_by(window).agg(n=tm.col("number").n_unique())
    counts.write_stream(lambda table: seen.extend(table.to_dict()["n"]))
    assert seen == [*range(10, rows + 1, 10), rows]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


few = peak_mib(100)
print(peak_mib(40_000) - few)
"""


def test_results_by_rows_of_what_takes_much_memory(tmp_path: Path) -> None:
    """Each of 4000 totals takes 160 KiB on average, 640 MiB in all, and one at a time is enough; results that arrive
    together share none.
    """
    program = tmp_path / "app.py"
    program.write_text(LONG)
    ran = launched.run("run", "-n", "1", "--no-prefix", program)
    assert ran.returncode == 0, ran.stderr.decode()
    assert int(ran.stdout) < 150
