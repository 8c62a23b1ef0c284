"""The repository's benchmarks, for tests: importing this makes `harness` importable. Their tiny setting runs here so that they cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))


def tiny_run(out: Path) -> Path:
    """Run all benchmarks in their tiny setting, with Tidemill only; returns `out`, the folder for their results."""
    command = [sys.executable, str(BENCH / "run.py"), "--tiny", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def results(tiny: Path) -> dict[str, Any]:
    """Return the raw results of a tiny run."""
    found: dict[str, Any] = json.loads(next(tiny.glob("tiny-*.json")).read_text())
    return found


def lines(report: str) -> list[str]:
    """Return the lines of a report, whose tables are padded, with single spaces."""
    return [" ".join(line.split()) for line in report.splitlines()]
