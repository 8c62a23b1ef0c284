"""Reads a folder of frames, even while it grows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.viz import _format
from tidemill.viz._format import MISSING, FrameError
from tidemill.viz._texts import Texts

__all__ = ["Frame", "FrameReader"]


@dataclass
class Frame:
    """One frame: its points, in the order in which they were first seen."""

    time: str
    rows: NDArray[np.int64]
    """Number of each point among all points of the folder; ``reader.ids[row]`` is its id."""
    positions: NDArray[np.float32]
    """Shape (n, 3)."""
    groups: dict[str, list[str | None]]
    values: dict[str, NDArray[np.float32]]
    metrics: dict[str, float]
    heat_map: NDArray[np.unsignedinteger] | None = field(default=None)
    edges: NDArray[np.uint32] | None = field(default=None)
    """Pairs of rows, shape (m, 2); None where the frame has none."""
    heat_map_range: list[list[float]] | None = field(default=None)
    """What the edges of the heat map stand for: ``[[low, high], [low, high]]`` of its rows, then of its columns."""


class FrameReader:
    """The frames of a folder, by number: ``reader[0]``, ``reader[-1]``, ``len(reader)``.

    Parameters
    ----------
    folder : path

    Attributes
    ----------
    title : str
    axes : list of str
    glyphs : dict of str to str
        Shapes of points that are marked from the start.
    run : str or None
        Changes whenever the frames are rewritten; None for folders of earlier releases.
    points : int
        Number of points that occur in any frame.
    categories : dict of str to list of str
        Categories of each grouping, in the order of their codes.

    Raises
    ------
    FrameError
        If there are no frames, or they cannot be read.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self.points = 0
        self.batches = 0
        self.categories: dict[str, list[str]] = {}
        #: The category of each point in its first frame, for each grouping.
        self.codes: dict[str, NDArray[np.uint16]] = {}
        self._ids = Texts()
        self._labels = Texts()
        self._decoded: list[str] | None = None
        self._lines: list[dict[str, Any]] = []
        self._end = 0
        lines, self._end = _format.read_index(self.folder)
        if not lines:
            raise FrameError(f"{self.folder}: the index is empty")
        self.title: str = lines[0].get("title", "")
        self.axes: list[str] = lines[0].get("axes", ["x", "y", "z"])
        self.glyphs: dict[str, str] = lines[0].get("glyphs", {})
        self.run: str | None = lines[0].get("run")
        self._take(lines[1:])

    def refresh(self) -> int:
        """Look for new frames; returns the current number of frames."""
        lines, self._end = _format.read_index(self.folder, self._end)
        self._take(lines)
        return len(self)

    @property
    def named(self) -> bool:
        """True if points have ids of their own."""
        return not self._ids.empty

    @property
    def ids(self) -> list[str]:
        """Id of each point; its number if it has none."""
        if self._decoded is None or len(self._decoded) < self.points:
            self._decoded = self._ids.all() if self.named else [str(row) for row in range(self.points)]
        return self._decoded

    @property
    def labels(self) -> list[str]:
        """Label of each point; its id if it has none."""
        return [label or name for label, name in zip(self._labels.all(), self.ids, strict=True)]

    @property
    def own_labels(self) -> list[str]:
        """Label of each point; ``""`` if it has none."""
        return self._labels.all()

    def id(self, row: int) -> str:
        """Return the id of one point, without reading the others."""
        return self._ids[row] if self.named else str(row)

    def own_label(self, row: int) -> str:
        """Return the label of one point; ``""`` if it has none."""
        return self._labels[row]

    def find(self, text: str, most: int) -> list[int]:
        """Return rows of points whose id or label contains the text, those whose id begins with it first; at most
        `most`.
        """
        text = text.strip()
        if text == "":
            return []
        if not self.named:
            row = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else self.points
            numbered = [row] if row < self.points else []
            return (numbered + [row for row in self._labels.having(text, most) if row not in numbered])[:most]
        first = self._ids.beginning(text, most)
        # As many more as there are among the first, which are found again.
        later = sorted({*self._ids.having(text, most + len(first)), *self._labels.having(text, most + len(first))})
        return (first + [row for row in later if row not in first])[:most]

    def rows_of(self, ids: Sequence[str]) -> list[int]:
        """Return the rows of points by their ids, in the order of the ids; unknown ids are left out."""
        if not self.named:
            return [int(one) for one in ids if re.fullmatch(r"0|[1-9][0-9]{0,9}", one) and int(one) < self.points]
        found = self._ids.rows_of(ids)
        return [found[one] for one in ids if one in found]

    @property
    def value_names(self) -> set[str]:
        """Names of the values in all frames."""
        return {name for line in self._lines for name in line.get("values", {})}

    @property
    def times(self) -> list[str]:
        """Time of each frame, as text."""
        return [line["time"] for line in self._lines]

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Frame]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Frame:
        """Read a frame."""
        line = self._lines[number]
        tensors = _format.read_tensors(self.folder / line["file"])
        rows = self._rows(line, tensors)
        groups = {}
        for name, names in self.categories.items():
            own = tensors.get(f"group.{name}")
            codes = self.codes[name][rows] if own is None else _format.unpack_codes(own)
            groups[name] = [names[code] if code != MISSING else None for code in codes.tolist()]
        return Frame(
            time=line["time"],
            rows=rows,
            positions=_format.dequantize(tensors["position"], line["low"], line["high"]),
            groups=groups,
            values={
                name: _format.dequantize(tensors[f"value.{name}"], low, high)
                for name, (low, high) in line.get("values", {}).items()
            },
            metrics=line.get("metrics", {}),
            heat_map=tensors.get("heat_map"),
            edges=_format.read_tensors(self.folder / line["edges"])["edges"] if "edges" in line else None,
            heat_map_range=line.get("heat_map_range"),
        )

    def trajectories(self, rows: list[int]) -> NDArray[np.float32]:
        """Return the positions of points in all frames, shape (frames, points, 3); NaN in frames without the point.

        Reads only these points of each frame.
        """
        path = np.full((len(self), len(rows), 3), np.nan, np.float32)
        for number, line in enumerate(self._lines):
            tensors = _format.read_tensors(self.folder / line["file"])
            present = tensors.get("present")
            for place, row in enumerate(rows):
                if row >= line["points"]:
                    continue
                at = row
                if present is not None:
                    byte, bit = divmod(row, 8)
                    if not present[byte] >> bit & 1:
                        continue
                    at = int(_ONES[present[:byte]].sum()) + int(_ONES[present[byte] & ((1 << bit) - 1)])
                path[number, place] = _dequantized(tensors["position"][at], line)
        return path

    def _rows(self, line: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        if "present" not in tensors:
            return np.arange(line["count"])
        return np.flatnonzero(np.unpackbits(tensors["present"], count=line["points"], bitorder="little"))

    def _take(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            try:
                self._take_line(line)
            except (KeyError, TypeError, ValueError) as error:
                if isinstance(error, FrameError):
                    raise
                raise FrameError(f"{self.folder}: a line of the index is invalid ({error!r}): {line}") from error

    def _take_line(self, line: dict[str, Any]) -> None:
        # Unknown kinds of lines, which later releases may add, are skipped.
        if line["kind"] == "frame":
            self._lines.append(line)
        elif line["kind"] == "categories":
            self.categories.setdefault(line["grouping"], []).extend(line["names"])
            self.codes.setdefault(line["grouping"], np.full(self.points, MISSING, np.uint16))
        elif line["kind"] == "points":
            tensors = _format.read_tensors(self.folder / line["file"]) if "file" in line else {}
            self._ids.add("id", line["count"], tensors)
            self._labels.add("label", line["count"], tensors)
            for name in self.codes:
                first = tensors.get(f"group.{name}", np.full(line["count"], MISSING, np.uint16))
                self.codes[name] = np.concatenate([self.codes[name], _format.unpack_codes(first)])
            self.points += line["count"]
            self.batches += 1


#: The number of bits set in each byte.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)


def _dequantized(steps: NDArray[np.uint16], line: dict[str, Any]) -> NDArray[np.float32]:
    return _format.dequantize(steps, line["low"], line["high"])
