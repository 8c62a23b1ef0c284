"""What the kernel refuses to a job makes it slower, not wrong; and the job says so, once.

A filter of system calls (seccomp) refuses it to the workers, as sandboxes and containers do.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import launched
import pytest

#: Numbers of system calls on x86-64.
PROCESS_VM_READV, MEMFD_CREATE = 310, 319

#: ``python refuse.py NUMBER RANKS PROGRAM...`` runs the program, and refuses the system call to these ranks.
REFUSE = """
import ctypes, errno, os, struct, sys

number, ranks, program = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
if os.environ["TIDEMILL_RANK"] in ranks:
    PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
    LOAD, IS_EQUAL, RETURN = 0x20, 0x15, 0x06
    step = struct.Struct("HBBI")
    steps = [
        step.pack(LOAD, 0, 0, 0),  # the number of the call
        step.pack(IS_EQUAL, 0, 1, number),
        step.pack(RETURN, 0, 0, 0x00050000 | errno.EPERM),
        step.pack(RETURN, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(steps))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(whole))):
        if libc.prctl(*call):
            raise SystemExit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execv(sys.executable, [sys.executable, *program])
"""

PROGRAM = """
import numpy as np
import tidemill as tm

job = tm.init()
comm = job.comm
for n in (1, 300_000):
    total = np.empty(n)
    comm.Allreduce(np.full(n, comm.rank + 1.0), total)
    assert (total == comm.size * (comm.size + 1) / 2).all()
print(sorted({str(worker["transport"]) for worker in job.workers}), all(worker["single_copy"] for worker in job.workers))
"""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64"
)


def job(
    folder: Path, refused: int, ranks: str, *options: str, env: dict[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Run three workers, some of which are refused a system call; return what they print, and what the user is told."""
    (folder / "refuse.py").write_text(REFUSE)
    (folder / "app.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "refuse.py"), str(refused), ranks, str(folder / "app.py")]
    done: subprocess.CompletedProcess[bytes] = launched.run("run", "-n", "3", *options, *command, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return sorted(done.stdout.decode().splitlines()), done.stderr.decode().splitlines()


def test_no_single_copies_is_said_once(tmp_path: Path) -> None:
    """Each worker cannot read both others: six lines would repeat each other, and none would leave the user in the
    dark.
    """
    printed, said = job(tmp_path, PROCESS_VM_READV, "0,1,2")
    assert printed == [f"[{rank}] ['None', 'shm'] False" for rank in range(3)]
    [line] = said
    assert "slower than possible: from rank(s) 0, 1, 2 to rank(s) 0, 1, 2: no single copies of large messages" in line
    assert "process_vm_readv" in line and "ptrace_scope" in line, "the reason, and where to look"


def test_no_shared_memory_of_one_worker_is_said_once(tmp_path: Path) -> None:
    """Only the worker that is refused knows why; the line must give its reason, not that its peers miss it."""
    printed, said = job(tmp_path, MEMFD_CREATE, "1")
    assert printed == [
        "[0] ['None', 'shm', 'tcp'] False",
        "[1] ['None', 'tcp'] False",
        "[2] ['None', 'shm', 'tcp'] False",
    ]
    [line] = said
    assert "slower than possible: from rank(s) 1 to rank(s) 0, 2: no shared memory on this host: cannot create" in line
    assert "not permitted" in line


@pytest.mark.parametrize(
    ("options", "env"),
    [(["--transport", "tcp"], {}), ([], {"TIDEMILL_SINGLE_COPY": "0"})],
    ids=["tcp", "no single copies"],
)
def test_what_the_user_wants_is_no_warning(tmp_path: Path, options: list[str], env: dict[str, str]) -> None:
    _, said = job(tmp_path, PROCESS_VM_READV, "0,1,2", *options, env=env)
    assert said == []


def test_shared_memory_that_is_asked_for_is_not_replaced(tmp_path: Path) -> None:
    """A user who asks for shared memory must not get something slower, with or without a warning."""
    (tmp_path / "refuse.py").write_text(REFUSE)
    (tmp_path / "app.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "refuse.py"), str(MEMFD_CREATE), "1", str(tmp_path / "app.py")]
    done = launched.run("run", "-n", "3", "--transport", "shm", *command)
    assert done.returncode != 0 and b"TIDEMILL_TRANSPORT=shm" in done.stderr, done.stderr.decode()


@pytest.mark.parametrize("how", ["size=64k", "size=64k,ro"])
def test_nothing_needs_dev_shm(tmp_path: Path, how: str) -> None:
    """Containers have little of it, or none that is writable: the shared memory has no name, and counts elsewhere."""
    (tmp_path / "program.py").write_text(PROGRAM)
    mounted = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {how} tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*mounted, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a mount of its own")
    command = [*mounted, *launched.command("run", "-n", "2", "--transport", "shm", tmp_path / "program.py")]
    result = subprocess.run(command, capture_output=True, timeout=launched.PATIENCE_S)
    assert (result.returncode, result.stderr) == (0, b""), result
