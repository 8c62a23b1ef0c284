"""Writes frames into a folder, one file each; programs that read the folder meanwhile see only complete frames."""

from __future__ import annotations

import json
import math
import re
import secrets
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.viz import _format, _selections
from tidemill.viz._format import FORMAT, INDEX, MISSING, VERSION, FrameError
from tidemill.viz._read import FrameReader

__all__ = ["GLYPHS", "OURS", "FrameRecorder", "FrameWriter", "Recorded", "check_size"]

#: Shapes of marked points.
GLYPHS = ("circle", "square", "diamond", "triangle", "star", "cross")

#: Maximum size of a position or value. Pages and readers store these in 32 bits, whose range ends at 3.4e38, and
#: subtract them.
_NUMBER_MAX = 1e37

#: Maximum side of a heat map.
HEAT_SIDE_MAX = 1024

#: Frames of more points than this also have a sample of about `_SAMPLE_POINTS`, which the page shows during animation.
SAMPLE_FROM = 1_000_000
_SAMPLE_POINTS = 200_000
#: Rows are distributed to this many heaps (the page stores them one after another); a sample is the first few heaps.
_STRATA = 61

#: Maximum number of values that quantiles are computed from.
_QUANTILES_OF = 100_000

#: The files of a folder of frames.
OURS = re.compile(r"(frame|points|edges|sample)-\d{6,}\.safetensors|index\.jsonl|selections\.json")


