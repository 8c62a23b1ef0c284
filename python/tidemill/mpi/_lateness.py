"""Which ranks keep the others waiting in collectives, and which get their results late."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuUse", "Lateness", "compare", "time_text"]

#: The number of calls that are compared: the newest.
_CALLS = 100
#: Differences up to this many seconds are not attributed to anyone.
_NOTICED_S = 1e-3
#: A thread that waits for a CPU for this long, per second of running, shares it with others.
_CROWDED = 0.25


@dataclass(frozen=True)
class Lateness:
    """How a rank was late in its last collectives that wait for all ranks.

    Attributes
    ----------
    rank : int
        The rank in the communicator.
    host : str
        The host that it is on.
    calls : int
        The calls that were compared: up to 100, in which somebody waited for a millisecond or longer.
    late : int
        Calls in which it came more than a millisecond after most others: they waited, and it did not. Its own work took longer, or
        other programs had its processors.
    late_s : float
        How late it came, in seconds; the median of these calls.
    behind : int
        Calls in which it waited a millisecond longer than most others: it got its result later. Its link is slow.
    behind_s : float
        How much longer, in seconds; the median of these calls.
    cpus : float
        CPUs that its process has used since its last call of `lateness`, or since it began: 1 is one that was always busy.
    cpu_wait : float
        Share of that time in which its main thread was ready to work and waited for a CPU: others had them.
    """

    rank: int
    host: str
    calls: int
    late: int = 0
    late_s: float = 0.0
    behind: int = 0
    behind_s: float = 0.0
    cpus: float = 0.0
    cpu_wait: float = 0.0

    def __str__(self) -> str:
        who = f"rank {self.rank} on {self.host}"
        of = f"of the last {self.calls} collectives"
        said = []
        if self.late:
            said.append(f"came {time_text(self.late_s)} late to {self.late} {of}: {self._work()}")
        if self.behind:
            said.append(
                f"had its result {time_text(self.behind_s)} after the others in {self.behind} {of}: look at its link"
            )
        return f"{who} {'; it '.join(said)}" if said else f"{who} was as fast as the others in the last {self.calls}"

    def _work(self) -> str:
        """Return why it came late, as far as its process tells."""
        if self.cpus == 0:
            return "the others waited for its work"
        if self.cpu_wait > _CROWDED * min(self.cpus, 1):
            return f"others have its CPUs, for which it waited {100 * self.cpu_wait:.0f} % of the time"
        return f"the others waited for its work, which used {self.cpus:.2f} CPUs"


class CpuUse:
    """Measures this process's use of its host's CPUs between calls of `look`."""

    def __init__(self) -> None:
        self._last = _cpu_times()

    def look(self) -> tuple[float, float]:
        """Return the CPUs used, and the share of the time waited for one, since the last look."""
        now = _cpu_times()
        passed_s, used_s, waited_s = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        return (used_s / passed_s, min(waited_s / passed_s, 1.0)) if passed_s > 0 else (0.0, 0.0)


def _cpu_times() -> tuple[float, float, float]:
    """Return the time, the CPU time of this process, and how long its main thread was ready and waited for a CPU; in seconds."""
    try:
        # Nanoseconds on a CPU, and nanoseconds waiting for one.
        waited_s = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        # The kernel does not provide this.
        waited_s = 0.0
    return time.monotonic(), time.process_time(), waited_s


def time_text(length_s: float) -> str:
    """Return a length of time to read: seconds, or milliseconds below one."""
    return f"{length_s:.1f} s" if length_s >= 1 else f"{length_s * 1e3:.0f} ms"


def compare(
    waits: Sequence[Sequence[tuple[int, float]]],
    hosts: Sequence[str],
    cpus: Sequence[tuple[float, float]] | None = None,
) -> list[Lateness]:
    """Return the lateness of each rank; `waits` has the numbers of each rank's calls, and the seconds it waited in them, `cpus` what
    `CpuUse` says of it.

    Who came last waited least. Clocks differ between hosts, so nothing else is compared.
    """
    by_rank = [dict(of_rank) for of_rank in waits]
    calls = sorted({call for of_rank in by_rank for call in of_rank})[-_CALLS:]
    found = []
    for rank, host in enumerate(hosts):
        late, behind = [], []
        for call in calls if len(hosts) > 1 else ():
            others = statistics.median(of.get(call, 0.0) for other, of in enumerate(by_rank) if other != rank)
            more_s = by_rank[rank].get(call, 0.0) - others
            if more_s > _NOTICED_S:
                behind.append(more_s)
            elif more_s < -_NOTICED_S:
                late.append(-more_s)
        found.append(
            Lateness(
                rank,
                host,
                len(calls),
                len(late),
                statistics.median(late) if late else 0.0,
                len(behind),
                statistics.median(behind) if behind else 0.0,
                *(cpus[rank] if cpus is not None else ()),
            )
        )
    return found
