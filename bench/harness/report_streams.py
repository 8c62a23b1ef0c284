"""The reports of streams but for windows: Nexmark, and what comes of each further benchmark. Pure.

Ratios are of rates: Tidemill's over the peer's, so above 1 is faster.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from .state import ratio
from .tables import OURS, duration, geometric_mean, order, spread, table


def sections(results: dict[str, Any]) -> list[str]:
    """A section of each benchmark that was run."""
    known = {"nexmark": nexmark_section, "yahoo": yahoo_section, "state": state_section}
    return [write(results[name]) for name, write in known.items() if results.get(name, {}).get("cases")]


def rate(per_s: float) -> str:
    return f"{per_s / 1e6:.3g} M"


def failures(case: dict[str, Any], of: str = "") -> list[str]:
    return [f"- {name}{of}: {why}" for name, why in case["failures"].items()]


# --- Nexmark ---------------------------------------------------------------------------------------------------------
def nexmark_section(nexmark: dict[str, Any]) -> str:
    cases = nexmark["cases"]
    names = sorted({name for case in cases for name in case["elapsed_s"]}, key=order)
    peers = [name for name in names if not name.startswith(OURS)]
    ratios: dict[str, list[float]] = {}
    rows = []
    for case in cases:
        medians = {name: statistics.median(times) for name, times in case["elapsed_s"].items()}
        best_s = min((medians[name] for name in peers if name in medians), default=math.nan)
        row = [f"{case['query']}", next((f"{int(answer.split()[0]):,}" for answer in case["answers"].values()), "-")]
        for name in names:
            text = rate(nexmark["events"] / medians[name]) if name in medians else "-"
            row.append(f"{text} ±{spread(case['elapsed_s'][name]):.0%}" if name in medians else text)
        for name in names:
            if name.startswith(OURS):
                known = name in medians and not math.isnan(best_s)
                row.append(f"{best_s / medians[name]:.3g}" if known else "-")
                ratios.setdefault(name, []).extend([best_s / medians[name]] if known else [])
        rows.append(row)
    means = ", ".join(f"{name} {geometric_mean(found):.3g}" for name, found in ratios.items() if found)
    differing = [
        f"- query {case['query']}: answers differ: {case['answers']}"
        for case in cases
        if len(set(case["answers"].values())) > 1
    ]
    header = ["query", "rows", *names, *(f"{name}, ratio" for name in names if name.startswith(OURS))]
    return "\n".join(
        [
            "## Nexmark",
            "",
            f"{nexmark['events']:,} events, {nexmark['step_us']} us of event time apart: of all kinds, in each second; median of {nexmark['rounds']} rounds, and",
            "their spread. The ratio is of rates, to the best peer: above 1 is faster."
            + (f" Geometric means: {means}." if means else ""),
            "",
            table(header, rows),
            "",
            *(differing or ["All answers are the same."]),
            *(line for case in cases for line in failures(case, f" on query {case['query']}")),
            "",
        ]
    )


# --- Yahoo -----------------------------------------------------------------------------------------------------------
def yahoo_section(yahoo: dict[str, Any]) -> str:
    (case,) = yahoo["cases"]
    medians = {name: statistics.median(times) for name, times in case["elapsed_s"].items()}
    best_s = min((at for name, at in medians.items() if not name.startswith(OURS)), default=math.nan)
    rows = [
        [
            name,
            rate(yahoo["events"] / medians[name]),
            f"±{spread(case['elapsed_s'][name]):.0%}",
            f"{best_s / medians[name]:.3g}",
        ]
        for name in sorted(medians, key=order)
    ]
    return "\n".join(
        [
            "## Yahoo",
            "",
            f"{yahoo['events']:,} events of JSON, {yahoo['per_second']:,} in a second of event time, joined with campaigns from Redis and counted into Redis; a",
            f"checkpoint every second; median of {yahoo['rounds']} rounds. Every count was compared. The ratio is of rates: above 1 is faster.",
            "",
            table(["system", "events/s", "spread", "ratio"], rows),
            "",
            *failures(case),
            "",
        ]
    )


# --- state -----------------------------------------------------------------------------------------------------------
def state_section(state: dict[str, Any]) -> str:
    kept = f"{state['keys'] * state['key_bytes'] / 1e6:,.0f} MB"
    fewer = f"{state['fewer_keys'] * state['key_bytes'] / 1e6:,.0f} MB"
    titles = {
        "cost-all": f"Checkpoints of {kept}, rows of all keys",
        "cost-hot": f"Checkpoints of {kept}, rows of a hundredth of the keys",
        "recovery": f"From the death of a worker to the next result, {fewer}",
        "move": f"Keys of {fewer} move to the other worker: no rows for",
    }
    parts = ["## State", "", f"A checkpoint every {state['every_s']:g} s; {state['rounds']} rounds.", ""]
    for case in state["cases"]:
        parts += [f"### {titles[case['case']]}", ""]
        if case["found"]:
            parts += [(cost_table if case["case"].startswith("cost") else times_table)(case["found"]), ""]
        parts += [*failures(case), ""] if case["failures"] else []
    return "\n".join(parts)


def cost_table(found: dict[str, Any]) -> str:
    """The ratio is the median of the rounds', in each of which both ran one after the other."""
    rows = []
    for name in sorted(found, key=order):
        plain, saved = zip(*found[name], strict=True)
        rows.append(
            [
                name,
                *(rate(statistics.median(one["per_s"] for one in ones)) for ones in (plain, saved)),
                f"{ratio(found[name]):.2f}",
                duration(max(one["longest_wait_s"] for one in saved)),
                duration(statistics.median(one["elapsed_s"] / max(one["checkpoints"], 1) for one in saved)),
            ]
        )
    return table(["system", "rows/s without", "with", "ratio", "longest wait with", "a checkpoint each"], rows)


def times_table(found: dict[str, Any]) -> str:
    rows = []
    for name in sorted(found, key=order):
        # Of a turn one time, or several.
        times = [at for turn in found[name] for at in (turn if isinstance(turn, list) else [turn])]
        rows.append([name, duration(statistics.median(times)), duration(min(times)), duration(max(times))])
    return table(["system", "median", "least", "most"], rows)
