"""A copy's share of a network whose links come and go: its nodes, the links that leave them, and what is known of them.

A node belongs to the copy that the hash of its id says, which gives it a number: its slot there times the number of copies,
plus the copy. So a number says who owns it, and links are pairs of numbers. What a window adds and removes is netted, sent
to the owners of the links' sources, and followed:

- degrees by what changed;
- components by uniting those that new links join. Those that lost a link are found anew from the links of their nodes: each
  copy sends a spanning forest of what it sees, and all unite these;
- strengths, the sums of weights, by adding up those of nodes whose links changed;
- PageRank by pushing residuals. With x = (1 - alpha) + alpha P'x - r held for scores x and residuals r, a changed link changes
  a few residuals, and nodes whose residual exceeds the tolerance hand it on until none does.

Source: Ohsaka, Maehara and Kawarabayashi (2015), Efficient PageRank tracking in evolving networks; a changed node's score is
scaled so that its other links need not be touched, as by Zhang, Lofgren and Goel (2016), Approximate personalized PageRank on
dynamic graphs. Where what its links weigh changes so much that rounding errors would matter, all of its links are touched instead.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._tidemill import CompressedRows, network_components, network_push
from tidemill.ml._threads import pool
from tidemill.networks._spans import spans

__all__ = ["NEVER", "Arrived", "Changes", "Rules", "Share", "split"]

_NUMBER_BITS = 32
_NUMBERS = (1 << _NUMBER_BITS) - 1
#: When a link goes by itself that does not.
NEVER = int(np.iinfo(np.int64).max)
#: By how much a score is scaled at most, up or down: the rounding error is this times 2^-53.
_SCALED_MAX = 2.0**20
Numbers = NDArray[np.int64]
Weights = NDArray[np.float64]
Ids = NDArray[Any]


@dataclass(frozen=True)
class Rules:
    """What is followed, and how; parameters as of `follow`."""

    directed: bool
    several: bool
    components: bool
    pagerank: bool
    alpha: float
    tol: float
    is_text: bool
    # With defaults, which stand for what is missing in checkpoints of earlier versions.
    weighted: bool = False
    #: Whether links are kept one by one, as each has its own weight, or goes by itself.
    apart: bool = False


@dataclass
class Arrived:
    """Links that a window adds and removes, by the ids of their ends.

    Attributes
    ----------
    changes : ndarray of int64
        How many such links were added, or removed if negative.
    ends : ndarray of int64
        When links that were added go by themselves, in microseconds; `NEVER` if they do not.
    weights : ndarray of float64
        Of links that were added.
    """

    sources: Ids
    targets: Ids
    changes: Numbers
    ends: Numbers
    weights: NDArray[np.float64]

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """All of them."""
        return self.sources, self.targets, self.changes, self.ends, self.weights

    def where(self, kept: NDArray[np.bool_]) -> Arrived:
        """Return some of them."""
        return Arrived(*(column[kept] for column in self.columns))

    def after(self, others: Arrived) -> Arrived:
        """Return others and these."""
        return Arrived(*map(np.concatenate, zip(others.columns, self.columns, strict=True)))

    def halves(self, directed: bool) -> Arrived:
        """Return halves of links by their source: an undirected link leads both ways, a loop once."""
        if directed:
            return self
        back = self.where(self.sources != self.targets)
        back.sources, back.targets = back.targets, back.sources
        return back.after(self)


@dataclass
class Changes:
    """What a window did to a copy's nodes.

    Attributes
    ----------
    slots : ndarray of int64
        Own nodes in the network whose degrees or components are not what they were.
    gone : ndarray
        Ids of own nodes that lost their last link.
    missing : int
        Removals of links that were not there, on all copies.
    first : pair or None
        The ends of the first of them, by id.
    nodes : int
        How many nodes the network has.
    total : float
        The sum of all scores.
    """

    slots: Numbers
    gone: Ids
    missing: int
    first: tuple[Any, Any] | None
    nodes: int
    total: float


class Rows:
    """Counted links as sorted keys (slot << 32 | number): a large table, and a small one of what changed since.

    A count is the sum of both; a weight, if links have some, is that of the small one, else that of the large one. The small one is
    merged when it exceeds an eighth of the large one, so that a change costs little more than a search.
    """

    def __init__(self, keys: Numbers, counts: Numbers, weights: Weights | None = None) -> None:
        self._set(keys, counts, weights)

    def _set(self, keys: Numbers, counts: Numbers, weights: Weights | None = None) -> None:
        self.keys, self.counts, self.weights = keys, counts, weights
        #: Where the links of each slot begin, and behind them their end.
        self.firsts = np.concatenate([[0], np.cumsum(np.bincount(keys >> _NUMBER_BITS))]).astype(np.int64)
        self.new_keys = self.new_counts = np.empty(0, np.int64)
        self.new_weights = None if weights is None else np.empty(0)

    def __getstate__(self) -> tuple[Any, ...]:
        self.merge()
        return self.keys, self.counts, self.weights

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set(*state)

    @property
    def both_weights(self) -> tuple[Weights, Weights] | None:
        """Those of the large table, and those of the small one."""
        return None if self.weights is None or self.new_weights is None else (self.weights, self.new_weights)

    def merge(self) -> None:
        """Merge the small table into the large one."""
        if len(self.new_keys):
            keys, counts, weights = self._joined(slice(None), slice(None))
            kept = counts != 0
            self._set(keys[kept], counts[kept], None if weights is None else weights[kept])

    def _joined(self, old: Any, new: Any) -> tuple[Numbers, Numbers, Weights | None]:
        """Return distinct keys from places of both tables, ascending, their counts, which may be 0, and their weights."""
        keys = np.concatenate([self.keys[old], self.new_keys[new]])
        order = np.argsort(keys, kind="stable")
        found, counts = _grouped(keys[order], np.concatenate([self.counts[old], self.new_counts[new]])[order])
        weights = None
        if self.both_weights is not None:
            # The last of equal keys is that of the small table.
            lasts = np.searchsorted(keys[order], found, "right") - 1
            weights = np.concatenate([self.both_weights[0][old], self.both_weights[1][new]])[order][lasts]
        return found, counts, weights

    def of(self, keys: Numbers) -> Numbers:
        """Return the counts of links."""
        old, new = (_looked_up(*of, keys, 0) for of in ((self.keys, self.counts), (self.new_keys, self.new_counts)))
        counts: Numbers = old + new
        return counts

    def weights_of(self, keys: Numbers) -> Weights:
        """Return the weights of links, 0 of those that are not there."""
        assert self.both_weights is not None
        old = _looked_up(self.keys, self.both_weights[0], keys, 0.0)
        found: Weights = _looked_up(self.new_keys, self.both_weights[1], keys, old)
        return found

    def change(self, keys: Numbers, counts: Numbers, weights: Weights | None = None) -> None:
        """Add to the counts of links, which are distinct, and set their weights."""
        every = np.concatenate([self.new_keys, keys])
        order = np.argsort(every, kind="stable")
        found, sums = _grouped(every[order], np.concatenate([self.new_counts, counts])[order])
        if self.new_weights is None or weights is None:
            self.new_keys, self.new_counts = found[sums != 0], sums[sums != 0]
        else:
            # Also of links whose number is the same: their weight may be another.
            lasts = np.searchsorted(every[order], found, "right") - 1
            self.new_weights = np.concatenate([self.new_weights, weights])[order][lasts]
            self.new_keys, self.new_counts = found, sums
        if len(self.new_keys) > max(4096, len(self.keys) // 8):
            self.merge()

    def links(self, slots: Numbers) -> tuple[Numbers, Numbers, Weights | None]:
        """Return the keys, counts and weights of the links of nodes, ascending if these are."""
        keys, counts, weights = self._joined(_ranges(self.keys, slots), _ranges(self.new_keys, slots))
        kept = counts != 0
        return keys[kept], counts[kept], None if weights is None else weights[kept]


@dataclass
class Links:
    """The links of a copy's nodes one by one: of each its key, when it goes by itself, and its weight; sorted by these."""

    keys: Numbers
    ends: Numbers
    weights: Weights

    def where(self, kept: Any) -> Links:
        """Return some of them, in the order given."""
        return Links(self.keys[kept], self.ends[kept], self.weights[kept])

    def sorted(self) -> Links:
        """Return them in order."""
        return self.where(np.lexsort((self.weights, self.ends, self.keys)))

    def follow(
        self, keys: Numbers, changes: Numbers, ends: Numbers, weights: Weights, now: int
    ) -> tuple[Numbers, Numbers, Weights, Numbers]:
        """Add links and remove some, the first to go of those with a key; then let go those whose time has come.

        Returns
        -------
        tuple
            The keys that this concerns, distinct and ascending; how many links with each there are now, and the sum of their
            weights; and how many that should be removed were not there.
        """
        added = np.repeat(np.arange(len(keys)), np.maximum(changes, 0))
        concerned = _distinct(keys, self.keys[self.ends <= now])
        removed = np.zeros(len(concerned), np.int64)
        np.add.at(removed, np.searchsorted(concerned, keys), np.maximum(-changes, 0))
        firsts, lasts = np.searchsorted(self.keys, concerned), np.searchsorted(self.keys, concerned, "right")
        places = spans(firsts, lasts)
        found = Links(
            np.concatenate([self.keys[places], keys[added]]),
            np.concatenate([self.ends[places], ends[added]]),
            np.concatenate([self.weights[places], weights[added]]),
        ).sorted()
        group = np.searchsorted(concerned, found.keys)
        sizes = np.bincount(group, minlength=len(concerned))
        nth = np.arange(len(group)) - (np.cumsum(sizes) - sizes)[group]
        kept = (nth >= removed[group]) & (found.ends > now)
        stays, group = found.where(kept), group[kept]
        at = np.searchsorted(np.delete(self.keys, places), stays.keys)
        for name in ("keys", "ends", "weights"):
            setattr(self, name, np.insert(np.delete(getattr(self, name), places), at, getattr(stays, name)))
        counts = np.bincount(group, minlength=len(concerned)).astype(np.int64)
        # Without any it returns integers.
        sums = np.bincount(group, stays.weights, len(concerned)).astype(np.float64)
        lacking: Numbers = np.maximum(removed - sizes, 0)
        return concerned, counts, sums, lacking


