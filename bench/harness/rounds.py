"""The benchmark of rounds: messages of the same number from all sources, made one, beside the same by hand over Open MPI and with Flink.

All to one, one to all and all to all, over numbers of tasks and sizes; two workers. Every system in turn, over several rounds of
the benchmark, which are called repeats here. The sum of what arrives is known.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .comm import SystemFailed
from .exchange import FLINK_CLASSES, TASK_MANAGERS, WORKERS, flink_java
from .once import in_turn, run_once
from .systems import BENCH, PEERS, SYSTEMS, Launch, present
from .tables import OURS, duration, geometric_mean, order, size_name, spread, table

WORKER = str(BENCH / "harness" / "rounds_worker.py")
BY_HAND = PEERS / "bin" / "rounds_mpi"
FLINK = "RoundsFlink"
#: By the name that the programs have for it, as the report says it.
OPERATIONS = {"reduce": "all to one", "broadcast": "one to all", "allreduce": "all to all", "loop": "loop"}
#: Flink has no loops in graphs.
WITHOUT_FLINK = ("loop",)
ALL = ("tidemill", "openmpi", "openmpi-c++", *TASK_MANAGERS)
TIMEOUT_S = 180


@dataclass(frozen=True)
class Setting:
    tasks: tuple[int, ...]  # copies of sources, and of targets, where there are several
    rounds: dict[int, int]  # by their messages' size in bytes
    single: int  # rounds that are alone
    repeats: int


SETTINGS = {
    "full": Setting((2, 4), {8: 20_000, 4096: 10_000, 128 << 10: 1000, 1 << 20: 200}, single=1000, repeats=3),
    "quick": Setting((2, 4), {8: 10_000, 4096: 3000, 128 << 10: 300}, single=200, repeats=2),
    "tiny": Setting((2, 4), {4096: 50}, single=10, repeats=1),
}


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if system in TASK_MANAGERS:
        built = shutil.which("java") and (FLINK_CLASSES / f"{FLINK}.class").exists()
        return None if built else "java or its program is missing: run bench/setup_peers.sh"
    if system == "openmpi-c++":
        built = shutil.which("mpirun.openmpi") and BY_HAND.exists()
        return None if built else "not built: run bench/setup_peers.sh"
    return SYSTEMS[system].missing()


def launch(system: str, operation: str, tasks: int, size: int, rounds: int, single: int) -> Launch:
    """Tidemill's tasks are copies on two workers, Flink's have slots of one or two task managers, MPI's are ranks."""
    given = [str(size), str(rounds), str(single)]
    if system in TASK_MANAGERS:
        return flink_java(FLINK, [str(TASK_MANAGERS[system]), str(tasks), operation, *given])
    if system == "openmpi-c++":
        return SYSTEMS["openmpi"].launch_binary(tasks, "shm", [str(BY_HAND), operation, *given])
    workers = WORKERS if system == OURS else tasks
    return SYSTEMS[system].launch(workers, "shm", [WORKER, system, operation, str(tasks), *given])


