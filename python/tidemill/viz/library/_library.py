"""The library itself: what the page and programs do with plots, each call whole or not at all."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tidemill.viz._format import INDEX, FrameError
from tidemill.viz._read import FrameReader
from tidemill.viz._write import OURS
from tidemill.viz.library import _changes, _search
from tidemill.viz.library._cloud import Limits, UploadError
from tidemill.viz.library._schema import connected, prepare
from tidemill.viz.library._upload import Upload, read_upload

__all__ = ["Comment", "Library", "Plot", "Share", "Version"]

_ID = re.compile(r"[0-9a-f]{16}")
_TITLE_MAX = 200
_TEXT_MAX = 20_000
_TAG_MAX = 60
_TAGS_MAX = 50
#: What is left of an upload that ended half way is removed when it is so old.
_ABANDONED_S = 24 * 3600


@dataclass(frozen=True)
class Plot:
    """What a library knows of a plot. Times are UTC, as ISO 8601."""

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
    """A version: number 0 is the original, each other is built on its parent."""

    number: int
    parent: int | None
    name: str
    note: str
    author: str
    created: str


@dataclass(frozen=True)
class Comment:
    """What somebody said about a plot."""

    number: int
    author: str
    text: str
    created: str


@dataclass(frozen=True)
class Share:
    """A link that shows one plot, or one version of it, and can do nothing else."""

    number: int
    version: int | None
    name: str
    created: str
    token: str = ""
    """Known only to who made it: the library keeps a hash."""


class Library:
    """A library of plots in a folder: ``library.sqlite`` and, below ``plots``, a folder of frames for each.

    Several programs may use one library at the same time.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    limits : Limits, optional
        What an upload may be at most.

    Raises
    ------
    FrameError
        The folder has something else in it, or a library of another release.
    """

    def __init__(self, folder: str | PathLike[str], *, limits: Limits | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.limits = limits or Limits()
        self._path = self.folder / "library.sqlite"
        self._plots = self.folder / "plots"
        if (self.folder / INDEX).exists():
            raise FrameError(
                f"{self.folder} is a folder of frames; a library wants one of its own, and can take frames in"
            )
        try:
            self._plots.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FrameError(f"{self.folder} cannot be a library: {error.strerror}") from error
        prepare(self._path)
        self._tidy()

    # ---- plots

    def add(
        self,
        source: str | PathLike[str] | Iterable[str | PathLike[str]],
        *,
        title: str = "",
        description: str = "",
        tags: Iterable[str] = (),
        collection: str = "",
    ) -> Plot:
        """Take in a file, several files that are frames of one plot, an archive of them, or a folder of frames.

        Parameters
        ----------
        source : path, or iterable of paths
            Formats are in ``docs/library.md``.
        title : str, optional
            Default: the one in the file, else the file's name.
        description, collection : str, optional
        tags : iterable of str, optional

        Raises
        ------
        UploadError
            It cannot be read; the message names file, line or field, and the remedy. Nothing is stored.
        FrameError
            The folder has no frames.
        """
        paths = [Path(source)] if isinstance(source, (str, PathLike)) else [Path(path) for path in source]
        if len(paths) == 1 and paths[0].is_dir():
            return self._add_frames(paths[0], title, description, tags, collection)
        files: dict[str, Path] = {}
        for path in paths:
            if not path.is_file():
                raise UploadError(f"{path}: there is no such file")
            if files.setdefault(path.name, path) != path:
                raise UploadError(f"two files are called {path.name}; rename one")
        return self.add_files(files, title=title, description=description, tags=tags, collection=collection)

    def add_files(
        self,
        files: Mapping[str, Path],
        *,
        title: str = "",
        description: str = "",
        tags: Iterable[str] = (),
        collection: str = "",
    ) -> Plot:
        """Take in files that are called otherwise than where they lie; else as `add`."""
        kept = _described(title, description, tags, collection)
        if not files:
            raise UploadError("there is no file")
        source = next(iter(files)) if len(files) == 1 else f"{len(files)} files"
        with self._making() as made:
            for name, path in files.items():
                if path.stat().st_size > self.limits.bytes:
                    raise UploadError(f"{name}: it is larger than {self.limits.bytes >> 20} MiB, which is the limit")
            upload = read_upload(files, made, self.limits)
            kept["title"] = kept["title"] or _cut(upload.title, _TITLE_MAX) or _cut(Path(source).stem, _TITLE_MAX)
            return self._store(made, kept, upload, source)

    def _add_frames(self, folder: Path, title: str, description: str, tags: Iterable[str], collection: str) -> Plot:
        kept = _described(title, description, tags, collection)
        reader = FrameReader(folder)
        with self._making() as made:
            made.mkdir()
            for path in folder.iterdir():
                if OURS.fullmatch(path.name) and path.is_file():
                    shutil.copyfile(path, made / path.name)
            kept["title"] = kept["title"] or _cut(reader.title, _TITLE_MAX) or _cut(folder.resolve().name, _TITLE_MAX)
            return self._store(made, kept, Upload("frames", "", []), folder.resolve().name)

    @contextlib.contextmanager
    def _making(self) -> Any:
        """Give a folder to make a plot in, which is gone afterwards unless it was moved to where plots are."""
        made = self._plots / f".new-{secrets.token_hex(8)}"
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _store(self, made: Path, kept: dict[str, Any], upload: Upload, source: str) -> Plot:
        reader = FrameReader(made)
        changes = _changes.checked(upload.changes)
        size = sum(path.stat().st_size for path in made.iterdir())
        plot, now = secrets.token_hex(8), _now()
        with connected(self._path, write=True) as db:
            number = db.execute(
                "INSERT INTO plot (id, title, description, collection, source, kind, frames, points, bytes, created, changed) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    plot, kept["title"], kept["description"], kept["collection"], _cut(source, _TITLE_MAX), upload.kind,
                    len(reader), reader.points, size, now, now,
                ),
            ).lastrowid  # fmt: skip
            assert number is not None
            db.executemany("INSERT INTO tag VALUES (?, ?)", [(number, tag) for tag in kept["tags"]])
            db.execute(
                "INSERT INTO version VALUES (?, 0, NULL, 'original', '', '', ?, ?)", (number, now, json.dumps(changes))
            )
            _search.insert(db, number, _search.contents(reader))
            _search.update(db, number)
            # What is in the database is there; should this be the last thing that happens, a folder is left over, which is no harm.
            made.rename(self._plots / plot)
        return self.plot(plot)

    def plots(
        self, search: str = "", *, tag: str = "", collection: str = "", limit: int = 1000, offset: int = 0
    ) -> list[Plot]:
        """Return the plots that match, those that were changed last first.

        Parameters
        ----------
        search : str, optional
            Words that must all occur, or begin a word that does: in title, description, tags, comments, names of points and of
            categories. ``tag:NAME`` and ``in:NAME`` ask for a tag and a collection.
        tag, collection : str, optional
        limit, offset : int, optional
        """
        with connected(self._path) as db:
            where, values = _search.condition(search, tag, collection)
            rows = db.execute(
                f"{_PLOTS} WHERE {where} ORDER BY changed DESC, number DESC LIMIT ? OFFSET ?", (*values, limit, offset)
            )
            return [_plot(row) for row in rows]

    def count(self, search: str = "", *, tag: str = "", collection: str = "") -> int:
        """Return how many plots match; as `plots`."""
        with connected(self._path) as db:
            where, values = _search.condition(search, tag, collection)
            return int(db.execute(f"SELECT count(*) FROM plot WHERE {where}", values).fetchone()[0])

    def tags(self) -> dict[str, int]:
        """Return how many plots each tag has."""
        with connected(self._path) as db:
            return dict(map(tuple, db.execute("SELECT name, count(*) FROM tag GROUP BY name ORDER BY name")))

    def collections(self) -> dict[str, int]:
        """Return how many plots are in each collection."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT collection, count(*) FROM plot WHERE collection != '' GROUP BY collection ORDER BY collection"
            )
            return dict(map(tuple, rows))

    def plot(self, id: str) -> Plot:
        """Return a plot.

        Raises
        ------
        KeyError
            There is none of that id; so do all calls that take one.
        """
        with connected(self._path) as db:
            return _plot(db.execute(f"{_PLOTS} WHERE number = ?", (_number(db, id),)).fetchone())

    def frames(self, id: str) -> Path:
        """Return the folder of a plot's frames, for `FrameReader` and ``tidemill view``."""
        with connected(self._path) as db:
            _number(db, id)
        return self._plots / id

    def update(
        self,
        id: str,
        *,
        title: str | None = None,
        description: str | None = None,
        tags: Iterable[str] | None = None,
        collection: str | None = None,
    ) -> Plot:
        """Describe a plot anew; what is not given stays."""
        with connected(self._path, write=True) as db:
            number = _number(db, id)
            old = db.execute("SELECT title, description, collection FROM plot WHERE number = ?", (number,)).fetchone()
            kept = _described(
                old["title"] if title is None else title,
                old["description"] if description is None else description,
                () if tags is None else tags,
                old["collection"] if collection is None else collection,
            )
            if not kept["title"]:
                raise ValueError("a plot has a title")
            db.execute(
                "UPDATE plot SET title = ?, description = ?, collection = ? WHERE number = ?",
                (kept["title"], kept["description"], kept["collection"], number),
            )
            if tags is not None:
                db.execute("DELETE FROM tag WHERE plot = ?", (number,))
                db.executemany("INSERT INTO tag VALUES (?, ?)", [(number, tag) for tag in kept["tags"]])
            _touched(db, number)
        return self.plot(id)

    def remove(self, id: str) -> None:
        """Remove a plot with its versions, comments and shares."""
        with connected(self._path, write=True) as db:
            number = _number(db, id)
            db.execute("DELETE FROM words WHERE rowid = ?", (number,))
            db.execute("DELETE FROM plot WHERE number = ?", (number,))
        # Under another name at once, so that nobody finds half of it.
        gone = self._plots / f".gone-{id}"
        with contextlib.suppress(FileNotFoundError):
            (self._plots / id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    # ---- comments

    def comments(self, id: str) -> list[Comment]:
        """Return what was said about a plot, in order."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT number, author, text, created FROM comment WHERE plot = ? ORDER BY number", (_number(db, id),)
            )
            return [Comment(**row) for row in map(dict, rows)]

    def comment(self, id: str, text: str, *, author: str = "") -> Comment:
        """Say something about a plot."""
        text, author = _line("a comment", text, _TEXT_MAX, lines=True), _line("an author", author, _TAG_MAX)
        if not text:
            raise ValueError("a comment has a text")
        now = _now()
        with connected(self._path, write=True) as db:
            number = _number(db, id)
            added = db.execute(
                "INSERT INTO comment (plot, author, text, created) VALUES (?, ?, ?, ?)", (number, author, text, now)
            ).lastrowid
            _touched(db, number)
        assert added is not None
        return Comment(added, author, text, now)

    def remove_comment(self, id: str, number: int) -> None:
        """Take a comment back."""
        with connected(self._path, write=True) as db:
            plot = _number(db, id)
            _deleted(db.execute("DELETE FROM comment WHERE plot = ? AND number = ?", (plot, number)), "comment", number)
            _touched(db, plot)

    # ---- versions

    def versions(self, id: str) -> list[Version]:
        """Return the versions of a plot; the first is the original."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT number, parent, name, note, author, created FROM version WHERE plot = ? ORDER BY number",
                (_number(db, id),),
            )
            return [Version(**row) for row in map(dict, rows)]

    def changes(self, id: str, version: int = 0) -> list[dict[str, Any]]:
        """Return all that a version changes about the data: what is left of the logs from the original to it.

        The shape of changes is in ``docs/library.md``.
        """
        with connected(self._path) as db:
            plot = _number(db, id)
            logs: list[list[dict[str, Any]]] = []
            at: int | None = version
            while at is not None:
                row = db.execute(
                    "SELECT parent, changes FROM version WHERE plot = ? AND number = ?", (plot, at)
                ).fetchone()
                if row is None:
                    raise KeyError(f"there is no version {version} of the plot")
                logs.append(json.loads(row["changes"]))
                # A parent is always older, so that this ends.
                at = row["parent"]
            return _changes.folded(reversed(logs))

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
        """Keep changes as a version that is built on another.

        Raises
        ------
        ValueError
            A change makes no sense, or there is no name.
        """
        kept = _changes.checked(changes)
        name, author = _line("a name", name, _TITLE_MAX), _line("an author", author, _TAG_MAX)
        note = _line("a note", note, _TEXT_MAX, lines=True)
        if not name:
            raise ValueError("a version has a name")
        now = _now()
        with connected(self._path, write=True) as db:
            plot = _number(db, id)
            _has_version(db, plot, parent)
            (number,) = db.execute("SELECT max(number) + 1 FROM version WHERE plot = ?", (plot,)).fetchone()
            db.execute(
                "INSERT INTO version VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (plot, number, parent, name, note, author, now, json.dumps(kept, ensure_ascii=False)),
            )
            _touched(db, plot)
        return Version(number, parent, name, note, author, now)

    # ---- shares

    def shares(self, id: str) -> list[Share]:
        """Return the links to a plot that were given away and not withdrawn, without their tokens."""
        with connected(self._path) as db:
            rows = db.execute(
                "SELECT number, version, name, created FROM share WHERE plot = ? ORDER BY number", (_number(db, id),)
            )
            return [Share(**row) for row in map(dict, rows)]

    def share(self, id: str, *, version: int | None = None, name: str = "") -> Share:
        """Make a token that shows a plot and can do nothing else, until it is withdrawn.

        Parameters
        ----------
        id : str
        version : int, optional
            Show only this one; default: all.
        name : str, optional
            Whom it is for, to tell it from others.
        """
        name, token, now = _line("a name", name, _TITLE_MAX), secrets.token_urlsafe(24), _now()
        with connected(self._path, write=True) as db:
            plot = _number(db, id)
            if version is not None:
                _has_version(db, plot, version)
            number = db.execute(
                "INSERT INTO share (plot, version, name, hash, created) VALUES (?, ?, ?, ?, ?)",
                (plot, version, name, _hash(token), now),
            ).lastrowid
        assert number is not None
        return Share(number, version, name, now, token)

    def withdraw(self, id: str, number: int) -> None:
        """Take a share back: its link shows nothing any more."""
        with connected(self._path, write=True) as db:
            plot = _number(db, id)
            _deleted(db.execute("DELETE FROM share WHERE plot = ? AND number = ?", (plot, number)), "share", number)

    def shared(self, token: str) -> tuple[str, int | None] | None:
        """Return the plot, and the only version if there is but one, that a share's token shows."""
        with connected(self._path) as db:
            row = db.execute(
                "SELECT id, version FROM share JOIN plot ON plot.number = share.plot WHERE hash = ?", (_hash(token),)
            ).fetchone()
        return None if row is None else (row["id"], row["version"])

    def _tidy(self) -> None:
        """Remove what is left of uploads that never ended: what is old, as others may be at work."""
        with connected(self._path) as db:
            known = {id for (id,) in db.execute("SELECT id FROM plot")}
        for path in self._plots.iterdir():
            if not (path.name.startswith(".") or _ID.fullmatch(path.name)) or path.name in known:
                continue
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(path)


