"""A library's records of plots, and the strings and rows they consist of."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidemill.viz.library import _search

__all__ = [
    "TAG_MAX",
    "TEXT_MAX",
    "TITLE_MAX",
    "Comment",
    "Plot",
    "Share",
    "Version",
    "cut",
    "deleted",
    "described",
    "has_version",
    "line",
    "number_of",
    "touched",
    "utc_now",
]  # fmt: skip

TITLE_MAX = 200
TEXT_MAX = 20_000
TAG_MAX = 60
TAGS_MAX = 50


@dataclass(frozen=True)
class Plot:
    """A library's record of a plot. Times are UTC, as ISO 8601."""

    id: str
    title: str
    description: str
    collection: str
    tags: tuple[str, ...]
    source: str
    """What the upload was called."""
    kind: str
    frames: int
    points: int
    """Points that occur in any frame."""
    bytes: int
    created: str
    changed: str
    versions: int
    """Without the original."""
    comments: int


@dataclass(frozen=True)
class Version:
    """A version: number 0 is the original; every other version is based on its parent."""

    number: int
    parent: int | None
    name: str
    note: str
    author: str
    created: str


@dataclass(frozen=True)
class Comment:
    """A comment on a plot."""

    number: int
    author: str
    text: str
    created: str


@dataclass(frozen=True)
class Share:
    """A link that shows one plot, or one version of it, and permits nothing else."""

    number: int
    version: int | None
    name: str
    created: str
    token: str = ""
    """Known only to who made it: the library keeps a hash."""


def number_of(db: sqlite3.Connection, id: str) -> int:
    row = db.execute("SELECT number FROM plot WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise KeyError(f"there is no plot {id!r}")
    return int(row["number"])


def has_version(db: sqlite3.Connection, plot: int, version: int) -> None:
    if (
        db.execute("SELECT 1 FROM version WHERE plot = ? AND number = ? AND name <> ''", (plot, version)).fetchone()
        is None
    ):
        raise KeyError(f"there is no version {version} of the plot")


def deleted(done: sqlite3.Cursor, what: str, number: int) -> None:
    if done.rowcount == 0:
        raise KeyError(f"there is no {what} {number}")


def touched(db: sqlite3.Connection, number: int) -> None:
    db.execute("UPDATE plot SET changed = ? WHERE number = ?", (utc_now(), number))
    _search.update(db, number)


def described(title: str, description: str, tags: Iterable[str], collection: str) -> dict[str, Any]:
    words = list(dict.fromkeys(filter(None, (line("a tag", tag, TAG_MAX) for tag in tags))))
    if len(words) > TAGS_MAX:
        raise ValueError(f"a plot has at most {TAGS_MAX} tags")
    return {
        "title": line("a title", title, TITLE_MAX),
        "description": line("a description", description, TEXT_MAX, lines=True),
        "tags": words,
        "collection": line("the name of a collection", collection, TAG_MAX),
    }


def line(what: str, text: str, most: int, *, lines: bool = False) -> str:
    """Return a string without surrounding blanks; refuse one that is too long or contains invalid characters."""
    text = text.strip()
    if len(text) > most:
        raise ValueError(f"{what} has at most {most} characters")
    if any(ord(letter) < 32 and not (lines and letter in "\n\r\t") for letter in text):
        raise ValueError(f"{what} contains a control character")
    if any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise ValueError(f"{what} is not Unicode text")
    return text


def cut(text: str, most: int) -> str:
    """Return a string from a file as a title: on one line, and cut to the maximum length."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())[:most]


def utc_now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
