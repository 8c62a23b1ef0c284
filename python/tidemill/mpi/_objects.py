"""Object messages: any Python object, pickled, with large arrays sent separately and without a copy.

A message is the pickle (protocol 5) of an object. Arrays of 16 KiB and more in it are not part of the pickle: they are
sent from their own memory and received into their final memory, as a parcel of the native code.

Collectives begin with one native collective of fixed-size slots, which contain small objects in full; so a mismatch
between ranks is detected there. Large objects follow, from the ranks that have them to the ranks that need them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemill._membership import is_consequence, tell_others
from tidemill._tidemill import Memory
from tidemill.mpi import _constants as c
from tidemill.mpi._lazy import np
from tidemill.mpi._op import Op
from tidemill.mpi._pickle import pickle
from tidemill.mpi._request import Request
from tidemill.mpi._status import Status

if TYPE_CHECKING:
    from tidemill.mpi._comm import Comm

Combine = Op | Callable[[Any, Any], Any]

#: Bytes of a slot; the first two give the used length.
SLOT_BYTES = 512
_LARGE = 0xFFFF
#: Tags of the hidden traffic. Messages of a pair stay in order, so one tag per pattern is enough.
_GATHER, _SCATTER, _ALLTOALL, _REDUCE, _NEIGHBOURS = (-(1 << 30) - n for n in range(2, 7))


class Pickled:
    """An object ready to send: the pickle, and the memory of the arrays that are sent separately."""

    __slots__ = ("arrays", "body")

    def __init__(self, obj: Any) -> None:
        self.body, self.arrays = pickle._apart(obj)

    def copied(self) -> Any:
        """Return a copy of the object, as if it had been sent."""
        return pickle.loads_oob(self.body, [bytearray(array) for array in self.arrays])


def unpickle(body: Any, arrays: Sequence[Any]) -> Any:
    """Return the object of a parcel; ``None`` for an empty message, which an upper-case send may have sent."""
    return pickle.loads_oob(body, arrays) if len(body) else None


# Point to point.


def send(comm: Comm, obj: Any, dest: int, tag: int, synchronous: bool = False) -> None:
    """Send an object."""
    comm._check_tag(tag, False)
    pickled = Pickled(obj)
    comm._send_parcel(pickled.body, pickled.arrays, dest, tag, synchronous)


def isend(comm: Comm, obj: Any, dest: int, tag: int, synchronous: bool = False) -> Request:
    """Start sending an object."""
    comm._check_tag(tag, False)
    pickled = Pickled(obj)
    request: Request = comm._isend_parcel(pickled.body, pickled.arrays, dest, tag, synchronous)
    return request


def recv(comm: Comm, source: int, tag: int, status: Status | None) -> Any:
    """Receive an object."""
    comm._check_tag(tag, True)
    return opened(comm._recv_parcel(source, tag), status)


def opened(parcel: Any, status: Status | None) -> Any:
    """Return the object of a parcel, ``None`` from ``PROC_NULL``; fill the status."""
    if parcel is None:
        body, arrays, source, tag, nbytes = None, [], c.PROC_NULL, c.ANY_TAG, 0
    else:
        body, arrays, source, tag, nbytes = parcel
    if status is not None:
        status.source, status.tag, status.error, status.count = source, tag, 0, nbytes
        status.cancelled = False
    return None if body is None else unpickle(body, arrays)


def irecv(comm: Comm, source: int, tag: int) -> Request:
    """Start receiving an object."""
    comm._check_tag(tag, True)
    request: Request = comm._irecv_parcel(source, tag, unpickle)
    return request


def _give(comm: Comm, pickled: Pickled, dest: int, tag: int) -> Request:
    request: Request = comm._isend_parcel(pickled.body, pickled.arrays, dest, tag)
    return request


def _take(comm: Comm, source: int, tag: int) -> Any:
    return opened(comm._recv_parcel(source, tag), None)


# Collectives.


class Slot:
    """An object's slot in a collective of fixed-size slots: the whole object if it is small, else a mark that it is
    large.
    """

    __slots__ = ("is_large", "memory", "pickled")

    def __init__(self, obj: Any) -> None:
        self.pickled = Pickled(obj)
        body = self.pickled.body
        self.is_large = bool(self.pickled.arrays) or len(body) > SLOT_BYTES - 2
        used = _LARGE if self.is_large else len(body)
        self.memory = used.to_bytes(2, "little") + (b"" if self.is_large else body)

    def bytes(self) -> bytes:
        return self.memory.ljust(SLOT_BYTES, b"\0")


def _slots(count: int) -> Memory:
    return Memory(count * SLOT_BYTES)


def _read(slots: Memory) -> Iterator[bytes | None]:
    """Return the pickle in every slot; ``None`` for large ones."""
    memory = slots.tobytes()
    for start in range(0, len(memory), SLOT_BYTES):
        used = memory[start] | memory[start + 1] << 8
        yield None if used == _LARGE else memory[start + 2 : start + 2 + used]


def bcast(comm: Comm, obj: Any, root: int) -> Any:
    """Send the root's object to all ranks."""
    if comm.rank == root:
        slot = Slot(obj)
        comm.Bcast(slot.bytes(), root)
        if slot.is_large:
            _bcast_large(comm, slot.pickled, root)
        return obj
    room = _slots(1)
    comm.Bcast(room, root)
    (body,) = _read(room)
    return pickle.loads(body) if body is not None else _bcast_large(comm, None, root)


