"""Upper-case collectives with one count: every type, length and root, in place and not."""

import numpy as np
from harness import MPI, TYPES, main, roots, typed

COUNTS = (0, 1, 3, 1000)


def check_barrier(comm):
    for _ in range(20):
        comm.Barrier()


def check_bcast(comm):
    for dtype, mpi_type in TYPES:
        for count in COUNTS:
            for root in roots(comm):
                for spec in (lambda b: b, lambda b: [b, mpi_type], lambda b: [b, b.size, mpi_type]):  # noqa: B023
                    data = typed(count, dtype, 7 if comm.rank == root else 50)
                    comm.Bcast(spec(data), root)
                    assert np.array_equal(data, typed(count, dtype, 7))


def check_bcast_of_large_arrays(comm):
    for count in (10_000, 300_001, 2_000_000):
        for root in roots(comm):
            data = np.arange(count, dtype="i4") if comm.rank == root else np.zeros(count, "i4")
            comm.Bcast(data, root=root)
            assert np.array_equal(data, np.arange(count, dtype="i4"))


def check_gather(comm):
    for dtype, mpi_type in TYPES:
        for count in COUNTS:
            for root in roots(comm):
                got = typed(count * comm.size, dtype, 50).reshape(comm.size, count) if comm.rank == root else None
                comm.Gather([typed(count, dtype, comm.rank), mpi_type], got, root)
                if comm.rank == root:
                    assert all(np.array_equal(got[r], typed(count, dtype, r)) for r in roots(comm))


def check_gather_in_place(comm):
    for root in roots(comm):
        if comm.rank == root:
            got = np.full((comm.size, 4), -1)
            got[root] = root
            comm.Gather(MPI.IN_PLACE, got, root)
            assert all((got[r] == r).all() for r in roots(comm))
        else:
            comm.Gather(np.full(4, comm.rank), None, root)


def check_scatter(comm):
    for dtype, mpi_type in TYPES:
        for count in COUNTS:
            for root in roots(comm):
                send = None
                if comm.rank == root:
                    send = np.concatenate([typed(count, dtype, r) for r in roots(comm)])
                got = typed(count, dtype, 50)
                comm.Scatter(send, [got, mpi_type], root)
                assert np.array_equal(got, typed(count, dtype, comm.rank))


def check_scatter_in_place(comm):
    for root in roots(comm):
        if comm.rank == root:
            send = np.repeat(np.arange(comm.size), 4)
            comm.Scatter(send, MPI.IN_PLACE, root)
            assert np.array_equal(send, np.repeat(np.arange(comm.size), 4))
        else:
            got = np.empty(4, int)
            comm.Scatter(None, got, root)
            assert (got == comm.rank).all()


def check_allgather(comm):
    for dtype, mpi_type in TYPES:
        for count in COUNTS:
            got = typed(count * comm.size, dtype, 50)
            comm.Allgather([typed(count, dtype, comm.rank), mpi_type], got)
            want = np.concatenate([typed(count, dtype, r) for r in roots(comm)])
            assert np.array_equal(got, want)
            got = typed(count * comm.size, dtype, 50).reshape(comm.size, count)
            got[comm.rank] = typed(count, dtype, comm.rank)
            comm.Allgather(MPI.IN_PLACE, got)
            assert np.array_equal(got.ravel(), want)
    got = np.zeros(100_000 * comm.size)
    comm.Allgather(np.full(100_000, float(comm.rank)), got)
    assert np.array_equal(got, np.repeat(np.arange(comm.size), 100_000))


def check_alltoall(comm):
    for dtype, mpi_type in TYPES:
        for count in COUNTS:
            send = np.concatenate([typed(count, dtype, comm.rank + r) for r in roots(comm)])
            want = np.concatenate([typed(count, dtype, comm.rank + r) for r in roots(comm)])
            got = typed(count * comm.size, dtype, 50)
            comm.Alltoall(send, [got, mpi_type])
            assert np.array_equal(got, want)
            comm.Alltoall(MPI.IN_PLACE, send)
            assert np.array_equal(send, want)
    big = np.repeat(np.arange(comm.size) + 100 * comm.rank, 50_000)
    got = np.empty_like(big)
    comm.Alltoall(big, got)
    assert np.array_equal(got, np.repeat(100 * np.arange(comm.size) + comm.rank, 50_000))


def numeric():
    return [(d, t) for d, t in TYPES if d is not np.bool_]


def total(parts, dtype):
    """The elementwise sum in ``dtype`` itself: integers wrap around, as MPI's do."""
    return np.sum(parts, axis=0, dtype=dtype)


