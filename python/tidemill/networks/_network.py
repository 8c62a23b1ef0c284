"""`Network`: nodes and links as compressed rows, with the ids that their source gave the nodes.

A network is immutable. An undirected one holds each link in both directions (a loop once), so that its rows are its
columns. What algorithms need besides the rows, such as the transpose, is made on first use and kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill._needs import needed
from tidemill._tidemill import CompressedRows, network_find, network_ids
from tidemill.ml._threads import pool

if TYPE_CHECKING:
    import networkx
    import scipy.sparse

__all__ = ["NODES_MAX", "Duplicates", "Network", "built", "check_options", "numbered", "objects"]

#: Nodes are numbered by 32 bits, and the last number means "none".
NODES_MAX = 2**32 - 1

Duplicates = Literal["first", "sum", "min", "max", "keep"]


class Network:
    """Nodes and links, directed or not, with or without weights. Made by `read`.

    Nodes have numbers from 0 to ``n - 1``, and ids from the source. All functions take nodes by id; arrays of results
    are in the order of the numbers.

    You can pass a network to networkx's functions that Tidemill's backend implements: ``nx.pagerank(net)``.

    Attributes
    ----------
    n : int
        Number of nodes.
    m : int
        Number of links; of an undirected network, each counts once.
    directed : bool
    first : int
        0: the number of the first node that is here, as of a `DistributedNetwork`.
    offsets : ndarray of int64, shape (n + 1,)
        The links that leave node ``v`` are at ``offsets[v]:offsets[v + 1]``; read-only, like the other arrays.
    targets : ndarray of uint32
        The node that each link leads to, in ascending order for each source.
    weights : ndarray of float64 or None
        Beside `targets`.
    ids : ndarray, shape (n,)
        Of integers, strings or objects.
    nbytes : int
        Memory of the rows, the ids and what was derived from them so far.
    coordinates : ndarray of float64, shape (n, 2), or None
    attributes : dict
        Other information from the source, such as ``source`` and ``sink`` of a flow problem.
    """

    #: By which networkx knows whose object this is.
    __networkx_backend__ = "tidemill"
    first = 0

    def __init__(
        self,
        rows: CompressedRows,
        ids: NDArray[Any] | None = None,
        *,
        directed: bool = True,
        coordinates: NDArray[np.float64] | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self._ids = ids
        self._forms: dict[str, Any] = {"outgoing": rows}
        self._numbers: dict[Hashable, int] | None = None
        self.n = rows.rows
        self.directed = directed
        self.coordinates = coordinates
        self.attributes = {} if attributes is None else attributes

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        weighted = ", weights" if self.weighted else ""
        return f"<tidemill.Network: {self.n:,} nodes, {self.m:,} links, {kind}{weighted}, {self.nbytes / 1e6:.1f} MB>"

    def __len__(self) -> int:
        return self.n

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (
            self.offsets,
            self.targets,
            self.weights,
            self._ids,
            self.directed,
            self.coordinates,
            self.attributes,
        )

    # Without it, `in` would count through the nodes.
    def __contains__(self, node: object) -> bool:
        try:
            self.number(node)
        except (KeyError, TypeError):
            return False
        return True

    @property
    def m(self) -> int:
        """Number of links; of an undirected network, each counts once."""
        links = self.rows.links
        return links if self.directed else (links + self.loops) // 2

    @property
    def loops(self) -> int:
        """Number of links that lead from a node to itself."""
        return int(self.form("loops", lambda: np.count_nonzero(self.sources == self.targets)))

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the links of each node begin, (n + 1,)."""
        return self.rows.offsets

    @property
    def targets(self) -> NDArray[np.uint32]:
        """The node that each link leads to."""
        return self.rows.targets

    @property
    def sources(self) -> NDArray[np.uint32]:
        """The node that each link leaves; computed on each call."""
        return np.repeat(np.arange(self.n, dtype=np.uint32), np.diff(self.offsets))

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The weight of each link."""
        return self.rows.weights

    @property
    def weighted(self) -> bool:
        """Whether links have weights."""
        return self.rows.weights is not None

    @property
    def ids(self) -> NDArray[Any]:
        """The ids of all nodes, (n,)."""
        if self._ids is None:
            self._ids = np.arange(self.n)
        return self._ids

    @property
    def nbytes(self) -> int:
        """Memory of the rows, the ids and what was derived from them so far, in bytes."""
        rows = {id(form): form.nbytes for form in self._forms.values() if isinstance(form, CompressedRows)}
        return sum(rows.values()) + (0 if self._ids is None else self._ids.nbytes)

    # Nodes.

    @property
    def fingerprint(self) -> int:
        """A checksum of the links, by which workers find out whether they have the same."""

        def checksum() -> int:
            found = zlib.crc32(self.offsets.data, int(self.directed))
            found = zlib.crc32(self.targets.data, found)
            return found if self.weights is None else zlib.crc32(self.weights.data, found)

        return int(self.form("fingerprint", checksum))

    def ids_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the id of each node, by number."""
        found: NDArray[Any] = self.ids[numbers]
        return found

    def number(self, node: Any) -> int:
        """Return the number of a node.

        Raises
        ------
        KeyError
            If no node has this id.
        """
        if self._ids is None:
            if isinstance(node, int | np.integer) and 0 <= node < self.n:
                return int(node)
        else:
            if self._numbers is None:
                self._numbers = {value: at for at, value in enumerate(self._ids.tolist())}
            if (found := self._numbers.get(node)) is not None:
                return found
        raise KeyError(f"the network has no node {node!r}")

    def numbers(self, nodes: Iterable[Any]) -> NDArray[np.uint32]:
        """Return the numbers of several nodes, (k,) uint32; see `number`."""
        return np.fromiter((self.number(node) for node in nodes), dtype=np.uint32)

    def check_weights(self, what: str, finite: bool = False, positive: bool = False) -> None:
        """Check that no weight is negative, or infinite where `finite`, or 0 where `positive`.

        Raises
        ------
        ValueError
            With the first link that is, by id.
        """
        if self.weights is None:
            return
        wrong = ~(self.weights >= 0)
        if finite:
            wrong |= np.isinf(self.weights)
        if positive:
            wrong |= self.weights == 0
        if wrong.any():
            at = int(wrong.argmax())
            row = int(np.searchsorted(self.offsets, at, side="right")) - 1
            ends = self.ids[[row, self.targets[at]]].tolist()
            kind = f"{'finite and ' if finite else ''}{'above 0' if positive else 'not negative'}"
            raise ValueError(
                f"the link from {ends[0]!r} to {ends[1]!r} has weight {self.weights[at]:g}; {what} are {kind}"
            )

    # Forms: what algorithms need. Those of rows are `CompressedRows`.

    def form(self, name: str, make: Callable[[], Any]) -> Any:
        """Return something derived from this network, made on first use."""
        if name not in self._forms:
            self._forms[name] = make()
        return self._forms[name]

    @property
    def rows(self) -> CompressedRows:
        """The links by their source."""
        found: CompressedRows = self._forms["outgoing"]
        return found

    def outgoing(self, weighted: bool = True) -> CompressedRows:
        """Return the links by their source, without their weights if these shall not count."""
        if weighted or not self.weighted:
            return self.rows
        found: CompressedRows = self.form(
            "outgoing, plain", lambda: CompressedRows(pool(), self.offsets, self.targets, None, self.n)
        )
        return found

    def incoming(self, weighted: bool = True) -> CompressedRows:
        """Return the links by their target."""
        if not self.directed:
            return self.outgoing(weighted)
        plain = "" if weighted or not self.weighted else ", plain"
        found: CompressedRows = self.form(f"incoming{plain}", lambda: self.outgoing(weighted).transpose(pool()))
        return found

    def both(self, weighted: bool = False) -> CompressedRows:
        """Return every link in both directions, without loops; parallel and reciprocal links stay apart."""
        plain = "" if weighted else ", plain"
        if not self.directed and not self.loops:
            return self.outgoing(weighted)
        found: CompressedRows = self.form(f"both{plain}", lambda: self._both(weighted))
        return found

    def _both(self, weighted: bool) -> CompressedRows:
        weights = self.weights if weighted else None
        return CompressedRows.of_links(
            pool(), self.sources, self.targets, weights, self.n, self.n, "keep", False, self.directed
        )

    def merged(self, weighted: bool = True) -> CompressedRows:
        """Return links with the sum of the weights of parallel ones, or their number."""
        weights = self.weights if weighted else None
        found: CompressedRows = self.form(
            f"merged, {weighted}",
            lambda: CompressedRows.of_links(
                pool(), self.sources, self.targets, weights, self.n, self.n, "sum", True, False
            ),
        )
        return found

    def simple(self) -> CompressedRows:
        """Return links without weights, loops and parallels."""
        found: CompressedRows = self.form(
            "simple",
            lambda: CompressedRows.of_links(
                pool(), self.sources, self.targets, None, self.n, self.n, "first", False, False
            ),
        )
        return found

    # Other forms for users.

    def gather(self) -> Network:
        """Return this network, of which each worker that has it has the whole; see `DistributedNetwork.gather`."""
        return self

    def to_undirected(self, *, duplicates: Duplicates = "first") -> Network:
        """Return a network whose links have no direction.

        Parameters
        ----------
        duplicates : {"first", "sum", "min", "max", "keep"}
            How to treat several links between the same two nodes, as in `read`.
        """
        if not self.directed:
            return self
        return built(
            self.sources,
            self.targets,
            self.weights,
            self.n,
            self._ids,
            directed=False,
            duplicates=duplicates,
            coordinates=self.coordinates,
        )

    def reverse(self) -> Network:
        """Return the network with each link reversed; an undirected network returns itself."""
        if not self.directed:
            return self
        turned = Network(self.incoming(), self._ids, directed=True, coordinates=self.coordinates)
        turned._forms["incoming"] = self.rows
        return turned

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the matrix of weights (ones where there are none), (n, n), rows by source; shares memory.

        Raises
        ------
        ModuleNotFoundError
            Without SciPy.
        """
        sparse = needed("scipy.sparse", "Network.to_scipy")
        weights = np.ones(len(self.targets)) if self.weights is None else self.weights
        # SciPy wants the indices of one dtype.
        return sparse.csr_array((weights, self.targets.astype(np.int64), self.offsets), shape=(self.n, self.n))

    def to_networkx(self) -> networkx.Graph:
        """Return a networkx graph with the same ids; weights are in the attribute ``weight``.

        It has parallel links if the network has.

        Raises
        ------
        ModuleNotFoundError
            Without networkx.
        """
        nx = needed("networkx", "Network.to_networkx")
        several = self.is_multigraph()
        kinds = {(False, False): nx.Graph, (True, False): nx.DiGraph, (False, True): nx.MultiGraph}
        graph = kinds.get((self.directed, several), nx.MultiDiGraph)()
        ids = self.ids.tolist()
        graph.add_nodes_from(ids)
        sources, targets = self.sources, self.targets
        if self.directed:
            kept: NDArray[Any] = np.arange(len(targets))
        else:
            kept = np.flatnonzero(sources <= targets)
        pairs = zip(sources[kept].tolist(), targets[kept].tolist(), strict=True)
        if self.weights is None:
            graph.add_edges_from((ids[source], ids[target]) for source, target in pairs)
        else:
            weights = self.weights[kept].tolist()
            graph.add_weighted_edges_from(
                (ids[source], ids[target], weight) for (source, target), weight in zip(pairs, weights, strict=True)
            )
        return graph

    # What networkx asks of a graph before it calls a backend.

    def is_directed(self) -> bool:
        """Return whether links have a direction."""
        return self.directed

    def is_multigraph(self) -> bool:
        """Return whether several links join two nodes in the same direction."""
        return bool(self.form("several", self._several))

    def _several(self) -> bool:
        same = self.targets[1:] == self.targets[:-1]
        # The first link of a row follows another row's.
        firsts = self.offsets[1:-1]
        firsts = firsts[(firsts > 0) & (firsts < len(self.targets))]
        same[firsts - 1] = False
        return bool(same.any())

    def number_of_nodes(self) -> int:
        """Return the number of nodes."""
        return self.n

    def number_of_edges(self) -> int:
        """Return the number of links."""
        return self.m


def _restored(
    offsets: NDArray[np.int64],
    targets: NDArray[np.uint32],
    weights: NDArray[np.float64] | None,
    ids: NDArray[Any] | None,
    directed: bool,
    coordinates: NDArray[np.float64] | None,
    attributes: dict[str, Any],
) -> Network:
    rows = CompressedRows(pool(), offsets, targets, weights, len(offsets) - 1)
    return Network(rows, ids, directed=directed, coordinates=coordinates, attributes=attributes)


def check_options(duplicates: str, self_loops: str) -> None:
    """Check two options of `read`.

    Raises
    ------
    ValueError
        If one is unknown.
    """
    if duplicates not in ("keep", "sum", "min", "max", "first"):
        raise ValueError(f"duplicates is 'keep', 'sum', 'min', 'max' or 'first', not {duplicates!r}")
    if self_loops not in ("keep", "drop", "raise"):
        raise ValueError(f"self_loops is 'keep', 'drop' or 'raise', not {self_loops!r}")


def built(
    sources: NDArray[np.uint32],
    targets: NDArray[np.uint32],
    weights: NDArray[np.float64] | None,
    n: int,
    ids: NDArray[Any] | None,
    *,
    directed: bool,
    duplicates: Duplicates = "first",
    self_loops: str = "keep",
    coordinates: NDArray[np.float64] | None = None,
    attributes: dict[str, Any] | None = None,
) -> Network:
    """Return a network of links between numbers of nodes; parameters as of `read`.

    Raises
    ------
    ValueError
        For NaN weights, with the first link, and for loops where there shall be none.
    """
    check_options(duplicates, self_loops)

    def name(node: int) -> Any:
        return node if ids is None else ids[node : node + 1].tolist()[0]

    if weights is not None and np.isnan(weights).any():
        at = int(np.isnan(weights).argmax())
        raise ValueError(f"link {at} from {name(int(sources[at]))!r} to {name(int(targets[at]))!r} has weight NaN")
    if self_loops == "raise" and (loops := sources == targets).any():
        at = int(loops.argmax())
        raise ValueError(f"link {at} leads from {name(int(sources[at]))!r} to itself: read with self_loops='drop'")
    rows = CompressedRows.of_links(
        pool(),
        np.ascontiguousarray(sources),
        np.ascontiguousarray(targets),
        None if weights is None else np.ascontiguousarray(weights),
        n,
        n,
        duplicates,
        self_loops != "drop",
        not directed,
    )
    return Network(rows, ids, directed=directed, coordinates=coordinates, attributes=attributes)


def numbered(
    sources: Any, targets: Any, nodes: Any = None
) -> tuple[NDArray[Any] | None, int, NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the ids of all nodes (None for 0 to n - 1), how many there are, and the ends of links by number.

    Ids that are integers are in ascending order, as are strings; others in that of their appearance, `nodes` first.

    Raises
    ------
    ValueError
        If the ends are not of one length, or there are too many nodes.
    """
    sides = [np.asarray(side) if not isinstance(side, np.ndarray) else side for side in (sources, targets)]
    if any(side.ndim != 1 for side in sides) or len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"sources and targets are arrays of one dimension and length, not of shapes {sides[0].shape} and {sides[1].shape}"
        )
    # An empty list is float64 for NumPy.
    sides = [side.astype(np.int64) if not side.size else side for side in sides]
    extra = None if nodes is None else np.asarray(list(range(nodes)) if isinstance(nodes, int) else nodes)
    if extra is not None and not extra.size:
        extra = extra.astype(np.int64)
    values = [*sides, *([] if extra is None else [extra])]
    kinds = {value.dtype.kind for value in values}
    if kinds <= set("iu"):
        return _numbered_integers(values)
    if kinds <= set("U"):
        ids, inverse = np.unique(np.concatenate(values), return_inverse=True)
        places: NDArray[np.uint32] = inverse.astype(np.uint32)
        m = len(sides[0])
        return ids, _count(len(ids)), places[:m], places[m : 2 * m]
    if "f" in kinds:
        raise ValueError("ids are integers, strings or objects, not floating-point numbers: cast them")
    found: dict[Hashable, int] = {}
    order: Sequence[Any] = () if extra is None else extra.tolist()
    for value in order:
        found.setdefault(value, len(found))
    ends = np.empty((len(sides[0]), 2), np.uint32)
    pairs = zip(sides[0].tolist(), sides[1].tolist(), strict=True)
    for at, (source, target) in enumerate(pairs):
        ends[at] = found.setdefault(source, len(found)), found.setdefault(target, len(found))
    return objects(found), _count(len(found)), ends[:, 0].copy(), ends[:, 1].copy()


