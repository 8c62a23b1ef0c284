"""Runs several programs of this folder in one job, those named on the command line, or all: starting a job costs more than most checks.

Each check has the world to itself, as in a job of its own: one ends with a barrier before the next begins.
"""

import importlib
import sys
from pathlib import Path

from harness import main

HERE = Path(__file__)
PROGRAMS = sorted(file.stem for file in HERE.parent.glob("*.py") if file.stem not in ("harness", HERE.stem))

if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        main(vars(importlib.import_module(name)), [])
