"""Running one system to its end, and reading the times that it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

from .comm import SystemFailed
from .systems import Launch


def run_once(command: Launch, key: str, timeout_s: float) -> dict[str, Any]:
    """Starts one process group, waits for it, and returns the JSON object that it printed, whose first key is `key`."""
    process = subprocess.Popen(
        command.argv,
        env=command.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise SystemFailed(f"took longer than {timeout_s:.0f} s") from None
    for line in output.splitlines():
        if f'{{"{key}"' in line:  # Tidemill puts the rank in front
            found: dict[str, Any] = json.loads(line[line.index("{") :])
            return found
    raise SystemFailed(" | ".join(output.strip().splitlines()[-3:]) or f"exit code {process.returncode}, no output")
