"""Algorithms that find structure: triangles, betweenness, cores, communities, spanning forests and flows.

Iterations on several workers are in `_iterations.py`. What is computed on the shares of a distributed network is in `_shares.py`; other
functions here gather it first. Each algorithm names its source, and gives the same results as networkx if that has the algorithm, too.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._threads import pool
from tidemill.networks._distributed import AnyNetwork, DistributedNetwork, components_of
from tidemill.networks._exchange import all_gathered, rounded_sum
from tidemill.networks._network import Network
from tidemill.networks._results import Account, Communities, Components, Cores, Flow, Forest, NodeValues, Scores
from tidemill.networks._shares import betweenness_of, core_numbers_of, forest_of, strong_components_of, triangles_of

__all__ = [
    "Clustering",
    "betweenness",
    "clustering",
    "core_numbers",
    "distances",
    "leiden",
    "louvain",
    "maximum_flow",
    "minimum_cut",
    "minimum_spanning_forest",
    "strong_components",
    "triangles",
]


def numbers_or_none(nodes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return numbers of nodes with -1 for none."""
    found = nodes.astype(np.int64)
    found[nodes == 0xFFFFFFFF] = -1
    return found


def distances(
    network: AnyNetwork,
    sources: Iterable[Any] | None = None,
    *,
    weighted: bool = True,
    cutoff: float | None = None,
    n_threads: int | None = None,
) -> NDArray[np.float64]:
    """Compute the distances from each of several nodes to all nodes; of all pairs, if you do not pass `sources`.

    Parameters
    ----------
    network : Network
    sources : iterable of ids, optional
        By default all nodes.
    weighted : bool, default=True
        Whether the weights are lengths; else each link is 1 long.
    cutoff : float, optional
        Nodes farther than this count as not reached.

    Returns
    -------
    ndarray of float64, shape (k, n)
        Infinite for nodes that are not reached. It takes 8 k n bytes.

    Raises
    ------
    ValueError
        If a weight is negative; the message names its link.
    KeyError
        If there is no such node.
    """
    network = network.gather()
    at = np.arange(network.n, dtype=np.uint32) if sources is None else network.numbers(sources)
    if weighted:
        network.check_weights("lengths")
    rows = network.outgoing(weighted)
    found = np.empty((len(at), network.n))
    for row, source in enumerate(at):
        found[row], _ = native.network_shortest_paths(
            pool(n_threads), rows, np.array([source], np.uint32), None, cutoff
        )
    return found


def strong_components(network: AnyNetwork, *, n_threads: int | None = None) -> Components:
    """Find the strongly connected components, whose nodes reach each other.

    In an undirected network, these are the connected components. Source: Tarjan (1972), Depth-first search and linear graph
    algorithms; for a distributed network Orzan (2004), On distributed verification and verified distribution, whose
    coloring is as in Slota, Rajamanickam and Madduri (2014), BFS and coloring-based parallel algorithms for strongly connected
    components and related problems.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and each worker gets the components of its own nodes.

    Returns
    -------
    Components
    """
    if isinstance(network, DistributedNetwork):
        account = Account("global", None)
        labels = network.from_blocks(strong_components_of(network.in_blocks(), account))
        shared: Components = components_of(network, labels, Components, account=account)
        return shared
    if not network.directed:
        labels = native.network_components(pool(n_threads), network.outgoing(False), None)
    else:
        labels = native.network_strong_components(pool(n_threads), network.outgoing(False))
    found: Components = Components.of(network, labels)
    return found


def _undirected(network: AnyNetwork, call: str) -> None:
    if network.directed:
        remedy = "pass network.to_undirected()" if isinstance(network, Network) else "read it with directed=False"
        raise ValueError(f"{call} is for undirected networks: {remedy}")


@dataclass(repr=False)
class Clustering(NodeValues):
    """Local clustering coefficients, float64.

    Attributes
    ----------
    average : float
        Their mean.
    transitivity : float
        The sum of their numerators, divided by that of their denominators: in an undirected network three times the number
        of triangles, divided by the number of pairs of neighbors.
    """

    average: float
    transitivity: float
    _column: ClassVar[str] = "clustering"


