"""A running stream that consists only of its status file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tidemill._streaming import status as _status


def status_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the status file of a job called "numbers", represented by this process, below `folder`; return it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    _status.folder().mkdir(parents=True)
    file = _status.folder() / "1-0.json"
    about = {"job": "numbers", "job_id": "1", "worker": 0, "pid": os.getpid(), "at_s": time.time(), "durable": 1}
    file.write_text(json.dumps(about))
    return file
