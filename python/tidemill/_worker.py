"""A worker of `tidemill.run` and `tidemill.Workers`: reads functions from standard input, and writes their results to a
pipe.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import sys
import threading
import traceback
from typing import IO, Any

from tidemill._pickling import dumps

_LENGTH = struct.Struct("<Q")


def main() -> int:
    """Run the functions sent to this process, until its standard input closes or one of them is the last."""
    results = int(sys.argv[1])
    os.set_inheritable(results, False)
    lifeline = os.dup(0)
    # The function must not read input that is meant for this process.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    calls: queue.Queue[_Call | None] = queue.Queue()
    threading.Thread(target=_listen, args=(lifeline, calls), name="tidemill-lifeline", daemon=True).start()
    sys.argv = [""]
    with open(results, "wb") as pipe:
        while (call := calls.get()) is not None:
            path, payload, is_last = call
            sys.path[:] = path
            answer = _answer(payload, None if is_last else pipe)
            calls.task_done()
            if answer is not None:
                _send(pipe, answer)
                if answer[0] == "error":
                    # The others have already been told of the failure, and nobody waits for this worker to leave.
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(1)
            if is_last:
                break
    return 0


_Call = tuple[list[str], bytes | None, bool]


def _listen(lifeline: int, calls: queue.Queue[_Call | None]) -> None:
    """Receive calls, and end this process if the parent's end of the pipe closes while a function is running."""
    while (header := _read(lifeline, _LENGTH.size)) is not None:
        message = _read(lifeline, *_LENGTH.unpack(header))
        if message is None:
            break
        calls.put(pickle.loads(message))
    with calls.all_tasks_done:
        is_idle = calls.all_tasks_done.wait_for(lambda: calls.unfinished_tasks == 0, 2.0)
    if not is_idle and threading.main_thread().is_alive():
        os._exit(1)
    calls.put(None)


def _read(file: int, length: int) -> bytearray | None:
    """Read this many bytes from a pipe; empty if it closes first."""
    found = bytearray(length)
    view = memoryview(found)
    while view:
        count = os.readv(file, [view])
        if count == 0:
            return None
        view = view[count:]
    return found


def _answer(payload: bytes | None, pipe: IO[bytes] | None) -> tuple[Any, ...] | None:
    """Run a function, or only join the job; return the answer for the parent. With `pipe`, other functions will follow."""
    try:
        from tidemill import _job, _membership

        job = _job.init()
        if payload is None:
            return None
        function, args, kwargs = pickle.loads(payload)
        result = dumps(function(*args, **kwargs))
        if pipe is not None and job.size > 1 and not _membership.is_left():
            _send(pipe, ("returned",))
            # A function must be finished on all ranks before the next begins; ranks that are out of step fail here.
            job.comm.Barrier()
        return "result", result, not _membership.is_left()
    except BaseException as error:
        text = traceback.format_exc()
        answer = "error", _pickled(error), text
        _tell_others(text, error)
        return answer


def _tell_others(text: str, error: BaseException) -> None:
    from tidemill import _membership
    from tidemill._errors import PeerFailed, WorkerLost

    if not isinstance(error, (PeerFailed, WorkerLost)):
        _membership.tell_others(text)


def _pickled(error: BaseException) -> bytes | None:
    """Return the exception if it survives pickling unchanged."""
    try:
        found = dumps(error)
        pickle.loads(found)
    except Exception:
        return None
    return found


def _send(pipe: IO[bytes], answer: tuple[Any, ...]) -> None:
    message = pickle.dumps(answer, protocol=5)
    pipe.write(_LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


if __name__ == "__main__":
    sys.exit(main())
