"""The console script ``tidemill``: passes its arguments to the launcher, which is native code."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from tidemill._tidemill import launch_main

#: Commands that run without workers: they inspect jobs or files.
_NO_JOBS = ("balance", "checkpoints", "drain", "hosts", "scale", "simulate", "stop", "top", "view", "why")

#: Options with which workers run one of these commands after all.
_JOB_OPTIONS = {"simulate": "--validate"}


def main(argv: list[str] | None = None) -> int:
    """Run the ``tidemill`` command.

    Parameters
    ----------
    argv : list of str, optional
        Arguments without the name of the command; by default ``sys.argv[1:]``.

    Returns
    -------
    int
        The exit code: that of the first worker that failed (128 + its signal if one killed it), 126 or 127 when the
        program cannot be started, 2 for a wrong command line, else 0.
    """
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in _NO_JOBS and _JOB_OPTIONS.get(words[0]) not in words:
        app = importlib.import_module(f"tidemill.apps.{words[0]}")
        try:
            return int(app.main(words[1:]))
        except BrokenPipeError:
            # The reader of the output (such as `| head`) has closed it. The interpreter must not fail to flush the
            # rest, either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 128 + signal.SIGPIPE
    return launch_main(["tidemill", *words], sys.executable)
