"""The benchmark of networks: graph kernels beside other libraries on one worker, and partial beside global synchronization on emulated hosts.

Kernels: each system runs all kernels on a graph in one process, in turn over several rounds, with one thread and with two where it has threads. What
they found must be the same. Synchronization: see `networks_sync.py`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import graphs, networks_programs, networks_sync
from .comm import SystemFailed
from .once import in_turn, run_once
from .systems import BENCH, PEERS, SINGLE_THREADED, Launch, present
from .tables import OURS, cell, order, table

WORKER = str(BENCH / "harness" / "networks_worker.py")
KERNELS = ("read", "build", "pagerank", "bfs", "paths", "components", "triangles", "betweenness", "flow")
LIBRARIES = ("scipy-1", "igraph-1", "networkit-1", "networkit-2", "ortools-1", "rustworkx-1", "networkx-1")
GAP, GRAPE, GRAPHX = ("gap-1", "gap-2"), ("grape-1", "grape-2"), ("graphx-2",)
SYSTEMS = ("tidemill-1", "tidemill-2", *LIBRARIES, *GAP, *GRAPE, *GRAPHX)
#: Pure Python takes minutes on more links, and Python's numbers in millions of links much memory.
NETWORKX_LINKS_MAX, NETWORKX_FLOW_LINKS_MAX, RUSTWORKX_LINKS_MAX = 200_000, 20_000, 5_000_000
#: Those with maximum flows, which are computed on graphs of their own.
FLOW_SYSTEMS = (OURS, "scipy", "igraph", "ortools", "networkx")
#: Of what the arrays of two systems may differ in sum: both end within about 6e-6 of the fixpoint.
TOLERANCES = {"pagerank": 2e-5, "betweenness": 1e-6}
RULES = {
    "tidemill": "sum of changes < 1e-6",
    "scipy": "sum of changes < 1e-6, a loop by hand over a product of a sparse matrix",
    "networkit": "sum of changes < 1e-6 (its norm set to L1), sinks distributed",
    "rustworkx": "sum of changes < 1e-6",
    "networkx": "sum of changes < 1e-6",
    "igraph": "PRPACK's own, a residual below 1e-10: more work",
    "gap": "sum of changes < 1e-6; nothing done about nodes without outgoing links, and in place: less work",
    "grape": "as many iterations as a sum of changes < 1e-6 takes",
    "graphx": "no score changes by more than 1e-6 of the mean; what does not change is not computed again",
}


@dataclass(frozen=True)
class Setting:
    graphs: tuple[str, ...]
    sources: int  # of betweenness
    rounds: int
    enough_s: float  # of the runs of a kernel in one process
    timeout_s: float
    sync: networks_sync.Setting


SETTINGS = {
    "full": Setting(
        graphs=("A", "B", "chung-lu-A", "chung-lu-B", "kronecker-20", *graphs.FILES, *graphs.FLOWS),
        sources=4,
        rounds=5,
        enough_s=3.0,
        timeout_s=1800,
        sync=networks_sync.Setting(8, (1000, 100, 10), ("A", "B", "chung-lu-A", *graphs.FILES), repeats=3),
    ),
    "quick": Setting(
        graphs=("votes", "kronecker-14", "roads", "A/4", *graphs.FLOWS),
        sources=4,
        rounds=2,
        enough_s=0.3,
        timeout_s=300,
        sync=networks_sync.Setting(4, (100, 10), ("A/4", "roads"), repeats=1),
    ),
    "tiny": Setting(
        graphs=("kronecker-8", "flow-grid-16"),
        sources=2,
        rounds=1,
        enough_s=0.01,
        timeout_s=120,
        sync=networks_sync.Setting(2, (100,), ("grid-16",), repeats=1),
    ),
}


# --- the systems -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Folders:
    """Of programs that the user has built."""

    gap: Path | None
    grape: Path | None


def missing(system: str, folders: Folders) -> str | None:
    if system in GAP:
        return networks_programs.gap_missing(folders.gap)
    if system in GRAPE:
        return networks_programs.grape_missing(folders.grape)
    if system in GRAPHX:
        return networks_programs.graphx_missing()
    if system in LIBRARIES and not (PEERS / "networks" / ".stamp").exists():
        return "not installed: run bench/setup_peers.sh networks"
    return None


def unfit(system: str, graph: graphs.Graph) -> bool:
    links = len(graph.links)
    if system.startswith("networkx") and graph.flow is not None:
        return links > NETWORKX_FLOW_LINKS_MAX
    if graph.flow is not None or system.startswith("ortools"):
        return graph.flow is None or system.rsplit("-", 1)[0] not in FLOW_SYSTEMS
    return (system.startswith("networkx") and links > NETWORKX_LINKS_MAX) or (
        system.startswith("rustworkx") and links > RUSTWORKX_LINKS_MAX
    )


def launch(system: str, folder: Path, kernels: Sequence[str], enough_s: float) -> Launch:
    name, threads = system.rsplit("-", 1)
    python = sys.executable if name == OURS else str(PEERS / "networks" / "bin" / "python")
    env = {variable: threads for variable in (*SINGLE_THREADED, "TIDEMILL_THREADS", "RAYON_NUM_THREADS")}
    return Launch([python, WORKER, name, threads, str(folder), ",".join(kernels), str(enough_s)], env)


# --- measuring -------------------------------------------------------------------------------------------------------
def write(graph: graphs.Graph, folder: Path, sources: int) -> None:
    """The files that all systems read."""
    facts = {"nodes": graph.nodes, "sources": graph.sources(sources), "flow": graph.flow}
    (folder / "facts.json").write_text(json.dumps(facts))
    np.save(folder / "links.npy", graph.links)
    np.save(folder / "lengths.npy", graph.lengths)
    np.save(folder / "undirected.npy", graph.undirected())
    np.savetxt(folder / "links.txt", graph.links, "%d", delimiter="\t")
    os.link(folder / "links.txt", folder / "links.el")
    rows = np.column_stack([graph.links, graph.lengths.astype(np.int64)])
    np.savetxt(folder / "links.wel", rows, "%d", delimiter=" ")


def measure(
    name: str,
    systems: Sequence[str] | None,
    cases: Sequence[str] | None,
    rounds: int | None,
    folders: Folders,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """All graphs, or those named in `cases` by a part of their name (`sync` for the emulated hosts); the raw results."""
    setting = SETTINGS[name]

    def tell(line: str) -> None:
        say(f"networks: {line}")

    running = present(name, systems, SYSTEMS, lambda system: missing(system, folders), tell)
    rounds = rounds or setting.rounds
    found: dict[str, Any] = {"rounds": rounds, "cases": [], "sync": None}
    chosen = [one for one in setting.graphs if not cases or any(part in one for part in cases)]
    for graph_name in graphs.present(tuple(chosen), tell):
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            found["cases"].append(
                measure_graph(graphs.made(graph_name), running, setting, rounds, folders, Path(folder), tell)
            )
    if (not cases or "sync" in cases) and any(system.startswith(OURS) for system in running):
        found["sync"] = networks_sync.measure(setting.sync, tell)
    return found


def measure_graph(
    graph: graphs.Graph,
    systems: Sequence[str],
    setting: Setting,
    rounds: int,
    folders: Folders,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    started = time.monotonic()
    write(graph, folder, setting.sources)
    kernel_failures: dict[str, str] = {}
    kernels = KERNELS if graph.flow is None else ("flow",)

    def run(system: str, number: int) -> dict[str, Any]:
        if system in GAP:
            assert folders.gap is not None
            verify = number == 0 and system == GAP[-1]
            done = networks_programs.run_gap(system, folders.gap, graph, folder, kernels, setting.timeout_s, verify)
        elif system in GRAPE:
            assert folders.grape is not None
            done = networks_programs.run_grape(system, folders.grape, graph, folder, kernels, setting.timeout_s)
        else:
            command = launch(system, folder, kernels, setting.enough_s)
            if system in GRAPHX:
                command = networks_programs.launch_graphx(system, graph, folder, kernels, setting.enough_s)
            done = run_once(command, "kernel_s", setting.timeout_s)
        for kernel, why in done["failures"].items():
            kernel_failures[f"{system}, {kernel}"] = why
        if not done["kernel_s"]:
            raise SystemFailed("no kernel ran")
        return dict(done["kernel_s"])

    fit = [system for system in systems if not unfit(system, graph)]
    seconds, failures = in_turn(fit, rounds, run, say, graph.name)
    different = differing(folder, fit)
    for what in different:
        say(f"{graph.name}: {what}")
    say(
        f"{graph.name}: {graph.nodes:,} nodes, {len(graph.links):,} links, {rounds} rounds, {time.monotonic() - started:.0f} s"
    )
    return {
        "name": graph.name,
        "nodes": graph.nodes,
        "links": len(graph.links),
        "kernel_s": seconds,
        "failures": failures | kernel_failures,
        "different": different,
    }


def differing(folder: Path, systems: Sequence[str]) -> list[str]:
    """Which systems found something else than most did, of each kernel."""
    found = []
    for kernel in KERNELS:
        answers = {}
        for system in systems:
            file = folder / f"{system}-{kernel}.npy"
            if file.exists() and len(answer := np.load(file)):
                answers[system] = answer
        if len(answers) < 2:
            continue
        agreeing = {
            system: [other for other in answers if is_same(kernel, answers[system], answers[other])]
            for system in answers
        }
        most = max(agreeing.values(), key=len)
        found += [f"{system} found another {kernel} than {', '.join(most)}" for system in answers if system not in most]
    return found


def is_same(kernel: str, one: Any, other: Any) -> bool:
    if one.shape != other.shape:
        return False
    if kernel in TOLERANCES:
        return float(np.abs(one - other).sum()) <= TOLERANCES[kernel]
    return bool(np.allclose(one, other, rtol=1e-12, atol=0))


# --- the report ------------------------------------------------------------------------------------------------------
def section(networks: dict[str, Any]) -> str:
    """The tables of a report."""
    names = sorted({name for case in networks["cases"] for of in case["kernel_s"].values() for name in of}, key=order)
    parts = ["## Networks", ""]
    if networks["cases"]:
        parts += [
            f"Median seconds of {networks['rounds']} rounds; `-1` and `-2` are threads. *Ratio*: Tidemill's better time over that of the best peer, and its name. `read` is from an edge "
            "list as text, `build` from arrays in memory; PageRank, BFS and shortest paths (one source, lengths 1 to 10 or the file's) follow directions, the others have none. "
            "Betweenness is from four sources; NetworKit draws its own. Of `grape`, `-1` and `-2` are workers of one thread. `flow` is the maximum flow with the flow of each link, on graphs of its own. A library without a kernel has no figure for it.",
            "",
            "PageRank ends by different rules: "
            + "; ".join(
                f"{system}: {rule}" for system, rule in RULES.items() if any(n.startswith(system + "-") for n in names)
            )
            + ". Damping is 0.85.",
            "",
        ]
    for case in networks["cases"]:
        rows = []
        names = sorted({name for of in case["kernel_s"].values() for name in of}, key=order)
        for kernel in KERNELS:
            times = case["kernel_s"].get(kernel, {})
            if not times:
                continue
            rows.append([kernel, *(cell(times, name) for name in names), best_ratio(times)])
        parts += [
            f"### {case['name']}: {case['nodes']:,} nodes, {case['links']:,} links",
            "",
            table(["kernel", *names, "ratio"], rows),
            "",
            *([f"- {name}: {why}" for name, why in case["failures"].items()]),
            *([f"- {what}" for what in case["different"]] or ["All that ran found the same."]),
            "",
        ]
    if networks["sync"]:
        parts.append(networks_sync.section(networks["sync"]))
    return "\n".join(parts)


def best_ratio(times: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(of) for name, of in times.items() if of}
    ours = [seconds for name, seconds in medians.items() if name.startswith(OURS)]
    peers = {name: seconds for name, seconds in medians.items() if not name.startswith(OURS) and seconds > 0}
    if not ours or not peers:
        return "-"
    best = min(peers, key=lambda name: peers[name])
    return f"{min(ours) / peers[best]:.2f} {best}"