def triangles(network: AnyNetwork, *, n_threads: int | None = None) -> NodeValues:
    """Count the triangles that each node is in; loops and parallel links do not count.

    Source: Latapy (2008), Main-memory triangle computations for very large (sparse (power-law)) graphs.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and counts are of each worker's own nodes.

    Returns
    -------
    NodeValues
        ``values`` is (n,) int64; their sum is three times the number of triangles.

    Raises
    ------
    ValueError
        If the network is directed.
    """
    _undirected(network, "triangles")
    if isinstance(network, DistributedNetwork):
        account, blocks = Account("global", 1), network.in_blocks()
        counts = triangles_of(blocks, blocks.simple(), account, n_threads)
        return NodeValues(network, network.from_blocks(counts), account=account)
    return NodeValues(network, native.network_triangles(pool(n_threads), network.simple()))


def clustering(
    network: AnyNetwork,
    *,
    weighted: bool = False,
    rule: Literal["triangles", "links"] = "triangles",
    n_threads: int | None = None,
) -> Clustering:
    """Compute local clustering coefficients: of the pairs of a node's neighbors, how many are linked.

    Sources: Watts and Strogatz (1998), Collective dynamics of small-world networks; for weights Onnela, Saramäki,
    Kertész and Kaski (2005), Intensity and coherence of motifs in weighted complex networks; for directed networks Fagiolo
    (2007), Clustering in complex directed networks, as in networkx, or LDBC Graphalytics.

    Parameters
    ----------
    network : Network or DistributedNetwork
        Loops and parallel links do not count; of weights of parallel links, the least does. If it is distributed, the call is
        collective, and results are of each worker's own nodes.
    weighted : bool, default=False
        Let a triangle count by the geometric mean of its weights, in units of the largest weight of the network. The
        transitivity knows no weights. Sums of weights differ in their last bits with the numbers of threads and workers;
        without weights, results do not.
    rule : {"triangles", "links"}, default="triangles"
        What counts in a directed network: the directed triangles of a node, of those that its links could be part of, as
        in networkx; or the links between its neighbors in either direction, of those that there could be, as in
        Graphalytics. In an undirected network both are the same.
    n_threads : int, optional

    Returns
    -------
    Clustering
        ``values`` is (n,) float64, 0 for nodes with fewer than two neighbors.

    Raises
    ------
    ValueError
        If `weighted` and a weight is negative or not finite, or all are 0; for weights with ``rule="links"``.
    """
    if rule not in ("triangles", "links"):
        raise ValueError(f"rule is 'triangles' or 'links', not {rule!r}")
    weighted = weighted and network.weighted and network.m > 0
    if weighted and rule == "links":
        raise ValueError("rule='links' counts links, which have no weights: pass weighted=False, or rule='triangles'")
    if isinstance(network, DistributedNetwork):
        found = _shared_clustering(network.in_blocks(), weighted, rule == "links", n_threads)
        values = network.from_blocks(found.values)
        return Clustering(network, values, found.average, found.transitivity, account=found.account)
    rows = network.simple()
    if network.directed:
        around = _around(network, rows)
        pairs = _directed_pairs(around, rule == "links")
        counts: NDArray[Any] = native.network_weighted_triangles(pool(n_threads), around, rule == "links")
    else:
        pairs = _pairs(rows)
        counts = native.network_triangles(pool(n_threads), rows)
    sums = counts
    if weighted:
        intensities = _intensities(network)
        if network.directed:
            intensities = _around(network, intensities)
        sums = native.network_weighted_triangles(pool(n_threads), intensities)
    return _coefficients(network, None, sums, counts, pairs, None)


def _shared_clustering(
    network: DistributedNetwork, weighted: bool, by_links: bool, n_threads: int | None
) -> Clustering:
    """Return the coefficients of own nodes. Collective."""
    account = Account("global", 1)
    block = network.around(False) if network.directed else network.simple()
    pairs = _directed_pairs(block.rows, by_links) if network.directed else _pairs(block.rows)
    sums = counts = triangles_of(network, block, account, n_threads, by_links)
    if weighted:
        block = network.around(True) if network.directed else network.intensities()
        sums = triangles_of(network, block, account, n_threads)
    return _coefficients(network, network.comm, sums, counts, pairs, account)