def _ranges(keys: Numbers, slots: Numbers) -> Numbers:
    """Return the places in `keys` of the links of nodes."""
    return spans(np.searchsorted(keys, slots << _NUMBER_BITS), np.searchsorted(keys, (slots + 1) << _NUMBER_BITS))


def _looked_up(keys: Numbers, values: NDArray[Any], wanted: Numbers, otherwise: Any) -> NDArray[Any]:
    """Return the values beside ascending keys, and another value for what is not among them."""
    if not len(keys):
        return np.full(wanted.shape, otherwise, values.dtype)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: NDArray[Any] = np.where(keys[places] == wanted, values[places], otherwise)
    return found


def _summed(keys: Numbers, values: NDArray[Any]) -> tuple[Numbers, NDArray[Any]]:
    """Return the distinct keys, ascending, with the sums of their values, without those of sum 0."""
    order = np.argsort(keys, kind="stable")
    keys, sums = _grouped(keys[order], values[order])
    kept = sums != 0
    return keys[kept], sums[kept]


def _distinct(*numbers: Numbers) -> Numbers:
    """Return the distinct of some numbers, ascending: by sorting, which is faster than NumPy's way for many."""
    found = np.sort(np.concatenate(numbers))
    kept: Numbers = found[np.concatenate([[True], found[1:] != found[:-1]])] if len(found) else found
    return kept


