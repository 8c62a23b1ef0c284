"""Connectors by way of Python: a few calls each, and the errors about wrong arguments. Tests beside the connectors
cover reading and writing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import launched
import pyarrow as pa
import pytest
import redis
import tidemill as tm
from confluent_kafka import TopicPartition
from local_servers import Kafka, Redis
from local_servers.server import free_ports
from stream_files import SCHEMA, lines


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("part-*")) for line in file.read_text().splitlines()]


def test_files_to_files(tmp_path: Path) -> None:
    lines(tmp_path / "in", 3000)
    stream = tm.stream.from_files(tmp_path / "in", SCHEMA, time="ts", stop_at_end=True)
    counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(
        n=tm.count(), s=tm.col("x").sum()
    )
    counts.write_stream(
        tm.stream.to_files(tmp_path / "out"), checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="50ms")
    )
    rows = read(tmp_path / "out")
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows) == 5 * 6
    assert (sum(row["n"] for row in rows), sum(row["s"] for row in rows)) == (3000, sum(range(3000)))


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_folders_of_values(tmp_path: Path, format: Any) -> None:
    """Folders ``column=value`` in each format: a stopped and resumed job has each row once, and leftovers of a killed
    one are removed.
    """
    count, out = 4000, tmp_path / "out"
    rows = tm.from_dict({"n": list(range(count))}).select(
        "n", place=tm.when(tm.col("n") % 3 == 0).then(tm.lit(None)).otherwise(tm.lit("a/b c=%")), day=tm.col("n") % 2
    )
    table = rows.collect()

    def run(stop: Callable[[], bool] | None) -> None:
        stream = tm.stream.from_table(table, rows_per_batch=50, rows_per_s=20_000)
        sink = tm.stream.to_files(out, format=format, partition_by=["day", "place"])
        stream.write_stream(
            sink, checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="50ms"), stop_when=stop
        )

    run(lambda: any(out.rglob("part-*")))
    # As a killed job leaves it.
    left = next(iter(out.glob("day=*/place=*"))) / ".part-0-left1.open"
    left.write_text("not whole")
    run(None)
    assert not left.exists()
    read = {"json": tm.read_json, "csv": tm.read_csv, "parquet": tm.read_parquet}[format]
    found = read(out).collect().to_pylist()
    wanted = {(n, None if n % 3 == 0 else "a/b c=%", str(n % 2)) for n in range(count)}
    assert len(found) == count
    assert {(int(row["n"]), row["place"], str(row["day"])) for row in found} == wanted
    with pytest.raises(tm.DataSetError, match='names "nothing", which is not a column; there are: n, place, day'):
        tm.stream.from_table(table).write_stream(tm.stream.to_files(tmp_path / "o", partition_by="nothing"))


def test_csv_and_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;key\n1;a\n2;b\n")
    seen: list[dict[str, Any]] = []
    stream = tm.stream.from_files(
        tmp_path / "a.csv", {"key": "str", "x": "int64"}, format="csv", delimiter=";", stop_at_end=True
    )
    stream.write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert seen == [{"key": "a", "x": 1}, {"key": "b", "x": 2}]
    text = tm.stream.from_files(tmp_path / "*.csv", format="text", stop_at_end=True)
    text.write_stream(tm.stream.to_files(tmp_path / "out", format="csv"))
    written = [line for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines()]
    assert {"x;key", "1;a", "2;b"} <= set(written)


def test_a_generator() -> None:
    seen: list[dict[str, Any]] = []
    stream = tm.stream.from_generator(rows=10_000, keys=10, splits=3)
    windows = stream.group_by("key", tm.stream.window(tm.stream.tumbling("1ms"), on="time")).agg(n=tm.count())
    windows.write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert sum(row["n"] for row in seen) == 10_000
    assert {row["key"] for row in seen} == set(range(10))
    seen.clear()
    tm.stream.from_generator(1e6, rows=5, step="2m").write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert sorted(row["time"].minute for row in seen) == [0, 2, 4, 6, 8]


def test_workers_share_files(tmp_path: Path) -> None:
    lines(tmp_path / "in", 3000, files=7)
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import tidemill as tm
stream = tm.stream.from_files({str(tmp_path / "in")!r}, {SCHEMA!r}, time="ts", stop_at_end=True)
counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(n=tm.count())
counts.write_stream(tm.stream.to_files({str(tmp_path / "out")!r}), checkpoint={str(tmp_path / "checkpoints")!r})
"""
    )
    done = launched.run("run", "-n", "3", app)
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "out")
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows) == 5 * 6
    assert sum(row["n"] for row in rows) == 3000


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(tm.DataSetError, match="generator: `rows` is integer `-1`, but must be a non-negative integer"):
        tm.stream.from_generator(rows=-1)
    with pytest.raises(tm.DataSetError, match="`keys` must be at least 1"):
        tm.stream.from_generator(keys=0)
    for speed in (-1, float("nan"), float("inf")):
        with pytest.raises(tm.DataSetError, match=r"rows_per_s=.* must be positive"):
            tm.stream.from_generator(speed)
    with pytest.raises(tm.DataSetError, match="schema= must be types by column"):
        tm.stream.from_files(tmp_path, 5)
    with pytest.raises(
        tm.DataSetError, match="files source: `format` is `xml`, but must be one of `json`, `csv`, `text`"
    ):
        tm.stream.from_files(tmp_path, SCHEMA, format="xml")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="`on_error` is `ignore`, but must be one of `raise`, `skip`"):
        tm.stream.from_files(tmp_path, SCHEMA, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match=r"topic=.* must be a topic name, a non-empty string"):
        tm.stream.from_kafka("127.0.0.1:1", ["a", "b"], SCHEMA)  # type: ignore[arg-type]
    for sink in (
        tm.stream.to_kafka("127.0.0.1:1", "topic", key="zz"),
        tm.stream.to_redis("redis://127.0.0.1:1/0", key="zz"),
        tm.stream.to_rabbitmq("amqp://127.0.0.1:1", exchange="x", key="zz"),
    ):
        with pytest.raises(tm.DataSetError, match='`key`: no column "zz"; the columns are number, time, key'):
            tm.stream.from_generator(rows=1).write_stream(sink)
    with pytest.raises(tm.DataSetError, match="files sink"):
        tm.stream.from_generator(rows=1).write_stream(tm.stream.to_files("https://host/folder"))
    (tmp_path / "a.json").write_text('{"key": "a", "x": "seven"}\n')
    with pytest.raises(tm.DataSetError, match=r"a\.json"):
        tm.stream.from_files(tmp_path, SCHEMA, stop_at_end=True).write_stream(lambda _: None)


