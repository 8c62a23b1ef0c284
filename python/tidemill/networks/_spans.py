"""Places of several runs in an array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["spans"]


def spans(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all numbers from each begin to before its end."""
    sizes = ends - begins
    ends = np.cumsum(sizes)
    places: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + sizes, sizes)
    return places
