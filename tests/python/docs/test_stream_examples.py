"""The programs in ``examples/`` that work on streams give what a plain computation over the whole input gives."""

from __future__ import annotations

import cmath
import contextlib
import csv
import gzip
import importlib
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import launched
import numpy as np
import pytest
import tidemill as tm

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("TIDEMILL_DATA", ROOT / "../shared/data"))
TWEETS = DATA / "tweets/crisis_tweets_2012_2013.csv.gz"
HOUSE = DATA / "sensors/debs2014_house0.csv.gz"
EPOCH = datetime(1970, 1, 1)
HOUR = timedelta(hours=1)

#: Household and plug are None in results about a house.
Plug = tuple[int, int | None, int | None]
Reading = tuple[datetime, Plug, float]


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


def printed(workers: int, name: str, *args: str | Path) -> list[str]:
    program = [str(ROOT / "examples" / name), *map(str, args)]
    command = [sys.executable, *program] if workers == 1 else launched.command("run", "-n", str(workers), *program)
    env = {**os.environ, "TIDEMILL_DATA": "no-such-folder"}
    done = subprocess.run(command, capture_output=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return [line.removeprefix("[0] ") for line in done.stdout.decode().splitlines()]


def starts(time: datetime, size: timedelta, slide: timedelta) -> Iterator[datetime]:
    """The windows that contain a moment."""
    start = time - (time - EPOCH) % slide
    while start + size > time:
        yield start
        start -= slide


def most_first(pair: tuple[str, int]) -> tuple[int, str]:
    return -pair[1], pair[0]


def tops(tweets: Iterable[tuple[datetime, str]], size: timedelta) -> dict[datetime, tuple[int, list[tuple[str, int]]]]:
    """For each window that slides by an hour: how many hashtags there are, and the ten used most."""
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    for time, text in tweets:
        for start in starts(time, size, HOUR):
            if tags := re.findall(r"#(\w+)", text.lower()):
                counts[start].update(tags)
    return {start: (of.total(), sorted(of.items(), key=most_first)[:10]) for start, of in counts.items()}


def check_hashtags(tweets: list[tuple[datetime, str]], path: Path | None) -> None:
    hashtags = example("hashtags")
    tags = hashtags.hashtags(tm.stream.from_table(hashtags.tweets(path), time="created_at", rows_per_batch=500))
    for hours in (1, 6):
        windows = hashtags.top_ten(tags, f"{hours}h", "1h")
        found = {window["start"]: (window["used"], window["top"]) for window in windows}
        assert len(found) == len(windows), "a window came twice"
        assert found == tops(tweets, timedelta(hours=hours))
        assert all(window["end"] - window["start"] == timedelta(hours=hours) for window in windows)


def write_tweets(path: Path) -> list[tuple[datetime, str]]:
    """Three days of random tweets: hashtags in both cases, next to each other, within words, and empty."""
    dice = random.Random(11)
    parts = [
        "#Flood",
        "#flood,",
        "#sandy#Boston",
        "no tag",
        "#",
        "a#b_c",
        "#über!",
        "two  words #sun7",
        "##twice",
        ",",
    ]
    times = sorted(dice.randrange(3 * 86_400_000) for _ in range(3000))
    start = datetime(2013, 1, 27)
    tweets = [(start + timedelta(milliseconds=ms), " ".join(dice.choices(parts, k=3))) for ms in times]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["created_at", "event", "text"])
        writer.writerows((time.isoformat(timespec="milliseconds") + "Z", "none", text) for time, text in tweets)
    return tweets


@pytest.mark.usefixtures("examples")
def test_hashtags(tmp_path: Path) -> None:
    """A hashtag in a wrong window, or cut in a wrong place, changes a count."""
    check_hashtags(write_tweets(tmp_path / "tweets.csv"), tmp_path / "tweets.csv")
    check_hashtags([(row["created_at"], row["text"]) for row in example("hashtags").MADE_UP], None)


@pytest.mark.usefixtures("examples")
@pytest.mark.skipif(not TWEETS.exists(), reason=f"40,000 tweets are not in {DATA}")
def test_hashtags_of_real_tweets() -> None:
    with gzip.open(TWEETS, "rt", encoding="utf-8", newline="") as file:
        rows = [(row["created_at"].removesuffix("Z"), row["text"]) for row in csv.DictReader(file)]
    check_hashtags([(datetime.fromisoformat(time), text) for time, text in rows], TWEETS)


