"""Queries over streams: windows give what a computation over the whole table gives, in whatever order rows arrive."""

from __future__ import annotations

import random
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pytest
import standing
import tidemill as tm

SECOND = 1_000_000


def table(rows: Iterable[tuple[int | None, str | None, float]]) -> pa.Table:
    """Rows of time (microseconds), key and value."""
    times, keys, values = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), "key": pa.array(keys), "x": pa.array(values)})


def some(count: int, jitter: int = 0, keys: int = 7, seed: int = 3) -> list[tuple[int, str, float]]:
    """A thousand rows per second, up to `jitter` microseconds out of order."""
    dice = random.Random(seed)
    rows = [(at * 1000 + dice.randint(0, jitter), f"k{dice.randrange(keys)}", dice.random()) for at in range(count)]
    return rows


def written(data: tm.DataSet, **options: Any) -> list[dict[str, Any]]:
    """All results of a stream."""
    seen: list[dict[str, Any]] = []
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return seen


def micros(time: Any) -> int:
    return int(pa.scalar(time, pa.timestamp("us")).value)


def by_window(
    rows: Iterable[tuple[int | None, str | None, float]], size: int, slide: int
) -> dict[tuple[str | None, int], tuple[int, float]]:
    """The expected windows: count and sum by key and start."""
    sums: dict[tuple[str | None, int], list[float]] = defaultdict(list)
    for time, key, x in rows:
        if time is None:
            continue
        start = time // slide * slide
        while start + size > time:
            sums[key, start].append(x)
            start -= slide
    return {of: (len(values), sum(values)) for of, values in sums.items()}


def found(rows: list[dict[str, Any]]) -> dict[tuple[str | None, int], tuple[int, float]]:
    made = {(row["key"], micros(row["window_start"])): (row["n"], row["s"]) for row in rows}
    assert len(made) == len(rows), "a window came twice"
    return made


def counted(data: tm.DataSet, size: str, slide: str | None = None, **options: Any) -> tm.DataSet:
    windows = tm.stream.tumbling(size) if slide is None else tm.stream.sliding(size, slide)
    keys = data.group_by("key", tm.stream.window(windows, on="ts", **options))
    return keys.agg(n=tm.count(), s=tm.col("x").sum())


@pytest.mark.parametrize(
    ("size", "slide"),
    [("1s", None), ("1s", "250ms"), ("700ms", "300ms"), ("3s", "1s"), ("1s", "20ms"), ("3s", "45ms")],
)
def test_windows_give_what_a_loop_gives(size: str, slide: str | None) -> None:
    """A row in the wrong window, or in one too few, changes a sum."""
    rows = some(5000, jitter=40_000)
    rows[17] = (rows[17][0], None, rows[17][2])  # type: ignore[call-overload]
    stream = tm.stream.from_table(table(rows), time="ts", max_out_of_orderness="41ms", rows_per_batch=37)
    seen = written(counted(stream, size, slide))
    length = {f"{ms}ms": ms * 1000 for ms in (20, 45, 250, 300, 700)} | {"1s": SECOND, "3s": 3 * SECOND}
    expected = by_window(rows, length[size], length[slide or size])
    made = found(seen)
    assert made.keys() == expected.keys()
    for of, (count, total) in expected.items():
        assert made[of] == (count, pytest.approx(total))
    assert all(micros(row["window_end"]) - micros(row["window_start"]) == length[size] for row in seen)


def test_windows_without_keys() -> None:
    rows = some(2000)
    stream = tm.stream.from_table(table(rows), time="ts", rows_per_batch=100)
    made = stream.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(
        n=tm.count(), most=tm.col("x").max()
    )
    seen = sorted(written(made), key=lambda row: str(row["window_start"]))
    assert [row["n"] for row in seen] == [1000, 1000]
    assert seen[0]["most"] == max(x for _, _, x in rows[:1000])


