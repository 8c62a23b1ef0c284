"""Requests: every way of waiting and testing, cancelling, freeing, and persistent ones."""

import numpy as np
from harness import MPI, main, raises


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def start(comm, count=5, length=3):
    right, left = ring(comm)
    got = [np.full(length, -1) for _ in range(count)]
    receives = [comm.Irecv(got[i], left, i) for i in range(count)]
    sends = [comm.Isend(np.full(length, 10 * comm.rank + i), right, i) for i in range(count)]
    return sends, receives, got, left


def check_wait(comm):
    sends, receives, got, left = start(comm)
    for i, request in enumerate(receives):
        status = MPI.Status()
        assert request.Wait(status) is True
        assert status.source == left and status.tag == i
        assert (got[i] == 10 * left + i).all()
        assert request == MPI.REQUEST_NULL and not request
        assert request.Wait() is True
    for request in sends:
        request.Wait()


def check_test(comm):
    sends, receives, got, left = start(comm)
    for i, request in enumerate(receives):
        while not request.Test():
            pass
        assert (got[i] == 10 * left + i).all()
    assert MPI.Request.Waitall(sends) is True
    assert receives[0].Test() is True


def check_waitall_and_testall(comm):
    sends, receives, got, left = start(comm)
    statuses = [MPI.Status() for _ in range(5)]
    assert MPI.Request.Waitall(receives, statuses)
    assert [s.tag for s in statuses] == list(range(5)) and all(s.source == left for s in statuses)
    assert all((got[i] == 10 * left + i).all() for i in range(5))
    assert all(r == MPI.REQUEST_NULL for r in receives)
    MPI.Request.Waitall(sends)
    sends, receives, got, left = start(comm)
    while not MPI.Request.Testall(receives + sends):
        pass
    assert all((got[i] == 10 * left + i).all() for i in range(5))
    assert MPI.Request.Waitall([])
    assert MPI.Request.Testall([])


def check_waitany_and_testany(comm):
    sends, receives, got, left = start(comm)
    for _ in range(5):
        status = MPI.Status()
        i = MPI.Request.Waitany(receives, status)
        assert status.tag == i and (got[i] == 10 * left + i).all()
    assert MPI.Request.Waitany(receives) == MPI.UNDEFINED
    assert MPI.Request.Testany(receives) == (MPI.UNDEFINED, True)
    done = 0
    while done < 5:
        i, flag = MPI.Request.Testany(sends)
        if flag:
            assert 0 <= i < 5
            done += 1
        else:
            assert i == MPI.UNDEFINED
    assert MPI.Request.Waitany([]) == MPI.UNDEFINED


def check_waitsome_and_testsome(comm):
    sends, receives, got, left = start(comm)
    seen = []
    while len(seen) < 5:
        statuses = [MPI.Status() for _ in range(5)]
        some = MPI.Request.Waitsome(receives, statuses)
        assert some
        for i, status in zip(some, statuses, strict=False):
            assert status.tag == i
        seen += some
    assert sorted(seen) == list(range(5))
    assert MPI.Request.Waitsome(receives) is None
    seen = []
    while len(seen) < 5:
        seen += MPI.Request.Testsome(sends)
    assert MPI.Request.Testsome(sends) is None
    assert all((got[i] == 10 * left + i).all() for i in range(5))


def check_get_status_leaves_the_request(comm):
    sends, receives, _got, left = start(comm, 1)
    status = MPI.Status()
    while not receives[0].Get_status(status):
        pass
    assert status.tag == 0 and status.source == left
    assert receives[0] != MPI.REQUEST_NULL
    receives[0].Wait()
    sends[0].Wait()


def check_cancel_a_receive(comm):
    request = comm.Irecv(np.zeros(1), comm.rank, 123)
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()
    # A canceled receive takes no message away.
    send = comm.Isend(np.ones(1), comm.rank, 123)
    got = np.zeros(1)
    comm.Recv(got, comm.rank, 123)
    send.Wait()
    assert got[0] == 1


def check_free_a_send(comm):
    right, left = ring(comm)
    data = np.full(10, comm.rank)
    request = comm.Isend(data, right, 3)
    request.Free()
    assert request == MPI.REQUEST_NULL
    got = np.empty(10, int)
    comm.Recv(got, left, 3)
    assert (got == left).all()
    comm.Barrier()


def check_buffers_of_forgotten_temporaries_stay_alive(comm):
    """The request owns a reference to its buffers: the caller need not keep them."""
    right, left = ring(comm)
    sends = [comm.Isend(np.full(100_000, i + comm.rank), right, i) for i in range(4)]
    junk = [np.full(100_000, -7) for _ in range(4)]
    got = np.empty(100_000, int)
    for i in range(4):
        comm.Recv(got, left, i)
        assert (got == i + left).all()
    MPI.Request.Waitall(sends)
    del junk


