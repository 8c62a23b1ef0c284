"""`tidemill.run`: functions on new workers, from a script and from other places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import tidemill as tm
from launched import is_running, pids_in, wait_until


class OwnError(Exception):
    """Pickles with its arguments only."""


def test_results_come_by_rank() -> None:
    def place(factor: int, *, offset: int = 0) -> tuple[int, int]:
        job = tm.init()
        return job.rank * factor + offset, job.comm.allreduce(1)

    assert tm.run(place, 10, workers=3, kwargs={"offset": 5}) == [(5, 3), (15, 3), (25, 3)]
    assert tm.run(lambda: tm.init().size) == [4, 4, 4, 4]
    assert tm.run(os.getpid, workers=1) != [os.getpid()]


def test_settings_are_passed_on_and_who_one_is_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finds a budget or a password that is lost on the way, and workers that take their parent's place in its job."""
    settings = {"TIDEMILL_MEMORY": "64MiB", "TIDEMILL_SINGLE_COPY": "0", "TIDEMILL_KAFKA_USER": "me"}
    for name, value in {**settings, "TIDEMILL_RESTART": "7", "TIDEMILL_CRASH_DIR": "/nowhere"}.items():
        monkeypatch.setenv(name, value)

    def environment() -> tuple[dict[str, str | None], int]:
        names = [*settings, "TIDEMILL_RESTART", "TIDEMILL_CRASH_DIR"]
        return {name: os.environ.get(name) for name in names}, tm.init().size

    seen, size = tm.run(environment, workers=2)[1]
    assert seen == {**settings, "TIDEMILL_RESTART": None, "TIDEMILL_CRASH_DIR": None}
    assert size == 2


def test_memory_and_spill_dir(tmp_path: Path) -> None:
    """As for the launcher; an invalid size is refused before anything starts."""

    def settings() -> tuple[str | None, str | None]:
        return os.environ.get("TIDEMILL_MEMORY"), os.environ.get("TIDEMILL_SPILL_DIR")

    assert tm.run(settings, workers=1, memory="64MiB", spill_dir=tmp_path) == [("64MiB", str(tmp_path))]
    for wrong in ("much", 0, True):
        with pytest.raises(ValueError, match="memory must be a size such as"):
            tm.run(settings, memory=wrong)


def test_datasets_stay_where_they_are() -> None:
    """The error was "cannot pickle NativeDataSet"; now it says what to do, for arguments and for results."""
    data = tm.from_dict({"x": [1]})
    with pytest.raises(tm.DataSetError, match="make it inside the function that runs there"):
        tm.run(lambda: data.count(), workers=1)
    with pytest.raises(tm.DataSetError, match=r"return data\.collect\(\), too"):
        tm.run(lambda: tm.from_dict({"x": [1]}), workers=1)
    price = tm.col("price")
    with pytest.raises(tm.DataSetError, match="an expression belongs to the process that made it"):
        tm.run(lambda: price, workers=1)
    table = data.collect()
    assert tm.run(lambda: tm.from_arrow(table).count(), workers=1) == [1]


def test_a_setting_that_is_no_number_is_named() -> None:
    environment = {**os.environ, "TIDEMILL_STALL_WARNING": "soon"}
    command = [sys.executable, "-c", "import tidemill as tm; tm.init()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "TIDEMILL_STALL_WARNING=soon must be a number of seconds" in done.stderr


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_large_arguments_and_results(transport: str) -> None:
    data = np.arange(2_000_000)

    def scaled(array: np.ndarray) -> np.ndarray:
        comm = tm.init().comm
        total = np.empty_like(array)
        comm.Allreduce(array, total)
        return total + comm.rank

    for rank, result in enumerate(tm.run(scaled, data, workers=2, transport=transport)):
        assert np.array_equal(result, 2 * data + rank)


def test_an_exception_comes_back_from_where_it_began() -> None:
    def fail() -> None:
        comm = tm.init().comm
        if comm.rank == 1:
            raise OwnError("the reason")
        comm.Barrier()

    with pytest.raises(OwnError, match="the reason") as caught:
        tm.run(fail, workers=3)
    cause = caught.value.__cause__
    assert cause.rank == 1  # type: ignore[union-attr]
    assert "in fail" in str(cause) and "OwnError: the reason" in str(cause)


def test_what_cannot_be_pickled_is_still_told() -> None:
    def fail() -> None:
        class Local(Exception):
            def __reduce__(self) -> str:
                raise TypeError("never")

        raise Local("hidden")

    with pytest.raises(tm.PeerFailed, match="Local: hidden") as caught:
        tm.run(fail, workers=2)
    assert "hidden" in caught.value.traceback


def test_sys_exit_does_not_end_the_caller() -> None:
    def leave() -> None:
        if tm.init().rank == 0:
            sys.exit(3)
        tm.init().comm.Barrier()

    with pytest.raises(tm.PeerFailed, match="SystemExit: 3"):
        tm.run(leave, workers=2)


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_a_worker_that_dies_hangs_nobody(how: str) -> None:
    def die() -> None:
        job = tm.init()
        if job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL) if how == "SIGKILL" else os._exit(7)
        job.comm.Barrier()

    with pytest.raises(tm.WorkerLost, match="SIGKILL" if how == "SIGKILL" else "exit code 7") as caught:
        tm.run(die, workers=3)
    assert caught.value.rank == 1