@pytest.mark.parametrize("workers", [1, 2])
def test_hashtags_as_a_program(tmp_path: Path, workers: int) -> None:
    """Workers combine their windows."""
    tweets = write_tweets(tmp_path / "tweets.csv")
    expected = []
    for hours in (1, 6):
        windows = tops(tweets, timedelta(hours=hours))
        start = min(windows, key=lambda start: (-windows[start][0], start))
        expected.append(f"{len(windows)} windows of {hours}h; from {start} to {start + timedelta(hours=hours)}:")
        expected += [f"{place:>3}. {used:>5} #{tag}" for place, (tag, used) in enumerate(windows[start][1], 1)]
    assert printed(workers, "hashtags.py", tmp_path / "tweets.csv") == expected
    assert printed(workers, "hashtags.py")[1] == "  1.     9 #tide"


def averages(readings: list[Reading], slice_: timedelta) -> dict[Plug, dict[datetime, float]]:
    """The average of each slice, for each plug and each house."""
    values: dict[Plug, dict[datetime, list[float]]] = defaultdict(lambda: defaultdict(list))
    for time, plug, load in readings:
        values[plug][next(starts(time, slice_, slice_))].append(load)
    found = {plug: {start: float(np.mean(of)) for start, of in slices.items()} for plug, slices in values.items()}
    for house in {plug[0] for plug in found}:
        sums: dict[datetime, float] = defaultdict(float)
        for slices in [slices for plug, slices in found.items() if plug[0] == house]:
            for start, average in slices.items():
                sums[start] += average
        found[house, None, None] = dict(sums)
    return found


