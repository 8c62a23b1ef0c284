"""Requests: operations in progress. Source: MPI 4.1 sections 3.7 and 3.9."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, TypeVar

from tidemill import _tidemill
from tidemill._errors import ERROR_CLASSES, CommError, fail
from tidemill.mpi import _constants as c
from tidemill.mpi._handle import Handle, _predefined, called
from tidemill.mpi._missing import missing
from tidemill.mpi._status import Status

#: The maximum sleep between polls of requests driven by Python code, in seconds: it costs 1 % of a core.
_NAP_S = 0.0005

T = TypeVar("T")


class Numbered:
    """Handles that a number can identify in this process."""

    __slots__ = ()

    def toint(self) -> int:
        """Return a number that identifies this handle in this process; 0 for null handles."""
        if not self:
            return 0
        Handle._by_number[type(self).__name__, id(self)] = self
        return id(self)

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        """Return the handle of a number from `toint`."""
        if arg == 0:
            return cls()
        found = Handle._by_number.get((cls.__name__, arg))
        if found is None:
            raise fail("ERR_ARG", f"there is no {cls.__name__} with the number {arg}")
        return found

    def py2f(self) -> int:
        """Same as `toint`; Fortran is not supported."""
        return self.toint()

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """Same as `fromint`."""
        return cls.fromint(arg)

    def tohandle(self) -> int:
        """Same as `toint`."""
        return self.toint()

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Same as `fromint`."""
        return cls.fromint(handle)

    @property
    def handle(self) -> int:
        """Same as `toint`."""
        return self.toint()


class Request(_tidemill.Request, Numbered):
    """An operation in progress; ``MPI.REQUEST_NULL`` (false) once its result has been fetched.

    ``MPI.Request(other)`` refers to the same operation as `other`. Completing either sets both to null.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return not self._is_idle

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self._shared == other._shared or (not self and not other)

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __hash__(self) -> int:
        return hash(self._shared)

    def __reduce__(self) -> Any:
        if self is REQUEST_NULL:
            return _predefined, ("REQUEST_NULL",)
        if not self:
            return type(self), ()
        raise ValueError("cannot pickle a request: its operation is under way in this process")

    # A single request.

    def wait(self, status: Status | None = None) -> Any:
        """Wait until the operation completes; return the received object, or ``None`` for other operations."""
        return self._wait(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether the operation has completed, and the received object."""
        if not self._poll():
            return False, None
        return True, self._wait(status)

    def get_status(self, status: Status | None = None) -> bool:
        """Same as `Get_status`."""
        return self.Get_status(status)

    def cancel(self) -> None:
        """Same as `Cancel`."""
        self.Cancel()

    def Free(self) -> None:
        """Set this handle to ``MPI.REQUEST_NULL``; the operation continues in the background."""
        self._release()

    def free(self) -> None:
        """Free the request unless it is null."""
        if self:
            self.Free()

    # Several requests.

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> Literal[True]:
        """Wait until all requests complete. Returns ``True``."""
        _tidemill.Request._wait_all(requests, _room(statuses, len(requests)))
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Wait until all requests complete; return the received objects."""
        room = _room(statuses, len(requests))
        return [request._wait(room[i] if room else None) for i, request in enumerate(requests)]

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Return whether all requests have completed; if not, all stay active."""
        if not all(request._poll() for request in requests):
            return False
        return cls.Waitall(requests, statuses)

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all requests have completed, and the received objects."""
        if not all(request._poll() for request in requests):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Return whether all requests have completed, without freeing them."""
        room = _room(statuses, len(requests))
        if not all(request._poll() for request in requests):
            return False
        return all(request.Get_status(room[i] if room else None) for i, request in enumerate(requests))

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait until one request completes and free it; return its index, ``MPI.UNDEFINED`` if none is active."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait until one request completes and free it; return its index and the received object."""
        index, _, found = _waiting(lambda: cls.testany(requests, status), lambda answer: answer[1], requests)
        return index, found

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the index of a completed request, which is freed, and whether there is one (or none is active)."""
        return cls.testany(requests, status)[:2]

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Return the index of a completed request, whether there is one (or none is active), and the received object."""
        active = False
        for index, request in enumerate(requests):
            if request._is_idle:
                continue
            active = True
            if request._poll():
                return index, True, request._wait(status)
        if not active and status is not None:
            REQUEST_NULL.Wait(status)
        return c.UNDEFINED, not active, None

    @classmethod
    def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the index of a completed request, which is not freed, and whether there is one (or none is active)."""
        active = [(index, request) for index, request in enumerate(requests) if request]
        for index, request in active:
            if request.Get_status(status):
                return index, True
        if not active:
            REQUEST_NULL.Wait(status)
        return c.UNDEFINED, not active

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Wait until at least one request completes and free all that have; return their indices, ``None`` if none is
        active.
        """
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until at least one request completes and free all that have; return their indices and the received
        objects.
        """
        return _waiting(lambda: cls.testsome(requests, statuses), lambda answer: answer[0] != [], requests)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Free all completed requests; return their indices, ``None`` if none is active."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Free all completed requests; return their indices and the received objects."""
        active = [index for index, request in enumerate(requests) if not request._is_idle]
        if not active:
            return None, None
        done = [index for index in active if requests[index]._poll()]
        room = _room(statuses, len(done))
        objects = [requests[index]._wait(room[i] if room else None) for i, index in enumerate(done)]
        return done, objects

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Return the indices of completed requests, without freeing them; ``None`` if none is active."""
        active = [index for index, request in enumerate(requests) if request]
        if not active:
            return None
        done = [index for index in active if requests[index]._poll()]
        room = _room(statuses, len(done))
        for i, index in enumerate(done):
            requests[index].Get_status(room[i] if room else None)
        return done

    get_status_all = Get_status_all
    get_status_any = Get_status_any
    get_status_some = Get_status_some


def _room(statuses: list[Status] | None, count: int) -> list[Status]:
    """Return a status for each of `count` requests, added to the caller's list as needed; empty if there is no list."""
    if statuses is None:
        return []
    more = [Status() for _ in range(count - len(statuses))]
    if isinstance(statuses, list):
        statuses.extend(more)
        return list(statuses)
    return [*statuses, *more]


