"""Joining the job, this worker's place in it, leaving it, and telling the others when this worker fails.

`join` is idempotent and runs when a communicator is first used. At the end of the program the worker leaves: queued
messages are sent, and the others learn that it is done. If an exception ends the program, in any thread, the others
learn that first: their blocked and later calls raise `PeerFailed` with its traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tidemill._duration import Duration, micros
from tidemill._errors import CommError

if TYPE_CHECKING:
    from tidemill import _tidemill

_STALL_WARNING_S = 10.0

_lock = threading.RLock()
_member: Member | None = None
_left = False


class Member:
    """One of the workers of the job: this process.

    Attributes
    ----------
    worker : Worker
        The native worker.
    process : int
        Id of the process that joined: a child made by `os.fork` is not part of the job.
    world, solo : Comm
        The native communicators of all workers, and of this one.
    rank, size : int
    """

    def __init__(self, worker: _tidemill.Worker) -> None:
        self.worker = worker
        self.process = os.getpid()
        self.world, self.solo = worker.world(), worker.solo()
        self.rank, self.size = self.world.Get_rank(), self.world.Get_size()


def join(transport: str | None = None, stall_warning: Duration | None = None) -> Member:
    """Join the job, or return the member that has already joined; see `tidemill.init`."""
    global _member
    with _lock:
        if _left:
            raise CommError("this process has left the job (MPI.Finalize) and cannot join it again")
        if _member is None:
            from tidemill import _tidemill

            if transport is None:
                transport = os.environ.get("TIDEMILL_TRANSPORT", "auto")
            if stall_warning is None:
                warn_after_s = _stall_warning()
            else:
                warn_after_s = micros(stall_warning, "stall_warning", ValueError) / 1_000_000
            enter = _tidemill.Worker.alone if _is_child_of_worker() else _tidemill.Worker.join
            _member = Member(enter(transport, os.environ.get("TIDEMILL_CONNECT", "on-demand"), warn_after_s))
            _watch(_member)
            _keep_from_children()
        return _member


def _stall_warning() -> float:
    text = os.environ.get("TIDEMILL_STALL_WARNING", str(_STALL_WARNING_S))
    try:
        return float(text)
    except ValueError:
        raise CommError(f"TIDEMILL_STALL_WARNING={text} must be a number of seconds; 0 turns warnings off") from None


#: Variables that identify a worker: those of `tidemill run`, and those of other launchers, which cannot be unset.
_OURS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "ROOT", "SECRET", "JOB", "LISTEN_FD")
_OTHERS = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_FD",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "MASTER_PORT",
)
_MARK = "TIDEMILL_JOINED"
#: Variables of one worker of one job. All others are settings, which also apply to programs that it starts.
OF_A_WORKER = frozenset(
    f"TIDEMILL_{name}"
    for name in (*_OURS, "BOOTSTRAP", "BOUND", "CRASH_DIR", "JOINED", "RESTART", "TERMINAL", "THREADS")
)


def _place() -> str:
    return " ".join(os.environ.get(name, "-") for name in _OTHERS)


def _keep_from_children() -> None:
    """Keep programs that this worker starts from taking its place in the job."""
    for name in _OURS:
        os.environ.pop(f"TIDEMILL_{name}", None)
    os.environ[_MARK] = f"{os.getpid()} {_place()}"


def _is_child_of_worker() -> bool:
    """Return whether a worker has joined with this environment, and this process is not that worker."""
    pid, _, place = os.environ.get(_MARK, "").partition(" ")
    return "TIDEMILL_RANK" not in os.environ and bool(pid) and pid != str(os.getpid()) and place == _place()


def current_rank() -> int:
    """Return this worker's rank in its job."""
    return join().rank


def current_size() -> int:
    """Return the number of workers of the job."""
    return join().size


def hosts() -> list[int]:
    """Return a number for each worker's host: the rank of the first worker on it."""
    workers = join().worker.workers()
    first: dict[Any, int] = {}
    return [first.setdefault(worker["host_id"], worker["rank"]) for worker in workers]


