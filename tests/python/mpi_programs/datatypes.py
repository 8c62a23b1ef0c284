"""Datatypes: sizes, extents and names of the predefined ones, and messages with derived ones."""

import numpy as np
from harness import MPI, TYPES, main, raises, roots


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def check_predefined(comm):
    for dtype, mpi_type in TYPES:
        assert mpi_type.Get_size() == mpi_type.size == np.dtype(dtype).itemsize
        assert mpi_type.Get_extent() == (0, np.dtype(dtype).itemsize) and mpi_type.is_predefined and mpi_type.is_named
    assert MPI.BYTE.size == MPI.CHAR.size == 1 and MPI.INT.size == 4 and MPI.LONG.size == 8
    assert MPI.DOUBLE.Get_name() == MPI.DOUBLE.name == "MPI_DOUBLE"
    assert MPI.DOUBLE_INT.size == 12 and MPI.DOUBLE_INT.extent == 16
    assert MPI.Datatype(MPI.DOUBLE) == MPI.DOUBLE and MPI.DOUBLE != MPI.FLOAT and not MPI.DATATYPE_NULL
    assert MPI.Datatype.fromcode("d") == MPI.DOUBLE and MPI.Datatype.fromcode("i") == MPI.INT
    assert MPI.DOUBLE.tocode() == "d" and MPI.INT.typechar == "i"
    assert MPI.Datatype.Match_size(MPI.TYPECLASS_REAL, 8).size == 8


def check_contiguous(comm):
    right, left = ring(comm)
    kind = MPI.INT.Create_contiguous(3).Commit()
    assert kind.size == 12 and kind.extent == 12 and not kind.is_predefined
    send, got = np.arange(12, dtype="i4") + comm.rank, np.zeros(12, "i4")
    status = MPI.Status()
    comm.Sendrecv([send, 4, kind], right, 0, [got, 4, kind], left, 0, status)
    assert np.array_equal(got, np.arange(12) + left)
    assert status.Get_count(kind) == 4 and status.Get_elements(kind) == 12 and status.Get_count(MPI.INT) == 12
    got = np.zeros((comm.size, 12), "i4")
    comm.Allgather([send, 4, kind], [got, 4, kind])
    assert all(np.array_equal(got[r], np.arange(12) + r) for r in roots(comm))
    kind.Free()
    assert kind == MPI.DATATYPE_NULL


def check_column_of_a_matrix(comm):
    """The usual halo exchange: a column leaves as a vector and arrives in another column."""
    right, left = ring(comm)
    column = MPI.DOUBLE.Create_vector(4, 1, 5).Commit()
    assert column.size == 32 and column.extent == (3 * 5 + 1) * 8
    grid = np.full((4, 5), float(comm.rank))
    grid[:, 3] = comm.rank + 0.5
    comm.Sendrecv([grid.ravel()[3:], 1, column], right, 0, [grid, 1, column], left, 0)
    assert (grid[:, 0] == left + 0.5).all() and (grid[:, 1:3] == comm.rank).all() and (grid[:, 4] == comm.rank).all()
    # Non-blocking, and as plain numbers on the other side.
    got = np.zeros(4)
    request = comm.Irecv([got, 4, MPI.DOUBLE], left, 1)
    comm.Isend([grid, 1, column], right, 1).Wait()
    request.Wait()
    assert np.array_equal(got, np.full(4, (left - 1) % comm.size + 0.5))
    request = comm.Irecv([grid.ravel()[4:], 1, column], left, 2)
    comm.Send([np.array([1.0, 2.0, 3.0, 4.0]), 4, MPI.DOUBLE], right, 2)
    request.Wait()
    assert grid[:, 4].tolist() == [1, 2, 3, 4]
    column.Free()


def check_subarray(comm):
    right, left = ring(comm)
    block = MPI.INT.Create_subarray([6, 7], [2, 3], [3, 1]).Commit()
    assert block.size == 24 and block.extent == 6 * 7 * 4
    send = np.arange(42, dtype="i4").reshape(6, 7) + 100 * comm.rank
    got = np.zeros((6, 7), "i4")
    comm.Sendrecv([send, 1, block], right, 0, [got, 1, block], left, 0)
    want = np.zeros((6, 7), "i4")
    want[3:5, 1:4] = (np.arange(42).reshape(6, 7) + 100 * left)[3:5, 1:4]
    assert np.array_equal(got, want)
    fortran = MPI.INT.Create_subarray([7, 6], [3, 2], [1, 3], MPI.ORDER_FORTRAN).Commit()
    got[:] = 0
    comm.Sendrecv([send, 1, block], right, 0, [got, 1, fortran], left, 0)
    assert np.array_equal(got, want)
    block.Free()
    fortran.Free()


