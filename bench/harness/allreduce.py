"""The benchmark of all-reduces on emulated hosts some of whose links are slow: Tidemill's algorithms, random trees, Open MPI and gloo, on the same hosts.

All add up one vector on every host, again and again, and each rank times its own calls. Times are compared with what no algorithm can beat, and
with the best algorithm that does not look at the links. The set-up is that of the research on overlays for all-reduce, on slower links, for these must
be the limit and not this machine; the published figures are in the report.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import statistics
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .once import points_job, run_points
from .systems import BENCH, GLOO_PYTHON, PEERS, SINGLE_THREADED, SYSTEMS, TORCH, Launch, present
from .tables import OURS, duration, size_name, table

WORKER = str(BENCH / "harness" / "allreduce_worker.py")
#: Of Tidemill, what does not look at the links.
STATIC = ("ring", "halving_doubling", "binary", "chain")
ADAPTIVE, TREES = "adaptive", "random trees"
#: Calls of the adaptive algorithm that are not timed, in which it measures the links.
SETTLE = 2
#: What Open MPI calls its algorithms; by default it chooses.
MPI_FORCED = {"ring": 4, "segmented ring": 5, "rabenseifner": 6, "reduce and bcast": 2}
#: A run without all its points for so long has failed.
TIMEOUT_S = 4 * 3600
#: Inbound links as shares of their rate; the published draws had 53 % and 21 %, and 74 % and 32 %, and were cut somewhere.
DRAWN = ((0.53, 0.21), (0.74, 0.32))
LEAST_SHARE = 0.05
GOAL_TREES, GOAL_STATIC = 3.0, 0.95
PUBLISHED = (
    "Published (20 hosts, 940 Mbit/s, Java; a minimum-weighted-degree overlay against random static binary trees): with one inbound link at 11 % more than 2 times faster at all "
    "sizes, and only the choked host is late; at 43 %, 32 or 64 MB, more than 15 %; with 1 to n links at 21 %, 64 MB, more than 30 % over the average tree, and the worst tree is the same "
    "for all n; with all links drawn from Normal(53 %, 21 %) or Normal(74 %, 32 %), 64 MB, more than 13 % between the best and the worst overlay. No other numbers are in the text."
)


@dataclass(frozen=True)
class Setting:
    hosts: int
    mbit: float  # what a host can send, and receive
    sizes: tuple[int, ...]  # in the scenarios `swept`
    size: int  # in all others
    swept: tuple[str, ...]
    shares: tuple[float, ...]  # of one host's inbound link
    several: int  # hosts with slow links
    drawn: tuple[tuple[float, float], ...]
    seeds: int
    trees: int
    trees_s: float
    calls: int  # at most
    budget_s: float  # calls go on until this time has passed and there are enough
    forced: tuple[str, ...]


MIB = 1 << 20
SETTINGS = {
    "full": Setting(
        hosts=20,
        mbit=40.0,
        sizes=(MIB, 8 * MIB, 64 * MIB),
        size=8 * MIB,
        swept=("free", "in-11"),
        shares=(0.11, 0.21, 0.43, 0.64),
        several=4,
        drawn=DRAWN,
        seeds=2,
        trees=20,
        trees_s=120.0,
        calls=5,
        budget_s=20.0,
        forced=tuple(MPI_FORCED),
    ),
    "quick": Setting(
        hosts=8,
        mbit=40.0,
        sizes=(MIB, 4 * MIB, 8 * MIB),
        size=MIB,
        swept=("free",),
        shares=(0.11, 0.43),
        several=2,
        drawn=DRAWN[1:],
        seeds=1,
        trees=6,
        trees_s=3.0,
        calls=3,
        budget_s=0.5,
        forced=("ring",),
    ),
    "tiny": Setting(
        hosts=3,
        mbit=40.0,
        sizes=(4096, 64 << 10),
        size=4096,
        swept=("free",),
        shares=(0.11,),
        several=0,
        drawn=(),
        seeds=1,
        trees=2,
        trees_s=0.01,
        calls=2,
        budget_s=0.01,
        forced=(),
    ),
}


@dataclass(frozen=True)
class Scenario:
    """What hosts can receive and send, as shares of their links; `name` is for `--cases`."""

    name: str
    title: str
    incoming: tuple[float, ...]
    outgoing: tuple[float, ...]


@dataclass(frozen=True)
class Point:
    """What `allreduce_worker.py` is told: `draws` is of random numberings of the ranks, none for theirs; `gate` the file that says that links are set."""

    variant: str
    algorithm: str | None
    draws: int
    scenario: str
    size: int
    settle: int
    calls: int
    least: int
    budget_s: float
    gate: str


class Job(NamedTuple):
    """One start of a system: the name of its run, what it can do, and the command of its workers."""

    name: str
    variants: Sequence[str]
    command: Callable[[Sequence[Point]], Launch]


# --- what is measured ------------------------------------------------------------------------------------------------
def slow_hosts(setting: Setting, hosts: int) -> list[int]:
    """Those whose links are choked, the first one in all scenarios: drawn once, for where they are in a static tree is chance."""
    return random.Random(1).sample(range(1, setting.hosts), hosts)


def scenarios(setting: Setting) -> list[Scenario]:
    free = (1.0,) * setting.hosts

    def choked(share: float, hosts: int = 1) -> tuple[float, ...]:
        slow = slow_hosts(setting, hosts)
        return tuple(share if host in slow else 1.0 for host in range(setting.hosts))

    def drawn(mean: float, deviation: float, seed: int) -> tuple[float, ...]:
        rng = random.Random(seed)
        return tuple(min(max(rng.gauss(mean, deviation), LEAST_SHARE), 1.0) for _ in range(setting.hosts))

    found = [Scenario("free", "nothing wrong", free, free)]
    found += [
        Scenario(f"in-{share * 100:.0f}", f"one inbound at {share:.0%}", choked(share), free)
        for share in setting.shares
    ]
    if number := setting.several:
        found.append(Scenario(f"several-{number}", f"{number} inbound at 21%", choked(0.21, number), free))
    found += [
        Scenario(
            f"normal-{mean * 100:.0f}-seed-{seed}",
            f"inbound of Normal({mean:.0%}, {deviation:.0%}), seed {seed}",
            drawn(mean, deviation, seed),
            free,
        )
        for mean, deviation in setting.drawn
        for seed in range(setting.seeds)
    ]
    return [*found, Scenario("out-11", "one outbound at 11%", free, choked(0.11))]


def chosen(setting: Setting, only: Sequence[str] | None) -> list[tuple[Scenario, int]]:
    """Scenarios and sizes, those named in `only` by a part of a name such as `in-11-8388608`, or all."""
    every = [
        (scenario, size)
        for scenario in scenarios(setting)
        for size in (setting.sizes if scenario.name in setting.swept else (setting.size,))
    ]
    return [
        (scenario, size)
        for scenario, size in every
        if not only or any(part in f"{scenario.name}-{size}" for part in only)
    ]


def points(
    variants: Sequence[str], given: Sequence[tuple[Scenario, int]], setting: Setting, folder: Path
) -> Iterator[Point]:
    for scenario, size in given:
        for variant in variants:
            is_random, is_adaptive = variant == TREES, variant == ADAPTIVE
            yield Point(
                variant,
                "binary" if is_random else variant,
                setting.trees if is_random else 0,
                scenario.name,
                size,
                SETTLE if is_adaptive else 0,
                setting.trees if is_random else setting.calls,
                2 if is_random else 1,
                setting.trees_s if is_random else setting.budget_s,
                str(folder / f"{scenario.name}-{size}-{variant}"),
            )


def bounds_s(size: int, scenario: Scenario, mbit: float) -> list[float]:
    """The least time of each host, but for headers, least first: what no algorithm can beat.

    A host has its result when it has received all of it, and when all of every other's vector has been sent. To add up P vectors takes P - 1 times
    their bytes, and each host that has the result, but one, takes them once more: all of it passes all links together.
    """
    link = mbit * 1e6 / 8
    hosts = range(len(scenario.incoming))
    own = [
        size / link / min(scenario.incoming[host], *(scenario.outgoing[other] for other in hosts if other != host))
        for host in hosts
    ]
    all_links_s = size / link / min(sum(scenario.incoming), sum(scenario.outgoing))
    return [max(one, (len(own) - 1 + number) * all_links_s) for number, one in enumerate(sorted(own))]


# --- systems ---------------------------------------------------------------------------------------------------------
def missing(system: str) -> str | None:
    if system == "openmpi":
        return SYSTEMS[system].missing()
    if system == "gloo" and not TORCH.exists():
        return f"{TORCH} is missing: run bench/setup_peers.sh gloo"
    return None


def jobs(system: str, cluster: Any, setting: Setting, folder: Path) -> list[Job]:
    if system == OURS:
        options = ["--on", cluster.name, "-n", str(setting.hosts), "--threads", "1"]

        def ours(given: Sequence[Point]) -> Launch:
            job = points_job(WORKER, options, True, given)
            place = job.argv.index(WORKER) + 1
            return Launch([*job.argv[:place], OURS, *job.argv[place:]], job.env)

        return [Job(OURS, (*STATIC, ADAPTIVE, TREES), ours)]
    if system == "gloo":
        return [Job("gloo", ("gloo",), partial(gloo, cluster, folder))]
    names = ("Open MPI", *(f"Open MPI, {forced}" for forced in setting.forced))
    return [Job(name, (name,), partial(openmpi, cluster, folder, name)) for name in names]


def told(given: Sequence[Point]) -> str:
    return json.dumps([asdict(point) for point in given])


def gloo(cluster: Any, folder: Path, given: Sequence[Point]) -> Launch:
    """A process on each host; they meet in a file."""
    size = len(cluster.hosts)
    meeting = {"GLOO_MEETING": str(folder / "gloo"), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "eth0"}
    starts = "".join(
        shlex.join([*cluster.prefix(host.number), "env", f"RANK={host.number}"]) + ' "$@" & ' for host in cluster.hosts
    )
    program = [str(GLOO_PYTHON), WORKER, "gloo", told(given)]
    return Launch(["sh", "-c", f"{starts}wait", "sh", *program], {**SINGLE_THREADED, **meeting})


def openmpi(cluster: Any, folder: Path, name: str, given: Sequence[Point]) -> Launch:
    """Its launcher is in the network of the first host, but sees the processes of all of them, and so can enter the others."""
    inside = [word for word in cluster.prefix(0) if word not in ("--pid", "--mount")]
    # Where an ordinary user has made the hosts, the launcher is their owner already.
    entries = {
        host.address: [w for w in cluster.prefix(host.number) if w not in ("--user", "--preserve-credentials")]
        for host in cluster.hosts
    }
    agent = folder / "enter"
    cases = "".join(f'{address}) exec {shlex.join(enter)} sh -c "$*" ;;\n' for address, enter in entries.items())
    agent.write_text(f'#!/bin/sh\nhost=$1\nshift\ncase "$host" in\n{cases}esac\nexit 1\n')
    agent.chmod(0o755)
    settings = {
        "plm_rsh_agent": str(agent),
        # The others could not enter each other.
        "plm_rsh_no_tree_spawn": "1",
        # Removed with the folder, also when its processes are killed.
        "orte_tmpdir_base": str(folder),
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        # Each host believes that it has all cores to itself.
        "mpi_yield_when_idle": "1",
    }
    forced = name.removeprefix("Open MPI").removeprefix(", ")
    if forced:
        settings |= {
            "coll_tuned_use_dynamic_rules": "1",
            "coll_tuned_allreduce_algorithm": str(MPI_FORCED[forced]),
        }
    argv = [*inside, "mpirun.openmpi", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    argv += ["--host", ",".join(entries), "-n", str(len(entries)), "--bind-to", "none"]
    for key, value in settings.items():
        argv += ["--mca", key, value]
    argv += [str(PEERS / "openmpi" / "bin" / "python"), WORKER, "openmpi", told(given)]
    return Launch(argv, {**SINGLE_THREADED, "MPI4PY_RC_THREADS": "0"})


# --- the run ---------------------------------------------------------------------------------------------------------
class Links:
    """What the links of a cluster are set to."""

    def __init__(self, cluster: Any, mbit: float) -> None:
        self._cluster, self._mbit = cluster, mbit
        self._shares = [(1.0, 1.0)] * len(cluster.hosts)

    def set(self, scenario: Scenario) -> None:
        for host, shares in enumerate(zip(scenario.incoming, scenario.outgoing, strict=True)):
            if shares != self._shares[host]:
                incoming, outgoing = (f"{share * self._mbit * 1000:.0f}kbit" for share in shares)
                self._cluster.set(host, incoming=incoming, outgoing=outgoing)
                self._shares[host] = shares


def measure(
    name: str, systems: Sequence[str] | None, cases: Sequence[str] | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """All scenarios, or those named in `cases`, with all systems, one after the other on one cluster; the raw results."""
    from tidemill import hosts

    setting = SETTINGS[name]
    running = present(name, systems, (OURS, "openmpi", "gloo"), missing, lambda line: say(f"allreduce: {line}"))
    given = chosen(setting, cases)
    found: dict[str, Any] = {"setting": asdict(setting), "cases": [], "skipped": {}, "failures": {}, "missing": None}
    found["scenarios"] = {scenario.name: asdict(scenario) for scenario, _ in given}
    try:
        cluster = hosts.up(setting.hosts, bandwidth=f"{setting.mbit:g}mbit", name=f"bench-{os.getpid()}")
    except hosts.HostsError as error:
        say(f"allreduce is left out: {error}")
        return found | {"missing": str(error)}
    with cluster:
        links = Links(cluster, setting.mbit)
        for system in running if given else ():
            with tempfile.TemporaryDirectory(prefix="allreduce-", ignore_cleanup_errors=True) as folder:
                for number, job in enumerate(jobs(system, cluster, setting, Path(folder))):
                    # A file for each point of each job.
                    gates = Path(folder, str(number))
                    gates.mkdir()
                    failure = run(job, links, given, setting, gates, found, say)
                    if failure:
                        found["failures"][job.name] = failure
                        say(f"allreduce, {job.name}: {failure}")
    return found


def run(
    job: Job,
    links: Links,
    given: Sequence[tuple[Scenario, int]],
    setting: Setting,
    gates: Path,
    found: dict[str, Any],
    say: Callable[[str], None],
) -> str | None:
    """Adds what the workers found at each point, and returns why they went no further."""
    all_points = list(points(job.variants, given, setting, gates))
    named = {scenario.name: scenario for scenario, _ in given}

    def open_gate(number: int) -> None:
        if number < len(all_points):
            links.set(named[all_points[number].scenario])
            Path(all_points[number].gate).touch()

    def heard(case: dict[str, Any], number: int) -> None:
        open_gate(number)
        if why := case.get("skipped"):
            if case["variant"] not in found["skipped"]:
                say(f"allreduce: {case['variant']} is left out: {why}")
            found["skipped"][case["variant"]] = why
            return
        found["cases"].append(case)
        say(f"allreduce: {number} of {len(all_points)}, {title(case)}")

    open_gate(0)
    _, failure = run_points(job.command(all_points), "variant", len(all_points), TIMEOUT_S, heard)
    return failure


# --- the report ------------------------------------------------------------------------------------------------------
class Times(NamedTuple):
    """Of one variant: the mean and the greatest synchronization time of ranks, the median of calls, or the mean or worst of random trees."""

    name: str
    average_s: float
    worst_s: float
    calls: int


def times(case: dict[str, Any]) -> list[Times]:
    """One row of a table, or two of random trees."""
    averages = [statistics.mean(ranks) for ranks in case["ranks_s"]]
    worsts = [max(ranks) for ranks in case["ranks_s"]]
    calls = len(averages)
    if case["variant"] != TREES:
        return [Times(case["variant"], statistics.median(averages), statistics.median(worsts), calls)]
    return [
        Times(f"{TREES}, mean", statistics.mean(averages), statistics.mean(worsts), calls),
        Times(f"{TREES}, worst", max(averages), max(worsts), calls),
    ]


def title(case: dict[str, Any]) -> str:
    first = times(case)[0]
    return f"{first.name}, {case['scenario']}, {size_name(case['size'])}: {duration(first.average_s)}"


class Group(NamedTuple):
    """What was found at one scenario and size."""

    scenario: Scenario
    size: int
    cases: list[dict[str, Any]]
    rows: dict[str, Times]
    average_bound_s: float
    worst_bound_s: float

    def best(self, names: Sequence[str]) -> Times | None:
        """The one with the least average time."""
        return min((self.rows[name] for name in names if name in self.rows), key=lambda of: of.average_s, default=None)

    @property
    def name(self) -> str:
        return f"{self.scenario.title}, {size_name(self.size)}"


def groups(allreduce: dict[str, Any]) -> list[Group]:
    setting = Setting(**allreduce["setting"])
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for case in allreduce["cases"]:
        found.setdefault((case["scenario"], case["size"]), []).append(case)
    made = []
    for (name, size), cases in found.items():
        scenario = Scenario(**allreduce["scenarios"][name])
        bounds = bounds_s(size, scenario, setting.mbit)
        rows = {row.name: row for case in cases for row in times(case)}
        made.append(Group(scenario, size, cases, rows, statistics.mean(bounds), bounds[-1]))
    return made


def section(allreduce: dict[str, Any]) -> str:
    """The tables of a report."""
    setting = Setting(**allreduce["setting"])
    if allreduce["missing"]:
        return f"## All-reduce\n\nLeft out: {allreduce['missing']}\n"
    found = groups(allreduce)
    parts = [
        "## All-reduce",
        "",
        f"One vector of float32 on {setting.hosts} emulated hosts of one worker, links of {setting.mbit:g} Mbit/s. *Average* and *worst*: the mean and the maximum of the ranks' synchronization "
        "times, from when a rank begins until it has the result; medians over calls. *Bound*: the time that no algorithm can beat, without headers. *Best static*: the algorithm with the best average among "
        f"{', '.join(STATIC)}. *Random trees*: `binary` with the ranks on random hosts, seeds from 0, one call each. `{ADAPTIVE}` has a new communicator "
        f"each time, and {SETTLE} more calls, not timed, in which it measures the links. *CPU*: the share of this machine's processors that the workers used, and *machine* that of all programs and the kernel: if it is high, "
        "processors were the limit, not links. But Open MPI polls for messages without a pause, so its share is always high.",
        "",
        PUBLISHED,
        "",
        summary(found) if found else "No result.",
        "",
        *([*reached, ""] if (reached := goals(found)) else []),
    ]
    for group in found:
        parts += [f"### {group.name[0].upper()}{group.name[1:]}", "", *links_of(group.scenario), detail(group), ""]
    wrong = [title(case) for case in allreduce["cases"] if not case["right"]]
    if wrong:
        parts += [f"Sums are wrong: {'; '.join(wrong)}.", ""]
    elif found:
        parts += ["All sums were right.", ""]
    parts += [f"- left out, {name}: {why}" for name, why in allreduce["skipped"].items()]
    return "\n".join([*parts, *(f"- {name}: {why}" for name, why in allreduce["failures"].items()), ""])


def links_of(scenario: Scenario) -> list[str]:
    """What the hosts could receive and send, where it is less than all."""
    lines = []
    for what, shares in (("receive", scenario.incoming), ("send", scenario.outgoing)):
        if less := [f"{host}: {share:.0%}" for host, share in enumerate(shares) if share < 1]:
            lines += [f"Hosts that {what} less than their links carry: {', '.join(less)}.", ""]
    return lines


def forced_names(group: Group) -> list[str]:
    return [name for name in group.rows if name.startswith("Open MPI,")]


def summary(found: Sequence[Group]) -> str:
    """Average synchronization times, a row for each scenario and size."""
    header = ["average time", "bound", "best static", "random trees", "worst tree", "Open MPI", "its best", "gloo"]
    header += [ADAPTIVE, "trees / adaptive", "static / adaptive"]
    rows = []
    for group in found:
        static, forced = group.best(STATIC), group.best(forced_names(group))
        mean, adaptive = group.rows.get(f"{TREES}, mean"), group.rows.get(ADAPTIVE)
        others = [group.rows.get(name) for name in (f"{TREES}, worst", "Open MPI")]
        rows.append(
            [
                group.name,
                duration(group.average_bound_s),
                f"{duration(static.average_s)} {static.name}" if static else "-",
                *(duration(one.average_s) if one else "-" for one in (mean, *others)),
                f"{duration(forced.average_s)} {forced.name.removeprefix('Open MPI, ')}" if forced else "-",
                *(duration(one.average_s) if one else "-" for one in (group.rows.get("gloo"), adaptive)),
                *(f"{one.average_s / adaptive.average_s:.2f}" if one and adaptive else "-" for one in (mean, static)),
            ]
        )
    return table(header, rows)


def goals(found: Sequence[Group]) -> list[str]:
    """What is to be reached by the adaptive algorithm, and what was."""
    lines = []
    for name, others, goal, what in (
        ("in-11", (f"{TREES}, mean",), GOAL_TREES, "times the mean of random trees with one inbound link at 11 %"),
        ("free", STATIC, GOAL_STATIC, "of the best static algorithm when nothing is wrong"),
    ):
        reached = {
            group.size: other.average_s / group.rows[ADAPTIVE].average_s
            for group in found
            if group.scenario.name == name and ADAPTIVE in group.rows and (other := group.best(others))
        }
        if reached:
            by_size = ", ".join(f"{gain:.2f} at {size_name(size)}" for size, gain in sorted(reached.items()))
            lines.append(f"- Goal: `{ADAPTIVE}` at least {goal:g} {what}: {by_size}.")
    return lines


def detail(group: Group) -> str:
    header = ["algorithm", "average", "of bound", "of best static", "worst", "of bound", "calls", "CPU", "machine"]
    static = group.best(STATIC)
    rows = [["bound", duration(group.average_bound_s), "", "", duration(group.worst_bound_s), "", "", "", ""]]
    for case in group.cases:
        for row in times(case):
            rows.append(
                [
                    row.name,
                    duration(row.average_s),
                    f"{row.average_s / group.average_bound_s:.2f}",
                    f"{row.average_s / static.average_s:.2f}" if static else "-",
                    duration(row.worst_s),
                    f"{row.worst_s / group.worst_bound_s:.2f}",
                    str(row.calls),
                    f"{case['cpu']:.0%}",
                    f"{case['machine']:.0%}",
                ]
            )
    return table(header, rows)


# --- the plot --------------------------------------------------------------------------------------------------------
def plot(allreduce: dict[str, Any], stem: Path) -> list[Path]:
    """Draws average times over what no algorithm can beat, as bars by scenario and size."""
    found = groups(allreduce)
    if not found:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for group in found for name in group.rows))
    figure, axis = pyplot.subplots(figsize=(max(6, 1.5 * len(found)), 5), layout="constrained")
    for offset, name in enumerate(names):
        heights = [group.rows[name].average_s / group.average_bound_s if name in group.rows else 0 for group in found]
        places = [at + 0.8 * offset / len(names) for at in range(len(found))]
        axis.bar(places, heights, width=0.8 / len(names), label=name, color=f"C{offset % 10}")
    labels = [textwrap.fill(group.name, 18) for group in found]
    axis.set_xticks([at + 0.4 for at in range(len(found))], labels, fontsize=7)
    axis.set(ylabel="average time / bound", ylim=(0, None))
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.legend(fontsize=7, ncols=2)
    written = [stem.with_name(f"{stem.name}-allreduce{suffix}") for suffix in (".svg", ".png")]
    for path in written:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return written