class Share(NamedTuple):
    """A worker's share of the CPUs of its host, which may run other workers, too.

    Attributes
    ----------
    cpus : int
        Number of CPUs that its affinity allows.
    workers : int
        Number of workers that may use some of these, including this one.
    place : int
        Index of this worker among them, from 0.
    room : int
        Threads that each worker can have so that every thread gets a CPU within the quota of the container. May be 0.
    threads : int
        Threads to use unless the user sets a number. At least 1.
    """

    cpus: int
    workers: int
    place: int
    room: int
    threads: int


#: Set to 1 by launchers that assign CPUs to each worker: Tidemill's and Open MPI's.
_BOUND = ("TIDEMILL_BOUND", "OMPI_MCA_orte_bound_at_launch")


def share() -> Share:
    """Return this worker's share of the CPUs of its host.

    In a job, all workers have reported where they may run. Before it is joined, the launcher's variables tell which
    workers share this host.
    """
    from tidemill import _tidemill

    if _member is not None:
        return Share(*_member.worker.share())
    return Share(*_tidemill.share_of_process(any(os.environ.get(name) == "1" for name in _BOUND)))


def chosen_threads(error: type[Exception]) -> int | None:
    """Return the number of threads in ``TIDEMILL_THREADS``; None if it is not set.

    Parameters
    ----------
    error : type
        Exception to raise if it is not a positive integer.
    """
    text = os.environ.get("TIDEMILL_THREADS", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise error(f"TIDEMILL_THREADS must be a positive integer, not {text!r}")
    return int(text)


def is_left() -> bool:
    """Return whether the job has been left."""
    return _left


def leave() -> None:
    """Leave the job, if it was joined. No communication is possible afterwards."""
    global _left
    with _lock:
        if _left:
            raise CommError("this process has already left the job")
        _left = True
        if _member is not None and _member.process == os.getpid():
            _member.worker.leave()


def abort(code: int, name: str) -> NoReturn:
    """End this process, and the whole job with it, at once."""
    member = join()
    where = "".join(traceback.format_stack(sys._getframe(2)))
    text = f"MPI_Abort({code}) was called on rank {member.rank} in {name}\n{where}"
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    member.worker.report_failure(text)
    member.worker.leave()
    os._exit(code & 0xFF or (1 if code else 0))


def tell_others(traceback_text: str) -> None:
    """Tell the other workers that this one's program has failed.

    A worker that is alone continues: in a notebook or at a prompt, only a thread or a line failed, and the next one may
    call Tidemill again.
    """
    if _member is not None and _member.process == os.getpid() and _member.size > 1:
        _member.worker.report_failure(traceback_text)


def _watch(member: Member) -> None:
    """Tell the others of an exception that ends this worker, and leave the job at its end."""
    from tidemill import _crash

    process = os.getpid()
    _crash.install(tell_others)
    earlier = threading.excepthook

    def thread_hook(args: Any) -> None:
        earlier(args)
        # The thread has ended along with whatever it was going to send; the others must not wait for that.
        if os.getpid() == process and args.exc_type is not SystemExit and not is_consequence(args.exc_value):
            tell_others("".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)))

    threading.excepthook = thread_hook
    atexit.register(_at_exit, process)
    member.worker.set_locator(_locate)


def is_consequence(error: BaseException | None) -> bool:
    """Return whether an error only reports that another worker failed."""
    from tidemill._errors import PeerFailed, WorkerLost

    return isinstance(error, (PeerFailed, WorkerLost))


def _at_exit(process: int) -> None:
    if os.getpid() == process and not _left:
        # The program has ended: Ctrl-C only ends the wait for others.
        with contextlib.suppress(KeyboardInterrupt):
            leave()


def _locate() -> str | None:
    """Return where the main thread is, outside of this package: ``"app.py:88"``."""
    # No imports here: a native thread calls this, possibly while the interpreter is ending.
    package = __file__.rpartition(os.sep)[0] + os.sep
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((package, "<frozen")):
            return f"{file.rpartition(os.sep)[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return None
