"""However a job ends, its exit code is right, nothing is left behind, and the traceback appears once."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import launched
import pytest

# Each worker sets up its signals first; then it starts a child, writes both pids, and stays.
STAYS = """
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ["TIDEMILL_RANK"])
here = pathlib.Path({folder!r})
{first}
child = subprocess.Popen(["sleep", "1000"])
for pid in child.pid, os.getpid():
    (here / f"{{pid}}.pid").write_text(f"{{pid}}\\n")
while True:
    if rank == 1 and (here / "fail").exists():
        sys.exit(5)
    time.sleep(0.01)
"""

REPORTS = """
import os, sys, time
import tidemill._crash
tidemill._crash.install()
rank = int(os.environ["TIDEMILL_RANK"])
class PeerFailed(Exception): pass
"""


class StayingJob:
    """A job whose workers, each with a child, stay until told otherwise."""

    def __init__(self, tmp_path: Path, *options: str, first: str = "", workers: int = 2, **more: object) -> None:
        self.folder = tmp_path / "pids"
        self.temporary = tmp_path / "tmp"
        for folder in (self.folder, self.temporary):
            folder.mkdir()
        app = tmp_path / "stays.py"
        app.write_text(STAYS.format(first=first, folder=str(self.folder)))
        words = ["run", "-n", str(workers), *options, app]
        self.job = launched.start(*words, env={"TMPDIR": str(self.temporary)}, **more)
        self.pids = launched.pids_in(self.folder, 2 * workers)

    def end(self) -> tuple[int, str]:
        """Wait for the end, after which nothing of the job may remain. Returns the exit code and stderr."""
        _, err = self.job.communicate(timeout=launched.PATIENCE_S)
        launched.wait_until(lambda: not any(map(launched.is_running, self.pids)), f"the end of {self.pids}")
        launched.wait_until(lambda: not list(self.temporary.iterdir()), f"{self.temporary} to be empty")
        return self.job.returncode, err.decode()


def fail(tmp_path: Path, text: str, workers: int = 3) -> tuple[int, str]:
    """Run workers that install the crash hook and then `text`; return the exit code and stderr."""
    (tmp_path / "tmp").mkdir()
    app = tmp_path / "fails.py"
    app.write_text(REPORTS + text)
    result = launched.run("run", "-n", str(workers), app, env={"TMPDIR": str(tmp_path / "tmp")})
    assert not list((tmp_path / "tmp").iterdir())
    return result.returncode, result.stderr.decode()


@pytest.mark.parametrize(("program", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139)])
def test_the_exit_code_is_the_workers(program: str, code: int) -> None:
    result = launched.run("run", "-n", "2", "sh", "-c", f"test $TIDEMILL_RANK = 0 && {program} || sleep 1")
    assert result.returncode == code
    assert (b"worker 0" in result.stderr) == (code != 0)


def test_what_cannot_be_started_is_explained(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a program")
    for words, code, message in [
        (["no-such-program"], 127, b"PATH"),
        (["missing.py"], 127, b"no such file"),
        ([str(text)], 126, b"chmod +x"),
        ([str(tmp_path)], 126, b"folder"),
        (["-n", "0", "true"], 2, b"at least one worker"),
        (["--wat", "true"], 2, b"--wat"),
        ([], 2, b"Usage"),
    ]:
        result = launched.run("run", *words)
        assert result.returncode == code, words
        assert message in result.stderr, words
        assert not result.stdout


def test_the_first_failure_stops_the_rest(tmp_path: Path) -> None:
    job = StayingJob(tmp_path, workers=3)
    (job.folder / "fail").touch()
    code, err = job.end()
    assert code == 5
    assert err == "tidemill: worker 1 failed with exit code 5; the other 2 workers were stopped\n"


def test_a_worker_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    job = StayingJob(tmp_path, "--grace", "0.3", first="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    (job.folder / "fail").touch()
    code, err = job.end()
    assert code == 5
    assert "killed" in err and "failed with exit code 5" in err


def test_a_stopped_worker_is_ended_too(tmp_path: Path) -> None:
    """A stopped worker (Ctrl-Z, a debugger) does not see SIGTERM until it is continued."""
    job = StayingJob(tmp_path, "--grace", "1000", workers=1)
    for pid in job.pids:
        os.kill(pid, signal.SIGSTOP)
    job.job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143


def test_a_worker_killed_from_outside(tmp_path: Path) -> None:
    job = StayingJob(tmp_path)
    os.kill(max(job.pids, key=lambda pid: os.getpgid(pid) == pid), signal.SIGKILL)
    code, err = job.end()
    assert code == 137
    assert "was killed by SIGKILL" in err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_are_passed_on(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    job = StayingJob(tmp_path)
    job.job.send_signal(sent)
    assert job.end()[0] == code


def test_what_is_ignored_stays_so(tmp_path: Path) -> None:
    """Under `nohup` a job outlives its terminal."""
    job = StayingJob(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.job.send_signal(signal.SIGHUP)
    job.job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143


def test_a_signal_that_the_workers_take_well_is_no_failure(tmp_path: Path) -> None:
    job = StayingJob(tmp_path, first="signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))")
    job.job.send_signal(signal.SIGTERM)
    assert job.end() == (0, "")


def test_the_second_interrupt_kills(tmp_path: Path) -> None:
    job = StayingJob(
        tmp_path, "--grace", "1000", first="signal.signal(signal.SIGINT, lambda *_: (here / 'heard').touch())"
    )
    job.job.send_signal(signal.SIGINT)
    launched.wait_until((job.folder / "heard").exists, "the first SIGINT")
    job.job.send_signal(signal.SIGINT)
    assert job.end()[0] == 130


def test_user_signals_are_passed_on_and_change_nothing(tmp_path: Path) -> None:
    job = StayingJob(tmp_path, first="signal.signal(signal.SIGUSR1, lambda *_: (here / f'usr{rank}').touch())")
    # The children do not handle it: they end, which does not concern the launcher.
    job.job.send_signal(signal.SIGUSR1)
    launched.wait_until(lambda: len(list(job.folder.glob("usr*"))) == 2, "SIGUSR1 at both workers")
    assert job.job.poll() is None
    job.job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143


def test_suspending_the_launcher_suspends_the_workers(tmp_path: Path) -> None:
    job = StayingJob(tmp_path)
    job.job.send_signal(signal.SIGTSTP)
    everybody = [job.job.pid, *job.pids]
    launched.wait_until(lambda: all(launched.state(pid) == "T" for pid in everybody), "all to be stopped")
    job.job.send_signal(signal.SIGCONT)
    launched.wait_until(lambda: all(launched.state(pid) in ("S", "R") for pid in everybody), "all to go on")
    job.job.send_signal(signal.SIGTERM)
    assert job.end()[0] == 143


def test_nothing_outlives_a_killed_launcher(tmp_path: Path) -> None:
    """Then nobody but the guard knows the workers' children, and nobody else removes the files."""
    job = StayingJob(tmp_path, first="signal.signal(signal.SIGTERM, signal.SIG_IGN)", workers=3)
    job.job.kill()
    assert job.end()[0] == -9


