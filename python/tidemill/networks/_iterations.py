"""Algorithms that run on one worker, or on all with more or less synchronization: PageRank, shortest paths, components.

The workers have the whole network each, and get whole results; or they share a distributed one, and get results of their own nodes.

| `sync`      | between two exchanges of boundary values                                        |
|-------------|---------------------------------------------------------------------------------|
| `None`      | this worker alone computes everything; nothing is exchanged                      |
| `"global"`  | one sweep over each worker's part                                                |
| `"partial"` | `local_sweeps` of them, in place, with what came from other workers held fixed   |
| `"auto"`    | as many as remove most error a second, tried in the first rounds                 |
| `"async"`   | `local_sweeps` with the newest values that have come; nobody waits for others    |
"""

from __future__ import annotations

import math
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill import _tidemill as native
from tidemill._iterate.apart import Apart, Talk
from tidemill.ml._estimator import warning_class
from tidemill.ml._job import active
from tidemill.ml._threads import pool
from tidemill.mpi import COMM_TYPE_SHARED
from tidemill.mpi import Comm as OfTidemill
from tidemill.networks._algorithms import numbers_or_none
from tidemill.networks._distributed import AnyNetwork, Block, DistributedNetwork, components_of
from tidemill.networks._exchange import Boundary, Part, agree, exact_sums
from tidemill.networks._network import Network
from tidemill.networks._partition import Method, by_host, partition
from tidemill.networks._results import Account, Components, Paths, Scores, Search

__all__ = ["bfs", "connected_components", "pagerank", "shortest_paths"]

Sync = Literal["global", "partial", "auto", "async"] | None
Array = NDArray[np.float64]

#: Local sweeps that `sync="auto"` tries, for how many rounds each, and for how many the best goes on until it is measured again.
_TRIED, _TRIED_ROUNDS, _KEPT_ROUNDS = (0, 1, 2, 4, 8), 2, 6
#: With `sync="async"`, how many rounds a worker may be ahead of others that it shares links with.
_STALENESS = 8


def _account(sync: Sync, local_sweeps: int | None) -> Account:
    if sync not in ("global", "partial", "auto", "async"):
        raise ValueError(f"sync is 'global', 'partial', 'auto', 'async' or None, not {sync!r}")
    if local_sweeps is not None and (local_sweeps < 1 or sync not in ("partial", "async")):
        raise ValueError("local_sweeps is a positive number, with sync='partial' or 'async'")
    return Account(sync, local_sweeps)


def _of_host(comm: Any) -> Any:
    """Return the communicator of the workers on this worker's host. Collective."""
    if isinstance(comm, OfTidemill):
        return comm.Split_type(COMM_TYPE_SHARED)
    # Other libraries have other numbers for types to split by.
    names = comm.allgather(socket.gethostname())
    return comm.Split(names.index(names[comm.rank]), comm.rank)


def _part(
    network: AnyNetwork,
    rows: native.CompressedRows | Block,
    method: Method | ArrayLike | None,
    account: Account,
    comm: Any,
    host: Any = None,
) -> Part:
    if isinstance(network, DistributedNetwork):
        assert isinstance(rows, Block)
        return network.part(rows, account)
    assert not isinstance(rows, Block)
    if comm.size > 1:
        every = comm.allgather((network.n, network.rows.links, network.fingerprint))
        if different := [rank for rank, one in enumerate(every) if one != every[0]]:
            raise ValueError(
                f"the workers have different networks: that of rank {different[0]} is not that of rank 0, and rank {comm.rank} has "
                f"{network.n:,} nodes; pass the same network on every worker"
            )
    divided = partition(network, comm.size, method="greedy" if method is None else method)
    if host is not None:
        divided = by_host(network, divided, sorted(set(comm.allgather(tuple(host.allgather(comm.rank))))))
    return Part.of(comm, rows, divided, account)


