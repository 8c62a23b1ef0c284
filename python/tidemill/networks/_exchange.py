"""A worker's part of a network, and the exchange of values at its boundary.

A part has the links of the worker's own nodes. Its columns are these nodes, ascending, and behind them the ghosts: nodes of
other workers at the other end of its links, ascending too. Which ghost is whose is told once; after that only values
travel. `Boundary.pull` fetches the values of ghosts from their owners; `Boundary.push` gives owners what was found for
their nodes elsewhere. Both are collective. Workers that do not wait for each other send the same by messages: `told` and
`heard` for pull, `packed` and `unpacked` for push.

`Part.near` is the boundary between the workers of one host alone, for exchanges that leave other hosts out.

Below them are the exchanges that both are made of, and that distribute a network: `to_owners`, `asked` and `all_gathered`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._tidemill import CompressedRows
from tidemill.ml._threads import pool
from tidemill.networks._partition import Partition
from tidemill.networks._results import Account

__all__ = ["Boundary", "Part", "agree", "all_gathered", "alltoallv", "asked", "exact_sums", "rounded_sum", "to_owners"]


def agree(comm: Any, error: Exception | None) -> None:
    """Raise the error of the first rank that has one, on every rank, so that none waits for one that has left. Collective."""
    if comm.size > 1:
        error = next((one for one in comm.allgather(error) if one is not None), None)
    if error is not None:
        raise error


def alltoallv(
    comm: Any, values: NDArray[Any], sent: NDArray[np.int64], received: NDArray[np.int64], width: int = 1
) -> NDArray[Any]:
    """Send each rank a run of values; `sent` and `received` count them, in units of `width`. Collective."""
    found = np.empty(int(received.sum()) * width, values.dtype)
    if comm.size == 1:
        found[:] = values
        return found
    values, room = np.ascontiguousarray(values), found
    if values.dtype.kind == "U":
        # Text of one length: MPI knows only numbers.
        width *= values.dtype.itemsize
        values, room = values.view(np.uint8), found.view(np.uint8)
    counts = [(side * width).tolist() for side in (sent, received)]
    comm.Alltoallv([values, counts[0]], [room, counts[1]])
    return found


def _told(comm: Any, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tell each worker equally many numbers; return what they tell. Collective."""
    if comm.size == 1:
        return numbers
    received = np.empty_like(numbers)
    comm.Alltoall(numbers, received)
    return received


def to_owners(comm: Any, owner: NDArray[Any], *columns: NDArray[Any]) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Send rows of columns to their owners; return what came, rank by rank, and how much from each. Collective.

    Rows from one rank stay in their order.
    """
    if comm.size == 1:
        return list(columns), np.array([len(owner)])
    # NumPy sorts 16 bits by radix.
    order = np.argsort(owner.astype(np.uint16), kind="stable")
    counts = np.bincount(owner, minlength=comm.size)
    coming = _told(comm, counts)
    return [alltoallv(comm, column[order], counts, coming) for column in columns], coming


def asked(
    comm: Any, owner: NDArray[Any], questions: NDArray[Any], answer: Callable[[NDArray[Any]], NDArray[Any]]
) -> NDArray[Any]:
    """Ask owners, who answer what came to them with an array beside it; return the answers beside `questions`. Collective."""
    if comm.size == 1:
        return answer(questions)
    order = np.argsort(owner.astype(np.uint16), kind="stable")
    counts = np.bincount(owner, minlength=comm.size)
    coming = _told(comm, counts)
    answers = alltoallv(comm, answer(alltoallv(comm, questions[order], counts, coming)), coming, counts)
    placed = np.empty_like(answers)
    placed[order] = answers
    return placed


def all_gathered(comm: Any, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of all ranks, one after the other. The dtype is the same on all ranks. Collective."""
    if comm.size == 1:
        return values
    counts = comm.allgather(len(values))
    found = np.empty(sum(counts), values.dtype)
    values, room = np.ascontiguousarray(values), found
    if values.dtype.kind in "Ub":
        counts = [count * values.dtype.itemsize for count in counts]
        values, room = values.view(np.uint8), found.view(np.uint8)
    comm.Allgatherv(values, [room, counts])
    return found


