"""The example of a live market, a solver inside a stream, whose workers are killed: its frames equal those of an
undisturbed run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import launched
import numpy as np
import seeds
import tidemill as tm

EXAMPLE = Path(__file__).parents[3] / "examples" / "live_market.py"


def test_a_market_whose_workers_are_killed(tmp_path: Path) -> None:
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    done = launched.run("run", "-n", "2", EXAMPLE, calm)
    assert done.returncode == 0, done.stderr.decode()
    dice, kills = seeds.dice(), 0
    job = launched.start("run", "-n", "2", "--restarts", "30", EXAMPLE, hit)
    while kills < 3:
        launched.wait_until(
            lambda: job.poll() is not None or bool(launched.epochs(hit / "checkpoints")), "a checkpoint"
        )
        time.sleep(dice.uniform(0.1, 1.5))
        if job.poll() is not None:
            break
        # Between two lives there are no workers, and the job may end meanwhile.
        with contextlib.suppress(OSError):
            if victims := launched.children(job.pid):
                os.kill(dice.choice(victims), signal.SIGKILL)
                kills += 1
    _, err = job.communicate(timeout=launched.PATIENCE_S)
    assert job.returncode == 0 and kills > 0, err.decode()
    expected, seen = tm.viz.FrameReader(calm), tm.viz.FrameReader(hit)
    assert seen.times == expected.times and len(seen) > 20
    for one, other in zip(expected, seen, strict=True):
        np.testing.assert_allclose(one.positions, other.positions, atol=1e-4)
