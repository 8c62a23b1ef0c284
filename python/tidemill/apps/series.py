"""``tidemill series``: years of prices as moving points, from a file to the browser.

Rows are cleaned and divided into windows; each window is embedded in space and aligned with the one before; and the
frames are written to a folder for ``tidemill view``. Without a file, it shows a generated market.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tidemill
from tidemill import series
from tidemill._progress import Bar, Phases
from tidemill.apps._arriving import from_url, is_stream, named
from tidemill.apps._series_arguments import ROLES, arguments
from tidemill.apps._series_stream import Frames, Running, check_cut
from tidemill.dataset import DataSetError
from tidemill.series._align import write_positions
from tidemill.series._distance import why_no_references
from tidemill.series._journal import Journal, Standing
from tidemill.series._keyed import stream_rows
from tidemill.series._read import FORMATS, PACKED, collective_try
from tidemill.series._solver import Cut
from tidemill.series._windows import label
from tidemill.viz import Server
from tidemill.viz._format import INDEX

__all__ = ["main"]

#: Values of `--align` that are not files.
_ALIGN = ("previous", "first", "common")
_PHASES = ("generate", "clean", "distances", "embed", "compare", "align", "write", "all")
#: Options that do not affect frames.
_NOT_OF_FRAMES = (
    "out",
    "overwrite",
    "view",
    "open",
    "port",
    "settle",
    "sample_ids",
    "sample_days",
    "seed",
    "glyph",
    "glyphs",
    "title",
)
#: JSON numbers whose distance from 1970 as microseconds is that of present times in seconds, milliseconds or
#: nanoseconds.
_EPOCH, _EPOCH_MS_MAX, _EPOCH_US_MAX = (np.datetime64(day, "us") for day in ("1970-01-01", "1970-05-01", "2262-01-01"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if the input cannot be used; rank 0 reports why."""
    options = arguments(argv)
    rank = tidemill.init().rank
    try:
        _Command(options).run()
    except (series.SeriesError, DataSetError) as error:
        # All ranks get the error for bad input.
        if rank == 0:
            print(f"tidemill series: {error}", file=sys.stderr, flush=True)
        # The launcher stops the others when one fails, which must not happen before rank 0 has printed its message.
        tidemill.init().comm.Barrier()
        return 1
    except KeyboardInterrupt:
        # This is how following and watching end.
        return 0 if options.follow else 130
    return 0


