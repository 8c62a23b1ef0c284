"""Graph kernels under one system, each timed in this process.

    networks_worker.py SYSTEM THREADS FOLDER KERNELS ENOUGH_S

FOLDER has the graph, as `networks.py` writes it. Prints one JSON object: `kernel_s`, by kernel the median seconds of some runs, and
`failures`. What each kernel found is left in FOLDER as SYSTEM-KERNEL.npy. The result of a kernel is in the form that the system gives;
making an array of it for the comparison is not timed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ALPHA, TOLERANCE = 0.85, 1e-6
REPEATS_MAX = 5
#: A kernel, and what makes of its result what is compared.
Kernel = tuple[Callable[[], Any], Callable[[Any], Any]]


class Input:
    """The graph of the folder."""

    def __init__(self, folder: Path) -> None:
        facts = json.loads((folder / "facts.json").read_text())
        self.nodes: int = facts["nodes"]
        self.source: int = facts["sources"][0]
        self.sources: list[int] = facts["sources"]
        #: Source and sink of a maximum flow, on a graph for that; lengths are capacities.
        self.flow: tuple[int, int] | None = facts["flow"]
        self.text = str(folder / "links.txt")
        self.links, self.lengths = np.load(folder / "links.npy"), np.load(folder / "lengths.npy")
        self.undirected = np.load(folder / "undirected.npy")


def each(values: Any) -> Any:
    return np.asarray(values, np.float64)


def distances(values: Any) -> Any:
    """Distances, with infinity for nodes that were not reached, however a system says that."""
    found = np.array(values, np.float64).reshape(-1)
    found[(found < 0) | (found > 1e300)] = np.inf
    return found


def by_node(values: Any, nodes: int, nothing: float) -> Any:
    """An array of a mapping of nodes."""
    found = np.full(nodes, nothing)
    found[list(values.keys())] = list(values.values())
    return found


# --- the systems: of each, its kernels by name -----------------------------------------------------------------------
def tidemill(data: Input, threads: int) -> dict[str, Kernel]:
    import tidemill

    tm = tidemill.networks
    columns = data.links[:, 0].copy(), data.links[:, 1].copy(), data.lengths
    plain, lengths = tm.read(columns[:2]), tm.read(columns)
    if data.flow is not None:
        return {"flow": (lambda: tm.maximum_flow(lengths, *data.flow), lambda found: [found.value])}
    both = tm.read(data.undirected, directed=False)

    def size(net: Any) -> Any:
        return [net.n, net.m]

    return {
        "read": (lambda: tm.read(data.text), size),
        "build": (lambda: tm.read(columns[:2]), size),
        "pagerank": (lambda: tm.pagerank(plain, tol=TOLERANCE / data.nodes), each),
        "bfs": (lambda: tm.bfs(plain, data.source).values, distances),
        "paths": (lambda: tm.shortest_paths(lengths, data.source).values, distances),
        "components": (lambda: tm.connected_components(both), lambda found: [len(found.sizes), max(found.sizes)]),
        "triangles": (lambda: tm.triangles(both), lambda found: [found.values.sum() / 3]),
        "betweenness": (lambda: tm.betweenness(both, samples=data.sources, normalized=False), ranks_of(data)),
    }


def ranks_of(data: Input) -> Callable[[Any], Any]:
    """Betweenness that differs by a factor, which conventions do, is the same. Of sources themselves conventions differ too."""

    def found(values: Any) -> Any:
        scores = np.array(values, np.float64)
        scores[data.sources] = 0
        return scores / max(scores.sum(), 1e-300)

    return found


def scipy(data: Input, threads: int) -> dict[str, Kernel]:
    """csgraph, with what it has not by products of sparse matrices."""
    from scipy import sparse
    from scipy.sparse import csgraph

    n = data.nodes
    ones = np.ones(len(data.links))

    def matrix(values: Any, sources: Any, targets: Any) -> Any:
        return sparse.coo_array((values, (sources, targets)), shape=(n, n)).tocsr()

    def read() -> Any:
        links = np.loadtxt(data.text, dtype=np.int64)
        return matrix(np.ones(len(links)), links[:, 0], links[:, 1])

    plain = matrix(ones, data.links[:, 0], data.links[:, 1])
    lengths = matrix(data.lengths, data.links[:, 0], data.links[:, 1])
    if data.flow is not None:
        capacities = lengths.astype(np.int32)
        return {"flow": (lambda: csgraph.maximum_flow(capacities, *data.flow), lambda found: [found.flow_value])}
    half = matrix(np.ones(len(data.undirected)), data.undirected[:, 0], data.undirected[:, 1])
    leaving = plain.sum(axis=1)
    incoming = (plain * (1 / np.maximum(leaving, 1))[:, None]).T.tocsr()

    def pagerank() -> Any:
        scores, change = np.full(n, 1 / n), 1.0
        while change >= TOLERANCE:
            lost = scores[leaving == 0].sum()
            new = ALPHA * (incoming @ scores) + (1 - ALPHA + ALPHA * lost) / n
            change = np.abs(new - scores).sum()
            scores = new
        return scores

    def levels(found: tuple[Any, Any]) -> Any:
        order, before = found
        depth = np.full(n, np.inf)
        depth[order[0]] = 0
        for node in order[1:]:
            depth[node] = depth[before[node]] + 1
        return depth

    def size(net: Any) -> Any:
        return [net.shape[0], net.nnz]

    return {
        "read": (read, size),
        "build": (lambda: matrix(ones, data.links[:, 0], data.links[:, 1]), size),
        "pagerank": (pagerank, each),
        "bfs": (lambda: csgraph.breadth_first_order(plain, data.source), levels),
        "paths": (lambda: csgraph.dijkstra(lengths, indices=data.source), distances),
        "components": (
            lambda: csgraph.connected_components(half, directed=False),
            lambda found: [found[0], np.bincount(found[1]).max()],
        ),
        # Each triangle once: of three nodes, one link is over the other two.
        "triangles": (lambda: (half @ half).multiply(half).sum(), lambda total: [total]),
    }


def igraph(data: Input, threads: int) -> dict[str, Kernel]:
    from igraph import Graph

    def build() -> Any:
        return Graph(n=data.nodes, edges=data.links, directed=True)

    plain = build()
    lengths = data.lengths.tolist()
    if data.flow is not None:
        return {"flow": (lambda: plain.maxflow(*data.flow, capacity=lengths), lambda found: [found.value])}
    both = Graph(n=data.nodes, edges=data.undirected)

    def size(net: Any) -> Any:
        return [net.vcount(), net.ecount()]

    def components() -> Any:
        return both.connected_components()

    return {
        "read": (lambda: Graph.Read_Edgelist(data.text), size),
        "build": (build, size),
        "pagerank": (lambda: plain.pagerank(damping=ALPHA), each),
        "bfs": (lambda: plain.distances(data.source), distances),
        "paths": (lambda: plain.distances(data.source, weights=lengths), distances),
        "components": (components, lambda found: [len(found), max(found.sizes())]),
        "triangles": (lambda: both.list_triangles(), lambda found: [len(found)]),
        "betweenness": (lambda: both.betweenness(sources=data.sources), ranks_of(data)),
    }


def networkit(data: Input, threads: int) -> dict[str, Kernel]:
    import networkit as nk

    nk.setNumberOfThreads(threads)

    def build() -> Any:
        return nk.GraphFromCoo((data.links[:, 0], data.links[:, 1]), n=data.nodes, directed=True)

    plain = build()
    ends = data.lengths, (data.links[:, 0], data.links[:, 1])
    lengths = nk.GraphFromCoo(ends, n=data.nodes, weighted=True, directed=True)
    both = nk.GraphFromCoo((data.undirected[:, 0], data.undirected[:, 1]), n=data.nodes)
    degrees = np.bincount(data.undirected.ravel(), minlength=data.nodes).astype(np.float64)

    def read() -> Any:
        return nk.graphio.EdgeListReader("\t", 0, continuous=True, directed=True).read(data.text)

    def pagerank() -> Any:
        distribute = nk.centrality.SinkHandling.DistributeSinks
        run = nk.centrality.PageRank(plain, damp=ALPHA, tol=TOLERANCE, distributeSinks=distribute)
        run.norm = nk.centrality.Norm.L1_NORM
        return run.run().scores()

    def components() -> Any:
        kind = nk.components.ParallelConnectedComponents if threads > 1 else nk.components.ConnectedComponents
        return kind(both).run()

    def triangles() -> Any:
        return nk.centrality.LocalClusteringCoefficient(both, turbo=True).run().scores()

    def betweenness() -> Any:
        return nk.centrality.EstimateBetweenness(both, len(data.sources), parallel=threads > 1).run().scores()

    def size(net: Any) -> Any:
        return [net.numberOfNodes(), net.numberOfEdges()]

    return {
        "read": (read, size),
        "build": (build, size),
        "pagerank": (pagerank, each),
        "bfs": (lambda: nk.distance.BFS(plain, data.source, storePaths=False).run().getDistances(), distances),
        "paths": (lambda: nk.distance.Dijkstra(lengths, data.source, storePaths=False).run().getDistances(), distances),
        "components": (
            components,
            lambda found: [found.numberOfComponents(), max(found.getComponentSizes().values())],
        ),
        "triangles": (triangles, lambda found: [round((each(found) * degrees * (degrees - 1)).sum() / 6)]),
        # From sources of its own: nothing to compare.
        "betweenness": (betweenness, lambda found: []),
    }


def ortools(data: Input, threads: int) -> dict[str, Kernel]:
    """The library for flows."""
    from ortools.graph.python import max_flow

    solver = max_flow.SimpleMaxFlow()
    ends = data.links.astype(np.int32)
    solver.add_arcs_with_capacity(ends[:, 0].copy(), ends[:, 1].copy(), data.lengths.astype(np.int64))
    arcs = np.arange(len(ends), dtype=np.int32)
    assert data.flow is not None

    def flow() -> Any:
        if solver.solve(*data.flow) != solver.OPTIMAL:
            raise ValueError("it found no maximum flow")
        return solver.flows(arcs)

    return {"flow": (flow, lambda found: [solver.optimal_flow()])}


def rustworkx(data: Input, threads: int) -> dict[str, Kernel]:
    import rustworkx as rx

    def build() -> Any:
        net = rx.PyDiGraph()
        net.add_nodes_from(range(data.nodes))
        net.add_edges_from_no_data([(source, target) for source, target in data.links.tolist()])
        return net

    plain, lengths, both = build(), rx.PyDiGraph(), rx.PyGraph()
    for net in (lengths, both):
        net.add_nodes_from(range(data.nodes))
    lengths.add_edges_from([(*ends, one) for ends, one in zip(data.links.tolist(), data.lengths, strict=True)])
    both.add_edges_from_no_data([(one, other) for one, other in data.undirected.tolist()])

    def paths(found: Any) -> Any:
        values = by_node(found, data.nodes, np.inf)
        values[data.source] = 0
        return values

    def size(net: Any) -> Any:
        return [net.num_nodes(), net.num_edges()]

    def pagerank() -> Any:
        return rx.pagerank(plain, alpha=ALPHA, tol=TOLERANCE / data.nodes)

    return {
        "read": (lambda: rx.PyDiGraph.read_edge_list(data.text, deliminator="\t"), size),
        "build": (build, size),
        "pagerank": (pagerank, lambda found: by_node(found, data.nodes, 0.0)),
        "paths": (lambda: rx.dijkstra_shortest_path_lengths(lengths, data.source, float), paths),
        "components": (
            lambda: rx.connected_components(both),
            lambda found: [len(found), max(map(len, found))],
        ),
    }


def networkx(data: Input, threads: int) -> dict[str, Kernel]:
    import networkx as nx

    def build() -> Any:
        net = nx.DiGraph()
        net.add_nodes_from(range(data.nodes))
        net.add_edges_from(data.links.tolist())
        return net

    plain, lengths, both = build(), nx.DiGraph(), nx.Graph()
    weighted = ((*ends, one) for ends, one in zip(data.links.tolist(), data.lengths.tolist(), strict=True))
    lengths.add_weighted_edges_from(weighted)
    if data.flow is not None:
        return {
            "flow": (lambda: nx.maximum_flow(lengths, *data.flow, capacity="weight"), lambda found: [found[0]]),
        }
    both.add_nodes_from(range(data.nodes))
    both.add_edges_from(data.undirected.tolist())

    def reached(found: Any) -> Any:
        return by_node(found, data.nodes, np.inf)

    def size(net: Any) -> Any:
        return [net.number_of_nodes(), net.number_of_edges()]

    def betweenness() -> Any:
        return nx.betweenness_centrality_subset(both, data.sources, range(data.nodes))

    return {
        "read": (lambda: nx.read_edgelist(data.text, nodetype=int, create_using=nx.DiGraph), size),
        "build": (build, size),
        "pagerank": (
            lambda: nx.pagerank(plain, ALPHA, tol=TOLERANCE / data.nodes),
            lambda found: by_node(found, data.nodes, 0.0),
        ),
        "bfs": (lambda: nx.single_source_shortest_path_length(plain, data.source), reached),
        "paths": (lambda: nx.single_source_dijkstra_path_length(lengths, data.source), reached),
        "components": (
            lambda: list(nx.connected_components(both)),
            lambda found: [len(found), max(map(len, found))],
        ),
        "triangles": (lambda: nx.triangles(both), lambda found: [sum(found.values()) / 3]),
        "betweenness": (betweenness, lambda found: ranks_of(data)(by_node(found, data.nodes, 0.0))),
    }


SYSTEMS = {made.__name__: made for made in (tidemill, scipy, igraph, networkit, ortools, rustworkx, networkx)}


def timed(run: Callable[[], Any], enough_s: float) -> tuple[float, Any]:
    """The median of a few runs behind a first one, while they are cheap, and what the last one found."""
    seconds: list[float] = []
    found = None
    while len(seconds) <= REPEATS_MAX and (not seconds or sum(seconds) < enough_s):
        found = None  # not freed while the next one runs
        start = time.perf_counter()
        found = run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:] or seconds), found


def main(system: str, threads: int, folder: Path, kernels: list[str], enough_s: float) -> None:
    warnings.simplefilter("ignore")
    name, data = f"{system}-{threads}", Input(folder)
    known = SYSTEMS[system](data, threads)
    seconds: dict[str, float] = {}
    failures: dict[str, str] = {}
    for kernel in kernels:
        if kernel not in known:
            continue
        run, answer = known[kernel]
        try:
            seconds[kernel], found = timed(run, enough_s)
            np.save(folder / f"{name}-{kernel}.npy", np.asarray(answer(found), np.float64))
        except Exception as error:
            failures[kernel] = f"{type(error).__name__}: {error}"
    # Without the ends of objects that take long.
    print(json.dumps({"kernel_s": seconds, "failures": failures}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4].split(","), float(sys.argv[5]))
