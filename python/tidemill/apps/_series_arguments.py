"""The command line of ``tidemill series``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tidemill.apps._arguments import Parser, duration_s
from tidemill.apps._arriving import SHAPES, is_stream, named, why_not_followed
from tidemill.series._embed import KEY_EVERY
from tidemill.series._frames import CHANGE_BINS, ChangeBins
from tidemill.viz import GLYPHS

__all__ = ["ROLES", "arguments"]

#: Roles of columns, each with an option.
ROLES = ("id", "time", "value", "cap", "shares", "volume", "split", "split_shares", "price")
#: Seconds without a row after which the last time is complete.
SETTLE_S = 2.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid options end the command on every rank."""
    parser = Parser(
        prog="tidemill series",
        description="Show time series, such as a stock market, as moving points in space. Series that move alike appear close together.",
        epilog="LENGTH: 250d (days with data, that is, trading days), 500r (rows, one for each time), 4w, 6mo, 1y (by the calendar)",
    )
    for add_options in (
        _add_general,
        _add_columns,
        _add_cleaning,
        _add_embedding,
        _add_shown,
        _add_following,
        _add_sample,
    ):
        add_options(parser)
    options = parser.parse_args(argv)
    _check_options(parser, options)
    options.glyphs = _glyphs(parser, options.glyph)
    options.settle = SETTLE_S if options.settle is None else options.settle
    options.view = options.view or options.open
    return options


def _add_general(parser: Parser) -> None:
    """Add options for input and output."""
    add = parser.add_argument
    add("file", nargs="*", help="CSV (also .gz, .zst, ...), Parquet, Arrow or JSON lines; a file, folder or glob with a row for each id and time "
        "(default: a generated market)")  # fmt: skip
    add(
        "--window",
        default="250d",
        metavar="LENGTH",
        help="length of the time window of each frame (default %(default)s)",
    )
    add("--shift", default="5d", metavar="LENGTH", help="time from one frame to the next (default %(default)s)")
    add("--accumulate", action="store_true", help="all windows begin at the first time")
    add(
        "--out",
        type=Path,
        default=Path("series-out"),
        metavar="DIR",
        help="output folder for frames and summary.json (default %(default)s)",
    )
    add("--overwrite", action="store_true", help="replace existing frames")
    add("--title", help="title of the page (default: the file name)")


def _add_columns(parser: Parser) -> None:
    """Add options for columns, and for the fields of CSV."""
    add = parser.add_argument_group("columns", "by default found by their usual names").add_argument
    for role, what in zip(
        ROLES,
        ("id of the series", "time", "value", "worth of the series, for weights (default: price x shares, else price x volume)",
         "shares outstanding", "number of shares traded", "ratio of new shares to old ones, in the row of the first day at the new price",
         "second column of splits, for shares rather than prices (FACSHR in CRSP): rows in which it differs from --split are left out",
         "price paid per share (default: the value, or 'close' if the value is adjusted)"),
        strict=True,
    ):  # fmt: skip
        add(f"--{role.replace('_', '-')}", metavar="COLUMN", help=what)
    add("--delimiter", metavar="C", help="field separator of CSV (default: comma; tab for .tsv)")
    add(
        "--null",
        metavar="TEXT",
        action="append",
        help="CSV value that means null, such as NA; repeat for several",
    )


def _add_cleaning(parser: Parser) -> None:
    """Add options for cleaning rows."""
    add = parser.add_argument_group("cleaning").add_argument
    add("--negative", choices=("absolute", "missing", "keep"), default="absolute", help="what to do with values below 0 (default "
        "%(default)s: the minus sign marks a mean of bid and ask)")  # fmt: skip
    add(
        "--splits",
        choices=("column", "detect", "keep"),
        default="column",
        help="where splits come from (default %(default)s, if there is one)",
    )
    add("--split-is", choices=("ratio", "added"), default="ratio", help="what the split column holds for a 2-for-1 split: "
        "2 (ratio) or 1 (added, as FACPR in CRSP) (default %(default)s)")  # fmt: skip
    add(
        "--missing",
        type=float,
        default=0.05,
        metavar="FRACTION",
        help="largest fraction of a window that may be filled in (default %(default)s)",
    )
    add(
        "--bad-rows",
        choices=("raise", "skip"),
        default="raise",
        help="what to do with rows that cannot be read (default %(default)s)",
    )