def test_files_that_are_compressed(tmp_path: Path) -> None:
    """The error said that a text ends where it should not."""
    rows = "x,key\n" + "".join(f"{at},{at * at}\n" for at in range(1000))
    (tmp_path / "a.gz").write_bytes(gzip.compress(rows.encode()))
    for format in ("json", "csv"):
        stream = tm.stream.from_files(tmp_path, SCHEMA, format=format, stop_at_end=True)  # type: ignore[arg-type]
        with pytest.raises(tm.DataSetError, match=r"a\.gz.*: it is compressed and must be unpacked first"):
            stream.write_stream(lambda _: None)


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    """They silently became nulls, and nulls in a map were lost."""
    numbers = [float("nan"), float("inf"), float("-inf"), 0.5, None]
    maps = pa.array([[("a", number)] for number in numbers], pa.map_(pa.string(), pa.float64()))
    rows = pa.table({"x": pa.array(numbers, pa.float32()), "list": [[number] for number in numbers], "map": maps})
    tm.stream.from_table(rows).write_stream(tm.stream.to_files(tmp_path))
    found = read(tmp_path)
    assert [row.get("x") for row in found] == ["NaN", "Infinity", "-Infinity", 0.5, None]
    assert [row["map"] for row in found] == [{"a": row["list"][0]} for row in found]
    seen: list[Any] = []
    stream = tm.stream.from_files(tmp_path, rows.schema, stop_at_end=True)
    stream.write_stream(lambda table: seen.extend(table.to_pylist()))
    assert str(seen) == str(rows.to_pylist())


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """Nothing ever reported a misspelled path."""
    lines(tmp_path / "in", 3)
    for wrong in ("in.json", "in/*.csv"):
        with pytest.warns(UserWarning, match=f"there is no file .*{re.escape(wrong)} yet"):
            tm.stream.from_files(tmp_path / wrong, SCHEMA, stop_at_end=True).write_stream(print)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for right in ("in", "in/*.json"):
            tm.stream.from_files(tmp_path / right, SCHEMA)


def test_late_rows_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is for one sink, however its path is written."""
    monkeypatch.chdir(tmp_path)
    counts = (
        tm.stream.from_generator(rows=9)
        .group_by(tm.stream.window(tm.stream.tumbling("1s"), on="time"))
        .agg(n=tm.count())
    )
    for one, other in ((tmp_path / "out", "out/"), ("s3://jobs/out", "s3://jobs/out/")):
        with pytest.raises(tm.DataSetError, match="two sinks write into the same folder"):
            counts.write_stream(tm.stream.to_files(one), late_output=tm.stream.to_files(other, prefix="late"))
    counts.write_stream(tm.stream.to_files("out"), late_output=tm.stream.to_files("late"))


def test_rotated_logs(tmp_path: Path) -> None:
    """A log that is renamed and created again, and one that is removed while no job runs: lines of the new one never
    came.
    """
    log, checkpoint = tmp_path / "app.log", tmp_path / "checkpoints"
    seen: list[int] = []

    def read(until: int) -> None:
        stream = tm.stream.from_files(log, {"x": "int64"})
        stream.write_stream(
            lambda rows: seen.extend(row["x"] for row in rows.to_pylist()),
            checkpoint=tm.stream.Checkpoint(checkpoint, interval="100ms"),
            stop_when=lambda: rotate() or len(seen) >= until,
        )

    def write(numbers: range) -> None:
        with log.open("a") as file:
            file.writelines(f'{{"x": {at}}}\n' for at in numbers)

    def rotate() -> bool:
        if len(seen) == 10 and not (tmp_path / "app.log.1").exists():
            log.rename(tmp_path / "app.log.1")
            write(range(10, 100))
        return False

    write(range(10))
    read(until=100)
    log.unlink()
    write(range(100, 400))
    read(until=400)
    assert sorted(seen) == list(range(400))


def test_a_key_goes_where_kafkas_own_clients_put_it(kafka: Kafka, tmp_path: Path) -> None:
    """Otherwise readers of a topic with several writers, or of two joined ones, would not find all records of a key in
    one partition.
    """
    # Keys and their hashes from the tests of Kafka's own client.
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    rows = tm.stream.from_table(tm.from_dict({"key": [*hashes] * 3}))
    for name, sink in (
        ("plain", tm.stream.to_kafka(kafka.bootstrap, "plain", key="key")),
        ("once", tm.stream.to_kafka(kafka.bootstrap, "once", id="placed", key="key")),
    ):
        kafka.create_topic(name, 7)
        rows.write_stream(sink, checkpoint=tmp_path / name)
        found = Counter((record.key().decode(), record.partition()) for record in kafka.read(name))
        assert found == {(key, (number & 0x7FFFFFFF) % 7): 3 for key, number in hashes.items()}
    kafka.create_topic("otherwise", 7)
    other = tm.stream.to_kafka(kafka.bootstrap, "otherwise", key="key", config={"partitioner": "fnv1a"})
    rows.write_stream(other)
    assert {(record.key().decode(), record.partition()) for record in kafka.read("otherwise")} != set(found)


def test_kafka_to_kafka(kafka: Kafka, tmp_path: Path) -> None:
    """Records of a real broker to windows, and to records that read-committed consumers see once."""
    kafka.create_topic("clicks", 3)
    kafka.create_topic("counts", 2)
    rows = [{"key": f"k{at % 5}", "ts": f"2026-01-01T00:00:{at // 50:02}.000", "x": at} for at in range(2000)]
    kafka.produce("clicks", [json.dumps(row).encode() for row in rows])
    servers = kafka.bootstrap
    for _ in range(2):
        stream = tm.stream.from_kafka(servers, "clicks", SCHEMA, time="ts", max_out_of_orderness="1m", stop_at_end=True)
        counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(n=tm.count())
        # The second time, nothing is left to do.
        sink = tm.stream.to_kafka(servers, "counts", id="clicks-to-counts", key="key")
        counts.write_stream(sink, checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="100ms"))
    found = [json.loads(value) for value in kafka.values("counts")]
    assert len({(row["key"], row["window_start"]) for row in found}) == len(found) == 5 * 4
    assert sum(row["n"] for row in found) == 2000


def test_kafka_options_of_producers(kafka: Kafka, capfd: pytest.CaptureFixture[str]) -> None:
    """Each job warned that consumers ignore the settings meant for its producers."""
    kafka.create_topic("packed")
    sink = tm.stream.to_kafka(kafka.bootstrap, "packed", id="packed", config={"compression.type": "zstd"})
    tm.stream.from_generator(rows=10).write_stream(sink)
    assert len(kafka.values("packed")) == 10
    assert "property" not in capfd.readouterr().err


def test_kafka_jobs_of_one_name(kafka: Kafka, tmp_path: Path) -> None:
    """They kept aborting each other's transactions, and nobody was told why."""
    kafka.create_topic("same")
    sink = tm.stream.to_kafka(kafka.bootstrap, "same", id="same")
    failed: list[str] = []

    def write(number: int) -> None:
        rows = tm.stream.from_generator(200).select("number")
        try:
            rows.write_stream(
                sink,
                checkpoint=tm.stream.Checkpoint(tmp_path / str(number), interval="100ms"),
                name=f"job {number}",
                stop_when=lambda: len(failed) > 0,
            )
        except tm.DataSetError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(launched.PATIENCE_S)
    assert failed and 'another job also writes with the id "same"' in failed[0], failed


