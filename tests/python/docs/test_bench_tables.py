"""Benchmarks of data sets and sorting: the tiny run, and the arithmetic of their reports."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import benched
import pytest
from harness import dataset, inputs, report
from harness.engines import WINDOWS


@pytest.mark.slow
def test_tiny_run_answers_queries_both_ways(tiny: Path) -> None:
    """Two workers of one thread and one of two must give the same answer, with at least one row."""
    results = benched.results(tiny)
    queries = [case["query"] for case in results["dataset"]["cases"]]
    assert queries == ["group", "join", "words", "row-number", "running-sum", "lag-lead", "sort"]
    for case in results["dataset"]["cases"]:
        assert case["failures"] == {}
        assert set(case["query_s"]) == set(dataset.OURS)
        (digest,) = set(case["digests"].values())
        # The answer of a window function is one row, whose value NumPy computes.
        expected = window_digest(case) if case["query"] in WINDOWS else digest
        assert int(digest.split()[0]) >= 10 or case["query"] in WINDOWS
        assert digest == expected, case["name"]
        assert all(10 < mib < 100_000 for values in case["peak_mib"].values() for mib in values)
    assert digest.startswith("2000 ") and digest.endswith(" in order")


def window_digest(case: dict[str, Any]) -> str:
    """The digest of the right answer, computed in plain loops over the rows of each key."""
    np, pq = pytest.importorskip("numpy"), pytest.importorskip("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        inputs.ordered(Path(folder), case["rows"], case["keys"])
        rows = pq.read_table(Path(folder) / "facts").to_pylist()
    of_key: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: row["v"]):
        of_key.setdefault(row["k"], []).append(row["x"])
    total = 0
    for xs in of_key.values():
        for at, x in enumerate(xs):
            number = {
                "row-number": at + 1,
                "running-sum": sum(xs[: at + 1]),
                "lag-lead": (xs[at - 1] if at else 5000) + 3 * (xs[at + 2] if at + 2 < len(xs) else 7000),
            }[case["query"]]
            total += number * (x + 2000)
    both = np.array([len(rows)]).tobytes() + np.array([total]).tobytes()
    return f"1 {hashlib.sha256(both).hexdigest()[:16]}"


def test_data_sets_are_judged_by_the_fastest_peer_and_a_different_answer_is_told() -> None:
    case = {
        "title": "join, 1,000 rows",
        "memory_mib": 0,
        "query_s": {"tidemill-2x1": [3.0], "tidemill-1x2": [1.0], "polars": [2.0], "duckdb": [5.0]},
        "digests": {"tidemill-2x1": "10 a", "polars": "10 a", "duckdb": "9 b"},
        "failures": {"polars-streaming": "took longer than 1 s"},
    }
    memory_of_all = {name: [100, 120] for name in case["query_s"]}
    case.update(peak_mib=memory_of_all, own_mib=memory_of_all)
    text = report.dataset_section({"rounds": 1, "cases": [case]})
    assert "1.50 polars" in text and "0.50 polars" in text and "### join, 1,000 rows" in text and "120 MiB" in text
    assert "Answers differ" in text and "- polars-streaming: took longer" in text
    assert "1.20" in report.dataset_section({"rounds": 1, "cases": [{**case, "memory_mib": 100}]})


def test_a_sort_that_loses_or_swaps_records_is_told(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    inputs.records(tmp_path / "in", 1000, parquet=True)
    plain = inputs.sorted_digest(tmp_path / "in" / "records")
    assert plain.startswith("1000 ") and plain.endswith("NOT in order")
    assert inputs.sorted_digest(tmp_path / "in" / "parquet") == plain
    rows = np.vstack(list(inputs.blocks(tmp_path / "in" / "records")))
    rows = rows[np.lexsort(rows[:, 9::-1].T)]

    def seen(name: str, records: object) -> str:
        (tmp_path / name).mkdir()
        records.tofile(tmp_path / name / "0")
        return inputs.sorted_digest(tmp_path / name)

    right = seen("right", rows)
    assert right == plain.replace("NOT in order", "in order")
    assert seen("swapped", rows[[1, 0, *range(2, 1000)]]).endswith("NOT in order")
    assert seen("lost", rows[1:]).split()[:2] != right.split()[:2]
    changed = rows.copy()
    changed[500, 20] ^= 1
    assert seen("changed", changed).split()[1] != right.split()[1]