def test_more_keys_than_are_held_beside_the_source() -> None:
    """Where most rows have a key of their own, partial results are sent on batch by batch, and collected again: nothing
    counts twice, and recurring keys stay the same.
    """
    rows, keys = 4_000_000, 900_000
    made = tm.stream.from_generator(rows=rows, step="1us").with_columns(key=tm.col("number") % keys)
    counts = made.group_by("key", tm.stream.window(tm.stream.tumbling("1h"), on="time")).agg(
        n=tm.count(), sum=tm.col("number").sum()
    )
    n, total = tm.col("n"), tm.col("sum").sum()
    of_all = counts.group_by("window_start").agg(keys=tm.count(), least=n.min(), most=n.max(), total=total)
    least, more = divmod(rows, keys)
    (found,) = written(of_all.select("keys", "least", "most", "total"))
    assert found == {"keys": keys, "least": least, "most": least + (more > 0), "total": rows * (rows - 1) // 2}


def test_aggregates_of_all_kinds() -> None:
    """Functions whose state is a list or a sketch also send it along."""
    rows = some(3000)
    stream = tm.stream.from_table(table(rows), time="ts", rows_per_batch=100)
    keys = stream.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="ts"))
    made = keys.agg(
        different=tm.col("key").n_unique(),
        mean=tm.col("x").mean(),
        spread=tm.col("x").std(),
        some=tm.col("x").count(where=tm.col("key") == "k1"),
    )
    seen = sorted(written(made), key=lambda row: str(row["window_start"]))
    whole = tm.from_arrow(table(rows)).group_by(tm.col("ts").dt.truncate("second").alias("w"))
    expected = (
        whole.agg(
            different=tm.col("key").n_unique(),
            mean=tm.col("x").mean(),
            spread=tm.col("x").std(),
            some=tm.col("x").count(where=tm.col("key") == "k1"),
        )
        .sort("w")
        .to_pylist()
    )
    assert len(seen) == len(expected) == 3
    for one, other in zip(seen, expected, strict=True):
        assert (one["different"], one["some"]) == (other["different"], other["some"])
        assert one["mean"] == pytest.approx(other["mean"])
        assert one["spread"] == pytest.approx(other["spread"])


def test_steps_around_windows() -> None:
    """Steps before and after, Python functions included, run batch by batch."""
    rows = some(4000)
    stream = tm.stream.from_table(table(rows), time="ts", rows_per_batch=100)
    stream = stream.filter(tm.col("x") > 0.5).with_columns(x=tm.col("x") * 2)
    stream = stream.map_batches(lambda batch: batch, schema={"ts": "timestamp[us]", "key": "str", "x": "float64"})
    made = counted(stream, "1s").filter(tm.col("n") > 60).select("key", "window_start", n="n", s=tm.col("s") + 1)
    expected = by_window([(time, key, x * 2) for time, key, x in rows if x > 0.5], SECOND, SECOND)
    expected = {of: (n, s + 1) for of, (n, s) in expected.items() if n > 60}
    made_found = found(written(made))
    assert made_found.keys() == expected.keys() and expected
    assert all(made_found[of] == (n, pytest.approx(s)) for of, (n, s) in expected.items())


def test_sessions() -> None:
    """Sessions merge, also when the row between them arrives late; each comes out once."""
    dice = random.Random(5)
    rows = []
    for key in range(20):
        time = dice.randrange(SECOND)
        for _ in range(100):
            time += dice.choice([1000, 50_000, 99_999, 100_000, 400_000])
            rows.append((time, f"k{key}", dice.random()))
    rows.sort()
    expected: dict[tuple[str | None, int], tuple[int, float]] = {}
    ends = {}
    for key in sorted({key for _, key, _ in rows}):
        session: list[tuple[int, float]] = []
        for time, of, x in [*rows, (1 << 60, key, 0.0)]:
            if of != key:
                continue
            if session and time - session[-1][0] >= 100_000:
                expected[key, session[0][0]] = (len(session), sum(x for _, x in session))
                ends[key, session[0][0]] = session[-1][0] + 100_000
                session = []
            session.append((time, x))
    jittered = sorted(rows, key=lambda row: row[0] + dice.randrange(60_000))
    stream = tm.stream.from_table(table(jittered), time="ts", max_out_of_orderness="60ms", rows_per_batch=23)
    seen = written(
        stream.group_by("key", tm.stream.window(tm.stream.session("100ms"), on="ts")).agg(
            n=tm.count(), s=tm.col("x").sum()
        )
    )
    made = found(seen)
    assert made.keys() == expected.keys()
    assert all(made[of] == (n, pytest.approx(s)) for of, (n, s) in expected.items())
    assert all(micros(row["window_end"]) == ends[row["key"], micros(row["window_start"])] for row in seen)


