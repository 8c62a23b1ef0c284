"""`tidemill.networks` against networkx, on random graphs of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tidemill as tm

nx = pytest.importorskip("networkx")
pytest.importorskip("scipy")
from random_graphs import KINDS, graph  # noqa: E402

SEEDS = range(2)
EVERY = pytest.mark.parametrize("kind", KINDS)
DIRECTED = pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])


def read(made: Any, **options: Any) -> tm.networks.Network:
    return tm.networks.read(made, duplicates="keep", **options)


def close(found: dict[Any, float], wanted: dict[Any, float], tolerance: float = 1e-9) -> None:
    assert found.keys() == wanted.keys()
    nodes = list(wanted)
    np.testing.assert_allclose([found[node] for node in nodes], [wanted[node] for node in nodes], atol=tolerance)


@EVERY
@DIRECTED
def test_pagerank(kind: str, directed: bool) -> None:
    """Dangling nodes, weights and personalization each have their own place in the sum."""
    for seed in SEEDS:
        made = graph(kind, directed, seed, weighted=True)
        net = read(made)
        options: dict[str, Any] = {"tol": 1e-12, "max_iter": 1000}
        close(tm.networks.pagerank(net, **options).to_dict(), nx.pagerank(made, **options))
        plain = tm.networks.pagerank(net, weighted=False, alpha=0.5, **options)
        close(plain.to_dict(), nx.pagerank(made, weight=None, alpha=0.5, **options))
        if len(made):
            some = {node: 1 + node for node in list(made)[: 1 + len(made) // 2]}
            for more in ({"personalization": some}, {"dangling": some}, {"personalization": some, "dangling": some}):
                close(tm.networks.pagerank(net, **more, **options).to_dict(), nx.pagerank(made, **more, **options))


def test_pagerank_that_is_not_normalized() -> None:
    """The form without a normal: scores begin at 1, and what dangling nodes have is lost."""
    net = tm.networks.read((["a", "b", "c"], ["b", "c", "d"]))
    scores = tm.networks.pagerank(net, normalized=False, dangling="drop", tol=1e-12, rule="largest", max_iter=500)
    wanted = [0.15]
    for _ in range(3):
        wanted.append(0.15 + 0.85 * wanted[-1])
    np.testing.assert_allclose(scores.values, wanted)
    kept = tm.networks.pagerank(net, normalized=False, tol=1e-12, max_iter=500)
    np.testing.assert_allclose(kept.values, 4 * tm.networks.pagerank(net, tol=1e-12, max_iter=500).values)


def test_pagerank_that_does_not_converge_warns() -> None:
    net = tm.networks.read(([0, 1, 2], [1, 2, 1]))
    with pytest.warns(tm.ml.ConvergenceWarning, match="max_iter"):
        scores = tm.networks.pagerank(net, max_iter=2, tol=1e-15)
    assert not scores.converged and scores.iterations == 2


@EVERY
@DIRECTED
def test_searches_and_paths(kind: str, directed: bool) -> None:
    for seed in SEEDS:
        made = graph(kind, directed, seed, weighted=True)
        net = read(made)
        for source in list(made)[:4]:
            levels = nx.single_source_shortest_path_length(made, source)
            found = tm.networks.bfs(net, source)
            assert {node: level for node, level in found.items() if level >= 0} == levels
            lengths = nx.single_source_dijkstra_path_length(made, source)
            paths = tm.networks.shortest_paths(net, source)
            assert {node: length for node, length in paths.items() if np.isfinite(length)} == lengths
            for node, length in lengths.items():
                shortest = paths.path_to(node)
                assert shortest[0] == source and shortest[-1] == node and nx.is_path(made, shortest)
                assert made.is_multigraph() or nx.path_weight(made, shortest, "weight") == length
                fewest = found.path_to(node)
                assert nx.is_path(made, fewest) and len(fewest) == levels[node] + 1
        several = list(made)[:3]
        if several:
            lengths = nx.multi_source_dijkstra_path_length(made, several, cutoff=5)
            found = tm.networks.shortest_paths(net, several, cutoff=5)
            assert {node: length for node, length in found.items() if np.isfinite(length)} == lengths
            matrix = tm.networks.distances(net, several, weighted=False)
            for row, source in zip(matrix, several, strict=True):
                levels = nx.single_source_shortest_path_length(made, source)
                np.testing.assert_array_equal(row, [levels.get(node, np.inf) for node in net.ids.tolist()])


@EVERY
@DIRECTED
def test_components(kind: str, directed: bool) -> None:
    for seed in SEEDS:
        made = graph(kind, directed, seed)
        net = read(made)
        weak = nx.weakly_connected_components if directed else nx.connected_components
        strong = nx.strongly_connected_components if directed else nx.connected_components
        for call, wanted in ((tm.networks.connected_components, weak), (tm.networks.strong_components, strong)):
            found = call(net)
            assert set(map(frozenset, found.sets())) == set(map(frozenset, wanted(made)))
            assert found.count == len(found.sizes) == len(found.sets())
            assert [set(found.members(at).tolist()) for at in range(found.count)] == found.sets()


@EVERY
def test_triangles_and_clustering(kind: str) -> None:
    for seed in SEEDS:
        made = graph(kind, False, seed)
        simple = nx.Graph(made)
        assert tm.networks.triangles(read(made)).to_dict() == nx.triangles(simple)
        found = tm.networks.clustering(read(made))
        close(found.to_dict(), nx.clustering(simple))
        assert found.transitivity == pytest.approx(nx.transitivity(simple))
        if len(made):
            assert found.average == pytest.approx(nx.average_clustering(simple))


@EVERY
def test_clustering_of_directed_networks(kind: str) -> None:
    """By triangles as networkx has it; by links between neighbors, counted one by one here."""
    for seed in SEEDS:
        made = graph(kind, True, seed)
        simple = nx.DiGraph(made)
        simple.remove_edges_from(list(nx.selfloop_edges(simple)))
        net = read(made)
        close(tm.networks.clustering(net).to_dict(), nx.clustering(simple))
        found = tm.networks.clustering(net, rule="links")
        around = {node: set(simple.succ[node]) | set(simple.pred[node]) for node in simple}
        links = {node: sum(len(near & set(simple.succ[other])) for other in near) for node, near in around.items()}
        pairs = {node: len(near) * (len(near) - 1) for node, near in around.items()}
        close(found.to_dict(), {node: links[node] / max(1, pairs[node]) for node in simple})
        assert found.transitivity == pytest.approx(sum(links.values()) / max(1, sum(pairs.values())))
    with pytest.raises(ValueError, match="rule is 'triangles' or 'links', not 'x'"):
        tm.networks.clustering(read(made), rule="x")
    with pytest.raises(ValueError, match="pass weighted=False"):
        tm.networks.clustering(tm.networks.read(([1], [2], [3.0])), weighted=True, rule="links")


@EVERY
@DIRECTED
def test_betweenness(kind: str, directed: bool) -> None:
    for seed in SEEDS:
        made = graph(kind, directed, seed)
        net = read(made)
        for options in ({}, {"normalized": False}, {"endpoints": True}, {"endpoints": True, "normalized": False}):
            close(tm.networks.betweenness(net, **options).to_dict(), nx.betweenness_centrality(made, **options))
        if len(made) > 2:
            sampled = tm.networks.betweenness(net, samples=len(made) // 2, seed=seed)
            assert np.isfinite(sampled.values).all()
            close(
                tm.networks.betweenness(net, samples=len(made)).to_dict(),
                tm.networks.betweenness(net).to_dict(),
            )


@EVERY
@DIRECTED
def test_core_numbers(kind: str, directed: bool) -> None:
    for seed in SEEDS:
        made = graph(kind, directed, seed)
        made = (nx.DiGraph if directed else nx.Graph)(made)
        made.remove_edges_from(list(nx.selfloop_edges(made)))
        assert tm.networks.core_numbers(read(made)).to_dict() == nx.core_number(made)


@EVERY
def test_communities(kind: str) -> None:
    """Louvain draws at random, so its communities are compared by their modularity."""
    for seed in SEEDS:
        made = graph(kind, False, seed, weighted=True)
        net = read(made)
        found = tm.networks.louvain(net, seed=seed)
        if made.number_of_edges():
            assert found.modularity == pytest.approx(nx.community.modularity(made, found.sets()))
            best = max(
                nx.community.modularity(made, nx.community.louvain_communities(made, seed=at)) for at in range(3)
            )
            assert found.modularity > best - 0.1
            refined = tm.networks.leiden(net, seed=seed)
            assert refined.modularity == pytest.approx(nx.community.modularity(made, refined.sets()))
            assert refined.modularity > best - 0.1
            assert all(nx.is_connected(made.subgraph(members)) for members in refined.sets())
        labels = tm.networks.label_propagation(net)
        assert labels.sizes.sum() == len(made)


def test_label_propagation_finds_cliques() -> None:
    made = nx.disjoint_union_all([nx.complete_graph(6)] * 4)
    found = tm.networks.label_propagation(read(made))
    assert found.sets() == [set(range(at, at + 6)) for at in range(0, 24, 6)]
    assert found.modularity == pytest.approx(0.75)


@EVERY
def test_spanning_forests(kind: str) -> None:
    for seed in SEEDS:
        made = graph(kind, False, seed, weighted=True)
        for maximum in (False, True):
            found = tm.networks.minimum_spanning_forest(read(made), maximum=maximum)
            call = nx.maximum_spanning_edges if maximum else nx.minimum_spanning_edges
            total = sum(data["weight"] for *_, data in call(made, data=True))
            assert found.total == pytest.approx(total)
            forest = nx.Graph([link[:2] for link in found.links()])
            assert len(found) == len(made) - nx.number_connected_components(made)
            assert not len(forest) or nx.is_forest(forest)


@EVERY
@DIRECTED
def test_flows(kind: str, directed: bool) -> None:
    """A flow that loses something at a node, or a cut that is not as large, shows here."""
    for seed in SEEDS:
        made = graph(kind, directed, seed, weighted=True)
        if len(made) < 2 or made.is_multigraph():
            continue
        source, sink = list(made)[:2]
        found = tm.networks.maximum_flow(read(made), source, sink)
        assert found.value == pytest.approx(nx.maximum_flow_value(made, source, sink, capacity="weight"))
        value, cut = tm.networks.minimum_cut(read(made), source, sink)
        assert value == pytest.approx(sum(made.edges[link]["weight"] for link in cut))
        net = found.network
        assert (found.flows >= 0).all()
        assert net.weights is None or (found.flows <= net.weights + 1e-12).all()
        out = np.bincount(net.sources, found.flows, net.n) * 1.0 - np.bincount(net.targets, found.flows, net.n)
        out[[net.number(source), net.number(sink)]] -= [found.value, -found.value]
        np.testing.assert_allclose(out, 0, atol=1e-9)


def test_results_answer_by_id_and_become_tables() -> None:
    net = tm.networks.read((["ann", "bob", "bob"], ["bob", "cid", "dee"]), directed=False)
    scores = tm.networks.pagerank(net)
    assert scores["bob"] == scores.values[1] == np.asarray(scores)[1]
    assert scores.top(1)[0][0] == "bob"
    assert scores.to_table().to_pylist()[1] == {"node": "bob", "score": scores["bob"]}
    rows = tm.from_arrow(scores.to_table()).filter(tm.col("score") > 0.3).to_pylist()
    assert [row["node"] for row in rows] == ["bob"]
    assert "4 nodes" in repr(scores)
    forest = tm.networks.minimum_spanning_forest(net)
    assert forest.to_table().columns == ["source", "target", "weight"]


def test_what_does_not_fit_is_refused() -> None:
    net = tm.networks.read(([0, 1], [1, 2], [1.0, -2.0]))
    for call, message in (
        (lambda: tm.networks.shortest_paths(net, 0), "-2"),
        (lambda: tm.networks.pagerank(net), "from 1 to 2 has weight -2"),
        (lambda: tm.networks.pagerank(net, alpha=2), "alpha"),
        (lambda: tm.networks.pagerank(net, weighted=False, personalization={0: 0}), "not all 0"),
        (lambda: tm.networks.triangles(net), "to_undirected"),
        (lambda: tm.networks.louvain(net), "to_undirected"),
        (lambda: tm.networks.maximum_flow(net, 0, 0), "same node"),
        (lambda: tm.networks.maximum_flow(net, 0, 2), "-2"),
        (lambda: tm.networks.pagerank(net, weighted=False, sync="sometimes"), "'global', 'partial'"),
        (lambda: tm.networks.betweenness(net, samples=7), "from 1 to 3"),
        (lambda: tm.networks.bfs(net, 0).path_to(7), "no node 7"),
    ):
        with pytest.raises((ValueError, KeyError), match=message):
            call()
