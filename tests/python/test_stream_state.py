"""State that is larger than memory: nothing of it is lost, and nothing counts twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import launched
import pyarrow as pa
import pytest
import state_job

JOB = Path(state_job.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("results", "pids", "spill", "spilled"):
        (tmp_path / name).mkdir()
    return tmp_path


def job(folder: Path, *more: str) -> list[str | Path]:
    return ["run", "-n", "2", "--memory", state_job.MEMORY, "--spill-dir", folder / "spill", *more, JOB, folder]


def check(folder: Path, query: str) -> None:
    """Compare what has appeared with what must have."""
    files = [file for file in (folder / "results").iterdir() if not file.name.startswith(".")]
    found = pa.concat_tables(pa.ipc.open_file(file).read_all() for file in files)
    expected = state_job.expected(query)
    found = found.select(["key", "n", "sum"]).cast(expected.schema).sort_by("key").combine_chunks()
    assert found.num_rows == expected.num_rows
    for column in ("key", "n", "sum"):
        assert found[column].equals(expected[column]), column


def spilled(folder: Path) -> tuple[int, int]:
    """Bytes that went to files, and keys that were in stores at once."""
    found = [json.loads(file.read_text()) for file in (folder / "spilled").iterdir()]
    return sum(bytes_ for bytes_, _ in found), sum(keys for _, keys in found)


@pytest.mark.parametrize("query", state_job.QUERIES)
def test_state_larger_than_memory(folder: Path, query: str) -> None:
    """Several times what two workers may hold: each result is there once and exact, and no file is left."""
    ran = launched.run(*job(folder), query)
    assert ran.returncode == 0, ran.stderr.decode()
    check(folder, query)
    bytes_, keys = spilled(folder)
    if query == "states":
        assert keys > 5_000
    else:
        assert bytes_ > 3 * (2 * 8 << 20), f"only {bytes_ >> 20} MiB went to disk"
    assert list((folder / "spill").iterdir()) == []


@pytest.mark.parametrize("query", state_job.QUERIES)
def test_a_kill_while_state_is_on_disk(folder: Path, query: str) -> None:
    """A worker is killed when there is a checkpoint of state that lies on disk; the job goes on from it, and is exact."""
    env = {"XDG_RUNTIME_DIR": str(folder)}
    running = launched.start(*job(folder, "--restarts", "3"), query, "checkpoints", env=env)

    def is_on_disk() -> bool:
        """Whether there is a checkpoint, and the worker has put state on disk."""
        if not any((folder / "checkpoints" / "epochs").glob("[0-9]*")):
            return False
        if query == "states":
            return (folder / "spilled" / "1").exists()
        told = json.loads(launched.run("top", "--json", env=env).stdout)
        return any(worker["worker"] == 1 and worker["spilled_bytes"] > 4 << 20 for worker in told)

    launched.wait_until(lambda: running.poll() is not None or is_on_disk(), "state on disk, and a checkpoint")
    assert running.poll() is None, "it was over too soon"
    os.kill(launched.pids_in(folder / "pids", 2)[1], signal.SIGKILL)
    _, err = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode == 0, err.decode()
    assert b"starting the job again" in err
    check(folder, query)
