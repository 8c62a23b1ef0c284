"""Loops in task graphs: K-means and PageRank, whose tasks stay alive from round to round.

tidemill run -n 2 examples/loops.py
An edge leads back to the task that it comes from. K-means adds up the clusters of all copies in each round, and ends when
the centers no longer change. PageRank sends each page's shares to the copy that keeps the page, and ends when the ranks no
longer change; ranks stay on their copies.
"""

import numpy as np
import tidemill as tm

POINTS, CLUSTERS, PAGES, LINKS = 20_000, 4, 2_000, 10
exchange = tm.exchange


def assign(totals, out, context):
    """Find the nearest center of each of this copy's points, until the centers rest."""
    random = np.random.default_rng(context.copy)
    at = random.integers(0, CLUSTERS, size=POINTS)
    points = random.normal(size=(POINTS, 2)) + np.array([[0, 0], [9, 0], [0, 9], [9, 9]])[at]
    centers = np.array([[1.0, 1], [2, 1], [1, 2], [2, 2]])
    for _ in totals.rounds():
        nearest = ((points[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        sums = [np.bincount(nearest, weights, CLUSTERS) for weights in (*points.T, None)]
        out.send(np.vstack([*sums, *centers.T / context.copies]))
        centers = means(next(totals))
    return (centers.round(1) + 0).tolist()


def means(total):
    """Return the new centers: sums of coordinates over counts."""
    return (total[:2] / np.maximum(total[2], 1)).T


def rest(total):
    """Return whether no center has moved by more than a thousandth."""
    return np.abs(means(total) - total[3:].T).max() < 1e-3


def rank(shares, changes, out, changed, context):
    """Keep the ranks of some pages, and send a share of each to the pages that it links to."""
    links = np.random.default_rng(1).zipf(1.5, size=(PAGES, LINKS)) % PAGES
    mine = np.arange(PAGES) % context.copies == context.copy
    ranks = np.full(PAGES, 1 / PAGES)
    for _ in changes.rounds():
        pages = np.flatnonzero(mine)
        out.send({"page": links[pages].ravel(), "share": np.repeat(ranks[pages] / LINKS, LINKS)})
        got = next(shares).to_numpy()
        before, ranks = ranks, np.where(mine, 0.15 / PAGES, 0)
        np.add.at(ranks, got["page"], 0.85 * got["share"])
        changed.send(np.abs(ranks - before)[mine].sum())
        next(changes)
    return {int(page): round(float(ranks[page]), 3) for page in ranks.argsort()[-3:]}


def owner(table, copies):
    """Return the copy that keeps each page."""
    return table.to_numpy()["page"] % copies


graph = tm.Graph("loops")
means_of = graph.compute("k-means", assign, schema="arrays", parallelism=2)
graph.feedback(means_of, means_of, exchange.all_reduce("sum", rounds="strict"), until=rest, limit=50)

ports = {"out": {"page": "int64", "share": "float64"}, "changed": "arrays"}
ranks_of = graph.compute("ranks", rank, inputs=["shares", "changes"], outputs=ports, parallelism=2)
graph.feedback(ranks_of["out"], ranks_of["shares"], exchange.partition(owner, rounds="strict"))
total = exchange.all_reduce("sum", rounds="strict")
graph.feedback(ranks_of["changed"], ranks_of["changes"], total, until=lambda change: change < 1e-6)

result = graph.run()
if tm.init().rank == 0:
    print(result["k-means"][0])
    print(result["ranks"])
