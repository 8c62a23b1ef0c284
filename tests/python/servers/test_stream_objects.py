"""Streams from and into a real S3 server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import object_server
import objects_job
import pytest
import tidemill as tm
from stream_kills import run_and_kill


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bucket, whose objects are files."""
    (tmp_path / "s3").mkdir()
    server = object_server.Server(tmp_path / "s3")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server.bucket("lines")
    server.stop()


def put(bucket: Path, name: str, numbers: range, end: str = "\n") -> None:
    """Make an object, at once."""
    (bucket / "in").mkdir(exist_ok=True)
    hidden = bucket / "in" / f".{name}"
    hidden.write_text("\n".join(f'{{"n": {n}}}' for n in numbers) + end)
    hidden.rename(bucket / "in" / name)


def copied(bucket: Path) -> list[int]:
    found = (bucket / "out").glob("part-*.jsonl") if (bucket / "out").exists() else ()
    return sorted(json.loads(line)["n"] for file in found for line in file.read_text().splitlines())


def test_objects_as_they_come(bucket: Path, tmp_path: Path) -> None:
    """Objects that arrive while a job runs, or between two jobs, are read once each; a last line needs no newline, and
    hidden ones are ignored.
    """
    put(bucket, "a.json", range(100), end="")
    put(bucket, "_b.json", range(1000, 1100))
    expected = 100

    def is_there() -> bool:
        nonlocal expected
        if len(copied(bucket)) < expected:
            return False
        if expected == 100:
            put(bucket, "c.json", range(100, 150))
            expected = 150
            return False
        return True

    for _ in range(2):
        lines = tm.stream.from_files("s3://lines/in/", {"n": "int64"})
        lines.write_stream(
            tm.stream.to_files("s3://lines/out"),
            name="objects",
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="50ms"),
            stop_when=is_there,
        )
        assert copied(bucket) == list(range(expected))
        put(bucket, "d.json", range(150, 160))
        expected = 160
    one = tm.stream.from_files("s3://lines/in/d.json", {"n": "int64"}, stop_at_end=True)
    seen: list[int] = []
    one.write_stream(lambda table: seen.extend(table.to_dict()["n"]))
    assert seen == list(range(150, 160))


def test_time_goes_on_without_objects(bucket: Path, tmp_path: Path) -> None:
    """Key ranges with nothing, or nothing more, would hold back the windows of the others."""
    put(bucket, "a.json", range(1000))
    lines = tm.stream.from_files("s3://lines/in", {"n": "timestamp[s]"}, time="n", idle_after="10ms")
    windows = lines.group_by(tm.stream.window(tm.stream.tumbling("100s"), on="n")).agg(rows=tm.count())
    seen: list[int] = []
    windows.write_stream(
        lambda table: seen.extend(table.to_dict()["rows"]), checkpoint=tmp_path / "c", stop_when=lambda: len(seen) >= 9
    )
    assert seen[:9] == [100] * 9


def test_workers_that_are_killed(bucket: Path, tmp_path: Path) -> None:
    """With uploads in progress when a worker dies, and repeated commits, every line is there once."""
    for name in range(12):
        put(bucket, f"{name}.json", range(name * 50, name * 50 + 50))
    (tmp_path / "pids").mkdir()
    run_and_kill(tmp_path, 3, lambda dice, _: dice.uniform(0, 0.3), Path(objects_job.__file__), tmp_path, "s3://lines")
    counts = Counter(copied(bucket))
    assert counts == Counter(range(600)), (counts - Counter(range(600)), Counter(range(600)) - counts)


def test_places_that_cannot_be(bucket: Path) -> None:
    """A place that cannot be written to is an error at the beginning, which names it: here the stream has no row, and
    no end.
    """
    options = {"secret_access_key": "another"}
    nothing = tm.stream.from_files(bucket / "in", {"n": "int64"})
    with pytest.raises(tm.TidemillError, match=r"s3://lines/out/part-.*: access denied; check the credentials"):
        nothing.write_stream(tm.stream.to_files("s3://lines/out", storage_options=options))
    with pytest.raises(tm.TidemillError, match="s3://lines/in: access denied; check the credentials"):
        tm.stream.from_files("s3://lines/in", {"n": "int64"}, storage_options=options).write_stream(print)
    with pytest.raises(tm.DataSetError, match="streams need a folder or an object store"):
        tm.stream.from_files("https://localhost/in", {"n": "int64"})