def test_output_appears_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        rank = tm.init().rank
        print(f"one {rank}\ntwo {rank}")
        print("no end", end="")
        sys.stderr.write("aside\n")

    tm.run(talk, workers=2)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] no end", "[0] one 0", "[0] two 0", "[1] no end", "[1] one 1", "[1] two 1"]
    assert sorted(err.splitlines()) == ["[0] aside", "[1] aside"]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        tm.run(os.getpid, workers=0)


def test_run_within_a_thread() -> None:
    """A notebook's cells and a server's requests do not always run in the main thread."""
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(tm.run(lambda: tm.init().rank, workers=2)))
    thread.start()
    thread.join()
    assert found == [[0, 1]]


def test_twenty_jobs_leave_nothing(tmp_path: Path) -> None:
    """A notebook runs jobs for days. In its own process, whose descriptors nothing else changes."""
    file = script(
        tmp_path,
        """
        import os, threading
        from pathlib import Path
        import tidemill as tm

        def work(n):
            comm = tm.init().comm
            if n % 5 == 4 and comm.rank == 1:
                raise ValueError(n)
            return os.getpid(), comm.allreduce(comm.rank)

        def possessions():
            return sorted(os.listdir("/proc/self/fd")), threading.active_count(), os.listdir("/proc/self/task")

        def run(n):
            try:
                return [pid for pid, total in tm.run(work, n, workers=2, transport=["shm", "tcp"][n % 2]) if total == 1]
            except ValueError:
                return []

        run(0)
        before = possessions()
        pids = [pid for n in range(20) for pid in run(n)]
        assert len(pids) == 32, pids
        assert possessions() == before, (before, possessions())
        assert Path("/proc/self/task", str(os.getpid()), "children").read_text() == ""
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
        """,
    )
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def script(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    return file


def test_from_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Workers must not run the script again: that would start workers without end."""
    file = script(
        tmp_path,
        """
        import tidemill as tm
        print("once")
        def double(x):
            return 2 * x + tm.init().rank
        print(tm.run(double, 4, workers=2))
        """,
    )
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["once", "[8, 9]"], done.stderr


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """Also when it is killed and cannot tell them."""
    file = script(
        tmp_path,
        f"""
        import os, pathlib, time
        import tidemill as tm
        def wait():
            pathlib.Path({str(tmp_path)!r}, f"{{tm.init().rank}}.pid").write_text(f"{{os.getpid()}}\\n")
            time.sleep(1000)
        tm.run(wait, workers=2)
        """,
    )
    parent = subprocess.Popen([sys.executable, file])
    try:
        pids = pids_in(tmp_path, 2)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(is_running, pids)), "the workers to end")


def test_ctrl_c_ends_the_workers(tmp_path: Path) -> None:
    file = script(
        tmp_path,
        f"""
        import os, pathlib
        import tidemill as tm
        def wait():
            pathlib.Path({str(tmp_path)!r}, f"{{tm.init().rank}}.pid").write_text(f"{{os.getpid()}}\\n")
            comm = tm.init().comm
            comm.recv(source=1 - comm.rank)
        try:
            tm.run(wait, workers=2)
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    parent = subprocess.Popen([sys.executable, file], stdout=subprocess.PIPE, text=True)
    pids = pids_in(tmp_path, 2)
    parent.send_signal(signal.SIGINT)
    out, _ = parent.communicate(timeout=60)
    assert out == "interrupted\n"
    assert not any(map(is_running, pids))
