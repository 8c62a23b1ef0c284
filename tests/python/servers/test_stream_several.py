"""Several queries with a sink each, in one job: shared work is done once, and each sink has what its query gives alone."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pytest
import several_job
import tidemill as tm
from stream_kills import run_and_kill

JOB = Path(several_job.__file__)
SECONDS = 20


def table(rows: int = 2000) -> pa.Table:
    """A hundred rows a second of event time, with seven keys."""
    times = pa.array([at * 10_000 for at in range(rows)], pa.timestamp("us"))
    return pa.table({"ts": times, "key": [at % 7 for at in range(rows)], "n": range(rows)})


def counts(rows: tm.DataSet, **options: Any) -> tm.DataSet:
    return rows.group_by("key", tm.stream.window(tm.stream.tumbling("1s"), on="ts", **options)).agg(rows=tm.count())


def seen_by(*queries: tm.DataSet, **options: Any) -> list[list[dict[str, Any]]]:
    """What each query gives, written together."""
    seen: list[list[dict[str, Any]]] = [[] for _ in queries]

    def sink(rows: list[dict[str, Any]]) -> Any:
        return lambda table: rows.extend(table.to_pylist())

    tm.stream.write([(query, sink(rows)) for query, rows in zip(queries, seen, strict=True)], **options)
    return seen


def alike(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    def counted(rows: list[dict[str, Any]]) -> Counter[str]:
        return Counter(map(str, rows))

    return counted(one) == counted(other)


def named(explained: str) -> list[str]:
    """Names of a job's tasks, according to explain."""
    return re.findall(r'^  (?:source|task|sink) "(.*)": \d+ cop', explained, re.MULTILINE)


def tasks(*queries: tm.DataSet) -> list[str]:
    return named(tm.stream.explain([(query, print) for query in queries]))


def test_what_is_shared_is_done_once() -> None:
    """A function under two queries sees each row once, and each sink has what its query gives over a table."""
    passed = []

    def look(batch: Any) -> Any:
        passed.append(batch.num_rows)
        return batch

    rows = table()
    stream = tm.stream.from_table(rows, time="ts").map_batches(look, schema=rows.schema)
    windows, some = counts(stream), stream.filter(tm.col("n") < 30).select("n")
    busy = windows.filter(tm.col("rows") > 14)
    first, second, third = seen_by(windows, some, busy)
    assert sum(passed) == rows.num_rows
    whole = tm.from_arrow(rows)
    assert alike(first, counts(whole).to_pylist()) and len(first) == 7 * SECONDS
    assert alike(second, [{"n": n} for n in range(30)])
    assert alike(third, counts(whole).filter(tm.col("rows") > 14).to_pylist()) and len(third) > 0
    names = tasks(windows, some, busy)
    assert sum(name.startswith("source") for name in names) == 1
    assert [name for name in names if name.startswith("window") and "half" not in name] == ["window 2"]
    text = tm.stream.explain([(windows, print), (some, print), (busy, print)])
    assert "shared steps: runs once, and several queries use its rows" in text
    # Of the window, whose beginning and end become columns.
    assert "shared steps, 2: runs once, and several queries use its rows" in text


def test_one_query_is_as_it_is_alone() -> None:
    """Checkpoints find state by the names of tasks: neither `write` nor an additional query changes them."""
    stream = tm.stream.from_table(table(), time="ts")
    pairs = stream.join(stream.select("key", "ts", m=tm.col("n")), on=["key", "ts"])
    alone = tasks(pairs)
    assert alone == named(pairs.explain(sink=print))
    assert sum(name.startswith("source") for name in alone) == 2
    assert tasks(pairs, counts(stream))[: len(alone)] == alone
    # Two reads are two sources.
    assert sum(name.startswith("source") for name in tasks(stream, tm.stream.from_table(table(), time="ts"))) == 2


