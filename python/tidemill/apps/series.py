"""``tidemill series``: years of prices as points that move, from a file to the browser.

Rows are cleaned, cut into windows, each window is embedded in space and aligned to the one before, and the frames lie in a folder for
``tidemill view``. Without a file it shows a generated market.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tidemill
from tidemill import series
from tidemill._progress import Bar, Phases
from tidemill.apps._arguments import Parser
from tidemill.apps._arriving import SHAPES, from_url, is_stream, named, why_not_followed
from tidemill.dataset import DataSetError
from tidemill.series._distance import why_no_references
from tidemill.series._embed import KEY_EVERY
from tidemill.series._frames import CHANGE_BINS, ChangeBins
from tidemill.series._journal import Journal, Standing
from tidemill.series._read import FORMATS, PACKED, together
from tidemill.series._windows import label
from tidemill.viz import GLYPHS, Server
from tidemill.viz._format import INDEX

__all__ = ["main"]

_PHASES = ("generate", "clean", "distances", "embed", "compare", "align", "write", "all")
#: Options that no frame depends on.
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
_SETTLE_S = 2.0
#: Times of JSON that are as far from 1970 as seconds and milliseconds, or nanoseconds, of our days are microseconds.
_EPOCH, _EPOCH_MS_MAX, _EPOCH_US_MAX = (np.datetime64(day, "us") for day in ("1970-01-01", "1970-05-01", "2262-01-01"))
_ROLES = ("id", "time", "value", "cap", "volume", "split", "price")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="tidemill series",
        description="Show time series, such as a stock market, as points in space that move: near each other is what moves alike.",
        epilog="LENGTH: 250d (days that have data: trading days), 500r (rows: times of the data), 4w, 6mo, 1y (by the calendar)",
    )
    add = parser.add_argument
    add("file", nargs="*", help="CSV (.gz, .zst, ... too), Parquet, Arrow or JSON lines, a folder or a glob; a row for each id and time. "
        "Left out: a generated market")  # fmt: skip
    add("--window", default="250d", metavar="LENGTH", help="how much time a frame sees (default %(default)s)")
    add("--shift", default="5d", metavar="LENGTH", help="from one frame to the next (default %(default)s)")
    add("--accumulate", action="store_true", help="all windows begin at the first time")
    add(
        "--out",
        type=Path,
        default=Path("series-out"),
        metavar="DIR",
        help="where frames and summary.json go (default %(default)s)",
    )
    add("--overwrite", action="store_true", help="replace frames that are there")
    add("--title", help="what the page is called (default: the file)")

    columns = parser.add_argument_group("columns", "found by their usual names, or:")
    for role, what in zip(
        _ROLES,
        ("which series", "when", "its value", "what it is worth, for weights (else price x volume)", "traded pieces",
         "new shares for an old one, in the row of the first day at the new price",
         "what was paid for a piece (the value, or beside an adjusted one 'close')"),
        strict=True,
    ):  # fmt: skip
        columns.add_argument(f"--{role}", metavar="COLUMN", help=what)
    columns.add_argument("--delimiter", metavar="C", help="what separates fields of CSV (default: comma, of .tsv tab)")
    columns.add_argument(
        "--null",
        metavar="TEXT",
        action="append",
        help="a value of CSV that stands for null, such as NA; may be given several times",
    )

    cleaning = parser.add_argument_group("cleaning")
    add = cleaning.add_argument
    add("--negative", choices=("absolute", "missing", "keep"), default="absolute", help="values below 0 (default %(default)s: "
        "they stand for the mean of bid and ask)")  # fmt: skip
    add(
        "--splits",
        choices=("column", "detect", "keep"),
        default="column",
        help="where splits are told (default %(default)s, if there is one)",
    )
    add("--split-is", choices=("ratio", "added"), default="ratio", help="what the column says: 2 where one share became two, or 1, "
        "as FACPR of CRSP (default %(default)s)")  # fmt: skip
    add(
        "--missing",
        type=float,
        default=0.05,
        metavar="PART",
        help="most of a window that may be filled in (default %(default)s)",
    )
    add("--bad-rows", choices=("raise", "skip"), default="raise", help="rows that cannot be read (default %(default)s)")

    shape = parser.add_argument_group("distances and embedding")
    add = shape.add_argument
    add("--distance", choices=("correlation", "euclidean"), default="correlation", help="(default %(default)s)")
    add("--of", choices=("changes", "differences", "values"), default="changes", help="what is compared: changes of the logarithm "
        "from time to time, differences, or the values (default %(default)s)")  # fmt: skip
    add(
        "--length",
        choices=("one", "log"),
        default="one",
        help="L of the distance: 1, or 10 |log(last / first)| (default %(default)s)",
    )
    add("--references", choices=("auto", "yes", "no"), default="auto", help="five series that grow evenly, to compare with "
        "(default: where they have a meaning, with --of values or --length log)")  # fmt: skip
    add("--no-weights", action="store_true", help="all pairs weigh the same")
    add("--start", choices=("previous", "independent"), default="previous", help="each window from the solution of one before, "
        "or each for itself (default %(default)s)")  # fmt: skip
    add("--key-every", type=int, default=KEY_EVERY, metavar="N", help="with --start previous: one in N windows starts from the Nth before, "
        "so that workers need not wait for each other; 1: none does, points move most smoothly (default %(default)s)")  # fmt: skip
    add(
        "--align",
        choices=("previous", "first"),
        default="previous",
        help="to which frame frames are turned (default %(default)s)",
    )
    add("--annealing", action="store_true", help="deterministic annealing where no solution is started from")
    add("--max-iter", type=int, default=300, metavar="N", help="most iterations of a window (default %(default)s)")
    add(
        "--tol",
        type=float,
        default=2e-5,
        metavar="X",
        help="stop when the stress falls by less than this part (default %(default)s)",
    )

    shown = parser.add_argument_group("what is shown")
    add = shown.add_argument
    add("--groups", metavar="FILE", help="a table with a row for each id: its sector, ..., and a column 'name'")
    add("--group-id", metavar="COLUMN", help="its column of ids")
    add(
        "--glyph",
        action="append",
        default=[],
        metavar="ID[=SHAPE]",
        help=f"draw an id large, with its name; {', '.join(GLYPHS)}",
    )
    add(
        "--change-bins",
        type=_percents,
        default=CHANGE_BINS,
        metavar="P,P,...",
        help="edges of the bins of relative change, in percent, up and down alike (default 10,20,50)",
    )
    add("--view", action="store_true", help="serve the frames on loopback until Ctrl-C, from the first one on")
    add("--open", action="store_true", help="--view, and open a tab of the browser")
    add("--port", type=int, default=0, help="of --view (default: one that is free)")

    follow = parser.add_argument_group("following")
    add = follow.add_argument
    add(
        "--follow",
        action="store_true",
        help="wait for more rows, until Ctrl-C: a CSV file that grows, a folder that CSV or Parquet files come into, or a stream: "
        + ", ".join(shape for scheme, shape in SHAPES.items() if scheme not in ("rediss", "wss")),
    )
    add(
        "--settle",
        type=float,
        metavar="S",
        help=f"seconds without a row after which the last time is over (default {_SETTLE_S})",
    )

    made = parser.add_argument_group("the generated market")
    made.add_argument("--sample-ids", type=int, default=240, metavar="N", help="(default %(default)s)")
    made.add_argument("--sample-days", type=int, default=1000, metavar="N", help="(default %(default)s)")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="(default %(default)s)")

    options = parser.parse_args(argv)
    options.glyphs = {}
    for text in options.glyph:
        name, _, glyph = text.partition("=")
        if (glyph or "star") not in GLYPHS:
            parser.error(f"--glyph {text}: a shape is one of {', '.join(GLYPHS)}")
        options.glyphs[name] = glyph or "star"
    if options.settle is not None and not options.follow:
        parser.error("--settle is for --follow")
    options.settle = _SETTLE_S if options.settle is None else options.settle
    if options.follow and len(options.file) != 1:
        parser.error("--follow wants one file, folder, glob or stream")
    for file in options.file:
        # Without --follow a URL of HTTP is that of a file.
        why = why_not_followed(file) if options.follow or file.startswith("amqp") else None
        if why is not None:
            parser.error(f"{named(file)}: {why}")
    if any(map(is_stream, options.file)):
        if not options.follow:
            parser.error(f"{named(options.file[0])} is a stream: --follow it")
        if options.delimiter or options.null:
            parser.error("--delimiter and --null are of files, not of streams")
    if options.max_iter < 1 or not options.tol >= 0:
        parser.error("--max-iter is at least 1, --tol at least 0")
    if options.key_every < 1:
        parser.error("--key-every is at least 1")
    if not 0 <= options.port < 65536:
        parser.error("--port is from 0 to 65535")
    options.view = options.view or options.open
    return options


def _percents(text: str) -> tuple[float, ...]:
    try:
        edges = tuple(float(word) for word in text.split(","))
        ChangeBins(edges)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return edges


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if the input cannot be used, which rank 0 explains."""
    options = _arguments(argv)
    rank = tidemill.init().rank
    try:
        _Command(options).run()
    except (series.SeriesError, DataSetError) as error:
        # Every rank has it: bad input is raised everywhere.
        if rank == 0:
            print(f"tidemill series: {error}", file=sys.stderr, flush=True)
        # The launcher stops the others when one fails, which shall not be before rank 0 has spoken.
        tidemill.init().comm.Barrier()
        return 1
    except KeyboardInterrupt:
        # How following and looking end.
        return 0 if options.follow else 130
    return 0


