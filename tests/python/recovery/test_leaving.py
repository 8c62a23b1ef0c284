"""A worker may end at any time: what it has sent arrives, those that need more from it are told, and strangers are
named.
"""

from __future__ import annotations

import socket
from pathlib import Path

import launched
import pytest
import workers
from local_servers.server import free_ports

TRANSPORTS = ["auto", "tcp"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("first", [0, 1])
def test_who_waits_for_a_worker_that_has_ended_is_told(tmp_path: Path, transport: str, first: int) -> None:
    """Rank 0 stays until the others have left; over TCP they waited for it, and it for them."""
    program = f"""
        import sys
        import tidemill as tm

        comm = tm.init().comm
        if comm.rank == {first}:
            sys.exit(0)
        try:
            comm.Barrier()
        except tm.PeerFailed as error:
            print(error.rank, "has left the job" in str(error))
    """
    with workers.Job(tmp_path, 2, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        results = job.finish()
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[1 - first][1] == f"{first} True\n", results


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "send", ["comm.Bsend(a, 0)", "comm.Isend(a, 0).Free()", "comm.bsend(a, 0)", "comm.ibsend(a, 0)"]
)
def test_what_was_sent_is_received_after_its_sender_has_ended(tmp_path: Path, transport: str, send: str) -> None:
    """A send that was complete for its sender was lost when the sender ended, and its receiver waited forever."""
    receive = "a = comm.recv(source=1)" if "bsend(" in send else "comm.Recv(a, 1)"
    program = f"""
        import time
        import numpy as np
        import tidemill as tm

        comm = tm.init().comm
        comm.Barrier()
        a = np.full(1_000_000, float(comm.rank))
        if comm.rank == 1:
            {send}
        else:
            time.sleep(1)  # time enough for the other to end, if it does not wait
            {receive}
            print(int(a.sum()))
    """
    with workers.Job(tmp_path, 2, program, {"TIDEMILL_TRANSPORT": transport}) as job:
        assert job.succeed() == ["1000000\n", ""]


def test_an_ordinary_job_says_nothing(tmp_path: Path) -> None:
    """Nobody reads warnings that come with every job."""
    program = "import tidemill as tm; tm.init().comm.Barrier()"
    with workers.Job(tmp_path, 3, program) as job:
        results = job.finish()
    assert results == [(0, "", "")] * 3
    result = launched.run("run", "-n", "2", tmp_path / "app.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_a_stranger_is_refused_and_named(tmp_path: Path) -> None:
    """An attempt to connect to the job's port must not go unnoticed."""
    (port,) = free_ports(1)
    late = {1: ["sh", "-c", 'while [ ! -e go ]; do sleep 0.05; done; exec "$@"', "sh"]}
    program = "import tidemill as tm; tm.init().comm.Barrier()"
    with workers.Job(tmp_path, 2, program, {"MASTER_PORT": str(port)}, late) as job:

        def is_answered() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=launched.PATIENCE_S) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + b"x" * 1000)
                    while stranger.recv(4096):
                        pass
            except ConnectionRefusedError:
                return False
            except ConnectionResetError:
                pass
            return True

        launched.wait_until(is_answered, "rank 0 listens")
        (tmp_path / "go").touch()
        results = job.finish()
    assert [code for code, _, _ in results] == [0, 0], results
    assert "tidemill: rank 0: refused a connection from 127.0.0.1:" in results[0][2], results


def test_a_job_without_a_secret_says_so(tmp_path: Path) -> None:
    """Whoever can connect can take a worker's place; only the user knows whether somebody can."""
    program = "import tidemill as tm; tm.init().comm.Barrier()"
    # Not one of this host's names by which workers meet without a port.
    env = {"TIDEMILL_SECRET": "", "MASTER_ADDR": "127.0.0.2"}
    with workers.Job(tmp_path, 2, program, env) as job:
        results = job.finish()
    assert [code for code, _, _ in results] == [0, 0], results
    assert "tidemill: rank 0: the job has no secret: anyone who can connect to 127.0.0.2" in results[0][2], results
    assert results[1][2] == ""


def test_the_ends_of_a_very_long_traceback_are_shown(tmp_path: Path) -> None:
    """The report was cut at 4 MiB, no longer made sense, and nothing was shown at all."""
    script = tmp_path / "app.py"
    script.write_text(
        "import tidemill as tm\n"
        "comm = tm.init().comm\n"
        "if comm.rank == 1:\n"
        "    raise ValueError('begin' + 'x' * 20_000_000 + 'end')\n"
        "comm.Barrier()\n"
    )
    result = launched.run("run", "-n", "2", script)
    assert result.returncode == 1
    assert (
        b"ValueError: begin" in result.stderr and b"characters left out" in result.stderr and b"xend" in result.stderr
    )
    assert len(result.stderr) < 1_000_000


def test_parts_of_mpi4py_beside_mpi_say_what_there_is_instead() -> None:
    """Importing a missing part would only say that there is no such module."""
    from tidemill import UnsupportedError

    with pytest.raises(UnsupportedError, match=r"mpi4py\.futures\.MPIPoolExecutor.*tidemill\.run"):
        from tidemill.mpi.futures import MPIPoolExecutor  # noqa: F401
    with pytest.raises(UnsupportedError, match=r"mpi4py\.util\.pool"):
        from tidemill.mpi.util import pool  # noqa: F401
    from tidemill.mpi import rc

    rc.initialize = False
