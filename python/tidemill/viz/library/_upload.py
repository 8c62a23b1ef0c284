"""Detects the type of an upload and converts it to a folder of frames: a file, several files, or an archive of them.

Names in an archive are never used as paths: its members are found by name, and unpacked into numbered files.
"""

from __future__ import annotations

import errno
import re
import stat
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tidemill.viz._format import FrameError
from tidemill.viz._write import FrameWriter
from tidemill.viz.library._cloud import Cloud, Limits, UploadError
from tidemill.viz.library._json import read_json
from tidemill.viz.library._table import read_table
from tidemill.viz.library._text import lines_of, read_text
from tidemill.viz.library._xml import read_xml

__all__ = ["FORMATS", "Upload", "read_upload"]

#: Formats by file name suffix.
FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".txt": "text",
    ".json": "json",
    ".xml": "xml",
    ".pviz": "xml",
    ".index": "index",
    ".zip": "zip",
}

#: Files that systems add to archives by themselves.
_NOT_MEANT = re.compile(r"(^|/)(__MACOSX/|\.DS_Store$|Thumbs\.db$|desktop\.ini$)")
#: An archive that unpacks to more than this many times its size is malicious; text files of numbers reach about ten.
_RATIO_MAX = 200


@dataclass(frozen=True)
class Upload:
    """Result of an upload."""

    kind: str
    """Its format: ``csv``, ``text``, ..., or ``series`` of several files."""
    title: str
    """The one that the file itself has, or ``""``."""
    changes: list[dict[str, Any]]


