"""Serialization of objects: pickle, or your replacement for it.

Object messages use ``MPI.pickle``; ``MPI.pickle.__init__(dill.dumps, dill.loads)`` changes it, as in mpi4py.
"""

from __future__ import annotations

import pickle as _pickle
from collections.abc import Callable, Sequence
from typing import Any

#: Arrays of at least this many bytes are sent separately from the pickle.
_APART_BYTES = 16384


class Pickle:
    """A pair of functions that convert objects to bytes and back.

    Parameters
    ----------
    dumps : callable(obj) or callable(obj, protocol), optional
        By default `pickle.dumps`.
    loads : callable(bytes), optional
        By default `pickle.loads`.
    protocol : int, optional
        Passed to `dumps`; by default the highest for pickle, and not passed to other functions.
    threshold : int, optional
        Size in bytes from which an array is sent separately from the pickle, without a copy; by default 16 KiB.
    """

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[[Any], Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self._dumps: Callable[..., bytes] = dumps or _pickle.dumps
        self._loads = loads or _pickle.loads
        self.PROTOCOL = protocol
        self.THRESHOLD = threshold

    @property
    def PROTOCOL(self) -> int | None:
        """Protocol passed to `dumps`; ``None`` if none is passed. Setting it to ``None`` gives pickle its highest
        protocol.
        """
        return self._protocol

    @PROTOCOL.setter
    def PROTOCOL(self, protocol: int | None) -> None:
        is_pickle = self._dumps is _pickle.dumps
        self._protocol = _pickle.HIGHEST_PROTOCOL if protocol is None and is_pickle else protocol

    @property
    def THRESHOLD(self) -> int:
        """Size in bytes from which an array is sent separately from the pickle. Setting it to ``None`` restores the
        default.
        """
        return self._threshold

    @THRESHOLD.setter
    def THRESHOLD(self, threshold: int | None) -> None:
        self._threshold = _APART_BYTES if threshold is None else threshold

    def dumps(self, obj: Any) -> bytes:
        """Return the object as bytes."""
        return self._dumps(obj) if self.PROTOCOL is None else self._dumps(obj, self.PROTOCOL)

    def loads(self, data: Any) -> Any:
        """Return the object of bytes."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[Any]]:
        """Return the object as bytes, without its large arrays, and the memory of these (`MPI.buffer`).

        Uses at least pickle protocol 5, the first one that supports this.
        """
        from tidemill.mpi._buffer import buffer

        body, arrays = self._apart(obj, 5)
        return body, [buffer.frombuffer(array, array.readonly) for array in arrays]

    def _apart(self, obj: Any, protocol_min: int = 0) -> tuple[bytes, list[memoryview]]:
        """Like `dumps_oob`, with the memory in the form that messages take; protocols before 5 keep all arrays in the
        pickle.
        """
        arrays: list[memoryview] = []
        protocol = -1 if self._protocol is None else self._protocol
        if protocol >= 0:
            protocol = max(protocol, protocol_min)
        if self._dumps is not _pickle.dumps or 0 <= protocol < 5:
            return self.dumps(obj), arrays

        def keep_in_pickle(buffer: _pickle.PickleBuffer) -> bool:
            try:
                raw = buffer.raw()
            except BufferError:  # not contiguous
                return True
            if raw.nbytes < self._threshold:
                return True
            arrays.append(raw)
            return False

        return _pickle.dumps(obj, protocol, buffer_callback=keep_in_pickle), arrays

    def loads_oob(self, data: Any, buffers: Sequence[Any]) -> Any:
        """Return the object of bytes and the memory of its large arrays."""
        return _pickle.loads(data, buffers=buffers) if buffers else self._loads(data)


pickle = Pickle()
