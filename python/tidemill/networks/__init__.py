"""Networks: nodes and links, on one worker or on all, with networkx's definitions.

`read` makes a `Network` from files, tables, arrays, and objects of other libraries. Functions such as `pagerank`,
`bfs`, `shortest_paths`, `connected_components` and `louvain` compute on it; you can use their results by id, as an
array, or as a table. `follow` keeps degrees, components and PageRank of a network whose links come and go on a stream.
With ``read(..., together=True)``, each worker has a share of a network, on which PageRank, shortest paths and components run.
With ``sync=``, workers exchange boundary values after every sweep or less often.

`tidemill.Graph` is something else: a graph of tasks.
"""

from __future__ import annotations

from tidemill.networks._algorithms import (
    Clustering,
    betweenness,
    clustering,
    core_numbers,
    distances,
    leiden,
    louvain,
    maximum_flow,
    minimum_cut,
    minimum_spanning_forest,
    strong_components,
    triangles,
)
from tidemill.networks._distributed import DistributedNetwork
from tidemill.networks._follow import LiveValues, MissingLinksWarning, follow
from tidemill.networks._generate import kronecker, uniform
from tidemill.networks._iterations import bfs, connected_components, pagerank, shortest_paths
from tidemill.networks._labels import label_propagation
from tidemill.networks._memory import Estimate, NetworkTooLargeError
from tidemill.networks._network import Network
from tidemill.networks._partition import Partition, partition
from tidemill.networks._read import estimate, read
from tidemill.networks._results import (
    Account,
    Communities,
    Components,
    Cores,
    Flow,
    Forest,
    NodeValues,
    Paths,
    Scores,
    Search,
)

__all__ = [
    "Account",
    "Clustering",
    "Communities",
    "Components",
    "Cores",
    "DistributedNetwork",
    "Estimate",
    "Flow",
    "Forest",
    "LiveValues",
    "MissingLinksWarning",
    "Network",
    "NetworkTooLargeError",
    "NodeValues",
    "Partition",
    "Paths",
    "Scores",
    "Search",
    "betweenness",
    "bfs",
    "clustering",
    "connected_components",
    "core_numbers",
    "distances",
    "estimate",
    "follow",
    "kronecker",
    "label_propagation",
    "leiden",
    "louvain",
    "maximum_flow",
    "minimum_cut",
    "minimum_spanning_forest",
    "pagerank",
    "partition",
    "read",
    "shortest_paths",
    "strong_components",
    "triangles",
    "uniform",
]