def test_nobody_reading_does_not_keep_the_launcher_from_hearing(tmp_path: Path) -> None:
    """The reader's pipe is full, and so is the launcher; a signal must still end the job."""
    job = StayingJob(tmp_path, first="subprocess.Popen(['yes', 'x' * 100])")
    launched.wait_until(lambda: launched.state(job.job.pid) == "S", "the launcher to be full")
    job.job.send_signal(signal.SIGTERM)
    assert job.job.wait(launched.PATIENCE_S) == 143
    job.end()


def test_what_a_worker_leaves_running_is_ended(tmp_path: Path) -> None:
    result = launched.run("run", "-n", "2", "--grace", "0.3", "sh", "-c", "trap '' TERM; sleep 1000 & echo $!")
    assert result.returncode == 0
    assert b"killed what workers 0, 1 left running" in result.stderr
    for line in result.stdout.splitlines():
        assert not launched.is_running(int(line.split()[1]))


def test_one_traceback(tmp_path: Path) -> None:
    """Rank 2 fails last but caused it; the tracebacks of those that failed because of it would hide its own."""
    code, err = fail(
        tmp_path,
        "if rank == 2:\n"
        "    time.sleep(0.3); raise ValueError('the reason')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: raise PeerFailed('rank 2 failed')\n",
    )
    assert code == 1
    assert err.count("Traceback") == 1 and err.count("[2] ValueError: the reason\n") == 1
    assert "PeerFailed" not in err
    assert err.endswith("tidemill: worker 2 failed with exit code 1; the other 2 workers were stopped\n")


def test_the_same_failure_everywhere_is_shown_once(tmp_path: Path) -> None:
    """Each writes its report before any may end, so that all are there whoever ends first."""
    code, err = fail(
        tmp_path,
        "import atexit, signal, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "here = pathlib.Path(__file__).parent\n"
        "def meet():\n"
        "    (here / f'{rank}.done').touch()\n"
        "    while len(list(here.glob('*.done'))) < 3: time.sleep(0.01)\n"
        "atexit.register(meet)\n"
        "raise KeyError('everywhere')\n",
    )
    assert code == 1
    assert err.count("Traceback") == 1 and err.count("KeyError: 'everywhere'") == 1
    assert "failed in the same way" in err


