"""The library itself: operations of the page and of programs on plots, each atomic."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from tidemill.viz import _selections
from tidemill.viz._export import write_page
from tidemill.viz._format import INDEX, FrameError
from tidemill.viz._read import FrameReader
from tidemill.viz._write import OURS
from tidemill.viz.library import _changes, _search
from tidemill.viz.library._apart import read_apart
from tidemill.viz.library._cloud import Limits, UploadError
from tidemill.viz.library._records import (
    TITLE_MAX,
    Plot,
    cut,
    described,
    number_of,
    touched,
    utc_now,
)
from tidemill.viz.library._said import Said
from tidemill.viz.library._schema import connected, prepare
from tidemill.viz.library._upload import Upload, read_upload

__all__ = ["Library"]

_ID = re.compile(r"[0-9a-f]{16}")
#: Remains of interrupted uploads are removed at this age.
_ABANDONED_S = 24 * 3600
#: Next to the database: shared by programs that create plots, exclusive for one that tidies up.
_LOCK = ".lock"


class Library(Said):
    """A library of plots in a folder: ``library.sqlite`` and, below ``plots``, a folder of frames for each.

    Several programs may use one library at the same time.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    limits : Limits, optional
        Limits of uploads.

    Raises
    ------
    FrameError
        If the folder contains something else, or a library of another release.
    """

    def __init__(self, folder: str | PathLike[str], *, limits: Limits | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.limits = limits or Limits()
        self._path = self.folder / "library.sqlite"
        self._plots = self.folder / "plots"
        if (self.folder / INDEX).exists():
            raise FrameError(
                f"{self.folder} is a folder of frames; give the library its own folder, and add these frames to it"
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
        """Import a file, several files that are frames of one plot, an archive of them, or a folder of frames.

        Parameters
        ----------
        source : path, or iterable of paths
            ``docs/library.md`` lists the formats.
        title : str, optional
            By default the title in the file, else the file's name.
        description, collection : str, optional
        tags : iterable of str, optional

        Raises
        ------
        UploadError
            If it cannot be read; the message names file, line or field, and the remedy. Nothing is stored.
        FrameError
            If the folder has no frames.
        """
        paths = [Path(source)] if isinstance(source, (str, PathLike)) else [Path(path) for path in source]
        if len(paths) == 1 and paths[0].is_dir():
            return self._add_frames(paths[0], title, description, tags, collection)
        files: dict[str, Path] = {}
        for path in paths:
            if not path.is_file():
                raise UploadError(f"{path}: no such file")
            if files.setdefault(path.name, path) != path:
                raise UploadError(f"two files are named {path.name}; rename one")
        return self.add_files(files, title=title, description=description, tags=tags, collection=collection)

    def add_files(
        self,
        files: Mapping[str, Path],
        *,
        title: str = "",
        description: str = "",
        tags: Iterable[str] = (),
        collection: str = "",
        apart: bool = False,
    ) -> Plot:
        """Import files under other names than they have on disk; otherwise like `add`.

        With `apart`, a separate process decodes them, within `Limits.memory_bytes` and `Limits.timeout`: if they crash
        it, this program continues.
        """
        kept = described(title, description, tags, collection)
        if not files:
            raise UploadError("there is no file")
        source = next(iter(files)) if len(files) == 1 else f"{len(files)} files"
        with self._making() as made:
            for name, path in files.items():
                if path.stat().st_size > self.limits.bytes:
                    raise UploadError(f"{name}: it is larger than {self.limits.bytes >> 20} MiB, which is the limit")
            upload = (read_apart if apart else read_upload)(files, made, self.limits)
            kept["title"] = kept["title"] or cut(upload.title, TITLE_MAX) or cut(Path(source).stem, TITLE_MAX)
            return self._store(made, kept, upload, source)

    def _add_frames(self, folder: Path, title: str, description: str, tags: Iterable[str], collection: str) -> Plot:
        kept = described(title, description, tags, collection)
        reader = FrameReader(folder)
        with self._making() as made:
            made.mkdir()
            for path in folder.iterdir():
                if OURS.fullmatch(path.name) and path.is_file():
                    shutil.copyfile(path, made / path.name)
            kept["title"] = kept["title"] or cut(reader.title, TITLE_MAX) or cut(folder.resolve().name, TITLE_MAX)
            # In a library, viewers' changes of a plot are versions; what existed before is in the original.
            (made / _selections.NAME).unlink(missing_ok=True)
            changes = [{"set": "group", "name": name, "value": rows} for name, rows in _selections.read(folder).items()]
            return self._store(made, kept, Upload("frames", "", changes), folder.resolve().name)

    @contextlib.contextmanager
    def _making(self) -> Any:
        """Provide a folder to create a plot in, which is removed afterwards unless it was moved to the plots."""
        made = self._plots / f".new-{secrets.token_hex(8)}"
        with self.uploading():
            try:
                yield made
            finally:
                shutil.rmtree(made, ignore_errors=True)

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """Let other programs know that the hidden folders are in use."""
        with _locked(self.folder, fcntl.LOCK_SH):
            yield

    def _store(self, made: Path, kept: dict[str, Any], upload: Upload, source: str) -> Plot:
        reader = FrameReader(made)
        changes = _changes.checked(upload.changes)
        size = sum(path.stat().st_size for path in made.iterdir())
        plot, now = secrets.token_hex(8), utc_now()
        with connected(self._path, write=True) as db:
            number = db.execute(
                "INSERT INTO plot (id, title, description, collection, source, kind, frames, points, bytes, created, changed) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    plot, kept["title"], kept["description"], kept["collection"], cut(source, TITLE_MAX), upload.kind,
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
            # The database entry exists now. If the program is interrupted here, only a folder is left over, which does
            # no harm.
            made.rename(self._plots / plot)
        return self.plot(plot)

    def plots(
        self, search: str = "", *, tag: str = "", collection: str = "", limit: int = 1000, offset: int = 0
    ) -> list[Plot]:
        """Return the plots that match, most recently changed first.

        Parameters
        ----------
        search : str, optional
            Words, or beginnings of words, that must all occur in title, description, tags, comments, or names of points
            and categories. ``tag:NAME`` and ``in:NAME`` search for a tag and a collection.
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
        """Return the number of plots that match; arguments as in `plots`."""
        with connected(self._path) as db:
            where, values = _search.condition(search, tag, collection)
            return int(db.execute(f"SELECT count(*) FROM plot WHERE {where}", values).fetchone()[0])

    def tags(self) -> dict[str, int]:
        """Return the number of plots for each tag."""
        with connected(self._path) as db:
            return dict(map(tuple, db.execute("SELECT name, count(*) FROM tag GROUP BY name ORDER BY name")))

    def collections(self) -> dict[str, int]:
        """Return the number of plots in each collection."""
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
            If the id does not exist; also in all other calls that take one.
        """
        with connected(self._path) as db:
            return _plot(db.execute(f"{_PLOTS} WHERE number = ?", (number_of(db, id),)).fetchone())

    def frames(self, id: str) -> Path:
        """Return the folder of a plot's frames, for `FrameReader` and ``tidemill view``."""
        with connected(self._path) as db:
            number_of(db, id)
        return self._plots / id

    def export_html(self, id: str, path: str | PathLike[str]) -> None:
        """Write a plot with all its versions, and the page that shows them, to one HTML file, which opens without a
        server.

        It shows the newest version first and is read-only; it does not contain comments and links. An existing file at
        `path` is replaced.

        Raises
        ------
        FrameError
            As in `tidemill.viz.export_html`.
        """
        versions = [asdict(version) for version in self.versions(id)]
        about = {"plot": asdict(self.plot(id)), "versions": versions, "logs": self.logs(id)}
        write_page(self.frames(id), Path(path), {**about, "writable": False, "comments": [], "shares": []})

    def update(
        self,
        id: str,
        *,
        title: str | None = None,
        description: str | None = None,
        tags: Iterable[str] | None = None,
        collection: str | None = None,
    ) -> Plot:
        """Change a plot's description; arguments that you omit keep their values."""
        with connected(self._path, write=True) as db:
            number = number_of(db, id)
            old = db.execute("SELECT title, description, collection FROM plot WHERE number = ?", (number,)).fetchone()
            kept = described(
                old["title"] if title is None else title,
                old["description"] if description is None else description,
                () if tags is None else tags,
                old["collection"] if collection is None else collection,
            )
            if not kept["title"]:
                raise ValueError("a plot needs a title")
            db.execute(
                "UPDATE plot SET title = ?, description = ?, collection = ? WHERE number = ?",
                (kept["title"], kept["description"], kept["collection"], number),
            )
            if tags is not None:
                db.execute("DELETE FROM tag WHERE plot = ?", (number,))
                db.executemany("INSERT INTO tag VALUES (?, ?)", [(number, tag) for tag in kept["tags"]])
            touched(db, number)
        return self.plot(id)

    def remove(self, id: str) -> None:
        """Remove a plot with its versions, comments and shares."""
        with connected(self._path, write=True) as db:
            number = number_of(db, id)
            db.execute("DELETE FROM words WHERE rowid = ?", (number,))
            db.execute("DELETE FROM plot WHERE number = ?", (number,))
        # Renamed first, so that readers never find half of it.
        gone = self._plots / f".gone-{id}"
        with contextlib.suppress(FileNotFoundError):
            (self._plots / id).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _tidy(self) -> None:
        """Remove the remains of interrupted uploads; while other programs are at work, only old ones."""
        try:
            with _locked(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._remove_left(0.0)
        except OSError:
            self._remove_left(_ABANDONED_S)

    def _remove_left(self, age_s: float) -> None:
        with connected(self._path) as db:
            known = {id for (id,) in db.execute("SELECT id FROM plot")}
        for path in self._plots.iterdir():
            if not (path.name.startswith(".") or _ID.fullmatch(path.name)) or path.name in known:
                continue
            with contextlib.suppress(OSError):
                # A folder without an entry may be a plot whose entry is about to be written.
                least_s = age_s if path.name.startswith(".") else _ABANDONED_S
                if time.time() - path.lstat().st_mtime >= least_s:
                    shutil.rmtree(path)


@contextlib.contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


_PLOTS = (
    "SELECT plot.*, (SELECT group_concat(name, char(10)) FROM (SELECT name FROM tag WHERE tag.plot = plot.number ORDER BY name)) AS tags, "
    "(SELECT count(*) - 1 FROM version WHERE version.plot = plot.number AND version.name <> '') AS versions, "
    "(SELECT count(*) FROM comment WHERE comment.plot = plot.number) AS comments FROM plot"
)


def _plot(row: sqlite3.Row) -> Plot:
    told = dict(row)
    del told["number"]
    return Plot(**{**told, "tags": tuple((told["tags"] or "").split("\n")) if told["tags"] else ()})