def _pairs(rows: native.CompressedRows) -> NDArray[np.int64]:
    """Return of each node how many pairs of neighbors it has."""
    degrees = np.diff(rows.offsets)
    pairs: NDArray[np.int64] = degrees * (degrees - 1) // 2
    return pairs


def _directed_pairs(around: native.CompressedRows, by_links: bool) -> NDArray[np.int64]:
    """Return how many links between its neighbors, or directed triangles, a node could have; see `_around`."""
    neighbors = np.diff(around.offsets)
    total = neighbors if by_links else around.weight_sums(pool()).astype(np.int64)
    pairs: NDArray[np.int64] = total * (total - 1) - 2 * (total - neighbors)
    return pairs


def _coefficients(
    network: AnyNetwork,
    comm: Any,
    sums: NDArray[Any],
    counts: NDArray[Any],
    pairs: NDArray[np.int64],
    account: Account | None,
) -> Clustering:
    """Return the coefficients: `sums` over `pairs`, and what `counts` of all nodes say. Collective if there is a communicator."""
    values = np.divide(sums, pairs, out=np.zeros(len(pairs)), where=pairs > 0)
    # Integers, whose sums are the same on any number of workers.
    mine = int(counts.astype(np.int64).sum()), int(pairs.sum())
    every = [mine] if comm is None or comm.size == 1 else comm.allgather(mine)
    found, possible = (sum(column) for column in zip(*every, strict=True))
    average = rounded_sum(comm, values) / network.n if network.n else 0.0
    return Clustering(network, values, average, found / possible if possible else 0.0, account=account)


def _around(network: Network, rows: native.CompressedRows) -> native.CompressedRows:
    """Return the links of both directions as one, with the sum of their weights, or 1 or 2."""
    n = network.n
    sources = np.repeat(np.arange(n, dtype=np.uint32), np.diff(rows.offsets))
    ends = np.concatenate([sources, rows.targets]), np.concatenate([rows.targets, sources])
    weights = np.ones(rows.links) if rows.weights is None else rows.weights
    return native.CompressedRows.of_links(pool(), *ends, np.concatenate([weights, weights]), n, n, "sum", False, False)


def _intensities(network: Network) -> native.CompressedRows:
    """Return the rows of simple links, with the cube roots of their shares of the largest weight."""

    def made() -> native.CompressedRows:
        network.check_weights("weights of clustering", finite=True)
        weights = np.asarray(network.weights)
        largest = float(weights.max())
        if largest == 0:
            raise ValueError("all weights are 0, but clustering divides weights by the largest one")
        ends, n = (network.sources, network.targets), network.n
        return native.CompressedRows.of_links(pool(), *ends, np.cbrt(weights / largest), n, n, "min", False, False)

    found: native.CompressedRows = network.form("intensities", made)
    return found


def _shortest_links(network: Network) -> native.CompressedRows:
    """Return rows without loops, and of parallel links the shortest."""

    def made() -> native.CompressedRows:
        network.check_weights("lengths", finite=True, positive=True)
        ends, n = (network.sources, network.targets), network.n
        return native.CompressedRows.of_links(pool(), *ends, network.weights, n, n, "min", False, False)

    found: native.CompressedRows = network.form("shortest links", made)
    return found


