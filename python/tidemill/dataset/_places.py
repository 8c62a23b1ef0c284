"""Where files are: paths and URLs as people write them."""

from __future__ import annotations

import os

__all__ = ["at_home"]


def at_home(path: str | os.PathLike[str]) -> str:
    """The path with a leading ``~`` replaced; `Path.expanduser` would take a slash out of URLs."""
    return os.path.expanduser(os.fspath(path))  # noqa: PTH111
