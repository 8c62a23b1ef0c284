"""The benchmark of the main job: years of prices become frames, from the file to the folder, by one worker and by two.

There is no peer that does all of it; what is compared is one worker with two, each worker with one thread, and both ways to share the
work: windows that start from the one before (`previous`), or that do not depend on each other (`independent`). Beside them two jobs of one
worker run at once, which have nothing to do with each other: what two cores of this machine can give. `tidemill series` itself is
run, and its `summary.json` read. The prices are those of the S&P 500 where they are, else generated.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from .systems import BENCH
from .tables import table

DATA = Path(os.environ.get("TIDEMILL_DATA", BENCH.parent / "../shared/data")) / "stocks"
PRICES, SECTORS = DATA / "sp500_daily_2004_2016.csv.zst", DATA / "sp500_sectors_2018.csv"
TIMEOUT_S = 1800
PHASES = ("clean", "distances", "embed", "compare", "align", "write")
#: Window and shift of each setting.
SETTINGS = {"full": ("250d", "5d"), "quick": ("250d", "25d"), "tiny": ("60d", "60d")}
ROUNDS = {"full": 3, "quick": 3, "tiny": 1}
#: Ways to share the work, and of each one worker, two, and two jobs of one worker at once.
CASES = [(start, jobs, workers) for start in ("previous", "independent") for jobs, workers in ((1, 1), (1, 2), (2, 1))]


def run(setting: str, workers: int, start: str, folder: Path, threads: int = 1) -> dict[str, Any]:
    """One run; its summary."""
    window, shift = SETTINGS[setting]
    command = [sys.executable, "-m", "tidemill", "series", "-n", str(workers)]
    command += ["--threads", str(threads), "--no-prefix"]
    if setting == "tiny":
        command += ["--sample-ids", "20", "--sample-days", "130"]
    elif PRICES.exists():
        command += [str(PRICES), "--groups", str(SECTORS)]
    command += ["--window", window, "--shift", shift, "--start", start, "--out", str(folder)]
    # No more threads for NumPy's products either.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TIDEMILL_THREADS")
    env = {**os.environ, **dict.fromkeys(names, str(threads))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def measure(setting: str, only: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Every case in turn, in each round from another one on."""
    cases = [case for case in CASES if not only or any(part in case[0] for part in only)]
    rounds = rounds or ROUNDS[setting]
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {case: [] for case in cases}
    # Folders go at the end: file systems look long for a place for a new file just after many were removed.
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for place in range(len(cases)):
                start, jobs, workers = case = cases[(place + turn) % len(cases)]
                say(f"series, {start}, {_called(jobs, workers)}, round {turn + 1} of {rounds}")
                outs = [Path(folder) / f"{start}-{jobs}-{workers}-{turn}-{job}" for job in range(jobs)]
                with ThreadPoolExecutor(jobs) as pool:
                    summaries = list(pool.map(partial(run, setting, workers, start), outs))
                found[case].append(_together(summaries))
    window, shift = SETTINGS[setting]
    return {
        "prices": PRICES.name if setting != "tiny" and PRICES.exists() else "generated",
        "window": window,
        "shift": shift,
        "rounds": rounds,
        "cases": [
            {
                "jobs": jobs,
                "workers": workers,
                "start": start,
                "frames": runs[0]["frames"],
                "stress": runs[0]["stress"],
                "alignment_fit": runs[0]["alignment_fit"],
                "iterations": runs[0]["iterations"],
                "windows_per_minute": [one["windows_per_minute"] for one in runs],
                "communication": [one["communication"] for one in runs],
                "all_s": [one["seconds"]["all"] for one in runs],
                "phases_s": {name: [one["seconds"].get(name, 0.0) for one in runs] for name in PHASES},
            }
            for (start, jobs, workers), runs in found.items()
        ],
    }


def _called(jobs: int, workers: int) -> str:
    return f"{workers} worker(s)" if jobs == 1 else f"{jobs} jobs of {workers} at once"


def _together(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """What jobs did that ran at once: as many windows as all made, in the seconds of the slowest for its part of them."""
    slowest = min(summaries, key=lambda one: one["windows_per_minute"])
    seconds = {name: value / len(summaries) for name, value in slowest["seconds"].items()}
    return {**slowest, "windows_per_minute": slowest["windows_per_minute"] * len(summaries), "seconds": seconds}


def section(results: dict[str, Any]) -> str:
    """What was measured, as people read it."""
    heads = ["start, workers", "frames", "stress", "fit", "iterations", "windows/min", "speed-up", "communication"]
    rows = []
    alone: dict[str, tuple[float, float]] = {}
    for case in results["cases"]:
        rate = statistics.median(case["windows_per_minute"])
        all_s = statistics.median(case["all_s"])
        base, base_s = alone.setdefault(case["start"], (rate, all_s))
        fit = case["alignment_fit"]
        rows.append(
            [
                f"{case['start']}, {case['workers']}" + (" and 1 apart" if case["jobs"] > 1 else ""),
                str(case["frames"]),
                f"{case['stress']:.4f}",
                "-" if fit is None else f"{fit:.3f}",
                f"{case['iterations']:.0f}",
                f"{rate:,.0f}",
                f"{rate / base:.2f}",
                f"{100 * statistics.median(case['communication']):.0f} %",
                *(f"{statistics.median(case['phases_s'][name]):.2f}" for name in PHASES),
                f"{all_s:.1f}",
                f"{base_s / all_s:.2f}",
            ]
        )
    return "\n".join(
        [
            "## Series in space",
            "",
            f"`tidemill series` on {results['prices']}: windows of {results['window']}, {results['shift']} apart; median of {results['rounds']}",
            "round(s); one thread per worker. *Previous*: each window starts from the frame before; *independent*: from classical scaling.",
            "The table has the seconds of each phase and of the whole run; windows per minute cover what follows cleaning. *1 and 1 apart*: two",
            "jobs of one worker at the same time, which share nothing, with half of their seconds: no job of two workers can be faster.",
            "",
            table([*heads, *PHASES, "all", "speed-up of all"], rows),
            "",
        ]
    )
