"""The seed of all random choices in tests."""

from __future__ import annotations

import os
import random

#: Determines which cases of a matrix run, and which processes a test kills and when. pytest prints it; set it to repeat
#: a run. The processes of pytest-xdist, and the jobs that tests start, inherit it.
SEED = int(os.environ.setdefault("TIDEMILL_TEST_SEED", str(random.SystemRandom().randrange(2**32))))


def dice(*what: object) -> random.Random:
    """Return a generator that depends only on the seed and on `what`, such as the case of a test."""
    return random.Random(" ".join(map(str, (SEED, *what))))
