"""Workers that stay for all tests of a file: most of a test that computes something small would be the start of its job.

A file imports `run`, which is called as `tidemill.run`, and `standing_workers`, which ends the workers behind the file's last test. What
kills workers, or looks at how they start and end, is for `tidemill.run`.
"""

from __future__ import annotations

import os
import pickle
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import cloudpickle
import launched
import pytest
import tidemill

R = TypeVar("R")

# Workers get `_serve` by value, and need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _serve(address: str, key: bytes) -> None:
    """On a worker: run what rank 0 is sent, until it is sent nothing."""
    comm = tidemill.init().comm
    tests = Client(address, "AF_UNIX", authkey=key) if comm.rank == 0 else None
    while (call := comm.bcast(tests.recv_bytes() if tests else None)) != b"":
        environment = dict(os.environ)
        try:
            fn, args = pickle.loads(call)
            outcome = (True, fn(*args))
        except Exception:
            outcome = (False, traceback.format_exc())
        finally:
            os.environ.clear()
            os.environ.update(environment)
        outcomes = comm.gather(cloudpickle.dumps(outcome))
        if tests:
            tests.send(outcomes)


class Standing:
    """A job of `size` workers that waits for calls."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._error: BaseException | None = None
        self._folder = TemporaryDirectory(prefix="tidemill-tests-")
        address, key = str(Path(self._folder.name, "calls")), secrets.token_bytes(16)
        self._listener = Listener(address, "AF_UNIX", authkey=key)
        self._thread = threading.Thread(target=self._run, args=(address, key), daemon=True)
        self._thread.start()
        self._connection: Connection = self._listener.accept()

    def _run(self, address: str, key: bytes) -> None:
        try:
            tidemill.run(_serve, address, key, workers=self.size)
        except BaseException as error:
            self._error = error

    def __call__(self, fn: Callable[..., R], *args: Any) -> list[R]:
        self._connection.send_bytes(cloudpickle.dumps((fn, args)))
        try:
            if not self._connection.poll(launched.PATIENCE_S):
                pytest.fail(f"{fn.__name__} hangs on {self.size} workers")
            outcomes = [pickle.loads(outcome) for outcome in self._connection.recv()]
        except EOFError:
            self._thread.join(launched.PATIENCE_S)
            raise AssertionError(f"the workers of {fn.__name__} have ended") from self._error
        for rank, (went_well, text) in enumerate(outcomes):
            assert went_well, f"in worker {rank}:\n{text}"
        return [value for _, value in outcomes]

    def close(self) -> None:
        """End the workers, which must end well."""
        self._connection.send_bytes(b"")
        self._thread.join(launched.PATIENCE_S)
        self._connection.close()
        self._listener.close()
        self._folder.cleanup()
        if self._error is not None:
            raise self._error


_standing: dict[int, Standing] = {}


def run(fn: Callable[..., R], *args: Any, workers: int) -> list[R]:
    """Run a function on all of `workers` workers that stay; return what each returned, by rank."""
    if workers not in _standing:
        _standing[workers] = Standing(workers)
    try:
        return _standing[workers](fn, *args)
    except BaseException:
        # One that failed may have left the others in the middle of something: the next call has new workers.
        _leave(_standing.pop(workers))
        raise


def _leave(workers: Standing) -> None:
    workers._connection.close()
    workers._listener.close()
    workers._folder.cleanup()


@pytest.fixture(scope="module", autouse=True)
def standing_workers() -> Iterator[None]:
    """End the workers when the file is done."""
    yield
    while _standing:
        _standing.popitem()[1].close()