class _Command:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.comm = tidemill.init().comm
        self.phases = Phases()
        self.bar = Bar(shown=self.comm.rank == 0)
        #: The table of points that frames are aligned to.
        self.aligned_to = None if options.align in _ALIGN else options.align
        self.embedder = series.Embedder(
            kind=options.distance,
            of=options.of,
            length=options.length,
            missing_max=options.missing,
            with_references={"auto": None, "yes": True, "no": False}[options.references],
            weighted=not options.no_weights,
            start=options.start,
            key_every=options.key_every,
            # Tables are read when the command runs, which reports errors in them.
            align="previous" if self.aligned_to else options.align,
            annealing=options.annealing,
            max_iter=options.max_iter,
            tol=options.tol,
            phases=self.phases,
        )
        self.folder: series.FrameFolder | None = None
        self.server: Server | None = None
        made_of = {name: value for name, value in vars(options).items() if name not in _NOT_OF_FRAMES}
        made_of["file"] = [named(file) for file in options.file]
        #: Everything that frames depend on, except the rows.
        self.made_of: dict[str, Any] = json.loads(json.dumps(made_of, default=str))
        self.journal = Journal(options.out, self.made_of)
        #: The position at the end of the last run of the command.
        self.standing: Standing | None = None
        #: The figures of each frame; for a batch only on worker 0.
        self.frames: list[dict[str, Any]] = []
        self.begin = time.perf_counter()

    def say(self, text: str) -> None:
        if self.comm.rank == 0:
            self.bar.clear()
            print(text, flush=True)

    def run(self) -> None:
        options = self.options
        # Check for impossible requests before years of prices are read.
        collective_try(self.comm, self._check)
        files, self.groups = self._sources()
        if self.aligned_to is not None:
            self.embedder = replace(self.embedder, align=self._positions(self.aligned_to))
        try:
            if options.checkpoint is not None:
                self._stream_on(files[0])
            elif options.follow:
                self._follow(files[0])
            else:
                self._batch(files)
            # Only worker 0 is told of a batch's frames; without any, the batch has failed.
            if options.view and (self.frames or not options.follow):
                self._wait()
        finally:
            self.bar.clear()
            if self.server is not None:
                self.server.close()

    def _check(self) -> None:
        options = self.options
        if options.checkpoint is not None:
            check_cut(self._cut())
            # Frames of this job exist if it was started before, however far it got.
            if self.comm.rank == 0 and not self.journal.is_begun():
                self._check_empty()
                self.journal.begin()
        elif self.comm.rank == 0 and not options.overwrite and (options.out / INDEX).exists():
            self.standing = self.journal.read() if options.follow else None
            if self.standing is None:
                self._check_empty()

    def _check_empty(self) -> None:
        if (self.options.out / INDEX).exists():
            raise series.SeriesError(f"{self.options.out} has frames already; --overwrite replaces them")

    def _sources(self) -> tuple[list[str], str | None]:
        """Return the input files and the file of groups; the generated market is stored beside its frames."""
        options = self.options
        if options.file:
            return options.file, options.groups

        def made() -> None:
            if self.comm.rank == 0:
                series.write_market(options.out, options.sample_ids, options.sample_days, options.seed)

        with self.phases.timed("generate"):
            collective_try(self.comm, made)
        return [str(options.out / "prices.csv")], options.groups or str(options.out / "sectors.csv")

    def _batch(self, files: list[str]) -> None:
        options = self.options
        self.bar.update(0.0, "reading and cleaning")
        with self.phases.timed("clean"):
            panel, report = series.clean(
                files,
                self._rules(),
                **{role: getattr(options, role) for role in ROLES},
                delimiter=options.delimiter,
                null=options.null,
                on_error=options.bad_rows,
            )
        name = self._name()
        self.say(f"{name}: {report}")
        windows = series.windows(panel.times, options.window, options.shift, accumulate=options.accumulate)
        self._begin(panel, name)
        begin = time.perf_counter()
        assert self.folder is not None, "it is made by _begin"
        for number, figures in enumerate(self.folder.embed_all(self.embedder, panel, windows), 1):
            self.frames.append(figures)
            self._serve()
            fit = _told(figures["alignment_fit"])
            self.bar.update(number / len(windows), f"{figures['time']}: stress {figures['stress']:.3g}, fit {fit}")
        self.bar.clear()
        self._write_common()
        self._summary(report, time.perf_counter() - begin)

    def _positions(self, path: str) -> dict[str, list[float]]:
        try:
            return series.read_positions(path)
        except DataSetError as error:
            raise series.SeriesError(
                f"--align {path} is none of {', '.join(_ALIGN)}, and as a file: {error}"
            ) from error

    def _write_common(self) -> None:
        """Store the common points beside the frames, so that other runs can align to them."""
        common = self.embedder.fixed
        if self.options.align == "common" and common is not None and self.comm.rank == 0:
            write_positions(self.options.out / "common.csv", common)

    def _follow(self, path: str) -> None:
        options = self.options
        follower = series.Follower(
            self._stream(path) if is_stream(path) else path,
            self._rules(),
            columns={role: getattr(options, role) for role in ROLES},
            settle=options.settle,
            delimiter=options.delimiter,
            null=options.null,
            on_error=options.bad_rows,
        )
        self.say(f"following {named(path)}; Ctrl-C ends it")
        with follower:
            self._following(follower, named(path))

    def _cut(self) -> Cut:
        options = self.options
        return Cut(options.window, options.shift, options.accumulate, options.split)

    def _stream_on(self, path: str) -> None:
        """Follow as one running stream."""
        options = self.options
        chosen = {role: getattr(options, role) for role in ROLES}
        made_of = {name: value for name, value in self.made_of.items() if name != "checkpoint"}
        running = Running(options.checkpoint, self._rules(), chosen, self.embedder, self._cut(), made_of)
        columns = check = None
        if is_stream(path):
            rows, columns = stream_rows(self._stream(path), chosen, _print)
            check = partial(self._check_times, name=named(path))
        else:
            lenient = options.bad_rows == "skip"
            rows = running.of_files(path, options.settle, options.delimiter, options.null, lenient=lenient)
        groups = None
        if self.groups is not None:
            groups = series.read_groups(self.groups, (), id=options.group_id, growing=True)
        self._tell_references()
        folder = {
            "groups": groups,
            "glyphs": options.glyphs,
            "title": options.title or _title(named(path)),
            "change_bins": options.change_bins,
        }
        summary = {
            "files": [named(path)],
            "window": options.window,
            "shift": options.shift,
            "workers": self.comm.size,
        }
        self.say(f"following {named(path)}; Ctrl-C ends it")
        running.run(rows, Frames(options.out, folder, summary, _print), self._look, columns, check)

    def _look(self) -> None:
        """Serve frames as soon as there are some."""
        if self.options.view and self.server is None and (self.options.out / INDEX).exists():
            self._serve()

    def _stream(self, url: str) -> tidemill.DataSet:
        """Return the stream of a URL, with the named columns, and id, time and value."""
        names = {role: getattr(self.options, role) for role in ROLES}
        names |= {role: names[role] or role for role in ("id", "time", "value")}
        types = {"id": "str", "time": "timestamp[us]"}
        schema = {name: types.get(role, "float64") for role, name in names.items() if name is not None}
        return from_url(url, schema, names["time"], self.options.settle, on_error=self.options.bad_rows)

    def _following(self, follower: series.Follower, name: str) -> None:
        options = self.options
        self.standing = self.standing if self.comm.size == 1 else self.comm.bcast(self.standing)
        done = 0
        begun = told = noted = False
        try:
            while not follower.ended:
                # At the end there may be no more rows, but the last day is now complete.
                grown = follower.poll() or follower.ended
                if follower.note and not noted:
                    self.say(f"  {follower.note}")
                    noted = True
                if not grown or follower.panel is None:
                    continue
                panel = follower.panel
                self._check_times(panel.times, name)
                try:
                    windows = series.windows(
                        panel.times,
                        options.window,
                        options.shift,
                        accumulate=options.accumulate,
                        growing=not follower.ended,
                    )
                except series.SeriesError as error:
                    if "no window is full" not in str(error):
                        raise
                    if not told:
                        self.say(
                            f"{len(panel.times)} times so far; the first frame comes when a window ({options.window}) is full"
                        )
                    told = True
                    continue
                if len(windows) <= done:
                    continue
                if not begun:
                    if self.standing is not None:
                        if len(windows) <= self.standing.lines[-1]["window"]:
                            # Not all input of the frames has been read yet.
                            continue
                        done = self._go_on(self.standing, follower, windows)
                    self._begin(panel, name, append=done > 0)
                    if not done and self.comm.rank == 0:
                        self.journal.begin()
                    begun = True
                    if done:
                        self._serve()
                frames = self._noted(self.embedder.frames(panel, windows[done:]), follower)
                for frame in self._written(frames):
                    self.say(
                        f"{frame.window.label}: {len(frame.ids)} ids, stress {frame.stress:.3g}, fit {_told(frame.fit)}"
                    )
                done = len(windows)
        finally:
            if follower.report is not None and self.frames and self.comm.rank == 0:
                self.say(str(follower.report))
                self._write_summary(follower.report, 0.0, self.phases.seconds)

    def _check_times(self, times: NDArray[Any], name: str) -> None:
        """Refuse JSON numbers that are not microseconds since 1970, which streams read them as: seconds and
        milliseconds would be in 1970.
        """
        if not name.startswith(("kafka:", "tcp:", "ws:", "wss:")):
            return
        odd = (times >= _EPOCH) & (times < _EPOCH_MS_MAX) & (times != times.astype("datetime64[D]"))
        odd |= times >= _EPOCH_US_MAX
        if odd.any():
            raise series.SeriesError(
                f"{name}: times are numbers, which are taken as microseconds since 1970, and so {label(times[odd][0])} is one; "
                "write them as 2016-12-30, 2016-12-30T17:00:00 or 20161230"
            )

    def _rules(self) -> series.Rules:
        options = self.options
        return series.Rules(negative=options.negative, splits=options.splits, split_is=options.split_is)

    def _name(self) -> str:
        return ", ".join(self.options.file) if self.options.file else "A generated market"

    def _begin(self, panel: series.Panel, name: str, append: bool = False) -> None:
        options = self.options
        groups = None
        if self.groups is not None:
            groups = series.read_groups(self.groups, panel.ids, id=options.group_id, growing=options.follow)
            for note in groups.notes:
                self.say(f"  {note}")
        self._tell_references()
        missing = [one for one in options.glyphs if one not in set(panel.ids.tolist())]
        if missing and not options.follow:
            raise series.SeriesError(f"--glyph {missing[0]}: no such id")
        # Existing frames are replaced only when there is a new one.
        self.folder = series.FrameFolder(
            options.out,
            groups=groups,
            glyphs=options.glyphs,
            title=options.title or _title(name),
            overwrite=options.overwrite and not append,
            append=append,
            change_bins=options.change_bins,
            lazily=True,
        )
        self.folder.phases = self.phases

    def _tell_references(self) -> None:
        """Report why reference series are missing or of little use."""
        options = self.options
        why = why_no_references(options.distance, options.of, options.length)
        if why is not None and options.references != "no":
            has = (
                "--of changes has them" if options.distance == "euclidean" else "--of values and --length log have them"
            )
            shown = "the reference series mean little here" if options.references == "yes" else "no reference series"
            self.say(f"{shown}: {why}; {has}")

    def _written(self, frames: Iterator[series.Frame]) -> Iterator[series.Frame]:
        """Write frames as they arrive; serve them once the first exists."""
        assert self.folder is not None, "it is made by _begin"
        for frame in self.folder.write_all(frames):
            # Only the figures of past frames are needed.
            self.frames.append(frame.figures())
            self._serve()
            yield frame

    def _serve(self) -> None:
        if self.options.view and self.server is None and self.comm.rank == 0:
            self.server = Server(self.options.out, port=self.options.port)
            self.say(f"the frames are at {self.server.url}")
            if self.options.open:
                webbrowser.open(self.server.url)

    def _wait(self) -> None:
        if self.server is not None:
            self.say(f"the page is at {self.server.url}; Ctrl-C ends it")
            self.server.wait()
        # Ctrl-C ends every rank, and Python reports one that arrives while it is ending, so no rank ends before rank 0.
        over = self.comm.Ibarrier()
        while not over.Test():
            time.sleep(0.1)

    def _noted(self, frames: Iterator[series.Frame], follower: series.Follower) -> Iterator[series.Frame]:
        """Record each frame in the journal before it is written."""
        panel = follower.panel
        assert panel is not None
        for frame in frames:

            def note(frame: series.Frame = frame) -> None:
                if self.comm.rank == 0:
                    fingerprint = follower.fingerprint(panel.times[frame.window.end - 1])
                    line = {"window": frame.window.number, "fingerprint": fingerprint, **frame.figures()}
                    self.journal.note(line, self.embedder.past)

            collective_try(self.comm, note)
            yield frame

    def _go_on(self, standing: Standing, follower: series.Follower, windows: list[series.Window]) -> int:
        """Restore the state when following ended; returns the number of finished windows, 0 to start over."""
        panel = follower.panel
        assert panel is not None
        for line in standing.lines:
            end = windows[line["window"]].end
            if follower.fingerprint(panel.times[end - 1]) != line["fingerprint"]:
                self.say(
                    f"rows up to {line['time']} differ from those that the frames were made of: all frames are recomputed"
                )
                self.options.overwrite = True
                return 0
        self.embedder.past = standing.past
        self.frames = [
            {name: line[name] for name in line if name not in ("window", "fingerprint")} for line in standing.lines
        ]
        self.say(f"{len(self.frames)} frames are there, up to {standing.lines[-1]['time']}")
        return int(standing.lines[-1]["window"]) + 1

    def _summary(self, report: series.Report, embedding: float) -> None:
        """Print and write a summary; the frames took `embedding` seconds."""
        seconds = time.perf_counter() - self.begin
        self.phases.seconds["all"] = seconds
        slowest = self._slowest(embedding)
        if self.comm.rank != 0:
            return
        stress, fit = self._means()
        frames = len(self.frames)
        self.say(
            f"{frames} frames of {self.options.window}, {self.options.shift} apart, of "
            f"{min(frame['ids'] for frame in self.frames)} to {max(frame['ids'] for frame in self.frames)} points: "
            f"stress {stress:.3g}, alignment fit {_told(fit)}, {self._iterations():.0f} iterations on average"
        )
        dropped = sum(frame["dropped"] for frame in self.frames)
        filled = sum(frame["filled"] for frame in self.frames)
        self.say(f"  {dropped:,} times a series was left out of a window, {filled:,} values were filled in")
        if self.embedder.left_out:
            self.say(
                f"  {len(self.embedder.left_out)} windows have no frame: fewer than 4 series are there for most of them, "
                "or they have too few times to compare"
            )
        self.say(
            f"{60 * frames / embedding:,.0f} windows a minute on {self.comm.size} worker(s), "
            f"{100 * self.share:.0f} % of that time in communication"
        )
        self.say("seconds: " + ", ".join(f"{name} {value:.3g}" for name, value in slowest.items()))
        self._write_summary(report, embedding, slowest)
        if self.server is None:
            self.say(f"tidemill view {self.options.out} shows them")

    def _slowest(self, embedding: float) -> dict[str, float]:
        """Return the seconds of the slowest worker in each phase, and the share of communication in all."""
        everybody = self.comm.allgather((self.phases.seconds, self.embedder.communication_s))
        self.share = sum(spent for _, spent in everybody) / (self.comm.size * embedding)
        # With few windows, worker 0 may have made none.
        names = [name for name in _PHASES if any(name in part for part, _ in everybody)]
        return {name: max(part.get(name, 0.0) for part, _ in everybody) for name in names}

    def _means(self) -> tuple[float, float]:
        fits = [frame["alignment_fit"] for frame in self.frames if frame["alignment_fit"] is not None]
        return float(np.mean([frame["stress"] for frame in self.frames])), float(np.mean(fits)) if fits else math.nan

    def _iterations(self) -> float:
        return float(np.mean([frame["iterations"] for frame in self.frames]))

    def _write_summary(self, report: series.Report, embedding: float, seconds: dict[str, float]) -> None:
        stress, fit = self._means()
        summary: dict[str, Any] = {
            "files": [named(file) for file in self.options.file] or None,
            "cleaning": report.to_dict(),
            "window": self.options.window,
            "shift": self.options.shift,
            "frames": len(self.frames),
            "stress": stress,
            "alignment_fit": fit if math.isfinite(fit) else None,
            "iterations": self._iterations(),
            "workers": self.comm.size,
            "left_out": [window.label for window in self.embedder.left_out],
            "seconds": seconds,
            "windows_per_minute": 60 * len(self.frames) / embedding if embedding else None,
            "communication": self.share if embedding else None,
            "per_frame": self.frames,
        }
        path = self.options.out / "summary.json"
        made = path.with_name(".summary.json")
        made.write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        made.replace(path)


def _print(line: str) -> None:
    print(line, flush=True)


def _told(fit: float | None) -> str:
    """Return the goodness of fit between frames; there is none for a first one, or without four common ids."""
    return "none" if fit is None or not math.isfinite(fit) else f"{fit:.3f}"


def _title(name: str) -> str:
    """Return a file's name without the part that names its format."""
    path = Path(name)
    while path.suffix.lower() in (*FORMATS, *PACKED):
        path = path.with_suffix("")
    return path.name


if __name__ == "__main__":
    sys.exit(main())
