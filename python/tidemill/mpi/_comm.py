"""Communicators of one group. The upper-case calls on buffers are native; everything else is here.

Source: MPI 4.1 chapters 3, 6 and 7.
"""

from __future__ import annotations

import functools
import socket
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tidemill import _tidemill
from tidemill._errors import ERROR_CLASSES, CommError, added_classes, error_string, fail
from tidemill.mpi import _constants as c
from tidemill.mpi import _objects
from tidemill.mpi._buffers import BOTTOM
from tidemill.mpi._datatype import predefined as datatypes
from tidemill.mpi._group import Group
from tidemill.mpi._handle import Attributes
from tidemill.mpi._info import ERRORS_ARE_FATAL, ERRORS_RETURN, INFO_NULL, Errhandler, Info
from tidemill.mpi._lateness import CpuUse, Lateness, compare
from tidemill.mpi._memory import attached
from tidemill.mpi._message import Message
from tidemill.mpi._missing import missing
from tidemill.mpi._objects import Combine
from tidemill.mpi._op import Op
from tidemill.mpi._op import predefined as ops
from tidemill.mpi._pickle import pickle
from tidemill.mpi._request import Prequest, Request
from tidemill.mpi._status import Status

SUM: Op = ops["SUM"]

#: The beginnings of names of new communicators, which tell their origin.
_NAMES = {"world": "MPI_COMM_WORLD", "self": "MPI_COMM_SELF"}

_cpu_use = CpuUse()


class _State:
    """State that handles of one communicator share, in addition to the native one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attributes: dict[int, Any] = {}
        self.info: Info = Info.Create()
        self.errhandler = ERRORS_ARE_FATAL
        self.topology: Any = None
        self.buffer: Any = None
        #: The job of its workers by themselves (`tidemill.group`).
        self.job: Any = None


class Comm(_tidemill.Comm, Attributes["Comm"]):
    """A group of processes that communicate with each other.

    Upper-case methods send buffers and are native code; lower-case methods send any Python object.
    """

    _kind = "comm"
    _state: _State

    def __new__(cls, comm: Comm | None = None) -> Any:
        if comm is not None and comm and not cls._takes(comm):
            raise TypeError(f"cannot make a {cls.__name__} of a {type(comm).__name__}")
        self = super().__new__(cls, comm)
        if comm is not None:
            self._state = comm._state
            self._predefined_name = comm._predefined_name
        else:
            self._state = _State("MPI_COMM_NULL")
        return self

    @classmethod
    def _wrap(cls, native: _tidemill.Comm, name: str = "") -> Any:
        self = super().__new__(cls, native)
        self._state = _State(name)
        return self

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        """Return whether another communicator can have this class."""
        return True

    def _identity(self) -> object:
        return self._state if self._is_usable() else None

    def _check_usable(self) -> None:
        self.Get_size()

    @property
    def _attributes(self) -> dict[int, Any]:  # type: ignore[override]
        return self._state.attributes

    # Properties.

    @property
    def group(self) -> Group:
        """The group of this communicator."""
        return self.Get_group()

    def Get_group(self) -> Group:
        """Return the group of this communicator."""
        return Group._of(self._world_ranks())  # type: ignore[no-any-return]

    def Is_inter(self) -> bool:
        """Return whether this is an intercommunicator."""
        self._check_usable()
        return False

    def Is_intra(self) -> bool:
        """Return whether this is an intracommunicator."""
        self._check_usable()
        return not self.Is_inter()

    @property
    def is_inter(self) -> bool:
        """True if this is an intercommunicator."""
        return self.Is_inter()

    @property
    def is_intra(self) -> bool:
        """True if this is an intracommunicator."""
        return self.Is_intra()

    def Get_topology(self) -> int:
        """Return ``MPI.CART``, ``MPI.GRAPH``, ``MPI.DIST_GRAPH`` or ``MPI.UNDEFINED``."""
        self._check_usable()
        return c.UNDEFINED if self._state.topology is None else int(self._state.topology.kind)

    topology = property(Get_topology, doc="See `Get_topology`.")

    @property
    def is_topo(self) -> bool:
        """True if this communicator has a topology."""
        return self.Get_topology() != c.UNDEFINED

    @classmethod
    def _compare_groups(cls, a: Group, b: Group) -> int:
        found = a.Compare(b)
        return c.CONGRUENT if found == c.IDENT else found

    def Compare(self, comm: Comm) -> int:
        """Return ``MPI.IDENT``, ``MPI.CONGRUENT`` (same group), ``MPI.SIMILAR`` (other order) or ``MPI.UNEQUAL``."""
        self._check_usable()
        comm._check_usable()
        if self == comm:
            return c.IDENT
        if self.Is_inter() != comm.Is_inter():
            return c.UNEQUAL
        return self._compare_groups(self.Get_group(), comm.Get_group())

    def lateness(self) -> list[Lateness]:
        """Return which ranks came late to the last 100 collectives, and which got their results late; collective.

        Blocking upper-case calls that wait for all ranks are compared, such as `Allreduce` and `Barrier`, if somebody
        waited in them for a millisecond or longer.

        Returns
        -------
        list of Lateness
            One for each rank. As text it is a sentence.

        Raises
        ------
        CommError
            If a worker is lost.

        Examples
        --------
        >>> for one in comm.lateness():  # doctest: +SKIP
        ...     if one.late or one.behind:
        ...         print(one)
        rank 5 on node2 came 40 ms late to 97 of the last 100 collectives: the others waited for its work, which used 0.96 CPUs
        """
        told = self.allgather((self._recent_waits(), socket.gethostname(), _cpu_use.look()))
        waits, hosts, cpus = zip(*told, strict=True)
        return compare(waits, hosts, cpus)

    def Get_name(self) -> str:
        """Return the name."""
        return self._state.name

    def Set_name(self, name: str) -> None:
        """Set the communicator's name on this process; error messages and stall reports use it."""
        self._rename(name)
        self._state.name = name

    name = property(Get_name, Set_name, doc="The name of the communicator.")

    def Get_info(self) -> Info:
        """Return a copy of the hints."""
        self._check_usable()
        return self._state.info.Dup()  # type: ignore[no-any-return]

    def Set_info(self, info: Info) -> None:
        """Set hints. Tidemill ignores all of them."""
        self._check_usable()
        self._state.info.update(info)

    @property
    def info(self) -> Info:
        """A copy of the hints."""
        return self.Get_info()

    @info.setter
    def info(self, info: Info) -> None:
        self.Set_info(info)

    def Get_attr(self, keyval: int) -> Any:
        """Return the value of an attribute, or of a predefined one such as ``MPI.TAG_UB``."""
        self._check_usable()
        if keyval < 0:
            return _predefined_attribute(keyval)
        return super().Get_attr(keyval)

    # Errors.

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Any, int], None]) -> Errhandler:
        """Return an error handler for `Call_errhandler`. Errors are raised as exceptions, whatever the handler."""
        return Errhandler._of(errhandler_fn)

    def Get_errhandler(self) -> Errhandler:
        """Return the error handler."""
        self._check_usable()
        return Errhandler(self._state.errhandler)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set the error handler. Errors are raised as exceptions, whatever the handler."""
        self._check_usable()
        if not errhandler:
            raise fail("ERR_ARG", "the error handler is ERRHANDLER_NULL")
        # A copy, because the caller may free the original.
        self._state.errhandler = Errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the error handler if it is your own function; otherwise raise the error, unless errors are returned."""
        self._check_usable()
        if self._state.errhandler._function is not None:
            self._state.errhandler._function(self, errorcode)
        elif errorcode and self._state.errhandler != ERRORS_RETURN:
            raise CommError(errorcode, error_string(errorcode))

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the whole job at once. The other processes raise `PeerFailed`; this process exits with `errorcode`."""
        from tidemill._membership import abort

        abort(errorcode, self._state.name)

    # New communicators.

    def _make(self, native: _tidemill.Comm | None, kind: type[Comm] | None = None) -> Any:
        """Return a handle for a new native communicator, ``COMM_NULL`` for none."""
        kind = kind or type(self)
        if native is None:
            return COMM_NULL if kind is Comm else kind()
        return kind._wrap(native)

    def Clone(self) -> Any:
        """Return a communicator of the same group, without attributes and hints. Collective."""
        return self._inherit(self._make(self._dup()))

    def _inherit(self, new: Any) -> Any:
        """Pass on the topology."""
        new._state.topology = self._state.topology
        return new

    def Dup(self, info: Info | None = None) -> Any:
        """Return a communicator of the same group; the functions of attribute keys copy the attributes. Collective."""
        new = self.Clone()
        self._copy_attributes(new)
        new._state.info.update(self._state.info if info is None else info)
        return new

    def Dup_with_info(self, info: Info) -> Any:
        """Same as `Dup`."""
        return self.Dup(info)

    def Idup(self, info: Info | None = None) -> tuple[Any, Request]:
        """Call `Dup`, which completes before this returns, and return the result with a completed request."""
        return self.Dup(info), self.Isend([BOTTOM, 0, datatypes["BYTE"]], c.PROC_NULL)

    def Idup_with_info(self, info: Info) -> tuple[Any, Request]:
        """Same as `Idup`."""
        return self.Idup(info)

    def Create(self, group: Group) -> Any:
        """Return a communicator of a part of the group, ``COMM_NULL`` outside it. Collective; ranks may pass different
        groups if these are disjoint.
        """
        members = group._workers()
        mine = self._world_ranks()
        place = {worker: rank for rank, worker in enumerate(mine)}
        if any(worker not in place for worker in members):
            raise fail("ERR_GROUP", "the group has members that are not in the communicator")
        me = mine[self.rank]
        # The color is the first member, so that disjoint groups become different communicators.
        color = place[members[0]] if me in members else None
        return self._make(self._split(color, members.index(me) if me in members else 0), self._plain())

    @classmethod
    def _plain(cls) -> type[Comm]:
        """Return the class of its parts: without the topology."""
        return Intracomm

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Return one communicator for each color, ranked by `key`, then by rank in this one. Collective.

        The color ``MPI.UNDEFINED`` gives ``COMM_NULL``.
        """
        if color == c.UNDEFINED:
            return self._make(self._split(None, key), self._plain())
        if color < 0:
            raise fail("ERR_ARG", f"colour {color} is negative")
        return self._make(self._split(color, key), self._plain())

    def Split_type(self, split_type: int, key: int = 0, info: Info = INFO_NULL) -> Any:
        """Return one communicator for each host (``MPI.COMM_TYPE_SHARED``). Collective."""
        if split_type not in (c.COMM_TYPE_SHARED, c.UNDEFINED, c.COMM_TYPE_HW_GUIDED, c.COMM_TYPE_HW_UNGUIDED):
            raise fail("ERR_ARG", f"{split_type} is not a type to split by")
        by_resource = bool(info) and info.Get("mpi_hw_resource_type") == "mpi_shared_memory"
        if split_type == c.UNDEFINED or (split_type != c.COMM_TYPE_SHARED and not by_resource):
            return self.Split(c.UNDEFINED, key)
        from tidemill._membership import hosts

        return self.Split(hosts()[self._world_ranks()[self.rank]], key)

    def Free(self) -> None:
        """Set this handle to ``COMM_NULL``; the native communicator is freed when it is no longer used."""
        self._check_usable()
        if self._predefined_name is not None:
            raise fail("ERR_COMM", f"{self._state.name} is predefined and cannot be freed")
        self._delete_attributes()
        self._free()

    def free(self) -> None:
        """Free the communicator unless it is null or predefined."""
        if self and self._predefined_name is None:
            self.Free()

    def Disconnect(self) -> None:
        """Wait for the other processes, then free the communicator. Collective."""
        self.Barrier()
        self.Free()

    # Point to point.

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send a buffer and receive another message into it."""
        request = self.Ibsend(buf, dest, sendtag)
        self.Recv(buf, source, recvtag, status)
        request.Wait()

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
    ) -> Request:
        """Start sending one message and receiving another."""
        return _both(self.Irecv(recvbuf, source, recvtag), self.Isend(sendbuf, dest, sendtag))

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = c.ANY_SOURCE, recvtag: int = c.ANY_TAG
    ) -> Request:
        """Start sending a buffer and receiving another message into it."""
        sending = self.Ibsend(buf, dest, sendtag)
        return _both(self.Irecv(buf, source, recvtag), sending)

    def Mprobe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a message and remove it from matching."""
        message = Message()
        self._match(message, source, tag, status, True)
        return message

    def Improbe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> Message | None:
        """Remove a message from matching, if there is one."""
        message = Message()
        return message if self._match(message, source, tag, status, False) else None

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object. Large arrays in it are not copied."""
        _objects.send(self, obj, dest, tag)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a copy of an object and return at once."""
        self.Ibsend(pickle.dumps(obj), dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object; return when its receive has started."""
        _objects.send(self, obj, dest, tag, synchronous=True)

    def recv(
        self, buf: Any = None, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> Any:
        """Receive an object. `buf` is not needed: any message fits.

        Warns
        -----
        UserWarning
            If `buf` is a buffer, as in mpi4py. A number (a size, in earlier versions of mpi4py) is ignored.
        """
        if buf is not None and not isinstance(buf, int):
            warnings.warn("recv: the argument buf is deprecated and has no effect", UserWarning, stacklevel=2)
        return _objects.recv(self, source, tag, status)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = c.ANY_SOURCE,
        recvtag: int = c.ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send one object and receive another."""
        request = _objects.isend(self, sendobj, dest, sendtag)
        found = _objects.recv(self, source, recvtag, status)
        request.Wait()
        return found

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start sending an object. Its arrays must not change until the request completes."""
        return _objects.isend(self, obj, dest, tag)

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start sending a copy of an object: the request completes at once."""
        request: Request = self.Ibsend(pickle.dumps(obj), dest, tag)
        return request

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start a synchronous send of an object: the request completes when the receive has started."""
        return _objects.isend(self, obj, dest, tag, synchronous=True)

    def irecv(self, buf: Any = None, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG) -> Request:
        """Start receiving an object; `Request.wait` returns it. `buf` is not needed."""
        return _objects.irecv(self, source, tag)

    def probe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> bool:
        """Wait for a message that a receive would match."""
        return bool(self.Probe(source, tag, status))

    def iprobe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> bool:
        """Return whether there is a message that a receive would match."""
        return bool(self.Iprobe(source, tag, status))

    def mprobe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a message and remove it from matching."""
        return self.Mprobe(source, tag, status)

    def improbe(self, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None) -> Message | None:
        """Remove a message from matching, if there is one."""
        return self.Improbe(source, tag, status)

    # Buffered sends do not need a buffer here.

    def Attach_buffer(self, buf: Any) -> None:
        """Accept a buffer for compatibility: buffered sends allocate the memory they need."""
        self._check_usable()
        self._state.buffer = attached(buf)

    def Detach_buffer(self) -> Any:
        """Return the buffer passed to `Attach_buffer`."""
        self._check_usable()
        found, self._state.buffer = self._state.buffer, None
        return found

    def Flush_buffer(self) -> None:
        """Do nothing; for compatibility."""
        self._check_usable()

    def Iflush_buffer(self) -> Request:
        """Return a completed request; for compatibility."""
        return self.Isend([BOTTOM, 0, datatypes["BYTE"]], c.PROC_NULL)

    # Collectives on objects.

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to all ranks."""
        self._check_root(root)
        return _objects.bcast(self, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Collect all ranks' objects at the root, as a list by rank."""
        self._check_root(root)
        return _objects.gather(self, sendobj, root)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Send the root's object i to rank i."""
        self._check_root(root)
        return _objects.scatter(self, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Collect all ranks' objects on all ranks, as a list by rank."""
        return _objects.allgather(self, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Exchange objects: object i of rank j becomes object j of rank i."""
        return _objects.alltoall(self, sendobj)

    def reduce(self, sendobj: Any, op: Combine = SUM, root: int = 0) -> Any:
        """Combine all ranks' objects in rank order; the root gets the result, other ranks get ``None``."""
        self._check_root(root)
        return _objects.reduce(self, sendobj, op, root)

    def allreduce(self, sendobj: Any, op: Combine = SUM) -> Any:
        """Combine all ranks' objects in rank order; all ranks get the result."""
        return _objects.allreduce(self, sendobj, op)

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.Get_size():
            raise fail("ERR_ROOT", f"root {root} is not in a communicator of {self.size} ranks")

    # Parts of MPI that Tidemill does not support.

    @classmethod
    def Get_parent(cls) -> Any:
        """Return ``COMM_NULL``: dynamic processes are not supported."""
        from tidemill.mpi._inter import Intercomm

        return Intercomm()

    @classmethod
    def Join(cls, fd: int) -> NoReturn:
        """Not available: dynamic processes."""
        missing("Comm.Join", "dynamic processes")

    def Revoke(self) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Revoke", "recovery from lost processes")

    def Is_revoked(self) -> bool:
        """Return False: communicators are never revoked."""
        self._check_usable()
        return False

    def Shrink(self) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Shrink", "recovery from lost processes")

    def Ishrink(self) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Ishrink", "recovery from lost processes")

    def Agree(self, flag: int) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Agree", "recovery from lost processes")

    def Iagree(self, flag: Any) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Iagree", "recovery from lost processes")

    def Get_failed(self) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Get_failed", "recovery from lost processes")

    def Ack_failed(self, num_to_ack: int | None = None) -> NoReturn:
        """Not available: fault tolerance by shrinking."""
        missing("Comm.Ack_failed", "recovery from lost processes")

    def Psend_init(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: partitioned communication."""
        missing("Comm.Psend_init", "partitioned communication")

    def Precv_init(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: partitioned communication."""
        missing("Comm.Precv_init", "partitioned communication")


class _Both:
    """Drives the request of a combined receive and send."""

    def __init__(self, receive: Request, send: Request) -> None:
        self.requests = [receive, send]
        self.source: int | None = None
        self.tag, self.nbytes, self.cancelled, self.result = c.ANY_TAG, 0, False, None

    def step(self, block: bool) -> bool:
        statuses = [Status(), Status()]
        if block:
            Request.Waitall(self.requests, statuses)
        elif not Request.Testall(self.requests, statuses):
            return False
        self.source, self.tag, self.nbytes = statuses[0].source, statuses[0].tag, statuses[0].count
        return True

    def cancel(self) -> None:
        self.requests[0].Cancel()


def _both(receive: Request, send: Request) -> Request:
    request = Request()
    request._drive(_Both(receive, send))
    return request


def _add_persistent() -> None:
    """Add ``Send_init`` and the like: a persistent request that starts the nonblocking call of the same name
    repeatedly.
    """
    names = ["Send", "Recv", "Bsend", "Ssend", "Rsend"]
    names += ["Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall"]
    names += ["Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter"]
    for name in names:
        setattr(Comm, f"{name}_init", persistent(name))


def persistent(name: str) -> Callable[..., Prequest]:
    """Return the persistent variant of a call."""
    nonblocking = "I" + name[0].lower() + name[1:]

    def call(self: Comm, *args: Any, **kwargs: Any) -> Prequest:
        kwargs.pop("info", None)
        self._check_usable()
        return Prequest._of(functools.partial(getattr(self, nonblocking), *args, **kwargs))

    call.__name__, call.__qualname__ = f"{name}_init", f"Comm.{name}_init"
    call.__doc__ = (
        f"Return a persistent request that runs `{nonblocking}` with these arguments each time it is started.\n\n"
        "Source: MPI 4.1 sections 3.9 and 6.13."
    )
    return call


def _predefined_attribute(keyval: int) -> Any:
    from tidemill._membership import current_size

    known = {
        c.TAG_UB: 2**31 - 1,
        c.IO: c.PROC_NULL,
        c.WTIME_IS_GLOBAL: False,
        c.UNIVERSE_SIZE: None,
        c.APPNUM: None,
        c.LASTUSEDCODE: max(added_classes, default=ERROR_CLASSES["ERR_LASTCODE"]),
    }
    if keyval == c.UNIVERSE_SIZE:
        return current_size()
    if keyval not in known:
        raise fail("ERR_KEYVAL", f"{keyval} is not an attribute key")
    return known[keyval]


_add_persistent()
COMM_NULL = Comm()
COMM_NULL._predefined_name = "COMM_NULL"


class Intracomm(Comm):
    """A communicator of one group."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return not comm.Is_inter()

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Return a communicator of a part of the group; only its members call this."""
        place = {worker: rank for rank, worker in enumerate(self._world_ranks())}
        members = group._workers()
        if any(worker not in place for worker in members):
            raise fail("ERR_GROUP", "the group has members that are not in the communicator")
        if group.rank == c.UNDEFINED:
            return Intracomm()
        self._check_tag(tag, False)
        return self._make(self._create_group([place[worker] for worker in members], tag), Intracomm)

    @classmethod
    def Create_from_group(
        cls,
        group: Group,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Errhandler | None = None,
    ) -> Any:
        """Return a communicator of a group; only its members call this."""
        import zlib

        from tidemill import mpi

        return mpi.COMM_WORLD.Create_group(group, zlib.crc32(stringtag.encode()) & 0x7FFFFFFF)

    def scan(self, sendobj: Any, op: Combine = SUM) -> Any:
        """Combine the objects of ranks up to and including this one."""
        return _objects.scan(self, sendobj, op)

    def exscan(self, sendobj: Any, op: Combine = SUM) -> Any:
        """Combine the objects of lower ranks; ``None`` on rank 0."""
        return _objects.exscan(self, sendobj, op)

    # Topologies.

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Any:
        """Return a communicator whose ranks form a grid of `dims`; ``COMM_NULL`` for ranks outside it. Collective.

        Parameters
        ----------
        dims : sequence of int
            Number of ranks along each dimension.
        periods : sequence of bool or bool, optional
            Dimensions that wrap around; none by default.
        reorder : bool, default=False
            Accepted for compatibility; ranks keep their order.
        """
        from tidemill.mpi._topology import create_cart

        return create_cart(self, dims, periods)

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        """Return a communicator with a graph that every rank knows in full. Collective."""
        from tidemill.mpi._topology import create_graph

        return create_graph(self, index, edges)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Any = None,
        destweights: Any = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        """Return a communicator with a graph; every rank specifies its own edges. Collective."""
        from tidemill.mpi._topology import create_dist_graph_adjacent

        return create_dist_graph_adjacent(self, sources or [], destinations or [], sourceweights, destweights)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Any = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        """Return a communicator with a graph; any rank may specify any edges. Collective."""
        from tidemill.mpi._topology import create_dist_graph

        return create_dist_graph(self, sources, degrees, destinations, weights)

    def Create_intercomm(self, local_leader: int, peer_comm: Intracomm, remote_leader: int, tag: int = 0) -> Any:
        """Return an intercommunicator between this group and another; the leaders of both must know each other.
        Collective over both.
        """
        from tidemill.mpi._inter import create_intercomm

        return create_intercomm(self, local_leader, peer_comm, remote_leader, tag)

    def Cart_map(self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None) -> int:
        """Return the rank's position in a grid: its rank, ``MPI.UNDEFINED`` outside."""
        import math

        return self.rank if self.rank < math.prod(dims) else c.UNDEFINED

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """Return the rank's position in a graph: its rank, ``MPI.UNDEFINED`` outside."""
        return self.rank if self.rank < len(index) else c.UNDEFINED

    # Dynamic processes.

    def Spawn(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: dynamic processes. Start all workers at once, or use `tidemill.run`."""
        missing("Intracomm.Spawn", "dynamic processes")

    def Spawn_multiple(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: dynamic processes."""
        missing("Intracomm.Spawn_multiple", "dynamic processes")

    def Accept(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: dynamic processes."""
        missing("Intracomm.Accept", "dynamic processes")

    def Connect(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: dynamic processes."""
        missing("Intracomm.Connect", "dynamic processes")


for _name in ("Scan", "Exscan"):
    setattr(Intracomm, f"{_name}_init", persistent(_name))
