"""Lower-case point to point: any Python object, small, huge, nested, and read-only or not as pickle promises."""

import collections
import datetime

import numpy as np
from harness import MPI, PEER_IS_REAL_MPI, main, raises


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("no pickling of this one")


MESSAGES = [
    None,
    True,
    0,
    -(1 << 80),
    3.5,
    1 + 2j,
    "",
    "text",
    b"",
    b"bytes" * 100_000,
    bytearray(b"array"),
    (),
    [],
    {},
    [1, [2, [3, (4, {"five": 6})]]],
    {1, 2, 3},
    collections.OrderedDict(a=1),
    datetime.date(2020, 2, 29),
    Point(1, [2]),
    range(10),
    Point,
    "x" * 3_000_000,
]


def ring(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def check_objects_around_the_ring(comm):
    right, left = ring(comm)
    for message in MESSAGES:
        request = comm.isend(message, right, 1)
        got = comm.recv(source=left, tag=1)
        assert got == message and type(got) is type(message)
        assert request.wait() is None
        assert comm.sendrecv(message, right, 2, None, left, 2) == message


def check_blocking_send_and_recv(comm):
    if comm.size < 2 or comm.rank > 1:
        return
    for message in MESSAGES:
        if comm.rank == 0:
            comm.send(message, dest=1, tag=9)
            assert comm.recv(source=1, tag=9) == [message]
        else:
            got = comm.recv(source=0, tag=9)
            comm.send([got], dest=0, tag=9)


def check_arrays(comm):
    right, left = ring(comm)
    for shape in ((), (0,), (5,), (3, 0, 2), (100, 100), (300_000,), (2_000_000,)):
        for order in "CF":
            mine = np.asarray(np.full(shape, comm.rank, "f8"), order=order)
            got = comm.sendrecv(mine, right, 0, None, left, 0)
            assert got.shape == mine.shape and got.dtype == mine.dtype and (got == left).all()
            if got.size:
                got += 1  # what arrives belongs to the receiver
    tree = {"a": np.arange(100_000), "b": [np.ones((1000, 10), "c16"), "text", np.array(["x", None], object)]}
    got = comm.sendrecv(tree, right, 0, None, left, 0)
    assert np.array_equal(got["a"], tree["a"]) and np.array_equal(got["b"][0], tree["b"][0])
    assert got["b"][1] == "text" and got["b"][2].tolist() == ["x", None]
    strided = np.arange(400_000).reshape(1000, 400)[::2, ::3]
    assert np.array_equal(comm.sendrecv(strided, right, 0, None, left, 0), strided)


def check_the_sender_may_change_its_array_after_send(comm):
    right, left = ring(comm)
    data = np.zeros(100_000)
    request = comm.irecv(bytearray(1 << 21), left, 3)  # mpi4py needs the room; Tidemill ignores it
    sending = comm.isend(data, right, 3)
    got = request.wait()
    sending.wait()
    data += 1
    assert (got == 0).all()


def check_status_of_object_receives(comm):
    right, left = ring(comm)
    status = MPI.Status()
    request = comm.isend({"k": comm.rank}, right, 40)
    assert comm.recv(None, MPI.ANY_SOURCE, MPI.ANY_TAG, status) == {"k": left}
    assert status.source == left and status.tag == 40 and status.error == 0 and status.count > 0
    request.wait()


def check_probe_then_receive(comm):
    right, left = ring(comm)
    request = comm.isend("hello", right, 41)
    status = MPI.Status()
    assert comm.probe(left, 41, status) is True
    assert status.tag == 41
    assert comm.iprobe(MPI.ANY_SOURCE, 41) is True
    assert comm.iprobe(left, 42) is False
    assert comm.recv(source=status.source, tag=status.tag) == "hello"
    request.wait()


def check_matched_probe(comm):
    right, left = ring(comm)
    requests = [comm.isend(("first", comm.rank), right, 5), comm.isend(("second", np.ones(300_000)), right, 5)]
    message = comm.mprobe(left, 5)
    other = comm.recv(source=left, tag=5)
    assert other[0] == "second" and other[1].sum() == 300_000
    assert message.recv() == ("first", left)
    assert comm.improbe(left, 6) is None
    MPI.Request.waitall(requests)
    request = comm.isend("third", right, 7)
    message = MPI.Message.probe(comm, left, 7)
    assert message.irecv().wait() == "third"
    request.wait()


def check_copies_of_matched_messages(comm):
    right, left = ring(comm)
    for receives_by_the_copy in (False, True):
        request = comm.issend({"from": comm.rank}, right, 8)
        copy_of_request = MPI.Request(request)
        message = comm.mprobe(left, 8)
        copy = MPI.Message(message)
        assert message and copy == message and copy != MPI.MESSAGE_NULL
        assert (copy if receives_by_the_copy else message).recv() == {"from": left}
        assert copy_of_request == request
        assert copy_of_request.wait() is None
    nobody = comm.mprobe(MPI.PROC_NULL)
    assert nobody == MPI.MESSAGE_NO_PROC and nobody.recv() is None and nobody == MPI.MESSAGE_NULL


def check_requests_return_objects(comm):
    right, left = ring(comm)
    sends = [comm.isend((i, comm.rank), right, i) for i in range(6)]
    receives = [comm.irecv(source=left, tag=i) for i in range(6)]
    assert receives[0].wait() == (0, left)
    while True:
        flag, got = receives[1].test()
        if flag:
            break
        assert got is None
    assert got == (1, left)
    index, got = MPI.Request.waitany([receives[2]])
    assert (index, got) == (0, (2, left))
    assert MPI.Request.waitall(receives[3:]) == [(i, left) for i in range(3, 6)]
    assert MPI.Request.waitall(sends) == [None] * 6
    flag = False
    while not flag:
        flag, _ = MPI.Request.testall(sends)
    assert receives[5].wait() is None  # a finished request is REQUEST_NULL


def check_large_nonblocking_receives_in_any_order(comm):
    """Two large messages on one tag arrive in order although the second is waited for first."""
    if PEER_IS_REAL_MPI:
        return  # mpi4py receives at most 32 KiB this way
    right, left = ring(comm)
    sends = [comm.isend(np.full(200_000, i), right, 1) for i in range(2)]
    first, second = comm.irecv(source=left, tag=1), comm.irecv(source=left, tag=1)
    assert (second.wait() == 1).all()
    assert (first.wait() == 0).all()
    MPI.Request.waitall(sends)


def check_buffered_and_synchronous_sends(comm):
    right, left = ring(comm)
    MPI.Attach_buffer(bytearray(1 << 16))
    for start in (comm.isend, comm.issend, comm.ibsend):
        request = start("message", right, 3)
        assert comm.recv(source=left, tag=3) == "message"
        request.wait()
    for call in (comm.bsend, comm.ssend):
        request = comm.irecv(source=left, tag=3)
        call("message", right, 3)
        assert request.wait() == "message"
    MPI.Detach_buffer()
    request = comm.issend("again", comm.rank, 4)
    for _ in range(50):
        assert request.test() == (False, None)
    assert comm.recv(source=comm.rank, tag=4) == "again"
    request.wait()


def check_proc_null(comm):
    comm.send("lost", MPI.PROC_NULL)
    assert comm.recv(source=MPI.PROC_NULL) is None
    assert comm.sendrecv("lost", MPI.PROC_NULL, 0, None, MPI.PROC_NULL, 0) is None
    assert comm.isend("lost", MPI.PROC_NULL).wait() is None
    assert comm.irecv(source=MPI.PROC_NULL).wait() is None
    assert comm.iprobe(MPI.PROC_NULL)


def check_what_cannot_be_pickled_leaves_the_communicator_usable(comm):
    right, left = ring(comm)
    raises(TypeError, comm.send, Unpicklable(), right)
    raises(TypeError, comm.isend, Unpicklable(), right)
    assert comm.sendrecv("fine", right, 0, None, left, 0) == "fine"


def check_any_source_collects_from_all(comm):
    if comm.rank == 0:
        status = MPI.Status()
        got = {}
        for _ in range(comm.size - 1):
            message = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            got[status.Get_source()] = message
        assert all((got[r] == np.full(100_000, r)).all() for r in range(1, comm.size))
    else:
        comm.send(np.full(100_000, comm.rank), dest=0, tag=comm.rank)


if __name__ == "__main__":
    main(globals())
