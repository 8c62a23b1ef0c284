"""Random queries and DataSet chains, against DuckDB, Python lists and themselves: a few hundred of those that `make
fuzz-sql` runs.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import launched
import pytest

TESTS = Path(__file__).parents[2]
#: The same queries each time, so that only a change decides whether the test passes; `make fuzz-sql` looks for new
#: ones.
SEED = int(os.environ.get("TIDEMILL_FUZZ_SEED", 1))


@pytest.mark.sampled(1, always=(1,))
@pytest.mark.parametrize(("workers", "queries"), [(1, 240), (2, 40), (3, 40)])
def test_random_queries_and_chains_give_what_the_oracles_say(workers: int, queries: int) -> None:
    pytest.importorskip("duckdb")
    command = ["-m", "sqlfuzz", "--seed", SEED, "--queries", queries, "--minutes", 1.2, "--workers", workers]
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=launched.PATIENCE_S,
    )
    said = result.stdout + result.stderr
    assert result.returncode == 0, f"TIDEMILL_FUZZ_SEED={SEED}\n{said}"
    # The test would mean nothing if the oracles skipped most of them.
    words = next(line for line in said.splitlines() if "queries and chains" in line).replace("[0]", "").split()
    checked = int(words[0]) - int(words[6])
    assert checked > 0.8 * int(words[0]) > 10, f"TIDEMILL_FUZZ_SEED={SEED}\n{said}"


def test_a_wrong_answer_is_found_and_made_small(tmp_path: Path) -> None:
    sys.path.insert(0, str(TESTS))
    try:
        from sqlfuzz.data import tables
        from sqlfuzz.oracles import Failure
        from sqlfuzz.queries import Maker, Query
        from sqlfuzz.shrink import shrink
    finally:
        sys.path.remove(str(TESTS))
    r = random.Random(SEED)
    given = next(t for t in iter(lambda: tables(r), None) if any(table.rows for table in t))
    maker = Maker(r, given)
    query = next(q for q in iter(maker.query, None) if "coalesce" in q.sql() and len(q.sql()) < 700)

    # As if an engine were wrong wherever there is a coalesce and a row.
    def check(query: Query, given: list[object]) -> Failure | None:
        wrong = "coalesce" in query.sql() and any(table.rows for table in given)
        return Failure("made up", query.sql(), "rows", "none") if wrong else None

    small, few, failure = shrink(query, given, check)
    assert failure.oracle == "made up", SEED
    assert sum(len(table.rows) for table in few) == 1, SEED
    assert len(small.sql()) <= min(len(query.sql()), 200), (SEED, small.sql())
