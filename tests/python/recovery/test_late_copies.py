"""A copy of `tm.stream.all_reduce` that is late, and whose worker dies: no part is lost or counted twice."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from subprocess import Popen
from typing import Any

import late_job
import launched


def rounds(folder: Path) -> list[dict[str, Any]]:
    files = [file for file in (folder / "results").iterdir() if not file.name.startswith(".")]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: int(row["round"]))


def test_a_late_copy_whose_worker_is_killed(tmp_path: Path, jobs: list[Popen[bytes]]) -> None:
    """Rounds go on while its function waits. The worker is killed with parts that are in checkpoints only, and the function
    waits again on its new worker, until it is released.
    """
    for name in ("results", "waits"):
        (tmp_path / name).mkdir()
    job = launched.start("run", "-n", "2", "--restarts", "3", late_job.__file__, tmp_path)
    jobs.append(job)
    said = launched.Output(job.stderr)

    def over() -> bool:
        return job.poll() is not None

    def waiting() -> list[int]:
        return [int(file.name) for file in (tmp_path / "waits").iterdir()]

    launched.wait_until(lambda: over() or any(row["left_out"] for row in rounds(tmp_path)), "a round without the copy")
    assert not over(), said.text
    (late,) = waiting()
    os.kill(late, signal.SIGKILL)
    launched.wait_until(lambda: over() or len(waiting()) > 1, "the function on the new worker")
    assert not over(), said.text
    (tmp_path / "release").touch()
    assert job.wait(launched.PATIENCE_S) == 0, said.text
    seen = rounds(tmp_path)
    assert [row["round"] for row in seen] == list(range(len(seen)))
    assert len({copy for row in seen for copy in row["left_out"]}) == 1
    assert sum(row["value"][0] for row in seen) == late_job.ROWS
    assert sum(row["value"][1] for row in seen) == sum(range(late_job.ROWS))
    assert "left out its part" in said.whole()
