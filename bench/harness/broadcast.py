"""The benchmark of broadcasts: one source, N tasks that answer, one sink, along every overlay, on emulated hosts with shaped links.

Round trips of single messages, by one clock, and the rate of many, beside the processors' use, so that one sees where links were the limit and
where this machine. Each overlay is compared with serial sending, a message for each task, which is what stream engines do; Storm does it beside them, on
the same hosts.

The set-up is that of the research on overlays in Storm: 8 hosts of 4 workers; the published figures are in the report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import storm
from .once import points_job, run_points
from .systems import BENCH, present
from .tables import OURS, duration, size_name, table

WORKER = str(BENCH / "harness" / "broadcast_worker.py")
BANDWIDTH = "100mbit"
LINK_BYTES_PER_S = 100e6 / 8
#: A message for each task, one for each worker, and trees.
SERIAL = "copies"
NAMES = {SERIAL: "serial, per task", "serial": "serial, per worker", storm.NAME: "Storm, per task"}
OVERLAYS = (SERIAL, "serial", "flat", "flat/binary", "binary", "binomial", "chain", "ring", "double")
TRANSPORTS = {"tcp": "TCP alone", "shm": "shared memory within hosts"}
#: From this size on links are the limit, for which there are goals.
LINKS_LIMIT_BYTES = 10_000
LATENCY_GOAL, RATE_GOAL, SHARED_GOAL = 5.0, 10.0, 0.25
#: A run without news of a point for so long has failed.
TIMEOUT_S = 3600
PUBLISHED = (
    "Published (8 hosts of 24 cores, 4 workers each, 1 Gbit/s, Java): the binary tree has about 5 times lower latency than serial for small messages, "
    "flat lies between, and the ring gains least; the ring has the highest throughput, with 60 tasks half of that with 10 and 30; along the chain, "
    "shared memory takes about 25 % less time with 32 workers, and makes no visible difference with 10 tasks. The text has no other numbers. The published tasks "
    "send the message itself back; these send eight bytes, because otherwise the way back would limit all overlays alike."
)
STORM = (
    "*Storm* sends a message to each task over TCP, within hosts too; it has no other way to broadcast. Its share of the processors is that of the whole "
    "machine. `bench/README.md` describes its settings."
)


@dataclass(frozen=True)
class Setting:
    hosts: int
    workers: int  # of each host
    tasks: tuple[int, ...]
    sizes: tuple[int, ...]
    singles: int  # at most
    single_s: float  # of them at most, but for three
    many_s: float  # that many messages take at least where the root's link carries each once
    many: tuple[int, int]  # of them, at least and at most


SETTINGS = {
    "full": Setting(8, 4, (10, 30, 60), (100, 1000, 10_000, 100_000, 1_000_000), 200, 3.0, 2.0, (6, 1000)),
    "quick": Setting(2, 2, (4,), (100, 10_000, 100_000), 50, 0.5, 0.5, (6, 100)),
    "tiny": Setting(2, 2, (4,), (1000,), 3, 0.5, 0.01, (6, 6)),
}


@dataclass(frozen=True)
class Point:
    """What `broadcast_worker.py` is told."""

    overlay: str
    tasks: int
    size: int
    singles: int
    single_s: float
    many: int


def crossings(overlay: str, tasks: int, setting: Setting) -> float:
    """About how often the root's host sends a message to another one."""
    others = (setting.hosts - 1) / setting.hosts
    if overlay == SERIAL:
        return tasks * others
    if overlay == "serial":
        return min(tasks, setting.hosts * setting.workers) * others
    return {"flat": setting.hosts - 1, "flat/binary": setting.hosts - 1, "binomial": 3, "chain": 1}.get(overlay, 2)


def points(setting: Setting, only: Sequence[str] | None) -> Iterator[Point]:
    """Those named in `only`, by a part of a name such as binary-60-10000, or all; each with what it is compared with."""
    least, most = setting.many
    for tasks in setting.tasks:
        for size in setting.sizes:
            named = [one for one in OVERLAYS if not only or any(part in f"{one}-{tasks}-{size}" for part in only)]
            for overlay in [SERIAL, *(one for one in named if one != SERIAL)] if named else []:
                by_link = setting.many_s * LINK_BYTES_PER_S / size / max(crossings(overlay, tasks, setting), 1.0)
                many = round(min(max(by_link, least), most))
                yield Point(overlay, tasks, size, setting.singles, setting.single_s, many)


def serial_points(given: Sequence[Point]) -> list[Point]:
    """What Storm is measured at: it has one way to broadcast."""
    return [point for point in given if point.overlay == SERIAL]


