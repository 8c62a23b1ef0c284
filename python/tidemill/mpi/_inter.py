"""Intercommunicators: two groups that communicate with each other. Source: MPI 4.1 section 7.6.

An intercommunicator is a communicator of both groups, called the bridge here, in which the group with the lower first
worker comes first. Ranks of the other group are ranks of the bridge minus an offset. Collectives gather one group's
data at its first rank, send it across, and distribute it in the other group.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill._errors import fail
from tidemill._tidemill import Operation
from tidemill.mpi import _constants as c
from tidemill.mpi import _objects
from tidemill.mpi._buffers import resolve, resolve_blocks, resolve_typed
from tidemill.mpi._comm import SUM, Comm, Intracomm
from tidemill.mpi._group import Group
from tidemill.mpi._lazy import np
from tidemill.mpi._message import Message
from tidemill.mpi._objects import Combine, as_many, fold
from tidemill.mpi._request import Request
from tidemill.mpi._status import Status
from tidemill.mpi._topology import _size

if TYPE_CHECKING:
    from tidemill.mpi._datatype import Bytes

#: Tags of the hidden traffic, distinct from those of `_objects` and `_topology`.
_DATA, _DOWN = -(1 << 30) - 201, -(1 << 30) - 202


class Intercomm(Comm):
    """A communicator between two groups: messages and results of collectives go to the other group.

    The native communicator underneath, the bridge, contains both groups.
    """

    _local: Intracomm
    _offset: int
    _remote: int

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return comm.Is_inter()

    def __new__(cls, comm: Comm | None = None) -> Any:
        self = super().__new__(cls, comm)
        self._offset = self._remote = 0
        if isinstance(comm, Intercomm) and comm:
            self._local, self._offset, self._remote = comm._local, comm._offset, comm._remote
        return self

    @classmethod
    def _across(cls, bridge: Any, local: Intracomm, first: bool) -> Any:
        self = cls._wrap(bridge)
        self._local = local
        self._remote = self._bridge.size - local.size
        self._offset = local.size if first else 0
        return self

    @property
    def _bridge(self) -> Any:
        # The native methods use the whole bridge, without this class's numbering of ranks.
        return _Bridge(self)

    # Properties.

    @classmethod
    def Create_from_groups(
        cls,
        local_group: Group,
        local_leader: int,
        remote_group: Group,
        remote_leader: int,
        stringtag: str = "org.mpi4py",
        info: Any = None,
        errhandler: Any = None,
    ) -> Any:
        """Return an intercommunicator between two groups. Collective over both."""
        return create_from_groups(cls, local_group, remote_group, stringtag)

    def Get_size(self) -> int:
        """Return the number of processes in this group."""
        self._rename_check()
        return self._local.Get_size()

    def Get_rank(self) -> int:
        """Return the rank of this process in its own group."""
        self._rename_check()
        return self._local.Get_rank()

    def _rename_check(self) -> None:
        if not self._is_usable():
            raise fail("ERR_COMM", "the communicator is COMM_NULL (or was freed)")

    size = property(Get_size, doc="How many processes this group has.")
    rank = property(Get_rank, doc="This process's rank in its own group.")

    def Get_remote_size(self) -> int:
        """Return the number of processes in the other group."""
        self._rename_check()
        return self._remote

    remote_size = property(Get_remote_size, doc="How many processes the other group has.")

    def Get_group(self) -> Group:
        """Return this process's group."""
        return self._local.Get_group()

    def Get_remote_group(self) -> Group:
        """Return the other group."""
        workers = self._world_ranks()
        return Group._of(workers[self._offset : self._offset + self._remote])  # type: ignore[no-any-return]

    remote_group = property(Get_remote_group, doc="The other group.")

    def Is_inter(self) -> bool:
        """Return True."""
        self._rename_check()
        return True

    def Compare(self, comm: Comm) -> int:
        """Compare both groups, like `Comm.Compare`."""
        found = super().Compare(comm)
        if not isinstance(comm, Intercomm) or found == c.IDENT:
            return found
        other = self._compare_groups(self.Get_remote_group(), comm.Get_remote_group())
        return max(found, other)

    def Free(self) -> None:
        """Set this handle to ``COMM_NULL``."""
        self._rename_check()
        self._delete_attributes()
        self._free()

    def Clone(self) -> Any:
        """Return an intercommunicator of the same groups. Collective over both."""
        bridge = _Bridge(self).Dup()
        return type(self)._across(bridge, self._local.Clone(), self._offset > 0)

    def Merge(self, high: bool = False) -> Intracomm:
        """Return a communicator of both groups; the group that passes `high` comes last. Collective over both."""
        flags = _Bridge(self).allgather(bool(high))
        # If flags are equal, the group of the bridge's first ranks comes first.
        first = self._offset > 0
        mine, theirs = bool(high), flags[self._offset]
        behind = mine if mine != theirs else not first
        native = _Bridge(self)._split(0, self._local.rank + (self._remote if behind else 0))
        return Intracomm._wrap(native)  # type: ignore[no-any-return]

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Return an intercommunicator for each color that both groups have. Collective over both."""
        return self._part(None if color == c.UNDEFINED else color, key)

    def Create(self, group: Group) -> Any:
        """Return an intercommunicator of parts of both groups. Collective over both."""
        rank = group.Get_rank()
        return self._part(None if rank == c.UNDEFINED else 0, rank)

    def _part(self, color: int | None, key: int) -> Any:
        bridge, first = _Bridge(self), self._offset > 0
        colors = bridge.allgather(color)
        # The first group's ranks also come first in the new bridge.
        order = (0 if first else 1 << 40) + key
        both = color is not None and color in colors[self._offset : self._offset + self._remote]
        native = bridge._split(color if both else None, order)
        local = self._local._split(color if both else None, key)
        if native is None or local is None:
            return type(self)()
        return type(self)._across(native, Intracomm._wrap(local), first)

    # Point to point: ranks are those of the other group.

    def _to(self, rank: int) -> int:
        if rank in (c.PROC_NULL, c.ANY_SOURCE):
            return rank
        if not 0 <= rank < self.Get_remote_size():
            raise fail("ERR_RANK", f"rank {rank} is not in a remote group of {self._remote}")
        return rank + self._offset

    def _from(self, status: Status | None) -> None:
        if status is not None and status.source >= 0:
            status.source -= self._offset

    def _with_status(self, status: Status | None) -> Status:
        return Status() if status is None else status

    # Broadcast and similar calls take a root of ``MPI.ROOT``, ``MPI.PROC_NULL`` or the rank of the other group's root.

    def _check_root(self, root: int) -> None:
        if root not in (c.ROOT, c.PROC_NULL) and not 0 <= root < self.Get_remote_size():
            raise fail("ERR_ROOT", f"root {root} is not in a remote group of {self._remote}")

    def Barrier(self, *, algorithm: str | None = None) -> None:
        """Wait until every rank of both groups has called it."""
        _Bridge(self).Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to all ranks of the other group."""
        self._check_root(root)
        if root == c.PROC_NULL:
            return None
        if root == c.ROOT:
            _objects._give(_Bridge(self), _objects.Pickled(obj), self._offset, _DOWN).Wait()
            return None
        received = _objects._take(_Bridge(self), self._offset + root, _DOWN) if self.rank == 0 else None
        return self._local.bcast(received, 0)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Collect the objects of the other group at the root."""
        self._check_root(root)
        if root == c.PROC_NULL:
            return None
        if root == c.ROOT:
            found: list[Any] = _objects._take(_Bridge(self), self._offset, _DOWN)
            return found
        objects = self._local.gather(sendobj, 0)
        if self.rank == 0:
            _objects._give(_Bridge(self), _objects.Pickled(objects), self._offset + root, _DOWN).Wait()
        return None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Send the root's object i to rank i of the other group."""
        self._check_root(root)
        if root == c.PROC_NULL:
            return None
        if root == c.ROOT:
            objects = as_many(self._remote, sendobj)
            _objects._give(_Bridge(self), _objects.Pickled(objects), self._offset, _DOWN).Wait()
            return None
        received = _objects._take(_Bridge(self), self._offset + root, _DOWN) if self.rank == 0 else None
        return self._local.scatter(received, 0)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Collect the objects of the other group on all ranks."""
        everybody: list[Any] = _Bridge(self).allgather(sendobj)
        return everybody[self._offset : self._offset + self._remote]

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Exchange objects: object i of rank j becomes object j of rank i of the other group."""
        objects = as_many(self.Get_remote_size(), sendobj)
        others = [self._offset + rank for rank in range(self._remote)]
        return _objects.exchange(_Bridge(self), objects, others, others)

    def reduce(self, sendobj: Any, op: Combine = SUM, root: int = 0) -> Any:
        """Combine the objects of the other group; the root gets the result."""
        objects = self.gather(sendobj, root)
        return None if objects is None else fold(objects, op)

    def allreduce(self, sendobj: Any, op: Combine = SUM) -> Any:
        """Combine the objects of the other group; all ranks get the result."""
        return fold(self.allgather(sendobj), op)

    # Buffers are sent as blocks of bytes between each rank and its partners.

    def _exchange(self, sends: list[tuple[int, Bytes]], recvs: list[tuple[int, Bytes]], unpack: Any = None) -> None:
        bridge = _Bridge(self)
        parts = [bridge._irecv_hidden(room, self._offset + rank, _DATA) for rank, room in recvs]
        parts += [bridge._isend_hidden(part, self._offset + rank, _DATA) for rank, part in sends]
        Request.Waitall(parts)
        if unpack is not None:
            unpack(None)

    def Bcast(self, buf: Any, root: int = 0, **_: Any) -> None:
        """Send the root's buffer to all ranks of the other group."""
        self._check_root(root)
        if root == c.PROC_NULL:
            return
        if root == c.ROOT:
            part = _whole(buf, False)[0]
            self._exchange([(rank, part) for rank in range(self._remote)], [])
        else:
            room, unpack = _whole(buf, True)
            self._exchange([], [(root, room)], unpack)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, **_: Any) -> None:
        """Collect the arrays of the other group at the root."""
        self._gather(sendbuf, lambda: _equal(recvbuf, True, self._remote), root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0, **_: Any) -> None:
        """Like `Gather`, with blocks of different lengths."""
        self._gather(sendbuf, lambda: _blocks(resolve_blocks, recvbuf, True, self._remote), root)

    def _gather(self, sendbuf: Any, rooms: Any, root: int) -> None:
        self._check_root(root)
        if root == c.ROOT:
            blocks, unpack = rooms()
            self._exchange([], list(enumerate(blocks)), unpack)
        elif root != c.PROC_NULL:
            self._exchange([(root, _whole(sendbuf, False)[0])], [])

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, **_: Any) -> None:
        """Send block i of the root's array to rank i of the other group."""
        self._scatter(lambda: _equal(sendbuf, False, self._remote), recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0, **_: Any) -> None:
        """Like `Scatter`, with blocks of different lengths."""
        self._scatter(lambda: _blocks(resolve_blocks, sendbuf, False, self._remote), recvbuf, root)

    def _scatter(self, parts: Any, recvbuf: Any, root: int) -> None:
        self._check_root(root)
        if root == c.ROOT:
            self._exchange(list(enumerate(parts()[0])), [])
        elif root != c.PROC_NULL:
            room, unpack = _whole(recvbuf, True)
            self._exchange([], [(root, room)], unpack)

    def Allgather(self, sendbuf: Any, recvbuf: Any, **_: Any) -> None:
        """Collect the arrays of the other group on all ranks."""
        self._all(sendbuf, *_equal(recvbuf, True, self._remote))

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, **_: Any) -> None:
        """Like `Allgather`, with blocks of different lengths."""
        self._all(sendbuf, *_blocks(resolve_blocks, recvbuf, True, self._remote))

    def _all(self, sendbuf: Any, rooms: list[Bytes], unpack: Any) -> None:
        part = _whole(sendbuf, False)[0]
        self._exchange([(rank, part) for rank in range(self._remote)], list(enumerate(rooms)), unpack)

    def Alltoall(self, sendbuf: Any, recvbuf: Any, **_: Any) -> None:
        """Exchange blocks: block j of rank i becomes block i of rank j of the other group."""
        rooms, unpack = _equal(recvbuf, True, self._remote)
        self._exchange(list(enumerate(_equal(sendbuf, False, self._remote)[0])), list(enumerate(rooms)), unpack)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, **_: Any) -> None:
        """Like `Alltoall`, with blocks of different lengths."""
        self._alltoall_blocks(resolve_blocks, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any, **_: Any) -> None:
        """Like `Alltoallv`, with a datatype for each rank and displacements in bytes."""
        self._alltoall_blocks(resolve_typed, sendbuf, recvbuf)

    def _alltoall_blocks(self, resolver: Any, sendbuf: Any, recvbuf: Any) -> None:
        rooms, unpack = _blocks(resolver, recvbuf, True, self._remote)
        parts, _ = _blocks(resolver, sendbuf, False, self._remote)
        self._exchange(list(enumerate(parts)), list(enumerate(rooms)), unpack)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Operation | None = SUM, root: int = 0, **_: Any) -> None:
        """Combine the arrays of the other group; the root gets the result."""
        self._check_root(root)
        if root == c.PROC_NULL:
            return
        if root == c.ROOT:
            room, unpack = _whole(recvbuf, True)
            self._exchange([], [(0, room)], unpack)
            return
        total = _like(sendbuf)
        self._local.Reduce(sendbuf, total, op, 0)
        if self.rank == 0:
            self._exchange([(root, _whole(total, False)[0])], [])

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Operation | None = SUM, **_: Any) -> None:
        """Combine the arrays of the other group; all ranks get the result."""
        total = _like(sendbuf)
        self._local.Allreduce(sendbuf, total, op)
        room, unpack = _whole(recvbuf, True)
        part = _whole(total, False)[0]
        # Rank r serves the ranks of the other group that equal r modulo this group's size.
        sends = [(rank, part) for rank in range(self.rank, self._remote, self.size)]
        self._exchange(sends, [(self.rank % self._remote, room)], unpack)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Operation | None = SUM, **_: Any) -> None:
        """Combine the arrays of the other group; rank i gets block i of the result."""
        self._reduce_scatter(sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Operation | None = SUM, **_: Any
    ) -> None:
        """Like `Reduce_scatter_block`, with blocks of different lengths."""
        self._reduce_scatter(sendbuf, recvbuf, op)

    def _reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: Operation | None) -> None:
        total = _like(sendbuf)
        self._local.Reduce(sendbuf, total, op, 0)
        room, unpack = _whole(recvbuf, True)
        lengths = self.allgather(room.size)
        sends = []
        if self.rank == 0:
            part, start = _whole(total, False)[0], 0
            for rank, length in enumerate(lengths):
                sends.append((rank, part[start : start + length]))
                start += length
        self._exchange(sends, [(0, room)], unpack)