def test_late_rows() -> None:
    """A row that arrives after its window is dropped; within the allowed lateness, the result comes again, corrected."""
    # Every part of the source gets one row of each time, so that all are equally far; and as a source that waits
    # reports its time first, the time is known before the next row.
    times = [0, 5 * SECOND, 100, 20 * SECOND]
    rows = table([(time, "a", 1.0) for time in times for _ in range(8)])
    stream = tm.stream.from_table(rows, time="ts", rows_per_batch=1, rows_per_s=1000)
    windows = {micros(row["window_start"]): row["n"] for row in written(counted(stream, "1s"))}
    assert windows == {0: 8, 5 * SECOND: 8, 20 * SECOND: 8}

    again = written(counted(stream, "1s", allowed_lateness="10s"))
    first = [row["n"] for row in again if micros(row["window_start"]) == 0]
    assert first == sorted(set(first)) and first[-1] == 16
    assert [row["n"] for row in again if micros(row["window_start"]) > 0] == [8, 8]


def test_rows_without_a_time_are_in_no_window() -> None:
    rows = [(0, "a", 1.0), (None, "a", 1.0), (100, "a", 1.0), (None, None, 1.0)]
    with pytest.warns(tm.stream.NoTimeWarning, match="^2 rows had no time"):
        seen = written(counted(tm.stream.from_table(table(rows), time="ts", rows_per_batch=2), "1s"))
    assert [(row["key"], row["n"]) for row in seen] == [("a", 2)]


