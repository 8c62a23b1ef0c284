"""`DistributedNetwork`: a network of which each worker has a share, and how links of any workers become one.

Nodes are dealt in blocks: ids are sorted over all workers, by ranges that samples of the links' ends find, so that each has about
equally many links. So a node has the same number as in a `Network` of the same links, and each worker has a run of numbers. A partition
may deal them anew, with their numbers; see `_owners`. A worker has the links that leave its own nodes.

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
from tidemill.networks._owners import Blocks, Owners, Parts
from tidemill.networks._partition import Partition
from tidemill.networks._results import Account, Components
from tidemill.networks._spans import spans
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

    Nodes have numbers from 0 to ``n - 1``, in ascending order of their ids; each worker owns a run of them, or what
    ``read(..., partition=)`` gives it, and has the links that leave these nodes. Arrays are of this worker's own nodes, and so
    are results, whose ``gather()`` collects them.

    `pagerank`, `shortest_paths`, `bfs`, `connected_components`, `strong_components`, `label_propagation`, `core_numbers`,
    `clustering`, `betweenness` without weights, and for undirected networks `minimum_spanning_forest` and `triangles` compute on it
    where it is. Other functions gather it first, so that each worker needs memory for the whole network. All of them are collective.

    Attributes
    ----------
    n : int
        Number of nodes, of all workers.
    m : int
        Number of links, of all workers; of an undirected network, each counts once.
    directed : bool
    weighted : bool
    first : int
        The number of the first own node, if they are a run.
    nodes : ndarray of uint32, shape (own,)
        The numbers of own nodes, ascending.
    own : int
        Number of own nodes.
    partition : Partition
        How nodes are dealt: the method, the links between workers, the balance, and the seconds it took. Its ``parts`` are those
        of own nodes, which are all this worker's.
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
        owners: Owners,
        outgoing: Block,
        ids: NDArray[Any] | None,
        *,
        directed: bool,
        attributes: dict[str, Any] | None = None,
        method: str = "blocks",
        seconds: float = 0.0,
    ) -> None:
        self._comm, self._owners, self._ids = comm, owners, ids
        self._forms: dict[str, Block] = {"outgoing": outgoing}
        self._whole: Callable[[], Network | None] = lambda: None
        self.n, self.own = owners.n, owners.own
        self.directed = directed
        self.attributes = {} if attributes is None else attributes
        rows = outgoing.rows
        cut = int(np.count_nonzero(rows.targets >= self.own))
        loops = int(np.count_nonzero(self._own_sources() == rows.targets))
        links, self._loops, cut = self._summed(rows.links, loops, cut)
        #: Links of all workers, both ways if undirected; and those between workers.
        self._links, self._cut = links, cut if directed else cut // 2
        self.m = links if directed else (links + self._loops) // 2
        largest = self.own if comm.size == 1 else max(comm.allgather(self.own))
        balance = largest * comm.size / self.n if self.n else 1.0
        parts = np.broadcast_to(np.uint32(comm.rank), self.own)
        self.partition = Partition(parts, comm.size, method, self._cut, balance, seconds)

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
    def first(self) -> int:
        """The number of the first own node; of a network that is not in blocks, an error."""
        if not isinstance(self._owners, Blocks):
            raise ValueError(f"with partition={self.partition.method!r}, own nodes are not a run of numbers: see nodes")
        return self._owners.first

    @property
    def nodes(self) -> NDArray[np.uint32]:
        """The numbers of own nodes, ascending, (own,)."""
        return self._owners.nodes

    @property
    def weighted(self) -> bool:
        """Whether links have weights."""
        return self.weights is not None

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of own nodes, (own,)."""
        return self.nodes.astype(np.int64) if self._ids is None else self._ids

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the links of each own node begin, (own + 1,)."""
        return self._forms["outgoing"].rows.offsets

    @property
    def sources(self) -> NDArray[np.uint32]:
        """The node that each own link leaves; computed on each call."""
        return self.nodes[self._own_sources()]

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
        return sum(blocks.values()) + (0 if self._ids is None else self._ids.nbytes) + self._owners.nbytes

    def _own_sources(self) -> NDArray[np.uint32]:
        return np.repeat(np.arange(self.own, dtype=np.uint32), np.diff(self.offsets))

    def columns(self, block: Block) -> NDArray[np.uint32]:
        """Return the number of the node of each column, (columns,)."""
        return np.concatenate([self.nodes, block.ghosts])

    def _summed(self, *values: int) -> list[int]:
        every = [values] if self._comm.size == 1 else self._comm.allgather(values)
        return [sum(column) for column in zip(*every, strict=True)]

    # Nodes.

    def owner(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the worker of each node, by number. Collective."""
        return self._owners.owner(numbers)

    def places_of(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of own nodes among these, by number."""
        return self._owners.places(numbers)

    def ids_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the id of each node, by number. Collective."""
        return asked(self._comm, self.owner(numbers), numbers, lambda came: self.ids[self.places_of(came)])

    def number(self, node: Any) -> int:
        """Return the number of an own node.

        Raises
        ------
        KeyError
            If this worker has no node with this id.
        """
        return int(self.nodes[self.place(node)])

    def place(self, node: Any) -> int:
        """Return the place of an own node among these.

        Raises
        ------
        KeyError
            If this worker has no node with this id.
        """
        place = self._place(node)
        if place < 0:
            raise KeyError(f"this worker's share of the network has no node {node!r}; gather() collects all")
        return place

    def _place(self, node: Any) -> int:
        if self._ids is None:
            if not isinstance(node, int | np.integer) or not 0 <= node < self.n:
                return -1
            return self._owners.find(int(node))
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
        bad: tuple[int, Any, int, float] | None = None
        if self.weights is not None:
            wrong = ~(self.weights >= 0)
            if finite:
                wrong |= np.isinf(self.weights)
            if wrong.any():
                block, at = self._forms["outgoing"], int(wrong.argmax())
                row = int(np.searchsorted(self.offsets, at, side="right")) - 1
                target = int(self.columns(block)[block.rows.targets[at]])
                bad = int(self.nodes[row]), self.ids[row : row + 1].tolist()[0], target, float(self.weights[at])
        every = [bad] if self._comm.size == 1 else self._comm.allgather(bad)
        first = min((one for one in every if one is not None), key=lambda one: one[0], default=None)
        if first is None:
            return
        _, source, number, weight = first
        (target_id,) = self.ids_of(np.array([number])).tolist()
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

    def simple_incoming(self) -> Block:
        """Return the links of `simple` by their target. Collective."""
        if not self.directed:
            return self.simple()
        return self._form(
            "simple, incoming", lambda: self._dealt(lambda piece: (piece[1], piece[0], None), False, of=self.simple())
        )

    def intensities(self) -> Block:
        """Return simple links with the cube roots of their shares of the largest weight, the least of parallels. Collective.

        Raises
        ------
        ValueError
            On every worker, if a weight is negative or not finite, or all are 0.
        """

        def made() -> Block:
            self.check_weights("weights of clustering", finite=True)
            assert self.weights is not None
            mine = float(self.weights.max(initial=0.0))
            largest = mine if self._comm.size == 1 else max(self._comm.allgather(mine))
            if largest == 0:
                raise ValueError("all weights are 0, but clustering divides weights by the largest one")

            def shares(piece: Piece) -> Piece:
                sources, targets, weights = piece
                assert weights is not None
                apart = sources != targets
                return sources[apart], targets[apart], np.cbrt(weights[apart] / largest)

            return self._dealt(shares, False, "min")

        return self._form("intensities", made)

    def around(self, weighted: bool) -> Block:
        """Return links of both directions as one, with the sum of their weights, or 1 or 2: `intensities` or `simple`. Collective."""

        def counted(piece: Piece) -> Piece:
            sources, targets, weights = piece
            return sources, targets, np.ones(len(sources)) if weights is None else weights

        of = self.intensities() if weighted else self.simple()
        return self._form(f"around, {weighted}", lambda: self._dealt(counted, True, "sum", of))

    def _dealt(
        self,
        change: Callable[[Piece], Piece],
        symmetric: bool,
        duplicates: Duplicates = "keep",
        of: Block | None = None,
        owners: Owners | None = None,
    ) -> Block:
        """Deal own links anew, or those of another block, changed, perhaps to other owners."""
        block = self._forms["outgoing"] if of is None else of
        rows, numbers, ends = block.rows, self.columns(block), block.ends()
        # One piece even without links, which says whether these would have weights.
        ends = ends if len(ends) > 1 else [0, self.own]

        def piece(at: int) -> Piece:
            begin, end = ends[at : at + 2]
            links = slice(int(rows.offsets[begin]), int(rows.offsets[end]))
            sources = np.repeat(numbers[begin:end], np.diff(rows.offsets[begin : end + 1]))
            weights = None if rows.weights is None else rows.weights[links]
            return change((sources, numbers[rows.targets[links]], weights))

        return _dealt(self._comm, owners or self._owners, len(ends) - 1, piece, symmetric, duplicates)

    def part(self, block: Block, account: Account) -> Part:
        """Return this worker's part, for `_iterations`. Collective."""
        begin = time.perf_counter()
        nodes = self.nodes
        owner = self.owner(block.ghosts).astype(np.uint16)
        boundary = Boundary(self._comm, owner, nodes, block.ghosts, account)
        account.cut_links, account.ghosts = self._cut, len(block.ghosts)
        account.held_bytes = self.nbytes + boundary.nbytes
        account.partition_seconds = time.perf_counter() - begin
        return Part(self._comm, self.n, self._links, nodes, block.ghosts, owner, block.rows, boundary, account)

    def ordered(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Number some own nodes, ascending, over all workers in the order of their numbers; also return how many there are. Collective."""
        return self._owners.ordered(nodes)

    def redistributed(self, parts: NDArray[Any], method: str, begin: float) -> DistributedNetwork:
        """Return the same network in which each own node, now in blocks, belongs to the worker that `parts` names. Collective."""
        comm, homes = self._comm, self._owners
        assert isinstance(homes, Blocks), "nodes are dealt anew from blocks"
        owners = Parts(comm, homes, parts)
        ids = None if self._ids is None else to_owners(comm, parts, self._ids)[0][0]
        outgoing = self._dealt(lambda piece: piece, False, owners=owners)
        return DistributedNetwork(
            comm,
            owners,
            outgoing,
            ids,
            directed=self.directed,
            attributes=self.attributes,
            method=method,
            seconds=time.perf_counter() - begin,
        )

    def in_blocks(self) -> DistributedNetwork:
        """Return the same network with own nodes as runs of numbers: this one, if that is what it has. Collective."""
        if isinstance(self._owners, Blocks):
            return self
        comm, homes, ids = self._comm, self._owners.homes, None
        if self._ids is not None:
            (nodes, ids), _ = to_owners(comm, homes.owner(self.nodes), self.nodes, self._ids)
            ids = ids[np.argsort(nodes)]
        outgoing = self._dealt(lambda piece: piece, False, owners=homes)
        return DistributedNetwork(comm, homes, outgoing, ids, directed=self.directed, attributes=self.attributes)

    def from_blocks(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of own nodes from those of `in_blocks`. Collective."""
        if isinstance(self._owners, Blocks):
            return values
        homes = self._owners.homes
        return asked(self._comm, homes.owner(self.nodes), self.nodes, lambda came: values[homes.places(came)])

    # The whole.

    def gathered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of all nodes from those of own ones, on each worker. Collective."""
        found = all_gathered(self._comm, values)
        return found if isinstance(self._owners, Blocks) else found[self._order()]

    def _order(self) -> NDArray[np.intp]:
        """Return where each node is among the own nodes of all workers, one worker's after the other's. Collective."""
        return np.argsort(all_gathered(self._comm, self.nodes))

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
        if not isinstance(self._owners, Blocks):
            order = self._order()
            links = spans(offsets[order], offsets[order + 1])
            offsets = np.concatenate([[0], np.cumsum(np.diff(offsets)[order])])
            targets, weights = targets[links], None if weights is None else weights[links]
            ids = None if ids is None else ids[order]
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


def components_of(network: DistributedNetwork, firsts: NDArray[Any], kind: type[Components], /, **more: Any) -> Any:
    """Return the result for the first node of each own node's component, numbered in the order of these. Collective."""
    comm: Any = network.comm
    starts = network.nodes[firsts == network.nodes].astype(np.int64)
    numbers, count = network.ordered(starts)
    known, places, counts = np.unique(firsts, return_inverse=True, return_counts=True)
    owner = network.owner(known)
    found = asked(comm, owner, known, lambda came: numbers[np.searchsorted(starts, came)])
    (came, members), _ = to_owners(comm, owner, known, counts)
    sizes = np.zeros(len(starts), np.int64)
    np.add.at(sizes, np.searchsorted(starts, came), members)
    return kind(network, found[places], count, sizes, **more)


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
    owners = Blocks(comm, firsts)
    outgoing = _dealt(comm, owners, pieces, piece, not directed, duplicates)
    return DistributedNetwork(comm, owners, outgoing, ids, directed=directed, attributes=attributes)


def _dealt(
    comm: Any,
    owners: Owners,
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
        came, coming = to_owners(comm, owners.owner(columns[0]), *columns)
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
    sources, targets, weights = joined[0], joined[1], joined[2] if weighted else None
    sources = owners.places(sources).astype(np.uint32)
    if isinstance(owners, Blocks):
        return Block(
            *CompressedRows.of_block(pool(), sources, targets, weights, owners.own, owners.n, owners.first, duplicates)
        )
    rows = CompressedRows.of_links(pool(), sources, targets, weights, owners.own, owners.n, duplicates)
    del joined, sources, targets
    # Links stay in the order of their targets' numbers; only their columns are those of this worker.
    nodes, ends = owners.nodes, rows.targets
    ghosts = np.setdiff1d(network_ids(pool(), ends.astype(np.int64)).astype(np.uint32), nodes, assume_unique=True)
    known = np.concatenate([nodes, ghosts])
    order = np.argsort(known)
    places = order[network_find(pool(), known[order].astype(np.int64), ends.astype(np.int64))]
    return Block(CompressedRows(pool(), rows.offsets, places.astype(np.uint32), rows.weights, len(known)), ghosts)


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