def measure(
    name: str,
    systems: Sequence[str] | None,
    cases: Sequence[str] | None,
    transports: Sequence[str] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """All points, or those named in `cases`, over each transport, or those given, and with Storm, on one cluster; the raw results."""
    from tidemill import hosts

    setting = SETTINGS[name]
    running = present(
        name,
        systems,
        (OURS, storm.NAME),
        lambda system: storm.missing() if system == storm.NAME else None,
        lambda line: say(f"broadcast: {line}"),
    )
    found: dict[str, Any] = {"setting": asdict(setting), "cases": {}, "failures": {}, "missing": None}
    try:
        cluster = hosts.up(setting.hosts, bandwidth=BANDWIDTH, name=f"bench-{os.getpid()}")
    except hosts.HostsError as error:
        say(f"broadcast is left out: {error}")
        return found | {"missing": str(error)}
    given = list(points(setting, cases))

    def failed(what: str, why: str | None) -> None:
        if why:
            found["failures"][what] = why
            say(f"broadcast, {what}: {why}")

    with cluster:
        for transport in (transports or TRANSPORTS) if OURS in running else ():
            found["cases"][transport], failure = run(cluster.name, setting, transport, given, say)
            failed(TRANSPORTS[transport], failure)
        if storm.NAME in running:
            chosen = serial_points(given)

            def heard(case: dict[str, Any], number: int) -> None:
                say(f"broadcast: {number} of {len(chosen)}, {title(case)}")

            results, failure = storm.measure(cluster, setting.workers, chosen, heard)
            found["cases"]["tcp"] = beside_serial(found["cases"].get("tcp", []), results)
            failed("Storm", failure)
    return found


def beside_serial(cases: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All cases, those of others behind serial sending of the same number of tasks and size."""
    left = {(case["tasks"], case["size"]): case for case in others}
    merged = []
    for case in cases:
        merged.append(case)
        if case["overlay"] == SERIAL and (other := left.pop((case["tasks"], case["size"]), None)):
            merged.append(other)
    return [*merged, *left.values()]


def run(
    cluster: str, setting: Setting, transport: str, given: Sequence[Point], say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """What the workers found at each point, in order, and why they went no further."""
    workers = str(setting.hosts * setting.workers)
    command = points_job(WORKER, ["--on", cluster, "-n", workers], transport == "tcp", given)

    def heard(case: dict[str, Any], number: int) -> None:
        say(f"broadcast, {TRANSPORTS[transport]}: {number} of {len(given)}, {title(case)}")

    return run_points(command, "overlay", len(given), TIMEOUT_S, heard)


# --- the report ------------------------------------------------------------------------------------------------------
def title(case: dict[str, Any]) -> str:
    median = duration(case["p50_s"])
    return f"{overlay_name(case)}, {case['tasks']} tasks, {bytes_name(case['size'])}: {median}, {case['rate']:.3g}/s"


def overlay_name(case: dict[str, Any]) -> str:
    return NAMES.get(case["overlay"], case["overlay"])


def bytes_name(size: int) -> str:
    for unit, scale in (("MB", 1_000_000), ("kB", 1000)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return size_name(size)


def gains(cases: Sequence[dict[str, Any]]) -> dict[tuple[str, int, int], tuple[float, float]]:
    """How many times lower the median latency, and how many times higher the rate, than serial; by overlay, tasks and size."""
    serial = {(case["tasks"], case["size"]): case for case in cases if case["overlay"] == SERIAL}
    found = {}
    for case in cases:
        if base := serial.get((case["tasks"], case["size"])):
            key = case["overlay"], case["tasks"], case["size"]
            found[key] = base["p50_s"] / case["p50_s"], case["rate"] / base["rate"]
    return found


def section(broadcast: dict[str, Any]) -> str:
    """The tables of a report."""
    setting = broadcast["setting"]
    if broadcast["missing"]:
        return f"## Broadcast\n\nLeft out: {broadcast['missing']}\n"
    parts = [
        "## Broadcast",
        "",
        f"One source, N tasks, one sink on {setting['hosts']} emulated hosts of {setting['workers']} workers, links of {BANDWIDTH}. *Latency* of single messages, from "
        "the source until the sink has the answers of all tasks. *Rate* of many, until all answers have come. *Gains* are over serial sending to each task. *CPU*: the "
        "share of this machine's processors that the workers used, including the graph's start and end; if it is high, processors were the limit, not links.",
        "",
        PUBLISHED,
        "",
        *([STORM, ""] if storm.NAME in {case["overlay"] for of in broadcast["cases"].values() for case in of} else []),
        *goals(broadcast),
        "",
    ]
    for transport, cases in broadcast["cases"].items():
        found = gains(cases)
        for tasks in dict.fromkeys(case["tasks"] for case in cases):
            rows = [row(case, found) for case in cases if case["tasks"] == tasks]
            header = ["size, overlay", "p50", "p90", "p99", "of", "gain", "CPU", "messages/s", "gain", "CPU"]
            parts += [f"### {tasks} tasks, {TRANSPORTS[transport]}", "", table(header, rows), ""]
    parts += shared_memory(broadcast["cases"])
    all_cases = [case for cases in broadcast["cases"].values() for case in cases]
    wrong = [title(case) for case in all_cases if not case["right"]]
    if wrong:
        parts += [f"Answers are missing, or came twice: {'; '.join(wrong)}.", ""]
    elif all_cases:
        parts += ["Each task answered each message once.", ""]
    return "\n".join([*parts, *(f"- {name}: {why}" for name, why in broadcast["failures"].items())])


def row(case: dict[str, Any], found: dict[tuple[str, int, int], tuple[float, float]]) -> list[str]:
    gain = found.get((case["overlay"], case["tasks"], case["size"]))
    lower, higher = (f"{one:.2f}" for one in gain) if gain else ("-", "-")
    return [
        f"{bytes_name(case['size'])}, {overlay_name(case)}",
        *(duration(case[f"p{part}_s"]) for part in (50, 90, 99)),
        str(case["singles"]),
        lower,
        f"{case['single_cpu']:.0%}",
        f"{case['rate']:.3g}",
        higher,
        f"{case['many_cpu']:.0%}",
    ]


def goals(broadcast: dict[str, Any]) -> list[str]:
    """What is to be reached with the most tasks where links are the limit, and what was."""
    cases = broadcast["cases"]
    tasks = max(broadcast["setting"]["tasks"])
    lines = []
    for transport, of in cases.items():
        found = {key: gain for key, gain in gains(of).items() if key[1] == tasks and key[2] >= LINKS_LIMIT_BYTES}
        latency = {key[2]: gain[0] for key, gain in found.items() if key[0] == "binary"}
        rate = {
            size: max(gain[1] for key, gain in found.items() if key[2] == size and key[0] in ("chain", "ring"))
            for size in {key[2] for key in found if key[0] in ("chain", "ring")}
        }
        what = f"from {bytes_name(LINKS_LIMIT_BYTES)} on, {tasks} tasks, {TRANSPORTS[transport]}"
        if latency:
            lines.append(
                f"- Goal: latency of binary at least {LATENCY_GOAL:.0f} times lower; {what}: {by_size(latency)}."
            )
        if rate:
            lines.append(
                f"- Goal: rate of chain or ring at least {RATE_GOAL:.0f} times higher; {what}: {by_size(rate)}."
            )
    return lines


def by_size(gained: dict[int, float]) -> str:
    return ", ".join(f"{gained[size]:.1f} at {bytes_name(size)}" for size in sorted(gained))


def shared_memory(cases: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What shared memory between the workers of a host takes off the latency along the chain."""
    alone, shared = (
        {
            (case["tasks"], case["size"]): case["p50_s"]
            for case in cases.get(transport, ())
            if case["overlay"] == "chain"
        }
        for transport in TRANSPORTS
    )
    rows = [
        [
            f"{tasks} tasks, {bytes_name(size)}",
            duration(tcp_s),
            duration(shared[tasks, size]),
            f"{1 - shared[tasks, size] / tcp_s:.0%}",
        ]
        for (tasks, size), tcp_s in alone.items()
        if (tasks, size) in shared
    ]
    if not rows:
        return []
    heading = f"### Shared memory along the chain (goal: {SHARED_GOAL:.0%} less)"
    return [heading, "", table(["chain", "TCP alone", "shared memory", "less"], rows), ""]


# --- the plot --------------------------------------------------------------------------------------------------------
def plot(broadcast: dict[str, Any], stem: Path) -> list[Path]:
    """Draws gains over serial by size, as the research does: for each transport and number of tasks a panel of latency and one of rate."""
    panels = [
        (transport, tasks, which)
        for transport, cases in broadcast["cases"].items()
        for tasks in dict.fromkeys(case["tasks"] for case in cases)
        for which in (0, 1)
    ]
    if not panels:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = -(-len(panels) // 2)
    figure, axes = pyplot.subplots(lines, 2, figsize=(9, 3.4 * lines), squeeze=False, layout="constrained")
    for axis, (transport, tasks, which) in zip(axes.flat, panels, strict=False):
        found = {key: gain[which] for key, gain in gains(broadcast["cases"][transport]).items() if key[1] == tasks}
        for overlay in dict.fromkeys(key[0] for key in found):
            points = sorted((key[2], gain) for key, gain in found.items() if key[0] == overlay)
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=NAMES.get(overlay, overlay))
        what = ("serial's latency over its own", "rate over serial's")[which]
        axis.set(title=f"{tasks} tasks, {TRANSPORTS[transport]}", xlabel="message size, bytes", ylabel=what)
        axis.set(xscale="log", yscale="log")
        axis.axhline((LATENCY_GOAL, RATE_GOAL)[which], color="grey", linewidth=0.8, linestyle="--")
        axis.legend(fontsize=6)
    written = [stem.with_name(f"{stem.name}-broadcast{suffix}") for suffix in (".svg", ".png")]
    for path in written:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return written