def _bcast_large(comm: Comm, pickled: Pickled | None, root: int) -> Any:
    """Broadcast the lengths of pickle and arrays, the pickle, and each array into its final memory."""
    if pickled is not None:
        lengths = np.array([len(pickled.body), *(array.nbytes for array in pickled.arrays)], np.int64)
        comm.Bcast(np.array([lengths.size]), root)
        comm.Bcast(lengths, root)
        comm.Bcast(pickled.body, root)
        for array in pickled.arrays:
            comm.Bcast(array, root)
        return None
    count = np.zeros(1, np.int64)
    comm.Bcast(count, root)
    lengths = np.zeros(int(count[0]), np.int64)
    comm.Bcast(lengths, root)
    rooms = [np.empty(length, np.uint8) for length in lengths]
    for room in rooms:
        comm.Bcast(room, root)
    return pickle.loads_oob(rooms[0].data, rooms[1:])


def gather(comm: Comm, obj: Any, root: int) -> list[Any] | None:
    """Collect all ranks' objects at the root."""
    slot = Slot(obj)
    if comm.rank != root:
        comm.Gather(slot.bytes(), None, root)
        if slot.is_large:
            _give(comm, slot.pickled, root, _GATHER).Wait()
        return None
    room = _slots(comm.size)
    comm.Gather(slot.bytes(), room, root)
    return [_found(comm, rank, body, slot, _GATHER) for rank, body in enumerate(_read(room))]


def _found(comm: Comm, rank: int, body: bytes | None, own: Slot, tag: int) -> Any:
    """Return a rank's object: from its slot, this rank's own, or received now."""
    if body is not None:
        return pickle.loads(body)
    return own.pickled.copied() if rank == comm.rank else _take(comm, rank, tag)


def scatter(comm: Comm, objs: Sequence[Any] | None, root: int) -> Any:
    """Send the root's object i to rank i."""
    room = _slots(1)
    if comm.rank != root:
        comm.Scatter(None, room, root)
        (body,) = _read(room)
        return pickle.loads(body) if body is not None else _take(comm, root, _SCATTER)
    slots = [Slot(obj) for obj in as_many(comm.size, objs)]
    comm.Scatter(b"".join(slot.bytes() for slot in slots), room, root)
    _give_large(comm, slots, _SCATTER)()
    return slots[root].pickled.copied()


def _give_large(comm: Comm, slots: Sequence[Slot], tag: int) -> Callable[[], Any]:
    """Start sending the large objects to their ranks; the result waits for completion."""
    sends = [
        _give(comm, slot.pickled, rank, tag) for rank, slot in enumerate(slots) if slot.is_large and rank != comm.rank
    ]
    return lambda: Request.Waitall(sends)


def as_many(size: int, objs: Sequence[Any] | None) -> list[Any]:
    """Return `size` objects, or raise. As in mpi4py, ``None`` means ``None`` for all ranks."""
    found = [None] * size if objs is None else list(objs)
    if len(found) != size:
        raise ValueError(f"expecting {size} items, got {len(found)}")
    return found


def _gathered(comm: Comm, slot: Slot) -> list[bytes | None]:
    """Return all ranks' pickles, where small."""
    room = _slots(comm.size)
    comm.Allgather(slot.bytes(), room)
    return list(_read(room))


def allgather(comm: Comm, obj: Any) -> list[Any]:
    """Collect all ranks' objects on all ranks."""
    slot = Slot(obj)
    objects: list[Any] = []
    for rank, body in enumerate(_gathered(comm, slot)):
        if body is not None:
            objects.append(pickle.loads(body))
        elif rank == comm.rank:
            _bcast_large(comm, slot.pickled, rank)
            objects.append(slot.pickled.copied())
        else:
            objects.append(_bcast_large(comm, None, rank))
    return objects