def _waiting(look: Callable[[], T], done: Callable[[T], bool], requests: Sequence[Request] = ()) -> T:
    """Poll until done. Between polls, sleep until one of `requests` completes, if all are native; else sleep briefly."""
    looks = 0
    while not done(answer := look()):
        if requests and _tidemill.Request._wait_any(requests):
            continue
        looks += 1
        if looks > 1000:
            time.sleep(min(_NAP_S, (looks - 1000) * 1e-6))
        elif looks > 100:
            time.sleep(0)
    return answer


REQUEST_NULL = Request()


class Prequest(Request):
    """A persistent request, which you can start repeatedly with the same arguments."""

    __slots__ = ("_begin", "_freed")
    _begin: Callable[[], Request]
    _freed: bool

    def __new__(cls, request: Request | None = None) -> Prequest:
        if request and not isinstance(request, Prequest):
            raise TypeError(f"expecting a Prequest, not {type(request).__name__}")
        self = super().__new__(cls, request, True)
        self._freed = True
        if isinstance(request, Prequest) and request:
            self._begin, self._freed = request._begin, False
        return self

    def __init__(self, *_: Any) -> None:
        pass

    @classmethod
    def _of(cls, begin: Callable[[], Request]) -> Prequest:
        self = cls()
        self._begin, self._freed = begin, False
        return self

    def __bool__(self) -> bool:
        return not self._freed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self._shared == other._shared or (self._freed and not other)

    __hash__ = Request.__hash__

    def Start(self) -> None:
        """Start the operation. Source: MPI 4.1 section 3.9."""
        if self._freed:
            raise fail("ERR_REQUEST", "the request is REQUEST_NULL")
        if not self._is_idle:
            raise fail("ERR_REQUEST", "the persistent request is active; wait for it first")
        self._adopt(self._begin())

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start several operations. Source: MPI 4.1 section 3.9."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Set this handle to ``MPI.REQUEST_NULL``; an active operation continues in the background."""
        if self._freed:
            raise fail("ERR_REQUEST", "the request is REQUEST_NULL")
        self._release()
        self._freed = True

    def Pready(self, partition: int) -> NoReturn:
        """Not available: partitioned communication."""
        missing("Prequest.Pready", "partitioned communication")

    def Pready_range(self, partition_low: int, partition_high: int) -> NoReturn:
        """Not available: partitioned communication."""
        missing("Prequest.Pready_range", "partitioned communication")

    def Pready_list(self, partitions: Sequence[int]) -> NoReturn:
        """Not available: partitioned communication."""
        missing("Prequest.Pready_list", "partitioned communication")

    def Parrived(self, partition: int) -> NoReturn:
        """Not available: partitioned communication."""
        missing("Prequest.Parrived", "partitioned communication")