def test_a_consequence_alone_is_shown(tmp_path: Path) -> None:
    """Whatever failed, the user must be told something."""
    code, err = fail(tmp_path, "if rank == 1: raise PeerFailed('of whom?')\n", workers=2)
    assert code == 1
    assert "[1] PeerFailed: of whom?" in err


def test_an_interrupt_shows_where_the_job_was(tmp_path: Path) -> None:
    job = StayingJob(tmp_path, first="import tidemill._crash; tidemill._crash.install()")
    job.job.send_signal(signal.SIGINT)
    code, err = job.end()
    assert code == 130
    assert err.count("KeyboardInterrupt") == 1 and err.startswith("[0] Traceback")


def test_a_report_that_cannot_be_written_is_printed(tmp_path: Path) -> None:
    code, err = fail(
        tmp_path,
        "import shutil\n"
        "tidemill._crash._installed_in = None\n"
        "os.environ['TIDEMILL_CRASH_DIR'] = '/nowhere'\n"
        "sys.excepthook = sys.__excepthook__\n"
        "tidemill._crash.install()\n"
        "raise ValueError('printed')\n",
        workers=1,
    )
    assert code == 1
    assert "[0] ValueError: printed" in err


def test_children_of_a_worker_do_not_report_in_its_name(tmp_path: Path) -> None:
    code, err = fail(
        tmp_path,
        "assert 'TIDEMILL_CRASH_DIR' not in os.environ\n"
        "pid = os.fork()\n"
        "if pid == 0: raise ValueError('of the child')\n"
        "os.waitpid(pid, 0)\n",
        workers=1,
    )
    assert code == 0
    assert "[0] ValueError: of the child" in err


def test_a_job_is_started_again(tmp_path: Path) -> None:
    """After a worker was killed, the whole job runs again, and resumes from its checkpoint."""
    app = tmp_path / "killed.py"
    app.write_text(
        f"""
import os, signal
import tidemill as tm
job = tm.init()
squares = tm.from_dict({{"x": [1, 2, 3]}}).with_columns(y=tm.col("x") * tm.col("x"))
was_there = os.path.exists({str(tmp_path / "squares")!r})
squares = squares.materialize({str(tmp_path / "squares")!r})
if job.rank == 1 and os.environ["TIDEMILL_RESTART"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
job.comm.Barrier()
print(was_there, squares.sort("x").to_dict()["y"])
"""
    )
    result = launched.run("run", "-n", "2", "--restarts", "2", app)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode().count("True [1, 4, 9]") == 2
    assert b"worker 1 was killed by SIGKILL" in result.stderr
    assert result.stderr.count(b"tidemill: starting the job again (1 of 2)") == 1


def test_a_job_is_not_started_for_ever(tmp_path: Path) -> None:
    app = tmp_path / "fails.py"
    app.write_text(f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\nraise SystemExit(3)\n")
    result = launched.run("run", "-n", "1", "--restart", "2", app)
    assert result.returncode == 3
    assert (tmp_path / "starts").read_text() == "xxx"


def test_a_signal_in_the_pause_before_a_restart_ends_the_job(tmp_path: Path) -> None:
    app = tmp_path / "fails.py"
    app.write_text("raise SystemExit(3)\n")
    job = launched.start("run", "-n", "1", "--restarts", "50", app)
    assert job.stderr is not None
    assert any(b"starting the job again in 1.6 s (6 of 50)" in line for line in job.stderr)
    job.send_signal(signal.SIGTERM)
    assert job.wait(launched.PATIENCE_S) == 143


def test_a_job_that_was_told_to_end_is_not_started_again(tmp_path: Path) -> None:
    job = StayingJob(tmp_path, "--restarts", "5")
    job.job.send_signal(signal.SIGTERM)
    code, err = job.end()
    assert code == 143
    assert "starting the job again" not in err


def test_a_job_at_a_terminal(tmp_path: Path) -> None:
    """A prompt appears before its answer, typing reaches rank 0, and Ctrl-C ends the job."""
    app = tmp_path / "asks.py"
    app.write_text(
        "import os, time\nif os.environ['TIDEMILL_RANK'] == '0': print('hello', input('name? '))\ntime.sleep(1000)\n"
    )
    # `pty.fork` makes the terminal the controlling one, so that Ctrl-C has an effect.
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "NO_COLOR": ""}
        words = ["sh", "-c", 'stty cols 123; exec "$@"', "sh", *launched.command("run", "-n", "2", app)]
        os.execvp(words[0], words)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            try:
                seen += os.read(terminal, 4096)
            except OSError as error:
                raise AssertionError(f"it ended after {seen!r}") from error

    read_until(b"\x1b[31m[0]\x1b[0m name? ")
    os.write(terminal, b"you\n")
    read_until(b"hello you\r\n")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
