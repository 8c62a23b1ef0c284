"""Reduction operations. Source: MPI 4.1 sections 6.9.2 and 6.9.5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill import _tidemill
from tidemill._errors import fail
from tidemill.mpi._handle import Handle


def _located(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """Return the pair with the better value; of equal values, the one with the lower index."""

    def choose(x: Any, y: Any) -> Any:
        (u, i), (v, j) = x, y
        if better(u, v):
            return u, i
        if better(v, u) or j < i:
            return v, j
        return u, i

    return choose


#: The predefined operations on two Python objects.
_ON_OBJECTS: dict[str, Callable[[Any, Any], Any]] = {
    "MAX": lambda x, y: y if y > x else x,
    "MIN": lambda x, y: y if y < x else x,
    "SUM": lambda x, y: x + y,
    "PROD": lambda x, y: x * y,
    "LAND": lambda x, y: bool(x) & bool(y),
    "BAND": lambda x, y: x & y,
    "LOR": lambda x, y: bool(x) | bool(y),
    "BOR": lambda x, y: x | y,
    "LXOR": lambda x, y: bool(x) ^ bool(y),
    "BXOR": lambda x, y: x ^ y,
    "MAXLOC": _located(lambda u, v: u > v),
    "MINLOC": _located(lambda u, v: u < v),
    "REPLACE": lambda x, y: y,
    "NO_OP": lambda x, y: x,
}


class Op(_tidemill.Operation, Handle):
    """A reduction operation: a predefined one such as ``MPI.SUM``, or your own function (`Op.Create`)."""

    _kind = "op"
    _token: object | None
    _function: Callable[..., Any] | None

    def __new__(cls, op: Op | None = None) -> Op:
        if not isinstance(op, Op | None):
            raise TypeError(f"expecting an Op, not {type(op).__name__}")
        if op is None or not op:
            self = super().__new__(cls)
            self._token = self._function = None
            return self
        if op._predefined_name is not None:
            self = super().__new__(cls, op._predefined_name.lower())
        else:
            self = super().__new__(cls, None, op._function, op._is_commutative())
        self.__dict__.update(op.__dict__)
        return self

    @classmethod
    def _predefine(cls, name: str) -> Op:
        self = super().__new__(cls, name.lower())
        self._token, self._function, self._predefined_name = object(), None, name
        return self

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Any], None], commute: bool = False) -> Op:
        """Create an operation from your own function.

        Parameters
        ----------
        function : callable(a, b, datatype)
            Combines two buffers elementwise and stores the result in `b`; `a` holds the values of lower ranks. It must
            be associative. Tidemill may call it on any part of the arrays, from one of its own threads.
        commute : bool, default=False
            Whether the operation is commutative. If not, results equal those of combining in rank order.
        """
        if not callable(function):
            raise TypeError("expecting a callable")
        self = super().__new__(cls, None, function, commute)
        self._token, self._function = object(), function
        return self

    def _identity(self) -> object:
        return self._token

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._token is None or self._predefined_name is not None:
            return super().__reduce_ex__(protocol)
        return Op.Create, (self._function, self._is_commutative())

    def __call__(self, x: Any, y: Any, /) -> Any:
        """Combine two Python objects."""
        if self._predefined_name is not None and self._predefined_name in _ON_OBJECTS:
            return _ON_OBJECTS[self._predefined_name](x, y)
        if self._function is not None:
            # As in mpi4py, a function that supports this use checks whether the datatype is None.
            return self._function(x, y, None)
        raise ValueError("the operation is OP_NULL (or was freed)")

    def Free(self) -> None:
        """Set this handle to ``MPI.OP_NULL``."""
        if self._token is None or self.is_predefined:
            raise fail("ERR_OP", "a predefined operation (or OP_NULL) cannot be freed")
        self._token = None

    def free(self) -> None:
        """Free the operation unless it is null or predefined."""
        if not self._is_constant():
            self._token = None

    def Is_commutative(self) -> bool:
        """Return whether the operation is commutative."""
        if self._token is None:
            raise fail("ERR_OP", "the operation is OP_NULL (or was freed)")
        return bool(self._is_commutative())

    @property
    def is_commutative(self) -> bool:
        """True if the operation is commutative."""
        return self.Is_commutative()

    @property
    def is_predefined(self) -> bool:
        """True if the operation is predefined by MPI."""
        return self._token is None or self._predefined_name is not None

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Combine two local arrays, `inoutbuf = op(inbuf, inoutbuf)`. Source: MPI 4.1 section 6.9.7."""
        _tidemill.reduce_local(inbuf, inoutbuf, self)


OP_NULL = Op()
OP_NULL._predefined_name = "OP_NULL"
predefined: dict[str, Op] = {name: Op._predefine(name) for name in _ON_OBJECTS}
