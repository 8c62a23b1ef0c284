"""From Kafka to Kafka, exactly once, while workers and the broker are killed; a partition that falls silent."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import kafka_job
import launched
import pytest
import stream_job
import tidemill as tm
from local_servers import Kafka
from stream_kills import run_and_kill

JOB = Path(kafka_job.__file__)
PARTITIONS = 4


@pytest.mark.parametrize("what", ["rows", "windows"])
def test_an_exact_count_whatever_is_killed(tmp_path: Path, kafka: Kafka, what: str) -> None:
    """Every record comes out once, whichever worker died when, and for windows also when the broker dies."""
    (tmp_path / "pids").mkdir()
    source, target = f"exact-in-{what}", f"exact-out-{what}"
    kafka.create_topic(source, PARTITIONS)
    kafka.create_topic(target, 2)
    rows = stream_job.lines(stream_job.tm.from_arrow(stream_job.table()).collect())
    for partition in range(PARTITIONS):
        kafka.produce(source, rows[partition::PARTITIONS], partition=partition)

    restarts = 0

    def pause(dice: random.Random, kills: int) -> float:
        nonlocal restarts
        if what == "windows" and restarts == 0:
            kafka.restart()
            restarts += 1
        if kills == 2:
            (tmp_path / "go").touch()
        return dice.uniform(0.2, 1.0)

    run_and_kill(tmp_path, 5, pause, JOB, tmp_path, kafka.bootstrap, source, target, what)
    assert restarts == (what == "windows")
    found = [json.loads(value or b"{}") for value in kafka.values(target)]
    if what == "rows":
        assert Counter(row["row"] for row in found) == Counter(range(stream_job.ROWS))
        return
    expected = [json.loads(line) for line in stream_job.expected("windows").elements()]
    assert windows(found) == windows(expected)


def windows(rows: list[dict[str, Any]]) -> Counter[tuple[int, datetime, int]]:
    return Counter((row["key"], datetime.fromisoformat(row["window_start"]), row["n"]) for row in rows)


def test_a_partition_without_a_word_of_time_falls_silent(kafka: Kafka, tmp_path: Path) -> None:
    """A partition's rows do not advance time, and then it is idle: they are in their windows when another's rows end
    these, and come out while the stream runs, all of them, and none late.
    """
    topic = "silent"
    kafka.create_topic(topic, 2)

    def put(partition: int, *rows: tuple[int, int | None]) -> None:
        def text(second: int | None) -> str | None:
            return None if second is None else (datetime(1970, 1, 1) + timedelta(seconds=second)).isoformat()

        lines = [json.dumps({"at": text(at), "until": text(until)}) for at, until in rows]
        kafka.produce(topic, lines, partition=partition)

    schema = {"at": "timestamp[s]", "until": "timestamp[s]"}
    time = tm.stream.punctuated_watermarks("at", watermark="until")
    stream = tm.stream.from_kafka(kafka.bootstrap, topic, schema, time=time, idle_after="300ms")
    counts = stream.group_by(tm.stream.window(tm.stream.tumbling("1h"), on="at")).agg(rows=tm.count())
    seen: list[dict[str, Any]] = []
    done = threading.Event()

    def write() -> None:
        counts.write_stream(
            lambda table: seen.extend(table.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="100ms"),
            stop_when=done.is_set,
        )

    thread = threading.Thread(target=write)
    hour = 3600
    put(0, (hour, None), (hour + 1, None))
    put(1, (hour + 2, hour))
    thread.start()
    try:
        # The reading order is unknown: partition 0 is silent, and partition 1 goes on until the silence is noticed.
        for more in itertools.count(1):
            put(1, (2 * hour + more, 2 * hour + more))
            done.wait(0.1)
            assert thread.is_alive() and more < 10 * launched.PATIENCE_S, "the silent partition holds time back"
            if seen:
                break
    finally:
        done.set()
        thread.join(launched.PATIENCE_S)
    assert not thread.is_alive()
    assert [row["rows"] for row in seen] == [3]
    assert tm.last_report().late_rows == 0
