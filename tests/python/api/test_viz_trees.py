"""Trees between points: the minimum spanning tree, the Newick format, and positions of inner nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemill.viz import FrameError, FrameReader, FrameWriter, place_tree, read_newick
from tidemill.viz import minimum_spanning_tree as spanning


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 57])
def test_the_shortest_tree_is_as_short_as_kruskals(count: int) -> None:
    """Another algorithm, written plainly, must find the same length and connect all points."""
    rng = np.random.default_rng(count)
    points = rng.normal(size=(count, 3)).round(1)
    edges = spanning(points)
    assert edges.shape == (max(0, count - 1), 2)
    pairs = sorted((float(np.linalg.norm(points[a] - points[b])), a, b) for a in range(count) for b in range(a))
    root = list(range(count))

    def top(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    shortest = 0.0
    for length, a, b in pairs:
        if top(a) != top(b):
            root[top(a)] = top(b)
            shortest += length
    assert sum(np.linalg.norm(points[a] - points[b]) for a, b in edges) == pytest.approx(shortest)
    root = list(range(count))
    for a, b in edges.tolist():
        assert top(a) != top(b)
        root[top(a)] = top(b)


def test_points_in_the_same_place_are_connected_once() -> None:
    edges = spanning(np.zeros((5, 2)))
    assert sorted(edges[:, 1].tolist()) == [1, 2, 3, 4]
    with pytest.raises(FrameError, match="finite"):
        spanning([[np.nan, 0]])


def test_newick() -> None:
    tree = read_newick(" ((a:1,'b ''c''':2.5e0)x y_z[a comment]:0.5 ,(,d)) ;\n".replace("x y_z", "x_y"))
    assert tree.names == ["", "x y", "a", "b 'c'", "", "", "d"]
    assert tree.parents == [-1, 0, 1, 1, 0, 4, 4]
    np.testing.assert_equal(tree.lengths, [np.nan, 0.5, 1, 2.5, np.nan, np.nan, np.nan])
    assert tree.leaves() == [2, 3, 5, 6]
    assert read_newick("alone:3;").lengths == [3]
    # Deeper than any recursion limit.
    assert len(read_newick("(" * 20_000 + "a" + ")" * 20_000 + ";").names) == 20_001


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "without a semicolon"), ("(a,b)", "without a semicolon"), ("(a,b;", "brackets are closed"), ("a,b;", "outside"),
        ("(a,b));", "character 6 of 7: '\\)' is outside"), ("(a:x,b);", "'x' is not a number"), ("(a:,b);", "',' cannot stand here"),
        ("(a b,c);", "'b' cannot stand"), ("('a,b);", "not closed"), ("[a;", "not closed"), ("(a,b)(c);", "'\\(' cannot"),
        ("(a,b);c", "semicolon ends"), ("(a:1:2);", "cannot stand"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_explained(text: str, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        read_newick(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("(),:;ab'[]_ 1."), max_size=30))
def test_whatever_comes_is_a_tree_or_an_error(text: str) -> None:
    try:
        tree = read_newick(text)
    except FrameError:
        return
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert len(tree.names) == len(tree.parents) == len(tree.lengths)


def test_inner_nodes_lie_where_springs_hold_them() -> None:
    """The same as from the full system of equations, on random trees."""
    rng = np.random.default_rng(0)
    for leaves in (1, 2, 3, 8, 40):
        parts: list[Any] = [f"p{n}:{rng.uniform(0.1, 2):.3f}" for n in range(leaves)]
        while len(parts) > 1:
            some = [parts.pop(rng.integers(len(parts))) for _ in range(min(len(parts), 2 + rng.integers(2)))]
            parts.append(f"({','.join(some)}):{rng.uniform(0.1, 2):.3f}")
        tree = read_newick(parts[0] + ";")
        points = rng.normal(size=(leaves, 3))
        ids, places, edges = place_tree(tree, [f"p{n}" for n in range(leaves)], points)
        np.testing.assert_array_equal(places[:leaves], points)
        row = {name: number for number, name in enumerate(ids)}
        assert len(edges) == len(tree.names) - 1
        # At each inner node, the forces of all branches cancel.
        force = np.zeros_like(places)
        for (parent, child), length in zip(edges, tree.lengths[1:], strict=True):
            a, b = row[parent], row[child]
            force[a] += (places[b] - places[a]) / length
            force[b] += (places[a] - places[b]) / length
        np.testing.assert_allclose(force[leaves:], 0, atol=1e-9)


def test_a_tree_goes_into_frames(tmp_path: Path) -> None:
    tree = read_newick("((a:1,b:1)x:1,c:0);")
    ids, places, edges = place_tree(tree, ["a", "b", "c", "other"], np.eye(4)[:, :3])
    assert ids == ["a", "b", "c", "other", "node 0", "x"]
    with FrameWriter(tmp_path / "map") as writer:
        for _ in range(3):
            writer.write_frame(places, ids=ids, edges=edges)
        writer.write_frame(places[:2], ids=ids[:2])
        writer.write_frame(places, ids=ids, edges=edges[:1])
        with pytest.raises(FrameError, match="edge 0 has the end 'z', which is not a point"):
            writer.write_frame(places, ids=["z1", *ids[1:]], edges=[("z", "b")])
        writer.write_frame(np.zeros((2, 3)), ids=["z1", "b"], edges=[("z1", "b")])
    reader = FrameReader(tmp_path / "map")
    assert [None if frame.edges is None else len(frame.edges) for frame in reader] == [4, 4, 4, None, 1, 1]
    assert len(list((tmp_path / "map").glob("edges-*"))) == 3
    assert [[reader.ids[row] for row in edge] for edge in reader[5].edges] == [["z1", "b"]]  # type: ignore[union-attr]
    with pytest.raises(FrameError, match="1 leaves of the tree are not points, such as 'c'"):
        place_tree(tree, ["a", "b"], np.zeros((2, 3)))
    with pytest.raises(FrameError, match="3 ids for points"):
        place_tree(tree, ["a", "b", "c"], np.zeros((2, 3)))
    with pytest.raises(FrameError, match="two nodes of the tree are named 'a'"):
        place_tree(read_newick("(a,a);"), ["a"], np.zeros((1, 3)))
