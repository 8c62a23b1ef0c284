"""Tidemill's registration as a networkx backend, read when networkx is imported; the backend is loaded later."""

from __future__ import annotations

from typing import Any

__all__ = ["FUNCTIONS", "get_info"]

#: The functions of networkx that the backend supports, with their limitations. `tidemill.networks._networkx`
#: implements them.
FUNCTIONS: dict[str, str | None] = {
    "all_pairs_dijkstra_path_length": "Weights are attributes, numbers and not negative.",
    "all_pairs_shortest_path_length": None,
    "ancestors": None,
    "average_clustering": "All nodes, and no multigraphs. Weights are numbers, not negative, not all 0.",
    "betweenness_centrality": "Weights are numbers above 0.",
    "clustering": "No multigraphs. Weights are numbers, not negative, not all 0.",
    "connected_components": None,
    "core_number": None,
    "descendants": None,
    "is_connected": None,
    "is_strongly_connected": None,
    "is_weakly_connected": None,
    "leiden_communities": "Undirected graphs. The seed gives other communities than other backends, with equally high modularity.",
    "louvain_communities": "Undirected graphs. The seed gives other communities than networkx's, with equally high modularity.",
    "maximum_flow": "With the default algorithm.",
    "maximum_flow_value": "With the default algorithm.",
    "minimum_cut": "With the default algorithm.",
    "minimum_cut_value": "With the default algorithm.",
    "minimum_spanning_edges": "No multigraphs. Of links of equal weight, another one may be chosen.",
    "minimum_spanning_tree": "No multigraphs. Of links of equal weight, another one may be chosen.",
    "multi_source_dijkstra_path_length": "Weights are attributes, numbers and not negative.",
    "node_connected_component": None,
    "number_connected_components": None,
    "number_strongly_connected_components": None,
    "number_weakly_connected_components": None,
    "pagerank": "Weights are numbers and not negative.",
    "shortest_path_length": "From one source to all nodes.",
    "single_source_dijkstra_path_length": "Weights are attributes, numbers and not negative.",
    "single_source_shortest_path_length": None,
    "single_target_shortest_path_length": None,
    "transitivity": "Undirected graphs.",
    "triangles": None,
    "weakly_connected_components": None,
}


def get_info() -> dict[str, Any]:
    """Return the result of networkx's entry point ``networkx.backend_info``."""
    return {
        "backend_name": "tidemill",
        "project": "tidemill",
        "package": "tidemill.networks",
        "short_summary": "Parallel kernels of Tidemill, on the threads of this process.",
        "default_config": {},
        "functions": {name: {"additional_docs": docs} if docs else {} for name, docs in FUNCTIONS.items()},
    }
