"""The plain text point file of PlotViz and WebPlotViz (Indiana University): ``index x y z cluster [label]`` on each line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import IO

import numpy as np

from tidemill.viz.library._cloud import Cloud, Limits, UploadError

__all__ = ["lines_of", "read_text"]

#: Maximum length of a line.
_LINE_BYTES_MAX = 1 << 16

_SHAPE = "a line is: index x y z cluster [label], separated by tabs or spaces"


def read_text(file: str, data: IO[bytes], limits: Limits) -> list[Cloud]:
    """Read a point file: one cloud.

    A line with tabs is split only at tabs; otherwise at blanks, and the label is the rest of the line. Empty lines and
    those that begin with ``#`` are skipped. The index is the point's id, the cluster is an integer.

    Raises
    ------
    UploadError
        Naming the line.
    """
    places: list[tuple[float, float, float]] = []
    labels: list[str] = []
    clusters: list[str] = []
    line_of: dict[str, int] = {}
    labelled = False
    for number, line in lines_of(file, data):
        if not line or line.startswith("#"):
            continue
        words = line.split("\t", 5) if "\t" in line else line.split(None, 5)
        if len(words) < 5:
            raise UploadError(f"{file}, line {number}: it has {len(words)} fields; {_SHAPE}")
        index, cluster = words[0].strip(), words[4].strip()
        if not _is_whole(index):
            raise UploadError(f"{file}, line {number}: the index {index[:40]!r} is not an integer; {_SHAPE}")
        if not _is_whole(cluster):
            raise UploadError(f"{file}, line {number}: the cluster {cluster[:40]!r} is not an integer; {_SHAPE}")
        place = []
        for axis, word in zip("xyz", words[1:4], strict=True):
            try:
                at = float(word)
            except ValueError:
                at = math.nan
            if not math.isfinite(at):
                raise UploadError(
                    f"{file}, line {number}: {axis} is {word[:40]!r}, which is not a finite number; {_SHAPE}"
                )
            place.append(at)
        if line_of.setdefault(index, number) != number:
            raise UploadError(f"{file}, line {number}: the index {index} already appeared, in line {line_of[index]}")
        if len(places) == limits.points:
            raise UploadError(f"{file}: it has more than {limits.points:,} points, which is the limit of a frame")
        places.append((place[0], place[1], place[2]))
        clusters.append(cluster)
        labels.append(words[5].strip() if len(words) > 5 else "")
        labelled = labelled or labels[-1] != ""
    if not places:
        raise UploadError(f"{file}: it has no points; {_SHAPE}")
    return [
        Cloud(np.array(places), list(line_of), labels if labelled else None, {"cluster": clusters}),
    ]


def lines_of(file: str, data: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, without trailing blanks; it must be UTF-8."""
    number = 0
    while line := data.readline(_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > _LINE_BYTES_MAX:
            raise UploadError(f"{file}, line {number}: it is longer than {_LINE_BYTES_MAX} bytes; is this a text file?")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UploadError(f"{file}, line {number}: it is not UTF-8; save the file in that encoding") from None
        if "\0" in text:
            raise UploadError(f"{file}, line {number}: it has a zero byte; this is not a text file")
        yield number, text.rstrip()


def _is_whole(word: str) -> bool:
    return word.isascii() and word.removeprefix("-").isdigit() and len(word) < 20
