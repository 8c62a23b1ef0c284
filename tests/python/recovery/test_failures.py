"""Whatever happens to a worker, the others get a clear error, and nothing hangs or is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import launched
import pytest
import seeds
import standing
import workers

TRANSPORTS = ["auto", "tcp"]

LOOP = """
import pathlib, sys
import numpy as np
from tidemill.mpi import MPI
import tidemill as tm

comm = MPI.COMM_WORLD
rng = np.random.default_rng(7)
pathlib.Path(f"{comm.rank}.pid").write_text(f"{__import__('os').getpid()}\\n")
try:
    while True:
        n = int(rng.choice([1, 100, 5_000, 50_000, 400_000]))
        a, b = np.full(n, float(comm.rank)), np.empty(n)
        comm.Allreduce(a, b)
        comm.Bcast(a, root=int(rng.integers(comm.size)))
        comm.Sendrecv(a, (comm.rank + 1) % comm.size, recvbuf=b, source=(comm.rank - 1) % comm.size)
        comm.allgather({"rank": comm.rank})
        comm.Ialltoall(np.zeros((comm.size, n % 1000)), np.zeros((comm.size, n % 1000))).Wait()
except tm.WorkerLost as error:
    try:
        comm.Barrier()
    except tm.WorkerLost as again:
        print("lost", error.rank, again.rank)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_kill_at_any_moment_reaches_everybody(tmp_path: Path, transport: str) -> None:
    """A blocked call that missed the news would hang; a next call that missed it would use a broken job."""
    chance = seeds.dice(transport)
    for round_ in range(4):
        folder = tmp_path / str(round_)
        folder.mkdir()
        with workers.Job(folder, 4, LOOP, {"TIDEMILL_TRANSPORT": transport}) as job:
            launched.pids_in(folder, 4)
            time.sleep(chance.uniform(0, 0.3))
            # Rank 0 is the hub of the control plane; its death is the hardest to notice.
            victim = 0 if round_ == 0 else chance.randrange(4)
            job.workers[victim].send_signal(signal.SIGKILL)
            results = job.finish()
        for rank, (code, out, err) in enumerate(results):
            if rank != victim:
                assert (code, out) == (0, f"lost {victim} {victim}\n"), f"rank {rank} of seed {seeds.SEED}: {out}{err}"


LARGE = """
import pathlib
import numpy as np
from tidemill.mpi import MPI
import tidemill as tm

comm = MPI.COMM_WORLD
a = np.ones(4_000_000)
b = np.empty_like(a)
pathlib.Path(f"{comm.rank}.pid").write_text(f"{__import__('os').getpid()}\\n")
try:
    while True:
        comm.Allreduce(a, b)
except tm.WorkerLost as error:
    try:
        comm.Barrier()
    except tm.WorkerLost as again:
        print("lost", error.rank, again.rank)
"""


def test_memory_that_cannot_be_read_is_a_lost_worker_for_everybody(tmp_path: Path) -> None:
    """A rank that noticed by itself, before the hub could tell the others, went on to a call they did not expect."""
    for round_ in range(4):
        folder = tmp_path / str(round_)
        folder.mkdir()
        with workers.Job(folder, 3, LARGE) as job:
            launched.pids_in(folder, 3)
            time.sleep(0.1 + round_ * 0.003)
            job.workers[0].send_signal(signal.SIGSTOP)
            job.workers[2].send_signal(signal.SIGKILL)
            time.sleep(0.2)
            job.workers[0].send_signal(signal.SIGCONT)
            results = job.finish()
        for code, out, err in results[:2]:
            assert (code, out) == (0, "lost 2 2\n"), err