def test_times_before_1970_and_in_other_units() -> None:
    """Windows begin at whole multiples, also of negative times, in any unit and type."""
    times = [-1, -1000, -1001, 0, 999]
    for kind in ("timestamp[ms]", "timestamp[us]", "timestamp[ns]", "timestamp[ms, tz=UTC]"):
        ms = pa.array(times, pa.timestamp("ms")).cast(
            {"timestamp[ms, tz=UTC]": pa.timestamp("ms", "UTC")}.get(kind) or pa.timestamp(kind[10:-1])
        )
        stream = tm.stream.from_table(pa.table({"ts": ms}), time="ts", max_out_of_orderness="10s")
        seen = written(stream.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(n=tm.count()))
        starts = {micros(row["window_start"]) // 1000: row["n"] for row in seen}
        assert starts == {-2000: 1, -1000: 2, 0: 2}, kind


def test_empty_streams_and_unions() -> None:
    assert written(counted(tm.stream.from_table(table(some(10)).slice(0, 0), time="ts"), "1s")) == []
    rows = some(3000)
    parts = [tm.stream.from_table(table(rows[from_::3]), time="ts", rows_per_batch=50) for from_ in range(3)]
    whole = parts[0].union(parts[1]).union(parts[2])
    assert found(written(counted(whole, "1s"))).keys() == by_window(rows, SECOND, SECOND).keys()
    assert sum(row["n"] for row in written(counted(whole, "1s"))) == 3000


def test_sql() -> None:
    """The same windows, by their SQL names."""
    rows = some(4000)
    stream = tm.stream.from_table(table(rows), time="ts", rows_per_batch=100)
    query = """
        select key, w['start'] as window_start, n, s
        from (select key, {} as w, count(*) as n, sum(x) as s from events where x > 0.1 group by key, w)
    """
    kept = [row for row in rows if row[2] > 0.1]
    for call, size, slide in (
        ("tumble(ts, interval '1 second')", SECOND, SECOND),
        ("hop(ts, interval '250 milliseconds', interval '1 second')", SECOND, SECOND // 4),
    ):
        made = found(written(tm.sql(query.format(call), events=stream)))
        expected = by_window(kept, size, slide)
        assert made.keys() == expected.keys()
        assert all(made[of] == (n, pytest.approx(s)) for of, (n, s) in expected.items())
    sessions = written(tm.sql(query.format("session(ts, '1 hour')"), events=stream))
    assert sum(row["n"] for row in sessions) == len(kept) and len(sessions) == 7
    with pytest.raises(tm.DataSetError, match="a length of time must be an interval"):
        written(tm.sql(query.format("tumble(ts, 5)"), events=stream))


def test_joins_with_tables() -> None:
    """A stream joined with a table: each row finds its partners, whichever side is written first; a table joins a
    union.
    """
    rows = some(3000)
    stream = tm.stream.from_table(table(rows), time="ts", rows_per_batch=100)
    names = tm.from_dict({"key": ["k1", "k2", "k2", "none"], "name": ["one", "two", "zwei", "nobody"]})
    expected = Counter({"one": 0, "two": 0, "zwei": 0})
    for _, key, _ in rows:
        expected.update({"k1": ["one"], "k2": ["two", "zwei"]}.get(key, []))
    for joined in (stream.join(names, on="key"), names.join(stream, on="key")):
        windows = joined.group_by("name", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(n=tm.count())
        assert {row["name"]: row["n"] for row in written(windows)} == expected

    left = written(stream.join(names, on="key", how="left").select("key", "name"))
    assert len(left) == 3000 + expected["two"]
    assert sum(row["name"] is None for row in left) == sum(key not in ("k1", "k2") for _, key, _ in rows)
    assert len(written(stream.join(names, on="key", how="semi"))) == expected["one"] + expected["two"]
    assert len(written(stream.join(names, on="key", how="anti"))) == 3000 - expected["one"] - expected["two"]
    with pytest.raises(tm.DataSetError, match="rows of the table that have no match"):
        written(names.join(stream, on="key", how="left"))
    both = stream.select("key").union(names.select("key"))
    assert len(written(both)) == 3004


def share_of_a_worker() -> list[tuple[str, int]]:
    """The key and count of each window on this worker."""
    stream = tm.stream.from_table(table(some(4000, 20_000)), time="ts", max_out_of_orderness="21ms")
    return [(row["key"], row["n"]) for row in written(counted(stream, "1s"))]


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_share_a_stream(workers: int) -> None:
    parts = standing.run(share_of_a_worker, workers=workers)
    keys = [{key for key, _ in part} for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 7, "a key belongs to one worker"
    assert sum(n for part in parts for _, n in part) == 4000


def test_values_of_subqueries_over_tables() -> None:
    """Such a subquery is evaluated once, when the job begins."""
    stream = tm.stream.from_table(tm.from_dict({"x": [1, 2, 3]}))
    limits = tm.from_dict({"least": [2], "none": [None]}, {"none": "int64"})
    query = "select x - (select min(least) from limits) as over from s where x >= (select least from limits)"
    assert sorted(row["over"] for row in written(tm.sql(query, s=stream, limits=limits))) == [0, 1]
    assert written(tm.sql("select x from s where x > (select none from limits)", s=stream, limits=limits)) == []
    with pytest.raises(tm.DataSetError, match="more than one row"):
        written(tm.sql("select x from s where x > (select x from t)", s=stream, t=tm.from_dict({"x": [1, 2]})))


def test_what_a_stream_cannot_do_is_said() -> None:
    stream = tm.stream.from_table(table(some(10)), time="ts")
    with pytest.raises(tm.DataSetError, match=r"add tm\.stream\.window"):
        written(stream.group_by("key").agg(n=tm.count()))
    for query, what in (
        (stream.sort("x"), "a sort; rank the rows of each window instead"),
        (stream.limit(3), "a limit; stop_when= of write_stream"),
        (stream.join(tm.from_dict({"z": [1]}), how="cross"), "a join without an equality between columns"),
        (
            stream.with_columns(n=tm.functions.row_number().over("key", order_by="x")),
            r"functions with over\(\) whose keys do not tell",
        ),
        (
            tm.sql("select x from s where x > (select avg(x) from s)", s=stream),
            "a scalar subquery",
        ),
    ):
        with pytest.raises(tm.DataSetError, match=f"which does not end: {what}"):
            written(query)
    # A sort that the next step does not need would be silently dropped.
    ordered, window = stream.sort("x"), tm.stream.window(tm.stream.tumbling("1s"), on="ts")
    whole = {"x": "int64", "key": "int64", "ts": "timestamp[ms]"}
    for sorted_first in (
        ordered.key_by("key").process(lambda key, rows, context: None, {"n": "int64"}),
        ordered.group_by(window).agg(xs=tm.col("x").to_list()),
        ordered.map_batches(lambda rows: rows, whole).select("x"),
        ordered.map(lambda row: row, whole),
        ordered.union(stream),
    ):
        with pytest.raises(tm.DataSetError, match="a sort; rank the rows of each window instead"):
            written(sorted_first)
    with pytest.raises(
        tm.DataSetError, match=r"such as write_stream\(print\), or preview its first rows with show\(\)"
    ):
        stream.collect()
    with pytest.raises(tm.DataSetError, match=r'"key" .* is not a time: cast it to a timestamp'):
        tm.stream.from_table(table(some(10)), time="key")
    with pytest.raises(tm.DataSetError, match='no column "then"'):
        tm.stream.from_table(table(some(10)), time="then")
    with pytest.raises(tm.DataSetError, match="is not a duration"):
        tm.stream.tumbling("ten seconds")
    with pytest.raises(tm.DataSetError, match="would skip rows"):
        tm.stream.window(tm.stream.sliding("1s", "2s"), on="ts")
    with pytest.raises(tm.DataSetError, match="a window needs a timestamp or a date"):
        stream.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="x")).agg(n=tm.count())
    with pytest.raises(TypeError, match="needs commit, too"):
        stream.write_stream(type("Half", (), {"prepare": None, "write": None})())


def test_functions_behind_windows() -> None:
    """More batches than a task may take in one turn: it must not wait within its own turn for the next."""
    rows = table([(at * SECOND, "a", 1.0) for at in range(300)])
    windows = counted(tm.stream.from_table(rows, time="ts"), "1s").select("n")
    assert written(windows.map_batches(lambda batch: batch, schema={"n": "int64"})) == [{"n": 1}] * 300


def test_windows_of_different_keys_together() -> None:
    stream = tm.stream.from_table(table(some(1000)), time="ts")
    window = tm.stream.window(tm.stream.tumbling("1m"), on="ts")
    both = stream.group_by("key", window).agg(n=tm.count()).select("n")
    both = both.union(stream.group_by(window).agg(n=tm.count()).select("n"))
    assert sum(row["n"] for row in written(both)) == 2000


def test_each_thread_has_a_sink_of_its_own(tmp_path: Path) -> None:
    """A copy must prepare only what it has written itself."""
    log = tmp_path / "log"

    class Sink:
        def __init__(self) -> None:
            self.rows: list[int] = []

        def write(self, rows: tm.Table) -> None:
            self.rows += [row["n"] for row in rows.to_pylist()]

        def prepare(self, epoch: int) -> bytes:
            rows, self.rows = self.rows, []
            return " ".join(map(str, rows)).encode()

        def commit(self, prepared: bytes) -> None:
            with log.open("a") as file:
                file.write(f"{prepared.decode()}\n")

    sink = Sink()
    rows = pa.table({"n": list(range(2000))})
    tm.stream.from_table(rows, rows_per_batch=10).write_stream(
        sink, checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="10ms")
    )
    assert sink.rows == []
    found = [int(word) for line in log.read_text().splitlines() for word in line.split()]
    assert sorted(found) == list(range(2000))


def test_a_sink_that_raises_ends_the_job() -> None:
    def refuse(rows: tm.Table) -> None:
        raise ValueError("no more of this")

    with pytest.raises(tm.DataSetError, match="no more of this"):
        tm.stream.from_table(table(some(100)), time="ts").write_stream(refuse)


def test_sinks_that_are_given_wrong(tmp_path: Path) -> None:
    """Errors in a sink's methods name the method and its contract."""

    class Sink:
        def __init__(self, file: Any = None) -> None:
            self.file = file

        def write(self, rows: tm.Table) -> None:
            pass

        def prepare(self, epoch: int) -> Any:
            return None

        def commit(self, prepared: bytes) -> None:
            pass

    stream = tm.stream.from_table(table(some(100)), time="ts")
    with pytest.raises(tm.DataSetError, match="prepare of the sink Sink returned NoneType; it must return bytes"):
        stream.write_stream(Sink())
    (tmp_path / "file").touch()
    with (
        (tmp_path / "file").open() as file,
        pytest.raises(tm.DataSetError, match=r"the sink Sink cannot be copied for each thread: .*; let it open files"),
    ):
        stream.write_stream(Sink(file))
    with pytest.raises(tm.DataSetError, match="file: it is a file, but must be a folder"):
        stream.write_stream(lambda _: None, checkpoint=tmp_path / "file")
    with pytest.raises(tm.DataSetError, match=r"`path` is .*file, a file, but it must be a folder"):
        stream.write_stream(tm.stream.to_files(tmp_path / "file"))


def test_tumbling_windows_of_a_table() -> None:
    """The same key works in a query over a table."""
    rows = some(2000)
    seen = counted(tm.from_arrow(table(rows)), "1s").to_pylist()
    assert found(seen).keys() == by_window(rows, SECOND, SECOND).keys()


def test_guarantees(tmp_path: Path) -> None:
    """A job that must give a guarantee it cannot keep does not begin; explain says what streams can give."""
    stream = tm.stream.from_table(table(some(100)), time="ts")
    counts = counted(stream, "1s")
    for options, message in (
        (
            {"guarantee": "at_least_once"},
            "cannot give at least once: it makes no checkpoints; set their location with checkpoint=",
        ),
        (
            {"guarantee": "exactly_once", "checkpoint": tmp_path / "a"},
            r"cannot give exactly once: the sink <lambda> gives at least once",
        ),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            written(counts, **options)
    with pytest.raises(tm.DataSetError, match="guarantee='often' is not 'exactly_once' or 'at_least_once' or"):
        written(counts, guarantee="often")
    written(counts, guarantee="at_least_once", checkpoint=tmp_path / "b")
    counts.write_stream(tm.stream.to_files(tmp_path / "out"), checkpoint=tmp_path / "c", guarantee="exactly_once")
    text = counts.explain()
    assert 'source "source table 1": ' in text and "window 2" in text
    assert "table: is read again from the position in the checkpoint" in text
    assert "a sink that commits has each row exactly once, a function has each row at least once" in text


def test_what_is_given_wrong(tmp_path: Path) -> None:
    """Errors name the argument, not what the engine made of it."""
    rows = table(some(10))
    stream = tm.stream.from_table(rows, time="ts")
    for options, message in (
        ({"rows_per_batch": 0}, "rows_per_batch=0 must be a positive integer"),
        ({"rows_per_s": -1}, "rows_per_s=-1 must be positive, or 0"),
        ({"rows_per_s": float("nan")}, "rows_per_s=nan must be positive, or 0"),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            tm.stream.from_table(rows, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list has no __arrow_c_stream__"):
        tm.stream.from_table([1])
    for options, message in (
        ({"interval": -1}, "interval=-1 is negative"),
        ({"interval": 0}, "interval=0 must be greater than zero"),
        ({"unaligned_after": -1}, "unaligned_after=-1 is negative"),
        ({"timeout": 0}, "timeout=0 must be greater than zero"),
        ({"keep": 0}, "keep=0 must be a positive integer"),
        ({"keep": True}, "keep=True must be a positive integer"),
        ({"path": ""}, "a checkpoint's path must not be empty"),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            tm.stream.Checkpoint(**{"path": tmp_path / "c", **options})
    for options, message in (
        ({"mode": "maybe"}, "controller='maybe' is not"),
        ({"interval": -1}, "interval=-1 is negative"),
        ({"actions_per_hour": -1}, "actions_per_hour=-1 must be an integer"),
        ({"state_bytes": True}, "state_bytes=True must be an integer"),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            tm.stream.Controller(**options)  # type: ignore[arg-type]
    for call in (lambda: tm.stream.Checkpoint(3), lambda: written(stream, checkpoint=3)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not 3"):
            call()
    for options, message in (
        ({"checkpoint": ""}, "a checkpoint's path must not be empty"),
        ({"name": ""}, "name must be a non-empty string, not ''"),
        ({"stop_when": bool}, "stop_when= needs checkpoint="),
        ({"on_progress": print}, "on_progress= needs checkpoint="),
        ({"drop_state": ["window 2"]}, "drop_state= needs checkpoint="),
        ({"controller": "maybe"}, "controller='maybe' is not 'off' or 'advise' or 'on'"),
        ({"controller": "on"}, "controller='on' needs checkpoint="),
        ({"controller": tm.stream.Controller("on")}, "controller='on' needs checkpoint="),
    ):
        with pytest.raises(tm.DataSetError, match=message):
            written(stream, **options)


def test_checkpoint_options(tmp_path: Path) -> None:
    """A path stands for a Checkpoint; its defaults depend on the interval and the guarantee."""
    store = {"aws_secret_access_key": "secret"}
    named = tm.stream.Checkpoint("s3://bucket/mine", interval="30s", keep=5, storage_options=store)
    assert "secret" not in repr(named) and "interval='30s'" in repr(named)
    for given, at_most_once, every, unaligned in (
        (tm.stream.Checkpoint("c"), False, 10.0, 10.0),
        (tm.stream.Checkpoint("c"), True, 0.1, 1.0),
        (tm.stream.Checkpoint("c", interval="5s"), True, 5.0, 5.0),
        (tm.stream.Checkpoint("c", interval="1m"), False, 60.0, 10.0),
        (tm.stream.Checkpoint("c", unaligned_after=None), False, 10.0, None),
        (tm.stream.Checkpoint("c", unaligned_after="20s"), False, 10.0, 20.0),
    ):
        native = given._native(at_most_once=at_most_once, drop_state=[])
        assert (native["every"], native["unaligned_after"], native["timeout"]) == (every, unaligned, 600.0)
    stream = tm.stream.from_table(table(some(10)), time="ts")
    for place in (tmp_path / "a", str(tmp_path / "b"), tm.stream.Checkpoint(tmp_path / "c", keep=1)):
        assert len(written(stream, checkpoint=place)) == 10
    assert all((tmp_path / name / "epochs").is_dir() for name in "abc")


def test_windows_that_are_given_wrong() -> None:
    """The planner found two of them, or other columns with the names of theirs, and its errors used none of these
    terms.
    """
    stream = tm.stream.from_table(table(some(10)), time="ts")
    window = tm.stream.window(tm.stream.tumbling("1s"), on="ts")
    early = tm.stream.window(tm.stream.tumbling("1s"), on="ts", emit_early_every="1s")
    with pytest.raises(TypeError, match=r"a window must be tumbling\(.10s.\)"):
        tm.stream.window("10s", on="ts")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="group_by has one window"):
        stream.group_by(window, tm.stream.window(tm.stream.session("1s"), on="ts")).count()
    with pytest.raises(tm.DataSetError, match="called window_start and window_end, not 'w'"):
        stream.group_by(window.alias("w")).count()
    with pytest.raises(tm.DataSetError, match="a window adds a column 'window_start'"):
        stream.group_by(window).agg(tm.col("ts").min().alias("window_start"))
    with pytest.raises(tm.DataSetError, match="a window adds a column 'window_end'"):
        stream.group_by(tm.col("key").alias("window_end"), window).count()
    with pytest.raises(tm.DataSetError, match="a window adds a column 'window_final'"):
        stream.group_by(early).agg(window_final=tm.count())
    assert stream.group_by(window).agg(window_final=tm.count()).columns[-1] == "window_final"
    # As an expression over each row, it is a column like others.
    assert stream.select(window.alias("w")).columns == ["w"]


def test_owners_that_cannot_be(tmp_path: Path) -> None:
    """Mistakes are raised where the owners are given."""
    messages: list[str] = []

    def watch(running: tm.stream.Running) -> None:
        for task, owners in running.owners.items() if not messages else ():
            for wrong in (owners[1:], [-1] * len(owners), [10**6] * len(owners), [0.5] * len(owners)):
                with pytest.raises(tm.DataSetError) as raised:
                    running.rebalance(task, wrong)  # type: ignore[arg-type]
                messages.append(str(raised.value))
            for several in ({}, {task: owners, "nowhere": owners}):
                with pytest.raises(tm.DataSetError, match=r"at least one task|no task .nowhere. with keys"):
                    running.rebalance_all(several)
            running.rebalance(task, owners)

    counts = counted(tm.stream.from_table(table(some(100_000)), time="ts", rows_per_s=500, rows_per_batch=5), "1s")
    written(counts, checkpoint=tmp_path, on_progress=watch, stop_when=lambda: len(messages) == 4)
    few, *others = messages
    assert "has 1024 buckets" in few and "1023 owners" in few
    assert len(others) == 3 and all("is not a copy of task 'window 2'; copies are 0 to " in one for one in others)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("name=f'of {rank}'", "name= is 'of 0' on worker 0 and 'of 1' on worker 1"),
        ("checkpoint=None if rank else 'c'", "checkpoint= is given on worker 0 and None on worker 1"),
    ],
)
def test_workers_that_differ(tmp_path: Path, argument: str, message: str) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import tidemill as tm\n"
        "rank = tm.init().rank\n"
        f"tm.stream.from_generator(rows=10).write_stream(lambda rows: None, {argument})\n"
    )
    done = subprocess.run(launched.command("run", "-n", "2", "app.py"), cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 1 and message in done.stderr.decode(), done


def test_show_prints_the_first_rows_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of an endless stream, and of one that has fewer."""
    tm.stream.from_generator(1000, splits=1).select("number").show(3)
    assert capsys.readouterr().out.split() == ["+--------+", "|", "number", "|", *_bars(3)]
    tm.stream.from_table(tm.from_dict({"n": [7]}).collect()).show()
    assert "| 7 |" in capsys.readouterr().out
    with pytest.raises(tm.DataSetError, match="oh no"):
        tm.stream.from_generator(1000).map(_fails, {"x": "int64"}).show()


def test_what_needs_all_rows_is_refused_on_a_stream_and_not_offered(tmp_path: Path) -> None:
    """`repartition` was silently ignored; completion offered `collect` on streams, and `write_stream` on tables."""
    rows = tm.from_dict({"n": [1, 2, 3]})
    stream = tm.stream.from_table(rows.collect())
    for by in ((), ("n",)):
        refused = r"repartition is not supported on a stream: .* use shuffle\(\); .* key_by"
        with pytest.raises(tm.DataSetError, match=refused):
            stream.repartition(4, *by)
    # In SQL it is a step of the plan.
    with pytest.raises(tm.DataSetError, match="repartition is not supported on a stream"):
        tm.sql("select n from rows distribute by n", rows=stream).write_stream(print)
    every = set(dir(tm.DataSet))
    assert every - set(dir(rows)) == {"shuffle", "step_name", "write_stream"} <= set(dir(stream)) <= every
    place = tmp_path / "out"
    calls: dict[str, Callable[[tm.DataSet], object]] = {
        "bsp": lambda data: data.bsp(lambda comm, table: table),
        "pivot": lambda data: data.pivot("n", index="n", values="n"),
        "reduce": lambda data: data.reduce(lambda one, two: one),
        "repartition": lambda data: data.repartition(2),
        "sort": lambda data: data.sort("n").write_stream(print),
        "limit": lambda data: data.limit(2).write_stream(print),
        "head": lambda data: data.head().write_stream(print),
        "value_counts": lambda data: data.value_counts().write_stream(print),
        "write_database": lambda data: data.write_database("t", lambda: None),
        "write_text": lambda data: data.select(t=tm.col("n").cast("str")).write_text(place),
    }
    # Records of a fixed number of bytes need a column that this stream does not have.
    for name in every - set(dir(stream)) - {"write_records"}:
        with pytest.raises(tm.DataSetError, match="stream"):
            call = calls.get(name)
            found = (
                getattr(stream, name)(*[place][: name.startswith(("write", "materialize"))])
                if call is None
                else call(stream)
            )
            pytest.fail(f"{name} gave {found}")


def run_beside_a_file(folder: Path) -> list[str]:
    """Worker 1 has a file where its checkpoints or rows would be."""
    place = folder / str(tm.init().rank)
    if tm.init().rank == 1:
        place.touch()
    stream = tm.stream.from_generator(300).select("number")
    graph = tm.Graph("numbers")
    source = graph.source("source", lambda out, context: out.send(1), parallelism=1)
    graph.connect(
        source, graph.sink("sink", lambda number, context: None, parallelism=1, each=True), tm.exchange.gather()
    )
    said = []
    runs: list[Callable[[], object]] = [
        lambda: stream.write_stream(print, checkpoint=place),
        lambda: graph.run(checkpoint=place),
    ]
    for run in runs:
        try:
            run()
        except (tm.DataSetError, tm.GraphError) as error:
            said.append(str(error))
    return said


def test_a_place_that_one_worker_lacks(tmp_path: Path) -> None:
    """All workers raise, and say which one: otherwise the others would wait for it."""
    said = f"checkpoints in {tmp_path / '1'}: it is a file, but must be a folder (on worker 1)"
    assert standing.run(run_beside_a_file, tmp_path, workers=3) == [[said, said]] * 3


def _fails(row: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("oh no")


def _bars(count: int) -> list[str]:
    rows = [word for number in range(count) for word in ("|", str(number), "|")]
    return ["+--------+", *rows, "+--------+"]


def test_a_generator_has_a_split_for_each_thread(tmp_path: Path) -> None:
    """One has as many as threads, so that all of them make rows; a job that resumes has as many as it began with, and
    the same rows.
    """
    app = tmp_path / "app.py"
    app.write_text("""
import sys
from pathlib import Path
import tidemill as tm

rows = tm.stream.from_generator(20_000, rows=10_000)
table = tm.stream.from_table(tm.from_dict({"n": list(range(5000))}).collect(), rows_per_batch=10)
if tm.init().rank == 0 and sys.argv[1] == "first":
    text = tm.stream.explain([(rows, print), (table, print)]) if tm.init().size == 1 else ""
    print(*[line for line in text.splitlines() if "source" in line][:2], sep="\\n")
out = tm.stream.to_files("out")
stop = lambda: sys.argv[1] == "first" and any(Path("out").glob("part-*"))
rows.write_stream(out, checkpoint=tm.stream.Checkpoint("checkpoints", interval="50ms"), stop_when=stop)
""")
    first = launched.run("run", "-n", "1", "--threads", "11", app, "first", cwd=tmp_path)
    assert first.returncode == 0, first.stderr.decode()
    assert first.stdout.decode().count("11") >= 2, first.stdout.decode()
    second = launched.run("run", "-n", "1", "--threads", "3", app, "second", cwd=tmp_path)
    assert second.returncode == 0, second.stderr.decode()
    numbers = tm.read_json(tmp_path / "out").collect().to_dict()["number"]
    assert sorted(numbers) == list(range(10_000))