def check_reduce(comm):
    for dtype, mpi_type in numeric():
        for count in COUNTS:
            want = total([typed(count, dtype, r) for r in roots(comm)], dtype)
            for root in roots(comm):
                got = typed(count, dtype, 50)
                recv = [got, mpi_type] if comm.rank == root else None
                comm.Reduce([typed(count, dtype, comm.rank), mpi_type], recv, MPI.SUM, root)
                if comm.rank == root:
                    assert np.array_equal(got, want), (dtype, count)
                # In place at the root; the others send as usual.
                data = typed(count, dtype, comm.rank)
                if comm.rank == root:
                    comm.Reduce(MPI.IN_PLACE, data, root=root)
                    assert np.array_equal(data, want)
                else:
                    comm.Reduce(data, None, root=root)
                    assert np.array_equal(data, typed(count, dtype, comm.rank))


def check_allreduce(comm):
    for dtype, mpi_type in numeric():
        for count in COUNTS:
            want = total([typed(count, dtype, r) for r in roots(comm)], dtype)
            send, got = typed(count, dtype, comm.rank), typed(count, dtype, 50)
            comm.Allreduce([send, mpi_type], [got, mpi_type])
            assert np.array_equal(got, want), (dtype, count)
            comm.Allreduce(MPI.IN_PLACE, send, op=MPI.SUM)
            assert np.array_equal(send, want)


def check_allreduce_of_large_arrays(comm):
    for count in (4096, 65_537, 1_000_001):
        send = np.arange(count, dtype="i8") * (comm.rank + 1)
        got = np.empty_like(send)
        comm.Allreduce(send, got, MPI.SUM)
        assert np.array_equal(got, np.arange(count) * (comm.size * (comm.size + 1) // 2))
        comm.Allreduce(MPI.IN_PLACE, send, MPI.MAX)
        assert np.array_equal(send, np.arange(count) * comm.size)


def check_reduce_scatter_block(comm):
    for dtype, _ in numeric():
        for count in COUNTS:
            send = np.concatenate([typed(count, dtype, comm.rank + r) for r in roots(comm)])
            want = total([typed(count, dtype, comm.rank + r) for r in roots(comm)], dtype)
            got = typed(count, dtype, 50)
            comm.Reduce_scatter_block(send, got)
            assert np.array_equal(got, want)
            comm.Reduce_scatter_block(MPI.IN_PLACE, send, MPI.SUM)
            assert np.array_equal(send[:count], want)


def check_scan_and_exscan(comm):
    for dtype, _ in numeric():
        for count in COUNTS:
            send, got = typed(count, dtype, comm.rank), typed(count, dtype, 50)
            comm.Scan(send, got)
            want = total([typed(count, dtype, r) for r in range(comm.rank + 1)], dtype)
            assert np.array_equal(got, want)
            comm.Scan(MPI.IN_PLACE, send, MPI.SUM)
            assert np.array_equal(send, want)
            send = typed(count, dtype, comm.rank)
            got = typed(count, dtype, 50)
            comm.Exscan(send, got)
            comm.Exscan(MPI.IN_PLACE, send)
            if comm.rank > 0:
                want = total([typed(count, dtype, r) for r in range(comm.rank)], dtype)
                assert np.array_equal(got, want) and np.array_equal(send, want)


def check_fortran_order_and_many_dimensions(comm):
    data = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)) if comm.rank == 0 else np.zeros((2, 3, 4), order="F")
    comm.Bcast(data, 0)
    assert np.array_equal(data, np.arange(24.0).reshape(2, 3, 4))
    got = np.zeros((2, 3, 4), order="F")
    comm.Allreduce(data, got, MPI.SUM)
    assert np.array_equal(got, data * comm.size)


def check_results_agree_bit_for_bit_on_all_ranks(comm):
    """An allreduce of floats may round in any order, but must leave the same bits everywhere."""
    for count in (1, 100, 5000, 200_000):
        values = np.random.default_rng(comm.rank).standard_normal(count)
        got = np.empty(count)
        comm.Allreduce(values, got)
        copies = np.empty((comm.size, count))
        comm.Allgather(got, copies)
        assert all(copies[r].tobytes() == got.tobytes() for r in roots(comm))


def check_back_to_back_collectives_of_different_sizes(comm):
    """State left by one collective must not leak into the next."""
    for i in range(300):
        count = (i * 37) % 211
        data = np.full(count, comm.rank + i, "i8")
        comm.Allreduce(MPI.IN_PLACE, data)
        assert (data == sum(r + i for r in roots(comm))).all()
        root = i % comm.size
        one = np.array([i if comm.rank == root else -1])
        comm.Bcast(one, root)
        assert one[0] == i


if __name__ == "__main__":
    main(globals())
