"""Jobs that would read what they write: what is refused, what only looks like it, and what is intended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill as tm
from stream_files import SCHEMA, lines
from tidemill._streaming.check import look_at_sinks
from tidemill.stream._options import described


@pytest.mark.filterwarnings("ignore:from_files")
def test_a_job_that_would_read_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row was read, written, read again, and so on until the disk was full."""
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "in", 3)
    files, to_files = tm.stream.from_files, tm.stream.to_files

    def refused(stream: tm.DataSet, sink: Any, **more: Any) -> None:
        with pytest.raises(tm.DataSetError, match=r"the job would read what it writes: .*in.* is within .*in"):
            stream.write_stream(sink, **more)

    options: Any = {"time": "ts", "stop_at_end": True}
    stream = files("in", SCHEMA, **options)
    for folder in ("in", "in/", tmp_path / "in/out", "in/deep/out", "else/../in/out"):
        refused(stream, to_files(folder))
    for path, folder in (("in/**/*.jsonl", "in/a/b"), (tmp_path / "in/*.csv", "in"), ("i?/*/part-*", "in/out")):
        refused(files(path, SCHEMA, **options), to_files(folder, format="csv" if "csv" in str(path) else "json"))
    # However the rows reach the sink, and whichever sink it is.
    refused(stream.filter(tm.col("x") > 0).map_batches(lambda batch: batch, SCHEMA), to_files("in/out"))
    rate = tm.stream.from_generator(rows=3).select(
        key=tm.lit("a"), ts=tm.col("time").cast("timestamp[ms]"), x=tm.col("number")
    )
    refused(rate.union(stream), to_files("in/out"))
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(n=tm.count())
    refused(counts, to_files("out"), late_output=to_files("in/late"))
    with pytest.raises(tm.DataSetError, match="in/out is within in; write"):
        tm.stream.write([(rate, to_files("out")), (stream, to_files("in/out"))])
    # By way of other queries, of which the error names only those in the circle.
    middle, last = (files(folder, SCHEMA) for folder in ("middle", "last"))
    ways = r"writes: in/a is within in/\*/\*, and middle is within middle, and last/b is within last; write"
    circle = [(last, to_files("in/a")), (files("in/*/*", SCHEMA).union(rate), to_files("middle"))]
    with pytest.raises(tm.DataSetError, match=ways):
        tm.stream.write([(middle, to_files("out")), *circle, (middle.union(rate), to_files("last/b"))])
    refused(files("s3://b/in", SCHEMA), to_files("s3://b/in/out"))
    refused(files("s3://b/in", SCHEMA), to_files("s3://b/in/"))
    # Where nothing reads it.
    for path, folder in (("in", "in/_out"), ("in/*.json", "in"), ("in/*", "in/out"), ("in", "out"), ("in", "input")):
        files(path, SCHEMA, **options).write_stream(to_files(folder))
    endpoint = {"aws_endpoint": "http://127.0.0.1:1", "aws_allow_http": "true"}
    objects = described("files", path="s3://b/in", format="json")

    def look(*sinks: tuple[Any, list[str]]) -> None:
        look_at_sinks((sink.spec, sources) for sink, sources in sinks)

    for url, storage in (("s3://b/inner", None), ("s3://b/in/_out", None), ("s3://b/in/out", endpoint)):
        look((to_files(url, storage_options=storage), [objects]))
    with pytest.raises(tm.DataSetError, match="would read what it writes"):
        look((to_files("s3://b/in/out"), [objects]))
    # A query that reads them does not write to their source.
    look((to_files("s3://b/in/out"), []), (to_files("s3://b/out"), [objects]))


