"""LDBC Graphalytics' validation graphs: its six algorithms find what it expects, by its own definitions, on one to three workers.

Parameters are those of its validation tests and of `config-template/graphs`. Its comparisons are exact for levels and
labels, up to a renaming for components, and within 1e-4 or 1e-6 for floats; ours are as strict as the digits of the
files, where these are results of the parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm
from standing import run

FILES = Path(__file__).parent / "graphalytics"
#: What Graphalytics gives to nodes that a search does not reach.
UNREACHED = 9223372036854775807
#: Of PageRank by graph and direction: damping, iterations, and how near results are to the files. The validation tests pass
#: a damping of single precision, with which one file was made; the other one has scores that have converged.
PAGERANK = {
    ("example", True): (0.85, 2, 1e-12),
    ("example", False): (0.85, 2, 1e-12),
    ("validation", True): (0.85, 14, 2e-6),
    ("validation", False): (float(np.float32(0.85)), 26, 1e-12),
}

each_graph = pytest.mark.parametrize("graph", ["validation", "example"])
each_direction = pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])


def network(algorithm: str, graph: str, directed: bool, weighted: bool = False) -> tm.networks.Network:
    """Read a graph: a node and its targets a line, or with weights a link."""
    direction = "directed" if directed else "undirected"
    path = FILES / algorithm / ("dir-input" if directed else "undir-input")
    if graph == "example":
        path = FILES / "example" / f"example-{direction}{'' if weighted else '-input'}"
    if weighted:
        return tm.networks.read(path.with_name(f"{path.name}.e"), directed=directed)
    lines = [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
    ends = np.array([(line[0], target) for line in lines for target in line[1:]])
    return tm.networks.read(ends, directed=directed)


def expected(algorithm: str, graph: str, directed: bool) -> dict[int, float]:
    path = FILES / algorithm / ("dir-output" if directed else "undir-output")
    if graph == "example":
        path = FILES / "example" / f"example-{'directed' if directed else 'undirected'}-{algorithm.upper()}"
    pairs = [line.split() for line in path.read_text().splitlines()]
    return {int(node): float(value) if algorithm in ("pr", "lcc", "sssp") else int(value) for node, value in pairs}


@each_graph
@each_direction
def test_breadth_first_search(graph: str, directed: bool) -> None:
    source = 1 if directed or graph == "validation" else 2
    levels = tm.networks.bfs(network("bfs", graph, directed), source).to_dict()
    found = {node: UNREACHED if level < 0 else level for node, level in levels.items()}
    assert found == expected("bfs", graph, directed)


@each_graph
@each_direction
def test_label_propagation(graph: str, directed: bool) -> None:
    """Labels are ids of nodes; of the most frequent ones the smallest, all at once."""
    net = network("cdlp", graph, directed)
    result = tm.networks.label_propagation(net, max_iter=5 if graph == "validation" else 2)
    assert result.labels is not None
    assert dict(zip(net.ids.tolist(), net.ids[result.labels].tolist(), strict=True)) == expected(
        "cdlp", graph, directed
    )


@each_graph
@each_direction
def test_local_clustering(graph: str, directed: bool) -> None:
    """Links between the neighbors over links of either direction, of those that there could be: `rule="links"`."""
    found = tm.networks.clustering(network("lcc", graph, directed), rule="links").to_dict()
    assert found == pytest.approx(expected("lcc", graph, directed), abs=1e-12)


def on_workers(algorithm: str, graph: str, directed: bool, sync: Any) -> dict[int, float]:
    """On a worker: what can synchronize."""
    weighted = algorithm == "sssp"
    net = network(algorithm, graph, directed, weighted)
    if algorithm == "wcc":
        return tm.networks.connected_components(net, sync=sync, method="hash").to_dict()
    if algorithm == "sssp":
        source = 1 if directed or graph == "validation" else 2
        return tm.networks.shortest_paths(net, source, sync=sync, method="hash").to_dict()
    alpha, iterations, _ = PAGERANK[graph, directed]
    # With a tolerance of 0 it does just so many iterations.
    with pytest.warns(tm.ml.ConvergenceWarning):
        return tm.networks.pagerank(net, alpha=alpha, tol=0, max_iter=iterations, sync=sync, method="hash").to_dict()


@each_graph
@each_direction
@pytest.mark.parametrize("algorithm", ["pr", "sssp", "wcc"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_on_workers(algorithm: str, graph: str, directed: bool, workers: int) -> None:
    """PageRank after so many iterations is defined for global synchronization alone."""
    want = expected(algorithm, graph, directed)
    for sync in ("global",) if algorithm == "pr" else ("global", "partial", "async"):
        for found in run(on_workers, algorithm, graph, directed, sync, workers=workers):
            if algorithm == "wcc":
                assert classes(found) == classes(want), sync
            else:
                rel = PAGERANK[graph, directed][2] if algorithm == "pr" else 1e-12
                assert found == pytest.approx(want, rel=rel), sync


def classes(labels: dict[int, float]) -> set[frozenset[int]]:
    """The sets of nodes with the same label."""
    return {frozenset(node for node in labels if labels[node] == label) for label in set(labels.values())}


@each_direction
def test_alone(directed: bool) -> None:
    """Without other workers, kernels of their own compute the same three."""
    for graph in ("validation", "example"):
        for algorithm in ("pr", "sssp", "wcc"):
            found, want = on_workers(algorithm, graph, directed, None), expected(algorithm, graph, directed)
            if algorithm == "wcc":
                assert classes(found) == classes(want)
            else:
                assert found == pytest.approx(want, rel=PAGERANK[graph, directed][2])
    converged = tm.networks.pagerank(network("pr", "validation", True), tol=1e-15).to_dict()
    assert converged == pytest.approx(expected("pr", "validation", True), rel=1e-12)
