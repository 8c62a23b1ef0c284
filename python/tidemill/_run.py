"""`tidemill.run` and `tidemill.Workers`: run functions on new workers, from a script or a notebook.

The workers are new processes (never forks of this one), joined to a job of their own. Each gets the function, pickled
by cloudpickle, through its standard input. This pipe also is its lifeline: when it closes, because this process has
ended in any way, the worker ends. Results come back through another pipe, and the workers' output appears here, line by
line.

`run` starts workers for one call. `Workers` keeps them for the next call as long as every rank returns. An exception on
one rank may leave the others in the middle of a collective, so it ends the processes, and the next call starts new
ones.
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
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, TypeVar

from tidemill._duration import Duration, micros
from tidemill._errors import CommError, PeerFailed, WorkerLost
from tidemill._membership import OF_A_WORKER
from tidemill._needs import needed
from tidemill._tidemill import kernel_cpus

R = TypeVar("R")

#: How long the others may take to end after one has failed, in seconds; they learn of it within two.
_GRACE_S = 5.0
#: How long to keep reading the output of a dead worker's own children.
_DRAIN_S = 0.5
_LENGTH = struct.Struct("<Q")
_LIBRARY_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class RemoteTraceback(Exception):
    """The traceback of an exception on the worker that raised it; the ``__cause__`` of the exception that `run` raises."""

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
    """Run a function on new workers and return their results. Needs cloudpickle (``pip install "tidemill[run]"``).

    Parameters
    ----------
    fn : callable
        Function that every worker calls, ``fn(*args, **kwargs)``. It may be defined in a script or a notebook, and
        reaches the other workers through ``tidemill.init().comm`` or `tidemill.mpi`.
    *args
        Positional arguments, the same for every worker.
    workers : int, default=4
        Number of workers to start on this host.
    kwargs : mapping, optional
        Keyword arguments, the same for every worker.
    threads : int, optional
        Threads of numerical libraries in each worker; by default the worker's share of the cores.
    transport : {"auto", "shm", "tcp"}, optional
        How the workers reach each other.
    memory : str or int, optional
        Memory for each worker's queries and exchanges, such as ``"2GiB"`` or a number of bytes, or ``"none"`` for no
        limit. Beyond it they spill to disk. By default ``TIDEMILL_MEMORY``, else four fifths of the machine's memory,
        shared among the workers.
    spill_dir : path, optional
        Folder to spill to; by default ``TIDEMILL_SPILL_DIR``, else the system's folder for temporary files.

    Returns
    -------
    list
        Each worker's result, by rank.

    Raises
    ------
    Exception
        The exception that the function raised on a worker: the first one, caused by a `RemoteTraceback` with its rank
        and traceback. `DataSetError` if the function, its arguments or its result contain a DataSet, which belongs to
        the process that made it. `PeerFailed` if the exception cannot be pickled or is not an `Exception`
        (``sys.exit``).
    TypeError
        If the function or its arguments cannot be pickled.
    WorkerLost
        If a worker's process ended without a result. The others are stopped; nothing hangs.

    See Also
    --------
    Workers : workers that are kept for several calls.

    Examples
    --------
    >>> import tidemill as tm
    >>> def ranks_before(offset):
    ...     comm = tm.init().comm
    ...     return comm.scan(1) + offset
    >>> tm.run(ranks_before, 10, workers=3)
    [11, 12, 13]
    """
    _check_count(workers)
    settings = _settings(memory, spill_dir)
    payload = _payload("tidemill.run", fn, args, kwargs)
    with _Processes(workers, threads, transport, settings) as started:
        started.give(payload, is_last=True)
        results = started.results()
        started.finish_output()
        return results


class Workers:
    """Workers that are kept, to run one function after another. Needs cloudpickle (``pip install "tidemill[run]"``).

    Starting a job takes about a second, most of it imports. ``Workers`` pays for that once; use it as a context
    manager, or end the processes with `close`. They also end when the object is garbage collected, and when this
    process ends. Workers that wait for the next call use no processor time.

    Parameters
    ----------
    size : int, default=4
        Number of workers to start on this host.
    threads : int, optional
        Threads of numerical libraries in each worker; by default the worker's share of the cores.
    transport : {"auto", "shm", "tcp"}, optional
        How the workers reach each other.
    memory : str or int, optional
        Memory for each worker's queries and exchanges, as in `tidemill.run`.
    spill_dir : path, optional
        Folder to spill to beyond it, as in `tidemill.run`.

    Attributes
    ----------
    size : int
        Number of workers.

    Raises
    ------
    ValueError
        If `size` is less than 1 or `memory` is not a size.

    Notes
    -----
    All functions run in the same processes and the same job: modules, global variables, the environment and caches are
    kept from one call to the next. Workers start with this process's environment and current folder; they follow its
    ``sys.path`` at each call. Output that workers print between two calls appears with the next one. A function must
    complete its requests and receive all messages sent to it: otherwise the next function would receive them.

    See Also
    --------
    run : the same for one function.

    Examples
    --------
    >>> import tidemill as tm
    >>> with tm.Workers(3) as workers:
    ...     print(workers.run(lambda: tm.init().rank))
    ...     print(workers.run(lambda n: tm.init().comm.allreduce(n), 5))
    [0, 1, 2]
    [15, 15, 15]
    """

    def __init__(
        self,
        size: int = 4,
        *,
        threads: int | None = None,
        transport: str | None = None,
        memory: str | int | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_count(size)
        needed("cloudpickle", "tidemill.Workers")
        self.size = size
        self._options = (threads, transport, _settings(memory, spill_dir))
        # Reentrant, so that a signal handler may close the workers during a call.
        self._lock = threading.RLock()
        self._is_running = False
        self._owner = os.getpid()
        self._is_closed = False
        #: Why no more functions can run here, and the rank of the worker that died.
        self._lost: tuple[str, int] | None = None
        self._processes: _Processes | None = None
        #: Ends the processes when this object is no longer referenced, and at the end of the program.
        self._end: weakref.finalize[..., Any] | None = None
        self._start()

    def run(
        self, fn: Callable[..., R], *args: Any, kwargs: Mapping[str, Any] | None = None, timeout: Duration | None = None
    ) -> list[R]:
        """Run a function on all workers and return their results. Calls from several threads take turns.

        After an exception, a timeout or Ctrl-C the processes are ended, since some may be waiting for others; the next
        call starts new ones, without the state of the old ones.

        Parameters
        ----------
        fn : callable
            Function that every worker calls, ``fn(*args, **kwargs)``, as in `tidemill.run`. Every rank must take part
            in the same collectives.
        *args
            Positional arguments, the same for every worker.
        kwargs : mapping, optional
            Keyword arguments, the same for every worker.
        timeout : str, number of seconds or timedelta, optional
            Time limit for the function, for example ``"1m"`` or 60; no limit by default.

        Returns
        -------
        list
            Each worker's result, by rank.

        Raises
        ------
        Exception
            The exception that the function raised, as in `tidemill.run`.
        TypeError
            If the function or its arguments cannot be pickled.
        ValueError
            If `timeout` is not a duration.
        TimeoutError
            If the function took longer than `timeout`; the message names the ranks that have not returned.
        WorkerLost
            If a worker's process has ended, in this call or before. You cannot use this object afterwards.
        CommError
            If the workers have been closed, or belong to the process that this one was forked from.
        """
        timeout_s = None if timeout is None else micros(timeout, "timeout", ValueError) / 1_000_000
        payload = _payload("tidemill.Workers.run", fn, args, kwargs)
        with self._lock:
            self._check()
            self._is_running = True
            processes: _Processes | None = None
            try:
                processes = self._processes or self._start()
                processes.check()
                processes.give(payload, is_last=False)
                results: list[R] = processes.results(timeout_s)
                processes.show_output()
                if not processes.can_go_on:
                    self._stop()
                return results
            except BaseException:
                self._stop()
                if self._is_closed:
                    raise CommError("these workers were closed while a function ran on them") from None
                if processes is not None and processes.lost is not None:
                    self._lost = processes.lost
                    raise self._why_lost() from None
                raise
            finally:
                self._is_running = False

    def close(self) -> None:
        """End the workers. A function that another thread runs on them is stopped; its call raises `CommError`."""
        self._is_closed = True
        if os.getpid() != self._owner:
            return
        processes = self._processes
        if self._is_running and processes is not None:
            processes.hang_up()
        with self._lock:
            self._stop()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ", lost" if self._lost else ""
        return f"<tidemill.Workers: {self.size}{state}>"

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise CommError(
                f"these workers belong to process {self._owner}, which process {os.getpid()} was forked from: "
                "make new tidemill.Workers here"
            )
        if self._is_closed:
            raise CommError("these workers have been closed: make new tidemill.Workers")
        if self._lost is not None:
            raise self._why_lost()
        if self._is_running:
            raise CommError("a signal handler called Workers.run while a function ran on the same workers")

    def _why_lost(self) -> WorkerLost:
        assert self._lost is not None
        why, rank = self._lost
        return WorkerLost(f"{why}; the others were stopped: make new tidemill.Workers", rank)

    def _start(self) -> _Processes:
        threads, transport, settings = self._options
        processes = _Processes(self.size, threads, transport, settings)
        processes.start()
        self._processes = processes
        self._end = weakref.finalize(self, processes.stop)
        processes.warm_up()
        return processes

    def _stop(self) -> None:
        self._processes = None
        if self._end is not None:
            self._end()


def _check_count(workers: int) -> None:
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")


def _payload(call: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> bytes:
    cloudpickle = needed("cloudpickle", call)
    try:
        payload: bytes = cloudpickle.dumps((fn, args, dict(kwargs or {})), protocol=5)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"{call} cannot send {name} and its arguments to the workers: {error}. Make such things inside the function, "
            "on the worker"
        ) from error
    return payload


def _settings(memory: str | int | None, spill_dir: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return the workers' settings as environment variables."""
    settings: dict[str, str] = {}
    if memory is not None:
        from tidemill._tables.engine import bytes_of

        text = str(memory)
        try:
            if isinstance(memory, bool) or (text != "none" and bytes_of(text) <= 0):
                raise ValueError(text)
        except ValueError:
            raise ValueError(f'memory must be a size such as "512MiB" or "2GiB", or "none", not {memory!r}') from None
        settings["TIDEMILL_MEMORY"] = text
    if spill_dir is not None:
        settings["TIDEMILL_SPILL_DIR"] = os.fspath(Path(spill_dir).absolute())
    return settings


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], results: IO[bytes]) -> None:
        self.rank, self.process, self.pipe = rank, process, results
        self.received = bytearray()
        #: The function's result: ``("result", pickled, whether the worker can run another)`` or ``("error", pickled,
        #: traceback)``.
        self.answer: tuple[Any, ...] | None = None
        #: Whether the function has returned on this worker, while it may still run on others.
        self.has_returned = False
        self.lines = {1: b"", 2: b""}

    @property
    def is_over(self) -> bool:
        """True if there is a result, or none will come."""
        return self.answer is not None or self.pipe.closed

    def take_answer(self) -> None:
        """Check whether the result is complete."""
        while self.answer is None and len(self.received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.received)
            end = _LENGTH.size + length
            if len(self.received) < end:
                break
            answer = pickle.loads(memoryview(self.received)[_LENGTH.size : end])
            del self.received[:end]
            if answer[0] == "returned":
                self.has_returned = True
            else:
                self.answer = answer


