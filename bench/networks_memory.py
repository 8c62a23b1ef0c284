"""PageRank on a random network of which each worker draws, holds and computes a share: seconds, and the memory of all workers.

    .venv/bin/tidemill run -n 2 bench/networks_memory.py [--kind kronecker] [--scale 23] [--links-per-node 13] [--change 1e-6]

Peak memory is the most that each worker has had resident, added up over workers, so that what they share counts several times. CPU seconds
are those of all workers. With `--file PATH`, links are written to this file first and read from it together. Prints a row of a Markdown table.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import tidemill as tm

from harness.tables import table


def peak_bytes() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def written(network: Any, path: Path, rank: int, size: int, comm: Any) -> None:
    """Write the links of all workers to a file, one worker after the other."""
    sources, targets = network.sources, network.targets
    for turn in range(size):
        if turn == rank:
            with path.open("ab" if turn else "wb") as file:
                for begin in range(0, len(sources), 1 << 20):
                    part = slice(begin, begin + (1 << 20))
                    np.savetxt(file, np.column_stack([sources[part], targets[part]]), fmt="%d")
        comm.Barrier()


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["kronecker", "uniform"], default="kronecker")
    parser.add_argument("--scale", type=int, default=23)
    parser.add_argument("--links-per-node", type=int, default=13)
    parser.add_argument(
        "--change", type=float, default=1e-6, help="end when all changes in an iteration add up to less"
    )
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    job = tm.init()
    begin, cpu = time.perf_counter(), time.process_time()
    network: Any
    if options.kind == "kronecker":
        network = tm.networks.kronecker(options.scale, links_per_node=options.links_per_node, together=True)
    else:
        nodes = 1 << options.scale
        network = tm.networks.uniform(nodes, options.links_per_node * nodes, together=True)
    if options.file is not None:
        written(network, options.file, job.rank, job.size, job.comm)
        nodes = network.n
        del network
        begin, cpu = time.perf_counter(), time.process_time()
        network = tm.networks.read(options.file, nodes=nodes, together=True)
    made_s, made_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    begin, cpu = time.perf_counter(), time.process_time()
    scores = tm.networks.pagerank(network, tol=options.change / network.n)
    ranked_s, ranked_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    checksum = f"{sum(score for _, score in scores.top(10)):.6e}"
    account = scores.account
    assert account is not None
    every = job.comm.allgather((peak_bytes(), account.held_bytes, made_cpu_s, ranked_cpu_s))
    if job.rank == 0:
        peaks, held, making_s, ranking_s = zip(*every, strict=True)
        row = [
            f"{options.kind}, {'read' if options.file else 'drawn'}",
            f"{network.n:,}",
            f"{network.m:,}",
            f"{job.size}",
            f"{made_s:.1f} s, {sum(making_s):.1f} s",
            f"{ranked_s:.1f} s, {sum(ranking_s):.1f} s",
            f"{scores.iterations}",
            f"{max(held) / 2**30:.2f} GiB",
            f"{max(peaks) / 2**30:.2f} GiB",
            f"{sum(peaks) / 2**30:.2f} GiB",
            checksum,
        ]
        header = "network|nodes|links|workers|made, CPU|PageRank, CPU|iterations|held by a worker|peak of a worker|peak of all|best ten"
        print(table(header.split("|"), [row]))


if __name__ == "__main__":
    main()
