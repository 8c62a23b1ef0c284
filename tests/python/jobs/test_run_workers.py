"""`tidemill.Workers`: one function after another on persistent workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import launched
import pytest
import tidemill as tm
from launched import is_running, wait_until


@pytest.fixture(scope="module")
def three() -> Iterator[tm.Workers]:
    """Three workers, which the tests leave usable."""
    with tm.Workers(3) as workers:
        yield workers


def place(factor: int, *, offset: int = 0) -> tuple[int, int, int]:
    job = tm.init()
    return os.getpid(), job.rank * factor + offset, job.comm.allreduce(1)


def test_functions_run_in_the_same_processes(three: tm.Workers) -> None:
    first = three.run(place, 10, kwargs={"offset": 5})
    assert [found for _, *found in first] == [[5, 3], [15, 3], [25, 3]]
    assert [pid for pid, *_ in three.run(place, 1)] == [pid for pid, *_ in first]
    assert repr(three) == "<tidemill.Workers: 3>"


def test_output_appears_before_the_result_is_there(three: tm.Workers, capfd: pytest.CaptureFixture[str]) -> None:
    """With persistent processes, there is no end of the output to wait for."""

    def talk(number: int) -> None:
        print(f"one {number}\nno end", end="")
        sys.stderr.write("x" * 100_000 + "\n")

    for number in range(2):
        three.run(talk, number)
        out, err = capfd.readouterr()
        assert sorted(out.splitlines()) == sorted(
            f"[{rank}] {line}" for rank in range(3) for line in (f"one {number}", "no end")
        )
        assert err.count("x" * 100_000 + "\n") == 3


def test_exceptions_come_back_and_the_next_call_works(three: tm.Workers) -> None:
    """The others are in a collective that will never finish: in the same processes, the next call would hang or fail."""

    def fail() -> None:
        comm = tm.init().comm
        if comm.rank == 1:
            raise LookupError("the reason")
        comm.Barrier()

    before = three.run(os.getpid)
    with pytest.raises(LookupError, match="the reason") as caught:
        three.run(fail)
    assert caught.value.__cause__.rank == 1 and "in fail" in str(caught.value.__cause__)  # type: ignore[union-attr]
    after = three.run(place, 1)
    assert [found for _, *found in after] == [[0, 3], [1, 3], [2, 3]]
    assert not any(map(is_running, before))


def test_ranks_out_of_step_are_found_where_it_happens(three: tm.Workers) -> None:
    """Not in the next function, which is not at fault."""

    def skip_one() -> None:
        if tm.init().rank != 2:
            tm.init().comm.allreduce(1)

    with pytest.raises(tm.MismatchError, match="collective calls do not match"):
        three.run(skip_one)
    assert [total for *_, total in three.run(place, 1)] == [3, 3, 3]


def test_a_function_may_leave_the_job(three: tm.Workers) -> None:
    """MPI programs end with Finalize; then the next function needs new processes."""

    def finish() -> int:
        from tidemill.mpi import MPI

        MPI.Finalize()
        return os.getpid()

    assert set(three.run(finish)).isdisjoint(three.run(finish))


def test_a_function_that_takes_too_long_names_its_ranks(three: tm.Workers) -> None:
    def wait() -> None:
        if tm.init().rank == 1:
            threading.Event().wait()

    pids = three.run(os.getpid)
    with pytest.raises(TimeoutError, match=r"on rank 1 within 0\.1 s"):
        three.run(wait, timeout="100ms")
    with pytest.raises(ValueError, match="timeout='soon' is not a duration"):
        three.run(wait, timeout="soon")
    assert not any(map(is_running, pids))
    assert len(three.run(place, 1)) == 3


def test_what_cannot_be_sent_is_named_and_stops_nothing(three: tm.Workers) -> None:
    pids = three.run(os.getpid)
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot send .*<lambda>.* cannot pickle '_thread.lock'.* inside the function"):
        three.run(lambda: lock)
    with pytest.raises(tm.DataSetError, match="make it inside the function"):
        three.run(lambda data: data.count(), tm.from_dict({"x": [1]}))
    assert three.run(os.getpid) == pids


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "running"])
def test_a_dead_worker_is_named_in_every_later_call(is_idle: bool) -> None:
    def die() -> None:
        if tm.init().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        tm.init().comm.Barrier()

    with tm.Workers(2) as workers:
        pids = workers.run(os.getpid)
        if is_idle:
            os.kill(pids[1], signal.SIGKILL)
            wait_until(lambda: not is_running(pids[1]), "the worker to be gone")
        for fn in die, os.getpid:
            with pytest.raises(
                tm.WorkerLost, match=r"worker 1 was killed by SIGKILL.*: make new tidemill\.Workers"
            ) as caught:
                workers.run(fn)
            assert caught.value.rank == 1
        assert not any(map(is_running, pids))


def test_closed_workers_are_refused_also_while_a_function_runs(tmp_path: Path) -> None:
    def wait() -> None:
        (tmp_path / f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\n")
        threading.Event().wait()

    workers = tm.Workers(2)
    timer = threading.Thread(target=lambda: (launched.pids_in(tmp_path, 2), workers.close()))
    timer.start()
    for fn in wait, os.getpid:
        with pytest.raises(tm.CommError, match=r"workers (were|have been) closed"):
            workers.run(fn)
    timer.join()
    assert not any(map(is_running, launched.pids_in(tmp_path, 2)))
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            tm.Workers(wrong)


FORGOTTEN = """
import os, pathlib, signal, sys, threading
import tidemill as tm

