"""``repeatable=True``: sums of floats that are equal to the bit, on any transport and wherever the workers run."""

from __future__ import annotations

from pathlib import Path

import launched

PROGRAM = """
import hashlib
import numpy as np
from tidemill.mpi import MPI

comm = MPI.COMM_WORLD
mine = np.random.default_rng(comm.rank).standard_normal(300_000) * 10.0 ** (comm.rank % 3 * 5)
for dtype in ("f4", "f8", "c16"):
    for count in (1, 1000, 40_000, 300_000):
        data = mine[:count].astype(dtype)
        results = [np.empty_like(data) for _ in range(3)]
        comm.Allreduce(data, results[0], repeatable=True)
        comm.Reduce(data, results[1], root=1, repeatable=True)
        comm.Scan(data, results[2], repeatable=True)
        if comm.rank == 1:
            print(dtype, count, *(hashlib.sha256(result).hexdigest()[:16] for result in results))
"""


def test_the_same_bits_over_any_transport(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(PROGRAM)
    seen = {}
    for name, options, env in [
        ("shared memory", [], {}),
        ("again", ["--no-bind"], {}),
        ("TCP", ["--transport", "tcp"], {}),
        ("pieces", [], {"TIDEMILL_SINGLE_COPY": "0"}),
    ]:
        done = launched.run("run", "-n", "3", "--no-prefix", *options, app, env=env)
        assert done.returncode == 0, done.stderr.decode()
        seen[name] = done.stdout.decode().splitlines()
    assert len(seen["TCP"]) == 12
    for lines in seen.values():
        assert lines == seen["TCP"], seen
