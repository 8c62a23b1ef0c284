"""Additive Schwarz for a Poisson problem on a square: `tidemill.iterate` with exact solutions on blocks that overlap.

tidemill run -n 2 examples/schwarz.py            one block of rows of the grid for each worker
tidemill run -n 4 examples/schwarz.py 256        a finer grid, 256 x 256

Plain is Jacobi's method, as in poisson.py. Schwarz solves the problem on each block, with the neighbors' rows as its border;
the more rows two blocks share, the fewer rounds it takes. On fine grids a solution takes longer than a sweep of Jacobi's.
"""

import sys
from typing import Any

import numpy as np
import tidemill as tm


def sines(size: int) -> tuple[Any, Any]:
    """Eigenvectors and eigenvalues of second differences: with them, Poisson's equation on a rectangle is solved exactly."""
    angles = np.pi * np.arange(1, size + 1) / (size + 1)
    vectors = np.sqrt(2 / (size + 1)) * np.sin(np.outer(angles, np.arange(1, size + 1)))
    return vectors, 2 - 2 * np.cos(angles)


def main() -> None:
    job = tm.init()
    side = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    # A solution that is known: u = sin(pi x) sin(pi y), zero at the border.
    at = np.sin(np.pi * np.arange(1, side + 1) / (side + 1))
    solution = np.outer(at, at)
    f = (2 * (1 - np.cos(np.pi / (side + 1)))) * 2 * solution
    cuts = [side * rank // job.size for rank in range(job.size + 1)]
    if min(np.diff(cuts)) < 8:
        sys.exit(f"blocks of fewer than 8 rows: at most {side // 8} workers for {side} rows")

    def run(name: str, overlap: int, sync: str) -> None:
        """Iterate on this worker's rows and `overlap` more on either side."""
        firsts = [max(0, cut - overlap) for cut in cuts[:-1]]
        ends = [min(side, cut + overlap) for cut in cuts[1:]]
        first, end = firsts[job.rank], ends[job.rank]
        (down, low), (across, left) = sines(end - first), sines(side)

        def jacobi(u: Any, ghosts: Any) -> Any:
            padded = np.pad(u, 1)
            padded[0, 1:-1], padded[-1, 1:-1] = ghosts.get(job.rank - 1, 0), ghosts.get(job.rank + 1, 0)
            return (f[first:end] + padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]) / 4

        def solve(u: Any, ghosts: Any) -> Any:
            right = f[first:end].copy()
            right[0] += ghosts.get(job.rank - 1, 0)
            right[-1] += ghosts.get(job.rank + 1, 0)
            return down @ ((down @ right @ across) / (low[:, None] + left)) @ across

        def boundary(u: Any) -> Any:
            """The rows just outside of the neighbors' blocks, which are in this one."""
            rows = {job.rank - 1: ends[job.rank - 1], job.rank + 1: firsts[(job.rank + 1) % job.size] - 1}
            return {other: u[row - first] for other, row in rows.items() if 0 <= other < job.size}

        found = tm.iterate(
            np.zeros((end - first, side)),
            local=jacobi if name == "jacobi" else solve,
            boundary=boundary,
            until=lambda before, after: float(np.abs(after - before).max()) < 1e-6,
            sync=sync,
            max_rounds=100_000,
        )
        error = max(job.comm.allgather(float(np.abs(found.state - solution[first:end]).max())))
        account = found.account
        if job.rank == 0:
            print(
                f"{name}, {overlap} rows more, {sync}: {account.rounds} rounds, {account.sweeps} sweeps, {account.bytes_sent:,} bytes, "
                f"error {error:.1e}, {account.exchange_seconds:.3f} s in exchange, {account.compute_seconds:.3f} s in sweeps"
            )

    for name, overlap, sync in (("jacobi", 0, "global"), *(("schwarz", rows, "global") for rows in (0, 2, 4))):
        run(name, overlap, sync)
    run("schwarz", 4, "async")


if __name__ == "__main__":
    main()
