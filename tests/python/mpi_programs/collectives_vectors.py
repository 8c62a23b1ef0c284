"""Collectives whose counts differ per rank: every way of writing counts and displacements, gaps, zeros, roots, in place."""

import numpy as np
from harness import MPI, main, raises, roots


def layout(comm):
    """Counts 0, 1, 2, ... and displacements that leave a gap of one element after every part."""
    counts = np.arange(comm.size)
    displs = np.concatenate([[0], np.cumsum(counts + 1)[:-1]]).astype(int)
    return counts.tolist(), displs.tolist(), int(counts.sum() + comm.size)


def part(rank, count):
    return np.arange(count, dtype="f4") + 10 * rank


def specs(buf, counts, displs):
    yield [buf, (counts, displs), MPI.FLOAT]
    yield [buf, counts, displs, MPI.FLOAT]
    yield [buf, (counts, displs)]
    yield [buf, counts, displs, "f"]
    yield [buf, (tuple(counts), tuple(displs)), "f4"]
    yield [buf, (np.array(counts), np.array(displs, "i4")), MPI.FLOAT]


def packed_specs(buf, counts):
    yield [buf, counts]
    yield [buf, (counts, None)]
    yield [buf, counts, MPI.FLOAT]
    yield [buf, (counts, None), MPI.FLOAT]


def whole(comm, counts, displs, length):
    want = np.full(length, -1, "f4")
    for r in roots(comm):
        want[displs[r] : displs[r] + counts[r]] = part(r, counts[r])
    return want


def check_gatherv(comm):
    counts, displs, length = layout(comm)
    for root in roots(comm):
        for i in range(6):
            got = np.full(length, -1, "f4")
            recv = list(specs(got, counts, displs))[i] if comm.rank == root else None
            comm.Gatherv(part(comm.rank, counts[comm.rank]), recv, root)
            assert comm.rank != root or np.array_equal(got, whole(comm, counts, displs, length))
        for i in range(4):
            got = np.full(sum(counts), -1, "f4")
            recv = list(packed_specs(got, counts))[i] if comm.rank == root else None
            comm.Gatherv(part(comm.rank, counts[comm.rank]), recv, root)
            if comm.rank == root:
                assert np.array_equal(got, np.concatenate([part(r, counts[r]) for r in roots(comm)]))
        # In place at the root.
        if comm.rank == root:
            got = np.full(length, -1, "f4")
            got[displs[root] : displs[root] + counts[root]] = part(root, counts[root])
            comm.Gatherv(MPI.IN_PLACE, [got, (counts, displs), MPI.FLOAT], root)
            assert np.array_equal(got, whole(comm, counts, displs, length))
        else:
            comm.Gatherv(part(comm.rank, counts[comm.rank]), None, root)


def check_scatterv(comm):
    counts, displs, length = layout(comm)
    for root in roots(comm):
        for i in range(6):
            send = list(specs(whole(comm, counts, displs, length), counts, displs))[i] if comm.rank == root else None
            got = np.full(counts[comm.rank], -1, "f4")
            comm.Scatterv(send, got, root)
            assert np.array_equal(got, part(comm.rank, counts[comm.rank]))
        send = [whole(comm, counts, displs, length), (counts, displs), MPI.FLOAT]
        if comm.rank == root:
            comm.Scatterv(send, MPI.IN_PLACE, root)
        else:
            got = np.full(counts[comm.rank], -1, "f4")
            comm.Scatterv(None, got, root)
            assert np.array_equal(got, part(comm.rank, counts[comm.rank]))


def check_allgatherv(comm):
    counts, displs, length = layout(comm)
    for i in range(6):
        got = np.full(length, -1, "f4")
        comm.Allgatherv(part(comm.rank, counts[comm.rank]), list(specs(got, counts, displs))[i])
        assert np.array_equal(got, whole(comm, counts, displs, length))
    got = np.full(length, -1, "f4")
    got[displs[comm.rank] : displs[comm.rank] + counts[comm.rank]] = part(comm.rank, counts[comm.rank])
    comm.Allgatherv(MPI.IN_PLACE, [got, (counts, displs), MPI.FLOAT])
    assert np.array_equal(got, whole(comm, counts, displs, length))
    big = [50_000 * (r % 3) for r in roots(comm)]
    got = np.empty(sum(big))
    comm.Allgatherv(np.full(big[comm.rank], float(comm.rank)), [got, big])
    assert np.array_equal(got, np.repeat(np.arange(comm.size), big))