def objects(values: Iterable[Any]) -> NDArray[Any]:
    """Return an array of objects, also where these are sequences."""
    listed = list(values)
    array = np.empty(len(listed), object)
    for at, value in enumerate(listed):
        array[at] = value
    return array


def _count(n: int) -> int:
    if n > NODES_MAX:
        raise ValueError(f"a network has at most {NODES_MAX:,} nodes, not {n:,}")
    return n


def _numbered_integers(
    values: list[NDArray[Any]],
) -> tuple[NDArray[Any] | None, int, NDArray[np.uint32], NDArray[np.uint32]]:
    # 64 bits without a sign only where they are needed.
    wide = np.uint64 if any(value.size and int(value.max()) >= 2**63 for value in values) else np.int64
    if wide == np.uint64 and any(value.size and int(value.min()) < 0 for value in values):
        raise ValueError("some ids are negative and others above 2⁶³: make them strings")
    values = [np.ascontiguousarray(value, dtype=wide) for value in values]
    ids = network_ids(pool(), *values)
    n = _count(len(ids))
    if n and ids[0] == 0 and int(ids[-1]) == n - 1:
        return None, n, values[0].astype(np.uint32), values[1].astype(np.uint32)
    return ids, n, network_find(pool(), ids, values[0]), network_find(pool(), ids, values[1])
