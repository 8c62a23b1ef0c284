"""Writes frames into a folder for the viewer: groups by sector and by change, glyphs, metrics. Worker 0 writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._job import init
from tidemill._progress import Phases
from tidemill.dataset import DataSet, col
from tidemill.series._distance import REFERENCES
from tidemill.series._embed import Embedder, Frame
from tidemill.series._panel import Panel
from tidemill.series._read import KNOWN, SeriesError, Source, collective_try, open_texts, plain_id
from tidemill.series._windows import Window
from tidemill.viz import FrameError, FrameWriter
from tidemill.viz._write import FrameRecorder, Recorded

__all__ = ["CHANGE_BINS", "ChangeBins", "FrameFolder", "Groups", "read_groups"]

#: Edges of the bins of relative change in value, in percent, symmetric about 0.
CHANGE_BINS = (10.0, 20.0, 50.0)
#: Columns of a table of groups that contain names of series rather than groups.
_LABELS = ("label", "name", "company", "security", "description", "title")
#: The number of frames after which workers synchronize to learn whether all were written; each time, some wait for
#: others.
_MEET = 64
#: The name of references in every grouping.
_REFERENCE = "reference"
_REFERENCE_GLYPHS = dict(zip(REFERENCES, ("circle", "triangle", "diamond", "triangle", "diamond"), strict=True))


@dataclass
class Groups:
    """Groups and labels of series; returned by `read_groups`.

    Attributes
    ----------
    groupings : dict of str to dict of str to str
        The category of each id, for each grouping.
    labels : dict of str to str
        Longer names, by id.
    notes : list of str
        Remarks for the user, such as ids without a group.
    """

    groupings: dict[str, dict[str, str]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class ChangeBins:
    """Bins of relative change in value, symmetric about 0, given by the edges above 0, in percent.

    Raises
    ------
    SeriesError
        If edges are not positive and increasing.
    """

    def __init__(self, edges: Sequence[float] = CHANGE_BINS) -> None:
        up = np.array(edges, dtype=np.float64)
        if up.ndim != 1 or not len(up) or not np.isfinite(up).all() or not (np.diff(up, prepend=0.0) > 0).all():
            raise SeriesError(
                f"bins of change have edges that increase from above 0, in percent, such as 10, 20, 50, not {edges!r}"
            )
        self._edges = np.concatenate([-up[::-1], [0.0], up])
        low, *_, high = told = [f"{edge:g}" for edge in self._edges]
        #: From the largest fall to the largest rise.
        self.names = (f"below {low} %", *(f"{a} to {b} %" for a, b in pairwise(told)), f"over {high} %")

    def of(self, change: NDArray[np.float64]) -> NDArray[np.str_]:
        """Return the bin of each relative change (0.1 is 10 %); "" for NaN."""
        place = np.searchsorted(self._edges / 100, change, side="right")
        found: NDArray[np.str_] = np.array([*self.names, ""])[np.where(np.isnan(change), len(self.names), place)]
        return found


def read_groups(source: Source, ids: Iterable[str], *, id: str | None = None, growing: bool = False) -> Groups:
    """Read a table with a row for each id, and its groups in further columns, such as sectors. Collective.

    Parameters
    ----------
    source : path, DataSet or Arrow table
        A column of ids with a usual name (``id``, ``ticker``, ``symbol``, ...), else the first column. A column
        ``name``, ``label`` or ``company`` has longer names; every other column is a grouping. Values are strings; an
        empty value means no category.
    ids : iterable of str
        Ids of the panel.
    id : str, optional
        The column of ids.
    growing : bool, default=False
        Whether more ids may come, as with a `Follower` that has not ended. If so, it is not an error, only a note, if
        none of `ids` is in the table.

    Raises
    ------
    SeriesError
        On every worker: if the column does not exist, an id has two different rows, no id of the panel is in the table,
        or it has only ids.
    """
    data = source if isinstance(source, DataSet) else open_texts(source)
    names = data.columns
    if id is not None and id not in names:
        raise SeriesError(f"no column {id!r} of ids in the groups; there are: {', '.join(names)}")
    lower = {name.lower(): name for name in reversed(names)}
    # A column called "name" contains ids only if no other column does.
    usual = [word for word in KNOWN["id"] if word != "name"]
    key = id or next((lower[word] for word in usual if word in lower), names[0])
    told = next((lower[word] for word in _LABELS if word in lower and lower[word] != key), None)
    columns = data.select(**{name: col(name).cast("str") for name in names}).to_dict()
    groupings = [name for name in names if name not in (key, told)]
    if not groupings and told is None:
        raise SeriesError(f"the groups have only the column {key!r}; the others would be groupings, such as sector")
    groups = Groups({name: {} for name in groupings})
    first: dict[str, int] = {}
    for row, name in enumerate(plain_id(text or "") for text in columns[key]):
        if not name:
            continue
        before = first.setdefault(name, row)
        if any(columns[column][before] != columns[column][row] for column in groupings):
            raise SeriesError(f"the groups have {name!r} twice, with different groups; an id has one row")
        for column in groupings:
            if columns[column][row]:
                groups.groupings[column][name] = columns[column][row].strip()
        if told is not None and columns[told][row]:
            groups.labels[name] = columns[told][row].strip()
    if not first:
        raise SeriesError(f"the groups have no row with an id in their column {key!r}")
    panel = set(ids)
    unknown, without = sorted(set(first) - panel), sorted(panel - set(first))
    if len(unknown) == len(first):
        nobody = (
            f"no id of the groups' column {key!r} is among the series: {_some(sorted(first))} against {_some(sorted(panel))}; "
            "name the column of ids (--group-id)"
        )
        if not growing:
            raise SeriesError(nobody)
        groups.notes.append(f"{nobody} if none will come")
        return groups
    if unknown:
        groups.notes.append(f"{len(unknown):,} ids of the groups have no series: {_some(unknown)}")
    if without:
        groups.notes.append(f"{len(without):,} series have no group: {_some(without)}")
    return groups


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


class FrameFolder:
    """A folder of frames for ``tidemill view``; every worker creates an object, worker 0 writes the files.

    Parameters
    ----------
    folder : path
    groups : Groups, optional
    glyphs : mapping of id to str, optional
        As in `tidemill.viz.FrameWriter`; references have their own.
    title : str, default=""
    overwrite : bool, default=False
        Replace existing frames; otherwise they are an error.
    append : bool, default=False
        Append to existing frames.
    change_bins : sequence of float, default=(10, 20, 50)
        Edges of the bins of relative change, in percent, symmetric about 0. Use smaller edges for shorter windows.
    lazily : bool, default=False
        Create the folder, or replace its content, only when the first frame is written.
    comm : communicator, optional
        The workers that write frames together, of which the first does; by default all of the job.

    Raises
    ------
    SeriesError
        On every worker: if there are frames, or the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        groups: Groups | None = None,
        glyphs: Mapping[str, str] | None = None,
        title: str = "",
        overwrite: bool = False,
        append: bool = False,
        change_bins: Sequence[float] = CHANGE_BINS,
        lazily: bool = False,
        comm: Any = None,
    ) -> None:
        self.folder = Path(folder)
        self._groups = groups or Groups()
        self._bins = ChangeBins(change_bins)
        #: Why a frame could not be written, on worker 0, until all workers are told.
        self._failure: ValueError | OSError | None = None
        #: Ids, with their groups and labels.
        self._said: tuple[NDArray[np.str_], dict[str, NDArray[np.str_]], list[str]] | None = None
        #: Seconds of this worker by phase.
        self.phases = Phases()
        self._comm = init().comm if comm is None else comm

        #: The page starts with the first grouping; requested ones come before the bins.
        self._categories = {
            **dict.fromkeys(self._groups.groupings, ()),
            self._own_name("change"): self._bins.names,
        }

        def open_folder() -> FrameWriter:
            try:
                return FrameWriter(
                    self.folder,
                    title=title,
                    glyphs={**_REFERENCE_GLYPHS, **(glyphs or {})},
                    categories=self._categories,
                    mode="a" if append else "w" if overwrite else "x",
                )
            except FrameError as error:
                if overwrite or append:
                    raise
                raise SeriesError(
                    f"{self.folder} has frames already; --overwrite (overwrite=True) replaces them"
                ) from error

        self._open = open_folder
        self._writer: FrameWriter | None = None
        if not lazily:
            self._writer = collective_try(self._comm, lambda: open_folder() if self._comm.rank == 0 else None)

    def write(self, frame: Frame) -> None:
        """Append a frame. Collective.

        Raises
        ------
        SeriesError
            On every worker: if it cannot be written.
        """
        self._put(frame)
        self._meet()

    def write_all(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Write frames as they come, and pass them on. Collective, to its end.

        Only worker 0 writes, while the others continue to compute frames; `embed_all` also distributes the writing.

        Raises
        ------
        SeriesError
            On every worker: if one cannot be written; raised some frames later, or at the end.
        """
        for number, frame in enumerate(frames, 1):
            self._put(frame)
            if number % _MEET == 0:
                self._meet()
            yield frame
        self._meet()

    def embed_all(self, embedder: Embedder, panel: Panel, windows: Sequence[Window]) -> Iterator[dict[str, Any]]:
        """Compute a frame of each window and write it; the worker that computes a frame also prepares its files.
        Collective, to its end.

        Worker 0 gets only the files, of about 11 bytes per point, and metrics, and stores them in the folder. Frames
        are those of `Embedder.frames`; the folder must have none before.

        Yields
        ------
        dict
            On worker 0 the metrics of each frame, as `Frame.figures`, when it is in the folder; nothing on the others.

        Raises
        ------
        SeriesError
            On every worker: as in `Embedder.each`; also if a file cannot be written, at the end.
        """
        news = embedder.news(panel, windows)
        recorder = FrameRecorder(categories=self._categories)
        #: The number of known points after each frame.
        known: list[int] = []
        for ids in news:
            self._name_points(recorder, ids)
            known.append(recorder.points)

        def make(number: int, frame: Frame) -> tuple[dict[str, Any], Recorded]:
            with self.phases.timed("write"):
                return frame.figures(), recorder.record(number, known[number], **self._columns(frame))

        for figures, recorded in embedder.each(panel, windows, make):
            if self._failure is None:
                with self.phases.timed("write"):
                    try:
                        self._writer = self._writer or self._open()
                        self._name_points(self._writer, news[recorded.number])
                        self._writer.put(recorded)
                    except (ValueError, OSError) as error:
                        self._failure = error
            yield figures
        self._meet()

    def _name_points(self, writer: FrameWriter, ids: NDArray[np.str_]) -> None:
        # Without the bins of change, which belong to a frame: a point's first bin is in its first frame.
        if len(ids):
            groups, labels = self._said_of(ids)
            writer.add_points(ids, labels=labels, groups=groups)

    def _meet(self) -> None:
        """Check on all workers whether all could be written."""

        def told() -> None:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

        with self.phases.timed("write"):
            collective_try(self._comm, told)

    def _put(self, frame: Frame) -> None:
        """Write a frame, on worker 0."""
        if self._comm.rank != 0 or self._failure is not None:
            return
        with self.phases.timed("write"):
            try:
                self._writer = self._writer or self._open()
                if self._said is None or not np.array_equal(self._said[0], frame.ids):
                    self._name_points(self._writer, frame.ids)
                self._writer.write_frame(**self._columns(frame))
            except (ValueError, OSError) as error:
                self._failure = error

    def _columns(self, frame: Frame) -> dict[str, Any]:
        """Return the columns of a frame for a `FrameWriter`."""
        groups, labels = self._said_of(frame.ids)
        values = {self._own_name("change in %"): 100 * frame.change}
        if frame.caps is not None:
            values[self._own_name(frame.caps_name)] = frame.caps
        return {
            "positions": frame.positions,
            "ids": frame.ids,
            "time": frame.window.label,
            "labels": labels,
            "groups": {**groups, self._own_name("change"): self._bins.of(frame.change)},
            "values": values,
            "metrics": {"stress": frame.stress, "alignment fit": frame.fit, "mean distance": frame.mean_distance},
            "heat_map": frame.heat_map,
            "heat_map_range": [[0, frame.heat_max], [0, frame.heat_max]],
        }

    def _own_name(self, name: str) -> str:
        """Return the name of an added column: a different one if the groups already have it."""
        while name in self._groups.groupings:
            name += " (computed)"
        return name

    def _said_of(self, ids: NDArray[np.str_]) -> tuple[dict[str, NDArray[np.str_]], list[str]]:
        """Return the groups and labels of ids, which for most frames are those of the previous one."""
        if self._said is None or not np.array_equal(self._said[0], ids):
            names = ids.tolist()
            groups = {
                name: np.array([_REFERENCE if one in REFERENCES else of.get(one) or "" for one in names])
                for name, of in self._groups.groupings.items()
            }
            self._said = ids, groups, [self._groups.labels.get(one, one) for one in names]
        return self._said[1:]