def predictions(
    readings: list[Reading], slice_: timedelta, day: timedelta
) -> dict[tuple[Plug, datetime], tuple[float, int]]:
    """Query 1: the predicted load, and how many earlier days there were."""
    made = {}
    for plug, slices in averages(readings, slice_).items():
        for start, average in slices.items():
            of = start + 2 * slice_
            days = range(1, (of - min(slices)) // day + 1)
            former = [slices[of - n * day] for n in days if of - n * day in slices]
            load = (average + float(np.median(former))) / 2 if former else average
            made[plug, of] = (load, len(former))
    return made


def percentages(readings: list[Reading], size: timedelta) -> dict[tuple[datetime, int], float]:
    """Query 2: by the window's end and the house."""
    windows: dict[datetime, dict[Plug, list[float]]] = defaultdict(lambda: defaultdict(list))
    for time, plug, load in readings:
        for start in starts(time, size, timedelta(minutes=10)):
            windows[start + size][plug].append(load)
    found = {}
    for end, plugs in windows.items():
        of_all = np.median(np.concatenate(list(plugs.values())))
        for house in {plug[0] for plug in plugs}:
            larger = [np.median(of) > of_all for plug, of in plugs.items() if plug[0] == house]
            found[end, house] = 100 * sum(larger) / len(larger)
    return found


def written(data: tm.DataSet, **options: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    data.write_stream(lambda rows: seen.extend(rows.to_pylist()), **options)
    return seen


def check_plugs(
    readings: list[Reading], path: Path | None, slice_: tuple[str, timedelta], day: tuple[str, timedelta]
) -> None:
    smart_plugs = example("smart_plugs")
    stream = tm.stream.from_table(smart_plugs.loads(path), time="at", rows_per_batch=1000)
    rows = written(smart_plugs.predict(stream, slice_[0], day[0]))
    made = {((row["house"], row["household"], row["plug"]), row["slice"]): (row["load"], row["days"]) for row in rows}
    expected = predictions(readings, slice_[1], day[1])
    assert len(made) == len(rows), "a slice was predicted twice"
    assert made.keys() == expected.keys()
    for of, (load, days) in expected.items():
        assert made[of] == (pytest.approx(load), days), of
    assert any(days > 0 for _, days in made.values())

    for hours in (1, 24):
        rows = written(smart_plugs.outliers(stream, f"{hours}h"))
        found = {(row["end"], row["house"]): row["percent"] for row in rows}
        assert len(found) == len(rows), "a percentage came twice"
        assert found == pytest.approx(percentages(readings, timedelta(hours=hours)))


def readings_of(rows: Iterable[Iterable[Any]]) -> list[Reading]:
    """Load readings, in the grand challenge's column order."""
    numbers = ([float(value) for value in row] for row in rows)
    return [
        (EPOCH + timedelta(seconds=at), (int(house), int(household), int(plug)), load)
        for _, at, load, kind, plug, household, house in numbers
        if kind == 1
    ]


def write_readings(path: Path) -> list[Reading]:
    """Two random days: missing readings, plugs that start late, readings of work, two readings in one second."""
    dice = random.Random(5)
    plugs = [(plug, household, house) for house in range(3) for household in range(2) for plug in range(2)]
    rows: list[list[Any]] = []
    for second in range(0, 2 * 86_400, 240):
        for number, plug in enumerate(plugs):
            if dice.random() < 0.6 and second > number * 5000:
                kind = 1 if dice.random() < 0.9 else 0
                at = 1_377_986_401 + second + dice.randrange(60)
                rows.append([at, round(dice.expovariate(1 / 80) * (1 + plug[2]), 3), kind, *plug])
    rows.sort(key=lambda row: row[0])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([number, *row] for number, row in enumerate(rows))
    return readings_of([number, *row] for number, row in enumerate(rows))


@pytest.mark.usefixtures("examples")
def test_smart_plugs(tmp_path: Path) -> None:
    """A slice of the wrong day, a house without one of its plugs, or a median of medians would give another number."""
    quarter, day = ("15m", timedelta(minutes=15)), ("1d", timedelta(days=1))
    check_plugs(write_readings(tmp_path / "readings.csv"), tmp_path / "readings.csv", quarter, day)
    check_plugs(readings_of(example("smart_plugs").made_up()), None, ("1h", HOUR), day)


@pytest.mark.usefixtures("examples")
@pytest.mark.skipif(not HOUSE.exists(), reason=f"readings of the DEBS 2014 grand challenge are not in {DATA}")
def test_smart_plugs_of_a_real_house() -> None:
    """The recording covers less than a day; days have four hours here, so that slices recur."""
    with gzip.open(HOUSE, "rt") as file:
        readings = readings_of(csv.reader(file))
    check_plugs(readings, HOUSE, ("15m", timedelta(minutes=15)), ("4h", timedelta(hours=4)))


@pytest.mark.usefixtures("examples")
def test_predictions_go_on(tmp_path: Path) -> None:
    """The earlier days were in the program's memory, and lost with it: a resumed job predicted as if there had been
    none.
    """
    readings = write_readings(tmp_path / "readings.csv")
    expected = predictions(readings, HOUR, timedelta(days=1))
    smart_plugs = example("smart_plugs")
    rows = smart_plugs.loads(tmp_path / "readings.csv")
    slow = tm.stream.from_table(rows, time="at", rows_per_batch=50, rows_per_s=4000)
    options: Any = {"checkpoint": tm.stream.Checkpoint(tmp_path / "checkpoints", interval="50ms")}
    seen: list[dict[str, Any]] = []
    smart_plugs.predict(slow, "1h", "1d").write_stream(
        lambda table: seen.extend(table.to_pylist()), **options, stop_when=lambda: len(seen) > len(expected) // 2
    )
    before = len(seen)
    assert before < len(expected)
    seen += written(smart_plugs.predict(slow, "1h", "1d"), **options)
    assert any(row["days"] > 0 for row in seen[before:])
    made = {((row["house"], row["household"], row["plug"]), row["slice"]): (row["load"], row["days"]) for row in seen}
    assert made == {of: (pytest.approx(load), days) for of, (load, days) in expected.items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_smart_plugs_as_a_program(tmp_path: Path, workers: int) -> None:
    """Workers combine their predictions and percentages."""
    readings = write_readings(tmp_path / "readings.csv")
    made = predictions(readings, timedelta(minutes=30), timedelta(days=1))
    houses = sorted((of, plug[0], *made[plug, of]) for plug, of in made if plug[1] is None)
    expected = [f"{len(made) - len(houses)} predictions for plugs, {len(houses)} for houses; the last of houses:"]
    expected += [f"  {of}  house {house}: {load:.1f} W, {days} former days" for of, house, load, days in houses[-6:]]
    for hours in (1, 24):
        percents = sorted(percentages(readings, timedelta(hours=hours)).items())
        expected += [f"{len(percents)} percentages of plugs above the median of {hours}h; the last ones:"]
        expected += [f"  {end}  house {house}: {percent:.1f} %" for (end, house), percent in percents[-6:]]
    assert printed(workers, "smart_plugs.py", tmp_path / "readings.csv", "--slice", "30m") == expected
    assert printed(workers, "smart_plugs.py")[0] == "1728 predictions for plugs, 576 for houses; the last of houses:"


def by_hour(path: Path, table: str) -> list[tuple[str, str, int, int]]:
    """The table of sales as it is, or as it must be in the end, by SQL over all orders."""
    query = {
        "sales": "select shop, hour, orders, cents from sales order by 1, 2",
        "orders": "select shop, strftime('%Y-%m-%dT%H:00:00', at), count(*), sum(cents) from orders group by 1, 2 order by 1, 2",
    }
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database:
        return database.execute(query[table]).fetchall()


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("workers", [1, 2])
def test_table_changes_as_a_program(tmp_path: Path, workers: int) -> None:
    """With an existing table, and with one that the program generates."""
    path = tmp_path / "shops.db"
    example("table_changes").make_up(path)
    made_up, given = (printed(workers, "table_changes.py", *args) for args in ([], [path]))
    assert made_up == given and len(given) == 5
    assert sum(int(line.split()[2]) for line in given) == 20_000
    assert by_hour(path, "sales") == by_hour(path, "orders")


@pytest.mark.usefixtures("examples")
def test_a_table_that_grows(tmp_path: Path) -> None:
    """Rows added while the job runs, and while it does not, count once; hours that are not over wait in the checkpoint."""
    path = tmp_path / "shops.db"
    example("table_changes").make_up(path)
    follow = ["run", "-n", "2", "--restarts", "1", ROOT / "examples/table_changes.py", path, "--follow"]

    def follows_until(hours: int) -> None:
        job = launched.start(*follow)
        launched.wait_until(lambda: job.poll() is not None or len(by_hour(path, "sales")) >= hours, f"{hours} hours")
        assert job.poll() is None, job.communicate()
        stopped = launched.run("stop", "sales")
        assert stopped.returncode == 0, stopped.stderr.decode()
        _, err = job.communicate(timeout=launched.PATIENCE_S)
        assert job.returncode == 0, err.decode()

    def add(first: int) -> None:
        """Ten hours of orders, one a minute."""
        times = [datetime(2026, 1, 7, 22, 40) + timedelta(minutes=first + n) for n in range(600)]
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as database, database:
            orders = [(f"shop {n % 5}", n, at.isoformat()) for n, at in enumerate(times)]
            database.executemany("insert into orders (shop, cents, at) values (?, ?, ?)", orders)

    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(example("table_changes").SALES)
    # The last hour of each shop waits for its end.
    follows_until(len(by_hour(path, "orders")) - 5)
    add(0)
    follows_until(len(by_hour(path, "orders")) - 5)
    add(600)
    follows_until(len(by_hour(path, "orders")) - 5)
    complete = {(shop, hour): sums for shop, hour, *sums in by_hour(path, "orders")}
    found = by_hour(path, "sales")
    assert len(found) == len(complete) - 5
    assert all(complete[shop, hour] == sums for shop, hour, *sums in found)


@pytest.mark.parametrize("workers", [1, 2])
def test_online_kmeans(workers: int) -> None:
    """The centers follow the drifting ones that points are drawn around, at most some tenths behind."""
    done = launched.run("run", "-n", str(workers), "--no-prefix", ROOT / "examples" / "online_kmeans.py")
    assert done.returncode == 0, done.stderr.decode()
    found = re.findall(r"second (\d+): center \d at \( *(-?[\d.]+), *(-?[\d.]+)\)", done.stdout.decode())
    seen = [(int(second), complex(float(x), float(y))) for second, x, y in found]
    assert [second for second, _ in seen] == [second for second in range(10) for _ in range(3)]
    for second, center in seen:
        drawn = [5 * cmath.exp(2j * cmath.pi * (cluster / 3 + second / 60)) for cluster in range(3)]
        assert min(abs(center - at) for at in drawn) < 1


@pytest.mark.parametrize("workers", [1, 2])
def test_live_network(workers: int) -> None:
    """The circles have separated, and the person met most often ranks highest."""
    lines = printed(workers, "live_network.py")
    assert lines[-2:] == ["after second 19: 60 people in 3 groups", "the most important: 0, with 23 meetings"]
