"""Partitions of a network that workers share: which worker gets which nodes, found from what each has of it.

They are those of `_partition` for a network that each worker has, with the same results, but for `greedy`. Source of that: Ugander
and Backstrom (2013), Balanced label propagation for partitioning massive graphs.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.networks._distributed import DistributedNetwork
from tidemill.networks._exchange import agree, to_owners
from tidemill.networks._partition import hashed
from tidemill.networks._results import Account

__all__ = ["METHODS", "divided"]

METHODS = ("blocks", "greedy", "hash", "coordinates")

#: Ids of nodes, and beside them the worker of each; or x and y.
Given = tuple[NDArray[Any], ...]

#: Passes over all nodes, the pieces of a pass between which workers exchange, and how much larger than the mean a part may be.
_PASSES, _PIECES, _IMBALANCE = 20, 8, 0.05
#: In which the moves that fit are found.
_ROUNDS = 20


def divided(network: DistributedNetwork, method: str, given: Given | None) -> DistributedNetwork:
    """Return the same network, with nodes dealt by a method of `METHODS`, or as ``"given"``. Collective.

    Parameters
    ----------
    network : DistributedNetwork
        In blocks.
    given : tuple of arrays, optional
        For ``"given"``, ids of any nodes and their workers; for ``"coordinates"``, ids, x and y. Each worker passes some.

    Raises
    ------
    ValueError
        On every worker, if what is given does not fit the nodes.
    """
    begin = time.perf_counter()
    comm = network.comm
    if method == "blocks":
        return network
    parts: NDArray[Any]
    if method == "hash":
        parts = hashed(network.nodes, comm.size)
    elif method == "greedy":
        parts = _greedy(network)
    elif method == "coordinates":
        assert given is not None
        (x, y), lacking = _of_nodes(network, given, "coordinates")
        lacking |= ~(np.isfinite(x) & np.isfinite(y))
        _agree_on(network, lacking, "node {!r} has no coordinates")
        parts = _bisected(comm, network.nodes, x, y)
    else:
        assert given is not None
        (parts,), lacking = _of_nodes(network, given, "partition")
        _agree_on(network, lacking, "node {!r} has no worker: partition= has one for each node")
        _agree_on(
            network, (parts < 0) | (parts >= comm.size), f"the worker of node {{!r}} is not from 0 to {comm.size - 1}"
        )
    return network.redistributed(parts.astype(np.int64), method, begin)


def _agree_on(network: DistributedNetwork, bad: NDArray[np.bool_], words: str) -> None:
    """Raise an error on every worker that names the first node that is bad. Collective."""
    agree(network.comm, ValueError(words.format(network.ids[bad].tolist()[0])) if bad.any() else None)


def _of_nodes(network: DistributedNetwork, given: Given, name: str) -> tuple[list[NDArray[Any]], NDArray[np.bool_]]:
    """Return what any workers gave for own nodes, and for which of these none did. Collective."""
    comm, own = network.comm, network.own
    ids, *values = given
    ids, kind = np.asarray(ids), network.ids.dtype
    trouble = None
    if len(ids) and (ids.dtype.kind == "U") != (kind.kind == "U"):
        trouble = ValueError(f"{name}: ids are of type {ids.dtype}, but those of the network of type {kind}")
    agree(comm, trouble)
    if kind.kind == "U":
        # Of one length, to be sent.
        sizes = comm.allgather(max(ids.dtype.itemsize, kind.itemsize)) if comm.size > 1 else [ids.dtype.itemsize]
        ids = ids.astype(f"U{max(1, max(sizes) // 4)}")
    else:
        ids = ids.astype(kind)
    firsts = network.ids[:1].tolist()
    every = [firsts] if comm.size == 1 else comm.allgather(firsts)
    ranks = np.array([rank for rank, first in enumerate(every) if first], np.int64)
    begins = np.array([first[0] for first in every if first], ids.dtype)
    if not len(ranks):
        ranks, begins = np.zeros(1, np.int64), np.zeros(1, ids.dtype)
    owner = ranks[np.maximum(np.searchsorted(begins, ids, side="right") - 1, 0)]
    (came, *columns), _ = to_owners(comm, owner, ids, *values)
    places = np.searchsorted(network.ids, came)
    places[places == own] = 0
    is_known = network.ids[places] == came if own else np.zeros(len(came), bool)
    unknown = (
        ValueError(f"{name}: the network has no node {came[~is_known].tolist()[0]!r}") if not is_known.all() else None
    )
    agree(comm, unknown)
    lacking = np.ones(own, bool)
    lacking[places] = False
    found = []
    different = np.zeros(own, bool)
    for column in columns:
        values_of = np.zeros(own, column.dtype)
        values_of[places] = column
        different[places[values_of[places] != column]] = True
        found.append(values_of)
    _agree_on(network, different & ~_is_nan(found, own), f"{name}: there are different values for node {{!r}}")
    return found, lacking


def _is_nan(columns: list[NDArray[Any]], own: int) -> NDArray[np.bool_]:
    is_nan = np.zeros(own, bool)
    for column in columns:
        if column.dtype.kind == "f":
            is_nan |= np.isnan(column)
    return is_nan


# By coordinates.


def _bisected(comm: Any, nodes: NDArray[np.uint32], x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
    """Return parts that recursive coordinate bisection finds, as `_partition` does for whole networks. Collective."""
    parts = np.zeros(len(nodes), np.int64)
    axes = np.stack([x, y]) + 0.0
    pieces = [(np.arange(len(nodes)), 0, comm.size)]
    while pieces:
        own, first, among = pieces.pop()
        if among == 1:
            parts[own] = first
            continue
        ends = [(float(axis[own].min()), float(axis[own].max())) for axis in axes] if len(own) else None
        told = [(len(own), ends)] if comm.size == 1 else comm.allgather((len(own), ends))
        count = sum(one for one, _ in told)
        if not count:
            continue
        known = np.array([one for _, one in told if one is not None])
        axis = int((known[:, :, 1].max(axis=0) - known[:, :, 0].min(axis=0)).argmax())
        is_low = _lowest(comm, _ordered(axes[axis][own]), nodes[own], count * (among // 2) // among)
        pieces += [(own[is_low], first, among // 2), (own[~is_low], first + among // 2, among - among // 2)]
    return parts


def _ordered(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return integers in the order of floats."""
    bits = values.view(np.int64)
    found: NDArray[np.uint64] = np.where(bits < 0, ~bits, bits ^ np.int64(-(2**63))).view(np.uint64)
    return found


