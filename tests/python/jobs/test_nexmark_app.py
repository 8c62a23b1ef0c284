"""``tidemill nexmark``: its events are Nexmark's, and all queries agree with DuckDB."""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from typing import Any

import launched
import pytest
import tidemill as tm
from tidemill.apps import nexmark
from tidemill.apps.nexmark_events import Events
from tidemill.apps.nexmark_queries import QUERIES

#: 200 s of event time: 20 windows of most queries, and auctions of up to 33 s.
SMALL = ["--events", "20000", "--step", "10ms"]
WORD = (1 << 64) - 1


def run(workers: int, *args: str) -> subprocess.CompletedProcess[bytes]:
    return launched.run("run", "-n", str(workers), "-m", "tidemill.apps.nexmark", *args)


def lines(printed: bytes) -> list[str]:
    return [line.removeprefix("[0] ") for line in printed.decode().splitlines()]


@pytest.mark.parametrize("workers", [1, 2])
def test_all_answers_are_those_of_duckdb(workers: int) -> None:
    pytest.importorskip("duckdb", reason="the answers to compare with are DuckDB's")
    done = run(workers, *SMALL, "--check")
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    first, *others = lines(done.stdout)
    assert first == f"20,000 events of 200.0 s on {workers} worker(s)"
    assert [line.split()[0] for line in others] == [f"Q{number}" for number in QUERIES]
    for line in others:
        assert line.endswith("as DuckDB")
        rows = int(line.split(" rows ")[0].split()[-1].replace(",", ""))
        assert rows >= 20, f"too few to tell anything: {line}"


