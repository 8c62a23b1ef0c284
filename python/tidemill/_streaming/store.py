"""State of idle keys on disk: a private SQLite database."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tidemill._tables.errors import DataSetError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Store", "Stored"]

#: Rows that are read at once.
_AT_ONCE = 1000


class Stored(NamedTuple):
    """The saved state of a key."""

    #: Says which key it is; two keys have two of them.
    name: str
    bucket: int
    #: When it must be looked at, by the stream's time; None: not before something of the key comes.
    due: int | None
    #: The same by the machine's clock.
    alarm: int | None
    #: Whether that is in no snapshot yet.
    changed: bool
    #: Whether there is nothing any more, which the next snapshot must say.
    gone: bool
    #: The key and what is kept of it, pickled.
    value: bytes


class Store:
    """States on disk, by key. Nothing in it outlives the process, so it is neither synced nor logged."""

    def __init__(self, folder: str) -> None:
        # Few programs need it, and some builds of Python lack it.
        import sqlite3

        self._failure = sqlite3.Error
        self._folder = folder
        try:
            number, path = tempfile.mkstemp(prefix="tidemill-states-", dir=folder)
        except OSError as error:
            raise self._failed(os.strerror(error.errno or 0)) from None
        os.close(number)
        try:
            # The engine's threads take turns.
            self._data = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for setting in (
                "journal_mode = OFF",
                "synchronous = OFF",
                "locking_mode = EXCLUSIVE",
                "temp_store = MEMORY",
            ):
                self._do(f"PRAGMA {setting}")
            self._do(
                "CREATE TABLE states (name TEXT PRIMARY KEY, bucket INTEGER, due INTEGER, alarm INTEGER, changed INTEGER,"
                " gone INTEGER, value BLOB)"
            )
            self._do("CREATE INDEX by_bucket ON states (bucket)")
            self._do("CREATE INDEX by_due ON states (due) WHERE due IS NOT NULL")
            self._do("CREATE INDEX by_alarm ON states (alarm) WHERE alarm IS NOT NULL")
            self._do("CREATE INDEX by_change ON states (bucket) WHERE changed")
        finally:
            # Without a name it is gone when the process is, however that ends.
            Path(path).unlink()
        # One transaction that is never over.
        self._do("BEGIN")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def _do(self, statement: str, values: Iterable[object] = ()) -> sqlite3.Cursor:
        try:
            return self._data.execute(statement, tuple(values))
        except self._failure as error:
            # SQLite's own traceback says nothing more.
            raise self._failed(str(error)) from None

    def _failed(self, reason: str) -> DataSetError:
        """Return the error of a file in the folder, which is where everything is spilled to."""
        room = ""
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._folder)
            free, size = (disk.f_frsize * blocks >> 20 for blocks in (disk.f_bavail, disk.f_blocks))
            room = f"{free} MiB of its disk's {size} MiB are free; "
        return DataSetError(
            f"spilling to {self._folder}: the states of keys cannot be kept there: {reason}; {room}free space there, choose "
            "another directory with --spill-dir, or raise --memory so that less is written"
        )

    def put(self, states: Iterable[Stored]) -> None:
        """Store states of keys that have none here."""
        for state in states:
            self._do("INSERT INTO states VALUES (?, ?, ?, ?, ?, ?, ?)", state)
            self._count += 1

    def take(self, name: str) -> Stored | None:
        """Remove and return the state of a key."""
        if not self._count:
            return None
        row = self._do("SELECT * FROM states WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        self._do("DELETE FROM states WHERE name = ?", (name,))
        self._count -= 1
        return Stored(*row)

    def first_alarm(self) -> int | None:
        """Return the earliest alarm."""
        (first,) = self._do("SELECT min(alarm) FROM states WHERE alarm IS NOT NULL").fetchone()
        return None if first is None else int(first)

    def take_due(self, column: Literal["due", "alarm"], now: int) -> list[Stored]:
        """Remove and return some states that are due by now; none if no more are due."""
        if not self._count:
            return []
        query = f"SELECT * FROM states WHERE {column} <= ? ORDER BY {column} LIMIT ?"
        found = [Stored(*row) for row in self._do(query, (now, _AT_ONCE)).fetchall()]
        for state in found:
            self._do("DELETE FROM states WHERE name = ?", (state.name,))
        self._count -= len(found)
        return found

    def values(self, bucket: int, changed: bool) -> Iterator[bytes]:
        """Iterate over the states in a bucket, or over its changes, including removals."""
        where = "changed" if changed else "NOT gone"
        for (value,) in self._do(f"SELECT value FROM states WHERE bucket = ? AND {where}", (bucket,)):
            yield value

    def buckets(self, changed: bool) -> set[int]:
        """Return the buckets for which `values` yields anything."""
        where = "changed" if changed else "NOT gone"
        return {bucket for (bucket,) in self._do(f"SELECT DISTINCT bucket FROM states WHERE {where}")}

    def saved(self) -> None:
        """Record that a snapshot has everything stored here."""
        self._count -= self._do("DELETE FROM states WHERE changed AND gone").rowcount
        self._do("UPDATE states SET changed = 0 WHERE changed")

    def drop(self, bucket: int) -> None:
        """Forget the states in a bucket."""
        self._count -= self._do("DELETE FROM states WHERE bucket = ?", (bucket,)).rowcount
