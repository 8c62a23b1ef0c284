"""The tables of docs/scaling.md, each number from one call of `tidemill simulate`.

    .venv/bin/python bench/predictions.py                        prints the tables, with the commands: half an hour on one core
    .venv/bin/python bench/predictions.py --check                says which numbers of the page differ, and fails then
    .venv/bin/python bench/predictions.py --write                puts the numbers into the page
    .venv/bin/python bench/predictions.py --only weak --workers-max 1024 --jobs 2

`--workers-max` leaves out the rows of more workers, also of a check. Nothing is measured: the same version gives the same numbers anywhere.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.tables import duration

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
WORKERS = (16, 256, 1024, 4096, 16384)


@dataclass(frozen=True)
class Table:
    """A table of the page: rows by numbers of workers, or by what is named first; cells of one or more commands.

    Attributes
    ----------
    columns : dict
        By its head, what follows `tidemill simulate` in a row; several commands have their times behind one another.
    rows : tuple
        What the columns are called with, numbers of workers first.
    show : function
        How a time in seconds is written.
    """

    title: str
    columns: dict[str, Callable[..., list[str]]]
    rows: tuple[tuple[Any, ...], ...]
    show: Callable[[float], str]
    first: str = "workers"
    label: Callable[..., str] = lambda workers, *_: f"{workers:,}"
    #: How many times a cell has; if there are fewer commands they are the same.
    each: int = 1

    def head(self) -> str:
        return line([self.first, *self.columns])


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def seconds(digits: int) -> Callable[[float], str]:
    return lambda time_s: f"{time_s:#.{digits}g}".rstrip(".")


def racked(words: str, workers: int) -> str:
    """A command on hosts of 16 workers, and racks of 32 hosts with links for a fourth of what these send."""
    return f"{words} --workers {workers} --hosts {max(1, workers // 16)} --racks {max(1, workers // 512)} --oversubscription 4"


def spread(workload: str, options: str = "") -> Callable[[int], list[str]]:
    """Commands of the control plane, in racks of 512 workers: along the tree, and as a star where that is another."""

    def commands(workers: int) -> list[str]:
        tree = f"{workload} --workers {workers} --racks {max(1, workers // 512)}{options}"
        return [tree, f"{tree} --fanout {workers}"][: 1 if workers <= 256 else 2]

    return commands


def skewed(_workers: int, skew: float, window_kib: int) -> list[str]:
    window = f" --window {window_kib}KiB" if window_kib else ""
    return [racked(f"keyed --bytes 64MiB --skew {skew}{window}", 256)]


TABLES = {
    "weak": Table(
        "Weak scaling",
        {
            "allreduce of 8 MiB": lambda p: [racked("allreduce --bytes 8MiB", p)],
            "`keyed --bytes 64MiB`": lambda p: [racked("keyed --bytes 64MiB", p)],
            "`kmeans`, 100,000 points a worker": lambda p: [racked(f"kmeans --points {100_000 * p}", p)],
            "`mds`, 10,000 √P points": lambda p: [racked(f"mds --points {int(10_000 * p**0.5)}", p)],
            "`terasort --bytes 1GiB`": lambda p: [racked("terasort --bytes 1GiB", p)],
        },
        tuple((p,) for p in WORKERS),
        seconds(4),
    ),
    "strong": Table(
        "Strong scaling",
        {
            "`keyed`, 1 TiB": lambda p: [racked(f"keyed --bytes {2**40 // p}", p)],
            "`kmeans --points 100000000`": lambda p: [racked("kmeans --points 100000000", p)],
            "`mds --points 320000`": lambda p: [racked("mds --points 320000", p)],
            "`terasort`, 1 TB": lambda p: [racked(f"terasort --bytes {10**12 // p}", p)],
        },
        tuple((p,) for p in WORKERS),
        seconds(3),
    ),
    "skew": Table(
        "Skewed keys",
        {"`keyed --bytes 64MiB`, 256 workers": skewed},
        ((256, 0, 0), (256, 0, 32), (256, 0.5, 0), (256, 1.1, 0), (256, 1.1, 256)),
        seconds(3),
        "keys",
        lambda _, skew, window: " ".join([f"`--skew {skew}`", *([f"`--window {window}KiB`"] if window else [])]),
    ),
    "control": Table(
        "The control plane",
        {
            "`rendezvous`: tree, star": spread("rendezvous"),
            "`loss`: tree, star": spread("loss"),
            "`checkpoint`: tree, star": spread("checkpoint", " --steps 10"),
        },
        tuple((p,) for p in WORKERS[1:]),
        duration,
        each=2,
    ),
}


def simulate(command: str) -> float:
    """When the last worker ends, in seconds."""
    argv = [sys.executable, "-m", "tidemill", "simulate", *command.split(), "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"tidemill simulate {command}: exit code {done.returncode}, see above")
    return float(max(json.loads(done.stdout)["end_s"]))


def made(table: Table, workers_max: int, pool: ThreadPoolExecutor) -> Iterator[str]:
    """The rows of a table."""
    rows = [row for row in table.rows if row[0] <= workers_max]
    cells = [
        [[pool.submit(simulate, word) for word in column(*row)] for column in table.columns.values()] for row in rows
    ]
    for row, futures in zip(rows, cells, strict=True):
        shown = [[table.show(future.result()) for future in cell] for cell in futures]
        yield line([table.label(*row), *(", ".join(cell) + ", the same" * (len(cell) < table.each) for cell in shown)])


def placed(page: str, table: Table) -> slice:
    """Where the rows of a table are in the page."""
    start = page.find(table.head() + "\n")
    if start < 0:
        sys.exit(f"{PAGE}: no table begins with: {table.head()}")
    start = page.index("\n", page.index("\n", start) + 1) + 1
    found = re.compile(r"(?:\|.*\n)*").match(page, start)
    assert found is not None
    return slice(start, found.end())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    parser.add_argument(
        "--workers-max", type=int, default=max(WORKERS), metavar="N", help="rows of up to so many workers"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="commands at once (default: 1)")
    parser.add_argument("--check", action="store_true", help="compare with the page, and fail if it says other numbers")
    parser.add_argument("--write", action="store_true", help="write the rows into the page")
    options = parser.parse_args()
    page, wrong = PAGE.read_text(encoding="utf-8"), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for name in [options.only] if options.only else list(TABLES):
            table = TABLES[name]
            print(f"{table.title} ({name})\n\n{table.head()}\n{line(['---'] * (1 + len(table.columns)))}")
            at = placed(page, table)
            lines = page[at].splitlines()
            for row in made(table, options.workers_max, pool):
                print(row, flush=True)
                label = row.split(" | ")[0]
                known = [old for old in lines if old.split(" | ")[0] == label]
                if known != [row]:
                    wrong += 1
                    if options.check:
                        print(f"  in the page: {' '.join(known) or 'no such row'}", file=sys.stderr)
                lines = [row if old in known else old for old in lines] + ([] if known else [row])
            print("\nThe last row of the whole table is from:\n")
            for column in table.columns.values():
                print(*(f"tidemill simulate {command}" for command in column(*table.rows[-1])), sep="\n")
            print(flush=True)
            page = page[: at.start] + "".join(f"{row}\n" for row in lines) + page[at.stop :]
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    return int(options.check and wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
