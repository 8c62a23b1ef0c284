"""Users' additions to a plot: comments, versions as logs of changes over the original, and read-only links."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.viz.library import _changes
from tidemill.viz.library._records import (
    TAG_MAX,
    TEXT_MAX,
    TITLE_MAX,
    Comment,
    Share,
    Version,
    deleted,
    has_version,
    line,
    number_of,
    touched,
    utc_now,
)
from tidemill.viz.library._schema import connected

__all__ = ["Said"]

#: The versions of a plot; those without a name were removed.
_VERSIONS = "SELECT number, parent, name, note, author, created FROM version WHERE plot = ?"


class Said:
    """The part of a library with users' additions to its plots; each call is atomic."""

    #: The database.
    _path: Path

    # ---- comments

    def comments(self, id: str) -> list[Comment]:
        """Return the comments on a plot, in order."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT number, author, text, created FROM comment WHERE plot = ? ORDER BY number", (number_of(db, id),)
            )
            return [Comment(**row) for row in map(dict, rows)]

    def comment(self, id: str, text: str, *, author: str = "") -> Comment:
        """Add a comment to a plot."""
        text, author = line("a comment", text, TEXT_MAX, lines=True), line("an author", author, TAG_MAX)
        if not text:
            raise ValueError("a comment needs a text")
        now = utc_now()
        with connected(self._path, write=True) as db:
            number = number_of(db, id)
            added = db.execute(
                "INSERT INTO comment (plot, author, text, created) VALUES (?, ?, ?, ?)", (number, author, text, now)
            ).lastrowid
            touched(db, number)
        assert added is not None
        return Comment(added, author, text, now)

    def remove_comment(self, id: str, number: int) -> None:
        """Remove a comment."""
        with connected(self._path, write=True) as db:
            plot = number_of(db, id)
            deleted(db.execute("DELETE FROM comment WHERE plot = ? AND number = ?", (plot, number)), "comment", number)
            touched(db, plot)

    # ---- versions

    def versions(self, id: str) -> list[Version]:
        """Return the versions of a plot; the first is the original."""
        with connected(self._path) as db:
            rows = db.execute(
                f"{_VERSIONS} AND name <> '' ORDER BY number",
                (number_of(db, id),),
            )
            return [Version(**row) for row in map(dict, rows)]

    def changes(self, id: str, version: int = 0) -> list[dict[str, Any]]:
        """Return all changes of a version to the data: the effective changes of all logs from the original to it.

        ``docs/library.md`` describes the form of changes.
        """
        with connected(self._path) as db:
            plot = number_of(db, id)
            has_version(db, plot, version)
            logs: list[list[dict[str, Any]]] = []
            at: int | None = version
            while at is not None:
                row = db.execute(
                    "SELECT parent, changes FROM version WHERE plot = ? AND number = ?", (plot, at)
                ).fetchone()
                logs.append(json.loads(row["changes"]))
                # A parent is always older, so this terminates.
                at = row["parent"]
            return _changes.folded(reversed(logs))

    def logs(self, id: str) -> dict[int, list[dict[str, Any]]]:
        """Return for each version, by number, its changes relative to its parent."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT number, changes FROM version WHERE plot = ? AND name <> '' ORDER BY number",
                (number_of(db, id),),
            )
            return {row["number"]: json.loads(row["changes"]) for row in rows}

    def save_version(
        self,
        id: str,
        name: str,
        changes: Sequence[Mapping[str, Any]],
        *,
        parent: int = 0,
        note: str = "",
        author: str = "",
    ) -> Version:
        """Save changes as a version based on another.

        Raises
        ------
        ValueError
            If a change is invalid, or there is no name.
        """
        kept = _changes.checked(changes)
        name, author = line("a name", name, TITLE_MAX), line("an author", author, TAG_MAX)
        note = line("a note", note, TEXT_MAX, lines=True)
        if not name:
            raise ValueError("a version needs a name")
        now = utc_now()
        with connected(self._path, write=True) as db:
            plot = number_of(db, id)
            has_version(db, plot, parent)
            (number,) = db.execute("SELECT max(number) + 1 FROM version WHERE plot = ?", (plot,)).fetchone()
            db.execute(
                "INSERT INTO version VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (plot, number, parent, name, note, author, now, json.dumps(kept, ensure_ascii=False)),
            )
            touched(db, plot)
        return Version(number, parent, name, note, author, now)

    def update_version(self, id: str, number: int, *, name: str | None = None, note: str | None = None) -> Version:
        """Change a version's name or notes; its changes to the data stay.

        Raises
        ------
        ValueError
            If the name is empty.
        """
        told = {}
        if name is not None:
            told["name"] = line("a name", name, TITLE_MAX)
            if not told["name"]:
                raise ValueError("a version needs a name")
        if note is not None:
            told["note"] = line("a note", note, TEXT_MAX, lines=True)
        with connected(self._path, write=True) as db:
            plot = number_of(db, id)
            has_version(db, plot, number)
            for column, text in told.items():
                db.execute(f"UPDATE version SET {column} = ? WHERE plot = ? AND number = ?", (text, plot, number))
            touched(db, plot)
            row = db.execute(f"{_VERSIONS} AND number = ?", (plot, number)).fetchone()
        return Version(**dict(row))

    def remove_version(self, id: str, number: int) -> None:
        """Remove a version, and withdraw the shares that show only it. Versions based on it do not change.

        Raises
        ------
        ValueError
            If it is the original.
        """
        if number == 0:
            raise ValueError("version 0 is the original, and stays as long as the plot does")
        with connected(self._path, write=True) as db:
            plot = number_of(db, id)
            has_version(db, plot, number)
            (parent, changes) = db.execute(
                "SELECT parent, changes FROM version WHERE plot = ? AND number = ?", (plot, number)
            ).fetchone()
            built = db.execute(
                "SELECT number, changes FROM version WHERE plot = ? AND parent = ?", (plot, number)
            ).fetchall()
            for child in built:
                whole = json.dumps([*json.loads(changes), *json.loads(child["changes"])], ensure_ascii=False)
                db.execute(
                    "UPDATE version SET parent = ?, changes = ? WHERE plot = ? AND number = ?",
                    (parent, whole, plot, child["number"]),
                )
            db.execute(
                "UPDATE version SET name = '', note = '', author = '', changes = '[]' WHERE plot = ? AND number = ?",
                (plot, number),
            )
            db.execute("DELETE FROM share WHERE plot = ? AND version = ?", (plot, number))
            touched(db, plot)

    # ---- shares

    def shares(self, id: str) -> list[Share]:
        """Return a plot's active links, without their tokens."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT number, version, name, created FROM share WHERE plot = ? ORDER BY number", (number_of(db, id),)
            )
            return [Share(**row) for row in map(dict, rows)]

    def share(self, id: str, *, version: int | None = None, name: str = "") -> Share:
        """Create a token that shows a plot and permits nothing else, until it is withdrawn.

        Parameters
        ----------
        id : str
        version : int, optional
            Show only this version; by default all.
        name : str, optional
            Name of the share, such as its recipient.
        """
        name, token, now = line("a name", name, TITLE_MAX), secrets.token_urlsafe(24), utc_now()
        with connected(self._path, write=True) as db:
            plot = number_of(db, id)
            if version is not None:
                has_version(db, plot, version)
            number = db.execute(
                "INSERT INTO share (plot, version, name, hash, created) VALUES (?, ?, ?, ?, ?)",
                (plot, version, name, _hash(token), now),
            ).lastrowid
        assert number is not None
        return Share(number, version, name, now, token)

    def withdraw(self, id: str, number: int) -> None:
        """Withdraw a share: its link no longer works."""
        with connected(self._path, write=True) as db:
            plot = number_of(db, id)
            deleted(db.execute("DELETE FROM share WHERE plot = ? AND number = ?", (plot, number)), "share", number)

    def shared(self, token: str) -> tuple[str, int | None] | None:
        """Return the plot of a share's token, and the version if the share is limited to one."""
        with connected(self._path) as db:
            row = db.execute(
                "SELECT id, version FROM share JOIN plot ON plot.number = share.plot WHERE hash = ?", (_hash(token),)
            ).fetchone()
        return None if row is None else (row["id"], row["version"])


def _hash(token: str) -> str:
    # The token is random and long, so it cannot be guessed, and no slow hash is needed.
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