class _Processes:
    """The processes of one job: started on entry, ended on exit."""

    def __init__(self, count: int, threads: int | None, transport: str | None, settings: Mapping[str, str]) -> None:
        self.count, self.threads, self.transport, self.settings = count, threads, transport, settings
        self.all: list[_Worker] = []
        self.selector = selectors.DefaultSelector()
        self.owner = os.getpid()
        self.is_stopped = False
        #: Whether all workers can run another function; one may have left the job (``MPI.Finalize``).
        self.can_go_on = True
        #: How a process without a result ended, and its rank.
        self.lost: tuple[str, int] | None = None
        _open.add(self)

    def __enter__(self) -> _Processes:
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, frames: Any) -> None:
        self.stop()

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        try:
            common = self._environment(listener)
            for rank in range(self.count):
                self._start(rank, common, listener if rank == 0 else None)
        except BaseException:
            self.stop()
            raise
        finally:
            listener.close()

    def _environment(self, listener: socket.socket) -> dict[str, str]:
        threads = self.threads or max(kernel_cpus() // self.count, 1)
        # Variables that identify this process in its own job do not apply to the new workers; settings do.
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
                # This process handles Ctrl-C, and stops the workers.
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

    def check(self) -> None:
        """Raise if a process has ended since the last call. One that could not join the job reports this itself, as its
        answer.
        """
        self._take_all()
        for worker in self.all:
            if worker.answer is None and (worker.pipe.closed or worker.process.poll() is not None):
                self._lose(worker)

    def _lose(self, worker: _Worker) -> NoReturn:
        how = _how_it_ended(worker)
        if worker.process.poll() is not None:
            self.lost = how, worker.rank
        raise WorkerLost(how, worker.rank)

    def warm_up(self) -> None:
        """Make the workers join their job while this process continues."""
        self._send(None, is_last=False)

    def give(self, payload: bytes, *, is_last: bool) -> None:
        """Send the function to every worker, whose standard input stays open afterwards. After the last function, the
        worker leaves the job.
        """
        self._send(payload, is_last=is_last)

    def _send(self, payload: bytes | None, *, is_last: bool) -> None:
        message = pickle.dumps((list(sys.path), payload, is_last), protocol=5)
        for worker in self.all:
            assert worker.process.stdin is not None
            # If the worker has already died, this is noticed when its result is missing.
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.write(_LENGTH.pack(len(message)) + message)
                worker.process.stdin.flush()

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait for all workers; return their results, or raise the exception where trouble began."""
        deadline = None if timeout is None else time.monotonic() + timeout
        has_failed = False
        while not all(worker.is_over for worker in self.all):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            self._read(left)
            if not has_failed and any(self._has_failed(worker) for worker in self.all):
                has_failed, deadline = True, time.monotonic() + _GRACE_S
        waiting = [worker.rank for worker in self.all if not worker.is_over]
        if has_failed or waiting:
            # These processes can no longer be used.
            self.finish_output()
        if waiting and not has_failed:
            running = [rank for rank in waiting if not self.all[rank].has_returned] or waiting
            raise TimeoutError(
                f"the function did not return on {_ranks(running)} within {timeout:g} s; the workers were stopped"
            )
        return self._judge()

    def _has_failed(self, worker: _Worker) -> bool:
        if worker.answer is not None:
            return bool(worker.answer[0] != "result")
        return worker.pipe.closed

    def _read(self, timeout: float | None) -> bool:
        """Read available output, waiting if there is none; return whether there was any."""
        events = self.selector.select(timeout)
        for key, _ in events:
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
        return bool(events)

    def _show(self, worker: _Worker, number: int, data: bytes) -> None:
        """Print complete lines with the rank in front, where this process prints."""
        *lines, rest = (worker.lines[number] + data).split(b"\n")
        if not data and rest:
            lines, rest = [*lines, rest], b""
        worker.lines[number] = rest
        target = sys.stdout if number == 1 else sys.stderr
        for line in lines:
            target.write(f"[{worker.rank}] {line.decode('utf-8', 'replace')}\n")
        if lines:
            target.flush()

    def show_output(self) -> None:
        """Show the output of idle workers so far, including an incomplete last line."""
        self._take_all()
        for worker in self.all:
            for number, rest in worker.lines.items():
                if rest:
                    self._show(worker, number, b"\n")

    def _take_all(self) -> None:
        """Read all available output, but not forever if a worker keeps printing."""
        end = time.monotonic() + _DRAIN_S
        while self.selector.get_map() and self._read(0) and time.monotonic() < end:
            pass

    def hang_up(self) -> None:
        """Close the lifelines."""
        for worker in self.all:
            if worker.process.stdin is not None:
                with contextlib.suppress(OSError):
                    worker.process.stdin.close()

    def finish_output(self) -> None:
        """Read the last output of workers that have ended."""
        self.hang_up()
        end = time.monotonic() + _DRAIN_S
        while self.selector.get_map() and (left := end - time.monotonic()) > 0:
            self._read(left)

    def _judge(self) -> list[Any]:
        errors = [(w.rank, *w.answer[1:]) for w in self.all if w.answer is not None and w.answer[0] == "error"]
        silent = [worker for worker in self.all if worker.answer is None]
        # The original error is one that is not a consequence of another worker's; a lost worker explains all others.
        origins = [error for error in errors if not isinstance(_unpickled(error[1]), (PeerFailed, WorkerLost))]
        if not origins and silent:
            dead = [worker for worker in silent if worker.pipe.closed] or silent
            self._lose(dead[0])
        if origins or errors:
            rank, pickled, text = (origins or errors)[0]
            error = _unpickled(pickled)
            # An exception that would end this process, too, such as SystemExit, is reported instead of raised.
            if not isinstance(error, Exception):
                raise PeerFailed(f"worker {rank} failed:\n{text}", rank, text)
            raise error from RemoteTraceback(rank, text)
        answers = [worker.answer for worker in self.all if worker.answer is not None]
        for worker in self.all:
            worker.answer, worker.has_returned = None, False
        self.can_go_on = all(can_go_on for _, _, can_go_on in answers)
        return [pickle.loads(pickled) for _, pickled, _ in answers]

    def stop(self) -> None:
        """End the remaining workers: first by closing the lifeline, then by force."""
        # A forked child has copies of everything, but does not own the processes.
        if self.is_stopped or os.getpid() != self.owner:
            return
        self.is_stopped = True
        _open.discard(self)
        self.hang_up()
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

    def let_go(self) -> None:
        """Close a forked child's copies of the pipes: if the lifelines stayed open there, workers would outlive their
        parent.
        """
        self.selector.close()
        for worker in self.all:
            for pipe in (worker.process.stdin, worker.pipe, worker.process.stdout, worker.process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


#: All open processes, for a child that this process forks.
_open: weakref.WeakSet[_Processes] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for processes in list(_open):
        processes.let_go()
    _open.clear()


os.register_at_fork(after_in_child=_let_go_of_all)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _with_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which the workers find this package."""
    package = str(Path(__file__).absolute().parent.parent)
    before = environment.get("PYTHONPATH", "")
    known = before.split(os.pathsep) if before else []
    return {**environment, "PYTHONPATH": os.pathsep.join([package, *(p for p in known if p != package)])}


def _unpickled(pickled: bytes | None) -> BaseException | None:
    if pickled is None:
        return None
    try:
        error = pickle.loads(pickled)
    except Exception:  # its class may be known only to the worker
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