def test_events_that_come_at_a_rate() -> None:
    """At a limited rate, time passes in many small steps, and answers must be the same."""
    pytest.importorskip("duckdb", reason="the answers to compare with are DuckDB's")
    done = run(2, *SMALL, "--rate", "40000", "--queries", "4-8", "--check")
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_a_wrong_answer_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison that never finds a difference would prove nothing, so DuckDB is asked for something else."""
    pytest.importorskip("duckdb", reason="the answers to compare with are DuckDB's")
    for number, other, said in (
        (2, "select auction, price from bid where auction % 123 = 0 and price < 1e7", "here, not of DuckDB"),
        (7, "select auction, bidder, price, date_time from bid", "not here, but of DuckDB"),
        (8, "select id, name, date_time from person where false", "here, not of DuckDB"),
    ):
        monkeypatch.setitem(nexmark.ANSWERS, number, other)
        assert nexmark.main([*SMALL, "--queries", f"0,{number}", "--check"]) == 1
        out, err = capsys.readouterr()
        assert out.count("as DuckDB") == 1 and "differs: (" in out and said in out
        assert err == f"tidemill nexmark: wrong or failed: Q{number}\n"


def test_a_query_that_fails_is_named_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(QUERIES, 1, "select price from bid order by price")
    assert nexmark.main([*SMALL, "--queries", "0-2"]) == 1
    out, err = capsys.readouterr()
    assert "Q1 currency conversion" in out and "failed: not supported: on a stream" in out
    assert out.count("events/s") == 2
    assert err == "tidemill nexmark: wrong or failed: Q1\n"


def test_what_is_wrong_is_said_once() -> None:
    for args, said in (
        (["--queries", "9"], "argument --queries: '9' is not a query; choose 0 to 8"),
        (["--queries", "3-x"], "argument --queries: '3-x' is not a query; choose 0 to 8"),
        (["--events"], "argument --events: expected one argument"),
        (["--events", "none"], "argument --events: must be a whole number of at least 1, not 'none'"),
        (["--step", "soon"], "argument --step: step='soon' is not a duration"),
        (["--rate", "-1"], "argument --rate: must be 0, for as fast as they are taken, or more, not '-1'"),
    ):
        done = run(2, *args)
        assert done.returncode == 2
        assert done.stderr.decode().count(said) == 1, done.stderr.decode()


def test_the_command_line() -> None:
    assert nexmark._numbers("0, 3-5,8") == [0, 3, 4, 5, 8]
    assert nexmark._arguments([]).queries == list(QUERIES)
    assert nexmark._arguments(["--events", "1_000", "--step", "1ms", "--rate", "2.5"]).step == 1000
    for wrong in ("0", "-3", "1e6", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            nexmark._count(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1us"):
        nexmark._step("0s")


def test_a_check_without_duckdb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(nexmark.importlib.util, "find_spec", lambda _: None)  # type: ignore[attr-defined]
    assert nexmark.main([*SMALL, "--check"]) == 1
    assert capsys.readouterr().err == "tidemill nexmark: --check needs DuckDB; install it with: pip install duckdb\n"


def signed(number: int) -> int:
    return (number & WORD) - ((number & WORD) >> 63 << 64)


def chance(number: int) -> tuple[int, int]:
    """The two random words of an event."""
    mixed = signed((number + 1) * -7046029254386353131)
    first = signed((mixed ^ mixed >> 32) * -4658895280553007687)
    return first, signed((first ^ first >> 29) * 7046029254386353131)


def bits(word: int, skip: int, count: int) -> int:
    return word >> skip & ((1 << count) - 1)


def price(of: int) -> int:
    return round(100 * 10 ** (6 * of / (1 << 20)))


def person_of(epoch: int, hot: bool, hot_place: int, chosen: int) -> int:
    active = min(epoch + 1, 1000)
    return 1000 + (epoch // 100 * 100 + hot_place if hot else epoch + 1 - active + chosen % (active + 10))


def expected(count: int, step_us: int) -> dict[str, list[tuple[Any, ...]]]:
    """What the events are by the rules, one after the other; without texts."""
    rows: dict[str, list[tuple[Any, ...]]] = {"person": [], "auction": [], "bid": []}
    for number in range(count):
        epoch, place = divmod(number, 50)
        time = number * step_us
        r, s = chance(number)
        if place == 0:
            rows["person"].append((1000 + epoch, time))
        elif place <= 3:
            initial = price(bits(r, 20, 20))
            expires = time + 1000 + (bits(s, 20, 20) * (3333 * step_us) >> 20)
            seller = person_of(epoch, bits(r, 40, 4) % 4 > 0, 0, bits(r, 44, 16))
            category = 10 + bits(s, 40, 12) % 5
            auction = 1000 + 3 * epoch + place - 1
            rows["auction"].append((auction, initial, initial + price(bits(s, 0, 20)), time, expires, seller, category))
        else:
            last = 3 * epoch + 2
            before = min(last, 100)
            auction = last // 100 * 100
            if bits(r, 0, 4) % 2 == 0:
                auction = last - before + bits(r, 4, 12) % (before + 11)
            bidder = person_of(epoch, bits(r, 16, 4) % 4 > 0, 1, bits(r, 20, 16))
            rows["bid"].append((1000 + auction, bidder, price(bits(r, 36, 20)), time))
    return rows


def test_events_are_what_the_rules_say() -> None:
    """A plain loop makes the same events, from the first to those for which all persons and auctions are available."""
    times = {
        name: (tm.col(name).cast("int64") - 1_767_225_600_000_000).alias(name) for name in ("date_time", "expires")
    }
    columns = {
        "person": ["id", times["date_time"]],
        "auction": ["id", "initial_bid", "reserve", times["date_time"], times["expires"], "seller", "category"],
        "bid": ["auction", "bidder", "price", times["date_time"]],
    }
    rows = expected(60_000, 100)
    for name, table in Events(60_000).tables().items():
        found = table.select(*columns[name]).sort("date_time").collect().to_dict()
        assert list(zip(*found.values(), strict=True)) == rows[name], name


@pytest.mark.parametrize("splits", [1, 3])
def test_streams_have_the_rows_of_tables(splits: int) -> None:
    """An event that depended on earlier ones would differ after a restart."""
    events = Events(10_007, 77)
    for name, stream in events.streams(splits=splits).items():
        seen: list[dict[str, Any]] = []
        stream.write_stream(lambda rows: seen.extend(rows.to_pylist()))  # noqa: B023
        assert sorted(seen, key=str) == sorted(events.tables()[name].to_pylist(), key=str)


def test_events_look_like_those_of_nexmark() -> None:
    """Half of the bids are for one auction in a hundred, and most kinds are equally frequent."""
    tables = Events(100_000).tables()
    counts = {name: table.count() for name, table in tables.items()}
    assert counts == {"person": 2000, "auction": 6000, "bid": 92_000}
    bids = tables["bid"].to_dict()
    hot = sum(auction % 100 == 0 for auction in bids["auction"]) / 92_000
    assert 0.5 < hot < 0.53
    assert 0.75 < sum(bidder % 100 == 1 for bidder in bids["bidder"]) / 92_000 < 0.78
    assert min(bids["price"]) >= 100 and max(bids["price"]) <= 100_000_000
    decades = Counter(len(str(price)) for price in bids["price"])
    assert all(abs(decades[digits] / 92_000 - 1 / 6) < 0.01 for digits in range(3, 9))
    assert len(set(bids["extra"])) > 10_000
    auctions = tables["auction"].to_dict()
    assert 0.75 < sum(seller % 100 == 0 for seller in auctions["seller"]) / 6000 < 0.79
    categories = Counter(auctions["category"])
    assert sorted(categories) == [10, 11, 12, 13, 14] and min(categories.values()) > 1100
    lengths = [
        (over - begin).total_seconds() for begin, over in zip(auctions["date_time"], auctions["expires"], strict=True)
    ]
    assert min(lengths) >= 0.001 and max(lengths) < 0.335 and 0.16 < sum(lengths) / 6000 < 0.175
    persons = tables["person"].to_dict()
    assert sorted(persons["id"]) == list(range(1000, 3000))
    assert len(set(persons["name"])) == 11 * 9 and set(persons["state"]) == {"AZ", "CA", "ID", "OR", "WA", "WY"}
    assert len(set(persons["credit_card"])) == 2000
    sizes = {
        name: sum(len(text) for column in texts for text in tables[name].to_dict()[column]) / counts[name]
        for name, texts in {
            "person": ["name", "email", "credit_card", "city", "state", "extra"],
            "bid": ["extra"],
        }.items()
    }
    assert 180 < sizes["person"] < 215 and 60 < sizes["bid"] < 75
