"""The tables of a library, in SQLite: everything except the points, which are in folders of frames beside it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tidemill.viz._format import Busy, FrameError

__all__ = ["connected", "prepare"]

VERSION = 1

#: Maximum time that a change waits for another program that changes the same library.
_WAIT_S = 20.0

_TABLES = """
CREATE TABLE plot (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, description TEXT NOT NULL, collection TEXT NOT NULL,
    source TEXT NOT NULL, kind TEXT NOT NULL, frames INTEGER NOT NULL, points INTEGER NOT NULL, bytes INTEGER NOT NULL,
    created TEXT NOT NULL, changed TEXT NOT NULL);
CREATE TABLE tag (
    plot INTEGER NOT NULL REFERENCES plot ON DELETE CASCADE, name TEXT NOT NULL, PRIMARY KEY (plot, name)) WITHOUT ROWID;
CREATE TABLE comment (
    number INTEGER PRIMARY KEY AUTOINCREMENT, plot INTEGER NOT NULL REFERENCES plot ON DELETE CASCADE, author TEXT NOT NULL,
    text TEXT NOT NULL, created TEXT NOT NULL);
-- Version 0 of a plot is the original; each other has the changes since its parent. One without a name was removed: it is there so that its
-- number is not given to another, which who still has it open would take for the same.
CREATE TABLE version (
    plot INTEGER NOT NULL REFERENCES plot ON DELETE CASCADE, number INTEGER NOT NULL, parent INTEGER, name TEXT NOT NULL,
    note TEXT NOT NULL, author TEXT NOT NULL, created TEXT NOT NULL, changes TEXT NOT NULL, PRIMARY KEY (plot, number)) WITHOUT ROWID;
-- Of a share's token only a hash is kept: who reads the library's files cannot look with it.
CREATE TABLE share (
    number INTEGER PRIMARY KEY AUTOINCREMENT, plot INTEGER NOT NULL REFERENCES plot ON DELETE CASCADE, version INTEGER,
    name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, created TEXT NOT NULL);
CREATE INDEX comment_of ON comment (plot);
CREATE INDEX share_of ON share (plot);
CREATE VIRTUAL TABLE words USING fts5 (title, description, tags, comments, contents, tokenize = 'unicode61');
"""


@contextlib.contextmanager
def connected(path: Path, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the database for one transaction, which sees a consistent state and is atomic."""
    connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        # Writers lock immediately: two that first read and then wanted to write would wait for each other.
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        yield connection
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        # Python 3.10 does not provide the error code.
        if "locked" in str(error) or "busy" in str(error):
            raise Busy(f"another program is using the library {path}: {error}") from error
        raise FrameError(f"the library {path} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise FrameError(f"the library {path} cannot be used: {error}") from error
    finally:
        # This rolls back what was not committed.
        connection.close()


def prepare(path: Path) -> None:
    """Create the tables if they do not exist.

    Raises
    ------
    FrameError
        If the file is not a library, or one of another release.
    """
    new = not path.exists()
    with connected(path, write=True) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master")]
        if version == VERSION and "plot" in tables:
            return
        if tables or version:
            raise FrameError(f"{path} is not a library, or one of another release of Tidemill")
        for statement in _TABLES.split(";\n"):
            if statement.strip():
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    if new:
        # Readers do not wait for a writer in this mode, which is stored in the file.
        with contextlib.closing(sqlite3.connect(path)) as plain:
            plain.execute("PRAGMA journal_mode = WAL")