def _add_embedding(parser: Parser) -> None:
    """Add options for measuring, embedding and aligning windows."""
    add = parser.add_argument_group("distances and embedding").add_argument
    add(
        "--distance",
        choices=("correlation", "euclidean"),
        default="correlation",
        help="distance between series (default %(default)s)",
    )
    add("--of", choices=("changes", "differences", "values"), default="changes", help="what to compare: changes of the logarithm "
        "from one time to the next, differences, or the values themselves (default %(default)s)")  # fmt: skip
    add(
        "--length",
        choices=("one", "log"),
        default="one",
        help="L in the distance: 1, or 10 |log(last / first)| (default %(default)s)",
    )
    add("--references", choices=("auto", "yes", "no"), default="auto", help="add five series that grow steadily, for "
        "comparison (default: if they are meaningful, as with --of values or --length log)")  # fmt: skip
    add("--no-weights", action="store_true", help="give all pairs the same weight")
    add("--start", choices=("previous", "independent"), default="previous", help="start each window from the solution "
        "of an earlier one, or independently (default %(default)s)")  # fmt: skip
    add("--key-every", type=int, default=KEY_EVERY, metavar="N", help="with --start previous, start one in N windows from the Nth before it, "
        "so that workers need not wait for each other; 1 turns this off and moves points most smoothly (default %(default)s)")  # fmt: skip
    add("--align", default="previous", metavar="{previous,first,common,FILE}", help="what to align frames to: the previous frame, the "
        "first frame, the ids present in all windows (embedded over all times), or a table of ids and their x, y, z (default %(default)s)")  # fmt: skip
    add(
        "--annealing",
        action="store_true",
        help="use deterministic annealing in windows that do not start from an earlier one",
    )
    add("--max-iter", type=int, default=300, metavar="N", help="maximum iterations per window (default %(default)s)")
    add(
        "--tol",
        type=float,
        default=2e-5,
        metavar="X",
        help="stop when the stress falls by less than this fraction (default %(default)s)",
    )


def _add_shown(parser: Parser) -> None:
    """Add options for the page."""
    add = parser.add_argument_group("display").add_argument
    add(
        "--groups", metavar="FILE", help="table with a row for each id: its sector, ..., and optionally a column 'name'"
    )
    add("--group-id", metavar="COLUMN", help="column of ids in the --groups table")
    add(
        "--glyph",
        action="append",
        default=[],
        metavar="ID[=SHAPE]",
        help=f"draw an id large and with its name, in one of the shapes {', '.join(GLYPHS)}",
    )
    add(
        "--change-bins",
        type=_percents,
        default=CHANGE_BINS,
        metavar="P,P,...",
        help="edges of the bins of relative change, in percent, symmetric about 0 (default 10,20,50)",
    )
    add("--view", action="store_true", help="serve the frames on loopback until Ctrl-C, starting with the first one")
    add("--open", action="store_true", help="like --view, and open a browser tab")
    add("--port", type=int, default=0, help="port for --view (default: a free one)")


def _add_following(parser: Parser) -> None:
    """Add options for following a growing source."""
    add = parser.add_argument_group("following").add_argument
    add(
        "--follow",
        action="store_true",
        help="wait for more rows until Ctrl-C, from a growing CSV file, a folder to which CSV or Parquet files are added, or a stream: "
        + ", ".join(shape for scheme, shape in SHAPES.items() if scheme not in ("rediss", "wss")),
    )
    add(
        "--settle",
        type=duration_s,
        metavar="TIME",
        help=f"how long to wait without a new row before the last time is complete, such as 500ms or 1m (default {SETTLE_S:g}s)",
    )
    add(
        "--checkpoint",
        metavar="DIR",
        help="run as one stream, with checkpoints in this folder or at this URL of an object store, which all workers share. A job that starts "
        "again, also by --restarts after a worker has died, continues from the newest",
    )


def _add_sample(parser: Parser) -> None:
    """Add options for the generated market."""
    add = parser.add_argument_group("the generated market").add_argument
    add("--sample-ids", type=int, default=240, metavar="N", help="number of stocks (default %(default)s)")
    add("--sample-days", type=int, default=1000, metavar="N", help="number of trading days (default %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="random seed (default %(default)s)")


def _check_options(parser: Parser, options: argparse.Namespace) -> None:
    """End the command if options cannot be combined."""
    if options.settle is not None and not options.follow:
        parser.error("--settle is for --follow")
    if options.checkpoint is not None:
        if not options.follow:
            parser.error("--checkpoint is for --follow")
        if options.overwrite:
            parser.error(
                "--overwrite would start over whenever the job resumes from its --checkpoint; remove the frames and the checkpoints instead"
            )
    if options.follow and len(options.file) != 1:
        parser.error("--follow needs exactly one file, folder, glob or stream")
    for file in options.file:
        # Without --follow, an HTTP URL refers to a file.
        why = why_not_followed(file) if options.follow or file.startswith("amqp") else None
        if why is not None:
            parser.error(f"{named(file)}: {why}")
    if any(map(is_stream, options.file)):
        if not options.follow:
            parser.error(f"{named(options.file[0])} is a stream: --follow it")
        if options.delimiter or options.null:
            parser.error("--delimiter and --null are of files, not of streams")
    if options.max_iter < 1 or not options.tol >= 0:
        parser.error("--max-iter must be at least 1, --tol at least 0")
    if options.align == "common" and options.follow:
        parser.error(
            "--align common wants all windows at once, and --follow does not have them: align to a FILE, such as the common.csv that a "
            "run with --align common leaves"
        )
    if options.key_every < 1:
        parser.error("--key-every must be at least 1")
    if not 0 <= options.port < 65536:
        parser.error("--port is from 0 to 65535")


def _glyphs(parser: Parser, given: Sequence[str]) -> dict[str, str]:
    """Return the shape of each id to draw large."""
    glyphs: dict[str, str] = {}
    for text in given:
        name, _, glyph = text.partition("=")
        if (glyph or "star") not in GLYPHS:
            parser.error(f"--glyph {text}: a shape is one of {', '.join(GLYPHS)}")
        glyphs[name] = glyph or "star"
    return glyphs


def _percents(text: str) -> tuple[float, ...]:
    try:
        edges = tuple(float(word) for word in text.split(","))
        ChangeBins(edges)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return edges