def work():
    pathlib.Path(f"{tm.init().rank}.pid").write_text(f"{os.getpid()}\\n")

def wait():
    work()
    tm.init().comm.recv(source=1 - tm.init().rank)

workers = tm.Workers(2)
how = sys.argv[1]
if how == "interrupted":
    try:
        workers.run(wait)
    except KeyboardInterrupt:
        print("interrupted, then", workers.run(lambda: tm.init().rank))
else:
    pids = workers.run(os.getpid)
    workers.run(work)
if how == "garbage":
    workers = None
    print(any(pathlib.Path(f"/proc/{pid}/cmdline").exists() for pid in pids))
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "forked":
    child = os.fork()
    if child == 0:
        try:
            workers.run(os.getpid)
        except tm.CommError as error:
            print(error)
        workers.close()
        # A normal exit; it must not end the parent's workers either.
        sys.exit(0)
    os.waitpid(child, 0)
    print(workers.run(os.getpid) == pids)
    # A child that outlives its parent must not keep the workers alive.
    if os.fork() == 0:
        os.close(1), os.close(2)
        threading.Event().wait(600)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["exit", "garbage", "killed", "forked", "interrupted"])
def test_no_worker_is_left(tmp_path: Path, how: str) -> None:
    """However the program ends, even if it never closes them."""
    (tmp_path / "app.py").write_text(textwrap.dedent(FORGOTTEN))
    command = [sys.executable, "app.py", how]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        pids = launched.pids_in(tmp_path, 2)
        if how == "interrupted":
            parent.send_signal(signal.SIGINT)
        out, err = parent.communicate(timeout=launched.PATIENCE_S)
    try:
        wait_until(lambda: not any(map(is_running, pids)), "the workers to end")
    finally:
        if how == "forked":
            os.killpg(parent.pid, signal.SIGKILL)
    expected = {
        "garbage": "False\n",
        "interrupted": "interrupted, then [0, 1]\n",
        "forked": f"these workers belong to process {parent.pid}, which process ",
    }
    assert out.startswith(expected.get(how, "")) and err == "", out + err
    assert how != "forked" or out.endswith("make new tidemill.Workers here\nTrue\n"), out


def test_waiting_workers_take_no_processor_time(three: tm.Workers) -> None:
    """A polling worker would use a whole core; heartbeats take a fraction of a percent."""

    def used() -> float:
        return sum(os.times()[:2])

    before = three.run(used)
    # Other processes' load makes the measured share smaller, never larger.
    threading.Event().wait(1.0)
    for start, end in zip(before, three.run(used), strict=True):
        assert end - start < 0.3