AFTER_ITS_END = """
import os, pathlib, time
import numpy as np
import tidemill as tm

job = tm.init()
pathlib.Path(f"{job.rank}.pid").write_text(f"{os.getpid()}\\n")
if job.rank == 1:
    job.comm.recv(source=0)
    time.sleep(3600)
if job.rank == 2:
    try:
        job.comm.recv(source=1)
    except tm.WorkerLost as error:
        print("lost", error.rank)
if job.rank == 0:
    job.comm.send("now", 1)
    print("done")
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_lost_after_rank_0_has_ended(tmp_path: Path, transport: str) -> None:
    """Rank 0 stays until the others have left; it waited forever for one that was killed meanwhile."""
    with workers.Job(tmp_path, 3, AFTER_ITS_END, {"TIDEMILL_TRANSPORT": transport}) as job:
        launched.pids_in(tmp_path, 3)
        assert job.workers[0].stdout is not None
        assert job.workers[0].stdout.readline().strip() == "done"
        time.sleep(0.5)
        job.workers[1].send_signal(signal.SIGKILL)
        results = job.finish()
    assert results[2][:2] == (0, "lost 1\n"), results[2]
    assert results[0][0] == 0, results[0]


def _named_memory(pid: int) -> set[str]:
    """The files in /dev/shm that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {path for line in lines if (path := line.partition("/dev/shm/")[2]) and not path.endswith("(deleted)")}


