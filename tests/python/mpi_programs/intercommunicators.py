"""Intercommunicators between two halves: messages, collectives with two groups, merging."""

import numpy as np
from harness import MPI, main


def halves(comm):
    """The two halves of ``comm`` and an intercommunicator between them."""
    low = comm.rank < comm.size // 2
    local = comm.Split(0 if low else 1, comm.rank)
    inter = local.Create_intercomm(0, comm, comm.size // 2 if low else 0, tag=12)
    return low, local, inter


def check_point_to_point(comm):
    if comm.size < 2:
        return
    low, local, inter = halves(comm)
    assert inter.Is_inter() and isinstance(inter, MPI.Intercomm)
    assert inter.size == local.size and inter.rank == local.rank
    assert inter.remote_size == comm.size - local.size == inter.Get_remote_group().size
    if local.rank < min(local.size, inter.remote_size):
        peer = local.rank
        got = inter.sendrecv((comm.rank, np.arange(10_000)), peer, 1, None, peer, 1)
        assert got[0] == (peer + comm.size // 2 if low else peer)
        data = np.zeros(1, int)
        status = MPI.Status()
        inter.Sendrecv(np.array([comm.rank]), peer, 2, data, MPI.ANY_SOURCE, 2, status)
        assert data[0] == got[0] and status.source == peer
    inter.Barrier()
    inter.Free()
    local.Free()


def check_merge(comm):
    if comm.size < 2:
        return
    low, local, inter = halves(comm)
    merged = inter.Merge(high=low)
    assert merged.size == comm.size
    first = comm.size - comm.size // 2
    assert merged.rank == (first + comm.rank if low else comm.rank - comm.size // 2)
    assert merged.allreduce(1) == comm.size
    for c in (merged, inter, local):
        c.Free()


def check_object_collectives(comm):
    if comm.size < 2:
        return
    low, local, inter = halves(comm)
    half, rest = comm.size // 2, comm.size - comm.size // 2
    theirs = list(range(half, comm.size)) if low else list(range(half))
    assert inter.allgather(comm.rank) == theirs
    assert inter.allreduce(comm.rank) == sum(theirs)
    assert inter.alltoall([(comm.rank, r) for r in range(rest if low else half)]) == [(r, local.rank) for r in theirs]
    # Rank 0 of the low half is the root; the high half is the other group.
    root = (MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL) if low else 0
    got = inter.bcast("word" if comm.rank == 0 else None, root)
    assert got == ("word" if not low else got)
    got = inter.gather(comm.rank, root)
    assert comm.rank != 0 or got == theirs
    got = inter.scatter([10 * r for r in range(rest)] if comm.rank == 0 else None, root)
    assert low or got == 10 * local.rank
    got = inter.reduce(comm.rank, MPI.SUM, root)
    assert comm.rank != 0 or got == sum(theirs)
    inter.Free()
    local.Free()


def check_buffer_collectives(comm):
    if comm.size < 2:
        return
    low, local, inter = halves(comm)
    half, rest = comm.size // 2, comm.size - comm.size // 2
    theirs = list(range(half, comm.size)) if low else list(range(half))
    got = np.zeros((inter.remote_size, 3), int)
    inter.Allgather(np.full(3, comm.rank), got)
    assert (got == np.array(theirs)[:, None]).all()
    one = np.zeros(3, int)
    inter.Allreduce(np.full(3, comm.rank), one)
    assert (one == sum(theirs)).all()
    root = (MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL) if low else 0
    data = np.full(5, 7 if comm.rank == 0 else -1)
    inter.Bcast(data, root)
    assert low or (data == 7).all()
    got = np.zeros(rest, int) if comm.rank == 0 else None
    inter.Gather(np.array([comm.rank]) if not low else None, got, root)
    assert comm.rank != 0 or got.tolist() == theirs
    inter.Reduce(np.array([comm.rank]) if not low else None, one[:1] if comm.rank == 0 else None, MPI.SUM, root)
    assert comm.rank != 0 or one[0] == sum(theirs)
    send = np.array([100 * comm.rank + r for r in range(inter.remote_size)])
    got = np.zeros(inter.remote_size, int)
    inter.Alltoall(send, got)
    assert got.tolist() == [100 * r + local.rank for r in theirs]
    inter.Barrier()
    inter.Free()
    local.Free()


if __name__ == "__main__":
    main(globals())
