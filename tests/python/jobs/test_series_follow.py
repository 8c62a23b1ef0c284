"""Panels that grow: a file that is appended to while it is followed, a folder that receives files, real processes."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import launched
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tidemill import series
from tidemill.apps import series as app
from tidemill.viz import FrameError, FrameReader

HEAD = "date,ticker,price,volume,split\n"


def day(number: int) -> str:
    return str(np.busday_offset("2024-01-01", number, roll="forward"))


def rows(numbers: range, ids: int = 8, seed: int = 0) -> list[str]:
    """The rows of some days; any range gives the same rows."""
    rng = np.random.default_rng(seed)
    price = 50 * np.exp(np.cumsum(rng.normal(scale=0.02, size=(200, ids)), axis=0))
    return [f"{day(n)},s{one},{price[n, one]:.4f},{100 + n},\n" for n in numbers for one in range(ids)]


def until(follower: series.Follower, done: Callable[[], bool]) -> None:
    """Poll until something has arrived; a test that waits for nothing would be over at once."""

    def look() -> bool:
        follower.poll()
        return done()

    launched.wait_until(look, "rows to be taken")


def of(follower: series.Follower) -> series.Panel:
    assert follower.panel is not None
    return follower.panel


def counts(follower: series.Follower) -> dict[str, int]:
    assert follower.report is not None
    return {rule: count for rule, count in follower.report.counts.items() if count}


def test_a_day_is_over_when_the_next_one_comes(tmp_path: Path) -> None:
    """Without settling, the last day must wait, and half a line must not be taken for a price."""
    path = tmp_path / "prices.csv"
    follower = series.Follower(path, settle=3600, poll_interval=0.001)
    assert not follower.poll()
    with path.open("w") as file:
        file.write(HEAD)
        file.writelines(rows(range(3)))
        file.flush()
        until(follower, lambda: follower.panel is not None)
        assert len(of(follower).times) == 2
        (first, *others) = rows(range(3, 4))
        file.write(first[:14])
        file.flush()
        assert not follower.poll()
        file.write(first[14:])
        file.flush()
        until(follower, lambda: len(of(follower).times) == 3)
        file.writelines(others)
        file.writelines(rows(range(4, 5)))
        file.flush()
        until(follower, lambda: len(of(follower).times) == 4)
    expected, _ = series.clean(path)
    assert of(follower).values.tolist() == expected.values[:4].tolist()
    assert of(follower).ids.tolist() == expected.ids.tolist()
    assert of(follower).times.tolist() == expected.times[:4].tolist()


def test_a_quiet_file_has_had_its_day(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(HEAD + "".join(rows(range(5))))
    follower = series.Follower(path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 5)
    expected, report = series.clean(path)
    np.testing.assert_array_equal(of(follower).values, expected.values)
    assert follower.report is not None
    assert (follower.report.rows, follower.report.ids, follower.report.times) == (report.rows, report.ids, report.times)
    assert (follower.report.first, follower.report.last) == (report.first, report.last)


@pytest.mark.parametrize("pieces", [1, 7, 40])
@pytest.mark.parametrize("splits", ["column", "detect"])
def test_the_panel_is_that_of_the_whole_file(pieces: int, splits: str, tmp_path: Path) -> None:
    """Rules must give the same whether rows come bit by bit or all at once: late ids, splits, all of it."""
    lines = rows(range(60))
    lines = [line for line in lines if not (line.startswith(tuple(map(day, range(30)))) and ",s3," in line)]
    lines.insert(200, lines[199])
    fields = lines[250].split(",")
    lines[250] = ",".join([*fields[:2], f"-{fields[2]}", *fields[3:]])
    lines[300] = ",".join([*lines[300].split(",")[:2], "", "", "\n"])
    name = lines[333].split(",")[1]
    for place in range(333, len(lines)):
        fields = lines[place].split(",")
        if fields[1] == name:
            lines[place] = ",".join([*fields[:2], f"{float(fields[2]) / 3:.4f}", *fields[3:]])
    if splits == "column":
        lines[333] = lines[333].rstrip("\n") + "3\n"
        # Given a different split, at which the price does not jump.
        lines[334] = lines[334].rstrip("\n") + "2\n"
    path = tmp_path / "prices.csv"
    path.write_text(HEAD)
    rules = series.Rules(splits=splits)  # type: ignore[arg-type]
    follower = series.Follower(path, rules, settle=0.0, poll_interval=0.001)
    # Cut at ends of days, as a settled day takes no more rows.
    ends = sorted({0, *(len(lines) * piece // pieces for piece in range(1, pieces + 1)), len(lines)})
    at = 0
    for end in ends[1:]:
        while end < len(lines) and lines[end][:10] == lines[end - 1][:10]:
            end += 1
        if end <= at:
            continue
        with path.open("a") as file:
            file.writelines(lines[at:end])
        at = end
        last = max(line[:10] for line in lines[:end])
        until(follower, lambda last=last: follower.report is not None and follower.report.last == last)  # type: ignore[misc]
    expected, report = series.clean(path, rules)
    np.testing.assert_allclose(of(follower).values, expected.values)
    assert of(follower).caps_name == expected.caps_name == "traded value"
    assert of(follower).caps is not None
    assert expected.caps is not None
    np.testing.assert_allclose(of(follower).caps, expected.caps)  # type: ignore[arg-type]
    assert of(follower).ids.tolist() == expected.ids.tolist()
    assert follower.report is not None
    assert follower.report.counts == report.counts
    assert (follower.report.found, follower.report.flat) == (report.found, report.flat)
    assert (report.counts["splits"], len(report.flat)) == (1, 1 if splits == "column" else 0)


def test_rows_that_come_too_late_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(HEAD + "".join(rows(range(5))))
    follower = series.Follower(path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 5)
    before = of(follower).values.copy()
    with path.open("a") as file:
        file.write(f"{day(2)},s0,1,1,\n{day(4)},new,1,1,\n" + "".join(rows(range(5, 6))))
    until(follower, lambda: len(of(follower).times) == 6)
    assert counts(follower) == {"late": 2}
    np.testing.assert_array_equal(of(follower).values[:5], before)


def test_files_that_come_into_a_folder(tmp_path: Path) -> None:
    """In the order of their names; hidden files are unfinished."""
    folder = tmp_path / "days"
    folder.mkdir()
    follower = series.Follower(folder, settle=0.0, poll_interval=0.001)
    assert not follower.poll()
    for number in range(3):
        made = folder / f".{number}.csv"
        made.write_text(HEAD + "".join(rows(range(number, number + 1))))
        assert not follower.poll()
        made.rename(folder / f"{number}.csv")
        until(follower, lambda count=number + 1: follower.panel is not None and len(of(follower).times) == count)  # type: ignore[misc]
    expected, _ = series.clean(folder)
    np.testing.assert_array_equal(of(follower).values, expected.values)


#: Files below a folder: rows of all days by series, and names that are skipped.
PLACES = ("b/p.csv", "a/p.csv", "a/deep/p.csv", "a-b.csv", "c.csv", ".hidden/p.csv", "_made/p.csv", "a/.p.csv")


def below(folder: Path, numbers: range) -> None:
    """Each file has two series of its own, and one that all share with different values; two files that later ones
    follow lack a final newline.
    """
    for place, name in enumerate(PLACES):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        own = [line for line in rows(numbers, ids=2 * len(PLACES)) if int(line.split(",")[1][1:]) // 2 == place]
        own += [f"{day(number)},all,{place + number + 1},1,\n" for number in numbers]
        end = "" if name in ("a/deep/p.csv", "a-b.csv") else "\n"
        path.write_text((HEAD + "".join(own)).rstrip("\n") + end)


@pytest.mark.parametrize("settle_s", [0.0, 3600.0])
@pytest.mark.parametrize("pattern", ["", "*", "*/p.csv", "**/*.csv", "a/**/p.csv", "[ab]*/*.csv", "_made/*", "**"])
def test_the_files_that_are_followed_are_those_that_are_read(pattern: str, settle_s: float, tmp_path: Path) -> None:
    """Folders below were skipped, and patterns matched a single name: nothing came, without an error."""
    below(tmp_path, range(6))
    source = str(tmp_path / pattern)
    expected, report = series.clean(source)
    follower = series.Follower(source, settle=settle_s, poll_interval=0.001)
    # Without settling, the last day is never over.
    days = 5 if settle_s else 6
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == days)
    assert of(follower).ids.tolist() == expected.ids.tolist()
    np.testing.assert_array_equal(of(follower).values, expected.values[:days])
    assert counts(follower).get("late", 0) == 0
    if not settle_s and pattern != "**":
        # A file found twice is read twice, but followed once.
        assert counts(follower) == {rule: count for rule, count in report.counts.items() if count}


def test_a_file_that_comes_into_a_new_folder(tmp_path: Path) -> None:
    """While it is followed: a folder for each month, the next of which does not exist yet."""
    source = str(tmp_path / "**" / "*.csv")
    follower = series.Follower(source, settle=0.0, poll_interval=0.001)
    assert not follower.poll()
    for number in range(3):
        folder = tmp_path / "2024" / f"{number}"
        folder.mkdir(parents=True)
        assert not follower.poll()
        (folder / ".made").write_text(HEAD + "".join(rows(range(3 * number, 3 * number + 3))))
        assert not follower.poll()
        (folder / ".made").rename(folder / "p.csv")
        until(follower, lambda days=3 * number + 3: follower.panel is not None and len(of(follower).times) == days)  # type: ignore[misc]
    expected, _ = series.clean(source)
    np.testing.assert_array_equal(of(follower).values, expected.values)
    assert counts(follower) == {}


def test_files_longer_than_a_piece_that_have_the_same_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece of one file ended days of which the others still had unread rows: these were late."""
    monkeypatch.setattr("tidemill.series._tail._PIECE_BYTES", 300)
    below(tmp_path, range(12))
    expected, _ = series.clean(tmp_path)
    follower = series.Follower(tmp_path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 12)
    np.testing.assert_array_equal(of(follower).values, expected.values)
    assert counts(follower).get("late", 0) == 0