def test_a_job_that_would_read_the_topic_that_it_writes(tmp_path: Path) -> None:
    """For brokers, as for folders: different spellings of the same place, and what only looks like it."""
    kafka, redis, rabbitmq = tm.stream.from_kafka, tm.stream.from_redis, tm.stream.from_rabbitmq
    to_kafka, to_redis, to_rabbitmq = tm.stream.to_kafka, tm.stream.to_redis, tm.stream.to_rabbitmq
    options: Any = {"on_error": "quarantine"}

    def refused(why: str, *queries: tuple[tm.DataSet, Any], **more: Any) -> None:
        with pytest.raises(tm.DataSetError, match=f"the job would read what it writes: {why}"):
            tm.stream.write(queries, **more)

    topic = kafka("one:1,two", "t", SCHEMA, time="ts")
    why = "it writes the topic 't' of two:9092, and reads it; write into another topic"
    refused(why, (topic, to_kafka("TWO:9092", "t")))
    refused(why, (topic.select("x"), print), (topic, to_kafka("two,three:3", "t", id="job")))
    refused(why + ", or pass allow_loops=True", (topic, to_kafka("two", "t")))
    counts = topic.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(n=tm.count())
    refused(why, (counts, print), late_output=to_kafka("two", "t"))
    refused(why, (counts, print), late_output={"window 2": to_kafka("two", "t")})
    refused(why, (kafka("two", "t", SCHEMA, quarantine=to_kafka("two", "t"), **options), print))
    entries = redis("redis://me:secret@host/0", ["s", "t"], SCHEMA)
    why = "it writes the stream 't' of host:6379, and reads it; write into another stream"
    refused(why, (entries, to_redis("redis://host:6379", stream="t")))
    messages = rabbitmq("amqp://me:secret@host", "q", SCHEMA)
    why = "it writes the queue 'q' of host:5672, and reads it; write into another queue"
    refused(why, (messages, to_rabbitmq("amqp://host:5672/%2f", "q")))
    refused(why, (messages, to_rabbitmq("amqp://host", exchange="", routing_key="q")))
    # By way of other topics.
    why = (
        f"it writes the stream 's' of host:6379, and reads it, and {tmp_path}/out is within {tmp_path}; "
        "write into another stream, or a folder that is not within"
    )
    files = tm.stream.from_files(tmp_path, SCHEMA, time="ts")
    refused(why, (files, to_redis("redis://host", stream="s")), (entries, tm.stream.to_files(tmp_path / "out")))

    read_topic = described("kafka", servers="one:1,two", topic="t")
    read_stream = described("redis", url="redis://host", streams=["t"])
    read_queue = described("rabbitmq", url="amqp://host", queue="q")
    for source, sink in (
        (read_topic, to_kafka("two", "u")),
        (read_topic, to_kafka("three", "t")),
        (read_stream, to_redis("redis://host/1", stream="t")),
        (read_stream, to_redis("redis://host", key="x")),
        (read_stream, to_redis("redis://other", stream="t")),
        (read_queue, to_rabbitmq("amqp://host/v", "q")),
        (read_queue, to_rabbitmq("amqps://host", "q")),
        (read_queue, to_rabbitmq("amqp://host", exchange="e", routing_key="q")),
        (read_queue, to_kafka("host:5672", "q")),
    ):
        look_at_sinks([(sink.spec, [source])])


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_sinks_have_rows_of_their_own_sources_alone(tmp_path: Path) -> None:
    """Late rows and bad records were assumed to come from all sources of the job, which was refused although nothing
    forms a circle.
    """
    lines(tmp_path / "one", 3)
    lines(tmp_path / "two", 3)
    options: Any = {"time": "ts", "stop_at_end": True}
    one = tm.stream.from_files(tmp_path / "one", SCHEMA, **options)
    into = tm.stream.to_files(tmp_path / "one/more")
    two = tm.stream.from_files(tmp_path / "two", SCHEMA, on_error="quarantine", quarantine=into, **options)
    rows: list[Any] = []
    one.union(two).write_stream(lambda table: rows.extend(table.to_pylist()))
    assert len(rows) >= 6
    two = tm.stream.from_files(tmp_path / "two", SCHEMA, **options)
    counts = two.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="ts")).agg(n=tm.count())
    queries = [(one, tm.stream.to_files(tmp_path / "out")), (counts, print)]
    tm.stream.write(queries, late_output=into)
    with pytest.raises(tm.DataSetError, match="would read what it writes"):
        tm.stream.write(queries, late_output=tm.stream.to_files(tmp_path / "two/late"))
    one = tm.stream.from_files(tmp_path / "one", SCHEMA, on_error="quarantine", quarantine=into, **options)
    with pytest.raises(tm.DataSetError, match="would read what it writes"):
        one.union(two).write_stream(print)


def test_rows_that_are_meant_to_come_back(tmp_path: Path) -> None:
    """For records that are retried a few times: the job was refused, whatever its program knew."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/first.jsonl").write_text('{"tries": 0}\n{"tries": 2}\n')
    seen: list[int] = []
    tries = tm.stream.from_files(tmp_path / "in", {"tries": "int64"}, poll_interval="10ms", discovery_interval="10ms")
    again = tries.filter(tm.col("tries") < 3).select(tries=tm.col("tries") + 1)
    tm.stream.write(
        [
            (again, tm.stream.to_files(tmp_path / "in/again")),
            (tries, lambda rows: seen.extend(rows.to_dict()["tries"])),
        ],
        allow_loops=True,
        checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval=0.05),
        stop_when=lambda: len(seen) >= 6,
    )
    assert sorted(seen) == [0, 1, 2, 2, 3, 3]


def test_a_loop_is_refused_on_every_worker(tmp_path: Path) -> None:
    lines(tmp_path / "in", 3)
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import tidemill as tm
stream = tm.stream.from_files({str(tmp_path / "in")!r}, {SCHEMA!r}, stop_at_end=True)
try:
    stream.write_stream(tm.stream.to_files({str(tmp_path / "in/out")!r}))
except tm.DataSetError as error:
    print(error)
"""
    )
    done = launched.run("run", "-n", "2", app)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"would read what it writes") == 2
