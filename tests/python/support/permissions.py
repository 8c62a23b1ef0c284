"""Runs programs that must heed permissions of files, even if tests run as root."""

from __future__ import annotations

import os
import shutil

import pytest


def heeding() -> list[str]:
    """Return the prefix of their commands; skips tests if there is no way."""
    if os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("needs setpriv (of util-linux), as root may read everything")
    return [program, "--bounding-set=-dac_override,-dac_read_search"]