@pytest.mark.parametrize("source", ["s3://bucket/prices.csv", "file:///tmp/prices.csv", "/tmp/[prices"])
def test_a_source_that_can_never_come_is_an_error(source: str) -> None:
    """The command waited for it without a word."""
    with pytest.raises(series.SeriesError, match=r"file system can be followed; give their path|Pattern syntax error"):
        series.Follower(source, poll_interval=0.001).poll()


def parquet(path: Path, numbers: range) -> bytes:
    """Write the rows of some days into a Parquet file of several row groups; return its bytes."""
    fields = [row.rstrip("\n").split(",") for row in rows(numbers)]
    table = pa.table(
        {
            "date": pa.array([np.datetime64(row[0], "us") for row in fields], pa.timestamp("us")),
            "ticker": [row[1] for row in fields],
            "price": [float(row[2]) for row in fields],
            "volume": [int(row[3]) for row in fields],
        }
    )
    pq.write_table(table, path, row_group_size=20)
    return path.read_bytes()


def test_parquet_files_that_come_into_a_folder(tmp_path: Path) -> None:
    """Each is read once its end is there, and no later file before it: its days would end those of earlier files."""
    folder, whole = tmp_path / "days", tmp_path / "whole"
    folder.mkdir()
    whole.mkdir()
    parts = [parquet(whole / f"{number}.parquet", range(9 * number, 9 * number + 9)) for number in range(3)]
    follower = series.Follower(folder, settle=3600, poll_interval=0.001)
    (folder / "0.parquet").write_bytes(parts[0])
    until(follower, lambda: follower.panel is not None)
    (folder / "1.parquet").touch()
    (folder / "2.parquet").write_bytes(parts[2])
    for _ in range(5):
        assert not follower.poll()
    (folder / "1.parquet").write_bytes(parts[1][:-3])
    for _ in range(5):
        assert not follower.poll()
    assert len(of(follower).times) == 8
    with (folder / "1.parquet").open("ab") as file:
        file.write(parts[1][-3:])
    until(follower, lambda: len(of(follower).times) == 26)
    expected, _ = series.clean(whole)
    np.testing.assert_array_equal(of(follower).values, expected.values[:26])
    assert of(follower).times.tolist() == expected.times[:26].tolist()
    assert counts(follower) == {}
    parquet(folder / "2.parquet", range(18, 50))
    with pytest.raises(
        series.SeriesError, match=r"2\.parquet has grown since it was read: write new rows to a new file"
    ):
        until(follower, lambda: False)


