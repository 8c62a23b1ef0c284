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

#: What columns are, each named by an option.
ROLES = ("id", "time", "value", "cap", "shares", "volume", "split", "split_shares", "price")
#: Seconds without a row after which the last time is over.
SETTLE_S = 2.0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; what makes no sense ends the command on every rank."""
    parser = Parser(
        prog="tidemill series",
        description="Show time series, such as a stock market, as points in space that move: near each other is what moves alike.",
        epilog="LENGTH: 250d (days that have data: trading days), 500r (rows: times of the data), 4w, 6mo, 1y (by the calendar)",
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
    """What is read, and where frames go."""
    add = parser.add_argument
    add("file", nargs="*", help="CSV (.gz, .zst, ... too), Parquet, Arrow or JSON lines, a folder or a glob; a row for each id and time. "
        "Left out: a generated market")  # fmt: skip
    add(
        "--window",
        default="250d",
        metavar="LENGTH",
        help="length of the time window of each frame (default %(default)s)",
    )
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
    add("--title", help="title of the page (default: the file name)")


def _add_columns(parser: Parser) -> None:
    """Which column is what, and how fields of CSV are told apart."""
    add = parser.add_argument_group("columns", "found by their usual names, or:").add_argument
    for role, what in zip(
        ROLES,
        ("which series", "when", "its value", "what it is worth, for weights (else price x shares, else price x volume)",
         "shares outstanding", "traded pieces", "new shares for an old one, in the row of the first day at the new price",
         "a second column of splits, of shares rather than prices (FACSHR of CRSP): rows in which it differs from --split are left out",
         "what was paid for a piece (the value, or beside an adjusted one 'close')"),
        strict=True,
    ):  # fmt: skip
        add(f"--{role.replace('_', '-')}", metavar="COLUMN", help=what)
    add("--delimiter", metavar="C", help="what separates fields of CSV (default: comma, of .tsv tab)")
    add(
        "--null",
        metavar="TEXT",
        action="append",
        help="a value of CSV that stands for null, such as NA; may be given several times",
    )


def _add_cleaning(parser: Parser) -> None:
    """How rows are cleaned."""
    add = parser.add_argument_group("cleaning").add_argument
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


def _add_embedding(parser: Parser) -> None:
    """How windows are measured, embedded and aligned."""
    add = parser.add_argument_group("distances and embedding").add_argument
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
    add("--align", default="previous", metavar="{previous,first,common,FILE}", help="what frames are turned to: the frame before, the "
        "first one, the ids that all windows have, embedded over all times, or a table of ids and their x, y, z (default %(default)s)")  # fmt: skip
    add("--annealing", action="store_true", help="deterministic annealing where no solution is started from")
    add("--max-iter", type=int, default=300, metavar="N", help="maximum iterations per window (default %(default)s)")
    add(
        "--tol",
        type=float,
        default=2e-5,
        metavar="X",
        help="stop when the stress falls by less than this part (default %(default)s)",
    )


def _add_shown(parser: Parser) -> None:
    """What the page shows."""
    add = parser.add_argument_group("what is shown").add_argument
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
    add("--port", type=int, default=0, help="port for --view (default: a free one)")


def _add_following(parser: Parser) -> None:
    """How a source that grows is followed."""
    add = parser.add_argument_group("following").add_argument
    add(
        "--follow",
        action="store_true",
        help="wait for more rows, until Ctrl-C: a CSV file that grows, a folder that CSV or Parquet files come into, or a stream: "
        + ", ".join(shape for scheme, shape in SHAPES.items() if scheme not in ("rediss", "wss")),
    )
    add(
        "--settle",
        type=duration_s,
        metavar="TIME",
        help=f"how long no row may come until the last time is over, such as 500ms or 1m (default {SETTLE_S:g}s)",
    )


def _add_sample(parser: Parser) -> None:
    """What the generated market is like."""
    add = parser.add_argument_group("the generated market").add_argument
    add("--sample-ids", type=int, default=240, metavar="N", help="(default %(default)s)")
    add("--sample-days", type=int, default=1000, metavar="N", help="(default %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="(default %(default)s)")


def _check_options(parser: Parser, options: argparse.Namespace) -> None:
    """End the command where options do not go together."""
    if options.settle is not None and not options.follow:
        parser.error("--settle is for --follow")
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
    """The shape of each id that is drawn large."""
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
