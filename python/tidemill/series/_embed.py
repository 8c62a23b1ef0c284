"""Turns windows into frames: distances, an embedding in three dimensions, and its alignment with the previous frame, or
another.

With ``start="previous"`` every `key_every`-th window, a key, starts from the key before it, and each other window from
the window before it. Workers compute the chains from key to key in parallel (`_relay`), and then align each with the
one before. Which windows are keys depends only on their positions, so frames are bitwise equal for any number of
workers. If there are many series, all workers share each window by rows of its distances, and every window starts from
the one before; in this case sums of its parts may be rounded differently.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill._job import init
from tidemill._progress import Phases
from tidemill.ml import MDS, using
from tidemill.ml._distances import ROUNDING
from tidemill.ml._job import active
from tidemill.series._align import IDS_MIN, base_of, turned
from tidemill.series._distance import (
    REFERENCES,
    Kind,
    Length,
    Of,
    check_length,
    distances,
    references,
    weights,
    why_no_references,
)
from tidemill.series._panel import Array, Panel, Segment, check_missing
from tidemill.series._read import SeriesError, collective_try
from tidemill.series._relay import Base, Making, Past, Relay, make
from tidemill.series._windows import Window, label

__all__ = ["KEY_EVERY", "Embedder", "Frame", "embed"]

N = TypeVar("N")

#: Minimum and maximum number of cells along a side of a heat map.
HEAT_SIDE_MIN, HEAT_SIDE_MAX = 8, 40
#: Rows of distances between points that are counted at a time.
_BLOCK_ROWS = 64
#: With more series than this, all workers share each window.
ALONE_IDS_MAX = 2000
#: The number of placed series that a new one is put between.
_NEIGHBOURS = 5
#: Points that differ by less than this fraction of their coordinates coincide, except for rounding.
_ONE_PLACE = 1e-12
#: One of this many windows starts from the previous key.
KEY_EVERY = 8
#: The number of earlier iterations that the embedding uses.
_ACCELERATION = 3


@dataclass
class Frame:
    """A window as points in space; the same on every worker.

    Attributes
    ----------
    window : Window
    ids : ndarray of shape (n,) of str
        References, if there are any, come last.
    positions : ndarray of shape (n, 3)
        Aligned.
    change : ndarray of shape (n,)
        Last value / first value - 1; NaN if the first is not above 0.
    caps : ndarray of shape (n,) or None
    stress : float
        Square root of the sum of w (d - delta)^2 divided by that of w d^2, over all pairs: 0 is perfect.
    fit : float
        Goodness of fit with the frame it is aligned to: 1 - sum w |x - y|^2 / sum w |y - mean y|^2 over the ids in
        both; NaN if there is none. For common points, or given ones, it is the fit that it would have with scaling.
    mean_distance : float
        Mean of the original distances.
    iterations : int
    heat_map : ndarray of shape (side, side) of int
        Pairs by projected distance (rows) and original distance (columns), each from 0 to `heat_max`. The side is the
        square root of the number of points, limited to 8 to 40: more cells would add no information if there are few
        pairs, and would take most of a frame's bytes.
    heat_max : float
    filled, dropped : int
        As in `Segment`.
    caps_name : str
        As in `Panel`.
    """

    window: Window
    ids: NDArray[np.str_]
    positions: Array
    change: Array
    caps: Array | None
    stress: float
    fit: float
    mean_distance: float
    iterations: int
    heat_map: NDArray[np.int64]
    heat_max: float
    filled: int
    dropped: int
    caps_name: str = "capital"

    def figures(self) -> dict[str, Any]:
        """Return the metrics of a frame for a summary in JSON."""
        return {
            "time": self.window.label,
            "ids": len(self.ids),
            "stress": self.stress,
            "alignment_fit": self.fit if math.isfinite(self.fit) else None,
            "mean_distance": self.mean_distance,
            "iterations": self.iterations,
            "filled": self.filled,
            "dropped": self.dropped,
        }


@dataclass(frozen=True)
class _Raw:
    """A frame that is not yet aligned, and the data to align it."""

    frame: Frame
    weight: Array


@dataclass(frozen=True)
class _Placed:
    """An aligned frame, and the positions of its window before alignment."""

    frame: Frame
    ended: Base


@dataclass
class Embedder:
    """Compute frames of windows, continuing from earlier ones, for panels that grow; otherwise use `embed`.

    Parameters
    ----------
    kind, of, length : optional
        As in `distances`.
    missing_max : float, default=0.05
        As in `Panel.segment`.
    with_references : bool, optional
        Whether to add the five series of `REFERENCES` as points. By default they are added if they are meaningful: for
        correlation of values or with ``length="log"``, and for Euclidean distance of changes. Otherwise they are not: a
        steady rise has no changes to correlate, it begins at 1 whatever the prices, and the meaning of your own
        function is unknown.
    weighted : bool, default=True
        Whether to weight pairs with `weights`, if the panel has `caps`.
    start : {"previous", "independent"}, default="previous"
        Start from the solution of an earlier window, with new ids between their nearest ones; or start each window from
        its own classical scaling.
    key_every : int, default=8
        With ``start="previous"``: one in this many windows is a key, which starts from the key before it; each other
        window starts from the window before it. Workers compute the windows between keys in parallel. With 1, every
        window starts from the one before: points move most smoothly, but more than three or four workers wait for each
        other. The number of workers does not change frames.
    align : {"previous", "first", "common"} or mapping of str to array-like of shape (3,), default="previous"
        Base to align frames to, by rotation, reflection and shift: the previous frame, the first one, or ``"common"``
        points: the ids that all windows have, embedded over all times of these windows when the first frames are
        computed. You can also pass positions by id, as in `Frame`. Frames aligned to fixed points do not depend on
        earlier frames.
    annealing : bool, default=False
        Deterministic annealing in windows that do not start from an earlier one.
    max_iter, tol : optional
        As in `tidemill.ml.MDS`.
    random_state : int, default=0
    comm : communicator, optional
        The workers that compute frames together; by default all of the job.
    """

    kind: Kind = "correlation"
    of: Of = "changes"
    length: Length = "one"
    missing_max: float = 0.05
    with_references: bool | None = None
    weighted: bool = True
    start: Literal["previous", "independent"] = "previous"
    key_every: int = KEY_EVERY
    align: Literal["previous", "first", "common"] | Mapping[str, ArrayLike] = "previous"
    annealing: bool = False
    max_iter: int = 300
    tol: float = 1e-6
    random_state: int = 0
    comm: Any = field(default=None, repr=False)
    #: Seconds of this worker by phase, and the part of them spent in calls of the communicator.
    phases: Phases = field(default_factory=Phases, repr=False)
    communication_s: float = field(default=0.0, repr=False)
    #: Windows without a frame, because fewer than four ids existed for most of them, or because they have too few times
    #: to compare.
    left_out: list[Window] = field(default_factory=list, repr=False)
    #: What the next window starts from and is aligned to.
    past: Past = field(default_factory=Past, init=False, repr=False)
    #: The fixed points that frames are aligned to; None if there are none, or not yet.
    fixed: Base | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.start not in ("previous", "independent"):
            raise SeriesError(f"start must be 'previous' or 'independent', not {self.start!r}")
        if not isinstance(self.align, str):
            self.fixed = base_of(self.align)
        elif self.align not in ("previous", "first", "common"):
            raise SeriesError(f"align must be 'previous', 'first', 'common' or positions by id, not {self.align!r}")
        if self.key_every < 1:
            raise SeriesError(f"key_every must be at least 1, not {self.key_every}")
        check_missing(self.missing_max)
        check_length(self.kind, self.length)
        if self.with_references is None:
            self.with_references = why_no_references(self.kind, self.of, self.length) is None

    def frames(self, panel: Panel, windows: Iterable[Window]) -> Iterator[Frame]:
        """Compute a frame of each window, in order; every worker gets all of them. Collective, to its end.

        Raises
        ------
        SeriesError
            On every worker, if distances cannot be computed, no window has four ids, an id has the name of one of
            `REFERENCES`, or, with common points, all windows together have fewer than four ids in common.
        """
        known = self.past.last is not None
        wanted = self._wanted(panel, windows)
        for window, placed in zip(wanted, self._made(panel, wanted, lambda _, placed: placed, True), strict=True):
            aligned = None if placed is None else Base(placed.frame.ids, placed.frame.positions)
            self.past = self.past.behind(None if placed is None else placed.ended, aligned, self._keys(panel))
            if placed is None:
                self.left_out.append(window)
            else:
                yield placed.frame
        self._check_made(known or not wanted)

    def each(self, panel: Panel, windows: Iterable[Window], finish: Callable[[int, Frame], N]) -> Iterator[N]:
        """Compute a frame of each window, and finish it on the worker that computed it: workers do not get each other's
        frames. Collective, to its end.

        Parameters
        ----------
        panel : Panel
        windows : iterable of Window
        finish : callable
            Called with the number of a frame, counted from the first of this `Embedder`, and the frame, on the worker
            that computed it. Its result is sent to worker 0. If all workers share each window, only worker 0 calls it.

        Yields
        ------
        object
            On worker 0, the results of `finish` in the order of windows. The other workers yield nothing, and return when
            everything is done.

        Raises
        ------
        SeriesError
            As in `frames`; also if `finish` raises `ValueError` or `OSError`.
        """
        known, windows = self.past.last is not None, list(windows)
        yield from self.more(panel, windows, finish)
        times_min = self._times_min()
        self._check_made(known or all(window.end - window.begin < times_min for window in windows))

    def more(self, panel: Panel, windows: Iterable[Window], finish: Callable[[int, Frame], N]) -> Iterator[N]:
        """Do the same as `each`, without an error if none of these windows has a frame: later windows may have one."""
        comm = self._workers()
        wanted = self._wanted(panel, windows)
        made = self._made(panel, wanted, lambda number, placed: (finish(number, placed.frame),), False)
        # A window without a frame has no data.
        for window, finished in zip(wanted if comm.rank == 0 else (), made, strict=True):
            if finished is None:
                self.left_out.append(window)
            else:
                yield finished[0]

    def news(self, panel: Panel, windows: Iterable[Window]) -> list[NDArray[np.str_]]:
        """Return, for each window with a frame, the ids of its points that are in no earlier frame; references come
        last.
        """
        times_min = self._times_min()
        kept = panel.seen([one for one in windows if one.end - one.begin >= times_min], self.missing_max)
        kept = kept[kept.sum(axis=1) >= IDS_MIN]
        before = np.logical_or.accumulate(kept, axis=0)
        kept[1:] &= ~before[:-1]
        found = [panel.ids[new] for new in kept]
        if self.with_references and found:
            found[0] = np.concatenate([found[0], np.array(list(REFERENCES))])
        return found

    def _wanted(self, panel: Panel, windows: Iterable[Window]) -> list[Window]:
        """Return the windows that are long enough, without the others. Finds the base of their frames. Collective."""
        taken = [name for name in REFERENCES if self.with_references and name in panel.ids]
        if taken:
            raise SeriesError(
                f"the id {taken[0]!r} has the name of a reference series: rename it, or leave these out "
                "with --references no (with_references=False)"
            )
        wanted: list[Window] = []
        times_min = self._times_min()
        for window in windows:
            (wanted if window.end - window.begin >= times_min else self.left_out).append(window)
        if self.left_out and not wanted and self.past.last is None:
            raise SeriesError(
                f"no window has {times_min} times, which {self.kind} of {self.of} needs, {self.left_out[-1].label} has "
                f"{self.left_out[-1].end - self.left_out[-1].begin}; choose a longer window"
            )
        if self.align == "common" and self.fixed is None and wanted:
            self.fixed = self._common(panel, wanted)
        return wanted

    def _common(self, panel: Panel, wanted: list[Window]) -> Base | None:
        """Return the ids that all windows with a frame have, embedded over all of their times; None if no window has a
        frame. Collective.
        """
        comm = self._workers()
        seen = panel.seen(wanted, self.missing_max)
        framed = seen.sum(axis=1) >= IDS_MIN
        if not framed.any():
            return None
        ids = np.flatnonzero(seen[framed].all(axis=0))
        ends = [(window.begin, window.end) for window, has in zip(wanted, framed.tolist(), strict=True) if has]
        begin, end = min(ends)[0], max(end for _, end in ends)
        caps = None if panel.caps is None else panel.caps[begin:end, ids]
        whole = Panel(panel.times[begin:end], panel.ids[ids], panel.values[begin:end, ids], caps)
        window = Window(0, 0, end - begin, f"{label(whole.times[0])} to {label(whole.times[-1])}, in common")
        count = int(whole.seen([window], self.missing_max).sum())
        if count < IDS_MIN:
            raise SeriesError(
                f'--align common (align="common") needs {IDS_MIN} ids that all windows have, but there are {count}; choose fewer windows, '
                "allow more missing values (--missing), or align to the frame before: --align previous"
            )
        making = self._frame(self._sharing(panel), whole, window)
        shared = self._is_shared(panel)

        def embedded() -> _Raw | None:
            return make(making, None) if shared or comm.rank == 0 else None

        # Worker 0 embeds what is embedded by one worker, since others could round differently.
        raw = embedded() if shared else collective_try(comm, embedded)
        base = None if raw is None else Base(raw.frame.ids, raw.frame.positions - raw.frame.positions.mean(axis=0))
        found: Base | None = base if shared or comm.size == 1 else comm.bcast(base)
        return found

    def _check_made(self, fine: bool) -> None:
        """Raise if there is no frame at all."""
        if not fine and self.past.last is None:
            raise SeriesError(
                f"no window has {IDS_MIN} ids of which at most {100 * self.missing_max:g} % of the values are missing; "
                "choose a shorter window, or allow more (--missing)"
            )

    def _workers(self) -> Any:
        """Return the communicator of those that compute frames together."""
        return init().comm if self.comm is None else self.comm

    def _is_shared(self, panel: Panel) -> bool:
        """Return whether all workers share each window."""
        return self.start == "previous" and len(panel.ids) > ALONE_IDS_MAX

    def _sharing(self, panel: Panel) -> Any:
        """Return the communicator of the workers that compute a window together, with a clock; None if each window has
        one worker.
        """
        if not self._is_shared(panel):
            return None
        comm = self._workers()
        return comm if comm.size == 1 else _Timed(comm, self)

    def _keys(self, panel: Panel) -> int:
        """Return the interval between keys: if all workers share each window, none waits for one."""
        return 1 if self._is_shared(panel) else self.key_every

    def _times_min(self) -> int:
        """Return the minimum number of times in a window: with fewer than two numbers, all series correlate equally."""
        compared = 1 if callable(self.kind) or self.kind == "euclidean" else 2
        return compared if callable(self.kind) or self.of == "values" else compared + 1

    def _made(
        self, panel: Panel, wanted: list[Window], finish: Callable[[int, _Placed], N], everywhere: bool
    ) -> Iterator[N | None]:
        """Yield the result for each window: on every worker if `everywhere`, else on worker 0, and the others yield
        nothing.
        """
        comm = self._workers()
        shared, key_every = self._is_shared(panel), self._keys(panel)
        if comm.size > 1 and not shared:
            relay: Relay[_Raw | None, _Placed, N] = Relay(
                comm,
                len(wanted),
                self.past,
                key_every=key_every,
                chained=self.start == "previous",
                begin=lambda number: self._frame(None, panel, wanted[number]),
                settle=lambda past, raw: self._settled(past, raw, key_every),
                finish=finish,
                everywhere=everywhere,
            )
            try:
                yield from relay.run()
            finally:
                self.communication_s += relay.waited_s
            if not everywhere:
                assert relay.past is not None, "the relay ran to its end"
                self.past = relay.past
            return
        timed = self._sharing(panel)
        takes, past = everywhere or comm.rank == 0, self.past
        for window in wanted:
            making = self._frame(timed, panel, window)
            start = past.start(key_every)
            raw = make(making, start) if shared else collective_try(comm, partial(make, making, start))
            past, placed = self._settled(past, raw, key_every)

            def end(past: Past = past, placed: _Placed | None = placed) -> N | None:
                return finish(past.frames - 1, placed) if takes and placed is not None else None

            made = end() if everywhere else collective_try(comm, end)
            if not everywhere:
                self.past = past
            if takes:
                yield made

    def _settled(self, past: Past, raw: _Raw | None, key_every: int) -> tuple[Past, _Placed | None]:
        """Align a frame with an earlier one; also return the past after it."""
        if raw is None:
            return past.behind(None, None, key_every), None
        frame = raw.frame
        ended = Base(frame.ids, frame.positions)
        with self.phases.timed("align"):
            fixed = self.fixed
            base = fixed if fixed is not None else past.first if self.align == "first" else past.last
            positions, fit = turned(frame.ids, frame.positions, base, raw.weight, fit_scaled=fixed is not None)
        frame = replace(frame, positions=positions, fit=fit)
        return past.behind(ended, Base(frame.ids, positions), key_every), _Placed(frame, ended)

    def _frame(self, comm: Any, panel: Panel, window: Window) -> Making[_Raw | None]:
        """Cut, measure and embed a window, by the workers of `comm`; None for this worker alone."""
        with self.phases.timed("distances"):
            segment = panel.segment(window, self.missing_max)
        if len(segment.ids) < IDS_MIN:
            yield True
            yield None
            return None
        yield False
        with self.phases.timed("distances"):
            ids, values, caps = self._points(panel, segment)
            count = len(ids)
            rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
            own = slice(count * rank // size, count * (rank + 1) // size)

            def measure() -> Array:
                return distances(values, kind=self.kind, of=self.of, length=self.length, rows=own)

            with _naming(window, ids):
                apart = measure() if comm is None else collective_try(comm, measure)
        yield False
        weight = weights(caps if self.weighted else None, count)
        model = MDS(
            3,
            metric="precomputed",
            max_iter=self.max_iter,
            tol=self.tol,
            acceleration=_ACCELERATION,
            random_state=self.random_state,
        )
        # Everything that does not depend on the start is done before it is requested.
        with self.phases.timed("embed"), using(comm), _naming(window, ids):
            # Distances by our own formulas are symmetric except for rounding, which may be large for series that hardly
            # differ.
            prepared = model._prepare(active(), apart, weight, None if callable(self.kind) else ROUNDING)
            if self.start == "independent":
                model.annealing = self.annealing
                model._place(prepared, None)
        start = yield True
        if self.start == "previous":
            with self.phases.timed("embed"):
                init = _placed(comm, ids, own, apart, start)
                model.annealing = self.annealing and init is None
                model._place(prepared, init)
        positions = np.asarray(model.positions_, dtype=np.float64)
        # Whoever makes the next window may begin.
        yield Base(ids, positions)
        with self.phases.timed("compare"):
            heat, heat_max, mean = self._compare(comm, apart, model.positions_, own)
        first, last = values[0], values[-1]
        frame = Frame(
            window=window,
            ids=ids,
            positions=positions,
            change=np.where(first > 0, last / np.where(first > 0, first, 1.0) - 1.0, np.nan),
            caps=caps,
            stress=float(model.normalized_stress_),
            fit=math.nan,
            mean_distance=mean,
            iterations=int(model.n_iter_),
            heat_map=heat,
            heat_max=heat_max,
            filled=segment.filled,
            dropped=segment.dropped,
            caps_name=panel.caps_name,
        )
        return _Raw(frame, weight)

    def _points(self, panel: Panel, segment: Segment) -> tuple[NDArray[np.str_], Array, Array | None]:
        """Return ids, values and caps of a window, with references last."""
        if not self.with_references:
            return segment.ids, segment.values, segment.caps
        times = panel.times[segment.window.begin : segment.window.end]
        ids = np.concatenate([segment.ids, np.array(list(REFERENCES))])
        values = np.concatenate([segment.values, references(times)], axis=1)
        # A reference has no value, and so the smallest weight.
        caps = None if segment.caps is None else np.concatenate([segment.caps, np.zeros(len(REFERENCES))])
        return ids, values, caps

    def _compare(self, comm: Any, apart: Array, positions: Array, own: slice) -> tuple[NDArray[np.int64], float, float]:
        """Return heat map, its range, and the mean distance, over all workers."""
        top = 2.0
        if self.kind != "correlation" or self.length != "one":
            top = float(max(apart.max(initial=0.0), *(block.max() for _, block in _shown(positions, own)), 0.0))
            top = top if comm is None or comm.size == 1 else max(comm.allgather(top))
        top = top or 1.0
        count = len(positions)
        side = min(max(math.isqrt(count), HEAT_SIDE_MIN), HEAT_SIDE_MAX)
        # Counting cells by number is many times faster than NumPy's histogram with arbitrary edges.
        counts = np.zeros(side**2 + 1, dtype=np.int64)
        for rows, block in _shown(positions, own):
            cells = _cells(block, top, side) * side
            cells += _cells(apart[rows.start - own.start : rows.stop - own.start], top, side)
            # A point does not form a pair with itself.
            cells[np.arange(len(cells)), np.arange(rows.start, rows.stop)] = side**2
            counts += np.bincount(cells.ravel(), minlength=side**2 + 1)
        sums = np.concatenate([counts[:-1], [apart.sum()]])
        if comm is not None and comm.size > 1:
            total = np.empty_like(sums)
            comm.Allreduce(sums, total)
            sums = total
        heat = sums[:-1].reshape(side, side).astype(np.int64)
        return heat, top, float(sums[-1] / max(1, count * (count - 1)))


def embed(panel: Panel, windows: Iterable[Window], **options: Any) -> Iterator[Frame]:
    """Compute a frame of each window of a panel, in order. Collective, to its end.

    Parameters
    ----------
    panel : Panel
    windows : iterable of Window
    **options
        As in `Embedder`.

    Yields
    ------
    Frame
        The same on every worker.
    """
    yield from Embedder(**options).frames(panel, windows)


@contextmanager
def _naming(window: Window, ids: NDArray[np.str_]) -> Iterator[None]:
    """Add the window to errors, and name points by their ids."""
    try:
        yield
    except ValueError as error:
        told = re.sub(r"\b(?:point|series) (\d+)", lambda found: f"{str(ids[int(found[1])])!r}", str(error))
        raise SeriesError(f"window of {window.label}: {told}") from error


def _shown(positions: Array, own: slice) -> Iterator[tuple[slice, Array]]:
    """Yield distances of points to all, a few rows at a time, so that they are still in the processor's cache when
    used.
    """
    squares = (positions**2).sum(axis=1)
    for begin in range(own.start, own.stop, _BLOCK_ROWS):
        rows = slice(begin, min(own.stop, begin + _BLOCK_ROWS))
        squared = positions[rows] @ positions.T
        squared *= -2.0
        squared += squares[rows, None] + squares
        yield rows, np.sqrt(np.maximum(squared, 0.0, out=squared), out=squared)


def _cells(apart: Array, top: float, side: int) -> NDArray[np.intp]:
    """Return the index of each distance along a side of a heat map that ends at `top`."""
    places = apart * (side / top)
    return np.minimum(places, side - 1, out=places).astype(np.intp)


def _placed(comm: Any, ids: NDArray[np.str_], own: slice, apart: Array, previous: Base | None) -> Array | None:
    """Return the start of an embedding: (n, 3), with ids of the earlier frame at their positions and new ones among
    their nearest; None without an earlier frame, or if it has all of them at one point.
    """
    if previous is None:
        return None
    known = {name: place for place, name in enumerate(previous.ids.tolist())}
    places = np.array([known.get(name, -1) for name in ids.tolist()])
    there = places >= 0
    if there.sum() < IDS_MIN:
        return None
    before = previous.positions[places[there]]
    if (np.ptp(before, axis=0) <= _ONE_PLACE * np.abs(before).max()).all():
        # As if nothing had moved: this tells nothing.
        return None
    init = np.zeros((len(ids), 3))
    init[there] = before
    if there.all():
        return init
    # Each worker places the new points among its rows, since it has their distances.
    found: dict[int, Array] = {}
    old = np.flatnonzero(there)
    for row in range(own.start, own.stop):
        if not there[row]:
            far = apart[row - own.start, old]
            nearest = np.argsort(far, kind="stable")[:_NEIGHBOURS]
            share = 1.0 / (far[nearest] + 1e-9)
            found[row] = (share[:, None] * init[old[nearest]]).sum(axis=0) / share.sum()
    everywhere = [found] if comm is None or comm.size == 1 else comm.allgather(found)
    for part in everywhere:
        for row, where in part.items():
            init[row] = where
    return init


class _Timed:
    """A communicator that adds up the time of its calls, including waits for other workers."""

    def __init__(self, comm: Any, owner: Embedder) -> None:
        self._comm, self._owner = comm, owner
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if not callable(found):
            return found
        owner = self._owner

        def call(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return found(*args, **options)
            finally:
                owner.communication_s += time.perf_counter() - begin

        return call
