"""Locations of files: paths and URLs as people write them, and options of object stores."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["StorageOptions", "as_options", "at_home", "is_read", "is_url"]

#: Options of an object store, in addition to environment variables: ``{"aws_region": "eu-central-1"}``.
StorageOptions = Mapping[str, Any]


def at_home(path: str | os.PathLike[str]) -> str:
    """Return the path with a leading ``~`` expanded; `Path.expanduser` would remove a slash from URLs."""
    return os.path.expanduser(os.fspath(path))  # noqa: PTH111


def as_options(options: StorageOptions | None) -> dict[str, str]:
    """Return options as strings: booleans in the words that stores know."""
    given = (options or {}).items()
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given}


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL rather than a path."""
    return isinstance(path, str) and re.match(r"[A-Za-z0-9+.-]+://", path) is not None


def is_read(file: str, path: str, *, folders: bool = True) -> bool:
    """Return whether reading `path` (a file, a folder, a glob, or a URL prefix of object keys) would read `file` once
    it exists.

    `folders` says whether a glob also matches everything in a folder that it matches.
    """
    if is_url(file) and is_url(path):
        read, parts = path.rstrip("/").split("/"), file.split("/")
        return parts[: len(read)] == read and not any(map(_is_hidden, parts[len(read) :]))
    path = re.sub("^file://(?=/)", "", path)
    if is_url(file) or is_url(path):
        return False
    read_path, whole = Path(path).resolve(), Path(file).resolve()
    is_glob = any(mark in path for mark in "*?[") and not Path(path).exists()
    for part in (whole, *whole.parents):
        if part == read_path or (is_glob and _matches(part.parts, read_path.parts)):
            return True
        # Hidden files in a folder are not read.
        if _is_hidden(part.name) or (is_glob and not folders):
            break
    return False


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a glob, in which ``**`` stands for any number of them."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