def expected(operation: str, tasks: int, size: int, rounds: int) -> str:
    """The sum over all targets of all numbers that arrive: message n of source s is s + n + i at i."""
    words, sources = size // 8, 1 if operation == "broadcast" else tasks
    of_indices, of_sources, of_rounds = (count * (count - 1) // 2 for count in (words, sources, rounds))
    at_one = rounds * sources * of_indices + rounds * words * of_sources + sources * words * of_rounds
    return str(at_one * (1 if operation == "reduce" else tasks))


def measure(
    name: str,
    systems: Sequence[str] | None,
    only: Sequence[str] | None,
    repeats: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs setting `name`, its cases named in `only` or all; the raw results: of every case times and failures."""
    setting = SETTINGS[name]
    repeats = repeats or setting.repeats
    known = ALL[:1] if name == "tiny" and not systems else ALL
    running = present(name, systems, known, missing, lambda line: say(f"rounds: {line}"))
    cases = []
    for operation, tasks, size in points(setting, only) if running else ():
        cases.append(measure_case(operation, tasks, size, setting, running, repeats, say))
        say(f"rounds: {title(cases[-1])}")
    return {"repeats": repeats, "workers": WORKERS, "single": setting.single, "cases": cases}


def points(setting: Setting, only: Sequence[str] | None) -> Iterator[tuple[str, int, int]]:
    """Operation, tasks and size of every case; its name, for `only`, is such as reduce-4-131072."""
    for operation in OPERATIONS:
        for tasks in setting.tasks:
            for size in setting.rounds:
                if not only or any(part in f"{operation}-{tasks}-{size}" for part in only):
                    yield operation, tasks, size


def measure_case(
    operation: str,
    tasks: int,
    size: int,
    setting: Setting,
    systems: Sequence[str],
    repeats: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    rounds, single = setting.rounds[size], setting.single
    right = expected(operation, tasks, size, rounds)

    def run(system: str, _: int) -> dict[str, Any]:
        found = run_once(launch(system, operation, tasks, size, rounds, single), "rate_s", TIMEOUT_S)
        if found["digest"] != right:
            raise SystemFailed(f"the sum of what arrived is {found['digest']}, not {right}")
        return {"round_s": found["rate_s"] / rounds, "p50_s": found["p50_s"], "p99_s": found["p99_s"]}

    systems = [name for name in systems if not (name in TASK_MANAGERS and operation in WITHOUT_FLINK)]
    case = {"operation": operation, "tasks": tasks, "size": size, "rounds": rounds}
    found, failures = in_turn(systems, repeats, run, say, f"rounds, {title(case)}")
    return {**case, **{name: found.get(name, {}) for name in ("round_s", "p50_s", "p99_s")}, "failures": failures}


# --- the report ------------------------------------------------------------------------------------------------------
def title(case: dict[str, Any]) -> str:
    return f"{OPERATIONS[case['operation']]}, {case['tasks']} tasks, {size_name(case['size'])}"


def ratio(times: dict[str, list[float]], peers: str) -> tuple[float, str] | None:
    """Our median over that of the fastest of the peers whose names begin so, and its name."""
    medians = {name: statistics.median(of) for name, of in times.items() if name.startswith((OURS, peers))}
    best = min((name for name in medians if name != OURS), key=lambda name: medians[name], default=None)
    return (medians[OURS] / medians[best], best) if best and OURS in medians else None


def section(rounds: dict[str, Any]) -> str:
    """The tables of a report."""
    cases = rounds["cases"]
    names = sorted({name for case in cases for name in case["round_s"]}, key=order)
    rates, alone = [], []
    for case in cases:
        to_hand, to_flink = (ratio(case["round_s"], peers) for peers in ("openmpi", "flink"))
        rates.append(
            [
                title(case),
                *(rate(case["round_s"].get(name, ())) for name in names),
                f"{to_hand[0]:.2f} {to_hand[1]}" if to_hand else "-",
                f"{1 / to_flink[0]:.2f} {to_flink[1]}" if to_flink else "-",
            ]
        )
        later = ratio(case["p50_s"], "openmpi")
        alone.append(
            [
                title(case),
                *(latency(case["p50_s"].get(name, ()), case["p99_s"].get(name, ())) for name in names),
                f"{later[0]:.2f} {later[1]}" if later else "-",
            ]
        )
    means = {
        "time over that by hand": [one[0] for case in cases if (one := ratio(case["round_s"], "openmpi"))],
        "rate over Flink's": [1 / one[0] for case in cases if (one := ratio(case["round_s"], "flink"))],
        "latency over that by hand": [one[0] for case in cases if (one := ratio(case["p50_s"], "openmpi"))],
    }
    told = ", ".join(f"{what} {geometric_mean(values):.2f}" for what, values in means.items() if values)
    parts = [
        "## Rounds",
        "",
        f"{rounds['workers']} workers, median of {rounds['repeats']} repeats. *Rate*: rounds per second, with as many under way as the system allows; *ratio* is",
        "Tidemill's time over that of the faster program written by hand, so below 1 is faster; *rate over Flink's* is over the faster Flink, so above 1 is",
        f"faster. *Lone rounds*: the median and the 99th percentile of {rounds['single']}; each begins when all targets have the result of the one before."
        + (f" Geometric means: {told}." if told else ""),
        "",
        "### Rounds a second",
        "",
        table(["round", *names, "ratio", "rate over Flink's"], rates),
        "",
        "### Lone rounds, p50 and p99",
        "",
        table(["round", *names, "ratio of p50"], alone),
        "",
        *(f"- {name} on {title(case)}: {why}" for case in cases for name, why in case["failures"].items()),
    ]
    return "\n".join(parts)


def rate(times_s: Sequence[float]) -> str:
    if not times_s:
        return "-"
    return f"{1 / statistics.median(times_s):,.0f} ±{spread(times_s):.0%}"


def latency(p50_s: Sequence[float], p99_s: Sequence[float]) -> str:
    if not p50_s:
        return "-"
    return f"{duration(statistics.median(p50_s))}, {duration(statistics.median(p99_s))}"
