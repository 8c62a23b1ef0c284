"""`tidemill.run`: a function on new workers, from a script or a notebook.

The workers are new processes (never forks of this one), joined to a job of their own. Each gets the function by
cloudpickle through its standard input, which also is its lifeline: when it closes, because this process has ended in
whatever way, the worker ends. Results come back through another pipe, and what workers print appears here, line by line.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from tidemill._errors import PeerFailed, WorkerLost
from tidemill._job import OF_A_WORKER
from tidemill._needs import needed
from tidemill._tidemill import kernel_cpus

R = TypeVar("R")

#: How long the others may take to end after one has failed, in seconds: they hear of it within two.
_GRACE_S = 5.0
#: How long to read on what a dead worker's own children may still write.
_DRAIN_S = 0.5
_LENGTH = struct.Struct("<Q")
_LIBRARY_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class RemoteTraceback(Exception):
    """The traceback of an exception in the worker where it was raised; the ``__cause__`` of what `run` raises."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank, self.text = rank, text

    def __str__(self) -> str:
        return f"\nin worker {self.rank}:\n{self.text}"


def run(
    fn: Callable[..., R],
    *args: Any,
    workers: int = 4,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    transport: str | None = None,
    memory: str | int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> list[R]:
    """Runs a function on new workers and returns their results. Needs cloudpickle (``pip install "tidemill[run]"``).

    Parameters
    ----------
    fn : callable
        What every worker runs, ``fn(*args, **kwargs)``. It may be defined in a script or a notebook, and reaches the
        other workers through ``tidemill.init().comm`` or `tidemill.mpi`.
    *args
        Positional arguments, the same for every worker.
    workers : int, default=4
        How many workers to start on this host.
    kwargs : mapping, optional
        Keyword arguments, the same for every worker.
    threads : int, optional
        Threads of numerical libraries in each worker; default the worker's share of the cores.
    transport : {"auto", "shm", "tcp"}, optional
        How the workers reach each other.
    memory : str or int, optional
        Memory of each worker's queries and exchanges, such as ``"2GiB"`` or in bytes, or ``"none"`` for no limit: beyond it they spill
        to disk. By default ``TIDEMILL_MEMORY``, else four fifths of the machine's, shared among the workers.
    spill_dir : path, optional
        Where they spill to; by default ``TIDEMILL_SPILL_DIR``, else the system's folder for temporary files.

    Returns
    -------
    list
        What each worker returned, by rank.

    Raises
    ------
    Exception
        What the function raised, if it raised on a worker: the exception where the trouble began, with its rank and
        traceback in a `RemoteTraceback` as its cause. `DataSetError` if the function, its arguments or its result has a DataSet in it,
        which belongs to the process that made it. `PeerFailed` if it cannot be pickled or is no `Exception`
        (``sys.exit``).
    WorkerLost
        If a worker's process ended without a result. The others are stopped; nothing hangs.

    Examples
    --------
    >>> import tidemill as tm
    >>> def ranks_before(offset):
    ...     comm = tm.init().comm
    ...     return comm.scan(1) + offset
    >>> tm.run(ranks_before, 10, workers=3)
    [11, 12, 13]
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    settings = _settings(memory, spill_dir)
    cloudpickle = needed("cloudpickle", "tidemill.run")
    payload = cloudpickle.dumps((fn, args, dict(kwargs or {})), protocol=5)
    with _Workers(workers, threads, transport, settings) as started:
        started.give(payload)
        return started.results()


def _settings(memory: str | int | None, spill_dir: str | os.PathLike[str] | None) -> dict[str, str]:
    """Settings of the workers, as variables."""
    settings: dict[str, str] = {}
    if memory is not None:
        from tidemill.dataset._engine import bytes_of

        text = str(memory)
        try:
            if isinstance(memory, bool) or (text != "none" and bytes_of(text) <= 0):
                raise ValueError(text)
        except ValueError:
            raise ValueError(f'memory is a size such as "512MiB" or "2GiB", or "none", not {memory!r}') from None
        settings["TIDEMILL_MEMORY"] = text
    if spill_dir is not None:
        settings["TIDEMILL_SPILL_DIR"] = os.fspath(Path(spill_dir).absolute())
    return settings


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], results: IO[bytes]) -> None:
        self.rank, self.process, self.pipe = rank, process, results
        self.received = bytearray()
        self.answer: tuple[Any, ...] | None = None
        self.lines = {1: b"", 2: b""}

    @property
    def is_over(self) -> bool:
        """Whether there is a result, or none will come."""
        return self.answer is not None or self.pipe.closed

    def take_answer(self) -> None:
        """Looks whether the result is there whole."""
        if self.answer is None and len(self.received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.received)
            if len(self.received) >= _LENGTH.size + length:
                self.answer = pickle.loads(memoryview(self.received)[_LENGTH.size : _LENGTH.size + length])


class _Workers:
    """The workers of one call: started on entry, gone on exit."""

    def __init__(self, count: int, threads: int | None, transport: str | None, settings: Mapping[str, str]) -> None:
        self.count, self.threads, self.transport, self.settings = count, threads, transport, settings
        self.all: list[_Worker] = []
        self.selector = selectors.DefaultSelector()

    def __enter__(self) -> _Workers:
        listener = socket.create_server(("127.0.0.1", 0))
        try:
            common = self._environment(listener)
            for rank in range(self.count):
                self._start(rank, common, listener if rank == 0 else None)
        except BaseException:
            self._stop()
            raise
        finally:
            listener.close()
        return self

    def __exit__(self, kind: Any, error: Any, frames: Any) -> None:
        self._stop()

    def _environment(self, listener: socket.socket) -> dict[str, str]:
        threads = self.threads or max(kernel_cpus() // self.count, 1)
        # What says who this process is in a job of its own is not for the new workers; settings are.
        environment = {key: value for key, value in os.environ.items() if key not in OF_A_WORKER}
        for name in _LIBRARY_THREADS:
            environment.setdefault(name, str(threads))
        host, port = listener.getsockname()[:2]
        environment |= {
            "PYTHONUNBUFFERED": "1",
            "TIDEMILL_SIZE": str(self.count),
            "TIDEMILL_LOCAL_SIZE": str(self.count),
            "TIDEMILL_JOB": secrets.token_hex(8),
            "TIDEMILL_SECRET": secrets.token_hex(32),
            "TIDEMILL_ROOT": f"{host}:{port}",
            "TIDEMILL_THREADS": str(threads),
        }
        if self.transport is not None:
            environment["TIDEMILL_TRANSPORT"] = self.transport
        return {**environment, **self.settings}

    def _start(self, rank: int, common: Mapping[str, str], listener: socket.socket | None) -> None:
        environment = {**common, "TIDEMILL_RANK": str(rank), "TIDEMILL_LOCAL_RANK": str(rank)}
        results, theirs = os.pipe()
        inherited = [theirs]
        if listener is not None:
            environment["TIDEMILL_LISTEN_FD"] = str(listener.fileno())
            inherited.append(listener.fileno())
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidemill._worker", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_with_path(environment),
                pass_fds=inherited,
                # Ctrl-C is this process's to handle: it stops the workers.
                start_new_session=True,
            )
        except BaseException:
            os.close(results)
            raise
        finally:
            os.close(theirs)
        worker = _Worker(rank, process, os.fdopen(results, "rb", buffering=0))
        self.all.append(worker)
        self.selector.register(worker.pipe, selectors.EVENT_READ, (worker, 0))
        for number, pipe in ((1, process.stdout), (2, process.stderr)):
            assert pipe is not None
            self.selector.register(pipe, selectors.EVENT_READ, (worker, number))

    def give(self, payload: bytes) -> None:
        """Sends the function to every worker, whose standard input stays open afterwards."""
        message = pickle.dumps((list(sys.path), payload), protocol=5)
        for worker in self.all:
            assert worker.process.stdin is not None
            # A worker that is gone already is noticed when its result is missing.
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.write(_LENGTH.pack(len(message)) + message)
                worker.process.stdin.flush()

    def results(self) -> list[Any]:
        """Waits for all workers; their results, or the exception where trouble began."""
        deadline: float | None = None
        while not all(worker.is_over for worker in self.all):
            timeout = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and timeout <= 0:
                break
            self._read(timeout)
            if deadline is None and any(self._has_failed(worker) for worker in self.all):
                deadline = time.monotonic() + _GRACE_S
        self._finish_output()
        return self._judge()

    def _has_failed(self, worker: _Worker) -> bool:
        if worker.answer is not None:
            return bool(worker.answer[0] != "result")
        return worker.pipe.closed

    def _read(self, timeout: float | None) -> None:
        for key, _ in self.selector.select(timeout):
            worker, number = key.data
            data = os.read(key.fd, 1 << 16)
            if number:
                self._show(worker, number, data)
            else:
                worker.received += data
                worker.take_answer()
            if not data:
                self.selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]

    def _show(self, worker: _Worker, number: int, data: bytes) -> None:
        """Prints whole lines with the rank in front, where this process prints."""
        *lines, rest = (worker.lines[number] + data).split(b"\n")
        if not data and rest:
            lines, rest = [*lines, rest], b""
        worker.lines[number] = rest
        target = sys.stdout if number == 1 else sys.stderr
        for line in lines:
            target.write(f"[{worker.rank}] {line.decode('utf-8', 'replace')}\n")
        if lines:
            target.flush()

    def _finish_output(self) -> None:
        """Reads what workers that are over have printed last."""
        for worker in self.all:
            if worker.process.stdin is not None:
                with contextlib.suppress(OSError):
                    worker.process.stdin.close()
        end = time.monotonic() + _DRAIN_S
        while self.selector.get_map() and (left := end - time.monotonic()) > 0:
            self._read(left)

    def _judge(self) -> list[Any]:
        errors = [(w.rank, *w.answer[1:]) for w in self.all if w.answer is not None and w.answer[0] == "error"]
        silent = [worker for worker in self.all if worker.answer is None]
        # Trouble began where an exception is no consequence of another worker's; a lost worker explains all the rest.
        origins = [error for error in errors if not isinstance(_unpickled(error[1]), (PeerFailed, WorkerLost))]
        if not origins and silent:
            dead = [worker for worker in silent if worker.pipe.closed] or silent
            raise WorkerLost(_how_it_ended(dead[0]), dead[0].rank)
        if origins or errors:
            rank, pickled, text = (origins or errors)[0]
            error = _unpickled(pickled)
            # What would end this process too, such as SystemExit, is told and not done.
            if not isinstance(error, Exception):
                raise PeerFailed(f"worker {rank} failed:\n{text}", rank, text)
            raise error from RemoteTraceback(rank, text)
        return [pickle.loads(worker.answer[1]) for worker in self.all if worker.answer is not None]

    def _stop(self) -> None:
        """Ends whoever is left: first by closing the lifeline, then by force."""
        for worker in self.all:
            if worker.process.stdin is not None:
                with contextlib.suppress(OSError):
                    worker.process.stdin.close()
        end = time.monotonic() + _GRACE_S
        for worker in self.all:
            try:
                worker.process.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                pass
            except BaseException:
                end = 0
        for worker in self.all:
            if worker.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGKILL)
                worker.process.wait()
            for pipe in (worker.pipe, worker.process.stdout, worker.process.stderr):
                if pipe is not None:
                    pipe.close()
        self.selector.close()


def _with_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which the workers find this very package."""
    package = str(Path(__file__).absolute().parent.parent)
    before = environment.get("PYTHONPATH", "")
    known = before.split(os.pathsep) if before else []
    return {**environment, "PYTHONPATH": os.pathsep.join([package, *(p for p in known if p != package)])}


def _unpickled(pickled: bytes | None) -> BaseException | None:
    if pickled is None:
        return None
    try:
        error = pickle.loads(pickled)
    except Exception:  # its class may be known to the worker alone
        return None
    return error if isinstance(error, BaseException) else None


def _how_it_ended(worker: _Worker) -> str:
    try:
        code = worker.process.wait(1)
    except subprocess.TimeoutExpired:
        return f"worker {worker.rank} gave no result and does not end"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"worker {worker.rank} was killed by {name} before it gave a result"
    return f"worker {worker.rank} ended with exit code {code} before it gave a result"
