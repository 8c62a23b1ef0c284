"""Block Jacobi for a Poisson problem on a square: `tidemill.iterate` with and without partial synchronization.

tidemill run -n 2 examples/poisson.py            one block of rows of the grid for each worker
tidemill run -n 4 examples/poisson.py 256        a finer grid, 256 x 256

Plain is Jacobi's method, which exchanges boundary rows after each sweep. Partial sweeps 16 times over a block between exchanges.
"""

import sys
from typing import Any

import numpy as np
import tidemill as tm


def main() -> None:
    job = tm.init()
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    first, end = side * job.rank // job.size, side * (job.rank + 1) // job.size
    # A solution that is known: u = sin(pi x) sin(pi y), zero at the border.
    at = np.sin(np.pi * np.arange(1, side + 1) / (side + 1))
    f = (2 * (1 - np.cos(np.pi / (side + 1)))) * 2 * np.outer(at[first:end], at)
    solution = np.outer(at[first:end], at)
    zeros = np.zeros(side)

    def local(u: Any, ghosts: Any) -> Any:
        padded = np.pad(u, ((0, 0), (1, 1)))
        above = np.vstack([ghosts.get(job.rank - 1, zeros), u[:-1]])
        below = np.vstack([u[1:], ghosts.get(job.rank + 1, zeros)])
        return (f + above + below + padded[:, :-2] + padded[:, 2:]) / 4

    def boundary(u: Any) -> Any:
        return {other: row for other, row in ((job.rank - 1, u[0]), (job.rank + 1, u[-1])) if 0 <= other < job.size}

    for sync, local_sweeps in (("global", None), ("partial", 16)):
        found = tm.iterate(
            np.zeros_like(f),
            local=local,
            boundary=boundary,
            until=lambda before, after: float(np.abs(after - before).max()) < 1e-6,
            local_until=lambda before, after: False,
            sync=sync,
            local_sweeps=local_sweeps,
            max_rounds=100_000,
        )
        error = max(job.comm.allgather(float(np.abs(found.state - solution).max())))
        account = found.account
        if job.rank == 0:
            print(
                f"{sync}: {account.rounds} rounds, {account.sweeps} sweeps, {account.bytes_sent:,} bytes, "
                f"error {error:.1e}, {account.exchange_seconds:.3f} s in exchange, {account.compute_seconds:.3f} s in sweeps"
            )


if __name__ == "__main__":
    main()
