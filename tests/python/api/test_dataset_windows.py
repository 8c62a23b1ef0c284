"""Window functions of the expression API, compared with a few lines of Python."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import seeds
import standing
import tidemill as tm

Row = dict[str, Any]
FRAMES: list[tuple[int | None, int | None]] = [(None, 0), (None, None), (-2, 0), (-1, 1), (1, 3), (-3, -2), (0, None)]


def table(count: int = 300) -> list[Row]:
    """Return rows of partitions of very different sizes, with ties and nulls."""
    dice = random.Random(7)
    return [
        {
            "i": i,
            "k": dice.choice("aaaaab") if i else "alone",
            "x": dice.choice([None, *range(6)]),
            "y": dice.choice([None, 1, 2]),
        }
        for i in range(count)
    ]


def data_of(rows: list[Row]) -> tm.DataSet:
    return tm.from_dict({name: [row[name] for row in rows] for name in rows[0]})


def found(rows: list[Row], **exprs: tm.Expr) -> list[Row]:
    return data_of(rows).with_columns(**exprs).sort("i").to_pylist()


def partitions(rows: list[Row]) -> dict[str, list[Row]]:
    return {key: [row for row in rows if row["k"] == key] for key in {row["k"] for row in rows}}


def test_places_in_an_order() -> None:
    """Ties share a rank, a partition of a single row works, too, and bucket sizes differ by at most one row."""
    rows = [row for row in table() if row["x"] is not None]
    over = {"partition_by": "k", "order_by": "x"}
    got = found(
        rows,
        percent=tm.functions.percent_rank().over(**over),
        cume=tm.functions.cume_dist().over(**over),
        part=tm.functions.ntile(4).over("k", order_by=["x", "i"]),
        many=tm.functions.ntile(1000).over("k", order_by=["x", "i"]),
    )
    for row in got:
        others = partitions(rows)[row["k"]]
        before = sum(other["x"] < row["x"] for other in others)
        assert row["percent"] == pytest.approx(before / max(len(others) - 1, 1))
        assert row["cume"] == pytest.approx(sum(other["x"] <= row["x"] for other in others) / len(others))
    for key, others in partitions(rows).items():
        ordered = sorted((row for row in got if row["k"] == key), key=lambda row: (row["x"], row["i"]))
        base, longer = divmod(len(others), 4)
        assert [row["part"] for row in ordered] == [
            part + 1 for part in range(4) for _ in range(base + (part < longer))
        ]
        assert [row["many"] for row in ordered] == list(range(1, len(others) + 1))


def inside(rows: list[Row], row: Row, frame: tuple[int | None, int | None]) -> list[Row]:
    """Return the rows in the frame of a row."""
    others = partitions(rows)[row["k"]]
    at = [other["i"] for other in others].index(row["i"])
    start = 0 if frame[0] is None else max(at + frame[0], 0)
    return others[start : len(others) if frame[1] is None else max(at + frame[1] + 1, 0)]


@pytest.mark.parametrize("frame", FRAMES)
def test_values_of_a_frame(frame: tuple[int | None, int | None]) -> None:
    """Frames that drop rows, and empty frames; a null is a value like others."""
    rows, x = table(), tm.col("x")
    over = {"partition_by": "k", "order_by": "i", "rows": frame}
    got = found(
        rows,
        first=x.first().over(**over),
        last=x.last().over(**over),
        second=x.nth_value(2).over(**over),
        last_but_one=x.nth_value(-2).over(**over),
        change=x.last().over(**over) - x.first().over(**over),
    )
    for row in got:
        values = [other["x"] for other in inside(rows, row, frame)]
        first, last = (values[0], values[-1]) if values else (None, None)
        assert (row["first"], row["last"]) == (first, last), row
        assert row["second"] == (values[1] if len(values) > 1 else None), row
        assert row["last_but_one"] == (values[-2] if len(values) > 1 else None), row
        assert row["change"] == (None if first is None or last is None else last - first), row


def bound(end: int | None, edge: str) -> str:
    """Return the end of a frame in SQL."""
    return f"unbounded {edge}" if end is None else f"{abs(end)} {'preceding' if end < 0 else 'following'}"


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("descending", [False, True])
def test_values_of_some_rows_of_a_frame(frame: tuple[int | None, int | None], descending: bool) -> None:
    """Of the rows for which a condition holds, possibly none: a null value counts, a null condition does not hold."""
    rows, x, some = table(), tm.col("x"), tm.col("y") == 1
    over: dict[str, Any] = {"partition_by": "k", "order_by": "i", "rows": frame, "descending": descending}
    # One of them in the other order: rows are sorted for it, and the frames of the others are reversed.
    over["nulls_last"] = not descending
    exprs = {
        "before": x.sum().over("k", order_by="i"),
        "first": x.first(where=some).over(**over),
        "last": x.last(where=some).over(**over),
        "second": x.nth_value(2, where=some).over(**over),
        "last_but_one": x.nth_value(-2, where=some).over(**over),
        "any": (x > 3).any(where=some).over(**over),
        "all": (x > 1).all().over(**over),
    }
    got = found(rows, **exprs)
    assert data_of(rows).with_columns(**exprs).explain().count("SortExec") == 1
    between = f"{bound(frame[0], 'preceding')} and {bound(frame[1], 'following')}"
    window = f"partition by k order by i {'desc' if descending else ''} rows between {between}"
    query = f"""select i, first_value(x) filter (where y = 1) over w as first, last_value(x) filter (where y = 1) over w as last,
        nth_value(x, 2) filter (where y = 1) over w as second, nth_value(x, -2) filter (where y = 1) over w as last_but_one,
        bool_or(x > 3) filter (where y = 1) over w as any, bool_and(x > 1) over w as "all",
        first_value(x) filter (where y = 1) ignore nulls over w as known from t window w as ({window})"""
    in_sql = tm.sql(query, t=data_of(rows)).sort("i").to_pylist()
    ordered = rows[::-1] if descending else rows
    for row, other in zip(got, in_sql, strict=True):
        frame_of = inside(ordered, row, frame)
        values = [one["x"] for one in frame_of if one["y"] == 1]
        known = [value for value in values if value is not None]
        every = [one["x"] > 1 for one in frame_of if one["x"] is not None]
        wanted = {
            "first": values[0] if values else None,
            "last": values[-1] if values else None,
            "second": values[1] if len(values) > 1 else None,
            "last_but_one": values[-2] if len(values) > 1 else None,
            "any": any(value > 3 for value in known) if known else None,
            "all": all(every) if every else None,
        }
        assert {name: row[name] for name in wanted} == wanted, row
        assert {name: other[name] for name in wanted} == wanted, other
        assert other["known"] == (known[0] if known else None), other


def test_the_last_value_that_there_is() -> None:
    """Known as forward fill elsewhere."""
    rows, x = table(), tm.col("x")
    got = found(rows, filled=x.last(where=x.is_not_null()).over("k", order_by="i"))
    known: dict[str, Any] = {}
    for row in got:
        known[row["k"]] = known.get(row["k"]) if row["x"] is None else row["x"]
        assert row["filled"] == known[row["k"]]


@pytest.mark.parametrize("descending", [False, True, [True, False, False], [False, True, True]])
@pytest.mark.parametrize("nulls_last", [True, False, [True, False, True]])
def test_directions_of_each_column(descending: bool | list[bool], nulls_last: bool | list[bool]) -> None:
    """An order of several columns has a direction and a place for nulls for each; in sorts, too."""
    rows, keys = table(), ["x", "y", "i"]
    place = tm.functions.row_number().over(order_by=keys, descending=descending, nulls_last=nulls_last)
    falls = [descending] * 3 if isinstance(descending, bool) else descending
    last = [nulls_last] * 3 if isinstance(nulls_last, bool) else nulls_last

    def key(row: Row) -> list[tuple[bool, int]]:
        return [
            ((row[name] is None) == end, 0 if row[name] is None else -row[name] if fall else row[name])
            for name, fall, end in zip(keys, falls, last, strict=True)
        ]

    wanted = [row["i"] for row in sorted(rows, key=key)]
    got = found(rows, place=place)
    assert [row["i"] for row in sorted(got, key=lambda row: row["place"])] == wanted
    assert data_of(rows).sort(keys, descending=descending, nulls_last=nulls_last).to_dict()["i"] == wanted


def test_what_is_wrong_with_them_is_said() -> None:
    x = tm.col("x")
    for call, said in [
        (lambda: tm.functions.ntile(0), "ntile needs at least one part, not 0"),
        (lambda: tm.functions.ntile(2.0), "ntile needs at least one part, not 2.0"),  # type: ignore[arg-type]
        (lambda: x.nth_value(0), "nth_value: rows are counted from 1, or -1 from the end, not 0"),
    ]:
        with pytest.raises(tm.DataSetError, match=said):
            call()
    sliding = tm.functions.aggregate("approx_distinct", x).over("k", order_by="i", rows=(-2, 0))
    with pytest.raises(
        tm.DataSetError, match=r"approx_distinct of a frame whose start moves .*rows=\(None, 0\), or .*: to_list"
    ):
        data_of(table()).with_columns(n=sliding).explain()
    for function in ("row_number()", "lag(x)"):
        query = f"select {function} filter (where y = 1) over (order by i) from t"
        with pytest.raises(tm.DataSetError, match=rf"{function[:3]}.* does not support FILTER .*filter the rows first"):
            tm.sql(query, t=data_of(table()))
    with pytest.raises(tm.DataSetError, match="nth_value takes a constant row number"):
        tm.sql("select nth_value(x, y) filter (where y = 1) over (order by i) from t", t=data_of(table())).collect()
    with pytest.raises(ValueError, match="nulls_last has 1 values for 2 columns"):
        x.sum().over(order_by=["x", "y"], nulls_last=[True])
    with pytest.raises(ValueError, match="descending has 3 values for 2 columns"):
        x.sum().over(order_by=["x", "y"], descending=[True, False, True])


def random_column(dice: random.Random, values: list[Any], count: int) -> list[Any]:
    """Return values of which one in eight is null."""
    return [None if dice.random() < 1 / 8 else dice.choice(values) for _ in range(count)]


@pytest.mark.parametrize("round", range(3))
def test_random_windows_are_those_of_duckdb(round: int) -> None:
    """Ranks, values of other rows and running aggregates, over keys and orders of all types with ties, nulls, NaNs and
    both zeros.
    """
    duckdb = pytest.importorskip("duckdb", reason="the answers to compare with are DuckDB's")
    dice = seeds.dice(round)
    count = dice.choice([1, 50, 3000, 20_000])
    floats = [-0.0, 0.0, 1.5, -2.0, 1e300, float("inf"), float("-inf"), float("nan")]
    columns = {
        "i": pa.array(dice.sample(range(count), count)),
        "k": pa.array(random_column(dice, [*range(dice.choice([2, 40, count]))], count), pa.int32()),
        "s": pa.array(
            random_column(dice, ["", "a", "b", "a text that is longer", "a text that is longer still"], count),
            pa.string(),
        ),
        "f": pa.array(random_column(dice, floats, count), pa.float64()),
        "w": pa.array(random_column(dice, [*range(-9, 9), 1 << 40], count), pa.int64()),
        "d": pa.array(random_column(dice, [Decimal(n) / 4 for n in range(-8, 8)], count), pa.decimal128(12, 2)),
        "t": pa.array(random_column(dice, [*range(20)], count), pa.timestamp("us")),
        "b": pa.array(random_column(dice, [True, False], count), pa.bool_()),
    }
    t = pa.table(columns)
    data, database = tm.from_arrow(t), duckdb.connect()
    some, names = dice.sample, list(columns)[1:]
    for _ in range(6):
        keys = some(names, dice.randint(0, 2))
        by = [f"{c} {dice.choice(['asc', 'desc'])} nulls {dice.choice(['first', 'last'])}" for c in some(names, 2)]
        part, order = f"partition by {', '.join(keys)}" if keys else "", ", ".join(by)
        rows = f"({part} order by {order}, i {dice.choice(['', 'desc'])} rows unbounded preceding)"
        peers = f"({part} order by {order})"
        one, other = dice.choice(names), dice.choice(names)
        calls = [f"{call} over {rows}" for call in ("row_number()", f"lag({one})", f"lead({other}, 3)", "lag(w, 2, 7)")]
        calls += [
            f"{call} over {dice.choice([rows, peers])}" for call in (f"count({one})", "sum(w)", "sum(d)", "count(*)")
        ]
        calls += [
            f"{call} over {dice.choice([rows, peers])}" for call in (f"min({other})", f"max({one})", "max(f)", "min(f)")
        ]
        calls += [f"{call} over {peers}" for call in ("rank()", "dense_rank()")]
        query = "select i, " + ", ".join(f"{call} as c{at}" for at, call in enumerate(calls)) + " from t order by i"
        got, wanted = tm.sql(query, t=data).to_arrow(), database.sql(query).to_arrow_table()
        for at, call in enumerate(calls):
            # DuckDB's sums have more digits.
            mine, theirs = (side.column(f"c{at}").to_pylist() for side in (got, wanted))
            assert [*map(repr_of, mine)] == [*map(repr_of, theirs)], (
                f"seed {seeds.SEED}, round {round}: {call} of {query}"
            )


def repr_of(value: Any) -> Any:
    """Return one value for all NaNs, and for both zeros."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    return value


SEVERAL = """
import tidemill as tm

job, x = tm.init(), tm.col("x")
data = tm.from_dict({"i": list(range(20_000))}).with_columns(k=tm.col("i") % 7, x=tm.col("i") * 31 % 1009)
exprs = dict(
    percent=tm.functions.percent_rank().over("k", order_by=["x", "i"]),
    cume=tm.functions.cume_dist().over("k", order_by=["x", "i"], descending=[True, False]),
    part=tm.functions.ntile(10).over("k", order_by=["x", "i"]),
    quarter=tm.functions.ntile(4).over(order_by=["x", "i"]),
    first=x.first().over("k", order_by="i", rows=(-5, -1)),
    third=x.nth_value(3).over("k", order_by="i", rows=(-5, 0)),
    even=x.last(where=x % 2 == 0).over("k", order_by="i", rows=(-3, 1)),
)
got = data.with_columns(**exprs).sort("i").collect(root=0).to_dict()
if job.rank == 0:
    print(repr([sum(value or 0 for value in got[name]) for name in exprs]))
"""


def test_several_workers() -> None:
    said = [standing.run_program(SEVERAL, workers=size)[0] for size in (1, 3)]
    assert said[0] == said[1] != ""
