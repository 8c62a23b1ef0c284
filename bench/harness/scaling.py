"""The benchmark of scaling: the same work on one core, and on more, by all splits into workers x threads that this machine has cores for.

Speed-up is the time of 1x1 over that of a split; efficiency is the speed-up over the split's cores. `machine` is work that shares nothing:
what the cores themselves give, and no job can do better. An allreduce has no work to split: its time by the number of workers is told.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import series, splits
from .tables import duration, table

ALLREDUCES = ("allreduce-8", "allreduce-1048576")
#: What is measured, and its name in tables.
AREAS = {
    "machine": "the machine itself (nothing shared)",
    "kmeans": "k-means",
    "mds": "MDS",
    "group": "group_by",
    "sort": "sort in memory",
    "records": "terasort, disk to disk",
    "window": "row numbers over keys",
    "stream": "windows of a stream",
    "series": "tidemill series",
    **{name: f"allreduce of {name.split('-')[1]} B" for name in ALLREDUCES},
}
SIZES = {
    "full": {
        **splits.SIZES["full"],
        **{"points": 1_000_000, "columns": 32, "centres": 100, "objects": 5000, "events": 10_000_000},
    },
    "quick": {
        **splits.SIZES["quick"],
        **{"points": 400_000, "columns": 32, "centres": 50, "objects": 2000, "events": 2_000_000},
    },
    "tiny": {**splits.SIZES["tiny"], **{"points": 2000, "columns": 3, "centres": 4, "objects": 100, "events": 5000}},
}


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0))


def all_splits(count: int) -> dict[str, tuple[int, int]]:
    """Workers and threads of each, in powers of two, on no more than `count` cores; the fewest cores first."""
    powers = [1 << power for power in range(count.bit_length())]
    found = [(workers, threads) for workers in powers for threads in powers if workers * threads <= count]
    return {f"{w}x{t}": (w, t) for w, t in sorted(found, key=lambda split: (split[0] * split[1], split[0]))}


def measure(name: str, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """All splits in turn; the raw results as those of `splits`, and what this machine is."""
    rounds = rounds or splits.ROUNDS[name]
    areas = [area for area in AREAS if not only or any(part in area for part in only)]
    present = all_splits(cores())
    operations = [area for area in areas if area != "series"]
    found: dict[str, Any] = {"seconds": {}, "answers": {}, "failures": {}}
    if operations:
        found = splits.in_all(present, operations, SIZES[name], rounds, splits.REPEATS[name], say, "scaling")
    if "series" in areas:
        found["seconds"]["series"] = series_seconds(name, present, rounds, say)
    described = {"cores": cores(), "threads_share_cores": smt(), "load": os.getloadavg()[0]}
    return {"rounds": rounds, "sizes": SIZES[name], "splits": present, **described, **found}


def series_seconds(
    name: str, present: dict[str, tuple[int, int]], rounds: int, say: Callable[[str], None]
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for split in splits.rotated(list(present), number):
                workers, threads = present[split]
                out = Path(folder) / f"{split}-{number}"
                summary = series.run(name, workers, "independent", out, threads)
                seconds.setdefault(split, []).append(summary["seconds"]["all"])
            say(f"scaling, series: round {number + 1} of {rounds}")
    return seconds


def smt() -> bool:
    """Whether two of the processors may be threads of one core."""
    active = Path("/sys/devices/system/cpu/smt/active")
    return active.exists() and active.read_text().strip() == "1"


def speed_ups(times: dict[str, list[float]]) -> dict[str, float]:
    """The time of 1x1 over that of each split; empty without 1x1."""
    medians = {split: statistics.median(of) for split, of in times.items()}
    return {split: medians["1x1"] / of for split, of in medians.items()} if "1x1" in medians else {}


def section(scaling: dict[str, Any]) -> str:
    """The tables of a report, and what they do not show."""
    names = list(scaling["splits"])
    timed, speed, efficient, talks = [], [], [], []
    for area, times in scaling["seconds"].items():
        cells = [duration(statistics.median(times[split])) if times.get(split) else "" for split in names]
        if area in ALLREDUCES:
            talks.append([AREAS[area], *cells])
            continue
        timed.append([AREAS[area], *cells])
        found = speed_ups(times)
        speed.append([AREAS[area], *(f"{found[split]:.2f}" if split in found else "" for split in names[1:])])
        of_cores = [found[split] / _cores_of(scaling, split) if split in found else None for split in names[1:]]
        efficient.append([AREAS[area], *(f"{one:.0%}" if one is not None else "" for one in of_cores)])
    sizes = ", ".join(f"{number:,} {what}" for what, number in scaling["sizes"].items())
    parts = [
        "## Scaling",
        "",
        f"The same work by workers x threads; medians of {scaling['rounds']} rounds, of several runs each but for the series. Sizes: {sizes}.",
        "",
    ]
    if timed:
        parts += ["### Time", "", table(["", *names], timed), ""]
    if timed and len(names) > 1:
        parts += ["### Speed-up: the time of 1x1 over that of the split", "", table(["", *names[1:]], speed), ""]
        parts += ["### Efficiency: speed-up over cores", "", table(["", *names[1:]], efficient), ""]
    if talks:
        parts += ["### Allreduce: time of one, which grows with the workers", "", table(["", *names], talks), ""]
    parts += ["### What this does not show", "", *(f"- {line}" for line in not_shown(scaling)), ""]
    return "\n".join([*parts, *(f"- {split}: {why}" for split, why in scaling["failures"].items())])


def _cores_of(scaling: dict[str, Any], split: str) -> int:
    workers, threads = scaling["splits"][split]
    return int(workers * threads)


def not_shown(scaling: dict[str, Any]) -> list[str]:
    """In plain words, what this machine could not tell."""
    count = scaling["cores"]
    most = max(_cores_of(scaling, split) for split in scaling["splits"])
    lines = [
        f"{count} core{'' if count == 1 else 's'}: splits of {2 * most} cores and more were left out, so nothing here says how anything scales beyond {most}.",
        "One host: nothing went over a network.",
    ]
    if most < count:
        lines.append(f"Splits are powers of two: {count - most} of the {count} cores had no part in any.")
    if scaling["threads_share_cores"]:
        lines.append("Processors are threads that share cores two by two: their efficiency cannot reach 100 %.")
    if scaling["load"] > most + 0.5:
        lines.append(
            f"The load average was {scaling['load']:.1f} at the end, more than the {most} that the splits ask for: other programs took part of"
            " the cores, more so from splits that use all of them, and efficiencies are lower than on a machine left alone."
        )
    return lines


def plot(scaling: dict[str, Any], stem: Path) -> list[Path]:
    """Draws speed-up over cores, a panel for each area, into `stem`-scaling.svg and .png; nothing where there is one split only."""
    areas = {area: speed_ups(times) for area, times in scaling["seconds"].items() if area not in ALLREDUCES}
    areas = {area: found for area, found in areas.items() if len(found) > 1}
    if not areas:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(3, len(areas))
    lines = -(-len(areas) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(4.5 * columns, 3.4 * lines), squeeze=False, layout="constrained"
    )
    for axis, (area, found) in zip(axes.flat, areas.items(), strict=False):
        # A line for the splits into workers of so many threads; a worker with all threads is a line of its own.
        of_threads = sorted({scaling["splits"][split][1] for split in found})
        for threads in of_threads:
            points = [(_cores_of(scaling, s), up) for s, up in found.items() if scaling["splits"][s][1] == threads]
            axis.plot(
                *zip(*sorted(points), strict=True),
                marker="o",
                label=f"{threads} thread{'' if threads == 1 else 's'} a worker",
            )
        alone = [(_cores_of(scaling, s), up) for s, up in found.items() if scaling["splits"][s][0] == 1]
        axis.plot(*zip(*sorted(alone), strict=True), color="grey", linewidth=0.8, label="one worker")
        most = max(_cores_of(scaling, split) for split in found)
        axis.plot([1, most], [1, most], color="black", linewidth=0.8, linestyle="--", label="ideal")
        axis.set(title=AREAS[area], xlabel="cores", ylabel="speed-up", xscale="log", yscale="log")
        ticks = [1 << power for power in range(most.bit_length())]
        for one in (axis.xaxis, axis.yaxis):
            one.set_ticks(ticks, [str(tick) for tick in ticks])
            one.set_minor_locator(matplotlib.ticker.NullLocator())
        axis.legend(fontsize=7)
    for axis in axes.flat[len(areas) :]:
        axis.set_visible(False)
    written = [stem.with_name(f"{stem.name}-scaling{suffix}") for suffix in (".svg", ".png")]
    for path in written:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return written
