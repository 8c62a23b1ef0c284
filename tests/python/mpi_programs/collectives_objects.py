"""Lower-case collectives: any objects, different ones per rank, every root, predefined and user-defined operations."""

import numpy as np
from harness import MPI, main, raises, roots

MESSAGES = [None, 7, 3.5, "text", (), [1, [2]], {"key": (1, 2)}, b"x" * 100_000, "y" * 2_000_000]


def check_barrier(comm):
    comm.barrier()


def check_bcast(comm):
    for root in roots(comm):
        for message in MESSAGES:
            assert comm.bcast(message if comm.rank == root else None, root) == message
        assert comm.bcast(obj=root if comm.rank == root else "ignored", root=root) == root
        got = comm.bcast(np.arange(500_000).reshape(1000, 500) if comm.rank == root else None, root)
        assert got.shape == (1000, 500) and np.array_equal(got.ravel(), np.arange(500_000))
        if comm.rank != root:
            got += 1


def check_gather(comm):
    for root in roots(comm):
        for message in MESSAGES:
            got = comm.gather((comm.rank, message), root)
            assert got == ([(r, message) for r in roots(comm)] if comm.rank == root else None)
        got = comm.gather(np.full(1000 * comm.rank, comm.rank), root=root)
        assert comm.rank != root or all((got[r] == r).all() and got[r].size == 1000 * r for r in roots(comm))


def check_scatter(comm):
    for root in roots(comm):
        for message in MESSAGES:
            got = comm.scatter([(r, message) for r in roots(comm)] if comm.rank == root else None, root)
            assert got == (comm.rank, message)
        got = comm.scatter([np.full(100_000, r) for r in roots(comm)] if comm.rank == root else None, root=root)
        assert (got == comm.rank).all()


def check_allgather(comm):
    for message in MESSAGES:
        assert comm.allgather((comm.rank, message)) == [(r, message) for r in roots(comm)]
    got = comm.allgather(np.full(200_000, comm.rank))
    assert all((got[r] == r).all() for r in roots(comm))


def check_alltoall(comm):
    for message in MESSAGES:
        got = comm.alltoall([(comm.rank, r, message) for r in roots(comm)])
        assert got == [(r, comm.rank, message) for r in roots(comm)]
    got = comm.alltoall([np.full(50_000, 100 * comm.rank + r) for r in roots(comm)])
    assert all((got[r] == 100 * r + comm.rank).all() for r in roots(comm))


def check_reduce_and_allreduce(comm):
    total = comm.size * (comm.size - 1) // 2
    assert comm.allreduce(comm.rank) == total
    assert comm.allreduce(float(comm.rank), op=MPI.SUM) == total
    assert comm.allreduce(comm.rank + 1, MPI.PROD) == np.prod(np.arange(1, comm.size + 1, dtype=object))
    assert comm.allreduce(comm.rank, MPI.MAX) == comm.size - 1
    assert comm.allreduce(comm.rank, MPI.MIN) == 0
    assert comm.allreduce((comm.rank * 7 % 5, comm.rank), MPI.MAXLOC) == (
        *max((r * 7 % 5, -r) for r in roots(comm))[:1],
        min(r for r in roots(comm) if r * 7 % 5 == max(q * 7 % 5 for q in roots(comm))),
    )
    assert comm.allreduce((-comm.rank, comm.rank), MPI.MINLOC) == (-(comm.size - 1), comm.size - 1)
    assert comm.allreduce(comm.rank > 0, MPI.LAND) is (comm.size == 0)
    assert comm.allreduce(True, MPI.LAND) is True
    assert comm.allreduce(comm.rank > 0, MPI.LOR) is (comm.size > 1)
    assert comm.allreduce(comm.rank == 0, MPI.LXOR) is True
    assert comm.allreduce(1 << comm.rank, MPI.BOR) == (1 << comm.size) - 1
    assert comm.allreduce(6, MPI.BAND) == 6
    assert comm.allreduce(5, MPI.BXOR) == (5 if comm.size % 2 else 0)
    assert comm.allreduce([comm.rank]) == list(roots(comm))  # + on lists is not commutative: rank order
    assert comm.allreduce(str(comm.rank)) == "".join(map(str, roots(comm)))
    got = comm.allreduce(np.full(1000, comm.rank))
    assert (got == total).all()
    for root in roots(comm):
        got = comm.reduce(str(comm.rank), op=MPI.SUM, root=root)
        assert got == ("".join(map(str, roots(comm))) if comm.rank == root else None)
        got = comm.reduce(np.full(100_000, comm.rank), MPI.MAX if comm.size == 0 else MPI.SUM, root)
        assert comm.rank != root or (got == total).all()


def check_own_functions(comm):
    assert comm.allreduce([comm.rank], op=lambda a, b: a + b) == list(roots(comm))
    merged = comm.allreduce({comm.rank: str(comm.rank)}, op=lambda a, b: {**a, **b})
    assert merged == {r: str(r) for r in roots(comm)}
    got = comm.reduce(comm.rank, op=max, root=comm.size - 1)
    assert got == (comm.size - 1 if comm.rank == comm.size - 1 else None)


def check_scan_and_exscan(comm):
    assert comm.scan(comm.rank) == comm.rank * (comm.rank + 1) // 2
    assert comm.scan([comm.rank]) == list(range(comm.rank + 1))
    assert comm.scan(comm.rank, op=MPI.MAX) == comm.rank
    assert comm.exscan([comm.rank]) == (list(range(comm.rank)) if comm.rank else None)
    assert comm.exscan(comm.rank + 1, MPI.PROD) == (
        None if comm.rank == 0 else int(np.prod(np.arange(1, comm.rank + 1, dtype=object)))
    )


def check_wrong_number_of_objects(comm):
    raises(ValueError, comm.alltoall, [0] * (comm.size + 1))
    if comm.size == 1:
        raises(ValueError, comm.scatter, [1, 2], 0)


def check_inputs_are_left_alone(comm):
    mine = [comm.rank]
    comm.allreduce(mine)
    comm.scan(mine)
    assert mine == [comm.rank]
    array = np.full(10, comm.rank)
    comm.allreduce(array)
    comm.reduce(array, root=0)
    assert (array == comm.rank).all()


if __name__ == "__main__":
    main(globals())
