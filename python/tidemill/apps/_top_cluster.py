"""What worker 0 of a job reports about its hosts, links, buckets and causes of slowness: JSON, checked once, here.

Fields have the names of the report's; those that no display needs are left out. Texts are made safe for a terminal, and what
is not a number (``null``, in the report) is 0 where a number is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tidemill.apps._plain import plain

__all__ = [
    "Buckets",
    "Cause",
    "Cluster",
    "ClusterError",
    "Decision",
    "HeavyKey",
    "Host",
    "HostLink",
    "Outcome",
    "Remedy",
    "Task",
    "host_names",
    "read_cluster",
    "read_decisions",
]


class ClusterError(ValueError):
    """A report is not what this version of ``tidemill top`` knows."""


@dataclass(frozen=True)
class Host:
    """A host, its workers together: CPUs used, threads that wait for one, rates and capacities in bytes per second."""

    name: str
    workers: list[int]
    cores: float
    cpus_used: float
    cpus_waited: float
    out_bytes_s: float
    in_bytes_s: float
    out_capacity: float | None
    in_capacity: float | None


@dataclass(frozen=True)
class HostLink:
    """What one host sends to another, by index."""

    from_: int
    to: int
    bytes_s: float
    capacity: float | None
    busy: float
    link_wait: float
    credit_wait: float
    queued_bytes: int
    rtt_us: int | None


@dataclass(frozen=True)
class Buckets:
    """Buckets of a task: all lists by bucket; all but `hosts` may be empty."""

    hosts: list[int]
    rows_s: list[float]
    bytes_s: list[float]
    work: list[float]
    state_bytes: list[int]


@dataclass(frozen=True)
class HeavyKey:
    """A frequent key, and its share of the task's rows."""

    key: str
    bucket: int
    share: float


@dataclass(frozen=True)
class Task:
    """A task, with its buckets if it is partitioned by key."""

    name: str
    buckets: Buckets | None
    heavy_keys: list[HeavyKey]


@dataclass(frozen=True)
class Remedy:
    """Buckets to move."""

    buckets: int
    gain: float


@dataclass(frozen=True)
class Cause:
    """A cause of slowness."""

    kind: str
    sentence: str
    evidence: list[str]
    weight: float
    remedy: Remedy | None


@dataclass(frozen=True)
class Outcome:
    """The status of a decision, and the reason if it failed."""

    state: str
    reason: str | None = None


@dataclass(frozen=True)
class Decision:
    """A decision of the controller."""

    at_s: float
    sentence: str
    buckets: int
    predicted: float
    measured: float | None
    outcome: Outcome


@dataclass(frozen=True)
class Cluster:
    """A job at a moment, over the last `span_s` seconds."""

    span_s: float
    hosts: list[Host]
    links: list[HostLink]
    tasks: list[Task]
    causes: list[Cause]
    controller: str
    decisions: list[Decision]


def read_cluster(told: object) -> Cluster | None:
    """Return the report in a worker's status; None if it has none.

    Raises
    ------
    ClusterError
        If it is not what this version knows.
    """
    if told is None:
        return None
    try:
        cluster: Cluster = _reader(Cluster)(told)
        _check(cluster)
    except ClusterError as error:
        raise ClusterError(
            f"the report of worker 0 is not of this version (cluster{error}): look with the version that runs the job"
        ) from None
    return cluster


def read_decisions(told: object) -> list[Decision]:
    """Return decisions that a job has kept beside its checkpoints, with times in seconds since 1970.

    Raises
    ------
    ClusterError
        If they are not what this version knows.
    """
    decisions: list[Decision] = _reader(list[Decision])(told)
    return decisions


def host_names(cluster: Cluster) -> list[str]:
    """Return the names of the hosts, without their domain where that keeps them apart."""
    names = [host.name for host in cluster.hosts]
    firsts = [name.split(".")[0] for name in names]
    return firsts if len(set(firsts)) == len(names) and not any(first.isdigit() for first in firsts) else names


def _check(cluster: Cluster) -> None:
    """Check that indices are in range."""
    hosts = len(cluster.hosts)
    for at, link in enumerate(cluster.links):
        if not (0 <= link.from_ < hosts and 0 <= link.to < hosts):
            raise ClusterError(f".links[{at}] is of a host that is not in it")
    for at, task in enumerate(cluster.tasks):
        buckets = task.buckets
        if buckets is None:
            continue
        count = len(buckets.hosts)
        if not all(0 <= host < hosts for host in buckets.hosts):
            raise ClusterError(f".tasks[{at}].buckets is of a host that is not in it")
        lists = (buckets.rows_s, buckets.bytes_s, buckets.work, buckets.state_bytes)
        if any(len(one) not in (0, count) for one in lists):
            raise ClusterError(f".tasks[{at}].buckets has lists of different lengths")
        if not all(0 <= key.bucket < count for key in task.heavy_keys):
            raise ClusterError(f".tasks[{at}].heavy_keys is of a bucket that is not in it")


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts JSON to a type; its errors begin with the position in the JSON."""
    if simple := {float: _number, int: _whole, str: _text, Outcome: _outcome}.get(kind):
        return simple
    if is_dataclass(kind):
        return _object(kind)
    if get_origin(kind) is list:
        return _list(_reader(get_args(kind)[0]))
    assert isinstance(kind, UnionType), "one of the fields above has a type that has no reader"
    inner = _reader(get_args(kind)[0])
    return lambda value: None if value is None else inner(value)


def _object(kind: Any) -> Callable[[Any], Any]:
    types = get_type_hints(kind)
    # `from` is a keyword in Python.
    members = [(field.name.removesuffix("_"), _reader(types[field.name])) for field in fields(kind)]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ClusterError(" is not an object")
        found = []
        for name, member in members:
            try:
                found.append(member(value.get(name)))
            except ClusterError as error:
                raise ClusterError(f".{name}{error}") from None
        return kind(*found)

    return read


def _list(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ClusterError(" is not a list")
        found = []
        for at, one in enumerate(value):
            try:
                found.append(inner(one))
            except ClusterError as error:
                raise ClusterError(f"[{at}]{error}") from None
        return found

    return read


def _number(value: Any) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ClusterError(" is not a number")
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClusterError(" is not a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ClusterError(" is not a text")
    return plain(value)


def _outcome(value: Any) -> Outcome:
    if isinstance(value, dict) and len(value) == 1:
        ((state, reason),) = value.items()
        return Outcome(_text(state), _text(reason))
    return Outcome(_text(value))
