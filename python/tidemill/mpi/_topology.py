"""Communicators with topologies. Source: MPI 4.1 chapter 8.

Ranks keep their order, so a topology is arithmetic. Neighborhood collectives are internal messages of the
communicator, all posted at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tidemill._errors import fail
from tidemill.mpi import _constants as c
from tidemill.mpi import _objects
from tidemill.mpi._buffers import resolve, resolve_blocks, resolve_typed
from tidemill.mpi._comm import COMM_NULL, Comm, Intracomm, persistent
from tidemill.mpi._datatype import predefined
from tidemill.mpi._request import Request

_KEY_BUFFERS = -(1 << 30) - 100


class Grid:
    """A Cartesian topology."""

    kind = c.CART

    def __init__(self, dims: Sequence[int], periods: Sequence[bool]) -> None:
        self.dims, self.periods = [int(n) for n in dims], [bool(p) for p in periods]

    def coords(self, rank: int) -> list[int]:
        found = []
        for extent in reversed(self.dims):
            rank, coordinate = divmod(rank, extent)
            found.append(coordinate)
        return found[::-1]

    def rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates; ``PROC_NULL`` beyond the edge."""
        found = 0
        for coordinate, extent, wraps in zip(coords, self.dims, self.periods, strict=True):
            if not wraps and not 0 <= coordinate < extent:
                return c.PROC_NULL
            found = found * extent + coordinate % extent
        return found

    def shifted(self, rank: int, direction: int, disp: int) -> int:
        coords = self.coords(rank)
        coords[direction] += disp
        return self.rank(coords)

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        around = [self.shifted(rank, axis, step) for axis in range(len(self.dims)) for step in (-1, 1)]
        return around, around


class Graph:
    """A graph that every rank knows in full."""

    kind = c.GRAPH

    def __init__(self, index: Sequence[int], edges: Sequence[int]) -> None:
        self.index, self.edges = [int(i) for i in index], [int(e) for e in edges]

    def of(self, rank: int) -> list[int]:
        if not 0 <= rank < len(self.index):
            raise fail("ERR_RANK", f"rank {rank} is not in a graph of {len(self.index)}")
        return self.edges[self.index[rank - 1] if rank else 0 : self.index[rank]]

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        return self.of(rank), self.of(rank)


class DistGraph:
    """A graph of which a rank knows only its own edges."""

    kind = c.DIST_GRAPH

    def __init__(
        self, sources: Sequence[int], dests: Sequence[int], weights: tuple[list[int], list[int]] | None
    ) -> None:
        self.sources, self.dests, self.weights = list(sources), list(dests), weights

    def neighbours(self, rank: int) -> tuple[list[int], list[int]]:
        return self.sources, self.dests


