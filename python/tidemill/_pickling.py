"""Values that go to other workers, which run the same program."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["dumps"]


def dumps(value: Any) -> bytes:
    """Pickle a value: by reference where that is possible, or else by cloudpickle, by value.

    Raises
    ------
    ImportError
        If it takes cloudpickle, which is not installed; the reason is its context.
    Exception
        If the value cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        import cloudpickle

        found: bytes = cloudpickle.dumps(value, protocol=5)
        return found