def _least(groups: Numbers, names: Ids) -> tuple[Numbers, Ids]:
    """Return the distinct groups, ascending, with the least of their names."""
    order = np.argsort(names, kind="stable")
    found, firsts = np.unique(groups[order], return_index=True)
    return found, names[order][firsts]


def owners_of(ids: Ids, copies: int) -> Numbers:
    """Return the copy that owns each id."""
    if ids.dtype == object:
        hashes = np.fromiter((zlib.crc32(name.encode()) for name in ids), np.uint64, len(ids))
    else:
        hashes = ids.astype(np.uint64)
    # SplitMix64, so that ids in steps are spread, too.
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    owners: Numbers = ((hashes ^ (hashes >> np.uint64(31))) % np.uint64(copies)).astype(np.int64)
    return owners


class Sent:
    """Rows that go to their owners, and the answers to them."""

    def __init__(self, comm: Any, owners: Numbers) -> None:
        self._comm = comm
        self._order = np.argsort(owners, kind="stable")
        self._ends = np.searchsorted(owners[self._order], np.arange(1, comm.size))
        self._received: list[int] = []
        #: Whether any copy is busy, as it told when it dealt.
        self.is_busy = False

    def deal(self, *columns: NDArray[Any], busy: bool = False) -> list[NDArray[Any]]:
        """Send columns, and whether this copy is busy; return what came, in the order of the copies. Collective."""
        self.is_busy = busy
        if self._comm.size == 1:
            return list(columns)
        parts = [np.split(column[self._order], self._ends) for column in columns]
        received = self._comm.alltoall([(busy, part) for part in zip(*parts, strict=True)])
        self.is_busy = any(is_busy for is_busy, _ in received)
        self._received = [len(part[0]) for _, part in received]
        return [np.concatenate(column) for column in zip(*(part for _, part in received), strict=True)]

    def answer(self, *columns: NDArray[Any]) -> list[NDArray[Any]]:
        """Return values beside what came to where it came from; return those beside what was sent. Collective."""
        if self._comm.size == 1:
            return list(columns)
        ends = np.cumsum(self._received)[:-1]
        parts = [np.split(column, ends) for column in columns]
        answers = zip(*self._comm.alltoall(list(zip(*parts, strict=True))), strict=True)
        found = []
        for column in answers:
            joined = np.concatenate(column)
            placed = np.empty_like(joined)
            placed[self._order] = joined
            found.append(placed)
        return found


