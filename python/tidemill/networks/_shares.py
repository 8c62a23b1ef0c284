"""Structure of a network that workers share: each computes with its own links, and memory stays that of a share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import _tidemill as native
from tidemill.ml._threads import pool
from tidemill.networks import _memory
from tidemill.networks._distributed import PIECE_LINKS, Block, DistributedNetwork
from tidemill.networks._exchange import Boundary, alltoallv, asked, to_owners
from tidemill.networks._results import Account
from tidemill.networks._spans import spans

__all__ = ["betweenness_of", "core_numbers_of", "forest_of", "strong_components_of", "triangles_of"]


#: Bytes for each link of a piece: of nodes that fall, places, ends and their sort; of lists that others ask for and get, places,
#: numbers and weights, and the lists by column.
_BYTES_FALLING, _BYTES_LISTED = 40, 36


def _pieces(sizes: NDArray[np.int64], limit: int) -> Iterator[slice]:
    """Cut a sequence where the sizes of its elements add up to about `limit`."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin] - sizes[begin])
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield slice(begin, end)
        begin = end


def core_numbers_of(network: DistributedNetwork, account: Account) -> NDArray[np.int64]:
    """Return the core numbers of own nodes, (own,). Collective.

    At each level, nodes with no more links than that are removed, with their links, until none is left; then the others tell
    the next level. A worker goes on alone as far as it can, since the order does not matter, and then exchanges.
    """
    comm, own = network.comm, network.own
    block = network.both()
    offsets, targets = block.rows.offsets, block.rows.targets
    boundary = network.part(block, account).boundary
    cores = np.full(own, -1)
    limit = _memory.within_budget(_BYTES_FALLING, PIECE_LINKS)
    #: Links to nodes that have not been removed.
    left = np.diff(offsets)
    level = 0

    def falling(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return nodes[(cores[nodes] < 0) & (left[nodes] <= level)]

    while True:
        remaining = np.flatnonzero(cores < 0)
        lowest = int(left[remaining].min()) if len(remaining) else None
        every = [lowest] if comm.size == 1 else comm.allgather(lowest)
        levels = [one for one in every if one is not None]
        if not levels:
            return cores
        level = min(levels)
        falls = falling(remaining)
        while True:
            away = [np.empty(0, np.int64)]
            while len(falls):
                cores[falls] = level
                sizes = offsets[falls + 1] - offsets[falls]
                reached = []
                for piece in _pieces(sizes, limit):
                    nodes = falls[piece]
                    ends = targets[spans(offsets[nodes], offsets[nodes + 1])].astype(np.int64)
                    away.append(ends[ends >= own] - own)
                    here, counts = np.unique(ends[ends < own], return_counts=True)
                    left[here] -= counts
                    reached.append(here)
                falls = falling(np.unique(np.concatenate(reached)))
            ghosts, counts = np.unique(np.concatenate(away), return_counts=True)
            came = boundary.push(ghosts, counts, np.zeros(len(ghosts), np.int64), False)
            if came is None:
                break
            here, counts, _ = came
            np.subtract.at(left, here, counts)
            falls = falling(np.unique(here))


def triangles_of(
    network: DistributedNetwork, block: Block, account: Account, n_threads: int | None, opposite: bool = False
) -> NDArray[Any]:
    """Return the number of triangles that each own node is in, (own,) int64. Collective.

    If the `block` has weights, these are sums of products of weights, or of the weight of the `opposite` link, float64.

    Each link counts in one direction, to its end with more links. A triangle is then found once, at the owner of its lowest end `v`:
    a link to `u`, and a link of `u` that leads where another one of `v` does. Source: Latapy (2008), as for one worker;
    the links of ghosts are fetched from their owners, some at a time.

    Parameters
    ----------
    block : Block
        Links in both directions, without loops and parallels.
    """
    comm, own, first = network.comm, network.own, network.first
    threads = pool(n_threads)
    boundary = network.part(block, account).boundary
    numbers, columns = network.columns(block), block.rows.columns
    counts = np.empty(columns, np.int64)
    counts[:own] = np.diff(block.rows.offsets)
    boundary.pull(counts)
    up = native.network_upward(threads, block.rows, counts, numbers)
    offsets = up.offsets
    # For each column, the number of its links that lead up.
    counts[:own] = np.diff(offsets)
    boundary.pull(counts)
    found: NDArray[Any] = np.zeros(columns, np.int64 if up.weights is None else np.float64)

    def count(lists: native.CompressedRows, begin: int) -> None:
        if up.weights is None:
            native.network_part_triangles(threads, up, lists, begin, found)
        else:
            native.network_part_weighted_triangles(threads, up, lists, begin, found, opposite)

    count(up, 0)
    is_middle = np.zeros(columns, bool)
    is_middle[up.targets] = True
    sizes = np.where(is_middle, counts, 0)[own:]
    # Others may ask for as much at the same time.
    mine = _memory.within_budget(_BYTES_LISTED * comm.size, PIECE_LINKS)
    limit = mine if comm.size == 1 else min(comm.allgather(mine))
    pieces = list(_pieces(sizes + 1, limit))
    rounds = len(pieces) if comm.size == 1 else max(comm.allgather(len(pieces)))
    owners = network.owner(block.ghosts)
    for at in range(rounds):
        piece = pieces[at] if at < len(pieces) else slice(0, 0)
        size = sizes[piece]
        asking = piece.start + np.flatnonzero(size)
        # Ghosts ascend, so that they and their answers are in the order of their owners.
        (came,), coming = to_owners(comm, owners[asking], block.ghosts[asking])
        nodes = came.astype(np.int64) - first
        places = spans(offsets[nodes], offsets[nodes + 1])
        ends = np.concatenate([[0], np.cumsum(counts[nodes])])
        sent = np.diff(ends[np.concatenate([[0], np.cumsum(coming)])])
        received = np.bincount(owners[asking], weights=sizes[asking], minlength=comm.size).astype(np.int64)
        listed = alltoallv(comm, numbers[up.targets[places]], sent, received)
        weights = None if up.weights is None else alltoallv(comm, up.weights[places], sent, received)
        begins = np.concatenate([[0], np.cumsum(size)])
        count(
            native.network_lists(threads, begins, listed, weights, (first, first + own), block.ghosts),
            own + piece.start,
        )
    lost = np.flatnonzero(found[own:])
    pushed = boundary.push(lost, found[own:][lost], np.zeros(len(lost), np.int64), False)
    if pushed is not None:
        np.add.at(found, pushed[0], pushed[1])
    own_found: NDArray[Any] = found[:own].copy()
    return own_found


def strong_components_of(network: DistributedNetwork, account: Account) -> NDArray[np.int64]:
    """Return the first node of each own node's strongly connected component, (own,). Collective.

    Each node takes the lowest color that leads to it, at first each node's own. Where a color begins, the nodes of the color that lead
    there are a component. Components lie within colors, so the others go on within these. Colors are in no order of nodes:
    otherwise, a chain of components would lose only one in each round.

    Source: Orzan (2004), On distributed verification and verified distribution, chapter on coloring; Slota, Rajamanickam and
    Madduri (2014), BFS and coloring-based parallel algorithms for strongly connected components and related problems.
    """
    comm, own, first = network.comm, network.own, network.first
    outgoing = network.outgoing(False)
    forward = network.part(outgoing, account).boundary
    numbers = np.arange(first, first + own)
    alive = np.arange(own, dtype=np.uint32)
    #: The color of the last round, within which the next goes on; -1 for nodes that are done.
    groups = np.zeros(outgoing.rows.columns, np.int64)
    if not network.directed:
        values = network.columns(outgoing).astype(np.int64)
        _lower(outgoing, forward, values, groups, alive, account)
        lowest: NDArray[np.int64] = values[:own].copy()
        return lowest
    incoming = network.incoming(False)
    backward = network.part(incoming, account).boundary
    own_colors = _color(network.columns(outgoing).astype(np.int64))
    found = np.empty(own, np.int64)
    while _any(comm, len(alive) > 0):
        colors = own_colors.copy()
        _lower(outgoing, forward, colors, groups, alive, account)
        groups_back = np.full(incoming.rows.columns, -1)
        groups_back[alive] = colors[alive]
        backward.pull(groups_back)
        begins = alive[colors[alive] == own_colors[alive]]
        unreached = np.ones(incoming.rows.columns, np.int64)
        unreached[begins] = 0
        _lower(incoming, backward, unreached, groups_back, begins, account)
        is_left = unreached[alive] > 0
        done, alive = alive[~is_left], alive[is_left]
        found[done] = colors[done]
        groups[:own] = -1
        groups[alive] = colors[alive]
        forward.pull(groups)
    # The nodes of a color tell the node that it began at which of them is the first.
    known, firsts, places = np.unique(found, return_index=True, return_inverse=True)
    begins = _node_of_color(known)
    owner = network.owner(begins)
    (came, told), _ = to_owners(comm, owner, begins, firsts + first)
    np.minimum.at(numbers, came - first, told)
    return asked(comm, owner, begins, lambda came: numbers[came - first])[places]


def _lower(
    block: Block,
    boundary: Boundary,
    values: NDArray[np.int64],
    groups: NDArray[np.int64],
    active: NDArray[np.uint32],
    account: Account,
) -> None:
    """Give nodes the lowest value of those that lead to them within a group, all (columns,). Collective."""
    own = block.rows.rows
    while True:
        lowered, _, links = native.network_lower_along(block.rows, values, groups, active)
        account.sweeps += links / max(1, block.rows.links)
        away = lowered[lowered >= own].astype(np.int64) - own
        came = boundary.push(away, values[own:][away], np.zeros(len(away), np.int64), False)
        if came is None:
            return
        nodes, offers, _ = came
        better = offers < values[nodes]
        np.minimum.at(values, nodes[better], offers[better])
        active = np.unique(nodes[better]).astype(np.uint32)


#: Odd numbers, by which multiplication modulo 2³² is one to one.
_FACTORS = (0x9E3779B1, 0x85EBCA6B)
_WORD = 2**32


def _color(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each node, one to one, as if drawn at random."""
    mixed = _times(nodes, _FACTORS[0])
    mixed ^= mixed >> 16
    return _times(mixed, _FACTORS[1])


def _node_of_color(colors: NDArray[np.int64]) -> NDArray[np.int64]:
    mixed = _times(colors, pow(_FACTORS[1], -1, _WORD))
    mixed ^= mixed >> 16
    return _times(mixed, pow(_FACTORS[0], -1, _WORD))


def _times(values: NDArray[np.int64], factor: int) -> NDArray[np.int64]:
    """Return products modulo 2³²."""
    products: NDArray[np.int64] = (values.astype(np.uint32) * np.uint32(factor)).astype(np.int64)
    return products


def betweenness_of(
    network: DistributedNetwork, sources: NDArray[np.int64], endpoints: bool, account: Account, n_threads: int | None
) -> NDArray[np.float64]:
    """Return the sum over sources of the shares of shortest paths that lead through each own node, (own,). Collective.

    Some sources at a time, level by level: the numbers of paths to nodes of a level add up to those of the next, and shares on the
    way back. Each level looks at all links of nodes that it could reach. A node's sum is over sources in their order, so
    it does not depend on how many workers there are.

    Source: Brandes (2001), as for one worker; Buluç and Gilbert (2011), The Combinatorial BLAS, for several sources at a time.

    Parameters
    ----------
    sources : ndarray of int64
        By number, the same on all workers.
    """
    comm, own, first = network.comm, network.own, network.first
    threads = pool(n_threads)
    outgoing, incoming = network.simple(), network.simple_incoming()
    forward = network.part(outgoing, account).boundary
    backward = forward if incoming is outgoing else network.part(incoming, account).boundary
    # Of each source a level, the paths, shares, sums, and what is sent and received.
    mine = _memory.within_budget(max(1, 40 * own + 16 * max(outgoing.rows.columns, incoming.rows.columns)), SOURCES)
    width_max = mine if comm.size == 1 else min(comm.allgather(mine))
    total = np.zeros(own)

    def step(block: Block, boundary: Boundary, values: NDArray[np.float64], wanted: NDArray[np.bool_]) -> NDArray[Any]:
        """Sum values of own nodes, (own, width), over links from `wanted` ones."""
        every = np.zeros((block.rows.columns, values.shape[1]))
        every[:own] = values
        boundary.pull(every)
        some_wanted = np.asarray(wanted.any(axis=1))
        sums = native.network_row_sums(threads, block.rows, every.reshape(-1), every.shape[1], some_wanted)
        account.sweeps += int(np.diff(block.rows.offsets)[some_wanted].sum()) / max(1, block.rows.links)
        return sums.reshape(values.shape)

    for begin in range(0, len(sources), width_max):
        some = sources[begin : begin + width_max]
        width = len(some)
        levels, paths = np.full((own, width), -1, np.int32), np.zeros((own, width))
        here = np.flatnonzero((some >= first) & (some < first + own))
        starts = some[here] - first, here
        levels[starts], paths[starts] = 0, 1.0
        level = 0
        while True:
            open_nodes = levels < 0
            sums = step(incoming, backward, np.where(levels == level, paths, 0.0), open_nodes)
            open_nodes &= sums > 0
            if not _any(comm, bool(open_nodes.any())):
                break
            level += 1
            levels[open_nodes] = level
            paths[open_nodes] = sums[open_nodes]
        shares = np.zeros((own, width))
        while level > 0:
            offered = np.divide(1.0 + shares, paths, out=np.zeros((own, width)), where=levels == level)
            level -= 1
            before = levels == level
            sums = step(outgoing, forward, offered, before)
            shares[before] = paths[before] * sums[before]
        shares[starts] = 0.0
        if endpoints:
            reached = levels >= 0
            shares[reached] += 1.0
            counts = reached.sum(axis=0)
            every = counts if comm.size == 1 else sum(comm.allgather(counts))
            shares[starts] = every[here] - 1.0
        for at in range(width):
            total += shares[:, at]
    return total


#: Sources of betweenness at a time.
SOURCES = 64


def forest_of(
    network: DistributedNetwork, maximum: bool, account: Account
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64]]:
    """Return the links of a spanning forest from own nodes to larger ones: sources and targets by number, and weights. Collective.

    Borůvka's rounds: each tree takes its best link to another one, which the owner of its root finds, and roots follow links
    to the root of all. Links of equal weight are ordered by their ends, so the forest is that of one worker.
    """
    comm, own, place = network.comm, network.own, network.places_of
    block = network.outgoing()
    boundary = network.part(block, account).boundary
    offsets, targets, weights = block.rows.offsets, block.rows.targets, block.rows.weights
    numbers = network.columns(block).astype(np.int64)
    nodes = np.repeat(np.arange(own), np.diff(offsets))
    left = np.flatnonzero(numbers[targets] > numbers[nodes])
    begins, ends = nodes[left], targets[left].astype(np.int64)
    weight = np.ones(len(left)) if weights is None else weights[left]
    #: The root of each column's tree, and for each own node that is a root, the root that its tree has joined.
    trees, parents = numbers.copy(), numbers[:own].copy()
    chosen: list[list[NDArray[Any]]] = []
    while True:
        boundary.pull(trees)
        apart = trees[begins] != trees[ends]
        begins, ends, weight = begins[apart], ends[apart], weight[apart]
        if not _any(comm, len(begins) > 0):
            break
        sides = trees[begins], trees[ends]
        link = weight, numbers[begins], numbers[ends]
        offered = [np.concatenate(sides), np.concatenate(sides[::-1]), *(np.concatenate([one, one]) for one in link)]
        offered = _best(offered, maximum)
        came, _ = to_owners(comm, network.owner(offered[0]), *offered)
        roots, others, *link_of_root = _best(came, maximum)
        parents[place(roots)] = others
        # Two trees that take the same link follow each other: the smaller root stays.
        followed = asked(comm, network.owner(others), others, lambda came: parents[place(came)])
        stays = (followed == roots) & (roots < others)
        parents[place(roots[stays])] = roots[stays]
        chosen.append([column[~stays] for column in link_of_root])
        while True:
            now = parents[place(roots)]
            then = asked(comm, network.owner(now), now, lambda came: parents[place(came)])
            parents[place(roots)] = then
            if not _any(comm, bool((then != now).any())):
                break
        known, places = np.unique(trees[:own], return_inverse=True)
        trees[:own] = asked(comm, network.owner(known), known, lambda came: parents[place(came)])[places]
    empty = [np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)]
    columns = [np.concatenate(parts) for parts in zip(empty, *chosen, strict=True)]
    (found, sources, reached), _ = to_owners(comm, network.owner(columns[1]), *columns)
    order = np.lexsort((reached, sources))
    return sources[order].astype(np.uint32), reached[order].astype(np.uint32), found[order]


def _best(links: list[NDArray[Any]], maximum: bool) -> list[NDArray[Any]]:
    """Return the best link of each tree, ascending; columns are the tree, the other tree, the weight and the ends."""
    tree, _, weight, source, target = links
    # 0 and -0 are the same weight.
    order = np.lexsort((target, source, (-weight if maximum else weight) + 0.0, tree))
    ordered = tree[order]
    kept = order[np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(order)]]
    return [column[kept] for column in links]


def _any(comm: Any, is_so: bool) -> bool:
    return is_so if comm.size == 1 else any(comm.allgather(is_so))