def read_upload(files: Mapping[str, Path], folder: Path, limits: Limits) -> Upload:
    """Write the frames of an upload into a folder.

    Parameters
    ----------
    files : mapping of str to Path
        Paths of the files by name. A single file is a plot or an archive; several are a series: the frames of a
        time-series index if there is one, else in the order of their names.
    folder : Path
        Output folder for the frames; its content is unusable if this raises.
    limits : Limits

    Raises
    ------
    UploadError
        Naming the file, the line or field, and the remedy.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacked-") as unpacked:
        if len(files) == 1 and _kind(next(iter(files))) == "zip":
            ((name, path),) = files.items()
            files = _unpack(name, path, Path(unpacked), limits)
        elif sum(path.stat().st_size for path in files.values()) > limits.bytes:
            raise UploadError(f"an upload is at most {limits.bytes >> 20} MiB")
        series = _series(files)
        first, frames = None, 0
        with FrameWriter(folder) as writer:
            changes: dict[tuple[Any, ...], dict[str, Any]] = {}
            for name, label in series:
                for cloud in _read(name, files[name], limits):
                    frames += 1
                    if frames > limits.frames:
                        raise UploadError(f"{name}: there are more than {limits.frames:,} frames, which is the limit")
                    _write(writer, name, cloud, cloud.time or label)
                    first = first or cloud
                    for change in cloud.changes:
                        changes.setdefault((change["set"], change["grouping"], change["category"]), change)
    assert first is not None, "each file has a cloud, or was refused"
    kind = _kind(series[0][0]) if len(series) == 1 else "series"
    return Upload(kind, first.title, list(changes.values()))


def _write(writer: FrameWriter, name: str, cloud: Cloud, time: str | None) -> None:
    try:
        writer.write_frame(
            cloud.positions,
            ids=cloud.ids,
            time=time,
            labels=cloud.labels,
            groups=cloud.groups,
            values=cloud.values,
            edges=cloud.edges or None,
        )
    except FrameError as error:
        raise UploadError(f"{name}: {str(error).partition(': ')[2] or error}") from None


def _read(name: str, path: Path, limits: Limits) -> list[Cloud]:
    kind = _kind(name)
    if kind in ("csv", "tsv", "parquet", "ipc"):
        return read_table(name, path, kind, limits)
    reader = {"text": read_text, "json": read_json, "xml": read_xml}[kind]
    with path.open("rb") as data:
        return reader(name, data, limits)


def _kind(name: str) -> str:
    kind = FORMATS.get(PurePosixPath(name).suffix.lower())
    if kind is None:
        raise UploadError(f"{name}: the file's name does not show its format; it should end with {', '.join(FORMATS)}")
    return kind


def _series(files: Mapping[str, Path]) -> list[tuple[str, str | None]]:
    """Return the files that are frames, in order, and the names of the frames."""
    if not files:
        raise UploadError("the upload has no file in it")
    names = list(files)
    indexes = [name for name in names if _kind(name) == "index" or PurePosixPath(name).name.lower() == "index.txt"]
    if len(indexes) > 1:
        raise UploadError(f"there are two indexes, {indexes[0]} and {indexes[1]}; give one")
    if not indexes and len(names) == 1 and _kind(names[0]) != "zip":
        return [(names[0], None)]
    if any(_kind(name) == "zip" for name in names):
        raise UploadError("an archive comes alone, without other files and not in another archive")
    if not indexes:
        return [(name, PurePosixPath(name).stem) for name in sorted(names, key=_natural)]
    return _indexed(indexes[0], files)


def _indexed(index: str, files: Mapping[str, Path]) -> list[tuple[str, str | None]]:
    """Read a time-series index: on each line the name of a file and, after a tab, the name of the frame."""
    # Names refer to files next to the index, wherever that is in an archive.
    beside = PurePosixPath(index).parent
    left = dict.fromkeys(name for name in files if name != index)
    series: list[tuple[str, str | None]] = []
    with files[index].open("rb") as data:
        for number, line in lines_of(index, data):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, label = (word.strip() for word in line.partition("\t"))
            found = str(beside / name)
            if found not in files or found == index:
                raise UploadError(
                    f"{index}, line {number}: there is no file {name[:80]!r} in the upload; add it, or remove the line"
                )
            if found not in left:
                raise UploadError(f"{index}, line {number}: the file {name[:80]!r} was named before")
            del left[found]
            series.append((found, label or PurePosixPath(found).stem))
    if not series:
        raise UploadError(
            f"{index}: it names no file; each line is the name of a file, followed by a tab and the name of the frame"
        )
    if left:
        raise UploadError(f"{next(iter(left))}: the index {index} does not name it; add a line, or leave out the file")
    return series


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that orders names as people do: 2 before 10."""
    parts = re.split(r"(\d{1,18})", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _unpack(name: str, path: Path, to: Path, limits: Limits) -> dict[str, Path]:
    files: dict[str, Path] = {}
    left = min(limits.bytes, max(1 << 20, path.stat().st_size * _RATIO_MAX))
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist() if not one.is_dir() and not _NOT_MEANT.search(one.filename)]
            if len(members) > limits.frames + 1:
                raise UploadError(f"{name}: it has {len(members):,} files, more than {limits.frames:,}")
            for number, member in enumerate(members):
                said = member.filename
                if said in files:
                    raise UploadError(f"{name}: {said[:80]!r} appears in it twice")
                if member.flag_bits & 1:
                    raise UploadError(f"{name}: {said[:80]!r} is encrypted; pack it without a password")
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise UploadError(f"{name}: {said[:80]!r} is a link; pack the file itself")
                if said.startswith("/") or ".." in PurePosixPath(said).parts or "\\" in said:
                    raise UploadError(f"{name}: {said[:80]!r} leads out of the archive")
                files[said] = to / f"{number:06}{PurePosixPath(said).suffix.lower()}"
                _kind(said)
                # The sizes stated in the archive may be false.
                with archive.open(member) as packed, files[said].open("wb") as out:
                    while part := packed.read(1 << 20):
                        left -= len(part)
                        if left < 0:
                            raise UploadError(
                                f"{name}: unpacked it is more than {limits.bytes >> 20} MiB, or {_RATIO_MAX} times its size"
                            )
                        out.write(part)
    except (
        zipfile.BadZipFile,
        struct.error,
        EOFError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        ValueError,
        OSError,
    ) as error:
        if isinstance(error, UploadError):
            raise
        # An offset before the start of the file is the archive's fault; all other system errors are not.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise UploadError(f"{name}: this is not an archive that can be unpacked: {error}") from None
    except Exception as error:
        # zlib and similar modules have their own error classes.
        if type(error).__module__ not in ("zlib", "lzma", "_lzma", "bz2", "_bz2"):
            raise
        raise UploadError(f"{name}: the archive is damaged: {error}") from None
    return files
