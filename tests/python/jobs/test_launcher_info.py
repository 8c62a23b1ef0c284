"""``tidemill info`` and the command line around it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import launched
import pytest
import tidemill


def test_info_for_programs() -> None:
    facts = json.loads(launched.run("info", "--json").stdout)
    assert facts["machine"]["cores"]["usable"] >= 1
    assert facts["transports"]["TCP"] is True
    assert facts["limits"]["open files"] >= 1
    for problem in facts["problems"]:
        assert problem["problem"] and problem["remedy"]


def test_info_names_what_is_wrong_and_the_remedy() -> None:
    command = " ".join(launched.command("info"))
    result = subprocess.run(["sh", "-c", f"ulimit -n 64; {command}"], capture_output=True, timeout=launched.PATIENCE_S)
    assert result.returncode == 0
    assert b"! open files" in result.stdout and b"remedy: ulimit -n" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"), [([], ["shm", "same host"]), (["--transport", "tcp"], ["tcp", "TIDEMILL_TRANSPORT"])]
)
def test_info_of_a_job_measures_its_links(options: list[str], words: list[str]) -> None:
    done = launched.run("info", "--job", "-n", "2", *options)
    assert done.returncode == 0, done.stderr.decode()
    [link] = [line for line in done.stdout.decode().splitlines() if " us " in line]
    assert "GB/s" in link and all(word in link for word in words), link


def test_info_of_a_job_is_json_for_programs() -> None:
    done = launched.run("info", "--job", "-n", "3", "--json")
    here, *others = json.loads(done.stdout)
    assert here["rank"] == 0 and "latency_us" not in here
    assert [other["rank"] for other in others] == [1, 2]
    assert all(other["latency_us"] > 0 and other["bandwidth_gb_s"] > 0 for other in others)


def test_workers_know_the_core_and_the_socket_they_are_pinned_to(tmp_path: Path) -> None:
    """Each worker pins itself differently; what it tells its peers must match what Linux says about that processor."""
    processors = sorted(os.sched_getaffinity(0))
    pins = [{processors[0]}, {processors[-1]}, set(processors)]
    app = tmp_path / "app.py"
    app.write_text(
        f"""
import json, os, sys
os.sched_setaffinity(0, {pins}[int(os.environ["TIDEMILL_RANK"])])
import tidemill as tm
job = tm.init()
sys.stdout.write(json.dumps([[w[key] for key in ("rank", "host", "host_id", "cores", "socket", "core", "pid")] for w in job.workers] + [os.getpid()]) + "\\n")
"""
    )
    done = launched.run("run", "-n", str(len(pins)), "--no-bind", "--no-prefix", app)
    assert done.returncode == 0, done.stderr.decode()
    told = [json.loads(line) for line in done.stdout.splitlines()]
    pids = {each[-1] for each in told}
    workers = [worker[:-1] for worker in told[0][:-1]]
    assert all(each[:-1] == told[0][:-1] for each in told), "all workers are told the same"
    assert {worker[-1] for worker in told[0][:-1]} == pids

    def place(pin: set[int]) -> list[int | None]:
        """The number of cores that a pinned process may use, then socket and core, according to Linux."""

        def the(what: str) -> int | None:
            files = (Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{what}") for cpu in pin)
            found = {int(file.read_text()) for file in files}
            # Virtual machines report -1 where they do not know.
            return found.pop() if len(found) == 1 and min(found) >= 0 else None

        socket = the("physical_package_id")
        return [socket, None if socket is None else the("core_id")]

    for rank, (worker, pin) in enumerate(zip(workers, pins, strict=True)):
        assert worker[:3] == [rank, os.uname().nodename, 0]
        # A container's quota may allow fewer.
        assert 1 <= worker[3] <= len(pin)
        assert worker[4:] == place(pin)


def test_workers_of_a_host_share_its_processors(tmp_path: Path) -> None:
    """Where nothing binds them, as under srun without its plugin, each used to start a thread for every processor."""
    app = tmp_path / "app.py"
    app.write_text(
        """
