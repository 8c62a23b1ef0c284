"""The backend for networkx: through its dispatching, the same results, and refusals that fall back."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import tidemill as tm

nx = pytest.importorskip("networkx")
pytest.importorskip("scipy")
from random_graphs import KINDS, graph  # noqa: E402
from tidemill._networkx_info import FUNCTIONS, get_info  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Note. conversions")
needs_entry_point = pytest.mark.skipif(
    "tidemill" not in nx.utils.backends.backends,
    reason="this installation has no entry point for networkx: install it anew (make setup)",
)
#: What takes an argument besides the graph: here its first node, or two.
ONE_NODE = (
    "ancestors",
    "descendants",
    "node_connected_component",
    "shortest_path_length",
    "single_source_dijkstra_path_length",
    "single_source_shortest_path_length",
    "single_target_shortest_path_length",
)
FLOWS = ("maximum_flow_value", "minimum_cut", "minimum_cut_value")
DRAWN = ("leiden_communities", "louvain_communities", "maximum_flow", "minimum_spanning_edges", "minimum_spanning_tree")


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function returns, in a form that compares; or what it raises."""
    try:
        found = call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    if inspect.isgenerator(found) or isinstance(found, list):
        try:
            found = list(found)
        except Exception as error:
            return type(error), str(error)
        return dict(found) if found and isinstance(found[0], tuple) else {frozenset(one) for one in found}
    return found


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and any(isinstance(value, float) for value in wanted.values()):
        return bool(found.keys() == wanted.keys() and all(found[at] == pytest.approx(wanted[at]) for at in wanted))
    return bool(found == (pytest.approx(wanted) if isinstance(wanted, float) else wanted))


@needs_entry_point
@pytest.mark.parametrize("kind", ["empty", "one node", "sparse", "parts", "loops", "parallel"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(DRAWN)))
def test_results_and_errors_are_networkx_s(name: str, kind: str) -> None:
    registered = nx.utils.backends._registered_algorithms[name]
    call = getattr(nx, name, None) or registered
    for directed in (False, True):
        made = graph(kind, directed, 1, weighted=True)
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if name in ONE_NODE:
            args = (next(iter(made), "nobody"),)
        elif name == "multi_source_dijkstra_path_length":
            args = (list(made)[:2],)
        elif name in FLOWS:
            args, kwargs = ((*list(made)[:2], "x", "y")[:2]), {"capacity": "weight"}
        wanted = outcome(call, made, *args, backend="networkx", **kwargs)
        found = outcome(call, made, *args, backend="tidemill", **kwargs)
        if isinstance(found, tuple) and found[0] is NotImplementedError:
            continue
        assert same(found, wanted), f"{name}, {directed=}: {found} instead of {wanted}"


