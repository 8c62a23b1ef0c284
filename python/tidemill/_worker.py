"""A worker of `tidemill.run`: gets a function on standard input, runs it, and sends what came of it down a pipe."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import threading
import traceback
from typing import Any

_LENGTH = struct.Struct("<Q")


def main() -> int:
    """Runs the function that `tidemill.run` gives this process."""
    results = int(sys.argv[1])
    os.set_inheritable(results, False)
    lifeline = os.dup(0)
    with open(lifeline, "rb", closefd=False) as stream:
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        path, payload = pickle.loads(stream.read(length))
    # The function must not read what is not for it.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with_parent, args=(lifeline,), name="tidemill-lifeline", daemon=True).start()
    sys.path[:] = path
    sys.argv = [""]
    code = 0
    try:
        from tidemill._job import init

        job = init()
        function, args, kwargs = pickle.loads(payload)
        answer: tuple[Any, ...] = ("result", _dumped(function(*args, **kwargs)))
    except BaseException as error:
        text = traceback.format_exc()
        answer = "error", _pickled(error), text
        code = 1
        _tell_others(text, error)
    _send(results, pickle.dumps(answer, protocol=5))
    if code:
        # The others hear of the failure; nobody waits for this worker's goodbye.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    del job
    return code


def _end_with_parent(lifeline: int) -> None:
    """Ends this process when the parent's end of the pipe closes and the function is still running."""
    while os.read(lifeline, 4096):
        pass
    if threading.main_thread().is_alive() and not _done.wait(2.0):
        os._exit(1)


_done = threading.Event()


def _tell_others(text: str, error: BaseException) -> None:
    from tidemill import _job
    from tidemill._errors import PeerFailed, WorkerLost

    if not isinstance(error, (PeerFailed, WorkerLost)):
        _job.tell_others(text)


def _dumped(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        import cloudpickle

        found: bytes = cloudpickle.dumps(value, protocol=5)
        return found


def _pickled(error: BaseException) -> bytes | None:
    """The exception, if it can travel and come back as it was."""
    try:
        found = _dumped(error)
        pickle.loads(found)
    except Exception:
        return None
    return found


def _send(results: int, answer: bytes) -> None:
    _done.set()
    with open(results, "wb") as pipe:
        pipe.write(_LENGTH.pack(len(answer)))
        pipe.write(answer)


if __name__ == "__main__":
    sys.exit(main())
