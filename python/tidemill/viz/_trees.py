"""Trees between points, drawn as edges of frames: the minimum spanning tree, or a tree in Newick format."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.viz._format import FrameError

__all__ = ["Tree", "minimum_spanning_tree", "place_tree", "read_newick"]


def minimum_spanning_tree(points: ArrayLike) -> NDArray[np.int64]:
    """Return the edges of the minimum spanning tree of all points.

    Uses Prim's algorithm on all distances, which are computed when needed: time is quadratic in the number of points (a
    few seconds for 20,000), memory linear.

    Parameters
    ----------
    points : array-like of shape (n, d)
        Finite numbers.

    Returns
    -------
    ndarray of shape (n - 1, 2)
        Numbers of points, for ``write_frame(edges=)``; with ids, ``np.asarray(ids)[edges]``.

    References
    ----------
    R. C. Prim, "Shortest connection networks and some generalizations", Bell System Technical Journal 36 (1957).
    """
    where = np.asarray(points, dtype=np.float64)
    if where.ndim != 2 or not np.isfinite(where).all():
        raise FrameError(f"points must have shape (n, d) and be finite; these have shape {where.shape}")
    count = len(where)
    edges = np.empty((max(0, count - 1), 2), np.int64)
    nearest = np.zeros(count, np.int64)
    # The squared distance of each point to the tree; infinity for points in the tree, so that none is chosen twice.
    away = np.full(count, np.inf)
    inside = np.zeros(count, bool)
    last = 0
    for number in range(len(edges)):
        inside[last] = True
        from_last = ((where - where[last]) ** 2).sum(axis=1)
        nearer = (from_last < away) & ~inside
        away[nearer], nearest[nearer] = from_last[nearer], last
        away[last] = np.inf
        last = int(np.argmin(away))
        edges[number] = nearest[last], last
    return edges


@dataclass
class Tree:
    """A rooted tree. Node 0 is the root; every other node comes after its parent."""

    names: list[str] = field(default_factory=list)
    """``""`` for a node without a name."""
    parents: list[int] = field(default_factory=list)
    """-1 for the root."""
    lengths: list[float] = field(default_factory=list)
    """Of the branch to the parent; NaN where there is none."""

    def leaves(self) -> list[int]:
        """Return the nodes without children."""
        inner = set(self.parents)
        return [node for node in range(len(self.names)) if node not in inner]


#: A quoted string, in which '' is a quote; a comment; one of the signs; or anything else up to one.
_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|\[[^\]]*\]|[(),:;]|[^\s(),:;\[\]']+)")


def read_newick(text: str) -> Tree:
    """Read a tree in Newick format, such as ``((a:1,b:2)x:0.5,c:3);``.

    Names may be quoted (``'it''s'``); underscores in unquoted names mean blanks; comments in brackets are ignored.

    Raises
    ------
    FrameError
        If the text is not a valid tree; the message gives the position.

    References
    ----------
    https://phylipweb.github.io/phylip/newicktree.html
    """
    tree = Tree([""], [-1], [math.nan])
    node, at = 0, 0
    #: What may follow: a subtree, a name, a length after a colon, or the end of a node.
    state = "subtree"
    while True:
        found = _TOKEN.match(text, at)
        if found is None:
            if text[at:].strip():
                raise _wrong(text, at, "a quote or bracket is not closed")
            raise _wrong(text, len(text), "it ends without a semicolon")
        at, token = found.end(), found[1]
        if token[0] == "[":
            continue
        if token == "(" and state == "subtree":
            node = _child(tree, node)
        elif token in "),;" and state != "length":
            if token == ";":
                if tree.parents[node] != -1 or text[at:].strip():
                    raise _wrong(text, found.start(1), "the semicolon ends the tree, all of whose brackets are closed")
                return tree
            node = tree.parents[node]
            if node == -1:
                raise _wrong(text, found.start(1), f"{token!r} is outside of all brackets")
            state = "name"
            if token == ",":
                node, state = _child(tree, node), "subtree"
        elif token == ":" and state in ("subtree", "name", "named"):
            state = "length"
        elif token not in "(),:;" and state == "length":
            try:
                tree.lengths[node] = float(token)
            except ValueError:
                raise _wrong(text, found.start(1), f"the length {token[:40]!r} is not a number") from None
            state = "end"
        elif token not in "(),:;" and state in ("subtree", "name"):
            quoted = token[0] == "'"
            tree.names[node] = token[1:-1].replace("''", "'") if quoted else token.replace("_", " ")
            state = "named"
        else:
            raise _wrong(text, found.start(1), f"{token[:40]!r} cannot stand here")


def _child(tree: Tree, node: int) -> int:
    tree.names.append("")
    tree.parents.append(node)
    tree.lengths.append(math.nan)
    return len(tree.names) - 1


def _wrong(text: str, at: int, what: str) -> FrameError:
    return FrameError(f"this is not a Newick tree: character {at + 1} of {len(text)}: {what}")


def place_tree(
    tree: Tree, ids: Sequence[Any], points: ArrayLike
) -> tuple[list[str], NDArray[np.float64], list[tuple[str, str]]]:
    """Place the inner nodes of a tree whose leaves are points, so that it can be drawn among them.

    Branches act as springs, shorter ones stiffer: the positions of inner nodes minimize the sum of squared lengths,
    each divided by the branch's own length. For a tree, two passes solve this exactly.

    Parameters
    ----------
    tree : Tree
    ids : sequence of n
        Names of the points; all named leaves of the tree must be among them. An inner node with the name of a point
        keeps its position.
    points : array-like of shape (n, 3)

    Returns
    -------
    ids : list of str
        The given ids, and those of inner nodes: their names, or ``node 5``.
    points : ndarray of shape (n + inner nodes, 3)
    edges : list of pairs of ids
        For ``write_frame(edges=)``.

    Raises
    ------
    FrameError
        If a leaf is not a point, or two nodes have the same name.
    """
    where = np.asarray(points, dtype=np.float64)
    names = [str(name) for name in ids]
    if where.ndim != 2 or len(where) != len(names):
        raise FrameError(f"there are {len(names)} ids for points of shape {where.shape}")
    row = {name: number for number, name in enumerate(names)}
    leaves = set(tree.leaves())
    missing = [tree.names[leaf] for leaf in sorted(leaves) if tree.names[leaf] not in row]
    if missing:
        raise FrameError(f"{len(missing)} leaves of the tree are not points, such as {missing[0]!r}")
    called = [name or f"node {node}" for node, name in enumerate(tree.names)]
    again = next((name for name in called if called.count(name) > 1), None) if len(set(called)) < len(called) else None
    if again is not None:
        raise FrameError(f"two nodes of the tree are named {again!r}")
    lengths = np.array(tree.lengths)
    known = lengths[1:][np.isfinite(lengths[1:]) & (lengths[1:] > 0)]
    usual = float(known.mean()) if len(known) else 1.0
    # A branch without length is one of the stiffest, but not infinitely stiff.
    stiff = 1 / np.maximum(np.where(np.isfinite(lengths), lengths, usual), 1e-3 * usual)
    fixed = [name in row for name in called]
    place = np.zeros((len(called), where.shape[1]))
    # From the leaves to the root: everything below a node pulls it towards `pull / weight`, like a single spring.
    weight, pull = np.zeros(len(called)), np.zeros_like(place)
    for node in range(len(called) - 1, -1, -1):
        if fixed[node]:
            place[node] = where[row[called[node]]]
        if node == 0:
            break
        parent, spring = tree.parents[node], stiff[node]
        if fixed[node]:
            weight[parent] += spring
            pull[parent] += spring * place[node]
        else:
            through = spring * weight[node] / (spring + weight[node])
            weight[parent] += through
            pull[parent] += through * pull[node] / weight[node]
    for node in range(len(called)):
        if not fixed[node]:
            up = tree.parents[node]
            spring = stiff[node] if up >= 0 else 0.0
            place[node] = (pull[node] + spring * (place[up] if up >= 0 else 0.0)) / (weight[node] + spring)
    inner = [node for node in range(len(called)) if not fixed[node]]
    edges = [(called[tree.parents[node]], called[node]) for node in range(1, len(called))]
    return names + [called[node] for node in inner], np.concatenate([where, place[inner]]), edges