def test_a_parquet_file_may_have_dates_that_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "prices.parquet"
    dates = [day(number) for number in range(4) for _ in "ab"]
    pq.write_table(pa.table({"date": dates, "id": [*"ab"] * 4, "price": np.arange(1.0, 9.0)}), path)
    follower = series.Follower(path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 4)
    expected, _ = series.clean(path)
    assert of(follower).times.tolist() == expected.times.tolist()
    np.testing.assert_array_equal(of(follower).values, expected.values)


def test_parquet_files_that_cannot_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "prices.parquet"
    path.write_bytes(parquet(path, range(3))[:-3])
    with pytest.raises(series.SeriesError, match=r"prices\.parquet: .*(?i:parquet)"):
        until(series.Follower(path, settle=0.1, poll_interval=0.01), lambda: False)
    pq.write_table(pa.table({"date": ["soon", "now"], "id": ["a", "b"], "price": [1.0, 2.0]}), path)
    with pytest.raises(series.SeriesError, match=r"prices\.parquet: times in column 'date' are .*, such as 'soon'"):
        series.Follower(path).poll()
    pq.write_table(pa.table({"date": [1.5], "price": [1.0]}), path)
    with pytest.raises(series.SeriesError, match=r"prices\.parquet: no column is named like an id"):
        series.Follower(path).poll()


