"""`DistributedNetwork`: a network of which each worker has a share, and how links of any workers become one.

Nodes are dealt in blocks: ids are sorted over all workers, by ranges that samples of the links' ends find, so that each has about
equally many links. So a node has the same number as in a `Network` of the same links, and each worker has a run of numbers, which is
all that a worker must know to find the owner of any node. A worker has the links that leave its own nodes.

What a worker holds is its links, its nodes and their ghosts, and nothing that has an entry for each node of the network.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._tidemill import CompressedRows, network_find, network_ids
from tidemill.ml._threads import pool
from tidemill.networks import _memory
from tidemill.networks._exchange import Boundary, Part, agree, all_gathered, asked, to_owners
from tidemill.networks._network import NODES_MAX, Duplicates, Network
from tidemill.networks._results import Account, Components
from tidemill.networks._text import Links

__all__ = ["AnyNetwork", "Block", "DistributedNetwork", "Piece", "components_of", "distributed", "of_numbers"]

#: Links that are sent at a time.
PIECE_LINKS = 1 << 22
#: Ends of links that each worker draws to find ranges of ids.
_SAMPLES = 1 << 12

#: Sources and targets by number, and weights.
Piece = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float64] | None]


@dataclass
class Block:
    """Links of a worker's own nodes: columns are these, and behind them the ghosts, ascending by number."""

    rows: CompressedRows
    ghosts: NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.rows.nbytes + self.ghosts.nbytes

    def ends(self) -> list[int]:
        """Return the rows where pieces with about equally many links begin, and the end."""
        cuts = np.searchsorted(self.rows.offsets, np.arange(0, self.rows.links, PIECE_LINKS))
        return [int(end) for end in np.unique(np.append(cuts, self.rows.rows))]