class _Command:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.comm = tidemill.init().comm
        self.phases = Phases()
        self.bar = Bar(shown=self.comm.rank == 0)
        self.embedder = series.Embedder(
            kind=options.distance,
            of=options.of,
            length=options.length,
            missing_max=options.missing,
            with_references={"auto": None, "yes": True, "no": False}[options.references],
            weighted=not options.no_weights,
            start=options.start,
            key_every=options.key_every,
            align=options.align,
            annealing=options.annealing,
            max_iter=options.max_iter,
            tol=options.tol,
            phases=self.phases,
        )
        self.folder: series.FrameFolder | None = None
        self.server: Server | None = None
        made_of = {name: value for name, value in vars(options).items() if name not in _NOT_OF_FRAMES}
        made_of["file"] = [named(file) for file in options.file]
        self.journal = Journal(options.out, json.loads(json.dumps(made_of, default=str)))
        #: Where following was when the command ended last.
        self.standing: Standing | None = None
        #: Figures of each frame; of a batch on worker 0 only.
        self.frames: list[dict[str, Any]] = []
        self.begin = time.perf_counter()

    def say(self, text: str) -> None:
        if self.comm.rank == 0:
            self.bar.clear()
            print(text, flush=True)

    def run(self) -> None:
        options = self.options
        # What cannot be done shall be known before years of prices are read.
        together(self.comm, self._check)
        files, self.groups = self._sources()
        try:
            if options.follow:
                self._follow(files[0])
            else:
                self._batch(files)
            # Frames of a batch are told to worker 0 only; without any it has failed.
            if options.view and (self.frames or not options.follow):
                self._wait()
        finally:
            self.bar.clear()
            if self.server is not None:
                self.server.close()

    def _check(self) -> None:
        options = self.options
        if self.comm.rank == 0 and not options.overwrite and (options.out / INDEX).exists():
            self.standing = self.journal.read() if options.follow else None
            if self.standing is None:
                raise series.SeriesError(f"{options.out} has frames already; --overwrite replaces them")

    def _sources(self) -> tuple[list[str], str | None]:
        """The files, and that of groups; the generated market lies beside its frames."""
        options = self.options
        if options.file:
            return options.file, options.groups

        def made() -> None:
            if self.comm.rank == 0:
                series.write_market(options.out, options.sample_ids, options.sample_days, options.seed)

        with self.phases.timed("generate"):
            together(self.comm, made)
        return [str(options.out / "prices.csv")], options.groups or str(options.out / "sectors.csv")

    def _batch(self, files: list[str]) -> None:
        options = self.options
        self.bar.update(0.0, "reading and cleaning")
        with self.phases.timed("clean"):
            panel, report = series.clean(
                files,
                self._rules(),
                **{role: getattr(options, role) for role in _ROLES},
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
        self._summary(report, time.perf_counter() - begin)

    def _follow(self, path: str) -> None:
        options = self.options
        follower = series.Follower(
            self._stream(path) if is_stream(path) else path,
            self._rules(),
            columns={role: getattr(options, role) for role in _ROLES},
            settle_s=options.settle,
            delimiter=options.delimiter,
            null=options.null,
            on_error=options.bad_rows,
        )
        self.say(f"following {named(path)}; Ctrl-C ends it")
        with follower:
            self._following(follower, named(path))

    def _stream(self, url: str) -> tidemill.DataSet:
        """The stream of a URL, with those columns that were named, and id, time and value."""
        names = {role: getattr(self.options, role) for role in _ROLES}
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
                # At its end there may be no more rows, but the last day is over.
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
                            # Not all of what frames were made of has been read yet.
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
        """Refuse numbers of JSON that are no microseconds since 1970, as which streams read them: seconds and milliseconds are then of 1970."""
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
        why = why_no_references(options.distance, options.of, options.length)
        if why is not None and options.references != "no":
            has = (
                "--of changes has them" if options.distance == "euclidean" else "--of values and --length log have them"
            )
            shown = "the reference series mean little here" if options.references == "yes" else "no reference series"
            self.say(f"{shown}: {why}; {has}")
        missing = [one for one in options.glyphs if one not in set(panel.ids.tolist())]
        if missing and not options.follow:
            raise series.SeriesError(f"--glyph {missing[0]}: there is no such id")
        # Frames that are there are replaced when there is one to replace them by.
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

    def _written(self, frames: Iterator[series.Frame]) -> Iterator[series.Frame]:
        """Write frames as they come; when the first is there, serve them."""
        assert self.folder is not None, "it is made by _begin"
        for frame in self.folder.write_all(frames):
            # Of past frames only the figures are needed.
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
        # Ctrl-C ends every rank, and Python tells of one that comes while it is ending: none ends before rank 0.
        over = self.comm.Ibarrier()
        while not over.Test():
            time.sleep(0.1)

    def _noted(self, frames: Iterator[series.Frame], follower: series.Follower) -> Iterator[series.Frame]:
        """Tell the journal of each frame before it is written."""
        panel = follower.panel
        assert panel is not None
        for frame in frames:

            def note(frame: series.Frame = frame) -> None:
                if self.comm.rank == 0:
                    fingerprint = follower.fingerprint(panel.times[frame.window.end - 1])
                    line = {"window": frame.window.number, "fingerprint": fingerprint, **frame.figures()}
                    self.journal.note(line, self.embedder.past)

            together(self.comm, note)
            yield frame

    def _go_on(self, standing: Standing, follower: series.Follower, windows: list[series.Window]) -> int:
        """Take up what was there when following ended; returns how many windows are done with, 0 if all are to be made anew."""
        panel = follower.panel
        assert panel is not None
        for line in standing.lines:
            end = windows[line["window"]].end
            if follower.fingerprint(panel.times[end - 1]) != line["fingerprint"]:
                self.say(f"rows up to {line['time']} are not those that the frames were made of: all are made anew")
                self.options.overwrite = True
                return 0
        self.embedder.past = standing.past
        self.frames = [
            {name: line[name] for name in line if name not in ("window", "fingerprint")} for line in standing.lines
        ]
        self.say(f"{len(self.frames)} frames are there, up to {standing.lines[-1]['time']}")
        return int(standing.lines[-1]["window"]) + 1

    def _summary(self, report: series.Report, embedding: float) -> None:
        """Print and write what was done, the frames in `embedding` seconds."""
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
        """Seconds by phase of the slowest worker in each, and the share of communication of all."""
        everybody = self.comm.allgather((self.phases.seconds, self.embedder.communication_s))
        self.share = sum(spent for _, spent in everybody) / (self.comm.size * embedding)
        # Of few windows worker 0 may have made none.
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


def _told(fit: float | None) -> str:
    """How well frames lie on each other; of a first one, or without four common ids, there is nothing to say."""
    return "none" if fit is None or not math.isfinite(fit) else f"{fit:.3f}"


def _title(name: str) -> str:
    """A file's name without what says how it is written."""
    path = Path(name)
    while path.suffix.lower() in (*FORMATS, *PACKED):
        path = path.with_suffix("")
    return path.name


if __name__ == "__main__":
    sys.exit(main())