def _checked(network: AnyNetwork, sync: Sync, method: Any) -> tuple[Sync, Any]:
    """Return the synchronization, which a distributed network needs, and the communicator."""
    if not isinstance(network, DistributedNetwork):
        return sync, None if sync is None else active()
    if method is not None:
        raise ValueError(
            "method= chooses parts of a network that every worker has; the nodes of a distributed one were dealt when it was read"
        )
    return "global" if sync is None else sync, network.comm


# PageRank.


def pagerank(
    network: AnyNetwork,
    *,
    alpha: float = 0.85,
    personalization: Mapping[Any, float] | ArrayLike | None = None,
    start: Mapping[Any, float] | ArrayLike | None = None,
    dangling: Mapping[Any, float] | ArrayLike | Literal["drop"] | None = None,
    weighted: bool = True,
    tol: float = 1e-6,
    rule: Literal["l1", "largest"] = "l1",
    max_iter: int = 100,
    normalized: bool = True,
    sync: Sync = None,
    local_sweeps: int | None = None,
    host_rounds: int = 1,
    method: Method | ArrayLike | None = None,
    n_threads: int | None = None,
) -> Scores:
    """Compute PageRank by the power method.

    Source: Page, Brin, Motwani and Winograd (1999), The PageRank citation ranking. Parameters and results are those of
    networkx; docs/networks.md describes partial synchronization.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is undirected, links lead both ways. If it is distributed, the call is collective, arrays are of each worker's own
        nodes, mappings are the same on all, and each worker gets the scores of its own nodes.
    alpha : float, default=0.85
        Damping.
    personalization : mapping of id to float, or array-like (n,), optional
        Where the walk goes when it does not follow a link, in any scale; by default to all nodes alike. Nodes that a
        mapping does not name count as 0.
    start : mapping or array-like (n,), optional
        Scores to begin with, in any scale; by default all the same.
    dangling : mapping, array-like (n,) or "drop", optional
        Where the walk goes from nodes without outgoing links; by default as in `personalization`. ``"drop"`` loses
        their score.
    weighted : bool, default=True
        Whether links are followed in proportion to their weights.
    tol : float, default=1e-6
        End when the changes of all scores in an iteration add up to less than ``n * tol``, as in networkx; or, with
        ``rule="largest"``, when each score changes by less than `tol`.
    max_iter : int, default=100
        Iterations, or with `sync`, rounds.
    normalized : bool, default=True
        Whether scores sum to 1; otherwise they begin at 1 each and sum to n, or less with ``dangling="drop"``.
    sync : {"global", "partial", "auto", "async"}, optional
        Compute on all workers of the job, or of `tidemill.ml.using`; see the table of the module. Collective: every
        worker calls it with the same network and gets all scores. With ``"global"`` they are bitwise the same for any
        number of workers and any partition. With ``"async"``, common rounds at the end make sure that the result meets
        `tol`; `dangling` must be None or ``"drop"``. By default this worker computes alone, or for a distributed network,
        ``"global"``.
    local_sweeps : int, optional
        With ``sync="partial"`` or ``"async"``; by default 4.
    host_rounds : int, default=1
        With ``sync="partial"``: how often, in a round, workers make their local sweeps. Between two of these times the workers
        of a host exchange boundary values among themselves, which costs no other host anything.
    method : optional
        Of `partition`; not for a distributed network.
    n_threads : int, optional

    Returns
    -------
    Scores
        With `sync`, its ``account`` has what was exchanged.

    Warns
    -----
    ConvergenceWarning
        If it ended at `max_iter`.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a weight or a given score is negative or not finite.
    KeyError
        If a mapping names a node that does not exist.

    Examples
    --------
    >>> import tidemill as tm
    >>> net = tm.networks.read((["a", "b", "c"], ["b", "a", "a"]))
    >>> {node: round(score, 3) for node, score in tm.networks.pagerank(net).items()}
    {'a': 0.486, 'b': 0.464, 'c': 0.05}
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is from 0 to 1, not {alpha}")
    if rule not in ("l1", "largest"):
        raise ValueError(f"rule is 'l1' or 'largest', not {rule!r}")
    sync, comm = _checked(network, sync, method)
    n = network.n
    scale = 1.0 if normalized else float(n)
    drop = isinstance(dangling, str)
    if drop and dangling != "drop":
        raise ValueError(f"dangling is a distribution or 'drop', not {dangling!r}")
    teleport = _distribution(network, personalization, "personalization", scale)
    target = teleport if drop else _distribution(network, dangling, "dangling", scale)
    first = _distribution(network, start, "start", scale)
    sums = _outgoing_sums(network, weighted)
    if n == 0:
        return Scores(network, np.empty(0))
    incoming = network.incoming(weighted)
    limit = tol * n * scale if rule == "l1" else tol
    if sync is None:
        if local_sweeps is not None:
            raise ValueError("local_sweeps is a positive number, with sync='partial' or 'async'")
        if host_rounds != 1:
            raise ValueError("host_rounds is a positive number, with sync='partial'")
        # Without arrays the kernel takes 1 / n for each node, which is faster.
        is_uniform = scale == 1 and first is None and teleport is None and target is None
        assert not isinstance(incoming, Block)
        uniform = np.full(n, scale / n)
        everywhere = uniform if teleport is None else teleport
        values, iterations, change = native.network_pagerank(
            pool(n_threads),
            incoming,
            sums,
            alpha,
            limit,
            max_iter,
            rule,
            None if is_uniform else (uniform if first is None else first),
            None if is_uniform else everywhere,
            # A share of what dangling nodes lose, in any scale.
            None if is_uniform else (everywhere if target is None else target) / scale,
            drop,
        )
        result = Scores(network, values, iterations, change, change < limit)
    else:
        account = _account(sync, local_sweeps)
        if host_rounds < 1 or (host_rounds > 1 and sync != "partial"):
            raise ValueError(f"host_rounds is a positive number, with sync='partial', not {host_rounds} with {sync!r}")
        if sync == "async" and target is not None:
            raise ValueError(
                "sync='async' needs dangling=None or 'drop': no worker knows what all dangling nodes together lose"
            )
        host = _of_host(comm) if host_rounds > 1 and comm.size > 1 else None
        try:
            part = _part(network, incoming, method, account, comm, host)
            near = None if host is None else part.near(host)
            run = _PageRank(part, near, host_rounds, alpha, scale, first, teleport, target, sums, drop, pool(n_threads))
            result = run.iterate(network, limit, rule, max_iter)
        finally:
            if host is not None:
                host.Free()
    if not result.converged:
        warnings.warn(
            f"PageRank ended after {result.iterations} iterations with a change of {result.change:.2g}, without converging: "
            "allow more with max_iter=, or pass a larger tol=",
            warning_class(),
            stacklevel=2,
        )
    return result


def _distribution(network: AnyNetwork, given: Any, name: str, scale: float) -> Array | None:
    """Return given scores with a sum of `scale`, (n,), or (own,) if the network is distributed."""
    if given is None:
        return None
    comm: Any = network.comm if isinstance(network, DistributedNetwork) else None
    count = network.own if isinstance(network, DistributedNetwork) else network.n
    if isinstance(given, Mapping):
        numbers = np.array([float(value) for value in given.values()])
        values = np.zeros(count)
        if isinstance(network, DistributedNetwork):
            here, places = network.places(given)
            values[places] = numbers[here]
        else:
            values[network.numbers(given)] = numbers
    else:
        values = np.array(given, np.float64)
    trouble: ValueError | None = None
    if values.shape != (count,):
        trouble = ValueError(f"{name} has shape {values.shape}, not ({count},): one number for each node")
    elif not (np.isfinite(values).all() and (values >= 0).all()):
        trouble = ValueError(f"{name} is numbers that are finite, not negative, and not all 0")
    largest = 0.0 if trouble else float(values.max(initial=0.0))
    if comm is not None:
        agree(comm, trouble)
        largest = max(comm.allgather(largest))
    elif trouble is not None:
        raise trouble
    if largest == 0:
        raise ValueError(f"{name} is numbers that are finite, not negative, and not all 0")
    # The same total whichever worker has what.
    (total,) = exact_sums(comm, 2.0 ** (math.ceil(math.log2(largest)) + 1), values)
    return values * (scale / total)


def _outgoing_sums(network: AnyNetwork, weighted: bool) -> Array:
    """Return of each node the sum of the weights of the links that leave it, which are checked."""
    if isinstance(network, DistributedNetwork):
        if weighted:
            network.check_weights("weights of PageRank", finite=True)
        return network.outgoing(weighted).rows.weight_sums(pool())

    def sums() -> Array:
        if weighted:
            network.check_weights("weights of PageRank", finite=True)
        return network.outgoing(weighted).weight_sums(pool())

    found: Array = network.form(f"outgoing sums, {weighted}", sums)
    return found


class _PageRank:
    """The scores of a worker's own nodes, and what a round does to them.

    A round is local sweeps, perhaps again and again with exchanges within hosts between them, an exchange of contributions,
    and a step of all workers from there. So a round without
    local sweeps is an iteration of the power method, and what the step changes is measured alike in all modes.
    """

    def __init__(
        self,
        part: Part,
        near: Boundary | None,
        host_rounds: int,
        alpha: float,
        scale: float,
        first: Array | None,
        teleport: Array | None,
        target: Array | None,
        sums: Array,
        drop: bool,
        threads: native.KernelPool,
    ) -> None:
        def own(values: Array | None, total: float) -> Array:
            return np.full(part.own, total / part.n) if values is None else values[part.places]

        self._part, self._alpha, self._scale, self._pool = part, alpha, scale, threads
        self._near, self._host_rounds = near, 1 if near is None else host_rounds
        # Where the walk goes on from dangling nodes as it does elsewhere, their score can be dropped and the sum set right in the
        # end. Local sweeps need that: what all dangling nodes lose is known after an exchange only.
        self._set_right = not drop and target is None and part.account.sync != "global"
        self._total, self._drop = scale, drop or self._set_right
        outgoing = sums[part.places]
        self._inverse = np.divide(1.0, outgoing, out=np.zeros(part.own), where=outgoing > 0)
        self._dangling = np.flatnonzero(outgoing == 0)
        self._teleport = own(teleport, scale) * (1 - alpha)
        # Where nothing else is said, the walk goes on from dangling nodes as it does elsewhere.
        self._target = own(target if target is not None else teleport, scale) / scale
        self._values = own(first, scale)
        self._contributions = np.zeros(part.rows.columns)
        # A power of 2 above all scores, and above what one of them changes.
        self._bound = 2.0 ** (math.ceil(math.log2(scale)) + 1)
        self._set_contributions()
        self._lost = 0.0 if self._drop else self._sums(self._values[self._dangling])[0]

    def _sums(self, *values: Array) -> list[float]:
        begin = time.perf_counter()
        sums = exact_sums(self._part.comm, self._bound, *values)
        self._part.account.exchange_seconds += time.perf_counter() - begin
        return sums

    def _set_contributions(self) -> None:
        np.multiply(self._values, self._inverse, out=self._contributions[: self._part.own])

    def round(self, sweeps: int, tolerance: float) -> tuple[float, float]:
        """Make a round; return by how much its step changed the scores, in sum and at most."""
        part, alpha = self._part, self._alpha
        account = part.account
        base = self._teleport if self._drop else self._teleport + (alpha * self._lost) * self._target
        for host_round in range(self._host_rounds if sweeps else 0):
            if host_round and self._near is not None:
                self._near.pull(self._contributions)
            begin = time.perf_counter()
            if part.own:
                made, _, _ = native.network_pagerank_sweeps(
                    part.rows, self._contributions, self._inverse, base, alpha, self._values, sweeps, tolerance
                )
                account.sweeps += made
            account.compute_seconds += time.perf_counter() - begin
        part.boundary.pull(self._contributions)
        begin = time.perf_counter()
        before = self._values.copy()
        if part.own:
            native.network_pagerank_step(self._pool, part.rows, self._contributions, base, alpha, self._values)
        self._set_contributions()
        account.sweeps += 1
        account.compute_seconds += time.perf_counter() - begin
        changes = np.abs(self._values - before)
        largest = float(changes.max(initial=0.0))
        if self._set_right:
            change, self._total = self._sums(changes, self._values)
            factor = self._scale / self._total
            return change * factor, largest * factor
        if self._drop:
            (change,) = self._sums(changes)
            return change, largest
        change, held, lost = self._sums(changes, before[self._dangling], self._values[self._dangling])
        # Local sweeps moved what dangling nodes lose; the step did not know that yet.
        change += alpha * abs(held - self._lost)
        self._lost = lost
        return change, largest

    def iterate(self, network: AnyNetwork, limit: float, rule: str, max_iter: int) -> Scores:
        """Make rounds until the change is below `limit`."""
        account = self._part.account
        auto = account.sync == "auto" and self._part.comm.size > 1
        sweeps = 0
        if account.sync == "partial":
            sweeps = account.local_sweeps = account.local_sweeps or 4
        elif account.sync == "async":
            self._apart(limit, rule, max_iter)
        choice = _Choice(self._part.comm) if auto else None
        iterations, change = 0, math.inf
        # Local sweeps that change less than this do not bring the end nearer.
        local = limit / (10 * self._part.n if rule == "l1" else 10)
        while iterations < max_iter and not change < limit:
            if choice is not None:
                sweeps = choice.sweeps(change)
            # Nobody knows anything of ghosts before the first exchange.
            l1, largest = self.round(sweeps if iterations else 0, local)
            change = l1 if rule == "l1" else self._largest(largest)
            iterations += 1
        if account.sync == "auto":
            account.sync, account.local_sweeps = "partial" if sweeps else "global", sweeps
            account.tries = {} if choice is None else choice.rates
        if self._set_right:
            self._values *= self._scale / self._total
        values = self._part.gathered(self._values)
        return Scores(network, values, iterations, change, change < limit, account=account)

    def _apart(self, limit: float, rule: str, max_iter: int) -> None:
        """Sweep with the newest contributions of ghosts, without common rounds, until no worker's scores change much."""
        part, values = self._part, self._values
        account = part.account
        sweeps = account.local_sweeps = account.local_sweeps or 4
        most = limit * part.own / part.n if rule == "l1" else limit
        # Together all are to be within the limit, and a sweep costs less than a common round.
        most /= 4
        told = values.copy()

        def is_near(other: Array) -> bool:
            changes = np.abs(values - other)
            return float(changes.sum() if rule == "l1" else changes.max(initial=0.0)) <= most

        def work(is_first: bool) -> tuple[dict[int, Array], bool]:
            before = values.copy()
            if part.own:
                made, _, _ = native.network_pagerank_sweeps(
                    part.rows, self._contributions, self._inverse, self._teleport, self._alpha, values, sweeps, 0.0
                )
                account.sweeps += made
            messages = {}
            if not is_near(told):
                told[:] = values
                messages = part.boundary.told(self._contributions)
            return messages, is_near(before)

        def receive(rank: int, message: Array) -> None:
            part.boundary.heard(self._contributions, rank, message)

        part.boundary.pull(self._contributions)
        Apart(Talk(part.comm, account, part.boundary.neighbors, receive, _STALENESS), account, max_iter).run(work)

    def _largest(self, value: float) -> float:
        largest: float = max(self._part.comm.allgather(value))
        return largest


