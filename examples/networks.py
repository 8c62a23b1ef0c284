"""PageRank and shortest paths on a network of towns, alone or on all workers with partial synchronization.

python examples/networks.py                      one worker
tidemill run -n 4 examples/networks.py           four; distances are the same
tidemill run -n 4 examples/networks.py 400       more towns: 400 x 400
python examples/networks.py roads.gr.gz          a file of yours
"""

import sys

import numpy as np
import tidemill as tm


def towns(side: int) -> tm.networks.Network:
    """A grid of roads, every tenth of them missing, with lengths by chance; a real program would read a file."""
    rng = np.random.default_rng(0)
    at = np.arange(side * side)
    east, south = at[at % side < side - 1], at[: side * (side - 1)]
    sources, targets = np.concatenate([east, south]), np.concatenate([east + 1, south + side])
    kept = rng.random(len(sources)) < 0.9
    lengths = rng.integers(1, 10, len(sources)).astype(float)
    return tm.networks.read((sources[kept], targets[kept], lengths[kept]), directed=False, nodes=side * side)


def main() -> None:
    job = tm.init()
    given = sys.argv[1] if len(sys.argv) > 1 else "100"
    # Every worker has the whole network, and computes on its part.
    net = towns(int(given)) if given.isdigit() else tm.networks.read(given)

    first = net.ids[0]
    for sync in ("global", "partial"):
        paths = tm.networks.shortest_paths(net, first, sync=sync)
        scores = tm.networks.pagerank(net, tol=1e-10, max_iter=500, sync=sync)
        if job.rank == 0:
            reached = paths.values[paths.reached]
            print(
                f"{sync}: farthest {reached.max():g} of {len(reached):,} nodes reached, in {paths.account.rounds} rounds"
            )
            print(
                f"{sync}: PageRank of {len(scores):,} nodes in {scores.account.rounds} rounds, {scores.account.sweeps:g} sweeps"
            )

    if job.rank == 0:
        print(net)
        print("components:", tm.networks.connected_components(net).count)
        print("highest:", [node for node, _ in scores.top(3)])


if __name__ == "__main__":
    main()
