"""Values that all copies of a stream's step compute together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm

Rows = list[dict[str, Any]]

#: A hundred rows per second, and none in the fourth and fifth second.
SECONDS = np.array([n // 100 + (2 if n >= 300 else 0) for n in range(1000)])
X = np.arange(1000) * 7919 % 1000 / 8


def stream(**options: Any) -> tm.DataSet:
    at = SECONDS * 1_000_000 + np.arange(1000) % 100 * 10_000
    table = tm.from_dict({"x": X, "at": at}).with_columns(at=tm.col("at").cast("timestamp[us]")).collect()
    return tm.stream.from_table(table, time="at", rows_per_batch=30, **options)


def values(rows: tm.Table) -> np.ndarray:
    return np.asarray(rows.to_dict()["x"], dtype=float)


def written(data: tm.DataSet, into: Rows | None = None, **options: Any) -> Rows:
    seen: Rows = [] if into is None else into
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return seen


def seconds_of(seen: Rows) -> list[int]:
    return [row["window_start"].minute * 60 + row["window_start"].second for row in seen]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
def test_rounds_are_reduced_over_all_copies(op: Any, copies: int) -> None:
    """Rows are multiples of an eighth, so that sums are exact in any order."""

    def own(rows: tm.Table, value: np.ndarray | None) -> Any:
        x = values(rows)
        of = {"sum": x.sum(), "mean": x.sum(), "min": x.min(initial=999), "max": x.max(initial=-1)}[op]
        return np.array([[of], [len(x)]])

    seen = written(tm.stream.all_reduce(stream(), own, every="1s", on="at", op=op, parallelism=copies))
    assert [row["round"] for row in seen] == list(range(10))
    assert seconds_of(seen) == sorted(set(SECONDS.tolist()))
    for row in seen:
        x = X[row["window_start"].second == SECONDS]
        expected = {"sum": x.sum(), "mean": x.sum() / copies, "min": x.min(), "max": x.max()}[op]
        assert row["value"][0] == expected
        assert (row["window_end"] - row["window_start"]).total_seconds() == 1
        if op in ("sum", "mean"):
            assert row["value"][1] == 100 / (copies if op == "mean" else 1)


def test_a_value_comes_back_in_the_next_round() -> None:
    def so_far(rows: tm.Table, value: np.ndarray | None) -> Any:
        assert value is None or (value.shape, value.dtype) == ((), np.float64)
        return (0 if value is None else value) + len(rows)

    seen = written(tm.stream.all_reduce(stream(), so_far, every="1s", on="at", op="max", parallelism=1))
    assert [row["value"] for row in seen] == [[100.0 * (n + 1)] for n in range(10)]


@pytest.mark.parametrize("copies", [(2, 3), (3, 1)])
def test_a_job_goes_on_with_the_value(tmp_path: Path, copies: tuple[int, int]) -> None:
    """Also with another number of copies: the mean of the copies' values is the number of rows so far."""
    seen: Rows = []
    for until, parallelism in zip((4, 10**9), copies, strict=True):

        def total(rows: tm.Table, value: np.ndarray | None, copies: int = parallelism) -> Any:
            return (0 if value is None else value) + len(rows) * copies

        totals = tm.stream.all_reduce(
            stream(rows_per_s=500 if until == 4 else 0), total, every="1s", on="at", op="mean", parallelism=parallelism
        )
        written(
            totals,
            seen,
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"),
            stop_when=lambda until=until: len(seen) >= until,
            name="totals",
        )
    assert [(row["round"], row["value"]) for row in seen] == [(n, [100.0 * (n + 1)]) for n in range(10)]


def test_without_a_length_a_round_goes_from_checkpoint_to_checkpoint(tmp_path: Path) -> None:
    counts = tm.stream.all_reduce(stream(rows_per_s=2000), lambda rows, value: len(rows), parallelism=2)
    seen = written(counts, checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"))
    assert sum(row["value"][0] for row in seen) == 1000 and len(seen) > 1
    assert all(row["window_start"] is None for row in seen)


def test_long_arrays_are_reduced_beside_the_stream() -> None:
    """Windows behind it would lose a result that comes after their time has passed."""
    long = 1 << 17

    def own(rows: tm.Table, value: np.ndarray | None) -> Any:
        assert value is None or value.shape == (2, long)
        return np.full((2, long), values(rows).sum())

    sums = tm.stream.all_reduce(stream(), own, every="1s", on="at", parallelism=3)
    ends = sums.select("round", "window_end", first=tm.col("value").list.get(0), long=tm.col("value").list.len())
    behind = ends.group_by(tm.stream.window(tm.stream.tumbling("5s"), on="window_end")).agg(
        first=tm.col("first").sum(), rounds=tm.col("first").count(), long=tm.col("long").min()
    )
    seen = written(behind)
    assert sum(row["rounds"] for row in seen) == 10
    assert sum(row["first"] for row in seen) == X.sum()
    assert all(row["long"] == 2 * long for row in seen)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": "1s"}, "pass both, or neither"),
        ({"on": "at"}, "pass both, or neither"),
        ({"op": "median"}, 'op=\'median\' must be "sum", "mean", "min" or "max"'),
        ({"parallelism": 0}, "parallelism=0 must be a positive integer"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tm.DataSetError, match=words):
        tm.stream.all_reduce(stream(), lambda rows, value: 0, **options)


def test_tables_have_no_rounds() -> None:
    with pytest.raises(tm.DataSetError, match="all_reduce is for streams, and this is a table; use bsp"):
        tm.stream.all_reduce(tm.from_dict({"x": [1]}), lambda rows, value: 0)


def test_functions_that_fail() -> None:
    def raises(rows: tm.Table, value: Any) -> Any:
        raise ZeroDivisionError("no such model")

    calls = itertools.count()

    for function, words in [
        (raises, "no such model"),
        (lambda rows, value: None, "it returned NoneType, and all_reduce takes a number or an array of numbers"),
        (lambda rows, value: "seven", "it returned str, and all_reduce takes a number or an array of numbers"),
        (lambda rows, value: np.zeros(1 + next(calls) % 2), "(?i)allreduce"),
    ]:
        with pytest.raises(tm.DataSetError, match=words):
            written(tm.stream.all_reduce(stream(), function, every="700ms", on="at", parallelism=2))


@pytest.mark.parametrize(("every", "fine"), [("1s", 1), ("1s", 9), (None, 1)])
def test_copies_whose_arrays_differ_in_length(tmp_path: Path, every: str | None, fine: int) -> None:
    """Long arrays are reduced beside the stream, and short ones are not: copies that chose by their own arrays would wait for
    each other forever. With `fine` 9 it happens in the last round, after the stream has ended.
    """
    calls = itertools.count()

    def own(rows: tm.Table, value: np.ndarray | None) -> Any:
        # A round begins when both copies have been called in the one before.
        return np.zeros(1 << 18) if next(calls) != 2 * fine + 1 else 0.0

    values = tm.stream.all_reduce(
        stream(rows_per_s=0 if every else 100), own, every=every, on="at" if every else None, parallelism=2
    )
    with pytest.raises(tm.DataSetError, match=r"(?i)allreduce"):
        written(values, checkpoint=None if every else tm.stream.Checkpoint(tmp_path, interval="50ms"))
    assert next(calls) == 2 * fine + 2
