"""`tidemill.networks.read`: every kind of source, and what is wrong in it by file and line."""

from __future__ import annotations

import bz2
import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm

nx = pytest.importorskip("networkx")
sparse = pytest.importorskip("scipy.sparse")

DATA = Path(os.environ.get("TIDEMILL_DATA", Path(__file__).parents[3] / "../shared/data")) / "graphs"
needs_data = pytest.mark.skipif(
    not DATA.exists(), reason=f"{DATA} is not there; TIDEMILL_DATA names the folder of data sets"
)


def links(net: tm.networks.Network) -> list[tuple[Any, ...]]:
    ids = net.ids
    ends = list(zip(ids[net.sources].tolist(), ids[net.targets].tolist(), strict=True))
    return ends if net.weights is None else [(*end, weight) for end, weight in zip(ends, net.weights, strict=True)]


def test_edge_lists(tmp_path: Path) -> None:
    text = "# a comment\n5\t7\n\n7 5\r\n% another\n 9,5\n5;9\n5 7"
    path = tmp_path / "links.txt"
    path.write_text(text)
    wanted = [(5, 7), (5, 9), (7, 5), (9, 5)]
    assert links(tm.networks.read(path)) == wanted
    (tmp_path / "links.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "links.txt.bz2").write_bytes(bz2.compress(text.encode()))
    for suffix in (".gz", ".bz2"):
        assert links(tm.networks.read(f"{path}{suffix}")) == wanted
    undirected = tm.networks.read(path, directed=False)
    assert (undirected.n, undirected.m, links(undirected)) == (3, 2, wanted)
    kept = tm.networks.read(path, duplicates="keep")
    assert (kept.m, kept.is_multigraph()) == (5, True)
    with_nodes = tm.networks.read(path, nodes=11)
    assert (with_nodes.n, with_nodes.m) == (11, 4)


def test_weights_and_names(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("ann bob 1.5\nbob cid 2\nann bob 0.5\nänn ann -1e3\n")
    first = [("ann", "bob", 1.5), ("bob", "cid", 2.0), ("änn", "ann", -1000.0)]
    assert links(tm.networks.read(path)) == first
    for how, weight in (("sum", 2.0), ("min", 0.5), ("max", 1.5)):
        assert links(tm.networks.read(path, duplicates=how))[0] == ("ann", "bob", weight)
    assert tm.networks.read(path, weights=False).weights is None
    path.write_text("a|b|c\nc|a|b\n")
    assert links(tm.networks.read(path, delimiter="|")) == [("a", "b"), ("c", "a")]


def test_first_of_two_directions_is_the_weight_of_both() -> None:
    net = tm.networks.read(([0, 1], [1, 0], [3.0, 4.0]), directed=False)
    assert links(net) == [(0, 1, 3.0), (1, 0, 3.0)]
    assert tm.networks.read(([0, 1], [1, 0]), directed=False, duplicates="sum").weights.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "1 2\n3 4\n5\n", "line 3"),
        ("a.txt", "1 2\n3 x\n", "line 2"),
        ("a.txt", "1 2 0.5\n3 4 much\n", "line 2"),
        ("a.txt", "a b\nc\n", "line 2"),
        ("a.gr", "p sp 2 1\na 1 3 5\n", "node 3"),
        ("a.gr", "a 1 2 5\n", "no line 'p KIND"),
        ("a.gr", "p sp 3 2\na 1 2 5\nb 1 2 5\n", "line 3"),
        ("a.mtx", "%%MatrixMarket matrix array real general\n", "sparse"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1\n", "square"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n", "not complete"),
        ("a.mtx", "%%MatrixMarket matrix coordinate real general\n%\n2 2 2\n1 1 1\n1 x 1\n", "line 5"),
        ("a.graph", "2 1\n2\n1 2 x\n", "line 3"),
        ("a.graph", "3 1\n2\n1\n", "2 lines for 3 nodes"),
        ("a.co", "v 1 2 3\n", "coordinates="),
    ],
)
def test_what_is_wrong_is_told_by_file_and_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        tm.networks.read(path)
    assert str(path) in str(raised.value)


