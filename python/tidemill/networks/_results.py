"""Results of algorithms: arrays by node number, which you can also use by id, or as tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemill.dataset import Table
from tidemill.networks._network import Network

if TYPE_CHECKING:
    from tidemill.networks._distributed import AnyNetwork

__all__ = ["Account", "Communities", "Components", "Cores", "Flow", "Forest", "NodeValues", "Paths", "Scores", "Search"]

Result = TypeVar("Result", bound="NodeValues")
Parted = TypeVar("Parted", bound="Components")


@dataclass
class Account:
    """What a computation on several workers did; on this worker, unless it says otherwise.

    Attributes
    ----------
    sync : {"global", "partial", "async"}
        What was done; ``"auto"`` becomes one of them.
    local_sweeps : int or None
        Sweeps over a worker's part between two exchanges; None for as many as change something.
    rounds : int
        Exchanges of boundary values, the same on all workers; with ``"async"``, rounds of this worker.
    sweeps : float
        Sweeps over the links of this worker: links looked at, divided by their number.
    bytes_sent : int
        Boundary values sent to other workers.
    host_rounds, host_bytes_sent : int
        Exchanges among the workers of one host alone, with ``host_rounds=``; not part of the two above.
    exchange_seconds, compute_seconds, partition_seconds, gather_seconds : float
        The last is the time for giving all workers the whole result.
    cut_links : int
        Links between nodes of different workers.
    ghosts : int
        Nodes of other workers whose values this worker has.
    held_bytes : int
        Memory of the links, ids and exchanges that this worker needs for it.
    tries : dict of int to float
        With ``sync="auto"``: digits of error removed per second, for each number of local sweeps that was tried (0 is
        global).
    """

    sync: str
    local_sweeps: int | None = 0
    rounds: int = 0
    sweeps: float = 0.0
    bytes_sent: int = 0
    host_rounds: int = 0
    host_bytes_sent: int = 0
    exchange_seconds: float = 0.0
    compute_seconds: float = 0.0
    partition_seconds: float = 0.0
    gather_seconds: float = 0.0
    cut_links: int = 0
    ghosts: int = 0
    held_bytes: int = 0
    tries: dict[int, float] = field(default_factory=dict)


@dataclass(repr=False)
class NodeValues:
    """A value for each node; for a `DistributedNetwork`, for each of this worker's own nodes, until you `gather` it.

    Attributes
    ----------
    network : Network or DistributedNetwork
    values : ndarray, shape (n,)
        In the order of ``network.ids``; ``numpy.asarray(result)`` is the same.
    account : Account or None
        For a computation on several workers.
    """

    network: AnyNetwork
    values: NDArray[Any]
    account: Account | None = field(default=None, kw_only=True)

    #: The column of `to_table`.
    _column: ClassVar[str] = "value"
    #: Fields that `gather` collects.
    _arrays: ClassVar[tuple[str, ...]] = ("values",)

    def __repr__(self) -> str:
        shown = np.array2string(self.values, threshold=8, edgeitems=3, precision=6)
        return f"<{type(self).__name__} of {len(self):,} nodes: {shown}>"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, node: Any) -> Any:
        """Return the value of a node, by its id."""
        network = self.network
        return self.values[network.number(node) if isinstance(network, Network) else network.place(node)].item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return pairs of id and value."""
        return zip(self.network.ids.tolist(), self.values.tolist(), strict=True)

    def to_dict(self) -> dict[Any, Any]:
        """Return the values by id."""
        return dict(self.items())

    def to_table(self) -> Table:
        """Return a table with a column ``node``, and one for the values that is named after the result.

        `tidemill.from_arrow` makes a DataSet of it; for a distributed network, `tidemill.from_local`. Ids that are neither
        integers nor strings become text.
        """
        return Table.from_numpy({"node": _plain(self.network.ids), self._column: self.values})

    def gather(self: Result) -> Result:
        """Return the result for all nodes, and the whole network, on each worker. Collective if the network is distributed.

        Raises
        ------
        NetworkTooLargeError
            On every worker, if that is more than one of them may take.
        """
        network = self.network
        if isinstance(network, Network):
            return self
        whole = network.gather()
        arrays: dict[str, Any] = {name: network.gathered(getattr(self, name)) for name in self._arrays}
        return replace(self, network=whole, **arrays)


