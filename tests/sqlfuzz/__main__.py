"""Runs random queries and chains, and prints what fails: `python -m sqlfuzz --help`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tidemill as tm

from sqlfuzz.chains import chain, check_chain, shrink_chain
from sqlfuzz.data import Table, tables
from sqlfuzz.oracles import Data, Failure, Skipped, check
from sqlfuzz.queries import FORMS, Maker, Query
from sqlfuzz.shrink import shrink

#: How long one failure is made smaller, in seconds.
PATIENCE_S = float(os.environ.get("SQLFUZZ_PATIENCE", "30"))

SCRIPT = '''\
import datetime
from decimal import Decimal
from pathlib import Path
import tempfile
import duckdb, tidemill as tm
from sqlfuzz.data import Table, dataset
nan, inf = float("nan"), float("inf")
tables = {tables}
query = """{sql}"""
duck = """{duck}"""
sets = {{t.name: dataset(t, Path(tempfile.gettempdir()) / "sqlfuzz") for t in tables}}
con = duckdb.connect()
for t in tables:
    arrow = t.arrow()
    con.execute(f"create table {{t.name}} as select * from arrow")
try:
    print("DuckDB:  ", sorted(con.execute(duck).fetchall(), key=str))
except duckdb.Error as error:
    print("DuckDB:  ", error)
print("Tidemill:", sorted([tuple(r.values()) for r in tm.sql(query, **{{n: d for n, d in sets.items() if n in {used}}}).to_pylist()], key=str))
'''


class Found:
    """Counts, and the failures."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.sorts: Counter[str] = Counter()
        #: Of each query: what it gave, to be compared with what other numbers of workers give.
        self.digests: dict[int, str] = {}


def one_query(seed: int, only: list[str] | None, folder: Path, found: Found, digests: bool) -> None:
    """Draw a query of a seed and check it; the tables are those of eight neighbours."""
    given = tables(random.Random(f"data {seed // 8}"))
    query = Maker(random.Random(seed), given).query(only)
    found.counts[query.form] += 1

    def checked(query: Query, trial: list[Table]) -> Failure | None:
        nonlocal data
        if trial != data.tables:
            data.close()
            data = Data(trial, folder)
        failure = None
        with contextlib.suppress(Skipped):
            failure = check(query, data)
        # All workers go the same way from here.
        return tm.init().comm.bcast(failure)

    data = Data(given, folder)
    try:
        failure = check(query, data)
    except Skipped as error:
        failure = None
        found.counts["skipped"] += 1
        found.sorts["skipped: " + re.sub(r"\"\w+\"|\n.*", "", str(error))[:60]] += 1
    failure = tm.init().comm.bcast(failure)
    if digests and failure is None:
        found.digests[seed] = data.digest(query)
    if failure is not None:
        query, given, failure = shrink(query, given, checked, PATIENCE_S)
    data.close()
    if failure is None:
        return
    script = SCRIPT.format(
        tables="[\n" + "".join(f"    {t!r},\n" for t in given) + "]",
        sql=query.sql(),
        duck=query.sql(duck=True),
        used=sorted(t.name for t in given),
    )
    found.sorts[failure.sort()] += 1
    found.failures.append(f"seed {seed}: {failure}\n--- reproduction\n{script}---\n")


def one_chain(seed: int, folder: Path, found: Found) -> None:
    """Draw a chain of a seed and check it."""
    found.counts["chains"] += 1
    drawn = chain(random.Random(f"chain {seed}"))
    failure = tm.init().comm.bcast(check_chain(drawn, folder))
    if failure is not None:
        drawn, failure = shrink_chain(drawn, folder)
        found.sorts[failure.sort()] += 1
        found.failures.append(f"chain {seed}: {failure}\n")


def run(seed: int, queries: int, seconds: float, only: list[str] | None, folder: Path, digests: bool) -> Found:
    """Check `queries` queries and chains of the seeds from `seed` on, for at most `seconds`."""
    job = tm.init()
    found = Found()
    end = time.monotonic() + seconds
    for n in range(seed, seed + queries):
        if job.comm.bcast(time.monotonic() >= end):
            break
        before = len(found.failures)
        # Every fourth is a chain.
        if (n % 4 == 3 and only is None) or only == ["chains"]:
            one_chain(n, folder, found)
        else:
            one_query(n, only, folder, found, digests)
        if job.rank == 0 and len(found.failures) > before:
            print(found.failures[-1], flush=True)
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="sqlfuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; random if it is not given")
    parser.add_argument(
        "--queries", type=int, default=1000, help="how many queries and chains, on each number of workers"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop after this long, all numbers of workers together"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="the same in seconds")
    parser.add_argument("--workers", default="1", help="numbers of workers, such as 1,2,3")
    parser.add_argument("--only", default=None, help=f"kinds, of {','.join([*FORMS, 'chains'])}")
    parser.add_argument("--folder", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--digests", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    seconds = min(args.seconds, args.minutes * 60)
    only = args.only.split(",") if args.only else None
    if unknown := set(only or []) - {*FORMS, "chains"}:
        parser.error(f"--only has {', '.join(sorted(unknown))}; there are {', '.join([*FORMS, 'chains'])}")
    if args.folder is not None:
        found = run(seed, args.queries, seconds, only, Path(args.folder), args.digests is not None)
        if tm.init().rank == 0:
            made = sum(n for what, n in found.counts.items() if what != "skipped")
            print(
                f"{made} queries and chains, of which {found.counts['skipped']} were skipped, {len(found.failures)} failures"
            )
            for what, n in found.sorts.most_common():
                print(f"  {n:6} {what}")
            if args.digests is not None:
                Path(args.digests).write_text(json.dumps(found.digests))
        return 1 if found.failures else 0
    sizes = [int(n) for n in args.workers.split(",")]
    ended = 0
    given: dict[int, dict[str, str]] = {}
    for size in sizes:
        print(f"seed {seed}, {size} workers", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            inside = ["--seed", seed, "--queries", args.queries, "--seconds", seconds / len(sizes), "--folder", folder]
            inside += ["--only", args.only] if args.only else []
            digests = Path(folder) / "digests.json"
            inside += ["--digests", digests] if len(sizes) > 1 else []
            command = [sys.executable, "-m", "tidemill", "run", "-n", size, "-m", "sqlfuzz", *inside]
            ended |= subprocess.run([str(c) for c in command], check=False).returncode
            if digests.exists():
                given[size] = json.loads(digests.read_text())
    for size, digest in given.items():
        first = given[sizes[0]]
        for other in sorted((s for s in digest.keys() & first.keys() if digest[s] != first[s]), key=int):
            print(f"seed {other}: {size} workers give other rows than {sizes[0]}")
            ended = 1
    return 1 if ended else 0


if __name__ == "__main__":
    sys.exit(main())
