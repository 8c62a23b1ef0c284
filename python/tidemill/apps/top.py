"""``tidemill top``: show the streams that run on this machine."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from tidemill._streaming import status as _status
from tidemill.apps._arguments import Parser, duration_s
from tidemill.apps._plain import plain
from tidemill.apps._top_buckets import bucket_lines
from tidemill.apps._top_cluster import Cluster, ClusterError, read_cluster
from tidemill.apps._top_collectives import late_copies, round_sentences
from tidemill.apps._top_links import links_lines
from tidemill.apps._top_looks import QUIET_S, Look, Status, grouped, lacks_rates, looked, running_s
from tidemill.apps._top_stream import elsewhere, heading, stream_lines
from tidemill.apps._top_text import Screen
from tidemill.apps._top_why import why_lines

__all__ = ["main"]

#: Displays of a job's workers, and of worker 0's report about hosts and links.
_VIEWS: dict[str, Callable[[list[Status], Cluster, Screen], list[str]]] = {
    "why": lambda job, cluster, screen: why_lines(
        cluster, running_s(job[0]), screen, late_copies(job, cluster), round_sentences(job)
    ),
    "links": lambda _, cluster, screen: links_lines(cluster, screen),
    "buckets": lambda _, cluster, screen: bucket_lines(cluster, screen),
}
#: A job measures for some seconds before worker 0 has a report.
_FIRST_REPORT_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 with ``--once`` or ``--json`` if no stream runs."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.json and options.every is not None:
        parser.error("--json looks once, so it does not allow --every")
    if options.json and options.workers:
        parser.error("--json lists each worker anyway, so it does not allow --workers")
    if options.view and options.workers:
        parser.error(f"--workers is of the usual display, so --{options.view} does not allow it")
    every = 1.0 if options.every is None else options.every
    if not 0.1 <= every <= 3600:
        parser.error("--every is from 0.1 to 3600 seconds")
    told = _ordered(_status.jobs())
    if options.json:
        print(json.dumps(told))
        return 0 if told else 1
    looks, begun = looked({}, told), time.monotonic()
    try:
        while True:
            # Worker 0's report already contains rates; other rates are differences between two samples.
            if not options.view:
                time.sleep(every)
                looks = looked(looks, _status.jobs())
                if options.once and lacks_rates(looks) and time.monotonic() - begun < every + QUIET_S:
                    continue
            width, height = shutil.get_terminal_size((120, 24))
            screen = Screen(width, None if options.once else height - 1, _shows_blocks())
            lines = [line for job in grouped(looks) for line in _lines(job, options.view, options.workers, screen)]
            lines = [plain(line) for line in lines]
            if options.once:
                print("\n".join(lines) if lines else "no stream runs on this machine")
                return 0 if lines else 1
            shown = (lines or ["no stream runs on this machine; Ctrl-C ends this"])[: height - 1]
            # From the top left corner, clearing the rest of each line, and everything below.
            sys.stdout.write("\x1b[H" + "".join(f"{line[:width]}\x1b[K\n" for line in shown) + "\x1b[J")
            sys.stdout.flush()
            if options.view:
                time.sleep(every)
                looks = looked(looks, _status.jobs())
    except KeyboardInterrupt:
        return 0


def _parser() -> Parser:
    parser = Parser(
        prog="tidemill top",
        description="Show the streams that run on this machine: rates, queues, backpressure, event time, checkpoints. On the machine of a "
        "job's worker 0, this includes all of its workers; on other machines, only the local ones.",
    )
    parser.add_argument("--every", type=duration_s, metavar="TIME", help="refresh interval, such as 500ms (default 1s)")
    parser.add_argument("--once", action="store_true", help="take two samples, print the difference, and exit")
    parser.add_argument("--workers", action="store_true", help="also show each worker")
    views = parser.add_mutually_exclusive_group()
    for view, text in (
        ("why", "show what holds the job up, with evidence and what would help, and what its controller has decided"),
        ("links", "show what hosts send to each other, and where senders wait"),
        ("buckets", "show how work is spread over buckets of keys, and the heaviest keys"),
    ):
        views.add_argument(f"--{view}", dest="view", action="store_const", const=view, help=text)
    views.add_argument("--json", action="store_true", help="print one sample of the metrics as JSON and exit")
    return parser


def _ordered(told: Iterable[Status]) -> list[Status]:
    """Return workers by job, those of a job by number."""
    return [status for job in grouped(looked({}, told)) for _, status in job]


def _shows_blocks() -> bool:
    """Return whether the output has characters for heat maps."""
    try:
        "·▁█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _lines(job: list[Look], view: str | None, each_worker: bool, screen: Screen) -> list[str]:
    """Return the display of a job."""
    if view is None:
        return stream_lines(job, each_worker)
    return [*_view([status for _, status in job], view, screen), ""]


def _view(job: list[Status], view: str, screen: Screen) -> list[str]:
    """Return a display of what worker 0 reports about hosts and links."""
    first, lines = job[0], [heading(job), *elsewhere(job)]
    if first["worker"] != 0:
        return lines
    try:
        cluster = read_cluster(first.get("cluster"))
    except ClusterError as error:
        return [*lines, f"  {error}"]
    if cluster is not None and cluster.span_s > 0:
        return lines + _VIEWS[view](job, cluster, screen)
    if running_s(first) < _FIRST_REPORT_S:
        why = "still measuring: the first report comes some seconds after the start"
    else:
        why = "this job does not measure its hosts, links and buckets"
    return [*lines, f"  {why}"]


if __name__ == "__main__":
    sys.exit(main())
