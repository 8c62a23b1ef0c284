"""Partial beside global synchronization: PageRank and shortest paths on emulated hosts, with the account that each result has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import graphs
from .once import points_job, run_points
from .systems import BENCH
from .tables import duration, table

WORKER = str(BENCH / "harness" / "networks_sync_worker.py")
ALGORITHMS, MODES = ("pagerank", "paths"), ("global", "partial", "auto")
TIMEOUT_S = 2 * 3600
#: What an iteration cost with Hadoop, as published.
HADOOP_S = 20.0
PUBLISHED = (
    "Published (8 EC2 instances, Hadoop 0.20, without the 5 s of METIS): PageRank on A and B 8 times faster on average, shortest paths on A 8 times, K-means 3.5 times with less than a third of "
    f"the iterations. An iteration of Hadoop costs some {HADOOP_S:.0f} s whatever it does, so those figures are mostly the ratio of rounds: compare them with the last column, the time with "
    f"{HADOOP_S:.0f} s added for each round, global over this."
)


@dataclass(frozen=True)
class Setting:
    hosts: int
    mbit: tuple[int, ...]
    graphs: tuple[str, ...]
    repeats: int


@dataclass(frozen=True)
class Point:
    """What `networks_sync_worker.py` is told."""

    algorithm: str
    graph: str
    folder: str
    source: int
    sync: str
    repeats: int


def measure(setting: Setting, say: Callable[[str], None]) -> dict[str, Any]:
    """All modes on all graphs, over hosts with links of each speed; the raw results."""
    from tidemill import hosts

    found: dict[str, Any] = {"setting": asdict(setting), "cases": [], "failures": {}, "missing": None}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        points = []
        for name in graphs.present(setting.graphs, say):
            graph = graphs.made(name)
            place = Path(folder, name.replace("/", "-"))
            place.mkdir()
            np.savez(place / "graph.npz", links=graph.links, lengths=graph.lengths)
            (source,) = graph.sources(1)
            points += [
                Point(algorithm, name, str(place), source, sync, setting.repeats)
                for algorithm in ALGORITHMS
                for sync in MODES
            ]
        for mbit in setting.mbit:
            try:
                cluster = hosts.up(setting.hosts, bandwidth=f"{mbit}mbit", name=f"bench-{os.getpid()}")
            except hosts.HostsError as error:
                say(f"partial synchronization is left out: {error}")
                return found | {"missing": str(error)}
            with cluster:
                options = ["--on", cluster.name, "-n", str(setting.hosts), "--threads", "1"]

                def heard(case: dict[str, Any], number: int, mbit: int = mbit) -> None:
                    say(
                        f"{mbit} Mbit/s: {number} of {len(points)}, {case['algorithm']} on {case['graph']}, {case['sync']}: "
                        f"{case['account']['rounds']} rounds, {duration(case['seconds'])}"
                    )

                command = points_job(WORKER, options, True, points)
                cases, failure = run_points(command, "algorithm", len(points), TIMEOUT_S, heard)
            found["cases"] += [{"mbit": mbit, **case} for case in cases]
            if failure:
                found["failures"][f"{mbit} Mbit/s"] = failure
                say(f"{mbit} Mbit/s: {failure}")
    return found


# --- the report ------------------------------------------------------------------------------------------------------
def section(sync: dict[str, Any]) -> str:
    """The tables of a report."""
    setting = sync["setting"]
    parts = [
        f"### Partial and global synchronization, {setting['hosts']} hosts of one worker and one thread",
        "",
        "PageRank is the published one: scores begin at 1, nodes without outgoing links lose theirs, and it ends when no score changes by 1e-5 in a round. *Rounds*: exchanges. *Sweeps*: over a worker's "
        "links, mean of workers. *Sent*: by all workers. *Seconds*: of the whole call, with the distribution of the whole result to all workers, which no mode "
        "saves. *Rounds take*: computing and exchanges of rank 0 alone. *Faster*: global's time over this. Times are without partitioning, which the first column of seconds has. Hosts are emulated and share this machine's processors.",
        "",
        PUBLISHED,
        "",
    ]
    if sync["missing"]:
        parts += [f"Left out: {sync['missing']}", ""]
    for algorithm in ALGORITHMS:
        cases = [case for case in sync["cases"] if case["algorithm"] == algorithm]
        base = {(case["mbit"], case["graph"]): case for case in cases if case["sync"] == "global"}
        rows = [row(case, base[case["mbit"], case["graph"]]) for case in cases if (case["mbit"], case["graph"]) in base]
        header = "graph, links, sync|cut|partition|rounds|fewer|sweeps|sent|rounds take|faster|seconds|faster|+20 s a round|faster"
        if rows:
            parts += [
                f"#### {'PageRank' if algorithm == 'pagerank' else 'Shortest paths'}",
                "",
                table(header.split("|"), rows),
                "",
            ]
    wrong = [
        f"{case['algorithm']} on {case['graph']}, {case['sync']}, {case['mbit']} Mbit/s"
        for case in sync["cases"]
        if not case["right"]
    ]
    parts += [
        f"Other results than with one worker: {'; '.join(wrong)}." if wrong else "All results are those of one worker.",
        "",
    ]
    return "\n".join([*parts, *(f"- {name}: {why}" for name, why in sync["failures"].items())])


def rounds_s(case: dict[str, Any]) -> float:
    return case["account"]["exchange_seconds"] + case["account"]["compute_seconds"]


def row(case: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    account = case["account"]
    mode = case["sync"]
    if mode == "auto":
        mode += f" ({account['sync']}, {account['local_sweeps']})" if case["algorithm"] == "pagerank" else ""
    hadoop = case["seconds"] + HADOOP_S * account["rounds"]
    return [
        f"{case['graph']}, {case['mbit']} Mbit/s, {mode}",
        f"{account['cut_links'] / case['links']:.1%}",
        duration(case["partition_s"]),
        f"{account['rounds']}",
        f"{plain['account']['rounds'] / max(1, account['rounds']):.2f}",
        f"{case['sweeps']:.3g}",
        f"{case['sent'] / 1e6:.3g} MB",
        duration(rounds_s(case)),
        f"{rounds_s(plain) / rounds_s(case):.2f}",
        duration(case["seconds"]),
        f"{plain['seconds'] / case['seconds']:.2f}",
        f"{hadoop:.0f} s",
        f"{(plain['seconds'] + HADOOP_S * plain['account']['rounds']) / hadoop:.2f}",
    ]