def test_parquet_and_csv_may_lie_in_one_folder(tmp_path: Path) -> None:
    """Numbers as dates, rows without an id: what is skipped and what is a date does not depend on the kind of file."""
    dates = [20240102, 20240102, 20240103, 20240103]
    named = pa.table({"date": dates, "ticker": ["a", None, "a", "b"], "price": [1.0, 2.0, None, 4.0]})
    pq.write_table(named, tmp_path / "0.parquet")
    (tmp_path / "1.csv").write_text("date,ticker,price\n20240104,a,5\n20240104,b,6\n")
    follower = series.Follower(tmp_path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 3)
    assert of(follower).times.astype("datetime64[D]").astype(str).tolist() == ["2024-01-02", "2024-01-03", "2024-01-04"]
    np.testing.assert_array_equal(of(follower).values, [[1, np.nan], [np.nan, 4], [5, 6]])
    assert follower.report is not None and follower.report.rows == 6
    assert counts(follower) == {"without_key": 1, "missing": 1, "gaps": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2024-01-03,s0,cheap,1,\n", "line 2: 'cheap' is not a number, but the column of values has numbers"),
        ("2024-01-03,s0,1\n", "line 2: 5 values expected, 3 found"),
        ('2024-01-03,"s0,1,1,\n', "line 2: a quote is not closed"),
        ("2024-01-03,s0,1_000,1,\n", "line 2: '1_000' is not a number"),
        ("soon,s0,1,1,\n", "line 2: 'soon' is not a time such as 2016-12-30"),
    ],
)
def test_bad_rows_name_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(HEAD + text)
    follower = series.Follower(path, poll_interval=0.001)
    with pytest.raises(series.SeriesError) as caught:
        follower.poll()
    assert str(caught.value).startswith(f"{path}, {message}")
    path.write_text(HEAD + text + "".join(rows(range(2))))
    lenient = series.Follower(path, settle=0.0, poll_interval=0.001, on_error="skip")
    until(lenient, lambda: lenient.panel is not None)
    assert counts(lenient) == {"unreadable": 1}


def test_what_cannot_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(series.SeriesError, match=r"prices.csv: no column is named like an id"):
        series.Follower(path).poll()
    path.write_text(HEAD + "".join(rows(range(3))))
    follower = series.Follower(path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None)
    path.write_text(HEAD)
    with pytest.raises(series.SeriesError, match="has become shorter while it was followed"):
        follower.poll()
    packed = tmp_path / "prices.csv.gz"
    packed.write_bytes(b"")
    with pytest.raises(series.SeriesError, match="only CSV that is not compressed and Parquet files can be followed"):
        series.Follower(packed).poll()
    twice = tmp_path / "twice.csv"
    twice.write_text("date,id,close,close\n")
    with pytest.raises(series.SeriesError, match=r"twice.csv: column 'close' appears twice in the header"):
        series.Follower(twice).poll()
    folder = tmp_path / "days"
    folder.mkdir()
    (folder / "a.csv").write_text(HEAD)
    (folder / "b.csv").write_text("date,id,close\n")
    with pytest.raises(series.SeriesError, match=r"b.csv has other columns than the files before"):
        series.Follower(folder).poll()
    with pytest.raises(series.SeriesError, match="settle=-1 is negative"):
        series.Follower(path, settle=-1)
    with pytest.raises(series.SeriesError, match="poll_interval=0 must be greater than zero"):
        series.Follower(path, poll_interval=0)