class FrameWriter:
    """Write frames of points into a folder, which ``tidemill view`` shows even while it grows.

    Points have ids; they may come and go from frame to frame. Positions take 6 bytes per point and frame: 16 bits per
    coordinate within the frame's own box, so that a coordinate is off by at most 1/131068 of the box's side.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    title : str, default=""
        Title of the page.
    axes : sequence of str, default=("x", "y", "z")
    glyphs : mapping of id to str, optional
        Points to draw large and with their label from the start, and their shapes: ``circle``, ``square``, ``diamond``,
        ``triangle``, ``star`` or ``cross``.
    categories : mapping of str to sequence of str, optional
        For some groupings, all categories in the order of the legend, such as bins, which are then colored along a
        scale; categories of other groupings have the order of their first appearance.
    mode : {"x", "w", "a"}, default="x"
        If the folder has frames: fail, replace them, or append to them. When appending, ``title``, ``axes``, ``glyphs``
        and known categories stay as they were. Viewers' groups are kept. If frames are replaced, groups keep the points
        that occur again, by id, and pages that show the old frames reload.

    Raises
    ------
    FrameError
        If the folder has frames and `mode` is ``"x"``, or has unreadable frames and `mode` is ``"a"``.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        title: str = "",
        axes: Sequence[str] = ("x", "y", "z"),
        glyphs: Mapping[Any, str] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        mode: str = "x",
    ) -> None:
        if mode not in ("x", "w", "a"):
            raise ValueError(f"mode must be 'x', 'w' or 'a', not {mode!r}")
        if len(axes) != 3:
            raise ValueError(f"axes must be three names, not {len(axes)}")
        for glyph in (glyphs or {}).values():
            if glyph not in GLYPHS:
                raise ValueError(f"a glyph is one of {', '.join(GLYPHS)}, not {glyph!r}")
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._set_up(categories or {})
        exists = (self.folder / INDEX).exists()
        if exists and mode == "x":
            raise FrameError(f'{self.folder} has frames already; mode="w" replaces them, mode="a" appends to them')
        if exists and mode == "a":
            self._resume()
        else:
            self._begin(title, axes, glyphs or {})
        self._know(categories or {})

    def _set_up(self, categories: Mapping[str, Sequence[str]]) -> None:
        """Start without points, frames and categories; `categories` are those known in advance."""
        self._rows: dict[str, int] = {}
        #: Points known so far. If they have no ids of their own, `_rows` stays empty.
        self._known = 0
        self._named: bool | None = None
        #: The ids of the last frame, and their rows.
        self._last: tuple[NDArray[Any], NDArray[np.int64]] | None = None
        self._categories: dict[str, dict[str, int]] = {}
        #: For each grouping, the column of the last frame and its codes, because many are the same in the next frame.
        self._last_texts: dict[str, tuple[NDArray[Any], NDArray[np.uint16]]] = {}
        #: The names of all values so far.
        self._values: set[str] = set()
        #: Groupings whose categories are ordered, such as bins.
        self._ordered = {grouping for grouping, names in categories.items() if names}
        #: The number of categories that are in the index.
        self._told: dict[str, int] = {}
        #: The category of each point when it was first seen, for each grouping.
        self._codes: dict[str, NDArray[np.uint16]] = {}
        self._frames = 0
        self._batches = 0
        #: The edges written last, and their file.
        self._last_edges: tuple[str, NDArray[np.uint32]] | None = None
        #: Groups that viewers had made of replaced frames: their names by id, for points that have not come yet.
        self._carried: dict[str, list[str]] = {}
        self._carried_named = True
        self._check_names("categories", categories, {})

    def _know(self, categories: Mapping[str, Sequence[str]]) -> None:
        """Add categories after the known ones."""
        for grouping, names in categories.items():
            known = self._categories.setdefault(grouping, {})
            for name in names:
                known.setdefault(name, len(known))

    def _begin(self, title: str, axes: Sequence[str], glyphs: Mapping[Any, str]) -> None:
        with _selections.locked(self.folder) if (self.folder / INDEX).exists() else nullcontext():
            self._take_groups()
            # The index is removed first, since what it names must exist as long as it does.
            (self.folder / INDEX).unlink(missing_ok=True)
            (self.folder / _selections.NAME).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if OURS.fullmatch(path.name):
                path.unlink()
        # A new id each time, so that pages with the old frames notice the change.
        run = secrets.token_hex(16)
        header = {"format": FORMAT, "version": VERSION, "run": run, "title": title, "axes": list(axes)}
        if glyphs:
            header["glyphs"] = {str(name): glyph for name, glyph in glyphs.items()}
        # Readers that wait for the index read it as soon as it exists.
        made = self.folder / f".{INDEX}"
        made.write_bytes(_line(header).encode())
        made.replace(self.folder / INDEX)

    def _take_groups(self) -> None:
        """Note the members of viewers' groups, by id, before the frames are replaced."""
        try:
            groups = _selections.read(self.folder)
            old = FrameReader(self.folder) if groups else None
        except FrameError as error:
            warnings.warn(f"groups that readers have made are lost with the frames: {error}", stacklevel=4)
            return
        if old is None:
            return
        self._carried_named = old.named
        for group, rows in groups.items():
            for row in rows:
                if row < old.points:
                    self._carried.setdefault(old.id(row), []).append(group)

    def _resume(self) -> None:
        reader = FrameReader(self.folder)
        self._known = reader.points
        self._named = reader.named if reader.points else None
        if self._named:
            self._rows = {name: row for row, name in enumerate(reader.ids)}
        self._categories = {
            grouping: {name: code for code, name in enumerate(names)} for grouping, names in reader.categories.items()
        }
        self._values = reader.value_names
        self._told = {grouping: len(names) for grouping, names in reader.categories.items()}
        self._codes = {grouping: codes.copy() for grouping, codes in reader.codes.items()}
        self._frames, self._batches = len(reader), reader.batches

    def write_frame(
        self,
        positions: ArrayLike,
        *,
        ids: Sequence[Any] | NDArray[Any] | None = None,
        time: object = None,
        labels: Sequence[str] | NDArray[Any] | None = None,
        groups: Mapping[str, ArrayLike] | None = None,
        values: Mapping[str, ArrayLike] | None = None,
        metrics: Mapping[str, float] | None = None,
        heat_map: ArrayLike | None = None,
        heat_map_range: ArrayLike | None = None,
        edges: ArrayLike | Sequence[tuple[Any, Any]] | None = None,
    ) -> None:
        """Append a frame.

        Parameters
        ----------
        positions : array-like of shape (n, 2) or (n, 3)
            Finite numbers, at most 1e37 in magnitude.
        ids : sequence of n, optional
            Unique names of the points; the same name means the same point in all frames. By default, points are
            numbered from 0.
        time : object, optional
            Name of the frame in the page, as text; by default its number.
        labels : sequence of n str, optional
            A longer name for each point; the one in the point's first frame is kept.
        groups : mapping of str to array-like of n, optional
            Groupings: a category for each point, as text or number; None, NaN, ``pandas.NA`` and ``""`` mean no
            category. At most 65535 categories each. A category takes no space while it is the same as in the point's
            first frame; otherwise it takes one byte, or two if there are more than 255 categories.
        values : mapping of str to array-like of n, optional
            Numbers to color points by, at most 1e37 in magnitude; NaN for none. Stored in 16 bits: two bytes each. The
            page's color scale spans the 5th to the 95th percentile, or the full range if that is close; it is
            logarithmic if most points would otherwise look the same, and symmetric about 0 if there are points on both
            sides.
        metrics : mapping of str to float, optional
            Metrics of the frame, such as its stress, which the page plots over time.
        heat_map : array-like of shape (h, w), optional
            Counts that the page shows as an image, such as projected (rows) against original distance (columns). Row 0
            is the lowest.
        heat_map_range : array-like of shape (2, 2), optional
            Range of the axes: minimum and maximum of the rows, then of the columns.
        edges : array-like of shape (m, 2), optional
            Lines between points of this frame, such as those of a tree: pairs of ids, or of numbers if points have no
            ids. Equal edges of consecutive frames are stored once, 8 bytes each.

        Raises
        ------
        FrameError
            If shapes do not match, positions are not finite, numbers are too large, an id occurs twice, an edge leads
            to a point that is not in the frame, a name is both a grouping and a value, or a grouping is called ``my
            groups``, which the page uses for viewers' groups. In these cases nothing is written.
        """
        self._check_there()
        place = f"frame {self._frames}"
        where = np.asarray(positions, dtype=np.float64)
        if where.ndim != 2 or where.shape[1] not in (2, 3):
            raise FrameError(f"{place}: positions must have shape (n, 2) or (n, 3), not {where.shape}")
        count = len(where)
        if where.shape[1] == 2:
            where = np.column_stack([where, np.zeros(count)])
        bad = ~np.isfinite(where).all(axis=1)
        if bad.any():
            first = int(np.argmax(bad))
            raise FrameError(f"{place}: the position of point {first} is not finite; leave out points that have none")
        check_size(place, "a coordinate", where)
        self._check_names(place, groups or {}, values or {})
        texts = {name: self._texts(place, name, column, count) for name, column in (groups or {}).items()}
        groupings = {name: codes for name, (codes, _) in texts.items()}
        columns = {name: _numbers(place, name, column, count) for name, column in (values or {}).items()}
        heat = None if heat_map is None else _heat(place, heat_map)
        heat_range = None if heat_map_range is None else _heat_range(place, heat_map, heat_map_range)
        if labels is not None and len(labels) != count:
            raise FrameError(f"{place}: {len(labels)} labels for {count} points")
        figures = {name: float(figure) for name, figure in (metrics or {}).items()}
        rows, names = self._find(place, ids, count)
        lines = None if edges is None else self._edges(place, edges, rows, names)

        # Nothing below depends on the caller's input: writing starts here.
        self._values |= columns.keys()
        self._categories |= {name: known for name, (_, known) in texts.items()}
        for name, column in (groups or {}).items():
            if self._last_texts.get(name, (None, None))[1] is not groupings[name]:
                self._last_texts[name] = (np.array(column), groupings[name])
        order = None if (rows[1:] > rows[:-1]).all() else np.argsort(rows)
        new = rows >= self._known
        self._add_points(names, rows, new, labels, groupings)
        if names is not None and (self._last is None or self._last[1] is not rows):
            self._last = (np.array(ids), rows)
        if order is not None:
            rows, where = rows[order], where[order]
            groupings = {name: column[order] for name, column in groupings.items()}
            columns = {name: column[order] for name, column in columns.items()}
        low = where.min(axis=0) if count else np.zeros(3)
        high = where.max(axis=0) if count else np.zeros(3)
        tensors: dict[str, NDArray[Any]] = {"position": _format.quantize(where, low, high)}
        if count < self._known:
            present = np.zeros(self._known, bool)
            present[rows] = True
            tensors["present"] = np.packbits(present, bitorder="little")
        for name, codes in groupings.items():
            if not np.array_equal(codes, self._codes[name][rows]):
                tensors[f"group.{name}"] = self._packed(name, codes)
        ranges, usual = {}, {}
        for name, column in columns.items():
            finite = column[np.isfinite(column)]
            if len(finite):
                usual[name] = _usual(finite)
            ranges[name] = [float(finite.min()), float(finite.max())] if len(finite) else [0.0, 0.0]
            tensors[f"value.{name}"] = _format.quantize(column, *ranges[name])
        if heat is not None:
            tensors["heat_map"] = heat
        if lines is not None and (self._last_edges is None or not np.array_equal(lines, self._last_edges[1])):
            self._last_edges = (f"edges-{self._frames:06}.safetensors", lines)
            self._store(self._last_edges[0], {"edges": lines})
        file = f"frame-{self._frames:06}.safetensors"
        self._store(file, tensors)
        sample = self._sample(tensors, rows) if count > SAMPLE_FROM else None
        line: dict[str, Any] = {
            "kind": "frame",
            "file": file,
            "time": str(self._frames if time is None else time),
            "count": count,
            "points": self._known,
            "low": low.tolist(),
            "high": high.tolist(),
        }
        if sample is not None:
            line["sample"] = sample
        if ranges:
            line["values"] = ranges
        if usual:
            line["usual"] = usual
        if lines is not None:
            assert self._last_edges is not None
            line["edges"] = self._last_edges[0]
        if heat is not None:
            line["heat_map"] = True
        if heat_range is not None:
            line["heat_map_range"] = heat_range
        if figures:
            # JSON has no NaN, so such figures are omitted.
            line["metrics"] = {name: figure for name, figure in figures.items() if math.isfinite(figure)}
        self._append(line)
        self._frames += 1

    def add_points(
        self,
        ids: Sequence[Any] | NDArray[Any],
        *,
        labels: Sequence[str] | NDArray[Any] | None = None,
        groups: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Add points before their first frame; known points do not change.

        Parameters
        ----------
        ids, labels, groups
            As in `write_frame`. In a grouping that you leave out, the points have no category until a frame sets it.
        """
        count = len(ids)
        groupings = {name: self._texts("the points", name, column, count) for name, column in (groups or {}).items()}
        self._categories |= {name: known for name, (_, known) in groupings.items()}
        rows, names = self._find("the points", ids, count)
        codes = {name: codes for name, (codes, _) in groupings.items()}
        self._add_points(names, rows, rows >= self._known, labels, codes)
        if names is not None:
            self._last = (np.array(ids), rows)

    @property
    def points(self) -> int:
        """Number of known points."""
        return self._known

    def put(self, recorded: Recorded) -> None:
        """Append a frame that a `FrameRecorder` has created.

        Raises
        ------
        FrameError
            If the frame's number is not the next one, or the folder has lost its index.
        """
        self._check_there()
        if recorded.number != self._frames:
            raise FrameError(f"frame {recorded.number} was made to follow as many frames, but there are {self._frames}")
        for name, data in recorded.files:
            _format.write_parts(self.folder / name, [data])
        for line in recorded.lines:
            self._append_text(line)
        self._frames += 1

    def _check_there(self) -> None:
        if not (self.folder / INDEX).exists():
            raise FrameError(f"{self.folder} has lost its {INDEX}: were the frames removed while they were written?")

    def _check_names(self, place: str, groups: Collection[str], values: Collection[str]) -> None:
        """Refuse names of groupings and values that the page could not distinguish."""
        if _selections.GROUPING in groups:
            raise FrameError(
                f"{place}: {_selections.GROUPING!r} is the page's name for groups that its readers make; give the grouping another name"
            )
        both = ({*self._categories, *groups} & {*self._values, *values}) & {*groups, *values}
        if both:
            raise FrameError(f"{place}: {min(both)!r} is both a grouping and a value; give one of them another name")

    def _find(self, place: str, ids: Any, count: int) -> tuple[NDArray[np.int64], list[str] | None]:
        """Return the row of each point, with new points numbered after the known ones, and the new names."""
        if self._named is not None and self._named != (ids is not None):
            had = "had" if self._named else "had no"
            raise FrameError(f"{place}: earlier frames {had} ids, so all must have {'ids' if self._named else 'none'}")
        if ids is None:
            return np.arange(count), None
        given = np.asarray(ids)
        if given.shape != (count,):
            raise FrameError(f"{place}: {given.size} ids for {count} points")
        # As in most frames: the same points as before, so a million names need not be looked up.
        if self._last is not None and np.array_equal(given, self._last[0]):
            return self._last[1], []
        names = [str(name) for name in given.tolist()]
        rows = np.empty(count, np.int64)
        added: dict[str, int] = {}
        for position, name in enumerate(names):
            row = self._rows.get(name)
            if row is None:
                row = added.setdefault(name, self._known + len(added))
            rows[position] = row
        if len(np.unique(rows)) < count:
            seen: set[str] = set()
            for name in names:
                if name in seen:
                    raise FrameError(f"{place}: the id {name!r} appears twice")
                seen.add(name)
        return rows, list(added)

    def _sample(self, tensors: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[str, Any]:
        """Write an even sample of a frame; returns its entry for the index."""
        strata = min(_STRATA, max(1, round(_STRATA * _SAMPLE_POINTS / self._known)))
        taken = rows % _STRATA < strata
        part = {name: tensor if name in ("heat_map", "present") else tensor[taken] for name, tensor in tensors.items()}
        if "present" in part:
            here = np.zeros(self._known, bool)
            here[rows] = True
            part["present"] = np.packbits(here[np.arange(self._known) % _STRATA < strata], bitorder="little")
        # The categories of all points are much larger than the sample, and a page that shows samples does not need
        # them.
        for name, codes in self._codes.items():
            part.setdefault(f"group.{name}", self._packed(name, codes[rows[taken]]))
        file = f"sample-{self._frames:06}.safetensors"
        self._store(file, part)
        return {"file": file, "count": int(taken.sum()), "strata": strata, "of": _STRATA}

    def _edges(self, place: str, edges: Any, rows: NDArray[np.int64], names: list[str] | None) -> NDArray[np.uint32]:
        """Return edges as pairs of rows."""
        given = np.array(edges, dtype=None if isinstance(edges, np.ndarray) else object)
        if given.size == 0:
            return np.zeros((0, 2), np.uint32)
        if given.ndim != 2 or given.shape[1] != 2:
            raise FrameError(f"{place}: edges must have shape (m, 2), not {given.shape}")
        here = set(rows.tolist())
        added = {name: self._known + number for number, name in enumerate(names or [])}
        pairs = np.empty(given.shape, np.uint32)
        for number, pair in enumerate(given.tolist()):
            for end, point in enumerate(pair):
                if names is None:
                    row = point if isinstance(point, int) else int(point) if str(point).isdecimal() else -1
                else:
                    row = self._rows.get(str(point), added.get(str(point), -1))
                if row not in here:
                    raise FrameError(f"{place}: edge {number} has the end {point!r}, which is not a point of the frame")
                pairs[number, end] = row
        return pairs

    def _texts(self, place: str, name: str, column: ArrayLike, count: int) -> tuple[NDArray[np.uint16], dict[str, int]]:
        """Return the codes of categories, and the resulting list of all categories: new ones get codes after the
        existing ones.
        """
        given = np.asarray(column)
        if given.shape != (count,):
            raise FrameError(f"{place}: grouping {name!r} has shape {given.shape} for {count} points")
        known = dict(self._categories.get(name, {}))
        if name in self._last_texts:
            last, codes = self._last_texts[name]
            if given.dtype == last.dtype != object and np.array_equal(given, last):
                return codes, known
        if given.dtype == object:
            # Strings with None among them, or from pandas, cannot be sorted.
            given = np.array(["" if _is_none(kind) else str(kind) for kind in given.tolist()])
        kinds, inverse = np.unique(given, return_inverse=True)
        of_kinds = np.empty(len(kinds), np.uint16)
        for number, kind in enumerate(kinds.tolist()):
            if _is_none(kind) or kind == "":
                of_kinds[number] = MISSING
                continue
            of_kinds[number] = code = known.setdefault(str(kind), min(len(known), MISSING))
            if code == MISSING:
                raise FrameError(f"{place}: grouping {name!r} has over {MISSING} categories; give numbers as values=")
        return of_kinds[inverse], known

    def _add_points(
        self,
        names: list[str] | None,
        rows: NDArray[np.int64],
        new: NDArray[np.bool_],
        labels: Any,
        groupings: dict[str, NDArray[np.uint16]],
    ) -> None:
        """Write the new points, and the new categories."""
        count = int(new.sum())
        for grouping, known in self._categories.items():
            told = self._told.get(grouping, 0)
            if len(known) > told or grouping not in self._told:
                line: dict[str, Any] = {"kind": "categories", "grouping": grouping, "names": list(known)[told:]}
                if grouping in self._ordered:
                    line["ordered"] = True
                self._append(line)
                self._told[grouping] = len(known)
            self._codes.setdefault(grouping, np.full(self._known, MISSING, np.uint16))
        if not count:
            return
        tensors: dict[str, NDArray[Any]] = {}
        # In the order of their rows, which is the order in which new points came.
        where = np.flatnonzero(new)
        if names is not None:
            tensors |= _format.pack_texts("id", names)
            if labels is not None:
                tensors |= _format.pack_texts("label", [str(labels[place]) for place in where.tolist()])
            self._rows.update({name: self._known + number for number, name in enumerate(names)})
        elif labels is not None:
            tensors |= _format.pack_texts("label", [str(labels[place]) for place in where.tolist()])
        for grouping in self._codes:
            first = groupings[grouping][where] if grouping in groupings else np.full(count, MISSING, np.uint16)
            self._codes[grouping] = np.concatenate([self._codes[grouping], first])
            tensors[f"group.{grouping}"] = self._packed(grouping, first)
        line = {"kind": "points", "count": count}
        if tensors:
            line["file"] = f"points-{self._batches:06}.safetensors"
            self._store(line["file"], tensors)
        self._append(line)
        self._named = names is not None
        self._known += count
        self._batches += 1
        if self._carried:
            self._carry(names, count)

    def _packed(self, grouping: str, codes: NDArray[np.uint16]) -> NDArray[Any]:
        return _format.pack_codes(codes, len(self._categories[grouping]))

    def _carry(self, names: list[str] | None, count: int) -> None:
        """Put new points into the viewers' groups of which they were members in the earlier frames."""
        if (names is not None) != self._carried_named:
            return
        begin = self._known - count
        found: dict[str, list[int]] = {}
        for row, name in enumerate(names or map(str, range(begin, self._known)), begin):
            for group in self._carried.pop(name, ()):
                found.setdefault(group, []).append(row)
        if not found:
            return
        try:
            _selections.change(
                self.folder,
                lambda groups: {**groups, **{name: groups.get(name, []) + rows for name, rows in found.items()}},
            )
        except ValueError as error:
            warnings.warn(f"{self.folder}: groups that readers had made are lost: {error}", stacklevel=4)

    def _append(self, line: dict[str, Any]) -> None:
        """Append a line to the index in one write: readers ignore an incomplete line."""
        self._append_text(_line(line))

    def _append_text(self, text: str) -> None:
        with (self.folder / INDEX).open("ab", buffering=0) as file:
            file.write(text.encode())

    def _store(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        _format.write_tensors(self.folder / name, tensors)

    def close(self) -> None:
        """Report what is lost if frames were replaced. There is nothing else to do: every frame is complete when
        `write_frame` returns.
        """
        if self._carried:
            groups = sorted({group for names in self._carried.values() for group in names})
            warnings.warn(
                f"{self.folder}: {len(self._carried)} points of groups that readers had made ({', '.join(groups)}) are no longer in any frame",
                stacklevel=2,
            )
            self._carried = {}

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class Recorded:
    """A frame as a `FrameWriter` writes it: its files, and its lines of the index. `FrameWriter.put` stores it in a
    folder.
    """

    number: int
    files: list[tuple[str, bytes]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class FrameRecorder(FrameWriter):
    """Create frames for a `FrameWriter` in another process, in any order, so that several processes share the work.
    Needs no folder.

    Add all points first, with `add_points`. The `FrameWriter` must get the same points in the same order, each before
    its first frame.

    Parameters
    ----------
    categories : mapping of str to sequence of str, optional
        As in `FrameWriter`.
    """

    def __init__(self, *, categories: Mapping[str, Sequence[str]] | None = None) -> None:
        self._set_up(categories or {})
        self._know(categories or {})
        self._recorded = Recorded(0)

    def record(self, number: int, points: int, positions: ArrayLike, **columns: Any) -> Recorded:
        """Create frame `number`, when `points` points are known; `columns` are those of `write_frame`, except edges.

        Raises
        ------
        FrameError
            As in `write_frame`; also for a point or a category that was not added before.
        """
        self._frames, self._recorded = number, Recorded(number)
        all_points, self._known = self._known, points
        categories = {name: len(codes) for name, codes in self._categories.items()}
        try:
            self.write_frame(positions, **columns)
            if self._known != points or categories != {name: len(codes) for name, codes in self._categories.items()}:
                raise FrameError(f"frame {number}: a point or a category was not named with add_points")
        finally:
            self._known = all_points
        return self._recorded

    def _check_there(self) -> None:
        pass

    def _store(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._recorded.files.append((name, b"".join(_format.tensor_parts(tensors))))

    def _append_text(self, text: str) -> None:
        self._recorded.lines.append(text)


def _line(of: dict[str, Any]) -> str:
    """Return a line of the index."""
    return json.dumps(of, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _is_none(kind: object) -> bool:
    """Return whether a value means no category: None, or NaN, the only value unequal to itself, or pandas' NA."""
    try:
        return kind is None or bool(kind != kind)
    except TypeError:
        # `pandas.NA` is neither equal nor unequal to itself.
        return True


def _numbers(place: str, name: str, column: ArrayLike, count: int) -> NDArray[np.float64]:
    given = np.asarray(column, dtype=np.float64)
    if given.shape != (count,):
        raise FrameError(f"{place}: value {name!r} has shape {given.shape} for {count} points")
    # The page has a single mark for missing values.
    numbers = np.where(np.isfinite(given), given, np.nan)
    check_size(place, f"value {name!r}", numbers)
    return numbers


def _usual(numbers: NDArray[np.float64]) -> list[float]:
    """Return the 5th, 50th and 95th percentiles, in 32-bit precision: the page's color scale spans them."""
    few = numbers[:: len(numbers) // _QUANTILES_OF + 1]
    return [float(f"{number:.7g}") for number in np.quantile(few, [0.05, 0.5, 0.95])]


def check_size(place: str, what: str, numbers: NDArray[np.float64]) -> None:
    """Raise if a number is too large, for one row per point."""
    large = np.argwhere((numbers > _NUMBER_MAX) | (numbers < -_NUMBER_MAX))
    if len(large):
        found = numbers[tuple(large[0])]
        raise FrameError(
            f"{place}: {what} of point {large[0, 0]} is {found:.4g}, and at most {_NUMBER_MAX:g} can be shown: give it in larger units, or "
            "its logarithm"
        )


def _heat(place: str, heat_map: ArrayLike) -> NDArray[Any]:
    given = np.asarray(heat_map)
    if given.ndim != 2 or not 0 < max(given.shape) <= HEAT_SIDE_MAX or not given.min() >= 0:
        raise FrameError(
            f"{place}: a heat map is a matrix of counts of at most {HEAT_SIDE_MAX} rows and columns, not {given.shape}"
        )
    counts = np.minimum(given, 2**32 - 1)
    # The smallest type that holds them, because with few points, the map is a large part of a frame.
    smallest: NDArray[Any] = counts.astype(np.min_scalar_type(int(counts.max())))
    return smallest


def _heat_range(place: str, heat_map: ArrayLike | None, given: ArrayLike) -> list[list[float]]:
    edges = np.asarray(given, dtype=np.float64)
    if (
        heat_map is None
        or edges.shape != (2, 2)
        or not np.isfinite(edges).all()
        or not (edges[:, 0] <= edges[:, 1]).all()
    ):
        raise FrameError(
            f"{place}: heat_map_range=[[low, high], [low, high]] is of the rows of a heat map, and of its columns, not {given!r}"
        )
    told: list[list[float]] = edges.tolist()
    return told