def _point_to_point() -> None:
    """Point-to-point call on the bridge, with ranks moved by the offset."""

    def sending(name: str) -> Any:
        native = getattr(Comm, name)

        def call(self: Intercomm, buf: Any, dest: int, tag: int = 0) -> Any:
            return native(self, buf, self._to(dest), tag)

        return call

    for name in ("Send", "Bsend", "Ssend", "Rsend", "Isend", "Ibsend", "Issend", "Irsend"):
        call = sending(name)
        call.__name__, call.__doc__ = name, f"Like `Comm.{name}`, with a rank of the other group."
        setattr(Intercomm, name, call)

    def parcels(name: str) -> Any:
        native = getattr(Comm, name)

        def call(self: Intercomm, body: Any, arrays: Any, dest: int, tag: int, synchronous: bool = False) -> Any:
            return native(self, body, arrays, self._to(dest), tag, synchronous)

        return call

    for name in ("_send_parcel", "_isend_parcel"):
        setattr(Intercomm, name, parcels(name))


_point_to_point()


def _receiving() -> None:
    def recv_parcel(self: Intercomm, source: int, tag: int) -> Any:
        found = Comm._recv_parcel(self, self._to(source), tag)
        return None if found is None else (*found[:2], found[2] - self._offset, *found[3:])

    def receive(
        self: Intercomm, buf: Any, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> None:
        """Like `Comm.Recv`, from the other group."""
        Comm.Recv(self, buf, self._to(source), tag, status)
        self._from(status)

    def irecv(self: Intercomm, buf: Any, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG) -> Request:
        """Like `Comm.Irecv`, from the other group."""
        return _moved(self, Comm.Irecv(self, buf, self._to(source), tag))

    def irecv_parcel(self: Intercomm, source: int, tag: int, finish: Any) -> Request:
        return _moved(self, Comm._irecv_parcel(self, self._to(source), tag, finish))

    def sendrecv(
        self: Intercomm,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Like `Comm.Sendrecv`, with the other group."""
        Comm.Sendrecv(self, sendbuf, self._to(dest), sendtag, recvbuf, self._to(source), recvtag, status)
        self._from(status)

    def probe(self: Intercomm, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> bool:
        """Like `Comm.Probe`, from the other group."""
        found = Comm.Probe(self, self._to(source), tag, status)
        self._from(status)
        return bool(found)

    def iprobe(self: Intercomm, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> bool:
        """Like `Comm.Iprobe`, from the other group."""
        found = bool(Comm.Iprobe(self, self._to(source), tag, status))
        if found:
            self._from(status)
        return found

    def match(self: Intercomm, message: Message, source: int, tag: int, status: Status | None, block: bool) -> bool:
        found = bool(Comm._match(self, message, self._to(source), tag, status, block))
        if found:
            self._from(status)
        return found

    for name, call in {
        "_recv_parcel": recv_parcel,
        "Recv": receive,
        "Irecv": irecv,
        "_irecv_parcel": irecv_parcel,
        "Sendrecv": sendrecv,
        "Probe": probe,
        "Iprobe": iprobe,
        "_match": match,
    }.items():
        setattr(Intercomm, name, call)


_receiving()


class _Moved:
    """Drives a receive whose status uses ranks of the other group."""

    def __init__(self, comm: Intercomm, request: Request) -> None:
        self.offset, self.request = comm._offset, request
        self.source: int | None = None
        self.tag, self.nbytes, self.cancelled = c.ANY_TAG, 0, False
        self.result: Any = None

    def step(self, block: bool) -> bool:
        if not block and not self.request._poll():
            return False
        status = Status()
        self.result = self.request._wait(status)
        self.source = status.source - self.offset if status.source >= 0 else status.source
        self.tag, self.nbytes, self.cancelled = status.tag, status.count, status.cancelled
        return True

    def cancel(self) -> None:
        self.request.Cancel()


def _moved(comm: Intercomm, request: Request) -> Request:
    moved = Request()
    moved._drive(_Moved(comm, request))
    return moved


class _Bridge(Intracomm):
    """The communicator of both groups, seen as one."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return True

    def __new__(cls, comm: Intercomm | None = None) -> Any:
        return super().__new__(cls, comm)


def _whole(spec: Any, write: bool) -> tuple[Bytes, Any]:
    memory, count, element, unpack, _ = resolve(spec, write, False, 1)
    return memory[: count * _size(element)], unpack


def _equal(spec: Any, write: bool, blocks: int) -> tuple[list[Bytes], Any]:
    memory, count, element, unpack, _ = resolve(spec, write, write, blocks)
    step = count * _size(element)
    return [memory[i * step : (i + 1) * step] for i in range(blocks)], unpack


def _blocks(resolver: Any, spec: Any, write: bool, blocks: int) -> tuple[list[Bytes], Any]:
    memory, counts, displacements, element, unpack = resolver(spec, write, write, blocks)
    size = _size(element)
    return [memory[d * size : (d + n) * size] for n, d in zip(counts, displacements, strict=True)], unpack


def _like(spec: Any) -> Any:
    """Allocate memory for the result of a reduction of such a message."""
    _memory, count, element, _, datatype = resolve(spec, False, False, 1)
    return [np.zeros(count * _size(element), np.uint8), datatype]


def create_intercomm(local: Intracomm, local_leader: int, peer: Intracomm, remote_leader: int, tag: int) -> Any:
    """See `Intracomm.Create_intercomm`."""
    from tidemill import mpi

    local._check_root(local_leader)
    mine = local._world_ranks()
    theirs = peer.sendrecv(mine, remote_leader, tag, None, remote_leader, tag) if local.rank == local_leader else None
    theirs = local.bcast(theirs, local_leader)
    if set(mine) & set(theirs):
        raise fail("ERR_COMM", "the groups of an intercommunicator must not overlap")
    first = min(mine) < min(theirs)
    ranks = mine + theirs if first else theirs + mine
    native = mpi.COMM_WORLD._create_group(ranks, tag)
    return Intercomm._across(native, local.Clone(), first)


def create_from_groups(kind: type[Intercomm], local: Group, remote: Group, stringtag: str) -> Any:
    """See `Intercomm.Create_from_groups`."""
    from tidemill import mpi

    mine, theirs = list(local._workers()), list(remote._workers())
    if not mine or not theirs:
        return kind()
    first = min(mine) < min(theirs)
    tag = zlib.crc32(stringtag.encode()) & 0x7FFFFFFF
    inner = Intracomm.Create_from_group(local, stringtag + " local")
    native = mpi.COMM_WORLD._create_group(mine + theirs if first else theirs + mine, tag)
    return kind._across(native, inner, first)