def _plain(ids: NDArray[Any]) -> NDArray[Any]:
    if ids.dtype != object or all(isinstance(node, str) for node in ids):
        return ids
    return np.array([str(node) for node in ids], object)


@dataclass(repr=False)
class Scores(NodeValues):
    """A score for each node, float64.

    Attributes
    ----------
    iterations : int
        Number of iterations.
    change : float
        The sum over all nodes of the changes in the last iteration.
    converged : bool
        Whether it reached its tolerance.
    """

    iterations: int = 0
    change: float = 0.0
    converged: bool = True
    _column: ClassVar[str] = "score"

    def top(self, count: int = 10) -> list[tuple[Any, float]]:
        """Return the nodes with the highest scores, by id; of equal scores, the first nodes. Collective if the network is distributed."""
        at = np.argsort(-self.values, kind="stable")[:count]
        best = list(zip(self.network.ids[at].tolist(), self.values[at].tolist(), strict=True))
        if not isinstance(self.network, Network):
            numbered = list(zip(best, self.network.nodes[at].tolist(), strict=True))
            every = itertools.chain.from_iterable(self.network.comm.allgather(numbered))
            best = [one for one, _ in sorted(every, key=lambda pair: (-pair[0][1], pair[1]))[:count]]
        return best


@dataclass(repr=False)
class _Tree(NodeValues):
    """Values with the node from which each was reached.

    Attributes
    ----------
    parents : ndarray of int64, shape (n,)
        By number; -1 where not reached, and a source is its own.
    """

    parents: NDArray[np.int64]
    _arrays: ClassVar[tuple[str, ...]] = ("values", "parents")

    def path_to(self, node: Any) -> list[Any]:
        """Return the ids on a shortest path from a source to `node`.

        Raises
        ------
        ValueError
            If it was not reached, or other workers have parts of the paths: `gather` them first.
        """
        if not isinstance(self.network, Network):
            raise ValueError("each worker has a part of the paths: call gather() on every worker, and ask its result")
        at = self.network.number(node)
        if self.parents[at] < 0:
            raise ValueError(f"node {node!r} was not reached from the source")
        path = [at]
        while self.parents[at] != at:
            at = int(self.parents[at])
            path.append(at)
        return list(self.network.ids[path[::-1]].tolist())

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Which nodes were reached, (n,)."""
        found: NDArray[np.bool_] = self.parents >= 0
        return found


@dataclass(repr=False)
class Search(_Tree):
    """Levels of a breadth-first search, int32: number of links from the source; -1 for nodes that are not reached."""

    _column: ClassVar[str] = "level"


@dataclass(repr=False)
class Paths(_Tree):
    """Distances from the nearest source, float64; infinite for nodes that are not reached."""

    _column: ClassVar[str] = "distance"


@dataclass(repr=False)
class Components(NodeValues):
    """The number of each node's component, int64, from 0 in the order of their first nodes.

    Attributes
    ----------
    count : int
    sizes : ndarray of int64, shape (count,)
        For a distributed network, of the components whose first node is this worker's.
    """

    count: int
    sizes: NDArray[np.int64]
    _column: ClassVar[str] = "component"

    @classmethod
    def of(cls, network: AnyNetwork, labels: NDArray[Any], /, **more: Any) -> Any:
        """Return the result for any labels, numbered anew in the order of their first nodes."""
        nodes = np.arange(len(labels))
        if ((labels >= 0) & (labels <= nodes)).all() and (labels[labels] == labels).all():
            # Each is the first node of its component: no need to sort.
            is_first = labels == nodes
            values = (np.cumsum(is_first) - 1)[labels]
            count = int(is_first.sum())
            return cls(network, values, count, np.bincount(values, minlength=count), **more)
        _, firsts, places = np.unique(labels, return_index=True, return_inverse=True)
        order = np.empty(len(firsts), np.int64)
        order[np.argsort(firsts, kind="stable")] = np.arange(len(firsts))
        values = order[places]
        return cls(network, values, len(firsts), np.bincount(values, minlength=len(firsts)), **more)

    def gather(self: Parted) -> Parted:
        """Return the result for all nodes, and the whole network, on each worker; see `NodeValues.gather`."""
        found = super().gather()
        if found is not self:
            found.sizes = np.bincount(found.values, minlength=found.count)
        return found

    def members(self, component: int) -> NDArray[Any]:
        """Return the ids of the nodes of a component."""
        found: NDArray[Any] = self.network.ids[self.values == component]
        return found

    def sets(self) -> list[set[Any]]:
        """Return the ids of each component, as networkx does; for a distributed network, of those that are this worker's."""
        order = np.argsort(self.values, kind="stable")
        ids, values = self.network.ids[order].tolist(), self.values[order]
        begins = np.flatnonzero(np.diff(values, prepend=-1)).tolist()
        return [set(ids[begin:end]) for begin, end in itertools.pairwise([*begins, len(ids)])]


