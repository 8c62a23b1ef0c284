"""Runs several programs of this folder in one job, those named on the command line, or all: starting a job costs more
than most checks.

Each program gets its own duplicate of the world, so that its leftovers do not disturb the next; a check ends with a
barrier before the next begins.
"""

import importlib
import sys
from pathlib import Path

from harness import MPI, main

HERE = Path(__file__)
PROGRAMS = sorted(file.stem for file in HERE.parent.glob("*.py") if file.stem not in ("harness", HERE.stem))

if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        comm = MPI.COMM_WORLD.Dup()
        main(vars(importlib.import_module(name)), [], comm)
        comm.Free()
