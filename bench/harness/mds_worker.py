"""One system's part in the benchmark of multidimensional scaling.

    mds_worker.py SYSTEM fit DELTA.npy START.npy ITERATIONS OUT.npy     a fit of one iteration, and one of ITERATIONS
    mds_worker.py SYSTEM annealing WHAT SEEDS                           random starts, without and with annealing
    mds_worker.py SYSTEM large POINTS fixed16|vectors                   many points, and what they take

Prints JSON objects, on rank 0: {"ready": ...} before the fit whose time and memory count, {"query_s": ...} after it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from fits import timed

Array = Any
Fit = Callable[[int], Array]  # iterations -> positions of all points
REPEATED: dict[str, Any] = {"enough_s": 1.5, "repeats_max": 7}


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def tidemill(system: str, delta: str, start: Array) -> tuple[Any, Fit]:
    """`tidemill.ml.MDS`, each rank with its share of the file's rows, which it maps."""
    from tidemill.ml import MDS
    from tidemill.mpi import MPI

    comm = MPI.COMM_WORLD
    rows = np.load(delta, mmap_mode="r")
    mine = rows[len(rows) * comm.rank // comm.size : len(rows) * (comm.rank + 1) // comm.size]
    storage = "fixed16" if system.endswith("fixed16") else "float32"

    def fit(iterations: int) -> Array:
        model = MDS(start.shape[1], max_iter=iterations, tol=0, storage=storage).fit(mine, init=start)
        if model.n_iter_ != iterations:
            raise SystemExit(f"ended after {model.n_iter_} iterations: the comparison needs data that takes longer")
        return model.positions_

    return comm, fit


class Alone:
    """Stands in for a communicator in systems of one process."""

    rank = 0

    def Barrier(self) -> None:
        pass

    def bcast(self, value: Any) -> Any:
        return value


def sklearn(system: str, delta: str, start: Array) -> tuple[Any, Fit]:
    from sklearn.manifold import smacof

    rows = np.load(delta)

    def fit(iterations: int) -> Array:
        found = smacof(
            rows,
            n_components=start.shape[1],
            init=start,
            n_init=1,
            max_iter=iterations,
            eps=0,
            normalized_stress=False,
            return_n_iter=True,
        )
        if found[2] != iterations:
            raise SystemExit(f"ended after {found[2]} iterations: the comparison needs data that takes longer")
        return found[0]

    return Alone(), fit


def fits(system: str, delta: str, start: str, iterations: str, out: str) -> None:
    comm, fit = {"tidemill": tidemill, "sklearn": sklearn}[system.split("-")[0]](system, delta, np.load(start))
    fit(1)  # warm-up: the file's pages, thread pools, libraries loaded late
    first_s, _ = timed(comm, fit, 1, **REPEATED)
    if comm.rank == 0:
        tell(ready=True)
    query_s, positions = timed(comm, fit, int(iterations), **REPEATED)
    if comm.rank == 0:
        np.save(out, positions)
        tell(query_s=query_s, first_s=first_s)


def annealing(what: str, seeds: str) -> None:
    """Normalized stress and seconds of each seed: random starts, without and with annealing."""
    from tidemill.ml import MDS

    rng = np.random.default_rng(12)
    weights = None
    if what == "0":
        points, k = rng.standard_normal((300, 10)), 2
    else:
        points, k = rng.standard_normal((300, 3)), 3
    delta = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    if what == "1":
        upper = np.triu(rng.uniform(size=delta.shape) < 0.05, 1)
        weights = (upper | upper.T).astype(float)
    found: dict[str, list[list[float]]] = {"plain": [], "annealing": []}
    for seed in range(int(seeds)):
        for name, runs in found.items():
            model = MDS(k, init="random", random_state=seed, annealing=name == "annealing", max_iter=1000)
            begin = time.perf_counter()
            model.fit(delta, weights=weights)
            runs.append([model.normalized_stress_, time.perf_counter() - begin, model.n_iter_])
    tell(**found)


class Computed:
    """A matrix of distances that is nowhere: rows are computed when they are asked for."""

    def __init__(self, vectors: Array) -> None:
        self.vectors, self.squares = vectors, (vectors**2).sum(axis=1)
        self.shape, self.dtype = (len(vectors), len(vectors)), vectors.dtype

    def __getitem__(self, rows: slice) -> Array:
        products = self.vectors[rows] @ self.vectors.T
        block = np.sqrt(np.maximum(self.squares[rows, None] + self.squares - 2 * products, 0))
        first, last, _ = rows.indices(len(self.vectors))
        block[np.arange(last - first), np.arange(first, last)] = 0
        return block


def large(points: str, storage: str) -> None:
    """Few iterations on many points: seconds of all and of one iteration."""
    from tidemill.ml import MDS

    vectors = np.random.default_rng(0).standard_normal((int(points), 10))
    tell(ready=True)
    ticks = []

    class Watched(MDS):
        def _report(self, iteration: Any) -> None:
            ticks.append(time.perf_counter())

    begin = time.perf_counter()
    if storage == "vectors":
        model = Watched(max_iter=6, tol=0, metric="euclidean").fit(vectors)
    else:
        model = Watched(max_iter=6, tol=0, storage=storage).fit(Computed(vectors))
    # The first object with this key ends the watch.
    tell(
        query_s=time.perf_counter() - begin,
        iteration_s=(ticks[-1] - ticks[0]) / (len(ticks) - 1),
        stress=model.normalized_stress_,
    )


def main() -> None:
    system, what, *rest = sys.argv[1:]
    if what == "fit":
        fits(system, *rest)
    elif what == "annealing":
        annealing(*rest)
    else:
        large(*rest)


main()
