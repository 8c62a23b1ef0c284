"""Upper-case point to point: order, tags, wildcards, statuses, probes, all lengths and types."""

import array

import numpy as np
from harness import MPI, PEER_IS_REAL_MPI, TYPES, main, raises, typed


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def check_send_and_receive_every_type(comm):
    right, left = ring(comm)
    for dtype, mpi_type in TYPES:
        for count in (0, 1, 7, 1000):
            data = typed(count, dtype, comm.rank)
            for spec in (data, [data, mpi_type], [data, count, mpi_type]):
                got = typed(count, dtype, 50)
                comm.Sendrecv(spec, right, 3, got, left, 3)
                assert np.array_equal(got, typed(count, dtype, left)), (dtype, count)


def check_blocking_pairs_of_every_size(comm):
    """Sizes around every likely switch of protocol: eager, rendezvous, several chunks."""
    if comm.rank > 1 or comm.size < 2:
        return
    peer = 1 - comm.rank
    for nbytes in (0, 1, 8, 63, 64, 65, 1000, 4096, 16384, 65535, 65536, 65537, 1 << 18, (1 << 20) + 3, 5 << 20):
        data = np.arange(nbytes, dtype="u1") + np.uint8(comm.rank)
        got = np.zeros(nbytes, "u1")
        if comm.rank == 0:
            comm.Send(data, peer, tag=nbytes % 1000)
            comm.Recv(got, peer, tag=nbytes % 1000)
        else:
            comm.Recv(got, peer, tag=nbytes % 1000)
            comm.Send(data, peer, tag=nbytes % 1000)
        assert np.array_equal(got, np.arange(nbytes, dtype="u1") + np.uint8(peer)), nbytes


def check_many_small_messages_keep_their_order(comm):
    right, left = ring(comm)
    if comm.size == 1:
        return
    out, got = np.zeros(1, "i8"), np.zeros(1, "i8")
    if comm.rank == 0:
        for i in range(3000):
            out[0] = i
            comm.Send(out, right, tag=1)
    else:
        for i in range(3000):
            comm.Recv(got, left, tag=1)
            assert got[0] == i
            comm.Send(got, right, tag=1)
    if comm.rank == 0:
        for i in range(3000):
            comm.Recv(got, left, tag=1)
            assert got[0] == i


def check_many_large_messages_under_way(comm):
    """Each is copied whole, whoever copies which part of it, and however many wait behind it."""
    right, left = ring(comm)
    for lengths in ([150_000] * 20, [1_000_003, 9_000, 70_001, 3, 20_000, 400_000]):
        sent = [np.arange(n, dtype="i4") * 31 + tag + 7 * comm.rank for tag, n in enumerate(lengths)]
        got = [np.full(n + 1, -1, "i4") for n in lengths]
        requests = [comm.Irecv(buffer, left, tag) for tag, buffer in enumerate(got)]
        requests += [comm.Isend(data, right, tag) for tag, data in enumerate(sent)]
        MPI.Request.Waitall(requests)
        for tag, n in enumerate(lengths):
            assert np.array_equal(got[tag][:n], np.arange(n, dtype="i4") * 31 + tag + 7 * left) and got[tag][n] == -1


def check_tags_select_messages(comm):
    """A receive takes the oldest message with its tag, whatever arrived before it with other tags."""
    right, left = ring(comm)
    requests = [comm.Isend(np.array([tag], "i4"), right, tag) for tag in range(10)]
    for tag in (5, 0, 9, 1, 8, 2, 7, 3, 6, 4):
        got = np.empty(1, "i4")
        comm.Recv(got, left, tag)
        assert got[0] == tag
    MPI.Request.Waitall(requests)


