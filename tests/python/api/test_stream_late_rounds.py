"""Rounds of `tm.stream.all_reduce` that do not wait for a late copy: each part is in exactly one round."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm

Rows = list[dict[str, Any]]

#: Multiples of an eighth, so that sums are exact in any order; a hundred rows per second.
X = np.arange(1000) * 7919 % 1000 / 8
SECONDS = np.arange(1000) // 100
#: Rows per second of a job that stops: its last row comes long after.
SLOWLY = 100


def stream(**options: Any) -> tm.DataSet:
    columns = {"x": X, "k": np.arange(1000) % 8, "at": SECONDS * 1_000_000 + np.arange(1000) % 100 * 10_000}
    table = tm.from_dict(columns).with_columns(at=tm.col("at").cast("timestamp[us]")).collect()
    return tm.stream.from_table(table, time="at", **options)


class Late:
    """Counts and sums rows. The copy that has the rows with k = 0 waits from the second round on, until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self, rows: tm.Table, value: np.ndarray | None) -> Any:
        columns = rows.to_dict()
        if 0 in columns["k"] and value is not None:
            assert self.release.wait(60)
        return np.array([len(rows), sum(columns["x"])])

    def rounds(self, rows: tm.DataSet, **options: Any) -> tm.DataSet:
        return tm.stream.all_reduce(rows, self, every="1s", on="at", by="k", **options)


def check_all_parts(seen: Rows) -> None:
    """Every part is in exactly one round."""
    assert [row["round"] for row in seen] == list(range(len(seen)))
    assert sum(row["value"][0] for row in seen) == 1000
    assert sum(row["value"][1] for row in seen) == X.sum()


@pytest.mark.parametrize("rows_per_batch", [30, 1000])
def test_a_copy_that_is_late_is_left_out_and_named(rows_per_batch: int, caplog: Any) -> None:
    """It returns only once the result of a round without it has come out. In one batch, the stream has ended before."""
    late, seen = Late(), list[dict[str, Any]]()

    def see(rows: tm.Table) -> None:
        seen.extend(rows.to_pylist())
        if any(row["left_out"] for row in seen):
            late.release.set()

    with caplog.at_level(logging.WARNING, "tidemill.stream.left_out"):
        late.rounds(stream(rows_per_batch=rows_per_batch), parallelism=2, max_wait="20ms").write_stream(see)
    check_all_parts(seen)
    named = {copy for row in seen for copy in row["left_out"]}
    assert len(named) == 1 and seen[0]["left_out"] == [] and len(seen) in (10, 11)
    assert any(f"copy {named.pop()} of " in said and "left out its part" in said for said in caplog.messages)