class _General:
    """The state of a generalized request; drives its `Grequest`."""

    def __init__(self, functions: Sequence[Callable[..., Any] | None], args: Any, kwargs: Any) -> None:
        self.query_fn, self.free_fn, self.cancel_fn = functions
        self.args, self.kwargs = args or (), kwargs or {}
        self.complete = False
        self.cancelled = False
        self.result: Any = None
        self.source: int | None = c.UNDEFINED
        self.tag, self.nbytes = c.UNDEFINED, 0

    def step(self, block: bool) -> bool:
        if block:
            _waiting(lambda: self.complete, bool)
        if not self.complete:
            return False
        status = Status()
        if self.query_fn is not None:
            called(self.query_fn, status, *self.args, **self.kwargs)
        self.source, self.tag, self.nbytes, self.cancelled = status.source, status.tag, status.count, status.cancelled
        if self.free_fn is not None:
            called(self.free_fn, *self.args, **self.kwargs)
        return True

    def cancel(self) -> None:
        if self.cancel_fn is not None:
            called(self.cancel_fn, self.complete, *self.args, **self.kwargs)


class Grequest(Request):
    """A user-defined operation that you can wait for like any other. Source: MPI 4.1 section 13.2."""

    __slots__ = ("_general",)
    _general: _General

    def __new__(cls, request: Request | None = None) -> Grequest:
        if request and not isinstance(request, Grequest):
            raise TypeError(f"expecting a Grequest, not {type(request).__name__}")
        self = super().__new__(cls, request)
        if isinstance(request, Grequest) and request:
            self._general = request._general
        return self

    @classmethod
    def Start(
        cls,
        query_fn: Callable[..., None] | None = None,
        free_fn: Callable[..., None] | None = None,
        cancel_fn: Callable[..., None] | None = None,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Grequest:
        """Create a generalized request.

        Parameters
        ----------
        query_fn : callable(status, *args, **kwargs), optional
            Fills the status when the request completes.
        free_fn : callable(*args, **kwargs), optional
            Called when the request is freed.
        cancel_fn : callable(completed, *args, **kwargs), optional
            Called to cancel it.
        args, kwargs : optional
            Additional arguments for these functions.
        """
        self = cls()
        self._general = _General((query_fn, free_fn, cancel_fn), args, kwargs)
        self._drive(self._general)
        return self

    def Complete(self) -> None:
        """Mark the operation as complete."""
        self.complete()

    def complete(self, obj: Any = None) -> None:
        """Mark the operation as complete, with the object that `wait` returns."""
        if self._general.complete:
            raise fail("ERR_REQUEST", "the generalized request is complete already")
        self._general.result = obj
        self._general.complete = True


__all__ = ["ERROR_CLASSES", "REQUEST_NULL", "CommError", "Grequest", "Prequest", "Request"]