def test_a_topic_that_is_made_anew(kafka: Kafka, tmp_path: Path) -> None:
    """Its first records were silently skipped, as many as the earlier topic had had."""

    def make(topic: str, begin: int, count: int, partitions: int = 1) -> None:
        kafka.create_topic(topic, partitions)
        kafka.produce(topic, [json.dumps({"x": begin + at}) for at in range(count)], partition=partitions - 1)

    def read(topic: str, until: int) -> list[int]:
        seen: list[int] = []
        tm.stream.from_kafka(kafka.bootstrap, topic, {"x": "int64"}).write_stream(
            lambda rows: seen.extend(row["x"] for row in rows.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path / topic, interval="100ms"),
            stop_when=lambda: len(seen) >= until,
        )
        return seen

    def delete(topic: str) -> None:
        kafka.admin.delete_topics([topic])[topic].result(launched.PATIENCE_S)
        launched.wait_until(lambda: topic not in kafka.admin.list_topics(timeout=10).topics, "its end")

    make("anew", 0, 100)
    assert read("anew", 100) == list(range(100))
    # What continues is not read again.
    kafka.produce("anew", [json.dumps({"x": 100 + at}) for at in range(5)])
    assert read("anew", 5) == list(range(100, 105))
    delete("anew")
    make("anew", 0, 150)
    with pytest.raises(tm.DataSetError, match='"anew" was recreated: record 104 of partition 0 is not the one'):
        read("anew", 1)
    make("fewer", 0, 10, partitions=2)
    assert read("fewer", 10) == list(range(10))
    delete("fewer")
    make("fewer", 0, 10)
    with pytest.raises(tm.DataSetError, match='"fewer" was recreated: it has 1 partitions, but the checkpoint'):
        read("fewer", 1000)
    # Whether deleted records were the same is unknown, and there is nothing to report.
    make("short", 0, 10)
    assert read("short", 10) == list(range(10))
    end = TopicPartition("short", 0, 10)
    kafka.admin.delete_records([end])[end].result(launched.PATIENCE_S)
    kafka.produce("short", [json.dumps({"x": 10})])
    assert read("short", 1) == [10]


def test_records_without_a_value(kafka: Kafka) -> None:
    """Tombstones of a compacted topic are skipped and counted; read as bytes, they are nulls."""
    kafka.create_topic("tombstones")
    producer = kafka.producer()
    for value in (b'{"x": 1}', None, b'{"x": 2}'):
        producer.produce("tombstones", value, b"key")
    assert producer.flush(60) == 0
    seen: list[dict[str, Any]] = []
    stream = tm.stream.from_kafka(kafka.bootstrap, "tombstones", {"x": "int64"}, stop_at_end=True, on_error="skip")
    with pytest.warns(tm.BadRowsWarning, match="^1 record .* offset 1: it has no value"):
        stream.write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert seen == [{"x": 1}, {"x": 2}]
    stream = tm.stream.from_kafka(kafka.bootstrap, "tombstones", {"x": "int64"}, stop_at_end=True)
    with pytest.raises(tm.DataSetError, match="offset 1: it has no value"):
        stream.write_stream(lambda _: None)
    seen.clear()
    raw = tm.stream.from_kafka(kafka.bootstrap, "tombstones", format="raw", stop_at_end=True)
    raw.write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert [row["value"] for row in seen] == [b'{"x": 1}', None, b'{"x": 2}']


