"""The graphs of the benchmark of networks: generated, or real ones where their files are there. All are arrays of links.

Generated ones are seeded. Links are unique and lead from a node to another one; nodes are numbered from 0, and each has a link.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from .systems import BENCH

#: Real graphs, where they are.
DATA = Path(os.environ.get("TIDEMILL_DATA", BENCH.parent / "../shared/data")) / "graphs"
FILES = {
    "roads": "heidelberg.gr.gz",
    "web": "cnr-2000.txt.zst",
    "citations": "cit-HepTh.txt.gz",
    "social": "soc-Slashdot0902.txt.zst",
    "votes": "wiki-Vote.txt.gz",
}
#: Problems of maximum flow (DIMACS).
FLOWS = {"flow-roads": "heidelberg.max.gz", "flow-genrmf": "gl1.max.gz", "flow-washington": "wlm3.max.gz"}
SEED = 20240229
#: The research's graphs: nodes, and the generator's constants that give about their links.
LOCAL = {"A": (280_000, (1, 5, 5)), "B": (100_000, (2, 7, 7))}
LINKS = 3_000_000
CHUNG_LU_EXPONENT = 2.3
#: Of a Kronecker graph, as in Graph500 and GAP.
EDGE_FACTOR, QUADRANTS = 16, (0.57, 0.19, 0.19)
#: Links have these lengths where a file has none, evenly drawn.
LENGTHS = (1, 10)


@dataclass(frozen=True)
class Graph:
    name: str
    links: Any  # (m, 2) int64, directed
    lengths: Any  # (m,) float64, integers; capacities, if it is for flows
    nodes: int
    #: Source and sink, if it is for maximum flows.
    flow: tuple[int, int] | None = None

    @classmethod
    def of(cls, name: str, sources: Any, targets: Any, lengths: Any = None) -> Graph:
        """Drops loops, keeps the first of equal links, and numbers the nodes that are left."""
        kept = np.flatnonzero(sources != targets)
        ids, ends = np.unique(np.concatenate([sources[kept], targets[kept]]), return_inverse=True)
        sources_left, targets_left = np.split(ends.astype(np.int64), 2)
        _, first = np.unique(sources_left * len(ids) + targets_left, return_index=True)
        links = np.stack([sources_left[first], targets_left[first]], axis=1)
        if lengths is None:
            drawn = np.random.default_rng(SEED).integers(LENGTHS[0], LENGTHS[1] + 1, len(links))
            return cls(name, links, drawn.astype(np.float64), len(ids))
        return cls(name, links, np.asarray(lengths, np.float64)[kept][first], len(ids))

    def undirected(self) -> Any:
        """The links without directions, each pair once, (k, 2)."""
        ends = np.sort(self.links, axis=1)
        _, first = np.unique(ends[:, 0] * self.nodes + ends[:, 1], return_index=True)
        return np.ascontiguousarray(ends[first])

    def sources(self, count: int) -> list[int]:
        """Nodes to search from, which others can be reached from: drawn with a seed of those with links that leave them."""
        return [int(node) for node in np.random.default_rng(SEED).choice(np.unique(self.links[:, 0]), count)]


# --- generators ------------------------------------------------------------------------------------------------------
def local(name: str, nodes: int, constants: tuple[int, int, int]) -> Graph:
    """The research's generator: with locality, and a power law.

    Nodes join one at a time. A new one links to some old ones, and with some in-neighbours and out-neighbours of each
    of these: in-neighbours link to it, it links to out-neighbours.
    """
    connections, incoming, outgoing = constants
    draw = random.Random(SEED)
    sources_of: list[list[int]] = [[] for _ in range(nodes)]
    targets_of: list[list[int]] = [[] for _ in range(nodes)]

    def some(of: list[int], count: int) -> list[int]:
        return draw.sample(of, count) if len(of) > count else of

    for new in range(1, nodes):
        to, back = set(), set()
        for old in {draw.randrange(new) for _ in range(connections)}:
            to.add(old)
            back.update(some(sources_of[old], incoming))
            to.update(some(targets_of[old], outgoing))
        targets_of[new], sources_of[new] = list(to), list(back)
        for node in to:
            sources_of[node].append(new)
        for node in back:
            targets_of[node].append(new)
    counts = [len(of) for of in targets_of]
    targets = np.fromiter((node for of in targets_of for node in of), np.int64, sum(counts))
    return Graph.of(name, np.repeat(np.arange(nodes), counts), targets)


def chung_lu(name: str, nodes: int, links: int) -> Graph:
    """A power law without locality: both ends of a link are drawn by weights of exponent 2.3."""
    rng = np.random.default_rng(SEED)
    weights = np.arange(1, nodes + 1) ** (-1 / (CHUNG_LU_EXPONENT - 1))
    steps = np.cumsum(weights) / weights.sum()
    sources, targets = (np.searchsorted(steps, rng.random(links)) for _ in range(2))
    # So that a node's number says nothing about it.
    names = rng.permutation(nodes)
    return Graph.of(name, names[sources], names[targets])


def kronecker(name: str, scale: int) -> Graph:
    """R-MAT: 2**scale nodes, 16 links for each, before equal ones are dropped."""
    rng = np.random.default_rng(SEED)
    links, (a, b, c) = EDGE_FACTOR << scale, QUADRANTS
    ends = np.zeros((2, links), np.int64)
    for _ in range(scale):
        drawn = rng.random(links)
        ends *= 2
        ends[0] += drawn >= a + b
        ends[1] += ((drawn >= a) & (drawn < a + b)) | (drawn >= a + b + c)
    names = rng.permutation(1 << scale)
    return Graph.of(name, names[ends[0]], names[ends[1]])


def grid(name: str, side: int) -> Graph:
    """A square grid with links both ways, which stands in for roads where the data is absent."""
    at = np.arange(side * side).reshape(side, side)
    one = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    other = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    return Graph.of(name, np.concatenate([one, other]), np.concatenate([other, one]))


def flow_grid(name: str, side: int) -> Graph:
    """A grid with capacities, from one corner to the other."""
    made = grid(name, side)
    return replace(made, flow=(0, made.nodes - 1))


def flows(name: str) -> Graph:
    """A graph of `FLOWS`, whose parallel links are one."""
    text = gzip.decompress((DATA / FLOWS[name]).read_bytes()).decode().splitlines()
    ends = {line.split()[2]: int(line.split()[1]) for line in text if line.startswith("n ")}
    links = np.loadtxt((line[2:] for line in text if line.startswith("a ")), dtype=np.int64)
    kept = links[links[:, 0] != links[:, 1]]
    pairs, group = np.unique(kept[:, :2], axis=0, return_inverse=True)
    made = Graph.of(name, pairs[:, 0], pairs[:, 1], np.bincount(group.reshape(-1), kept[:, 2]))
    source, sink = np.searchsorted(np.unique(pairs), [ends["s"], ends["t"]]).tolist()
    return replace(made, flow=(source, sink))


def real(name: str) -> Graph:
    """A graph of `FILES`."""
    path = DATA / FILES[name]
    if path.suffix == ".zst":
        text = io.StringIO(subprocess.run(["zstd", "-dc", path], capture_output=True, check=True, text=True).stdout)
    else:
        text = io.StringIO(gzip.decompress(path.read_bytes()).decode())
    if ".gr" in path.suffixes:
        arcs = (line[2:] for line in text if line.startswith("a "))
        columns = np.loadtxt(arcs, dtype=np.int64)
        return Graph.of(name, columns[:, 0], columns[:, 1], columns[:, 2])
    columns = np.loadtxt(text, dtype=np.int64, usecols=(0, 1))
    return Graph.of(name, columns[:, 0], columns[:, 1])


def lacks(name: str) -> str | None:
    """What a real graph needs and this machine has not."""
    path = DATA / (FILES | FLOWS)[name]
    if not path.exists():
        return f"{path} is not there (TIDEMILL_DATA names the folder above)"
    if path.suffix == ".zst" and not shutil.which("zstd"):
        return "zstd is missing: apt-get install zstd"
    return None


def known() -> dict[str, Callable[[], Graph]]:
    """Every graph, by its name."""
    found: dict[str, Callable[[], Graph]] = {}
    for which, (nodes, constants) in LOCAL.items():
        for part in (1, 4):
            end = f"/{part}" if part > 1 else ""
            found[which + end] = partial(local, which + end, nodes // part, constants)
            name = f"chung-lu-{which}{end}"
            found[name] = partial(chung_lu, name, nodes // part, LINKS // part)
    for scale in (8, 14, 20):
        found[f"kronecker-{scale}"] = partial(kronecker, f"kronecker-{scale}", scale)
    for side in (16, 250):
        found[f"grid-{side}"] = partial(grid, f"grid-{side}", side)
    found["flow-grid-16"] = partial(flow_grid, "flow-grid-16", 16)
    found |= {name: partial(flows, name) for name in FLOWS}
    return found | {name: partial(real, name) for name in FILES}


@lru_cache(maxsize=2)
def made(name: str) -> Graph:
    return known()[name]()


def present(names: tuple[str, ...], say: Callable[[str], None]) -> list[str]:
    """Those of these names that can be made here; for roads a grid, if they are not there."""
    found = []
    for name in names:
        why = lacks(name) if name in FILES | FLOWS else None
        if why:
            say(f"{name} is left out: {why}" + ("; a grid takes its place" if name == "roads" else ""))
        if not why:
            found.append(name)
        elif name == "roads":
            found.append("grid-250")
    return found
