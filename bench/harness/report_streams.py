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
    return [
        write(results[name])
        for name, write in known.items()
        if any(results.get(name, {}).get(key) for key in ("cases", "paced"))
    ]


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
WAYS = {"table": "in a table", "query": "a query per view", "checkpoints": "in a table, checkpoints"}


def yahoo_section(yahoo: dict[str, Any]) -> str:
    parts = [
        "## Yahoo",
        "",
        f"{yahoo['events']:,} JSON events, {yahoo['per_second']:,} per second of event time, joined with campaigns from Redis and counted into Redis; a",
        f"checkpoint every second; median of {yahoo['rounds']} rounds. Every count was checked. The ratio is of rates: above 1 is faster.",
        "",
    ]
    for case in yahoo["cases"]:
        # Results of before had no other way.
        if case.get("campaigns", "table") == "query":
            parts += [
                "With a Redis query for each view, and no cache. Flink was not measured this way: its program caches answers.",
                "",
            ]
        rows = yahoo_rates(case, yahoo["events"])
        parts += [table(["system", "events/s", "spread", "ratio"], rows), "", *redis_own(case), *failures(case), ""]
    return "\n".join([*parts, *yahoo_paced(yahoo)])


def yahoo_rates(case: dict[str, Any], events: int) -> list[list[str]]:
    medians = {name: statistics.median(times) for name, times in case["elapsed_s"].items()}
    best_s = min((at for name, at in medians.items() if not name.startswith(OURS)), default=math.nan)
    return [
        [
            name,
            rate(events / medians[name]),
            f"±{spread(case['elapsed_s'][name]):.0%}",
            "-" if math.isnan(best_s) else f"{best_s / medians[name]:.3g}",
        ]
        for name in sorted(medians, key=order)
    ]


def redis_own(case: dict[str, Any]) -> list[str]:
    """A line for each system on the time that was Redis's, where each view asks."""
    lines = []
    for name in sorted(case.get("redis", {}), key=order):
        of = case["redis"][name]
        if of[-1]["queries"]:
            own = {key: statistics.median(one[key] for one in of) for key in ("query_us", "core", "plain_per_s")}
            views_per_s = statistics.median(
                one["queries"] / elapsed_s for one, elapsed_s in zip(of, case["elapsed_s"][name], strict=True)
            )
            lines.append(
                f"- {name}: {views_per_s:,.0f} queries/s. Redis itself: {own['query_us']:.2f} us in each, {own['core']:.0%} of a core in all; a plain client with "
                f"nothing else to do, in pipelines, got {own['plain_per_s']:,.0f}/s."
            )
    return [*lines, ""] if lines else []


def yahoo_paced(yahoo: dict[str, Any]) -> list[str]:
    rows, notes = [], []
    for case in yahoo.get("paced", []):
        what = f"{WAYS[case['campaigns']]}, {case['per_second']:,}/s"
        for name in sorted(case.get("latency_s", {}), key=order):
            total = medians_of(case["latency_s"][name])
            waited = [
                f"{duration(of['p50'])}, {duration(of['p99'])}" if of else "-"
                for of in (medians_of(case.get(key, {}).get(name, [])) for key in ("lookup_s", "write_s"))
            ]
            core = statistics.median(one["core"] for one in case["redis"][name])
            parts = (duration(total[part]) for part in ("p50", "p90", "p99", "p99.9", "max"))
            rows.append([f"{what}, {name}", *parts, *waited, f"{core:.0%}"])
        notes += failures(case, f" paced, {what}")
    if not rows:
        return [*notes, ""] if notes else []
    header = ["campaigns, events, system", "p50", "p90", "p99", "p99.9", "most", "queries p50, p99", "writes p50, p99"]
    return [
        "### Latency of a view",
        "",
        f"At a set rate for {yahoo['paced_s']} s, of which the first tenth is not counted: from when an event was due, ready for it or not, until Redis had answered that",
        "the count which holds it is set. *Queries* and *writes*: how long of this a view's batch waited for Redis's answers. *Redis*: the share of a core that it",
        "took itself. *Checkpoints*: one every second, else none. A rate that is too high for the system shows as times of seconds. Flink was not measured so.",
        "",
        table([*header, "Redis"], rows),
        "",
        *notes,
        "",
    ]


def medians_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of each percentile the median of all rounds that have it."""
    return {part: statistics.median(one[part] for one in rounds if one) for one in rounds[:1] for part in one}


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
