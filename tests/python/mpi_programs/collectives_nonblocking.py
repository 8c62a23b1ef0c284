"""Non-blocking and persistent collectives: many in flight, completed in any order, mixed with blocking ones."""

import numpy as np
from harness import MPI, PEER_IS_REAL_MPI, main, roots


def check_every_nonblocking_collective(comm):
    size, rank = comm.size, comm.rank
    for count in (0, 1, 5, 40_000):
        for root in roots(comm):
            comm.Ibarrier().Wait()
            data = np.full(count, root if rank == root else -1)
            comm.Ibcast(data, root).Wait()
            assert (data == root).all()
            mine = np.full(count, rank)
            got = np.empty((size, count), int)
            comm.Igather(mine, got if rank == root else None, root).Wait()
            assert rank != root or (got == np.arange(size)[:, None]).all()
            every, one = np.repeat(np.arange(size), count), np.empty(count, int)
            comm.Iscatter(every if rank == root else None, one, root).Wait()
            assert (one == rank).all()
            comm.Ireduce(mine, one if rank == root else None, MPI.SUM, root).Wait()
            assert rank != root or (one == size * (size - 1) // 2).all()
        got = np.empty((size, count), int)
        comm.Iallgather(mine, got).Wait()
        assert (got == np.arange(size)[:, None]).all()
        every = np.repeat(np.arange(size) + 100 * rank, count)
        comm.Ialltoall(every, got).Wait()
        assert (got == 100 * np.arange(size)[:, None] + rank).all()
        one = np.empty(count, int)
        comm.Iallreduce(mine, one).Wait()
        assert (one == size * (size - 1) // 2).all()
        every = np.repeat(np.arange(size), count)
        comm.Ireduce_scatter_block(every, one).Wait()
        assert (one == rank * size).all()
        comm.Ireduce_scatter(every, one, [count] * size, MPI.SUM).Wait()
        assert (one == rank * size).all()
        comm.Iscan(mine, one).Wait()
        assert (one == rank * (rank + 1) // 2).all()
        comm.Iexscan(mine, one).Wait()
        assert rank == 0 or (one == rank * (rank - 1) // 2).all()


def check_nonblocking_vector_collectives(comm):
    size, rank = comm.size, comm.rank
    counts = [r + 1 for r in roots(comm)]
    mine = np.full(counts[rank], rank)
    want = np.repeat(np.arange(size), counts)
    got = np.empty_like(want)
    comm.Iallgatherv(mine, [got, counts]).Wait()
    assert np.array_equal(got, want)
    got[:] = -1
    comm.Igatherv(mine, [got, counts] if rank == 0 else None, 0).Wait()
    assert rank != 0 or np.array_equal(got, want)
    one = np.empty(counts[rank], int)
    comm.Iscatterv([want, counts] if rank == 0 else None, one, 0).Wait()
    assert (one == rank).all()
    sends = np.full((rank + 1) * size, rank)
    comm.Ialltoallv([sends, [rank + 1] * size], [got, counts]).Wait()
    assert np.array_equal(got, want)
    ints = [MPI.LONG] * size
    displs = np.concatenate([[0], np.cumsum(counts)[:-1]]) * 8
    comm.Ialltoallw(
        [sends, ([rank + 1] * size, [8 * (rank + 1) * r for r in roots(comm)]), ints], [got, (counts, displs), ints]
    ).Wait()
    assert np.array_equal(got, want)


def check_in_place(comm):
    data = np.full(7, comm.rank)
    comm.Iallreduce(MPI.IN_PLACE, data).Wait()
    assert (data == comm.size * (comm.size - 1) // 2).all()
    got = np.full((comm.size, 3), -1)
    got[comm.rank] = comm.rank
    comm.Iallgather(MPI.IN_PLACE, got).Wait()
    assert (got == np.arange(comm.size)[:, None]).all()


def check_temporary_buffers_stay_alive(comm):
    """A request owns its buffers, the send buffer too."""
    if PEER_IS_REAL_MPI:
        return  # mpi4py 4.1 forgets send buffers
    requests = []
    for _ in range(10):
        requests.append((comm.Iallreduce(np.full(5000, comm.rank), got := np.zeros(5000, int)), got))
        np.full(5000, -1)
    for request, got in requests:
        request.Wait()
        assert (got == comm.size * (comm.size - 1) // 2).all()


def check_many_in_flight_completed_backwards(comm):
    data = [np.full(n, comm.rank, "f8") for n in (1, 10, 1000, 100_000) * 4]
    requests = [comm.Iallreduce(MPI.IN_PLACE, d) for d in data]
    for request in reversed(requests):
        request.Wait()
    assert all((d == comm.size * (comm.size - 1) // 2).all() for d in data)


def check_blocking_ones_while_others_are_in_flight(comm):
    slow = np.full(200_000, comm.rank, "f8")
    request = comm.Iallreduce(MPI.IN_PLACE, slow)
    for i in range(20):
        one = np.array([comm.rank + i])
        comm.Allreduce(MPI.IN_PLACE, one)
        assert one[0] == comm.size * (comm.size - 1) // 2 + comm.size * i
    other = comm.Ibcast(np.zeros(3), 0)
    while not request.Test():
        pass
    other.Wait()
    assert (slow == comm.size * (comm.size - 1) // 2).all()


def check_point_to_point_while_collectives_are_in_flight(comm):
    """Tags and contexts are separate: a receive from any source never sees a collective's messages."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = comm.Iallgather(np.full(1000, comm.rank), got := np.empty((comm.size, 1000), int))
    status = MPI.Status()
    one = np.empty(1, int)
    receive = comm.Irecv(one, MPI.ANY_SOURCE, MPI.ANY_TAG)
    comm.Send(np.array([comm.rank]), right, 3)
    receive.Wait(status)
    assert one[0] == left == status.source and status.tag == 3
    request.Wait()
    assert (got == np.arange(comm.size)[:, None]).all()


def check_nonblocking_barrier_waits_for_all(comm):
    """No rank may pass before the last has arrived: the last one sends first, the others look."""
    last = comm.size - 1
    if comm.rank == last:
        for r in range(last):
            comm.Send(np.array([r]), r, 9)
        comm.Ibarrier().Wait()
    else:
        request = comm.Ibarrier()
        request.Wait()
        one = np.empty(1, int)
        comm.Recv(one, last, 9)
        assert one[0] == comm.rank


def check_two_communicators_at_once(comm):
    """Collectives on two communicators overlap, started in a different order on odd ranks."""
    other = comm.Dup()
    a, b = np.full(5000, comm.rank), np.full(5000, 10 * comm.rank)
    if comm.rank % 2:
        requests = [other.Iallreduce(MPI.IN_PLACE, b), comm.Iallreduce(MPI.IN_PLACE, a)]
    else:
        requests = [comm.Iallreduce(MPI.IN_PLACE, a), other.Iallreduce(MPI.IN_PLACE, b)]
    MPI.Request.Waitall(requests)
    total = comm.size * (comm.size - 1) // 2
    assert (a == total).all() and (b == 10 * total).all()
    other.Free()


if __name__ == "__main__":
    main(globals())