def alltoall(comm: Comm, objs: Sequence[Any]) -> list[Any]:
    """Exchange objects: object i of rank j becomes object j of rank i."""
    slots = [Slot(obj) for obj in as_many(comm.size, objs)]
    room = _slots(comm.size)
    comm.Alltoall(b"".join(slot.bytes() for slot in slots), room)
    wait = _give_large(comm, slots, _ALLTOALL)
    found = [_found(comm, rank, body, slots[rank], _ALLTOALL) for rank, body in enumerate(_read(room))]
    wait()
    return found


def fold(objects: Sequence[Any], op: Combine) -> Any:
    """Combine objects in rank order."""
    result = objects[0]
    for obj in objects[1:]:
        result = op(result, obj)
    return result


def _all_if_small(comm: Comm, slot: Slot) -> list[Any] | None:
    """Return all objects if all ranks' are small; otherwise none, on every rank."""
    bodies = _gathered(comm, slot)
    small = [body for body in bodies if body is not None]
    return [pickle.loads(body) for body in small] if len(small) == len(bodies) else None


@contextmanager
def _telling() -> Iterator[None]:
    """Context in which other ranks wait for this rank's data: if the operation or a pickle raises, they learn about it."""
    try:
        yield
    except BaseException as error:
        if not is_consequence(error):
            tell_others(traceback.format_exc())
        raise


def _reduce_in_tree(comm: Comm, obj: Any, op: Combine) -> Any:
    """Combine large objects along a binomial tree towards rank 0, in rank order. Only rank 0 gets the result."""
    rank, size, distance = comm.rank, comm.size, 1
    while distance < size:
        if rank & distance:
            _give(comm, Pickled(obj), rank - distance, _REDUCE).Wait()
            return None
        if rank + distance < size:
            obj = op(obj, _take(comm, rank + distance, _REDUCE))
        distance *= 2
    return obj


def reduce(comm: Comm, obj: Any, op: Combine, root: int) -> Any:
    """Combine all ranks' objects; the root gets the result."""
    slot = Slot(obj)
    objects = _all_if_small(comm, slot)
    if objects is not None:
        return fold(objects, op) if comm.rank == root else None
    with _telling():
        result = slot.pickled.copied() if comm.size == 1 else _reduce_in_tree(comm, obj, op)
        if root == 0:
            return result
        if comm.rank == 0:
            _give(comm, Pickled(result), root, _REDUCE).Wait()
            return None
        return _take(comm, 0, _REDUCE) if comm.rank == root else None


def allreduce(comm: Comm, obj: Any, op: Combine) -> Any:
    """Combine all ranks' objects; all ranks get the result."""
    slot = Slot(obj)
    objects = _all_if_small(comm, slot)
    if objects is not None:
        return fold(objects, op)
    if comm.size == 1:
        return slot.pickled.copied()
    with _telling():
        return bcast(comm, _reduce_in_tree(comm, obj, op), 0)


def scan(comm: Comm, obj: Any, op: Combine) -> Any:
    """Combine the objects of ranks up to and including this one."""
    slot = Slot(obj)
    objects = _all_if_small(comm, slot)
    if objects is not None:
        return fold(objects[: comm.rank + 1], op)
    with _telling():
        result = op(_take(comm, comm.rank - 1, _REDUCE), obj) if comm.rank else slot.pickled.copied()
        if comm.rank + 1 < comm.size:
            _give(comm, Pickled(result), comm.rank + 1, _REDUCE).Wait()
    return result


def exscan(comm: Comm, obj: Any, op: Combine) -> Any:
    """Combine the objects of lower ranks; ``None`` on rank 0."""
    objects = _all_if_small(comm, Slot(obj))
    if objects is not None:
        return fold(objects[: comm.rank], op) if comm.rank else None
    with _telling():
        before = _take(comm, comm.rank - 1, _REDUCE) if comm.rank else None
        if comm.rank + 1 < comm.size:
            total = op(before, obj) if comm.rank else obj
            _give(comm, Pickled(total), comm.rank + 1, _REDUCE).Wait()
    return before


def exchange(comm: Comm, objs: Sequence[Any], dests: Sequence[int], sources: Sequence[int]) -> list[Any]:
    """Send object i to `dests[i]`; return one object from each of `sources`, ``None`` from ``PROC_NULL``. For
    topologies.
    """
    sends = [_give(comm, Pickled(obj), dest, _NEIGHBOURS) for obj, dest in zip(objs, dests, strict=True)]
    found = [_take(comm, source, _NEIGHBOURS) for source in sources]
    Request.Waitall(sends)
    return found