@dataclass(repr=False)
class Communities(Components):
    """The number of each node's community, as in `Components`.

    Attributes
    ----------
    modularity : float
    iterations : int
        Rounds of label propagation, or levels of Louvain.
    labels : ndarray of int64, shape (n,), or None
        After label propagation, the label of each node: the number of the node that had it first, so that
        ``network.ids[labels]`` are ids, unless labels were passed.
    """

    modularity: float = 0.0
    iterations: int = 0
    labels: NDArray[np.int64] | None = None
    _arrays: ClassVar[tuple[str, ...]] = ("values", "labels")
    _column: ClassVar[str] = "community"


@dataclass(repr=False)
class Cores(NodeValues):
    """Core numbers, int64."""

    _column: ClassVar[str] = "core"


@dataclass
class Forest:
    """The links of a spanning forest; for a `DistributedNetwork`, those from this worker's own nodes to larger ones.

    Attributes
    ----------
    network : Network or DistributedNetwork
    sources, targets : ndarray of uint32, shape (k,)
        The ends of the links, by number of the node.
    weights : ndarray of float64, shape (k,)
        Ones if the network has none.
    total : float
        The sum of all weights.
    account : Account or None
        For a computation on several workers.
    """

    network: AnyNetwork = field(repr=False)
    sources: NDArray[np.uint32]
    targets: NDArray[np.uint32]
    weights: NDArray[np.float64]
    total: float
    account: Account | None = field(default=None, kw_only=True, repr=False)

    def __len__(self) -> int:
        return len(self.sources)

    def links(self) -> list[tuple[Any, Any, float]]:
        """Return the links by id, with their weights. Collective if the network is distributed."""
        ends = (self.network.ids_of(side).tolist() for side in (self.sources, self.targets))
        return list(zip(*ends, self.weights.tolist(), strict=True))

    def to_table(self) -> Table:
        """Return a table with the columns ``source``, ``target`` and ``weight``. Collective if the network is distributed."""
        sources, targets = (_plain(self.network.ids_of(side)) for side in (self.sources, self.targets))
        return Table.from_numpy({"source": sources, "target": targets, "weight": self.weights})


@dataclass(repr=False)
class Flow:
    """A maximum flow, and a minimum cut.

    Attributes
    ----------
    value : float
    flows : ndarray of float64
        In the order of ``network.targets``: the flow over each link, at most its capacity. In an undirected network,
        one direction of a link has the net flow.
    source_side : ndarray of bool, shape (n,)
        The nodes that the source still reaches: the links that leave them are a minimum cut.
    """

    network: Network
    value: float
    flows: NDArray[np.float64]
    source_side: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"<Flow of {self.value:g}, {int(self.source_side.sum()):,} of {self.network.n:,} nodes on the side of the source>"

    def cut(self) -> list[tuple[Any, Any]]:
        """Return the links of the minimum cut, by id."""
        net = self.network
        sources = net.sources
        at = np.flatnonzero(self.source_side[sources] & ~self.source_side[net.targets])
        return list(zip(net.ids[sources[at]].tolist(), net.ids[net.targets[at]].tolist(), strict=True))

    def to_table(self) -> Table:
        """Return a table of the links with flow: ``source``, ``target`` and ``flow``."""
        at = np.flatnonzero(self.flows)
        ids = _plain(self.network.ids)
        ends = ids[self.network.sources[at]], ids[self.network.targets[at]]
        return Table.from_numpy({"source": ends[0], "target": ends[1], "flow": self.flows[at]})
