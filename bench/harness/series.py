"""The benchmark of the main job: years of prices become frames, from the file to the folder, by one worker and by two.

There is no peer that does all of it; what is compared is one worker with two, each worker with one thread, and both ways to share the
work: all workers in each window (`previous`), or each worker with windows of its own (`independent`). `tidemill series` itself is
run, and its `summary.json` read. The prices are those of the S&P 500 where they are, else generated.

    .venv/bin/python -m harness.series [--tiny] [--rounds 3]        in bench/

prints a table, and with --out FILE.json writes what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import machine
from .systems import BENCH

DATA = Path(os.environ.get("TIDEMILL_DATA", BENCH.parent / "../shared/data")) / "stocks"
PRICES, SECTORS = DATA / "sp500_daily_2004_2016.csv.zst", DATA / "sp500_sectors_2018.csv"
TIMEOUT_S = 1800
PHASES = ("clean", "distances", "embed", "compare", "align", "write")
#: Window and shift of each setting.
SETTINGS = {"full": ("250d", "5d"), "quick": ("250d", "25d"), "tiny": ("60d", "60d")}


def run(setting: str, workers: int, start: str, folder: Path) -> dict[str, Any]:
    """One run; its summary."""
    window, shift = SETTINGS[setting]
    command = [sys.executable, "-m", "tidemill", "series", "-n", str(workers), "--threads", "1", "--no-prefix"]
    if setting == "tiny":
        command += ["--sample-ids", "20", "--sample-days", "130"]
    elif PRICES.exists():
        command += [str(PRICES), "--groups", str(SECTORS)]
    command += ["--window", window, "--shift", shift, "--start", start, "--out", str(folder)]
    # One thread for NumPy's products too: what is shared is shared by workers.
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TIDEMILL_THREADS"), "1")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def measure(setting: str, rounds: int) -> dict[str, Any]:
    """Every case in turn, the median of the rounds."""
    cases = [(workers, start) for start in ("previous", "independent") for workers in (1, 2)]
    found: dict[tuple[int, str], list[dict[str, Any]]] = {case: [] for case in cases}
    for turn in range(rounds):
        for place in range(len(cases)):
            workers, start = cases[(place + turn) % len(cases)]
            with tempfile.TemporaryDirectory() as folder:
                found[workers, start].append(run(setting, workers, start, Path(folder) / "out"))
    window, shift = SETTINGS[setting]
    return {
        "setting": setting,
        "prices": PRICES.name if setting != "tiny" and PRICES.exists() else "generated",
        "window": window,
        "shift": shift,
        "rounds": rounds,
        "machine": machine.describe(),
        "cases": [
            {
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
            for (workers, start), runs in found.items()
        ],
    }


def table(results: dict[str, Any]) -> str:
    """What was measured, as Markdown."""
    heads = [
        "workers",
        "start",
        "frames",
        "stress",
        "fit",
        "iterations",
        "windows/min",
        "speed-up",
        "communication",
        *PHASES,
        "all s",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    alone: dict[str, float] = {}
    for case in results["cases"]:
        rate = statistics.median(case["windows_per_minute"])
        base = alone.setdefault(case["start"], rate)
        fit = case["alignment_fit"]
        cells = [
            str(case["workers"]),
            case["start"],
            str(case["frames"]),
            f"{case['stress']:.4f}",
            "-" if fit is None else f"{fit:.3f}",
            f"{case['iterations']:.0f}",
            f"{rate:,.0f}",
            f"{rate / base:.2f}",
            f"{100 * statistics.median(case['communication']):.0f} %",
            *(f"{statistics.median(case['phases_s'][name]):.2f}" for name in PHASES),
            f"{statistics.median(case['all_s']):.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    load = results["machine"]["load_at_start"]
    lines += ["", f"{results['prices']}, windows of {results['window']}, {results['shift']} apart; median of {results['rounds']} rounds; "
              f"one thread a worker; load average at the start {load:.1f}."]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", dest="setting", action="store_const", const="quick", default="full")
    parser.add_argument("--tiny", dest="setting", action="store_const", const="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    results = measure(options.setting, options.rounds)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