@needs_entry_point
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "empty"])
def test_weights_count(kind: str, directed: bool) -> None:
    """Betweenness by length, with many paths of the same length, and clustering by the weights of triangles."""
    for seed in range(3):
        made = graph(kind, directed, seed, weighted=True)
        for *link, data in made.edges(data=True):
            # Lengths above 0, of which sums are exact, and some links without one.
            data["length"] = 1 + zlib.crc32(repr(link).encode()) % 8 / 4
        for *_, data in list(made.edges(data=True))[::7]:
            del data["length"]
        cases: list[tuple[Any, dict[str, Any]]] = [
            (nx.betweenness_centrality, options)
            for options in ({}, {"normalized": False, "endpoints": True}, {"k": max(1, len(made) // 2), "seed": 1})
        ]
        if not made.is_multigraph():
            cases += [(nx.clustering, {}), (nx.average_clustering, {"count_zeros": seed > 0})]
        for call, options in cases:
            wanted = outcome(call, made, weight="length", backend="networkx", **options)
            found = outcome(call, made, weight="length", backend="tidemill", **options)
            assert same(found, wanted), f"{call.__name__}, {options}: {found} instead of {wanted}"


@needs_entry_point
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "parallel"])
def test_trees_and_flows(kind: str) -> None:
    """Of several results that are equally good, another one may be found."""
    made = graph(kind, False, 1, weighted=True)
    for node in made:
        made.nodes[node]["color"] = str(node)
    wanted = nx.minimum_spanning_tree(made)
    found = nx.minimum_spanning_tree(made, backend="tidemill")
    assert found.size("weight") == wanted.size("weight") and found.nodes(data=True) == wanted.nodes(data=True)
    assert all(made.edges[link] == data for *link, data in found.edges(data=True))
    pairs = list(nx.minimum_spanning_edges(made, data=False, backend="tidemill"))
    assert len(pairs) == found.number_of_edges()
    if len(made) > 1:
        source, sink = list(made)[:2]
        value, flows = nx.maximum_flow(made, source, sink, capacity="weight", backend="tidemill")
        assert value == nx.maximum_flow_value(made, source, sink, capacity="weight")
        assert flows.keys() == set(made)
        out = sum(flows[source].values()) - sum(flows[node].get(source, 0) for node in made)
        assert out == pytest.approx(value)
    for method in ("louvain", "leiden"):
        sets = getattr(nx.community, f"{method}_communities")(made, seed=1, backend="tidemill")
        assert sum(map(len, sets)) == len(made)


@needs_entry_point
def test_what_it_cannot_do_is_refused_or_falls_back() -> None:
    made = graph("sparse", True, 1, weighted=True)
    node = next(iter(made))
    with pytest.raises(NotImplementedError):
        nx.single_source_dijkstra_path_length(made, node, weight=lambda *_: 2, backend="tidemill")
    with pytest.raises(NotImplementedError):
        nx.average_clustering(made, nodes=[node], backend="tidemill")
    made.add_edge(node, "far", weight=-1)
    with pytest.raises(NotImplementedError):
        nx.single_source_dijkstra_path_length(made, node, backend="tidemill")
    with pytest.raises(NotImplementedError):
        nx.betweenness_centrality(made, weight="weight", backend="tidemill")
    with pytest.raises(NotImplementedError):
        nx.clustering(made.to_undirected(), weight="weight", backend="tidemill")
    with nx.config(backend_priority=["tidemill"], fallback_to_nx=True):
        found = nx.betweenness_centrality(made, weight="weight")
        assert found == nx.betweenness_centrality(made, weight="weight", backend="networkx")


@needs_entry_point
def test_conversion_is_kept_with_the_graph() -> None:
    """And forgotten when the graph changes."""
    made = graph("sparse", False, 1)
    nx.pagerank(made, backend="tidemill")
    kept = made.__networkx_cache__["backends"]["tidemill"]
    (first,) = kept.values()
    assert nx.number_connected_components(made, backend="tidemill") == nx.number_connected_components(made)
    assert first in kept.values()
    made.add_edge("new", "newer")
    assert "new" in nx.pagerank(made, backend="tidemill")


@needs_entry_point
def test_networks_need_no_conversion() -> None:
    net = tm.networks.read((["a", "b", "c"], ["b", "c", "a"], [1.0, 2.0, 3.0]))
    assert nx.pagerank(net) == pytest.approx(nx.pagerank(net.to_networkx()))
    assert nx.single_source_dijkstra_path_length(net, "a") == {"a": 0, "b": 1, "c": 3}
    assert nx.is_strongly_connected(net)


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_entry_point
def test_networkx_s_own_tests_of_these_functions(tmp_path: Path) -> None:
    """Its whole suite takes minutes: `make test-networkx`."""
    tested = (
        "centrality/tests/test_betweenness_centrality.py",
        "community/tests/test_leiden.py",
        "community/tests/test_louvain.py",
        "components",
        "flow/tests/test_maxflow.py",
        "flow/tests/test_mincost.py",
        "link_analysis/tests/test_pagerank.py",
        "shortest_paths",
        "tests/test_cluster.py",
        "tests/test_core.py",
        "tests/test_dag.py",
        "tree/tests/test_mst.py",
    )
    algorithms = Path(nx.__file__).parent / "algorithms"
    # Not with our configuration, which a package below our folder would have.
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-q"]
    env = {**os.environ, "NETWORKX_TEST_BACKEND": "tidemill", "NETWORKX_FALLBACK_TO_NX": "True"}
    done = subprocess.run(
        [*command, *(str(algorithms / name) for name in tested)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 500, done.stdout


def test_signatures_are_networkx_s() -> None:
    """Arguments that networkx adds or renames show here."""
    from tidemill.networks._networkx import backend

    assert get_info()["functions"].keys() == FUNCTIONS.keys()
    for name in FUNCTIONS:
        theirs = inspect.signature(nx.utils.backends._registered_algorithms[name].orig_func)
        ours = inspect.signature(getattr(backend, name))
        wanted = [(one.name, one.default) for one in theirs.parameters.values() if one.kind != one.VAR_KEYWORD]
        assert [(one.name, one.default) for one in ours.parameters.values()] == wanted, name
