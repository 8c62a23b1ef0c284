"""``tidemill view``: show frames of moving points, or a library of plots, in the browser."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import signal
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from tidemill.viz import FrameError, Library, Server, export_html
from tidemill.viz._demo import write_market
from tidemill.viz._format import INDEX

__all__ = ["main"]

_ENDING = (signal.SIGINT, signal.SIGTERM)
#: Normally, ending takes half a second. After this much time there must be a bug: all threads print their stacks, and
#: the process ends.
_END_S_MAX = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until Ctrl-C or SIGTERM; the exit code is 0, or 1 if there is nothing to show, with a message
    that says why.
    """
    # No worker runs this, so argparse itself reports errors in the command line.
    parser = argparse.ArgumentParser(
        prog="tidemill view", description="Show a folder of frames, or a library of plots, in the browser."
    )
    add = parser.add_argument
    add(
        "folder",
        type=Path,
        nargs="?",
        help="frames written by tidemill.viz.FrameWriter or another command; may still be growing",
    )
    add("--library", type=Path, metavar="DIR", help="show a library of plots instead; created if missing")
    add("--export", type=Path, metavar="FILE", help="write the frames and the page to one HTML file, and exit")
    add("--plot", metavar="ID", help="plot of the library for --export, with its versions")
    add("--demo", action="store_true", help="write a generated market into the folder first")
    add("--points", type=int, default=600, metavar="N", help="points of the generated market (default %(default)s)")
    add("--frames", type=int, default=120, metavar="N", help="frames of the generated market (default %(default)s)")
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default %(default)s); any address other than loopback requires --token, --token-file or TIDEMILL_TOKEN",
    )
    add("--port", type=int, default=0, help="port to listen on (default: a free one)")
    add(
        "--token",
        help="token that the URL must contain, at least 16 characters (default: TIDEMILL_TOKEN from the environment, else random). Other users "
        "of this machine can see it in the process list; prefer --token-file or TIDEMILL_TOKEN",
    )
    add("--token-file", type=Path, metavar="FILE", help="file that contains the token")
    add("--open", action="store_true", help="open a browser tab")
    options = parser.parse_args(argv)
    if (options.folder is None) == (options.library is None):
        parser.error("give a folder of frames, or --library DIR")
    if options.library is not None and options.demo:
        parser.error("--demo wants a folder of frames")
    if (options.plot is not None) != (options.library is not None and options.export is not None):
        parser.error(
            "of a library one plot can be exported: --library DIR --plot ID --export FILE, the ID as in the plot's URL"
        )
    if options.token is not None and options.token_file is not None:
        parser.error("give --token or --token-file")
    if options.points < 2 or options.frames < 1:
        parser.error("--points must be at least 2, --frames at least 1")
    if not 0 <= options.port < 65536:
        parser.error("--port is from 0 to 65535")
    try:
        if options.demo:
            if (options.folder / INDEX).exists():
                raise FrameError(f"{options.folder} has frames already; leave out --demo to see them")
            write_market(options.folder, options.points, options.frames, mode="x")
        if options.plot is not None:
            Library(options.library).export_html(options.plot, options.export)
            print(f"{options.export} has plot {options.plot} in it, with its versions; any browser opens it")
            return 0
        if options.export:
            export_html(options.folder, options.export)
            print(f"{options.export} has {options.folder} in it; any browser opens it")
            return 0
        what = options.folder if options.library is None else Library(options.library)
        server = Server(what, host=options.host, port=options.port, token=_token(options))
    except (FrameError, ValueError, OSError, KeyError) as error:
        print(f"tidemill view: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        _be_interrupted()
        with server:
            print(f"{options.folder or options.library} is at {server.url}", flush=True)
            print("Ctrl-C ends it", flush=True)
            if options.open:
                webbrowser.open(server.url)
            server.wait()
    return 0


def _token(options: argparse.Namespace) -> str | None:
    """Return the token, given in any way."""
    if options.token_file is not None:
        return str(options.token_file.read_text().strip())
    return options.token or os.environ.get("TIDEMILL_TOKEN") or None


def _be_interrupted() -> None:
    """Let Ctrl-C and SIGTERM interrupt the program from now on, and a second one end the process for certain.

    This works even if the parent process ignores or blocks SIGINT, as scripts do for background processes: a signal
    sent to this process is meant for this server.
    """

    def interrupt(*_: object) -> None:
        for one in _ENDING:
            signal.signal(one, signal.SIG_DFL)
        faulthandler.dump_traceback_later(_END_S_MAX, exit=True)
        raise KeyboardInterrupt

    for one in _ENDING:
        signal.signal(one, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