def betweenness(
    network: AnyNetwork,
    *,
    weighted: bool = False,
    samples: int | Iterable[Any] | None = None,
    normalized: bool = True,
    endpoints: bool = False,
    seed: int | None = None,
    n_threads: int | None = None,
) -> Scores:
    """Compute betweenness centrality: the share of shortest paths that lead through each node.

    With a single sample, the value of the sampled node itself is NaN.

    Source: Brandes (2001), A faster algorithm for betweenness centrality; the scale is networkx's.

    Parameters
    ----------
    network : Network or DistributedNetwork
        Loops and parallel links do not count; with `weighted`, the shortest of parallel links does. If it is distributed, the call
        is collective, and results are of each worker's own nodes. Each search then looks at most links once for each level: if
        paths are long, as on roads, ``network.gather()`` takes less time.
    weighted : bool, default=False
        Whether weights are lengths of links; a distributed network with weights is then gathered. By default, paths are
        shortest by number of links.
    samples : int or iterable of ids, optional
        Estimate it from the shortest paths from this many nodes, drawn at random, or from these nodes; by default from
        all.
    normalized : bool, default=True
        Divide by the number of pairs that the node is not part of.
    endpoints : bool, default=False
        Whether a path counts for its ends, too.
    seed : int, optional
        Seed for drawing samples. Of a distributed network, pass the same on every worker.

    Returns
    -------
    Scores

    Raises
    ------
    KeyError
        If a sample is not a node.
    ValueError
        If `samples` is not from 1 to n; or, with `weighted`, if a length is not finite or not above 0; the message
        names its link.
    """
    if weighted and network.weighted:
        network = network.gather()
    n = network.n
    if samples is None:
        chosen = None
    elif isinstance(samples, int | np.integer):
        if not 1 <= samples <= n:
            raise ValueError(f"samples is a number of nodes from 1 to {n}, not {samples}")
        drawn = random.Random(seed).sample(range(n), int(samples))
        if isinstance(network, DistributedNetwork) and network.comm.size > 1:
            # Without a seed, each worker has drawn others.
            drawn = network.comm.allgather(drawn)[0]
        chosen = np.array(drawn, np.int64)
    elif isinstance(network, DistributedNetwork):
        chosen = np.sort(all_gathered(network.comm, network.nodes[network.places(samples)[1]].astype(np.int64)))
    else:
        chosen = network.numbers(samples).astype(np.int64)
    sources = np.arange(n) if chosen is None else chosen
    account = None
    if isinstance(network, DistributedNetwork):
        account, blocks = Account("global", 1), network.in_blocks()
        sums = network.from_blocks(betweenness_of(blocks, sources, endpoints, account, n_threads))
        own = network.nodes
    else:
        weighted = weighted and network.weighted
        rows = _shortest_links(network) if weighted else network.simple()
        sums = native.network_betweenness(pool(n_threads), rows, sources.astype(np.uint32), endpoints, weighted)
        own = np.arange(n, dtype=np.uint32)
    scale = betweenness_scale(n, own, chosen, normalized, network.directed, endpoints)
    return Scores(network, sums * scale, account=account)


def betweenness_scale(
    n: int, own: NDArray[Any], sampled: NDArray[np.int64] | None, normalized: bool, directed: bool, endpoints: bool
) -> NDArray[np.float64]:
    """Return what networkx multiplies sums over sources of `own` nodes by, (own,)."""
    others = n if endpoints else n - 1
    if others < 2:
        return np.ones(len(own))
    seen = np.full(len(own), float(others if sampled is None else len(sampled)))
    if sampled is not None and not endpoints:
        # A node that is a source itself is on no path from there.
        seen[np.isin(own, sampled)] -= 1
    with np.errstate(divide="ignore"):
        scale = 1 / (seen * (others - 1)) if normalized else others / (seen * (1 if directed else 2))
    scale[seen == 0] = np.nan
    return scale


def core_numbers(network: AnyNetwork) -> Cores:
    """Compute core numbers: the largest k such that the node is in a subnetwork whose nodes all have at least k links.

    Links of both directions count; loops do not. Source: Batagelj and Zaveršnik (2003), An O(m) algorithm for cores
    decomposition of networks.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and core numbers are of each worker's own nodes.

    Returns
    -------
    Cores
        ``values`` is (n,) int64.
    """
    if isinstance(network, DistributedNetwork):
        account = Account("global", 1)
        return Cores(network, core_numbers_of(network, account), account=account)
    return Cores(network, native.network_core_numbers(network.both()).astype(np.int64))


def louvain(
    network: AnyNetwork,
    *,
    weighted: bool = True,
    resolution: float = 1.0,
    threshold: float = 1e-7,
    max_levels: int | None = None,
    seed: int = 0,
    n_threads: int | None = None,
) -> Communities:
    """Find communities of high modularity by Louvain's method.

    Source: Blondel, Guillaume, Lambiotte and Lefebvre (2008), Fast unfolding of communities in large networks. The seed
    decides the order of nodes; the result does not depend on threads.

    Parameters
    ----------
    network : Network
        Undirected; parallel links count as one with the sum of their weights.
    resolution : float, default=1.0
        Values above 1 favor smaller communities.
    threshold : float, default=1e-7
        End when a level raises modularity by less than this.
    max_levels : int, optional

    Returns
    -------
    Communities

    Raises
    ------
    ValueError
        If the network is directed, or a weight is negative.
    """
    return _communities(network, "louvain", weighted, resolution, threshold, max_levels, seed, n_threads)