def check_unexpected_large_messages(comm):
    """Large messages that nobody waits for yet do not stop each other."""
    right, left = ring(comm)
    sends = [comm.Isend(np.full(300_000, i), right, i) for i in range(4)]
    got = np.empty(300_000, int)
    for i in (3, 1, 2, 0):
        comm.Recv(got, left, i)
        assert (got == i).all()
    MPI.Request.Waitall(sends)


def check_persistent_requests(comm):
    right, left = ring(comm)
    out, got = np.zeros(4), np.zeros(4)
    send, receive = comm.Send_init(out, right, 6), comm.Recv_init(got, left, 6)
    assert isinstance(send, MPI.Prequest)
    for i in range(5):
        out[:] = 100 * comm.rank + i
        receive.Start()
        send.Start()
        send.Wait()
        receive.Wait()
        assert (got == 100 * left + i).all()
        assert receive != MPI.REQUEST_NULL
    assert receive.Wait() is True  # inactive: returns at once
    assert receive.Test() is True
    for i in range(3):
        out[:] = i
        MPI.Prequest.Startall([receive, send])
        MPI.Request.Waitall([send, receive])
        assert (got == i).all()
    send.Free()
    receive.Free()
    assert send == MPI.REQUEST_NULL
    for make in (comm.Ssend_init, comm.Rsend_init):
        receive = comm.Recv_init(got, left, 7)
        receive.Start()
        comm.Barrier()
        send = make(out, right, 7)
        send.Start()
        MPI.Request.Waitall([send, receive])
        send.Free()
        receive.Free()


def check_copies_stand_for_the_same_operation(comm):
    right, left = ring(comm)
    for waits_for_the_copy in (False, True):
        got = np.zeros(2)
        request = comm.Irecv(got, left, 9)
        other = comm.Irecv(np.zeros(2), left, 10)
        copy = MPI.Request(request)
        assert request and copy and copy == request
        assert copy != MPI.REQUEST_NULL and copy != other
        assert not copy.Test()
        comm.Barrier()
        send = comm.Isend(np.array([comm.rank, 7.0]), right, 9)
        (copy if waits_for_the_copy else request).Wait()
        assert got.tolist() == [left, 7]
        send.Wait()
        comm.Send(np.zeros(2), right, 10)
        other.Wait()
    # Freeing the first handle is fine: the copy keeps the operation.
    got = np.zeros(1)
    copy = MPI.Request(comm.Irecv(got, left, 11))
    comm.Send(np.array([5.0]), right, 11)
    MPI.Request.Waitall([copy])
    assert got[0] == 5 and copy == MPI.REQUEST_NULL
    persistent = comm.Send_init(b"", MPI.PROC_NULL)
    copy = MPI.Prequest(persistent)
    assert copy == persistent and MPI.Request(persistent) == persistent
    raises(TypeError, MPI.Grequest, persistent)
    persistent.Start()
    persistent.Wait()
    persistent.Free()
    general = MPI.Grequest.Start()
    assert MPI.Grequest(general) == general and MPI.Request(general) == general
    raises(TypeError, MPI.Prequest, general)
    general.Complete()
    general.Wait()


def check_null_request(comm):
    assert MPI.REQUEST_NULL.Wait() is True
    assert MPI.REQUEST_NULL.Test() is True
    assert MPI.Request() == MPI.REQUEST_NULL
    assert MPI.Request.Waitall([MPI.REQUEST_NULL, MPI.Request()])
    raises(MPI.Exception, MPI.Request().Cancel)
    raises(MPI.Exception, MPI.Request().Free)


def check_mixed_requests_in_one_wait(comm):
    """Point to point and collectives in one list."""
    right, left = ring(comm)
    ones, total, got = np.ones(1), np.zeros(1), np.zeros(1)
    requests = [
        comm.Iallreduce(ones, total),
        comm.Irecv(got, left, 1),
        comm.Isend(np.array([5.0]), right, 1),
        comm.Ibarrier(),
    ]
    MPI.Request.Waitall(requests)
    assert total[0] == comm.size and got[0] == 5


def check_statuses_in_a_tuple(comm):
    for given in ((), (MPI.Status(),)):
        requests = [comm.Ibarrier(), comm.Ibarrier()]
        MPI.Request.Waitall(requests, given)
        assert not any(requests)


def check_generalized_requests(comm):
    called = []
    request = MPI.Grequest.Start(lambda status: called.append("query"), lambda: called.append("free"), None)
    assert not request.Test()
    request.Complete()
    request.Wait()
    assert "query" in called and "free" in called


if __name__ == "__main__":
    main(globals())