_PLOTS = (
    "SELECT plot.*, (SELECT group_concat(name, char(10)) FROM (SELECT name FROM tag WHERE tag.plot = plot.number ORDER BY name)) AS tags, "
    "(SELECT count(*) - 1 FROM version WHERE version.plot = plot.number) AS versions, "
    "(SELECT count(*) FROM comment WHERE comment.plot = plot.number) AS comments FROM plot"
)


def _plot(row: sqlite3.Row) -> Plot:
    told = dict(row)
    del told["number"]
    return Plot(**{**told, "tags": tuple((told["tags"] or "").split("\n")) if told["tags"] else ()})


def _number(db: sqlite3.Connection, id: str) -> int:
    row = db.execute("SELECT number FROM plot WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise KeyError(f"there is no plot {id!r}")
    return int(row["number"])


def _has_version(db: sqlite3.Connection, plot: int, version: int) -> None:
    if db.execute("SELECT 1 FROM version WHERE plot = ? AND number = ?", (plot, version)).fetchone() is None:
        raise KeyError(f"there is no version {version} of the plot")


def _deleted(done: sqlite3.Cursor, what: str, number: int) -> None:
    if done.rowcount == 0:
        raise KeyError(f"there is no {what} {number}")


def _touched(db: sqlite3.Connection, number: int) -> None:
    db.execute("UPDATE plot SET changed = ? WHERE number = ?", (_now(), number))
    _search.update(db, number)


def _described(title: str, description: str, tags: Iterable[str], collection: str) -> dict[str, Any]:
    words = list(dict.fromkeys(filter(None, (_line("a tag", tag, _TAG_MAX) for tag in tags))))
    if len(words) > _TAGS_MAX:
        raise ValueError(f"a plot has at most {_TAGS_MAX} tags")
    return {
        "title": _line("a title", title, _TITLE_MAX),
        "description": _line("a description", description, _TEXT_MAX, lines=True),
        "tags": words,
        "collection": _line("the name of a collection", collection, _TAG_MAX),
    }


def _line(what: str, text: str, most: int, *, lines: bool = False) -> str:
    """Return a text without blanks around it; one that is too long, or has characters that no text has, is refused."""
    text = text.strip()
    if len(text) > most:
        raise ValueError(f"{what} has at most {most} characters")
    if any(ord(letter) < 32 and not (lines and letter in "\n\r\t") for letter in text):
        raise ValueError(f"{what} has a control character in it")
    if any(0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise ValueError(f"{what} is no Unicode text")
    return text


def _cut(text: str, most: int) -> str:
    """Return a text that comes from a file as a title: on one line, and no longer than that may be."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())[:most]


def _hash(token: str) -> str:
    # The token is random and long: there is nothing to guess, so that no slow hash is needed.
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
