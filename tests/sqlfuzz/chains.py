"""Random chains of DataSet methods, with the same steps on Python lists."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidemill as tm

from sqlfuzz.data import Table, dataset
from sqlfuzz.oracles import Failure, bag, told

Row = dict[str, Any]
COLUMNS = (("i", "int"), ("k", "int"), ("s", "str"), ("v", "float"))
SCHEMA = {"i": "int64", "k": "int64", "s": "str", "v": "float64"}
STEPS = [
    "filter",
    "filter_null",
    "with",
    "double",
    "swap",
    "sort_limit",
    "group",
    "join",
    "outer",
    "distinct",
    "union",
    "over",
    "order_over",
    "map",
    "flat_map",
    "filter_map",
    "repartition",
    "cache",
    "drop_nulls",
    "case",
]


@dataclass(frozen=True)
class Chain:
    """Steps, each with a number that it makes of what it likes, over two tables."""

    table: Table
    other: Table
    steps: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.table.source}: " + ", ".join(f"{name}({n})" for name, n in self.steps)


def chain(r: random.Random) -> Chain:
    """Draw one."""
    values = {"k": [None, 0, 1, 2, 3], "s": [None, "a", "b", "x'y"], "v": [None, 0.5, -1.25, 4.0, -0.0]}
    rows = tuple((i, *(r.choice(values[c]) for c in "ksv")) for i in range(r.choice([0, 1, 2, 7, 30])))
    other = tuple((w, r.choice([None, 0, 1, 2, 5])) for w in range(r.choice([0, 1, 3, 6])))
    sources = ["memory", "local", "chunks", "dictionary", "parquet", "csv", "json"]
    return Chain(
        Table("a", COLUMNS, rows, r.choice(sources)),
        Table("b", (("w", "int"), ("k", "int")), other, r.choice(["memory", "parquet", "local"])),
        tuple((r.choice(STEPS), r.randint(0, 3)) for _ in range(r.randint(1, 7))),
    )


def _key(row: Row, column: str) -> tuple[bool, Any]:
    value = row[column]
    return value is None, 0 if value is None else value


def _step(
    name: str, n: int, t: tm.DataSet, rows: list[Row], b: tm.DataSet, other: list[Row]
) -> tuple[tm.DataSet, list[Row]]:
    """One step of both."""
    col = tm.col
    plus = lambda q, by: {**q, "k": None if q["k"] is None else q["k"] + by}  # noqa: E731
    match name:
        case "filter":
            return t.filter(col("k") > n), [q for q in rows if q["k"] is not None and q["k"] > n]
        case "filter_null":
            return t.filter(col("s").is_null() | (col("v") >= 0)), [
                q for q in rows if q["s"] is None or (q["v"] is not None and q["v"] >= 0)
            ]
        case "with":
            return t.with_columns(k=col("k") + n), [plus(q, n) for q in rows]
        case "double":
            # The same step again and again, as in a loop.
            for _ in range(n):
                t = t.with_columns(v=col("v") * 2)
            return t, [{**q, "v": None if q["v"] is None else q["v"] * 2**n} for q in rows]
        case "swap":
            return t.select("s", "v", i=col("k").fill_null(n), k=col("i")), [
                {"s": q["s"], "v": q["v"], "i": n if q["k"] is None else q["k"], "k": q["i"]} for q in rows
            ]
        case "sort_limit":
            down, count = n % 2 == 1, [0, 1, 5, 20][n]
            t = t.sort("i", "k", "s", "v", descending=down).limit(count)
            # Nulls are last whichever way it goes.
            for c in "vski":
                rows = (
                    sorted(rows, key=lambda q, c=c: 0 if q[c] is None else q[c] if c != "s" else 0, reverse=down)
                    if c != "s"
                    else rows
                )
                if c == "s":
                    rows = sorted(rows, key=lambda q: q["s"] or "", reverse=down)
                rows = sorted(rows, key=lambda q, c=c: q[c] is None)
            return t, rows[:count]
        case "group":
            groups: dict[Any, list[Row]] = {}
            for q in rows:
                groups.setdefault(q["s"], []).append(q)
            t = t.group_by("s").agg(i=col("i").min(), k=col("k").sum(), v=col("v").max())

            def some(f, c, x):
                return f([q[c] for q in x if q[c] is not None] or [None]) if any(q[c] is not None for q in x) else None

            return t, [
                {"s": s, "i": some(min, "i", x), "k": some(sum, "k", x), "v": some(max, "v", x)}
                for s, x in groups.items()
            ]
        case "join" | "outer":
            how = ["inner", "left", "semi", "anti"][n] if name == "join" else ["right", "full", "right", "full"][n]
            match_ = lambda q: [z for z in other if q["k"] is not None and z["k"] == q["k"]]  # noqa: E731
            t = t.join(b, on="k", how=how)
            if how in ("semi", "anti"):
                return t, [q for q in rows if bool(match_(q)) == (how == "semi")]
            joined = [{**q, "w": z["w"]} for q in rows for z in match_(q)]
            if how in ("left", "full"):
                joined += [{**q, "w": None} for q in rows if not match_(q)]
            if how in ("right", "full"):
                met = {q["k"] for q in rows if q["k"] is not None}
                joined += [
                    {"i": None, "k": z["k"], "s": None, "v": None, "w": z["w"]} for z in other if z["k"] not in met
                ]
            t = t.with_columns(i=col("i").fill_null(0) * 7 + col("w").fill_null(50)).drop("w")
            joined = [{**q, "i": (q["i"] or 0) * 7 + (50 if q["w"] is None else q["w"])} for q in joined]
            return t, [{c: q[c] for c in "iksv"} for q in joined]
        case "distinct":
            t = t.with_columns(i=tm.lit(n).cast("int64")).distinct()
            seen = {(q["k"], q["s"], q["v"]) for q in rows}
            return t, [{"i": n, "k": k, "s": s, "v": v} for k, s, v in seen]
        case "union":
            return t.union(t.filter(col("k") < n)), rows + [q for q in rows if q["k"] is not None and q["k"] < n]
        case "over":
            sums: dict[Any, float] = {}
            for q in rows:
                sums[q["s"]] = sums.get(q["s"], 0.0) + (q["i"] or 0)
            t = t.with_columns(v=col("i").fill_null(0).cast("float64").sum().over("s"))
            return t, [{**q, "v": sums[q["s"]]} for q in rows]
        case "order_over":
            # Ranks: ties have the same one.
            t = t.with_columns(k=tm.functions.rank().over("s", order_by="i").cast("int64"))
            return t, [
                {**q, "k": 1 + sum(z["s"] == q["s"] and _key(z, "i") < _key(q, "i") for z in rows)} for q in rows
            ]
        case "map":
            return t.map(lambda q: plus(q, n), schema=SCHEMA), [plus(q, n) for q in rows]
        case "flat_map":
            made = lambda q: [q] * ((q["k"] or 0) % 3)  # noqa: E731
            return t.flat_map(made, schema=SCHEMA), [z for q in rows for z in made(q)]
        case "filter_map":
            good = lambda q: q["k"] is not None and q["k"] % 2 == n % 2  # noqa: E731
            return t.filter(good), [q for q in rows if good(q)]
        case "repartition":
            return t.repartition(1 + n), rows
        case "cache":
            return t.cache(), rows
        case "drop_nulls":
            return t.drop_nulls("k"), [q for q in rows if q["k"] is not None]
        case "case":
            t = t.with_columns(v=tm.when(col("v") > 0).then(col("v")).otherwise(tm.lit(None).cast("float64")))
            return t, [{**q, "v": q["v"] if q["v"] is not None and q["v"] > 0 else None} for q in rows]
    raise AssertionError(name)


def check_chain(c: Chain, folder: Path) -> Failure | None:
    """Run a chain, as it is and with a cache() after every step."""
    for cached in (False, True):
        rows = [dict(zip("iksv", r, strict=True)) for r in c.table.rows]
        other = [dict(zip("wk", r, strict=True)) for r in c.other.rows]
        said = f"{c}\n  rows:  {c.table.rows}\n  other: {c.other.rows}"
        oracle = "lists, with cache()" if cached else "lists"
        want: Counter[tuple[Any, ...]] = Counter()
        try:
            t, b = dataset(c.table, folder), dataset(c.other, folder)
            for name, n in c.steps:
                t, rows = _step(name, n, t, rows, b, other)
                if len(rows) > 3000:
                    return None
                t = t.cache() if cached else t
            want = bag([tuple(q[x] for x in "iksv") for q in rows])
            got = bag([tuple(q[x] for x in "iksv") for q in t.to_pylist()])
            count = t.count()
        except tm.DataSetError as error:
            return Failure(oracle, said, f"error {error}", told(want))
        if got != want:
            return Failure(oracle, said, told(got), told(want))
        if count != len(rows):
            return Failure(f"{oracle}, count()", said, str(count), str(len(rows)))
    return None


def shrink_chain(c: Chain, folder: Path) -> tuple[Chain, Failure]:
    """Leave out steps and rows while it fails the same way."""
    failure = check_chain(c, folder)
    assert failure is not None
    going = True
    while going:
        going = False
        trials = [Chain(c.table, c.other, c.steps[:j] + c.steps[j + 1 :]) for j in range(len(c.steps))]
        for j in range(len(c.table.rows)):
            trials.append(Chain(c.table.with_rows(c.table.rows[:j] + c.table.rows[j + 1 :]), c.other, c.steps))
        for j in range(len(c.other.rows)):
            trials.append(Chain(c.table, c.other.with_rows(c.other.rows[:j] + c.other.rows[j + 1 :]), c.steps))
        for trial in trials:
            found = check_chain(trial, folder)
            if found is not None and found.sort() == failure.sort():
                c, failure, going = trial, found, True
                break
    return c, failure
