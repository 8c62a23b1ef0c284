"""Cartesian, graph and distributed-graph communicators, and collectives among neighbours."""

import numpy as np
from harness import MPI, main, raises


def check_compute_dims(comm):
    for nodes, ndims in ((1, 1), (6, 2), (12, 3), (7, 2), (16, 4)):
        dims = MPI.Compute_dims(nodes, ndims)
        assert len(dims) == ndims and np.prod(dims) == nodes and dims == sorted(dims, reverse=True)
    assert MPI.Compute_dims(6, [2, 0]) == [2, 3]
    assert MPI.Compute_dims(12, [0, 3, 0]) == [2, 3, 2]
    raises(MPI.Exception, MPI.Compute_dims, 7, [2, 0])


def check_cart(comm):
    dims = MPI.Compute_dims(comm.size, 2)
    cart = comm.Create_cart(dims, periods=[True, False])
    assert isinstance(cart, MPI.Cartcomm) and cart.Get_topology() == cart.topology == MPI.CART
    assert cart.is_topo and cart.Get_dim() == cart.dim == cart.ndim == 2
    got_dims, periods, coords = cart.Get_topo()
    assert list(got_dims) == dims == cart.dims and [bool(p) for p in periods] == [True, False]
    assert coords == cart.Get_coords(cart.rank) == cart.coords
    assert cart.Get_cart_rank(coords) == cart.rank
    assert [cart.Get_cart_rank(cart.Get_coords(r)) for r in range(cart.size)] == list(range(cart.size))
    # The first dimension wraps around, the second ends in PROC_NULL.
    assert cart.Get_cart_rank([coords[0] + dims[0], coords[1]]) == cart.rank
    source, dest = cart.Shift(0, 1)
    assert dest == cart.Get_cart_rank([coords[0] + 1, coords[1]])
    assert source == cart.Get_cart_rank([coords[0] - 1, coords[1]])
    source, dest = cart.Shift(1, 1)
    assert dest == (cart.Get_cart_rank([coords[0], coords[1] + 1]) if coords[1] + 1 < dims[1] else MPI.PROC_NULL)
    assert source == (cart.Get_cart_rank([coords[0], coords[1] - 1]) if coords[1] else MPI.PROC_NULL)
    got = np.array([-1.0])
    cart.Sendrecv(np.array([float(cart.rank)]), dest, 0, got, source, 0)
    assert got[0] == (source if source != MPI.PROC_NULL else -1)
    row = cart.Sub([False, True])
    assert isinstance(row, MPI.Cartcomm) and row.size == dims[1] and row.rank == coords[1]
    assert row.allgather(cart.rank) == [cart.Get_cart_rank([coords[0], j]) for j in range(dims[1])]
    row.Free()
    copy = cart.Dup()
    assert isinstance(copy, MPI.Cartcomm) and copy.dims == dims
    copy.Free()
    cart.Free()
    small = comm.Create_cart([1])
    assert (small == MPI.COMM_NULL) == (comm.rank != 0)
    raises(MPI.Exception, comm.Create_cart, [comm.size + 1])


def check_cart_neighbours(comm):
    """Two neighbours per dimension, lower first; missing ones leave their part of the buffer alone."""
    for periodic in (True, False):
        cart = comm.Create_cart([comm.size], periods=[periodic])
        source, dest = cart.Shift(0, 1)
        assert cart.indegree == cart.outdegree == 2
        assert cart.inedges == [source, dest] == cart.outedges
        got = np.full((2, 3), -1)
        cart.Neighbor_allgather(np.full(3, cart.rank), got)
        for part, peer in zip(got, (source, dest), strict=True):
            assert (part == (peer if peer != MPI.PROC_NULL else -1)).all()
        send, got = np.array([100 * cart.rank, 100 * cart.rank + 1]), np.full(2, -1)
        cart.Neighbor_alltoall(send, got)
        # What comes from below was sent upwards, except that with one or two ranks below and above coincide.
        if cart.size > 2:
            assert got[0] == (100 * source + 1 if source != MPI.PROC_NULL else -1)
            assert got[1] == (100 * dest if dest != MPI.PROC_NULL else -1)
        if periodic:
            assert cart.neighbor_allgather(cart.rank) == [source, dest]
        request = cart.Ineighbor_allgather(np.full(3, cart.rank), np.full((2, 3), -1))
        request.Wait()
        cart.Free()


def check_graph(comm):
    """A star with rank 0 in the middle."""
    if comm.size == 1:
        return  # Open MPI has no graph without edges
    n = comm.size
    index = [n - 1 + r for r in range(n)]
    edges = list(range(1, n)) + [0] * (n - 1)
    graph = comm.Create_graph(index, edges)
    assert isinstance(graph, MPI.Graphcomm) and graph.topology == MPI.GRAPH
    assert graph.Get_dims() == graph.dims == (n, 2 * (n - 1))
    assert graph.Get_neighbors(0) == list(range(1, n)) and graph.Get_neighbors_count(0) == n - 1
    if n > 1:
        assert graph.Get_neighbors(n - 1) == [0]
    got = np.full(graph.nneighbors, -1)
    graph.Neighbor_allgather(np.array([graph.rank]), got)
    assert got.tolist() == graph.neighbors
    assert graph.neighbor_allgather(graph.rank) == graph.neighbors
    graph.Free()


def check_dist_graph(comm):
    """Every rank sends to the next two ranks."""
    n, r = comm.size, comm.rank
    sources, targets = [(r - 1) % n, (r - 2) % n], [(r + 1) % n, (r + 2) % n]
    graph = comm.Create_dist_graph_adjacent(sources, targets)
    assert isinstance(graph, MPI.Distgraphcomm) and graph.topology == MPI.DIST_GRAPH
    assert graph.Get_dist_neighbors_count() == (2, 2, False)
    assert graph.Get_dist_neighbors()[:2] == (sources, targets)
    assert graph.indegree == graph.outdegree == 2 and graph.inedges == sources and graph.outedges == targets
    got = np.zeros(2, int)
    graph.Neighbor_allgather(np.array([r]), got)
    assert got.tolist() == sources
    if n > 2:  # with fewer, both neighbours are one rank, and messages to it are told apart by order alone
        graph.Neighbor_alltoall(np.array([10 * r, 10 * r + 1]), got)
        assert got.tolist() == [10 * sources[0], 10 * sources[1] + 1]
        got = np.zeros(3, int)
        graph.Neighbor_alltoallv([np.array([r, r, r + 100]), [2, 1]], [got, [2, 1]])
        assert got.tolist() == [sources[0], sources[0], sources[1] + 100]
        assert graph.neighbor_alltoall([(r, "next"), (r, "after")]) == [(sources[0], "next"), (sources[1], "after")]
    got = np.zeros(4, int)
    graph.Neighbor_allgatherv(np.array([r, r]), [got, [2, 2]])
    assert got.tolist() == [sources[0]] * 2 + [sources[1]] * 2
    graph.Free()
    graph = comm.Create_dist_graph([r], [1], [(r + 1) % n])
    assert graph.inedges == [(r - 1) % n] and graph.outedges == [(r + 1) % n]
    assert graph.neighbor_allgather(r) == [(r - 1) % n]
    graph.Free()


if __name__ == "__main__":
    main(globals())
