"""From raw results to what people read: medians, ratios, Markdown tables and a plot. Pure but for `plot`.

A ratio is Tidemill's time over a peer's: below 1 is faster, and the goal is at most 0.8 (communicator) or 0.5 (k-means).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import (
    allreduce,
    broadcast,
    control,
    loops,
    networks,
    report_mds,
    report_streams,
    rounds,
    scaling,
    series,
    splits,
    topologies,
    viewer,
)
from . import machine as machines
from .tables import OURS, cell, duration, geometric_mean, order, percentile, size_name, spread, table


# --- numbers ---------------------------------------------------------------------------------------------------------
def ratio(times: dict[str, list[float]], peers: Sequence[str]) -> tuple[float, str] | None:
    """Tidemill's median over that of the fastest of `peers`, and which one it was; None when one side is missing."""
    medians = {name: statistics.median(times[name]) for name in peers if times.get(name)}
    # A difference of two times can come out negative in the noise of a tiny run; it says nothing.
    medians = {name: seconds for name, seconds in medians.items() if seconds > 0}
    if not times.get(OURS) or not medians:
        return None
    best = min(medians, key=lambda name: medians[name])
    return statistics.median(times[OURS]) / medians[best], best


def rivals(configuration: dict[str, Any]) -> list[str]:
    """The peers a configuration is judged against: with more workers than cores only Open MPI yields its core."""
    return ["openmpi", "openmpi5", *([] if configuration["oversubscribed"] else ["mpich"])]


