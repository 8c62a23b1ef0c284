"""Label propagation: on one worker, or on all workers that share a network, which exchange labels after each round."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill import _tidemill as native
from tidemill.ml._threads import pool
from tidemill.networks._distributed import AnyNetwork, DistributedNetwork, components_of
from tidemill.networks._exchange import agree, asked, rounded_sum, to_owners
from tidemill.networks._results import Account, Communities

__all__ = ["label_propagation"]


def label_propagation(
    network: AnyNetwork, *, labels: ArrayLike | None = None, max_iter: int = 100, n_threads: int | None = None
) -> Communities:
    """Find communities by label propagation: all nodes at once take the most frequent label of their neighbors, of several the smallest.

    Over links of both directions; a neighbor in both counts twice. Source: LDBC Graphalytics' form of Raghavan, Albert and
    Kumara (2007); networkx's functions draw at random instead.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and labels are of each worker's own nodes.
    labels : array-like of int (n,), optional
        To begin with, from 0 to n - 1; by default each node has its own.
    max_iter : int, default=100
        It also ends when nothing changes; labels may swing for ever.

    Returns
    -------
    Communities

    Raises
    ------
    ValueError
        If `labels` has another length, or is not a number of a node.
    """
    count = network.own if isinstance(network, DistributedNetwork) else network.n
    nodes = network.nodes if isinstance(network, DistributedNetwork) else np.arange(network.n)
    start = nodes if labels is None else np.asarray(labels)
    trouble = None
    if start.shape != (count,) or (len(start) and not 0 <= int(start.min()) <= int(start.max()) < network.n):
        trouble = ValueError(f"labels must be {count} integers from 0 to {network.n - 1}, one for each node")
    if isinstance(network, DistributedNetwork):
        agree(network.comm, trouble)
        return _shared(network, start.astype(np.uint32), max_iter, pool(n_threads))
    if trouble is not None:
        raise trouble
    incoming = network.incoming(False) if network.directed else None
    found, rounds = native.network_label_propagation(
        pool(n_threads), network.outgoing(False), incoming, start.astype(np.uint32), max_iter
    )
    symmetric = network.both() if network.directed else network.outgoing(False)
    modularity = native.network_modularity(symmetric, found)
    result: Communities = Communities.of(
        network, found, modularity=modularity, iterations=rounds, labels=found.astype(np.int64)
    )
    return result


def _shared(
    network: DistributedNetwork, labels: NDArray[np.uint32], max_iter: int, threads: native.KernelPool
) -> Communities:
    """Propagate the labels of own nodes. Collective."""
    comm, account, own = network.comm, Account("global", 1), network.own
    parts = [network.part(network.outgoing(False), account)]
    if network.directed:
        parts.append(network.part(network.incoming(False), account))
    held = sum(part.boundary.nbytes for part in parts) + network.nbytes
    around = [np.empty(part.rows.columns, np.uint32) for part in parts]
    rounds = 0
    while rounds < max_iter:
        for part, known in zip(parts, around, strict=True):
            known[:own] = labels
            part.boundary.pull(known)
        # The kernel counts by label: of all nodes there are more labels than this worker sees. Order is kept.
        distinct, places = np.unique(np.concatenate(around), return_inverse=True)
        sides = np.split(places.astype(np.uint32), [parts[0].rows.columns])
        more = (parts[1].rows, sides[1]) if network.directed else (None, None)
        found, changed = native.network_label_round(threads, parts[0].rows, sides[0], len(distinct), *more)
        labels = distinct[found]
        rounds += 1
        if not (changed if comm.size == 1 else sum(comm.allgather(changed))):
            break
    known, firsts, places = np.unique(labels, return_index=True, return_inverse=True)
    owner = network.owner(known)
    (came, members), _ = to_owners(comm, owner, known, network.nodes[firsts].astype(np.int64))
    least = np.full(own, network.n)
    np.minimum.at(least, network.places_of(came), members)
    begins = asked(comm, owner, known, lambda came: least[network.places_of(came)])
    result: Communities = components_of(
        network,
        begins[places],
        Communities,
        modularity=_modularity(network, labels, account),
        iterations=rounds,
        labels=labels.astype(np.int64),
        account=account,
    )
    account.held_bytes = held
    return result


def _modularity(network: DistributedNetwork, labels: NDArray[np.uint32], account: Account) -> float:
    """Return the modularity over links of both directions; a loop of an undirected network counts at both of its ends. Collective."""
    comm = network.comm
    block = network.both() if network.directed else network.outgoing(False)
    part = network.part(block, account)
    around = np.empty(block.rows.columns, np.uint32)
    around[: network.own] = labels
    part.boundary.pull(around)
    offsets, ends = block.rows.offsets, block.ends()
    within, degrees = 0, np.diff(offsets)
    for begin, end in itertools.pairwise(ends):
        targets = block.rows.targets[offsets[begin] : offsets[end]]
        nodes = np.repeat(np.arange(begin, end), np.diff(offsets[begin : end + 1]))
        loops = nodes[targets == nodes]
        within += int(np.count_nonzero(around[targets] == labels[nodes])) + len(loops)
        np.add.at(degrees, loops, 1)
    known, places = np.unique(labels, return_inverse=True)
    sums = np.zeros(len(known), np.int64)
    np.add.at(sums, places, degrees)
    (came, parts), _ = to_owners(comm, network.owner(known), known, sums)
    of_label = np.zeros(network.own, np.int64)
    np.add.at(of_label, network.places_of(came), parts)
    every = [(within, int(degrees.sum()))] if comm.size == 1 else comm.allgather((within, int(degrees.sum())))
    inside, total = (sum(column) for column in zip(*every, strict=True))
    if not total:
        return 0.0
    return float(inside / total) - rounded_sum(comm, np.square(of_label / total))
