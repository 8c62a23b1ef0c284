"""Connectors by way of Python: each is a few words, and what they say wrong is told. How they read and write is tested beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill as tm
from servers import Kafka

SCHEMA = {"key": "str", "ts": "timestamp[ms]", "x": "int64"}


def lines(folder: Path, count: int, files: int = 3) -> None:
    """Rows of a second each fifty, dealt to files."""
    folder.mkdir()
    for number in range(files):
        rows = [
            {"key": f"k{at % 5}", "ts": f"2026-01-01T00:{at // 50 // 60:02}:{at // 50 % 60:02}.000", "x": at}
            for at in range(number, count, files)
        ]
        (folder / f"{number}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("part-*")) for line in file.read_text().splitlines()]


def test_files_to_files(tmp_path: Path) -> None:
    lines(tmp_path / "in", 3000)
    stream = tm.stream.from_files(tmp_path / "in", SCHEMA, time="ts", stop_at_end=True)
    counts = stream.group_by("key", tm.window(tm.tumbling("10s"), on="ts")).agg(n=tm.count(), s=tm.col("x").sum())
    counts.write_stream(tm.stream.to_files(tmp_path / "out"), checkpoint=tmp_path / "checkpoints", every="50ms")
    rows = read(tmp_path / "out")
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows) == 5 * 6
    assert (sum(row["n"] for row in rows), sum(row["s"] for row in rows)) == (3000, sum(range(3000)))


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
    stream = tm.stream.rate(rows=10_000, keys=10, splits=3)
    windows = stream.group_by("key", tm.window(tm.tumbling("1ms"), on="time")).agg(n=tm.count())
    windows.write_stream(lambda rows: seen.extend(rows.to_pylist()))
    assert sum(row["n"] for row in seen) == 10_000
    assert {row["key"] for row in seen} == set(range(10))


def test_workers_share_files(tmp_path: Path) -> None:
    lines(tmp_path / "in", 3000, files=7)
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import tidemill as tm
stream = tm.stream.from_files({str(tmp_path / "in")!r}, {SCHEMA!r}, time="ts", stop_at_end=True)
counts = stream.group_by("key", tm.window(tm.tumbling("10s"), on="ts")).agg(n=tm.count())
counts.write_stream(tm.stream.to_files({str(tmp_path / "out")!r}), checkpoint={str(tmp_path / "checkpoints")!r})
"""
    )
    done = launched.run("run", "-n", "3", app)
    assert done.returncode == 0, done.stderr
    rows = read(tmp_path / "out")
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows) == 5 * 6
    assert sum(row["n"] for row in rows) == 3000


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(tm.DataSetError, match=r"rate source: .*-1"):
        tm.stream.rate(rows=-1)
    with pytest.raises(tm.DataSetError, match="files source"):
        tm.stream.from_files(tmp_path, SCHEMA, format="xml")  # type: ignore[arg-type]
    with pytest.raises(tm.DataSetError, match="files sink"):
        tm.stream.rate(rows=1).write_stream(tm.stream.to_files("s3://bucket/folder"))
    (tmp_path / "a.json").write_text('{"key": "a", "x": "seven"}\n')
    with pytest.raises(tm.DataSetError, match=r"a\.json"):
        tm.stream.from_files(tmp_path, SCHEMA, stop_at_end=True).write_stream(lambda _: None)


def test_kafka_to_kafka(kafka: Kafka, tmp_path: Path) -> None:
    """Records of a real broker to windows, to records that readers of what is committed see once."""
    kafka.create_topic("clicks", 3)
    kafka.create_topic("counts", 2)
    rows = [{"key": f"k{at % 5}", "ts": f"2026-01-01T00:00:{at // 50:02}.000", "x": at} for at in range(2000)]
    kafka.produce("clicks", [json.dumps(row).encode() for row in rows])
    servers = kafka.bootstrap
    for _ in range(2):
        stream = tm.stream.from_kafka(servers, "clicks", SCHEMA, time="ts", out_of_order="1m", stop_at_end=True)
        counts = stream.group_by("key", tm.window(tm.tumbling("10s"), on="ts")).agg(n=tm.count())
        # The second time there is nothing left to be done.
        sink = tm.stream.to_kafka(servers, "counts", id="clicks-to-counts", key="key")
        counts.write_stream(sink, checkpoint=tmp_path / "checkpoints", every="100ms")
    found = [json.loads(value) for value in kafka.values("counts")]
    assert len({(row["key"], row["window_start"]) for row in found}) == len(found) == 5 * 4
    assert sum(row["n"] for row in found) == 2000
