"""Random networkx graphs of all kinds, for tests that compare with networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np

#: The special property of each graph.
KINDS = ("empty", "one node", "no links", "one link", "sparse", "dense", "parts", "loops", "parallel", "grid", "hub")


def graph(kind: str, directed: bool, seed: int, weighted: bool = False) -> Any:
    """Return a graph whose nodes are in random order. Weights are multiples of a quarter, so that their sums are exact."""
    rng = np.random.default_rng([seed, KINDS.index(kind), directed])
    n = {"empty": 0, "one node": 1, "no links": 5, "one link": 2, "dense": 12}.get(kind, 30)
    names = rng.permutation(n).tolist()
    multi = kind == "parallel"
    made = {
        (False, False): nx.Graph,
        (True, False): nx.DiGraph,
        (False, True): nx.MultiGraph,
        (True, True): nx.MultiDiGraph,
    }[directed, multi]()
    made.add_nodes_from(names)
    if kind == "grid":
        made.add_edges_from((at, at + step) for at in range(n) for step in (1, 6) if at + step < n)
    elif kind == "hub":
        made.add_edges_from((0, at) if at % 2 else (at, 0) for at in range(1, n))
    elif n > 1 and kind != "no links":
        m = {"one link": 1, "dense": 100, "parts": 20, "parallel": 80}.get(kind, 60)
        for _ in range(m):
            source, target = rng.choice(n, 2, replace=kind == "loops").tolist()
            if kind == "parts" and source % 3 != target % 3:
                continue
            made.add_edge(source, target)
    if weighted:
        for *_, data in made.edges(data=True):
            data["weight"] = int(rng.integers(1, 40)) / 4
    return made
