"""Common parts of all MPI handles: null handles, equality, integer forms, attributes.

Source: MPI 4.1 sections 2.5.1 (opaque objects) and 7.7 (caching).
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from tidemill._errors import CommError, fail
from tidemill.mpi._constants import KEYVAL_INVALID


def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return the result of a user function that was attached to a handle.

    Raises
    ------
    CommError
        With ``ERR_OTHER`` if it raises another exception, as in mpi4py; the traceback is printed, and the exception is
        the cause.
    """
    try:
        return function(*arguments, **named)
    except CommError:
        traceback.print_exc()
        raise
    except Exception as error:
        traceback.print_exc()
        raise fail(
            "ERR_OTHER", f"{getattr(function, '__name__', function)} raised {type(error).__name__}: {error}"
        ) from error


HandleT = TypeVar("HandleT", bound="Handle")
_numbers = itertools.count(1)


class Handle:
    """Base of communicators, groups, datatypes and other handles.

    Two handles are equal if they refer to the same object; a freed one is null, like ``MPI.*_NULL``.
    """

    _kind: ClassVar[str] = "handle"
    _by_number: ClassVar[dict[tuple[str, int], Any]] = {}
    _predefined_name: str | None = None
    _number: int = 0

    def _identity(self) -> object:
        """Return the identity to compare; ``None`` for null handles."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        return self._identity() is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle) or self._kind != other._kind:
            return NotImplemented
        return self._identity() is other._identity()

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __hash__(self) -> int:
        return id(self._identity())

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = self._predefined_name
        if name is not None:
            return (_predefined, (name,)) if self._is_constant() else (_copy, (type(self), name))
        if self._identity() is None:
            return type(self), ()
        raise ValueError(f"cannot pickle a {self._kind} that is not predefined")

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)

    def _is_constant(self) -> bool:
        """Return whether this is one of the names of the module itself, not a copy of it."""
        from tidemill.mpi import MPI

        return self._predefined_name is not None and vars(MPI).get(self._predefined_name) is self

    def toint(self) -> int:
        """Return a number that identifies this handle in this process; 0 for null handles."""
        if self._identity() is None:
            return 0
        if not self._number:
            self._number = next(_numbers)
            Handle._by_number[self._kind, self._number] = self
        return self._number

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        """Return the handle of a number from `toint`."""
        if arg == 0:
            return cls()
        found = Handle._by_number.get((cls._kind, arg))
        if found is None:
            raise fail("ERR_ARG", f"there is no {cls._kind} with the number {arg}")
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


def _predefined(name: str) -> Any:
    """Find a predefined handle after pickling."""
    from tidemill import mpi

    return getattr(mpi, name)


def _copy(kind: type[Handle], name: str) -> Any:
    """Copy a predefined handle after pickling."""
    return kind(_predefined(name))  # type: ignore[call-arg]


class Keyval:
    """An attribute key: how to copy or delete a value when its object is copied or freed."""

    def __init__(
        self,
        kind: str,
        copy_fn: Callable[[Any, int, Any], Any] | bool | None,
        delete_fn: Callable[[Any, int, Any], None] | None,
    ) -> None:
        self.kind, self.copy_fn, self.delete_fn = kind, copy_fn, delete_fn


_keyvals: dict[int, Keyval] = {}
_keyval_numbers = itertools.count(1)


class Attributes(Handle, Generic[HandleT]):
    """Handles with attributes: values that a program or library attaches under a key (MPI 4.1 section 7.7)."""

    _attributes: dict[int, Any]

    def Get_attr(self, keyval: int) -> Any:
        """Return the value under a key, or ``None``."""
        self._check_usable()
        if keyval not in _keyvals:
            raise fail("ERR_KEYVAL", f"{keyval} is not an attribute key")
        return self._attributes.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Attach a value; an existing one is deleted first."""
        self._check_usable()
        if keyval not in _keyvals:
            raise fail("ERR_KEYVAL", f"{keyval} is not an attribute key")
        if keyval in self._attributes:
            self.Delete_attr(keyval)
        self._attributes[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        """Remove a value after calling its key's delete function."""
        self._check_usable()
        if keyval not in self._attributes:
            raise fail("ERR_KEYVAL", f"no attribute with key {keyval}")
        key = _keyvals.get(keyval)
        if key is not None and key.delete_fn is not None:
            called(key.delete_fn, self, keyval, self._attributes[keyval])
        del self._attributes[keyval]

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[[Any, int, Any], Any] | bool | None = None,
        delete_fn: Callable[[Any, int, Any], None] | None = None,
        nopython: bool = False,
    ) -> int:
        """Create an attribute key.

        Parameters
        ----------
        copy_fn : callable(handle, keyval, value) or bool, optional
            Called when the object is duplicated; the copy gets its result, unless that is ``NotImplemented``. By
            default, and with False, copies do not get the attribute; with True they share the value.
        delete_fn : callable(handle, keyval, value), optional
            Called when the attribute is deleted or its object is freed.
        nopython : bool, default=False
            Accepted for compatibility.
        """
        number = next(_keyval_numbers)
        _keyvals[number] = Keyval(cls._kind, copy_fn, delete_fn)
        return number

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Remove a key; return ``MPI.KEYVAL_INVALID``."""
        if _keyvals.pop(keyval, None) is None:
            raise fail("ERR_KEYVAL", f"{keyval} is not an attribute key")
        return KEYVAL_INVALID

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _copy_attributes(self, target: Attributes[HandleT]) -> None:
        for number, value in list(self._attributes.items()):
            key = _keyvals.get(number)
            if key is None or not key.copy_fn:
                continue
            copied = value if key.copy_fn is True else called(key.copy_fn, self, number, value)
            if copied is not NotImplemented:
                target._attributes[number] = copied

    def _delete_attributes(self) -> None:
        for number in reversed(list(self._attributes)):
            self.Delete_attr(number)