def test_nothing_is_left_after_killing_everybody(tmp_path: Path) -> None:
    """Named shared memory would stay forever."""
    with workers.Job(tmp_path, 3, LOOP) as job:
        pids = launched.pids_in(tmp_path, 3)
        launched.wait_until(
            lambda: any("/memfd:tidemill" in Path(f"/proc/{pid}/maps").read_text() for pid in pids), "shared memory"
        )
        named = set().union(*map(_named_memory, pids))
        for worker in job.workers:
            worker.send_signal(signal.SIGKILL)
        job.finish()
    assert named & set(os.listdir("/dev/shm")) == set()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_exception_is_told_to_the_others(tmp_path: Path, transport: str) -> None:
    """The others must raise the traceback of the origin, neither hanging nor raising one of their own."""
    program = """
        import numpy as np
        import tidemill as tm

        job = tm.init()
        if job.rank == 1:
            raise ValueError("it is broken")
        try:
            job.comm.Sendrecv(np.ones(1), 2 - job.rank, recvbuf=np.ones(1), source=2 - job.rank)
            if job.rank == 0:
                job.comm.recv(source=2)
            else:
                job.comm.Allreduce(np.ones(3), np.empty(3))
        except tm.PeerFailed as error:
            assert error.rank == 1 and "ValueError: it is broken" in error.traceback and "app.py" in error.traceback
            try:
                job.comm.Barrier()
            except tm.PeerFailed:
                print("told")
    """
    with workers.Job(tmp_path, 3, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        results = job.finish()
    assert [code for code, _, _ in results] == [0, 1, 0], results
    assert results[0][1] == results[2][1] == "told\n"
    assert "ValueError: it is broken" in results[1][2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "call",
    [
        "comm.Allreduce(np.ones(3), np.ones(3), op)",
        "comm.Allreduce(np.ones(500_000), np.ones(500_000), op)",
        "comm.Iallreduce(np.ones(3), np.ones(3), op).Wait()",
        "comm.allreduce(np.ones(500_000), op=add)",
    ],
)
def test_a_function_that_raises_on_one_worker_is_told_to_the_others(tmp_path: Path, transport: str, call: str) -> None:
    """A worker that catches the exception lives on, and the others would wait for its part forever."""
    program = f"""
        import numpy as np
        import tidemill as tm
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD

        def add(left, right, datatype=None):
            if comm.rank == 0:
                raise ValueError("it is odd")
            return left + right if datatype is None else np.add(np.frombuffer(left), np.frombuffer(right), np.frombuffer(right))

        op = MPI.Op.Create(add, commute=True)
        try:
            {call}
            comm.Barrier()
        except (ValueError, tm.PeerFailed) as error:
            print(type(error).__name__, getattr(error, "rank", ""))
            assert "it is odd" in str(error) and "in add" in getattr(error, "traceback", "in add")
        try:
            comm.Barrier()
        except tm.CommError as error:
            print(type(error).__name__, error.rank)
    """
    with workers.Job(tmp_path, 3, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        outputs = job.succeed()
    assert outputs[0].startswith("ValueError") and outputs[0].endswith("PeerFailed 0\n"), outputs
    assert outputs[1] == outputs[2] == 2 * "PeerFailed 0\n", outputs


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_reduction_that_fails_in_the_background_is_told_at_once(tmp_path: Path, transport: str) -> None:
    """A worker that checks its request only after hearing from the others, who wait for its part, waits forever."""
    program = """
        import numpy as np
        import tidemill as tm
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD

        def add(left, right, datatype):
            if comm.rank == 0:
                raise ValueError("it is odd")
            np.frombuffer(right)[:] += np.frombuffer(left)

        # Up a tree to rank 0, and down again: without its part nobody has a result.
        request = comm.Iallreduce(np.ones(3), np.ones(3), MPI.Op.Create(add, commute=True), algorithm="binomial")
        try:
            if comm.rank == 0:
                comm.Recv(np.empty(1), 1)
            request.Wait()
            comm.Send(np.ones(1), 0)
        except tm.PeerFailed as error:
            assert "it is odd" in str(error)
            print(error.rank)
    """
    with workers.Job(tmp_path, 3, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        assert job.succeed() == ["0\n"] * 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", ["reduce(big, odd, 1)", "allreduce(big, odd)", "scan(big, odd)", "exscan(big, odd)"])
def test_results_that_cannot_be_sent_are_told_to_who_waits_for_them(tmp_path: Path, call: str) -> None:
    """An operation that works but returns something that cannot be pickled: an error on one worker, a hang on the next."""
    program = f"""
        import numpy as np
        import tidemill as tm
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD
        big = np.ones(100_000)

        def odd(left, right):
            return lambda: None

        try:
            comm.{call}
            comm.Barrier()
        except tm.PeerFailed as error:
            assert "pickle" in str(error)
            print("told")
        except Exception as error:
            print(type(error).__name__)
    """
    with workers.Job(tmp_path, 3, program) as job:
        outputs = job.succeed()
    assert len([out for out in outputs if out == "told\n"]) == 2, outputs


# The comparison is the same on every transport.
@pytest.mark.sampled(8)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("usual", "odd", "words"),
    [
        ("comm.Barrier()", "comm.Allreduce(np.ones(2), np.empty(2))", ["barrier()", "allreduce(2 x float64, op=sum)"]),
        ("comm.Bcast(np.ones(3), 0)", "comm.Bcast(np.ones(3), 1)", ["root=0", "root=1"]),
        ("comm.Reduce(np.ones(3), np.empty(3), MPI.SUM)", "comm.Reduce(np.ones(3), np.empty(3), MPI.MAX)", ["sum", "max"]),
        ("comm.Allreduce(np.ones(9000), np.empty(9000))", "comm.Allreduce(np.ones(9001), np.empty(9001))", ["9000", "9001"]),
        ("comm.Allreduce(np.ones(9), np.empty(9))", "comm.Allreduce(np.ones(9), np.empty(9), algorithm='ring')", ["op=sum)", "algorithm=ring"]),
        ("comm.Bcast(np.ones(9), algorithm='chain')", "comm.Bcast(np.ones(9), algorithm='flat')", ["chain", "flat"]),
        ("comm.Allgatherv(np.ones(1), [np.ones(3), [1, 1, 1]])", "comm.Allgatherv(np.ones(2), [np.ones(4), [1, 2, 1]])", ["3 x float64", "4 x float64"]),
        ("comm.Allgatherv(np.ones(2 - comm.rank), [np.ones(3), [2, 1, 0]])", "comm.Allgatherv(np.ones(1), [np.ones(3), [1, 1, 1]])", ["counts with digest"]),
        ("comm.Gatherv(np.ones(2), [np.ones(6), [2, 2, 2]] if comm.rank == 0 else None)", "comm.Gatherv(np.ones(1), None)", ["sent 8 bytes", "expected 16"]),
        ("comm.Scatterv([np.ones(6), [2, 2, 2]] if comm.rank == 0 else None, np.ones(2))", "comm.Scatterv(None, np.ones(3))", ["sent 16 bytes", "expected 24"]),
        ("comm.Alltoallv([np.ones(3), [1, 1, 1]], [np.ones(3), [1, 1, 1]])", "comm.Alltoallv([np.ones(4), [2, 1, 1]], [np.ones(3), [1, 1, 1]])", ["sent 16 bytes", "expected 8"]),
        ("comm.Reduce_scatter(np.ones(6), np.ones(2), [2, 2, 2])", "comm.Reduce_scatter(np.ones(6), np.ones(1), [3, 1, 2])", ["counts with digest"]),
        ("comm.Ibarrier().Wait()", "comm.Iallreduce(np.ones(2), np.ones(2)).Wait()", ["ibarrier()", "iallreduce(2 x float64, op=sum)"]),
        ("comm.Barrier()", "comm.Ibarrier().Wait()", [" barrier()", "ibarrier()"]),
        ("comm.bcast(1, 0)", "comm.gather(1)", ["bcast", "gather"]),
        ("comm.Allgather(np.ones(2), np.ones(6))", "comm.Allgather(np.ones(2, 'i8'), np.ones(6, 'i8'))", ["float64", "int64"]),
    ],
)  # fmt: skip
def test_calls_that_differ_are_named(tmp_path: Path, transport: str, usual: str, odd: str, words: list[str]) -> None:
    """In other systems, mismatched calls end in a hang or in garbage."""
    program = f"""
        import numpy as np
        from tidemill.mpi import MPI

        comm = MPI.COMM_WORLD
        try:
            comm.Barrier()
            {odd} if comm.rank == 1 else {usual}
            for _ in range(1000):
                comm.Barrier()
        except MPI.Exception as error:
            print(error)
    """
    with workers.Job(tmp_path, 3, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        outputs = job.succeed()
    for out in outputs:
        # The program's second, whatever Tidemill has called while joining the job.
        assert "collective #2 on comm" in out and "rank 1 called" in out, outputs
        for word in words:
            assert word in out, outputs


def test_a_long_wait_is_explained_once(tmp_path: Path) -> None:
    """The message must say who waits for whom in which call, and the line where the other one is."""
    program = """
        import os
        import tidemill as tm

        comm = tm.init().comm
        comm.Barrier()
        if comm.rank == 1:
            told = False
            while not told:
                told = os.access("told", os.F_OK)  # line 9
        comm.Barrier()
    """
    with workers.Job(tmp_path, 2, program, {"TIDEMILL_STALL_WARNING": "1"}) as job:
        told = job.workers[0].stderr
        assert told is not None
        lines = [next(line for line in told if "waiting" in line)]
        time.sleep(2.5)  # time enough to say it again
        (tmp_path / "told").touch()
        results = job.finish()
    assert [code for code, _, _ in results] == [0, 0], results
    lines += [line for line in results[0][2].splitlines() if "waiting" in line]
    assert len(lines) == 1, lines
    assert "rank 0: barrier #" in lines[0] and "for rank 1, which is in app.py:" in lines[0], lines
    assert any(f"app.py:{n} (busy)" in lines[0] for n in (8, 9, 10)), lines
    assert results[1][2] == ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("wait", "words", "transport"),
    [
        ("comm.Irecv(np.empty(1), 1).Wait()", "recv from rank 1 on comm", "tcp"),
        ("type(comm.Irecv(np.empty(1), 1)).Waitany([comm.Irecv(np.empty(1), 1)])", "recv from rank 1 on comm", "auto"),
        ("comm.recv(source=1)", "recv from rank 1 on comm", "auto"),
        ("comm.irecv(source=1).wait()", "recv from rank 1 on comm", "tcp"),
        ("comm.Ireduce(np.ones(1), np.empty(1)).Wait()", "reduce #", "auto"),
        ("comm.bcast(None, root=1)", "bcast #", "auto"),
        ("comm.Bcast(np.empty(1), root=1)", "bcast #", "tcp"),
        ("comm.probe(source=1)", "probe on comm", "auto"),
    ],
)
def test_a_long_wait_names_the_rank_it_is_for(tmp_path: Path, wait: str, words: str, transport: str) -> None:
    """Background work knows its peers too; "its peers" would help nobody."""

    def is_of_this_wait(line: str) -> bool:
        # On a busy machine the barrier may be a long wait, too.
        return "waiting" in line and "barrier #" not in line

    program = f"""
        import os, time
        import numpy as np
        import tidemill as tm

        comm = tm.init().comm
        comm.Barrier()
        try:
            if comm.rank == 0:
                while not os.access("there", os.F_OK): time.sleep(0.02)
                {wait}
            elif comm.rank == 1:
                open("there", "w").close()
                while not os.access("told", os.F_OK): time.sleep(0.02)  # line 14, and no function of Python's library
                raise SystemExit(0)
            else:
                {wait if words.endswith("#") else "pass"}
        except tm.TidemillError:
            pass
    """
    with workers.Job(tmp_path, 3, program, {"TIDEMILL_TRANSPORT": transport, "TIDEMILL_STALL_WARNING": "0.5"}) as job:
        told = job.workers[0].stderr
        assert told is not None
        lines = [next(filter(is_of_this_wait, told))]
        (tmp_path / "told").touch()
        results = job.finish()
    lines += filter(is_of_this_wait, results[0][2].splitlines())
    assert len(lines) == 1, lines
    assert f"rank 0: {words}" in lines[0] and "rank 1, which is in app.py:14 (busy)" in lines[0], lines


def test_a_held_gil_is_no_death(tmp_path: Path) -> None:
    """Native threads send the heartbeats; a worker in a long C call is alive, and says that it is busy."""
    program = """
        import ctypes, os
        import tidemill as tm

        told = os.open("told", os.O_RDWR)
        comm = tm.init().comm
        comm.Barrier()
        if comm.rank == 1:
            ctypes.PyDLL(None).read(told, ctypes.create_string_buffer(1), ctypes.c_size_t(1))  # PyDLL keeps the GIL
        comm.Barrier()
        print("alive")
    """
    os.mkfifo(tmp_path / "told")
    env = {"TIDEMILL_STALL_WARNING": "1", "TIDEMILL_FAILURE_TIMEOUT": "2"}
    with workers.Job(tmp_path, 2, program, env) as job:
        said = job.workers[0].stderr
        assert said is not None
        line = next(line for line in said if "waiting" in line)
        time.sleep(3)  # longer than the failure timeout
        (tmp_path / "told").write_text("!")
        results = job.finish()
    assert [(code, out) for code, out, _ in results] == [(0, "alive\n")] * 2, results
    assert "busy in native code" in line, line


@pytest.mark.sampled(5)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "call",
    [
        "comm.recv(source=1)",
        "comm.Barrier()",
        "comm.Irecv(np.empty(1), 1).Wait()",
        "MPI.Request.Waitany([comm.Irecv(np.empty(1), 1), comm.irecv(source=1)])",
        "comm.Split(0)",
        "comm.Create_group(comm.Get_group())",
        "comm.Allreduce(np.ones(9), np.empty(9))",
    ],
)
def test_ctrl_c_interrupts_every_wait(tmp_path: Path, transport: str, call: str) -> None:
    """A wait that checked signals only afterwards could not be stopped from the keyboard."""
    program = f"""
        import os, pathlib, time
        import numpy as np
        import tidemill as tm
        from tidemill.mpi import MPI

        comm = tm.init().comm
        comm.Barrier()
        if comm.rank == 0:
            try:
                pathlib.Path("0.pid").write_text(f"{{os.getpid()}}\\n")
                {call}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                os._exit(0)
        else:
            try:
                comm.recv(source=0)
            except tm.WorkerLost as error:
                print("lost", error.rank)
    """
    with workers.Job(tmp_path, 2, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        launched.pids_in(tmp_path, 1)
        time.sleep(0.5)
        job.workers[0].send_signal(signal.SIGINT)
        results = job.finish()
    assert [(code, out) for code, out, _ in results] == [(0, "interrupted\n"), (0, "lost 0\n")], results


def test_a_forked_child_is_refused_and_harmless(tmp_path: Path) -> None:
    """A child shares the parent's rings and sockets; using or closing them there must not disturb the parent."""
    program = """
        import os, sys
        import numpy as np
        import tidemill as tm
        from tidemill.mpi import MPI

        comm = tm.init().comm
        comm.Barrier()
        if comm.rank == 0:
            pid = os.fork()
            if pid == 0:
                try:
                    comm.Send(np.ones(3), 1)
                except MPI.Exception as error:
                    sys.exit(0 if "fork" in str(error) else 3)
                sys.exit(4)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
        total = np.empty(100_000)
        for _ in range(20):
            comm.Allreduce(np.ones(100_000), total)
        assert (total == comm.size).all()
        print("fine")
    """
    with workers.Job(tmp_path, 2, program) as job:
        assert job.succeed() == ["fine\n"] * 2


TOGETHER = """
import tidemill as tm
from tidemill._collective_errors import fail_together

job = tm.init()


def attempt(*fails):
    def work():
        if job.rank in fails:
            raise KeyError("of all" if len(fails) == job.size else f"of {job.rank}")
        return job.rank

    try:
        told = fail_together(job.comm, work, lambda said, rank: ValueError(said, rank), catches=KeyError)
    except ValueError as error:
        told = (*error.args, type(error.__cause__).__name__)
    return told


print(attempt(), attempt(2), attempt(1, 2), attempt(0, 1, 2))
"""


def test_work_that_fails_on_one_worker_fails_on_all() -> None:
    """A worker that misses the error waits forever in its next call; one that gets a different error misleads its user."""
    for rank, printed in enumerate(standing.run_program(TOGETHER, workers=3)):
        cases: list[tuple[str, int | None, set[int]]] = [
            ("of 2", 2, {2}),
            ("of 1", 1, {1, 2}),
            ("of all", None, {0, 1, 2}),
        ]
        told = [(repr(said), first, "KeyError" if rank in fails else "NoneType") for said, first, fails in cases]
        assert printed == " ".join(map(str, [rank, *told])) + "\n"


STOPPED = """
import os, pathlib
import numpy as np
import tidemill as tm
from tidemill.mpi import MPI

comm, total = MPI.COMM_WORLD, np.empty(300_000)
data = tm.from_dict({"key": np.random.default_rng(1).integers(0, 1000, 200_000)})
pathlib.Path(f"{comm.rank}.pid").write_text(f"{os.getpid()}\\n")
rounds = 0
while True:
    comm.Allreduce(np.ones(300_000), total)
    assert total[0] == comm.size
    assert data.group_by("key").agg(n=tm.count()).count() == 1000
    assert data.sort("key").head(1).to_dict() == {"key": [0]}
    rounds += 1
    pathlib.Path(f"{comm.rank}.rounds").write_text(str(rounds))
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_stopped(tmp_path: Path, victim: int) -> None:
    """A stop shorter than the timeout changes nothing; after a longer one the job ends, says so, and leaves nothing
    behind, stopped or not.
    """
    (tmp_path / "app.py").write_text(STOPPED)
    (tmp_path / "spill").mkdir()
    env = {"TIDEMILL_FAILURE_TIMEOUT": "3", "TIDEMILL_SPILL_DIR": str(tmp_path / "spill")}
    running = launched.start("run", "-n", "2", "app.py", env=env, cwd=tmp_path)
    launched.pids_in(tmp_path, 2)
    pids = [int((tmp_path / f"{rank}.pid").read_text()) for rank in range(2)]

    def rounds() -> int:
        file = tmp_path / f"{1 - victim}.rounds"
        return int(file.read_text() or 0) if file.exists() else 0

    launched.wait_until(lambda: rounds() > 0, "a round")
    os.kill(pids[victim], signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(pids[victim], signal.SIGCONT)
    before = rounds()
    launched.wait_until(lambda: running.poll() is not None or rounds() > before + 1, "rounds after the stop")
    os.kill(pids[victim], signal.SIGSTOP)
    out, err = (text.decode() for text in running.communicate(timeout=launched.PATIENCE_S))
    assert (running.returncode, out) == (1, ""), err
    assert (
        f"worker {victim} was lost: no sign of life for " in err and "is stopped (SIGSTOP, Ctrl-Z, a debugger)" in err
    )
    assert not any(map(launched.is_running, pids)) and list((tmp_path / "spill").iterdir()) == []
