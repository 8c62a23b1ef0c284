"""Random networks of which each worker makes its share: Kronecker and uniform ones.

Links are drawn in blocks, each from its own seed, so that they are the same for any number of workers and no worker has more than a
block of them before they go to their owners.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from tidemill.ml._job import active
from tidemill.networks import _memory
from tidemill.networks._distributed import AnyNetwork, DistributedNetwork, Piece, of_numbers
from tidemill.networks._exchange import agree
from tidemill.networks._network import NODES_MAX, Duplicates, Network, built, check_options

__all__ = ["kronecker", "uniform"]

#: Links of a block. The links that a seed makes depend on it.
_BLOCK_LINKS = 1 << 20
#: Odd constants of splitmix64, whose lower halves mix the bits of numbers.
_MIXERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

Numbers = NDArray[np.uint32]


@overload
def kronecker(
    scale: int,
    *,
    links_per_node: int = 16,
    quadrants: tuple[float, float, float] = (0.57, 0.19, 0.19),
    directed: bool = True,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop"] = "drop",
    seed: int = 0,
    together: Literal[False] = False,
) -> Network: ...
@overload
def kronecker(
    scale: int,
    *,
    links_per_node: int = 16,
    quadrants: tuple[float, float, float] = (0.57, 0.19, 0.19),
    directed: bool = True,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop"] = "drop",
    seed: int = 0,
    together: Literal[True],
) -> DistributedNetwork: ...
def kronecker(
    scale: int,
    *,
    links_per_node: int = 16,
    quadrants: tuple[float, float, float] = (0.57, 0.19, 0.19),
    directed: bool = True,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop"] = "drop",
    seed: int = 0,
    together: bool = False,
) -> AnyNetwork:
    """Draw a Kronecker network (R-MAT) with 2**scale nodes: few have very many links, as in social networks.

    Source: Chakrabarti, Zhan and Faloutsos (2004), R-MAT: a recursive model for graph mining; constants of Graph500 and GAP. Nodes are
    numbered in a scrambled order. The links are the same on any number of workers.

    Parameters
    ----------
    scale : int
        From 0 to 31.
    links_per_node : int, default=16
        Links that are drawn; loops and duplicates among them may go.
    quadrants : three floats
        Probabilities that at each level both ends are in the first half, only the source is, only the target is.
    directed : bool, default=True
    duplicates : optional
        As in `read`; links have no weights, unless you choose ``"sum"``.
    self_loops : {"keep", "drop"}, default="drop"
    seed : int, default=0
        Not negative.
    together : bool, default=False
        Collective: each worker draws a share of the links and gets its share of the network, as in `read`. By default this
        worker draws all of them.

    Raises
    ------
    NetworkTooLargeError
        If the network would exceed the budget, before it is drawn; with ``together=True`` on every worker.
    ValueError
        If an argument is out of range.
    """
    if not 0 <= scale <= 31:
        raise ValueError(f"scale is from 0 to 31, not {scale}")
    if links_per_node < 0:
        raise ValueError(f"links_per_node is not negative, as {links_per_node} is")
    if len(quadrants) != 3 or min(quadrants) < 0 or sum(quadrants) > 1:
        raise ValueError(f"quadrants are three probabilities with a sum of at most 1, not {quadrants}")
    first, second, third = (round(step * 2**16) for step in np.cumsum(quadrants))

    def block(raw: Callable[[int], NDArray[np.uint64]]) -> tuple[Numbers, Numbers]:
        sources, targets = (np.zeros(_BLOCK_LINKS, np.uint32) for _ in range(2))
        for _ in range(scale):
            # 16 bits decide on a level; as integers of more bits they compare with 2**16.
            drawn = raw(_BLOCK_LINKS // 4).astype("<u8", copy=False).view("<u2")
            lower, right = drawn > second - 1, drawn > third - 1
            right |= (drawn > first - 1) & ~lower
            for ends, bit in ((sources, lower), (targets, right)):
                ends <<= np.uint32(1)
                ends |= bit
        return _scrambled(sources, scale, seed), _scrambled(targets, scale, seed)

    name = f"a Kronecker network of scale {scale}"
    return _drawn(name, 1 << scale, links_per_node << scale, block, directed, duplicates, self_loops, seed, together)


@overload
def uniform(
    nodes: int,
    links: int,
    *,
    directed: bool = True,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop"] = "drop",
    seed: int = 0,
    together: Literal[False] = False,
) -> Network: ...
@overload
def uniform(
    nodes: int,
    links: int,
    *,
    directed: bool = True,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop"] = "drop",
    seed: int = 0,
    together: Literal[True],
) -> DistributedNetwork: ...
def uniform(
    nodes: int,
    links: int,
    *,
    directed: bool = True,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop"] = "drop",
    seed: int = 0,
    together: bool = False,
) -> AnyNetwork:
    """Draw a network whose links have random ends: it has no locality, and all nodes have about as many links.

    Source: Erdős and Rényi (1959), On random graphs I; the GAP suite calls it urand. The links are the same on any number of workers.

    Parameters
    ----------
    nodes, links : int
        How many are drawn; loops and duplicates among the links may go.
    directed, duplicates, self_loops, seed, together : optional
        As in `kronecker`, as are errors.
    """
    if not 0 <= nodes <= NODES_MAX or links < 0 or (links and not nodes):
        raise ValueError(
            f"a network has up to {NODES_MAX:,} nodes, and links only if it has nodes, not {nodes} and {links}"
        )

    def block(raw: Callable[[int], NDArray[np.uint64]]) -> tuple[Numbers, Numbers]:
        halves = raw(_BLOCK_LINKS).astype("<u8", copy=False).view("<u4").astype(np.uint64)
        ends = ((halves * np.uint64(nodes)) >> np.uint64(32)).astype(np.uint32)
        return ends[::2], ends[1::2]

    return _drawn("a uniform network", nodes, links, block, directed, duplicates, self_loops, seed, together)


def _scrambled(numbers: Numbers, bits: int, seed: int) -> Numbers:
    """Return numbers of so many bits in another order: each step can be undone, so no two become one."""
    mask = np.uint32((1 << bits) - 1)
    for step, mixer in enumerate(_MIXERS):
        numbers = (numbers * np.uint32(mixer & 0xFFFFFFFF) + np.uint32((seed + step) & 0xFFFFFFFF)) & mask
        numbers ^= numbers >> np.uint32(max(1, bits // 2))
    return numbers


def _drawn(
    name: str,
    n: int,
    count: int,
    block: Callable[[Callable[[int], NDArray[np.uint64]]], tuple[Numbers, Numbers]],
    directed: bool,
    duplicates: Duplicates,
    self_loops: str,
    seed: int,
    together: bool,
) -> AnyNetwork:
    """Return the network of `count` links; `block` makes some of random bits."""
    check_options(duplicates, self_loops)
    if seed < 0:
        raise ValueError(f"seed is not negative, as {seed} is")

    def piece(at: int) -> Piece:
        bits = np.random.PCG64(np.random.SeedSequence((seed, at)))
        # Raw bits are the same with each version of NumPy.
        sources, targets = block(lambda words: bits.random_raw(words))
        left = count - at * _BLOCK_LINKS
        sources, targets = sources[:left], targets[:left]
        if self_loops == "drop":
            kept = sources != targets
            sources, targets = sources[kept], targets[kept]
        return sources, targets, None

    blocks = math.ceil(count / _BLOCK_LINKS)
    if not together:
        _memory.check(name, count, n, False, not directed)
        pieces = [piece(at) for at in range(blocks)]
        none = np.empty(0, np.uint32)
        sources, targets = (np.concatenate([none, *(one[side] for one in pieces)]) for side in (0, 1))
        del pieces
        return built(sources, targets, None, n, None, directed=directed, duplicates=duplicates)
    comm: Any = active()
    trouble = None
    try:
        _memory.check(name, count, n, False, not directed, comm.size)
    except _memory.NetworkTooLargeError as error:
        trouble = error
    agree(comm, trouble)
    ranks = np.arange(comm.size + 1)
    begin, end = (blocks * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    return of_numbers(
        comm,
        n * ranks // comm.size,
        end - begin,
        lambda at: piece(begin + at),
        None,
        directed=directed,
        duplicates=duplicates,
    )
