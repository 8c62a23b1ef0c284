"""Requests: operations under way. Source: MPI 4.1 sections 3.7 and 3.9."""

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

#: The longest a wait for what Python code drives sleeps between looks, in seconds: 1 % of a core.
_NAP_S = 0.0005

T = TypeVar("T")


class Numbered:
    """Handles that a number can stand for in this process."""

    __slots__ = ()

    def toint(self) -> int:
        """A number that stands for this handle in this process; 0 for null ones."""
        if not self:
            return 0
        Handle._by_number[type(self).__name__, id(self)] = self
        return id(self)

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        """The handle of a number that `toint` gave."""
        if arg == 0:
            return cls()
        found = Handle._by_number.get((cls.__name__, arg))
        if found is None:
            raise fail("ERR_ARG", f"{arg} is the number of no {cls.__name__}")
        return found

    def py2f(self) -> int:
        """The same as `toint`; there is no Fortran here."""
        return self.toint()

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """The same as `fromint`."""
        return cls.fromint(arg)

    def tohandle(self) -> int:
        """The same as `toint`."""
        return self.toint()

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """The same as `fromint`."""
        return cls.fromint(handle)

    @property
    def handle(self) -> int:
        """The same as `toint`."""
        return self.toint()


class Request(_tidemill.Request, Numbered):
    """An operation under way; ``MPI.REQUEST_NULL`` (false) once its outcome has been fetched.

    ``MPI.Request(other)`` stands for the same operation as `other`. When one of the two is waited for, both become null.
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

    # One request.

    def wait(self, status: Status | None = None) -> Any:
        """Waits until the operation is over; returns the object received, ``None`` for others."""
        return self._wait(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether the operation is over, and the object received."""
        if not self._poll():
            return False, None
        return True, self._wait(status)

    def get_status(self, status: Status | None = None) -> bool:
        """The same as `Get_status`."""
        return self.Get_status(status)

    def cancel(self) -> None:
        """The same as `Cancel`."""
        self.Cancel()

    def Free(self) -> None:
        """Lets the operation go on by itself and turns this into ``MPI.REQUEST_NULL``."""
        self._release()

    def free(self) -> None:
        """Frees the request unless it is null."""
        if self:
            self.Free()

    # Several.

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> Literal[True]:
        """Waits until all are over. Returns ``True``."""
        _tidemill.Request._wait_all(requests, _room(statuses, len(requests)))
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Waits until all are over; returns the objects received."""
        room = _room(statuses, len(requests))
        return [request._wait(room[i] if room else None) for i, request in enumerate(requests)]

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all are over; if not, none is ended."""
        if not all(request._poll() for request in requests):
            return False
        return cls.Waitall(requests, statuses)

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Whether all are over, and the objects received."""
        if not all(request._poll() for request in requests):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all are over, without ending them."""
        room = _room(statuses, len(requests))
        if not all(request._poll() for request in requests):
            return False
        return all(request.Get_status(room[i] if room else None) for i, request in enumerate(requests))

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Waits until one is over and ends it; returns its index, ``MPI.UNDEFINED`` if none is active."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Waits until one is over and ends it; returns its index and the object received."""
        index, _, found = _waiting(lambda: cls.testany(requests, status), lambda answer: answer[1], requests)
        return index, found

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Index of one that is over, which is ended, and whether there is one (or none is active)."""
        return cls.testany(requests, status)[:2]

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Index of one that is over, whether there is one (or none is active), and the object received."""
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
        """Index of one that is over, which is not ended, and whether there is one (or none is active)."""
        active = [(index, request) for index, request in enumerate(requests) if request]
        for index, request in active:
            if request.Get_status(status):
                return index, True
        if not active:
            REQUEST_NULL.Wait(status)
        return c.UNDEFINED, not active

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Waits until at least one is over and ends all that are; returns their indices, ``None`` if none is active."""
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Waits until at least one is over and ends all that are; returns their indices and the objects received."""
        return _waiting(lambda: cls.testsome(requests, statuses), lambda answer: answer[0] != [], requests)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Ends all that are over; returns their indices, ``None`` if none is active."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Ends all that are over; returns their indices and the objects received."""
        active = [index for index, request in enumerate(requests) if not request._is_idle]
        if not active:
            return None, None
        done = [index for index in active if requests[index]._poll()]
        room = _room(statuses, len(done))
        objects = [requests[index]._wait(room[i] if room else None) for i, index in enumerate(done)]
        return done, objects

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Indices of those that are over, without ending them; ``None`` if none is active."""
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
    """A status for each of `count` requests, added to the caller's list as needed; empty if he wants none."""
    if statuses is None:
        return []
    more = [Status() for _ in range(count - len(statuses))]
    if isinstance(statuses, list):
        statuses.extend(more)
        return list(statuses)
    return [*statuses, *more]


def _waiting(look: Callable[[], T], done: Callable[[T], bool], requests: Sequence[Request] = ()) -> T:
    """Looks until done. Between looks it sleeps until one of `requests` is over, if all are native; else it naps."""
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
    """A persistent request: started again and again with the same arguments."""

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
        """Starts the operation. Source: MPI 4.1 section 3.9."""
        if self._freed:
            raise fail("ERR_REQUEST", "the request is REQUEST_NULL")
        if not self._is_idle:
            raise fail("ERR_REQUEST", "the persistent request is active; wait for it first")
        self._adopt(self._begin())

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Starts several. Source: MPI 4.1 section 3.9."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Turns this into ``MPI.REQUEST_NULL``; an operation under way goes on by itself."""
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
    """What a generalized request consists of; drives its `Grequest`."""

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
    """An operation of the program's own that is waited for like any other. Source: MPI 4.1 section 13.2."""

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
        """A new one.

        Parameters
        ----------
        query_fn : callable(status, *args, **kwargs), optional
            Fills the status when the request is over.
        free_fn : callable(*args, **kwargs), optional
            Called when the request is freed.
        cancel_fn : callable(completed, *args, **kwargs), optional
            Called to cancel it.
        args, kwargs : optional
            More arguments for these functions.
        """
        self = cls()
        self._general = _General((query_fn, free_fn, cancel_fn), args, kwargs)
        self._drive(self._general)
        return self

    def Complete(self) -> None:
        """Says that the operation is over."""
        self.complete()

    def complete(self, obj: Any = None) -> None:
        """Says that the operation is over, with the object that `wait` returns."""
        if self._general.complete:
            raise fail("ERR_REQUEST", "the generalized request is complete already")
        self._general.result = obj
        self._general.complete = True


__all__ = ["ERROR_CLASSES", "REQUEST_NULL", "CommError", "Grequest", "Prequest", "Request"]
