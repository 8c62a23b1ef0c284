"""From Kafka to Kafka, exactly once, while workers are killed and the broker is."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import kafka_job
import pytest
import stream_job
from servers import Kafka
from stream_kills import run_and_kill

JOB = Path(kafka_job.__file__)
PARTITIONS = 4


@pytest.mark.parametrize("what", ["rows", "windows"])
def test_an_exact_count_whatever_is_killed(tmp_path: Path, kafka: Kafka, what: str) -> None:
    """Every record comes out once, whichever worker died when, and of windows the broker too."""
    (tmp_path / "pids").mkdir()
    source, target = f"exact-in-{what}", f"exact-out-{what}"
    kafka.create_topic(source, PARTITIONS)
    kafka.create_topic(target, 2)
    rows = stream_job.lines(stream_job.tm.from_arrow(stream_job.table()).collect())
    for partition in range(PARTITIONS):
        kafka.produce(source, rows[partition::PARTITIONS], partition=partition)

    def pause(dice: random.Random, kills: int) -> float:
        if what == "windows" and kills == 2:
            kafka.restart()
        return dice.uniform(0.2, 1.0)

    run_and_kill(tmp_path, 5, pause, JOB, tmp_path, kafka.bootstrap, source, target, what)
    found = [json.loads(value or b"{}") for value in kafka.values(target)]
    if what == "rows":
        assert Counter(row["row"] for row in found) == Counter(range(stream_job.ROWS))
        return
    expected = [json.loads(line) for line in stream_job.expected("windows").elements()]
    assert windows(found) == windows(expected)


def windows(rows: list[dict[str, Any]]) -> Counter[tuple[int, datetime, int]]:
    return Counter((row["key"], datetime.fromisoformat(row["window_start"]), row["n"]) for row in rows)
