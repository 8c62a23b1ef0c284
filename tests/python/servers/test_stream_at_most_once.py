"""At-most-once streams: what a failure interrupts is lost, and nothing comes twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import at_most_once_job
import launched
import pyarrow as pa
import pytest
import stream_job
import tidemill as tm
from local_servers import Kafka, RabbitMQ
from local_servers.server import free_ports
from stream_kills import run_and_kill

JOB = Path(at_most_once_job.__file__)


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("[!.]*") for line in file.read_text().splitlines()]


def killed(folder: Path, *arguments: str) -> None:
    """Run the job to its end, while a worker dies again and again, at any moment."""
    for name in ("results", "pids"):
        (folder / name).mkdir()

    def pause(dice: random.Random, kills: int) -> float:
        return dice.uniform(0.2, 0.8) if kills else dice.uniform(0, 0.2)

    run_and_kill(folder, 4, pause, JOB, folder, *arguments)


def check_once(numbers: Counter[int], least: int = 100) -> None:
    """Some rows are there, and none twice."""
    more = numbers - Counter(range(stream_job.ROWS))
    assert not more, f"{more.total()} rows too many, such as {more.most_common(3)}"
    assert len(numbers) >= least


@pytest.mark.parametrize("what", ["rows", "committed"])
def test_rows_of_workers_that_are_killed(tmp_path: Path, what: str) -> None:
    """No row is there twice, whatever died when, at a function or at a sink that commits."""
    killed(tmp_path, what)
    check_once(Counter(row["row"] for row in read(tmp_path / "results")))


def test_messages_that_come_again(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    """A queue redelivers messages that were unacknowledged when a worker died: they may have been rows already, so they
    are dropped.
    """
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("once", durable=True)
        for at in range(20_000):
            channel.basic_publish("", "once", json.dumps({"row": at}))
    killed(tmp_path, "rabbitmq", rabbitmq.url)
    numbers = Counter(row["row"] for row in read(tmp_path / "results"))
    check_once(numbers)
    with rabbitmq.connect() as connection:
        assert connection.channel().queue_declare("once", passive=True).method.message_count == 0


def test_kafka_to_kafka(tmp_path: Path, kafka: Kafka) -> None:
    """From topic to topic, without transactions; without a failure, all records arrive."""

    def found() -> Counter[int]:
        return Counter(json.loads(value or b"{}")["row"] for value in kafka.values("once-out"))

    kafka.create_topic("once-in", 4)
    kafka.create_topic("once-out")
    kafka.produce("once-in", [json.dumps({"row": at}) for at in range(stream_job.ROWS)])
    (tmp_path / "killed").mkdir()
    killed(tmp_path / "killed", "kafka", kafka.bootstrap)
    first = found()
    # All of it may have been in flight when the first worker died.
    check_once(first, 0)
    for name in ("results", "pids"):
        (tmp_path / name).mkdir()
    done = launched.run("run", "-n", "2", JOB, tmp_path, "kafka", kafka.bootstrap)
    assert done.returncode == 0, done.stderr.decode()
    assert found() - first == Counter(range(stream_job.ROWS))


def test_windows_of_workers_that_are_killed(tmp_path: Path) -> None:
    """The contents of windows are lost when their worker is killed, and nothing counts twice."""
    killed(tmp_path, "windows")
    seen = read(tmp_path / "results")
    # A row in two windows, or in one that comes twice, would make a count too large; rows kept at the kill are missing.
    expected: Counter[tuple[int, str]] = Counter()
    for line in stream_job.expected("windows").elements():
        row = json.loads(line)
        expected[row["key"], row["window_start"]] += row["n"]
    counts: Counter[tuple[int, str]] = Counter()
    for row in seen:
        counts[row["key"], row["window_start"]] += row["n"]
    assert not (counts - expected), (counts - expected).most_common(3)
    assert 100 < counts.total() < expected.total()


def test_a_job_that_is_stopped_loses_nothing(tmp_path: Path) -> None:
    """Rows that wait for their checkpoint when a job stops are read again; without a failure all rows are there, once."""
    rows = pa.table({"n": list(range(3000))})
    seen: list[int] = []
    for _ in range(100):
        stream = tm.stream.from_table(rows, rows_per_batch=10, rows_per_s=4000)
        before = len(seen)
        stream.write_stream(
            lambda table: seen.extend(table.to_dict()["n"]),
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="20ms"),
            guarantee="at_most_once",
            stop_when=lambda begun=before: len(seen) >= begun + 500,  # type: ignore[misc]
        )
        if len(seen) == before:
            break
    assert sorted(seen) == list(range(3000))


def test_nothing_is_kept_but_places(tmp_path: Path) -> None:
    """A checkpoint with states or rows in it would bring back rows that had their chance."""
    rows = (
        tm.from_dict({"s": list(range(100_000))}).select(at=tm.col("s").cast("timestamp[s]"), s=tm.col("s")).collect()
    )
    stream = tm.stream.from_table(rows, time="at", rows_per_batch=10, rows_per_s=2000)
    counts = stream.group_by("s", tm.stream.window(tm.stream.tumbling("1d"), on="at")).agg(n=tm.count())
    looked: list[int] = []

    def look() -> bool:
        # Within the stream: with windows that are full of rows.
        manifests = sorted(launched.epochs(tmp_path / "c"))
        if len(manifests) < 3:
            return False
        tasks = json.loads(manifests[-1].read_bytes().split(b"\n", 1)[1])["tasks"]
        looked.append(sum(len(task["buckets"]) for task in tasks.values()))
        splits = {name: len(task["splits"]) for name, task in tasks.items()}
        assert all(count == 0 or name.startswith("source") for name, count in splits.items()), splits
        return len(looked) > 5

    counts.write_stream(
        lambda _: None,
        checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="20ms"),
        guarantee="at_most_once",
        stop_when=look,
    )
    assert looked and set(looked) == {0}


def test_what_sources_and_sinks_give(tmp_path: Path) -> None:
    """A job whose source repeats rows must neither pass for exactly-once, nor be refused the guarantee it does give."""
    schema = {"n": "int64"}
    files = tm.stream.to_files(tmp_path / "out")
    rabbit = tm.stream.from_rabbitmq("amqp://localhost", "q", schema)
    known = tm.stream.from_rabbitmq("amqp://localhost", "q", schema, id="message_id")
    durable = tm.stream.from_webhook(1, schema, answer="durable")
    table = tm.stream.from_table(pa.table({"n": [1, 2]}))
    for stream, committed, called in (
        (table, "exactly once", "at least once"),
        (known, "exactly once", "at least once"),
        (rabbit, "at least once", "at least once"),
        (durable, "at least once", "at least once"),
        (table.union(rabbit), "at least once", "at least once"),
        (tm.stream.from_socket("localhost", 1, schema), "at most once", None),
        (tm.stream.from_webhook(1, schema), "at most once", None),
        (durable.union(tm.stream.from_webhook(2, schema)), None, None),
    ):
        for sink, gives in ((files, committed), (print, called)):
            text = stream.explain(sink=sink)
            expected = "may miss some rows, and get others more" if gives is None else f"has each row {gives}\n"
            assert expected in text, text
    options = {"checkpoint": tmp_path / "c", "guarantee": "exactly_once"}
    with pytest.raises(tm.DataSetError, match=r"rabbitmq q may deliver some rows again.*id= identifies messages"):
        rabbit.write_stream(files, **options)
    with pytest.raises(tm.DataSetError, match=r"webhook .* may deliver some rows again"):
        durable.write_stream(files, **options)
    with pytest.raises(tm.DataSetError, match="cannot be read again"):
        tm.stream.from_webhook(1, schema).write_stream(files, **{**options, "guarantee": "at_least_once"})
    [port] = free_ports(1)
    begun = tm.stream.from_webhook(port, schema, answer="durable")
    begun.write_stream(files, checkpoint=tmp_path / "d", guarantee="at_least_once", stop_when=lambda: True)


def test_what_it_needs(tmp_path: Path) -> None:
    """A job that cannot keep its word does not begin; explain says what each choice gives."""
    stream = tm.stream.from_table(pa.table({"n": [1, 2]}))
    with pytest.raises(tm.DataSetError, match="cannot give at most once: it makes no checkpoints"):
        stream.write_stream(print, guarantee="at_most_once")
    with pytest.raises(tm.DataSetError, match="interval=0 must be greater than zero"):
        stream.write_stream(
            print, guarantee="at_most_once", checkpoint=tm.stream.Checkpoint(tmp_path / "a", interval=0)
        )
    hook = tm.stream.from_webhook(1, {"n": "int64"}, answer="durable")
    with pytest.raises(tm.DataSetError, match='at most once needs "taken"'):
        hook.write_stream(print, guarantee="at_most_once", checkpoint=tmp_path / "b")
    text = stream.explain(sink=tm.stream.to_files(tmp_path / "out"))
    assert "the sink files" in text and "has each row exactly once" in text
    assert "the sink print has each row at least once" in stream.explain(sink=print)
    lost = tm.stream.from_webhook(1, {"n": "int64"})
    assert "the sink print may miss some rows, and get others more than once" in lost.explain(sink=print)
    assert 'guarantee="at_most_once":' in text and "is not read again" in text
    with pytest.raises(tm.DataSetError, match="sink= is for streams"):
        tm.from_dict({"n": [1]}).explain(sink=print)
