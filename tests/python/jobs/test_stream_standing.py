"""What holds a stream's time back is named: by ``tidemill top``, and by a warning after a while."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import launched
import pytest
import tidemill as tm
from local_servers.server import free_ports

APP = """
import sys
from pathlib import Path
import tidemill as tm

rows = tm.stream.from_files("rows", {"at": "timestamp[s]", "n": "int64"}, time="at", idle_after=sys.argv[1])
counts = rows.group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.col("n").sum())
stop = Path("stop")
counts.write_stream(tm.stream.to_files("counts"), name="standing", checkpoint=tm.stream.Checkpoint("checkpoints", interval="200ms"), stop_when=stop.exists)
"""


def append(file: Path, seconds: range) -> None:
    with file.open("a") as out:
        out.writelines(json.dumps({"at": f"1970-01-01T00:{s // 60:02}:{s % 60:02}", "n": 1}) + "\n" for s in seconds)


def results(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in (folder / "counts").glob("[!.]*") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_split_that_stands(tmp_path: Path, workers: int) -> None:
    """One of four files stops growing: no window fires, and top and a warning name the file; when it grows again, the
    windows fire.
    """
    (tmp_path / "rows").mkdir()
    (tmp_path / "app.py").write_text(APP)
    files = [tmp_path / "rows" / f"{name}.json" for name in ("first", "second", "third", "stands")]
    for file in files:
        append(file, range(5))
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "TIDEMILL_STALL_WARNING": "1"}
    err = tmp_path / "err"
    with err.open("wb") as to:
        job = launched.start("run", "-n", str(workers), "app.py", "1h", env=env, cwd=tmp_path, stderr=to)

    def told() -> list[dict[str, Any]]:
        assert job.poll() is None, err.read_text()
        sources: list[dict[str, Any]] = [
            source
            for worker in json.loads(launched.run("top", "--json", env=env).stdout or b"[]")
            for source in worker["sources"]
        ]
        return sources

    # Each time a little further, as writers of files do.
    second = 5

    def go_on() -> bool:
        nonlocal second
        for file in files[:3]:
            append(file, range(second, second + 5))
        second = min(second + 5, 3000)
        time.sleep(0.1)
        return b"holds it back" in err.read_bytes()

    try:
        launched.wait_until(go_on, "a warning")
        warning = next(line for line in err.read_text().splitlines() if "holds it back" in line)
        assert "stands.json holds it back" in warning and "has stood at 4.000000 s for" in warning, warning
        assert {source["held_by"].rpartition("/")[2] for source in told() if source["time"] == 4_000_000} == {
            "stands.json"
        }
        shown = launched.run("top", "--once", "--every", "0.2", env=env).stdout.decode()
        line = next((line for line in shown.splitlines() if "held back by" in line and "time of" in line), shown)
        assert re.search(r"time of source files rows 1: held back by \S*stands.json \(copy \d+\), \d.* behind", line), (
            shown
        )
        assert results(tmp_path) == []
        append(files[3], range(5, second))
        launched.wait_until(lambda: len(results(tmp_path)) >= second // 10 - 1, "the windows")
        assert {row["n"] for row in results(tmp_path)} == {40}
    finally:
        (tmp_path / "stop").touch()
        job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.read_text()
    warnings = [line for line in err.read_text().splitlines() if "holds it back" in line]
    assert len([line for line in warnings if "stood at 4.0" in line]) == 1


def test_an_idle_split_holds_nothing_back(tmp_path: Path) -> None:
    """A warning does not name a file that has been silent for longer than idle_after."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "app.py").write_text(APP)
    files = [tmp_path / "rows" / f"{name}.json" for name in ("goes", "stands")]
    for file in files:
        append(file, range(5))
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "TIDEMILL_STALL_WARNING": "1"}
    job = launched.start("run", "-n", "1", "app.py", "100ms", env=env, cwd=tmp_path)
    second = 5

    def go_on() -> bool:
        nonlocal second
        append(files[0], range(second, second + 5))
        second += 5
        time.sleep(0.1)
        return len(results(tmp_path)) >= 20

    try:
        launched.wait_until(go_on, "twenty windows")
    finally:
        (tmp_path / "stop").touch()
        _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.decode()
    assert b"holds it back" not in err


def test_rows_of_a_split_that_is_idle(tmp_path: Path) -> None:
    """Rows that a split gave before it fell silent are in their window, and not too late for it."""
    (tmp_path / "one.json").write_text('{"time": "2026-01-01T00:00:05"}\n')
    schema = {"time": "timestamp[us]"}
    one = tm.stream.from_files(tmp_path / "one.json", schema, time="time", idle_after="50ms")
    many = tm.stream.from_generator(200, step="1s").select("time")
    counts = one.union(many).group_by(tm.stream.window(tm.stream.tumbling("10s"), on="time")).agg(n=tm.count())
    seen: list[dict[str, Any]] = []
    counts.write_stream(
        lambda rows: seen.extend(rows.to_pylist()), checkpoint=tmp_path / "checkpoints", stop_when=lambda: bool(seen)
    )
    assert (seen[0]["n"], tm.last_report().late_rows) == (11, 0)


UNTIMED = """
from pathlib import Path
import tidemill as tm

rows = tm.stream.from_files("rows", {"at": "timestamp[s]", "n": "int64"})
timed = tm.stream.from_generator(1000, splits=1, step="1s").select(at=tm.col("time").cast("timestamp[s]"), n=tm.lit(1))
counts = rows.union(timed).group_by(tm.stream.window(tm.stream.tumbling("10s"), on="at")).agg(n=tm.col("n").sum())
print(counts.explain())
stop = Path("stop")
counts.write_stream(tm.stream.to_files("counts"), name="standing", checkpoint=tm.stream.Checkpoint("checkpoints", interval="200ms"), stop_when=stop.exists)
"""


