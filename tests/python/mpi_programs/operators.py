"""Reduction operations: every predefined one on every type that supports it, pairs, and user-defined ones."""

import numpy as np
from harness import MPI, TYPES, main, raises, roots

INTEGERS = [(d, t) for d, t in TYPES if np.issubdtype(d, np.integer)]
FLOATS = [(d, t) for d, t in TYPES if np.issubdtype(d, np.floating)]
COMPLEX = [(d, t) for d, t in TYPES if np.issubdtype(d, np.complexfloating)]
BOOL = [(np.bool_, MPI.C_BOOL)]


def values(dtype, count, rank):
    """Small values, so that products stay within int8 for a few ranks; bits and zeros included."""
    return np.random.default_rng([count, rank]).integers(0, 3, count).astype(dtype)


def truth(function):
    return lambda a, b: function(a != 0, b != 0).astype(a.dtype)


CASES = [
    (MPI.SUM, INTEGERS + FLOATS + COMPLEX, np.add),
    (MPI.PROD, INTEGERS + FLOATS + COMPLEX, np.multiply),
    (MPI.MAX, INTEGERS + FLOATS, np.maximum),
    (MPI.MIN, INTEGERS + FLOATS, np.minimum),
    (MPI.LAND, INTEGERS + BOOL, truth(np.logical_and)),
    (MPI.LOR, INTEGERS + BOOL, truth(np.logical_or)),
    (MPI.LXOR, INTEGERS + BOOL, truth(np.logical_xor)),
    (MPI.BAND, INTEGERS, np.bitwise_and),
    (MPI.BOR, INTEGERS, np.bitwise_or),
    (MPI.BXOR, INTEGERS, np.bitwise_xor),
]


def fold(function, parts):
    result = parts[0]
    for part in parts[1:]:
        result = function(result, part)
    return result


def check_predefined_operations(comm):
    for op, types, function in CASES:
        for dtype, mpi_type in types:
            for count in (1, 17, 1000):
                parts = [values(dtype, count, r) for r in roots(comm)]
                want = fold(function, parts)
                got = np.empty(count, dtype)
                comm.Allreduce([parts[comm.rank], mpi_type], [got, mpi_type], op)
                assert np.array_equal(got, want), (op, dtype, count)
                comm.Reduce([parts[comm.rank], mpi_type], [got, mpi_type], op, comm.size - 1)
                comm.Scan([parts[comm.rank], mpi_type], [got, mpi_type], op)
                assert np.array_equal(got, fold(function, parts[: comm.rank + 1])), (op, dtype)


def check_minloc_and_maxloc(comm):
    pairs = [
        (MPI.FLOAT_INT, [("v", "f4"), ("i", "i4")]),
        (MPI.DOUBLE_INT, [("v", "f8"), ("i", "i4")]),
        (MPI.LONG_INT, [("v", "i8"), ("i", "i4")]),
        (MPI.TWOINT, [("v", "i4"), ("i", "i4")]),
        (MPI.SHORT_INT, [("v", "i2"), ("i", "i4")]),
        (MPI.LONG_DOUBLE_INT, [("v", np.longdouble), ("i", "i4")]),
    ]
    for mpi_type, fields in pairs:
        dtype = np.dtype(fields, align=True)
        assert dtype.itemsize == mpi_type.extent
        mine = np.zeros(5, dtype)
        mine["v"] = [(comm.rank * k) % 3 for k in range(5)]
        mine["i"] = comm.rank
        got = np.zeros(5, dtype)
        for op, pick in ((MPI.MINLOC, min), (MPI.MAXLOC, max)):
            comm.Allreduce([mine, mpi_type], [got, mpi_type], op)
            for k in range(5):
                best = pick((r * k) % 3 for r in roots(comm))
                assert got[k]["v"] == best
                assert got[k]["i"] == min(r for r in roots(comm) if (r * k) % 3 == best)


def check_not_a_number_and_infinities(comm):
    data = np.array([np.inf, -np.inf, 1.0]) * (1 if comm.rank == 0 else 0.5)
    got = np.empty(3)
    comm.Allreduce(data, got, MPI.MAX)
    assert got.tolist() == [np.inf, -np.inf, 1.0]
    comm.Allreduce(data, got, MPI.MIN)
    assert got.tolist() == [np.inf, -np.inf, 1.0 if comm.size == 1 else 0.5]