def check_wildcards_and_status(comm):
    if comm.rank == 0:
        seen = set()
        for _ in range(comm.size - 1):
            status = MPI.Status()
            got = np.full(comm.size + 5, -1, "f8")
            comm.Recv(got, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            source = status.Get_source()
            assert status.source == source and status.tag == status.Get_tag() == 10 + source
            assert status.Get_count(MPI.DOUBLE) == source == status.Get_elements(MPI.DOUBLE)
            assert status.Get_count() == status.count == 8 * source
            assert status.Get_error() == status.error == MPI.SUCCESS
            assert not status.Is_cancelled() and not status.cancelled
            assert (got[:source] == source).all() and (got[source:] == -1).all()
            seen.add(source)
        assert seen == set(range(1, comm.size))
    else:
        comm.Send(np.full(comm.rank, comm.rank, "f8"), 0, 10 + comm.rank)


def check_status_counts_partial_elements(comm):
    right, left = ring(comm)
    status = MPI.Status()
    got = bytearray(16)
    comm.Sendrecv(b"twelve bytes", right, 0, got, left, 0, status)
    assert status.Get_count(MPI.INT) == 3
    assert status.Get_count(MPI.DOUBLE) == MPI.UNDEFINED
    assert status.Get_count(MPI.BYTE) == 12
    assert bytes(got) == b"twelve bytes" + bytes(4)


def check_proc_null(comm):
    status = MPI.Status()
    got = np.array([7.0])
    comm.Send(np.zeros(3), MPI.PROC_NULL)
    comm.Recv(got, MPI.PROC_NULL, status=status)
    assert got[0] == 7 and status.source == MPI.PROC_NULL and status.tag == MPI.ANY_TAG and status.count == 0
    comm.Sendrecv(np.zeros(1), MPI.PROC_NULL, 0, got, MPI.PROC_NULL, 0, status)
    assert got[0] == 7 and status.source == MPI.PROC_NULL
    comm.Isend(np.zeros(3), MPI.PROC_NULL).Wait()
    comm.Irecv(got, MPI.PROC_NULL).Wait(status)
    assert status.source == MPI.PROC_NULL and status.Get_count(MPI.DOUBLE) == 0
    comm.Probe(MPI.PROC_NULL, status=status)
    assert status.source == MPI.PROC_NULL
    assert comm.Iprobe(MPI.PROC_NULL)


def check_message_to_self(comm):
    for count in (1, 1000, 1 << 18):
        data, got = np.arange(count) + comm.rank, np.zeros(count, int)
        request = comm.Isend(data, comm.rank, 5)
        comm.Recv(got, comm.rank, 5)
        request.Wait()
        assert np.array_equal(data, got)
        request = comm.Irecv(got, comm.rank, 6)
        comm.Send(data[::-1].copy(), comm.rank, 6)
        request.Wait()
        assert np.array_equal(data[::-1], got)


def check_sendrecv_replace(comm):
    right, left = ring(comm)
    for count in (0, 1, 100, 200_000):
        data = np.full(count, comm.rank, "i4")
        status = MPI.Status()
        comm.Sendrecv_replace(data, right, 4, left, 4, status)
        assert (data == left).all() and status.source == left and status.Get_count(MPI.INT) == count


def check_send_modes(comm):
    right, left = ring(comm)
    MPI.Attach_buffer(bytearray(1 << 16))
    for start in (comm.Isend, comm.Issend, comm.Irsend, comm.Ibsend):
        got = np.zeros(4, "i2")
        receive = comm.Irecv(got, left, 8)
        comm.Barrier()  # a ready-mode send must find its receive posted
        request = start(typed(4, np.int16, comm.rank), right, 8)
        receive.Wait()
        request.Wait()
        assert np.array_equal(got, typed(4, np.int16, left))
    for call in (comm.Bsend, comm.Ssend, comm.Rsend):
        got = np.zeros(4, "i2")
        receive = comm.Irecv(got, left, 8)
        comm.Barrier()
        call(typed(4, np.int16, comm.rank), right, 8)
        receive.Wait()
        assert np.array_equal(got, typed(4, np.int16, left))
    MPI.Detach_buffer()


def check_synchronous_send_waits_for_its_receive(comm):
    request = comm.Issend(np.zeros(1), comm.rank, 11)
    for _ in range(100):
        assert not request.Test()
    comm.Recv(np.zeros(1), comm.rank, 11)
    request.Wait()


def check_probe(comm):
    right, left = ring(comm)
    request = comm.Isend(typed(33, np.int32, comm.rank), right, 21)
    status = MPI.Status()
    comm.Probe(left, 21, status)
    assert status.source == left and status.tag == 21 and status.Get_count(MPI.INT) == 33
    assert comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
    assert not comm.Iprobe(left, 22)
    got = np.empty(status.Get_count(MPI.INT), "i4")
    comm.Recv(got, status.source, status.tag)
    assert np.array_equal(got, typed(33, np.int32, left))
    request.Wait()
    assert not comm.Iprobe(left, 21)


def check_matched_probe(comm):
    """No other receive can get a matched message."""
    right, left = ring(comm)
    first, second = np.array([1.0, comm.rank]), np.array([2.0, comm.rank])
    requests = [comm.Isend(first, right, 2), comm.Isend(second, right, 2)]
    status = MPI.Status()
    message = comm.Mprobe(MPI.ANY_SOURCE, 2, status)
    assert isinstance(message, MPI.Message) and status.count == 16 and status.source == left
    got = np.empty(2)
    comm.Recv(got, left, 2)
    assert got[0] == 2
    message.Recv(got, status)
    assert got[0] == 1 and got[1] == left and message == MPI.MESSAGE_NULL
    message = comm.Improbe(left, 99)
    assert message is None
    MPI.Request.Waitall(requests)
    request = comm.Isend(first, right, 3)
    while (message := MPI.Message.Iprobe(comm, left, 3)) is None:
        pass
    message.Irecv(got).Wait()
    assert got[0] == 1 and got[1] == left
    request.Wait()


def check_buffer_specifications(comm):
    """Every way to specify memory in mpi4py."""
    right, left = ring(comm)
    want = np.arange(6, dtype="i4") + left

    def exchange(send, recv):
        comm.Sendrecv(send, right, 0, recv, left, 0)

    mine = np.arange(6, dtype="i4") + comm.rank
    sends = [
        mine,
        mine.tobytes(),
        bytearray(mine.tobytes()),
        memoryview(mine),
        array.array("i", mine.tolist()),
        mine.reshape(2, 3),
        np.asfortranarray(mine.reshape(2, 3).T).T,
        [mine, MPI.INT],
        [mine, 6],
        [mine, (6, None)],
        [mine, (6, 0)],
        [mine, 6, MPI.INT],
        (mine, 6, MPI.INT),
        [mine, "i"],
        [mine, 6, "i"],
        [mine, "i4"],
        [mine, None, MPI.INT],
        [mine, 6, 0, MPI.INT],
        [mine, None, 0, MPI.INT],
        [np.concatenate([[0, 0], mine]).astype("i4"), (6, 2), MPI.INT],
        [np.concatenate([[0, 0], mine]).astype("i4"), 6, 2, "i"],
        [mine.tobytes(), MPI.INT],
        [mine.view("u1"), 24, MPI.BYTE],
        [mine.view("u1"), 6, MPI.INT],
        [array.array("i", mine.tolist()), MPI.INT],
    ]
    for spec in sends:
        got = np.zeros(6, "i4")
        exchange(spec, got)
        assert np.array_equal(got, want), spec
    plain = array.array("i", [0] * 6)
    exchange(mine, plain)
    assert plain.tolist() == want.tolist()
    plain = bytearray(24)
    exchange(mine, plain)
    assert bytes(plain) == want.tobytes()
    plain = bytearray(24)
    exchange(mine, [memoryview(plain), 6, MPI.INT])
    assert bytes(plain) == want.tobytes()
    got = np.full(9, -1, "i4")
    exchange(mine, [got, (6, 2), MPI.INT])
    assert got.tolist() == [-1, -1, *want.tolist(), -1]
    comm.Sendrecv([None, 0, MPI.INT], right, 0, [None, 0, MPI.INT], left, 0)
    comm.Sendrecv([MPI.BOTTOM, 0, MPI.INT], right, 0, [MPI.BOTTOM, 0, MPI.INT], left, 0)
    raises(TypeError, comm.Recv, None, left)
    scalar = np.array(comm.rank)
    got = np.zeros(())
    exchange(scalar.astype("f8"), got)
    assert got == left


def check_bad_buffers_are_refused(comm):
    strided = np.zeros((4, 4))[:, 1]
    read_only = b"1234"
    raises((ValueError, TypeError, BufferError), comm.Isend, strided, comm.rank)
    raises((ValueError, TypeError, BufferError), comm.Irecv, read_only, comm.rank)
    raises(TypeError, comm.Isend, object(), comm.rank)
    raises(TypeError, comm.Isend, 5, comm.rank)
    if not PEER_IS_REAL_MPI:  # mpi4py reads past the end
        raises((ValueError, TypeError), comm.Isend, [np.zeros(3), 4, MPI.DOUBLE], comm.rank)
    raises((KeyError, ValueError), comm.Isend, [np.zeros(3), "no such type"], comm.rank)
    raises((ValueError, TypeError), comm.Isend, [np.zeros(3), 1, 2, MPI.DOUBLE, 5, 6], comm.rank)
    raises((TypeError, KeyError, ValueError), comm.Isend, np.array([object()]), comm.rank)


def check_keyword_arguments(comm):
    right, left = ring(comm)
    got = np.zeros(2)
    request = comm.Irecv(buf=got, source=left, tag=77)
    comm.Send(buf=np.ones(2), dest=right, tag=77)
    request.Wait(status=MPI.Status())
    comm.Sendrecv(sendbuf=got, dest=right, sendtag=1, recvbuf=np.zeros(2), source=left, recvtag=1)
    assert got.tolist() == [1, 1]


if __name__ == "__main__":
    main(globals())
