"""`follow`: degrees, components and PageRank of a network whose links a stream adds and removes, and their latest values."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tidemill._tables.durations import Duration, micros
from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table
from tidemill.networks._changing import NEVER, Arrived, Changes, Rules, Share, split

if TYPE_CHECKING:
    from tidemill import mpi
    from tidemill._streaming.bsp import BspContext
    from tidemill.dataset import DataSet
    from tidemill.dataset._expr import IntoExpr
    from tidemill.networks._distributed import AnyNetwork
    from tidemill.networks._network import Network

__all__ = ["LiveValues", "MissingLinksWarning", "follow"]

Measure = Literal["degrees", "components", "pagerank"]

#: The name of the column that `lifetime` adds to links: their times.
_TIME = "__time"
#: What the values of `op` may be.
_ADDED, _REMOVED = ("add", "+", "insert"), ("remove", "-", "delete")


class MissingLinksWarning(UserWarning):
    """Links to be removed did not exist; the message gives their number and names the first."""


def follow(
    links: DataSet,
    source: str = "source",
    target: str = "target",
    *,
    op: str | None = None,
    weights: str | None = None,
    start: AnyNetwork | None = None,
    every: Duration | None = None,
    on: IntoExpr | None = None,
    lifetime: Duration | None = None,
    measures: Iterable[Measure] = ("degrees", "components", "pagerank"),
    directed: bool = True,
    duplicates: Literal["keep", "first"] = "keep",
    self_loops: Literal["keep", "drop", "raise"] = "keep",
    missing: Literal["raise", "warn", "ignore"] | None = None,
    alpha: float = 0.85,
    tol: float = 1e-4,
    normalized: bool = True,
    changed_only: bool = True,
    min_change: float = 1e-3,
    root: int | None = None,
    parallelism: int | None = None,
) -> DataSet:
    """Keep the degrees, connected components and PageRank of a network up to date while a stream changes its links.

    The network has the nodes that have links. Each node belongs to one of the step's copies, which stores the links that
    leave it. All copies apply the changes of a window together, and then emit the values of nodes. These are the values that
    `pagerank` and `connected_components` compute from the links that exist at the end of the window.

    Parameters
    ----------
    links : DataSet
        A stream in which each row adds or removes a link.
    source, target : str
        Columns with the ids of the link's ends: both integers, below 2**63, or both strings.
    op : str, optional
        Column with the kind of change: a string, ``"add"`` (or ``"+"``, ``"insert"``) or ``"remove"`` (``"-"``,
        ``"delete"``), or an integer by which the number of such links changes. By default, every row adds a link.
    weights : str, optional
        Column with the weights of added links, not negative: PageRank follows links in proportion to their weights. Weights of
        parallel links are added. In a row that removes a link, the weight is ignored. To change the weight of a link,
        remove it and add it again.
    start : Network or DistributedNetwork, optional
        The network before the first window, the same on every worker. With `weights`, its links have the network's weights,
        or 1 if it has none. Its ids must have the type of those in `links`, and nodes without links are left out. A job
        that resumes takes the network from its checkpoint instead.
    every : str, number of seconds or timedelta, optional
        Length of a window in event time, for example ``"1s"``. Windows without rows are skipped, except those in which
        links expire. By default, a window has the rows from one checkpoint to the next, and the last window ends with the
        stream. The order of rows within a window makes no difference.
    on : str or Expr, optional
        The event time of a row; required with `every`.
    lifetime : str, number of seconds or timedelta, optional
        Time after which a link expires, unless it is removed before: at the end of a window, the network has only
        links that are younger. Links expire by the stream's time, which advances with the rows of the source, even with
        rows that are filtered out before this step; with `stream.processing_time`, it follows the clock. When the stream
        ends, links that have not expired stay. Links of `start` do not expire.
    measures : iterable of {"degrees", "components", "pagerank"}, optional
        What to compute; degrees are always included.
    directed : bool, default=True
        Whether a link leads only from its source to its target; this affects degrees and PageRank.
    duplicates : {"keep", "first"}, default="keep"
        Whether parallel links all count, or only one of them. In either case, a removal removes one of them: with
        `lifetime`, the one that expires first, and among these the one with the smallest weight.
    self_loops : {"keep", "drop", "raise"}, default="keep"
        What to do with links from a node to itself.
    missing : {"raise", "warn", "ignore"}, optional
        What to do if a link to be removed does not exist. The default is ``"raise"``, or with `lifetime` ``"ignore"``,
        because the link may have expired.
    alpha : float, default=0.85
        Damping factor of PageRank, below 1.
    tol : float, default=1e-4
        The largest allowed difference between a score and the value that follows from the scores of the node's neighbors, as
        a fraction of the mean score. This is the rule of ``pagerank(normalized=False, rule="largest", tol=tol)``. The
        errors of all scores then sum to at most ``n * tol / (1 - alpha)`` mean scores, and in practice to far less.
    normalized : bool, default=True
        Whether scores sum to 1, or to the number of nodes.
    changed_only : bool, default=True
        Whether to emit only nodes whose values changed, or all nodes after each window.
    min_change : float, default=1e-3
        A score counts as changed if it differs from the last emitted one by more than this fraction of the mean score.
    root : int, optional
        The copy that emits all rows, so that they reach the sink of one worker. By default, each copy emits the rows of
        its own nodes.
    parallelism : int, optional
        Number of copies; by default, that of other steps.

    Returns
    -------
    DataSet
        A stream with the columns ``round`` (int64: number of the window, from 0), ``end`` (timestamp: its end; null
        without `every`), ``node``, ``in_degree`` and ``out_degree`` (int64), or ``degree`` if undirected (loops count
        twice), with `weights` also ``in_strength`` and ``out_strength``, or ``strength`` (float64: sums of weights),
        ``component`` (the smallest id in the node's component, of the type of ids) and ``score`` (float64). When a node
        loses its last link, it gets a last row in which degrees and strengths are 0, and the component and score are null.

    Raises
    ------
    DataSetError
        If `links` is a table, a column is missing or has the wrong type, or options are invalid or do not fit together. While
        the job runs, it fails with this error on every worker if a link to be removed does not exist (with
        ``missing="raise"``), if a link leads from a node to itself (with ``self_loops="raise"``), if a weight is negative or
        not finite, and if a value is null.

    Warns
    -----
    MissingLinksWarning
        With ``missing="warn"``, on the first copy, for each window with such links.

    Notes
    -----
    The network is part of the stream's checkpoints. If a job resumes with another number of copies, the nodes are
    redistributed. Degrees and components are the same for any number of copies; scores agree within `tol`.

    Cost: for degrees, a change costs little more than a search. If it joins components, it costs a pass over the labels of
    nodes. For PageRank, it costs the links of the nodes whose scores change. After removals, all links of the components
    that lost a link are visited again. A checkpoint saves the whole network. With `weights` or `lifetime`, links
    are stored individually, and each window visits all of them.

    Source: Ohsaka, Maehara and Kawarabayashi (2015), Efficient PageRank tracking in evolving networks.

    Examples
    --------
    >>> import tidemill as tm
    >>> rows = tm.from_dict({"source": ["a", "b", "c", "a"], "target": ["b", "c", "d", "b"], "s": [1, 2, 3, 11],
    ...                      "op": ["add", "add", "add", "remove"]})
    >>> rows = rows.select("source", "target", "op", at=tm.col("s").cast("timestamp[s]")).collect()
    >>> stream = tm.stream.from_table(rows, time="at")
    >>> followed = tm.networks.follow(stream, op="op", every="10s", on="at", measures=["components"])
    >>> nodes = tm.networks.LiveValues()
    >>> _ = followed.write_stream(nodes)
    >>> nodes["c"]["component"], "a" in nodes, nodes.round
    ('b', False, 1)
    """
    from tidemill.dataset._expr import col
    from tidemill.stream._windows import tumbling, window

    if not links._native.is_stream():
        raise DataSetError("follow: its links come on a stream, and this is a table; use networks.read")
    if missing is None:
        missing = "raise" if lifetime is None else "ignore"
    wanted: list[str] = [measures] if isinstance(measures, str) else list(measures)
    if wrong := [measure for measure in wanted if measure not in ("degrees", "components", "pagerank")]:
        raise DataSetError(f"follow: measures are 'degrees', 'components' and 'pagerank', not {wrong[0]!r}")
    for name, value, allowed in (
        ("duplicates", duplicates, ("keep", "first")),
        ("self_loops", self_loops, ("keep", "drop", "raise")),
        ("missing", missing, ("raise", "warn", "ignore")),
    ):
        if value not in allowed:
            raise DataSetError(
                f"follow: {name} is {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, not {value!r}"
            )
    if not 0 <= alpha < 1:
        raise DataSetError(f"follow: alpha is from 0 to below 1, not {alpha}")
    if not tol > 0 or not min_change >= 0:
        raise DataSetError(f"follow: tol={tol} is positive, and min_change={min_change} is not negative")
    if (every is None) != (on is None):
        raise DataSetError(
            "follow: every= is a length of event time, and on= is the column that has it; pass both, or neither"
        )
    if weights is not None and duplicates == "first":
        raise DataSetError("follow: the weights of parallel links add up, so all of them count: pass duplicates='keep'")
    lifetime_us = None if lifetime is None else micros(lifetime, "lifetime")
    if lifetime_us is not None:
        if on is None:
            raise DataSetError("follow: lifetime= is a length of event time: pass every= and on=, too")
        if lifetime_us <= 0:
            raise DataSetError(f"follow: lifetime={lifetime!r} is not positive")
        links = links.with_columns(**{_TIME: col(on) if isinstance(on, str) else on})
    is_text, signed = _checked(links.schema, source, target, op, weights)
    if start is not None:
        start = start.gather()
        _check_start(start, is_text, directed)
    rules = Rules(
        directed,
        duplicates == "keep",
        "components" in wanted,
        "pagerank" in wanted,
        alpha,
        tol,
        is_text,
        weighted=weights is not None,
        apart=weights is not None or lifetime is not None,
    )
    step = _Step(
        rules,
        (source, target, op, signed),
        weights,
        lifetime_us,
        (self_loops, missing),
        (normalized, changed_only, min_change),
        root,
        start,
    )
    id_type = "string" if is_text else "int64"
    schema = {"round": "int64", "end": "timestamp[us]", "node": id_type}
    schema |= dict.fromkeys(("in_degree", "out_degree") if directed else ("degree",), "int64")
    if weights is not None:
        schema |= dict.fromkeys(("in_strength", "out_strength") if directed else ("strength",), "float64")
    schema |= {"component": id_type} if rules.components else {}
    schema |= {"score": "float64"} if rules.pagerank else {}
    return links.bsp(
        step,
        schema,
        window=None if every is None else window(tumbling(every), on=on),
        merge=list,
        split=split,
        parallelism=parallelism,
    )


def _checked(
    schema: dict[str, str], source: str, target: str, op: str | None, weights: str | None
) -> tuple[bool, bool]:
    """Check the columns; return whether ids are strings, and whether changes are numbers."""
    for column in (source, target, op, weights):
        if column is not None and column not in schema:
            raise DataSetError(f"follow: there is no column {column!r}; there are {', '.join(map(repr, schema))}")

    def kind(column: str) -> str | None:
        if schema[column].startswith(("Int", "UInt")):
            return "int"
        return "text" if schema[column].startswith(("Utf8", "LargeUtf8")) else None

    ends = kind(source), kind(target)
    if ends[0] is None or ends[0] != ends[1]:
        raise DataSetError(
            f"follow: {source!r} is {schema[source]} and {target!r} is {schema[target]}, and ids are integers or strings, both alike: "
            "cast them"
        )
    if op is not None and kind(op) is None:
        raise DataSetError(
            f"follow: {op!r} is {schema[op]}; it says 'add' or 'remove', or by how many links there are more"
        )
    if weights is not None and kind(weights) != "int" and not schema[weights].startswith("Float"):
        raise DataSetError(f"follow: {weights!r} is {schema[weights]}, and weights are numbers: cast it")
    return ends[0] == "text", op is not None and kind(op) == "int"


def _check_start(start: Network, is_text: bool, directed: bool) -> None:
    if start.directed != directed:
        raise DataSetError(
            f"follow: the network to start from is {'' if start.directed else 'un'}directed: pass directed={start.directed}"
        )
    texts = [isinstance(one, str) for one in start.ids.tolist()] if start.ids.dtype.kind not in "iu" else [False]
    if set(texts) != {is_text}:
        raise DataSetError(
            f"follow: the links' ids are {'strings' if is_text else 'integers'}, and those of the network to start from are not"
        )


def _signed(what: str, numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return integers as int64; others would become negative."""
    if numbers.dtype == np.uint64 and len(numbers) and (most := int(numbers.max())) >= 2**63:
        raise DataSetError(f"{what} has {most}, and follow takes integers below 2**63: cast larger ids to strings")
    return numbers.astype(np.int64)


class _Step:
    """The function of `DataSet.bsp`; a copy's state is its `Share`."""

    __qualname__ = "follow"

    def __init__(
        self,
        rules: Rules,
        columns: tuple[str, str, str | None, bool],
        weights: str | None,
        lifetime_us: int | None,
        refused: tuple[str, str],
        told: tuple[bool, bool, float],
        root: int | None,
        start: Network | None,
    ) -> None:
        self._start, self._weights, self._lifetime_us = start, weights, lifetime_us
        self._rules, self._columns, self._refused, self._root = rules, columns, refused, root
        self._normalized, self._changed_only, self._min_change = told

    def __call__(self, comm: mpi.Intracomm, rows: Table, context: BspContext) -> Table | None:
        is_first = context.state is None
        if is_first:
            context.state = Share(self._rules, context.copy, context.copies)
        share: Share = context.state
        if share.rules != self._rules:
            raise DataSetError(
                f"the checkpoint is of a network that was followed by other rules, {share.rules}, than {self._rules}"
            )
        number = share.round
        arrived = self._taken(rows)
        if is_first and self._start is not None:
            arrived = arrived.after(self._begun(self._start, context.copy, context.copies))
        end = np.datetime64("NaT", "us") if context.window_end is None else np.datetime64(context.window_end, "us")
        # NaT is before all times, so that nothing expires.
        done = share.apply(comm, arrived, int(end.astype(np.int64)))
        if done.missing:
            self._lacking(comm, done)
        if (next_end := share.next_end) is not None:
            # The window of the microsecond before is the first one at whose end the link is not there. After the year
            # 9999 there are no windows.
            with contextlib.suppress(OverflowError):
                context.timer = datetime(1970, 1, 1) + timedelta(microseconds=next_end - 1)
        made = self._told(share, done)
        columns = {"round": np.full(len(made["node"]), number), "end": np.full(len(made["node"]), end), **made}
        if self._root is not None and comm.size > 1:
            every = comm.gather(columns, root=self._root % comm.size)
            if every is None:
                return None
            joined: Any = np.ma.concatenate
            columns = {name: joined([part[name] for part in every]) for name in columns}
        return Table.from_numpy(columns) if len(columns["node"]) else None

    def _taken(self, rows: Table) -> Arrived:
        """Return the added and removed links of a window."""
        source, target, op, signed = self._columns
        arrays = rows.to_numpy()
        for column in (source, target, *([] if op is None else [op])):
            values = arrays[column]
            if values.dtype == object and any(value is None for value in values):
                raise DataSetError(f"column {column!r} is null; leave such rows out with drop_nulls()")
        sources, targets = (
            arrays[column].astype(object) if self._rules.is_text else _signed(f"column {column!r}", arrays[column])
            for column in (source, target)
        )
        changes = np.ones(len(sources), np.int64)
        if op is not None and signed:
            changes = _signed(f"column {op!r}", arrays[op])
        elif op is not None:
            values = arrays[op]
            added, removed = np.isin(values, _ADDED), np.isin(values, _REMOVED)
            if not (added | removed).all():
                at = int((~(added | removed)).argmax())
                raise DataSetError(f"column {op!r} has {values[at]!r}, and it says 'add' or 'remove'")
            changes = np.where(removed, -1, 1)
        ends = np.full(len(sources), NEVER)
        if self._lifetime_us is not None:
            ends = arrays[_TIME].astype("datetime64[us]").astype(np.int64) + self._lifetime_us
        weights = np.ones(len(sources))
        if self._weights is not None:
            weights = np.where(changes > 0, arrays[self._weights], 0).astype(np.float64)
        return self._accepted(Arrived(sources, targets, changes, ends, weights))

    def _begun(self, network: Network, copy: int, copies: int) -> Arrived:
        """Return this copy's share of the links to start from."""
        sources, targets = network.sources, network.targets
        # The rows of an undirected network have each link in both directions.
        kept = np.arange(len(targets)) if network.directed else np.flatnonzero(sources <= targets)
        kept = kept[copy::copies]
        is_text = self._rules.is_text
        ids = network.ids.astype(object) if is_text else _signed("the network to start from", network.ids)
        weights = np.ones(len(kept))
        if self._rules.weighted and network.weights is not None:
            weights = network.weights[kept]
        ones, ends = np.ones(len(kept), np.int64), np.full(len(kept), NEVER)
        return self._accepted(Arrived(ids[sources[kept]], ids[targets[kept]], ones, ends, weights))

    def _accepted(self, arrived: Arrived) -> Arrived:
        """Check weights, and deal with loops."""
        if self._rules.weighted and not (fits := (arrived.weights >= 0) & (arrived.weights < np.inf)).all():
            at = int((~fits).argmax())
            source, target = arrived.sources[at : at + 1].tolist()[0], arrived.targets[at : at + 1].tolist()[0]
            raise DataSetError(
                f"the link from {source!r} to {target!r} has the weight {arrived.weights[at]}, and weights are finite and not "
                "negative; leave such rows out"
            )
        if self._refused[0] != "keep" and (loops := arrived.sources == arrived.targets).any():
            if self._refused[0] == "raise":
                node = arrived.sources[loops].tolist()[0]
                raise DataSetError(f"a link leads from {node!r} to itself: follow with self_loops='drop'")
            arrived = arrived.where(~loops)
        return arrived

    def _lacking(self, comm: mpi.Intracomm, done: Changes) -> None:
        assert done.first is not None
        source, target = done.first
        found = f"there is no link from {source!r} to {target!r}, which should be removed"
        if self._refused[1] == "raise":
            raise DataSetError(f"{found}: follow with missing='ignore', or look for additions that came too late")
        if self._refused[1] == "warn" and comm.rank == 0:
            warnings.warn(
                f"{done.missing} links that should be removed are not there; the first: {found}", MissingLinksWarning, 2
            )

    def _told(self, share: Share, done: Changes) -> dict[str, NDArray[Any]]:
        """Return the rows of nodes whose values changed, or of all nodes, and of nodes without links."""
        rules = self._rules
        slots, scores = done.slots, np.zeros(0)
        if rules.pagerank or not self._changed_only:
            every = np.flatnonzero(share.alive)
            scores = share.scores * ((1.0 if self._normalized else done.nodes) / (done.total or 1.0))
            if self._changed_only:
                mean = (1.0 if self._normalized else done.nodes) / max(done.nodes, 1)
                # Also those that were never emitted: their old score is NaN, so that the comparison is false.
                moved = ~(np.abs(scores[every] - share.told[every]) <= self._min_change * mean)
                moved |= np.isin(every, slots, assume_unique=True)
                every = every[moved]
            slots = every
        share.told[slots] = scores[slots] if rules.pagerank else 0.0
        left = np.zeros(len(done.gone), np.int64)

        def joined(values: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([values[slots], left])

        def nulls(values: NDArray[Any]) -> NDArray[Any]:
            if not len(left):
                return values[slots]
            at = np.arange(len(slots) + len(left)) >= len(slots)
            found = np.concatenate(
                [values[slots], np.full(len(left), "" if values.dtype == object else 0, values.dtype)]
            )
            # A masked array of objects without any has no type.
            return np.ma.masked_array(found.astype(str) if found.dtype == object else found, at)

        made = {"node": np.concatenate([share.ids[slots], done.gone])}
        if rules.directed:
            made |= {"in_degree": joined(share.incoming), "out_degree": joined(share.outgoing)}
        else:
            made["degree"] = joined(share.outgoing + share.loops)
        if rules.weighted and rules.directed:
            made |= {"in_strength": joined(share.entering), "out_strength": joined(share.leaving)}
        elif rules.weighted:
            made["strength"] = joined(share.leaving + share.looping)
        if rules.components:
            made["component"] = nulls(share.names)
        if rules.pagerank:
            made["score"] = nulls(scores)
        return made


class LiveValues:
    """The latest values of nodes: a sink for the rows of `follow` that other threads can query while the stream runs.

    It has the nodes whose rows arrive at this worker: all nodes if there is one worker, or on the first worker with
    ``follow(..., root=0)``. After a restart, it has only nodes that changed since, except with ``changed_only=False``.

    Attributes
    ----------
    round : int
        Number of the last window with rows; -1 before the first.
    end : datetime or None
        The end of that window.

    Examples
    --------
    See `follow`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Any, dict[str, Any]] = {}
        self.round = -1
        self.end: datetime | None = None

    def __call__(self, rows: Table) -> None:
        """Update the values with rows of `follow`; other threads see all of the update or none."""
        with self._lock:
            for row in rows.to_pylist():
                self.round, self.end = row.pop("round"), row.pop("end")
                node = row.pop("node")
                if any(row.get(name) for name in ("degree", "in_degree", "out_degree")):
                    self._values[node] = row
                else:
                    self._values.pop(node, None)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, node: object) -> bool:
        return node in self._values

    def __getitem__(self, node: Any) -> dict[str, Any]:
        """Return the values of a node, by column.

        Raises
        ------
        KeyError
            If the network has no such node.
        """
        with self._lock:
            if (found := self._values.get(node)) is None:
                raise KeyError(f"the network has no node {node!r}")
            return dict(found)

    def get(self, node: Any) -> dict[str, Any] | None:
        """Return the values of a node, or None if the network has no such node."""
        with self._lock:
            found = self._values.get(node)
            return None if found is None else dict(found)

    def top(self, count: int = 10, by: str = "score") -> list[tuple[Any, Any]]:
        """Return the nodes with the highest values of a column, and these values; among equal values, smaller ids come first."""
        with self._lock:
            pairs = [(node, row[by]) for node, row in self._values.items()]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count]

    def members(self, component: Any) -> set[Any]:
        """Return the ids of the nodes of a component, which is named by the smallest of them."""
        with self._lock:
            return {node for node, row in self._values.items() if row["component"] == component}

    def to_dict(self) -> dict[Any, dict[str, Any]]:
        """Return all values by node."""
        with self._lock:
            return {node: dict(row) for node, row in self._values.items()}
