"""Which worker has which nodes: by blocks, hash, coordinates, or restreamed linear deterministic greedy.

| method        | cut          | cost                 | for                                                     |
|---------------|--------------|----------------------|---------------------------------------------------------|
| `blocks`      | by the order | none                 | ids that say where a node is: crawled pages, sorted ids |
| `hash`        | (P - 1) / P  | none                 | comparison                                              |
| `coordinates` | low          | lg P sorts of nodes  | roads and meshes                                        |
| `greedy`      | low          | about twenty sweeps  | everything else                                         |
| `metis`       | lowest       | more, needs pymetis  | what is computed often                                  |
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill._needs import needed
from tidemill._tidemill import network_cut, network_partition
from tidemill.ml._threads import pool
from tidemill.networks._network import Network

__all__ = ["Partition", "by_host", "hashed", "partition"]

Method = Literal["greedy", "blocks", "hash", "coordinates", "metis"]


@dataclass
class Partition:
    """The part of each node.

    Attributes
    ----------
    parts : ndarray of uint32, shape (n,)
    count : int
        Number of parts.
    method : str
    cut_links : int
        Links between nodes of different parts; of an undirected network each counts once.
    balance : float
        Number of nodes in the largest part, divided by the mean.
    seconds : float
        Time that the partition took.
    """

    parts: NDArray[np.uint32] = field(repr=False)
    count: int
    method: str
    cut_links: int
    balance: float
    seconds: float


def partition(
    network: Network,
    count: int,
    *,
    method: Method | ArrayLike = "greedy",
    passes: int = 10,
    imbalance: float = 0.05,
) -> Partition:
    """Divide the nodes of a network into parts with few links between them. The network keeps the result.

    Source: Stanton and Kliot (2012), Streaming graph partitioning for large distributed graphs, restreamed as by
    Nishimura and Ugander (2013). The result is the same on every worker.

    Parameters
    ----------
    network : Network
    count : int
        Number of parts.
    method : {"greedy", "blocks", "hash", "coordinates", "metis"} or array-like of int (n,)
        ``"blocks"`` cuts the order of the nodes into pieces with equally many links; ``"coordinates"`` cuts the network's
        coordinates in two again and again, across the longer side (Berger and Bokhari 1987); ``"metis"`` needs the package
        pymetis. An array has the part of each node.
    passes : int, default=10
        Of ``"greedy"``.
    imbalance : float, default=0.05
        How much larger than the mean a part may be.

    Returns
    -------
    Partition

    Raises
    ------
    ValueError
        If `count` is not positive, an array of parts does not fit, or a node has no coordinates.
    TypeError
        For a `DistributedNetwork`, whose nodes were dealt when it was read.
    """
    if not isinstance(network, Network):
        raise TypeError(f"partition divides a network that this worker has in whole, not a {type(network).__name__}")
    if count < 1:
        raise ValueError(f"count={count}: a network has at least one part")
    if not isinstance(method, str):
        return _measured(network, _given(network, count, method), count, "given", time.perf_counter())
    key = f"partition, {method}, {count}, {passes}, {imbalance}"
    found: Partition = network.form(key, lambda: _made(network, count, method, passes, imbalance))
    return found


def by_host(network: Network, divided: Partition, hosts: Sequence[Sequence[int]]) -> Partition:
    """Return the same parts with other numbers: those of a host's workers have many links among each other.

    A host takes the part with most links to parts that no host has yet, then again and again the one with most links to its
    own. Parts that were given, or follow the order of nodes, keep their numbers.
    """
    if divided.method not in ("greedy", "metis"):
        return divided
    count = divided.count
    pairs = divided.parts[network.sources].astype(np.int64) * count + divided.parts[network.targets]
    links = np.bincount(pairs, minlength=count * count).reshape(count, count)
    links += links.T.copy()
    np.fill_diagonal(links, 0)
    is_free = np.ones(count, bool)
    numbers = np.empty(count, np.uint32)
    for host in hosts:
        near, own = links[is_free].sum(axis=0), np.zeros(count, bool)
        for rank in host:
            part = int(np.where(is_free, near, -1).argmax())
            is_free[part], own[part], numbers[part] = False, True, rank
            near = links[own].sum(axis=0)
    return replace(divided, parts=numbers[divided.parts])


def _made(network: Network, count: int, method: str, passes: int, imbalance: float) -> Partition:
    begin = time.perf_counter()
    n = network.n
    if count == 1:
        parts: NDArray[Any] = np.zeros(n, np.uint32)
    elif method == "greedy":
        parts, _ = network_partition(network.both(), count, passes, imbalance)
    elif method == "blocks":
        # A node costs about as much as a link.
        work = network.offsets[:-1] + np.arange(n)
        parts = work * count // max(1, network.rows.links + n)
    elif method == "hash":
        parts = hashed(np.arange(n), count)
    elif method == "coordinates":
        parts = _bisected(network, count)
    elif method == "metis":
        rows = network.both()
        _, found = needed("pymetis", "partition(method='metis')").part_graph(
            count, xadj=rows.offsets.tolist(), adjncy=rows.targets.tolist()
        )
        parts = np.asarray(found)
    else:
        raise ValueError(
            f"method is 'greedy', 'blocks', 'hash', 'coordinates', 'metis' or the part of each node, not {method!r}"
        )
    return _measured(network, parts.astype(np.uint32), count, method, begin)


def hashed(numbers: NDArray[Any], count: int) -> NDArray[np.uint64]:
    """Return the part of each node by number: Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4)."""
    found: NDArray[np.uint64] = (
        (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    ) % np.uint64(count)
    return found


def _bisected(network: Network, count: int) -> NDArray[np.int64]:
    """Return parts that recursive coordinate bisection finds: rectangles with equally many nodes.

    Source: Berger and Bokhari (1987), A partitioning strategy for nonuniform problems on multiprocessors.
    """
    where = network.coordinates
    if where is None:
        raise ValueError("the network has no coordinates: read it with coordinates=")
    if (lacking := ~np.isfinite(where).all(axis=1)).any():
        raise ValueError(f"node {network.ids[lacking].tolist()[0]!r} has no coordinates")
    parts = np.zeros(network.n, np.int64)
    pieces = [(np.arange(network.n), 0, count)]
    while pieces:
        nodes, first, among = pieces.pop()
        if among == 1 or not len(nodes):
            parts[nodes] = first
            continue
        axis = int(np.ptp(where[nodes], axis=0).argmax())
        nodes = nodes[np.argsort(where[nodes, axis], kind="stable")]
        middle = len(nodes) * (among // 2) // among
        pieces += [(nodes[:middle], first, among // 2), (nodes[middle:], first + among // 2, among - among // 2)]
    return parts


def _given(network: Network, count: int, parts: ArrayLike) -> NDArray[np.uint32]:
    found = np.asarray(parts)
    if found.shape != (network.n,) or found.dtype.kind not in "iu":
        raise ValueError(f"parts must be {network.n} integers, one for each node")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < count:
        raise ValueError(f"parts are from 0 to {count - 1}")
    return found.astype(np.uint32)


def _measured(network: Network, parts: NDArray[np.uint32], count: int, method: str, begin: float) -> Partition:
    cut = network_cut(pool(), network.outgoing(False), parts)
    largest = int(np.bincount(parts, minlength=1).max()) if network.n else 0
    balance = largest * count / network.n if network.n else 1.0
    cut = cut if network.directed else cut // 2
    return Partition(parts, count, method, cut, balance, time.perf_counter() - begin)
