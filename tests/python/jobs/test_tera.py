"""``tidemill teragen``, ``terasort`` and ``teravalidate``."""

from __future__ import annotations

import re
from pathlib import Path

import disks
import launched
import pytest


def tidemill(*args: str | Path) -> str:
    result = launched.run(*args)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def seen(folder: Path, workers: int) -> tuple[str, str]:
    """The records' checksum, and the verdict."""
    result = launched.run("teravalidate", "-n", str(workers), "--no-prefix", folder)
    words = result.stdout.decode().strip().split(", ")
    assert result.returncode == (0 if words[2] == "in order" else 1), result.stderr.decode()
    return words[0].split(" in ")[0] + words[1], words[2]


def test_the_same_records_however_many_workers_make_them(tmp_path: Path) -> None:
    for workers in (1, 3):
        tidemill("teragen", "-n", str(workers), "--records", "10000", tmp_path / str(workers))
    whole = [b"".join(path.read_bytes() for path in sorted((tmp_path / n).iterdir())) for n in ("1", "3")]
    assert whole[0] == whole[1]
    assert len(whole[0]) == 1_000_000


@pytest.mark.parametrize(("workers", "memory"), [(1, None), (2, None), (3, "32MiB")])
def test_sorted_and_complete(tmp_path: Path, workers: int, memory: str | None) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    records = 600_000 if memory else 50_000
    tidemill("teragen", "-n", "2", "--records", str(records), tmp_path / "in")
    before, verdict = seen(tmp_path / "in", 2)
    assert "a larger one" in verdict
    bound = ["--memory", memory, "--spill-dir", spill] if memory else []
    said = tidemill("terasort", "-n", str(workers), *bound, tmp_path / "in", tmp_path / "out")
    assert f"{records:,} records sorted" in said
    after, verdict = seen(tmp_path / "out", 2)
    assert (after, verdict) == (before, "in order")
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "out").iterdir()))
    keys = [data[at : at + 10] for at in range(0, len(data), 100)]
    assert keys == sorted(keys)
    assert list(spill.iterdir()) == []


def test_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "short.bin").write_bytes(b"x" * 150)
    result = launched.run("terasort", "-n", "2", tmp_path / "short.bin", tmp_path / "out")
    assert result.returncode == 2
    assert b"is not a multiple of the record size, 100 bytes" in result.stderr
    result = launched.run("teravalidate", tmp_path / "short.bin")
    assert result.returncode == 2
    assert b"ends within a record" in result.stderr
    result = launched.run("terasort", tmp_path / "none", tmp_path / "out")
    assert result.returncode == 2
    assert b"none" in result.stderr
    assert not (tmp_path / "out").exists()


def test_output_that_is_there(tmp_path: Path) -> None:
    """The error named an option of the library, not of the command."""
    tidemill("teragen", "--records", "100", tmp_path / "in")
    (tmp_path / "out").mkdir()
    result = launched.run("terasort", "-n", "2", tmp_path / "in", tmp_path / "out")
    assert result.returncode == 2
    assert b"out exists; --overwrite replaces it" in result.stderr
    tidemill("terasort", "-n", "2", "--overwrite", tmp_path / "in", tmp_path / "out")
    assert seen(tmp_path / "out", 1)[1] == "in order"


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """The error was a traceback that named neither, and the records stayed, so the disk stayed full."""
    with disks.small(tmp_path, "1m") as small:
        result = launched.run("teragen", "-n", "2", "--records", "50000", small / "in")
        said = result.stderr.decode()
        assert result.returncode == 2, said
        wanted = rf"teragen: error: {small}/\.in\.unfinished/part-0000[01]\.bin: No space left on device; {small}/in cannot be written there: free space"
        assert re.search(wanted, said), said
        assert "Traceback" not in said
        assert list(small.iterdir()) == []
        tidemill("teragen", "-n", "2", "--records", "1000", small / "in")


def test_a_folder_without_files_is_not_in_order(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").write_bytes(b"")
    result = launched.run("teravalidate", "-n", "2", tmp_path)
    assert result.returncode == 2 and b"has no files" in result.stderr


def test_records_of_a_killed_command_are_no_input(tmp_path: Path) -> None:
    """They stayed in the folder, and were sorted as if they were complete."""
    folder = tmp_path / "in"
    generator = launched.start("teragen", "--records", "100000000", folder)
    try:
        launched.wait_until(lambda: any(tmp_path.glob(".in.unfinished/*")), "the first records")
    finally:
        generator.kill()
        generator.communicate()
    assert not folder.exists()
    tidemill("teragen", "-n", "2", "--records", "1000", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert seen(folder, 1)[0].startswith("1,000 records")
