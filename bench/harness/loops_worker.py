"""K-means and multidimensional scaling as Tidemill's users can write them, on two workers: bulk-synchronous, in a stream, as a loop of tasks.

    loops_worker.py WAY PROBLEM ROWS.npy START.npy ITERATIONS OUT.npy

Ways:
    bsp            `KMeans` and `MDS`, called by the program on every worker with its rows
    bsp-in-stream  the same within `bsp` of a stream: its one window has all rows
    bsp-numpy      an iteration written in NumPy, and `Allreduce` or `Allgather`
    loop           the same iteration as a task, whose copies stay alive; an edge leads back to it
    loop-kernels   a loop whose task calls the kernels that the estimators call
Problems: `kmeans`, from the first centers START, and `mds`, of the distances of ROWS, from the positions START.

Rank 0 prints {"fit_s": seconds of a fit of ITERATIONS, "first_s": of one}, from rows in memory to the answer on rank 0, and the steps of
the loop or stream around it included, and writes centers or positions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tidemill as tm
from fits import timed
from tidemill import _tidemill as native
from tidemill.ml import MDS, KMeans, using
from tidemill.ml._threads import pool

Array = Any
Fit = Callable[[int], Array]  # iterations -> centers or positions
REPEATED: dict[str, Any] = {"enough_s": 1.0, "repeats_max": 5}
BLOCK_ROWS = 4096


def share(rows: Array, rank: int, size: int) -> Array:
    """A rank's rows: an even share, in order."""
    return rows[len(rows) * rank // size : len(rows) * (rank + 1) // size]


def apart(some: Array, others: Array) -> Array:
    """All distances, exact where two rows are equal."""
    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * some @ others.T
    return np.sqrt(np.maximum(squares, 0))


def distances(vectors: Array, rank: int, size: int) -> Array:
    """Those of this rank's rows to all; rows are told apart from themselves by nothing else than 0."""
    mine = share(vectors, rank, size)
    found = apart(mine, vectors)
    found[np.arange(len(mine)), len(vectors) * rank // size + np.arange(len(mine))] = 0
    return found


# --- an iteration in NumPy -------------------------------------------------------------------------------------------
def cluster_sums(rows: Array, centers: Array) -> Array:
    """Of each center the sum of its rows, and their number."""
    sums = np.zeros((len(centers), rows.shape[1] + 1))
    half_squares = (centers**2).sum(axis=1) / 2
    for first in range(0, len(rows), BLOCK_ROWS):
        block = rows[first : first + BLOCK_ROWS]
        nearest = (half_squares - block @ centers.T).argmin(axis=1)
        one_hot = np.zeros((len(centers), len(block)), rows.dtype)
        one_hot[nearest, np.arange(len(block))] = 1
        sums[:, :-1] += one_hot @ block
        sums[:, -1] += np.bincount(nearest, minlength=len(centers))
    return sums


def means(sums: Array, centers: Array) -> Array:
    """The new centers; one without rows stays where it is."""
    counts = sums[:, -1:]
    return np.where(counts > 0, sums[:, :-1] / np.maximum(counts, 1), centers).astype(centers.dtype)


def guttman(delta: Array, positions: Array, first: int) -> Array:
    """New positions of the points from `first` on: one step of SMACOF without weights."""
    mine = positions[first : first + len(delta)]
    ways = apart(mine, positions)
    ratios = np.divide(delta, ways, out=np.zeros_like(delta), where=ways > 0)
    return (ratios.sum(axis=1)[:, None] * mine - ratios @ positions) / len(positions)


# --- the ways --------------------------------------------------------------------------------------------------------
class Problem(NamedTuple):
    """What a way must know: estimators for as many iterations, and an iteration by hand."""

    kmeans: bool
    rows: Array
    start: Array

    def estimate(self, comm: Any, mine: Array, start: Array, iterations: int) -> Any:
        """`mine` are the rows of K-means, or the distances of this rank's points to all."""
        if self.kmeans:
            model: Any = KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=0)
        else:
            model = MDS(start.shape[1], max_iter=iterations, tol=0)
        with using(comm):
            model.fit(mine) if self.kmeans else model.fit(mine, init=start)
        if model.n_iter_ != iterations:
            raise SystemExit(f"ended after {model.n_iter_} iterations: the comparison needs data that takes longer")
        return model.cluster_centers_ if self.kmeans else model.positions_


def bsp(problem: Problem) -> Fit:
    comm = tm.init().comm
    mine = share(problem.rows, comm.rank, comm.size)

    def fit(iterations: int) -> Array:
        given = mine if problem.kmeans else distances(problem.rows, comm.rank, comm.size)
        return problem.estimate(comm, given, problem.start, iterations)

    return fit


def bsp_in_stream(problem: Problem) -> Fit:
    count, columns = problem.rows.shape
    names = [f"x{i}" for i in range(problem.start.shape[1])]
    at = np.zeros(count, "M8[us]")
    # Columns of numbers, which pass through a stream and become arrays at less cost than a column of lists.
    values = {f"value{i}": np.ascontiguousarray(problem.rows[:, i]) for i in range(columns)}
    table = tm.Table.from_numpy({"row": np.arange(count), **values, "at": at})
    window = tm.stream.window(tm.stream.tumbling("1s"), on="at")

    def fit(iterations: int) -> Array:
        def solve(comm: Any, rows: Any, context: Any) -> Any:
            given = rows.to_numpy()
            own = np.stack([given[name] for name in values], axis=1)
            if problem.kmeans:
                found, order = problem.estimate(comm, own, problem.start, iterations), np.arange(len(problem.start))
            else:
                # Points are in the order of copies, each with its own.
                parts = comm.allgather((given["row"], own))
                order, vectors = (np.concatenate(both) for both in zip(*parts, strict=True))
                before = sum(len(of) for of, _ in parts[: comm.rank])
                delta = apart(own, vectors)
                delta[np.arange(len(own)), before + np.arange(len(own))] = 0
                found = problem.estimate(comm, delta, problem.start[order], iterations)
            if comm.rank:
                return None
            return tm.Table.from_numpy({"row": order, **dict(zip(names, found.T.astype(np.float64), strict=True))})

        seen: list[Any] = []
        stream = tm.stream.from_table(table, time="at", rows_per_batch=65_536)
        schema = {"row": "int64", **dict.fromkeys(names, "float64")}
        stream.bsp(solve, schema, window=window, by="row").write_stream(lambda rows: seen.append(rows.to_numpy()))
        # The sink's copy may be on any worker.
        seen = [rows for of_one in tm.init().comm.allgather(seen) for rows in of_one]
        found = np.empty(problem.start.shape, problem.start.dtype)
        for rows in seen:
            found[rows["row"]] = np.stack([rows[name] for name in names], axis=1)
        assert sum(len(rows["row"]) for rows in seen) == len(found), "an answer is of all of them, once"
        return found

    return fit


def bsp_numpy(problem: Problem) -> Fit:
    comm = tm.init().comm
    mine = share(problem.rows, comm.rank, comm.size)
    first = len(problem.rows) * comm.rank // comm.size

    def kmeans(iterations: int) -> Array:
        centers, total = problem.start, np.empty((len(problem.start), mine.shape[1] + 1))
        for _ in range(iterations):
            comm.Allreduce(cluster_sums(mine, centers), total)
            centers = means(total, centers)
        return centers

    def mds(iterations: int) -> Array:
        delta, positions = distances(problem.rows, comm.rank, comm.size), problem.start
        counts = comm.allgather(len(mine) * positions.shape[1])
        for _ in range(iterations):
            moved = np.empty_like(positions)
            comm.Allgatherv(guttman(delta, positions, first), (moved, counts))
            positions = moved
        return positions

    return kmeans if problem.kmeans else mds


def looped(problem: Problem, function_of: Callable[[int], Any]) -> Fit:
    """A graph of one task, whose function for so many iterations makes one in each round."""
    exchange = tm.exchange

    def fit(iterations: int) -> Array:
        graph = tm.Graph("loop")
        task = graph.compute("iterate", function_of(iterations), schema="arrays")
        back = exchange.all_reduce("sum", rounds="strict") if problem.kmeans else exchange.all_gather(rounds="strict")
        graph.feedback(task, task, back, limit=iterations)
        return graph.run()["iterate"][0]

    return fit


def loop(problem: Problem) -> Fit:
    def kmeans(totals: Iterator[Array] | Any, out: Any, context: Any) -> Array:
        mine, centers = share(problem.rows, context.copy, context.copies), problem.start
        for _ in totals.rounds():
            out.send(cluster_sums(mine, centers))
            centers = means(next(totals), centers)
        return centers

    def mds(moved: Any, out: Any, context: Any) -> Array:
        delta, positions = distances(problem.rows, context.copy, context.copies), problem.start
        first = len(problem.rows) * context.copy // context.copies
        for _ in moved.rounds():
            out.send(guttman(delta, positions, first))
            # One array of each copy.
            positions = np.concatenate(next(moved))
        return positions

    return looped(problem, lambda _: kmeans if problem.kmeans else mds)


def loop_kernels(problem: Problem) -> Fit:
    workers = pool()

    def kmeans_of(iterations: int) -> Any:
        def kmeans(totals: Any, out: Any, context: Any) -> Array:
            mine, (k, d) = share(problem.rows, context.copy, context.copies), problem.start.shape
            shift, centers, local = np.zeros(d, mine.dtype), problem.start.astype(np.float64), np.empty(k * d + k + 1)
            fit = native.KMeansFit(workers, mine, shift, None, k, "auto", iterations)
            for _ in totals.rounds():
                fit.step(workers, mine, shift, None, centers, local)
                out.send(local)
                total = next(totals)
                sums, counts = total[: k * d].reshape(k, d), total[k * d : -1, None]
                centers = np.where(counts > 0, sums / np.maximum(counts, 1), centers)
            return centers.astype(problem.start.dtype)

        return kmeans

    def mds(moved: Any, out: Any, context: Any) -> Array:
        delta, positions = distances(problem.rows, context.copy, context.copies), problem.start
        (mine, n), k = delta.shape, positions.shape[1]
        first = n * context.copy // context.copies
        cells, local = native.MdsDistances(mine, n, first, "float32"), np.empty((mine, k + 1))
        cells.fill(workers, 0, delta, 1.0)
        for _ in moved.rounds():
            own = np.ascontiguousarray(positions[first : first + mine])
            cells.guttman(workers, own, positions, np.ones(n), 0.0, local)
            out.send(local[:, :-1] / n)
            positions = np.concatenate(next(moved))
        return positions

    return looped(problem, lambda iterations: kmeans_of(iterations) if problem.kmeans else mds)


WAYS = {
    "bsp": bsp,
    "bsp-in-stream": bsp_in_stream,
    "bsp-numpy": bsp_numpy,
    "loop": loop,
    "loop-kernels": loop_kernels,
}


def main() -> None:
    way, problem, rows, start, iterations, out = sys.argv[1:]
    comm = tm.init().comm
    fit = WAYS[way](Problem(problem == "kmeans", np.load(rows), np.load(start)))
    fit(1)  # warm-up: pages, libraries loaded late
    first_s, _ = timed(comm, fit, 1, **REPEATED)
    fit_s, found = timed(comm, fit, int(iterations), **REPEATED)
    if comm.rank == 0:
        np.save(out, found)
        print(json.dumps({"fit_s": fit_s, "first_s": first_s}), flush=True)


main()