ODD = {
    "without id or time": (HEAD + "{rows}" + "2024-01-03,,1,1,\n,s0,1,1,\n2024-01-03, ,1,1,\n", {}),
    "values that stand for none": (
        HEAD + "{rows}" + "2024-01-02,s9,NA,1,\n2024-01-03,s9,.,NA,\n2024-01-04,s9,5,1,NA\nNA,s9,5,1,\n2024-01-05,NA,5,1,\n",
        {"null": ["NA", "."]},
    ),
    "tabs": ("{tabs}", {}),
    "semicolons": ("{semicolons}", {"delimiter": ";"}),
    "lines as Windows ends them": ("{windows}", {}),
    "empty lines, quotes, a mark in front": ("\ufeff" + HEAD + "\n" + '{rows}\n\n"2024-01-05","s,9",7,1,\n2024-01-05,"s""8",7,1,\n', {}),
    "a name with a line of its own in Unicode": (HEAD + "{rows}" + "2024-01-05,s\u2028\x0b\x859,7,1,\n", {}),
    "numbers of all kinds": (HEAD + "{rows}" + "2024-01-05,s7,1e2,+1,\n2024-01-05,s8,.5,1.,\n2024-01-05,s9,inf,nan,\n", {}),
    "days as numbers": (
        "date,ticker,price\n" + "".join(f"202401{n:02},a,{n}\n202401{n:02},b,{n * n}\n" for n in range(1, 9)), {},
    ),
    "steps": ("time,id,value\n" + "".join(f"{n},a,{n + 5}\n{n},b,{n * n}\n" for n in range(-3, 9)), {}),
    "times of day and zones": (
        "time,id,value\n2024-01-02T09:30:00,a,1\n2024-01-02 10:30:00.25,a,2\n2024-01-02T10:30:00Z,b,3\n2024-01-02T12:30:00+01:00,b,4\n", {},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::tidemill.BadRowsWarning")
@pytest.mark.parametrize("odd", ODD)
def test_odd_files_are_followed_as_they_are_read(odd: str, tmp_path: Path) -> None:
    """Following has its own reader, which must skip, treat as missing and accept the same values as a batch."""
    text, options = ODD[odd]
    plain = "".join(rows(range(6), ids=4))
    path = tmp_path / ("prices.tsv" if odd == "tabs" else "prices.csv")
    made = text.format(
        rows=plain, tabs=(HEAD + plain).replace(",", "\t"), semicolons=(HEAD + plain).replace(",", ";"),
        windows=(HEAD + plain).replace("\n", "\r\n"),
    )  # fmt: skip
    path.write_text(made, newline="")
    expected, report = series.clean(path, **options)  # type: ignore[arg-type]
    follower = series.Follower(path, settle=0.0, poll_interval=0.001, **options)  # type: ignore[arg-type]
    until(follower, lambda: follower.panel is not None)
    assert not follower.poll()
    assert of(follower).ids.tolist() == expected.ids.tolist()
    assert of(follower).times.tolist() == expected.times.tolist()
    assert of(follower).times.dtype == expected.times.dtype
    np.testing.assert_array_equal(of(follower).values, expected.values)
    assert (of(follower).caps is None) == (expected.caps is None)
    if expected.caps is not None:
        np.testing.assert_array_equal(of(follower).caps, expected.caps)  # type: ignore[arg-type]
    assert follower.report is not None
    assert (follower.report.rows, follower.report.counts) == (report.rows, report.counts)


def test_the_last_line_of_each_file_of_a_folder_may_have_no_end(tmp_path: Path) -> None:
    """Its last row must arrive before the next file's day makes it late, without waiting for anything to settle."""
    folder = tmp_path / "days"
    folder.mkdir()
    follower = series.Follower(folder, settle=3600, poll_interval=0.001)
    for number in range(4):
        (folder / f"{number}.csv").write_text((HEAD + "".join(rows(range(number, number + 1)))).rstrip("\n"))
        if number:
            until(follower, lambda count=number: follower.panel is not None and len(of(follower).times) == count)  # type: ignore[misc]
    expected, _ = series.clean(folder)
    np.testing.assert_array_equal(of(follower).values, expected.values[:3])
    assert counts(follower) == {}


def test_a_long_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day split between two pieces has not settled in between: the rest of it would be late."""
    monkeypatch.setattr("tidemill.series._tail._PIECE_BYTES", 500)
    path = tmp_path / "prices.csv"
    path.write_text(HEAD + "".join(rows(range(20))))
    expected, _ = series.clean(path)
    follower = series.Follower(path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 20)
    np.testing.assert_array_equal(of(follower).values, expected.values)
    assert counts(follower) == {}


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    """Half a price is a price, too: it was shown after a while, and following ended when the rest came."""
    path = tmp_path / "prices.csv"
    written = "".join(rows(range(4)))
    path.write_text(HEAD + written[:-9])
    follower = series.Follower(path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 3)
    # Nor is the day of that line over.
    assert not any(follower.poll() for _ in range(20))
    with path.open("a") as file:
        file.write(written[-9:])
    until(follower, lambda: len(of(follower).times) == 4)
    expected, _ = series.clean(path)
    np.testing.assert_array_equal(of(follower).values, expected.values)
    assert counts(follower) == {}


def test_a_line_that_was_taken_as_whole_and_goes_on_is_an_error(tmp_path: Path) -> None:
    """A later file is beside it, whose days would have ended its own."""
    path = tmp_path / "a.csv"
    path.write_text(HEAD + "".join(rows(range(3))) + f"{day(3)},s0,5,1,")
    (tmp_path / "b.csv").write_text(HEAD + "".join(rows(range(4, 5))))
    follower = series.Follower(tmp_path, settle=0.0, poll_interval=0.001)
    until(follower, lambda: follower.panel is not None and len(of(follower).times) == 5)
    assert counts(follower) == {"gaps": 7}
    with path.open("a") as file:
        file.write("2\n")
    with pytest.raises(
        series.SeriesError, match=r"a.csv, line 26: .* now it continues; write files one after the other"
    ):
        until(follower, lambda: len(of(follower).times) == 7)


def frames_in(folder: Path) -> int:
    try:
        return len(FrameReader(folder))
    except FrameError:
        return 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_follows_a_file_into_an_open_page(workers: int, checkpoint: bool, tmp_path: Path) -> None:
    """A new day becomes a frame, which answers a request for news that was already waiting."""
    path, out = tmp_path / "prices.csv", tmp_path / "out"
    more = ("--checkpoint", tmp_path / "checkpoints") if checkpoint else ()
    path.write_text(HEAD + "".join(rows(range(24))))
    running = launched.start(
        "series", "-n", str(workers), "--no-prefix", path, "--follow", "--settle", "0.2", "--view",
        "--window", "20d", "--shift", "2d", "--out", out, *more,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        url = ""
        while "http" not in url:
            line = running.stdout.readline().decode()
            assert line, running.stderr and running.stderr.read()
            url = line.split()[-1]
        launched.wait_until(lambda: frames_in(out) == 3, "the frames of what there was")
        origin, _, token = url.partition("?token=")
        size = (out / "index.jsonl").stat().st_size
        with path.open("a") as file:
            file.writelines(rows(range(24, 26)))
        asked = urllib.request.Request(
            f"{origin}api/index?from={size}&wait=30", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=launched.PATIENCE_S) as answer:
            news = answer.read().decode()
        assert json.loads(news.splitlines()[-1])["time"] == day(25)
        # A day that changes no window makes no frame.
        with path.open("a") as file:
            file.writelines(rows(range(26, 28)))
        launched.wait_until(lambda: frames_in(out) == 5, "the next frame")
    finally:
        running.send_signal(signal.SIGINT)
        printed, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert (running.returncode, errors) == (0, b""), printed
    assert FrameReader(out)[-1].time == day(27)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["frames"], summary["workers"]) == (5, workers)
    # Following gives what a batch over the whole file gives.
    batch = tmp_path / "batch"
    done = launched.run("series", path, "--window", "20d", "--shift", "2d", "--out", batch)
    assert done.returncode == 0, done.stderr
    for one, other in zip(FrameReader(out), FrameReader(batch), strict=True):
        assert one.time == other.time
        size_of = np.abs(other.positions).max()
        np.testing.assert_allclose(one.positions, other.positions, atol=5e-3 * size_of)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_command_follows_a_folder_of_parquet_on_two_workers(checkpoint: bool, tmp_path: Path) -> None:
    """Only one worker reads them; a query that all must run would wait forever."""
    more = ("--checkpoint", tmp_path / "checkpoints") if checkpoint else ()
    folder, out = tmp_path / "prices", tmp_path / "out"
    folder.mkdir()
    parquet(folder / "0.parquet", range(25))
    running = launched.start(
        "series", "-n", "2", "--no-prefix", folder, "--follow", "--settle", "3600",
        "--window", "20d", "--shift", "2d", "--out", out, *more,
    )  # fmt: skip
    launched.wait_until(lambda: frames_in(out) == 3 or running.poll() is not None, "the frames of the first file")
    parquet(folder / ".1.parquet", range(25, 27))
    (folder / ".1.parquet").rename(folder / "1.parquet")
    launched.wait_until(lambda: frames_in(out) == 4 or running.poll() is not None, "the frame of the second")
    running.send_signal(signal.SIGINT)
    printed, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert (running.returncode, errors) == (0, b""), printed
    assert FrameReader(out)[-1].time == day(25)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_row_ends_following_with_its_line(workers: int, checkpoint: bool, tmp_path: Path) -> None:
    path, out = tmp_path / "prices.csv", tmp_path / "out"
    path.write_text(HEAD + "".join(rows(range(24))))
    running = launched.start(
        "series",
        "-n",
        str(workers),
        path,
        "--follow",
        "--settle",
        "0.2",
        "--window",
        "20d",
        "--shift",
        "2d",
        "--out",
        out,
        *(("--checkpoint", tmp_path / "checkpoints") if checkpoint else ()),
    )
    launched.wait_until(lambda: frames_in(out) == 3, "the frames of what there was")
    with path.open("a") as file:
        file.write("2024-03-01,s0,cheap,1,\n")
    _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode == 1
    assert f"tidemill series: {path}, line {24 * 8 + 2}: 'cheap' is not a number" in errors.decode()


def followed(
    path: Path, out: Path, workers: int, frames: int, how: int = signal.SIGINT, until: str = "", **more: str
) -> str:
    """Follow until so many frames are there and `until` has been printed, then end it; return the output."""
    options = {"window": "20d", "shift": "2d", **more}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    running = launched.start(
        "series", "-n", str(workers), "--no-prefix", path, "--follow", "--settle", "0.2", "--out", out, *words
    )
    printed, errors = launched.Output(running.stdout), launched.Output(running.stderr)
    try:
        launched.wait_until(
            lambda: (frames_in(out) == frames and until in printed.text) or running.poll() is not None,
            f"{frames} frames, and {until!r}",
        )
    finally:
        running.send_signal(how)
        running.wait(launched.PATIENCE_S)
    # They end with the last worker.
    said = printed.whole(), errors.whole()
    if how == signal.SIGINT:
        assert (running.returncode, said[1]) == (0, "")
    return "".join(said)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("workers", [1, 2])
def test_following_goes_on_where_it_was(workers: int, how: int, tmp_path: Path) -> None:
    """The command is ended, or its launcher killed, and started again with more rows: existing frames stay as they are,
    to the bit, and those that follow equal those of a run without a stop.
    """
    path, out, whole = tmp_path / "prices.csv", tmp_path / "out", tmp_path / "whole"
    path.write_text(HEAD + "".join(rows(range(30))))
    followed(path, out, workers, 6, how)
    files = sorted(out.glob("frame-*"))
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    assert len(before) == 6
    with path.open("a") as file:
        file.writelines(rows(range(30, 36)))
    printed = followed(path, out, workers, 9)
    assert f"6 frames are there, up to {day(29)}" in printed
    assert {name: ((out / name).read_bytes(), (out / name).stat().st_mtime_ns) for name in before} == before
    done = launched.run("series", path, "--window", "20d", "--shift", "2d", "--out", whole)
    assert done.returncode == 0, done.stderr
    for file in sorted(whole.glob("frame-*")):
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name
    summary = json.loads((out / "summary.json").read_text())
    expected = json.loads((whole / "summary.json").read_text())
    assert summary["per_frame"] == expected["per_frame"]


def test_days_with_several_times_are_over_when_a_later_one_comes(tmp_path: Path) -> None:
    """Frames used only the first time of a window's last day, never all of it, and were made again after a restart."""
    clocks = ("10:00:00", "12:00:00", "14:00:00")
    told = [row.replace(",", f"T{clocks[n // 8 % 3]},", 1) for n, row in enumerate(rows(range(18)))]
    lines = [row.replace(day(n // 8), day(n // 24)) for n, row in enumerate(told)]
    path, out, batch = tmp_path / "prices.csv", tmp_path / "out", tmp_path / "batch"

    # Up to the first time of the fourth day.
    path.write_text(HEAD + "".join(lines[: 24 * 3 + 8]))
    few = "times so far; the first frame comes when a window (4d) is full"
    assert few in followed(path, out, 1, 0, until=few, window="4d", shift="1d")
    assert frames_in(out) == 0
    with path.open("a") as file:
        file.writelines(lines[24 * 3 + 8 : 24 * 4 + 8])
    followed(path, out, 1, 1, window="4d", shift="1d")
    with path.open("a") as file:
        file.writelines(lines[24 * 4 + 8 : 24 * 5 + 8])
    assert f"1 frames are there, up to {day(3)}T14:00:00" in followed(path, out, 1, 2, window="4d", shift="1d")
    done = launched.run("series", path, "--window", "4d", "--shift", "1d", "--out", batch)
    assert done.returncode == 0, done.stderr
    for name in ("frame-000000.safetensors", "frame-000001.safetensors"):
        assert (out / name).read_bytes() == (batch / name).read_bytes()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("frames", [1, 5, 11])
def test_a_kill_while_frames_are_written_loses_none(frames: int, tmp_path: Path) -> None:
    """At any moment between the journal's entry for a frame and the frame itself, the next start finds a consistent
    state.
    """
    path, out, whole = tmp_path / "prices.csv", tmp_path / "out", tmp_path / "whole"
    path.write_text(HEAD + "".join(rows(range(150))))
    running = launched.start(
        "series", "-n", "2", path, "--follow", "--settle", "0.2", "--out", out, "--window", "20d", "--shift", "1d"
    )
    launched.wait_until(lambda: frames_in(out) >= frames, "the first frames")
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=launched.PATIENCE_S)
    there = frames_in(out)
    assert f"{there} frames are there" in followed(path, out, 2, 131, shift="1d") or there == 131
    done = launched.run("series", path, "--window", "20d", "--shift", "1d", "--out", whole)
    assert done.returncode == 0, done.stderr
    assert len(FrameReader(out)) == 131
    for file in whole.glob("frame-*"):
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name


def test_rows_that_have_changed_make_all_anew(tmp_path: Path) -> None:
    """Rows that only moved within the file do not."""
    path, out = tmp_path / "prices.csv", tmp_path / "out"
    lines = rows(range(30))
    path.write_text(HEAD + "".join(lines))
    followed(path, out, 1, 6)
    # The rows of a day in another order are the same rows.
    lines[8:16] = lines[15:7:-1]
    path.write_text(HEAD + "".join([*lines, *rows(range(30, 32))]))
    assert "6 frames are there" in followed(path, out, 1, 7)
    fields = lines[100].split(",")
    lines[100] = ",".join([*fields[:2], f"{float(fields[2]) * 1.01:.4f}", *fields[3:]])
    path.write_text(HEAD + "".join([*lines, *rows(range(30, 34))]))
    assert "differ from those that the frames were made of: all frames are recomputed" in followed(path, out, 1, 8)
    again = tmp_path / "again"
    assert launched.run("series", path, "--window", "20d", "--shift", "2d", "--out", again).returncode == 0
    assert len(FrameReader(out)) == len(FrameReader(again)) == 8
    for file in again.glob("frame-*"):
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_following_with_other_options_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "prices.csv", tmp_path / "out"
    path.write_text(HEAD + "".join(rows(range(30))))
    followed(path, out, 1, 6)
    done = launched.run("series", path, "--follow", "--window", "10d", "--shift", "2d", "--out", out)
    assert done.returncode == 1
    assert b"has frames made with window='20d', not '10d'; --overwrite recomputes them" in done.stderr
    # Frames without a known state cannot be continued.
    (out / "following.npz").write_bytes(b"")
    done = launched.run("series", path, "--follow", "--window", "20d", "--shift", "2d", "--out", out)
    assert done.returncode == 1
    assert b"--overwrite recomputes them" in done.stderr
    (out / "following.jsonl").unlink()
    done = launched.run("series", path, "--follow", "--window", "20d", "--shift", "2d", "--out", out)
    assert b"has frames already; --overwrite replaces them" in done.stderr


def test_what_cannot_be_a_running_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "prices.csv", tmp_path / "out"
    path.write_text(HEAD + "".join(rows(range(24))))
    window = ["--window", "20d", "--shift", "2d"]
    assert launched.run("series", path, *window, "--out", out).returncode == 0
    command = [str(path), "--out", str(out), "--checkpoint", str(tmp_path / "checkpoints")]

    def refused(*words: str) -> str:
        assert app.main([*command, *words]) == 1
        return capsys.readouterr().err

    assert "out has frames already; --overwrite replaces them" in refused(*window, "--follow")
    assert "--window (length=) '20q': write a length like 250d" in refused(
        "--window", "20q", "--shift", "2d", "--follow"
    )
    for words, message in [
        ([], "--checkpoint is for --follow"),
        (["--follow", "--overwrite"], "remove the frames and the checkpoints instead"),
    ]:
        with pytest.raises(SystemExit) as ended:
            app.main([*command, *window, *words])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        ("--window", "3w", "--shift", "1w", "--align", "first"),
        ("--window", "25r", "--shift", "5r", "--accumulate", "--start", "independent"),
        ("--window", "20d", "--shift", "1d", "--splits", "detect", "--distance", "euclidean", "--key-every", "3"),
    ],
)
def test_frames_of_a_running_stream_are_those_of_the_whole_file(words: tuple[str, ...], tmp_path: Path) -> None:
    """To the bit, for any windows, starts and alignments, on two workers: only the last day is not over."""
    path, out, whole = tmp_path / "prices", tmp_path / "out", tmp_path / "whole"
    path.mkdir()
    (path / "a.csv").write_text(HEAD + "".join(rows(range(50))))
    done = launched.run("series", path, "--out", whole, *words)
    assert done.returncode == 0, done.stderr
    (path / "b.csv").write_text(HEAD + "".join(rows(range(50, 51))))
    running = launched.start(
        "series",
        "-n",
        "2",
        path,
        "--follow",
        "--settle",
        "1h",
        "--out",
        out,
        "--checkpoint",
        tmp_path / "saved",
        *words,
    )
    expected = frames_in(whole)
    launched.wait_until(lambda: frames_in(out) >= expected or running.poll() is not None, "all frames")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=launched.PATIENCE_S)
    assert running.returncode == 0, errors.decode()
    for file in whole.glob("frame-*"):
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name
    one, two = (json.loads((folder / "summary.json").read_text())["per_frame"] for folder in (out, whole))
    assert one[: len(two)] == two
