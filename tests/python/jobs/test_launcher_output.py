"""What workers print arrives intact, once, in order, with the rank in front."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import launched
import pytest


def lines_of(output: bytes, rank: int) -> bytes:
    """The lines of one rank without their prefix."""
    prefix = b"[%d] " % rank
    return b"".join(line[len(prefix) :] for line in output.splitlines(keepends=True) if line.startswith(prefix))


def script(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "app.py"
    file.write_text(text)
    return file


def test_each_line_has_its_rank_in_front(tmp_path: Path) -> None:
    app = script(
        tmp_path,
        "import os, sys\n"
        "r = os.environ['TIDEMILL_RANK']\n"
        "print('out', r); print('err', r, file=sys.stderr); print('args', *sys.argv[1:])\n",
    )
    result = launched.run("run", "-n", "3", app, "-n", "7", "--x")
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == sorted(
        line for r in range(3) for line in (b"[%d] out %d" % (r, r), b"[%d] args -n 7 --x" % r)
    )
    assert sorted(result.stderr.splitlines()) == [b"[%d] err %d" % (r, r) for r in range(3)]


def test_a_last_line_without_its_end_is_shown() -> None:
    result = launched.run("run", "-n", "2", "sh", "-c", "printf 'a\\nb'")
    assert [lines_of(result.stdout, rank) for rank in range(2)] == [b"a\nb\n"] * 2


def test_any_bytes_and_lines_longer_than_a_pipe(tmp_path: Path) -> None:
    """A line longer than the pipe's buffer arrives in pieces, which must not be mixed with another worker's."""
    app = script(
        tmp_path,
        "import os, sys, random\n"
        "r = int(os.environ['TIDEMILL_RANK'])\n"
        "data = bytes(random.Random(r).randbytes(3_000_000))\n"
        "for at in range(0, len(data), 4099):\n"
        "    sys.stdout.buffer.write(data[at:at + 4099])\n"
        "sys.stdout.buffer.write(b'x' * 300_000)\n",
    )
    import random

    result = launched.run("run", "-n", "2", app)
    assert result.returncode == 0
    for rank in range(2):
        sent = random.Random(rank).randbytes(3_000_000) + b"x" * 300_000 + b"\n"
        # Split at newlines only: random bytes contain every other kind of line ending.
        prefix = b"[%d] " % rank
        got = b"".join(
            line[len(prefix) :] + b"\n" for line in result.stdout[:-1].split(b"\n") if line.startswith(prefix)
        )
        # A line of the other rank's bytes could begin with our prefix by chance; with these seeds none does.
        assert got == sent


@pytest.mark.parametrize("same", [False, True])
def test_a_flood_loses_nothing(tmp_path: Path, same: bool) -> None:
    """Even when both streams of every worker end up in one file, no line is cut by another."""
    app = script(
        tmp_path,
        "import os, sys\n"
        "for i in range(20_000):\n"
        "    print('out', i, 'x' * (i % 300))\n"
        "    if i % 10 == 0: print('err', i, file=sys.stderr)\n",
    )
    out = tmp_path / "out"
    with out.open("wb") as file:
        code = subprocess.run(
            launched.command("run", "-n", "4", app),
            stdout=file,
            stderr=subprocess.STDOUT if same else subprocess.DEVNULL,
            timeout=launched.PATIENCE_S,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        ).returncode
    assert code == 0
    want_out = [f"out {i} {'x' * (i % 300)}" for i in range(20_000)]
    want_err = [f"err {i}" for i in range(0, 20_000, 10)]
    for rank in range(4):
        got = lines_of(out.read_bytes(), rank).decode().splitlines()
        assert [line for line in got if line.startswith("out")] == want_out
        assert [line for line in got if line.startswith("err")] == (want_err if same else [])


def test_output_appears_while_the_worker_runs(tmp_path: Path) -> None:
    """Python buffers output to a pipe by default; a user who watches a job would see nothing."""
    job = launched.start("run", "-n", "1", script(tmp_path, "print('now')\ninput()"), stdin=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"[0] now\n"
    job.communicate(b"\n", timeout=launched.PATIENCE_S)
    assert job.returncode == 0


def test_without_prefix_bytes_are_untouched(tmp_path: Path) -> None:
    data = os.urandom(1_000_000) + b"no end"
    (tmp_path / "data").write_bytes(data)
    result = launched.run("run", "-n", "1", "--no-prefix", "cat", tmp_path / "data")
    assert result.stdout == data


def test_input_goes_to_rank_0_only() -> None:
    result = launched.run("run", "-n", "3", "sh", "-c", "echo got $(cat | wc -c)", stdin=b"12345\n")
    assert sorted(result.stdout.splitlines()) == [b"[0] got 6", b"[1] got 0", b"[2] got 0"]


def test_input_that_rank_0_does_not_read_stays_for_others() -> None:
    """In ``while read line; do tidemill run ...; done < list`` the job must not consume the list."""
    job = " ".join(launched.command("run", "-n", "2", "true"))
    result = subprocess.run(
        ["sh", "-c", f"{job}; cat"], input=b"one\ntwo\n", capture_output=True, timeout=launched.PATIENCE_S
    )
    assert result.stdout == b"one\ntwo\n"


def test_a_reader_that_leaves_ends_the_job(tmp_path: Path) -> None:
    """``tidemill run ... | head -1`` must end, though the workers print forever."""
    app = script(tmp_path, "while True: print('y' * 1000)")
    job = launched.start("run", "-n", "2", app)
    assert job.stdout is not None
    assert job.stdout.readline() in (b"[0] " + b"y" * 1000 + b"\n", b"[1] " + b"y" * 1000 + b"\n")
    job.stdout.close()
    assert job.wait(launched.PATIENCE_S) == 141
    assert job.stderr is not None
    job.stderr.close()


@pytest.mark.parametrize(
    ("closed", "out", "err"),
    [("<&-", 1, 1), (">&-", 0, 1), ("2>&-", 1, 0), ("<&- >&- 2>&-", 0, 0)],
)
def test_closed_standard_descriptors_are_harmless(closed: str, out: int, err: int) -> None:
    """The launcher's own pipes would get their numbers, and output would be misrouted."""
    job = " ".join(launched.command("run", "-n", "2", "sh", "-c", "'cat; echo out; echo err >&2'"))
    result = subprocess.run(
        ["sh", "-c", f"{job} {closed}"], stdin=subprocess.DEVNULL, capture_output=True, timeout=launched.PATIENCE_S
    )
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == out * [b"[0] out", b"[1] out"]
    assert sorted(result.stderr.splitlines()) == err * [b"[0] err", b"[1] err"]


