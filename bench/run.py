"""Runs the benchmarks of Tidemill beside its peers, and writes tables, a plot and raw results under bench/results/.

    .venv/bin/python bench/run.py                    everything, about half an hour (first: bench/setup_peers.sh)
    .venv/bin/python bench/run.py --quick            fewer rounds, shorter turns: a few minutes
    .venv/bin/python bench/run.py --tiny             a few seconds; tests that the benchmarks still run, measures nothing
    .venv/bin/python bench/run.py --report FILE      tables and plot again, from the raw results of an earlier run

What is measured and how is told in bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import (
    allreduce,
    broadcast,
    comm,
    control,
    dataset,
    exchange,
    kmeans,
    loops,
    machine,
    mds,
    networks,
    nexmark,
    records,
    report,
    rounds,
    scaling,
    series,
    splits,
    startup,
    state,
    topologies,
    viewer,
    windows,
    yahoo,
)
from harness.systems import BENCH, SYSTEMS

COMM_PLANS = {
    "full": comm.Plan(
        systems=tuple(SYSTEMS),
        workers=(2, 4, 8),
        transports=("shm", "tcp"),
        operations=comm.OPERATIONS,
        sizes=comm.SIZES,
        rounds=5,
        turn_s=0.1,
        wait_s=1.0,
    ),
    "quick": comm.Plan(
        systems=tuple(SYSTEMS),
        workers=(2, 4, 8),
        transports=("shm", "tcp"),
        operations=comm.OPERATIONS,
        sizes=comm.SIZES[1::2],
        rounds=3,
        turn_s=0.03,
        wait_s=1.0,
    ),
    "tiny": comm.Plan(
        systems=("tidemill",),
        workers=(2,),
        transports=("shm",),
        operations=comm.OPERATIONS,
        sizes=(8, 4096),
        rounds=1,
        turn_s=0.001,
        wait_s=0.05,
    ),
}


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    setting = parser.add_mutually_exclusive_group()
    setting.add_argument("--quick", dest="setting", action="store_const", const="quick", help="fewer rounds and sizes")
    setting.add_argument(
        "--tiny", dest="setting", action="store_const", const="tiny", help="a few seconds, Tidemill alone"
    )
    parser.set_defaults(setting="full")
    parser.add_argument(
        "--only",
        choices=(
            "comm",
            "kmeans",
            "mds",
            "series",
            "dataset",
            "startup",
            "exchange",
            "rounds",
            "loops",
            "windows",
            "nexmark",
            "yahoo",
            "state",
            "splits",
            "scaling",
            "viewer",
            "broadcast",
            "topologies",
            "control",
            "allreduce",
            "networks",
        ),
        help="one of the benchmarks",
    )
    parser.add_argument("--workers", type=numbers, help="numbers of workers of the communicator benchmark, such as 2,4")
    parser.add_argument(
        "--transports", type=names, help="shm, tcp or both (shm,tcp); of the communicator and of broadcasts"
    )
    parser.add_argument("--operations", type=names, help="a subset of " + ",".join(comm.OPERATIONS))
    parser.add_argument("--sizes", type=numbers, help="message sizes in bytes, multiples of 8")
    parser.add_argument("--systems", type=names, help="a subset of the systems; by default all that are installed")
    parser.add_argument(
        "--cases",
        type=names,
        help="cases of k-means and DataSets by a part of their name, such as k1000-float32,x100-,join; of MDS such as 5000,annealing,large; queries, such as q0,q5; areas of scaling, such as kmeans,stream; of the viewer market, or numbers of points; of rounds such as reduce-4,-131072; of loops kmeans,mds; of Yahoo such as query,paced-table-10000; of broadcast such as binary,60-10000; of topologies such as A-2-128,pickle; of control such as keyed,cpu; of allreduce such as free,in-11-8388608; of networks such as A,roads,sync",
    )
    parser.add_argument("--rows", type=int, help="rows of the cases of window functions (DataSets)")
    parser.add_argument(
        "--gap", type=Path, metavar="FOLDER", help="the built GAP reference, a peer of the benchmark of networks"
    )
    parser.add_argument(
        "--grape", type=Path, metavar="FOLDER", help="libgrape-lite's build folder, another one: it has run_app"
    )
    parser.add_argument("--rounds", type=int, help="rounds, of which the median is taken")
    parser.add_argument(
        "--out", type=Path, default=BENCH / "results", help="folder of the results (default bench/results)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="render an earlier run's JSON instead of measuring")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the tables to this file")
    options = parser.parse_args(argv)
    for given, allowed in ((options.transports, ("shm", "tcp")), (options.operations, comm.OPERATIONS)):
        if unknown := set(given or ()) - set(allowed):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(allowed)}")
    if any(size < 8 or size % 8 for size in options.sizes or ()):
        parser.error("--sizes are multiples of 8 bytes: the arrays are of float64")
    if any(workers < 2 or workers % 2 for workers in options.workers or ()):
        parser.error("--workers are even: point to point runs on pairs")
    return options


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {
        "setting": options.setting,
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "machine": machine.describe(),
    }
    if results["machine"]["load_at_start"] > 0.5:
        say(
            f"the load average is {results['machine']['load_at_start']:.1f}: other programs are running, times will be noisy"
        )
    if options.only in (None, "comm"):
        results["comm"] = comm.measure(comm_plan(options), say)
    if options.only in (None, "kmeans"):
        results["kmeans"] = kmeans.measure(options.setting, options.systems, options.cases, options.rounds, say)
    if options.only in (None, "mds"):
        results["mds"] = mds.measure(options.setting, options.systems, options.cases, options.rounds, say)
    if options.only in (None, "series"):
        results["series"] = series.measure(options.setting, options.cases, options.rounds, say)
    if options.only in (None, "dataset"):
        results["dataset"] = dataset.measure(
            options.setting, options.systems, options.cases, options.rounds, say, options.rows
        )
    if options.only in (None, "startup"):
        results["startup"] = startup.measure(options.setting, options.systems, options.rounds, say)
    if options.only in (None, "exchange"):
        results["exchange"] = exchange.measure(options.setting, options.systems, options.rounds, say)
        results["records"] = records.measure(options.setting, options.systems, options.rounds, say)
    if options.only in (None, "rounds"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["rounds"] = rounds.measure(options.setting, options.systems, cases, options.rounds, say)
    if options.only in (None, "loops"):
        cases = options.cases if options.only else None
        results["loops"] = loops.measure(options.setting, options.systems, cases, options.rounds, say)
    if options.only in (None, "windows"):
        results["windows"] = windows.measure(options.setting, options.systems, options.rounds, say)
    if options.only in (None, "nexmark"):
        results["nexmark"] = nexmark.measure(options.setting, options.systems, options.cases, options.rounds, say)
    if options.only in (None, "yahoo"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["yahoo"] = yahoo.measure(options.setting, options.systems, cases, options.rounds, say)
    if options.only in (None, "state"):
        results["state"] = state.measure(options.setting, options.systems, options.cases, options.rounds, say)
    if options.only in (None, "splits"):
        results["splits"] = splits.measure(options.setting, options.rounds, say)
    if options.only == "scaling" or (options.only is None and options.setting == "tiny"):
        # With all others, only to see that it runs: it measures again, in more splits, what they do.
        cases = options.cases if options.only else None
        results["scaling"] = scaling.measure(options.setting, cases, options.rounds, say)
    if options.only in (None, "viewer"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["viewer"] = viewer.measure(options.setting, cases, options.rounds, say)
    if options.only in (None, "broadcast"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["broadcast"] = broadcast.measure(options.setting, options.systems, cases, options.transports, say)
    if options.only in (None, "topologies"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["topologies"] = topologies.measure(options.setting, cases, say)
    if options.only in (None, "control"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["control"] = control.measure(options.setting, cases, say)
    if options.only in (None, "allreduce"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        results["allreduce"] = allreduce.measure(options.setting, options.systems, cases, say)
    if options.only in (None, "networks"):
        # Without `--only` the cases are those of others.
        cases = options.cases if options.only else None
        folders = networks.Folders(options.gap, options.grape)
        results["networks"] = networks.measure(options.setting, options.systems, cases, options.rounds, folders, say)
    return results


def comm_plan(options: argparse.Namespace) -> comm.Plan:
    plan = COMM_PLANS[options.setting]
    given = {
        key: getattr(options, key)
        for key in ("workers", "transports", "operations", "sizes", "rounds")
        if getattr(options, key)
    }
    chosen = [name for name in (options.systems or plan.systems) if name in SYSTEMS]
    present = []
    for name in chosen:
        if why := SYSTEMS[name].missing():
            say(f"{name} is left out: {why}")
        else:
            present.append(name)
    return replace(plan, **given, systems=tuple(present))


def main(argv: list[str]) -> int:
    options = arguments(argv)
    # Told to end, it ends what it has started and removes what it has written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.report:
        results, stem = json.loads(options.report.read_text()), options.report.with_suffix("")
    else:
        results = measure(options)
        options.out.mkdir(parents=True, exist_ok=True)
        stem = options.out / f"{results['setting']}-{results['started'][:19].replace(' ', 'T').replace(':', '')}"
        stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    text = report.markdown(results)
    print(text)
    stem.with_suffix(".md").write_text(text)
    if options.write:
        options.write.write_text(text)
    try:
        for path in report.plot(results, stem):
            say(f"wrote {path}")
    except ModuleNotFoundError as error:
        say(
            f"no plot: {error}; install it with 'pip install matplotlib' and run with --report {stem.with_suffix('.json')}"
        )
    say(f"wrote {stem.with_suffix('.json')} and {stem.with_suffix('.md')}")
    return 0 if any_measured(results) else 1


def any_measured(results: dict[str, Any]) -> bool:
    """Whether any system gave a time at all: a run where nothing started is a failure, not an empty table."""
    comm_points = [
        times for c in results.get("comm", {}).get("configurations", []) for times in c["samples_s"].values()
    ]
    kmeans_cases = [case["fit_s"] for case in results.get("kmeans", {}).get("cases", [])]
    scalings = [case["fit_s"] for case in results.get("mds", {}).get("cases", [])]
    scalings += [case for part in ("annealing", "large") for case in results.get("mds", {}).get(part, [])]
    scalings += [case["all_s"] for case in results.get("loops", {}).get("cases", [])]
    scalings += [case["all_s"] for case in results.get("series", {}).get("cases", [])]
    scalings += [case["fill_ms"] for case in results.get("viewer", {}).get("cases", [])]
    scalings += list(results.get("scaling", {}).get("seconds", {}).values())
    scalings += list(results.get("splits", {}).get("seconds", {}).values())
    dataset_cases = [case["query_s"] for case in results.get("dataset", {}).get("cases", [])]
    starts = results.get("startup", {}).get("answer_s", {})
    exchanges = [case["message_s"] for case in results.get("exchange", {}).get("cases", [])]
    exchanges += [case["record_s"] for case in results.get("records", {}).get("cases", [])]
    exchanges += [case["round_s"] for case in results.get("rounds", {}).get("cases", [])]
    window_cases = [case["event_s"] for case in results.get("windows", {}).get("cases", [])]
    streams = [case["elapsed_s"] for name in ("nexmark", "yahoo") for case in results.get(name, {}).get("cases", [])]
    streams += [case["elapsed_s"] for case in results.get("yahoo", {}).get("paced", [])]
    streams += [case["found"] for case in results.get("state", {}).get("cases", [])]
    exchanges += [case["ranks_s"] for case in results.get("allreduce", {}).get("cases", [])]
    networks_found = results.get("networks", {})
    if any(case["kernel_s"] for case in networks_found.get("cases", [])) or (networks_found.get("sync") or {}).get(
        "cases"
    ):
        return True
    if any(any(results.get(name, {}).get("cases", {}).values()) for name in ("broadcast", "topologies", "control")):
        return True
    return any(map(any, (comm_points, kmeans_cases, scalings, dataset_cases, starts, exchanges, window_cases, streams)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
