"""One k-means fit under one system: the same data, the same first centres, the same number of iterations.

    kmeans_worker.py SYSTEM THREADS X.npy CENTRES.npy ITERATIONS OUT.npy

Prints one JSON object: `fit_s`, seconds of a fit of ITERATIONS, and `first_s`, seconds of a fit of one iteration. The
data is loaded before the clock starts. Each fit is repeated while that is cheap, and the median is taken.
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
Fit = Callable[[int], Array]  # iterations -> centres
REPEATED: dict[str, Any] = {"enough_s": 1.0, "repeats_max": 5}


class Alone:
    """Stands in for a communicator in systems of one process."""

    rank, size = 0, 1

    def Barrier(self) -> None:
        pass

    def bcast(self, value: Any) -> Any:
        return value


def load(path: str, comm: Any) -> Array:
    """This rank's rows, an even share in order."""
    rows = np.load(path, mmap_mode="r")
    return np.array(rows[len(rows) * comm.rank // comm.size : len(rows) * (comm.rank + 1) // comm.size])


def ran_all(model: Any, iterations: int) -> Array:
    """The centres, if the model used all its iterations: one that converged earlier did less work than the others."""
    if model.n_iter_ != iterations:
        raise SystemExit(f"converged after {model.n_iter_} iterations: the comparison needs data that takes longer")
    return model.cluster_centers_


def tidemill(threads: int, path: str, initial: Array, system: str) -> tuple[Any, Fit]:
    """`tidemill.ml.KMeans`, which splits its work over the job's workers and each one's threads."""
    from tidemill.ml import KMeans
    from tidemill.mpi import MPI

    comm = MPI.COMM_WORLD
    rows = load(path, comm)
    options = {"algorithm": "lloyd"} if system.endswith("lloyd") else {}

    def fit(iterations: int) -> Array:
        model = KMeans(n_clusters=len(initial), init=initial, n_init=1, max_iter=iterations, tol=0, **options).fit(rows)
        return ran_all(model, iterations)

    return comm, fit


def sklearn(threads: int, path: str, initial: Array, system: str) -> tuple[Any, Fit]:
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)
    rows = load(path, Alone())

    def fit(iterations: int) -> Array:
        algorithm = system.removeprefix("sklearn-")
        model = KMeans(
            n_clusters=len(initial),
            init=initial,
            n_init=1,
            max_iter=iterations,
            tol=0,
            algorithm=algorithm,
            copy_x=False,
        )
        return ran_all(model.fit(rows), iterations)

    return Alone(), fit


def faiss(threads: int, path: str, initial: Array, system: str) -> tuple[Any, Fit]:
    """All points (faiss samples unless told otherwise), and the faster of its two ways to compute distances."""
    import faiss as library

    library.omp_set_num_threads(threads)
    rows = load(path, Alone())
    k, d = initial.shape

    def fit(iterations: int) -> Array:
        # Inputs are known to be finite; faiss would look at every number again otherwise.
        model = library.Kmeans(
            d,
            k,
            niter=iterations,
            max_points_per_centroid=len(rows),
            min_points_per_centroid=1,
            check_input_data_for_NaNs=False,
        )
        model.train(rows, init_centroids=initial)
        return model.centroids

    timed = {}
    for threshold in (1, 1 << 30):  # queries at once from which it calls BLAS instead of its own SIMD loops
        library.cvar.distance_compute_blas_threshold = threshold
        fit(1)
        start = time.perf_counter()
        fit(1)
        timed[threshold] = time.perf_counter() - start
    library.cvar.distance_compute_blas_threshold = min(timed, key=lambda threshold: timed[threshold])
    return Alone(), fit


def superkmeans(threads: int, path: str, initial: Array, system: str) -> tuple[Any, Fit]:
    """All points and iterations, no hierarchy. It cannot be given centres: it begins with rows that it draws."""
    from superkmeans import SuperKMeans

    rows = load(path, Alone())
    k, d = initial.shape

    def fit(iterations: int) -> Array:
        model = SuperKMeans(
            n_clusters=k,
            dimensionality=d,
            hierarchical=False,
            iters=iterations,
            sampling_fraction=1.0,
            max_points_per_cluster=len(rows),
            n_threads=threads,
            tol=0.0,
            early_termination=False,
        )
        return np.asarray(model.train(rows))

    return Alone(), fit


def numpy_mpi(threads: int, path: str, initial: Array, system: str) -> tuple[Any, Fit]:
    """What one writes by hand with mpi4py and NumPy: blocks that stay in the cache, a matrix product, one Allreduce."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows = load(path, comm)
    k, d = initial.shape
    block = max(256, (1 << 20) // (k * rows.itemsize))

    def fit(iterations: int) -> Array:
        centres = initial.copy()
        labels = np.empty(len(rows), np.intp)
        sums = np.empty((k, d + 1))
        for _ in range(iterations):
            half_norms = np.einsum("kd,kd->k", centres, centres) / 2
            scaled = np.ascontiguousarray(-centres.T)
            scores = np.empty((block, k), rows.dtype)
            for start in range(0, len(rows), block):
                part = rows[start : start + block]
                score = scores[: len(part)]
                np.matmul(part, scaled, out=score)
                score += half_norms
                np.argmin(score, axis=1, out=labels[start : start + block])
            if d <= 8:  # few columns: a weighted count per column
                for column in range(d):
                    sums[:, column] = np.bincount(labels, weights=rows[:, column], minlength=k)
                sums[:, d] = np.bincount(labels, minlength=k)
            else:  # many: rows in order of their label, summed group by group
                order = np.argsort(labels, kind="stable")
                counts = np.bincount(labels, minlength=k)
                sums[:] = 0
                filled = np.flatnonzero(counts)
                starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
                sums[filled, :d] = np.add.reduceat(rows[order], starts[filled], axis=0)
                sums[:, d] = counts
            comm.Allreduce(MPI.IN_PLACE, sums)
            counts = sums[:, d:]
            centres = np.where(counts > 0, sums[:, :d] / np.maximum(counts, 1), centres).astype(rows.dtype)
        return centres

    return comm, fit


SYSTEMS = {"tidemill": tidemill, "sklearn": sklearn, "faiss": faiss, "superkmeans": superkmeans, "numpy": numpy_mpi}


def main() -> None:
    system, threads, path, initial, iterations, out = sys.argv[1:]
    comm, fit = SYSTEMS[system.split("-")[0]](int(threads), path, np.load(initial), system)
    fit(1)  # warm-up: page faults, thread pools, libraries loaded late
    first_s, _ = timed(comm, fit, 1, **REPEATED)
    fit_s, centres = timed(comm, fit, int(iterations), **REPEATED)
    if comm.rank == 0:
        np.save(out, centres)
        print(json.dumps({"fit_s": fit_s, "first_s": first_s}), flush=True)


main()
