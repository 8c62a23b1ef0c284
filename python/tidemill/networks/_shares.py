"""Cores, triangles and forests of a network that workers share: each computes with its own links, and memory stays that of a share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.networks._distributed import PIECE_LINKS, DistributedNetwork
from tidemill.networks._exchange import asked, to_owners
from tidemill.networks._results import Account
from tidemill.networks._spans import spans

__all__ = ["core_numbers_of", "forest_of", "triangles_of"]


def _pieces(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Cut a sequence where the sizes of its elements add up to about `PIECE_LINKS`."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin] - sizes[begin])
        end = max(begin + 1, int(np.searchsorted(ends, before + PIECE_LINKS, side="right")))
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
                for piece in _pieces(sizes):
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


def triangles_of(network: DistributedNetwork, account: Account) -> NDArray[np.int64]:
    """Return the number of triangles that each own node is in, (own,). Collective.

    Each link counts in one direction, to its end with more links. A triangle is then found once, at the owner of its lowest end `v`:
    a link to `u`, and a link of `u` that leads where another one of `v` does. Source: Latapy (2008), as for one worker;
    the links of ghosts are fetched from their owners, some at a time.
    """
    comm, own, n = network.comm, network.own, network.n
    block = network.simple()
    boundary = network.part(block, account).boundary
    offsets, targets = block.rows.offsets, block.rows.targets
    numbers, columns = network.columns(block), block.rows.columns
    degrees = np.empty(columns, np.int64)
    degrees[:own] = np.diff(offsets)
    boundary.pull(degrees)
    sources = np.repeat(np.arange(own), degrees[:own])
    is_up = degrees[targets] > degrees[sources]
    is_up |= (degrees[targets] == degrees[sources]) & (numbers[targets] > numbers[sources])
    sources, ends = sources[is_up], targets[is_up].astype(np.int64)
    del is_up, degrees
    # Ascending by source and number of the target, to be searched.
    keys = sources * n + numbers[ends]
    order = np.argsort(keys)
    keys, sources, ends = keys[order], sources[order], ends[order]
    # For each column, the number of links that lead up, and the place of the first one in its owner's arrays.
    counts, starts = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
    counts[:own] = np.bincount(sources, minlength=own)
    starts[:own] = np.cumsum(counts[:own]) - counts[:own]
    boundary.pull(counts)
    boundary.pull(starts)
    upper = numbers[ends]
    # The same links by target.
    order = np.argsort(ends, kind="stable")
    by_target = ends[order]
    found = np.zeros(columns, np.int64)

    def count(middles: NDArray[np.int64], listed: NDArray[np.uint32], firsts: NDArray[np.int64]) -> None:
        """Count triangles of links to `middles`, ascending columns, whose own targets are `listed` from `firsts` on."""
        # By source: searches in the same part of the keys come one after the other.
        runs = (np.searchsorted(by_target, middles, side) for side in ("left", "right"))
        links = np.sort(order[spans(*runs)])
        which = np.searchsorted(middles, ends[links])
        sizes = counts[ends[links]]
        for piece in _pieces(sizes):
            some, size, begins = links[piece], sizes[piece], firsts[which[piece]]
            wanted = np.repeat(sources[some] * n, size) + listed[spans(begins, begins + size)]
            places = np.searchsorted(keys, wanted)
            places[places == len(keys)] = 0
            hits = np.flatnonzero(keys[places] == wanted)
            beside = np.repeat(some, size)[hits]
            for corners in (sources[beside], ends[beside], ends[places[hits]]):
                np.add(found, np.bincount(corners, minlength=columns), out=found)

    middles = np.unique(ends)
    split = int(np.searchsorted(middles, own))
    count(middles[:split], upper, starts[middles[:split]])
    ghosts = middles[split:]
    pieces = list(_pieces(counts[ghosts] + 1))
    rounds = len(pieces) if comm.size == 1 else max(comm.allgather(len(pieces)))
    owners = network.owner(block.ghosts)
    for at in range(rounds):
        some = ghosts[pieces[at]] if at < len(pieces) else ghosts[:0]
        size = counts[some]
        owner = np.repeat(owners[some - own], size)
        listed = asked(comm, owner, spans(starts[some], starts[some] + size), lambda places: upper[places])
        count(some, listed, np.cumsum(size) - size)
    lost = np.flatnonzero(found[own:])
    came = boundary.push(lost, found[own:][lost], np.zeros(len(lost), np.int64), False)
    if came is not None:
        np.add.at(found, came[0], came[1])
    own_found: NDArray[np.int64] = found[:own].copy()
    return own_found


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