def check_indexed_and_struct(comm):
    right, left = ring(comm)
    kind = MPI.INT.Create_indexed([2, 0, 3], [6, 1, 0]).Commit()
    send, got = np.arange(8, dtype="i4") + 10 * comm.rank, np.full(8, -1, "i4")
    comm.Sendrecv([send, 1, kind], right, 0, [got, 1, kind], left, 0)
    want = np.full(8, -1)
    for i in (6, 7, 0, 1, 2):
        want[i] = i + 10 * left
    assert np.array_equal(got, want)
    packed = np.zeros(5, "i4")
    comm.Sendrecv([send, 1, kind], right, 0, packed, left, 0)
    assert (packed - 10 * left).tolist() == [6, 7, 0, 1, 2]
    kind.Free()
    kind = MPI.INT.Create_indexed_block(2, [4, 0]).Commit()
    comm.Sendrecv([send, 1, kind], right, 0, [packed, 4, MPI.INT], left, 0)
    assert (packed[:4] - 10 * left).tolist() == [4, 5, 0, 1]
    kind.Free()
    record = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i4", 2)], align=True)
    offsets = [record.fields[n][1] for n in "abc"]
    kind = MPI.Datatype.Create_struct([1, 1, 2], offsets, [MPI.CHAR, MPI.DOUBLE, MPI.INT])
    assert kind.size == 17
    kind = kind.Create_resized(0, record.itemsize).Commit()
    assert kind.extent == record.itemsize
    mine, theirs = np.zeros(3, record), np.zeros(3, record)
    mine["a"], mine["b"], mine["c"] = comm.rank, [0.5, 1.5, 2.5], [[1, 2], [3, 4], [5, 6 + comm.rank]]
    comm.Sendrecv([mine, 3, kind], right, 0, [theirs, 3, kind], left, 0)
    assert (theirs["a"] == left).all() and np.array_equal(theirs["b"], mine["b"]) and theirs["c"][2, 1] == 6 + left
    got = np.zeros((comm.size, 3), record)
    comm.Allgather([mine, 3, kind], [got, 3, kind])
    assert all((got[r]["a"] == r).all() and got[r]["c"][2, 1] == 6 + r for r in roots(comm))
    kind.Free()


def check_resized_column_scatter(comm):
    """A column type resized to one element: scatters the columns of a matrix."""
    n = comm.size
    column = MPI.DOUBLE.Create_vector(4, 1, n)
    resized = column.Create_resized(0, 8).Commit()
    got = np.zeros(4)
    matrix = np.arange(4.0 * n).reshape(4, n) if comm.rank == 0 else None
    comm.Scatter([matrix, 1, resized] if comm.rank == 0 else None, got, 0)
    assert np.array_equal(got, np.arange(4) * n + comm.rank)
    back = np.zeros((4, n))
    comm.Gather(got, [back, 1, resized] if comm.rank == 0 else None, 0)
    assert comm.rank or np.array_equal(back, matrix)
    comm.Allgather(got, [back, 1, resized])
    assert np.array_equal(back, np.arange(4.0 * n).reshape(4, n))
    comm.Bcast([back, n, resized], 0)
    column.Free()
    resized.Free()


def check_transpose_by_types(comm):
    """Alltoallw of strided blocks: the block-column transpose of a distributed matrix."""
    n = comm.size
    mine = np.arange(2 * n, dtype="f8").reshape(2, n) + 100 * comm.rank  # rows 2 r and 2 r + 1
    columns = [MPI.DOUBLE.Create_vector(2, 1, n).Commit() for _ in roots(comm)]
    got = np.zeros((n, 2))
    comm.Alltoallw(
        [mine, ([1] * n, [8 * r for r in roots(comm)]), columns],
        [got, ([2] * n, [16 * r for r in roots(comm)]), [MPI.DOUBLE] * n],
    )
    for r in roots(comm):
        assert got[r].tolist() == [100 * r + comm.rank, 100 * r + n + comm.rank]
    for kind in columns:
        kind.Free()


def check_introspection(comm):
    kind = MPI.INT.Create_vector(3, 2, 4)
    assert kind.Get_envelope()[-1] == kind.combiner == MPI.COMBINER_VECTOR
    assert kind.decode()[1:] == ("VECTOR", {"count": 3, "blocklength": 2, "stride": 4})
    assert kind.Get_extent() == (0, 40) and kind.Get_true_extent() == (0, 40) and kind.lb == 0 and kind.ub == 40
    copy = kind.Dup()
    assert copy.size == 24
    copy.Set_name("three pairs")
    assert copy.name == "three pairs"
    for t in (kind, copy):
        t.Free()
    wide = MPI.INT.Create_hvector(2, 1, 100)
    assert wide.extent == 104
    wide.Free()
    early = MPI.INT.Create_resized(-4, 12)
    assert early.Get_extent() == (-4, 12) and early.Get_true_extent() == (0, 4)
    early.Free()


def check_contents_belong_to_the_caller(comm):
    part = MPI.INT.Create_contiguous(3)
    both = MPI.Datatype.Create_struct([1, 2], [0, 16], [part, MPI.DOUBLE])
    for _ in range(2):
        *_, datatypes = both.Get_contents()
        assert datatypes[1] == MPI.DOUBLE and datatypes[0].size == 12
        datatypes[0].Free()
    assert part.size == 12
    part.Free()
    assert both.size == 28 and MPI.INT32_T.Dup().tocode() == MPI.INT32_T.tocode()
    both.Free()


def check_pack_and_unpack(comm):
    column = MPI.DOUBLE.Create_vector(3, 1, 3).Commit()
    matrix = np.arange(9.0).reshape(3, 3)
    room = bytearray(column.Pack_size(1, comm) + MPI.INT.Pack_size(2, comm))
    position = column.Pack(matrix, room, 0, comm)
    position = MPI.INT.Pack(np.array([7, 8], "i4"), room, position, comm)
    assert position == 32
    got, ints = np.zeros((3, 3)), np.zeros(2, "i4")
    position = column.Unpack(room, 0, got, comm)
    position = MPI.INT.Unpack(room, position, ints, comm)
    assert got[:, 0].tolist() == [0, 3, 6] and (got[:, 1:] == 0).all() and ints.tolist() == [7, 8] and position == 32
    column.Free()


def check_errors(comm):
    raises(MPI.Exception, MPI.DATATYPE_NULL.Get_size)
    error = raises(MPI.Exception, comm.Send, [np.zeros(1), 1, MPI.DATATYPE_NULL], comm.rank)
    assert error.Get_error_class() == MPI.ERR_TYPE
    raises(MPI.Exception, MPI.INT.Create_contiguous, -1)


if __name__ == "__main__":
    main(globals())