# --- communicator ----------------------------------------------------------------------------------------------------
def comm_ratios(configuration: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """The ratio to the judging peer at every point of one configuration where both sides were measured."""
    found = {point: ratio(times, rivals(configuration)) for point, times in configuration["samples_s"].items()}
    return {point: value for point, value in found.items() if value}


def comm_section(comm: dict[str, Any]) -> str:
    parts = ["## Communicator", ""]
    parts += [
        "Time of one operation, median of rounds; the ratio is Tidemill's time over the judging peer's (below 1 is faster).",
        "",
    ]
    parts += [comm_summary(comm), ""]
    differing = disagreements(comm)
    parts += [
        f"Checksums of results differ at: {', '.join(differing)}." if differing else "All systems computed the same.",
        "",
    ]
    for configuration in comm["configurations"]:
        names = sorted({name for times in configuration["samples_s"].values() for name in times}, key=order)
        ratios = comm_ratios(configuration)
        rows = []
        for point, times in configuration["samples_s"].items():
            op, size = point.split()
            label = op if op == "barrier" else f"{op} {size_name(int(size))}"
            verdict = f"{ratios[point][0]:.2f} {ratios[point][1]}" if point in ratios else "-"
            widest = max((spread(samples) for samples in times.values()), default=math.nan)
            rows.append([label, *(cell(times, name) for name in names), verdict, f"±{widest:.0%}"])
        parts += [f"### {title(configuration)}", "", table(["operation", *names, "ratio", "widest spread"], rows), ""]
        parts += [f"- {name}: {why}" for name, why in configuration["failures"].items()]
        parts += [""] if configuration["failures"] else []
    return "\n".join(parts)


def disagreements(comm: dict[str, Any]) -> list[str]:
    """The points whose checksums differ between systems, each named with its configuration."""
    return [
        f"{point} ({title(configuration)})"
        for configuration in comm["configurations"]
        for point, sums in configuration.get("checksums", {}).items()
        if len(set(sums.values())) > 1
    ]


def comm_summary(comm: dict[str, Any]) -> str:
    """One row per configuration: geometric mean, worst point, points over 1, CPU use of a waiting worker."""
    rows = []
    for configuration in comm["configurations"]:
        ratios = comm_ratios(configuration)
        worst = max(ratios, key=lambda point: ratios[point][0]) if ratios else ""
        waiting = [
            f"{name} {statistics.median(cpu):.0%}"
            for name, cpu in sorted(configuration["wait_cpu"].items(), key=lambda i: order(i[0]))
        ]
        rows.append(
            [
                title(configuration),
                f"{geometric_mean(value for value, _ in ratios.values()):.2f}" if ratios else "-",
                f"{ratios[worst][0]:.2f} ({worst.split()[0]} {size_name(int(worst.split()[1]))})" if ratios else "-",
                f"{sum(value > 1 for value, _ in ratios.values())} of {len(ratios)}" if ratios else "-",
                " or ".join(rivals(configuration)),
                ", ".join(waiting) or "-",
            ]
        )
    return table(
        ["configuration", "geometric mean", "worst point", "points over 1", "judged against", "core used by a wait"],
        rows,
    )


def title(configuration: dict[str, Any]) -> str:
    transport = {"shm": "same host", "tcp": "TCP only"}[configuration["transport"]]
    return f"{configuration['workers']} workers, {transport}"


# --- k-means ---------------------------------------------------------------------------------------------------------
def kmeans_ratios(case: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """For each way Tidemill ran: its ratio to the best peer, the worse one of whole-fit and per-further-iteration time."""
    found = {}
    ours = [name for name in case["fit_s"] if name.startswith(OURS)]
    peers = [name for name in case["fit_s"] if not name.startswith(OURS)]
    for name in ours:
        both = [ratio({**case[key], OURS: case[key][name]}, peers) for key in ("fit_s", "further_s")]
        if all(both):
            found[name] = max(value for value in both if value)
    return found


def kmeans_section(kmeans: dict[str, Any]) -> str:
    parts = ["## K-means", ""]
    parts += [
        f"Seconds per iteration, median of {kmeans['rounds']} rounds. *Whole fit*: the time of a fit of {kmeans['iterations']} iterations from given",
        f"centers, divided by {kmeans['iterations']}; it includes everything but loading the data. *Further*: the cost of one more iteration,",
        f"(fit of {kmeans['iterations']} - fit of 1) / {kmeans['iterations'] - 1}. The ratio is the worse of these two, each against its fastest peer.",
        "",
    ]
    for case in kmeans["cases"]:
        ratios = kmeans_ratios(case)
        rows = []
        for name in sorted(case["fit_s"], key=order):
            rows.append(
                [
                    name,
                    duration(statistics.median(case["fit_s"][name])),
                    duration(statistics.median(case["further_s"][name])),
                    f"±{spread(case['fit_s'][name]):.0%}",
                    f"{case['inertia'][name]:.6g}",
                    f"{ratios[name][0]:.2f} {ratios[name][1]}" if name in ratios else "",
                ]
            )
        heading = f"{case['rows']:,} x {case['columns']}, k={case['k']}, {case['dtype']}"
        # Results of earlier runs are of blobs, all of as many iterations.
        kind, own = case.get("kind", "blobs"), case.get("iterations")
        heading += "" if kind == "blobs" else f", {kind}" + (f" ({own} iterations)" if own else "")
        parts += [
            f"### {heading}",
            "",
            table(["system", "whole fit", "further", "spread", "inertia of a sample", "ratio"], rows),
            "",
        ]
        parts += [f"- {name}: {why}" for name, why in case["failures"].items()]
        parts += [""] if case["failures"] else []
    return "\n".join(parts)


# --- DataSets --------------------------------------------------------------------------------------------------------
def dataset_ratios(case: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """For each way Tidemill ran: its time over the fastest peer's, and which one that is."""
    times = case["query_s"]
    peers = [name for name in times if not name.startswith(OURS)]
    found = {name: ratio({**times, OURS: times[name]}, peers) for name in times if name.startswith(OURS)}
    return {name: value for name, value in found.items() if value}


def dataset_section(dataset: dict[str, Any]) -> str:
    parts = ["## DataSets", ""]
    parts += [
        f"Time from the input to all rows of the answer in memory (of window functions a checksum of them), or sorted on disk: median of {dataset['rounds']}",
        "rounds; the ratio is to the fastest peer. *Peak memory* is the resident size of all processes of a system together, *own* without mapped files.",
        "",
    ]
    for case in dataset["cases"]:
        ratios = dataset_ratios(case)
        budget_mib = case["memory_mib"]
        rows = []
        for name in sorted(case["query_s"], key=order):
            peak_mib = max(case["peak_mib"][name])
            rows.append(
                [
                    name,
                    cell(case["query_s"], name),
                    f"±{spread(case['query_s'][name]):.0%}",
                    f"{peak_mib:,} MiB",
                    f"{max(case['own_mib'][name]):,} MiB",
                    *([f"{peak_mib / budget_mib:.2f}"] if budget_mib else []),
                    f"{ratios[name][0]:.2f} {ratios[name][1]}" if name in ratios else "",
                ]
            )
        header = ["system", "time", "spread", "peak memory", "own", *(["peak / bound"] if budget_mib else []), "ratio"]
        same = len(set(case["digests"].values())) <= 1
        parts += [
            f"### {case['title']}",
            "",
            table(header, rows),
            "",
            "All answers are the same." if same else f"Answers differ: {case['digests']}.",
            "",
        ]
        parts += [f"- {name}: {why}" for name, why in case["failures"].items()]
        parts += [""] if case["failures"] else []
    return "\n".join(parts)


# --- start-up --------------------------------------------------------------------------------------------------------
def startup_section(startup: dict[str, Any]) -> str:
    times = startup["answer_s"]
    rows = [
        [name, cell(times, name), f"±{spread(times[name]):.0%}", cell(startup["end_s"], name)]
        for name in sorted(times, key=order)
    ]
    parts = ["## Start-up", ""]
    parts += [
        f"A trivial query, from the start of the program to its answer on all workers: median of {startup['rounds']} rounds.",
        "`python` and `numpy` ask for nothing but the interpreter and an import.",
        "",
        table(["system", "answer", "spread", "end of the process"], rows),
        "",
    ]
    return "\n".join([*parts, *(f"- {name}: {why}" for name, why in startup["failures"].items())])


# --- exchanges -------------------------------------------------------------------------------------------------------
# Whose functions are compared: a function's own cost per message is its language's. Ours; by hand; Flink's.
LANGUAGES = {
    "Functions in Python": ("tidemill", ("openmpi",), ("pyflink",)),
    "Functions in Rust, C++ and Java": ("tidemill-rust", ("openmpi-c++",), ("flink-2x1", "flink-1x2")),
}


def exchange_section(exchange: dict[str, Any]) -> str:
    cases = exchange["cases"]
    tables = [part for language in LANGUAGES for part in exchange_table(language, cases)]
    parts = ["## Exchanges", ""]
    parts += [
        f"{exchange['workers']} workers, median of {exchange['rounds']} rounds. *Time* of a message of each source among many, so",
        "its inverse is their rate; *latency* of one alone. The ratio is Tidemill's time over that by hand, so below 1 is faster;",
        "*rate over Flink's* is Tidemill's over that of the faster Flink, so above 1 is faster.",
        "",
        *tables,
    ]
    return "\n".join([*parts, *arrivals(cases, lambda case: f"{case['operation']} {case['size']}")])


def arrivals(cases: Sequence[dict[str, Any]], label: Callable[[dict[str, Any]], str]) -> list[str]:
    """Whether the same arrived at all systems, and which of them failed."""
    differing = [label(case) for case in cases if len(set(case["digests"].values())) > 1]
    failures = [(case["operation"], *failure) for case in cases for failure in case["failures"].items()]
    return [
        f"Digests differ at: {', '.join(differing)}." if differing else "The same arrived everywhere.",
        "",
        *(f"- {name} on {operation}: {why}" for operation, name, why in failures),
    ]


def measured(language: str, times: Sequence[dict[str, Any]]) -> list[str]:
    """The systems whose functions are of one kind of language, as far as they were measured."""
    ours, by_hand, flinks = LANGUAGES[language]
    return [name for name in (ours, *by_hand, *flinks) if any(name in of_case for of_case in times)]


def ratios(language: str, times: dict[str, list[float]]) -> list[str]:
    """Our time over that by hand, and our rate over that of Flink, as cells; empty where there is none."""
    ours, by_hand, flinks = LANGUAGES[language]
    times = {**times, OURS: times.get(ours, [])}
    to_hand, to_flink = ratio(times, by_hand), ratio(times, flinks)
    return [
        f"{to_hand[0]:.2f} {to_hand[1]}" if to_hand else "",
        f"{1 / to_flink[0]:.2f} {to_flink[1]}" if to_flink else "",
    ]


def exchange_table(language: str, cases: Sequence[dict[str, Any]]) -> list[str]:
    """The systems whose functions are of one kind of language; nothing where none was measured."""
    names = measured(language, [case["message_s"] for case in cases])
    if not names:
        return []
    rows = [
        [
            f"{case['operation']} {size_name(case['size'])}",
            *(cell(case["message_s"], name) for name in names),
            *ratios(language, case["message_s"]),
            *(cell(case["latency_s"], name) for name in names),
        ]
        for case in cases
    ]
    header = [
        "exchange",
        *(f"{n}, time" for n in names),
        "ratio",
        "rate over Flink's",
        *(f"{n}, latency" for n in names),
    ]
    return [f"### {language}", "", table(header, rows), ""]


def records_section(records: dict[str, Any]) -> str:
    cases = records["cases"]
    tables = [part for language in LANGUAGES for part in records_table(language, cases)]
    parts = [
        "## Records of 128 B through exchanges",
        "",
        f"{records['workers']} workers, {records['records']:,} records of each source, median of {records['rounds']} rounds. Each system puts records",
        "together as its users do: Tidemill in batches of rows, by hand in blocks, Flink in its network buffers. The ratio is Tidemill's time over",
        "that by hand, so below 1 is faster; *rate over Flink's* is Tidemill's over that of the faster Flink, so above 1 is faster.",
        "",
        *tables,
    ]
    return "\n".join([*parts, *arrivals(cases, lambda case: str(case["operation"]))])


def records_table(language: str, cases: Sequence[dict[str, Any]]) -> list[str]:
    """As `exchange_table`, in records per second."""
    names = measured(language, [case["record_s"] for case in cases])
    if not names:
        return []
    rows = []
    for case in cases:
        times = case["record_s"]
        rates = [f"{1e-6 / statistics.median(times[name]):.3g} M" if times.get(name) else "" for name in names]
        rows.append([case["operation"], *rates, *ratios(language, times)])
    header = ["exchange", *(f"{name}, records/s" for name in names), "ratio", "rate over Flink's"]
    return [f"### Records: {language[0].lower()}{language[1:]}", "", table(header, rows), ""]


# --- windows ---------------------------------------------------------------------------------------------------------
def windows_section(windows: dict[str, Any]) -> str:
    parts = ["## Windows", ""]
    parts += [
        f"A keyed count in windows of one second of event time, median of {windows['rounds']} rounds. The ratios are to the best peer: above 1 is more",
        "events, below 1 is sooner. *Latency* is from the watermark that closes a window to its last row, over the windows of all rounds.",
        "",
    ]
    for case in windows["cases"]:
        if case["mode"] == "throughput":
            parts += [f"### {windows['events']:,} events as fast as they go", "", throughput_table(case["event_s"]), ""]
        else:
            paces = set(case["per_second"].values())
            pace = f"{paces.pop():,} events/s" if len(paces) == 1 else "half of its own peak"
            parts += [f"### Latency at {pace}, {windows['paced_s']} s", "", latency_table(case), ""]
        parts += [f"- {name}: {why}" for name, why in case["failures"].items()]
        parts += [""] if case["failures"] else []
    return "\n".join(parts)


def throughput_table(event_s: dict[str, list[float]]) -> str:
    times = {name: statistics.median(samples) for name, samples in event_s.items()}
    best_s = min((at for name, at in times.items() if not name.startswith(OURS)), default=math.nan)
    rows = [
        [name, f"{1e-6 / times[name]:.3g} M", f"±{spread(event_s[name]):.0%}", f"{best_s / times[name]:.3g}"]
        for name in sorted(times, key=order)
    ]
    return table(["system", "events/s", "spread", "ratio"], rows)


def latency_table(case: dict[str, Any]) -> str:
    """The spread is of the rounds' medians."""
    found = {
        name: [percentile([one for round_s in rounds for one in round_s], part) for part in (50, 99)]
        for name, rounds in case["latency_s"].items()
    }
    peers = [both for name, both in found.items() if not name.startswith(OURS)]
    best = [min((both[i] for both in peers), default=math.nan) for i in (0, 1)]
    rows = []
    for name in sorted(found, key=order):
        medians = [statistics.median(round_s) for round_s in case["latency_s"][name]]
        cells = [
            text for at, least in zip(found[name], best, strict=True) for text in (duration(at), f"{at / least:.3g}")
        ]
        rows.append([name, f"{case['per_second'][name]:,}", *cells, f"±{spread(medians):.0%}"])
    return table(["system", "events/s", "p50", "ratio", "p99", "ratio", "spread"], rows)


# --- the whole -------------------------------------------------------------------------------------------------------
def markdown(results: dict[str, Any]) -> str:
    machine = results["machine"]
    parts = [
        "# Benchmark results",
        "",
        f"Commit `{machine['commit']}`, {results['started']}, setting `{results['setting']}`.",
        "",
    ]
    parts += [machines.sentence(machine) + ".", ""]
    versions = [
        f"{env}: " + ", ".join(f"{name} {v}" for name, v in found.items())
        for env, found in machine["peer_versions"].items()
        if found
    ]
    libraries = [text for name, text in results.get("comm", {}).get("libraries", {}).items() if name != OURS]
    parts += [
        f"Peers: {'; '.join(libraries + versions) or 'none installed'}. Settings and method: `bench/README.md`.",
        "",
    ]
    if "comm" in results:
        parts.append(comm_section(results["comm"]))
    if "kmeans" in results:
        parts.append(kmeans_section(results["kmeans"]))
    if "mds" in results:
        parts.append(report_mds.section(results["mds"]))
    if "series" in results:
        parts.append(series.section(results["series"]))
    if results.get("viewer", {}).get("cases"):
        parts.append(viewer.section(results["viewer"]))
    if "dataset" in results:
        parts.append(dataset_section(results["dataset"]))
    if "splits" in results:
        parts.append(splits.section(results["splits"]))
    if "scaling" in results:
        parts.append(scaling.section(results["scaling"]))
    if "startup" in results:
        parts.append(startup_section(results["startup"]))
    if results.get("exchange", {}).get("cases"):
        parts.append(exchange_section(results["exchange"]))
    if results.get("records", {}).get("cases"):
        parts.append(records_section(results["records"]))
    if results.get("rounds", {}).get("cases"):
        parts.append(rounds.section(results["rounds"]))
    if results.get("loops", {}).get("cases"):
        parts.append(loops.section(results["loops"]))
    if "broadcast" in results:
        parts.append(broadcast.section(results["broadcast"]))
    if "topologies" in results:
        parts.append(topologies.section(results["topologies"]))
    if "control" in results:
        parts.append(control.section(results["control"]))
    if "allreduce" in results:
        parts.append(allreduce.section(results["allreduce"]))
    if "networks" in results:
        parts.append(networks.section(results["networks"]))
    if results.get("windows", {}).get("cases"):
        parts.append(windows_section(results["windows"]))
    parts += report_streams.sections(results)
    return "\n".join(parts).rstrip() + "\n"


def plot(results: dict[str, Any], stem: Path) -> list[Path]:
    """Draws the ratios into `stem`.svg and `stem`.png, and scaling, broadcasts, the controller and all-reduces beside them; nothing, and an empty list, where there is nothing to draw."""
    scaled = scaling.plot(results["scaling"], stem) if "scaling" in results else []
    scaled += broadcast.plot(results["broadcast"], stem) if "broadcast" in results else []
    scaled += control.plot(results["control"], stem) if "control" in results else []
    scaled += allreduce.plot(results["allreduce"], stem) if "allreduce" in results else []
    comm = [(c, comm_ratios(c)) for c in results.get("comm", {}).get("configurations", [])]
    comm = [(c, ratios) for c, ratios in comm if ratios]
    kmeans = {
        f"{case['rows'] // 1000}k x {case['columns']}\nk={case['k']} {case.get('kind', 'blobs')} {case['dtype']}": kmeans_ratios(
            case
        )
        for case in results.get("kmeans", {}).get("cases", [])
    }
    dataset = {
        case["name"].replace("-", " "): dataset_ratios(case) for case in results.get("dataset", {}).get("cases", [])
    }
    bars = [
        ("k-means (vs the best peer)", 0.5, {label: ratios for label, ratios in kmeans.items() if ratios}),
        ("DataSets (vs the best peer)", 1.0, {label: ratios for label, ratios in dataset.items() if ratios}),
    ]
    bars = [(heading, goal, cases) for heading, goal, cases in bars if cases]
    if not comm and not bars:
        return scaled
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = len(comm) + len(bars)
    columns = min(3, panels)
    figure, axes = pyplot.subplots(
        math.ceil(panels / columns),
        columns,
        figsize=(5 * columns, 3.6 * math.ceil(panels / columns)),
        squeeze=False,
        layout="constrained",
    )
    flat = list(axes.flat)
    for axis, (configuration, ratios) in zip(flat, comm, strict=False):
        for op in dict.fromkeys(point.split()[0] for point in ratios):
            points = sorted(
                (int(point.split()[1]), value) for point, (value, _) in ratios.items() if point.split()[0] == op
            )
            # A barrier has no size: it is drawn at the left edge.
            axis.plot(
                [max(size, 8) for size, _ in points], [value for _, value in points], marker="o", markersize=3, label=op
            )
        axis.set(
            xscale="log",
            yscale="log",
            title=f"{title(configuration)} (vs {' or '.join(rivals(configuration))})",
            xlabel="message size, bytes",
        )
        axis.axhline(0.8, color="grey", linewidth=0.8, linestyle="--")
        axis.legend(fontsize=7)
    for axis, (heading, goal, cases) in zip(flat[len(comm) :], bars, strict=False):
        names = sorted({name for ratios in cases.values() for name in ratios})
        for offset, name in enumerate(names):
            heights = [ratios.get(name, (math.nan, ""))[0] for ratios in cases.values()]
            axis.bar(
                [i + 0.8 * offset / len(names) for i in range(len(cases))], heights, width=0.8 / len(names), label=name
            )
        axis.set_xticks([i + 0.4 for i in range(len(cases))], list(cases), fontsize=6, rotation=30, ha="right")
        axis.set(title=heading)
        axis.axhline(goal, color="grey", linewidth=0.8, linestyle="--")
        axis.legend(fontsize=7)
    for axis in flat[:panels]:
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_ylabel("Tidemill's time / peer's")
    for axis in flat[panels:]:
        axis.set_visible(False)
    written = [stem.with_suffix(suffix) for suffix in (".svg", ".png")]
    for path in written:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return [*written, *scaled]
