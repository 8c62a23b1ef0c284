"""How each system is started: the one place that knows the peers' launchers, settings and environment variables.

Every choice here was the fastest of those tried on this kind of machine (a small virtual machine without RDMA); the
reasons are in `bench/README.md`, the trials in `bench/try_settings.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BENCH = Path(__file__).resolve().parent.parent
PEERS = BENCH / ".peers"
SPARK = PEERS / "spark"
#: Of Debian, for the system's own Python.
GLOO_PYTHON, TORCH = Path("/usr/bin/python3"), Path("/usr/lib/python3/dist-packages/torch")
WORKER = BENCH / "harness" / "comm_worker.py"


@dataclass(frozen=True)
class Launch:
    """A command that starts all workers of one system, and what it adds to the environment."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        # Compiling Python's modules anew at every start is nobody's best setting.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**inherited, **self.env}

    def start(self, output: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Starts it in a session of its own: a launcher that hangs is then killed together with its workers.

        What it says, errors too, goes to `output`.
        """
        return subprocess.Popen(
            self.argv,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@dataclass(frozen=True)
class System:
    """One system under measurement: its launcher, the Python it runs in, and how its workers are started."""

    name: str
    launcher: str | None  # None: Tidemill, whose absence is found by starting it, with its own message
    python: Path
    prefix: Callable[[int, str], tuple[list[str], dict[str, str]]]  # (workers, transport) -> command, environment

    def missing(self) -> str | None:
        """What keeps this system from running here, as one line with the remedy; None when it can run."""
        if self.launcher and (shutil.which(self.launcher) is None or not self.python.exists()):
            return f"{Path(self.launcher).name} or {self.python.relative_to(BENCH.parent)} is missing: run bench/setup_peers.sh"
        return None

    def launch(self, workers: int, transport: str, program: list[str], options: Sequence[str] = ()) -> Launch:
        """Starts `program` (a Python file and its arguments) on `workers` workers over `transport` (shm or tcp)."""
        interpreter = [] if self.launcher is None else [str(self.python)]
        return self.launch_binary(workers, transport, [*interpreter, *program], options)

    def launch_binary(self, workers: int, transport: str, command: list[str], options: Sequence[str] = ()) -> Launch:
        """The same for any command; `options` are further ones of the launcher."""
        prefix, env = self.prefix(workers, transport)
        return Launch([*prefix, *options, *command], {**SINGLE_THREADED, **env})


# One worker is one core's worth of work: no BLAS threads behind its back.
SINGLE_THREADED = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def oversubscribed(workers: int) -> bool:
    return workers > len(os.sched_getaffinity(0))


def tidemill_prefix(workers: int, transport: str) -> tuple[list[str], dict[str, str]]:
    env = {"TIDEMILL_TRANSPORT": "tcp"} if transport == "tcp" else {}
    return [sys.executable, "-m", "tidemill", "run", "-n", str(workers)], env


def openmpi_prefix(workers: int, transport: str) -> tuple[list[str], dict[str, str]]:
    argv = ["mpirun.openmpi", "-n", str(workers)]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    btl = "tcp,self" if transport == "tcp" else "vader,self"
    # ob1 is named so that no other layer (UCX) takes the traffic of the transport that is measured.
    argv += ["--mca", "pml", "ob1", "--mca", "btl", btl, "--mca", "btl_vader_single_copy_mechanism", "cma"]
    if transport == "tcp":
        argv += ["--mca", "btl_tcp_if_include", "lo"]
    if oversubscribed(workers):
        # Bound in turn: left to the kernel, ranks are spread unevenly while they run in short bursts.
        argv += ["--oversubscribe", "--bind-to", "core:overload-allowed", "--map-by", "core"]
        argv += ["--mca", "mpi_yield_when_idle", "1"]
    else:
        argv += ["--bind-to", "core", "--map-by", "core"]
    # mpi4py asks for MPI_THREAD_MULTIPLE unless told otherwise, which costs the peer a lock per call.
    return argv, {"MPI4PY_RC_THREADS": "0"}


def openmpi5_prefix(workers: int, transport: str) -> tuple[list[str], dict[str, str]]:
    """Open MPI 5 from its wheel, by its own names: `sm` is what was `vader`, and single copies are a framework, `smsc`."""
    argv = [str(PEERS / "openmpi5" / "bin" / "mpirun"), "-n", str(workers)]
    if os.geteuid() == 0:
        argv.append("--allow-run-as-root")
    env = {"MPI4PY_RC_THREADS": "0"}
    if transport == "tcp":
        argv += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    elif oversubscribed(workers):
        argv += ["--mca", "pml", "ob1", "--mca", "btl", "sm,self", "--mca", "smsc", "cma"]
    else:
        # The wheel has UCX in it, which takes less time here than `sm` where each rank has a core of its own.
        argv += [
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "opal_common_ucx_tls",
            "any",
            "--mca",
            "opal_common_ucx_devices",
            "any",
        ]
        env["UCX_TLS"] = "posix,cma,self"
    if oversubscribed(workers):
        argv += ["--map-by", "core:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"]
        argv += ["--mca", "mpi_yield_when_idle", "1"]
    else:
        argv += ["--map-by", "core", "--bind-to", "core"]
    return argv, env


def mpich_prefix(workers: int, transport: str) -> tuple[list[str], dict[str, str]]:
    argv = ["mpiexec.hydra", "-n", str(workers), "-bind-to", "none" if oversubscribed(workers) else "core"]
    # Debian builds MPICH on UCX. NOLOCAL switches off MPICH's own shared memory, so that UCX carries everything: on one
    # host its segments and CMA are a little faster, most so for bcast and barrier; for TCP nothing else then remains.
    transports = {"shm": {"UCX_TLS": "posix,cma,self"}, "tcp": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}}
    return argv, {"MPI4PY_RC_THREADS": "0", "MPIR_CVAR_NOLOCAL": "1", **transports[transport]}


SYSTEMS = {
    system.name: system
    for system in (
        System("tidemill", None, Path(sys.executable), tidemill_prefix),
        System("openmpi", "mpirun.openmpi", PEERS / "openmpi" / "bin" / "python", openmpi_prefix),
        System(
            "openmpi5",
            str(PEERS / "openmpi5" / "bin" / "mpirun"),
            PEERS / "openmpi5" / "bin" / "python",
            openmpi5_prefix,
        ),
        System("mpich", "mpiexec.hydra", PEERS / "mpich" / "bin" / "python", mpich_prefix),
    )
}


def spark_submit(program: str, given: Sequence[str], heap: str) -> Launch:
    """A program in Java with Spark's libraries; it says itself on how many cores."""
    (home,) = SPARK.glob("lib/python*/site-packages/pyspark")
    argv = [str(home / "bin" / "spark-submit"), "--driver-memory", heap, "--driver-java-options", "-XX:+UseParallelGC"]
    argv += ["--class", program, "--driver-class-path", str(SPARK / "classes"), "spark-internal", *given]
    return Launch(argv, {"SPARK_HOME": str(home)})


def present(
    setting: str,
    systems: Sequence[str] | None,
    known: Iterable[str],
    missing: Callable[[str], str | None],
    say: Callable[[str], None],
) -> list[str]:
    """Those of the known systems that shall run and can; in the tiny setting Tidemill alone, unless others are asked for."""
    found = []
    for system in known:
        if setting == "tiny" and not systems and not system.startswith("tidemill"):
            continue
        if systems and not any(system == given or system.startswith(given + "-") for given in systems):
            continue
        if why := missing(system):
            say(f"{system} is left out: {why}")
        else:
            found.append(system)
    return found