class Topocomm(Intracomm):
    """A communicator with a topology: each rank has neighbors."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return comm.Get_topology() != c.UNDEFINED

    def _neighbours(self) -> tuple[list[int], list[int]]:
        """Return the ranks to receive from, and to send to."""
        topology = self._state.topology
        if topology is None:
            raise fail("ERR_TOPOLOGY", "the communicator has no topology")
        found: tuple[list[int], list[int]] = topology.neighbours(self.rank)
        return found

    @property
    def degrees(self) -> tuple[int, int]:
        """The numbers of ranks that this one receives from and sends to."""
        sources, dests = self._neighbours()
        return len(sources), len(dests)

    indegree = property(lambda self: self.degrees[0], doc="How many ranks this one receives from.")
    outdegree = property(lambda self: self.degrees[1], doc="How many ranks this one sends to.")

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        """The ranks that this one receives from and sends to."""
        sources, dests = self._neighbours()
        return list(sources), list(dests)

    inedges = property(lambda self: self.inoutedges[0], doc="The ranks this one receives from.")
    outedges = property(lambda self: self.inoutedges[1], doc="The ranks this one sends to.")

    # Neighborhood collectives.

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Send an object to all neighbors; return theirs."""
        sources, dests = self._neighbours()
        return _objects.exchange(self, [sendobj] * len(dests), dests, sources)

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send object i to neighbor i; return theirs."""
        sources, dests = self._neighbours()
        return _objects.exchange(self, _objects.as_many(len(dests), sendobj), dests, sources)

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send an array to all neighbors; theirs arrive one after another in `recvbuf`."""
        self.Ineighbor_allgather(sendbuf, recvbuf).Wait()

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Like `Neighbor_allgather`, with blocks of different lengths."""
        self.Ineighbor_allgatherv(sendbuf, recvbuf).Wait()

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send block i of `sendbuf` to neighbor i; theirs arrive one after another in `recvbuf`."""
        self.Ineighbor_alltoall(sendbuf, recvbuf).Wait()

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Like `Neighbor_alltoall`, with blocks of different lengths."""
        self.Ineighbor_alltoallv(sendbuf, recvbuf).Wait()

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Like `Neighbor_alltoallv`, with a datatype for each neighbor and displacements in bytes."""
        self.Ineighbor_alltoallw(sendbuf, recvbuf).Wait()

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Neighbor_allgather`."""
        sources, dests = self._neighbours()
        return self._exchange(_copies(sendbuf, len(dests)), _equal(recvbuf, True, len(sources)))

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Neighbor_allgatherv`."""
        sources, dests = self._neighbours()
        return self._exchange(_copies(sendbuf, len(dests)), _blocks(resolve_blocks, recvbuf, True, len(sources)))

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Neighbor_alltoall`."""
        sources, dests = self._neighbours()
        return self._exchange(_equal(sendbuf, False, len(dests)), _equal(recvbuf, True, len(sources)))

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Neighbor_alltoallv`."""
        sources, dests = self._neighbours()
        sends = _blocks(resolve_blocks, sendbuf, False, len(dests))
        return self._exchange(sends, _blocks(resolve_blocks, recvbuf, True, len(sources)))

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Neighbor_alltoallw`."""
        sources, dests = self._neighbours()
        sends = _blocks(resolve_typed, sendbuf, False, len(dests))
        return self._exchange(sends, _blocks(resolve_typed, recvbuf, True, len(sources)))

    def _exchange(self, sends: tuple[list[Any], Any], recvs: tuple[list[Any], Any]) -> Request:
        sources, dests = self._neighbours()
        size = self.size
        # There may be several edges between two ranks: both sides count them, so that the k-th outgoing edge matches
        # the k-th incoming one. In a grid with two ranks along an axis, the rank above is also the rank below, and what
        # is sent downward arrives from above (MPI 4.1 section 8.6), so outgoing edges are counted with the two
        # directions of an axis exchanged.
        is_grid = self._state.topology.kind == c.CART
        order = [i ^ 1 for i in range(len(dests))] if is_grid else list(range(len(dests)))
        parts = [
            self._irecv_hidden(room, source, _KEY_BUFFERS)
            for room, source in zip(recvs[0], sources, strict=True)
            if 0 <= source < size
        ]
        parts += [self._isend_hidden(sends[0][i], dests[i], _KEY_BUFFERS) for i in order if 0 <= dests[i] < size]
        request = Request()
        request._drive(_Neighbours(parts, recvs[1]))
        return request


for _name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"):
    setattr(Topocomm, f"Neighbor_{_name}_init", persistent(f"Neighbor_{_name}"))


class _Neighbours:
    """Drives the request of a neighborhood collective."""

    source = None
    tag = nbytes = 0
    cancelled = False
    result = None

    def __init__(self, parts: list[Request], unpack: Any) -> None:
        self.parts, self.unpack = parts, unpack

    def step(self, block: bool) -> bool:
        if block:
            Request.Waitall(self.parts)
        elif not Request.Testall(self.parts):
            return False
        if self.unpack is not None:
            self.unpack(None)
        return True

    def cancel(self) -> None:
        """Do nothing: collectives are not cancelled."""


def _equal(spec: Any, write: bool, blocks: int) -> tuple[list[Any], Any]:
    """Return equal blocks of a message."""
    if blocks == 0:
        return [], None
    memory, count, element, unpack, _ = resolve(spec, write, write, blocks)
    step = count * _size(element)
    return [memory[i * step : (i + 1) * step] for i in range(blocks)], unpack


def _copies(spec: Any, blocks: int) -> tuple[list[Any], Any]:
    """Return the same message for all."""
    memory, count, element, _, _ = resolve(spec, False, False, 1)
    return [memory[: count * _size(element)]] * blocks, None


def _blocks(resolver: Any, spec: Any, write: bool, blocks: int) -> tuple[list[Any], Any]:
    """Return blocks of different lengths."""
    if blocks == 0:
        return [], None
    memory, counts, displacements, element, unpack = resolver(spec, write, write, blocks)
    size = _size(element)
    return [memory[d * size : (d + n) * size] for n, d in zip(counts, displacements, strict=True)], unpack


def _size(element: str) -> int:
    return _SIZES[element]


_SIZES = {datatype._element: datatype._element_bytes for datatype in predefined.values() if datatype}


class Cartcomm(Topocomm):
    """A communicator whose ranks form a grid."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return comm.Get_topology() == c.CART

    def _grid(self) -> Grid:
        self._check_usable()
        grid: Grid = self._state.topology
        return grid

    def Get_dim(self) -> int:
        """Return the number of dimensions of the grid."""
        return len(self._grid().dims)

    dim = property(Get_dim, doc="Dimensions of the grid.")
    ndim = property(Get_dim, doc="Dimensions of the grid.")

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return the number of ranks along each dimension, which dimensions wrap around, and this rank's coordinates."""
        grid = self._grid()
        return list(grid.dims), [int(p) for p in grid.periods], grid.coords(self.rank)

    topo = property(Get_topo, doc="See `Get_topo`.")
    dims = property(lambda self: self.Get_topo()[0], doc="Ranks along each dimension.")
    periods = property(lambda self: self.Get_topo()[1], doc="Which dimensions wrap around.")
    coords = property(lambda self: self.Get_topo()[2], doc="This rank's coordinates.")

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates, which may lie outside the grid in dimensions that wrap around."""
        grid = self._grid()
        if len(coords) != len(grid.dims):
            raise fail("ERR_ARG", f"expecting {len(grid.dims)} coordinates, got {len(coords)}")
        found = grid.rank(coords)
        if found == c.PROC_NULL:
            raise fail("ERR_ARG", f"coordinates {list(coords)} lie outside of the grid {grid.dims}")
        return found

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank."""
        if not 0 <= rank < self.size:
            raise fail("ERR_RANK", f"rank {rank} is not in a communicator of {self.size} ranks")
        return self._grid().coords(rank)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the ranks to receive from and to send to for a shift along a dimension; ``PROC_NULL`` beyond the edge."""
        grid = self._grid()
        if not 0 <= direction < len(grid.dims):
            raise fail("ERR_DIMS", f"the grid has no dimension {direction}")
        return grid.shifted(self.rank, direction, -disp), grid.shifted(self.rank, direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Return the subgrid through this rank with the other dimensions fixed. Collective."""
        grid = self._grid()
        keep = [bool(k) for k in remain_dims]
        if len(keep) != len(grid.dims):
            raise fail("ERR_DIMS", f"expecting {len(grid.dims)} flags, got {len(keep)}")
        coords = grid.coords(self.rank)
        fixed = [n if not k else 1 for n, k in zip(grid.dims, keep, strict=True)]
        place = [x if not k else 0 for x, k in zip(coords, keep, strict=True)]
        color = Grid(fixed, [False] * len(fixed)).rank(place)
        part: Cartcomm = self._make(self._split(color, self.rank), Cartcomm)
        part._state.topology = Grid(
            list(itertools.compress(grid.dims, keep)), list(itertools.compress(grid.periods, keep))
        )
        return part