@pytest.mark.parametrize("slow", [False, True])
def test_queries_that_come_together_again(slow: bool) -> None:
    """Rows that went two ways meet in a join: neither way may wait for the other, however slow a sink is."""
    rows = table()
    stream = tm.stream.from_table(rows, time="ts", rows_per_batch=10)
    windows = counts(stream)
    most = stream.group_by("key", tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(most=tm.col("n").max())
    both = windows.join(most, on=["key", "window_start", "window_end"])
    itself = stream.join(stream.select("key", "ts", m=tm.col("n")), on=["key", "ts"])
    seen: list[list[dict[str, Any]]] = [[], [], [], []]

    def sink(at: int) -> Any:
        def take(table: tm.Table) -> None:
            if slow and at == 3:
                time.sleep(0.01)
            seen[at].extend(table.to_pylist())

        return take

    queries = [windows, both, itself, stream]
    tm.stream.write([(query, sink(at)) for at, query in enumerate(queries)])
    assert len(seen[0]) == len(seen[1]) == 7 * SECONDS
    assert sum(row["rows"] for row in seen[1]) == len(seen[2]) == len(seen[3]) == rows.num_rows
    assert all(row["n"] == row["m"] for row in seen[2])


def test_queries_in_sql_share_what_they_are_made_from() -> None:
    stream = tm.stream.from_table(table(), time="ts")
    large = tm.sql("select n from numbers where n >= 1990", numbers=stream)
    windows = tm.sql("select key, count(*) as rows from numbers group by key, tumble(ts, '1 second')", numbers=stream)
    assert sum(name.startswith("source") for name in tasks(large, windows, stream)) == 1
    first, second, third = seen_by(large, windows, stream)
    assert alike(first, [{"n": n} for n in range(1990, 2000)])
    assert sum(row["rows"] for row in second) == len(third) == 2000


def test_time_is_waited_for_by_whoever_does() -> None:
    """A source without time= is named even if only the second query waits for its time."""
    stream = tm.stream.from_table(table())
    queries = [(stream.select("n"), print), (counts(stream), print)]
    assert "table: it has no time=, so windows, ttl= and whatever else waits for event time" in tm.stream.explain(
        queries
    )
    assert "it has no time=" not in tm.stream.explain(queries[:1])
    first, second = seen_by(*(query for query, _ in queries))
    assert len(first) == sum(row["rows"] for row in second) == 2000


def test_late_rows_of_all_queries() -> None:
    """Windows of several queries share one destination for late rows, which are counted where there is none."""
    seconds = [*range(4), *range(12, 28), 5, 28]
    rows = pa.table({"ts": pa.array([at * 1_000_000 for at in seconds], pa.timestamp("us"))})
    stream = tm.stream.from_table(rows, time="ts", rows_per_batch=1, rows_per_s=40)

    def counted(rows: tm.DataSet, size: str) -> tm.DataSet:
        return rows.group_by(tm.stream.window(tm.stream.tumbling(size), on="ts")).agg(rows=tm.count())

    first, other = counted(stream, "10s"), counted(stream, "5s")
    # A computation over windows has no late rows of its own.
    again = counted(first.select("rows", ts="window_start"), "20s")
    late: list[dict[str, Any]] = []
    seen = seen_by(first, other, again, late_output=lambda table: late.extend(table.to_pylist()))
    assert [sum(row["rows"] for row in rows) for rows in seen] == [21, 21, 3]
    assert [row["ts"].second for row in late] == [5, 5]
    assert tm.last_report().late_rows == 0
    with pytest.warns(tm.stream.LateRowsWarning):
        seen_by(first, other)
    assert tm.last_report().late_rows == 2


def test_what_is_wrong_names_its_sink(tmp_path: Path) -> None:
    stream = tm.stream.from_table(table(), time="ts")

    def refuse(rows: tm.Table) -> None:
        raise ValueError("no more of this")

    with pytest.raises(tm.DataSetError, match=r"(?s)in refuse.*no more of this"):
        tm.stream.write([(stream, lambda _: None), (stream, refuse)])
    with pytest.raises(tm.DataSetError, match="the query of the sink refuse: on a stream, which does not end: a limit"):
        tm.stream.write([(stream, print), (stream.limit(3), refuse)])
    assert [name for name in tasks(stream, stream) if "sink" in name] == ["sink print", "sink print, 2"]
    with pytest.raises(tm.DataSetError, match="there is none"):
        tm.stream.write([])
    with pytest.raises(TypeError, match="a pair of a DataSet and its sink, not DataSet"):
        tm.stream.write([stream])  # type: ignore[list-item]
    files = tm.stream.to_files(tmp_path / "one")
    with pytest.raises(tm.DataSetError, match=r"two sinks write into the same folder, .*one; give each"):
        tm.stream.write([(stream, files), (counts(stream), tm.stream.to_files(f"{tmp_path}/two/../one"))])
    kafka = [tm.stream.to_kafka("localhost:1", topic, id="job") for topic in ("a", "b")]
    with pytest.raises(tm.DataSetError, match="two sinks of kafka are named 'job'; give each its own id="):
        tm.stream.write([(stream, kafka[0]), (counts(stream), kafka[1])])


def test_sinks_that_give_more_and_less(tmp_path: Path) -> None:
    """Each must give the job's guarantee; what it can give depends on the sources that it reads."""
    stream = tm.stream.from_table(table(), time="ts")
    files = tm.stream.to_files(tmp_path / "files")
    queries = [(stream, files), (counts(stream), print)]
    with pytest.raises(tm.DataSetError, match="cannot give exactly once: the sink print gives at least once"):
        tm.stream.write(queries, checkpoint=tmp_path / "c", guarantee="exactly_once")
    hook = tm.stream.from_webhook(1, {"n": "int64"})
    text = tm.stream.explain([*queries, (hook, tm.stream.to_files(tmp_path / "hook"))])
    assert f"the sink files {tmp_path}/files has each row exactly once" in text
    assert "the sink print has each row at least once" in text
    assert f"the sink files {tmp_path}/hook has each row at most once" in text


@pytest.mark.filterwarnings("ignore:from_files")
@pytest.mark.parametrize("through", ["files", "topic"])
def test_one_query_reads_what_another_one_writes(through: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Rows pass through a folder, or a topic, from one query of the job to another: each once, also across a stop."""
    folder, schema = tmp_path / "middle", {"number": "int64"}
    if through == "files":
        sink = tm.stream.to_files(folder)
        read = tm.stream.from_files(folder, schema, discovery_interval="50ms", poll_interval="20ms")
    else:
        kafka = request.getfixturevalue("kafka")
        kafka.create_topic("middle", 2)
        sink = tm.stream.to_kafka(kafka.bootstrap, "middle", id="several")
        read = tm.stream.from_kafka(kafka.bootstrap, "middle", schema)
    seen: list[int] = []
    for count in (1000, 4000):
        numbers = tm.stream.from_generator(5000).select("number")
        queries = [(numbers, sink), (read, lambda table: seen.extend(table.to_dict()["number"]))]
        # Numbers arrive in batches from several threads, so some larger ones may come before.
        there = lambda count=count: len(seen) >= count and set(seen) >= set(range(count))  # noqa: E731
        tm.stream.write(queries, checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"), stop_when=there)
    assert len(set(seen)) == len(seen)


def test_rows_of_a_query_that_has_ended(tmp_path: Path) -> None:
    """The last rows of a query appear while others of its job go on, not when they end, which may be never; and not
    again in the next life.
    """
    folder, limit = tmp_path / "short", time.monotonic() + launched.PATIENCE_S

    def rows() -> list[int]:
        lines = (line for file in folder.glob("part-*") for line in file.read_text().splitlines())
        return sorted(json.loads(line)["n"] for line in lines)

    for _ in range(2):
        here = len(seen := list[int]())
        queries = [
            (tm.stream.from_table(table(100)).select("n"), tm.stream.to_files(folder)),
            (tm.stream.from_generator(1000), lambda batch, seen=seen: seen.extend(batch.to_dict()["number"])),
        ]
        there = lambda: (len(seen) > here and len(rows()) >= 100) or time.monotonic() > limit  # noqa: E731, B023
        tm.stream.write(queries, checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="50ms"), stop_when=there)
        assert time.monotonic() < limit and rows() == list(range(100))


def test_at_most_once(tmp_path: Path) -> None:
    stream = tm.stream.from_table(table(), time="ts")
    options = {"checkpoint": tmp_path, "guarantee": "at_most_once"}
    first, second = seen_by(stream.select("n"), stream.filter(tm.col("n") < 10).select("n"), **options)
    assert sorted(row["n"] for row in first) == list(range(2000))
    assert sorted(row["n"] for row in second) == list(range(10))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("windows", "rows", "more", "pids"):
        (tmp_path / name).mkdir()
    return tmp_path


def found(folder: Path) -> Counter[str]:
    return Counter(line for file in folder.glob("[!.]*") for line in file.read_text().splitlines())


def check(folder: Path) -> None:
    """Each sink has all that its query gives, once."""
    for name, lines in several_job.expected().items():
        if name != "more":
            seen = found(folder / name)
            assert seen == lines, f"{name}: {(seen - lines).total()} too many, {(lines - seen).total()} too few"


def test_workers_that_are_killed(folder: Path) -> None:
    """A worker dies again and again; no sink loses or duplicates a row."""
    run_and_kill(folder, 5, lambda dice, _: dice.uniform(0.1, 0.9), JOB, folder)
    check(folder)


def test_stopped_and_gone_on_with(folder: Path) -> None:
    """With another number of workers, and one more query: the others find their state."""
    stopped = launched.run("run", "-n", "2", JOB, folder, "stopping")
    assert stopped.returncode == 0, stopped.stderr.decode()
    before = {name: found(folder / name).total() for name in ("windows", "rows")}
    assert all(0 < before[name] < several_job.expected()[name].total() for name in before), before
    done = launched.run("run", "-n", "3", JOB, folder, "more")
    assert done.returncode == 0, done.stderr.decode()
    check(folder)
    more = found(folder / "more")
    assert more.total() > 0 and more <= several_job.expected()["more"]