class Boundary:
    """Which values of own nodes go where, and where those of ghosts come from.

    Parameters
    ----------
    owner : ndarray of int, beside `ghosts`
        The worker of each ghost.
    nodes, ghosts : ndarray of uint32
        Own nodes, ascending, and nodes of others whose values are needed here.
    columns : ndarray of int64, optional
        Where the values of `ghosts` are behind those of own nodes; by default in their order.
    of_host : bool, default=False
        Whether it is that between workers of a host, for the account.
    """

    def __init__(
        self,
        comm: Any,
        owner: NDArray[Any],
        nodes: NDArray[np.uint32],
        ghosts: NDArray[np.uint32],
        account: Account,
        columns: NDArray[np.int64] | None = None,
        of_host: bool = False,
    ) -> None:
        self._comm, self._account, self._own = comm, account, len(nodes)
        self._of_host = of_host
        #: Of each ghost its owner.
        self._owner = owner
        order = np.argsort(owner, kind="stable")
        #: The places of ghosts among values, in the order of their owners.
        self._columns = self._own + (order if columns is None else columns[order])
        self._pulled = np.bincount(owner, minlength=comm.size)
        self._pushed = _told(comm, self._pulled)
        wanted = alltoallv(comm, ghosts[order], self._pulled, self._pushed)
        #: The own nodes that others have as ghosts, in the order of these others.
        self._sent = np.searchsorted(nodes, wanted)
        self._firsts = np.concatenate([[0], np.cumsum(self._pushed)])

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        """Of each ghost its place in what its owner sends here."""
        order = np.argsort(self._owner, kind="stable")
        places = np.empty(len(order), np.int64)
        firsts = np.concatenate([[0], np.cumsum(self._pulled)])
        places[order] = np.arange(len(order)) - firsts[self._owner[order]]
        return places

    @property
    def nbytes(self) -> int:
        """Memory of what is known of the boundary, in bytes."""
        return self._owner.nbytes + self._columns.nbytes + self._sent.nbytes

    def pull(self, values: NDArray[Any]) -> None:
        """Set the values of ghosts, behind those of own nodes in `values`, to their owners'. Collective.

        Each may be a row of several.
        """
        begin = time.perf_counter()
        sent = values[self._sent]
        width = math.prod(values.shape[1:])
        found = alltoallv(self._comm, sent.reshape(-1), self._pushed, self._pulled, width)
        values[self._columns] = found.reshape(len(self._columns), *values.shape[1:])
        self._done(begin, sent.nbytes)

    def push(
        self, lowered: NDArray[np.int64], values: NDArray[Any], extras: NDArray[np.int64], busy: bool
    ) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]] | None:
        """Give owners the values of ghosts, and another number with each; return what came for own nodes. Collective.

        Returns None, on all workers, if none has anything to give or is otherwise `busy`.

        Parameters
        ----------
        lowered : ndarray of int64
            Ghosts, from 0.
        values : ndarray of 8-byte numbers
            Beside `lowered`, as is `extras`.

        Returns
        -------
        tuple
            Own nodes, values and extras; a node may come from several workers.
        """
        begin = time.perf_counter()
        message, counts = self._by_owner(lowered, values, extras)
        busy = busy or len(lowered) > 0
        # How many values come, and whether their sender goes on.
        told = np.column_stack([counts, np.full(self._comm.size, busy)]).astype(np.int64).ravel()
        heard = _told(self._comm, told).reshape(-1, 2)
        if not heard[:, 1].any():
            self._account.exchange_seconds += time.perf_counter() - begin
            return None
        coming = heard[:, 0]
        found = alltoallv(self._comm, message, counts, coming, 3).reshape(-1, 3)
        senders = np.repeat(np.arange(self._comm.size), coming)
        nodes = self._sent[self._firsts[senders] + found[:, 0]]
        self._done(begin, message.nbytes)
        return nodes, np.ascontiguousarray(found[:, 1]).view(values.dtype), found[:, 2]

    def _by_owner(
        self, lowered: NDArray[np.int64], values: NDArray[Any], extras: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return place, value and extra of ghosts in the order of their owners, flat, and how many each owner gets."""
        owner = self._owner[lowered]
        order = np.argsort(owner, kind="stable")
        message = np.column_stack([self._place[lowered], values.view(np.int64), extras])[order].ravel()
        return message, np.bincount(owner, minlength=self._comm.size)

    @property
    def neighbors(self) -> NDArray[np.int64]:
        """The workers that have ghosts here, or own ghosts of here."""
        return np.flatnonzero(self._pulled + self._pushed)

    def told(self, values: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
        """Return the values of own nodes that others have as ghosts, by worker."""
        ranks = np.flatnonzero(self._pushed).tolist()
        return {rank: values[self._sent[self._firsts[rank] : self._firsts[rank + 1]]] for rank in ranks}

    def heard(self, values: NDArray[np.float64], rank: int, message: NDArray[np.float64]) -> None:
        """Set the values of ghosts to what their owner told."""
        first = int(self._pulled[:rank].sum())
        values[self._columns[first : first + len(message)]] = message

    def packed(
        self, lowered: NDArray[np.int64], values: NDArray[Any], extras: NDArray[np.int64]
    ) -> dict[int, NDArray[np.int64]]:
        """Return the messages of a `push`, by worker."""
        message, counts = self._by_owner(lowered, values, extras)
        parts = np.split(message.reshape(-1, 3), np.cumsum(counts)[:-1])
        return {rank: part for rank, part in enumerate(parts) if len(part)}

    def unpacked(
        self, rank: int, message: NDArray[np.int64], dtype: np.dtype[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]:
        """Return own nodes, values and extras of a message of `packed`; no node comes twice."""
        nodes = self._sent[self._firsts[rank] + message[:, 0]]
        return nodes, np.ascontiguousarray(message[:, 1]).view(dtype), message[:, 2]

    def _done(self, begin: float, sent_bytes: int) -> None:
        if self._of_host:
            self._account.host_rounds += 1
            self._account.host_bytes_sent += sent_bytes
        else:
            self._account.rounds += 1
            self._account.bytes_sent += sent_bytes
        self._account.exchange_seconds += time.perf_counter() - begin


@dataclass
class Part:
    """A worker's part: its own nodes, their links, and the boundary.

    `owner` is the worker of each ghost. `links` counts those of all parts. `owners` is the worker of each node if the workers
    hold the whole network and get whole results; it is None for a distributed network, whose results stay where nodes are.
    """

    comm: Any
    n: int
    links: int
    nodes: NDArray[np.uint32]
    ghosts: NDArray[np.uint32]
    owner: NDArray[Any]
    rows: CompressedRows
    boundary: Boundary
    account: Account
    owners: NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, comm: Any, rows: CompressedRows, divided: Partition, account: Account) -> Part:
        """Take this worker's part of a network's rows. Collective."""
        begin = time.perf_counter()
        nodes = np.flatnonzero(divided.parts == comm.rank).astype(np.uint32)
        own, ghosts = rows.part(pool(), nodes)
        owner = divided.parts[ghosts]
        boundary = Boundary(comm, owner, nodes, ghosts, account)
        account.cut_links, account.ghosts = divided.cut_links, len(ghosts)
        account.partition_seconds = divided.seconds + time.perf_counter() - begin
        account.held_bytes = rows.nbytes + own.nbytes + boundary.nbytes
        return cls(comm, rows.rows, rows.links, nodes, ghosts, owner, own, boundary, account, divided.parts)

    @property
    def own(self) -> int:
        """Number of own nodes."""
        return len(self.nodes)

    @property
    def places(self) -> NDArray[np.uint32] | slice:
        """Where own nodes are in arrays with a value for each node that the network has here."""
        return slice(None) if self.owners is None else self.nodes

    def near(self, host: Any) -> Boundary:
        """Return the boundary between the workers of this host, given their communicator. Collective."""
        ranks = np.full(self.comm.size, -1)
        ranks[host.allgather(self.comm.rank)] = np.arange(host.size)
        owner = ranks[self.owner]
        columns = np.flatnonzero(owner >= 0)
        ghosts = self.ghosts[columns]
        return Boundary(host, owner[columns], self.nodes, ghosts, self.account, columns=columns, of_host=True)

    def gathered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of a result from those of own nodes: of all nodes in their order, or these. Collective."""
        if self.owners is None:
            return np.ascontiguousarray(values)
        begin = time.perf_counter()
        found = np.empty(self.n, values.dtype)
        found[np.argsort(self.owners, kind="stable")] = all_gathered(self.comm, np.ascontiguousarray(values))
        self.account.gather_seconds += time.perf_counter() - begin
        return found


#: Numbers are summed in two words of this many bits each, so that 2³² of them do not overflow.
_BITS = 31


def exact_sums(comm: Any, scale: float, *values: NDArray[np.float64]) -> list[float]:
    """Sum arrays over all workers in fixed point, so that the sums do not depend on which worker has what. Collective.

    Parameters
    ----------
    comm : communicator, or None for this worker alone
    scale : float
        A power of 2, the same on all workers, that no value exceeds. The error of a sum is below n 2⁻⁶² times it.
    *values : ndarray of float64
        Not negative.
    """
    words = np.zeros(2 * len(values), np.int64)
    for at, array in enumerate(values):
        high = array * (2.0**_BITS / scale)
        whole = np.floor(high)
        words[2 * at] = whole.astype(np.int64).sum()
        words[2 * at + 1] = ((high - whole) * 2.0**_BITS).astype(np.int64).sum()
    if comm is not None and comm.size > 1:
        comm.Allreduce(words.copy(), words)
    whole_sums = [(int(words[2 * at]) << _BITS) + int(words[2 * at + 1]) for at in range(len(values))]
    return [float(total) / 2.0 ** (2 * _BITS) * scale for total in whole_sums]


#: Minus the exponent of the smallest number above 0, as a number from 0.5 to 1 times a power of 2.
_LEAST_EXPONENT = 1073


def rounded_sum(comm: Any, values: NDArray[np.float64]) -> float:
    """Sum an array over all workers with a single rounding, as `math.fsum` does: no matter which worker has what. Collective.

    Parameters
    ----------
    comm : communicator, or None for this worker alone
    values : ndarray of float64
    """
    alone = comm is None or comm.size == 1
    finite = bool(np.isfinite(values).all())
    if not finite if alone else not all(comm.allgather(finite)):
        # Infinite, or no number: equal for every order, as long as finite ones alone do not overflow.
        mine = float(values[~np.isfinite(values)].sum())
        return mine if alone else sum(comm.allgather(mine))
    fractions, exponents = np.frexp(values)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    # By exponent, in two words each, so that 2³² of them do not overflow.
    least = int(exponents.min(initial=0))
    words = np.zeros((2, int(exponents.max(initial=0)) - least + 1), np.int64)
    np.add.at(words[0], exponents - least, mantissas >> _BITS)
    np.add.at(words[1], exponents - least, mantissas & (2**_BITS - 1))
    wholes = ((high << _BITS) + low for high, low in zip(*words.tolist(), strict=True))
    total = sum(whole << (at + least + _LEAST_EXPONENT) for at, whole in enumerate(wholes))
    if not alone:
        total = sum(comm.allgather(total))
    try:
        return float(Fraction(total, 1 << (53 + _LEAST_EXPONENT)))
    except OverflowError:
        return math.inf if total > 0 else -math.inf