def test_headers_that_are_written(kafka: Kafka, tmp_path: Path) -> None:
    """Records keep the headers that they were read with, exactly once and at least once; or headers come from columns
    that are not in their values.
    """
    for topic in ("headed", "headed-once", "headed-again", "headed-columns"):
        kafka.create_topic(topic)
    producer = kafka.producer()
    given = [[("a", b"1"), ("a", b"\xff"), ("none", None), ("", b"")], None, [("b", "ä".encode())]]
    for at, headers in enumerate(given):
        producer.produce("headed", f"value {at}", f"key {at}", headers=headers)
    assert producer.flush(60) == 0
    records = tm.stream.from_kafka(
        kafka.bootstrap, "headed", format="raw", metadata={"k": "key", "h": "headers"}, stop_at_end=True
    )
    options: Any = {"key": "k", "value": "value", "headers": "h"}
    once = tm.stream.to_kafka(kafka.bootstrap, "headed-once", id="headed", **options)
    tm.stream.write(
        [(records, once), (records, tm.stream.to_kafka(kafka.bootstrap, "headed-again", **options))],
        checkpoint=tmp_path / "checkpoints",
    )

    def read(topic: str) -> list[tuple[Any, Any, Any]]:
        return [(record.key(), record.value(), record.headers()) for record in kafka.read(topic)]

    assert len(read("headed")) == 3 and read("headed-once") == read("headed-again") == read("headed")

    table = pa.table(
        {
            "x": [1, 2],
            "trace": ["t", None],
            "n": [7, 8],
            "all": pa.array([[("m", b"1")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    stream = tm.stream.from_table(table)
    columns = tm.stream.to_kafka(
        kafka.bootstrap, "headed-columns", headers=[{"trace-id": "trace"}, "all", {"number": "n"}]
    )
    stream.write_stream(columns)
    assert [(json.loads(value), headers) for _, value, headers in read("headed-columns")] == [
        ({"x": 1}, [("trace-id", b"t"), ("m", b"1"), ("number", b"7")]),
        ({"x": 2}, [("number", b"8")]),
    ]

    for wrong, why in (
        ("x", 'column "x" is Int64; a column with all headers of a record must be a list of structs of `name`'),
        ({"h": "all"}, 'column "all" is Map.*a header has one value'),
        ("y", '`headers`: no column "y"; the columns are x, trace, n, all'),
        (["all", {"a": "x", "b": "trace", "c": "n"}], "takes all columns, so none is left for values"),
    ):
        with pytest.raises(tm.DataSetError, match=why):
            stream.write_stream(tm.stream.to_kafka("127.0.0.1:1", "t", headers=wrong))  # type: ignore[arg-type]
    for of in (5, b"h", {"h": 5}, {5: "h"}, ["h", None]):
        with pytest.raises(TypeError, match="headers= must have column names, or columns by header name, not"):
            tm.stream.to_kafka("127.0.0.1:1", "t", headers=of)  # type: ignore[arg-type]


def test_what_is_known_of_records(kafka: Kafka) -> None:
    """Columns after those of values, without bad records; one of them as the time; and reading from a given time."""
    kafka.create_topic("known", 2)
    producer = kafka.producer()
    second = 1_790_000_000_000
    for at, value in enumerate([b'{"x": 0}', b"{", b'{"x": 2}', b'{"x": 3}']):
        headers = [("a", b"\xff"), ("a", None)] if at == 2 else None
        key = None if at == 3 else f"key {at}".encode()
        producer.produce("known", value, key, partition=1, timestamp=second + 500 * at, headers=headers)
    assert producer.flush(60) == 0

    def read(start: Any = "earliest", **metadata: Any) -> list[dict[str, Any]]:
        stream = tm.stream.from_kafka(
            kafka.bootstrap, "known", {"x": "int64"}, start=start, metadata=metadata, on_error="skip", stop_at_end=True,
            time="at" if "at" in metadata else None,
        )  # fmt: skip
        seen: list[dict[str, Any]] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tm.BadRowsWarning)
            stream.write_stream(lambda rows: seen.extend(rows.to_pylist()))
        return seen

    when = datetime.fromtimestamp(second / 1000, timezone.utc).replace(tzinfo=None)
    seen = read(of="topic", at="timestamp", k="key", h="headers", p="partition", o="offset")
    two = [{"name": "a", "value": b"\xff"}, {"name": "a", "value": None}]
    assert seen == [
        {"x": 0, "of": "known", "at": when, "k": b"key 0", "h": [], "p": 1, "o": 0},
        {"x": 2, "of": "known", "at": when + timedelta(seconds=1), "k": b"key 2", "h": two, "p": 1, "o": 2},
        {"x": 3, "of": "known", "at": when + timedelta(seconds=1.5), "k": None, "h": [], "p": 1, "o": 3},
    ]
    later = when + timedelta(seconds=0.75)
    assert read(later, o="offset") == read(later.replace(tzinfo=timezone.utc), o="offset") == [
        {"x": 2, "o": 2},
        {"x": 3, "o": 3},
    ]  # fmt: skip
    assert read(when + timedelta(days=1)) == []
    # No broker knows such a time, and all records are later.
    assert [row["x"] for row in read(datetime(1969, 12, 31))] == [0, 2, 3]
    with pytest.raises(tm.DataSetError, match='adds a column "x", which already exists'):
        read(x="offset")
    with pytest.raises(tm.DataSetError, match="`metadata` is `size`, but must be one of `topic`, `partition`"):
        read(o="size")
    raw = tm.stream.from_kafka(
        kafka.bootstrap, "known", format="raw", metadata={"of": "topic", "h": "headers"}, stop_at_end=True
    )
    found: list[dict[str, Any]] = []
    raw.write_stream(lambda rows: found.extend(rows.to_pylist()))
    assert [(row["key"], row["value"], row["offset"], row["of"], row["h"]) for row in found] == [
        (b"key 0", b'{"x": 0}', 0, "known", []),
        (b"key 1", b"{", 1, "known", []),
        (b"key 2", b'{"x": 2}', 2, "known", two),
        (None, b'{"x": 3}', 3, "known", []),
    ]


def test_a_partition_behind_a_transaction(kafka: Kafka, tmp_path: Path) -> None:
    """The end marker of a transaction is not a record: a partition that ends with one has nothing, and holds nobody's
    time back.
    """
    kafka.create_topic("transacted", 2)
    writer = kafka.producer(transactional_id="writer")
    writer.init_transactions(60)
    writer.begin_transaction()
    begun = 1_790_000_000_000
    writer.produce("transacted", b'{"n": 0}', partition=0, timestamp=begun)
    writer.commit_transaction(60)
    # So many that there is always something to read.
    count = 300_000
    other = kafka.producer(queue_buffering_max_messages=count)
    for n in range(1, count):
        other.produce("transacted", b'{"n": %d}' % n, partition=1, timestamp=begun + n)
    assert other.flush(60) == 0
    taken = 0
    over: list[int] = []

    def slowly(rows: tm.Table) -> tm.Table:
        nonlocal taken
        time.sleep(0.05)
        taken += rows.num_rows
        return rows

    stream = tm.stream.from_kafka(
        kafka.bootstrap, "transacted", {"n": "int64"}, metadata={"at": "timestamp"}, time="at", idle_after="50ms"
    )
    read = stream.map_batches(slowly, schema={"n": "int64", "at": "timestamp[ms]"})
    counts = read.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.count())
    counts.write_stream(lambda _: over.append(taken), checkpoint=tmp_path / "c", stop_when=lambda: taken == count)
    assert over and over[0] < count * 3 // 4, "the first window was over when all was read"
    assert tm.last_report().late_rows == 0


def test_avro(kafka: Kafka) -> None:
    """Values of two writers' schemas, one of a third, and plain ones."""
    x = {"name": "x", "type": "long"}
    old: dict[str, Any] = {"type": "record", "name": "Click", "fields": [x]}
    new = old | {"fields": [{"name": "s", "type": "string"}, x]}
    schema = old | {"fields": [x, {"name": "s", "type": ["null", "string"], "default": None}]}
    kafka.create_topic("avro", 1)
    kafka.produce("avro", [b"\0\0\0\0\x07\x04", b"\0\0\0\1\x02\x02a\x06", b"\0\0\0\0\x09\x04", b"\x04"])
    seen: list[dict[str, Any]] = []

    def read(**options: Any) -> list[dict[str, Any]]:
        seen.clear()
        stream = tm.stream.from_kafka(
            kafka.bootstrap, "avro", format="avro", stop_at_end=True, on_error="skip", **options
        )
        stream.write_stream(lambda rows: seen.extend(rows.to_pylist()))
        return seen

    with pytest.warns(
        tm.BadRowsWarning, match=r"^2 records .* offset 2: its schema has the number 9, but no such schema"
    ):
        assert read(avro_schema=schema, avro_writers={7: old, 258: json.dumps(new)}) == [
            {"x": 2, "s": None},
            {"x": 3, "s": "a"},
        ]
    with pytest.warns(tm.BadRowsWarning, match="^3 records"):
        assert read(avro_schema=old) == [{"x": 2}]
    with pytest.raises(tm.DataSetError, match=r"kafka source: .*avro_schema"):
        read()


def test_records_that_are_no_rows(kafka: Kafka, tmp_path: Path) -> None:
    """Finds a poison record that stops the job, that silently disappears, or whose place nobody can find again."""
    kafka.create_topic("poison", 2)
    kafka.produce("poison", [b'{"x": 1}', b"nonsense", b'{"x": 2}', b"\xff\x00"], partition=0)
    kafka.produce("poison", [b'{"x": "seven"}', b'{"x": 3}'], partition=1)

    def read(**options: Any) -> list[int]:
        seen: list[int] = []
        stream = tm.stream.from_kafka(kafka.bootstrap, "poison", {"x": "int64"}, stop_at_end=True, **options)
        stream.write_stream(lambda rows: seen.extend(row["x"] for row in rows.to_pylist()))
        return sorted(seen)

    with pytest.raises(tm.DataSetError, match=r'topic "poison", partition \d, offset \d: .*on_error'):
        read()
    with pytest.warns(
        tm.BadRowsWarning, match=r'^3 records that are not rows were left out; the first: kafka poison: topic "poison"'
    ):
        assert read(on_error="skip") == [1, 2, 3]
    assert tm.last_report().skipped_rows == 3
    with pytest.warns(tm.BadRowsWarning, match="^3 records"):
        assert read(on_error="quarantine", quarantine=tmp_path / "bad") == [1, 2, 3]
    found = [json.loads(line) for file in (tmp_path / "bad").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert all(record.pop("topic") == "poison" and record.pop("reason") for record in found)
    assert all(record.pop("timestamp") > 1.7e12 for record in found)
    assert sorted(found, key=lambda record: (record["partition"], record["offset"])) == [
        {"partition": 0, "offset": 1, "text": "nonsense"},
        {"partition": 0, "offset": 3, "hex": "ff00"},
        {"partition": 1, "offset": 0, "text": '{"x": "seven"}'},
    ]
    with pytest.raises(tm.DataSetError, match="need each other"):
        read(on_error="quarantine")


def test_poison_can_be_produced_again(kafka: Kafka, tmp_path: Path) -> None:
    """Only the value of a quarantined record was kept: its key and its headers were lost."""
    kafka.create_topic("sick")
    kafka.create_topic("again")
    headers = [("trace", b"7"), ("raw", b"\xff"), ("none", None), ("trace", b"8")]
    producer = kafka.producer()
    for key, value in ((b"ann", b"nonsense"), (b"\xfe", b"\xff\x00"), (b"ben", None), (None, b"")):
        producer.produce("sick", value, key, headers=headers if key else None, timestamp=1_767_225_600_123)
    producer.produce("sick", b'{"x": 1}', b"good")
    producer.flush()
    options: Any = {"stop_at_end": True, "on_error": "quarantine", "quarantine": tmp_path / "bad"}
    rows: list[Any] = []
    stream = tm.stream.from_kafka(kafka.bootstrap, "sick", {"x": "int64"}, metadata={"key": "key"}, **options)
    with pytest.warns(tm.BadRowsWarning, match="^4 records .* offset 0: (?!.*ann)"):
        stream.write_stream(lambda table: rows.extend(table.to_pylist()))
    assert rows == [{"x": 1, "key": b"good"}]

    def as_it_was(told: Any) -> bytes | None:
        return bytes.fromhex(told["hex"]) if isinstance(told, dict) else None if told is None else told.encode()

    (file,) = (tmp_path / "bad").iterdir()
    for line in file.read_text().splitlines():
        bad = json.loads(line)
        value = bytes.fromhex(bad["hex"]) if "hex" in bad else as_it_was(bad["text"])
        found = [(header["name"], as_it_was(header["value"])) for header in bad.get("headers", [])]
        producer.produce("again", value, as_it_was(bad.get("key")), headers=found, timestamp=bad["timestamp"])
    producer.flush()

    def records(topic: str) -> list[Any]:
        found = kafka.read(topic)[:4]
        return [(record.key(), record.value(), record.headers(), record.timestamp()) for record in found]

    assert records("again") == records("sick")
    assert records("again")[0] == (b"ann", b"nonsense", headers, (1, 1_767_225_600_123))


def test_a_dead_letter_topic(kafka: Kafka) -> None:
    """Two queries over one source of bytes: rows go on, and other records go to a topic of their own, with their keys."""
    kafka.create_topic("letters")
    kafka.create_topic("dead")
    kafka.produce("letters", [b'{"x": 1}', b"nonsense", b'{"x": 2}', b"\xff"], key=b"ann")

    def parsed(batch: pa.RecordBatch) -> pa.Table:
        def number(value: bytes) -> int | None:
            try:
                return int(json.loads(value)["x"])
            except (ValueError, KeyError, TypeError):
                return None

        return pa.table({**batch.to_pydict(), "x": pa.array(map(number, batch["value"].to_pylist()), pa.int64())})

    records = tm.stream.from_kafka(kafka.bootstrap, "letters", format="raw", stop_at_end=True).select("key", "value")
    letters = records.map_batches(parsed, {"key": "binary", "value": "binary", "x": "int64"})
    rows: list[int] = []
    dead = tm.stream.to_kafka(kafka.bootstrap, "dead", key="key", value="value")
    tm.stream.write(
        [
            (letters.filter(tm.col("x").is_not_null()), lambda table: rows.extend(table.to_dict()["x"])),
            (letters.filter(tm.col("x").is_null()).select("key", "value"), dead),
        ]
    )
    assert rows == [1, 2]
    assert [(record.key(), record.value()) for record in kafka.read("dead")] == [
        (b"ann", b"nonsense"),
        (b"ann", b"\xff"),
    ]


def test_values_of_kafka_in_other_layouts(kafka: Kafka) -> None:
    """Texts, JSON after a header whose registry is not asked, and records of an open transaction."""
    kafka.create_topic("layouts")
    kafka.produce("layouts", [b"\0\0\0\0\7" + b'{"x": 1}'])

    def read(*schema: Any, **options: Any) -> list[Any]:
        seen: list[Any] = []
        options |= {"stop_at_end": True, "discovery_interval": 0, "connect_timeout": "20s"}
        stream = tm.stream.from_kafka(kafka.bootstrap, "layouts", *schema, **options)
        stream.write_stream(lambda table: seen.extend(next(iter(row.values())) for row in table.to_pylist()))
        return seen

    assert read({"x": "int64"}, confluent_header=True) == [1]
    assert read(format="text") == ['\0\0\0\0\7{"x": 1}']
    producer = kafka.producer(transactional_id="layouts")
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("layouts", b"open")
    producer.flush()
    assert len(read(format="text")) == 1
    assert read(format="text", isolation="read_uncommitted")[1:] == ["open"]
    producer.abort_transaction()


def test_a_folder_that_another_job_writes_to(tmp_path: Path) -> None:
    """A second job would take the first one's open files for leftovers, and remove them: it does not begin, and the
    first goes on.
    """
    app, out, over = tmp_path / "app.py", tmp_path / "out", tmp_path / "over"
    app.write_text(
        f"""
import sys
from pathlib import Path
import tidemill as tm

stream = tm.stream.from_generator(100, splits=1).select("number")
place, over = sys.argv[1], Path({str(over)!r})
stream.write_stream(tm.stream.to_files({str(out)!r}), checkpoint=tm.stream.Checkpoint(place, interval="1h"), stop_when=over.exists)
"""
    )
    first = launched.start("run", "-n", "2", str(app), str(tmp_path / "first"))
    launched.wait_until(lambda: any(out.glob(".part-*.open")), "a file that is open")
    second = launched.run("run", "-n", "2", str(app), str(tmp_path / "second"))
    assert second.returncode != 0 and b"another job writes there; each job needs a folder of its own" in second.stderr
    over.touch()
    _, error = first.communicate(timeout=launched.PATIENCE_S)
    assert first.returncode == 0, error.decode()
    files = [path for path in out.iterdir() if path.name[0] != "."]
    numbers = sorted(json.loads(line)["number"] for path in files for line in path.read_text().splitlines())
    assert len(numbers) > 1000 and numbers == [*range(len(numbers))]


def test_quarantines_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL became a folder called s3:, and bad lines beside the good ones were read again and again."""
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "in", 3)
    options: Any = {"on_error": "quarantine", "stop_at_end": True}
    url = "s3://bucket/bad"
    for make in (
        lambda: tm.stream.from_files("in", SCHEMA, quarantine=url, **options),
        lambda: tm.stream.from_kafka("127.0.0.1:1", "t", SCHEMA, quarantine=url, **options),
        lambda: tm.stream.from_redis("redis://127.0.0.1:1", "s", SCHEMA, quarantine=url, **options),
        lambda: tm.stream.from_rabbitmq("amqp://127.0.0.1:1", "q", SCHEMA, quarantine=url, **options),
        lambda: tm.stream.from_socket("127.0.0.1", 1, SCHEMA, quarantine=url, **options),
        lambda: tm.stream.from_websocket("ws://127.0.0.1:1", SCHEMA, quarantine=url, **options),
    ):
        with pytest.raises(tm.DataSetError, match=r"quarantine='s3://bucket/bad' must be a local folder"):
            make()
    assert not (tmp_path / "s3:").exists()
    for path, within in (
        ("in", "in"),
        ("in", tmp_path / "in/bad"),
        (tmp_path / "in", "in/deep/bad"),
        (f"file://{tmp_path}/in", "in/bad"),
        ("in/*", "in"),
        ("in/*.jsonl", "in"),
        ("in/**/*.jsonl", "in/deep/bad"),
    ):
        with pytest.raises(tm.DataSetError, match=r"quarantine=.* is within .*, which is read; use a separate folder"):
            tm.stream.from_files(path, SCHEMA, quarantine=within, **options)
    for path, beside in (
        ("in", "in/_bad"),
        ("in", "bad"),
        ("in/*.json", "in"),
        ("in/*", "in/bad"),
        ("in/0.json", "in"),
    ):
        tm.stream.from_files(path, SCHEMA, quarantine=beside, **options)


def test_files_that_are_looked_at_less_often(tmp_path: Path) -> None:
    """The interval between looks for files is a duration; other values are refused."""
    # Enough files that all threads have some: those whose rows have arrived have looked.
    count = 500
    lines(tmp_path / "in", count, files=count)
    for pause in (0, "1us"):
        with pytest.raises(tm.DataSetError, match=r"_interval=.* is too short a pause"):
            tm.stream.from_files(tmp_path / "in", SCHEMA, discovery_interval=pause)
        with pytest.raises(tm.DataSetError, match=r"_interval=.* is too short a pause"):
            tm.stream.from_files(tmp_path / "in", SCHEMA, poll_interval=pause)
    came: list[float] = []
    seen: list[Any] = []

    def take(table: tm.Table) -> None:
        seen.extend(table.to_pylist())
        came.append(time.monotonic())
        if len(seen) == count:
            (tmp_path / "in/late.json").write_text('{"x": 9}\n')

    stream = tm.stream.from_files(tmp_path / "in", SCHEMA, discovery_interval="4s", poll_interval="5ms")
    stream.write_stream(take, checkpoint=tmp_path / "c", stop_when=lambda: len(seen) > count)
    assert came[-1] - came[0] > 2


def test_topics_and_beginnings_that_are_none() -> None:
    """An empty topic name was an error of the job, or no error; for a beginning, the engine's term for a time was
    offered.
    """
    for topic in ("", None):
        for made in (tm.stream.from_kafka, tm.stream.to_kafka):
            with pytest.raises(tm.DataSetError, match=r"topic=.* must be a topic name"):
                made("127.0.0.1:1", topic)  # type: ignore[operator]
    for start in ("2020-01-01", 5, None, ["earliest"]):
        with pytest.raises(tm.DataSetError, match=r'start=.* is not "earliest", "latest" or a datetime, such as'):
            tm.stream.from_kafka("127.0.0.1:1", "t", SCHEMA, start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda port, **options: tm.stream.from_kafka(f"127.0.0.1:{port}", "t", SCHEMA, **options),
        lambda port, **options: tm.stream.from_redis(f"redis://127.0.0.1:{port}", "s", SCHEMA, **options),
        lambda port, **options: tm.stream.from_rabbitmq(f"amqp://127.0.0.1:{port}", "q", SCHEMA, **options),
        lambda port, **options: tm.stream.from_socket("127.0.0.1", port, SCHEMA, **options),
        lambda port, **options: tm.stream.from_websocket(f"ws://127.0.0.1:{port}", SCHEMA, **options),
        lambda port, **options: tm.stream.to_kafka(f"127.0.0.1:{port}", "t", **options),
        lambda port, **options: tm.stream.to_redis(f"redis://127.0.0.1:{port}", key="number", **options),
        lambda port, **options: tm.stream.to_rabbitmq(f"amqp://127.0.0.1:{port}", "q", **options),
    ],
    ids=lambda make: make.__code__.co_names[2],
)
def test_servers_that_are_not_there(make: Callable[..., Any]) -> None:
    """The wait for one was a minute, whatever the program can afford."""
    (port,) = free_ports(1)
    begun = time.monotonic()
    made = make(port, connect_timeout="300ms")
    with pytest.raises(tm.DataSetError, match=r"127\.0\.0\.1|rabbitmq"):
        if isinstance(made, tm.DataSet):
            made.write_stream(lambda _: None)
        else:
            tm.stream.from_generator(rows=3).write_stream(made)
    assert time.monotonic() - begun < 20


def test_lines_that_are_no_rows(tmp_path: Path) -> None:
    """Workers count separately: the total of dropped lines is reported once."""
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.json").write_text('{"x": 1}\n{"x":\n')
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import tidemill as tm
stream = tm.stream.from_files(
    {str(tmp_path / "in")!r}, {{"x": "int64"}}, stop_at_end=True, on_error="quarantine", quarantine={str(tmp_path / "bad")!r}
)
stream.write_stream(tm.stream.to_files({str(tmp_path / "out")!r}))
print(tm.last_report().skipped_rows)
"""
    )
    done = launched.run("run", "-n", "2", app)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [b"6", b"6", b"[0]", b"[1]"]
    assert done.stderr.count(b"6 records that are not rows were left out") == 1
    assert len(read(tmp_path / "out")) == 6
    found = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
    assert {Path(record["file"]).name for record in found} == {f"{number}.json" for number in range(6)}
    assert all(record["byte"] == 9 and record["text"] == '{"x":' for record in found)


def add(client: redis.Redis, streams: list[str], numbers: range) -> None:
    """Add an entry for each number, to one stream after the other."""
    with client.pipeline(transaction=False) as pipeline:
        for at in numbers:
            fields = {"key": f"k{at % 5}", "ts": f"2026-01-01T00:00:{at // 50 % 60:02}.000", "x": at}
            pipeline.xadd(streams[at % len(streams)], fields)
        pipeline.execute()


def test_redis_to_redis(redis_server: Redis, tmp_path: Path) -> None:
    """Entries of streams to windows, to hashes that are incremented: a second run must not increment again."""
    client = redis_server.client()
    add(client, ["clicks:a", "clicks:b"], range(2000))
    for _ in range(2):
        stream = tm.stream.from_redis(
            redis_server.url, ["clicks:a", "clicks:b"], SCHEMA, time="ts", max_out_of_orderness="1m", stop_at_end=True
        )
        counts = stream.group_by("key", tm.stream.window(tm.stream.tumbling("10s"), on="ts")).agg(n=tm.count())
        counts = counts.select("key", "n", begin=tm.col("window_start").cast("str"))
        sink = tm.stream.to_redis(
            redis_server.url, id="clicks", key=["key", "begin"], prefix="count:", increment="n", expire="1h"
        )
        counts.write_stream(sink, checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="100ms"))
    keys = client.keys("count:*")
    assert len(keys) == 5 * 4 and "count:k3:2026-01-01T00:00:30" in {key[:28] for key in keys}
    assert sum(int(client.hget(key, "n")) for key in keys) == 2000
    assert client.ttl(keys[0]) > 3000


def test_redis_entries_of_nulls(redis_server: Redis) -> None:
    """A row of nulls was dropped, as an entry needs at least one field."""
    rows = pa.table({"a": pa.array([None, 1, None], pa.int64()), "b": pa.array([None, None, "x"])})
    for number, id in enumerate(("nulls", None)):
        url, stream = redis_server.url, f"nulls:{number}"
        tm.stream.from_table(rows).write_stream(tm.stream.to_redis(url, stream=stream, id=id))
        seen: list[Any] = []
        back = tm.stream.from_redis(url, stream, {"a": "int64", "b": "str"}, stop_at_end=True)
        back.write_stream(lambda table: seen.extend(table.to_pylist()))  # noqa: B023
        assert seen == rows.to_pylist()


def test_redis_bytes_that_are_no_text(redis_server: Redis) -> None:
    rows = pa.table({"k": ["a"], "raw": [b"\xff"]})
    with pytest.raises(tm.DataSetError, match='column "raw" has bytes that are not UTF-8: write them as text'):
        tm.stream.from_table(rows).write_stream(tm.stream.to_redis(redis_server.url, key="k", prefix="raw:"))


def test_redis_keys_that_look_alike(redis_server: Redis) -> None:
    """Rows of different keys were added together, when a value had a colon or was null."""
    client = redis_server.client()
    rows = tm.from_dict({"a": ["a:b", "a", "", None], "b": ["c", "b:c", "x", "x"], "n": [1, 2, 3, 4]}).collect()
    sink = tm.stream.to_redis(redis_server.url, id="alike", key=["a", "b"], prefix="alike:", increment="n")
    tm.stream.from_table(rows).write_stream(sink)
    found = {key: client.hget(key, "n") for key in client.keys("alike:*")}
    assert found == {"alike:a\\:b:c": "1", "alike:a:b:c": "2", "alike::x": "3", "alike:\\N:x": "4"}
    look_up = tm.stream.redis_lookup(redis_server.url, "n", prefix="alike:")
    asked = look_up([("a:b", "c"), ("a", "b:c"), ("", "x"), (None, "x"), ("a", "x")])
    assert asked == [{"n": "1"}, {"n": "2"}, {"n": "3"}, {"n": "4"}, None]


def test_redis_that_may_forget(redis_server: Redis, capfd: pytest.CaptureFixture[str]) -> None:
    """The job warns once about a server that may lose committed data, or does not say."""
    client = redis_server.client()
    rows = tm.from_dict({"key": ["a"], "x": [1]}).collect()

    def told(url: str, **options: Any) -> str:
        sink = tm.stream.to_redis(url, id="forgets", key="key", prefix="forgets:", **options)
        tm.stream.from_table(rows).write_stream(sink)
        return capfd.readouterr().err

    try:
        assert told(redis_server.url).count("appendonly yes and appendfsync always keep them") == 1
        client.config_set("maxmemory-policy", "volatile-lru")
        assert "volatile-lru" not in told(redis_server.url)
        assert told(redis_server.url, expire="1h").count("(maxmemory-policy volatile-lru)") == 1
        client.execute_command("ACL", "SETUSER", "forgetful", "on", ">swordfish", "~*", "+@all", "-config")
        err = told(redis_server.url.replace("//", "//forgetful:swordfish@"))
        assert err.count("does not say whether it keeps what is committed (CONFIG GET appendonly") == 1
        assert "swordfish" not in err
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.execute_command("ACL", "DELUSER", "forgetful")


def test_redis_entries_of_json(redis_server: Redis) -> None:
    client = redis_server.client()
    for value in ('{"x": 1, "ok": true}', "nonsense", '{"x": 2}'):
        client.xadd("jsons", {"body": value})
    client.xadd("jsons", {"other": "x"})
    source = tm.stream.from_redis(
        redis_server.url,
        "jsons",
        {"x": "int64", "ok": "bool"},
        format="json",
        field="body",
        stop_at_end=True,
        on_error="skip",
    )
    with pytest.warns(tm.BadRowsWarning, match='^2 records .* redis jsons: stream "jsons", id '):
        source.write_stream(tm.stream.to_redis(redis_server.url, stream="jsons:out", entries_max=1000))
    assert [fields for _, fields in client.xrange("jsons:out")] == [{"x": "1", "ok": "true"}, {"x": "2"}]


def test_redis_passwords_are_not_shown() -> None:
    """A password in a message or a plan ends up in logs."""
    sink = tm.stream.to_redis("redis://:swordfish@127.0.0.1:1/0", key="key")
    assert "swordfish" not in repr(sink)
    with pytest.raises(tm.DataSetError, match="redis source: `url` must be") as error:
        tm.stream.from_redis("rediss:/:swordfish@x", "a", SCHEMA)
    assert "swordfish" not in str(error.value)
    with pytest.raises(tm.DataSetError, match="expire="):
        tm.stream.to_redis("redis://127.0.0.1:1/0", key="key", expire="100ms")
    with pytest.raises(tm.DataSetError, match=r"redis sink: .*would count rows twice"):
        tm.stream.from_generator(rows=1).write_stream(tm.stream.to_redis("redis://x", key="key", increment="number"))


def writing(body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


def test_redis_that_is_killed(tmp_path: Path) -> None:
    """The server dies while the job reads and commits, and comes back: nothing may be lost, or added twice."""
    total = 4000
    server = Redis(tmp_path)
    try:
        server.keep()

        def counted() -> int:
            with contextlib.suppress(redis.ConnectionError):
                client = server.client()
                return sum(int(client.hget(key, "n") or 0) for key in client.keys("count:*"))
            return 0

        def write() -> None:
            for at in range(0, total, 500):
                add(server.client(), ["a", "b"], range(at, at + 500))
                launched.wait_until(lambda at=at: counted() > at, "rows that come out")  # type: ignore[misc]
                if at in (500, 2000):
                    server.restart()

        thread = writing(write)
        rows = tm.stream.from_redis(server.url, ["a", "b"], SCHEMA).select("key", n=tm.lit(1))
        sink = tm.stream.to_redis(server.url, id="counting", key="key", prefix="count:", increment="n")
        rows.write_stream(
            sink,
            checkpoint=tm.stream.Checkpoint(tmp_path / "checkpoints", interval="50ms"),
            stop_when=lambda: counted() >= total,
        )
        thread.join()
        assert counted() == total
    finally:
        server.stop()


def test_redis_after_a_worker_was_killed(redis_server: Redis, tmp_path: Path) -> None:
    """Entries that are read again must not be added again."""
    client = redis_server.client()
    total = 6000
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import os, signal, threading
import redis, tidemill as tm
job = tm.init()
if job.rank == 1 and os.environ["TIDEMILL_RESTART"] == "0":
    threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGKILL]).start()
client = redis.Redis.from_url({redis_server.url!r})
def counted():
    return sum(int(client.hget(key, "n") or 0) for key in client.keys("killed:k*"))
rows = tm.stream.from_redis({redis_server.url!r}, ["killed/a", "killed/b", "killed/c"], {SCHEMA!r}).select("key", n=tm.lit(1))
sink = tm.stream.to_redis({redis_server.url!r}, id="killed", key="key", prefix="killed:", increment="n")
rows.write_stream(sink, checkpoint=tm.stream.Checkpoint({str(tmp_path / "checkpoints")!r}, interval="50ms"), stop_when=lambda: counted() >= {total})
assert counted() == {total}, counted()
"""
    )

    def write() -> None:
        for at in range(0, total, 50):
            add(client, ["killed/a", "killed/b", "killed/c"], range(at, at + 50))
            time.sleep(0.03)

    thread = writing(write)
    done = launched.run("run", "-n", "2", "--restarts", "1", app)
    thread.join()
    assert done.returncode == 0, done.stderr
    assert b"starting the job again" in done.stderr


def test_paths_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``~`` became a folder's name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    tm.from_dict({"n": [1, 2]}).write_json("~/in")
    rows = tm.stream.from_files("~/in", {"n": "int64"}, stop_at_end=True)
    rows.write_stream(tm.stream.to_files("~/out"), checkpoint="~/checkpoints")
    assert sorted(tm.read_json(tmp_path / "out").to_dict()["n"]) == [1, 2]
    assert (tmp_path / "checkpoints").is_dir() and not (tmp_path / "~").exists()
