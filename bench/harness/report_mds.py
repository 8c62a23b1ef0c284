"""The benchmark of multidimensional scaling as people read it."""

from __future__ import annotations

import statistics
from typing import Any

from .tables import duration, order, spread, table


def section(mds: dict[str, Any]) -> str:
    parts = ["## Multidimensional scaling", ""]
    if mds["cases"]:
        count = mds["iterations"]
        parts += [
            f"Seconds per iteration of SMACOF in 3 dimensions, median of {mds['rounds']} rounds, from the same start.",
            f"*Whole fit*: a fit of {count} iterations over its iterations, checks and storing of the distances included.",
            f"*Further*: (fit of {count} - fit of 1) / {count - 1}. *Stress* after them, computed by the runner. *Memory* while",
            "fitting: all of all processes, mapped files included, and *own*, without. The ratios are to scikit-learn's: of",
            "the worse of both times, and of own memory.",
            "",
        ]
    for case in mds["cases"]:
        parts += [f"### {case['points']:,} points", "", case_table(case), ""]
        parts += [f"- {name}: {why}" for name, why in case["failures"].items()]
        parts += [""] if case["failures"] else []
    if mds.get("annealing"):
        parts += ["### Random starts, with and without annealing", "", annealing_table(mds["annealing"]), ""]
    if mds.get("large"):
        rows = [
            [
                f"{one['points']:,}, {one['storage']}",
                duration(one["query_s"]),
                duration(one["iteration_s"]),
                f"{one['peak_mib']:,} MiB",
                f"{one['own_mib']:,} MiB",
            ]
            for one in mds["large"]
        ]
        parts += [
            "### Many points",
            "",
            "Six iterations from classical scaling, one worker of two threads; distances come row by row, or are computed",
            "from 10 features in each pass.",
            "",
            table(["points, distances", "fit", "iteration", "peak memory", "own"], rows),
            "",
        ]
    return "\n".join(parts)


def ratios(case: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Of each way Tidemill ran: its time and its memory over scikit-learn's."""
    if "sklearn" not in case["fit_s"]:
        return {}
    found = {}
    for name in case["fit_s"]:
        if name != "sklearn":
            times = [
                statistics.median(case[key][name]) / statistics.median(case[key]["sklearn"])
                for key in ("fit_s", "further_s")
            ]
            found[name] = (max(times), max(case["own_mib"][name]) / max(case["own_mib"]["sklearn"]))
    return found


def case_table(case: dict[str, Any]) -> str:
    against = ratios(case)
    rows = []
    for name in sorted(case["fit_s"], key=order):
        rows.append(
            [
                name,
                duration(statistics.median(case["fit_s"][name])),
                duration(statistics.median(case["further_s"][name])),
                f"±{spread(case['fit_s'][name]):.0%}",
                f"{case['stress'][name]:.9g}",
                f"{max(case['peak_mib'][name]):,} MiB",
                f"{max(case['own_mib'][name]):,} MiB",
                *(f"{value:.3f}" for value in against.get(name, ())),
                *([""] * (0 if name in against else 2)),
            ]
        )
    header = ["system", "whole fit", "further", "spread", "stress", "memory", "own", "time ratio", "memory ratio"]
    return table(header, rows)


def annealing_table(cases: list[dict[str, Any]]) -> str:
    """Over the seeds: the stress reached, how often it is within 1 % of the least that any reached, and the time."""
    rows = []
    for case in cases:
        least = min(run[0] for name in ("plain", "annealing") for run in case[name])
        for name in ("plain", "annealing"):
            stresses = [run[0] for run in case[name]]
            # Exact recovery ends in rounding, where parts of each other say nothing.
            good = sum(value <= max(1.01 * least, 1e-5) for value in stresses)
            rows.append(
                [
                    f"{case['what']}, {name}",
                    *(f"{value:.3g}" for value in (min(stresses), statistics.median(stresses), max(stresses))),
                    f"{good} of {len(stresses)}",
                    duration(statistics.median(run[1] for run in case[name])),
                    f"{statistics.median(run[2] for run in case[name]):.0f}",
                ]
            )
    header = ["normalized stress", "least", "median", "most", "near the best", "time", "iterations"]
    return table(header, rows)