class DistributedNetwork:
    """A network of which each worker has a share. Made by ``read(..., together=True)``, `kronecker` and `uniform`.

    Nodes have numbers from 0 to ``n - 1``, in ascending order of their ids; each worker owns a run of them and has the links
    that leave these nodes. Arrays are of this worker's own nodes, and so are results, whose ``gather()`` collects them.

    `pagerank`, `shortest_paths`, `bfs`, `connected_components`, `label_propagation`, `core_numbers`, and for undirected networks
    `minimum_spanning_forest`, `triangles` and `clustering` without weights compute on it where it is. Other functions gather it
    first, so that each worker needs memory for the whole network. All of them are collective.

    Attributes
    ----------
    n : int
        Number of nodes, of all workers.
    m : int
        Number of links, of all workers; of an undirected network, each counts once.
    directed : bool
    weighted : bool
    first : int
        The number of the first own node.
    own : int
        Number of own nodes.
    ids : ndarray, shape (own,)
        Ids of own nodes, integers or strings, ascending.
    offsets : ndarray of int64, shape (own + 1,)
        The links that leave own node ``v`` are at ``offsets[v]:offsets[v + 1]``; read-only.
    sources, targets : ndarray of uint32
        Ends of these links by number; computed on each call.
    weights : ndarray of float64 or None
        Beside `targets`; read-only.
    nbytes : int
        Memory that this worker holds for it: rows, ids, ghosts, and what was derived from them so far.
    """

    def __init__(
        self,
        comm: Any,
        firsts: NDArray[np.int64],
        outgoing: Block,
        ids: NDArray[Any] | None,
        *,
        directed: bool,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self._comm, self._firsts, self._ids = comm, firsts, ids
        self._forms: dict[str, Block] = {"outgoing": outgoing}
        self._whole: Callable[[], Network | None] = lambda: None
        self.n = int(firsts[-1])
        self.first = int(firsts[comm.rank])
        self.own = int(firsts[comm.rank + 1]) - self.first
        self.directed = directed
        self.attributes = {} if attributes is None else attributes
        rows = outgoing.rows
        cut = int(np.count_nonzero(rows.targets >= self.own))
        loops = int(np.count_nonzero(self._own_sources() == rows.targets))
        links, self._loops, cut = self._summed(rows.links, loops, cut)
        #: Links of all workers, both ways if undirected; and those between workers.
        self._links, self._cut = links, cut if directed else cut // 2
        self.m = links if directed else (links + self._loops) // 2

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        weighted = ", weights" if self.weighted else ""
        return (
            f"<tidemill.DistributedNetwork: {self.n:,} nodes, {self.m:,} links, {kind}{weighted}; of them here {self.own:,} nodes, "
            f"{self.nbytes / 1e6:.1f} MB>"
        )

    def __len__(self) -> int:
        return self.n

    def __reduce__(self) -> Any:
        raise TypeError("a distributed network stays on its workers: gather() makes one that can be sent")

    @property
    def comm(self) -> Any:
        """The communicator of its workers."""
        return self._comm

    @property
    def weighted(self) -> bool:
        """Whether links have weights."""
        return self.weights is not None

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of own nodes, (own,)."""
        return np.arange(self.first, self.first + self.own) if self._ids is None else self._ids

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the links of each own node begin, (own + 1,)."""
        return self._forms["outgoing"].rows.offsets

    @property
    def sources(self) -> NDArray[np.uint32]:
        """The node that each own link leaves; computed on each call."""
        found: NDArray[np.uint32] = self._own_sources() + np.uint32(self.first)
        return found

    @property
    def targets(self) -> NDArray[np.uint32]:
        """The node that each own link leads to; computed on each call."""
        block = self._forms["outgoing"]
        return self.columns(block)[block.rows.targets]

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The weight of each own link."""
        return self._forms["outgoing"].rows.weights

    @property
    def nbytes(self) -> int:
        """Memory of the rows, the ids, the ghosts and what was derived from them so far, in bytes."""
        blocks = {id(block): block.nbytes for block in self._forms.values()}
        return sum(blocks.values()) + (0 if self._ids is None else self._ids.nbytes)

    def _own_sources(self) -> NDArray[np.uint32]:
        return np.repeat(np.arange(self.own, dtype=np.uint32), np.diff(self.offsets))

    def columns(self, block: Block) -> NDArray[np.uint32]:
        """Return the number of the node of each column, (columns,)."""
        own = np.arange(self.first, self.first + self.own, dtype=np.uint32)
        return np.concatenate([own, block.ghosts])

    def _summed(self, *values: int) -> list[int]:
        every = [values] if self._comm.size == 1 else self._comm.allgather(values)
        return [sum(column) for column in zip(*every, strict=True)]

    # Nodes.

    def owner(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the worker of each node, by number."""
        return _owner(self._firsts, numbers)

    def ids_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the id of each node, by number. Collective."""
        return asked(
            self._comm, self.owner(numbers), numbers, lambda came: self.ids[came.astype(np.int64) - self.first]
        )

    def number(self, node: Any) -> int:
        """Return the number of an own node.

        Raises
        ------
        KeyError
            If this worker has no node with this id.
        """
        place = self._place(node)
        if place < 0:
            raise KeyError(f"this worker's share of the network has no node {node!r}; gather() collects all")
        return self.first + place

    def _place(self, node: Any) -> int:
        if self._ids is None:
            is_own = isinstance(node, int | np.integer) and self.first <= node < self.first + self.own
            return int(node) - self.first if is_own else -1
        if isinstance(node, str) != (self._ids.dtype.kind == "U") or not isinstance(node, str | int | np.integer):
            return -1
        place = int(np.searchsorted(self._ids, node))
        return place if place < self.own and self._ids[place] == node else -1

    def places(self, nodes: Iterable[Any]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return which of these nodes are own, and their places among these. Collective.

        Raises
        ------
        KeyError
            On every worker, for an id that no worker has.
        ValueError
            On every worker, if they name different nodes; the order is free, as that of a set is.
        """
        listed = list(nodes)
        found = np.array([self._place(node) for node in listed], np.int64)
        is_here = found >= 0
        mine = listed, is_here.tolist()
        every = [mine] if self._comm.size == 1 else self._comm.allgather(mine)
        if any(set(ids) != set(every[0][0]) for ids, _ in every):
            raise ValueError("the workers name different nodes: pass the same ids on every worker")
        known = {node for ids, are_here in every for node, is_own in zip(ids, are_here, strict=True) if is_own}
        for node in every[0][0]:
            if node not in known:
                raise KeyError(f"the network has no node {node!r}")
        return np.flatnonzero(is_here), found[is_here]

    def check_weights(self, what: str, finite: bool = False) -> None:
        """Check that no weight is negative, or infinite where `finite`. Collective.

        Raises
        ------
        ValueError
            On every worker, with the first link that is, by id.
        """
        bad: tuple[Any, int, float] | None = None
        if self.weights is not None:
            wrong = ~(self.weights >= 0)
            if finite:
                wrong |= np.isinf(self.weights)
            if wrong.any():
                block, at = self._forms["outgoing"], int(wrong.argmax())
                row = int(np.searchsorted(self.offsets, at, side="right")) - 1
                column = int(block.rows.targets[at])
                target = self.first + column if column < self.own else int(block.ghosts[column - self.own])
                bad = self.ids[row : row + 1].tolist()[0], target, float(self.weights[at])
        every = [bad] if self._comm.size == 1 else self._comm.allgather(bad)
        first = next((one for one in every if one is not None), None)
        if first is None:
            return
        source, number, weight = first
        here = self.ids[number - self.first : number - self.first + 1].tolist() if number >= self.first else []
        named = [here] if self._comm.size == 1 else self._comm.allgather(here)
        target_id = named[int(self.owner(np.array([number]))[0])][0]
        kind = f"{'finite and ' if finite else ''}not negative"
        raise ValueError(f"the link from {source!r} to {target_id!r} has weight {weight:g}; {what} are {kind}")

    # Forms: links by source, by target, or both. All are collective when they are first made.

    def outgoing(self, weighted: bool = True) -> Block:
        """Return the links by their source, without their weights if these shall not count."""
        whole = self._forms["outgoing"]
        if weighted or not self.weighted:
            return whole
        rows = whole.rows
        return self._form(
            "outgoing, plain",
            lambda: Block(CompressedRows(pool(), rows.offsets, rows.targets, None, rows.columns), whole.ghosts),
        )

    def incoming(self, weighted: bool = True) -> Block:
        """Return the links by their target. Collective."""
        if not self.directed:
            return self.outgoing(weighted)
        weighted = weighted and self.weighted

        def turned(piece: Piece) -> Piece:
            return piece[1], piece[0], piece[2] if weighted else None

        return self._form(f"incoming, {weighted}", lambda: self._dealt(turned, False))

    def both(self) -> Block:
        """Return every link in both directions, without loops and weights. Collective."""
        if not self.directed and not self._loops:
            return self.outgoing(False)

        return self._form("both", lambda: self._dealt(_without_loops, self.directed))

    def simple(self) -> Block:
        """Return links without weights, loops and parallels. Collective."""
        return self._form("simple", lambda: self._dealt(_without_loops, False, "first"))

    def _form(self, name: str, make: Callable[[], Block]) -> Block:
        if name not in self._forms:
            self._forms[name] = make()
        return self._forms[name]

    def _dealt(self, change: Callable[[Piece], Piece], symmetric: bool, duplicates: Duplicates = "keep") -> Block:
        """Deal own links anew, changed."""
        block = self._forms["outgoing"]
        rows, numbers, ends = block.rows, self.columns(block), block.ends()

        def piece(at: int) -> Piece:
            begin, end = ends[at : at + 2]
            links = slice(int(rows.offsets[begin]), int(rows.offsets[end]))
            sources = np.repeat(numbers[begin:end], np.diff(rows.offsets[begin : end + 1]))
            weights = None if rows.weights is None else rows.weights[links]
            return change((sources, numbers[rows.targets[links]], weights))

        return _dealt(self._comm, self._firsts, len(ends) - 1, piece, symmetric, duplicates)

    def part(self, block: Block, account: Account) -> Part:
        """Return this worker's part, for `_iterations`. Collective."""
        begin = time.perf_counter()
        nodes = np.arange(self.first, self.first + self.own, dtype=np.uint32)
        owner = self.owner(block.ghosts).astype(np.uint16)
        boundary = Boundary(self._comm, owner, nodes, block.ghosts, account)
        account.cut_links, account.ghosts = self._cut, len(block.ghosts)
        account.held_bytes = self.nbytes + boundary.nbytes
        account.partition_seconds = time.perf_counter() - begin
        return Part(self._comm, self.n, self._links, nodes, block.ghosts, owner, block.rows, boundary, account)

    # The whole.

    def gathered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all nodes from those of own ones, on each worker. Collective."""
        return all_gathered(self._comm, values)

    def gather(self) -> Network:
        """Return the whole network, on each worker. Collective.

        While a worker still has it from an earlier call, it is that one.

        Raises
        ------
        NetworkTooLargeError
            On every worker, if it is more than one of them may take.
        """
        comm, whole = self._comm, self._whole()
        if whole is not None if comm.size == 1 else all(comm.allgather(whole is not None)):
            assert whole is not None
            return whole
        trouble = None
        try:
            _memory.check_whole(self._links, self.n, self.weighted)
        except _memory.NetworkTooLargeError as error:
            trouble = error
        agree(comm, trouble)
        offsets = np.concatenate([[0], np.cumsum(all_gathered(comm, np.diff(self.offsets)))])
        targets = all_gathered(comm, self.targets)
        weights = None if self.weights is None else all_gathered(comm, self.weights)
        ids = None if self._ids is None else all_gathered(comm, self._ids)
        rows = CompressedRows(pool(), offsets, targets, weights, self.n)
        found = Network(rows, ids, directed=self.directed, attributes=dict(self.attributes))
        self._whole = weakref.ref(found)
        return found


#: What algorithms take.
AnyNetwork = Network | DistributedNetwork


def _without_loops(piece: Piece) -> Piece:
    """Return links without loops, and without weights."""
    apart = piece[0] != piece[1]
    return piece[0][apart], piece[1][apart], None


def _owner(firsts: NDArray[np.int64], numbers: NDArray[Any]) -> NDArray[np.int64]:
    # Of workers without nodes, the last begins where the next one with nodes does.
    return np.searchsorted(firsts[:-1], numbers, side="right") - 1


def components_of(network: DistributedNetwork, firsts: NDArray[Any], kind: type[Components], /, **more: Any) -> Any:
    """Return the result for the first node of each own node's component, numbered in the order of these. Collective."""
    comm: Any = network.comm
    is_first = firsts == np.arange(network.first, network.first + network.own)
    begun = int(is_first.sum())
    every = [begun] if comm.size == 1 else comm.allgather(begun)
    numbers = np.cumsum(is_first) - 1 + sum(every[: comm.rank])
    known, places, counts = np.unique(firsts, return_inverse=True, return_counts=True)
    owner = network.owner(known)
    found = asked(comm, owner, known, lambda came: numbers[came - network.first])
    (came, members), _ = to_owners(comm, owner, known, counts)
    sizes = np.zeros(network.own, np.int64)
    np.add.at(sizes, came - network.first, members)
    return kind(network, found[places], sum(every), sizes[is_first], **more)


# Making one.


def distributed(comm: Any, links: Links, *, directed: bool, duplicates: Duplicates) -> DistributedNetwork:
    """Return the network of all workers' links; each passes its own, by id, and has them no more afterwards. Collective.

    Ids are of the same dtype on all workers: int64, uint64, or text of one length.
    """
    sources, targets, weights = links.sources, links.targets, links.weights
    values = [sources, targets, *([] if links.nodes is None else [links.nodes])]
    # What is read is large, so nobody else keeps it.
    links.sources = links.targets = sources[:0].copy()
    links.weights = links.nodes = None
    bounds = _bounds(comm, values)
    mine = _distinct(values)
    ends = np.searchsorted(mine, bounds)
    counts = np.diff(np.concatenate([[0], ends, [len(mine)]]))
    owner = np.repeat(np.arange(comm.size), counts)
    told: list[Any] = []

    def numbered(came: NDArray[Any]) -> NDArray[np.uint32]:
        """Number the own nodes, now that all their ids are known; return those of ids that came."""
        ids = _distinct([came])
        every = [len(ids)] if comm.size == 1 else comm.allgather(len(ids))
        firsts = np.concatenate([[0], np.cumsum(every)])
        if firsts[-1] > NODES_MAX:
            raise ValueError(f"a network has at most {NODES_MAX:,} nodes, not {int(firsts[-1]):,}")
        told.extend([ids, firsts])
        found: NDArray[np.uint32] = _find(ids, came) + np.uint32(firsts[comm.rank])
        return found

    numbers = asked(comm, owner, mine, numbered)
    ids, firsts = told
    first = int(firsts[comm.rank])
    is_plain = ids.dtype.kind != "U" and (
        not len(ids) or (int(ids[0]) == first and int(ids[-1]) == first + len(ids) - 1)
    )
    if is_plain if comm.size == 1 else all(comm.allgather(is_plain)):
        ids = None
    # By number they take half the memory or less.
    del values
    sources = numbers[_find(mine, sources)]
    targets = numbers[_find(mine, targets)]
    del mine, numbers
    return of_numbers(
        comm,
        firsts,
        # One even without links, which says whether these would have weights.
        max(1, math.ceil(len(sources) / PIECE_LINKS)),
        lambda at: (
            sources[at * PIECE_LINKS : (at + 1) * PIECE_LINKS],
            targets[at * PIECE_LINKS : (at + 1) * PIECE_LINKS],
            None if weights is None else weights[at * PIECE_LINKS : (at + 1) * PIECE_LINKS],
        ),
        ids,
        directed=directed,
        duplicates=duplicates,
        attributes=links.attributes,
    )


def of_numbers(
    comm: Any,
    firsts: NDArray[np.int64],
    pieces: int,
    piece: Callable[[int], Piece],
    ids: NDArray[Any] | None,
    *,
    directed: bool,
    duplicates: Duplicates,
    attributes: dict[str, Any] | None = None,
) -> DistributedNetwork:
    """Return the network of links by number: `piece` makes so many `pieces` of them on this worker, one after the other. Collective.

    Parameters
    ----------
    firsts : ndarray of int64 (size + 1,)
        The number of each worker's first node, and that of nodes.
    ids : ndarray (own,) or None
        Of own nodes; None if they are the numbers, on all workers.
    """
    outgoing = _dealt(comm, firsts, pieces, piece, not directed, duplicates)
    return DistributedNetwork(comm, firsts, outgoing, ids, directed=directed, attributes=attributes)


def _dealt(
    comm: Any,
    firsts: NDArray[np.int64],
    pieces: int,
    piece: Callable[[int], Piece],
    symmetric: bool,
    duplicates: Duplicates,
) -> Block:
    """Send links to the owners of their sources, also turned if `symmetric`, and make rows of what comes. Collective.

    Links come in the order of workers and, from each, in its order.
    """
    rounds = pieces if comm.size == 1 else max(comm.allgather(pieces))
    received: list[list[list[NDArray[Any]]]] = [[] for _ in range(comm.size)]
    none = np.empty(0, np.uint32)
    weighted = False
    for at in range(rounds):
        sources, targets, weights = piece(at) if at < pieces else (none, none, None)
        columns: list[NDArray[Any]] = [sources, targets, *([] if weights is None else [weights])]
        if at == 0:
            # A worker without links knows nothing of weights.
            weighted = weights is not None if comm.size == 1 else any(comm.allgather(weights is not None))
        if weighted and weights is None:
            columns.append(np.empty(0))
        if symmetric:
            # Each link beside its reverse, which a loop does not have.
            kept = np.ones((len(sources), 2), bool)
            kept[:, 1] = sources != targets
            places = np.flatnonzero(kept)
            ends = np.stack([sources, targets], axis=1)
            more = [column[places // 2] for column in columns[2:]]
            columns = [ends.ravel()[places], ends[:, ::-1].ravel()[places], *more]
        came, coming = to_owners(comm, _owner(firsts, columns[0]), *columns)
        cuts = np.cumsum(coming)[:-1]
        for rank, part in enumerate(zip(*(np.split(column, cuts) for column in came), strict=True)):
            received[rank].append(list(part))
    every = [part for parts in received for part in parts]
    del received
    joined: list[NDArray[Any]] = []
    for _ in range(2 + weighted):
        column = [part.pop(0) for part in every]
        joined.append(np.concatenate([none, *column]) if len(joined) < 2 else np.concatenate([np.empty(0), *column]))
        del column
    first, n = int(firsts[comm.rank]), int(firsts[-1])
    joined[0] -= np.uint32(first)
    own, weights = int(firsts[comm.rank + 1]) - first, joined[2] if weighted else None
    return Block(*CompressedRows.of_block(pool(), joined[0], joined[1], weights, own, n, first, duplicates))


def _bounds(comm: Any, values: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the ids, ascending, from which on nodes belong to ranks 1, 2, ...: each gets about equally many `values`."""
    drawn = [value[:: max(1, len(value) // _SAMPLES)] for value in values]
    shares = [np.full(len(some), len(value) / max(1, len(some))) for some, value in zip(drawn, values, strict=True)]
    mine = np.concatenate(drawn), np.concatenate(shares)
    every = [mine] if comm.size == 1 else comm.allgather(mine)
    ids, weights = (np.concatenate(column) for column in zip(*every, strict=True))
    if not len(ids):
        return np.zeros(comm.size - 1, values[0].dtype)
    order = np.argsort(ids, kind="stable")
    steps = np.cumsum(weights[order])
    at = np.searchsorted(steps, steps[-1] * np.arange(1, comm.size) / comm.size)
    found: NDArray[Any] = ids[order][np.minimum(at, len(ids) - 1)]
    return found


def _distinct(values: list[NDArray[Any]]) -> NDArray[Any]:
    if values[0].dtype.kind == "U":
        return np.unique(np.concatenate(values))
    return network_ids(pool(), *values)


def _find(ids: NDArray[Any], values: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the place of each value among ascending ids, which have it."""
    if ids.dtype.kind == "U":
        return np.searchsorted(ids, values).astype(np.uint32)
    return network_find(pool(), ids, values)
