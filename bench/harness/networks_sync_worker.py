"""PageRank and shortest paths on all workers, with more or less synchronization.

    networks_sync_worker.py POINTS

POINTS is a JSON list of objects, told in `networks_sync.py`; rank 0 prints a JSON object for each. The network is read and partitioned before.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tidemill as tm

#: The published PageRank.
PAGERANK: dict[str, Any] = {"normalized": False, "dangling": "drop", "rule": "largest", "tol": 1e-5, "max_iter": 1000}
#: Of scores around 1 that two runs ended with: each ends within 1e-5 * 0.85 / 0.15 of its fixpoint, and hubs further away.
NEAR = 1e-3


class Graph:
    """The network of a folder, what one worker alone finds, and how long its partition took."""

    def __init__(self, point: dict[str, Any], comm: Any) -> None:
        arrays = np.load(Path(point["folder"], "graph.npz"))
        links = arrays["links"]
        self.network = tm.networks.read((links[:, 0], links[:, 1], arrays["lengths"]))
        self.partition_s = tm.networks.partition(self.network, comm.size).seconds
        self.expected = {
            "pagerank": tm.networks.pagerank(self.network, weighted=False, **PAGERANK).values,
            "paths": tm.networks.shortest_paths(self.network, point["source"]).values,
        }

        # Makes connections, and the forms of the network that both need.
        tm.networks.pagerank(self.network, weighted=False, sync="global", **(PAGERANK | {"max_iter": 3}))
        tm.networks.shortest_paths(self.network, point["source"], sync="partial")

    def compute(self, point: dict[str, Any], sync: str) -> Any:
        if point["algorithm"] == "pagerank":
            return tm.networks.pagerank(self.network, weighted=False, sync=sync, **PAGERANK)
        return tm.networks.shortest_paths(self.network, point["source"], sync=sync)

    def is_right(self, point: dict[str, Any], values: Any) -> bool:
        expected = self.expected[point["algorithm"]]
        if point["algorithm"] == "paths":
            return bool(np.array_equal(values, expected))
        return bool((np.abs(values - expected) <= NEAR * np.maximum(expected, 1)).all())


def main() -> None:
    warnings.simplefilter("ignore")
    comm = tm.init().comm
    known: dict[str, Graph] = {}
    for point in json.loads(sys.argv[1]):
        graph = known.get(point["graph"]) or known.setdefault(point["graph"], Graph(point, comm))
        seconds = []
        for _ in range(point["repeats"]):
            comm.barrier()
            start = time.perf_counter()
            result = graph.compute(point, point["sync"])
            comm.barrier()
            seconds.append(time.perf_counter() - start)
        account = asdict(result.account)
        every = comm.gather((account["sweeps"], account["bytes_sent"], graph.partition_s))
        if comm.rank == 0:
            sweeps, sent, partition_s = zip(*every, strict=True)
            found = {name: point[name] for name in ("algorithm", "graph", "sync")}
            found |= {"seconds": statistics.median(seconds), "account": account, "links": graph.network.m}
            found |= {"sweeps": statistics.mean(sweeps), "sent": sum(sent), "partition_s": max(partition_s)}
            print(json.dumps(found | {"right": graph.is_right(point, result.values)}), flush=True)


main()