class Graphcomm(Topocomm):
    """A communicator with a graph that every rank knows in full."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return comm.Get_topology() == c.GRAPH

    def _graph(self) -> Graph:
        self._check_usable()
        graph: Graph = self._state.topology
        return graph

    def Get_dims(self) -> tuple[int, int]:
        """Return the numbers of nodes and edges."""
        return len(self._graph().index), len(self._graph().edges)

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Return the end of each node's edges in the list of edges, and that list."""
        return list(self._graph().index), list(self._graph().edges)

    def Get_neighbors_count(self, rank: int) -> int:
        """Return the number of neighbors of a rank."""
        return len(self._graph().of(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        """Return the neighbors of a rank."""
        return self._graph().of(rank)

    dims = property(Get_dims, doc="Numbers of nodes and edges.")
    nnodes = property(lambda self: self.Get_dims()[0], doc="Number of nodes.")
    nedges = property(lambda self: self.Get_dims()[1], doc="Number of edges.")
    topo = property(Get_topo, doc="See `Get_topo`.")
    index = property(lambda self: self.Get_topo()[0], doc="Where the edges of each node end.")
    edges = property(lambda self: self.Get_topo()[1], doc="All edges.")
    nneighbors = property(lambda self: self.Get_neighbors_count(self.rank), doc="How many neighbours this rank has.")
    neighbors = property(lambda self: self.Get_neighbors(self.rank), doc="This rank's neighbours.")


class Distgraphcomm(Topocomm):
    """A communicator with a graph of which a rank knows only its own edges."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return comm.Get_topology() == c.DIST_GRAPH

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Return the numbers of ranks to receive from and to send to, and whether the edges have weights."""
        graph: DistGraph = self._state.topology
        return len(graph.sources), len(graph.dests), graph.weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """Return the ranks to receive from and to send to, and the weights of these edges."""
        graph: DistGraph = self._state.topology
        return list(graph.sources), list(graph.dests), graph.weights


# Creating topologies.


def create_cart(comm: Intracomm, dims: Sequence[int], periods: Sequence[bool] | bool | None) -> Any:
    """See `Intracomm.Create_cart`."""
    sizes = [int(n) for n in dims]
    if any(n <= 0 for n in sizes):
        raise fail("ERR_DIMS", f"a grid of {sizes} has no cells")
    count = math.prod(sizes)
    if count > comm.size:
        raise fail("ERR_DIMS", f"a grid of {sizes} needs {count} ranks; the communicator has {comm.size}")
    if periods is None or isinstance(periods, (bool, int)):
        periods = [bool(periods)] * len(sizes)
    periods = list(periods)
    if len(periods) != len(sizes):
        raise ValueError(f"expecting {len(sizes)} periods, got {len(periods)}")
    return _with_topology(comm, count, Cartcomm, Grid(sizes, periods))


def create_graph(comm: Intracomm, index: Sequence[int], edges: Sequence[int]) -> Any:
    """See `Intracomm.Create_graph`."""
    index = list(index)
    # Offsets that start at 0, as in compressed sparse rows, are accepted, too, as in mpi4py.
    if len(index) > 1 and index[0] == 0 and index[-1] == len(edges):
        index = index[1:]
    if len(index) > comm.size:
        raise fail("ERR_ARG", f"a graph of {len(index)} nodes needs as many ranks; there are {comm.size}")
    if index and index[-1] != len(edges):
        raise fail("ERR_ARG", f"the index ends at {index[-1]}, but there are {len(edges)} edges")
    return _with_topology(comm, len(index), Graphcomm, Graph(index, edges))


def create_dist_graph_adjacent(
    comm: Intracomm, sources: Sequence[int], dests: Sequence[int], sourceweights: Any, destweights: Any
) -> Any:
    """See `Intracomm.Create_dist_graph_adjacent`."""
    for rank in [*sources, *dests]:
        if not 0 <= rank < comm.size and rank != c.PROC_NULL:
            raise fail("ERR_RANK", f"rank {rank} is not in a communicator of {comm.size} ranks")
    weights = None
    if not _is_unweighted(sourceweights) and not _is_unweighted(destweights):
        weights = _weights(sourceweights), _weights(destweights)
        if (len(weights[0]), len(weights[1])) != (len(sources), len(dests)):
            raise ValueError("weights and edges must be equally many")
    return _with_topology(comm, comm.size, Distgraphcomm, DistGraph(sources, dests, weights))


def _is_unweighted(weights: Any) -> bool:
    return weights is None or (isinstance(weights, int) and weights == c.UNWEIGHTED)


def _weights(weights: Any) -> list[int]:
    return [] if isinstance(weights, int) else list(weights)


def create_dist_graph(
    comm: Intracomm, sources: Sequence[int], degrees: Sequence[int], dests: Sequence[int], weights: Any
) -> Any:
    """See `Intracomm.Create_dist_graph`."""
    repeated = [source for source, degree in zip(sources, degrees, strict=True) for _ in range(degree)]
    weighted = not _is_unweighted(weights)
    named = list(zip(repeated, dests, _weights(weights) if weighted else [0] * len(repeated), strict=True))
    everybody = comm.allgather((named, weighted))
    edges = [edge for part, _ in everybody for edge in part]
    into = [(source, weight) for source, dest, weight in edges if dest == comm.rank]
    out = [(dest, weight) for source, dest, weight in edges if source == comm.rank]
    values = ([w for _, w in into], [w for _, w in out]) if any(w for _, w in everybody) else None
    graph = DistGraph([source for source, _ in into], [dest for dest, _ in out], values)
    return _with_topology(comm, comm.size, Distgraphcomm, graph)


def _with_topology(comm: Intracomm, count: int, kind: type[Topocomm], topology: Any) -> Any:
    """Return a communicator of the first `count` ranks, in order, with a topology."""
    native = comm._split(0 if comm.rank < count else None, comm.rank)
    if native is None:
        return COMM_NULL
    new = kind._wrap(native)
    new._state.topology = topology
    return new


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return the number of ranks along each dimension of a grid for `nnodes`, as equal as possible and in decreasing
    order.

    Parameters
    ----------
    nnodes : int
        Number of ranks to place.
    dims : int or sequence of int
        Number of dimensions, or their sizes, in which zeros are filled in.
    """
    sizes = [0] * dims if isinstance(dims, int) else [int(n) for n in dims]
    if any(n < 0 for n in sizes):
        raise fail("ERR_DIMS", "negative dimension")
    free = sizes.count(0)
    fixed = math.prod(n for n in sizes if n)
    if nnodes < 1 or nnodes % fixed or (not free and nnodes != fixed):
        raise fail("ERR_DIMS", f"{nnodes} ranks do not fit a grid of {sizes}")
    filled = iter(sorted(_most_equal(nnodes // fixed, free), reverse=True))
    return [n or next(filled) for n in sizes]


def _most_equal(total: int, parts: int) -> tuple[int, ...]:
    """Return factors of `total` whose largest is smallest, and so on."""
    if parts == 0:
        return ()
    best: tuple[int, ...] | None = None

    def search(rest: int, count: int, smallest: int, chosen: tuple[int, ...]) -> None:
        nonlocal best
        if count == 1:
            found = (rest, *reversed(chosen))
            if best is None or found < best:
                best = found
            return
        factor = smallest
        while factor**count <= rest:
            if rest % factor == 0:
                search(rest // factor, count - 1, factor, (*chosen, factor))
            factor += 1

    search(total, parts, 1, ())
    return best or (total,)