def test_a_daemon_that_keeps_the_output_open_does_not_hold_the_job(tmp_path: Path) -> None:
    """A process in its own session is no longer part of the job, but it may still hold the pipes."""
    app = script(
        tmp_path,
        "import subprocess, sys\np = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nprint(p.pid)\n",
    )
    result = launched.run("run", "-n", "1", app)
    assert result.returncode == 0
    daemon = int(lines_of(result.stdout, 0))
    assert launched.is_running(daemon)
    os.kill(daemon, 9)


def test_the_environment_tells_a_worker_who_it_is(tmp_path: Path) -> None:
    """Rank 0 listens on the socket it inherited; the others find it at the address they were given."""
    app = script(
        tmp_path,
        "import os, socket\n"
        "e = {k[9:]: v for k, v in os.environ.items() if k.startswith('TIDEMILL_')}\n"
        "assert e['RANK'] == e['LOCAL_RANK'] and e['SIZE'] == e['LOCAL_SIZE'] == '3' and e['THREADS'] == '2'\n"
        "assert (e['TRANSPORT'], e['STALL_WARNING']) == ('tcp', '2.5')\n"
        "assert len(e['JOB']) == 16 and len(e['SECRET']) == 64 and os.environ['OMP_NUM_THREADS'] == '2'\n"
        "assert os.stat(e['CRASH_DIR']).st_mode & 0o777 == 0o700\n"
        "if e['RANK'] == '0':\n"
        "    s = socket.socket(fileno=int(e['LISTEN_FD']))\n"
        "    print('met', sorted(s.accept()[0].recv(1) for _ in range(2)))\n"
        "else:\n"
        "    assert 'LISTEN_FD' not in e\n"
        "    host, port = e['ROOT'].split(':')\n"
        "    socket.create_connection((host, int(port))).sendall(e['RANK'].encode())\n",
    )
    options = ["--threads", "2", "--transport", "tcp", "--stall-warning", "2.5"]
    # As if the launcher ran inside a worker: nothing of that worker may leak.
    result = launched.run(
        "run", "-n", "3", *options, app, env={"TIDEMILL_LISTEN_FD": "99", "TIDEMILL_RANK": "9", "OMP_NUM_THREADS": "2"}
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == b"[0] met [b'1', b'2']\n"


def test_each_worker_has_cores_of_its_own(tmp_path: Path) -> None:
    """With fewer cores than workers, none is bound: two on one core would wait for each other."""
    app = script(tmp_path, "import os; print(*sorted(os.sched_getaffinity(0)), os.environ.get('TIDEMILL_BOUND'))")
    cores = {str(core) for core in os.sched_getaffinity(0)}
    for workers, options in [(1, []), (2, []), (2, ["--no-bind"]), (len(cores) + 1, [])]:
        out = launched.run("run", "-n", str(workers), *options, app, env={"TIDEMILL_BOUND": "1"}).stdout
        shares = []
        for rank in range(workers):
            *share, bound = lines_of(out, rank).decode().split()
            assert bound == ("None" if options or workers > len(cores) else "1")
            shares.append(set(share))
        if options or workers > len(cores):
            assert shares == [cores] * workers
        else:
            assert sum(map(len, shares)) == len(set().union(*shares)), "no core goes to two workers"
            assert set().union(*shares) <= cores
            assert min(map(len, shares)) >= len(cores) // workers


def test_the_secret_is_nobody_elses(tmp_path: Path) -> None:
    """Any user can read the arguments of any process."""
    app = script(
        tmp_path,
        "import os, pathlib\n"
        "secret = os.environ['TIDEMILL_SECRET'].encode()\n"
        "for file in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    try: assert secret not in file.read_bytes()\n"
        "    except OSError: pass\n",
    )
    assert launched.run("run", "-n", "2", app).returncode == 0


def test_modules_and_any_program(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:], sys.executable)")
    result = launched.run("run", "-n", "1", "-m", "mod", "a", "-m", env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout == f"[0] __main__ ['a', '-m'] {sys.executable}\n".encode()


def test_many_workers() -> None:
    result = launched.run("run", "-n", "64", "sh", "-c", "echo $TIDEMILL_RANK of $TIDEMILL_SIZE")
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == sorted(b"[%d] %d of 64" % (r, r) for r in range(64))
