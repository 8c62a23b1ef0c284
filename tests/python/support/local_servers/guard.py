"""Runs a server as long as standard input is open: ``python guard.py COMMAND...``

The process that runs this holds the other end of the pipe, which closes even if that process is killed. Then, or when
the server has ended, everything that the server has started is killed, too, including daemons. SIGTERM is passed on to
the server. The exit code is the server's, or 128 plus the signal's number.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run `command` and return the exit code."""
    libc = ctypes.CDLL(None)
    # Orphans of the server become children of this process, which finds and kills them.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # If this process is killed, the server ends as well.
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    waiting = select.poll()
    waiting.register(sys.stdin, select.POLLHUP)
    waiting.register(os.pidfd_open(server.pid), select.POLLIN)
    waiting.poll()
    server.poll()  # before the others, so that its exit code is not mistaken for one of theirs
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in Path("/proc/thread-self/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
    code = server.returncode if server.returncode is not None else -signal.SIGKILL
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
