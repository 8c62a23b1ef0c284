"""PageRank with partial synchronization at the published size, 460 hosts and 6,400 partitions, on a machine that has neither.

    .venv/bin/python bench/networks_scale.py [--graph A] [--hosts 460] [--parts 460,1600,6400] [--sweeps 1,2,4,8] [--racks 1]

Rounds are real: the network is cut into as many parts as the cluster has workers, and one process goes through the same rounds as
`tm.networks.pagerank(sync="partial")` there does, bit by bit: sweeps in place within each part, with what came from others held fixed, an
exchange, and a step of all. The time of a round is predicted. Computing takes the links of the largest part, at the time for a link that
was measured here. An exchange is an alltoall of the blocks that the busiest worker sends, and an allreduce of the change, as
`tidemill simulate` predicts them. Prints a Markdown table, and a check of the counted rounds beside a job's where there are few parts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tidemill as tm
from tidemill import _tidemill as native
from tidemill.apps._simulation import simulation_request
from tidemill.ml._threads import pool

from harness import graphs
from harness.tables import table

#: The published PageRank, as of `harness/networks_sync_worker.py`.
ALPHA, TOLERANCE, ROUNDS_MAX = 0.85, 1e-5, 1000
#: Of the all-reduce that ends a round: two words of a sum.
CHANGE_BYTES = 16


@dataclass
class Cut:
    """A network in parts, one for each worker.

    Attributes
    ----------
    rows : CompressedRows
        Of each node the links that lead to it: within its part from column j, from other parts from column n + j.
    largest : int
        Links that lead to the nodes of one part, at most.
    sent_bytes, mean_bytes : int
        What one worker sends in an exchange, at most and on average.
    receivers : float
        Workers that a worker sends to, on average.
    """

    rows: Any
    inverse: Any
    cut: float
    largest: int
    sent_bytes: int
    mean_bytes: int
    receivers: float


def cut(network: Any, parts: int) -> Cut:
    """Cut a network by the default method, and count what its workers would send."""
    divided = tm.networks.partition(network, parts)
    of = divided.parts.astype(np.int64)
    sources, targets, n = network.sources.astype(np.int64), network.targets.astype(np.int64), network.n
    outside = of[sources] != of[targets]
    columns = (sources + n * outside).astype(np.uint32)
    rows = native.CompressedRows.of_links(pool(), network.targets, columns, None, n, 2 * n, "keep", True, False)
    # A node's value goes once to each other part that needs it.
    sent = np.unique(sources[outside] * parts + of[targets[outside]])
    by_worker = np.bincount(of[sent // parts], minlength=parts)
    pairs = np.unique(of[sent // parts] * parts + sent % parts)
    degrees = np.bincount(sources, minlength=n)
    return Cut(
        rows,
        np.divide(1.0, degrees, out=np.zeros(n), where=degrees > 0),
        divided.cut_links / network.m,
        int(np.bincount(of[targets], minlength=parts).max()),
        8 * int(by_worker.max()),
        8 * int(by_worker.mean()),
        len(pairs) / parts,
    )


def rounds(made: Cut, sweeps: int) -> tuple[int, float]:
    """Go through the rounds of all workers; return their number, and the least seconds that a link took in a sweep."""
    n, links = made.rows.rows, max(1, made.rows.links)
    values, contributions = np.ones(n), np.zeros(2 * n)
    contributions[:n] = values * made.inverse
    base = np.full(n, 1 - ALPHA)
    count, change, link_s = 0, np.inf, np.inf
    while change >= TOLERANCE and count < ROUNDS_MAX:
        # Nobody knows anything of others before the first exchange.
        if sweeps and count:
            native.network_pagerank_sweeps(
                made.rows, contributions, made.inverse, base, ALPHA, values, sweeps, TOLERANCE / 10
            )
        contributions[n:] = contributions[:n]
        before = values.copy()
        start = time.perf_counter()
        native.network_pagerank_step(pool(1), made.rows, contributions, base, ALPHA, values)
        link_s = min(link_s, (time.perf_counter() - start) / links)
        contributions[:n] = values * made.inverse
        change = float(np.abs(values - before).max())
        count += 1
    return count, link_s


def exchange_s(made: Cut, workers: int, hosts: int, racks: int) -> float:
    """Predict an exchange of boundary values, and the allreduce behind it."""
    found = 0.0
    for workload, size in (("alltoall", max(made.sent_bytes, workers)), ("allreduce", CHANGE_BYTES)):
        outcome = native.simulate(simulation_request(workload, workers, hosts, {}, racks=racks, bytes=size))
        found += max(outcome["end_s"])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="A")
    parser.add_argument("--hosts", type=int, default=460)
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--parts", default="460,1600,6400")
    parser.add_argument("--sweeps", default="1,2,4,8")
    options = parser.parse_args()
    graph = graphs.made(options.graph)
    network = tm.networks.read((graph.links[:, 0], graph.links[:, 1]), nodes=graph.nodes)
    lines = []
    for parts in (int(text) for text in options.parts.split(",")):
        made = cut(network, parts)
        exchange = exchange_s(made, parts, min(parts, options.hosts), options.racks)
        plain_s = 0.0
        for sweeps in (0, *(int(text) for text in options.sweeps.split(","))):
            count, link_s = rounds(made, sweeps)
            compute = (sweeps + 1) * made.largest * link_s
            total = count * (compute + exchange)
            plain_s = plain_s or total
            lines.append(
                [
                    f"{parts:,}, {f'partial, {sweeps}' if sweeps else 'global'}",
                    f"{made.cut:.0%}",
                    f"{count}",
                    f"{made.sent_bytes / 1e3:.1f} kB, {made.receivers:.0f}",
                    f"{1e3 * compute:.3g} ms",
                    f"{1e3 * exchange:.3g} ms",
                    f"{total:.3g} s",
                    f"{plain_s / total:.2f}",
                ]
            )
    print(
        f"{options.graph}: {network.n:,} nodes, {network.m:,} links; at most {options.hosts} hosts, {options.racks} racks\n"
    )
    header = (
        "workers, synchronization|cut|rounds|sent by the busiest, receivers|computing a round|exchange|in all|faster"
    )
    print(table(header.split("|"), lines))


if __name__ == "__main__":
    main()