def _together(comm: Any, *columns: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the rows of all copies in their order. Collective."""
    if comm.size == 1:
        return list(columns)
    return [np.concatenate(column) for column in zip(*comm.allgather(columns), strict=True)]


def _united(ones: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
    """Return all members of pairs, ascending, and of each the least that is connected with it."""
    every = np.concatenate([ones, others])
    bound = int(every.max(initial=-1)) + 1
    if bound <= len(every):
        # Of most nodes at once, which is faster without sorting.
        is_there = np.zeros(bound, bool)
        is_there[every] = True
        members = np.flatnonzero(is_there)
        ends = (np.cumsum(is_there) - 1)[every].astype(np.uint32)
    else:
        members = _distinct(every)
        ends = np.searchsorted(members, every).astype(np.uint32)
    n = len(members)
    rows = CompressedRows.of_links(pool(), ends[: len(ones)], ends[len(ones) :], None, n, n, "keep", False, False)
    return members, members[network_components(pool(), rows, None)]


class Share:
    """A copy's nodes by slot, and their links. It is the copy's state: it can be pickled."""

    #: What is known of a node, by slot.
    ARRAYS = ("ids", "alive", "outgoing", "incoming", "loops", "labels", "names", "scores", "residuals", "told")
    #: And if links have weights: the sums of those of links that leave and enter, and of loops.
    STRENGTHS = ("leaving", "entering", "looping")

    def __init__(self, rules: Rules, copy: int, copies: int) -> None:
        self.rules, self.copy, self.copies = rules, copy, copies
        self.round = 0
        kind = object if rules.is_text else np.int64
        self.ids = np.empty(0, kind)
        self.alive = np.empty(0, bool)
        #: Links that leave and enter, and loops; of an undirected network all leave.
        self.outgoing, self.incoming, self.loops = (np.empty(0, np.int64) for _ in range(3))
        #: The number of a node of the component, and the least id in it.
        self.labels, self.names = np.empty(0, np.int64), np.empty(0, kind)
        self.scores, self.residuals = np.empty(0), np.empty(0)
        #: The score that was last told; NaN for a node that was not told yet.
        self.told = np.empty(0)
        self.leaving, self.entering, self.looping = (np.empty(0) for _ in range(3))
        none = np.empty(0, np.int64)
        self.rows = Rows(none, none, np.empty(0) if rules.weighted else None)
        self.links = Links(none, none, np.empty(0)) if rules.apart else None
        self._slots: dict[Any, int] = {}
        self._free: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_slots", "_free")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not in checkpoints of earlier versions.
        self.links, self.leaving, self.entering, self.looping = None, *(np.empty(0) for _ in range(3))
        vars(self).update(state)
        self._index()

    def _index(self) -> None:
        own = np.flatnonzero(self.alive)
        self._slots = dict(zip(self.ids[own].tolist(), own.tolist(), strict=True))
        self._free = np.flatnonzero(~self.alive)[::-1].tolist()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def next_end(self) -> int | None:
        """When the first of the copy's links goes by itself, in microseconds."""
        first = NEVER if self.links is None else int(self.links.ends.min(initial=NEVER))
        return None if first == NEVER else first

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of arrays by slot."""
        return self.ARRAYS + (self.STRENGTHS if self.rules.weighted else ())

    # Nodes.

    def _number(self, slots: Numbers) -> Numbers:
        return slots * self.copies + self.copy

    def _named(self, ids: Ids) -> Numbers:
        """Return the numbers of own nodes, which are made if they are new."""
        names = ids.tolist()
        # In their order, so that numbers do not depend on which copy asked first.
        if new := sorted({name for name in names if name not in self._slots}):
            self._grow(len(new))
            slots = [self._free.pop() for _ in new]
            self._slots.update(zip(new, slots, strict=True))
            at = np.array(slots)
            self.ids[at] = self.names[at] = new
            self.alive[at] = True
            zeros = ("outgoing", "incoming", "loops", "scores", *(self.STRENGTHS if self.rules.weighted else ()))
            for name in zeros:
                getattr(self, name)[at] = 0
            self.labels[at] = self._number(at)
            self.residuals[at] = 1 - self.rules.alpha
            self.told[at] = np.nan
        return self._number(np.fromiter((self._slots[name] for name in names), np.int64, len(names)))

    def _grow(self, count: int) -> None:
        if len(self._free) >= count:
            return
        size = len(self.ids)
        more = max(count, size // 2, 64)
        if (size + more) * self.copies >= 1 << _NUMBER_BITS:
            raise ValueError(f"a network that is followed has at most {1 << _NUMBER_BITS:,} nodes")
        for name in self.arrays:
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros(more, array.dtype)]))
        self._free = [*range(size + more - 1, size - 1, -1), *self._free]

    def _leave(self, slots: Numbers) -> Ids:
        """Forget nodes; return the ids of those that were told of."""
        gone = self.ids[slots]
        self.alive[slots] = False
        self.scores[slots] = self.residuals[slots] = 0
        for name, slot in zip(gone.tolist(), slots.tolist(), strict=True):
            del self._slots[name]
            self._free.append(slot)
        return gone[~np.isnan(self.told[slots])]

    def _asked(self, comm: Any, numbers: Numbers, *columns: NDArray[Any]) -> list[NDArray[Any]]:
        """Return what the owners of nodes know of them: what stands at their slots in these columns. Collective."""
        asked = Sent(comm, numbers % self.copies)
        (found,) = asked.deal(numbers // self.copies)
        return asked.answer(*(column[found] for column in columns))

    # A window.

    def apply(self, comm: Any, arrived: Arrived, now: int) -> Changes:
        """Follow what a window, which ends now, adds and removes. Collective."""
        rules = self.rules
        arrived = arrived.halves(rules.directed)
        sources, targets = arrived.sources, arrived.targets
        wanted, places = np.unique(np.concatenate([sources, targets]), return_inverse=True)
        asked = Sent(comm, owners_of(wanted, self.copies))
        named = self._named(asked.deal(wanted)[0])
        ends = asked.answer(named)[0][places.reshape(-1)]
        dealt = Sent(comm, ends[: len(sources)] % self.copies)
        columns = ends[: len(sources)] // self.copies, ends[len(sources) :], *arrived.columns[2:]
        slots, targets, changes, *more = dealt.deal(*columns[: 5 if rules.apart else 3])
        keys = slots << _NUMBER_BITS | targets
        weights: Weights | None = None
        if self.links is None:
            keys, changes = _summed(keys, changes)
            before = self.rows.of(keys)
            lacking = np.maximum(-(before + changes), 0)
            after = before + changes + lacking
        else:
            ends, weights = more
            keys, after, weights, lacking = self.links.follow(keys, changes, ends, weights, now)
            before = self.rows.of(keys)
        moved = after - before if rules.several else np.sign(after) - np.sign(before)
        if rules.weighted and weights is not None:
            was, weighs = self.rows.weights_of(keys), weights
        else:
            was, weighs = self._weighed(before), self._weighed(after)
        self.rows.change(keys, after - before, weights)
        missing, first = self._missing(comm, keys, lacking)
        touched, active = self._degrees(comm, keys, moved, was, weighs)
        relabelled = np.empty(0, np.int64)
        if rules.components:
            new, old = (before == 0) & (after > 0), (before > 0) & (after == 0)
            relabelled = self._components(comm, keys[new], self.labels[keys[old] >> _NUMBER_BITS])
        # Also nodes that were named by links only that are missing, or were removed at once.
        named = _distinct(named // self.copies, touched)
        gone = self._leave(named[self.outgoing[named] + self.incoming[named] == 0])
        if rules.pagerank:
            self._push(comm, _distinct(named, active))
        nodes, total = comm.allreduce(np.array([len(self), self.scores.sum()]))
        found = _distinct(touched, relabelled)
        self.round += 1
        return Changes(found[self.alive[found]], gone, missing, first, int(nodes), float(total))

    def _missing(self, comm: Any, keys: Numbers, lacking: Numbers) -> tuple[int, tuple[Any, Any] | None]:
        """Return how many removals found no link, and the ends of the first such link. Collective."""
        sources, targets = self._number(keys >> _NUMBER_BITS), keys & _NUMBERS
        # An undirected link has two halves.
        counted = np.where(self.rules.directed | (sources <= targets), lacking, 0)
        at = np.flatnonzero(counted)[:1]
        source, target, count = _together(comm, sources[at], targets[at], np.array([counted.sum()]))
        if not len(source):
            return 0, None
        (ids,) = self._asked(comm, np.array([source[0], target[0]]), self.ids)
        return int(count.sum()), (ids[:1].tolist()[0], ids[1:].tolist()[0])

    def _weighed(self, counts: Numbers) -> Weights:
        """Return what links weigh that have no weights, by how many there are."""
        return (counts if self.rules.several else np.sign(counts)).astype(np.float64)

    def _degrees(
        self, comm: Any, keys: Numbers, moved: Numbers, was: Weights, weighs: Weights
    ) -> tuple[Numbers, Numbers]:
        """Follow degrees, strengths and residuals, given by how many links there are more, and what they weighed and weigh.

        Returns own nodes that have other degrees or strengths, and those with other residuals. Collective.
        """
        rules = self.rules
        kept = (moved != 0) | (was != weighs)
        keys, moved, was, weighs = keys[kept], moved[kept], was[kept], weighs[kept]
        slots, targets = keys >> _NUMBER_BITS, keys & _NUMBERS
        own, sums = _grouped(slots, moved)
        self.outgoing[own] += sums
        if not rules.directed:
            loops = targets == self._number(slots)
            self.loops[slots[loops]] += moved[loops]
        after = self.outgoing[own].astype(np.float64)
        before = after - sums
        if rules.weighted:
            before = self.leaving[own]
            self._strengths(own)
            after = self.leaving[own]
        given, is_other = np.zeros(len(keys)), np.ones(len(keys), bool)
        if rules.pagerank:
            given, others, others_given = self._given(own, before, after, keys, was, weighs)
            none = np.zeros(len(others), np.int64)
            targets, moved = np.concatenate([targets, others & _NUMBERS]), np.concatenate([moved, none])
            given, is_other = np.concatenate([given, others_given]), np.concatenate([is_other, none > 0])
        sent = Sent(comm, targets % self.copies)
        reached, moved, given, is_other = sent.deal(targets // self.copies, moved, given, is_other)
        np.add.at(self.residuals, reached, given)
        touched = own
        if rules.directed:
            np.add.at(self.incoming, reached, moved)
            entered = _distinct(reached[is_other])
            touched = _distinct(own, entered)
            if rules.weighted:
                self._entered(comm, entered)
        return touched, _distinct(own, reached)

    def _strengths(self, own: Numbers) -> None:
        """Add up the weights of the links of nodes anew, so that rounding errors do not stay."""
        keys, _, weights = self.rows.links(own)
        slots = keys >> _NUMBER_BITS
        self.leaving[own] = np.bincount(np.searchsorted(own, slots), weights, len(own))
        if not self.rules.directed:
            self.looping[own] = self.rows.weights_of(own << _NUMBER_BITS | self._number(own))

    def _entered(self, comm: Any, slots: Numbers) -> None:
        """Add up the weights of the links that enter own nodes anew, so that rounding errors do not stay. Collective."""
        assert self.links is not None
        wanted = np.sort(_together(comm, self._number(slots))[0])
        targets = self.links.keys & _NUMBERS
        is_wanted = np.zeros(1 + max(int(wanted.max(initial=0)), int(targets.max(initial=0))), bool)
        is_wanted[wanted] = True
        at = np.flatnonzero(is_wanted[targets])
        sums = np.bincount(np.searchsorted(wanted, targets[at]), self.links.weights[at], len(wanted)).astype(np.float64)
        weighs = np.flatnonzero(sums)
        sent = Sent(comm, wanted[weighs] % self.copies)
        reached, sums = sent.deal(wanted[weighs] // self.copies, sums[weighs])
        self.entering[slots] = 0
        np.add.at(self.entering, reached, sums)

    def _given(
        self, own: Numbers, before: Weights, after: Weights, keys: Numbers, was: Weights, weighs: Weights
    ) -> tuple[Weights, Numbers, Weights]:
        """Scale the scores of nodes whose links changed, so that the links that stay hand on what they did.

        Parameters
        ----------
        own : ndarray of int64
            The nodes.
        before, after : ndarray of float64
            What all links that leave them weighed and weigh.
        keys : ndarray of int64
            Their links that changed.
        was, weighs : ndarray of float64
            What these links weighed and weigh.

        Returns
        -------
        tuple
            By how much changed links change the residuals of their targets; and other links that change some, with by how much:
            those of nodes whose score was not scaled.
        """
        scores, alpha = self.scores[own], self.rules.alpha
        stays = (before > 0) & (after > 0)
        with np.errstate(over="ignore"):
            ratios = np.divide(after, before, out=np.ones(len(own)), where=stays)
        is_scaled = stays & (ratios <= _SCALED_MAX) & (ratios >= 1 / _SCALED_MAX)
        scaled = scores * np.where(is_scaled, ratios, 1)
        self.scores[own] = scaled
        self.residuals[own] -= scaled - scores

        def share(weights: Weights, sums: Weights) -> Weights:
            return np.divide(weights, sums, out=np.zeros(len(weights)), where=sums > 0)

        at = np.searchsorted(own, keys >> _NUMBER_BITS)
        moved = share(weighs, after[at]) - share(was, before[at])
        moved = np.where(is_scaled[at], share(weighs - was, before[at]), moved)
        # If before or after none weighs anything, those that stay do not either.
        others, counts, weights = self.rows.links(own[stays & ~is_scaled])
        others_weigh = self._weighed(counts) if weights is None else weights
        stay = ~np.isin(others, keys)
        others, others_weigh = others[stay], others_weigh[stay]
        others_at = np.searchsorted(own, others >> _NUMBER_BITS)
        others_moved = share(others_weigh, after[others_at]) - share(others_weigh, before[others_at])
        return alpha * scores[at] * moved, others, alpha * scores[others_at] * others_moved

    # Components.

    def _components(self, comm: Any, new: Numbers, lost: Numbers) -> Numbers:
        """Follow components, given new links by key and the labels of those that lost one; return own nodes with another. Collective."""
        (lost,) = _together(comm, _distinct(lost))
        is_lost = self.alive & np.isin(self.labels, lost) if len(lost) else np.zeros(len(self.ids), bool)
        # Nodes of components that lost a link stand for themselves, others for their component.
        own = np.flatnonzero(is_lost)
        atoms = self.labels.copy() if len(own) else self.labels
        atoms[own] = self._number(own)
        least = self.names.copy() if len(own) else self.names
        least[own] = self.ids[own]
        sources = new >> _NUMBER_BITS
        others, others_least = self._asked(comm, new & _NUMBERS, atoms, least)
        links = self.rows.links(own)[0]
        if len(new):
            links = links[~np.isin(links, new)]
        ones = np.concatenate([self._number(links >> _NUMBER_BITS), atoms[sources]])
        members, groups = self._forest(comm, ones, np.concatenate([links & _NUMBERS, others]))
        if not len(members) and not len(lost):
            return own
        # The least id of each group, of what any copy knows of its members.
        known = np.concatenate([self._number(own), atoms[sources], others])
        groups_known = _mapped(members, groups, known)
        ids = np.concatenate([least[own], least[sources], others_least])
        names = _least(*_together(comm, *_least(groups_known, ids)))
        labels = _mapped(members, groups, atoms)
        at = np.flatnonzero(self.alive & np.isin(labels, names[0]))
        found = names[1][np.searchsorted(names[0], labels[at])]
        changed: Numbers = at[found != self.names[at]]
        self.labels, self.names[at] = labels, found
        return changed

    def _forest(self, comm: Any, ones: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
        """Unite the ends of all copies' pairs; return the members of groups, and of each its group's least. Collective."""
        apart = ones != others
        members, groups = _united(ones[apart], others[apart])
        if comm.size > 1:
            # A spanning forest says as much as all pairs.
            linked = members != groups
            members, groups = _united(*_together(comm, members[linked], groups[linked]))
        return members, groups

    # PageRank.

    def _push(self, comm: Any, candidates: Numbers) -> None:
        """Hand on residuals until none exceeds the tolerance. Collective."""
        rules, rows = self.rules, self.rows
        leaving = self.leaving if rules.weighted else self.outgoing.astype(np.float64)
        # Between two exchanges a few rounds, as they bring nearly as much as more would.
        rounds = None if comm.size == 1 else 4
        while True:
            numbers, values, active, _ = network_push(
                (rows.firsts, rows.keys, rows.counts),
                (rows.new_keys, rows.new_counts),
                leaving,
                self.scores,
                self.residuals,
                candidates,
                self.copy,
                self.copies,
                rules.alpha,
                rules.tol,
                rules.several,
                rounds,
                rows.both_weights,
            )
            sent = Sent(comm, numbers % self.copies)
            slots, values = sent.deal(numbers // self.copies, values, busy=len(numbers) + len(active) > 0)
            if comm.size == 1 or not sent.is_busy:
                return
            np.add.at(self.residuals, slots, values)
            candidates = np.concatenate([active, slots])


def _mapped(keys: Numbers, values: Numbers, wanted: Numbers) -> Numbers:
    """Return the values beside ascending keys; what is not among them stays."""
    return _looked_up(keys, values, wanted, wanted)


def _grouped(keys: Numbers, values: NDArray[Any]) -> tuple[Numbers, NDArray[Any]]:
    """Return the distinct of ascending keys with the sums of their values."""
    if not len(keys):
        return keys, values
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[firsts], np.add.reduceat(values, firsts)


def split(shares: list[Share | None], copies: int) -> list[Share | None]:
    """Return the shares of another number of copies."""
    given = [share for share in shares if share is not None]
    if not given:
        return [None] * copies
    # Nodes in the order of the old copies and their slots: from the number of a node to its place here, and to its new number.
    own = [np.flatnonzero(share.alive) for share in given]
    every = {
        name: np.concatenate([getattr(share, name)[at] for share, at in zip(given, own, strict=True)])
        for name in given[0].arrays
    }
    numbers = np.concatenate([share._number(at) for share, at in zip(given, own, strict=True)])
    owners = owners_of(every["ids"], copies)
    order = np.lexsort((np.argsort(np.argsort(every["ids"], kind="stable")), owners))
    borders = np.searchsorted(owners[order], np.arange(copies + 1))
    renumbered = np.empty(len(numbers), np.int64)
    renumbered[order] = (np.arange(len(order)) - borders[owners[order]]) * copies + owners[order]
    by_number = np.argsort(numbers)
    olds, news = numbers[by_number], renumbered[by_number]
    every["labels"] = _mapped(olds, news, every["labels"])
    links = [_dealt(share, olds, news) for share in given]
    columns = [np.concatenate(column) for column in zip(*links, strict=True)]
    made: list[Share | None] = []
    for copy in range(copies):
        share = Share(given[0].rules, copy, copies)
        share.round = given[0].round
        at = order[borders[copy] : borders[copy + 1]]
        for name, values in every.items():
            setattr(share, name, values[at])
        mine = columns[0] % copies == copy
        sources, targets, counts, ends, weights = (column[mine] for column in columns)
        keys = sources // copies << _NUMBER_BITS | targets
        if share.links is not None:
            share.links = Links(keys, ends, weights).sorted()
            keys, weights = share.links.keys, share.links.weights
        found, sums = _summed(keys, counts)
        share.rows = Rows(found, sums, _grouped(keys, weights)[1] if share.rules.weighted else None)
        share._index()
        made.append(share)
    return made


def _dealt(share: Share, olds: Numbers, news: Numbers) -> tuple[NDArray[Any], ...]:
    """Return the links of a share: new numbers of their ends, given old and new ones, their counts, ends and weights."""
    share.rows.merge()
    if (links := share.links) is None:
        keys, counts = share.rows.keys, share.rows.counts
        ends, weights = np.full(len(keys), NEVER), np.zeros(len(keys))
    else:
        keys, counts, ends, weights = links.keys, np.ones(len(links.keys), np.int64), links.ends, links.weights
    sources, targets = share._number(keys >> _NUMBER_BITS), keys & _NUMBERS
    return _mapped(olds, news, sources), _mapped(olds, news, targets), counts, ends, weights