import json, os, sys
import tidemill as tm
from tidemill._membership import share
before = share()
job = tm.init()
joined = share()
os.environ.pop("TIDEMILL_THREADS")
from tidemill._tables.engine import copies
from tidemill.ml._threads import pool
threads, per_query = pool().threads, copies() // job.size
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.stdout.write(json.dumps([job.rank, before, joined, threads, per_query, share()]) + "\\n")
"""
    )
    cpus = len(os.sched_getaffinity(0))
    done = launched.run("run", "-n", "2", "--no-bind", "--no-prefix", app)
    assert done.returncode == 0, done.stderr.decode()
    for rank, before, joined, threads, per_query, pinned in map(json.loads, done.stdout.splitlines()):
        assert before == joined, "the launcher and the workers agree"
        assert joined[:3] == [cpus, 2, rank]
        # A container's quota may allow fewer.
        assert 0 <= joined[3] <= cpus // 2 and joined[4] == max(1, joined[3])
        assert threads == per_query == joined[4]
        assert pinned[0] == 1


def test_what_a_launcher_says_counts_before_a_job_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill._tidemill import share_of_process

    for name in [name for name in os.environ if name.startswith(("TIDEMILL_", "SLURM_", "OMPI_", "PMI"))]:
        monkeypatch.delenv(name)
    cpus, workers, index, room, threads = share_of_process(False)
    assert (cpus, workers, index, threads) == (len(os.sched_getaffinity(0)), 1, 0, max(1, room))
    srun = {"PROCID": "3", "LOCALID": "1", "STEP_ID": "0", "STEP_NUM_TASKS": "4", "STEP_NUM_NODES": "2"}
    srun |= {"STEP_TASKS_PER_NODE": "2(x2)", "NODEID": "1", "CPUS_PER_TASK": "1"}
    for name, value in {**srun, "JOB_ID": "7"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PMIX_NAMESPACE", "s")
    assert share_of_process(False)[:3] == (cpus, 2, 1)
    assert share_of_process(False)[4] == 1
    assert share_of_process(True)[:3] == (cpus, 1, 0), "bound by the launcher"


def test_info_of_a_job_says_where_its_workers_are() -> None:
    """For people to read: each worker's host, and the core it has for itself."""
    heads, *rows = launched.run("info", "--job", "-n", "2").stdout.decode().splitlines()
    assert heads.split()[:6] == ["rank", "host", "pid", "cores", "socket", "core"]
    for rank, row in enumerate(rows[:2]):
        shown = row.split()
        assert shown[:2] == [str(rank), os.uname().nodename[:16]]
        assert all(re.fullmatch(r"-|\d+", cell) for cell in shown[2:6]), row


def test_few_open_files_are_enough_to_start_many_workers() -> None:
    """The soft limit is raised for the launcher's pipes and put back for the workers."""
    command = " ".join(launched.command("run", "-n", "40", "sh", "-c", "'ulimit -n'"))
    result = subprocess.run(
        ["sh", "-c", f"ulimit -S -n 80; {command}"], capture_output=True, timeout=launched.PATIENCE_S
    )
    assert sorted(result.stdout.splitlines()) == sorted(b"[%d] 80" % rank for rank in range(40))


def test_version_and_help() -> None:
    version = launched.run("--version")
    assert (version.returncode, version.stdout) == (0, b"tidemill " + _version().encode() + b"\n")
    for words in ([], ["run"], ["info"]):
        text = launched.run(*words, "--help")
        assert text.returncode == 0 and b"Usage" in text.stdout
    assert b"kmeans" in launched.run("--help").stdout


def test_an_application_explains_itself_once() -> None:
    """Its help lists its own options and the job's; one worker is enough to print it."""
    result = launched.run("kmeans", "-n", "2", "--help")
    assert result.returncode == 0 and not result.stderr
    assert result.stdout.startswith(b"usage: tidemill kmeans") and b"--threads T" in result.stdout


def test_a_program_without_run_is_a_hint() -> None:
    result = launched.run("app.py")
    assert result.returncode == 2 and b"tidemill run app.py" in result.stderr


def test_the_command_starts_quickly_without_numpy() -> None:
    """Half a second of imports before every job would be noticeable; imports are what takes the time."""
    code = "import sys, tidemill.cli; print(sorted({'numpy', 'pyarrow', 'pandas'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ, timeout=launched.PATIENCE_S)
    assert out.stdout == b"[]\n"


def _version() -> str:
    from tidemill import _tidemill

    assert tidemill.__doc__
    return _tidemill.__version__