def test_a_source_without_time(tmp_path: Path) -> None:
    """No window fires before its end, which may never come: explain, a warning and top name it, and not the source
    beside it.
    """
    (tmp_path / "rows").mkdir()
    append(tmp_path / "rows" / "one.json", range(5))
    (tmp_path / "app.py").write_text(UNTIMED)
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "TIDEMILL_STALL_WARNING": "1"}
    err = tmp_path / "err"
    with err.open("wb") as to:
        job = launched.start("run", "-n", "2", "app.py", env=env, cwd=tmp_path, stderr=to)
    try:
        launched.wait_until(lambda: b"has no time=" in err.read_bytes(), "a warning")
        shown = launched.run("top", "--once", "--every", "0.2", env=env).stdout.decode()
        assert re.search(r"time of source files rows \d: none before it ends", shown), shown
        time.sleep(1.5)
    finally:
        (tmp_path / "stop").touch()
        out, _ = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0, err.read_text()
    assert b"files rows: it has no time=" in out and b"generator: it has no time=" not in out
    warned = [line for line in err.read_text().splitlines() if "has no time=" in line]
    assert len(warned) == 1 and "source files rows" in warned[0], warned


SLOW = """
import time
from pathlib import Path
import tidemill as tm

def enrich(row):
    while Path("held").exists():
        time.sleep(0.01)
    time.sleep(0.002)
    return row

rows = tm.stream.from_generator(5000, splits=1)
slow = rows.map(enrich, {"number": "int64", "time": "timestamp[us]", "key": "int64"})
counts = slow.group_by(tm.stream.window(tm.stream.tumbling("1s"), on="time")).agg(n=tm.count())
counts.write_stream(tm.stream.to_files("counts"), name="slow", checkpoint=tm.stream.Checkpoint("checkpoints", interval="500ms"))
"""


def test_a_slow_function_is_named_and_holds_no_checkpoint_up(tmp_path: Path) -> None:
    """While it hangs, a warning and top say so; at 2 ms per row, checkpoints and results get through, and the job stops
    on request.
    """
    (tmp_path / "app.py").write_text(SLOW)
    (tmp_path / "held").touch()
    env, err = {"XDG_RUNTIME_DIR": str(tmp_path)}, tmp_path / "err"
    with err.open("wb") as to:
        job = launched.start("run", "-n", "1", "app.py", env=env, cwd=tmp_path, stderr=to)
    try:
        launched.wait_until(lambda: "one is due every 500ms" in err.read_text(), "a warning")
        warning = next(line for line in err.read_text().splitlines() if "due every" in line)
        assert "no checkpoint for" in warning and "the step that works most is enrich" in warning, warning
        shown = launched.run("top", "--once", env=env).stdout.decode()
        assert re.search(
            r"checkpoints are late: no checkpoint yet, after .*; slow is .*enrich.* in .*, \d+% busy", shown
        ), shown
        (tmp_path / "held").unlink()
        launched.wait_until(lambda: len(launched.epochs(tmp_path / "checkpoints")) > 1, "checkpoints")
        launched.wait_until(lambda: results(tmp_path) != [], "results")
        shown = launched.run("top", "--once", env=env).stdout.decode()
        step = re.search(r"enrich.* in .* +(\d+)% +[\d,]+ +([\d.]+)$", shown, re.MULTILINE)
        assert step and float(step[2]) >= 2, shown
        stopped = launched.run("stop", "slow", env=env)
        assert stopped.returncode == 0, stopped.stderr.decode()
        assert job.wait(launched.PATIENCE_S) == 0, err.read_text()
    finally:
        job.kill()
        job.wait()


def test_logs_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Logging receives checkpoints; an HTTP client reads the same figures that top shows, while the job runs."""
    (port,) = free_ports(1)
    monkeypatch.setenv("TIDEMILL_METRICS", f":{port}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    pages: list[str] = []

    def look(running: tm.stream.Running) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            pages.append(answer.read().decode())

    def is_over() -> bool:
        logged = any(record.name == "tidemill.stream.checkpoints" for record in caplog.records)
        return logged and any("tidemill_checkpoint_bytes" in page for page in pages)

    stream = tm.stream.from_generator(1000).map(dict, {"number": "int64", "time": "timestamp[us]", "key": "int64"})
    with caplog.at_level("INFO", "tidemill"):
        stream.write_stream(
            lambda table: None,
            name='a "job"',
            checkpoint=tm.stream.Checkpoint(tmp_path / "c", interval="100ms"),
            on_progress=look,
            stop_when=is_over,
        )
    page = next(page for page in pages if "tidemill_checkpoint_bytes" in page)
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert all(float(value) >= 0 for value in samples.values())
    of = r'\{job="a \\"job\\"",worker="0"'
    for name in (r"rows_total%s,edge=", r"step_busy_seconds_total%s,step=.* in ", r"checkpoint_age_seconds%s\}$"):
        assert any(re.match("tidemill_" + name % of, sample) for sample in samples), page
    made = [record for record in caplog.records if record.name == "tidemill.stream.checkpoints"]
    assert any(re.match(r"checkpoint \d+ was made in", record.getMessage()) for record in made)
    monkeypatch.setenv("TIDEMILL_METRICS", "nowhere")
    with pytest.raises(tm.DataSetError, match="is not an address"):
        stream.write_stream(print)
