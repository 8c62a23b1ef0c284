"""Search: the words of a plot that are indexed, and the parsing of search strings."""

from __future__ import annotations

import re
import sqlite3

from tidemill.viz._read import FrameReader

__all__ = ["condition", "contents", "insert", "update"]

#: Maximum size of a plot's indexed names; names of categories come first.
_CONTENTS_MAX = 32 << 20
_WORDS_MAX = 20


def contents(reader: FrameReader) -> str:
    """Return the strings in a plot: names of frames, categories and points."""
    parts = [reader.title, *reader.times, *(name for names in reader.categories.values() for name in names)]
    if reader.named:
        parts += reader.ids
    parts += filter(None, reader.own_labels)
    return "\n".join(parts)[:_CONTENTS_MAX]


def insert(db: sqlite3.Connection, number: int, contents: str) -> None:
    """Index the constant part of a plot; `update` does the rest."""
    db.execute("INSERT INTO words (rowid, contents) VALUES (?, ?)", (number, contents))


def update(db: sqlite3.Connection, number: int) -> None:
    """Index users' descriptions of a plot."""
    row = db.execute(
        "SELECT title, description || ' ' || collection || ' ' || source, "
        "(SELECT group_concat(name, ' ') FROM tag WHERE plot = plot.number), "
        "coalesce((SELECT group_concat(text || ' ' || author, ' ') FROM comment WHERE plot = plot.number), '') || ' ' || "
        "coalesce((SELECT group_concat(version.name || ' ' || note, ' ') FROM version WHERE plot = plot.number AND version.number > 0), '') FROM plot WHERE number = ?",
        (number,),
    ).fetchone()
    db.execute(
        "UPDATE words SET title = ?, description = ?, tags = ?, comments = ? WHERE rowid = ?", (*tuple(row), number)
    )


def condition(search: str, tag: str = "", collection: str = "") -> tuple[str, list[str]]:
    """Return a search string as a SQL condition and its values."""
    tags, collections, words = [tag] if tag else [], [collection] if collection else [], []
    for quoted, plain in re.findall(r'((?:tag|in):"[^"]*")|(\S+)', search):
        kind, _, rest = (quoted or plain).partition(":")
        if kind == "tag" and rest.strip('"'):
            tags.append(rest.strip('"'))
        elif kind == "in" and rest.strip('"'):
            collections.append(rest.strip('"'))
        else:
            # Only what a tokenizer considers words: the rest of its syntax has no meaning here.
            words += re.findall(r"\w+", plain)
    parts, values = ["1"], []
    for name in tags:
        parts.append("EXISTS (SELECT 1 FROM tag WHERE tag.plot = plot.number AND tag.name = ? COLLATE NOCASE)")
        values.append(name)
    for name in collections:
        parts.append("collection = ? COLLATE NOCASE")
        values.append(name)
    if words:
        parts.append("number IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(" ".join(f'"{word}"*' for word in words[:_WORDS_MAX]))
    elif search.strip() and not tags and not collections:
        # The search has a term that cannot match anything.
        parts.append("0")
    return " AND ".join(parts), values