def test_dimacs(tmp_path: Path) -> None:
    (tmp_path / "roads.gr").write_text("c roads\np sp 4 3\na 1 2 5\na 2 3 7\na 1 3 20\n")
    (tmp_path / "roads.co").write_text("p aux sp co 4\nv 1 -10 20\nv 3 5 6\nv 2 0 1\nv 4 9 9\n")
    net = tm.networks.read(tmp_path / "roads.gr", coordinates=tmp_path / "roads.co")
    assert links(net) == [(1, 2, 5.0), (1, 3, 20.0), (2, 3, 7.0)]
    assert net.n == 4 and net.coordinates.tolist() == [[-10, 20], [0, 1], [5, 6], [9, 9]]
    (tmp_path / "flow.max").write_text("p max 3 2\nn 1 s\nn 3 t\na 1 2 5\na 2 3 7\n")
    net = tm.networks.read(tmp_path / "flow.max")
    assert net.attributes == {"source": 1, "sink": 3}
    assert tm.networks.maximum_flow(net, 1, 3).value == 5
    (tmp_path / "colors.col").write_text("p edge 3 2\ne 1 2\ne 2 3\n")
    net = tm.networks.read(tmp_path / "colors.col")
    assert not net.directed and net.m == 2


def test_matrix_market_as_scipy_writes_it(tmp_path: Path) -> None:
    io = pytest.importorskip("scipy.io")
    matrix = sparse.random_array((20, 20), density=0.1, rng=np.random.default_rng(1))
    io.mmwrite(tmp_path / "a.mtx", matrix)
    net = tm.networks.read(tmp_path / "a.mtx")
    np.testing.assert_allclose(net.to_scipy().toarray(), matrix.toarray())
    io.mmwrite(tmp_path / "b.mtx", matrix + matrix.T, symmetry="symmetric")
    net = tm.networks.read(tmp_path / "b.mtx")
    assert not net.directed
    np.testing.assert_allclose(net.to_scipy().toarray(), (matrix + matrix.T).toarray())


def test_metis(tmp_path: Path) -> None:
    path = tmp_path / "a.graph"
    path.write_text("% a square with a tail\n5 5\n2 4\n1 3\n2 4\n1 3 5\n4\n")
    net = tm.networks.read(path)
    assert (net.n, net.m, net.directed) == (5, 5, False)
    path.write_text("3 2 011\n9 2 5\n9 1 5 3 6\n9 2 6\n")
    assert links(tm.networks.read(path)) == [(1, 2, 5.0), (2, 1, 5.0), (2, 3, 6.0), (3, 2, 6.0)]


def test_graphml(tmp_path: Path) -> None:
    made = nx.DiGraph()
    made.add_edge("a", "b", weight=2.5)
    nx.write_graphml(made, tmp_path / "a.graphml")
    assert links(tm.networks.read(tmp_path / "a.graphml")) == [("a", "b", 2.5)]


def test_tables(tmp_path: Path) -> None:
    data = tm.from_dict({"from": ["x", "y"], "to": ["y", "z"], "cost": [1.5, 2.5], "note": ["p", "q"]})
    wanted = [("x", "y", 1.5), ("y", "z", 2.5)]
    assert links(tm.networks.read(data)) == links(tm.networks.read(data.collect())) == wanted
    assert links(tm.networks.read(data, columns=("to", "from"), weights=False)) == [("y", "x"), ("z", "y")]
    data.write_parquet(tmp_path / "a.parquet")
    assert links(tm.networks.read(tmp_path / "a.parquet", weights="cost")) == wanted
    (tmp_path / "a.csv").write_text("from,to,cost\nx,y,1.5\ny,z,2.5\n")
    assert links(tm.networks.read(tmp_path / "a.csv")) == wanted
    (tmp_path / "b.csv").write_text("1,2\n2,3\n")
    assert links(tm.networks.read(tmp_path / "b.csv")) == [(1, 2), (2, 3)]
    with pytest.raises(ValueError, match="no column 'length'"):
        tm.networks.read(data, weights="length")
    with pytest.raises(ValueError, match="null in row 1"):
        tm.networks.read(tm.from_dict({"a": ["x", None], "b": ["y", "z"]}))


def test_objects_of_other_libraries() -> None:
    made = nx.Graph([(3, 1), (1, 2), (2, 2)])
    net = tm.networks.read(made)
    assert (net.n, net.m, net.loops, net.directed) == (3, 3, 1, False)
    assert nx.utils.graphs_equal(nx.Graph(net.to_networkx()), made)
    mixed = nx.DiGraph([("a", 1), (1, (2, 3))])
    net = tm.networks.read(mixed)
    assert net.ids.tolist() == ["a", 1, (2, 3)]
    assert (2, 3) in net and "b" not in net and [] not in net
    matrix = sparse.coo_array(([1.0, 2.0], ([0, 1], [1, 3])), shape=(4, 4))
    net = tm.networks.read(matrix)
    assert (net.n, links(net)) == (4, [(0, 1, 1.0), (1, 3, 2.0)])
    assert tm.networks.read(np.array([[0, 1], [1, 2]])).m == 2
    assert links(tm.networks.read(net)) == links(net)
    igraph = pytest.importorskip("igraph")
    net = tm.networks.read(igraph.Graph([(0, 1), (1, 2)], edge_attrs={"weight": [1, 2]}))
    assert (net.n, net.m, net.directed, net.weighted) == (3, 2, False, True)


