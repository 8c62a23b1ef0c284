"""Cleaning: every rule against handmade cases, on one to four workers, from every kind of source, and bad input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import launched
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import standing
import tidemill as tm
from tidemill import series
from tidemill.series._read import find_columns, steps_or_dates
from tidemill.series._splits import Evidence, Split, adjust, detect, weigh

#: Each rule has its rows; the expected table is below.
ROWS = """\
date,ticker,close,volume,split
2024-01-02,BB,10,100,
2024-01-02,AA,-5.5,10,
2024-01-02,AA,7,10,
2024-01-02,CC,40,1,
2024-01-03,BB,,100,
2024-01-03,AA,0,10,
2024-01-03,CC,42,1,0
2024-01-04,BB,5,200,2
2024-01-04,BB,5,200,2
2024-01-04,AA,6,10,
2024-01-04,,6,10,
2024-01-04,CC,10.5,4,4
2024-01-05,CC,2.5,4,4
2024-01-05,BB,NaN,200,
"""
VALUES = {
    "AA": [5.5, None, 6.0, None],
    "BB": [5.0, None, 5.0, None],
    "CC": [40 / 16, 42 / 16, 10.5 / 4, 2.5],
}
COUNTS = {
    "unreadable": 0,
    "without_key": 1,
    "factors_differ": 0,
    "negative": 1,
    "missing": 3,
    "duplicates": 2,
    "duplicates_that_differ": 1,
    "splits": 3,
    "flat_splits": 0,
    "gaps": 2,
    "late": 0,
}


def table(panel: series.Panel) -> dict[str, list[float | None]]:
    return {
        name: [None if np.isnan(value) else value for value in column.tolist()]
        for name, column in zip(panel.ids.tolist(), panel.values.T, strict=True)
    }


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(ROWS)
    return path


def test_every_rule(prices: Path) -> None:
    panel, report = series.clean(prices)
    assert table(panel) == VALUES
    assert report.counts == COUNTS
    assert panel.times.astype("datetime64[D]").astype(str).tolist() == [
        "2024-01-02",
        "2024-01-03",
        "2024-01-04",
        "2024-01-05",
    ]
    assert (report.rows, report.ids, report.times, report.first, report.last) == (14, 3, 4, "2024-01-02", "2024-01-05")
    # Of traded values: a split changes neither the price paid nor the volume.
    assert panel.caps is not None
    assert panel.caps[:, 1].tolist()[::2] == [1000, 1000]
    assert panel.caps[:, 2].tolist() == [40, 42, 42, 10]
    assert json.loads(json.dumps(report.to_dict()))["counts"] == COUNTS
    assert "        2  more rows of an id and a time: the earliest counts\n" in str(report)


def test_rules_that_were_chosen(prices: Path) -> None:
    kept, report = series.clean(prices, series.Rules(negative="keep", splits="keep"))
    assert table(kept)["AA"] == [-5.5, 0.0, 6.0, None]
    assert table(kept)["CC"] == [40, 42, 10.5, 2.5]
    assert report.counts["negative"] == report.counts["splits"] == 0
    missing, report = series.clean(prices, series.Rules(negative="missing"))
    # The earlier of two rows is the earliest with a value.
    assert table(missing)["AA"] == [7.0, None, 6.0, None]
    assert (report.counts["negative"], report.counts["missing"]) == (1, 4)
    for wrong in ({"negative": "drop"}, {"splits": "guess"}):
        with pytest.raises(series.SeriesError, match="not '"):
            series.Rules(**wrong)  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [2, 3, 4, 7])
def test_any_number_of_workers_makes_the_same_panel(workers: int, prices: Path) -> None:
    """Also with more workers than ids; each has the whole panel, and "earliest" goes by place in the file, whoever read
    the row.
    """
    program = (
        "import json, sys\nimport numpy as np\nimport tidemill as tm\nfrom tidemill import series\n"
        "panel, report = series.clean(sys.argv[1])\n"
        "print(json.dumps([np.nan_to_num(panel.values, nan=-1).tolist(), np.nan_to_num(panel.caps, nan=-1).tolist(), "
        "panel.ids.tolist(), panel.times.astype(int).tolist(), report.to_dict()]))\n"
    )
    lines = standing.run_program(program, prices, workers=workers)
    panel, report = series.clean(prices)
    assert panel.caps is not None
    expected = [
        np.nan_to_num(panel.values, nan=-1).tolist(),
        np.nan_to_num(panel.caps, nan=-1).tolist(),
        panel.ids.tolist(),
        panel.times.astype(int).tolist(),
        report.to_dict(),
    ]
    assert len(lines) == workers
    assert all(json.loads(line) == expected for line in lines)


EARLIEST = """
import sys
import numpy as np
import tidemill as tm
from tidemill import series
for source in sys.argv[1:]:
    panel, report = series.clean(source)
    print(np.nanmin(panel.values), np.nanmax(panel.values), panel.values.shape, report.counts["duplicates"], report.counts["duplicates_that_differ"], len(report.notes))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_the_earliest_is_the_first_in_the_files(workers: int, threads: int, tmp_path: Path) -> None:
    """In files long enough for several workers and threads to read in pieces, plain, compressed and several: the k-th
    value of a cell is k.

    Batches of a compressed file dealt to threads, or pieces of which each worker has scattered ones, would give others.
    """
    rng = np.random.default_rng(0)
    seen: dict[tuple[int, int], int] = {}
    rows = []
    for name, time in zip(
        rng.integers(50, size=100_000).tolist(), rng.integers(400, size=100_000).tolist(), strict=True
    ):
        nth = seen[name, time] = seen.get((name, time), 0) + 1
        # Long rows make long files, which are cut into more pieces.
        rows.append(f"s{name:02},{time},{nth},{'x' * 200}\n")
    head = "id,time,value,remark\n"
    whole, packed, several = tmp_path / "whole.csv", tmp_path / "packed.csv.gz", tmp_path / "several"
    whole.write_text(head + "".join(rows))
    packed.write_bytes(gzip.compress(whole.read_bytes(), compresslevel=1))
    several.mkdir()
    for number in range(7):
        part = rows[len(rows) * number // 7 : len(rows) * (number + 1) // 7]
        (several / f"{number}.csv").write_text(head + "".join(part))
    program = tmp_path / "app.py"
    program.write_text(EARLIEST)
    run = launched.run(
        "run", "-n", str(workers), "--threads", str(threads), "--no-prefix", program, whole, packed, several
    )
    assert run.returncode == 0, run.stderr
    again = 100_000 - len(seen)
    lines = run.stdout.decode().splitlines()
    assert lines == [f"1.0 1.0 (400, 50) {again} {again} 0"] * (3 * workers)


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_of_a_dataset_have_the_order_of_its_sort(workers: int, tmp_path: Path) -> None:
    """The earliest is the first in the sort order; without a sort, or after a step that mixes rows, the smallest value
    counts, wherever rows end up.
    """
    path = tmp_path / "rows.csv"
    rows = [f"s{row % 10},{row % 40},{1 + row // 40},{-row}\n" for row in range(20_000)]
    path.write_text("id,time,value,received\n" + "".join(rows))
    program = tmp_path / "app.py"
    program.write_text(
        "import sys\nimport numpy as np\nimport tidemill as tm\nfrom tidemill import series\n"
        "data = tm.read_csv(sys.argv[1])\n"
        "mixed = data.group_by('id', 'time', 'value').agg(received=tm.col('received').max())\n"
        "for one in (data, data.sort('received'), mixed.sort('received'), mixed):\n"
        "    panel, report = series.clean(one)\n"
        "    print(np.nanmin(panel.values), np.nanmax(panel.values), *report.notes)\n"
    )
    run = launched.run("run", "-n", str(workers), "--threads", "2", "--no-prefix", program, path)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.decode().splitlines()
    note = "rows of this source have no order: if values differ, the smallest counts; .sort(...) gives an order"
    expected = ["1.0 1.0", "500.0 500.0", "500.0 500.0", f"1.0 1.0 {note}"]
    assert sorted(lines) == sorted(expected * workers)


def test_all_sources_say_the_same(prices: Path, tmp_path: Path) -> None:
    """CSV, compressed, in two files, with tabs, Parquet, Arrow, a DataSet, numbers as dates, times of day."""
    expected, report = series.clean(prices)
    pa = pytest.importorskip("pyarrow")
    packed = tmp_path / "prices.csv.gz"
    packed.write_bytes(gzip.compress(ROWS.encode()))
    tabs = tmp_path / "prices.tsv"
    tabs.write_text(ROWS.replace(",", "\t"))
    head, *lines = ROWS.splitlines(keepends=True)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_text("".join([head, *lines[:5]]))
    (folder / "b.csv").write_text("".join([head, *lines[5:]]))
    crsp = tmp_path / "crsp.csv"
    crsp.write_text(ROWS.replace("2024-01-0", "2024010"))
    data = tm.read_csv(prices)
    data.write_parquet(tmp_path / "out")
    arrow = pa.table(data.collect())
    for source in (packed, tabs, folder, [folder / "a.csv", folder / "b.csv"], crsp, tmp_path / "out", data, arrow):
        panel, told = series.clean(source)
        assert table(panel) == table(expected), source
        assert panel.times.tolist() == expected.times.tolist(), source
        assert told.counts == report.counts, source
    assert series.clean(crsp)[1].notes == ["times such as 20161230 were taken as dates"]
    hours = tmp_path / "hours.csv"
    hours.write_text("time,id,value\n2024-01-02T09:30:00,a,1\n2024-01-02T10:30:00,a,2\n")
    assert series.clean(hours)[1].last == "2024-01-02T10:30:00"
    steps = tmp_path / "steps.csv"
    steps.write_text("time,id,value\n3,a,1\n4,a,2\n")
    assert series.clean(steps)[0].times.tolist() == [3, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_dates_may_be_texts(workers: int, tmp_path: Path) -> None:
    """JSON has only texts, and a Parquet file's writer may not have known that they are dates."""
    days = [f"2024-01-{number:02}" for number in range(1, 13)]
    rows = [{"id": name, "date": day, "price": 1.5 + n} for n, day in enumerate(days) for name in "ab"]
    texts = pa.Table.from_pylist(rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(texts, tmp_path / "rows.parquet")
    (tmp_path / "bad.jsonl").write_text(
        json.dumps(rows[0]) + "\n" + json.dumps({**rows[1], "date": "2024-01-99"}) + "\n"
    )
    program = (
        "import sys\nfrom tidemill import series\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        panel, _ = series.clean(path)\n        print(panel, panel.values.sum())\n"
        "    except series.SeriesError as error:\n        print(error)\n"
    )
    names = ("rows.jsonl", "rows.parquet", "bad.jsonl")
    outputs = standing.run_program(program, *(tmp_path / name for name in names), workers=workers)
    lines = "".join(outputs).splitlines()
    good = "Panel of 2 series at 12 times, 2024-01-01 to 2024-01-12 168.0"
    assert lines.count(good) == 2 * workers, lines
    assert sum("times in column 'date' are text, and one is not a time: " in line for line in lines) == workers
    dates = texts["date"]
    for column in (
        dates.dictionary_encode(),
        dates.cast(pa.large_string()),
        pa.array([f" {text}T10:00:00Z" for text in dates.to_pylist()]),
    ):
        panel, _ = series.clean(texts.set_column(1, "date", column))
        assert (panel.times.dtype, len(panel.times)) == (np.dtype("datetime64[us]"), 12)
    numbers = pa.array([row["date"].replace("-", "") for row in rows])
    assert series.clean(texts.set_column(1, "date", numbers))[0].times.dtype == np.dtype("datetime64[us]")


@pytest.mark.parametrize("zone", ["Australia/Sydney", "America/New_York", "+05:30", "UTC"])
def test_days_are_those_of_the_columns_time_zone(zone: str) -> None:
    """Days in Sydney were cut in the middle of its morning, because they were UTC days."""
    days = np.arange("2024-03-25", "2024-04-24", dtype="datetime64[D]").astype("datetime64[us]")
    clock = (days[:, None] + np.array([0, 10, 23]) * np.timedelta64(1, "h")).ravel()
    naive = pa.array(np.repeat(clock, 2))
    table = {"id": ["a", "b"] * len(clock), "value": np.arange(2.0 * len(clock)) + 1}
    panel, report = series.clean(pa.table({"time": pc.assume_timezone(naive, zone), **table}))
    expected, _ = series.clean(pa.table({"time": naive, **table}))
    assert panel.times.tolist() == expected.times.tolist()
    np.testing.assert_array_equal(panel.values, expected.values)
    assert report.first == "2024-03-25"


def test_an_hour_that_clocks_show_twice_keeps_its_times_apart() -> None:
    """Two times that clocks show alike are not duplicates, and keep their order."""
    times = np.arange("2024-04-06", "2024-04-08", 30, dtype="datetime64[m]").astype("datetime64[us]")
    table = pa.table(
        {"time": pa.array(times, pa.timestamp("us", "Australia/Sydney")), "id": ["a"] * 96, "value": np.arange(96.0)}
    )
    panel, report = series.clean(table, series.Rules(negative="keep"))
    assert panel.values.ravel().tolist() == list(range(96))
    assert report.counts["duplicates"] == 0
    # The hour from 2 to 3 comes twice in the night of 7 April: four half hours in one.
    night = [time for time in panel.times.tolist() if time.day == 7 and time.hour == 2]
    assert [time.minute for time in night] == [0, 15, 30, 45]


def test_texts_with_offsets_are_of_utc_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("time,id,value\n" + "".join(f"2024-01-0{n}T09:00:00+11:00,a,{n}\n" for n in (2, 3)))
    panel, report = series.clean(path)
    assert str(panel.times[0]) == "2024-01-01T22:00:00.000000"
    assert "times have offsets, such as +11:00, and were taken in UTC: days are those of UTC" in report.notes


def test_what_weights_come_from_is_called_so(tmp_path: Path) -> None:
    """The traded value was called capital."""
    path = tmp_path / "prices.csv"
    path.write_text("date,id,price,volume,cap\n2024-01-02,a,1,2,3\n")
    assert series.clean(path)[0].caps_name == "capital"
    path.write_text("date,id,price,volume\n2024-01-02,a,1,2\n")
    assert series.clean(path)[0].caps_name == "traded value"


def test_capital_is_price_times_shares_outstanding(tmp_path: Path) -> None:
    """By the price of the day, before its adjustment for a split; where no shares are given, capital is unknown, and
    not 0.
    """
    path = tmp_path / "crsp.csv"
    path.write_text(
        "permno,date,prc,vol,facpr,shrout\n"
        "10001,20240102,-40,5,0,100\n10001,20240103,42,5,0,0\n10001,20240104,21,5,1,200\n"
        "10002,20240102,3,5,0,\n10002,20240103,4,5,0,7\n10002,20240104,5,5,0,7\n"
    )
    rules = series.Rules(split_is="added")
    panel, report = series.clean(path, rules, split="facpr")
    assert (report.columns["shares"], panel.caps_name) == ("shrout", "capital")
    assert panel.values[:, 0].tolist() == [20, 21, 21]
    assert panel.caps is not None
    np.testing.assert_array_equal(panel.caps.T, [[4000, np.nan, 4200], [np.nan, 28, 35]])
    segment = panel.segment(series.windows(panel.times, "3d", 1)[0])
    assert segment.caps is not None and segment.caps.tolist() == [4100, 31.5]
    # What the options name wins: traded volume, or shares even with a column of capital.
    assert series.clean(path, rules, volume="vol")[0].caps_name == "traded value"
    names = ["date", "id", "close", "adj close", "cap", "pieces"]
    assert (find_columns(names, {"shares": "pieces"}).cap, find_columns(names, {}).cap) == (None, "cap")
    # Beside an adjusted value, the price paid counts.
    assert find_columns(names, {"shares": "pieces"}).price == "close"
    with pytest.raises(series.SeriesError, match="no column 'pcs' for the shares; there are"):
        find_columns(names, {"shares": "pcs"})


def factors(path: Path, other: str = "0.5") -> None:
    """A's two factors for its 3-for-2 agree, those of B's 2-for-1 do not, and other values mean no split."""
    rows = ["permno,date,prc,facpr,facshr\n"]
    for day, (a, b) in enumerate([(30.0, 20.0), (33, 22), (22, 11), (20, 10)], 2):
        rows.append(f"A,2024-01-0{day},{a},{'0.5,0.5' if day == 4 else '0,'}\n")
        rows.append(f"B,2024-01-0{day},{b},{'1.0,' + other if day == 4 else ',-1'}\n")
    path.write_text("".join(rows))


def test_records_whose_two_factors_differ_are_left_out(tmp_path: Path) -> None:
    """Also while the file is followed; unless the columns are ignored."""
    path = tmp_path / "crsp.csv"
    factors(path)
    rules, named = series.Rules(split_is="added"), {"split": "facpr", "split_shares": "facshr"}
    panel, report = series.clean(path, rules, **named)
    assert table(panel) == {"A": [20, 22, 22, 20], "B": [20, 22, None, 10]}
    assert (report.counts["factors_differ"], report.counts["splits"], report.counts["missing"]) == (1, 1, 0)
    assert "        1  rows whose two factors of a split differ: left out\n" in str(report)
    with series.Follower(path, rules, columns=named, settle=0, poll_interval=0.001) as follower:
        while not follower.poll():
            pass
        assert follower.panel is not None and follower.report is not None
        np.testing.assert_array_equal(follower.panel.values, panel.values)
        assert follower.report.counts["factors_differ"] == 1
    kept, report = series.clean(path, series.Rules(splits="keep"), **named)
    assert (table(kept)["B"], report.counts["factors_differ"]) == ([20, 22, 11, 10], 0)
    # Equal up to rounding.
    factors(path, "1.0000001")
    panel, report = series.clean(path, rules, **named)
    assert (table(panel)["B"], report.counts["factors_differ"]) == ([10, 11, 11, 10], 0)
    with pytest.raises(series.SeriesError, match=r"'facshr' has a second factor .* name that one too, --split COLUMN"):
        series.clean(path, split_shares="facshr")


def test_ids_that_became_floats_are_whole_numbers(tmp_path: Path) -> None:
    """pandas turns whole numbers beside a gap into floats."""
    path = tmp_path / "prices.csv"
    path.write_text("date,id,price\n2024-01-02,10000.0,1\n2024-01-02,600000.SS,1\n2024-01-02,1.5,1\n")
    assert series.clean(path)[0].ids.tolist() == ["1.5", "10000", "600000.SS"]
    table = pa.table({"date": [20240102] * 3, "id": [10000.0, None, 2.5], "price": [1.0, 2.0, 3.0]})
    assert series.clean(table)[0].ids.tolist() == ["10000", "2.5"]


def test_a_text_that_is_no_number_names_its_column() -> None:
    """The error was "Cannot cast string", without the column."""
    table = pa.table({"date": [20240102] * 2, "id": ["1", "b"], "price": ["99.5", "$100.12"], "volume": [1, 2]})
    with pytest.raises(
        series.SeriesError, match=r"values in column 'price' are text, and one is not a number: .*\$100\.12"
    ):
        series.clean(table)


def test_ids_may_look_like_numbers_for_long(tmp_path: Path) -> None:
    """Types are inferred from the first thousand rows; an id or volume further down must not break that."""
    path = tmp_path / "permno.csv"
    lines = [f"{10000 + row},2024-01-02,1.5,100\n" for row in range(1500)]
    path.write_text("permno,date,prc,vol\n" + "".join(lines) + "TEXT,2024-01-02,1,1e6\n")
    panel, _ = series.clean(path)
    assert (panel.ids[0], panel.ids[-1], len(panel.ids)) == ("10000", "TEXT", 1501)


def test_columns_are_found_by_usual_names_and_by_choice() -> None:
    found = find_columns(["Date", "Symbol", "Close", "Adj Close", "Volume", "Stock Splits"], {})
    # Adjusted values are adjusted for splits; the price paid, which multiplies the volume, is another column.
    assert (found.time, found.id, found.value, found.volume, found.split, found.price) == (
        "Date", "Symbol", "Adj Close", "Volume", None, "Close",
    )  # fmt: skip
    assert found.notes == ("splits in 'Stock Splits' were left alone: 'Adj Close' is adjusted for them, by its name",)
    names = ["Date", "Symbol", "Close", "Adj Close", "Volume", "Stock Splits"]
    assert find_columns(names, {"split": "Stock Splits"}).split == "Stock Splits"
    assert find_columns(names, {"value": "Close"}).named() == {
        "id": "Symbol", "time": "Date", "value": "Close", "volume": "Volume", "split": "Stock Splits",
    }  # fmt: skip
    assert find_columns([*names, "cap"], {}).price is None
    assert find_columns(["Date", "Symbol", "Close", "Adj Close"], {"value": "Close"}).value == "Close"
    with pytest.raises(
        series.SeriesError, match=r"no column is named like an id .*--id COLUMN; there are: date, x, price"
    ):
        find_columns(["date", "x", "price"], {})
    with pytest.raises(series.SeriesError, match="no column 'px' for the values; there are: date, id, price"):
        find_columns(["date", "id", "price"], {"value": "px"})
    with pytest.raises(series.SeriesError, match="only one thing"):
        find_columns(["date", "id", "price"], {"value": "id"})


def test_numbers_that_are_dates() -> None:
    def taken(*numbers: int) -> Any:
        micros = steps_or_dates(np.array(numbers))
        return None if micros is None else micros.astype("datetime64[us]").astype("datetime64[D]").astype(str).tolist()

    assert taken(20040102, 20161230) == ["2004-01-02", "2016-12-30"]
    assert taken(20230228, 20240229) == ["2023-02-28", "2024-02-29"]
    for others in ((1, 2), (20230229,), (20231301,), (20230100,), (99999999,)):
        assert taken(*others) is None


def test_splits_are_found_by_their_jumps() -> None:
    """Found: 2 for 1, 3 for 1, 1 for 10; not found: a fall by half among days like it, and a fall by a third, which is
    no ratio.
    """
    rng = np.random.default_rng(1)
    calm = np.exp(3 + np.cumsum(rng.normal(scale=0.01, size=(5, 200)), axis=1))
    calm[0, 100:] /= 2
    calm[1, 50:] /= 3
    calm[1, 150:] *= 10
    wild = np.exp(np.cumsum(rng.normal(scale=0.25, size=200)))
    calm[2] = wild
    calm[3, 100:] *= np.exp(-0.55)
    calm[4, 20] = np.nan
    found = detect(calm)
    assert found == [Split(0, 100, 2.0), Split(1, 50, 3.0), Split(1, 150, 0.1)]
    assert detect(calm, begin=120) == [Split(1, 150, 0.1)]


def quotes(path: Path, ratio: float = 2.0, told: float | None = None) -> list[str]:
    """A year in Yahoo's form: prices adjusted for A's split, and B, which is not adjusted for its own. Returns the
    days.
    """
    days: list[str] = np.busday_offset("2024-01-01", np.arange(60), roll="forward").astype(str).tolist()
    rng = np.random.default_rng(0)
    price = 100 * np.exp(np.cumsum(rng.normal(scale=0.01, size=(60, 2)), axis=0))
    split = np.zeros((60, 2))
    split[30] = ratio if told is None else told
    price[:30, 1] *= ratio
    lines = [
        f"{day},{name},{price[n, i]},{0.9 * price[n, i]},{1000},{split[n, i]}\n"
        for n, day in enumerate(days)
        for i, name in enumerate("AB")
    ]
    path.write_text("Date,Ticker,Close,Adj Close,Volume,Stock Splits\n" + "".join(lines))
    return days


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_adjusted_already_is_not_adjusted_again(workers: int, tmp_path: Path) -> None:
    """Adjusted twice, A would double on the day of its split. B's price does jump there."""
    days = quotes(tmp_path / "quotes.csv")
    program = (
        "import sys\nimport numpy as np\nfrom tidemill import series\n"
        "panel, report = series.clean(sys.argv[1], value=sys.argv[2] or None)\n"
        "change = np.abs(np.diff(np.log(panel.values), axis=0)).max(axis=0) > 0.1\n"
        "print(change.tolist(), report.counts['splits'], report.counts['flat_splits'], report.flat, report.notes, panel.caps[0].tolist())\n"
    )

    def said(value: str) -> str:
        outputs = standing.run_program(program, tmp_path / "quotes.csv", value, workers=workers)
        (line,) = set("".join(outputs).splitlines())
        return line

    close = said("Close")
    assert close.startswith(f"[False, False] 1 1 [('A', '{days[30]}', 2.0)] []")
    # The name says that it is adjusted; so B's jump stays, and the volume goes with the price paid.
    adjusted = said("")
    assert adjusted.startswith("[False, True] 0 0 [] [\"splits in 'Stock Splits' were left alone")
    assert adjusted.rpartition("[")[2] == close.rpartition("[")[2]
    assert "A 2024-02-12: 2 for 1, but no jump" in str(series.clean(tmp_path / "quotes.csv", value="Close")[1])


def test_a_column_that_says_splits_where_nothing_jumps_is_refused_if_it_was_named(tmp_path: Path) -> None:
    path = tmp_path / "quotes.csv"
    quotes(path)
    _both, report = series.clean(path, value="Close", split="Stock Splits")
    assert report.counts["splits"] == report.counts["flat_splits"] == 1
    path.write_text("".join(line for line in path.read_text().splitlines(True) if ",B," not in line))
    with pytest.raises(
        series.SeriesError, match=r"do not jump at 1 of the splits .* 'Stock Splits' .* A at 2024-02-12"
    ):
        series.clean(path, value="Close", split="Stock Splits")
    assert series.clean(path, value="Close")[1].counts["flat_splits"] == 1
    assert series.clean(path, series.Rules(splits="keep"), value="Close", split="Stock Splits")[1].flat == []


@pytest.mark.parametrize(("ratio", "told"), [(2.0, 1.0), (1.5, 0.5), (0.1, -0.9)])
def test_splits_as_crsp_tells_them(ratio: float, told: float, tmp_path: Path) -> None:
    """FACPR is what was added to a share: read as a ratio, 1 would mean no split, and 0.5 a reverse one."""
    path = tmp_path / "quotes.csv"
    quotes(path, ratio, told)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if ",A," not in line))
    rules = series.Rules(split_is="added")
    panel, report = series.clean(path, rules, value="Close", split="Stock Splits")
    assert (report.counts["splits"], report.counts["flat_splits"]) == (1, 0)
    assert np.abs(np.diff(np.log(panel.values[:, 0]))).max() < 0.1
    path.write_text(path.read_text().replace(f",{told}", ",-1.0"))
    assert series.clean(path, rules, value="Close")[1].counts["splits"] == 0
    with pytest.raises(series.SeriesError, match="split_is must be"):
        series.Rules(split_is="factor")  # type: ignore[arg-type]


#: Days and series of splits by a tenth and a twentieth, the first of them before any large one.
SMALL = [(3, 0, 1.1), (9, 4, 2.0), (15, 1, 1.05), (20, 2, 1.1), (28, 3, 1.05)]


def small_splits(adjusted: bool) -> tuple[list[str], set[float]]:
    """Lines of prices, adjusted for those splits or not, that usually change by 2 % a day; and the ratios to divide
    them by.
    """
    rng = np.random.default_rng(4)
    price = 100 * np.exp(np.cumsum(rng.normal(scale=0.02, size=(40, 5)), axis=0))
    split = np.zeros(price.shape)
    for day, one, ratio in SMALL:
        split[day, one] = ratio
        if not adjusted:
            price[:day, one] *= ratio
    days = np.busday_offset("2024-01-01", np.arange(40), roll="forward").astype(str).tolist()
    return [
        f"{day},s{one},{price[n, one]},{split[n, one]}\n" for n, day in enumerate(days) for one in range(5)
    ], set() if adjusted else {ratio for _, _, ratio in SMALL}


@pytest.mark.parametrize("adjusted", [False, True])
def test_small_splits_go_by_those_of_the_table(adjusted: bool, tmp_path: Path) -> None:
    """One day's change cannot show a twentieth more shares, but a table is adjusted throughout or not at all. The same
    holds when followed.
    """
    lines, _ = small_splits(adjusted)
    path = tmp_path / "prices.csv"
    path.write_text("date,id,price,split\n" + "".join(lines))
    panel, report = series.clean(path)
    assert report.counts["splits" if adjusted else "flat_splits"] == 0
    assert report.counts["flat_splits" if adjusted else "splits"] == len(SMALL)
    again = tmp_path / "again.csv"
    again.write_text("date,id,price,split\n")
    with series.Follower(again, settle=3600, poll_interval=0.001) as follower:
        for line in range(0, len(lines), 7):
            with again.open("a") as file:
                file.writelines(lines[line : line + 7])
            while follower.poll():
                pass
        assert follower.panel is not None and follower.report is not None
        np.testing.assert_array_equal(follower.panel.values, panel.values[:-1])
        assert (follower.report.flat == []) is not adjusted


def test_what_no_value_shows_of_a_split() -> None:
    """It is taken as given, and changes nothing for the others; nor does one that is far too large, or those that come
    later.
    """
    values = np.full((2, 9), 100.0)
    values[0, 3] = np.nan
    values[1, 6:] /= 1.1
    splits = [Split(0, 3, 1.1), Split(1, 6, 1.1), Split(0, 7, 1e9)]
    each = weigh(values, splits)
    assert np.isnan(each[0]) and each[1] > 0 > each[2] and each[1] + each[2] < 0
    table = Evidence((split.place, part) for split, part in zip(splits, each, strict=True))
    assert [table.up_to(place) for place in (2, 3, 6, 8)] == [0, 0, each[1], table.all]
    assert table.flat(splits, each) == [splits[2]]
    adjust(values, splits[:2])
    np.testing.assert_allclose(values[1], 100 / 1.1)


def test_detected_splits_are_adjusted_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    days = np.busday_offset("2024-01-01", np.arange(60), roll="forward").astype(str).tolist()
    rng = np.random.default_rng(0)
    price = 100 * np.exp(np.cumsum(rng.normal(scale=0.01, size=60)))
    traded = np.where(np.arange(60) < 30, price, price / 2)
    path.write_text("date,id,price\n" + "".join(f"{day},a,{cost}\n" for day, cost in zip(days, traded, strict=True)))
    panel, report = series.clean(path, series.Rules(splits="detect"))
    np.testing.assert_allclose(panel.values[:, 0], price / 2)
    assert report.found == [("a", days[30], 2.0)]
    assert f"a {days[30]}: 2 for 1" in str(report)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("day,ticker,worth\n2024-01-02,a,1\n", {}, "no column is named like a value"),
        ("date,ticker,price\n", {}, "no row has an id and a time among the 0"),
        ("date,ticker,price\n,a,1\n2024-01-02,,1\n", {}, "no row has an id and a time among the 2"),
        ("date,ticker,price\n2024-01-02,a,\n", {}, "no row has a value that is left after cleaning"),
        ("date,ticker,price\n02/01/2024,a,1\n", {}, "times in column 'date' are text, such as '02/01/2024'"),
        ("date,ticker,price\n2024-01-02,a,1\nlater,a,1\n", {}, "times in column 'date' are text, such as 'later'"),
        (
            'date,ticker,price\n2024-01-02,a,"1,234.5"\n2024-01-03,a,$5\n',
            {},
            "line 2: '1,234.5' is not of type Float64",
        ),
        ("date,ticker,close,close\n2024-01-02,a,1,2\n", {}, 'bad.csv: two of its columns are named "close"; give'),
        ("date,close\n2024-01-02,1\n", {}, "no column is named like an id"),
        ("date,ticker,price\n2024-01-02,a,1\n2024-01-03,a,cheap\n", {}, "line 3: 'cheap' is not of type Float64"),
        ("date,ticker,price\n2024-01-02,a,1\n2024-01-03,a\n", {}, "line 3: "),
        ("date,ticker,price,split\n2024-01-02,a,1,-2\n", {}, "the split of a at 2024-01-02 is -2: it is how many"),
        ("date,ticker,price\n2024-01-02,a,1\n", {"value": "close"}, "no column 'close' for the values"),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_bad_input_is_an_error_on_every_worker(
    text: str, options: dict[str, str], message: str, workers: int, tmp_path: Path
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    program = (
        "import json, sys\nimport tidemill as tm\nfrom tidemill import series\n"
        "try:\n    series.clean(sys.argv[1], **json.loads(sys.argv[2]))\n"
        "except (series.SeriesError, tm.DataSetError) as error:\n    print(str(error).replace('\\n', ' '))\n"
    )
    lines = standing.run_program(program, path, json.dumps(options), workers=workers)
    assert len(lines) == workers
    assert all(message in line for line in lines), lines


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
def test_rows_that_cannot_be_read_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("date,ticker,price\n2024-01-02,a,1\n2024-01-03,a,cheap\n2024-01-04,a\n2024-01-05,a,2\n")
    panel, report = series.clean(path, on_error="skip")
    assert (len(panel.times), report.counts["unreadable"]) == (2, 2)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(tm.DataSetError, match=r"nothing\.csv"):
        series.clean(tmp_path / "nothing.csv")
    with pytest.raises(series.SeriesError, match="no files in this folder"):
        series.clean(tmp_path)
