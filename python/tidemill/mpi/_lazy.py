"""NumPy, imported on first use.

A worker joins its job without NumPy, whose import would take three quarters of the startup time of programs that do not
need it.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = ["np"]


class _Numpy(types.ModuleType):
    """Stands for NumPy; attributes that have been used once are found as fast as in a module."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("numpy"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = _Numpy("numpy")
