"""``tidemill top --why``: copies of steps that keep the others waiting in collectives, and why; how long rounds take."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.apps._plain import plain
from tidemill.apps._top_cluster import Cluster, Host
from tidemill.apps._top_looks import Status
from tidemill.apps._top_text import percent
from tidemill.mpi._lateness import compare, time_text

__all__ = ["late_copies", "round_sentences"]

#: A copy that is late less often than this may be so by chance.
_OFTEN = 0.2
#: Fewer calls are not significant.
_CALLS_MIN = 5
#: The load from which a host or a link counts as full.
_FULL = 0.85
#: The number of threads waiting for a CPU, per running thread, from which other threads take a host's time.
_CROWDED = 0.25
#: Two numbers are similar if the smaller is at least this part of the larger.
_TIE = 0.8

#: Number, host and waits (call numbers with seconds).
_Copy = tuple[int, str, list[tuple[int, float]]]


def late_copies(job: Sequence[Status], cluster: Cluster) -> list[str]:
    """Return a sentence for each step whose copies meet in collectives and wait there for one of them; `job` has its workers."""
    return [
        sentence
        for step, copies in _steps(job).items()
        if (sentence := _sentence(step, sorted(copies), cluster)) is not None
    ]


def round_sentences(job: Sequence[Status]) -> list[str]:
    """Return a sentence for each step whose copies all-reduce in rounds, and one for each copy that rounds have left out."""
    steps: dict[str, list[tuple[int, str, dict[str, float]]]] = {}
    for status in job:
        for copy in status.get("collectives") or []:
            if rounds := copy.get("rounds"):
                steps.setdefault(str(copy["step"]), []).append((int(copy["copy"]), str(status["host"]), rounds))
    sentences = []
    for step, copies in steps.items():
        mean_s = sum(rounds["mean_s"] for *_, rounds in copies) / len(copies)
        at, host, worst = max(copies, key=lambda copy: copy[2]["worst_s"])
        sentences.append(
            f"{step} has ended {max(int(rounds['rounds']) for *_, rounds in copies)} rounds; their results come "
            f"{time_text(mean_s)} after a copy's part on average, {time_text(worst['worst_s'])} at most, at copy {at} on {host}"
        )
        for copy, where, rounds in sorted(copies, key=lambda copy: copy[0]):
            if rounds["left_out"]:
                now = (
                    f"it has been late for {time_text(rounds['late_s'])}, and {int(rounds['behind'])} of its parts will be in a "
                    "later round"
                    if rounds["behind"]
                    else "now it is on time"
                )
                sentences.append(
                    f"{int(rounds['left_out'])} of {int(rounds['rounds'])} rounds left out copy {copy} of {step} on {where}: {now}"
                )
    return [plain(sentence) for sentence in sentences]


def _steps(job: Sequence[Status]) -> dict[str, list[_Copy]]:
    """Return the copies of each step that have reported collectives."""
    steps: dict[str, list[_Copy]] = {}
    for status in job:
        for copy in status.get("collectives") or []:
            waits = [(int(call), float(waited_s)) for call, waited_s in copy["waits"]]
            steps.setdefault(str(copy["step"]), []).append((int(copy["copy"]), str(status["host"]), waits))
    return steps


def _sentence(step: str, copies: list[_Copy], cluster: Cluster) -> str | None:
    """Return which copy is late most often, and why if its host tells; None if none is."""
    found = compare([waits for _, _, waits in copies], [host for _, host, _ in copies])
    late = max(found, key=lambda one: one.late * one.late_s)
    behind = max(found, key=lambda one: one.behind * one.behind_s)
    late_s, behind_s = late.late * late.late_s, behind.behind * behind.behind_s
    # With two copies, one is late and the other waits longer, whatever the reason.
    is_tie = late_s > _TIE * behind_s and behind_s > _TIE * late_s
    by_link = bool(_full_ways(_host(behind.host, cluster))) if is_tie else behind_s > late_s
    worst, times = (behind, behind.behind) if by_link else (late, late.late)
    if worst.calls < _CALLS_MIN or times < _OFTEN * worst.calls:
        return None
    who, host = f"copy {copies[worst.rank][0]} of {step} on {worst.host}", _host(worst.host, cluster)
    of = f"{times} of the last {worst.calls}"
    if by_link:
        return plain(f"{who} has its results {time_text(worst.behind_s)} after the others, {of}: {_link(host)}")
    return plain(f"{who} comes {time_text(worst.late_s)} late to its collectives, {of}: {_cpu(host)}")


def _host(name: str, cluster: Cluster) -> Host | None:
    return next((host for host in cluster.hosts if host.name == name), None)


def _cpu(host: Host | None) -> str:
    """Return how a host's CPUs contribute."""
    if host is None or host.cores <= 0:
        return "the others wait for its work"
    busy = f"the CPUs of {host.name} are busy {percent(min(host.cpus_used / host.cores, 1))}"
    if host.cpus_waited > _CROWDED * max(host.cpus_used, 0.01):
        return f"{busy}, and {host.cpus_waited:.1f} threads wait for one: there is too much for them"
    if host.cpus_used > _FULL * host.cores:
        return f"{busy}: there is too much for them"
    return f"{busy}, so it is its own work that takes longer: it has more rows, or harder ones"


def _link(host: Host | None) -> str:
    """Return how a host's link contributes."""
    if host is None:
        return "look at its link"
    if full := _full_ways(host):
        return f"the {' and '.join(full)} link of {host.name} is full"
    return f"look at the link of {host.name}, which is not full: delays or losses"


def _full_ways(host: Host | None) -> list[str]:
    """Return the directions in which a host's link is full."""
    if host is None:
        return []
    ways = (("inbound", host.in_bytes_s, host.in_capacity), ("outbound", host.out_bytes_s, host.out_capacity))
    return [way for way, rate, capacity in ways if capacity and rate > _FULL * capacity]