@pytest.mark.parametrize("copies", [(2, 2), (3, 2), (2, 1), (2, 3)])
def test_what_was_left_out_is_in_the_checkpoint(tmp_path: Path, copies: tuple[int, int]) -> None:
    """The first job stops while a copy's function has not returned; it never does, as if its worker had died."""
    seen: Rows = []
    stuck, free = Late(), Late()
    free.release.set()
    for late, parallelism in zip((stuck, free), copies, strict=True):
        late.rounds(
            stream(rows_per_batch=10, rows_per_s=SLOWLY if late is stuck else 0),
            parallelism=parallelism,
            max_wait="20ms",
        ).write_stream(
            lambda rows: seen.extend(rows.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"),
            stop_when=lambda late=late: late is stuck and any(row["left_out"] for row in seen),
            name="late",
        )
        assert late is free or len(seen) < 10
    stuck.release.set()
    check_all_parts(seen)


def test_max_wait_can_be_added_but_not_removed_while_parts_are_left(tmp_path: Path) -> None:
    seen: Rows = []

    def run(late: Late, until: int = 1000, **options: Any) -> None:
        ends = late is free and until == 1000
        rows = stream(rows_per_batch=10, rows_per_s=0 if ends else SLOWLY)
        late.rounds(rows, parallelism=2, **options).write_stream(
            lambda rows: seen.extend(rows.to_pylist()),
            checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"),
            stop_when=lambda: len(seen) >= until or (late is stuck and any(row.get("left_out") for row in seen)),
            name="late",
        )

    stuck, free = Late(), Late()
    free.release.set()
    run(free, until=1)
    run(stuck, max_wait="20ms")
    with pytest.raises(tm.DataSetError, match="its checkpoint has parts that rounds had left out"):
        run(free)
    run(free, max_wait="1h")
    stuck.release.set()
    check_all_parts(seen)


@pytest.mark.parametrize("op", ["min", "max", "mean"])
def test_a_late_part_counts_as_much_as_any_other(op: Any) -> None:
    """A mean is over the parts that a round has, also where one copy has several."""
    late, seen = Late(), list[dict[str, Any]]()

    def own(rows: tm.Table, value: np.ndarray | None) -> Any:
        late(rows, value)
        x = np.asarray(rows.to_dict()["x"])
        return {"min": x.min(initial=999), "max": x.max(initial=-1), "mean": 7.0}[op]

    def see(rows: tm.Table) -> None:
        seen.extend(rows.to_pylist())
        if any(row["left_out"] for row in seen):
            late.release.set()

    rounds = tm.stream.all_reduce(
        stream(rows_per_batch=30), own, every="1s", on="at", by="k", op=op, parallelism=2, max_wait="20ms"
    )
    rounds.write_stream(see)
    values = [row["value"][0] for row in seen]
    if op == "mean":
        assert set(values) == {7.0}
    else:
        assert {"min": min, "max": max}[op](values) == {"min": X.min(), "max": X.max()}[op]
    assert np.isfinite(values).all()


def test_a_round_without_any_part_waits_for_one() -> None:
    """Each function returns only after both copies were late. The results are those of on-time rounds."""
    tried = threading.Semaphore(0)

    def own(rows: tm.Table, value: np.ndarray | None) -> Any:
        if value is not None:
            # It is never released: it only takes longer than `max_wait`.
            tried.acquire(timeout=0.02)
        return len(rows)

    seen: Rows = []
    tm.stream.all_reduce(stream(), own, every="1s", on="at", parallelism=2, max_wait="1ms").write_stream(
        lambda rows: seen.extend(rows.to_pylist())
    )
    assert sum(row["value"][0] for row in seen) == 1000 and all(row["value"][0] >= 0 for row in seen)


def test_rounds_from_checkpoint_to_checkpoint_leave_out_late_copies(tmp_path: Path) -> None:
    late, seen = Late(), list[dict[str, Any]]()

    def see(rows: tm.Table) -> None:
        seen.extend(rows.to_pylist())
        if any(row["left_out"] for row in seen):
            late.release.set()

    tm.stream.all_reduce(
        stream(rows_per_s=2000, rows_per_batch=30), late, by="k", parallelism=2, max_wait="10ms"
    ).write_stream(see, checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"))
    check_all_parts(seen)
    assert any(row["left_out"] for row in seen)


def test_functions_that_fail() -> None:
    def raises(rows: tm.Table, value: Any) -> Any:
        raise ZeroDivisionError("no such model")

    calls = itertools.count()
    for function, words in [
        (raises, "no such model"),
        (lambda rows, value: None, "it returned NoneType, and all_reduce takes a number or an array of numbers"),
        (lambda rows, value: np.zeros(1 if value is None else 2), "all rounds need one shape"),
        (lambda rows, value: np.zeros(1 + next(calls) % 2), "(?i)allreduce"),
    ]:
        rounds = tm.stream.all_reduce(stream(), function, every="700ms", on="at", parallelism=2, max_wait="1m")
        with pytest.raises(tm.DataSetError, match=words):
            rounds.write_stream(lambda rows: None)
    with pytest.raises(tm.DataSetError, match="max_wait"):
        tm.stream.all_reduce(stream(), raises, every="1s", on="at", max_wait="soon")
