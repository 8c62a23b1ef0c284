"""Expressions, each compared with Python."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import zoneinfo
from typing import Any

import pytest
import tidemill as tm


def evaluate(expr: tm.Expr, **columns: list[Any]) -> list[Any]:
    return tm.from_dict(columns).select(result=expr).to_dict()["result"]


x, y, s = tm.col("x"), tm.col("y"), tm.col("s")


def test_arithmetic_is_pythons() -> None:
    a, b = [7, -7, 7, -7, None], [2, 2, -2, -2, 1]
    pairs = list(zip(a, b, strict=True))
    for name, expr, python in [
        ("+", x + y, lambda p, q: p + q),
        ("-", x - y, lambda p, q: p - q),
        ("*", x * y, lambda p, q: p * q),
        ("/", x / y, lambda p, q: p / q),
        ("//", x // y, lambda p, q: p // q),
        ("%", x % y, lambda p, q: p % q),
        ("**", x**2, lambda p, q: p**2),
        ("neg", -x, lambda p, q: -p),
        ("abs", x.abs(), lambda p, q: abs(p)),
        ("abs()", abs(x), lambda p, q: abs(p)),
        ("pos", +x, lambda p, q: +p),
        ("r**", 2 ** abs(x), lambda p, q: 2 ** abs(p)),
        ("round", round(x / 4, 1), lambda p, q: math.copysign(1.8, p)),
        ("round()", round(x / 4), lambda p, q: math.copysign(2, p)),
        ("r-", 10 - x, lambda p, q: 10 - p),
        ("r/", 10 / x, lambda p, q: 10 / p),
        ("r//", 10 // x, lambda p, q: 10 // p),
        ("r%", 10 % x, lambda p, q: 10 % p),
    ]:
        assert evaluate(expr, x=a, y=b) == [None if p is None else python(p, q) for p, q in pairs], name


def test_division_at_the_end_of_a_type() -> None:
    """Results that fit are computed, whatever the intermediate values; others are errors, never wrong numbers."""
    least, most = -(2**63), 2**63 - 1
    a = [most, most, least, least, least + 1, most, least, None]
    b = [most, 5, 5, most, 7, -most, least, 3]
    for expr, python in [(x // y, lambda p, q: p // q), (x % y, lambda p, q: p % q)]:
        expected = [None if p is None else python(p, q) for p, q in zip(a, b, strict=True)]
        assert evaluate(expr, x=a, y=b) == expected
    with pytest.raises(tm.DataSetError, match="verflow"):
        evaluate(x // y, x=[least], y=[-1])
    assert evaluate(x % 7, x=[255, 6]) == [3, 6]
    for kind in ["int32", "int64", "uint8", "uint64", "float32", "float64"]:
        typed = tm.from_dict({"x": [7]}).select(x.cast(kind))
        assert set(typed.select(q=x // x, r=x % x).schema.values()) == set(typed.schema.values()), kind
    narrow = x.cast("uint8")
    assert evaluate(narrow // tm.lit(200).cast("uint8"), x=[255, 100]) == [1, 0]
    assert evaluate(narrow % tm.lit(200).cast("uint8"), x=[255, 100]) == [55, 100]
    for p in [5.5, -5.5, 0.0, math.inf]:
        for q in [math.inf, -math.inf, 2.0, -2.0]:
            remainder = math.nan if math.isinf(p) else p % q
            found = evaluate(x % y, x=[p], y=[q])
            assert found == [remainder] or (math.isnan(remainder) and math.isnan(found[0])), (p, q, found)
            if not math.isinf(p):
                assert evaluate(x // y, x=[p], y=[q]) == [p // q], (p, q)
    price = [decimal.Decimal("7.25"), decimal.Decimal("-7.25")]
    assert evaluate(x % 2, x=price) == [decimal.Decimal("1.25"), decimal.Decimal("0.75")]


LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        (
            x + 1,
            r"x \+ 1 is beyond the range of Int64 \(9223372036854775807 \+ 1\); cast one of the two to float64 or decimal\(38, 0\)",
        ),
        (-2 - x, r"-2 - x is beyond the range of Int64"),
        (x * y, r"x \* y is beyond the range of Int64"),
        ((x - 1) * y, r"\(x - 1\) \* y is beyond the range of Int64"),
        (-y, r"-y is beyond the range of Int64 .*; cast it to float64"),
        (y.abs(), r"verflow on abs\(-9223372036854775808\)"),
        (x.cast("uint64") - tm.lit(2**63).cast("uint64"), r"beyond the range of UInt64"),
        (
            x.cast("decimal(38, 0)") * x.cast("decimal(38, 0)") * x.cast("decimal(38, 0)"),
            r"beyond the range of Decimal128",
        ),
    ],
)
def test_arithmetic_beyond_a_type_is_an_error(expr: tm.Expr, said: str) -> None:
    """It wrapped around silently."""
    data = tm.from_dict({"x": [1, MOST], "y": [1, LEAST]})
    with pytest.raises(tm.DataSetError, match=said):
        data.select(result=expr).collect()
    assert data.limit(1).select(expr.alias("result")).columns == ["result"]


def test_arithmetic_of_small_types() -> None:
    data = tm.from_dict({"x": [100, None], "y": [27, 5]}, schema={"x": "int8", "y": "int8"})
    assert data.select(r=x + y).to_dict() == {"r": [127, None]}
    with pytest.raises(tm.DataSetError, match=r"x \+ x is beyond the range of Int8 .* to int64 first"):
        data.select(r=x + x).collect()
    assert data.select(r=x.cast("int64") + x).to_dict() == {"r": [200, None]}
    # Branches that are not chosen are not computed, nor values under nulls.
    assert data.select(r=tm.when(x < 0).then(x + x).otherwise(y)).to_dict() == {"r": [27, 5]}


def test_arithmetic_beyond_a_type_in_sql() -> None:
    data = tm.from_dict({"x": [MOST, 1], "k": [1, 2]})
    for query in [
        "select x + 1 from t",
        "select k from t where x * 2 > 4",
        "select x + 1 as y, count(*) from t group by x + 1",
        "select k from t order by x * 2",
        "select k from t where k in (select x + 1 from t)",
        "select -(x + 1) from t",
        "select sum(x + 1) from t",
        "select a.k from t a join t b on a.x + 1 = b.x",
    ]:
        with pytest.raises(tm.DataSetError, match="is beyond the range of Int64"):
            tm.sql(query, t=data).collect()
    # Columns keep their names.
    assert tm.sql("select k + 1, -k, sum(k * 2) from t group by k", t=data).columns == [
        "t.k + Int64(1)",
        "(- t.k)",
        "sum(t.k * Int64(2))",
    ]


def test_floats() -> None:
    values = [0.5, 2.25, 9.0]
    assert evaluate(x.sqrt(), x=values) == [math.sqrt(v) for v in values]
    assert evaluate(x.log(), x=values) == pytest.approx([math.log(v) for v in values])
    assert evaluate(x.log(2), x=values) == pytest.approx([math.log2(v) for v in values])
    assert evaluate(x.exp(), x=values) == pytest.approx([math.exp(v) for v in values])
    assert evaluate(x.floor(), x=[1.5, -1.5]) == [1.0, -2.0]
    assert evaluate(x.ceil(), x=[1.5, -1.5]) == [2.0, -1.0]
    assert evaluate(x.round(1), x=[1.26]) == [1.3]
    assert evaluate(x / 0, x=[1.0]) == [math.inf]
    assert evaluate(x.is_nan(), x=[math.nan, 1.0]) == [True, False]


def test_comparisons_and_logic() -> None:
    a, b = [1, 2, None], [1, 3, None]
    assert evaluate(x == y, x=a, y=b) == [True, False, None]
    assert evaluate(x != y, x=a, y=b) == [False, True, None]
    assert evaluate((x < y) | (x >= 1), x=a, y=b) == [True, True, None]
    assert evaluate(~(x <= y) & (x > 0), x=a, y=b) == [False, False, None]
    assert evaluate((x >= 2) ^ (y > 0), x=a, y=b) == [True, False, None]
    assert evaluate(True ^ (x >= 2), x=a) == [True, False, None]
    assert evaluate(x.eq_missing(y), x=a, y=b) == [True, False, True]
    assert evaluate(x.is_null(), x=a) == [False, False, True]
    assert evaluate(x.is_not_null(), x=a) == [True, True, False]
    assert evaluate(x.fill_null(0), x=a) == [1, 2, 0]
    assert evaluate(x.is_in([2, 5]), x=a) == [False, True, None]
    assert evaluate(x.between(2, 3), x=a) == [False, True, None]
    assert evaluate(x > 1, x=a) == [False, True, None]


def test_choices() -> None:
    sign = tm.when(x > 0).then("plus").when(x < 0).then("minus")
    assert evaluate(sign.otherwise("zero"), x=[1, -1, 0, None]) == ["plus", "minus", "zero", "zero"]
    assert evaluate(sign, x=[1, 0]) == ["plus", None]
    assert evaluate(tm.coalesce("x", "y", tm.lit(9)), x=[1, None, None], y=[None, 2, None]) == [1, 2, 9]


def test_names() -> None:
    data = tm.from_dict({"a": [1], "b": [2]})
    assert data.select(tm.col("a") + tm.col("b")).columns == ["a"]
    assert data.select((tm.col("a") + 1).alias("c")).columns == ["c"]
    assert data.select(1 + tm.col("b")).columns == ["b"]
    assert data.select(tm.when(tm.col("a") > 0).then(tm.col("b"))).columns == ["b"]
    assert data.select(tm.lit(1)).columns == ["literal"]
    odd = tm.from_dict({"Odd name.x": [1]})
    assert odd.select(tm.col("Odd name.x") + 1).to_dict() == {"Odd name.x": [2]}


LITERALS = [
    True,
    -5,
    2**63 + 1,
    2.5,
    "täxt",
    b"\x00\xff",
    dt.date(1969, 12, 31),
    dt.datetime(1966, 2, 3, 4, 5, 6, 789),
    dt.datetime(2024, 7, 1, 12, 0, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    dt.timedelta(days=-1, microseconds=5),
    decimal.Decimal("-123.450"),
]


@pytest.mark.parametrize("value", LITERALS, ids=str)
def test_values_come_back_as_they_went_in(value: object) -> None:
    assert evaluate(tm.lit(value), x=[0]) == [value]
    assert tm.from_dict({"v": [value, None]}).to_dict() == {"v": [value, None]}


def test_decimals_keep_all_digits() -> None:
    values = [decimal.Decimal(text) for text in ("1.5", "22.125", "-1E+3")]
    assert tm.from_dict({"v": values}).to_dict()["v"] == values


def test_casts() -> None:
    assert evaluate(s.cast("int64"), s=["1", None]) == [1, None]
    assert evaluate(s.cast("int64", strict=False), s=["1", "one"]) == [1, None]
    assert evaluate(x.cast("str"), x=[1]) == ["1"]
    assert evaluate(x.cast("float32"), x=[1]) == [1.0]
    assert evaluate(s.cast("date"), s=["2024-02-29"]) == [dt.date(2024, 2, 29)]
    assert evaluate(x.cast("decimal(10, 2)"), x=[1.5]) == [decimal.Decimal("1.50")]


def test_strings() -> None:
    texts = ["Hello World", " tab\t", "äöü", None]

    def check(expr: tm.Expr, python: Any) -> None:
        assert evaluate(expr, s=texts) == [None if text is None else python(text) for text in texts]

    check(s.str.upper(), str.upper)
    check(s.str.lower(), str.lower)
    check(s.str.strip(), str.strip)
    check(s.str.lstrip(" H"), lambda text: text.lstrip(" H"))
    check(s.str.rstrip(), str.rstrip)
    check(s.str.len(), len)
    check(s.str.len_bytes(), lambda text: len(text.encode()))
    check(s.str.contains("o W"), lambda text: "o W" in text)
    check(s.str.starts_with("H"), lambda text: text.startswith("H"))
    check(s.str.ends_with("d"), lambda text: text.endswith("d"))
    check(s.str.like("H%o_%"), lambda text: text == "Hello World")
    check(s.str.like("hello%", ignore_case=True), lambda text: text == "Hello World")
    check(s.str.match(r"^\w+ \w+$"), lambda text: text == "Hello World")
    check(s.str.count_matches("o"), lambda text: text.count("o"))
    check(s.str.replace("l", "L"), lambda text: text.replace("l", "L"))
    check(s.str.replace_match("[aeiou]", "."), lambda text: "".join("." if c in "aeiou" else c for c in text))
    check(s.str.slice(2), lambda text: text[2:])
    check(s.str.slice(1, 2), lambda text: text[1:3])
    check(s.str.split(" "), lambda text: text.split(" "))
    check(s.str.split_part(" ", 0), lambda text: text.split(" ")[0])
    check(s.str.split_part(" ", -1), lambda text: text.split(" ")[-1])
    check(s.str.find("o"), lambda text: text.find("o"))
    check(s.str.pad_start(12, "*"), lambda text: text.rjust(12, "*"))
    check(s.str.pad_end(12), lambda text: text.ljust(12))
    check(s.str.reverse(), lambda text: text[::-1])
    for pattern, new in ((r"(\w)o", r"\1_"), ("o", "$1"), ("o", r"\\"), ("o", "$"), (r"(o)", r"<\1$\1>")):
        check(s.str.replace_match(pattern, new), lambda text, pattern=pattern, new=new: re.sub(pattern, new, text))
    check(s.str.replace("", "$1-"), lambda text: text.replace("", "$1-"))
    check(s + "!", lambda text: text + "!")
    check(s + tm.col("s").str.upper(), lambda text: text + text.upper())
    assert evaluate(tm.concat_str("s", "x", separator="-"), s=["a", None], x=[1, 2]) == ["a-1", "2"]


def test_dates_and_times() -> None:
    days = [dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(2023, 1, 1), None]
    times = [None if day is None else dt.datetime(day.year, day.month, day.day, 13, 14, 15, 250_000) for day in days]

    def check(expr: tm.Expr, python: Any, values: list[Any]) -> None:
        assert evaluate(expr, t=values) == [None if value is None else python(value) for value in values]

    t = tm.col("t").dt
    for values in (days, times):
        check(t.year(), lambda v: v.year, values)
        check(t.quarter(), lambda v: (v.month + 2) // 3, values)
        check(t.month(), lambda v: v.month, values)
        check(t.week(), lambda v: v.isocalendar().week, values)
        check(t.day(), lambda v: v.day, values)
        check(t.weekday(), lambda v: v.weekday(), values)
        check(t.ordinal_day(), lambda v: v.timetuple().tm_yday, values)
        check(t.format("%Y/%m"), lambda v: v.strftime("%Y/%m"), values)
    check(t.hour(), lambda v: v.hour, times)
    check(t.minute(), lambda v: v.minute, times)
    check(t.second(), lambda v: v.second, times)
    check(t.date(), lambda v: v.date(), times)
    check(t.epoch(), lambda v: v.replace(tzinfo=dt.timezone.utc).timestamp(), times)
    check(t.truncate("hour"), lambda v: v.replace(minute=0, second=0, microsecond=0), times)
    check(tm.col("t") + dt.timedelta(hours=1), lambda v: v + dt.timedelta(hours=1), times)
    check(tm.col("t") > dt.datetime(2000, 1, 1), lambda v: v > dt.datetime(2000, 1, 1), times)
    assert evaluate(s.str.to_date("%d.%m.%Y"), s=["29.02.2024"]) == [dt.date(2024, 2, 29)]
    assert evaluate(s.str.to_datetime(), s=["2024-02-29T01:02:03"]) == [dt.datetime(2024, 2, 29, 1, 2, 3)]


def test_durations_are_pythons() -> None:
    d, u = tm.col("d"), tm.col("u")
    dates = [dt.date(2024, 2, 28), dt.date(1, 1, 3), dt.date(9999, 12, 29), dt.date(1969, 12, 31)]
    by = [dt.timedelta(days=2, hours=23), dt.timedelta(hours=-1), dt.timedelta(days=2), dt.timedelta(microseconds=1)]
    for expr, python in (
        (d + u, lambda p, q: p + q),
        (u + d, lambda p, q: q + p),
        (d - u, lambda p, q: p - q),
        (d + dt.timedelta(days=1, hours=12), lambda p, q: p + dt.timedelta(days=1, hours=12)),
        (-u, lambda p, q: -q),
        (u * 3, lambda p, q: q * 3),
        (3 * u, lambda p, q: 3 * q),
        (u * 0.3, lambda p, q: q * 0.3),
        (u / 7, lambda p, q: q / 7),
        (u / dt.timedelta(hours=1), lambda p, q: q / dt.timedelta(hours=1)),
        (dt.timedelta(hours=1) / u, lambda p, q: dt.timedelta(hours=1) / q),
        (-u * 2 + u, lambda p, q: -q),
    ):
        pairs = zip(dates, by, strict=True)
        assert evaluate(expr, d=dates, u=by) == [python(p, q) for p, q in pairs], expr
    table = tm.from_dict({"d": dates[:2], "u": by[:2], "g": [1, 1]})
    assert table.filter(d + u > dt.date(2000, 1, 1)).count() == 1
    assert table.sort(-u).to_dict()["u"] == by[:2]
    total = by[0] + by[1]
    assert table.group_by("g").agg((u.sum() / 2).alias("half")).to_dict() == {"g": [1], "half": [total / 2]}
    other = tm.from_dict({"g": [1], "e": [dt.date(2024, 3, 1)], "v": [dt.timedelta(days=1)]})
    where = d + u < tm.col("e") + 2 * tm.col("v") - dt.timedelta(days=2)
    assert table.join(other, on="g", where=where).to_dict()["d"] == dates[1:2]
    assert table.join(other, on="g", how="anti", where=where).to_dict()["d"] == dates[:1]
    assert table.join(other, how="cross", where=tm.col("v") * 2 < u).to_dict()["d"] == dates[:1]
    # The program asked for numbers, which must not be treated as durations.
    assert table.select(x=u.cast("int64").cast("float64") / 2).to_dict()["x"][0] == by[0] / dt.timedelta(microseconds=2)


def test_durations_of_sql_are_pythons() -> None:
    dates = [dt.date(2024, 2, 28), dt.date(1, 1, 3), dt.date(9999, 12, 29), dt.date(1969, 12, 31)]
    by = [dt.timedelta(days=2, hours=23), dt.timedelta(hours=-1), dt.timedelta(days=2), dt.timedelta(microseconds=1)]
    table = tm.from_dict({"d": dates, "u": by})
    for expr, python in (
        ("d + u", lambda p, q: p + q),
        ("u + d", lambda p, q: q + p),
        ("d - u", lambda p, q: p - q),
        ("d + u - u * 2", lambda p, q: p + q - q * 2),
        ("u * 3", lambda p, q: q * 3),
        ("3 * u", lambda p, q: 3 * q),
        ("u * 0.3", lambda p, q: q * 0.3),
        ("u / 7", lambda p, q: q / 7),
        ("u / (u + u)", lambda p, q: q / (q + q)),
        ("-u", lambda p, q: -q),
        ("d - -u + -(u * 2)", lambda p, q: p - -q + -(q * 2)),
    ):
        pairs = zip(dates, by, strict=True)
        assert tm.sql(f"select {expr} as x from t", t=table).to_dict()["x"] == [python(p, q) for p, q in pairs], expr
    assert tm.sql("select d from t where d + u > date '2000-01-01' and u / 2 > u * 0", t=table).count() == 2
    days = tm.sql(
        "select d + u as day, count(*) as n from t group by d + u having max(u * 2) > min(u) order by d + u", t=table
    )
    assert days.to_dict()["day"] == sorted(p + q for p, q in zip(dates, by, strict=True) if 2 * q > q)
    assert tm.sql("select d + u, 1 + 1 from t", t=table).columns[0] == "t.d + t.u"
    assert tm.sql("select min(-u) from t group by -u having max(-u) > min(u) order by -u", t=table).count() == 1
    assert tm.sql("select d from t where -u > (select min(u) from t)", t=table).count() == 2
    numbers = tm.from_dict({"x": [1.5, 0.0], "n": [1, 2]})
    made = tm.sql("select -x, -(n), -1 from t where -n < 0 order by -x limit 5", t=numbers)
    assert made.columns == ["(- t.x)", "(- t.n)", "Int64(-1)"] and str(made.to_dict()["(- t.x)"]) == "[-1.5, -0.0]"
    for wrong, of in (("arrow_cast(n, 'UInt8')", "UInt8"), ("'a' || n", "Utf8")):
        with pytest.raises(tm.DataSetError, match=f"there is no minus of {of}.*, only of signed numbers, durations"):
            tm.sql(f"select -({wrong}) from t", t=numbers)
    pairs = tm.sql("select a.d from t a join t b on a.d + a.u < b.d - b.u", t=table)
    assert pairs.count() == sum(
        p + q < r - s for p, q in zip(dates, by, strict=True) for r, s in zip(dates, by, strict=True)
    )


def test_aggregates_where_rows_have_values_of_their_own() -> None:
    data = tm.from_dict({"k": [1, 2], "x": [1.0, 2.0]})
    for step in (
        lambda: data.filter(x > x.mean()),
        lambda: data.sort(x.sum()),
        lambda: data.repartition(2, x.sum()),
        lambda: data.with_columns(z=x.sum()),
        lambda: data.join(data.select("k", z="x"), on="k", where=x.sum() > tm.col("z")),
    ):
        with pytest.raises(tm.DataSetError, match=r"\(x\) has one value for many rows; give it a window with over\(\)"):
            step()
    assert data.filter(x > x.mean().over()).to_dict()["k"] == [2]


def test_texts_of_times() -> None:
    """Fractions of a second are read and written as in Python: up to six digits, the first of which is tenths."""
    for text, form in (
        ("2020-02-29 01:02:03.5", "%Y-%m-%d %H:%M:%S.%f"),
        ("2020-02-29 01:02:03,000001", "%Y-%m-%d %H:%M:%S,%f"),
        ("31/12/9999", "%d/%m/%Y"),
        ("Feb 2024", "%b %Y"),
    ):
        assert evaluate(s.str.to_datetime(form), s=[text, None]) == [dt.datetime.strptime(text, form), None]
    utc = dt.datetime(2020, 1, 1, 22, 30)
    assert evaluate(s.str.to_datetime("%Y-%m-%dT%H:%M%z"), s=["2020-01-02T00:30+02:00"]) == [utc]
    for text, why in (
        ("2020-02-30", "out of range"),
        ("2020-02", "premature end of input"),
        ("2020-02-03x", '"x" is left over'),
    ):
        with pytest.raises(tm.DataSetError, match=why):
            evaluate(s.str.to_datetime("%Y-%m-%d"), s=[text])
    with pytest.raises(tm.DataSetError, match='"%Q" is not a valid format'):
        evaluate(s.str.to_datetime("%Q"), s=["1"])
    assert evaluate(s.str.to_datetime("%Y-%m-%dT%H:%M%z"), s=["2020-01-02T00:30Z"]) == [dt.datetime(2020, 1, 2, 0, 30)]
    for wrong in ("%Q", "%Y-%"):
        with pytest.raises(tm.DataSetError, match="is not a valid format for strftime"):
            x.dt.format(wrong)
    for year, century in (("24", 2024), ("68", 2068), ("69", 1969), ("99", 1999)):
        assert evaluate(s.str.to_datetime("%d.%m.%y"), s=[f"2.1.{year}"]) == [dt.datetime(century, 1, 2)]
    for text, why in ((" 2020-01-01 01:02:03", "begins with a blank"), ("2024-06-30 23:59:60", "second 59")):
        with pytest.raises(tm.DataSetError, match=why):
            evaluate(s.str.to_datetime("%Y-%m-%d %H:%M:%S"), s=[text])
    time = dt.datetime(2020, 1, 1, 1, 2, 3, 500_000)
    assert evaluate(x.dt.format("%S.%f %%f"), x=[time]) == [time.strftime("%S.%f %%f")]


def test_texts_that_are_times_of_several_formats() -> None:
    """The first format that matches is used; if none does, the result is null, or an error that names the text, in SQL,
    too.
    """
    texts, forms = ["31.12.2024", "2024-12-30", "29/12/24", "soon", None], ("%d.%m.%Y", "%Y-%m-%d", "%d/%m/%y")
    days = [dt.date(2024, 12, 31), dt.date(2024, 12, 30), dt.date(2024, 12, 29), None, None]
    assert evaluate(s.str.to_date(*forms, strict=False), s=texts) == days
    times = [day and dt.datetime(day.year, day.month, day.day) for day in days]
    assert evaluate(s.str.to_datetime(*forms, strict=False), s=texts) == times
    assert evaluate(s.str.to_date(strict=False), s=["2024-02-29", "29.2.2024", None]) == [
        dt.date(2024, 2, 29),
        None,
        None,
    ]
    assert evaluate(s.str.to_datetime(strict=False), s=["2024-02-29T01:00:00", "x"]) == [
        dt.datetime(2024, 2, 29, 1),
        None,
    ]
    with pytest.raises(
        tm.DataSetError, match=r'"soon" does not match any of the formats "%d.%m.%Y", "%Y-%m-%d", "%d/%m/%y"'
    ):
        evaluate(s.str.to_date(*forms), s=texts)
    table = tm.from_dict({"s": texts})
    assert tm.sql("select try_strptime(s, '%d.%m.%Y', '%Y-%m-%d') as t from t", t=table).to_dict()["t"] == [
        *times[:2],
        None,
        None,
        None,
    ]
    with pytest.raises(tm.DataSetError, match="strptime takes strings, not Int64"):
        evaluate(x.str.to_datetime("%Y"), x=[1])
    with pytest.raises(TypeError, match="a format must be a string"):
        s.str.to_datetime(["%Y"])  # type: ignore[arg-type]


def test_dates_without_an_end() -> None:
    """Dates such as 9999-12-31 mean "forever" in many tables; the range of nanoseconds, which ends in 2262, must not
    limit them.
    """
    last, first = dt.date(9999, 12, 31), dt.date(1, 1, 1)
    days = [last, dt.date(1600, 2, 29), first, None]
    times = [None if day is None else dt.datetime(day.year, day.month, day.day, 13, 14, 15) for day in days]
    for unit, begin in (
        ("year", {"month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0}),
        ("month", {"day": 1, "hour": 0, "minute": 0, "second": 0}),
        ("day", {"hour": 0, "minute": 0, "second": 0}),
        ("hour", {"minute": 0, "second": 0}),
        ("minute", {"second": 0}),
    ):
        assert evaluate(x.dt.truncate(unit), x=times) == [value and value.replace(**begin) for value in times]
        midnights = [day and dt.datetime(day.year, day.month, day.day).replace(**begin) for day in days]
        assert evaluate(x.dt.truncate(unit), x=days) == midnights
    assert evaluate(x.dt.truncate("quarter"), x=times[:2]) == [dt.datetime(9999, 10, 1), dt.datetime(1600, 1, 1)]
    monday = last - dt.timedelta(days=last.weekday())
    assert evaluate(x.dt.truncate("week"), x=[last]) == [dt.datetime(9999, 12, monday.day)]
    noon = dt.datetime(2020, 1, 1, 12)
    assert evaluate(x > noon, x=days) == [True, False, False, None]
    assert evaluate(x == dt.datetime(9999, 12, 31), x=days) == [True, False, False, None]
    assert evaluate(x.is_in([dt.datetime(9999, 12, 31), noon]), x=days) == [True, False, False, None]
    assert evaluate(x.between(noon, dt.datetime(9999, 12, 31)), x=days) == [True, False, False, None]
    assert evaluate(x - noon, x=days[:1]) == [dt.datetime(9999, 12, 31) - noon]
    assert evaluate(s.str.to_datetime(), s=["9999-12-31", "0001-01-01"]) == [
        dt.datetime(9999, 12, 31),
        dt.datetime(1, 1, 1),
    ]
    table = tm.from_dict({"d": days, "t": times})
    assert tm.sql("select count(*) as n from t where d < t", t=table).to_dict() == {"n": [3]}
    assert tm.sql("select date_trunc('month', d) as m from t where d > '2020-01-01'", t=table).to_dict() == {
        "m": [dt.datetime(9999, 12, 1)]
    }


def test_clocks_that_are_put_back() -> None:
    """The hour that occurs twice has two different beginnings."""
    paris = zoneinfo.ZoneInfo("Europe/Paris")
    summer, winter = (dt.datetime(2020, 10, 25, hour, 30, tzinfo=dt.timezone.utc).astimezone(paris) for hour in (0, 1))
    hours = evaluate(x.dt.truncate("hour"), x=[summer, winter])
    assert [hour.astimezone(dt.timezone.utc).hour for hour in hours] == [0, 1]
    assert evaluate(x.dt.truncate("day"), x=[winter]) == [dt.datetime(2020, 10, 25, tzinfo=paris)]


def test_times_of_day() -> None:
    noon, late = dt.time(12), dt.time(23, 59, 59, 999_999)
    assert evaluate(x > noon, x=[noon, late, None]) == [False, True, None]
    assert evaluate(x.dt.truncate("minute"), x=[late]) == [dt.time(23, 59)]
    assert tm.from_dict({"x": [noon]}).schema == {"x": "Time64(µs)"}


def test_functions_of_wrong_types() -> None:
    """Functions are named as users write them, and the message does not ask for a bug report."""
    data = tm.from_dict({"s": ["a"]})
    for expr, name in ((s.sum(), "sum"), (s.mean(), "avg"), (s.std(), "stddev"), (s.median(), "median")):
        with pytest.raises(tm.DataSetError, match=f"^there is no {name} of Utf8; cast it"):
            data.select(r=expr).to_dict()
    with pytest.raises(tm.DataSetError, match=r"^explode turns lists into rows, and cannot take Utf8"):
        data.explode("s").to_dict()


def test_schemas_of_values_of_several_types() -> None:
    """A column has the type of its rows, even if it combines several types."""
    data = tm.from_dict({"x": [1, 3]})
    mixed = data.select(r=tm.when(x > 2).then(1).otherwise(2.5))
    both = data.union(tm.from_dict({"x": [2.5]}))
    query = tm.sql("select case when x > 2 then 1 else 2.5 end as r from t", t=data)
    for made in (mixed, both, query):
        assert list(made.schema.values()) == ["Float64"]
        assert made.to_arrow().schema.types == made.filter(tm.lit(False)).to_arrow().schema.types
    assert mixed.select(r=tm.col("r") // 2).schema == {"r": "Float64"}


def test_lists() -> None:
    values = [[3, 1, 3], [], None]
    assert evaluate(x.list.len(), x=values) == [3, 0, None]
    assert evaluate(x.list.get(0), x=values) == [3, None, None]
    assert evaluate(x.list.get(-1), x=values) == [3, None, None]
    assert evaluate(x.list.contains(1), x=values) == [True, False, None]
    assert evaluate(x.list.sort(), x=values) == [[1, 3, 3], [], None]
    assert [sorted(v) for v in evaluate(x.list.unique(), x=[[3, 1, 3]])] == [[1, 3]]
    assert evaluate(x.list.join("-"), x=[[3, 1]]) == ["3-1"]


def test_any_function_by_name() -> None:
    assert evaluate(tm.functions.scalar("greatest", x, 2), x=[1, 3]) == [2, 3]
    data = tm.from_dict({"x": [1.0, 2.0, 3.0], "y": [2.0, 4.0, 6.0]})
    assert data.select(r=tm.functions.aggregate("corr", x, y)).to_dict()["r"] == pytest.approx([1.0])


def test_fields_of_structs_that_a_step_below_makes() -> None:
    """Next to columns that pass through: each keeps its name."""
    made = tm.sql("select k, named_struct('end', k) as w from t", t=tm.from_dict({"k": [1]}))
    assert made.select("k", e=tm.col("w").field("end")).to_pylist() == [{"k": 1, "e": 1}]
    assert tm.sql("select k, w['end'] as e from made", made=made).to_pylist() == [{"k": 1, "e": 1}]


def test_products_that_are_to_wrap() -> None:
    a, b = [2**62 + 1, -3, None], [5, 2**63 - 1, 1]
    wrapped = [(p * q + 2**63) % 2**64 - 2**63 for p, q in zip(a[:2], b[:2], strict=True)]
    assert evaluate(tm.functions.scalar("wrapping_mul", x, y), x=a, y=b) == [*wrapped, None]


def test_deep_expressions_and_plans_work_or_are_refused() -> None:
    """Exceeding the stack would end the process, so depth is limited, far above what people write, and everything below
    works.
    """
    data = tm.from_dict({"a": list(range(10))})
    any_of = tm.col("a") == 0
    for number in range(1, 1900):
        any_of = any_of | (tm.col("a") == number)
    assert data.filter(any_of).count() == 10
    assert "1899" in repr(any_of)
    filtered, together = data, data
    for number in range(1500):
        filtered = filtered.filter(tm.col("a") != number + 10)
        together = together.union(data)
    assert filtered.count() == 10
    assert together.count() == 15_010
    with pytest.raises(tm.DataSetError, match="nests more than 2000 operations"):
        for number in range(200):
            any_of = any_of | (tm.col("a") == number)
    with pytest.raises(tm.DataSetError, match="more than 2000 nested steps"):
        for number in range(1000):
            filtered = filtered.filter(tm.col("a") != number)
    doubled = data
    with pytest.raises(tm.DataSetError, match="more than 200000 steps"):
        for _ in range(40):
            doubled = doubled.select("a").join(doubled.select("a"), on="a")