def leiden(
    network: AnyNetwork,
    *,
    weighted: bool = True,
    resolution: float = 1.0,
    threshold: float = 1e-7,
    max_levels: int | None = None,
    seed: int = 0,
    n_threads: int | None = None,
) -> Communities:
    """Find communities of high modularity by Leiden's method: unlike those of `louvain`, each is connected.

    Source: Traag, Waltman and van Eck (2019), From Louvain to Leiden: guaranteeing well-connected communities. Where
    they draw the community that a node is refined to, this takes the one that gains most.

    Parameters, results and errors are those of `louvain`.
    """
    return _communities(network, "leiden", weighted, resolution, threshold, max_levels, seed, n_threads)


def _communities(
    network: AnyNetwork,
    method: str,
    weighted: bool,
    resolution: float,
    threshold: float,
    max_levels: int | None,
    seed: int,
    n_threads: int | None,
) -> Communities:
    network = network.gather()
    _undirected(network, method)
    if weighted:
        network.check_weights(f"weights of {method.capitalize()}", finite=True)
    rows = network.merged(weighted) if network.is_multigraph() else network.outgoing(weighted)
    labels, modularity, levels = native.network_louvain(
        pool(n_threads), rows, resolution, threshold, seed, max_levels, method == "leiden"
    )
    result: Communities = Communities.of(network, labels, modularity=modularity, iterations=levels)
    return result


def minimum_spanning_forest(network: AnyNetwork, *, maximum: bool = False, n_threads: int | None = None) -> Forest:
    """Find the spanning tree with the smallest sum of weights for each component.

    Source: Borůvka (1926), O jistém problému minimálním.

    Parameters
    ----------
    network : Network or DistributedNetwork
        Undirected. Loops do not count. If it is distributed, the call is collective, and links are those from each worker's own
        nodes to larger ones.
    maximum : bool, default=False
        Find the largest sum instead.
    n_threads : int, optional
        For a whole network; on a share, each worker computes with one thread.

    Returns
    -------
    Forest
        It has n minus the number of components links.

    Raises
    ------
    ValueError
        If the network is directed.
    """
    _undirected(network, "minimum_spanning_forest")
    if isinstance(network, DistributedNetwork):
        account = Account("global", 1)
        links = forest_of(network, maximum, account)
        return Forest(network, *links, rounded_sum(network.comm, links[2]), account=account)
    rows = network.outgoing()
    sources, places = native.network_spanning_forest(pool(n_threads), rows, maximum)
    weights = np.ones(len(places)) if rows.weights is None else rows.weights[places]
    return Forest(network, sources, rows.targets[places], weights, rounded_sum(None, weights))


def maximum_flow(network: AnyNetwork, source: Any, sink: Any) -> Flow:
    """Find a maximum flow from one node to another, and a minimum cut between them.

    Weights are capacities; without weights, each capacity is 1. Integer and infinite capacities give exact results if
    the integers are not too large for sums in float64 (2**53).

    Source: Cherkassky and Goldberg (1997), On implementing the push-relabel method for the maximum flow problem. For
    capacities with fractions, and larger sums: Dinic (1970), Algorithm for solution of a problem of maximum flow in
    networks with power estimation.

    Parameters
    ----------
    network : Network
        If it is undirected, a link's capacity can flow in either direction. A capacity may be infinite.
    source, sink : ids of nodes

    Returns
    -------
    Flow

    Raises
    ------
    ValueError
        If a capacity is negative, the flow has no bound, or source and sink are the same.
    KeyError
        If there is no such node.
    """
    network = network.gather()
    ends = network.number(source), network.number(sink)
    if ends[0] == ends[1]:
        raise ValueError(f"source and sink are the same node, {source!r}")
    network.check_weights("capacities")
    value, flows, side = native.network_maximum_flow(network.rows, *ends)
    return Flow(network, value, flows, side)


def minimum_cut(network: AnyNetwork, source: Any, sink: Any) -> tuple[float, list[tuple[Any, Any]]]:
    """Find a minimum cut between two nodes: the sum of its capacities, and its links by id. See `maximum_flow`."""
    flow = maximum_flow(network, source, sink)
    return flow.value, flow.cut()
