"""Peers of the benchmark of networks that are programs: the GAP reference and libgrape-lite, from folders that the user names, and GraphX.

Each reads the files that `networks.py` writes, and prints its own times.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import graphs
from .systems import SPARK, SYSTEMS, Launch, spark_submit

#: Of a kernel, the program of the GAP reference, and whether links have directions and lengths.
GAP_PROGRAMS = {
    "pagerank": ("pr", True, False),
    "bfs": ("bfs", True, False),
    "paths": ("sssp", True, True),
    "components": ("cc", False, False),
    "triangles": ("tc", False, False),
    "betweenness": ("bc", False, False),
}
#: Of a kernel, the application of libgrape-lite, and whether links have directions and lengths.
GRAPE_APPLICATIONS = {
    "pagerank": ("pagerank", True, False),
    "bfs": ("bfs", True, False),
    "paths": ("sssp", True, True),
    "components": ("wcc", False, False),
}
TRIALS = 3
GRAPHX_CLASS = SPARK / "classes" / "NetworksSpark.class"
ALPHA, TOLERANCE = 0.85, 1e-6


def threads_of(system: str) -> str:
    return system.rsplit("-", 1)[1]


# --- what keeps them from running ------------------------------------------------------------------------------------
def gap_missing(folder: Path | None) -> str | None:
    if folder is None:
        return "no folder of it was named: --gap FOLDER"
    lacking = [name for name, _, _ in GAP_PROGRAMS.values() if not (folder / name).exists()]
    return f"{', '.join(lacking)} are not in {folder}: run make there" if lacking else None


def grape_missing(folder: Path | None) -> str | None:
    if folder is None:
        return "no folder of it was named: --grape FOLDER"
    if not (folder / "run_app").exists():
        build = "cmake -DCMAKE_BUILD_TYPE=Release .. && make analytical_apps"
        return f"run_app is not in {folder}: name the folder in which you built libgrape-lite ({build})"
    cache = folder / "CMakeCache.txt"
    if cache.exists() and "CMAKE_BUILD_TYPE:STRING=Debug" in cache.read_text():
        # The default in a clone of its repository: no optimization, and counters of coverage.
        return (
            f"{folder} is a Debug build, whose times say nothing: run cmake -DCMAKE_BUILD_TYPE=Release and make again"
        )
    return None if shutil.which("mpirun.openmpi") else "mpirun.openmpi is missing: run bench/setup_peers.sh openmpi"


def graphx_missing() -> str | None:
    if not shutil.which("java") or not GRAPHX_CLASS.exists():
        return "not installed: run bench/setup_peers.sh spark"
    return None


# --- the GAP reference -----------------------------------------------------------------------------------------------
def run_gap(
    system: str, gap: Path, graph: graphs.Graph, folder: Path, kernels: Sequence[str], timeout_s: float, verify: bool
) -> dict[str, Any]:
    """The programs of the reference, and their own verification."""
    seconds: dict[str, float] = {}
    failures: dict[str, str] = {}
    env = {"OMP_NUM_THREADS": threads_of(system)}
    sources = json.loads((folder / "facts.json").read_text())["sources"]
    more = {
        "pagerank": ["-t", str(TOLERANCE), "-i", "100"],
        "bfs": ["-r", str(sources[0])],
        "paths": ["-r", str(sources[0]), "-d", str(max(1, int(np.median(graph.lengths))))],
        "betweenness": ["-r", str(sources[0]), "-i", "1"],
    }
    for kernel in kernels:
        if kernel not in GAP_PROGRAMS:
            continue
        program, directed, lengths = GAP_PROGRAMS[kernel]
        file = folder / ("links.wel" if lengths else "links.el")
        command = [str(gap / program), "-f", str(file), *([] if directed else ["-s"]), *more.get(kernel, ())]
        try:
            # Verified in a run of its own, so that its time does not count.
            checked = output(Launch([*command, "-n", "1", "-v"], env), timeout_s) if verify else "PASS"
            done = output(Launch([*command, "-n", str(TRIALS)], env), timeout_s)
        except subprocess.TimeoutExpired:
            failures[kernel] = f"took longer than {timeout_s:.0f} s"
            continue
        trials = gap_times("Trial", done)
        if "PASS" not in checked or len(trials) != TRIALS:
            failures[kernel] = "its own verification failed, or it ended early"
            continue
        seconds[kernel] = statistics.median(trials)
        if kernel == "betweenness":
            # From one source at a time.
            seconds[kernel] *= len(sources)
        if kernel == "pagerank":
            (built,) = gap_times("Build", done)
            seconds |= {"build": built, "read": built + sum(gap_times("Read", done))}
    return {"kernel_s": seconds, "failures": failures}


def output(command: Launch, timeout_s: float) -> str:
    done = subprocess.run(
        command.argv, env=command.environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return done.stdout + done.stderr


def gap_times(of: str, output: str) -> list[float]:
    return [float(text) for text in re.findall(rf"^{of} Time: +([\d.]+)", output, re.MULTILINE)]


# --- libgrape-lite ---------------------------------------------------------------------------------------------------
def run_grape(
    system: str, grape: Path, graph: graphs.Graph, folder: Path, kernels: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    """An application for each kernel, on as many workers of Open MPI, each with one thread; it runs once from start to end."""
    seconds: dict[str, float] = {}
    failures: dict[str, str] = {}
    workers = threads_of(system)
    facts = json.loads((folder / "facts.json").read_text())
    source = str(facts["sources"][0])
    np.savetxt(folder / "nodes.v", np.arange(graph.nodes), "%d")
    np.savetxt(folder / "undirected.el", np.load(folder / "undirected.npy"), "%d", delimiter=" ")
    more = {
        "pagerank": ["--pr_d", str(ALPHA), "--pr_mr", str(iterations(graph))],
        "bfs": ["--bfs_source", source],
        "paths": ["--sssp_source", source],
    }
    for kernel in kernels:
        if kernel not in GRAPE_APPLICATIONS:
            continue
        application, directed, lengths = GRAPE_APPLICATIONS[kernel]
        links = folder / ("links.wel" if lengths else "links.el" if directed else "undirected.el")
        found = folder / f"{system}-{kernel}"
        given = ["--application", application, "--vfile", str(folder / "nodes.v"), "--efile", str(links)]
        given += [f"--directed={str(directed).lower()}", "--app_concurrency", "1", "--out_prefix", str(found)]
        command = [str(grape / "run_app"), *given, *more.get(kernel, ())]
        try:
            done = output(SYSTEMS["openmpi"].launch_binary(int(workers), "shm", command), timeout_s)
        except subprocess.TimeoutExpired:
            failures[kernel] = f"took longer than {timeout_s:.0f} s"
            continue
        times = {name: float(took) for name, took in re.findall(r"^ - ([\w ]+): ([\d.e+-]+) sec", done, re.MULTILINE)}
        if "run algorithm" not in times or not found.exists():
            failures[kernel] = " | ".join(done.strip().splitlines()[-2:]) or "it ended early"
            continue
        seconds[kernel] = times["run algorithm"]
        if kernel == "pagerank":
            seconds["read"] = times["load graph"]
        np.save(folder / f"{system}-{kernel}.npy", grape_answer(kernel, found, graph.nodes))
    return {"kernel_s": seconds, "failures": failures}


def grape_answer(kernel: str, found: Path, nodes: int) -> Any:
    """What it wrote, a node and its value in each line of a file for each worker, in the form that is compared."""
    values = np.empty(nodes)
    for file in found.iterdir():
        for line in file.read_text().splitlines():
            node, value = line.split()
            values[int(node)] = float(value)
    if kernel == "components":
        _, sizes = np.unique(values, return_counts=True)
        return np.array([len(sizes), sizes.max()], np.float64)
    if kernel != "pagerank":
        # Not reached: the largest integer, or infinity.
        values[values > 1e18] = np.inf
    return values


def iterations(graph: graphs.Graph) -> int:
    """How many iterations of PageRank the rule of the others takes: until all changes add up to less than 1e-6."""
    sources, targets = graph.links.T
    leaving = np.bincount(sources, minlength=graph.nodes)
    scores, change, count = np.full(graph.nodes, 1 / graph.nodes), 1.0, 0
    while change >= TOLERANCE:
        handed = np.bincount(targets, (scores / np.maximum(leaving, 1))[sources], graph.nodes)
        new = ALPHA * handed + (1 - ALPHA + ALPHA * scores[leaving == 0].sum()) / graph.nodes
        change, scores, count = np.abs(new - scores).sum(), new, count + 1
    return count


# --- GraphX ----------------------------------------------------------------------------------------------------------
def launch_graphx(system: str, graph: graphs.Graph, folder: Path, kernels: Sequence[str], enough_s: float) -> Launch:
    (source, *_) = json.loads((folder / "facts.json").read_text())["sources"]
    given = [threads_of(system), str(folder), str(graph.nodes), str(source), ",".join(kernels), str(enough_s)]
    return spark_submit("NetworksSpark", given, heap="4g")
