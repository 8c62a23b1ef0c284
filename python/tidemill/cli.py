"""The console script ``tidemill``: hands its arguments to the launcher, which is native code."""

from __future__ import annotations

import sys

from tidemill._tidemill import launch_main


def main(argv: list[str] | None = None) -> int:
    """Run the ``tidemill`` command.

    Parameters
    ----------
    argv : list of str, optional
        Arguments without the name of the command; default ``sys.argv[1:]``.

    Returns
    -------
    int
        The exit code: that of the first worker that failed (128 + its signal if one killed it), 126 or 127 when the
        program cannot be started, 2 for a wrong command line, else 0.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["top"]:
        # No job: it looks at those that run.
        from tidemill.apps.top import main as top

        return top(words[1:])
    if words[:1] == ["view"]:
        # Nor is this one.
        from tidemill.apps.view import main as view

        return view(words[1:])
    return launch_main(["tidemill", *words], sys.executable)
