"""Which worker owns which nodes of a shared network, by their numbers.

`Blocks` gives each worker a run of numbers, which all know. With `Parts` a node is anywhere; who has it is known by the worker that
it belonged to in blocks, its home. So no worker needs an entry for each node of the network, but must ask. Numbers stay in the
order of ids either way, and with them the order in which links are added up: results do not depend on who owns what.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._tidemill import network_find, network_ids
from tidemill.ml._threads import pool
from tidemill.networks._exchange import asked, to_owners

__all__ = ["Blocks", "Owners", "Parts"]


class Blocks:
    """Runs of numbers.

    Parameters
    ----------
    firsts : ndarray of int64 (size + 1,)
        The number of each worker's first node, and that of nodes.
    """

    def __init__(self, comm: Any, firsts: NDArray[np.int64]) -> None:
        self._comm, self.firsts, self.n = comm, firsts, int(firsts[-1])
        self.first = int(firsts[comm.rank])
        self.own = int(firsts[comm.rank + 1]) - self.first

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.firsts.nbytes

    @property
    def nodes(self) -> NDArray[np.uint32]:
        """The numbers of own nodes, ascending."""
        return np.arange(self.first, self.first + self.own, dtype=np.uint32)

    def places(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of own nodes among these."""
        return numbers.astype(np.int64) - self.first

    def find(self, number: int) -> int:
        """Return the place of a node among own ones, or -1 if it is another worker's."""
        return number - self.first if self.first <= number < self.first + self.own else -1

    def owner(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the worker of each node."""
        # Of workers without nodes, the last begins where the next one with nodes does.
        return np.searchsorted(self.firsts[:-1], numbers, side="right") - 1

    def ordered(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Number some nodes, ascending, over all workers in their order; also return how many there are. Collective.

        Each worker passes own ones.
        """
        counts = [len(nodes)] if self._comm.size == 1 else self._comm.allgather(len(nodes))
        return np.arange(len(nodes)) + sum(counts[: self._comm.rank]), sum(counts)


class Parts:
    """Nodes that a partition has dealt. Making it is collective.

    Parameters
    ----------
    homes : Blocks
    parts : ndarray of int (homes.own,)
        The worker of each node whose home this is.
    """

    def __init__(self, comm: Any, homes: Blocks, parts: NDArray[Any]) -> None:
        self._comm, self.homes, self._parts = comm, homes, parts.astype(np.uint16)
        self.n = homes.n
        (nodes,), _ = to_owners(comm, self._parts, homes.nodes)
        #: Homes are in the order of numbers.
        self.nodes: NDArray[np.uint32] = nodes
        self.own = len(nodes)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self._parts.nbytes + self.nodes.nbytes

    def places(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of own nodes among these."""
        return np.searchsorted(self.nodes, numbers.astype(np.uint32))

    def find(self, number: int) -> int:
        """Return the place of a node among own ones, or -1 if it is another worker's."""
        place = int(np.searchsorted(self.nodes, np.uint32(number)))
        return place if place < self.own and self.nodes[place] == number else -1

    def owner(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Return the worker of each node. Collective."""
        wanted = numbers.astype(np.int64)
        distinct = network_ids(pool(), wanted)
        home = self.homes.owner(distinct)
        found = asked(self._comm, home, distinct, lambda came: self._parts[self.homes.places(came)])
        return found[network_find(pool(), distinct, wanted)].astype(np.int64)

    def ordered(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Number some nodes as `Blocks.ordered` does. Collective."""
        counts = [0]

        def numbered(came: NDArray[np.int64]) -> NDArray[np.int64]:
            known = np.sort(came)
            numbers, counts[0] = self.homes.ordered(known)
            return numbers[np.searchsorted(known, came)]

        return asked(self._comm, self.homes.owner(nodes), nodes, numbered), counts[0]


Owners = Blocks | Parts
