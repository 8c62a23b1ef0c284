"""What a batch job repeats after a worker was killed, and what it does not."""

from __future__ import annotations

from pathlib import Path

import launched
import pytest

PROGRAM = """
import os, signal
from pathlib import Path
import tidemill as tm

job, again, folder = tm.init(), os.environ["TIDEMILL_RESTART"], Path(FOLDER)

def work(row):
    with open(folder / f"called.{again}.{job.rank}", "a") as calls:
        calls.write("x")
    if again == "0" and row["x"] > 3000:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": row["x"], "y": row["x"] ** 2}

def later(row):
    with open(folder / f"later.{again}.{job.rank}", "a") as calls:
        calls.write("x")
    return {"z": row["y"] + 1}

data = tm.from_dict({"x": list(range(4000))}).map(work, {"x": "int64", "y": "int64"})
kept = data.KEEP
if again == "1" and job.rank == 0:
    job.comm.Barrier()
    os.kill(os.getpid(), signal.SIGKILL)
job.comm.Barrier()
assert kept.map(later, {"z": "int64"}).select(tm.col("z").sum()).to_dict() == {"z": [sum(x * x + 1 for x in range(4000))]}
print("done", sorted(kept.columns))
"""


@pytest.mark.parametrize("keep", ["materialize", "cache"])
def test_what_is_done_again(keep: str, tmp_path: Path) -> None:
    """A job killed while it materializes rows must compute all of them again; one killed later, none of them. Cached
    rows are in the workers' memory, and gone with them.
    """
    app = tmp_path / "app.py"
    call = f"materialize({str(tmp_path / 'kept')!r})" if keep == "materialize" else "cache()"
    app.write_text(PROGRAM.replace("FOLDER", repr(str(tmp_path))).replace("KEEP", call))
    result = launched.run("run", "-n", "2", "--restarts", "2", app)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().count("done ['x', 'y']") == 2
    assert result.stderr.count(b"was killed by SIGKILL") == 2

    def calls(name: str, again: int) -> int:
        return sum(len(path.read_text()) for path in tmp_path.glob(f"{name}.{again}.*"))

    assert 0 < calls("called", 0) < 4000, "the first was killed under way"
    assert calls("called", 1) == 4000
    assert calls("called", 2) == (0 if keep == "materialize" else 4000)
    assert calls("later", 2) == 4000
    # The attempt that was killed while writing has left nothing.
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []
