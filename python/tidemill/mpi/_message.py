"""Messages removed from matching. Source: MPI 4.1 section 3.8.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill import _tidemill
from tidemill.mpi import _constants as c
from tidemill.mpi import _objects
from tidemill.mpi._handle import _predefined
from tidemill.mpi._request import Numbered, Request
from tidemill.mpi._status import Status

if TYPE_CHECKING:
    from tidemill.mpi._comm import Comm


class Message(_tidemill.MatchedMessage, Numbered):
    """A message from a matching probe; only this handle and its copies, ``MPI.Message(other)``, can receive it."""

    def __bool__(self) -> bool:
        return not self._is_null

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        if self._is_null or self._is_nobody:
            return bool(self._is_null == other._is_null and self._is_nobody == other._is_nobody)
        return bool(self._shared == other._shared)

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __hash__(self) -> int:
        return hash(self._shared)

    def __reduce__(self) -> Any:
        for name in ("MESSAGE_NULL", "MESSAGE_NO_PROC"):
            if self is globals()[name]:
                return _predefined, (name,)
            if (self._is_null or self._is_nobody) and self == globals()[name]:
                return type(self), (None, bool(self._is_nobody))
        raise ValueError("cannot pickle a message")

    @classmethod
    def Probe(
        cls, comm: Comm, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> Message:
        """Wait for a message and remove it from matching."""
        message = cls()
        comm._match(message, source, tag, status, True)
        return message

    @classmethod
    def Iprobe(
        cls, comm: Comm, source: int = c.ANY_SOURCE, tag: int = c.ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """Remove a message from matching, if there is one."""
        message = cls()
        return message if comm._match(message, source, tag, status, False) else None

    probe = Probe
    iprobe = Iprobe

    def recv(self, status: Status | None = None) -> Any:
        """Receive the object of the message."""
        return _objects.opened(self._recv_parcel(), status)

    def irecv(self) -> Request:
        """Start receiving the object of the message."""
        request: Request = self._irecv_parcel(_objects.unpickle)
        return request

    def free(self) -> None:
        """Set a copy of ``MPI.MESSAGE_NO_PROC`` to ``MPI.MESSAGE_NULL``; any other message must be received, or is
        lost.
        """
        if self._is_nobody and self is not MESSAGE_NO_PROC:
            self._recv_parcel()


MESSAGE_NULL = Message()
MESSAGE_NO_PROC = Message(None, True)
