"""Stream functions that block or never end: Ctrl-C, and a failure elsewhere, end the job all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import launched
import pytest

PROGRAM = """
import sys, time
from pathlib import Path
import tidemill as tm

def sleeps():
    began.touch()
    time.sleep(10_000)

def spins():
    began.touch()
    while True:
        pass

where, how, began = sys.argv[1], {"sleeps": sleeps, "spins": spins}[sys.argv[2]], Path(sys.argv[3])
rows = tm.stream.from_generator(1000)

match where:
    case "sink":
        rows.write_stream(lambda table: how())
    case "map_batches":
        rows.map_batches(lambda table: how(), schema={"a": "int64"}).write_stream(print)
    case "process":
        rows.key_by("key").process(lambda key, rows, context: how(), {"a": "int64"}).write_stream(print)
"""

FAILS_ELSEWHERE = """
import sys, time
from pathlib import Path
import tidemill as tm

job = tm.init()
began = Path(sys.argv[1])

def sink(table):
    if job.rank == 0:
        began.touch()
        time.sleep(10_000)
    while not began.exists():
        time.sleep(0.01)
    raise ValueError("this one fails")

tm.stream.from_generator(1000, splits=2).write_stream(sink)
"""


@pytest.mark.parametrize("how", ["sleeps", "spins"])
@pytest.mark.parametrize("where", ["sink", "map_batches", "process"])
def test_ctrl_c_ends_it(tmp_path: Path, where: str, how: str) -> None:
    began = tmp_path / "began"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, where, how, str(began)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        launched.wait_until(lambda: began.exists() or program.poll() is not None, "the function to be called")
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=launched.PATIENCE_S)
    finally:
        program.kill()
        program.wait()
    assert began.exists(), errors.decode()
    assert errors.decode().rstrip().endswith("KeyboardInterrupt"), errors.decode()


def test_a_failure_elsewhere_ends_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FAILS_ELSEWHERE)
    done = launched.run("run", "-n", "2", program, tmp_path / "began")
    errors = done.stderr.decode()
    assert done.returncode != 0
    assert "this one fails" in errors
    # The launcher need not kill workers that still block.
    assert "killed" not in errors, errors