def _lowest(comm: Any, keys: NDArray[np.uint64], nodes: NDArray[np.uint32], count: int) -> NDArray[np.bool_]:
    """Return which nodes have the `count` lowest keys of all workers; of equal ones, those with the lowest numbers. Collective."""
    if not count:
        return np.zeros(len(keys), bool)
    bound, below = _selected(comm, keys, count)
    key = np.uint64(bound)
    ties = nodes[keys == key]
    last, _ = _selected(comm, ties.astype(np.uint64), count - below)
    is_low: NDArray[np.bool_] = (keys < key) | ((keys == key) & (nodes <= last))
    return is_low


def _selected(comm: Any, keys: NDArray[np.uint64], count: int) -> tuple[int, int]:
    """Return the least key such that `count` of all workers are not above it, and how many are below it. Collective."""
    ordered = np.sort(keys)

    def at_most(key: int) -> int:
        mine = int(np.searchsorted(ordered, np.uint64(key), side="right"))
        return mine if comm.size == 1 else sum(comm.allgather(mine))

    low, high = 0, 2**64 - 1
    while low < high:
        middle = (low + high) // 2
        if at_most(middle) >= count:
            high = middle
        else:
            low = middle + 1
    return low, at_most(low - 1) if low else 0


# By links.


def _greedy(network: DistributedNetwork) -> NDArray[np.int64]:
    """Return parts with few links between them: nodes move to where most of their neighbors are, and room is. Collective.

    It begins with blocks, in which ids may already say where a node is. A piece of the nodes of all workers moves at a time;
    as many as there is room for, counting what leaves. Blocks, which are equal by links, may be too large at first. The best
    of all passes is kept.
    """
    comm, own, size = network.comm, network.own, network.comm.size
    block = network.both()
    boundary = network.part(block, Account("global", 1)).boundary
    offsets, targets = block.rows.offsets, block.rows.targets
    parts = np.full(block.rows.columns, comm.rank, np.int64)
    rows = np.repeat(np.arange(own), np.diff(offsets))
    room = (1 + _IMBALANCE) * network.n / size
    bounds = [own * at // _PIECES for at in range(_PIECES + 1)]

    def summed(values: NDArray[np.int64]) -> NDArray[np.int64]:
        every = [values] if size == 1 else comm.allgather(values)
        total: NDArray[np.int64] = np.sum(every, axis=0)
        return total

    def judged() -> tuple[int, int]:
        """Return how many nodes have no room, and the number of links cut, both ways: the less, the better."""
        largest = int(summed(np.bincount(parts[:own], minlength=size)).max())
        cut = np.count_nonzero(parts[rows] != parts[targets])
        return max(0, largest - math.floor(room)), int(summed(np.array([cut]))[0])

    boundary.pull(parts)
    best: NDArray[np.int64] = parts[:own].copy()
    least = judged()
    for _ in range(_PASSES):
        moved = 0
        for begin, end in itertools.pairwise(bounds):
            sizes = summed(np.bincount(parts[:own], minlength=size))
            links = slice(int(offsets[begin]), int(offsets[end]))
            pairs = (rows[links] - begin) * size + parts[targets[links]]
            near = np.bincount(pairs, minlength=(end - begin) * size).reshape(-1, size)
            here = np.arange(end - begin)
            now = parts[begin:end]
            # Of parts with equally many neighbors the emptier one; one without room keeps only nodes without any elsewhere.
            scores = near * np.where(sizes > room, 0.0, 2 - sizes * size / max(1, network.n))
            stay = scores[here, now].copy()
            scores[here, now] = 0
            wished = scores.argmax(axis=1) if end > begin else here
            gains = scores[here, wished] - stay
            movers = np.flatnonzero(gains > 0)
            ways = now[movers] * size + wished[movers]
            wishes = np.bincount(ways, minlength=size * size)
            allowed = _allowed(summed(wishes).reshape(size, size), sizes, room).ravel()[ways] * wishes[ways]
            # Those that gain most, of each way from part to part.
            order = np.lexsort((-gains[movers], ways))
            place = np.arange(len(ways)) - np.searchsorted(ways[order], ways[order])
            movers = movers[order][place + 1 <= allowed[order]]
            parts[begin + movers] = wished[movers]
            moved += len(movers)
            boundary.pull(parts)
        if (found := judged()) < least:
            best, least = parts[:own].copy(), found
        if not summed(np.array([moved]))[0]:
            break
    return best


def _allowed(wishes: NDArray[np.int64], sizes: NDArray[np.int64], room: float) -> NDArray[np.float64]:
    """Return the share of the moves from each part to each other that can be done, so that no part outgrows its room.

    What leaves a part makes room for what comes. Shares only fall from round to round, so they end where all fit.
    """
    shares = np.ones(len(sizes))
    for _ in range(_ROUNDS):
        leaving = (wishes * shares).sum(axis=1)
        coming = wishes.sum(axis=0)
        fitting = np.minimum(np.maximum(0.0, room - sizes + leaving), coming)
        shares = np.minimum(shares, np.divide(fitting, coming, out=np.ones(len(sizes)), where=coming > 0))
    return np.broadcast_to(shares, wishes.shape)