class _Choice:
    """Chooses the number of local sweeps that removes most error a second. All workers choose the same.

    Each number is tried, then the best is kept and measured on: what goes well in the first rounds may not later, and when
    another one did better when it was last measured, that has its turn.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        #: Rounds of this measurement that are left; what is measured, -1 before the first round; and what it began with.
        self._left, self._current = 1, -1
        self._begin, self._error = 0.0, math.inf
        #: Digits of error a second by number of sweeps.
        self.rates: dict[int, float] = {}

    def sweeps(self, error: float) -> int:
        """Return the number of local sweeps for the next round; the error was `error` after the last one."""
        if math.isinf(error):
            # The first round only warms up.
            return 0
        self._left -= 1
        if self._left == 0:
            self._measure(error)
            untried = [sweeps for sweeps in _TRIED if sweeps not in self.rates]
            self._left = _TRIED_ROUNDS if untried else _KEPT_ROUNDS
            self._current = untried[0] if untried else max(self.rates, key=lambda sweeps: (self.rates[sweeps], -sweeps))
            self._begin, self._error = time.perf_counter(), error
        return self._current

    def _measure(self, error: float) -> None:
        if self._current < 0:
            return
        seconds = max(self._comm.allgather(time.perf_counter() - self._begin))
        digits = math.log10(self._error / error) if error > 0 and self._error > 0 else 0.0
        self.rates[self._current] = digits / max(seconds, 1e-9)


# What only lowers values: shortest paths and components.


class _Lowering:
    """Lowers values of own nodes and ghosts by `step`, and tells the owners of ghosts, until no node is active.

    Parameters
    ----------
    values : ndarray (columns,)
        Of own nodes, then of ghosts. In the end those of own nodes are final.
    active_nodes : ndarray of uint32, optional
        Nodes whose links are to be looked at; by default all.
    origins : ndarray of int64 (own,)
        Set to the node, by its number in the network, that lowered each own node last.
    parents : ndarray of uint32 (columns,), optional
        What `step` sets to the column that lowered each.
    """

    def __init__(
        self,
        part: Part,
        values: NDArray[Any],
        active_nodes: NDArray[np.uint32] | None,
        step: Callable[[NDArray[np.uint32] | None], tuple[NDArray[np.uint32], NDArray[np.uint32], int]],
        origins: NDArray[np.int64],
        parents: NDArray[np.uint32] | None,
    ) -> None:
        self._part, self._values, self._step, self._origins, self._parents = part, values, step, origins, parents
        self._active = active_nodes

    def run(self) -> None:
        """Do it all, by common rounds or without. Collective."""
        if self._part.account.sync == "async":
            self._apart()
        else:
            self._together()

    def _together(self) -> None:
        part = self._part
        while True:
            begin = time.perf_counter()
            lowered = self._lowered()
            part.account.compute_seconds += time.perf_counter() - begin
            came = part.boundary.push(*lowered, self._is_active)
            if came is None:
                return
            nodes, coming, came_from = came
            # The least of what several workers found for a node, and of equals that of the first worker.
            order = np.lexsort((np.arange(len(nodes)), coming, nodes))
            nodes, coming, came_from = nodes[order], coming[order], came_from[order]
            first = np.ones(len(nodes), bool)
            first[1:] = nodes[1:] != nodes[:-1]
            self._take(nodes[first], coming[first], came_from[first])

    def _apart(self) -> None:
        part = self._part

        def work(is_first: bool) -> tuple[dict[int, NDArray[np.int64]], bool]:
            messages = part.boundary.packed(*self._lowered())
            return messages, not self._is_active

        def receive(rank: int, message: NDArray[np.int64]) -> None:
            self._take(*part.boundary.unpacked(rank, message, self._values.dtype))

        talk = Talk(part.comm, part.account, part.boundary.neighbors, receive, _STALENESS)
        Apart(talk, part.account, sys.maxsize).run(work)

    @property
    def _is_active(self) -> bool:
        return self._active is None or len(self._active) > 0

    def _lowered(self) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]:
        """Make a step from active nodes; return the ghosts that it lowered, their values, and where these come from."""
        part, relaxed = self._part, 0
        lowered = np.empty(0, np.uint32)
        if self._is_active:
            lowered, self._active, relaxed = self._step(self._active)
        columns = lowered.astype(np.int64)
        found = np.zeros(len(columns), np.int64)
        if self._parents is not None:
            found = part.nodes[self._parents[columns]].astype(np.int64)
            mine = columns < part.own
            self._origins[columns[mine]] = found[mine]
        part.account.sweeps += relaxed / max(1, part.rows.links)
        outside = columns >= part.own
        ghosts = columns[outside]
        return ghosts - part.own, self._values[ghosts], found[outside]

    def _take(self, nodes: NDArray[np.int64], coming: NDArray[Any], came_from: NDArray[np.int64]) -> None:
        """Lower own nodes, none of which comes twice, to what others found."""
        better = coming < self._values[nodes]
        self._values[nodes[better]], self._origins[nodes[better]] = coming[better], came_from[better]
        if self._active is not None:
            self._active = np.union1d(self._active, nodes[better].astype(np.uint32)).astype(np.uint32)


#: With `sync="auto"`, values are lowered partially where at most this share of the links is cut.
_CUT_MAX = 0.05


def _sweeps_between(part: Part) -> int | None:
    """Decide on the synchronization of a computation that lowers values; return its sweeps between exchanges."""
    account = part.account
    if account.sync == "auto":
        account.sync = "partial" if account.cut_links <= _CUT_MAX * part.links else "global"
    return 1 if account.sync == "global" else account.local_sweeps


def shortest_paths(
    network: AnyNetwork,
    sources: Any,
    *,
    weighted: bool = True,
    cutoff: float | None = None,
    sync: Sync = None,
    local_sweeps: int | None = None,
    method: Method | ArrayLike | None = None,
    n_threads: int | None = None,
) -> Paths:
    """Find shortest paths from a node, or from the nearest of several, along the directions of links.

    Source: Meyer and Sanders (2003), Δ-stepping: a parallelizable shortest path algorithm.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and each worker gets the paths to its own nodes.
    sources : id, or list or set of ids
    weighted : bool, default=True
        Whether weights are lengths; else each link is 1 long.
    cutoff : float, optional
        Nodes farther than this count as not reached.
    sync : {"global", "partial", "auto", "async"}, optional
        Compute on all workers, as in `pagerank`. Distances are bitwise the same with each mode; if there are several
        shortest paths, modes may find different ones. ``"auto"`` is ``"partial"`` if at most 5 % of the links are
        between workers, and otherwise ``"global"``, because workers would then have to correct much of what they find
        alone. By default this worker computes alone, or for a distributed network, ``"global"``.
    local_sweeps : int, optional
        With ``sync="partial"`` or ``"async"``: the number of rounds over active nodes before an exchange; by default
        until nothing changes.
    method : optional
        Of `partition`; not for a distributed network.

    Returns
    -------
    Paths

    Raises
    ------
    ValueError
        If a weight is negative; the message names its link.
    KeyError
        If there is no such node.

    Examples
    --------
    >>> import tidemill as tm
    >>> net = tm.networks.read((["a", "a", "b"], ["b", "c", "c"], [1.0, 5.0, 2.0]))
    >>> paths = tm.networks.shortest_paths(net, "a")
    >>> paths["c"], paths.path_to("c")
    (3.0, ['a', 'b', 'c'])
    """
    several = isinstance(sources, list | set | frozenset | np.ndarray)
    named = sources if several else [sources]
    sync, comm = _checked(network, sync, method)
    rows = network.outgoing(weighted)
    if weighted:
        network.check_weights("lengths")
    if sync is None:
        assert isinstance(network, Network) and not isinstance(rows, Block)
        at = network.numbers(named)
        found, parents = native.network_shortest_paths(pool(n_threads), rows, at, None, cutoff)
        return Paths(network, found, numbers_or_none(parents))
    account = _account(sync, local_sweeps)
    if isinstance(network, DistributedNetwork):
        _, mine = network.places(named)
        part = _part(network, rows, method, account, comm)
    else:
        at = network.numbers(named)
        part = _part(network, rows, method, account, comm)
        mine = np.flatnonzero(np.isin(part.nodes, at))
    values = np.full(part.rows.columns, np.inf)
    values[mine] = 0.0
    columns = np.full(part.rows.columns, 0xFFFFFFFF, np.uint32)
    columns[mine] = mine
    origins = np.full(part.own, -1, np.int64)
    origins[mine] = part.nodes[mine]
    rounds = _sweeps_between(part)

    def step(nodes: NDArray[np.uint32] | None) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
        return native.network_relax(part.rows, values, columns, nodes, rounds)

    _Lowering(part, values, mine.astype(np.uint32), step, origins, columns).run()
    values, origins = part.gathered(values[: part.own]), part.gathered(origins)
    if cutoff is not None:
        values[values > cutoff], origins[values > cutoff] = np.inf, -1
    return Paths(network, values, origins, account=account)


def bfs(network: AnyNetwork, source: Any, *, n_threads: int | None = None) -> Search:
    """Search breadth-first from a node, along the directions of links.

    Large levels are searched from below. Source: Beamer, Asanović and Patterson (2012), Direction-optimizing
    breadth-first search. On a distributed network, workers exchange after each level, and search from above.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and each worker gets the levels of its own nodes.
    source : id of a node
    n_threads : int, optional
        Threads of this worker; by default the launcher's setting, else its share of the host's CPUs. Other functions have
        the same argument.

    Returns
    -------
    Search
        ``values`` are the levels, (n,) int32; -1 for nodes that are not reached.

    Raises
    ------
    KeyError
        If there is no such node.
    """
    if isinstance(network, DistributedNetwork):
        paths = shortest_paths(network, [source], weighted=False)
        levels = np.where(np.isinf(paths.values), -1, paths.values).astype(np.int32)
        return Search(network, levels, paths.parents, account=paths.account)
    at = network.number(source)
    parents, levels = native.network_bfs(pool(n_threads), network.outgoing(False), network.incoming(False), at)
    return Search(network, levels, numbers_or_none(parents))


def connected_components(
    network: AnyNetwork,
    *,
    sync: Sync = None,
    local_sweeps: int | None = None,
    method: Method | ArrayLike | None = None,
    n_threads: int | None = None,
) -> Components:
    """Find connected components; in a directed network, the weakly connected ones, as if links had no direction.

    Source: Sutton, Ben-Nun and Barak (2018), Optimizing parallel graph connectivity computation via subgraph sampling.

    Parameters
    ----------
    network : Network or DistributedNetwork
        If it is distributed, the call is collective, and each worker gets the components of its own nodes.
    sync : {"global", "partial", "auto", "async"}, optional
        Compute on all workers, as in `pagerank`; the result is the same with each mode. ``"auto"`` chooses as in
        `shortest_paths`.
    local_sweeps : int, optional
        With ``sync="partial"`` or ``"async"``; by default until nothing changes.
    method : optional
        Of `partition`; not for a distributed network.

    Returns
    -------
    Components
    """
    sync, comm = _checked(network, sync, method)
    if sync is None:
        assert isinstance(network, Network)
        rows = network.outgoing(False)
        # Of an undirected network they are their own reverse, which lets most links be skipped.
        reverse = None if network.directed else rows
        labels: NDArray[Any] = native.network_components(pool(n_threads), rows, reverse)
    else:
        account = _account(sync, local_sweeps)
        part = _part(network, network.both(), method, account, comm)
        values = np.concatenate([part.nodes, part.ghosts]).astype(np.int64)
        sweeps = _sweeps_between(part)

        def step(nodes: NDArray[np.uint32] | None) -> tuple[NDArray[np.uint32], NDArray[np.uint32], int]:
            return native.network_lower_labels(part.rows, values, nodes, sweeps)

        _Lowering(part, values, None, step, np.empty(part.own, np.int64), None).run()
        labels = part.gathered(values[: part.own])
        if isinstance(network, DistributedNetwork):
            shared: Components = components_of(network, labels, Components, account=account)
            return shared
        found: Components = Components.of(network, labels, account=account)
        return found
    alone: Components = Components.of(network, labels)
    return alone
