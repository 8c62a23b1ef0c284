"""The benchmark of topologies: messages through a deep chain of tasks and a shallow fan, acknowledged by the last task, over each transport.

A: sources and seven steps behind each other, all with the same number of copies. B: sources and one step. Every step passes messages to the copies
of the next one in turn. The latency of a message ends when its source has the acknowledgement: one clock. A source has a fixed number of messages in
flight and sends as fast as acknowledgements allow.

The set-up is that of the research on InfiniBand and Omni-Path in Heron, without either; its findings are in the report.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .broadcast import BANDWIDTH, bytes_name
from .once import points_job, run_points
from .systems import BENCH
from .tables import duration, table

WORKER = str(BENCH / "harness" / "topologies_worker.py")
STAGES = {"A": 7, "B": 1}
TRANSPORTS = {"shm": "shared memory", "tcp": "TCP on one host", "hosts": f"TCP between hosts, {BANDWIDTH}"}
#: Sizes at which all else varies.
SMALL, LARGE = 128, 128_000
#: A run without news of a point for so long has failed.
TIMEOUT_S = 3600
NOT_REAL = (
    "What is not real: there is no InfiniBand and no Omni-Path here, so the fabrics' own lines are missing, and so is TCP over a fabric's IP interface. Emulated hosts "
    f"share this machine's processors, and their links of {BANDWIDTH} are slower than the published Ethernet of 1 Gbit/s. Heron acknowledges every message at every task (a chain "
    "of eight needs seven acknowledgments); here the last task sends one, and barriers and credit do the rest."
)
PUBLISHED = (
    "Published (Heron on clusters with InfiniBand or Omni-Path beside Ethernet; the text has no numbers): the latency of InfiniBand is below that of TCP over InfiniBand, which is below "
    "Ethernet's; for small messages, the latter two are equal, and InfiniBand is lower. The gap grows with the size, and is larger for A than for B. More copies raise all "
    "latencies, InfiniBand's least. Throughput: InfiniBand first, TCP over InfiniBand second; at 128 KB, both kinds of TCP stop growing with 16 sources, and InfiniBand keeps growing. "
    "Small messages saturate a processor before any network. Latencies in A are about normally distributed, "
    "with a high 99th percentile. Apart from serialization, a message costs far less with InfiniBand than with TCP."
)


@dataclass(frozen=True)
class Setting:
    workers: int  # each on a host of its own where hosts are emulated
    copies: tuple[int, ...]  # of every step of A; sizes vary at the first
    sizes: tuple[int, ...]  # of A and B; SMALL and LARGE among them
    sources: tuple[int, ...]  # of B
    tasks: int  # of B
    pending: tuple[
        int, int
    ]  # in flight of each source; the greater number at SMALL and LARGE, and in A with most copies
    serializing: int  # sources and tasks of B whose messages are objects
    seconds: float  # of a point at most, but for twice the messages in flight
    messages: int  # of a source at most, but for twice those in flight


SETTINGS = {
    "full": Setting(8, (2, 4, 8), (SMALL, 1000, 16_000, LARGE, 512_000), (8, 16, 32), 32, (10, 100), 8, 3.0, 200_000),
    "quick": Setting(4, (2,), (SMALL, LARGE), (4,), 8, (10, 100), 4, 0.5, 20_000),
    "tiny": Setting(2, (1,), (SMALL, LARGE), (2,), 2, (2, 2), 2, 0.02, 40),
}


@dataclass(frozen=True)
class Point:
    """What `topologies_worker.py` is told."""

    topology: str
    stages: int
    sources: int
    tasks: int
    size: int
    pending: int
    kind: str  # arrays, which are not serialized, or objects
    seconds: float
    messages: int


def points(setting: Setting, only: Sequence[str] | None) -> Iterator[Point]:
    """Those named in `only`, by a part of a name such as A-2-128-10 (sources, size, in flight) or B-8-128-10-pickle, or all."""
    ends, (few, more) = (SMALL, LARGE), setting.pending
    chosen = [("A", setting.copies[0], setting.copies[0], size, few, "arrays") for size in setting.sizes]
    chosen += [("A", n, n, size, few, "arrays") for n in setting.copies[1:] for size in ends]
    chosen += [("A", setting.copies[-1], setting.copies[-1], size, more, "arrays") for size in ends]
    chosen += [("B", n, setting.tasks, size, few, "arrays") for n in setting.sources for size in setting.sizes]
    chosen += [("B", n, setting.tasks, size, more, "arrays") for n in setting.sources for size in ends]
    both = setting.serializing
    chosen += [("B", both, both, size, few, kind) for size in ends for kind in ("arrays", "objects")]
    for topology, sources, tasks, size, pending, kind in dict.fromkeys(chosen):
        name = f"{topology}-{sources}-{size}-{pending}" + ("-pickle" if kind == "objects" else "")
        if not only or any(part in name for part in only):
            yield Point(
                topology, STAGES[topology], sources, tasks, size, pending, kind, setting.seconds, setting.messages
            )


def measure(name: str, cases: Sequence[str] | None, say: Callable[[str], None]) -> dict[str, Any]:
    """All points, or those named in `cases`, over each transport; the raw results."""
    from tidemill import hosts

    setting = SETTINGS[name]
    found: dict[str, Any] = {"setting": asdict(setting), "cases": {}, "failures": {}, "missing": None}
    given = list(points(setting, cases))

    def measured(transport: str, options: Sequence[str]) -> None:
        results, failure = run(transport, options, setting, given, say)
        found["cases"][transport] = results
        if failure:
            found["failures"][TRANSPORTS[transport]] = failure
            say(f"topologies, {TRANSPORTS[transport]}: {failure}")

    measured("shm", ())
    measured("tcp", ())
    try:
        cluster = hosts.up(setting.workers, bandwidth=BANDWIDTH, name=f"bench-{os.getpid()}")
    except hosts.HostsError as error:
        say(f"topologies, {TRANSPORTS['hosts']}: left out: {error}")
        return found | {"missing": str(error)}
    with cluster:
        measured("hosts", ("--on", cluster.name))
    return found


def run(
    transport: str, options: Sequence[str], setting: Setting, given: Sequence[Point], say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """What the workers found at each point, in order, and why they went no further."""
    command = points_job(WORKER, [*options, "-n", str(setting.workers)], transport != "shm", given)

    def heard(case: dict[str, Any], number: int) -> None:
        what = f"{label(case)}: {duration(case['p50_s'])}, {case['rate']:.3g}/s"
        say(f"topologies, {TRANSPORTS[transport]}: {number} of {len(given)}, {what}")

    return run_points(command, "topology", len(given), TIMEOUT_S, heard)


# --- the report ------------------------------------------------------------------------------------------------------
def key(case: dict[str, Any]) -> tuple[str, int, int, int, int, str]:
    """What the same point has over each transport."""
    return case["topology"], case["sources"], case["tasks"], case["size"], case["pending"], case["kind"]


def label(case: dict[str, Any]) -> str:
    copies = f"{case['sources']} of each" if case["topology"] == "A" else f"{case['sources']} to {case['tasks']}"
    pickled = ", objects" if case["kind"] == "objects" else ""
    return f"{case['topology']}, {copies}, {bytes_name(case['size'])}, {case['pending']} in flight{pickled}"


def section(topologies: dict[str, Any]) -> str:
    """The tables of a report."""
    setting = topologies["setting"]
    parts = [
        "## Topologies",
        "",
        f"*A*: sources and seven steps in a chain, all with the same number of copies; *B*: sources to one step. Messages go to the copies of the next step in turn; {setting['workers']} workers. "
        "*Latency* (p50, p90, p99): until the source has the acknowledgment of the last task, by its own clock; without the first messages, which all leave "
        "at once. *In flight*: messages of each source. *Rate*: acknowledged messages of all sources. *CPU*: the share of this machine's processors that the workers used; if it is high, processors were the limit.",
        "",
        NOT_REAL,
        "",
        PUBLISHED,
        "",
    ]
    if topologies["missing"]:
        parts += [f"{TRANSPORTS['hosts']}: left out: {topologies['missing']}", ""]
    cases = topologies["cases"]
    rows = {key(case): case for of in cases.values() for case in of if case["kind"] == "arrays"}
    if rows:
        parts += [*latencies(cases, rows), ""]
    parts += [*gaps(cases, setting["pending"][0]), *serialization(cases)]
    wrong = [f"{label(case)}, {TRANSPORTS[name]}" for name, of in cases.items() for case in of if not case["right"]]
    if wrong:
        parts += [f"Acknowledgments are missing, or came twice: {'; '.join(wrong)}.", ""]
    elif rows:
        parts += ["Each message was acknowledged once.", ""]
    return "\n".join([*parts, *(f"- {name}: {why}" for name, why in topologies["failures"].items())])


def latencies(cases: dict[str, list[dict[str, Any]]], rows: dict[Any, dict[str, Any]]) -> list[str]:
    """One table of all points over all transports."""
    header = ["topology", *(text for name in cases for text in (TRANSPORTS[name], "messages/s", "CPU"))]
    of = {name: {key(case): case for case in given} for name, given in cases.items()}

    def cells(case: dict[str, Any] | None) -> list[str]:
        if case is None:
            return ["-", "-", "-"]
        parts = ", ".join(duration(case[f"p{part}_s"]) for part in (50, 90, 99))
        return [parts, f"{case['rate']:.3g}", f"{case['cpu']:.0%}"]

    lines = [[label(case), *(text for name in cases for text in cells(of[name].get(at)))] for at, case in rows.items()]
    return [table(header, lines)]


def gaps(cases: dict[str, list[dict[str, Any]]], pending: int) -> list[str]:
    """By topology and size, how many times the median latency over shared memory the others have, the median of points with `pending` in flight."""
    base = {key(case): case["p50_s"] for case in cases.get("shm", ())}
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for name in cases:
        for case in cases[name]:
            if name != "shm" and case["kind"] == "arrays" and case["pending"] == pending and key(case) in base:
                of = found.setdefault((case["topology"], case["size"]), {})
                of.setdefault(name, []).append(case["p50_s"] / base[key(case)])
    others = [name for name in cases if name != "shm"]
    rows = [
        [f"{topology}, {bytes_name(size)}"]
        + [f"{statistics.median(of[name]):.2f}" if name in of else "-" for name in others]
        for (topology, size), of in found.items()
    ]
    if not rows:
        return []
    heading = f"### Median latency over that of shared memory, {pending} in flight"
    return [heading, "", table(["topology", *(TRANSPORTS[name] for name in others)], rows), ""]


def serialization(cases: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What of the workers' processor time goes into the serialization of objects."""
    rows = []
    for name, of in cases.items():
        arrays = {key(case)[:-1]: case for case in of if case["kind"] == "arrays"}
        for case in of:
            if case["kind"] != "objects":
                continue
            per_message_s = case["busy_s"] / case["messages"]
            plain = arrays.get(key(case)[:-1])
            rows.append(
                [
                    f"{bytes_name(case['size'])}, {case['sources']} to {case['tasks']}, {TRANSPORTS[name]}",
                    duration(plain["busy_s"] / plain["messages"]) if plain else "-",
                    duration(per_message_s),
                    duration(case["serialize_s"]),
                    f"{case['serialize_s'] / per_message_s:.0%}",
                ]
            )
    if not rows:
        return []
    return [
        "### Share of serialization",
        "",
        "Processor time of all workers for a message of B, there and back: as an array, which is not serialized, and as a tuple with a list of floats, which is pickled. "
        "*Serializing*: to pickle it and to make it again, timed alone.",
        "",
        table(["B", "array", "object", "serializing", "share"], rows),
        "",
    ]
