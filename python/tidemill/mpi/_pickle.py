"""How objects become bytes: pickle, or what the program puts in its place.

``MPI.pickle`` is the one that object messages use; ``MPI.pickle.__init__(dill.dumps, dill.loads)`` changes it, as in mpi4py.
"""

from __future__ import annotations

import pickle as _pickle
from collections.abc import Callable, Sequence
from typing import Any

#: Arrays from this many bytes on travel apart from the pickle.
_APART_BYTES = 16384


class Pickle:
    """A way of making bytes of objects and objects of bytes.

    Parameters
    ----------
    dumps : callable(obj) or callable(obj, protocol), optional
        Default `pickle.dumps`.
    loads : callable(bytes), optional
        Default `pickle.loads`.
    protocol : int, optional
        Passed to `dumps`; default the highest for pickle, nothing for others.
    threshold : int, optional
        Bytes from which on an array travels apart from the pickle, without a copy; default 16 KiB.
    """

    #: Passed to `dumps`; ``None``: nothing is.
    PROTOCOL: int | None = _pickle.HIGHEST_PROTOCOL
    #: Bytes from which on an array travels apart from the pickle.
    THRESHOLD: int = _APART_BYTES

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[[Any], Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self._dumps = dumps or _pickle.dumps
        self._loads = loads or _pickle.loads
        self.PROTOCOL = _pickle.HIGHEST_PROTOCOL if protocol is None and dumps is None else protocol
        self.THRESHOLD = _APART_BYTES if threshold is None else threshold

    def dumps(self, obj: Any) -> bytes:
        """The object as bytes."""
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)

    def loads(self, data: Any) -> Any:
        """The object of bytes."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[memoryview]]:
        """The object as bytes, and the memory of its large arrays, which are not among them."""
        arrays: list[memoryview] = []
        protocol = -1 if self.PROTOCOL is None else self.PROTOCOL
        if self._dumps is not _pickle.dumps or 0 <= protocol < 5:
            return self.dumps(obj), arrays

        def keep_in_pickle(buffer: _pickle.PickleBuffer) -> bool:
            try:
                raw = buffer.raw()
            except BufferError:  # not contiguous
                return True
            if raw.nbytes < self.THRESHOLD:
                return True
            arrays.append(raw)
            return False

        return _pickle.dumps(obj, protocol, buffer_callback=keep_in_pickle), arrays

    def loads_oob(self, data: Any, buffers: Sequence[Any]) -> Any:
        """The object of bytes and the memory of its large arrays."""
        return _pickle.loads(data, buffers=buffers) if buffers else self._loads(data)


pickle = Pickle()