def matmul(inbuf, inoutbuf, datatype):
    """2 x 2 matrix product: associative, not commutative."""
    a = np.frombuffer(inbuf, "f8").reshape(-1, 2, 2)
    b = np.frombuffer(inoutbuf, "f8").reshape(-1, 2, 2)
    b[:] = a @ b


def check_own_operation_in_rank_order(comm):
    """A non-commutative operation must equal the product in rank order, whatever the algorithm."""
    kind = MPI.DOUBLE.Create_contiguous(4).Commit()
    op = MPI.Op.Create(matmul, commute=False)
    assert not op.Is_commutative() and not op.is_commutative
    for count in (1, 3, 301, 40_001):
        parts = [np.tile([[1.0, r % 3], [(r + 1) % 2, 1.0]], (count, 1, 1)) for r in roots(comm)]
        want = fold(np.matmul, parts)
        got = np.zeros((count, 2, 2))
        comm.Allreduce([parts[comm.rank], count, kind], [got, count, kind], op)
        assert np.array_equal(got, want)
        for root in roots(comm):
            got[:] = 0
            comm.Reduce([parts[comm.rank], count, kind], [got, count, kind] if comm.rank == root else None, op, root)
            assert comm.rank != root or np.array_equal(got, want)
        comm.Scan([parts[comm.rank], count, kind], [got, count, kind], op)
        assert np.array_equal(got, fold(np.matmul, parts[: comm.rank + 1]))
        comm.Exscan([parts[comm.rank], count, kind], [got, count, kind], op)
        assert comm.rank == 0 or np.array_equal(got, fold(np.matmul, parts[: comm.rank]))
        request = comm.Iallreduce([parts[comm.rank], count, kind], [got, count, kind], op)
        request.Wait()
        assert np.array_equal(got, want)
    op.Free()
    assert op == MPI.OP_NULL
    kind.Free()


def check_own_commutative_operation(comm):
    seen = []

    def largest(inbuf, inoutbuf, datatype):
        seen.append(datatype in (MPI.LONG, MPI.INT64_T))  # the handle is only good during the call
        a, b = np.frombuffer(inbuf, "i8"), np.frombuffer(inoutbuf, "i8")
        np.maximum(np.abs(a), np.abs(b), out=b)

    op = MPI.Op.Create(largest, commute=True)
    assert op.Is_commutative() and not op.is_predefined
    got = np.zeros(1000, int)
    comm.Allreduce(np.full(1000, -comm.rank), got, op)
    assert (got == comm.size - 1).all()
    assert all(seen)
    op.Free()


def check_operations_as_functions(comm):
    assert MPI.SUM(2, 3) == 5 and MPI.PROD(2, 3) == 6 and MPI.MAX(2, 3) == 3 and MPI.MIN(2, 3) == 2
    assert MPI.LAND(2, 0) is False and MPI.LOR(2, 0) is True and MPI.LXOR(2, 3) is False
    assert MPI.BAND(6, 3) == 2 and MPI.BOR(6, 3) == 7 and MPI.BXOR(6, 3) == 5
    assert MPI.MAXLOC((1, 5), (2, 3)) == (2, 3) and MPI.MAXLOC((2, 5), (2, 3)) == (2, 3)
    assert MPI.MINLOC((1, 5), (2, 3)) == (1, 5)
    assert MPI.REPLACE(1, 2) == 1 or MPI.REPLACE(1, 2) == 2
    assert MPI.SUM.Is_commutative() and MPI.SUM.is_predefined
    assert MPI.SUM != MPI.PROD and MPI.Op(MPI.SUM) == MPI.SUM and not MPI.OP_NULL and MPI.SUM


def check_reduce_local(comm):
    a, b = np.array([1, 2, 3]), np.array([10, 20, 30])
    MPI.SUM.Reduce_local(a, b)
    assert b.tolist() == [11, 22, 33]
    MPI.MIN.Reduce_local(a, b)
    assert b.tolist() == [1, 2, 3]


def check_undefined_combinations(comm):
    error = raises(MPI.Exception, comm.Allreduce, np.zeros(1, "f8"), np.zeros(1, "f8"), MPI.BAND)
    assert error.Get_error_class() == MPI.ERR_OP
    raises(MPI.Exception, comm.Allreduce, np.zeros(1), np.zeros(1), MPI.OP_NULL)


if __name__ == "__main__":
    main(globals())
