"""Info objects and error handlers, which Tidemill supports but mostly does not need.

Source: MPI 4.1 chapter 10 (info) and section 9.3 (error handlers).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemill._errors import fail
from tidemill.mpi import _constants as c
from tidemill.mpi._handle import Handle


class Info(Handle):
    """Hints: an ordered mapping from strings to strings. Tidemill ignores all hints, as the standard allows."""

    _kind = "info"
    _items: dict[str, str] | None

    def __new__(cls, info: Info | None = None) -> Info:
        if not isinstance(info, Info | None):
            raise TypeError(f"expecting an Info, not {type(info).__name__}")
        self = super().__new__(cls)
        self._items = None if info is None else info._items
        self._predefined_name = None if info is None else info._predefined_name
        return self

    def _identity(self) -> object:
        return self._items

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._items is None or self._predefined_name is not None:
            return super().__reduce_ex__(protocol)
        return type(self).Create, (dict(self._items),)

    def _held(self) -> dict[str, str]:
        if self._items is None:
            raise fail("ERR_INFO", "the info object is INFO_NULL (or was freed)")
        return self._items

    @classmethod
    def Create(cls, items: Info | Mapping[str, str] | Iterable[tuple[str, str]] | None = None) -> Any:
        """Create an info object."""
        self = super().__new__(cls)
        self._items = {}
        if items is not None:
            self.update(items)
        return self

    @classmethod
    def Create_env(cls, args: Sequence[str] | None = None) -> Any:
        """Return information about how the program was started."""
        words = sys.argv if args is None else list(args)
        return cls.Create({"command": words[0], "argv": " ".join(words[1:])} if words else {})

    def Free(self) -> None:
        """Set this handle to ``MPI.INFO_NULL``."""
        self._held()
        if self._predefined_name is not None:
            raise fail("ERR_INFO", "a predefined info object cannot be freed")
        self._items = None

    def free(self) -> None:
        """Free the info object unless it is null or predefined."""
        if self and self._predefined_name is None:
            self.Free()
        elif not self._is_constant():
            self._items = self._predefined_name = None

    def Dup(self) -> Any:
        """Return an independent copy."""
        return type(self).Create(dict(self._held()))

    def Get(self, key: str) -> str | None:
        """Return the value under a key, or ``None``."""
        return self._held().get(key)

    def Set(self, key: str, value: str) -> None:
        """Set the value under a key."""
        if not 0 < len(key) <= c.MAX_INFO_KEY:
            raise fail("ERR_INFO_KEY", f"a key has 1 to {c.MAX_INFO_KEY} characters")
        if len(value) > c.MAX_INFO_VAL:
            raise fail("ERR_INFO_VALUE", f"a value has at most {c.MAX_INFO_VAL} characters")
        self._held()[key] = value

    def Delete(self, key: str) -> None:
        """Remove a key."""
        if self._held().pop(key, None) is None:
            raise fail("ERR_INFO_NOKEY", f"there is no key {key!r}")

    def Get_nkeys(self) -> int:
        """Return the number of keys."""
        return len(self._held())

    def Get_nthkey(self, n: int) -> str:
        """Return the key number `n`, in order of insertion."""
        keys = list(self._held())
        if not 0 <= n < len(keys):
            raise fail("ERR_INFO_KEY", f"there is no key number {n}")
        return keys[n]

    # As a mapping.

    def __len__(self) -> int:
        return len(self._items or {})

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, key: str, /) -> bool:
        return key in (self._items or {})

    def __getitem__(self, key: str, /) -> str:
        if key not in self:
            raise KeyError(key)
        return self._held()[key]

    def __setitem__(self, key: str, value: str, /) -> None:
        self._writable()[key] = value

    def __delitem__(self, key: str, /) -> None:
        self._writable()
        if key not in self:
            raise KeyError(key)
        self.Delete(key)

    def _writable(self) -> dict[str, str]:
        if self._items is None:
            raise KeyError("the info object is INFO_NULL")
        return self._items

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the value under a key, or `default`."""
        return (self._items or {}).get(key, default)

    def keys(self) -> list[str]:
        """Return all keys."""
        return list(self._items or {})

    def values(self) -> list[str]:
        """Return all values."""
        return list((self._items or {}).values())

    def items(self) -> list[tuple[str, str]]:
        """Return all keys and values."""
        return list((self._items or {}).items())

    def update(self, items: Info | Mapping[str, str] | Iterable[tuple[str, str]] = (), **kwds: str) -> None:
        """Set several values."""
        self._writable()
        pairs = items.items() if isinstance(items, (Info, Mapping)) else items
        for key, value in [*pairs, *kwds.items()]:
            self.Set(key, value)

    def pop(self, key: str, *default: str) -> str:
        """Remove a key and return its value, or `default`."""
        if key not in self:
            if default:
                return default[0]
            raise KeyError(key)
        return self._held().pop(key)

    def popitem(self) -> tuple[str, str]:
        """Remove the last key and return it with its value."""
        if not self._items:
            raise KeyError("popitem(): info is empty")
        return self._items.popitem()

    def copy(self) -> Any:
        """Return an independent copy."""
        return self.Dup() if self else type(self)()

    def clear(self) -> None:
        """Remove all keys."""
        if self._items is not None:
            self._items.clear()


INFO_NULL = Info()
INFO_NULL._predefined_name = "INFO_NULL"
INFO_ENV: Info = Info.Create_env()
INFO_ENV._predefined_name = "INFO_ENV"


class Errhandler(Handle):
    """An error handler. Errors are always raised as exceptions; only ``Call_errhandler`` calls user-defined handlers."""

    _kind = "errhandler"
    _token: object | None
    _function: Callable[[Any, int], None] | None

    def __new__(cls, errhandler: Errhandler | None = None) -> Errhandler:
        if not isinstance(errhandler, Errhandler | None):
            raise TypeError(f"expecting an Errhandler, not {type(errhandler).__name__}")
        self = super().__new__(cls)
        self._token = None if errhandler is None else errhandler._token
        self._predefined_name = None if errhandler is None else errhandler._predefined_name
        self._function = None if errhandler is None else errhandler._function
        return self

    @classmethod
    def _of(cls, function: Callable[[Any, int], None] | None, name: str | None = None) -> Errhandler:
        self = cls()
        self._token, self._function, self._predefined_name = object(), function, name
        return self

    def _identity(self) -> object:
        return self._token

    def Free(self) -> None:
        """Set this handle to ``MPI.ERRHANDLER_NULL``."""
        if self._token is None:
            raise fail("ERR_ERRHANDLER", "the error handler is ERRHANDLER_NULL (or was freed)")
        self._token = None

    def free(self) -> None:
        """Free the handler unless it is null or predefined."""
        if not self._is_constant():
            self._token = self._predefined_name = None


ERRHANDLER_NULL = Errhandler()
ERRHANDLER_NULL._predefined_name = "ERRHANDLER_NULL"
ERRORS_RETURN = Errhandler._of(None, "ERRORS_RETURN")
ERRORS_ABORT = Errhandler._of(None, "ERRORS_ABORT")
ERRORS_ARE_FATAL = Errhandler._of(None, "ERRORS_ARE_FATAL")