def check_alltoallv(comm):
    # Rank a sends (a + b) % 4 elements of value 100 a + b to rank b, and keeps one element between the parts.
    counts = [(comm.rank + r) % 4 for r in roots(comm)]
    displs = [5 * r for r in roots(comm)]
    send, want = np.full(5 * comm.size, -1, "f4"), np.full(5 * comm.size, -1, "f4")
    for r in roots(comm):
        send[5 * r : 5 * r + counts[r]] = 100 * comm.rank + r
        want[5 * r : 5 * r + counts[r]] = 100 * r + comm.rank
    for i in range(6):
        got = np.full(5 * comm.size, -1, "f4")
        comm.Alltoallv(list(specs(send, counts, displs))[i], list(specs(got, counts, displs))[i])
        assert np.array_equal(got, want)
    got = send.copy()
    comm.Alltoallv(MPI.IN_PLACE, [got, (counts, displs), MPI.FLOAT])
    assert np.array_equal(got, want)


def check_alltoallv_with_different_counts_per_direction(comm):
    """Every rank sends `rank` elements to each, and so receives r elements from r."""
    send = np.full(comm.rank * comm.size, comm.rank)
    got = np.full(comm.size * (comm.size - 1) // 2, -1)
    comm.Alltoallv([send, [comm.rank] * comm.size], [got, list(roots(comm))])
    assert np.array_equal(got, np.repeat(np.arange(comm.size), np.arange(comm.size)))


def check_alltoallw(comm):
    """A type per peer, displacements in bytes."""
    types = [MPI.INT if r % 2 == 0 else MPI.DOUBLE for r in roots(comm)]
    mine = [MPI.INT if comm.rank % 2 == 0 else MPI.DOUBLE] * comm.size
    ones, displs = [1] * comm.size, [8 * r for r in roots(comm)]
    send, got = bytearray(8 * comm.size), bytearray(8 * comm.size)
    for r in roots(comm):
        value = np.array([10 * comm.rank + r], "i4" if r % 2 == 0 else "f8").tobytes()
        send[8 * r : 8 * r + len(value)] = value
    comm.Alltoallw([send, (ones, displs), types], [got, (ones, displs), mine])
    kind = "i4" if comm.rank % 2 == 0 else "f8"
    values = [np.frombuffer(got, kind, 1, 8 * r)[0] for r in roots(comm)]
    assert values == [10 * r + comm.rank for r in roots(comm)]


def check_reduce_scatter(comm):
    counts = [r + 1 for r in roots(comm)]
    send = np.arange(sum(counts)) * (comm.rank + 1)
    start = sum(counts[: comm.rank])
    want = np.arange(sum(counts))[start : start + counts[comm.rank]] * (comm.size * (comm.size + 1) // 2)
    got = np.zeros(counts[comm.rank], int)
    comm.Reduce_scatter(send, got, counts)
    assert np.array_equal(got, want)
    comm.Reduce_scatter(MPI.IN_PLACE, send, counts, MPI.SUM)
    assert np.array_equal(send[: counts[comm.rank]], want)
    send = np.full(3 * comm.size, comm.rank)
    got = np.zeros(3, int)
    comm.Reduce_scatter(send, got, op=MPI.MAX)
    assert (got == comm.size - 1).all()


def check_default_counts(comm):
    """Without counts, the `v` calls split evenly, the first parts one longer, as mpi4py does."""
    total = 2 * comm.size + 1
    counts = [total // comm.size + (r < total % comm.size) for r in roots(comm)]
    got = np.full(total, -1)
    comm.Allgatherv(np.full(counts[comm.rank], comm.rank), got)
    assert np.array_equal(got, np.repeat(np.arange(comm.size), counts))
    got = np.full(counts[comm.rank], -1)
    comm.Scatterv(np.repeat(np.arange(comm.size), counts) if comm.rank == 0 else None, got, 0)
    assert (got == comm.rank).all()


def check_bad_counts_are_refused(comm):
    buf = np.zeros(4)
    raises((ValueError, TypeError), comm.Allgatherv, buf, [buf, [1] * (comm.size + 1), MPI.DOUBLE])
    raises((ValueError, TypeError), comm.Allgatherv, buf, [buf, ([1] * comm.size, [0] * (comm.size + 2)), MPI.DOUBLE])


if __name__ == "__main__":
    main(globals())
