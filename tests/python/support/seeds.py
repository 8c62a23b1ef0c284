"""The seed of everything that tests draw at random."""

from __future__ import annotations

import os
import random

#: Which cases of a matrix run, whom a test kills and when. pytest prints it; set it to repeat a run. The processes of pytest-xdist, and
#: the jobs that tests start, inherit it.
SEED = int(os.environ.setdefault("TIDEMILL_TEST_SEED", str(random.SystemRandom().randrange(2**32))))


def dice(*what: object) -> random.Random:
    """Return what draws the same for the same seed and the same `what`, such as the case of a test."""
    return random.Random(" ".join(map(str, (SEED, *what))))