def test_loops_duplicates_and_ids() -> None:
    loops = ([0, 1, 1], [0, 1, 2])
    assert tm.networks.read(loops).loops == 2
    assert links(tm.networks.read(loops, self_loops="drop")) == [(1, 2)]
    with pytest.raises(ValueError, match="from 0 to itself"):
        tm.networks.read(loops, self_loops="raise")
    with pytest.raises(ValueError, match="link 1 from 1 to 2 has weight NaN"):
        tm.networks.read(([0, 1], [1, 2], [1.0, np.nan]))
    with pytest.raises(ValueError, match="duplicates is"):
        tm.networks.read(loops, duplicates="last")
    big = np.array([2**63, 2**64 - 1], np.uint64)
    assert tm.networks.read((big, big[::-1])).ids.tolist() == big.tolist()
    assert tm.networks.read(([-5, 7], [7, 10**12])).ids.tolist() == [-5, 7, 10**12]
    with pytest.raises(ValueError, match="floating-point"):
        tm.networks.read((np.array([0.5]), np.array([1.5])))
    with pytest.raises(TypeError, match="not from int"):
        tm.networks.read(5)
    empty = tm.networks.read(([], []))
    assert (empty.n, empty.m) == (0, 0)


def test_forms_of_a_network() -> None:
    net = tm.networks.read((["a", "b"], ["b", "c"], [1.0, 2.0]))
    assert links(net.reverse()) == [("b", "a", 1.0), ("c", "b", 2.0)]
    both = net.to_undirected()
    assert (both.m, both.directed) == (2, False)
    assert "3 nodes, 2 links, directed, weights" in repr(net)
    assert net.nbytes > 0
    with pytest.raises(ValueError, match="read-only"):
        net.targets[0] = 1


@needs_data
@pytest.mark.parametrize(
    ("name", "n", "m"),
    [("wiki-Vote.txt.gz", 7115, 103689), ("andorra.gr.gz", 16541, 31720), ("gl1.max.gz", 1116, 4800)],
)
def test_files_of_others(name: str, n: int, m: int) -> None:
    net = tm.networks.read(DATA / name, duplicates="keep")
    assert (net.n, net.m) == (n, m)


@needs_data
@pytest.mark.parametrize(("name", "value"), [("gl1.max.gz", 156545), ("wlm3.max.gz", 11875108)])
def test_flows_of_others(name: str, value: int) -> None:
    net = tm.networks.read(DATA / name, duplicates="sum")
    assert tm.networks.maximum_flow(net, net.attributes["source"], net.attributes["sink"]).value == value


def test_memory_is_stated_and_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes more than the budget is refused before it is parsed, by both numbers; small networks always are read."""
    path = tmp_path / "a.txt"
    path.write_text("# a comment\n" + "123456 654321 0.5\n" * 2_000_000)
    found = tm.networks.estimate(path)
    assert found.links == pytest.approx(2_000_000, rel=0.01) and found.weighted
    assert found.held_bytes == pytest.approx(24e6, rel=0.01) and found.peak_bytes > found.held_bytes
    assert tm.networks.estimate(path, weights=False).held_bytes == pytest.approx(8e6, rel=0.01)
    monkeypatch.setenv("TIDEMILL_MEMORY", "50MiB")
    assert tm.networks.estimate(path).budget_bytes == 50 << 20
    parsed: list[object] = []
    monkeypatch.setattr("tidemill.networks._text.network_parse", lambda *rest, **more: parsed.append(rest))
    words = r"a\.txt takes about 11\d MiB for (1,99\d|2,00\d),\d{3} links, but this worker may take 50 MiB: give it more \(--memory"
    with pytest.raises(tm.networks.NetworkTooLargeError, match=words) as raised:
        tm.networks.read(path)
    assert not parsed and isinstance(raised.value, MemoryError | tm.TidemillError)
    ends = np.zeros(3_000_000, np.int64)
    with pytest.raises(tm.networks.NetworkTooLargeError, match="reading a network takes about"):
        tm.networks.read((ends, ends))
    assert tm.networks.read((ends[:1000], ends[:1000])).n == 1
